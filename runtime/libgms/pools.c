/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools: memory that belongs to the group, at an address that belongs to the engine.
 */
#include "libgms/session.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/fd.h"
#include "core/ballot.h"

enum { ATTACH_RETRY_MS = 50 };

void gms_pool_free(struct gms_pool *pool)
{
    if (pool == NULL)
        return;
    const struct gms_vmm *vmm = pool->session->vmm;
    if (pool->session->pools[pool->index] == pool) {
        pool->session->pools[pool->index] = NULL;
        pool->session->directories[pool->index] = NULL;
    }
    if (pool->address != NULL)
        (void)vmm->unreserve(pool->address, pool->mapped_bytes, NULL);
    vmm->release(&pool->handle);
    gms_directory_close(&pool->directory);
    gms_manifest_clear(&pool->manifest);
    free(pool->withheld);
    free(pool->tags);
    free(pool->pending);
    free(pool);
}

/* -------------------------------------------------------------------------------------------------- attach --- */

/* The pool that this session has attached as described; NULL: none, or as something else. */
static struct gms_pool *find_same(const struct gms_session *session, const struct gms_pool_description *description)
{
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++) {
        struct gms_pool *pool = session->pools[i];
        if (pool != NULL && strncmp(pool->description.name, description->name, sizeof pool->description.name) == 0 &&
            pool->description.kind == description->kind && pool->description.slot_count == description->slot_count &&
            pool->description.block_bytes == description->block_bytes && pool->description.bytes == description->bytes)
            return pool;
    }
    return NULL;
}

static gms_status check_description(const struct gms_session *session, const struct gms_pool_description *description,
                                    struct gms_error *ret_error)
{
    const size_t length = strnlen(description->name, GMS_NAME_BYTES);
    if (length == 0 || length >= GMS_NAME_BYTES)
        return gms_fail(ret_error, GMS_E_INVALID, "a pool's name has 1 to %d bytes", GMS_NAME_BYTES - 1);
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++)
        if (session->pools[i] != NULL && strcmp(session->pools[i]->description.name, description->name) == 0)
            return gms_fail(ret_error, GMS_E_EXISTS, "pool %s is attached already, with another kind or size",
                            description->name);
    if (description->kind == GMS_POOL_WEIGHTS) {
        if (description->bytes == 0 || description->bytes > INT64_MAX / 2 || description->slot_count != 0 ||
            description->block_bytes != 0)
            return gms_fail(ret_error, GMS_E_INVALID,
                            "weights pool %s: give bytes (%" PRIu64 "), and 0 for slot_count (%" PRIu32
                            ") and block_bytes (%" PRIu64 ")",
                            description->name, description->bytes, description->slot_count, description->block_bytes);
        return GMS_OK;
    }
    if (description->kind != GMS_POOL_KV)
        return gms_fail(ret_error, GMS_E_INVALID, "pool %s: kind %" PRIu32 " is neither weights (%d) nor kv (%d)",
                        description->name, description->kind, GMS_POOL_WEIGHTS, GMS_POOL_KV);
    if (description->slot_count == 0 || description->block_bytes == 0 || description->bytes != 0 ||
        description->block_bytes > INT64_MAX / 2 / description->slot_count)
        return gms_fail(ret_error, GMS_E_INVALID,
                        "kv pool %s: give slot_count (%" PRIu32 ") and block_bytes (%" PRIu64
                        "), and 0 for bytes (%" PRIu64 ")",
                        description->name, description->slot_count, description->block_bytes, description->bytes);
    if (session->parked)
        return gms_fail(ret_error, GMS_E_REFUSED, "kv pool %s: kv pools are attached before gms_park",
                        description->name);
    return GMS_OK;
}

static uint64_t pool_bytes(const struct gms_pool_description *description)
{
    return description->kind == GMS_POOL_KV ? description->slot_count * description->block_bytes : description->bytes;
}

/* While another engine fills the weights, everybody else asks again. Attempts are counted, not timed: all ranks see the
 * same answers, so all of them give up after the same one and their sequences stay equal. */
