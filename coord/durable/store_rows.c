/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "durable/store_state.h"

/* XXH3-64 over number (8 bytes LE), kind (4 bytes LE), payload. `bytes` <= GMS_STORE_RECORD_BYTES. */
static uint64_t record_checksum(uint64_t number, uint32_t kind, const void *payload, uint32_t bytes)
{
    uint8_t whole[RECORD_HEADER_BYTES + GMS_STORE_RECORD_BYTES];
    gms_store_put_le(whole, number, 8);
    gms_store_put_le(whole + 8, kind, 4);
    if (bytes)
        memcpy(whole + RECORD_HEADER_BYTES, payload, bytes);
    return XXH3_64bits(whole, RECORD_HEADER_BYTES + bytes);
}

static uint64_t snapshot_checksum(const struct cover *cover, const void *payload, size_t bytes)
{
    uint8_t place[16];
    gms_store_put_le(place, cover->first, 8);
    gms_store_put_le(place + 8, cover->last, 8);
    return XXH3_64bits_withSeed(payload, bytes, XXH3_64bits(place, sizeof(place)));
}

/* One row of `records`, checked. */
static gms_status check_row(const gms_store *store, sqlite3_stmt *row, uint64_t expected, struct gms_error *ret_error)
{
    uint64_t number = (uint64_t)sqlite3_column_int64(row, 0);
    const void *payload = sqlite3_column_blob(row, 2);
    int bytes = sqlite3_column_bytes(row, 2);
    int64_t kind = sqlite3_column_int64(row, 1);

    if (number != expected)
        return gms_fail(ret_error, GMS_E_CORRUPT,
                        "store %s: record %" PRIu64 " is missing (the next is %" PRIu64
                        "); start with --fresh to set the store aside as .old",
                        store->path, expected, number);
    if (sqlite3_column_type(row, 1) != SQLITE_INTEGER || kind < 0 || kind > UINT32_MAX ||
        sqlite3_column_type(row, 2) != SQLITE_BLOB || bytes > GMS_STORE_RECORD_BYTES ||
        sqlite3_column_type(row, 3) != SQLITE_INTEGER ||
        (uint64_t)sqlite3_column_int64(row, 3) != record_checksum(number, (uint32_t)kind, payload, (uint32_t)bytes))
        return gms_fail(ret_error, GMS_E_CORRUPT,
                        "store %s: record %" PRIu64
                        " is damaged (its checksum is wrong); start with --fresh to set the store aside as .old",
                        store->path, number);
    return GMS_OK;
}

gms_status gms_store_walk(gms_store *store, gms_store_visit visit, void *context, uint64_t *ret_last,
                          struct gms_error *ret_error)
{
    sqlite3_stmt *row = NULL;
    uint64_t last = store->first - 1;
    gms_status status = GMS_OK;
    int rc = sqlite3_prepare_v2(store->db, "SELECT number, kind, payload, checksum FROM records ORDER BY number", -1,
                                &row, NULL);

    while (rc == SQLITE_OK || rc == SQLITE_ROW) {
        rc = sqlite3_step(row);
        if (rc != SQLITE_ROW)
            break;
        status = check_row(store, row, last + 1, ret_error);
        if (status == GMS_OK && visit)
            status = visit(context, last + 1, (uint32_t)sqlite3_column_int64(row, 1), sqlite3_column_blob(row, 2),
                           (uint32_t)sqlite3_column_bytes(row, 2));
        if (status != GMS_OK)
            break;
        last++;
    }
    if (status == GMS_OK && rc != SQLITE_DONE) {
        char what[64];
        snprintf(what, sizeof(what), "read record %" PRIu64, last + 1);
        status = gms_store_fail(store, rc, what, ret_error);
    }
    sqlite3_finalize(row);
    if (status == GMS_OK)
        *ret_last = last;
    return status;
}

static gms_status bad_snapshot(const gms_store *store, const char *what, struct gms_error *ret_error)
{
    return gms_fail(ret_error, GMS_E_CORRUPT,
                    "store %s: the snapshot %s; start with --fresh to set the store aside as .old", store->path, what);
}

