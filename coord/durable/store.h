/* SPDX-License-Identifier: Apache-2.0
 *
 * The store of one coordinator rank: what must be durable before it is visible. SQLite at RUN/store.<rank>, WAL,
 * synchronous off: it survives the end of any process; a lost node loses the memory the records speak of as well.
 * Format and shell examples: coord/README.md.
 *
 * Beside the records stands one snapshot, replaced as a whole: what the records up to it amount to. Records that it
 * covers are kept for people, the newest GMS_STORE_KEPT or so.
 *
 * A store belongs to one boot of the node. It passes from world to world: the first thing that a new world stores makes
 * it that world's. One process has it open at a time. Thread rule: one thread.
 */
#ifndef GMS_COORD_STORE_H
#define GMS_COORD_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "gms/status.h"

enum {
    GMS_BOOT_ID_BYTES = 37,        /* NUL included */
    GMS_STORE_RECORD_BYTES = 4096, /* largest payload of one record */
    GMS_STORE_SNAPSHOT_BYTES = 256 * 1024,
    GMS_STORE_MARK = 0,   /* kind of a record that says only that the snapshot changed */
    GMS_STORE_KEPT = 256, /* covered records that are kept at least */
    GMS_STORE_AT_ONCE = 64,
};

/* Why an existing store cannot be trusted to be the last that this rank told. */
enum gms_store_doubt {
    GMS_STORE_TRUSTED,
    GMS_STORE_MISSING,    /* there is none, but the keeper remembers one */
    GMS_STORE_DAMAGED,    /* something in it does not verify, or it is of another format */
    GMS_STORE_OTHER_BOOT, /* written under another boot of this node, and the keeper remembers one of this boot */
};

typedef struct gms_store gms_store; /* opaque; made by gms_store_open, freed by gms_store_close */

struct gms_store_options {
    const char *path;    /* borrowed for the call; in the run directory */
    const char *boot_id; /* borrowed; NULL: this boot's */
    uint64_t world;      /* not 0 */
    uint64_t keeper;     /* the keeper's incarnation, kept for people; 0: unknown */
    /* What the keeper remembers of this rank's store (gms_keeper_client); round 0: nothing. A store that is missing was
     * lost, while engines may still map what it knew of (V12). Whether one that is there is an older one, its snapshot
     * tells (core/recovery.h). */
    uint64_t mirror_world, mirror_round;
    bool fresh;                      /* the operator's word, or the group's, that earlier state may be set aside */
    enum gms_store_doubt *ret_doubt; /* NULL allowed; set in any case */
};

/*
 * Opens or makes the store and verifies every record in it. What belongs to another boot, or (`fresh`) to anything
 * earlier, is moved to "PATH.old" and gms_store_note says so. Sets SIGXFSZ to ignored, so that a file size limit is an
 * error here and not the end of the process.
 *
 * Errors: IN_DOUBT (not there, but the mirror says that it was: what to do is in the text), FOREIGN_WORLD (written by a
 * newer world), CORRUPT (names the damaged record), BUSY (another process has it open), VERSION (format), STORE (cannot
 * be read or written), INVALID. After failure the files are as they were.
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

struct gms_store_record {
    uint32_t kind; /* not GMS_STORE_MARK */
    uint32_t bytes;
    const void *payload; /* borrowed; may be NULL with 0 bytes */
};

/*
 * All of it or nothing, as one record would be: `count` records (0 to GMS_STORE_AT_ONCE), numbered on, and a snapshot
 * in place of the last one (`snapshot` NULL: the old one stays). A snapshot alone takes a number too, so that the
 * mirror knows of it. *ret_number is the last number then. Errors: as gms_store_append; INVALID also for a snapshot of
 * more than GMS_STORE_SNAPSHOT_BYTES, or nothing to store.
 */
gms_status gms_store_commit(gms_store *store, const struct gms_store_record *records, uint32_t count,
                            const void *snapshot, uint32_t snapshot_bytes, uint64_t *ret_number,
                            struct gms_error *ret_error);

/* The snapshot; *ret_snapshot is the caller's (free), NULL with 0 bytes when there is none. */
gms_status gms_store_snapshot(gms_store *store, void **ret_snapshot, uint32_t *ret_bytes, struct gms_error *ret_error);

/* Was there anything of this boot when it was opened? */
bool gms_store_is_new(const gms_store *store);
/* The world that had made it or written to it last when it was opened; 0: it is new. */
uint64_t gms_store_world(const gms_store *store);

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
