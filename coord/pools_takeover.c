/* SPDX-License-Identifier: Apache-2.0
 *
 * What a takeover does to directories: the index before it, classification, and the sub-round of adoption.
 */
#include "pools_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

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

/* Directories lie one after another in the vectors, each from a full byte on; the bits between are clear. */
gms_status gms_pools_bulk(struct gms_pools *pools, struct gms_round *round, uint64_t incarnation,
                          struct gms_pools_adopted *ret_adopted, struct gms_error *ret_error)
{
    const struct gms_pools_owner *owner = gms_pools_find_owner(pools, incarnation);
    size_t bytes = 0, offsets[GMS_MAX_POOLS] = {0};
    for (uint32_t index = 0; index < GMS_MAX_POOLS && owner != NULL; index++) {
        offsets[index] = bytes;
        if (owner->directories[index] != NULL)
            bytes += (owner->directories[index]->slot_count + 7u) / 8;
    }
    uint8_t *maps = calloc(2, bytes + 1);
    uint32_t *digests = calloc(8 * bytes + 1, sizeof *digests);
    if (maps == NULL || digests == NULL || bytes > UINT32_MAX / 8) {
        free(maps);
        free(digests);
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to compare %zu slots", 8 * bytes);
    }
    uint8_t *adoptable = maps, *usable = maps + bytes;
    for (uint32_t index = 0; index < GMS_MAX_POOLS && owner != NULL; index++)
        if (owner->directories[index] != NULL)
            gms_directory_bulk_vectors_indexed(owner->directories[index], pools->pools[index].index,
                                               adoptable + offsets[index], usable + offsets[index],
                                               digests + 8 * offsets[index]);
    struct gms_round_bulk_result result;
    gms_status status = gms_round_bulk(round, (uint32_t)(8 * bytes), adoptable, usable, digests, &result, ret_error);
    memset(ret_adopted, 0, sizeof *ret_adopted);
    for (uint32_t index = 0; index < GMS_MAX_POOLS && owner != NULL && status == GMS_OK; index++) {
        if (owner->directories[index] == NULL)
            continue;
        struct gms_classification words;
        gms_directory_bulk_apply(owner->directories[index], adoptable + offsets[index], usable + offsets[index],
                                 &words);
        count_merged(owner->directories[index]->slot_count, adoptable + offsets[index], usable + offsets[index],
                     ret_adopted);
    }
    if (status == GMS_OK) {
        gms_log(GMS_LOG_INFO, "adoption of incarnation %llu: %u slots adoptable here, %u everywhere, %u unequal",
                (unsigned long long)incarnation, result.adoptable_here, result.adoptable, result.unequal);
    }
    free(maps);
    free(digests);
    return status;
}
