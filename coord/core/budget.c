/* SPDX-License-Identifier: Apache-2.0 */
#include "core/core_state.h"

/* ---------------------------------------------------------------------------------------------- one rank ------ */

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

uint64_t gms_budget_here(const struct gms_budget_inputs *inputs)
{
    uint64_t each = inputs->measured_bytes ? inputs->measured_bytes : inputs->reserve_bytes;
    uint64_t held = inputs->weights_bytes, bytes = UINT64_MAX;

    for (uint32_t i = 0; i < inputs->shadows; i++)
        held = add(held, each);
    if (inputs->total_bytes) {
        uint64_t left = inputs->total_bytes > held ? inputs->total_bytes - held : 0;

        bytes = left / 100 * inputs->percent + left % 100 * inputs->percent / 100;
    }
    if (inputs->capacity_bytes < bytes)
        bytes = inputs->capacity_bytes;
    if (bytes == UINT64_MAX)
        return bytes;
    if (inputs->granularity_bytes)
        bytes -= bytes % inputs->granularity_bytes;
    return bytes ? bytes : 1;
}

/* ------------------------------------------------------------------------------------------------- the group --- */

/* Does anybody know of a limit? */
static bool is_known(const struct gms_budget *budget)
{
    return budget->bytes && budget->bytes != UINT64_MAX;
}

/* Was this incarnation told the number? Its call is among those whose outcomes are kept. */
static bool was_told(const struct gms_core_engine *slot)
{
    for (uint32_t i = 0; i < GMS_CORE_OUTCOMES; i++) {
        const struct gms_outcome *outcome = &slot->decided[i].outcome;

        if (outcome->key.kind == GMS_OPERATION_BUDGET && outcome->key.incarnation == slot->incarnation &&
            outcome->status == GMS_OK)
            return true;
    }
    return false;
}

/* Somebody who was told the number is warming up, and may yet make its pools by it. */
static bool is_promised(const struct gms_core *core)
{
    for (uint32_t i = 0; i < GMS_MAX_ENGINES; i++) {
        const struct gms_core_engine *slot = &core->engines[i];

        if (slot->role == GMS_ROLE_JOINED && (slot->incarnation == core->budget.incarnation || was_told(slot)))
            return true;
    }
    return false;
}

/* A pool is there, or being made or to be made, that is allowed by what was agreed: nothing else holds as long as it
 * is. Two engines that start at once are therefore told the same, and make one pool. */
static bool stands(const struct gms_core *core)
{
    return core->budget.bytes && (gms_core_pool_kv_bytes(core) || is_promised(core));
}

static struct gms_budget said_now(const struct gms_core *core, uint32_t engine, const struct gms_digest_pair *said)
{
    struct gms_budget budget = {
        .bytes = said->least, .incarnation = core->engines[engine].incarnation, .rank = said->least_rank};

    return is_known(&budget) ? budget : (struct gms_budget){0};
}

gms_status gms_core_budget_start(const struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged,
                                 struct gms_core_operation *operation, struct gms_outcome *outcome)
{
    operation->budget = said_now(core, engine, &merged->fields[GMS_BUDGET_FIELD_HERE]);
    if (operation->budget.bytes || stands(core))
        return GMS_OK;
    struct gms_text text = gms_core_refusal(outcome, engine, GMS_E_UNSUPPORTED);
    gms_text_add(&text, "no rank knows how much memory it has");
    return outcome->status;
}

void gms_core_budget_commit(struct gms_core *core, const struct gms_core_operation *operation,
                            struct gms_outcome *outcome)
{
    if (!stands(core)) {
        core->budget = operation->budget;
        gms_core_mix(core, core->budget.bytes);
        gms_core_mix(core, core->budget.incarnation);
    }
    outcome->budget = core->budget.bytes;
}

gms_status gms_core_budget_allows(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged,
                                  struct gms_outcome *outcome)
{
    uint64_t slots = merged->fields[2].least, block_bytes = merged->fields[3].least; /* equal on all ranks */
    uint64_t asked = block_bytes && slots > UINT64_MAX / block_bytes ? UINT64_MAX : slots * block_bytes;
    uint64_t held = gms_core_pool_kv_bytes(core), left;
    struct gms_budget budget = core->budget;

    if (!stands(core))
        budget = said_now(core, engine, &merged->fields[GMS_ALLOCATE_FIELD_BUDGET]);
    left = held <= budget.bytes ? budget.bytes - held : 0;
    if (!budget.bytes || asked <= left) {
        core->budget = budget;
        gms_core_mix(core, budget.bytes);
        gms_core_mix(core, budget.incarnation);
        return GMS_OK;
    }
    struct gms_text text = gms_core_refusal(outcome, engine, GMS_E_NO_CAPACITY);
    outcome->rank = (int32_t)budget.rank;
    gms_text_u64(&text, asked);
    gms_text_count(&text, " bytes asked, ", left);
    gms_text_count(&text, " free of the kv budget of ", budget.bytes);
    gms_text_count(&text, " (the least, rank ", budget.rank);
    gms_text_add(&text, "): ask for less, or see budget in the deployment file");
    return outcome->status;
}
