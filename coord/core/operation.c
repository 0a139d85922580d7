/* SPDX-License-Identifier: Apache-2.0
 *
 * Collective calls of engines: proposed by every rank, prepared and stored by every rank, then committed by all or
 * aborted by all.
 *
 *   round n     every rank has spoken, equal keys and fields       -> STORE prepared, then PREPARE (adopt: the bulk)
 *   round n+1.. votes; all prepared -> commit, one refused         -> abort when all have voted
 *   any round   one rank's deadline passed, or fields differ       -> abort
 */
#include "core/core_state.h"

#include <string.h>

enum vote_event {
    VOTE_STARTED,
    VOTE_STORED,
    VOTE_STORED_BULK,
    VOTE_DONE,
    VOTE_FAILED,
    VOTE_GIVEN_UP,
    VOTE_EVENT_COUNT
};

/* Zero (NONE) where an event means nothing. The diagram is in core_state.h. */
static const uint8_t vote_next[GMS_VOTE_COUNT][VOTE_EVENT_COUNT] = {
    [GMS_VOTE_NONE] = {[VOTE_STARTED] = GMS_VOTE_STORING, [VOTE_GIVEN_UP] = GMS_VOTE_REFUSED},
    [GMS_VOTE_STORING] =
        {[VOTE_STORED] = GMS_VOTE_PREPARING, [VOTE_STORED_BULK] = GMS_VOTE_BULK, [VOTE_FAILED] = GMS_VOTE_REFUSED},
    [GMS_VOTE_PREPARING] = {[VOTE_DONE] = GMS_VOTE_PREPARED, [VOTE_FAILED] = GMS_VOTE_REFUSED},
    [GMS_VOTE_BULK] = {[VOTE_DONE] = GMS_VOTE_PREPARED, [VOTE_FAILED] = GMS_VOTE_REFUSED},
};

static bool vote_move(struct gms_core *core, struct gms_core_pending *pending, enum vote_event event)
{
    enum gms_vote next = (enum gms_vote)vote_next[pending->vote][event];

    if (next == GMS_VOTE_NONE)
        return false;
    core->rows.votes |= UINT64_C(1) << (8 * pending->vote + event);
    pending->vote = next;
    return true;
}

uint64_t gms_core_vote_rows(void)
{
    uint64_t rows = 0;

    for (unsigned vote = 0; vote < GMS_VOTE_COUNT; vote++)
        for (unsigned event = 0; event < VOTE_EVENT_COUNT; event++)
            if (vote_next[vote][event] != GMS_VOTE_NONE)
                rows |= UINT64_C(1) << (8 * vote + event);
    return rows;
}

static void vote_refuse(struct gms_core *core, struct gms_core_pending *pending, gms_status status, uint64_t detail0,
                        uint64_t detail1)
{
    if (!vote_move(core, pending, VOTE_FAILED))
        return;
    pending->refused_status = status;
    pending->refused_detail[0] = detail0;
    pending->refused_detail[1] = detail1;
}

void gms_core_session_gone(struct gms_core *core, uint32_t engine, uint64_t session)
{
    struct gms_core_engine *slot = &core->engines[engine];
    struct gms_core_pending *pending = &slot->pending;

    for (unsigned i = 0; i < GMS_CORE_STORES; i++) {
        struct gms_core_store *store = &core->stores[i];

        if (!store->ticket || store->engine != engine || store->session != session)
            continue;
        store->session = 0;
        /* The driver was not told the incarnation yet, so it cannot report the end of it. */
        if (store->outcome.key.kind == GMS_OPERATION_JOIN && store->outcome.status == GMS_OK &&
            store->outcome.incarnation == slot->incarnation)
            slot->facts |= 1u << GMS_FACT_GONE;
    }
    if (!pending->present || pending->session != session)
        return;
    pending->session = 0;
    pending->orphan = true;
    if (pending->proposal.key.kind != GMS_OPERATION_JOIN)
        return; /* an incarnation: its end comes as a fact */
    pending->expired = true;
    if (vote_move(core, pending, VOTE_GIVEN_UP))
        pending->refused_status = GMS_E_DISCONNECTED;
}

/* ------------------------------------------------------------------------------------------------- ballot ----- */

