/* SPDX-License-Identifier: Apache-2.0
 *
 * Reported fault V39: the store's own files, cut, grown, flipped and exchanged byte by byte and page by page. What is
 * opened is all that the keeper remembers, each record and the snapshot as they were written; anything else is refused
 * with a reason. Never a guess, and never an older state that nobody noticed.
 */
#include "store_support.h"

enum { WORLD = 5, RECORDS = 8, SNAPSHOT = 1500, PAGE = 4096, WAL_HEADER = 32, FRAME = PAGE + 24 };

static char wal_path[PATH_ROOM + 8];
static uint8_t snapshot[SNAPSHOT];

struct file {
    uint8_t *data;
    size_t bytes;
};

static struct file load(const char *path)
{
    struct stat info;
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    assert_int_equal(fstat(fileno(stream), &info), 0);
    struct file file = {.data = malloc((size_t)info.st_size + 2 * PAGE), .bytes = (size_t)info.st_size};
    assert_non_null(file.data);
    assert_int_equal(fread(file.data, 1, file.bytes, stream), file.bytes);
    fclose(stream);
    return file;
}

static void save(const char *path, const uint8_t *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    gms_fd_close(&fd);
}

/* RECORDS records, the last of them with the snapshot. With ret_wal: as a SIGKILL leaves them, all of it in the log. */
static void make(struct file *ret_store, struct file *ret_wal)
{
    uint8_t payload[300];
    uint64_t number = 0;
    gms_store *store = NULL;
    for (size_t i = 0; i < sizeof snapshot; i++)
        snapshot[i] = (uint8_t)(i * 7 + i / 256 + 1);
    snprintf(wal_path, sizeof wal_path, "%s-wal", store_path);
    assert_ok(open_store(&store));
    append_many(store, RECORDS - 1);
    const struct gms_store_record last = {
        .kind = 100 + RECORDS, .payload = payload, .bytes = make_payload(RECORDS, payload)};
    assert_ok(gms_store_commit(store, &last, 1, snapshot, sizeof snapshot, &number, &error));
    assert_int_equal(number, RECORDS);
    if (ret_wal != NULL) {
        *ret_store = load(store_path);
        *ret_wal = load(wal_path);
    }
    gms_store_close(store);
    if (ret_wal == NULL)
        *ret_store = load(store_path);
}

/* Opens what lies there, `known`: the round of the snapshot that the keeper remembers, 0: none. True: it opened, and
 * holds that. */
static bool opens(uint64_t known)
{
    gms_store *store = NULL;
    void *bytes = NULL;
    uint32_t count = 0;
    enum gms_store_doubt doubt = GMS_STORE_TRUSTED;
    const struct gms_store_options options = {.path = store_path,
                                              .boot_id = boot_a,
                                              .world = WORLD + 1,
                                              .keeper = 77,
                                              .mirror_world = known > 0 ? WORLD : 0,
                                              .mirror_round = known,
                                              .ret_doubt = &doubt};
    memset(&error, 0, sizeof error);
    gms_status status = gms_store_open(&options, &store, &error);
    if (status == GMS_OK)
        status = gms_store_snapshot(store, &bytes, &count, &error);
    if (status != GMS_OK) {
        assert_true(status == GMS_E_CORRUPT || status == GMS_E_STORE || status == GMS_E_VERSION ||
                    status == GMS_E_IN_DOUBT);
        assert_true(error.text[0] != '\0');
        gms_store_close(store);
        return false;
    }
    assert_true(gms_store_last(store) <= RECORDS);
    assert_true(holds_right_records(store));
    if (known > 0 && count == 0) { /* an earlier end: the snapshot's round, here that there is none, tells the group */
        gms_store_close(store);
        return false;
    }
    if (gms_store_last(store) == RECORDS) {
        assert_int_equal(count, sizeof snapshot);
        assert_memory_equal(bytes, snapshot, count);
    } else {
        assert_int_equal(count, 0); /* the snapshot came with the last record */
    }
    free(bytes);
    gms_store_close(store);
    return true;
}

static bool opens_as(const uint8_t *data, size_t bytes, uint64_t known)
{
    unlink(wal_path);
    save(store_path, data, bytes);
    return opens(known);
}

/* ---------------------------------------------------------------------------------------------- the store ----- */

static void test_cut(void **state)
{
    struct file store;
    (void)state;
    make(&store, NULL);
    assert_true(opens_as(store.data, store.bytes, RECORDS));
    for (size_t cut = 0; cut < store.bytes; cut += cut < 256 || cut % PAGE > PAGE - 16 || cut % PAGE < 16 ? 1 : 29)
        assert_false(opens_as(store.data, cut, RECORDS)); /* nothing of it is without use */
    free(store.data);
}

static void test_grown(void **state)
{
    struct file store;
    (void)state;
    make(&store, NULL);
    memset(store.data + store.bytes, 0, PAGE);
    assert_true(opens_as(store.data, store.bytes + PAGE, RECORDS)); /* a clean end */
    for (size_t i = 0; i < PAGE; i++)
        store.data[store.bytes + i] = (uint8_t)(i * 131 + 17);
    assert_true(opens_as(store.data, store.bytes + PAGE, RECORDS));
    free(store.data);
}

static void test_flipped(void **state)
{
    struct file store;
    unsigned refused = 0;
    (void)state;
    make(&store, NULL);
    for (size_t at = 0; at < store.bytes; at += at < 200 ? 1 : 13) {
        store.data[at] ^= (uint8_t)(1u << at % 8);
        refused += !opens_as(store.data, store.bytes, RECORDS);
        store.data[at] ^= (uint8_t)(1u << at % 8);
    }
    assert_true(refused > 100);
    free(store.data);
}

