/* SPDX-License-Identifier: Apache-2.0
 *
 * The group's pools (replicated).
 *
 *   ABSENT --allocate kv--> READY
 *   ABSENT --allocate weights--> UNPUBLISHED --publish by its creator--> READY
 *   UNPUBLISHED, creator condemned or gone --allocate--> UNPUBLISHED, anew
 *   any --released by the last that has it attached--> ABSENT
 *
 * One operation at a time may create, publish or release a pool; attaching may overlap with attaching.
 */
#include "core/core_state.h"

#include <string.h>

enum { FIELD_NAME = 0, FIELD_KIND = 1, FIELD_SLOTS = 2, FIELD_BLOCK_BYTES = 3, POOL_FIELDS = 4 };

static bool exists(const struct gms_core_pool *pool)
{
    return pool->state != GMS_POOL_ABSENT || pool->reserved;
}

uint32_t gms_core_pool_find(const struct gms_core *core, uint64_t name_digest)
{
    for (uint32_t i = 0; i < GMS_CORE_MAX_POOLS; i++)
        if (exists(&core->pools[i]) && core->pools[i].fields[FIELD_NAME] == name_digest)
            return i;
    return GMS_CORE_NO_POOL;
}

uint64_t gms_core_pool_kv_bytes(const struct gms_core *core)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < GMS_CORE_MAX_POOLS; i++)
        if (exists(&core->pools[i]) && core->pools[i].fields[FIELD_KIND] == GMS_POOL_KV)
            bytes += core->pools[i].fields[FIELD_SLOTS] * core->pools[i].fields[FIELD_BLOCK_BYTES];
    return bytes;
}

static uint32_t find_free(const struct gms_core *core)
{
    for (uint32_t i = 0; i < GMS_CORE_MAX_POOLS; i++)
        if (!exists(&core->pools[i]))
            return i;
    return GMS_CORE_NO_POOL;
}

static bool creator_lives(const struct gms_core *core, uint64_t creator)
{
    for (unsigned e = 0; e < GMS_MAX_ENGINES; e++)
        if (core->engines[e].incarnation == creator)
            return core->engines[e].role != GMS_ROLE_CONDEMNED;
    return false;
}

struct gms_text gms_core_refusal(struct gms_outcome *outcome, uint32_t engine, gms_status status)
{
    struct gms_text text = gms_text_begin(outcome->text, sizeof outcome->text);

    outcome->status = status;
    gms_text_operation(&text, engine, &outcome->key);
    gms_text_add(&text, ": ");
    return text;
}

static void text_pool(struct gms_text *text, const struct gms_core_pool *pool)
{
    gms_text_add(text, "pool ");
    gms_text_name(text, pool->name, sizeof pool->name);
}

/* Every rank asked, so every rank has the proposal and knows the pool's name. */
static void text_asked(struct gms_text *text, const struct gms_core *core, uint32_t engine)
{
    gms_text_add(text, "pool ");
    gms_text_name(text, core->engines[engine].pending.proposal.pool, GMS_NAME_BYTES);
}

/* A new pool, or one that is made anew: a kv pool as far as all ranks can spare it. */
static gms_status start_create(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged,
                               struct gms_core_operation *operation, struct gms_outcome *outcome)
{
    operation->create = true;
    return merged->fields[FIELD_KIND].least == GMS_POOL_KV ? gms_core_budget_allows(core, engine, merged, outcome)
                                                           : GMS_OK;
}

static gms_status start_allocate(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged,
                                 struct gms_core_operation *operation, struct gms_outcome *outcome)
{
    uint64_t incarnation = core->engines[engine].incarnation;

    if (operation->pool == GMS_CORE_NO_POOL) {
        operation->pool = find_free(core);
        if (operation->pool != GMS_CORE_NO_POOL)
            return start_create(core, engine, merged, operation, outcome);
        struct gms_text text = gms_core_refusal(outcome, engine, GMS_E_NO_CAPACITY);
        gms_text_count(&text, "the group has ", GMS_CORE_MAX_POOLS);
        gms_text_add(&text, " pools, which is the limit; release one");
        return outcome->status;
    }

