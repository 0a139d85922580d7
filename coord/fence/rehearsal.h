/* SPDX-License-Identifier: Apache-2.0
 *
 * A walk over /proc for nobody, in the background: the kernel makes what /proc shows of a process when it is first
 * asked, and keeps it while the process lives, so the walk that a takeover waits for is two to three times as quick
 * then. What a rehearsal sees is thrown away.
 *
 * There is one at a time, and it stays until its thread has come back: one that is stuck at a process keeps the next
 * from beginning, so that stuck ones do not add up. Used from the main thread only.
 */
#ifndef GMS_COORD_REHEARSAL_H
#define GMS_COORD_REHEARSAL_H

#include "gms/status.h"

struct event_base;
struct gms_holders;

/* Zeroed: none is under way. */
struct gms_rehearsal {
    struct gms_holders *walk;
};

/* Nothing where one is under way. Errors: those of gms_holders_start. */
gms_status gms_rehearsal_start(struct gms_rehearsal *rehearsal, struct event_base *base, struct gms_error *ret_error);
/* A walk that counts begins: it is to be in nobody's way. What is under way at one process is not waited for. */
void gms_rehearsal_stop(struct gms_rehearsal *rehearsal);
/* Lets go of it, also where it is stuck: its thread frees what it has. */
void gms_rehearsal_end(struct gms_rehearsal *rehearsal);

#endif
