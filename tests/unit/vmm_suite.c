/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm_suite.h"

#include <sys/resource.h>
#include <sys/socket.h>

const struct gms_vmm *vmm;
uint64_t size;
struct gms_error error;

static vmm_suite_look look_at;

enum { ROLE_FD = 100 };

/* ------------------------------------------------------------------------------------------------ helpers ------ */

struct gms_vmm_handle vmm_make(const char *label)
{
    struct gms_vmm_handle handle = {.fd = -1};

    assert_ok(vmm->create(label, size, &handle, &error));
    assert_true(handle.fd >= 0);
    assert_int_equal(handle.bytes, size);
    assert_int_equal(fcntl(handle.fd, F_GETFD), FD_CLOEXEC);
    return handle;
}

unsigned char *vmm_reserve(uint64_t bytes)
{
    void *address = NULL;

    assert_ok(vmm->reserve(bytes, &address, &error));
    assert_non_null(address);
    return address;
}

static bool fill(void *address, int byte, uint64_t bytes)
{
    unsigned char *data = malloc(bytes);
    const bool good = data && memset(data, byte, bytes) && vmm->write(address, data, bytes, &error) == GMS_OK;

    free(data);
    return good;
}

void vmm_fill(void *address, int byte, uint64_t bytes)
{
    assert_true(fill(address, byte, bytes));
}

int vmm_byte(const void *address)
{
    unsigned char byte = 0;

    assert_ok(vmm->read(&byte, address, 1, &error));
    return byte;
}

static bool is_filled(const void *address, int byte, uint64_t bytes)
{
    unsigned char *data = malloc(bytes);
    uint64_t same = 0;

    if (data && vmm->read(data, address, bytes, &error) == GMS_OK) {
        while (same < bytes && data[same] == byte) {
            same++;
        }
    }
    free(data);
    return same == bytes;
}

pid_t vmm_start_role(const char *role, int fd)
{
    const pid_t child = fork();

    if (child == 0) {
        if (fd >= 0 && dup2(fd, ROLE_FD) != ROLE_FD) {
            _exit(98);
        }
        execl("/proc/self/exe", "vmm-suite", "--role", role, (char *)NULL);
        _exit(97);
    }
    assert_true(child > 0);
    return child;
}

/* ------------------------------------------------------------------------------------------------- roles ------- */

static void role_maker(void)
{
    struct gms_vmm_handle made = {.fd = -1};
    void *address = NULL;
    char byte = 'm';
    int exported = -1;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    struct msghdr header = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

    child_check(vmm->create("of-the-dead", size, &made, &error) == GMS_OK);
    child_check(vmm->reserve(size, &address, &error) == GMS_OK);
    child_check(vmm->map(address, &made, GMS_VMM_READ_WRITE, &error) == GMS_OK);
    child_check(fill(address, 0x77, size));
    child_check(vmm->export_fd(&made, &exported, &error) == GMS_OK);
    child_check(exported != made.fd && fcntl(exported, F_GETFD) == FD_CLOEXEC);
    struct cmsghdr *part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(part), &exported, sizeof(int));
    child_check(sendmsg(ROLE_FD, &header, MSG_NOSIGNAL) == 1);
    for (;;) {
        pause();
    }
}

/* Maps the memory that is its descriptor for writing, and says so; ends when nobody reads from it any more. */
static void role_writer(void)
{
    struct gms_vmm_handle handle = {.fd = -1};
    void *place = NULL;
    char byte;

    child_check(vmm->import_fd(ROLE_FD, size, &handle, &error) == GMS_OK);
    child_check(vmm->reserve(size, &place, &error) == GMS_OK);
    child_check(vmm->map(place, &handle, GMS_VMM_READ_WRITE, &error) == GMS_OK);
    child_check(write(STDOUT_FILENO, "r", 1) == 1);
    child_check(read(STDIN_FILENO, &byte, 1) == 0);
}

