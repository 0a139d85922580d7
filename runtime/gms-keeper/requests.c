/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "core/ballot.h"
#include "gms-keeper/client.h"
#include "gms-keeper/grant.h"
#include "gms-keeper/server.h"
#include "wire/channel.h"

/* Descriptors kept free for clients that are not here yet, and for what a message brings along. */
enum { SPARE_DESCRIPTORS = 16 };

/* -------------------------------------------------------------------------------------------------- replies ---- */

static bool send_reply(const struct server_client *client, struct gms_message *reply, uint32_t request_id)
{
    struct gms_error error;
    reply->request_id = request_id;
    if (gms_channel_send(client->fd, reply, &error) == GMS_OK)
        return true;
    gms_log(GMS_LOG_INFO, "client %" PRIu64 " (process %d) is closed: %s", client->id, (int)client->pid, error.text);
    return false;
}

bool server_reply_status(struct server *server, const struct server_client *client, uint32_t request_id,
                         const struct gms_error *error)
{
    struct gms_message reply = {.type = GMS_MESSAGE_KEEPER_REPLY};
    reply.keeper_reply.status = error->status;
    reply.keeper_reply.world = worlds_newest(&server->worlds);
    reply.keeper_reply.text = (struct gms_bytes){.data = error->text, .length = (uint32_t)strlen(error->text)};
    return send_reply(client, &reply, request_id);
}

static bool reply_ok(struct server *server, const struct server_client *client, uint32_t request_id)
{
    struct gms_error none = {.status = GMS_OK};
    return server_reply_status(server, client, request_id, &none);
}

static bool reply_grant(struct server *server, struct server_client *client, uint32_t request_id,
                        const struct world_seat *seat)
{
    struct gms_message reply = {.type = GMS_MESSAGE_KEEPER_REPLY};
    uint8_t meta[GMS_KEEPER_GRANT_BYTES];
    struct gms_keeper_grant grant = {.keeper = server->incarnation, .mirror_world = seat ? seat->mirror_world : 0};

    gms_keeper_grant_encode(&grant, meta);
    reply.keeper_reply.meta = (struct gms_bytes){.data = meta, .length = sizeof(meta)};
    reply.keeper_reply.world = seat ? seat->world : worlds_newest(&server->worlds);
    reply.keeper_reply.token = seat ? seat->token : 0;
    reply.keeper_reply.number = seat ? seat->mirror_round : 0;
    if (seat) {
        client->granted = true;
        gms_log(GMS_LOG_NOTICE, "rank %u is held by world %" PRIu64 ", process %d", seat->rank, seat->world,
                (int)seat->pid);
    }
    return send_reply(client, &reply, request_id);
}

/* ------------------------------------------------------------------------------------------------- requests ---- */

static bool request_world(struct server *server, struct server_client *client, struct gms_message *message,
                          struct gms_error *error)
{
    uint64_t world = message->keeper.world;
    uint32_t rank = message->keeper.rank, size = message->keeper.world_size;
    struct world_waiter waiter = {.client = client->id,
                                  .request_id = message->request_id,
                                  .deadline_ns = gms_clock_ns() + SERVER_END_BOUND_MS * GMS_NS_PER_MS,
                                  .pidfd = -1},
                        displaced;
    struct world_seat *seat = NULL;
    uint64_t used = 0, limit = 0;
    pid_t pid;
    gms_status status;

