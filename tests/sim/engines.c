/* SPDX-License-Identifier: Apache-2.0
 * Engines: processes that join, allocate, park, serve, die and are started again, and find back to new coordinators. */
#include "schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t next_random(struct sim *sim)
{
    uint64_t z = sim->random_state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

bool sim_chance(struct sim *sim, uint32_t one_in)
{
    return next_random(sim) % one_in == 0;
}

uint32_t sim_below(struct sim *sim, uint32_t count)
{
    return (uint32_t)(next_random(sim) % count);
}

void sim_later_fact(struct sim *sim, uint32_t rank, uint32_t engine, uint64_t incarnation, enum gms_fact fact)
{
    struct gms_event event = {.type = GMS_EVENT_FACT};

    event.fact.engine = engine;
    event.fact.incarnation = incarnation;
    event.fact.fact = fact;
    cluster_add(sim->cluster, CLUSTER_OTHER, rank, &event);
}

struct session *sim_session(struct sim *sim, uint64_t session)
{
    return session && session < sim->session_count ? &sim->sessions[session] : NULL;
}

static uint64_t begin_session(struct sim *sim, uint32_t engine, uint32_t rank, uint64_t incarnation)
{
    if (!sim->session_count)
        sim->session_count = 1;
    if (sim->session_count >= sim->session_capacity) {
        sim->session_capacity = 2 * sim->session_capacity + 256;
        sim->sessions = realloc(sim->sessions, sim->session_capacity * sizeof *sim->sessions);
        if (!sim->sessions) {
            fprintf(stderr, "sim: out of memory\n");
            exit(1);
        }
    }
    sim->sessions[sim->session_count] = (struct session){engine, rank, incarnation};
    return sim->session_count++;
}

/* The incarnation that the process is, as far as this rank's coordinator knows: told to it, or only decided. */
static uint64_t known_as(const struct sim *sim, uint32_t engine, uint32_t rank)
{
    struct gms_core_view view = cluster_look(sim->cluster, rank);

    if (sim->engines[engine].processes[rank].incarnation)
        return sim->engines[engine].processes[rank].incarnation;
    return view.engines[engine].launch == sim->engines[engine].launch ? view.engines[engine].incarnation : 0;
}

void sim_end_process(struct sim *sim, uint32_t engine, uint32_t rank)
{
    struct process *process = &sim->engines[engine].processes[rank];
    struct gms_event event = {.type = GMS_EVENT_SESSION_GONE};

    if (!process->alive)
        return;
    process->alive = false;
    if (!process->attached) { /* no session, but its pidfd is known */
        if (known_as(sim, engine, rank))
            sim_later_fact(sim, rank, engine, known_as(sim, engine, rank), GMS_FACT_GONE);
        return;
    }
    event.session_gone.engine = engine;
    event.session_gone.session = process->session;
    cluster_add(sim->cluster, CLUSTER_OTHER, rank, &event);
}

bool sim_cohort_is_gone(const struct sim *sim, uint32_t engine)
{
    for (uint32_t r = 0; r < sim->cluster->ranks; r++)
        if (sim->engines[engine].processes[r].alive)
            return false;
    return true;
}

void sim_launch(struct sim *sim, uint32_t engine)
{
    sim->engines[engine].launch = ++sim->launches;
    sim->engines[engine].launches++;
    sim->engines[engine].exchanges = 1 + sim_below(sim, EXCHANGES);
    for (uint32_t r = 0; r < sim->cluster->ranks; r++) {
        struct process *process = &sim->engines[engine].processes[r];

        memset(process, 0, sizeof *process);
        process->alive = process->attached = true;
        process->session = begin_session(sim, engine, r, 0);
    }
}

static void call(struct sim *sim, uint32_t engine, uint32_t rank, const struct gms_proposal *proposal)
{
    struct process *process = &sim->engines[engine].processes[rank];

    process->waiting = true;
    process->asked = *proposal;
    if (!process->since)
        process->since = sim->cluster->options.world;
    cluster_ask(sim->cluster, rank, engine, process->session, process->since, proposal);
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
        event.transfer_end.failed = sim_chance(sim, 5);
        if (event.transfer_end.failed)
            process->failed_mask |= 1u << event.transfer_end.part;
    }
    cluster_step(sim->cluster, rank, &event);
}

