/* SPDX-License-Identifier: Apache-2.0
 *
 * The result for people (a table) and for programs (JSON, format in README.md).
 */
#ifndef GMS_DRILL_REPORT_H
#define GMS_DRILL_REPORT_H

#include <stdio.h>

#include "result.h"

enum { DRILL_REPORT_VERSION = 1 };

void drill_report_table(const struct drill_result *result, FILE *stream);
/* The JSON text, owned by the caller (free); NULL: no memory. */
char *drill_report_json(const struct drill_result *result);
/* Writes it to `path`, whole or not at all. */
gms_status drill_report_write_json(const struct drill_result *result, const char *path, struct gms_error *ret_error);

#endif
