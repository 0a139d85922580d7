/* SPDX-License-Identifier: Apache-2.0
 *
 * minillm's KV store over libgms: what an answer means for the engine. libgms is played here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

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
    }
    answer = GMS_E_NOT_FOUND;
    assert_false(store.backend->returned(&store, &slot));
    answer = GMS_OK;
    returned_slot = 1;
    assert_true(store.backend->returned(&store, &slot));
    assert_int_equal(slot, 1);
    kv_store_close(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lost_ownership_ends_the_engine)};
    return cmocka_run_group_tests_name("minillm_kv", tests, NULL, NULL);
}
