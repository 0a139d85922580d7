/* SPDX-License-Identifier: Apache-2.0
 *
 * Coordinators that did not run for a while (SIGSTOP stands for it). What expired meanwhile is judged only after news
 * had a moment to come (V17); and a stop that was ordered meanwhile comes before the deaths that came with it (V45).
 */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness.h"

enum { AT_OPEN = 1, AT_JOINED, AT_SERVING = 1, GATE_JOIN = 1, GATE_END, GAP_MS = 2000 }; /* 1500 ms and late */

static struct cluster cluster;

static gms_status join_at_gate(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    struct gms_membership membership;
    gms_status status = rank_open(rank, &session, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_OPEN);
    rank_gate(rank, GATE_JOIN);
    status = rank_join(session, rank, &membership, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_JOINED);
    rank_gate(rank, GATE_END);
    return GMS_OK;
}

static int64_t round_before;

static bool round_is_over(void *context)
{
    (void)context;
    return cluster_number(&cluster, 0, "round") > round_before && cluster_number(&cluster, 1, "round") > round_before;
}

/* One rank's engine asks, and its coordinator is stopped with all others; the other rank's engine asks meanwhile, and
 * the deadline passes. When they go on the first one's coordinator is late, and knows nothing yet of the other. */
static void test_news_come_before_what_expired(void **state)
{
    struct engine engine;
    int coordinators[2];
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = 2, .operation_timeout = "1500ms", .heartbeat = "20s"});
    engine_start(&engine, &cluster, 0, "gap", join_at_gate, 0);
    assert_true(engine_reached(&engine, AT_OPEN, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < 2; rank++)
        coordinators[rank] = cluster_coordinator(&cluster, rank);
    round_before = cluster_number(&cluster, 0, "round");
    atomic_store(&engine.ranks[1].go, GATE_JOIN);
    assert_true(eventually(round_is_over, NULL, HARNESS_DEADLINE_MS)); /* rank 1 has asked; its time runs */
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_true(gms_pidfd_signal(coordinators[rank], SIGSTOP));
    atomic_store(&engine.ranks[0].go, GATE_JOIN);
    poll(NULL, 0, GAP_MS); /* it is time itself that must pass */
    assert_true(gms_pidfd_signal(coordinators[1], SIGCONT));
    poll(NULL, 0, 20); /* it would be done with its judgement by now */
    assert_true(gms_pidfd_signal(coordinators[0], SIGCONT));
    assert_true(engine_reached(&engine, AT_JOINED, HARNESS_DEADLINE_MS));
    engine_go(&engine, GATE_END);
    for (uint32_t rank = 0; rank < 2; rank++)
        gms_fd_close(&coordinators[rank]);
    engine_finish(&engine);
    cluster_stop(&cluster);
}

static gms_status serve(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    gms_status status = rank_live(rank, &life, "unix:/here", error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    return rank_idle(rank, &life, GATE_END, error);
}

/* Told to stop while it did not run, and an engine ended meanwhile: nobody is taken over from. (A loop that does not
 * look for signals first passes this most of the time: the kernel then happens to tell of the stop first.) */
static void test_a_stop_comes_before_deaths(void **state)
{
    struct engine engine;
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = 1, .heartbeat = "20s"});
    engine_start(&engine, &cluster, 0, "stop", serve, 0);
    assert_true(engine_reached(&engine, AT_SERVING, HARNESS_DEADLINE_MS));
    int coordinator = cluster_coordinator(&cluster, 0);
    assert_true(gms_pidfd_signal(coordinator, SIGSTOP));
    engine_kill(&engine, 0);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    assert_true(gms_pidfd_signal(coordinator, SIGUSR1));
    assert_true(gms_pidfd_signal(coordinator, SIGCONT));
    int code = cluster_wait_end(&cluster, HARNESS_DEADLINE_MS);
    if (code != 0 || cluster_log_has(&cluster, "is condemned")) {
        cluster_show_log(&cluster);
        fail_msg("exit %d", code);
    }
    gms_fd_close(&coordinator);
    engine_finish(&engine);
    cluster_discard(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_news_come_before_what_expired),
        cmocka_unit_test(test_a_stop_comes_before_deaths),
    };
    return cmocka_run_group_tests_name("coord_gap", tests, NULL, NULL);
}
