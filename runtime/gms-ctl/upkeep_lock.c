/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-ctl/upkeep_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>

#include "base/clock.h"
#include "base/fd.h"

static const uint64_t settled_ns = 2 * GMS_NS_PER_S;

gms_status gms_upkeep_lock_open(struct gms_upkeep_lock *lock, const char *run_dir, struct gms_error *ret_error)
{
    memset(lock, 0, sizeof *lock);
    return gms_run_dir_path(run_dir, "up.lock", -1, lock->path, ret_error);
}

/* A shared lock, for less than the 100 ms in which a gms-up that starts tries again. */
static bool is_held(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;

    gms_fd_close(&fd);
    return held;
}

bool gms_upkeep_lock_look(struct gms_upkeep_lock *lock, uint64_t now_ns)
{
    if (is_held(lock->path)) {
        lock->held = true;
        lock->free_ns = 0;
        return false;
    }
    if (lock->held && lock->free_ns == 0) {
        lock->free_ns = now_ns;
    }
    return lock->held && now_ns - lock->free_ns >= settled_ns;
}
