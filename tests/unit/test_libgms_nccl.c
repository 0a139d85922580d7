/* SPDX-License-Identifier: Apache-2.0
 * What a session does with its communicators, and gms_exchange: one rank, on a coordinator that the test plays, and a
 * NCCL and a driver of host memory. (Several ranks: tests/mpi/test_coord_nccl.c.) */
#include "libgms_support.h"

#include <poll.h>

#include "base/clock.h"
#include "fake_nccl.h"
#include "gms/nccl.h"

enum { SOON_MS = 50, LATE_MS = 20000 };

static struct fake_nccl *nccl_of_tests;

static int setup(void **state)
{
    nccl_of_tests = fake_nccl_get(NULL);
    if (nccl_of_tests == NULL)
        return -1;
    *nccl_of_tests = (struct fake_nccl){.init = FAKE_NCCL_WELL};
    int result = libgms_setup_unverified(state);
    if (result != 0)
        return result;
    setenv("TMPDIR", ((struct libgms_fixture *)*state)->dir, 1);
    return 0;
}

static int teardown(void **state)
{
    unsetenv("TMPDIR");
    const int result = libgms_teardown(state);
    return nccl_of_tests->handles == 0 ? result : -1;
}

static void *const stream = (void *)0x5000;

static gms_nccl *open_nccl(gms_session *session)
{
    struct gms_error error;
    gms_nccl *nccl = NULL;
    assert_ok(gms_nccl_open(session, NULL, &nccl, &error));
    return nccl;
}

static void condemn(struct libgms_fixture *f, const struct engine *engine)
{
    static const char why[] = "a rank is gone";
    const struct gms_message message = {
        .type = GMS_MESSAGE_CONDEMNED,
        .condemned = {.incarnation = engine->member.incarnation, .text = {why, sizeof why - 1}}};
    fake_send(&f->fake, engine->member.incarnation, &message);
}

static void test_exchange(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine engine = {.session = open_engine(f, 0)};
    char given[GMS_EXCHANGE_BYTES + 1], got[GMS_EXCHANGE_BYTES];
    uint32_t bytes = 7;
    memset(given, 'x', sizeof given);
    assert_status(gms_exchange(engine.session, "id", 0, given, 1, got, &bytes, &error), GMS_E_REFUSED); /* not joined */
    assert_ok(gms_join(engine.session, &engine_identity, &engine.member, &error));
    assert_status(gms_exchange(engine.session, "", 0, given, 1, got, &bytes, &error), GMS_E_INVALID);
    assert_status(gms_exchange(engine.session, NULL, 0, given, 1, got, &bytes, &error), GMS_E_INVALID);
    assert_status(gms_exchange(engine.session, "id", 0, NULL, 1, got, &bytes, &error), GMS_E_INVALID);
    assert_status(gms_exchange(engine.session, "id", 0, given, sizeof given, got, &bytes, &error), GMS_E_INVALID);
    assert_text_has("129 bytes, the limit is 128");
    assert_int_equal(bytes, 7); /* set on success alone */
    assert_ok(gms_exchange(engine.session, "id", 4711, given, GMS_EXCHANGE_BYTES, got, &bytes, &error));
    assert_int_equal(bytes, GMS_EXCHANGE_BYTES);
    assert_memory_equal(got, given, bytes);
    assert_int_equal(FAKE_GET(f->fake.seen.kind), GMS_OPERATION_EXCHANGE);
    assert_int_equal(FAKE_GET(f->fake.seen.fields[0]), XXH3_64bits("id", 2));
    assert_int_equal(FAKE_GET(f->fake.seen.fields[1]), 4711);
    assert_ok(gms_exchange(engine.session, "id", 0, NULL, 0, got, &bytes, &error));
    assert_int_equal(bytes, 0);
    gms_close(engine.session);
}

static void test_life_of_a_communicator(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine engine = join_engine(f, 0);
    struct gms_nccl_verification verified;
    float numbers[4] = {1, 2, 3, 4}, gathered[4] = {0};
    gms_nccl *nccl = open_nccl(engine.session);
    assert_int_equal(gms_nccl_version(nccl), 22803);
    assert_non_null(strstr(gms_nccl_library(nccl), "libnccl.so.2"));
    assert_ok(gms_nccl_all_reduce(nccl, numbers, numbers, 4, GMS_NCCL_FLOAT32, GMS_NCCL_SUM, stream, &error));
    assert_ok(gms_nccl_all_gather(nccl, numbers, gathered, 4, GMS_NCCL_FLOAT32, stream, &error));
    assert_ok(gms_nccl_broadcast(nccl, numbers, numbers, 4, GMS_NCCL_FLOAT32, 0, stream, &error));
    assert_ok(gms_nccl_wait(nccl, stream, LATE_MS, &error));
    assert_memory_equal(gathered, numbers, sizeof numbers);
    assert_ok(gms_nccl_verify(nccl, LATE_MS, &verified, &error));
    assert_int_equal(verified.number, 2);
    assert_in_range(verified.duration_ns, 1, LATE_MS * GMS_NS_PER_MS);
    assert_ok(gms_nccl_check(nccl, &error));
    assert_status(gms_nccl_suspend(nccl, &error), GMS_E_UNSUPPORTED);
    gms_nccl *second = open_nccl(engine.session); /* as many as an engine wants */
    gms_nccl_abort(second);
    gms_nccl_abort(second);
    assert_status(gms_nccl_check(second, &error), GMS_E_REFUSED);
    assert_text_has("the engine ended it");
    gms_nccl_close(nccl);
    gms_nccl_close(NULL);
    assert_true(fake_nccl_comes_to(&nccl_of_tests->handles, 0));
    open_nccl(engine.session);
    gms_close(engine.session); /* closes what is left */
    assert_int_equal(nccl_of_tests->inits, 3);
    assert_true(fake_nccl_comes_to(&nccl_of_tests->aborts, 3));
}

