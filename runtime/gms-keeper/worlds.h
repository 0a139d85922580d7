/* SPDX-License-Identifier: Apache-2.0
 *
 * World tokens: who may speak for a rank. For every rank that ever asked there is one seat:
 *
 *            ask (any newest world)               process ended
 *   (none) ------------------------> HELD ------------------------> FREE --ask, world >= the seat's--> HELD
 *                                     | ask, newer world: SIGKILL through the holder's pidfd
 *                                     v
 *                                   LEAVING --process ended--> HELD by the one that asked
 *                                     | bound passed: the asker is told TIMEOUT and may ask again
 *                                     v
 *                                   HELD (by the one that should have ended)
 *
 * A world older than the seat's is refused for ever, an equal one from another process while the holder lives. A
 * process is named by its pidfd, which was sent by itself; numbers are for logs.
 */
#ifndef GMS_KEEPER_WORLDS_H
#define GMS_KEEPER_WORLDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gms/status.h"

/* Somebody who waits for the former holder's end. */
struct world_waiter {
    uint64_t client; /* whose request it is; 0: nobody waits */
    uint32_t request_id;
    uint64_t world, deadline_ns;
    int pidfd; /* owned; -1: none */
    pid_t pid;
};

struct world_seat {
    uint32_t rank;
    uint64_t world; /* newest granted; stays when the holder is gone */
    uint64_t token; /* 0: nobody holds it */
    int pidfd;      /* the holder's, owned; -1: nobody holds it */
    pid_t pid;      /* for logs; 0: in another PID namespace */
    uint64_t mirror_world, mirror_round;
    struct world_waiter waiter;
};

struct worlds {
    struct world_seat *seats; /* owned, in order of their first request */
    size_t count, capacity;
};

/*
 * A request for the token of (world, rank). Takes ownership of `pidfd` when OK or AGAIN is returned.
 *   OK             granted, or granted before to the same process; *ret_seat has token and mirror
 *   AGAIN          the older holder has been told to end: `client` waits (see worlds_settle)
 *   FOREIGN_WORLD  refused; *ret_displaced is untouched
 *   PERMISSION     the holder cannot be signalled (outside our PID namespace)
 * *ret_displaced: a waiter that this newer one has overtaken (client 0: none); its pidfd is closed already.
 * *ret_seat may be NULL after NO_MEMORY only; it is borrowed until the next request.
 */
gms_status worlds_ask(struct worlds *worlds, uint64_t world, uint32_t rank, int pidfd, pid_t pid,
                      const struct world_waiter *waiter, struct world_seat **ret_seat,
                      struct world_waiter *ret_displaced, struct gms_error *ret_error);

/* A holder may have ended, or a bound may have passed: moves one seat on. Returns true when a waiter got its answer:
 * *ret_waiter says who, *ret_granted what. */
bool worlds_settle(struct world_seat *seat, uint64_t now_ns, struct world_waiter *ret_waiter, bool *ret_granted);

/* The seat that this (world, rank, token) holds, NULL when it is not the holder. */
struct world_seat *worlds_holder(const struct worlds *worlds, uint64_t world, uint32_t rank, uint64_t token);

/* Has the living holder of this rank mirrored a round of its present world? Then it has restored what it needs. */
bool worlds_settled(const struct worlds *worlds, uint32_t rank);

/* Forgets what this client waits for: it is gone. */
void worlds_forget_client(struct worlds *worlds, uint64_t client);
uint64_t worlds_newest(const struct worlds *worlds);
/* The nearest bound of a waiter; UINT64_MAX when nobody waits. */
uint64_t worlds_deadline(const struct worlds *worlds);
void worlds_clear(struct worlds *worlds);

#endif
