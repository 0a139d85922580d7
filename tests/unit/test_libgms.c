/* SPDX-License-Identifier: Apache-2.0
 *
 * libgms from open to close against a coordinator that the test plays: what is said, what comes back, what is refused.
 */
#include "libgms_support.h"

#include <sys/stat.h>

/* ---------------------------------------------------------------------------------------------------- open --- */

static void test_version_and_names(void **state)
{
    (void)state;
    assert_true(strlen(gms_version()) >= 5);
    assert_int_equal(gms_protocol_version(), GMS_WIRE_VERSION);
    assert_string_equal(gms_status_name(GMS_E_CONDEMNED), "GMS_E_CONDEMNED");
    gms_close(NULL);
}

static void test_open_says_what_is_missing(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    gms_session *session = NULL;
    unsetenv("GMS_RUN_DIR");
    unsetenv("GMS_RANK");
    unsetenv("ENGINE_ID");
    unsetenv("GMS_LAUNCH_ID");
    assert_status(gms_open(NULL, &session, &error), GMS_E_INVALID);
    assert_text_has("GMS_RUN_DIR");
    setenv("GMS_RUN_DIR", f->dir, 1);
    assert_status(gms_open(NULL, &session, &error), GMS_E_INVALID);
    assert_text_has("GMS_RANK");
    static const char *const wrong[] = {"", "x", "-2", "1024", "0x1", " 1", "1 ", "99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        setenv("GMS_RANK", wrong[i], 1);
        assert_status(gms_open(NULL, &session, &error), GMS_E_INVALID);
        assert_text_has("GMS_RANK");
    }
    setenv("GMS_RANK", "0", 1);
    assert_status(gms_open(NULL, &session, &error), GMS_E_INVALID);
    assert_text_has("ENGINE_ID");
    setenv("ENGINE_ID", "8", 1);
    assert_status(gms_open(NULL, &session, &error), GMS_E_INVALID);
    assert_text_has("ENGINE_ID");
    setenv("ENGINE_ID", "2", 1);
    assert_status(gms_open(NULL, &session, &error), GMS_E_INVALID);
    assert_text_has("GMS_LAUNCH_ID");
    setenv("GMS_LAUNCH_ID", "start-7", 1);
    assert_null(session);
    assert_ok(gms_open(NULL, &session, &error));
    bool high = false; /* the socket: its end is how death is heard */
    for (int fd = 200; fd < 1200; fd++) {
        struct stat kind;
        high = high || (fstat(fd, &kind) == 0 && S_ISSOCK(kind.st_mode));
    }
    assert_true(high);
    assert_true(fcntl(gms_event_fd(session), F_GETFD) & FD_CLOEXEC);
    gms_close(session);
    unsetenv("GMS_RANK");
    unsetenv("GMS_RUN_DIR");
    unsetenv("ENGINE_ID");
    unsetenv("GMS_LAUNCH_ID");
}

static void test_open_without_a_coordinator(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    gms_session *session = NULL;
    struct gms_open_options options = {.run_dir = f->dir, .rank = 3, .engine_id = 0, .launch = "l", .timeout_ms = 200};
    const unsigned before = unit_open_fds();
    assert_status(gms_open(&options, &session, &error), GMS_E_DISCONNECTED);
    assert_text_has("c3");
    char path[200];
    snprintf(path, sizeof path, "%s/%0*d", f->dir, 120, 0);
    options.run_dir = path;
    assert_status(gms_open(&options, &session, &error), GMS_E_INVALID);
    assert_int_equal(unit_open_fds(), before);
    assert_null(session);
}

/* A socket that accepts and says nothing, or hangs up. */
static void test_open_is_bounded(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    gms_session *session = NULL;
    char path[GMS_NAME_BYTES * 3];
    int listener = -1;
    snprintf(path, sizeof path, "%s/c1", f->dir);
    assert_ok(gms_channel_listen(path, &listener, &error));
    const struct gms_open_options options = {
        .run_dir = f->dir, .rank = 1, .engine_id = 0, .launch = "l", .timeout_ms = 100};
    const unsigned before = unit_open_fds();
    assert_status(gms_open(&options, &session, &error), GMS_E_TIMEOUT);
    assert_int_equal(unit_open_fds(), before);
    close(listener);
}

