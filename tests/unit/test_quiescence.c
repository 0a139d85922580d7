/* SPDX-License-Identifier: Apache-2.0
 *
 * Providers of quiescence: what they need to say quiet, each condition taken away in turn. NVML is a library that says
 * what the test tells it; cohorts are children of the test, and host memory is lent to them as coordinators do.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "fake_nvml.h"
#include "fence/loan.h"
#include "quiescence/quiescence.h"

enum { INCARNATION = 5, MEMORY_BYTES = 4096 };

/* ------------------------------------------------------------------------------------------------- children ---- */

/* A child that does `work` with what it was lent (-1: nothing) and waits for its end. Its first word comes through a
 * pipe, so that the work is done when this returns. */
struct child {
    pid_t pid;
    int pidfd;
};

static struct child start(void (*work)(int loan, int words), int loan)
{
    struct child child;
    int words[2];
    char word;
    assert_int_equal(pipe2(words, O_CLOEXEC), 0);
    child.pid = fork();
    assert_true(child.pid >= 0);
    if (child.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (work != NULL)
            work(loan, words[1]);
        (void)!write(words[1], "x", 1);
        for (;;)
            pause();
    }
    close(words[1]);
    assert_int_equal(gms_pidfd_open(child.pid, &child.pidfd, NULL), GMS_OK);
    assert_int_equal(read(words[0], &word, 1), 1);
    close(words[0]);
    return child;
}

static void end(const struct child *child)
{
    gms_pidfd_signal(child->pidfd, SIGKILL);
    struct pollfd ended = {.fd = child->pidfd, .events = POLLIN};
    assert_int_equal(poll(&ended, 1, 10000), 1);
}

static void reap(struct child *child)
{
    waitpid(child->pid, NULL, 0);
    gms_fd_close(&child->pidfd);
}

static struct gms_cohort cohort_of(const struct child *child)
{
    struct gms_cohort cohort = {.incarnation = INCARNATION,
                                .pidfd = fcntl(child->pidfd, F_DUPFD_CLOEXEC, 3),
                                .container = {.guardian_fd = -1, .engine_fd = -1},
                                .since = gms_process_started(getpid())};
    return cohort;
}

/* ------------------------------------------------------------------------------------------------- procmap ----- */

static int memory = -1;

static struct gms_cohort host_cohort(const struct child *child)
{
    struct gms_cohort cohort = cohort_of(child);
    assert_true(gms_inode_of(memory, &cohort.memory[0]));
    cohort.loans[0] = fcntl(memory, F_DUPFD_CLOEXEC, 3);
    cohort.memory_count = 1;
    return cohort;
}

static enum gms_reclaim_answer ask_procmap(const struct gms_cohort *cohort, const char *words)
{
    char reason[GMS_QUIESCENCE_REASON_BYTES] = "";
    enum gms_reclaim_answer answer = gms_quiescence_procmap.ask(NULL, cohort, reason);
    if (words != NULL && strstr(reason, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", reason, words);
    return answer;
}

static int lend(void)
{
    int loan = -1;
    memory = memfd_create("gms-test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(memory, MEMORY_BYTES), 0);
    assert_int_equal(gms_loan_give(memory, INCARNATION, &loan, NULL), GMS_OK);
    return loan;
}

static void map_it(int loan, int words)
{
    (void)words;
    if (mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, loan, 0) == MAP_FAILED)
        _exit(1);
}

/* Death is not enough while a child of the dead one has the mapping: it is the loan that tells. */
static void test_host_memory_is_quiet_when_the_loan_is_back(void **state)
{
    int loan = lend();
    (void)state;
    struct child engine = start(map_it, loan), child = start(map_it, loan);
    gms_fd_close(&loan);
    struct gms_cohort cohort = host_cohort(&engine);
    assert_int_equal(ask_procmap(&cohort, "has not ended"), GMS_RECLAIM_NOT_YET);
    end(&engine);
    assert_int_equal(ask_procmap(&cohort, "was lent"), GMS_RECLAIM_NOT_YET);
    end(&child);
    /* Both are reaped by nobody yet: what is left of them holds nothing. */
    assert_int_equal(ask_procmap(&cohort, "is back"), GMS_RECLAIM_QUIET);
    gms_cohort_close(&cohort);
    reap(&engine);
    reap(&child);
    gms_fd_close(&memory);
}

/* A descriptor on its way to a stranger who never reads it. /proc does not show it. */
static void test_a_descriptor_in_a_socket_is_seen(void **state)
{
    int loan = lend(), ends[2];
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    (void)state;
    struct child engine = start(NULL, -1);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), &loan, sizeof loan);
    assert_int_equal(sendmsg(ends[0], &message, MSG_NOSIGNAL), 1);
    gms_fd_close(&loan);
    close(ends[0]); /* the sender is gone */
    struct gms_cohort cohort = host_cohort(&engine);
    end(&engine);
    assert_int_equal(ask_procmap(&cohort, "was lent"), GMS_RECLAIM_NOT_YET);
    close(ends[1]);
    assert_int_equal(ask_procmap(&cohort, NULL), GMS_RECLAIM_QUIET);
    gms_cohort_close(&cohort);
    reap(&engine);
    gms_fd_close(&memory);
}

