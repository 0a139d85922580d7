/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL on real devices: real coordinators, engines of one rank per GPU (as many as there are, at most GPU_NCCL_RANKS),
 * each engine with a communicator of its own. What making, verifying and ending one costs; a graph with an all-reduce
 * that was captured before parking; and peers that hang, leave and are killed.
 *
 * usage: gpu_nccl [all|one|several]   one: what needs one GPU; several: what needs two. GMS_NCCL_LIBRARY as everywhere.
 */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../mpi/harness.h"
#include "gms/nccl.h"
#include "gpu.h"
#include "nccl/communicator.h"
#include "vmm/cuda_stream.h"

enum { WORDS = 64 * 1024, BYTES = WORDS * 8, SLOTS = 32, SMALL = 1024, TIMES = 500 };
enum { AT_MADE = 1, AT_PARKED, AT_SERVING, AT_HUNG, GATE_WORK = 1, GATE_END };
enum how { SERVES, PEER_HANGS, PEER_LEAVES, PEER_HANGS_IN_VERIFICATION, PEER_IS_KILLED };
enum value {
    OPEN_US,
    OPEN_MIB,
    VERIFY_US,     /* median */
    VERIFY_P99_US, /* 99 of 100 */
    EAGER_US,      /* a small all-reduce and its wait, median */
    GRAPH_US,      /* the captured step and its wait, median */
    PARKED_OK,     /* the graph after parking read the group's KV */
    WAKE_VERIFY_US,
    SERVED_US, /* since the kill */
    FIRST_US,  /* the graph's output, since the kill */
    WAIT_US,
    ABORT_US,
    STATUS,
    VERSION,
    KILLED_NS, /* given by the parent, or by the rank that left */
    SECOND_US, /* another communicator of the same process */
    SECOND_MIB,
    LEFT_MIB,   /* of it, when it is closed */
    WAKE_CALLS, /* of the driver, by libgms, in the verification after the wake */
};

static struct gpu gpu;
static struct gms_error error;

static uint64_t us_since(uint64_t ns)
{
    return (gms_clock_ns() - ns) / 1000;
}

