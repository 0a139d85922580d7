/* SPDX-License-Identifier: Apache-2.0
 *
 * V34: an engine rank that SIGKILL does not end. Nobody is promoted, it is named with pid and state, the coordinators
 * go on and can be stopped and started meanwhile, gms-exec can be told to leave; and when it ends at last, it goes on.
 * V14: whichever rank is killed, the group is not well, and says so in time.
 * V18, V19: what an engine starts inherits nothing of ours; while something of an engine lives its place is not taken.
 */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness.h"
#include "stage.h"

enum { RANKS = 2, AT_HERE = 1, AT_SERVES = 2, AT_READY = 3, GATE_ACT = 1, GATE_END = 1000, HELD = 600 };
enum act { ACT_NOTHING, ACT_WAIT_FOR_THE_DEAD, ACT_START_A_PROGRAM };
enum { VALUE_PROGRAM };

static struct cluster cluster;
static struct engine engines[4];
static char mount[160];

static void *ask_the_dead(void *context)
{
    char path[200];
    struct stat about;
    snprintf(path, sizeof path, "%s/file", (const char *)context);
    (void)stat(path, &about);
    return NULL;
}

/* Exec'ed, as a helper of an engine would be: V18. */
static pid_t start_sleeper(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        execlp("sleep", "sleep", "60", (char *)NULL);
        _exit(127);
    }
    return pid;
}

static gms_status body(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    struct gms_promotion promotion;
    pthread_t thread;
    gms_status status = rank_park_without_weights(rank, &life, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_HERE);
    do
        status = gms_wait_promotion(life.session, 2 * HARNESS_DEADLINE_MS, &promotion, error);
    while (status == GMS_E_DISCONNECTED); /* the coordinators are started again meanwhile */
    if (status == GMS_OK)
        status = rank_serve(life.session, "here", &life.adoption, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVES);
    rank_gate(rank, GATE_ACT);
    if (rank->argument == ACT_WAIT_FOR_THE_DEAD && rank->rank == 1)
        pthread_create(&thread, NULL, ask_the_dead, mount);
    if (rank->argument == ACT_START_A_PROGRAM && rank->rank == 1)
        rank->values[VALUE_PROGRAM] = (uint64_t)start_sleeper();
    rank_at(rank, AT_READY);
    rank_gate(rank, GATE_END);
    return GMS_OK;
}

static void begin(enum act act)
{
    cluster_start(&cluster,
                  &(struct cluster_options){.ranks = RANKS, .more = "detection : { progress_timeout = \"400ms\"; };"});
    snprintf(mount, sizeof mount, "%s/dead", cluster.directory);
    assert_int_equal(mkdir(mount, 0700), 0);
    engine_start(&engines[0], &cluster, 0, "a", body, (uint64_t)act);
    assert_true(engine_reached(&engines[0], AT_SERVES, HARNESS_DEADLINE_MS));
    engine_start(&engines[1], &cluster, 1, "b", body, ACT_NOTHING);
    assert_true(engine_reached(&engines[1], AT_HERE, HARNESS_DEADLINE_MS));
}

static bool asked(void *context)
{
    (void)context;
    return dead_mount_asked();
}

/* The status of rank 1 names the process and its state. */
static bool is_named(void *context)
{
    const char *wanted = context;
    bool found = false;
    json_t *status = cluster_status(&cluster, 1), *item;
    size_t i;
    json_array_foreach(json_object_get(status, "engines"), i, item)
    {
        const char *text = json_string_value(json_object_get(item, "waits_for"));
        found = found || (text != NULL && strstr(text, wanted) != NULL && strstr(text, "state D") != NULL);
    }
    json_decref(status);
    return found;
}

static bool is_logged(void *context)
{
    return cluster_log_has(&cluster, context);
}

static void expect_held(const char *pid)
{
    uint64_t until_ns = gms_clock_ns() + HELD * GMS_NS_PER_MS;
    if (!eventually(is_named, (void *)(uintptr_t)pid, HARNESS_DEADLINE_MS)) {
        json_t *status = cluster_status(&cluster, 1);
        char *text = json_dumps(status, JSON_INDENT(1));
        cluster_show_log(&cluster);
        fail_msg("%s is not named in %s", pid, text);
    }
    while (gms_clock_ns() < until_ns) {
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            uint64_t before_ns = gms_clock_ns();
            assert_int_equal(cluster_number(&cluster, rank, "serving_engine"), -1);
            assert_true(gms_clock_ns() - before_ns < GMS_NS_PER_S); /* they answer as ever */
        }
        poll(NULL, 0, 20);
    }
    assert_true(engine_rank_alive(&engines[1], 0));
    assert_int_equal(atomic_load(&engines[1].ranks[0].at), AT_HERE);
}

static void test_unkillable(void **state)
{
    char why[128], pid[32];
    (void)state;
    begin(ACT_WAIT_FOR_THE_DEAD);
    if (!dead_mount_open(mount, why)) {
        print_message("SKIP: %s\n", why);
        engine_finish(&engines[0]);
        engine_finish(&engines[1]);
        cluster_stop(&cluster);
        skip();
    }
    engine_go(&engines[0], GATE_ACT);
    assert_true(engine_reached(&engines[0], AT_READY, HARNESS_DEADLINE_MS));
    assert_true(eventually(asked, NULL, HARNESS_DEADLINE_MS));
    snprintf(pid, sizeof pid, "pid %d ", (int)engines[0].ranks[1].pid);
    engine_kill(&engines[0], 1);
    expect_held(pid);
    assert_true(cluster_log_has(&cluster, "was killed and does not end: it counts as gone"));
    assert_true(eventually(is_logged, (char[]){"is not retired here after"}, HARNESS_DEADLINE_MS));

    /* A planned stop does not wait for it, and the next world knows for whom it waits. */
    struct gms_message down = {.type = GMS_MESSAGE_SHUTDOWN};
    assert_int_equal(cluster_order(&cluster, 0, &down), GMS_OK);
    assert_int_equal(cluster_wait_end(&cluster, HARNESS_DEADLINE_MS), 0);
    cluster_relaunch(&cluster, NULL);
    expect_held(pid);

    dead_mount_close(); /* at last */
    assert_true(engine_reached(&engines[1], AT_SERVES, HARNESS_DEADLINE_MS));
    engine_finish(&engines[0]);
    engine_finish(&engines[1]);
    cluster_stop(&cluster);
}

