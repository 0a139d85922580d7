/* SPDX-License-Identifier: Apache-2.0 */
#include "sessions/sessions_state.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/run_dir.h"
#include "wire/channel.h"

/* ----------------------------------------------------------------------------------------------- containers --- */

void gms_container_close(struct gms_container *container)
{
    gms_fd_close(&container->guardian_fd);
    gms_fd_close(&container->engine_fd);
    gms_fd_close(&container->exec_fd);
    gms_fd_close(&container->cgroup_fd);
    container->kind = 0;
}

static int duplicate(int fd)
{
    return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

gms_status gms_container_copy(const struct gms_container *container, struct gms_container *ret_copy,
                              struct gms_error *ret_error)
{
    *ret_copy = (struct gms_container){.kind = container->kind,
                                       .guardian_fd = duplicate(container->guardian_fd),
                                       .engine_fd = duplicate(container->engine_fd),
                                       .exec_fd = duplicate(container->exec_fd),
                                       .cgroup_fd = duplicate(container->cgroup_fd)};
    if ((container->guardian_fd >= 0) == (ret_copy->guardian_fd >= 0) &&
        (container->engine_fd >= 0) == (ret_copy->engine_fd >= 0) &&
        (container->exec_fd >= 0) == (ret_copy->exec_fd >= 0) &&
        (container->cgroup_fd >= 0) == (ret_copy->cgroup_fd >= 0))
        return GMS_OK;
    gms_status status =
        gms_fail(ret_error, GMS_E_DESCRIPTORS, "no descriptor left for a cohort's container: %s", strerror(errno));
    gms_container_close(ret_copy);
    return status;
}

gms_status gms_sessions_offer_container(struct gms_sessions *sessions, const struct gms_client *exec,
                                        struct gms_container *container, struct gms_error *ret_error)
{
    const struct gms_client *engine = gms_sessions_engine(sessions, exec->engine_id);
    struct gms_offer *offer = &sessions->offers[exec->engine_id];
    if (!gms_pidfd_is(container->guardian_fd) || !gms_pidfd_is(container->engine_fd) ||
        (container->exec_fd >= 0 && !gms_pidfd_is(container->exec_fd)))
        return gms_fail(ret_error, GMS_E_PROTOCOL, "CONTAINER's descriptors are not pidfds");
    if ((container->kind == GMS_CONTAINER_CGROUP) != (container->cgroup_fd >= 0) ||
        (container->cgroup_fd >= 0 && !gms_cgroup_is(container->cgroup_fd)))
        return gms_fail(ret_error, GMS_E_PROTOCOL, "CONTAINER's last descriptor is not a control group's directory");
    if (container->cgroup_fd >= 0 && gms_cgroup_holds_us(container->cgroup_fd))
        return gms_fail(ret_error, GMS_E_INVALID, "CONTAINER's control group holds the coordinator itself");
    if (gms_pidfd_pid(container->guardian_fd) == getpid() || gms_pidfd_pid(container->engine_fd) == getpid())
        return gms_fail(ret_error, GMS_E_INVALID, "CONTAINER names the coordinator itself (pid %d)", (int)getpid());
    if (!gms_pidfd_in_reach(container->guardian_fd) || !gms_pidfd_in_reach(container->engine_fd))
        return gms_fail(
            ret_error, GMS_E_REFUSED,
            "rank %u's coordinator lives in a container, and engine %u outside of it, where it cannot end it from its "
            "PID namespace: start the coordinators outside of containers, or all in one PID namespace",
            sessions->options.rank, exec->engine_id);
    if (gms_pidfd_ended(container->guardian_fd))
        return gms_fail(ret_error, GMS_E_INVALID, "the guardian of CONTAINER has ended: it contains nobody");
    if (engine != NULL && engine->container.kind != 0 &&
        gms_pidfd_same(engine->container.guardian_fd, container->guardian_fd)) {
        gms_container_close(container); /* a repetition, of what its engine has taken already */
        return GMS_OK;
    }
    /* One cohort at a time: an engine that took another's container would count as retired when that one ends. */
    if (offer->container.kind != 0 && !gms_pidfd_ended(offer->container.guardian_fd) &&
        strcmp(offer->launch, exec->launch) != 0)
        return gms_fail(ret_error, GMS_E_BUSY,
                        "launch %s is starting engine %u on rank %u (guardian pid %d); %s has to wait for its end",
                        offer->launch, exec->engine_id, sessions->options.rank,
                        (int)gms_pidfd_pid(offer->container.guardian_fd), exec->launch);
    gms_container_close(&offer->container);
    snprintf(offer->launch, sizeof offer->launch, "%s", exec->launch);
    offer->container = *container;
    *container = GMS_NO_CONTAINER;
    return GMS_OK;
}

/* ---------------------------------------------------------------------------------------------- life and end -- */

void gms_call_clear(struct gms_call *call)
{
    free(call->payload);
    memset(call, 0, sizeof *call);
}

static void free_outgoing(struct gms_outgoing *outgoing)
{
    for (uint32_t i = 0; i < outgoing->fd_count; i++)
        gms_fd_close(&outgoing->fds[i]);
    free(outgoing);
}

static void free_event(struct event **event)
{
    if (*event != NULL)
        event_free(*event);
    *event = NULL;
}

static void free_client(struct gms_client *client)
{
    free_event(&client->readable);
    free_event(&client->writable);
    free_event(&client->ended);
    while (client->queue != NULL) {
        struct gms_outgoing *next = client->queue->next;
        free_outgoing(client->queue);
        client->queue = next;
    }
    gms_call_clear(&client->call);
    gms_fd_close(&client->pidfd);
    gms_container_close(&client->container);
    gms_fd_close(&client->fd);
    free(client);
}

void gms_sessions_hang_up(struct gms_client *client, const char *why)
{
    if (client->doomed)
        return;
    client->doomed = true;
    snprintf(client->doom_text, sizeof client->doom_text, "%s", why);
    event_active(client->sessions->reaper, EV_TIMEOUT, 0);
}

/* Ends all that were doomed: from the loop, so that nobody's pointer dies under his hands. */
static void on_reap(evutil_socket_t fd, short what, void *context)
{
    struct gms_sessions *sessions = context;
    (void)fd;
    (void)what;
    for (struct gms_client **link = &sessions->clients; *link != NULL;) {
        struct gms_client *client = *link;
        if (!client->doomed) {
            link = &client->next;
            continue;
        }
        *link = client->next;
        sessions->count--;
        if (client->role != 0)
            sessions->options.gone(sessions->options.context, client, client->doom_text);
        else
            gms_log(GMS_LOG_INFO, "a connection without HELLO ended: %s", client->doom_text);
        free_client(client);
        link = &sessions->clients; /* `gone` may have doomed others */
    }
}

struct gms_client *gms_sessions_find(struct gms_sessions *sessions, uint64_t id)
{
    for (struct gms_client *client = sessions->clients; client != NULL; client = client->next)
        if (client->id == id && !client->doomed)
            return client;
    return NULL;
}

struct gms_client *gms_sessions_engine(struct gms_sessions *sessions, uint32_t engine_id)
{
    for (struct gms_client *client = sessions->clients; client != NULL; client = client->next)
        if (client->role == GMS_CLIENT_ENGINE && client->engine_id == engine_id && !client->doomed)
            return client;
    return NULL;
}

struct gms_client *gms_sessions_next(struct gms_sessions *sessions, const struct gms_client *after)
{
    struct gms_client *client = after != NULL ? after->next : sessions->clients;
    while (client != NULL && client->doomed)
        client = client->next;
    return client;
}

uint32_t gms_sessions_count(const struct gms_sessions *sessions)
{
    return sessions->count;
}

/* --------------------------------------------------------------------------------------------------- sending -- */

static void enqueue(struct gms_client *client, const struct gms_message *message)
{
    struct gms_sessions *sessions = client->sessions;
    size_t bytes = 0;
    struct gms_error error;
    if (gms_message_encode(message, sessions->sending, sizeof sessions->sending, &bytes, &error) != GMS_OK) {
        gms_sessions_hang_up(client, error.text);
        return;
    }
    if (client->queue_messages >= GMS_SESSIONS_QUEUE_MESSAGES ||
        client->queue_bytes + bytes > GMS_SESSIONS_QUEUE_BYTES) {
        gms_sessions_hang_up(client, "it does not read what it is sent, and its queue is full");
        return;
    }
    struct gms_outgoing *outgoing = malloc(sizeof *outgoing + bytes);
    if (outgoing == NULL) {
        gms_sessions_hang_up(client, "no memory to queue a message for it");
        return;
    }
    *outgoing = (struct gms_outgoing){.bytes = bytes, .fd_count = message->fd_count};
    memcpy(outgoing->data, sessions->sending, bytes);
    for (uint32_t i = 0; i < message->fd_count; i++) {
        outgoing->fds[i] = duplicate(message->fds[i]);
        if (outgoing->fds[i] < 0) {
            outgoing->fd_count = i;
            free_outgoing(outgoing);
            gms_sessions_hang_up(client, "no descriptor left to queue a message for it");
            return;
        }
    }
    *client->queue_tail = outgoing;
    client->queue_tail = &outgoing->next;
    client->queue_messages++;
    client->queue_bytes += bytes;
    event_add(client->writable, NULL);
}

void gms_sessions_send(struct gms_client *client, const struct gms_message *message)
{
    if (client->doomed)
        return;
    struct gms_error error;
    gms_status status = client->queue == NULL ? gms_channel_send(client->fd, message, &error) : GMS_E_AGAIN;
    if (status == GMS_E_AGAIN)
        enqueue(client, message);
    else if (status == GMS_E_INVALID) /* it does not fit a datagram: our fault, not the client's */
        gms_sessions_answer(client, message->request_id, status, error.text);
    else if (status != GMS_OK)
        gms_sessions_hang_up(client, error.text);
}

void gms_sessions_answer(struct gms_client *client, uint32_t request_id, gms_status status, const char *text)
{
    struct gms_message message = {.type = GMS_MESSAGE_REPLY, .request_id = request_id};
    message.reply.status = status;
    message.reply.rank = (int32_t)client->sessions->options.rank;
    message.reply.incarnation = client->incarnation;
    message.reply.text = (struct gms_bytes){text, (uint32_t)strlen(text)};
    gms_sessions_send(client, &message);
}

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    struct gms_client *client = context;
    (void)fd;
    (void)what;
    while (client->queue != NULL && !client->doomed) {
        struct gms_outgoing *outgoing = client->queue;
        struct gms_message message;
        struct gms_error error;
        gms_status status = gms_message_decode(outgoing->data, outgoing->bytes, &message, &error);
        if (status == GMS_OK) {
            memcpy(message.fds, outgoing->fds, sizeof message.fds);
            message.fd_count = outgoing->fd_count;
            status = gms_channel_send(client->fd, &message, &error);
        }
        if (status == GMS_E_AGAIN) {
            event_add(client->writable, NULL);
            return;
        }
        if (status != GMS_OK) {
            gms_sessions_hang_up(client, error.text);
            return;
        }
        client->queue = outgoing->next;
        if (client->queue == NULL)
            client->queue_tail = &client->queue;
        client->queue_messages--;
        client->queue_bytes -= outgoing->bytes;
        free_outgoing(outgoing);
    }
}