bool gms_core_contributes(const struct gms_core *core, uint32_t engine)
{
    const struct gms_core_engine *slot = &core->engines[engine];
    const struct gms_operation_key *key = &slot->pending.proposal.key;

    if (!slot->pending.present)
        return false;
    if (key->kind == GMS_OPERATION_JOIN) /* waits while a takeover runs, unless it is half done */
        return slot->role == GMS_ROLE_EMPTY && (slot->operation.preparing || !gms_core_takeover_busy(core));
    return slot->role != GMS_ROLE_CONDEMNED && key->incarnation == slot->incarnation &&
           key->sequence == slot->next_sequence;
}

void gms_core_offer(const struct gms_core *core, uint32_t engine, struct gms_ballot_proposal *ret_proposal)
{
    const struct gms_core_pending *pending = &core->engines[engine].pending;
    uint16_t rank = (uint16_t)core->options.rank;

    if (!gms_core_contributes(core, engine)) {
        ret_proposal->lowest_silent = rank;
        ret_proposal->lowest_undecided = rank;
        return;
    }
    ret_proposal->least = ret_proposal->greatest = pending->proposal.key;
    ret_proposal->least_rank = ret_proposal->greatest_rank = rank;
    ret_proposal->spoken = 1;
    ret_proposal->expired = pending->expired;
    ret_proposal->prepared = pending->vote == GMS_VOTE_PREPARED;
    if (pending->vote == GMS_VOTE_REFUSED) {
        ret_proposal->refused = 1;
        ret_proposal->refused_rank = rank;
        ret_proposal->refused_status = pending->refused_status;
        memcpy(ret_proposal->refused_detail, pending->refused_detail, sizeof ret_proposal->refused_detail);
    }
    if (!ret_proposal->prepared && !ret_proposal->refused)
        ret_proposal->lowest_undecided = rank;
    for (unsigned i = 0; i < GMS_PROPOSAL_FIELDS; i++) {
        ret_proposal->fields[i].least = ret_proposal->fields[i].greatest = pending->proposal.fields[i];
        ret_proposal->fields[i].least_rank = ret_proposal->fields[i].greatest_rank = rank;
    }
}

/* -------------------------------------------------------------------------------------------------- votes ----- */

static void hand_out_prepare(struct gms_core *core, uint32_t engine)
{
    struct gms_core_engine *slot = &core->engines[engine];
    struct gms_action *action = gms_core_emit(core, GMS_ACTION_PREPARE);

    action->prepare.engine = engine;
    action->prepare.proposal = slot->pending.proposal;
    action->prepare.pool_index = slot->operation.pool;
    action->prepare.create = slot->operation.create;
    slot->last_prepare = slot->pending.proposal;
    slot->last_prepare_pool = slot->operation.pool;
}

static void hand_out_bulk(struct gms_core *core, uint32_t engine)
{
    struct gms_core_engine *slot = &core->engines[engine];
    struct gms_action *action = gms_core_emit(core, GMS_ACTION_BULK);

    action->bulk.engine = engine;
    action->bulk.key = slot->operation.key;
    action->bulk.incarnation = slot->incarnation;
    core->bulk = GMS_BULK_RUNNING;
}

void gms_core_prepare_stored(struct gms_core *core, const struct gms_core_store *store, bool ok)
{
    struct gms_core_engine *slot = &core->engines[store->engine];
    struct gms_core_pending *pending = &slot->pending;
    bool current = pending->present && gms_core_keys_equal(&pending->proposal.key, &store->proposal.key);

    if (store->proposal.key.kind == GMS_OPERATION_ADOPT && core->bulk == GMS_BULK_STORING) {
        /* The others enter the bulk whatever this rank's store says; a failed one refuses afterwards. */
        if (current && ok)
            vote_move(core, pending, VOTE_STORED_BULK);
        else if (current)
            vote_refuse(core, pending, GMS_E_STORE, 0, 0);
        hand_out_bulk(core, store->engine);
        return;
    }
    if (!current)
        return; /* decided meanwhile: nothing was begun, nothing is begun */
    if (!ok)
        vote_refuse(core, pending, GMS_E_STORE, 0, 0);
    else if (vote_move(core, pending, VOTE_STORED))
        hand_out_prepare(core, store->engine);
}

