/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/daemon.h"

#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "daemon/calibration.h"
#include "daemon/daemon_state.h"
#include "daemon/reclaim.h"
#include "fence/loan.h"

_Noreturn void gms_daemon_leave(struct gms_daemon *daemon, gms_status status, const char *text)
{
    (void)daemon; /* crash-only: whatever must survive is stored or with the keeper already */
    gms_log(GMS_LOG_ERROR, "%s (%s)", text, gms_status_name(status));
    _exit(status >= 300 ? GMS_EXIT_OPERATOR : GMS_EXIT_RESTART);
}

/* ---------------------------------------------------------------------------------------------------- events --- */

void gms_daemon_push(struct gms_daemon *daemon, const struct gms_event *event)
{
    if (daemon->queue_count == daemon->queue_capacity) {
        size_t capacity = daemon->queue_capacity > 0 ? 2 * daemon->queue_capacity : 64;
        struct gms_event *queue = calloc(capacity, sizeof *queue);
        if (queue == NULL)
            gms_daemon_leave(daemon, GMS_E_NO_MEMORY, "no memory for an event");
        for (size_t i = 0; i < daemon->queue_count; i++)
            queue[i] = daemon->queue[(daemon->queue_head + i) % daemon->queue_capacity];
        free(daemon->queue);
        daemon->queue = queue;
        daemon->queue_capacity = capacity;
        daemon->queue_head = 0;
    }
    daemon->queue[(daemon->queue_head + daemon->queue_count++) % daemon->queue_capacity] = *event;
}

void gms_daemon_push_fact(struct gms_daemon *daemon, uint32_t engine, uint64_t incarnation, enum gms_fact fact)
{
    struct gms_event event = {.type = GMS_EVENT_FACT};
    event.fact.engine = engine;
    event.fact.incarnation = incarnation;
    event.fact.fact = fact;
    gms_daemon_push(daemon, &event);

    struct gms_core_view view;
    gms_core_look(daemon->core, &view);
    if (incarnation != 0 && incarnation == view.writer_incarnation &&
        (fact == GMS_FACT_GONE || fact == GMS_FACT_STICKY || fact == GMS_FACT_STALLED || fact == GMS_FACT_COMMANDED ||
         fact == GMS_FACT_LEFT))
        gms_timeline_sign(&daemon->timeline, incarnation, fact, gms_clock_ns());
}

static void set_timer(struct gms_daemon *daemon)
{
    uint64_t deadline_ns = gms_core_deadline(daemon->core);
    if (deadline_ns == UINT64_MAX) {
        event_del(daemon->deadline);
        return;
    }
    uint64_t now_ns = gms_clock_ns(), left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    /* Rounded up, so that the core's deadline has passed when the timer fires. */
    struct timeval left = {.tv_sec = (time_t)(left_ns / GMS_NS_PER_S),
                           .tv_usec = (suseconds_t)(left_ns % GMS_NS_PER_S / 1000 + 1)};
    if (left.tv_usec >= 1000000) {
        left.tv_sec++;
        left.tv_usec = 0;
    }
    event_add(daemon->deadline, &left);
}

/* What the step wants stored, and the state after it, as one; then what may follow is told to the core. What is to be
 * forgotten has no record, but the state that still speaks of it must not be the stored one when it is given up: the
 * next world would look for it. Nor has the end of the engine that wrote the group's KV: at a planned stop the state is
 * stored as it is, so that the next start does not take for living what ended before. False: nothing was stored that
 * should have been. */
