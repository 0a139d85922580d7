/* SPDX-License-Identifier: Apache-2.0
 *
 * The store: what is damaged or somebody else's is never taken for ours.
 */
#include "store_support.h"

#include <sqlite3.h>

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
    assert_status(open_as(store_path, boot_a, 5, false, &store), GMS_E_FOREIGN_WORLD);
    assert_text_has("world 6");
    assert_ok(open_as(store_path, boot_a, 7, false, &store));
    assert_false(gms_store_is_new(store));
    assert_int_equal(gms_store_last(store), 3);
    gms_store_close(store);
    assert_ok(open_as(store_path, boot_a, 6, false, &store)); /* nothing has changed by looking */
    gms_store_close(store);
    assert_ok(open_as(store_path, boot_a, 7, false, &store));
    append_many(store, 1); /* from here on it is world 7's */
    gms_store_close(store);
    assert_status(open_as(store_path, boot_a, 6, false, &store), GMS_E_FOREIGN_WORLD);
    assert_ok(open_as(store_path, boot_a, 7, true, &store));
    assert_int_equal(gms_store_last(store), 0);
    assert_non_null(strstr(gms_store_note(store), "fresh"));
    append_many(store, 1);
    gms_store_close(store);
    /* After a keeper's restart the world may begin at 1 again; the operator's word is enough for that, too. */
    assert_ok(open_as(store_path, boot_a, 1, true, &store));
    gms_store_close(store);
}

static gms_status open_mirrored(uint64_t world, uint64_t mirror_world, uint64_t mirror_round, bool fresh,
                                gms_store **ret_store)
{
    struct gms_store_options options = {.path = store_path,
                                        .boot_id = boot_a,
                                        .world = world,
                                        .fresh = fresh,
                                        .mirror_world = mirror_world,
                                        .mirror_round = mirror_round};
    memset(&error, 0, sizeof(error));
    return gms_store_open(&options, ret_store, &error);
}

/* Reported fault V12: a store that was deleted while engines live. One that is an older copy tells by its snapshot. */
static void test_gone_and_the_keeper_knows(void **state)
{
    gms_store *store = NULL;
    (void)state;
    assert_status(open_mirrored(6, 5, 3, false, &store), GMS_E_IN_DOUBT); /* deleted */
    assert_text_has("is missing");
    assert_text_has("round 3 in world 5");
    assert_status(open_mirrored(6, 5, 3, false, &store), GMS_E_IN_DOUBT); /* asking changed nothing */
    assert_ok(open_mirrored(5, 0, 0, false, &store));
    append_many(store, 4);
    gms_store_close(store);
    assert_ok(open_mirrored(7, 5, 9, false, &store));
    assert_int_equal(gms_store_world(store), 5);
    append_many(store, 1);
    gms_store_close(store);
    assert_ok(open_mirrored(8, 7, 1, false, &store));
    assert_int_equal(gms_store_world(store), 7);
    gms_store_close(store);
    assert_ok(open_mirrored(8, 7, 1, true, &store));
    assert_int_equal(gms_store_world(store), 0);
    gms_store_close(store);
}

static void assert_snapshot(gms_store *store, const char *expected)
{
    void *snapshot = NULL;
    uint32_t bytes = 0;
    assert_ok(gms_store_snapshot(store, &snapshot, &bytes, &error));
    if (expected == NULL) {
        assert_null(snapshot);
        assert_int_equal(bytes, 0);
        return;
    }
    assert_int_equal(bytes, strlen(expected));
    assert_memory_equal(snapshot, expected, bytes);
    free(snapshot);
}

