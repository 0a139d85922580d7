/* SPDX-License-Identifier: Apache-2.0
 *
 * When the other side does not behave: condemnation, silence, a lost coordinator; and transfers.
 */
#include "libgms_support.h"

static void condemn(struct libgms_fixture *f, uint64_t incarnation)
{
    static const char text[] = "rank 1 is gone";
    const struct gms_message message = {
        .type = GMS_MESSAGE_CONDEMNED,
        .condemned = {.incarnation = incarnation, .epoch = 9, .text = {text, sizeof text - 1}}};
    fake_send(&f->fake, incarnation, &message);
}

/* An engine with a loop of its own learns it by the event descriptor, and then nothing works any more. */
static void test_condemned_engine_is_stopped(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine engine = serving_engine(f, 0);
    const uint64_t generation = seal_slot(&engine, 0);
    condemn(f, engine.member.incarnation);
    struct pollfd entry = {.fd = gms_event_fd(engine.session), .events = POLLIN};
    assert_int_equal(poll(&entry, 1, UNIT_PATIENCE_MS), 1);
    assert_status(gms_wait_promotion(engine.session, 0, &engine.promotion, &error), GMS_E_CONDEMNED);
    assert_text_has("rank 1 is gone");
    uint64_t other = 0;
    struct gms_block found, block = block_of_slot(engine.kv, 0, generation);
    assert_int_equal(gms_slot_acquire(engine.kv, 1, &other), GMS_E_CONDEMNED);
    assert_int_equal(gms_block_seal(engine.session, &block, 0), GMS_E_CONDEMNED);
    assert_int_equal(gms_lookup(engine.session, block.hash, &found), GMS_E_CONDEMNED);
    assert_int_equal(gms_slot_release(engine.kv, 0, generation, 0), GMS_OK);
    assert_status(gms_adopt(engine.session, &engine.adoption, &error), GMS_E_CONDEMNED);
    assert_status(gms_wake(engine.session, &error), GMS_E_CONDEMNED);
    assert_status(gms_serve(engine.session, NULL, &error), GMS_E_CONDEMNED);
    assert_status(gms_park(engine.session, &error), GMS_E_CONDEMNED);
    assert_status(gms_pool_release(engine.state, &error), GMS_E_CONDEMNED);
    assert_status(gms_transfer_dispatch(engine.session, 1, 1, &error), GMS_E_CONDEMNED);
    assert_true(gms_status_is_fatal_to_engine(error.status));
    gms_close(engine.session);
}

static void test_condemned_while_waiting(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_classification counts;
    struct engine shadow = park_engine(f, 0);
    fake_promote(&f->fake, 0, 1, false, &counts);
    assert_ok(gms_wait_promotion(shadow.session, UNIT_PATIENCE_MS, &shadow.promotion, &error));
    FAKE_SET(f->fake.condemn_next = true);
    assert_status(gms_adopt(shadow.session, &shadow.adoption, &error), GMS_E_CONDEMNED);
    uint64_t generation;
    assert_int_equal(gms_slot_acquire(shadow.kv, 0, &generation), GMS_E_CONDEMNED);
    gms_close(shadow.session);
}

static void test_anothers_condemnation_is_not_ours(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine engine = serving_engine(f, 0);
    const struct gms_message message = {.type = GMS_MESSAGE_CONDEMNED,
                                        .condemned = {.incarnation = engine.member.incarnation + 1, .epoch = 9}};
    fake_send(&f->fake, engine.member.incarnation, &message);
    assert_ok(gms_wait_promotion(engine.session, 0, &engine.promotion, &error));
    assert_ok(gms_wake(engine.session, &error));
    gms_close(engine.session);
}

static void test_promotion_of_an_older_epoch_is_ignored(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_classification counts;
    struct engine shadow = park_engine(f, 0);
    FAKE_SET(f->fake.epoch = 10);
    fake_promote(&f->fake, 0, 1, false, &counts);
    const struct gms_message late = {.type = GMS_MESSAGE_PROMOTE,
                                     .promote = {.incarnation = 1, .epoch = 7, .source = 55}};
    fake_send(&f->fake, 1, &late);
    assert_ok(gms_wait_promotion(shadow.session, UNIT_PATIENCE_MS, &shadow.promotion, &error));
    assert_int_equal(shadow.promotion.epoch, 11);
    assert_int_equal(shadow.promotion.source_incarnation, 0);
    gms_close(shadow.session);
}

