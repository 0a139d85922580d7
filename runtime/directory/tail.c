/* SPDX-License-Identifier: Apache-2.0 */
#define XXH_INLINE_ALL /* 72 bytes cost less than the call through the library */
#include <xxhash.h>

#include <stddef.h>
#include <string.h>

#include "directory/tail.h"

#include "directory/layout.h"

enum {
    WORD_GENERATION = offsetof(struct gms_tail_record, generation) / 8,
    WORD_NOTES = offsetof(struct gms_tail_record, notes) / 8,
    WORD_PARENT = offsetof(struct gms_tail_record, parent_hash) / 8,
    WORD_PLACES = offsetof(struct gms_tail_record, places) / 8,
    PLACE_WORDS = sizeof(struct gms_tail_place) / 8,
    PLACE_EXTENT = offsetof(struct gms_tail_place, extent) / 8,
    PLACE_CHECKSUM = offsetof(struct gms_tail_place, checksum) / 8,
};

static uint32_t place_word(uint32_t place, uint32_t word)
{
    return (uint32_t)WORD_PLACES + place * (uint32_t)PLACE_WORDS + word;
}

/* Never 0, which says that there is no entry. */
static uint64_t checksum(const struct gms_directory_geometry *geometry, uint64_t writer, uint32_t slot,
                         uint64_t generation, const uint8_t parent_hash[GMS_BLOCK_HASH_BYTES],
                         const uint8_t hash[GMS_BLOCK_HASH_BYTES], uint64_t extent)
{
    struct {
        uint64_t identity_digest, writer, generation, extent;
        uint8_t parent_hash[GMS_BLOCK_HASH_BYTES], hash[GMS_BLOCK_HASH_BYTES];
        uint32_t pool, slot;
    } covered = {.identity_digest = geometry->identity_digest,
                 .writer = writer,
                 .generation = generation,
                 .extent = extent,
                 .pool = geometry->pool,
                 .slot = slot};
    memcpy(covered.parent_hash, parent_hash, sizeof covered.parent_hash);
    memcpy(covered.hash, hash, sizeof covered.hash);
    const uint64_t sum = XXH3_64bits(&covered, sizeof covered);
    return sum != 0 ? sum : 1;
}

static void copy_out(const struct gms_directory *directory, uint32_t slot, struct gms_tail_record *ret_record)
{
    _Atomic uint64_t *source = gms_directory_tail_words(directory, slot);
    uint64_t words[GMS_TAIL_WORDS];
    for (uint32_t i = 0; i < GMS_TAIL_WORDS; i++)
        words[i] = atomic_load_explicit(&source[i], memory_order_acquire);
    memcpy(ret_record, words, sizeof words);
}

static uint64_t load_word(const struct gms_directory *directory, uint32_t slot, uint32_t word)
{
    return atomic_load_explicit(&gms_directory_tail_words(directory, slot)[word], memory_order_relaxed);
}

static uint64_t half(const uint8_t hash[GMS_BLOCK_HASH_BYTES], size_t which)
{
    uint64_t word;
    memcpy(&word, hash + which * sizeof word, sizeof word);
    return word;
}

/* --------------------------------------------------------------------------------------------- owner's side --- */

uint32_t gms_tail_stores(const struct gms_directory_geometry *geometry, uint32_t slot, uint64_t leased, uint64_t noted,
                         uint64_t generation, const struct gms_tail_progress *progress,
                         struct gms_tail_store ret_stores[])
{
    const bool first = leased != generation || noted == 0;
    const uint64_t notes = first ? 0 : noted;
    const uint32_t place = (uint32_t)(notes % GMS_TAIL_ENTRIES);
    const uint64_t extent = progress->content << 16 | progress->token_count;
    uint32_t count = 0;
#define STORE(word_, value_)                                                                                           \
    ret_stores[count++] = (struct gms_tail_store)                                                                      \
    {                                                                                                                  \
        (word_), (value_)                                                                                              \
    }
    if (first) {
        for (uint32_t i = 0; i < GMS_TAIL_ENTRIES; i++)
            STORE(place_word(i, PLACE_CHECKSUM), 0);
        STORE(WORD_NOTES, 0);
        STORE(WORD_GENERATION, generation);
        STORE(WORD_PARENT, half(progress->parent_hash, 0));
        STORE(WORD_PARENT + 1, half(progress->parent_hash, 1));
    } else {
        STORE(place_word(place, PLACE_CHECKSUM), 0);
    }
    STORE(place_word(place, 0), half(progress->hash, 0));
    STORE(place_word(place, 1), half(progress->hash, 1));
    STORE(place_word(place, PLACE_EXTENT), extent);
    STORE(place_word(place, PLACE_CHECKSUM),
          checksum(geometry, geometry->incarnation, slot, generation, progress->parent_hash, progress->hash, extent));
    STORE(WORD_NOTES, notes + 1);
#undef STORE
    return count;
}

