/* SPDX-License-Identifier: Apache-2.0
 *
 * sim: the group under random schedules. Everything that is under way (doorbells, stores, prepares, facts, rounds) is
 * delivered in random order to 2..16 cores, while up to three engines go through their life, die, leave, are
 * commanded away and are started again. The cluster checks safety after every step; when the faults stop, the group
 * must come to rest with every call decided, nobody half promoted, and all ranks in one state.
 *
 * A schedule is its seed: a failure prints it, and `sim --seed S --trace` shows it step by step.
 */
#include <argp.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"
#include "core/core_state.h"

#define MS UINT64_C(1000000)
enum { ENGINES = 3, TRANSFER_PARTS = 2, SCHEDULE_STEPS = 2500 };

/* ------------------------------------------------------------------------------------------------- engines ---- */

enum life {
    LIFE_JOIN,
    LIFE_WEIGHTS,
    LIFE_PUBLISH,
    LIFE_KV,
    LIFE_EXTRA, /* a pool that is given back at once, by several engines at the same time */
    LIFE_RELEASE,
    LIFE_PARK,
    LIFE_PARKED, /* until PROMOTE */
    LIFE_ADOPT,
    LIFE_READY,
    LIFE_SERVE, /* until SERVING, then with transfers */
};

/* One engine rank's process, and what its session's driver knows. */
struct process {
    bool alive, waiting, leaving;
    bool serving;
    enum life life;
    uint64_t session, incarnation; /* 0: the driver was not told yet */
    uint32_t sequence;
    uint64_t epoch, source;
    uint64_t transfer; /* id, 0: none under way */
    uint32_t parts_ended;
};

struct engine {
    uint64_t launch;
    uint32_t launches;
    struct process processes[CLUSTER_RANKS];
};

struct totals {
    uint64_t steps, rounds, commits[GMS_OPERATION_COUNT], aborts[GMS_OPERATION_COUNT], promotions, servings,
        classifications, transfers, condemned;
};

struct sim {
    struct cluster *cluster;
    uint64_t random_state, sessions, launches, transfers;
    uint32_t engine_count, launch_limit;
    bool quiet; /* no faults any more */
    struct engine engines[ENGINES];
    struct totals *totals;
};

