/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-keeper as a process: one for each run directory, its beginning and its end, and its sleep between.
 */
#include "keeper_support.h"

#include <sched.h>

/* ----------------------------------------------------------------------------------------- one instance -------- */

static void test_second_is_refused(void **state)
{
    struct stat info;
    (void)state;
    assert_int_equal(stat(keeper.run_dir, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0700); /* the keeper made it */
    assert_int_equal(keeper_run(NULL), 69);
    assert_int_equal(holder_run(1, 0, put_one), GMS_OK); /* and the first one was not disturbed */
}

static void test_twenty_starters(void **state)
{
    pid_t pids[20];
    int ends[2], exits[20], alive = 0;
    char word[7] = "";
    (void)state;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    for (int i = 0; i < 20; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
            dup2(null, STDERR_FILENO);
            keeper_exec(NULL, ends[1], NULL);
        }
    }
    close(ends[1]);
    assert_true(unit_read(ends[0], word, 6));
    /* The others end by themselves; when nothing holds the pipe any more, one is left. */
    char more;
    assert_false(unit_read(ends[0], &more, 1));
    close(ends[0]);
    for (int i = 0; i < 20; i++) {
        exits[i] = -1;
        uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
        pid_t ended = 0;
        /* The one that serves answers; everybody else is on the way out. */
        while (ended == 0 && gms_clock_ns() < deadline_ns && keeper_number("pid") != pids[i])
            ended = waitpid(pids[i], &exits[i], WNOHANG);
        if (ended == 0) {
            alive++;
            kill(pids[i], SIGTERM);
            assert_int_equal(unit_wait(pids[i]), 0);
            for (int j = i + 1; j < 20; j++) {
                int status = unit_wait(pids[j]);
                assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 69);
            }
            break;
        }
        assert_true(WIFEXITED(exits[i]) && WEXITSTATUS(exits[i]) == 69);
    }
    assert_int_equal(alive, 1);
}

static void test_killed_and_started_again(void **state)
{
    uint64_t newest = 0;
    struct gms_keeper_client client = {.fd = -1};
    (void)state;
    assert_int_equal(holder_run(3, 0, put_one), GMS_OK);
    keeper_kill();
    assert_status(gms_keeper_newest_world(keeper.run_dir, &newest, &error), GMS_E_DISCONNECTED);
    assert_text_has("gms-keeper --run-dir");
    assert_status(gms_keeper_connect(keeper.run_dir, 1, 0, 1, &client, &error), GMS_E_DISCONNECTED);
    for (int i = 0; i < 5; i++) {
        keeper_start(NULL);
        assert_int_equal(holder_run(1, 0, put_one), GMS_OK);
        assert_int_equal(holder_run(2, 0, get_one), GMS_OK);
        keeper_kill();
    }
}

static void lose_keeper(struct gms_keeper_client *client)
{
    int fd = memfd_create("x", MFD_CLOEXEC);
    gms_status status;
    do
        status = gms_keeper_put(client, "a", fd, NULL, 0, &error);
    while (status == GMS_OK);
    child_check(status == GMS_E_DISCONNECTED);
    gms_keeper_disconnect(client);
    do /* the next keeper takes what we have kept ourselves */
        status = gms_keeper_connect(keeper.run_dir, 1, 0, 4, client, &error);
    while (status == GMS_E_DISCONNECTED);
    child_check(status == GMS_OK);
    child_check(gms_keeper_put(client, "pool/kv/0", fd, NULL, 0, &error) == GMS_OK);
}

static void test_holder_outlives_keeper(void **state)
{
    (void)state;
    struct holder holder = holder_start(1, 0, lose_keeper);
    assert_int_equal(holder_status(&holder), GMS_OK);
    keeper_kill();
    keeper_start(NULL);
    holder_done(&holder);
    assert_int_equal(keeper_number("held"), 1);
    holder_end(&holder);
}

