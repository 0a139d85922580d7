/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-up with real launchers and coordinators: what it starts again and what it does not; TERM to the launcher, to all
 * in any order (V44, V45); the launcher's end (V46); coordinators that were stopped and go on (V17); its own end.
 */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "harness.h"
#include "processes.h"
#include "sessions/sessions.h"
#include "wire/channel.h"

enum { RANKS = 2, AT_SERVING = 1, AT_AGAIN = 2, GATE_AGAIN = 1, GATE_END = 9, ROUNDS = 5 };

static struct cluster cluster;
static struct engine engine;
static struct drill_processes processes;
static char scratch_prefix[96];

/* ------------------------------------------------------------------------------------------------ engine ----- */

static gms_status live(struct engine_rank *rank, struct gms_error *error)
{
    return rank_serve_until(rank, AT_SERVING, GATE_END, error);
}

static bool serves_whole(void *context)
{
    int64_t *former = context;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        json_t *status = cluster_status(&cluster, rank);
        json_t *first = json_array_get(json_object_get(status, "engines"), 0);
        int64_t world = json_integer_value(json_object_get(status, "world"));
        bool whole = status != NULL && json_is_true(json_object_get(first, "connected")) &&
                     json_integer_value(json_object_get(status, "serving_engine")) == 0 && world != *former &&
                     json_integer_value(json_object_get(status, "epoch")) == 1;
        json_decref(status);
        if (!whole)
            return false;
    }
    return true;
}