static int compare(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* ---------------------------------------------------------------------------------------------- engine ranks ---- */

struct rank_on_gpu {
    struct engine_rank *rank;
    gms_session *session;
    gms_pool *weights, *kv;
    gms_nccl *nccl;
    gms_cu_stream stream;
    gms_cu_pointer output;
    gpu_executable graph;
};

static void fill(gms_pool *pool, uint64_t value)
{
    uint64_t words = WORDS;
    gms_cu_pointer target = (uintptr_t)gms_pool_address(pool);
    void *arguments[] = {&target, &words, &value};
    gpu_launch(&gpu, gpu.fill, 128, 256, NULL, arguments);
    CU(gpu.memory->context_sync());
}

/* What one rank's step puts out (kernels.cu), and its weights and KV. */
static uint64_t output_of(uint32_t rank, uint64_t kv, uint64_t i)
{
    const uint64_t weight = 1000 * (rank + 1) + i, value = kv + rank + i;
    return weight * 6364136223846793005ull + (value ^ (value >> 7)) + i;
}

static gms_status run_graph(struct rank_on_gpu *r, uint64_t kv)
{
    static uint64_t got[WORDS];
    CU(gpu.graph_launch(r->graph, r->stream));
    gms_status status = gms_nccl_wait(r->nccl, r->stream, 20000, &error);
    if (status != GMS_OK || kv == 0)
        return status;
    CU(gpu.memory->read(got, r->output, sizeof got));
    for (uint64_t i = 0; i < WORDS; i++) {
        uint64_t sum = 0;
        for (uint32_t rank = 0; rank < r->rank->ranks; rank++)
            sum += output_of(rank, kv, i);
        if (got[i] != sum)
            return gms_fail(&error, GMS_E_CORRUPT, "word %llu of the graph's output is %llx, not %llx",
                            (unsigned long long)i, (unsigned long long)got[i], (unsigned long long)sum);
    }
    return GMS_OK;
}

static gms_status attach(struct rank_on_gpu *r)
{
    const struct gms_pool_description weights = {.name = "weights", .kind = GMS_POOL_WEIGHTS, .bytes = BYTES};
    const struct gms_pool_description kv = {
        .name = "kv", .kind = GMS_POOL_KV, .slot_count = SLOTS, .block_bytes = BYTES / SLOTS};
    struct gms_membership membership;
    gms_status status = rank_open(r->rank, &r->session, &error);
    if (status == GMS_OK)
        status = rank_join(r->session, r->rank, &membership, &error);
    if (status == GMS_OK)
        status = gms_pool_attach(r->session, &weights, &r->weights, &error);
    if (status == GMS_OK && gms_pool_must_publish(r->weights)) {
        fill(r->weights, 1000 * (r->rank->rank + 1));
        status = gms_manifest_add(r->weights, "all", 0, BYTES, &error);
        if (status == GMS_OK)
            status = gms_publish(r->weights, &error);
    }
    return status == GMS_OK ? gms_pool_attach(r->session, &kv, &r->kv, &error) : status;
}

static gms_status make(struct rank_on_gpu *r)
{
    uint64_t before = 0, after = 0, total = 0;
    GMS(gms_vmm_cuda_free_bytes(&before, &total, &error));
    const uint64_t begun_ns = gms_clock_ns();
    gms_status status = gms_nccl_open(r->session, NULL, &r->nccl, &error);
    r->rank->values[OPEN_US] = us_since(begun_ns);
    if (status != GMS_OK)
        return status;
    GMS(gms_vmm_cuda_free_bytes(&after, &total, &error));
    r->rank->values[OPEN_MIB] = before > after ? (before - after) >> 20 : 0;
    r->rank->values[VERSION] = (uint64_t)gms_nccl_version(r->nccl);
    return GMS_OK;
}

/* What a communicator costs beside what NCCL needs once. */
static gms_status make_another(struct rank_on_gpu *r)
{
    uint64_t before = 0, after = 0, closed = 0, total = 0;
    gms_nccl *another = NULL;
    GMS(gms_vmm_cuda_free_bytes(&before, &total, &error));
    const uint64_t begun_ns = gms_clock_ns();
    gms_status status = gms_nccl_open(r->session, NULL, &another, &error);
    r->rank->values[SECOND_US] = us_since(begun_ns);
    if (status != GMS_OK)
        return status;
    GMS(gms_vmm_cuda_free_bytes(&after, &total, &error));
    gms_nccl_close(another);
    GMS(gms_vmm_cuda_free_bytes(&closed, &total, &error));
    r->rank->values[SECOND_MIB] = before > after ? (before - after) >> 20 : 0;
    r->rank->values[LEFT_MIB] = before > closed ? (before - closed) >> 20 : 0;
    return GMS_OK;
}

static gms_status measure(struct rank_on_gpu *r)
{
    static uint64_t took[TIMES];
    gms_status status = GMS_OK;
    for (int i = 0; i < TIMES && status == GMS_OK; i++) {
        struct gms_nccl_verification verified;
        status = gms_nccl_verify(r->nccl, 5000, &verified, &error);
        took[i] = verified.duration_ns;
    }
    qsort(took, TIMES, sizeof took[0], compare);
    r->rank->values[VERIFY_US] = took[TIMES / 2] / 1000;
    r->rank->values[VERIFY_P99_US] = took[TIMES * 99 / 100] / 1000;
    for (int i = 0; i < TIMES && status == GMS_OK; i++) {
        const uint64_t begun_ns = gms_clock_ns();
        void *at = (void *)(uintptr_t)r->output;
        status = gms_nccl_all_reduce(r->nccl, at, at, SMALL, GMS_NCCL_UINT64, GMS_NCCL_SUM, r->stream, &error);
        if (status == GMS_OK)
            status = gms_nccl_wait(r->nccl, r->stream, 20000, &error);
        took[i] = gms_clock_ns() - begun_ns;
    }
    qsort(took, TIMES, sizeof took[0], compare);
    r->rank->values[EAGER_US] = took[TIMES / 2] / 1000;
    return status;
}

static gms_status capture(struct rank_on_gpu *r)
{
    static uint64_t took[TIMES];
    uint64_t words = WORDS;
    gms_cu_pointer weights = (uintptr_t)gms_pool_address(r->weights), kv = (uintptr_t)gms_pool_address(r->kv);
    void *arguments[] = {&weights, &kv, &r->output, &words}, *at = (void *)(uintptr_t)r->output;
    gpu_graph graph = NULL;
    fill(r->kv, 5 + r->rank->rank); /* scratch */
    /* Its size once before, for what NCCL makes when it first needs it. */
    gms_status status = gms_nccl_all_reduce(r->nccl, at, at, WORDS, GMS_NCCL_UINT64, GMS_NCCL_SUM, r->stream, &error);
    if (status == GMS_OK)
        status = gms_nccl_wait(r->nccl, r->stream, 20000, &error);
    if (status != GMS_OK)
        return status;
    const char *mode = getenv("GPU_NCCL_CAPTURE"); /* 0: the strictest, which PyTorch uses; 2: relaxed */
    CU(gpu.capture_begin(r->stream, mode != NULL ? atoi(mode) : 0));
    gpu_launch(&gpu, gpu.step, 256, 256, r->stream, arguments);
    status = gms_nccl_all_reduce(r->nccl, at, at, WORDS, GMS_NCCL_UINT64, GMS_NCCL_SUM, r->stream, &error);
    CU(gpu.capture_end(r->stream, &graph));
    if (status != GMS_OK)
        return status;
    CU(gpu.instantiate(&r->graph, graph, 0));
    status = run_graph(r, 5);
    for (int i = 0; i < TIMES && status == GMS_OK; i++) {
        const uint64_t begun_ns = gms_clock_ns();
        status = run_graph(r, 0);
        took[i] = gms_clock_ns() - begun_ns;
    }
    qsort(took, TIMES, sizeof took[0], compare);
    r->rank->values[GRAPH_US] = took[TIMES / 2] / 1000;
    return status;
}

/* From being parked to serving: verified, then a step with the graph that was captured before. */
static gms_status take_over(struct rank_on_gpu *r)
{
    struct gms_promotion promotion;
    struct gms_adoption adoption;
    struct gms_nccl_verification verified = {0};
    gms_status status = gms_wait_promotion(r->session, -1, &promotion, &error);
    if (status == GMS_OK)
        status = gms_adopt(r->session, &adoption, &error);
    if (status == GMS_OK)
        status = gms_wake(r->session, &error);
    const uint64_t calls = gms_driver_calls();
    if (status == GMS_OK)
        status = gms_nccl_verify(r->nccl, 5000, &verified, &error);
    r->rank->values[WAKE_CALLS] = gms_driver_calls() - calls;
    if (status == GMS_OK)
        status = gms_serve(r->session, r->rank->rank == 0 ? "unix:/here" : NULL, &error);
    r->rank->values[SERVED_US] = us_since(r->rank->values[KILLED_NS]);
    r->rank->values[WAKE_VERIFY_US] = verified.duration_ns / 1000;
    return status;
}

/* What a serving engine's ranks do when the last one does not come. */
static gms_status meet_the_end(struct rank_on_gpu *r)
{
    const enum how how = (enum how)r->rank->argument;
    const bool last = r->rank->rank == r->rank->ranks - 1;
    struct rank_life life = {.session = r->session};
    struct engine_rank *first = r->rank - r->rank->rank;
    rank_at(r->rank, AT_SERVING);
    gms_status status = rank_idle(r->rank, &life, GATE_WORK, &error);
    if (status != GMS_OK || how == SERVES)
        return status == GMS_OK ? rank_idle(r->rank, &life, GATE_END, &error) : status;
    rank_at(r->rank, AT_HUNG);
    if (last && how == PEER_LEAVES) {
        poll(NULL, 0, 100); /* so that the others are in it */
        for (uint32_t i = 0; i < r->rank->ranks; i++)
            first[i].values[KILLED_NS] = gms_clock_ns();
        gms_close(r->session);
        r->session = NULL;
    }
    if (last) {
        rank_gate(r->rank, GATE_END);
        return GMS_OK;
    }
    uint64_t begun_ns = gms_clock_ns();
    if (how == PEER_HANGS_IN_VERIFICATION) {
        status = gms_nccl_verify(r->nccl, 300, NULL, &error);
    } else {
        CU(gpu.graph_launch(r->graph, r->stream));
        status = gms_nccl_wait(r->nccl, r->stream, how == PEER_HANGS ? 300 : 10000, &error);
    }
    if (how == PEER_LEAVES)
        begun_ns = r->rank->values[KILLED_NS];
    r->rank->values[WAIT_US] = us_since(begun_ns);
    r->rank->values[STATUS] = (uint64_t)status;
    begun_ns = gms_clock_ns();
    gms_nccl_abort(r->nccl);        /* where it was not aborted by itself */
    CU(gpu.memory->context_sync()); /* the kernels have ended */
    r->rank->values[ABORT_US] = us_since(begun_ns);
    return GMS_OK;
}

static gms_status live_on_gpu(struct rank_on_gpu *r)
{
    gms_status status = attach(r);
    if (status == GMS_OK)
        status = make(r);
    if (status != GMS_OK)
        return status;
    rank_at(r->rank, AT_MADE);
    CU(gpu.stream_create(&r->stream, 1));
    CU(gpu.allocate(&r->output, BYTES));
    status = measure(r);
    if (status == GMS_OK)
        status = capture(r);
    if (status == GMS_OK)
        status = make_another(r);
    if (status == GMS_OK)
        status = gms_park(r->session, &error);
    if (status == GMS_OK && r->rank->engine != 0) { /* the primary's KV, through the graph */
        status = run_graph(r, 77);
        r->rank->values[PARKED_OK] = status == GMS_OK;
    }
    if (status != GMS_OK)
        return status;
    rank_at(r->rank, AT_PARKED);
    status = take_over(r);
    if (status != GMS_OK)
        return status;
    if (r->rank->engine == 0)
        fill(r->kv, 77 + r->rank->rank);
    /* Every rank's must be filled before the first step; a verification is a barrier. */
    status = gms_nccl_verify(r->nccl, 5000, NULL, &error);
    if (status == GMS_OK)
        status = run_graph(r, 77);
    r->rank->values[FIRST_US] = us_since(r->rank->values[KILLED_NS]);
    return status == GMS_OK ? meet_the_end(r) : status;
}

static gms_status live(struct engine_rank *rank, struct gms_error *ret_error)
{
    char device[8];
    struct rank_on_gpu r = {.rank = rank};
    snprintf(device, sizeof device, "%u", rank->rank);
    setenv("CUDA_VISIBLE_DEVICES", device, 1); /* this process has its rank's GPU, and no other */
    gpu_open(&gpu);
    rank->values[KILLED_NS] = gms_clock_ns();
    const gms_status status = live_on_gpu(&r);
    *ret_error = error;
    return status;
}

/* ------------------------------------------------------------------------------------------------- the parent --- */

/* A driver that was started before a fork is of no use to the child: so a child looks. */
static uint32_t count_devices(void)
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        const struct gms_cu_api *api;
        int count = 0;
        if (gms_cu_open(&api, NULL) != GMS_OK || api->init(0) != GMS_CU_SUCCESS ||
            api->device_count(&count) != GMS_CU_SUCCESS)
            _exit(0);
        gpu_open(&gpu); /* ends with 77 on a driver that runs no kernels */
        _exit(count < HARNESS_RANKS ? count : HARNESS_RANKS);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) == 77)
        return 0;
    return (uint32_t)WEXITSTATUS(status);
}

