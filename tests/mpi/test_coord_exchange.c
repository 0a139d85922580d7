/* SPDX-License-Identifier: Apache-2.0
 *
 * gms_exchange over real coordinators: what rank 0 gives comes to every rank of the same incarnation, or to none, and
 * nobody waits for a rank that is gone. Coordinators that die between two exchanges mix them nowhere.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <xxhash.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness.h"
#include "raw.h"

enum { AT_JOINED = 1, AT_ASKING, AT_TOLD, AT_AHEAD, AT_DONE, TIMES = 5 };
enum { GATE_ASK = 1, GATE_RANK_0, GATE_RANK_1, GATE_END };

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
        status = GMS_E_TIMEOUT;
        for (int tries = 0; tries < 10 && status == GMS_E_TIMEOUT; tries++) /* a busy machine: the call goes on */
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

/* ------------------------------------------------------------------------------- between two exchanges -------- */

static void set_exchange(struct gms_message *message, const struct raw *raw, uint32_t sequence, const char *gives)
{
    *message = (struct gms_message){.type = GMS_MESSAGE_PROPOSE};
    message->propose.kind = GMS_OPERATION_EXCHANGE;
    message->propose.incarnation = raw->incarnation;
    message->propose.sequence = sequence;
    message->propose.pool = (struct gms_bytes){"id", 2};
    message->propose.fields[0] = XXH3_64bits("id", 2);
    message->propose.payload = (struct gms_bytes){gives, (uint32_t)strlen(gives)};
}

static gms_status ask_exchange(struct raw *raw, uint32_t sequence, const char *gives, const char *expected,
                               struct gms_error *error)
{
    struct gms_message message;
    set_exchange(&message, raw, sequence, gives);
    RAW_EXPECT(raw_ask(raw, &message), GMS_OK);
    const struct gms_bytes *got = &raw->reply.reply.payload;
    if (got->length != strlen(expected) || memcmp(got->data, expected, got->length) != 0)
        return gms_fail(error, GMS_E_CORRUPT, "call %u: %.*s, not %s", sequence, (int)got->length,
                        (const char *)got->data, expected);
    return GMS_OK;
}

static gms_status greet(struct raw *raw, struct gms_error *error)
{
    int own = -1;
    gms_status status = gms_pidfd_open(getpid(), &own, error);
    if (status != GMS_OK)
        return status;
    RAW_EXPECT(raw_connect(raw, error), GMS_OK);
    status = raw_hello(raw, &own, 1);
    gms_fd_close(&own);
    RAW_EXPECT(status, GMS_OK);
    return GMS_OK;
}

/* Rank 0 is told the first exchange's end, rank 1's answer is lost. In the next world rank 0 asks for the second one
 * before rank 1 is back. */
static gms_status lose_an_answer(struct raw *raw, struct engine_rank *rank, struct gms_error *error)
{
    struct gms_message message;
    gms_status status = greet(raw, error);
    if (status != GMS_OK)
        return status;
    RAW_EXPECT(raw_propose(raw, GMS_OPERATION_JOIN, 0, 0, 0, 0), GMS_OK);
    raw->incarnation = raw->reply.reply.incarnation;
    if (raw->reply.reply.secret.length != sizeof raw->secret)
        return gms_fail(error, GMS_E_PROTOCOL, "no secret");
    memcpy(raw->secret, raw->reply.reply.secret.data, sizeof raw->secret);
    rank_at(rank, AT_JOINED);
    rank_gate(rank, GATE_ASK);
    set_exchange(&message, raw, 1, rank->rank == 0 ? "first" : "not looked at");
    if (rank->rank == 1)
        RAW_EXPECT(raw_send(raw, &message), GMS_OK);
    else
        status = ask_exchange(raw, 1, "first", "first", error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_TOLD);

    rank_gate(rank, rank->rank == 0 ? GATE_RANK_0 : GATE_RANK_1); /* in the next world */
    status = greet(raw, error);
    if (status != GMS_OK)
        return status;
    set_exchange(&message, raw, 2, "second");
    if (rank->rank == 0)
        RAW_EXPECT(raw_send(raw, &message), GMS_OK);
    rank_at(rank, AT_AHEAD);
    rank_gate(rank, GATE_RANK_1);
    if (rank->rank == 1)
        status = ask_exchange(raw, 1, "not looked at", "first", error);
    for (uint32_t number = 2; status == GMS_OK && number < 2 + TIMES; number++)
        status =
            ask_exchange(raw, number, number == 2 ? "second" : "another", number == 2 ? "second" : "another", error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_DONE);
    rank_gate(rank, GATE_END);
    return GMS_OK;
}

static gms_status losing(struct engine_rank *rank, struct gms_error *error)
{
    struct raw *raw = raw_new(rank);
    if (raw == NULL)
        return gms_fail(error, GMS_E_NO_MEMORY, "no memory");
    const gms_status status = lose_an_answer(raw, rank, error);
    raw_free(raw);
    return status;
}

struct rounds {
    const struct cluster *cluster;
    int64_t before;
};

