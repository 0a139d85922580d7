/* SPDX-License-Identifier: Apache-2.0
 *
 * Transfers: a vote of all ranks on work with several parts. The group knows one from its first carried vote to its
 * end; a rank knows what it dispatched. Votes are never withdrawn; time only names who is waited for.
 *
 *   local:  dispatched --every part ended--> voted (news until a round carried it) --group's end--> answered
 *   group:  unknown --first vote carried--> open --every rank voted--> ended (kept for late waiters)
 */
#include "core/core_state.h"

#include <string.h>

static bool has(const uint8_t *bitmap, uint32_t rank)
{
    return bitmap[rank / 8] >> (rank % 8) & 1;
}

static uint32_t full_mask(uint32_t part_count)
{
    return part_count == 32 ? UINT32_MAX : (1u << part_count) - 1;
}

static bool voted(const struct gms_core_local_transfer *local)
{
    return local->ended_mask == full_mask(local->part_count);
}

static struct gms_core_local_transfer *find_local(struct gms_core *core, uint64_t incarnation, uint64_t id)
{
    for (unsigned i = 0; i < GMS_CORE_MAX_TRANSFERS; i++) {
        struct gms_core_local_transfer *local = &core->local_transfers[i];
        if (local->used && local->incarnation == incarnation && local->id == id)
            return local;
    }
    return NULL;
}

/* Its place in the group's table, GMS_CORE_MAX_TRANSFERS: not there. */
static unsigned find_open_index(const struct gms_core *core, uint64_t incarnation, uint64_t id)
{
    unsigned i = 0;

    while (i < GMS_CORE_MAX_TRANSFERS &&
           !(core->transfers[i].used && core->transfers[i].incarnation == incarnation && core->transfers[i].id == id))
        i++;
    return i;
}

static struct gms_core_transfer *find_open(struct gms_core *core, uint64_t incarnation, uint64_t id)
{
    unsigned i = find_open_index(core, incarnation, id);

    return i < GMS_CORE_MAX_TRANSFERS ? &core->transfers[i] : NULL;
}

static struct gms_core_transfer *find_ended(struct gms_core *core, uint64_t incarnation, uint64_t id)
{
    for (unsigned i = 0; i < GMS_CORE_ENDED_TRANSFERS; i++) { /* the newest first: an id may come again */
        struct gms_core_transfer *ended =
            &core->ended[(core->ended_next + GMS_CORE_ENDED_TRANSFERS - 1 - i) % GMS_CORE_ENDED_TRANSFERS];
        if (ended->used && ended->incarnation == incarnation && ended->id == id)
            return ended;
    }
    return NULL;
}

static bool has_room(const struct gms_core *core)
{
    for (unsigned i = 0; i < GMS_CORE_MAX_TRANSFERS; i++)
        if (!core->transfers[i].used)
            return true;
    return false;
}

static void text_transfer(struct gms_text *text, uint64_t incarnation, uint64_t id)
{
    gms_text_count(text, "transfer ", id);
    gms_text_count(text, " of incarnation ", incarnation);
}

static struct gms_text emit(struct gms_core *core, enum gms_action_type type, uint32_t engine, uint64_t session,
                            uint64_t incarnation, uint64_t id, gms_status status)
{
    struct gms_action *action = gms_core_emit(core, type);

    action->transfer.engine = engine;
    action->transfer.session = session;
    action->transfer.incarnation = incarnation;
    action->transfer.id = id;
    action->transfer.first_failed = -1;
    action->transfer.status = status;
    struct gms_text text = gms_text_begin(action->transfer.text, sizeof action->transfer.text);
    text_transfer(&text, incarnation, id);
    return text;
}