static bool persist(struct gms_daemon *daemon)
{
    struct gms_store_record records[GMS_STORE_AT_ONCE];
    uint64_t tickets[GMS_STORE_AT_ONCE], number = 0;
    uint32_t count = 0;
    bool changed = false; /* without a record */
    struct gms_error error;
    for (size_t i = 0; i < daemon->actions.count && count < GMS_STORE_AT_ONCE; i++) {
        const struct gms_action *action = &daemon->actions.items[i];
        changed = changed || action->type == GMS_ACTION_FORGET || action->type == GMS_ACTION_SHUTDOWN;
        if (action->type != GMS_ACTION_STORE)
            continue;
        records[count] = (struct gms_store_record){
            .kind = action->store.kind, .bytes = action->store.bytes, .payload = action->store.payload};
        tickets[count++] = action->store.ticket;
    }
    if (count == 0 && !changed)
        return true;
    size_t bytes = gms_core_snapshot(daemon->core, daemon->snapshot, sizeof daemon->snapshot);
    gms_status status = bytes == 0 ? gms_fail(&error, GMS_E_STORE, "the state does not fit its snapshot (%zu bytes)",
                                              sizeof daemon->snapshot)
                                   : gms_store_commit(daemon->options.store, records, count, daemon->snapshot,
                                                      (uint32_t)bytes, &number, &error);
    if (status != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "%s", error.text);
    } else {
        struct gms_core_view view;
        gms_core_look(daemon->core, &view);
        daemon->stored_round = view.next_round - 1;
        gms_daemon_mirror(daemon);
    }
    for (uint32_t i = 0; i < count; i++)
        gms_daemon_push(daemon,
                        &(struct gms_event){.type = status == GMS_OK ? GMS_EVENT_STORED : GMS_EVENT_STORE_FAILED,
                                            .ticket = tickets[i]});
    return status == GMS_OK;
}

void gms_daemon_run_events(struct gms_daemon *daemon)
{
    if (daemon->running_events)
        return;
    daemon->running_events = true;
    while (daemon->queue_count > 0 && !daemon->stopped) {
        struct gms_event event = daemon->queue[daemon->queue_head];
        daemon->queue_head = (daemon->queue_head + 1) % daemon->queue_capacity;
        daemon->queue_count--;
        event.now_ns = gms_clock_ns();
        gms_core_step(daemon->core, &event, &daemon->actions);
        bool stored = persist(daemon);
        for (size_t i = 0; i < daemon->actions.count && !daemon->stopped; i++)
            if (stored || daemon->actions.items[i].type != GMS_ACTION_FORGET) /* kept for nobody, until a restart */
                gms_daemon_act(daemon, &daemon->actions.items[i]);
    }
    daemon->running_events = false;
    gms_daemon_watch_news(daemon);
    if (daemon->stopped) {
        event_base_loopbreak(daemon->base);
    } else {
        set_timer(daemon);
        gms_daemon_seek_hung(daemon);
    }
}

/* A deadline that is noticed late says that this process did not run, and perhaps others neither: what it would judge
 * may be waiting to be read, here or with a peer. So news have a moment to come before time is told to the core (V17).
 */
static const uint64_t late_ns = 100 * GMS_NS_PER_MS, news_ns = 300 * GMS_NS_PER_MS;

static bool looks_for_news_first(struct gms_daemon *daemon)
{
    uint64_t due_ns = gms_core_deadline(daemon->core), now_ns = gms_clock_ns();
    if (due_ns == UINT64_MAX || now_ns < due_ns + late_ns) {
        daemon->woken_ns = 0;
        return false;
    }
    if (daemon->woken_ns == 0)
        daemon->woken_ns = now_ns;
    if (now_ns >= daemon->woken_ns + news_ns) {
        daemon->woken_ns = 0;
        return false;
    }
    event_add(daemon->deadline, &(struct timeval){.tv_usec = (suseconds_t)(late_ns / 10 / 1000)});
    return true;
}

static void on_deadline(evutil_socket_t fd, short what, void *context)
{
    struct gms_daemon *daemon = context;
    (void)fd;
    (void)what;
    if (looks_for_news_first(daemon))
        return;
    gms_daemon_push(daemon, &(struct gms_event){.type = GMS_EVENT_TICK});
    gms_daemon_run_events(daemon);
}

static void on_rung(void *context, uint64_t round)
{
    struct gms_daemon *daemon = context;
    gms_daemon_push(daemon, &(struct gms_event){.type = GMS_EVENT_RUNG, .rung_round = round});
    gms_daemon_run_events(daemon);
}

static void on_lost(void *context, const char *text)
{
    gms_daemon_leave(context, GMS_E_PEER_LOST, text);
}