/* Whole, in another world than `former` (0: in any), and nothing was taken over. Returns the world. */
static int64_t await_whole(int64_t former)
{
    if (!eventually(serves_whole, &former, HARNESS_DEADLINE_MS)) {
        char *show[] = {"tail", "-n", "40", cluster.log, NULL};
        run_program(show, "/dev/stderr");
        fail_msg("the group is not whole again");
    }
    assert_int_equal(cluster_log_count(&cluster, "is condemned"), 0);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_true(engine_rank_alive(&engine, rank));
    return cluster_number(&cluster, 0, "world");
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

/* --------------------------------------------------------------------------------------------- processes ----- */

/* `started_by`: --launcher; NULL: gms-up's own choice. */
static struct drill_process *start_up_with(const char *name, const char *started_by)
{
    char path[512];
    const char *words[] = {program("gms-up", path),
                           "--config",
                           cluster.config,
                           "--settled",
                           "100ms",
                           started_by != NULL ? "--launcher" : NULL,
                           started_by,
                           NULL};
    struct drill_process *process = NULL;
    struct gms_error error;
    if (drill_process_start(&processes, name, cluster.log, words, -1, SIGTERM, &process, &error) != GMS_OK)
        fail_msg("%s", error.text);
    return process;
}

static struct drill_process *start_up(const char *name)
{
    return start_up_with(name, NULL);
}

static struct drill_process *up(void)
{
    return &processes.items[0];
}

static pid_t launcher(char scratch[96])
{
    char path[128], text[256] = "";
    unsigned long long ticks;
    int pid = 0;
    snprintf(path, sizeof path, "%s/up.job", cluster.run_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    gms_fd_close(&fd);
    return length > 0 && sscanf(text, "%d %llu %95s", &pid, &ticks, scratch) == 3 ? (pid_t)pid : 0;
}

static pid_t keeper(void)
{
    char path[GMS_RUN_PATH_BYTES];
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    int fd = -1;
    assert_int_equal(gms_run_dir_path(cluster.run_dir, "keeper", -1, path, NULL), GMS_OK);
    if (gms_channel_connect(path, 1000, &fd, NULL) != GMS_OK)
        return 0;
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
    gms_fd_close(&fd);
    return peer.pid;
}

/* Only what descends from this test, named by pidfd. */
static void signal_one(pid_t pid, int number)
{
    int pidfd = -1;
    struct gms_error error;
    if (drill_descendant_open(getpid(), pid, &pidfd, &error) != GMS_OK)
        fail_msg("pid %d: %s", (int)pid, error.text);
    gms_pidfd_signal(pidfd, number);
    gms_fd_close(&pidfd);
}

static void assert_up_ends(int expected)
{
    if (!drill_process_wait(up(), gms_clock_ns() + HARNESS_DEADLINE_MS * GMS_NS_PER_MS))
        fail_msg("gms-up does not end");
    char outcome[32], wanted[32];
    snprintf(wanted, sizeof wanted, "exit %d", expected);
    assert_string_equal(drill_process_outcome(up(), outcome, sizeof outcome), wanted);
}

/* How many scratch directories of this run directory are there? */
static int scratch_left(void)
{
    const char *base = strrchr(scratch_prefix, '/') + 1;
    char parent[96];
    snprintf(parent, sizeof parent, "%.*s", (int)(base - scratch_prefix - 1), scratch_prefix);
    DIR *directory = opendir(parent);
    struct dirent *entry;
    int count = 0;
    assert_non_null(directory);
    while ((entry = readdir(directory)) != NULL)
        count += strncmp(entry->d_name, base, strlen(base)) == 0;
    closedir(directory);
    return count;
}

static int setup(void **state)
{
    (void)state;
    struct gms_error error;
    char scratch[96] = "";
    assert_int_equal(drill_processes_prepare(&error), GMS_OK);
    memset(&processes, 0, sizeof processes);
    cluster_prepare(&cluster, &(struct cluster_options){.ranks = RANKS, .heartbeat = "300ms"}, false);
    start_up("gms-up");
    engine_start(&engine, &cluster, 0, "a", live, 0);
    assert_true(engine_reached(&engine, AT_SERVING, HARNESS_DEADLINE_MS));
    assert_true(launcher(scratch) > 0);
    snprintf(scratch_prefix, sizeof scratch_prefix, "%.*s", (int)(strrchr(scratch, '.') + 1 - scratch), scratch);
    return 0;
}

/* Engines first; a keeper that holds memory does not end by being asked. */
static int teardown(void **state)
{
    (void)state;
    engine_finish(&engine);
    drill_process_end(up(), 15000);
    drill_processes_end(&processes, 0);
    cluster_discard(&cluster);
    return 0;
}

/* -------------------------------------------------------------------------------------------- planned ends --- */

static void test_term_to_gms_up(void **state)
{
    (void)state;
    await_whole(0);
    uint64_t begin_ns = gms_clock_ns();
    drill_process_ask(up());
    assert_up_ends(0);
    assert_true(gms_clock_ns() - begin_ns < 8 * GMS_NS_PER_S); /* asked, and not hurried after --grace (10 s) */
    assert_true(cluster_log_has(&cluster, "planned stop agreed by all ranks"));
    assert_int_equal(scratch_left(), 0);
    assert_int_equal(access(cluster.run_dir, F_OK), 0);
    assert_true(keeper() > 0); /* it holds the engine's memory */
    assert_true(engine_rank_alive(&engine, 0));
    start_up("gms-up");
    await_whole(0);
    assert_int_equal(scratch_left(), 1);
}

static void test_down(void **state)
{
    struct gms_message down = {.type = GMS_MESSAGE_SHUTDOWN};
    (void)state;
    await_whole(0);
    up()->asked_to_end = true;
    assert_int_equal(cluster_order(&cluster, 1, &down), GMS_OK);
    assert_up_ends(0);
    assert_int_equal(scratch_left(), 0);
}

/* V44: only the launcher is told, as batch systems do. */
static void test_term_to_the_launcher(void **state)
{
    char scratch[96];
    (void)state;
    await_whole(0);
    up()->asked_to_end = true;
    signal_one(launcher(scratch), SIGTERM);
    assert_up_ends(0); /* Open MPI 5 drops what its ranks say at their end, so the log is no witness here */
    assert_int_equal(cluster_log_count(&cluster, "is condemned"), 0);
    assert_int_equal(scratch_left(), 0);
}

/* V44: told twice, as by somebody who is in a hurry; and the batch system's way, CONT and TERM to all of it while an
 * engine rank is stopped. */
static void test_term_twice(void **state)
{
    (void)state;
    await_whole(0);
    drill_process_ask(up());
    drill_process_ask(up());
    assert_up_ends(0);
    assert_int_equal(cluster_log_count(&cluster, "is condemned"), 0);
    assert_int_equal(scratch_left(), 0);
    start_up("gms-up");
    await_whole(0);
}

static void test_term_with_a_stopped_engine(void **state)
{
    static const int numbers[] = {SIGCONT, SIGTERM};
    char scratch[96];
    (void)state;
    await_whole(0);
    gms_pidfd_signal(engine.ranks[1].pidfd, SIGSTOP);
    pid_t tree[RANKS + 2] = {up()->pid, launcher(scratch)};
    for (uint32_t rank = 0; rank < RANKS; rank++)
        tree[2 + rank] = (pid_t)cluster_number(&cluster, rank, "pid");
    int pidfds[RANKS + 2];
    for (int i = 0; i < RANKS + 2; i++)
        assert_int_equal(drill_descendant_open(getpid(), tree[i], &pidfds[i], NULL), GMS_OK);
    up()->asked_to_end = true;
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < RANKS + 2; i++)
            gms_pidfd_signal(pidfds[i], numbers[n]);
    for (int i = 0; i < RANKS + 2; i++)
        gms_fd_close(&pidfds[i]);
    uint64_t begin_ns = gms_clock_ns();
    assert_up_ends(0);
    assert_true(gms_clock_ns() - begin_ns < 15 * GMS_NS_PER_S); /* half of what batch systems give */
    assert_int_equal(cluster_log_count(&cluster, "is condemned"), 0);
    assert_int_equal(scratch_left(), 0);
    gms_pidfd_signal(engine.ranks[1].pidfd, SIGCONT);
    start_up("gms-up");
    await_whole(0);
}

static bool second_serves(void *context)
{
    (void)context;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (cluster_number(&cluster, rank, "serving_engine") != 1)
            return false;
    return true;
}

/* V44: told in the middle of a takeover. It stops; what was begun is carried through by the next start. */
static void test_term_in_a_takeover(void **state)
{
    struct engine second;
    (void)state;
    await_whole(0);
    engine_start(&second, &cluster, 1, "b", live, 0);
    assert_true(eventually(a_shadow_is_parked, NULL, HARNESS_DEADLINE_MS));
    engine_kill(&engine, 0);
    drill_process_ask(up());
    assert_up_ends(0);
    assert_int_equal(scratch_left(), 0);
    start_up("gms-up");
    assert_true(engine_reached(&second, AT_SERVING, HARNESS_DEADLINE_MS));
    assert_true(eventually(second_serves, NULL, HARNESS_DEADLINE_MS));
    assert_int_equal(cluster_number(&cluster, 0, "epoch"), 2); /* once */
    assert_int_equal(cluster_number(&cluster, 1, "epoch"), 2);
    engine_finish(&second);
}

/* V45: as a service manager does it, all at once, in whatever order. GMS_TEST_ROUNDS: how often. */
static void test_term_to_all(void **state)
{
    unsigned seed = (unsigned)gms_clock_ns();
    const char *given = getenv("GMS_TEST_SEED");
    (void)state;
    if (given != NULL)
        seed = (unsigned)strtoul(given, NULL, 10);
    const char *often = getenv("GMS_TEST_ROUNDS");
    int rounds = often != NULL ? atoi(often) : ROUNDS;
    print_message("GMS_TEST_SEED=%u\n", seed);
    for (int round = 0; round < rounds; round++) {
        char scratch[96];
        await_whole(0);
        pid_t victims[RANKS + 3] = {up()->pid, launcher(scratch), keeper()};
        for (uint32_t rank = 0; rank < RANKS; rank++)
            victims[3 + rank] = (pid_t)cluster_number(&cluster, rank, "pid");
        int pidfds[RANKS + 3];
        for (int i = 0; i < RANKS + 3; i++)
            assert_int_equal(drill_descendant_open(getpid(), victims[i], &pidfds[i], NULL), GMS_OK);
        up()->asked_to_end = true;
        if (round > 0) { /* a second TERM within 5 s ends a keeper by design */
            gms_fd_close(&pidfds[2]);
            pidfds[2] = pidfds[RANKS + 2];
        }
        for (int left = round > 0 ? RANKS + 2 : RANKS + 3; left > 0; left--) {
            int at = (int)((unsigned)rand_r(&seed) % (unsigned)left);
            gms_pidfd_signal(pidfds[at], SIGTERM);
            gms_fd_close(&pidfds[at]);
            pidfds[at] = pidfds[left - 1];
        }
        assert_up_ends(0);
        assert_int_equal(cluster_log_count(&cluster, "is condemned"), 0);
        assert_int_equal(keeper(), victims[2]); /* it holds memory: one TERM is not enough */
        assert_int_equal(scratch_left(), 0);
        start_up("gms-up");
    }
    await_whole(0);
}

/* V45, engines too: all of a node's processes are told at once. What an engine's death before the coordinators' own
 * end sets going is not finished by a successor that is ending itself; the next start has nothing to doubt, and a new
 * engine serves. */
static void test_term_to_engines_too(void **state)
{
    struct engine second, third;
    unsigned seed = (unsigned)gms_clock_ns();
    const char *given = getenv("GMS_TEST_SEED");
    char scratch[96];
    (void)state;
    if (given != NULL)
        seed = (unsigned)strtoul(given, NULL, 10);
    print_message("GMS_TEST_SEED=%u\n", seed);
    await_whole(0);
    engine_start(&second, &cluster, 1, "b", live, 0);
    assert_true(eventually(a_shadow_is_parked, NULL, HARNESS_DEADLINE_MS));
    int pidfds[3 * RANKS + 2], count = 0, first_engine;
    assert_int_equal(drill_descendant_open(getpid(), up()->pid, &pidfds[count++], NULL), GMS_OK);
    assert_int_equal(drill_descendant_open(getpid(), launcher(scratch), &pidfds[count++], NULL), GMS_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        pid_t pid = (pid_t)cluster_number(&cluster, rank, "pid");
        assert_int_equal(drill_descendant_open(getpid(), pid, &pidfds[count++], NULL), GMS_OK);
    }
    first_engine = count;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(gms_pidfd_open(engine.ranks[rank].pid, &pidfds[count++], NULL), GMS_OK);
        assert_int_equal(gms_pidfd_open(second.ranks[rank].pid, &pidfds[count++], NULL), GMS_OK);
    }
    up()->asked_to_end = true;
    /* An engine rank that dies of its TERM at once; this test's own would not, they have its handlers. */
    bool told[3 * RANKS + 2] = {false};
    for (int left = count; left > 0; left--) {
        int at = (int)((unsigned)rand_r(&seed) % (unsigned)count);
        while (told[at])
            at = (at + 1) % count;
        told[at] = true;
        gms_pidfd_signal(pidfds[at], at < first_engine ? SIGTERM : SIGKILL);
        gms_fd_close(&pidfds[at]);
    }
    assert_up_ends(0);
    assert_false(second.ranks[0].at == AT_SERVING || second.ranks[1].at == AT_SERVING);
    start_up("gms-up");
    engine_start(&third, &cluster, 2, "c", live, 0);
    assert_true(engine_reached(&third, AT_SERVING, HARNESS_DEADLINE_MS));
    assert_int_equal(cluster_log_count(&cluster, "an operator must decide"), 0);
    engine_finish(&second);
    engine_finish(&third);
}

