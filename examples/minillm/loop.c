/* SPDX-License-Identifier: Apache-2.0 */
#include "loop.h"

#include "life.h"
#include "log.h"
#include "scheduler.h"
#include "step.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_EXTRA = 1026 };
/* Between two looks at the coordinator's descriptor: nothing that it says is urgent to an engine that serves. */
static const uint64_t EVENT_MUTE_NS = 20000000;

struct loop {
    struct engine *engine;
    struct step_executor executor;
    struct scheduler *scheduler; /* rank 0 */
    struct plan plan;
    void *payload; /* owned */
    size_t payload_capacity;
    bool asleep;                /* rank 0: the others were told to sleep */
    uint64_t event_muted_until; /* the coordinator's descriptor is not polled before this time */
};

uint32_t loop_max_rows(const struct engine_options *options)
{
    return options->chunk_tokens > options->max_batch ? options->chunk_tokens : options->max_batch;
}

static int no_memory(void)
{
    note(NOTE_ERROR, "out of memory for a step");
    return EXIT_RUN_FAILED;
}

static bool reserve_payload(struct loop *l, size_t bytes)
{
    if (bytes <= l->payload_capacity)
        return true;
    void *grown = realloc(l->payload, bytes * 2);
    if (grown == NULL)
        return false;
    l->payload = grown;
    l->payload_capacity = bytes * 2;
    return true;
}

static int execute(struct loop *l, const float **ret_logits)
{
    enum kv_status status = step_execute(&l->executor, &l->plan, ret_logits);
    if (status == KV_OK)
        return 0;
    note(NOTE_ERROR, "%s: %s", status == KV_LOST ? "ownership lost" : "step failed", l->engine->kv.text);
    return status == KV_LOST ? EXIT_CONDEMNED : EXIT_RUN_FAILED;
}

/* ------------------------------------------------------------------------------------------------- rank 0 ----- */

static int broadcast_plan(struct loop *l)
{
    struct ranks *ranks = l->engine->ranks;
    if (ranks_size(ranks) == 1)
        return 0;
    if (l->asleep)
        ranks_ring(ranks);
    l->asleep = false;
    ranks_broadcast(ranks, &l->plan.header, sizeof l->plan.header);
    size_t bytes = plan_payload_bytes(&l->plan.header);
    if (!reserve_payload(l, bytes))
        return no_memory();
    plan_encode(&l->plan, l->payload);
    ranks_broadcast(ranks, l->payload, bytes);
    return 0;
}

static int broadcast_kind(struct loop *l, enum plan_kind kind)
{
    plan_clear(&l->plan);
    l->plan.header.kind = kind;
    return broadcast_plan(l);
}

/* Serves sockets until something happens or the time is over. */
static int poll_once(struct loop *l, int64_t timeout_ns)
{
    struct engine *e = l->engine;
    struct pollfd extra[MAX_EXTRA];
    uint64_t now = monotonic_ns();
    bool muted = now < l->event_muted_until;
    extra[0] = (struct pollfd){.fd = e->options.signal_fd, .events = POLLIN};
    extra[1] = (struct pollfd){.fd = muted ? -1 : life_event_fd(e), .events = POLLIN};
    uint32_t count = 2 + ranks_doorbells(e->ranks, extra + 2, MAX_EXTRA - 2);
    if (muted && (timeout_ns < 0 || timeout_ns > (int64_t)EVENT_MUTE_NS))
        timeout_ns = (int64_t)EVENT_MUTE_NS;
    server_poll(e->server, timeout_ns, extra, count);
    for (uint32_t i = 2; i < count; i++)
        if ((extra[i].revents & (POLLHUP | POLLERR)) != 0)
            ranks_peer_lost(e->ranks);
    if (extra[0].revents != 0)
        return EXIT_ASKED_TO_END;
    if (extra[1].revents == 0)
        return 0;
    l->event_muted_until = now + EVENT_MUTE_NS;
    int code = life_event(e);
    if (code == 0 && life_asked_to_park(e))
        code = EXIT_ASKED_TO_END; /* streams go on at the successor, from the last token that was sent */
    /* What a dead engine might have written was out of use; what is known to be quiet comes back now. */
    for (uint32_t slot = 0; code == 0 && e->kv.backend->returned(&e->kv, &slot);)
        scheduler_include(l->scheduler, slot);
    return code;
}

/* The pause between steps that slows a drill down; clients are served meanwhile. */
static int pause_rank_0(struct loop *l)
{
    const uint64_t end = monotonic_ns() + l->engine->options.step_delay_us * UINT64_C(1000);
    int code = poll_once(l, 0);
    for (uint64_t now = monotonic_ns(); code == 0 && now < end; now = monotonic_ns())
        code = poll_once(l, (int64_t)(end - now));
    return code;
}

