/* SPDX-License-Identifier: Apache-2.0
 * Reclaim: pages come back on all ranks or on none, only with proof, through crashes of everybody at every point. */
#include "core_support.h"

#include "../sim/memory.h"

static struct cluster *new_reclaiming(uint32_t ranks, bool inherits)
{
    struct gms_core_options options = {.world = 77,
                                       .world_size = ranks,
                                       .operation_timeout_ns = 10000 * MS,
                                       .fence_report_ns = 2000 * MS,
                                       .reclaim_slots = 4,
                                       .reclaim_inherits = inherits};
    struct cluster *cluster = cluster_new(&options);

    assert_non_null(cluster);
    cluster->memory = cluster_memory_new();
    assert_non_null(cluster->memory);
    cluster->memory->proof_is_trusted = inherits;
    return cluster;
}

/* The next engine in line takes over and serves; returns its incarnation. `engine` parks first. */
static uint64_t serve_next(struct cluster *c, uint32_t engine, uint64_t launch)
{
    uint64_t incarnation = join_and_park(c, engine, launch);

    adopt_and_serve(c, engine, incarnation);
    return incarnation;
}

static void die(struct cluster *c, uint32_t engine, uint64_t incarnation)
{
    cluster_fact(c, 0, engine, incarnation, GMS_FACT_GONE);
    cluster_settle(c);
    assert_sound(c);
}

static void quiet(struct cluster *c, uint64_t incarnation)
{
    for (uint32_t r = 0; r < c->ranks; r++)
        cluster_memory_quiet(c, r, incarnation);
    cluster_settle(c);
    assert_sound(c);
}

static uint32_t in_quarantine(struct cluster *c, uint64_t incarnation)
{
    uint32_t first = cluster_memory_count(c, 0, incarnation, MEMORY_QUARANTINED);

    for (uint32_t r = 1; r < c->ranks; r++)
        assert_int_equal(cluster_memory_count(c, r, incarnation, MEMORY_QUARANTINED), first);
    return first;
}

static enum gms_reclaim_state state_of(struct cluster *c)
{
    struct gms_core_reclaim_view first;

    gms_core_look_reclaim(c->cores[0], &first);
    return first.state;
}

static enum gms_reclaim_answer verdict_of(struct cluster *c, uint64_t incarnation)
{
    struct gms_core_suspect suspect;

    for (uint32_t place = 0; gms_core_look_suspect(c->cores[0], place, &suspect); place++)
        if (suspect.incarnation == incarnation)
            return suspect.verdict;
    return GMS_RECLAIM_ANSWER_COUNT;
}

static void test_pages_come_back_with_proof_on_all_ranks(void **state)
{
    struct cluster *c = new_reclaiming(3, false);
    uint64_t a = serve_next(c, 0, 11), b;

    (void)state;
    die(c, 0, a);
    b = serve_next(c, 1, 12);
    uint32_t before = in_quarantine(c, b);
    assert_true(before > 4); /* more than one step */
    assert_int_equal(state_of(c), GMS_RECLAIM_PROVING);
    cluster_memory_quiet(c, 0, a);
    cluster_memory_quiet(c, 1, a);
    cluster_settle(c);
    assert_int_equal(in_quarantine(c, b), before);
    cluster_memory_quiet(c, 2, a);
    cluster_settle(c);
    assert_sound(c);
    assert_int_equal(in_quarantine(c, b), 0);
    assert_int_equal(state_of(c), GMS_RECLAIM_RESTING);
    assert_int_equal(c->memory->granted, 3 * before); /* every rank's engine is told of each */
    assert_int_equal(c->memory->ended[GMS_RECLAIM_QUIET], 3);
    assert_int_equal(verdict_of(c, a), GMS_RECLAIM_ANSWER_COUNT);
    assert_agreed(c);

    uint64_t rounds = c->rounds; /* and then it is idle */
    cluster_advance(c, 3600 * 1000 * MS);
    assert_int_equal(c->rounds, rounds);
    cluster_free(c);
}

/* Idle is idle also while somebody is waited for: no round, no question is repeated by the core. */
static void test_waiting_for_a_proof_costs_no_rounds(void **state)
{
    struct cluster *c = new_reclaiming(2, false);
    uint64_t a = serve_next(c, 0, 11);

    (void)state;
    die(c, 0, a);
    serve_next(c, 1, 12);
    uint64_t rounds = c->rounds, steps = c->steps;
    cluster_advance(c, 3600 * 1000 * MS);
    assert_int_equal(c->rounds, rounds);
    assert_int_equal(c->steps, steps);
    assert_int_equal(gms_core_deadline(c->cores[0]), UINT64_MAX);
    cluster_free(c);
}

