/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of gms-failover-test.
 */
#ifndef GMS_DRILL_OPTIONS_H
#define GMS_DRILL_OPTIONS_H

#include "plan.h"

/* Exit codes of the program. */
enum { DRILL_EXIT_PASS = 0, DRILL_EXIT_FAIL = 1, DRILL_EXIT_COULD_NOT_RUN = 2, DRILL_EXIT_USAGE = 64 };

/*
 * Parses `argv` into *ret_plan, defaults included; drill_plan_complete is the caller's. --help and --version print and
 * exit. Errors: INVALID (option, value, what is allowed). `argv` is borrowed by the plan and must outlive it.
 */
gms_status drill_options_parse(int argc, char **argv, struct drill_plan *ret_plan, struct gms_error *ret_error);

#endif
