/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reclaim.h"

#include <string.h>

#include "core/core_state.h"

#define BIT(place) (1u << (place))

/* Where a state may go; the diagram is in reclaim.h. RESTING is where all may go. */
static const uint8_t next_states[GMS_RECLAIM_STATE_COUNT] = {
    [GMS_RECLAIM_RESTING] = BIT(GMS_RECLAIM_STAMPING),
    [GMS_RECLAIM_STAMPING] = BIT(GMS_RECLAIM_PROVING) | BIT(GMS_RECLAIM_RESTING),
    [GMS_RECLAIM_PROVING] = BIT(GMS_RECLAIM_LOOKING) | BIT(GMS_RECLAIM_RESTING),
    [GMS_RECLAIM_LOOKING] =
        BIT(GMS_RECLAIM_LOOKING) | BIT(GMS_RECLAIM_FREEING) | BIT(GMS_RECLAIM_CLEARING) | BIT(GMS_RECLAIM_RESTING),
    [GMS_RECLAIM_FREEING] = BIT(GMS_RECLAIM_LOOKING) | BIT(GMS_RECLAIM_CLEARING) | BIT(GMS_RECLAIM_RESTING),
    [GMS_RECLAIM_CLEARING] = BIT(GMS_RECLAIM_PROVING) | BIT(GMS_RECLAIM_RESTING),
};

uint64_t gms_core_reclaim_rows(void)
{
    uint64_t rows = 0;

    for (unsigned state = 0; state < GMS_RECLAIM_STATE_COUNT; state++)
        rows |= (uint64_t)next_states[state] << (8 * state);
    return rows;
}

const char *gms_reclaim_state_name(enum gms_reclaim_state state)
{
    static const char *const names[GMS_RECLAIM_STATE_COUNT] = {
        [GMS_RECLAIM_RESTING] = "resting", [GMS_RECLAIM_STAMPING] = "stamping", [GMS_RECLAIM_PROVING] = "proving",
        [GMS_RECLAIM_LOOKING] = "looking", [GMS_RECLAIM_FREEING] = "freeing",   [GMS_RECLAIM_CLEARING] = "clearing"};
    return (unsigned)state < GMS_RECLAIM_STATE_COUNT ? names[state] : "unknown";
}

const char *gms_reclaim_answer_name(enum gms_reclaim_answer answer)
{
    static const char *const names[GMS_RECLAIM_ANSWER_COUNT] = {[GMS_RECLAIM_NOT_YET] = "pending",
                                                                [GMS_RECLAIM_QUIET] = "reclaimed",
                                                                [GMS_RECLAIM_BEST_EFFORT] = "reclaimed-best-effort",
                                                                [GMS_RECLAIM_CANNOT_KNOW] = "quarantined"};
    return (unsigned)answer < GMS_RECLAIM_ANSWER_COUNT ? names[answer] : "unknown";
}

/* ------------------------------------------------------------------------------------------------- suspects --- */

uint32_t gms_core_reclaim_place(const struct gms_core *core, uint64_t incarnation)
{
    for (uint32_t i = 0; i < GMS_RECLAIM_CROWD; i++)
        if (core->reclaim.suspects[i].incarnation == incarnation && incarnation)
            return i;
    return GMS_RECLAIM_CROWD;
}

static bool any_pending(const struct gms_core *core)
{
    for (uint32_t i = 0; i < GMS_RECLAIM_SUSPECTS; i++)
        if (core->reclaim.suspects[i].incarnation && core->reclaim.suspects[i].verdict == GMS_RECLAIM_NOT_YET)
            return true;
    return false;
}

