/* SPDX-License-Identifier: Apache-2.0
 * The group's pools: who creates, attaches, publishes, frees; what waits for what. */
#include "core_support.h"

static void test_pools(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_proposal proposal;
    struct gms_outcome outcome;
    struct gms_core_pool_view pool;

    (void)state;
    join(c, 0, 11);
    join(c, 1, 12);
    proposal = cluster_allocate(1, 1, "kv", GMS_POOL_KV, 8, 4096);
    outcome = everywhere(c, 0, &proposal);
    assert_int_equal(outcome.status, GMS_OK);
    assert_true(outcome.created);
    assert_int_equal(outcome.pool_state, GMS_POOL_READY);
    assert_int_equal(outcome.pool_creator, 1);
    assert_int_equal(outcome.pool_index, 0);

    proposal = cluster_allocate(1, 2, "w", GMS_POOL_WEIGHTS, 0, 0);
    outcome = everywhere(c, 0, &proposal);
    assert_true(outcome.created);
    assert_int_equal(outcome.pool_state, GMS_POOL_UNPUBLISHED);
    assert_int_equal(outcome.pool_index, 1);

    /* The other engine: attaches the kv, must wait for the weights. */
    proposal = cluster_allocate(2, 1, "kv", GMS_POOL_KV, 8, 4096);
    outcome = everywhere(c, 1, &proposal);
    assert_int_equal(outcome.status, GMS_OK);
    assert_false(outcome.created);
    assert_int_equal(outcome.pool_creator, 1);
    proposal = cluster_allocate(2, 2, "kv", GMS_POOL_KV, 9, 4096);
    outcome = everywhere(c, 1, &proposal);
    assert_int_equal(outcome.status, GMS_E_MISMATCH);
    assert_non_null(strstr(outcome.text, "pool kv has slot count 8, asked was 9"));
    proposal = cluster_allocate(2, 3, "w", GMS_POOL_WEIGHTS, 0, 0);
    outcome = everywhere(c, 1, &proposal);
    assert_int_equal(outcome.status, GMS_E_BUSY);
    assert_non_null(strstr(outcome.text, "being published by incarnation 1, ask again"));
    proposal = cluster_on_pool(GMS_OPERATION_PUBLISH, 2, 4, "w");
    assert_int_equal(everywhere(c, 1, &proposal).status, GMS_E_REFUSED);
    proposal = cluster_on_pool(GMS_OPERATION_PUBLISH, 2, 5, "none");
    assert_int_equal(everywhere(c, 1, &proposal).status, GMS_E_NOT_FOUND);

    proposal = cluster_on_pool(GMS_OPERATION_PUBLISH, 1, 3, "w");
    outcome = everywhere(c, 0, &proposal);
    assert_int_equal(outcome.status, GMS_OK);
    assert_int_equal(outcome.pool_index, 1);
    proposal = cluster_allocate(2, 6, "w", GMS_POOL_WEIGHTS, 0, 0);
    outcome = everywhere(c, 1, &proposal);
    assert_int_equal(outcome.status, GMS_OK);
    assert_int_equal(outcome.pool_state, GMS_POOL_READY);
    assert_false(outcome.created);

    /* Freed with the last one's release, not before; the end of an engine frees nothing. */
    proposal = cluster_on_pool(GMS_OPERATION_RELEASE, 1, 4, "w");
    outcome = everywhere(c, 0, &proposal);
    assert_false(outcome.freed);
    proposal = cluster_on_pool(GMS_OPERATION_RELEASE, 1, 5, "w");
    assert_int_equal(everywhere(c, 0, &proposal).status, GMS_E_REFUSED);
    proposal = cluster_on_pool(GMS_OPERATION_RELEASE, 2, 7, "w");
    outcome = everywhere(c, 1, &proposal);
    assert_true(outcome.freed);
    assert_false(gms_core_look_pool(c->cores[0], 1, &pool));
    fact_everywhere(c, 0, 1, GMS_FACT_GONE);
    fact_everywhere(c, 1, 2, GMS_FACT_GONE);
    assert_true(gms_core_look_pool(c->cores[0], 0, &pool));
    assert_int_equal(pool.attached_mask, 0);
    assert_int_equal(pool.state, GMS_POOL_READY);
    assert_string_equal(pool.name, "kv");
    cluster_free(c);
}