static uint64_t next_random(struct sim *sim)
{
    uint64_t z = sim->random_state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static bool chance(struct sim *sim, uint32_t one_in)
{
    return next_random(sim) % one_in == 0;
}

static uint32_t below(struct sim *sim, uint32_t count)
{
    return (uint32_t)(next_random(sim) % count);
}

static void later_fact(struct sim *sim, uint32_t rank, uint32_t engine, uint64_t incarnation, enum gms_fact fact)
{
    struct gms_event event = {.type = GMS_EVENT_FACT};

    event.fact.engine = engine;
    event.fact.incarnation = incarnation;
    event.fact.fact = fact;
    cluster_add(sim->cluster, CLUSTER_OTHER, rank, &event);
}

/* The process ends; its session's end is heard later. */
static void end_process(struct sim *sim, uint32_t engine, uint32_t rank)
{
    struct process *process = &sim->engines[engine].processes[rank];
    struct gms_event event = {.type = GMS_EVENT_SESSION_GONE};

    if (!process->alive)
        return;
    process->alive = false;
    event.session_gone.engine = engine;
    event.session_gone.session = process->session;
    cluster_add(sim->cluster, CLUSTER_OTHER, rank, &event);
}

static bool cohort_is_gone(const struct sim *sim, uint32_t engine)
{
    for (uint32_t r = 0; r < sim->cluster->ranks; r++)
        if (sim->engines[engine].processes[r].alive)
            return false;
    return true;
}

static void launch(struct sim *sim, uint32_t engine)
{
    sim->engines[engine].launch = ++sim->launches;
    sim->engines[engine].launches++;
    for (uint32_t r = 0; r < sim->cluster->ranks; r++) {
        struct process *process = &sim->engines[engine].processes[r];

        memset(process, 0, sizeof *process);
        process->alive = true;
        process->session = ++sim->sessions;
    }
}

static void call(struct sim *sim, uint32_t engine, uint32_t rank, const struct gms_proposal *proposal)
{
    struct process *process = &sim->engines[engine].processes[rank];

    process->waiting = true;
    cluster_propose(sim->cluster, rank, engine, process->session, proposal);
}

static void transfer(struct sim *sim, uint32_t engine, uint32_t rank)
{
    struct process *process = &sim->engines[engine].processes[rank];
    struct gms_event event;

    memset(&event, 0, sizeof event);
    if (process->parts_ended == TRANSFER_PARTS) {
        event.type = GMS_EVENT_TRANSFER_WAIT;
        event.transfer_wait.engine = engine;
        event.transfer_wait.incarnation = process->incarnation;
        event.transfer_wait.session = process->session;
        event.transfer_wait.id = process->transfer;
        process->waiting = true;
    } else {
        event.type = GMS_EVENT_TRANSFER_END_PART;
        event.transfer_end.engine = engine;
        event.transfer_end.incarnation = process->incarnation;
        event.transfer_end.session = process->session;
        event.transfer_end.id = process->transfer;
        event.transfer_end.part = process->parts_ended++;
        event.transfer_end.failed = chance(sim, 5);
    }
    cluster_step(sim->cluster, rank, &event);
}

static void dispatch(struct sim *sim, uint32_t engine)
{
    uint64_t id = ++sim->transfers;

    for (uint32_t r = 0; r < sim->cluster->ranks; r++) {
        struct process *process = &sim->engines[engine].processes[r];
        struct gms_event event = {.type = GMS_EVENT_TRANSFER_DISPATCH};

        event.transfer_dispatch.engine = engine;
        event.transfer_dispatch.incarnation = process->incarnation;
        event.transfer_dispatch.session = process->session;
        event.transfer_dispatch.id = id;
        event.transfer_dispatch.part_count = TRANSFER_PARTS;
        cluster_step(sim->cluster, r, &event);
        process->transfer = id;
        process->parts_ended = 0;
    }
    sim->totals->transfers++;
}

/* All ranks of the engine live, serve and have no transfer under way. */
static bool may_dispatch(const struct sim *sim, uint32_t engine)
{
    for (uint32_t r = 0; r < sim->cluster->ranks; r++) {
        const struct process *process = &sim->engines[engine].processes[r];
        if (!process->alive || !process->serving || process->transfer || process->waiting || process->leaving)
            return false;
    }
    return true;
}

/* The process does the next thing of its program; false when it has nothing to do. */
static bool work(struct sim *sim, uint32_t engine, uint32_t rank)
{
    struct process *process = &sim->engines[engine].processes[rank];
    struct gms_proposal proposal;

    if (!process->alive || process->waiting)
        return false;
    if (process->leaving) {
        cluster_fact(sim->cluster, rank, engine, process->incarnation, GMS_FACT_LEFT);
        end_process(sim, engine, rank);
        return true;
    }
    switch (process->life) {
    case LIFE_JOIN:
        proposal = cluster_join(sim->engines[engine].launch);
        break;
    case LIFE_WEIGHTS:
        proposal = cluster_allocate(process->incarnation, process->sequence, "w", GMS_POOL_WEIGHTS, 0, 0);
        break;
    case LIFE_PUBLISH:
        proposal = cluster_on_pool(GMS_OPERATION_PUBLISH, process->incarnation, process->sequence, "w");
        break;
    case LIFE_KV:
        proposal = cluster_allocate(process->incarnation, process->sequence, "kv", GMS_POOL_KV, 64, 4096);
        break;
    case LIFE_EXTRA:
        proposal = cluster_allocate(process->incarnation, process->sequence, "x", GMS_POOL_KV, 8, 4096);
        break;
    case LIFE_RELEASE:
        proposal = cluster_on_pool(GMS_OPERATION_RELEASE, process->incarnation, process->sequence, "x");
        break;
    case LIFE_PARK:
        process->life = LIFE_PARKED;
        cluster_fact(sim->cluster, rank, engine, process->incarnation, GMS_FACT_PARKED);
        return true;
    case LIFE_PARKED:
        return false;
    case LIFE_ADOPT:
        proposal = cluster_adopt(process->incarnation, process->sequence, process->epoch, process->source);
        break;
    case LIFE_READY:
        process->life = LIFE_SERVE;
        cluster_fact(sim->cluster, rank, engine, process->incarnation, GMS_FACT_READY);
        return true;
    case LIFE_SERVE:
        if (process->transfer) {
            transfer(sim, engine, rank);
            return true;
        }
        return false;
    default:
        return false;
    }
    if (process->life != LIFE_JOIN && chance(sim, 400))
        proposal.fields[1]++; /* a rank that is of another opinion */
    call(sim, engine, rank, &proposal);
    return true;
}

static void on_reply(struct sim *sim, uint32_t engine, uint32_t rank, const struct gms_outcome *outcome)
{
    struct process *process = &sim->engines[engine].processes[rank];

    process->waiting = false;
    if (process->life == LIFE_JOIN) {
        if (outcome->status == GMS_OK) {
            process->incarnation = outcome->incarnation;
            process->sequence = 1;
            process->life = LIFE_WEIGHTS;
        } else if (outcome->status != GMS_E_BUSY && outcome->status != GMS_E_AGAIN) {
            end_process(sim, engine, rank); /* this launch is over */
        }
        return;
    }
    if (outcome->status == GMS_E_CONDEMNED || outcome->status == GMS_E_STALE || outcome->status == GMS_E_PROTOCOL) {
        if (outcome->status == GMS_E_PROTOCOL)
            cluster_fail(sim->cluster, "rank %u: %s", rank, outcome->text);
        if (process->life != LIFE_ADOPT || outcome->status != GMS_E_STALE) {
            end_process(sim, engine, rank);
            return;
        }
    }
    process->sequence++;
    if (outcome->status != GMS_OK)
        return; /* all ranks were told so; all ask again */
    switch (process->life) {
    case LIFE_WEIGHTS:
        process->life = outcome->pool_state == GMS_POOL_UNPUBLISHED ? LIFE_PUBLISH : LIFE_KV;
        break;
    case LIFE_PUBLISH:
        process->life = LIFE_KV;
        break;
    case LIFE_KV:
        process->life = LIFE_EXTRA;
        break;
    case LIFE_EXTRA:
        process->life = LIFE_RELEASE;
        break;
    case LIFE_RELEASE:
        process->life = LIFE_PARK;
        break;
    case LIFE_ADOPT:
        process->life = LIFE_READY;
        break;
    case LIFE_JOIN:
    case LIFE_PARK:
    case LIFE_PARKED:
    case LIFE_READY:
    case LIFE_SERVE:
        break;
    }
}

static struct process *by_session(struct sim *sim, uint32_t rank, uint64_t session, uint32_t *ret_engine)
{
    for (uint32_t e = 0; e < sim->engine_count; e++) {
        if (sim->engines[e].processes[rank].session != session)
            continue;
        *ret_engine = e;
        return &sim->engines[e].processes[rank];
    }
    return NULL;
}

static void hook(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    struct sim *sim = cluster->context;
    struct process *process;
    uint32_t engine;

    switch (action->type) {
    case GMS_ACTION_REPLY:
        process = by_session(sim, rank, action->reply.session, &engine);
        if (process && process->alive)
            on_reply(sim, engine, rank, &action->reply.outcome);
        else if (process && action->reply.outcome.key.kind == GMS_OPERATION_JOIN &&
                 action->reply.outcome.status == GMS_OK)
            process->incarnation = action->reply.outcome.incarnation; /* the driver knows it, and that it is dead */
        break;
    case GMS_ACTION_TRANSFER_DONE:
        process = by_session(sim, rank, action->transfer.session, &engine);
        if (!process || !process->waiting)
            break;
        process->waiting = false;
        process->transfer = 0;
        if (action->transfer.status != GMS_OK && action->transfer.status != GMS_E_CONDEMNED &&
            action->transfer.status != GMS_E_STALE)
            cluster_fail(cluster, "rank %u: %s", rank, action->transfer.text);
        break;
    case GMS_ACTION_FENCE:
    case GMS_ACTION_CONDEMNED:
        if (action->type == GMS_ACTION_FENCE && rank == 0)
            sim->totals->condemned++;
        engine = action->type == GMS_ACTION_FENCE ? action->fence.engine : action->promote.engine;
        process = &sim->engines[engine].processes[rank];
        if (process->incarnation ==
            (action->type == GMS_ACTION_FENCE ? action->fence.incarnation : action->promote.incarnation))
            end_process(sim, engine, rank);
        break;
    case GMS_ACTION_PROMOTE:
        process = &sim->engines[action->promote.engine].processes[rank];
        if (process->incarnation != action->promote.incarnation)
            break;
        if (process->life != LIFE_PARKED && process->alive)
            cluster_fail(cluster, "rank %u: promoted in life %d", rank, process->life);
        process->life = LIFE_ADOPT;
        process->epoch = action->promote.epoch;
        process->source = action->promote.source;
        sim->totals->promotions += rank == 0;
        break;
    case GMS_ACTION_SERVING:
        process = &sim->engines[action->promote.engine].processes[rank];
        if (process->incarnation == action->promote.incarnation)
            process->serving = true;
        sim->totals->servings += rank == 0;
        break;
    case GMS_ACTION_COMMIT:
    case GMS_ACTION_ABORT:
        if (rank == 0)
            (action->type == GMS_ACTION_COMMIT ? sim->totals->commits
                                               : sim->totals->aborts)[action->commit.outcome.key.kind]++;
        break;
    case GMS_ACTION_CLASSIFY:
        sim->totals->classifications += rank == 0;
        break;
    case GMS_ACTION_RING:
    case GMS_ACTION_ENTER_ROUND:
    case GMS_ACTION_STORE:
    case GMS_ACTION_PREPARE:
    case GMS_ACTION_BULK:
    case GMS_ACTION_FORGET:
    case GMS_ACTION_TRANSFER_ANSWER:
    case GMS_ACTION_TRANSFER_STALLED:
    case GMS_ACTION_NOTE:
    case GMS_ACTION_RESTART:
    case GMS_ACTION_SHUTDOWN:
    case GMS_ACTION_TYPE_COUNT:
        break;
    }
}

/* ------------------------------------------------------------------------------------------------- schedule --- */

static enum gms_store_kind kind_of(const struct cluster *cluster, uint32_t rank, uint64_t ticket)
{
    for (uint32_t i = cluster->store_count; i-- > 0;)
        if (cluster->stores[i].rank == rank && cluster->stores[i].ticket == ticket)
            return cluster->stores[i].kind;
    return 0;
}

static void deliver(struct sim *sim, uint32_t index)
{
    struct cluster *cluster = sim->cluster;
    struct cluster_item *item = &cluster->items[index];
    uint32_t rank = item->rank;

    cluster->prepare_status[rank] = !sim->quiet && chance(sim, 40) ? GMS_E_NO_CAPACITY : GMS_OK;
    if (item->kind == CLUSTER_BULK && !sim->quiet && chance(sim, 30))
        item->event.bulk.status = GMS_E_CORRUPT;
    if (item->kind == CLUSTER_STORE && !sim->quiet && chance(sim, 60) &&
        kind_of(cluster, rank, item->event.ticket) == GMS_STORE_PREPARED)
        item->event.type = GMS_EVENT_STORE_FAILED;
    if (item->event.type == GMS_EVENT_SESSION_GONE) {
        uint32_t engine = 0;
        const struct process *process = by_session(sim, rank, item->event.session_gone.session, &engine);
        if (process && process->incarnation) /* the driver knows whose session it was */
            later_fact(sim, rank, engine, process->incarnation, GMS_FACT_GONE);
    }
    cluster_deliver(cluster, index);
}

static void fault(struct sim *sim)
{
    uint32_t engine = below(sim, sim->engine_count), rank = below(sim, sim->cluster->ranks);
    struct process *process = &sim->engines[engine].processes[rank];
    static const enum gms_fact facts[] = {GMS_FACT_STICKY, GMS_FACT_STALLED, GMS_FACT_COMMANDED};

    switch (below(sim, 4)) {
    case 0:
        if (process->alive && process->incarnation)
            later_fact(sim, rank, engine, process->incarnation, facts[below(sim, 3)]);
        break;
    case 1: /* the whole engine leaves */
        for (uint32_t r = 0; r < sim->cluster->ranks; r++)
            if (!sim->engines[engine].processes[r].incarnation)
                return;
        for (uint32_t r = 0; r < sim->cluster->ranks; r++)
            sim->engines[engine].processes[r].leaving = true;
        break;
    default:
        end_process(sim, engine, rank);
        break;
    }
}

static void advance(struct sim *sim)
{
    struct cluster *cluster = sim->cluster;
    struct gms_event tick = {.type = GMS_EVENT_TICK};

    cluster->now_ns += below(sim, 3000) * MS;
    for (uint32_t r = 0; r < cluster->ranks; r++)
        if (gms_core_deadline(cluster->cores[r]) <= cluster->now_ns)
            cluster_step(cluster, r, &tick);
}

static void relaunch(struct sim *sim)
{
    for (uint32_t e = 0; e < sim->engine_count; e++)
        if (sim->engines[e].launches < sim->launch_limit && cohort_is_gone(sim, e))
            launch(sim, e);
}

static void run_faulty(struct sim *sim)
{
    struct cluster *cluster = sim->cluster;
    uint32_t steps = SCHEDULE_STEPS / 2 + below(sim, SCHEDULE_STEPS) + 60 * cluster->ranks;
    uint32_t fault_rate = 40 + below(sim, 400), time_rate = 100 + below(sim, 400);

    for (uint32_t step = 0; step < steps && !cluster->fault[0]; step++) {
        uint32_t engine = below(sim, sim->engine_count), rank = below(sim, cluster->ranks);

        if (chance(sim, fault_rate))
            fault(sim);
        if (chance(sim, time_rate))
            advance(sim);
        if (chance(sim, 50))
            relaunch(sim);
        if (chance(sim, 30) && may_dispatch(sim, engine))
            dispatch(sim, engine);
        if (chance(sim, 3))
            work(sim, engine, rank);
        else if (cluster->item_count)
            deliver(sim, below(sim, cluster->item_count));
    }
}

/* No more faults: everything under way arrives, everybody goes on, time passes where somebody waits for it. */
static void run_quiet(struct sim *sim)
{
    struct cluster *cluster = sim->cluster;
    uint32_t idle = 0;

    sim->quiet = true;
    for (uint32_t turns = 0; !cluster->fault[0]; turns++) {
        bool busy = false;
        uint64_t deadline = UINT64_MAX;

        if (turns == 20000)
            cluster_fail(cluster, "the group does not come to rest");
        while (cluster->item_count && !cluster->fault[0]) {
            deliver(sim, below(sim, cluster->item_count));
            busy = true;
        }
        relaunch(sim);
        for (uint32_t e = 0; e < sim->engine_count; e++)
            for (uint32_t r = 0; r < cluster->ranks; r++)
                busy = work(sim, e, r) || busy;
        if (busy || cluster->item_count)
            continue;
        for (uint32_t r = 0; r < cluster->ranks; r++)
            if (gms_core_deadline(cluster->cores[r]) < deadline)
                deadline = gms_core_deadline(cluster->cores[r]);
        if (deadline == UINT64_MAX)
            return;
        if (++idle == 500)
            cluster_fail(cluster, "somebody waits for ever");
        if (deadline > cluster->now_ns)
            cluster->now_ns = deadline;
        advance(sim);
    }
}

static void check_rest(struct sim *sim)
{
    struct cluster *cluster = sim->cluster;
    struct gms_core_view first = cluster_look(cluster, 0);
    struct gms_core_transfer_view open;

    for (uint32_t r = 0; r < cluster->ranks; r++) {
        struct gms_core_view view = cluster_look(cluster, r);

        if (memcmp(&view, &first, sizeof view) != 0)
            cluster_fail(cluster, "at rest ranks 0 and %u differ", r);
        for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
            if (cluster->cores[r]->engines[e].pending.present)
                cluster_fail(cluster, "at rest rank %u has a call of engine %u undecided", r, e);
            if (view.engines[e].role == GMS_ROLE_CONDEMNED)
                cluster_fail(cluster, "at rest engine %u is condemned and not retired", e);
            if (view.engines[e].role == GMS_ROLE_PARKED && view.takeover != GMS_TAKEOVER_SERVING)
                cluster_fail(cluster, "at rest engine %u is parked and nobody serves (takeover %d)", e, view.takeover);
        }
        if (view.takeover != GMS_TAKEOVER_SERVING && view.takeover != GMS_TAKEOVER_VACANT)
            cluster_fail(cluster, "at rest in takeover state %d", view.takeover);
        if (gms_core_look_transfer(cluster->cores[r], 0, &open))
            cluster_fail(cluster, "at rest rank %u has transfer %llu open", r, (unsigned long long)open.id);
    }
    for (uint32_t e = 0; e < sim->engine_count; e++)
        for (uint32_t r = 0; r < cluster->ranks; r++)
            if (sim->engines[e].processes[r].alive && sim->engines[e].processes[r].waiting)
                cluster_fail(cluster, "at rest engine %u rank %u was not answered", e, r);
    for (uint32_t i = 0; i < cluster->decided_count; i++)
        if (cluster->decided[i].told_ranks != (UINT64_C(1) << cluster->ranks) - 1)
            cluster_fail(cluster, "an outcome did not reach all ranks: %s", cluster->decided[i].outcome.text);
}