/* B dies while A's pages are stamped and not freed. Its own leases are suspected of B, A's pages of A still. */
static void successor_dies_between_the_phases(bool inherits)
{
    struct cluster *c = new_reclaiming(2, inherits);
    uint64_t a = serve_next(c, 0, 11), b, x;

    die(c, 0, a);
    b = serve_next(c, 1, 12);
    assert_int_equal(state_of(c), GMS_RECLAIM_PROVING);
    uint32_t stamped = 0;
    for (uint32_t page = 0; page < MEMORY_PAGES; page++)
        stamped += c->memory->stamps[0][page] == b;
    assert_int_equal(stamped, in_quarantine(c, b));
    die(c, 1, b);
    x = serve_next(c, 0, 13);
    assert_int_equal(state_of(c), GMS_RECLAIM_PROVING);

    uint32_t inherited = 0;
    for (uint32_t page = 0; page < MEMORY_PAGES; page++)
        inherited += c->memory->stamps[0][page] == b;
    assert_int_equal(inherited, inherits ? stamped : 0);
    uint32_t all = in_quarantine(c, x);
    quiet(c, a);
    assert_true(in_quarantine(c, x) < all); /* what only A was suspected of */
    assert_true(in_quarantine(c, x) > 0);
    assert_int_equal(state_of(c), GMS_RECLAIM_PROVING);
    quiet(c, b);
    assert_int_equal(in_quarantine(c, x), 0);
    assert_int_equal(state_of(c), GMS_RECLAIM_RESTING);
    assert_int_equal(c->memory->ended[inherits ? GMS_RECLAIM_BEST_EFFORT : GMS_RECLAIM_QUIET], 4);
    cluster_free(c);
}

static void test_stamps_are_not_inherited_with_proof(void **state)
{
    (void)state;
    successor_dies_between_the_phases(false);
}

static void test_stamps_are_inherited_by_policy(void **state)
{
    (void)state;
    successor_dies_between_the_phases(true);
}

/* A proof that was asked for before B died is asked for again. */
static void test_an_old_answer_is_no_answer(void **state)
{
    struct cluster *c = new_reclaiming(2, false);
    uint64_t a = serve_next(c, 0, 11), b;
    struct gms_core_reclaim_view before;
    struct gms_event event = {.type = GMS_EVENT_RECLAIM_ANSWER};

    (void)state;
    die(c, 0, a);
    b = serve_next(c, 1, 12);
    gms_core_look_reclaim(c->cores[0], &before);
    die(c, 1, b);
    serve_next(c, 0, 13);
    event.reclaim.step = before.step;
    event.reclaim.suspect = a;
    event.reclaim.answer = GMS_RECLAIM_QUIET;
    for (uint32_t r = 0; r < 2; r++)
        cluster_step(c, r, &event);
    cluster_settle(c);
    assert_sound(c);
    assert_int_equal(state_of(c), GMS_RECLAIM_PROVING);
    cluster_free(c);
}

static void answer_quiet(struct cluster *c, uint32_t rank, uint64_t suspect)
{
    struct gms_core_reclaim_view view;
    struct gms_event event = {.type = GMS_EVENT_RECLAIM_ANSWER};

    gms_core_look_reclaim(c->cores[rank], &view);
    event.reclaim.step = view.step;
    event.reclaim.suspect = suspect;
    event.reclaim.answer = GMS_RECLAIM_QUIET;
    cluster_step(c, rank, &event);
    cluster_settle(c);
    assert_sound(c);
}

/* What rank 0 was answered under B does not count under X: both ranks ask again. */
static void test_an_answer_dies_with_the_owner_that_asked(void **state)
{
    struct cluster *c = new_reclaiming(2, false);
    uint64_t a = serve_next(c, 0, 11), b;

    (void)state;
    c->memory->proof_is_trusted = true; /* the truth is not what is looked at here */
    die(c, 0, a);
    b = serve_next(c, 1, 12);
    answer_quiet(c, 0, a);
    die(c, 1, b);
    serve_next(c, 0, 13);
    answer_quiet(c, 1, a);
    assert_int_equal(state_of(c), GMS_RECLAIM_PROVING);
    assert_int_equal(verdict_of(c, a), GMS_RECLAIM_NOT_YET);
    answer_quiet(c, 0, a);
    assert_int_equal(verdict_of(c, a), GMS_RECLAIM_ANSWER_COUNT);
    cluster_free(c);
}

/* A page that is suspected of two comes back when both are quiet; the first one's end is carried out on all ranks
 * before its place may be given to another. */
static void test_a_page_with_two_suspects(void **state)
{
    struct cluster *c = new_reclaiming(2, false);
    uint64_t a = serve_next(c, 0, 11), b, x;
    uint32_t page = 0;

    (void)state;
    die(c, 0, a);
    b = serve_next(c, 1, 12);
    die(c, 1, b);
    x = serve_next(c, 0, 13);
    while (c->memory->words[x][0][page] != MEMORY_QUARANTINED)
        page++;
    c->memory->suspects[0][page] = c->memory->suspects[1][page] = 3;
    c->held[1] = 1u << CLUSTER_STORE;
    for (uint32_t r = 0; r < 2; r++)
        cluster_memory_quiet(c, r, a);
    for (uint32_t turns = 0; turns < 200 && verdict_of(c, a) != GMS_RECLAIM_ANSWER_COUNT; turns++) {
        cluster_settle(c); /* rank 1's store is always the last to answer */
        for (uint32_t i = 0; i < c->item_count; i++)
            if (c->items[i].kind == CLUSTER_STORE) {
                cluster_deliver(c, i);
                break;
            }
    }
    c->held[1] = 0;
    cluster_settle(c);
    assert_sound(c);
    assert_int_equal(c->memory->words[x][0][page], MEMORY_QUARANTINED);
    assert_int_equal(c->memory->suspects[0][page], 2);
    assert_int_equal(c->memory->suspects[1][page], 2);
    quiet(c, b);
    assert_int_equal(in_quarantine(c, x), 0);
    cluster_free(c);
}