static bool round_is_over(void *context)
{
    const struct rounds *rounds = context;
    for (uint32_t r = 0; r < rounds->cluster->ranks; r++)
        if (cluster_number(rounds->cluster, r, "round") <= rounds->before)
            return false;
    return true;
}

static void test_one_rank_is_ahead(void **state)
{
    const struct cluster_options options = {.ranks = 2, .operation_timeout = "20s"};
    struct cluster cluster;
    struct engine engine;
    (void)state;
    cluster_start(&cluster, &options);
    engine_start(&engine, &cluster, 0, "raw", losing, 0);
    assert_true(engine_reached(&engine, AT_JOINED, HARNESS_DEADLINE_MS));
    engine_go(&engine, GATE_ASK);
    assert_true(engine_reached(&engine, AT_TOLD, HARNESS_DEADLINE_MS));
    cluster_kill_coordinators(&cluster, -1);
    cluster_relaunch(&cluster, NULL);
    struct rounds rounds = {&cluster, cluster_number(&cluster, 0, "round")};
    engine_go(&engine, GATE_RANK_0);
    assert_true(eventually(round_is_over, &rounds, HARNESS_DEADLINE_MS)); /* all have heard of the second one */
    engine_go(&engine, GATE_RANK_1);
    assert_true(engine_reached(&engine, AT_DONE, HARNESS_DEADLINE_MS));
    engine_go(&engine, GATE_END);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    engine_finish(&engine);
    cluster_stop(&cluster);
}

/* Exchanges until the parent's gate, by libgms. values: 0 how many came right, 2 status of the last. */
static gms_status stream(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    struct gms_membership membership;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_JOINED);
    rank_gate(rank, GATE_ASK);
    for (uint32_t number = 0;; number++) {
        uint8_t own[GMS_EXCHANGE_BYTES], expected[GMS_EXCHANGE_BYTES], got[GMS_EXCHANGE_BYTES];
        const uint32_t length = 1 + number % 100;
        const uint64_t ends = atomic_load(&rank->go) >= GATE_END; /* rank 0's word counts */
        uint32_t bytes = give(membership.incarnation, rank->rank, length, own), got_bytes = 0;
        const uint32_t expected_bytes = give(membership.incarnation, 0, length, expected);
        own[0] = (uint8_t)ends;
        memcpy(own + 1, &number, sizeof number);
        bytes = bytes < 8 ? 8 : bytes;
        status = gms_exchange(session, "id", number, own, bytes, got, &got_bytes, error);
        rank->values[2] = (uint64_t)status;
        if (status != GMS_OK)
            return status;
        if (got_bytes != (expected_bytes < 8 ? 8 : expected_bytes) || memcmp(got + 1, &number, sizeof number) != 0 ||
            memcmp(got + 5, expected + 5, got_bytes - 5) != 0)
            return gms_fail(error, GMS_E_CORRUPT, "exchange %u: %u bytes of another", number, got_bytes);
        rank->values[0]++;
        if (got[0] != 0)
            break;
    }
    rank_at(rank, AT_DONE);
    rank_gate(rank, GATE_END);
    gms_close(session);
    return GMS_OK;
}

struct progress {
    struct engine *engine;
    uint64_t before;
};

static bool have_gone_on(void *context)
{
    const struct progress *progress = context;
    for (uint32_t r = 0; r < progress->engine->count; r++)
        if (progress->engine->ranks[r].values[0] < progress->before + 3)
            return false;
    return true;
}

/* One coordinator is killed, or all, wherever the exchanges happen to be; no rank sees more of it than a pause. */
static void test_coordinators_are_killed_among_many(void **state)
{
    const struct cluster_options options = {.ranks = 2, .operation_timeout = "20s"};
    struct cluster cluster;
    struct engine engine;
    (void)state;
    cluster_start(&cluster, &options);
    engine_start(&engine, &cluster, 0, "stream", stream, 0);
    assert_true(engine_reached(&engine, AT_JOINED, HARNESS_DEADLINE_MS));
    engine_go(&engine, GATE_ASK);
    for (int32_t victim = -1; victim < 2; victim++) {
        struct progress progress = {&engine, engine.ranks[0].values[0]};
        assert_true(eventually(have_gone_on, &progress, HARNESS_DEADLINE_MS));
        cluster_kill_coordinators(&cluster, victim);
        cluster_relaunch(&cluster, NULL);
    }
    struct progress progress = {&engine, engine.ranks[0].values[0]};
    assert_true(eventually(have_gone_on, &progress, HARNESS_DEADLINE_MS));
    engine_go(&engine, GATE_END);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    for (uint32_t r = 0; r < 2; r++) {
        assert_string_equal(engine.ranks[r].text, "");
        assert_int_equal(engine.ranks[r].status, GMS_OK);
        assert_int_equal(engine.ranks[r].values[0], engine.ranks[0].values[0]);
    }
    printf("%llu exchanges, the same on both ranks, while coordinators were killed 3 times\n",
           (unsigned long long)engine.ranks[0].values[0]);
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
        cmocka_unit_test(test_one_rank_is_ahead),
        cmocka_unit_test(test_coordinators_are_killed_among_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
