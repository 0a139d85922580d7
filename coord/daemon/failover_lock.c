/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/failover_lock.h"

#include <sys/stat.h>

#include "base/fd.h"
#include "base/log.h"

static const char copy_name[] = "lock/failover/0"; /* rank 0's */

bool gms_failover_lock_held(const struct gms_copies *copies)
{
    struct gms_copy copy;
    return gms_copies_find(copies, copy_name, &copy);
}

bool gms_failover_lock_is_at(const struct gms_copies *copies, const char *path)
{
    struct gms_copy copy;
    struct stat held, named;
    return gms_copies_find(copies, copy_name, &copy) && fstat(copy.fd, &held) == 0 && stat(path, &named) == 0 &&
           held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

gms_status gms_failover_lock_take(struct gms_copies *copies, const char *path, struct gms_error *ret_error)
{
    int fd = -1;
    if (gms_failover_lock_is_at(copies, path))
        return GMS_OK; /* the open file that is kept has the lock, whoever opened it */
    if (gms_failover_lock_held(copies))
        gms_log(GMS_LOG_WARNING,
                "FAILOVER_LOCK_PATH %s leads to another file than the one that is locked: somebody "
                "replaced it; locking the new one too",
                path);
    gms_status status = gms_file_lock(path, 0, &fd, ret_error);
    if (status != GMS_OK)
        return status;
    gms_copies_put(copies, copy_name, fd, "", 0);
    gms_fd_close(&fd);
    return GMS_OK;
}

void gms_failover_lock_release(struct gms_copies *copies)
{
    gms_copies_drop(copies, copy_name);
}
