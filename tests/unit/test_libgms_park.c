/* SPDX-License-Identifier: Apache-2.0
 *
 * Parking on host memory: the deployment's preset, what the coordinator is told, all orders of park and wake that could
 * be wrong (V30), memory that is not there (as a file size limit has it), and the kv budget.
 */
#include "libgms_tags_support.h"

#include <signal.h>
#include <sys/resource.h>

static struct gms_error error;

static int setup(void **state)
{
    return libgms_setup_unverified(state);
}

static int setup_impatient(void **state)
{
    const int result = libgms_setup_unverified(state);
    struct libgms_fixture *f = *state;
    FAKE_SET(f->fake.operation_timeout_ms = 300);
    return result;
}

static gms_session *open_with(struct libgms_fixture *f, const char *preset, const struct gms_tag *preset_tags,
                              uint32_t count)
{
    pthread_mutex_lock(&f->fake.lock);
    f->fake.preset = preset;
    f->fake.preset_count = count;
    for (uint32_t i = 0; i < count; i++)
        f->fake.preset_tags[i] = (struct gms_tag_report){.tag = preset_tags[i]};
    pthread_mutex_unlock(&f->fake.lock);
    return open_engine(f, 0);
}

static uint32_t policy_of(const gms_session *session, const char *tag)
{
    struct gms_tag_report report = {0};
    for (uint32_t i = 0; gms_tag_report(session, i, &report) == GMS_OK; i++)
        if (strcmp(report.tag.name, tag) == 0)
            return report.tag.policy;
    return 0;
}

/* ------------------------------------------------------------------------------------------------- presets --- */

static void test_an_engine_without_a_word_has_the_preset(void **state)
{
    struct libgms_fixture *f = *state;
    void *address = NULL;
    gms_session *session = open_with(f, NULL, NULL, 0);
    assert_string_equal(gms_parking_preset(session), "shadow_failover");
    assert_int_equal(policy_of(session, "kv"), 0); /* it may still speak */
    assert_ok(gms_region_alloc(session, "graphs", 1, &address, &error));
    assert_int_equal(policy_of(session, "graphs"), GMS_PARK_KEEP);
    assert_int_equal(policy_of(session, "kv"), GMS_PARK_SWAP);
    gms_close(session);

    const struct gms_tag own[] = {{"scratch", GMS_PARK_RELEASE}, {"*", GMS_PARK_SAVE}, {"state", GMS_PARK_KEEP}};
    session = open_with(f, "mine", own, 3);
    assert_string_equal(gms_parking_preset(session), "mine");
    assert_ok(gms_region_alloc(session, "scratch", 1, &address, &error));
    assert_int_equal(policy_of(session, "scratch"), GMS_PARK_RELEASE);
    assert_int_equal(policy_of(session, "state"), GMS_PARK_KEEP);
    assert_int_equal(policy_of(session, "graphs"), GMS_PARK_SAVE);
    assert_int_equal(policy_of(session, "weights"), GMS_PARK_KEEP);
    assert_int_equal(policy_of(session, "kv"), GMS_PARK_SWAP);
    gms_close(session);
}