/* A thread of the engine hangs in the device, where only the abort can reach it; the session hears in another call. */
static void test_condemned_aborts(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine engine = join_engine(f, 0);
    float numbers[4] = {0};
    gms_nccl *nccl = open_nccl(engine.session);
    assert_ok(gms_park(engine.session, &error));
    nccl_of_tests->collective = FAKE_NCCL_HANGS;
    assert_ok(gms_nccl_all_reduce(nccl, numbers, numbers, 4, GMS_NCCL_FLOAT32, GMS_NCCL_SUM, stream, &error));
    assert_int_equal(nccl_of_tests->aborts, 0);
    condemn(f, &engine);
    gms_status status = GMS_E_TIMEOUT;
    const uint64_t until_ns = gms_clock_ns() + LATE_MS * GMS_NS_PER_MS;
    while (status == GMS_E_TIMEOUT && gms_clock_ns() < until_ns)
        status = gms_wait_promotion(engine.session, SOON_MS, &engine.promotion, &error);
    assert_int_equal(status, GMS_E_CONDEMNED);
    assert_true(fake_nccl_comes_to(&nccl_of_tests->aborts, 1));
    assert_status(gms_nccl_wait(nccl, stream, LATE_MS, &error), GMS_E_REFUSED);
    assert_text_has("aborted: this incarnation is condemned");
    assert_status(gms_nccl_verify(nccl, LATE_MS, NULL, &error), GMS_E_CONDEMNED);
    assert_text_has("a rank is gone");
    gms_close(engine.session);
}

/* The same where the engine waits with us. */
static void test_condemned_ends_a_wait(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine engine = join_engine(f, 0);
    float numbers[4] = {0};
    gms_nccl *nccl = open_nccl(engine.session);
    nccl_of_tests->collective = FAKE_NCCL_HANGS;
    assert_ok(gms_nccl_all_reduce(nccl, numbers, numbers, 4, GMS_NCCL_FLOAT32, GMS_NCCL_SUM, stream, &error));
    assert_status(gms_nccl_wait(nccl, stream, SOON_MS, &error), GMS_E_TIMEOUT);
    condemn(f, &engine);
    const uint64_t begun_ns = gms_clock_ns();
    assert_status(gms_nccl_wait(nccl, stream, LATE_MS, &error), GMS_E_CONDEMNED);
    assert_in_range(gms_clock_ns() - begun_ns, 0, LATE_MS / 4 * GMS_NS_PER_MS);
    assert_true(fake_nccl_comes_to(&nccl_of_tests->aborts, 1));
    gms_close(engine.session);
}

/* Without a coordinator nothing is known of the peers: the wait goes on to its own end, and aborts nothing. */
static void test_no_coordinator(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine engine = join_engine(f, 0);
    float numbers[4] = {0};
    gms_nccl *nccl = open_nccl(engine.session);
    FAKE_SET(f->fake.away = true);
    fake_hang_up(&f->fake, engine.member.incarnation);
    nccl_of_tests->collective = FAKE_NCCL_HANGS;
    assert_ok(gms_nccl_all_reduce(nccl, numbers, numbers, 4, GMS_NCCL_FLOAT32, GMS_NCCL_SUM, stream, &error));
    assert_status(gms_nccl_wait(nccl, stream, SOON_MS, &error), GMS_E_TIMEOUT);
    assert_int_equal(nccl_of_tests->aborts, 0);
    gms_close(engine.session);
}

static void test_refusals(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    gms_nccl *nccl = NULL;
    const struct gms_nccl_options elsewhere = {.library = "/no/such/libnccl.so.2"};
    gms_session *session = open_engine(f, 1);
    assert_status(gms_nccl_open(session, NULL, &nccl, &error), GMS_E_REFUSED); /* not joined */
    gms_close(session);
    struct engine engine = join_engine(f, 0);
    assert_status(gms_nccl_open(engine.session, &elsewhere, &nccl, &error), GMS_E_UNSUPPORTED);
    assert_text_has("no NCCL here");
    assert_int_equal(FAKE_GET(f->fake.seen.fields[1]), 0); /* and the other ranks were told */
    nccl_of_tests->init = FAKE_NCCL_REFUSES;
    assert_status(gms_nccl_open(engine.session, NULL, &nccl, &error), GMS_E_INVALID);
    assert_text_has("Duplicate GPU");
    nccl_of_tests->init = FAKE_NCCL_WELL;
    assert_ok(gms_park(engine.session, &error));
    assert_status(gms_nccl_open(engine.session, NULL, &nccl, &error), GMS_E_REFUSED);
    assert_text_has("before parking");
    assert_null(nccl);
    gms_close(engine.session);
}

static void test_host_memory(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    gms_nccl *nccl = NULL;
    FAKE_SET(f->fake.on_device = false);
    struct engine engine = join_engine(f, 0);
    assert_status(gms_nccl_open(engine.session, NULL, &nccl, &error), GMS_E_UNSUPPORTED);
    assert_text_has("needs a GPU for every rank");
    gms_close(engine.session);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_exchange),         TEST(test_life_of_a_communicator),
        TEST(test_condemned_aborts), TEST(test_condemned_ends_a_wait),
        TEST(test_no_coordinator),   TEST(test_refusals),
        TEST(test_host_memory),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
