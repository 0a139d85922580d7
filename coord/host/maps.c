/* SPDX-License-Identifier: Apache-2.0 */
#include "host/maps.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/fd.h"

enum { PF_EXITING_FLAG = 0x4 }; /* include/linux/sched.h: getting shut down */

bool gms_inode_of(int fd, struct gms_inode *ret_inode)
{
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0)
        return false;
    *ret_inode = (struct gms_inode){about.st_dev, about.st_ino};
    return true;
}

/* Reads what fits, NUL-terminated. False: nothing; errno says why. */
static bool read_small(int directory, const char *path, char *ret_text, size_t room)
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

/* ---------------------------------------------------------------------------------------------- mappings ------ */

/* Index of the file among `inodes`; `count`: none of them. */
static size_t index_of(uint64_t inode, unsigned int device_major, unsigned int device_minor,
                       const struct gms_inode *inodes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (inodes[i].inode == inode && major(inodes[i].device) == device_major &&
            minor(inodes[i].device) == device_minor)
            return i;
    return count;
}

/* "start-end perms offset major:minor inode path" */
static size_t index_of_line(const char *line, const struct gms_inode *inodes, size_t count, enum gms_maps_access access)
{
    char permissions[5];
    unsigned int device_major, device_minor;
    unsigned long inode;
    if (sscanf(line, "%*x-%*x %4s %*x %x:%x %lu", permissions, &device_major, &device_minor, &inode) != 4)
        return count;
    if ((access == GMS_MAPS_WRITABLE && permissions[1] != 'w') || (access == GMS_MAPS_SHARED && permissions[3] != 's'))
        return count;
    return index_of(inode, device_major, device_minor, inodes, count);
}

static size_t first_in_text(int maps, const struct gms_inode *inodes, size_t count, enum gms_maps_access access,
                            size_t enough)
{
    FILE *stream = fdopen(maps, "r");
    if (stream == NULL) {
        gms_fd_close(&maps);
        return count;
    }
    char *line = NULL;
    size_t capacity = 0, first = count;
    while (first > enough && getline(&line, &capacity, stream) > 0) {
        size_t index = index_of_line(line, inodes, count, access);
        first = index < first ? index : first;
    }
    free(line);
    fclose(stream);
    return first;
}

/* PROCMAP_QUERY, Linux 6.11: asks for the next mapping of a kind without wording all others. */
struct mapping_query {
    __u64 size, query_flags, query_address, start, end, flags, page_size, offset, inode;
    __u32 device_major, device_minor, name_size, build_id_size;
    __u64 name_address, build_id_address;
};
#define QUERY_MAPPING _IOWR('f', 17, struct mapping_query)
enum { QUERY_WRITABLE = 0x02, QUERY_SHARED = 0x08, QUERY_NEXT = 0x10, QUERY_FILE = 0x20 };

static __u64 kind_of(enum gms_maps_access access)
{
    return QUERY_NEXT | QUERY_FILE | (access == GMS_MAPS_WRITABLE ? QUERY_WRITABLE : 0) |
           (access == GMS_MAPS_SHARED ? QUERY_SHARED : 0);
}

/* The mapping of a kind at an address, or the next behind it. False: there is none; errno is ENOENT or ESRCH then, else
 * this kernel cannot be asked so. */
static bool query_next(int maps, enum gms_maps_access access, uint64_t address, struct mapping_query *ret_query)
{
    for (;;) {
        *ret_query =
            (struct mapping_query){.size = sizeof *ret_query, .query_flags = kind_of(access), .query_address = address};
        if (ioctl(maps, QUERY_MAPPING, ret_query) == 0)
            return true;
        if (errno != EINTR)
            return false;
    }
}

/* What is looked for, and how far: an index up to `enough` ends the look, and so does the `most`-th mapping. */
struct mappings_look {
    const struct gms_inode *inodes;
    size_t count;
    enum gms_maps_access access;
    size_t enough, most;
    uint64_t at, until; /* `at` moves on; `until`: all has been looked at */
};

/* False: this kernel cannot be asked so. */
static bool query_first(int maps, struct mappings_look *look, size_t *ret_first)
{
    *ret_first = look->count;
    for (size_t i = 0; i < look->most && look->at<look->until && * ret_first> look->enough; i++) {
        struct mapping_query query;
        if (!query_next(maps, look->access, look->at, &query)) {
            look->at = look->until;
            return errno == ENOENT || errno == ESRCH;
        }
        size_t index = index_of(query.inode, query.device_major, query.device_minor, look->inodes, look->count);
        *ret_first = index < *ret_first ? index : *ret_first;
        look->at = query.end;
    }
    return true;
}

