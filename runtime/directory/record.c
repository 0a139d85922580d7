/* SPDX-License-Identifier: Apache-2.0 */
#define XXH_INLINE_ALL /* a checksum of 120 bytes is cheaper than the call through the library */
#include <xxhash.h>

#include <string.h>

#include "directory/directory.h"
#include "directory/layout.h"

uint64_t gms_record_checksum(const struct gms_record *record, uint64_t identity_digest, uint32_t home_slot)
{
    return XXH3_64bits_withSeed(record, offsetof(struct gms_record, checksum), identity_digest + home_slot);
}

bool gms_record_plausible(const struct gms_record *record, uint64_t identity_digest, uint32_t pool, uint32_t slot,
                          uint64_t generation)
{
    if (record->part_count < 1 || record->part_count > GMS_RECORD_PARTS)
        return false;
    const struct gms_record_part *home = &record->parts[0];
    if (home->pool != pool || home->slot != slot || home->generation != generation)
        return false;
    for (uint32_t i = 1; i < record->part_count; i++)
        if (record->parts[i].pool >= GMS_MAX_POOLS || record->parts[i].generation > GMS_SLOT_GENERATION_MAX)
            return false;
    return record->checksum == gms_record_checksum(record, identity_digest, slot);
}

static bool known_slot(struct gms_directory *const all[GMS_MAX_POOLS], uint32_t pool, uint32_t slot)
{
    return pool < GMS_MAX_POOLS && all[pool] != NULL && slot < all[pool]->slot_count;
}

static bool parts_are_distinct(const struct gms_block *block)
{
    for (uint32_t i = 1; i < block->part_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (block->parts[i].pool == block->parts[j].pool && block->parts[i].slot == block->parts[j].slot)
                return false;
    return true;
}

static void write_record(struct gms_directory *home, const struct gms_block *block, uint64_t content_digest)
{
    struct gms_record record = {.content_digest = content_digest,
                                .token_count = block->token_count,
                                .part_count = (uint16_t)block->part_count,
                                .sealed_epoch = home->geometry.epoch};
    memcpy(record.hash, block->hash, sizeof record.hash);
    memcpy(record.parent_hash, block->parent_hash, sizeof record.parent_hash);
    for (uint32_t i = 0; i < block->part_count; i++)
        record.parts[i] = (struct gms_record_part){
            .pool = block->parts[i].pool, .slot = block->parts[i].slot, .generation = block->parts[i].generation};
    record.checksum = gms_record_checksum(&record, home->geometry.identity_digest, block->parts[0].slot);
    gms_directory_copy_record_in(home, block->parts[0].slot, &record);
}

/* Moves part `part` from LEASED to SEALED at its generation. */
static bool seal_part(struct gms_directory *const all[GMS_MAX_POOLS], const struct gms_part *part)
{
    const gms_slot_word leased = gms_slot_word_make(GMS_SLOT_LEASED, part->generation);
    gms_slot_word sealed = 0;
    return gms_slot_step(leased, GMS_SLOT_EVENT_SEAL, part->generation, &sealed) == GMS_OK &&
           gms_directory_replace_word(all[part->pool], part->slot, leased, sealed);
}

gms_status gms_directory_seal(struct gms_directory *const all[GMS_MAX_POOLS], const struct gms_block *block,
                              uint64_t content_digest)
{
    if (block->part_count < 1 || block->part_count > GMS_RECORD_PARTS)
        return GMS_E_INVALID;
    for (uint32_t i = 0; i < block->part_count; i++)
        if (!known_slot(all, block->parts[i].pool, block->parts[i].slot))
            return GMS_E_INVALID;
    if (!parts_are_distinct(block))
        return GMS_E_INVALID;
    /* Looked at before the record is written: a slot that is not ours may hold somebody's valid record. */
    for (uint32_t i = 0; i < block->part_count; i++)
        if (block->parts[i].generation > GMS_SLOT_GENERATION_MAX ||
            gms_directory_word(all[block->parts[i].pool], block->parts[i].slot) !=
                gms_slot_word_make(GMS_SLOT_LEASED, block->parts[i].generation))
            return GMS_E_LOST_OWNERSHIP;

    write_record(all[block->parts[0].pool], block, content_digest);
    /* Home last: until then the record is not valid, so whoever dies in here leaves no half block. */
    uint32_t i = block->part_count;
    while (i > 0 && seal_part(all, &block->parts[i - 1]))
        i--;
    if (i == 0)
        return GMS_OK;
    for (; i < block->part_count; i++) {
        const struct gms_part *part = &block->parts[i];
        gms_directory_replace_word(all[part->pool], part->slot, gms_slot_word_make(GMS_SLOT_SEALED, part->generation),
                                   gms_slot_word_make(GMS_SLOT_LEASED, part->generation));
    }
    return GMS_E_LOST_OWNERSHIP;
}

bool gms_directory_read(struct gms_directory *const all[GMS_MAX_POOLS], uint32_t pool, uint32_t slot,
                        struct gms_record *ret_record)
{
    if (!known_slot(all, pool, slot))
        return false;
    const struct gms_directory *home = all[pool];
    const gms_slot_word word = gms_directory_word(home, slot);
    if (gms_slot_word_state(word) != GMS_SLOT_SEALED)
        return false;
    struct gms_record record;
    gms_directory_copy_record_out(home, slot, &record);
    if (!gms_record_plausible(&record, home->geometry.identity_digest, pool, slot, gms_slot_word_generation(word)))
        return false;
    for (uint32_t i = 1; i < record.part_count; i++) {
        const struct gms_record_part *part = &record.parts[i];
        if (!known_slot(all, part->pool, part->slot) ||
            gms_directory_word(all[part->pool], part->slot) != gms_slot_word_make(GMS_SLOT_SEALED, part->generation))
            return false;
    }
    if (gms_directory_word(home, slot) != word)
        return false;
    *ret_record = record;
    return true;
}
