/* SPDX-License-Identifier: Apache-2.0
 *
 * What /proc says of the threads of a process: which can still execute, and what state they are in. The number of a
 * process is also that of its first thread, which may have ended while others live on.
 */
#ifndef GMS_COORD_THREADS_H
#define GMS_COORD_THREADS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Is every thread of `pid` past the start of its exit (or the process gone)? It executes no user instruction then.
 * Asked of a process that was sent SIGKILL before: another one may start a thread while it is looked at. */
bool gms_threads_exiting(pid_t pid);

/* The first thread of `pid` that is not past the start of its exit; 0: there is none, or it is the kernel's own, which
 * has nothing; -1: not known, errno says why. They are listed until two lists agree before it says 0: who starts
 * another thread and ends is not to be missed. */
pid_t gms_threads_living(pid_t pid);

/* Words for a person: "pid 7 (python3), thread 9 in state D". The first thread that is not exiting. */
void gms_threads_describe(pid_t pid, char *ret_text, size_t bytes);

/* Is every thread of `pid` that is not exiting stopped by a signal or a tracer? That is alive, and does nothing. */
bool gms_threads_stopped(pid_t pid);

/* Has a thread of `pid` a SIGKILL that it does not follow? It is in the kernel and will not leave it alive; its
 * descriptors stay open meanwhile, so nobody hears of its end. */
bool gms_threads_doomed(pid_t pid);

/* Parent of `pid`, as this PID namespace counts; -1: gone or cannot be told. */
pid_t gms_parent_of(pid_t pid);

/* Reads what fits of a file in /proc, NUL-terminated; `directory` as for openat. False: nothing; errno says why, ESRCH
 * where it is empty. */
bool gms_proc_read(int directory, const char *path, char *ret_text, size_t room);

#endif