static size_t look_for_first(pid_t pid, struct mappings_look *look)
{
    char path[64];
    size_t first = look->count;
    errno = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    int maps = look->count > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (maps < 0) {
        look->at = look->until;
        return look->count;
    }
    if (query_first(maps, look, &first)) {
        gms_fd_close(&maps);
        errno = 0; /* it came to the end */
        return first;
    }
    errno = 0;
    return first_in_text(maps, look->inodes, look->count, look->access, look->enough);
}

bool gms_maps_has(pid_t pid, const struct gms_inode *inodes, size_t count, enum gms_maps_access access)
{
    struct mappings_look look = {inodes, count, access, count - 1, SIZE_MAX, 0, UINT64_MAX};
    return count > 0 && look_for_first(pid, &look) < count;
}

size_t gms_maps_first(pid_t pid, const struct gms_inode *inodes, size_t count, enum gms_maps_access access)
{
    struct mappings_look look = {inodes, count, access, 0, SIZE_MAX, 0, UINT64_MAX};
    return look_for_first(pid, &look);
}

size_t gms_maps_first_between(pid_t pid, const struct gms_inode *inodes, size_t count, enum gms_maps_access access,
                              size_t most, uint64_t *inout_from, uint64_t until)
{
    struct mappings_look look = {inodes, count, access, 0, most, *inout_from, until};
    size_t first = look_for_first(pid, &look);
    *inout_from = look.at < until ? look.at : until;
    return first;
}

bool gms_maps_split(pid_t pid, enum gms_maps_access access, uint64_t from, uint64_t until, uint64_t *ret_middle)
{
    enum { SMALLEST = 64 * 1024 };
    static const uint64_t usual_end = UINT64_C(1) << 47; /* of what a process may use */
    char path[64];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    int maps = open(path, O_RDONLY | O_CLOEXEC);
    while (maps >= 0 && !found && from < until && until - from > SMALLEST) {
        struct mapping_query query;
        const uint64_t middle = from < usual_end && until > usual_end ? usual_end : from + (until - from) / 2;
        if (query_next(maps, access, middle, &query))
            found = query.start < until;
        else if (errno != ENOENT)
            break;
        *ret_middle = until = middle;
    }
    gms_fd_close(&maps);
    return found;
}

size_t gms_maps_each(const struct gms_inode *inodes, size_t count, enum gms_maps_access access,
                     bool (*found)(void *context, pid_t pid), void *context)
{
    size_t total = 0;
    DIR *directory = count > 0 ? opendir("/proc") : NULL;
    if (directory == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid <= 0 || pid == getpid() || !gms_maps_has(pid, inodes, count, access))
            continue;
        total++;
        if (!found(context, pid))
            break;
    }
    closedir(directory);
    return total;
}

/* ------------------------------------------------------------------------------------------- descriptors ------ */

/* "ino: 5" and "lock: 1: OFDLCK ADVISORY READ -1 00:01:5 77 77": the description carries the mark of incarnation 77. */
static bool info_borrows(const char *text, const struct gms_inode *inodes, size_t count, uint64_t incarnation)
{
    unsigned long inode = 0;
    bool known = false;
    const char *line = strstr(text, "\nino:");
    if (line == NULL || sscanf(line, "\nino: %lu", &inode) != 1)
        return false;
    for (size_t i = 0; i < count; i++)
        known = known || inodes[i].inode == inode;
    if (!known)
        return false;
    for (line = strstr(text, "\nlock:"); line != NULL; line = strstr(line + 1, "\nlock:")) {
        unsigned long long first = 0;
        if (sscanf(line, "\nlock: %*d: OFDLCK %*s %*s %*d %*x:%*x:%*u %llu", &first) == 1 && first == incarnation)
            return true;
    }
    return false;
}

/* One process, about whose descriptors it is asked. */
struct loan_look {
    pid_t pid;
    int directory; /* of its descriptors */
    const struct gms_inode *inodes;
    size_t count;
    uint64_t incarnation;
    int error; /* the last of ours; 0: none */
};

/* Not what there is not, nor what may not be read. */
static bool is_ours(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM;
}

