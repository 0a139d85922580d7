/* SPDX-License-Identifier: Apache-2.0
 *
 * What must always hold, whatever was delivered in which order and whoever died. */
#include "checks.h"
#include "memory.h"

#include <stdlib.h>
#include <string.h>

#include "core/core_state.h"

bool cluster_keys_equal(const struct gms_operation_key *a, const struct gms_operation_key *b)
{
    return a->incarnation == b->incarnation && a->launch == b->launch && a->sequence == b->sequence &&
           a->kind == b->kind;
}

static uint64_t little_endian(const uint8_t *bytes, unsigned count)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < count; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

void cluster_note_store(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    const uint8_t *payload = action->store.payload;

    if (cluster->store_count == cluster->store_capacity) {
        void *more = realloc(cluster->stores, 2 * (size_t)cluster->store_capacity * sizeof cluster->stores[0]);

        if (!more) {
            cluster_fail(cluster, "no memory for more than %u records", cluster->store_capacity);
            return;
        }
        cluster->stores = more;
        cluster->store_capacity *= 2;
    }
    uint32_t at = cluster->store_count++;
    cluster->stores[at].rank = rank;
    cluster->stores[at].kind = action->store.kind;
    cluster->stores[at].ticket = action->store.ticket;
    cluster->stores[at].transaction = cluster->disks[rank].transactions;
    cluster->stores[at].stored = cluster->stores[at].failed = cluster->stores[at].inherited = false;
    cluster->stores[at].incarnation = little_endian(payload + 24, 8);
    if (action->store.bytes < 44 || action->store.bytes > GMS_STORE_PAYLOAD_BYTES)
        cluster_fail(cluster, "record of %u bytes", action->store.bytes);
    if (little_endian(payload, 8) != cluster->options.world)
        cluster_fail(cluster, "record of another world");
    memset(&cluster->stores[at].key, 0, sizeof cluster->stores[at].key);
    if (action->store.kind == GMS_STORE_PREPARED || action->store.kind == GMS_STORE_OUTCOME) {
        cluster->stores[at].key.incarnation = little_endian(payload + 44, 8);
        cluster->stores[at].key.launch = little_endian(payload + 52, 8);
        cluster->stores[at].key.sequence = (uint32_t)little_endian(payload + 60, 4);
        cluster->stores[at].key.kind = (uint32_t)little_endian(payload + 64, 4);
        if (action->store.kind == GMS_STORE_PREPARED && cluster->stores[at].key.kind == GMS_OPERATION_JOIN &&
            gms_core_takeover_busy(cluster->cores[rank]))
            cluster_fail(cluster, "rank %u: a join begins while a takeover runs", rank);
    }
}

static bool is_stored(const struct cluster *cluster, uint32_t rank, enum gms_store_kind kind, uint64_t incarnation,
                      const struct gms_operation_key *key)
{
    for (uint32_t i = cluster->store_count; i-- > 0;)
        if ((cluster->stores[i].inherited || (cluster->stores[i].stored && cluster->stores[i].rank == rank)) &&
            cluster->stores[i].kind == kind &&
            (key ? cluster_keys_equal(key, &cluster->stores[i].key) : cluster->stores[i].incarnation == incarnation))
            return true;
    return false;
}

static void must_be_stored(struct cluster *cluster, uint32_t rank, enum gms_action_type type, enum gms_store_kind kind,
                           uint64_t incarnation, const struct gms_operation_key *key)
{
    if (!is_stored(cluster, rank, kind, incarnation, key))
        cluster_fail(cluster, "rank %u: %s before its record (kind %u) is stored", rank, cluster_action_name(type),
                     (unsigned)kind);
}