/* What the group's end of it looks like to a waiter. */
static void emit_done(struct gms_core *core, uint32_t engine, uint64_t session, const struct gms_core_transfer *ended)
{
    struct gms_action *action = gms_core_emit(core, GMS_ACTION_TRANSFER_DONE);
    struct gms_text text = gms_text_begin(action->transfer.text, sizeof action->transfer.text);

    action->transfer.engine = engine;
    action->transfer.session = session;
    action->transfer.incarnation = ended->incarnation;
    action->transfer.id = ended->id;
    action->transfer.first_failed = -1;
    action->transfer.failed_bitmap = ended->failed;
    for (uint32_t rank = 0; rank < core->options.world_size; rank++) {
        if (!has(ended->failed, rank)) {
            action->transfer.finished++;
            continue;
        }
        action->transfer.failed++;
        if (action->transfer.first_failed < 0)
            action->transfer.first_failed = (int32_t)rank;
    }
    text_transfer(&text, ended->incarnation, ended->id);
    gms_text_count(&text, " ended: finished on ", action->transfer.finished);
    gms_text_count(&text, " ranks, failed on ", action->transfer.failed);
    if (action->transfer.failed)
        gms_text_count(&text, ", first on rank ", (uint64_t)action->transfer.first_failed);
}

/* News about it: the wait for a stall starts anew. */
static void restart_stall(const struct gms_core *core, struct gms_core_local_transfer *local)
{
    local->interval_ns = core->options.transfer_stall_ns;
    local->due_ns = local->interval_ns ? core->now_ns + local->interval_ns : UINT64_MAX;
}

/* ------------------------------------------------------------------------------------------------- calls ------ */

/* Is this incarnation one whose rank may speak of transfers? Answers with `type` when not. */
static bool is_alive(struct gms_core *core, enum gms_action_type type, uint32_t engine, uint64_t session,
                     uint64_t incarnation, uint64_t id)
{
    struct gms_text text;

    if (engine >= GMS_MAX_ENGINES || core->engines[engine].role == GMS_ROLE_EMPTY || !incarnation ||
        core->engines[engine].incarnation != incarnation) {
        text = emit(core, type, engine, session, incarnation, id, GMS_E_STALE);
        gms_text_count(&text, ": engine slot ", engine);
        gms_text_add(&text, " does not hold that incarnation");
        return false;
    }
    if (core->engines[engine].role == GMS_ROLE_CONDEMNED && core->engines[engine].condemned_stored) {
        text = emit(core, type, engine, session, incarnation, id, GMS_E_CONDEMNED);
        gms_text_add(&text, ": the incarnation is condemned: it must end");
        return false;
    }
    return true;
}

void gms_core_transfer_dispatch(struct gms_core *core, const struct gms_event *event)
{
    const uint32_t engine = event->transfer_dispatch.engine, part_count = event->transfer_dispatch.part_count;
    const uint64_t session = event->transfer_dispatch.session, incarnation = event->transfer_dispatch.incarnation;
    const uint64_t id = event->transfer_dispatch.id;
    const bool again = event->transfer_dispatch.again;
    struct gms_core_local_transfer *local = NULL;
    struct gms_text text;

    if (!is_alive(core, GMS_ACTION_TRANSFER_ANSWER, engine, session, incarnation, id))
        return;
    if (!part_count || part_count > GMS_CORE_MAX_PARTS) {
        text = emit(core, GMS_ACTION_TRANSFER_ANSWER, engine, session, incarnation, id, GMS_E_INVALID);
        gms_text_count(&text, " has ", part_count);
        gms_text_count(&text, " parts; 1 to ", GMS_CORE_MAX_PARTS);
        gms_text_add(&text, " are possible");
        return;
    }
    if (again && (find_local(core, incarnation, id) || find_ended(core, incarnation, id))) {
        text = emit(core, GMS_ACTION_TRANSFER_ANSWER, engine, session, incarnation, id, GMS_OK);
        gms_text_add(&text, " is known");
        return;
    }
    if (find_local(core, incarnation, id)) {
        text = emit(core, GMS_ACTION_TRANSFER_ANSWER, engine, session, incarnation, id, GMS_E_EXISTS);
        gms_text_add(&text, " is dispatched already and has not ended");
        return;
    }
    for (unsigned i = 0; i < GMS_CORE_MAX_TRANSFERS && !local; i++)
        if (!core->local_transfers[i].used)
            local = &core->local_transfers[i];
    if (!local || (!again && !find_open(core, incarnation, id) && !has_room(core))) {
        text = emit(core, GMS_ACTION_TRANSFER_ANSWER, engine, session, incarnation, id, GMS_E_BUSY);
        gms_text_count(&text, ": ", GMS_CORE_MAX_TRANSFERS);
        gms_text_add(&text, " are open, which is the limit; wait for one to end");
        return;
    }
    memset(local, 0, sizeof *local);
    local->used = true;
    local->engine = engine;
    local->incarnation = incarnation;
    local->id = id;
    local->part_count = part_count;
    if (again) {
        local->ended_mask = event->transfer_dispatch.ended_mask & full_mask(part_count);
        local->failed_mask = event->transfer_dispatch.failed_mask & local->ended_mask;
    }
    local->since_ns = core->now_ns;
    restart_stall(core, local);
    text = emit(core, GMS_ACTION_TRANSFER_ANSWER, engine, session, incarnation, id, GMS_OK);
    gms_text_add(&text, " is dispatched");
}

