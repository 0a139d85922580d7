/* SPDX-License-Identifier: Apache-2.0
 * What operations did on each rank: tentative, then made final on all ranks or undone on all. */
#include "checks.h"

#include <string.h>

static uint32_t find(struct cluster *cluster, uint32_t engine, const struct gms_operation_key *key)
{
    for (uint32_t i = cluster->effect_count; i-- > 0;)
        if (cluster->effects[i].engine == engine && cluster_keys_equal(&cluster->effects[i].key, key))
            return i;
    if (cluster->effect_count == CLUSTER_DECIDED) {
        cluster_fail(cluster, "more than %u operations", CLUSTER_DECIDED);
        return 0;
    }
    memset(&cluster->effects[cluster->effect_count], 0, sizeof cluster->effects[0]);
    cluster->effects[cluster->effect_count].on = &cluster->effect_room[cluster->effect_count * (size_t)cluster->ranks];
    memset(cluster->effects[cluster->effect_count].on, 0, cluster->ranks);
    cluster->effects[cluster->effect_count].engine = engine;
    cluster->effects[cluster->effect_count].key = *key;
    return cluster->effect_count++;
}

void cluster_effect_prepared(struct cluster *cluster, uint32_t rank, uint32_t engine,
                             const struct gms_operation_key *key)
{
    uint32_t at = find(cluster, engine, key);

    if (cluster->effects[at].on[rank] == CLUSTER_EFFECT_COMMITTED)
        cluster_fail(cluster, "rank %u: %s of engine %u is prepared anew after it was committed", rank,
                     gms_operation_name((enum gms_operation)key->kind), engine);
    else
        cluster->effects[at].on[rank] = CLUSTER_EFFECT_PREPARED;
}

void cluster_effect_decided(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    const struct gms_operation_key *key = &action->commit.proposal.key;
    const char *name = gms_operation_name((enum gms_operation)key->kind);
    uint32_t at = find(cluster, action->commit.engine, key);
    uint8_t *effect = &cluster->effects[at].on[rank];

    cluster->effects[at].named = true;
    if (action->type == GMS_ACTION_COMMIT && *effect == CLUSTER_EFFECT_NONE)
        cluster_fail(cluster, "rank %u: commit of %s of engine %u, of which nothing is prepared there", rank, name,
                     action->commit.engine);
    if (action->type == GMS_ACTION_ABORT && *effect == CLUSTER_EFFECT_COMMITTED)
        cluster_fail(cluster, "rank %u: abort of %s of engine %u, which was committed there", rank, name,
                     action->commit.engine);
    *effect = action->type == GMS_ACTION_COMMIT ? CLUSTER_EFFECT_COMMITTED : CLUSTER_EFFECT_NONE;
}

void cluster_forget_effects(struct cluster *cluster)
{
    cluster->effect_count = 0;
}

void cluster_check_effects(struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->effect_count; i++) {
        for (uint32_t r = 0; r < cluster->ranks; r++) {
            if (cluster->effects[i].on[r] == CLUSTER_EFFECT_PREPARED)
                cluster_fail(cluster, "rank %u: the tentative effect of a %s of engine %u was left behind", r,
                             gms_operation_name((enum gms_operation)cluster->effects[i].key.kind),
                             cluster->effects[i].engine);
            if (cluster->effects[i].on[r] != cluster->effects[i].on[0])
                cluster_fail(cluster, "a %s of engine %u is committed on one of the ranks 0 and %u only",
                             gms_operation_name((enum gms_operation)cluster->effects[i].key.kind),
                             cluster->effects[i].engine, r);
        }
    }
}
