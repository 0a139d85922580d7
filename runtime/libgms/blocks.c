/* SPDX-License-Identifier: Apache-2.0
 *
 * Which sealed block has this hash? A private table, linear probing, at most half full: one entry per home slot, and
 * the slot remembers under which tag it went in, so it can be taken out whatever its record says by then.
 */
#include "libgms/session.h"

#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "directory/layout.h"

static uint64_t tag_of(const uint8_t hash[GMS_BLOCK_HASH_BYTES])
{
    uint64_t tag;
    memcpy(&tag, hash, sizeof tag);
    return tag != 0 ? tag : 1;
}

/* Engines' hashes are good, but nothing says that their first bytes are. */
static uint64_t home_of(const struct gms_block_index *blocks, uint64_t tag)
{
    return (tag * UINT64_C(0x9e3779b97f4a7c15)) >> 17 & blocks->mask;
}

/* Zeroed memory stays zeroed; it only becomes memory. */
static void touch(void *memory, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 4096)
        ((volatile char *)memory)[at] = 0;
}

/* Made when parking and touched right away: after a fault nobody should wait for the kernel to find zeroed pages, and
 * few large ones also keep lookups at random places cheap. */
gms_status gms_blocks_create(struct gms_session *session, struct gms_error *ret_error)
{
    if (session->blocks.entries != NULL)
        return GMS_OK;
    uint64_t slots = 0, capacity = 256;
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++)
        if (session->directories[i] != NULL)
            slots += session->directories[i]->slot_count;
    while (capacity < 2 * slots)
        capacity *= 2;
    const size_t bytes = capacity * sizeof *session->blocks.entries;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for an index of %" PRIu64 " blocks (%zu bytes)", slots,
                        bytes);
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    touch(memory, bytes);
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++)
        if (session->directories[i] != NULL)
            touch(session->pools[i]->tags, session->directories[i]->slot_count * sizeof *session->pools[i]->tags);
    session->blocks.entries = memory;
    session->blocks.mask = capacity - 1;
    return GMS_OK;
}

void gms_blocks_free(struct gms_session *session)
{
    if (session->blocks.entries != NULL)
        munmap(session->blocks.entries, (session->blocks.mask + 1) * sizeof *session->blocks.entries);
    session->blocks.entries = NULL;
}

static void insert_tag(struct gms_session *session, uint32_t pool, uint32_t slot, uint64_t tag)
{
    struct gms_block_index *blocks = &session->blocks;
    uint64_t place = home_of(blocks, tag);
    while (blocks->entries[place].tag != 0)
        place = (place + 1) & blocks->mask;
    blocks->entries[place] = (struct gms_block_index_entry){.tag = tag, .pool = pool, .slot = slot};
    session->pools[pool]->tags[slot] = tag;
}

void gms_blocks_insert(struct gms_session *session, uint32_t pool, uint32_t slot,
                       const uint8_t hash[GMS_BLOCK_HASH_BYTES])
{
    if (session->pools[pool]->tags[slot] != 0)
        gms_blocks_remove(session, pool, slot);
    insert_tag(session, pool, slot, tag_of(hash));
}

/* Closes the hole by moving up whatever may not stand behind it. */
static void remove_place(struct gms_block_index *blocks, uint64_t hole)
{
    for (uint64_t place = (hole + 1) & blocks->mask; blocks->entries[place].tag != 0;
         place = (place + 1) & blocks->mask) {
        const uint64_t home = home_of(blocks, blocks->entries[place].tag);
        if (((place - home) & blocks->mask) >= ((place - hole) & blocks->mask)) {
            blocks->entries[hole] = blocks->entries[place];
            hole = place;
        }
    }
    blocks->entries[hole].tag = 0;
}

void gms_blocks_remove(struct gms_session *session, uint32_t pool, uint32_t slot)
{
    struct gms_block_index *blocks = &session->blocks;
    const uint64_t tag = session->pools[pool]->tags[slot];
    if (tag == 0)
        return;
    session->pools[pool]->tags[slot] = 0;
    for (uint64_t place = home_of(blocks, tag); blocks->entries[place].tag != 0; place = (place + 1) & blocks->mask) {
        const struct gms_block_index_entry *entry = &blocks->entries[place];
        if (entry->tag == tag && entry->pool == pool && entry->slot == slot) {
            remove_place(blocks, place);
            return;
        }
    }
}

/* The first cache line of a record: all that the index wants, and half of what there is to read after a fault. */
struct record_start {
    uint8_t hash[GMS_BLOCK_HASH_BYTES];
    uint8_t between[offsetof(struct gms_record, parts) - GMS_BLOCK_HASH_BYTES];
    struct gms_record_part home;
};
_Static_assert(sizeof(struct record_start) == 64, "one cache line");

