/* SPDX-License-Identifier: Apache-2.0
 *
 * Reported fault V36. Coordinators that may have no more than 64 descriptors, and more clients than that: the clients
 * are displaced, nobody spins, and an engine starts and is succeeded. An engine that asks for pools until there are no
 * descriptors for them is told so, with the numbers, and its succession needs none. And all programs of ours work with
 * 1,100 descriptors that they inherited, so that their own are beyond what select() can name.
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
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/run_dir.h"
#include "harness.h"
#include "wire/channel.h"

enum { RANKS = 2, LIMIT = 72, CLIENTS = 40, ROUNDS = 3, AT_SERVING = 1, GATE_END = 1, INHERITED = 1100 };
enum { AT_PARKED = 1, AT_TAKEN_OVER = 2, AT_REFUSED = 3, GATE_MORE = 1, GATE_DONE = 2 };
enum { VALUE_ADOPTED, VALUE_POOLS, VALUE_REFUSED };

static struct cluster cluster;

static gms_status serve(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    gms_pool *kv = NULL;
    struct gms_membership membership;
    struct gms_adoption adoption;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status == GMS_OK)
        status = rank_attach_kv(session, HARNESS_SLOTS, &kv, error);
    if (status == GMS_OK)
        status = rank_serve(session, "here", &adoption, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    rank_gate(rank, GATE_END);
    return GMS_OK;
}

static void open_clients(int *fds)
{
    char path[GMS_RUN_PATH_BYTES];
    assert_int_equal(gms_run_dir_path(cluster.run_dir, "c", 0, path, NULL), GMS_OK);
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(gms_channel_connect(path, 2000, &fds[i], NULL), GMS_OK);
}

static void test_few_descriptors(void **state)
{
    int fds[CLIENTS];
    static struct engine engines[ROUNDS];
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    for (uint32_t round = 0; round < ROUNDS; round++) {
        char launch[16];
        snprintf(launch, sizeof launch, "few-%u", round);
        open_clients(fds); /* silent ones */
        json_t *status = cluster_status(&cluster, 0);
        assert_non_null(status);
        json_decref(status);
        engine_start(&engines[round], &cluster, round, launch, serve, 0);
        if (round > 0)
            engine_kill(&engines[round - 1], round % RANKS);
        assert_true(engine_reached(&engines[round], AT_SERVING, HARNESS_DEADLINE_MS));
        for (int i = 0; i < CLIENTS; i++)
            gms_fd_close(&fds[i]);
    }
    assert_true(cluster_log_count(&cluster, "out of file descriptors") < 20);
    for (uint32_t round = 0; round < ROUNDS; round++)
        engine_finish(&engines[round]);
    cluster_stop(&cluster);
}

/* ------------------------------------------------------------------------------------------- until refused --- */

/* Parks; whoever serves asks for one pool after the other at GATE_MORE until it is refused. */
static gms_status ask_for_pools(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    gms_status status = rank_park(rank, &life, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_PARKED);
    status = rank_take_over(rank, &life, "here", error);
    if (status != GMS_OK)
        return status;
    rank->values[VALUE_ADOPTED] = life.adoption.adopted;
    if (life.adoption.adopted == 0)
        status = rank_seal(life.session, life.kv, 3, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_TAKEN_OVER);
    rank_gate(rank, GATE_MORE);
    while (status == GMS_OK) {
        struct gms_pool_description more = {.kind = GMS_POOL_WEIGHTS, .bytes = 4096};
        snprintf(more.name, sizeof more.name, "more-%llu", (unsigned long long)rank->values[VALUE_POOLS]);
        gms_pool *pool = NULL;
        status = gms_pool_attach(life.session, &more, &pool, error);
        rank->values[VALUE_POOLS] += status == GMS_OK;
    }
    rank->values[VALUE_REFUSED] = (uint64_t)status;
    rank->status = status; /* the words, for the parent */
    rank->error_rank = error->rank;
    memcpy(rank->text, error->text, sizeof rank->text);
    rank_at(rank, AT_REFUSED);
    rank_gate(rank, GATE_DONE);
    return GMS_OK;
}

/* Gives one coordinator `spare` descriptors more than it has now. */
static void limit_coordinator(uint32_t rank, rlim_t spare)
{
    struct rlimit limit;
    pid_t pid = (pid_t)cluster_number(&cluster, rank, "pid");
    assert_true(pid > 1);
    assert_int_equal(prlimit(pid, RLIMIT_NOFILE, NULL, &limit), 0);
    limit.rlim_cur = (rlim_t)cluster_number(&cluster, rank, "descriptors") + spare;
    assert_int_equal(prlimit(pid, RLIMIT_NOFILE, &limit, NULL), 0);
}

