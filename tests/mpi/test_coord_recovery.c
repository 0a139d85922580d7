/* SPDX-License-Identifier: Apache-2.0
 *
 * Coordinators that start again: engines go on and are attached again, what the group was it still is, and a takeover
 * afterwards is exact. Any of ours may be the one that died, and an engine may die while nobody looks.
 */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness.h"

enum { RANKS = 2, SEALED = 5, AT_PARKED = 1, AT_SERVING = 2, AT_AGAIN = 3, GATE_AGAIN = 1, GATE_END = 9 };

/* Serves when it is its turn, seals SEALED blocks then; values[0]: adopted, values[1]: sealed ones found there. */
static gms_status live(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    uint32_t finished = 0;
    gms_status status = rank_park(rank, &life, error);
    if (status != GMS_OK)
        return status;
    rank->values[2] = life.membership.incarnation;
    rank_at(rank, AT_PARKED);
    status = rank_take_over(rank, &life, "unix:/here", error);
    if (status != GMS_OK)
        return status;
    rank->values[0] = life.adoption.adopted;
    for (uint32_t slot = 0; slot < SEALED; slot++)
        rank->values[1] += gms_slot_state(life.kv, slot, NULL) == GMS_SLOT_SEALED;
    for (uint32_t slot = 0; slot < SEALED && status == GMS_OK && life.adoption.adopted == 0; slot++)
        status = rank_seal(life.session, life.kv, slot, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    status = rank_idle(rank, &life, GATE_AGAIN, error);
    if (status == GMS_OK) /* a control operation in the new world */
        status = rank_operate(&life, 7, &finished, error);
    rank->values[3] = finished;
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_AGAIN);
    status = rank_idle(rank, &life, GATE_END, error);
    gms_close(life.session);
    return status;
}

struct expected {
    const struct cluster *cluster;
    uint32_t engine;
    const char *role;
};

static bool is_attached_on_all(void *context)
{
    const struct expected *expected = context;
    for (uint32_t rank = 0; rank < expected->cluster->ranks; rank++) {
        json_t *status = cluster_status(expected->cluster, rank), *item;
        bool found = false;
        size_t i;
        json_array_foreach(json_object_get(status, "engines"), i, item)
        {
            const char *role = json_string_value(json_object_get(item, "role"));
            found = found || (json_integer_value(json_object_get(item, "engine")) == (json_int_t)expected->engine &&
                              json_is_true(json_object_get(item, "connected")) && role != NULL &&
                              strcmp(role, expected->role) == 0);
        }
        json_decref(status);
        if (!found)
            return false;
    }
    return true;
}

static void await(const struct cluster *cluster, uint32_t engine, const char *role)
{
    struct expected expected = {cluster, engine, role};
    if (eventually(is_attached_on_all, &expected, HARNESS_DEADLINE_MS))
        return;
    json_t *status = cluster_status(cluster, 0);
    char *text = json_dumps(status, 0);
    fail_msg("engine %u is not attached as %s on all ranks: %s", engine, role, text);
}

/* What must not change by a restart. */
struct picture {
    int64_t epoch, serving, incarnation, used;
    size_t engines, pools;
};

static struct picture look(const struct cluster *cluster, uint32_t rank)
{
    json_t *status = cluster_status(cluster, rank);
    assert_non_null(status);
    struct picture picture = {.epoch = json_integer_value(json_object_get(status, "epoch")),
                              .serving = json_integer_value(json_object_get(status, "serving_engine")),
                              .incarnation = json_integer_value(json_object_get(status, "serving_incarnation")),
                              .used = json_integer_value(json_object_get(status, "used_bytes")),
                              .engines = json_array_size(json_object_get(status, "engines")),
                              .pools = json_array_size(json_object_get(status, "pools"))};
    assert_string_equal(json_string_value(json_object_get(status, "endpoint")), rank == 0 ? "unix:/here" : "");
    json_decref(status);
    return picture;
}

static void assert_same_pictures(const struct cluster *cluster, const struct picture before[RANKS])
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct picture now = look(cluster, rank);
        assert_memory_equal(&now, &before[rank], sizeof now);
    }
}