static void read_start(const struct gms_directory *directory, uint32_t slot, struct record_start *ret_start)
{
    _Atomic uint64_t *words = gms_directory_record_words(directory, slot);
    uint64_t copy[sizeof *ret_start / sizeof(uint64_t)] = {0};
    for (size_t i = 0; i < sizeof copy / sizeof copy[0]; i++)
        copy[i] = atomic_load_explicit(&words[i], memory_order_relaxed);
    memcpy(ret_start, copy, sizeof copy);
}

/* The tag of the block whose home is the slot; 0: it is no home. The record is validated when it is looked up. */
static uint64_t tag_of_home(const struct gms_directory *directory, uint32_t pool, uint32_t slot)
{
    const gms_slot_word word = gms_directory_word(directory, slot);
    if (gms_slot_word_state(word) != GMS_SLOT_SEALED)
        return 0;
    struct record_start start;
    read_start(directory, slot, &start);
    const bool home =
        start.home.pool == pool && start.home.slot == slot && start.home.generation == gms_slot_word_generation(word);
    return home ? tag_of(start.hash) : 0;
}

/* After adoption. Each place in the table is asked for a few slots before it is used: they are all over memory. */
void gms_blocks_fill(struct gms_session *session)
{
    enum { AHEAD = 16 };
    const struct gms_block_index *blocks = &session->blocks;
    gms_spin_lock(&session->slots_lock);
    for (uint32_t pool = 0; pool < GMS_MAX_POOLS; pool++) {
        const struct gms_directory *directory = session->directories[pool];
        uint64_t tags[AHEAD] = {0};
        const uint64_t count = directory != NULL ? directory->slot_count : 0;
        for (uint64_t i = 0; count > 0 && i < count + AHEAD; i++) {
            const uint64_t ready = tags[i % AHEAD];
            if (ready != 0)
                insert_tag(session, pool, (uint32_t)(i - AHEAD), ready);
            tags[i % AHEAD] = i < count ? tag_of_home(directory, pool, (uint32_t)i) : 0;
            if (tags[i % AHEAD] != 0)
                __builtin_prefetch(&blocks->entries[home_of(blocks, tags[i % AHEAD])], 1);
        }
    }
    gms_spin_unlock(&session->slots_lock);
}

static void block_of(const struct gms_record *record, struct gms_block *ret_block)
{
    *ret_block = (struct gms_block){.token_count = record->token_count, .part_count = record->part_count};
    memcpy(ret_block->hash, record->hash, sizeof ret_block->hash);
    memcpy(ret_block->parent_hash, record->parent_hash, sizeof ret_block->parent_hash);
    for (uint32_t i = 0; i < record->part_count; i++)
        ret_block->parts[i] = (struct gms_part){
            .pool = record->parts[i].pool, .slot = record->parts[i].slot, .generation = record->parts[i].generation};
}

gms_status gms_lookup(gms_session *session, const uint8_t hash[GMS_BLOCK_HASH_BYTES], struct gms_block *ret_block)
{
    gms_status status = (gms_status)atomic_load_explicit(&session->gate, memory_order_acquire);
    if (status != GMS_OK)
        return status;
    const struct gms_block_index *blocks = &session->blocks;
    const uint64_t tag = tag_of(hash);
    status = GMS_E_NOT_FOUND;
    gms_spin_lock(&session->slots_lock);
    for (uint64_t place = home_of(blocks, tag); blocks->entries[place].tag != 0; place = (place + 1) & blocks->mask) {
        const struct gms_block_index_entry *entry = &blocks->entries[place];
        struct gms_record record;
        if (entry->tag == tag && gms_directory_read(session->directories, entry->pool, entry->slot, &record) &&
            memcmp(record.hash, hash, sizeof record.hash) == 0) {
            block_of(&record, ret_block);
            status = GMS_OK;
            break;
        }
    }
    gms_spin_unlock(&session->slots_lock);
    return status;
}

gms_status gms_sealed_next(gms_pool *pool, uint32_t *cursor, struct gms_block *ret_block)
{
    const gms_status status = (gms_status)atomic_load_explicit(&pool->session->gate, memory_order_acquire);
    if (status != GMS_OK)
        return status;
    if (pool->description.kind != GMS_POOL_KV)
        return GMS_E_INVALID;
    while (*cursor < pool->description.slot_count) {
        struct gms_record record;
        const uint32_t slot = (*cursor)++;
        if (gms_directory_read(pool->session->directories, pool->index, slot, &record)) {
            block_of(&record, ret_block);
            return GMS_OK;
        }
    }
    return GMS_E_NOT_FOUND;
}

gms_status gms_sealed_list(gms_pool *pool, uint32_t *cursor, struct gms_block *ret_blocks, uint32_t capacity,
                           uint32_t *ret_count)
{
    gms_status status = GMS_OK;
    uint32_t count = 0;
    *ret_count = 0;
    if (capacity == 0)
        return GMS_E_INVALID;
    while (count < capacity && (status = gms_sealed_next(pool, cursor, &ret_blocks[count])) == GMS_OK)
        count++;
    if (status != GMS_OK && (count == 0 || status != GMS_E_NOT_FOUND))
        return status;
    *ret_count = count;
    return GMS_OK;
}
