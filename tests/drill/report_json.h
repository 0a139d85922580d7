/* SPDX-License-Identifier: Apache-2.0
 *
 * A campaign for programs: JSON (format in README.md).
 */
#ifndef GMS_DRILL_REPORT_JSON_H
#define GMS_DRILL_REPORT_JSON_H

#include "campaign.h"

enum { DRILL_REPORT_VERSION = 2 };

/* Owned by the caller (free); NULL: no memory. Sorts the campaign's lists of numbers. */
char *drill_report_json(struct drill_campaign *campaign);

/* Writes `text` (owned, freed in any case; NULL is NO_MEMORY) to `path`, whole or not at all. */
gms_status drill_report_write(const char *path, char *text, struct gms_error *ret_error);

#endif