/* A tentative effect that came after the decision to abort is undone. */
static void undo_late(struct gms_core *core, uint32_t engine, const struct gms_operation_key *key)
{
    const struct gms_core_engine *slot = &core->engines[engine];
    const struct gms_core_decided *decided = gms_core_find_decided(core, engine, key);

    if (decided && (decided->outcome.status == GMS_OK || decided->ticket))
        return; /* committed: told twice. Or its ABORT is still to come */
    struct gms_action *action = gms_core_emit(core, GMS_ACTION_ABORT);
    action->commit.engine = engine;
    if (gms_core_keys_equal(&slot->last_prepare.key, key))
        action->commit.proposal = slot->last_prepare;
    action->commit.proposal.key = *key;
    action->commit.outcome = decided ? decided->outcome : gms_core_outcome(core, key, GMS_E_EXPIRED, -1);
}

void gms_core_prepared(struct gms_core *core, uint32_t engine, const struct gms_operation_key *key, gms_status status,
                       const uint64_t detail[2])
{
    if (engine >= GMS_MAX_ENGINES)
        return;
    struct gms_core_pending *pending = &core->engines[engine].pending;
    bool current = pending->present && gms_core_keys_equal(&pending->proposal.key, key);

    if (current && status == GMS_OK && vote_move(core, pending, VOTE_DONE))
        return;
    if (current && status != GMS_OK)
        vote_refuse(core, pending, status, detail[0], detail[1]);
    if (!current && status == GMS_OK)
        undo_late(core, engine, key);
}

void gms_core_bulk_done(struct gms_core *core, uint32_t engine, const struct gms_operation_key *key, gms_status status,
                        uint32_t adopted, uint32_t idle, uint32_t quarantined)
{
    if (core->bulk != GMS_BULK_RUNNING || engine != core->bulk_engine) {
        struct gms_text text = gms_core_restart(core, GMS_E_PROTOCOL);
        gms_text_count(&text, "a bulk sub-round ended that was not running, for engine ", engine);
        return;
    }
    core->bulk = GMS_BULK_NONE;

    struct gms_core_pending *pending = &core->engines[engine].pending;
    if (!pending->present || !gms_core_keys_equal(&pending->proposal.key, key))
        return;
    pending->adopted = adopted;
    pending->idle = idle;
    pending->quarantined = quarantined;
    if (status == GMS_OK)
        vote_move(core, pending, VOTE_DONE);
    else
        vote_refuse(core, pending, status, 0, 0);
}

/* ------------------------------------------------------------------------------------------------- deciding --- */

static struct gms_text begin_failure(const struct gms_core *core, uint32_t engine, const struct gms_operation_key *key,
                                     gms_status status, int32_t rank, struct gms_outcome *ret_outcome)
{
    *ret_outcome = gms_core_outcome(core, key, status, rank);
    struct gms_text text = gms_text_begin(ret_outcome->text, sizeof ret_outcome->text);
    gms_text_operation(&text, engine, key);
    return text;
}

static void text_values(struct gms_text *text, uint64_t least_rank, uint64_t least, uint64_t greatest_rank,
                        uint64_t greatest)
{
    bool swap = greatest_rank < least_rank; /* the lower rank first: ranks are how people search */

    gms_text_count(text, " differs: rank ", swap ? greatest_rank : least_rank);
    gms_text_add(text, " has ");
    gms_text_hex(text, swap ? greatest : least);
    gms_text_count(text, ", rank ", swap ? least_rank : greatest_rank);
    gms_text_add(text, " has ");
    gms_text_hex(text, swap ? least : greatest);
}

