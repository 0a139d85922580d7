/* SPDX-License-Identifier: Apache-2.0
 *
 * The start's step in which the coordinators agree on what engine ranks inherit: rank 0's GMS_* and FAILOVER_LOCK_PATH
 * (environment.h) go to all. A rank on which one has another value, is not set, or is set and is not on rank 0 stops
 * the start on all ranks, and so does one whose FAILOVER_LOCK_PATH leads to another file. A launcher that forwards only
 * some names is told the others by environment.rename: what arrives under such a name counts as the variable.
 */
#ifndef GMS_COORD_INHERIT_H
#define GMS_COORD_INHERIT_H

#include <stddef.h>

#include "daemon/daemon.h"

/*
 * All ranks together. The caller owns *ret_variables. Errors, the same on all ranks: MISMATCH (rank, variable, both
 * values), CONFIG (too long), NO_MEMORY, PEER_LOST, ROUND_TIMEOUT.
 */
gms_status gms_inherit_together(struct gms_round *round, const struct gms_config *config,
                                const struct gms_daemon_place *place, char **ret_variables, size_t *ret_bytes,
                                struct gms_error *ret_error);

#endif
