/* SPDX-License-Identifier: Apache-2.0
 *
 * gms_exchange over real coordinators: what rank 0 gives comes to every rank of the same incarnation, or to none, and
 * nobody waits for a rank that is gone.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "harness.h"

enum { AT_JOINED = 1, AT_ASKING, AT_DONE, GATE_ASK = 1, GATE_RANK_0, GATE_END, TIMES = 5 };

/* Of this rank of this incarnation in this call. */
static uint32_t give(uint64_t incarnation, uint32_t rank, uint32_t number, uint8_t ret_data[GMS_EXCHANGE_BYTES])
{
    for (uint32_t i = 0; i < GMS_EXCHANGE_BYTES; i++)
        ret_data[i] = (uint8_t)(incarnation * 31 + rank * 7 + number * 3 + i);
    return number == 0 ? 0 : GMS_EXCHANGE_BYTES - number; /* nothing at all as well */
}

/* values: 0 how many came right, 1 incarnation, 2 status of the last, 3 ms that it took. argument: the ms that rank 0
 * is late by gates (1), else 0. */
static gms_status exchanges(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    struct gms_membership membership;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status != GMS_OK)
        return status;
    rank->values[1] = membership.incarnation;
    rank_at(rank, AT_JOINED);
    rank_gate(rank, rank->rank == 0 && rank->argument != 0 ? GATE_RANK_0 : GATE_ASK);
    rank_at(rank, AT_ASKING);
    for (uint32_t number = 0; number < TIMES; number++) {
        uint8_t own[GMS_EXCHANGE_BYTES], expected[GMS_EXCHANGE_BYTES], got[GMS_EXCHANGE_BYTES];
        uint32_t bytes = give(membership.incarnation, rank->rank, number, own), got_bytes = 0;
        const uint32_t expected_bytes = give(membership.incarnation, 0, number, expected);
        const uint64_t begun_ns = gms_clock_ns();
        status = gms_exchange(session, "id", number, own, bytes, got, &got_bytes, error);
        rank->values[2] = (uint64_t)status;
        rank->values[3] = (gms_clock_ns() - begun_ns) / GMS_NS_PER_MS;
        if (status != GMS_OK)
            return status;
        rank->values[0] += got_bytes == expected_bytes && memcmp(got, expected, got_bytes) == 0;
    }
    rank_at(rank, AT_DONE);
    rank_gate(rank, GATE_END);
    gms_close(session);
    return GMS_OK;
}

/* Two engines at the same time, all of whose ranks give different things. */
static void among(uint32_t ranks)
{
    const struct cluster_options options = {.ranks = ranks};
    struct cluster cluster;
    struct engine engines[2];
    cluster_start(&cluster, &options);
    for (uint32_t e = 0; e < 2; e++)
        engine_start(&engines[e], &cluster, e, e == 0 ? "first" : "second", exchanges, 0);
    for (uint32_t e = 0; e < 2; e++)
        assert_true(engine_reached(&engines[e], AT_JOINED, HARNESS_DEADLINE_MS));
    for (uint32_t e = 0; e < 2; e++)
        engine_go(&engines[e], GATE_ASK);
    for (uint32_t e = 0; e < 2; e++) {
        assert_true(engine_reached(&engines[e], AT_DONE, HARNESS_DEADLINE_MS));
        for (uint32_t r = 0; r < ranks; r++)
            assert_int_equal(engines[e].ranks[r].values[0], TIMES);
    }
    assert_int_not_equal(engines[0].ranks[0].values[1], engines[1].ranks[0].values[1]);
    for (uint32_t e = 0; e < 2; e++) {
        engine_go(&engines[e], GATE_END);
        engine_finish(&engines[e]);
    }
    cluster_stop(&cluster);
}

static void test_two_ranks(void **state)
{
    (void)state;
    among(2);
}

static void test_four_ranks(void **state)
{
    (void)state;
    among(4);
}

/* Rank 0 is killed while the others wait for it: they end at once, and the engine's next start is given nothing of what
 * the first had. */
