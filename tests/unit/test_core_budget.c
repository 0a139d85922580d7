/* SPDX-License-Identifier: Apache-2.0
 * The kv budget: what one rank can spare, the least of all ranks, and that it is then honoured as bytes. */
#include <stdlib.h>

#include "core_support.h"
#include "core/snapshot.h"

#define GIB (UINT64_C(1) << 30)

static struct gms_proposal budget_call(uint64_t incarnation, uint32_t sequence, uint64_t here)
{
    struct gms_proposal proposal = cluster_call(GMS_OPERATION_BUDGET, incarnation, sequence);

    proposal.fields[GMS_BUDGET_FIELD_HERE] = here;
    return proposal;
}

/* As `everywhere`, with a number of each rank's own in `field`. */
static struct gms_outcome everywhere_with(struct cluster *c, uint32_t engine, struct gms_proposal proposal,
                                          uint32_t field, const uint64_t *here)
{
    for (uint32_t r = 0; r < c->ranks; r++) {
        proposal.fields[field] = here[r];
        cluster_propose(c, r, engine, session_of(engine, r), &proposal);
    }
    cluster_settle(c);
    assert_sound(c);
    const struct gms_action *first = cluster_last(c, 0, GMS_ACTION_REPLY);
    for (uint32_t r = 0; r < c->ranks; r++) {
        const struct gms_action *reply = cluster_last(c, r, GMS_ACTION_REPLY);
        assert_int_equal(reply->reply.outcome.key.sequence, proposal.key.sequence);
        assert_memory_equal(&reply->reply.outcome, &first->reply.outcome, sizeof reply->reply.outcome);
    }
    return first->reply.outcome;
}

static void test_one_rank(void **state)
{
    const struct gms_budget_inputs plain = {.total_bytes = 140 * GIB,
                                            .percent = 85,
                                            .weights_bytes = 20 * GIB,
                                            .capacity_bytes = UINT64_MAX,
                                            .shadows = 1,
                                            .reserve_bytes = 10 * GIB,
                                            .granularity_bytes = 2 << 20};
    struct gms_budget_inputs inputs = plain;

    (void)state;
    assert_int_equal(gms_budget_here(&inputs), 110 * GIB * 85 / 100 / (2 << 20) * (2 << 20));
    inputs.measured_bytes = 3 * GIB; /* replaces the reserve, for each shadow */
    inputs.shadows = 2;
    inputs.percent = 100;
    assert_int_equal(gms_budget_here(&inputs), 114 * GIB);
    inputs.capacity_bytes = 50 * GIB + 12345;
    assert_int_equal(gms_budget_here(&inputs), 50 * GIB);
    inputs = plain;
    inputs.shadows = 12; /* they need more than there is */
    assert_int_equal(gms_budget_here(&inputs), 1);
    inputs.shadows = 7;
    inputs.reserve_bytes = UINT64_MAX / 2;
    assert_int_equal(gms_budget_here(&inputs), 1);
    inputs = plain;
    inputs.total_bytes = 0; /* unknown is not none */
    assert_int_equal(gms_budget_here(&inputs), UINT64_MAX);
    inputs.total_bytes = UINT64_MAX; /* no overflow on the way */
    inputs.percent = 100;
    inputs.shadows = 0;
    inputs.weights_bytes = 0;
    inputs.granularity_bytes = 1;
    assert_int_equal(gms_budget_here(&inputs), UINT64_MAX / 100 * 100 + UINT64_MAX % 100);
}

static void test_the_least_is_agreed_and_stands(void **state)
{
    struct cluster *c = new_cluster(3);
    struct gms_budget budget;
    struct gms_proposal kv;

    (void)state;
    join(c, 0, 11);
    join(c, 1, 12);
    assert_false(gms_core_look_budget(c->cores[0], &budget));
    struct gms_outcome outcome =
        everywhere_with(c, 0, budget_call(1, 1, 0), GMS_BUDGET_FIELD_HERE, (uint64_t[]){900000, 700000, 800000});
    assert_int_equal(outcome.status, GMS_OK);
    assert_int_equal(outcome.budget, 700000);
    assert_true(gms_core_look_budget(c->cores[2], &budget));
    assert_int_equal(budget.rank, 1);
    /* Another one that starts meanwhile is told the same, whatever was measured, and may make the pool by it. */
    outcome = everywhere_with(c, 1, budget_call(2, 1, 0), GMS_BUDGET_FIELD_HERE, (uint64_t[]){80000, 90000, 81000});
    assert_int_equal(outcome.budget, 700000);
    outcome = everywhere_with(c, 1, budget_call(2, 2, 0), GMS_BUDGET_FIELD_HERE, (uint64_t[]){1, UINT64_MAX, 1});
    assert_int_equal(outcome.budget, 700000);
    /* The first one's end takes nothing from the other, also when others ask now. */
    cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    fact_everywhere(c, 0, 1, GMS_FACT_RETIRED);
    assert_int_equal(join(c, 0, 14), 3);
    outcome = everywhere_with(c, 0, budget_call(3, 1, 0), GMS_BUDGET_FIELD_HERE, (uint64_t[]){80000, 90000, 81000});
    assert_int_equal(outcome.budget, 700000);
    kv = cluster_allocate(2, 3, "kv", GMS_POOL_KV, 100, 7000);
    outcome = everywhere_with(c, 1, kv, GMS_ALLOCATE_FIELD_BUDGET, (uint64_t[]){10, 20, 30}); /* it was told 700,000 */
    assert_int_equal(outcome.status, GMS_OK);
    kv = cluster_on_pool(GMS_OPERATION_RELEASE, 2, 4, "kv");
    outcome = everywhere_with(c, 1, kv, GMS_ALLOCATE_FIELD_BUDGET, (uint64_t[]){0, 0, 0});
    assert_int_equal(outcome.status, GMS_OK);
    assert_true(outcome.freed);
    assert_agreed(c);
    cluster_free(c);
}

