/* SPDX-License-Identifier: Apache-2.0
 *
 * Is an engine that has work getting on with it? A pure function of what is seen of it from time to time:
 *
 *   MOVES    something changed since the last look, or there is nothing to do, or a pause was announced and is not over
 *   STALLED  it has work, and nothing has changed for the timeout, over looks that were all on time
 *
 * The watcher itself may have been the one who stood still (V17). A look that comes much later than it should says so:
 * then everything seen before is void, and the time counts from now.
 *
 * A pause ends with the next progress, or when its time is over; the timeout begins then.
 */
#ifndef GMS_COORD_PROGRESS_H
#define GMS_COORD_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/ballot.h"
#include "directory/directory.h"

enum { GMS_PROGRESS_LOOKS = 4 }; /* in one timeout */

struct gms_progress_state {
    uint64_t incarnation; /* 0: nobody */
    struct gms_directory_activity seen;
    uint64_t still_since_ns, pause_until_ns;
};

struct gms_progress_watch {
    uint64_t timeout_ns, last_look_ns; /* 0: none yet */
    struct gms_progress_state engines[GMS_MAX_ENGINES];
};

/* When the next look is due; the caller looks at all engines that it watches then. */
uint64_t gms_progress_interval_ns(const struct gms_progress_watch *watch);
/* A round of looks begins. False: it comes so late that this process must have stood still itself. */
bool gms_progress_begin(struct gms_progress_watch *watch, uint64_t now_ns);
/* Nobody is watched from here on. */
void gms_progress_rest(struct gms_progress_watch *watch);

struct gms_progress_look {
    uint64_t incarnation;
    bool has_work; /* beside what `activity` says: it is being promoted, or all of it is stopped */
    struct gms_directory_activity activity;
};
/* True: STALLED, for *ret_still_ns. */
bool gms_progress_look(struct gms_progress_watch *watch, uint32_t engine, const struct gms_progress_look *look,
                       uint64_t now_ns, uint64_t *ret_still_ns);

#endif