void gms_core_reclaim_suspect(struct gms_core *core, uint32_t engine)
{
    struct gms_core_reclaim *reclaim = &core->reclaim;
    uint64_t incarnation = core->engines[engine].incarnation;
    uint32_t place = 0;

    if (!core->options.reclaim_slots || gms_core_reclaim_place(core, incarnation) != GMS_RECLAIM_CROWD)
        return;
    while (place < GMS_RECLAIM_CROWD && reclaim->suspects[place].incarnation)
        place++;
    gms_core_mix(core, incarnation + place);
    if (place == GMS_RECLAIM_CROWD) {
        struct gms_text text = gms_core_note(core, GMS_E_NO_CAPACITY);
        gms_text_engine(&text, engine, incarnation);
        gms_text_count(&text, " is one dead writer too many that nobody can prove quiet (the limit is ",
                       GMS_RECLAIM_CROWD);
        gms_text_add(&text, "): what it had leased stays in quarantine until the deployment is started afresh");
        reclaim->suspects[place] =
            (struct gms_core_suspect){.incarnation = UINT64_MAX, .engine = engine, .verdict = GMS_RECLAIM_CANNOT_KNOW};
        return;
    }
    reclaim->suspects[place] = (struct gms_core_suspect){.incarnation = incarnation, .engine = engine};
}

/* ------------------------------------------------------------------------------------------------- moves ------ */

static bool move(struct gms_core *core, enum gms_reclaim_state state)
{
    struct gms_core_reclaim *reclaim = &core->reclaim;

    if (!(next_states[reclaim->state] >> state & 1))
        return false;
    core->rows.reclaim |= UINT64_C(1) << (8 * reclaim->state + state);
    reclaim->state = state;
    reclaim->step++;
    gms_core_mix(core, ((uint64_t)state << 56) ^ reclaim->step);
    return true;
}

/* The present step's work begins when this is stored. */
static void store_step(struct gms_core *core)
{
    struct gms_core_store *store = gms_core_store_begin(core, GMS_STORE_RECLAIM, (uint32_t)core->serving);

    store->step = core->reclaim.step;
    gms_core_store_send(core, store);
}

/* What a suspect came to: told when it is stored. */
static void store_verdict(struct gms_core *core, const struct gms_core_suspect *suspect)
{
    struct gms_core_store *store = gms_core_store_begin(core, GMS_STORE_RECLAIM, suspect->engine);

    store->incarnation = suspect->incarnation;
    store->source = suspect->verdict;
    gms_core_store_send(core, store);
}

static struct gms_action *work(struct gms_core *core, enum gms_reclaim_work what)
{
    const struct gms_core_reclaim *reclaim = &core->reclaim;
    struct gms_action *action = gms_core_emit(core, GMS_ACTION_RECLAIM);

    action->reclaim.work = what;
    action->reclaim.step = reclaim->step;
    action->reclaim.owner = reclaim->owner;
    action->reclaim.chosen = reclaim->chosen;
    action->reclaim.position = reclaim->position;
    action->reclaim.slots = core->options.reclaim_slots;
    action->reclaim.inherits = core->options.reclaim_inherits;
    action->reclaim.bitmap = reclaim->free;
    return action;
}

static void rest(struct gms_core *core)
{
    move(core, GMS_RECLAIM_RESTING);
    core->reclaim.owner = 0;
    core->reclaim.chosen = 0;
}

/* Nothing that is half done is lost: what is freed on this rank only is quarantined again by the next classification,
 * and a suspect that was quiet is asked about again. */
static void leave_off(struct gms_core *core)
{
    struct gms_core_reclaim *reclaim = &core->reclaim;

    for (uint32_t i = 0; i < GMS_RECLAIM_SUSPECTS; i++)
        if (reclaim->suspects[i].incarnation && reclaim->suspects[i].verdict != GMS_RECLAIM_CANNOT_KNOW)
            reclaim->suspects[i].verdict = GMS_RECLAIM_NOT_YET;
    work(core, GMS_RECLAIM_STOP);
    rest(core);
}

static void begin(struct gms_core *core)
{
    core->reclaim.owner = core->engines[core->serving].incarnation;
    gms_core_mix(core, core->reclaim.owner);
    move(core, GMS_RECLAIM_STAMPING);
    core->reclaim.stored_step = core->reclaim.step; /* stamping again does no harm */
}