static void start_two(struct cluster *cluster, struct engine engines[2], struct picture ret_pictures[RANKS])
{
    cluster_start(cluster, &(struct cluster_options){.ranks = RANKS});
    engine_start(&engines[0], cluster, 0, "a", live, 0);
    assert_true(engine_reached(&engines[0], AT_SERVING, HARNESS_DEADLINE_MS));
    engine_start(&engines[1], cluster, 1, "b", live, 0);
    assert_true(engine_reached(&engines[1], AT_PARKED, HARNESS_DEADLINE_MS));
    await(cluster, 1, "parked");
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ret_pictures[rank] = look(cluster, rank);
}

static void succeed_and_end(struct cluster *cluster, struct engine engines[2])
{
    engine_kill(&engines[0], 1);
    assert_true(engine_reached(&engines[1], AT_SERVING, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(engines[1].ranks[rank].values[0], SEALED);
        assert_int_equal(engines[1].ranks[rank].values[1], SEALED);
        assert_int_equal(cluster_number(cluster, rank, "serving_engine"), 1);
    }
    assert_int_equal(cluster_number(cluster, 0, "epoch"), cluster_number(cluster, 1, "epoch"));
    engine_finish(&engines[0]);
    engine_go(&engines[1], GATE_END);
    assert_true(engine_wait_end(&engines[1], HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(engines[1].ranks[rank].status, GMS_OK);
    engine_finish(&engines[1]);
    cluster_stop(cluster);
}

/* All that is ours and may die: coordinator ranks (-1: all), with or without the keeper before. */
static void go_on_after(int32_t victim, bool keeper_before)
{
    struct cluster cluster;
    struct engine engines[2];
    struct picture before[RANKS];
    start_two(&cluster, engines, before);
    if (keeper_before) {
        int64_t kept = cluster_log_count(&cluster, "a keeper is back");
        cluster_kill_keeper(&cluster);
        cluster_start_keeper(&cluster);
        uint64_t deadline_ns = gms_clock_ns() + HARNESS_DEADLINE_MS * GMS_NS_PER_MS;
        while (cluster_log_count(&cluster, "a keeper is back") < kept + RANKS && gms_clock_ns() < deadline_ns)
            poll(NULL, 0, 5);
        assert_int_equal(cluster_log_count(&cluster, "a keeper is back"), kept + RANKS);
    }
    for (int again = 0; again < 2; again++) { /* twice: what was restored can be restored */
        uint64_t begin_ns = gms_clock_ns();
        cluster_kill_coordinators(&cluster, victim);
        uint64_t ended_ns = gms_clock_ns();
        cluster_relaunch(&cluster, NULL);
        await(&cluster, 0, "serving");
        await(&cluster, 1, "parked");
        fprintf(stderr, "whole again %llu ms after the kill; mpirun had ended after %llu ms\n",
                (unsigned long long)((gms_clock_ns() - begin_ns) / GMS_NS_PER_MS),
                (unsigned long long)((ended_ns - begin_ns) / GMS_NS_PER_MS));
        assert_same_pictures(&cluster, before);
    }
    engine_go(&engines[0], GATE_AGAIN);
    assert_true(engine_reached(&engines[0], AT_AGAIN, HARNESS_DEADLINE_MS));
    assert_int_equal(engines[0].ranks[1].values[3], RANKS);
    succeed_and_end(&cluster, engines);
}

static void test_one_coordinator(void **state)
{
    (void)state;
    go_on_after(1, false);
}

static void test_all_coordinators(void **state)
{
    (void)state;
    go_on_after(-1, false);
}

static void test_keeper_then_coordinators(void **state)
{
    (void)state;
    go_on_after(0, true);
}

/* The serving engine dies while there is no coordinator: taken over from as soon as there is one. */
static void test_engine_dies_meanwhile(void **state)
{
    struct cluster cluster;
    struct engine engines[2];
    struct picture before[RANKS];
    (void)state;
    start_two(&cluster, engines, before);
    cluster_kill_coordinators(&cluster, 0);
    engine_kill(&engines[0], 0);
    cluster_relaunch(&cluster, NULL);
    assert_true(engine_reached(&engines[1], AT_SERVING, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(engines[1].ranks[rank].values[0], SEALED);
        assert_int_equal(cluster_number(&cluster, rank, "serving_engine"), 1);
        assert_false(engine_rank_alive(&engines[0], rank)); /* fenced, both */
    }
    engine_finish(&engines[0]);
    engine_go(&engines[1], GATE_END);
    assert_true(engine_wait_end(&engines[1], HARNESS_DEADLINE_MS));
    engine_finish(&engines[1]);
    cluster_stop(&cluster);
}

static bool engine_is_gone(void *context)
{
    const struct expected *expected = context;
    for (uint32_t rank = 0; rank < expected->cluster->ranks; rank++) {
        json_t *status = cluster_status(expected->cluster, rank), *item;
        bool found = status == NULL;
        size_t i;
        json_array_foreach(json_object_get(status, "engines"), i, item) found =
            found || json_integer_value(json_object_get(item, "engine")) == (json_int_t)expected->engine;
        json_decref(status);
        if (found)
            return false;
    }
    return true;
}

static void await_gone(const struct cluster *cluster, uint32_t engine)
{
    struct expected expected = {cluster, engine, NULL};
    assert_true(eventually(engine_is_gone, &expected, HARNESS_DEADLINE_MS));
}

/* The shadow has died and its memory was given up before; that is in no record, so the next world hears of it from the
 * stored state as of one that is condemned. It goes on all the same. */
static void test_shadow_was_forgotten(void **state)
{
    struct cluster cluster;
    struct engine engines[2];
    struct picture before[RANKS];
    (void)state;
    start_two(&cluster, engines, before);
    engine_kill(&engines[1], 0);
    await_gone(&cluster, 1);
    cluster_kill_coordinators(&cluster, 1);
    cluster_relaunch(&cluster, NULL);
    await(&cluster, 0, "serving");
    await_gone(&cluster, 1);
    engine_finish(&engines[1]);
    engine_start(&engines[1], &cluster, 1, "c", live, 0);
    assert_true(engine_reached(&engines[1], AT_PARKED, HARNESS_DEADLINE_MS));
    await(&cluster, 1, "parked");
    succeed_and_end(&cluster, engines);
}

/* Makes weights and does not come to publish them. */
static gms_status make_weights(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    gms_pool *weights = NULL;
    struct gms_membership membership;
    const struct gms_pool_description description = {.name = "weights", .kind = GMS_POOL_WEIGHTS, .bytes = 65536};
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status == GMS_OK)
        status = gms_pool_attach(session, &description, &weights, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_PARKED);
    rank_gate(rank, GATE_END);
    return GMS_OK;
}

/* The same, where what was given up is a pool that nobody had published. */
static void test_maker_was_forgotten(void **state)
{
    struct cluster cluster;
    struct engine engines[2];
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    engine_start(&engines[0], &cluster, 0, "a", make_weights, 0);
    assert_true(engine_reached(&engines[0], AT_PARKED, HARNESS_DEADLINE_MS));
    engine_kill(&engines[0], 1);
    await_gone(&cluster, 0);
    cluster_kill_coordinators(&cluster, -1);
    cluster_relaunch(&cluster, NULL);
    await_gone(&cluster, 0);
    engine_start(&engines[1], &cluster, 1, "b", live, 0);
    assert_true(engine_reached(&engines[1], AT_SERVING, HARNESS_DEADLINE_MS));
    engine_finish(&engines[0]);
    engine_finish(&engines[1]);
    cluster_stop(&cluster);
}

/* A planned stop, and a start afterwards: the same. */
static void test_planned_stop(void **state)
{
    struct cluster cluster;
    struct engine engines[2];
    struct picture before[RANKS];
    (void)state;
    start_two(&cluster, engines, before);
    struct gms_message down = {.type = GMS_MESSAGE_SHUTDOWN};
    assert_int_equal(cluster_order(&cluster, 1, &down), GMS_OK);
    assert_int_equal(cluster_wait_end(&cluster, HARNESS_DEADLINE_MS), 0);
    cluster_relaunch(&cluster, NULL);
    await(&cluster, 0, "serving");
    await(&cluster, 1, "parked");
    assert_same_pictures(&cluster, before);
    assert_int_equal(cluster_log_count(&cluster, "is condemned"), 0);
    succeed_and_end(&cluster, engines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_coordinator),
        cmocka_unit_test(test_all_coordinators),
        cmocka_unit_test(test_keeper_then_coordinators),
        cmocka_unit_test(test_engine_dies_meanwhile),
        cmocka_unit_test(test_shadow_was_forgotten),
        cmocka_unit_test(test_maker_was_forgotten),
        cmocka_unit_test(test_planned_stop),
    };
    return cmocka_run_group_tests_name("coord_recovery", tests, NULL, NULL);
}
