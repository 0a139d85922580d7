/* SPDX-License-Identifier: Apache-2.0 */
#include "checks.h"
#include "memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every array that has one element for each rank. */
#define PER_RANK(ARRAY)                                                                                                \
    ARRAY(cores)                                                                                                       \
    ARRAY(ring_due)                                                                                                    \
    ARRAY(held)                                                                                                        \
    ARRAY(in_round)                                                                                                    \
    ARRAY(in_bulk)                                                                                                     \
    ARRAY(entered)                                                                                                     \
    ARRAY(bulk)                                                                                                        \
    ARRAY(prepare_status)                                                                                              \
    ARRAY(prepare_detail)                                                                                              \
    ARRAY(store_fails)                                                                                                 \
    ARRAY(shut_down)                                                                                                   \
    ARRAY(disks)                                                                                                       \
    ARRAY(actions_left)                                                                                                \
    ARRAY(dead)                                                                                                        \
    ARRAY(last_epoch)

static bool allocate(struct cluster *cluster)
{
    uint32_t many = cluster->ranks > CLUSTER_MANY ? cluster->ranks - CLUSTER_MANY : 0;
    bool ok = true;

#define ALLOCATE(array) ok = (cluster->array = calloc(cluster->ranks, sizeof *cluster->array)) != NULL && ok;
    PER_RANK(ALLOCATE)
#undef ALLOCATE
    cluster->item_limit = CLUSTER_ITEMS + 64 * many;
    cluster->store_capacity = 8192;
    cluster->actions = calloc(1, sizeof *cluster->actions);
    cluster->decided = calloc(CLUSTER_DECIDED, sizeof *cluster->decided);
    cluster->incarnations = calloc(CLUSTER_INCARNATIONS, sizeof *cluster->incarnations);
    cluster->stores = calloc(cluster->store_capacity, sizeof *cluster->stores);
    cluster->effects = calloc(CLUSTER_DECIDED, sizeof *cluster->effects);
    cluster->effect_room = calloc(CLUSTER_DECIDED, cluster->ranks);
    return ok && cluster->actions && cluster->decided && cluster->incarnations && cluster->stores && cluster->effects &&
           cluster->effect_room;
}

struct cluster *cluster_new(const struct gms_core_options *options)
{
    struct cluster *cluster = calloc(1, sizeof *cluster);

    if (!cluster)
        return NULL;
    cluster->ranks = options->world_size;
    cluster->options = *options;
    cluster->round_waits = cluster->bulk_waits = cluster->ranks;
    cluster->now_ns = 1000000000;
    cluster->keep_trace = true;
    cluster->worlds = 1;
    bool ok = cluster->ranks && cluster->ranks <= CLUSTER_RANKS && allocate(cluster);
    for (uint32_t r = 0; ok && r < cluster->ranks; r++) {
        struct gms_core_options own = *options;
        void *memory = aligned_alloc(16, (gms_core_bytes() + 15) / 16 * 16);

        own.rank = r;
        cluster->actions_left[r] = UINT32_MAX;
        cluster->disks[r].world = options->world;
        ok = memory != NULL;
        if (ok)
            cluster->cores[r] = gms_core_init(memory, &own);
    }
    if (ok)
        return cluster;
    cluster_free(cluster);
    return NULL;
}

void cluster_free(struct cluster *cluster)
{
    if (!cluster)
        return;
    for (uint32_t r = 0; r < cluster->ranks && cluster->cores && cluster->disks; r++) {
        free(cluster->cores[r]);
        cluster_disk_free(&cluster->disks[r]);
    }
#define FREE(array) free(cluster->array);
    PER_RANK(FREE)
#undef FREE
    free(cluster->effect_room);
    free(cluster->memory);
    free(cluster->effects);
    free(cluster->stores);
    free(cluster->incarnations);
    free(cluster->decided);
    free(cluster->trace);
    free(cluster->room);
    free(cluster->actions);
    free(cluster);
}

void cluster_fail(struct cluster *cluster, const char *format, ...)
{
    va_list arguments;

    if (cluster->fault[0])
        return; /* the first one is the cause */
    int at = snprintf(cluster->fault, sizeof cluster->fault, "step %llu: ", (unsigned long long)cluster->steps);
    va_start(arguments, format);
    vsnprintf(cluster->fault + at, sizeof cluster->fault - (size_t)at, format, arguments);
    va_end(arguments);
}

