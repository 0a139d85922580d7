/* SPDX-License-Identifier: Apache-2.0
 *
 * A drill against a deployment that runs: what is there, what of it will be struck, and whether a person wants that.
 */
#ifndef GMS_DRILL_AGAINST_H
#define GMS_DRILL_AGAINST_H

#include <stdio.h>

#include "catalogue.h"
#include "plan.h"

/* Why `fault` cannot be tried on a deployment that the drill has not started; NULL: it can. */
const char *drill_against_unfit(const struct drill_fault *fault);

/* Shows the deployment in plan->against: name, who serves, who is parked, and the processes that the chosen rows may
 * end. Errors: as drill_status_fetch_all, REFUSED (nobody serves), OK otherwise. ret_name of `bytes`: the deployment's.
 */
gms_status drill_against_show(const struct drill_plan *plan, FILE *out, char *ret_name, size_t bytes,
                              struct gms_error *ret_error);
/* Asks for the deployment's name at the terminal. True: it was typed. */
bool drill_against_agreed(const char *name, FILE *in, FILE *out);

#endif