static void test_lost_coordinator_stops_control_not_tokens(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    FAKE_SET(f->fake.operation_timeout_ms = 50);
    struct engine engine = serving_engine(f, 0);
    FAKE_SET(f->fake.away = true);
    FAKE_SET(f->fake.hang_up_next = true);
    assert_status(gms_pool_release(engine.state, &error), GMS_E_AGAIN);
    assert_text_has("tokens may go on");
    assert_status(gms_pool_release(engine.state, &error), GMS_E_AGAIN);
    assert_ok(gms_wait_promotion(engine.session, 0, &engine.promotion, &error)); /* it has that already */
    assert_ok(gms_wake(engine.session, &error));
    const uint64_t generation = seal_slot(&engine, 7);
    assert_int_equal(gms_slot_release(engine.kv, 7, generation, 0), GMS_OK);
    gms_progress(engine.session);
    FAKE_SET(f->fake.away = false);
    assert_ok(gms_pool_release(engine.state, &error));
    gms_close(engine.session);
}

/* A join that is asked again says in which world it was asked first: an answer may have been lost with that one. */
static void test_a_join_says_since_when_it_asks(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_membership member;
    gms_session *session = open_engine(f, 0);
    FAKE_SET(f->fake.hang_up_next = true);
    FAKE_SET(f->fake.world = 5); /* this session was greeted in world 1 */
    assert_ok(gms_join(session, &engine_identity, &member, &error));
    assert_int_equal(member.world, 5);
    assert_int_equal(FAKE_GET(f->fake.seen.since), 1);
    gms_close(session);

    session = open_engine(f, 0);
    FAKE_SET(f->fake.refuse = GMS_E_BUSY);
    FAKE_SET(f->fake.refuse_times = 1);
    assert_int_equal(gms_join(session, &engine_identity, &member, &error), GMS_E_BUSY);
    assert_int_equal(FAKE_GET(f->fake.seen.since), 5);
    FAKE_SET(f->fake.hang_up_next = true);
    FAKE_SET(f->fake.world = 6);
    assert_ok(gms_join(session, &engine_identity, &member, &error)); /* another call, the same launch */
    assert_int_equal(FAKE_GET(f->fake.seen.since), 5);
    gms_close(session);
}

/* The same question, under the same number, to the next one. */
static void test_a_call_outlives_its_coordinator(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_pool *pool = NULL;
    struct engine engine = join_engine(f, 0);
    FAKE_SET(f->fake.hang_up_next = true);
    assert_ok(gms_pool_attach(engine.session, &kv_description, &pool, &error));
    assert_int_equal(FAKE_GET(f->fake.seen.sequence), 1);
    assert_int_equal(FAKE_GET(f->fake.attached_again), 1);
    assert_false(FAKE_GET(f->fake.order_broken));
    assert_ok(gms_pool_attach(engine.session, &state_description, &pool, &error));
    assert_int_equal(FAKE_GET(f->fake.seen.sequence), 2);
    gms_close(engine.session);
}

/* The descriptor stays, and says when there is something to do; what it may have missed is said again. */
static void test_an_engine_with_a_loop_is_attached_again(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine engine = serving_engine(f, 0);
    const int fd = gms_event_fd(engine.session);
    FAKE_SET(fake_find(&f->fake, 1)->parked = false);
    FAKE_SET(fake_find(&f->fake, 1)->ready = false);
    FAKE_SET(f->fake.endpoint[0] = 'x');
    assert_ok(gms_transfer_dispatch(engine.session, 4, 3, &error));
    assert_ok(gms_transfer_end_part(engine.session, 4, 0, 0, &error));
    assert_ok(gms_transfer_end_part(engine.session, 4, 2, 1, &error));
    fake_hang_up(&f->fake, 1);
    for (unsigned turns = 0; FAKE_GET(f->fake.again_ended_mask) == 0; turns++) {
        struct pollfd news = {.fd = fd, .events = POLLIN};
        assert_true(turns < 200); /* it does not spin either */
        assert_int_equal(poll(&news, 1, UNIT_PATIENCE_MS), 1);
        assert_ok(gms_wait_promotion(engine.session, 0, &engine.promotion, &error));
    }
    assert_int_equal(gms_event_fd(engine.session), fd);
    assert_int_equal(FAKE_GET(f->fake.attached_again), 1);
    assert_true(FAKE_GET(fake_find(&f->fake, 1)->parked));
    assert_true(FAKE_GET(fake_find(&f->fake, 1)->ready));
    assert_int_equal(FAKE_GET(f->fake.endpoint[0]), 'u');
    assert_int_equal(FAKE_GET(f->fake.again_ended_mask), 5);
    assert_int_equal(FAKE_GET(f->fake.again_failed_mask), 4);
    gms_close(engine.session);
}