/* Where a payload lies in the file. The last place: SQLite fills pages from their end, and a shorter record's bytes
 * occur in longer ones too. */
static size_t find(const struct file *file, const uint8_t *bytes, size_t count)
{
    for (size_t at = file->bytes - count + 1; at-- > 0;)
        if (memcmp(file->data + at, bytes, count) == 0)
            return at;
    fail_msg("the payload is not in the file");
    return 0;
}

/* Every bit of every record's payload and of the snapshot's: refused, and the record is named. */
static void test_flipped_payloads(void **state)
{
    struct file store;
    uint8_t payload[300];
    char named[32];
    (void)state;
    make(&store, NULL);
    for (uint64_t number = 1; number <= RECORDS; number++) {
        uint32_t bytes = make_payload(number, payload);
        size_t at = find(&store, payload, bytes);
        snprintf(named, sizeof named, "record %llu is damaged", (unsigned long long)number);
        for (uint32_t i = 0; i < bytes; i += 3) {
            store.data[at + i] ^= (uint8_t)(1u << i % 8);
            assert_false(opens_as(store.data, store.bytes, RECORDS));
            assert_text_has(named);
            store.data[at + i] ^= (uint8_t)(1u << i % 8);
        }
    }
    size_t at = find(&store, snapshot, sizeof snapshot);
    for (uint32_t i = 0; i < sizeof snapshot; i += 3) {
        store.data[at + i] ^= (uint8_t)(1u << i % 8);
        assert_false(opens_as(store.data, store.bytes, RECORDS));
        store.data[at + i] ^= (uint8_t)(1u << i % 8);
    }
    free(store.data);
}

/* Any two pages in each other's place, and any page twice. */
static void test_exchanged_pages(void **state)
{
    struct file store;
    static uint8_t other[64 * PAGE];
    (void)state;
    make(&store, NULL);
    size_t pages = store.bytes / PAGE;
    assert_in_range(pages, 3, 64);
    for (size_t a = 0; a < pages; a++) {
        for (size_t b = 0; b < pages; b++) {
            if (a == b)
                continue;
            memcpy(other, store.data, store.bytes);
            memcpy(other + a * PAGE, store.data + b * PAGE, PAGE);
            opens_as(other, store.bytes, RECORDS); /* what opens is checked there */
            memcpy(other + b * PAGE, store.data + a * PAGE, PAGE);
            opens_as(other, store.bytes, RECORDS);
        }
    }
    free(store.data);
}

/* ------------------------------------------------------------------------------------------------ the log ----- */

static bool opens_with(const struct file *store, const uint8_t *log, size_t bytes, uint64_t known)
{
    save(store_path, store->data, store->bytes);
    save(wal_path, log, bytes);
    return opens(known);
}

/* Cut anywhere it is an earlier end, which the keeper's memory turns into a refusal. */
static void test_cut_log(void **state)
{
    struct file store, wal;
    unsigned refused = 0, opened = 0;
    (void)state;
    make(&store, &wal);
    assert_true(opens_with(&store, wal.data, wal.bytes, RECORDS));
    for (size_t cut = 0; cut < wal.bytes;) {
        size_t in_frame = cut < WAL_HEADER ? 0 : (cut - WAL_HEADER) % FRAME;
        assert_false(opens_with(&store, wal.data, cut, RECORDS));
        if (opens_with(&store, wal.data, cut, 0))
            opened++;
        else
            refused++;
        cut += in_frame < 32 || in_frame > FRAME - 8 ? 1 : 401;
    }
    print_message("%u cuts were an earlier end, %u were refused\n", opened, refused);
    assert_true(opened > 100);
    free(store.data);
    free(wal.data);
}

static void test_grown_log(void **state)
{
    struct file store, wal;
    (void)state;
    make(&store, &wal);
    memset(wal.data + wal.bytes, 0, PAGE);
    assert_true(opens_with(&store, wal.data, wal.bytes + PAGE, RECORDS));
    for (size_t i = 0; i < PAGE; i++)
        wal.data[wal.bytes + i] = (uint8_t)(i * 131 + 17);
    assert_true(opens_with(&store, wal.data, wal.bytes + PAGE, RECORDS));
    free(store.data);
    free(wal.data);
}

/* One bit in the header and at several places of each frame; the last frame once more at the end. */
static void test_flipped_log(void **state)
{
    struct file store, wal;
    (void)state;
    make(&store, &wal);
    for (size_t at = 0; at < wal.bytes; at += at < WAL_HEADER + 24 ? 1 : 211) {
        wal.data[at] ^= (uint8_t)(1u << at % 8);
        opens_with(&store, wal.data, wal.bytes, RECORDS);
        opens_with(&store, wal.data, wal.bytes, 0);
        wal.data[at] ^= (uint8_t)(1u << at % 8);
    }
    memcpy(wal.data + wal.bytes, wal.data + wal.bytes - FRAME, FRAME);
    assert_true(opens_with(&store, wal.data, wal.bytes + FRAME, RECORDS));
    free(store.data);
    free(wal.data);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, unit_remove_dir)
    const struct CMUnitTest tests[] = {
        TEST(test_cut),
        TEST(test_grown),
        TEST(test_flipped),
        TEST(test_flipped_payloads),
        TEST(test_exchanged_pages),
        TEST(test_cut_log),
        TEST(test_grown_log),
        TEST(test_flipped_log),
    };
    return cmocka_run_group_tests_name("the store's bytes", tests, NULL, NULL);
}