static bool peer_closed(void *context)
{
    const struct gms_daemon *daemon = context;
    return daemon->doorbell != NULL && gms_doorbell_any_closed(daemon->doorbell);
}

/* Its directories and the pools that they are of, where those are host memory. Weights are sealed against writers, or
 * void with their creator. */
static size_t list_lent(void *context, uint64_t incarnation, struct gms_fence_file ret_files[GMS_FENCE_FILES])
{
    const struct gms_daemon *daemon = context;
    size_t count = 0;
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        const struct gms_directory *directory = gms_pools_directory(daemon->pools, incarnation, index);
        struct gms_pool_view pool;
        if (directory == NULL)
            continue;
        ret_files[count++] = (struct gms_fence_file){.fd = directory->fd, .shared = false};
        if (gms_pools_look(daemon->pools, index, &pool) && gms_loan_possible(pool.fd))
            ret_files[count++] = (struct gms_fence_file){.fd = pool.fd, .shared = true};
    }
    return count;
}

static void on_retired(void *context, uint32_t engine, uint64_t incarnation)
{
    struct gms_daemon *daemon = context;
    struct gms_takeover_record *record = gms_timeline_open(&daemon->timeline);
    if (record != NULL && record->from_incarnation == incarnation)
        record->fence_ns = gms_clock_ns();
    gms_daemon_push_fact(daemon, engine, incarnation, GMS_FACT_RETIRED);
    gms_daemon_run_events(daemon);
}

static void on_member_ended(void *context, struct gms_member *member)
{
    struct gms_daemon *daemon = context;
    gms_log(GMS_LOG_NOTICE, "engine %u incarnation %llu: its process ended before it was attached again",
            member->engine, (unsigned long long)member->incarnation);
    gms_daemon_push_fact(daemon, member->engine, member->incarnation, GMS_FACT_GONE);
    gms_daemon_run_events(daemon);
}

static void on_signal(evutil_socket_t number, short what, void *context)
{
    struct gms_daemon *daemon = context;
    struct gms_error error;
    (void)what;
    if (number == SIGHUP) {
        if (gms_log_reopen(&error) != GMS_OK)
            gms_log(GMS_LOG_WARNING, "the log was not reopened: %s", error.text);
        return;
    }
    gms_log(GMS_LOG_NOTICE, "signal %d: planned stop of the coordinator job; engines go on", (int)number);
    gms_daemon_push(daemon, &(struct gms_event){.type = GMS_EVENT_SHUTDOWN});
    gms_daemon_run_events(daemon);
}

/* ------------------------------------------------------------------------------------------------ housekeeping - */

/* With the heartbeat: bring the next takeover's index up to date, see to the keeper. */
static void on_beat(void *context)
{
    struct gms_daemon *daemon = context;
    struct gms_core_view view;
    gms_core_look(daemon->core, &view);
    const struct gms_core_engine_view *next = NULL; /* the core chooses the one that has been parked longest */
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        if (view.engines[engine].role == GMS_ROLE_PARKED &&
            (next == NULL || view.engines[engine].parked_round < next->parked_round))
            next = &view.engines[engine];
    if (view.writer_incarnation != 0 && next != NULL)
        gms_pools_refresh(daemon->pools, view.writer_incarnation, next->incarnation);
    gms_pools_freeze_pending(daemon->pools);
    gms_daemon_sweep(daemon);
    gms_daemon_look_after_lock(daemon);
}

/* ------------------------------------------------------------------------------------------------ open, run ---- */

enum { PRIORITY_SIGNALS, PRIORITY_NEWS, PRIORITIES }; /* news: what is not given another, libevent's half */