static void open_anew(int loan, int words)
{
    char path[64];
    (void)words;
    snprintf(path, sizeof path, "/proc/self/fd/%d", loan);
    int again = open(path, O_RDWR | O_CLOEXEC);
    if (again < 0 || mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED)
        _exit(1);
    close(again);
    close(loan);
}

/* Opened anew through /proc it is no loan any more; the walk finds it, unless it belongs to the living. */
static void test_a_stranger_who_opened_it_anew_is_found(void **state)
{
    int loan = lend();
    (void)state;
    struct child engine = start(NULL, -1), stranger = start(open_anew, loan);
    gms_fd_close(&loan);
    struct gms_cohort cohort = host_cohort(&engine);
    end(&engine);
    assert_int_equal(ask_procmap(&cohort, "belongs to no living engine"), GMS_RECLAIM_NOT_YET);
    cohort.living[cohort.living_count++] = stranger.pid;
    assert_int_equal(ask_procmap(&cohort, NULL), GMS_RECLAIM_QUIET);
    cohort.living_count = 0;
    cohort.ours[cohort.ours_count++] = stranger.pid;
    assert_int_equal(ask_procmap(&cohort, NULL), GMS_RECLAIM_QUIET);
    cohort.ours_count = 0;
    end(&stranger);
    assert_int_equal(ask_procmap(&cohort, NULL), GMS_RECLAIM_QUIET);
    gms_cohort_close(&cohort);
    reap(&engine);
    reap(&stranger);
    gms_fd_close(&memory);
}

/* ------------------------------------------------------------------------------------------------- death ------- */

static void test_death_and_time(void **state)
{
    const struct gms_quiescence_options options = {.grace_ns = 50 * GMS_NS_PER_MS};
    char reason[GMS_QUIESCENCE_REASON_BYTES];
    void *context = NULL;
    int loan = lend();
    (void)state;
    assert_int_equal(gms_quiescence_process_death.open(&options, &context, NULL), GMS_OK);
    struct child engine = start(map_it, loan), late = start(map_it, loan);
    gms_fd_close(&loan);
    struct gms_cohort cohort = host_cohort(&engine);
    gms_quiescence_process_death.witness(context, &cohort);
    assert_int_equal(gms_quiescence_process_death.ask(context, &cohort, reason), GMS_RECLAIM_NOT_YET);
    end(&engine);
    uint64_t until_ns = gms_clock_ns() + 60 * GMS_NS_PER_MS;
    while (gms_clock_ns() < until_ns) /* one of it lives: its time has not begun */
        assert_int_equal(gms_quiescence_process_death.ask(context, &cohort, reason), GMS_RECLAIM_NOT_YET);
    end(&late);
    uint64_t dead_ns = gms_clock_ns();
    enum gms_reclaim_answer answer = GMS_RECLAIM_NOT_YET;
    while (answer == GMS_RECLAIM_NOT_YET && gms_clock_ns() < dead_ns + 5 * GMS_NS_PER_S)
        answer = gms_quiescence_process_death.ask(context, &cohort, reason);
    assert_int_equal(answer, GMS_RECLAIM_BEST_EFFORT); /* never more than that */
    assert_true(gms_clock_ns() - dead_ns >= 50 * GMS_NS_PER_MS);
    gms_quiescence_process_death.forget(context, INCARNATION);
    setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/x", 1); /* V33 */
    assert_int_equal(gms_quiescence_process_death.ask(context, &cohort, reason), GMS_RECLAIM_CANNOT_KNOW);
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    gms_quiescence_process_death.close(context);
    gms_cohort_close(&cohort);
    reap(&engine);
    reap(&late);
    gms_fd_close(&memory);
}

