/* SPDX-License-Identifier: Apache-2.0
 *
 * Roles of engine slots and the group's takeover. Both are tables; the diagrams are in core.h. What follows from merged
 * facts is a pure function of the merged ballot and the replicated state, in the order of engine slots, so ranks that
 * noticed in different order agree.
 */
#include "core/core_state.h"

#include <string.h>

#define BIT(fact) (1u << (fact))
enum {
    BAD_FACTS =
        BIT(GMS_FACT_GONE) | BIT(GMS_FACT_STICKY) | BIT(GMS_FACT_STALLED) | BIT(GMS_FACT_COMMANDED) | BIT(GMS_FACT_LEFT)
};

/* ------------------------------------------------------------------------------------------------- roles ------ */

/* EMPTY where there is no such move; RETIRED is the only one that really leads there. */
static const uint8_t role_next[GMS_ROLE_COUNT][GMS_ROLE_EVENT_COUNT] = {
    [GMS_ROLE_EMPTY] = {[GMS_ROLE_EVENT_JOINED] = GMS_ROLE_JOINED},
    [GMS_ROLE_JOINED] = {[GMS_ROLE_EVENT_PARKED] = GMS_ROLE_PARKED, [GMS_ROLE_EVENT_CONDEMNED] = GMS_ROLE_CONDEMNED},
    [GMS_ROLE_PARKED] = {[GMS_ROLE_EVENT_CHOSEN] = GMS_ROLE_PROMOTED, [GMS_ROLE_EVENT_CONDEMNED] = GMS_ROLE_CONDEMNED},
    [GMS_ROLE_PROMOTED] = {[GMS_ROLE_EVENT_READY] = GMS_ROLE_SERVING, [GMS_ROLE_EVENT_CONDEMNED] = GMS_ROLE_CONDEMNED},
    [GMS_ROLE_SERVING] = {[GMS_ROLE_EVENT_CONDEMNED] = GMS_ROLE_CONDEMNED},
    [GMS_ROLE_CONDEMNED] = {[GMS_ROLE_EVENT_RETIRED] = GMS_ROLE_EMPTY},
};

bool gms_core_move_role(struct gms_core *core, uint32_t engine, enum gms_role_event event)
{
    struct gms_core_engine *slot = &core->engines[engine];
    enum gms_role next = (enum gms_role)role_next[slot->role][event];

    if (next == GMS_ROLE_EMPTY && event != GMS_ROLE_EVENT_RETIRED)
        return false;
    core->rows.roles |= UINT64_C(1) << (8 * slot->role + event);
    slot->role = next;
    gms_core_mix(core, ((uint64_t)engine << 32) | (uint64_t)next);
    return true;
}

uint64_t gms_core_role_rows(void)
{
    uint64_t rows = 0;

    for (unsigned role = 0; role < GMS_ROLE_COUNT; role++)
        for (unsigned event = 0; event < GMS_ROLE_EVENT_COUNT; event++)
            if (role_next[role][event] != GMS_ROLE_EMPTY)
                rows |= UINT64_C(1) << (8 * role + event);
    rows |= UINT64_C(1) << (8 * GMS_ROLE_CONDEMNED + GMS_ROLE_EVENT_RETIRED);
    return rows;
}

uint32_t gms_core_role_facts(enum gms_role role)
{
    static const uint32_t facts[GMS_ROLE_COUNT] = {
        [GMS_ROLE_JOINED] = BAD_FACTS | BIT(GMS_FACT_PARKED),
        [GMS_ROLE_PARKED] = BAD_FACTS | BIT(GMS_FACT_CLASSIFIED) | BIT(GMS_FACT_WANTED),
        [GMS_ROLE_PROMOTED] = BAD_FACTS | BIT(GMS_FACT_READY),
        [GMS_ROLE_SERVING] = BAD_FACTS,
        [GMS_ROLE_CONDEMNED] = BIT(GMS_FACT_RETIRED),
    };
    return facts[role];
}