static uint32_t ranks;

static void start(struct cluster *cluster, const char *leave)
{
    const struct cluster_options options = {.ranks = ranks,
                                            .memory = "{ backend = \"cuda\"; capacity = \"256MiB\"; }",
                                            .verify = "none",
                                            .leave = leave,
                                            .operation_timeout = "30s"};
    cluster_start(cluster, &options);
}

static uint64_t greatest(const struct engine *engine, enum value value)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < engine->count; r++)
        most = engine->ranks[r].values[value] > most ? engine->ranks[r].values[value] : most;
    return most;
}

static void say(const struct engine *engine, const char *who)
{
    printf(
        "  %s: made in %.1f ms, %llu MiB of device memory; verification %llu us (99 %%: %llu us); 8 KiB all-reduce and "
        "wait %llu us; captured step with a 512 KiB all-reduce %llu us\n",
        who, (double)greatest(engine, OPEN_US) / 1e3, (unsigned long long)greatest(engine, OPEN_MIB),
        (unsigned long long)greatest(engine, VERIFY_US), (unsigned long long)greatest(engine, VERIFY_P99_US),
        (unsigned long long)greatest(engine, EAGER_US), (unsigned long long)greatest(engine, GRAPH_US));
    printf("  %s: another one in the same process: %.1f ms, %llu MiB, of which %llu MiB stay when it is closed\n", who,
           (double)greatest(engine, SECOND_US) / 1e3, (unsigned long long)greatest(engine, SECOND_MIB),
           (unsigned long long)greatest(engine, LEFT_MIB));
    fflush(stdout);
}

