/* SPDX-License-Identifier: Apache-2.0
 *
 * FAILOVER_LOCK_PATH: a file lock by which programs outside this group know that somebody serves. Rank 0 takes it for
 * the engine that is about to serve, before it may adopt; the locked file goes to the keeper and to gms-exec like any
 * other copy, so the lock is held for as long as any of them lives, through restarts of the coordinators and from one
 * engine to its successor without a gap. It is given back when nobody of the group serves or will.
 *
 * The lock is asked of others, never believed: who may serve is decided by the ranks, and a lock that is free proves
 * nothing. It is an inode, not a name: each decision looks whether the name still leads to the locked file, and takes
 * the new one as well where it does not. Main thread only.
 */
#ifndef GMS_COORD_FAILOVER_LOCK_H
#define GMS_COORD_FAILOVER_LOCK_H

#include <stdbool.h>

#include "durable/copies.h"

/*
 * Holds the lock at `path` afterwards. Errors: BUSY (another process holds it, or the file that took its place: serving
 * must wait), those of gms_file_lock. After failure what was held is held on.
 */
gms_status gms_failover_lock_take(struct gms_copies *copies, const char *path, struct gms_error *ret_error);
bool gms_failover_lock_held(const struct gms_copies *copies);
/* Does `path` lead to the file that is held? */
bool gms_failover_lock_is_at(const struct gms_copies *copies, const char *path);
void gms_failover_lock_release(struct gms_copies *copies);

#endif