/* Room for one more item behind the newest. */
static bool make_room(struct cluster *cluster)
{
    uint32_t begin = (uint32_t)(cluster->items - cluster->room);

    if (cluster->item_count == cluster->item_limit) {
        cluster_fail(cluster, "too many items in flight");
        return false;
    }
    if (begin + cluster->item_count < cluster->room_count)
        return true;
    if (!cluster->room_count || begin < cluster->item_count) { /* moving alone would have to be done again soon */
        uint32_t count = 2 * cluster->item_count + 512;
        struct cluster_item *room = calloc(count, sizeof *room);

        if (!room) {
            cluster_fail(cluster, "no memory for %u items", count);
            return false;
        }
        if (cluster->item_count)
            memcpy(room, cluster->items, cluster->item_count * sizeof *room);
        free(cluster->room);
        cluster->room = room;
        cluster->room_count = count;
    } else if (cluster->item_count) {
        memcpy(cluster->room, cluster->items, cluster->item_count * sizeof *cluster->room);
    }
    cluster->items = cluster->room;
    return true;
}

void cluster_add(struct cluster *cluster, enum cluster_item_kind kind, uint32_t rank, const struct gms_event *event)
{
    if (make_room(cluster))
        cluster->items[cluster->item_count++] = (struct cluster_item){kind, rank, *event};
}

/* ------------------------------------------------------------------------------------------------- drivers ---- */

static void enter_round(struct cluster *cluster, uint32_t rank, const struct gms_ballot *ballot)
{
    struct gms_ballot *merged = &cluster->merged[cluster->rounds % CLUSTER_ROUNDS];

    if (cluster->in_round[rank] || cluster->in_bulk[rank])
        cluster_fail(cluster, "rank %u enters a round while it is in another or in a bulk", rank);
    cluster->in_round[rank] = true;
    cluster->entered[rank] = *ballot;
    if (--cluster->round_waits)
        return;
    cluster->round_waits = cluster->ranks;
    gms_ballot_init(merged);
    for (uint32_t r = 0; r < cluster->ranks; r++) {
        struct gms_event event = {.type = GMS_EVENT_ROUND_DONE, .merged = merged};

        gms_ballot_merge(merged, &cluster->entered[r]);
        cluster_add(cluster, CLUSTER_ROUND, r, &event);
    }
    cluster->rounds++;
}

static void enter_bulk(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    if (cluster->in_round[rank] || cluster->in_bulk[rank])
        cluster_fail(cluster, "rank %u enters a bulk while it is in a round or another", rank);
    cluster->in_bulk[rank] = true;
    cluster->bulk[rank] = *action;
    if (--cluster->bulk_waits)
        return;
    cluster->bulk_waits = cluster->ranks;
    cluster_memory_adopted(cluster, action->bulk.incarnation);
    cluster->bulks++;
    for (uint32_t r = 0; r < cluster->ranks; r++) {
        struct gms_event event = {.type = GMS_EVENT_BULK_DONE};

        if (!cluster_keys_equal(&cluster->bulk[r].bulk.key, &action->bulk.key))
            cluster_fail(cluster, "ranks are in different bulks");
        event.bulk.engine = action->bulk.engine;
        event.bulk.key = action->bulk.key;
        event.bulk.status = cluster->bulk_status;
        event.bulk.adopted = cluster->adopted;
        event.bulk.idle = cluster->idle;
        event.bulk.quarantined = cluster->quarantined;
        cluster_add(cluster, CLUSTER_BULK, r, &event);
    }
}

static void add_fact(struct cluster *cluster, enum cluster_item_kind kind, uint32_t rank, uint32_t engine,
                     uint64_t incarnation, enum gms_fact fact)
{
    struct gms_event event = {.type = GMS_EVENT_FACT};

    event.fact.engine = engine;
    event.fact.incarnation = incarnation;
    event.fact.fact = fact;
    cluster_add(cluster, kind, rank, &event);
}

static void ring(struct cluster *cluster, uint32_t rank, uint64_t round)
{
    struct gms_event event = {.type = GMS_EVENT_RUNG};

    event.rung_round = round;
    cluster->rung += cluster->ranks - 1;
    for (uint32_t r = 0; r < cluster->ranks; r++) {
        if (r == rank || (cluster->ranks > CLUSTER_MANY && cluster->ring_due[r] >= round))
            continue;
        cluster->ring_due[r] = round;
        cluster_add(cluster, CLUSTER_RING, r, &event);
    }
}

