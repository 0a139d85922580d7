/* SPDX-License-Identifier: Apache-2.0
 *
 * The step: an event changes state, then the core looks whether it wants a round.
 *
 *            news, or rung                      ROUND_DONE
 *   resting -------------> in a round -----------------------> resting
 *      ^                                  \--adopt agreed--> bulk (stored, then running)
 *      +------------------ BULK_DONE -----------------------------/
 */
#include "core/core_state.h"

#include <assert.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------- tools ------ */

struct gms_action *gms_core_emit(struct gms_core *core, enum gms_action_type type)
{
    struct gms_action *action = &core->spill_action;

    assert(core->actions->count < GMS_CORE_MAX_ACTIONS);
    if (!core->stopped && core->actions->count < GMS_CORE_MAX_ACTIONS)
        action = &core->actions->items[core->actions->count++];
    memset(action, 0, sizeof *action);
    action->type = type;
    return action;
}

struct gms_text gms_core_note(struct gms_core *core, gms_status status)
{
    struct gms_action *action = gms_core_emit(core, GMS_ACTION_NOTE);

    action->note.status = status;
    return gms_text_begin(action->note.text, sizeof action->note.text);
}

struct gms_text gms_core_restart(struct gms_core *core, gms_status status)
{
    struct gms_action *action = gms_core_emit(core, GMS_ACTION_RESTART);

    core->stopped = true;
    action->note.status = status;
    return gms_text_begin(action->note.text, sizeof action->note.text);
}

void gms_core_mix(struct gms_core *core, uint64_t value)
{
    uint64_t mixed = core->digest + UINT64_C(0x9e3779b97f4a7c15) + value;

    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    core->digest = mixed ^ (mixed >> 31);
}

void gms_text_engine(struct gms_text *text, uint32_t engine, uint64_t incarnation)
{
    gms_text_count(text, "engine ", engine);
    gms_text_count(text, " incarnation ", incarnation);
}

/* ------------------------------------------------------------------------------------------------- rounds ----- */

/* Says what this rank would say in the next round; true when that is news to the group. */
static bool make_draft(struct gms_core *core)
{
    struct gms_ballot *draft = &core->draft;
    const struct gms_ballot *last = &core->contribution;
    bool news = false;

    gms_ballot_init(draft);
    draft->world_least = draft->world_greatest = core->options.world;
    draft->round_least = draft->round_greatest = core->round;
    draft->state_least = draft->state_greatest = core->digest;
    draft->ranks = 1;
    if (core->shutdown) {
        draft->flags |= GMS_BALLOT_SHUTDOWN;
        news = true;
    }
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        const struct gms_core_engine *slot = &core->engines[e];
        struct gms_ballot_facts *facts = &draft->facts[e];

        facts->incarnation = slot->role == GMS_ROLE_EMPTY ? 0 : slot->incarnation;
        for (unsigned f = 0; f < GMS_FACT_COUNT; f++) {
            if (!(slot->facts >> f & 1))
                continue;
            facts->count[f] = 1;
            facts->lowest_rank[f] = (uint16_t)core->options.rank;
            if ((gms_core_role_facts(slot->role) >> f & 1) &&
                !(last->facts[e].incarnation == facts->incarnation && last->facts[e].count[f]))
                news = true;
        }
        gms_core_offer(core, e, &draft->proposals[e]);
        if (draft->proposals[e].spoken &&
            memcmp(&draft->proposals[e], &last->proposals[e], sizeof draft->proposals[e]) != 0)
            news = true;
    }
    gms_core_reclaim_offer(core, &draft->reclaim);
    if (memcmp(&draft->reclaim, &last->reclaim, sizeof draft->reclaim) != 0 && gms_core_reclaim_says(&draft->reclaim))
        news = true;
    if (gms_core_exchange_offer(core, &draft->exchange))
        news = true;
    return gms_core_transfer_news(core, draft) || news;
}

static void note_contributions(struct gms_core *core)
{
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        struct gms_core_pending *pending = &core->engines[e].pending;
        bool contributes = gms_core_contributes(core, e);

        if (contributes && !pending->contributed)
            pending->since_ns = core->now_ns;
        pending->contributed = contributes;
        pending->offered = pending->offered || contributes;
    }
}

