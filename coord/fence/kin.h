/* SPDX-License-Identifier: Apache-2.0
 *
 * A cohort as a family: the processes below an anchor (the guardian, which collects orphans), each named by pidfd,
 * killed as they are found, until there is provably no other.
 *
 * Why it ends, and why the end is a proof: a process that was sent SIGKILL starts no other process; a child whose
 * parent ends moves up to an ancestor, at last to the anchor; so, when every known process was killed, and one look at
 * the children of all of them, the deepest first and the anchor last, finds only known ones, there are no others. A
 * list of children can lack one while its reader is interrupted by the removal of another, so two looks in a row must
 * agree.
 *
 * Main thread only. Numbers are read, never signalled: the pidfd is opened first and the parent checked afterwards.
 */
#ifndef GMS_COORD_KIN_H
#define GMS_COORD_KIN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "gms/status.h"

enum { GMS_KIN_MAX = 4096 };

struct gms_kin_process {
    pid_t pid; /* for reading about it; its own while the pidfd says so */
    int pidfd; /* owned */
};

struct gms_kin {
    struct gms_kin_process *list; /* owned; parents stand before their children */
    size_t count, capacity;
    bool overflow; /* at the last look: more than GMS_KIN_MAX, or no descriptor for one: no proof then */
};

void gms_kin_clear(struct gms_kin *kin);

/* Kills a process and adds it. `pidfd` is copied. False: it was killed, but there is no descriptor or memory for it. */
bool gms_kin_add(struct gms_kin *kin, int pidfd);

enum gms_kin_state {
    GMS_KIN_EXITING, /* all are known, killed, and every thread of each is past the start of its exit */
    GMS_KIN_LIVE,    /* not yet; look again */
    GMS_KIN_UNKNOWN, /* the anchor is gone or cannot be seen from here: what was below it is not known to be all */
};

/* Looks below `anchor` (a pidfd; -1: none, only below those added) and kills what it finds. The anchor is not killed.
 * *ret_waits (may be NULL): somebody who is not exiting, 0: the looks did not agree. */
enum gms_kin_state gms_kin_look(struct gms_kin *kin, int anchor, pid_t *ret_waits);

/* Whom a look found, all ended (nothing of them is left but what others hold)? */
bool gms_kin_ended(const struct gms_kin *kin);

#endif