static void reach(struct engine *engine, int step)
{
    if (!engine_reached(engine, step, 60000))
        fail_msg("an engine did not come to step %d", step);
}

static void kill_at(struct engine *engine, struct engine *successor, uint32_t from)
{
    const uint64_t now_ns = gms_clock_ns();
    for (uint32_t r = 0; r < ranks; r++)
        successor->ranks[r].values[KILLED_NS] = now_ns;
    for (uint32_t r = from; r < ranks; r++)
        engine_kill(engine, r);
}

/* A primary and a shadow on the same GPUs, each with its own communicator. The primary's ranks from `from` on are
 * killed. */
static void fail_over(uint32_t from)
{
    struct cluster cluster;
    struct engine first, second;
    start(&cluster, NULL);
    engine_start(&first, &cluster, 0, "first", live, SERVES);
    reach(&first, AT_SERVING);
    engine_start(&second, &cluster, 1, "second", live, SERVES);
    reach(&second, AT_PARKED);
    printf("  NCCL %llu, %u ranks\n", (unsigned long long)first.ranks[0].values[VERSION], ranks);
    say(&first, "primary");
    say(&second, "shadow");
    for (uint32_t r = 0; r < ranks; r++)
        assert_int_equal(second.ranks[r].values[PARKED_OK], 1);
    kill_at(&first, &second, from);
    reach(&second, AT_SERVING);
    printf("  %u of %u ranks killed: verified after the wake in %llu us (%llu driver calls of ours, looks included)\n",
           ranks - from, ranks, (unsigned long long)greatest(&second, WAKE_VERIFY_US),
           (unsigned long long)greatest(&second, WAKE_CALLS));
    printf("  serving after %.1f ms, first captured step done and right after %.1f ms\n",
           (double)greatest(&second, SERVED_US) / 1e3, (double)greatest(&second, FIRST_US) / 1e3);
    fflush(stdout);
    engine_go(&second, GATE_END);
    assert_true(engine_wait_end(&second, HARNESS_DEADLINE_MS));
    for (uint32_t r = 0; r < ranks; r++)
        if (second.ranks[r].status != GMS_OK)
            fail_msg("%s", second.ranks[r].text);
    engine_finish(&first);
    engine_finish(&second);
    cluster_stop(&cluster);
}

