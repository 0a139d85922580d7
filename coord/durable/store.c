/* SPDX-License-Identifier: Apache-2.0 */
#include "durable/store_state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/fd.h"

/* What meta says of a store. */
struct owner {
    bool present; /* false: an empty file */
    char boot_id[GMS_BOOT_ID_BYTES];
    uint64_t world;
};

/* ------------------------------------------------------------------------------------------------ helpers ------ */

/* The status that an SQLite result stands for, with what was being done. */
gms_status gms_store_fail(const gms_store *store, int rc, const char *what, struct gms_error *ret_error)
{
    int primary = rc & 0xff, error = store->db ? sqlite3_system_errno(store->db) : 0;
    const char *text = store->db ? sqlite3_errmsg(store->db) : sqlite3_errstr(rc);

    if (primary == SQLITE_BUSY || primary == SQLITE_LOCKED)
        return gms_fail(ret_error, GMS_E_BUSY,
                        "store %s: %s: another process has it open; only one coordinator rank may", store->path, what);
    if (primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB)
        return gms_fail(ret_error, GMS_E_CORRUPT,
                        "store %s: %s: damaged (%s); start with --fresh to set it aside as .old", store->path, what,
                        text);
    if (primary == SQLITE_NOMEM)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "store %s: %s: out of memory", store->path, what);
    return gms_fail(ret_error, GMS_E_STORE, "store %s: %s: %s%s%s", store->path, what, text, error ? ": " : "",
                    error ? strerror(error) : "");
}