static void prove(struct gms_core *core)
{
    move(core, GMS_RECLAIM_PROVING);
    memset(core->reclaim.answers, 0, sizeof core->reclaim.answers);
    store_step(core);
}

static void look(struct gms_core *core, uint64_t position)
{
    core->reclaim.position = position;
    gms_core_mix(core, position);
    move(core, position == GMS_RECLAIM_END ? GMS_RECLAIM_CLEARING : GMS_RECLAIM_LOOKING);
    if (position == GMS_RECLAIM_END)
        store_step(core);
    else
        core->reclaim.stored_step = core->reclaim.step;
}

/* Which suspects are quiet on every rank? */
static void proved(struct gms_core *core, const struct gms_ballot_reclaim *lane)
{
    struct gms_core_reclaim *reclaim = &core->reclaim;

    for (uint32_t i = 0; i < GMS_RECLAIM_SUSPECTS; i++) {
        struct gms_core_suspect *suspect = &reclaim->suspects[i];

        if (!suspect->incarnation || suspect->verdict != GMS_RECLAIM_NOT_YET ||
            lane->quiet[i] != core->options.world_size)
            continue;
        suspect->verdict = lane->best_effort[i] ? GMS_RECLAIM_BEST_EFFORT : GMS_RECLAIM_QUIET;
        reclaim->chosen |= BIT(i);
    }
    if (reclaim->chosen) {
        gms_core_mix(core, reclaim->chosen);
        look(core, 0);
    } else if (!any_pending(core)) {
        rest(core);
    }
}

static void looked(struct gms_core *core, const struct gms_ballot_reclaim *lane)
{
    struct gms_core_reclaim *reclaim = &core->reclaim;
    bool any = false;

    for (uint32_t i = 0; i < sizeof reclaim->free; i++) {
        reclaim->free[i] = (uint8_t)~lane->blocked[i];
        any = any || reclaim->free[i];
        gms_core_mix(core, reclaim->free[i]);
    }
    reclaim->next = lane->next;
    /* The next step begins behind this one: what the ranks say is not trusted to end. */
    if (reclaim->next < reclaim->position + core->options.reclaim_slots)
        reclaim->next = reclaim->position + core->options.reclaim_slots;
    gms_core_mix(core, reclaim->next);
    if (!any) {
        look(core, reclaim->next);
        return;
    }
    move(core, GMS_RECLAIM_FREEING);
    store_step(core);
}

static void cleared(struct gms_core *core)
{
    struct gms_core_reclaim *reclaim = &core->reclaim;

    for (uint32_t i = 0; i < GMS_RECLAIM_SUSPECTS; i++) {
        if (!(reclaim->chosen & BIT(i)))
            continue;
        store_verdict(core, &reclaim->suspects[i]);
        reclaim->suspects[i] = (struct gms_core_suspect){0};
    }
    reclaim->chosen = 0;
    if (any_pending(core))
        prove(core);
    else
        rest(core);
}

/* One rank that cannot know is enough: its pages do not come back, so nobody's do. */
static void give_up(struct gms_core *core, const struct gms_ballot_reclaim *lane)
{
    for (uint32_t i = 0; i < GMS_RECLAIM_SUSPECTS; i++) {
        struct gms_core_suspect *suspect = &core->reclaim.suspects[i];

        if (!suspect->incarnation || suspect->verdict != GMS_RECLAIM_NOT_YET || !lane->cannot_know[i])
            continue;
        suspect->verdict = GMS_RECLAIM_CANNOT_KNOW;
        gms_core_mix(core, suspect->incarnation);
        struct gms_text text = gms_core_note(core, GMS_E_QUARANTINED);
        gms_text_engine(&text, suspect->engine, suspect->incarnation);
        gms_text_count(&text, " cannot be proven quiet on rank ", lane->cannot_know_rank[i]);
        gms_text_add(&text, ": what it may still write stays in quarantine");
        store_verdict(core, suspect);
    }
}

static bool owner_serves(const struct gms_core *core)
{
    return core->takeover == GMS_TAKEOVER_SERVING && core->serving >= 0 &&
           core->engines[core->serving].incarnation == core->reclaim.owner;
}

