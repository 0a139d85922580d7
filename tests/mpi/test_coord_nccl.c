/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL communicators over real coordinators, on a NCCL and a driver made of host memory (tests/unit/fake_nccl.h): all
 * ranks have one or none has, every incarnation its own, and a rank that is gone hangs nobody.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../unit/fake_nccl.h"
#include "base/clock.h"
#include "gms/nccl.h"
#include "harness.h"

enum { AT_MADE = 1, AT_PARKED, AT_SERVING, AT_WAITING, GATE_PARK = 1, GATE_WORK, GATE_END, COUNT = 64 };
enum way { WELL, NO_LIBRARY, CANNOT_BEGIN, COUNTS_WRONG, LATE };

static struct cluster_options on_devices(uint32_t ranks)
{
    char text[8];
    snprintf(text, sizeof text, "%u", ranks);
    setenv("FAKE_CUDA_DEVICES", text, 1);
    return (struct cluster_options){.ranks = ranks,
                                    .memory = "{ backend = \"cuda\"; capacity = \"64MiB\"; }",
                                    .verify = "none",
                                    .operation_timeout = "3s"};
}

static gms_status join(struct engine_rank *rank, struct rank_life *life, struct gms_error *error)
{
    memset(life, 0, sizeof *life);
    setenv("TMPDIR", rank->cluster->directory, 1);
    gms_status status = rank_open(rank, &life->session, error);
    return status == GMS_OK ? rank_join(life->session, rank, &life->membership, error) : status;
}

/* One all-reduce, whose sum only the ranks of this incarnation make. */
static gms_status add_up(struct engine_rank *rank, const struct rank_life *life, gms_nccl *nccl,
                         struct gms_error *error)
{
    uint64_t numbers[COUNT], incarnation = life->membership.incarnation, sum = 0;
    void *stream = (void *)(uintptr_t)(0x77000 + incarnation);
    for (uint32_t i = 0; i < COUNT; i++)
        numbers[i] = incarnation * 1000 + rank->rank + i;
    for (uint32_t r = 0; r < rank->ranks; r++)
        sum += incarnation * 1000 + r;
    gms_status status =
        gms_nccl_all_reduce(nccl, numbers, numbers, COUNT, GMS_NCCL_UINT64, GMS_NCCL_SUM, stream, error);
    if (status == GMS_OK)
        status = gms_nccl_wait(nccl, stream, HARNESS_DEADLINE_MS, error);
    for (uint32_t i = 0; i < COUNT && status == GMS_OK; i++)
        if (numbers[i] != sum + (uint64_t)i * rank->ranks)
            status = gms_fail(error, GMS_E_CORRUPT, "element %u is %llu", i, (unsigned long long)numbers[i]);
    return status;
}

/* values: 0 the version, 1 verifications, 2 us of the last, 3 handles alive at the end, 4 aborted once, 5 ms in the
 * hang. */
static gms_status live(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    struct gms_nccl_verification verified = {0};
    gms_nccl *nccl = NULL;
    gms_status status = join(rank, &life, error);
    if (status == GMS_OK)
        status = rank_attach_weights(life.session, &life.weights, error);
    if (status == GMS_OK)
        status = rank_attach_kv(life.session, HARNESS_SLOTS, &life.kv, error);
    if (status == GMS_OK)
        status = gms_nccl_open(life.session, NULL, &nccl, error);
    if (status != GMS_OK)
        return status;
    rank->values[0] = (uint64_t)gms_nccl_version(nccl);
    rank_at(rank, AT_MADE);
    rank_gate(rank, GATE_PARK);
    status = add_up(rank, &life, nccl, error);
    if (status == GMS_OK)
        status = gms_park(life.session, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_PARKED);
    struct gms_promotion promotion;
    status = gms_wait_promotion(life.session, -1, &promotion, error);
    if (status == GMS_OK)
        status = gms_adopt(life.session, &life.adoption, error);
    if (status == GMS_OK)
        status = gms_wake(life.session, error);
    if (status == GMS_OK)
        status = gms_nccl_verify(nccl, HARNESS_DEADLINE_MS, &verified, error);
    if (status == GMS_OK)
        status = gms_serve(life.session, rank->rank == 0 ? "unix:/here" : NULL, error);
    if (status == GMS_OK)
        status = add_up(rank, &life, nccl, error);
    if (status != GMS_OK)
        return status;
    rank->values[1] = verified.number;
    rank->values[2] = verified.duration_ns / 1000;
    rank_at(rank, AT_SERVING);
    rank_gate(rank, GATE_WORK);
    const uint64_t begun_ns = gms_clock_ns();
    if (rank->argument != 0 && rank->rank != 0) { /* says goodbye and does not come to the next collective */
        gms_close(life.session);
        return GMS_OK;
    }
    if (rank->argument != 0) {
        rank_at(rank, AT_WAITING);
        status = add_up(rank, &life, nccl, error);
        rank->values[4] = fake_nccl_comes_to(&fake_nccl_get(NULL)->aborts, 1);
        rank->values[5] = (gms_clock_ns() - begun_ns) / GMS_NS_PER_MS;
        return status;
    }
    status = rank_idle(rank, &life, GATE_END, error);
    gms_close(life.session);
    rank->values[3] = fake_nccl_get(NULL)->handles;
    return status;
}

