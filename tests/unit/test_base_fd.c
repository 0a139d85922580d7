/* SPDX-License-Identifier: Apache-2.0 */
#include "unit_support.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static const char *program;

/* ------------------------------------------------------------------------------------------- descriptors ----- */

static void close_once_and_keep_errno(void **state)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const int number = fd;

    (void)state;
    assert_true(fd >= 0);
    errno = EXDEV;
    gms_fd_close(&fd);
    assert_int_equal(fd, -1);
    assert_int_equal(fcntl(number, F_GETFD), -1);
    errno = EXDEV;
    gms_fd_close(&fd);
    assert_int_equal(fd, -1);
    assert_int_equal(errno, EXDEV);
}

static void raise_moves_high_and_stays_cloexec(void **state)
{
    struct gms_error error;
    int fd = open("/dev/null", O_RDONLY);
    const int low = fd;

    (void)state;
    assert_ok(gms_fd_raise(&fd, 200, &error));
    assert_true(fd >= 200);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(fcntl(low, F_GETFD), -1);
    const int high = fd;
    assert_ok(gms_fd_raise(&fd, 100, &error));
    assert_int_equal(fd, high);
    gms_fd_close(&fd);
}

/* "Out of descriptors" is said with the numbers, never as "out of memory" (V36). */
static void out_of_descriptors_names_used_and_limit(void **state)
{
    struct gms_error error;

    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit limit = {.rlim_cur = 40, .rlim_max = 40};
        int fds[64];
        int count = 0;

        child_check(close_range(3, ~0U, 0) == 0); /* whoever started us may have left some above the limit */

        child_check(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        while (count < 64 && (fds[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) {
            count++;
        }
        child_check(errno == EMFILE);
        uint64_t used = 0;
        uint64_t most = 0;
        gms_fd_usage(&used, &most);
        child_check(used == 40 && most == 40);
        int moved = fds[0];
        child_check(gms_fd_raise(&moved, 30, &error) == GMS_E_DESCRIPTORS);
        child_check(moved == fds[0] && fcntl(moved, F_GETFD) >= 0);
        child_check(strstr(error.text, "40 used of 40"));
        child_check(gms_fd_raise(&moved, 100, &error) == GMS_E_DESCRIPTORS);
        int pidfd = -1;
        child_check(gms_pidfd_open(getpid(), &pidfd, &error) == GMS_E_DESCRIPTORS);
        child_check(strstr(error.text, "40 used of 40") && pidfd == -1);
        gms_fd_close(&fds[0]);
        gms_fd_usage(&used, &most);
        child_check(used == 39);
        _exit(0);
    }
    assert_int_equal(unit_wait(child), 0);
}

static void limit_is_raised_to_the_hard_one(void **state)
{
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        struct rlimit limit;

        child_check(getrlimit(RLIMIT_NOFILE, &limit) == 0);
        limit.rlim_cur = 64;
        child_check(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        gms_fd_raise_limit();
        child_check(getrlimit(RLIMIT_NOFILE, &limit) == 0);
        child_check(limit.rlim_cur == limit.rlim_max);
        _exit(0);
    }
    assert_int_equal(unit_wait(child), 0);
}

/* ----------------------------------------------------------------------------------------------- signals ----- */

/*
 * Run as `PROGRAM --signals MODE` behind env(1) with TERM blocked and CHLD ignored (V24). MODE "reset" calls
 * gms_signals_reset first; "leave" does not, and must then see the hostile state, or this test would prove nothing.
 * "pending" has a TERM waiting when it resets, and must end of it.
 */
static int signals_child(const char *mode)
{
    struct sigaction action;
    sigset_t mask;
    int status = 0;

    if (strcmp(mode, "pending") == 0) {
        kill(getpid(), SIGTERM); /* ourselves; blocked so far */
        gms_signals_reset();
        return 3;
    }
    if (strcmp(mode, "reset") == 0) {
        gms_signals_reset();
    }
    sigprocmask(SIG_SETMASK, NULL, &mask);
    for (int signal = 1; signal < SIGRTMIN; signal++) {
        if (sigismember(&mask, signal) == 1) {
            return 10;
        }
    }
    sigaction(SIGCHLD, NULL, &action);
    if (action.sa_handler != SIG_DFL) {
        return 11;
    }
    sigaction(SIGPIPE, NULL, &action);
    if (action.sa_handler != SIG_IGN) {
        return 12;
    }
    /* A child can be waited for: with CHLD ignored it would vanish. */
    const pid_t child = fork();
    if (child == 0) {
        _exit(7);
    }
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7) {
        return 13;
    }
    kill(getpid(), SIGTERM);
    return 14; /* TERM must have ended us */
}

static int run_hostile(const char *mode)
{
    const pid_t child = fork();

    if (child == 0) {
        execlp("env", "env", "--block-signal=TERM", "--ignore-signal=CHLD", program, "--signals", mode, (char *)NULL);
        _exit(98);
    }
    return unit_wait(child);
}

static void hostile_signal_state_is_reset(void **state)
{
    (void)state;
    int status = run_hostile("leave");
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 10);
    status = run_hostile("reset");
    if (WIFEXITED(status)) {
        print_error("exit code %d\n", WEXITSTATUS(status));
    }
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGTERM);
    status = run_hostile("pending");
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGTERM);
}

