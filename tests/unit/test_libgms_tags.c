/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes of memory on park and wake, by tags (V30, V31, V32), on the fake driver. A promotion makes no driver
 * call: counted.
 */
#include "libgms_tags_support.h"

#include <dlfcn.h>

#include "fake_cuda.h"
#include "vmm/cuda_api.h"

static struct gms_error error;
static const struct fake_cuda *fake_driver;

static struct gms_tag_report report_of(const struct engine *engine, const char *tag)
{
    struct gms_tag_report report = {0};
    for (uint32_t i = 0; gms_tag_report(engine->session, i, &report) == GMS_OK; i++)
        if (strcmp(report.tag.name, tag) == 0)
            return report;
    fail_msg("no tag %s", tag);
    return report;
}

static void test_promotion_makes_no_driver_call(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = park_engine(f, 0);
    const uint64_t before = gms_driver_calls();
    assert_true(before > 0);
    adopt_engine(f, &engine, 0, false);
    assert_ok(gms_wake(engine.session, &error));
    assert_ok(gms_serve(engine.session, "unix:/somewhere", &error));
    uint64_t generation = 0;
    assert_int_equal(gms_slot_acquire(engine.kv, 3, &generation), GMS_OK);
    assert_int_equal(gms_slot_release(engine.kv, 3, generation, 0), GMS_OK);
    assert_int_equal(gms_driver_calls(), before);
    assert_true(gms_pool_on_device(engine.kv));
    gms_close(engine.session);
}

static void test_each_policy_is_kept(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = tagged_engine(f);
    unsigned char *graphs = region(&engine, "graphs"), *scratch = region(&engine, "scratch"),
                  *saved = region(&engine, "state");
    const uint64_t epoch = gms_mapping_epoch(engine.session);
    struct fake_cuda_counts counts = fake_driver->counts();
    const unsigned mapped = counts.mappings;
    assert_int_equal(gms_park_state(engine.session), GMS_STATE_RUNNING);
    assert_ok(gms_park(engine.session, &error));
    assert_int_equal(gms_park_state(engine.session), GMS_STATE_PARKED);
    counts = fake_driver->counts();
    assert_int_equal(counts.mappings, mapped - 2);
    assert_int_equal(gms_mapping_epoch(engine.session), epoch + 3); /* two given back, one swapped: V31 */
    assert_int_equal(gms_pool_mapping_epoch(engine.kv), 2);
    assert_int_equal(graphs[0], 0x11);
    adopt_engine(f, &engine, 0, false);
    assert_int_equal(gms_serve(engine.session, "x", &error), GMS_E_REFUSED); /* half awake never serves */
    assert_non_null(strstr(error.text, "gms_wake"));
    assert_ok(gms_wake(engine.session, &error));
    assert_int_equal(gms_park_state(engine.session), GMS_STATE_AWAKE);
    assert_ok(gms_wake(engine.session, &error));
    assert_true(gms_mapping_epoch(engine.session) > epoch + 3);
    assert_int_equal(fake_driver->counts().mappings, mapped);
    assert_int_equal(graphs[REGION_BYTES - 1], 0x11);
    for (size_t i = 0; i < REGION_BYTES; i++)
        if (saved[i] != 0x11)
            fail_msg("byte %zu of what was saved is %d", i, saved[i]);
    memset(scratch, 1, REGION_BYTES); /* same address, other memory */
    assert_ok(gms_serve(engine.session, "x", &error));
    struct gms_tag_report report = report_of(&engine, "state");
    assert_true(report.bytes >= REGION_BYTES && report.park_ns > 0 && report.wake_ns > 0);
    assert_true(report_of(&engine, "kv").bytes > 0 && report_of(&engine, "kv").park_ns > 0);
    assert_int_equal(report_of(&engine, "graphs").park_ns, 0);
    gms_close(engine.session);
    counts = fake_driver->counts();
    assert_int_equal(counts.mappings + counts.objects + counts.reservations, 0);
}