/* A primary and its shadow have communicators of their own on the same devices; the shadow's outlives the death of a
 * rank of the primary, is verified after the wake, and works. */
static void fail_over(uint32_t ranks)
{
    struct cluster_options options = on_devices(ranks);
    struct cluster cluster;
    struct engine first, second;
    cluster_start(&cluster, &options);
    engine_start(&first, &cluster, 0, "first", live, 0);
    assert_true(engine_reached(&first, AT_MADE, HARNESS_DEADLINE_MS));
    engine_go(&first, GATE_PARK);
    assert_true(engine_reached(&first, AT_SERVING, HARNESS_DEADLINE_MS));
    engine_start(&second, &cluster, 1, "second", live, 0);
    assert_true(engine_reached(&second, AT_MADE, HARNESS_DEADLINE_MS));
    engine_go(&second, GATE_PARK);
    assert_true(engine_reached(&second, AT_PARKED, HARNESS_DEADLINE_MS));
    engine_go(&first, GATE_WORK);
    engine_kill(&first, ranks - 1);
    assert_true(engine_reached(&second, AT_SERVING, HARNESS_DEADLINE_MS));
    for (uint32_t r = 0; r < ranks; r++) {
        assert_int_equal(second.ranks[r].values[0], 22803);
        assert_int_equal(second.ranks[r].values[1], 2);
    }
    engine_go(&second, GATE_END);
    assert_true(engine_wait_end(&second, HARNESS_DEADLINE_MS));
    for (uint32_t r = 0; r < ranks; r++) {
        if (second.ranks[r].status != GMS_OK)
            fail_msg("%s", second.ranks[r].text);
        assert_int_equal(second.ranks[r].values[3], 0); /* closed with the session */
    }
    engine_finish(&first);
    engine_finish(&second);
    cluster_stop(&cluster);
}

static void test_two_ranks(void **state)
{
    (void)state;
    fail_over(2);
}

static void test_four_ranks(void **state)
{
    (void)state;
    fail_over(4);
}

/* One rank leaves in the middle; the other waits for it in a collective, with time to end by itself: it is told that
 * its incarnation is condemned, the communicator is aborted, and the wait ends. */
static void test_a_wait_ends_when_condemned(void **state)
{
    struct cluster_options options = on_devices(2);
    struct cluster cluster;
    struct engine engine;
    (void)state;
    options.leave = "10s"; /* the fence is not what ends it */
    cluster_start(&cluster, &options);
    engine_start(&engine, &cluster, 0, "first", live, 1);
    assert_true(engine_reached(&engine, AT_MADE, HARNESS_DEADLINE_MS));
    engine_go(&engine, GATE_PARK);
    assert_true(engine_reached(&engine, AT_SERVING, HARNESS_DEADLINE_MS));
    engine_go(&engine, GATE_WORK);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    assert_int_equal(engine.ranks[1].status, GMS_OK);
    if (engine.ranks[0].status != GMS_E_CONDEMNED)
        fail_msg("%s", engine.ranks[0].text);
    assert_int_equal(engine.ranks[0].values[4], 1);
    printf("a collective without its peer: CONDEMNED and aborted after %llu ms\n",
           (unsigned long long)engine.ranks[0].values[5]);
    assert_in_range(engine.ranks[0].values[5], 0, 5000);
    engine_finish(&engine);
    cluster_stop(&cluster);
}

