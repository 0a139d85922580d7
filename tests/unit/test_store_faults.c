/* SPDX-License-Identifier: Apache-2.0
 *
 * The store: what it acknowledged is there after any end of the process, what it refused is not. Faults are injected
 * below SQLite, by limits and by SIGKILL.
 */
#include "store_support.h"

#include <sched.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/resource.h>

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
        TEST(test_fault_at_every_operation),
        TEST(test_file_size_limit),
        TEST(test_full_disk),
        TEST(test_killed_while_appending),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
