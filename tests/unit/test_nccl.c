/* SPDX-License-Identifier: Apache-2.0
 * A communicator whose waits end: on a NCCL and a driver made of host memory, one rank of one or of two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <poll.h>
#include <pthread.h>

#include "base/clock.h"
#include "fake_cuda.h"
#include "fake_nccl.h"
#include "gms/nccl.h"
#include "nccl/communicator.h"
#include "vmm/cuda_stream.h"

enum { SOON_MS = 100, LATE_MS = 20000, LAUNCH_MS = LATE_MS };

static struct fake_nccl *fake;
static const struct gms_nccl_api *api;
static struct gms_error error;
static char directory[] = "/tmp/test-nccl.XXXXXX";

static uint64_t in_ms(uint64_t ms)
{
    return gms_clock_ns() + ms * GMS_NS_PER_MS;
}

static gms_status make_of(struct gms_communicator *c, uint32_t ranks, uint64_t deadline_ms,
                          gms_status (*interrupted)(void *, struct gms_error *))
{
    struct gms_nccl_id id;
    const struct gms_communicator_options options = {
        .api = api, .rank = 0, .ranks = ranks, .launch_ns = LAUNCH_MS * GMS_NS_PER_MS, .interrupted = interrupted};
    assert_int_equal(gms_vmm_cuda_enter(&error), GMS_OK);
    assert_int_equal(api->unique_id(&id), GMS_NCCL_SUCCESS);
    gms_vmm_cuda_leave();
    gms_status status = gms_communicator_init(c, &options, &id, in_ms(deadline_ms), &error);
    unlink(id.bytes);
    return status;
}

static void make(struct gms_communicator *c)
{
    if (make_of(c, 1, LATE_MS, NULL) != GMS_OK)
        fail_msg("%s", error.text);
}

#define assert_text(words)                                                                                             \
    do {                                                                                                               \
        if (strstr(error.text, words) == NULL)                                                                         \
            fail_msg("\"%s\" lacks \"%s\"", error.text, words);                                                        \
    } while (0)

static int begin(void **state)
{
    (void)state;
    fake->init = fake->collective = fake->resume = FAKE_NCCL_WELL;
    fake->aborts = fake->freed = 0;
    memset(&error, 0, sizeof error);
    return 0;
}

/* Whatever happened, every handle that was made was aborted once, and close has seen it through. */
static int end(void **state)
{
    (void)state;
    return fake->handles == 0 && fake_nccl_comes_to(&fake->freed, fake->aborts) ? 0 : -1;
}

/* --------------------------------------------------------------------------------------------------- making --- */

static void test_verified_again_and_again(void **state)
{
    struct gms_communicator c;
    (void)state;
    make(&c);
    for (uint64_t n = 1; n <= 20; n++) {
        assert_int_equal(gms_communicator_verify(&c, in_ms(LATE_MS), &error), GMS_OK);
        assert_int_equal(c.verifications, n);
    }
    assert_int_equal(gms_communicator_check(&c, &error), GMS_OK);
    gms_communicator_close(&c);
    assert_true(fake_nccl_comes_to(&fake->aborts, 1));
    gms_communicator_close(&c); /* a zeroed one */
}

static void test_init_that_never_ends(void **state)
{
    struct gms_communicator c;
    (void)state;
    fake->init = FAKE_NCCL_HANGS;
    const uint64_t begun_ns = gms_clock_ns();
    assert_int_equal(make_of(&c, 1, SOON_MS, NULL), GMS_E_TIMEOUT);
    assert_text("rank 0 of 1, making the communicator: not done after");
    assert_in_range(gms_clock_ns() - begun_ns, SOON_MS * GMS_NS_PER_MS, (SOON_MS + 5000) * GMS_NS_PER_MS);
    assert_true(fake_nccl_comes_to(&fake->aborts, 1));
    assert_int_equal(gms_communicator_verify(&c, in_ms(LATE_MS), &error), GMS_E_REFUSED);
    gms_communicator_close(&c);
}

static void test_a_rank_that_never_comes(void **state)
{
    struct gms_communicator c;
    (void)state;
    assert_int_equal(make_of(&c, 2, SOON_MS, NULL), GMS_E_TIMEOUT);
    gms_communicator_close(&c);
}

