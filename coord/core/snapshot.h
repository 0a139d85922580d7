/* SPDX-License-Identifier: Apache-2.0
 * The snapshot's bytes, to and from a core's replicated state. Private to coord/core. */
#ifndef GMS_CORE_SNAPSHOT_H
#define GMS_CORE_SNAPSHOT_H

#include "core/core_state.h"

enum { GMS_SNAPSHOT_DIGEST_AT = 16 }; /* where the digest stands, 8 bytes */

/* The digest of all bytes but itself. */
uint64_t gms_snapshot_digest(const uint8_t *bytes, size_t count);

/* Fills the replicated state of a core that gms_core_init made for a group of any size. What is impossible is CORRUPT;
 * `core` then holds nothing of use. The view is that of gms_snapshot_look. */
gms_status gms_snapshot_read(const void *snapshot, size_t bytes, struct gms_core *core,
                             struct gms_snapshot_view *ret_view);

#endif
