/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-up/watch.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "gms/version.h"
#include "wire/channel.h"

enum { CONNECT_MS = 50 };

gms_status gms_watch_open(struct gms_watch *watch, const char *run_dir, const char *name, int32_t rank, bool greets,
                          struct gms_error *ret_error)
{
    memset(watch, 0, sizeof *watch);
    watch->fd = -1;
    watch->greets = greets;
    if (greets && (watch->buffer = malloc(GMS_WIRE_MAX_BYTES)) == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a receive buffer of %d bytes", GMS_WIRE_MAX_BYTES);
    return gms_run_dir_path(run_dir, name, rank, watch->path, ret_error);
}

void gms_watch_close(struct gms_watch *watch)
{
    gms_watch_drop(watch);
    free(watch->buffer);
    free(watch->status);
    watch->status = NULL;
    watch->buffer = NULL;
}

void gms_watch_drop(struct gms_watch *watch)
{
    gms_fd_close(&watch->fd);
    watch->state = GMS_WATCH_DOWN;
}

/* The connection is gone. Was it the coordinator's end? begin() finds out. */
static void hung_up(struct gms_watch *watch)
{
    bool was_up = watch->state == GMS_WATCH_UP || watch->state == GMS_WATCH_AGAIN;
    gms_fd_close(&watch->fd);
    watch->state = was_up ? GMS_WATCH_AGAIN : GMS_WATCH_DOWN;
}

/* From DOWN or AGAIN. True: nobody listens any more where somebody was UP. */
static bool begin(struct gms_watch *watch)
{
    gms_status status = gms_channel_connect(watch->path, CONNECT_MS, &watch->fd, NULL);
    watch->nobody = status == GMS_E_NOT_FOUND || status == GMS_E_DISCONNECTED;
    if (watch->nobody) {
        bool was_up = watch->state == GMS_WATCH_AGAIN;
        gms_watch_drop(watch);
        return was_up;
    }
    if (status != GMS_OK)
        return false; /* busy: that is no end */
    if (!watch->greets) {
        watch->state = GMS_WATCH_UP;
        return false;
    }
    struct gms_message hello = {.type = GMS_MESSAGE_HELLO, .request_id = 1, .fd_count = 1, .fds = {-1, -1, -1, -1}};
    hello.hello.role = GMS_CLIENT_CONTROL;
    hello.hello.pid = (uint32_t)getpid();
    hello.hello.launch = (struct gms_bytes){"", 0};
    hello.hello.version = (struct gms_bytes){GMS_VERSION, sizeof GMS_VERSION - 1};
    if (watch->state == GMS_WATCH_DOWN)
        watch->state = GMS_WATCH_GREETING;
    if (gms_pidfd_open(getpid(), &hello.fds[0], NULL) != GMS_OK || gms_channel_send(watch->fd, &hello, NULL) != GMS_OK)
        hung_up(watch);
    gms_fd_close(&hello.fds[0]);
    return false;
}

/* True: it is another world than the one that was UP. */
static bool welcomed(struct gms_watch *watch, uint64_t world)
{
    bool again = watch->state == GMS_WATCH_AGAIN, same = world == watch->world;
    if (again && same)
        gms_log(GMS_LOG_INFO, "the coordinators made room for somebody else; watching again");
    watch->state = GMS_WATCH_UP;
    watch->world = world;
    watch->stop_asked = false;
    return again && !same;
}

bool gms_watch_step(struct gms_watch *watch)
{
    bool replaced = false;
    if (watch->fd < 0)
        return begin(watch);
    if (!watch->greets) {
        struct pollfd end = {.fd = watch->fd, .events = POLLRDHUP};
        if (poll(&end, 1, 0) == 0)
            return false;
        gms_watch_drop(watch);
        return true;
    }
    for (;;) {
        struct gms_message message;
        gms_status status = gms_channel_receive(watch->fd, watch->buffer, &message, NULL);
        if (status == GMS_E_AGAIN)
            return replaced;
        if (status != GMS_OK)
            break;
        gms_message_close_fds(&message);
        if (message.type == GMS_MESSAGE_WELCOME) {
            replaced = welcomed(watch, message.welcome.world);
        } else if (message.type == GMS_MESSAGE_STATUS_REPLY) {
            free(watch->status);
            watch->status = strndup(message.status_reply.json.data, message.status_reply.json.length);
        }
    }
    bool was_up = watch->state == GMS_WATCH_UP;
    hung_up(watch);
    return (was_up && begin(watch)) || replaced;
}

bool gms_watch_ask_stop(struct gms_watch *watch)
{
    struct gms_message down = {.type = GMS_MESSAGE_SHUTDOWN, .request_id = 2};
    if (watch->state != GMS_WATCH_UP || gms_channel_send(watch->fd, &down, NULL) != GMS_OK)
        return false;
    watch->stop_asked = true;
    return true;
}

bool gms_watch_ask_status(struct gms_watch *watch)
{
    struct gms_message ask = {.type = GMS_MESSAGE_STATUS, .request_id = 3};
    return watch->state == GMS_WATCH_UP && gms_channel_send(watch->fd, &ask, NULL) == GMS_OK;
}
