/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_gms.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kv_gms {
    gms_session *session;      /* borrowed */
    gms_pool *pool;            /* borrowed */
    struct gms_tail *left;     /* owned; by the predecessor */
    struct prefix_tail *tails; /* owned; the same for the scheduler */
    uint32_t tail_count, tail_capacity;
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

/* Whatever libgms does not keep is computed again one day; only a lost engine is worth an end. */
static enum kv_status note(struct kv_store *store, const struct kv_progress *progress, uint64_t token)
{
    struct kv_gms *kv = store->context;
    struct gms_tail_entry entry = {.token_count = progress->token_count};
    memcpy(entry.hash, progress->hash, sizeof entry.hash);
    gms_status status =
        gms_tail_note(kv->pool, progress->slot, store->generation[progress->slot], progress->parent, &entry, token);
    return gms_status_is_fatal_to_engine(status) ? outcome(store, status, "note", progress->slot) : KV_OK;
}

/* Memory of a GPU that the CPU addresses, as in drills of the device path without a GPU. */
static int copy_rows(void *context, void *to, const void *from, uint64_t pitch_bytes, uint64_t width_bytes,
                     uint64_t rows)
{
    (void)context;
    for (uint64_t row = 0; row < rows; row++)
        memcpy((char *)to + row * pitch_bytes, (const char *)from + row * pitch_bytes, width_bytes);
    return 0;
}

static enum kv_status salvage(struct kv_store *store, uint32_t source, const struct kv_progress *progress)
{
    struct kv_gms *kv = store->context;
    for (uint32_t i = 0; i < kv->tail_count; i++) {
        const struct gms_tail *tail = &kv->left[i];
        for (uint32_t entry = 0; tail->slot == source && entry < tail->entry_count; entry++) {
            struct gms_error error = {0};
            if (tail->entries[entry].token_count != progress->token_count ||
                memcmp(tail->entries[entry].hash, progress->hash, KV_HASH_BYTES) != 0)
                continue;
            const gms_status status =
                gms_tail_salvage(kv->pool, tail, entry, progress->slot, store->generation[progress->slot],
                                 gms_pool_on_device(kv->pool) ? copy_rows : NULL, NULL, &error);
            if (status == GMS_OK)
                return KV_OK;
            snprintf(store->text, sizeof store->text, "%.255s", error.text);
            return gms_status_is_fatal_to_engine(status) ? KV_LOST : KV_FAILED;
        }
    }
    snprintf(store->text, sizeof store->text,
             "the plan salvages %" PRIu32 " positions of slot %" PRIu32 ", which nobody left", progress->token_count,
             source);
    return KV_FAILED;
}

static bool reserve_tail(struct kv_gms *kv)
{
    if (kv->tail_count < kv->tail_capacity)
        return true;
    const uint32_t capacity = 2 * kv->tail_capacity + 16;
    struct gms_tail *left = realloc(kv->left, capacity * sizeof *left);
    if (left != NULL)
        kv->left = left;
    struct prefix_tail *tails = realloc(kv->tails, capacity * sizeof *tails);
    if (tails != NULL)
        kv->tails = tails;
    if (left == NULL || tails == NULL)
        return false;
    kv->tail_capacity = capacity;
    return true;
}

int kv_gms_take_tails(struct kv_store *store, const struct prefix_tail **ret_tails, uint32_t *ret_count)
{
    struct kv_gms *kv = store->context;
    uint32_t cursor = 0;
    struct gms_tail tail;
    while (gms_tail_next(kv->pool, &cursor, &tail) == GMS_OK) {
        if (!reserve_tail(kv))
            return -1;
        struct prefix_tail *known = &kv->tails[kv->tail_count];
        memset(known, 0, sizeof *known); /* padding too: the ranks compare bytes */
        known->slot = tail.slot;
        known->entry_count = tail.entry_count;
        memcpy(known->parent.bytes, tail.parent_hash, sizeof known->parent.bytes);
        for (uint32_t i = 0; i < tail.entry_count; i++) {
            known->entries[i].token_count = tail.entries[i].token_count;
            memcpy(known->entries[i].hash.bytes, tail.entries[i].hash, sizeof known->entries[i].hash.bytes);
        }
        kv->left[kv->tail_count++] = tail;
    }
    *ret_tails = kv->tails;
    *ret_count = kv->tail_count;
    return 0;
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
    struct kv_gms *kv = store->context;
    free(kv->left);
    free(kv->tails);
    free(kv);
}

static const struct kv_backend backend = {
    .name = "gms",
    .acquire = acquire,
    .seal = seal,
    .release = release,
    .note = note,
    .salvage = salvage,
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
    *kv = (struct kv_gms){.session = session, .pool = pool};
    const struct gms_tail_layout layout = {.planes = 2 * geometry->layers,
                                           .position_bytes = (uint32_t)(kv_position_floats(geometry) * sizeof(float)),
                                           .plane_bytes = kv_plane_floats(geometry) * sizeof(float)};
    if (gms_tail_layout_set(pool, &layout, NULL) != GMS_OK) {
        free(kv);
        return -1;
    }
    if (kv_store_init(store, &backend, kv, gms_pool_address(pool), geometry, gms_pool_slot_count(pool)) == 0)
        return 0;
    free(kv);
    return -1;
}