static void act(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    struct gms_event event;

    memset(&event, 0, sizeof event);
    switch (action->type) {
    case GMS_ACTION_RING:
        ring(cluster, rank, action->round);
        break;
    case GMS_ACTION_ENTER_ROUND:
        enter_round(cluster, rank, action->ballot);
        break;
    case GMS_ACTION_STORE:
        cluster->stored++;
        event.type = cluster->store_fails[rank] ? GMS_EVENT_STORE_FAILED : GMS_EVENT_STORED;
        event.ticket = action->store.ticket;
        cluster_add(cluster, CLUSTER_STORE, rank, &event);
        break;
    case GMS_ACTION_PREPARE:
        event.type = GMS_EVENT_PREPARED;
        event.prepared.engine = action->prepare.engine;
        event.prepared.key = action->prepare.proposal.key;
        event.prepared.status = cluster->prepare_status[rank];
        memcpy(event.prepared.detail, cluster->prepare_detail[rank], sizeof event.prepared.detail);
        if (event.prepared.status == GMS_OK)
            cluster_effect_prepared(cluster, rank, action->prepare.engine, &action->prepare.proposal.key);
        cluster_add(cluster, CLUSTER_PREPARE, rank, &event);
        break;
    case GMS_ACTION_COMMIT:
    case GMS_ACTION_ABORT:
        cluster_effect_decided(cluster, rank, action);
        break;
    case GMS_ACTION_BULK:
        enter_bulk(cluster, rank, action);
        break;
    case GMS_ACTION_FENCE:
        add_fact(cluster, CLUSTER_RETIRED, rank, action->fence.engine, action->fence.incarnation, GMS_FACT_RETIRED);
        break;
    case GMS_ACTION_CLASSIFY:
        cluster_memory_act(cluster, rank, action);
        add_fact(cluster, CLUSTER_CLASSIFIED, rank, action->classify.engine, action->classify.incarnation,
                 GMS_FACT_CLASSIFIED);
        break;
    case GMS_ACTION_SHUTDOWN:
        cluster->shut_down[rank] = true;
        break;
    case GMS_ACTION_RESTART:
        if (cluster->may_restart || (cluster->store_may_fail && action->note.status == GMS_E_STORE))
            cluster->dead[rank] = true;
        else
            cluster_fail(cluster, "rank %u restarts: %s", rank, action->note.text);
        break;
    case GMS_ACTION_RECLAIM:
    case GMS_ACTION_PROMOTE:
    case GMS_ACTION_SERVING:
        cluster_memory_act(cluster, rank, action);
        break;
    case GMS_ACTION_REPLY:
    case GMS_ACTION_CONDEMNED:
    case GMS_ACTION_FORGET:
    case GMS_ACTION_TRANSFER_ANSWER:
    case GMS_ACTION_TRANSFER_DONE:
    case GMS_ACTION_TRANSFER_STALLED:
    case GMS_ACTION_NOTE:
    case GMS_ACTION_TYPE_COUNT:
        break;
    }
}

/* ------------------------------------------------------------------------------------------------- moving ----- */

void cluster_act(struct cluster *cluster, uint32_t rank)
{
    bool stores = false;

    for (size_t i = 0; i < cluster->actions->count; i++) {
        if (cluster->actions->items[i].type != GMS_ACTION_STORE)
            continue;
        if (!stores)
            cluster_disk_begin(cluster, rank);
        cluster_note_store(cluster, rank, &cluster->actions->items[i]);
        stores = true;
    }
    for (size_t i = 0; i < cluster->actions->count; i++) {
        const struct gms_action *action = &cluster->actions->items[i];

        if (!cluster->actions_left[rank]) {
            cluster->dead[rank] = true;
            return;
        }
        if (cluster->actions_left[rank] != UINT32_MAX)
            cluster->actions_left[rank]--;
        if (cluster->print_trace)
            cluster_print_action(cluster, rank, action);
        if (cluster->keep_trace && !cluster->trace)
            cluster->trace = calloc(CLUSTER_TRACE, sizeof *cluster->trace);
        if (cluster->keep_trace && cluster->trace && cluster->trace_count < CLUSTER_TRACE)
            cluster->trace[cluster->trace_count++] = (struct cluster_trace){rank, cluster->steps, *action};
        cluster_check_action(cluster, rank, action);
        act(cluster, rank, action);
        if (cluster->hook)
            cluster->hook(cluster, rank, action);
    }
    if (!cluster->actions_left[rank])
        cluster->dead[rank] = true;
}

