/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory: the shared suite, and what only the driver can show. On whichever libcuda.so.1 there is: the fake one
 * (fake_cuda.h) everywhere, a real one where there is a GPU. What needs a driver that can be told to fail is skipped on
 * a real one.
 */
#include "vmm_suite.h"

#include <pthread.h>
#include <sys/mman.h>

#include "fake_cuda.h"
#include "vmm/cuda.h"
#include "vmm/cuda_api.h"

static const struct fake_cuda *fake;

static enum gms_vmm_access look(const void *address)
{
    enum gms_vmm_access access = GMS_VMM_NONE;

    assert_ok(gms_vmm_cuda_access(address, &access, &error));
    return access;
}

/* ------------------------------------------------------------------------------------------- any driver -------- */

/* Memory is held, passed on and let go without one driver call: what a restarted coordinator does. */
static void descriptors_need_no_driver(void **state)
{
    struct gms_vmm_handle handle = vmm_make("kv");
    struct gms_vmm_handle again = {.fd = -1};
    const uint64_t before = gms_vmm_cuda_calls();
    int fd = -1;

    (void)state;
    assert_ok(vmm->export_fd(&handle, &fd, &error));
    assert_int_equal(fcntl(fd, F_SETFD, 0), 0);
    assert_ok(vmm->import_fd(fd, size, &again, &error));
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_ok(vmm->freeze(&again, &error));
    vmm->release(&handle);
    vmm->release(&again);
    assert_status(vmm->import_fd(-1, size, &again, &error), GMS_E_INVALID);
    assert_int_equal(gms_vmm_cuda_calls(), before);
}

/* What is no device memory, or has another size, is found out when it is mapped; what was there stays. */
static void a_wrong_descriptor_changes_nothing(void **state)
{
    struct gms_vmm_handle handle = vmm_make("kv");
    struct gms_vmm_handle wrong = {.fd = -1};
    unsigned char *address = vmm_reserve(2 * size);

    (void)state;
    assert_ok(vmm->map(address, &handle, GMS_VMM_READ_WRITE, &error));
    vmm_fill(address, 0x21, 4096);
    int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    assert_ok(vmm->import_fd(fd, size, &wrong, &error));
    assert_int_not_equal(vmm->map(address, &wrong, GMS_VMM_READ_WRITE, &error), GMS_OK);
    assert_text_has("not device memory");
    vmm->release(&wrong);
    assert_int_equal(vmm_byte(address), 0x21);
    /* A size that the memory does not have: the driver refuses, and the old mapping is put back. */
    assert_ok(vmm->export_fd(&handle, &fd, &error));
    assert_ok(vmm->import_fd(fd, 2 * size, &wrong, &error));
    const gms_status refused = vmm->map(address, &wrong, GMS_VMM_READ_WRITE, &error);
    assert_true(refused == GMS_E_INVALID || refused == GMS_E_UNSUPPORTED); /* a real driver says the latter */
    assert_int_equal(vmm_byte(address), 0x21);
    assert_int_equal(look(address), GMS_VMM_READ_WRITE);
    vmm->release(&wrong);
    /* Half of a mapping cannot be replaced. */
    wrong = (struct gms_vmm_handle){.fd = handle.fd, .bytes = size / 2};
    assert_status(vmm->map(address, &wrong, GMS_VMM_READ, &error), GMS_E_INVALID);
    assert_status(vmm->unmap(address, size / 2, &error), GMS_E_INVALID);
    assert_text_has("only in part");
    assert_status(vmm->set_access(address, 2 * size, GMS_VMM_READ, &error), GMS_E_INVALID);
    assert_text_has("only");
    assert_status(vmm->unreserve(address, size, &error), GMS_E_INVALID);
    assert_int_equal(vmm_byte(address), 0x21);
    assert_status(vmm->unmap(address + 2 * size, size, &error), GMS_E_INVALID); /* beyond the reservation */
    assert_ok(vmm->unreserve(address, 2 * size, &error));
    vmm->release(&handle);
}

