/* SPDX-License-Identifier: Apache-2.0
 *
 * Round 0 of a world, and a core that goes on.
 *
 * What anybody was told is in the snapshot of the rank that told it, and a rank tells nothing of a round before its own
 * snapshot of that round is stored. So the greatest snapshot of all ranks holds everything that was ever told, as long
 * as no rank had a greater one: that is what mirrors are for. The rule is in recovery.h.
 */
#include "core/recovery.h"

#include <string.h>

#include "core/snapshot.h"

/* ------------------------------------------------------------------------------------------------- deciding --- */

static const char *const doubt_words[GMS_DOUBT_COUNT] = {
    [GMS_DOUBT_NONE] = "has no store, while others have",
    [GMS_DOUBT_MISSING] = "has lost its store",
    [GMS_DOUBT_OLDER] = "has a store that is older than what the keeper remembers",
    [GMS_DOUBT_DAMAGED] = "has a damaged store",
    [GMS_DOUBT_OTHER_BOOT] = "has a store of another boot of its node",
    [GMS_DOUBT_MEMORY_LOST] = "has a keeper without the memory that its store names",
};

struct summary {
    bool lives, accepted, any_store;
    uint64_t store_world;                       /* the greatest */
    const struct gms_recovery_report *greatest; /* NULL: no rank has a snapshot */
    const struct gms_recovery_report *doubtful; /* the lowest rank that is in doubt; NULL: none */
    const struct gms_recovery_report *alive;    /* the lowest rank where something lives or is prepared */
};

static bool is_later(const struct gms_recovery_report *a, const struct gms_recovery_report *b)
{
    return a->world > b->world || (a->world == b->world && a->round > b->round);
}

/* May this rank have told more than any snapshot has that is left? */
static bool is_in_doubt(const struct gms_recovery_report *report, const struct summary *found)
{
    const struct gms_recovery_report *greatest = found->greatest;

    if (report->doubt == GMS_DOUBT_MEMORY_LOST && found->alive) /* else it is nobody's: a RENEW gives it up anyway */
        return true;
    if (!report->mirror_world)
        return found->any_store && !report->has_store;
    if (!report->mirror_round) /* it had not told anything */
        return false;
    return !greatest || report->mirror_world > greatest->world ||
           (report->mirror_world == greatest->world && report->mirror_round > greatest->round);
}

static struct summary summarize(const struct gms_recovery_report *reports, uint32_t ranks)
{
    struct summary found = {.accepted = true};

    for (uint32_t r = 0; r < ranks; r++) {
        const struct gms_recovery_report *report = &reports[r];

        found.any_store = found.any_store || report->has_store;
        if (report->has_store && report->store_world > found.store_world)
            found.store_world = report->store_world;
        found.lives = found.lives || report->keeper_holds;
        found.accepted = found.accepted && report->accept_loss;
        if (!found.alive && (report->keeper_holds || report->prepared))
            found.alive = report;
        if (report->has_store && report->round && (!found.greatest || is_later(report, found.greatest)))
            found.greatest = report;
    }
    for (uint32_t r = 0; r < ranks && !found.doubtful; r++)
        if (is_in_doubt(&reports[r], &found))
            found.doubtful = &reports[r];
    return found;
}

static struct gms_text verdict(struct gms_recovery_decision *decision, enum gms_recovery_verdict what,
                               const struct gms_recovery_report *from)
{
    decision->verdict = what;
    decision->from_rank = from ? from->rank : 0;
    decision->life = 0;
    return gms_text_begin(decision->text, sizeof decision->text);
}

static void text_from(struct gms_text *text, const struct gms_recovery_report *from)
{
    gms_text_count(text, "rank ", from->rank);
    gms_text_count(text, "'s state after round ", from->round);
    gms_text_count(text, " of world ", from->world);
}

static void text_ways_out(struct gms_text *text, const struct gms_recovery_report *greatest)
{
    if (greatest) {
        gms_text_add(text, ". Start gms-coord with --accept-store-loss to go on from ");
        text_from(text, greatest);
        gms_text_add(text, " (all engines are ended, KV and weights are given up), or");
    } else {
        gms_text_add(text, ". To");
    }
    gms_text_add(text, " give up everything: restart gms-keeper on all nodes, then gms-coord with --fresh");
}