void gms_core_reclaim_round(struct gms_core *core, const struct gms_ballot *merged)
{
    struct gms_core_reclaim *reclaim = &core->reclaim;
    const struct gms_ballot_reclaim *lane = &merged->reclaim;

    if (reclaim->state != GMS_RECLAIM_RESTING && !owner_serves(core)) {
        leave_off(core);
        return;
    }
    if (reclaim->state == GMS_RECLAIM_RESTING) {
        if (core->takeover == GMS_TAKEOVER_SERVING && any_pending(core))
            begin(core);
        return;
    }
    if (lane->step != reclaim->step)
        return; /* said by nobody, or of what is over */
    bool done = lane->done == core->options.world_size;

    switch (reclaim->state) {
    case GMS_RECLAIM_STAMPING:
        if (done)
            prove(core);
        break;
    case GMS_RECLAIM_PROVING:
        give_up(core, lane);
        proved(core, lane);
        break;
    case GMS_RECLAIM_LOOKING:
        if (done)
            looked(core, lane);
        break;
    case GMS_RECLAIM_FREEING:
        if (!done)
            break;
        work(core, GMS_RECLAIM_GRANT);
        look(core, reclaim->next);
        break;
    case GMS_RECLAIM_CLEARING:
        if (done)
            cleared(core);
        break;
    case GMS_RECLAIM_RESTING:
    case GMS_RECLAIM_STATE_COUNT:
        break;
    }
}

/* ------------------------------------------------------------------------------------------------- local ------ */

void gms_core_reclaim_offer(const struct gms_core *core, struct gms_ballot_reclaim *ret_lane)
{
    const struct gms_core_reclaim *reclaim = &core->reclaim;

    if (reclaim->state == GMS_RECLAIM_RESTING)
        return;
    ret_lane->step = reclaim->step;
    for (uint32_t i = 0; i < GMS_RECLAIM_SUSPECTS && reclaim->state == GMS_RECLAIM_PROVING; i++) {
        enum gms_reclaim_answer answer = (enum gms_reclaim_answer)reclaim->answers[i];

        ret_lane->quiet[i] = answer == GMS_RECLAIM_QUIET || answer == GMS_RECLAIM_BEST_EFFORT;
        ret_lane->best_effort[i] = answer == GMS_RECLAIM_BEST_EFFORT;
        ret_lane->cannot_know[i] = answer == GMS_RECLAIM_CANNOT_KNOW;
        if (ret_lane->cannot_know[i])
            ret_lane->cannot_know_rank[i] = (uint16_t)core->options.rank;
    }
    if (reclaim->done_step != reclaim->step)
        return;
    ret_lane->done = 1;
    if (reclaim->state != GMS_RECLAIM_LOOKING)
        return;
    ret_lane->next = reclaim->found_next;
    memcpy(ret_lane->blocked, reclaim->blocked, sizeof ret_lane->blocked);
}

bool gms_core_reclaim_says(const struct gms_ballot_reclaim *lane)
{
    bool says = lane->done != 0;

    for (uint32_t i = 0; i < GMS_RECLAIM_SUSPECTS; i++)
        says = says || lane->quiet[i] || lane->cannot_know[i];
    return says;
}

void gms_core_reclaim_event(struct gms_core *core, const struct gms_event *event)
{
    struct gms_core_reclaim *reclaim = &core->reclaim;

    /* Of another step: asked before what it would be taken for. */
    if (event->reclaim.step != reclaim->step || reclaim->issued_step != reclaim->step)
        return;
    if (event->type == GMS_EVENT_RECLAIM_ANSWER) {
        uint32_t place = gms_core_reclaim_place(core, event->reclaim.suspect);

        if (reclaim->state == GMS_RECLAIM_PROVING && place != GMS_RECLAIM_CROWD &&
            (unsigned)event->reclaim.answer < GMS_RECLAIM_ANSWER_COUNT)
            reclaim->answers[place] = (uint8_t)event->reclaim.answer;
        return;
    }
    if (reclaim->state == GMS_RECLAIM_PROVING || reclaim->done_step == reclaim->step)
        return;
    reclaim->done_step = reclaim->step;
    reclaim->found_next = event->reclaim.next;
    memcpy(reclaim->blocked, event->reclaim.blocked, sizeof reclaim->blocked);
    for (uint32_t i = core->options.reclaim_slots; i < GMS_RECLAIM_SLOTS; i++)
        reclaim->blocked[i / 8] |= (uint8_t)(1u << (i % 8));
}

