/* SPDX-License-Identifier: Apache-2.0
 *
 * What the pools' own files share: pools.c (prepare, commit, abort), pools_copies.c (how they outlive this process)
 * and pools_restore.c (how they are taken up), pools_takeover.c (classification, adoption). Nobody else includes this.
 */
#ifndef GMS_COORD_POOLS_STATE_H
#define GMS_COORD_POOLS_STATE_H

#include "directory/quarantine.h"
#include "durable/copies.h"
#include "memory/pools.h"
#include "vmm/vmm.h"

struct gms_pool_memory {
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
    struct gms_quarantine *quarantine; /* KV; owned */
    bool suspects_lost;                /* it could not be taken up */
};

/* The directories of one incarnation; the pointers are what the directory's calls want. */
struct gms_pools_owner {
    struct gms_pools_owner *next;
    uint64_t incarnation;
    struct gms_directory *directories[GMS_MAX_POOLS];
};

/* What an engine's operation has made and nobody has decided on yet. */
struct gms_pools_tentative {
    struct gms_operation_key key; /* kind NONE: nothing */
    uint32_t pool_index;
    char pool_name[GMS_NAME_BYTES];
    bool creates;
    struct gms_pool_memory pool; /* creates: it; publish: only the manifest */
    struct gms_directory *directory;
};

struct gms_pools {
    struct gms_pools_options options;
    char deployment[GMS_NAME_BYTES];
    const struct gms_vmm *vmm;
    struct gms_pool_memory pools[GMS_MAX_POOLS];
    struct gms_pools_owner *owners;
    struct gms_pools_tentative tentatives[GMS_MAX_ENGINES];
};

struct gms_pools_owner *gms_pools_find_owner(const struct gms_pools *pools, uint64_t incarnation);
/* Finds it or makes it; NULL: no memory. */
struct gms_pools_owner *gms_pools_make_owner(struct gms_pools *pools, uint64_t incarnation);
void gms_pools_free_directory(struct gms_directory **directory);
void gms_pools_free_memory(struct gms_pools *pools, struct gms_pool_memory *pool);
/* KV: the file of its suspects, empty. */
gms_status gms_pools_make_quarantine(struct gms_pool_memory *pool, uint32_t index, struct gms_error *ret_error);
void gms_pools_drop_directory(struct gms_pools *pools, struct gms_pools_owner *owner, uint32_t index);
void gms_pools_drop_pool(struct gms_pools *pools, uint32_t index);

/* pools_copies.c */
void gms_pools_keep_pool(struct gms_pools *pools, uint32_t index);
void gms_pools_unkeep_pool(struct gms_pools *pools, uint32_t index);
void gms_pools_keep_directory(struct gms_pools *pools, const struct gms_pools_owner *owner, uint32_t index);
void gms_pools_unkeep_directory(struct gms_pools *pools, const struct gms_pools_owner *owner, uint32_t index);
/* The tentative effect of an engine's operation, before anybody is told that it is prepared. */
gms_status gms_pools_keep_prepared(struct gms_pools *pools, uint32_t engine, struct gms_error *ret_error);
void gms_pools_unkeep_prepared(struct gms_pools *pools, uint32_t engine);

#endif
