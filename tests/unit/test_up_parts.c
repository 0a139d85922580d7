/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-up's parts: the launcher as it is started, found again by the next gms-up, set aside and cleaned up after; the
 * keeper of a host; and the connection that is only there to end.
 */
#include "up_support.h"

#include <dirent.h>
#include <sys/socket.h>

#include "base/start.h"
#include "gms-up/node.h"
#include "gms-up/watch.h"
#include "wire/channel.h"

/* What the launcher told, line by line; waits for it. */
static void listen_to(char lines[3][512])
{
    uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    FILE *stream;
    while ((stream = fopen(told, "re")) == NULL) {
        assert_true(gms_clock_ns() < deadline_ns);
        poll(NULL, 0, 2);
    }
    for (int i = 0; i < 3; i++) {
        assert_non_null(fgets(lines[i], 512, stream));
        lines[i][strcspn(lines[i], "\n")] = '\0';
    }
    fclose(stream);
    unlink(told);
}

static int scratch_count(void)
{
    const char *base = strrchr(job.prefix, '/') + 1;
    char parent[sizeof job.prefix];
    snprintf(parent, sizeof parent, "%.*s", (int)(base - job.prefix - 1), job.prefix);
    DIR *directory = opendir(parent);
    struct dirent *entry;
    int count = 0;
    assert_non_null(directory);
    while ((entry = readdir(directory)) != NULL)
        count += strncmp(entry->d_name, base, strlen(base)) == 0;
    closedir(directory);
    return count;
}

static void write_note(const char *text)
{
    int fd = open(job.note, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    gms_fd_close(&fd);
}

/* ----------------------------------------------------------------------------------------------- launcher ----- */

static void test_started(void **state)
{
    char lines[3][512], scratch[GMS_UP_SCRATCH_BYTES];
    (void)state;
    int inherited = open("/dev/null", O_RDONLY); /* not close-on-exec */
    assert_true(inherited > 2);
    assert_ok(gms_up_job_start(&job, &how, &error));
    listen_to(lines);
    assert_string_equal(lines[0], "--word a, b");
    assert_string_equal(lines[1], job.now.scratch);
    assert_string_equal(lines[2], "0 1 2 3 "); /* 3 is ls's own */
    snprintf(scratch, sizeof scratch, "%s", job.now.scratch);
    assert_true(exists(scratch) && exists(job.note));
    assert_false(job.now.adopted);
    /* A rank of it says that the start failed, in its TMPDIR; where nobody looks nothing is left. */
    assert_false(gms_up_job_failed(&job));
    setenv("TMPDIR", run_dir, 1);
    gms_start_failed();
    assert_false(gms_start_has_failed(run_dir));
    setenv("TMPDIR", scratch, 1);
    gms_start_failed();
    assert_true(gms_up_job_failed(&job));
    assert_false(gms_up_job_began(&job));
    gms_start_succeeded();
    unsetenv("TMPDIR");
    assert_true(gms_up_job_began(&job));
    end_launcher(&job.now);
    assert_false(exists(scratch) || exists(job.note));
    assert_int_equal(job.now.pid, 0);
    close(inherited);
}

/* An engine: its output goes to a file that is begun anew, and its temporary files where it likes. */
static void test_output(void **state)
{
    char lines[3][512], output[256], text[64] = "";
    snprintf(output, sizeof output, "%s/output", (char *)*state);
    int fd = open(output, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "of the start before", 19), 19);
    gms_fd_close(&fd);
    setenv("TMPDIR", "/elsewhere", 1);
    static const char *const speaking[] = {"/bin/sh", "-c", "echo said; exec \"$0\"", script, NULL};
    how = (struct gms_up_start){.words = speaking, .output = output};
    assert_ok(gms_up_job_start(&job, &how, &error));
    listen_to(lines);
    unsetenv("TMPDIR");
    assert_string_equal(lines[1], "/elsewhere");
    fd = open(output, O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, text, sizeof text - 1), 5);
    gms_fd_close(&fd);
    assert_string_equal(text, "said\n");
}