/* All orders in which a caller could get it wrong (V30). */
static void test_wrong_orders_are_refused(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = tagged_engine(f);
    void *address = &engine;
    unsigned char *scratch = region(&engine, "scratch"), *other = region(&engine, "scratch");
    assert_status(gms_tags_set(engine.session, tags, TAGS, &error), GMS_E_REFUSED);
    assert_status(gms_region_alloc(engine.session, "nobody", 1, &address, &error), GMS_E_NOT_FOUND);
    assert_status(gms_region_alloc(engine.session, "kv", 1, &address, &error), GMS_E_REFUSED);
    assert_status(gms_region_alloc(engine.session, "graphs", 0, &address, &error), GMS_E_INVALID);
    assert_ptr_equal(address, &engine);
    assert_status(gms_wake(engine.session, &error), GMS_E_REFUSED);
    const gms_token step = gms_step_begin(engine.session);
    assert_status(gms_park(engine.session, &error), GMS_E_BUSY);
    assert_int_equal(gms_park_state(engine.session), GMS_STATE_RUNNING);
    scratch[0] = 2; /* nothing was given back */
    gms_step_complete(engine.session, step);
    assert_ok(gms_park(engine.session, &error));
    assert_ok(gms_park(engine.session, &error));
    assert_status(gms_region_alloc(engine.session, "graphs", 1, &address, &error), GMS_E_REFUSED);
    assert_status(gms_wake(engine.session, &error), GMS_E_REFUSED); /* not promoted */
    assert_ok(gms_region_free(engine.session, scratch, &error));    /* of memory that is given back: once */
    assert_status(gms_region_free(engine.session, scratch, &error), GMS_E_NOT_FOUND);
    assert_status(gms_region_free(engine.session, other + 1, &error), GMS_E_NOT_FOUND);
    adopt_engine(f, &engine, 0, false);
    assert_ok(gms_wake(engine.session, &error));
    assert_ok(gms_serve(engine.session, "x", &error));
    assert_ok(gms_region_alloc(engine.session, "graphs", 1, &address, &error));
    assert_ok(gms_region_free(engine.session, other, &error));
    gms_close(engine.session);
}

/* No memory: asked for again; then given up, all of it, and tried again with success. */
static void test_waking_waits_for_memory(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = tagged_engine(f);
    unsigned char *saved = region(&engine, "state");
    (void)region(&engine, "scratch");
    assert_ok(gms_park(engine.session, &error));
    adopt_engine(f, &engine, 0, false);
    const struct fake_cuda_counts parked = fake_driver->counts();
    fake_driver->fail_next("cuMemCreate", 1, 1000, GMS_CU_OUT_OF_MEMORY); /* one comes back, the other does not */
    assert_status(gms_wake(engine.session, &error), GMS_E_NO_MEMORY);
    assert_int_equal(gms_park_state(engine.session), GMS_STATE_PARKED);
    struct fake_cuda_counts now = fake_driver->counts();
    assert_memory_equal(&parked, &now, sizeof now); /* rolled back whole */
    assert_int_equal(gms_serve(engine.session, "x", NULL), GMS_E_REFUSED);
    fake_driver->fail_next("cuMemCreate", 0, 2, GMS_CU_OUT_OF_MEMORY); /* there after two tries */
    assert_ok(gms_wake(engine.session, &error));
    assert_int_equal(saved[REGION_BYTES - 1], 0x11);
    assert_ok(gms_serve(engine.session, "x", &error));
    gms_close(engine.session);
}

static void test_waiting_is_cancelled(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = tagged_engine(f);
    f->fake.operation_timeout_ms = 5000;
    (void)region(&engine, "scratch");
    assert_ok(gms_park(engine.session, &error));
    adopt_engine(f, &engine, 0, false);
    fake_driver->fail_next("cuMemCreate", 0, 1000, GMS_CU_OUT_OF_MEMORY);
    assert_status(wake_cancelled(engine.session, &error), GMS_E_AGAIN);
    fake_driver->fail_next(NULL, 0, 0, 0);
    assert_ok(gms_wake(engine.session, &error));
    gms_close(engine.session);
}