static const char *why_alive(const struct gms_recovery_report *report)
{
    switch ((enum gms_recovery_holds)report->keeper_holds) {
    case GMS_HOLDS_NOTHING:
        return " has an operation without outcome";
    case GMS_HOLDS_KEPT:
        return "'s keeper still holds memory or sessions";
    case GMS_HOLDS_UNSEEN:
        break;
    }
    return "'s store names engines that no coordinator saw end";
}

static bool reports_fit(const struct gms_recovery_report *reports, uint32_t ranks,
                        struct gms_recovery_decision *decision)
{
    struct gms_text text;

    for (uint32_t r = 0; r < ranks; r++) {
        if (reports[r].version == GMS_RECOVERY_REPORT_VERSION && reports[r].rank == r &&
            reports[r].doubt < GMS_DOUBT_COUNT)
            continue;
        text = verdict(decision, GMS_RECOVERY_REFUSE, NULL);
        gms_text_count(&text, "rank ", r);
        gms_text_count(&text, " reports what it has in version ", reports[r].version);
        gms_text_count(&text, ", not ", GMS_RECOVERY_REPORT_VERSION);
        gms_text_add(&text, ": all ranks must run the same gms-coord");
        return false;
    }
    return true;
}

void gms_recovery_decide(const struct gms_recovery_report *reports, uint32_t ranks,
                         struct gms_recovery_decision *ret_decision)
{
    struct summary found = summarize(reports, ranks);
    struct gms_text text;

    memset(ret_decision, 0, sizeof *ret_decision);
    if (!reports_fit(reports, ranks, ret_decision))
        return;
    if (found.doubtful && found.alive && !(found.accepted && found.greatest)) {
        text = verdict(ret_decision, GMS_RECOVERY_REFUSE, NULL);
        gms_text_count(&text, "rank ", found.doubtful->rank);
        gms_text_add(&text, " ");
        gms_text_add(
            &text,
            doubt_words[found.doubtful->doubt == GMS_DOUBT_NONE && found.doubtful->has_store ? GMS_DOUBT_OLDER
                                                                                             : found.doubtful->doubt]);
        gms_text_count(&text, ", and rank ", found.alive->rank);
        gms_text_add(&text, why_alive(found.alive));
        if (found.alive->keeper_holds == GMS_HOLDS_UNSEEN) {
            gms_text_add(&text, ": they may run yet. End them all, then start gms-coord once with --fresh, or end "
                                "gms-keeper and remove the run directory");
        } else {
            gms_text_add(&text, ": what the group decided last is not known");
            text_ways_out(&text, found.greatest);
        }
        return;
    }
    if (!found.greatest && found.lives) {
        const struct gms_recovery_report *holder = found.alive;

        text = verdict(ret_decision, GMS_RECOVERY_REFUSE, NULL);
        gms_text_count(&text, "rank ", holder->rank);
        gms_text_add(&text, "'s keeper holds memory or sessions that no rank's store knows of");
        text_ways_out(&text, NULL);
        return;
    }
    if (!found.greatest) {
        text = verdict(ret_decision, GMS_RECOVERY_FRESH, NULL);
        /* Empty stores say that nothing was told since they were made, if no other one may have had more. */
        if (!found.doubtful)
            ret_decision->life = found.store_world;
        gms_text_add(&text, "nothing is stored and nothing lives: the group begins");
        if (found.doubtful)
            gms_text_count(&text, " anew; what was stored is lost on rank ", found.doubtful->rank);
        return;
    }
    if (found.doubtful && (found.alive || !found.lives)) {
        /* Also when nothing lives: what that rank had told, an epoch say, must not be told again as something else. */
        text = verdict(ret_decision, GMS_RECOVERY_SALVAGE, found.greatest);
        gms_text_count(&text, "the loss of what rank ", found.doubtful->rank);
        gms_text_add(&text, found.alive ? " had is accepted: on from " : " had hurts nobody, nothing lives: on from ");
        text_from(&text, found.greatest);
        gms_text_add(&text, "; all engines are ended, KV and weights are given up");
        return;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        if (reports[r].world != found.greatest->world || reports[r].round != found.greatest->round ||
            reports[r].state_digest == found.greatest->state_digest)
            continue;
        text = verdict(ret_decision, GMS_RECOVERY_REFUSE, NULL);
        gms_text_count(&text, "rank ", r);
        gms_text_add(&text, " has another state than ");
        text_from(&text, found.greatest);
        gms_text_add(&text, ". To give up everything: restart gms-keeper on all nodes, then gms-coord with --fresh");
        return;
    }
    text = verdict(ret_decision, found.lives ? GMS_RECOVERY_RESTORE : GMS_RECOVERY_RENEW, found.greatest);
    gms_text_add(&text, "on from ");
    text_from(&text, found.greatest);
    if (!found.lives)
        gms_text_add(&text, "; nothing lives any more, only its numbers go on");
}

