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

#include "core/core_state.h"
#include "engines.h"

#define MS UINT64_C(1000000)
enum { SCHEDULE_STEPS = 2500 };

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

    cluster->prepare_status[rank] = !sim->quiet && sim_chance(sim, 40) ? GMS_E_NO_CAPACITY : GMS_OK;
    if (item->kind == CLUSTER_BULK && !sim->quiet && sim_chance(sim, 30))
        item->event.bulk.status = GMS_E_CORRUPT;
    if (item->kind == CLUSTER_STORE && !sim->quiet && sim_chance(sim, 60) &&
        kind_of(cluster, rank, item->event.ticket) == GMS_STORE_PREPARED)
        item->event.type = GMS_EVENT_STORE_FAILED;
    if (item->event.type == GMS_EVENT_SESSION_GONE) {
        uint32_t engine = 0;
        const struct process *process = sim_by_session(sim, rank, item->event.session_gone.session, &engine);
        if (process && process->incarnation) /* the driver knows whose session it was */
            sim_later_fact(sim, rank, engine, process->incarnation, GMS_FACT_GONE);
    }
    cluster_deliver(cluster, index);
}

static void fault(struct sim *sim)
{
    uint32_t engine = sim_below(sim, sim->engine_count), rank = sim_below(sim, sim->cluster->ranks);
    struct process *process = &sim->engines[engine].processes[rank];
    static const enum gms_fact facts[] = {GMS_FACT_STICKY, GMS_FACT_STALLED, GMS_FACT_COMMANDED};

    switch (sim_below(sim, 4)) {
    case 0:
        if (process->alive && process->incarnation)
            sim_later_fact(sim, rank, engine, process->incarnation, facts[sim_below(sim, 3)]);
        break;
    case 1: /* the whole engine leaves */
        for (uint32_t r = 0; r < sim->cluster->ranks; r++)
            if (!sim->engines[engine].processes[r].incarnation)
                return;
        for (uint32_t r = 0; r < sim->cluster->ranks; r++)
            sim->engines[engine].processes[r].leaving = true;
        break;
    default:
        sim_end_process(sim, engine, rank);
        break;
    }
}

static void advance(struct sim *sim)
{
    struct cluster *cluster = sim->cluster;
    struct gms_event tick = {.type = GMS_EVENT_TICK};

    cluster->now_ns += sim_below(sim, 3000) * MS;
    for (uint32_t r = 0; r < cluster->ranks; r++)
        if (gms_core_deadline(cluster->cores[r]) <= cluster->now_ns)
            cluster_step(cluster, r, &tick);
}

static void relaunch(struct sim *sim)
{
    for (uint32_t e = 0; e < sim->engine_count; e++)
        if (sim->engines[e].launches < sim->launch_limit && sim_cohort_is_gone(sim, e))
            sim_launch(sim, e);
}

static void run_faulty(struct sim *sim)
{
    struct cluster *cluster = sim->cluster;
    uint32_t steps = SCHEDULE_STEPS / 2 + sim_below(sim, SCHEDULE_STEPS) + 60 * cluster->ranks;
    uint32_t fault_rate = 40 + sim_below(sim, 400), time_rate = 100 + sim_below(sim, 400);

    for (uint32_t step = 0; step < steps && !cluster->fault[0]; step++) {
        uint32_t engine = sim_below(sim, sim->engine_count), rank = sim_below(sim, cluster->ranks);

        if (sim_chance(sim, fault_rate))
            fault(sim);
        if (sim_chance(sim, time_rate))
            advance(sim);
        if (sim_chance(sim, 50))
            relaunch(sim);
        if (sim_chance(sim, 30) && sim_may_dispatch(sim, engine))
            sim_dispatch(sim, engine);
        if (sim_chance(sim, 3))
            sim_work(sim, engine, rank);
        else if (cluster->item_count)
            deliver(sim, sim_below(sim, cluster->item_count));
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
            deliver(sim, sim_below(sim, cluster->item_count));
            busy = true;
        }
        relaunch(sim);
        for (uint32_t e = 0; e < sim->engine_count; e++)
            for (uint32_t r = 0; r < cluster->ranks; r++)
                busy = sim_work(sim, e, r) || busy;
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

    cluster_step(cluster, sim_below(sim, cluster->ranks), &event);
    for (uint32_t e = 0; e < sim->engine_count; e++)
        for (uint32_t r = 0; r < cluster->ranks; r++)
            if (sim_chance(sim, 2))
                sim_end_process(sim, e, r);
    while (cluster->item_count && !cluster->fault[0])
        deliver(sim, sim_below(sim, cluster->item_count));
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
    options.world_size = sim_chance(sim, 8) ? 2 + sim_below(sim, 15) : 2 + sim_below(sim, 4);
    sim->engine_count = 1 + sim_below(sim, ENGINES);
    sim->launch_limit = 2 + sim_below(sim, 4);
    sim->cluster = cluster_new(&options);
    if (!sim->cluster) {
        fprintf(stderr, "sim: out of memory\n");
        exit(1);
    }
    sim->cluster->hook = sim_hook;
    sim->cluster->context = sim;
    sim->cluster->keep_trace = false;
    sim->cluster->print_trace = trace;
    if (trace)
        printf("seed %llu: %u ranks, %u engines\n", (unsigned long long)seed, options.world_size, sim->engine_count);

    for (uint32_t e = 0; e < sim->engine_count; e++)
        sim_launch(sim, e);
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