/* ----------------------------------------------------------------------------------------- unplanned ends ---- */

/* V46: the launcher is killed; its ranks may live on for a while, and are replaced. */
static void test_kill_the_launcher(void **state)
{
    char scratch[96];
    (void)state;
    int64_t world = await_whole(0);
    signal_one(launcher(scratch), SIGKILL);
    world = await_whole(world);
    signal_one(launcher(scratch), SIGKILL);
    await_whole(world);
    assert_int_equal(scratch_left(), 1); /* the running one's */
}

static bool start_has_failed(void *context)
{
    (void)context;
    return cluster_log_has(&cluster, "the coordinators' start failed");
}

static void test_kill_a_rank(void **state)
{
    (void)state;
    int64_t world = await_whole(0);
    uint64_t begin_ns = gms_clock_ns();
    signal_one((pid_t)cluster_number(&cluster, 1, "pid"), SIGKILL);
    await_whole(world);
    print_message("whole again after %llu ms\n", (unsigned long long)((gms_clock_ns() - begin_ns) / GMS_NS_PER_MS));
}

static bool has_keeper(void *context)
{
    pid_t *former = context, pid = keeper();
    return pid > 0 && pid != *former && cluster_log_count(&cluster, "a keeper is back") == RANKS;
}

/* All places of rank 0 are taken, and it makes room by closing gms-up's connection too: nobody has died. */
static void test_displaced(void **state)
{
    enum { CROWD = GMS_SESSIONS_MAX + 16 };
    static int crowd[CROWD];
    char byte;
    (void)state;
    int64_t world = await_whole(0);
    for (int i = 0, failures = 0; i < CROWD;
         i += crowd[i] >= 0) { /* gms-up, coming back, displaces who has not greeted */
        crowd[i] = cluster_client(&cluster, 0, GMS_CLIENT_CONTROL, 0);
        failures += crowd[i] < 0;
        assert_true(failures < CROWD);
    }
    assert_int_equal(recv(crowd[0], &byte, 1, MSG_DONTWAIT), 0); /* ours are displaced, so gms-up's was before */
    for (int i = 0; i < CROWD; i++)
        gms_fd_close(&crowd[i]);
    assert_int_equal(await_whole(0), world);
    assert_int_equal(cluster_log_count(&cluster, "the coordinators are gone"), 0);
    assert_int_equal(cluster_log_count(&cluster, "started the coordinators"), 1);
    signal_one((pid_t)cluster_number(&cluster, 1, "pid"), SIGKILL);
    await_whole(world);
    assert_int_equal(cluster_log_count(&cluster, "the coordinators are gone"), 1); /* and it was watching again */
    assert_int_equal(cluster_log_count(&cluster, "started the coordinators"), 2);
}