static int lead(struct loop *l)
{
    int code = 0;
    while (code == 0) {
        switch (scheduler_plan(l->scheduler, &l->plan)) {
        case SCHEDULER_NO_MEMORY:
            return no_memory();
        case SCHEDULER_IDLE:
            life_work(l->engine, 0);
            if (!l->asleep)
                code = broadcast_kind(l, PLAN_IDLE);
            l->asleep = true;
            if (code == 0)
                code = poll_once(l, -1);
            break;
        case SCHEDULER_PLANNED: {
            const float *logits;
            life_work(l->engine, 1);
            code = broadcast_plan(l);
            if (code == 0)
                code = execute(l, &logits);
            if (code != 0)
                break;
            scheduler_finish(l->scheduler, logits);
            code = pause_rank_0(l);
            break;
        }
        }
    }
    if (code == EXIT_ASKED_TO_END) {
        note(NOTE_INFO, "asked to end");
        broadcast_kind(l, PLAN_END);
    }
    return code;
}

/* ----------------------------------------------------------------------------------------- the other ranks ---- */

/* Lets in what the coordinator says, and is attached again to one that is new. */
static int look_at_coordinator(struct loop *l)
{
    struct pollfd news = {.fd = life_event_fd(l->engine), .events = POLLIN};
    uint64_t now = monotonic_ns();
    if (now < l->event_muted_until || news.fd < 0)
        return 0;
    l->event_muted_until = now + EVENT_MUTE_NS;
    return poll(&news, 1, 0) > 0 ? life_event(l->engine) : 0;
}

static int follow(struct loop *l)
{
    struct ranks *ranks = l->engine->ranks;
    const uint32_t delay = l->engine->options.step_delay_us;
    for (;;) {
        struct plan_header header;
        ranks_broadcast(ranks, &header, sizeof header);
        if (header.kind == PLAN_END)
            return 0;
        if (header.kind == PLAN_IDLE) {
            while (!ranks_sleep(ranks, life_event_fd(l->engine))) {
                int code = life_event(l->engine);
                if (code != 0)
                    return code;
            }
            continue;
        }
        size_t bytes = plan_payload_bytes(&header);
        if (!reserve_payload(l, bytes))
            return no_memory();
        ranks_broadcast(ranks, l->payload, bytes);
        if (!plan_decode(&l->plan, &header, l->payload))
            return no_memory();
        const float *logits;
        int code = execute(l, &logits);
        if (code == 0)
            code = look_at_coordinator(l);
        if (code != 0)
            return code;
        struct timespec pause = {.tv_sec = delay / 1000000, .tv_nsec = (long)(delay % 1000000) * 1000};
        if (delay != 0)
            nanosleep(&pause, NULL);
    }
}

static int open_scheduler(struct loop *l)
{
    struct engine *e = l->engine;
    const struct engine_options *o = &e->options;
    struct scheduler_options options = {.block_tokens = o->model.block_tokens,
                                        .context_tokens = MODEL_CONTEXT_TOKENS,
                                        .vocabulary = o->model.vocabulary,
                                        .max_batch = o->max_batch,
                                        .chunk_tokens = o->chunk_tokens,
                                        .max_waiting = o->max_waiting,
                                        .hash_seed = o->hash_seed,
                                        .notes = !o->no_gms && !o->no_salvage,
                                        .moody = o->moody};
    struct server_identity identity = {.engine = e->engine_id,
                                       .world_size = o->model.world_size,
                                       .vocabulary = o->model.vocabulary,
                                       .context_tokens = MODEL_CONTEXT_TOKENS,
                                       .incarnation = e->incarnation,
                                       .epoch = e->epoch};
    struct scheduler_sink sink = server_sink(e->server);
    l->scheduler = scheduler_open(&options, e->prefix, e->adopted, &sink);
    if (l->scheduler == NULL)
        return no_memory();
    server_serve(e->server, &identity, l->scheduler);
    return 0;
}

int loop_serve(struct engine *engine)
{
    struct loop l = {.engine = engine};
    const bool leader = ranks_rank(engine->ranks) == 0;
    step_executor_init(&l.executor, engine->model, &engine->kv, ranks_rank(engine->ranks));
    int code = leader ? open_scheduler(&l) : 0;
    if (code == 0)
        code = leader ? lead(&l) : follow(&l);
    if (leader) {
        server_close(engine->server); /* its requests are in the scheduler */
        engine->server = NULL;
    }
    scheduler_close(l.scheduler);
    step_executor_free(&l.executor);
    plan_free(&l.plan);
    free(l.payload);
    return code;
}
