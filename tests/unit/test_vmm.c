/* SPDX-License-Identifier: Apache-2.0
 * The suite that every implementation of vmm.h passes; what only host memory can show stands at the end. */
#include "unit_support.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "vmm/available.h"
#include "vmm/vmm.h"

static const struct gms_vmm *vmm;
static struct gms_error error;
static uint64_t size; /* two granules: what most cases use */

static int choose_host(void **state)
{
    (void)state;
    vmm = gms_vmm_host();
    size = 2 * vmm->granularity_bytes;
    return 0;
}

static struct gms_vmm_handle make(const char *label)
{
    struct gms_vmm_handle handle = {.fd = -1};

    assert_ok(vmm->create(label, size, &handle, &error));
    assert_true(handle.fd >= 0);
    assert_int_equal(handle.bytes, size);
    return handle;
}

static unsigned char *reserve(uint64_t bytes)
{
    void *address = NULL;

    assert_ok(vmm->reserve(bytes, &address, &error));
    assert_non_null(address);
    return address;
}

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
            *address = 1;
        } else {
            (void)*address;
        }
        _exit(0);
    }
    const int status = unit_wait(child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void reserved_is_unreadable(void **state)
{
    unsigned char *address = reserve(size);

    (void)state;
    assert_true(vmm->name[0] != '\0');
    assert_true(vmm->granularity_bytes > 0);
    assert_int_equal((uintptr_t)address % vmm->granularity_bytes, 0);
    assert_int_equal(access_ends(address, false), SIGSEGV);
    assert_ok(vmm->unreserve(address, size, &error));
}

static void memory_is_zero_shared_and_outlives_a_mapping(void **state)
{
    struct gms_vmm_handle handle = make("test");
    unsigned char *one = reserve(size);
    unsigned char *two = reserve(size);

    (void)state;
    assert_ok(vmm->map(one, &handle, GMS_VMM_READ_WRITE, &error));
    for (uint64_t i = 0; i < size; i++) {
        if (one[i] != 0) {
            fail_msg("byte %llu is not zero", (unsigned long long)i);
        }
    }
    memset(one, 0x5a, size);
    assert_ok(vmm->map(two, &handle, GMS_VMM_READ, &error));
    assert_memory_equal(one, two, size);
    one[size - 1] = 1;
    assert_int_equal(two[size - 1], 1);
    assert_int_equal(access_ends(two, true), SIGSEGV);
    assert_ok(vmm->unmap(one, size, &error));
    assert_int_equal(access_ends(one, false), SIGSEGV);
    assert_ok(vmm->unmap(two, size, &error));
    assert_ok(vmm->map(one, &handle, GMS_VMM_READ, &error));
    assert_int_equal(one[0], 0x5a);
    assert_ok(vmm->sync(&error));
    assert_ok(vmm->unreserve(one, size, &error));
    assert_ok(vmm->unreserve(two, size, &error));
    vmm->release(&handle);
    assert_int_equal(handle.fd, -1);
    vmm->release(&handle);
}

/* The maker is killed; who holds an exported descriptor has the memory, contents and all. */
static void memory_outlives_its_maker(void **state)
{
    struct gms_vmm_handle handle = {.fd = -1};
    int ends[2];
    int fd = -1;
    char byte;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    struct msghdr header = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

    (void)state;
    memset(&control, 0, sizeof(control));
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        struct gms_vmm_handle made = {.fd = -1};
        void *address = NULL;
        int exported = -1;

        child_check(vmm->create("of-the-dead", size, &made, &error) == GMS_OK);
        child_check(vmm->reserve(size, &address, &error) == GMS_OK);
        child_check(vmm->map(address, &made, GMS_VMM_READ_WRITE, &error) == GMS_OK);
        memset(address, 0x77, size);
        child_check(vmm->export_fd(&made, &exported, &error) == GMS_OK);
        child_check(exported != made.fd && fcntl(exported, F_GETFD) == FD_CLOEXEC);
        byte = 'm';
        struct cmsghdr *part = CMSG_FIRSTHDR(&header);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(part), &exported, sizeof(int));
        child_check(sendmsg(ends[1], &header, MSG_NOSIGNAL) == 1);
        for (;;) {
            pause();
        }
    }
    assert_int_equal(recvmsg(ends[0], &header, MSG_CMSG_CLOEXEC), 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(fd));
    int pidfd = -1;
    assert_ok(gms_pidfd_open(child, &pidfd, &error));
    assert_true(gms_pidfd_signal(pidfd, SIGKILL));
    gms_fd_close(&pidfd);
    assert_int_equal(unit_wait(child), SIGKILL);

    assert_ok(vmm->import_fd(fd, size, &handle, &error));
    unsigned char *address = reserve(size);
    assert_ok(vmm->map(address, &handle, GMS_VMM_READ, &error));
    assert_int_equal(address[0], 0x77);
    assert_int_equal(address[size - 1], 0x77);
    assert_ok(vmm->unreserve(address, size, &error));
    vmm->release(&handle);
    gms_fd_close(&ends[0]);
    gms_fd_close(&ends[1]);
}