/* ------------------------------------------------------------------------------------------------- receiving -- */

void gms_session_refuse(struct gms_client *client, uint32_t request_id, gms_status status, const char *text)
{
    gms_log(GMS_LOG_WARNING, "refused a client (pid %d): %s", (int)client->pid, text);
    gms_sessions_answer(client, request_id, status, text);
    gms_sessions_hang_up(client, text);
}

/* Handles what has arrived, at most `limit` messages, so that one busy client does not hold up the others. */
static void receive(struct gms_client *client, int limit)
{
    struct gms_sessions *sessions = client->sessions;
    for (int i = 0; i < limit && !client->doomed; i++) {
        struct gms_message message;
        struct gms_error error;
        gms_status status = gms_channel_receive(client->fd, sessions->buffer, &message, &error);
        if (status == GMS_E_AGAIN)
            return;
        if (status == GMS_E_DISCONNECTED) {
            gms_sessions_hang_up(client, "its session ended");
            return;
        }
        if (status != GMS_OK) {
            gms_session_refuse(client, 0, status, error.text);
            return;
        }
        if (client->role == 0)
            gms_session_greet(client, &message);
        else if (message.type == GMS_MESSAGE_HELLO)
            gms_session_refuse(client, message.request_id, GMS_E_PROTOCOL, "HELLO twice");
        else
            sessions->options.received(sessions->options.context, client, &message);
        gms_message_close_fds(&message);
    }
}

