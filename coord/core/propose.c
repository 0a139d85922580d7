/* SPDX-License-Identifier: Apache-2.0
 *
 * A call of an engine rank as it comes in: answered at once when it is malformed, stale, too early or decided already;
 * else kept as this rank's pending proposal.
 */
#include "core/core_state.h"

#include <string.h>

/* An answer at once, for a call that never becomes the group's business. */
static struct gms_text answer(struct gms_core *core, uint32_t engine, uint64_t session,
                              const struct gms_operation_key *key, gms_status status)
{
    struct gms_action *action = gms_core_emit(core, GMS_ACTION_REPLY);
    struct gms_text text = gms_text_begin(action->reply.outcome.text, sizeof action->reply.outcome.text);

    action->reply.session = session;
    action->reply.outcome = gms_core_outcome(core, key, status, (int32_t)core->options.rank);
    gms_text_operation(&text, engine, key);
    gms_text_add(&text, ": ");
    return text;
}

static bool key_is_wellformed(struct gms_core *core, uint32_t engine, uint64_t session,
                              const struct gms_operation_key *key)
{
    struct gms_text text;

    switch ((enum gms_operation)key->kind) {
    case GMS_OPERATION_JOIN:
        if (key->launch && !key->incarnation && !key->sequence)
            return true;
        text = answer(core, engine, session, key, GMS_E_PROTOCOL);
        gms_text_add(&text, "a join is named by its launch alone: launch not 0, incarnation and sequence 0");
        return false;
    case GMS_OPERATION_ALLOCATE:
    case GMS_OPERATION_PUBLISH:
    case GMS_OPERATION_ADOPT:
    case GMS_OPERATION_RELEASE:
    case GMS_OPERATION_EXCHANGE:
    case GMS_OPERATION_BUDGET:
        if (!key->launch && key->incarnation && key->sequence)
            return true;
        text = answer(core, engine, session, key, GMS_E_PROTOCOL);
        gms_text_add(&text, "a call is named by incarnation and sequence, neither 0, and launch 0");
        return false;
    case GMS_OPERATION_RECLAIM:
        text = answer(core, engine, session, key, GMS_E_UNSUPPORTED);
        gms_text_add(&text, "not offered to engines; quarantined slots stay so");
        return false;
    case GMS_OPERATION_NONE:
    case GMS_OPERATION_TAKEOVER:
    case GMS_OPERATION_COUNT:
        break;
    }
    text = answer(core, engine, session, key, GMS_E_PROTOCOL);
    gms_text_count(&text, "no engine can ask for operation kind ", key->kind);
    return false;
}

/* The decided outcome, to somebody who asks late. */
static void answer_decided(struct gms_core *core, uint32_t engine, uint64_t session,
                           const struct gms_operation_key *key, const struct gms_core_decided *decided)
{
    struct gms_core_engine *slot = &core->engines[engine];

    for (unsigned i = 0; decided->ticket && i < GMS_CORE_STORES; i++) {
        if (core->stores[i].ticket == decided->ticket) {
            core->stores[i].session = session; /* not stored yet: told when it is */
            return;
        }
    }
    if (decided->outcome.key.kind != key->kind && decided->outcome.status == GMS_OK) {
        struct gms_text text = answer(core, engine, session, key, GMS_E_MISMATCH);
        gms_text_add(&text, "the group decided this call as ");
        gms_text_add(&text, gms_operation_name((enum gms_operation)decided->outcome.key.kind));
        return;
    }
    if (key->kind == GMS_OPERATION_JOIN && decided->outcome.status == GMS_OK &&
        (slot->incarnation != decided->outcome.incarnation || slot->role == GMS_ROLE_CONDEMNED)) {
        struct gms_text text = answer(core, engine, session, key, GMS_E_CONDEMNED);
        gms_text_count(&text, "this launch was incarnation ", decided->outcome.incarnation);
        gms_text_add(&text, ", which is condemned; start it again under a new launch");
        return;
    }
    if (key->kind == GMS_OPERATION_JOIN && decided->outcome.status == GMS_OK)
        slot->reattach_report_ns = UINT64_MAX; /* it is here */
    struct gms_action *action = gms_core_emit(core, GMS_ACTION_REPLY);
    action->reply.session = session;
    action->reply.outcome = decided->outcome;
}

/* A launch may have been told its outcome, and ask again because its answer was lost. Where the group forgot what it
 * told, it must not decide that a second time. */
static bool is_remembered(struct gms_core *core, uint32_t engine, uint64_t session, uint64_t since,
                          const struct gms_operation_key *key)
{
    if (key->kind != GMS_OPERATION_JOIN || !since || since >= core->life)
        return true;
    struct gms_text text = answer(core, engine, session, key, GMS_E_STALE);
    gms_text_count(&text, "this launch asked in world ", since);
    gms_text_count(&text, " first, and what was told before world ", core->life);
    gms_text_add(&text, " is lost; start it again under a new launch");
    return false;
}

