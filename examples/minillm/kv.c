/* SPDX-License-Identifier: Apache-2.0 */
#include "kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kv_store_init(struct kv_store *store, const struct kv_backend *backend, void *context, void *base,
                  const struct kv_geometry *geometry, uint32_t slot_count)
{
    *store = (struct kv_store){
        .backend = backend, .context = context, .base = base, .geometry = *geometry, .slot_count = slot_count};
    store->generation = calloc(slot_count, sizeof *store->generation);
    store->lease = calloc(slot_count, sizeof *store->lease);
    if (store->generation != NULL && store->lease != NULL)
        return 0;
    free(store->generation);
    free(store->lease);
    store->generation = NULL;
    store->lease = NULL;
    return -1;
}

void kv_store_close(struct kv_store *store)
{
    if (store->backend == NULL)
        return;
    store->backend->close(store);
    free(store->generation);
    free(store->lease);
    memset(store, 0, sizeof *store);
}

void kv_copy_positions(const struct kv_store *store, uint32_t to, uint32_t from, uint32_t token_count)
{
    const struct kv_geometry *g = &store->geometry;
    for (uint32_t layer = 0; layer < g->layers; layer++)
        for (uint32_t plane = 0; plane < 2; plane++)
            memcpy(kv_plane(store->base, g, to, layer) + plane * kv_plane_floats(g),
                   kv_plane(store->base, g, from, layer) + plane * kv_plane_floats(g),
                   token_count * kv_position_floats(g) * sizeof(float));
}

/* ---------------------------------------------------------------------------------------- private backend ----- */

enum private_state { PRIVATE_IDLE = 0, PRIVATE_LEASED, PRIVATE_SEALED };

struct private_slot {
    enum private_state state;
    uint64_t generation;
};

struct private_kv {
    uint64_t next_token, completed;
    struct private_slot *slots;
};

static enum kv_status fail(struct kv_store *store, const char *what, uint32_t slot, uint64_t generation)
{
    snprintf(store->text, sizeof store->text, "%s of slot %u at generation %llu is not allowed in its state", what,
             slot, (unsigned long long)generation);
    return KV_FAILED;
}

static enum kv_status private_acquire(struct kv_store *store, uint32_t slot, uint64_t *ret_generation)
{
    struct private_kv *kv = store->context;
    if (slot >= store->slot_count || kv->slots[slot].state != PRIVATE_IDLE)
        return fail(store, "acquire", slot, 0);
    kv->slots[slot].state = PRIVATE_LEASED;
    *ret_generation = ++kv->slots[slot].generation;
    return KV_OK;
}

static enum kv_status private_seal(struct kv_store *store, uint32_t slot, uint64_t generation, uint32_t token_count,
                                   const uint8_t hash[KV_HASH_BYTES], const uint8_t parent[KV_HASH_BYTES],
                                   uint64_t token)
{
    struct private_kv *kv = store->context;
    (void)token_count, (void)hash, (void)parent;
    if (slot >= store->slot_count || kv->slots[slot].state != PRIVATE_LEASED ||
        kv->slots[slot].generation != generation || token > kv->completed)
        return fail(store, "seal", slot, generation);
    kv->slots[slot].state = PRIVATE_SEALED;
    return KV_OK;
}

static enum kv_status private_release(struct kv_store *store, uint32_t slot, uint64_t generation, uint64_t token)
{
    struct private_kv *kv = store->context;
    if (slot >= store->slot_count || kv->slots[slot].state == PRIVATE_IDLE ||
        kv->slots[slot].generation != generation || token > kv->completed)
        return fail(store, "release", slot, generation);
    kv->slots[slot].state = PRIVATE_IDLE;
    return KV_OK;
}

static enum kv_status private_note(struct kv_store *store, const struct kv_progress *progress, uint64_t token)
{
    const struct private_kv *kv = store->context;
    if (progress->slot >= store->slot_count || kv->slots[progress->slot].state != PRIVATE_LEASED ||
        token > kv->completed)
        return fail(store, "note", progress->slot, store->generation[progress->slot]);
    return KV_OK;
}

static enum kv_status private_salvage(struct kv_store *store, uint32_t source, const struct kv_progress *progress)
{
    const struct private_kv *kv = store->context;
    if (source >= store->slot_count || progress->slot >= store->slot_count || kv->slots[source].state != PRIVATE_IDLE ||
        kv->slots[progress->slot].state != PRIVATE_LEASED)
        return fail(store, "salvage", source, 0);
    kv_copy_positions(store, progress->slot, source, progress->token_count);
    return KV_OK;
}

static uint64_t private_step_begin(struct kv_store *store)
{
    struct private_kv *kv = store->context;
    return ++kv->next_token;
}

static void private_step_complete(struct kv_store *store, uint64_t token)
{
    struct private_kv *kv = store->context;
    kv->completed = token;
}

static bool private_returned(struct kv_store *store, uint32_t *ret_slot)
{
    (void)store, (void)ret_slot;
    return false;
}

static void private_progress(struct kv_store *store)
{
    (void)store;
}

static void private_close(struct kv_store *store)
{
    struct private_kv *kv = store->context;
    free(kv->slots);
    free(kv);
    free(store->base);
}

static const struct kv_backend private_backend = {
    .name = "private",
    .acquire = private_acquire,
    .seal = private_seal,
    .release = private_release,
    .note = private_note,
    .salvage = private_salvage,
    .step_begin = private_step_begin,
    .step_complete = private_step_complete,
    .returned = private_returned,
    .progress = private_progress,
    .close = private_close,
};

int kv_private_open(struct kv_store *store, const struct kv_geometry *geometry, uint32_t slot_count)
{
    struct private_kv *kv = calloc(1, sizeof *kv);
    void *base = calloc(slot_count, kv_block_bytes(geometry));
    if (kv == NULL || base == NULL)
        goto failed;
    kv->slots = calloc(slot_count, sizeof *kv->slots);
    if (kv->slots == NULL)
        goto failed;
    if (kv_store_init(store, &private_backend, kv, base, geometry, slot_count) == 0)
        return 0;
failed:
    free(base);
    if (kv != NULL)
        free(kv->slots);
    free(kv);
    return -1;
}