/* A file size limit is an error, not the end of the writer. */
static void file_size_limit_is_an_error(void **state)
{
    const pid_t child = fork();

    if (child == 0) {
        const struct rlimit limit = {.rlim_cur = 1000, .rlim_max = 1000};
        struct gms_error error;
        static char data[5000];
        char path[128];

        gms_signals_reset();
        child_check(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        snprintf(path, sizeof(path), "%s/limited", (char *)*state);
        child_check(gms_file_replace(path, data, sizeof(data), &error) == GMS_E_SYSTEM);
        child_check(strstr(error.text, "limited") && strstr(error.text, strerror(EFBIG)));
        child_check(access(path, F_OK) < 0);
        _exit(0);
    }
    assert_int_equal(unit_wait(child), 0);
}

/* ------------------------------------------------------------------------------------------------ pidfds ----- */

static void pids_that_name_nobody_are_refused(void **state)
{
    static const pid_t pids[] = {0, -1, -4711, INT32_MIN};
    struct gms_error error;
    int fd = 4711;

    (void)state;
    for (size_t i = 0; i < sizeof(pids) / sizeof(pids[0]); i++) {
        assert_status(gms_pidfd_open(pids[i], &fd, &error), GMS_E_INVALID);
        assert_text_has("PID namespace"); /* refused here, not asked of the kernel */
    }
    assert_status(gms_pidfd_open(INT32_MAX, &fd, &error), GMS_E_NOT_FOUND);
    assert_int_equal(fd, 4711);
}

static void life_and_death_by_pidfd(void **state)
{
    struct gms_error error;
    int fd = -1;

    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        for (;;) {
            pause();
        }
    }
    assert_ok(gms_pidfd_open(child, &fd, &error));
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(gms_pidfd_pid(fd), child);
    assert_false(gms_pidfd_ended(fd));
    assert_true(gms_pidfd_signal(fd, 0));
    assert_true(gms_pidfd_signal(fd, SIGKILL));
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&entry, 1, UNIT_PATIENCE_MS), 1);
    /* Not reaped yet: a zombie has ended, and its pid is still its own. */
    assert_true(gms_pidfd_ended(fd));
    assert_int_equal(gms_pidfd_pid(fd), child);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_true(gms_pidfd_ended(fd));
    assert_int_equal(gms_pidfd_pid(fd), -1);
    assert_true(gms_pidfd_signal(fd, SIGKILL));
    /* A peer may send anything in its place; of a process that is gone it still is one. */
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const int process = open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* signals take it for a pidfd */
    assert_true(process >= 0);
    assert_true(gms_pidfd_is(fd));
    assert_false(gms_pidfd_is(ends[0]));
    assert_false(gms_pidfd_is(ends[1]));
    assert_false(gms_pidfd_is(process));
    assert_false(gms_pidfd_is(-1));
    close(ends[0]);
    close(ends[1]);
    close(process);
    gms_fd_close(&fd);

    /* What is not a pidfd is unknown, and unknown is never dead. */
    assert_int_equal(gms_pidfd_pid(-1), 0);
    assert_false(gms_pidfd_ended(-1));
    assert_false(gms_pidfd_signal(-1, SIGKILL));
}

