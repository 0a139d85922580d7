/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"

enum { TRIAL_MORE = 32 << 20, REMOVE_TRIES = 100, REMOVE_PAUSE_MS = 10 };

static bool write_text(const char *dir, const char *file, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%.320s/%.60s", dir, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    gms_fd_close(&fd);
    return good;
}

/* The path of this process's cgroup: of the memory controller (v1), or of the one hierarchy (v2). */
static bool own_cgroup(bool v2, char *ret_path, size_t bytes)
{
    char line[512];
    bool found = false;
    FILE *stream = fopen("/proc/self/cgroup", "re");
    while (stream != NULL && !found && fgets(line, sizeof line, stream) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (path == NULL)
            continue;
        *path++ = '\0';
        found = v2 ? strcmp(line, "0") == 0 && controllers[1] == '\0' : strcmp(controllers + 1, "memory") == 0;
        if (found)
            snprintf(ret_path, bytes, "%s", strcmp(path, "/") == 0 ? "" : path);
    }
    if (stream != NULL)
        fclose(stream);
    return found;
}

/* Is a child of ours that takes more than it may killed there? */
static bool is_enforced(const char *cgroup)
{
    pid_t pid = fork();
    if (pid == 0) {
        size_t bytes = (size_t)DRILL_MEMORY_MORE + TRIAL_MORE;
        if (!write_text(cgroup, "cgroup.procs", "0"))
            _exit(1);
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t at = 0; memory != MAP_FAILED && at < bytes; at += 4096)
            *(volatile char *)(memory + at) = 1;
        _exit(2);
    }
    int status = 0;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static bool try_cgroup(bool v2, pid_t pid, struct drill_memory_limit *limit)
{
    static const char *const v2_mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    static const char *const v1_mounts[] = {"/sys/fs/cgroup/memory"};
    char own[200], bytes[32], number[32];
    if (!own_cgroup(v2, own, sizeof own))
        return false;
    snprintf(bytes, sizeof bytes, "%d", (int)DRILL_MEMORY_MORE);
    snprintf(number, sizeof number, "%d", (int)pid);
    for (size_t i = 0; i < (v2 ? 2 : 1); i++) {
        snprintf(limit->cgroup, sizeof limit->cgroup, "%s%s/gms-drill-%d", v2 ? v2_mounts[i] : v1_mounts[i], own,
                 (int)getpid());
        if (mkdir(limit->cgroup, 0755) != 0)
            continue;
        /* Swap, where there is any, would only make it slow. */
        bool good = write_text(limit->cgroup, v2 ? "memory.max" : "memory.limit_in_bytes", bytes);
        if (good && v2)
            (void)write_text(limit->cgroup, "memory.swap.max", "0");
        if (good && is_enforced(limit->cgroup) && write_text(limit->cgroup, "cgroup.procs", number)) {
            limit->kind = v2 ? "cgroup v2" : "cgroup v1";
            return true;
        }
        drill_memory_limit_drop(limit);
    }
    limit->cgroup[0] = '\0';
    return false;
}

/* Address space that the process has now, in bytes; 0: unknown. */
static unsigned long long address_space(pid_t pid)
{
    char path[64];
    unsigned long long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *stream = fopen(path, "re");
    if (stream == NULL || fscanf(stream, "%llu", &pages) != 1)
        pages = 0;
    if (stream != NULL)
        fclose(stream);
    return pages * (unsigned long long)sysconf(_SC_PAGESIZE);
}

gms_status drill_memory_limit_set(pid_t pid, struct drill_memory_limit *ret_limit, struct gms_error *ret_error)
{
    memset(ret_limit, 0, sizeof *ret_limit);
    if (try_cgroup(true, pid, ret_limit) || try_cgroup(false, pid, ret_limit))
        return GMS_OK;
    unsigned long long now = address_space(pid);
    struct rlimit limit = {.rlim_cur = now + DRILL_MEMORY_MORE, .rlim_max = now + DRILL_MEMORY_MORE};
    if (now == 0 || prlimit(pid, RLIMIT_AS, &limit, NULL) != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "pid %d cannot be put under a memory limit: %s", (int)pid,
                        strerror(errno));
    ret_limit->kind = "RLIMIT_AS";
    return GMS_OK;
}

void drill_memory_limit_drop(struct drill_memory_limit *limit)
{
    /* The kernel lets go of a member a moment after its end. */
    for (int i = 0; limit->cgroup[0] != '\0' && i < REMOVE_TRIES && rmdir(limit->cgroup) != 0 && errno == EBUSY; i++)
        poll(NULL, 0, REMOVE_PAUSE_MS);
    limit->cgroup[0] = '\0';
}
