/* SPDX-License-Identifier: Apache-2.0
 *
 * What gms-up keeps beside the coordinators: engines, as the group says that they are, and the keepers of several
 * hosts.
 */
#include "up_support.h"

#include "gms-up/engines.h"
#include "gms-up/keepers.h"

static const uint64_t ready_within_ns = 60 * GMS_NS_PER_S;
static struct gms_up_options options;
static struct gms_config config;
static struct gms_up_engines engines;

/* One engine without shadows is wanted, started by `launcher`. */
static void open_engines(const char *launcher)
{
    memset(&config, 0, sizeof config);
    snprintf(config.run_dir, sizeof config.run_dir, "%s", run_dir);
    snprintf(config.launch_engines, sizeof config.launch_engines, "%s", launcher);
    config.launch_engines_bytes = (uint32_t)strlen(launcher) + 1;
    config.ranks = 1;
    config.ready_within_ns = ready_within_ns;
    gms_up_options_default(&options);
    assert_ok(gms_up_engines_open(&engines, &options, &config, &error));
}

/* It may have served for days; while no coordinator answers nobody can say so. */
static void test_adopted_engine_is_not_late_unheard(void **state)
{
    static const char none[] = "{\"engines\": []}";
    (void)state;
    open_engines(script);
    gms_up_job_close(&job);
    assert_ok(gms_up_job_open(&job, run_dir, "engine0", &error));
    assert_ok(gms_up_job_start(&job, &how, &error));
    assert_int_equal(gms_up_engines_adopt(&engines), 1);
    uint64_t now_ns = gms_clock_ns() + 2 * ready_within_ns;
    gms_up_engines_hear(&engines, NULL, now_ns);
    assert_ok(gms_up_engines_step(&engines, now_ns, &error));
    assert_false(engines.engines[0].told);
    assert_false(gms_pidfd_ended(job.now.pidfd));
    /* From the first answer on its time counts; the coordinators' next absence ends that. */
    for (int i = 0; i < 2; i++) {
        gms_up_engines_hear(&engines, none, now_ns);
        now_ns += ready_within_ns - 1;
        gms_up_engines_hear(&engines, none, now_ns);
        assert_ok(
            gms_up_engines_step(&engines, now_ns + ready_within_ns, &error)); /* what came says nothing of later */
        assert_false(engines.engines[0].told);
        if (i == 0) {
            now_ns += ready_within_ns;
            gms_up_engines_hear(&engines, NULL, now_ns);
            assert_ok(gms_up_engines_step(&engines, now_ns, &error));
            assert_false(engines.engines[0].told);
        }
    }
    gms_up_engines_hear(&engines, none, now_ns + 1);
    assert_ok(gms_up_engines_step(&engines, now_ns + 1, &error));
    assert_true(engines.engines[0].told);
    struct pollfd ended = {.fd = job.now.pidfd, .events = POLLIN};
    assert_int_equal(poll(&ended, 1, UNIT_PATIENCE_MS), 1);
    gms_up_engines_close(&engines);
}

static const uint64_t clean_up_ns = 15 * GMS_NS_PER_S;
static const char nobody[] = "{\"engines\": []}";

/* A document in which engine 0 alone is in the group. */
static const char *with_engine_0(unsigned incarnation, const char *role)
{
    static char text[128];
    snprintf(text, sizeof text, "{\"engines\": [{\"engine\": 0, \"incarnation\": %u, \"role\": \"%s\"}]}", incarnation,
             role);
    return text;
}

/* Engine 0 is started and serves, as incarnation 5. */
static uint64_t open_ready_engine(void)
{
    uint64_t now_ns = gms_clock_ns();
    open_engines(script);
    gms_up_engines_hear(&engines, nobody, now_ns);
    assert_ok(gms_up_engines_step(&engines, now_ns, &error));
    assert_true(engines.engines[0].job.now.pid > 0);
    gms_up_engines_hear(&engines, with_engine_0(5, "joined"), now_ns);
    assert_int_equal(engines.engines[0].phase, GMS_UP_STARTING);
    gms_up_engines_hear(&engines, with_engine_0(5, "serving"), now_ns);
    assert_int_equal(engines.engines[0].phase, GMS_UP_READY);
    return now_ns;
}

