/* SPDX-License-Identifier: Apache-2.0
 *
 * The store: what it acknowledged is there after any end of the process; what it refused is not; what is damaged or
 * somebody else's is never taken for ours. Faults are injected below SQLite, by limits, by SIGKILL and by editing
 * files.
 */
#include "unit_support.h"

#include <sched.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "store.h"

enum { PATH_ROOM = 256 };

static const char boot_a[] = "11111111-2222-3333-4444-555555555555";
static const char boot_b[] = "aaaaaaaa-2222-3333-4444-555555555555";
static struct gms_error error;
static char store_path[PATH_ROOM];

static int setup(void **state)
{
    if (unit_make_dir(state) != 0)
        return -1;
    snprintf(store_path, sizeof(store_path), "%s/store.0", (char *)*state);
    return 0;
}

static gms_status open_as(const char *path, const char *boot_id, uint64_t world, bool fresh, gms_store **ret_store)
{
    struct gms_store_options options = {.path = path, .boot_id = boot_id, .world = world, .keeper = 77, .fresh = fresh};
    memset(&error, 0, sizeof(error));
    return gms_store_open(&options, ret_store, &error);
}

static gms_status open_store(gms_store **ret_store)
{
    return open_as(store_path, boot_a, 5, false, ret_store);
}

/* Record `number` has kind 100 + number and a payload that follows from the number, of 0 to 299 bytes. */
static uint32_t make_payload(uint64_t number, uint8_t *ret_payload)
{
    uint32_t bytes = (uint32_t)(number * 37 % 300);
    for (uint32_t i = 0; i < bytes; i++)
        ret_payload[i] = (uint8_t)(number * 31 + i);
    return bytes;
}

static gms_status append_next(gms_store *store, struct gms_error *ret_error)
{
    uint8_t payload[300];
    uint64_t expected = gms_store_last(store) + 1, number = 0;
    uint32_t bytes = make_payload(expected, payload);
    gms_status status = gms_store_append(store, (uint32_t)(100 + expected), payload, bytes, &number, ret_error);
    if (status == GMS_OK && number != expected)
        return GMS_E_DIVERGED;
    return status;
}

static void append_many(gms_store *store, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        assert_ok(append_next(store, &error));
}

struct walk {
    uint64_t next;
    bool right;
};

static gms_status check_record(void *context, uint64_t number, uint32_t kind, const void *payload, uint32_t bytes)
{
    struct walk *walk = context;
    uint8_t expected[300];
    uint32_t expected_bytes = make_payload(number, expected);
    walk->right = walk->right && number == walk->next && kind == 100 + number && bytes == expected_bytes &&
                  (bytes == 0 || memcmp(payload, expected, bytes) == 0);
    walk->next++;
    return GMS_OK;
}

/* Are the records of `store` 1 to gms_store_last, each as it was written? */
static bool holds_right_records(gms_store *store)
{
    struct walk walk = {.next = 1, .right = true};
    return gms_store_each(store, check_record, &walk, &error) == GMS_OK && walk.right &&
           walk.next == gms_store_last(store) + 1;
}

static void assert_holds(uint64_t last)
{
    gms_store *store = NULL;
    assert_ok(open_store(&store));
    assert_int_equal(gms_store_last(store), last);
    assert_true(holds_right_records(store));
    gms_store_close(store);
}

/* ------------------------------------------------------------------------------------------------- records ----- */