void sim_dispatch(struct sim *sim, uint32_t engine)
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
        process->parts_ended = process->failed_mask = 0;
    }
    sim->totals->transfers++;
}

/* All ranks of the engine live, serve and have no transfer under way. */
bool sim_may_dispatch(const struct sim *sim, uint32_t engine)
{
    for (uint32_t r = 0; r < sim->cluster->ranks; r++) {
        const struct process *process = &sim->engines[engine].processes[r];
        if (!process->alive || !process->serving || process->transfer || process->waiting || process->leaving)
            return false;
    }
    return true;
}

static void attach_transfer(struct sim *sim, uint32_t engine, uint32_t rank)
{
    struct process *process = &sim->engines[engine].processes[rank];
    struct gms_event event;

    memset(&event, 0, sizeof event);
    event.type = GMS_EVENT_TRANSFER_DISPATCH;
    event.transfer_dispatch.engine = engine;
    event.transfer_dispatch.incarnation = process->incarnation;
    event.transfer_dispatch.session = process->session;
    event.transfer_dispatch.id = process->transfer;
    event.transfer_dispatch.part_count = TRANSFER_PARTS;
    event.transfer_dispatch.again = true;
    event.transfer_dispatch.ended_mask = (1u << process->parts_ended) - 1;
    event.transfer_dispatch.failed_mask = process->failed_mask;
    cluster_step(sim->cluster, rank, &event);
    if (process->waiting && process->alive)
        transfer(sim, engine, rank);
}

/* A new session with a coordinator of a new world: what it has said is said again, then what it waits for. */
static void attach(struct sim *sim, uint32_t engine, uint32_t rank)
{
    struct process *process = &sim->engines[engine].processes[rank];
    struct gms_event event = {.type = GMS_EVENT_ATTACHED};

    process->attached = true;
    process->session = begin_session(sim, engine, rank, process->incarnation);
    if (process->incarnation) {
        event.attached.engine = engine;
        event.attached.incarnation = process->incarnation;
        cluster_step(sim->cluster, rank, &event);
    }
    if (process->alive && process->life >= LIFE_PARKED)
        cluster_fact(sim->cluster, rank, engine, process->incarnation, GMS_FACT_PARKED);
    if (process->alive && process->life == LIFE_SERVE)
        cluster_fact(sim->cluster, rank, engine, process->incarnation, GMS_FACT_READY);
    if (process->alive && process->transfer)
        attach_transfer(sim, engine, rank);
    else if (process->alive && process->waiting)
        call(sim, engine, rank, &process->asked);
}

void sim_be_of_another_opinion(struct gms_proposal *proposal, uint32_t rank)
{
    proposal->fields[1] += 1000 + rank;
}

/* Nobody who lives is told that what it asks for is past, nor, where nothing goes wrong, anything but what rank 0 gave.
 */
static void check_answer(struct sim *sim, uint32_t engine, uint32_t rank, const struct gms_outcome *outcome)
{
    struct gms_core_view view = cluster_look(sim->cluster, rank);
    const struct gms_core_engine_view *slot = &view.engines[engine];

    if (outcome->status == GMS_E_STALE && outcome->key.kind != GMS_OPERATION_ADOPT && outcome->key.incarnation &&
        slot->incarnation == outcome->key.incarnation && slot->role != GMS_ROLE_CONDEMNED)
        cluster_fail(sim->cluster, "rank %u: a living engine is told: %s", rank, outcome->text);
    if (outcome->key.kind != GMS_OPERATION_EXCHANGE)
        return;
    sim->totals->exchanged += outcome->status == GMS_OK;
    if (sim->exchanges_only && outcome->status != GMS_OK)
        cluster_fail(sim->cluster, "rank %u: %s", rank, outcome->text);
}

