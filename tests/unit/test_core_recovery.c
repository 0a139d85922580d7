/* SPDX-License-Identifier: Apache-2.0
 * What all ranks conclude in round 0 of a world from what each of them still has. */
#include "core/recovery.h"
#include "core_support.h"

enum { REPORTS = 3 };

static void reports_of(struct gms_recovery_report reports[REPORTS])
{
    memset(reports, 0, REPORTS * sizeof reports[0]);
    for (uint32_t r = 0; r < REPORTS; r++) {
        reports[r].version = GMS_RECOVERY_REPORT_VERSION;
        reports[r].rank = r;
        reports[r].has_store = true;
        reports[r].keeper_holds = GMS_HOLDS_KEPT;
        reports[r].world = reports[r].store_world = reports[r].mirror_world = 5;
        reports[r].round = reports[r].mirror_round = 20;
        reports[r].state_digest = 99;
    }
}

static void lose_store(struct gms_recovery_report *report)
{
    report->has_store = 0;
    report->store_world = report->world = report->round = report->state_digest = 0;
}

static struct gms_recovery_decision decide(const struct gms_recovery_report reports[REPORTS])
{
    struct gms_recovery_decision decision;

    gms_recovery_decide(reports, REPORTS, &decision);
    assert_true(strlen(decision.text) > 10 && strlen(decision.text) < sizeof decision.text - 1);
    return decision;
}

static void test_all_have_the_same(void **state)
{
    struct gms_recovery_report reports[REPORTS];
    struct gms_recovery_decision decision;

    (void)state;
    reports_of(reports);
    decision = decide(reports);
    assert_int_equal(decision.verdict, GMS_RECOVERY_RESTORE);
    assert_int_equal(decision.from_rank, 0);
}

static void test_the_greatest_is_taken(void **state)
{
    struct gms_recovery_report reports[REPORTS];

    (void)state;
    reports_of(reports);
    reports[1].round = 21;
    reports[1].state_digest = 1;
    assert_int_equal(decide(reports).from_rank, 1);
    reports[2].world = 6; /* the world before the round */
    reports[2].round = 3;
    assert_int_equal(decide(reports).from_rank, 2);
    reports[2].round = 0; /* a store without a snapshot */
    assert_int_equal(decide(reports).from_rank, 1);
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_RESTORE);
}

static void test_two_states_after_one_round_are_refused(void **state)
{
    struct gms_recovery_report reports[REPORTS];

    (void)state;
    reports_of(reports);
    reports[2].state_digest = 98;
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
    assert_non_null(strstr(decide(reports).text, "rank 2"));
    reports[2].round = 19; /* older ones may differ */
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_RESTORE);
}

/* V12: a store that is gone or older, and knew more than the others, while something lives or is prepared anywhere. */
static void test_a_lost_store_is_refused(void **state)
{
    (void)state;
    for (uint32_t doubt = GMS_DOUBT_NONE; doubt < GMS_DOUBT_COUNT; doubt++) {
        struct gms_recovery_report reports[REPORTS];
        struct gms_recovery_decision decision;

        reports_of(reports);
        reports[1].doubt = doubt;
        reports[1].mirror_round = 21;
        if (doubt != GMS_DOUBT_OLDER && doubt != GMS_DOUBT_MEMORY_LOST)
            lose_store(&reports[1]);
        decision = decide(reports);
        assert_int_equal(decision.verdict, GMS_RECOVERY_REFUSE);
        assert_non_null(strstr(decision.text, "rank 1 has"));
        assert_non_null(strstr(decision.text, "--accept-store-loss"));
        assert_non_null(strstr(decision.text, "--fresh"));

        for (uint32_t r = 0; r < REPORTS; r++) /* only something prepared elsewhere */
            reports[r].keeper_holds = GMS_HOLDS_NOTHING;
        reports[2].prepared = 1;
        assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
        reports[2].prepared =
            0; /* nothing lives: nobody can be contradicted, but numbers that were told are not told again */
        assert_int_equal(decide(reports).verdict, GMS_RECOVERY_SALVAGE);
    }
}

/* What all others have as well is not lost with one store. */
static void test_a_lost_store_that_others_equal_is_no_loss(void **state)
{
    (void)state;
    for (uint32_t doubt = GMS_DOUBT_NONE; doubt < GMS_DOUBT_MEMORY_LOST; doubt++) {
        struct gms_recovery_report reports[REPORTS];

        reports_of(reports);
        reports[0].doubt = doubt;
        lose_store(&reports[0]);
        assert_int_equal(decide(reports).verdict, GMS_RECOVERY_RESTORE);
        assert_int_equal(decide(reports).from_rank, 1);
        reports[0].mirror_world = 4; /* a world that had stored more rounds, but an older one */
        reports[0].mirror_round = 77;
        assert_int_equal(decide(reports).verdict, GMS_RECOVERY_RESTORE);
        reports[0].mirror_world = 6; /* a newer one */
        reports[0].mirror_round = 1;
        assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
        reports[0].mirror_round = 0; /* which had not stored anything */
        assert_int_equal(decide(reports).verdict, GMS_RECOVERY_RESTORE);
    }
}