static void test_append_and_reopen(void **state)
{
    gms_store *store = NULL;
    uint8_t big[GMS_STORE_RECORD_BYTES + 1];
    uint64_t number = 0;
    struct stat info;
    (void)state;

    assert_ok(open_store(&store));
    assert_int_equal(gms_store_last(store), 0);
    assert_string_equal(gms_store_note(store), "");
    assert_true(holds_right_records(store));
    append_many(store, 20);
    assert_int_equal(gms_store_last(store), 20);
    assert_true(holds_right_records(store));
    assert_int_equal(stat(store_path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    gms_store_close(store);

    assert_ok(open_store(&store));
    assert_int_equal(gms_store_last(store), 20);
    append_many(store, 1);
    assert_true(holds_right_records(store));
    assert_status(gms_store_append(store, 1, big, sizeof(big), &number, &error), GMS_E_INVALID);
    assert_text_has("limit 4096");
    memset(big, 1, sizeof(big));
    assert_ok(gms_store_append(store, UINT32_MAX, big, GMS_STORE_RECORD_BYTES, &number, &error));
    assert_ok(gms_store_append(store, 0, NULL, 0, &number, &error));
    assert_int_equal(number, 23);
    gms_store_close(store);
    gms_store_close(NULL);
}

static gms_status stop_at_three(void *context, uint64_t number, uint32_t kind, const void *payload, uint32_t bytes)
{
    (void)kind;
    (void)payload;
    (void)bytes;
    ++*(unsigned *)context;
    return number == 3 ? GMS_E_REFUSED : GMS_OK;
}

static void test_walk_ends_early(void **state)
{
    gms_store *store = NULL;
    unsigned seen = 0;
    (void)state;
    assert_ok(open_store(&store));
    append_many(store, 5);
    assert_int_equal(gms_store_each(store, stop_at_three, &seen, &error), GMS_E_REFUSED);
    assert_int_equal(seen, 3);
    append_many(store, 1); /* and the store can still be written */
    gms_store_close(store);
}

static void test_descriptors_are_close_on_exec(void **state)
{
    gms_store *store = NULL;
    (void)state;
    assert_ok(open_store(&store));
    append_many(store, 3);
    for (int fd = 3; fd < 256; fd++) {
        int flags = fcntl(fd, F_GETFD);
        char link[64], target[PATH_ROOM] = "";
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        if (flags >= 0 && readlink(link, target, sizeof(target) - 1) > 0 && strstr(target, "store.0"))
            assert_true(flags & FD_CLOEXEC);
    }
    gms_store_close(store);
}

/* ----------------------------------------------------------------------------------------------- ownership ----- */

static void test_second_opener_is_refused(void **state)
{
    gms_store *store = NULL;
    (void)state;
    assert_ok(open_store(&store));
    append_many(store, 2);
    pid_t pid = fork();
    if (pid == 0) {
        gms_store *second = NULL;
        struct gms_store_options options = {.path = store_path, .boot_id = boot_a, .world = 6};
        _exit(gms_store_open(&options, &second, NULL) == GMS_E_BUSY ? 0 : 1);
    }
    assert_int_equal(unit_wait(pid), 0);
    append_many(store, 1);
    gms_store_close(store);
    assert_holds(3);
}

static void test_other_boot_is_set_aside(void **state)
{
    gms_store *store = NULL;
    char old[PATH_ROOM + 8];
    (void)state;
    for (int round = 0; round < 2; round++) { /* the second time there is an .old already */
        assert_ok(open_as(store_path, boot_a, 5, false, &store));
        append_many(store, 4);
        gms_store_close(store);
        assert_ok(open_as(store_path, boot_b, 5, false, &store));
        assert_int_equal(gms_store_last(store), 0);
        assert_non_null(strstr(gms_store_note(store), "another boot"));
        assert_non_null(strstr(gms_store_note(store), ".old"));
        append_many(store, 1);
        gms_store_close(store);
    }
    snprintf(old, sizeof(old), "%s.old", store_path);
    assert_ok(open_as(old, boot_a, 5, false, &store)); /* whole, for whoever wants to look */
    assert_int_equal(gms_store_last(store), 4);
    assert_true(holds_right_records(store));
    gms_store_close(store);
}

static void test_worlds(void **state)
{
    gms_store *store = NULL;
    (void)state;
    assert_ok(open_as(store_path, boot_a, 5, false, &store));
    gms_store_close(store);
    assert_ok(open_as(store_path, boot_a, 6, false, &store)); /* no records: nothing to doubt */
    append_many(store, 3);
    gms_store_close(store);
    assert_status(open_as(store_path, boot_a, 7, false, &store), GMS_E_IN_DOUBT);
    assert_text_has("3 records of world 6");
    assert_text_has("--fresh");
    assert_status(open_as(store_path, boot_a, 5, false, &store), GMS_E_FOREIGN_WORLD);
    assert_text_has("world 6");
    assert_ok(open_as(store_path, boot_a, 6, false, &store)); /* and nothing has changed by asking */
    assert_int_equal(gms_store_last(store), 3);
    gms_store_close(store);
    assert_ok(open_as(store_path, boot_a, 7, true, &store));
    assert_int_equal(gms_store_last(store), 0);
    assert_non_null(strstr(gms_store_note(store), "fresh"));
    append_many(store, 1);
    gms_store_close(store);
    /* After a keeper's restart the world may begin at 1 again; the operator's word is enough for that, too. */
    assert_ok(open_as(store_path, boot_a, 1, true, &store));
    gms_store_close(store);
}

static void test_arguments(void **state)
{
    char longest[1024];
    gms_store *store = NULL;
    (void)state;
    assert_status(open_as(NULL, boot_a, 1, false, &store), GMS_E_INVALID);
    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    assert_status(open_as(longest, boot_a, 1, false, &store), GMS_E_INVALID);
    assert_status(open_as(store_path, boot_a, 0, false, &store), GMS_E_INVALID);
    assert_status(open_as(store_path, "'; DROP TABLE records; --", 1, false, &store), GMS_E_INVALID);
    assert_status(open_as(store_path, "", 1, false, &store), GMS_E_INVALID);
    assert_ok(open_as(store_path, NULL, 1, false, &store)); /* this boot's */
    gms_store_close(store);
}

static void test_odd_places(void **state)
{
    char other[PATH_ROOM], missing[PATH_ROOM];
    gms_store *store = NULL;
    snprintf(other, sizeof(other), "%s/other", (char *)*state);
    snprintf(missing, sizeof(missing), "%s/none/store.0", (char *)*state);
    assert_status(open_as(missing, boot_a, 1, false, &store), GMS_E_STORE);
    assert_int_equal(mkdir(store_path, 0700), 0);
    assert_status(open_store(&store), GMS_E_STORE);
    assert_int_equal(rmdir(store_path), 0);
    assert_int_equal(symlink(other, store_path), 0);
    assert_status(open_store(&store), GMS_E_STORE);
    assert_int_not_equal(access(other, F_OK), 0);
    assert_int_equal(unlink(store_path), 0);
    assert_int_equal(mkfifo(store_path, 0600), 0);
    assert_status(open_store(&store), GMS_E_STORE);
}

/* -------------------------------------------------------------------------------------------------- damage ----- */

static void edit(const char *sql)
{
    sqlite3 *db = NULL;
    char *message = NULL;
    assert_int_equal(sqlite3_open(store_path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
        print_error("%s: %s\n", sql, message);
    assert_null(message);
    sqlite3_close(db);
}

static void make_store(unsigned records)
{
    gms_store *store = NULL;
    unlink(store_path);
    assert_ok(open_store(&store));
    append_many(store, records);
    gms_store_close(store);
}

static void test_damaged_records_are_named(void **state)
{
    static const struct {
        const char *sql, *named;
    } damages[] = {
        {"UPDATE records SET payload = zeroblob(length(payload)) WHERE number = 3", "record 3 is damaged"},
        {"UPDATE records SET payload = CAST(substr(payload, 2) AS BLOB) WHERE number = 8", "record 8 is damaged"},
        {"UPDATE records SET payload = CAST(payload AS TEXT) WHERE number = 3", "record 3 is damaged"},
        {"UPDATE records SET payload = zeroblob(5000) WHERE number = 1", "record 1 is damaged"},
        {"UPDATE records SET kind = kind + 1 WHERE number = 5", "record 5 is damaged"},
        {"UPDATE records SET kind = -1 WHERE number = 5", "record 5 is damaged"},
        {"UPDATE records SET kind = kind + 4294967296 WHERE number = 5", "record 5 is damaged"},
        {"UPDATE records SET kind = 'x' WHERE number = 5", "record 5 is damaged"},
        {"UPDATE records SET checksum = checksum + 1 WHERE number = 8", "record 8 is damaged"},
        {"UPDATE records SET checksum = 'x' WHERE number = 8", "record 8 is damaged"},
        {"DELETE FROM records WHERE number = 4", "record 4 is missing"},
        {"DELETE FROM records WHERE number = 1", "record 1 is missing"},
        {"UPDATE records SET number = 9 WHERE number = 8", "record 8 is missing"},
        {"UPDATE records SET number = -8 WHERE number = 8", "record 1 is missing"},
        /* two records that changed places */
        {"UPDATE records SET number = 100 WHERE number = 2; UPDATE records SET number = 2 WHERE number = 3;"
         "UPDATE records SET number = 3 WHERE number = 100",
         "record 2 is damaged"},
        /* the last one twice */
        {"INSERT INTO records SELECT number + 1, kind, payload, checksum FROM records WHERE number = 8",
         "record 9 is damaged"},
    };
    gms_store *store = NULL;
    (void)state;
    for (unsigned i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        make_store(8);
        edit(damages[i].sql);
        assert_status(open_store(&store), GMS_E_CORRUPT);
        if (!strstr(error.text, damages[i].named))
            print_error("%s", error.text);
        assert_non_null(strstr(error.text, damages[i].named));
        assert_text_has("--fresh");
        assert_ok(open_as(store_path, boot_a, 6, true, &store));
        assert_int_equal(gms_store_last(store), 0);
        gms_store_close(store);
    }
}

static void test_damaged_tables(void **state)
{
    static const struct {
        const char *sql;
        gms_status status;
    } damages[] = {
        {"DELETE FROM meta", GMS_E_CORRUPT},
        {"INSERT INTO meta SELECT * FROM meta", GMS_E_CORRUPT},
        {"UPDATE meta SET world = world - 1", GMS_E_CORRUPT},
        {"UPDATE meta SET boot_id = replace(boot_id, '1', '2')", GMS_E_CORRUPT},
        {"UPDATE meta SET boot_id = ''", GMS_E_CORRUPT},
        {"DROP TABLE meta", GMS_E_CORRUPT},
        {"PRAGMA user_version = 2", GMS_E_VERSION},
        {"PRAGMA user_version = 0", GMS_E_VERSION},
        {"DROP TABLE records", GMS_E_STORE},
    };
    gms_store *store = NULL;
    (void)state;
    for (unsigned i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        make_store(3);
        edit(damages[i].sql);
        assert_status(open_store(&store), damages[i].status);
    }
}

static uint8_t *load(const char *path, size_t *ret_bytes)
{
    struct stat info;
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    assert_int_equal(fstat(fileno(stream), &info), 0);
    uint8_t *data = malloc((size_t)info.st_size + 1);
    assert_non_null(data);
    *ret_bytes = fread(data, 1, (size_t)info.st_size, stream);
    fclose(stream);
    return data;
}

static void save(const char *path, const uint8_t *data, size_t bytes)
{
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(data, 1, bytes, stream), bytes);
    assert_int_equal(fclose(stream), 0);
}

/* Opens whatever is at store_path: refused with a reason, or holding a beginning of what was written. Returns the
 * number of records; -1 when refused. */
static int64_t open_damaged(void)
{
    gms_store *store = NULL;
    gms_status status = open_store(&store);
    int64_t last;
    if (status != GMS_OK) {
        assert_true(status == GMS_E_CORRUPT || status == GMS_E_STORE || status == GMS_E_VERSION);
        assert_true(error.text[0] != '\0');
        return -1;
    }
    assert_true(holds_right_records(store));
    last = (int64_t)gms_store_last(store);
    gms_store_close(store);
    return last;
}

/* Every byte of the file, one after the other, in three ways; and the file cut anywhere. */
static void test_flipped_and_cut_file(void **state)
{
    size_t bytes;
    uint8_t *data;
    unsigned refused = 0, opened = 0;
    char wal[PATH_ROOM + 8];
    (void)state;
    snprintf(wal, sizeof(wal), "%s-wal", store_path);
    make_store(10);
    data = load(store_path, &bytes);
    for (size_t at = 0; at < bytes; at += at < 256 ? 1 : 13) {
        uint8_t former = data[at];
        data[at] = (uint8_t)(at % 3 == 0 ? former ^ 1 : at % 3 == 1 ? ~former : 0);
        unlink(wal);
        save(store_path, data, bytes);
        data[at] = former;
        if (open_damaged() < 0)
            refused++;
        else
            opened++;
    }
    for (size_t cut = 0; cut < bytes; cut += 37) {
        unlink(wal);
        save(store_path, data, cut);
        open_damaged();
    }
    free(data);
    assert_true(refused > 20); /* the damage did hit records */
    assert_true(opened > 0);
}

/* What a SIGKILL at any moment leaves: the log cut anywhere, followed by zeros or noise. */
static void test_cut_log(void **state)
{
    char wal[PATH_ROOM + 8];
    gms_store *store = NULL;
    size_t bytes, wal_bytes;
    uint8_t *data, *log, *tailed;
    int64_t most = 0, before = 0;
    (void)state;
    snprintf(wal, sizeof(wal), "%s-wal", store_path);
    assert_ok(open_store(&store));
    append_many(store, 12);
    data = load(store_path, &bytes);
    log = load(wal, &wal_bytes);
    gms_store_close(store);
    tailed = calloc(1, wal_bytes + 8192);
    assert_non_null(tailed);
    for (size_t cut = 0; cut <= wal_bytes; cut += cut + 101 <= wal_bytes || cut == wal_bytes ? 101 : wal_bytes - cut) {
        for (int tail = 0; tail < 3; tail++) { /* none, zeros, noise */
            memcpy(tailed, log, cut);
            memset(tailed + cut, tail == 2 ? 0xa5 : 0, 8192);
            save(store_path, data, bytes);
            save(wal, tailed, tail ? cut + 8192 : cut);
            int64_t last = open_damaged();
            if (tail == 0) {
                assert_true(last >= before); /* more log, more records */
                before = last;
            }
            most = last > most ? last : most;
        }
    }
    assert_int_equal(most, 12);
    free(data);
    free(log);
    free(tailed);
}

/* ----------------------------------------------------------------------------------- faults below SQLite ------- */

static struct {
    sqlite3_vfs vfs, *real;
    long countdown;   /* the operation that fails; 0: none */
    bool stays, half; /* all that follow fail too; a write is done by half first */
    int code;
    long operations;
} faulty;

struct faulty_file {
    sqlite3_file base;
    sqlite3_file real[]; /* of the real VFS, szOsFile bytes */
};

static sqlite3_file *real_file(sqlite3_file *file)
{
    return ((struct faulty_file *)(void *)file)->real;
}

static bool fails_now(void)
{
    faulty.operations++;
    if (faulty.countdown == 0)
        return false;
    if (faulty.countdown > 1) {
        faulty.countdown--;
        return false;
    }
    if (!faulty.stays)
        faulty.countdown = 0;
    return true;
}

#define PASS(method, ...) real_file(file)->pMethods->method(real_file(file), ##__VA_ARGS__)
static int f_close(sqlite3_file *file)
{
    return PASS(xClose);
}
static int f_read(sqlite3_file *file, void *data, int bytes, sqlite3_int64 at)
{
    return PASS(xRead, data, bytes, at);
}
static int f_write(sqlite3_file *file, const void *data, int bytes, sqlite3_int64 at)
{
    if (!fails_now())
        return PASS(xWrite, data, bytes, at);
    if (faulty.half)
        PASS(xWrite, data, bytes / 2, at);
    return faulty.code;
}
static int f_truncate(sqlite3_file *file, sqlite3_int64 bytes)
{
    return fails_now() ? SQLITE_IOERR_TRUNCATE : PASS(xTruncate, bytes);
}
static int f_sync(sqlite3_file *file, int flags)
{
    return fails_now() ? SQLITE_IOERR_FSYNC : PASS(xSync, flags);
}
static int f_size(sqlite3_file *file, sqlite3_int64 *ret_bytes)
{
    return PASS(xFileSize, ret_bytes);
}
static int f_lock(sqlite3_file *file, int level)
{
    return PASS(xLock, level);
}
static int f_unlock(sqlite3_file *file, int level)
{
    return PASS(xUnlock, level);
}
static int f_reserved(sqlite3_file *file, int *ret_reserved)
{
    return PASS(xCheckReservedLock, ret_reserved);
}
static int f_control(sqlite3_file *file, int operation, void *argument)
{
    return PASS(xFileControl, operation, argument);
}
static int f_sector(sqlite3_file *file)
{
    return PASS(xSectorSize);
}
static int f_device(sqlite3_file *file)
{
    return PASS(xDeviceCharacteristics);
}
static int f_shm_map(sqlite3_file *file, int page, int bytes, int extend, void volatile **ret_address)
{
    return PASS(xShmMap, page, bytes, extend, ret_address);
}
static int f_shm_lock(sqlite3_file *file, int offset, int count, int flags)
{
    return PASS(xShmLock, offset, count, flags);
}
static void f_shm_barrier(sqlite3_file *file)
{
    PASS(xShmBarrier);
}
static int f_shm_unmap(sqlite3_file *file, int remove)
{
    return PASS(xShmUnmap, remove);
}

static const sqlite3_io_methods faulty_methods = {
    2,         f_close,  f_read,   f_write,   f_truncate, f_sync,        f_size,      f_lock, f_unlock, f_reserved,
    f_control, f_sector, f_device, f_shm_map, f_shm_lock, f_shm_barrier, f_shm_unmap, NULL,   NULL};

static int f_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *ret_flags)
{
    (void)vfs;
    file->pMethods = NULL;
    if (fails_now())
        return SQLITE_CANTOPEN;
    int rc = faulty.real->xOpen(faulty.real, name, real_file(file), flags, ret_flags);
    if (real_file(file)->pMethods)
        file->pMethods = &faulty_methods;
    return rc;
}

static int f_delete(sqlite3_vfs *vfs, const char *name, int sync)
{
    (void)vfs;
    return fails_now() ? SQLITE_IOERR_DELETE : faulty.real->xDelete(faulty.real, name, sync);
}

static void use_faulty(bool on)
{
    if (!faulty.real) {
        faulty.real = sqlite3_vfs_find(NULL);
        faulty.vfs = *faulty.real;
        faulty.vfs.zName = "faulty";
        faulty.vfs.szOsFile = (int)sizeof(struct faulty_file) + faulty.real->szOsFile;
        faulty.vfs.pNext = NULL;
        faulty.vfs.xOpen = f_open;
        faulty.vfs.xDelete = f_delete;
    }
    faulty.countdown = 0;
    if (on)
        sqlite3_vfs_register(&faulty.vfs, 1);
    else
        sqlite3_vfs_unregister(&faulty.vfs);
}

static int teardown(void **state)
{
    if (faulty.real)
        use_faulty(false);
    return unit_remove_dir(state);
}

static void remove_store(void)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-journal"};
    char path[PATH_ROOM + 16];
    for (unsigned i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "%s%s", store_path, suffixes[i]);
        unlink(path);
    }
}

