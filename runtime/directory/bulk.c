/* SPDX-License-Identifier: Apache-2.0 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "directory/directory.h"
#include "directory/layout.h"

static bool bit(const uint8_t *bitmap, uint32_t slot)
{
    return (bitmap[slot / 8] >> (slot % 8) & 1) != 0;
}

/* Of what every rank must have equal. Ranks may have leased a slot a different number of times when the engine died,
 * and each holds its own shard, so generations and contents stay out. */
static uint32_t comparable_digest(const struct gms_record *record)
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

void gms_directory_bulk_vectors(const struct gms_directory *directory, uint8_t *ret_adoptable, uint8_t *ret_usable,
                                uint32_t *ret_digests)
{
    const size_t bytes = ((size_t)directory->slot_count + 7) / 8;
    memset(ret_adoptable, 0, bytes);
    memset(ret_usable, 0, bytes);
    for (uint32_t slot = 0; slot < directory->slot_count; slot++) {
        const enum gms_slot_state state = gms_slot_word_state(gms_directory_word(directory, slot));
        const uint8_t mask = (uint8_t)(1u << (slot % 8));
        ret_digests[slot] = 0;
        if (state == GMS_SLOT_SEALED) {
            struct gms_record record;
            gms_directory_copy_record_out(directory, slot, &record);
            ret_digests[slot] = comparable_digest(&record);
            ret_adoptable[slot / 8] |= mask;
            ret_usable[slot / 8] |= mask;
        } else if (state == GMS_SLOT_IDLE) {
            ret_usable[slot / 8] |= mask;
        }
    }
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