/* What a rank can spare for kv pools: mostly enough for both, now and then for one, or for none. */
static uint64_t spare_bytes(struct sim *sim)
{
    uint64_t both = UINT64_C(72) * 4096, spare = both + sim_below(sim, 1000);

    return sim_chance(sim, 12) ? spare - 8 * 4096 : sim_chance(sim, 40) ? 4096 : spare;
}

bool sim_work(struct sim *sim, uint32_t engine, uint32_t rank)
{
    struct process *process = &sim->engines[engine].processes[rank];
    struct gms_proposal proposal;

    if (process->alive && !process->attached) {
        attach(sim, engine, rank);
        return true;
    }
    if (!process->alive || process->waiting)
        return false;
    if (process->leaving) {
        cluster_fact(sim->cluster, rank, engine, process->incarnation, GMS_FACT_LEFT);
        sim_end_process(sim, engine, rank);
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
    case LIFE_BUDGET:
        proposal = cluster_call(GMS_OPERATION_BUDGET, process->incarnation, process->sequence);
        proposal.fields[GMS_BUDGET_FIELD_HERE] = spare_bytes(sim);
        break;
    case LIFE_KV:
        proposal = cluster_allocate(process->incarnation, process->sequence, "kv", GMS_POOL_KV, 64, 4096);
        proposal.fields[GMS_ALLOCATE_FIELD_BUDGET] = spare_bytes(sim);
        break;
    case LIFE_EXTRA:
        proposal = cluster_allocate(process->incarnation, process->sequence, "x", GMS_POOL_KV, 8, 4096);
        proposal.fields[GMS_ALLOCATE_FIELD_BUDGET] = spare_bytes(sim);
        break;
    case LIFE_RELEASE:
        proposal = cluster_on_pool(GMS_OPERATION_RELEASE, process->incarnation, process->sequence, "x");
        break;
    case LIFE_EXCHANGE:
        proposal = cluster_on_pool(GMS_OPERATION_EXCHANGE, process->incarnation, process->sequence, "id");
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
    if (process->life != LIFE_JOIN && !sim->exchanges_only && sim_chance(sim, 400))
        sim_be_of_another_opinion(&proposal, rank);
    call(sim, engine, rank, &proposal);
    return true;
}

static void on_reply(struct sim *sim, uint32_t engine, uint32_t rank, const struct gms_outcome *outcome)
{
    struct process *process = &sim->engines[engine].processes[rank];

    process->waiting = false;
    check_answer(sim, engine, rank, outcome);
    if (process->life == LIFE_JOIN) {
        if (outcome->status == GMS_OK) {
            process->incarnation = outcome->incarnation;
            process->sequence = 1;
            process->life = sim->exchanges_only ? LIFE_EXCHANGE : LIFE_WEIGHTS;
        } else if (outcome->status != GMS_E_BUSY && outcome->status != GMS_E_AGAIN) {
            sim_end_process(sim, engine, rank); /* this launch is over */
        }
        return;
    }
    if (outcome->status == GMS_E_CONDEMNED || outcome->status == GMS_E_STALE || outcome->status == GMS_E_PROTOCOL) {
        if (outcome->status == GMS_E_PROTOCOL)
            cluster_fail(sim->cluster, "rank %u: %s", rank, outcome->text);
        if (process->life != LIFE_ADOPT || outcome->status != GMS_E_STALE) {
            sim_end_process(sim, engine, rank);
            return;
        }
    }
    process->sequence++;
    if (outcome->status == GMS_E_NO_CAPACITY && process->life == LIFE_KV) {
        sim_end_process(sim, engine, rank); /* it cannot do with what it was told, and that stands */
        return;
    }
    if (outcome->status == GMS_E_NO_CAPACITY && process->life == LIFE_EXTRA)
        process->life = LIFE_EXCHANGE;
    if (outcome->status != GMS_OK)
        return; /* all ranks were told so; all ask again */
    switch (process->life) {
    case LIFE_WEIGHTS:
        process->life = outcome->pool_state == GMS_POOL_UNPUBLISHED ? LIFE_PUBLISH : LIFE_BUDGET;
        break;
    case LIFE_PUBLISH:
        process->life = LIFE_BUDGET;
        break;
    case LIFE_BUDGET:
        process->life = LIFE_KV;
        break;
    case LIFE_KV:
        process->life = LIFE_EXTRA;
        break;
    case LIFE_EXTRA:
        process->life = LIFE_RELEASE;
        break;
    case LIFE_RELEASE:
        process->life = LIFE_EXCHANGE;
        break;
    case LIFE_EXCHANGE:
        if (++process->exchanged == sim->engines[engine].exchanges)
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

struct process *sim_by_session(struct sim *sim, uint64_t session, uint32_t *ret_engine)
{
    const struct session *known = sim_session(sim, session);

    if (!known || sim->engines[known->engine].processes[known->rank].session != session)
        return NULL;
    *ret_engine = known->engine;
    return &sim->engines[known->engine].processes[known->rank];
}

void sim_hook(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    struct sim *sim = cluster->context;
    struct session *session;
    struct process *process;
    uint32_t engine;

    switch (action->type) {
    case GMS_ACTION_REPLY:
        session = sim_session(sim, action->reply.session);
        if (session && action->reply.outcome.key.kind == GMS_OPERATION_JOIN && action->reply.outcome.status == GMS_OK)
            session->incarnation = action->reply.outcome.incarnation; /* the driver knows it, also of the dead */
        sim->totals->past +=
            action->reply.outcome.key.kind == GMS_OPERATION_JOIN && action->reply.outcome.status == GMS_E_STALE;
        process = sim_by_session(sim, action->reply.session, &engine);
        if (process && process->alive)
            on_reply(sim, engine, rank, &action->reply.outcome);
        break;
    case GMS_ACTION_TRANSFER_DONE:
        process = sim_by_session(sim, action->transfer.session, &engine);
        if (!process || !process->waiting)
            break;
        process->waiting = false;
        process->transfer = 0;
        if (action->transfer.status != GMS_OK && action->transfer.status != GMS_E_CONDEMNED &&
            action->transfer.status != GMS_E_STALE)
            cluster_fail(cluster, "rank %u: %s", rank, action->transfer.text);
        break;
    case GMS_ACTION_FENCE:
        sim->totals->condemned += rank == 0;
        process = &sim->engines[action->fence.engine].processes[rank];
        if (known_as(sim, action->fence.engine, rank) == action->fence.incarnation)
            sim_end_process(sim, action->fence.engine, rank);
        break;
    case GMS_ACTION_CONDEMNED:
        process = &sim->engines[action->promote.engine].processes[rank];
        if (process->incarnation == action->promote.incarnation && process->attached)
            sim_end_process(sim, action->promote.engine, rank);
        break;
    case GMS_ACTION_PROMOTE:
        process = &sim->engines[action->promote.engine].processes[rank];
        sim->totals->promotions += rank == 0;
        if (process->incarnation != action->promote.incarnation || !process->attached || !process->alive)
            break;
        if (process->life > LIFE_PARKED && process->epoch == action->promote.epoch &&
            process->source == action->promote.source)
            break; /* told again */
        if (process->life != LIFE_PARKED)
            cluster_fail(cluster, "rank %u: promoted in life %d", rank, process->life);
        process->life = LIFE_ADOPT;
        process->epoch = action->promote.epoch;
        process->source = action->promote.source;
        break;
    case GMS_ACTION_SERVING:
        process = &sim->engines[action->promote.engine].processes[rank];
        sim->totals->servings += rank == 0;
        if (process->incarnation != action->promote.incarnation || !process->attached || !process->alive)
            break;
        if (process->life != LIFE_SERVE)
            cluster_fail(cluster, "rank %u: serves in life %d", rank, process->life);
        process->serving = true;
        break;
    case GMS_ACTION_COMMIT:
    case GMS_ACTION_ABORT:
        if (rank == 0 && action->commit.outcome.status == GMS_E_AGAIN)
            sim->totals->undone++;
        else if (rank == 0)
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
    case GMS_ACTION_RECLAIM:
    case GMS_ACTION_NOTE:
    case GMS_ACTION_RESTART:
    case GMS_ACTION_SHUTDOWN:
    case GMS_ACTION_TYPE_COUNT:
        break;
    }
}