/* What the engine says its contents need, and what the deployment makes of it: engine, preset, result (0: refused). */
static void test_presets_never_lose_contents(void **state)
{
    static const struct {
        uint32_t engine, preset, result;
    } rows[] = {
        {GMS_PARK_KEEP, GMS_PARK_KEEP, GMS_PARK_KEEP},
        {GMS_PARK_KEEP, GMS_PARK_SAVE, GMS_PARK_SAVE},
        {GMS_PARK_KEEP, GMS_PARK_RELEASE, 0},
        {GMS_PARK_SAVE, GMS_PARK_KEEP, GMS_PARK_KEEP},
        {GMS_PARK_SAVE, GMS_PARK_SAVE, GMS_PARK_SAVE},
        {GMS_PARK_SAVE, GMS_PARK_RELEASE, 0},
        {GMS_PARK_RELEASE, GMS_PARK_KEEP, GMS_PARK_KEEP},
        {GMS_PARK_RELEASE, GMS_PARK_SAVE, GMS_PARK_SAVE},
        {GMS_PARK_RELEASE, GMS_PARK_RELEASE, GMS_PARK_RELEASE},
        {GMS_PARK_SWAP, GMS_PARK_KEEP, 0},
    };
    struct libgms_fixture *f = *state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct gms_tag preset = {"buffers", rows[i].preset}, own = {"buffers", rows[i].engine},
                             all = {"*", rows[i].preset};
        gms_session *session = open_with(f, "mine", &preset, 1);
        const gms_status status = gms_tags_set(session, &own, 1, &error);
        assert_int_equal(status, rows[i].result != 0 ? GMS_OK : GMS_E_REFUSED);
        assert_int_equal(policy_of(session, "buffers"), rows[i].result);
        if (status != GMS_OK)
            assert_non_null(strstr(error.text, "tag buffers: this engine says"));
        gms_close(session);
        session = open_with(f, "mine", &all, 1); /* "*" takes what it can */
        assert_ok(gms_tags_set(session, &own, 1, &error));
        assert_int_equal(policy_of(session, "buffers"), rows[i].result != 0 ? rows[i].result : rows[i].engine);
        gms_close(session);
    }
    const struct gms_tag all = {"*", GMS_PARK_SAVE}; /* the group's memory is not its business */
    gms_session *session = open_with(f, "lean", &all, 1);
    assert_ok(gms_tags_set(session, tags, TAGS, &error));
    assert_int_equal(policy_of(session, "weights"), GMS_PARK_KEEP);
    assert_int_equal(policy_of(session, "kv"), GMS_PARK_SWAP);
    assert_int_equal(policy_of(session, "graphs"), GMS_PARK_SAVE);
    gms_close(session);
}

static void test_the_list_is_compared(void **state)
{
    struct libgms_fixture *f = *state;
    uint64_t environment[2], engine[2];
    for (int i = 0; i < 2; i++) {
        const struct gms_tag all = {"*", i == 0 ? GMS_PARK_KEEP : GMS_PARK_SAVE};
        struct gms_membership member;
        gms_session *session = open_with(f, "mine", &all, 1);
        assert_ok(gms_join(session, &engine_identity, &member, &error));
        environment[i] = FAKE_GET(f->fake.seen.fields[1]);
        engine[i] = FAKE_GET(f->fake.seen.fields[5]);
        gms_close(session);
    }
    assert_int_not_equal(environment[0], environment[1]);
    assert_int_not_equal(engine[0], engine[1]);
}

/* ------------------------------------------------------------------------------------------------- reports --- */

static bool is_awake(void *context)
{
    struct libgms_fixture *f = context;
    return FAKE_GET(fake_find(&f->fake, 1)->awake);
}

static void test_the_coordinator_is_told(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = tagged_engine(f);
    (void)region(&engine, "state");
    assert_int_equal(FAKE_GET(fake_find(&f->fake, 1)->memory_reports), 0);
    assert_ok(gms_park(engine.session, &error));
    struct fake_client told = FAKE_GET(*fake_find(&f->fake, 1)); /* before PARKED was answered */
    assert_int_equal(told.memory_reports, 1);
    assert_false(told.awake);
    assert_int_equal(told.tag_count, TAGS);
    assert_string_equal(told.tags[4].tag.name, "state");
    assert_true(told.tags[4].bytes >= REGION_BYTES && told.tags[4].park_ns > 0);
    assert_int_equal(told.tags[4].wake_ns, 0);
    assert_true(told.tags[1].bytes >= KV_SLOTS * KV_BLOCK_BYTES);
    adopt_engine(f, &engine, 0, false);
    assert_ok(gms_wake(engine.session, &error));
    for (uint64_t until_ns = gms_clock_ns() + 5 * GMS_NS_PER_S; !is_awake(f) && gms_clock_ns() < until_ns;)
        (void)poll(NULL, 0, 1);
    told = FAKE_GET(*fake_find(&f->fake, 1));
    assert_true(told.awake && told.tags[4].wake_ns > 0);
    gms_close(engine.session);
}

