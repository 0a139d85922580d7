/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/pools.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "host/maps.h"
#include "memory/pools_state.h"
#include "vmm/cuda.h"

/* -------------------------------------------------------------------------------------------------- helpers --- */

void gms_pools_free_directory(struct gms_directory **directory)
{
    if (*directory == NULL)
        return;
    gms_directory_close(*directory);
    free(*directory);
    *directory = NULL;
}

void gms_pools_free_memory(struct gms_pools *pools, struct gms_pool_memory *pool)
{
    pools->vmm->release(&pool->memory);
    gms_directory_index_free(pool->index);
    if (pool->quarantine != NULL)
        gms_quarantine_close(pool->quarantine);
    free(pool->quarantine);
    free(pool->manifest);
    memset(pool, 0, sizeof *pool);
    pool->memory.fd = -1;
}

gms_status gms_pools_make_quarantine(struct gms_pool_memory *pool, uint32_t index, struct gms_error *ret_error)
{
    struct gms_quarantine *quarantine = calloc(1, sizeof *quarantine);
    if (quarantine == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the suspects of pool %s", pool->name);
    quarantine->fd = -1;
    gms_status status = gms_quarantine_create(index, pool->slot_count, quarantine, ret_error);
    if (status == GMS_OK)
        pool->quarantine = quarantine;
    else
        free(quarantine);
    return status;
}

struct gms_pools_owner *gms_pools_make_owner(struct gms_pools *pools, uint64_t incarnation)
{
    struct gms_pools_owner *owner = gms_pools_find_owner(pools, incarnation);
    if (owner == NULL && (owner = calloc(1, sizeof *owner)) != NULL) {
        owner->incarnation = incarnation;
        owner->next = pools->owners;
        pools->owners = owner;
    }
    return owner;
}

struct gms_pools_owner *gms_pools_find_owner(const struct gms_pools *pools, uint64_t incarnation)
{
    for (struct gms_pools_owner *owner = pools->owners; owner != NULL; owner = owner->next)
        if (owner->incarnation == incarnation)
            return owner;
    return NULL;
}

void gms_pools_drop_directory(struct gms_pools *pools, struct gms_pools_owner *owner, uint32_t index)
{
    if (owner->directories[index] == NULL)
        return;
    gms_pools_unkeep_directory(pools, owner, index);
    gms_pools_free_directory(&owner->directories[index]);
}

void gms_pools_drop_pool(struct gms_pools *pools, uint32_t index)
{
    struct gms_pool_memory *pool = &pools->pools[index];
    if (!pool->used)
        return;
    for (struct gms_pools_owner *owner = pools->owners; owner != NULL; owner = owner->next)
        gms_pools_drop_directory(pools, owner, index);
    gms_pools_unkeep_pool(pools, index);
    gms_pools_free_memory(pools, pool);
}

static void release_tentative(struct gms_pools *pools, uint32_t engine)
{
    struct gms_pools_tentative *tentative = &pools->tentatives[engine];
    gms_pools_free_memory(pools, &tentative->pool);
    gms_pools_free_directory(&tentative->directory);
    memset(&tentative->key, 0, sizeof tentative->key);
    tentative->creates = false;
}

gms_status gms_pools_open(const struct gms_pools_options *options, struct gms_pools **ret_pools,
                          struct gms_error *ret_error)
{
    struct gms_pools *pools = calloc(1, sizeof *pools);
    if (pools == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the pool table");
    pools->options = *options;
    snprintf(pools->deployment, sizeof pools->deployment, "%s", options->deployment);
    pools->options.deployment = pools->deployment;
    pools->vmm = options->device.backend == GMS_MEMORY_CUDA ? gms_vmm_cuda() : gms_vmm_host();
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++)
        pools->pools[index].memory.fd = -1;
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        pools->tentatives[engine].pool.memory.fd = -1;
    *ret_pools = pools;
    return GMS_OK;
}

void gms_pools_close(struct gms_pools *pools)
{
    if (pools == NULL)
        return;
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        release_tentative(pools, engine); /* what others hold of it stays: the next world may need it */
    while (pools->owners != NULL) {
        struct gms_pools_owner *next = pools->owners->next;
        for (uint32_t index = 0; index < GMS_MAX_POOLS; index++)
            gms_pools_free_directory(&pools->owners->directories[index]);
        free(pools->owners);
        pools->owners = next;
    }
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++)
        gms_pools_free_memory(pools, &pools->pools[index]);
    free(pools);
}

uint64_t gms_pools_granularity(const struct gms_pools *pools)
{
    return pools->vmm->granularity_bytes;
}