static void test_init_in_nccls_words(void **state)
{
    struct gms_communicator c;
    (void)state;
    fake->init = FAKE_NCCL_REFUSES;
    assert_int_equal(make_of(&c, 1, LATE_MS, NULL), GMS_E_INVALID);
    assert_text("rank 0 of 1 cannot begin: NCCL says invalid usage (5), Duplicate GPU detected");
    assert_null(strstr(error.text, "second line"));
    gms_communicator_close(&c);
    fake->init = FAKE_NCCL_FAILS;
    assert_int_equal(make_of(&c, 1, LATE_MS, NULL), GMS_E_SYSTEM);
    assert_text("remote process exited (6), a peer went away");
    assert_int_equal(gms_communicator_check(&c, &error), GMS_E_REFUSED);
    assert_text("aborted: rank 0 of 1, making the communicator: NCCL says remote process exited");
    gms_communicator_close(&c);
}

/* What a session does when its incarnation is condemned. */
static gms_status condemned(void *context, struct gms_error *ret_error)
{
    (void)context;
    return gms_fail(ret_error, GMS_E_CONDEMNED, "condemned");
}

static void test_interrupted(void **state)
{
    struct gms_communicator c;
    (void)state;
    fake->init = FAKE_NCCL_HANGS;
    const uint64_t begun_ns = gms_clock_ns();
    assert_int_equal(make_of(&c, 1, LATE_MS, condemned), GMS_E_CONDEMNED);
    assert_in_range(gms_clock_ns() - begun_ns, GMS_NS_PER_MS, 5000 * GMS_NS_PER_MS);
    assert_true(fake_nccl_comes_to(&fake->aborts, 1));
    gms_communicator_close(&c);
}

/* The driver's part fails: nothing was begun. */
static void test_no_memory_for_its_own(void **state)
{
    struct gms_communicator c;
    (void)state;
    fake_cuda_get()->fail_next("cuMemHostAlloc", 0, 1, 2);
    assert_int_equal(make_of(&c, 1, LATE_MS, NULL), GMS_E_NO_MEMORY);
    assert_text("bytes of host memory for the device");
    assert_int_equal(fake->aborts, 0);
    gms_communicator_close(&c);
}

/* ---------------------------------------------------------------------------------------------- verification -- */

