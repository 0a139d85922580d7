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
#include "host/threads.h"

/* By what number it is asked about a process. Its own is that of its first thread, which shows nothing and no error
 * once it has ended, though others live on. */
struct subject {
    pid_t pid, thread; /* thread: 0: the process's number; else one of its threads */
};

/* "/proc/7/maps", "/proc/7/task/9/maps": the latter is nobody else's, should the number 9 go to another process. */
enum { PATH_ROOM = 96 };
static void path_of(const struct subject *who, const char *what, char ret_path[PATH_ROOM])
{
    if (who->thread == 0)
        snprintf(ret_path, PATH_ROOM, "/proc/%d/%s", (int)who->pid, what);
    else
        snprintf(ret_path, PATH_ROOM, "/proc/%d/task/%d/%s", (int)who->pid, (int)who->thread, what);
}

/* Of ours: not what there is not, nor what may not be read. */
static bool is_ours(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM;
}

bool gms_maps_unknown(int error)
{
    return is_ours(error) || error == EAGAIN;
}

bool gms_inode_of(int fd, struct gms_inode *ret_inode)
{
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0)
        return false;
    *ret_inode = (struct gms_inode){about.st_dev, about.st_ino};
    return true;
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
    size_t capacity = 0, first = count, lines = 0;
    errno = 0;
    for (; first > enough && getline(&line, &capacity, stream) > 0; lines++) {
        size_t index = index_of_line(line, inodes, count, access);
        first = index < first ? index : first;
    }
    const int error = lines == 0 && errno == 0 ? ESRCH : errno;
    free(line);
    fclose(stream);
    errno = error;
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

/* False: this kernel cannot be asked so. errno: 0, or ESRCH where there is no address space. */
static bool query_first(int maps, struct mappings_look *look, size_t *ret_first)
{
    *ret_first = look->count;
    errno = 0;
    for (size_t i = 0; i < look->most && look->at<look->until && * ret_first> look->enough; i++) {
        struct mapping_query query;
        if (!query_next(maps, look->access, look->at, &query)) {
            look->at = look->until;
            errno = errno == ENOENT ? 0 : errno; /* it came to the end */
            return errno == 0 || errno == ESRCH;
        }
        size_t index = index_of(query.inode, query.device_major, query.device_minor, look->inodes, look->count);
        *ret_first = index < *ret_first ? index : *ret_first;
        look->at = query.end;
    }
    return true;
}

static size_t look_for_first(const struct subject *who, struct mappings_look *look)
{
    char path[PATH_ROOM];
    size_t first = look->count;
    errno = 0;
    path_of(who, "maps", path);
    int maps = look->count > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (maps < 0) {
        errno = errno == ENOENT ? ESRCH : errno;
        look->at = look->until;
        return look->count;
    }
    if (query_first(maps, look, &first)) {
        const int error = errno;
        gms_fd_close(&maps);
        errno = error;
        return first;
    }
    return first_in_text(maps, look->inodes, look->count, look->access, look->enough);
}

/* ----------------------------------------------------------------------------- whichever thread still lives --- */

/* errno says why not. */
static bool has_address_space(const struct subject *who)
{
    char path[PATH_ROOM], byte[2];
    path_of(who, "maps", path);
    return gms_proc_read(AT_FDCWD, path, byte, sizeof byte);
}

/* Calls `ask` until it finds something, or until whom it asked by had an address space still afterwards: a thread gives
 * that up before its descriptors, so all that it has was seen. The process's own number first. False: not found; errno
 * as maps.h has it. */
static bool ask_the_living(pid_t pid, bool (*ask)(void *context, const struct subject *who), void *context)
{
    enum { TRIES = 8 };
    struct subject who = {.pid = pid};
    for (int i = 0; i < TRIES; i++) {
        errno = 0;
        if (ask(context, &who))
            return true;
        const int error = errno;
        if (is_ours(error))
            return false;
        if (has_address_space(&who)) {
            errno = error;
            return false;
        }
        if (errno != ESRCH && errno != ENOENT)
            return false; /* it may not be read */
        who.thread = gms_threads_living(pid);
        if (who.thread <= 0) {
            errno = who.thread == 0 ? ESRCH : errno;
            return false;
        }
    }
    errno = EAGAIN;
    return false;
}

struct first_ask {
    struct mappings_look look;
    size_t first;
};

static bool ask_for_first(void *context, const struct subject *who)
{
    struct first_ask *ask = context;
    struct mappings_look look = ask->look;
    ask->first = look_for_first(who, &look);
    return ask->first < look.count;
}

bool gms_maps_has(pid_t pid, const struct gms_inode *inodes, size_t count, enum gms_maps_access access)
{
    struct first_ask ask = {{inodes, count, access, count - 1, SIZE_MAX, 0, UINT64_MAX}, count};
    errno = 0;
    return count > 0 && ask_the_living(pid, ask_for_first, &ask);
}

