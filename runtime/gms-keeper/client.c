/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-keeper/client.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "gms-keeper/grant.h"
#include "wire/channel.h"

enum { CALL_TIMEOUT_MS = 2000 };

static struct gms_bytes bytes_of(const void *data, uint32_t length)
{
    return (struct gms_bytes){.data = data, .length = length};
}

static gms_status connect_to_keeper(const char *run_dir, int *ret_fd, struct gms_error *ret_error)
{
    char path[GMS_RUN_PATH_BYTES];
    struct gms_error error;
    gms_status status = gms_run_dir_path(run_dir, "keeper", -1, path, ret_error);

    if (status != GMS_OK)
        return status;
    status = gms_channel_connect(path, CALL_TIMEOUT_MS, ret_fd, &error);
    if (status == GMS_E_NOT_FOUND || status == GMS_E_DISCONNECTED)
        return gms_fail(ret_error, GMS_E_DISCONNECTED,
                        "no keeper serves %s; start one on this node: gms-keeper --run-dir %s", run_dir, run_dir);
    if (status != GMS_OK)
        return gms_fail(ret_error, status, "keeper: %s", error.text);
    return GMS_OK;
}

/* Sends one request and waits for its reply; replies to requests that were given up are dropped. After OK *ret_reply
 * borrows from `buffer`, and its descriptors are the caller's. */
static gms_status ask(struct gms_keeper_client *client, struct gms_message *request, void *buffer,
                      struct gms_message *ret_reply, struct gms_error *ret_error)
{
    uint64_t deadline_ns = gms_clock_ns() + CALL_TIMEOUT_MS * GMS_NS_PER_MS;
    struct gms_message reply;
    gms_status status;

    request->request_id = ++client->request_id;
    if (request->request_id == 0) /* 0 names messages that answer nothing */
        request->request_id = ++client->request_id;
    status = gms_channel_send_until(client->fd, request, deadline_ns, ret_error);
    while (status == GMS_OK) {
        status = gms_channel_receive_until(client->fd, buffer, deadline_ns, &reply, ret_error);
        if (status != GMS_OK)
            break;
        if (reply.type == GMS_MESSAGE_KEEPER_REPLY &&
            (reply.request_id == request->request_id || reply.request_id == 0))
            break;
        gms_message_close_fds(&reply);
    }
    if (status != GMS_OK)
        return status;
    if (reply.keeper_reply.status != GMS_OK) {
        gms_message_close_fds(&reply);
        return gms_fail(ret_error, (gms_status)reply.keeper_reply.status, "keeper: %.*s",
                        (int)reply.keeper_reply.text.length, (const char *)reply.keeper_reply.text.data);
    }
    *ret_reply = reply;
    return GMS_OK;
}

static void *make_buffer(struct gms_error *ret_error)
{
    void *buffer = malloc(GMS_WIRE_MAX_BYTES);
    if (!buffer)
        gms_fail(ret_error, GMS_E_NO_MEMORY, "keeper: no memory for %d bytes", GMS_WIRE_MAX_BYTES);
    return buffer;
}

static struct gms_message make_request(const struct gms_keeper_client *client, enum gms_message_type type,
                                       const char *name)
{
    struct gms_message request = {.type = type};
    request.keeper.world = client->world;
    request.keeper.token = client->token;
    request.keeper.rank = client->rank;
    request.keeper.name = bytes_of(name, (uint32_t)strlen(name));
    return request;
}

static gms_status check_open(const struct gms_keeper_client *client, const char *name, struct gms_error *ret_error)
{
    size_t length = strnlen(name, GMS_KEEPER_NAME_BYTES);
    if (client->fd < 0)
        return gms_fail(ret_error, GMS_E_DISCONNECTED, "not connected to a keeper");
    if (length == GMS_KEEPER_NAME_BYTES)
        return gms_fail(ret_error, GMS_E_INVALID, "keeper: name \"%.60s...\" is longer than %d bytes", name,
                        GMS_KEEPER_NAME_BYTES - 1);
    return GMS_OK;
}

/* A request whose reply says nothing but its status. */
static gms_status tell(struct gms_keeper_client *client, struct gms_message *request, struct gms_error *ret_error)
{
    void *buffer = make_buffer(ret_error);
    struct gms_message reply;
    gms_status status;

    if (!buffer)
        return GMS_E_NO_MEMORY;
    status = ask(client, request, buffer, &reply, ret_error);
    if (status == GMS_OK)
        gms_message_close_fds(&reply);
    free(buffer);
    return status;
}

