/* SPDX-License-Identifier: Apache-2.0
 *
 * The verdict: what of a result is a failure. Pure; each rule is one function with one test that it can fail.
 */
#ifndef GMS_DRILL_VERDICT_H
#define GMS_DRILL_VERDICT_H

#include "result.h"

/* Adds a failure to *result for every rule that it breaks. Failures that were found while running stay. */
void drill_verdict(struct drill_result *result);
/* DRILL_EXIT_PASS, _FAIL or _COULD_NOT_RUN. */
int drill_verdict_exit_code(const struct drill_result *result);

#endif
