/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/follow.h"

#include <event2/event.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/run_dir.h"
#include "gms/version.h"
#include "wire/channel.h"

enum { CONNECT_MS = 20, RETRY_LEAST_MS = 20, RETRY_MOST_MS = 500 };

struct relay_follow {
    struct event_base *base;
    char socket_path[GMS_RUN_PATH_BYTES], file_path[GMS_RUN_PATH_BYTES];
    void (*news)(void *context);
    void *context;
    int fd;
    struct event *readable, *retry;
    int retry_ms;
    bool told; /* a coordinator has spoken: the file is older */
    char complaint[GMS_ERROR_TEXT_BYTES];
    struct relay_serving serving;
    uint8_t buffer[GMS_WIRE_MAX_BYTES];
};

/* Each reason once, until it changes. */
static void complain(struct relay_follow *follow, const char *text)
{
    if (strcmp(follow->complaint, text) == 0)
        return;
    snprintf(follow->complaint, sizeof follow->complaint, "%s", text);
    gms_log(GMS_LOG_NOTICE, "no coordinator to follow: %s", text);
}

static void take(struct relay_follow *follow, int32_t engine, uint64_t incarnation, uint64_t epoch,
                 const char *endpoint)
{
    struct relay_serving *serving = &follow->serving;
    bool nobody = engine < 0 || endpoint[0] == '\0';
    if (nobody ? serving->engine < 0 && serving->epoch == epoch
               : serving->engine == engine && serving->incarnation == incarnation && serving->epoch == epoch &&
                     strcmp(serving->endpoint, endpoint) == 0)
        return;
    serving->epoch = epoch;
    serving->engine = nobody ? -1 : engine;
    if (!nobody) {
        /* The incarnation stays known while nobody serves: should it come back, it is still the same one. */
        if (serving->incarnation != incarnation || serving->serial == 0)
            serving->serial++;
        serving->incarnation = incarnation;
        snprintf(serving->endpoint, sizeof serving->endpoint, "%s", endpoint);
        gms_log(GMS_LOG_NOTICE, "engine %d incarnation %llu serves under epoch %llu at %s", engine,
                (unsigned long long)incarnation, (unsigned long long)epoch, endpoint);
    } else {
        gms_log(GMS_LOG_NOTICE, "nobody serves; the epoch is %llu", (unsigned long long)epoch);
    }
    follow->news(follow->context);
}

static void read_file(struct relay_follow *follow)
{
    json_t *root = json_load_file(follow->file_path, 0, NULL);
    const char *endpoint = json_string_value(json_object_get(root, "endpoint"));
    json_int_t engine = json_integer_value(json_object_get(root, "engine"));
    json_int_t incarnation = json_integer_value(json_object_get(root, "incarnation"));
    json_int_t epoch = json_integer_value(json_object_get(root, "epoch"));
    if (endpoint != NULL && strlen(endpoint) < sizeof follow->serving.endpoint && incarnation > 0 && epoch >= 0 &&
        engine >= 0 && engine <= INT32_MAX)
        take(follow, (int32_t)engine, (uint64_t)incarnation, (uint64_t)epoch, endpoint);
    json_decref(root);
}

static void hang_up(struct relay_follow *follow, const char *why)
{
    struct timeval pause = {.tv_sec = follow->retry_ms / 1000, .tv_usec = follow->retry_ms % 1000 * 1000};
    complain(follow, why);
    if (follow->readable != NULL)
        event_free(follow->readable);
    follow->readable = NULL;
    gms_fd_close(&follow->fd);
    if (!follow->told)
        read_file(follow);
    event_add(follow->retry, &pause);
    follow->retry_ms = follow->retry_ms * 2 < RETRY_MOST_MS ? follow->retry_ms * 2 : RETRY_MOST_MS;
}