void gms_core_reclaim_stored(struct gms_core *core, const struct gms_core_store *store)
{
    if (store->step > core->reclaim.stored_step)
        core->reclaim.stored_step = store->step;
    if (store->step)
        return;
    struct gms_action *action = work(core, GMS_RECLAIM_ENDED);
    action->reclaim.engine = store->engine;
    action->reclaim.suspect = store->incarnation;
    action->reclaim.answer = (enum gms_reclaim_answer)store->source;
}

void gms_core_reclaim_settle(struct gms_core *core)
{
    static const enum gms_reclaim_work works[GMS_RECLAIM_STATE_COUNT] = {[GMS_RECLAIM_STAMPING] = GMS_RECLAIM_STAMP,
                                                                         [GMS_RECLAIM_PROVING] = GMS_RECLAIM_ASK,
                                                                         [GMS_RECLAIM_LOOKING] = GMS_RECLAIM_LOOK,
                                                                         [GMS_RECLAIM_FREEING] = GMS_RECLAIM_FREE,
                                                                         [GMS_RECLAIM_CLEARING] = GMS_RECLAIM_CLEAR};
    struct gms_core_reclaim *reclaim = &core->reclaim;

    if (reclaim->state == GMS_RECLAIM_RESTING || reclaim->issued_step == reclaim->step ||
        reclaim->stored_step < reclaim->step)
        return;
    if (core->serving < 0 || !core->engines[core->serving].serving)
        return; /* who serves is told first: nothing of this is on the way of a takeover */
    reclaim->issued_step = reclaim->step;
    if (reclaim->state != GMS_RECLAIM_PROVING) {
        work(core, works[reclaim->state]);
        return;
    }
    for (uint32_t i = 0; i < GMS_RECLAIM_SUSPECTS; i++) {
        const struct gms_core_suspect *suspect = &reclaim->suspects[i];

        if (!suspect->incarnation || suspect->verdict != GMS_RECLAIM_NOT_YET)
            continue;
        struct gms_action *action = work(core, GMS_RECLAIM_ASK);
        action->reclaim.engine = suspect->engine;
        action->reclaim.suspect = suspect->incarnation;
    }
}

void gms_core_reclaim_restored(struct gms_core *core, bool salvaged)
{
    struct gms_core_reclaim *reclaim = &core->reclaim;

    if (salvaged && reclaim->state != GMS_RECLAIM_RESTING)
        leave_off(core);
    reclaim->stored_step = reclaim->step; /* the driver stores what was restored before it does anything */
    reclaim->issued_step = reclaim->done_step = 0;
    memset(reclaim->answers, 0, sizeof reclaim->answers);
}

/* ------------------------------------------------------------------------------------------------- views ------ */

void gms_core_look_reclaim(const struct gms_core *core, struct gms_core_reclaim_view *ret_view)
{
    const struct gms_core_reclaim *reclaim = &core->reclaim;

    *ret_view = (struct gms_core_reclaim_view){.state = reclaim->state,
                                               .owner = reclaim->owner,
                                               .step = reclaim->step,
                                               .chosen = reclaim->chosen,
                                               .position = reclaim->position,
                                               .bitmap = reclaim->free};
}

bool gms_core_look_suspect(const struct gms_core *core, uint32_t place, struct gms_core_suspect *ret_suspect)
{
    if (place >= GMS_RECLAIM_SUSPECTS || !core->reclaim.suspects[place].incarnation)
        return false;
    *ret_suspect = core->reclaim.suspects[place];
    return true;
}
