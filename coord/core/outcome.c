/* SPDX-License-Identifier: Apache-2.0
 *
 * Decided operations: kept, stored, then told. Texts are made of the merged ballot and replicated state only, so every
 * rank words an outcome alike.
 */
#include "core/core_state.h"

#include <string.h>

bool gms_core_keys_equal(const struct gms_operation_key *a, const struct gms_operation_key *b)
{
    return a->incarnation == b->incarnation && a->launch == b->launch && a->sequence == b->sequence &&
           a->kind == b->kind;
}

const char *gms_core_status_words(gms_status status)
{
#define WORDS(name, value, text)                                                                                       \
    case name:                                                                                                         \
        return text;
    switch (status) {
        GMS_STATUS_LIST(WORDS)
    }
#undef WORDS
    return "unknown status";
}

void gms_text_operation(struct gms_text *text, uint32_t engine, const struct gms_operation_key *key)
{
    gms_text_add(text, gms_operation_name((enum gms_operation)key->kind));
    gms_text_count(text, " of engine ", engine);
    if (key->incarnation) {
        gms_text_count(text, " incarnation ", key->incarnation);
        gms_text_count(text, " call ", key->sequence);
    }
}

struct gms_outcome gms_core_outcome(const struct gms_core *core, const struct gms_operation_key *key, gms_status status,
                                    int32_t rank)
{
    struct gms_outcome outcome;

    memset(&outcome, 0, sizeof outcome);
    outcome.key = *key;
    outcome.status = status;
    outcome.rank = rank;
    outcome.incarnation = key->incarnation;
    outcome.epoch = core->epoch;
    outcome.pool_index = GMS_CORE_NO_POOL;
    return outcome;
}

/* A call is named by incarnation and number: one number, one outcome, whatever a rank says it was. */
static bool names(const struct gms_operation_key *decided, const struct gms_operation_key *asked)
{
    if (decided->kind == GMS_OPERATION_NONE || (decided->kind == GMS_OPERATION_JOIN) != !asked->incarnation)
        return false;
    if (!asked->incarnation)
        return decided->launch == asked->launch;
    return decided->incarnation == asked->incarnation && decided->sequence == asked->sequence;
}

struct gms_core_decided *gms_core_find_decided(struct gms_core *core, uint32_t engine,
                                               const struct gms_operation_key *key)
{
    struct gms_core_engine *slot = &core->engines[engine];
    struct gms_core_decided *found = NULL;

    for (unsigned i = 0; i < GMS_CORE_OUTCOMES; i++) {
        struct gms_core_decided *decided = &slot->decided[i];

        if (!names(&decided->outcome.key, key))
            continue;
        if (decided->outcome.key.kind == key->kind)
            return decided; /* of a number that ranks disagreed about, the kind that is asked for */
        found = decided;
    }
    return found;
}

static void mix_outcome(struct gms_core *core, uint32_t engine, const struct gms_outcome *outcome)
{
    gms_core_mix(core, engine);
    gms_core_mix(core, outcome->key.incarnation);
    gms_core_mix(core, outcome->key.launch);
    gms_core_mix(core, ((uint64_t)outcome->key.sequence << 32) | outcome->key.kind);
    gms_core_mix(core, (uint64_t)(uint32_t)outcome->status);
    gms_core_mix(core, outcome->incarnation);
    gms_core_mix(core, ((uint64_t)outcome->adopted << 32) | outcome->idle);
    gms_core_mix(core, ((uint64_t)outcome->quarantined << 32) | outcome->pool_index);
    gms_core_mix(core, outcome->budget);
}

