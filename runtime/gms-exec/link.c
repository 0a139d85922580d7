/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-exec/link.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "gms/version.h"
#include "wire/channel.h"

enum { CONNECT_MS = 100 };
static const uint64_t answer_ns = 5 * GMS_NS_PER_S;
static const uint64_t backoff_first_ns = 100 * GMS_NS_PER_MS;
/* Before the rank runs somebody is waiting for us; afterwards nobody is. */
static const uint64_t backoff_starting_ns = 250 * GMS_NS_PER_MS;
static const uint64_t backoff_running_ns = GMS_NS_PER_S / 2;
/* While a restart of the coordinators may be on its way: they count on us for copies of what they hold. */
static const uint64_t backoff_soon_ns = 50 * GMS_NS_PER_MS;
static const uint64_t soon_ns = 10 * GMS_NS_PER_S;

gms_status gms_link_open(struct gms_link *link, const char *run_dir, uint32_t rank, uint32_t engine, const char *launch,
                         int own_pidfd, struct gms_error *ret_error)
{
    char path[GMS_RUN_PATH_BYTES];
    gms_status status;

    memset(link, 0, sizeof *link);
    link->fd = -1;
    link->rank = rank;
    link->engine = engine;
    link->launch = launch;
    link->own_pidfd = own_pidfd;
    link->container = -1;
    link->rank_pidfd = -1;
    link->cgroup = -1;
    link->backoff_ns = backoff_first_ns;
    link->backoff_limit_ns = backoff_starting_ns;
    status = gms_run_dir_path(run_dir, "c", (int32_t)rank, path, ret_error);
    if (status != GMS_OK) {
        return status;
    }
    memcpy(link->path, path, sizeof path);
    link->buffer = malloc(GMS_WIRE_MAX_BYTES);
    if (link->buffer == NULL) {
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a receive buffer of %d bytes", GMS_WIRE_MAX_BYTES);
    }
    return GMS_OK;
}

void gms_link_close(struct gms_link *link)
{
    gms_fd_close(&link->fd);
    free(link->environment);
    free(link->buffer);
    link->environment = NULL;
    link->buffer = NULL;
}

/* Back to DOWN; link->error says why. */
static enum gms_link_event drop(struct gms_link *link, uint64_t now_ns)
{
    bool attached = link->state == GMS_LINK_ATTACHED;
    uint64_t limit_ns;

    if (attached) {
        link->lost_ns = now_ns;
        link->backoff_ns = backoff_soon_ns / 2;
    }
    limit_ns = link->lost_ns != 0 && now_ns - link->lost_ns < soon_ns ? backoff_soon_ns : link->backoff_limit_ns;
    gms_fd_close(&link->fd);
    link->state = GMS_LINK_DOWN;
    link->deadline_ns = now_ns + link->backoff_ns;
    link->backoff_ns = link->backoff_ns * 2 < limit_ns ? link->backoff_ns * 2 : limit_ns;
    return attached ? GMS_LINK_LOST : GMS_LINK_NOTHING;
}

static gms_status send_request(struct gms_link *link, struct gms_message *message, enum gms_link_state next,
                               uint64_t now_ns)
{
    gms_status status;

    message->request_id = ++link->request_id;
    status = gms_channel_send(link->fd, message, &link->error);
    if (status == GMS_OK) {
        link->state = next;
        link->deadline_ns = now_ns + answer_ns;
        link->error.text[0] = '\0';
    }
    return status;
}

static gms_status send_hello(struct gms_link *link, uint64_t now_ns)
{
    struct gms_message message = {.type = GMS_MESSAGE_HELLO, .fd_count = 1};

    message.hello.role = GMS_CLIENT_EXEC;
    message.hello.pid = (uint32_t)getpid();
    message.hello.engine_id = link->engine;
    message.hello.rank = link->rank;
    message.hello.launch = (struct gms_bytes){link->launch, (uint32_t)strlen(link->launch)};
    message.hello.version = (struct gms_bytes){GMS_VERSION, sizeof GMS_VERSION - 1};
    message.fds[0] = link->own_pidfd;
    return send_request(link, &message, GMS_LINK_GREETING, now_ns);
}

