/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's slots as rank 0 sees them: free list, prefix cache, reference counts, eviction order.
 *
 *   FREE --allocate--> PRIVATE --publish--> CACHED(references) --last unreference--> CACHED(0, in the LRU list)
 *    ^                    | free                                                          | allocate evicts the oldest
 *    +--------------------+---------------------------------------------------------------+
 *   EXCLUDED: never handed out (somebody else might still write it).
 *
 * A block's hash chains: hash(parent hash, its tokens, seed). All of this is the engine's own and the same with and
 * without libgms. Not thread-safe; one owner.
 */
#ifndef MINILLM_PREFIX_H
#define MINILLM_PREFIX_H

#include "kv.h"

#include <stdbool.h>
#include <stdint.h>

enum { PREFIX_BLOCK_TOKENS = 256 }; /* most tokens of one block */
#define PREFIX_NONE UINT32_MAX

struct block_hash {
    uint8_t bytes[KV_HASH_BYTES]; /* all zero: no block (the parent of a first one) */
};

/* The chained hash of one full block. */
struct block_hash prefix_hash(const struct block_hash *parent, const uint32_t *tokens, uint32_t token_count,
                              uint64_t seed);

/* What a dead engine has left of a block that it had not finished, in a slot that is out of use. */
enum { PREFIX_TAIL_ENTRIES = 3 };
struct prefix_tail {
    uint32_t slot, entry_count; /* the longest first */
    struct block_hash parent;
    struct {
        uint32_t token_count;
        struct block_hash hash; /* of these tokens, as a full block's is */
    } entries[PREFIX_TAIL_ENTRIES];
};

struct prefix_tail_hit {
    uint32_t slot, token_count;
    struct block_hash hash;
};

struct prefix; /* opaque */

/* All slots free, lowest first. NULL when memory is short. */
struct prefix *prefix_open(uint32_t slot_count);
void prefix_close(struct prefix *prefix);

/* Before the first allocation: takes a free slot out of use, or makes it a cached block without references. A second
 * block with the same hash, or a slot that is not free, is refused (false). Blocks adopted first are evicted first. */
bool prefix_exclude(struct prefix *prefix, uint32_t slot);
/* The slot that was taken out of use is free again, behind all others; false: it was not excluded. At any time. */
bool prefix_include(struct prefix *prefix, uint32_t slot);
bool prefix_adopt(struct prefix *prefix, uint32_t slot, const struct block_hash *hash);

/* Remembers it until its slot is handed out. False: the slot is not out of use, or memory is short. */
bool prefix_keep_tail(struct prefix *prefix, const struct prefix_tail *tail);
/* The longest start of a block that is `tokens` (at most token_count) behind `parent`; false: none. */
bool prefix_find_tail(const struct prefix *prefix, const struct block_hash *parent, const uint32_t *tokens,
                      uint32_t token_count, uint64_t seed, struct prefix_tail_hit *ret_found);

/* The slot of a cached block, or PREFIX_NONE. */
uint32_t prefix_find(const struct prefix *prefix, const struct block_hash *hash);
uint32_t prefix_references(const struct prefix *prefix, uint32_t slot);
/* A cached block comes into or goes out of use. Without references it stays cached until it is evicted. */
void prefix_reference(struct prefix *prefix, uint32_t slot);
void prefix_unreference(struct prefix *prefix, uint32_t slot);

/* Hands out a slot as PRIVATE: a free one, else the least recently used cached block (*ret_evicted: true, the caller
 * releases it before it leases it anew). PREFIX_NONE: every slot is in use. */
uint32_t prefix_allocate(struct prefix *prefix, bool *ret_evicted);
void prefix_free(struct prefix *prefix, uint32_t slot);
/* PRIVATE -> CACHED with one reference. False (nothing changes) if the hash is cached already. */
bool prefix_publish(struct prefix *prefix, uint32_t slot, const struct block_hash *hash);

struct prefix_counts {
    uint32_t free, cached, evictable, excluded; /* evictable: cached without references */
};
struct prefix_counts prefix_count(const struct prefix *prefix);

#endif