/* Descriptors run out before memory does: that is what is said, with the numbers (V36). */
static void role_short_of_descriptors(void)
{
    struct gms_vmm_handle handles[64];
    struct gms_vmm_handle *last = handles;
    void *address = NULL;
    uint64_t used = 0;
    uint64_t limit = 0;
    int fd = 4711;
    char text[64];
    gms_status status;

    child_check(vmm->create("first", size, last++, &error) == GMS_OK);
    child_check(vmm->reserve(size, &address, &error) == GMS_OK);
    gms_fd_usage(&used, &limit);
    /* Every number below the limit, so that what is in use is what is allowed. */
    const struct rlimit few = {.rlim_cur = used + 8, .rlim_max = used + 8};
    child_check(close_range((unsigned)few.rlim_cur, ~0U, 0) == 0);
    child_check(setrlimit(RLIMIT_NOFILE, &few) == 0);
    while (last < handles + 64 && (status = vmm->create("many", size, last, &error)) == GMS_OK) {
        last++;
    }
    child_check(status == GMS_E_DESCRIPTORS);
    snprintf(text, sizeof(text), "used of %llu allowed", (unsigned long long)few.rlim_cur);
    child_check(strstr(error.text, text) != NULL);
    while ((fd = dup(STDIN_FILENO)) >= 0) {
    }
    fd = 4711;
    child_check(vmm->export_fd(&handles[0], &fd, &error) == GMS_E_DESCRIPTORS && fd == 4711);
    child_check(strstr(error.text, text) != NULL);
    for (int i = 0; i < 3; i++) { /* more than one: the driver wants a spare one */
        vmm->release(--last);
    }
    child_check(vmm->map(address, &handles[0], GMS_VMM_READ, &error) == GMS_OK);
    child_check(vmm->create("again", size, last, &error) == GMS_OK);
}

void vmm_suite_role(int argc, char *argv[], const struct gms_vmm *subject)
{
    static const struct {
        const char *name;
        void (*play)(void);
    } roles[] = {{"maker", role_maker}, {"writer", role_writer}, {"short-of-descriptors", role_short_of_descriptors}};

    vmm = subject;
    size = 2 * vmm->granularity_bytes;
    for (size_t i = 0; argc == 3 && i < sizeof(roles) / sizeof(roles[0]); i++) {
        if (strcmp(argv[2], roles[i].name) == 0) {
            roles[i].play();
            _exit(0);
        }
    }
    if (argc > 1) {
        fprintf(stderr, "%s: unknown role\n", argv[1]);
        _exit(96);
    }
}

/* ------------------------------------------------------------------------------------------------- cases ------- */

static void reserved_is_unreadable(void **state)
{
    unsigned char *address = vmm_reserve(size);

    (void)state;
    assert_true(vmm->name[0] != '\0');
    assert_true(vmm->granularity_bytes > 0);
    assert_int_equal((uintptr_t)address % vmm->granularity_bytes, 0);
    assert_int_equal(look_at(address), GMS_VMM_NONE);
    assert_ok(vmm->unreserve(address, size, &error));
}

static void memory_is_shared_and_outlives_a_mapping(void **state)
{
    struct gms_vmm_handle handle = vmm_make("test");
    unsigned char *one = vmm_reserve(size);
    unsigned char *two = vmm_reserve(size);

    (void)state;
    assert_ok(vmm->map(one, &handle, GMS_VMM_READ_WRITE, &error));
    if (vmm->zeroed) {
        assert_true(is_filled(one, 0, size));
    }
    vmm_fill(one, 0x5a, size);
    assert_ok(vmm->map(two, &handle, GMS_VMM_READ, &error));
    assert_true(is_filled(two, 0x5a, size));
    vmm_fill(one + size - 1, 1, 1);
    assert_int_equal(vmm_byte(two + size - 1), 1);
    assert_int_equal(look_at(one), GMS_VMM_READ_WRITE);
    assert_int_equal(look_at(two), GMS_VMM_READ);
    assert_ok(vmm->unmap(one, size, &error));
    assert_int_equal(look_at(one), GMS_VMM_NONE);
    assert_ok(vmm->unmap(one, size, &error));
    assert_ok(vmm->unmap(two, size, &error));
    assert_ok(vmm->map(one, &handle, GMS_VMM_READ, &error));
    assert_int_equal(vmm_byte(one), 0x5a);
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
    } control = {0};
    struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    struct msghdr header = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const pid_t child = vmm_start_role("maker", ends[1]);
    gms_fd_close(&ends[1]);
    assert_int_equal(recvmsg(ends[0], &header, MSG_CMSG_CLOEXEC), 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(fd));
    int pidfd = -1;
    assert_ok(gms_pidfd_open(child, &pidfd, &error));
    assert_true(gms_pidfd_signal(pidfd, SIGKILL));
    gms_fd_close(&pidfd);
    assert_int_equal(unit_wait(child), SIGKILL);

    assert_ok(vmm->import_fd(fd, size, &handle, &error));
    unsigned char *address = vmm_reserve(size);
    assert_ok(vmm->map(address, &handle, GMS_VMM_READ, &error));
    assert_true(is_filled(address, 0x77, size));
    assert_ok(vmm->unreserve(address, size, &error));
    vmm->release(&handle);
    gms_fd_close(&ends[0]);
}

