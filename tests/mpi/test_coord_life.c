/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine's whole life with real coordinators: join, weights, KV, promotion, serving, and its succession by a shadow
 * after SIGKILL.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"

enum { AT_SERVING = 1, AT_SEALED = 2, GATE_SEAL = 1, GATE_END = 2, SEALED = 5 };

/* Serves, seals SEALED slots and leases one more, then waits. */
static gms_status primary(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    gms_status status = rank_live(rank, &life, "unix:/nowhere", error);
    if (status != GMS_OK)
        return status;
    rank->values[0] = life.adoption.adopted;
    rank->values[1] = life.adoption.idle;
    rank->values[2] = life.membership.incarnation;
    rank->values[3] = life.adoption.quarantined;
    rank_at(rank, AT_SERVING);
    rank_gate(rank, GATE_SEAL);
    for (uint32_t slot = 0; slot < rank->argument && status == GMS_OK; slot++)
        status = rank_seal(life.session, life.kv, slot, error);
    uint64_t generation;
    if (status == GMS_OK && rank->argument > 0)
        status = gms_slot_acquire(life.kv, (uint32_t)rank->argument, &generation);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SEALED);
    rank_gate(rank, GATE_END);
    gms_close(life.session);
    return GMS_OK;
}

static void check_serving(struct cluster *cluster, int64_t engine)
{
    for (uint32_t rank = 0; rank < cluster->ranks; rank++)
        assert_int_equal(cluster_number(cluster, rank, "serving_engine"), engine);
}

static void test_life_and_succession(void **state)
{
    struct cluster cluster;
    struct engine first, second;
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = 2});
    engine_start(&first, &cluster, 0, "a", primary, SEALED);
    assert_true(engine_reached(&first, AT_SERVING, HARNESS_DEADLINE_MS));
    check_serving(&cluster, 0);
    for (uint32_t rank = 0; rank < cluster.ranks; rank++) {
        assert_int_equal(first.ranks[rank].values[0], 0);
        assert_int_equal(first.ranks[rank].values[1], HARNESS_SLOTS);
    }
    engine_start(&second, &cluster, 1, "b", primary, 0);
    engine_go(&first, GATE_SEAL);
    engine_go(&second, GATE_SEAL);
    assert_true(engine_reached(&first, AT_SEALED, HARNESS_DEADLINE_MS));

    engine_kill(&first, 1);
    assert_true(engine_reached(&second, AT_SERVING, HARNESS_DEADLINE_MS));
    check_serving(&cluster, 1);
    for (uint32_t rank = 0; rank < cluster.ranks; rank++) {
        assert_int_equal(second.ranks[rank].values[0], SEALED);
        assert_int_equal(second.ranks[rank].values[3], 1); /* the leased one */
        assert_int_equal(second.ranks[rank].values[1], HARNESS_SLOTS - SEALED - 1);
        assert_false(engine_rank_alive(&first, rank)); /* the whole cohort was fenced */
    }
    engine_go(&second, GATE_END);
    assert_true(engine_wait_end(&second, HARNESS_DEADLINE_MS));
    engine_finish(&first);
    engine_finish(&second);
    cluster_stop(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life_and_succession),
    };
    return cmocka_run_group_tests_name("coord_life", tests, NULL, NULL);
}
