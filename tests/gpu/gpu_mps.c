/* SPDX-License-Identifier: Apache-2.0
 *
 * What MPS changes. Starts a control daemon of its own, in a directory of its own, and ends it. Shows on this machine:
 *
 *   proof      the provider nvml and the policy process-death-timeout answer "cannot know" for a process that lived
 *              under MPS, and for one that did not while a server runs at the time of the question
 *   refusal    coordinators do not start with the policy process-death-timeout
 *   fault      one client stores to an illegal address; then one client is killed in mid-kernel: what becomes of its
 *              neighbour, of memory that a process without a context keeps, of new allocations, of new clients
 *
 * The first two must hold. The third is told as it is; only a changed byte of the keeper's memory fails it.
 * Exit 77: there is no GPU, or no nvidia-cuda-mps-control.
 */
#include "gpu.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
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

#include "base/fd.h"
#include "harness.h"
#include "quiescence/quiescence.h"

enum { MEMORY_BYTES = 64 << 20, PAGE_WORDS = 512, PATIENCE_MS = 20000, PATTERN = 0x5a, EXIT_CONFIG = 78 };

static struct gpu gpu;
static struct gms_error error;
static char directory[64], pipes[96], logs[96];

/* ------------------------------------------------------------------------------------------------ the daemon ----- */