    if (world == 0) /* only asks for the newest */
        return reply_grant(server, client, message->request_id, NULL);
    if (size == 0 || size > GMS_MAX_RANKS || rank >= size) {
        gms_fail(error, GMS_E_INVALID, "rank %u of %u ranks; 1 to %d ranks, counted from 0", rank, size, GMS_MAX_RANKS);
        return server_reply_status(server, client, message->request_id, error);
    }
    pid = message->fd_count == 1 && gms_pidfd_is(message->fds[0]) ? gms_pidfd_pid(message->fds[0]) : -2;
    /* What may later be ended must be the one that asks, and never this keeper. */
    if (pid == -2 || pid == getpid() || (pid > 0 && client->pid > 0 && pid != client->pid)) {
        gms_fail(error, GMS_E_INVALID, "a world token needs the pidfd of the process that asks for it");
        return server_reply_status(server, client, message->request_id, error);
    }
    gms_fd_usage(&used, &limit);
    if (used + SPARE_DESCRIPTORS > limit) {
        gms_fail(error, GMS_E_DESCRIPTORS, "the keeper has %" PRIu64 " descriptors open, limit %" PRIu64, used, limit);
        return server_reply_status(server, client, message->request_id, error);
    }
    status = worlds_ask(&server->worlds, world, rank, message->fds[0], pid, &waiter, &seat, &displaced, error);
    if (status == GMS_OK || status == GMS_E_AGAIN)
        message->fd_count = 0; /* the seat owns it */
    if (displaced.client != 0) {
        struct server_client *former = server_find_client(server, displaced.client);
        struct gms_error overtaken;
        gms_fail(&overtaken, GMS_E_FOREIGN_WORLD, "rank %u: world %" PRIu64 " was overtaken by world %" PRIu64, rank,
                 displaced.world, world);
        if (former) {
            former->waits = false;
            if (!server_reply_status(server, former, displaced.request_id, &overtaken) && former != client)
                server_close_client(server, former);
        }
    }
    if (status == GMS_E_AGAIN) {
        gms_log(GMS_LOG_NOTICE, "rank %u: world %" PRIu64 " ends process %d of world %" PRIu64, rank, world,
                (int)seat->pid, seat->world);
        client->waits = true;
        return true;
    }
    if (status != GMS_OK) {
        gms_log(GMS_LOG_WARNING, "%s", error->text);
        return server_reply_status(server, client, message->request_id, error);
    }
    return reply_grant(server, client, message->request_id, seat);
}

void server_settle(struct server *server, struct world_seat *seat, uint64_t now_ns)
{
    struct world_waiter waiter;
    struct server_client *client;
    bool granted, taken;

    if (!worlds_settle(seat, now_ns, &waiter, &granted))
        return;
    client = server_find_client(server, waiter.client);
    if (!client)
        return;
    client->waits = false;
    if (granted) {
        taken = reply_grant(server, client, waiter.request_id, seat);
    } else {
        struct gms_error error;
        gms_fail(&error, GMS_E_TIMEOUT,
                 "rank %u: process %d of world %" PRIu64 " got SIGKILL and has not ended within %d ms; is it in an "
                 "uninterruptible wait? Ask again",
                 seat->rank, (int)seat->pid, seat->world, SERVER_END_BOUND_MS);
        gms_log(GMS_LOG_WARNING, "%s", error.text);
        taken = server_reply_status(server, client, waiter.request_id, &error);
    }
    if (!taken)
        server_close_client(server, client);
}

static gms_status put(struct server *server, struct gms_message *message, struct gms_error *error)
{
    struct gms_bytes name = message->keeper.name, meta = message->keeper.meta;
    uint64_t used = 0, limit = 0, spare = SPARE_DESCRIPTORS + server->client_limit - server->client_count;
    gms_status status = shelf_check_name(name, error);

    if (status != GMS_OK)
        return status;
    if (meta.length > GMS_KEEPER_META_BYTES)
        return gms_fail(error, GMS_E_INVALID, "%u bytes of meta, limit %d", meta.length, GMS_KEEPER_META_BYTES);
    if (message->fd_count != 1)
        return gms_fail(error, GMS_E_INVALID, "KEEPER_PUT brought %u descriptors, not 1", message->fd_count);
    gms_fd_usage(&used, &limit);
    if (used + spare > limit && !shelf_find(&server->shelf, name))
        return gms_fail(error, GMS_E_DESCRIPTORS,
                        "the keeper has %" PRIu64 " descriptors open, limit %" PRIu64 " of which %" PRIu64
                        " are for clients; raise its limit (ulimit -n)",
                        used, limit, spare);
    status = shelf_put(&server->shelf, name, message->fds[0], meta, error);
    if (status == GMS_OK)
        message->fd_count = 0;
    return status;
}

static bool reply_item(struct server *server, struct server_client *client, const struct gms_message *message,
                       struct gms_error *error)
{
    struct gms_bytes name = message->keeper.name;
    struct gms_message reply = {.type = GMS_MESSAGE_KEEPER_REPLY};
    const struct shelf_item *item;

