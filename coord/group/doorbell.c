/* SPDX-License-Identifier: Apache-2.0 */
#include "group/doorbell.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "wire/channel.h"

enum { MAGIC = 0x42534d47 }; /* "GMSB" */
enum kind { KIND_GREETING = 1, KIND_RING = 2, KIND_BEAT = 3, KIND_NOTE = 4 };

struct datagram {
    uint32_t magic, kind;
    uint64_t world, round;
    uint32_t rank, value;
};
_Static_assert(sizeof(struct datagram) == 32, "the doorbell's format");

struct peer {
    struct gms_doorbell *doorbell;
    uint32_t rank;
    int fd; /* -1: ourselves, or not connected yet */
    struct event *readable, *writable;
    uint64_t unsent_round; /* 0: none */
    uint64_t heard_ns;
    bool stream; /* TCP: a datagram may come and go in pieces */
    size_t in_used, out_used;
    uint8_t in[sizeof(struct datagram)], out[sizeof(struct datagram)]; /* out: what is left of one that was begun */
};

struct gms_doorbell {
    struct gms_doorbell_options options;
    int listener, tcp_listener;
    const struct gms_doorbell_place *places; /* borrowed; NULL: all on this host */
    struct event *beat;
    uint64_t rung_round; /* highest we rang for */
    uint64_t beaten_ns;  /* when the last beat was sent: a gap after it is our own sleep */
    bool ending, lost;
    struct peer peers[]; /* one per rank */
};

static void report_lost(struct gms_doorbell *doorbell, uint32_t rank, const char *why)
{
    if (doorbell->ending || doorbell->lost)
        return;
    doorbell->lost = true;
    char text[256];
    snprintf(text, sizeof text, "coordinator rank %u %s; all ranks restart together", rank, why);
    doorbell->options.lost(doorbell->options.context, text);
}

/* Sends what is left of a datagram that was begun. False: the socket is full yet. */
static bool flush_begun(struct peer *peer)
{
    while (peer->out_used > 0) {
        ssize_t sent = send(peer->fd, peer->out, peer->out_used, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS;
        peer->out_used -= (size_t)sent;
        memmove(peer->out, peer->out + sent, peer->out_used);
    }
    return true;
}

/* False: the socket is full. A dead peer is found by reading, so it counts as sent here. */
static bool send_to(struct peer *peer, enum kind kind, uint64_t round, uint32_t value)
{
    const struct gms_doorbell_options *options = &peer->doorbell->options;
    struct datagram datagram = {
        .magic = MAGIC, .kind = kind, .world = options->world, .round = round, .rank = options->rank, .value = value};
    ssize_t sent;
    if (!flush_begun(peer))
        return false;
    do
        sent = send(peer->fd, &datagram, sizeof datagram, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent > 0 && (size_t)sent < sizeof datagram) { /* only a stream does that; the rest goes first next time */
        peer->out_used = sizeof datagram - (size_t)sent;
        memcpy(peer->out, (const uint8_t *)&datagram + sent, peer->out_used);
        if (peer->writable != NULL)
            event_add(peer->writable, NULL);
    }
    return sent >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS);
}

