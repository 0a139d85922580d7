/* SPDX-License-Identifier: Apache-2.0
 * Random schedules: while faults happen, when they stop, and what must be true then. */
#include "schedule.h"

#include "checks.h"
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum gms_store_kind kind_of(const struct cluster *cluster, uint32_t rank, uint64_t ticket)
{
    for (uint32_t i = cluster->store_count; i-- > 0;)
        if (cluster->stores[i].rank == rank && cluster->stores[i].ticket == ticket)
            return cluster->stores[i].kind;
    return 0;
}

void sim_deliver(struct sim *sim, uint32_t index)
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
        const struct session *session = sim_session(sim, item->event.session_gone.session);
        if (session && session->incarnation) /* the driver knows whose it was */
            sim_later_fact(sim, rank, session->engine, session->incarnation, GMS_FACT_GONE);
    }
    cluster_deliver(cluster, index);
}

static void fault(struct sim *sim)
{
    uint32_t engine = sim_below(sim, sim->engine_count), rank = sim_below(sim, sim->cluster->ranks);
    struct process *process = &sim->engines[engine].processes[rank];
    static const enum gms_fact facts[] = {GMS_FACT_STICKY, GMS_FACT_STALLED, GMS_FACT_COMMANDED, GMS_FACT_WANTED};

    switch (sim_below(sim, 4)) {
    case 0:
        if (process->alive && process->incarnation)
            sim_later_fact(sim, rank, engine, process->incarnation, facts[sim_below(sim, 4)]);
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

/* The work of a dead cohort ends on a rank, in any order; seldom nobody will ever know. */
static void end_work(struct sim *sim, uint32_t rank)
{
    struct gms_core_suspect suspect;
    uint32_t place = sim_below(sim, 4);

    if (!sim->cluster->memory || !gms_core_look_suspect(sim->cluster->cores[rank], place, &suspect) ||
        suspect.incarnation == UINT64_MAX)
        return;
    if (!sim->quiet && sim_chance(sim, 60))
        cluster_memory_unknowable(sim->cluster, rank, suspect.incarnation);
    else
        cluster_memory_quiet(sim->cluster, rank, suspect.incarnation);
}

/* All of it ends; true when that is news. */
static bool end_all_work(struct sim *sim)
{
    uint32_t items = sim->cluster->item_count;

    for (uint32_t r = 0; r < sim->cluster->ranks && sim->cluster->memory; r++)
        for (uint32_t place = 0; place < GMS_RECLAIM_CROWD; place++) {
            struct gms_core_suspect suspect;

            if (gms_core_look_suspect(sim->cluster->cores[r], place, &suspect))
                cluster_memory_quiet(sim->cluster, r, suspect.incarnation);
        }
    return sim->cluster->item_count > items;
}

void sim_turn(struct sim *sim)
{
    struct cluster *cluster = sim->cluster;
    uint32_t engine = sim_below(sim, sim->engine_count), rank = sim_below(sim, cluster->ranks);

    if (!sim->quiet && sim_chance(sim, sim->fault_rate))
        fault(sim);
    if (!sim->quiet && sim_chance(sim, sim->time_rate))
        advance(sim);
    if (sim_chance(sim, 50))
        relaunch(sim);
    if (sim_chance(sim, 12))
        end_work(sim, rank);
    if (sim_chance(sim, 30) && sim_may_dispatch(sim, engine))
        sim_dispatch(sim, engine);
    if (sim_chance(sim, 3))
        sim_work(sim, engine, rank);
    else if (cluster->item_count)
        sim_deliver(sim, sim_below(sim, cluster->item_count));
}

static bool somebody_died(const struct cluster *cluster)
{
    for (uint32_t r = 0; r < cluster->ranks; r++)
        if (cluster->dead[r])
            return true;
    return false;
}

/* Now and then, more often where more is under way. */
static bool is_time_to_die(struct sim *sim)
{
    const struct gms_core *core = sim->cluster->cores[0];
    bool under_way = gms_core_takeover_busy(core);

    for (uint32_t e = 0; e < sim->engine_count; e++)
        under_way = under_way || core->engines[e].operation.preparing;
    return sim_chance(sim, under_way ? sim->crash_rate / 8 : sim->crash_rate);
}

static void run_faulty(struct sim *sim)
{
    struct cluster *cluster = sim->cluster;
    uint32_t steps = SCHEDULE_STEPS / 2 + sim_below(sim, SCHEDULE_STEPS) + 60 * cluster->ranks;
    uint32_t first_crash = sim_below(sim, steps);

    sim->fault_rate = 40 + sim_below(sim, 800);
    sim->time_rate = 100 + sim_below(sim, 400);
    sim->crash_rate = 400 + sim_below(sim, 3000);
    for (uint32_t step = 0; step < steps && !cluster->fault[0]; step++) {
        sim_turn(sim);
        if (somebody_died(cluster) || step == first_crash || is_time_to_die(sim))
            sim_crash(sim);
    }
}

/* No more faults: everything under way arrives, everybody goes on, time passes where somebody waits for it. */
void sim_come_to_rest(struct sim *sim)
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
            sim_deliver(sim, sim_below(sim, cluster->item_count));
            busy = true;
        }
        if (somebody_died(cluster)) { /* its last store failed before the faults stopped: all start again */
            cluster_crash(cluster, NULL);
            sim_restart(sim, true);
            continue;
        }
        relaunch(sim);
        for (uint32_t e = 0; e < sim->engine_count; e++)
            for (uint32_t r = 0; r < cluster->ranks; r++)
                busy = sim_work(sim, e, r) || busy;
        busy = end_all_work(sim) || busy;
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

/* Who serves has got back every page that is not suspected of somebody whom nobody can know quiet. */
static void check_reclaimed(struct sim *sim, uint32_t rank, const struct gms_core_view *view)
{
    struct cluster *cluster = sim->cluster;
    struct gms_core_reclaim_view reclaim;
    struct gms_core_suspect suspect;
    uint32_t unknowable = 0;

    if (view->serving_engine < 0 || !cluster->memory)
        return;
    gms_core_look_reclaim(cluster->cores[rank], &reclaim);
    if (reclaim.state != GMS_RECLAIM_RESTING)
        cluster_fail(cluster, "at rest reclaim is %s on rank %u", gms_reclaim_state_name(reclaim.state), rank);
    for (uint32_t place = 0; place < GMS_RECLAIM_SUSPECTS; place++)
        if (gms_core_look_suspect(cluster->cores[rank], place, &suspect)) {
            if (suspect.verdict == GMS_RECLAIM_NOT_YET)
                cluster_fail(cluster, "at rest incarnation %llu is still suspected",
                             (unsigned long long)suspect.incarnation);
            unknowable |= 1u << place;
        }
    unknowable |= 1u << GMS_RECLAIM_CROWD;
    for (uint32_t page = 0; page < MEMORY_PAGES && rank == 0; page++) {
        uint32_t owner = cluster_place(cluster, view->engines[view->serving_engine].incarnation), suspects = 0;

        for (uint32_t r = 0; r < cluster->ranks; r++)
            suspects |= cluster->memory->suspects[r][page];
        if (cluster->memory->words[owner][0][page] == MEMORY_QUARANTINED && !(suspects & unknowable))
            cluster_fail(cluster, "at rest page %u is in quarantine, and nobody is suspected (%x)", page, suspects);
    }
}

void sim_check_rest(struct sim *sim)
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
        check_reclaimed(sim, r, &view);
        if (view.takeover != GMS_TAKEOVER_SERVING && view.takeover != GMS_TAKEOVER_VACANT)
            cluster_fail(cluster, "at rest in takeover state %d", view.takeover);
        if (gms_core_look_transfer(cluster->cores[r], 0, &open))
            cluster_fail(cluster, "at rest rank %u has transfer %llu open", r, (unsigned long long)open.id);
    }
    for (uint32_t e = 0; e < sim->engine_count; e++)
        for (uint32_t r = 0; r < cluster->ranks; r++)
            if (sim->engines[e].processes[r].alive && sim->engines[e].processes[r].waiting)
                cluster_fail(cluster, "at rest engine %u rank %u was not answered", e, r);
    cluster_check_effects(cluster);
    for (uint32_t i = 0; i < cluster->decided_count; i++) /* after a crash failures are told to who asks */
        if (!cluster->decided[i].closed && (cluster->decided[i].outcome.status == GMS_OK || cluster->worlds == 1) &&
            !cluster_has_all(&cluster->decided[i].told, cluster->ranks))
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
        sim_deliver(sim, sim_below(sim, cluster->item_count));
    for (uint32_t r = 0; r < cluster->ranks; r++)
        if (!cluster->shut_down[r])
            cluster_fail(cluster, "rank %u was not stopped", r);
}