/* ------------------------------------------------------------------------------------------------- restoring -- */

/* Far beyond what the lost end of the history can have used. */
#define SALVAGE_JUMP (UINT64_C(1) << 32)

/* Only the numbers go on, and what was told: somebody whose join is not answered may ask again. */
static void renew(struct gms_core *core)
{
    struct gms_core_options options = core->options;
    uint64_t epoch = core->epoch, incarnations = core->incarnations, round = core->round, digest = core->digest;
    uint64_t life = core->life;
    struct gms_core_decided decided[GMS_MAX_ENGINES][GMS_CORE_OUTCOMES];
    uint32_t next[GMS_MAX_ENGINES];

    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        memcpy(decided[e], core->engines[e].decided, sizeof decided[e]);
        next[e] = core->engines[e].decided_next;
    }
    gms_core_init(core, &options);
    core->epoch = epoch;
    core->incarnations = incarnations;
    core->round = round;
    core->digest = digest;
    core->life = life;
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        memcpy(core->engines[e].decided, decided[e], sizeof decided[e]);
        core->engines[e].decided_next = next[e];
    }
}

/* Nothing that the snapshot says of contents or of who may write is known to be the last word. */
static void salvage(struct gms_core *core)
{
    core->epoch += SALVAGE_JUMP;
    core->incarnations += SALVAGE_JUMP;
    core->life = core->options.world;
    core->serving = core->successor = -1;
    core->writer = 0;
    core->writer_engine = 0;
    core->takeover = GMS_TAKEOVER_VACANT; /* and the first round sees whom to wait for */
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        struct gms_core_engine *slot = &core->engines[e];

        memset(&slot->last, 0, sizeof slot->last);
        memset(slot->decided, 0, sizeof slot->decided);
        slot->decided_next = 0;
        if (slot->role == GMS_ROLE_EMPTY)
            continue;
        slot->role = GMS_ROLE_CONDEMNED;
        slot->may_write = true;
    }
    for (uint32_t i = 0; i < GMS_CORE_MAX_POOLS; i++) {
        struct gms_core_pool *pool = &core->pools[i];

        if (pool->state == GMS_POOL_ABSENT || pool->kind != GMS_POOL_WEIGHTS)
            continue;
        pool->state = GMS_POOL_UNPUBLISHED; /* by nobody: the next that asks for it makes it anew */
        pool->creator = UINT64_MAX;
    }
    memset(core->transfers, 0, sizeof core->transfers);
    memset(core->ended, 0, sizeof core->ended);
    core->ended_next = 0;
}