static void scratch_is_private_zero_and_replaced_in_place(void **state)
{
    struct gms_vmm_handle handle = make("kv");
    unsigned char *address = reserve(size);
    unsigned char *other = reserve(size);

    (void)state;
    assert_ok(vmm->map(other, &handle, GMS_VMM_READ_WRITE, &error));
    memset(other, 0x33, size);
    assert_ok(vmm->map_scratch(address, size, &error));
    assert_int_equal(address[0], 0);
    memset(address, 0x99, size);
    assert_int_equal(other[0], 0x33);
    assert_ok(vmm->map(address, &handle, GMS_VMM_READ_WRITE, &error));
    assert_int_equal(address[0], 0x33);
    assert_ok(vmm->map_scratch(address, size, &error));
    assert_int_equal(address[0], 0);
    assert_int_equal(other[0], 0x33);
    assert_ok(vmm->unreserve(address, size, &error));
    assert_ok(vmm->unreserve(other, size, &error));
    vmm->release(&handle);
}

static void access_is_changed_in_place(void **state)
{
    struct gms_vmm_handle handle = make("access");
    unsigned char *address = reserve(size);

    (void)state;
    assert_ok(vmm->map(address, &handle, GMS_VMM_READ_WRITE, &error));
    address[0] = 7;
    assert_ok(vmm->set_access(address, size, GMS_VMM_READ, &error));
    assert_int_equal(address[0], 7);
    assert_int_equal(access_ends(address, true), SIGSEGV);
    assert_ok(vmm->set_access(address, size, GMS_VMM_NONE, &error));
    assert_int_equal(access_ends(address, false), SIGSEGV);
    assert_ok(vmm->set_access(address, size, GMS_VMM_READ_WRITE, &error));
    assert_int_equal(address[0], 7);
    address[0] = 8;
    /* Made for reading: it can be closed and opened for reading, never for writing. */
    assert_ok(vmm->map(address, &handle, GMS_VMM_READ, &error));
    assert_ok(vmm->set_access(address, size, GMS_VMM_NONE, &error));
    assert_ok(vmm->set_access(address, size, GMS_VMM_READ, &error));
    assert_int_equal(address[0], 8);
    assert_status(vmm->set_access(address, size, GMS_VMM_READ_WRITE, &error), GMS_E_REFUSED);
    assert_int_equal(access_ends(address, true), SIGSEGV);
    assert_status(vmm->set_access(address, size, (enum gms_vmm_access)9, &error), GMS_E_INVALID);
    assert_ok(vmm->unreserve(address, size, &error));
    vmm->release(&handle);
}

