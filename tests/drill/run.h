/* SPDX-License-Identifier: Apache-2.0
 *
 * Carries a plan out: control run, deployment, streams, faults, evidence. Starts processes and ends every one of them
 * before it returns.
 */
#ifndef GMS_DRILL_RUN_H
#define GMS_DRILL_RUN_H

#include <stdio.h>

#include "result.h"

/* `plan` is complete and borrowed by *ret_result. Progress lines go to `progress`. Never fails: what went wrong is in
 * the result. The verdict is not in it yet. */
void drill_run(const struct drill_plan *plan, FILE *progress, struct drill_result *ret_result);

#endif