/* When neither a pool nor anybody who was told is there, it is agreed anew; with a pool it stands. */
static void test_it_is_agreed_anew(void **state)
{
    struct cluster *c = new_cluster(3);
    struct gms_outcome outcome;
    struct gms_proposal kv;

    (void)state;
    join(c, 0, 11);
    join(c, 1, 12);
    for (uint32_t e = 0; e < 2; e++) {
        outcome = everywhere_with(c, e, budget_call(1 + e, 1, 0), GMS_BUDGET_FIELD_HERE,
                                  (uint64_t[]){900000, 700000, 800000});
        assert_int_equal(outcome.budget, 700000);
    }
    cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
    fact_everywhere(c, 1, 2, GMS_FACT_GONE);
    fact_everywhere(c, 1, 2, GMS_FACT_RETIRED);
    assert_int_equal(join(c, 1, 14), 3);
    outcome = everywhere_with(c, 1, budget_call(3, 1, 0), GMS_BUDGET_FIELD_HERE, (uint64_t[]){80000, 90000, 81000});
    assert_int_equal(outcome.budget, 80000);
    kv = cluster_allocate(3, 2, "kv", GMS_POOL_KV, 16, 4096);
    outcome = everywhere_with(c, 1, kv, GMS_ALLOCATE_FIELD_BUDGET, (uint64_t[]){10, 20, 30}); /* it was told 80,000 */
    assert_int_equal(outcome.status, GMS_OK);
    assert_int_equal(join(c, 2, 13), 4);
    outcome = everywhere_with(c, 2, budget_call(4, 1, 0), GMS_BUDGET_FIELD_HERE, (uint64_t[]){5, 6, UINT64_MAX});
    assert_int_equal(outcome.status, GMS_OK);
    assert_int_equal(outcome.budget, 80000);
    /* One that is there is attached, too. A second one has what is left. */
    kv = cluster_allocate(4, 2, "kv", GMS_POOL_KV, 16, 4096);
    outcome = everywhere_with(c, 2, kv, GMS_ALLOCATE_FIELD_BUDGET, (uint64_t[]){1, 1, 1});
    assert_int_equal(outcome.status, GMS_OK);
    kv = cluster_allocate(4, 3, "more", GMS_POOL_KV, 4, 4096);
    outcome = everywhere_with(c, 2, kv, GMS_ALLOCATE_FIELD_BUDGET, (uint64_t[]){900000, 900000, 900000});
    assert_int_equal(outcome.status, GMS_E_NO_CAPACITY);
    assert_int_equal(outcome.rank, 0);
    assert_non_null(
        strstr(outcome.text, "16384 bytes asked, 14464 free of the kv budget of 80000 (the least, rank 0)"));
    kv = cluster_allocate(4, 4, "more", GMS_POOL_KV, 3, 4096);
    outcome = everywhere_with(c, 2, kv, GMS_ALLOCATE_FIELD_BUDGET, (uint64_t[]){1, 1, 1});
    assert_int_equal(outcome.status, GMS_OK);
    assert_agreed(c);
    cluster_free(c);
}

/* A pool that is asked for without a question first is measured by what the ranks say with it. */
static void test_a_pool_that_is_too_large(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_core_pool_view pool;
    struct gms_budget budget;

    (void)state;
    join(c, 0, 11);
    struct gms_proposal kv = cluster_allocate(1, 1, "kv", GMS_POOL_KV, 100, 4096);
    struct gms_outcome outcome = everywhere_with(c, 0, kv, GMS_ALLOCATE_FIELD_BUDGET, (uint64_t[]){409600, 409599});
    assert_int_equal(outcome.status, GMS_E_NO_CAPACITY);
    assert_int_equal(outcome.rank, 1);
    assert_false(gms_core_look_pool(c->cores[0], 0, &pool));
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PREPARE), 2); /* the join's alone: nothing was made */
    kv = cluster_allocate(1, 2, "kv", GMS_POOL_KV, UINT64_MAX, UINT64_MAX);
    assert_int_equal(everywhere_with(c, 0, kv, GMS_ALLOCATE_FIELD_BUDGET, (uint64_t[]){409600, 409600}).status,
                     GMS_E_NO_CAPACITY);
    kv = cluster_allocate(1, 3, "kv", GMS_POOL_KV, 100, 4096);
    outcome = everywhere_with(c, 0, kv, GMS_ALLOCATE_FIELD_BUDGET, (uint64_t[]){UINT64_MAX, 409600});
    assert_int_equal(outcome.status, GMS_OK);
    assert_true(gms_core_look_budget(c->cores[0], &budget));
    assert_int_equal(budget.bytes, 409600);
    /* Weights are no kv. */
    struct gms_proposal weights = cluster_allocate(1, 4, "w", GMS_POOL_WEIGHTS, 0, 0);
    assert_int_equal(everywhere(c, 0, &weights).status, GMS_OK);
    cluster_free(c);
}