static void test_promotion_comes_from_the_next_coordinator(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_classification counts;
    struct engine shadow = park_engine(f, 0);
    FAKE_SET(f->fake.away = true);
    fake_hang_up(&f->fake, 1);
    assert_status(gms_wait_promotion(shadow.session, 50, &shadow.promotion, &error), GMS_E_DISCONNECTED);
    FAKE_SET(f->fake.away = false);
    gms_status status = GMS_E_DISCONNECTED;
    for (uint64_t begin_ns = gms_clock_ns();
         status == GMS_E_DISCONNECTED && gms_clock_ns() - begin_ns < UNIT_PATIENCE_MS * GMS_NS_PER_MS;)
        status = gms_wait_promotion(shadow.session, 50, &shadow.promotion, &error);
    assert_int_equal(status, GMS_E_TIMEOUT); /* it is back, and has not promoted anybody */
    assert_int_equal(FAKE_GET(f->fake.attached_again), 1);
    fake_promote(&f->fake, 0, 1, false, &counts);
    assert_ok(gms_wait_promotion(shadow.session, -1, &shadow.promotion, &error));
    gms_close(shadow.session);
}

/* A group that went on without it. */
static void test_an_engine_that_is_not_known_any_more_ends(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine engine = serving_engine(f, 0);
    FAKE_SET(f->fake.forgotten = true);
    fake_hang_up(&f->fake, 1);
    assert_status(gms_pool_release(engine.state, &error), GMS_E_CONDEMNED);
    assert_text_has("not a member any more");
    uint64_t generation = 0;
    assert_int_equal(gms_slot_acquire(engine.kv, 1, &generation), GMS_E_CONDEMNED);
    gms_close(engine.session);
}

/* Its answer is lost: the same call asks again under the same number and learns the outcome. */
static void test_silence_is_bounded_and_can_be_repeated(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_pool *pool = NULL;
    FAKE_SET(f->fake.operation_timeout_ms = 50);
    struct engine engine = join_engine(f, 0);
    FAKE_SET(f->fake.silent = true);
    const uint64_t start = gms_clock_ns();
    assert_status(gms_pool_attach(engine.session, &kv_description, &pool, &error), GMS_E_TIMEOUT);
    const uint64_t took = gms_clock_ns() - start;
    assert_true(took >= GMS_NS_PER_S && took < 10 * GMS_NS_PER_S);
    assert_int_equal(FAKE_GET(f->fake.seen.sequence), 1);
    FAKE_SET(f->fake.silent = false);
    assert_ok(gms_pool_attach(engine.session, &kv_description, &pool, &error));
    assert_int_equal(FAKE_GET(f->fake.seen.sequence), 1);
    assert_ok(gms_pool_attach(engine.session, &state_description, &pool, &error));
    assert_int_equal(FAKE_GET(f->fake.seen.sequence), 2);
    gms_close(engine.session);
}