/* The next datagram. 1: there is one, 0: none yet, -1: the peer is gone. */
static int receive_from(struct peer *peer, struct datagram *ret_datagram)
{
    for (;;) {
        size_t wanted = peer->stream ? sizeof peer->in - peer->in_used : sizeof peer->in;
        ssize_t got = recv(peer->fd, peer->in + (peer->stream ? peer->in_used : 0), wanted, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
        if (got == 0)
            return -1;
        peer->in_used = peer->stream ? peer->in_used + (size_t)got : (size_t)got;
        if (peer->stream && peer->in_used < sizeof peer->in)
            continue;
        bool whole = peer->in_used == sizeof peer->in;
        peer->in_used = 0;
        memcpy(ret_datagram, peer->in, sizeof *ret_datagram);
        if (whole)
            return 1;
    }
}

/* Reads all that waits. False: the peer is gone. The highest round rung goes to *inout_round. */
static bool drain(struct peer *peer, uint64_t *inout_round)
{
    for (;;) {
        struct datagram datagram;
        int got = receive_from(peer, &datagram);
        if (got <= 0)
            return got == 0;
        if (datagram.magic != MAGIC || datagram.world != peer->doorbell->options.world) {
            if (peer->stream)
                return false; /* out of step: nothing after it can be read */
            continue;         /* not ours to understand; it proves no life either */
        }
        peer->heard_ns = gms_clock_ns();
        if (datagram.kind == KIND_NOTE && peer->doorbell->options.noted != NULL)
            peer->doorbell->options.noted(peer->doorbell->options.context, peer->rank, datagram.round, datagram.value);
        if (datagram.kind == KIND_RING && datagram.round > *inout_round)
            *inout_round = datagram.round;
    }
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    struct peer *peer = context;
    struct gms_doorbell *doorbell = peer->doorbell;
    uint64_t round = 0;
    (void)fd;
    (void)what;
    bool alive = drain(peer, &round);
    if (!alive)
        event_del(peer->readable);
    if (round != 0)
        doorbell->options.rung(doorbell->options.context, round);
    if (!alive)
        report_lost(doorbell, peer->rank, "closed its doorbell: it is dead");
}

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    struct peer *peer = context;
    (void)fd;
    (void)what;
    if (flush_begun(peer) && peer->unsent_round != 0 && send_to(peer, KIND_RING, peer->unsent_round, 0))
        peer->unsent_round = 0;
    if (peer->unsent_round != 0 || peer->out_used > 0)
        event_add(peer->writable, NULL);
}

static void on_beat(evutil_socket_t fd, short what, void *context)
{
    struct gms_doorbell *doorbell = context;
    const struct gms_doorbell_options *options = &doorbell->options;
    uint64_t now_ns = gms_clock_ns(), round = 0;
    bool slept = now_ns - doorbell->beaten_ns > 2 * options->heartbeat_ns;
    (void)fd;
    (void)what;
    doorbell->beaten_ns = now_ns;
    for (uint32_t rank = 0; rank < options->ranks; rank++) {
        struct peer *peer = &doorbell->peers[rank];
        if (peer->fd < 0)
            continue;
        if (slept) {
            /* We did not run: what we did not hear says nothing about them. Start the measurement anew. */
            peer->heard_ns = now_ns;
        } else if (now_ns - peer->heard_ns >= GMS_DOORBELL_SILENT_BEATS * options->heartbeat_ns) {
            bool alive = drain(peer, &round); /* a verdict only after what has arrived was read */
            if (!alive || gms_clock_ns() - peer->heard_ns >= GMS_DOORBELL_SILENT_BEATS * options->heartbeat_ns) {
                report_lost(doorbell, rank, alive ? "was silent for three heartbeats" : "closed its doorbell");
                return;
            }
        }
        send_to(peer, KIND_BEAT, 0, 0); /* full: then it has beats enough to read */
    }
    if (round != 0)
        options->rung(options->context, round);
    if (options->beat != NULL)
        options->beat(options->context);
}

/* Any port of the address that the others are told: who comes must know the secret. */
static gms_status listen_to_hosts(struct gms_doorbell *doorbell, struct gms_error *ret_error)
{
    const char *address = doorbell->options.address;
    struct sockaddr_in any = {.sin_family = AF_INET};
    if (address == NULL || inet_pton(AF_INET, address, &any.sin_addr) != 1)
        return gms_fail(ret_error, GMS_E_INVALID, "the doorbell for other hosts has no address: \"%s\"",
                        address != NULL ? address : "");
    doorbell->tcp_listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (doorbell->tcp_listener < 0 || bind(doorbell->tcp_listener, (const struct sockaddr *)&any, sizeof any) != 0 ||
        listen(doorbell->tcp_listener, SOMAXCONN) != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "the doorbell for other hosts cannot listen on %s: %s", address,
                        strerror(errno));
    return GMS_OK;
}