enum descriptor { DESCRIPTOR_ABSENT, DESCRIPTOR_OTHER, DESCRIPTOR_LENT };

/* Names before contents, and never stat: that would ask a file system which may not answer. */
static enum descriptor look_at_descriptor(struct loan_look *look, const char *number)
{
    static const char memory[] = "/memfd:";
    char name[sizeof memory], path[64], info[4096];
    ssize_t length = readlinkat(look->directory, number, name, sizeof name - 1);
    if (length < 0) {
        look->error = is_ours(errno) ? errno : look->error;
        return DESCRIPTOR_ABSENT;
    }
    if (length != (ssize_t)sizeof name - 1 || memcmp(name, memory, sizeof memory - 1) != 0)
        return DESCRIPTOR_OTHER;
    snprintf(path, sizeof path, "/proc/%d/fdinfo/%.20s", (int)look->pid, number);
    if (!read_small(AT_FDCWD, path, info, sizeof info)) {
        look->error = is_ours(errno) ? errno : look->error;
        return DESCRIPTOR_OTHER;
    }
    return info_borrows(info, look->inodes, look->count, look->incarnation) ? DESCRIPTOR_LENT : DESCRIPTOR_OTHER;
}

static struct loan_look begin_look(pid_t pid, const struct gms_inode *inodes, size_t count, uint64_t incarnation)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return (struct loan_look){pid, directory, inodes, count, incarnation, directory < 0 ? errno : 0};
}

static void end_look(struct loan_look *look)
{
    gms_fd_close(&look->directory);
    errno = look->error;
}

size_t gms_maps_descriptors(pid_t pid)
{
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    return stat(path, &about) == 0 && about.st_size > 0 ? (size_t)about.st_size : 0;
}

bool gms_maps_borrows_numbers(pid_t pid, const struct gms_inode *inodes, size_t count, uint64_t incarnation, int from,
                              size_t numbers, bool *ret_present)
{
    struct loan_look look = begin_look(pid, inodes, count, incarnation);
    bool found = false;
    for (size_t i = 0; i < numbers; i++) {
        char digits[16];
        snprintf(digits, sizeof digits, "%d", from + (int)i);
        enum descriptor descriptor =
            look.directory >= 0 && !found ? look_at_descriptor(&look, digits) : DESCRIPTOR_ABSENT;
        found = found || descriptor == DESCRIPTOR_LENT;
        ret_present[i] = descriptor != DESCRIPTOR_ABSENT;
    }
    end_look(&look);
    return found;
}

bool gms_maps_borrows_others(pid_t pid, const struct gms_inode *inodes, size_t count, uint64_t incarnation,
                             const bool *known, size_t known_count)
{
    union {
        struct dirent64 first;
        char bytes[8192];
    } room;
    struct loan_look look = begin_look(pid, inodes, count, incarnation);
    bool found = false;
    while (look.directory >= 0 && !found) {
        const ssize_t got = getdents64(look.directory, room.bytes, sizeof room.bytes);
        if (got <= 0) {
            look.error = got < 0 && is_ours(errno) ? errno : look.error;
            break;
        }
        for (ssize_t at = 0; !found && at < got;) {
            const struct dirent64 *entry = (const void *)(room.bytes + at);
            at += entry->d_reclen;
            if (!isdigit((unsigned char)entry->d_name[0]))
                continue;
            int number = atoi(entry->d_name);
            if (number < 0 || (size_t)number >= known_count || !known[number])
                found = look_at_descriptor(&look, entry->d_name) == DESCRIPTOR_LENT;
        }
    }
    end_look(&look);
    return found;
}

bool gms_maps_borrows(pid_t pid, const struct gms_inode *inodes, size_t count, uint64_t incarnation)
{
    return gms_maps_borrows_others(pid, inodes, count, incarnation, NULL, 0);
}

/* ------------------------------------------------------------------------------------------------ threads ----- */

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
    if (!read_small(tasks, path, text, sizeof text))
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
        all = read_small(dirfd(directory), path, text, sizeof text) && parse_stat(text, &line) &&
              (line.state == 'T' || line.state == 't');
        stopped += all;
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
        const char *line = read_small(dirfd(directory), path, text, sizeof text) ? strstr(text, "\nSigPnd:") : NULL;
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
    return read_small(AT_FDCWD, path, text, sizeof text) && parse_stat(text, &line) ? line.parent : -1;
}