/* Frozen means: no writer anywhere, for ever. A writer anywhere means: not frozen. */
static void freeze_is_refused_while_anybody_can_write(void **state)
{
    struct gms_vmm_handle handle = make("weights");
    unsigned char *address = reserve(size);
    unsigned char *reader = reserve(size);
    int gate[2];
    int ready[2];
    char byte;

    (void)state;
    assert_ok(vmm->map(address, &handle, GMS_VMM_READ_WRITE, &error));
    memset(address, 0x42, size);
    assert_status(vmm->freeze(&handle, &error), GMS_E_BUSY);
    /* Set to READ it could be set back: still a writer. */
    assert_ok(vmm->set_access(address, size, GMS_VMM_READ, &error));
    assert_status(vmm->freeze(&handle, &error), GMS_E_BUSY);
    assert_ok(vmm->map(address, &handle, GMS_VMM_READ, &error)); /* drops the writable alias in place */

    /* A writer in another process, with a descriptor of its own. */
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) {
        void *place = NULL;

        close(gate[1]);
        child_check(vmm->reserve(size, &place, &error) == GMS_OK);
        child_check(vmm->map(place, &handle, GMS_VMM_READ_WRITE, &error) == GMS_OK);
        child_check(write(ready[1], "r", 1) == 1);
        child_check(read(gate[0], &byte, 1) == 0);
        _exit(0);
    }
    close(gate[0]);
    assert_true(unit_read(ready[0], &byte, 1));
    assert_status(vmm->freeze(&handle, &error), GMS_E_BUSY);
    assert_text_has("writable mapping");
    close(gate[1]);
    assert_int_equal(unit_wait(child), 0);
    close(ready[0]);
    close(ready[1]);

    /* Readers are no hindrance, before and after. */
    assert_ok(vmm->map(reader, &handle, GMS_VMM_READ, &error));
    assert_ok(vmm->freeze(&handle, &error));
    assert_ok(vmm->freeze(&handle, &error));
    assert_int_equal(reader[size - 1], 0x42);
    assert_int_equal(address[0], 0x42);
    assert_ok(vmm->unmap(reader, size, &error));
    assert_status(vmm->map(reader, &handle, GMS_VMM_READ_WRITE, &error), GMS_E_REFUSED);
    assert_ok(vmm->map(reader, &handle, GMS_VMM_READ, &error));
    assert_status(vmm->set_access(reader, size, GMS_VMM_READ_WRITE, &error), GMS_E_REFUSED);
    assert_int_equal(reader[0], 0x42);
    assert_ok(vmm->unreserve(address, size, &error));
    assert_ok(vmm->unreserve(reader, size, &error));
    vmm->release(&handle);
}

static void sizes_and_addresses_are_checked(void **state)
{
    const uint64_t wrong[] = {0,
                              1,
                              vmm->granularity_bytes - 1,
                              vmm->granularity_bytes + 1,
                              UINT64_MAX,
                              (UINT64_MAX / vmm->granularity_bytes) * vmm->granularity_bytes};
    struct gms_vmm_handle handle = {.fd = -1, .bytes = 4711};
    unsigned char *address = reserve(size);
    void *untouched = &handle;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_status(vmm->create("wrong", wrong[i], &handle, &error), GMS_E_INVALID);
        assert_status(vmm->reserve(wrong[i], &untouched, &error), GMS_E_INVALID);
        assert_status(vmm->map_scratch(address, wrong[i], &error), GMS_E_INVALID);
        assert_status(vmm->unmap(address, wrong[i], &error), GMS_E_INVALID);
        assert_status(vmm->set_access(address, wrong[i], GMS_VMM_READ, &error), GMS_E_INVALID);
        assert_status(vmm->unreserve(address, wrong[i], &error), GMS_E_INVALID);
    }
    assert_int_equal(handle.fd, -1);
    assert_int_equal(handle.bytes, 4711);
    assert_ptr_equal(untouched, &handle);
    handle.bytes = size;
    assert_status(vmm->map(address, &handle, GMS_VMM_READ, &error), GMS_E_INVALID);
    assert_status(vmm->map(NULL, &handle, GMS_VMM_READ, &error), GMS_E_INVALID);
    assert_status(vmm->map(address + 1, &handle, GMS_VMM_READ, &error), GMS_E_INVALID);
    assert_status(vmm->map_scratch(address + 1, size, &error), GMS_E_INVALID);
    assert_status(vmm->export_fd(&handle, &(int){0}, &error), GMS_E_INVALID);
    assert_status(vmm->freeze(&handle, &error), GMS_E_INVALID);
    char label[512];
    memset(label, 'l', sizeof(label) - 1);
    label[sizeof(label) - 1] = '\0';
    assert_status(vmm->create(label, size, &handle, &error), GMS_E_INVALID);
    assert_status(vmm->create(NULL, size, &handle, &error), GMS_E_INVALID);
    assert_ok(vmm->unreserve(address, size, &error));
}

