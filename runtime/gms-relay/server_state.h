/* SPDX-License-Identifier: Apache-2.0
 *
 * What the server's two files share: server.c (listens, bounds how many come) and connection.c (one connection: its
 * requests and their answers). Nobody else includes this.
 */
#ifndef GMS_RELAY_SERVER_STATE_H
#define GMS_RELAY_SERVER_STATE_H

#include <event2/event.h>

#include "base/clock.h"
#include "gms-relay/server.h"

struct evconnlistener;

struct relay_server {
    struct relay_server_options options;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *again;
    struct relay_connection *connections;
    struct relay_server_counts counts;
    char address[96];
    bool stopping;
};

static inline struct timeval relay_interval(uint64_t ns)
{
    return (struct timeval){.tv_sec = (time_t)(ns / GMS_NS_PER_S), .tv_usec = (suseconds_t)(ns % GMS_NS_PER_S / 1000)};
}

/* A client that has just come, as one of the server's connections, which owns `fd` then. False: there is no memory for
 * it, and `fd` is the caller's still. */
bool relay_connection_open(struct relay_server *server, evutil_socket_t fd);
/* At once; `gone` is not called. */
void relay_connection_free(struct relay_connection *connection);

#endif
