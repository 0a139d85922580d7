/* SPDX-License-Identifier: Apache-2.0
 * Descriptors and processes: everything close-on-exec, every process named by pidfd. */
#ifndef GMS_BASE_FD_H
#define GMS_BASE_FD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gms/status.h"

/* Closes *fd if it is open and sets it to -1; keeps errno. */
void gms_fd_close(int *fd);
/* Moves *fd to a number >= `minimum`, close-on-exec: sockets whose end is a sign of death live high, because the kernel
 * closes descriptors in ascending order and low ones wait behind the driver's (gpu-findings). */
gms_status gms_fd_raise(int *fd, int minimum, struct gms_error *ret_error);
/* Descriptors this process has open and its soft limit; needs no descriptor itself on Linux 6.2 and later. */
void gms_fd_usage(uint64_t *ret_used, uint64_t *ret_limit);
/* Words errno for a call that makes descriptors: DESCRIPTORS (EMFILE, ENFILE) with used and limit,
 * else SYSTEM. `what` says what was wanted. */
gms_status gms_fd_fail(const char *what, struct gms_error *ret_error);
/* Soft limit of descriptors up to the hard one (V36). */
void gms_fd_raise_limit(void);
/* Signal mask emptied, dispositions that matter set to default, SIGPIPE and SIGXFSZ ignored: EPIPE and EFBIG instead of
 * death (V24). Call first in every program; ignored ones are inherited, so a child sets those two to default before
 * exec. */
void gms_signals_reset(void);

/* pidfd of a process. -1 pid and pid 0 are refused: 0 means "not in this namespace", unknown, and unknown is never
 * dead. */
gms_status gms_pidfd_open(pid_t pid, int *ret_fd, struct gms_error *ret_error);
/* The pid behind a pidfd as this PID namespace sees it: 0 when outside it, -1 when it has been reaped. */
pid_t gms_pidfd_pid(int pidfd);
/* Do both name one process? False also where that cannot be told: both outside this PID namespace, on a kernel whose
 * pidfds have no inode of their own (before 6.9). */
bool gms_pidfd_same(int a, int b);
/* Is it a pidfd at all? What a peer sends in its place could look ended, or never end. */
bool gms_pidfd_is(int fd);
/* Is it a process that could be signalled from here? The kernel lets nobody signal out of a PID namespace. */
bool gms_pidfd_in_reach(int pidfd);
/* SIGKILL or another signal through the pidfd; true also when the process is gone already. */
bool gms_pidfd_signal(int pidfd, int signal);
/* Has every thread of the process ended (pidfd readable)? */
bool gms_pidfd_ended(int pidfd);
/* The wait status of a process that has ended and was waited for by its parent. False: it has not, or this kernel does
 * not tell (before Linux 6.15). */
bool gms_pidfd_status(int pidfd, int *ret_status);

/* Opens (makes, 0600) and locks the file at `path` within `timeout_ms`, and checks that the name still leads to the
 * locked inode. Closing *ret_fd unlocks. Never removes the file. Errors: BUSY (somebody else holds it), EXISTS (not a
 * regular file), DESCRIPTORS, SYSTEM. */
gms_status gms_file_lock(const char *path, int timeout_ms, int *ret_fd, struct gms_error *ret_error);

/* Which file a name leads to, in words that are equal for one file and differ for two: "device D inode I", "none". Any
 * host's words are its own. */
void gms_file_describe(const char *path, char *ret_text, size_t bytes);

/* Writes `data` to `path` by "<path>.new", fsync and rename: readers see the old or the new, whole, also after a loss
 * of power. Mode 0600. */
gms_status gms_file_replace(const char *path, const void *data, size_t bytes, struct gms_error *ret_error);
/* The same without waiting for a disk: for what tells of processes and memory, which a loss of power ends too. */
gms_status gms_file_publish(const char *path, const void *data, size_t bytes, struct gms_error *ret_error);

#endif