/* The end of the operation that this rank may not have carried out. */
static void finish(struct gms_core *core, uint32_t engine)
{
    struct gms_core_engine *slot = &core->engines[engine];
    bool done = slot->last.decided && slot->last.outcome.status == GMS_OK;

    if (!slot->last.known)
        return;
    struct gms_action *action = gms_core_emit(core, done ? GMS_ACTION_COMMIT : GMS_ACTION_ABORT);
    action->commit.engine = engine;
    action->commit.proposal = slot->last.proposal;
    if (slot->last.decided) {
        action->commit.outcome = slot->last.outcome;
        return;
    }
    action->commit.outcome = gms_core_outcome(core, &slot->last.proposal.key, GMS_E_AGAIN, -1);
    struct gms_text text = gms_text_begin(action->commit.outcome.text, sizeof action->commit.outcome.text);
    gms_text_operation(&text, engine, &slot->last.proposal.key);
    gms_text_add(&text, " is undone: the coordinators restarted before it was decided; asked again it starts anew");
    memset(&slot->last, 0, sizeof slot->last);
}

static void again(struct gms_core *core, uint32_t engine)
{
    struct gms_core_engine *slot = &core->engines[engine];

    slot->promoted = slot->role == GMS_ROLE_PROMOTED;
    slot->serving = slot->role == GMS_ROLE_SERVING;
    if (slot->role == GMS_ROLE_CONDEMNED)
        gms_core_fence(core, engine, core->epoch, false);
    else if (slot->role != GMS_ROLE_EMPTY && core->options.reattach_ns)
        slot->reattach_report_ns = core->now_ns + core->options.reattach_ns;
    slot->reattach_since_ns = core->now_ns;
}

static void note(struct gms_core *core, enum gms_recovery_verdict verdict, const struct gms_snapshot_view *from)
{
    struct gms_text text = gms_core_note(core, GMS_OK);

    gms_text_count(&text, "world ", core->options.world);
    gms_text_add(&text, verdict == GMS_RECOVERY_RESTORE ? " goes on from" : " keeps the numbers of");
    gms_text_count(&text, " the state after round ", from->round);
    gms_text_count(&text, " of world ", from->world);
    gms_text_count(&text, ": epoch ", core->epoch);
    if (core->serving < 0)
        return;
    gms_text_add(&text, ", ");
    gms_text_engine(&text, (uint32_t)core->serving, core->engines[core->serving].incarnation);
    gms_text_add(&text, " serves");
}

gms_status gms_snapshot_look(const void *snapshot, size_t bytes, struct gms_snapshot_view *ret_view)
{
    struct gms_core core; /* several hundred KiB, on the stack of a single-threaded program */

    gms_core_init(&core, &(struct gms_core_options){.world = 0});
    return gms_snapshot_read(snapshot, bytes, &core, ret_view);
}

gms_status gms_core_restore(void *memory, const struct gms_core_options *options, enum gms_recovery_verdict verdict,
                            const void *snapshot, size_t bytes, uint64_t now_ns, struct gms_core **ret_core,
                            struct gms_actions *ret_actions)
{
    struct gms_core *core = gms_core_init(memory, options);
    struct gms_snapshot_view from;

    ret_actions->count = 0;
    if (verdict != GMS_RECOVERY_RESTORE && verdict != GMS_RECOVERY_RENEW && verdict != GMS_RECOVERY_SALVAGE)
        return GMS_E_INVALID;
    gms_status status = gms_snapshot_read(snapshot, bytes, core, &from);
    if (status != GMS_OK)
        return status;
    if (from.world_size != options->world_size)
        return GMS_E_MISMATCH;
    if (from.world >= options->world)
        return GMS_E_FOREIGN_WORLD;

    core->options = *options;
    core->now_ns = now_ns;
    core->digest = from.digest; /* the first round shows whether all read the same bytes */
    if (verdict == GMS_RECOVERY_RENEW)
        renew(core);
    else if (verdict == GMS_RECOVERY_SALVAGE)
        salvage(core);
    gms_core_mix(core, options->world);
    gms_core_mix(core, (uint64_t)verdict);

    core->actions = ret_actions;
    note(core, verdict, &from);
    gms_core_reclaim_restored(core, verdict == GMS_RECOVERY_SALVAGE);
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        memset(&core->engines[e].operation, 0, sizeof core->engines[e].operation);
        finish(core, e);
    }
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++)
        again(core, e);
    core->rung = core->round;
    gms_core_settle(core);
    core->actions = NULL;
    *ret_core = core;
    return GMS_OK;
}