void cluster_step(struct cluster *cluster, uint32_t rank, const struct gms_event *event)
{
    struct gms_event own = *event;

    if (cluster->fault[0] || cluster->dead[rank])
        return;
    own.now_ns = cluster->now_ns;
    cluster->steps++;
    if (own.type == GMS_EVENT_ROUND_DONE)
        cluster->in_round[rank] = false;
    if (own.type == GMS_EVENT_BULK_DONE) {
        cluster->in_bulk[rank] = false;
        if (own.bulk.status == GMS_OK)
            cluster_effect_prepared(cluster, rank, own.bulk.engine, &own.bulk.key);
    }
    cluster_check_event(cluster, rank, &own);
    gms_core_step(cluster->cores[rank], &own, cluster->actions);
    cluster_act(cluster, rank);
    cluster_check_digest(cluster, rank);
}

void cluster_deliver(struct cluster *cluster, uint32_t index)
{
    struct cluster_item item = cluster->items[index];

    if (item.kind == CLUSTER_STORE) { /* stores answer in order */
        uint32_t first = 0;
        while (cluster->items[first].kind != CLUSTER_STORE || cluster->items[first].rank != item.rank)
            first++;
        enum gms_event_type answer = item.event.type;
        index = first;
        item = cluster->items[first];
        item.event.type = answer;
        cluster_disk_answer(cluster, item.rank, &item.event);
    }
    if (index)
        memmove(&cluster->items[index], &cluster->items[index + 1],
                (cluster->item_count - index - 1) * sizeof cluster->items[0]);
    else
        cluster->items++;
    cluster->item_count--;
    if (item.kind == CLUSTER_RING && cluster->ring_due[item.rank] == item.event.rung_round)
        cluster->ring_due[item.rank] = 0;
    cluster_step(cluster, item.rank, &item.event);
}

void cluster_settle(struct cluster *cluster)
{
    uint32_t index = 0;
    uint64_t limit = cluster->steps + 1000000 + 10000 * (uint64_t)cluster->ranks;

    while (index < cluster->item_count && !cluster->fault[0]) {
        if (cluster->held[cluster->items[index].rank] >> cluster->items[index].kind & 1) {
            index++;
            continue;
        }
        cluster_deliver(cluster, index);
        index = 0;
        if (cluster->steps > limit)
            cluster_fail(cluster, "the group does not come to rest");
    }
}

void cluster_advance(struct cluster *cluster, uint64_t ns)
{
    struct gms_event tick = {.type = GMS_EVENT_TICK};

    cluster->now_ns += ns;
    for (uint32_t r = 0; r < cluster->ranks; r++)
        if (gms_core_deadline(cluster->cores[r]) <= cluster->now_ns)
            cluster_step(cluster, r, &tick);
    cluster_settle(cluster);
}

/* ------------------------------------------------------------------------------------------------- events ----- */

uint32_t cluster_gives(const struct gms_operation_key *key, uint32_t rank, uint32_t world,
                       uint8_t ret_data[GMS_BALLOT_EXCHANGE_BYTES])
{
    memset(ret_data, 0, GMS_BALLOT_EXCHANGE_BYTES);
    if (key->kind != GMS_OPERATION_EXCHANGE)
        return 0;
    uint32_t bytes = (uint32_t)((key->incarnation * 41 + key->sequence) % (GMS_BALLOT_EXCHANGE_BYTES + 1));
    for (uint32_t i = 0; i < bytes; i++)
        ret_data[i] = (uint8_t)(key->incarnation * 7 + key->sequence * 3 + rank * 101 + (world - 1) * 13 + i);
    return bytes;
}

void cluster_ask(struct cluster *cluster, uint32_t rank, uint32_t engine, uint64_t session, uint64_t since,
                 const struct gms_proposal *proposal)
{
    struct gms_event event = {.type = GMS_EVENT_PROPOSE};

    event.propose.engine = engine;
    event.propose.session = session;
    event.propose.since = since;
    event.propose.proposal = *proposal;
    event.propose.exchange_bytes = cluster_gives(&proposal->key, rank, cluster->worlds, event.propose.exchange);
    cluster_step(cluster, rank, &event);
}

