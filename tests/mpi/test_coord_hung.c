/* SPDX-License-Identifier: Apache-2.0
 *
 * Hung, not dead, with real coordinators: an engine whose work stands still while another of its threads goes on, or
 * all of which is stopped, is succeeded; one that announced a pause is not; and a coordinator that stood still itself
 * accuses nobody (V15, V17). What is done before the kill, and what becomes of sealed KV after a device error (V32).
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness.h"

enum { RANKS = 2, SEALED = 5, AT_PARKED = 1, AT_SERVING = 2, AT_ACTING = 3, AT_DONE = 4, GATE_ACT = 1, GATE_END = 2 };
enum act { ACT_WORK, ACT_HANG, ACT_PAUSE, ACT_STICKY };
enum { VALUE_ADOPTED, VALUE_BEATS };
/* Short, and yet long enough for an engine that is well to get a turn on a busy machine. */
enum { TIMEOUT_MS = 1000 };
#define DETECTION "detection : { progress_timeout = \"1s\"; };\n"

/* ------------------------------------------------------------------------------------------------- engines ----- */

static volatile bool beating;

/* Answers whatever the work loop does: what makes health checks of other systems say OK. */
static void *beat(void *context)
{
    struct engine_rank *rank = context;
    while (beating) {
        const struct timespec pause = {.tv_nsec = 2000000};
        rank->values[VALUE_BEATS]++;
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* A work loop: until `until_ns`, or for ever. */
static void work(gms_session *session, uint64_t until_ns)
{
    gms_work(session, 1);
    while (gms_clock_ns() < until_ns) {
        const struct timespec pause = {.tv_nsec = 5000000};
        gms_token token = gms_step_begin(session);
        nanosleep(&pause, NULL);
        gms_step_complete(session, token);
        gms_progress(session);
    }
    gms_work(session, 0);
}

static gms_status act(struct engine_rank *rank, gms_session *session, struct gms_error *error)
{
    gms_status status = GMS_OK;
    bool mine = rank->rank == 1;
    switch ((enum act)(rank->argument & 0xff)) {
    case ACT_WORK:
        rank_at(rank, AT_ACTING);
        work(session, UINT64_MAX);
        break;
    case ACT_HANG:
        if (mine) {
            gms_step_begin(session);
            rank_at(rank, AT_ACTING);
            for (;;) /* a mutex that nobody gives back */
                pause();
        }
        rank_at(rank, AT_ACTING);
        work(session, UINT64_MAX);
        break;
    case ACT_PAUSE:
        if (mine) {
            gms_token token = gms_step_begin(session);
            const struct timespec capture = {.tv_sec = 2 * TIMEOUT_MS / 1000};
            gms_busy(session, 60000);
            rank_at(rank, AT_ACTING);
            nanosleep(&capture, NULL);
            gms_step_complete(session, token);
        }
        work(session, gms_clock_ns() + 3 * TIMEOUT_MS / 2 * GMS_NS_PER_MS);
        rank_at(rank, AT_DONE);
        break;
    case ACT_STICKY:
        rank_at(rank, AT_ACTING);
        if (mine)
            status = gms_report_sticky_error(session, (int32_t)(rank->argument >> 8), "a device error", error);
        break;
    }
    return status;
}

static gms_status body(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    struct gms_promotion promotion;
    pthread_t thread;
    gms_status status = rank_park_without_weights(rank, &life, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_PARKED);
    status = gms_wait_promotion(life.session, 2 * HARNESS_DEADLINE_MS, &promotion, error);
    if (status == GMS_OK)
        status = rank_serve(life.session, "here", &life.adoption, error);
    for (uint32_t slot = 0; slot < SEALED && status == GMS_OK && life.adoption.adopted == 0; slot++)
        status = rank_seal(life.session, life.kv, slot, error);
    if (status != GMS_OK)
        return status;
    rank->values[VALUE_ADOPTED] = life.adoption.adopted;
    beating = true;
    pthread_create(&thread, NULL, beat, rank);
    rank_at(rank, AT_SERVING);
    rank_gate(rank, GATE_ACT);
    status = act(rank, life.session, error);
    if (status == GMS_OK)
        rank_gate(rank, GATE_END);
    beating = false;
    pthread_join(thread, NULL);
    gms_close(life.session);
    return status;
}

/* ------------------------------------------------------------------------------------------------- helpers ----- */

static struct cluster cluster;
static struct engine engines[2];

static void begin(const char *more, const char *hooks, uint64_t argument)
{
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .more = more, .hooks = hooks});
    engine_start(&engines[0], &cluster, 0, "a", body, argument);
    assert_true(engine_reached(&engines[0], AT_SERVING, HARNESS_DEADLINE_MS));
    engine_start(&engines[1], &cluster, 1, "b", body, ACT_WORK);
    assert_true(engine_reached(&engines[1], AT_PARKED, HARNESS_DEADLINE_MS));
}