static void *thread_that_stays(void *argument)
{
    char byte;

    (void)!read(*(int *)argument, &byte, 1);
    _exit(0);
}

/* The main thread has exited, the process is "Z" in /proc, but a thread still runs: not ended (platform fact 6). */
static void a_zombie_leader_with_a_living_thread_has_not_ended(void **state)
{
    struct gms_error error;
    int hold[2];
    char path[64];
    char text[512];
    int fd = -1;

    (void)state;
    assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) {
        pthread_t thread;

        close(hold[1]);
        child_check(pthread_create(&thread, NULL, thread_that_stays, &hold[0]) == 0);
        syscall(SYS_exit, 0); /* the main thread alone */
    }
    close(hold[0]);
    assert_ok(gms_pidfd_open(child, &fd, &error));
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)child);
    const uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    bool zombie = false;
    while (!zombie && gms_clock_ns() < deadline_ns) {
        int stat_fd = open(path, O_RDONLY | O_CLOEXEC);
        const ssize_t bytes = read(stat_fd, text, sizeof(text) - 1);
        gms_fd_close(&stat_fd);
        assert_true(bytes > 0);
        text[bytes] = '\0';
        zombie = strstr(text, ") Z ") != NULL;
        (void)poll(NULL, 0, 1);
    }
    assert_true(zombie);
    assert_false(gms_pidfd_ended(fd));
    close(hold[1]);
    assert_int_equal(unit_wait(child), 0);
    assert_true(gms_pidfd_ended(fd));
    gms_fd_close(&fd);
}

/* ------------------------------------------------------------------------------------------------- locks ----- */

static void lock_excludes_and_ends_with_its_holder(void **state)
{
    struct gms_error error;
    char path[128];
    int one = -1;
    int two = -1;

    snprintf(path, sizeof(path), "%s/x.lock", (char *)*state);
    assert_ok(gms_file_lock(path, 0, &one, &error));
    assert_int_equal(fcntl(one, F_GETFD), FD_CLOEXEC);
    assert_status(gms_file_lock(path, 0, &two, &error), GMS_E_BUSY);
    assert_text_has(path);
    const uint64_t start_ns = gms_clock_ns();
    assert_status(gms_file_lock(path, 50, &two, &error), GMS_E_BUSY);
    assert_true(gms_clock_ns() - start_ns >= 50 * GMS_NS_PER_MS);
    gms_fd_close(&one);
    assert_ok(gms_file_lock(path, 0, &two, &error));
    gms_fd_close(&two);
}

/*
 * flock as the library calls it (the linker wraps it). While `replaced_path` is set, the name leads to another file by
 * the time the lock is granted: somebody removed the lock file and made it anew just then.
 */
int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);
static const char *replaced_path;
static int replacements;