/* ---------------------------------------------------------------------------------------------------- join --- */

static void test_join_tells_who_we_are(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine engine = join_engine(f, 2);
    assert_int_equal(engine.member.world, 1);
    assert_int_equal(engine.member.incarnation, 1);
    assert_int_equal(engine.member.epoch, 1);
    assert_int_equal(engine.member.rank, 0);
    assert_int_equal(engine.member.world_size, 1);
    assert_int_equal(engine.member.engine_id, 2);
    assert_int_equal(engine.member.kv_verify_full, 1);
    assert_true(FAKE_GET(f->fake.seen.launch) == XXH3_64bits("launch-1", 8));
    assert_int_equal(FAKE_GET(f->fake.seen.sequence), 0);
    assert_int_equal(FAKE_GET(f->fake.seen.fields[2]), GMS_WIRE_VERSION);
    assert_int_equal(FAKE_GET(f->fake.seen.fields[3]), 1);
    assert_int_equal(FAKE_GET(f->fake.seen.fields[4]), 42);
    assert_status(gms_join(engine.session, &engine_identity, &engine.member, &error), GMS_E_EXISTS);
    gms_close(engine.session);
    fake_await_gone(&f->fake, 1);
    assert_true(FAKE_GET(f->fake.clients[0].left));
}

/* Joins with this identity and returns what the coordinator was told. */
static struct fake_seen joined_as(struct libgms_fixture *f, const struct gms_identity *identity)
{
    struct gms_error error;
    struct gms_membership member;
    gms_session *session = open_engine(f, 0);
    assert_ok(gms_join(session, identity, &member, &error));
    gms_close(session);
    fake_await_gone(&f->fake, member.incarnation);
    const struct fake_seen seen = FAKE_GET(f->fake.seen);
    fake_forget_clients(&f->fake); /* room for the next */
    return seen;
}

/* Every difference shows in the field that names it, and in the digest that decides whether KV can be read. */
static void test_each_difference_has_its_field(void **state)
{
    struct libgms_fixture *f = *state;
    const struct fake_seen normal = joined_as(f, &engine_identity);
    const struct fake_seen again = joined_as(f, &engine_identity);
    assert_memory_equal(normal.fields, again.fields, sizeof normal.fields);
    assert_true(normal.local_digest == again.local_digest);
    struct {
        struct gms_identity identity;
        unsigned fields; /* bit i: field i differs */
    } cases[8];
    for (size_t i = 0; i < 8; i++)
        cases[i].identity = engine_identity;
    cases[0].identity.model = "toy@2", cases[0].fields = 1 << 0;
    cases[1].identity.dtype = "bf16", cases[1].fields = 1 << 0;
    cases[2].identity.layout = "flat", cases[2].fields = 1 << 0;
    cases[3].identity.hash_algorithm = "sha256", cases[3].fields = 1 << 0;
    cases[4].identity.engine_name = "other", cases[4].fields = 1 << 0 | 1 << 5;
    cases[5].identity.engine_version = "1.1", cases[5].fields = 1 << 5;
    cases[6].identity.hash_seed = 43, cases[6].fields = 1 << 4; /* V28: a loud refusal that names the seed */
    cases[7].identity.block_tokens = 32, cases[7].fields = 1 << 0;
    for (size_t i = 0; i < 8; i++) {
        const struct fake_seen seen = joined_as(f, &cases[i].identity);
        for (unsigned field = 0; field < GMS_WIRE_FIELDS; field++)
            assert_int_equal(seen.fields[field] != normal.fields[field], cases[i].fields >> field & 1);
        assert_true(seen.local_digest != normal.local_digest);
    }
}