/* Same key, same outcome, on every rank, also for late askers. */
static void check_outcome(struct cluster *cluster, uint32_t rank, uint32_t engine, const struct gms_outcome *outcome)
{
    for (uint32_t i = 0; i < cluster->decided_count; i++) {
        struct gms_outcome *known = &cluster->decided[i].outcome;

        if (cluster->decided[i].engine != engine || !cluster_keys_equal(&known->key, &outcome->key))
            continue;
        if (cluster->decided[i].past) {
            if (outcome->status == GMS_OK)
                cluster_fail(cluster, "rank %u: a launch of an earlier life joins, which was told %d '%s'", rank,
                             known->status, known->text);
            *known = *outcome;
            cluster->decided[i].past = false;
        }
        if (known->status != outcome->status || known->incarnation != outcome->incarnation ||
            known->epoch != outcome->epoch || known->rank != outcome->rank || known->created != outcome->created ||
            known->freed != outcome->freed || known->pool_index != outcome->pool_index ||
            known->pool_state != outcome->pool_state || known->adopted != outcome->adopted ||
            known->budget != outcome->budget || strcmp(known->text, outcome->text) != 0)
            cluster_fail(cluster, "rank %u: outcome %d '%s' but another rank was told %d '%s'", rank, outcome->status,
                         outcome->text, known->status, known->text);
        cluster_put(&cluster->decided[i].told, rank);
        return;
    }
    if (cluster->decided_count == CLUSTER_DECIDED) {
        cluster_fail(cluster, "more than %u outcomes", CLUSTER_DECIDED);
        return;
    }
    cluster->decided[cluster->decided_count].engine = engine;
    cluster->decided[cluster->decided_count].outcome = *outcome;
    memset(&cluster->decided[cluster->decided_count].told, 0, sizeof cluster->decided[0].told);
    cluster->decided[cluster->decided_count].closed = cluster->decided[cluster->decided_count].past = false;
    cluster->decided[cluster->decided_count].given = 0;
    cluster_put(&cluster->decided[cluster->decided_count++].told, rank);
}

uint32_t cluster_place(struct cluster *cluster, uint64_t incarnation)
{
    uint64_t place = (incarnation & UINT32_MAX) + (incarnation >> 32) * 128; /* a salvage jumps far */

    if (incarnation && place < CLUSTER_INCARNATIONS)
        return (uint32_t)place;
    cluster_fail(cluster, "incarnation %llu", (unsigned long long)incarnation);
    return 0;
}

/* This rank knows of nothing that forbids what it tells the engine. */
static void check_role(struct cluster *cluster, uint32_t rank, const struct gms_action *action, enum gms_role role)
{
    struct gms_core_view view = cluster_look(cluster, rank);
    const struct gms_core_engine_view *engine = &view.engines[action->promote.engine];

    if (engine->incarnation != action->promote.incarnation || engine->role != role)
        cluster_fail(cluster, "rank %u: %s for incarnation %llu, but the slot holds %llu in role %d", rank,
                     cluster_action_name(action->type), (unsigned long long)action->promote.incarnation,
                     (unsigned long long)engine->incarnation, engine->role);
}

static void check_promote(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    uint64_t incarnation = action->promote.incarnation;
    uint32_t own = cluster_place(cluster, incarnation);

    must_be_stored(cluster, rank, action->type, GMS_STORE_EPOCH, incarnation, NULL);
    check_role(cluster, rank, action, GMS_ROLE_PROMOTED);
    for (uint32_t i = 1; i < CLUSTER_INCARNATIONS; i++) {
        if (i == own || !cluster->incarnations[i].promoted)
            continue;
        if (!cluster_has_all(&cluster->incarnations[i].retired, cluster->ranks))
            cluster_fail(cluster, "rank %u: incarnation %llu promoted before another (%u) is retired on all ranks",
                         rank, (unsigned long long)incarnation, i);
        if (cluster->incarnations[i].epoch >= action->promote.epoch)
            cluster_fail(cluster, "rank %u: incarnation %llu promoted under an epoch that was used", rank,
                         (unsigned long long)incarnation);
    }
    if (action->promote.source && !cluster_has_all(&cluster->incarnations[own].classified, cluster->ranks))
        cluster_fail(cluster, "rank %u: incarnation %llu promoted before it is classified on all ranks", rank,
                     (unsigned long long)incarnation);
    if (cluster->incarnations[own].promoted && (cluster->incarnations[own].epoch != action->promote.epoch ||
                                                cluster->incarnations[own].source != action->promote.source))
        cluster_fail(cluster, "rank %u: incarnation %llu promoted with another epoch or source than elsewhere", rank,
                     (unsigned long long)incarnation);
    cluster->incarnations[own].promoted = true;
    cluster->incarnations[own].epoch = action->promote.epoch;
    cluster->incarnations[own].source = action->promote.source;
}