void gms_core_fact(struct gms_core *core, uint32_t engine, uint64_t incarnation, enum gms_fact fact)
{
    if (engine >= GMS_MAX_ENGINES || (unsigned)fact >= GMS_FACT_COUNT)
        return;
    struct gms_core_engine *slot = &core->engines[engine];
    if (slot->role == GMS_ROLE_EMPTY || slot->incarnation != incarnation)
        return;
    switch (fact) {
    case GMS_FACT_GONE:
        if (slot->facts & BIT(GMS_FACT_LEFT))
            return; /* the end of a process that said goodbye is no news */
        break;
    case GMS_FACT_RETIRED:
        if (!slot->fenced)
            return; /* only what was fenced is known to be whole */
        break;
    case GMS_FACT_CLASSIFIED:
        if (!slot->classifying)
            return;
        break;
    case GMS_FACT_READY:
        if (!slot->promoted || core->writer != incarnation)
            return; /* one that serves without having adopted would write slots that still are its predecessor's */
        break;
    case GMS_FACT_WANTED:
        if (slot->role != GMS_ROLE_PARKED)
            return; /* only who is ready can be wanted; said early it would be a surprise later */
        break;
    case GMS_FACT_STICKY:
    case GMS_FACT_STALLED:
    case GMS_FACT_COMMANDED:
    case GMS_FACT_LEFT:
    case GMS_FACT_PARKED:
    case GMS_FACT_COUNT:
        break;
    }
    slot->facts |= BIT(fact);
}

static bool on_all(const struct gms_core *core, const struct gms_ballot *merged, uint32_t engine, enum gms_fact fact)
{
    const struct gms_ballot_facts *facts = &merged->facts[engine];

    return facts->incarnation == core->engines[engine].incarnation && facts->count[fact] == core->options.world_size;
}

/* Said goodbye on this rank, with nothing in flight. Per rank: adoption takes what is usable on all of them. */
static bool left_cleanly(uint32_t facts)
{
    return (facts & BIT(GMS_FACT_LEFT)) && !(facts & (BIT(GMS_FACT_GONE) | BIT(GMS_FACT_STICKY)));
}

/* ------------------------------------------------------------------------------------------------- condemn ---- */

static void condemn(struct gms_core *core, uint32_t engine, const struct gms_ballot *merged, enum gms_fact cause)
{
    struct gms_core_engine *slot = &core->engines[engine];
    bool chosen = core->successor == (int32_t)engine;

    if (slot->incarnation == core->writer)
        gms_core_reclaim_suspect(core, engine);
    /* Only one that was told to go on can have been writing; the writer is such a one. */
    slot->may_write = slot->role == GMS_ROLE_PROMOTED || slot->role == GMS_ROLE_SERVING;
    gms_core_move_role(core, engine, GMS_ROLE_EVENT_CONDEMNED);
    if (slot->may_write || chosen) {
        core->epoch++; /* before the first signal; every new attempt has its own */
        gms_core_mix(core, core->epoch);
    }
    if (chosen)
        core->successor = -1;
    if (core->serving == (int32_t)engine)
        core->serving = -1;

    struct gms_text text = gms_core_note(core, GMS_E_CONDEMNED);
    gms_text_engine(&text, engine, slot->incarnation);
    gms_text_add(&text, " is condemned: ");
    gms_text_add(&text, gms_fact_name(cause));
    gms_text_count(&text, " on rank ", merged->facts[engine].lowest_rank[cause]);
    gms_text_count(&text, "; the epoch is ", core->epoch);

    gms_core_operation_condemned(core, engine, &merged->proposals[engine]);
    gms_core_transfers_condemned(core, slot->incarnation);

    struct gms_core_store *store = gms_core_store_begin(core, GMS_STORE_CONDEMNED, engine);
    store->source = cause;
    gms_core_store_send(core, store);
}

static void tell(struct gms_core *core, enum gms_action_type type, uint32_t engine, uint64_t incarnation,
                 uint64_t epoch, uint64_t source)
{
    struct gms_action *action = gms_core_emit(core, type);

    action->promote.engine = engine;
    action->promote.incarnation = incarnation;
    action->promote.epoch = epoch;
    action->promote.source = source;
}

