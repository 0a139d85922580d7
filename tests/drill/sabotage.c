/* SPDX-License-Identifier: Apache-2.0 */
#include "sabotage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "directory/directory.h"
#include "directory/layout.h"

/* One sealed block, and where the walk along its parents ends. */
struct block {
    uint32_t slot, root;
    bool damaged;
    struct gms_record record;
};

struct target {
    struct gms_directory directory; /* the dead engine's, mapped writable */
    int memory;                     /* the pool's KV memory */
    struct block *blocks;
    uint32_t count;
};

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void close_target(struct target *target)
{
    gms_directory_close(&target->directory);
    gms_fd_close(&target->memory);
    free(target->blocks);
    target->blocks = NULL;
}

/* Opens the files behind the coordinator's descriptors: the directory of `incarnation`, and the memory named `label`.
 */
static gms_status open_target(int32_t coordinator, uint64_t incarnation, uint32_t pool, const char *label,
                              struct target *ret_target, struct gms_error *ret_error)
{
    char dir_path[64], path[384], link[256], wanted[224];
    *ret_target = (struct target){.directory = {.fd = -1}, .memory = -1};
    snprintf(dir_path, sizeof dir_path, "/proc/%d/fd", coordinator);
    snprintf(wanted, sizeof wanted, "/memfd:%s (deleted)", label);
    DIR *dir = opendir(dir_path);
    if (dir == NULL)
        return gms_fail(ret_error, GMS_E_PERMISSION, "%s: %s", dir_path, strerror(errno));
    struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", dir_path, entry->d_name);
        ssize_t length = readlink(path, link, sizeof link - 1);
        if (length <= 0)
            continue;
        link[length] = '\0';
        bool is_memory = strcmp(link, wanted) == 0 && ret_target->memory < 0;
        if (!is_memory && strcmp(link, "/memfd:gms-directory (deleted)") != 0)
            continue;
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0)
            continue;
        struct gms_directory directory;
        if (is_memory) {
            ret_target->memory = fd;
        } else if (ret_target->directory.fd >= 0 || gms_directory_open(fd, NULL, &directory, NULL) != GMS_OK) {
            gms_fd_close(&fd);
        } else if (directory.geometry.incarnation != incarnation || directory.geometry.pool != pool) {
            gms_directory_close(&directory);
        } else {
            ret_target->directory = directory;
        }
    }
    closedir(dir);
    if (ret_target->directory.fd >= 0 && ret_target->memory >= 0)
        return GMS_OK;
    gms_status status = gms_fail(ret_error, GMS_E_NOT_FOUND, "coordinator pid %d holds no %s%s", coordinator,
                                 ret_target->directory.fd < 0 ? "directory of the dead engine" : "memory named ",
                                 ret_target->directory.fd < 0 ? "" : label);
    close_target(ret_target);
    return status;
}

static uint32_t find_block(const struct target *target, const uint8_t *hash)
{
    for (uint32_t i = 0; i < target->count; i++)
        if (memcmp(target->blocks[i].record.hash, hash, GMS_BLOCK_HASH_BYTES) == 0)
            return i;
    return target->count;
}