int __wrap_flock(int fd, int operation)
{
    const int result = __real_flock(fd, operation);

    if (replaced_path && replacements > 0) {
        char other[160];

        replacements--;
        snprintf(other, sizeof(other), "%s.other", replaced_path);
        int fresh = open(other, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        assert_int_equal(rename(other, replaced_path), 0);
        gms_fd_close(&fresh);
    }
    return result;
}

/* What is locked in the end is what the name leads to, never an inode that lost its name. */
static void lock_follows_the_name_not_the_inode(void **state)
{
    struct gms_error error;
    struct stat named;
    struct stat held;
    char path[128];
    int fd = -1;

    snprintf(path, sizeof(path), "%s/x.lock", (char *)*state);
    const unsigned before = unit_open_fds();
    replaced_path = path;
    replacements = 3;
    assert_ok(gms_file_lock(path, UNIT_PATIENCE_MS, &fd, &error));
    assert_int_equal(replacements, 0);
    assert_int_equal(fstat(fd, &held), 0);
    assert_int_equal(stat(path, &named), 0);
    assert_int_equal(held.st_ino, named.st_ino);
    assert_int_equal(held.st_nlink, 1);
    gms_fd_close(&fd);
    /* For ever is not waited for. */
    replacements = INT_MAX;
    assert_status(gms_file_lock(path, 20, &fd, &error), GMS_E_BUSY);
    assert_int_equal(fd, -1);
    replaced_path = NULL;
    assert_int_equal(unit_open_fds(), before);
}

static void lock_refuses_what_is_not_a_file(void **state)
{
    struct gms_error error;
    char path[128];
    int fd = 4711;

    snprintf(path, sizeof(path), "%s/fifo", (char *)*state);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_status(gms_file_lock(path, 0, &fd, &error), GMS_E_EXISTS);
    snprintf(path, sizeof(path), "%s/link", (char *)*state);
    assert_int_equal(symlink("nowhere", path), 0);
    assert_status(gms_file_lock(path, 0, &fd, &error), GMS_E_SYSTEM);
    assert_status(gms_file_lock(*state, 0, &fd, &error), GMS_E_SYSTEM);
    assert_status(gms_file_lock("/nonexistent/x.lock", 0, &fd, &error), GMS_E_SYSTEM);
    assert_int_equal(fd, 4711);
}

/* ------------------------------------------------------------------------------------------ file replace ----- */

static void assert_content(const char *path, const char *text)
{
    char got[256] = "";
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_true(read(fd, got, sizeof(got) - 1) >= 0);
    assert_int_equal(fstat(fd, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    gms_fd_close(&fd);
    assert_string_equal(got, text);
}

typedef gms_status replace_call(const char *, const void *, size_t, struct gms_error *);

static void writes_whole_and_leaves_no_trace(void **state, replace_call *replace)
{
    struct gms_error error;
    char path[128];
    char temporary[160];

    snprintf(path, sizeof(path), "%s/serving", (char *)*state);
    snprintf(temporary, sizeof(temporary), "%s.new", path);
    const mode_t mask = umask(0);
    assert_ok(replace(path, "one", 3, &error));
    umask(mask);
    assert_content(path, "one");
    /* What a killed writer left is longer and must not shine through. */
    int fd = open(temporary, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    assert_int_equal(write(fd, "left behind", 11), 11);
    gms_fd_close(&fd);
    assert_ok(replace(path, "two", 3, &error));
    assert_content(path, "two");
    assert_int_equal(access(temporary, F_OK), -1);
    assert_ok(replace(path, "", 0, &error));
    assert_content(path, "");

    assert_status(replace("/nonexistent/serving", "x", 1, &error), GMS_E_SYSTEM);
    assert_text_has("/nonexistent/serving");
    /* A directory cannot be replaced; it stays, and the temporary goes. */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_status(replace(path, "x", 1, &error), GMS_E_SYSTEM);
    assert_int_equal(access(temporary, F_OK), -1);
    assert_int_equal(rmdir(path), 0);
}

static void replace_writes_whole_and_leaves_no_trace(void **state)
{
    writes_whole_and_leaves_no_trace(state, gms_file_replace);
    writes_whole_and_leaves_no_trace(state, gms_file_publish);
}

/* Two writers and a reader: the reader sees one of the texts, whole, every time. */
static void replace_is_never_seen_half_done(void **state)
{
    enum { BYTES = 64 * 1024, ROUNDS = 60 };
    static char data[BYTES + 1];
    char path[128];
    pid_t writers[2];
    struct gms_error error;

    snprintf(path, sizeof(path), "%s/serving", (char *)*state);
    memset(data, 'a', BYTES);
    assert_ok(gms_file_replace(path, data, BYTES, &error));
    for (int w = 0; w < 2; w++) {
        writers[w] = fork();
        if (writers[w] == 0) {
            memset(data, w == 0 ? 'b' : 'c', BYTES);
            for (int i = 0; i < ROUNDS; i++) {
                child_check(gms_file_replace(path, data, (size_t)(w == 0 ? BYTES : BYTES / 2), &error) == GMS_OK);
            }
            _exit(0);
        }
    }
    for (int i = 0; i < 500; i++) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        const ssize_t bytes = read(fd, data, sizeof(data));
        gms_fd_close(&fd);
        assert_true(bytes == BYTES || bytes == BYTES / 2);
        assert_true((bytes == BYTES / 2) == (data[0] == 'c'));
        for (ssize_t at = 1; at < bytes; at++) {
            if (data[at] != data[0]) {
                fail_msg("torn at byte %zd", at);
            }
        }
    }
    assert_int_equal(unit_wait(writers[0]), 0);
    assert_int_equal(unit_wait(writers[1]), 0);
}

static void replace_on_a_full_disk_keeps_the_old_file(void **state)
{
    const pid_t child = fork();

    if (child == 0) {
        struct gms_error error;
        static char data[256 * 1024];
        char path[128];
        struct stat info;

        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", *state, "tmpfs", 0, "size=64k") < 0) {
            _exit(77);
        }
        snprintf(path, sizeof(path), "%s/serving", (char *)*state);
        child_check(gms_file_replace(path, "old", 3, &error) == GMS_OK);
        child_check(gms_file_replace(path, data, sizeof(data), &error) == GMS_E_SYSTEM);
        child_check(strstr(error.text, strerror(ENOSPC)));
        child_check(stat(path, &info) == 0 && info.st_size == 3);
        child_check(gms_file_replace(path, "newer", 5, &error) == GMS_OK);
        child_check(stat(path, &info) == 0 && info.st_size == 5);
        _exit(0);
    }
    const int status = unit_wait(child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        print_message("skipped: a small tmpfs needs the right to mount\n");
        skip();
    }
    assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(close_once_and_keep_errno),
        cmocka_unit_test(raise_moves_high_and_stays_cloexec),
        cmocka_unit_test(out_of_descriptors_names_used_and_limit),
        cmocka_unit_test(limit_is_raised_to_the_hard_one),
        cmocka_unit_test(hostile_signal_state_is_reset),
        cmocka_unit_test_setup_teardown(file_size_limit_is_an_error, unit_make_dir, unit_remove_dir),
        cmocka_unit_test(pids_that_name_nobody_are_refused),
        cmocka_unit_test(life_and_death_by_pidfd),
        cmocka_unit_test(a_zombie_leader_with_a_living_thread_has_not_ended),
        cmocka_unit_test_setup_teardown(lock_excludes_and_ends_with_its_holder, unit_make_dir, unit_remove_dir),
        cmocka_unit_test_setup_teardown(lock_follows_the_name_not_the_inode, unit_make_dir, unit_remove_dir),
        cmocka_unit_test_setup_teardown(lock_refuses_what_is_not_a_file, unit_make_dir, unit_remove_dir),
        cmocka_unit_test_setup_teardown(replace_writes_whole_and_leaves_no_trace, unit_make_dir, unit_remove_dir),
        cmocka_unit_test_setup_teardown(replace_is_never_seen_half_done, unit_make_dir, unit_remove_dir),
        cmocka_unit_test_setup_teardown(replace_on_a_full_disk_keeps_the_old_file, unit_make_dir, unit_remove_dir),
    };

    program = argv[0];
    if (argc == 3 && strcmp(argv[1], "--signals") == 0) {
        return signals_child(argv[2]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
