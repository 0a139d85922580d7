/* SPDX-License-Identifier: Apache-2.0 */
#include "base/run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

gms_status gms_run_dir_path(const char *run_dir, const char *name, int32_t rank, char ret_path[GMS_RUN_PATH_BYTES],
                            struct gms_error *ret_error)
{
    char number[16] = "";

    if (!run_dir || run_dir[0] != '/') {
        return gms_fail(ret_error, GMS_E_INVALID, "run directory \"%.200s\" is not an absolute path",
                        run_dir ? run_dir : "");
    }
    if (!name || name[0] == '\0' || strchr(name, '/')) {
        return gms_fail(ret_error, GMS_E_INVALID, "\"%.64s\" is not a file name in a run directory", name ? name : "");
    }
    if (rank >= 0) {
        snprintf(number, sizeof(number), "%d", rank);
    }
    size_t run_dir_bytes = strlen(run_dir);
    while (run_dir_bytes > 1 && run_dir[run_dir_bytes - 1] == '/') {
        run_dir_bytes--;
    }
    const char *separator = run_dir_bytes == 1 ? "" : "/";
    const size_t bytes = run_dir_bytes + strlen(separator) + strlen(name) + strlen(number);
    if (bytes >= GMS_RUN_PATH_BYTES) {
        return gms_fail(ret_error, GMS_E_INVALID,
                        "run directory \"%.200s\" is too long: with \"%.32s%s\" it has %zu bytes, and a socket path "
                        "holds %d; use a run directory of at most %zu bytes",
                        run_dir, name, number, bytes, GMS_RUN_PATH_BYTES - 1,
                        (size_t)GMS_RUN_PATH_BYTES - 1 - (bytes < run_dir_bytes ? 0 : bytes - run_dir_bytes));
    }
    memcpy(ret_path, run_dir, run_dir_bytes);
    snprintf(ret_path + run_dir_bytes, GMS_RUN_PATH_BYTES - run_dir_bytes, "%s%s%s", separator, name, number);
    return GMS_OK;
}

gms_status gms_run_dir_check(const char *run_dir, uint32_t ranks, int create, struct gms_error *ret_error)
{
    /* Every kind of name the directory holds; the longest decides. */
    static const struct {
        const char *name;
        int per_rank;
    } names[] = {{"keeper.lock", 0}, {"serving.new", 0}, {"store.", 1}, {"c", 1}, {"b", 1}};
    const int32_t last_rank = ranks == 0 ? 0 : ranks - 1 > INT32_MAX ? INT32_MAX : (int32_t)(ranks - 1);
    char path[GMS_RUN_PATH_BYTES];
    size_t longest = 0;
    size_t longest_bytes = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char number[16] = "";
        if (names[i].per_rank) {
            snprintf(number, sizeof(number), "%d", last_rank);
        }
        const size_t bytes = strlen(names[i].name) + strlen(number);
        if (bytes > longest_bytes) {
            longest = i;
            longest_bytes = bytes;
        }
    }
    gms_status status =
        gms_run_dir_path(run_dir, names[longest].name, names[longest].per_rank ? last_rank : -1, path, ret_error);
    if (status != GMS_OK) {
        return status;
    }

    bool made = false;
    if (create) {
        if (mkdir(run_dir, 0700) == 0) {
            made = true;
        } else if (errno != EEXIST) {
            return gms_fail(ret_error, errno == EACCES ? GMS_E_PERMISSION : GMS_E_SYSTEM,
                            "run directory %s cannot be made: %s; make its parent first, writable for you", run_dir,
                            strerror(errno));
        }
    }
    /* What is checked is what was opened; a symlink could lead elsewhere tomorrow. A trailing slash would follow it. */
    snprintf(path, sizeof(path), "%s", run_dir);
    for (size_t length = strlen(path); length > 1 && path[length - 1] == '/'; length--) {
        path[length - 1] = '\0';
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        const int error = errno;
        struct stat found;

        if (error == EACCES && lstat(path, &found) == 0 && S_ISDIR(found.st_mode)) {
            return gms_fail(ret_error, GMS_E_PERMISSION,
                            "run directory %s cannot be opened (owner uid %u, mode %04o): it must belong to uid %u "
                            "with mode 0700",
                            path, (unsigned)found.st_uid, (unsigned)found.st_mode & 07777, (unsigned)geteuid());
        }
        return gms_fail(ret_error, error == ENOTDIR || error == ELOOP ? GMS_E_INVALID : GMS_E_SYSTEM,
                        "run directory %s cannot be opened: %s; it must be a real directory, not a link", path,
                        strerror(error));
    }
    if (made) {
        (void)fchmod(fd, 0700); /* whatever the umask took away */
    }
    struct stat info;
    if (fstat(fd, &info) < 0) {
        status = gms_fail(ret_error, GMS_E_SYSTEM, "fstat of %s: %s", path, strerror(errno));
    } else if (info.st_uid != geteuid()) {
        status = gms_fail(ret_error, GMS_E_PERMISSION,
                          "run directory %s belongs to uid %u and this process runs as uid %u; use one of your own",
                          path, (unsigned)info.st_uid, (unsigned)geteuid());
    } else if ((info.st_mode & 07777) != 0700) {
        status = gms_fail(ret_error, GMS_E_PERMISSION,
                          "run directory %s has mode %04o; nobody else may use it: chmod 0700 %s", path,
                          (unsigned)info.st_mode & 07777, path);
    }
    gms_fd_close(&fd);
    return status;
}
