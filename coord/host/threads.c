/* SPDX-License-Identifier: Apache-2.0 */
#include "host/threads.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

enum { PF_EXITING_FLAG = 0x4, PF_KTHREAD_FLAG = 0x00200000 }; /* include/linux/sched.h */

bool gms_proc_read(int directory, const char *path, char *ret_text, size_t room)
{
    int fd = openat(directory, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got;
    do
        got = read(fd, ret_text, room - 1);
    while (got < 0 && errno == EINTR);
    gms_fd_close(&fd);
    ret_text[got > 0 ? got : 0] = '\0';
    if (got == 0)
        errno = ESRCH;
    return got > 0;
}

struct stat_line {
    char name[20], state;
    int parent;
    unsigned int flags;
};

/* The name in field 2 may hold anything, so count from its closing parenthesis. */
static bool parse_stat(const char *text, struct stat_line *ret_line)
{
    const char *name = strchr(text, '('), *rest = strrchr(text, ')');
    if (name == NULL || rest == NULL || rest < name ||
        sscanf(rest + 1, " %c %d %*d %*d %*d %*d %u", &ret_line->state, &ret_line->parent, &ret_line->flags) != 3)
        return false;
    snprintf(ret_line->name, sizeof ret_line->name, "%.*s", (int)(rest - name - 1), name + 1);
    return true;
}

static bool thread_exiting(int tasks, const char *thread, struct stat_line *ret_line)
{
    char path[48], text[1024];
    snprintf(path, sizeof path, "%.20s/stat", thread);
    if (!gms_proc_read(tasks, path, text, sizeof text))
        return errno == ENOENT || errno == ESRCH; /* gone is more than exiting; unreadable is not */
    return parse_stat(text, ret_line) && (ret_line->flags & PF_EXITING_FLAG) != 0;
}

/* False: some thread is not; *ret_line and *ret_thread say which. */
static bool threads_exiting(pid_t pid, struct stat_line *ret_line, int *ret_thread)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *directory = opendir(path);
    if (directory == NULL)
        return errno == ENOENT || errno == ESRCH;
    bool exiting = true;
    for (struct dirent *entry; exiting && (entry = readdir(directory)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        exiting = thread_exiting(dirfd(directory), entry->d_name, ret_line);
        *ret_thread = atoi(entry->d_name);
    }
    closedir(directory);
    return exiting;
}

bool gms_threads_exiting(pid_t pid)
{
    struct stat_line line;
    int thread;
    return threads_exiting(pid, &line, &thread);
}

/* One listing of the threads of a process. */
struct listing {
    uint64_t digest; /* of their numbers */
    bool vanished;   /* one was not there any more when it was asked about; the list may end there then */
    int living;      /* is not past the start of its exit, or cannot be asked; 0: all are */
    bool kernel;     /* that one is the kernel's */
};

/* Up to the first that lives. False: errno says why not. */
static bool list_threads(pid_t pid, struct listing *ret_listing)
{
    char path[64], text[1024];
    struct listing listing = {.digest = UINT64_C(0xcbf29ce484222325)};
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *directory = opendir(path);
    if (directory == NULL)
        return false;
    size_t count = 0;
    for (struct dirent *entry; listing.living == 0 && (entry = readdir(directory)) != NULL;) {
        struct stat_line line = {0};
        text[0] = '\0';
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        const int thread = atoi(entry->d_name);
        count++;
        listing.digest = (listing.digest ^ (uint64_t)thread) * UINT64_C(0x100000001b3);
        snprintf(path, sizeof path, "%.20s/stat", entry->d_name);
        if (!gms_proc_read(dirfd(directory), path, text, sizeof text) && (errno == ENOENT || errno == ESRCH))
            listing.vanished = true;
        else if (!parse_stat(text, &line) || (line.flags & PF_EXITING_FLAG) == 0)
            listing.living = thread;
        listing.kernel = (line.flags & PF_KTHREAD_FLAG) != 0;
    }
    closedir(directory);
    listing.vanished = listing.vanished || count == 0;
    *ret_listing = listing;
    return true;
}

/* Nobody lives when two listings in a row are the same, and everybody in them was there and exiting: none of the first
 * could start another thread any more when the second was made, and that one had no gap. */
pid_t gms_threads_living(pid_t pid)
{
    enum { LISTINGS = 16 };
    struct listing before = {.vanished = true}, now;
    for (int i = 0; i < LISTINGS; i++, before = now) {
        if (!list_threads(pid, &now))
            return errno == ENOENT || errno == ESRCH ? 0 : -1;
        if (now.living > 0)
            return now.kernel ? 0 : now.living;
        if (!now.vanished && !before.vanished && now.digest == before.digest)
            return 0;
    }
    errno = EAGAIN;
    return -1;
}

void gms_threads_describe(pid_t pid, char *ret_text, size_t bytes)
{
    struct stat_line line = {.name = "?", .state = '?'};
    int thread = 0;
    if (threads_exiting(pid, &line, &thread))
        snprintf(ret_text, bytes, "pid %d, all threads exiting", (int)pid);
    else
        snprintf(ret_text, bytes, "pid %d (%s), thread %d in state %c", (int)pid, line.name, thread, line.state);
}

bool gms_threads_stopped(pid_t pid)
{
    char path[64], text[1024];
    struct stat_line line;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *directory = opendir(path);
    size_t stopped = 0;
    bool all = directory != NULL;
    for (struct dirent *entry; all && (entry = readdir(directory)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "%.20s/stat", entry->d_name);
        all = gms_proc_read(dirfd(directory), path, text, sizeof text) && parse_stat(text, &line);
        const bool stops = all && (line.state == 'T' || line.state == 't');
        all = stops || (all && (line.flags & PF_EXITING_FLAG) != 0);
        stopped += stops;
    }
    if (directory != NULL)
        closedir(directory);
    return all && stopped > 0;
}

bool gms_threads_doomed(pid_t pid)
{
    enum { SIGKILL_BIT = 1 << (9 - 1) };
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *directory = opendir(path);
    bool doomed = false;
    for (struct dirent *entry; !doomed && directory != NULL && (entry = readdir(directory)) != NULL;) {
        unsigned long long pending = 0;
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "%.20s/status", entry->d_name);
        const char *line = gms_proc_read(dirfd(directory), path, text, sizeof text) ? strstr(text, "\nSigPnd:") : NULL;
        doomed = line != NULL && sscanf(line, "\nSigPnd: %llx", &pending) == 1 && (pending & SIGKILL_BIT) != 0;
    }
    if (directory != NULL)
        closedir(directory);
    return doomed;
}

pid_t gms_parent_of(pid_t pid)
{
    char path[64], text[1024];
    struct stat_line line;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    return gms_proc_read(AT_FDCWD, path, text, sizeof text) && parse_stat(text, &line) ? line.parent : -1;
}
