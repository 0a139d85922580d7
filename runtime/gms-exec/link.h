/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-exec's connection to its coordinator rank. Never blocks longer than one short connect.
 *
 *   DOWN --connected, HELLO sent--> GREETING --WELCOME--> FETCHING --ENVIRONMENT_REPLY--> READY
 *    ^                                 |  (environment known: straight to READY)            | offered
 *    |                                 |                                                    v
 *    +-- closed, malformed, no answer, not yet (AGAIN, BUSY): again after a pause ----- OFFERING --REPLY--> ATTACHED
 *
 * A new coordinator gets HELLO and CONTAINER again, so a restart of the coordinators costs an engine nothing.
 */
#ifndef GMS_EXEC_LINK_H
#define GMS_EXEC_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "gms/status.h"
#include "gms-exec/saved.h"
#include "wire/message.h"

enum gms_link_state {
    GMS_LINK_DOWN,
    GMS_LINK_GREETING,
    GMS_LINK_FETCHING,
    GMS_LINK_READY,
    GMS_LINK_OFFERING,
    GMS_LINK_ATTACHED,
    GMS_LINK_STATE_COUNT
};

enum gms_link_event {
    GMS_LINK_NOTHING,
    GMS_LINK_ENVIRONMENT, /* environment and world_size are known now, once */
    GMS_LINK_TAKEN,       /* the coordinator has the container; again after each reconnection */
    GMS_LINK_LOST,        /* it was attached and is no more; trying again by itself */
    GMS_LINK_REFUSED,     /* the coordinator says no: link->error. Tried again by itself if the caller goes on */
};

struct gms_link {
    char path[128];
    uint32_t rank, engine;
    const char *launch; /* borrowed */
    int own_pidfd;      /* borrowed */
    int fd;
    enum gms_link_state state;
    uint64_t deadline_ns;                           /* DOWN: next try; else: the answer must be here */
    uint64_t backoff_ns, backoff_limit_ns, lost_ns; /* lost_ns: when it was attached last; 0: never */
    uint32_t request_id;
    uint64_t world;
    uint32_t world_size;
    void *environment; /* owned; NULL until known */
    size_t environment_bytes;
    bool offered;
    enum gms_container_kind kind;
    uint32_t containment;              /* the deployment's wish, with the environment */
    int container, rank_pidfd, cgroup; /* borrowed; cgroup -1: none */
    struct gms_saved *saved;           /* borrowed; NULL: what the coordinator wants saved is not */
    void *buffer;                      /* owned, GMS_WIRE_MAX_BYTES */
    struct gms_error error;            /* why the last attempt came to nothing */
};

/* Errors: INVALID (path too long: length and limit), NO_MEMORY. `own_pidfd`, `launch` borrowed for the link's life. */
gms_status gms_link_open(struct gms_link *link, const char *run_dir, uint32_t rank, uint32_t engine, const char *launch,
                         int own_pidfd, struct gms_error *ret_error);
void gms_link_close(struct gms_link *link);

/* Gives the container to this and every later coordinator. Descriptors borrowed; `cgroup` -1: none. */
void gms_link_offer(struct gms_link *link, enum gms_container_kind kind, int container, int rank_pidfd, int cgroup);

/* Tells the coordinator, if there is one, that this rank was told to end: its end is no fault. */
void gms_link_tell_leaving(struct gms_link *link);

/* Does what is due. Call when link->fd is readable or link->deadline_ns has passed; until it returns NOTHING. */
enum gms_link_event gms_link_step(struct gms_link *link, uint64_t now_ns);

#endif