static void end(int first)
{
    for (int which = first; which < 2; which++) {
        engine_go(&engines[which], GATE_END);
        engine_finish(&engines[which]);
    }
    cluster_stop(&cluster);
}

static size_t takeovers(uint32_t rank)
{
    json_t *status = cluster_status(&cluster, rank);
    assert_non_null(status);
    size_t count = json_array_size(json_object_get(status, "takeovers"));
    json_decref(status);
    return count;
}

static void expect_succession(const char *cause)
{
    assert_true(engine_reached(&engines[1], AT_SERVING, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        json_t *status = cluster_status(&cluster, rank);
        const json_t *list = json_object_get(status, "takeovers");
        assert_int_equal(json_array_size(list), 1);
        assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "cause")), cause);
        json_decref(status);
    }
    assert_true(engine_wait_end(&engines[0], HARNESS_DEADLINE_MS));
    engine_finish(&engines[0]);
}

static void wait_ms(uint64_t ms)
{
    const struct timespec pause = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

static bool beats_on(void *context)
{
    const uint64_t *before = context;
    return engines[0].ranks[1].values[VALUE_BEATS] > *before + 5;
}

/* --------------------------------------------------------------------------------------------------- tests ----- */

/* V15: another thread answers all the time. */
static void test_frozen_work_loop(void **state)
{
    (void)state;
    begin(DETECTION, NULL, ACT_HANG);
    engine_go(&engines[0], GATE_ACT);
    assert_true(engine_reached(&engines[0], AT_ACTING, HARNESS_DEADLINE_MS));
    uint64_t before = engines[0].ranks[1].values[VALUE_BEATS];
    assert_true(eventually(beats_on, &before, HARNESS_DEADLINE_MS));
    expect_succession("stalled");
    assert_int_equal(engines[1].ranks[0].values[VALUE_ADOPTED], SEALED);
    assert_true(cluster_log_has(&cluster, "has work and has made no progress"));
    end(1);
}

/* Idle, and stopped as a whole: it could not even say that it has work. */
static void test_stopped_process(void **state)
{
    (void)state;
    begin(DETECTION, NULL, ACT_WORK);
    gms_pidfd_signal(engines[0].ranks[0].pidfd, SIGSTOP);
    expect_succession("stalled");
    assert_true(cluster_log_has(&cluster, "is stopped and has made no progress"));
    end(1);
}

static void test_announced_pause(void **state)
{
    (void)state;
    begin(DETECTION, NULL, ACT_PAUSE);
    engine_go(&engines[0], GATE_ACT);
    assert_true(engine_reached(&engines[0], AT_DONE, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(takeovers(rank), 0);
    engine_go(&engines[0], GATE_END); /* says goodbye: the successor serves then */
    assert_true(engine_reached(&engines[1], AT_SERVING, HARNESS_DEADLINE_MS));
    end(0);
}

/* V17: everything stood still for a while, the watchers too. */
static void test_coordinators_stood_still(void **state)
{
    int pidfds[RANKS];
    (void)state;
    begin(DETECTION, NULL, ACT_WORK);
    engine_go(&engines[0], GATE_ACT);
    assert_true(engine_reached(&engines[0], AT_ACTING, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        pidfds[rank] = cluster_coordinator(&cluster, rank);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        gms_pidfd_signal(pidfds[rank], SIGSTOP);
        gms_pidfd_signal(engines[0].ranks[rank].pidfd, SIGSTOP);
    }
    wait_ms(2 * TIMEOUT_MS);
    for (uint32_t rank = 0; rank < RANKS; rank++) { /* the accusers first */
        gms_pidfd_signal(pidfds[rank], SIGCONT);
        gms_fd_close(&pidfds[rank]);
    }
    wait_ms(20);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        gms_pidfd_signal(engines[0].ranks[rank].pidfd, SIGCONT);
    wait_ms(2 * TIMEOUT_MS);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(takeovers(rank), 0);
        assert_int_equal(cluster_number(&cluster, rank, "serving_engine"), 0);
    }
    assert_true(cluster_log_has(&cluster, "stood still itself"));
    end(0);
}

/* The helper that holds a living engine before it is killed; one that does not end is not waited for. */
static void test_before_kill(void **state)
{
    char file[] = "/tmp/gms-held-XXXXXX", hooks[512], text[256] = "";
    int fd = mkstemp(file);
    (void)state;
    assert_true(fd >= 0);
    snprintf(hooks, sizeof hooks,
             "{ before_kill = ( \"/bin/sh\", \"-c\", \"test -d /proc/$0 && echo $0 >>%s; exec sleep 30\" ); "
             "before_kill_timeout = \"1s\"; }",
             file);
    begin(NULL, hooks, ACT_WORK);
    struct gms_message order = {.type = GMS_MESSAGE_TAKEOVER};
    assert_int_equal(cluster_order(&cluster, 0, &order), GMS_OK);
    int pids[RANKS] = {engines[0].ranks[0].pid, engines[0].ranks[1].pid};
    expect_succession("commanded");
    assert_int_equal(cluster_log_count(&cluster, "has not ended within 1000 ms"), RANKS);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        char line[16];
        snprintf(line, sizeof line, "%d\n", pids[rank]);
        assert_non_null(strstr(text, line));
    }
    close(fd);
    unlink(file);
    end(1);
}

static void expect_adopted(const char *more, int32_t code, uint64_t adopted)
{
    begin(more, NULL, ACT_STICKY | (uint64_t)code << 8);
    engine_go(&engines[0], GATE_ACT);
    expect_succession("sticky");
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(engines[1].ranks[rank].values[VALUE_ADOPTED], adopted);
    assert_int_equal(cluster_log_has(&cluster, "sealed slots of this rank are not adopted"), adopted == 0);
    end(1);
}

/* V32: the process lives and would go on serving errors. */
static void test_sealed_after_device_error(void **state)
{
    enum { ILLEGAL_ADDRESS = 700, ECC = 214 };
    (void)state;
    expect_adopted(NULL, ILLEGAL_ADDRESS, SEALED); /* contents are checked by default */
    expect_adopted("takeover : { adopt_after_device_error = \"never\"; };", ILLEGAL_ADDRESS, 0);
    expect_adopted(NULL, ECC, 0);
    expect_adopted("takeover : { adopt_after_ecc_error = \"always\"; };", ECC, SEALED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frozen_work_loop), cmocka_unit_test(test_stopped_process),
        cmocka_unit_test(test_announced_pause),  cmocka_unit_test(test_coordinators_stood_still),
        cmocka_unit_test(test_before_kill),      cmocka_unit_test(test_sealed_after_device_error),
    };
    return cmocka_run_group_tests_name("coord_hung", tests, NULL, NULL);
}