static void the_device_is_named_once(void **state)
{
    struct gms_vmm_cuda_device device;
    uint64_t left = 0;
    uint64_t total = 0;

    (void)state;
    assert_ok(gms_vmm_cuda_ready(&device, &error));
    assert_true(device.ordinal >= 0 && device.bytes > 0 && device.name[0] != '\0');
    assert_true(gms_uuid_is_known(&device.uuid));
    assert_status(gms_vmm_cuda_choose("GPU-00000000", &error), GMS_E_REFUSED);
    assert_text_has("process of its own");
    assert_ok(gms_vmm_cuda_free_bytes(&left, &total, &error));
    assert_true(left > 0 && left <= total && total <= device.bytes);
}

/* A child that was forked is told so, instead of being told nonsense by the driver. */
static void a_forked_child_is_refused(void **state)
{
    const pid_t child = fork();

    (void)state;
    if (child == 0) {
        void *address = NULL;

        child_check(vmm->reserve(size, &address, &error) == GMS_E_REFUSED);
        child_check(strstr(error.text, "forked") != NULL);
        _exit(0);
    }
    assert_int_equal(unit_wait(child), 0);
}

/* One mapping per range at a time, from many threads. */
struct worker {
    unsigned char *address;
    gms_status status;
};

static void *swap_all_the_time(void *argument)
{
    struct worker *worker = argument;

    for (int i = 0; i < 50 && worker->status == GMS_OK; i++) {
        worker->status = vmm->map_scratch(worker->address, size, NULL);
        if (worker->status == GMS_OK) {
            worker->status = vmm->unmap(worker->address, size, NULL);
        }
    }
    return NULL;
}

static void ranges_are_used_from_many_threads(void **state)
{
    struct worker workers[4] = {{0}};
    pthread_t threads[4];

    (void)state;
    for (int i = 0; i < 4; i++) {
        workers[i].address = vmm_reserve(size);
        assert_int_equal(pthread_create(&threads[i], NULL, swap_all_the_time, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].status, GMS_OK);
        assert_ok(vmm->unreserve(workers[i].address, size, &error));
    }
}

/* Scratch that is larger than what is taken for it shows the same memory again; the rest at its end is its own. */
static void large_scratch_repeats(void **state)
{
    const uint64_t piece = GMS_VMM_SCRATCH_BYTES;
    const uint64_t bytes = 2 * piece + size;
    unsigned char *address = vmm_reserve(bytes);

    (void)state;
    assert_ok(vmm->map_scratch(address, bytes, &error));
    vmm_fill(address + 5, 0x44, 1);
    vmm_fill(address + 2 * piece + 5, 0x55, 1);
    assert_int_equal(vmm_byte(address + 5), 0x44);
    assert_int_equal(vmm_byte(address + piece + 5), 0x44);
    assert_int_equal(vmm_byte(address + 2 * piece + 5), 0x55);
    assert_int_equal(vmm_byte(address + bytes - 1), 0);
    assert_ok(vmm->unreserve(address, bytes, &error));
}

/* --------------------------------------------------------------------------------------- the fake driver ------- */

static void nothing_is_left_at_the_driver(void **state)
{
    (void)state;
    const struct fake_cuda_counts counts = fake->counts();
    assert_int_equal(counts.objects, 0);
    assert_int_equal(counts.mappings, 0);
    assert_int_equal(counts.reservations, 0);
    assert_int_equal(counts.contexts, 1);
    assert_int_equal(gms_vmm_cuda_calls(), fake->calls()); /* every call is counted */
}