gms_status gms_directory_note_tail(struct gms_directory *directory, uint32_t slot, uint64_t generation,
                                   const struct gms_tail_progress *progress)
{
    if (slot >= directory->slot_count || progress->token_count == 0 || progress->token_count > GMS_TAIL_POSITIONS_MAX ||
        progress->content > GMS_TAIL_CONTENT_MASK)
        return GMS_E_INVALID;
    const gms_slot_word word = gms_directory_word(directory, slot);
    if (gms_slot_word_generation(word) != generation)
        return GMS_E_STALE;
    if (gms_slot_word_state(word) != GMS_SLOT_LEASED)
        return GMS_E_REFUSED;
    const uint64_t leased = load_word(directory, slot, WORD_GENERATION), notes = load_word(directory, slot, WORD_NOTES);
    if (leased == generation && notes != 0) {
        const uint64_t extent =
            load_word(directory, slot, place_word((uint32_t)((notes - 1) % GMS_TAIL_ENTRIES), PLACE_EXTENT));
        const uint32_t last = (uint32_t)(extent & GMS_TAIL_POSITIONS_MAX);
        if (progress->token_count < last || load_word(directory, slot, WORD_PARENT) != half(progress->parent_hash, 0) ||
            load_word(directory, slot, WORD_PARENT + 1) != half(progress->parent_hash, 1))
            return GMS_E_INVALID;
        if (progress->token_count == last)
            return GMS_OK;
    }
    struct gms_tail_store stores[GMS_TAIL_STORES_MAX];
    const uint32_t count = gms_tail_stores(&directory->geometry, slot, leased, notes, generation, progress, stores);
    _Atomic uint64_t *words = gms_directory_tail_words(directory, slot);
    for (uint32_t i = 0; i < count; i++)
        atomic_store_explicit(&words[stores[i].word], stores[i].value, memory_order_release);
    return GMS_OK;
}

bool gms_directory_last_tail(const struct gms_directory *directory, uint32_t slot, uint64_t generation,
                             uint32_t *ret_count, uint64_t *ret_content)
{
    if (slot >= directory->slot_count || load_word(directory, slot, WORD_GENERATION) != generation)
        return false;
    const uint64_t notes = load_word(directory, slot, WORD_NOTES);
    if (notes == 0)
        return false;
    const struct gms_tail_place last = {
        .extent = load_word(directory, slot, place_word((uint32_t)((notes - 1) % GMS_TAIL_ENTRIES), PLACE_EXTENT))};
    *ret_count = gms_tail_count(&last);
    *ret_content = gms_tail_content(&last);
    return true;
}

/* -------------------------------------------------------------------------------------------- reader's side --- */

uint32_t gms_directory_read_tail(const struct gms_directory *directory, uint32_t slot, uint64_t generation,
                                 uint64_t writer, struct gms_tail_record *ret_record)
{
    uint32_t valid = 0;
    memset(ret_record, 0, sizeof *ret_record);
    if (slot >= directory->slot_count ||
        atomic_load_explicit(&gms_directory_tail_words(directory, slot)[WORD_GENERATION], memory_order_acquire) !=
            generation)
        return 0;
    copy_out(directory, slot, ret_record);
    if (ret_record->generation != generation)
        return 0;
    for (uint32_t i = 0; i < GMS_TAIL_ENTRIES; i++) {
        struct gms_tail_place *place = &ret_record->places[i];
        if (place->checksum != 0 && gms_tail_count(place) != 0 &&
            place->checksum == checksum(&directory->geometry, writer, slot, generation, ret_record->parent_hash,
                                        place->hash, place->extent))
            valid |= 1u << i;
        else
            memset(place, 0, sizeof *place);
    }
    return valid;
}

void gms_directory_keep_tail(struct gms_directory *directory, uint32_t slot, const struct gms_tail_record *record,
                             uint32_t mask)
{
    if (slot >= directory->slot_count)
        return;
    _Atomic uint64_t *target = gms_directory_tail_words(directory, slot);
    uint64_t words[GMS_TAIL_WORDS];
    memcpy(words, record, sizeof words);
    for (uint32_t i = 0; i < GMS_TAIL_ENTRIES; i++)
        atomic_store_explicit(&target[place_word(i, PLACE_CHECKSUM)], 0, memory_order_release);
    for (uint32_t i = 0; i < WORD_PLACES; i++)
        atomic_store_explicit(&target[i], words[i], memory_order_release);
    for (uint32_t i = 0; i < GMS_TAIL_ENTRIES; i++) {
        const bool kept = (mask >> i & 1) != 0;
        for (uint32_t word = 0; word < PLACE_WORDS; word++) /* the checksum is the last of them */
            atomic_store_explicit(&target[place_word(i, word)], kept ? words[place_word(i, word)] : 0,
                                  memory_order_release);
    }
}

uint32_t gms_directory_drop_tails(struct gms_directory *directory)
{
    uint32_t dropped = 0;
    for (uint32_t slot = 0; slot < directory->slot_count; slot++) {
        if (gms_slot_word_state(gms_directory_word(directory, slot)) != GMS_SLOT_QUARANTINED)
            continue;
        _Atomic uint64_t *words = gms_directory_tail_words(directory, slot);
        bool any = false;
        for (uint32_t i = 0; i < GMS_TAIL_ENTRIES; i++) {
            _Atomic uint64_t *sum = &words[place_word(i, PLACE_CHECKSUM)];
            any = any || atomic_load_explicit(sum, memory_order_relaxed) != 0;
            atomic_store_explicit(sum, 0, memory_order_release);
        }
        dropped += any;
    }
    return dropped;
}
