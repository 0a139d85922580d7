/* SPDX-License-Identifier: Apache-2.0 */
#include "prefix.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum slot_use { USE_FREE = 0, USE_PRIVATE, USE_CACHED, USE_EXCLUDED };

struct slot {
    enum slot_use use;
    uint32_t references;
    uint32_t newer, older; /* in the LRU list of CACHED without references, or in the free list */
    struct block_hash hash;
};

struct prefix {
    uint32_t slot_count, table_mask;
    uint32_t oldest, newest;        /* LRU list */
    uint32_t free_first, free_last; /* free list, first in first out */
    struct prefix_counts counts;
    struct slot *slots;
    uint32_t *table;           /* open addressing, linear probing: slot + 1, 0 empty */
    struct prefix_tail *tails; /* owned; as many as sequences ran when an engine died */
    uint32_t tail_count, tail_capacity;
};

struct block_hash prefix_hash(const struct block_hash *parent, const uint32_t *tokens, uint32_t token_count,
                              uint64_t seed)
{
    uint8_t bytes[KV_HASH_BYTES + 4 * PREFIX_BLOCK_TOKENS];
    size_t used = sizeof parent->bytes;
    memcpy(bytes, parent->bytes, used);
    for (uint32_t i = 0; i < token_count && i < PREFIX_BLOCK_TOKENS; i++)
        for (uint32_t shift = 0; shift < 32; shift += 8)
            bytes[used++] = (uint8_t)(tokens[i] >> shift);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_withSeed(bytes, used, seed));
    struct block_hash hash;
    _Static_assert(sizeof canonical.digest == sizeof hash.bytes, "128 bits");
    memcpy(hash.bytes, canonical.digest, sizeof hash.bytes);
    return hash;
}

struct prefix *prefix_open(uint32_t slot_count)
{
    struct prefix *p = calloc(1, sizeof *p);
    if (p == NULL)
        return NULL;
    uint32_t table_size = 16;
    while (table_size < slot_count * 2)
        table_size *= 2;
    p->slot_count = slot_count;
    p->table_mask = table_size - 1;
    p->oldest = p->newest = p->free_first = p->free_last = PREFIX_NONE;
    p->slots = calloc(slot_count, sizeof *p->slots);
    p->table = calloc(table_size, sizeof *p->table);
    if (p->slots == NULL || p->table == NULL) {
        prefix_close(p);
        return NULL;
    }
    for (uint32_t i = 0; i < slot_count; i++) {
        p->slots[i].use = USE_PRIVATE;
        prefix_free(p, i);
    }
    return p;
}

void prefix_close(struct prefix *p)
{
    if (p == NULL)
        return;
    free(p->slots);
    free(p->table);
    free(p->tails);
    free(p);
}

/* --------------------------------------------------------------------------------------------------- lists ---- */

/* The free list uses the same links: `newer` leads to the slot that was freed later. */
static void free_append(struct prefix *p, uint32_t slot)
{
    struct slot *s = &p->slots[slot];
    s->newer = PREFIX_NONE;
    s->older = p->free_last;
    if (p->free_last == PREFIX_NONE)
        p->free_first = slot;
    else
        p->slots[p->free_last].newer = slot;
    p->free_last = slot;
    p->counts.free++;
}

static void free_remove(struct prefix *p, uint32_t slot)
{
    struct slot *s = &p->slots[slot];
    if (s->newer == PREFIX_NONE)
        p->free_last = s->older;
    else
        p->slots[s->newer].older = s->older;
    if (s->older == PREFIX_NONE)
        p->free_first = s->newer;
    else
        p->slots[s->older].newer = s->newer;
    p->counts.free--;
}

static void lru_append(struct prefix *p, uint32_t slot)
{
    struct slot *s = &p->slots[slot];
    s->newer = PREFIX_NONE;
    s->older = p->newest;
    if (p->newest == PREFIX_NONE)
        p->oldest = slot;
    else
        p->slots[p->newest].newer = slot;
    p->newest = slot;
    p->counts.evictable++;
}

static void lru_remove(struct prefix *p, uint32_t slot)
{
    struct slot *s = &p->slots[slot];
    if (s->newer == PREFIX_NONE)
        p->newest = s->older;
    else
        p->slots[s->newer].older = s->older;
    if (s->older == PREFIX_NONE)
        p->oldest = s->newer;
    else
        p->slots[s->older].newer = s->newer;
    p->counts.evictable--;
}

/* --------------------------------------------------------------------------------------------------- table ---- */

static uint32_t home(const struct prefix *p, const struct block_hash *hash)
{
    uint32_t word;
    memcpy(&word, hash->bytes, sizeof word);
    return word & p->table_mask;
}

/* The place of the hash in the table, or of the empty cell where it would go. */
static uint32_t probe(const struct prefix *p, const struct block_hash *hash)
{
    uint32_t i = home(p, hash);
    while (p->table[i] != 0 && memcmp(p->slots[p->table[i] - 1].hash.bytes, hash->bytes, KV_HASH_BYTES) != 0)
        i = (i + 1) & p->table_mask;
    return i;
}

static void table_remove(struct prefix *p, uint32_t slot)
{
    uint32_t hole = probe(p, &p->slots[slot].hash);
    uint32_t i = hole;
    for (;;) {
        i = (i + 1) & p->table_mask;
        if (p->table[i] == 0)
            break;
        uint32_t wants = home(p, &p->slots[p->table[i] - 1].hash);
        /* Move it back into the hole unless its home lies behind the hole. */
        if (((i - wants) & p->table_mask) >= ((i - hole) & p->table_mask)) {
            p->table[hole] = p->table[i];
            hole = i;
        }
    }
    p->table[hole] = 0;
}

