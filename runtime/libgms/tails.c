/* SPDX-License-Identifier: Apache-2.0
 *
 * How far blocks have come: noted while this engine serves, and what its predecessor had noted, copied.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "libgms/session.h"

#include <inttypes.h>
#include <string.h>

#include "directory/tail.h"

static gms_status gate(const struct gms_session *session)
{
    return (gms_status)atomic_load_explicit(&session->gate, memory_order_acquire);
}

gms_status gms_tail_layout_set(gms_pool *pool, const struct gms_tail_layout *layout, struct gms_error *ret_error)
{
    const uint64_t block_bytes = pool->description.block_bytes;
    if (pool->description.kind != GMS_POOL_KV)
        return gms_fail(ret_error, GMS_E_INVALID, "pool %s is no kv pool: it has no blocks", pool->description.name);
    if (layout->planes == 0 || layout->position_bytes == 0 || layout->plane_bytes < layout->position_bytes ||
        layout->plane_bytes > block_bytes / layout->planes)
        return gms_fail(ret_error, GMS_E_INVALID,
                        "pool %s: %" PRIu32 " planes of %" PRIu64 " bytes, %" PRIu32 " a position, do not make a block "
                        "of %" PRIu64 " bytes",
                        pool->description.name, layout->planes, layout->plane_bytes, layout->position_bytes,
                        block_bytes);
    pool->tail_layout = *layout;
    return GMS_OK;
}

/* Does a plane have so many positions? */
static bool fits(const struct gms_pool *pool, uint32_t token_count)
{
    const struct gms_tail_layout *layout = &pool->tail_layout;
    return layout->planes == 0 || (uint64_t)token_count * layout->position_bytes <= layout->plane_bytes;
}

/* ------------------------------------------------------------------------------------------------ contents ---- */

static bool contents_count(const struct gms_pool *pool)
{
    return pool->session->kv_verify_full && pool->session->vmm->cpu_addresses && pool->tail_layout.planes != 0;
}

/* Goes on from the digest of the positions before `from`, one position at a time: however they were noted, the digest
 * of the first n is the same. 0 says "not taken". */
static uint64_t digest_positions(const struct gms_pool *pool, uint32_t slot, uint64_t digest, uint32_t from,
                                 uint32_t to)
{
    const struct gms_tail_layout *layout = &pool->tail_layout;
    const char *block = gms_pool_slot_address(pool, slot);
    for (uint32_t position = from; position < to; position++) {
        for (uint32_t plane = 0; plane < layout->planes; plane++)
            digest =
                XXH3_64bits_withSeed(block + plane * layout->plane_bytes + (uint64_t)position * layout->position_bytes,
                                     layout->position_bytes, digest);
        digest &= GMS_TAIL_CONTENT_MASK;
        digest = digest != 0 ? digest : 1;
    }
    return digest;
}

static uint64_t digest_noted(const struct gms_pool *pool, uint32_t slot, uint64_t generation, uint32_t token_count)
{
    uint32_t before = 0;
    uint64_t content = 0;
    if (!contents_count(pool))
        return 0;
    if (!gms_directory_last_tail(&pool->directory, slot, generation, &before, &content) || content == 0 ||
        before > token_count)
        before = 0, content = 0;
    return digest_positions(pool, slot, content, before, token_count);
}

void gms_tails_verify(struct gms_session *session)
{
    for (uint32_t i = 0; i < GMS_MAX_POOLS && session->kv_verify_full; i++) {
        struct gms_pool *pool = session->pools[i];
        struct gms_directory *directory = session->directories[i];
        for (uint32_t slot = 0; directory != NULL && slot < directory->slot_count; slot++) {
            const gms_slot_word word = gms_directory_word(directory, slot);
            struct gms_tail_record record;
            uint32_t places = 0, good = 0;
            if (gms_slot_word_state(word) == GMS_SLOT_QUARANTINED)
                places = gms_directory_read_tail(directory, slot, gms_slot_word_generation(word),
                                                 session->promotion.source, &record);
            for (uint32_t at = 0; at < GMS_TAIL_ENTRIES && places != 0; at++) {
                const uint32_t count = gms_tail_count(&record.places[at]);
                if ((places >> at & 1) != 0 && contents_count(pool) && fits(pool, count) &&
                    gms_tail_content(&record.places[at]) == digest_positions(pool, slot, 0, 0, count))
                    good |= 1u << at;
            }
            if (good != places)
                gms_directory_keep_tail(directory, slot, &record, good);
        }
    }
}