static int run_shell(const char *command)
{
    const int status = system(command);

    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static bool mps_start(void)
{
    char command[512];

    snprintf(command, sizeof(command),
             "CUDA_MPS_PIPE_DIRECTORY=%s CUDA_MPS_LOG_DIRECTORY=%s timeout 20 nvidia-cuda-mps-control -d", pipes, logs);
    return run_shell(command) == 0;
}

/* Ours alone: it is found by its directory. */
static int mps_quit(void)
{
    char command[512];

    snprintf(command, sizeof(command),
             "echo quit -t 5 | CUDA_MPS_PIPE_DIRECTORY=%s CUDA_MPS_LOG_DIRECTORY=%s timeout 30 nvidia-cuda-mps-control",
             pipes, logs);
    return run_shell(command);
}

static bool no_server(void *context)
{
    char reason[GMS_QUIESCENCE_REASON_BYTES];

    (void)context;
    return !gms_mps_in_use(-1, reason);
}

/* ------------------------------------------------------------------------------------------------ clients -------- */

enum work { IDLE, WRITE, FAULT, ASK_AGAIN, CHECK };
enum progress { STARTING, READY, DONE };

struct client_words { /* shared by parent and child */
    _Atomic int at, go, code;
    char text[200];
};

struct client {
    pid_t pid;
    int pidfd;
    struct client_words *words;
};

/* The driver's answer to a launch and a wait, or to a failed call before. */
static gms_cu_result write_once(void *address, uint64_t life_ms, gms_cu_stream stream)
{
    gms_cu_pointer target = (uintptr_t)address;
    uint64_t words = PAGE_WORDS, life_ns = life_ms * GMS_NS_PER_MS;
    void *arguments[] = {&target, &words, &life_ns};
    gms_cu_result result = gpu.launch(gpu.write_for, 1, 1, 1, 128, 1, 1, 0, stream, arguments, NULL);

    return result == GMS_CU_SUCCESS ? gpu.stream_sync(stream) : result;
}

static void client_body(enum work work, int memory_fd, struct client_words *words)
{
    const struct gms_vmm *vmm = gms_vmm_cuda();
    struct gms_vmm_handle handle = {.fd = -1};
    gms_cu_pointer other = 0, nowhere = 0x10;
    void *address = NULL;
    void *arguments[] = {&nowhere};

    gpu_open(&gpu);
    GMS(vmm->import_fd(memory_fd, MEMORY_BYTES, &handle, &error));
    GMS(vmm->reserve(MEMORY_BYTES, &address, &error));
    GMS(vmm->map(address, &handle, work == CHECK ? GMS_VMM_READ : GMS_VMM_READ_WRITE, &error));
    words->at = READY;
    switch (work) {
    case CHECK: {
        static unsigned char bytes[MEMORY_BYTES / 2];

        GMS(vmm->read(bytes, (char *)address + MEMORY_BYTES / 2, sizeof(bytes), &error)); /* nobody's work goes there */
        for (size_t i = 0; i < sizeof(bytes); i++) {
            words->code += bytes[i] != PATTERN;
        }
        gms_cu_result result = gpu.allocate(&other, 256 << 20);
        snprintf(words->text, sizeof(words->text), "%d bytes changed, 256 MiB of its own: %s", words->code,
                 result == GMS_CU_SUCCESS ? "yes" : "refused");
        break;
    }
    case WRITE:
        words->code = (int)write_once(address, 8000, NULL);
        break;
    case FAULT:
        while (!words->go) {
            usleep(500);
        }
        gpu_launch(&gpu, gpu.fault, 1, 32, NULL, arguments);
        words->code = (int)gpu.stream_sync(NULL);
        break;
    case ASK_AGAIN: /* works until the neighbour's end is over, then once more */
        while (!words->go && words->code == 0) {
            words->code = (int)write_once(address, 2, NULL);
        }
        if (words->code == 0) {
            words->code = (int)write_once(address, 2, NULL);
        }
        break;
    case IDLE:
        break;
    }
    words->at = DONE;
    for (;;) {
        pause();
    }
}

/* Exit codes of a client that could not even start are seen by `await`. */
static struct client client_start(enum work work, int memory_fd, bool under_mps)
{
    struct client client;

    client.words = mmap(NULL, sizeof(*client.words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(client.words, MAP_FAILED);
    client.pid = fork();
    assert_true(client.pid >= 0);
    if (client.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(60);
        if (under_mps) {
            setenv("CUDA_MPS_PIPE_DIRECTORY", pipes, 1);
        } else {
            unsetenv("CUDA_MPS_PIPE_DIRECTORY");
        }
        client_body(work, memory_fd, client.words);
        _exit(0);
    }
    assert_int_equal(gms_pidfd_open(client.pid, &client.pidfd, &error), GMS_OK);
    return client;
}

struct awaited {
    const struct client *client;
    int step;
};

static bool has_come(void *context)
{
    const struct awaited *awaited = context;

    return awaited->client->words->at >= awaited->step || gms_pidfd_ended(awaited->client->pidfd);
}

static bool client_at(const struct client *client, int step, int patience_ms)
{
    struct awaited awaited = {client, step};

    (void)eventually(has_come, &awaited, patience_ms);
    return client->words->at >= step;
}

static bool has_ended(void *context)
{
    return gms_pidfd_ended(*(int *)context);
}

/* False: it does not end within the patience; it is left alone then. */
static bool client_end(struct client *client)
{
    gms_pidfd_signal(client->pidfd, SIGKILL);
    const bool ended = eventually(has_ended, &client->pidfd, PATIENCE_MS);
    if (ended) {
        waitpid(client->pid, NULL, 0);
    }
    gms_fd_close(&client->pidfd);
    munmap(client->words, sizeof(*client->words));
    return ended;
}

/* ------------------------------------------------------------------------------------------------ proof ---------- */

static struct gms_cohort cohort_of(const struct client *client, uint64_t incarnation)
{
    struct gms_cohort cohort = {.incarnation = incarnation,
                                .pidfd = client->pidfd, /* the client's: not closed here */
                                .container = GMS_NO_CONTAINER,
                                .since = gms_process_started(getpid())};
    return cohort;
}

struct asked {
    const struct gms_quiescence_provider *provider;
    void *context;
    const struct gms_cohort *cohort;
    enum gms_reclaim_answer answer;
    char reason[GMS_QUIESCENCE_REASON_BYTES];
};

static bool is_decided(void *context)
{
    struct asked *asked = context;

    asked->answer = asked->provider->ask(asked->context, asked->cohort, asked->reason);
    return asked->answer != GMS_RECLAIM_NOT_YET;
}

/* Brings a client up, under MPS or not, has the provider look at it, lets MPS be on or off at the question. */
static void expect_answer(const struct gms_quiescence_provider *provider, bool mps_at_control, bool mps_at_proof,
                          int memory_fd, enum gms_reclaim_answer wanted)
{
    static uint64_t incarnation;
    const struct gms_quiescence_options options = {.grace_ns = 50 * GMS_NS_PER_MS};
    struct asked asked = {.provider = provider};

    if (mps_at_control) {
        assert_true(mps_start());
    }
    assert_int_equal(provider->open(&options, &asked.context, &error), GMS_OK);
    struct client client = client_start(IDLE, memory_fd, mps_at_control);
    if (!client_at(&client, DONE, PATIENCE_MS)) {
        fail_msg("a client %s did not start", mps_at_control ? "under MPS" : "without MPS");
    }
    const struct gms_cohort cohort = cohort_of(&client, ++incarnation);
    asked.cohort = &cohort;
    provider->witness(asked.context, &cohort);
    if (mps_at_control && !mps_at_proof) {
        /* A client keeps the server: it ends first. */
        gms_pidfd_signal(client.pidfd, SIGKILL);
        assert_true(eventually(has_ended, &client.pidfd, PATIENCE_MS));
        (void)mps_quit();
        assert_true(eventually(no_server, NULL, PATIENCE_MS));
    } else if (!mps_at_control && mps_at_proof) {
        assert_true(mps_start());
    }
    gms_pidfd_signal(client.pidfd, SIGKILL);
    assert_true(eventually(has_ended, &client.pidfd, PATIENCE_MS));
    (void)eventually(is_decided, &asked, PATIENCE_MS);
    printf("%-14s MPS while it lived: %-3s at the question: %-3s -> %s (%s)\n", provider->name,
           mps_at_control ? "yes" : "no", mps_at_proof ? "yes" : "no", gms_reclaim_answer_name(asked.answer),
           asked.reason);
    if (asked.answer != wanted) {
        fail_msg("%s was expected", gms_reclaim_answer_name(wanted));
    }
    client_end(&client);
    provider->close(asked.context);
    if (mps_at_proof) {
        (void)mps_quit();
        assert_true(eventually(no_server, NULL, PATIENCE_MS));
    }
}

static int memory_fd = -1;

static void test_proof(void **state)
{
    const struct gms_quiescence_provider *const nvml = &gms_quiescence_nvml, *const death =
                                                                                 &gms_quiescence_process_death;

    (void)state;
    expect_answer(nvml, false, false, memory_fd, GMS_RECLAIM_QUIET); /* else the others would say nothing */
    expect_answer(nvml, false, true, memory_fd, GMS_RECLAIM_CANNOT_KNOW);
    expect_answer(nvml, true, false, memory_fd, GMS_RECLAIM_CANNOT_KNOW);
    expect_answer(nvml, true, true, memory_fd, GMS_RECLAIM_CANNOT_KNOW);
    expect_answer(death, false, true, memory_fd, GMS_RECLAIM_CANNOT_KNOW);
    expect_answer(death, true, false, memory_fd, GMS_RECLAIM_CANNOT_KNOW);
}

static void test_refusal(void **state)
{
    struct cluster cluster;
    char coordinator[512];

    (void)state;
    assert_true(mps_start());
    cluster_prepare(&cluster,
                    &(struct cluster_options){.ranks = 1,
                                              .memory = "{ backend = \"cuda\"; capacity = \"64MiB\"; }",
                                              .verify = "none",
                                              .reclaim = "{ policy = \"process-death-timeout\"; grace = \"50ms\"; }"},
                    true);
    program("gms-coord", coordinator);
    char *words[] = {"mpirun", "--oversubscribe", "-n", "1", coordinator, "--config", cluster.config, NULL};
    const int code = run_program(words, cluster.log);
    const bool said = cluster_log_has(&cluster, "is refused on rank 0: CUDA MPS is in use");
    printf("coordinators with process-death-timeout while a server runs: exit %d%s\n", code,
           said ? ", refused with the reason" : "");
    if (code == 0 || !said) {
        cluster_show_log(&cluster);
    }
    cluster_discard(&cluster);
    (void)mps_quit();
    assert_true(eventually(no_server, NULL, PATIENCE_MS));
    assert_int_equal(code, EXIT_CONFIG);
    assert_true(said);
}

/* ------------------------------------------------------------------------------------------------ fault ---------- */

/* What somebody finds who comes now. */
static void look_around(bool under_mps)
{
    struct client client = client_start(CHECK, memory_fd, under_mps);
    const bool done = client_at(&client, DONE, PATIENCE_MS);

    printf("    a new client %s: %s\n", under_mps ? "under MPS" : "without MPS",
           done ? client.words->text : "cannot start within 20 s");
    const int changed = client.words->code;
    (void)client_end(&client);
    assert_int_equal(done ? changed : 0, 0);
}

static void keeper_allocates(void)
{
    const pid_t keeper = fork();

    assert_true(keeper >= 0);
    if (keeper == 0) { /* as a coordinator: a driver, no context */
        const struct gms_vmm *vmm = gms_vmm_cuda();
        struct gms_vmm_handle handle = {.fd = -1};

        alarm(20);
        unsetenv("CUDA_MPS_PIPE_DIRECTORY");
        const bool made =
            gms_vmm_cuda_choose("0", &error) == GMS_OK && vmm->create("new", MEMORY_BYTES, &handle, &error) == GMS_OK;
        printf("    a process without a context allocates 64 MiB: %s%s\n", made ? "yes" : "no, ",
               made ? "" : error.text);
        fflush(stdout);
        _exit(made ? 0 : 1);
    }
    int status = 0;
    (void)waitpid(keeper, &status, 0);
    if (WIFSIGNALED(status)) {
        printf("    a process without a context allocates 64 MiB: no answer in 20 s\n");
    }
}

static void neighbour_of(enum work work, const char *what)
{
    assert_true(mps_start());
    struct client neighbour = client_start(ASK_AGAIN, memory_fd, true);
    struct client faulty = client_start(work, memory_fd, true);
    assert_true(client_at(&neighbour, READY, PATIENCE_MS) && client_at(&faulty, READY, PATIENCE_MS));
    usleep(300000); /* kernels of both are under way */
    printf("  %s\n", what);
    if (work == FAULT) {
        faulty.words->go = 1;
        (void)client_at(&faulty, DONE, PATIENCE_MS);
        printf("    the faulty one is told: %d\n", faulty.words->code);
    } else {
        gms_pidfd_signal(faulty.pidfd, SIGKILL);
        printf("    it has ended: %s\n", eventually(has_ended, &faulty.pidfd, PATIENCE_MS) ? "yes" : "not in 20 s");
    }
    usleep(300000);
    neighbour.words->go = 1;
    const bool came = client_at(&neighbour, DONE, PATIENCE_MS);
    printf("    its neighbour's work: %s %d\n", came ? "CUDA result" : "no answer in 20 s, last",
           neighbour.words->code);
    keeper_allocates();
    look_around(true);
    look_around(false);
    printf("    both have ended: %s\n", client_end(&faulty) && client_end(&neighbour) ? "yes" : "not in 20 s");
    const int code = mps_quit();
    printf("    the daemon was told to quit: %d, and has ended: %s\n", code,
           eventually(no_server, NULL, PATIENCE_MS) ? "yes" : "not in 20 s");
    look_around(false);
}

static void test_fault(void **state)
{
    (void)state;
    neighbour_of(FAULT, "an illegal address in one client");
    neighbour_of(WRITE, "SIGKILL of one client in mid-kernel");
}

/* ------------------------------------------------------------------------------------------------ main ----------- */

/* Made by a process that ends; this one keeps a descriptor and never starts the driver. */
static void make_memory(int to)
{
    const struct gms_vmm *vmm = gms_vmm_cuda();
    struct gms_vmm_handle handle = {.fd = -1};
    void *address = NULL;
    static unsigned char bytes[MEMORY_BYTES];

    gpu_open(&gpu);
    memset(bytes, PATTERN, sizeof(bytes));
    GMS(vmm->create("kept", MEMORY_BYTES, &handle, &error));
    GMS(vmm->reserve(MEMORY_BYTES, &address, &error));
    GMS(vmm->map(address, &handle, GMS_VMM_READ_WRITE, &error));
    GMS(vmm->write(address, bytes, sizeof(bytes), &error));
    gpu_send_fd(to, handle.fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proof),
        cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_fault),
    };
    int pair[2], status = 0;
    char reason[GMS_QUIESCENCE_REASON_BYTES];

    setvbuf(stdout, NULL, _IOLBF, 0);
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    if (run_shell("command -v nvidia-cuda-mps-control >/dev/null") != 0) {
        fprintf(stderr, "skipped: there is no nvidia-cuda-mps-control\n");
        return 77;
    }
    if (gms_mps_in_use(-1, reason)) {
        fprintf(stderr, "skipped: %s, and it is not this test's\n", reason);
        return 77;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        return 1;
    }
    const pid_t maker = fork();
    if (maker == 0) {
        make_memory(pair[1]);
        _exit(0);
    }
    if (waitpid(maker, &status, 0) != maker || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    memory_fd = gpu_take_fd(pair[0]);
    snprintf(directory, sizeof(directory), "/tmp/gms-mps-XXXXXX");
    if (mkdtemp(directory) == NULL) {
        return 1;
    }
    snprintf(pipes, sizeof(pipes), "%s/pipes", directory);
    snprintf(logs, sizeof(logs), "%s/logs", directory);
    if (mkdir(pipes, 0700) != 0 || mkdir(logs, 0700) != 0) {
        return 1;
    }
    const int failed = cmocka_run_group_tests_name("gpu mps", tests, NULL, NULL);
    if (!no_server(NULL)) { /* a test failed half way */
        (void)mps_quit();
    }
    return failed == 0 ? 0 : 1;
}