/* ------------------------------------------------------------------------------------- all ranks or none --------- */

/* values: 0 the status, 1 ms, 2 handles alive. argument: how rank 1 fails. */
static gms_status try_to_open(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    struct gms_nccl_options options = {.timeout_ms = 1000};
    gms_nccl *nccl = NULL;
    gms_status status = join(rank, &life, error);
    if (status != GMS_OK)
        return status;
    struct fake_nccl *fake = fake_nccl_get(NULL);
    const enum way way = rank->rank == 1 ? (enum way)rank->argument : WELL;
    if (way == NO_LIBRARY)
        options.library = "/no/such/libnccl.so.2";
    if (way == CANNOT_BEGIN)
        fake->init = FAKE_NCCL_REFUSES;
    if (way == COUNTS_WRONG)
        fake->collective = FAKE_NCCL_LIES;
    if (way == LATE)
        fake->init = FAKE_NCCL_HANGS;
    const uint64_t begun_ns = gms_clock_ns();
    status = gms_nccl_open(life.session, &options, &nccl, error);
    rank->values[1] = (gms_clock_ns() - begun_ns) / GMS_NS_PER_MS;
    rank->values[2] = fake->handles;
    rank->values[0] = (uint64_t)status;
    memcpy(rank->text, error->text, sizeof rank->text);
    rank_at(rank, AT_MADE);
    rank_gate(rank, GATE_END);
    gms_close(life.session);
    return GMS_OK;
}

static void test_all_ranks_or_none(void **state)
{
    static const struct {
        enum way way;
        gms_status status[2]; /* of rank 0, of rank 1 */
        const char *words[2];
    } cases[] = {
        {NO_LIBRARY,
         {GMS_E_MISMATCH, GMS_E_UNSUPPORTED},
         {"rank 0 has 0x0000000000005913, rank 1 has 0x0000000000000000; the value is NCCL's version (22803 here)",
          "no NCCL here: /no/such"}},
        {CANNOT_BEGIN, {GMS_E_TIMEOUT, GMS_E_INVALID}, {"making the communicator: not done", "Duplicate GPU"}},
        {COUNTS_WRONG, {GMS_E_MISMATCH, GMS_E_CORRUPT}, {"0 is a rank that could not make its part", "element 32 is"}},
        {LATE,
         {GMS_E_TIMEOUT, GMS_E_TIMEOUT},
         {"making the communicator: not done", "making the communicator: not done"}},
    };
    struct cluster_options options = on_devices(2);
    struct cluster cluster;
    (void)state;
    cluster_start(&cluster, &options);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct engine engine;
        char launch[16];
        snprintf(launch, sizeof launch, "way %zu", i);
        engine_start(&engine, &cluster, 0, launch, try_to_open, cases[i].way);
        assert_true(engine_reached(&engine, AT_MADE, HARNESS_DEADLINE_MS));
        for (uint32_t r = 0; r < 2; r++) {
            if ((gms_status)engine.ranks[r].values[0] != cases[i].status[r] ||
                strstr(engine.ranks[r].text, cases[i].words[r]) == NULL)
                fail_msg("case %zu rank %u: %s: %s", i, r, gms_status_name((gms_status)engine.ranks[r].values[0]),
                         engine.ranks[r].text);
            assert_int_equal(engine.ranks[r].values[2], 0);
            assert_in_range(engine.ranks[r].values[1], 0, 10000);
        }
        engine_go(&engine, GATE_END);
        assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
        engine_finish(&engine);
    }
    cluster_stop(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_four_ranks),
        cmocka_unit_test(test_a_wait_ends_when_condemned),
        cmocka_unit_test(test_all_ranks_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
