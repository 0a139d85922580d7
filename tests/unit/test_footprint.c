/* SPDX-License-Identifier: Apache-2.0
 * What a parked engine rank keeps: its family of processes, host memory, and device memory as NVML has it. */
#include "unit_support.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "fake_nvml.h"
#include "base/fd.h"
#include "memory/footprint.h"
#include "host/nvml.h"

enum { MIB = 1024 * 1024 };

static struct gms_error error;
static const char *library;
static struct fake_nvml *nvml;
static const struct gms_uuid device = {.bytes = {1}};

static void write_file(const char *root, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void make_dir(const char *root, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void test_family(void **state)
{
    const char *root = *state;
    pid_t pids[GMS_FOOTPRINT_PIDS];
    for (const char *const *name =
             (const char *const[]){"10", "10/task", "10/task/10", "10/task/11", "12", "12/task", "12/task/12", NULL};
         *name != NULL; name++)
        make_dir(root, *name);
    write_file(root, "10/task/10/children", "12 13 ");
    write_file(root, "10/task/11/children", "14 ");    /* of another thread */
    write_file(root, "12/task/12/children", "13 10 "); /* each is found once */
    assert_int_equal(gms_footprint_family(root, 10, pids), 4);
    assert_int_equal(pids[0], 10);
    assert_int_equal(gms_footprint_family(root, 99, pids), 1); /* it has ended: only its number is known */
    assert_int_equal(gms_footprint_family(root, 0, pids), 0);
}

static void test_host_numbers(void **state)
{
    const char *root = *state;
    struct gms_footprint footprint;
    make_dir(root, "20");
    make_dir(root, "21");
    write_file(root, "20/smaps_rollup",
               "00400000-7fff00000000 ---p 00000000 00:00 0 [rollup]\nRss: 9000 kB\nPss: 8000 kB\nPss_Anon:  "
               "1000 kB\nPss_File: 24 kB\nPss_Shmem: 6976 kB\nSwapPss: 3 kB\n");
    write_file(root, "21/smaps_rollup", "Pss_Anon: 1 kB\n");
    const pid_t pids[] = {20, 21, 22};
    assert_ok(gms_footprint_host(root, pids, 3, &footprint, &error));
    assert_int_equal(footprint.bytes, (1000 + 24 + 3 + 1) * 1024); /* shared memory is not its own */
    assert_int_equal(footprint.source, GMS_FOOTPRINT_SMAPS);
    make_dir(root, "23"); /* its first thread has ended */
    make_dir(root, "23/task");
    make_dir(root, "23/task/23");
    make_dir(root, "23/task/24");
    write_file(root, "23/smaps_rollup", "");
    write_file(root, "23/task/23/smaps_rollup", "");
    write_file(root, "23/task/24/smaps_rollup", "Pss_Anon: 7 kB\n");
    assert_ok(gms_footprint_host(root, (const pid_t[]){23}, 1, &footprint, &error));
    assert_int_equal(footprint.bytes, 7 * 1024);
    assert_status(gms_footprint_host(root, pids + 2, 1, &footprint, &error), GMS_E_NOT_FOUND);
}

/* A real child with private and shared memory. */
static void test_host_of_a_child(void **state)
{
    struct gms_footprint before, footprint;
    int ready[2];
    (void)state;
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        char byte = 0;
        for (int round = 0; round < 2; round++) {
            if (round == 1) {
                char *volatile own = malloc(16 * MIB); /* else the compiler leaves it out */
                char *shared = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
                memset(own, 1, 16 * MIB);
                memset(shared, 1, 64 * MIB);
            }
            if (write(ready[1], &byte, 1) != 1)
                _exit(1);
            if (round == 0)
                raise(SIGSTOP);
        }
        pause();
        _exit(0);
    }
    pid_t family[GMS_FOOTPRINT_PIDS];
    char byte;
    int pidfd = -1;
    assert_ok(gms_pidfd_open(child, &pidfd, &error));
    const size_t count = gms_footprint_family("/proc", child, family);
    assert_int_equal(count, 1);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(waitpid(child, NULL, WUNTRACED), child);
    if (gms_footprint_host("/proc", family, count, &before, &error) == GMS_OK) {
        gms_pidfd_signal(pidfd, SIGCONT);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        assert_ok(gms_footprint_host("/proc", family, count, &footprint, &error));
        assert_true(footprint.bytes >= before.bytes + 15 * MIB && footprint.bytes < before.bytes + 40 * MIB);
    }
    gms_pidfd_signal(pidfd, SIGKILL);
    gms_fd_close(&pidfd);
    waitpid(child, NULL, 0);
    close(ready[0]);
    close(ready[1]);
}

static void test_device(void **state)
{
    struct gms_footprint footprint;
    const pid_t pids[] = {100, 101};
    bool persistent = true;
    (void)state;
    *nvml = (struct fake_nvml){.devices = 1, .used_bytes = 50 * MIB, .process_bytes = 7 * MIB};
    nvml->compute[0] = (struct fake_list){.count = 3, .pids = {100, 99, 101}};
    assert_ok(gms_footprint_device(library, &device, pids, 2, 0, &footprint, &error));
    assert_int_equal(footprint.source, GMS_FOOTPRINT_NVML);
    assert_int_equal(footprint.bytes, 14 * MIB);
    assert_int_equal(footprint.device_used_bytes, 50 * MIB);
    nvml->process_bytes = ~0ULL; /* not available, as with MIG and in containers */
    assert_status(gms_footprint_device(library, &device, pids, 2, 0, &footprint, &error), GMS_E_NOT_FOUND);
    assert_ok(gms_footprint_device(library, &device, pids, 2, 20 * MIB, &footprint, &error));
    assert_int_equal(footprint.source, GMS_FOOTPRINT_DIFFERENCE);
    assert_int_equal(footprint.bytes, 30 * MIB);
    nvml->compute[0].count = 0; /* it is not listed */
    assert_ok(gms_footprint_device(library, &device, pids, 2, 60 * MIB, &footprint, &error));
    assert_int_equal(footprint.bytes, 0); /* others gave back meanwhile */
    assert_ok(gms_nvml_persistence(library, &device, &persistent, &error));
    assert_false(persistent);
    nvml->persistent = 1;
    assert_ok(gms_nvml_persistence(library, &device, &persistent, &error));
    assert_true(persistent);
    nvml->devices = 0;
    assert_status(gms_nvml_persistence(library, &device, &persistent, &error), GMS_E_NOT_FOUND);
    nvml->init_result = 9;
    assert_status(gms_footprint_device(library, &device, pids, 2, 1, &footprint, &error), GMS_E_UNSUPPORTED);
    assert_status(gms_footprint_device("/no/such/library", &device, pids, 2, 1, &footprint, &error), GMS_E_UNSUPPORTED);
    assert_int_equal(nvml->inits, nvml->shutdowns); /* each question is a session of its own */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_family, unit_make_dir, unit_remove_dir),
        cmocka_unit_test_setup_teardown(test_host_numbers, unit_make_dir, unit_remove_dir),
        cmocka_unit_test(test_host_of_a_child),
        cmocka_unit_test(test_device),
    };
    library = getenv("GMS_FAKE_NVML");
    void *handle = library != NULL ? dlopen(library, RTLD_NOW) : NULL;
    if (handle == NULL) {
        fprintf(stderr, "skipped: no fake NVML (GMS_FAKE_NVML)\n");
        return 77;
    }
    nvml = dlsym(handle, "fake_nvml");
    return cmocka_run_group_tests_name("footprint", tests, NULL, NULL);
}