static void test_environment_is_compared(void **state)
{
    struct libgms_fixture *f = *state;
    const uint64_t bare = joined_as(f, &engine_identity).fields[1];
    setenv("GMS_RANK", "0", 1); /* differs between ranks by nature */
    setenv("UNRELATED", "1", 1);
    assert_true(joined_as(f, &engine_identity).fields[1] == bare);
    setenv("FAILOVER_LOCK_PATH", "", 1);
    const uint64_t empty = joined_as(f, &engine_identity).fields[1];
    setenv("FAILOVER_LOCK_PATH", "/a", 1);
    const uint64_t path = joined_as(f, &engine_identity).fields[1];
    assert_true(bare != empty && empty != path && bare != path); /* unset and empty differ */
    unsetenv("FAILOVER_LOCK_PATH");
    setenv("GMS_B", "2", 1);
    setenv("GMS_A", "1", 1);
    const uint64_t one = joined_as(f, &engine_identity).fields[1];
    unsetenv("GMS_B");
    setenv("GMS_B", "2", 1); /* another order in the environment */
    assert_true(joined_as(f, &engine_identity).fields[1] == one && one != bare);
    setenv("ENGINE_ID", "0", 1);
    assert_true(joined_as(f, &engine_identity).fields[1] != one);
    unsetenv("ENGINE_ID");
    unsetenv("GMS_A");
    unsetenv("GMS_B");
    unsetenv("GMS_RANK");
    unsetenv("UNRELATED");
    assert_true(joined_as(f, &engine_identity).fields[1] == bare);
}

static void test_join_refusals(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_membership member;
    gms_session *session = open_engine(f, 0);
    gms_pool *pool = NULL;
    assert_status(gms_pool_attach(session, &kv_description, &pool, &error), GMS_E_REFUSED);
    assert_status(gms_park(session, &error), GMS_E_REFUSED);
    struct gms_identity wrong = engine_identity;
    wrong.model = NULL;
    assert_status(gms_join(session, &wrong, &member, &error), GMS_E_INVALID);
    assert_text_has("model");
    wrong = engine_identity;
    wrong.block_tokens = 0;
    assert_status(gms_join(session, &wrong, &member, &error), GMS_E_INVALID);
    assert_int_equal(FAKE_GET(f->fake.proposals), 0);
    FAKE_SET(f->fake.refuse = GMS_E_MISMATCH);
    FAKE_SET(f->fake.refuse_times = 1);
    memset(&error, 0, sizeof error);
    assert_int_equal(gms_join(session, &engine_identity, &member, &error), GMS_E_MISMATCH);
    assert_int_equal(error.rank, 0);
    assert_text_has("because the test says so");
    wrong = engine_identity;
    wrong.world_size = 2; /* the deployment has 1 */
    assert_status(gms_join(session, &wrong, &member, &error), GMS_E_MISMATCH);
    assert_text_has("2 ranks");
    gms_close(session);
}

/* ------------------------------------------------------------------------------------------------ weights ---- */

