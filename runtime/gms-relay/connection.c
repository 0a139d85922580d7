/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection of the server: reads its requests one at a time, sends what they are answered, and ends.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "gms-relay/server_state.h"

enum {
    AHEAD_BYTES = 64 * 1024, /* of what a client sends while it is answered */
    LINGER_BYTES = 16 * 1024 * 1024,
    LINGER_MS = 2000,
};

enum connection_state { IDLE, HEAD, BODY, BUSY, LINGER };

struct relay_connection {
    struct relay_server *server;
    struct relay_connection *next, *previous;
    struct bufferevent *bev;
    struct event *timer;
    enum connection_state state;
    bool keep_alive, streaming, headless, closing; /* headless: an answer to HEAD; closing: after what is queued */
    bool dead;                                     /* freed from its timer, not under anybody's hands */
    size_t scanned, lingered;
    struct relay_http_request request;
    struct relay_chunks chunks;
    struct evbuffer *body; /* NULL unless BODY */
    void *owner;
};

static void advance(struct relay_connection *connection);

static void set_timer(struct relay_connection *connection, uint64_t ns)
{
    struct timeval left = relay_interval(ns);
    event_add(connection->timer, &left);
}

/* ---------------------------------------------------------------------------------------------- life and end -- */

void relay_connection_free(struct relay_connection *connection)
{
    struct relay_server *server = connection->server;
    if (connection->previous != NULL)
        connection->previous->next = connection->next;
    else
        server->connections = connection->next;
    if (connection->next != NULL)
        connection->next->previous = connection->previous;
    server->counts.open--;
    if (connection->bev != NULL)
        bufferevent_free(connection->bev);
    if (connection->timer != NULL)
        event_free(connection->timer);
    if (connection->body != NULL)
        evbuffer_free(connection->body);
    free(connection);
}

/* Ends it soon, from the loop. Whoever waits for an answer is told now. */
static void kill_connection(struct relay_connection *connection)
{
    if (connection->dead)
        return;
    connection->dead = true;
    if (connection->state == BUSY && connection->owner != NULL)
        connection->server->options.gone(connection->server->options.context, connection);
    connection->owner = NULL;
    bufferevent_disable(connection->bev, EV_READ | EV_WRITE);
    event_active(connection->timer, EV_TIMEOUT, 0);
}

/* The last of it has been queued: no more requests are read. */
static void begin_linger(struct relay_connection *connection)
{
    connection->state = LINGER;
    connection->closing = true;
    bufferevent_setwatermark(connection->bev, EV_READ, 0, 0);
    bufferevent_enable(connection->bev, EV_READ);
    if (evbuffer_get_length(bufferevent_get_output(connection->bev)) == 0) {
        shutdown(bufferevent_getfd(connection->bev), SHUT_WR);
        set_timer(connection, LINGER_MS * GMS_NS_PER_MS);
    } else {
        event_del(connection->timer); /* the write timeout bounds it until then */
    }
}

static void answered(struct relay_connection *connection)
{
    connection->owner = NULL;
    connection->streaming = connection->headless = false;
    if (!connection->keep_alive || connection->server->stopping) {
        begin_linger(connection);
        return;
    }
    connection->state = IDLE;
    connection->scanned = 0;
    bufferevent_setwatermark(connection->bev, EV_READ, 0, AHEAD_BYTES);
    set_timer(connection, connection->server->options.idle_ns);
    event_active(connection->timer, EV_READ, 0); /* what was sent ahead; from the loop, so that nothing nests */
}

/* --------------------------------------------------------------------------------------------------- answers -- */

void relay_connection_set(struct relay_connection *connection, void *owner)
{
    connection->owner = owner;
}

void *relay_connection_get(const struct relay_connection *connection)
{
    return connection->owner;
}

size_t relay_unsent(const struct relay_connection *connection)
{
    return evbuffer_get_length(bufferevent_get_output(connection->bev));
}

void relay_connection_break(struct relay_connection *connection)
{
    if (!connection->dead)
        event_active(connection->timer, EV_WRITE, 0);
}