static void test_who_cannot_be_known_stays_and_the_others_come_back(void **state)
{
    struct cluster *c = new_reclaiming(2, false);
    uint64_t a = serve_next(c, 0, 11), b, x;

    (void)state;
    die(c, 0, a);
    b = serve_next(c, 1, 12);
    cluster_memory_unknowable(c, 1, a);
    cluster_settle(c);
    assert_sound(c);
    assert_int_equal(verdict_of(c, a), GMS_RECLAIM_CANNOT_KNOW);
    assert_int_equal(state_of(c), GMS_RECLAIM_RESTING); /* nobody is asked any more */
    assert_int_equal(c->memory->ended[GMS_RECLAIM_CANNOT_KNOW], 2);
    uint32_t lost = in_quarantine(c, b);
    die(c, 1, b);
    x = serve_next(c, 0, 13);
    assert_true(in_quarantine(c, x) > lost);
    quiet(c, b);
    assert_int_equal(in_quarantine(c, x), lost);
    cluster_bounce(c, NULL); /* and the next world knows it */
    assert_sound(c);
    assert_int_equal(verdict_of(c, a), GMS_RECLAIM_CANNOT_KNOW);
    assert_int_equal(in_quarantine(c, x), lost);
    cluster_free(c);
}

/* All coordinators die after any number of steps of a pass, with any of the stores behind. */
static void test_coordinators_die_at_every_point(void **state)
{
    (void)state;
    for (uint32_t point = 0; point < 400; point++) {
        struct cluster *c = new_reclaiming(2, false);
        uint64_t a = serve_next(c, 0, 11), b;
        uint32_t survivors[CLUSTER_RANKS] = {point % 3, point / 3 % 3};

        die(c, 0, a);
        b = serve_next(c, 1, 12);
        assert_true(in_quarantine(c, b) > 0);
        for (uint32_t r = 0; r < c->ranks; r++)
            cluster_memory_quiet(c, r, a);
        uint32_t delivered = 0;
        while (delivered < point && c->item_count) {
            cluster_deliver(c, delivered % 2 ? c->item_count - 1 : 0);
            delivered++;
        }
        bool over = c->item_count == 0;
        cluster_bounce(c, survivors);
        if (c->fault[0])
            fail_msg("died after %u: %s", point, c->fault);
        assert_int_equal(in_quarantine(c, b), 0);
        assert_int_equal(state_of(c), GMS_RECLAIM_RESTING);
        cluster_free(c);
        if (over)
            return;
    }
    fail_msg("the pass never ended");
}

/* More dead writers that nobody can prove quiet than there are places: the last ones share one, for good. */
static void test_a_crowd_of_suspects(void **state)
{
    struct cluster *c = new_reclaiming(2, false);
    uint64_t launch = 100, incarnation = 0;

    (void)state;
    for (uint32_t i = 0; i < GMS_RECLAIM_SUSPECTS + 3; i++) {
        incarnation = serve_next(c, i % 2, launch++);
        die(c, i % 2, incarnation);
        assert_sound(c);
    }
    uint64_t last = serve_next(c, 1, launch);
    for (uint32_t r = 0; r < 2; r++)
        for (uint64_t i = 1; i < last; i++)
            cluster_memory_quiet(c, r, i);
    cluster_settle(c);
    assert_sound(c);
    struct gms_core_suspect suspect;
    assert_true(gms_core_look_suspect(c->cores[0], GMS_RECLAIM_CROWD, &suspect));
    assert_true(suspect.incarnation == UINT64_MAX);
    assert_false(gms_core_look_suspect(c->cores[0], 0, &suspect));
    for (uint32_t page = 0; page < MEMORY_PAGES; page++) {
        bool crowd = ((c->memory->suspects[0][page] | c->memory->suspects[1][page]) >> GMS_RECLAIM_CROWD & 1) != 0;
        assert_int_equal(c->memory->words[last][0][page] == MEMORY_QUARANTINED, crowd);
    }
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_come_back_with_proof_on_all_ranks),
        cmocka_unit_test(test_waiting_for_a_proof_costs_no_rounds),
        cmocka_unit_test(test_stamps_are_not_inherited_with_proof),
        cmocka_unit_test(test_stamps_are_inherited_by_policy),
        cmocka_unit_test(test_an_old_answer_is_no_answer),
        cmocka_unit_test(test_an_answer_dies_with_the_owner_that_asked),
        cmocka_unit_test(test_a_page_with_two_suspects),
        cmocka_unit_test(test_who_cannot_be_known_stays_and_the_others_come_back),
        cmocka_unit_test(test_coordinators_die_at_every_point),
        cmocka_unit_test(test_a_crowd_of_suspects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
