/* SPDX-License-Identifier: Apache-2.0
 *
 * What unit tests share: a directory of their own, child processes that report by exit code, waiting with a deadline.
 * Header only; include it first, it brings cmocka.
 */
#ifndef GMS_TESTS_UNIT_SUPPORT_H
#define GMS_TESTS_UNIT_SUPPORT_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "gms/status.h"

/* Longer than anything here takes on a loaded machine: reached only when something hangs. */
enum { UNIT_PATIENCE_MS = 20000 };

#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        const gms_status assert_ok_status = (call);                                                                    \
        if (assert_ok_status != GMS_OK) {                                                                              \
            print_error("%s: %s: %s\n", #call, gms_status_name(assert_ok_status), error.text);                         \
        }                                                                                                              \
        assert_int_equal(assert_ok_status, GMS_OK);                                                                    \
    } while (0)

#define assert_status(call, expected)                                                                                  \
    do {                                                                                                               \
        memset(&error, 0, sizeof(error));                                                                              \
        const gms_status assert_status_got = (call);                                                                   \
        if (assert_status_got != (expected)) {                                                                         \
            print_error("%s: %s: %s\n", #call, gms_status_name(assert_status_got), error.text);                        \
        }                                                                                                              \
        assert_int_equal(assert_status_got, (expected));                                                               \
        assert_int_equal(error.status, (expected));                                                                    \
        assert_int_equal(error.rank, -1);                                                                              \
        assert_true(error.text[0] != '\0');                                                                            \
    } while (0)

#define assert_text_has(part)                                                                                          \
    do {                                                                                                               \
        if (!strstr(error.text, (part))) {                                                                             \
            print_error("\"%s\" lacks \"%s\"\n", error.text, (part));                                                  \
        }                                                                                                              \
        assert_non_null(strstr(error.text, (part)));                                                                   \
    } while (0)

/* In a child process: cmocka's asserts would unwind into the parent's test. */
#define child_check(condition)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "child: %s:%d: failed: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);           \
            _exit(99);                                                                                                 \
        }                                                                                                              \
    } while (0)

static inline int unit_remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

/* A new directory, 0700; *state is its path. For cmocka's setup and teardown. */
static inline int unit_make_dir(void **state)
{
    const char *base = getenv("TMPDIR");
    char *path = NULL;

    if (asprintf(&path, "%s/gms-unit-XXXXXX", base && strlen(base) < 40 ? base : "/tmp") < 0 || !mkdtemp(path)) {
        return -1;
    }
    *state = path;
    return 0;
}

static inline int unit_remove_dir(void **state)
{
    nftw(*state, unit_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return 0;
}

/* waitpid's status, or -1 after UNIT_PATIENCE_MS; then the child is killed, so that nothing outlives a failed test. */
static inline int unit_wait(pid_t pid)
{
    struct gms_error error;
    int pidfd = -1;
    int status = -1;
    bool late = false;

    if (gms_pidfd_open(pid, &pidfd, &error) == GMS_OK) {
        const uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
        while (!gms_pidfd_ended(pidfd) && !late) {
            struct pollfd entry = {.fd = pidfd, .events = POLLIN};
            (void)poll(&entry, 1, gms_clock_poll_ms(deadline_ns));
            late = gms_clock_poll_ms(deadline_ns) == 0;
        }
        if (late) {
            gms_pidfd_signal(pidfd, SIGKILL);
        }
        gms_fd_close(&pidfd);
    }
    if (waitpid(pid, &status, 0) != pid || late) {
        return -1;
    }
    return status;
}

/* Reads exactly `bytes` within the patience; false at end of file or when it is over. */
static inline bool unit_read(int fd, void *ret_data, size_t bytes)
{
    const uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    char *at = ret_data;

    while (bytes > 0) {
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        const int ready = poll(&entry, 1, gms_clock_poll_ms(deadline_ns));
        if (ready == 0) {
            return false;
        }
        const ssize_t got = ready > 0 ? read(fd, at, bytes) : -1;
        if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) {
            return false;
        }
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        }
    }
    return true;
}

/* Open descriptors of this process, counted by asking for each. */
static inline unsigned unit_open_fds(void)
{
    unsigned count = 0;

    for (int fd = 0; fd < 4096; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

#endif
