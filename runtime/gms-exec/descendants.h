/* SPDX-License-Identifier: Apache-2.0
 * Killing everything that descends from this process, which is a subreaper: no descendant can get away from below it.
 *
 * V22: no process is signalled by a number that may have been reused. A child that is not waited for keeps its pid;
 * of a deeper one the pidfd is opened first and its parent checked afterwards.
 */
#ifndef GMS_EXEC_DESCENDANTS_H
#define GMS_EXEC_DESCENDANTS_H

#include <stddef.h>
#include <sys/types.h>

#include "gms/status.h"

/* Can it be done here? UNSUPPORTED: /proc shows another PID namespace (its numbers are not ours), or the kernel has no
 * /proc/PID/task/TID/children. */
gms_status gms_descendants_check(struct gms_error *ret_error);

/* Children that this process has already (a shell that became gms-exec may have left some): not ours to kill. */
struct gms_spared {
    pid_t *pids; /* owned */
    size_t count;
};
void gms_spared_note(struct gms_spared *ret_spared);
void gms_spared_reaped(struct gms_spared *spared, pid_t pid); /* the number is free again */

/*
 * One pass: SIGKILL to every descendant found, spared children and what is below them excepted (NULL: none). Returns
 * how many live ones were found; *ret_first names one of them for texts (0: none). Call again, waiting for children in
 * between, until wait(2) says that there are none: orphans come up to this process one level at a time.
 */
size_t gms_descendants_kill(const struct gms_spared *spared, pid_t *ret_first);

#endif
