/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank asks after the operation's deadline, for every kind of operation: it happens on no rank, all are told the
 * same, the late one too, and the next try succeeds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/ballot.h"
#include "harness.h"

enum { RANKS = 3, LATE_RANK = 1, AT_BEFORE = 1, AT_TOLD = 2, AT_DONE = 3, GATE_LATE = 1, GATE_AGAIN = 2, GATE_END = 3 };

struct life {
    gms_session *session;
    gms_pool *weights, *kv;
    struct gms_adoption adoption;
};

/* One call of this kind. */
static gms_status call(struct engine_rank *rank, struct life *life, enum gms_operation kind, struct gms_error *error)
{
    struct gms_membership membership;
    if (kind == GMS_OPERATION_JOIN)
        return rank_join(life->session, rank, &membership, error);
    if (kind == GMS_OPERATION_ALLOCATE)
        return rank_attach_kv(life->session, HARNESS_SLOTS, &life->kv, error);
    if (kind == GMS_OPERATION_PUBLISH)
        return gms_publish(life->weights, error);
    if (kind == GMS_OPERATION_ADOPT)
        return gms_adopt(life->session, &life->adoption, error);
    return gms_pool_release(life->weights, error);
}

/* Everything an engine does before its first call of `kind`. */
static gms_status live_until(struct engine_rank *rank, struct life *life, enum gms_operation kind,
                             struct gms_error *error)
{
    const struct gms_pool_description weights = {.name = "weights", .kind = GMS_POOL_WEIGHTS, .bytes = 65536};
    struct gms_promotion promotion;
    struct gms_membership membership;
    gms_status status = rank_open(rank, &life->session, error);
    if (status != GMS_OK || kind == GMS_OPERATION_JOIN)
        return status;
    status = rank_join(life->session, rank, &membership, error);
    if (status != GMS_OK || kind == GMS_OPERATION_ALLOCATE)
        return status;
    status = gms_pool_attach(life->session, &weights, &life->weights, error);
    if (status == GMS_OK)
        status = gms_manifest_add(life->weights, "all", 0, 65536, error);
    if (status != GMS_OK || kind == GMS_OPERATION_PUBLISH)
        return status;
    status = gms_publish(life->weights, error);
    if (status != GMS_OK || kind == GMS_OPERATION_RELEASE)
        return status;
    status = rank_attach_kv(life->session, HARNESS_SLOTS, &life->kv, error);
    if (status == GMS_OK)
        status = gms_park(life->session, error);
    if (status == GMS_OK)
        status = gms_wait_promotion(life->session, HARNESS_DEADLINE_MS, &promotion, error);
    return status;
}

static gms_status body(struct engine_rank *rank, struct gms_error *error)
{
    struct life life = {.session = NULL};
    enum gms_operation kind = (enum gms_operation)rank->argument;
    gms_status status = live_until(rank, &life, kind, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_BEFORE);
    if (rank->rank == LATE_RANK)
        rank_gate(rank, GATE_LATE);
    struct gms_error told = {.status = GMS_OK};
    rank->values[0] = (uint64_t)call(rank, &life, kind, &told);
    rank->error_rank = told.rank;
    memcpy(rank->text, told.text, sizeof rank->text);
    rank_at(rank, AT_TOLD);
    rank_gate(rank, GATE_AGAIN);
    if (kind != GMS_OPERATION_JOIN) { /* a launch joins once */
        status = call(rank, &life, kind, error);
        if (status != GMS_OK)
            return status;
    }
    rank_at(rank, AT_DONE);
    rank_gate(rank, GATE_END);
    gms_close(life.session);
    return GMS_OK;
}

static bool others_told(void *context)
{
    const struct engine *engine = context;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (rank != LATE_RANK && atomic_load(&engine->ranks[rank].at) < AT_TOLD)
            return false;
    return true;
}

static void late_for(enum gms_operation kind)
{
    struct cluster cluster;
    struct engine engine;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .operation_timeout = "500ms"});
    engine_start(&engine, &cluster, 0, "a", body, (uint64_t)kind);
    assert_true(engine_reached(&engine, AT_BEFORE, HARNESS_DEADLINE_MS));
    assert_true(eventually(others_told, &engine, HARNESS_DEADLINE_MS));
    assert_int_equal(atomic_load(&engine.ranks[LATE_RANK].at), AT_BEFORE);
    engine_go(&engine, GATE_LATE);
    assert_true(engine_reached(&engine, AT_TOLD, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (engine.ranks[rank].values[0] != GMS_E_EXPIRED)
            fail_msg("%s: rank %u was told %s: %s", gms_operation_name(kind), rank,
                     gms_status_name((gms_status)engine.ranks[rank].values[0]), engine.ranks[rank].text);
        assert_int_equal(engine.ranks[rank].error_rank, LATE_RANK);
        assert_string_equal(engine.ranks[rank].text, engine.ranks[0].text);
    }
    int64_t used = cluster_number(&cluster, 0, "used_bytes");
    for (uint32_t rank = 1; rank < RANKS; rank++)
        assert_int_equal(cluster_number(&cluster, rank, "used_bytes"), used);
    engine_go(&engine, GATE_AGAIN);
    assert_true(engine_reached(&engine, AT_DONE, HARNESS_DEADLINE_MS));
    engine_go(&engine, GATE_END);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    engine_finish(&engine);
    if (kind == GMS_OPERATION_JOIN) { /* and the engine id is free for another start */
        engine_start(&engine, &cluster, 0, "b", body, GMS_OPERATION_ALLOCATE);
        assert_true(engine_reached(&engine, AT_BEFORE, HARNESS_DEADLINE_MS));
        engine_finish(&engine);
    }
    cluster_stop(&cluster);
}

static void test_join(void **state)
{
    (void)state;
    late_for(GMS_OPERATION_JOIN);
}

static void test_allocate(void **state)
{
    (void)state;
    late_for(GMS_OPERATION_ALLOCATE);
}

static void test_publish(void **state)
{
    (void)state;
    late_for(GMS_OPERATION_PUBLISH);
}

static void test_adopt(void **state)
{
    (void)state;
    late_for(GMS_OPERATION_ADOPT);
}

static void test_release(void **state)
{
    (void)state;
    late_for(GMS_OPERATION_RELEASE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join),  cmocka_unit_test(test_allocate), cmocka_unit_test(test_publish),
        cmocka_unit_test(test_adopt), cmocka_unit_test(test_release),
    };
    return cmocka_run_group_tests_name("coord_late", tests, NULL, NULL);
}