/* ------------------------------------------------------------------------------------------------- nvml -------- */

struct bench {
    void *library, *context;
    struct fake_nvml *nvml;
    char module[64], devices[80];
    struct child engine;
    struct gms_cohort cohort;
};

/* An engine that NVML lists on device 1 of 2, and a provider that nobody has asked anything yet. */
static int set_up(void **state)
{
    struct bench *bench = calloc(1, sizeof *bench);
    const char *path = getenv("GMS_FAKE_NVML");
    *state = bench;
    assert_non_null(path);
    bench->library = dlopen(path, RTLD_NOW);
    assert_non_null(bench->library);
    bench->nvml = dlsym(bench->library, "fake_nvml");
    assert_non_null(bench->nvml);
    snprintf(bench->module, sizeof bench->module, "/tmp/gms-nvml-XXXXXX");
    assert_non_null(mkdtemp(bench->module));
    snprintf(bench->devices, sizeof bench->devices, "%s/nvidia", bench->module);
    const struct gms_quiescence_options options = {.nvml = path, .module = bench->module, .devices = bench->devices};
    assert_int_equal(gms_quiescence_nvml.open(&options, &bench->context, NULL), GMS_OK);
    bench->engine = start(NULL, -1);
    bench->cohort = cohort_of(&bench->engine);
    *bench->nvml = (struct fake_nvml){.devices = 2};
    bench->nvml->compute[1] = (struct fake_list){.count = 1, .pids = {(unsigned int)bench->engine.pid}};
    return 0;
}

static int tear_down(void **state)
{
    struct bench *bench = *state;
    gms_quiescence_nvml.close(bench->context);
    assert_int_equal(bench->nvml->inits, bench->nvml->shutdowns);
    dlclose(bench->library);
    rmdir(bench->module);
    gms_pidfd_signal(bench->engine.pidfd, SIGKILL);
    reap(&bench->engine);
    gms_cohort_close(&bench->cohort);
    free(bench);
    return 0;
}

static void assert_answer(struct bench *bench, enum gms_reclaim_answer expected, const char *words)
{
    char reason[GMS_QUIESCENCE_REASON_BYTES] = "";
    enum gms_reclaim_answer answer = gms_quiescence_nvml.ask(bench->context, &bench->cohort, reason);
    if (answer != expected || strstr(reason, words) == NULL)
        fail_msg("%s (%s), expected %s (%s)", gms_reclaim_answer_name(answer), reason,
                 gms_reclaim_answer_name(expected), words);
}

/* Seen while it lived, then dead and off the list. */
static void see_and_kill(struct bench *bench)
{
    gms_quiescence_nvml.witness(bench->context, &bench->cohort);
    end(&bench->engine);
    bench->nvml->compute[1].count = 0;
}

static void test_off_the_list(void **state)
{
    struct bench *bench = *state;
    gms_quiescence_nvml.witness(bench->context, &bench->cohort);
    assert_answer(bench, GMS_RECLAIM_NOT_YET, "has not ended");
    end(&bench->engine);
    assert_answer(bench, GMS_RECLAIM_NOT_YET, "still lists process"); /* the driver tears it down */
    bench->nvml->compute[1].count = 0;
    assert_answer(bench, GMS_RECLAIM_QUIET, "lists none on 2 devices");
}