/* A planned stop, asked of one rank, ends all of them, whatever dies meanwhile. */
static void stop(struct sim *sim)
{
    struct cluster *cluster = sim->cluster;
    struct gms_event event = {.type = GMS_EVENT_SHUTDOWN};

    cluster_step(cluster, below(sim, cluster->ranks), &event);
    for (uint32_t e = 0; e < sim->engine_count; e++)
        for (uint32_t r = 0; r < cluster->ranks; r++)
            if (chance(sim, 2))
                end_process(sim, e, r);
    while (cluster->item_count && !cluster->fault[0])
        deliver(sim, below(sim, cluster->item_count));
    for (uint32_t r = 0; r < cluster->ranks; r++)
        if (!cluster->shut_down[r])
            cluster_fail(cluster, "rank %u was not stopped", r);
}

static bool run_schedule(uint64_t seed, bool trace, struct totals *totals)
{
    struct sim *sim = calloc(1, sizeof *sim);
    struct gms_core_options options = {.world = seed ^ 0x5157,
                                       .operation_timeout_ns = 10000 * MS,
                                       .transfer_stall_ns = 5000 * MS,
                                       .fence_report_ns = 2000 * MS};
    bool ok;

    if (!sim) {
        fprintf(stderr, "sim: out of memory\n");
        exit(1);
    }
    sim->random_state = seed;
    sim->totals = totals;
    options.world_size = chance(sim, 8) ? 2 + below(sim, 15) : 2 + below(sim, 4);
    sim->engine_count = 1 + below(sim, ENGINES);
    sim->launch_limit = 2 + below(sim, 4);
    sim->cluster = cluster_new(&options);
    if (!sim->cluster) {
        fprintf(stderr, "sim: out of memory\n");
        exit(1);
    }
    sim->cluster->hook = hook;
    sim->cluster->context = sim;
    sim->cluster->keep_trace = false;
    sim->cluster->print_trace = trace;
    if (trace)
        printf("seed %llu: %u ranks, %u engines\n", (unsigned long long)seed, options.world_size, sim->engine_count);

    for (uint32_t e = 0; e < sim->engine_count; e++)
        launch(sim, e);
    run_faulty(sim);
    run_quiet(sim);
    check_rest(sim);
    stop(sim);
    ok = !sim->cluster->fault[0];
    if (!ok)
        printf("FAIL seed %llu (%u ranks, %u engines): %s\n  again with: sim --seed %llu --schedules 1 --trace\n",
               (unsigned long long)seed, options.world_size, sim->engine_count, sim->cluster->fault,
               (unsigned long long)seed);
    totals->steps += sim->cluster->steps;
    totals->rounds += sim->cluster->rounds;
    cluster_free(sim->cluster);
    free(sim);
    return ok;
}

