/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/available.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

enum { TEXT_BYTES = 8192 };

/* What differs between the two versions: where they are mounted and what they call things. */
static const struct hierarchy {
    const char *mount, *limit, *usage, *stat, *cache[2];
} v1 = {"/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "memory.stat",
        {"total_inactive_file", "total_active_file"}},
  v2 = {"", "memory.max", "memory.current", "memory.stat", {"inactive_file", "active_file"}},
  v2_beside_v1 = {"/unified", "memory.max", "memory.current", "memory.stat", {"inactive_file", "active_file"}};

static bool read_text(const char *path, char ret_text[TEXT_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return false;
    }
    const ssize_t bytes = read(fd, ret_text, TEXT_BYTES - 1);
    gms_fd_close(&fd);
    ret_text[bytes > 0 ? bytes : 0] = '\0';
    return bytes > 0;
}

/* The number behind `key` at the start of a line. */
static bool find_number(const char *text, const char *key, uint64_t *ret_number)
{
    const size_t key_bytes = strlen(key);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, key_bytes) == 0 && (line[key_bytes] == ' ' || line[key_bytes] == ':')) {
            *ret_number = strtoull(line + key_bytes + 1, NULL, 10);
            return true;
        }
    }
    return false;
}

/* "max" and whatever else is no number mean: no limit. */
static bool read_number(const char *directory, const char *name, uint64_t *ret_number)
{
    char path[PATH_MAX];
    char text[TEXT_BYTES];

    if (snprintf(path, sizeof(path), "%s/%s", directory, name) >= (int)sizeof(path) || !read_text(path, text) ||
        text[0] < '0' || text[0] > '9') {
        return false;
    }
    *ret_number = strtoull(text, NULL, 10);
    return true;
}

/* What the group may have at all (`whole`), or still. */
static uint64_t left_in_group(const char *directory, const struct hierarchy *names, bool whole)
{
    char path[PATH_MAX];
    char text[TEXT_BYTES];
    uint64_t limit = 0;
    uint64_t usage = 0;

    if (whole) {
        return read_number(directory, names->limit, &limit) ? limit : UINT64_MAX;
    }
    if (!read_number(directory, names->limit, &limit) || !read_number(directory, names->usage, &usage)) {
        return UINT64_MAX;
    }
    if (snprintf(path, sizeof(path), "%s/%s", directory, names->stat) < (int)sizeof(path) && read_text(path, text)) {
        for (size_t i = 0; i < 2; i++) {
            uint64_t cache = 0;

            if (find_number(text, names->cache[i], &cache)) {
                usage = usage > cache ? usage - cache : 0;
            }
        }
    }
    return limit > usage ? limit - usage : 0;
}

/* The group at `group` and everything above it. */
static uint64_t left_in_groups(const char *root, const struct hierarchy *names, const char *group, size_t group_bytes,
                               bool whole)
{
    char directory[PATH_MAX];
    uint64_t least = UINT64_MAX;
    const int bytes = snprintf(directory, sizeof(directory), "%s%s%.*s", root, names->mount, (int)group_bytes, group);
    const size_t top = strlen(root) + strlen(names->mount);

    if (bytes < 0 || bytes >= (int)sizeof(directory)) {
        return UINT64_MAX;
    }
    for (size_t length = (size_t)bytes;;) {
        while (length > top && directory[length - 1] == '/') {
            length--;
        }
        directory[length] = '\0';
        const uint64_t left = left_in_group(directory, names, whole);
        least = left < least ? left : least;
        if (length <= top) {
            return least;
        }
        while (length > top && directory[length - 1] != '/') {
            length--;
        }
    }
}

static uint64_t least_of_all(const char *proc, const char *cgroup, bool whole)
{
    char path[PATH_MAX];
    char text[TEXT_BYTES];
    uint64_t least = UINT64_MAX;
    uint64_t number = 0;

    if (snprintf(path, sizeof(path), "%s/meminfo", proc) < (int)sizeof(path) && read_text(path, text) &&
        find_number(text, whole ? "MemTotal" : "MemAvailable", &number)) {
        least = number * 1024;
    }
    if (snprintf(path, sizeof(path), "%s/self/cgroup", proc) >= (int)sizeof(path) || !read_text(path, text)) {
        return least;
    }
    /* Lines "number:controllers:group"; version 2 has number 0 and no controllers. */
    for (char *line = text; *line;) {
        const size_t line_bytes = strcspn(line, "\n");
        char *controllers = memchr(line, ':', line_bytes);
        char *group = controllers ? memchr(controllers + 1, ':', line_bytes - (size_t)(controllers + 1 - line)) : NULL;

        if (group) {
            const size_t group_bytes = line_bytes - (size_t)(group + 1 - line);
            uint64_t left = UINT64_MAX;

            *group = '\0';
            if (controllers[1] == '\0') {
                left = left_in_groups(cgroup, &v2, group + 1, group_bytes, whole);
                const uint64_t beside = left_in_groups(cgroup, &v2_beside_v1, group + 1, group_bytes, whole);
                left = beside < left ? beside : left;
            } else if (strcmp(controllers + 1, "memory") == 0 || strncmp(controllers + 1, "memory,", 7) == 0 ||
                       strstr(controllers + 1, ",memory")) {
                left = left_in_groups(cgroup, &v1, group + 1, group_bytes, whole);
            }
            least = left < least ? left : least;
        }
        line += line_bytes + (line[line_bytes] == '\n');
    }
    return least;
}

uint64_t gms_vmm_available_bytes(const char *proc, const char *cgroup)
{
    return least_of_all(proc, cgroup, false);
}

uint64_t gms_vmm_total_bytes(const char *proc, const char *cgroup)
{
    return least_of_all(proc, cgroup, true);
}
