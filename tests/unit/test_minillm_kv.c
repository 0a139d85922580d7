/* SPDX-License-Identifier: Apache-2.0
 *
 * minillm's KV store over libgms: what an answer means for the engine. libgms is played here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "kv_gms.h"

static gms_status answer;
static uint32_t returned_slot;

void *gms_pool_address(const gms_pool *pool)
{
    static float memory[4096];
    (void)pool;
    return memory;
}

uint32_t gms_pool_slot_count(const gms_pool *pool)
{
    (void)pool;
    return 2;
}

uint32_t gms_pool_index(const gms_pool *pool)
{
    (void)pool;
    return 0;
}

gms_status gms_slot_acquire(gms_pool *pool, uint32_t slot, uint64_t *ret_generation)
{
    (void)pool, (void)slot;
    *ret_generation = 1;
    return answer;
}

gms_status gms_block_seal(gms_session *session, const struct gms_block *block, gms_token token)
{
    (void)session, (void)block, (void)token;
    return answer;
}

gms_status gms_slot_release(gms_pool *pool, uint32_t slot, uint64_t generation, gms_token token)
{
    (void)pool, (void)slot, (void)generation, (void)token;
    return answer;
}

gms_token gms_step_begin(gms_session *session)
{
    (void)session;
    return 1;
}

void gms_step_complete(gms_session *session, gms_token token)
{
    (void)session, (void)token;
}

void gms_progress(gms_session *session)
{
    (void)session;
}

gms_status gms_returned_next(gms_pool *pool, uint32_t *ret_slot)
{
    (void)pool;
    *ret_slot = returned_slot;
    return answer;
}

int gms_pool_on_device(const gms_pool *pool)
{
    (void)pool;
    return 0;
}

gms_status gms_tail_layout_set(gms_pool *pool, const struct gms_tail_layout *layout, struct gms_error *ret_error)
{
    (void)pool, (void)ret_error;
    assert_int_equal(layout->planes, 2);
    assert_int_equal(layout->position_bytes, 16);
    assert_int_equal(layout->plane_bytes, 256);
    return GMS_OK;
}

gms_status gms_tail_note(gms_pool *pool, uint32_t slot, uint64_t generation,
                         const uint8_t parent_hash[GMS_BLOCK_HASH_BYTES], const struct gms_tail_entry *progress,
                         gms_token token)
{
    (void)pool, (void)slot, (void)generation, (void)parent_hash, (void)progress, (void)token;
    return answer;
}

/* One tail, in slot 1. */
gms_status gms_tail_next(gms_pool *pool, uint32_t *cursor, struct gms_tail *ret_tail)
{
    (void)pool;
    if ((*cursor)++ > 0)
        return GMS_E_NOT_FOUND;
    *ret_tail = (struct gms_tail){.slot = 1, .generation = 3, .entry_count = 2, .entries = {{{7}, 5}, {{6}, 4}}};
    return GMS_OK;
}

static uint32_t salvaged_entry;

gms_status gms_tail_salvage(gms_pool *pool, const struct gms_tail *tail, uint32_t entry, uint32_t slot,
                            uint64_t generation, gms_tail_copier copier, void *context, struct gms_error *ret_error)
{
    (void)pool, (void)tail, (void)slot, (void)generation, (void)copier, (void)context;
    salvaged_entry = entry;
    if (answer != GMS_OK && ret_error != NULL)
        snprintf(ret_error->text, sizeof ret_error->text, "no");
    return answer;
}

/* A seal or a release that libgms calls lost or stale: somebody else has the block. The engine ends; anything else is
 * its own mistake, and fails the step. */
