/* SPDX-License-Identifier: Apache-2.0
 *
 * From what a predecessor left to the prefix cache. The other rank is played by `peer_*`.
 */
#include "minillm_support.h"

#include "adopt.h"

enum { SLOTS = 12 };

static const uint8_t *peer_bytes; /* what the other rank says in the second exchange; NULL: the same as we */

void ranks_least_bytes(struct ranks *ranks, uint8_t *bytes, size_t count)
{
    (void)ranks;
    for (size_t i = 0; peer_bytes != NULL && count > 1 && i < count; i++)
        bytes[i] = bytes[i] < peer_bytes[i] ? bytes[i] : peer_bytes[i];
}

static struct block_hash hash_of(uint32_t number)
{
    static const struct block_hash none;
    return prefix_hash(&none, &number, 1, 0);
}

static void seal(struct adopted_slot *slots, uint32_t slot, uint32_t number, int32_t parent)
{
    static const struct block_hash none;
    slots[slot] = (struct adopted_slot){ADOPTED_SEALED, hash_of(number), parent < 0 ? none : hash_of((uint32_t)parent)};
}

static void chains_are_evicted_from_their_tails(void **state)
{
    (void)state;
    struct adopted_slot slots[SLOTS] = {{0}};
    uint32_t adopted;
    seal(slots, 5, 100, -1);
    seal(slots, 0, 101, 100);
    seal(slots, 9, 102, 101);
    seal(slots, 2, 200, -1);
    seal(slots, 3, 301, 300); /* its parent was not adopted */
    seal(slots, 1, 302, 301);
    slots[4].use = slots[6].use = ADOPTED_IDLE;
    struct prefix *p = adopt_build(slots, SLOTS, &adopted);
    assert_non_null(p);
    assert_int_equal(adopted, 6);
    struct prefix_counts counts = prefix_count(p);
    assert_int_equal(counts.free, 2);
    assert_int_equal(counts.cached, 6);
    assert_int_equal(counts.evictable, 6);
    assert_int_equal(counts.excluded, 4);
    struct block_hash head = hash_of(100);
    assert_int_equal(prefix_find(p, &head), 5);
    static const uint32_t order[] = {4, 6, /* then evictions */ 1, 3, 9, 0, 2, 5};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        bool evicted;
        assert_int_equal(prefix_allocate(p, &evicted), order[i]);
        assert_int_equal(evicted, i >= 2);
    }
    prefix_close(p);
}

static void rings_and_doubles_do_no_harm(void **state)
{
    (void)state;
    struct adopted_slot slots[SLOTS] = {{0}};
    uint32_t adopted;
    seal(slots, 0, 1, 2);
    seal(slots, 1, 2, 1);
    seal(slots, 2, 3, 3);
    seal(slots, 3, 4, -1);
    seal(slots, 4, 4, -1);
    struct prefix *p = adopt_build(slots, SLOTS, &adopted);
    assert_non_null(p);
    assert_int_equal(adopted, 4);
    assert_int_equal(prefix_count(p).excluded, SLOTS - 4);
    prefix_close(p);
}

static void every_slot_may_be_sealed(void **state)
{
    (void)state;
    struct adopted_slot slots[SLOTS] = {{0}};
    uint32_t adopted;
    for (uint32_t i = 0; i < SLOTS; i++)
        seal(slots, i, i, (int32_t)i - 1);
    struct prefix *p = adopt_build(slots, SLOTS, &adopted);
    assert_int_equal(adopted, SLOTS);
    bool evicted;
    assert_int_equal(prefix_allocate(p, &evicted), SLOTS - 1);
    prefix_close(p);
}

static void a_slot_that_one_rank_cannot_use_is_used_by_none(void **state)
{
    (void)state;
    struct adopted_slot slots[SLOTS] = {{0}};
    uint8_t votes[2 * KV_HASH_BYTES + SLOTS];
    for (uint32_t i = 0; i < SLOTS; i++)
        slots[i].use = ADOPTED_IDLE;
    memset(votes, UINT8_MAX, sizeof votes);
    votes[2 * KV_HASH_BYTES + 3] = 0;
    peer_bytes = votes;
    assert_true(adopt_agree(NULL, slots, SLOTS));
    peer_bytes = NULL;
    for (uint32_t i = 0; i < SLOTS; i++)
        assert_int_equal(slots[i].use, i == 3 ? ADOPTED_UNUSABLE : ADOPTED_IDLE);
}

static void ranks_with_different_blocks_do_not_serve(void **state)
{
    (void)state;
    struct adopted_slot slots[SLOTS] = {{0}};
    uint8_t votes[2 * KV_HASH_BYTES + SLOTS];
    seal(slots, 1, 1, -1);
    assert_true(adopt_agree(NULL, slots, SLOTS));
    memset(votes, UINT8_MAX, sizeof votes);
    memset(votes, 0, KV_HASH_BYTES); /* another digest and its complement */
    peer_bytes = votes;
    assert_false(adopt_agree(NULL, slots, SLOTS));
    peer_bytes = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_are_evicted_from_their_tails),
        cmocka_unit_test(rings_and_doubles_do_no_harm),
        cmocka_unit_test(every_slot_may_be_sealed),
        cmocka_unit_test(a_slot_that_one_rank_cannot_use_is_used_by_none),
        cmocka_unit_test(ranks_with_different_blocks_do_not_serve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
