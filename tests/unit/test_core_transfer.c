/* SPDX-License-Identifier: Apache-2.0
 * Transfers: every vote is kept, nothing ends early, slow is not failed, a stall is named while the group is idle. */
#include "core_support.h"

static void dispatch(struct cluster *c, uint32_t rank, uint64_t incarnation, uint64_t id, uint32_t part_count)
{
    struct gms_event event = {.type = GMS_EVENT_TRANSFER_DISPATCH};

    event.transfer_dispatch.engine = 0;
    event.transfer_dispatch.incarnation = incarnation;
    event.transfer_dispatch.session = 5;
    event.transfer_dispatch.id = id;
    event.transfer_dispatch.part_count = part_count;
    cluster_step(c, rank, &event);
}

static void end_part(struct cluster *c, uint32_t rank, uint64_t incarnation, uint64_t id, uint32_t part, bool failed)
{
    struct gms_event event = {.type = GMS_EVENT_TRANSFER_END_PART};

    event.transfer_end.engine = 0;
    event.transfer_end.incarnation = incarnation;
    event.transfer_end.session = 5;
    event.transfer_end.id = id;
    event.transfer_end.part = part;
    event.transfer_end.failed = failed;
    cluster_step(c, rank, &event);
}

static void wait_for(struct cluster *c, uint32_t rank, uint64_t incarnation, uint64_t id, uint64_t session)
{
    struct gms_event event = {.type = GMS_EVENT_TRANSFER_WAIT};

    event.transfer_wait.engine = 0;
    event.transfer_wait.incarnation = incarnation;
    event.transfer_wait.session = session;
    event.transfer_wait.id = id;
    cluster_step(c, rank, &event);
}

static gms_status last_answer(struct cluster *c, uint32_t rank)
{
    const struct gms_action *action = cluster_last(c, rank, GMS_ACTION_TRANSFER_ANSWER);

    assert_non_null(action);
    return action->transfer.status;
}

static struct cluster *joined(uint32_t ranks)
{
    struct cluster *c = new_cluster(ranks);

    join(c, 0, 11);
    cluster_forget_trace(c);
    return c;
}

/* Rank 2 fails its pages, the others finish theirs, the recurrent state (part 1) ends later. */
static void test_pages_fail_on_one_rank_and_state_ends_later(void **state)
{
    struct cluster *c = joined(4);

    (void)state;
    for (uint32_t r = 0; r < 4; r++) {
        dispatch(c, r, 1, 7, 2);
        wait_for(c, r, 1, 7, 50 + r);
    }
    for (uint32_t r = 0; r < 4; r++)
        end_part(c, r, 1, 7, 0, r == 2);
    cluster_settle(c);
    cluster_advance(c, 3600 * 1000 * MS); /* slow is not failed */
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_TRANSFER_DONE), 0);
    for (uint32_t r = 0; r < 3; r++)
        end_part(c, r, 1, 7, 1, false);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_TRANSFER_DONE), 0); /* nothing released early */

    struct gms_core_transfer_view view;
    assert_true(gms_core_look_transfer(c->cores[3], 0, &view));
    assert_int_equal(view.finished, 2);
    assert_int_equal(view.failed, 1);
    assert_false(gms_core_look_transfer(c->cores[3], 1, &view));

    end_part(c, 3, 1, 7, 1, false);
    cluster_settle(c);
    assert_sound(c);
    for (uint32_t r = 0; r < 4; r++) {
        assert_int_equal(cluster_count(c, r, GMS_ACTION_TRANSFER_DONE), 1);
        const struct gms_action *done = cluster_last(c, r, GMS_ACTION_TRANSFER_DONE);
        assert_int_equal(done->transfer.session, 50 + r);
        assert_int_equal(done->transfer.status, GMS_OK);
        assert_int_equal(done->transfer.finished, 3);
        assert_int_equal(done->transfer.failed, 1);
        assert_int_equal(done->transfer.first_failed, 2);
        assert_int_equal(done->transfer.failed_bitmap[0], 1 << 2);
    }
    /* Afterwards too. */
    wait_for(c, 1, 1, 7, 99);
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_TRANSFER_DONE)->transfer.session, 99);
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_TRANSFER_DONE)->transfer.failed, 1);
    assert_false(gms_core_look_transfer(c->cores[3], 0, &view));
    assert_agreed(c);
    cluster_free(c);
}

