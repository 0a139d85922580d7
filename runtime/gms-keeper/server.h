/* SPDX-License-Identifier: Apache-2.0
 *
 * The keeper's loop: one thread, poll(2), no work without an event. Whatever a client sends or does not read harms only
 * itself: each request has one reply, sent without blocking, and a client that does not take it is closed.
 */
#ifndef GMS_KEEPER_SERVER_H
#define GMS_KEEPER_SERVER_H

#include "base/run_dir.h"
#include "gms-keeper/shelf.h"
#include "gms-keeper/worlds.h"

enum {
    SERVER_MAX_CLIENTS = 256,   /* fewer when the descriptor limit is low */
    SERVER_END_BOUND_MS = 1500, /* how long an older holder may take to end; below the client's 2 s */
    SERVER_DEAF_MS = 100,
    SERVER_TERM_AGAIN_MS = 5000,   /* a second SIGTERM within this time ends a keeper that holds memory ... */
    SERVER_TERM_TOGETHER_MS = 100, /* ... unless it came together with the first: one stop, sent twice */
};

struct server_client {
    uint64_t id;    /* never used again; 0: free place */
    uint64_t heard; /* order of the last word from it */
    int fd;
    pid_t pid;    /* from the kernel; 0: in another PID namespace */
    bool granted; /* has shown a valid token */
    bool waits;   /* for an older holder's end */
};

struct server {
    char run_dir[GMS_RUN_PATH_BYTES], socket_path[GMS_RUN_PATH_BYTES];
    int directory_lock, name_lock, listener, signals;
    uint64_t socket_device, socket_inode; /* of our socket's name */
    uint64_t incarnation, next_client, next_heard;
    uint64_t term_ns;       /* last SIGTERM that was not obeyed; 0: none */
    uint64_t deaf_until_ns; /* no accept until then: no descriptors; 0: listening */
    unsigned client_limit, client_count;
    bool stop;
    struct server_client clients[SERVER_MAX_CLIENTS];
    struct shelf shelf;
    struct worlds worlds;
    uint8_t buffer[GMS_WIRE_MAX_BYTES], names[GMS_WIRE_MAX_BYTES - 4096];
};

/* Takes the run directory (made if missing), one keeper for each: EXISTS names the other one. Then listens. The signals
 * TERM, INT and HUP are taken over by the server. On failure everything is given back. */
gms_status server_open(struct server *server, const char *run_dir, struct gms_error *ret_error);
/* Serves until it is told to end. */
gms_status server_run(struct server *server, struct gms_error *ret_error);
/* Closes all that is held: memory that nobody else has open is gone. */
void server_close(struct server *server);

/* requests.c: answers one message; takes its descriptors. False: this client is to be closed. */
bool server_request(struct server *server, struct server_client *client, struct gms_message *message);
/* Sends a reply that is nothing but a status. False: the client does not take it. */
bool server_reply_status(struct server *server, const struct server_client *client, uint32_t request_id,
                         const struct gms_error *error);
/* A seat moved on: tells the one that waited for it. */
void server_settle(struct server *server, struct world_seat *seat, uint64_t now_ns);
struct server_client *server_find_client(struct server *server, uint64_t id);
void server_close_client(struct server *server, struct server_client *client);

#endif
