/* SPDX-License-Identifier: Apache-2.0
 * gms-exec's side of the cohort container: choosing it, starting it, letting the rank run, hearing of its end. */
#ifndef GMS_EXEC_CONTAINER_H
#define GMS_EXEC_CONTAINER_H

#include "base/cgroup.h"
#include "gms-exec/guardian.h"
#include "gms-exec/options.h"
#include "gms/status.h"
#include "wire/message.h"

struct gms_container {
    enum gms_guard guard;
    pid_t guardian_pid; /* our child, not waited for before its end: the number is its own */
    int guardian;       /* pidfd */
    int engine;         /* pidfd, -1 until READY */
    int control;        /* reports come here */
    int go;             /* write end; closing it before gms_container_go ends the rank */
    int own;            /* our own pidfd */
    int cgroup;         /* directory of the control group that the rank lives in; -1: none */
    char cgroup_path[GMS_CGROUP_PATH_BYTES];
    bool cgroup_optional; /* the rank may as well run outside it */
};

#define GMS_CONTAINER_NONE                                                                                             \
    {                                                                                                                  \
        .guardian = -1, .engine = -1, .control = -1, .go = -1, .own = -1, .cgroup = -1                                 \
    }

/* What `wanted` means here; makes the control group if there is to be one. UNSUPPORTED: it cannot be had; the text says
 * why and what to do. */
gms_status gms_container_choose(struct gms_container *container, enum gms_exec_containment wanted,
                                enum gms_guard *ret_guard, struct gms_error *ret_error);

/*
 * Starts the guardian and the waiting rank; READY or FAILED comes as a report. The environment must be final.
 * `own_group`: the rank gets its own process group. `close_fds`: ours, which the guardian must not keep.
 * Errors: UNSUPPORTED, SYSTEM. After failure nothing runs.
 */
gms_status gms_container_start(struct gms_container *container, enum gms_guard guard, bool own_group, char **command,
                               const int *close_fds, size_t close_count, struct gms_error *ret_error);

/* One report, if there is one. READY's pidfd is kept in container->engine. False: none now. */
bool gms_container_report(struct gms_container *container, struct gms_report *ret_report);

/* Lets the rank run. Once. */
void gms_container_go(struct gms_container *container);

/* What the coordinator is told: kind, and the pidfd whose process is the container (borrowed). */
enum gms_container_kind gms_container_kind(const struct gms_container *container);
int gms_container_pidfd(const struct gms_container *container);

/* Removes the control group, if it is empty. */
void gms_container_remove_group(struct gms_container *container);

/* Closes everything; what still runs then ends: the guardian hears it. */
void gms_container_close(struct gms_container *container);

#endif
