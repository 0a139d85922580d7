/* SPDX-License-Identifier: Apache-2.0
 *
 * The run directory of one deployment on one node: mode 0700, owned by the user, names short and predictable.
 *
 *   keeper, keeper.lock   gms-keeper's socket and its lock (checked by inode)
 *   c<rank>               coordinator rank's socket for engines, gms-exec and gms-ctl
 *   b<rank>               its doorbell
 *   store.<rank>          its SQLite store
 *   stopped               there while the coordinators have ended as planned
 *   up.lock, up.job       gms-up: one for each run directory; the launcher it started, for the next one
 *   serving               JSON, atomically replaced: who serves, under which epoch, at which endpoint
 */
#ifndef GMS_BASE_RUN_DIR_H
#define GMS_BASE_RUN_DIR_H

#include <stdint.h>
#include <sys/un.h>

#include "gms/status.h"

enum { GMS_RUN_PATH_BYTES = sizeof(((struct sockaddr_un *)0)->sun_path) }; /* 108 with the NUL (V21) */

/*
 * Checks or (create) makes the directory: absolute path, a real directory, ours, 0700, and short enough for the longest
 * name of `ranks` ranks. Errors: INVALID (path length and limit in bytes are printed), PERMISSION (owner or mode),
 * SYSTEM.
 */
gms_status gms_run_dir_check(const char *run_dir, uint32_t ranks, int create, struct gms_error *ret_error);

/* RUN/<name> and RUN/<name><rank>; rank -1: none. Never truncated: INVALID names path, length and limit. */
gms_status gms_run_dir_path(const char *run_dir, const char *name, int32_t rank, char ret_path[GMS_RUN_PATH_BYTES],
                            struct gms_error *ret_error);

#endif
