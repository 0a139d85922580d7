/* SPDX-License-Identifier: Apache-2.0 */
#include "host/processes.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

/* The directory's position before process N is N + POSITION_OF_NONE (TGID_OFFSET in fs/proc/base.c): nothing that the
 * kernel promises, so it is tried out first. Runs of kernel threads shorter than WORTH_PASSING are read like others. */
enum { POSITION_OF_NONE = 258, WORTH_PASSING = 8, SHORTEST_ENTRY = 24, LONGEST_ENTRY = 32 };

static int compare(const void *left, const void *right)
{
    pid_t a = *(const pid_t *)left, b = *(const pid_t *)right;
    return (a > b) - (a < b);
}

void gms_pids_sort(pid_t *list, size_t count)
{
    size_t ascending = 1;
    while (ascending < count && list[ascending - 1] <= list[ascending])
        ascending++;
    if (ascending < count)
        qsort(list, count, sizeof *list, compare);
}

bool gms_pid_is_in(const pid_t *list, size_t count, pid_t pid)
{
    return count > 0 && bsearch(&pid, list, count, sizeof *list, compare) != NULL;
}

/* --------------------------------------------------------------------------------------- the kernel's threads -- */

/* In a PID namespace number 2 is anybody's, under any name. */
static bool process_2_starts_kernel_threads(void)
{
    enum { PF_KTHREAD_FLAG = 0x00200000 }; /* include/linux/sched.h */
    char text[512];
    unsigned int flags = 0;
    int fd = open("/proc/2/stat", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    gms_fd_close(&fd);
    text[got > 0 ? got : 0] = '\0';
    return sscanf(text, "2 (kthreadd) %*c %*d %*d %*d %*d %*d %u", &flags) == 1 && (flags & PF_KTHREAD_FLAG) != 0;
}

/* "3 4 5 ": all children of process 2. NULL: not known. The text is the caller's. */
static char *read_kernel_threads(void)
{
    enum { ROOM = 256 * 1024 };
    int fd = open("/proc/2/task/2/children", O_RDONLY | O_CLOEXEC);
    char *text = malloc(ROOM);
    size_t used = 0;
    bool known = text != NULL && fd >= 0 && process_2_starts_kernel_threads();
    for (ssize_t got = 1; known && got > 0 && used<ROOM - 1; used += got> 0 ? (size_t)got : 0)
        got = read(fd, text + used, ROOM - 1 - used);
    gms_fd_close(&fd);
    if (!known) {
        free(text);
        return NULL;
    }
    text[used] = '\0';
    return text;
}

void gms_processes_begin(struct gms_processes *ret_processes)
{
    *ret_processes = (struct gms_processes){0};
    char *text = read_kernel_threads();
    size_t room = text != NULL ? strlen(text) / 2 + 2 : 0; /* a digit and a blank each; and process 2 */
    pid_t *kernel = room > 0 ? malloc(room * sizeof *kernel) : NULL;
    if (kernel == NULL) {
        free(text);
        return;
    }
    size_t count = 0;
    kernel[count++] = 2;
    for (char *at = text, *next;; at = next) {
        long pid = strtol(at, &next, 10);
        if (next == at || *next != ' ' || pid <= 0 || pid > INT_MAX)
            break; /* a number without a blank behind it was cut off */
        kernel[count++] = (pid_t)pid;
    }
    free(text);
    gms_pids_sort(kernel, count);
    ret_processes->kernel = kernel;
    ret_processes->kernel_count = count;
}

/* ---------------------------------------------------------------------------------------------- the list ------- */

static bool add(struct gms_processes *processes, pid_t pid)
{
    if (gms_pid_is_in(processes->kernel, processes->kernel_count, pid))
        return true;
    if (processes->count == processes->capacity) {
        size_t capacity = processes->capacity > 0 ? 2 * processes->capacity : 256;
        pid_t *list = realloc(processes->list, capacity * sizeof *list);
        if (list == NULL) {
            errno = ENOMEM;
            return false;
        }
        processes->list = list;
        processes->capacity = capacity;
    }
    processes->list[processes->count++] = pid;
    return true;
}

/* One reading of the directory, in which nothing is a process but what has a number. */
static pid_t number_of(const struct dirent64 *entry)
{
    return isdigit((unsigned char)entry->d_name[0]) ? (pid_t)atoi(entry->d_name) : 0;
}

static bool list_all(struct gms_processes *processes, int directory)
{
    union {
        struct dirent64 first;
        char bytes[16 * 1024];
    } room;
    processes->count = 0;
    if (lseek(directory, 0, SEEK_SET) != 0)
        return false;
    for (;;) {
        ssize_t got = getdents64(directory, room.bytes, sizeof room.bytes);
        if (got <= 0)
            return got == 0;
        for (ssize_t at = 0; at < got;) {
            const struct dirent64 *entry = (const void *)(room.bytes + at);
            at += entry->d_reclen;
            pid_t pid = number_of(entry);
            if (pid > 0 && !add(processes, pid))
                return false;
        }
    }
}

enum reading { READ_TO_END, READ_TO_STOP, READ_FAILED };

/* From number `from` on, up to `stop` (0: all). Little is read beyond it: the kernel makes an inode for each entry, and
 * that is what a listing costs. */
static enum reading list_from(struct gms_processes *processes, int directory, pid_t from, pid_t stop)
{
    union {
        struct dirent64 first;
        char bytes[16 * 1024];
    } room;
    if (lseek(directory, (off_t)from + POSITION_OF_NONE, SEEK_SET) < 0)
        return READ_FAILED;
    for (;;) {
        size_t bytes = sizeof room.bytes;
        if (stop > 0 && (size_t)(stop - from) < bytes / SHORTEST_ENTRY)
            bytes = (size_t)(stop - from) * SHORTEST_ENTRY;
        if (bytes < LONGEST_ENTRY)
            bytes = LONGEST_ENTRY;
        ssize_t got = getdents64(directory, room.bytes, bytes);
        if (got <= 0)
            return got == 0 ? READ_TO_END : READ_FAILED;
        for (ssize_t at = 0; at < got;) {
            const struct dirent64 *entry = (const void *)(room.bytes + at);
            at += entry->d_reclen;
            pid_t pid = number_of(entry);
            if (pid < from)
                return READ_FAILED; /* not the order that this relies on */
            if (stop > 0 && pid >= stop)
                return READ_TO_STOP;
            if (!add(processes, pid))
                return READ_FAILED;
            from = pid + 1;
        }
        if (stop > 0 && from >= stop)
            return READ_TO_STOP;
    }
}

/* Does the position that is our own lead to us? */
static bool positions_are_known(int directory)
{
    union {
        struct dirent64 first;
        char bytes[64];
    } room;
    return lseek(directory, (off_t)getpid() + POSITION_OF_NONE, SEEK_SET) >= 0 &&
           getdents64(directory, room.bytes, sizeof room.bytes) > 0 && number_of(&room.first) == getpid();
}

/* Passes over the long runs of kernel threads. False: not to be relied on. */
static bool list_between_kernel_threads(struct gms_processes *processes, int directory)
{
    const pid_t *kernel = processes->kernel;
    pid_t from = 1;
    processes->count = 0;
    if (!positions_are_known(directory))
        return false;
    for (size_t i = 0, end; i < processes->kernel_count; i = end) {
        for (end = i + 1; end < processes->kernel_count && kernel[end] == kernel[end - 1] + 1;)
            end++;
        if (end - i < WORTH_PASSING)
            continue;
        enum reading reading = from < kernel[i] ? list_from(processes, directory, from, kernel[i]) : READ_TO_STOP;
        if (reading != READ_TO_STOP)
            return reading == READ_TO_END;
        from = kernel[end - 1] + 1;
    }
    return list_from(processes, directory, from, 0) == READ_TO_END;
}

bool gms_processes_list(struct gms_processes *processes)
{
    int directory = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return false;
    bool whole = list_between_kernel_threads(processes, directory) || list_all(processes, directory);
    int error = errno;
    gms_fd_close(&directory);
    gms_pids_sort(processes->list, processes->count);
    errno = error;
    return whole;
}

void gms_processes_end(struct gms_processes *processes)
{
    free(processes->list);
    free(processes->kernel);
    *processes = (struct gms_processes){0};
}
