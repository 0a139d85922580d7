/* SPDX-License-Identifier: Apache-2.0
 *
 * What an earlier process of this rank left with the keeper, taken up again; and then compared with what the group says
 * that there is.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "core/core.h"
#include "memory/pools_copies.h"

/* --------------------------------------------------------------------------------------------- taking up ----- */

static gms_status read_manifest(int fd, void **ret_manifest, uint32_t *ret_bytes, struct gms_error *ret_error)
{
    struct stat status;
    if (fstat(fd, &status) != 0 || status.st_size > GMS_WIRE_MAX_BYTES)
        return gms_fail(ret_error, GMS_E_CORRUPT, "a manifest of %lld bytes", (long long)status.st_size);
    char *manifest = malloc((size_t)status.st_size + 1);
    if (manifest == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a manifest of %lld bytes",
                        (long long)status.st_size);
    for (off_t done = 0; done < status.st_size;) {
        ssize_t got = pread(fd, manifest + done, (size_t)(status.st_size - done), done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            free(manifest);
            return gms_fail(ret_error, GMS_E_CORRUPT, "a manifest that cannot be read");
        }
        done += got;
    }
    *ret_manifest = manifest;
    *ret_bytes = (uint32_t)status.st_size;
    return GMS_OK;
}

bool gms_pools_kept_device(const struct gms_copies *copies, struct gms_uuid *ret_uuid)
{
    struct gms_copy copy;
    for (uint32_t i = 0; gms_copies_at(copies, i, &copy); i++) {
        struct gms_pools_meta meta;
        const bool pool =
            strncmp(copy.name, "pool/", 5) == 0 && gms_pools_meta_decode(&copy, GMS_POOL_META_BYTES, &meta);
        if ((pool || (strncmp(copy.name, "prepared/", 9) == 0 &&
                      gms_pools_meta_decode(&copy, GMS_PREPARED_META_BYTES, &meta))) &&
            meta.device.backend == GMS_MEMORY_CUDA) {
            *ret_uuid = meta.device.uuid;
            return true;
        }
    }
    return false;
}