static gms_status open_loop(struct gms_daemon *daemon, struct gms_error *ret_error)
{
    static const int signals[] = {SIGUSR1, SIGTERM, SIGINT, SIGHUP};
    struct event_config *settings = event_config_new();
    if (settings != NULL) {
        event_config_set_flag(settings, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_PRECISE_TIMER);
        /* After each callback it looks whether a signal has come: deaths that came with TERM are part of the stop
         * (V45). */
        event_config_set_max_dispatch_interval(settings, NULL, 1, PRIORITY_NEWS);
        daemon->base = event_base_new_with_config(settings);
        event_config_free(settings);
    }
    if (daemon->base == NULL)
        return gms_fail(ret_error, GMS_E_SYSTEM, "no event loop");
    bool complete = event_base_priority_init(daemon->base, PRIORITIES) == 0;
    daemon->deadline = evtimer_new(daemon->base, on_deadline, daemon);
    complete = complete && daemon->deadline != NULL;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        daemon->signals[i] = evsignal_new(daemon->base, signals[i], on_signal, daemon);
        complete = complete && daemon->signals[i] != NULL &&
                   event_priority_set(daemon->signals[i], PRIORITY_SIGNALS) == 0 &&
                   event_add(daemon->signals[i], NULL) == 0;
    }
    return complete ? GMS_OK : gms_fail(ret_error, GMS_E_SYSTEM, "the event loop refused a signal or timer");
}

