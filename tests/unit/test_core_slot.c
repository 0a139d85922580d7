/* SPDX-License-Identifier: Apache-2.0
 * The slot word: every state against every event, stale generations, exhaustion, classification. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/slot.h"

enum { I = GMS_SLOT_IDLE, L = GMS_SLOT_LEASED, S = GMS_SLOT_SEALED, R = GMS_SLOT_RELEASED, Q = GMS_SLOT_QUARANTINED };
#define NO(status) (-(int)GMS_E_##status)

/* Rows: IDLE LEASED SEALED RELEASED QUARANTINED RETIRED; columns: acquire seal release fence-passed quarantine reclaim.
 * Written down from slot.h, not from slot.c. */
static const int expected[6][GMS_SLOT_EVENT_COUNT] = {
    {L, NO(REFUSED), NO(REFUSED), NO(REFUSED), Q, NO(REFUSED)},
    {NO(BUSY), S, R, NO(REFUSED), Q, NO(REFUSED)},
    {NO(BUSY), NO(REFUSED), R, NO(REFUSED), Q, NO(REFUSED)},
    {L, NO(REFUSED), NO(REFUSED), I, Q, NO(REFUSED)},
    {NO(QUARANTINED), NO(QUARANTINED), NO(QUARANTINED), NO(QUARANTINED), Q, I},
    {NO(REFUSED), NO(REFUSED), NO(REFUSED), NO(REFUSED), NO(REFUSED), NO(REFUSED)},
};

static void test_every_state_and_event(void **state)
{
    static const uint64_t generations[] = {0, 1, 2, 1000, GMS_SLOT_GENERATION_MAX - 1};

    (void)state;
    for (unsigned s = 0; s < 6; s++) {
        for (unsigned e = 0; e < GMS_SLOT_EVENT_COUNT; e++) {
            for (unsigned g = 0; g < sizeof generations / sizeof generations[0]; g++) {
                uint64_t generation = generations[g];
                gms_slot_word word = gms_slot_word_make((enum gms_slot_state)s, generation), result = 12345;
                gms_status status = gms_slot_step(word, (enum gms_slot_event)e, generation, &result);

                if (expected[s][e] < 0) {
                    assert_int_equal(status, -expected[s][e]);
                    assert_int_equal(result, 12345);
                    continue;
                }
                assert_int_equal(status, GMS_OK);
                assert_int_equal(gms_slot_word_state(result), expected[s][e]);
                assert_int_equal(gms_slot_word_generation(result), generation + (e == GMS_SLOT_EVENT_ACQUIRE));
            }
        }
    }
}

static void test_stale_generations_change_nothing(void **state)
{
    (void)state;
    for (unsigned s = 0; s < 6; s++) {
        for (unsigned e = 0; e < GMS_SLOT_EVENT_COUNT; e++) {
            static const uint64_t wrong[] = {0, 4, 6, GMS_SLOT_GENERATION_MAX};
            gms_slot_word word = gms_slot_word_make((enum gms_slot_state)s, 5), result = 12345;

            for (unsigned i = 0; e != GMS_SLOT_EVENT_ACQUIRE && i < sizeof wrong / sizeof wrong[0]; i++) {
                assert_int_equal(gms_slot_step(word, (enum gms_slot_event)e, wrong[i], &result), GMS_E_STALE);
                assert_int_equal(result, 12345);
            }
        }
    }
}

static void test_a_block_listed_twice_is_freed_once(void **state)
{
    gms_slot_word word = gms_slot_word_make(GMS_SLOT_SEALED, 3), other;

    (void)state;
    assert_int_equal(gms_slot_step(word, GMS_SLOT_EVENT_RELEASE, 3, &word), GMS_OK);
    assert_int_equal(gms_slot_step(word, GMS_SLOT_EVENT_RELEASE, 3, &other), GMS_E_REFUSED);
    assert_int_equal(gms_slot_step(word, GMS_SLOT_EVENT_ACQUIRE, 0, &word), GMS_OK); /* the releaser leases it again */
    assert_int_equal(gms_slot_step(word, GMS_SLOT_EVENT_RELEASE, 3, &other), GMS_E_STALE);
    assert_int_equal(gms_slot_step(word, GMS_SLOT_EVENT_FENCE_PASSED, 3, &other), GMS_E_STALE);
    assert_int_equal(gms_slot_word_state(word), GMS_SLOT_LEASED);
    assert_int_equal(gms_slot_word_generation(word), 4);
}

