/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-exec/descendants.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

enum { DEPTH_LIMIT = 32 }; /* what is deeper comes up when its ancestors have died */

/* Reads a whole /proc file; *ret_text is owned by the caller, NUL-terminated. */
static bool read_whole(int fd, char **ret_text)
{
    size_t capacity = 4096, used = 0;
    char *text = malloc(capacity);

    while (text != NULL) {
        ssize_t got = read(fd, text + used, capacity - 1 - used);

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            break;
        }
        used += (size_t)got;
        if (got == 0) {
            text[used] = '\0';
            *ret_text = text;
            return true;
        }
        if (used == capacity - 1) {
            char *larger = realloc(text, capacity * 2);

            if (larger == NULL) {
                break;
            }
            text = larger;
            capacity *= 2;
        }
    }
    free(text);
    return false;
}

static bool read_path(const char *path, char **ret_text)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool ok;

    if (fd < 0) {
        return false;
    }
    ok = read_whole(fd, ret_text);
    gms_fd_close(&fd);
    return ok;
}

/* Parent of `pid` as /proc says, -1 when it cannot be told. The name in parentheses may hold anything, ')' included. */
static pid_t parent_of(pid_t pid)
{
    char path[64], *text, *close_paren;
    int parent = -1;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!read_path(path, &text)) {
        return -1;
    }
    close_paren = strrchr(text, ')');
    if (close_paren == NULL || sscanf(close_paren + 1, " %*c %d", &parent) != 1) {
        parent = -1;
    }
    free(text);
    return parent;
}

static bool is_spared(const struct gms_spared *spared, pid_t pid)
{
    for (size_t i = 0; spared != NULL && i < spared->count; i++) {
        if (spared->pids[i] == pid) {
            return true;
        }
    }
    return false;
}

/* Calls `visit` for each child of each thread of `pid`. */
static void each_child(pid_t pid, void (*visit)(void *context, pid_t child), void *context)
{
    char path[96];
    DIR *tasks;
    struct dirent *task;

    snprintf(path, sizeof path, "/proc/%d/task", pid);
    tasks = opendir(path); /* glibc opens it close-on-exec */
    if (tasks == NULL) {
        return;
    }
    while ((task = readdir(tasks)) != NULL) {
        char *text, *next;

        if (!isdigit((unsigned char)task->d_name[0])) {
            continue;
        }
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/children", pid, task->d_name);
        if (!read_path(path, &text)) {
            continue;
        }
        for (char *at = text;; at = next) {
            long child = strtol(at, &next, 10);

            if (next == at) {
                break;
            }
            visit(context, (pid_t)child);
        }
        free(text);
    }
    closedir(tasks);
}

struct walk {
    pid_t self, parent;
    const struct gms_spared *spared;
    int depth;
    size_t found;
    pid_t first;
};

static void kill_one(void *context, pid_t pid)
{
    struct walk *walk = context;
    struct walk below;
    int pidfd = -1;

    if (pid <= 1 || pid == walk->self || (walk->depth == 0 && is_spared(walk->spared, pid))) {
        return;
    }
    if (gms_pidfd_open(pid, &pidfd, NULL) != GMS_OK) {
        return;
    }
    /* The pidfd first, the parent second: if the number was reused in between, the pidfd names a dead process. */
    pid_t parent = parent_of(pid);
    if (parent != walk->parent && parent != walk->self) {
        gms_fd_close(&pidfd);
        return;
    }
    if (!gms_pidfd_ended(pidfd)) {
        gms_pidfd_signal(pidfd, SIGKILL);
        walk->found++;
        walk->first = walk->first == 0 ? pid : walk->first;
    }
    gms_fd_close(&pidfd);
    if (walk->depth < DEPTH_LIMIT) {
        below = *walk;
        below.parent = pid;
        below.depth++;
        each_child(pid, kill_one, &below);
        walk->found = below.found;
        walk->first = below.first;
    }
}

size_t gms_descendants_kill(const struct gms_spared *spared, pid_t *ret_first)
{
    struct walk walk = {.self = getpid(), .parent = getpid(), .spared = spared};

    each_child(walk.self, kill_one, &walk);
    *ret_first = walk.first;
    return walk.found;
}

gms_status gms_descendants_check(struct gms_error *ret_error)
{
    char text[32] = {0}, own[32], *children;

    snprintf(own, sizeof own, "%d", getpid());
    if (readlink("/proc/self", text, sizeof text - 1) < 0) {
        return gms_fail(ret_error, GMS_E_UNSUPPORTED,
                        "/proc is not mounted (%s): descendants cannot be found without "
                        "it. Mount it, or use --containment pid-namespace",
                        strerror(errno));
    }
    if (strcmp(text, own) != 0) {
        return gms_fail(ret_error, GMS_E_UNSUPPORTED,
                        "/proc shows another PID namespace (this process is %s there and %s here): mount a fresh /proc "
                        "(unshare --mount-proc), or use --containment pid-namespace",
                        text, own);
    }
    if (!read_path("/proc/thread-self/children", &children)) {
        return gms_fail(ret_error, GMS_E_UNSUPPORTED,
                        "this kernel has no /proc/PID/task/TID/children (%s): use "
                        "--containment pid-namespace",
                        strerror(errno));
    }
    free(children);
    return GMS_OK;
}

static void note_one(void *context, pid_t pid)
{
    struct gms_spared *spared = context;
    pid_t *larger = realloc(spared->pids, (spared->count + 1) * sizeof *larger);

    if (larger !=
        NULL) { /* without memory the child is killed with the cohort: the safe side for the memory we guard */
        larger[spared->count++] = pid;
        spared->pids = larger;
    }
}

void gms_spared_note(struct gms_spared *ret_spared)
{
    memset(ret_spared, 0, sizeof *ret_spared);
    each_child(getpid(), note_one, ret_spared);
}

void gms_spared_reaped(struct gms_spared *spared, pid_t pid)
{
    for (size_t i = 0; i < spared->count; i++) {
        if (spared->pids[i] == pid) {
            spared->pids[i] = spared->pids[--spared->count];
            return;
        }
    }
}