/* `epoch`: one that this rank has stored. The core may be further by now, and what is not stored is told to nobody. */
void gms_core_fence(struct gms_core *core, uint32_t engine, uint64_t epoch, bool clean)
{
    struct gms_core_engine *slot = &core->engines[engine];
    struct gms_action *action = gms_core_emit(core, GMS_ACTION_FENCE);

    slot->condemned_stored = true;
    slot->fenced = true;
    slot->fenced_ns = core->now_ns;
    slot->fence_report_ns = core->options.fence_report_ns ? core->now_ns + core->options.fence_report_ns : UINT64_MAX;
    action->fence.engine = engine;
    action->fence.incarnation = slot->incarnation;
    action->fence.clean = clean;
    tell(core, GMS_ACTION_CONDEMNED, engine, slot->incarnation, epoch, 0);
}

void gms_core_condemned_stored(struct gms_core *core, const struct gms_core_store *store)
{
    gms_core_fence(core, store->engine, store->epoch, store->source == GMS_FACT_LEFT);
    gms_core_condemned_pending(core, store->engine);
    gms_core_transfers_condemned_stored(core, store->incarnation);
}

static void retire(struct gms_core *core, uint32_t engine)
{
    struct gms_core_engine *slot = &core->engines[engine];

    if (slot->incarnation != core->writer) { /* the writer's slots are still the group's KV */
        struct gms_action *action = gms_core_emit(core, GMS_ACTION_FORGET);
        action->promote.engine = engine;
        action->promote.incarnation = slot->incarnation;
        action->promote.epoch = core->epoch;
    } else {
        core->writer_clean = left_cleanly(slot->facts);
    }
    gms_core_pool_retired(core, engine);
    gms_core_move_role(core, engine, GMS_ROLE_EVENT_RETIRED);
    slot->incarnation = 0;
    slot->launch = 0;
    slot->next_sequence = 0;
    slot->parked_round = 0;
    slot->promoted_epoch = slot->promoted_source = 0;
    slot->may_write = false;
    memset(&slot->last, 0, sizeof slot->last); /* carried out everywhere before the cohort was fenced */
    slot->facts = 0;
    slot->condemned_stored = slot->fenced = slot->promoted = slot->serving = slot->classifying = false;
    slot->fence_report_ns = slot->reattach_report_ns = UINT64_MAX;
}

void gms_core_report_fences(struct gms_core *core)
{
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        struct gms_core_engine *slot = &core->engines[e];

        if (!slot->fenced || (slot->facts & BIT(GMS_FACT_RETIRED)) || core->now_ns < slot->fence_report_ns)
            continue;
        slot->fence_report_ns = core->now_ns + core->options.fence_report_ns;
        struct gms_text text = gms_core_note(core, GMS_E_TIMEOUT);
        gms_text_count(&text, "rank ", core->options.rank);
        gms_text_add(&text, " has not retired ");
        gms_text_engine(&text, e, slot->incarnation);
        gms_text_count(&text, " for ", (core->now_ns - slot->fenced_ns) / 1000000);
        gms_text_add(&text, " ms: a process of its cohort does not end (state D, or unknown pid?)");
        if (slot->may_write)
            gms_text_add(&text, "; nobody can be promoted until it has");
    }
}

/* What a restored group waits for: an engine rank that neither came back nor is seen to be dead. */
void gms_core_report_detached(struct gms_core *core)
{
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        struct gms_core_engine *slot = &core->engines[e];

        if (core->now_ns < slot->reattach_report_ns || slot->role == GMS_ROLE_EMPTY || slot->role == GMS_ROLE_CONDEMNED)
            continue;
        uint64_t waited_ns = core->now_ns - slot->reattach_since_ns;
        slot->reattach_report_ns = core->now_ns + waited_ns; /* again after twice the time: a log is not to be filled */
        struct gms_text text = gms_core_note(core, GMS_E_TIMEOUT);
        gms_text_engine(&text, e, slot->incarnation);
        gms_text_count(&text, " has not come back to rank ", core->options.rank);
        gms_text_count(&text, " within ", waited_ns / 1000000);
        gms_text_add(&text,
                     " ms of the coordinators' restart, but its process lives: stopped, or busy in a long call?");
    }
}

