/* SPDX-License-Identifier: Apache-2.0
 * Control groups (version 2) as containers: made below our own, killed as a whole. */
#ifndef GMS_BASE_CGROUP_H
#define GMS_BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "gms/status.h"

enum { GMS_CGROUP_PATH_BYTES = 512 };

/* Makes a group of this process's own, NAME-<PID namespace>-<pid>, below the one it lives in, and removes empty ones
 * there whose makers are gone. One that somebody lives in is never shared. *ret_fd is its directory; `ret_path`
 * (GMS_CGROUP_PATH_BYTES) is for removing it. UNSUPPORTED: not possible here (no version 2, not delegated to us, a
 * kernel without cgroup.kill). */
gms_status gms_cgroup_make(const char *name, int *ret_fd, char *ret_path, struct gms_error *ret_error);
/* Removes an empty one; false: not empty, or not there. */
bool gms_cgroup_remove(const char *path);
/* The same by its directory, wherever that is. */
bool gms_cgroup_remove_fd(int cgroup);

/* Is it the directory of a control group that can be killed? */
bool gms_cgroup_is(int fd);
/* Does this process live in it or below? True too where that cannot be told. */
bool gms_cgroup_holds_us(int cgroup);
/* SIGKILL to everything in it and below, also to what is being started just now. False: it cannot be. */
bool gms_cgroup_kill(int cgroup);
/* Is anybody in it or below? True too when it cannot be read; false when it has been removed. */
bool gms_cgroup_populated(int cgroup);
/* Calls `found` for every process in it. False: it could not be read to the end, has groups below it, or `found` said
 * false. */
bool gms_cgroup_each(int cgroup, bool (*found)(void *context, pid_t pid), void *context);

#endif