uint64_t gms_pools_used_bytes(const struct gms_pools *pools)
{
    uint64_t used = 0;
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++)
        if (pools->pools[index].used)
            used += pools->pools[index].memory.bytes;
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        if (pools->tentatives[engine].creates)
            used += pools->tentatives[engine].pool.memory.bytes;
    return used;
}

/* -------------------------------------------------------------------------------------------------- prepare --- */

static gms_status make_directory(struct gms_pools *pools, const struct gms_pools_caller *caller, uint32_t pool_index,
                                 const struct gms_call *call, struct gms_directory **ret_directory,
                                 struct gms_error *ret_error)
{
    struct gms_directory *directory = calloc(1, sizeof *directory);
    if (directory == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a directory");
    directory->fd = -1;
    const struct gms_directory_geometry geometry = {.pool = pool_index,
                                                    .slot_count = call->slot_count,
                                                    .block_bytes = call->block_bytes,
                                                    .identity_digest = caller->identity_digest,
                                                    .world = pools->options.world,
                                                    .incarnation = caller->incarnation,
                                                    .epoch = caller->epoch};
    gms_status status = gms_directory_create(&geometry, directory, ret_error);
    if (status != GMS_OK)
        free(directory);
    else
        *ret_directory = directory;
    return status;
}

/* Bytes the call asks for on this rank; INVALID when the numbers make none. */
static gms_status asked_bytes(const struct gms_call *call, uint64_t *ret_bytes, struct gms_error *ret_error)
{
    const char *name = call->proposal.pool;
    if (call->proposal.pool_kind == GMS_POOL_WEIGHTS) {
        if (call->bytes == 0 || call->bytes > INT64_MAX)
            return gms_fail(ret_error, GMS_E_INVALID, "pool %s: %" PRIu64 " bytes of weights", name, call->bytes);
        *ret_bytes = call->bytes;
        return GMS_OK;
    }
    if (call->proposal.pool_kind != GMS_POOL_KV)
        return gms_fail(ret_error, GMS_E_INVALID, "pool %s: kind %u is neither weights (1) nor kv (2)", name,
                        call->proposal.pool_kind);
    uint64_t bytes = 0;
    if (call->slot_count == 0 || call->block_bytes == 0 ||
        __builtin_mul_overflow((uint64_t)call->slot_count, call->block_bytes, &bytes) || bytes > INT64_MAX)
        return gms_fail(ret_error, GMS_E_INVALID, "pool %s: %u slots of %" PRIu64 " bytes", name, call->slot_count,
                        call->block_bytes);
    *ret_bytes = bytes;
    return GMS_OK;
}

static gms_status prepare_create(struct gms_pools *pools, const struct gms_pools_caller *caller,
                                 const struct gms_call *call, struct gms_pools_tentative *tentative, uint64_t bytes,
                                 uint64_t detail[2], struct gms_error *ret_error)
{
    uint64_t granularity = pools->vmm->granularity_bytes;
    uint64_t rounded = (bytes + granularity - 1) / granularity * granularity;
    uint64_t used = gms_pools_used_bytes(pools), capacity = pools->options.capacity_bytes;
    if (pools->pools[tentative->pool_index].used) /* void: its creator died before it published */
        used -= pools->pools[tentative->pool_index].memory.bytes;
    uint64_t available = capacity > used ? capacity - used : 0;
    if (rounded > available) {
        detail[0] = rounded;
        detail[1] = available;
        return gms_fail(ret_error, GMS_E_NO_CAPACITY,
                        "pool %s: %" PRIu64 " bytes asked, %" PRIu64 " of %" PRIu64 " free on rank %u; ask for less or "
                        "raise memory.capacity",
                        call->proposal.pool, rounded, available, capacity, pools->options.rank);
    }
    struct gms_pool_memory *pool = &tentative->pool;
    memset(pool, 0, sizeof *pool);
    pool->memory.fd = -1;
    snprintf(pool->name, sizeof pool->name, "%s", call->proposal.pool);
    pool->kind = call->proposal.pool_kind;
    pool->slot_count = pool->kind == GMS_POOL_KV ? call->slot_count : 0;
    pool->block_bytes = pool->kind == GMS_POOL_KV ? call->block_bytes : 0;
    pool->bytes = bytes;
    pool->creator = caller->incarnation;
    char label[2 * GMS_NAME_BYTES + 2];
    snprintf(label, sizeof label, "%s/%s", pools->deployment, pool->name);
    gms_status status = pools->vmm->create(label, rounded, &pool->memory, ret_error);
    if (status == GMS_OK && pool->kind == GMS_POOL_KV)
        status = gms_directory_index_create(pool->slot_count, &pool->index, ret_error);
    if (status == GMS_OK && pool->kind == GMS_POOL_KV)
        status = gms_pools_make_quarantine(pool, tentative->pool_index, ret_error);
    tentative->creates = true;
    detail[0] = rounded;
    detail[1] = available;
    return status;
}

static gms_status prepare_attach(struct gms_pools *pools, const struct gms_call *call, uint32_t pool_index,
                                 uint64_t bytes, uint64_t detail[2], struct gms_error *ret_error)
{
    struct gms_pool_memory *pool = &pools->pools[pool_index];
    const char *name = call->proposal.pool;
    if (!pool->used || strcmp(pool->name, name) != 0)
        return gms_fail(ret_error, GMS_E_NOT_FOUND, "pool %s is not on rank %u", name, pools->options.rank);
    if (pool->kind != call->proposal.pool_kind || pool->bytes != bytes ||
        (pool->kind == GMS_POOL_KV &&
         (pool->slot_count != call->slot_count || pool->block_bytes != call->block_bytes))) {
        detail[0] = bytes;
        detail[1] = pool->bytes;
        return gms_fail(ret_error, GMS_E_MISMATCH,
                        "pool %s on rank %u has %" PRIu64 " bytes (%u slots of %" PRIu64 "), this engine wants %" PRIu64
                        " (%u slots of %" PRIu64 ")",
                        name, pools->options.rank, pool->bytes, pool->slot_count, pool->block_bytes, bytes,
                        call->slot_count, call->block_bytes);
    }
    if (pool->kind == GMS_POOL_WEIGHTS && !pool->published)
        return gms_fail(ret_error, GMS_E_AGAIN, "pool %s is not published yet", name);
    if (pool->kind == GMS_POOL_WEIGHTS && !pool->frozen) {
        gms_pools_freeze_pending(pools);
        if (!pool->frozen)
            return gms_fail(ret_error, GMS_E_BUSY, "pool %s: its publisher still has it mapped writable on rank %u",
                            name, pools->options.rank);
    }
    return GMS_OK;
}

static bool note_pid(void *context, pid_t pid)
{
    *(pid_t *)context = pid;
    return false;
}

static gms_status prepare_publish(struct gms_pools *pools, const struct gms_pools_caller *caller,
                                  const struct gms_call *call, struct gms_pools_tentative *tentative,
                                  uint64_t detail[2], struct gms_error *ret_error)
{
    const struct gms_pool_memory *pool = &pools->pools[tentative->pool_index];
    const char *name = call->proposal.pool;
    if (!pool->used || strcmp(pool->name, name) != 0)
        return gms_fail(ret_error, GMS_E_NOT_FOUND, "pool %s is not on rank %u", name, pools->options.rank);
    if (pool->kind != GMS_POOL_WEIGHTS || pool->published || pool->creator != caller->incarnation)
        return gms_fail(ret_error, GMS_E_REFUSED, "pool %s is not this engine's to publish (%s)", name,
                        pool->kind != GMS_POOL_WEIGHTS ? "not weights"
                        : pool->published              ? "published already"
                                                       : "made by another engine");
    /* Room for the reply that carries it to later attachers, beside the reply's own fields. */
    if (call->payload_bytes > GMS_WIRE_MAX_BYTES - 1024)
        return gms_fail(ret_error, GMS_E_INVALID, "pool %s: a manifest of %u bytes, the limit is %d", name,
                        call->payload_bytes, GMS_WIRE_MAX_BYTES - 1024);
    struct gms_inode inode;
    pid_t writer = 0;
    if (pools->vmm->freeze_enforced && gms_inode_of(pool->memory.fd, &inode) &&
        gms_maps_each(&inode, 1, GMS_MAPS_WRITABLE, note_pid, &writer) > 0) {
        detail[0] = (uint64_t)writer;
        return gms_fail(ret_error, GMS_E_BUSY, "pool %s: pid %d has it mapped writable on rank %u", name, (int)writer,
                        pools->options.rank);
    }
    tentative->pool.manifest = malloc(call->payload_bytes > 0 ? call->payload_bytes : 1);
    if (tentative->pool.manifest == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a manifest of %u bytes", call->payload_bytes);
    if (call->payload_bytes > 0)
        memcpy(tentative->pool.manifest, call->payload, call->payload_bytes);
    tentative->pool.manifest_bytes = call->payload_bytes;
    return GMS_OK;
}

gms_status gms_pools_prepare(struct gms_pools *pools, const struct gms_pools_caller *caller,
                             const struct gms_call *call, uint32_t pool_index, bool create, uint64_t ret_detail[2],
                             struct gms_error *ret_error)
{
    struct gms_pools_tentative *tentative = &pools->tentatives[caller->engine];
    enum gms_operation kind = (enum gms_operation)call->proposal.key.kind;
    ret_detail[0] = ret_detail[1] = 0;
    gms_pools_abort(pools, caller->engine);
    if (kind != GMS_OPERATION_ALLOCATE && kind != GMS_OPERATION_PUBLISH)
        return GMS_OK;
    if (pool_index >= GMS_MAX_POOLS)
        return gms_fail(ret_error, GMS_E_INVALID, "pool index %u, the limit is %d", pool_index, GMS_MAX_POOLS - 1);

    tentative->key = call->proposal.key;
    tentative->pool_index = pool_index;
    snprintf(tentative->pool_name, sizeof tentative->pool_name, "%s", call->proposal.pool);
    gms_status status;
    if (kind == GMS_OPERATION_PUBLISH) {
        status = prepare_publish(pools, caller, call, tentative, ret_detail, ret_error);
    } else {
        uint64_t bytes = 0;
        status = asked_bytes(call, &bytes, ret_error);
        if (status == GMS_OK)
            status = create ? prepare_create(pools, caller, call, tentative, bytes, ret_detail, ret_error)
                            : prepare_attach(pools, call, pool_index, bytes, ret_detail, ret_error);
        if (status == GMS_OK && call->proposal.pool_kind == GMS_POOL_KV)
            status = make_directory(pools, caller, pool_index, call, &tentative->directory, ret_error);
    }
    if (status == GMS_OK)
        status = gms_pools_keep_prepared(pools, caller->engine, ret_error);
    if (status != GMS_OK)
        gms_pools_abort(pools, caller->engine);
    return status;
}

void gms_pools_abort(struct gms_pools *pools, uint32_t engine)
{
    if (pools->tentatives[engine].key.kind != GMS_OPERATION_NONE)
        gms_pools_unkeep_prepared(pools, engine);
    release_tentative(pools, engine);
}

/* --------------------------------------------------------------------------------------------------- commit --- */

static gms_status commit_allocate(struct gms_pools *pools, const struct gms_pools_caller *caller,
                                  struct gms_pools_tentative *tentative, struct gms_error *ret_error)
{
    uint32_t index = tentative->pool_index;
    struct gms_pools_owner *owner = gms_pools_make_owner(pools, caller->incarnation);
    if (owner == NULL)
        return gms_fail(ret_error, GMS_E_DIVERGED, "no memory to commit an allocation that was agreed");
    if (tentative->creates) {
        gms_pools_drop_pool(pools, index);
        pools->pools[index] = tentative->pool;
        pools->pools[index].used = true;
        memset(&tentative->pool, 0, sizeof tentative->pool);
        tentative->pool.memory.fd = -1;
        tentative->creates = false;
        gms_pools_keep_pool(pools, index);
    }
    if (tentative->directory != NULL) {
        gms_pools_drop_directory(pools, owner, index);
        owner->directories[index] = tentative->directory;
        tentative->directory = NULL;
        if (pools->pools[index].quarantine != NULL) /* whose KV it will have is not known yet; a classification says */
            gms_quarantine_begin(pools->pools[index].quarantine, owner->directories[index]);
        gms_pools_keep_directory(pools, owner, index);
    }
    return GMS_OK;
}

static gms_status freeze(struct gms_pools *pools, struct gms_pool_memory *pool, struct gms_error *ret_error)
{
    if (!pool->used || !pool->published || pool->frozen)
        return GMS_OK;
    gms_status status = pools->vmm->freeze(&pool->memory, ret_error);
    pool->frozen = status == GMS_OK;
    return status;
}

void gms_pools_freeze_pending(struct gms_pools *pools)
{
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++)
        freeze(pools, &pools->pools[index], NULL);
}

/* Is what was agreed there already? Then an earlier world had come to it. */
static bool is_done(const struct gms_pools *pools, const struct gms_pools_caller *caller,
                    const struct gms_outcome *outcome)
{
    const struct gms_pool_memory *pool = &pools->pools[outcome->pool_index];
    if (!pool->used)
        return false;
    if (outcome->key.kind == GMS_OPERATION_PUBLISH)
        return pool->published;
    return (!outcome->created || pool->creator == caller->incarnation) &&
           (pool->kind != GMS_POOL_KV || gms_pools_directory(pools, caller->incarnation, outcome->pool_index) != NULL);
}

static bool keys_equal(const struct gms_operation_key *a, const struct gms_operation_key *b)
{
    return a->incarnation == b->incarnation && a->launch == b->launch && a->sequence == b->sequence &&
           a->kind == b->kind;
}

static gms_status commit_prepared(struct gms_pools *pools, const struct gms_pools_caller *caller,
                                  const struct gms_outcome *outcome, const char *pool_name, struct gms_error *ret_error)
{
    struct gms_pools_tentative *tentative = &pools->tentatives[caller->engine];
    if (outcome->pool_index >= GMS_MAX_POOLS)
        return gms_fail(ret_error, GMS_E_DIVERGED, "pool %s was given index %u", pool_name, outcome->pool_index);
    if (!keys_equal(&tentative->key, &outcome->key) || tentative->pool_index != outcome->pool_index) {
        if (is_done(pools, caller, outcome))
            return GMS_OK;
        return gms_fail(ret_error, GMS_E_DIVERGED, "%s of pool %s was agreed, but rank %u has not prepared it",
                        gms_operation_name((enum gms_operation)outcome->key.kind), pool_name, pools->options.rank);
    }
    if (outcome->key.kind == GMS_OPERATION_ALLOCATE)
        return commit_allocate(pools, caller, tentative, ret_error);
    struct gms_pool_memory *pool = &pools->pools[tentative->pool_index];
    pool->published = true;
    pool->manifest = tentative->pool.manifest;
    pool->manifest_bytes = tentative->pool.manifest_bytes;
    tentative->pool.manifest = NULL;
    gms_pools_keep_pool(pools, tentative->pool_index);
    return freeze(pools, pool, ret_error);
}

gms_status gms_pools_commit(struct gms_pools *pools, const struct gms_pools_caller *caller,
                            const struct gms_outcome *outcome, const char *pool_name, struct gms_error *ret_error)
{
    enum gms_operation kind = (enum gms_operation)outcome->key.kind;
    gms_status status = GMS_OK;
    if (kind == GMS_OPERATION_ALLOCATE || kind == GMS_OPERATION_PUBLISH) {
        status = commit_prepared(pools, caller, outcome, pool_name, ret_error);
    } else if (kind == GMS_OPERATION_RELEASE && outcome->pool_index < GMS_MAX_POOLS) {
        struct gms_pools_owner *owner = gms_pools_find_owner(pools, caller->incarnation);
        if (owner != NULL)
            gms_pools_drop_directory(pools, owner, outcome->pool_index);
        if (outcome->freed)
            gms_pools_drop_pool(pools, outcome->pool_index);
    }
    gms_pools_abort(pools, caller->engine); /* what is left of the tentative state */
    return status;
}

void gms_pools_forget(struct gms_pools *pools, uint64_t incarnation)
{
    for (struct gms_pools_owner **link = &pools->owners; *link != NULL; link = &(*link)->next) {
        if ((*link)->incarnation != incarnation)
            continue;
        struct gms_pools_owner *owner = *link;
        *link = owner->next;
        for (uint32_t index = 0; index < GMS_MAX_POOLS; index++)
            gms_pools_drop_directory(pools, owner, index);
        free(owner);
        break;
    }
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        const struct gms_pool_memory *pool = &pools->pools[index];
        if (pool->used && pool->kind == GMS_POOL_WEIGHTS && !pool->published && pool->creator == incarnation)
            gms_pools_drop_pool(pools, index);
    }
}