static void test_kill_the_keeper(void **state)
{
    (void)state;
    int64_t world = await_whole(0);
    pid_t former = keeper();
    signal_one(former, SIGKILL);
    assert_true(eventually(has_keeper, &former, HARNESS_DEADLINE_MS));
    assert_int_equal(await_whole(0), world); /* nobody else noticed */
    signal_one((pid_t)cluster_number(&cluster, 0, "pid"), SIGKILL);
    await_whole(world); /* and the new one has everything */
}

static void test_kill_gms_up(void **state)
{
    struct gms_error error;
    (void)state;
    int64_t world = await_whole(0);
    up()->asked_to_end = true;
    gms_pidfd_signal(up()->pidfd, SIGKILL);
    assert_true(drill_process_wait(up(), gms_clock_ns() + HARNESS_DEADLINE_MS * GMS_NS_PER_MS));
    assert_int_equal(await_whole(0), world); /* everything runs on */
    start_up("gms-up");
    assert_int_equal(await_whole(0), world);
    signal_one((pid_t)cluster_number(&cluster, 1, "pid"), SIGKILL); /* the next one looks after it */
    await_whole(world);
    assert_true(cluster_log_has(&cluster, "going on with them"));

    struct drill_process *second = start_up("second");
    assert_true(drill_process_wait(second, gms_clock_ns() + HARNESS_DEADLINE_MS * GMS_NS_PER_MS));
    char outcome[32];
    assert_string_equal(drill_process_outcome(second, outcome, sizeof outcome), "exit 69");
    assert_true(cluster_log_has(&cluster, "another gms-up looks after"));
    (void)error;
}

