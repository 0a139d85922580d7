/* SPDX-License-Identifier: Apache-2.0
 * Each case in a child process: the sink is one per process. */
#include "unit_support.h"

#include <regex.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/log.h"

static struct gms_error error;
static char text[64 * 1024];

/* The whole file at `path`, in `text`. */
static const char *content(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t bytes = read(fd, text, sizeof(text) - 1);

    gms_fd_close(&fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    return text;
}

static bool matches(const char *line, const char *pattern)
{
    regex_t expression;

    if (regcomp(&expression, pattern, REG_EXTENDED | REG_NOSUB) != 0) {
        return false;
    }
    const bool result = regexec(&expression, line, 0, NULL, 0) == 0;
    regfree(&expression);
    return result;
}

static unsigned lines_of(const char *all)
{
    unsigned count = 0;

    for (; *all; all++) {
        count += *all == '\n';
    }
    return count;
}

static void in_child(void (*body)(const char *directory), const char *directory)
{
    const pid_t child = fork();

    if (child == 0) {
        gms_signals_reset();
        body(directory);
        _exit(0);
    }
    assert_int_equal(unit_wait(child), 0);
}

static void body_file(const char *directory)
{
    char path[128];
    char destination[160];
    char renamed[160];
    struct stat info;
    static char long_text[5000];

    snprintf(path, sizeof(path), "%s/x.log", directory);
    snprintf(destination, sizeof(destination), "file:%s", path);
    umask(0);
    child_check(gms_log_open("gms-coord[2]", destination, GMS_LOG_INFO, &error) == GMS_OK);
    child_check(stat(path, &info) == 0 && (info.st_mode & 07777) == 0600);
    errno = EXDEV;
    gms_log(GMS_LOG_WARNING, "rank %d: %s", 1, "late");
    child_check(errno == EXDEV);
    child_check(matches(content(path), "^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6}Z "
                                       "gms-coord\\[2\\] warning: rank 1: late\n$"));
    gms_log(GMS_LOG_DEBUG, "not at this level");
    child_check(lines_of(content(path)) == 1);

    /* One call is one line, whatever a peer put into its text, and never longer than the limit. */
    gms_log(GMS_LOG_ERROR, "a\nb\r\x1b[2J\x7f\xe2\x82\xac");
    child_check(lines_of(content(path)) == 2);
    child_check(strstr(text, "a b??[2J?\xe2\x82\xac\n") != NULL);
    memset(long_text, 'y', sizeof(long_text) - 1);
    gms_log(GMS_LOG_ERROR, "%s", long_text);
    child_check(lines_of(content(path)) == 3);
    child_check(strlen(text) < 3000 && strstr(text, "yyy...\n"));

    /* Rotation. */
    snprintf(renamed, sizeof(renamed), "%s.1", path);
    child_check(rename(path, renamed) == 0);
    gms_log(GMS_LOG_INFO, "still the old file");
    child_check(access(path, F_OK) < 0);
    child_check(gms_log_reopen(&error) == GMS_OK);
    gms_log(GMS_LOG_INFO, "the new file");
    child_check(lines_of(content(path)) == 1 && strstr(text, "the new file"));
    child_check(lines_of(content(renamed)) == 4);

    /* Appended, not begun anew; and a failed open leaves the former sink in force. */
    child_check(gms_log_open("again", destination, GMS_LOG_INFO, &error) == GMS_OK);
    child_check(gms_log_open("x", "file:/nonexistent/y", GMS_LOG_DEBUG, &error) == GMS_E_SYSTEM);
    child_check(strstr(error.text, "/nonexistent/y"));
    child_check(gms_log_open("x", "syslog", GMS_LOG_DEBUG, &error) == GMS_E_INVALID);
    child_check(strstr(error.text, "syslog") && strstr(error.text, "stderr, file:PATH or journald"));
    child_check(gms_log_open("x", "file:", GMS_LOG_DEBUG, &error) == GMS_E_INVALID);
    gms_log(GMS_LOG_DEBUG, "not at this level");
    gms_log(GMS_LOG_INFO, "former");
    child_check(lines_of(content(path)) == 2 && strstr(text, "again info: former"));

    /* A rotation that fails: the old file goes on. */
    child_check(unlink(path) == 0 && mkdir(path, 0700) == 0);
    child_check(gms_log_reopen(&error) == GMS_E_SYSTEM);
    gms_log(GMS_LOG_INFO, "nobody will read this, and nothing breaks");
}

static void body_descriptors(const char *directory)
{
    char destination[160];

    snprintf(destination, sizeof(destination), "file:%s/x.log", directory);
    child_check(gms_log_open("a", destination, GMS_LOG_INFO, &error) == GMS_OK);
    const unsigned before = unit_open_fds();
    for (int i = 0; i < 50; i++) {
        child_check(gms_log_open("a", destination, GMS_LOG_INFO, &error) == GMS_OK);
        child_check(gms_log_reopen(&error) == GMS_OK);
    }
    child_check(unit_open_fds() == before);
    for (int fd = 3; fd < 64; fd++) {
        const int flags = fcntl(fd, F_GETFD);
        char link[64];
        char target[256] = "";
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        if (flags >= 0 && readlink(link, target, sizeof(target) - 1) > 0 && strstr(target, "x.log")) {
            child_check(flags == FD_CLOEXEC);
        }
    }
    child_check(gms_log_open("a", "stderr", GMS_LOG_INFO, &error) == GMS_OK);
    child_check(unit_open_fds() == before - 1);
    child_check(gms_log_reopen(&error) == GMS_OK);
}

/* stderr is a pipe that nobody reads: not one call may wait. Then it is read, and the loss is told. */
static void body_full_pipe(const char *directory)
{
    int ends[2];
    size_t lines = 0;

    (void)directory;
    child_check(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
    child_check(gms_log_open("full", "stderr", GMS_LOG_INFO, &error) == GMS_OK);
    child_check((fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK) == 0);
    alarm(UNIT_PATIENCE_MS / 1000); /* a write that waits ends here */
    for (int i = 0; i < 5000; i++) {
        gms_log(GMS_LOG_INFO, "line %d of very many, and the pipe holds 64 KiB", i);
    }
    alarm(0);
    child_check((fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK) == 0); /* others share it */
    child_check(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    ssize_t bytes;
    while ((bytes = read(ends[0], text, sizeof(text) - 1)) > 0) {
        text[bytes] = '\0';
        lines += lines_of(text);
    }
    child_check(lines > 100 && lines < 5000);
    gms_log(GMS_LOG_INFO, "after");
    bytes = read(ends[0], text, sizeof(text) - 1);
    child_check(bytes > 0);
    text[bytes] = '\0';
    char note[64];
    snprintf(note, sizeof(note), "warning: %zu log lines lost", 5000 - lines);
    child_check(strstr(text, note) && strstr(text, "info: after\n"));
    gms_log(GMS_LOG_INFO, "once");
    bytes = read(ends[0], text, sizeof(text) - 1);
    child_check(bytes > 0);
    text[bytes] = '\0';
    child_check(!strstr(text, "lost"));
    /* The reader is gone: no signal, no error. */
    close(ends[0]);
    gms_log(GMS_LOG_ERROR, "nobody");
}

/* stderr is a socket, as under systemd. */
static void body_socket(const char *directory)
{
    int ends[2];

    (void)directory;
    child_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    child_check(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
    child_check(gms_log_open("socket", "stderr", GMS_LOG_INFO, &error) == GMS_OK);
    alarm(UNIT_PATIENCE_MS / 1000);
    for (int i = 0; i < 20000; i++) {
        gms_log(GMS_LOG_INFO, "line %d", i);
    }
    alarm(0);
    child_check(recv(ends[0], text, sizeof(text) - 1, MSG_DONTWAIT) > 0);
    child_check(strstr(text, "socket info: line 0\n"));
}

static void body_journal(const char *directory)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char destination[160];

    child_check(gms_log_open("x", "journald:/nonexistent/socket", GMS_LOG_INFO, &error) == GMS_E_SYSTEM);
    child_check(strstr(error.text, "/nonexistent/socket") && strstr(error.text, "systemd-journald"));
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/journal", directory);
    snprintf(destination, sizeof(destination), "journald:%s", address.sun_path);
    int journal = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    child_check(bind(journal, (struct sockaddr *)&address, sizeof(address)) == 0);
    child_check(gms_log_open("gms-keeper", destination, GMS_LOG_DEBUG, &error) == GMS_OK);
    gms_log(GMS_LOG_ERROR, "two\nlines");
    ssize_t bytes = recv(journal, text, sizeof(text) - 1, 0);
    child_check(bytes > 0);
    text[bytes] = '\0';
    child_check(strcmp(text, "PRIORITY=3\nSYSLOG_IDENTIFIER=gms-keeper\nMESSAGE=two lines\n") == 0);
    gms_log(GMS_LOG_DEBUG, "d");
    bytes = recv(journal, text, sizeof(text) - 1, 0);
    child_check(bytes > 0 && strncmp(text, "PRIORITY=7\n", 11) == 0);
    /* A journal that does not read, or is gone, costs lines and no time. */
    alarm(UNIT_PATIENCE_MS / 1000);
    for (int i = 0; i < 5000; i++) {
        gms_log(GMS_LOG_INFO, "line %d", i);
    }
    close(journal);
    gms_log(GMS_LOG_INFO, "gone");
    alarm(0);
}

static void file_destination(void **state)
{
    in_child(body_file, *state);
}

static void descriptors_do_not_pile_up(void **state)
{
    in_child(body_descriptors, *state);
}

static void a_full_pipe_never_blocks(void **state)
{
    in_child(body_full_pipe, *state);
}

static void a_full_socket_never_blocks(void **state)
{
    in_child(body_socket, *state);
}

static void journal_destination(void **state)
{
    in_child(body_journal, *state);
}

static void levels(void **state)
{
    static const char *const wrong[] = {"", "Info", "warn", "trace", "1", "info ", "information"};
    enum gms_log_level level = GMS_LOG_ERROR;

    (void)state;
    assert_ok(gms_log_level_parse("debug", &level, &error));
    assert_int_equal(level, GMS_LOG_DEBUG);
    assert_ok(gms_log_level_parse("error", &level, &error));
    assert_int_equal(level, GMS_LOG_ERROR);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_status(gms_log_level_parse(wrong[i], &level, &error), GMS_E_INVALID);
        assert_text_has("error, warning, notice, info or debug");
    }
    assert_status(gms_log_level_parse(NULL, &level, &error), GMS_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels),
        cmocka_unit_test_setup_teardown(file_destination, unit_make_dir, unit_remove_dir),
        cmocka_unit_test_setup_teardown(descriptors_do_not_pile_up, unit_make_dir, unit_remove_dir),
        cmocka_unit_test_setup_teardown(a_full_pipe_never_blocks, unit_make_dir, unit_remove_dir),
        cmocka_unit_test_setup_teardown(a_full_socket_never_blocks, unit_make_dir, unit_remove_dir),
        cmocka_unit_test_setup_teardown(journal_destination, unit_make_dir, unit_remove_dir),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