static gms_status propose_attach(struct gms_session *session, const struct gms_pool_description *description,
                                 struct gms_message *ret_reply, struct gms_error *ret_error)
{
    struct gms_message proposal = {0};
    proposal.propose.kind = GMS_OPERATION_ALLOCATE;
    proposal.propose.pool_kind = description->kind;
    proposal.propose.slot_count = description->slot_count;
    proposal.propose.block_bytes = description->block_bytes;
    proposal.propose.bytes = pool_bytes(description);
    proposal.propose.pool = (struct gms_bytes){description->name, (uint32_t)strlen(description->name)};
    proposal.propose.fields[0] = XXH3_64bits(description->name, strlen(description->name));
    proposal.propose.fields[1] = description->kind;
    proposal.propose.fields[2] = description->slot_count;
    proposal.propose.fields[3] = description->block_bytes;
    const uint32_t attempts = session->operation_timeout_ms / ATTACH_RETRY_MS + 1;
    for (uint32_t attempt = 1;; attempt++) {
        const uint32_t sequence = session->next_sequence;
        gms_status status = gms_session_propose(session, &proposal, ret_reply, ret_error);
        if (session->next_sequence == sequence) /* not the group's word: the caller asks again, under the same number */
            return status;
        if (description->kind != GMS_POOL_WEIGHTS || (status != GMS_E_BUSY && status != GMS_E_AGAIN))
            return status;
        if (attempt == attempts)
            return gms_fail(ret_error, GMS_E_AGAIN, "weights pool %s is still being published by another engine",
                            description->name);
        (void)poll(NULL, 0, ATTACH_RETRY_MS);
    }
}

/* Takes the descriptors that the reply carries. */
static gms_status take_memory(struct gms_pool *pool, struct gms_message *reply, struct gms_error *ret_error)
{
    const struct gms_pool_description *description = &pool->description;
    const bool kv = description->kind == GMS_POOL_KV;
    if (reply->fd_count != (kv ? 2u : 1u))
        return gms_fail(ret_error, GMS_E_PROTOCOL, "pool %s: the coordinator sent %" PRIu32 " descriptors, expected %u",
                        description->name, reply->fd_count, kv ? 2u : 1u);
    gms_status status = pool->session->vmm->import_fd(reply->fds[0], pool->mapped_bytes, &pool->handle, ret_error);
    if (status != GMS_OK)
        return status;
    reply->fds[0] = -1;
    if (!kv)
        return GMS_OK;
    const struct gms_session *session = pool->session;
    const struct gms_directory_geometry expected = {.pool = pool->index,
                                                    .slot_count = description->slot_count,
                                                    .block_bytes = description->block_bytes,
                                                    .identity_digest = session->identity_digest,
                                                    .incarnation = session->incarnation};
    status = gms_directory_open(reply->fds[1], &expected, &pool->directory, ret_error);
    if (status == GMS_OK)
        reply->fds[1] = -1;
    return status;
}

static gms_status map_pool(struct gms_pool *pool, const struct gms_message *reply, struct gms_error *ret_error)
{
    const struct gms_vmm *vmm = pool->session->vmm;
    gms_status status = vmm->reserve(pool->mapped_bytes, &pool->address, ret_error);
    if (status != GMS_OK)
        return status;
    if (pool->description.kind == GMS_POOL_KV)
        return vmm->map_scratch(pool->address, pool->mapped_bytes, ret_error);
    pool->published = reply->reply.published != 0;
    pool->must_publish = !pool->published;
    if (pool->must_publish)
        return vmm->map(pool->address, &pool->handle, GMS_VMM_READ_WRITE, ret_error);
    status = gms_manifest_unpack(reply->reply.payload.data, reply->reply.payload.length, pool->bytes, &pool->manifest,
                                 ret_error);
    if (status != GMS_OK)
        return status;
    status = vmm->map(pool->address, &pool->handle, GMS_VMM_READ, ret_error);
    vmm->release(&pool->handle);
    return status;
}

static gms_status make_slot_tables(struct gms_pool *pool, struct gms_error *ret_error)
{
    /* Live entries are at most one a slot; the other half is room before dead ones have to be swept out. */
    uint64_t ring = 64;
    while (ring < 2 * (uint64_t)pool->description.slot_count)
        ring *= 2;
    pool->tags = calloc(pool->description.slot_count, sizeof *pool->tags);
    pool->pending = calloc(ring, sizeof *pool->pending);
    pool->pending_mask = ring - 1;
    if (pool->tags == NULL || pool->pending == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the tables of %" PRIu32 " slots",
                        pool->description.slot_count);
    return GMS_OK;
}

