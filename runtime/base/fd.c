/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/clock.h"

void gms_fd_close(int *fd)
{
    if (*fd >= 0) {
        const int kept_errno = errno;
        close(*fd); /* EINTR too leaves it closed on Linux; a second close could hit somebody else's descriptor */
        *fd = -1;
        errno = kept_errno;
    }
}

void gms_fd_usage(uint64_t *ret_used, uint64_t *ret_limit)
{
    const int kept_errno = errno;
    struct rlimit limit = {.rlim_cur = 0};
    struct stat info;

    getrlimit(RLIMIT_NOFILE, &limit);
    *ret_limit = limit.rlim_cur;
    *ret_used = limit.rlim_cur; /* what is left when even counting needs a descriptor that is not there */
    if (stat("/proc/self/fd", &info) == 0 && info.st_size > 0) {
        *ret_used = (uint64_t)info.st_size; /* since Linux 6.2 */
    } else {
        DIR *directory = opendir("/proc/self/fd");
        if (directory) {
            uint64_t entries = 0;
            while (readdir(directory)) {
                entries++;
            }
            closedir(directory);
            *ret_used = entries > 3 ? entries - 3 : 0; /* ".", ".." and the directory itself */
        }
    }
    errno = kept_errno;
}

gms_status gms_fd_fail(const char *what, struct gms_error *ret_error)
{
    const int error = errno;

    if (error == EMFILE) {
        uint64_t used = 0;
        uint64_t limit = 0;
        gms_fd_usage(&used, &limit);
        return gms_fail(ret_error, GMS_E_DESCRIPTORS,
                        "%s: out of file descriptors, %llu used of %llu allowed; raise the limit (ulimit -n)", what,
                        (unsigned long long)used, (unsigned long long)limit);
    }
    if (error == ENFILE) {
        return gms_fail(ret_error, GMS_E_DESCRIPTORS,
                        "%s: the whole machine is out of file descriptors; raise fs.file-max", what);
    }
    return gms_fail(ret_error, GMS_E_SYSTEM, "%s: %s", what, strerror(error));
}

gms_status gms_fd_raise(int *fd, int minimum, struct gms_error *ret_error)
{
    if (*fd >= minimum) {
        return GMS_OK;
    }
    const int raised = fcntl(*fd, F_DUPFD_CLOEXEC, minimum);
    if (raised < 0) {
        char what[64];

        snprintf(what, sizeof(what), "descriptor %d to %d or above", *fd, minimum);
        errno = errno == EINVAL ? EMFILE : errno; /* `minimum` is beyond the limit */
        return gms_fd_fail(what, ret_error);
    }
    gms_fd_close(fd);
    *fd = raised;
    return GMS_OK;
}

void gms_fd_raise_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

void gms_signals_reset(void)
{
    /* Not the ones that report bugs (SEGV, BUS, ABRT...): a sanitizer may have its handlers there. */
    static const int defaults[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGALRM, SIGTERM, SIGUSR1, SIGUSR2,   SIGCHLD, SIGCONT,
                                   SIGTSTP, SIGTTIN, SIGTTOU, SIGPROF, SIGPOLL, SIGXCPU, SIGVTALRM, SIGURG};
    /* A peer that left, or a file size limit, is an error code and not the end of the process. */
    static const int ignored[] = {SIGPIPE, SIGXFSZ};
    struct sigaction action;
    sigset_t none;

    memset(&action, 0, sizeof(action));
    sigemptyset(&action.sa_mask);
    action.sa_handler = SIG_DFL;
    for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++) {
        sigaction(defaults[i], &action, NULL);
    }
    action.sa_handler = SIG_IGN;
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++) {
        sigaction(ignored[i], &action, NULL);
    }
    /* Last: a signal that was pending while blocked now meets its default. */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