static void store_outcome(struct gms_core *core, uint32_t engine, const struct gms_outcome *outcome, bool decided)
{
    struct gms_core_pending *pending = &core->engines[engine].pending;
    struct gms_core_store *store = gms_core_store_begin(core, GMS_STORE_OUTCOME, engine);

    store->outcome = *outcome;
    store->decided = decided;
    store->proposal.key = outcome->key;
    if (pending->present && gms_core_keys_equal(&pending->proposal.key, &outcome->key)) {
        store->proposal = pending->proposal;
        store->session = pending->session;
        memset(pending, 0, sizeof *pending);
    }
    if (outcome->key.kind == GMS_OPERATION_ADOPT && outcome->status == GMS_OK) {
        store->forget_engine = core->writer_engine;
        store->forget_incarnation = core->writer; /* retired everywhere, or nobody would be promoted */
    }
    if (decided) {
        struct gms_core_engine *slot = &core->engines[engine];
        struct gms_core_decided *entry = &slot->decided[slot->decided_next];

        slot->decided_next = (slot->decided_next + 1) % GMS_CORE_OUTCOMES;
        entry->outcome = *outcome;
        entry->ticket = store->ticket;
    }
    gms_core_store_send(core, store);
}

void gms_core_decide(struct gms_core *core, uint32_t engine, const struct gms_outcome *outcome)
{
    struct gms_core_engine *slot = &core->engines[engine];

    mix_outcome(core, engine, outcome);
    store_outcome(core, engine, outcome, true);
    if (outcome->key.incarnation && outcome->key.incarnation == slot->incarnation &&
        outcome->key.sequence == slot->next_sequence)
        slot->next_sequence++;
    if (slot->operation.preparing && gms_core_keys_equal(&slot->operation.key, &outcome->key)) {
        slot->last.decided = true;
        slot->last.outcome = *outcome;
    }
    gms_core_pool_unlock(core, engine);
    memset(&slot->operation, 0, sizeof slot->operation);
}

void gms_core_answer_pending(struct gms_core *core, uint32_t engine, const struct gms_outcome *outcome)
{
    store_outcome(core, engine, outcome, false);
}

static void reply(struct gms_core *core, uint64_t session, const struct gms_outcome *outcome)
{
    if (!session)
        return;
    struct gms_action *action = gms_core_emit(core, GMS_ACTION_REPLY);
    action->reply.session = session;
    action->reply.outcome = *outcome;
}

void gms_core_outcome_stored(struct gms_core *core, struct gms_core_store *store)
{
    struct gms_core_engine *slot = &core->engines[store->engine];

    if (store->decided) {
        struct gms_action *action =
            gms_core_emit(core, store->outcome.status == GMS_OK ? GMS_ACTION_COMMIT : GMS_ACTION_ABORT);
        action->commit.engine = store->engine;
        action->commit.proposal = store->proposal;
        action->commit.outcome = store->outcome;
        for (unsigned i = 0; i < GMS_CORE_OUTCOMES; i++)
            if (slot->decided[i].ticket == store->ticket)
                slot->decided[i].ticket = 0;
    }
    reply(core, store->session, &store->outcome);
    if (store->decided && store->outcome.status == GMS_OK && store->forget_incarnation) {
        struct gms_action *action = gms_core_emit(core, GMS_ACTION_FORGET);
        action->promote.engine = store->forget_engine;
        action->promote.incarnation = store->forget_incarnation;
        action->promote.epoch = core->epoch;
    }
}

/* What is still asked of a condemned engine is answered once the condemnation may be known. */
void gms_core_condemned_pending(struct gms_core *core, uint32_t engine)
{
    struct gms_core_engine *slot = &core->engines[engine];
    struct gms_core_pending *pending = &slot->pending;

    if (!pending->present)
        return;
    struct gms_outcome outcome = gms_core_outcome(core, &pending->proposal.key, GMS_E_CONDEMNED, -1);
    struct gms_text text = gms_text_begin(outcome.text, sizeof outcome.text);
    gms_text_engine(&text, engine, slot->incarnation);
    gms_text_add(&text, " is condemned: it must end");
    reply(core, pending->session, &outcome);
    memset(pending, 0, sizeof *pending);
}
