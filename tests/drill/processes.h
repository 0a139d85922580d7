/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes that a drill starts: each in a session of its own, its output in a file, known by pidfd. Nothing else
 * is ever signalled: drill_processes_end goes through the drill's own descendants (it is their subreaper, so none gets
 * away) and ends each through a pidfd that was checked, after it was opened, to be a descendant still.
 */
#ifndef GMS_DRILL_PROCESSES_H
#define GMS_DRILL_PROCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "plan.h"

enum { DRILL_MAX_PROCESSES = 16, DRILL_MAX_DESCENDANTS = 4096 };

struct drill_process {
    char name[32];
    char output[DRILL_PATH_BYTES]; /* file with its stdout and stderr */
    pid_t pid;
    int pidfd; /* owned; -1 once ended and reaped */
    bool ended;
    int wait_status;   /* as of waitpid, once ended */
    bool asked_to_end; /* its end is no surprise */
    bool signalled;    /* was asked: mpirun takes a second signal for impatience and leaves its files behind */
    bool passes_on;    /* a launcher of ranks that end by SIGUSR1, which it passes on at once; told to end itself it
                          gives them a second before it does anything */
};

struct drill_processes {
    size_t count;
    struct drill_process items[DRILL_MAX_PROCESSES];
};

/* Makes this process the reaper of its descendants, and SIGINT, SIGTERM and SIGHUP something that waits look at
 * (drill_interrupted) rather than a death that leaves things behind. Errors: SYSTEM. */
gms_status drill_processes_prepare(struct gms_error *ret_error);
bool drill_interrupted(void);

/*
 * Starts argv[0] (searched in PATH) with stdout and stderr in `output` (created or appended to, 0600) and stdin empty.
 * `pass_fd` (-1: none) stays open in the child under the same number. The child gets
 * `death_signal` when the drill dies.
 * Errors: NOT_FOUND (cannot be executed), SYSTEM, NO_CAPACITY. The entry is owned by *processes.
 */
gms_status drill_process_start(struct drill_processes *processes, const char *name, const char *output,
                               const char *const *argv, int pass_fd, int death_signal,
                               struct drill_process **ret_process, struct gms_error *ret_error);

/* Notices ends without blocking. Returns the first process that ended without having been asked to, NULL: none. */
const struct drill_process *drill_processes_check(struct drill_processes *processes);

/* Waits until the process has ended; false when `deadline_ns` (monotonic) passes first. */
bool drill_process_wait(struct drill_process *process, uint64_t deadline_ns);
/* Asks it to end, by SIGTERM or what it passes on, once, and does not wait: several may be asked together before each
 * is ended. */
void drill_process_ask(struct drill_process *process);
/* Asks it to end, waits for `grace_ms`, then SIGKILL to it and all its descendants. */
void drill_process_end(struct drill_process *process, int grace_ms);
/* Everything, in reverse order of starting, then whatever descends from the drill still. Leaves none behind; entries
 * keep their wait status. Returns how many had to be killed although asked nicely. */
size_t drill_processes_end(struct drill_processes *processes, int grace_ms);

/* "exit 0", "signal 9", "running". `ret_text` of `bytes`; returns it. */
const char *drill_process_outcome(const struct drill_process *process, char *ret_text, size_t bytes);

/* All processes below `root` (not itself), parents before children. Returns how many; at most `capacity` are written.
 */
size_t drill_descendants(pid_t root, pid_t *ret_pids, size_t capacity);
/* Whether some thread of it may run another instruction of its own: false once it has ended, or each of them has begun
 * its exit or has a SIGKILL pending (the driver of a GPU can hold a dead process for long). */
bool drill_process_acts(pid_t pid);

/* Opens a pidfd for `pid` if it descends from `root`, checked after opening. Errors: REFUSED, NOT_FOUND. */
gms_status drill_descendant_open(pid_t root, pid_t pid, int *ret_pidfd, struct gms_error *ret_error);

#endif
