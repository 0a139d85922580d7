/* SPDX-License-Identifier: Apache-2.0
 *
 * The kv budget and parking presets from end to end: the least of all ranks is agreed and honoured as bytes, a pool
 * that is larger is refused on all ranks by name, the measured footprint of a parked engine takes the reserve's place,
 * ranks that park differently are refused by name; and gms-ctl park and wake.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "harness.h"

enum { RANKS = 3, WEIGHT_BYTES = 65536, KIB = 1024, MIB = 1024 * 1024 };
enum { AT_ASKED = 1, AT_PARKED, AT_SERVING, AT_AGAIN, GATE_POOL = 1, GATE_PARK, GATE_AGAIN, GATE_END };

static char log_path[160];

static int ctl(const struct cluster *cluster, const char *command, uint32_t engine, const char *timeout)
{
    char path[512], number[16], run_dir[128];
    snprintf(number, sizeof number, "%u", engine);
    snprintf(run_dir, sizeof run_dir, "--run-dir=%s", cluster->run_dir);
    snprintf(log_path, sizeof log_path, "%s/ctl", cluster->directory);
    unlink(log_path);
    char *words[] = {(char *)(uintptr_t)program("gms-ctl", path),
                     run_dir,
                     (char *)(uintptr_t)timeout,
                     (char *)(uintptr_t)command,
                     number,
                     NULL};
    return run_program(words, log_path);
}

static bool said(const char *text)
{
    char all[8192] = "";
    FILE *stream = fopen(log_path, "re");
    if (stream != NULL) {
        (void)!fread(all, 1, sizeof all - 1, stream);
        fclose(stream);
    }
    if (strstr(all, text) == NULL)
        fprintf(stderr, "\"%s\" is not in: %s\n", text, all);
    return strstr(all, text) != NULL;
}

static json_t *engine_of(json_t *status, uint32_t engine)
{
    json_t *item;
    size_t index;
    json_array_foreach(json_object_get(status, "engines"), index, item)
    {
        if (json_integer_value(json_object_get(item, "engine")) == (json_int_t)engine)
            return item;
    }
    return NULL;
}

static bool has_role(const struct cluster *cluster, uint32_t engine, const char *role)
{
    bool all = true;
    for (uint32_t rank = 0; rank < cluster->ranks && all; rank++) {
        json_t *status = cluster_status(cluster, rank);
        const char *text = json_string_value(json_object_get(engine_of(status, engine), "role"));
        all = text != NULL && strcmp(text, role) == 0;
        json_decref(status);
    }
    return all;
}

/* ------------------------------------------------------------------------------------------------- budget ----- */

/* values: 0 the budget, 1 what came of a pool that is a slot larger, 2 of one that fits, 3 of a second one, 4 the
 * budget again, 5 and once more after a restart. */
static gms_status sized_by_budget(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life = {0};
    struct gms_error refusal = {.status = GMS_OK};
    struct gms_pool_description kv = {.name = "kv", .kind = GMS_POOL_KV, .block_bytes = HARNESS_BLOCK_BYTES};
    gms_pool *more = NULL;
    gms_status status = rank_open(rank, &life.session, error);
    if (status == GMS_OK)
        status = rank_join(life.session, rank, &life.membership, error);
    if (status == GMS_OK)
        status = rank_attach_weights(life.session, &life.weights, error);
    if (status == GMS_OK)
        status = gms_kv_budget(life.session, &rank->values[0], error);
    if (status != GMS_OK)
        return status;
    kv.slot_count = (uint32_t)(rank->values[0] / kv.block_bytes) + 1;
    rank->values[1] = (uint64_t)gms_pool_attach(life.session, &kv, &life.kv, &refusal);
    rank->error_rank = refusal.rank;
    memcpy(rank->text, refusal.text, sizeof rank->text);
    kv.slot_count--;
    rank->values[2] = (uint64_t)gms_pool_attach(life.session, &kv, &life.kv, error);
    snprintf(kv.name, sizeof kv.name, "more");
    kv.slot_count = 1;
    rank->values[3] = (uint64_t)gms_pool_attach(life.session, &kv, &more, &refusal);
    status = gms_kv_budget(life.session, &rank->values[4], error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_ASKED);
    status = rank_idle(rank, &life, GATE_AGAIN, error);
    if (status == GMS_OK)
        status = gms_kv_budget(life.session, &rank->values[5], error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_AGAIN);
    rank_gate(rank, GATE_END);
    gms_close(life.session);
    return GMS_OK;
}