static void check_serving(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    must_be_stored(cluster, rank, action->type, GMS_STORE_SERVING, action->promote.incarnation, NULL);
    check_role(cluster, rank, action, GMS_ROLE_SERVING);
    for (uint32_t i = 0; i < cluster->served_count; i++) {
        if (cluster->served[i].epoch != action->promote.epoch)
            continue;
        if (cluster->served[i].incarnation != action->promote.incarnation)
            cluster_fail(cluster, "rank %u: two serve in epoch %llu", rank, (unsigned long long)action->promote.epoch);
        return;
    }
    if (cluster->served_count == CLUSTER_INCARNATIONS) {
        cluster_fail(cluster, "too many epochs");
        return;
    }
    cluster->served[cluster->served_count].epoch = action->promote.epoch;
    cluster->served[cluster->served_count++].incarnation = action->promote.incarnation;
}

static void check_ballot(struct cluster *cluster, uint32_t rank, const struct gms_ballot *ballot)
{
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++)
        if (ballot->proposals[e].prepared)
            must_be_stored(cluster, rank, GMS_ACTION_ENTER_ROUND, GMS_STORE_PREPARED, 0, &ballot->proposals[e].least);
}

/* A transfer has one end, whoever asks and in whichever world. */
static void check_done(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    uint64_t known = cluster->done_count < CLUSTER_DONE ? cluster->done_count : CLUSTER_DONE;

    if (action->transfer.status != GMS_OK)
        return;
    for (uint64_t i = 0; i < known; i++) {
        if (cluster->done[i].incarnation != action->transfer.incarnation || cluster->done[i].id != action->transfer.id)
            continue;
        if (cluster->done[i].finished != action->transfer.finished ||
            cluster->done[i].failed != action->transfer.failed ||
            cluster->done[i].first_failed != action->transfer.first_failed)
            cluster_fail(cluster, "rank %u: %s; another rank was told that %u finished and %u failed", rank,
                         action->transfer.text, cluster->done[i].finished, cluster->done[i].failed);
        return;
    }
    uint64_t at = cluster->done_count++ % CLUSTER_DONE;
    cluster->done[at].incarnation = action->transfer.incarnation;
    cluster->done[at].id = action->transfer.id;
    cluster->done[at].finished = action->transfer.finished;
    cluster->done[at].failed = action->transfer.failed;
    cluster->done[at].first_failed = action->transfer.first_failed;
}

static void told(struct cluster *cluster, uint64_t epoch, uint64_t incarnation)
{
    if (epoch > cluster->told_epoch)
        cluster->told_epoch = epoch;
    if (incarnation > cluster->told_incarnation)
        cluster->told_incarnation = incarnation;
}

/* Is this what rank 0 gave to the call in that world? */
static bool is_given(const struct gms_operation_key *key, uint32_t world, const uint8_t *data, uint32_t bytes)
{
    uint8_t given[GMS_BALLOT_EXCHANGE_BYTES];

    return cluster_gives(key, 0, world, given) == bytes && memcmp(data, given, bytes) == 0;
}