size_t gms_maps_first(pid_t pid, const struct gms_inode *inodes, size_t count, enum gms_maps_access access)
{
    struct first_ask ask = {{inodes, count, access, 0, SIZE_MAX, 0, UINT64_MAX}, count};
    errno = 0;
    return count > 0 && ask_the_living(pid, ask_for_first, &ask) ? ask.first : count;
}

size_t gms_maps_first_between(pid_t pid, const struct gms_inode *inodes, size_t count, enum gms_maps_access access,
                              size_t most, uint64_t *inout_from, uint64_t until)
{
    const struct subject who = {.pid = pid};
    struct mappings_look look = {inodes, count, access, 0, most, *inout_from, until};
    size_t first = look_for_first(&who, &look);
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
    struct subject who;
    int directory; /* of its descriptors */
    const struct gms_inode *inodes;
    size_t count;
    uint64_t incarnation;
    int error; /* the last of ours; 0: none */
};

enum descriptor { DESCRIPTOR_ABSENT, DESCRIPTOR_OTHER, DESCRIPTOR_LENT };

/* Names before contents, and never stat: that would ask a file system which may not answer. */
static enum descriptor look_at_descriptor(struct loan_look *look, const char *number)
{
    static const char memory[] = "/memfd:";
    char name[sizeof memory], path[PATH_ROOM], file[32], info[4096];
    ssize_t length = readlinkat(look->directory, number, name, sizeof name - 1);
    if (length < 0) {
        look->error = is_ours(errno) ? errno : look->error;
        return DESCRIPTOR_ABSENT;
    }
    if (length != (ssize_t)sizeof name - 1 || memcmp(name, memory, sizeof memory - 1) != 0)
        return DESCRIPTOR_OTHER;
    snprintf(file, sizeof file, "fdinfo/%.20s", number);
    path_of(&look->who, file, path);
    if (!gms_proc_read(AT_FDCWD, path, info, sizeof info)) {
        look->error = is_ours(errno) ? errno : look->error;
        return DESCRIPTOR_ABSENT; /* closed meanwhile, or with the thread that it is asked by */
    }
    return info_borrows(info, look->inodes, look->count, look->incarnation) ? DESCRIPTOR_LENT : DESCRIPTOR_OTHER;
}

static struct loan_look begin_look(const struct subject *who, const struct gms_inode *inodes, size_t count,
                                   uint64_t incarnation)
{
    char path[PATH_ROOM];
    path_of(who, "fd", path);
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return (struct loan_look){*who, directory, inodes, count, incarnation, directory < 0 ? errno : 0};
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
    struct loan_look look = begin_look(&(struct subject){.pid = pid}, inodes, count, incarnation);
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

/* Takes the look over. */
static bool borrows_others(struct loan_look look, const bool *known, size_t known_count)
{
    union {
        struct dirent64 first;
        char bytes[8192];
    } room;
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

bool gms_maps_borrows_others(pid_t pid, const struct gms_inode *inodes, size_t count, uint64_t incarnation,
                             const bool *known, size_t known_count)
{
    return borrows_others(begin_look(&(struct subject){.pid = pid}, inodes, count, incarnation), known, known_count);
}

struct files_ask {
    const struct gms_inode *inodes;
    size_t count;
    uint64_t incarnation;
};

static bool ask_for_loan(void *context, const struct subject *who)
{
    const struct files_ask *ask = context;
    return borrows_others(begin_look(who, ask->inodes, ask->count, ask->incarnation), NULL, 0);
}

bool gms_maps_borrows(pid_t pid, const struct gms_inode *inodes, size_t count, uint64_t incarnation)
{
    return ask_the_living(pid, ask_for_loan, &(struct files_ask){inodes, count, incarnation});
}

/* Memory files show as "/memfd:..."; everything else is not looked at closer. */
static bool ask_for_descriptor(void *context, const struct subject *who)
{
    const struct files_ask *ask = context;
    char path[PATH_ROOM], target[16];
    path_of(who, "fd", path);
    DIR *directory = opendir(path);
    if (directory == NULL)
        return false;
    bool found = false;
    int error = 0;
    for (struct dirent *entry; !found && (entry = readdir(directory)) != NULL;) {
        struct stat about;
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        ssize_t got = readlinkat(dirfd(directory), entry->d_name, target, sizeof target);
        error = got < 0 && is_ours(errno) ? errno : error;
        if (got < 7 || memcmp(target, "/memfd:", 7) != 0 || fstatat(dirfd(directory), entry->d_name, &about, 0) != 0)
            continue;
        for (size_t i = 0; i < ask->count; i++)
            found = found || (ask->inodes[i].inode == about.st_ino && ask->inodes[i].device == about.st_dev);
    }
    closedir(directory);
    errno = error;
    return found;
}

bool gms_maps_has_descriptor(pid_t pid, const struct gms_inode *inodes, size_t count)
{
    return ask_the_living(pid, ask_for_descriptor, &(struct files_ask){inodes, count, 0});
}

static bool ask_whether_read(void *context, const struct subject *who)
{
    (void)context;
    return has_address_space(who);
}

bool gms_maps_may_be_read(pid_t pid)
{
    return ask_the_living(pid, ask_whether_read, NULL);
}
