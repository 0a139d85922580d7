/* SPDX-License-Identifier: Apache-2.0
 *
 * Directs a campaign: rows of the catalogue, one after the other, in scenes that they share.
 */
#ifndef GMS_DRILL_DIRECT_H
#define GMS_DRILL_DIRECT_H

#include <stdio.h>

#include "campaign.h"

/* Carries out plan->rows. Progress goes to `progress`. *ret_campaign must be zeroed, its environment may be set. Never
 * fails: what went wrong is in the campaign. Every process has ended when it returns. */
void drill_direct(const struct drill_plan *plan, FILE *progress, struct drill_campaign *ret_campaign);

#endif
