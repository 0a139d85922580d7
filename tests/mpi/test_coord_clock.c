/* SPDX-License-Identifier: Apache-2.0
 *
 * Reported fault V40: the wall clock is stepped an hour forth and back under coordinators, keeper and engines, through
 * a takeover and a restart. Nothing may expire, end or begin because of it. Needs libfaketime; skipped without.
 *
 * "namespaces": each coordinator rank counts its monotonic time from somewhere else, as processes of different time
 * namespaces and different hosts do. A time of one process means nothing in another. Needs the right to make time
 * namespaces; skipped without.
 */
#include <fcntl.h>
#include <poll.h>
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

#include "base/fd.h"
#include "harness.h"

enum { RANKS = 2, SKIP = 77, AT_PARKED = 1, AT_SERVING = 2, AT_MORE = 10, GATE_MORE = 10, GATE_END = 99, SEALED = 4 };

static const char *const libraries[] = {"/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
                                        "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
                                        "/usr/lib64/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1"};

/* All processes look into one file for what to add to the time. */
static void step(const char *offset)
{
    int fd = open(getenv("FAKETIME_TIMESTAMP_FILE"), O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, offset, strlen(offset)), strlen(offset));
    gms_fd_close(&fd);
}

/* At each gate from GATE_MORE on: one operation of the group. */
static gms_status live(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    gms_status status = rank_park(rank, &life, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_PARKED);
    status = rank_take_over(rank, &life, "unix:/e", error);
    rank->values[0] = life.adoption.adopted;
    for (uint32_t slot = 0; slot < SEALED && status == GMS_OK && life.adoption.adopted == 0; slot++)
        status = rank_seal(life.session, life.kv, slot, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    for (int gate = GATE_MORE; status == GMS_OK; gate++) {
        rank_gate(rank, gate);
        if (atomic_load(&rank->go) >= GATE_END)
            break;
        status = rank_operate(&life, (uint64_t)gate, NULL, error);
        if (status == GMS_OK)
            rank_at(rank, gate);
    }
    gms_close(life.session);
    return status;
}

static void operate(struct engine *engine, int gate)
{
    engine_go(engine, gate);
    assert_true(engine_reached(engine, gate, HARNESS_DEADLINE_MS));
}

/* What the clock is made to show at a point of the story; NULL: nothing changes. */
struct story {
    const char *script; /* of the coordinators */
    const char *serving, *operated, *restarting, *killed;
};

static void show(const char *offset)
{
    if (offset != NULL)
        step(offset);
}

static void tell(const struct story *story)
{
    struct cluster cluster;
    struct engine engines[2];
    cluster_start(&cluster,
                  &(struct cluster_options){
                      .ranks = RANKS, .heartbeat = "300ms", .operation_timeout = "3s", .script = story->script});
    engine_start(&engines[0], &cluster, 0, "a", live, 0);
    assert_true(engine_reached(&engines[0], AT_SERVING, HARNESS_DEADLINE_MS));
    show(story->serving);
    engine_start(&engines[1], &cluster, 1, "b", live, 0);
    assert_true(engine_reached(&engines[1], AT_PARKED, HARNESS_DEADLINE_MS));
    operate(&engines[0], GATE_MORE);
    show(story->operated);
    operate(&engines[0], GATE_MORE + 1);
    assert_int_equal(cluster_log_count(&cluster, "is condemned"), 0);
    assert_int_equal(cluster_log_count(&cluster, "silent"), 0);

    /* A restart into what looks like the past, and a takeover. */
    cluster_kill_coordinators(&cluster, 0);
    show(story->restarting);
    cluster_relaunch(&cluster, NULL);
    operate(&engines[0], GATE_MORE + 2);
    assert_int_equal(cluster_number(&cluster, 0, "serving_engine"), 0);
    assert_int_equal(cluster_log_count(&cluster, "is condemned"), 0);
    engine_kill(&engines[0], 1);
    show(story->killed);
    assert_true(engine_reached(&engines[1], AT_SERVING, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(engines[1].ranks[rank].values[0], SEALED);
    operate(&engines[1], GATE_MORE);
    engine_finish(&engines[0]);
    engine_go(&engines[1], GATE_END);
    assert_true(engine_wait_end(&engines[1], HARNESS_DEADLINE_MS));
    engine_finish(&engines[1]);
    cluster_stop(&cluster);
}

static void test_steps(void **state)
{
    (void)state;
    time_t before = time(NULL);
    step("+3600s");
    assert_in_range(time(NULL) - before, 3500, 3700); /* the steps are real */
    step("+0");
    tell(&(struct story){.serving = "+3600s", .operated = "-3600s", .restarting = "-7200s", .killed = "+3600s"});
}

/* Rank 0 lives a day later than this process, rank 1 eleven days; after a restart too. */
static const char elsewhere[] = "shift; exec unshare --time --monotonic=$((86400 + 864000 * OMPI_COMM_WORLD_RANK)) "
                                "--fork --kill-child \"$0\" \"$@\"";

static void test_namespaces(void **state)
{
    (void)state;
    tell(&(struct story){.script = elsewhere});
}

static bool time_namespaces_are_allowed(void)
{
    char *words[] = {"unshare", "--time", "--monotonic=86400", "--fork", "true", NULL};
    return run_program(words, "/dev/null") == 0;
}

/* This program and all that it starts run with the library. */
static int start_again(char **argv)
{
    char path[] = "/tmp/gms-clock-XXXXXX";
    const char *library = NULL;
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0] && library == NULL; i++)
        library = access(libraries[i], R_OK) == 0 ? libraries[i] : NULL;
    if (library == NULL) {
        fprintf(stderr, "skipped: libfaketime is not installed\n");
        return SKIP;
    }
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, "+0", 2) != 2)
        return 1;
    close(fd);
    setenv("LD_PRELOAD", library, 1);
    setenv("FAKETIME_TIMESTAMP_FILE", path, 1);
    setenv("FAKETIME_NO_CACHE", "1", 1);
    setenv("DONT_FAKE_MONOTONIC", "1", 1);
    execv("/proc/self/exe", argv);
    perror("execv");
    return 1;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "namespaces") == 0) {
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_namespaces)};
        if (time_namespaces_are_allowed())
            return cmocka_run_group_tests_name("coord_clock namespaces", tests, NULL, NULL);
        fprintf(stderr, "skipped: no time namespace can be made here\n");
        return SKIP;
    }
    if (getenv("FAKETIME_TIMESTAMP_FILE") == NULL)
        return start_again(argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps)};
    int failed = cmocka_run_group_tests_name("coord_clock", tests, NULL, NULL);
    unlink(getenv("FAKETIME_TIMESTAMP_FILE"));
    return failed;
}