/* Everybody has what rank 0 gave to this very call, the same everywhere, and may be given it now. */
static void check_exchange(struct cluster *cluster, uint32_t rank, const struct gms_operation_key *key)
{
    const uint8_t *data = NULL;
    uint32_t bytes = 0, world = cluster->worlds, *told = NULL;

    if (!gms_core_look_exchange(cluster->cores[rank], key->incarnation, key->sequence, &data, &bytes)) {
        cluster_fail(cluster, "rank %u: exchange of incarnation %llu call %u succeeded, and what rank 0 gave is gone",
                     rank, (unsigned long long)key->incarnation, key->sequence);
        return;
    }
    for (uint32_t i = cluster->decided_count; i-- > 0 && !told;)
        if (cluster_keys_equal(&cluster->decided[i].outcome.key, key))
            told = &cluster->decided[i].given;
    if (told && *told)
        world = *told;
    else
        while (world > 1 && !is_given(key, world, data, bytes))
            world--;
    if (!is_given(key, world, data, bytes))
        cluster_fail(cluster,
                     "rank %u: exchange of incarnation %llu call %u: %u bytes that rank 0 did not give to it%s", rank,
                     (unsigned long long)key->incarnation, key->sequence, bytes,
                     told && *told ? ", or that others were not told" : "");
    if (told)
        *told = world;
}

static void check_reply(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    const struct gms_outcome *outcome = &action->reply.outcome;

    if (outcome->status == GMS_OK)
        must_be_stored(cluster, rank, action->type, GMS_STORE_OUTCOME, 0, &outcome->key);
    if (!action->reply.session)
        cluster_fail(cluster, "rank %u: reply to nobody", rank);
    if (outcome->status == GMS_OK)
        told(cluster, outcome->epoch, outcome->incarnation);
    if (outcome->status == GMS_OK && outcome->key.kind == GMS_OPERATION_EXCHANGE)
        check_exchange(cluster, rank, &outcome->key);
    for (uint32_t i = 0; i < cluster->decided_count; i++)
        if (cluster_keys_equal(&cluster->decided[i].outcome.key, &outcome->key) &&
            (cluster->decided[i].outcome.status == GMS_OK) != (outcome->status == GMS_OK) &&
            outcome->status != GMS_E_CONDEMNED && outcome->status != GMS_E_STALE)
            cluster_fail(cluster, "rank %u: reply %d '%s' to what was decided as %d", rank, outcome->status,
                         outcome->text, cluster->decided[i].outcome.status);
}

/* Did a call of this engine before `key` agree the budget, which then stands while it warms up? */
static bool has_promise(const struct cluster *cluster, const struct gms_operation_key *key)
{
    for (uint32_t i = 0; i < cluster->decided_count; i++) {
        const struct gms_outcome *known = &cluster->decided[i].outcome;
        if ((known->key.kind == GMS_OPERATION_BUDGET || known->key.kind == GMS_OPERATION_ALLOCATE) &&
            known->status == GMS_OK && known->key.incarnation == key->incarnation &&
            known->key.sequence < key->sequence)
            return true;
    }
    return false;
}

/* A kv pool is refused by the very number that its engine was told, whoever else asked or ended meanwhile. */
static void check_refused_pool(struct cluster *cluster, uint32_t rank, const struct gms_outcome *outcome)
{
    static const char words[] = "free of the kv budget of ";
    const char *text = strstr(outcome->text, words);

    for (uint32_t i = 0; i < cluster->decided_count && text; i++) {
        const struct gms_outcome *known = &cluster->decided[i].outcome;
        if (known->key.kind == GMS_OPERATION_BUDGET && known->status == GMS_OK &&
            known->key.incarnation == outcome->key.incarnation &&
            known->budget != strtoull(text + sizeof words - 1, NULL, 10))
            cluster_fail(cluster, "rank %u: told %llu bytes, and then: %s", rank, (unsigned long long)known->budget,
                         outcome->text);
    }
}

