/* SPDX-License-Identifier: Apache-2.0
 *
 * The drawings of the HTML report, as inline SVG; colours are the page's (report_style.h).
 */
#ifndef GMS_DRILL_REPORT_CHARTS_H
#define GMS_DRILL_REPORT_CHARTS_H

#include <stdio.h>

#include "campaign.h"

/* What the steps are called for people who do not know this project. */
const char *drill_chart_step_label(enum drill_step step);

/* How often which length; *gaps is sorted, in ns. */
void drill_chart_distribution(FILE *page, const struct drill_numbers *gaps);
/* Medians of the steps, one after the other, until the first token. */
void drill_chart_breakdown(FILE *page, const struct drill_totals *totals);
/* One failover: clients, group, and each rank's old and new process, on one clock. */
void drill_chart_timeline(FILE *page, const struct drill_failover *failover, uint32_t ranks);
/* Median gap of each side, on one scale. */
void drill_chart_sides(FILE *page, struct drill_side *sides, size_t count);

#endif