static void want_round(struct gms_core *core)
{
    if (core->in_round || core->bulk != GMS_BULK_NONE)
        return;
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++)
        if (!gms_core_contributes(core, e))
            core->engines[e].pending.contributed = false; /* held back: its deadline does not run */

    bool news = make_draft(core);
    if (!news && core->rung < core->round)
        return;
    if (news && core->ring_sent < core->round) {
        core->ring_sent = core->round;
        gms_core_emit(core, GMS_ACTION_RING)->round = core->round;
    }
    note_contributions(core);
    core->contribution = core->draft;
    core->in_round = true;
    gms_core_emit(core, GMS_ACTION_ENTER_ROUND)->ballot = &core->contribution;
}

static void text_pair(struct gms_text *text, const char *what, uint64_t least, uint64_t greatest, uint64_t own)
{
    gms_text_add(text, what);
    gms_text_add(text, " differs between ranks: least ");
    gms_text_hex(text, least);
    gms_text_add(text, ", greatest ");
    gms_text_hex(text, greatest);
    gms_text_add(text, ", here ");
    gms_text_hex(text, own);
}

/* Nothing may be concluded from a round whose ballots do not speak of the same thing. */
static bool merged_is_sound(struct gms_core *core, const struct gms_ballot *merged)
{
    struct {
        const char *what;
        uint64_t least, greatest, own;
    } pairs[] = {
        {"the world", merged->world_least, merged->world_greatest, core->options.world},
        {"the round", merged->round_least, merged->round_greatest, core->round},
        {"the replicated state", merged->state_least, merged->state_greatest, core->digest},
    };
    struct gms_text text;

    if (merged->version != GMS_BALLOT_VERSION || (merged->flags & GMS_BALLOT_MALFORMED)) {
        text = gms_core_restart(core, GMS_E_DIVERGED);
        gms_text_count(&text, "round ", core->round);
        gms_text_add(&text, ": the merged ballot is malformed: ranks run different versions or hold different engines");
        return false;
    }
    if (merged->ranks != core->options.world_size) {
        text = gms_core_restart(core, GMS_E_DIVERGED);
        gms_text_count(&text, "round ", core->round);
        gms_text_count(&text, ": ", merged->ranks);
        gms_text_count(&text, " ballots were merged, the group has ranks: ", core->options.world_size);
        return false;
    }
    for (unsigned i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (pairs[i].least == pairs[i].greatest && pairs[i].least == pairs[i].own)
            continue;
        text = gms_core_restart(core, GMS_E_DIVERGED);
        gms_text_count(&text, "round ", core->round);
        gms_text_add(&text, ": ");
        text_pair(&text, pairs[i].what, pairs[i].least, pairs[i].greatest, pairs[i].own);
        return false;
    }
    return true;
}

static void round_done(struct gms_core *core, const struct gms_ballot *merged)
{
    if (!core->in_round) {
        struct gms_text text = gms_core_restart(core, GMS_E_PROTOCOL);
        gms_text_count(&text, "a round ended that this rank did not enter; the next one is ", core->round);
        return;
    }
    if (!merged_is_sound(core, merged))
        return;
    core->in_round = false;
    gms_core_mix(core, core->round);
    if (merged->flags & GMS_BALLOT_SHUTDOWN) { /* before facts: deaths now are part of the stop */
        gms_core_emit(core, GMS_ACTION_SHUTDOWN);
        core->round++;
        core->stopped = true;
        return;
    }
    gms_core_facts(core, merged);
    gms_core_transfers(core, merged);
    gms_core_operations(core, merged);
    gms_core_reclaim_round(core, merged);
    core->round++;
}

/* ------------------------------------------------------------------------------------------------- time ------- */

static uint64_t operation_deadline(const struct gms_core *core, uint32_t engine)
{
    const struct gms_core_pending *pending = &core->engines[engine].pending;

    if (!pending->present || !pending->contributed || pending->expired || !core->options.operation_timeout_ns)
        return UINT64_MAX;
    return pending->since_ns + core->options.operation_timeout_ns;
}

