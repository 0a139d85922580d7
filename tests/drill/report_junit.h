/* SPDX-License-Identifier: Apache-2.0
 *
 * A campaign for CI: JUnit XML, a test case per round.
 */
#ifndef GMS_DRILL_REPORT_JUNIT_H
#define GMS_DRILL_REPORT_JUNIT_H

#include "campaign.h"

/* Owned by the caller (free); NULL: no memory. */
char *drill_report_junit(struct drill_campaign *campaign);

#endif
