/* SPDX-License-Identifier: Apache-2.0
 * The status of a group as a person reads it: the verdict first, then what is wrong, then the numbers. */
#ifndef GMS_CTL_TABLE_H
#define GMS_CTL_TABLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct gms_rank_status {
    uint32_t rank;
    json_t *document; /* borrowed; NULL: the rank did not answer */
    const char *why;  /* borrowed; then the reason */
};

/* Writes to `stream`. Fields that a document lacks are shown as "-". `color`: bold and red where it matters. `upkeep`:
 * why gms-up cannot keep engines, borrowed, "": nothing to say; control characters in it are not written. */
void gms_table_write(FILE *stream, const struct gms_rank_status *ranks, size_t count, const char *upkeep, bool color);

#endif
