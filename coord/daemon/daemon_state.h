/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemon's own files share: daemon.c (loop, events), requests.c (messages in), actions.c and effects.c
 * (actions out), keeping.c (keeper, gms-exec), distribution.c (environments), resume.c (going on from an earlier
 * world), hung.c (hung engines), status.c, timeline.c, hook.c, watch.c. Nobody else includes this.
 */
#ifndef GMS_COORD_DAEMON_STATE_H
#define GMS_COORD_DAEMON_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/core.h"
#include "core/recovery.h"
#include "daemon/daemon.h"
#include "daemon/ports.h"
#include "daemon/progress.h"
#include "daemon/timeline.h"
#include "durable/copies.h"
#include "fence/fence.h"
#include "gms-keeper/client.h"
#include "group/doorbell.h"
#include "memory/pools.h"
#include "sessions/members.h"
#include "sessions/sessions.h"

struct event;
struct gms_reclaim;
struct gms_calibration;
struct event_base;

struct gms_daemon {
    struct gms_daemon_options options;
    uint32_t rank, ranks;
    struct event_base *base;
    struct event *deadline, *signals[4], *keeper_news, *keeper_retry, *hook_ended, *hook_deadline;
    int hook_fd;
    struct gms_sessions *sessions;
    struct gms_doorbell *doorbell;
    struct gms_pools *pools;
    struct gms_fence *fence;
    struct gms_members *members;
    struct gms_reclaim *reclaim;
    struct gms_calibration *calibration;
    struct gms_copies *copies; /* borrowed from the options */
    struct gms_core *core;
    void *core_memory;
    struct gms_timeline timeline;
    char endpoint[256];            /* of the engine that serves, as rank 0 knows it */
    uint64_t endpoint_incarnation; /* whose it is: the next one serves a moment before its endpoint is known */
    struct {
        int32_t engine;
        uint64_t incarnation, epoch;
        char endpoint[256];
    } watched; /* what watchers were told last */
    struct gms_progress_watch progress;
    struct event *hung_timer;
    uint64_t hooked_epoch;    /* the last for which the hook was run */
    uint64_t stored_round;    /* of the state that the store has */
    uint64_t woken_ns;        /* when a deadline was noticed late; 0: none was */
    uint64_t keeper_pause_ns; /* until the next try to find a keeper */
    bool keeper_lost, stopping, stopped, running_events;
    bool resuming; /* the actions that are carried out are those of a restored core */
    uint8_t snapshot[GMS_SNAPSHOT_MAX_BYTES];

    struct gms_event *queue; /* ring */
    size_t queue_capacity, queue_head, queue_count;
    struct gms_ballot merged;
    struct gms_actions actions;

    struct event *held_deadline;
    struct gms_held_end {
        uint64_t incarnation; /* 0: none */
        enum gms_fact fact;
    } held_ends[GMS_MAX_ENGINES]; /* of engine ranks that were told to end */
    struct gms_ports ports;
    uint32_t last_ports[GMS_MAX_ENGINES];     /* of their last starts; 0: none in this world */
    struct event *standby_deadline;           /* of engines that wait for a shadow before they count as parked */
    uint64_t waiting_parked[GMS_MAX_ENGINES]; /* their incarnations; 0: none */
    struct {
        uint64_t launch;            /* the last start of the engine whose ranks' environments differed */
        char text[256];             /* in what */
    } comparisons[GMS_MAX_ENGINES]; /* one round may refuse several */
};

/* Appends an event; its time is set when it is applied. Call gms_daemon_run_events from the loop's callbacks then. */
void gms_daemon_push(struct gms_daemon *daemon, const struct gms_event *event);
void gms_daemon_push_fact(struct gms_daemon *daemon, uint32_t engine, uint64_t incarnation, enum gms_fact fact);
/* Applies queued events until there are none, then sets the core's timer. Does nothing when it is running already. */
void gms_daemon_run_events(struct gms_daemon *daemon);
/* Logs and ends this process for restart (or for the operator, if the status is of the group's kind). */
_Noreturn void gms_daemon_leave(struct gms_daemon *daemon, gms_status status, const char *text);

/* actions.c */
void gms_daemon_act(struct gms_daemon *daemon, const struct gms_action *action);
/* effects.c: the actions of collective calls, each of the type that its name says. */
void gms_daemon_prepare(struct gms_daemon *daemon, const struct gms_action *action);
void gms_daemon_commit(struct gms_daemon *daemon, const struct gms_action *action);
void gms_daemon_abort(struct gms_daemon *daemon, const struct gms_action *action);
void gms_daemon_reply(struct gms_daemon *daemon, const struct gms_action *action);
void gms_daemon_bulk(struct gms_daemon *daemon, const struct gms_action *action);
/* requests.c: callbacks of sessions */
void gms_daemon_received(void *context, struct gms_client *client, struct gms_message *message);
void gms_daemon_gone(void *context, struct gms_client *client, const char *why);
gms_status gms_daemon_recognise(void *context, const struct gms_client *client, const struct gms_message *hello,
                                bool *ret_contained, struct gms_error *ret_error);