    if (shelf_check_name(name, error) != GMS_OK)
        return server_reply_status(server, client, message->request_id, error);
    item = shelf_find(&server->shelf, name);
    if (!item) {
        gms_fail(error, GMS_E_NOT_FOUND, "nothing is kept as \"%.*s\"", (int)name.length, (const char *)name.data);
        return server_reply_status(server, client, message->request_id, error);
    }
    reply.keeper_reply.meta = (struct gms_bytes){.data = item->meta, .length = item->meta_bytes};
    reply.fds[0] = item->fd;
    reply.fd_count = 1;
    return send_reply(client, &reply, message->request_id);
}

static bool reply_list(struct server *server, struct server_client *client, const struct gms_message *message)
{
    struct gms_message reply = {.type = GMS_MESSAGE_KEEPER_REPLY};
    bool more = false;
    uint32_t bytes = shelf_list(&server->shelf, message->keeper.name, message->keeper.meta, (char *)server->names,
                                sizeof(server->names), &more);

    reply.keeper_reply.names = (struct gms_bytes){.data = server->names, .length = bytes};
    reply.keeper_reply.number = more;
    return send_reply(client, &reply, message->request_id);
}

static void mirror(struct world_seat *seat, uint64_t round)
{
    if (seat->mirror_world != seat->world || round > seat->mirror_round) {
        seat->mirror_world = seat->world;
        seat->mirror_round = round;
    }
}

/* Requests that need the token of (world, rank). */
static bool request_held(struct server *server, struct server_client *client, struct gms_message *message,
                         struct gms_error *error)
{
    struct world_seat *seat =
        worlds_holder(&server->worlds, message->keeper.world, message->keeper.rank, message->keeper.token);
    gms_status status = GMS_OK;

    if (!seat) {
        gms_fail(error, GMS_E_STALE, "%s: world %" PRIu64 " does not hold rank %u", gms_message_name(message->type),
                 message->keeper.world, message->keeper.rank);
        return server_reply_status(server, client, message->request_id, error);
    }
    client->granted = true;
    if (message->type == GMS_MESSAGE_KEEPER_GET)
        return reply_item(server, client, message, error);
    if (message->type == GMS_MESSAGE_KEEPER_LIST)
        return reply_list(server, client, message);
    if (message->type == GMS_MESSAGE_KEEPER_PUT)
        status = put(server, message, error);
    else if (message->type == GMS_MESSAGE_KEEPER_DROP && !shelf_drop(&server->shelf, message->keeper.name))
        status = gms_fail(error, GMS_E_NOT_FOUND, "nothing is kept under that name");
    else if (message->type == GMS_MESSAGE_KEEPER_MIRROR)
        mirror(seat, message->keeper.number);
    return status == GMS_OK ? reply_ok(server, client, message->request_id)
                            : server_reply_status(server, client, message->request_id, error);
}

/* What gms-exec saved when keeper and coordinators ended together. Nothing of it outranks what is here already, and
 * once the rank's coordinator is whole again it knows better than any copy. */
static bool request_refill(struct server *server, struct server_client *client, struct gms_message *message,
                           struct gms_error *error)
{
    struct gms_bytes name = message->keeper.name;
    gms_status status = shelf_check_name(name, error);

    if (status == GMS_OK && worlds_settled(&server->worlds, message->keeper.rank))
        status = gms_fail(error, GMS_E_STALE, "rank %u has all it needs; the copy of \"%.*s\" is not wanted",
                          message->keeper.rank, (int)name.length, (const char *)name.data);
    if (status == GMS_OK && !shelf_find(&server->shelf, name))
        status = put(server, message, error);
    return status == GMS_OK ? reply_ok(server, client, message->request_id)
                            : server_reply_status(server, client, message->request_id, error);
}

/* gms-keeper --stop; `incarnation` 1: whatever it holds. */
static bool request_stop(struct server *server, struct server_client *client, const struct gms_message *message,
                         struct gms_error *error)
{
    if (server->shelf.count > 0 && message->plain.incarnation != 1) {
        gms_fail(
            error, GMS_E_REFUSED,
            "it holds %zu descriptors of memory that may be gone with it; end the deployment first, or add --force",
            server->shelf.count);
        return server_reply_status(server, client, message->request_id, error);
    }
    gms_log(GMS_LOG_NOTICE, "process %d asked for the end; %zu descriptors are given up", (int)client->pid,
            server->shelf.count);
    server->stop = true;
    return reply_ok(server, client, message->request_id);
}