static void test_a_failed_creation_leaves_nothing(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_proposal proposal;
    struct gms_core_pool_view pool;

    (void)state;
    join(c, 0, 11);
    c->prepare_status[1] = GMS_E_DESCRIPTORS;
    proposal = cluster_allocate(1, 1, "kv", GMS_POOL_KV, 8, 4096);
    struct gms_outcome outcome = everywhere(c, 0, &proposal);
    assert_int_equal(outcome.status, GMS_E_DESCRIPTORS);
    assert_non_null(strstr(outcome.text, "rank 1: out of file descriptors"));
    assert_false(gms_core_look_pool(c->cores[0], 0, &pool));
    c->prepare_status[1] = GMS_OK;
    proposal = cluster_allocate(1, 2, "kv", GMS_POOL_KV, 16, 4096); /* of another shape */
    outcome = everywhere(c, 0, &proposal);
    assert_int_equal(outcome.status, GMS_OK);
    assert_true(outcome.created);
    assert_int_equal(outcome.pool_index, 0);
    cluster_free(c);
}

static void unpublished_weights(bool retired)
{
    struct cluster *c = new_cluster(2);
    struct gms_proposal proposal;
    struct gms_outcome outcome;

    join(c, 0, 11);
    join(c, 1, 12);
    proposal = cluster_allocate(1, 1, "w", GMS_POOL_WEIGHTS, 0, 0);
    assert_int_equal(everywhere(c, 0, &proposal).status, GMS_OK);
    c->held[1] = retired ? 0 : 1u << CLUSTER_RETIRED; /* condemned is enough: what it writes is void */
    fact_everywhere(c, 0, 1, GMS_FACT_GONE);
    assert_int_equal(cluster_look(c, 0).engines[0].role, retired ? GMS_ROLE_EMPTY : GMS_ROLE_CONDEMNED);
    proposal = cluster_allocate(2, 1, "w", GMS_POOL_WEIGHTS, 0, 0);
    outcome = everywhere(c, 1, &proposal);
    assert_int_equal(outcome.status, GMS_OK);
    assert_true(outcome.created);
    assert_int_equal(outcome.pool_creator, 2);
    assert_true(cluster_last(c, 0, GMS_ACTION_PREPARE)->prepare.create);
    cluster_free(c);
}

static void test_unpublished_weights_of_the_dead_are_made_anew(void **state)
{
    (void)state;
    unpublished_weights(true);
    unpublished_weights(false);
}

/* Two engines create one pool at the same time: one does, the other attaches it. */
static void test_concurrent_creation(void **state)
{
    (void)state;
    for (uint32_t first = 0; first < 2; first++) {
        struct cluster *c = new_cluster(2);
        struct gms_proposal own[2];
        struct gms_core_pool_view pool;

        join(c, 0, 11);
        join(c, 1, 12);
        cluster_forget_trace(c);
        own[0] = cluster_allocate(1, 1, "kv", GMS_POOL_KV, 8, 4096);
        own[1] = cluster_allocate(2, 1, "kv", GMS_POOL_KV, 8, 4096);
        c->held[0] = c->held[1] = 1u << CLUSTER_PREPARE;
        for (uint32_t i = 0; i < 2; i++) {
            for (uint32_t r = 0; r < 2; r++)
                cluster_propose(c, r, i ? !first : first, 1, &own[i ? !first : first]);
            cluster_settle(c);
        }
        assert_int_equal(cluster_count(c, 0, GMS_ACTION_PREPARE), 1);
        c->held[0] = c->held[1] = 0;
        cluster_settle(c);
        assert_sound(c);
        assert_int_equal(cluster_count(c, 0, GMS_ACTION_PREPARE), 2);
        assert_int_equal(cluster_count(c, 0, GMS_ACTION_COMMIT), 2);
        assert_true(gms_core_look_pool(c->cores[1], 0, &pool));
        assert_int_equal(pool.creator, first + 1);
        assert_int_equal(pool.attached_mask, 3);
        assert_false(gms_core_look_pool(c->cores[1], 1, &pool));
        cluster_free(c);
    }
}

