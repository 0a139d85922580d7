/* SPDX-License-Identifier: Apache-2.0
 *
 * One start of an engine, in a file that the table, the engine and all that descends from it map. None of the group's
 * memory: who maps this can still write nothing that anybody else uses.
 */
#ifndef GMS_TESTS_FENCE_STAGE_H
#define GMS_TESTS_FENCE_STAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

enum { STAGE_SLOTS = 64, STAGE_BLOCK_BYTES = 4096 };

/* What becomes of the process that writes into a leased page when the cohort is hit. */
enum behaviour {
    CHILD_EXITS,      /* a child; it ends by itself a moment after its parent */
    CHILD_LIVES,      /* a child; it goes on writing */
    CHILD_SETSID,     /* in a session of its own */
    CHILD_DOUBLE,     /* its parent has ended before: it went up to whoever collects orphans */
    CHILD_CLOSED,     /* has closed all its descriptors, the session's socket above all */
    STRANGER,         /* a process of somebody else, to which the pool's descriptor was passed */
    MAIN_THREAD_GONE, /* its main thread has ended, another one writes: state Z */
    STOPPED,          /* by SIGSTOP, in the middle of it */
    UNKILLABLE,       /* one more thread of it waits for a file system that never answers: state D */
    BEHAVIOURS
};

enum victim { LEADER, CHILD, LAUNCHER, VICTIMS };

enum progress { AT_START, AT_PARKED, AT_SERVING, AT_ACTING, AT_FAILED };

struct stage {
    _Atomic int at;    /* enum progress */
    _Atomic int order; /* 0: wait; else enum behaviour + 1 */
    enum victim victim;
    uint32_t slot;
    char stranger[100], mount[100];
    _Atomic bool kill_child;
    _Atomic uint64_t killed_ns;     /* CHILD: just before the signal */
    _Atomic uint64_t last_write_ns; /* by the writer, each time right after it stored the same into the pool */
    uint64_t incarnation;
    char text[256]; /* AT_FAILED */
};

/* Waits, a second at most, until the writer is at it: hit then, it is in the middle. */
static inline void wait_until_writing(const struct stage *stage)
{
    for (uint64_t end_ns = gms_clock_ns() + GMS_NS_PER_S; gms_clock_ns() < end_ns;)
        if (gms_clock_ns() - atomic_load(&stage->last_write_ns) < 20000)
            return;
}

/* engine.c: the engine rank, under gms-exec; and the stranger. Return an exit code. */
int engine_main(const char *stage_path);
int stranger_main(const char *socket_path, const char *stage_path);
struct stage *stage_map(const char *path);

/* dead_mount.c: a FUSE mount that takes a request and never answers. False: not possible here; `ret_why` says why. */
bool dead_mount_open(const char *directory, char ret_why[128]);
bool dead_mount_asked(void); /* somebody waits: killable until then, in state D once he is killed */
void dead_mount_close(void); /* aborts the connection: whoever waits is let go */

#endif
