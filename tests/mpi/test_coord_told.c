/* SPDX-License-Identifier: Apache-2.0
 *
 * V44: an engine whose gms-exec was told to end (SIGTERM, as schedulers tell a whole job) ends as planned. Its end is
 * held back for timeouts.told_to_end: where the coordinators stop meanwhile nobody is taken over from; where they do
 * not, the shadow takes over, later by that much.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness.h"
#include "wire/channel.h"

enum { RANKS = 2, AT_SERVING = 1, GATE_END = 9 };

static struct cluster cluster;
static struct engine first, second;

static gms_status live(struct engine_rank *rank, struct gms_error *error)
{
    return rank_serve_until(rank, AT_SERVING, GATE_END, error);
}

static bool in_log(void *context)
{
    return cluster_log_has(&cluster, context);
}

static bool a_shadow_is_parked(void *context)
{
    (void)context;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        json_t *status = cluster_status(&cluster, rank);
        const char *role =
            json_string_value(json_object_get(json_array_get(json_object_get(status, "engines"), 1), "role"));
        bool parked = role != NULL && strcmp(role, "parked") == 0;
        json_decref(status);
        if (!parked)
            return false;
    }
    return true;
}

/* Engine 0 serves, engine 1 is parked; then a rank of engine 0 is told to end through its gms-exec, and ends. */
static int told_to_end(void **state)
{
    struct gms_message leaving = {.type = GMS_MESSAGE_LEAVING};
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    engine_start(&first, &cluster, 0, "a", live, 0);
    assert_true(engine_reached(&first, AT_SERVING, HARNESS_DEADLINE_MS));
    engine_start(&second, &cluster, 1, "b", live, 0);
    assert_true(eventually(a_shadow_is_parked, NULL, HARNESS_DEADLINE_MS));
    int exec = cluster_client(&cluster, 0, GMS_CLIENT_EXEC, 0);
    assert_true(exec >= 0);
    assert_int_equal(gms_channel_send(exec, &leaving, NULL), GMS_OK);
    assert_true(
        eventually(in_log, (void *)(uintptr_t) "engine 0 incarnation 1 is told to end here", HARNESS_DEADLINE_MS));
    engine_kill(&first, 0);
    assert_true(eventually(in_log, (void *)(uintptr_t) "its session ended", HARNESS_DEADLINE_MS));
    gms_fd_close(&exec);
    return 0;
}

static void test_stopped_meanwhile(void **state)
{
    struct gms_message down = {.type = GMS_MESSAGE_SHUTDOWN};
    (void)state;
    assert_int_equal(cluster_log_count(&cluster, "is condemned"), 0);
    assert_int_equal(cluster_order(&cluster, 1, &down), GMS_OK);
    assert_int_equal(cluster_wait_end(&cluster, HARNESS_DEADLINE_MS), 0);
    assert_int_equal(cluster_log_count(&cluster, "is condemned"), 0);
    assert_int_equal(cluster_log_count(&cluster, "is promoted under epoch 2"), 0);
}

static void test_taken_over_later(void **state)
{
    const uint64_t begin_ns = gms_clock_ns();
    (void)state;
    assert_true(engine_reached(&second, AT_SERVING, HARNESS_DEADLINE_MS));
    assert_true(gms_clock_ns() - begin_ns > GMS_NS_PER_S / 2); /* timeouts.told_to_end, less what the setup took */
    assert_int_equal(cluster_number(&cluster, 0, "serving_engine"), 1);
}

static int end(void **state)
{
    (void)state;
    engine_finish(&first);
    engine_go(&second, GATE_END);
    engine_finish(&second);
    cluster_discard(&cluster);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stopped_meanwhile, told_to_end, end),
        cmocka_unit_test_setup_teardown(test_taken_over_later, told_to_end, end),
    };
    return cmocka_run_group_tests_name("told to end", tests, NULL, NULL);
}
