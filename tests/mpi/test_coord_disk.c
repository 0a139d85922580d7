/* SPDX-License-Identifier: Apache-2.0
 *
 * Under coordinators whose disk does not answer (slow_sync.c) engines join, park, serve and are succeeded as ever: what
 * they store and publish waits for no disk, and a round is never late because of one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "harness.h"

enum { RANKS = 2, AT_PARKED = 1, AT_SERVING = 2, GATE_END = 1 };

static gms_status body(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    gms_status status = rank_park(rank, &life, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_PARKED);
    status = rank_take_over(rank, &life, "here", error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    status = rank_idle(rank, &life, GATE_END, error);
    gms_close(life.session);
    return status;
}

static void test_nobody_waits_for_the_disk(void **state)
{
    const char *library = getenv("GMS_TEST_SLOW_SYNC");
    char script[600];
    struct cluster cluster;
    struct engine first, second;
    (void)state;
    assert_non_null(library);
    snprintf(script, sizeof script,
             "shift; LD_PRELOAD=%s ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 exec \"$0\" \"$@\"", library);
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .script = script});
    engine_start(&first, &cluster, 0, "first", body, 0);
    assert_true(engine_reached(&first, AT_SERVING, HARNESS_DEADLINE_MS));
    engine_start(&second, &cluster, 1, "second", body, 0);
    assert_true(engine_reached(&second, AT_PARKED, HARNESS_DEADLINE_MS));
    engine_kill(&first, 1);
    assert_true(engine_reached(&second, AT_SERVING, HARNESS_DEADLINE_MS));
    engine_go(&second, GATE_END);
    assert_true(engine_wait_end(&second, HARNESS_DEADLINE_MS));
    engine_finish(&first);
    engine_finish(&second);
    cluster_stop(&cluster); /* the planned stop is noted in a file, too */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nobody_waits_for_the_disk)};
    return cmocka_run_group_tests_name("coord_disk", tests, NULL, NULL);
}