static void test_names_removed_and_made_anew(void **state)
{
    char lock[GMS_RUN_PATH_BYTES], path[GMS_RUN_PATH_BYTES];
    (void)state;
    run_path("keeper.lock", lock);
    run_path("keeper", path);
    assert_int_equal(holder_run(1, 0, put_one), GMS_OK);
    /* The lock file alone; lock file and socket; and strangers of the same names. */
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(keeper_run(NULL), 69);
    close(open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    assert_int_equal(keeper_run(NULL), 69);
    assert_int_equal(holder_run(2, 0, get_one), GMS_OK);
    unlink(lock);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(keeper_run(NULL), 69);
    close(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    assert_int_equal(keeper_run(NULL), 69);
    assert_int_equal(unlink(path), 0);
    /* SIGHUP brings the first one back, with all it holds. */
    assert_true(gms_pidfd_signal(keeper.pidfd, SIGHUP));
    uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (access(path, F_OK) != 0)
        assert_true(poll(NULL, 0, 2) == 0 && gms_clock_ns() < deadline_ns);
    assert_int_equal(holder_run(3, 0, get_one), GMS_OK);
    assert_int_equal(keeper_run(NULL), 69);
}

static void test_run_directory(void **state)
{
    (void)state;
    assert_int_equal(mkdir(keeper.run_dir, 0755), 0);
    assert_int_equal(chmod(keeper.run_dir, 0755), 0);
    assert_int_equal(keeper_run(NULL), 71);
    assert_int_equal(chmod(keeper.run_dir, 0700), 0);
    char path[GMS_RUN_PATH_BYTES];
    run_path("keeper", path);
    close(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)); /* not a socket: not ours to remove */
    assert_int_equal(keeper_run(NULL), 69);
    assert_int_equal(access(path, F_OK), 0);
    memset(keeper.run_dir, 'x', sizeof(keeper.run_dir) - 1);
    keeper.run_dir[0] = '/';
    assert_int_equal(keeper_run(NULL), 64);
    snprintf(keeper.run_dir, sizeof(keeper.run_dir), "relative");
    assert_int_equal(keeper_run(NULL), 64);
}

/* ------------------------------------------------------------------------------------------------- ending ------ */

static const char *const stop[] = {"--stop", NULL}, *const stop_force[] = {"--stop", "--force", NULL};

static void test_term_when_empty(void **state)
{
    char path[GMS_RUN_PATH_BYTES];
    (void)state;
    run_path("keeper", path);
    assert_true(gms_pidfd_signal(keeper.pidfd, SIGTERM));
    assert_int_equal(keeper_wait(), 0);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(keeper_run(stop), 69); /* nobody is there */
    keeper_start(NULL);
    assert_int_equal(keeper_run(stop), 0);
    assert_int_equal(keeper_wait(), 0);
}

static void test_term_when_holding(void **state)
{
    (void)state;
    assert_int_equal(holder_run(1, 0, put_one), GMS_OK);
    /* Two that come together are one. */
    assert_true(gms_pidfd_signal(keeper.pidfd, SIGTERM) && gms_pidfd_signal(keeper.pidfd, SIGINT));
    assert_int_equal(holder_run(2, 0, get_one), GMS_OK);
    assert_int_equal(keeper_run(stop), 69);
    assert_int_equal(holder_run(3, 0, get_one), GMS_OK);
    uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (!gms_pidfd_ended(keeper.pidfd)) { /* but a second word is obeyed */
        assert_true(gms_clock_ns() < deadline_ns);
        poll(NULL, 0, 150);
        gms_pidfd_signal(keeper.pidfd, SIGINT);
    }
    assert_int_equal(keeper_wait(), 0);

    keeper_start(NULL);
    assert_int_equal(holder_run(1, 0, put_one), GMS_OK);
    assert_int_equal(keeper_run(stop_force), 0);
    assert_int_equal(keeper_wait(), 0);
}

static void hostile_signals(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    signal(SIGCHLD, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_DFL);
}

static void test_hostile_signal_state(void **state)
{
    (void)state;
    keeper_start(hostile_signals);
    assert_true(gms_pidfd_signal(keeper.pidfd, SIGTERM));
    assert_int_equal(keeper_wait(), 0);
}

/* As PID 1 of a PID namespace, where signals without a handler are ignored, and whose clients have no pid. */
static void test_first_of_its_namespace(void **state)
{
    int report[2];
    (void)state;
    assert_int_equal(pipe2(report, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char word[6];
        int ends[2], pidfd = -1;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0)
            _exit(77);
        child_check(pipe2(ends, O_CLOEXEC) == 0);
        pid_t init = fork();
        if (init == 0)
            keeper_exec(NULL, ends[1], NULL);
        close(ends[1]);
        child_check(unit_read(ends[0], word, 6));
        child_check(gms_pidfd_open(init, &pidfd, &error) == GMS_OK);
        child_check(write(report[1], "r", 1) == 1);
        pause(); /* the parent plays, and ends it by the signal below */
        _exit(0);
    }
    close(report[1]);
    char word;
    if (!unit_read(report[0], &word, 1)) {
        assert_int_equal(WEXITSTATUS(unit_wait(pid)), 77);
        close(report[0]);
        print_message("skipped: a PID namespace of its own is not permitted here\n");
        skip();
    }
    struct holder five = holder_start(5, 0, NULL);
    assert_int_equal(holder_status(&five), GMS_OK);
    assert_int_equal(holder_run(5, 0, NULL), GMS_E_FOREIGN_WORLD);
    /* The kernel lets nobody signal out of a PID namespace: it says so, and the holder lives. */
    assert_int_equal(holder_run(6, 0, NULL), GMS_E_PERMISSION);
    assert_int_equal(waitpid(five.pid, NULL, WNOHANG), 0);
    holder_end(&five);
    assert_int_equal(holder_run(6, 0, NULL), GMS_OK); /* but its end is seen */

    /* Its pid as we see it: the socket's owner. */
    struct ucred peer;
    socklen_t length = sizeof(peer);
    int fd = raw_connect(), pidfd = -1;
    assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length), 0);
    assert_true(peer.pid > 1);
    assert_ok(gms_pidfd_open(peer.pid, &pidfd, &error));
    close(fd);
    assert_true(gms_pidfd_signal(pidfd, SIGTERM));
    uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (!gms_pidfd_ended(pidfd))
        assert_true(poll(NULL, 0, 2) == 0 && gms_clock_ns() < deadline_ns);
    close(pidfd);
    close(report[0]);
    kill(pid, SIGKILL);
    unit_wait(pid);
}