static void handle(struct relay_follow *follow, const struct gms_message *message)
{
    char text[GMS_ERROR_TEXT_BYTES], endpoint[sizeof follow->serving.endpoint];
    if (message->type == GMS_MESSAGE_SERVES) {
        size_t length = message->serves.endpoint.length;
        if (length >= sizeof endpoint) {
            hang_up(follow, "its endpoint is too long");
            return;
        }
        if (length > 0)
            memcpy(endpoint, message->serves.endpoint.data, length);
        endpoint[length] = '\0';
        if (follow->complaint[0] != '\0')
            gms_log(GMS_LOG_NOTICE, "a coordinator is followed again");
        follow->complaint[0] = '\0';
        follow->retry_ms = RETRY_LEAST_MS;
        follow->told = true;
        take(follow, message->serves.engine, message->serves.incarnation, message->serves.epoch, endpoint);
    } else if (message->type == GMS_MESSAGE_REPLY && message->reply.status != GMS_OK) {
        snprintf(text, sizeof text, "%.*s", (int)message->reply.text.length, (const char *)message->reply.text.data);
        hang_up(follow, text);
    }
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    struct relay_follow *follow = context;
    struct gms_message message;
    struct gms_error error;
    (void)what;
    while (follow->fd == fd) {
        gms_status status = gms_channel_receive(fd, follow->buffer, &message, &error);
        if (status == GMS_E_AGAIN)
            return;
        if (status != GMS_OK) {
            hang_up(follow, error.text);
            return;
        }
        gms_message_close_fds(&message);
        handle(follow, &message);
    }
}

static gms_status subscribe(struct relay_follow *follow, struct gms_error *ret_error)
{
    struct gms_message hello = {.type = GMS_MESSAGE_HELLO, .request_id = 1, .fd_count = 1};
    const struct gms_message watch = {.type = GMS_MESSAGE_WATCH, .request_id = 2};
    int own = -1;
    gms_status status = gms_channel_connect(follow->socket_path, CONNECT_MS, &follow->fd, ret_error);
    if (status == GMS_OK)
        status = gms_pidfd_open(getpid(), &own, ret_error);
    hello.hello.role = GMS_CLIENT_CONTROL;
    hello.hello.pid = (uint32_t)getpid();
    hello.hello.launch = (struct gms_bytes){"", 0};
    hello.hello.version = (struct gms_bytes){GMS_VERSION, sizeof GMS_VERSION - 1};
    hello.fds[0] = own;
    if (status == GMS_OK)
        status = gms_channel_send(follow->fd, &hello, ret_error);
    if (status == GMS_OK)
        status = gms_channel_send(follow->fd, &watch, ret_error);
    gms_fd_close(&own);
    if (status == GMS_OK) {
        follow->readable = event_new(follow->base, follow->fd, EV_READ | EV_PERSIST, on_readable, follow);
        if (follow->readable == NULL || event_add(follow->readable, NULL) != 0)
            status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory");
    }
    return status;
}

static void on_retry(evutil_socket_t fd, short what, void *context)
{
    struct relay_follow *follow = context;
    struct gms_error error;
    (void)fd;
    (void)what;
    if (subscribe(follow, &error) != GMS_OK)
        hang_up(follow, error.text);
}

gms_status relay_follow_open(struct event_base *base, const char *run_dir, void (*news)(void *context), void *context,
                             struct relay_follow **ret_follow, struct gms_error *ret_error)
{
    struct timeval now = {0};
    struct relay_follow *follow = calloc(1, sizeof *follow);
    if (follow == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to follow coordinators");
    follow->base = base;
    follow->news = news;
    follow->context = context;
    follow->fd = -1;
    follow->retry_ms = RETRY_LEAST_MS;
    follow->serving.engine = -1;
    gms_status status = gms_run_dir_path(run_dir, "c", 0, follow->socket_path, ret_error);
    if (status == GMS_OK)
        status = gms_run_dir_path(run_dir, "serving", -1, follow->file_path, ret_error);
    follow->retry = event_new(base, -1, 0, on_retry, follow);
    if (status == GMS_OK && (follow->retry == NULL || event_add(follow->retry, &now) != 0))
        status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to follow coordinators");
    if (status != GMS_OK) {
        relay_follow_close(follow);
        return status;
    }
    *ret_follow = follow;
    return GMS_OK;
}

void relay_follow_close(struct relay_follow *follow)
{
    if (follow == NULL)
        return;
    if (follow->readable != NULL)
        event_free(follow->readable);
    if (follow->retry != NULL)
        event_free(follow->retry);
    gms_fd_close(&follow->fd);
    free(follow);
}

const struct relay_serving *relay_follow_look(const struct relay_follow *follow)
{
    return &follow->serving;
}

bool relay_follow_connected(const struct relay_follow *follow)
{
    return follow->fd >= 0 && follow->told;
}
