/* SPDX-License-Identifier: Apache-2.0
 *
 * What a takeover does to directories: the index before it, classification, and the sub-round of adoption.
 */
#include "memory/pools_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "directory/tail.h"

void gms_pools_refresh(struct gms_pools *pools, uint64_t source, uint64_t successor)
{
    const struct gms_pools_owner *from = gms_pools_find_owner(pools, source),
                                 *to = gms_pools_find_owner(pools, successor);
    if (from == NULL)
        return;
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        struct gms_pool_memory *pool = &pools->pools[index];
        if (pool->index == NULL || from->directories[index] == NULL)
            continue;
        uint64_t changes = gms_directory_change_count(from->directories[index]);
        if (pool->index_source == source && pool->index_successor == successor && pool->index_changes == changes)
            continue;
        gms_directory_index_refresh(pool->index, from->directories, index, to != NULL ? to->directories[index] : NULL);
        pool->index_source = source;
        pool->index_successor = successor;
        pool->index_changes = changes;
    }
}

static void note_suspects(struct gms_pools *pools, const struct gms_pools_owner *from, const struct gms_pools_owner *to,
                          uint32_t suspect)
{
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++)
        if (pools->pools[index].quarantine != NULL)
            gms_quarantine_classified(pools->pools[index].quarantine, pools->pools[index].index,
                                      from != NULL ? from->directories[index] : NULL,
                                      to != NULL ? to->directories[index] : NULL, suspect);
}

void gms_pools_distrust(struct gms_pools *pools)
{
    for (const struct gms_pools_owner *owner = pools->owners; owner != NULL; owner = owner->next)
        for (uint32_t index = 0; index < GMS_MAX_POOLS; index++)
            if (owner->directories[index] != NULL && pools->pools[index].quarantine != NULL)
                gms_quarantine_distrust(pools->pools[index].quarantine, owner->directories[index], true);
}

gms_status gms_pools_classify(struct gms_pools *pools, uint64_t source, uint64_t successor, bool source_clean,
                              uint32_t suspect, struct gms_pools_classified *ret_counts, struct gms_error *ret_error)
{
    static struct gms_directory *const nothing[GMS_MAX_POOLS];
    const struct gms_pools_owner *from = gms_pools_find_owner(pools, source),
                                 *to = gms_pools_find_owner(pools, successor);
    memset(ret_counts, 0, sizeof *ret_counts);
    if (to == NULL) { /* the successor has no KV pool: nothing to adopt, but somebody after it may have one */
        note_suspects(pools, from, NULL, suspect);
        return GMS_OK;
    }
    struct gms_directory_index *indexes[GMS_MAX_POOLS];
    struct gms_classification counts[GMS_MAX_POOLS] = {{0}};
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        indexes[index] = pools->pools[index].index;
        pools->pools[index].index_source = 0; /* the words it was made for are not the truth any more */
    }
    gms_status status = gms_directory_classify(indexes, from != NULL ? from->directories : nothing, to->directories,
                                               source_clean, counts, ret_error);
    if (status == GMS_OK)
        note_suspects(pools, from, to, suspect);
    for (uint32_t index = 0; index < GMS_MAX_POOLS && status == GMS_OK; index++) {
        ret_counts->sealed_here += counts[index].adoptable + counts[index].damaged;
        ret_counts->adoptable += counts[index].adoptable;
        ret_counts->free += counts[index].free;
        ret_counts->quarantined += counts[index].quarantined;
        ret_counts->damaged += counts[index].damaged;
        ret_counts->tails += counts[index].tails;
    }
    return status;
}

uint32_t gms_pools_give_up_sealed(struct gms_pools *pools, uint64_t successor, struct gms_pools_classified *counts)
{
    const struct gms_pools_owner *owner = gms_pools_find_owner(pools, successor);
    uint32_t given_up = 0;
    for (uint32_t index = 0; owner != NULL && index < GMS_MAX_POOLS; index++) {
        struct gms_directory *directory = owner->directories[index];
        for (uint32_t slot = 0; directory != NULL && slot < directory->slot_count; slot++) {
            gms_slot_word word = gms_directory_word(directory, slot);
            if (gms_slot_word_state(word) != GMS_SLOT_SEALED)
                continue;
            gms_directory_set_word(directory, slot, gms_slot_word_make(GMS_SLOT_IDLE, gms_slot_word_generation(word)));
            given_up++;
        }
    }
    for (uint32_t index = 0; owner != NULL && index < GMS_MAX_POOLS; index++)
        if (owner->directories[index] != NULL)
            gms_directory_drop_tails(owner->directories[index]); /* a wild kernel spares them no more than the others */
    counts->tails = 0;
    counts->adoptable -= given_up < counts->adoptable ? given_up : counts->adoptable;
    counts->free += given_up;
    return given_up;
}

