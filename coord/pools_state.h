/* SPDX-License-Identifier: Apache-2.0
 *
 * What pools.c and adopt.c share: the table of pools, and who has which directories.
 */
#ifndef GMS_COORD_POOLS_STATE_H
#define GMS_COORD_POOLS_STATE_H

#include "pools.h"
#include "vmm/vmm.h"

struct gms_pool_entry {
    bool used;
    char name[GMS_NAME_BYTES];
    uint32_t kind, slot_count;
    uint64_t bytes, block_bytes; /* bytes as asked for */
    uint64_t creator;
    struct gms_vmm_handle memory; /* bytes rounded up to the granularity: what counts against the capacity */
    bool published, frozen;
    void *manifest; /* owned */
    uint32_t manifest_bytes;
    struct gms_directory_index *index; /* KV: for the next takeover */
    uint64_t index_changes;            /* the source's change count at the last refresh */
    uint64_t index_source, index_successor;
};

/* The directories of one incarnation; the pointers are what the directory's calls want. */
struct gms_pool_owner {
    struct gms_pool_owner *next;
    uint64_t incarnation;
    struct gms_directory *directories[GMS_MAX_POOLS];
};

/* What an engine's operation has made and nobody has decided on yet. */
struct gms_pool_tentative {
    enum gms_operation kind; /* NONE: nothing */
    uint32_t pool_index;
    bool creates;
    struct gms_pool_entry pool; /* creates: it; publish: only the manifest */
    struct gms_directory *directory;
};

struct gms_pools {
    struct gms_pools_options options;
    char deployment[GMS_NAME_BYTES];
    const struct gms_vmm *vmm;
    struct gms_pool_entry pools[GMS_MAX_POOLS];
    struct gms_pool_owner *owners;
    struct gms_pool_tentative tentatives[GMS_MAX_ENGINES];
};

/* NULL: this incarnation has no directory here. */
struct gms_pool_owner *gms_pools_owner(const struct gms_pools *pools, uint64_t incarnation);

#endif