struct sim *sim_new(uint64_t seed, uint32_t ranks, uint32_t engines, struct totals *totals)
{
    struct sim *sim = calloc(1, sizeof *sim);
    struct gms_core_options options = {.world = 1 + seed % 1000,
                                       .operation_timeout_ns = 10000 * MS,
                                       .transfer_stall_ns = 5000 * MS,
                                       .fence_report_ns = 2000 * MS,
                                       .reattach_ns = 5000 * MS,
                                       .reclaim_slots = 5};

    if (sim) {
        sim->random_state = seed;
        sim->totals = totals;
        options.world_size = ranks ? ranks : sim_chance(sim, 8) ? 2 + sim_below(sim, 15) : 2 + sim_below(sim, 4);
        sim->engine_count = engines ? engines : 1 + sim_below(sim, ENGINES);
        sim->launch_limit = 2 + sim_below(sim, 4);
        options.reclaim_inherits = sim_chance(sim, 4);
        if (options.world_size > MEMORY_RANKS)
            options.reclaim_slots = 0;
        sim->cluster = cluster_new(&options);
        if (sim->cluster && options.world_size <= MEMORY_RANKS)
            sim->cluster->memory = cluster_memory_new();
        for (uint32_t e = 0; e < ENGINES; e++)
            sim->engines[e].processes = calloc(options.world_size, sizeof(struct process));
    }
    if (!sim || !sim->cluster || (options.world_size <= MEMORY_RANKS && !sim->cluster->memory) ||
        !sim->engines[0].processes || !sim->engines[1].processes || !sim->engines[2].processes) {
        fprintf(stderr, "sim: out of memory\n");
        exit(1);
    }
    if (sim->cluster->memory)
        sim->cluster->memory->proof_is_trusted = options.reclaim_inherits;
    sim->cluster->hook = sim_hook;
    sim->cluster->store_may_fail = true;
    sim->cluster->context = sim;
    sim->cluster->keep_trace = false;
    return sim;
}

