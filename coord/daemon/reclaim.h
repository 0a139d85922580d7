/* SPDX-License-Identifier: Apache-2.0
 *
 * Reclaim on this rank: carries out what the core decided (core/reclaim.h). Pages, providers and files are the worker's
 * business (worker.h), so nothing here holds up the event loop, least of all a takeover: a new one cancels what runs
 * and waits for nothing.
 *
 * A pending suspect is asked about at once, then at doubling pauses up to one second; nothing is asked, written or
 * woken when nobody is suspected.
 *
 * The status of every dead writer, by engine and incarnation, is in the status document and in
 * RUN/reclaim.<engine>.<rank> (README.md): pending until it is reclaimed, reclaimed-best-effort or quarantined, across
 * restarts.
 *
 * Main thread only.
 */
#ifndef GMS_COORD_RECLAIM_H
#define GMS_COORD_RECLAIM_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/core.h"

struct gms_client;
struct gms_daemon;
struct gms_member;
struct gms_reclaim;

/* Errors: those of the worker and of the provider; UNSUPPORTED: the policy process-death-timeout while MPS is in use.
 */
gms_status gms_reclaim_open(struct gms_daemon *daemon, struct gms_reclaim **ret_reclaim, struct gms_error *ret_error);
void gms_reclaim_close(struct gms_reclaim *reclaim); /* NULL allowed; waits for the job that runs */

/* GMS_ACTION_RECLAIM. */
void gms_reclaim_act(struct gms_reclaim *reclaim, const struct gms_action *action);
/* The core is restored, or an incarnation has been condemned: who is suspected now? */
void gms_reclaim_suspects_changed(struct gms_reclaim *reclaim);
/* It lives and may soon write: the provider has a look at it. */
void gms_reclaim_witness(struct gms_reclaim *reclaim, uint64_t incarnation);
/* It has ended and is no suspect: what the provider saw of it is not wanted any more. */
void gms_reclaim_forget(struct gms_reclaim *reclaim, uint64_t incarnation);
/* An engine rank is attached (again): it is told of every page that came back while it was not. */
void gms_reclaim_attached(struct gms_reclaim *reclaim, struct gms_client *client);
/* Is what is known of this incarnation's processes still wanted? */
bool gms_reclaim_wants(const struct gms_reclaim *reclaim, uint64_t incarnation);

/* The "reclaim" object of the status document; owned by the caller. */
json_t *gms_reclaim_status(struct gms_reclaim *reclaim);

#endif
