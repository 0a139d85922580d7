/* SPDX-License-Identifier: Apache-2.0
 *
 * One coordinator rank: an event loop that sleeps on the engine socket, the doorbell, pidfds and one timer. Whatever
 * happens becomes an event for the core; the core's actions are carried out in order. What an action brings about at
 * once (stored, prepared, a round's result) is queued as the next event: no recursion.
 */
#ifndef GMS_COORD_DAEMON_H
#define GMS_COORD_DAEMON_H

#include <stdint.h>

#include "config/config.h"
#include "core/recovery.h"
#include "durable/copies.h"
#include "durable/store.h"
#include "group/round_mpi.h"
#include "memory/device.h"

struct gms_daemon;

enum {
    GMS_EXIT_PLANNED = 0,
    GMS_EXIT_USAGE = 64,
    GMS_EXIT_OPERATOR = 70, /* the group needs somebody's decision */
    GMS_EXIT_RESTART = 75,  /* start the whole job again */
    GMS_EXIT_CONFIG = 78,
};

/* All borrowed for the daemon's life. */
/* Where this rank is among the others. */
struct gms_daemon_place {
    uint32_t local_rank, local_ranks; /* among those of its host, in order of ranks */
    char host[65], address[GMS_ADDRESS_BYTES], master_address[72];
};

struct gms_daemon_options {
    const struct gms_config *config;
    struct gms_round *round;
    struct gms_keeper_client *keeper;
    struct gms_copies *copies; /* loaded */
    gms_store *store;
    uint64_t world;
    struct gms_device_of_rank device;
    enum gms_recovery_verdict verdict; /* not REFUSE */
    uint64_t life;                     /* FRESH: as decided */
    const void *snapshot;              /* FRESH: NULL */
    size_t snapshot_bytes;
    const void *inherited; /* variables that rank 0 brings (environment.h) */
    size_t inherited_bytes;
    struct gms_daemon_place place;
};

/* Opens this rank's sockets and its core. What the core begins with is stored then, so that no later world goes on from
 * anything older once it acts. Errors: those of the parts; nothing stays open after failure. */
gms_status gms_daemon_open(const struct gms_daemon_options *options, struct gms_daemon **ret_daemon,
                           struct gms_error *ret_error);
struct gms_doorbell_place;
/* What other hosts must know of this rank's doorbell, and what they say of theirs (in order of ranks, borrowed until
 * gms_daemon_connect returned). Only where the ranks are on several hosts. */
void gms_daemon_door(const struct gms_daemon *daemon, struct gms_doorbell_place *ret_place);
void gms_daemon_set_doors(struct gms_daemon *daemon, const struct gms_doorbell_place *places);

/* After every rank opened: makes the doorbell mesh, until `deadline_ns`. */
gms_status gms_daemon_connect(struct gms_daemon *daemon, uint64_t deadline_ns, struct gms_error *ret_error);

/* Runs until the group agreed to stop: then 0. What ends the rank in any other way ends the process from inside, by
 * _exit with GMS_EXIT_RESTART or GMS_EXIT_OPERATOR: peers notice by the closed doorbell. */
int gms_daemon_run(struct gms_daemon *daemon);

/* Keep it until after MPI_Finalize: a closed doorbell means death to ranks that are still in their last round. */
void gms_daemon_close(struct gms_daemon *daemon); /* NULL allowed */

#endif