void relay_answer(struct relay_connection *connection, int status, const char *type, const char *headers,
                  const char *body, size_t bytes)
{
    if (connection->dead)
        return;
    struct evbuffer *out = bufferevent_get_output(connection->bev);
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s%s\r\n", status,
                        relay_http_reason(status), type, bytes, headers,
                        connection->keep_alive ? connection->request.minor == 0 ? "Connection: keep-alive\r\n" : ""
                                               : "Connection: close\r\n");
    if (!connection->headless)
        evbuffer_add(out, body, bytes);
    answered(connection);
}

void relay_stream_begin(struct relay_connection *connection, int status, const char *type, const char *headers)
{
    if (connection->dead)
        return;
    connection->streaming = true;
    if (connection->request.minor == 0)
        connection->keep_alive = false;
    evbuffer_add_printf(bufferevent_get_output(connection->bev),
                        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nCache-Control: no-store\r\n%s%s%s\r\n", status,
                        relay_http_reason(status), type, headers,
                        connection->request.minor == 0 ? "" : "Transfer-Encoding: chunked\r\n",
                        connection->keep_alive ? "" : "Connection: close\r\n");
}

/* Sends at once what the socket takes: most pieces never wait in a buffer, nor for the loop to ask the socket first.
 * *ret_sent is 0 when something waits already. False: the connection is broken. */
static bool send_now(struct relay_connection *connection, struct iovec *pieces, size_t count, size_t *ret_sent)
{
    *ret_sent = 0;
    if (evbuffer_get_length(bufferevent_get_output(connection->bev)) > 0)
        return true;
    const struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
    ssize_t sent = sendmsg(bufferevent_getfd(connection->bev), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0)
        return errno == EAGAIN || errno == EINTR || errno == ENOBUFS;
    *ret_sent = (size_t)sent;
    return true;
}

void relay_stream_write(struct relay_connection *connection, const char *data, size_t bytes)
{
    if (connection->dead || bytes == 0)
        return;
    char size[24];
    bool chunked = connection->request.minor != 0;
    int length = chunked ? snprintf(size, sizeof size, "%zx\r\n", bytes) : 0;
    struct iovec pieces[] = {
        {size, (size_t)length}, {(void *)(uintptr_t)data, bytes}, {(void *)(uintptr_t) "\r\n", chunked ? 2 : 0}};
    size_t sent;
    struct evbuffer *out = bufferevent_get_output(connection->bev);
    if (!send_now(connection, pieces, 3, &sent) || (sent == 0 && evbuffer_expand(out, bytes + sizeof size + 2) != 0)) {
        relay_connection_break(connection);
        return;
    }
    for (size_t i = 0; i < 3; i++) {
        size_t done = sent < pieces[i].iov_len ? sent : pieces[i].iov_len;
        sent -= done;
        if (done < pieces[i].iov_len &&
            evbuffer_add(out, (char *)pieces[i].iov_base + done, pieces[i].iov_len - done) != 0)
            relay_connection_break(connection);
    }
}

void relay_stream_end(struct relay_connection *connection, bool whole)
{
    if (connection->dead)
        return;
    if (!whole)
        connection->keep_alive = false;
    else if (connection->request.minor != 0)
        evbuffer_add(bufferevent_get_output(connection->bev), "0\r\n\r\n", 5);
    answered(connection);
}

/* A request that is not handed over: its framing cannot be trusted, so it is the connection's last. */
static void refuse(struct relay_connection *connection, int status, const char *why)
{
    char body[512];
    connection->server->counts.bad_requests++;
    connection->keep_alive = false;
    int length = snprintf(body, sizeof body,
                          "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\",\"param\":null,"
                          "\"code\":%d}}\n",
                          why, status);
    relay_answer(connection, status, "application/json", "", body, (size_t)length);
}

/* -------------------------------------------------------------------------------------------------- requests -- */

static void hand_over(struct relay_connection *connection)
{
    struct relay_server *server = connection->server;
    struct evbuffer *body = connection->body;
    size_t bytes = body != NULL ? evbuffer_get_length(body) : 0;
    connection->body = NULL;
    connection->state = BUSY;
    event_del(connection->timer);
    const char *data = bytes > 0 ? (const char *)evbuffer_pullup(body, -1) : "";
    if (data == NULL)
        refuse(connection, 500, "out of memory");
    else
        server->options.request(server->options.context, connection, &connection->request, data, bytes);
    if (body != NULL)
        evbuffer_free(body);
}