/* From what all ranks have merged, and from nothing else: the numbers become replicated state, and the words here may
 * say more (a slot retired on this rank alone) or be written by an engine that should not. */
static void count_merged(uint32_t slot_count, const uint8_t *adoptable, const uint8_t *usable,
                         struct gms_pools_adopted *adopted)
{
    for (uint32_t slot = 0; slot < slot_count; slot++) {
        uint8_t bit = (uint8_t)(1u << (slot % 8));
        if ((adoptable[slot / 8] & bit) != 0)
            adopted->adopted++;
        else if ((usable[slot / 8] & bit) != 0)
            adopted->idle++;
        else
            adopted->quarantined++;
    }
}

/* ---------------------------------------------------------------------------------------------------- adoption --- */

/* What the ranks compare: directories lie one after another in the vectors, each from a full byte on; the bits between
 * are clear. */
struct vectors {
    size_t bytes, offsets[GMS_MAX_POOLS];
    uint8_t *adoptable, *usable; /* owned as one, by `adoptable` */
    uint32_t *digests;           /* owned */
};

static void vectors_free(struct vectors *vectors)
{
    free(vectors->adoptable);
    free(vectors->digests);
}

static gms_status vectors_make(size_t bytes, struct vectors *vectors, struct gms_error *ret_error)
{
    vectors->bytes = bytes;
    vectors->adoptable = calloc(2, bytes + 1);
    vectors->usable = vectors->adoptable != NULL ? vectors->adoptable + bytes : NULL;
    vectors->digests = calloc(8 * bytes + 1, sizeof *vectors->digests);
    if (vectors->adoptable != NULL && vectors->digests != NULL && bytes <= UINT32_MAX / 8)
        return GMS_OK;
    return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to compare %zu slots", 8 * bytes);
}

static bool bit(const uint8_t *bitmap, uint64_t at)
{
    return (bitmap[at / 8] >> (at % 8) & 1) != 0;
}

/* A slot that no rank may use as it is, and what this rank offers of it. `at`: its place among all of them. */
struct offer {
    uint32_t pool;
    uint32_t slot;
    uint64_t at;
    struct gms_tail_candidate candidate;
};

struct offers {
    struct offer *items; /* owned */
    size_t count, capacity;
    uint64_t places;
};

static bool offer(struct offers *offers, const struct offer *one)
{
    if (offers->count == offers->capacity) {
        const size_t capacity = 2 * offers->capacity + 16;
        struct offer *grown = realloc(offers->items, capacity * sizeof *grown);
        if (grown == NULL)
            return false;
        offers->items = grown;
        offers->capacity = capacity;
    }
    offers->items[offers->count++] = *one;
    return true;
}

/* From the merged vectors, so all ranks count the same places. Before the words are changed: what is sealed here and
 * not elsewhere is offered too. */
static gms_status collect_offers(const struct gms_pools_owner *owner, const struct gms_pools_owner *from,
                                 uint64_t writer, const struct vectors *merged, struct offers *offers,
                                 struct gms_error *ret_error)
{
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        const struct gms_directory *directory = owner->directories[index];
        const uint8_t *adoptable = merged->adoptable + merged->offsets[index];
        const uint8_t *usable = merged->usable + merged->offsets[index];
        for (uint32_t slot = 0; directory != NULL && slot < directory->slot_count; slot++) {
            if (slot % 8 == 0 && (adoptable[slot / 8] | usable[slot / 8]) == 0xff)
                slot += 7; /* nearly all are like that */
            if (bit(usable, slot) || bit(adoptable, slot))
                continue;
            struct offer one = {.pool = index, .slot = slot, .at = offers->places++};
            if (gms_directory_tail_candidate(directory, from != NULL ? from->directories[index] : NULL, slot,
                                             gms_directory_word(directory, slot), writer, &one.candidate) &&
                !offer(offers, &one))
                return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the tails of %zu blocks", offers->count);
        }
    }
    return GMS_OK;
}

/* A sub-round of its own over the slots that nobody may use, a bit per lane: what all ranks offer alike stays. Every
 * rank comes here, or none: the number of places follows from the merged vectors. */