static void test_rank_0_dies(void **state)
{
    const struct cluster_options options = {.ranks = 4, .operation_timeout = "60s"};
    struct cluster cluster;
    struct engine engine;
    (void)state;
    cluster_start(&cluster, &options);
    engine_start(&engine, &cluster, 0, "first", exchanges, 1);
    assert_true(engine_reached(&engine, AT_JOINED, HARNESS_DEADLINE_MS));
    const uint64_t first = engine.ranks[1].values[1];
    engine_go(&engine, GATE_ASK); /* rank 0 does not pass this one */
    for (uint32_t r = 1; r < 4; r++)
        while (atomic_load(&engine.ranks[r].at) < AT_ASKING)
            assert_true(engine_rank_alive(&engine, r));
    const uint64_t begun_ns = gms_clock_ns();
    engine_kill(&engine, 0);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    const uint64_t ms = (gms_clock_ns() - begun_ns) / GMS_NS_PER_MS;
    printf("rank 0 killed while three ranks waited: all ended after %llu ms\n", (unsigned long long)ms);
    assert_in_range(ms, 0, 5000); /* far below the operation's 60 s */
    engine_finish(&engine);

    engine_start(&engine, &cluster, 0, "again", exchanges, 0);
    assert_true(engine_reached(&engine, AT_JOINED, HARNESS_DEADLINE_MS));
    engine_go(&engine, GATE_ASK);
    assert_true(engine_reached(&engine, AT_DONE, HARNESS_DEADLINE_MS));
    for (uint32_t r = 0; r < 4; r++) {
        assert_int_equal(engine.ranks[r].values[0], TIMES);
        assert_true(engine.ranks[r].values[1] > first);
    }
    engine_go(&engine, GATE_END);
    engine_finish(&engine);
    cluster_stop(&cluster);
}

/* Rank 0 lives and does not come: the others are told when the operation's time is over, and by whom it failed. */
static void test_rank_0_does_not_come(void **state)
{
    const struct cluster_options options = {.ranks = 2, .operation_timeout = "500ms"};
    struct cluster cluster;
    struct engine engine;
    (void)state;
    cluster_start(&cluster, &options);
    engine_start(&engine, &cluster, 0, "first", exchanges, 1);
    assert_true(engine_reached(&engine, AT_JOINED, HARNESS_DEADLINE_MS));
    engine_go(&engine, GATE_ASK);
    while (engine_rank_alive(&engine, 1))
        ;
    assert_int_equal(engine.ranks[1].values[2], GMS_E_EXPIRED);
    assert_int_equal(engine.ranks[1].error_rank, 0);
    assert_non_null(strstr(engine.ranks[1].text, "rank 0 did not ask for it in time"));
    engine_finish(&engine);
    cluster_stop(&cluster);
}

/* The coordinators end and come back between the calls of the ranks: the call goes on in the next world. */
static void test_coordinators_are_started_again(void **state)
{
    const struct cluster_options options = {.ranks = 2, .operation_timeout = "20s"};
    struct cluster cluster;
    struct engine engine;
    (void)state;
    cluster_start(&cluster, &options);
    engine_start(&engine, &cluster, 0, "first", exchanges, 1);
    assert_true(engine_reached(&engine, AT_JOINED, HARNESS_DEADLINE_MS));
    engine_go(&engine, GATE_ASK);
    while (atomic_load(&engine.ranks[1].at) < AT_ASKING)
        assert_true(engine_rank_alive(&engine, 1));
    cluster_kill_coordinators(&cluster, 1);
    cluster_relaunch(&cluster, NULL);
    engine_go(&engine, GATE_RANK_0);
    assert_true(engine_reached(&engine, AT_DONE, HARNESS_DEADLINE_MS));
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(engine.ranks[r].values[0], TIMES);
    engine_go(&engine, GATE_END);
    engine_finish(&engine);
    cluster_stop(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_four_ranks),
        cmocka_unit_test(test_rank_0_dies),
        cmocka_unit_test(test_rank_0_does_not_come),
        cmocka_unit_test(test_coordinators_are_started_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