static bool nobody_serves(void *context)
{
    uint32_t rank = *(const uint32_t *)context;
    return cluster_number(&cluster, rank, "serving_engine") == -1;
}

/* No successor: every rank says within a second that nobody serves. */
static void test_each_rank_in_turn(void **state)
{
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    for (uint32_t victim = 0; victim < RANKS; victim++) {
        char launch[16];
        snprintf(launch, sizeof launch, "turn-%u", victim);
        engine_start(&engines[victim], &cluster, victim, launch, body, ACT_NOTHING);
        assert_true(engine_reached(&engines[victim], AT_SERVES, HARNESS_DEADLINE_MS));
        engine_kill(&engines[victim], victim);
        for (uint32_t rank = 0; rank < RANKS; rank++)
            assert_true(eventually(nobody_serves, &rank, 1000));
        assert_true(engine_wait_end(&engines[victim], HARNESS_DEADLINE_MS)); /* the others were ended, too */
        engine_finish(&engines[victim]);
    }
    assert_true(cluster_log_count(&cluster, "NOBODY SERVES") >= RANKS * RANKS);
    cluster_stop(&cluster);
}

/* Does the process have a descriptor of ours: shared memory, a socket of the run directory, a pidfd? */
static bool has_something_of_ours(pid_t pid)
{
    char path[64], target[256];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *directory = opendir(path);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        ssize_t length = readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1);
        if (length <= 0 || atoi(entry->d_name) <= 2)
            continue;
        target[length] = '\0';
        if (strncmp(target, "/memfd:", 7) == 0 || strstr(target, "pidfd") != NULL || strncmp(target, "socket:", 7) == 0)
            found = true;
    }
    closedir(directory);
    return found;
}

static bool runs_sleep(void *context)
{
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", *(const pid_t *)context);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, name, sizeof name - 1) < 0)
        name[0] = '\0';
    gms_fd_close(&fd);
    return strncmp(name, "sleep", 5) == 0;
}

static void test_what_an_engine_starts(void **state)
{
    int pidfd = -1;
    (void)state;
    begin(ACT_START_A_PROGRAM);
    engine_go(&engines[0], GATE_ACT);
    assert_true(engine_reached(&engines[0], AT_READY, HARNESS_DEADLINE_MS));
    pid_t program_pid = (pid_t)engines[0].ranks[1].values[VALUE_PROGRAM];
    assert_int_equal(gms_pidfd_open(program_pid, &pidfd, NULL), GMS_OK);
    assert_true(eventually(runs_sleep, &program_pid, HARNESS_DEADLINE_MS));
    assert_false(has_something_of_ours(program_pid));
    engine_kill(&engines[0], 1);
    assert_true(engine_reached(&engines[1], AT_SERVES, HARNESS_DEADLINE_MS)); /* takeover as ever */
    gms_pidfd_signal(pidfd, SIGKILL); /* without gms-exec nobody knows of it, and it holds nothing */
    gms_fd_close(&pidfd);
    engine_finish(&engines[0]);
    engine_finish(&engines[1]);
    cluster_stop(&cluster);
}

/* V19: while something of an incarnation lives its place is taken. */
static void test_place_of_the_undead(void **state)
{
    char why[128];
    (void)state;
    begin(ACT_WAIT_FOR_THE_DEAD);
    if (!dead_mount_open(mount, why)) {
        print_message("SKIP: %s\n", why);
        engine_finish(&engines[0]);
        engine_finish(&engines[1]);
        cluster_stop(&cluster);
        skip();
    }
    engine_go(&engines[0], GATE_ACT);
    assert_true(engine_reached(&engines[0], AT_READY, HARNESS_DEADLINE_MS));
    assert_true(eventually(asked, NULL, HARNESS_DEADLINE_MS));
    engine_kill(&engines[0], 0); /* of rank 1 a thread lives on */
    engine_start(&engines[2], &cluster, 0, "c", body, ACT_NOTHING);
    poll(NULL, 0, HELD);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_not_equal(atomic_load(&engines[2].ranks[rank].at), AT_HERE);
    dead_mount_close();
    assert_true(engine_reached(&engines[1], AT_SERVES, HARNESS_DEADLINE_MS));
    for (int i = 0; i < 3; i++)
        engine_finish(&engines[i]);
    cluster_stop(&cluster);
}

static int teardown(void **state)
{
    (void)state;
    dead_mount_close(); /* whatever failed: nobody stays in state D */
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_unkillable, teardown),
        cmocka_unit_test(test_each_rank_in_turn),
        cmocka_unit_test(test_what_an_engine_starts),
        cmocka_unit_test_teardown(test_place_of_the_undead, teardown),
    };
    return cmocka_run_group_tests_name("unkillable", tests, NULL, NULL);
}