gms_status gms_pidfd_open(pid_t pid, int *ret_fd, struct gms_error *ret_error)
{
    if (pid <= 0) {
        return gms_fail(ret_error, GMS_E_INVALID,
                        "pid %ld names no process here; a peer in another PID namespace "
                        "has to send its pidfd",
                        (long)pid);
    }
    const int fd = pidfd_open(pid, 0); /* close-on-exec always */
    if (fd < 0) {
        if (errno == ESRCH) {
            return gms_fail(ret_error, GMS_E_NOT_FOUND, "process %ld is gone", (long)pid);
        }
        if (errno == EINVAL) {
            return gms_fail(ret_error, GMS_E_INVALID, "%ld is a thread, not a process", (long)pid);
        }
        char what[64];
        snprintf(what, sizeof(what), "pidfd of process %ld", (long)pid);
        return gms_fd_fail(what, ret_error);
    }
    *ret_fd = fd;
    return GMS_OK;
}

pid_t gms_pidfd_pid(int pidfd)
{
    char path[64];
    char text[1024];
    pid_t pid = 0; /* what cannot be read is unknown, and unknown is never dead */

    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    const ssize_t bytes = read(fd, text, sizeof(text) - 1);
    gms_fd_close(&fd);
    if (bytes > 0) {
        text[bytes] = '\0';
        const char *line = strstr(text, "\nPid:");
        if (line) {
            pid = (pid_t)strtol(line + 5, NULL, 10);
        }
    }
    return pid < 0 ? -1 : pid;
}

bool gms_pidfd_same(int a, int b)
{
    enum { PID_FILE_SYSTEM = 0x50494446 }; /* linux/magic.h of 6.9 and later: each process has its own inode there */
    pid_t pid_a = gms_pidfd_pid(a), pid_b = gms_pidfd_pid(b);
    struct stat status_a, status_b;
    struct statfs system;

    if (pid_a > 0 || pid_b > 0)
        return pid_a == pid_b;
    return fstatfs(a, &system) == 0 && system.f_type == PID_FILE_SYSTEM && fstat(a, &status_a) == 0 &&
           fstat(b, &status_b) == 0 && status_a.st_dev == status_b.st_dev && status_a.st_ino == status_b.st_ino;
}

bool gms_pidfd_is(int fd)
{
    struct stat info;

    /* A /proc/PID directory can be signalled too, but is readable always and never says that its process has ended. */
    if (fstat(fd, &info) != 0 || S_ISDIR(info.st_mode)) {
        return false;
    }
    /* EINVAL: a process outside our PID namespace. We cannot end it, but we can see it end. */
    return pidfd_send_signal(fd, 0, NULL, 0) == 0 || errno == ESRCH || errno == EPERM || errno == EINVAL;
}

bool gms_pidfd_in_reach(int pidfd)
{
    return pidfd_send_signal(pidfd, 0, NULL, 0) == 0 || errno == ESRCH;
}

bool gms_pidfd_signal(int pidfd, int signal)
{
    return pidfd_send_signal(pidfd, signal, NULL, 0) == 0 || errno == ESRCH;
}

bool gms_pidfd_ended(int pidfd)
{
    struct pollfd entry = {.fd = pidfd, .events = POLLIN};
    int ready;

    do {
        ready = poll(&entry, 1, 0);
    } while (ready < 0 && errno == EINTR);
    return ready > 0 && (entry.revents & (POLLIN | POLLHUP)) != 0 && (entry.revents & POLLNVAL) == 0;
}

bool gms_pidfd_status(int pidfd, int *ret_status)
{
    enum { INFO_EXIT = 8 };
    struct info { /* linux/pidfd.h of 6.15, first version */
        uint64_t mask, cgroup;
        uint32_t pid, tgid, ppid, ids[8];
        int32_t exit_code;
    } info = {.mask = INFO_EXIT};

    if (ioctl(pidfd, _IOWR(0xFF, 11, struct info), &info) != 0 || (info.mask & INFO_EXIT) == 0) {
        return false;
    }
    *ret_status = info.exit_code;
    return true;
}