static gms_status send_environment(struct gms_link *link, uint64_t now_ns)
{
    struct gms_message message = {.type = GMS_MESSAGE_ENVIRONMENT};

    return send_request(link, &message, GMS_LINK_FETCHING, now_ns);
}

static gms_status send_container(struct gms_link *link, uint64_t now_ns)
{
    struct gms_message message = {.type = GMS_MESSAGE_CONTAINER, .fd_count = 3};

    message.container.kind = link->kind;
    message.container.engine_id = link->engine;
    message.fds[0] = link->container;
    message.fds[1] = link->rank_pidfd;
    message.fds[2] = link->own_pidfd;
    if (link->cgroup >= 0)
        message.fds[message.fd_count++] = link->cgroup;
    return send_request(link, &message, GMS_LINK_OFFERING, now_ns);
}

static void become_ready(struct gms_link *link)
{
    link->state = GMS_LINK_READY;
    link->deadline_ns = UINT64_MAX;
}

/* Goes on from WELCOME or a known environment. */
static gms_status advance(struct gms_link *link, uint64_t now_ns)
{
    if (link->environment == NULL) {
        return send_environment(link, now_ns);
    }
    if (link->offered) {
        return send_container(link, now_ns);
    }
    become_ready(link);
    return GMS_OK;
}

void gms_link_offer(struct gms_link *link, enum gms_container_kind kind, int container, int rank_pidfd, int cgroup)
{
    link->cgroup = cgroup;
    link->offered = true;
    link->kind = kind;
    link->container = container;
    link->rank_pidfd = rank_pidfd;
    if (link->state == GMS_LINK_READY) {
        link->deadline_ns = 0; /* the next step sends it */
    }
}

void gms_link_tell_leaving(struct gms_link *link)
{
    struct gms_message message = {.type = GMS_MESSAGE_LEAVING};

    if (link->state == GMS_LINK_ATTACHED) {
        (void)gms_channel_send(link->fd, &message, NULL); /* without it the end is a fault: nothing worse */
    }
}

static gms_status welcomed(struct gms_link *link, const struct gms_message *message, uint64_t now_ns)
{
    if (message->welcome.rank != link->rank) {
        return gms_fail(&link->error, GMS_E_REFUSED,
                        "%s: the coordinator there is rank %u, wanted rank %u: is --rank or the run directory wrong?",
                        link->path, message->welcome.rank, link->rank);
    }
    if (link->world_size != 0 && link->world_size != message->welcome.world_size) {
        return gms_fail(&link->error, GMS_E_REFUSED,
                        "%s: the deployment has %u ranks now and had %u when this engine started", link->path,
                        message->welcome.world_size, link->world_size);
    }
    link->world = message->welcome.world;
    link->world_size = message->welcome.world_size;
    return advance(link, now_ns);
}

static gms_status keep_environment(struct gms_link *link, const struct gms_message *message)
{
    size_t bytes = message->environment_reply.variables.length;

    link->environment = malloc(bytes + 1); /* never NULL for an empty one */
    if (link->environment == NULL) {
        return gms_fail(&link->error, GMS_E_NO_MEMORY, "no memory for an environment of %zu bytes", bytes);
    }
    if (bytes > 0) {
        memcpy(link->environment, message->environment_reply.variables.data, bytes);
    }
    link->environment_bytes = bytes;
    link->containment = message->environment_reply.containment;
    return GMS_OK;
}

/* Would asking again later help? */
static bool is_passing(gms_status status)
{
    return status == GMS_E_AGAIN || status == GMS_E_BUSY || status == GMS_E_TIMEOUT || status == GMS_E_EXPIRED ||
           (status >= 200 && status < 300);
}

/* A REPLY in any state: the answer to CONTAINER, or a no to what was asked. */
static enum gms_link_event answered(struct gms_link *link, const struct gms_message *message, uint64_t now_ns)
{
    gms_status status = (gms_status)message->reply.status;