/* The operation at which opening, appending or closing fails moves on until nothing fails any more. */
static void test_fault_at_every_operation(void **state)
{
    static const int codes[] = {SQLITE_FULL, SQLITE_IOERR_WRITE};
    unsigned failed_opens = 0, failed_appends = 0;
    (void)state;
    use_faulty(true);
    for (int variant = 0; variant < 8; variant++) {
        faulty.code = codes[variant & 1];
        faulty.stays = variant & 2;
        faulty.half = variant & 4;
        bool untouched = false;
        for (long n = 1; !untouched; n++) {
            gms_store *store = NULL;
            uint64_t acknowledged = 0;
            assert_true(n < 1000);
            remove_store();
            assert_ok(open_store(&store));
            append_many(store, 3);
            gms_store_close(store);

            faulty.countdown = n;
            gms_status status = open_store(&store);
            if (status != GMS_OK) {
                failed_opens++;
                assert_int_equal(status, GMS_E_STORE);
                acknowledged = 3;
            } else {
                for (int i = 0; i < 6; i++) {
                    status = append_next(store, &error);
                    assert_true(status == GMS_OK || status == GMS_E_STORE);
                    failed_appends += status != GMS_OK;
                }
                acknowledged = gms_store_last(store);
                assert_true(acknowledged >= 3);
                assert_true(holds_right_records(store));
                gms_store_close(store);
            }
            untouched = faulty.countdown > 1 || (faulty.countdown == 1 && !faulty.stays);
            faulty.countdown = 0;
            assert_holds(acknowledged);
        }
    }
    assert_true(failed_opens > 0 && failed_appends > 0);
    use_faulty(false);
}

