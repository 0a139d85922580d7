/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_gms.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kv_gms {
    gms_session *session; /* borrowed */
    gms_pool *pool;       /* borrowed */
};

static enum kv_status outcome(struct kv_store *store, gms_status status, const char *what, uint32_t slot)
{
    if (status == GMS_OK)
        return KV_OK;
    snprintf(store->text, sizeof store->text, "%s of slot %" PRIu32 ": libgms answered %d", what, slot, (int)status);
    /* A stale generation means that somebody else was given this slot. */
    return gms_status_is_fatal_to_engine(status) || status == GMS_E_STALE ? KV_LOST : KV_FAILED;
}

static enum kv_status acquire(struct kv_store *store, uint32_t slot, uint64_t *ret_generation)
{
    struct kv_gms *kv = store->context;
    return outcome(store, gms_slot_acquire(kv->pool, slot, ret_generation), "acquire", slot);
}

static enum kv_status seal(struct kv_store *store, uint32_t slot, uint64_t generation, uint32_t token_count,
                           const uint8_t hash[KV_HASH_BYTES], const uint8_t parent[KV_HASH_BYTES], uint64_t token)
{
    struct kv_gms *kv = store->context;
    struct gms_block block = {
        .token_count = token_count,
        .part_count = 1,
        .parts[0] = {.pool = gms_pool_index(kv->pool), .slot = slot, .generation = generation},
    };
    memcpy(block.hash, hash, sizeof block.hash);
    memcpy(block.parent_hash, parent, sizeof block.parent_hash);
    return outcome(store, gms_block_seal(kv->session, &block, token), "seal", slot);
}

static enum kv_status release(struct kv_store *store, uint32_t slot, uint64_t generation, uint64_t token)
{
    struct kv_gms *kv = store->context;
    return outcome(store, gms_slot_release(kv->pool, slot, generation, token), "release", slot);
}

static uint64_t step_begin(struct kv_store *store)
{
    return gms_step_begin(((struct kv_gms *)store->context)->session);
}

static void step_complete(struct kv_store *store, uint64_t token)
{
    gms_step_complete(((struct kv_gms *)store->context)->session, token);
}

static bool returned(struct kv_store *store, uint32_t *ret_slot)
{
    return gms_returned_next(((struct kv_gms *)store->context)->pool, ret_slot) == GMS_OK;
}

static void progress(struct kv_store *store)
{
    gms_progress(((struct kv_gms *)store->context)->session);
}

static void close_store(struct kv_store *store)
{
    free(store->context);
}

static const struct kv_backend backend = {
    .name = "gms",
    .acquire = acquire,
    .seal = seal,
    .release = release,
    .step_begin = step_begin,
    .step_complete = step_complete,
    .returned = returned,
    .progress = progress,
    .close = close_store,
};

int kv_gms_open(struct kv_store *store, gms_session *session, gms_pool *pool, const struct kv_geometry *geometry)
{
    struct kv_gms *kv = malloc(sizeof *kv);
    if (kv == NULL)
        return -1;
    *kv = (struct kv_gms){session, pool};
    if (kv_store_init(store, &backend, kv, gms_pool_address(pool), geometry, gms_pool_slot_count(pool)) == 0)
        return 0;
    free(kv);
    return -1;
}