/* ------------------------------------------------------------------------------------------------- worlds ------ */

/* KEEPER_WORLD and what its reply means. */
static gms_status take_world(struct gms_keeper_client *client, uint64_t world, uint32_t rank, uint32_t world_size,
                             int pidfd, struct gms_error *ret_error)
{
    struct gms_message request = make_request(client, GMS_MESSAGE_KEEPER_WORLD, ""), reply;
    struct gms_keeper_grant grant;
    void *buffer = make_buffer(ret_error);
    gms_status status;

    if (!buffer)
        return GMS_E_NO_MEMORY;
    request.keeper.world = world;
    request.keeper.rank = rank;
    request.keeper.world_size = world_size;
    if (pidfd >= 0) {
        request.fds[0] = pidfd;
        request.fd_count = 1;
    }
    status = ask(client, &request, buffer, &reply, ret_error);
    if (status == GMS_OK) {
        if (gms_keeper_grant_decode(reply.keeper_reply.meta, &grant)) {
            client->world = reply.keeper_reply.world;
            client->token = reply.keeper_reply.token;
            client->rank = rank;
            client->keeper = grant.keeper;
            client->mirror_world = grant.mirror_world;
            client->mirror_round = reply.keeper_reply.number;
        } else {
            status = gms_fail(ret_error, GMS_E_PROTOCOL, "keeper: its answer has %u bytes of grant, not %d",
                              reply.keeper_reply.meta.length, GMS_KEEPER_GRANT_BYTES);
        }
        gms_message_close_fds(&reply);
    }
    free(buffer);
    return status;
}

gms_status gms_keeper_connect(const char *run_dir, uint64_t world, uint32_t rank, uint32_t world_size,
                              struct gms_keeper_client *ret_client, struct gms_error *ret_error)
{
    struct gms_keeper_client client = {.fd = -1};
    int pidfd = -1;
    gms_status status;

    if (world == 0)
        return gms_fail(ret_error, GMS_E_INVALID, "keeper: world 0 does not exist");
    status = gms_pidfd_open(getpid(), &pidfd, ret_error);
    if (status == GMS_OK)
        status = connect_to_keeper(run_dir, &client.fd, ret_error);
    if (status == GMS_OK)
        status = take_world(&client, world, rank, world_size, pidfd, ret_error);
    gms_fd_close(&pidfd);
    if (status != GMS_OK) {
        gms_fd_close(&client.fd);
        return status;
    }
    *ret_client = client;
    return GMS_OK;
}

gms_status gms_keeper_newest_world(const char *run_dir, uint64_t *ret_world, struct gms_error *ret_error)
{
    struct gms_keeper_client client = {.fd = -1};
    gms_status status = connect_to_keeper(run_dir, &client.fd, ret_error);

    if (status == GMS_OK)
        status = take_world(&client, 0, 0, 0, -1, ret_error);
    if (status == GMS_OK)
        *ret_world = client.world;
    gms_fd_close(&client.fd);
    return status;
}

void gms_keeper_disconnect(struct gms_keeper_client *client)
{
    gms_fd_close(&client->fd);
    client->token = 0;
}

/* ------------------------------------------------------------------------------------------------ holdings ----- */

gms_status gms_keeper_put(struct gms_keeper_client *client, const char *name, int fd, const void *meta,
                          uint32_t meta_bytes, struct gms_error *ret_error)
{
    struct gms_message request;
    gms_status status = check_open(client, name, ret_error);

    if (status != GMS_OK)
        return status;
    if (meta_bytes > GMS_KEEPER_META_BYTES)
        return gms_fail(ret_error, GMS_E_INVALID, "keeper: \"%s\" with %u bytes of meta, limit %d", name, meta_bytes,
                        GMS_KEEPER_META_BYTES);
    request = make_request(client, GMS_MESSAGE_KEEPER_PUT, name);
    request.keeper.meta = bytes_of(meta, meta_bytes);
    request.fds[0] = fd;
    request.fd_count = 1;
    return tell(client, &request, ret_error);
}