uint64_t gms_core_detached_deadline(const struct gms_core *core)
{
    uint64_t deadline = UINT64_MAX;

    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        const struct gms_core_engine *slot = &core->engines[e];

        if (slot->role != GMS_ROLE_EMPTY && slot->role != GMS_ROLE_CONDEMNED && slot->reattach_report_ns < deadline)
            deadline = slot->reattach_report_ns;
    }
    return deadline;
}

uint64_t gms_core_fence_deadline(const struct gms_core *core)
{
    uint64_t deadline = UINT64_MAX;

    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        const struct gms_core_engine *slot = &core->engines[e];

        if (slot->fenced && !(slot->facts & BIT(GMS_FACT_RETIRED)) && slot->fence_report_ns < deadline)
            deadline = slot->fence_report_ns;
    }
    return deadline;
}

/* ------------------------------------------------------------------------------------------------- takeover --- */

enum condition {
    FENCE_NEEDED = 1u << 0, /* a condemned engine that may have been writing is not retired on all ranks */
    CHOSEN = 1u << 1,       /* a successor is chosen */
    WRITER = 1u << 2,       /* somebody's slots are the group's KV */
    CLASSIFIED = 1u << 3,   /* the successor's directory is filled on all ranks */
    READY = 1u << 4,        /* the successor is ready on all ranks */
};

/* The first row that fits moves. PROMOTING with FENCE_NEEDED is the loss of a promoted successor. */
static const struct takeover_row {
    enum gms_takeover_state state;
    uint32_t with, without;
    enum gms_takeover_state next;
} takeover_rows[] = {
    {GMS_TAKEOVER_VACANT, FENCE_NEEDED, 0, GMS_TAKEOVER_FENCING},
    {GMS_TAKEOVER_VACANT, CHOSEN, WRITER, GMS_TAKEOVER_PROMOTING},
    {GMS_TAKEOVER_VACANT, CHOSEN | WRITER, 0, GMS_TAKEOVER_CLASSIFYING},
    {GMS_TAKEOVER_FENCING, CHOSEN, FENCE_NEEDED | WRITER, GMS_TAKEOVER_PROMOTING},
    {GMS_TAKEOVER_FENCING, CHOSEN | WRITER, FENCE_NEEDED, GMS_TAKEOVER_CLASSIFYING},
    {GMS_TAKEOVER_FENCING, 0, FENCE_NEEDED | CHOSEN, GMS_TAKEOVER_VACANT},
    {GMS_TAKEOVER_CLASSIFYING, 0, CHOSEN, GMS_TAKEOVER_VACANT},
    {GMS_TAKEOVER_CLASSIFYING, CHOSEN | CLASSIFIED, 0, GMS_TAKEOVER_PROMOTING},
    {GMS_TAKEOVER_PROMOTING, FENCE_NEEDED, 0, GMS_TAKEOVER_FENCING},
    {GMS_TAKEOVER_PROMOTING, CHOSEN | READY, 0, GMS_TAKEOVER_SERVING},
    {GMS_TAKEOVER_SERVING, FENCE_NEEDED, 0, GMS_TAKEOVER_FENCING},
};

uint64_t gms_core_takeover_rows(void)
{
    return (UINT64_C(1) << sizeof takeover_rows / sizeof takeover_rows[0]) - 1;
}

bool gms_core_takeover_busy(const struct gms_core *core)
{
    return core->takeover == GMS_TAKEOVER_FENCING || core->takeover == GMS_TAKEOVER_CLASSIFYING ||
           core->takeover == GMS_TAKEOVER_PROMOTING;
}

static uint32_t conditions(const struct gms_core *core, const struct gms_ballot *merged)
{
    uint32_t found = core->writer ? WRITER : 0;

    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++)
        if (core->engines[e].role == GMS_ROLE_CONDEMNED && core->engines[e].may_write)
            found |= FENCE_NEEDED;
    if (core->successor < 0)
        return found;
    found |= CHOSEN;
    if (on_all(core, merged, (uint32_t)core->successor, GMS_FACT_CLASSIFIED))
        found |= CLASSIFIED;
    if (on_all(core, merged, (uint32_t)core->successor, GMS_FACT_READY))
        found |= READY;
    return found;
}