static gms_status list_blocks(struct target *target, struct gms_error *ret_error)
{
    static const uint8_t no_parent[GMS_BLOCK_HASH_BYTES];
    uint32_t pool = target->directory.geometry.pool;
    struct gms_directory *all[GMS_MAX_POOLS] = {0};
    all[pool] = &target->directory;
    target->blocks = calloc(target->directory.slot_count, sizeof *target->blocks);
    if (target->blocks == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for %u blocks", target->directory.slot_count);
    for (uint32_t slot = 0; slot < target->directory.slot_count; slot++) {
        struct block *block = &target->blocks[target->count];
        if (gms_slot_word_state(gms_directory_word(&target->directory, slot)) == GMS_SLOT_SEALED &&
            gms_directory_read(all, pool, slot, &block->record)) {
            block->slot = slot;
            target->count++;
        }
    }
    for (uint32_t i = 0; i < target->count; i++) {
        uint32_t at = i;
        for (uint32_t depth = 0; depth < target->count; depth++) {
            const uint8_t *parent = target->blocks[at].record.parent_hash;
            uint32_t up = memcmp(parent, no_parent, sizeof no_parent) == 0 ? target->count : find_block(target, parent);
            if (up == target->count)
                break;
            at = up;
        }
        target->blocks[i].root = at;
    }
    if (target->count == 0)
        return gms_fail(ret_error, GMS_E_NOT_FOUND, "the dead engine left no sealed block");
    return GMS_OK;
}

/* Numbers of the size that a KV page has, so that only exactness can notice. */
static gms_status poison(struct target *target, const struct block *block, uint64_t *random,
                         struct gms_error *ret_error)
{
    uint64_t bytes = target->directory.geometry.block_bytes;
    float *page = malloc(bytes);
    if (page == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a page of %llu bytes", (unsigned long long)bytes);
    for (uint64_t i = 0; i < bytes / sizeof *page; i++)
        page[i] = (float)(int32_t)(next_random(random) >> 32) / 2147483648.0f;
    gms_status status = GMS_OK;
    if (pwrite(target->memory, page, bytes, (off_t)(block->slot * bytes)) != (ssize_t)bytes)
        status = gms_fail(ret_error, GMS_E_SYSTEM, "slot %u cannot be overwritten: %s", block->slot, strerror(errno));
    free(page);
    return status;
}

static gms_status flip(struct target *target, const struct block *block, uint64_t *random)
{
    /* Any byte of the record, its checksum included. */
    uint64_t where = next_random(random) % GMS_RECORD_BYTES;
    uint64_t bit = UINT64_C(1) << (where % 8 * 8 + next_random(random) % 8);
    atomic_fetch_xor(gms_directory_record_words(&target->directory, block->slot) + where / 8, bit);
    return GMS_OK;
}

static bool chain_damaged(const struct target *target, uint32_t root)
{
    for (uint32_t i = 0; i < target->count; i++)
        if (target->blocks[i].damaged && target->blocks[i].root == root)
            return true;
    return false;
}

/* A block that is whole, of a chain that is whole while there are such. */
static struct block *choose(struct target *target, uint64_t *random)
{
    for (int pass = 0; pass < 2; pass++) {
        uint32_t start = (uint32_t)(next_random(random) % target->count);
        for (uint32_t i = 0; i < target->count; i++) {
            struct block *block = &target->blocks[(start + i) % target->count];
            if (!block->damaged && (pass == 1 || !chain_damaged(target, block->root)))
                return block;
        }
    }
    return NULL;
}

gms_status drill_sabotage(const struct drill_plan *plan, const struct drill_status *status, uint64_t incarnation,
                          struct drill_damage *ret_damage, struct gms_error *ret_error)
{
    memset(ret_damage, 0, sizeof *ret_damage);
    const struct drill_status_pool *pool = NULL;
    for (uint32_t i = 0; i < status->pool_count && pool == NULL; i++)
        if (status->pools[i].kv)
            pool = &status->pools[i];
    if (pool == NULL)
        return gms_fail(ret_error, GMS_E_NOT_FOUND, "rank %u has no KV pool", status->rank);
    char label[160];
    snprintf(label, sizeof label, "gms:%s/%s", status->deployment, pool->name);
    struct target target;
    gms_status result = open_target(status->pid, incarnation, pool->index, label, &target, ret_error);
    if (result != GMS_OK)
        return result;
    result = list_blocks(&target, ret_error);
    uint64_t random = plan->seed * UINT64_C(0x2545f4914f6cdd1d);
    uint32_t wanted = plan->sabotage == DRILL_SABOTAGE_NONE_ADOPTED  ? target.count
                      : plan->sabotage == DRILL_SABOTAGE_POISON_PAGE ? plan->sabotage_pages
                                                                     : 1;
    for (uint32_t i = 0; i < wanted && result == GMS_OK; i++) {
        struct block *block = choose(&target, &random);
        if (block == NULL)
            break;
        if (!chain_damaged(&target, block->root))
            ret_damage->chains++;
        result = plan->sabotage == DRILL_SABOTAGE_POISON_PAGE ? poison(&target, block, &random, ret_error)
                                                              : flip(&target, block, &random);
        block->damaged = true;
        ret_damage->blocks++;
    }
    ret_damage->sealed = target.count;
    close_target(&target);
    return result;
}