/* ------------------------------------------------------------------------------------------- noting, listing -- */

gms_status gms_tail_note(gms_pool *pool, uint32_t slot, uint64_t generation,
                         const uint8_t parent_hash[GMS_BLOCK_HASH_BYTES], const struct gms_tail_entry *progress,
                         gms_token token)
{
    const gms_status status = gate(pool->session);
    if (status != GMS_OK)
        return status;
    if (pool->description.kind != GMS_POOL_KV || slot >= pool->description.slot_count ||
        !fits(pool, progress->token_count))
        return GMS_E_INVALID;
    if (!gms_step_is_done(pool->session, token))
        return GMS_E_NOT_DONE;
    const struct gms_tail_progress noted = {.parent_hash = parent_hash,
                                            .hash = progress->hash,
                                            .token_count = progress->token_count,
                                            .content = digest_noted(pool, slot, generation, progress->token_count)};
    return gms_directory_note_tail(&pool->directory, slot, generation, &noted);
}

/* The longest first. */
static void list_entries(const struct gms_tail_record *record, uint32_t places, struct gms_tail *tail)
{
    tail->entry_count = 0;
    for (uint32_t i = 0; i < GMS_TAIL_ENTRIES; i++) {
        if ((places >> i & 1) == 0)
            continue;
        struct gms_tail_entry entry = {.token_count = gms_tail_count(&record->places[i])};
        memcpy(entry.hash, record->places[i].hash, sizeof entry.hash);
        uint32_t at = tail->entry_count++;
        for (; at > 0 && tail->entries[at - 1].token_count < entry.token_count; at--)
            tail->entries[at] = tail->entries[at - 1];
        tail->entries[at] = entry;
    }
}

gms_status gms_tail_next(gms_pool *pool, uint32_t *cursor, struct gms_tail *ret_tail)
{
    const struct gms_session *session = pool->session;
    const gms_status status = gate(session);
    if (status != GMS_OK)
        return status;
    if (pool->description.kind != GMS_POOL_KV)
        return GMS_E_INVALID;
    while (session->promotion.source != 0 && *cursor < pool->description.slot_count) {
        const uint32_t slot = (*cursor)++;
        const gms_slot_word word = gms_directory_word(&pool->directory, slot);
        struct gms_tail_record record;
        if (gms_slot_word_state(word) != GMS_SLOT_QUARANTINED)
            continue;
        const uint64_t generation = gms_slot_word_generation(word);
        const uint32_t places =
            gms_directory_read_tail(&pool->directory, slot, generation, session->promotion.source, &record);
        if (places == 0)
            continue;
        *ret_tail = (struct gms_tail){.pool = pool->index, .slot = slot, .generation = generation};
        memcpy(ret_tail->parent_hash, record.parent_hash, sizeof ret_tail->parent_hash);
        list_entries(&record, places, ret_tail);
        return GMS_OK;
    }
    return GMS_E_NOT_FOUND;
}

/* ------------------------------------------------------------------------------------------------- salvage ---- */

/* In quarantine still, or idle since: not leased again, so nothing but what the dead left is there. */
static bool untouched(const struct gms_pool *pool, const struct gms_tail *tail)
{
    const gms_slot_word word = gms_directory_word(&pool->directory, tail->slot);
    return word == gms_slot_word_make(GMS_SLOT_QUARANTINED, tail->generation) ||
           word == gms_slot_word_make(GMS_SLOT_IDLE, tail->generation);
}

static bool is_there(const struct gms_pool *pool, const struct gms_tail *tail, const struct gms_tail_entry *entry)
{
    struct gms_tail_record record;
    const uint32_t places = gms_directory_read_tail(&pool->directory, tail->slot, tail->generation,
                                                    pool->session->promotion.source, &record);
    for (uint32_t i = 0; i < GMS_TAIL_ENTRIES; i++)
        if ((places >> i & 1) != 0 && gms_tail_count(&record.places[i]) == entry->token_count &&
            memcmp(record.places[i].hash, entry->hash, sizeof entry->hash) == 0 &&
            memcmp(record.parent_hash, tail->parent_hash, sizeof record.parent_hash) == 0)
            return true;
    return false;
}