static void scratch_is_private_zero_and_replaced_in_place(void **state)
{
    struct gms_vmm_handle handle = vmm_make("kv");
    unsigned char *address = vmm_reserve(size);
    unsigned char *other = vmm_reserve(size);

    (void)state;
    assert_ok(vmm->map(other, &handle, GMS_VMM_READ_WRITE, &error));
    vmm_fill(other, 0x33, size);
    assert_ok(vmm->map_scratch(address, size, &error));
    assert_true(is_filled(address, 0, size));
    vmm_fill(address, 0x99, size);
    assert_int_equal(vmm_byte(other), 0x33);
    assert_ok(vmm->map(address, &handle, GMS_VMM_READ_WRITE, &error));
    assert_true(is_filled(address, 0x33, size));
    assert_ok(vmm->map_scratch(address, size, &error));
    assert_true(is_filled(address, 0, size));
    assert_int_equal(vmm_byte(other), 0x33);
    assert_ok(vmm->unreserve(address, size, &error));
    assert_ok(vmm->unreserve(other, size, &error));
    vmm->release(&handle);
}

static void access_is_changed_in_place(void **state)
{
    struct gms_vmm_handle handle = vmm_make("access");
    unsigned char *address = vmm_reserve(size);

    (void)state;
    assert_ok(vmm->map(address, &handle, GMS_VMM_READ_WRITE, &error));
    vmm_fill(address, 7, 1);
    assert_ok(vmm->set_access(address, size, GMS_VMM_READ, &error));
    assert_int_equal(vmm_byte(address), 7);
    assert_int_equal(look_at(address), GMS_VMM_READ);
    assert_ok(vmm->set_access(address, size, GMS_VMM_NONE, &error));
    assert_int_equal(look_at(address), GMS_VMM_NONE);
    assert_ok(vmm->set_access(address, size, GMS_VMM_READ_WRITE, &error));
    assert_int_equal(vmm_byte(address), 7);
    vmm_fill(address, 8, 1);
    /* Made for reading: it can be closed and opened for reading, never for writing. */
    assert_ok(vmm->map(address, &handle, GMS_VMM_READ, &error));
    assert_ok(vmm->set_access(address, size, GMS_VMM_NONE, &error));
    assert_ok(vmm->set_access(address, size, GMS_VMM_READ, &error));
    assert_int_equal(vmm_byte(address), 8);
    assert_status(vmm->set_access(address, size, GMS_VMM_READ_WRITE, &error), GMS_E_REFUSED);
    assert_int_equal(look_at(address), GMS_VMM_READ);
    assert_status(vmm->set_access(address, size, (enum gms_vmm_access)9, &error), GMS_E_INVALID);
    assert_ok(vmm->unreserve(address, size, &error));
    vmm->release(&handle);
}

/* Where freeze is enforced: frozen means no writer anywhere, for ever; a writer anywhere means not frozen. Where it is
 * a promise it is given in any case. */