/* A dispatched transfer that nobody reports is named while nothing else happens: by its own deadline alone. */
static void test_unreported_is_named_while_idle(void **state)
{
    struct cluster *c = joined(3);
    uint64_t round;

    (void)state;
    for (uint32_t r = 0; r < 3; r++)
        dispatch(c, r, 1, 0, 2); /* id 0 is an id */
    end_part(c, 1, 1, 0, 0, false);
    end_part(c, 0, 1, 0, 0, false);
    end_part(c, 0, 1, 0, 1, false);
    cluster_settle(c);
    round = cluster_look(c, 0).next_round;
    cluster_forget_trace(c);
    assert_int_equal(gms_core_deadline(c->cores[1]), c->now_ns + 1000 * MS);
    cluster_advance(c, 999 * MS);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_TRANSFER_STALLED), 0);
    cluster_advance(c, 1 * MS);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_TRANSFER_STALLED), 3);
    assert_non_null(strstr(cluster_last(c, 0, GMS_ACTION_TRANSFER_STALLED)->transfer.text,
                           "transfer 0 of incarnation 1, dispatched 1000 ms ago: rank 1 has not voted yet"));
    assert_non_null(
        strstr(cluster_last(c, 1, GMS_ACTION_TRANSFER_STALLED)->transfer.text, "rank 1 has not ended part 1 of 2"));
    assert_non_null(
        strstr(cluster_last(c, 2, GMS_ACTION_TRANSFER_STALLED)->transfer.text, "rank 2 has not ended part 0 of 2"));

    /* Again, ever more rarely: after 2 s, then 4 s. */
    cluster_advance(c, 1999 * MS);
    assert_int_equal(cluster_count(c, 2, GMS_ACTION_TRANSFER_STALLED), 1);
    cluster_advance(c, 1 * MS);
    assert_int_equal(cluster_count(c, 2, GMS_ACTION_TRANSFER_STALLED), 2);
    cluster_advance(c, 3999 * MS);
    assert_int_equal(cluster_count(c, 2, GMS_ACTION_TRANSFER_STALLED), 2);
    cluster_advance(c, 1 * MS);
    assert_int_equal(cluster_count(c, 2, GMS_ACTION_TRANSFER_STALLED), 3);
    assert_int_equal(cluster_look(c, 0).next_round, round); /* no round was needed */
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_TRANSFER_DONE), 0);

    /* News: the wait for a stall starts anew. */
    end_part(c, 1, 1, 0, 1, false);
    cluster_settle(c);
    assert_int_equal(gms_core_deadline(c->cores[0]), c->now_ns + 1000 * MS);
    cluster_advance(c, 1000 * MS);
    assert_non_null(strstr(cluster_last(c, 0, GMS_ACTION_TRANSFER_STALLED)->transfer.text, "rank 2 has not voted yet"));
    assert_sound(c);
    cluster_free(c);
}

static void test_wrong_calls(void **state)
{
    struct cluster *c = joined(2);

    (void)state;
    dispatch(c, 0, 1, 3, 0);
    assert_int_equal(last_answer(c, 0), GMS_E_INVALID);
    dispatch(c, 0, 1, 3, 33);
    assert_int_equal(last_answer(c, 0), GMS_E_INVALID);
    dispatch(c, 0, 2, 3, 1);
    assert_int_equal(last_answer(c, 0), GMS_E_STALE);
    dispatch(c, 0, 0, 3, 1);
    assert_int_equal(last_answer(c, 0), GMS_E_STALE);
    end_part(c, 0, 1, 3, 0, false);
    assert_int_equal(last_answer(c, 0), GMS_E_NOT_FOUND);
    wait_for(c, 0, 1, 3, 9);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_TRANSFER_DONE)->transfer.status, GMS_E_NOT_FOUND);
    dispatch(c, 0, 1, 3, 32);
    assert_int_equal(last_answer(c, 0), GMS_OK);
    dispatch(c, 0, 1, 3, 32);
    assert_int_equal(last_answer(c, 0), GMS_E_EXISTS);
    end_part(c, 0, 1, 3, 32, false);
    assert_int_equal(last_answer(c, 0), GMS_E_INVALID);
    end_part(c, 0, 1, 3, 31, true);
    assert_int_equal(last_answer(c, 0), GMS_OK);
    end_part(c, 0, 1, 3, 31, true);
    assert_int_equal(last_answer(c, 0), GMS_OK);
    end_part(c, 0, 1, 3, 31, false);
    assert_int_equal(last_answer(c, 0), GMS_E_REFUSED);
    cluster_settle(c);
    assert_sound(c);
    cluster_free(c);
}