static gms_status agree_on_tails(const struct gms_pools_owner *owner, struct gms_round *round, struct offers *offers,
                                 struct gms_error *ret_error)
{
    struct vectors lanes = {0};
    const uint64_t bits = offers->places * GMS_TAIL_LANES;
    gms_status status = vectors_make((size_t)((bits + 7) / 8), &lanes, ret_error);
    for (size_t i = 0; i < offers->count && status == GMS_OK; i++)
        for (uint32_t lane = 0; lane < GMS_TAIL_LANES; lane++) {
            const uint64_t at = offers->items[i].at * GMS_TAIL_LANES + lane;
            lanes.digests[at] = offers->items[i].candidate.digests[lane];
            lanes.adoptable[at / 8] |= (uint8_t)((lanes.digests[at] != 0) << (at % 8));
        }
    struct gms_round_bulk_result result;
    if (status == GMS_OK)
        status = gms_round_bulk(round, (uint32_t)(8 * lanes.bytes), lanes.adoptable, lanes.usable, lanes.digests,
                                &result, ret_error);
    uint32_t kept = 0;
    for (size_t i = 0; i < offers->count && status == GMS_OK; i++) {
        const struct offer *one = &offers->items[i];
        uint32_t agreed = 0;
        for (uint32_t lane = 0; lane < GMS_TAIL_LANES; lane++)
            agreed |= (uint32_t)bit(lanes.adoptable, one->at * GMS_TAIL_LANES + lane) << lane;
        gms_directory_tail_agreed(owner->directories[one->pool], one->slot, &one->candidate, agreed);
        kept += agreed != 0;
    }
    if (status == GMS_OK)
        gms_log(GMS_LOG_INFO, "tails of unfinished blocks: %zu here, %u on all ranks", offers->count, kept);
    vectors_free(&lanes);
    return status;
}

gms_status gms_pools_bulk(struct gms_pools *pools, struct gms_round *round, uint64_t incarnation, uint64_t source,
                          struct gms_pools_adopted *ret_adopted, struct gms_error *ret_error)
{
    static const struct gms_pools_owner nothing = {0};
    const struct gms_pools_owner *owner = gms_pools_find_owner(pools, incarnation);
    if (owner == NULL)
        owner = &nothing;
    struct vectors vectors = {0};
    size_t bytes = 0;
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        vectors.offsets[index] = bytes;
        if (owner->directories[index] != NULL)
            bytes += (owner->directories[index]->slot_count + 7u) / 8;
    }
    gms_status status = vectors_make(bytes, &vectors, ret_error);
    for (uint32_t index = 0; index < GMS_MAX_POOLS && status == GMS_OK; index++)
        if (owner->directories[index] != NULL)
            gms_directory_bulk_vectors_indexed(
                owner->directories[index], pools->pools[index].index, vectors.adoptable + vectors.offsets[index],
                vectors.usable + vectors.offsets[index], vectors.digests + 8 * vectors.offsets[index]);
    struct gms_round_bulk_result result;
    struct offers offers = {0};
    if (status == GMS_OK)
        status = gms_round_bulk(round, (uint32_t)(8 * bytes), vectors.adoptable, vectors.usable, vectors.digests,
                                &result, ret_error);
    if (status == GMS_OK)
        status = collect_offers(owner, gms_pools_find_owner(pools, source), source, &vectors, &offers, ret_error);
    memset(ret_adopted, 0, sizeof *ret_adopted);
    for (uint32_t index = 0; index < GMS_MAX_POOLS && status == GMS_OK; index++) {
        if (owner->directories[index] == NULL)
            continue;
        const uint8_t *adoptable = vectors.adoptable + vectors.offsets[index];
        const uint8_t *usable = vectors.usable + vectors.offsets[index];
        struct gms_classification words;
        gms_directory_bulk_apply(owner->directories[index], adoptable, usable, &words);
        count_merged(owner->directories[index]->slot_count, adoptable, usable, ret_adopted);
    }
    if (status == GMS_OK)
        gms_log(GMS_LOG_INFO, "adoption of incarnation %llu: %u slots adoptable here, %u everywhere, %u unequal",
                (unsigned long long)incarnation, result.adoptable_here, result.adoptable, result.unequal);
    if (status == GMS_OK && offers.places != 0)
        status = agree_on_tails(owner, round, &offers, ret_error);
    free(offers.items);
    vectors_free(&vectors);
    return status;
}
