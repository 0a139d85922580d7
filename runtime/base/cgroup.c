/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fd.h"

/* Reads what fits, NUL-terminated. */
static bool read_file(int directory, const char *name, char *ret_text, size_t room)
{
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
    ssize_t got;

    if (fd < 0) {
        return false;
    }
    do {
        got = read(fd, ret_text, room - 1);
    } while (got < 0 && errno == EINTR);
    gms_fd_close(&fd);
    ret_text[got > 0 ? got : 0] = '\0';
    return got >= 0; /* gms_fd_close keeps errno */
}

/* Where this process's group is in the file system. A mount may show only a part of the tree. */
static gms_status own_path(char *ret_path, struct gms_error *ret_error)
{
    char text[4096], own[GMS_CGROUP_PATH_BYTES] = "", line[4096], root[GMS_CGROUP_PATH_BYTES],
                     place[GMS_CGROUP_PATH_BYTES];
    FILE *mounts;
    bool found = false;

    if (!read_file(AT_FDCWD, "/proc/self/cgroup", text, sizeof text)) {
        return gms_fail(ret_error, GMS_E_UNSUPPORTED, "/proc/self/cgroup: %s", strerror(errno));
    }
    const char *entry = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (entry == NULL || sscanf(entry + (*entry == '\n'), "0::%511[^\n]", own) != 1) {
        return gms_fail(ret_error, GMS_E_UNSUPPORTED, "this process is in no control group of version 2");
    }
    mounts = fopen("/proc/self/mountinfo", "re");
    if (mounts == NULL) {
        return gms_fail(ret_error, GMS_E_UNSUPPORTED, "/proc/self/mountinfo: %s", strerror(errno));
    }
    while (!found && fgets(line, sizeof line, mounts) != NULL) {
        const char *type = strstr(line, " - ");

        if (type == NULL || strncmp(type, " - cgroup2 ", 11) != 0 ||
            sscanf(line, "%*d %*d %*s %511s %511s", root, place) != 2) {
            continue;
        }
        size_t shown = strcmp(root, "/") == 0 ? 0 : strlen(root);
        if (strncmp(own, root, shown) != 0) {
            continue;
        }
        const char *rest = strcmp(own + shown, "/") == 0 ? "" : own + shown;
        found = snprintf(ret_path, GMS_CGROUP_PATH_BYTES, "%s%s", place, rest) < GMS_CGROUP_PATH_BYTES;
    }
    fclose(mounts);
    return found ? GMS_OK
                 : gms_fail(ret_error, GMS_E_UNSUPPORTED, "control groups of version 2 are not mounted here (own: %s)",
                            own);
}

/* Groups are named after the process that made them, and its PID namespace: in two containers it may have one number.
 * Where it is gone, and whoever else would have removed its group was killed as well, an empty one is left: away with
 * it. One with somebody in it stays, and so does one of another namespace, whose maker cannot be asked for. */
static void sweep(const char *parent, const char *prefix)
{
    DIR *directory = opendir(parent);

    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        char maker[64];
        const char *digits = entry->d_name + strlen(prefix);

        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0 || digits[0] == '\0' ||
            digits[strspn(digits, "0123456789")] != '\0') {
            continue;
        }
        snprintf(maker, sizeof maker, "/proc/%.20s", digits);
        if (access(maker, F_OK) != 0 && errno == ENOENT) {
            (void)unlinkat(dirfd(directory), entry->d_name, AT_REMOVEDIR);
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
}

