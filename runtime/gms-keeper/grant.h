/* SPDX-License-Identifier: Apache-2.0
 *
 * What the reply to KEEPER_WORLD carries in `meta`, beside the token and (in `number`) the mirrored round: u64 this
 * start of the keeper | u64 the world of that round, 0: nothing was mirrored. Little-endian. One file for both sides.
 */
#ifndef GMS_KEEPER_GRANT_H
#define GMS_KEEPER_GRANT_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/message.h"

enum { GMS_KEEPER_GRANT_BYTES = 16 };

struct gms_keeper_grant {
    uint64_t keeper, mirror_world;
};

static inline void gms_keeper_grant_encode(const struct gms_keeper_grant *grant,
                                           uint8_t ret_bytes[GMS_KEEPER_GRANT_BYTES])
{
    for (int i = 0; i < 8; i++) {
        ret_bytes[i] = (uint8_t)(grant->keeper >> (8 * i));
        ret_bytes[8 + i] = (uint8_t)(grant->mirror_world >> (8 * i));
    }
}

static inline bool gms_keeper_grant_decode(struct gms_bytes bytes, struct gms_keeper_grant *ret_grant)
{
    const uint8_t *data = bytes.data;
    struct gms_keeper_grant grant = {0};

    if (bytes.length != GMS_KEEPER_GRANT_BYTES)
        return false;
    for (int i = 0; i < 8; i++) {
        grant.keeper |= (uint64_t)data[i] << (8 * i);
        grant.mirror_world |= (uint64_t)data[8 + i] << (8 * i);
    }
    *ret_grant = grant;
    return true;
}

#endif