static void test_not_seen_while_it_lived(void **state)
{
    struct bench *bench = *state;
    bench->nvml->compute[1].count = 0; /* or under a pid of another namespace */
    gms_quiescence_nvml.witness(bench->context, &bench->cohort);
    end(&bench->engine);
    assert_answer(bench, GMS_RECLAIM_CANNOT_KNOW, "was not seen to list it");
}

/* Witnessed at parking, at its promotion, and whenever somebody before it was cleared. */
static void test_seen_again_counts_once(void **state)
{
    struct bench *bench = *state;
    for (int i = 0; i < 100; i++)
        gms_quiescence_nvml.witness(bench->context, &bench->cohort);
    see_and_kill(bench);
    assert_answer(bench, GMS_RECLAIM_QUIET, "NVML listed 1 of its processes");
}

static char device_path[100];

static void open_device(int loan, int words)
{
    (void)loan;
    (void)words;
    if (open(device_path, O_RDWR | O_CREAT, 0600) < 0)
        _exit(1);
}

static void be_another_program(int loan, int words)
{
    open_device(loan, words);
    (void)!write(words, "x", 1);
    execlp("sleep", "sleep", "60", NULL);
    _exit(1);
}

static bool is_this_program(pid_t pid)
{
    char path[64], own[256] = "", other[256] = "";
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    return readlink("/proc/self/exe", own, sizeof own - 1) > 0 && readlink(path, other, sizeof other - 1) > 0 &&
           strcmp(own, other) == 0;
}

/* Without a container a forked child is known by what it has open: the driver. Coordinators have it open, too. */
static void test_a_stranger_with_the_driver_open(void **state)
{
    struct bench *bench = *state;
    snprintf(device_path, sizeof device_path, "%s0", bench->devices);
    struct child coordinator = start(open_device, -1), stranger = start(be_another_program, -1);
    for (uint64_t end_ns = gms_clock_ns() + 5 * GMS_NS_PER_S; is_this_program(stranger.pid);) {
        assert_true(gms_clock_ns() < end_ns);
        poll(NULL, 0, 1);
    }
    see_and_kill(bench);
    assert_answer(bench, GMS_RECLAIM_NOT_YET, "(sleep) has the driver open and belongs to no living engine");
    /* Somebody who computes, and on another device: another rank's engine. */
    bench->nvml->compute[0] = (struct fake_list){.count = 1, .pids = {(unsigned int)stranger.pid}};
    assert_answer(bench, GMS_RECLAIM_QUIET, "lists none");
    bench->nvml->compute[1] = bench->nvml->compute[0];
    assert_answer(bench, GMS_RECLAIM_NOT_YET, "(sleep) has the driver open");
    bench->nvml->compute[0].count = bench->nvml->compute[1].count = 0;
    bench->cohort.living[0] = stranger.pid;
    bench->cohort.living_count = 1;
    assert_answer(bench, GMS_RECLAIM_QUIET, "lists none");
    bench->cohort.living_count = 0;
    end(&stranger);
    assert_answer(bench, GMS_RECLAIM_QUIET, "lists none");
    end(&coordinator);
    reap(&stranger);
    reap(&coordinator);
    unlink(device_path);
}

static void test_never_witnessed(void **state)
{
    struct bench *bench = *state;
    end(&bench->engine);
    bench->nvml->compute[1].count = 0;
    assert_answer(bench, GMS_RECLAIM_CANNOT_KNOW, "was not seen to list it");
}

static void test_on_another_device_too(void **state)
{
    struct bench *bench = *state;
    see_and_kill(bench);
    bench->nvml->graphics[0] = (struct fake_list){.count = 1, .pids = {(unsigned int)bench->engine.pid}};
    assert_answer(bench, GMS_RECLAIM_NOT_YET, "still lists process");
}