/* The ranks end while nobody looks, and their launcher takes its time: the next gms-up does not wait for it. */
static void test_kill_gms_up_and_all(void **state)
{
    char scratch[96];
    (void)state;
    int64_t world = await_whole(0);
    pid_t mpirun = launcher(scratch);
    pid_t ranks[RANKS];
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ranks[rank] = (pid_t)cluster_number(&cluster, rank, "pid");
    up()->asked_to_end = true;
    gms_pidfd_signal(up()->pidfd, SIGKILL);
    assert_true(drill_process_wait(up(), gms_clock_ns() + HARNESS_DEADLINE_MS * GMS_NS_PER_MS));
    signal_one(mpirun, SIGSTOP);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        signal_one(ranks[rank], SIGKILL);
    start_up("gms-up");
    await_whole(world);
    assert_true(cluster_log_has(&cluster, "going on with them"));
    assert_true(cluster_log_has(&cluster, "the coordinators are gone"));
    signal_one(mpirun, SIGCONT);
}

/* A start that fails by itself, here because somebody holds a rank's store: its ranks say so, and the next start does
 * not wait for the launcher's end. */
static void test_a_start_that_fails(void **state)
{
    char path[160];
    (void)state;
    int64_t world = await_whole(0);
    snprintf(path, sizeof path, "%s/store.1", cluster.run_dir);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    assert_int_equal(fcntl(fd, F_SETLK, &all), -1); /* rank 1 has it */
    signal_one((pid_t)cluster_number(&cluster, 1, "pid"), SIGKILL);
    uint64_t deadline_ns = gms_clock_ns() + HARNESS_DEADLINE_MS * GMS_NS_PER_MS;
    while (fcntl(fd, F_SETLK, &all) != 0 && gms_clock_ns() < deadline_ns)
        poll(NULL, 0, 1);
    assert_true(eventually(start_has_failed, NULL, HARNESS_DEADLINE_MS));
    assert_int_equal(cluster_log_count(&cluster, "the coordinator job ended"), 0);
    gms_fd_close(&fd); /* and the lock */
    await_whole(world);
}

