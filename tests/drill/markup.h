/* SPDX-License-Identifier: Apache-2.0
 *
 * Text of XML and HTML. What comes from elsewhere goes through drill_markup_text and nothing else, so that it stays
 * text.
 */
#ifndef GMS_DRILL_MARKUP_H
#define GMS_DRILL_MARKUP_H

#include <stdio.h>

/* Writes `text` with <, >, &, quotes escaped, and everything that is not UTF-8 or not allowed in XML as "?". */
void drill_markup_text(FILE *stream, const char *text);

#endif
