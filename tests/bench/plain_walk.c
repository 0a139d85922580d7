/* SPDX-License-Identifier: Apache-2.0 */
#include "plain_walk.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

static double us_since(uint64_t begin_ns)
{
    return (double)(gms_clock_ns() - begin_ns) / 1e3;
}

/* " 3 4 5 ": the children of process 2, if that is the kernel's. */
static size_t list_kernel_threads(char *ret_text, size_t bytes)
{
    char name[16] = "";
    size_t used = 1;
    int comm = open("/proc/2/comm", O_RDONLY | O_CLOEXEC), fd = open("/proc/2/task/2/children", O_RDONLY | O_CLOEXEC);
    bool known = comm >= 0 && fd >= 0 && read(comm, name, sizeof name - 1) == 9 && strcmp(name, "kthreadd\n") == 0;
    for (ssize_t got = 1; known && got > 0 && used<bytes - 1; used += got> 0 ? (size_t)got : 0)
        got = read(fd, ret_text + used, bytes - 1 - used);
    close(comm);
    close(fd);
    ret_text[0] = ' ';
    ret_text[used] = '\0';
    return used;
}

static bool is_kernel_thread(const char *list, const char *pid)
{
    char wanted[24];
    snprintf(wanted, sizeof wanted, " %.20s ", pid);
    return strstr(list, wanted) != NULL;
}

static void look_at_descriptors(struct plain_walk *walk, const char *pid)
{
    static const char memory[] = "/memfd:";
    char path[64], name[sizeof memory], info[4096];
    snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        walk->descriptors++;
        if (readlinkat(dirfd(directory), entry->d_name, name, sizeof name - 1) != (ssize_t)sizeof name - 1 ||
            memcmp(name, memory, sizeof memory - 1) != 0)
            continue;
        walk->memory_files++;
        snprintf(path, sizeof path, "/proc/%.20s/fdinfo/%.20s", pid, entry->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (read(fd, info, sizeof info) < 0)
            walk->memory_files--;
        close(fd);
    }
    if (directory != NULL)
        closedir(directory);
}

struct mapping_query { /* PROCMAP_QUERY */
    __u64 size, query_flags, query_address, start, end, flags, page_size, offset, inode;
    __u32 device_major, device_minor, name_size, build_id_size;
    __u64 name_address, build_id_address;
};

static void look_at_mappings(struct plain_walk *walk, const char *pid)
{
    enum { SHARED = 0x08, NEXT = 0x10, FILE_BACKED = 0x20 };
    char path[64];
    struct mapping_query query = {.size = sizeof query, .query_flags = SHARED | NEXT | FILE_BACKED};
    snprintf(path, sizeof path, "/proc/%.20s/maps", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (; fd >= 0 && ioctl(fd, _IOWR('f', 17, struct mapping_query), &query) == 0; query.query_address = query.end)
        walk->mappings++;
    if (fd >= 0)
        close(fd);
}

void plain_walk(struct plain_walk *ret_walk)
{
    static char kernel[256 * 1024];
    const uint64_t begin_ns = gms_clock_ns();
    *ret_walk = (struct plain_walk){0};
    list_kernel_threads(kernel, sizeof kernel);
    DIR *directory = opendir("/proc");
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0]) || atoi(entry->d_name) == getpid())
            continue;
        if (is_kernel_thread(kernel, entry->d_name)) {
            ret_walk->kernel_threads++;
            continue;
        }
        ret_walk->processes++;
        uint64_t part_ns = gms_clock_ns();
        look_at_descriptors(ret_walk, entry->d_name);
        ret_walk->descriptors_us += us_since(part_ns);
        part_ns = gms_clock_ns();
        look_at_mappings(ret_walk, entry->d_name);
        ret_walk->mappings_us += us_since(part_ns);
    }
    if (directory != NULL)
        closedir(directory);
    ret_walk->list_us = us_since(begin_ns) - ret_walk->descriptors_us - ret_walk->mappings_us;
}
