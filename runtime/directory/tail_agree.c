/* SPDX-License-Identifier: Apache-2.0
 *
 * Of the tails that a dead engine left: what one rank offers, and what is left when the ranks have compared.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "directory/layout.h"
#include "directory/tail.h"

/* Generations and contents stay out, as for records: ranks lease a slot a different number of times, and each has its
 * own shard. */
static uint32_t comparable_digest(uint32_t pool, uint32_t slot, const uint8_t parent_hash[GMS_BLOCK_HASH_BYTES],
                                  const struct gms_tail_place *place)
{
    struct {
        uint8_t parent_hash[GMS_BLOCK_HASH_BYTES], hash[GMS_BLOCK_HASH_BYTES];
        uint32_t pool, slot, count, reserved;
    } shape = {.pool = pool, .slot = slot, .count = gms_tail_count(place)};
    memcpy(shape.parent_hash, parent_hash, sizeof shape.parent_hash);
    memcpy(shape.hash, place->hash, sizeof shape.hash);
    const uint32_t digest = (uint32_t)XXH3_64bits(&shape, sizeof shape);
    return digest != 0 ? digest : 1; /* 0 says "not offered" */
}

/* The sealed block as an entry of a ring that has nothing else. The checksum is the writer's. */
static void make_ring(const struct gms_directory *directory, uint32_t slot, const struct gms_record *sealed,
                      uint64_t writer, struct gms_tail_record *ret_ring)
{
    const struct gms_tail_progress progress = {
        .parent_hash = sealed->parent_hash, .hash = sealed->hash, .token_count = sealed->token_count};
    struct gms_directory_geometry geometry = directory->geometry;
    geometry.incarnation = writer;
    struct gms_tail_store stores[GMS_TAIL_STORES_MAX];
    uint64_t words[GMS_TAIL_WORDS] = {0};
    const uint32_t count = gms_tail_stores(&geometry, slot, 0, 0, sealed->parts[0].generation, &progress, stores);
    for (uint32_t i = 0; i < count; i++)
        words[stores[i].word] = stores[i].value;
    memcpy(ret_ring, words, sizeof words);
}

/* Does the ring end with the block that was sealed? */
static bool ends_with(const struct gms_tail_record *ring, uint32_t places, const struct gms_record *sealed)
{
    for (uint32_t i = 0; i < GMS_TAIL_ENTRIES; i++)
        if ((places >> i & 1) != 0 && gms_tail_count(&ring->places[i]) == sealed->token_count &&
            memcmp(ring->places[i].hash, sealed->hash, sizeof sealed->hash) == 0 &&
            memcmp(ring->parent_hash, sealed->parent_hash, sizeof sealed->parent_hash) == 0)
            return true;
    return false;
}

/* The places that a rank offers which had sealed the block: its contents were checked as a sealed block's. 0: none. */
static uint32_t from_sealed(const struct gms_directory *directory, const struct gms_directory *source, uint32_t slot,
                            gms_slot_word word, uint64_t writer, struct gms_tail_record *ret_ring)
{
    struct gms_record sealed;
    const uint64_t generation = gms_slot_word_generation(word);
    gms_directory_copy_record_out(directory, slot, &sealed);
    if (!gms_record_plausible(&sealed, directory->geometry.identity_digest, directory->geometry.pool, slot,
                              generation) ||
        sealed.part_count != 1 || sealed.token_count == 0 || sealed.token_count > GMS_TAIL_POSITIONS_MAX)
        return 0;
    const uint32_t places = source != NULL ? gms_directory_read_tail(source, slot, generation, writer, ret_ring) : 0;
    if (places != 0 && ends_with(ret_ring, places, &sealed))
        return places;
    make_ring(directory, slot, &sealed, writer, ret_ring);
    return 1;
}

bool gms_directory_tail_candidate(const struct gms_directory *directory, const struct gms_directory *source,
                                  uint32_t slot, gms_slot_word word, uint64_t writer,
                                  struct gms_tail_candidate *ret_candidate)
{
    struct gms_tail_record *ring = &ret_candidate->record;
    uint32_t places = 0;
    memset(ret_candidate, 0, sizeof *ret_candidate);
    if (writer == 0 || slot >= directory->slot_count)
        return false;
    if (gms_slot_word_state(word) == GMS_SLOT_SEALED)
        places = from_sealed(directory, source, slot, word, writer, ring);
    else if (gms_slot_word_state(word) == GMS_SLOT_QUARANTINED)
        places = gms_directory_read_tail(directory, slot, gms_slot_word_generation(word), writer, ring);
    if (places == 0)
        return false;
    for (uint32_t i = 0; i < GMS_TAIL_ENTRIES; i++) {
        if ((places >> i & 1) == 0)
            continue;
        ret_candidate->digests[i] =
            comparable_digest(directory->geometry.pool, slot, ring->parent_hash, &ring->places[i]);
        if (gms_tail_count(&ring->places[i]) > gms_tail_count(&ring->places[ret_candidate->newest]))
            ret_candidate->newest = i;
    }
    ret_candidate->digests[GMS_TAIL_ENTRIES] = ret_candidate->digests[ret_candidate->newest];
    return true;
}

void gms_directory_tail_agreed(struct gms_directory *directory, uint32_t slot,
                               const struct gms_tail_candidate *candidate, uint32_t lanes)
{
    uint32_t places = lanes & ((1u << GMS_TAIL_ENTRIES) - 1);
    if ((lanes >> GMS_TAIL_ENTRIES & 1) != 0)
        places |= 1u << candidate->newest;
    gms_directory_keep_tail(directory, slot, &candidate->record, places);
}
