/* SPDX-License-Identifier: Apache-2.0 */
#include "scratch.h"

#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONGEST_BASE = 40 }; /* sockets with short paths live below */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

void drill_scratch_remove(const char *dir)
{
    if (dir[0] != '\0')
        nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

gms_status drill_scratch_make(const char *wanted, struct drill_scratch *ret_scratch, struct gms_error *ret_error)
{
    memset(ret_scratch, 0, sizeof *ret_scratch);
    char path[PATH_MAX] = "";
    if (wanted[0] != '\0') {
        if (mkdir(wanted, 0700) != 0 && errno != EEXIST)
            return gms_fail(ret_error, GMS_E_SYSTEM, "--work-dir %s: %s", wanted, strerror(errno));
        if (rmdir(wanted) != 0 || mkdir(wanted, 0700) != 0)
            return gms_fail(ret_error, GMS_E_EXISTS, "--work-dir %s is not an empty directory: %s", wanted,
                            strerror(errno));
        if (realpath(wanted, path) == NULL || strlen(path) >= sizeof ret_scratch->work_dir)
            return gms_fail(ret_error, GMS_E_SYSTEM, "--work-dir %s: %s", wanted, strerror(errno));
    } else {
        const char *base = getenv("TMPDIR");
        if (base == NULL || base[0] != '/' || strlen(base) > LONGEST_BASE)
            base = "/tmp";
        snprintf(path, sizeof path, "%s/gms-drill-XXXXXX", base);
        if (mkdtemp(path) == NULL)
            return gms_fail(ret_error, GMS_E_SYSTEM, "%s cannot be made: %s", path, strerror(errno));
    }
    memcpy(ret_scratch->work_dir, path, strlen(path) + 1);
    snprintf(ret_scratch->shared_dir, sizeof ret_scratch->shared_dir, "/dev/shm/gms-drill-XXXXXX");
    if (mkdtemp(ret_scratch->shared_dir) == NULL)
        memcpy(ret_scratch->shared_dir, ret_scratch->work_dir, sizeof ret_scratch->shared_dir);
    return GMS_OK;
}

void drill_scratch_drop_shared(struct drill_scratch *scratch)
{
    if (strcmp(scratch->shared_dir, scratch->work_dir) != 0)
        drill_scratch_remove(scratch->shared_dir);
}
