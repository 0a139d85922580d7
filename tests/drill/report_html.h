/* SPDX-License-Identifier: Apache-2.0
 *
 * A campaign as a page: one file, nothing fetched from anywhere, no script, light and dark.
 */
#ifndef GMS_DRILL_REPORT_HTML_H
#define GMS_DRILL_REPORT_HTML_H

#include "campaign.h"

/* Owned by the caller (free); NULL: no memory. Sorts the campaign's lists of numbers. */
char *drill_report_html(struct drill_campaign *campaign);

#endif