static void freeze_is_refused_while_anybody_can_write(void **state)
{
    struct gms_vmm_handle handle = vmm_make("weights");
    unsigned char *address = vmm_reserve(size);
    unsigned char *reader = vmm_reserve(size);
    const gms_status busy = vmm->freeze_enforced ? GMS_E_BUSY : GMS_OK;
    int gate[2];
    int ready[2];
    char byte;

    (void)state;
    assert_ok(vmm->map(address, &handle, GMS_VMM_READ_WRITE, &error));
    vmm_fill(address, 0x42, size);
    assert_int_equal(vmm->freeze(&handle, &error), busy);
    /* Set to READ it could be set back: still a writer. */
    assert_ok(vmm->set_access(address, size, GMS_VMM_READ, &error));
    assert_int_equal(vmm->freeze(&handle, &error), busy);
    assert_ok(vmm->map(address, &handle, GMS_VMM_READ, &error)); /* drops the writable alias in place */

    /* A writer in another process, with a descriptor of its own. */
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    const int own_in = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    const int own_out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    fflush(stdout);
    dup2(gate[0], STDIN_FILENO);
    dup2(ready[1], STDOUT_FILENO);
    const pid_t child = vmm_start_role("writer", handle.fd);
    dup2(own_in, STDIN_FILENO);
    dup2(own_out, STDOUT_FILENO);
    close(own_in);
    close(own_out);
    close(gate[0]);
    close(ready[1]);
    assert_true(unit_read(ready[0], &byte, 1));
    assert_int_equal(vmm->freeze(&handle, &error), busy);
    if (busy != GMS_OK) {
        assert_text_has("writable mapping");
    }
    close(gate[1]);
    assert_int_equal(unit_wait(child), 0);
    close(ready[0]);

    /* Readers are no hindrance, before and after. */
    assert_ok(vmm->map(reader, &handle, GMS_VMM_READ, &error));
    assert_ok(vmm->freeze(&handle, &error));
    assert_ok(vmm->freeze(&handle, &error));
    assert_int_equal(vmm_byte(reader + size - 1), 0x42);
    assert_int_equal(vmm_byte(address), 0x42);
    assert_ok(vmm->unmap(reader, size, &error));
    if (vmm->freeze_enforced) {
        assert_status(vmm->map(reader, &handle, GMS_VMM_READ_WRITE, &error), GMS_E_REFUSED);
    }
    assert_ok(vmm->map(reader, &handle, GMS_VMM_READ, &error));
    assert_status(vmm->set_access(reader, size, GMS_VMM_READ_WRITE, &error), GMS_E_REFUSED);
    assert_int_equal(vmm_byte(reader), 0x42);
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
    unsigned char *address = vmm_reserve(size);
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

static void out_of_descriptors_is_not_out_of_memory(void **state)
{
    (void)state;
    assert_int_equal(unit_wait(vmm_start_role("short-of-descriptors", -1)), 0);
}

/* A hundred times parked and back: nothing is left behind. */
static void swapping_back_and_forth_leaves_nothing_behind(void **state)
{
    struct gms_vmm_handle handle = vmm_make("kv");
    unsigned char *address = vmm_reserve(size);
    unsigned before = 0;

    (void)state;
    for (int i = 0; i < 100; i++) {
        assert_ok(vmm->map_scratch(address, size, &error));
        assert_ok(vmm->map(address, &handle, GMS_VMM_READ_WRITE, &error));
        if (i > 0) {
            assert_int_equal(vmm_byte(address), i);
        } else {
            before = unit_open_fds();
        }
        vmm_fill(address, i + 1, 1);
    }
    assert_int_equal(unit_open_fds(), before);
    assert_ok(vmm->unreserve(address, size, &error));
    vmm->release(&handle);
}

int vmm_suite_run(const char *name, const struct gms_vmm *subject, vmm_suite_look look)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reserved_is_unreadable),
        cmocka_unit_test(memory_is_shared_and_outlives_a_mapping),
        cmocka_unit_test(memory_outlives_its_maker),
        cmocka_unit_test(scratch_is_private_zero_and_replaced_in_place),
        cmocka_unit_test(access_is_changed_in_place),
        cmocka_unit_test(freeze_is_refused_while_anybody_can_write),
        cmocka_unit_test(sizes_and_addresses_are_checked),
        cmocka_unit_test(too_much_memory_is_an_error_at_create),
        cmocka_unit_test(out_of_descriptors_is_not_out_of_memory),
        cmocka_unit_test(swapping_back_and_forth_leaves_nothing_behind),
    };

    vmm = subject;
    size = 2 * vmm->granularity_bytes;
    look_at = look;
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