    const struct gms_core_pool *pool = &core->pools[operation->pool];
    if (pool->exclusive_mask)
        return GMS_E_NOT_DONE;
    if (pool->state == GMS_POOL_UNPUBLISHED && !creator_lives(core, pool->creator)) {
        if (pool->shared_mask)
            return GMS_E_NOT_DONE;
        /* Whatever the dead left in it is void, its shape too. */
        return start_create(core, engine, merged, operation, outcome);
    }
    for (uint32_t i = FIELD_KIND; i < POOL_FIELDS; i++) {
        if (pool->fields[i] == merged->fields[i].least)
            continue;
        struct gms_text text = gms_core_refusal(outcome, engine, GMS_E_MISMATCH);
        text_pool(&text, pool);
        gms_text_add(&text, " has ");
        gms_text_add(&text, gms_operation_field_name(GMS_OPERATION_ALLOCATE, i));
        gms_text_count(&text, " ", pool->fields[i]);
        gms_text_count(&text, ", asked was ", merged->fields[i].least);
        return outcome->status;
    }
    if (pool->state == GMS_POOL_UNPUBLISHED && pool->creator != incarnation) {
        struct gms_text text = gms_core_refusal(outcome, engine, GMS_E_BUSY);
        text_pool(&text, pool);
        gms_text_count(&text, " is being published by incarnation ", pool->creator);
        gms_text_add(&text, ", ask again");
        return outcome->status;
    }
    operation->create = false;
    return GMS_OK;
}

gms_status gms_core_pool_start(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged,
                               struct gms_core_operation *operation, struct gms_outcome *outcome)
{
    enum gms_operation kind = (enum gms_operation)operation->key.kind;

    operation->pool = gms_core_pool_find(core, merged->fields[FIELD_NAME].least);
    if (kind == GMS_OPERATION_ALLOCATE)
        return start_allocate(core, engine, merged, operation, outcome);

    if (operation->pool == GMS_CORE_NO_POOL) {
        struct gms_text text = gms_core_refusal(outcome, engine, GMS_E_NOT_FOUND);
        gms_text_add(&text, "the group has no ");
        text_asked(&text, core, engine);
        return outcome->status;
    }
    const struct gms_core_pool *pool = &core->pools[operation->pool];
    if (pool->exclusive_mask || pool->shared_mask)
        return GMS_E_NOT_DONE;
    if (!(pool->attached_mask & (1u << engine))) {
        struct gms_text text = gms_core_refusal(outcome, engine, GMS_E_REFUSED);
        text_pool(&text, pool);
        gms_text_add(&text, " is not attached by this engine; attach it first");
        return outcome->status;
    }
    if (kind == GMS_OPERATION_PUBLISH &&
        (pool->state != GMS_POOL_UNPUBLISHED || pool->creator != core->engines[engine].incarnation)) {
        struct gms_text text = gms_core_refusal(outcome, engine, GMS_E_REFUSED);
        text_pool(&text, pool);
        gms_text_add(&text, pool->state == GMS_POOL_UNPUBLISHED ? " is to be published by its creator, incarnation "
                                                                : " is published already or is no weights pool; "
                                                                  "created by incarnation ");
        gms_text_u64(&text, pool->creator);
        return outcome->status;
    }
    return GMS_OK;
}

void gms_core_pool_reserve(struct gms_core *core, uint32_t engine, const struct gms_proposal *proposal,
                           struct gms_core_operation *operation)
{
    struct gms_core_pool *pool = &core->pools[operation->pool];

