/* SPDX-License-Identifier: Apache-2.0
 *
 * The store of one coordinator rank: what must be durable before it is visible. SQLite at RUN/store.<rank>, WAL,
 * synchronous off: it survives the end of any process; a lost node loses the memory the records speak of as well.
 * Format and shell examples: coord/README.md.
 *
 * A store belongs to one boot of the node and one world. One process has it open at a time. Thread rule: one thread.
 */
#ifndef GMS_COORD_STORE_H
#define GMS_COORD_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "gms/status.h"

enum {
    GMS_BOOT_ID_BYTES = 37,        /* NUL included */
    GMS_STORE_RECORD_BYTES = 4096, /* largest payload of one record */
};

typedef struct gms_store gms_store; /* opaque; made by gms_store_open, freed by gms_store_close */

struct gms_store_options {
    const char *path;    /* borrowed for the call; in the run directory */
    const char *boot_id; /* borrowed; NULL: this boot's */
    uint64_t world;      /* not 0 */
    uint64_t keeper;     /* the keeper's incarnation, kept for people; 0: unknown */
    /* What the keeper remembers of this rank's store (gms_keeper_client); 0: nothing. A store that is missing or older
     * was lost, restored or exchanged, while engines may still map what it knew of (V12). */
    uint64_t mirror_world, mirror_number;
    bool fresh; /* the operator's word that earlier state may be set aside */
};

/*
 * Opens or makes the store and verifies every record in it. What belongs to another boot, or (`fresh`) to anything
 * earlier, is moved to "PATH.old" and gms_store_note says so. Sets SIGXFSZ to ignored, so that a file size limit is an
 * error here and not the end of the process.
 *
 * Errors: IN_DOUBT (records of an earlier world of this boot, or fewer than the mirror says: what to do is in the
 * text), FOREIGN_WORLD (written by a newer world), CORRUPT (names the damaged record), BUSY (another process has it
 * open), VERSION (format), STORE (cannot be read or written), INVALID. After failure the files are as they were.
 */
gms_status gms_store_open(const struct gms_store_options *options, gms_store **ret_store, struct gms_error *ret_error);

/* NULL is allowed. */
void gms_store_close(gms_store *store);

/* What opening did that an operator should read in the log; "" when nothing. Valid until close. */
const char *gms_store_note(const gms_store *store);

/* Stores one record, numbered last + 1. Once it returned OK the end of this process cannot lose it; after failure
 * (STORE: disk full, file limit, I/O) nothing of it is there, now or after reopening, and it may be tried again.
 * `payload` borrowed, may be NULL with 0 bytes. INVALID: longer than GMS_STORE_RECORD_BYTES. */
gms_status gms_store_append(gms_store *store, uint32_t kind, const void *payload, uint32_t bytes, uint64_t *ret_number,
                            struct gms_error *ret_error);

/* Number of the last record, 0 when there is none. */
uint64_t gms_store_last(const gms_store *store);

/* `payload` is borrowed until the call returns. Anything but GMS_OK ends the walk. */
typedef gms_status (*gms_store_visit)(void *context, uint64_t number, uint32_t kind, const void *payload,
                                      uint32_t bytes);

/* Calls `visit` for every record in order. Returns what `visit` returned, CORRUPT or STORE. */
gms_status gms_store_each(gms_store *store, gms_store_visit visit, void *context, struct gms_error *ret_error);

/* The kernel's id of this boot. */
gms_status gms_store_boot_id(char ret_boot_id[GMS_BOOT_ID_BYTES], struct gms_error *ret_error);

#endif