static void test_exhausted_generation_retires(void **state)
{
    static const enum gms_slot_state from[] = {GMS_SLOT_IDLE, GMS_SLOT_RELEASED};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        gms_slot_word word = gms_slot_word_make(from[i], GMS_SLOT_GENERATION_MAX), result = 0;

        assert_int_equal(gms_slot_step(word, GMS_SLOT_EVENT_ACQUIRE, 0, &result), GMS_E_REFUSED);
        assert_int_equal(gms_slot_word_state(result), GMS_SLOT_RETIRED);
        assert_int_equal(gms_slot_word_generation(result), GMS_SLOT_GENERATION_MAX);
        assert_int_equal(gms_slot_classify(result, true, true), GMS_CLASS_RETIRED);
    }
}

static void test_no_state_at_all(void **state)
{
    (void)state;
    for (uint64_t bits = 6; bits < 8; bits++) {
        gms_slot_word word = 5 << GMS_SLOT_STATE_BITS | bits, result = 12345;

        for (unsigned e = 0; e < GMS_SLOT_EVENT_COUNT; e++)
            assert_int_equal(gms_slot_step(word, (enum gms_slot_event)e, 5, &result), GMS_E_REFUSED);
        assert_int_equal(result, 12345);
        assert_int_equal(gms_slot_classify(word, true, true), GMS_CLASS_QUARANTINED);
    }
    gms_slot_word result = 12345;
    assert_int_equal(gms_slot_step(0, GMS_SLOT_EVENT_COUNT, 0, &result), GMS_E_REFUSED);
}

static void test_classification(void **state)
{
    static const enum gms_slot_class classes[6][2][2] = {
        /* [record valid][departed cleanly] */
        [GMS_SLOT_IDLE] = {{GMS_CLASS_FREE, GMS_CLASS_FREE}, {GMS_CLASS_FREE, GMS_CLASS_FREE}},
        [GMS_SLOT_LEASED] = {{GMS_CLASS_QUARANTINED, GMS_CLASS_QUARANTINED},
                             {GMS_CLASS_QUARANTINED, GMS_CLASS_QUARANTINED}},
        [GMS_SLOT_SEALED] = {{GMS_CLASS_QUARANTINED, GMS_CLASS_QUARANTINED},
                             {GMS_CLASS_ADOPTABLE, GMS_CLASS_ADOPTABLE}},
        [GMS_SLOT_RELEASED] = {{GMS_CLASS_QUARANTINED, GMS_CLASS_FREE}, {GMS_CLASS_QUARANTINED, GMS_CLASS_FREE}},
        [GMS_SLOT_QUARANTINED] = {{GMS_CLASS_QUARANTINED, GMS_CLASS_QUARANTINED},
                                  {GMS_CLASS_QUARANTINED, GMS_CLASS_QUARANTINED}},
        [GMS_SLOT_RETIRED] = {{GMS_CLASS_RETIRED, GMS_CLASS_RETIRED}, {GMS_CLASS_RETIRED, GMS_CLASS_RETIRED}},
    };

    (void)state;
    for (unsigned s = 0; s < 6; s++)
        for (unsigned valid = 0; valid < 2; valid++)
            for (unsigned clean = 0; clean < 2; clean++)
                assert_int_equal(gms_slot_classify(gms_slot_word_make((enum gms_slot_state)s, 9), valid, clean),
                                 classes[s][valid][clean]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_state_and_event),
        cmocka_unit_test(test_stale_generations_change_nothing),
        cmocka_unit_test(test_a_block_listed_twice_is_freed_once),
        cmocka_unit_test(test_exhausted_generation_retires),
        cmocka_unit_test(test_no_state_at_all),
        cmocka_unit_test(test_classification),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
