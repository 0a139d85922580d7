/* SPDX-License-Identifier: Apache-2.0
 * Host memory: the shared suite, and what only host memory can show. */
#include "vmm_suite.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "vmm/available.h"

/* How a child ends that does one access: 0, or the signal. */
static int access_ends(volatile unsigned char *address, bool write_it)
{
    const pid_t child = fork();

    if (child == 0) {
        const struct rlimit none = {0};

        setrlimit(RLIMIT_CORE, &none);
        signal(SIGSEGV, SIG_DFL); /* a sanitizer would turn it into an exit */
        signal(SIGBUS, SIG_DFL);
        if (write_it) {
            *address = *address;
        } else {
            (void)*address;
        }
        _exit(0);
    }
    const int status = unit_wait(child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static enum gms_vmm_access look(const void *address)
{
    volatile unsigned char *byte = (volatile unsigned char *)(uintptr_t)address;

    if (access_ends(byte, false) != 0) {
        return GMS_VMM_NONE;
    }
    return access_ends(byte, true) != 0 ? GMS_VMM_READ : GMS_VMM_READ_WRITE;
}

static void a_file_size_limit_is_an_error_at_create(void **state)
{
    const pid_t child = fork();

    (void)state;
    if (child == 0) {
        const struct rlimit limit = {.rlim_cur = 1024 * 1024, .rlim_max = 1024 * 1024};
        struct gms_vmm_handle handle = {.fd = -1};

        child_check(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        child_check(vmm->create("limited", 2 * 1024 * 1024, &handle, &error) == GMS_E_NO_MEMORY);
        child_check(strstr(error.text, "2097152") && strstr(error.text, "1048576"));
        child_check(vmm->create("fits", 1024 * 1024, &handle, &error) == GMS_OK);
        _exit(0);
    }
    assert_int_equal(unit_wait(child), 0);
}

/* The pages are there: a touch allocates nothing. */
static void pages_are_reserved_at_create(void **state)
{
    struct gms_vmm_handle handle = {.fd = -1};
    struct stat info;

    (void)state;
    assert_ok(vmm->create("pages", 1024 * 1024, &handle, &error));
    assert_int_equal(fstat(handle.fd, &info), 0);
    assert_int_equal(info.st_size, 1024 * 1024);
    assert_true(info.st_blocks * 512 >= 1024 * 1024);
    vmm->release(&handle);
}

static void size_is_sealed_and_the_label_shows(void **state)
{
    struct gms_vmm_handle handle = vmm_make("kv_cache/1");
    char link[64];
    char target[256] = "";

    (void)state;
    assert_int_equal(ftruncate(handle.fd, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(handle.fd, (off_t)(2 * size)), -1);
    assert_int_equal(fallocate(handle.fd, 0, 0, (off_t)(2 * size)), -1);
    assert_int_equal(fcntl(handle.fd, F_GETFD), FD_CLOEXEC);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", handle.fd);
    assert_true(readlink(link, target, sizeof(target) - 1) > 0);
    assert_non_null(strstr(target, "memfd:gms:kv_cache/1"));
    /* Frozen memory is closed to write(2) as well. */
    assert_ok(vmm->freeze(&handle, &error));
    assert_int_equal(write(handle.fd, "x", 1), -1);
    vmm->release(&handle);
}

static void import_takes_only_what_it_expects(void **state)
{
    struct gms_vmm_handle handle = vmm_make("original");
    struct gms_vmm_handle taken = {.fd = -1, .bytes = 4711};
    int fd = -1;

    (void)state;
    assert_ok(vmm->export_fd(&handle, &fd, &error));
    assert_status(vmm->import_fd(fd, size / 2, &taken, &error), GMS_E_MISMATCH);
    assert_status(vmm->import_fd(fd, size * 2, &taken, &error), GMS_E_MISMATCH);
    assert_status(vmm->import_fd(fd, 0, &taken, &error), GMS_E_INVALID);
    assert_true(fcntl(fd, F_GETFD) >= 0); /* still the caller's */
    assert_int_equal(fcntl(fd, F_SETFD, 0), 0);
    assert_ok(vmm->import_fd(fd, size, &taken, &error));
    assert_int_equal(taken.fd, fd);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    vmm->release(&taken);
    taken = (struct gms_vmm_handle){.fd = -1, .bytes = 4711};

    /* Not sealed, not sealable, zero length, not memory, not open. */
    fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    assert_status(vmm->import_fd(fd, size, &taken, &error), GMS_E_MISMATCH);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
    assert_status(vmm->import_fd(fd, size, &taken, &error), GMS_E_MISMATCH);
    close(fd);
    fd = memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK), 0);
    assert_status(vmm->import_fd(fd, size, &taken, &error), GMS_E_MISMATCH);
    close(fd);
    fd = memfd_create("plain", MFD_CLOEXEC);
    assert_status(vmm->import_fd(fd, size, &taken, &error), GMS_E_MISMATCH);
    close(fd);
    fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    assert_status(vmm->import_fd(fd, size, &taken, &error), GMS_E_INVALID);
    close(fd);
    fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_status(vmm->import_fd(fd, size, &taken, &error), GMS_E_INVALID);
    close(fd);
    assert_status(vmm->import_fd(-1, size, &taken, &error), GMS_E_INVALID);
    assert_int_equal(taken.fd, -1);
    assert_int_equal(taken.bytes, 4711);
    vmm->release(&handle);
}

static void put_file(const char *directory, const char *name, const char *text)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    gms_fd_close(&fd);
}

/* What is available is the least along the way up, with page cache counted as free; both cgroup versions. */
static void available_memory_knows_cgroups(void **state)
{
    const char *root = *state;
    const uint64_t mib = 1024 * 1024;

    assert_int_equal(gms_vmm_available_bytes(root, root), UINT64_MAX);
    put_file(root, "meminfo", "MemTotal: 9999999 kB\nMemAvailable:    4096 kB\nSwapFree: 1 kB\n");
    assert_int_equal(gms_vmm_available_bytes(root, root), 4 * mib);
    /* v2: no limit here, one above. */
    put_file(root, "self/cgroup", "0::/slice/job/step\n");
    put_file(root, "slice/job/step/memory.max", "max\n");
    put_file(root, "slice/job/step/memory.current", "1048576\n");
    assert_int_equal(gms_vmm_available_bytes(root, root), 4 * mib);
    put_file(root, "slice/job/memory.max", "3145728\n");
    put_file(root, "slice/job/memory.current", "2097152\n");
    assert_int_equal(gms_vmm_available_bytes(root, root), 1 * mib);
    put_file(root, "slice/job/memory.stat", "anon 5\nfile 1048576\nactive_file 524288\ninactive_file 524288\n");
    assert_int_equal(gms_vmm_available_bytes(root, root), 2 * mib);
    put_file(root, "slice/memory.max", "1024\n");
    put_file(root, "slice/memory.current", "4096\n");
    assert_int_equal(gms_vmm_available_bytes(root, root), 0);
    assert_int_equal(gms_vmm_total_bytes(root, root), 1024); /* what is used of it does not count */
    /* v1, named among other controllers; its root group has the limit. */
    put_file(root, "self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/uid/job\n3:memoryless:/x\n1:cpu:/\n0::/\n");
    assert_int_equal(gms_vmm_available_bytes(root, root), 4 * mib);
    put_file(root, "memory/memory.limit_in_bytes", "3145728\n");
    put_file(root, "memory/memory.usage_in_bytes", "1048576\n");
    assert_int_equal(gms_vmm_available_bytes(root, root), 2 * mib);
    put_file(root, "memory/uid/job/memory.limit_in_bytes", "2097152\n");
    put_file(root, "memory/uid/job/memory.usage_in_bytes", "1572864\n");
    put_file(root, "memory/uid/job/memory.stat", "inactive_file 9\ntotal_inactive_file 524288\n");
    assert_int_equal(gms_vmm_available_bytes(root, root), 1 * mib);
    put_file(root, "memory/uid/job/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(gms_vmm_available_bytes(root, root), 2 * mib);
    /* Nonsense is unknown, not none. */
    put_file(root, "self/cgroup", ":::\nxx\n0:\n4:memory\n");
    assert_int_equal(gms_vmm_available_bytes(root, root), 4 * mib);
    assert_int_equal(gms_vmm_total_bytes(root, root), UINT64_C(9999999) * 1024);
}

struct race {
    volatile unsigned char *address;
    _Atomic bool stop;
    unsigned long seen[3];
};

/* A thread sanitizer takes mmap for a write to the memory; here the race is the point. */
__attribute__((no_sanitize("thread"))) static void *read_all_the_time(void *argument)
{
    struct race *race = argument;

    while (!race->stop) {
        const unsigned char byte = *race->address; /* a gap between old and new would end us here */

        race->seen[byte == 1 ? 0 : byte == 2 ? 1 : 2]++;
    }
    return NULL;
}

/* A reader during the swap sees old or new, never nothing. */
static void replacing_a_mapping_has_no_gap(void **state)
{
    struct gms_vmm_handle one = vmm_make("one");
    struct gms_vmm_handle two = vmm_make("two");
    unsigned char *address = vmm_reserve(size);
    struct race race = {.address = address};
    pthread_t thread;

    (void)state;
    assert_ok(vmm->map(address, &two, GMS_VMM_READ_WRITE, &error));
    address[0] = 2;
    assert_ok(vmm->map(address, &one, GMS_VMM_READ_WRITE, &error));
    address[0] = 1;
    assert_int_equal(pthread_create(&thread, NULL, read_all_the_time, &race), 0);
    for (int i = 0; i < 2000; i++) {
        assert_ok(vmm->map(address, i % 2 ? &one : &two, i % 3 ? GMS_VMM_READ : GMS_VMM_READ_WRITE, &error));
    }
    race.stop = true;
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(race.seen[2], 0);
    assert_ok(vmm->unreserve(address, size, &error));
    vmm->release(&one);
    vmm->release(&two);
}

int main(int argc, char *argv[])
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_size_limit_is_an_error_at_create),
        cmocka_unit_test(pages_are_reserved_at_create),
        cmocka_unit_test(size_is_sealed_and_the_label_shows),
        cmocka_unit_test(import_takes_only_what_it_expects),
        cmocka_unit_test(replacing_a_mapping_has_no_gap),
        cmocka_unit_test_setup_teardown(available_memory_knows_cgroups, unit_make_dir, unit_remove_dir),
    };

    vmm_suite_role(argc, argv, gms_vmm_host());
    return vmm_suite_run("host: shared suite", gms_vmm_host(), look) +
           cmocka_run_group_tests_name("host alone", tests, NULL, NULL);
}