static void hear_and_step(const char *document, uint64_t now_ns)
{
    gms_up_engines_hear(&engines, document, now_ns);
    assert_ok(gms_up_engines_step(&engines, now_ns, &error));
}

/* False: its launcher was killed, or will be at once. */
static bool is_left_alone(uint32_t id, int wait_ms)
{
    struct pollfd ended = {.fd = engines.engines[id].job.now.pidfd, .events = POLLIN};
    return poll(&ended, 1, wait_ms) == 0;
}

static void end_engines(void)
{
    for (uint32_t id = 0; id < GMS_MAX_ENGINES; id++) {
        pid_t pid = engines.engines[id].job.now.pid;
        int status = 0;
        if (pid == 0)
            continue;
        gms_pidfd_signal(engines.engines[id].job.now.pidfd, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        gms_up_engines_reaped(&engines, pid, status, gms_clock_ns());
    }
    gms_up_engines_close(&engines);
}

/* One document lacks it, whatever the reason; the next ones do not. It costs a start, never the engine that serves. */
static void test_engine_missing_once(void **state)
{
    static const char *const roles[] = {"joined", "parked", "promoted", "serving"};
    uint64_t now_ns = open_ready_engine();
    (void)state;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        hear_and_step(nobody, now_ns);
        assert_int_equal(engines.engines[0].phase, GMS_UP_ENDING);
        assert_true(engines.engines[1].job.now.pid > 0); /* if it is gone, a replacement is on its way at once */
        hear_and_step(with_engine_0(5, roles[i]), now_ns + GMS_NS_PER_MS);
        assert_int_equal(engines.engines[0].phase, GMS_UP_READY);
        now_ns += 2 * clean_up_ns;
        hear_and_step(with_engine_0(5, roles[i]), now_ns);
        assert_true(is_left_alone(0, 0));
    }
    end_engines();
}

/* It is missing in the last document before the coordinators went away, or before they hung. */
static void test_engine_missing_unheard(void **state)
{
    uint64_t now_ns = open_ready_engine();
    (void)state;
    hear_and_step(nobody, now_ns);
    assert_ok(gms_up_engines_step(&engines, now_ns + 2 * clean_up_ns, &error)); /* nothing comes any more */
    assert_true(is_left_alone(0, 0));
    hear_and_step(NULL, now_ns + 2 * clean_up_ns);
    now_ns += 4 * clean_up_ns;
    hear_and_step(nobody, now_ns); /* back, and it has not come back to them yet */
    assert_int_equal(engines.engines[0].phase, GMS_UP_ENDING);
    assert_true(is_left_alone(0, 0));
    hear_and_step(nobody, now_ns + clean_up_ns - 1);
    assert_true(is_left_alone(0, 0));
    hear_and_step(with_engine_0(5, "serving"), now_ns + clean_up_ns);
    assert_int_equal(engines.engines[0].phase, GMS_UP_READY);
    assert_true(is_left_alone(0, 0));
    end_engines();
}

/* Gone is gone: condemned, not named any more, or its number is somebody else's. Its launcher gets its time. */
static void test_engine_gone(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        uint64_t now_ns = open_ready_engine();
        const char *document = way == 0   ? nobody
                               : way == 1 ? with_engine_0(5, "condemned")
                                          : with_engine_0(6, "serving");
        hear_and_step(document, now_ns);
        assert_int_equal(engines.engines[0].phase, GMS_UP_ENDING);
        hear_and_step(document, now_ns + clean_up_ns - 1);
        assert_true(is_left_alone(0, 0));
        hear_and_step(document, now_ns + clean_up_ns);
        assert_false(is_left_alone(0, UNIT_PATIENCE_MS));
        end_engines();
    }
}