/* A child of the dead one that came to the device after it was looked at: dead, on the list, and known to nobody. */
static void test_a_dead_process_that_nobody_knows(void **state)
{
    struct bench *bench = *state;
    struct child gone = start(NULL, -1);
    end(&gone);
    pid_t pid = gone.pid;
    reap(&gone);
    see_and_kill(bench);
    bench->nvml->compute[0] = (struct fake_list){.count = 1, .pids = {(unsigned int)pid}};
    assert_answer(bench, GMS_RECLAIM_NOT_YET, "still lists process");
    bench->nvml->compute[0].pids[0] = (unsigned int)getppid(); /* a neighbour that lives is none of ours */
    assert_answer(bench, GMS_RECLAIM_QUIET, "lists none");
    bench->nvml->compute[0].pids[0] = 0; /* of another namespace: unknown is never gone */
    assert_answer(bench, GMS_RECLAIM_NOT_YET, "still lists process");
}

static void test_an_error_in_between(void **state)
{
    struct bench *bench = *state;
    see_and_kill(bench);
    bench->nvml->processes_result = 999;
    assert_answer(bench, GMS_RECLAIM_CANNOT_KNOW, "NVML error 999");
    bench->nvml->processes_result = 0; /* and for good: who knows what was missed */
    assert_answer(bench, GMS_RECLAIM_CANNOT_KNOW, "NVML error 999");
}

static void test_seen_again_after_an_error(void **state)
{
    struct bench *bench = *state;
    gms_quiescence_nvml.witness(bench->context, &bench->cohort);
    bench->nvml->processes_result = 15;
    gms_quiescence_nvml.witness(bench->context, &bench->cohort);
    bench->nvml->processes_result = 0;
    see_and_kill(bench);
    assert_answer(bench, GMS_RECLAIM_QUIET, "lists none");
}

static void test_the_driver_was_reloaded(void **state)
{
    struct bench *bench = *state;
    char other[80];
    see_and_kill(bench);
    snprintf(other, sizeof other, "%s.old", bench->module);
    assert_int_equal(rename(bench->module, other), 0);
    assert_int_equal(mkdir(bench->module, 0700), 0);
    assert_answer(bench, GMS_RECLAIM_CANNOT_KNOW, "reloaded");
    rmdir(other);
}

static void test_xids(void **state)
{
    struct bench *bench = *state;
    see_and_kill(bench);
    bench->nvml->xids = 2; /* its own fault, and its cleanup */
    bench->nvml->xid[0] = 45;
    bench->nvml->xid[1] = 31;
    assert_answer(bench, GMS_RECLAIM_QUIET, "lists none");
    bench->nvml->xids = 1;
    bench->nvml->xid[0] = 79; /* the device has fallen off the bus */
    assert_answer(bench, GMS_RECLAIM_CANNOT_KNOW, "Xid 79");
}

static void test_xids_that_cannot_be_watched(void **state)
{
    struct bench *bench = *state;
    bench->nvml->events_result = 3;
    see_and_kill(bench);
    assert_answer(bench, GMS_RECLAIM_CANNOT_KNOW, "Xids of device 0 cannot be watched");
}

static void test_mps_then_or_now(void **state)
{
    struct bench *bench = *state;
    see_and_kill(bench);
    bench->nvml->mps[0] = (struct fake_list){.count = 1, .pids = {1}};
    assert_answer(bench, GMS_RECLAIM_CANNOT_KNOW, "MPS is in use");
    bench->nvml->mps[0].count = 0;
    setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/x", 1);
    assert_answer(bench, GMS_RECLAIM_CANNOT_KNOW, "MPS is in use");
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    assert_answer(bench, GMS_RECLAIM_QUIET, "lists none");
}

static void test_mps_while_it_lived(void **state)
{
    struct bench *bench = *state;
    bench->nvml->mps[1] = (struct fake_list){.count = 1, .pids = {(unsigned int)bench->engine.pid}};
    gms_quiescence_nvml.witness(bench->context, &bench->cohort);
    bench->nvml->mps[1].count = 0;
    see_and_kill(bench);
    assert_answer(bench, GMS_RECLAIM_CANNOT_KNOW, "MPS was in use");
}