/* ------------------------------------------------------------------------------------------------- main ------- */

struct arguments {
    uint64_t seed, schedules;
    bool trace;
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct arguments *arguments = state->input;
    char *end = NULL;

    switch (key) {
    case 's':
    case 'n':
        *(key == 's' ? &arguments->seed : &arguments->schedules) = strtoull(text, &end, 0);
        if (end == text || *end)
            argp_error(state, "'%s' is not a number", text);
        return 0;
    case 't':
        arguments->trace = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"seed", 's', "S", 0, "Seed of the first schedule (default 1); the next ones count up", 0},
        {"schedules", 'n', "N", 0, "How many schedules (default 2000)", 0},
        {"trace", 't', NULL, 0, "Print every action", 0},
        {0},
    };
    static const struct argp argp = {options,
                                     parse,
                                     NULL,
                                     "Runs the coordinators' core under random schedules and checks its invariants "
                                     "after every step. Exit status 1: a schedule failed; its seed is printed.",
                                     NULL,
                                     NULL,
                                     NULL};
    struct arguments arguments = {.seed = 1, .schedules = 2000};
    struct totals totals = {0};
    uint64_t failures = 0;

    argp_parse(&argp, argc, argv, 0, NULL, &arguments);
    mallopt(M_MMAP_THRESHOLD,
            1 << 30); /* a schedule's memory is the next one's: page faults cost more than its steps */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    for (uint64_t i = 0; i < arguments.schedules && failures < 5; i++)
        failures += !run_schedule(arguments.seed + i, arguments.trace, &totals);

    printf("%llu schedules from seed %llu: %llu failed; %llu steps, %llu rounds, %llu promotions, %llu servings, "
           "%llu classifications, %llu condemned, %llu transfers\n",
           (unsigned long long)arguments.schedules, (unsigned long long)arguments.seed, (unsigned long long)failures,
           (unsigned long long)totals.steps, (unsigned long long)totals.rounds, (unsigned long long)totals.promotions,
           (unsigned long long)totals.servings, (unsigned long long)totals.classifications,
           (unsigned long long)totals.condemned, (unsigned long long)totals.transfers);
    bool empty = !totals.servings || !totals.classifications || !totals.transfers || !totals.condemned;
    for (unsigned kind = 1; kind < GMS_OPERATION_COUNT; kind++) {
        if (kind == GMS_OPERATION_TAKEOVER || kind == GMS_OPERATION_RECLAIM)
            continue;
        printf("  %s: %llu committed, %llu aborted\n", gms_operation_name((enum gms_operation)kind),
               (unsigned long long)totals.commits[kind], (unsigned long long)totals.aborts[kind]);
        empty = empty || !totals.commits[kind] || !totals.aborts[kind];
    }
    if (arguments.schedules >= 1000 && empty) {
        printf("FAIL: something that should happen in so many schedules never did: the run proves nothing\n");
        return 1;
    }
    return failures != 0;
}
