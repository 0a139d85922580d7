/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of what the rank's coordinator has left with the keeper. gms-exec has no use for them itself: they are for the
 * day on which keeper and coordinators end together. A keeper that is new gets them all; it takes what it has not, and
 * nothing once the rank's coordinator is whole again.
 */
#ifndef GMS_EXEC_SAVED_H
#define GMS_EXEC_SAVED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/run_dir.h"
#include "wire/message.h"

struct gms_saved_item {
    char *name; /* owned */
    int fd;     /* owned */
    void *meta; /* owned */
    uint32_t meta_bytes;
    bool stale; /* not in the list that is being told */
};

struct gms_saved {
    char path[GMS_RUN_PATH_BYTES]; /* the keeper's socket */
    uint32_t rank;
    struct gms_saved_item *items; /* owned */
    size_t count, capacity;
    int fd; /* a connection to the keeper that is only there to end; -1: none */
    uint64_t retry_ns, pause_ns;
    uint64_t lost_ns; /* when the last keeper ended; 0: there was none */
    void *buffer;     /* owned, GMS_WIRE_MAX_BYTES */
};

/* Errors: INVALID (path too long), NO_MEMORY. */
gms_status gms_saved_open(struct gms_saved *saved, const char *run_dir, uint32_t rank, struct gms_error *ret_error);
void gms_saved_close(struct gms_saved *saved);

/* One COPY message; takes its descriptor. What there is no memory for is not saved. */
void gms_saved_take(struct gms_saved *saved, struct gms_message *message);

/* Finds a keeper where there is none, and gives it everything. Call when fd is readable and when retry_ns has passed.
 * Bounded by half a second for a keeper that does not answer. True: a keeper has been refilled. */
bool gms_saved_step(struct gms_saved *saved, uint64_t now_ns);

#endif