static gms_status check(const struct gms_pool *pool, const struct gms_tail *tail, uint32_t entry, uint32_t slot,
                        uint64_t generation, gms_tail_copier copier, struct gms_error *ret_error)
{
    const char *name = pool->description.name;
    const gms_status status = gate(pool->session);
    if (status == GMS_E_CONDEMNED)
        return gms_session_fail_condemned(pool->session, ret_error);
    if (status != GMS_OK)
        return gms_fail(ret_error, status, "kv pool %s: nothing may be salvaged before gms_adopt has returned", name);
    if (pool->description.kind != GMS_POOL_KV || tail->pool != pool->index ||
        tail->slot >= pool->description.slot_count || slot >= pool->description.slot_count ||
        entry >= tail->entry_count || tail->entry_count > GMS_TAIL_ENTRIES)
        return gms_fail(ret_error, GMS_E_INVALID,
                        "pool %s: entry %" PRIu32 " of %" PRIu32 " of a tail of pool %" PRIu32 " in slot %" PRIu32
                        ", into slot %" PRIu32 ": out of range (%" PRIu32 " slots)",
                        name, entry, tail->entry_count, tail->pool, tail->slot, slot, pool->description.slot_count);
    if (copier == NULL && !pool->session->vmm->cpu_addresses)
        return gms_fail(ret_error, GMS_E_INVALID, "kv pool %s is device memory: give a copier", name);
    if (gms_directory_word(&pool->directory, slot) != gms_slot_word_make(GMS_SLOT_LEASED, generation))
        return gms_fail(ret_error, GMS_E_REFUSED,
                        "kv pool %s: slot %" PRIu32 " is not leased at generation %" PRIu64 ": acquire one first", name,
                        slot, generation);
    if (!untouched(pool, tail))
        return gms_fail(ret_error, GMS_E_STALE,
                        "kv pool %s: slot %" PRIu32 " is not what generation %" PRIu64 " left any more", name,
                        tail->slot, tail->generation);
    if (!is_there(pool, tail, &tail->entries[entry]) || !fits(pool, tail->entries[entry].token_count))
        return gms_fail(ret_error, GMS_E_NOT_FOUND,
                        "kv pool %s: incarnation %" PRIu64 " left no %" PRIu32 " positions of that block in slot "
                        "%" PRIu32 " on which all ranks agree",
                        name, pool->session->promotion.source, tail->entries[entry].token_count, tail->slot);
    return GMS_OK;
}

static int copy_by_cpu(void *context, void *to, const void *from, uint64_t pitch_bytes, uint64_t width_bytes,
                       uint64_t rows)
{
    (void)context;
    for (uint64_t row = 0; row < rows; row++)
        memcpy((char *)to + row * pitch_bytes, (const char *)from + row * pitch_bytes, width_bytes);
    return 0;
}

gms_status gms_tail_salvage(gms_pool *pool, const struct gms_tail *tail, uint32_t entry, uint32_t slot,
                            uint64_t generation, gms_tail_copier copier, void *context, struct gms_error *ret_error)
{
    gms_status status = check(pool, tail, entry, slot, generation, copier, ret_error);
    if (status != GMS_OK)
        return status;
    const struct gms_tail_layout *layout = &pool->tail_layout;
    const struct gms_tail_entry *wanted = &tail->entries[entry];
    const bool whole = layout->planes == 0;
    const uint64_t block_bytes = pool->description.block_bytes;
    const gms_tail_copier copy = copier != NULL ? copier : copy_by_cpu;
    const int failed =
        copy(context, gms_pool_slot_address(pool, slot), gms_pool_slot_address(pool, tail->slot),
             whole ? block_bytes : layout->plane_bytes,
             whole ? block_bytes : (uint64_t)wanted->token_count * layout->position_bytes, whole ? 1 : layout->planes);
    if (failed != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "kv pool %s: the copier failed with %d", pool->description.name,
                        failed);
    atomic_thread_fence(
        memory_order_acquire); /* what was copied was read before the word is; gms_slot_acquire has its pair */
    if (!untouched(pool, tail))
        return gms_fail(ret_error, GMS_E_STALE,
                        "kv pool %s: slot %" PRIu32 " was leased again while it was being copied",
                        pool->description.name, tail->slot);
    if (copier == NULL)
        status = gms_tail_note(pool, slot, generation, tail->parent_hash, wanted, 0);
    if (status != GMS_OK)
        return gms_fail(ret_error, status, "kv pool %s: slot %" PRIu32 ": its progress cannot be noted",
                        pool->description.name, slot);
    return GMS_OK;
}
