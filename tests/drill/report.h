/* SPDX-License-Identifier: Apache-2.0
 *
 * What was found out, for people at a terminal.
 */
#ifndef GMS_DRILL_REPORT_H
#define GMS_DRILL_REPORT_H

#include <stdio.h>

#include "campaign.h"

/* One drill, a column for each failover, and the verdict. */
void drill_report_table(const struct drill_result *result, FILE *stream);
/* A campaign, a row for each round, what all failovers took together, and the verdict. Sorts the campaign's lists of
 * numbers. */
void drill_report_campaign(struct drill_campaign *campaign, FILE *stream);

#endif