void gms_core_transfer_end_part(struct gms_core *core, const struct gms_event *event)
{
    const uint32_t engine = event->transfer_end.engine, part = event->transfer_end.part;
    const uint64_t session = event->transfer_end.session, incarnation = event->transfer_end.incarnation;
    const uint64_t id = event->transfer_end.id;
    struct gms_text text;

    if (!is_alive(core, GMS_ACTION_TRANSFER_ANSWER, engine, session, incarnation, id))
        return;
    struct gms_core_local_transfer *local = find_local(core, incarnation, id);
    if (!local && find_ended(core, incarnation, id)) { /* every part had ended, or the group's vote could not */
        text = emit(core, GMS_ACTION_TRANSFER_ANSWER, engine, session, incarnation, id, GMS_OK);
        gms_text_add(&text, " has ended");
        return;
    }
    if (!local) {
        text = emit(core, GMS_ACTION_TRANSFER_ANSWER, engine, session, incarnation, id, GMS_E_NOT_FOUND);
        gms_text_add(&text, " is not dispatched on this rank");
        return;
    }
    if (part >= local->part_count) {
        text = emit(core, GMS_ACTION_TRANSFER_ANSWER, engine, session, incarnation, id, GMS_E_INVALID);
        gms_text_count(&text, " has ", local->part_count);
        gms_text_count(&text, " parts; there is no part ", part);
        return;
    }

    uint32_t bit = 1u << part;
    if (local->ended_mask & bit) { /* said twice is said once; said otherwise is a mistake */
        bool same = !(local->failed_mask & bit) == !event->transfer_end.failed;
        text = emit(core, GMS_ACTION_TRANSFER_ANSWER, engine, session, incarnation, id, same ? GMS_OK : GMS_E_REFUSED);
        gms_text_count(&text, ": part ", part);
        gms_text_add(&text, local->failed_mask & bit ? " ended before, as failed" : " ended before, as finished");
        return;
    }
    local->ended_mask |= bit;
    if (event->transfer_end.failed)
        local->failed_mask |= bit;
    restart_stall(core, local);
    text = emit(core, GMS_ACTION_TRANSFER_ANSWER, engine, session, incarnation, id, GMS_OK);
    gms_text_count(&text, ": part ", part);
    gms_text_add(&text, " ended");
}

void gms_core_transfer_wait(struct gms_core *core, const struct gms_event *event)
{
    const uint32_t engine = event->transfer_wait.engine;
    const uint64_t session = event->transfer_wait.session, incarnation = event->transfer_wait.incarnation;
    const uint64_t id = event->transfer_wait.id;

    if (!is_alive(core, GMS_ACTION_TRANSFER_DONE, engine, session, incarnation, id))
        return;
    struct gms_core_local_transfer *local = find_local(core, incarnation, id);
    if (local) { /* an open one before an ended one of the same id */
        local->session = session;
        return;
    }
    const struct gms_core_transfer *ended = find_ended(core, incarnation, id);
    if (ended) {
        emit_done(core, engine, session, ended);
        return;
    }
    struct gms_text text = emit(core, GMS_ACTION_TRANSFER_DONE, engine, session, incarnation, id, GMS_E_NOT_FOUND);
    gms_text_add(&text, " is not dispatched on this rank, or ended long ago");
}

/* ------------------------------------------------------------------------------------------------- rounds ----- */

static bool slot_speaks(const struct gms_core *core, uint32_t engine, uint64_t incarnation)
{
    return core->engines[engine].incarnation == incarnation && core->engines[engine].role != GMS_ROLE_EMPTY &&
           core->engines[engine].role != GMS_ROLE_CONDEMNED;
}