void gms_doorbell_look(const struct gms_doorbell *doorbell, struct gms_doorbell_place *ret_place)
{
    struct sockaddr_in bound = {0};
    socklen_t bytes = sizeof bound;
    memset(ret_place, 0, sizeof *ret_place);
    if (doorbell->options.address != NULL)
        snprintf(ret_place->address, sizeof ret_place->address, "%s", doorbell->options.address);
    if (doorbell->tcp_listener >= 0 && getsockname(doorbell->tcp_listener, (struct sockaddr *)&bound, &bytes) == 0)
        ret_place->port = ntohs(bound.sin_port);
}

void gms_doorbell_set_places(struct gms_doorbell *doorbell, const struct gms_doorbell_place *places)
{
    doorbell->places = places;
}

static bool is_remote(const struct gms_doorbell *doorbell, uint32_t rank)
{
    return doorbell->places != NULL &&
           strcmp(doorbell->places[rank].host, doorbell->places[doorbell->options.rank].host) != 0;
}

gms_status gms_doorbell_open(const struct gms_doorbell_options *options, struct gms_doorbell **ret_doorbell,
                             struct gms_error *ret_error)
{
    char path[GMS_RUN_PATH_BYTES];
    gms_status status = gms_run_dir_path(options->run_dir, "b", (int32_t)options->rank, path, ret_error);
    if (status != GMS_OK)
        return status;
    struct gms_doorbell *doorbell = calloc(1, sizeof *doorbell + options->ranks * sizeof doorbell->peers[0]);
    if (doorbell == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a doorbell to %u ranks", options->ranks);
    doorbell->options = *options;
    doorbell->listener = doorbell->tcp_listener = -1;
    for (uint32_t rank = 0; rank < options->ranks; rank++)
        doorbell->peers[rank] = (struct peer){.doorbell = doorbell, .rank = rank, .fd = -1};
    status = gms_channel_listen(path, &doorbell->listener, ret_error);
    if (status == GMS_OK && options->other_hosts)
        status = listen_to_hosts(doorbell, ret_error);
    if (status != GMS_OK) {
        gms_doorbell_close(doorbell);
        return status;
    }
    *ret_doorbell = doorbell;
    return GMS_OK;
}

static void set_stream(struct peer *peer)
{
    int yes = 1;
    peer->stream = true;
    setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

/* A rank on another host. */
static gms_status connect_to_host(struct gms_doorbell *doorbell, uint32_t rank, uint64_t deadline_ns,
                                  struct gms_error *ret_error)
{
    const struct gms_doorbell_place *place = &doorbell->places[rank];
    struct peer *peer = &doorbell->peers[rank];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)place->port)};
    int error = 0;
    socklen_t bytes = sizeof error;
    if (inet_pton(AF_INET, place->address, &address.sin_addr) != 1)
        return gms_fail(ret_error, GMS_E_INVALID, "rank %u says its address is \"%s\"", rank, place->address);
    peer->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (peer->fd < 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "socket: %s", strerror(errno));
    set_stream(peer);
    if (connect(peer->fd, (const struct sockaddr *)&address, sizeof address) != 0 && errno != EINPROGRESS)
        error = errno;
    struct pollfd connected = {.fd = peer->fd, .events = POLLOUT};
    if (error == 0 && poll(&connected, 1, gms_clock_poll_ms(deadline_ns)) == 0)
        error = ETIMEDOUT;
    if (error == 0)
        getsockopt(peer->fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0)
        return gms_fail(
            ret_error, GMS_E_TIMEOUT,
            "rank %u on host %s cannot be reached at %s port %u from host %s: %s; is that address right, and "
            "the port open?",
            rank, place->host, place->address, place->port, doorbell->places[doorbell->options.rank].host,
            strerror(error));
    send_to(peer, KIND_GREETING, doorbell->places[0].secret, 0);
    return GMS_OK;
}

