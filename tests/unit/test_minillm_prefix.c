/* SPDX-License-Identifier: Apache-2.0 */
#include "minillm_support.h"

static struct block_hash hash_of(uint32_t number)
{
    static const struct block_hash none;
    return prefix_hash(&none, &number, 1, 0);
}

static void hashes_chain(void **state)
{
    (void)state;
    const uint32_t tokens[2][4] = {{1, 2, 3, 4}, {1, 2, 3, 5}};
    const struct block_hash none = {0};
    struct block_hash a = prefix_hash(&none, tokens[0], 4, 0), b = prefix_hash(&none, tokens[1], 4, 0);
    struct block_hash again = prefix_hash(&none, tokens[0], 4, 0), seeded = prefix_hash(&none, tokens[0], 4, 1);
    struct block_hash after_a = prefix_hash(&a, tokens[0], 4, 0), after_b = prefix_hash(&b, tokens[0], 4, 0);
    assert_memory_equal(&a, &again, sizeof a);
    assert_memory_not_equal(&a, &b, sizeof a);
    assert_memory_not_equal(&a, &seeded, sizeof a);
    assert_memory_not_equal(&after_a, &after_b, sizeof a);
    assert_memory_not_equal(&a, &after_a, sizeof a);
    /* Part of the contract between engines: adopted blocks are found by it, so it must not drift. */
    static const uint8_t known[KV_HASH_BYTES] = {0x4e, 0x7b, 0x4f, 0x6b, 0x8c, 0xad, 0xfb, 0x2a,
                                                 0x1b, 0x1a, 0x20, 0xc2, 0x45, 0x74, 0x94, 0xc4};
    assert_memory_equal(&a, known, sizeof known);
}

static void the_oldest_without_references_goes_first(void **state)
{
    (void)state;
    struct prefix *p = prefix_open(4);
    bool evicted;
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(prefix_allocate(p, &evicted), i);
        assert_false(evicted);
        struct block_hash hash = hash_of(i);
        assert_true(prefix_publish(p, i, &hash));
    }
    assert_int_equal(prefix_allocate(p, &evicted), PREFIX_NONE); /* all in use */
    prefix_unreference(p, 2);
    prefix_unreference(p, 0);
    prefix_unreference(p, 3);
    struct block_hash two = hash_of(2), zero = hash_of(0);
    prefix_reference(p, prefix_find(p, &two)); /* a hit: not the oldest any more */
    prefix_unreference(p, 2);
    assert_int_equal(prefix_allocate(p, &evicted), 0);
    assert_true(evicted);
    assert_int_equal(prefix_find(p, &zero), PREFIX_NONE);
    assert_int_equal(prefix_allocate(p, &evicted), 3);
    assert_int_equal(prefix_find(p, &two), 2);
    assert_int_equal(prefix_allocate(p, &evicted), 2);
    assert_int_equal(prefix_allocate(p, &evicted), PREFIX_NONE); /* 1 has its reference */
    assert_int_equal(prefix_references(p, 1), 1);
    prefix_close(p);
}

static void a_hash_is_cached_once(void **state)
{
    (void)state;
    struct prefix *p = prefix_open(3);
    bool evicted;
    struct block_hash hash = hash_of(9);
    uint32_t a = prefix_allocate(p, &evicted), b = prefix_allocate(p, &evicted);
    assert_true(prefix_publish(p, a, &hash));
    assert_false(prefix_publish(p, b, &hash));
    prefix_free(p, b);
    struct prefix_counts counts = prefix_count(p);
    assert_int_equal(counts.cached, 1);
    assert_int_equal(counts.free, 2);
    assert_int_equal(counts.evictable, 0);
    prefix_close(p);
}

static void excluded_slots_are_never_handed_out(void **state)
{
    (void)state;
    struct prefix *p = prefix_open(5);
    struct block_hash hash = hash_of(1);
    bool evicted;
    assert_true(prefix_exclude(p, 0));
    assert_true(prefix_exclude(p, 4));
    assert_false(prefix_exclude(p, 4));
    assert_false(prefix_exclude(p, 5));
    assert_true(prefix_adopt(p, 2, &hash));
    assert_false(prefix_adopt(p, 3, &hash));
    assert_false(prefix_adopt(p, 0, &hash));
    assert_int_equal(prefix_allocate(p, &evicted), 1);
    assert_int_equal(prefix_allocate(p, &evicted), 3);
    assert_false(evicted);
    assert_int_equal(prefix_allocate(p, &evicted), 2);
    assert_true(evicted);
    assert_int_equal(prefix_allocate(p, &evicted), PREFIX_NONE);
    assert_int_equal(prefix_count(p).excluded, 2);
    prefix_close(p);
}

/* Against a plain model of the same rules: an array, searched. */
static void a_long_random_run_agrees_with_a_plain_model(void **state)
{
    (void)state;
    enum { SLOTS = 37, HASHES = 60, TURNS = 200000 };
    struct {
        enum { FREE, PRIVATE, CACHED } use;
        uint32_t references, hash;
        uint64_t touched;
    } plain[SLOTS] = {{FREE, 0, 0, 0}};
    uint64_t random = 20240607, clock = 0;
    print_message("seed %llu\n", (unsigned long long)random);
    struct prefix *p = prefix_open(SLOTS);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        uint32_t slot = (uint32_t)(llm_random(&random) % SLOTS), number = (uint32_t)(llm_random(&random) % HASHES);
        struct block_hash hash = hash_of(number);
        uint32_t where = PREFIX_NONE, free_slots = 0, oldest = PREFIX_NONE;
        for (uint32_t i = 0; i < SLOTS; i++) {
            where = plain[i].use == CACHED && plain[i].hash == number ? i : where;
            free_slots += plain[i].use == FREE;
            if (plain[i].use == CACHED && plain[i].references == 0 &&
                (oldest == PREFIX_NONE || plain[i].touched < plain[oldest].touched))
                oldest = i;
        }
        assert_int_equal(prefix_find(p, &hash), where);
        assert_int_equal(prefix_count(p).free, free_slots);
        bool evicted;
        switch (llm_random(&random) % 4) {
        case 0: {
            uint32_t got = prefix_allocate(p, &evicted);
            if (free_slots > 0) {
                assert_true(got < SLOTS && plain[got].use == FREE && !evicted);
            } else {
                assert_int_equal(got, oldest);
                assert_true(evicted);
            }
            if (got != PREFIX_NONE)
                plain[got].use = PRIVATE;
            break;
        }
        case 1:
            if (plain[slot].use == PRIVATE && prefix_publish(p, slot, &hash)) {
                assert_int_equal(where, PREFIX_NONE);
                plain[slot].use = CACHED;
                plain[slot].references = 1;
                plain[slot].hash = number;
            } else if (plain[slot].use == PRIVATE) {
                assert_int_not_equal(where, PREFIX_NONE);
                prefix_free(p, slot);
                plain[slot].use = FREE;
            }
            break;
        case 2:
            if (plain[slot].use == CACHED && plain[slot].references < 3) {
                prefix_reference(p, slot);
                plain[slot].references++;
            }
            break;
        default:
            if (plain[slot].use == CACHED && plain[slot].references > 0) {
                prefix_unreference(p, slot);
                if (--plain[slot].references == 0)
                    plain[slot].touched = ++clock;
            }
        }
    }
    prefix_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_chain),
        cmocka_unit_test(the_oldest_without_references_goes_first),
        cmocka_unit_test(a_hash_is_cached_once),
        cmocka_unit_test(excluded_slots_are_never_handed_out),
        cmocka_unit_test(a_long_random_run_agrees_with_a_plain_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