static void test_budget_and_being_asked(void **state)
{
    struct libgms_fixture *f = *state;
    uint64_t bytes = 0;
    gms_session *alone = open_engine(f, 1);
    assert_status(gms_kv_budget(alone, &bytes, &error), GMS_E_REFUSED); /* not joined */
    gms_close(alone);
    struct engine engine = join_engine(f, 0);
    FAKE_SET(f->fake.budget = UINT64_C(100) << 30);
    assert_ok(gms_kv_budget(engine.session, &bytes, &error));
    assert_true(bytes == UINT64_C(100) << 30);
    FAKE_SET((f->fake.refuse = GMS_E_UNSUPPORTED, f->fake.refuse_times = 1));
    assert_int_equal(gms_kv_budget(engine.session, &bytes, &error), GMS_E_UNSUPPORTED);
    assert_true(bytes == UINT64_C(100) << 30);

    struct gms_promotion promotion;
    struct gms_message asked = {.type = GMS_MESSAGE_ASKED, .plain = {.incarnation = engine.member.incarnation + 1}};
    assert_ok(gms_park(engine.session, &error));
    fake_send(&f->fake, engine.member.incarnation, &asked); /* somebody else is meant */
    assert_status(gms_wait_promotion(engine.session, 50, &promotion, &error), GMS_E_TIMEOUT);
    assert_int_equal(gms_asked_to_park(engine.session), 0);
    asked.plain.incarnation = engine.member.incarnation;
    fake_send(&f->fake, engine.member.incarnation, &asked);
    for (int i = 0; i < 200 && !gms_asked_to_park(engine.session); i++)
        assert_status(gms_wait_promotion(engine.session, 20, &promotion, &error), GMS_E_TIMEOUT);
    assert_int_equal(gms_asked_to_park(engine.session), 1);
    gms_close(engine.session);
}

/* -------------------------------------------------------------------------------------------------- orders --- */

static void test_wrong_orders(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = tagged_engine(f);
    struct gms_promotion promotion;
    void *address = NULL;
    gms_pool *pool = NULL;
    unsigned char *scratch = region(&engine, "scratch"), *saved = region(&engine, "state");
    const struct gms_pool_description more = {
        .name = "more", .kind = GMS_POOL_KV, .slot_count = 1, .block_bytes = 4096};

    assert_status(gms_wake(engine.session, &error), GMS_E_REFUSED); /* wake before park */
    assert_status(gms_wait_promotion(engine.session, 0, &promotion, &error), GMS_E_REFUSED);
    const gms_token step = gms_step_begin(engine.session);
    assert_status(gms_park(engine.session, &error), GMS_E_BUSY); /* while work is in flight */
    assert_non_null(strstr(error.text, "1 steps are in flight"));
    assert_int_equal(gms_park_state(engine.session), GMS_STATE_RUNNING);
    scratch[0] = saved[0] = 0x11; /* nothing was given back */
    gms_step_complete(engine.session, step);
    assert_ok(gms_park(engine.session, &error));
    const uint64_t epoch = gms_mapping_epoch(engine.session);
    assert_ok(gms_park(engine.session, &error)); /* twice is once */
    assert_int_equal(gms_mapping_epoch(engine.session), epoch);
    assert_status(gms_region_alloc(engine.session, "graphs", 1, &address, &error), GMS_E_REFUSED); /* while parked */
    assert_status(gms_pool_attach(engine.session, &more, &pool, &error), GMS_E_REFUSED);
    assert_status(gms_wake(engine.session, &error), GMS_E_REFUSED); /* not promoted */
    assert_int_equal(gms_park_state(engine.session), GMS_STATE_PARKED);
    assert_ok(gms_region_free(engine.session, scratch, &error)); /* what is given back already: once */
    assert_status(gms_region_free(engine.session, scratch, &error), GMS_E_NOT_FOUND);
    adopt_engine(f, &engine, 0, false);
    assert_status(gms_serve(engine.session, "x", &error), GMS_E_REFUSED); /* half awake */
    assert_ok(gms_wake(engine.session, &error));
    const uint64_t awake = gms_mapping_epoch(engine.session);
    assert_ok(gms_wake(engine.session, &error)); /* twice is once */
    assert_int_equal(gms_mapping_epoch(engine.session), awake);
    assert_ok(gms_park(engine.session, &error)); /* the way is one: it was parked, and is awake */
    assert_int_equal(gms_park_state(engine.session), GMS_STATE_AWAKE);
    assert_int_equal(saved[REGION_BYTES - 1], 0x11);
    assert_ok(gms_serve(engine.session, "x", &error));
    assert_ok(gms_region_alloc(engine.session, "graphs", 1, &address, &error));
    gms_close(engine.session);
}

/* What somebody has registered: an address, and the epoch that it was valid in (V31). */
struct registration {
    const unsigned char *address;
    uint64_t epoch;
};

static bool is_void(const gms_session *session, const struct registration *it)
{
    return it->epoch != gms_mapping_epoch(session);
}