/* More than there is: an error now, with both numbers, and never a signal later (V35). */
static void too_much_memory_is_an_error_at_create(void **state)
{
    struct gms_vmm_handle handle = {.fd = -1};
    const unsigned before = unit_open_fds();
    const uint64_t much = UINT64_C(1) << 50; /* 1 PiB */

    (void)state;
    assert_status(vmm->create("much", much, &handle, &error), GMS_E_NO_MEMORY);
    assert_text_has("1.0 PiB");
    assert_text_has("available");
    assert_int_equal(handle.fd, -1);
    assert_int_equal(unit_open_fds(), before);
}

/* ------------------------------------------------------------------------------------- host memory alone ----- */

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
    struct gms_vmm_handle handle = make("kv_cache/1");
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
    struct gms_vmm_handle handle = make("original");
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

/* Descriptors run out before memory does: that is what is said, with the numbers (V36). */
static void out_of_descriptors_is_not_out_of_memory(void **state)
{
    const pid_t child = fork();

    (void)state;
    if (child == 0) {
        const struct rlimit limit = {.rlim_cur = 40, .rlim_max = 40};
        struct gms_vmm_handle handles[64];
        struct gms_vmm_handle *last = handles;
        void *address = NULL;
        int fd = 4711;
        gms_status status;

        child_check(close_range(3, ~0U, 0) == 0);
        child_check(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        child_check(vmm->reserve(size, &address, &error) == GMS_OK);
        while ((status = vmm->create("many", size, last, &error)) == GMS_OK) {
            last++;
        }
        child_check(status == GMS_E_DESCRIPTORS);
        child_check(strstr(error.text, "40 used of 40"));
        child_check(vmm->export_fd(&handles[0], &fd, &error) == GMS_E_DESCRIPTORS && fd == 4711);
        child_check(strstr(error.text, "40 used of 40"));
        child_check(vmm->map(address, &handles[0], GMS_VMM_READ, &error) == GMS_E_DESCRIPTORS);
        child_check(vmm->map(address, &handles[0], GMS_VMM_READ_WRITE, &error) == GMS_OK); /* needs none */
        vmm->release(--last);
        child_check(vmm->map(address, &handles[0], GMS_VMM_READ, &error) == GMS_OK);
        child_check(vmm->create("again", size, last, &error) == GMS_OK);
        _exit(0);
    }
    assert_int_equal(unit_wait(child), 0);
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
    struct gms_vmm_handle one = make("one");
    struct gms_vmm_handle two = make("two");
    unsigned char *address = reserve(size);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reserved_is_unreadable),
        cmocka_unit_test(memory_is_zero_shared_and_outlives_a_mapping),
        cmocka_unit_test(memory_outlives_its_maker),
        cmocka_unit_test(scratch_is_private_zero_and_replaced_in_place),
        cmocka_unit_test(access_is_changed_in_place),
        cmocka_unit_test(freeze_is_refused_while_anybody_can_write),
        cmocka_unit_test(sizes_and_addresses_are_checked),
        cmocka_unit_test(too_much_memory_is_an_error_at_create),
        cmocka_unit_test(replacing_a_mapping_has_no_gap),
    };
    const struct CMUnitTest host_tests[] = {
        cmocka_unit_test(a_file_size_limit_is_an_error_at_create),
        cmocka_unit_test(pages_are_reserved_at_create),
        cmocka_unit_test(size_is_sealed_and_the_label_shows),
        cmocka_unit_test(import_takes_only_what_it_expects),
        cmocka_unit_test(out_of_descriptors_is_not_out_of_memory),
        cmocka_unit_test_setup_teardown(available_memory_knows_cgroups, unit_make_dir, unit_remove_dir),
    };

    return cmocka_run_group_tests_name("host: shared suite", tests, choose_host, NULL) +
           cmocka_run_group_tests_name("host alone", host_tests, choose_host, NULL);
}
