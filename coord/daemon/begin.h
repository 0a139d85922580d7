/* SPDX-License-Identifier: Apache-2.0
 *
 * How a world begins on a rank: what one start of the program carries from step to step (main.c has the order of them),
 * and its middle, in which this rank looks at what earlier worlds left and all ranks conclude the same from it.
 */
#ifndef GMS_COORD_BEGIN_H
#define GMS_COORD_BEGIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "config/config.h"
#include "core/recovery.h"
#include "daemon/daemon.h"
#include "durable/copies.h"
#include "durable/store.h"
#include "gms-keeper/client.h"
#include "group/round_mpi.h"

/* The command line. */
struct arguments {
    const char *config_path, *log_destination;
    enum gms_log_level log_level;
    bool check, fresh, accept_store_loss, replace;
};

struct start {
    const struct arguments *arguments;
    struct gms_round *round;
    struct gms_config *config;
    uint32_t rank;
    bool reported; /* the file's errors are printed already */
    uint64_t world;
    struct gms_keeper_client keeper;
    gms_store *store; /* NULL: it could not be trusted; doubt and doubt_text say why */
    enum gms_store_doubt doubt;
    char doubt_text[GMS_ERROR_TEXT_BYTES];
    struct gms_copies *copies;
    struct gms_recovery_decision decision;
    struct gms_device_of_rank device;
    void *snapshot;          /* owned; this rank's, then the group's */
    uint32_t snapshot_bytes; /* 0: none */
    struct gms_daemon_place place;
    struct gms_doorbell_place *doors; /* owned; NULL: all ranks on one host */
    char *inherited;                  /* owned; rank 0's variables that engines get */
    size_t inherited_bytes;
    struct gms_daemon *daemon;
};

/* Opens this rank's store as this world's; `fresh`: what there is is set aside. start->doubt says why it cannot be
 * trusted. Errors: those of gms_store_open. */
gms_status gms_begin_open_store(struct start *start, bool fresh, struct gms_error *ret_error);
/* COLLECTIVE: all ranks call it, and all conclude the same. Looks at the store, the snapshot and the keeper's copies
 * without changing anything (but for --fresh, which gives them up), and leaves start->decision and the snapshot to go
 * on from. Errors: IN_DOUBT (an operator must decide; the text says what), and those of the store and the keeper. */
gms_status gms_begin_look_and_decide(struct start *start, struct gms_error *ret_error);

#endif