/* Ranks ask for different operations: none of them happens. */
static void decide_keys_differ(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged)
{
    const struct gms_operation_key *keys[2] = {&merged->least, &merged->greatest};
    const struct gms_ballot_proposal *own = &core->contribution.proposals[engine];
    bool expired = merged->spoken < core->options.world_size;

    for (unsigned i = 0; i < 3; i++) {
        struct gms_outcome outcome;
        const struct gms_core_pending *pending = &core->engines[engine].pending;
        const struct gms_operation_key *key = i < 2 ? keys[i] : &pending->proposal.key;
        struct gms_text text;

        /* With three or more different ones, those in the middle are known to their own ranks only. */
        if (i == 2 && (!pending->present || !own->spoken || !gms_core_keys_equal(&own->least, key)))
            break;
        text = begin_failure(core, engine, key, expired ? GMS_E_EXPIRED : GMS_E_MISMATCH,
                             expired ? (int32_t)merged->lowest_silent : -1, &outcome);
        if (expired) {
            gms_text_count(&text, " expired: rank ", merged->lowest_silent);
            gms_text_add(&text, " did not ask for it in time, and others asked for something else");
        } else if (merged->least.kind != merged->greatest.kind) {
            gms_text_count(&text, ": operation differs: rank ", merged->least_rank);
            gms_text_add(&text, " asks for ");
            gms_text_add(&text, gms_operation_name((enum gms_operation)merged->least.kind));
            gms_text_count(&text, ", rank ", merged->greatest_rank);
            gms_text_add(&text, " for ");
            gms_text_add(&text, gms_operation_name((enum gms_operation)merged->greatest.kind));
        } else {
            gms_text_add(&text, ": launch");
            text_values(&text, merged->least_rank, merged->least.launch, merged->greatest_rank,
                        merged->greatest.launch);
        }
        if (i < 2)
            gms_core_decide(core, engine, &outcome);
        else
            gms_core_answer_pending(core, engine, &outcome);
    }
}

static void decide_expired(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged)
{
    bool silent = merged->spoken < core->options.world_size;
    bool waiting = !silent && !core->engines[engine].operation.preparing;
    bool refused = !silent && merged->refused;
    uint32_t rank = silent ? merged->lowest_silent : refused ? merged->refused_rank : merged->lowest_undecided;
    struct gms_outcome outcome;
    struct gms_text text;

    text =
        begin_failure(core, engine, &merged->least, GMS_E_EXPIRED, rank == UINT16_MAX ? -1 : (int32_t)rank, &outcome);
    gms_text_add(&text, " expired: ");
    if (silent || refused || !waiting) {
        if (rank != UINT16_MAX)
            gms_text_count(&text, "rank ", rank);
        else
            gms_text_add(&text, "the last rank");
    }
    if (silent) {
        gms_text_add(&text, " did not ask for it in time");
    } else if (refused) {
        gms_text_add(&text, " gave it up: ");
        gms_text_add(&text, gms_core_status_words((gms_status)merged->refused_status));
    } else if (waiting) {
        outcome.rank = -1;
        gms_text_add(&text, "it waited for another engine's operation, which has not ended");
    } else {
        gms_text_add(&text, rank != UINT16_MAX ? " had not prepared it in time" : " voted too late");
    }
    gms_core_decide(core, engine, &outcome);
}

static void decide_refused(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged)
{
    gms_status status = (gms_status)merged->refused_status;
    struct gms_outcome outcome;
    struct gms_text text;

    text = begin_failure(core, engine, &merged->least, status, (int32_t)merged->refused_rank, &outcome);
    gms_text_count(&text, ": rank ", merged->refused_rank);
    gms_text_add(&text, ": ");
    if (status == GMS_E_NO_CAPACITY) {
        gms_text_u64(&text, merged->refused_detail[0]);
        gms_text_count(&text, " bytes asked, ", merged->refused_detail[1]);
        gms_text_add(&text, " free of the device capacity");
    } else if (status == GMS_E_DESCRIPTORS && merged->refused_detail[1]) {
        gms_text_count(&text, "out of file descriptors, ", merged->refused_detail[0]);
        gms_text_count(&text, " used of ", merged->refused_detail[1]);
        gms_text_add(&text, " allowed; raise the limit (ulimit -n)");
    } else {
        gms_text_add(&text, gms_core_status_words(status));
        if (merged->refused_detail[0] || merged->refused_detail[1]) {
            gms_text_count(&text, " (", merged->refused_detail[0]);
            gms_text_count(&text, ", ", merged->refused_detail[1]);
            gms_text_add(&text, ")");
        }
    }
    gms_core_decide(core, engine, &outcome);
}

/* Everything that makes KV and weights of one engine readable by another; the environment names the engine and may
 * differ. */
