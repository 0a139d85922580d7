/* SPDX-License-Identifier: Apache-2.0
 *
 * The fence: ends the cohort of a condemned incarnation on this rank and finds out when it is retired, that is, when no
 * thread of it can execute another user instruction. Processes are named by pidfd only; no number is ever signalled.
 *
 * | container     | killed                    | retired when                                                          |
 * |---------------|---------------------------|-----------------------------------------------------------------------|
 * | PID namespace | its init, the engine rank | the init has ended: then everything in the namespace has              |
 * | subreaper     | the engine rank           | engine rank and guardian have ended, and nobody maps its directories  |
 * | none          | the engine rank           | every thread of it is past the start of its exit, and nobody else maps|
 * |               |                           | its directories                                                       |
 *
 * Whoever else maps the incarnation's directories is killed too (its children, found by the inode), and looked for
 * again. An incarnation that this rank never saw is retired at once. Time never makes anything retired.
 *
 * Main thread only.
 */
#ifndef GMS_COORD_FENCE_H
#define GMS_COORD_FENCE_H

#include <stdint.h>

#include "sessions.h"

struct gms_fence;

struct gms_fence_options {
    struct event_base *base; /* borrowed */
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
/* A file that only this incarnation's cohort may map (a directory). Unknown incarnations are ignored. */
void gms_fence_add_file(struct gms_fence *fence, uint64_t incarnation, int fd);
/* Kills it, now, and watches until it is retired. Starting twice changes nothing. */
void gms_fence_start(struct gms_fence *fence, uint32_t engine, uint64_t incarnation);
/* Closes what is known of it. */
void gms_fence_forget(struct gms_fence *fence, uint64_t incarnation);

/* Calls `visit` for each known cohort whose engine rank has not ended; `pidfd` is borrowed during the call. */
void gms_fence_each_living(const struct gms_fence *fence, void (*visit)(void *context, uint64_t incarnation, int pidfd),
                           void *context);

/* For the status: 0 where unknown. */
enum gms_fence_state { GMS_FENCE_UNKNOWN, GMS_FENCE_LIVE, GMS_FENCE_KILLED, GMS_FENCE_RETIRED };
enum gms_fence_state gms_fence_look(const struct gms_fence *fence, uint64_t incarnation, pid_t *ret_pid,
                                    uint32_t *ret_container_kind);

#endif
