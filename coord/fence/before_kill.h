/* SPDX-License-Identifier: Apache-2.0
 *
 * hooks.before_kill: a program that is given the pid of an engine rank which hangs, and is to be killed, and may hold
 * it first: the driver's lock of a CUDA process stops it from submitting more work. It is a courtesy, no proof: after
 * its deadline, or when it fails, the kill follows all the same. In a process of its own, because the driver may not
 * answer.
 */
#ifndef GMS_COORD_BEFORE_KILL_H
#define GMS_COORD_BEFORE_KILL_H

#include <stdint.h>
#include <sys/types.h>

#include "gms/status.h"

struct event_base;
struct gms_before_kill;

struct gms_before_kill_options {
    struct event_base *base;
    const char *words; /* "word\0" repeated; the pid becomes the last word; borrowed for the call */
    uint32_t words_bytes;
    pid_t pid;
    uint64_t limit_ns;
    /* From the loop, once, unless abandoned: it has ended, or its time is over (then it is killed). */
    void (*done)(void *context);
    void *context;
};

/* Errors: those of gms_program_start, NO_MEMORY. */
gms_status gms_before_kill_start(const struct gms_before_kill_options *options, struct gms_before_kill **ret_run,
                                 struct gms_error *ret_error);
/* Lets go of it; one that runs is killed. NULL allowed. */
void gms_before_kill_abandon(struct gms_before_kill *run);

#endif
