/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-keeper/shelf.h"

#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "gms-keeper/client.h"

gms_status shelf_check_name(struct gms_bytes name, struct gms_error *ret_error)
{
    const unsigned char *text = name.data;

    if (name.length == 0 || name.length >= GMS_KEEPER_NAME_BYTES)
        return gms_fail(ret_error, GMS_E_INVALID, "a name of %u bytes; 1 to %d", name.length,
                        GMS_KEEPER_NAME_BYTES - 1);
    for (uint32_t i = 0; i < name.length; i++)
        if (text[i] <= 0x20 || text[i] >= 0x7f)
            return gms_fail(ret_error, GMS_E_INVALID, "a name with byte 0x%02x; visible ASCII only", text[i]);
    return GMS_OK;
}

/* Names hold no NUL, so a prefix of another sorts before it. */
static int compare(const char *name, struct gms_bytes other)
{
    size_t length = strlen(name), common = length < other.length ? length : other.length;
    int order = common ? memcmp(name, other.data, common) : 0;
    return order ? order : (length > other.length) - (length < other.length);
}

/* Where `name` is or would be; true when it is there. */
static bool locate(const struct shelf *shelf, struct gms_bytes name, size_t *ret_index)
{
    size_t low = 0, high = shelf->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare(shelf->items[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *ret_index = low;
    return low < shelf->count && compare(shelf->items[low].name, name) == 0;
}

static void free_item(struct shelf_item *item)
{
    gms_fd_close(&item->fd);
    free(item->name);
    free(item->meta);
}

static bool make_room(struct shelf *shelf)
{
    size_t capacity = shelf->capacity ? 2 * shelf->capacity : 64;
    struct shelf_item *items;

    if (shelf->count < shelf->capacity)
        return true;
    items = realloc(shelf->items, capacity * sizeof(*items));
    if (!items)
        return false;
    shelf->items = items;
    shelf->capacity = capacity;
    return true;
}

gms_status shelf_put(struct shelf *shelf, struct gms_bytes name, int fd, struct gms_bytes meta,
                     struct gms_error *ret_error)
{
    struct shelf_item item = {.name = strndup(name.data, name.length),
                              .meta = meta.length ? malloc(meta.length) : NULL,
                              .meta_bytes = meta.length,
                              .fd = fd};
    size_t index;

    if (!item.name || (meta.length && !item.meta) || !make_room(shelf)) {
        free(item.name);
        free(item.meta);
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for one more of %zu descriptors", shelf->count);
    }
    if (meta.length)
        memcpy(item.meta, meta.data, meta.length);
    if (locate(shelf, name, &index)) {
        free_item(&shelf->items[index]);
    } else {
        memmove(shelf->items + index + 1, shelf->items + index, (shelf->count - index) * sizeof(item));
        shelf->count++;
    }
    shelf->items[index] = item;
    return GMS_OK;
}

const struct shelf_item *shelf_find(const struct shelf *shelf, struct gms_bytes name)
{
    size_t index;
    return locate(shelf, name, &index) ? &shelf->items[index] : NULL;
}

bool shelf_drop(struct shelf *shelf, struct gms_bytes name)
{
    size_t index;
    if (!locate(shelf, name, &index))
        return false;
    free_item(&shelf->items[index]);
    shelf->count--;
    memmove(shelf->items + index, shelf->items + index + 1, (shelf->count - index) * sizeof(*shelf->items));
    return true;
}

uint32_t shelf_list(const struct shelf *shelf, struct gms_bytes prefix, struct gms_bytes after, char *ret_names,
                    uint32_t capacity, bool *ret_more)
{
    uint32_t used = 0;
    size_t index;

    *ret_more = false;
    if (locate(shelf, after.length ? after : prefix, &index) && after.length)
        index++;
    for (; index < shelf->count; index++) {
        const char *name = shelf->items[index].name;
        uint32_t bytes = (uint32_t)strlen(name) + 1;
        if (bytes <= prefix.length || (prefix.length && memcmp(name, prefix.data, prefix.length) != 0))
            break;
        if (bytes > capacity - used) {
            *ret_more = true;
            break;
        }
        memcpy(ret_names + used, name, bytes);
        used += bytes;
    }
    return used;
}

void shelf_clear(struct shelf *shelf)
{
    for (size_t i = 0; i < shelf->count; i++)
        free_item(&shelf->items[i]);
    free(shelf->items);
    *shelf = (struct shelf){0};
}