void gms_daemon_attached(void *context, struct gms_client *client);
/* keeping.c: sees to the keeper, and to what gms-exec must have. */
gms_status gms_daemon_keeping_open(struct gms_daemon *daemon, struct gms_error *ret_error);
void gms_daemon_keeping_close(struct gms_daemon *daemon);
void gms_daemon_keeper_is_lost(struct gms_daemon *daemon, const char *why);
/* Tells the keeper what the store has, before anything of it is told to anybody. A keeper that is gone need not know;
 * one that lives and does not answer may remember less than would be told: then this process leaves instead. */
void gms_daemon_mirror(struct gms_daemon *daemon);
/* Everything, to a gms-exec that has just attached. */
void gms_daemon_tell_copies(struct gms_daemon *daemon, struct gms_client *client);
/* resume.c: what an earlier world left. open: makes the core, takes up memory and members; begin: carries out what the
 * restored core wants, once all ranks are connected. */
gms_status gms_daemon_resume_open(struct gms_daemon *daemon, const struct gms_core_options *options,
                                  struct gms_error *ret_error);
void gms_daemon_resume_begin(struct gms_daemon *daemon);
/* Forgets members that the group does not know and whose processes have ended. */
void gms_daemon_sweep(struct gms_daemon *daemon);
/* distribution.c: the agreed environment. give: answers gms-exec, now or when rank 0 has said the port. noted: the
 * doorbell's callback. compare: after a round, if ranks of a joining engine have different environments (a collective).
 * text: what to add to a refused join, "" for nothing. */
void gms_daemon_give_environment(struct gms_daemon *daemon, struct gms_client *client, uint32_t request_id);
/* The same to gms-ctl: what a rank of `engine` gets, with the port of its last start. */
void gms_daemon_show_environment(struct gms_daemon *daemon, struct gms_client *client, uint32_t request_id,
                                 uint32_t engine);
void gms_daemon_noted(void *context, uint32_t from, uint64_t key, uint32_t value);
void gms_daemon_compare_environments(struct gms_daemon *daemon);
const char *gms_daemon_environment_text(const struct gms_daemon *daemon, const struct gms_outcome *outcome);
/* standby.c: an engine rank said that it parked; counts at once, or with standby.serve_after_standby when enough have.
 */
void gms_daemon_parked(struct gms_daemon *daemon, uint32_t engine, uint64_t incarnation);
void gms_daemon_parked_gone(struct gms_daemon *daemon, uint32_t engine, uint64_t incarnation);
/* told_to_end.c: gms-exec says that this engine's rank was told to end; and the end of a joined engine's session, which
 * becomes a fact at once, or after timeouts.told_to_end. */
void gms_daemon_told_to_end(struct gms_daemon *daemon, uint32_t engine);
void gms_daemon_push_end(struct gms_daemon *daemon, const struct gms_client *client);
/* FAILOVER_LOCK_PATH (failover_lock.h), rank 0: before `engine` may adopt, and with the heartbeat. */
gms_status gms_daemon_take_lock(struct gms_daemon *daemon, uint32_t engine, struct gms_error *ret_error);
void gms_daemon_look_after_lock(struct gms_daemon *daemon);
/* watch.c: who serves, for clients that said WATCH. tell: to one, under `request_id`; news: to all, when it has
 * changed. */
void gms_daemon_watch_tell(struct gms_daemon *daemon, struct gms_client *client, uint32_t request_id);
void gms_daemon_watch_news(struct gms_daemon *daemon);
/* hung.c: sets the timer when somebody is to be watched, clears it when nobody is. */
gms_status gms_daemon_hung_open(struct gms_daemon *daemon, struct gms_error *ret_error);
void gms_daemon_seek_hung(struct gms_daemon *daemon);
/* hook.c: runs hooks.on_serving, at most one at a time and not for ever; MPI is not touched in the child. */
void gms_daemon_run_hook(struct gms_daemon *daemon, uint64_t epoch);
void gms_daemon_end_hook(struct gms_daemon *daemon);
/* status.c: the status document; the caller frees it. NULL: no memory. */
char *gms_daemon_status(struct gms_daemon *daemon);

#endif
