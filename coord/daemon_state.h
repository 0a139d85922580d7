/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemon's own files share: daemon.c (loop, events), requests.c (messages in), actions.c (actions out),
 * status.c, timeline.c, hook.c. Nobody else includes this.
 */
#ifndef GMS_COORD_DAEMON_STATE_H
#define GMS_COORD_DAEMON_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/core.h"
#include "daemon.h"
#include "doorbell.h"
#include "fence.h"
#include "gms-keeper/client.h"
#include "pools.h"
#include "sessions.h"
#include "timeline.h"

struct event;
struct event_base;

/* An engine rank that went away while its join was undecided: should the group commit it, its process must still be
 * fenced. */
struct gms_orphan {
    struct gms_operation_key key; /* kind NONE: nobody */
    int pidfd;
    struct gms_container container;
};

struct gms_daemon {
    struct gms_daemon_options options;
    uint32_t rank, ranks;
    struct event_base *base;
    struct event *deadline, *signals[4], *hook_ended, *hook_deadline;
    int hook_fd;
    struct gms_sessions *sessions;
    struct gms_doorbell *doorbell;
    struct gms_pools *pools;
    struct gms_fence *fence;
    struct gms_core *core;
    void *core_memory;
    struct gms_orphan orphans[GMS_MAX_ENGINES];
    struct gms_timeline timeline;
    char endpoint[256]; /* of the engine that serves, as rank 0 knows it */
    bool keeper_lost, stopping, stopped, running_events;

    struct gms_event *queue; /* ring */
    size_t queue_capacity, queue_head, queue_count;
    struct gms_ballot merged;
    struct gms_actions actions;
};

/* Appends an event; its time is set when it is applied. Call gms_daemon_run_events from the loop's callbacks then. */
void gms_daemon_push(struct gms_daemon *daemon, const struct gms_event *event);
void gms_daemon_push_fact(struct gms_daemon *daemon, uint32_t engine, uint64_t incarnation, enum gms_fact fact);
/* Applies queued events until there are none, then sets the core's timer. Does nothing when it is running already. */
void gms_daemon_run_events(struct gms_daemon *daemon);

/* Leaves a copy of the pidfd of an incarnation's rank with the keeper; `context` is the daemon. */
void gms_daemon_keep_session(void *context, uint64_t incarnation, int pidfd);
/* Logs and ends this process for restart (or for the operator, if the status is of the group's kind). */
_Noreturn void gms_daemon_leave(struct gms_daemon *daemon, gms_status status, const char *text);

/* actions.c */
void gms_daemon_act(struct gms_daemon *daemon, const struct gms_action *action);
/* requests.c: callbacks of sessions */
void gms_daemon_received(void *context, struct gms_client *client, struct gms_message *message);
void gms_daemon_gone(void *context, struct gms_client *client, const char *why);
/* hook.c: runs hooks.on_serving, at most one at a time and not for ever; MPI is not touched in the child. */
void gms_daemon_run_hook(struct gms_daemon *daemon, uint64_t epoch);
void gms_daemon_end_hook(struct gms_daemon *daemon);
/* status.c: the status document; the caller frees it. NULL: no memory. */
char *gms_daemon_status(struct gms_daemon *daemon);

#endif