/* May this key be asked for now? Answers when not. */
static bool key_is_next(struct gms_core *core, uint32_t engine, uint64_t session, const struct gms_operation_key *key)
{
    const struct gms_core_engine *slot = &core->engines[engine];
    struct gms_text text;

    if (key->kind == GMS_OPERATION_JOIN) {
        if (slot->role == GMS_ROLE_EMPTY)
            return true;
        text = answer(core, engine, session, key, GMS_E_BUSY);
        gms_text_add(&text, "the engine id is held by ");
        gms_text_engine(&text, engine, slot->incarnation);
        gms_text_add(&text, slot->role == GMS_ROLE_CONDEMNED ? ", condemned and being ended; ask again" : "");
        return false;
    }
    if (slot->role == GMS_ROLE_EMPTY || key->incarnation != slot->incarnation) {
        text = answer(core, engine, session, key, GMS_E_STALE);
        gms_text_add(&text, "the engine slot holds ");
        gms_text_count(&text, "incarnation ", slot->role == GMS_ROLE_EMPTY ? 0 : slot->incarnation);
        return false;
    }
    if (slot->role == GMS_ROLE_CONDEMNED) {
        if (!slot->condemned_stored)
            return true; /* kept, and answered when the condemnation may be known */
        text = answer(core, engine, session, key, GMS_E_CONDEMNED);
        gms_text_add(&text, "this incarnation is condemned: it must end");
        return false;
    }
    if (key->sequence != slot->next_sequence) {
        bool early = key->sequence > slot->next_sequence;
        text = answer(core, engine, session, key, early ? GMS_E_PROTOCOL : GMS_E_STALE);
        gms_text_count(&text, "the next call's number is ", slot->next_sequence);
        gms_text_add(&text, early ? "" : "; the outcome asked for is no longer kept");
        return false;
    }
    return true;
}

void gms_core_propose(struct gms_core *core, const struct gms_event *event)
{
    const uint32_t engine = event->propose.engine;
    const uint64_t session = event->propose.session, since = event->propose.since;
    const struct gms_proposal *proposal = &event->propose.proposal;
    const struct gms_operation_key *key = &proposal->key;

    if (engine >= GMS_MAX_ENGINES) {
        struct gms_text text = answer(core, engine, session, key, GMS_E_INVALID);
        gms_text_count(&text, "engine ids are 0 to ", GMS_MAX_ENGINES - 1);
        return;
    }
    if (!key_is_wellformed(core, engine, session, key))
        return;
    if (event->propose.exchange_bytes > GMS_BALLOT_EXCHANGE_BYTES) {
        struct gms_text text = answer(core, engine, session, key, GMS_E_INVALID);
        gms_text_u64(&text, event->propose.exchange_bytes);
        gms_text_count(&text, " bytes; the limit is ", GMS_BALLOT_EXCHANGE_BYTES);
        return;
    }

    struct gms_core_engine *slot = &core->engines[engine];
    struct gms_core_pending *pending = &slot->pending;
    const struct gms_core_decided *decided = gms_core_find_decided(core, engine, key);
    if (decided) {
        answer_decided(core, engine, session, key, decided);
        return;
    }
    if (key->kind == GMS_OPERATION_JOIN && slot->role != GMS_ROLE_EMPTY && slot->role != GMS_ROLE_CONDEMNED &&
        key->launch == slot->launch) {
        struct gms_action *action = gms_core_emit(core, GMS_ACTION_REPLY); /* its outcome is no longer kept */
        action->reply.session = session;
        action->reply.outcome = gms_core_outcome(core, key, GMS_OK, -1);
        action->reply.outcome.incarnation = slot->incarnation;
        slot->reattach_report_ns = UINT64_MAX;
        return;
    }
    if (!is_remembered(core, engine, session, since, key) || !key_is_next(core, engine, session, key))
        return;
    if (pending->present && gms_core_keys_equal(&pending->proposal.key, key)) {
        pending->session = session; /* asked again, perhaps over a new session */
        pending->asked_ns = core->now_ns;
        return;
    }
    if (pending->present && !(pending->orphan && !pending->offered)) {
        struct gms_text text =
            answer(core, engine, session, key, key->kind == GMS_OPERATION_JOIN ? GMS_E_AGAIN : GMS_E_PROTOCOL);
        gms_text_operation(&text, engine, &pending->proposal.key);
        gms_text_add(&text, " is still pending on this rank");
        return;
    }
    memset(pending, 0, sizeof *pending);
    pending->present = true;
    pending->session = session;
    pending->asked_ns = core->now_ns;
    pending->proposal = *proposal;
    if (key->kind != GMS_OPERATION_EXCHANGE || core->options.rank != 0)
        return;
    pending->exchange_bytes = event->propose.exchange_bytes;
    memcpy(pending->exchange, event->propose.exchange, pending->exchange_bytes);
}

/* Held back, and its engine rank waits here. What it offered in a round before binds nobody: nothing was decided. */
static bool join_waits(const struct gms_core *core, uint32_t engine)
{
    const struct gms_core_pending *pending = &core->engines[engine].pending;

    return pending->present && pending->proposal.key.kind == GMS_OPERATION_JOIN && !pending->orphan &&
           gms_core_takeover_busy(core) && !gms_core_contributes(core, engine);
}

uint64_t gms_core_waiting_joins_deadline(const struct gms_core *core)
{
    uint64_t deadline = UINT64_MAX;

    for (uint32_t e = 0; e < GMS_MAX_ENGINES && core->options.operation_timeout_ns; e++) {
        uint64_t due_ns = core->engines[e].pending.asked_ns + core->options.operation_timeout_ns;

        if (join_waits(core, e) && due_ns < deadline)
            deadline = due_ns;
    }
    return deadline;
}

void gms_core_answer_waiting_joins(struct gms_core *core)
{
    for (uint32_t e = 0; e < GMS_MAX_ENGINES && core->options.operation_timeout_ns; e++) {
        struct gms_core_pending *pending = &core->engines[e].pending;

        if (!join_waits(core, e) || core->now_ns < pending->asked_ns + core->options.operation_timeout_ns)
            continue;
        struct gms_text text = answer(core, e, pending->session, &pending->proposal.key, GMS_E_TIMEOUT);
        gms_text_add(&text, "a takeover is going on, and joins wait for its end; ask again");
        memset(pending, 0, sizeof *pending);
    }
}