/* A pool is released by its only holder while another attaches it: it is not freed under the other. */
static void test_release_waits_for_an_attach(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_proposal proposal;
    struct gms_core_pool_view pool;

    (void)state;
    join(c, 0, 11);
    join(c, 1, 12);
    proposal = cluster_allocate(1, 1, "kv", GMS_POOL_KV, 8, 4096);
    everywhere(c, 0, &proposal);
    cluster_forget_trace(c);
    c->held[0] = c->held[1] = 1u << CLUSTER_PREPARE;
    proposal = cluster_allocate(2, 1, "kv", GMS_POOL_KV, 8, 4096);
    for (uint32_t r = 0; r < 2; r++)
        cluster_propose(c, r, 1, session_of(1, r), &proposal);
    cluster_settle(c);
    proposal = cluster_on_pool(GMS_OPERATION_RELEASE, 1, 2, "kv");
    for (uint32_t r = 0; r < 2; r++)
        cluster_propose(c, r, 0, session_of(0, r), &proposal);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_PREPARE), 1);
    c->held[0] = c->held[1] = 0;
    cluster_settle(c);
    assert_sound(c);
    const struct gms_action *reply = cluster_last(c, 0, GMS_ACTION_REPLY);
    assert_int_equal(reply->reply.outcome.key.kind, GMS_OPERATION_RELEASE);
    assert_int_equal(reply->reply.outcome.status, GMS_OK);
    assert_false(reply->reply.outcome.freed);
    assert_true(gms_core_look_pool(c->cores[1], 0, &pool));
    assert_int_equal(pool.attached_mask, 2);
    cluster_free(c);
}

/* The wait is within the waiting call's own deadline, and the answer says so. */
static void test_waiting_for_a_pool_expires(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_proposal proposal;

    (void)state;
    join(c, 0, 11);
    join(c, 1, 12);
    cluster_forget_trace(c);
    c->held[1] = 1u << CLUSTER_PREPARE;
    proposal = cluster_allocate(1, 1, "kv", GMS_POOL_KV, 8, 4096);
    for (uint32_t r = 0; r < 2; r++)
        cluster_propose(c, r, 0, session_of(0, r), &proposal);
    cluster_settle(c);
    proposal = cluster_allocate(2, 1, "kv", GMS_POOL_KV, 8, 4096);
    for (uint32_t r = 0; r < 2; r++)
        cluster_propose(c, r, 1, session_of(1, r), &proposal);
    cluster_settle(c);
    cluster_advance(c, 10000 * MS);
    assert_sound(c);
    const struct gms_action *reply = cluster_last(c, 0, GMS_ACTION_REPLY);
    assert_int_equal(reply->reply.session, session_of(1, 0));
    assert_int_equal(reply->reply.outcome.status, GMS_E_EXPIRED);
    assert_int_equal(reply->reply.outcome.rank, -1);
    assert_non_null(strstr(reply->reply.outcome.text, "waited for another engine's operation"));
    cluster_free(c);
}

static void test_pool_table_is_full(void **state)
{
    struct cluster *c = new_cluster(2);

    (void)state;
    join(c, 0, 11);
    for (uint32_t i = 0; i <= GMS_MAX_POOLS; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%u", i);
        struct gms_proposal proposal = cluster_allocate(1, i + 1, name, GMS_POOL_KV, 8, 4096);
        struct gms_outcome outcome = everywhere(c, 0, &proposal);
        assert_int_equal(outcome.status, i < GMS_MAX_POOLS ? GMS_OK : GMS_E_NO_CAPACITY);
    }
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pools),
        cmocka_unit_test(test_a_failed_creation_leaves_nothing),
        cmocka_unit_test(test_unpublished_weights_of_the_dead_are_made_anew),
        cmocka_unit_test(test_concurrent_creation),
        cmocka_unit_test(test_release_waits_for_an_attach),
        cmocka_unit_test(test_waiting_for_a_pool_expires),
        cmocka_unit_test(test_pool_table_is_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