/* --------------------------------------------------------------------------------------------------- slots ---- */

bool prefix_exclude(struct prefix *p, uint32_t slot)
{
    if (slot >= p->slot_count || p->slots[slot].use != USE_FREE)
        return false;
    free_remove(p, slot);
    p->slots[slot].use = USE_EXCLUDED;
    p->counts.excluded++;
    return true;
}

bool prefix_include(struct prefix *p, uint32_t slot)
{
    if (slot >= p->slot_count || p->slots[slot].use != USE_EXCLUDED)
        return false;
    p->counts.excluded--;
    p->slots[slot].use = USE_FREE;
    free_append(p, slot);
    return true;
}

static bool make_cached(struct prefix *p, uint32_t slot, const struct block_hash *hash)
{
    uint32_t place = probe(p, hash);
    if (p->table[place] != 0)
        return false;
    p->slots[slot].hash = *hash;
    p->slots[slot].use = USE_CACHED;
    p->table[place] = slot + 1;
    p->counts.cached++;
    return true;
}

bool prefix_adopt(struct prefix *p, uint32_t slot, const struct block_hash *hash)
{
    if (slot >= p->slot_count || p->slots[slot].use != USE_FREE)
        return false;
    if (p->table[probe(p, hash)] != 0)
        return false;
    free_remove(p, slot);
    make_cached(p, slot, hash);
    p->slots[slot].references = 0;
    lru_append(p, slot);
    return true;
}

/* --------------------------------------------------------------------------------------------------- tails ---- */

bool prefix_keep_tail(struct prefix *p, const struct prefix_tail *tail)
{
    if (tail->slot >= p->slot_count || p->slots[tail->slot].use != USE_EXCLUDED ||
        tail->entry_count > PREFIX_TAIL_ENTRIES)
        return false;
    if (p->tail_count == p->tail_capacity) {
        const uint32_t capacity = 2 * p->tail_capacity + 16;
        struct prefix_tail *grown = realloc(p->tails, capacity * sizeof *grown);
        if (grown == NULL)
            return false;
        p->tails = grown;
        p->tail_capacity = capacity;
    }
    p->tails[p->tail_count++] = *tail;
    return true;
}

/* Its slot is about to be written. */
static void drop_tail(struct prefix *p, uint32_t slot)
{
    for (uint32_t i = 0; i < p->tail_count; i++)
        if (p->tails[i].slot == slot)
            p->tails[i--] = p->tails[--p->tail_count];
}

bool prefix_find_tail(const struct prefix *p, const struct block_hash *parent, const uint32_t *tokens,
                      uint32_t token_count, uint64_t seed, struct prefix_tail_hit *ret_found)
{
    struct prefix_tail_hit best = {.token_count = 0};
    for (uint32_t i = 0; i < p->tail_count; i++) {
        const struct prefix_tail *tail = &p->tails[i];
        if (memcmp(&tail->parent, parent, sizeof *parent) != 0)
            continue;
        for (uint32_t entry = 0; entry < tail->entry_count; entry++) {
            const uint32_t count = tail->entries[entry].token_count;
            if (count > token_count || count <= best.token_count)
                continue;
            const struct block_hash hash = prefix_hash(parent, tokens, count, seed);
            if (memcmp(&hash, &tail->entries[entry].hash, sizeof hash) == 0)
                best = (struct prefix_tail_hit){tail->slot, count, hash};
        }
    }
    *ret_found = best;
    return best.token_count != 0;
}

/* --------------------------------------------------------------------------------------------------- slots ---- */

uint32_t prefix_find(const struct prefix *p, const struct block_hash *hash)
{
    uint32_t entry = p->table[probe(p, hash)];
    return entry == 0 ? PREFIX_NONE : entry - 1;
}

uint32_t prefix_references(const struct prefix *p, uint32_t slot)
{
    return p->slots[slot].references;
}

void prefix_reference(struct prefix *p, uint32_t slot)
{
    if (p->slots[slot].references++ == 0)
        lru_remove(p, slot);
}

void prefix_unreference(struct prefix *p, uint32_t slot)
{
    if (--p->slots[slot].references == 0)
        lru_append(p, slot);
}

uint32_t prefix_allocate(struct prefix *p, bool *ret_evicted)
{
    uint32_t slot = p->free_first;
    *ret_evicted = slot == PREFIX_NONE;
    if (slot != PREFIX_NONE) {
        free_remove(p, slot);
    } else {
        slot = p->oldest;
        if (slot == PREFIX_NONE)
            return PREFIX_NONE;
        lru_remove(p, slot);
        table_remove(p, slot);
        p->counts.cached--;
    }
    p->slots[slot].use = USE_PRIVATE;
    p->slots[slot].references = 0;
    drop_tail(p, slot);
    return slot;
}

void prefix_free(struct prefix *p, uint32_t slot)
{
    p->slots[slot].use = USE_FREE;
    free_append(p, slot);
}

bool prefix_publish(struct prefix *p, uint32_t slot, const struct block_hash *hash)
{
    if (!make_cached(p, slot, hash))
        return false;
    p->slots[slot].references = 1;
    return true;
}

struct prefix_counts prefix_count(const struct prefix *p)
{
    return p->counts;
}