static void test_verification_notices(void **state)
{
    static const struct {
        enum fake_nccl_behaviour behaviour;
        gms_status status;
        const char *words;
    } cases[] = {{FAKE_NCCL_HANGS, GMS_E_TIMEOUT, "verification: not done after"},
                 {FAKE_NCCL_FAILS, GMS_E_SYSTEM, "remote process exited"},
                 {FAKE_NCCL_REFUSES, GMS_E_SYSTEM, "internal error (3), no proxy"},
                 {FAKE_NCCL_LIES, GMS_E_CORRUPT, "verification 2: element 32 is"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gms_communicator c;
        fake->collective = FAKE_NCCL_WELL;
        fake->aborts = fake->freed = 0;
        make(&c);
        assert_int_equal(gms_communicator_verify(&c, in_ms(LATE_MS), &error), GMS_OK);
        fake->collective = cases[i].behaviour;
        const uint64_t begun_ns = gms_clock_ns();
        assert_int_equal(gms_communicator_verify(&c, in_ms(SOON_MS), &error), cases[i].status);
        assert_text(cases[i].words);
        assert_in_range(gms_clock_ns() - begun_ns, 0, (SOON_MS + 5000) * GMS_NS_PER_MS);
        assert_true(fake_nccl_comes_to(&fake->aborts, 1));
        fake->collective = FAKE_NCCL_WELL;
        assert_int_equal(gms_communicator_verify(&c, in_ms(LATE_MS), &error), GMS_E_REFUSED);
        assert_text("aborted: ");
        gms_communicator_close(&c);
        assert_true(fake_nccl_comes_to(&fake->aborts, 1));
    }
}

/* ---------------------------------------------------------------------------------------------- collectives --- */

static struct gms_collective_call all_reduce(const float *send, float *receive, void *stream)
{
    return (struct gms_collective_call){.kind = GMS_COLLECTIVE_ALL_REDUCE,
                                        .send = send,
                                        .receive = receive,
                                        .count = 4,
                                        .type = GMS_NCCL_FLOAT32,
                                        .argument = GMS_NCCL_SUM,
                                        .stream = stream};
}

static void test_collectives_and_wait(void **state)
{
    struct gms_communicator c;
    const float send[4] = {1, 2, 3, 4};
    float receive[4] = {0};
    void *stream = NULL;
    (void)state;
    make(&c);
    assert_int_equal(gms_vmm_cuda_stream_create(&stream, &error), GMS_OK);
    struct gms_collective_call call = all_reduce(send, receive, stream);
    for (int kind = GMS_COLLECTIVE_ALL_REDUCE; kind <= GMS_COLLECTIVE_BROADCAST; kind++) {
        memset(receive, 0, sizeof receive);
        call.kind = (enum gms_collective)kind;
        call.argument = 0;
        assert_int_equal(gms_communicator_submit(&c, &call, &error), GMS_OK);
        assert_int_equal(gms_communicator_wait(&c, stream, in_ms(LATE_MS), &error), GMS_OK);
        assert_memory_equal(send, receive, sizeof send);
    }
    call.count = 1 << 20;
    assert_int_equal(gms_communicator_submit(&c, &call, &error),
                     GMS_E_INVALID); /* a request's mistake aborts nothing */
    assert_text("rank 0 of 1, broadcast of 1048576 elements: NCCL says invalid argument (4)");
    assert_int_equal(gms_communicator_verify(&c, in_ms(LATE_MS), &error), GMS_OK);
    gms_communicator_close(&c);
    gms_vmm_cuda_stream_destroy(stream);
}

/* TIMEOUT is only a look; what NCCL reports, and an abort, end the wait. */
static void test_wait_on_a_collective_that_hangs(void **state)
{
    struct gms_communicator c;
    const float send[4] = {1, 2, 3, 4};
    float receive[4];
    void *stream = NULL;
    (void)state;
    make(&c);
    assert_int_equal(gms_vmm_cuda_stream_create(&stream, &error), GMS_OK);
    const struct gms_collective_call call = all_reduce(send, receive, stream);
    fake->collective = FAKE_NCCL_HANGS;
    assert_int_equal(gms_communicator_submit(&c, &call, &error), GMS_OK);
    assert_int_equal(gms_communicator_wait(&c, stream, in_ms(SOON_MS), &error), GMS_E_TIMEOUT);
    assert_int_equal(fake->aborts, 0);
    assert_int_equal(gms_communicator_wait(&c, stream, in_ms(1), &error), GMS_E_TIMEOUT);
    c.options.interrupted = condemned;
    assert_int_equal(gms_communicator_wait(&c, stream, in_ms(LATE_MS), &error), GMS_E_CONDEMNED);
    assert_true(fake_nccl_comes_to(&fake->aborts, 1));
    assert_int_equal(gms_communicator_wait(&c, stream, in_ms(LATE_MS), &error), GMS_E_REFUSED);
    assert_text("aborted: condemned");
    assert_int_equal(gms_communicator_submit(&c, &call, &error), GMS_E_REFUSED);
    gms_communicator_close(&c);
    gms_vmm_cuda_stream_destroy(stream);
}

static void *abort_it(void *context)
{
    struct gms_communicator *c = context;
    while (__atomic_load_n(&fake->collectives, __ATOMIC_ACQUIRE) == 0)
        (void)poll(NULL, 0, 1);
    gms_communicator_abort(c, "another thread's word");
    gms_communicator_abort(c, "not kept");
    return NULL;
}

static void test_abort_from_another_thread(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct gms_communicator c;
        pthread_t thread;
        make(&c);
        fake->collective = FAKE_NCCL_HANGS;
        fake->collectives = 0;
        assert_int_equal(pthread_create(&thread, NULL, abort_it, &c), 0);
        gms_status status = gms_communicator_verify(&c, in_ms(LATE_MS), &error);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(status, GMS_E_REFUSED);
        assert_text("another thread's word");
        fake->collective = FAKE_NCCL_WELL;
        gms_communicator_close(&c);
    }
    assert_true(fake_nccl_comes_to(&fake->aborts, 20));
}

/* ------------------------------------------------------------------------------ an abort that is held up -------- */

enum { HELD_UP_MS = 5000, NOT_YET_MS = 50, CLOSE_MS = 1000 };

struct held_up {
    struct gms_communicator c;
    void *stream;
    gms_status waited;
    struct gms_error error;
};
static _Atomic unsigned asked; /* whether to go on waiting */

static gms_status go_on(void *context, struct gms_error *ret_error)
{
    (void)context;
    (void)ret_error;
    atomic_fetch_add(&asked, 1);
    return GMS_OK;
}

static void *wait_behind_a_kernel(void *context)
{
    struct held_up *test = context;
    test->waited = gms_communicator_wait(&test->c, test->stream, in_ms(LATE_MS), &test->error);
    return NULL;
}

/*
 * NCCL's abort does not come back: a kernel stands in front of a collective, or a captured graph that holds one lives
 * on. Nobody waits for it: not who aborts, not who waits or looks, and close for a second. Once it can it frees
 * everything.
 */