gms_status gms_pool_attach(gms_session *session, const struct gms_pool_description *description, gms_pool **ret_pool,
                           struct gms_error *ret_error)
{
    gms_status status = gms_session_ready(session, true, gms_session_deadline(session), ret_error);
    struct gms_pool *same = status == GMS_OK ? find_same(session, description) : NULL;
    if (same != NULL) { /* asked for again: every rank has it, or none */
        *ret_pool = same;
        return GMS_OK;
    }
    if (status == GMS_OK)
        status = check_description(session, description, ret_error);
    if (status != GMS_OK)
        return status;
    const uint64_t granularity = session->vmm->granularity_bytes;
    struct gms_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for pool %s", description->name);
    pool->session = session;
    pool->description = *description;
    pool->handle.fd = pool->directory.fd = -1;
    pool->bytes = pool_bytes(description);
    pool->mapped_bytes = (pool->bytes + granularity - 1) / granularity * granularity;
    struct gms_message reply;
    status = propose_attach(session, description, &reply, ret_error);
    if (status != GMS_OK) {
        gms_pool_free(pool);
        return status;
    }
    if (reply.reply.pool_index >= GMS_MAX_POOLS || session->pools[reply.reply.pool_index] != NULL)
        status = gms_fail(ret_error, GMS_E_PROTOCOL,
                          "pool %s: the coordinator gave it index %" PRIu32 ", which is taken or not below %d",
                          description->name, reply.reply.pool_index, GMS_MAX_POOLS);
    else
        pool->index = reply.reply.pool_index;
    if (status == GMS_OK)
        status = take_memory(pool, &reply, ret_error);
    if (status == GMS_OK)
        status = map_pool(pool, &reply, ret_error);
    if (status == GMS_OK && description->kind == GMS_POOL_KV)
        status = make_slot_tables(pool, ret_error);
    gms_message_close_fds(&reply);
    if (status != GMS_OK) {
        gms_pool_free(pool);
        return status;
    }
    pool->mapping_epoch = 1;
    session->pools[pool->index] = pool;
    if (description->kind == GMS_POOL_KV)
        session->directories[pool->index] = &pool->directory;
    *ret_pool = pool;
    return GMS_OK;
}

/* ------------------------------------------------------------------------------------------------- answers --- */

void *gms_pool_address(const gms_pool *pool)
{
    return pool->address;
}

uint64_t gms_pool_bytes(const gms_pool *pool)
{
    return pool->bytes;
}

uint32_t gms_pool_slot_count(const gms_pool *pool)
{
    return pool->description.slot_count;
}

int gms_pool_must_publish(const gms_pool *pool)
{
    return pool->must_publish;
}

int gms_pool_on_device(const gms_pool *pool)
{
    return !pool->session->vmm->cpu_addresses;
}

uint64_t gms_pool_mapping_epoch(const gms_pool *pool)
{
    return pool->mapping_epoch;
}

uint32_t gms_pool_index(const gms_pool *pool)
{
    return pool->index;
}

/* ------------------------------------------------------------------------------------------------- weights --- */

gms_status gms_manifest_add(gms_pool *pool, const char *name, uint64_t offset_bytes, uint64_t bytes,
                            struct gms_error *ret_error)
{
    if (!pool->must_publish)
        return gms_fail(ret_error, GMS_E_REFUSED, "pool %s is not this engine's to publish", pool->description.name);
    return gms_manifest_insert(&pool->manifest, name, offset_bytes, bytes, pool->bytes, ret_error);
}

gms_status gms_manifest_find(const gms_pool *pool, const char *name, uint64_t *ret_offset_bytes, uint64_t *ret_bytes,
                             struct gms_error *ret_error)
{
    if (!pool->published)
        return gms_fail(ret_error, GMS_E_REFUSED, "pool %s is not published", pool->description.name);
    const struct gms_manifest_entry *entry = gms_manifest_lookup(&pool->manifest, name);
    if (entry == NULL)
        return gms_fail(ret_error, GMS_E_NOT_FOUND, "pool %s has no tensor %.*s", pool->description.name,
                        GMS_NAME_BYTES, name);
    *ret_offset_bytes = entry->offset_bytes;
    *ret_bytes = entry->bytes;
    return GMS_OK;
}

