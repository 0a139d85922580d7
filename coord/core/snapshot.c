/* SPDX-License-Identifier: Apache-2.0
 *
 * The replicated state as bytes (the table is in README.md). One walk serves writing and reading, so the two cannot
 * come to differ: every field goes through `number` or `text`, which copies it one way or the other.
 *
 * What is under way is not in it: locks of pools, the votes, a pool that is being created. A restore rolls that back.
 */
#include "core/snapshot.h"

#include <string.h>

enum { HEADER_BYTES = 48, MAGIC_BYTES = 8, DIGEST_AT = GMS_SNAPSHOT_DIGEST_AT, SNAPSHOT_VERSION = 3 };

static const uint8_t magic[MAGIC_BYTES] = {'G', 'M', 'S', 's', 't', 'a', 't', 'e'};

struct walk {
    uint8_t *at, *end;
    bool reading, bad; /* bad: reading met its end or something impossible; writing has no room */
};

static uint64_t get(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static void put(uint8_t *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

/* All bytes but the digest itself. Each step is a bijection of the running value and of the eight bytes that it takes
 * in, so bytes that differ in one such word never have the same digest. */
uint64_t gms_snapshot_digest(const uint8_t *bytes, size_t count)
{
    uint64_t digest = count;

    for (size_t i = 0; i < count; i += 8) {
        if (i == DIGEST_AT)
            continue;
        digest ^= get(bytes + i, count - i < 8 ? (unsigned)(count - i) : 8);
        digest = (digest ^ (digest >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        digest = (digest ^ (digest >> 27)) * UINT64_C(0x94d049bb133111eb) + UINT64_C(0x9e3779b97f4a7c15);
        digest ^= digest >> 31;
    }
    return digest;
}

/* ------------------------------------------------------------------------------------------------- fields ----- */

static bool take(struct walk *walk, size_t bytes)
{
    if (walk->bad || (size_t)(walk->end - walk->at) < bytes)
        walk->bad = true;
    return !walk->bad;
}

/* A value that is below `limit` (0: any). Returns what the field now is: writing never changes it. */
static uint64_t number(struct walk *walk, uint64_t value, unsigned bytes, uint64_t limit)
{
    if (!take(walk, bytes))
        return walk->reading ? 0 : value;
    if (walk->reading)
        value = get(walk->at, bytes);
    else
        put(walk->at, value, bytes);
    walk->at += bytes;
    if (!limit || value < limit)
        return value;
    walk->bad = true;
    return walk->reading ? 0 : value;
}

#define U64(walk, field)        ((field) = number(walk, field, 8, 0))
#define U32(walk, field, limit) ((field) = (uint32_t)number(walk, field, 4, limit))
#define FLAG(walk, field)       ((field) = number(walk, field, 1, 2) != 0)
/* -1 to limit - 1. */
#define SLOT(walk, field, limit) ((field) = (int32_t)number(walk, (uint64_t)((field) + 1), 4, (limit) + 1) - 1)

static void raw(struct walk *walk, void *bytes, size_t count)
{
    if (!take(walk, count))
        return;
    if (walk->reading)
        memcpy(bytes, walk->at, count);
    else
        memcpy(walk->at, bytes, count);
    walk->at += count;
}

static void text(struct walk *walk, char *words, size_t capacity)
{
    const char *nul = memchr(words, 0, capacity);
    size_t length = number(walk, nul ? (size_t)(nul - words) : capacity - 1, 1, capacity);

    raw(walk, words, length);
    if (walk->reading && !walk->bad)
        memset(words + length, 0, capacity - length);
}

/* ------------------------------------------------------------------------------------------------- parts ------ */

static void walk_key(struct walk *walk, struct gms_operation_key *key)
{
    U64(walk, key->incarnation);
    U64(walk, key->launch);
    U32(walk, key->sequence, 0);
    U32(walk, key->kind, GMS_OPERATION_COUNT);
    if (key->kind == GMS_OPERATION_NONE)
        walk->bad = true; /* only what has a name is kept */
}

static void walk_proposal(struct walk *walk, struct gms_proposal *proposal)
{
    walk_key(walk, &proposal->key);
    for (unsigned i = 0; i < GMS_PROPOSAL_FIELDS; i++)
        U64(walk, proposal->fields[i]);
    raw(walk, proposal->pool, sizeof proposal->pool);
    U32(walk, proposal->pool_kind, 0);
}

static void walk_outcome(struct walk *walk, struct gms_outcome *outcome)
{
    walk_key(walk, &outcome->key);
    outcome->status = (gms_status)number(walk, (uint32_t)outcome->status, 4, 1000);
    SLOT(walk, outcome->rank, GMS_MAX_RANKS);
    U64(walk, outcome->incarnation);
    U64(walk, outcome->epoch);
    U32(walk, outcome->adopted, 0);
    U32(walk, outcome->idle, 0);
    U32(walk, outcome->quarantined, 0);
    U32(walk, outcome->pool_index, 0);
    if (outcome->pool_index != GMS_CORE_NO_POOL && outcome->pool_index >= GMS_CORE_MAX_POOLS)
        walk->bad = true;
    FLAG(walk, outcome->created);
    FLAG(walk, outcome->freed);
    U64(walk, outcome->pool_creator);
    outcome->pool_state = (enum gms_pool_state)number(walk, (uint64_t)outcome->pool_state, 4, GMS_POOL_STATE_COUNT);
    U64(walk, outcome->budget);
    text(walk, outcome->text, sizeof outcome->text);
}

/* The newest GMS_SNAPSHOT_OUTCOMES, oldest first. */
static void walk_decided(struct walk *walk, struct gms_core_engine *slot)
{
    uint32_t known = 0;

    for (uint32_t i = 0; i < GMS_CORE_OUTCOMES; i++)
        known += slot->decided[i].outcome.key.kind != GMS_OPERATION_NONE;

    uint32_t count = known < GMS_SNAPSHOT_OUTCOMES ? known : GMS_SNAPSHOT_OUTCOMES;
    U32(walk, count, GMS_SNAPSHOT_OUTCOMES + 1);
    for (uint32_t i = 0; i < count && !walk->bad; i++) {
        /* The ring is filled from its start, and the next to be overwritten is the oldest. */
        uint32_t at = walk->reading ? i : (slot->decided_next + GMS_CORE_OUTCOMES - count + i) % GMS_CORE_OUTCOMES;
        walk_outcome(walk, &slot->decided[at].outcome);
    }
    if (walk->reading)
        slot->decided_next = count % GMS_CORE_OUTCOMES;
}

static void walk_slot(struct walk *walk, struct gms_core_engine *slot)
{
    slot->role = (enum gms_role)number(walk, (uint64_t)slot->role, 4, GMS_ROLE_COUNT);
    U64(walk, slot->incarnation);
    U64(walk, slot->launch);
    U32(walk, slot->next_sequence, 0);
    U64(walk, slot->parked_round);
    U64(walk, slot->promoted_epoch);
    U64(walk, slot->promoted_source);
    FLAG(walk, slot->may_write);
    FLAG(walk, slot->operation.preparing);
    FLAG(walk, slot->last.known);
    FLAG(walk, slot->last.decided);
    if (slot->last.known)
        walk_proposal(walk, &slot->last.proposal);
    if (slot->last.decided)
        walk_outcome(walk, &slot->last.outcome);
    walk_decided(walk, slot);
    U32(walk, slot->exchange.sequence, 0);
    U32(walk, slot->exchange.bytes, sizeof slot->exchange.data + 1);
    raw(walk, slot->exchange.data, slot->exchange.bytes);

    bool empty = slot->role == GMS_ROLE_EMPTY;
    if (empty != !slot->incarnation || (slot->may_write && slot->role != GMS_ROLE_CONDEMNED) ||
        (slot->last.decided && !slot->last.known) ||
        (slot->operation.preparing && (!slot->last.known || slot->last.decided)))
        walk->bad = true;
}

static void walk_pool(struct walk *walk, struct gms_core_pool *pool)
{
    pool->state = (enum gms_pool_state)number(walk, (uint64_t)pool->state, 4, GMS_POOL_STATE_COUNT);
    if (pool->state == GMS_POOL_ABSENT)
        return;
    raw(walk, pool->name, sizeof pool->name);
    U32(walk, pool->kind, 0);
    U64(walk, pool->creator);
    for (unsigned i = 0; i < sizeof pool->fields / sizeof pool->fields[0]; i++)
        U64(walk, pool->fields[i]);
    U32(walk, pool->attached_mask, 1u << GMS_MAX_ENGINES);
}

static void walk_transfer(struct walk *walk, const struct gms_core *core, struct gms_core_transfer *transfer)
{
    size_t bytes = (core->options.world_size + 7) / 8;

    transfer->used = true;
    U64(walk, transfer->incarnation);
    U64(walk, transfer->id);
    raw(walk, transfer->finished, bytes);
    raw(walk, transfer->failed, bytes);
    for (size_t i = 0; i < bytes; i++) /* a rank has one vote */
        if (transfer->finished[i] & transfer->failed[i])
            walk->bad = true;
}

/* Those in use, in the order of the ring `next` (a table: 0). They fill `all` from its start when read. Returns how
 * many. */
static uint32_t walk_transfers(struct walk *walk, const struct gms_core *core, struct gms_core_transfer *all,
                               uint32_t capacity, uint32_t next)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < capacity; i++)
        count += all[i].used;
    U32(walk, count, capacity + 1);
    for (uint32_t i = 0, done = 0; i < capacity && done < count && !walk->bad; i++) {
        struct gms_core_transfer *transfer = &all[walk->reading ? i : (next + i) % capacity];

        if (!walk->reading && !transfer->used)
            continue;
        walk_transfer(walk, core, transfer);
        done++;
    }
    return count;
}

static void walk_reclaim(struct walk *walk, struct gms_core_reclaim *reclaim)
{
    reclaim->state = (enum gms_reclaim_state)number(walk, (uint64_t)reclaim->state, 4, GMS_RECLAIM_STATE_COUNT);
    U64(walk, reclaim->step);
    U64(walk, reclaim->owner);
    U32(walk, reclaim->chosen, 0);
    U64(walk, reclaim->position);
    U64(walk, reclaim->next);
    raw(walk, reclaim->free, sizeof reclaim->free);
    for (uint32_t i = 0; i < GMS_RECLAIM_SUSPECTS; i++) {
        struct gms_core_suspect *suspect = &reclaim->suspects[i];

        U64(walk, suspect->incarnation);
        U32(walk, suspect->engine, GMS_MAX_ENGINES);
        suspect->verdict =
            (enum gms_reclaim_answer)number(walk, (uint64_t)suspect->verdict, 4, GMS_RECLAIM_ANSWER_COUNT);
        if ((reclaim->chosen >> i & 1) !=
            (suspect->verdict == GMS_RECLAIM_QUIET || suspect->verdict == GMS_RECLAIM_BEST_EFFORT))
            walk->bad = true;
    }
    if ((reclaim->state == GMS_RECLAIM_RESTING) != !reclaim->owner)
        walk->bad = true;
}

static void walk_state(struct walk *walk, struct gms_core *core)
{
    U32(walk, core->options.world_size, GMS_MAX_RANKS + 1);
    U64(walk, core->epoch);
    U64(walk, core->incarnations);
    U64(walk, core->digest);
    core->takeover = (enum gms_takeover_state)number(walk, (uint64_t)core->takeover, 4, GMS_TAKEOVER_STATE_COUNT);
    SLOT(walk, core->serving, GMS_MAX_ENGINES);
    SLOT(walk, core->successor, GMS_MAX_ENGINES);
    U64(walk, core->writer);
    U32(walk, core->writer_engine, GMS_MAX_ENGINES);
    U64(walk, core->identity_of);
    for (uint32_t i = 0; i < GMS_PROPOSAL_FIELDS; i++)
        U64(walk, core->identity[i]);
    for (uint32_t e = 0; e < GMS_MAX_ENGINES && !walk->bad; e++)
        walk_slot(walk, &core->engines[e]);
    for (uint32_t i = 0; i < GMS_CORE_MAX_POOLS && !walk->bad; i++)
        walk_pool(walk, &core->pools[i]);
    U64(walk, core->budget.bytes);
    U64(walk, core->budget.incarnation);
    U32(walk, core->budget.rank, GMS_MAX_RANKS);
    walk_transfers(walk, core, core->transfers, GMS_CORE_MAX_TRANSFERS, 0);
    uint32_t ended = walk_transfers(walk, core, core->ended, GMS_CORE_ENDED_TRANSFERS, core->ended_next);
    if (walk->reading)
        core->ended_next = ended % GMS_CORE_ENDED_TRANSFERS;
    walk_reclaim(walk, &core->reclaim);
}

/* Does what was read fit together? Bytes with a right digest can still come from something else than a core. */
static bool is_possible(const struct gms_core *core)
{
    if (!core->options.world_size || core->writer > core->incarnations || core->identity_of > core->incarnations ||
        core->budget.incarnation > core->incarnations)
        return false;
    if (core->serving >= 0 && core->engines[core->serving].role != GMS_ROLE_SERVING)
        return false;
    if (core->successor >= 0 && core->engines[core->successor].role != GMS_ROLE_PARKED &&
        core->engines[core->successor].role != GMS_ROLE_PROMOTED)
        return false;
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        const struct gms_core_engine *slot = &core->engines[e];

        if (slot->incarnation > core->incarnations || slot->promoted_epoch > core->epoch ||
            slot->promoted_source > core->incarnations)
            return false;
        if ((slot->role == GMS_ROLE_SERVING) != (core->serving == (int32_t)e))
            return false;
        if (slot->role == GMS_ROLE_PROMOTED && core->successor != (int32_t)e)
            return false;
        for (uint32_t other = 0; other < e && slot->incarnation; other++)
            if (core->engines[other].incarnation == slot->incarnation)
                return false;
    }
    if (core->reclaim.owner && (core->serving < 0 || core->reclaim.owner != core->engines[core->serving].incarnation))
        return false;
    bool promoting = core->takeover == GMS_TAKEOVER_PROMOTING, serving = core->takeover == GMS_TAKEOVER_SERVING;
    bool promoted = core->successor >= 0 && core->engines[core->successor].role == GMS_ROLE_PROMOTED;
    return promoting == promoted && serving == (core->serving >= 0);
}

/* ------------------------------------------------------------------------------------------------- whole ------ */

size_t gms_core_snapshot(const struct gms_core *core, void *buffer, size_t capacity)
{
    uint8_t *bytes = buffer;
    struct walk walk = {.end = bytes + capacity};

    if (capacity < HEADER_BYTES)
        return 0;
    walk.at = bytes + HEADER_BYTES;
    walk_state(&walk, (struct gms_core *)(uintptr_t)core); /* writing changes nothing in it */
    if (walk.bad)
        return 0;

    size_t count = (size_t)(walk.at - bytes);
    memcpy(bytes, magic, MAGIC_BYTES);
    put(bytes + 8, SNAPSHOT_VERSION, 4);
    put(bytes + 12, count, 4);
    put(bytes + 24, core->options.world, 8);
    put(bytes + 32, core->round - 1, 8);
    put(bytes + 40, core->life, 8);
    put(bytes + DIGEST_AT, gms_snapshot_digest(bytes, count), 8);
    return count;
}

/* Unpublished weights are void when their maker is gone: dropped, and made anew by whoever asks. */
static bool has_memory(const struct gms_core *core, const struct gms_core_pool *pool)
{
    if (pool->state != GMS_POOL_UNPUBLISHED)
        return pool->state == GMS_POOL_READY;
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++)
        if (core->engines[e].role != GMS_ROLE_EMPTY && core->engines[e].incarnation == pool->creator)
            return true;
    return false;
}