enum { MESSAGES_AT_ONCE = 16, MESSAGES_OF_THE_DEAD = 256 };

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    struct gms_client *client = context;
    (void)fd;
    if ((what & EV_TIMEOUT) != 0) {
        gms_session_refuse(client, 0, GMS_E_TIMEOUT, "no HELLO within 5 s of connecting");
        return;
    }
    receive(client, MESSAGES_AT_ONCE);
}

/* The engine's process is gone. What it said before it died counts (a goodbye, above all). */
void gms_session_on_ended(evutil_socket_t fd, short what, void *context)
{
    struct gms_client *client = context;
    (void)fd;
    (void)what;
    receive(client, MESSAGES_OF_THE_DEAD);
    gms_sessions_hang_up(client, "its process ended");
}

/* Who may be asked to come again, the first kind first. Engine ranks never: there are no more of them than fit. */
static struct gms_client *displaceable(const struct gms_sessions *sessions)
{
    static const int roles[] = {0, GMS_CLIENT_CONTROL, GMS_CLIENT_EXEC};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        struct gms_client *oldest = NULL;
        for (struct gms_client *client = sessions->clients; client != NULL; client = client->next)
            if ((int)client->role == roles[i] && !client->doomed)
                oldest = client; /* the list has the oldest last */
        if (oldest != NULL)
            return oldest;
    }
    return NULL;
}