/* Reads and checks the snapshot's row. *ret_payload (NULL: not wanted) is a copy, the caller's. No row: all zero. */
gms_status gms_store_read_snapshot(gms_store *store, struct cover *ret_cover, void **ret_payload, uint32_t *ret_bytes,
                                   struct gms_error *ret_error)
{
    sqlite3_stmt *row = NULL;
    struct cover cover = {0};
    void *copy = NULL;
    int bytes = 0;
    gms_status status = GMS_OK;
    int rc = sqlite3_prepare_v2(store->db, "SELECT first, last, payload, checksum FROM snapshot", -1, &row, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(row);
    if (rc == SQLITE_ROW) {
        const void *payload = sqlite3_column_blob(row, 2);
        bytes = sqlite3_column_bytes(row, 2);
        cover.first = (uint64_t)sqlite3_column_int64(row, 0);
        cover.last = (uint64_t)sqlite3_column_int64(row, 1);
        if (sqlite3_column_type(row, 2) != SQLITE_BLOB || bytes <= 0 || bytes > GMS_STORE_SNAPSHOT_BYTES ||
            cover.first == 0 || cover.last < cover.first || sqlite3_column_type(row, 3) != SQLITE_INTEGER ||
            (uint64_t)sqlite3_column_int64(row, 3) != snapshot_checksum(&cover, payload, (size_t)bytes))
            status = bad_snapshot(store, "is damaged (its checksum is wrong)", ret_error);
        if (status == GMS_OK && ret_payload) {
            copy = malloc((size_t)bytes);
            if (!copy)
                status = gms_fail(ret_error, GMS_E_NO_MEMORY, "store %s: no memory for a snapshot of %d bytes",
                                  store->path, bytes);
            else
                memcpy(copy, payload, (size_t)bytes);
        }
    } else if (rc != SQLITE_DONE) {
        status = gms_store_fail(store, rc, "read the snapshot", ret_error);
    }
    sqlite3_finalize(row);
    if (status != GMS_OK)
        return status;
    *ret_cover = cover;
    if (ret_payload) {
        *ret_payload = copy;
        *ret_bytes = (uint32_t)bytes;
    }
    return GMS_OK;
}

gms_status gms_store_check_contents(gms_store *store, struct gms_error *ret_error)
{
    struct cover cover;
    gms_status status = gms_store_read_snapshot(store, &cover, NULL, NULL, ret_error);
    if (status != GMS_OK)
        return status;
    store->first = cover.first ? cover.first : 1;
    status = gms_store_walk(store, NULL, NULL, &store->last, ret_error);
    if (status == GMS_OK && store->last < cover.last)
        status = bad_snapshot(store, "covers records that are missing", ret_error);
    return status;
}

gms_status gms_store_insert_record(gms_store *store, uint64_t number, const struct gms_store_record *record,
                                   struct gms_error *ret_error)
{
    gms_status status = GMS_OK;
    int rc;

    sqlite3_bind_int64(store->insert, 1, (int64_t)number);
    sqlite3_bind_int64(store->insert, 2, record->kind);
    sqlite3_bind_blob(store->insert, 3, record->bytes ? record->payload : "", (int)record->bytes, SQLITE_STATIC);
    sqlite3_bind_int64(store->insert, 4,
                       (int64_t)record_checksum(number, record->kind, record->payload, record->bytes));
    rc = sqlite3_step(store->insert);
    if (rc != SQLITE_DONE)
        status = gms_store_fail(store, rc, "append", ret_error);
    sqlite3_reset(store->insert);
    sqlite3_clear_bindings(store->insert);
    return status;
}

/* Puts the snapshot in place and lets go of records that it covers, a bunch at a time. */
gms_status gms_store_replace_snapshot(gms_store *store, const void *snapshot, uint32_t bytes, uint64_t last,
                                      uint64_t *ret_first, struct gms_error *ret_error)
{
    static const char sql[] = "INSERT OR REPLACE INTO snapshot VALUES(1, ?1, ?2, ?3, ?4)";
    struct cover cover = {.first = store->first, .last = last};
    sqlite3_stmt *statement = NULL;
    gms_status status = GMS_OK;
    char remove[96];

    if (last - cover.first >= 2 * GMS_STORE_KEPT) {
        cover.first = last - GMS_STORE_KEPT + 1;
        snprintf(remove, sizeof(remove), "DELETE FROM records WHERE number < %" PRId64, (int64_t)cover.first);
        status = gms_store_run(store, remove, "drop old records", ret_error);
        if (status != GMS_OK)
            return status;
    }
    int rc = sqlite3_prepare_v2(store->db, sql, -1, &statement, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_bind_int64(statement, 1, (int64_t)cover.first);
        sqlite3_bind_int64(statement, 2, (int64_t)cover.last);
        sqlite3_bind_blob(statement, 3, snapshot, (int)bytes, SQLITE_STATIC);
        sqlite3_bind_int64(statement, 4, (int64_t)snapshot_checksum(&cover, snapshot, bytes));
        rc = sqlite3_step(statement);
    }
    if (rc != SQLITE_DONE)
        status = gms_store_fail(store, rc, "store the snapshot", ret_error);
    sqlite3_finalize(statement);
    *ret_first = cover.first;
    return status;
}
