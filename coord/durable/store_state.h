/* SPDX-License-Identifier: Apache-2.0
 * Private to store.c (the database, whose it is, transactions) and store_rows.c (records and the snapshot in it). */
#ifndef GMS_COORD_STORE_STATE_H
#define GMS_COORD_STORE_STATE_H

#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

#include "durable/store.h"

enum {
    FORMAT = 2,                  /* PRAGMA user_version */
    APPLICATION_ID = 0x474d5353, /* "GMSS" */
    PATH_BYTES = 512,            /* the path with its longest suffix */
    RECORD_HEADER_BYTES = 8 + 4, /* what the checksum covers before the payload: number, kind */
    NOTE_BYTES = 2 * PATH_BYTES + 256,
};

struct gms_store {
    sqlite3 *db;
    sqlite3_stmt *insert;
    uint64_t first, last; /* numbers of the records that are there; last 0: none yet */
    uint64_t world;       /* that this process stores for */
    uint64_t found_world; /* that had stored in it before; 0: it is new */
    bool is_new, adopted; /* adopted: table meta says that world */
    char boot_id[GMS_BOOT_ID_BYTES];
    uint64_t keeper;
    char path[PATH_BYTES];
    char note[NOTE_BYTES];
};

/* What stands beside the snapshot's bytes. */
struct cover {
    uint64_t first; /* oldest record that was kept */
    uint64_t last;  /* newest record that it covers */
};

/* The status that an SQLite result stands for, with what was being done. */
gms_status gms_store_fail(const gms_store *store, int rc, const char *what, struct gms_error *ret_error);
/* One statement without results; `what` for texts. */
gms_status gms_store_run(gms_store *store, const char *sql, const char *what, struct gms_error *ret_error);
static inline void gms_store_put_le(uint8_t *place, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        place[i] = (uint8_t)(value >> (8 * i));
}

/* Checks every record in the order of numbers and shows it; NULL: only checks. A gap or a wrong checksum is CORRUPT and
 * names the record. *ret_last: the last one, 0 for none. */
gms_status gms_store_walk(gms_store *store, gms_store_visit visit, void *context, uint64_t *ret_last,
                          struct gms_error *ret_error);
/* Reads and checks the snapshot's row. *ret_payload (NULL: not wanted) is a copy, the caller's. No row: all zero. */
gms_status gms_store_read_snapshot(gms_store *store, struct cover *ret_cover, void **ret_payload, uint32_t *ret_bytes,
                                   struct gms_error *ret_error);
/* All records and the snapshot, and that they belong together; sets first and last. */
gms_status gms_store_check_contents(gms_store *store, struct gms_error *ret_error);
/* Inside a transaction. */
gms_status gms_store_insert_record(gms_store *store, uint64_t number, const struct gms_store_record *record,
                                   struct gms_error *ret_error);
/* Inside a transaction: puts the snapshot in place and lets go of records that it covers, a bunch at a time. */
gms_status gms_store_replace_snapshot(gms_store *store, const void *snapshot, uint32_t bytes, uint64_t last,
                                      uint64_t *ret_first, struct gms_error *ret_error);

#endif
