/* SPDX-License-Identifier: Apache-2.0
 *
 * The keeper of the run directory, ours or somebody else's: found by its socket, watched by a connection, started when
 * nobody answers. It is started in a session of its own and outlives us.
 */
#ifndef GMS_UP_KEEPER_H
#define GMS_UP_KEEPER_H

#include <sys/types.h>

#include "gms-up/options.h"
#include "gms-up/watch.h"

struct gms_up_keeper {
    const struct gms_up_options *options; /* borrowed */
    const char *run_dir;                  /* borrowed */
    struct gms_watch watch;
    pid_t pid;              /* our child; 0: none */
    int pidfd;              /* of it; -1 */
    uint64_t next_start_ns; /* not before */
};

gms_status gms_up_keeper_open(struct gms_up_keeper *keeper, const struct gms_up_options *options, const char *run_dir,
                              struct gms_error *ret_error);
/* Does what is due: connects, notices its end, starts one if it `may_start` (and options say so). True: one answers. */
bool gms_up_keeper_step(struct gms_up_keeper *keeper, uint64_t now_ns, bool may_start);
/* When to step next without news; UINT64_MAX: never. */
uint64_t gms_up_keeper_deadline(const struct gms_up_keeper *keeper);
/* A child of ours ended. */
void gms_up_keeper_reaped(struct gms_up_keeper *keeper, pid_t pid, int wait_status);
/* True: nobody listens, and none of ours runs. False: one answers (UP), or neither was seen by `deadline_ns`. That
 * there is no connection just now is no end: it may be starting, busy, or have closed a silent client. */
bool gms_up_keeper_is_gone(struct gms_up_keeper *keeper, uint64_t deadline_ns);
/* Planned stop: ours may end if it holds nothing; with `force` whoever it is, whatever it holds. One that does
 * not answer is not asked (gms_up_keeper_is_gone waits for a starting one). True: it was asked. */
bool gms_up_keeper_let_go(struct gms_up_keeper *keeper, bool force);
void gms_up_keeper_close(struct gms_up_keeper *keeper);

#endif