/* Each call of a replacement fails in turn: the error is told, what was there is there, nothing leaks. */
static void a_failed_replacement_is_undone(void **state)
{
    static const struct {
        const char *symbol;
        unsigned skip;
        int result;
        gms_status status;
    } failures[] = {{"cuMemImportFromShareableHandle", 0, GMS_CU_INVALID_VALUE, GMS_E_INVALID},
                    {"cuMemGetAllocationPropertiesFromHandle", 0, GMS_CU_INVALID_HANDLE, GMS_E_INVALID},
                    {"cuMemUnmap", 0, GMS_CU_INVALID_VALUE, GMS_E_INVALID},
                    {"cuMemUnmap", 1, GMS_CU_INVALID_VALUE, GMS_E_INVALID},
                    {"cuMemMap", 0, GMS_CU_OUT_OF_MEMORY, GMS_E_NO_MEMORY},
                    {"cuMemSetAccess", 0, GMS_CU_OUT_OF_MEMORY, GMS_E_NO_MEMORY}};
    struct gms_vmm_handle one = vmm_make("one");
    struct gms_vmm_handle two = vmm_make("two");
    struct gms_vmm_handle both = {.fd = -1};
    unsigned char *address = vmm_reserve(2 * size);

    (void)state;
    assert_ok(vmm->create("both", 2 * size, &both, &error));
    assert_ok(vmm->map(address, &one, GMS_VMM_READ, &error));
    assert_ok(vmm->map(address + size, &two, GMS_VMM_READ_WRITE, &error));
    vmm_fill(address + size, 0x66, 1);
    for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++) {
        const struct fake_cuda_counts before = fake->counts();

        fake->fail_next(failures[i].symbol, failures[i].skip, 1, failures[i].result);
        assert_status(vmm->map(address, &both, GMS_VMM_READ_WRITE, &error), failures[i].status);
        assert_int_equal(look(address), GMS_VMM_READ);
        assert_int_equal(look(address + size), GMS_VMM_READ_WRITE);
        assert_int_equal(vmm_byte(address + size), 0x66);
        const struct fake_cuda_counts after = fake->counts();
        assert_memory_equal(&before, &after, sizeof(before));
        assert_status(vmm->set_access(address, size, GMS_VMM_READ_WRITE, &error), GMS_E_REFUSED); /* still a reader's */
    }
    assert_ok(vmm->map(address, &both, GMS_VMM_READ_WRITE, &error));
    assert_ok(vmm->unreserve(address, 2 * size, &error));
    vmm->release(&one);
    vmm->release(&two);
    vmm->release(&both);
}

/* What cannot even be put back is named and dropped; the range can be used again. */
static void what_cannot_be_put_back_is_named(void **state)
{
    struct gms_vmm_handle one = vmm_make("one");
    struct gms_vmm_handle two = vmm_make("two");
    unsigned char *address = vmm_reserve(size);

    (void)state;
    assert_ok(vmm->map(address, &one, GMS_VMM_READ_WRITE, &error));
    fake->fail_next("cuMemSetAccess", 0, 2, GMS_CU_OUT_OF_MEMORY);
    assert_status(vmm->map(address, &two, GMS_VMM_READ, &error), GMS_E_NO_MEMORY);
    assert_text_has("nothing is mapped there now");
    assert_int_equal(look(address), GMS_VMM_NONE);
    assert_ok(vmm->map(address, &two, GMS_VMM_READ, &error));
    assert_ok(vmm->unreserve(address, size, &error));
    vmm->release(&one);
    vmm->release(&two);
}

static void creation_fails_cleanly(void **state)
{
    static const struct {
        const char *symbol;
        int result;
        gms_status status;
        const char *text;
    } failures[] = {{"cuMemCreate", GMS_CU_OUT_OF_MEMORY, GMS_E_NO_MEMORY, "4.0 MiB asked"},
                    {"cuMemCreate", GMS_CU_NOT_SUPPORTED, GMS_E_UNSUPPORTED, "memory \"kv\""},
                    {"cuMemExportToShareableHandle", GMS_CU_OPERATING_SYSTEM, GMS_E_SYSTEM, "OPERATING_SYSTEM (304)"}};
    struct gms_vmm_handle handle = {.fd = -1, .bytes = 4711};

    (void)state;
    for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++) {
        const unsigned before = unit_open_fds();

        fake->fail_next(failures[i].symbol, 0, 1, failures[i].result);
        assert_status(vmm->create("kv", size, &handle, &error), failures[i].status);
        assert_text_has(failures[i].text);
        assert_int_equal(handle.fd, -1);
        assert_int_equal(handle.bytes, 4711);
        assert_int_equal(unit_open_fds(), before);
    }
    nothing_is_left_at_the_driver(state);
}

