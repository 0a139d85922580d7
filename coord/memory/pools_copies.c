/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools, directories and prepared operations as copies that outlive this process.
 */
#include "memory/pools_copies.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"

enum { META_VERSION = 2 };

/* --------------------------------------------------------------------------------------------------- meta ---- */

static uint8_t *put(uint8_t *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        *at++ = (uint8_t)(value >> (8 * i));
    return at;
}

static uint64_t get(const uint8_t **at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t) * (*at)++ << (8 * i);
    return value;
}

static void encode(const struct gms_pools_meta *meta, uint8_t ret_bytes[GMS_PREPARED_META_BYTES])
{
    uint8_t *at = put(ret_bytes, META_VERSION, 4);
    at = put(at, meta->index, 4);
    at = put(at, meta->kind, 4);
    at = put(at, meta->slot_count, 4);
    at = put(at, meta->block_bytes, 8);
    at = put(at, meta->bytes, 8);
    at = put(at, meta->creator, 8);
    at = put(at, meta->published, 4);
    at = put(at, meta->device.backend, 4);
    memcpy(at, meta->device.uuid.bytes, sizeof meta->device.uuid.bytes);
    at += sizeof meta->device.uuid.bytes;
    at = put(at, meta->key.incarnation, 8);
    at = put(at, meta->key.launch, 8);
    at = put(at, meta->key.sequence, 4);
    at = put(at, meta->key.kind, 4);
    memcpy(at, meta->name, GMS_NAME_BYTES);
}

bool gms_pools_meta_decode(const struct gms_copy *copy, uint32_t bytes, struct gms_pools_meta *ret_meta)
{
    const uint8_t *at = copy->meta;
    struct gms_pools_meta meta = {0};
    if (copy->meta_bytes != bytes || get(&at, 4) != META_VERSION)
        return false;
    meta.index = (uint32_t)get(&at, 4);
    meta.kind = (uint32_t)get(&at, 4);
    meta.slot_count = (uint32_t)get(&at, 4);
    meta.block_bytes = get(&at, 8);
    meta.bytes = get(&at, 8);
    meta.creator = get(&at, 8);
    meta.published = get(&at, 4) != 0;
    meta.device.backend = (enum gms_memory_backend)get(&at, 4);
    memcpy(meta.device.uuid.bytes, at, sizeof meta.device.uuid.bytes);
    at += sizeof meta.device.uuid.bytes;
    if (bytes == GMS_PREPARED_META_BYTES) {
        meta.key.incarnation = get(&at, 8);
        meta.key.launch = get(&at, 8);
        meta.key.sequence = (uint32_t)get(&at, 4);
        meta.key.kind = (uint32_t)get(&at, 4);
        memcpy(meta.name, at, GMS_NAME_BYTES);
        if (memchr(meta.name, '\0', GMS_NAME_BYTES) == NULL)
            return false;
    }
    if (meta.index >= GMS_MAX_POOLS)
        return false;
    *ret_meta = meta;
    return true;
}

static struct gms_pools_meta meta_of(const struct gms_pools *pools, const struct gms_pool_memory *pool, uint32_t index)
{
    return (struct gms_pools_meta){.index = index,
                                   .device = pools->options.device,
                                   .kind = pool->kind,
                                   .slot_count = pool->slot_count,
                                   .block_bytes = pool->block_bytes,
                                   .bytes = pool->bytes,
                                   .creator = pool->creator,
                                   .published = pool->published};
}

/* -------------------------------------------------------------------------------------------------- names ---- */

void gms_pools_name(const struct gms_pools *pools, const char *what, const char *pool,
                    char ret_name[GMS_KEEPER_NAME_BYTES])
{
    snprintf(ret_name, GMS_KEEPER_NAME_BYTES, "%s/%s/%u", what, pool, pools->options.rank);
}

void gms_pools_directory_name(const struct gms_pools *pools, uint64_t incarnation, const char *pool,
                              char ret_name[GMS_KEEPER_NAME_BYTES])
{
    snprintf(ret_name, GMS_KEEPER_NAME_BYTES, "directory/%" PRIu64 "/%s/%u", incarnation, pool, pools->options.rank);
}

static void prepared_name(const struct gms_pools *pools, uint32_t engine, const char *what,
                          char ret_name[GMS_KEEPER_NAME_BYTES])
{
    snprintf(ret_name, GMS_KEEPER_NAME_BYTES, "prepared/%u/%s/%u", engine, what, pools->options.rank);
}

/* The manifest as a descriptor: it may be larger than what goes beside one. */
static gms_status manifest_file(const void *manifest, uint32_t bytes, int *ret_fd, struct gms_error *ret_error)
{
    int fd = memfd_create("gms-manifest", MFD_CLOEXEC);
    if (fd < 0)
        return gms_fd_fail("a file for a manifest", ret_error);
    for (uint32_t done = 0; done < bytes;) {
        ssize_t written = pwrite(fd, (const char *)manifest + done, bytes - done, (off_t)done);
        if (written <= 0 && errno != EINTR) {
            gms_status status =
                gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a manifest's copy: %s", strerror(errno));
            gms_fd_close(&fd);
            return status;
        }
        done += written > 0 ? (uint32_t)written : 0;
    }
    *ret_fd = fd;
    return GMS_OK;
}

