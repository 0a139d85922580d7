/* SPDX-License-Identifier: Apache-2.0
 *
 * When each step of a takeover happened on this rank, for the status and the drill. Decides nothing.
 */
#ifndef GMS_COORD_TIMELINE_H
#define GMS_COORD_TIMELINE_H

#include <stdint.h>

#include "core/ballot.h"
#include "memory/pools.h"

enum { GMS_TIMELINE_KEPT = 16 };

struct gms_takeover_record {
    uint64_t epoch; /* that the successor serves under */
    uint32_t from_engine, to_engine;
    uint64_t from_incarnation, to_incarnation; /* to 0: nobody chosen yet */
    enum gms_fact cause;
    uint64_t detect_ns, condemn_ns, fence_ns, classify_ns, promote_ns, adopt_ns, serve_ns; /* 0: not yet */
    struct gms_pools_classified classified;
    struct gms_pools_adopted adopted;
    uint32_t reclaimed;  /* slots that came back to the successor */
    uint64_t reclaim_ns; /* the last of them; 0: none yet */
};

struct gms_timeline {
    struct gms_takeover_record records[GMS_TIMELINE_KEPT]; /* ring; the newest is at (count - 1) % KEPT */
    uint64_t count;
    /* the first sign of the next one, before it is condemned */
    uint64_t sign_incarnation, sign_ns;
    enum gms_fact sign;
};

/* A sign that incarnation may have to be taken over from, local or merged: the first one counts. */
void gms_timeline_sign(struct gms_timeline *timeline, uint64_t incarnation, enum gms_fact fact, uint64_t now_ns);
/* The writer is condemned: a takeover begins. */
void gms_timeline_begin(struct gms_timeline *timeline, uint32_t engine, uint64_t incarnation, uint64_t now_ns);
/* `slots` came back to incarnation `to`, on all ranks. */
void gms_timeline_reclaimed(struct gms_timeline *timeline, uint64_t to, uint32_t slots, uint64_t now_ns);
/* The newest takeover that has not ended in serving; NULL: none. */
struct gms_takeover_record *gms_timeline_open(struct gms_timeline *timeline);

#endif