/* Weights whose creator died before it published them are void, and a kv pool may take their name: within the budget.
 */
static void test_in_the_place_of_void_weights(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_proposal weights = cluster_allocate(1, 1, "w", GMS_POOL_WEIGHTS, 0, 0), kv;
    struct gms_outcome outcome;

    (void)state;
    join(c, 0, 11);
    join(c, 1, 12);
    assert_int_equal(everywhere(c, 0, &weights).status, GMS_OK);
    cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    kv = cluster_allocate(2, 1, "w", GMS_POOL_KV, 100, 4096);
    outcome = everywhere_with(c, 1, kv, GMS_ALLOCATE_FIELD_BUDGET, (uint64_t[]){409599, 409600});
    assert_int_equal(outcome.status, GMS_E_NO_CAPACITY);
    assert_int_equal(outcome.rank, 0);
    kv = cluster_allocate(2, 2, "w", GMS_POOL_KV, 100, 4096);
    outcome = everywhere_with(c, 1, kv, GMS_ALLOCATE_FIELD_BUDGET, (uint64_t[]){409600, 409600});
    assert_int_equal(outcome.status, GMS_OK);
    assert_agreed(c);
    cluster_free(c);
}

static void test_nobody_knows(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_budget budget;

    (void)state;
    join(c, 0, 11);
    struct gms_outcome outcome =
        everywhere_with(c, 0, budget_call(1, 1, 0), GMS_BUDGET_FIELD_HERE, (uint64_t[]){UINT64_MAX, UINT64_MAX});
    assert_int_equal(outcome.status, GMS_E_UNSUPPORTED);
    assert_non_null(strstr(outcome.text, "no rank knows"));
    struct gms_proposal kv = cluster_allocate(1, 2, "kv", GMS_POOL_KV, 100, 4096);
    assert_int_equal(everywhere(c, 0, &kv).status, GMS_OK); /* then there is no limit */
    assert_false(gms_core_look_budget(c->cores[0], &budget));
    cluster_free(c);
}

/* The number goes on with the next coordinators, and is gone when nothing of the group is left. */
static void test_it_is_in_the_snapshot(void **state)
{
    static uint8_t bytes[GMS_SNAPSHOT_MAX_BYTES];
    struct cluster *c = new_cluster(2);
    struct gms_actions *actions = malloc(sizeof *actions);
    struct gms_core_options options = {.world = 78, .life = 78, .world_size = 2};
    void *memory = aligned_alloc(64, (gms_core_bytes() + 63) / 64 * 64);
    struct gms_core *restored = NULL;
    struct gms_budget budget;

    (void)state;
    assert_non_null(actions);
    assert_non_null(memory);
    join(c, 0, 11);
    assert_int_equal(everywhere_with(c, 0, budget_call(1, 1, 0), GMS_BUDGET_FIELD_HERE, (uint64_t[]){900, 700}).budget,
                     700);
    size_t count = gms_core_snapshot(c->cores[0], bytes, sizeof bytes);
    assert_true(count > 0);
    assert_int_equal(gms_core_restore(memory, &options, GMS_RECOVERY_RESTORE, bytes, count, 1, &restored, actions),
                     GMS_OK);
    assert_true(gms_core_look_budget(restored, &budget));
    assert_int_equal(budget.bytes, 700);
    assert_int_equal(budget.incarnation, 1);
    assert_int_equal(budget.rank, 1);
    assert_int_equal(gms_core_restore(memory, &options, GMS_RECOVERY_RENEW, bytes, count, 1, &restored, actions),
                     GMS_OK);
    assert_false(gms_core_look_budget(restored, &budget));
    free(memory);
    free(actions);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_the_least_is_agreed_and_stands),
        cmocka_unit_test(test_it_is_agreed_anew),
        cmocka_unit_test(test_a_pool_that_is_too_large),
        cmocka_unit_test(test_in_the_place_of_void_weights),
        cmocka_unit_test(test_nobody_knows),
        cmocka_unit_test(test_it_is_in_the_snapshot),
    };
    return cmocka_run_group_tests_name("core_budget", tests, NULL, NULL);
}