gms_status gms_keeper_get(struct gms_keeper_client *client, const char *name, int *ret_fd, void *ret_meta,
                          uint32_t *inout_meta_bytes, struct gms_error *ret_error)
{
    struct gms_message request, reply;
    gms_status status = check_open(client, name, ret_error);
    uint32_t room = inout_meta_bytes ? *inout_meta_bytes : 0;
    void *buffer;

    if (status != GMS_OK)
        return status;
    buffer = make_buffer(ret_error);
    if (!buffer)
        return GMS_E_NO_MEMORY;
    request = make_request(client, GMS_MESSAGE_KEEPER_GET, name);
    status = ask(client, &request, buffer, &reply, ret_error);
    if (status == GMS_OK) {
        struct gms_bytes meta = reply.keeper_reply.meta;
        if (reply.fd_count != 1) {
            status = gms_fail(ret_error, GMS_E_PROTOCOL, "keeper: \"%s\" came with %u descriptors, not 1", name,
                              reply.fd_count);
        } else if (inout_meta_bytes && meta.length > room) {
            status = gms_fail(ret_error, GMS_E_NO_CAPACITY, "keeper: \"%s\" has %u bytes of meta, room for %u", name,
                              meta.length, room);
        } else {
            if (inout_meta_bytes) {
                if (meta.length)
                    memcpy(ret_meta, meta.data, meta.length);
                *inout_meta_bytes = meta.length;
            }
            *ret_fd = reply.fds[0];
            reply.fd_count = 0;
        }
        gms_message_close_fds(&reply);
    }
    free(buffer);
    return status;
}

gms_status gms_keeper_drop(struct gms_keeper_client *client, const char *name, struct gms_error *ret_error)
{
    gms_status status = check_open(client, name, ret_error);
    if (status != GMS_OK)
        return status;
    struct gms_message request = make_request(client, GMS_MESSAGE_KEEPER_DROP, name);
    return tell(client, &request, ret_error);
}

gms_status gms_keeper_mirror(struct gms_keeper_client *client, uint64_t round, struct gms_error *ret_error)
{
    gms_status status = check_open(client, "", ret_error);
    if (status != GMS_OK)
        return status;
    struct gms_message request = make_request(client, GMS_MESSAGE_KEEPER_MIRROR, "");
    request.keeper.number = round;
    return tell(client, &request, ret_error);
}

gms_status gms_keeper_list(struct gms_keeper_client *client, const char *prefix, char *ret_names, uint32_t capacity,
                           uint32_t *ret_bytes, struct gms_error *ret_error)
{
    char after[GMS_KEEPER_NAME_BYTES] = "";
    uint32_t used = 0;
    bool more = true;
    void *buffer;
    gms_status status = check_open(client, prefix, ret_error);

    if (status != GMS_OK)
        return status;
    buffer = make_buffer(ret_error);
    if (!buffer)
        return GMS_E_NO_MEMORY;
    while (status == GMS_OK && more) {
        /* A page at a time; each starts after the last name of the one before. */
        struct gms_message request = make_request(client, GMS_MESSAGE_KEEPER_LIST, prefix), reply;
        request.keeper.meta = bytes_of(after, (uint32_t)strlen(after));
        status = ask(client, &request, buffer, &reply, ret_error);
        if (status != GMS_OK)
            break;
        struct gms_bytes names = reply.keeper_reply.names;
        const char *data = names.data;
        gms_message_close_fds(&reply);
        more = reply.keeper_reply.number != 0;
        if (names.length && data[names.length - 1] != '\0') {
            status = gms_fail(ret_error, GMS_E_PROTOCOL, "keeper: a list that ends within a name");
        } else if (names.length > capacity - used) {
            status = gms_fail(ret_error, GMS_E_NO_CAPACITY,
                              "keeper: the names that begin with \"%s\" need more than %u bytes", prefix, capacity);
        } else if (names.length) {
            const char *last = data;
            memcpy(ret_names + used, data, names.length);
            used += names.length;
            for (const char *name = data; name < data + names.length; name += strlen(name) + 1)
                last = name;
            if (strlen(last) >= sizeof(after) || strcmp(last, after) <= 0)
                status = gms_fail(ret_error, GMS_E_PROTOCOL, "keeper: a list out of order");
            else
                memcpy(after, last, strlen(last) + 1);
        } else {
            more = false;
        }
    }
    free(buffer);
    if (status == GMS_OK)
        *ret_bytes = used;
    return status;
}