    if (operation->key.kind == GMS_OPERATION_ALLOCATE && !operation->create) {
        pool->shared_mask |= 1u << engine;
        return;
    }
    pool->exclusive_mask = 1u << engine;
    if (!operation->create || exists(pool))
        return;
    memset(pool, 0, sizeof *pool);
    pool->reserved = true;
    pool->exclusive_mask = 1u << engine;
    memcpy(pool->name, proposal->pool, sizeof pool->name);
    memcpy(pool->fields, proposal->fields, sizeof pool->fields);
}

static void report(const struct gms_core_pool *pool, uint32_t index, struct gms_outcome *outcome)
{
    outcome->pool_index = index;
    outcome->pool_creator = pool->creator;
    outcome->pool_state = pool->state;
}

void gms_core_pool_commit(struct gms_core *core, uint32_t engine, struct gms_outcome *outcome)
{
    const struct gms_core_engine *slot = &core->engines[engine];
    const struct gms_core_operation *operation = &slot->operation;
    const struct gms_proposal *proposal = &slot->pending.proposal;
    struct gms_core_pool *pool = &core->pools[operation->pool];

    switch ((enum gms_operation)operation->key.kind) {
    case GMS_OPERATION_ALLOCATE:
        if (operation->create) {
            pool->reserved = false;
            pool->kind = proposal->pool_kind;
            pool->state = proposal->pool_kind == GMS_POOL_WEIGHTS ? GMS_POOL_UNPUBLISHED : GMS_POOL_READY;
            pool->creator = slot->incarnation;
            pool->attached_mask = 0;
            memcpy(pool->fields, proposal->fields, sizeof pool->fields);
        }
        pool->attached_mask |= 1u << engine;
        outcome->created = operation->create;
        report(pool, operation->pool, outcome);
        break;
    case GMS_OPERATION_PUBLISH:
        pool->state = GMS_POOL_READY;
        report(pool, operation->pool, outcome);
        break;
    case GMS_OPERATION_RELEASE:
        pool->attached_mask &= ~(1u << engine);
        outcome->freed = !pool->attached_mask;
        report(pool, operation->pool, outcome);
        if (outcome->freed) {
            outcome->pool_state = GMS_POOL_ABSENT;
            memset(pool, 0, sizeof *pool);
        }
        break;
    case GMS_OPERATION_NONE:
    case GMS_OPERATION_JOIN:
    case GMS_OPERATION_ADOPT:
    case GMS_OPERATION_TAKEOVER:
    case GMS_OPERATION_RECLAIM:
    case GMS_OPERATION_EXCHANGE:
    case GMS_OPERATION_BUDGET:
    case GMS_OPERATION_COUNT:
        break;
    }
    gms_core_mix(core, ((uint64_t)operation->pool << 32) | (uint64_t)pool->state);
    gms_core_mix(core, ((uint64_t)pool->attached_mask << 32) | pool->kind);
    gms_core_mix(core, pool->creator);
}

void gms_core_pool_unlock(struct gms_core *core, uint32_t engine)
{
    for (uint32_t i = 0; i < GMS_CORE_MAX_POOLS; i++) {
        struct gms_core_pool *pool = &core->pools[i];

        pool->shared_mask &= ~(1u << engine);
        if (!(pool->exclusive_mask & (1u << engine)))
            continue;
        pool->exclusive_mask = 0;
        if (pool->reserved) /* its creation failed */
            memset(pool, 0, sizeof *pool);
    }
}

/* An engine's end detaches it; the pools are the group's and stay. */
void gms_core_pool_retired(struct gms_core *core, uint32_t engine)
{
    for (uint32_t i = 0; i < GMS_CORE_MAX_POOLS; i++)
        core->pools[i].attached_mask &= ~(1u << engine);
}

bool gms_core_pool_any(const struct gms_core *core)
{
    for (uint32_t i = 0; i < GMS_CORE_MAX_POOLS; i++)
        if (exists(&core->pools[i]))
            return true;
    return false;
}