/* An illegal address ends the context: every call says so from then on, and says what it means (V32). */
static void a_sticky_error_is_told_apart(void **state)
{
    unsigned char *address = vmm_reserve(size);
    unsigned char byte = 0;
    void *other = NULL;

    (void)state;
    assert_ok(vmm->map_scratch(address, size, &error));
    fake->fail_next("cuCtxSynchronize", 0, 1, GMS_CU_ILLEGAL_ADDRESS);
    assert_status(vmm->sync(&error), GMS_E_STICKY);
    assert_text_has("CUDA_ERROR_ILLEGAL_ADDRESS (700)");
    assert_text_has("cannot use the device any more");
    assert_true(gms_status_is_fatal_to_engine(error.status));
    assert_status(vmm->sync(&error), GMS_E_STICKY);
    assert_status(vmm->read(&byte, address, 1, &error), GMS_E_STICKY);
    assert_status(vmm->map_scratch(address, size, &error), GMS_E_STICKY);
    assert_status(vmm->reserve(size, &other, &error), GMS_E_STICKY);
    fake->heal();
    assert_ok(vmm->unreserve(address, size, &error));
    static const int sticky[] = {214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719};
    static const int passing[] = {1, 2, 3, 100, 201, 304, 400, 600, 701, 703, 709, 711, 800, 801};
    for (size_t i = 0; i < sizeof(sticky) / sizeof(sticky[0]); i++) {
        assert_true(gms_cu_is_sticky(sticky[i]));
    }
    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++) {
        assert_false(gms_cu_is_sticky(passing[i]));
    }
}

/* --------------------------------------------------------------- new programs with another set of devices ------- */

/* argv: "--device WANTED": prints what comes of it. */
static int say_device(const char *wanted)
{
    struct gms_vmm_cuda_device device;
    gms_status status = gms_vmm_cuda_choose(*wanted ? wanted : NULL, &error);

    if (status == GMS_OK) {
        status = gms_vmm_cuda_ready(&device, &error);
    }
    if (status == GMS_OK) {
        char text[GMS_UUID_TEXT_BYTES];
        printf("%d %s", device.ordinal, gms_uuid_format(&device.uuid, false, text));
    } else {
        printf("%s %s", gms_status_name(status), error.text);
    }
    return 0;
}