/* True: it goes on with the body. */
static bool take_head(struct relay_connection *connection, struct evbuffer *in)
{
    size_t there = evbuffer_get_length(in), most = RELAY_HTTP_HEAD_BYTES;
    const char *head = (const char *)evbuffer_pullup(in, (ev_ssize_t)(there < most ? there : most));
    size_t bytes = head == NULL ? 0 : relay_http_head_end(head, there < most ? there : most, &connection->scanned);
    if (bytes == 0) {
        if (there >= most)
            refuse(connection, 431, "the request head is longer than 16384 bytes");
        return false;
    }
    const char *why = "";
    int status = relay_http_read_request(head, bytes, &connection->request, &why);
    evbuffer_drain(in, bytes);
    connection->scanned = 0;
    if (status != 0) {
        connection->request.minor = 1;
        refuse(connection, status, why);
        return false;
    }
    const struct relay_http_request *request = &connection->request;
    connection->keep_alive = request->keep_alive;
    connection->headless = strcmp(request->method, "HEAD") == 0;
    if (request->has_length && request->length > connection->server->options.max_body_bytes) {
        refuse(connection, 413, "the request body is longer than this relay takes (--max-body)");
        return false;
    }
    memset(&connection->chunks, 0, sizeof connection->chunks);
    if (!request->chunked && request->length == 0) {
        hand_over(connection);
        return false;
    }
    connection->body = evbuffer_new();
    if (connection->body == NULL) {
        refuse(connection, 500, "out of memory");
        return false;
    }
    if (request->expects_continue && evbuffer_get_length(in) == 0)
        evbuffer_add_printf(bufferevent_get_output(connection->bev), "HTTP/1.1 100 Continue\r\n\r\n");
    connection->state = BODY;
    set_timer(connection, connection->server->options.body_ns);
    return true;
}

static void drop_body(struct relay_connection *connection)
{
    evbuffer_free(connection->body);
    connection->body = NULL;
}

static void take_chunks(struct relay_connection *connection, struct evbuffer *in)
{
    size_t there;
    while ((there = evbuffer_get_contiguous_space(in)) > 0) {
        const char *piece;
        size_t bytes,
            used = relay_http_chunks(&connection->chunks, (const char *)evbuffer_pullup(in, (ev_ssize_t)there), there,
                                     &piece, &bytes);
        evbuffer_add(connection->body, piece, bytes);
        evbuffer_drain(in, used);
        if (evbuffer_get_length(connection->body) > connection->server->options.max_body_bytes) {
            drop_body(connection);
            refuse(connection, 413, "the request body is longer than this relay takes (--max-body)");
            return;
        }
        if (connection->chunks.state == RELAY_CHUNK_BAD) {
            drop_body(connection);
            refuse(connection, 400, "the chunked body is malformed");
            return;
        }
        if (connection->chunks.state == RELAY_CHUNK_DONE) {
            hand_over(connection);
            return;
        }
    }
}

static void take_body(struct relay_connection *connection, struct evbuffer *in)
{
    if (connection->request.chunked) {
        take_chunks(connection, in);
        return;
    }
    size_t missing = (size_t)connection->request.length - evbuffer_get_length(connection->body);
    evbuffer_remove_buffer(in, connection->body, missing);
    if (evbuffer_get_length(connection->body) == connection->request.length)
        hand_over(connection);
}