/* Memory with the geometry that its meta tells. */
static gms_status take_memory(struct gms_pools *pools, const struct gms_copy *copy, const struct gms_pools_meta *meta,
                              const char *name, struct gms_pool_memory *ret_pool, struct gms_error *ret_error)
{
    uint64_t granularity = pools->vmm->granularity_bytes;
    struct gms_pool_memory pool = {.kind = meta->kind,
                                   .slot_count = meta->slot_count,
                                   .block_bytes = meta->block_bytes,
                                   .bytes = meta->bytes,
                                   .creator = meta->creator,
                                   .published = meta->published,
                                   .memory = {.fd = -1}};
    if ((meta->kind != GMS_POOL_WEIGHTS && meta->kind != GMS_POOL_KV) || meta->bytes == 0 ||
        meta->bytes > INT64_MAX - granularity || (meta->kind == GMS_POOL_KV && meta->slot_count == 0))
        return gms_fail(ret_error, GMS_E_CORRUPT, "its meta says kind %u, %" PRIu64 " bytes, %u slots", meta->kind,
                        meta->bytes, meta->slot_count);
    if (meta->device.backend != pools->options.device.backend ||
        !gms_uuid_equal(&meta->device.uuid, &pools->options.device.uuid))
        return gms_fail(ret_error, GMS_E_MISMATCH,
                        "it is memory of another kind or device than memory.backend and this rank's GPU say");
    snprintf(pool.name, sizeof pool.name, "%s", name);
    int fd = fcntl(copy->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return gms_fd_fail("memory taken up again", ret_error);
    gms_status status =
        pools->vmm->import_fd(fd, (meta->bytes + granularity - 1) / granularity * granularity, &pool.memory, ret_error);
    if (status != GMS_OK) {
        gms_fd_close(&fd);
        return status;
    }
    if (meta->kind == GMS_POOL_KV)
        status = gms_directory_index_create(meta->slot_count, &pool.index, ret_error);
    if (status == GMS_OK && meta->kind == GMS_POOL_KV)
        status = gms_pools_make_quarantine(&pool, meta->index, ret_error);
    if (status != GMS_OK) {
        gms_pools_free_memory(pools, &pool);
        return status;
    }
    pool.used = true;
    *ret_pool = pool;
    return GMS_OK;
}

static gms_status take_directory(const struct gms_copy *copy, struct gms_directory **ret_directory,
                                 struct gms_error *ret_error)
{
    struct gms_directory *directory = calloc(1, sizeof *directory);
    int fd = fcntl(copy->fd, F_DUPFD_CLOEXEC, 3);
    if (directory == NULL || fd < 0) {
        free(directory);
        gms_fd_close(&fd);
        return gms_fail(ret_error, GMS_E_DESCRIPTORS, "no memory or descriptor for a directory");
    }
    directory->fd = -1;
    gms_status status = gms_directory_open(fd, NULL, directory, ret_error);
    if (status != GMS_OK) {
        gms_fd_close(&fd);
        free(directory);
        return status;
    }
    *ret_directory = directory;
    return GMS_OK;
}

/* In place of the empty one. Without it everything in quarantine is suspected of somebody unknown. */
static void restore_quarantine(struct gms_pools *pools, struct gms_pool_memory *pool, uint32_t index)
{
    char name[GMS_KEEPER_NAME_BYTES];
    struct gms_copy copy;
    struct gms_quarantine taken = {.fd = -1};
    struct gms_error error = {.text = "nobody has it"};
    gms_pools_name(pools, "quarantine", pool->name, name);
    int fd = gms_copies_find(pools->options.copies, name, &copy) ? fcntl(copy.fd, F_DUPFD_CLOEXEC, 3) : -1;
    if (fd >= 0 && gms_quarantine_open(fd, index, pool->slot_count, &taken, &error) == GMS_OK) {
        gms_quarantine_close(pool->quarantine);
        *pool->quarantine = taken;
        return;
    }
    gms_fd_close(&fd);
    gms_log(GMS_LOG_ERROR, "pool %s: who is suspected of its slots is lost (%s): what is in quarantine stays there",
            pool->name, error.text);
    pool->suspects_lost = true; /* marked when the directories are there */
}

static gms_status restore_pool(struct gms_pools *pools, const struct gms_copy *copy, const char *name,
                               struct gms_error *ret_error)
{
    struct gms_pools_meta meta;
    struct gms_pool_memory pool = {.memory = {.fd = -1}};
    char manifest_name[GMS_KEEPER_NAME_BYTES];
    struct gms_copy manifest;
    if (!gms_pools_meta_decode(copy, GMS_POOL_META_BYTES, &meta) || pools->pools[meta.index].used)
        return gms_fail(ret_error, GMS_E_CORRUPT, "its meta cannot be read, or its place is taken");
    gms_status status = take_memory(pools, copy, &meta, name, &pool, ret_error);
    if (status == GMS_OK && pool.published) {
        gms_pools_name(pools, "manifest", name, manifest_name);
        status = gms_copies_find(pools->options.copies, manifest_name, &manifest)
                     ? read_manifest(manifest.fd, &pool.manifest, &pool.manifest_bytes, ret_error)
                     : gms_fail(ret_error, GMS_E_CORRUPT, "it is published, but has no manifest");
    }
    if (status != GMS_OK) {
        gms_pools_free_memory(pools, &pool);
        return status;
    }
    if (pool.quarantine != NULL)
        restore_quarantine(pools, &pool, meta.index);
    pools->pools[meta.index] = pool;
    return GMS_OK;
}

/* directory/<incarnation>/<pool>/<rank>; its pools have been taken up before (names are in order, and d < p, so this is
 * a second walk). */
static gms_status restore_directory(struct gms_pools *pools, const struct gms_copy *copy, struct gms_error *ret_error)
{
    struct gms_directory *directory = NULL;
    char name[GMS_KEEPER_NAME_BYTES];
    gms_status status = take_directory(copy, &directory, ret_error);
    if (status != GMS_OK)
        return status;
    uint32_t index = directory->geometry.pool;
    struct gms_pools_owner *owner = NULL;
    if (index < GMS_MAX_POOLS && pools->pools[index].used) {
        gms_pools_directory_name(pools, directory->geometry.incarnation, pools->pools[index].name, name);
        if (strcmp(name, copy->name) == 0 && directory->slot_count == pools->pools[index].slot_count)
            owner = gms_pools_make_owner(pools, directory->geometry.incarnation);
    }
    if (owner == NULL || owner->directories[index] != NULL) {
        gms_pools_free_directory(&directory);
        return gms_fail(ret_error, GMS_E_CORRUPT, "it does not belong to a pool that is here");
    }
    owner->directories[index] = directory;
    return GMS_OK;
}

static gms_status restore_prepared(struct gms_pools *pools, const struct gms_copy *copy, uint32_t engine,
                                   const char *what, struct gms_error *ret_error)
{
    struct gms_pools_tentative *tentative = &pools->tentatives[engine];
    struct gms_pools_meta meta;
    if (!gms_pools_meta_decode(copy, GMS_PREPARED_META_BYTES, &meta))
        return gms_fail(ret_error, GMS_E_CORRUPT, "its meta cannot be read");
    if (tentative->key.kind != GMS_OPERATION_NONE && tentative->key.sequence != meta.key.sequence)
        return gms_fail(ret_error, GMS_E_CORRUPT, "it is of another operation than what else is prepared");
    tentative->key = meta.key;
    tentative->pool_index = meta.index;
    memcpy(tentative->pool_name, meta.name, sizeof tentative->pool_name);
    if (strcmp(what, "pool") == 0) {
        gms_status status = take_memory(pools, copy, &meta, meta.name, &tentative->pool, ret_error);
        tentative->creates = status == GMS_OK;
        return status;
    }
    if (strcmp(what, "directory") == 0)
        return take_directory(copy, &tentative->directory, ret_error);
    return read_manifest(copy->fd, &tentative->pool.manifest, &tentative->pool.manifest_bytes, ret_error);
}

/* "A/B/C" into its parts, in place. False: it has another number of them. */
static bool split(char *name, char *parts[], unsigned count)
{
    unsigned found = 0;
    for (char *save = NULL, *part = strtok_r(name, "/", &save); part != NULL; part = strtok_r(NULL, "/", &save)) {
        if (found == count)
            return false;
        parts[found++] = part;
    }
    return found == count;
}

static gms_status restore_one(struct gms_pools *pools, const struct gms_copy *copy, bool directories,
                              struct gms_error *ret_error)
{
    char name[GMS_KEEPER_NAME_BYTES], *parts[4];
    snprintf(name, sizeof name, "%s", copy->name);
    if (!directories && strncmp(name, "pool/", 5) == 0)
        return split(name, parts, 3) && strlen(parts[1]) < GMS_NAME_BYTES
                   ? restore_pool(pools, copy, parts[1], ret_error)
                   : gms_fail(ret_error, GMS_E_CORRUPT, "its name has no pool");
    if (directories && strncmp(name, "directory/", 10) == 0)
        return restore_directory(pools, copy, ret_error);
    if (!directories || strncmp(name, "prepared/", 9) != 0 || !split(name, parts, 4))
        return GMS_OK; /* somebody else's */
    unsigned long engine = strtoul(parts[1], NULL, 10);
    if (strcmp(parts[2], "pool") != 0 && strcmp(parts[2], "directory") != 0 && strcmp(parts[2], "manifest") != 0)
        return GMS_OK;
    return engine < GMS_MAX_ENGINES ? restore_prepared(pools, copy, (uint32_t)engine, parts[2], ret_error)
                                    : gms_fail(ret_error, GMS_E_CORRUPT, "no such engine");
}

gms_status gms_pools_restore(struct gms_pools *pools, struct gms_error *ret_error)
{
    struct gms_copy copy;
    for (int walk = 0; walk < 2; walk++) {
        for (uint32_t i = 0; gms_copies_at(pools->options.copies, i, &copy); i++) {
            struct gms_error error;
            gms_status status = restore_one(pools, &copy, walk == 1, &error);
            if (status == GMS_E_DESCRIPTORS || status == GMS_E_NO_MEMORY)
                return gms_fail(ret_error, status, "%s: %s", copy.name, error.text);
            if (status != GMS_OK) /* reconcile says whether it is missed */
                gms_log(GMS_LOG_ERROR, "what is kept as %s cannot be taken up: %s", copy.name, error.text);
        }
    }
    for (const struct gms_pools_owner *owner = pools->owners; owner != NULL; owner = owner->next)
        for (uint32_t index = 0; index < GMS_MAX_POOLS; index++)
            if (owner->directories[index] != NULL && pools->pools[index].suspects_lost)
                gms_quarantine_distrust(pools->pools[index].quarantine, owner->directories[index], false);
    gms_pools_freeze_pending(pools);
    return GMS_OK;
}

/* ---------------------------------------------------------------------------------------------- reconcile ---- */

static bool is_slot(const struct gms_core_view *view, uint64_t incarnation)
{
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        if (view->engines[engine].role != GMS_ROLE_EMPTY && view->engines[engine].incarnation == incarnation)
            return true;
    return false;
}

/* May this incarnation's directory of the pool be wanted? */
static bool is_wanted(const struct gms_core_view *view, const struct gms_core_pool_view *pool, uint64_t incarnation)
{
    if (incarnation == view->writer_incarnation)
        return true;
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        if (view->engines[engine].role != GMS_ROLE_EMPTY && view->engines[engine].incarnation == incarnation)
            return (pool->attached_mask >> engine & 1) != 0;
    return false;
}

/* Is a copy of this name what one of ours would leave? */
static bool is_ours(const struct gms_pools *pools, const char *copy)
{
    char name[GMS_KEEPER_NAME_BYTES];
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        const struct gms_pool_memory *pool = &pools->pools[index];
        if (!pool->used)
            continue;
        gms_pools_name(pools, "pool", pool->name, name);
        if (strcmp(name, copy) == 0)
            return true;
        gms_pools_name(pools, "manifest", pool->name, name);
        if (pool->published && strcmp(name, copy) == 0)
            return true;
        gms_pools_name(pools, "quarantine", pool->name, name);
        if (pool->quarantine != NULL && strcmp(name, copy) == 0)
            return true;
        for (const struct gms_pools_owner *owner = pools->owners; owner != NULL; owner = owner->next) {
            gms_pools_directory_name(pools, owner->incarnation, pool->name, name);
            if (owner->directories[index] != NULL && strcmp(name, copy) == 0)
                return true;
        }
    }
    return false;
}