/* --------------------------------------------------------------------------------------- limits and ends ------- */

/* Appends until it fails, then says through exit code 0 that it lives and through the file how many were acknowledged.
 */
static void fill_up(uint64_t *ret_acknowledged)
{
    gms_store *store = NULL;
    struct gms_store_options options = {.path = store_path, .boot_id = boot_a, .world = 5};
    struct gms_error child_error;
    gms_status status = gms_store_open(&options, &store, &child_error);
    child_check(status == GMS_OK);
    for (int i = 0; i < 100000 && status == GMS_OK; i++)
        status = append_next(store, &child_error);
    child_check(status == GMS_E_STORE);
    child_check(strstr(child_error.text, store_path) != NULL);
    child_check(append_next(store, &child_error) == GMS_E_STORE); /* still refused, still alive */
    child_check(holds_right_records(store));
    *ret_acknowledged = gms_store_last(store);
    gms_store_close(store);
}

static void test_file_size_limit(void **state)
{
    int ends[2];
    uint64_t acknowledged = 0;
    (void)state;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = {.rlim_cur = 100000, .rlim_max = RLIM_INFINITY};
        signal(SIGXFSZ, SIG_DFL);
        child_check(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        fill_up(&acknowledged);
        child_check(write(ends[1], &acknowledged, sizeof(acknowledged)) == sizeof(acknowledged));
        _exit(0);
    }
    close(ends[1]);
    assert_true(unit_read(ends[0], &acknowledged, sizeof(acknowledged)));
    close(ends[0]);
    assert_int_equal(unit_wait(pid), 0);
    assert_true(acknowledged > 5);
    assert_holds(acknowledged);
}