static void test_serve_waits_for_all_ranks(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    FAKE_SET(f->fake.operation_timeout_ms = 50);
    struct engine engine = park_engine(f, 0);
    adopt_engine(f, &engine, 0, false);
    FAKE_SET(f->fake.deaf_to_ready = true);
    assert_status(gms_serve(engine.session, "unix:/e", &error), GMS_E_TIMEOUT);
    const struct gms_message serving = {.type = GMS_MESSAGE_SERVING, .promote = {.incarnation = 1, .epoch = 2}};
    fake_send(&f->fake, 1, &serving);
    assert_ok(gms_serve(engine.session, "unix:/e", &error));
    char endpoint[300];
    memset(endpoint, 'e', sizeof endpoint - 1);
    endpoint[sizeof endpoint - 1] = '\0';
    assert_status(gms_serve(engine.session, endpoint, &error), GMS_E_INVALID);
    gms_close(engine.session);
}

/* ----------------------------------------------------------------------------------------------- transfers --- */

static void test_transfer_ends_when_all_have_ended(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_transfer_result result;
    struct engine engine = serving_engine(f, 0);
    assert_status(gms_transfer_dispatch(engine.session, 0, 1, &error), GMS_E_INVALID);
    assert_status(gms_transfer_dispatch(engine.session, 5, 0, &error), GMS_E_INVALID);
    assert_int_equal(gms_transfer_dispatch(engine.session, 666, 1, &error), GMS_E_BUSY);
    assert_ok(gms_transfer_dispatch(engine.session, 5, 2, &error));
    assert_ok(gms_transfer_end_part(engine.session, 5, 0, 0, &error));
    assert_status(gms_transfer_wait(engine.session, 5, 20, &result, &error), GMS_E_TIMEOUT);
    assert_text_has("goes on");
    assert_ok(gms_transfer_end_part(engine.session, 5, 1, 1, &error));
    assert_int_equal(FAKE_GET(f->fake.transfer_messages), 4);
    fake_end_transfer(&f->fake, 1, 5, 3, 1, 2);
    assert_ok(gms_transfer_wait(engine.session, 5, UNIT_PATIENCE_MS, &result, &error));
    assert_int_equal(result.finished_ranks, 3);
    assert_int_equal(result.failed_ranks, 1);
    assert_int_equal(result.first_failed_rank, 2);
    assert_int_equal(result.failed_bitmap[0], 1 << 2);
    gms_close(engine.session);
}

/* The end is told while something else is asked: kept until it is waited for, then used up. */
static void test_transfer_result_is_kept(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_transfer_result result;
    struct engine engine = serving_engine(f, 0);
    assert_ok(gms_transfer_dispatch(engine.session, 1, 1, &error));
    assert_ok(gms_transfer_dispatch(engine.session, 2, 1, &error));
    fake_end_transfer(&f->fake, 1, 2, 1, 0, -1);
    fake_end_transfer(&f->fake, 1, 1, 1, 0, -1);
    assert_ok(gms_transfer_end_part(engine.session, 1, 0, 0, &error));
    assert_ok(gms_transfer_wait(engine.session, 1, 0, &result, &error));
    assert_int_equal(result.first_failed_rank, -1);
    assert_ok(gms_transfer_wait(engine.session, 2, 0, &result, &error));
    assert_status(gms_transfer_wait(engine.session, 2, 0, &result, &error), GMS_E_TIMEOUT);
    fake_end_transfer(&f->fake, 1, 2, 1, 0, -1);
    assert_ok(gms_transfer_dispatch(engine.session, 2, 1, &error)); /* the number again: not the old result */
    assert_status(gms_transfer_wait(engine.session, 2, 0, &result, &error), GMS_E_TIMEOUT);
    gms_close(engine.session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, libgms_setup, libgms_teardown)
        T(test_condemned_engine_is_stopped),
        T(test_condemned_while_waiting),
        T(test_anothers_condemnation_is_not_ours),
        T(test_promotion_of_an_older_epoch_is_ignored),
        T(test_lost_coordinator_stops_control_not_tokens),
        T(test_a_call_outlives_its_coordinator),
        T(test_an_engine_with_a_loop_is_attached_again),
        T(test_a_join_says_since_when_it_asks),
        T(test_promotion_comes_from_the_next_coordinator),
        T(test_an_engine_that_is_not_known_any_more_ends),
        T(test_silence_is_bounded_and_can_be_repeated),
        T(test_serve_waits_for_all_ranks),
        T(test_transfer_ends_when_all_have_ended),
        T(test_transfer_result_is_kept),
#undef T
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