/* Parking and waking put other memory behind addresses that stay: seen by content, and told by the epoch. */
static void test_registrations_become_void(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = tagged_engine(f);
    unsigned char *scratch = region(&engine, "scratch"), *kv = gms_pool_address(engine.kv);
    kv[0] = 0x77; /* in the scratch that the pool is until it is parked */
    const struct registration before[] = {{scratch, gms_mapping_epoch(engine.session)},
                                          {kv, gms_mapping_epoch(engine.session)}};
    const uint64_t pool_epoch = gms_pool_mapping_epoch(engine.kv);
    assert_false(is_void(engine.session, &before[0]));
    assert_ok(gms_park(engine.session, &error));
    assert_true(is_void(engine.session, &before[0]) && is_void(engine.session, &before[1]));
    assert_true(gms_pool_mapping_epoch(engine.kv) > pool_epoch);
    assert_ptr_equal(gms_pool_address(engine.kv), kv);
    assert_int_equal(kv[0], 0); /* the group's memory, at the same address */
    const struct registration parked = {kv, gms_mapping_epoch(engine.session)};
    adopt_engine(f, &engine, 0, false);
    assert_false(is_void(engine.session, &parked)); /* a promotion alone changes nothing */
    assert_ok(gms_wake(engine.session, &error));
    assert_true(is_void(engine.session, &parked)); /* of all, since one region has other memory */
    scratch[0] = 1;
    gms_close(engine.session);
}

/* --------------------------------------------------------------------------------------------------- wake ---- */

/* The process's limit of a file's size, which memory of this kind is: below a region there is none to be had. */
static void limit_memory(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_waking_without_memory(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = tagged_engine(f);
    unsigned char *saved = region(&engine, "state");
    (void)region(&engine, "scratch");
    assert_ok(gms_park(engine.session, &error));
    adopt_engine(f, &engine, 0, false);
    const uint64_t epoch = gms_mapping_epoch(engine.session);
    limit_memory(REGION_BYTES / 2);
    const uint64_t since_ns = gms_clock_ns();
    const gms_status status = gms_wake(engine.session, &error);
    const uint64_t took_ns = gms_clock_ns() - since_ns;
    limit_memory(RLIM_INFINITY);
    assert_int_equal(status, GMS_E_NO_MEMORY);
    assert_true(took_ns >= 300 * GMS_NS_PER_MS); /* asked again until the operation timeout */
    assert_true(took_ns < 5 * GMS_NS_PER_S);
    assert_int_equal(gms_park_state(engine.session), GMS_STATE_PARKED);
    assert_int_equal(gms_mapping_epoch(engine.session), epoch);
    assert_status(gms_serve(engine.session, "x", &error), GMS_E_REFUSED);
    assert_ok(gms_wake(engine.session, &error)); /* all of it, later */
    assert_int_equal(saved[0], 0x11);
    assert_int_equal(saved[REGION_BYTES - 1], 0x11);
    assert_ok(gms_serve(engine.session, "x", &error));
    gms_close(engine.session);
}

static void test_waiting_is_cancelled(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = tagged_engine(f);
    (void)region(&engine, "scratch");
    assert_ok(gms_park(engine.session, &error));
    adopt_engine(f, &engine, 0, false);
    limit_memory(REGION_BYTES / 2);
    const gms_status status = wake_cancelled(engine.session, &error);
    limit_memory(RLIM_INFINITY);
    assert_int_equal(status, GMS_E_AGAIN);
    assert_non_null(strstr(error.text, "tag scratch"));
    assert_int_equal(gms_park_state(engine.session), GMS_STATE_PARKED);
    assert_ok(gms_wake(engine.session, &error));
    gms_close(engine.session);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, libgms_teardown)
    const struct CMUnitTest all[] = {
        T(test_an_engine_without_a_word_has_the_preset),
        T(test_presets_never_lose_contents),
        T(test_the_list_is_compared),
        T(test_the_coordinator_is_told),
        T(test_budget_and_being_asked),
        T(test_wrong_orders),
        T(test_registrations_become_void),
        cmocka_unit_test_setup_teardown(test_waking_without_memory, setup_impatient, libgms_teardown),
        T(test_waiting_is_cancelled),
    };
    unsetenv("GMS_TEST_MEMORY");
    signal(SIGXFSZ, SIG_IGN);
    return cmocka_run_group_tests_name("libgms_park", all, NULL, NULL);
}