void sim_free(struct sim *sim)
{
    cluster_free(sim->cluster);
    for (uint32_t e = 0; e < ENGINES; e++)
        free(sim->engines[e].processes);
    free(sim->sessions);
    free(sim);
}

bool sim_run_schedule(uint64_t seed, uint32_t fixed_ranks, bool trace, struct totals *totals)
{
    struct sim *sim = sim_new(seed, fixed_ranks, 0, totals);
    uint32_t ranks = sim->cluster->ranks;
    char more[32] = "";
    bool ok;

    if (fixed_ranks)
        snprintf(more, sizeof more, " --ranks %u", fixed_ranks);
    sim->cluster->print_trace = trace;
    if (trace)
        printf("seed %llu: %u ranks, %u engines\n", (unsigned long long)seed, ranks, sim->engine_count);

    for (uint32_t e = 0; e < sim->engine_count; e++)
        sim_launch(sim, e);
    run_faulty(sim);
    sim_come_to_rest(sim);
    sim_check_rest(sim);
    stop(sim);
    if (sim_chance(sim, 4)) { /* a planned stop loses nothing */
        cluster_crash(sim->cluster, NULL);
        sim_restart(sim, true);
        sim_come_to_rest(sim);
        sim_check_rest(sim);
    }
    sim_count_rows(sim);
    ok = !sim->cluster->fault[0];
    if (!ok)
        printf("FAIL seed %llu (%u ranks, %u engines): %s\n  again with: sim --seed %llu --schedules 1%s --trace\n",
               (unsigned long long)seed, ranks, sim->engine_count, sim->cluster->fault, (unsigned long long)seed, more);
    totals->schedules++;
    totals->steps += sim->cluster->steps;
    totals->rounds += sim->cluster->rounds;
    sim_free(sim);
    return ok;
}