static void test_usage(void **state)
{
    static const char *const usage[][3] = {{"--bogus"},
                                           {"word"},
                                           {"--force"},
                                           {"--stop", "--status"},
                                           {"--ready-fd", "77"},
                                           {"--ready-fd", "x"},
                                           {"--log-level", "loud"}};
    static const char *const help[] = {"--help", NULL}, *const version[] = {"--version", NULL};
    static const char *const where[] = {"--log-destination", "nowhere", NULL};
    (void)state;
    for (unsigned i = 0; i < sizeof(usage) / sizeof(usage[0]); i++) {
        const char *words[4] = {usage[i][0], usage[i][1], usage[i][2], NULL};
        assert_int_equal(keeper_run(words), 64);
    }
    assert_int_equal(keeper_run(where), 64);
    assert_int_equal(keeper_run(help), 0);
    assert_int_equal(keeper_run(version), 0);
}

/* -------------------------------------------------------------------------------------------------- idle ------- */

static long switches(void)
{
    char path[64], line[256];
    long count = -1;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)keeper.pid);
    FILE *stream = fopen(path, "re");
    assert_non_null(stream);
    while (fgets(line, sizeof(line), stream))
        if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
            break;
    fclose(stream);
    return count;
}

/* Half a second without an event is half a second of sleep; somebody else's noise may spoil a try, not four. */
static void test_idle_is_idle(void **state)
{
    bool slept = false;
    (void)state;
    struct holder holder = holder_start(1, 0, put_one);
    assert_int_equal(holder_status(&holder), GMS_OK);
    holder_done(&holder);
    for (int i = 0; i < 4 && !slept; i++) {
        long before = switches();
        poll(NULL, 0, 500);
        slept = switches() == before;
    }
    assert_true(slept);
    holder_end(&holder);
}

int main(void)
{
#define STARTED(name) cmocka_unit_test_setup_teardown(name, keeper_setup_started, keeper_teardown)
#define FRESH(name)   cmocka_unit_test_setup_teardown(name, keeper_setup, keeper_teardown)
    const struct CMUnitTest tests[] = {
        STARTED(test_second_is_refused),
        FRESH(test_twenty_starters),
        STARTED(test_killed_and_started_again),
        STARTED(test_holder_outlives_keeper),
        STARTED(test_names_removed_and_made_anew),
        FRESH(test_run_directory),
        STARTED(test_term_when_empty),
        STARTED(test_term_when_holding),
        FRESH(test_hostile_signal_state),
        FRESH(test_first_of_its_namespace),
        FRESH(test_usage),
        STARTED(test_idle_is_idle),
    };
    gms_fd_raise_limit();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