/* In a child: 0 when a write to `address` is answered by SIGSEGV. */
static bool write_is_fatal(void *address)
{
    const pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile char *)address = 1;
        _exit(0);
    }
    const int status = unit_wait(pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static void test_weights_are_published_once_and_then_read_only(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    gms_pool *pool = NULL;
    uint64_t offset = 0, bytes = 0;
    struct engine first = join_engine(f, 0);
    assert_ok(gms_pool_attach(first.session, &weights_description, &pool, &error));
    assert_int_equal(gms_pool_must_publish(pool), 1);
    assert_int_equal(gms_pool_bytes(pool), WEIGHT_BYTES);
    assert_int_equal(gms_pool_slot_count(pool), 0);
    char *address = gms_pool_address(pool);
    memset(address, 'w', WEIGHT_BYTES);
    assert_false(write_is_fatal(address));
    assert_status(gms_manifest_find(pool, "a", &offset, &bytes, &error), GMS_E_REFUSED);

    assert_ok(gms_manifest_add(pool, "b", 4000, 6000, &error));
    assert_status(gms_manifest_add(pool, "c", 9999, 2, &error), GMS_E_INVALID);
    assert_status(gms_manifest_add(pool, "c", UINT64_MAX, 2, &error), GMS_E_INVALID);
    assert_status(gms_manifest_add(pool, "c", 3999, 2, &error), GMS_E_INVALID);
    assert_text_has("overlap");
    assert_status(gms_manifest_add(pool, "b", 0, 1, &error), GMS_E_INVALID);
    assert_status(gms_manifest_add(pool, "", 0, 1, &error), GMS_E_INVALID);
    assert_status(gms_manifest_add(pool, "c", 0, 0, &error), GMS_E_INVALID);
    assert_status(gms_park(first.session, &error), GMS_E_REFUSED); /* not before it is published */
    assert_status(gms_publish(pool, &error), GMS_E_REFUSED);
    assert_text_has("4000");
    assert_ok(gms_manifest_add(pool, "a", 0, 3000, &error));
    assert_status(gms_publish(pool, &error), GMS_E_REFUSED);
    assert_text_has("1000 bytes at 3000");
    assert_text_has("behind a");
    address[0] = 'W'; /* still ours to write */
    assert_ok(gms_manifest_add(pool, "z", 3000, 1000, &error));
    assert_ok(gms_publish(pool, &error));
    assert_int_equal(gms_pool_must_publish(pool), 0);
    assert_true(gms_pool_address(pool) == address);
    assert_int_equal(address[0], 'W');
    assert_true(write_is_fatal(address));
    assert_true(write_is_fatal(address + WEIGHT_BYTES - 1));
    assert_status(gms_publish(pool, &error), GMS_E_REFUSED);
    assert_status(gms_manifest_add(pool, "late", 0, 1, &error), GMS_E_REFUSED);

    struct engine second = join_engine(f, 1);
    gms_pool *shared = NULL;
    assert_ok(gms_pool_attach(second.session, &weights_description, &shared, &error));
    assert_int_equal(gms_pool_must_publish(shared), 0);
    assert_memory_equal(gms_pool_address(shared), address, WEIGHT_BYTES);
    assert_true(write_is_fatal(gms_pool_address(shared)));
    assert_ok(gms_manifest_find(shared, "z", &offset, &bytes, &error));
    assert_int_equal(offset, 3000);
    assert_int_equal(bytes, 1000);
    assert_status(gms_manifest_find(shared, "nothing", &offset, &bytes, &error), GMS_E_NOT_FOUND);
    gms_close(first.session);
    assert_int_equal(*(char *)gms_pool_address(shared), 'W'); /* memory outlives its maker */
    gms_close(second.session);
}

static void test_failed_publish_leaves_it_writable(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    gms_pool *pool = NULL;
    struct engine engine = join_engine(f, 0);
    assert_ok(gms_pool_attach(engine.session, &weights_description, &pool, &error));
    assert_ok(gms_manifest_add(pool, "all", 0, WEIGHT_BYTES, &error));
    char *address = gms_pool_address(pool);
    FAKE_SET(f->fake.refuse = GMS_E_EXPIRED);
    FAKE_SET(f->fake.refuse_times = 1);
    assert_int_equal(gms_publish(pool, &error), GMS_E_EXPIRED);
    assert_int_equal(gms_pool_must_publish(pool), 1);
    address[5] = 'x';
    assert_ok(gms_publish(pool, &error));
    assert_int_equal(address[5], 'x');
    assert_true(write_is_fatal(address));
    gms_close(engine.session);
}

static void test_attach_waits_for_the_publisher(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    gms_pool *pool = NULL, *other = NULL;
    struct engine first = join_engine(f, 0), second = join_engine(f, 1);
    assert_ok(gms_pool_attach(first.session, &weights_description, &pool, &error));
    FAKE_SET(f->fake.refuse = GMS_E_BUSY);
    FAKE_SET(f->fake.refuse_times = 3);
    assert_ok(gms_manifest_add(pool, "all", 0, WEIGHT_BYTES, &error));
    FAKE_SET(f->fake.refuse_times = 0);
    assert_ok(gms_publish(pool, &error));
    const uint32_t before = FAKE_GET(f->fake.proposals);
    FAKE_SET(f->fake.refuse_times = 3);
    assert_ok(gms_pool_attach(second.session, &weights_description, &other, &error));
    assert_int_equal(FAKE_GET(f->fake.proposals) - before, 4);
    gms_close(first.session);
    gms_close(second.session);
}

static void test_attach_gives_up_after_the_operation_timeout(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    gms_pool *pool = NULL;
    FAKE_SET(f->fake.operation_timeout_ms = 150);
    FAKE_SET(f->fake.refuse = GMS_E_BUSY);
    struct engine engine = join_engine(f, 0);
    FAKE_SET(f->fake.refuse_times = UINT32_MAX);
    const uint32_t before = FAKE_GET(f->fake.proposals);
    assert_status(gms_pool_attach(engine.session, &weights_description, &pool, &error), GMS_E_AGAIN);
    assert_int_equal(FAKE_GET(f->fake.proposals) - before, 4); /* counted, so that all ranks stop at the same number */
    assert_int_equal(gms_pool_attach(engine.session, &kv_description, &pool, &error), GMS_E_BUSY); /* kv: at once */
    gms_close(engine.session);
}

/* ------------------------------------------------------------------------------------------- attach, park ---- */

static void test_attach_refusals(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    gms_pool *pool = NULL;
    struct engine engine = join_engine(f, 0);
    const uint32_t before = FAKE_GET(f->fake.proposals);
    struct gms_pool_description wrong[9];
    for (size_t i = 0; i < 9; i++)
        wrong[i] = i < 6 ? kv_description : weights_description;
    wrong[0].name[0] = '\0';
    memset(wrong[1].name, 'n', GMS_NAME_BYTES);
    wrong[2].kind = 3;
    wrong[3].slot_count = 0;
    wrong[4].bytes = 1;
    wrong[5].block_bytes = UINT64_MAX / 2;
    wrong[6].bytes = 0;
    wrong[7].slot_count = 1;
    wrong[8].block_bytes = 1;
    for (size_t i = 0; i < 9; i++)
        assert_status(gms_pool_attach(engine.session, &wrong[i], &pool, &error), GMS_E_INVALID);
    assert_int_equal(FAKE_GET(f->fake.proposals), before);
    const unsigned fds = unit_open_fds();
    FAKE_SET(f->fake.refuse = GMS_E_NO_CAPACITY);
    FAKE_SET(f->fake.refuse_times = 1);
    assert_int_equal(gms_pool_attach(engine.session, &kv_description, &pool, &error), GMS_E_NO_CAPACITY);
    assert_int_equal(unit_open_fds(), fds);
    assert_null(pool);
    assert_ok(gms_pool_attach(engine.session, &kv_description, &pool, &error));
    struct gms_pool_description other = kv_description;
    const uint32_t proposals = FAKE_GET(f->fake.proposals);
    const unsigned attached = unit_open_fds();
    gms_pool *again = NULL;
    assert_ok(gms_pool_attach(engine.session, &kv_description, &again, &error)); /* asked for again: the same one */
    assert_ptr_equal(again, pool);
    other.slot_count++;
    assert_status(gms_pool_attach(engine.session, &other, &again, &error), GMS_E_EXISTS);
    assert_int_equal(FAKE_GET(f->fake.proposals), proposals);
    assert_int_equal(unit_open_fds(), attached);
    gms_close(engine.session);
}

static void test_park_puts_group_memory_under_the_same_address(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine engine = join_engine(f, 0);
    struct gms_promotion promotion;
    struct gms_adoption adoption;
    assert_ok(gms_pool_attach(engine.session, &kv_description, &engine.kv, &error));
    char *address = gms_pool_address(engine.kv);
    assert_int_equal(gms_pool_bytes(engine.kv), KV_SLOTS * KV_BLOCK_BYTES);
    assert_int_equal(gms_pool_slot_count(engine.kv), KV_SLOTS);
    memset(address, 7, gms_pool_bytes(engine.kv)); /* warm-up on scratch */
    const uint64_t epoch = gms_pool_mapping_epoch(engine.kv);
    assert_status(gms_wait_promotion(engine.session, 0, &promotion, &error), GMS_E_REFUSED);
    const gms_token token = gms_step_begin(engine.session);
    assert_status(gms_park(engine.session, &error), GMS_E_BUSY);
    gms_step_complete(engine.session, token);
    assert_int_equal(gms_pool_mapping_epoch(engine.kv), epoch);
    assert_ok(gms_park(engine.session, &error));
    assert_int_equal(gms_pool_mapping_epoch(engine.kv), epoch + 1);
    assert_true(gms_pool_address(engine.kv) == address);
    assert_int_equal(address[0], 0); /* scratch contents are lost */
    assert_ok(gms_park(engine.session, &error));
    assert_int_equal(gms_pool_mapping_epoch(engine.kv), epoch + 1); /* twice does nothing */
    assert_true(FAKE_GET(fake_find(&f->fake, engine.member.incarnation)->parked));
    gms_pool *pool = NULL;
    assert_status(gms_pool_attach(engine.session, &state_description, &pool, &error), GMS_E_REFUSED);
    assert_status(gms_wait_promotion(engine.session, 0, &promotion, &error), GMS_E_TIMEOUT);
    assert_status(gms_adopt(engine.session, &adoption, &error), GMS_E_REFUSED);
    assert_status(gms_wake(engine.session, &error), GMS_E_REFUSED);
    assert_status(gms_serve(engine.session, NULL, &error), GMS_E_REFUSED);
    gms_close(engine.session);
}

static void test_whole_life(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    FAKE_SET(f->fake.chatter = true); /* what is said in between is neither lost nor taken for an answer */
    const unsigned before = unit_open_fds();
    struct engine engine = serving_engine(f, 0);
    assert_int_equal(engine.promotion.epoch, 2);
    assert_int_equal(engine.promotion.source_incarnation, 0);
    assert_int_equal(engine.adoption.idle, KV_SLOTS + STATE_SLOTS);
    assert_int_equal(engine.adoption.adopted, 0);
    assert_int_equal(FAKE_GET(strcmp(f->fake.endpoint, "unix:/somewhere")), 0);
    assert_ok(gms_wake(engine.session, &error)); /* twice is OK */
    assert_ok(gms_serve(engine.session, "unix:/somewhere", &error));
    assert_ok(gms_wait_promotion(engine.session, 0, &engine.promotion, &error)); /* an event loop may ask any time */
    assert_status(gms_adopt(engine.session, &engine.adoption, &error), GMS_E_REFUSED);
    gms_progress(engine.session);
    gms_progress(engine.session);
    gms_busy(engine.session, 1000);
    const struct gms_directory *directory =
        &f->fake.clients[0].directories[gms_pool_index(engine.state)]; /* the lowest index: the fake counts down */
    assert_int_equal(gms_directory_progress_count(directory), 2);
    gms_work(engine.session, 5);
    const gms_token token = gms_step_begin(engine.session);
    struct gms_directory_activity activity;
    gms_directory_activity(directory, &activity);
    assert_int_equal(activity.pause_ms, 1000);
    assert_int_equal(activity.work, 5);
    assert_int_equal(activity.steps_begun - activity.steps_completed, 1);
    gms_step_complete(engine.session, token);
    gms_directory_activity(directory, &activity);
    assert_int_equal(activity.steps_begun, activity.steps_completed);
    assert_ok(gms_report_sticky_error(engine.session, -7, "illegal address", &error));
    assert_int_equal((int32_t)FAKE_GET(f->fake.sticky_code), -7);
    assert_ok(gms_pool_release(engine.state, &error));
    gms_close(engine.session);
    fake_await_gone(&f->fake, 1);
    assert_true(FAKE_GET(f->fake.clients[0].left));
    fake_forget_clients(&f->fake);
    assert_int_equal(unit_open_fds(), before + 2); /* what the group keeps: two pools */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, libgms_setup, libgms_teardown)
        T(test_version_and_names),
        T(test_open_says_what_is_missing),
        T(test_open_without_a_coordinator),
        T(test_open_is_bounded),
        T(test_join_tells_who_we_are),
        T(test_each_difference_has_its_field),
        T(test_environment_is_compared),
        T(test_join_refusals),
        T(test_weights_are_published_once_and_then_read_only),
        T(test_failed_publish_leaves_it_writable),
        T(test_attach_waits_for_the_publisher),
        T(test_attach_gives_up_after_the_operation_timeout),
        T(test_attach_refusals),
        T(test_park_puts_group_memory_under_the_same_address),
        T(test_whole_life),
#undef T
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