static bool field_binds_group(uint32_t field)
{
    const char *name = gms_operation_field_name(GMS_OPERATION_JOIN, field);

    return name && field != GMS_JOIN_FIELD_ENVIRONMENT;
}

/* Nobody else is here and nothing is kept: whoever joins now says what the group is. */
static bool founds_group(const struct gms_core *core, uint32_t engine)
{
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++)
        if (e != engine && core->engines[e].role != GMS_ROLE_EMPTY)
            return false;
    return !gms_core_pool_any(core);
}

static void commit_join(struct gms_core *core, uint32_t engine, struct gms_outcome *outcome)
{
    struct gms_core_engine *slot = &core->engines[engine];
    struct gms_proposal proposal = slot->pending.proposal; /* the decision ends it */
    bool orphan = slot->pending.orphan;

    outcome->incarnation = ++core->incarnations;
    gms_core_decide(core, engine, outcome);
    gms_core_move_role(core, engine, GMS_ROLE_EVENT_JOINED);
    slot->incarnation = outcome->incarnation;
    slot->launch = outcome->key.launch;
    slot->next_sequence = 1;
    slot->facts = 0;
    memset(&slot->exchange, 0, sizeof slot->exchange);
    gms_core_mix(core, slot->incarnation);
    if (founds_group(core, engine)) {
        for (uint32_t i = 0; i < GMS_PROPOSAL_FIELDS; i++) {
            core->identity[i] = proposal.fields[i];
            gms_core_mix(core, field_binds_group(i) ? core->identity[i] : 0);
        }
        core->identity_of = slot->incarnation;
    }
    if (orphan) /* its session ended before it had an incarnation to be reported for */
        slot->facts |= 1u << GMS_FACT_GONE;
}

static void decide_commit(struct gms_core *core, uint32_t engine)
{
    struct gms_core_engine *slot = &core->engines[engine];
    struct gms_core_pending *pending = &slot->pending;
    struct gms_outcome outcome = gms_core_outcome(core, &slot->operation.key, GMS_OK, -1);

    switch ((enum gms_operation)slot->operation.key.kind) {
    case GMS_OPERATION_JOIN:
        commit_join(core, engine, &outcome);
        return;
    case GMS_OPERATION_ALLOCATE:
    case GMS_OPERATION_PUBLISH:
    case GMS_OPERATION_RELEASE:
        gms_core_pool_commit(core, engine, &outcome);
        gms_core_decide(core, engine, &outcome);
        return;
    case GMS_OPERATION_ADOPT:
        outcome.adopted = pending->adopted;
        outcome.idle = pending->idle;
        outcome.quarantined = pending->quarantined;
        gms_core_decide(core, engine, &outcome); /* before the writer changes: it says whom to forget */
        core->writer = slot->incarnation;
        core->writer_engine = engine;
        gms_core_mix(core, core->writer);
        return;
    case GMS_OPERATION_BUDGET:
        gms_core_budget_commit(core, &slot->operation, &outcome);
        gms_core_decide(core, engine, &outcome);
        return;
    case GMS_OPERATION_EXCHANGE:
        gms_core_decide(core, engine, &outcome);
        return;
    case GMS_OPERATION_NONE:
    case GMS_OPERATION_TAKEOVER:
    case GMS_OPERATION_RECLAIM:
    case GMS_OPERATION_COUNT:
        return; /* never proposed */
    }
}

/* --------------------------------------------------------------------------------------------------- start ---- */

static bool fields_agree(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged)
{
    for (uint32_t i = 0; i < GMS_PROPOSAL_FIELDS; i++) {
        const struct gms_digest_pair *pair = &merged->fields[i];
        const char *name = gms_operation_field_name((enum gms_operation)merged->least.kind, i);
        struct gms_outcome outcome;
        struct gms_text text;

        if (pair->least == pair->greatest || gms_operation_field_is_least((enum gms_operation)merged->least.kind, i))
            continue;
        text = begin_failure(core, engine, &merged->least, GMS_E_MISMATCH, -1, &outcome);
        gms_text_add(&text, ": ");
        if (name)
            gms_text_add(&text, name);
        else
            gms_text_count(&text, "field ", i);
        text_values(&text, pair->least_rank, pair->least, pair->greatest_rank, pair->greatest);
        gms_core_decide(core, engine, &outcome);
        return false;
    }
    return true;
}