static void until_refused(rlim_t spare)
{
    struct engine engines[2];
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    engine_start(&engines[0], &cluster, 0, "a", ask_for_pools, 0);
    assert_true(engine_reached(&engines[0], AT_TAKEN_OVER, HARNESS_DEADLINE_MS));
    engine_start(&engines[1], &cluster, 1, "b", ask_for_pools, 0);
    assert_true(engine_reached(&engines[1], AT_PARKED, HARNESS_DEADLINE_MS));
    if (spare > 0)
        limit_coordinator(1, spare);
    engine_go(&engines[0], GATE_MORE);
    assert_true(engine_reached(&engines[0], AT_REFUSED, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        const struct engine_rank *told = &engines[0].ranks[rank];
        if (rank == 0)
            fprintf(stderr, "after %llu pools: %s\n", (unsigned long long)told->values[VALUE_POOLS], told->text);
        if (spare == 0) { /* there are enough for all pools that a group may have */
            assert_int_equal(told->values[VALUE_REFUSED], GMS_E_NO_CAPACITY);
            continue;
        }
        assert_int_equal(told->values[VALUE_REFUSED], GMS_E_DESCRIPTORS);
        assert_int_equal(told->error_rank, 1);
        assert_non_null(strstr(told->text, "descriptors"));
        assert_non_null(strstr(told->text, "used of"));
    }
    engine_kill(&engines[0], 0);
    assert_true(engine_reached(&engines[1], AT_TAKEN_OVER, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(engines[1].ranks[rank].values[VALUE_ADOPTED], 1);
    assert_true(cluster_log_count(&cluster, "out of file descriptors") < 20);
    engine_finish(&engines[0]);
    engine_finish(&engines[1]);
    cluster_discard(&cluster); /* a rank without descriptors cannot be asked to stop */
}

static void test_until_refused(void **state)
{
    (void)state;
    for (rlim_t spare = 1; spare <= 6; spare += 5)
        until_refused(spare);
}

/* The limit of the report: 256. */
static void test_256(void **state)
{
    (void)state;
    until_refused(0);
}

/* ------------------------------------------------------------------------------------------------ inherited --- */

static bool open_many(void)
{
    bool all = true;
    for (int i = 0; i < INHERITED; i++)
        all = open("/dev/null", O_RDONLY) >= 0 && all; /* not close-on-exec */
    return all;
}

/* In the coordinators' place, told so by the environment: they inherit many, as under a launcher that has many. */
static int become_coordinator(char **argv)
{
    char path[512];
    snprintf(path, sizeof path, "%s/gms-coord", getenv("GMS_BIN"));
    if (open_many())
        execv(path, argv);
    perror(path);
    return 78;
}

/* Keeper, gms-up, gms-exec and gms-ctl inherit them from this test. */
static void test_many_inherited(void **state)
{
    struct engine engines[2];
    char self[256] = "", paths[3][512];
    (void)state;
    assert_true(open_many());
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    cluster_prepare(&cluster, &(struct cluster_options){.ranks = RANKS}, true);
    char *up[] = {
        (char *)(uintptr_t)program("gms-up", paths[0]), "--config", cluster.config, "--gms-coord", self, NULL};
    setenv("GMS_TEST_INHERIT", "1", 1);
    cluster.launcher_pid = start_program(up, cluster.log, &cluster.launcher);
    unsetenv("GMS_TEST_INHERIT");
    cluster_await(&cluster);
    assert_true(cluster_number(&cluster, 0, "descriptors") > INHERITED); /* they did inherit them */
    engine_start(&engines[0], &cluster, 0, "a", ask_for_pools, 0);
    assert_true(engine_reached(&engines[0], AT_TAKEN_OVER, HARNESS_DEADLINE_MS));
    engine_start(&engines[1], &cluster, 1, "b", ask_for_pools, 0);
    assert_true(engine_reached(&engines[1], AT_PARKED, HARNESS_DEADLINE_MS));
    engine_kill(&engines[0], 1);
    assert_true(engine_reached(&engines[1], AT_TAKEN_OVER, HARNESS_DEADLINE_MS));
    char *status[] = {(char *)(uintptr_t)program("gms-ctl", paths[1]), "--run-dir", cluster.run_dir, "status", NULL};
    assert_int_equal(run_program(status, cluster.log), 0);
    char *exec[] = {(char *)(uintptr_t)program("gms-exec", paths[2]),
                    "--run-dir",
                    cluster.run_dir,
                    "--engine=7",
                    "--rank=0",
                    "--launch=x",
                    "--",
                    "sh",
                    "-c",
                    "test -e /proc/self/fd/1050",
                    NULL};
    assert_int_equal(run_program(exec, cluster.log), 0); /* what the engine inherits is its user's business */
    int64_t world = cluster_number(&cluster, 0, "world");
    int coordinator = cluster_coordinator(&cluster, 0); /* and what is started again */
    gms_pidfd_signal(coordinator, SIGKILL);
    gms_fd_close(&coordinator);
    cluster.world = world;
    cluster_await(&cluster);
    engine_finish(&engines[0]);
    engine_finish(&engines[1]);
    cluster_stop(&cluster);
}

/* For this process and all that it starts. Hard too, where that can be put back: the programs raise the soft one. */
static bool allow(rlim_t descriptors)
{
    struct rlimit limit = {.rlim_cur = descriptors, .rlim_max = descriptors};
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

int main(int argc, char **argv)
{
    if (getenv("GMS_TEST_INHERIT") != NULL)
        return become_coordinator(argv);
    if (argc != 2)
        return 64;
    bool few = strcmp(argv[1], "few") == 0, inherited = strcmp(argv[1], "inherited") == 0;
    if (!allow(few ? LIMIT : inherited ? INHERITED + 1000 : 256)) {
        fprintf(stderr, "skipped: the limit of descriptors cannot be set\n");
        return 77;
    }
    const struct CMUnitTest all_few[] = {cmocka_unit_test(test_few_descriptors)};
    const struct CMUnitTest all_256[] = {cmocka_unit_test(test_256), cmocka_unit_test(test_until_refused)};
    const struct CMUnitTest all_inherited[] = {cmocka_unit_test(test_many_inherited)};
    if (few)
        return cmocka_run_group_tests_name("few descriptors", all_few, NULL, NULL);
    if (inherited)
        return cmocka_run_group_tests_name("inherited descriptors", all_inherited, NULL, NULL);
    return cmocka_run_group_tests_name("256 descriptors", all_256, NULL, NULL);
}
