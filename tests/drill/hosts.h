/* SPDX-License-Identifier: Apache-2.0
 *
 * Two hosts made of namespaces (network, host name, mounts) on this one, joined by a link that can be cut. Each has a
 * run directory of its own at the same path; processes and clocks are shared, so that the drill sees all of both.
 */
#ifndef GMS_DRILL_HOSTS_H
#define GMS_DRILL_HOSTS_H

#include "processes.h"

enum { DRILL_HOSTS = 2, DRILL_HOST_WORDS = 8, DRILL_MPIRUN_WORDS = 24 };

struct drill_hosts {
    bool up;
    pid_t holders[DRILL_HOSTS]; /* processes whose namespaces the hosts are; of the process list */
    char rsh[DRILL_PATH_BYTES], list[DRILL_PATH_BYTES], output[DRILL_PATH_BYTES];
    char pids[DRILL_HOSTS][16]; /* the holders, as words */
};

/* Why there can be none here: tools, permission. False: nothing is missing. */
bool drill_hosts_missing(char *ret_text, size_t bytes);

/*
 * Makes them in `dir`: ranks in order, the first half on the first host. `run_dir` is the first one's and this
 * process's own; the second has another directory there, whose sockets the first shows as links. They end with their
 * holders, which are of `processes`. Errors: PERMISSION (namespaces), SYSTEM, TIMEOUT.
 */
gms_status drill_hosts_make(struct drill_processes *processes, const char *dir, const char *run_dir, uint32_t ranks,
                            struct drill_hosts *ret_hosts, struct gms_error *ret_error);
/* Takes the link between them down, or up again. Errors: SYSTEM. */
gms_status drill_hosts_link(const struct drill_hosts *hosts, bool up, struct drill_processes *processes,
                            struct gms_error *ret_error);

/* Words before a command that is to run on `host`; none where hosts are not up. Returns how many were added. They are
 * borrowed from *hosts. At most DRILL_HOST_WORDS. */
size_t drill_hosts_enter(const struct drill_hosts *hosts, int host, const char **ret_words);
/* mpirun and its words, over both hosts where they are up. At most DRILL_MPIRUN_WORDS. */
size_t drill_hosts_mpirun(const struct drill_hosts *hosts, const char **ret_words);

#endif