/* An engine whose KV or weights the others could not read is refused at once: silent misses would cost every block
 * (V28). */
static bool join_is_compatible(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged)
{
    if (!core->identity_of || founds_group(core, engine))
        return true;
    for (uint32_t i = 0; i < GMS_PROPOSAL_FIELDS; i++) {
        struct gms_outcome outcome;
        struct gms_text text;

        if (!field_binds_group(i) || merged->fields[i].least == core->identity[i])
            continue;
        text = begin_failure(core, engine, &merged->least, GMS_E_MISMATCH, -1, &outcome);
        gms_text_add(&text, ": ");
        gms_text_add(&text, gms_operation_field_name(GMS_OPERATION_JOIN, i));
        gms_text_add(&text, " is ");
        gms_text_hex(&text, merged->fields[i].least);
        gms_text_add(&text, ", the group has ");
        gms_text_hex(&text, core->identity[i]);
        gms_text_count(&text, " since incarnation ", core->identity_of);
        gms_text_add(&text, i == 0 ? "; start it with the same model, dtype, KV layout, hash and block size"
                                   : "; start it with the same settings"); /* field 0 is a digest of those */
        gms_core_decide(core, engine, &outcome);
        return false;
    }
    return true;
}

/* May this engine adopt now? The fields say under which epoch, and from whom, it believes to. */
static bool adopt_is_allowed(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged)
{
    const struct gms_core_engine *slot = &core->engines[engine];
    bool promoted = slot->role == GMS_ROLE_PROMOTED && core->writer != slot->incarnation;
    struct gms_outcome outcome;
    struct gms_text text;

    if (promoted && merged->fields[0].least == core->epoch && merged->fields[1].least == core->writer)
        return true;
    text = begin_failure(core, engine, &merged->least, promoted ? GMS_E_STALE : GMS_E_REFUSED, -1, &outcome);
    if (promoted) {
        gms_text_count(&text, ": asked under epoch ", merged->fields[0].least);
        gms_text_count(&text, " from incarnation ", merged->fields[1].least);
        gms_text_count(&text, ", but the epoch is ", core->epoch);
        gms_text_count(&text, " and the source ", core->writer);
    } else {
        gms_text_add(&text, core->writer == slot->incarnation ? ": it has adopted already"
                                                              : ": it is not promoted; wait for the promotion");
    }
    gms_core_decide(core, engine, &outcome);
    return false;
}

static void start(struct gms_core *core, uint32_t engine, const struct gms_ballot *ballot)
{
    const struct gms_ballot_proposal *merged = &ballot->proposals[engine];
    struct gms_core_engine *slot = &core->engines[engine];
    struct gms_core_operation operation = {.key = merged->least, .pool = GMS_CORE_NO_POOL};
    enum gms_operation kind = (enum gms_operation)operation.key.kind;

    if (!slot->pending.present || !gms_core_keys_equal(&slot->pending.proposal.key, &operation.key)) {
        struct gms_text text = gms_core_restart(core, GMS_E_DIVERGED);
        gms_text_operation(&text, engine, &operation.key);
        gms_text_add(&text, ": the merged ballot says that every rank asked, but this one did not");
        return;
    }
    if (!fields_agree(core, engine, merged))
        return;
    if (kind == GMS_OPERATION_JOIN && !join_is_compatible(core, engine, merged))
        return;
    if (kind == GMS_OPERATION_ADOPT && !adopt_is_allowed(core, engine, merged))
        return;
    if (kind == GMS_OPERATION_EXCHANGE && !gms_core_exchange_take(core, engine, &operation.key, &ballot->exchange))
        return; /* another engine's was carried this time; rank 0 rings for the next round */
    if (kind == GMS_OPERATION_BUDGET) {
        struct gms_outcome outcome = gms_core_outcome(core, &operation.key, GMS_OK, -1);

        if (gms_core_budget_start(core, engine, merged, &operation, &outcome) != GMS_OK) {
            gms_core_decide(core, engine, &outcome);
            return;
        }
    }
    if (kind == GMS_OPERATION_ALLOCATE || kind == GMS_OPERATION_PUBLISH || kind == GMS_OPERATION_RELEASE) {
        struct gms_outcome outcome = gms_core_outcome(core, &operation.key, GMS_OK, -1);
        gms_status status = gms_core_pool_start(core, engine, merged, &operation, &outcome);

        if (status == GMS_E_NOT_DONE)
            return; /* looked at again in the round that ends the other operation */
        if (status != GMS_OK) {
            gms_core_decide(core, engine, &outcome);
            return;
        }
        gms_core_pool_reserve(core, engine, &slot->pending.proposal, &operation);
    }
    operation.preparing = true;
    slot->operation = operation;
    memset(&slot->last, 0, sizeof slot->last);
    slot->last.known = true;
    slot->last.proposal = slot->pending.proposal;
    for (uint32_t i = 0; i < GMS_PROPOSAL_FIELDS; i++)
        if (gms_operation_field_is_least(kind, i)) /* what each rank said for itself is not replicated */
            slot->last.proposal.fields[i] = merged->fields[i].least;
    gms_core_mix(core, ((uint64_t)engine << 32) | operation.pool);
    gms_core_mix(core, ((uint64_t)operation.key.kind << 32) | operation.create);

    struct gms_core_store *store = gms_core_store_begin(core, GMS_STORE_PREPARED, engine);
    store->proposal = slot->pending.proposal;
    vote_move(core, &slot->pending, VOTE_STARTED);
    gms_core_store_send(core, store);
    if (kind == GMS_OPERATION_ADOPT) {
        core->bulk = GMS_BULK_STORING; /* the next collective on every rank is the bulk */
        core->bulk_engine = engine;
    }
}

