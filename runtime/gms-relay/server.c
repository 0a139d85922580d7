/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "gms-relay/server_state.h"

enum { BACKLOG = 1024, PAUSE_MS = 50 /* before accepting again when descriptors were short */ };

/* ---------------------------------------------------------------------------------------------------- accept -- */

static void turn_away(struct relay_server *server, evutil_socket_t fd)
{
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
                               "Content-Length: 0\r\n\r\n";
    ssize_t sent = send(fd, full, sizeof full - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)sent;
    server->counts.refused++;
    close(fd);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address, int bytes,
                      void *context)
{
    struct relay_server *server = context;
    (void)listener;
    (void)address;
    (void)bytes;
    if (server->counts.open >= server->options.max_connections || !relay_connection_open(server, fd))
        turn_away(server, fd);
}

static void on_accept_error(struct evconnlistener *listener, void *context)
{
    struct relay_server *server = context;
    struct timeval pause = relay_interval(PAUSE_MS * GMS_NS_PER_MS);
    gms_log(GMS_LOG_WARNING, "a connection cannot be accepted: %s", strerror(errno));
    evconnlistener_disable(listener);
    event_add(server->again, &pause);
}

static void on_again(evutil_socket_t fd, short what, void *context)
{
    struct relay_server *server = context;
    (void)fd;
    (void)what;
    if (server->listener != NULL)
        evconnlistener_enable(server->listener);
}

/* ------------------------------------------------------------------------------------------------------ open -- */

static void name_address(struct relay_server *server)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    char host[64] = "?", port[16] = "?";
    if (getsockname(evconnlistener_get_fd(server->listener), (struct sockaddr *)&address, &bytes) == 0)
        getnameinfo((struct sockaddr *)&address, bytes, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(server->address, sizeof server->address, address.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

gms_status relay_server_open(struct event_base *base, const struct relay_server_options *options,
                             struct relay_server **ret_server, struct gms_error *ret_error)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *address = NULL;
    if (getaddrinfo(options->host, options->port, &hints, &address) != 0)
        return gms_fail(ret_error, GMS_E_INVALID, "%s port %s is no numeric address, such as 127.0.0.1 port 8000",
                        options->host, options->port);
    struct relay_server *server = calloc(1, sizeof *server);
    if (server == NULL) {
        freeaddrinfo(address);
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the server");
    }
    server->options = *options;
    server->base = base;
    server->again = event_new(base, -1, 0, on_again, server);
    server->listener = evconnlistener_new_bind(base, on_accept, server,
                                               LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
                                               BACKLOG, address->ai_addr, (int)address->ai_addrlen);
    int why = errno;
    freeaddrinfo(address);
    if (server->listener == NULL || server->again == NULL) {
        relay_server_close(server);
        return gms_fail(ret_error,
                        why == EADDRINUSE ? GMS_E_EXISTS
                        : why == EACCES   ? GMS_E_PERMISSION
                                          : GMS_E_SYSTEM,
                        "cannot listen on %s port %s: %s", options->host, options->port, strerror(why));
    }
    evconnlistener_set_error_cb(server->listener, on_accept_error);
    name_address(server);
    *ret_server = server;
    return GMS_OK;
}

void relay_server_stop_listening(struct relay_server *server)
{
    server->stopping = true;
    if (server->listener != NULL)
        evconnlistener_free(server->listener);
    server->listener = NULL;
}

void relay_server_close(struct relay_server *server)
{
    if (server == NULL)
        return;
    while (server->connections != NULL)
        relay_connection_free(server->connections);
    if (server->listener != NULL)
        evconnlistener_free(server->listener);
    if (server->again != NULL)
        event_free(server->again);
    free(server);
}

const char *relay_server_address(const struct relay_server *server)
{
    return server->address;
}

const struct relay_server_counts *relay_server_counts(const struct relay_server *server)
{
    return &server->counts;
}
