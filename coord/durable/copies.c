/* SPDX-License-Identifier: Apache-2.0 */
#include "durable/copies.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"

enum { NAMES_BYTES = 256 * 1024, NAMES_BYTES_MAX = 64 * 1024 * 1024 };

struct item {
    char *name; /* owned */
    int fd;     /* owned */
    void *meta; /* owned; NULL when empty */
    uint32_t meta_bytes;
};

struct gms_copies {
    struct gms_keeper_client *keeper;
    uint32_t rank;
    struct item *items; /* owned, in byte order of their names */
    uint32_t count, capacity;
    gms_copies_listener listener;
    void *listener_context;
};

/* -------------------------------------------------------------------------------------------------- table ---- */

static void free_item(struct item *item)
{
    gms_fd_close(&item->fd);
    free(item->name);
    free(item->meta);
}

static bool locate(const struct gms_copies *copies, const char *name, uint32_t *ret_index)
{
    uint32_t low = 0, high = copies->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (strcmp(copies->items[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *ret_index = low;
    return low < copies->count && strcmp(copies->items[low].name, name) == 0;
}

/* Takes `fd` on success. */
static gms_status insert(struct gms_copies *copies, const char *name, int fd, const void *meta, uint32_t meta_bytes,
                         struct gms_error *ret_error)
{
    struct item item = {
        .name = strdup(name), .fd = fd, .meta = meta_bytes > 0 ? malloc(meta_bytes) : NULL, .meta_bytes = meta_bytes};
    uint32_t index;
    if (copies->count == copies->capacity) {
        uint32_t capacity = copies->capacity > 0 ? 2 * copies->capacity : 32;
        struct item *items = realloc(copies->items, capacity * sizeof *items);
        if (items != NULL) {
            copies->items = items;
            copies->capacity = capacity;
        }
    }
    if (item.name == NULL || (meta_bytes > 0 && item.meta == NULL) || copies->count == copies->capacity) {
        free(item.name);
        free(item.meta);
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a copy of %s", name);
    }
    if (meta_bytes > 0)
        memcpy(item.meta, meta, meta_bytes);
    if (locate(copies, name, &index)) {
        free_item(&copies->items[index]);
    } else {
        memmove(&copies->items[index + 1], &copies->items[index], (copies->count - index) * sizeof item);
        copies->count++;
    }
    copies->items[index] = item;
    return GMS_OK;
}

static struct gms_copy look(const struct item *item)
{
    return (struct gms_copy){.name = item->name, .fd = item->fd, .meta = item->meta, .meta_bytes = item->meta_bytes};
}

gms_status gms_copies_open(struct gms_keeper_client *keeper, uint32_t rank, struct gms_copies **ret_copies,
                           struct gms_error *ret_error)
{
    struct gms_copies *copies = calloc(1, sizeof *copies);
    if (copies == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the table of copies");
    copies->keeper = keeper;
    copies->rank = rank;
    *ret_copies = copies;
    return GMS_OK;
}

void gms_copies_close(struct gms_copies *copies)
{
    if (copies == NULL)
        return;
    for (uint32_t i = 0; i < copies->count; i++)
        free_item(&copies->items[i]);
    free(copies->items);
    free(copies);
}

void gms_copies_listen(struct gms_copies *copies, gms_copies_listener listener, void *context)
{
    copies->listener = listener;
    copies->listener_context = context;
}

bool gms_copies_find(const struct gms_copies *copies, const char *name, struct gms_copy *ret_copy)
{
    uint32_t index;
    if (!locate(copies, name, &index))
        return false;
    *ret_copy = look(&copies->items[index]);
    return true;
}

bool gms_copies_at(const struct gms_copies *copies, uint32_t index, struct gms_copy *ret_copy)
{
    if (index >= copies->count)
        return false;
    *ret_copy = look(&copies->items[index]);
    return true;
}

uint32_t gms_copies_count(const struct gms_copies *copies, const char *prefix)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < copies->count; i++)
        count += strncmp(copies->items[i].name, prefix, strlen(prefix)) == 0;
    return count;
}

uint32_t gms_copies_count_kind(const struct gms_copies *copies, const char *kind)
{
    char place[64];
    uint32_t count = 0;
    snprintf(place, sizeof place, "/%s/", kind); /* kind/... or prepared/<engine>/kind/... */
    for (uint32_t i = 0; i < copies->count; i++) {
        const char *name = copies->items[i].name;
        count += strncmp(name, place + 1, strlen(place + 1)) == 0 ||
                 (strncmp(name, "prepared/", 9) == 0 && strstr(name, place) != NULL);
    }
    return count;
}

/* ------------------------------------------------------------------------------------------------ changes ---- */

static bool keeper_is_there(const struct gms_copies *copies)
{
    return copies->keeper != NULL && copies->keeper->fd >= 0;
}

gms_status gms_copies_put(struct gms_copies *copies, const char *name, int fd, const void *meta, uint32_t meta_bytes)
{
    struct gms_error error;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0) {
        gms_log(GMS_LOG_ERROR, "no descriptor left for a copy of %s: %s", name, strerror(errno));
        return GMS_E_DESCRIPTORS;
    }
    if (insert(copies, name, own, meta, meta_bytes, &error) != GMS_OK) {
        gms_fd_close(&own);
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        return error.status;
    }
    gms_status status =
        keeper_is_there(copies) ? gms_keeper_put(copies->keeper, name, fd, meta, meta_bytes, &error) : GMS_OK;
    if (status != GMS_OK)
        gms_log(GMS_LOG_ERROR, "the keeper did not take a copy of %s: %s", name, error.text);
    if (copies->listener != NULL)
        copies->listener(copies->listener_context,
                         &(struct gms_copy){.name = name, .fd = fd, .meta = meta, .meta_bytes = meta_bytes});
    return status == GMS_E_DISCONNECTED ? GMS_OK : status;
}

void gms_copies_drop(struct gms_copies *copies, const char *name)
{
    struct gms_error error;
    uint32_t index;
    if (!locate(copies, name, &index))
        return;
    struct item item = copies->items[index];
    memmove(&copies->items[index], &copies->items[index + 1], (copies->count - index - 1) * sizeof item);
    copies->count--;
    if (keeper_is_there(copies) && gms_keeper_drop(copies->keeper, item.name, &error) != GMS_OK &&
        error.status != GMS_E_NOT_FOUND)
        gms_log(GMS_LOG_WARNING, "the keeper did not drop %s: %s", item.name, error.text);
    if (copies->listener != NULL)
        copies->listener(copies->listener_context, &(struct gms_copy){.name = item.name, .fd = -1});
    free_item(&item);
}

/* ------------------------------------------------------------------------------------------ with the keeper -- */

/* All names at the keeper, "NAME\0" repeated; the caller's. */
static gms_status list_names(struct gms_copies *copies, char **ret_names, uint32_t *ret_bytes,
                             struct gms_error *ret_error)
{
    gms_status status = GMS_E_NO_CAPACITY;
    for (uint32_t room = NAMES_BYTES; status == GMS_E_NO_CAPACITY && room <= NAMES_BYTES_MAX; room *= 4) {
        char *names = malloc(room);
        if (names == NULL)
            return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for %u bytes of the keeper's names", room);
        status = gms_keeper_list(copies->keeper, "", names, room, ret_bytes, ret_error);
        if (status == GMS_OK)
            *ret_names = names;
        else
            free(names);
    }
    return status;
}

/* Names of a rank end in it. */
static bool is_mine(const struct gms_copies *copies, const char *name)
{
    char suffix[16];
    const char *last = strrchr(name, '/');
    snprintf(suffix, sizeof suffix, "/%u", copies->rank);
    return last != NULL && strcmp(last, suffix) == 0;
}

static gms_status load_one(struct gms_copies *copies, const char *name, struct gms_error *ret_error)
{
    uint8_t meta[GMS_KEEPER_META_BYTES];
    uint32_t bytes = sizeof meta;
    int fd = -1;
    gms_status status = gms_keeper_get(copies->keeper, name, &fd, meta, &bytes, ret_error);
    if (status == GMS_OK)
        status = insert(copies, name, fd, meta, bytes, ret_error);
    if (status != GMS_OK)
        gms_fd_close(&fd);
    return status;
}

gms_status gms_copies_load(struct gms_copies *copies, struct gms_error *ret_error)
{
    char *names = NULL;
    uint32_t bytes = 0;
    if (copies->keeper == NULL)
        return GMS_OK;
    gms_status status = list_names(copies, &names, &bytes, ret_error);
    for (const char *name = names; status == GMS_OK && name < names + bytes; name += strlen(name) + 1)
        if (is_mine(copies, name))
            status = load_one(copies, name, ret_error);
    free(names);
    return status;
}

gms_status gms_copies_refill(struct gms_copies *copies, struct gms_error *ret_error)
{
    char *names = NULL;
    uint32_t bytes = 0, index;
    gms_status status = GMS_OK;
    for (uint32_t i = 0; i < copies->count && status == GMS_OK; i++)
        status = gms_keeper_put(copies->keeper, copies->items[i].name, copies->items[i].fd, copies->items[i].meta,
                                copies->items[i].meta_bytes, ret_error);
    if (status == GMS_OK)
        status = list_names(copies, &names, &bytes, ret_error);
    for (const char *name = names; status == GMS_OK && name < names + bytes; name += strlen(name) + 1)
        if (is_mine(copies, name) && !locate(copies, name, &index))
            gms_keeper_drop(copies->keeper, name, NULL); /* what gms-exec still had, and is over */
    free(names);
    return status;
}