gms_status gms_store_run(gms_store *store, const char *sql, const char *what, struct gms_error *ret_error)
{
    int rc = sqlite3_exec(store->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? GMS_OK : gms_store_fail(store, rc, what, ret_error);
}

/* XXH3-64 over boot id and world: a flipped bit must not turn state into that of another boot. */
static uint64_t meta_checksum(const char *boot_id, uint64_t world)
{
    uint8_t whole[GMS_BOOT_ID_BYTES + 8];
    memcpy(whole, boot_id, GMS_BOOT_ID_BYTES);
    gms_store_put_le(whole + GMS_BOOT_ID_BYTES, world, 8);
    return XXH3_64bits(whole, sizeof(whole));
}

gms_status gms_store_boot_id(char ret_boot_id[GMS_BOOT_ID_BYTES], struct gms_error *ret_error)
{
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    char text[GMS_BOOT_ID_BYTES] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    int error = errno;

    gms_fd_close(&fd);
    if (got != (ssize_t)sizeof(text) - 1)
        return gms_fail(ret_error, GMS_E_SYSTEM, "%s: %s", path, got < 0 ? strerror(error) : "too short");
    memcpy(ret_boot_id, text, sizeof(text));
    return GMS_OK;
}

/* ------------------------------------------------------------------------------------------------ opening ------ */

static void close_database(gms_store *store)
{
    sqlite3_finalize(store->insert);
    sqlite3_close(store->db);
    store->insert = NULL;
    store->db = NULL;
}

/* Makes sure that the path is a regular file of ours, 0600: SQLite would follow a link and use the umask. */
static gms_status make_file(const gms_store *store, struct gms_error *ret_error)
{
    struct stat status;
    int fd = open(store->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return gms_fail(ret_error, GMS_E_STORE, "store %s: cannot be opened: %s", store->path, strerror(errno));
    bool right = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid();
    gms_fd_close(&fd);
    if (!right)
        return gms_fail(ret_error, GMS_E_STORE, "store %s: not a regular file of user %u", store->path,
                        (unsigned)geteuid());
    return GMS_OK;
}

static gms_status open_database(gms_store *store, struct gms_error *ret_error)
{
    /* EXCLUSIVE: a second opener is refused, and the WAL's index needs no shared file that a full disk could cut. */
    static const char setup[] = "PRAGMA locking_mode=EXCLUSIVE; PRAGMA synchronous=OFF; PRAGMA trusted_schema=OFF;"
                                "PRAGMA cell_size_check=ON; PRAGMA journal_mode=WAL; BEGIN IMMEDIATE; COMMIT;";
    gms_status status = make_file(store, ret_error);
    int rc;

    if (status != GMS_OK)
        return status;
    rc = sqlite3_open_v2(store->path, &store->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_EXRESCODE, NULL);
    if (rc != SQLITE_OK)
        return gms_store_fail(store, rc, "open", ret_error);
    return gms_store_run(store, setup, "open", ret_error);
}

static gms_status make_schema(gms_store *store, const struct gms_store_options *options, const char *boot_id,
                              struct gms_error *ret_error)
{
    char sql[1536];
    snprintf(sql, sizeof(sql),
             "BEGIN IMMEDIATE;"
             "CREATE TABLE meta(boot_id TEXT NOT NULL, world INTEGER NOT NULL, keeper INTEGER NOT NULL,"
             " checksum INTEGER NOT NULL);"
             "CREATE TABLE records(number INTEGER PRIMARY KEY, kind INTEGER NOT NULL, payload BLOB NOT NULL,"
             " checksum INTEGER NOT NULL);"
             "CREATE TABLE snapshot(id INTEGER PRIMARY KEY CHECK(id = 1), first INTEGER NOT NULL, last INTEGER NOT"
             " NULL, payload BLOB NOT NULL, checksum INTEGER NOT NULL);"
             "INSERT INTO meta VALUES('%s', %" PRId64 ", %" PRId64 ", %" PRId64 ");"
             "PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT;",
             boot_id, (int64_t)options->world, (int64_t)options->keeper,
             (int64_t)meta_checksum(boot_id, options->world), APPLICATION_ID, FORMAT);
    return gms_store_run(store, sql, "make the tables", ret_error);
}

static gms_status read_integer(gms_store *store, const char *sql, int64_t *ret_value, struct gms_error *ret_error)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(store->db, sql, -1, &statement, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(statement);
    if (rc == SQLITE_ROW)
        *ret_value = sqlite3_column_int64(statement, 0);
    gms_status status = rc == SQLITE_ROW ? GMS_OK : gms_store_fail(store, rc, "read", ret_error);
    sqlite3_finalize(statement);
    return status;
}

/* Who wrote this store? */
static gms_status read_owner(gms_store *store, struct owner *ret_owner, struct gms_error *ret_error)
{
    sqlite3_stmt *statement = NULL;
    struct owner owner = {0};
    int64_t tables = 0, format = 0;
    gms_status status = read_integer(store, "SELECT count(*) FROM sqlite_master", &tables, ret_error);
    int rc;

    if (status == GMS_OK)
        status = read_integer(store, "PRAGMA user_version", &format, ret_error);
    if (status != GMS_OK)
        return status;
    if (tables == 0 && format == 0) {
        *ret_owner = owner;
        return GMS_OK;
    }
    if (format != FORMAT)
        return gms_fail(ret_error, GMS_E_VERSION,
                        "store %s: format %lld, this program reads %d; start with --fresh to set it aside", store->path,
                        (long long)format, FORMAT);
    rc = sqlite3_prepare_v2(store->db, "SELECT boot_id, world, checksum, count(*) OVER () FROM meta", -1, &statement,
                            NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(statement);
    const unsigned char *boot_id = rc == SQLITE_ROW ? sqlite3_column_text(statement, 0) : NULL;
    if (boot_id && strlen((const char *)boot_id) == GMS_BOOT_ID_BYTES - 1) {
        memcpy(owner.boot_id, boot_id, GMS_BOOT_ID_BYTES);
        owner.world = (uint64_t)sqlite3_column_int64(statement, 1);
        owner.present = sqlite3_column_int64(statement, 3) == 1 &&
                        (uint64_t)sqlite3_column_int64(statement, 2) == meta_checksum(owner.boot_id, owner.world);
    }
    if (owner.present) {
        *ret_owner = owner;
    } else if (rc == SQLITE_ROW || rc == SQLITE_DONE || (rc & 0xff) == SQLITE_ERROR) {
        status = gms_fail(ret_error, GMS_E_CORRUPT,
                          "store %s: table meta is damaged; start with --fresh to set it aside as .old", store->path);
    } else {
        status = gms_store_fail(store, rc, "read table meta", ret_error);
    }
    sqlite3_finalize(statement);
    return status;
}

/* Renames one file of the store; what is not there need not be. */
static gms_status move_one(const gms_store *store, const char *suffix, struct gms_error *ret_error)
{
    char from[PATH_BYTES + 16], to[PATH_BYTES + 16];
    snprintf(from, sizeof(from), "%s%s", store->path, suffix);
    snprintf(to, sizeof(to), "%s.old%s", store->path, suffix);
    if (rename(from, to) == 0)
        return GMS_OK;
    if (errno == ENOENT && (unlink(to) == 0 || errno == ENOENT))
        return GMS_OK;
    return gms_fail(ret_error, GMS_E_STORE, "store %s: cannot be moved to %s: %s", from, to, strerror(errno));
}

/* The main file first: should we end in between, SQLite drops a log without its file, and never the other way. */
static gms_status move_aside(gms_store *store, const char *why, struct gms_error *ret_error)
{
    gms_status status;
    close_database(store);
    status = move_one(store, "", ret_error);
    if (status == GMS_OK)
        status = move_one(store, "-wal", ret_error);
    if (status == GMS_OK)
        status = move_one(store, "-shm", ret_error);
    if (status == GMS_OK)
        snprintf(store->note, sizeof(store->note), "%s: %s; moved to %s.old", store->path, why, store->path);
    return status;
}

/* There is nothing: has the keeper been told that there was? */
static gms_status check_missing(const gms_store *store, const struct gms_store_options *options,
                                enum gms_store_doubt *doubt, struct gms_error *ret_error)
{
    if (options->fresh || options->mirror_round == 0)
        return GMS_OK;
    *doubt = GMS_STORE_MISSING;
    return gms_fail(ret_error, GMS_E_IN_DOUBT,
                    "store %s: is missing, but the keeper has been told of round %" PRIu64 " in world %" PRIu64
                    ": put it back, or end every engine and start with --fresh",
                    store->path, options->mirror_round, options->mirror_world);
}

/* Decides what an existing store is to us. *ret_aside: why it must be moved aside, else untouched. */
static gms_status judge(gms_store *store, const struct gms_store_options *options, struct owner *ret_owner,
                        const char **ret_aside, enum gms_store_doubt *doubt, struct gms_error *ret_error)
{
    gms_status status = read_owner(store, ret_owner, ret_error);
    if (status != GMS_OK)
        return status;
    if (!ret_owner->present)
        return check_missing(store, options, doubt, ret_error);
    if (options->fresh) {
        *ret_aside = "set aside as asked (fresh)";
        return GMS_OK;
    }
    if (strcmp(ret_owner->boot_id, store->boot_id) != 0) {
        *ret_aside = "state of another boot, whose memory is gone";
        if (options->mirror_round == 0)
            return GMS_OK;
        *doubt = GMS_STORE_OTHER_BOOT;
        return gms_fail(ret_error, GMS_E_IN_DOUBT,
                        "store %s: is of another boot, but the keeper has been told of round %" PRIu64
                        " in world %" PRIu64 " of this one. End every engine, then start with --fresh",
                        store->path, options->mirror_round, options->mirror_world);
    }
    status = gms_store_check_contents(store, ret_error);
    if (status != GMS_OK)
        return status;
    if (ret_owner->world > options->world)
        return gms_fail(ret_error, GMS_E_FOREIGN_WORLD,
                        "store %s: written by world %" PRIu64 ", newer than ours (%" PRIu64
                        "): is another coordinator job running? If not, start with --fresh",
                        store->path, ret_owner->world, options->world);
    return GMS_OK;
}

static gms_status prepare(gms_store *store, const struct gms_store_options *options, enum gms_store_doubt *doubt,
                          struct gms_error *ret_error)
{
    struct owner owner = {0};
    const char *aside = NULL;
    gms_status status = open_database(store, ret_error);

    if (status == GMS_OK)
        status = judge(store, options, &owner, &aside, doubt, ret_error);
    if (status == GMS_E_CORRUPT || status == GMS_E_VERSION) {
        *doubt = GMS_STORE_DAMAGED;
        if (options->fresh) {
            aside = "damaged or of another version, set aside as asked (fresh)";
            status = GMS_OK;
        }
    }
    if (status == GMS_OK && aside) {
        status = move_aside(store, aside, ret_error);
        owner.present = false;
        store->first = 1;
        store->last = 0;
        if (status == GMS_OK)
            status = open_database(store, ret_error);
    }
    store->is_new = !owner.present;
    store->found_world = owner.present ? owner.world : 0;
    if (status == GMS_OK && !owner.present)
        status = make_schema(store, options, store->boot_id, ret_error);
    store->adopted = !owner.present || owner.world == options->world;
    if (status == GMS_OK) {
        int rc = sqlite3_prepare_v3(store->db, "INSERT INTO records VALUES(?1, ?2, ?3, ?4)", -1,
                                    SQLITE_PREPARE_PERSISTENT, &store->insert, NULL);
        if (rc != SQLITE_OK)
            status = gms_store_fail(store, rc, "prepare", ret_error);
    }
    return status;
}

static void ignore_file_size_signal(void)
{
    struct sigaction action;
    if (sigaction(SIGXFSZ, NULL, &action) == 0 && action.sa_handler == SIG_DFL) {
        action.sa_handler = SIG_IGN;
        sigaction(SIGXFSZ, &action, NULL);
    }
}

gms_status gms_store_open(const struct gms_store_options *options, gms_store **ret_store, struct gms_error *ret_error)
{
    enum gms_store_doubt unwanted = GMS_STORE_TRUSTED;
    enum gms_store_doubt *doubt = options->ret_doubt ? options->ret_doubt : &unwanted;
    char boot_id[GMS_BOOT_ID_BYTES];
    gms_store *store;
    gms_status status = GMS_OK;

    *doubt = GMS_STORE_TRUSTED;
    if (!options->path || strlen(options->path) > PATH_BYTES - 16)
        return gms_fail(ret_error, GMS_E_INVALID, "store path: %s, limit %d bytes",
                        options->path ? "too long" : "missing", PATH_BYTES - 16);
    if (options->world == 0)
        return gms_fail(ret_error, GMS_E_INVALID, "store %s: world 0 does not exist", options->path);
    if (!options->boot_id)
        status = gms_store_boot_id(boot_id, ret_error);
    else if (strlen(options->boot_id) != GMS_BOOT_ID_BYTES - 1 ||
             strspn(options->boot_id, "0123456789abcdef-") != GMS_BOOT_ID_BYTES - 1)
        status = gms_fail(ret_error, GMS_E_INVALID, "store %s: boot id \"%.40s\" is not of the kernel's form",
                          options->path, options->boot_id);
    else
        memcpy(boot_id, options->boot_id, sizeof(boot_id));
    if (status != GMS_OK)
        return status;

    store = calloc(1, sizeof(*store));
    if (!store)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "store %s: no memory", options->path);
    snprintf(store->path, sizeof(store->path), "%s", options->path);
    memcpy(store->boot_id, boot_id, sizeof(boot_id));
    store->world = options->world;
    store->keeper = options->keeper;
    store->first = 1;
    ignore_file_size_signal();
    status = prepare(store, options, doubt, ret_error);
    if (status != GMS_OK) {
        gms_store_close(store);
        return status;
    }
    *ret_store = store;
    return GMS_OK;
}

void gms_store_close(gms_store *store)
{
    if (!store)
        return;
    close_database(store);
    free(store);
}

/* ------------------------------------------------------------------------------------------------ records ------ */

const char *gms_store_note(const gms_store *store)
{
    return store->note;
}

static gms_status adopt(gms_store *store, struct gms_error *ret_error)
{
    char sql[192];
    snprintf(sql, sizeof(sql), "UPDATE meta SET world=%" PRId64 ", keeper=%" PRId64 ", checksum=%" PRId64,
             (int64_t)store->world, (int64_t)store->keeper, (int64_t)meta_checksum(store->boot_id, store->world));
    return gms_store_run(store, sql, "take over", ret_error);
}

gms_status gms_store_commit(gms_store *store, const struct gms_store_record *records, uint32_t count,
                            const void *snapshot, uint32_t snapshot_bytes, uint64_t *ret_number,
                            struct gms_error *ret_error)
{
    static const struct gms_store_record mark = {.kind = GMS_STORE_MARK};
    uint64_t first = store->first, last = store->last;

    if (count > GMS_STORE_AT_ONCE || snapshot_bytes > GMS_STORE_SNAPSHOT_BYTES || (count == 0 && !snapshot) ||
        (snapshot && snapshot_bytes == 0))
        return gms_fail(ret_error, GMS_E_INVALID,
                        "store %s: %u records and a snapshot of %u bytes at once, limits %d and %d", store->path, count,
                        snapshot_bytes, GMS_STORE_AT_ONCE, GMS_STORE_SNAPSHOT_BYTES);
    for (uint32_t i = 0; i < count; i++)
        if (records[i].bytes > GMS_STORE_RECORD_BYTES)
            return gms_fail(ret_error, GMS_E_INVALID, "store %s: record of %u bytes, limit %d", store->path,
                            records[i].bytes, GMS_STORE_RECORD_BYTES);
    gms_status status = gms_store_run(store, "BEGIN IMMEDIATE", "append", ret_error);
    if (status == GMS_OK && !store->adopted)
        status = adopt(store, ret_error);
    if (status == GMS_OK && count == 0)
        status = gms_store_insert_record(store, ++last, &mark, ret_error);
    for (uint32_t i = 0; i < count && status == GMS_OK; i++)
        status = gms_store_insert_record(store, ++last, &records[i], ret_error);
    if (status == GMS_OK && snapshot)
        status = gms_store_replace_snapshot(store, snapshot, snapshot_bytes, last, &first, ret_error);
    if (status == GMS_OK)
        status = gms_store_run(store, "COMMIT", "append", ret_error);
    if (status != GMS_OK) {
        if (!sqlite3_get_autocommit(store->db))
            sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
        return status;
    }
    store->adopted = true;
    store->first = first;
    store->last = last;
    *ret_number = last;
    return GMS_OK;
}

gms_status gms_store_append(gms_store *store, uint32_t kind, const void *payload, uint32_t bytes, uint64_t *ret_number,
                            struct gms_error *ret_error)
{
    const struct gms_store_record record = {.kind = kind, .bytes = bytes, .payload = payload};
    return gms_store_commit(store, &record, 1, NULL, 0, ret_number, ret_error);
}

gms_status gms_store_snapshot(gms_store *store, void **ret_snapshot, uint32_t *ret_bytes, struct gms_error *ret_error)
{
    struct cover cover;
    return gms_store_read_snapshot(store, &cover, ret_snapshot, ret_bytes, ret_error);
}

bool gms_store_is_new(const gms_store *store)
{
    return store->is_new;
}

uint64_t gms_store_world(const gms_store *store)
{
    return store->found_world;
}

uint64_t gms_store_last(const gms_store *store)
{
    return store->last;
}

gms_status gms_store_each(gms_store *store, gms_store_visit visit, void *context, struct gms_error *ret_error)
{
    uint64_t last = 0;
    return gms_store_walk(store, visit, context, &last, ret_error);
}
