/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP server: listens, reads requests, one at a time on each connection, and sends what it is given. It bounds
 * what a client may cost: connections, sizes, the time for a head, for a body and for taking an answer. What a request
 * means is the caller's business.
 *
 *   IDLE --first byte--> HEAD --> BODY --> BUSY (handed over) --answer complete--> IDLE, or LINGER --> closed
 *
 * While BUSY at most one buffer of what the client sends further (pipelining) is read, and its end of file ends the
 * exchange: who has gone wants no answer. LINGER: the answer is out; what still comes is thrown away for a moment, so
 * that the answer is not lost with it. Main thread only.
 */
#ifndef GMS_RELAY_SERVER_H
#define GMS_RELAY_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gms-relay/http.h"
#include "gms/status.h"

struct event_base;
struct relay_server;
struct relay_connection;

struct relay_server_options {
    const char *host, *port; /* numeric address; port "0": any */
    uint32_t max_connections;
    size_t max_body_bytes;
    uint64_t head_ns, body_ns, idle_ns; /* for a whole head, for a whole body, between requests */
    uint64_t stall_ns;                  /* a client that takes nothing of its answer for so long is dropped */
    /* A whole request. Answer now or later. `body` is borrowed for the call. */
    void (*request)(void *context, struct relay_connection *connection, const struct relay_http_request *request,
                    const char *body, size_t bytes);
    /* The client of an unanswered request has gone; the connection is dead after the call. */
    void (*gone)(void *context, struct relay_connection *connection);
    /* What was written has been sent. */
    void (*drained)(void *context, struct relay_connection *connection);
    void *context;
};

struct relay_server_counts {
    uint64_t accepted, refused, bad_requests, timeouts, stalled;
    uint32_t open;
};

/* Errors: INVALID (address), EXISTS (in use), PERMISSION, SYSTEM. */
gms_status relay_server_open(struct event_base *base, const struct relay_server_options *options,
                             struct relay_server **ret_server, struct gms_error *ret_error);
void relay_server_close(struct relay_server *server); /* NULL allowed; `gone` is not called */
/* No new connections, and no new request on the old ones. */
void relay_server_stop_listening(struct relay_server *server);
const char *relay_server_address(const struct relay_server *server); /* "127.0.0.1:8000" */
const struct relay_server_counts *relay_server_counts(const struct relay_server *server);

/* The caller's word for a connection, NULL at first and after each answer. */
void relay_connection_set(struct relay_connection *connection, void *owner);
void *relay_connection_get(const struct relay_connection *connection);

/* A whole answer. `headers`: lines with CR LF, may be "". */
void relay_answer(struct relay_connection *connection, int status, const char *type, const char *headers,
                  const char *body, size_t bytes);
/* An answer in pieces: chunked, or until the end of the connection for HTTP/1.0. */
void relay_stream_begin(struct relay_connection *connection, int status, const char *type, const char *headers);
void relay_stream_write(struct relay_connection *connection, const char *data, size_t bytes);
/* `whole`: false: the client must see that it is not the end (the connection ends without the last chunk). */
void relay_stream_end(struct relay_connection *connection, bool whole);
/* Ends the connection from the loop, as if the client had gone. */
void relay_connection_break(struct relay_connection *connection);
/* Bytes that the client has not taken yet. */
size_t relay_unsent(const struct relay_connection *connection);

#endif