/* Whom an operator wants, else who was parked everywhere first; of several in one round, the lowest engine id. */
static int32_t candidate(const struct gms_core *core, const struct gms_ballot *merged)
{
    int32_t best = -1;
    bool best_wanted = false;

    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        const struct gms_core_engine *slot = &core->engines[e];
        bool wanted = merged->facts[e].incarnation == slot->incarnation && merged->facts[e].count[GMS_FACT_WANTED];

        if (slot->role != GMS_ROLE_PARKED || (best >= 0 && best_wanted > wanted))
            continue;
        if (best >= 0 && best_wanted == wanted && slot->parked_round >= core->engines[best].parked_round)
            continue;
        best = (int32_t)e;
        best_wanted = wanted;
    }
    return best;
}

static void enter_promoting(struct gms_core *core)
{
    uint32_t engine = (uint32_t)core->successor;

    if (!core->writer)
        core->epoch++; /* with a writer, its condemnation raised it */
    gms_core_mix(core, core->epoch);
    gms_core_move_role(core, engine, GMS_ROLE_EVENT_CHOSEN);
    core->engines[engine].promoted_epoch = core->epoch;
    core->engines[engine].promoted_source = core->writer;

    struct gms_core_store *store = gms_core_store_begin(core, GMS_STORE_EPOCH, engine);
    store->source = core->writer;
    gms_core_store_send(core, store);
}

static void enter_serving(struct gms_core *core)
{
    uint32_t engine = (uint32_t)core->successor;

    gms_core_move_role(core, engine, GMS_ROLE_EVENT_READY);
    core->serving = core->successor;
    core->successor = -1;
    gms_core_store_send(core, gms_core_store_begin(core, GMS_STORE_SERVING, engine));
}

static void enter_vacant(struct gms_core *core, const struct gms_ballot *merged)
{
    if (candidate(core, merged) >= 0)
        return;
    struct gms_text text = gms_core_note(core, GMS_E_AGAIN);
    gms_text_count(&text, "NOBODY SERVES and no engine is ready to take over (epoch ", core->epoch);
    gms_text_add(&text, "): start an engine; the first that is parked on all ranks is promoted");
}

static void enter(struct gms_core *core, const struct gms_ballot *merged, enum gms_takeover_state state)
{
    core->takeover = state;
    gms_core_mix(core, (uint64_t)state);
    switch (state) {
    case GMS_TAKEOVER_PROMOTING:
        enter_promoting(core);
        break;
    case GMS_TAKEOVER_SERVING:
        enter_serving(core);
        break;
    case GMS_TAKEOVER_VACANT:
        enter_vacant(core, merged);
        break;
    case GMS_TAKEOVER_FENCING:
    case GMS_TAKEOVER_CLASSIFYING:
    case GMS_TAKEOVER_STATE_COUNT:
        break;
    }
}

static void advance(struct gms_core *core, const struct gms_ballot *merged)
{
    bool moved = true;

    while (moved) {
        moved = false;
        if (core->successor < 0 && (core->takeover == GMS_TAKEOVER_VACANT || core->takeover == GMS_TAKEOVER_FENCING)) {
            core->successor =
                candidate(core, merged); /* chosen early: each rank classifies as soon as it is fenced itself */
            if (core->successor >= 0)
                gms_core_mix(core, core->engines[core->successor].incarnation);
        }
        uint32_t found = conditions(core, merged);
        for (size_t i = 0; i < sizeof takeover_rows / sizeof takeover_rows[0] && !moved; i++) {
            const struct takeover_row *row = &takeover_rows[i];

            if (row->state != core->takeover || (found & row->with) != row->with || (found & row->without))
                continue;
            core->rows.takeover |= UINT64_C(1) << i;
            enter(core, merged, row->next);
            moved = true;
        }
    }
}

