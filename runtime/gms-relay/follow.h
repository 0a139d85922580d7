/* SPDX-License-Identifier: Apache-2.0
 *
 * Follows who serves: subscribes to coordinator rank 0 (WATCH), again and again while there is none. Without a
 * coordinator the last news holds, because engines serve on; at first the run directory's `serving` file stands in.
 */
#ifndef GMS_RELAY_FOLLOW_H
#define GMS_RELAY_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "gms/status.h"

struct event_base;
struct relay_follow;

struct relay_serving {
    /* Counts incarnations as they were heard of: only grows, also when a group is started afresh and its own numbers
     * begin again. 0: nobody has been heard of. */
    uint64_t serial;
    int32_t engine; /* -1: nobody serves */
    uint64_t incarnation, epoch;
    char endpoint[256];
};

/* `news` is called from the loop whenever what is known has changed. Errors: INVALID (path too long), NO_MEMORY. */
gms_status relay_follow_open(struct event_base *base, const char *run_dir, void (*news)(void *context), void *context,
                             struct relay_follow **ret_follow, struct gms_error *ret_error);
void relay_follow_close(struct relay_follow *follow); /* NULL allowed */

const struct relay_serving *relay_follow_look(const struct relay_follow *follow);
/* Is there a coordinator that tells us? */
bool relay_follow_connected(const struct relay_follow *follow);

#endif