/* ----------------------------------------------------------------------------------------------------- look --- */

bool gms_pools_look(const struct gms_pools *pools, uint32_t index, struct gms_pool_view *ret_view)
{
    if (index >= GMS_MAX_POOLS || !pools->pools[index].used)
        return false;
    const struct gms_pool_memory *pool = &pools->pools[index];
    *ret_view = (struct gms_pool_view){.name = pool->name,
                                       .kind = pool->kind,
                                       .index = index,
                                       .slot_count = pool->slot_count,
                                       .bytes = pool->bytes,
                                       .block_bytes = pool->block_bytes,
                                       .creator = pool->creator,
                                       .published = pool->published,
                                       .fd = pool->memory.fd,
                                       .manifest = pool->manifest,
                                       .manifest_bytes = pool->manifest_bytes};
    return true;
}

struct gms_quarantine *gms_pools_quarantine(const struct gms_pools *pools, uint32_t index)
{
    return index < GMS_MAX_POOLS && pools->pools[index].used ? pools->pools[index].quarantine : NULL;
}

struct gms_directory *gms_pools_directory(const struct gms_pools *pools, uint64_t incarnation, uint32_t index)
{
    const struct gms_pools_owner *owner = gms_pools_find_owner(pools, incarnation);
    return owner != NULL && index < GMS_MAX_POOLS ? owner->directories[index] : NULL;
}