/* A fault of the device while parking or waking is the end of this engine, and is said so for ever (V32). */
static void test_a_lost_device_is_the_end(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = tagged_engine(f);
    (void)region(&engine, "scratch");
    fake_driver->fail_next("cuCtxSynchronize", 0, 1, GMS_CU_ILLEGAL_ADDRESS);
    assert_status(gms_park(engine.session, &error), GMS_E_STICKY);
    assert_non_null(strstr(error.text, "ILLEGAL_ADDRESS"));
    assert_int_equal(gms_park_state(engine.session), GMS_STATE_FAILED);
    fake_driver->heal();
    assert_status(gms_park(engine.session, &error), GMS_E_STICKY);
    assert_ok(gms_report_sticky_error(engine.session, GMS_CU_ILLEGAL_ADDRESS, "illegal address", &error));
    assert_int_equal(FAKE_GET(f->fake.sticky_code), GMS_CU_ILLEGAL_ADDRESS);
    gms_close(engine.session);

    struct engine next = tagged_engine(f);
    (void)region(&next, "scratch");
    assert_ok(gms_park(next.session, &error));
    adopt_engine(f, &next, 0, false);
    fake_driver->fail_next("cuMemMap", 0, 1, GMS_CU_LAUNCH_FAILED);
    assert_status(gms_wake(next.session, &error), GMS_E_STICKY);
    assert_int_equal(gms_park_state(next.session), GMS_STATE_FAILED);
    fake_driver->heal();
    assert_status(gms_wake(next.session, &error), GMS_E_STICKY);
    assert_int_equal(gms_serve(next.session, "x", NULL), GMS_E_REFUSED);
    gms_close(next.session);
}

/* Parking that cannot give something back, or cannot save it, leaves a running engine. */
static void test_failed_parking_goes_on_running(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = tagged_engine(f);
    unsigned char *saved = region(&engine, "state"), *scratch = region(&engine, "scratch");
    fake_driver->fail_next("cuMemcpyDtoH_v2", 0, 1, GMS_CU_INVALID_VALUE);
    assert_status(gms_park(engine.session, &error), GMS_E_INVALID);
    assert_int_equal(gms_park_state(engine.session), GMS_STATE_RUNNING);
    saved[0] = scratch[0] = 7;
    assert_ok(gms_park(engine.session, &error));
    adopt_engine(f, &engine, 0, false);
    assert_ok(gms_wake(engine.session, &error));
    assert_int_equal(saved[0], 7);
    gms_close(engine.session);
}

/* A step is complete when the stream that wrote has come past it, and no other: here one stream stands still. */
static void test_seals_wait_for_the_stream_that_wrote(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0);
    void *const writing = (void *)0x51, *const other = (void *)0x52;
    struct gms_block block = {.hash = {1}, .token_count = 16, .part_count = 1};
    uint64_t generation = 0, released = 0;
    assert_int_equal(gms_slot_acquire(engine.kv, 2, &generation), GMS_OK);
    assert_int_equal(gms_slot_acquire(engine.kv, 3, &released), GMS_OK);
    block.parts[0] = (struct gms_part){gms_pool_index(engine.kv), 2, generation};
    const gms_token first = gms_step_begin(engine.session), second = gms_step_begin(engine.session);
    fake_driver->hold(writing, true);
    assert_ok(gms_step_submitted(engine.session, first, writing, &error));
    assert_ok(gms_step_submitted(engine.session, second, other, &error)); /* done already, but not before the first */
    assert_status(gms_step_submitted(engine.session, first, other, &error), GMS_E_INVALID);
    assert_status(gms_step_submitted(engine.session, second + 1, other, &error), GMS_E_INVALID);
    assert_int_equal(gms_slot_release(engine.kv, 3, released, first), GMS_OK);
    assert_status(gms_step_poll(engine.session, &error), GMS_E_NOT_DONE);
    assert_int_equal(gms_block_seal(engine.session, &block, first), GMS_E_NOT_DONE);
    assert_int_equal(gms_block_seal(engine.session, &block, second), GMS_E_NOT_DONE);
    assert_int_equal(gms_slot_state(engine.kv, 3, NULL), GMS_SLOT_RELEASED);
    fake_driver->hold(writing, false);
    assert_ok(gms_step_poll(engine.session, &error));
    assert_int_equal(gms_block_seal(engine.session, &block, first), GMS_OK);
    assert_int_equal(gms_slot_state(engine.kv, 3, NULL), GMS_SLOT_IDLE);
    /* Marks are used again; too many at once are refused. */
    fake_driver->hold(writing, true);
    for (int i = 0; i < 256; i++)
        assert_ok(gms_step_submitted(engine.session, gms_step_begin(engine.session), writing, &error));
    assert_status(gms_step_submitted(engine.session, gms_step_begin(engine.session), writing, &error), GMS_E_BUSY);
    fake_driver->hold(writing, false);
    assert_ok(gms_step_poll(engine.session, &error));
    assert_int_equal(fake_driver->counts().events, 256);
    /* A device that is lost never comes past anything. */
    assert_ok(gms_step_submitted(engine.session, gms_step_begin(engine.session), writing, &error));
    fake_driver->fail_next("cuEventQuery", 0, 1, GMS_CU_ILLEGAL_ADDRESS);
    assert_status(gms_step_poll(engine.session, &error), GMS_E_STICKY);
    fake_driver->heal();
    assert_ok(gms_step_poll(engine.session, &error));
    gms_close(engine.session);
    assert_int_equal(fake_driver->counts().events, 0);
}