static void test_captured_before_parking(void **state)
{
    (void)state;
    fail_over(0);
}

static void test_one_rank_killed(void **state)
{
    (void)state;
    fail_over(ranks - 1);
}

/* --------------------------------------------------------------------------------------------------- one GPU --- */

static void by_itself(gms_status (*interrupted)(void *, struct gms_error *))
{
    const struct gms_nccl_api *api;
    struct gms_nccl_id id;
    struct gms_communicator c;
    gpu_open(&gpu);
    GMS(gms_nccl_library_open(NULL, &api, &error));
    REQUIRE(gms_vmm_cuda_enter(&error) == GMS_OK);
    const struct gms_communicator_options options = {
        .api = api, .ranks = interrupted != NULL ? 1 : 2, .launch_ns = GMS_NS_PER_S, .interrupted = interrupted};
    REQUIRE(api->unique_id(&id) == GMS_NCCL_SUCCESS);
    uint64_t begun_ns = gms_clock_ns();
    gms_status status = gms_communicator_init(&c, &options, &id, begun_ns + GMS_NS_PER_S, &error);
    if (interrupted == NULL) {
        printf("  a rank that never comes, deadline 1,000 ms: %s after %.1f ms, %s\n", gms_status_name(status),
               gpu_ms(begun_ns), error.text);
        REQUIRE(status == GMS_E_TIMEOUT && gpu_ms(begun_ns) < 3000);
        return;
    }
    GMS(status);
    gms_cu_stream stream = NULL;
    gms_cu_pointer page = 0;
    CU(gpu.stream_create(&stream, 1));
    CU(gpu.allocate(&page, 65536));
    uint64_t words = 512, life_ns = 3 * GMS_NS_PER_S;
    void *arguments[] = {&page, &words, &life_ns};
    gpu_launch(&gpu, gpu.write_for, 1, 64, stream, arguments); /* nothing behind it can be done for three seconds */
    const struct gms_collective_call call = {.kind = GMS_COLLECTIVE_ALL_REDUCE,
                                             .send = (void *)(uintptr_t)page,
                                             .receive = (void *)(uintptr_t)page,
                                             .count = 64,
                                             .type = GMS_NCCL_UINT64,
                                             .stream = stream};
    GMS(gms_communicator_submit(&c, &call, &error));
    begun_ns = gms_clock_ns();
    status = gms_communicator_wait(&c, stream, begun_ns + 100 * GMS_NS_PER_MS, &error);
    const double wait_ms = gpu_ms(begun_ns);
    REQUIRE(status == GMS_E_TIMEOUT);
    begun_ns = gms_clock_ns();
    gms_communicator_abort(&c, "tried");
    printf("  a collective that cannot be done, deadline 100 ms: %s after %.1f ms; aborted in %.1f ms\n",
           gms_status_name(status), wait_ms, gpu_ms(begun_ns));
    REQUIRE(wait_ms < 1000);
}