bool gms_core_transfer_news(const struct gms_core *core, struct gms_ballot *ballot)
{
    struct gms_ballot own; /* only its transfer lane is used: the merge orders and cuts it */
    bool room = has_room(core), any = false;

    for (unsigned i = 0; i < GMS_CORE_MAX_TRANSFERS; i++) {
        const struct gms_core_local_transfer *local = &core->local_transfers[i];

        if (!local->used || local->ended || !voted(local) || !slot_speaks(core, local->engine, local->incarnation))
            continue;
        const struct gms_core_transfer *open = &core->transfers[find_open_index(core, local->incarnation, local->id)];
        uint32_t rank = core->options.rank;
        if (open == &core->transfers[GMS_CORE_MAX_TRANSFERS] ? !room
                                                             : has(open->finished, rank) || has(open->failed, rank))
            continue; /* held back until the group can track another; or carried */

        gms_ballot_init(&own);
        own.transfers[0].incarnation = local->incarnation;
        own.transfers[0].id = local->id;
        (local->failed_mask ? own.transfers[0].failed : own.transfers[0].finished)[rank / 8] |=
            (uint8_t)(1u << (rank % 8));
        gms_ballot_merge(ballot, &own);
        any = true;
    }
    return any;
}

static uint32_t or_votes(struct gms_core *core, uint8_t *into, const uint8_t *from)
{
    uint32_t fresh = 0;

    for (uint32_t rank = 0; rank < core->options.world_size; rank++) {
        if (!has(from, rank) || has(into, rank))
            continue;
        into[rank / 8] |= (uint8_t)(1u << (rank % 8));
        gms_core_mix(core, rank);
        fresh++;
    }
    return fresh;
}

static bool everyone_voted(const struct gms_core *core, const struct gms_core_transfer *open)
{
    for (uint32_t rank = 0; rank < core->options.world_size; rank++)
        if (!has(open->finished, rank) && !has(open->failed, rank))
            return false;
    return true;
}

static void end(struct gms_core *core, uint32_t engine, struct gms_core_transfer *open)
{
    struct gms_core_transfer *ended = &core->ended[core->ended_next];
    struct gms_core_local_transfer *local = find_local(core, open->incarnation, open->id);

    core->ended_next = (core->ended_next + 1) % GMS_CORE_ENDED_TRANSFERS;
    *ended = *open;
    open->used = false;
    if (local)
        local->ended = true;
    struct gms_core_store *store = gms_core_store_begin(core, GMS_STORE_TRANSFER, engine);
    store->incarnation = ended->incarnation;
    store->source = ended->id;
    gms_core_store_send(core, store);
}

/* Whoever waits may know that it ended, now that no rank can vote on it again. */
void gms_core_transfer_stored(struct gms_core *core, const struct gms_core_store *store)
{
    struct gms_core_local_transfer *local = find_local(core, store->incarnation, store->source);
    const struct gms_core_transfer *ended = find_ended(core, store->incarnation, store->source);

    if (!local || !local->ended || !ended)
        return;
    emit_done(core, local->engine, local->session, ended);
    local->used = false;
}

/* A place in the table for a transfer that is news; NULL when there is none. */
static struct gms_core_transfer *open_for(struct gms_core *core, const struct gms_ballot_transfer *news)
{
    for (unsigned t = 0; t < GMS_CORE_MAX_TRANSFERS; t++) {
        struct gms_core_transfer *free = &core->transfers[t];

        if (free->used)
            continue;
        memset(free, 0, sizeof *free);
        free->used = true;
        free->incarnation = news->incarnation;
        free->id = news->id;
        gms_core_mix(core, news->incarnation);
        gms_core_mix(core, news->id);
        return free;
    }
    return NULL;
}

