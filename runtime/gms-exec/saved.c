/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-exec/saved.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "wire/channel.h"

enum { CONNECT_MS = 20 };
static const uint64_t first_pause_ns = 20 * GMS_NS_PER_MS, longest_pause_ns = 500 * GMS_NS_PER_MS;
/* While the next keeper may be on its way: coordinators that start wait for what is saved here. */
static const uint64_t soon_pause_ns = 80 * GMS_NS_PER_MS, soon_ns = 10 * GMS_NS_PER_S;
static const uint64_t refill_ns = 500 * GMS_NS_PER_MS;

gms_status gms_saved_open(struct gms_saved *saved, const char *run_dir, uint32_t rank, struct gms_error *ret_error)
{
    memset(saved, 0, sizeof *saved);
    saved->fd = -1;
    saved->rank = rank;
    saved->pause_ns = first_pause_ns;
    saved->buffer = malloc(GMS_WIRE_MAX_BYTES);
    if (saved->buffer == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a receive buffer of %d bytes", GMS_WIRE_MAX_BYTES);
    return gms_run_dir_path(run_dir, "keeper", -1, saved->path, ret_error);
}

/* ------------------------------------------------------------------------------------------------- table ----- */

static void free_item(struct gms_saved_item *item)
{
    gms_fd_close(&item->fd);
    free(item->name);
    free(item->meta);
}

static void drop_at(struct gms_saved *saved, size_t index)
{
    free_item(&saved->items[index]);
    saved->items[index] = saved->items[--saved->count];
}

void gms_saved_close(struct gms_saved *saved)
{
    while (saved->count > 0)
        drop_at(saved, saved->count - 1);
    free(saved->items);
    free(saved->buffer);
    gms_fd_close(&saved->fd);
    saved->items = NULL;
    saved->buffer = NULL;
}

static bool is_named(const struct gms_saved_item *item, const struct gms_bytes *name)
{
    return strlen(item->name) == name->length && memcmp(item->name, name->data, name->length) == 0;
}

static void drop(struct gms_saved *saved, const struct gms_bytes *name)
{
    for (size_t i = 0; i < saved->count; i++) {
        if (is_named(&saved->items[i], name)) {
            drop_at(saved, i);
            return;
        }
    }
}

static void put(struct gms_saved *saved, struct gms_message *message)
{
    const struct gms_bytes name = message->copy.name, meta = message->copy.meta;
    if (message->fd_count != 1 || name.length == 0)
        return;
    drop(saved, &name);
    if (saved->count == saved->capacity) {
        size_t capacity = saved->capacity > 0 ? 2 * saved->capacity : 32;
        struct gms_saved_item *items = realloc(saved->items, capacity * sizeof *items);
        if (items == NULL)
            return;
        saved->items = items;
        saved->capacity = capacity;
    }
    struct gms_saved_item item = {.name = strndup(name.data, name.length),
                                  .fd = -1,
                                  .meta = meta.length > 0 ? malloc(meta.length) : NULL,
                                  .meta_bytes = meta.length};
    if (item.name == NULL || (meta.length > 0 && item.meta == NULL)) {
        free_item(&item);
        return;
    }
    if (meta.length > 0)
        memcpy(item.meta, meta.data, meta.length);
    item.fd = message->fds[0];
    message->fds[0] = -1;
    message->fd_count = 0;
    saved->items[saved->count++] = item;
}

void gms_saved_take(struct gms_saved *saved, struct gms_message *message)
{
    switch ((enum gms_copy_kind)message->copy.kind) {
    case GMS_COPY_BEGIN:
        for (size_t i = 0; i < saved->count; i++)
            saved->items[i].stale = true;
        break;
    case GMS_COPY_PUT:
        put(saved, message);
        break;
    case GMS_COPY_DROP:
        drop(saved, &message->copy.name);
        break;
    case GMS_COPY_END:
        for (size_t i = 0; i < saved->count;) {
            if (saved->items[i].stale)
                drop_at(saved, i);
            else
                i++;
        }
        break;
    }
}

/* ------------------------------------------------------------------------------------------------ keeper ----- */

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const struct gms_saved_item *)left)->name, ((const struct gms_saved_item *)right)->name);
}

static gms_status give(struct gms_saved *saved, const struct gms_saved_item *item, uint64_t deadline_ns)
{
    struct gms_message refill = {.type = GMS_MESSAGE_KEEPER_REFILL, .request_id = 1, .fd_count = 1}, reply;
    refill.keeper.rank = saved->rank;
    refill.keeper.name = (struct gms_bytes){item->name, (uint32_t)strlen(item->name)};
    refill.keeper.meta = (struct gms_bytes){item->meta, item->meta_bytes};
    refill.fds[0] = item->fd;
    gms_status status = gms_channel_send_until(saved->fd, &refill, deadline_ns, NULL);
    if (status == GMS_OK)
        status = gms_channel_receive_until(saved->fd, saved->buffer, deadline_ns, &reply, NULL);
    if (status == GMS_OK) {
        status = (gms_status)reply.keeper_reply.status;
        gms_message_close_fds(&reply);
    }
    return status;
}

/* In the order of names: "session/..." last, so that whoever sees it sees what belongs to it. */
static bool refill(struct gms_saved *saved)
{
    const uint64_t deadline_ns = gms_clock_ns() + refill_ns;
    gms_status status = GMS_OK;
    if (saved->count == 0)
        return false;
    qsort(saved->items, saved->count, sizeof *saved->items, compare_names);
    for (size_t i = 0; i < saved->count && status == GMS_OK; i++)
        status = give(saved, &saved->items[i], deadline_ns);
    if (status != GMS_OK && status != GMS_E_STALE) /* STALE: it needs none of it */
        gms_fd_close(&saved->fd);
    return status == GMS_OK;
}

bool gms_saved_step(struct gms_saved *saved, uint64_t now_ns)
{
    if (saved->fd >= 0) {
        struct pollfd end = {.fd = saved->fd, .events = POLLRDHUP | POLLIN};
        if (poll(&end, 1, 0) == 0)
            return false;
        gms_fd_close(&saved->fd);
        saved->retry_ns = saved->lost_ns = now_ns;
        saved->pause_ns = first_pause_ns;
    }
    if (now_ns < saved->retry_ns)
        return false;
    bool filled = gms_channel_connect(saved->path, CONNECT_MS, &saved->fd, NULL) == GMS_OK && refill(saved);
    if (saved->fd < 0) {
        uint64_t limit_ns = saved->lost_ns != 0 && now_ns - saved->lost_ns < soon_ns ? soon_pause_ns : longest_pause_ns;
        saved->retry_ns = gms_clock_ns() + saved->pause_ns;
        saved->pause_ns = 2 * saved->pause_ns < limit_ns ? 2 * saved->pause_ns : limit_ns;
    } else {
        saved->retry_ns = UINT64_MAX;
    }
    return filled;
}