bool gms_sessions_spare(struct gms_sessions *sessions)
{
    struct gms_client *client = displaceable(sessions);
    if (client == NULL)
        return false;
    gms_sessions_hang_up(client, "its descriptors were needed for a takeover");
    event_del(client->readable);
    event_del(client->writable);
    gms_fd_close(&client->fd); /* the client itself goes from the loop, as always */
    return true;
}

static bool make_room(struct gms_sessions *sessions)
{
    struct gms_client *client = displaceable(sessions);
    if (client == NULL)
        return false;
    gms_sessions_hang_up(client, "displaced by a newcomer: too many connections");
    on_reap(-1, 0, sessions);
    return true;
}

static void on_again(evutil_socket_t fd, short what, void *context)
{
    struct gms_sessions *sessions = context;
    (void)fd;
    (void)what;
    event_add(sessions->acceptable, NULL);
}

/* The one that waits stays in the backlog, and the listener stays readable: without a pause that is a busy loop. */
static void accept_later(struct gms_sessions *sessions)
{
    const struct timeval pause = {.tv_usec = GMS_SESSIONS_PAUSE_MS * 1000};
    event_del(sessions->acceptable);
    event_add(sessions->again, &pause);
}

static void on_acceptable(evutil_socket_t listener, short what, void *context)
{
    struct gms_sessions *sessions = context;
    (void)what;
    struct gms_error error;
    int fd = -1;
    pid_t pid = 0;
    uid_t uid = 0;
    gms_status status = gms_channel_accept(listener, &fd, &pid, &uid, &error);
    if (status == GMS_E_DESCRIPTORS && make_room(sessions))
        status = gms_channel_accept(listener, &fd, &pid, &uid, &error);
    if (status != GMS_OK) {
        if (status != GMS_E_AGAIN)
            gms_log(GMS_LOG_WARNING, "%s", error.text);
        if (status != GMS_E_AGAIN && status != GMS_E_PERMISSION)
            accept_later(sessions);
        return;
    }
    if (sessions->count >= sessions->capacity)
        make_room(sessions);
    struct gms_client *client = sessions->count < sessions->capacity ? calloc(1, sizeof *client) : NULL;
    if (client == NULL) {
        gms_log(GMS_LOG_WARNING, "refused pid %d: %u connections, the limit is %u", (int)pid, sessions->count,
                sessions->capacity);
        gms_fd_close(&fd);
        return;
    }
    client->sessions = sessions;
    client->id = ++sessions->next_id;
    client->fd = fd;
    client->pid = pid;
    client->pidfd = -1;
    client->container = GMS_NO_CONTAINER;
    client->queue_tail = &client->queue;
    client->readable = event_new(sessions->base, fd, EV_READ | EV_PERSIST, on_readable, client);
    client->writable = event_new(sessions->base, fd, EV_WRITE, on_writable, client);
    const struct timeval hello = {.tv_sec = GMS_SESSIONS_HELLO_SECONDS};
    if (client->readable == NULL || client->writable == NULL || event_add(client->readable, &hello) != 0) {
        free_client(client);
        return;
    }
    client->next = sessions->clients;
    sessions->clients = client;
    sessions->count++;
}

