/* SPDX-License-Identifier: Apache-2.0
 *
 * Paged KV memory in slots, and who answers for the slots.
 *
 * One slot holds one block: 16 tokens (block_tokens) of every layer's K and V for this rank's KV heads.
 *
 *   slot = [layer][K, V][position in block][local kv head][head_dim] floats
 *
 * What the engine does with slots (which one, when, how long) is decided by prefix.h and scheduler.h. A `kv_backend`
 * only executes it: over libgms (kv_gms.h) or over private memory (kv_private_open). Both refuse the same mistakes.
 */
#ifndef MINILLM_KV_H
#define MINILLM_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KV_HASH_BYTES = 16 };

struct kv_geometry {
    uint32_t layers;
    uint32_t block_tokens;
    uint32_t kv_heads; /* of this rank */
    uint32_t head_dim;
};

/* Floats from one position to the next; from K to V of a layer; bytes of a slot. */
static inline size_t kv_position_floats(const struct kv_geometry *g)
{
    return (size_t)g->kv_heads * g->head_dim;
}
static inline size_t kv_plane_floats(const struct kv_geometry *g)
{
    return kv_position_floats(g) * g->block_tokens;
}
static inline size_t kv_block_bytes(const struct kv_geometry *g)
{
    return kv_plane_floats(g) * 2 * g->layers * sizeof(float);
}

/* Start of the K plane of one layer in one slot; the V plane follows it at once. */
static inline float *kv_plane(void *base, const struct kv_geometry *g, uint32_t slot, uint32_t layer)
{
    return (float *)base + ((size_t)slot * g->layers + layer) * 2 * kv_plane_floats(g);
}

struct kv_store;

/* What this rank may do with a slot; step.c refuses to store into one that is not leased. */
enum kv_lease { KV_NOT_LEASED = 0, KV_LEASED, KV_WRITTEN, KV_SEALED };

/* Status of a slot operation. LOST: this engine no longer owns its memory and must end at once. */
enum kv_status { KV_OK = 0, KV_LOST, KV_FAILED };

/* How far the block in a slot has come. */
struct kv_progress {
    uint32_t slot, token_count;
    const uint8_t *hash, *parent; /* KV_HASH_BYTES each, borrowed; the hash is of these tokens, as a full block's is */
};

struct kv_backend {
    const char *name;
    enum kv_status (*acquire)(struct kv_store *store, uint32_t slot, uint64_t *ret_generation);
    enum kv_status (*seal)(struct kv_store *store, uint32_t slot, uint64_t generation, uint32_t token_count,
                           const uint8_t hash[KV_HASH_BYTES], const uint8_t parent[KV_HASH_BYTES], uint64_t token);
    enum kv_status (*release)(struct kv_store *store, uint32_t slot, uint64_t generation, uint64_t token);
    /* The step that wrote it is complete. What a successor may go on from; nothing depends on it here. */
    enum kv_status (*note)(struct kv_store *store, const struct kv_progress *progress, uint64_t token);
    /* Copies what a predecessor has left of that block in slot `source` to the leased slot of `progress`. */
    enum kv_status (*salvage)(struct kv_store *store, uint32_t source, const struct kv_progress *progress);
    uint64_t (*step_begin)(struct kv_store *store);
    void (*step_complete)(struct kv_store *store, uint64_t token);
    /* A slot that could not be used until now and can be from here on; false: none. */
    bool (*returned)(struct kv_store *store, uint32_t *ret_slot);
    void (*progress)(struct kv_store *store);
    void (*close)(struct kv_store *store); /* frees what the backend owns, `context` included */
};

struct kv_store {
    const struct kv_backend *backend;
    void *context; /* the backend's */
    void *base;    /* slot_count * kv_block_bytes, stable for the life of the store */
    struct kv_geometry geometry;
    uint32_t slot_count;
    uint64_t last_token;  /* of the last completed step; 0: none yet */
    uint64_t *generation; /* owned; per slot: the current lease or seal, as this rank was told */
    uint8_t *lease;       /* owned; per slot: enum kv_lease */
    char text[256];       /* why the last operation failed */
};

/* Fills the common part. Returns 0, or -1 when memory is short. kv_store_close undoes it and calls the backend's close.
 */
int kv_store_init(struct kv_store *store, const struct kv_backend *backend, void *context, void *base,
                  const struct kv_geometry *geometry, uint32_t slot_count);
void kv_store_close(struct kv_store *store);

/* The first positions of one slot to another. */
void kv_copy_positions(const struct kv_store *store, uint32_t to, uint32_t from, uint32_t token_count);

/* Private memory instead of a pool: for tests and as the undisturbed control. 0, or -1 when memory is short. */
int kv_private_open(struct kv_store *store, const struct kv_geometry *geometry, uint32_t slot_count);

#endif