static void *free_elsewhere(void *address)
{
    gms_torch_free(address, REGION_BYTES, 0, NULL);
    return NULL;
}

/* What PyTorch's caching allocator does with the pair. */
static void test_segments_for_pytorch(void **state)
{
    struct libgms_fixture *f = *state;
    const unsigned objects = fake_driver->counts().objects; /* what a lost device has left behind in another test */
    struct engine engine = tagged_engine(f);
    pthread_t thread;
    assert_null(gms_torch_alloc(REGION_BYTES, 0, NULL)); /* no scope */
    assert_status(gms_torch_scope(engine.session, "", &error), GMS_E_INVALID);
    assert_ok(gms_torch_scope(engine.session, "nobody", &error));
    assert_null(gms_torch_alloc(REGION_BYTES, 0, NULL));
    assert_ok(gms_torch_scope(engine.session, "scratch", &error));
    assert_null(gms_torch_alloc(REGION_BYTES, 1, NULL)); /* another GPU */
    unsigned char *one = gms_torch_alloc(REGION_BYTES, 0, NULL), *two = gms_torch_alloc(REGION_BYTES, 0, NULL);
    assert_non_null(one);
    assert_non_null(two);
    memset(one, 1, REGION_BYTES);
    fake_driver->fail_next("cuMemCreate", 0, 1, GMS_CU_OUT_OF_MEMORY);
    assert_null(gms_torch_alloc(REGION_BYTES, 0, NULL)); /* PyTorch frees and asks again */
    assert_ok(gms_torch_scope(NULL, NULL, &error));
    assert_null(gms_torch_alloc(REGION_BYTES, 0, NULL));
    assert_int_equal(pthread_create(&thread, NULL, free_elsewhere, two), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    gms_torch_free(two, REGION_BYTES, 0, NULL); /* twice is nothing */
    gms_torch_free(&error, 1, 0, NULL);         /* nor is what was never given */
    const unsigned before = fake_driver->counts().mappings;
    assert_ok(gms_park(engine.session, &error));
    assert_int_equal(fake_driver->counts().mappings, before - 1);
    gms_torch_free(one, REGION_BYTES, 0, NULL); /* while parked */
    gms_close(engine.session);
    assert_int_equal(fake_driver->counts().objects, objects);
}

static void test_lists_of_tags_are_checked(void **state)
{
    struct libgms_fixture *f = *state;
    gms_session *session = open_engine(f, 0);
    static const struct gms_tag twice[] = {{"a", GMS_PARK_KEEP}, {"a", GMS_PARK_SAVE}}, nameless[] = {{"", 1}},
                                policy[] = {{"a", 5}}, none[] = {{"a", 0}};
    static const struct gms_tag many[GMS_MAX_TAGS + 1];
    assert_status(gms_tags_set(session, twice, 2, &error), GMS_E_INVALID);
    assert_status(gms_tags_set(session, nameless, 1, &error), GMS_E_INVALID);
    assert_status(gms_tags_set(session, policy, 1, &error), GMS_E_INVALID);
    assert_status(gms_tags_set(session, none, 1, &error), GMS_E_INVALID);
    assert_status(gms_tags_set(session, tags, 0, &error), GMS_E_INVALID);
    assert_status(gms_tags_set(session, many, GMS_MAX_TAGS + 1, &error), GMS_E_INVALID);
    gms_close(session);
    /* Another list is another digest in what the ranks compare on joining. */
    struct engine preset = join_engine(f, 0);
    const uint64_t with_preset = FAKE_GET(f->fake.seen.fields[5]);
    gms_close(preset.session);
    struct engine own = {.session = open_engine(f, 1)};
    assert_ok(gms_tags_set(own.session, tags, TAGS, &error));
    assert_ok(gms_join(own.session, &engine_identity, &own.member, &error));
    assert_true(FAKE_GET(f->fake.seen.fields[5]) != with_preset);
    gms_close(own.session);
}

/* With several ranks, NCCL must not keep what it registered for captured graphs (V31). */
static void test_kept_registrations_are_refused(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_membership member;
    struct gms_identity identity = engine_identity;
    identity.world_size = 2;
    FAKE_SET(f->fake.world_size = 2);
    gms_session *session = open_engine(f, 0);
    unsetenv("NCCL_GRAPH_REGISTER");
    assert_status(gms_join(session, &identity, &member, &error), GMS_E_REFUSED);
    assert_non_null(strstr(error.text, "NCCL_GRAPH_REGISTER is not set"));
    setenv("NCCL_GRAPH_REGISTER", "1", 1);
    assert_status(gms_join(session, &identity, &member, &error), GMS_E_REFUSED);
    setenv("GMS_REGISTERS_AGAIN", "1", 1);
    assert_ok(gms_join(session, &identity, &member, &error));
    unsetenv("GMS_REGISTERS_AGAIN");
    gms_close(session);
    setenv("NCCL_GRAPH_REGISTER", "0", 1);
    session = open_engine(f, 1);
    assert_ok(gms_join(session, &identity, &member, &error));
    unsetenv("NCCL_GRAPH_REGISTER");
    gms_close(session);
}

/* A rank that does not see its coordinator's GPU is told at once, by name (V42). Last: a process names one device. */
static void test_another_gpu_is_refused(void **state)
{
    struct libgms_fixture *f = *state;
    gms_session *session = NULL;
    const struct gms_open_options options = {.run_dir = f->dir, .rank = 0, .engine_id = 0, .launch = "launch-1"};
    assert_int_not_equal(gms_open(&options, &session, &error), GMS_OK);
    assert_non_null(strstr(error.text, "pools of rank 0 are on GPU-55555555"));
    assert_non_null(strstr(error.text, "CUDA_VISIBLE_DEVICES"));
    assert_null(session);
}

static int setup_other_gpu(void **state)
{
    struct libgms_fixture *f = calloc(1, sizeof *f);
    if (unit_make_dir((void **)&f->dir) != 0)
        return -1;
    snprintf(f->fake.run_dir, sizeof f->fake.run_dir, "%s", f->dir);
    f->fake.world_size = 1;
    f->fake.operation_timeout_ms = 5000;
    f->fake.on_device = true;
    memset(f->fake.device.bytes, 0x55, sizeof f->fake.device.bytes);
    fake_start(&f->fake);
    *state = f;
    return 0;
}

/* Waits for memory are as long as the operation timeout. */
static int setup_impatient(void **state)
{
    const int made = libgms_setup(state);
    struct libgms_fixture *f = *state;
    if (made == 0)
        f->fake.operation_timeout_ms = 1000;
    return made;
}

int main(void)
{
#define T(name)           cmocka_unit_test_setup_teardown(name, libgms_setup_unverified, libgms_teardown)
#define T_WITH(name, own) cmocka_unit_test_setup_teardown(name, own, libgms_teardown)
    const struct CMUnitTest tests[] = {
        T(test_promotion_makes_no_driver_call), T(test_each_policy_is_kept),
        T(test_wrong_orders_are_refused),       T_WITH(test_waking_waits_for_memory, setup_impatient),
        T(test_waiting_is_cancelled),           T(test_a_lost_device_is_the_end),
        T(test_failed_parking_goes_on_running), T(test_seals_wait_for_the_stream_that_wrote),
        T(test_segments_for_pytorch),           T(test_lists_of_tags_are_checked),
        T(test_kept_registrations_are_refused), T_WITH(test_another_gpu_is_refused, setup_other_gpu),
    };
    setenv("GMS_TEST_MEMORY", "cuda", 1);
    fake_driver = fake_cuda_get();
    if (fake_driver == NULL) {
        fprintf(stderr, "skipped: not the fake driver (LD_LIBRARY_PATH)\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