static void test_full_disk(void **state)
{
    pid_t pid = fork();
    if (pid == 0) {
        uint64_t acknowledged = 0;
        gms_store *store = NULL;
        struct gms_store_options options = {.path = store_path, .boot_id = boot_a, .world = 5};
        struct gms_error child_error;
        if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
            _exit(77);
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
            mount("tmpfs", *state, "tmpfs", 0, "size=128k,mode=0777") != 0)
            _exit(77);
        fill_up(&acknowledged);
        child_check(acknowledged > 3);
        child_check(gms_store_open(&options, &store, &child_error) == GMS_OK);
        child_check(gms_store_last(store) == acknowledged && holds_right_records(store));
        gms_store_close(store);
        _exit(0);
    }
    int status = unit_wait(pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("skipped: a mount of its own is not permitted here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* SIGKILL between and within appends, again and again over the same store. */
static void test_killed_while_appending(void **state)
{
    uint64_t acknowledged = 0;
    (void)state;
    for (int round = 0; round < 15; round++) {
        int ends[2];
        gms_store *store = NULL;
        uint64_t told = acknowledged;
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        pid_t pid = fork();
        if (pid == 0) {
            struct gms_store_options options = {.path = store_path, .boot_id = boot_a, .world = 5};
            child_check(gms_store_open(&options, &store, NULL) == GMS_OK);
            for (;;) {
                child_check(append_next(store, NULL) == GMS_OK);
                uint64_t last = gms_store_last(store);
                child_check(write(ends[1], &last, sizeof(last)) == sizeof(last));
            }
        }
        close(ends[1]);
        for (int i = 0; i < 5 + 7 * round; i++)
            assert_true(unit_read(ends[0], &told, sizeof(told)));
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(WTERMSIG(unit_wait(pid)), SIGKILL);
        while (read(ends[0], &told, sizeof(told)) == (ssize_t)sizeof(told)) /* what it had said by then */
            ;
        close(ends[0]);
        assert_ok(open_store(&store));
        assert_in_range(gms_store_last(store), told, told + 1);
        assert_true(holds_right_records(store));
        acknowledged = gms_store_last(store);
        gms_store_close(store);
    }
    assert_true(acknowledged > 500);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_append_and_reopen),
        TEST(test_walk_ends_early),
        TEST(test_descriptors_are_close_on_exec),
        TEST(test_second_opener_is_refused),
        TEST(test_other_boot_is_set_aside),
        TEST(test_worlds),
        TEST(test_arguments),
        TEST(test_odd_places),
        TEST(test_damaged_records_are_named),
        TEST(test_damaged_tables),
        TEST(test_flipped_and_cut_file),
        TEST(test_cut_log),
        TEST(test_fault_at_every_operation),
        TEST(test_file_size_limit),
        TEST(test_full_disk),
        TEST(test_killed_while_appending),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