/* Text that does not say of each engine which it is and how it is says nothing of anybody. */
static void test_documents_not_understood(void **state)
{
    static const char *const documents[] = {
        "",
        "{\"engines\": [",
        "{\"engines\": {}}",
        "{}",
        "{\"engines\": [null]}",
        "{\"engines\": [{\"incarnation\": 5, \"role\": \"serving\"}]}",
        "{\"engines\": [{\"engine\": 8, \"incarnation\": 5, \"role\": \"serving\"}]}",
        "{\"engines\": [{\"engine\": -1, \"incarnation\": 5, \"role\": \"serving\"}]}",
        "{\"engines\": [{\"engine\": 0, \"role\": \"serving\"}]}",
        "{\"engines\": [{\"engine\": 0, \"incarnation\": 0, \"role\": \"serving\"}]}",
        "{\"engines\": [{\"engine\": 0, \"incarnation\": 5}]}",
        "{\"engines\": [{\"engine\": 0, \"incarnation\": 5, \"role\": \"resting\"}]}",
    };
    uint64_t now_ns = open_ready_engine();
    (void)state;
    for (size_t i = 0; i < sizeof documents / sizeof documents[0]; i++) {
        hear_and_step(documents[i], now_ns);
        assert_false(engines.known || engines.answers);
        assert_int_equal(engines.engines[0].phase, GMS_UP_READY);
        assert_int_equal(engines.engines[1].job.now.pid, 0);
        now_ns += 2 * clean_up_ns;
    }
    assert_true(is_left_alone(0, 0));
    end_engines();
}

/* A launcher of engines that cannot be run is tried again after growing pauses. */
static void test_engine_not_started(void **state)
{
    static const char none[] = "{\"engines\": []}";
    uint64_t now_ns = gms_clock_ns();
    (void)state;
    open_engines("/nowhere/mpirun");
    gms_up_engines_hear(&engines, none, now_ns);
    for (uint32_t i = 1; i <= 3; i++) {
        assert_status(gms_up_engines_step(&engines, now_ns, &error), GMS_E_CONFIG);
        assert_int_equal(engines.failures, i);
        assert_int_equal(engines.engines[0].job.now.pid, 0);
        assert_true(exists(engines.upkeep)); /* the reason, for whoever asks */
        assert_ok(gms_up_engines_step(&engines, engines.next_start_ns - 1, &error));
        assert_true(engines.next_start_ns > now_ns);
        now_ns = engines.next_start_ns;
    }
    gms_up_engines_close(&engines);
}

/* The same for what keeps a keeper on each host. */
static void test_keepers_not_started(void **state)
{
    static struct gms_up_keepers keepers;
    uint64_t now_ns = gms_clock_ns();
    (void)state;
    memset(&config, 0, sizeof config);
    snprintf(config.run_dir, sizeof config.run_dir, "%s", run_dir);
    snprintf(config.launch_keepers, sizeof config.launch_keepers, "/nowhere/mpirun");
    config.launch_keepers_bytes = sizeof "/nowhere/mpirun";
    config.ranks = 1;
    gms_up_options_default(&options);
    assert_ok(gms_up_keepers_open(&keepers, &options, &config, &error));
    for (uint32_t i = 1; i <= 3; i++) {
        assert_status(gms_up_keepers_step(&keepers, now_ns, &error), GMS_E_CONFIG);
        assert_int_equal(keepers.job.now.pid, 0);
        gms_up_keepers_not_started(&keepers, &error, now_ns);
        assert_int_equal(keepers.failures, i);
        assert_true(gms_up_keepers_deadline(&keepers) > now_ns);
        assert_ok(gms_up_keepers_step(&keepers, keepers.next_start_ns - 1, &error));
        now_ns = keepers.next_start_ns;
    }
    gms_up_keepers_close(&keepers);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_adopted_engine_is_not_late_unheard),
        TEST(test_engine_missing_once),
        TEST(test_engine_missing_unheard),
        TEST(test_engine_gone),
        TEST(test_documents_not_understood),
        TEST(test_engine_not_started),
        TEST(test_keepers_not_started),
    };
    return cmocka_run_group_tests_name("gms-up's engines", tests, NULL, NULL);
}