void gms_core_transfers(struct gms_core *core, const struct gms_ballot *merged)
{
    for (unsigned i = 0; i < GMS_BALLOT_TRANSFERS; i++) {
        const struct gms_ballot_transfer *news = &merged->transfers[i];
        struct gms_core_transfer *open;
        uint32_t engine = 0;

        if (!news->incarnation)
            continue;
        while (engine < GMS_MAX_ENGINES && !slot_speaks(core, engine, news->incarnation))
            engine++;
        if (engine == GMS_MAX_ENGINES)
            continue; /* condemned in this very round */
        open = find_open(core, news->incarnation, news->id);
        if (!open)
            open = open_for(core, news);
        if (!open)
            continue; /* no room: the votes stay news of their ranks */
        if (or_votes(core, open->finished, news->finished) + or_votes(core, open->failed, news->failed)) {
            struct gms_core_local_transfer *local = find_local(core, open->incarnation, open->id);
            if (local)
                restart_stall(core, local);
        }
        if (everyone_voted(core, open))
            end(core, engine, open);
    }
}

void gms_core_transfers_condemned(struct gms_core *core, uint64_t incarnation)
{
    for (unsigned i = 0; i < GMS_CORE_MAX_TRANSFERS; i++)
        if (core->transfers[i].used && core->transfers[i].incarnation == incarnation)
            core->transfers[i].used = false;
}

void gms_core_transfers_condemned_stored(struct gms_core *core, uint64_t incarnation)
{
    for (unsigned i = 0; i < GMS_CORE_MAX_TRANSFERS; i++) {
        struct gms_core_local_transfer *local = &core->local_transfers[i];

        if (!local->used || local->incarnation != incarnation)
            continue;
        if (local->session) {
            struct gms_text text = emit(core, GMS_ACTION_TRANSFER_DONE, local->engine, local->session, incarnation,
                                        local->id, GMS_E_CONDEMNED);
            gms_text_add(&text, ": the incarnation is condemned, the vote will not end");
        }
        local->used = false;
    }
}

void gms_core_transfers_session_gone(struct gms_core *core, uint32_t engine, uint64_t session)
{
    for (unsigned i = 0; i < GMS_CORE_MAX_TRANSFERS; i++) {
        struct gms_core_local_transfer *local = &core->local_transfers[i];
        if (local->used && local->engine == engine && local->session == session)
            local->session = 0;
    }
}

/* ------------------------------------------------------------------------------------------------- stalls ----- */

void gms_core_report_transfers(struct gms_core *core)
{
    for (unsigned i = 0; i < GMS_CORE_MAX_TRANSFERS; i++) {
        struct gms_core_local_transfer *local = &core->local_transfers[i];

        if (!local->used || local->ended || core->now_ns < local->due_ns ||
            !slot_speaks(core, local->engine, local->incarnation))
            continue;
        struct gms_core_transfer none = {0};
        const struct gms_core_transfer *open = find_open(core, local->incarnation, local->id);
        struct gms_text text = emit(core, GMS_ACTION_TRANSFER_STALLED, local->engine, local->session,
                                    local->incarnation, local->id, GMS_E_TIMEOUT);
        gms_text_count(&text, ", dispatched ", (core->now_ns - local->since_ns) / 1000000);
        gms_text_add(&text, " ms ago: rank ");
        if (!voted(local)) {
            uint32_t part = 0;
            while (local->ended_mask >> part & 1)
                part++;
            gms_text_u64(&text, core->options.rank);
            gms_text_count(&text, " has not ended part ", part);
            gms_text_count(&text, " of ", local->part_count);
        } else {
            uint32_t rank = 0;
            if (!open)
                open = &none;
            while (rank < core->options.world_size &&
                   (rank == core->options.rank || has(open->finished, rank) || has(open->failed, rank)))
                rank++;
            gms_text_u64(&text, rank);
            gms_text_add(&text, " has not voted yet");
        }
        gms_text_add(&text, "; what it holds must stay");
        local->interval_ns = local->interval_ns > UINT64_MAX / 4 ? local->interval_ns : local->interval_ns * 2;
        local->due_ns = core->now_ns + local->interval_ns;
    }
}

uint64_t gms_core_transfer_deadline(const struct gms_core *core)
{
    uint64_t deadline = UINT64_MAX;

    for (unsigned i = 0; i < GMS_CORE_MAX_TRANSFERS; i++) {
        const struct gms_core_local_transfer *local = &core->local_transfers[i];

        if (local->used && !local->ended && local->due_ns < deadline &&
            slot_speaks(core, local->engine, local->incarnation))
            deadline = local->due_ns;
    }
    return deadline;
}