static void test_abort_that_is_held_up(void **state)
{
    static struct held_up test;
    float numbers[4] = {0};
    pthread_t waiting;
    (void)state;
    memset(&test, 0, sizeof test);
    if (make_of(&test.c, 1, LATE_MS, go_on) != GMS_OK)
        fail_msg("%s", error.text);
    assert_int_equal(gms_communicator_verify(&test.c, in_ms(LATE_MS), &error), GMS_OK);
    assert_int_equal(gms_vmm_cuda_stream_create(&test.stream, &error), GMS_OK);
    fake_cuda_get()->hold(test.stream, true);
    __atomic_store_n(&fake->abort, FAKE_NCCL_HANGS, __ATOMIC_SEQ_CST);
    atomic_store(&asked, 0);
    assert_int_equal(pthread_create(&waiting, NULL, wait_behind_a_kernel, &test), 0);
    const uint64_t deadline_ns = in_ms(HELD_UP_MS);
    while (atomic_load(&asked) == 0 && gms_clock_ns() < deadline_ns)
        (void)poll(NULL, 0, 1);
    const bool in_the_wait = atomic_load(&asked) > 0;
    uint64_t since_ns = gms_clock_ns();
    gms_communicator_abort(&test.c, "held up");
    assert_int_equal(pthread_join(waiting, NULL), 0); /* so that a failure leaves no thread behind */
    const uint64_t abort_ns = gms_clock_ns() - since_ns;
    const struct gms_collective_call call = all_reduce(numbers, numbers, test.stream);
    assert_int_equal(gms_communicator_wait(&test.c, test.stream, in_ms(NOT_YET_MS), NULL), GMS_E_REFUSED);
    assert_int_equal(gms_communicator_check(&test.c, NULL), GMS_E_REFUSED);
    assert_int_equal(gms_communicator_verify(&test.c, in_ms(NOT_YET_MS), NULL), GMS_E_REFUSED);
    assert_int_equal(gms_communicator_submit(&test.c, &call, NULL), GMS_E_REFUSED);
    gms_communicator_abort(&test.c, "the second");
    assert_true(fake_nccl_comes_to(&fake->aborts, 1));
    since_ns = gms_clock_ns();
    gms_communicator_close(&test.c);
    const uint64_t close_ns = gms_clock_ns() - since_ns;
    const uint64_t freed = __atomic_load_n(&fake->freed, __ATOMIC_SEQ_CST);
    __atomic_store_n(&fake->abort, FAKE_NCCL_WELL, __ATOMIC_SEQ_CST);
    fake_cuda_get()->hold(test.stream, false);
    gms_vmm_cuda_stream_destroy(test.stream);
    assert_true(in_the_wait);
    assert_in_range(abort_ns, 0, HELD_UP_MS * GMS_NS_PER_MS);
    assert_int_equal(test.waited, GMS_E_REFUSED);
    assert_non_null(strstr(test.error.text, "aborted: held up"));
    assert_in_range(close_ns, CLOSE_MS * GMS_NS_PER_MS, (CLOSE_MS + HELD_UP_MS) * GMS_NS_PER_MS);
    assert_int_equal(freed, 0);
    assert_true(fake_nccl_comes_to(&fake->freed, 1));
    assert_int_equal(fake->aborts, 1);
}

static void test_suspend_is_not_there(void **state)
{
    struct gms_communicator c;
    (void)state;
    make(&c);
    assert_int_equal(gms_communicator_suspend(&c, &error), GMS_E_UNSUPPORTED);
    assert_text("NCCL 22803");
    assert_text("2.29.7");
    assert_int_equal(gms_communicator_resume(&c, in_ms(LATE_MS), &error), GMS_E_UNSUPPORTED);
    assert_int_equal(gms_communicator_verify(&c, in_ms(LATE_MS), &error), GMS_OK);
    gms_communicator_close(&c);
}

static int open_all(void **state)
{
    (void)state;
    if (mkdtemp(directory) == NULL || setenv("TMPDIR", directory, 1) != 0 || fake_cuda_get() == NULL)
        return -1;
    fake = fake_nccl_get(NULL);
    gms_status status = gms_nccl_library_open(NULL, &api, &error);
    if (status != GMS_OK)
        fprintf(stderr, "%s\n", error.text);
    return fake != NULL && status == GMS_OK && gms_vmm_cuda_choose(NULL, &error) == GMS_OK ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    return rmdir(directory); /* nothing is left in it */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(test_verified_again_and_again),
        TEST(test_init_that_never_ends),
        TEST(test_a_rank_that_never_comes),
        TEST(test_init_in_nccls_words),
        TEST(test_interrupted),
        TEST(test_no_memory_for_its_own),
        TEST(test_verification_notices),
        TEST(test_collectives_and_wait),
        TEST(test_wait_on_a_collective_that_hangs),
        TEST(test_abort_from_another_thread),
        TEST(test_abort_that_is_held_up),
        TEST(test_suspend_is_not_there),
    };
#undef TEST
    return cmocka_run_group_tests(tests, open_all, close_all);
}