static void test_snapshot(void **state)
{
    static const struct gms_store_record two[] = {{.kind = 7, .bytes = 1, .payload = "a"}, {.kind = 8}};
    static char large[GMS_STORE_SNAPSHOT_BYTES + 1];
    gms_store *store = NULL;
    uint64_t number = 0;
    (void)state;
    assert_ok(open_store(&store));
    assert_true(gms_store_is_new(store));
    assert_snapshot(store, NULL);
    assert_ok(gms_store_commit(store, two, 2, "one", 3, &number, &error));
    assert_int_equal(number, 2);
    assert_ok(gms_store_commit(store, two, 1, NULL, 0, &number, &error)); /* the snapshot stays */
    assert_snapshot(store, "one");
    assert_ok(gms_store_commit(store, NULL, 0, "other", 5, &number, &error)); /* and takes a number alone */
    assert_int_equal(number, 4);
    assert_status(gms_store_commit(store, NULL, 0, NULL, 0, &number, &error), GMS_E_INVALID);
    assert_status(gms_store_commit(store, NULL, 0, large, sizeof(large), &number, &error), GMS_E_INVALID);
    assert_snapshot(store, "other");
    gms_store_close(store);
    assert_ok(open_as(store_path, boot_a, 9, false, &store)); /* the next world finds it */
    assert_int_equal(gms_store_last(store), 4);
    assert_snapshot(store, "other");
    gms_store_close(store);
}

/* What the snapshot covers goes in the end, the numbers go on. */
static void test_old_records_go(void **state)
{
    gms_store *store = NULL;
    sqlite3 *db = NULL;
    uint64_t number = 0;
    (void)state;
    assert_ok(open_store(&store));
    for (int i = 0; i < 5 * GMS_STORE_KEPT; i++)
        assert_ok(gms_store_commit(store, NULL, 0, "s", 1, &number, &error));
    gms_store_close(store);
    assert_ok(open_store(&store));
    assert_int_equal(gms_store_last(store), 5 * GMS_STORE_KEPT);
    gms_store_close(store);
    assert_int_equal(sqlite3_open(store_path, &db), SQLITE_OK);
    sqlite3_stmt *count = NULL;
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT count(*) FROM records", -1, &count, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(count), SQLITE_ROW);
    assert_in_range(sqlite3_column_int(count, 0), GMS_STORE_KEPT, 2 * GMS_STORE_KEPT);
    sqlite3_finalize(count);
    sqlite3_close(db);
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
        {"PRAGMA user_version = 1", GMS_E_VERSION},
        {"PRAGMA user_version = 0", GMS_E_VERSION},
        {"DROP TABLE records", GMS_E_STORE},
        {"DROP TABLE snapshot", GMS_E_STORE},
        {"UPDATE snapshot SET payload = CAST('snapshoT' AS BLOB)", GMS_E_CORRUPT},
        {"UPDATE snapshot SET payload = 'snapshot'", GMS_E_CORRUPT},
        {"UPDATE snapshot SET last = last - 1", GMS_E_CORRUPT},
        {"UPDATE snapshot SET first = first + 1", GMS_E_CORRUPT},
        {"DELETE FROM records WHERE number = 3", GMS_E_CORRUPT}, /* that the snapshot covers */
    };
    gms_store *store = NULL;
    (void)state;
    for (unsigned i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        uint64_t number = 0;
        make_store(2);
        assert_ok(open_store(&store));
        assert_ok(gms_store_commit(store, NULL, 0, "snapshot", 8, &number, &error));
        gms_store_close(store);
        edit(damages[i].sql);
        if (open_store(&store) != damages[i].status)
            print_error("%s: %s\n", damages[i].sql, error.text);
        assert_int_equal(error.status, damages[i].status);
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
    for (size_t at = 0; at < bytes; at += at < 200 ? 1 : 17) {
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
    for (size_t cut = 0; cut <= wal_bytes; cut += cut + 487 <= wal_bytes || cut == wal_bytes ? 487 : wal_bytes - cut) {
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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, unit_remove_dir)
    const struct CMUnitTest tests[] = {
        TEST(test_append_and_reopen),
        TEST(test_walk_ends_early),
        TEST(test_descriptors_are_close_on_exec),
        TEST(test_second_opener_is_refused),
        TEST(test_other_boot_is_set_aside),
        TEST(test_worlds),
        TEST(test_gone_and_the_keeper_knows),
        TEST(test_snapshot),
        TEST(test_old_records_go),
        TEST(test_arguments),
        TEST(test_odd_places),
        TEST(test_damaged_records_are_named),
        TEST(test_damaged_tables),
        TEST(test_flipped_and_cut_file),
        TEST(test_cut_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