/* No rank is told that it may use more than it has, nor does the group keep more. */
static void check_budget(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    const struct gms_core *core = cluster->cores[rank];
    uint64_t own = action->commit.proposal.fields[GMS_BUDGET_FIELD_HERE], told_bytes = action->commit.outcome.budget;

    if (told_bytes > own && core->budget.incarnation == action->commit.outcome.key.incarnation &&
        !gms_core_pool_kv_bytes(core) && !has_promise(cluster, &action->commit.outcome.key))
        cluster_fail(cluster, "rank %u has %llu bytes for kv pools and was told %llu", rank, (unsigned long long)own,
                     (unsigned long long)told_bytes);
}

void cluster_check_action(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    switch (action->type) {
    case GMS_ACTION_ENTER_ROUND:
        check_ballot(cluster, rank, action->ballot);
        break;
    case GMS_ACTION_PREPARE:
        must_be_stored(cluster, rank, action->type, GMS_STORE_PREPARED, 0, &action->prepare.proposal.key);
        break;
    case GMS_ACTION_COMMIT:
    case GMS_ACTION_ABORT:
        if ((action->type == GMS_ACTION_COMMIT) != (action->commit.outcome.status == GMS_OK))
            cluster_fail(cluster, "rank %u: commit of a failure, or abort of a success", rank);
        if (action->commit.outcome.status == GMS_E_AGAIN)
            break; /* undone by a restore: nothing was decided */
        must_be_stored(cluster, rank, action->type, GMS_STORE_OUTCOME, 0, &action->commit.outcome.key);
        check_outcome(cluster, rank, action->commit.engine, &action->commit.outcome);
        if (action->type == GMS_ACTION_COMMIT && action->commit.outcome.key.kind == GMS_OPERATION_BUDGET)
            check_budget(cluster, rank, action);
        if (action->commit.outcome.status == GMS_E_NO_CAPACITY)
            check_refused_pool(cluster, rank, &action->commit.outcome);
        told(cluster, action->commit.outcome.epoch, action->commit.outcome.incarnation);
        break;
    case GMS_ACTION_REPLY:
        check_reply(cluster, rank, action);
        break;
    case GMS_ACTION_FENCE:
        must_be_stored(cluster, rank, action->type, GMS_STORE_CONDEMNED, action->fence.incarnation, NULL);
        cluster->incarnations[cluster_place(cluster, action->fence.incarnation)].condemned = true;
        break;
    case GMS_ACTION_CLASSIFY:
        if (!cluster_has(&cluster->incarnations[cluster_place(cluster, action->classify.source)].retired, rank))
            cluster_fail(cluster, "rank %u: classify of %llu, which is not retired there", rank,
                         (unsigned long long)action->classify.source);
        break;
    case GMS_ACTION_PROMOTE:
        check_promote(cluster, rank, action);
        told(cluster, action->promote.epoch, 0);
        break;
    case GMS_ACTION_SERVING:
        check_serving(cluster, rank, action);
        told(cluster, action->promote.epoch, 0);
        break;
    case GMS_ACTION_CONDEMNED:
        must_be_stored(cluster, rank, action->type, GMS_STORE_CONDEMNED, action->promote.incarnation, NULL);
        told(cluster, action->promote.epoch, 0);
        break;
    case GMS_ACTION_TRANSFER_DONE:
        check_done(cluster, rank, action);
        break;
    case GMS_ACTION_STORE:
    case GMS_ACTION_RING:
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

void cluster_check_event(struct cluster *cluster, uint32_t rank, const struct gms_event *event)
{
    uint32_t place;

    if (event->type != GMS_EVENT_FACT)
        return;
    if (event->fact.fact != GMS_FACT_RETIRED && event->fact.fact != GMS_FACT_CLASSIFIED)
        return;
    place = cluster_place(cluster, event->fact.incarnation);
    if (event->fact.fact == GMS_FACT_RETIRED)
        cluster_memory_retired(cluster, rank, event->fact.incarnation);
    if (event->fact.fact == GMS_FACT_RETIRED)
        cluster_put(&cluster->incarnations[place].retired, rank);
    else
        cluster_put(&cluster->incarnations[place].classified, rank);
}

/* Ranks before the same round have the same state: each is compared with the first that came so far. */
void cluster_check_digest(struct cluster *cluster, uint32_t rank)
{
    struct gms_core_view view, *first;

    gms_core_look(cluster->cores[rank], &view);
    if (view.epoch < cluster->last_epoch[rank])
        cluster_fail(cluster, "rank %u: the epoch fell from %llu to %llu", rank,
                     (unsigned long long)cluster->last_epoch[rank], (unsigned long long)view.epoch);
    cluster->last_epoch[rank] = view.epoch;
    struct gms_budget budget;
    if (gms_core_look_budget(cluster->cores[rank], &budget) &&
        gms_core_pool_kv_bytes(cluster->cores[rank]) > budget.bytes)
        cluster_fail(cluster, "rank %u: kv pools have %llu bytes, the budget is %llu", rank,
                     (unsigned long long)gms_core_pool_kv_bytes(cluster->cores[rank]),
                     (unsigned long long)budget.bytes);
    first = &cluster->views[view.next_round % CLUSTER_ROUNDS];
    if (first->world != view.world || first->next_round != view.next_round)
        *first = view;
    else if (memcmp(first, &view, sizeof view) != 0)
        cluster_fail(cluster, "rank %u differs from another in state before round %llu", rank,
                     (unsigned long long)view.next_round);
}

/* ------------------------------------------------------------------------------------------------- worlds ----- */

static enum gms_role role_of(const struct gms_core_view *view, uint32_t place, struct cluster *cluster)
{
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++)
        if (view->engines[e].incarnation && cluster_place(cluster, view->engines[e].incarnation) == place)
            return view->engines[e].role;
    return GMS_ROLE_EMPTY;
}

void cluster_check_restored(struct cluster *cluster)
{
    struct gms_core_view view = cluster_look(cluster, 0);

    if (view.epoch < cluster->told_epoch)
        cluster_fail(cluster, "epoch %llu was told, the restored group is at %llu",
                     (unsigned long long)cluster->told_epoch, (unsigned long long)view.epoch);
    if (cluster->cores[0]->incarnations < cluster->told_incarnation)
        cluster_fail(cluster, "incarnation %llu was told, the restored group has given %llu",
                     (unsigned long long)cluster->told_incarnation,
                     (unsigned long long)cluster->cores[0]->incarnations);
    for (uint32_t place = 1; place < CLUSTER_INCARNATIONS; place++) {
        enum gms_role role = role_of(&view, place, cluster);

        if (cluster->incarnations[place].condemned && role != GMS_ROLE_CONDEMNED && role != GMS_ROLE_EMPTY)
            cluster_fail(cluster, "incarnation %u is condemned and came back in role %d", place, role);
        if (cluster->incarnations[place].promoted && !cluster->incarnations[place].condemned &&
            role != GMS_ROLE_PROMOTED && role != GMS_ROLE_SERVING && role != GMS_ROLE_CONDEMNED)
            cluster_fail(cluster, "incarnation %u was promoted and came back in role %d", place, role);
    }
    for (uint32_t i = 0; i < cluster->decided_count; i++) {
        const struct gms_operation_key *key = &cluster->decided[i].outcome.key;
        const struct gms_core_engine_view *slot = &view.engines[cluster->decided[i].engine];

        if (key->incarnation && key->incarnation == slot->incarnation && key->sequence >= slot->next_sequence)
            cluster_fail(cluster, "call %u of incarnation %llu was decided, the restored group waits for call %u",
                         key->sequence, (unsigned long long)key->incarnation, slot->next_sequence);
    }
}