gms_status gms_snapshot_read(const void *snapshot, size_t bytes, struct gms_core *core,
                             struct gms_snapshot_view *ret_view)
{
    const uint8_t *from = snapshot;
    struct walk walk = {.reading = true};

    memset(ret_view, 0, sizeof *ret_view);
    if (bytes < HEADER_BYTES || bytes > GMS_SNAPSHOT_MAX_BYTES || memcmp(from, magic, MAGIC_BYTES) != 0)
        return GMS_E_CORRUPT;
    if (get(from + 12, 4) != bytes || get(from + DIGEST_AT, 8) != gms_snapshot_digest(from, bytes))
        return GMS_E_CORRUPT;
    if (get(from + 8, 4) != SNAPSHOT_VERSION)
        return GMS_E_VERSION;
    walk.at = (uint8_t *)(uintptr_t)from + HEADER_BYTES; /* reading changes nothing in it */
    walk.end = walk.at + (bytes - HEADER_BYTES);
    walk_state(&walk, core);
    if (walk.bad || walk.at != walk.end || !is_possible(core))
        return GMS_E_CORRUPT;

    core->options.world = ret_view->world = get(from + 24, 8);
    ret_view->round = get(from + 32, 8);
    ret_view->digest = get(from + DIGEST_AT, 8);
    core->life = get(from + 40, 8);
    ret_view->world_size = core->options.world_size;
    ret_view->epoch = core->epoch;
    ret_view->incarnation = core->incarnations;
    if (core->life > ret_view->world || !ret_view->world || !ret_view->round || ret_view->round > UINT64_MAX / 2 ||
        core->epoch > UINT64_MAX / 2 || core->incarnations > UINT64_MAX / 2)
        return GMS_E_CORRUPT;
    core->round = ret_view->round + 1;
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        ret_view->engines += core->engines[e].role != GMS_ROLE_EMPTY;
        ret_view->prepared += core->engines[e].operation.preparing;
    }
    for (uint32_t i = 0; i < GMS_CORE_MAX_POOLS; i++)
        ret_view->pools += has_memory(core, &core->pools[i]);
    return GMS_OK;
}
