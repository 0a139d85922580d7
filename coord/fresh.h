/* SPDX-License-Identifier: Apache-2.0
 *
 * A start with --fresh gives up what an earlier coordinator job left. Only what nobody uses may be given up: an engine
 * that still runs would serve beside the new group's.
 */
#ifndef GMS_COORD_FRESH_H
#define GMS_COORD_FRESH_H

#include "gms-keeper/client.h"

/* Refuses while a process lives whose session the keeper of this node has. Errors: IN_DOUBT (names engine process,
 * incarnation, rank and what to do); what the keeper answers. Changes nothing. */
gms_status gms_fresh_check(struct gms_keeper_client *keeper, struct gms_error *ret_error);

/* Drops sessions, pools and directories of this rank from the keeper, so that their memory is free before the new group
 * asks for its own; rank 0 also removes the file that says who serves. */
gms_status gms_fresh_clear(struct gms_keeper_client *keeper, const char *run_dir, struct gms_error *ret_error);

#endif
