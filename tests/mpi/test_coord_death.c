/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of coordinators: one killed ends all with the restart code and no engine notices more than that; a frozen one
 * that wakes up takes over from nobody; a planned stop is exit 0; two deployments on one node do not meet.
 */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness.h"

enum { RANKS = 3, AT_SERVING = 1, AT_WITHOUT = 2, GATE_WITHOUT = 1, GATE_END = 2 };

/* Serves; when the coordinators are gone it must go on using slots and be told of the loss by control calls. */
static gms_status serve(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    gms_status status = rank_live(rank, &life, "unix:/e", error);
    if (status == GMS_OK)
        status = rank_seal(life.session, life.kv, 0, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    rank_gate(rank, GATE_WITHOUT);
    status = rank_seal(life.session, life.kv, 1, error);
    rank->values[0] = (uint64_t)status;
    rank->values[1] = (uint64_t)gms_transfer_dispatch(life.session, 1, 1, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_WITHOUT);
    rank_gate(rank, GATE_END);
    gms_close(life.session);
    return GMS_OK;
}

static bool others_exited(void *context)
{
    return cluster_log_count(context, "coordinator exit 75") == RANKS - 1;
}

/* A start over what other coordinators hold or left, refused: the exit code, and the reason in the log. */
static void refused_start(struct cluster *cluster, bool fresh, const char *reason)
{
    char path[512], ranks[16];
    program("gms-coord", path);
    snprintf(ranks, sizeof ranks, "%d", RANKS);
    char *words[] = {"mpirun", "--oversubscribe", "-n", ranks, path, "--config", cluster->config, "--fresh", NULL};
    if (!fresh)
        words[sizeof words / sizeof words[0] - 2] = NULL;
    assert_int_equal(run_program(words, cluster->log), 70);
    assert_int_equal(cluster_log_count(cluster, reason), 1);
}

static void kill_coordinator(uint32_t victim)
{
    struct cluster cluster;
    struct engine engine;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .report_exits = true, .operation_timeout = "1s"});
    engine_start(&engine, &cluster, 0, "a", serve, 0);
    assert_true(engine_reached(&engine, AT_SERVING, HARNESS_DEADLINE_MS));

    refused_start(&cluster, victim != 0, "a coordinator job runs"); /* by mistake: the living group is left alone */
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(cluster_number(&cluster, rank, "serving_engine"), 0);

    int coordinator = cluster_coordinator(&cluster, victim);
    assert_true(coordinator >= 0);
    uint64_t begin_ns = gms_clock_ns();
    gms_pidfd_signal(coordinator, SIGKILL);
    gms_fd_close(&coordinator);
    assert_true(eventually(others_exited, &cluster, HARNESS_DEADLINE_MS));
    uint64_t took_ms = (gms_clock_ns() - begin_ns) / GMS_NS_PER_MS;
    fprintf(stderr, "the other coordinators had exited %llu ms after the kill\n", (unsigned long long)took_ms);
    assert_true(took_ms < 1000);
    int code = cluster_wait_end(&cluster, HARNESS_DEADLINE_MS); /* mpirun takes up to 2 s more by itself */
    assert_true(code == 75 || code == 137);                     /* it gives one of its ranks' */

    engine_go(&engine, GATE_WITHOUT);
    assert_true(engine_reached(&engine, AT_WITHOUT, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_true(engine_rank_alive(&engine, rank));
        assert_int_equal(engine.ranks[rank].values[0], GMS_OK);
        assert_int_equal(engine.ranks[rank].values[1], GMS_E_AGAIN);
    }
    refused_start(&cluster, true, "still runs"); /* it serves: a fresh group would serve beside it */
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_true(engine_rank_alive(&engine, rank));
    engine_finish(&engine);
    cluster_discard(&cluster);
}

static void test_kill_first(void **state)
{
    (void)state;
    kill_coordinator(0);
}

static void test_kill_last(void **state)
{
    (void)state;
    kill_coordinator(RANKS - 1);
}

/* Frozen for longer than the heartbeats allow: the others restart. Nobody is taken over from. */
static void test_frozen(void **state)
{
    struct cluster cluster;
    struct engine engine;
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .heartbeat = "200ms", .report_exits = true});
    engine_start(&engine, &cluster, 0, "a", serve, 0);
    assert_true(engine_reached(&engine, AT_SERVING, HARNESS_DEADLINE_MS));
    int coordinator = cluster_coordinator(&cluster, 1);
    assert_true(coordinator >= 0);
    gms_pidfd_signal(coordinator, SIGSTOP);
    uint64_t begin_ns = gms_clock_ns();
    while (cluster_log_count(&cluster, "coordinator exit 75") < RANKS - 1 &&
           gms_clock_ns() - begin_ns < HARNESS_DEADLINE_MS * GMS_NS_PER_MS)
        poll(NULL, 0, 20);
    gms_pidfd_signal(coordinator, SIGCONT);
    gms_fd_close(&coordinator);
    assert_true(cluster_wait_end(&cluster, HARNESS_DEADLINE_MS) > 0);
    assert_true(cluster_log_has(&cluster, "silent for three heartbeats"));
    assert_int_equal(cluster_log_count(&cluster, "condemned"), 0);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_true(engine_rank_alive(&engine, rank));
    engine_finish(&engine);
    cluster_discard(&cluster);
}

static void test_planned_stop_by_signal(void **state)
{
    struct cluster cluster;
    struct engine engine;
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .report_exits = true});
    engine_start(&engine, &cluster, 0, "a", serve, 0);
    assert_true(engine_reached(&engine, AT_SERVING, HARNESS_DEADLINE_MS));
    int coordinator = cluster_coordinator(&cluster, 1);
    gms_pidfd_signal(coordinator, SIGUSR1);
    gms_fd_close(&coordinator);
    assert_int_equal(cluster_wait_end(&cluster, HARNESS_DEADLINE_MS), 0);
    assert_int_equal(cluster_log_count(&cluster, "coordinator exit 0"), RANKS);
    assert_int_equal(cluster_log_count(&cluster, "condemned"), 0);
    engine_go(&engine, GATE_WITHOUT);
    assert_true(engine_reached(&engine, AT_WITHOUT, HARNESS_DEADLINE_MS));
    engine_finish(&engine);
    cluster_discard(&cluster);
}

static void test_two_deployments(void **state)
{
    struct cluster clusters[2];
    struct engine engines[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        cluster_start(&clusters[i], &(struct cluster_options){.ranks = 2});
        engine_start(&engines[i], &clusters[i], 0, "a", serve, 0);
    }
    for (int i = 0; i < 2; i++)
        assert_true(engine_reached(&engines[i], AT_SERVING, HARNESS_DEADLINE_MS));
    engine_kill(&engines[0], 0);
    assert_true(engine_wait_end(&engines[0], HARNESS_DEADLINE_MS)); /* fenced: rank 1 too */
    assert_int_equal(cluster_number(&clusters[1], 0, "serving_engine"), 0);
    assert_int_equal(cluster_number(&clusters[1], 0, "epoch"), 1);
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_true(engine_rank_alive(&engines[1], rank));
    cluster_stop(&clusters[0]);
    assert_int_equal(cluster_number(&clusters[1], 1, "serving_engine"), 0);
    engine_finish(&engines[0]);
    engine_finish(&engines[1]);
    cluster_stop(&clusters[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_first),      cmocka_unit_test(test_kill_last),
        cmocka_unit_test(test_frozen),          cmocka_unit_test(test_planned_stop_by_signal),
        cmocka_unit_test(test_two_deployments),
    };
    return cmocka_run_group_tests_name("coord_death", tests, NULL, NULL);
}
