/* SPDX-License-Identifier: Apache-2.0
 *
 * Prompt files: one prompt a line; blank lines and lines that start with '#' are skipped.
 */
#ifndef GMS_DRILL_PROMPTS_H
#define GMS_DRILL_PROMPTS_H

#include <stddef.h>

#include "plan.h"

struct drill_prompts {
    size_t count;
    char *items[DRILL_MAX_PROMPTS]; /* owned */
};

/* Errors: NOT_FOUND, INVALID (no prompt in it; not UTF-8, with its line), NO_CAPACITY, NO_MEMORY. */
gms_status drill_prompts_read(const char *path, struct drill_prompts *ret_prompts, struct gms_error *ret_error);
/* Texts of new requests that are timed through a failover; like no prompt of the file. */
extern const char *const drill_probe_prompts[DRILL_MAX_FAILOVERS];
void drill_prompts_free(struct drill_prompts *prompts);

#endif
