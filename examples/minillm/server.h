/* SPDX-License-Identifier: Apache-2.0
 *
 * The streaming server of rank 0: clients, their lines, their requests in the scheduler.
 *
 * Life: server_open makes and names the socket (so a parked engine knows its endpoint and nobody can connect yet),
 * server_listen opens it, server_serve starts to accept and greet. All descriptors are non-blocking and CLOEXEC; one
 * poll serves everything. A client that disconnects has its requests cancelled; one that does not read its output is
 * dropped at a limit; a malformed line costs its sender an error and nobody else anything.
 */
#ifndef MINILLM_SERVER_H
#define MINILLM_SERVER_H

#include "scheduler.h"

#include <poll.h>
#include <stdint.h>

enum {
    SERVER_MAX_CLIENTS = 256,
    SERVER_CLIENT_REQUESTS = 1024,         /* at once per client */
    SERVER_OUTPUT_BYTES = 8 * 1024 * 1024, /* unread output of one client before it is dropped */
    SERVER_ENDPOINT_BYTES = 128,
};

struct server; /* opaque */

/*
 * `listen`: "unix:PATH" or "tcp:127.0.0.1:PORT" (port 0: any); engines may share one, see endpoint.h. NULL with the
 * reason in ret_text.
 */
struct server *server_open(const char *listen, char *ret_text, size_t text_bytes);
/* Where clients connect, with the real port. Borrowed. */
const char *server_endpoint(const struct server *server);
/* From here on connections queue up. False with the reason in ret_text. */
bool server_listen(struct server *server, char *ret_text, size_t text_bytes);

struct server_identity {
    uint32_t engine, world_size, vocabulary, context_tokens;
    uint64_t incarnation, epoch;
};

/* From here on clients are served by `scheduler` (borrowed). */
void server_serve(struct server *server, const struct server_identity *identity, struct scheduler *scheduler);

/* The server's side of scheduler.h's sink; context is the server, owner a request. */
struct scheduler_sink server_sink(struct server *server);

/*
 * Handles what the sockets have, waiting up to timeout_ns (-1: until something happens) for the first event. `extra`
 * descriptors are polled along; their revents are set. Returns when anything happened.
 */
void server_poll(struct server *server, int64_t timeout_ns, struct pollfd *extra, uint32_t extra_count);

/* Tries to send what is left for at most timeout_ns, closes everything. NULL is allowed. */
void server_close(struct server *server);

#endif