static bool reply_status(struct server *server, struct server_client *client, const struct gms_message *message)
{
    struct gms_message reply = {.type = GMS_MESSAGE_STATUS_REPLY};
    char *json = (char *)server->names;
    size_t room = sizeof(server->names), at = 0;
    uint64_t used = 0, limit = 0;

    gms_fd_usage(&used, &limit);
    at +=
        (size_t)snprintf(json, room,
                         "{\"version\":1,\"pid\":%d,\"keeper\":\"%016" PRIx64 "\",\"held\":%zu,\"descriptors\":%" PRIu64
                         ",\"descriptor_limit\":%" PRIu64 ",\"clients\":%u,\"client_limit\":%u,\"ranks\":[",
                         (int)getpid(), server->incarnation, server->shelf.count, used, limit, server->client_count,
                         server->client_limit);
    for (size_t i = 0; i < server->worlds.count && at + 256 < room; i++) {
        const struct world_seat *seat = &server->worlds.seats[i];
        at += (size_t)snprintf(json + at, room - at,
                               "%s{\"rank\":%u,\"world\":%" PRIu64 ",\"held\":%s,\"pid\":%d,\"mirror_world\":%" PRIu64
                               ",\"mirror_round\":%" PRIu64 "}",
                               i ? "," : "", seat->rank, seat->world, seat->token ? "true" : "false", (int)seat->pid,
                               seat->mirror_world, seat->mirror_round);
    }
    at += (size_t)snprintf(json + at, room - at, "]}");
    reply.status_reply.json = (struct gms_bytes){.data = json, .length = (uint32_t)at};
    return send_reply(client, &reply, message->request_id);
}

bool server_request(struct server *server, struct server_client *client, struct gms_message *message)
{
    struct gms_error error = {.status = GMS_OK};
    bool keep;

    switch (message->type) {
    case GMS_MESSAGE_KEEPER_WORLD:
        keep = request_world(server, client, message, &error);
        break;
    case GMS_MESSAGE_KEEPER_PUT:
    case GMS_MESSAGE_KEEPER_GET:
    case GMS_MESSAGE_KEEPER_LIST:
    case GMS_MESSAGE_KEEPER_DROP:
    case GMS_MESSAGE_KEEPER_MIRROR:
        keep = request_held(server, client, message, &error);
        break;
    case GMS_MESSAGE_KEEPER_REFILL:
        keep = request_refill(server, client, message, &error);
        break;
    case GMS_MESSAGE_SHUTDOWN:
        keep = request_stop(server, client, message, &error);
        break;
    case GMS_MESSAGE_STATUS:
        keep = reply_status(server, client, message);
        break;
    case GMS_MESSAGE_HELLO:
    case GMS_MESSAGE_WELCOME:
    case GMS_MESSAGE_REPLY:
    case GMS_MESSAGE_ENVIRONMENT:
    case GMS_MESSAGE_ENVIRONMENT_REPLY:
    case GMS_MESSAGE_CONTAINER:
    case GMS_MESSAGE_PROPOSE:
    case GMS_MESSAGE_PARKED:
    case GMS_MESSAGE_READY:
    case GMS_MESSAGE_LEAVING:
    case GMS_MESSAGE_STICKY:
    case GMS_MESSAGE_PROMOTE:
    case GMS_MESSAGE_SERVING:
    case GMS_MESSAGE_CONDEMNED:
    case GMS_MESSAGE_TRANSFER_DISPATCH:
    case GMS_MESSAGE_TRANSFER_END:
    case GMS_MESSAGE_TRANSFER_WAIT:
    case GMS_MESSAGE_TRANSFER_RESULT:
    case GMS_MESSAGE_MEMORY:
    case GMS_MESSAGE_PARK:
    case GMS_MESSAGE_WAKE:
    case GMS_MESSAGE_ASKED:
    case GMS_MESSAGE_TRANSFER_STALLED:
    case GMS_MESSAGE_STATUS_REPLY:
    case GMS_MESSAGE_TAKEOVER:
    case GMS_MESSAGE_RECLAIMED:
    case GMS_MESSAGE_COPY:
    case GMS_MESSAGE_WATCH:
    case GMS_MESSAGE_SERVES:
    case GMS_MESSAGE_KEEPER_REPLY:
    default:
        gms_fail(&error, GMS_E_PROTOCOL, "%s is no request to a keeper", gms_message_name(message->type));
        server_reply_status(server, client, message->request_id, &error);
        keep = false;
        break;
    }
    gms_message_close_fds(message);
    return keep;
}