    if (status == GMS_OK && link->state == GMS_LINK_OFFERING) {
        link->state = GMS_LINK_ATTACHED;
        link->deadline_ns = UINT64_MAX;
        link->backoff_ns = backoff_first_ns;
        link->backoff_limit_ns = backoff_running_ns;
        return GMS_LINK_TAKEN;
    }
    if (status == GMS_OK) {
        gms_fail(&link->error, GMS_E_PROTOCOL, "%s: REPLY to a question that has another answer", link->path);
        return drop(link, now_ns);
    }
    gms_fail(&link->error, status, "%s: refused: %.*s", link->path, (int)message->reply.text.length,
             message->reply.text.length > 0 ? (const char *)message->reply.text.data : "");
    drop(link, now_ns);
    return is_passing(status) ? GMS_LINK_NOTHING : GMS_LINK_REFUSED;
}

/* One received message. The table of what is expected where: state -> type that moves it. */
static enum gms_link_event handle(struct gms_link *link, const struct gms_message *message, uint64_t now_ns)
{
    static const enum gms_message_type expected[GMS_LINK_STATE_COUNT] = {
        [GMS_LINK_GREETING] = GMS_MESSAGE_WELCOME,
        [GMS_LINK_FETCHING] = GMS_MESSAGE_ENVIRONMENT_REPLY,
        [GMS_LINK_OFFERING] = GMS_MESSAGE_REPLY,
    };
    gms_status status;

    if (message->request_id != link->request_id || link->state == GMS_LINK_ATTACHED || link->state == GMS_LINK_READY) {
        return GMS_LINK_NOTHING; /* news of the group, or late: nothing for us */
    }
    if (message->type == GMS_MESSAGE_REPLY) {
        return answered(link, message, now_ns);
    }
    if (message->type != expected[link->state]) {
        gms_fail(&link->error, GMS_E_PROTOCOL, "%s: unexpected %s", link->path, gms_message_name(message->type));
        return drop(link, now_ns);
    }
    if (message->type == GMS_MESSAGE_WELCOME) {
        status = welcomed(link, message, now_ns);
        if (status != GMS_OK) {
            drop(link, now_ns);
            return status == GMS_E_REFUSED ? GMS_LINK_REFUSED : GMS_LINK_NOTHING;
        }
        return GMS_LINK_NOTHING;
    }
    if (keep_environment(link, message) != GMS_OK) {
        return drop(link, now_ns);
    }
    become_ready(link);
    return GMS_LINK_ENVIRONMENT;
}

enum gms_link_event gms_link_step(struct gms_link *link, uint64_t now_ns)
{
    struct gms_message message;
    struct gms_error error;
    gms_status status;
    enum gms_link_event event;

    if (link->state == GMS_LINK_DOWN) {
        if (now_ns < link->deadline_ns) {
            return GMS_LINK_NOTHING;
        }
        status = gms_channel_connect(link->path, CONNECT_MS, &link->fd, &link->error);
        if (status == GMS_OK) {
            status = send_hello(link, now_ns);
        }
        if (status != GMS_OK) {
            drop(link, gms_clock_ns());
            return status == GMS_E_PERMISSION || status == GMS_E_INVALID ? GMS_LINK_REFUSED : GMS_LINK_NOTHING;
        }
        return GMS_LINK_NOTHING;
    }
    for (;;) {
        status = gms_channel_receive(link->fd, link->buffer, &message, &error);
        if (status != GMS_OK) {
            break;
        }
        if (message.type == GMS_MESSAGE_COPY && link->saved != NULL) {
            gms_saved_take(link->saved, &message);
            gms_message_close_fds(&message);
            continue;
        }
        event = handle(link, &message, now_ns);
        gms_message_close_fds(&message);
        if (event != GMS_LINK_NOTHING || link->state == GMS_LINK_DOWN) {
            return event;
        }
    }
    if (status == GMS_E_AGAIN) {
        if (link->state == GMS_LINK_READY && link->offered) {
            return send_container(link, now_ns) == GMS_OK ? GMS_LINK_NOTHING : drop(link, now_ns);
        }
        if (now_ns < link->deadline_ns) {
            return GMS_LINK_NOTHING;
        }
        gms_fail(&link->error, GMS_E_TIMEOUT, "%s: connected, but no answer within %d s", link->path,
                 (int)(answer_ns / GMS_NS_PER_S));
        return drop(link, now_ns);
    }
    link->error = error;
    event = drop(link, now_ns);
    return status == GMS_E_VERSION ? GMS_LINK_REFUSED : event;
}