/* More than a ballot carries at once, more than the group tracks at once. */
static void test_many(void **state)
{
    struct cluster *c = joined(3);

    (void)state;
    for (uint32_t r = 0; r < 3; r++) {
        for (uint32_t id = 0; id < GMS_CORE_MAX_TRANSFERS; id++)
            dispatch(c, r, 1, r == 1 ? GMS_CORE_MAX_TRANSFERS - 1 - id : id, 1);
        dispatch(c, r, 1, 1000, 1);
        assert_int_equal(last_answer(c, r), GMS_E_BUSY);
        for (uint32_t id = 0; id < GMS_CORE_MAX_TRANSFERS; id++)
            wait_for(c, r, 1, id, 5);
    }
    cluster_settle(c);
    for (uint32_t id = 0; id < GMS_CORE_MAX_TRANSFERS; id++)
        for (uint32_t r = 0; r < 3; r++)
            end_part(c, r, 1, (id * 7) % GMS_CORE_MAX_TRANSFERS, 0, r == id % 3);
    cluster_settle(c);
    assert_sound(c);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(cluster_count(c, r, GMS_ACTION_TRANSFER_DONE), GMS_CORE_MAX_TRANSFERS);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_TRANSFER_DONE)->transfer.failed, 1);
    dispatch(c, 0, 1, 0, 1); /* an id may come again when it has ended */
    assert_int_equal(last_answer(c, 0), GMS_OK);
    cluster_free(c);
}

/* Ranks vote on different ones, more together than the group tracks: the group takes in what it can, loses no vote,
 * spins in no rounds, and takes the rest in when there is room. */
static void test_ranks_with_different_ones(void **state)
{
    struct cluster *c = joined(2);

    (void)state;
    for (uint32_t id = 0; id < GMS_CORE_MAX_TRANSFERS; id++) {
        dispatch(c, 0, 1, id, 1);
        dispatch(c, 1, 1, id + 40, 1);
    }
    for (uint32_t id = 0; id < GMS_CORE_MAX_TRANSFERS; id++) {
        end_part(c, 0, 1, id, 0, false);
        end_part(c, 1, 1, id + 40, 0, false);
    }
    cluster_settle(c);
    assert_sound(c); /* comes to rest */
    uint32_t done = cluster_count(c, 0, GMS_ACTION_TRANSFER_DONE);
    for (uint32_t id = 0; id < 40; id++) {
        dispatch(c, 1, 1, id, 1);
        assert_int_equal(last_answer(c, 1), GMS_OK);
        end_part(c, 1, 1, id, 0, false);
        cluster_settle(c);
    }
    for (uint32_t id = GMS_CORE_MAX_TRANSFERS; id < GMS_CORE_MAX_TRANSFERS + 40; id++) {
        dispatch(c, 0, 1, id, 1);
        assert_int_equal(last_answer(c, 0), GMS_OK);
        end_part(c, 0, 1, id, 0, false);
        cluster_settle(c);
    }
    assert_sound(c);
    assert_true(done < GMS_CORE_MAX_TRANSFERS + 40);
    struct gms_core_transfer_view view;
    assert_false(gms_core_look_transfer(c->cores[0], 0, &view));
    assert_false(gms_core_look_transfer(c->cores[1], 0, &view));
    assert_agreed(c);
    cluster_free(c);
}

static void test_condemned(void **state)
{
    struct cluster *c = joined(2);

    (void)state;
    for (uint32_t r = 0; r < 2; r++) {
        dispatch(c, r, 1, 4, 1);
        wait_for(c, r, 1, 4, 60 + r);
    }
    dispatch(c, 0, 1, 5, 1); /* nobody waits for this one */
    end_part(c, 0, 1, 4, 0, false);
    cluster_settle(c);
    c->held[0] = 1u << CLUSTER_STORE;
    cluster_fact(c, 1, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_TRANSFER_DONE), 0); /* "condemned" is not stored there yet */
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_TRANSFER_DONE)->transfer.status, GMS_E_CONDEMNED);
    c->held[0] = 0;
    cluster_settle(c);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_TRANSFER_DONE), 1);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_TRANSFER_DONE)->transfer.session, 60);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_TRANSFER_DONE)->transfer.status, GMS_E_CONDEMNED);
    struct gms_core_transfer_view view;
    assert_false(gms_core_look_transfer(c->cores[0], 0, &view));
    assert_int_equal(gms_core_deadline(c->cores[0]), UINT64_MAX);
    dispatch(c, 0, 1, 9, 1);
    assert_int_equal(last_answer(c, 0), GMS_E_STALE);
    assert_sound(c);
    cluster_free(c);
}

static void test_a_waiter_that_goes(void **state)
{
    struct cluster *c = joined(2);

    (void)state;
    for (uint32_t r = 0; r < 2; r++) {
        dispatch(c, r, 1, 4, 1);
        wait_for(c, r, 1, 4, 60);
    }
    cluster_session_gone(c, 0, 0, 60);
    for (uint32_t r = 0; r < 2; r++)
        end_part(c, r, 1, 4, 0, false);
    cluster_settle(c);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_TRANSFER_DONE)->transfer.session, 0);
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_TRANSFER_DONE)->transfer.session, 60);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_fail_on_one_rank_and_state_ends_later),
        cmocka_unit_test(test_unreported_is_named_while_idle),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_ranks_with_different_ones),
        cmocka_unit_test(test_condemned),
        cmocka_unit_test(test_a_waiter_that_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
