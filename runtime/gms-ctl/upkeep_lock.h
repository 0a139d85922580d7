/* SPDX-License-Identifier: Apache-2.0
 *
 * Is there a gms-up that looks after a run directory? It holds RUN/up.lock as long as it lives. The file stays, so a
 * lock that is free says only that none is there now: for whoever saw it held, that one has ended.
 */
#ifndef GMS_CTL_UPKEEP_LOCK_H
#define GMS_CTL_UPKEEP_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/run_dir.h"

struct gms_upkeep_lock {
    char path[GMS_RUN_PATH_BYTES];
    bool held;        /* somebody held it when we looked, at any time */
    uint64_t free_ns; /* since when it is free after that; 0: it is not */
};

/* Errors: INVALID (path too long). */
gms_status gms_upkeep_lock_open(struct gms_upkeep_lock *lock, const char *run_dir, struct gms_error *ret_error);

/* Looks, without blocking. True: it was held at an earlier look and has been free for two seconds: whoever starts a
 * gms-up again when it ends has not. A file that cannot be looked at is a lock that nobody was seen to hold. */
bool gms_upkeep_lock_look(struct gms_upkeep_lock *lock, uint64_t now_ns);

#endif
