/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools in device memory, on a driver made of host memory (tests/unit/fake_cuda.h): each rank has its own GPU, and
 * going on after a restart needs no driver at all, so that sessions do not wait for its start.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"

enum { RANKS = 2, SEALED = 5, EXIT_CONFIG = 78, AT_PARKED = 1, AT_SERVING, AT_AGAIN, GATE_AGAIN = 1, GATE_END };

static const struct cluster_options per_rank = {.ranks = RANKS,
                                                .memory = "{ backend = \"cuda\"; capacity = \"64MiB\"; }"};

/* values: 0 adopted, 1 driver calls from parked to serving, 2 on a device, 3 ranks that took part in an operation in
 * the next world. */
static gms_status live(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    uint32_t finished = 0;
    gms_status status = rank_park(rank, &life, error);
    if (status != GMS_OK)
        return status;
    const uint64_t before = gms_driver_calls();
    rank_at(rank, AT_PARKED);
    status = rank_take_over(rank, &life, "unix:/here", error);
    if (status != GMS_OK)
        return status;
    rank->values[0] = life.adoption.adopted;
    rank->values[1] = gms_driver_calls() - before;
    rank->values[2] = (uint64_t)gms_pool_on_device(life.kv) && before > 0;
    for (uint32_t slot = 0; slot < SEALED && status == GMS_OK && life.adoption.adopted == 0; slot++)
        status = rank_seal(life.session, life.kv, slot, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    status = rank_idle(rank, &life, GATE_AGAIN, error);
    if (status == GMS_OK)
        status = rank_operate(&life, 7, &finished, error);
    rank->values[3] = finished;
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_AGAIN);
    status = rank_idle(rank, &life, GATE_END, error);
    gms_close(life.session);
    return status;
}

static void assert_device(const struct cluster *cluster, uint32_t rank, const char *device)
{
    json_t *status = cluster_status(cluster, rank);
    assert_non_null(status);
    assert_string_equal(json_string_value(json_object_get(status, "memory")), "cuda");
    assert_memory_equal(json_string_value(json_object_get(status, "device")), device, strlen(device));
    json_decref(status);
}

/* The coordinators end, and come back on a machine whose driver does not start any more: the engine goes on, is heard,
 * and what it sealed is adopted by a shadow that was parked before. */
static void test_a_restart_needs_no_driver(void **state)
{
    struct cluster cluster;
    struct engine first, second;
    (void)state;
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    cluster_start(&cluster, &per_rank);
    assert_device(&cluster, 0, "GPU-10fafafa");
    assert_device(&cluster, 1, "GPU-11fafafa");
    engine_start(&first, &cluster, 0, "first", live, 0);
    assert_true(engine_reached(&first, AT_SERVING, HARNESS_DEADLINE_MS));
    engine_start(&second, &cluster, 1, "second", live, 0);
    assert_true(engine_reached(&second, AT_PARKED, HARNESS_DEADLINE_MS));

    setenv("FAKE_CUDA_FAIL", "cuInit:0:802", 1);
    cluster_kill_coordinators(&cluster, -1);
    cluster_relaunch(&cluster, NULL);
    unsetenv("FAKE_CUDA_FAIL");
    assert_device(&cluster, 1, "GPU-11fafafa");
    engine_go(&first, GATE_AGAIN);
    assert_true(engine_reached(&first, AT_AGAIN, HARNESS_DEADLINE_MS));
    engine_kill(&first, 1);
    assert_true(engine_reached(&second, AT_SERVING, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(first.ranks[rank].values[3], RANKS);
        assert_int_equal(first.ranks[rank].values[2], 1);
        assert_int_equal(second.ranks[rank].values[0], SEALED);
        assert_int_equal(second.ranks[rank].values[2], 1);
    }
    engine_go(&second, GATE_END);
    engine_finish(&first);
    engine_finish(&second);
    cluster_stop(&cluster);
}

/* Contents are not read back by default, so promotion makes no driver call. */
static void test_a_promotion_makes_no_driver_call(void **state)
{
    struct cluster cluster;
    struct engine first, second;
    (void)state;
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    struct cluster_options options = per_rank;
    options.verify = "none";
    cluster_start(&cluster, &options);
    engine_start(&first, &cluster, 0, "first", live, 0);
    assert_true(engine_reached(&first, AT_SERVING, HARNESS_DEADLINE_MS));
    engine_start(&second, &cluster, 1, "second", live, 0);
    assert_true(engine_reached(&second, AT_PARKED, HARNESS_DEADLINE_MS));
    engine_kill(&first, 0);
    assert_true(engine_reached(&second, AT_SERVING, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(second.ranks[rank].values[0], SEALED);
        assert_int_equal(second.ranks[rank].values[1], 0);
    }
    engine_go(&second, GATE_END);
    engine_finish(&first);
    engine_finish(&second);
    cluster_stop(&cluster);
}

/* Two ranks, one GPU: refused with both ranks' names (V42), and allowed where the file says so. */
static void test_one_gpu_for_two_ranks(void **state)
{
    struct cluster cluster;
    char coordinator[512];
    (void)state;
    setenv("FAKE_CUDA_DEVICES", "1", 1);
    cluster_prepare(&cluster, &per_rank, true);
    program("gms-coord", coordinator);
    char *words[] = {"mpirun", "--oversubscribe", "-n", "2", coordinator, "--config", cluster.config, NULL};
    int code = run_program(words, cluster.log);
    if (code != EXIT_CONFIG || cluster_log_count(&cluster, "ranks 0 and 1 have the same GPU, GPU-10fafafa") != 1) {
        cluster_show_log(&cluster);
        fail_msg("exit %d", code);
    }
    cluster_discard(&cluster);

    struct cluster_options shared = per_rank;
    shared.memory = "{ backend = \"cuda\"; capacity = \"64MiB\"; device = \"shared\"; }";
    cluster_start(&cluster, &shared);
    assert_device(&cluster, 0, "GPU-10fafafa");
    assert_device(&cluster, 1, "GPU-10fafafa");
    cluster_stop(&cluster);
}

/* A driver that does not start is a start that is refused, in the driver's words. */
static void test_no_driver_is_said(void **state)
{
    struct cluster cluster;
    char coordinator[512];
    (void)state;
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    setenv("FAKE_CUDA_FAIL", "cuInit:0:100", 1);
    cluster_prepare(&cluster, &per_rank, true);
    program("gms-coord", coordinator);
    char *words[] = {"mpirun", "--oversubscribe", "-n", "2", coordinator, "--config", cluster.config, NULL};
    int code = run_program(words, cluster.log);
    unsetenv("FAKE_CUDA_FAIL");
    if (code != EXIT_CONFIG ||
        cluster_log_count(&cluster, "start of the CUDA driver: CUDA_ERROR_NO_DEVICE (100)") != 1) {
        cluster_show_log(&cluster);
        fail_msg("exit %d", code);
    }
    cluster_discard(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_restart_needs_no_driver),
        cmocka_unit_test(test_a_promotion_makes_no_driver_call),
        cmocka_unit_test(test_one_gpu_for_two_ranks),
        cmocka_unit_test(test_no_driver_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