void cluster_propose(struct cluster *cluster, uint32_t rank, uint32_t engine, uint64_t session,
                     const struct gms_proposal *proposal)
{
    cluster_ask(cluster, rank, engine, session, 0, proposal);
}

void cluster_fact(struct cluster *cluster, uint32_t rank, uint32_t engine, uint64_t incarnation, enum gms_fact fact)
{
    struct gms_event event = {.type = GMS_EVENT_FACT};

    event.fact.engine = engine;
    event.fact.incarnation = incarnation;
    event.fact.fact = fact;
    cluster_step(cluster, rank, &event);
}

void cluster_session_gone(struct cluster *cluster, uint32_t rank, uint32_t engine, uint64_t session)
{
    struct gms_event event = {.type = GMS_EVENT_SESSION_GONE};

    event.session_gone.engine = engine;
    event.session_gone.session = session;
    cluster_step(cluster, rank, &event);
}

struct gms_proposal cluster_call(enum gms_operation kind, uint64_t incarnation, uint32_t sequence)
{
    struct gms_proposal proposal;

    memset(&proposal, 0, sizeof proposal);
    proposal.key.kind = (uint32_t)kind;
    proposal.key.incarnation = incarnation;
    proposal.key.sequence = sequence;
    return proposal;
}

struct gms_proposal cluster_join(uint64_t launch)
{
    struct gms_proposal proposal = cluster_call(GMS_OPERATION_JOIN, 0, 0);

    proposal.key.launch = launch;
    for (unsigned i = 0; i < GMS_PROPOSAL_FIELDS; i++)
        proposal.fields[i] = 1000 + i;
    return proposal;
}

static uint64_t name_digest(const char *name)
{
    uint64_t digest = 14695981039346656037u;

    while (*name)
        digest = (digest ^ (uint8_t)*name++) * 1099511628211u;
    return digest;
}

struct gms_proposal cluster_on_pool(enum gms_operation kind, uint64_t incarnation, uint32_t sequence, const char *pool)
{
    struct gms_proposal proposal = cluster_call(kind, incarnation, sequence);

    snprintf(proposal.pool, sizeof proposal.pool, "%s", pool);
    proposal.fields[0] = name_digest(pool);
    return proposal;
}

struct gms_proposal cluster_allocate(uint64_t incarnation, uint32_t sequence, const char *pool, uint32_t pool_kind,
                                     uint64_t slot_count, uint64_t block_bytes)
{
    struct gms_proposal proposal = cluster_on_pool(GMS_OPERATION_ALLOCATE, incarnation, sequence, pool);

    proposal.pool_kind = pool_kind;
    proposal.fields[1] = pool_kind;
    proposal.fields[2] = slot_count;
    proposal.fields[3] = block_bytes;
    return proposal;
}

struct gms_proposal cluster_adopt(uint64_t incarnation, uint32_t sequence, uint64_t epoch, uint64_t source)
{
    struct gms_proposal proposal = cluster_call(GMS_OPERATION_ADOPT, incarnation, sequence);

    proposal.fields[0] = epoch;
    proposal.fields[1] = source;
    return proposal;
}

struct gms_core_view cluster_look(const struct cluster *cluster, uint32_t rank)
{
    struct gms_core_view view;

    gms_core_look(cluster->cores[rank], &view);
    return view;
}

const struct gms_action *cluster_last(const struct cluster *cluster, uint32_t rank, enum gms_action_type type)
{
    for (uint32_t i = cluster->trace_count; i-- > 0;)
        if (cluster->trace[i].action.type == type && (rank == UINT32_MAX || cluster->trace[i].rank == rank))
            return &cluster->trace[i].action;
    return NULL;
}

uint32_t cluster_count(const struct cluster *cluster, uint32_t rank, enum gms_action_type type)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < cluster->trace_count; i++)
        count += cluster->trace[i].action.type == type && (rank == UINT32_MAX || cluster->trace[i].rank == rank);
    return count;
}

void cluster_forget_trace(struct cluster *cluster)
{
    cluster->trace_count = 0;
}