static void test_mig_by_instance(void **state)
{
    struct bench *bench = *state;
    bench->nvml->mig[1] = 2;
    bench->nvml->compute[1].count = 0; /* with MIG the whole device lists nobody */
    bench->nvml->instances[1][1] = (struct fake_list){.count = 1, .pids = {(unsigned int)bench->engine.pid}};
    gms_quiescence_nvml.witness(bench->context, &bench->cohort);
    end(&bench->engine);
    assert_answer(bench, GMS_RECLAIM_NOT_YET, "still lists process");
    bench->nvml->instances[1][1].count = 0;
    assert_answer(bench, GMS_RECLAIM_QUIET, "lists none on 3 devices");
    bench->nvml->mig[1] = 1; /* an instance is gone, and its list */
    assert_answer(bench, GMS_RECLAIM_CANNOT_KNOW, "MIG instances changed");
}

static void test_other_devices(void **state)
{
    struct bench *bench = *state;
    see_and_kill(bench);
    bench->nvml->uuid_salt = 1;
    assert_answer(bench, GMS_RECLAIM_CANNOT_KNOW, "changed");
}

static void test_no_nvml(void **state)
{
    char reason[GMS_QUIESCENCE_REASON_BYTES];
    const struct gms_quiescence_options options = {.nvml = "/nonexistent/libnvidia-ml.so.1"};
    struct child engine = start(NULL, -1);
    struct gms_cohort cohort = cohort_of(&engine);
    void *context = NULL;
    (void)state;
    assert_int_equal(gms_quiescence_nvml.open(&options, &context, NULL), GMS_OK); /* a start is not refused for it */
    gms_quiescence_nvml.witness(context, &cohort);
    end(&engine);
    assert_int_equal(gms_quiescence_nvml.ask(context, &cohort, reason), GMS_RECLAIM_CANNOT_KNOW);
    assert_non_null(strstr(reason, "NVML cannot be opened"));
    gms_quiescence_nvml.close(context);
    gms_cohort_close(&cohort);
    reap(&engine);
}

static void test_the_table(void **state)
{
    (void)state;
    assert_ptr_equal(gms_quiescence_find(NULL, "host"), &gms_quiescence_procmap);
    assert_ptr_equal(gms_quiescence_find(NULL, "cuda"), &gms_quiescence_nvml);
    assert_ptr_equal(gms_quiescence_find("process-death", "cuda"), &gms_quiescence_process_death);
    char reason[GMS_QUIESCENCE_REASON_BYTES];
    const struct gms_quiescence_provider *none = gms_quiescence_find(NULL, "something else");
    assert_int_equal(none->ask(NULL, NULL, reason), GMS_RECLAIM_CANNOT_KNOW);
}

#define NVML_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_memory_is_quiet_when_the_loan_is_back),
        cmocka_unit_test(test_a_descriptor_in_a_socket_is_seen),
        cmocka_unit_test(test_a_stranger_who_opened_it_anew_is_found),
        cmocka_unit_test(test_death_and_time),
        NVML_TEST(test_off_the_list),
        NVML_TEST(test_seen_again_counts_once),
        NVML_TEST(test_a_stranger_with_the_driver_open),
        NVML_TEST(test_not_seen_while_it_lived),
        NVML_TEST(test_never_witnessed),
        NVML_TEST(test_on_another_device_too),
        NVML_TEST(test_a_dead_process_that_nobody_knows),
        NVML_TEST(test_an_error_in_between),
        NVML_TEST(test_seen_again_after_an_error),
        NVML_TEST(test_the_driver_was_reloaded),
        NVML_TEST(test_xids),
        NVML_TEST(test_xids_that_cannot_be_watched),
        NVML_TEST(test_mps_then_or_now),
        NVML_TEST(test_mps_while_it_lived),
        NVML_TEST(test_mig_by_instance),
        NVML_TEST(test_other_devices),
        cmocka_unit_test(test_no_nvml),
        cmocka_unit_test(test_the_table),
    };
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    return cmocka_run_group_tests_name("quiescence", tests, NULL, NULL);
}