static void devices_are_chosen_by_name_under_any_mask(void **state)
{
    static const struct {
        const char *environment, *wanted, *answer;
    } cases[] = {
        {"FAKE_CUDA_DEVICES=1", "", "0 GPU-10fafafa"},
        {"FAKE_CUDA_DEVICES=2", "", "GMS_E_REFUSED 2 devices"},
        {"FAKE_CUDA_DEVICES=2", "1", "1 GPU-11fafafa"},
        {"FAKE_CUDA_DEVICES=2", "2", "GMS_E_NOT_FOUND"},
        {"FAKE_CUDA_DEVICES=0", "", "GMS_E_UNSUPPORTED"},
        {"FAKE_CUDA_VISIBLE=1,0", "GPU-11", "0 GPU-11fafafa"}, /* another number, the same device */
        {"FAKE_CUDA_VISIBLE=1,0", "0", "0 GPU-11fafafa"},
        {"FAKE_CUDA_VISIBLE=3", "GPU-10", "GMS_E_NOT_FOUND"},
        {"FAKE_CUDA_VISIBLE=0,1", "GPU-1", "GMS_E_MISMATCH"},
        {"FAKE_CUDA_VISIBLE=3", "MIG-13", "0 GPU-13fafafa"},
        {"FAKE_CUDA_COMPUTE_MODE=3", "0", "GMS_E_REFUSED device 0 (fake device 0) is in compute mode 3"},
        {"FAKE_CUDA_FAIL=cuInit:0:802", "0", "GMS_E_UNSUPPORTED start of the CUDA driver"},
        {"FAKE_CUDA_FAIL=cuDeviceGetUuid_v2:0:101", "0", "GMS_E_SYSTEM list of devices"},
        {"FAKE_CUDA_FAIL=cuDeviceGetAttribute:0:101", "0", "GMS_E_SYSTEM device 0"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char name[64];
        char answer[GMS_ERROR_TEXT_BYTES] = "";
        int ends[2];
        const char *value = strchr(cases[i].environment, '=');

        snprintf(name, sizeof(name), "%.*s", (int)(value - cases[i].environment), cases[i].environment);
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        const pid_t child = fork();
        if (child == 0) {
            dup2(ends[1], STDOUT_FILENO);
            setenv(name, value + 1, 1);
            execl("/proc/self/exe", "test", "--device", cases[i].wanted, (char *)NULL);
            _exit(97);
        }
        close(ends[1]);
        size_t length = 0;
        for (ssize_t got = 1; got > 0 && length<sizeof(answer) - 1; length += got> 0 ? (size_t)got : 0) {
            got = read(ends[0], answer + length, sizeof(answer) - 1 - length);
        }
        close(ends[0]);
        assert_int_equal(unit_wait(child), 0);
        if (strncmp(answer, cases[i].answer, strlen(cases[i].answer)) != 0) {
            fail_msg("%s, device \"%s\": \"%s\", expected \"%s\"", cases[i].environment, cases[i].wanted, answer,
                     cases[i].answer);
        }
    }
}

/* Memory of another GPU than this rank's is refused when it is mapped: the number in the driver's answer is compared
 * with the device's, under whatever mask. */
static void memory_of_another_device_is_refused(void **state)
{
    struct gms_vmm_handle handle = {.fd = -1};
    unsigned char *address = vmm_reserve(size);
    int fd = memfd_create("fake-cuda-7", MFD_CLOEXEC);

    (void)state;
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    assert_ok(vmm->import_fd(fd, size, &handle, &error));
    assert_status(vmm->map(address, &handle, GMS_VMM_READ, &error), GMS_E_MISMATCH);
    assert_text_has("this process uses device 0");
    vmm->release(&handle);
    assert_ok(vmm->unreserve(address, size, &error));
}

int main(int argc, char *argv[])
{
    const struct CMUnitTest any[] = {
        cmocka_unit_test(descriptors_need_no_driver),        cmocka_unit_test(a_wrong_descriptor_changes_nothing),
        cmocka_unit_test(the_device_is_named_once),          cmocka_unit_test(a_forked_child_is_refused),
        cmocka_unit_test(ranges_are_used_from_many_threads), cmocka_unit_test(large_scratch_repeats),
    };
    const struct CMUnitTest scripted[] = {
        cmocka_unit_test(nothing_is_left_at_the_driver),
        cmocka_unit_test(a_failed_replacement_is_undone),
        cmocka_unit_test(what_cannot_be_put_back_is_named),
        cmocka_unit_test(creation_fails_cleanly),
        cmocka_unit_test(a_sticky_error_is_told_apart),
        cmocka_unit_test(memory_of_another_device_is_refused),
        cmocka_unit_test(devices_are_chosen_by_name_under_any_mask),
        cmocka_unit_test(nothing_is_left_at_the_driver),
    };

    if (argc == 3 && strcmp(argv[1], "--device") == 0) {
        return say_device(argv[2]);
    }
    if (gms_vmm_cuda_choose("0", &error) != GMS_OK || gms_vmm_cuda_ready(NULL, &error) != GMS_OK) {
        fprintf(stderr, "skipped: %s\n", error.text);
        return 77;
    }
    vmm_suite_role(argc, argv, gms_vmm_cuda());
    int failed = vmm_suite_run("cuda: shared suite", gms_vmm_cuda(), look);
    failed += cmocka_run_group_tests_name("cuda: any driver", any, NULL, NULL);
    fake = fake_cuda_get();
    if (!fake) {
        fprintf(stderr, "a real driver: what needs one that can be told to fail is not run\n");
        return failed;
    }
    return failed + cmocka_run_group_tests_name("cuda: the fake driver", scripted, NULL, NULL);
}
