/* SPDX-License-Identifier: Apache-2.0 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "directory/index.h"
#include "directory/layout.h"

static bool bit(const uint8_t *bitmap, uint32_t slot)
{
    return (bitmap[slot / 8] >> (slot % 8) & 1) != 0;
}

/* Of what every rank must have equal. Ranks may have leased a slot a different number of times when the engine died,
 * and each holds its own shard, so generations and contents stay out. */
uint32_t gms_record_comparable_digest(const struct gms_record *record)
{
    struct {
        uint8_t hash[GMS_BLOCK_HASH_BYTES], parent_hash[GMS_BLOCK_HASH_BYTES];
        uint32_t token_count, part_count;
        uint32_t places[2 * GMS_RECORD_PARTS];
    } shape = {.token_count = record->token_count, .part_count = record->part_count};
    memcpy(shape.hash, record->hash, sizeof shape.hash);
    memcpy(shape.parent_hash, record->parent_hash, sizeof shape.parent_hash);
    for (uint32_t i = 0; i < GMS_RECORD_PARTS; i++) {
        shape.places[2 * i] = record->parts[i].pool;
        shape.places[2 * i + 1] = record->parts[i].slot;
    }
    const uint32_t digest = (uint32_t)XXH3_64bits(&shape, sizeof shape);
    return digest != 0 ? digest : 1; /* 0 says "not adoptable" */
}

/* The index's digest stands for a record only while the word is the one it saw, in the file it copied the record to. */
static uint32_t digest_of(const struct gms_directory *directory, const struct gms_directory_index *index, uint32_t slot,
                          gms_slot_word word)
{
    struct gms_record record;
    if (index != NULL && index->seen[slot] == word && (index->flags[slot] & GMS_INDEX_VALID) != 0)
        return index->digests[slot];
    gms_directory_copy_record_out(directory, slot, &record);
    return gms_record_comparable_digest(&record);
}

void gms_directory_bulk_vectors_indexed(const struct gms_directory *directory, const struct gms_directory_index *index,
                                        uint8_t *ret_adoptable, uint8_t *ret_usable, uint32_t *ret_digests)
{
    const size_t bytes = ((size_t)directory->slot_count + 7) / 8;
    const _Atomic gms_slot_word *words = gms_directory_words(directory);
    if (index != NULL && (index->slot_count != directory->slot_count || index->into.base != directory->base ||
                          index->into.incarnation != directory->geometry.incarnation))
        index = NULL;
    memset(ret_adoptable, 0, bytes);
    memset(ret_usable, 0, bytes);
    for (uint32_t slot = 0; slot < directory->slot_count; slot++) {
        const gms_slot_word word = atomic_load_explicit(&words[slot], memory_order_acquire);
        const enum gms_slot_state state = gms_slot_word_state(word);
        const bool sealed = state == GMS_SLOT_SEALED;
        ret_digests[slot] = sealed ? digest_of(directory, index, slot, word) : 0;
        ret_adoptable[slot / 8] |= (uint8_t)(sealed << (slot % 8));
        ret_usable[slot / 8] |= (uint8_t)((sealed || state == GMS_SLOT_IDLE) << (slot % 8));
    }
}

void gms_directory_bulk_vectors(const struct gms_directory *directory, uint8_t *ret_adoptable, uint8_t *ret_usable,
                                uint32_t *ret_digests)
{
    gms_directory_bulk_vectors_indexed(directory, NULL, ret_adoptable, ret_usable, ret_digests);
}

void gms_directory_bulk_apply(struct gms_directory *directory, const uint8_t *adoptable, const uint8_t *usable,
                              struct gms_classification *ret_counts)
{
    struct gms_classification counts = {0};
    _Atomic gms_slot_word *words = gms_directory_words(directory);
    for (uint32_t slot = 0; slot < directory->slot_count; slot++) {
        const gms_slot_word word = atomic_load_explicit(&words[slot], memory_order_acquire);
        const enum gms_slot_state state = gms_slot_word_state(word);
        enum gms_slot_state next = GMS_SLOT_QUARANTINED;
        if (state == GMS_SLOT_RETIRED)
            next = GMS_SLOT_RETIRED;
        else if (state == GMS_SLOT_SEALED && bit(adoptable, slot))
            next = GMS_SLOT_SEALED;
        else if ((state == GMS_SLOT_SEALED || state == GMS_SLOT_IDLE) && bit(usable, slot))
            next = GMS_SLOT_IDLE;
        counts.adoptable += next == GMS_SLOT_SEALED;
        counts.free += next == GMS_SLOT_IDLE;
        counts.quarantined += next == GMS_SLOT_QUARANTINED;
        counts.retired += next == GMS_SLOT_RETIRED;
        if (next != state)
            atomic_store_explicit(&words[slot], gms_slot_word_make(next, gms_slot_word_generation(word)),
                                  memory_order_release);
    }
    atomic_fetch_add_explicit(&gms_directory_header(directory)->changes, 1, memory_order_release);
    *ret_counts = counts;
}
