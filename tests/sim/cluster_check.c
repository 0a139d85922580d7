/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster_check.h"

#include <string.h>

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
        cluster_fail(cluster, "more than %u records", cluster->store_capacity);
        return;
    }
    uint32_t at = cluster->store_count++;
    cluster->stores[at].rank = rank;
    cluster->stores[at].kind = action->store.kind;
    cluster->stores[at].ticket = action->store.ticket;
    cluster->stores[at].stored = false;
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
    }
}

static bool is_stored(const struct cluster *cluster, uint32_t rank, enum gms_store_kind kind, uint64_t incarnation,
                      const struct gms_operation_key *key)
{
    for (uint32_t i = cluster->store_count; i-- > 0;)
        if (cluster->stores[i].stored && cluster->stores[i].rank == rank && cluster->stores[i].kind == kind &&
            (key ? cluster_keys_equal(key, &cluster->stores[i].key) : cluster->stores[i].incarnation == incarnation))
            return true;
    return false;
}

void cluster_must_be_stored(struct cluster *cluster, uint32_t rank, enum gms_action_type type, enum gms_store_kind kind,
                            uint64_t incarnation, const struct gms_operation_key *key)
{
    if (!is_stored(cluster, rank, kind, incarnation, key))
        cluster_fail(cluster, "rank %u: %s before its record (kind %u) is stored", rank, cluster_action_name(type),
                     (unsigned)kind);
}

/* Same key, same outcome, on every rank, also for late askers. */
void cluster_check_outcome(struct cluster *cluster, uint32_t rank, uint32_t engine, const struct gms_outcome *outcome)
{
    for (uint32_t i = 0; i < cluster->decided_count; i++) {
        struct gms_outcome *known = &cluster->decided[i].outcome;

        if (cluster->decided[i].engine != engine || !cluster_keys_equal(&known->key, &outcome->key))
            continue;
        if (known->status != outcome->status || known->incarnation != outcome->incarnation ||
            known->epoch != outcome->epoch || known->rank != outcome->rank || known->created != outcome->created ||
            known->freed != outcome->freed || known->pool_index != outcome->pool_index ||
            known->pool_state != outcome->pool_state || known->adopted != outcome->adopted ||
            strcmp(known->text, outcome->text) != 0)
            cluster_fail(cluster, "rank %u: outcome %d '%s' but another rank was told %d '%s'", rank, outcome->status,
                         outcome->text, known->status, known->text);
        cluster->decided[i].told_ranks |= UINT64_C(1) << rank;
        return;
    }
    if (cluster->decided_count == CLUSTER_DECIDED) {
        cluster_fail(cluster, "more than %u outcomes", CLUSTER_DECIDED);
        return;
    }
    cluster->decided[cluster->decided_count].engine = engine;
    cluster->decided[cluster->decided_count].outcome = *outcome;
    cluster->decided[cluster->decided_count++].told_ranks = UINT64_C(1) << rank;
}

bool cluster_incarnation_fits(struct cluster *cluster, uint64_t incarnation, uint32_t engine)
{
    if (!incarnation || incarnation >= CLUSTER_INCARNATIONS) {
        cluster_fail(cluster, "incarnation %llu", (unsigned long long)incarnation);
        return false;
    }
    cluster->incarnations[incarnation].used = true;
    cluster->incarnations[incarnation].engine = engine;
    return true;
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

void cluster_check_promote(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    uint64_t everyone = (UINT64_C(1) << cluster->ranks) - 1, incarnation = action->promote.incarnation;

    cluster_must_be_stored(cluster, rank, action->type, GMS_STORE_EPOCH, incarnation, NULL);
    check_role(cluster, rank, action, GMS_ROLE_PROMOTED);
    if (!cluster_incarnation_fits(cluster, incarnation, action->promote.engine))
        return;
    for (uint64_t i = 1; i < CLUSTER_INCARNATIONS; i++) {
        if (i == incarnation || !cluster->incarnations[i].promoted)
            continue;
        if (cluster->incarnations[i].retired_ranks != everyone)
            cluster_fail(cluster, "rank %u: incarnation %llu promoted before %llu is retired on all ranks", rank,
                         (unsigned long long)incarnation, (unsigned long long)i);
        if (cluster->incarnations[i].epoch >= action->promote.epoch)
            cluster_fail(cluster, "rank %u: incarnation %llu promoted under an epoch that was used", rank,
                         (unsigned long long)incarnation);
    }
    if (action->promote.source && cluster->incarnations[incarnation].classified_ranks != everyone)
        cluster_fail(cluster, "rank %u: incarnation %llu promoted before it is classified on all ranks", rank,
                     (unsigned long long)incarnation);
    if (cluster->incarnations[incarnation].promoted &&
        (cluster->incarnations[incarnation].epoch != action->promote.epoch ||
         cluster->incarnations[incarnation].source != action->promote.source))
        cluster_fail(cluster, "rank %u: incarnation %llu promoted with another epoch or source than elsewhere", rank,
                     (unsigned long long)incarnation);
    cluster->incarnations[incarnation].promoted = true;
    cluster->incarnations[incarnation].epoch = action->promote.epoch;
    cluster->incarnations[incarnation].source = action->promote.source;
}

void cluster_check_serving(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    cluster_must_be_stored(cluster, rank, action->type, GMS_STORE_SERVING, action->promote.incarnation, NULL);
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

void cluster_check_ballot(struct cluster *cluster, uint32_t rank, const struct gms_ballot *ballot)
{
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++)
        if (ballot->proposals[e].prepared)
            cluster_must_be_stored(cluster, rank, GMS_ACTION_ENTER_ROUND, GMS_STORE_PREPARED, 0,
                                   &ballot->proposals[e].least);
}

/* The same state after the same round; ranks are at most one round apart. */
void cluster_check_digest(struct cluster *cluster, uint32_t rank)
{
    struct gms_core_view view;

    gms_core_look(cluster->cores[rank], &view);
    cluster->digests[rank][view.next_round % CLUSTER_ROUNDS] = view.state_digest;
    for (uint32_t r = 0; r < cluster->ranks; r++) {
        struct gms_core_view other;

        gms_core_look(cluster->cores[r], &other);
        if (other.next_round != view.next_round)
            continue;
        if (other.state_digest != view.state_digest || other.epoch != view.epoch || other.takeover != view.takeover ||
            other.serving_engine != view.serving_engine || other.writer_incarnation != view.writer_incarnation)
            cluster_fail(cluster, "ranks %u and %u differ in state before round %llu", rank, r,
                         (unsigned long long)view.next_round);
    }
}