gms_status gms_cgroup_make(const char *name, int *ret_fd, char *ret_path, struct gms_error *ret_error)
{
    char parent[GMS_CGROUP_PATH_BYTES], prefix[64];
    struct stat space = {0};
    gms_status status = own_path(parent, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    if (stat("/proc/self/ns/pid", &space) != 0) {
        return gms_fail(ret_error, GMS_E_UNSUPPORTED, "the PID namespace cannot be told: %s", strerror(errno));
    }
    snprintf(prefix, sizeof prefix, "%.24s-%llu-", name, (unsigned long long)space.st_ino);
    if (snprintf(ret_path, GMS_CGROUP_PATH_BYTES, "%s/%s%d", parent, prefix, (int)getpid()) >= GMS_CGROUP_PATH_BYTES) {
        return gms_fail(ret_error, GMS_E_UNSUPPORTED, "the control group %s has too long a path", parent);
    }
    sweep(parent, prefix);
    (void)rmdir(ret_path); /* of an earlier process with our number, and empty; never one that somebody lives in */
    if (mkdir(ret_path, 0755) != 0) {
        return gms_fail(ret_error, GMS_E_UNSUPPORTED, "the control group %s cannot be made: %s", ret_path,
                        errno == EEXIST ? "somebody lives in it" : strerror(errno));
    }
    int fd = open(ret_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || !gms_cgroup_is(fd) || faccessat(fd, "cgroup.kill", W_OK, 0) != 0 ||
        faccessat(fd, "cgroup.procs", W_OK, 0) != 0) {
        gms_fd_close(&fd);
        (void)rmdir(ret_path);
        return gms_fail(ret_error, GMS_E_UNSUPPORTED,
                        "the control group %s cannot be used: no cgroup.kill (Linux 5.14) or not ours to write",
                        ret_path);
    }
    *ret_fd = fd;
    return GMS_OK;
}

bool gms_cgroup_remove(const char *path)
{
    return path[0] != '\0' && rmdir(path) == 0;
}

bool gms_cgroup_is(int fd)
{
    struct statfs system;

    return fstatfs(fd, &system) == 0 && system.f_type == CGROUP2_SUPER_MAGIC &&
           faccessat(fd, "cgroup.kill", F_OK, 0) == 0;
}

bool gms_cgroup_kill(int cgroup)
{
    int fd = openat(cgroup, "cgroup.kill", O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, "1", 1) == 1;

    gms_fd_close(&fd);
    return done;
}

bool gms_cgroup_populated(int cgroup)
{
    char text[256];

    if (!read_file(cgroup, "cgroup.events", text, sizeof text)) {
        return errno != ENOENT && errno != ENODEV; /* it was removed, and only an empty one can be */
    }
    return strstr(text, "populated 0") == NULL;
}

static bool has_groups_below(int cgroup)
{
    char text[1024];
    const char *line;
    unsigned long count = 1;

    return !read_file(cgroup, "cgroup.stat", text, sizeof text) || (line = strstr(text, "nr_descendants ")) == NULL ||
           sscanf(line, "nr_descendants %lu", &count) != 1 || count > 0;
}

bool gms_cgroup_each(int cgroup, bool (*found)(void *context, pid_t pid), void *context)
{
    int fd = openat(cgroup, "cgroup.procs", O_RDONLY | O_CLOEXEC), pid;
    FILE *stream = fd >= 0 ? fdopen(fd, "r") : NULL;
    bool good = stream != NULL;

    if (stream == NULL) {
        gms_fd_close(&fd);
        return false;
    }
    while (good && fscanf(stream, "%d", &pid) == 1) {
        good = found(context, pid);
    }
    good = good && ferror(stream) == 0;
    fclose(stream);
    return good && !has_groups_below(cgroup);
}

static bool path_of(int cgroup, char ret_path[GMS_CGROUP_PATH_BYTES])
{
    char name[64];

    snprintf(name, sizeof name, "/proc/self/fd/%d", cgroup);
    ssize_t length = readlink(name, ret_path, GMS_CGROUP_PATH_BYTES - 1);
    ret_path[length > 0 ? length : 0] = '\0';
    return length > 0;
}

bool gms_cgroup_holds_us(int cgroup)
{
    char path[GMS_CGROUP_PATH_BYTES], own[GMS_CGROUP_PATH_BYTES];
    struct gms_error error;

    if (own_path(own, &error) != GMS_OK) {
        return false; /* in no group of version 2 at all */
    }
    if (!path_of(cgroup, path)) {
        return true;
    }
    size_t length = strlen(path);
    return strncmp(own, path, length) == 0 && (own[length] == '\0' || own[length] == '/');
}

bool gms_cgroup_remove_fd(int cgroup)
{
    char path[GMS_CGROUP_PATH_BYTES];

    return gms_cgroup_is(cgroup) && path_of(cgroup, path) && rmdir(path) == 0;
}