static gms_status propose_publish(struct gms_pool *pool, bool *ret_decided, struct gms_error *ret_error)
{
    struct gms_session *session = pool->session;
    const struct gms_pool_description *description = &pool->description;
    void *manifest = NULL;
    uint32_t manifest_bytes = 0;
    gms_status status = gms_manifest_pack(&pool->manifest, &manifest, &manifest_bytes, ret_error);
    if (status != GMS_OK) {
        *ret_decided = true;
        return status;
    }
    struct gms_message proposal = {0}, reply;
    status = gms_memory_digest(session, pool->address, pool->bytes, &proposal.propose.local_digest, ret_error);
    if (status != GMS_OK) {
        *ret_decided = true;
        free(manifest);
        return status;
    }
    proposal.propose.kind = GMS_OPERATION_PUBLISH;
    proposal.propose.pool_kind = description->kind;
    proposal.propose.bytes = pool->bytes;
    proposal.propose.pool = (struct gms_bytes){description->name, (uint32_t)strlen(description->name)};
    proposal.propose.fields[0] = XXH3_64bits(description->name, strlen(description->name));
    proposal.propose.fields[1] = gms_manifest_names_digest(&pool->manifest);
    proposal.propose.payload = (struct gms_bytes){manifest, manifest_bytes};
    const uint32_t sequence = session->next_sequence;
    status = gms_session_propose(session, &proposal, &reply, ret_error);
    if (status == GMS_OK)
        gms_message_close_fds(&reply);
    *ret_decided = session->next_sequence != sequence;
    free(manifest);
    return status;
}

gms_status gms_publish(gms_pool *pool, struct gms_error *ret_error)
{
    const struct gms_vmm *vmm = pool->session->vmm;
    gms_status status = gms_session_ready(pool->session, true, gms_session_deadline(pool->session), ret_error);
    if (status != GMS_OK)
        return status;
    if (!pool->must_publish)
        return gms_fail(ret_error, GMS_E_REFUSED, "pool %s is not this engine's to publish", pool->description.name);
    status = gms_manifest_check_whole(&pool->manifest, pool->bytes, ret_error);
    if (status != GMS_OK)
        return status;
    /* Our own mapping goes first: memory with a writable mapping cannot be sealed. What was launched to fill it must be
     * done by then. */
    status = vmm->sync(ret_error);
    if (status != GMS_OK)
        return status;
    status = vmm->map(pool->address, &pool->handle, GMS_VMM_READ, ret_error);
    if (status != GMS_OK)
        return status;
    bool decided = false;
    status = propose_publish(pool, &decided, ret_error);
    if (status == GMS_OK) {
        pool->published = true;
        pool->must_publish = false;
        vmm->release(&pool->handle);
    } else if (decided) {
        /* An undecided one may still be committed and sealed; a writable mapping now would stand in its way. */
        (void)vmm->map(pool->address, &pool->handle, GMS_VMM_READ_WRITE, NULL);
    }
    return status;
}

gms_status gms_pool_release(gms_pool *pool, struct gms_error *ret_error)
{
    struct gms_session *session = pool->session;
    gms_status status = gms_session_ready(session, true, gms_session_deadline(session), ret_error);
    if (status != GMS_OK)
        return status;
    if (pool->description.kind == GMS_POOL_KV &&
        atomic_load(&session->steps_completed) != atomic_load(&session->steps_begun))
        return gms_fail(ret_error, GMS_E_BUSY, "kv pool %s: a step is in flight", pool->description.name);
    struct gms_message proposal = {0}, reply;
    proposal.propose.kind = GMS_OPERATION_RELEASE;
    proposal.propose.pool_kind = pool->description.kind;
    proposal.propose.pool = (struct gms_bytes){pool->description.name, (uint32_t)strlen(pool->description.name)};
    proposal.propose.fields[0] = XXH3_64bits(pool->description.name, strlen(pool->description.name));
    status = gms_session_propose(session, &proposal, &reply, ret_error);
    if (status != GMS_OK)
        return status;
    gms_message_close_fds(&reply);
    if (pool->tags != NULL) {
        gms_spin_lock(&session->slots_lock);
        for (uint32_t slot = 0; slot < pool->description.slot_count; slot++)
            gms_blocks_remove(session, pool->index, slot);
        gms_spin_unlock(&session->slots_lock);
    }
    gms_pool_free(pool);
    return GMS_OK;
}

gms_status gms_kv_budget(gms_session *session, uint64_t *ret_bytes, struct gms_error *ret_error)
{
    struct gms_message proposal = {0}, reply;
    gms_status status = gms_session_ready(session, true, gms_session_deadline(session), ret_error);
    proposal.propose.kind = GMS_OPERATION_BUDGET;
    if (status == GMS_OK)
        status = gms_session_propose(session, &proposal, &reply, ret_error);
    if (status != GMS_OK)
        return status;
    gms_message_close_fds(&reply);
    *ret_bytes = reply.reply.bytes;
    return GMS_OK;
}
