/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/footprint.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "host/nvml.h"

enum { TEXT_BYTES = 4096 };

const char *gms_footprint_source_name(enum gms_footprint_source source)
{
    static const char *const names[GMS_FOOTPRINT_SOURCES] = {[GMS_FOOTPRINT_NONE] = "",
                                                             [GMS_FOOTPRINT_SMAPS] = "smaps",
                                                             [GMS_FOOTPRINT_NVML] = "nvml",
                                                             [GMS_FOOTPRINT_DIFFERENCE] = "difference"};
    return source < GMS_FOOTPRINT_SOURCES ? names[source] : "";
}

static bool read_text(const char *path, char ret_text[TEXT_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd >= 0 ? read(fd, ret_text, TEXT_BYTES - 1) : -1;
    gms_fd_close(&fd);
    ret_text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

static size_t add_pid(pid_t *pids, size_t count, pid_t pid)
{
    for (size_t i = 0; i < count; i++)
        if (pids[i] == pid)
            return count;
    if (pid <= 0 || count == GMS_FOOTPRINT_PIDS)
        return count;
    pids[count] = pid;
    return count + 1;
}

/* Children of all threads of the process. */
static size_t add_children(const char *proc, pid_t pid, pid_t *pids, size_t count)
{
    char path[PATH_MAX], text[TEXT_BYTES];
    if (snprintf(path, sizeof path, "%.2000s/%d/task", proc, (int)pid) >= (int)sizeof path)
        return count;
    DIR *tasks = opendir(path);
    for (struct dirent *task = tasks != NULL ? readdir(tasks) : NULL; task != NULL; task = readdir(tasks)) {
        char file[PATH_MAX];
        if (task->d_name[0] == '.' ||
            snprintf(file, sizeof file, "%.2048s/%.64s/children", path, task->d_name) >= (int)sizeof file ||
            !read_text(file, text))
            continue;
        char *end = text;
        for (const char *at = text; *at != '\0'; at = end) {
            const long child = strtol(at, &end, 10);
            if (end == at)
                break;
            count = add_pid(pids, count, (pid_t)child);
        }
    }
    if (tasks != NULL)
        closedir(tasks);
    return count;
}

size_t gms_footprint_family(const char *proc, pid_t pid, pid_t ret_pids[GMS_FOOTPRINT_PIDS])
{
    size_t count = add_pid(ret_pids, 0, pid);
    for (size_t i = 0; i < count; i++)
        count = add_children(proc, ret_pids[i], ret_pids, count);
    return count;
}

/* KiB behind `key` at the start of a line, as bytes; 0 where there is no such line. */
static uint64_t number_of(const char *text, const char *key)
{
    const size_t bytes = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, bytes) == 0 && line[bytes] == ':')
            return strtoull(line + bytes + 1, NULL, 10) * 1024;
    }
    return 0;
}

/* What is behind the number of a process is its first thread's, and nothing once that has ended: then any other's. */
static bool read_smaps(const char *proc, pid_t pid, char ret_text[TEXT_BYTES])
{
    char path[PATH_MAX], file[PATH_MAX];
    if (snprintf(path, sizeof path, "%.2000s/%d/smaps_rollup", proc, (int)pid) >= (int)sizeof path)
        return false;
    if (read_text(path, ret_text))
        return true;
    snprintf(path, sizeof path, "%.2000s/%d/task", proc, (int)pid);
    DIR *tasks = opendir(path);
    bool read = false;
    for (struct dirent *task; tasks != NULL && !read && (task = readdir(tasks)) != NULL;)
        read = task->d_name[0] != '.' &&
               snprintf(file, sizeof file, "%.2048s/%.64s/smaps_rollup", path, task->d_name) < (int)sizeof file &&
               read_text(file, ret_text);
    if (tasks != NULL)
        closedir(tasks);
    return read;
}

gms_status gms_footprint_host(const char *proc, const pid_t *pids, size_t count, struct gms_footprint *ret_footprint,
                              struct gms_error *ret_error)
{
    struct gms_footprint footprint = {.source = GMS_FOOTPRINT_NONE};
    char text[TEXT_BYTES];
    for (size_t i = 0; i < count; i++) {
        if (!read_smaps(proc, pids[i], text))
            continue; /* it has ended, or is not ours */
        footprint.source = GMS_FOOTPRINT_SMAPS;
        footprint.bytes += number_of(text, "Pss_Anon") + number_of(text, "Pss_File") + number_of(text, "SwapPss");
    }
    if (footprint.source == GMS_FOOTPRINT_NONE)
        return gms_fail(ret_error, GMS_E_NOT_FOUND, "none of %zu processes can be looked at in %s", count, proc);
    *ret_footprint = footprint;
    return GMS_OK;
}

gms_status gms_footprint_device(const char *library, const struct gms_uuid *device, const pid_t *pids, size_t count,
                                uint64_t used_before_bytes, struct gms_footprint *ret_footprint,
                                struct gms_error *ret_error)
{
    struct gms_nvml_memory memory;
    const gms_status status = gms_nvml_memory(library, device, pids, count, &memory, ret_error);
    if (status != GMS_OK)
        return status;
    struct gms_footprint footprint = {
        .source = GMS_FOOTPRINT_NVML, .bytes = memory.process_bytes, .device_used_bytes = memory.used_bytes};
    if (!memory.listed) {
        if (used_before_bytes == 0)
            return gms_fail(ret_error, GMS_E_NOT_FOUND,
                            "NVML lists none of %zu processes, and what the device held before is not known", count);
        footprint.source = GMS_FOOTPRINT_DIFFERENCE;
        footprint.bytes = memory.used_bytes > used_before_bytes ? memory.used_bytes - used_before_bytes : 0;
    }
    *ret_footprint = footprint;
    return GMS_OK;
}