static void test_the_least_is_agreed_and_honoured(void **state)
{
    struct cluster cluster;
    struct engine engine;
    (void)state;
    cluster_start(&cluster,
                  &(struct cluster_options){
                      .ranks = RANKS,
                      .memory = "{ backend = \"host\"; capacity = \"8MiB\"; capacity_of = ( { rank = 1; capacity = "
                                "\"1MiB\"; } ); }",
                      .more = "budget : { percent = 100; reserve = \"0B\"; };"});
    engine_start(&engine, &cluster, 0, "a", sized_by_budget, 0);
    assert_true(engine_reached(&engine, AT_ASKED, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        const struct engine_rank *one = &engine.ranks[rank];
        assert_int_equal(one->values[0], MIB - WEIGHT_BYTES); /* rank 1's, which has least */
        assert_int_equal(one->values[1], GMS_E_NO_CAPACITY);
        assert_int_equal(one->error_rank, 1);
        assert_non_null(
            strstr(one->text, "987136 bytes asked, 983040 free of the kv budget of 983040 (the least, rank 1)"));
        assert_string_equal(one->text, engine.ranks[0].text);
        assert_int_equal(one->values[2], GMS_OK);
        assert_int_equal(one->values[3], GMS_E_NO_CAPACITY);
        assert_int_equal(one->values[4], one->values[0]);
        json_t *status = cluster_status(&cluster, rank), *budget = json_object_get(status, "budget");
        assert_int_equal(json_integer_value(json_object_get(budget, "agreed_bytes")), MIB - WEIGHT_BYTES);
        assert_int_equal(json_integer_value(json_object_get(budget, "agreed_rank")), 1);
        json_decref(status);
    }
    cluster_kill_coordinators(&cluster, -1); /* the next ones know it */
    cluster_relaunch(&cluster, NULL);
    engine_go(&engine, GATE_AGAIN);
    assert_true(engine_reached(&engine, AT_AGAIN, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(engine.ranks[rank].values[5], MIB - WEIGHT_BYTES);
    engine_go(&engine, GATE_END);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    engine_finish(&engine);
    cluster_stop(&cluster);
}

/* ------------------------------------------------------------------------------------------- calibration ------ */

enum { REGION_BYTES = 2 * MIB };
static const struct gms_tag own_tags[] = {
    {"weights", GMS_PARK_KEEP}, {"kv", GMS_PARK_SWAP}, {"graphs", GMS_PARK_KEEP}, {"state", GMS_PARK_SAVE}};

/* values: 0 the budget, 1 what came of a kv pool of 32 slots. argument 1: parks without kv. */
static gms_status measured(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life = {0};
    struct gms_error refusal = {.status = GMS_OK};
    void *address = NULL;
    gms_status status = rank_open(rank, &life.session, error);
    if (status == GMS_OK)
        status = gms_tags_set(life.session, own_tags, sizeof own_tags / sizeof own_tags[0], error);
    if (status == GMS_OK)
        status = rank_join(life.session, rank, &life.membership, error);
    if (status == GMS_OK)
        status = rank_attach_weights(life.session, &life.weights, error);
    if (status == GMS_OK)
        status = gms_region_alloc(life.session, "state", REGION_BYTES, &address, error);
    if (status == GMS_OK)
        status = gms_kv_budget(life.session, &rank->values[0], error);
    if (status != GMS_OK)
        return status;
    rank->values[1] = (uint64_t)rank_attach_kv(life.session, HARNESS_SLOTS, &life.kv, &refusal);
    rank->error_rank = refusal.rank;
    memcpy(rank->text, refusal.text, sizeof rank->text);
    status = gms_park(life.session, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_PARKED);
    status = rank_take_over(rank, &life, "unix:/here", error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    status = rank_idle(rank, &life, GATE_END, error);
    gms_close(life.session);
    return status;
}

struct expectation {
    const struct cluster *cluster;
    uint32_t engine;
    const char *source; /* of the measurement */
};

static bool is_measured(void *context)
{
    const struct expectation *expect = context;
    bool all = true;
    for (uint32_t rank = 0; rank < expect->cluster->ranks && all; rank++) {
        json_t *status = cluster_status(expect->cluster, rank);
        json_t *memory = json_object_get(engine_of(status, expect->engine), "memory");
        const char *source = json_string_value(json_object_get(memory, "measured_by"));
        all = source != NULL && strcmp(source, expect->source) == 0;
        json_decref(status);
    }
    return all;
}

static void check_report(const struct cluster *cluster, uint32_t engine, bool awake)
{
    for (uint32_t rank = 0; rank < cluster->ranks; rank++) {
        json_t *status = cluster_status(cluster, rank), *memory = json_object_get(engine_of(status, engine), "memory");
        json_t *state = json_array_get(json_object_get(memory, "tags"), 3);
        assert_string_equal(json_string_value(json_object_get(state, "tag")), "state");
        assert_string_equal(json_string_value(json_object_get(state, "policy")), "save");
        assert_true(json_integer_value(json_object_get(state, "bytes")) >= REGION_BYTES);
        assert_true(json_integer_value(json_object_get(state, "park_ns")) > 0);
        assert_int_equal(json_integer_value(json_object_get(state, "wake_ns")) > 0, awake);
        assert_int_equal(json_is_true(json_object_get(memory, "awake")), awake);
        /* Before it parked it had more: what its tags give back meanwhile. */
        json_int_t keeps = json_integer_value(json_object_get(memory, "footprint_bytes"));
        json_int_t needs = json_integer_value(json_object_get(memory, "needs_bytes"));
        assert_true(keeps > 100 * KIB && keeps < 500 * (json_int_t)MIB);
        assert_true(needs >= keeps + REGION_BYTES && needs < keeps + 2 * REGION_BYTES);
        json_decref(status);
    }
}

/* A reserve that leaves nothing, until the first engine has parked and was measured. */
static void test_measured_in_place_of_the_reserve(void **state)
{
    struct cluster cluster;
    struct engine first, second;
    char path[256];
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = 2, .more = "budget : { reserve = \"16TiB\"; };"});
    engine_start(&first, &cluster, 0, "a", measured, 0);
    assert_true(engine_reached(&first, AT_SERVING, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(first.ranks[rank].values[0], 1);
        assert_int_equal(first.ranks[rank].values[1], GMS_E_NO_CAPACITY);
        assert_non_null(strstr(first.ranks[rank].text, "131072 bytes asked, 1 free of the kv budget of 1"));
    }
    assert_true(eventually(is_measured, &(struct expectation){&cluster, 0, "smaps"}, HARNESS_DEADLINE_MS));
    check_report(&cluster, 0, true);
    engine_start(&second, &cluster, 1, "b", measured, 0);
    assert_true(engine_reached(&second, AT_PARKED, HARNESS_DEADLINE_MS));
    assert_true(eventually(is_measured, &(struct expectation){&cluster, 1, "smaps"}, HARNESS_DEADLINE_MS));
    check_report(&cluster, 1, false);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_true(second.ranks[rank].values[0] > 16 * MIB);
        assert_int_equal(second.ranks[rank].values[0], second.ranks[0].values[0]);
        assert_int_equal(second.ranks[rank].values[1], GMS_OK);
        snprintf(path, sizeof path, "%s/calibration.%u", cluster.run_dir, rank);
        json_t *kept = json_load_file(path, 0, NULL); /* for the next start */
        assert_true(json_integer_value(json_object_get(kept, "needs_bytes")) > REGION_BYTES);
        json_decref(kept);
    }
    engine_go(&first, GATE_END);
    engine_go(&second, GATE_END);
    assert_true(engine_wait_end(&first, HARNESS_DEADLINE_MS) && engine_wait_end(&second, HARNESS_DEADLINE_MS));
    engine_finish(&first);
    engine_finish(&second);
    cluster_stop(&cluster);
}

/* ------------------------------------------------------------------------------------------------- presets ---- */

/* values: 0 what came of the join, 1 policy of "graphs". argument: the rank that says something else. */
static gms_status odd_tags(struct engine_rank *rank, struct gms_error *error)
{
    struct gms_tag tags[4];
    struct gms_membership membership;
    struct gms_tag_report report;
    struct gms_error refusal = {.status = GMS_OK};
    gms_session *session = NULL;
    memcpy(tags, own_tags, sizeof tags);
    if (rank->argument == rank->rank)
        tags[3].policy = GMS_PARK_RELEASE;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = gms_tags_set(session, tags, 4, error);
    if (status != GMS_OK)
        return status;
    rank->values[0] = (uint64_t)rank_join(session, rank, &membership, &refusal);
    memcpy(rank->text, refusal.text, sizeof rank->text);
    rank->values[1] = gms_tag_report(session, 2, &report) == GMS_OK ? report.tag.policy : 0;
    rank_at(rank, AT_ASKED);
    rank_gate(rank, GATE_END);
    gms_close(session);
    return GMS_OK;
}

static void test_an_odd_rank_is_refused_by_name(void **state)
{
    struct cluster cluster;
    struct engine odd, even;
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){
                                .ranks = 2,
                                .more = "parking : { preset = \"mine\"; presets = ( { name = \"mine\"; tags = ( "
                                        "\"graphs=save\" ); } ); };"});
    engine_start(&odd, &cluster, 0, "a", odd_tags, 1);
    assert_true(engine_reached(&odd, AT_ASKED, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(odd.ranks[rank].values[0], GMS_E_MISMATCH);
        assert_non_null(strstr(odd.ranks[rank].text, "(tag state) is \"save\" on rank 0, \"release\" on rank 1"));
    }
    engine_start(&even, &cluster, 1, "b", odd_tags, RANKS);
    assert_true(engine_reached(&even, AT_ASKED, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(even.ranks[rank].values[0], GMS_OK);
        assert_int_equal(even.ranks[rank].values[1], GMS_PARK_SAVE); /* the deployment's word */
    }
    engine_go(&odd, GATE_END);
    engine_go(&even, GATE_END);
    assert_true(engine_wait_end(&odd, HARNESS_DEADLINE_MS) && engine_wait_end(&even, HARNESS_DEADLINE_MS));
    engine_finish(&odd);
    engine_finish(&even);
    cluster_stop(&cluster);
}

/* ------------------------------------------------------------------------------------------- park and wake ---- */

/* Serves until it is asked to hand over, then says goodbye and ends. argument 1: never asks; 2: does not end. */
static gms_status obliging(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    gms_status status = rank_park(rank, &life, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_PARKED);
    status = rank_take_over(rank, &life, "unix:/here", error);
    if (status != GMS_OK)
        return status;
    rank->values[0] = life.adoption.quarantined;
    rank_at(rank, AT_SERVING);
    for (int gate = 0; status == GMS_OK && gate < 20000 && atomic_load(&rank->go) < GATE_END; gate++) {
        if (gms_asked_to_park(life.session) && rank->argument != 1)
            break;
        struct gms_promotion promotion;
        struct gms_error ignored;
        status = gms_wait_promotion(life.session, 0, &promotion, &ignored);
        status = gms_status_is_fatal_to_engine(status) ? status : GMS_OK;
        usleep(1000);
    }
    gms_close(life.session);
    if (rank->argument == 2)
        rank_gate(rank, GATE_END);
    return status;
}

static bool serves(void *context)
{
    const struct expectation *expect = context;
    return has_role(expect->cluster, expect->engine, "serving");
}

static bool has_joined(void *context)
{
    const struct expectation *expect = context;
    json_t *status = cluster_status(expect->cluster, 0);
    const bool there = engine_of(status, expect->engine) != NULL;
    json_decref(status);
    return there;
}

static void test_park_and_wake(void **state)
{
    struct cluster cluster;
    struct engine engines[4], again;
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = 2});
    assert_int_equal(ctl(&cluster, "park", 0, "--timeout=5s"), 1); /* nobody is there */
    assert_true(said("engine 0 is not in the group"));
    assert_int_equal(ctl(&cluster, "wake", 0, "--timeout=5s"), 1);
    assert_true(said("engine 0 is not in the group: only a parked shadow can be woken"));
    engine_start(&engines[0], &cluster, 0, "a", obliging, 0);
    assert_true(engine_reached(&engines[0], AT_SERVING, HARNESS_DEADLINE_MS));
    assert_int_equal(ctl(&cluster, "park", 0, "--timeout=5s"), 1);
    assert_true(said("no other engine is parked"));
    assert_true(has_role(&cluster, 0, "serving"));
    for (uint32_t id = 1; id < 4; id++) { /* in this order they have been parked */
        engine_start(&engines[id], &cluster, id, id == 1 ? "b" : id == 2 ? "c" : "d", obliging, id - 1);
        assert_true(engine_reached(&engines[id], AT_PARKED, HARNESS_DEADLINE_MS));
    }
    assert_int_equal(ctl(&cluster, "park", 1, "--timeout=10s"), 0); /* twice is once */
    assert_true(said("engine 1 is parked already") || said("engine 1 is parked"));
    /* The one that is named, not the one that has been parked for longest. */
    assert_int_equal(ctl(&cluster, "wake", 2, "--timeout=20s"), 0);
    assert_true(said("engine 2 serves"));
    assert_true(has_role(&cluster, 2, "serving"));
    assert_true(has_role(&cluster, 1, "parked"));
    assert_int_equal(ctl(&cluster, "wake", 2, "--timeout=5s"), 0);
    assert_true(said("engine 2 serves already"));
    /* It never asks whether it should park: nothing is done to it. */
    assert_int_equal(ctl(&cluster, "park", 2, "--timeout=300ms"), 1);
    assert_true(said("engine 2 still serves"));
    assert_true(has_role(&cluster, 2, "serving"));
    assert_int_equal(ctl(&cluster, "wake", 3, "--timeout=20s"), 0);
    /* An obliging one hands over by itself, and what of it does not end then is killed (timeouts.leave). Nobody starts
     * it again, which is told. */
    assert_int_equal(ctl(&cluster, "park", 3, "--timeout=4s"), 1);
    assert_true(said("engine 3 has ended, and no other has parked in its place yet"));
    assert_true(eventually(serves, &(struct expectation){&cluster, 1, NULL}, HARNESS_DEADLINE_MS));
    assert_int_equal(engines[1].ranks[0].values[0], 0); /* it said goodbye: nothing is quarantined */
    json_t *status = cluster_status(&cluster, 0);
    json_t *takeovers = json_object_get(status, "takeovers");
    json_t *last = json_array_get(takeovers, json_array_size(takeovers) - 1);
    assert_string_equal(json_string_value(json_object_get(last, "cause")), "left");
    json_decref(status);
    engine_start(&again, &cluster, 3, "e", obliging, 0);
    assert_true(eventually(has_joined, &(struct expectation){&cluster, 3, NULL}, HARNESS_DEADLINE_MS));
    assert_int_equal(ctl(&cluster, "park", 3, "--timeout=20s"), 0); /* one that warms up is waited for */
    assert_true(said("engine 3 is parked"));
    engine_go(&again, GATE_END);
    for (uint32_t id = 0; id < 4; id++)
        engine_finish(&engines[id]);
    engine_finish(&again);
    cluster_stop(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_least_is_agreed_and_honoured),
        cmocka_unit_test(test_measured_in_place_of_the_reserve),
        cmocka_unit_test(test_an_odd_rank_is_refused_by_name),
        cmocka_unit_test(test_park_and_wake),
    };
    return cmocka_run_group_tests_name("coord_budget", tests, NULL, NULL);
}