/* ----------------------------------------------------------------------------------------------- leaving ----- */

static void put_manifest(struct gms_pools *pools, const struct gms_pool_memory *pool)
{
    char name[GMS_KEEPER_NAME_BYTES];
    struct gms_error error;
    int fd = -1;
    if (manifest_file(pool->manifest, pool->manifest_bytes, &fd, &error) != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "pool %s: %s", pool->name, error.text);
        return;
    }
    gms_pools_name(pools, "manifest", pool->name, name);
    gms_copies_put(pools->options.copies, name, fd, NULL, 0);
    gms_fd_close(&fd);
}

void gms_pools_keep_pool(struct gms_pools *pools, uint32_t index)
{
    const struct gms_pool_memory *pool = &pools->pools[index];
    const struct gms_pools_meta meta = meta_of(pools, pool, index);
    uint8_t bytes[GMS_PREPARED_META_BYTES];
    char name[GMS_KEEPER_NAME_BYTES];
    if (pools->options.copies == NULL)
        return;
    if (pool->published)
        put_manifest(pools, pool); /* before the pool says that it is published */
    encode(&meta, bytes);
    if (pool->quarantine != NULL) {
        gms_pools_name(pools, "quarantine", pool->name, name);
        gms_copies_put(pools->options.copies, name, pool->quarantine->fd, NULL, 0);
    }
    gms_pools_name(pools, "pool", pool->name, name);
    gms_copies_put(pools->options.copies, name, pool->memory.fd, bytes, GMS_POOL_META_BYTES);
}

void gms_pools_unkeep_pool(struct gms_pools *pools, uint32_t index)
{
    char name[GMS_KEEPER_NAME_BYTES];
    if (pools->options.copies == NULL)
        return;
    gms_pools_name(pools, "pool", pools->pools[index].name, name);
    gms_copies_drop(pools->options.copies, name);
    gms_pools_name(pools, "manifest", pools->pools[index].name, name);
    gms_copies_drop(pools->options.copies, name);
    gms_pools_name(pools, "quarantine", pools->pools[index].name, name);
    gms_copies_drop(pools->options.copies, name);
}

void gms_pools_keep_directory(struct gms_pools *pools, const struct gms_pools_owner *owner, uint32_t index)
{
    char name[GMS_KEEPER_NAME_BYTES];
    if (pools->options.copies == NULL)
        return;
    gms_pools_directory_name(pools, owner->incarnation, pools->pools[index].name, name);
    gms_copies_put(pools->options.copies, name, owner->directories[index]->fd, NULL, 0);
}

void gms_pools_unkeep_directory(struct gms_pools *pools, const struct gms_pools_owner *owner, uint32_t index)
{
    char name[GMS_KEEPER_NAME_BYTES];
    if (pools->options.copies == NULL)
        return;
    gms_pools_directory_name(pools, owner->incarnation, pools->pools[index].name, name);
    gms_copies_drop(pools->options.copies, name);
}

gms_status gms_pools_keep_prepared(struct gms_pools *pools, uint32_t engine, struct gms_error *ret_error)
{
    const struct gms_pools_tentative *tentative = &pools->tentatives[engine];
    struct gms_pools_meta meta = meta_of(pools, &tentative->pool, tentative->pool_index);
    uint8_t bytes[GMS_PREPARED_META_BYTES];
    char name[GMS_KEEPER_NAME_BYTES];
    struct gms_copies *copies = pools->options.copies;
    gms_status status = GMS_OK;
    if (copies == NULL)
        return GMS_OK;
    meta.key = tentative->key;
    memcpy(meta.name, tentative->pool_name, sizeof meta.name);
    encode(&meta, bytes);
    if (tentative->creates) {
        prepared_name(pools, engine, "pool", name);
        status = gms_copies_put(copies, name, tentative->pool.memory.fd, bytes, sizeof bytes);
    }
    if (tentative->directory != NULL && status == GMS_OK) {
        prepared_name(pools, engine, "directory", name);
        status = gms_copies_put(copies, name, tentative->directory->fd, bytes, sizeof bytes);
    }
    if (tentative->key.kind == GMS_OPERATION_PUBLISH && status == GMS_OK) {
        int fd = -1;
        status = manifest_file(tentative->pool.manifest, tentative->pool.manifest_bytes, &fd, ret_error);
        if (status != GMS_OK)
            return status;
        prepared_name(pools, engine, "manifest", name);
        status = gms_copies_put(copies, name, fd, bytes, sizeof bytes);
        gms_fd_close(&fd);
    }
    if (status != GMS_OK) /* it would be lost with this process: nobody is told that it is there */
        return gms_fail(ret_error, status, "what is prepared for engine %u cannot be left with the keeper", engine);
    return GMS_OK;
}

void gms_pools_unkeep_prepared(struct gms_pools *pools, uint32_t engine)
{
    static const char *const what[] = {"pool", "directory", "manifest"};
    for (size_t i = 0; i < sizeof what / sizeof what[0] && pools->options.copies != NULL; i++) {
        char name[GMS_KEEPER_NAME_BYTES];
        prepared_name(pools, engine, what[i], name);
        gms_copies_drop(pools->options.copies, name);
    }
}