/* Store and keeper are lost: nobody can say what this rank had told. */
static void test_a_lost_store_of_a_new_keeper_is_refused(void **state)
{
    struct gms_recovery_report reports[REPORTS];

    (void)state;
    reports_of(reports);
    reports[2].mirror_world = reports[2].mirror_round = 0;
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_RESTORE); /* a whole store is believed */
    lose_store(&reports[2]);
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
    assert_non_null(strstr(decide(reports).text, "rank 2 has no store"));
    for (uint32_t r = 0; r < REPORTS; r++)
        reports[r].keeper_holds = GMS_HOLDS_NOTHING;
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_SALVAGE);
}

/* The only one that stored anything had done so before anybody lived, and is lost (found by the simulator and SPIN). */
static void test_the_first_thing_stored_is_lost(void **state)
{
    struct gms_recovery_report reports[REPORTS];

    (void)state;
    reports_of(reports);
    for (uint32_t r = 0; r < REPORTS; r++) {
        reports[r].keeper_holds = reports[r].round = reports[r].world = reports[r].state_digest = 0;
        reports[r].mirror_round = 0;
    }
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_FRESH);
    assert_int_equal(decide(reports).life, 5); /* nothing was stored since the stores were made: nothing was told */
    reports[1].mirror_round = 1;               /* a copy from before */
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_FRESH);
    assert_int_equal(decide(reports).life, 0);
    lose_store(&reports[1]);
    assert_int_equal(decide(reports).life, 0);
    reports[1].mirror_world = reports[1].mirror_round = 0; /* and its keeper */
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_FRESH);
    assert_int_equal(decide(reports).life, 0);
    lose_store(&reports[0]);
    lose_store(&reports[2]);
    assert_int_equal(decide(reports).life, 0);
}

/* Everything was ended: the memory that the stores name is nobody's, and a new keeper has none of it. */
static void test_memory_of_nobody_is_no_loss(void **state)
{
    struct gms_recovery_report reports[REPORTS];

    (void)state;
    reports_of(reports);
    for (uint32_t r = 0; r < REPORTS; r++) {
        reports[r].keeper_holds = GMS_HOLDS_NOTHING;
        reports[r].doubt = GMS_DOUBT_MEMORY_LOST;
        reports[r].mirror_world = reports[r].mirror_round = 0;
    }
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_RENEW);
    for (uint32_t r = 0; r < REPORTS; r++) { /* whoever may live on any rank may have it */
        reports[r].keeper_holds = GMS_HOLDS_KEPT;
        assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
        assert_non_null(strstr(decide(reports).text, "keeper still holds"));
        reports[r].keeper_holds = GMS_HOLDS_UNSEEN;
        assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
        assert_non_null(strstr(decide(reports).text, "engines that no coordinator saw end"));
        assert_non_null(strstr(decide(reports).text, "--fresh"));
        assert_null(strstr(decide(reports).text, "--accept-store-loss")); /* it could not give the memory back */
        reports[r].keeper_holds = GMS_HOLDS_NOTHING;
        reports[r].prepared = 1;
        assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
        reports[r].prepared = 0;
    }
}

static void test_loss_is_accepted_by_all_or_not(void **state)
{
    struct gms_recovery_report reports[REPORTS];

    (void)state;
    reports_of(reports);
    reports[1].doubt = GMS_DOUBT_MISSING;
    reports[1].mirror_round = 21;
    lose_store(&reports[1]);
    reports[0].accept_loss = reports[1].accept_loss = true;
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
    reports[2].accept_loss = true;
    reports[0].accept_loss = false;
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
    reports[0].accept_loss = true;
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_SALVAGE);
    assert_int_equal(decide(reports).from_rank, 0);
    for (uint32_t r = 0; r < REPORTS; r++) /* nobody has one: nothing to go on from */
        lose_store(&reports[r]);
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
}

static void test_fresh_is_when_nothing_is_there(void **state)
{
    struct gms_recovery_report reports[REPORTS];

    (void)state;
    reports_of(reports);
    for (uint32_t r = 0; r < REPORTS; r++)
        reports[r] = (struct gms_recovery_report){.version = GMS_RECOVERY_REPORT_VERSION, .rank = r};
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_FRESH);
    reports[0].has_store = reports[1].has_store = reports[2].has_store = true; /* nothing was decided yet */
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_FRESH);
    reports[2].keeper_holds = GMS_HOLDS_KEPT;
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
    assert_non_null(strstr(decide(reports).text, "rank 2"));
}

static void test_reports_of_another_version_are_refused(void **state)
{
    struct gms_recovery_report reports[REPORTS];

    (void)state;
    reports_of(reports);
    reports[1].version++;
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
    reports_of(reports);
    reports[1].rank = 2;
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
    reports_of(reports);
    reports[2].doubt = GMS_DOUBT_COUNT;
    assert_int_equal(decide(reports).verdict, GMS_RECOVERY_REFUSE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_have_the_same),
        cmocka_unit_test(test_the_greatest_is_taken),
        cmocka_unit_test(test_two_states_after_one_round_are_refused),
        cmocka_unit_test(test_a_lost_store_is_refused),
        cmocka_unit_test(test_a_lost_store_that_others_equal_is_no_loss),
        cmocka_unit_test(test_a_lost_store_of_a_new_keeper_is_refused),
        cmocka_unit_test(test_the_first_thing_stored_is_lost),
        cmocka_unit_test(test_memory_of_nobody_is_no_loss),
        cmocka_unit_test(test_loss_is_accepted_by_all_or_not),
        cmocka_unit_test(test_fresh_is_when_nothing_is_there),
        cmocka_unit_test(test_reports_of_another_version_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
