/* SPDX-License-Identifier: Apache-2.0 */
#include "fence/kin.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "host/threads.h"

enum { LOOKS = 16, CHILDREN_BYTES = 64 * 1024 };

void gms_kin_clear(struct gms_kin *kin)
{
    for (size_t i = 0; i < kin->count; i++)
        gms_fd_close(&kin->list[i].pidfd);
    free(kin->list);
    *kin = (struct gms_kin){0};
}

/* Moves `pidfd` in. */
static bool append(struct gms_kin *kin, pid_t pid, int pidfd)
{
    if (kin->count == kin->capacity) {
        size_t capacity = kin->capacity > 0 ? 2 * kin->capacity : 16;
        struct gms_kin_process *list = capacity <= GMS_KIN_MAX ? realloc(kin->list, capacity * sizeof *list) : NULL;
        if (list == NULL) {
            kin->overflow = true;
            gms_fd_close(&pidfd);
            return false;
        }
        kin->list = list;
        kin->capacity = capacity;
    }
    kin->list[kin->count++] = (struct gms_kin_process){pid, pidfd};
    return true;
}

bool gms_kin_add(struct gms_kin *kin, int pidfd)
{
    gms_pidfd_signal(pidfd, SIGKILL);
    int copy = fcntl(pidfd, F_DUPFD_CLOEXEC, 3);
    return copy >= 0 && append(kin, gms_pidfd_pid(copy), copy);
}

/* ------------------------------------------------------------------------------------------------- children --- */

/* Calls `visit` for every child of every thread of `pid`. False: the process is gone or cannot be read. */
static bool each_child(pid_t pid, bool (*visit)(void *context, pid_t child), void *context)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = pid > 0 ? opendir(path) : NULL;
    if (tasks == NULL)
        return false;
    char *text = malloc(CHILDREN_BYTES);
    bool whole = text != NULL;
    for (struct dirent *task; whole && (task = readdir(tasks)) != NULL;) {
        if (!isdigit((unsigned char)task->d_name[0]))
            continue;
        snprintf(path, sizeof path, "%.20s/children", task->d_name);
        int fd = openat(dirfd(tasks), path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue; /* that thread has gone; its children are another's now */
        size_t used = 0;
        for (ssize_t got = 1; got > 0 && used < CHILDREN_BYTES - 1;) {
            got = read(fd, text + used, CHILDREN_BYTES - 1 - used);
            if (got < 0 && errno == EINTR)
                got = 1;
            else if (got > 0)
                used += (size_t)got;
        }
        gms_fd_close(&fd);
        whole = used < CHILDREN_BYTES - 1;
        text[used] = '\0';
        for (char *at = text, *next;; at = next) {
            long child = strtol(at, &next, 10);
            if (next == at)
                break;
            whole = visit(context, (pid_t)child) && whole;
        }
    }
    free(text);
    closedir(tasks);
    return whole;
}

struct look {
    struct gms_kin *kin;
    pid_t anchor;
    uint64_t digest; /* of all lists, in the order read */
    bool found;      /* somebody new */
};

static bool is_known(const struct gms_kin *kin, pid_t pid)
{
    for (size_t i = 0; i < kin->count; i++)
        if (kin->list[i].pid == pid && gms_pidfd_pid(kin->list[i].pidfd) == pid)
            return true;
    return false;
}

static void mix(struct look *look, uint64_t value)
{
    look->digest = (look->digest ^ value) * UINT64_C(0x100000001b3);
}

static bool meet(void *context, pid_t child)
{
    struct look *look = context;
    struct gms_kin *kin = look->kin;
    mix(look, (uint64_t)child);
    if (child <= 1 || child == getpid() || is_known(kin, child))
        return true;
    look->found = true;
    int pidfd = -1;
    gms_status status = gms_pidfd_open(child, &pidfd, NULL);
    if (status != GMS_OK) {
        kin->overflow = kin->overflow || status == GMS_E_DESCRIPTORS;
        return true;
    }
    pid_t parent = gms_parent_of(child);
    if (parent != look->anchor && !is_known(kin, parent)) {
        gms_fd_close(&pidfd); /* the number is another's by now, or it has just moved: the next look tells */
        return true;
    }
    gms_pidfd_signal(pidfd, SIGKILL);
    append(kin, child, pidfd);
    return true;
}

/* One look at all lists. True: the anchor could be read. */
static bool look_once(struct look *look)
{
    look->digest = UINT64_C(0xcbf29ce484222325);
    look->found = false;
    for (size_t i = look->kin->count; i-- > 0;) {
        const struct gms_kin_process *process = &look->kin->list[i];
        if (process->pid <= 0 || gms_pidfd_pid(process->pidfd) != process->pid)
            continue;
        mix(look, UINT64_C(1) << 32 | (uint64_t)process->pid);
        each_child(process->pid, meet, look);
    }
    mix(look, UINT64_C(1) << 33);
    return look->anchor == 0 || each_child(look->anchor, meet, look);
}

static bool process_exiting(const struct gms_kin_process *process)
{
    if (gms_pidfd_ended(process->pidfd))
        return true;
    pid_t pid = gms_pidfd_pid(process->pidfd);
    if (pid <= 0)
        return false; /* outside our namespace: unknown, and unknown is never dead */
    return gms_threads_exiting(pid) && (gms_pidfd_ended(process->pidfd) || gms_pidfd_pid(process->pidfd) == pid);
}

enum gms_kin_state gms_kin_look(struct gms_kin *kin, int anchor, pid_t *ret_waits)
{
    struct look look = {.kin = kin, .anchor = 0};
    pid_t waits_here = 0, *waits = ret_waits != NULL ? ret_waits : &waits_here;
    *waits = 0;
    kin->overflow = false;
    if (anchor >= 0) {
        look.anchor = gms_pidfd_pid(anchor);
        if (look.anchor <= 0 || gms_pidfd_ended(anchor))
            return GMS_KIN_UNKNOWN;
    }
    bool agreed = false;
    uint64_t before = 0;
    for (int i = 0; i < LOOKS && !agreed; i++) {
        if (!look_once(&look))
            return GMS_KIN_UNKNOWN;
        agreed = i > 0 && !look.found && look.digest == before;
        before = look.digest;
    }
    if (anchor >= 0 && gms_pidfd_ended(anchor))
        return GMS_KIN_UNKNOWN; /* it ended meanwhile, and its children moved past it */
    for (size_t i = 0; i < kin->count; i++) {
        if (!process_exiting(&kin->list[i])) {
            *waits = kin->list[i].pid;
            return GMS_KIN_LIVE;
        }
    }
    return agreed && !kin->overflow ? GMS_KIN_EXITING : GMS_KIN_LIVE;
}

bool gms_kin_ended(const struct gms_kin *kin)
{
    for (size_t i = 0; i < kin->count; i++)
        if (!gms_pidfd_ended(kin->list[i].pidfd))
            return false;
    return true;
}