static bool was_adopted(void *context)
{
    (void)context;
    return cluster_log_has(&cluster, "going on with them");
}

static bool was_not_started_twice(void *context)
{
    (void)context;
    return cluster_log_count(&cluster, "the coordinators were not started") >= 2;
}

/* A launcher that cannot be run for a while, after the job lived: gms-up tries until it can. */
static void test_a_launcher_that_is_away(void **state)
{
    static const char text[] = "#!/bin/sh\nexec mpirun --oversubscribe \"$@\"\n";
    char path[160], made[176];
    (void)state;
    int64_t world = await_whole(0);
    snprintf(path, sizeof path, "%s/launcher", cluster.directory);
    snprintf(made, sizeof made, "%s.new", path);
    up()->asked_to_end = true;
    gms_pidfd_signal(up()->pidfd, SIGKILL);
    assert_true(drill_process_wait(up(), gms_clock_ns() + HARNESS_DEADLINE_MS * GMS_NS_PER_MS));
    struct drill_process *next = start_up_with("gms-up", path);
    assert_true(eventually(was_adopted, NULL, HARNESS_DEADLINE_MS));
    signal_one((pid_t)cluster_number(&cluster, 1, "pid"), SIGKILL);
    assert_true(eventually(was_not_started_twice, NULL, HARNESS_DEADLINE_MS));
    assert_false(gms_pidfd_ended(next->pidfd));
    int fd = open(made, O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    gms_fd_close(&fd);
    assert_int_equal(rename(made, path), 0);
    await_whole(world);
}

/* V17: a coordinator that stood still for longer than anybody waits, and then goes on: it acts on nothing that it had
 * concluded before. */
static void test_a_stopped_coordinator(void **state)
{
    (void)state;
    int64_t world = await_whole(0);
    pid_t pid = (pid_t)cluster_number(&cluster, 1, "pid");
    int pidfd = -1;
    assert_int_equal(drill_descendant_open(getpid(), pid, &pidfd, NULL), GMS_OK);
    gms_pidfd_signal(pidfd, SIGSTOP);
    uint64_t until_ns = gms_clock_ns() + 3 * 300 * GMS_NS_PER_MS;
    while (gms_clock_ns() < until_ns) /* the time itself is what is tested */
        poll(NULL, 0, 10);
    gms_pidfd_signal(pidfd, SIGCONT);
    gms_fd_close(&pidfd);
    /* Its peers may have given it up, or not quite yet; in both cases the group is whole and nobody was taken over. */
    uint64_t settled_ns = gms_clock_ns() + 2 * GMS_NS_PER_S;
    while (gms_clock_ns() < settled_ns)
        poll(NULL, 0, 50);
    await_whole(0);
    assert_int_equal(cluster_number(&cluster, 1, "epoch"), 1);
    (void)world;
}

/* V17: all of them stood still, as when a whole machine is suspended. Each finds that it was itself away, and gives
 * nobody up: the same world goes on. */
static void test_all_coordinators_stopped(void **state)
{
    int pidfds[RANKS];
    (void)state;
    int64_t world = await_whole(0);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(
            drill_descendant_open(getpid(), (pid_t)cluster_number(&cluster, rank, "pid"), &pidfds[rank], NULL), GMS_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        gms_pidfd_signal(pidfds[rank], SIGSTOP);
    uint64_t until_ns = gms_clock_ns() + 5 * 300 * GMS_NS_PER_MS;
    while (gms_clock_ns() < until_ns) /* the time itself is what is tested */
        poll(NULL, 0, 10);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        gms_pidfd_signal(pidfds[rank], SIGCONT);
        gms_fd_close(&pidfds[rank]);
    }
    uint64_t settled_ns = gms_clock_ns() + 4 * 300 * GMS_NS_PER_MS; /* longer than a verdict takes */
    while (gms_clock_ns() < settled_ns)
        poll(NULL, 0, 50);
    assert_int_equal(await_whole(0), world);
    assert_int_equal(cluster_log_count(&cluster, "silent"), 0);
}

/* --------------------------------------------------------------------------------------------- no use -------- */

static void test_what_is_of_no_use(void **state)
{
    char path[512], config[128];
    (void)state;
    cluster_prepare(&cluster, &(struct cluster_options){.ranks = RANKS}, false);
    program("gms-up", path);
    snprintf(config, sizeof config, "%s/none.cfg", cluster.directory);
    char *usage[] = {path, "--settled", "soon", NULL};
    assert_int_equal(run_program(usage, cluster.log), 64);
    char *missing[] = {path, "--config", config, NULL};
    assert_int_equal(run_program(missing, cluster.log), 78);
    struct gms_error error;
    struct drill_process *process = NULL;
    assert_int_equal(drill_processes_prepare(&error), GMS_OK);
    memset(&processes, 0, sizeof processes);
    const char *launcher_missing[] = {path, "--config", cluster.config, "--launcher", "/nowhere/mpirun", NULL};
    assert_int_equal(
        drill_process_start(&processes, "gms-up", cluster.log, launcher_missing, -1, SIGTERM, &process, &error),
        GMS_OK);
    assert_up_ends(78);
    assert_true(cluster_log_has(&cluster, "/nowhere/mpirun cannot be run"));
    const char *refused[] = {path, "--config", cluster.config, "--", "--no-such-option", NULL};
    assert_int_equal(drill_process_start(&processes, "gms-up", cluster.log, refused, -1, SIGTERM, &process, &error),
                     GMS_OK);
    assert_up_ends(64);
    drill_processes_end(&processes, 0);
    cluster_discard(&cluster);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_term_to_gms_up),
        TEST(test_down),
        TEST(test_term_to_the_launcher),
        TEST(test_term_to_all),
        TEST(test_kill_the_launcher),
        TEST(test_kill_a_rank),
        TEST(test_displaced),
        TEST(test_kill_the_keeper),
        TEST(test_kill_gms_up),
        TEST(test_kill_gms_up_and_all),
        TEST(test_a_start_that_fails),
        TEST(test_a_launcher_that_is_away),
        TEST(test_a_stopped_coordinator),
        TEST(test_all_coordinators_stopped),
        TEST(test_term_twice),
        TEST(test_term_with_a_stopped_engine),
        TEST(test_term_in_a_takeover),
        TEST(test_term_to_engines_too),
        cmocka_unit_test(test_what_is_of_no_use),
    };
    if (getenv("GMS_TEST_FILTER") != NULL) /* one of them, by hand */
        cmocka_set_test_filter(getenv("GMS_TEST_FILTER"));
    return cmocka_run_group_tests_name("up", tests, NULL, NULL);
}