static void tick(struct gms_core *core)
{
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++)
        if (core->now_ns >= operation_deadline(core, e))
            core->engines[e].pending.expired = true;
    gms_core_answer_waiting_joins(core);
    gms_core_report_fences(core);
    gms_core_report_detached(core);
    gms_core_report_transfers(core);
}

uint64_t gms_core_deadline(const struct gms_core *core)
{
    uint64_t deadline = gms_core_fence_deadline(core), other = gms_core_transfer_deadline(core);

    if (core->stopped)
        return UINT64_MAX;
    if (other < deadline)
        deadline = other;
    other = gms_core_detached_deadline(core);
    if (other < deadline)
        deadline = other;
    other = gms_core_waiting_joins_deadline(core);
    if (other < deadline)
        deadline = other;
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        other = operation_deadline(core, e);
        if (other < deadline)
            deadline = other;
    }
    return deadline;
}

/* ------------------------------------------------------------------------------------------------- step ------- */

static void rung(struct gms_core *core, uint64_t round)
{
    if (round > core->round + 1) { /* a peer is at most one round ahead: it needed this rank's ballot for the last */
        struct gms_text text = gms_core_note(core, GMS_E_PROTOCOL);
        gms_text_count(&text, "a doorbell for round ", round);
        gms_text_count(&text, " is ignored; the next one is ", core->round);
        return;
    }
    if (round > core->rung)
        core->rung = round;
}

void gms_core_settle(struct gms_core *core)
{
    if (core->stopped)
        return;
    gms_core_classify(core);
    gms_core_reclaim_settle(core);
    want_round(core);
}

void gms_core_step(struct gms_core *core, const struct gms_event *event, struct gms_actions *ret_actions)
{
    ret_actions->count = 0;
    if (core->stopped)
        return;
    core->actions = ret_actions;
    core->now_ns = event->now_ns;
    switch (event->type) {
    case GMS_EVENT_TICK:
        tick(core);
        break;
    case GMS_EVENT_RUNG:
        rung(core, event->rung_round);
        break;
    case GMS_EVENT_ROUND_DONE:
        round_done(core, event->merged);
        break;
    case GMS_EVENT_STORED:
        gms_core_stored(core, event->ticket, true);
        break;
    case GMS_EVENT_STORE_FAILED:
        gms_core_stored(core, event->ticket, false);
        break;
    case GMS_EVENT_PROPOSE:
        gms_core_propose(core, event);
        break;
    case GMS_EVENT_PREPARED:
        gms_core_prepared(core, event->prepared.engine, &event->prepared.key, event->prepared.status,
                          event->prepared.detail);
        break;
    case GMS_EVENT_FACT:
        gms_core_fact(core, event->fact.engine, event->fact.incarnation, event->fact.fact);
        break;
    case GMS_EVENT_SESSION_GONE:
        if (event->session_gone.engine >= GMS_MAX_ENGINES || !event->session_gone.session)
            break;
        gms_core_session_gone(core, event->session_gone.engine, event->session_gone.session);
        gms_core_transfers_session_gone(core, event->session_gone.engine, event->session_gone.session);
        break;
    case GMS_EVENT_ATTACHED:
        gms_core_attached(core, event->attached.engine, event->attached.incarnation);
        break;
    case GMS_EVENT_BULK_DONE:
        gms_core_bulk_done(core, event->bulk.engine, &event->bulk.key, event->bulk.status, event->bulk.adopted,
                           event->bulk.idle, event->bulk.quarantined);
        break;
    case GMS_EVENT_TRANSFER_DISPATCH:
        gms_core_transfer_dispatch(core, event);
        break;
    case GMS_EVENT_TRANSFER_END_PART:
        gms_core_transfer_end_part(core, event);
        break;
    case GMS_EVENT_TRANSFER_WAIT:
        gms_core_transfer_wait(core, event);
        break;
    case GMS_EVENT_RECLAIM_DONE:
    case GMS_EVENT_RECLAIM_ANSWER:
        gms_core_reclaim_event(core, event);
        break;
    case GMS_EVENT_SHUTDOWN:
        core->shutdown = true;
        break;
    case GMS_EVENT_TYPE_COUNT:
        break;
    }
    gms_core_settle(core);
    core->actions = NULL;
}