/* ------------------------------------------------------------------------------------------------- the lane --- */

/* Is what the ballot speaks of still the slot's business after this round's facts? */
static bool is_current(const struct gms_core *core, uint32_t engine, const struct gms_operation_key *key)
{
    const struct gms_core_engine *slot = &core->engines[engine];

    if (key->kind == GMS_OPERATION_JOIN)
        return slot->role == GMS_ROLE_EMPTY;
    return slot->role != GMS_ROLE_EMPTY && slot->role != GMS_ROLE_CONDEMNED && key->incarnation == slot->incarnation &&
           key->sequence == slot->next_sequence;
}

void gms_core_operations(struct gms_core *core, const struct gms_ballot *merged)
{
    bool may_start[GMS_MAX_ENGINES] = {false};
    uint32_t everyone = core->options.world_size;

    /* Ends first: they may free what a start waits for. */
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        const struct gms_ballot_proposal *proposal = &merged->proposals[e];
        bool preparing = core->engines[e].operation.preparing;

        if (!proposal->spoken || !is_current(core, e, &proposal->least))
            continue;
        if (!gms_core_keys_equal(&proposal->least, &proposal->greatest)) {
            if (proposal->spoken == everyone || proposal->expired)
                decide_keys_differ(core, e, proposal);
        } else if (proposal->expired) {
            decide_expired(core, e, proposal);
        } else if (preparing && proposal->prepared + proposal->refused == (int)everyone) {
            if (proposal->refused)
                decide_refused(core, e, proposal);
            else
                decide_commit(core, e);
        } else if (!preparing && proposal->spoken == everyone) {
            may_start[e] = true;
        }
    }
    for (uint32_t e = 0; e < GMS_MAX_ENGINES && !core->stopped; e++) {
        const struct gms_operation_key *key = &merged->proposals[e].least;

        if (may_start[e] && !(key->kind == GMS_OPERATION_JOIN && gms_core_takeover_busy(core)))
            start(core, e, merged);
    }
}

void gms_core_operation_condemned(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged)
{
    const struct gms_operation_key *keys[2] = {&merged->least, &merged->greatest};

    for (unsigned i = 0; merged->spoken && i < 2; i++) {
        struct gms_outcome outcome;
        struct gms_text text;

        if (i == 1 && gms_core_keys_equal(keys[0], keys[1]))
            break;
        text = begin_failure(core, engine, keys[i], GMS_E_CONDEMNED, -1, &outcome);
        gms_text_add(&text, ": the incarnation is condemned: it must end");
        gms_core_decide(core, engine, &outcome);
    }
}
