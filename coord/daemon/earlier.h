/* SPDX-License-Identifier: Apache-2.0
 *
 * What an earlier start of the coordinators left in this run directory, seen by the next start before it takes
 * anything. Two jobs that replace each other in turns would be worse than one that is refused, so a living one is
 * replaced only on request (gms-up does that).
 */
#ifndef GMS_COORD_EARLIER_H
#define GMS_COORD_EARLIER_H

#include "gms-keeper/client.h"

/* Refuses while a coordinator answers for `rank`. One that is stopped or hung does not: the keeper ends it when the new
 * world asks for its token. Bounded by 5 s. Errors: FOREIGN_WORLD (names the process and how to stop it), NO_MEMORY,
 * INVALID (path too long). */
gms_status gms_earlier_coordinator(const char *run_dir, uint32_t rank, struct gms_error *ret_error);

/* For --fresh: refuses while a process lives whose session the keeper of this node has, which would serve beside the
 * new group's engines. Changes nothing. Errors: IN_DOUBT (names process, incarnation, rank and what to do); what the
 * keeper answers. */
gms_status gms_earlier_engines(struct gms_keeper_client *keeper, struct gms_error *ret_error);

/* For --fresh: drops sessions, pools and directories of this rank from the keeper, so that their memory is free before
 * the new group asks for its own; rank 0 also removes the file that says who serves. */
gms_status gms_earlier_give_up(struct gms_keeper_client *keeper, const char *run_dir, struct gms_error *ret_error);

#endif
