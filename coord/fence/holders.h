/* SPDX-License-Identifier: Apache-2.0
 *
 * Who can reach the memory of a dead cohort without being of it: one walk over /proc, in threads of its own, because
 * reading about a process that is stuck in the kernel can take for ever. The threads only look; the caller decides.
 * They share the processes, and the descriptors and mappings of one that has many (handout.h says how, and what becomes
 * of processes that are started meanwhile). Where the processes cannot be listed, or descriptors or memory to look with
 * are lacking, or new processes come to no end, the walk says so: a holder without a number, whom nobody can end.
 *
 * Somebody is a holder who
 *   - has a descriptor that was lent to the incarnation (loan.h), of any of the files;
 *   - shares a mapping of a file that only this incarnation was given (a directory);
 *   - shares a mapping of a file that others have as well (a KV pool), and does not descend from a living cohort's
 * anchor. Who is past the start of its exit holds nothing that it could use.
 *
 * Used from the main thread only.
 */
#ifndef GMS_COORD_HOLDERS_H
#define GMS_COORD_HOLDERS_H

#include "gms/status.h"
#include "host/maps.h"

struct event_base;
struct gms_holders;

struct gms_holder {
    pid_t pid; /* 0: not everybody could be looked at */
    int pidfd; /* -1: there is no descriptor for it */
};

struct gms_holders_options {
    struct event_base *base; /* borrowed */
    uint64_t incarnation;
    const struct gms_inode *own, *shared; /* copied */
    size_t own_count, shared_count;
    const pid_t *anchors; /* guardians and engine ranks of living cohorts; copied */
    size_t anchor_count;
    const pid_t *dead; /* of the cohort itself, known to be past the start of their exit; copied */
    size_t dead_count;
    size_t threads; /* 0: as many as there are processors to spare, 8 at most */
    /* From the loop, once, unless the walk is abandoned. The pidfds are the callee's to close. */
    void (*done)(void *context, const struct gms_holder *list, size_t count);
    void *context;
};

/* Errors: NO_MEMORY, DESCRIPTORS, SYSTEM. */
gms_status gms_holders_start(const struct gms_holders_options *options, struct gms_holders **ret_walk,
                             struct gms_error *ret_error);
/* Whom it has been reading about for longest; 0: nobody. One that does not move on is stuck there. */
pid_t gms_holders_at(const struct gms_holders *walk);
/* It looks at nobody else: `done` comes as soon as what is under way is done, with what was found until then. */
void gms_holders_stop(struct gms_holders *walk);
/* Lets go of it, before or after `done`. NULL allowed. The last thread frees its memory, also one that was stuck. */
void gms_holders_abandon(struct gms_holders *walk);

#endif
