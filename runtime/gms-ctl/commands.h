/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands, one function each: prints what was asked for on stdout, what is wrong in the log, and returns the exit
 * code. ask.c has those that change nothing, tell.c those that do.
 */
#ifndef GMS_CTL_COMMANDS_H
#define GMS_CTL_COMMANDS_H

#include <stddef.h>
#include <stdint.h>

#include "gms-ctl/answers.h"
#include "gms-ctl/options.h"
#include "gms/status.h"

int gms_ctl_status(const struct gms_ctl_options *options);
int gms_ctl_wait(const struct gms_ctl_options *options, enum gms_goal goal);
int gms_ctl_serving(const struct gms_ctl_options *options);
int gms_ctl_env(const struct gms_ctl_options *options, uint32_t engine);
int gms_ctl_log(const struct gms_ctl_options *options, uint32_t engine);

int gms_ctl_takeover(const struct gms_ctl_options *options, uint32_t engine);
int gms_ctl_drain(const struct gms_ctl_options *options, uint32_t engine);
int gms_ctl_park(const struct gms_ctl_options *options, uint32_t engine);
int gms_ctl_wake(const struct gms_ctl_options *options, uint32_t engine);
int gms_ctl_down(const struct gms_ctl_options *options);

/* For both files. What broke tells whom to ask: nobody there (GMS_CTL_UNREACHABLE), or somebody who said no. */
int gms_ctl_exit_code(gms_status status);
/* Logs the error; returns the exit code. */
int gms_ctl_complain(gms_status status, const struct gms_error *error);
/* The ranks that a command is about: --rank, or all that have a socket here. *ret_ranks is the caller's to free. */
gms_status gms_ctl_pick_ranks(const struct gms_ctl_options *options, uint32_t **ret_ranks, size_t *ret_count,
                              struct gms_error *ret_error);

#endif
