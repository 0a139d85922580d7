/* SPDX-License-Identifier: Apache-2.0
 *
 * Under what names and with what meta pools, directories and prepared operations lie with the keeper: pools_copies.c
 * leaves them there, pools_restore.c takes them up. Nobody else includes this.
 *
 * meta of pool/...: u32 version | u32 index | u32 kind | u32 slots | u64 block bytes | u64 bytes | u64 creator |
 * u32 published | u32 backend | device's UUID (16 bytes; host: zero). Of prepared/...: the same, then the operation's
 * key (u64 incarnation | u64 launch | u32 sequence | u32 kind) and the pool's name (GMS_NAME_BYTES). Little-endian.
 */
#ifndef GMS_COORD_POOLS_COPIES_H
#define GMS_COORD_POOLS_COPIES_H

#include "memory/pools_state.h"

enum {
    GMS_POOL_META_BYTES = 64,
    GMS_PREPARED_META_BYTES = GMS_POOL_META_BYTES + 24 + GMS_NAME_BYTES,
};

struct gms_pools_meta {
    uint32_t index, kind, slot_count;
    uint64_t block_bytes, bytes, creator;
    bool published;
    struct gms_device_of_rank device;
    struct gms_operation_key key; /* prepared only, below */
    char name[GMS_NAME_BYTES];
};

/* `bytes` of it must be there, one of the two above. False: it cannot be read, *ret_meta is untouched. */
bool gms_pools_meta_decode(const struct gms_copy *copy, uint32_t bytes, struct gms_pools_meta *ret_meta);

/* WHAT/POOL/RANK: pool, manifest, quarantine. */
void gms_pools_name(const struct gms_pools *pools, const char *what, const char *pool,
                    char ret_name[GMS_KEEPER_NAME_BYTES]);
/* directory/INCARNATION/POOL/RANK. */
void gms_pools_directory_name(const struct gms_pools *pools, uint64_t incarnation, const char *pool,
                              char ret_name[GMS_KEEPER_NAME_BYTES]);

#endif
