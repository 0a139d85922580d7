/* SPDX-License-Identifier: Apache-2.0
 *
 * One start of an engine whose GPU work is cut off: what the engine rank and gpu_reclaim share, in a file.
 */
#ifndef GMS_TESTS_GPU_RECLAIM_STAGE_H
#define GMS_TESTS_GPU_RECLAIM_STAGE_H

#include <stdatomic.h>
#include <stdint.h>

enum {
    RECLAIM_SLOTS = 512,
    RECLAIM_BLOCK_BYTES = 4096,
    RECLAIM_GROUP = 4,                 /* slots of a state: sealed, leased, released, in this order */
    RECLAIM_WINDOW = 3 * RECLAIM_GROUP /* slots that one engine uses */
};

enum reclaim_child {
    CHILD_NONE,      /* the engine rank alone */
    CHILD_OF_COHORT, /* forked before the work; sleeps with all its parent's descriptors until the fence finds it */
    CHILD_ORPHAN,    /* the same without a container, its parent gone: the fence finds it by the memory it has */
    CHILD_ESCAPED,   /* an orphan that has given the group's memory back, and has the driver open: ends by itself */
    CHILD_KINDS
};

enum reclaim_progress { RECLAIM_STARTING, RECLAIM_PARKED, RECLAIM_SERVING, RECLAIM_WORKING, RECLAIM_FAILED };

/* The last change of a page lies between the two: the sample before began, the sample that saw it ended. */
struct reclaim_change {
    _Atomic uint64_t after_ns, before_ns, count;
};

struct reclaim_stage {
    _Atomic int at, work_now;
    uint32_t engine, child, first_slot, life_ms, child_ms;
    char run_dir[128], launch[32], text[256];
    uint64_t incarnation;
    _Atomic uint64_t end_ns;            /* when the work ends by itself */
    _Atomic int child_pid, child_ready; /* of an orphan */
    /* As the successor of somebody: it watches these slots from when it is parked; RECLAIM_SLOTS: none. */
    _Atomic uint32_t watched_slot;
    _Atomic uint64_t samples, slowest_ns;
    struct reclaim_change pages[RECLAIM_WINDOW];
};

/* The engine rank, in reclaim_engine.c; an exit code. */
int reclaim_engine(const char *stage_path);
struct reclaim_stage *reclaim_stage_map(const char *path); /* NULL: errno */

#endif