/* What was not taken up holds memory for nobody. */
static void drop_unknown(struct gms_pools *pools)
{
    static const char *const prefixes[] = {"pool/", "manifest/", "quarantine/", "directory/", "prepared/"};
    struct gms_copy copy;
    for (uint32_t i = 0; gms_copies_at(pools->options.copies, i, &copy);) {
        bool mine = false;
        for (size_t p = 0; p < sizeof prefixes / sizeof prefixes[0]; p++)
            mine = mine || strncmp(copy.name, prefixes[p], strlen(prefixes[p])) == 0;
        if (!mine || is_ours(pools, copy.name)) {
            i++;
            continue;
        }
        char name[GMS_KEEPER_NAME_BYTES];
        snprintf(name, sizeof name, "%s", copy.name);
        gms_copies_drop(pools->options.copies, name);
    }
}

gms_status gms_pools_reconcile(struct gms_pools *pools, const struct gms_core *core, struct gms_error *ret_error)
{
    struct gms_core_view view;
    gms_core_look(core, &view);
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        gms_pools_abort(pools, engine);
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        struct gms_pool_memory *pool = &pools->pools[index];
        struct gms_core_pool_view wanted;
        bool want = gms_core_look_pool(core, index, &wanted);
        /* Weights that nobody has published are void when their maker is gone, or was given up: made anew. */
        if (want && wanted.state == GMS_POOL_UNPUBLISHED && (pool->published || !is_slot(&view, wanted.creator))) {
            gms_pools_drop_pool(pools, index);
            continue;
        }
        if (want && (!pool->used || strcmp(pool->name, wanted.name) != 0 || pool->kind != wanted.kind ||
                     (wanted.state == GMS_POOL_READY && wanted.kind == GMS_POOL_WEIGHTS && !pool->published)))
            return gms_fail(ret_error, GMS_E_IN_DOUBT,
                            "pool %s belongs to the group, but rank %u has not got its memory back%s", wanted.name,
                            pools->options.rank, pool->used ? " as it was" : "");
        if (!want) {
            gms_pools_drop_pool(pools, index);
            continue;
        }
        for (struct gms_pools_owner *owner = pools->owners; owner != NULL; owner = owner->next)
            if (!is_wanted(&view, &wanted, owner->incarnation))
                gms_pools_drop_directory(pools, owner, index);
        for (uint32_t engine = 0; engine < GMS_MAX_ENGINES && wanted.kind == GMS_POOL_KV; engine++) {
            const struct gms_core_engine_view *slot = &view.engines[engine];
            if (slot->role != GMS_ROLE_EMPTY && slot->role != GMS_ROLE_CONDEMNED &&
                (wanted.attached_mask >> engine & 1) != 0 &&
                gms_pools_directory(pools, slot->incarnation, index) == NULL)
                return gms_fail(ret_error, GMS_E_IN_DOUBT,
                                "engine %u incarnation %" PRIu64 " uses pool %s, but rank %u has not got its directory "
                                "back",
                                engine, slot->incarnation, wanted.name, pools->options.rank);
        }
    }
    drop_unknown(pools);
    return GMS_OK;
}
