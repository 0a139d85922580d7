/* SPDX-License-Identifier: Apache-2.0
 *
 * The fence: ends the cohort of a condemned incarnation on this rank and finds out when it is retired, that is, when no
 * thread of it can execute another user instruction. Processes are named by pidfd only; no number is ever signalled.
 *
 * Retired takes three things at once, and time is none of them:
 *
 * | what                 | when                                                                                       |
 * |----------------------|--------------------------------------------------------------------------------------------|
 * | the family           | everybody below the anchor was killed and is past the start of its exit (kin.h), or the    |
 * |                      | container's own end says so:                                                               |
 * |   PID namespace      | anchor: its init, which is killed; the end of init is the end of all                       |
 * |   subreaper          | anchor: the guardian, which lives; its orderly end says that nothing is left. If somebody |
 * |                      | killed it, gms-exec cleans up, and its end is waited for                                   |
 * |   control group      | as subreaper, and cgroup.kill ends everybody in the group, whoever started it              |
 * |   none               | the engine rank; children that it has when it is killed                                    |
 * | strangers            | whoever else was found to reach the cohort's memory was killed and is past the start of    |
 * |                      | its exit                                                                                   |
 * | the memory           | what was lent to the incarnation is back (loan.h). Or a walk over /proc that began after   |
 * |                      | the above found nobody, while the dead are still being taken down: their last references  |
 * |                      | go late                                                                                    |
 *
 * So a child that hid from its dead parent, one that keeps only the pool, and a process of somebody else to which a
 * descriptor was passed are killed and waited for alike. A thread that does not end (state D), a process that cannot be
 * seen (pid 0) or signalled: not retired, and gms_fence_waits_for says for whom.
 *
 * An incarnation that this rank never saw is retired at once. Main thread only.
 */
#ifndef GMS_COORD_FENCE_H
#define GMS_COORD_FENCE_H

#include <stdint.h>

#include "sessions/sessions.h"

struct gms_fence;

/* What is lent to an incarnation. */
struct gms_fence_file {
    int fd;      /* borrowed; not of the loan */
    bool shared; /* lent to others as well (a pool); else to this incarnation alone (a directory) */
};
enum { GMS_FENCE_FILES = 2 * GMS_MAX_POOLS };

struct gms_fence_options {
    struct event_base *base; /* borrowed */
    /* What is lent to it now; returns how many. */
    size_t (*lent)(void *context, uint64_t incarnation, struct gms_fence_file ret_files[GMS_FENCE_FILES]);
    uint64_t report_ns; /* a cohort that is not retired for so long is named in the log, then after twice the time;
                           0: never */
    /* hooks.before_kill, as in the configuration; 0 bytes: none. Borrowed for the fence's life. */
    const char *before_kill;
    uint32_t before_kill_bytes;
    uint64_t before_kill_ns;
    /* Called once per started fence, from the loop or from inside gms_fence_start. */
    void (*retired)(void *context, uint32_t engine, uint64_t incarnation);
    void *context;
};

gms_status gms_fence_open(const struct gms_fence_options *options, struct gms_fence **ret_fence,
                          struct gms_error *ret_error);
void gms_fence_close(struct gms_fence *fence); /* NULL allowed */

/* Learns a cohort: copies the descriptors. Errors: DESCRIPTORS, NO_MEMORY. */
gms_status gms_fence_add(struct gms_fence *fence, uint32_t engine, uint64_t incarnation, int pidfd,
                         const struct gms_container *container, struct gms_error *ret_error);
/* Kills it, now, and watches until it is retired. Starting twice changes nothing. */
void gms_fence_start(struct gms_fence *fence, uint32_t engine, uint64_t incarnation);
/* The same for one that hangs rather than dies: hooks.before_kill comes first. */
void gms_fence_start_held(struct gms_fence *fence, uint32_t engine, uint64_t incarnation);
/* The same for one that has said goodbye: it may end by itself first, with an exit status of its own, for at most
 * `grace_ns`; what is left then is killed. Starting twice changes nothing, but gms_fence_start ends the grace. */
void gms_fence_start_leaving(struct gms_fence *fence, uint32_t engine, uint64_t incarnation, uint64_t grace_ns);
/* Rehearses the walk that a takeover may wait for (rehearsal.h). To be called when processes have come that will stay.
 */
void gms_fence_rehearse(struct gms_fence *fence);
/* Closes what is known of it. */
void gms_fence_forget(struct gms_fence *fence, uint64_t incarnation);

/* For the status: 0 where unknown. */
enum gms_fence_state { GMS_FENCE_UNKNOWN, GMS_FENCE_LIVE, GMS_FENCE_KILLED, GMS_FENCE_RETIRED };
enum gms_fence_state gms_fence_look(const struct gms_fence *fence, uint64_t incarnation, pid_t *ret_pid,
                                    uint32_t *ret_container_kind);
/* What a killed cohort is not retired for, in words; "" for one in any other state. */
void gms_fence_waits_for(struct gms_fence *fence, uint64_t incarnation, char *ret_text, size_t bytes);
/* Has everything of it that is known ended: the family, the container, strangers? More than retired: what they had open
 * is closed. False for one that was not fenced. */
bool gms_fence_is_over(const struct gms_fence *fence, uint64_t incarnation);

#endif