static gms_status goes_on(void *context, struct gms_error *ret_error)
{
    (void)context, (void)ret_error;
    return GMS_OK;
}

/* In a child: a driver is no longer of use after a fork, and others follow. */
static void in_a_child(gms_status (*interrupted)(void *, struct gms_error *))
{
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        by_itself(interrupted);
        fflush(stdout);
        _exit(0);
    }
    assert_true(waitpid(child, &status, 0) == child && status == 0);
}

static void test_a_rank_that_never_comes(void **state)
{
    (void)state;
    in_a_child(NULL);
}

static void test_a_collective_that_cannot_be_done(void **state)
{
    (void)state;
    in_a_child(goes_on);
}

/* ----------------------------------------------------------------------------------------------------- several -- */

static void without_a_peer(enum how how, const char *what, gms_status expected, uint64_t limit_us)
{
    struct cluster cluster;
    struct engine engine;
    start(&cluster, "10s");
    engine_start(&engine, &cluster, 0, "first", live, how);
    reach(&engine, AT_SERVING);
    engine_go(&engine, GATE_WORK);
    reach(&engine, AT_HUNG);
    if (how == PEER_IS_KILLED) {
        poll(NULL, 0, 100);
        const uint64_t begun_ns = gms_clock_ns();
        engine_kill(&engine, ranks - 1);
        assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
        printf("  %s: all ended after %.1f ms\n", what, gpu_ms(begun_ns));
    } else {
        for (uint32_t r = 0; r + 1 < ranks; r++)
            while (engine_rank_alive(&engine, r))
                poll(NULL, 0, 2);
        uint64_t wait_us = 0, abort_us = 0;
        for (uint32_t r = 0; r + 1 < ranks; r++) {
            const struct engine_rank *rank = &engine.ranks[r];
            if (rank->status != GMS_OK || (gms_status)rank->values[STATUS] != expected)
                fail_msg("rank %u: %s %s", r, gms_status_name((gms_status)rank->values[STATUS]), rank->text);
            wait_us = rank->values[WAIT_US] > wait_us ? rank->values[WAIT_US] : wait_us;
            abort_us = rank->values[ABORT_US] > abort_us ? rank->values[ABORT_US] : abort_us;
        }
        printf("  %s: %s after %.1f ms, then aborted and the device free in %.1f ms (the slowest rank)\n", what,
               gms_status_name(expected), (double)wait_us / 1e3, (double)abort_us / 1e3);
        assert_in_range(wait_us, 0, limit_us);
        engine_go(&engine, GATE_END);
    }
    fflush(stdout);
    engine_finish(&engine);
    cluster_stop(&cluster);
}