static void test_cannot_be_run(void **state)
{
    (void)state;
    words[0] = "/nowhere/mpirun";
    assert_status(gms_up_job_start(&job, &how, &error), GMS_E_CONFIG);
    assert_text_has("/nowhere/mpirun");
    assert_int_equal(job.now.pid, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left for anybody to take for the job */
    assert_int_equal(scratch_count(), 0);
    assert_false(exists(job.note));
}

static void test_adopted(void **state)
{
    struct gms_up_job next;
    (void)state;
    assert_ok(gms_up_job_open(&next, run_dir, "job", &error));
    assert_false(gms_up_job_adopt(&next)); /* nobody has started one */
    assert_ok(gms_up_job_start(&job, &how, &error));
    assert_true(gms_up_job_adopt(&next));
    assert_int_equal(next.now.pid, job.now.pid);
    assert_true(gms_pidfd_same(next.now.pidfd, job.now.pidfd));
    assert_string_equal(next.now.scratch, job.now.scratch);
    assert_true(next.now.adopted);
    gms_up_job_close(&next); /* it goes away, and leaves what runs */
    assert_false(gms_pidfd_ended(job.now.pidfd));
    assert_true(exists(job.now.scratch));
}

/* Reported fault V22: a note that names somebody else. Nobody is adopted, and so nobody is ever signalled. */
static void test_notes_of_others(void **state)
{
    static const char *const notes[] = {"",       "text",        "1 1 ",    "0 1 x",  "-1 1 x", "2147483648 1 x",
                                        "999999", "12 99999999", "0 0 0 0", "1 0 /x", NULL};
    char text[256];
    (void)state;
    assert_ok(gms_up_job_start(&job, &how, &error));
    struct gms_up_job next;
    assert_ok(gms_up_job_open(&next, run_dir, "job", &error));
    for (unsigned i = 0; notes[i] != NULL; i++) {
        write_note(notes[i]);
        assert_false(gms_up_job_adopt(&next));
    }
    /* A living process, but not the one that started then: this test, and the launcher. */
    pid_t others[] = {getpid(), job.now.pid};
    for (unsigned i = 0; i < 2; i++) {
        snprintf(text, sizeof text, "%d 1 %s", (int)others[i], job.now.scratch);
        write_note(text);
        assert_false(gms_up_job_adopt(&next));
    }
    assert_int_equal(next.now.pid, 0);
    gms_up_job_close(&next);
}

/* The second end in a row while the first launcher has not noticed: it is killed, the newer one is not. */
static void test_set_aside(void **state)
{
    char scratch[GMS_UP_SCRATCH_BYTES];
    (void)state;
    assert_ok(gms_up_job_start(&job, &how, &error));
    snprintf(scratch, sizeof scratch, "%s", job.now.scratch);
    int first = -1;
    assert_ok(gms_pidfd_open(job.now.pid, &first, &error));
    pid_t first_pid = job.now.pid;
    gms_up_job_set_aside(&job);
    assert_int_equal(job.now.pid, 0);
    assert_int_equal(job.before.pid, first_pid);
    assert_true(exists(scratch)); /* it still runs in there */
    assert_ok(gms_up_job_start(&job, &how, &error));
    assert_true(exists(scratch)); /* a start cleans up, but not under a running one */
    assert_int_equal(scratch_count(), 2);
    gms_up_job_set_aside(&job);
    struct pollfd ended = {.fd = first, .events = POLLIN};
    assert_int_equal(poll(&ended, 1, UNIT_PATIENCE_MS), 1);
    waitpid(first_pid, NULL, 0);
    gms_fd_close(&first);
    assert_int_equal(scratch_count(), 1);
    assert_false(gms_pidfd_ended(job.before.pidfd));
}

/* What an earlier gms-up left behind goes with the next start; what is not a directory of ours stays. */
static void test_leftovers(void **state)
{
    char left[GMS_UP_SCRATCH_BYTES], file[GMS_UP_SCRATCH_BYTES + 8], link[GMS_UP_SCRATCH_BYTES];
    (void)state;
    snprintf(left, sizeof left, "%s77", job.prefix);
    snprintf(file, sizeof file, "%s/file", left);
    snprintf(link, sizeof link, "%s78", job.prefix);
    assert_int_equal(mkdir(left, 0700), 0);
    int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    gms_fd_close(&fd);
    assert_int_equal(symlink(run_dir, link), 0);
    assert_ok(gms_up_job_start(&job, &how, &error));
    assert_false(exists(left));
    assert_true(exists(link) && exists(run_dir)); /* a link is not followed, and not ours to remove */
    assert_int_equal(unlink(link), 0);
}

/* ------------------------------------------------------------------------------------- a keeper on a host ----- */

static pid_t node;
static int node_pidfd = -1, node_words = -1;

/* `gms-up keeper` as a child of ours; what it logs comes by node_words. */
static void start_node(const char *keeper)
{
    int words_of_it[2];
    assert_int_equal(pipe2(words_of_it, O_CLOEXEC), 0);
    node = fork();
    assert_true(node >= 0);
    if (node == 0) {
        char *argv[] = {"keeper", "--run-dir", run_dir, "--gms-keeper", (char *)(uintptr_t)keeper, NULL};
        dup2(words_of_it[1], STDERR_FILENO);
        _exit(gms_up_node(5, argv));
    }
    gms_fd_close(&words_of_it[1]);
    node_words = words_of_it[0];
    assert_ok(gms_pidfd_open(node, &node_pidfd, &error));
}

/* Waits until it has logged `text`. False: it has ended, or nothing came. */
static bool node_says(const char *text)
{
    static char said[8192];
    size_t length = 0;
    for (;;) {
        struct pollfd ready = {.fd = node_words, .events = POLLIN};
        if (poll(&ready, 1, UNIT_PATIENCE_MS) != 1 || length == sizeof said - 1)
            return false;
        ssize_t got = read(node_words, said + length, sizeof said - 1 - length);
        if (got <= 0)
            return false;
        length += (size_t)got;
        said[length] = '\0';
        if (strstr(said, text) != NULL)
            return true;
    }
}

/* Its exit status. */
static int node_ends(void)
{
    int status = -1;
    struct pollfd ended = {.fd = node_pidfd, .events = POLLIN};
    if (poll(&ended, 1, UNIT_PATIENCE_MS) != 1)
        gms_pidfd_signal(node_pidfd, SIGKILL);
    waitpid(node, &status, 0);
    gms_fd_close(&node_pidfd);
    gms_fd_close(&node_words);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A keeper that does not listen yet has not ended: what jobs have on this host stays. */
static void test_node_waits_for_a_keeper(void **state)
{
    static const char text[] =
        "#!/bin/sh\necho $$ >\"$TOLD.new\"\nmv \"$TOLD.new\" \"$TOLD\"\nexec sleep 30 >/dev/null 2>&1\n";
    char keeper[256], scratch[GMS_UP_SCRATCH_BYTES];
    int pid = 0, pidfd = -1;
    snprintf(keeper, sizeof keeper, "%s/keeper", (char *)*state);
    snprintf(scratch, sizeof scratch, "%s7", job.prefix);
    assert_int_equal(mkdir(scratch, 0700), 0);
    int fd = open(keeper, O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    gms_fd_close(&fd);
    start_node(keeper);
    uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (!exists(told) && gms_clock_ns() < deadline_ns)
        poll(NULL, 0, 2);
    FILE *stream = fopen(told, "re");
    assert_non_null(stream);
    assert_int_equal(fscanf(stream, "%d", &pid), 1);
    fclose(stream);
    assert_true(pid > 1);
    assert_ok(gms_pidfd_open(pid, &pidfd, &error));
    gms_pidfd_signal(node_pidfd, SIGTERM);
    bool goes_on = node_says("going on until told again");
    gms_pidfd_signal(node_pidfd, SIGHUP); /* its launcher is gone */
    int code = node_ends();
    gms_pidfd_signal(pidfd, SIGKILL);
    gms_fd_close(&pidfd);
    assert_true(goes_on);
    assert_int_equal(code, 75);
    assert_true(exists(scratch));
}

/* Where there is none it ends at once, and nothing of the run stays on this host. */
static void test_node_without_a_keeper(void **state)
{
    char scratch[GMS_UP_SCRATCH_BYTES];
    (void)state;
    snprintf(scratch, sizeof scratch, "%s7", job.prefix);
    assert_int_equal(mkdir(scratch, 0700), 0);
    start_node("/nowhere/gms-keeper");
    bool tried = node_says("started one");
    gms_pidfd_signal(node_pidfd, SIGTERM);
    assert_int_equal(node_ends(), 0);
    assert_true(tried);
    assert_false(exists(scratch));
}

/* -------------------------------------------------------------------------------------------------- watch ----- */

static int listen_as(const char *name)
{
    char path[GMS_RUN_PATH_BYTES];
    int listener = -1;
    assert_ok(gms_run_dir_path(run_dir, name, strcmp(name, "c") == 0 ? 0 : -1, path, &error));
    assert_ok(gms_channel_listen(path, &listener, &error));
    return listener;
}

static int accept_one(int listener)
{
    int fd = -1;
    pid_t pid;
    uid_t uid;
    struct pollfd ready = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, UNIT_PATIENCE_MS), 1);
    assert_ok(gms_channel_accept(listener, &fd, &pid, &uid, &error));
    return fd;
}

static void test_watch_a_keeper(void **state)
{
    struct gms_watch watch;
    (void)state;
    assert_ok(gms_watch_open(&watch, run_dir, "keeper", -1, false, &error));
    assert_false(gms_watch_step(&watch)); /* nobody there */
    assert_int_equal(watch.state, GMS_WATCH_DOWN);
    int listener = listen_as("keeper");
    assert_false(gms_watch_step(&watch));
    assert_int_equal(watch.state, GMS_WATCH_UP);
    int fd = accept_one(listener);
    assert_false(gms_watch_step(&watch));
    gms_fd_close(&fd);
    assert_true(gms_watch_step(&watch)); /* told once */
    assert_int_equal(watch.state, GMS_WATCH_DOWN);
    gms_fd_close(&listener);
    assert_false(gms_watch_step(&watch));
    assert_int_equal(watch.state, GMS_WATCH_DOWN);
    gms_watch_close(&watch);
}

static void test_watch_a_coordinator(void **state)
{
    static uint8_t buffer[GMS_WIRE_MAX_BYTES];
    struct gms_message hello, welcome = {.type = GMS_MESSAGE_WELCOME, .fds = {-1, -1, -1, -1}}, down;
    struct gms_watch watch;
    (void)state;
    assert_ok(gms_watch_open(&watch, run_dir, "c", 0, true, &error));
    int listener = listen_as("c");
    assert_false(gms_watch_step(&watch));
    assert_int_equal(watch.state, GMS_WATCH_GREETING);
    assert_false(gms_watch_ask_stop(&watch)); /* it has not answered yet */
    int fd = accept_one(listener);
    const uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    assert_ok(gms_channel_receive_until(fd, buffer, deadline_ns, &hello, &error));
    assert_int_equal(hello.type, GMS_MESSAGE_HELLO);
    assert_int_equal(hello.hello.role, GMS_CLIENT_CONTROL);
    assert_int_equal(hello.hello.pid, getpid());
    gms_message_close_fds(&hello);
    assert_false(gms_watch_step(&watch)); /* still no answer */
    assert_int_equal(watch.state, GMS_WATCH_GREETING);
    welcome.request_id = 1;
    welcome.welcome.world = 42;
    welcome.welcome.version = (struct gms_bytes){"test", 4};
    assert_ok(gms_channel_send(fd, &welcome, &error));
    assert_false(gms_watch_step(&watch));
    assert_int_equal(watch.state, GMS_WATCH_UP);
    assert_int_equal(watch.world, 42);
    assert_true(gms_watch_ask_stop(&watch));
    assert_ok(gms_channel_receive_until(fd, buffer, deadline_ns, &down, &error));
    assert_int_equal(down.type, GMS_MESSAGE_SHUTDOWN);

    /* Its places are taken and it makes room: that is not its end. */
    gms_fd_close(&fd);
    assert_false(gms_watch_step(&watch));
    assert_int_equal(watch.state, GMS_WATCH_AGAIN);
    assert_false(gms_watch_ask_stop(&watch));
    fd = accept_one(listener);
    gms_fd_close(&fd); /* and at once again */
    assert_false(gms_watch_step(&watch));
    assert_int_equal(watch.state, GMS_WATCH_AGAIN);
    assert_false(gms_watch_step(&watch));
    fd = accept_one(listener);
    assert_ok(gms_channel_send(fd, &welcome, &error));
    assert_false(gms_watch_step(&watch));
    assert_int_equal(watch.state, GMS_WATCH_UP);
    assert_false(watch.stop_asked);
    /* Somebody else answers in its place: that is. */
    gms_fd_close(&fd);
    assert_false(gms_watch_step(&watch));
    fd = accept_one(listener);
    welcome.welcome.world = 43;
    assert_ok(gms_channel_send(fd, &welcome, &error));
    assert_true(gms_watch_step(&watch));
    assert_int_equal(watch.state, GMS_WATCH_UP);
    assert_int_equal(watch.world, 43);
    /* Nobody listens any more. */
    gms_fd_close(&listener);
    gms_fd_close(&fd);
    assert_true(gms_watch_step(&watch));
    assert_int_equal(watch.state, GMS_WATCH_DOWN);
    assert_int_equal(watch.world, 43); /* of whom answered last */

    /* One that ends before it has answered was never up. */
    listener = listen_as("c");
    assert_false(gms_watch_step(&watch));
    fd = accept_one(listener);
    gms_fd_close(&fd);
    assert_false(gms_watch_step(&watch));
    assert_int_equal(watch.state, GMS_WATCH_DOWN);
    gms_watch_close(&watch);
    gms_fd_close(&listener);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_output),
        TEST(test_started),
        TEST(test_cannot_be_run),
        TEST(test_adopted),
        TEST(test_set_aside),
        TEST(test_notes_of_others),
        TEST(test_node_waits_for_a_keeper),
        TEST(test_node_without_a_keeper),
        TEST(test_leftovers),
        TEST(test_watch_a_keeper),
        TEST(test_watch_a_coordinator),
    };
    return cmocka_run_group_tests_name("gms-up's parts", tests, NULL, NULL);
}