/* ------------------------------------------------------------------------------------------------- views ------ */

size_t gms_core_bytes(void)
{
    return sizeof(struct gms_core);
}

struct gms_core *gms_core_init(void *memory, const struct gms_core_options *options)
{
    struct gms_core *core = memory;

    memset(core, 0, sizeof *core);
    core->options = *options;
    core->round = 1;
    core->life = options->life;
    core->serving = core->successor = -1;
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++)
        core->engines[e].fence_report_ns = core->engines[e].reattach_report_ns = UINT64_MAX;
    gms_ballot_init(&core->contribution);
    gms_ballot_init(&core->draft);
    return core;
}

void gms_core_look(const struct gms_core *core, struct gms_core_view *ret_view)
{
    memset(ret_view, 0, sizeof *ret_view);
    ret_view->world = core->options.world;
    ret_view->epoch = core->epoch;
    ret_view->next_round = core->round;
    ret_view->state_digest = core->digest;
    ret_view->takeover = core->takeover;
    ret_view->serving_engine = core->serving;
    ret_view->successor_engine = core->successor;
    ret_view->writer_incarnation = core->writer;
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        const struct gms_core_engine *slot = &core->engines[e];

        ret_view->engines[e].role = slot->role;
        ret_view->engines[e].incarnation = slot->incarnation;
        ret_view->engines[e].launch = slot->launch;
        ret_view->engines[e].next_sequence = slot->next_sequence;
        ret_view->engines[e].parked_round = slot->parked_round;
    }
}

bool gms_core_look_pool(const struct gms_core *core, uint32_t index, struct gms_core_pool_view *ret_view)
{
    if (index >= GMS_CORE_MAX_POOLS || core->pools[index].state == GMS_POOL_ABSENT)
        return false;
    const struct gms_core_pool *pool = &core->pools[index];
    memcpy(ret_view->name, pool->name, sizeof ret_view->name);
    ret_view->kind = pool->kind;
    ret_view->state = pool->state;
    ret_view->creator = pool->creator;
    ret_view->attached_mask = pool->attached_mask;
    return true;
}

bool gms_core_look_budget(const struct gms_core *core, struct gms_budget *ret_budget)
{
    *ret_budget = core->budget;
    return core->budget.bytes != 0;
}

static uint32_t count_bits(const uint8_t *bitmap)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < GMS_MAX_RANKS; i++)
        count += bitmap[i / 8] >> (i % 8) & 1;
    return count;
}

bool gms_core_look_transfer(const struct gms_core *core, uint32_t index, struct gms_core_transfer_view *ret_view)
{
    /* The group's first, then those that only this rank knows yet. */
    memset(ret_view, 0, sizeof *ret_view);
    for (unsigned i = 0; i < GMS_CORE_MAX_TRANSFERS; i++) {
        const struct gms_core_transfer *open = &core->transfers[i];

        if (!open->used || index--)
            continue;
        ret_view->incarnation = open->incarnation;
        ret_view->id = open->id;
        ret_view->finished = count_bits(open->finished);
        ret_view->failed = count_bits(open->failed);
        for (unsigned l = 0; l < GMS_CORE_MAX_TRANSFERS; l++)
            if (core->local_transfers[l].used && core->local_transfers[l].incarnation == open->incarnation &&
                core->local_transfers[l].id == open->id)
                ret_view->since_ns = core->local_transfers[l].since_ns;
        return true;
    }
    for (unsigned l = 0; l < GMS_CORE_MAX_TRANSFERS; l++) {
        const struct gms_core_local_transfer *local = &core->local_transfers[l];
        bool open = false;

        for (unsigned i = 0; i < GMS_CORE_MAX_TRANSFERS; i++)
            open = open || (core->transfers[i].used && core->transfers[i].incarnation == local->incarnation &&
                            core->transfers[i].id == local->id);
        if (!local->used || open || index--)
            continue;
        ret_view->incarnation = local->incarnation;
        ret_view->id = local->id;
        ret_view->since_ns = local->since_ns;
        return true;
    }
    return false;
}