static void test_a_peer_hangs(void **state)
{
    (void)state;
    without_a_peer(PEER_HANGS, "a peer hangs, deadline 300 ms", GMS_E_TIMEOUT, 1000000);
}

static void test_a_peer_hangs_in_verification(void **state)
{
    (void)state;
    without_a_peer(PEER_HANGS_IN_VERIFICATION, "a peer hangs in a verification, deadline 300 ms (abort included)",
                   GMS_E_TIMEOUT, 5000000);
}

static void test_a_peer_leaves(void **state)
{
    (void)state;
    without_a_peer(PEER_LEAVES, "a peer leaves", GMS_E_CONDEMNED, 5000000);
}

static void test_a_peer_is_killed(void **state)
{
    (void)state;
    without_a_peer(PEER_IS_KILLED, "a peer is killed, the others in a collective", GMS_OK, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest one[] = {
        cmocka_unit_test(test_a_rank_that_never_comes),
        cmocka_unit_test(test_a_collective_that_cannot_be_done),
        cmocka_unit_test(test_captured_before_parking),
    };
    const struct CMUnitTest several[] = {
        cmocka_unit_test(test_one_rank_killed),
        cmocka_unit_test(test_a_peer_hangs),
        cmocka_unit_test(test_a_peer_hangs_in_verification),
        cmocka_unit_test(test_a_peer_leaves),
        cmocka_unit_test(test_a_peer_is_killed),
    };
    const char *what = argc > 1 ? argv[1] : "all";
    const char *most = getenv("GPU_NCCL_RANKS");
    struct gms_error missing;
    const struct gms_nccl_api *api;
    ranks = count_devices();
    if (ranks == 0 || gms_nccl_library_open(NULL, &api, &missing) != GMS_OK) {
        fprintf(stderr, "skipped: %s\n", ranks == 0 ? "no GPU" : missing.text);
        return 77;
    }
    if (most != NULL && (uint32_t)atoi(most) < ranks)
        ranks = (uint32_t)atoi(most);
    int failed = 0;
    if (strcmp(what, "several") != 0)
        failed += cmocka_run_group_tests(one, NULL, NULL);
    if (strcmp(what, "one") != 0 && ranks > 1)
        failed += cmocka_run_group_tests(several, NULL, NULL);
    else if (strcmp(what, "several") == 0) {
        fprintf(stderr, "skipped: %u GPU\n", ranks);
        return 77;
    }
    return failed != 0;
}
