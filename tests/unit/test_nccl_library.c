/* SPDX-License-Identifier: Apache-2.0
 * Which NCCL: missing, too old, one that can suspend, one named by the environment. A run each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "fake_cuda.h"
#include "fake_nccl.h"
#include "nccl/communicator.h"
#include "vmm/cuda_stream.h"

static struct gms_error error;
static char path[512];

static const char *library(const char *name)
{
    snprintf(path, sizeof path, "%s/%s/libnccl.so.2", getenv("FAKE_NCCL_DIR"), name);
    return path;
}

static void assert_text(const char *words)
{
    if (strstr(error.text, words) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", error.text, words);
}

static void test_missing(void **state)
{
    const struct gms_nccl_api *api = NULL;
    (void)state;
    assert_int_equal(gms_nccl_library_open("/no/such/libnccl.so.2", &api, &error), GMS_E_UNSUPPORTED);
    assert_text("no NCCL here");
    assert_text("GMS_NCCL_LIBRARY");
    assert_int_equal(gms_nccl_library_open("libm.so.6", &api, &error), GMS_E_UNSUPPORTED);
    assert_text("has no nccl");
    assert_int_equal(gms_nccl_library_open(NULL, &api, &error), GMS_OK); /* nothing of it is left in the way */
    assert_int_equal(api->number, 22803);
    assert_null(api->suspend);
    const struct gms_nccl_api *again = NULL;
    assert_int_equal(gms_nccl_library_open(NULL, &again, &error), GMS_OK);
    assert_ptr_equal(api, again);
    assert_int_equal(gms_nccl_library_open(library("fake_nccl_new"), &again, &error), GMS_E_REFUSED);
    assert_text("a process of its own");
}

static void test_old(void **state)
{
    const struct gms_nccl_api *api = NULL;
    (void)state;
    assert_int_equal(gms_nccl_library_open(library("fake_nccl_old"), &api, &error), GMS_E_UNSUPPORTED);
    assert_text("(version 21212) has no ncclCommInitRankConfig: NCCL 2.14 or newer is needed");
}

static void test_environment(void **state)
{
    const struct gms_nccl_api *api = NULL;
    (void)state;
    assert_int_equal(setenv("GMS_NCCL_LIBRARY", library("fake_nccl_new"), 1), 0);
    assert_int_equal(gms_nccl_library_open(NULL, &api, &error), GMS_OK);
    assert_int_equal(api->number, 23007);
    assert_string_equal(api->file, path);
}

static void test_new(void **state)
{
    const struct gms_nccl_api *api = NULL;
    struct gms_nccl_id id;
    struct gms_communicator c;
    (void)state;
    struct fake_nccl *fake = fake_nccl_get(library("fake_nccl_new"));
    assert_non_null(fake);
    assert_int_equal(gms_nccl_library_open(path, &api, &error), GMS_OK);
    assert_int_equal(gms_vmm_cuda_choose(NULL, &error), GMS_OK);
    const struct gms_communicator_options options = {.api = api, .ranks = 1, .launch_ns = 20 * GMS_NS_PER_S};
    for (int kind = FAKE_NCCL_WELL; kind <= FAKE_NCCL_LIES; kind++) {
        assert_int_equal(api->unique_id(&id), GMS_NCCL_SUCCESS);
        fake->resume = FAKE_NCCL_WELL;
        fake->collective = FAKE_NCCL_WELL;
        assert_int_equal(gms_communicator_init(&c, &options, &id, UINT64_MAX, &error), GMS_OK);
        unlink(id.bytes);
        assert_int_equal(gms_communicator_resume(&c, UINT64_MAX, &error), GMS_E_REFUSED);
        assert_int_equal(gms_communicator_suspend(&c, &error), GMS_OK);
        assert_int_equal(gms_communicator_suspend(&c, &error), GMS_E_REFUSED);
        assert_text("suspended");
        assert_int_equal(gms_communicator_wait(&c, NULL, UINT64_MAX, &error), GMS_E_REFUSED);
        assert_int_equal(gms_communicator_verify(&c, UINT64_MAX, &error), GMS_E_REFUSED); /* and goes on, see below */
        assert_text("suspended; resume it first");
        assert_int_equal(gms_communicator_check(&c, &error), GMS_OK);
        fake->resume = (enum fake_nccl_behaviour)kind;
        fake->collective =
            kind == FAKE_NCCL_LIES || kind == FAKE_NCCL_FAILS ? (enum fake_nccl_behaviour)kind : FAKE_NCCL_WELL;
        /* Back with a hole in it: NCCL says it is well, the verification that follows does not. */
        static const gms_status expected[] = {[FAKE_NCCL_WELL] = GMS_OK,
                                              [FAKE_NCCL_HANGS] = GMS_E_TIMEOUT,
                                              [FAKE_NCCL_REFUSES] = GMS_E_SYSTEM,
                                              [FAKE_NCCL_FAILS] = GMS_E_SYSTEM,
                                              [FAKE_NCCL_LIES] = GMS_E_CORRUPT};
        const uint64_t patience_ns = kind == FAKE_NCCL_HANGS ? GMS_NS_PER_S / 10 : 20 * GMS_NS_PER_S;
        assert_int_equal(gms_communicator_resume(&c, gms_clock_ns() + patience_ns, &error), expected[kind]);
        assert_int_equal(gms_communicator_check(&c, &error), kind == FAKE_NCCL_WELL ? GMS_OK : GMS_E_REFUSED);
        gms_communicator_close(&c);
    }
    assert_int_equal(fake->suspends, 5);
    assert_int_equal(fake->handles, 0);
}

int main(int argc, char **argv)
{
    const struct {
        const char *name;
        struct CMUnitTest test;
    } runs[] = {{"missing", cmocka_unit_test(test_missing)},
                {"old", cmocka_unit_test(test_old)},
                {"new", cmocka_unit_test(test_new)},
                {"environment", cmocka_unit_test(test_environment)}};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        if (argc == 2 && strcmp(argv[1], runs[i].name) == 0) {
            const struct CMUnitTest tests[] = {runs[i].test};
            return cmocka_run_group_tests(tests, NULL, NULL);
        }
    fprintf(stderr, "usage: test_nccl_library missing|old|new|environment\n");
    return 64;
}