static gms_status connect_to(struct gms_doorbell *doorbell, uint32_t rank, uint64_t deadline_ns,
                             struct gms_error *ret_error)
{
    struct peer *peer = &doorbell->peers[rank];
    char path[GMS_RUN_PATH_BYTES];
    if (is_remote(doorbell, rank))
        return connect_to_host(doorbell, rank, deadline_ns, ret_error);
    gms_status status = gms_run_dir_path(doorbell->options.run_dir, "b", (int32_t)rank, path, ret_error);
    if (status != GMS_OK)
        return status;
    for (;;) {
        int left_ms = gms_clock_poll_ms(deadline_ns);
        status = gms_channel_connect(path, left_ms, &peer->fd, ret_error);
        if (status == GMS_OK)
            break;
        if (left_ms == 0 || (status != GMS_E_NOT_FOUND && status != GMS_E_DISCONNECTED && status != GMS_E_AGAIN))
            return status;
        poll(NULL, 0, left_ms < 10 ? left_ms : 10); /* it listens already; only a full backlog comes here */
    }
    send_to(peer, KIND_GREETING, 0, 0);
    return GMS_OK;
}

/* One higher rank: accept, then its greeting says which. */
static gms_status accept_one(struct gms_doorbell *doorbell, uint64_t deadline_ns, struct gms_error *ret_error)
{
    const struct gms_doorbell_options *options = &doorbell->options;
    struct pollfd waiting[] = {{.fd = doorbell->listener, .events = POLLIN},
                               {.fd = doorbell->tcp_listener, .events = POLLIN}};
    int fd = -1;
    bool stream = false;
    for (;;) {
        pid_t pid;
        uid_t uid;
        gms_status status = gms_channel_accept(doorbell->listener, &fd, &pid, &uid, ret_error);
        if (status == GMS_OK)
            break;
        if (status != GMS_E_AGAIN && status != GMS_E_PERMISSION)
            return status;
        fd = doorbell->tcp_listener >= 0 ? accept4(doorbell->tcp_listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)
                                         : -1;
        stream = fd >= 0;
        if (stream)
            break;
        int left_ms = gms_clock_poll_ms(deadline_ns);
        if (left_ms == 0 || (poll(waiting, 2, left_ms) == 0 && gms_clock_poll_ms(deadline_ns) == 0)) {
            uint32_t missing = options->rank + 1;
            while (missing + 1 < options->ranks && doorbell->peers[missing].fd >= 0)
                missing++;
            return gms_fail(ret_error, GMS_E_TIMEOUT,
                            "rank %u did not connect to the doorbell of rank %u in time; is its run directory %s the "
                            "same?",
                            missing, options->rank, options->run_dir);
        }
    }
    struct pollfd greeted = {.fd = fd, .events = POLLIN};
    int left_ms = gms_clock_poll_ms(deadline_ns);
    struct datagram datagram;
    memset(&datagram, 0, sizeof datagram);
    /* A stranger that says nothing may cost us a second, not the start. */
    ssize_t got = -1;
    if (poll(&greeted, 1, left_ms < 1000 ? left_ms : 1000) > 0)
        got = recv(fd, &datagram, sizeof datagram, MSG_DONTWAIT);
    /* Over TCP anybody may come: only who knows the secret is heard. 32 bytes sent at once arrive at once, or count as
     * nothing. */
    bool known = !stream || (doorbell->places != NULL && datagram.round == doorbell->places[0].secret);
    if (got != sizeof datagram || datagram.magic != MAGIC || datagram.kind != KIND_GREETING || !known) {
        gms_fd_close(&fd);
        return GMS_OK; /* not a peer; go on */
    }
    if (datagram.world != options->world) {
        gms_fd_close(&fd);
        return gms_fail(ret_error, GMS_E_FOREIGN_WORLD,
                        "rank %u of world %llu rang the doorbell of world %llu in %s: two coordinator jobs of one "
                        "deployment",
                        datagram.rank, (unsigned long long)datagram.world, (unsigned long long)options->world,
                        options->run_dir);
    }
    if (datagram.rank <= options->rank || datagram.rank >= options->ranks || doorbell->peers[datagram.rank].fd >= 0) {
        gms_fd_close(&fd);
        return GMS_OK;
    }
    doorbell->peers[datagram.rank].fd = fd;
    if (stream)
        set_stream(&doorbell->peers[datagram.rank]);
    return GMS_OK;
}

