/* SPDX-License-Identifier: Apache-2.0
 *
 * The doorbell: a mesh of connected sockets that wakes sleeping coordinator ranks. A ring carries the number of the
 * round somebody wants and is idempotent: per peer only the highest number waits to be sent, so no send ever blocks and
 * none is lost. A closed doorbell is a dead coordinator. A silent one (no ring and no beat for three heartbeats) counts
 * as dead too, but only if this process itself was awake meanwhile (V17).
 *
 * Between ranks of one host it is a socket of the run directory, between hosts TCP. A link that is cut is silence: both
 * sides leave after three heartbeats, neither goes on alone.
 *
 * One datagram, 32 bytes, little-endian; over TCP one after another:
 *
 *   u32 magic "GMSB" | u32 kind (1 greeting, 2 ring, 3 beat, 4 note) | u64 world | u64 round | u32 rank | u32 value
 *
 * A greeting over TCP carries the start's secret, which ranks know through MPI, in the place of the round.
 * A note is a key (in the place of the round) and a number for one peer; it decides nothing, and one that does not fit
 * the socket is dropped: whoever needs an answer asks again.
 *
 * Main thread only.
 */
#ifndef GMS_COORD_DOORBELL_H
#define GMS_COORD_DOORBELL_H

#include <stdbool.h>
#include <stdint.h>

#include "gms/status.h"

struct event_base;
struct gms_doorbell;

enum { GMS_DOORBELL_SILENT_BEATS = 3, GMS_DOORBELL_ADDRESS_BYTES = 72 };

/* Where a rank's doorbell is, for ranks on other hosts. */
struct gms_doorbell_place {
    char host[GMS_DOORBELL_ADDRESS_BYTES], address[GMS_DOORBELL_ADDRESS_BYTES]; /* address: IPv4 in digits */
    uint32_t port;                                                              /* 0: not listening to other hosts */
    uint32_t reserved;
    uint64_t secret; /* rank 0's counts */
};

struct gms_doorbell_options {
    const char *run_dir; /* borrowed until gms_doorbell_connect returned */
    uint64_t world;
    uint32_t rank, ranks;
    uint64_t heartbeat_ns;
    bool other_hosts;    /* listen to them too */
    const char *address; /* where they find this rank, in digits; borrowed; other_hosts */
    /* Somebody wants round `round`. Called from the loop, never from inside a call of this header. */
    void (*rung)(void *context, uint64_t round);
    /* A peer left a note. Called from the loop. NULL: notes are not expected. */
    void (*noted)(void *context, uint32_t from, uint64_t key, uint32_t value);
    /* A peer is dead or silent; `text` names it and says why. The caller is expected to end the process. */
    void (*lost)(void *context, const char *text);
    /* After each heartbeat: what else must be looked at now and then, without a wake-up of its own. NULL allowed. */
    void (*beat)(void *context);
    void *context;
};

/* Makes this rank's listening socket. The caller owns *ret_doorbell. Errors: those of gms_channel_listen, NO_MEMORY. */
gms_status gms_doorbell_open(const struct gms_doorbell_options *options, struct gms_doorbell **ret_doorbell,
                             struct gms_error *ret_error);

/* What the others must know of this rank; host and secret are the caller's to add. */
void gms_doorbell_look(const struct gms_doorbell *doorbell, struct gms_doorbell_place *ret_place);
/* Where all ranks are, in order (borrowed until gms_doorbell_connect returned). Not called: all on this host. */
void gms_doorbell_set_places(struct gms_doorbell *doorbell, const struct gms_doorbell_place *places);

/*
 * After every rank opened its own: connects to all lower ranks, waits for all higher ones, both until `deadline_ns`,
 * then joins `base`'s loop and starts the heartbeat. Errors: TIMEOUT (names a missing rank), FOREIGN_WORLD,
 * DISCONNECTED, SYSTEM.
 */
gms_status gms_doorbell_connect(struct gms_doorbell *doorbell, struct event_base *base, uint64_t deadline_ns,
                                struct gms_error *ret_error);

/* Rings all peers for `round`; never blocks. Rounds at or below one already rung are not sent again. */
void gms_doorbell_ring(struct gms_doorbell *doorbell, uint64_t round);

/* Leaves a note with one peer; never blocks. False: it does not fit now, or there is no such peer. */
bool gms_doorbell_note(struct gms_doorbell *doorbell, uint32_t to, uint64_t key, uint32_t value);

/* Whether some peer's end is closed, asked of the kernel now (for use while the loop does not run). */
bool gms_doorbell_any_closed(const struct gms_doorbell *doorbell);

/* From here on closed doorbells are expected: the job is stopping as planned. */
void gms_doorbell_expect_end(struct gms_doorbell *doorbell);

void gms_doorbell_close(struct gms_doorbell *doorbell); /* NULL allowed */

#endif