static void test_lost_ownership_ends_the_engine(void **state)
{
    static const struct {
        gms_status status;
        enum kv_status expected;
    } cases[] = {
        {GMS_OK, KV_OK},         {GMS_E_LOST_OWNERSHIP, KV_LOST}, {GMS_E_CONDEMNED, KV_LOST},  {GMS_E_STALE, KV_LOST},
        {GMS_E_BUSY, KV_FAILED}, {GMS_E_QUARANTINED, KV_FAILED},  {GMS_E_NOT_DONE, KV_FAILED},
    };
    const struct kv_geometry geometry = {.layers = 1, .block_tokens = 16, .kv_heads = 1, .head_dim = 4};
    const uint8_t hash[KV_HASH_BYTES] = {1};
    struct kv_store store;
    uint64_t generation;
    uint32_t slot;
    (void)state;
    assert_int_equal(kv_gms_open(&store, NULL, NULL, &geometry), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        answer = cases[i].status;
        assert_int_equal(store.backend->acquire(&store, 0, &generation), cases[i].expected);
        assert_int_equal(store.backend->seal(&store, 0, 1, 16, hash, hash, 1), cases[i].expected);
        assert_int_equal(store.backend->release(&store, 0, 1, 1), cases[i].expected);
        /* What cannot be noted is computed again one day; only ownership matters. */
        const struct kv_progress progress = {.slot = 0, .token_count = 4, .hash = hash, .parent = hash};
        assert_int_equal(store.backend->note(&store, &progress, 1),
                         gms_status_is_fatal_to_engine(cases[i].status) ? KV_LOST : KV_OK);
    }
    answer = GMS_E_NOT_FOUND;
    assert_false(store.backend->returned(&store, &slot));
    answer = GMS_OK;
    returned_slot = 1;
    assert_true(store.backend->returned(&store, &slot));
    assert_int_equal(slot, 1);
    kv_store_close(&store);
}

/* Only what the predecessor left is salvaged, by its hash and length. */
static void test_tails_by_hash_and_length(void **state)
{
    const struct kv_geometry geometry = {.layers = 1, .block_tokens = 16, .kv_heads = 1, .head_dim = 4};
    const uint8_t shorter[KV_HASH_BYTES] = {6}, other[KV_HASH_BYTES] = {8};
    const struct prefix_tail *tails = NULL;
    struct kv_store store;
    uint32_t count = 0;
    (void)state;
    answer = GMS_OK;
    assert_int_equal(kv_gms_open(&store, NULL, NULL, &geometry), 0);
    struct kv_progress progress = {.slot = 0, .token_count = 4, .hash = shorter, .parent = other};
    assert_int_equal(store.backend->salvage(&store, 1, &progress), KV_FAILED); /* nobody has asked what there is */
    assert_int_equal(kv_gms_take_tails(&store, &tails, &count), 0);
    assert_int_equal(count, 1);
    assert_int_equal(tails[0].slot, 1);
    assert_int_equal(tails[0].entry_count, 2);
    assert_int_equal(tails[0].entries[1].token_count, 4);
    assert_int_equal(store.backend->salvage(&store, 1, &progress), KV_OK);
    assert_int_equal(salvaged_entry, 1);
    assert_int_equal(store.backend->salvage(&store, 0, &progress), KV_FAILED);
    progress.token_count = 5;
    assert_int_equal(store.backend->salvage(&store, 1, &progress), KV_FAILED);
    progress = (struct kv_progress){.slot = 0, .token_count = 4, .hash = other, .parent = other};
    assert_int_equal(store.backend->salvage(&store, 1, &progress), KV_FAILED);
    progress.hash = shorter;
    answer = GMS_E_STALE;
    assert_int_equal(store.backend->salvage(&store, 1, &progress), KV_FAILED);
    answer = GMS_E_CONDEMNED;
    assert_int_equal(store.backend->salvage(&store, 1, &progress), KV_LOST);
    kv_store_close(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lost_ownership_ends_the_engine),
                                       cmocka_unit_test(test_tails_by_hash_and_length)};
    return cmocka_run_group_tests_name("minillm_kv", tests, NULL, NULL);
}