gms_status gms_daemon_open(const struct gms_daemon_options *options, struct gms_daemon **ret_daemon,
                           struct gms_error *ret_error)
{
    const struct gms_config *config = options->config;
    struct gms_daemon *daemon = calloc(1, sizeof *daemon);
    if (daemon == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the daemon (%zu bytes)", sizeof *daemon);
    daemon->options = *options;
    daemon->rank = gms_round_rank(options->round);
    daemon->ranks = gms_round_size(options->round);
    daemon->hook_fd = -1;
    daemon->copies = options->copies;
    gms_ports_init(&daemon->ports, config->port_first, config->port_count);

    gms_status status = open_loop(daemon, ret_error);
    if (status == GMS_OK) {
        const struct gms_pools_options pools = {.deployment = config->deployment,
                                                .rank = daemon->rank,
                                                .world = options->world,
                                                .capacity_bytes = gms_config_capacity(config, daemon->rank),
                                                .device = options->device,
                                                .copies = options->copies};
        status = gms_pools_open(&pools, &daemon->pools, ret_error);
    }
    if (status == GMS_OK) {
        const struct gms_fence_options fence = {.base = daemon->base,
                                                .report_ns = config->fence_report_ns,
                                                .before_kill = config->before_kill,
                                                .before_kill_bytes = config->before_kill_bytes,
                                                .before_kill_ns = config->before_kill_ns,
                                                .lent = list_lent,
                                                .retired = on_retired,
                                                .context = daemon};
        status = gms_fence_open(&fence, &daemon->fence, ret_error);
    }
    if (status == GMS_OK) {
        const struct gms_members_options members = {.base = daemon->base,
                                                    .copies = options->copies,
                                                    .rank = daemon->rank,
                                                    .ended = on_member_ended,
                                                    .context = daemon};
        status = gms_members_open(&members, &daemon->members, ret_error);
    }
    if (status == GMS_OK) {
        const struct gms_core_options core = {.world = options->world,
                                              .life = options->life != 0 ? options->life : options->world,
                                              .rank = daemon->rank,
                                              .world_size = daemon->ranks,
                                              .operation_timeout_ns = config->operation_timeout_ns,
                                              .transfer_stall_ns = config->transfer_stall_ns,
                                              .fence_report_ns = config->fence_report_ns,
                                              .reattach_ns = config->reattach_ns,
                                              .reclaim_slots = config->reclaim_step,
                                              .reclaim_inherits =
                                                  config->reclaim_policy == GMS_POLICY_PROCESS_DEATH_TIMEOUT};
        status = gms_daemon_resume_open(daemon, &core, ret_error);
    }
    if (status == GMS_OK)
        status = gms_daemon_hung_open(daemon, ret_error);
    if (status == GMS_OK)
        status = gms_reclaim_open(daemon, &daemon->reclaim, ret_error);
    if (status == GMS_OK)
        status = gms_calibration_open(daemon, &daemon->calibration, ret_error);
    if (status == GMS_OK)
        status = gms_daemon_keeping_open(daemon, ret_error);
    if (status == GMS_OK) {
        const struct gms_doorbell_options doorbell = {.run_dir = config->run_dir,
                                                      .world = options->world,
                                                      .rank = daemon->rank,
                                                      .ranks = daemon->ranks,
                                                      .heartbeat_ns = config->heartbeat_ns,
                                                      .other_hosts = options->place.local_ranks < daemon->ranks,
                                                      .address = daemon->options.place.address,
                                                      .rung = on_rung,
                                                      .noted = gms_daemon_noted,
                                                      .lost = on_lost,
                                                      .beat = on_beat,
                                                      .context = daemon};
        status = gms_doorbell_open(&doorbell, &daemon->doorbell, ret_error);
    }
    if (status == GMS_OK) {
        const struct gms_sessions_options sessions = {.run_dir = config->run_dir,
                                                      .world = options->world,
                                                      .rank = daemon->rank,
                                                      .world_size = daemon->ranks,
                                                      .operation_timeout_ms =
                                                          (uint32_t)(config->operation_timeout_ns / GMS_NS_PER_MS),
                                                      .kv_verify_full = config->kv_verify_full,
                                                      .on_device = options->device.backend == GMS_MEMORY_CUDA,
                                                      .device = options->device.uuid,
                                                      .preset = config->preset,
                                                      .parking = config->parking,
                                                      .parking_count = config->parking_count,
                                                      .recognise = gms_daemon_recognise,
                                                      .attached = gms_daemon_attached,
                                                      .received = gms_daemon_received,
                                                      .gone = gms_daemon_gone,
                                                      .context = daemon};
        status = gms_sessions_open(daemon->base, &sessions, &daemon->sessions, ret_error);
    }
    if (status != GMS_OK) {
        gms_daemon_close(daemon);
        return status;
    }
    *ret_daemon = daemon;
    return GMS_OK;
}

void gms_daemon_door(const struct gms_daemon *daemon, struct gms_doorbell_place *ret_place)
{
    gms_doorbell_look(daemon->doorbell, ret_place);
}

void gms_daemon_set_doors(struct gms_daemon *daemon, const struct gms_doorbell_place *places)
{
    gms_doorbell_set_places(daemon->doorbell, places);
}

gms_status gms_daemon_connect(struct gms_daemon *daemon, uint64_t deadline_ns, struct gms_error *ret_error)
{
    return gms_doorbell_connect(daemon->doorbell, daemon->base, deadline_ns, ret_error);
}

int gms_daemon_run(struct gms_daemon *daemon)
{
    gms_round_set_deadline(daemon->options.round, daemon->options.config->round_timeout_ns, peer_closed, daemon);
    gms_daemon_resume_begin(daemon);
    gms_device_warm_up(&daemon->options.device);
    set_timer(daemon);
    while (!daemon->stopped) {
        if (event_base_loop(daemon->base, EVLOOP_NO_EXIT_ON_EMPTY) < 0)
            gms_daemon_leave(daemon, GMS_E_SYSTEM, "the event loop failed");
    }
    return GMS_EXIT_PLANNED;
}

static void free_event(struct event **event)
{
    if (*event != NULL)
        event_free(*event);
    *event = NULL;
}

void gms_daemon_close(struct gms_daemon *daemon)
{
    if (daemon == NULL)
        return;
    gms_daemon_end_hook(daemon);
    gms_reclaim_close(daemon->reclaim);
    gms_calibration_close(daemon->calibration);
    gms_sessions_close(daemon->sessions);
    gms_doorbell_close(daemon->doorbell);
    gms_fence_close(daemon->fence);
    gms_daemon_keeping_close(daemon);
    gms_pools_close(daemon->pools);
    gms_members_close(daemon->members);
    free_event(&daemon->deadline);
    free_event(&daemon->hung_timer);
    free_event(&daemon->standby_deadline);
    free_event(&daemon->held_deadline);
    for (size_t i = 0; i < sizeof daemon->signals / sizeof daemon->signals[0]; i++)
        free_event(&daemon->signals[i]);
    if (daemon->base != NULL)
        event_base_free(daemon->base);
    free(daemon->core_memory);
    free(daemon->queue);
    free(daemon);
}
