/* SPDX-License-Identifier: Apache-2.0
 *
 * Damage done on purpose, for negative controls: between the death of the primary and the adoption by its successor,
 * other bytes are written into a coordinator rank's KV memory or the dead engine's directory, through that
 * coordinator's own descriptors in /proc. Only in deployments that the drill started.
 */
#ifndef GMS_DRILL_SABOTAGE_H
#define GMS_DRILL_SABOTAGE_H

#include "cluster.h"
#include "plan.h"

struct drill_damage {
    uint32_t sealed; /* blocks that were sealed there */
    uint32_t blocks; /* blocks that were damaged */
    uint32_t chains; /* prefix chains that these are part of: one stream each, when no two share a prefix */
};

/*
 * Does what `plan` says to what `incarnation` left on the rank that `status` is of. Errors: NOT_FOUND (no directory of
 * that incarnation, no KV memory, nothing sealed: each names where it looked), SYSTEM, PERMISSION.
 */
gms_status drill_sabotage(const struct drill_plan *plan, const struct drill_status *status, uint64_t incarnation,
                          struct drill_damage *ret_damage, struct gms_error *ret_error);

#endif