gms_status gms_doorbell_connect(struct gms_doorbell *doorbell, struct event_base *base, uint64_t deadline_ns,
                                struct gms_error *ret_error)
{
    const struct gms_doorbell_options *options = &doorbell->options;
    for (uint32_t rank = 0; rank < options->rank; rank++) {
        gms_status status = connect_to(doorbell, rank, deadline_ns, ret_error);
        if (status != GMS_OK)
            return status;
    }
    for (uint32_t rank = options->rank + 1; rank < options->ranks;) {
        if (doorbell->peers[rank].fd >= 0) {
            rank++;
            continue;
        }
        gms_status status = accept_one(doorbell, deadline_ns, ret_error);
        if (status != GMS_OK)
            return status;
    }
    gms_fd_close(&doorbell->tcp_listener);
    gms_fd_close(&doorbell->listener); /* the mesh is complete; nobody else has business here */

    doorbell->beaten_ns = gms_clock_ns();
    for (uint32_t rank = 0; rank < options->ranks; rank++) {
        struct peer *peer = &doorbell->peers[rank];
        if (peer->fd < 0)
            continue;
        peer->heard_ns = doorbell->beaten_ns;
        peer->readable = event_new(base, peer->fd, EV_READ | EV_PERSIST, on_readable, peer);
        peer->writable = event_new(base, peer->fd, EV_WRITE, on_writable, peer);
        if (peer->readable == NULL || peer->writable == NULL || event_add(peer->readable, NULL) != 0)
            return gms_fail(ret_error, GMS_E_SYSTEM, "the event loop refused the doorbell to rank %u", rank);
    }
    doorbell->beat = event_new(base, -1, EV_PERSIST, on_beat, doorbell);
    struct timeval every = {.tv_sec = (time_t)(options->heartbeat_ns / GMS_NS_PER_S),
                            .tv_usec = (suseconds_t)(options->heartbeat_ns % GMS_NS_PER_S / 1000)};
    if (doorbell->beat == NULL || event_add(doorbell->beat, &every) != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "the event loop refused the heartbeat timer");
    return GMS_OK;
}

void gms_doorbell_ring(struct gms_doorbell *doorbell, uint64_t round)
{
    if (round <= doorbell->rung_round)
        return;
    doorbell->rung_round = round;
    for (uint32_t rank = 0; rank < doorbell->options.ranks; rank++) {
        struct peer *peer = &doorbell->peers[rank];
        if (peer->fd < 0)
            continue;
        if (peer->unsent_round == 0 && send_to(peer, KIND_RING, round, 0))
            continue;
        peer->unsent_round = round;
        event_add(peer->writable, NULL);
    }
}

bool gms_doorbell_note(struct gms_doorbell *doorbell, uint32_t to, uint64_t key, uint32_t value)
{
    struct peer *peer = to < doorbell->options.ranks ? &doorbell->peers[to] : NULL;
    return peer != NULL && peer->fd >= 0 && send_to(peer, KIND_NOTE, key, value);
}

bool gms_doorbell_any_closed(const struct gms_doorbell *doorbell)
{
    if (doorbell->ending)
        return false;
    for (uint32_t rank = 0; rank < doorbell->options.ranks; rank++) {
        const struct peer *peer = &doorbell->peers[rank];
        if (peer->fd < 0)
            continue;
        struct pollfd end = {.fd = peer->fd, .events = POLLRDHUP};
        if (poll(&end, 1, 0) > 0 && (end.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
            return true;
    }
    return false;
}

void gms_doorbell_expect_end(struct gms_doorbell *doorbell)
{
    doorbell->ending = true;
}

void gms_doorbell_close(struct gms_doorbell *doorbell)
{
    if (doorbell == NULL)
        return;
    if (doorbell->beat != NULL)
        event_free(doorbell->beat);
    for (uint32_t rank = 0; rank < doorbell->options.ranks; rank++) {
        struct peer *peer = &doorbell->peers[rank];
        if (peer->readable != NULL)
            event_free(peer->readable);
        if (peer->writable != NULL)
            event_free(peer->writable);
        gms_fd_close(&peer->fd);
    }
    gms_fd_close(&doorbell->listener);
    gms_fd_close(&doorbell->tcp_listener);
    free(doorbell);
}