/* Connections must leave the descriptors that a takeover and the pools of all engines need. */
static uint32_t connections_allowed(void)
{
    uint64_t used = 0, limit = 0;
    gms_fd_usage(&used, &limit);
    uint64_t taken = used + GMS_SESSIONS_RESERVED_DESCRIPTORS;
    if (limit < taken + GMS_SESSIONS_LEAST)
        return GMS_SESSIONS_LEAST;
    return limit - taken < GMS_SESSIONS_MAX ? (uint32_t)(limit - taken) : GMS_SESSIONS_MAX;
}

gms_status gms_sessions_open(struct event_base *base, const struct gms_sessions_options *options,
                             struct gms_sessions **ret_sessions, struct gms_error *ret_error)
{
    char path[GMS_RUN_PATH_BYTES];
    gms_status status = gms_run_dir_path(options->run_dir, "c", (int32_t)options->rank, path, ret_error);
    if (status != GMS_OK)
        return status;
    struct gms_sessions *sessions = calloc(1, sizeof *sessions);
    if (sessions == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for sessions (%zu bytes)", sizeof *sessions);
    sessions->options = *options;
    sessions->options.run_dir = NULL;
    sessions->base = base;
    sessions->listener = -1;
    sessions->capacity = connections_allowed();
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        sessions->offers[engine].container = GMS_NO_CONTAINER;
    status = gms_channel_listen(path, &sessions->listener, ret_error);
    if (status != GMS_OK)
        goto failed;
    sessions->reaper = event_new(base, -1, 0, on_reap, sessions);
    sessions->again = event_new(base, -1, 0, on_again, sessions);
    sessions->acceptable = event_new(base, sessions->listener, EV_READ | EV_PERSIST, on_acceptable, sessions);
    if (sessions->reaper == NULL || sessions->again == NULL || sessions->acceptable == NULL ||
        event_add(sessions->acceptable, NULL) != 0) {
        status = gms_fail(ret_error, GMS_E_SYSTEM, "the event loop refused the socket %s", path);
        goto failed;
    }
    *ret_sessions = sessions;
    return GMS_OK;

failed:
    gms_sessions_close(sessions);
    return status;
}

void gms_sessions_close(struct gms_sessions *sessions)
{
    if (sessions == NULL)
        return;
    while (sessions->clients != NULL) {
        struct gms_client *next = sessions->clients->next;
        free_client(sessions->clients);
        sessions->clients = next;
    }
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        gms_container_close(&sessions->offers[engine].container);
    free_event(&sessions->acceptable);
    free_event(&sessions->reaper);
    free_event(&sessions->again);
    gms_fd_close(&sessions->listener);
    free(sessions);
}