/* Goes on with what has been read. */
static void advance(struct relay_connection *connection)
{
    struct evbuffer *in = bufferevent_get_input(connection->bev);
    for (;;) {
        if (connection->dead || evbuffer_get_length(in) == 0)
            return;
        switch (connection->state) {
        case IDLE:
            if (connection->server->stopping) {
                begin_linger(connection);
                return;
            }
            connection->state = HEAD;
            connection->scanned = 0;
            set_timer(connection, connection->server->options.head_ns);
            break;
        case HEAD: {
            /* Empty lines before a request are allowed; some clients end bodies with one. */
            char start[2];
            while (connection->scanned == 0 && evbuffer_copyout(in, start, 2) == 2 && start[0] == '\r' &&
                   start[1] == '\n')
                evbuffer_drain(in, 2);
            if (evbuffer_get_length(in) == 0 || !take_head(connection, in))
                return;
            break;
        }
        case BODY:
            take_body(connection, in);
            return;
        case BUSY:
            return; /* sent ahead: waits */
        case LINGER:
            connection->lingered += evbuffer_get_length(in);
            evbuffer_drain(in, evbuffer_get_length(in));
            if (connection->lingered > LINGER_BYTES)
                kill_connection(connection);
            return;
        }
    }
}

/* ------------------------------------------------------------------------------------------------- callbacks -- */

static void on_readable(struct bufferevent *bev, void *context)
{
    (void)bev;
    advance(context);
}

static void on_written(struct bufferevent *bev, void *context)
{
    struct relay_connection *connection = context;
    (void)bev;
    if (connection->dead)
        return;
    if (connection->closing) {
        shutdown(bufferevent_getfd(connection->bev), SHUT_WR);
        set_timer(connection, LINGER_MS * GMS_NS_PER_MS);
    } else if (connection->state == BUSY && connection->owner != NULL) {
        connection->server->options.drained(connection->server->options.context, connection);
    }
}

static void on_event(struct bufferevent *bev, short what, void *context)
{
    struct relay_connection *connection = context;
    (void)bev;
    /* By our clock, or by the kernel's (TCP_USER_TIMEOUT) where its buffers took longer to fill. */
    if ((what & (BEV_EVENT_TIMEOUT | BEV_EVENT_WRITING)) == (BEV_EVENT_TIMEOUT | BEV_EVENT_WRITING) ||
        ((what & BEV_EVENT_ERROR) != 0 && EVUTIL_SOCKET_ERROR() == ETIMEDOUT))
        connection->server->counts.stalled++;
    kill_connection(connection);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    struct relay_connection *connection = context;
    (void)fd;
    if (connection->dead) {
        relay_connection_free(connection);
        return;
    }
    if ((what & EV_WRITE) != 0) {
        kill_connection(connection);
        return;
    }
    if ((what & EV_READ) != 0) {
        advance(connection);
        return;
    }
    switch (connection->state) {
    case HEAD:
        connection->server->counts.timeouts++;
        refuse(connection, 408, "the request head did not come in time");
        break;
    case BODY:
        connection->server->counts.timeouts++;
        drop_body(connection);
        refuse(connection, 408, "the request body did not come in time");
        break;
    case IDLE:
    case LINGER:
        kill_connection(connection);
        break;
    case BUSY:
        break;
    }
}

/* ------------------------------------------------------------------------------------------------------ open -- */

bool relay_connection_open(struct relay_server *server, evutil_socket_t fd)
{
    struct relay_connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        return false;
    connection->server = server;
    connection->timer = event_new(server->base, -1, 0, on_timer, connection);
    connection->bev =
        connection->timer != NULL ? bufferevent_socket_new(server->base, fd, BEV_OPT_CLOSE_ON_FREE) : NULL;
    if (connection->bev == NULL) {
        if (connection->timer != NULL)
            event_free(connection->timer);
        free(connection);
        return false;
    }
    /* For peers that are not there at all; the write timeout sees to those that only do not read. */
    int yes = 1, patience_ms = (int)(2 * server->options.stall_ns / GMS_NS_PER_MS);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof patience_ms);
    connection->next = server->connections;
    if (connection->next != NULL)
        connection->next->previous = connection;
    server->connections = connection;
    server->counts.open++;
    server->counts.accepted++;
    struct timeval stall = relay_interval(server->options.stall_ns);
    bufferevent_setcb(connection->bev, on_readable, on_written, on_event, connection);
    bufferevent_set_timeouts(connection->bev, NULL, &stall);
    bufferevent_setwatermark(connection->bev, EV_READ, 0, AHEAD_BYTES);
    bufferevent_enable(connection->bev, EV_READ | EV_WRITE);
    set_timer(connection, server->options.idle_ns);
    return true;
}
