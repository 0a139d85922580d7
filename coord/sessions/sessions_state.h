/* SPDX-License-Identifier: Apache-2.0
 * Private to sessions.c and sessions_greet.c. */
#ifndef GMS_COORD_SESSIONS_STATE_H
#define GMS_COORD_SESSIONS_STATE_H

#include <event2/util.h>

#include "sessions/sessions.h"

/* One message that a client has not taken yet, encoded, with descriptors of its own. */
struct gms_outgoing {
    struct gms_outgoing *next;
    size_t bytes;
    int fds[GMS_WIRE_MAX_FDS];
    uint32_t fd_count;
    uint8_t data[];
};

struct gms_offer {
    char launch[GMS_LAUNCH_BYTES]; /* of the cohort that is to take it */
    struct gms_container container;
};

struct gms_sessions {
    struct gms_sessions_options options;
    struct event_base *base;
    int listener;
    struct event *acceptable, *reaper, *again; /* again: accepting is paused */
    struct gms_client *clients;                /* oldest last */
    uint32_t count, capacity;
    uint64_t next_id;
    struct gms_offer offers[GMS_MAX_ENGINES]; /* containers said by gms-exec, not yet taken by an engine */
    uint8_t buffer[GMS_WIRE_MAX_BYTES];       /* what was received last */
    uint8_t sending[GMS_WIRE_MAX_BYTES];
};

/* Says so in the log and to the client, and ends the session. */
void gms_session_refuse(struct gms_client *client, uint32_t request_id, gms_status status, const char *text);
/* A client's first message: HELLO, or it is refused. `message` and its descriptors are borrowed, as in `received`. */
void gms_session_greet(struct gms_client *client, struct gms_message *message);
/* The event of an engine rank's pidfd. */
void gms_session_on_ended(evutil_socket_t fd, short what, void *context);

#endif