void gms_core_facts(struct gms_core *core, const struct gms_ballot *merged)
{
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        struct gms_core_engine *slot = &core->engines[e];
        const struct gms_ballot_facts *facts = &merged->facts[e];

        if (slot->role == GMS_ROLE_EMPTY || facts->incarnation != slot->incarnation)
            continue;
        if (slot->role == GMS_ROLE_JOINED && on_all(core, merged, e, GMS_FACT_PARKED)) {
            gms_core_move_role(core, e, GMS_ROLE_EVENT_PARKED);
            slot->parked_round = core->round;
        }
        if (slot->role == GMS_ROLE_CONDEMNED) {
            if (on_all(core, merged, e, GMS_FACT_RETIRED))
                retire(core, e);
            continue;
        }
        for (unsigned f = 0; f < GMS_FACT_COUNT; f++) {
            if (!(BAD_FACTS & BIT(f)) || !facts->count[f])
                continue;
            condemn(core, e, merged, (enum gms_fact)f);
            break;
        }
    }
    advance(core, merged);
}

/* ------------------------------------------------------------------------------------------------- effects ---- */

void gms_core_epoch_stored(struct gms_core *core, const struct gms_core_store *store)
{
    struct gms_core_engine *slot = &core->engines[store->engine];

    if (slot->incarnation != store->incarnation || slot->role != GMS_ROLE_PROMOTED)
        return; /* condemned meanwhile: it is not told to go on */
    slot->promoted = true;
    tell(core, GMS_ACTION_PROMOTE, store->engine, store->incarnation, store->epoch, store->source);
}

void gms_core_serving_stored(struct gms_core *core, const struct gms_core_store *store)
{
    struct gms_core_engine *slot = &core->engines[store->engine];

    if (slot->incarnation != store->incarnation || slot->role != GMS_ROLE_SERVING)
        return;
    slot->serving = true;
    tell(core, GMS_ACTION_SERVING, store->engine, store->incarnation, store->epoch, 0);
}

void gms_core_attached(struct gms_core *core, uint32_t engine, uint64_t incarnation)
{
    if (engine >= GMS_MAX_ENGINES)
        return;
    struct gms_core_engine *slot = &core->engines[engine];
    if (slot->role == GMS_ROLE_EMPTY || slot->incarnation != incarnation) {
        tell(core, GMS_ACTION_CONDEMNED, engine, incarnation, core->epoch, 0);
        return;
    }
    slot->reattach_report_ns = UINT64_MAX;
    switch (slot->role) {
    case GMS_ROLE_PROMOTED:
        if (slot->promoted)
            tell(core, GMS_ACTION_PROMOTE, engine, incarnation, slot->promoted_epoch, slot->promoted_source);
        break;
    case GMS_ROLE_SERVING: /* said READY on every rank, so it was told the promotion */
        if (slot->serving)
            tell(core, GMS_ACTION_SERVING, engine, incarnation, slot->promoted_epoch, 0);
        break;
    case GMS_ROLE_CONDEMNED:
        if (slot->condemned_stored)
            tell(core, GMS_ACTION_CONDEMNED, engine, incarnation, core->epoch, 0);
        break;
    case GMS_ROLE_EMPTY:
    case GMS_ROLE_JOINED:
    case GMS_ROLE_PARKED:
    case GMS_ROLE_COUNT:
        break;
    }
}

void gms_core_classify(struct gms_core *core)
{
    if (core->successor < 0 || !core->writer ||
        (core->takeover != GMS_TAKEOVER_FENCING && core->takeover != GMS_TAKEOVER_CLASSIFYING))
        return;
    struct gms_core_engine *slot = &core->engines[core->successor];
    if (slot->classifying)
        return;

    bool clean = core->writer_clean;
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        const struct gms_core_engine *suspect = &core->engines[e];

        if (suspect->role == GMS_ROLE_CONDEMNED && suspect->may_write && !(suspect->facts & BIT(GMS_FACT_RETIRED)))
            return; /* it can still write on this rank */
        if (suspect->role == GMS_ROLE_CONDEMNED && suspect->incarnation == core->writer)
            clean = left_cleanly(suspect->facts);
    }
    slot->classifying = true;
    struct gms_action *action = gms_core_emit(core, GMS_ACTION_CLASSIFY);
    action->classify.engine = (uint32_t)core->successor;
    action->classify.incarnation = slot->incarnation;
    action->classify.source = core->writer;
    action->classify.source_clean = clean;
    action->classify.suspect = gms_core_reclaim_place(core, core->writer);
}