gms_status gms_file_lock(const char *path, int timeout_ms, int *ret_fd, struct gms_error *ret_error)
{
    const uint64_t deadline_ns = gms_clock_ns() + (uint64_t)(timeout_ms < 0 ? 0 : timeout_ms) * GMS_NS_PER_MS;
    int pause_ms = 1;

    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
        struct stat ours;
        struct stat named;

        if (fd < 0) {
            char what[256];
            snprintf(what, sizeof(what), "lock file %.200s", path);
            return gms_fd_fail(what, ret_error);
        }
        if (fstat(fd, &ours) < 0 || !S_ISREG(ours.st_mode)) {
            gms_fd_close(&fd);
            return gms_fail(ret_error, GMS_E_EXISTS, "lock file %.300s is not a regular file; remove it", path);
        }
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            /* Somebody may have replaced the file between open and lock: two names, two locks, two owners. */
            if (stat(path, &named) == 0 && named.st_dev == ours.st_dev && named.st_ino == ours.st_ino) {
                *ret_fd = fd;
                return GMS_OK;
            }
            gms_fd_close(&fd);
            if (gms_clock_ns() >= deadline_ns) {
                return gms_fail(ret_error, GMS_E_BUSY, "lock file %.300s is replaced again and again", path);
            }
            continue;
        }
        const int error = errno;
        gms_fd_close(&fd);
        if (error != EWOULDBLOCK && error != EINTR) {
            return gms_fail(ret_error, GMS_E_SYSTEM, "flock of %.300s: %s", path, strerror(error));
        }
        if (gms_clock_ns() >= deadline_ns) {
            return gms_fail(ret_error, GMS_E_BUSY, "%.300s is locked by another process (waited %d ms)", path,
                            timeout_ms);
        }
        (void)poll(NULL, 0, pause_ms);
        pause_ms = pause_ms < 16 ? pause_ms * 2 : 16;
    }
}

void gms_file_describe(const char *path, char *ret_text, size_t bytes)
{
    struct stat file;

    if (stat(path, &file) != 0) {
        snprintf(ret_text, bytes, "none");
    } else {
        snprintf(ret_text, bytes, "device %llu inode %llu", (unsigned long long)file.st_dev,
                 (unsigned long long)file.st_ino);
    }
}

static int write_all(int fd, const void *data, size_t bytes)
{
    const char *at = data;

    while (bytes > 0) {
        const ssize_t written = write(fd, at, bytes);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            if (written == 0) {
                errno = EIO;
            }
            return -1;
        }
        at += written;
        bytes -= (size_t)written;
    }
    return 0;
}

/* The rename is durable only when the directory is. */
static int sync_directory_of(char *path)
{
    char *slash = strrchr(path, '/');
    int fd;

    if (slash == path) {
        fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } else if (slash) {
        *slash = '\0';
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        *slash = '/';
    } else {
        fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    if (fd < 0) {
        return -1;
    }
    const int result = fsync(fd);
    gms_fd_close(&fd);
    return result;
}

/* One temporary name per file, locked: a killed writer leaves at most one behind and the next one uses it again. */
static gms_status replace(const char *path, const void *data, size_t bytes, bool synced, struct gms_error *ret_error)
{
    char temporary[PATH_MAX];
    int fd = -1;

    if (snprintf(temporary, sizeof(temporary), "%s.new", path) >= (int)sizeof(temporary)) {
        return gms_fail(ret_error, GMS_E_INVALID, "path of %zu bytes is too long, the limit is %zu", strlen(path),
                        sizeof(temporary) - sizeof(".new"));
    }
    gms_status status = gms_file_lock(temporary, 2000, &fd, ret_error);
    if (status != GMS_OK) {
        return status;
    }
    if (fchmod(fd, 0600) < 0 || ftruncate(fd, 0) < 0 || write_all(fd, data, bytes) < 0 || (synced && fsync(fd) < 0) ||
        rename(temporary, path) < 0) {
        status = gms_fail(ret_error, GMS_E_SYSTEM, "%.300s cannot be replaced (%zu bytes): %s", path, bytes,
                          strerror(errno));
        (void)unlink(temporary);
    } else if (synced && sync_directory_of(temporary) < 0) {
        status = gms_fail(ret_error, GMS_E_SYSTEM, "%.300s is replaced, but its directory cannot be synced: %s", path,
                          strerror(errno));
    }
    gms_fd_close(&fd);
    return status;
}

gms_status gms_file_replace(const char *path, const void *data, size_t bytes, struct gms_error *ret_error)
{
    return replace(path, data, bytes, true, ret_error);
}

gms_status gms_file_publish(const char *path, const void *data, size_t bytes, struct gms_error *ret_error)
{
    return replace(path, data, bytes, false, ret_error);
}
