/* SPDX-License-Identifier: Apache-2.0
 * Exchange: rank 0's bytes on every rank of the same incarnation, or on none. The cluster checks every answer for being
 * what rank 0 gave to that very call (tests/sim/checks.c). */
#include "core/core_state.h"
#include "core_support.h"

#include <stdlib.h>

static struct gms_proposal exchange(uint64_t incarnation, uint32_t sequence)
{
    return cluster_on_pool(GMS_OPERATION_EXCHANGE, incarnation, sequence, "id");
}

static bool has(const struct cluster *c, uint32_t rank, uint64_t incarnation, uint32_t sequence)
{
    const uint8_t *data;
    uint32_t bytes;

    return gms_core_look_exchange(c->cores[rank], incarnation, sequence, &data, &bytes);
}

static void test_one_after_another(void **state)
{
    struct cluster *c = new_cluster(3);

    (void)state;
    join(c, 0, 11);
    for (uint32_t sequence = 1; sequence < 70;
         sequence++) { /* more than outcomes are kept; lengths 0 and 128 as well */
        struct gms_proposal proposal = exchange(1, sequence);
        assert_int_equal(everywhere(c, 0, &proposal).status, GMS_OK);
        assert_true(has(c, 2, 1, sequence));
        assert_false(has(c, 2, 1, sequence - 1)); /* the last alone is kept */
    }
    assert_false(has(c, 0, 2, 69));
    assert_agreed(c);
    cluster_free(c);
}

/* Eight engines at once: one lane, and everybody's turn comes, within the same time. */
static void test_engines_at_once_do_not_mix(void **state)
{
    struct cluster *c = new_cluster(3);

    (void)state;
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++)
        join(c, e, 11 + e);
    for (uint32_t r = 0; r < 3; r++)
        for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
            struct gms_proposal proposal = exchange(1 + e, 1);
            cluster_propose(c, r, e, session_of(e, r), &proposal);
        }
    uint64_t before = cluster_look(c, 0).next_round;
    cluster_settle(c);
    assert_sound(c);
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++)
        for (uint32_t r = 0; r < 3; r++)
            assert_true(has(c, r, 1 + e, 1));
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 3 * 2 * GMS_MAX_ENGINES);
    assert_in_range(cluster_look(c, 0).next_round - before, 2, 3 * GMS_MAX_ENGINES);
    assert_agreed(c);
    cluster_free(c);
}

/* An engine whose other ranks never come holds nobody up, and its own ranks are told when its time is over. */
static void test_a_stuck_one_holds_nobody_up(void **state)
{
    struct cluster *c = new_cluster(3);
    struct gms_proposal stuck = exchange(1, 1), other = exchange(2, 1);

    (void)state;
    join(c, 0, 11);
    join(c, 1, 12);
    cluster_propose(c, 0, 0, session_of(0, 0), &stuck);
    cluster_settle(c);
    cluster_forget_trace(c);
    assert_int_equal(everywhere(c, 1, &other).status, GMS_OK);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 3);
    cluster_forget_trace(c);
    cluster_advance(c, 10001 * MS);
    const struct gms_action *reply = cluster_last(c, 0, GMS_ACTION_REPLY);
    assert_non_null(reply);
    assert_int_equal(reply->reply.outcome.status, GMS_E_EXPIRED);
    assert_int_equal(reply->reply.outcome.rank, 1);
    assert_sound(c);
    cluster_free(c);
}

/* The same when both were there for one round, and nothing else gives rise to another one. */
static void test_two_in_one_round(void **state)
{
    struct cluster *c = new_cluster(3);
    struct gms_proposal stuck = exchange(1, 1), other = exchange(2, 1), else_where = cluster_join(99);

    (void)state;
    join(c, 0, 11);
    join(c, 1, 12);
    cluster_propose(c, 0, 5, session_of(5, 0),
                    &else_where); /* rank 0 is in a round with this one when the others come */
    cluster_propose(c, 0, 0, session_of(0, 0), &stuck);
    cluster_forget_trace(c);
    assert_int_equal(everywhere(c, 1, &other).status, GMS_OK);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 3);
    cluster_free(c);
}

/* What rank 0 gives before the others ask is not kept yet, and gives rise to no rounds. */
static void test_nothing_is_kept_before_all_ask(void **state)
{
    struct cluster *c = new_cluster(3);
    struct gms_proposal proposals[2] = {exchange(1, 1), exchange(2, 1)};

    (void)state;
    join(c, 0, 11);
    join(c, 1, 12);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t e = 0; e < 2; e++) {
            cluster_propose(c, r, e, session_of(e, r), &proposals[e]);
            cluster_settle(c);
            assert_false(has(c, r, 1 + e, 1));
        }
    uint64_t before = cluster_look(c, 0).next_round;
    for (uint32_t e = 2; e-- > 0;) { /* what is due goes first, whichever engine's it is */
        cluster_propose(c, 2, e, session_of(e, 2), &proposals[e]);
        cluster_settle(c);
        for (uint32_t r = 0; r < 3; r++)
            assert_true(has(c, r, 1 + e, 1));
    }
    assert_in_range(cluster_look(c, 0).next_round - before, 4, 8); /* asked, carried, voted */
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 2 * 3 * 2);
    assert_agreed(c);
    cluster_free(c);
}

/* Rank 0 was told and asks for the next one, while rank 1's answer is on its way: it is not what comes next. */
static void test_the_quick_wait_for_the_slow(void **state)
{
    struct cluster *c = new_cluster(3);
    struct gms_proposal first = exchange(1, 1), second = exchange(1, 2), other = exchange(2, 1);

    (void)state;
    join(c, 0, 11);
    join(c, 1, 12);
    for (uint32_t r = 0; r < 3; r++)
        cluster_propose(c, r, 0, session_of(0, r), &first);
    c->held[1] = 1u << CLUSTER_PREPARE; /* up to rank 1's vote */
    cluster_settle(c);
    c->held[1] = 1u << CLUSTER_STORE; /* and then all but its record of the outcome */
    cluster_settle(c);
    assert_int_equal(cluster_count(c, 1, GMS_ACTION_REPLY), 2); /* its joins */
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.outcome.status, GMS_OK);
    cluster_propose(c, 0, 0, session_of(0, 0), &second);
    cluster_settle(c);
    for (uint32_t r = 0; r < 3; r++) /* rounds go on with others meanwhile */
        cluster_propose(c, r, 1, session_of(1, r), &other);
    cluster_settle(c);
    cluster_propose(c, 2, 0, session_of(0, 2), &second);
    cluster_settle(c);
    assert_true(has(c, 1, 1, 1));
    c->held[1] = 0;
    cluster_settle(c); /* the cluster compares what rank 1 is told */
    assert_sound(c);
    assert_int_equal(cluster_count(c, 1, GMS_ACTION_REPLY), 4);
    cluster_propose(c, 1, 0, session_of(0, 1), &second);
    cluster_settle(c);
    assert_sound(c);
    for (uint32_t r = 0; r < 3; r++)
        assert_true(has(c, r, 1, 2));
    cluster_free(c);
}

/* The coordinators die when rank 0 alone had been told; in the next world it is back first, and asks for the next. */
static void test_coordinators_die_between_two(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_proposal proposals[3] = {exchange(1, 1), exchange(1, 2), exchange(1, 3)};

    (void)state;
    join(c, 0, 11);
    for (unsigned i = 0; i < 2; i++) {
        for (uint32_t r = 0; r < 2; r++)
            cluster_propose(c, r, 0, session_of(0, r), &proposals[i]);
        c->held[1] = 1u << CLUSTER_PREPARE;
        cluster_settle(c);
        c->held[1] = 1u << CLUSTER_STORE;
        cluster_settle(c);
        c->held[1] = 0;
        cluster_forget_trace(c);
        cluster_bounce(c, NULL);
        for (unsigned asked = 0; asked < 2; asked++) { /* the second time it has asked in the world before, too */
            cluster_propose(c, 0, 0, session_of(0, 0), &proposals[i + 1]);
            cluster_settle(c);
            assert_sound(c);
            assert_int_equal(cluster_count(c, 0, GMS_ACTION_REPLY), 0);
            cluster_bounce(c, NULL);
        }
        cluster_propose(c, 0, 0, session_of(0, 0), &proposals[i + 1]);
        cluster_settle(c);
        cluster_propose(c, 1, 0, session_of(0, 1), &proposals[i]);
        cluster_settle(c);
        assert_sound(c); /* what rank 1 was told is what rank 0 had been */
        assert_int_equal(cluster_last(c, 1, GMS_ACTION_REPLY)->reply.outcome.status, GMS_OK);
        assert_true(has(c, 1, 1, i + 1));
    }
    cluster_propose(c, 1, 0, session_of(0, 1), &proposals[2]);
    cluster_settle(c);
    assert_sound(c);
    assert_true(has(c, 1, 1, 3));
    cluster_free(c);
}

/* Rank 0 dies in the middle: the others are told that their incarnation is condemned, at once. */
static void test_rank_0_dies_in_the_middle(void **state)
{
    struct cluster *c = new_cluster(3);
    struct gms_proposal proposal = exchange(1, 1);

    (void)state;
    for (unsigned spoke = 0; spoke < 2; spoke++) { /* before and after it had said what it gives */
        c = spoke ? new_cluster(3) : c;
        join(c, 0, 11);
        cluster_forget_trace(c);
        for (uint32_t r = spoke ? 0 : 1; r < 3 - spoke; r++) /* never all three */
            cluster_propose(c, r, 0, session_of(0, r), &proposal);
        cluster_settle(c);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 0);
        cluster_session_gone(c, 0, 0, session_of(0, 0));
        cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
        cluster_settle(c);
        assert_sound(c);
        const struct gms_action *reply = cluster_last(c, 1, GMS_ACTION_REPLY);
        assert_non_null(reply);
        assert_int_equal(reply->reply.outcome.status, GMS_E_CONDEMNED);
        cluster_free(c);
    }
}

/* What an earlier incarnation was given nobody gets under a later one, nor by asking under the old name. */
static void test_incarnations_never_mix(void **state)
{
    struct cluster *c = new_cluster(3);
    struct gms_proposal first = exchange(1, 1), second = exchange(2, 1);

    (void)state;
    join(c, 0, 11);
    c->held[2] = 1u << CLUSTER_PREPARE;
    for (uint32_t r = 0; r < 3; r++)
        cluster_propose(c, r, 0, session_of(0, r), &first); /* begun, never completed */
    cluster_settle(c);
    c->held[2] = 0;
    assert_true(has(c, 2, 1, 1));
    fact_everywhere(c, 0, 1, GMS_FACT_GONE);
    fact_everywhere(c, 0, 1, GMS_FACT_RETIRED);
    assert_int_equal(join(c, 0, 12), 2);
    assert_false(has(c, 2, 1, 1));
    assert_false(has(c, 2, 2, 1));
    cluster_forget_trace(c);
    for (unsigned i = 0; i < 2; i++, first.key.sequence++) { /* what was asked for, and what never was */
        cluster_propose(c, 1, 0, session_of(0, 1), &first);
        const struct gms_action *reply = cluster_last(c, 1, GMS_ACTION_REPLY);
        assert_non_null(reply);
        assert_int_equal(reply->reply.outcome.status, i == 0 ? GMS_E_CONDEMNED : GMS_E_STALE);
    }
    assert_int_equal(everywhere(c, 0, &second).status, GMS_OK);
    assert_agreed(c);
    cluster_free(c);
}

static void test_value_and_name_are_compared(void **state)
{
    struct cluster *c = new_cluster(3);
    struct gms_proposal proposal = exchange(1, 1);
    const struct gms_action *reply;

    (void)state;
    join(c, 0, 11);
    for (unsigned field = 0; field < 2; field++) {
        for (uint32_t r = 0; r < 3; r++) {
            struct gms_proposal own = proposal;
            own.fields[field] += r == 2;
            cluster_propose(c, r, 0, session_of(0, r), &own);
        }
        cluster_settle(c);
        reply = cluster_last(c, 0, GMS_ACTION_REPLY);
        assert_int_equal(reply->reply.outcome.status, GMS_E_MISMATCH);
        assert_non_null(strstr(reply->reply.outcome.text, field ? "value differs: rank 0" : "name differs: rank 0"));
        proposal.key.sequence++;
    }
    assert_sound(c);
    cluster_free(c);
}

/* A lane that speaks of another call, or says more than it can hold, gives nothing to this one. */
static void test_only_the_call_that_is_named(void **state)
{
    struct cluster *c = new_cluster(2);
    const struct gms_operation_key key = exchange(1, 2).key;
    const struct gms_ballot_exchange right = {.incarnation = 1, .sequence = 2, .bytes = 3, .data = "abc"};
    struct gms_ballot_exchange wrong[4] = {right, right, right, {0}};

    (void)state;
    join(c, 0, 11);
    wrong[0].sequence = 1;
    wrong[1].incarnation = 2;
    wrong[2].bytes = GMS_BALLOT_EXCHANGE_BYTES + 1;
    for (unsigned i = 0; i < 4; i++) {
        uint64_t digest = c->cores[0]->digest;
        assert_false(gms_core_exchange_take(c->cores[0], 0, &key, &wrong[i]));
        assert_false(has(c, 0, 1, 2));
        assert_int_equal(c->cores[0]->digest, digest);
    }
    assert_true(gms_core_exchange_take(c->cores[0], 0, &key, &right));
    assert_true(has(c, 0, 1, 2));
    cluster_free(c);
}

static void test_too_much_is_refused(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_event event = {.type = GMS_EVENT_PROPOSE};

    (void)state;
    join(c, 0, 11);
    event.propose.engine = 0;
    event.propose.session = session_of(0, 0);
    event.propose.proposal = exchange(1, 1);
    event.propose.exchange_bytes = GMS_BALLOT_EXCHANGE_BYTES + 1;
    cluster_step(c, 0, &event);
    const struct gms_action *reply = cluster_last(c, 0, GMS_ACTION_REPLY);
    assert_int_equal(reply->reply.outcome.status, GMS_E_INVALID);
    assert_non_null(strstr(reply->reply.outcome.text, "129 bytes; the limit is 128"));
    cluster_free(c);
}

/* The state that a new world goes on from has it, so that an answer that was lost can be given again. */
static void test_snapshot_keeps_it(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_proposal proposal = exchange(1, 1);
    static uint8_t snapshot[GMS_SNAPSHOT_MAX_BYTES];
    const uint8_t *data = NULL;
    uint8_t given[GMS_BALLOT_EXCHANGE_BYTES];
    uint32_t bytes = 0;

    (void)state;
    join(c, 0, 11);
    assert_int_equal(everywhere(c, 0, &proposal).status, GMS_OK);
    size_t written = gms_core_snapshot(c->cores[1], snapshot, sizeof snapshot);
    assert_true(written > 0);
    struct gms_core *core = NULL;
    struct gms_core_options options = c->options;
    options.world++;
    void *memory = aligned_alloc(16, (gms_core_bytes() + 15) / 16 * 16);
    struct gms_actions *actions = malloc(sizeof *actions);
    assert_non_null(memory);
    assert_non_null(actions);
    assert_int_equal(gms_core_restore(memory, &options, GMS_RECOVERY_RESTORE, snapshot, written, 1, &core, actions),
                     GMS_OK);
    assert_true(gms_core_look_exchange(core, 1, 1, &data, &bytes));
    assert_int_equal(bytes, cluster_gives(&proposal.key, 0, 1, given));
    assert_memory_equal(data, given, bytes);
    free(actions);
    free(memory);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_after_another),
        cmocka_unit_test(test_engines_at_once_do_not_mix),
        cmocka_unit_test(test_a_stuck_one_holds_nobody_up),
        cmocka_unit_test(test_two_in_one_round),
        cmocka_unit_test(test_nothing_is_kept_before_all_ask),
        cmocka_unit_test(test_the_quick_wait_for_the_slow),
        cmocka_unit_test(test_coordinators_die_between_two),
        cmocka_unit_test(test_only_the_call_that_is_named),
        cmocka_unit_test(test_rank_0_dies_in_the_middle),
        cmocka_unit_test(test_incarnations_never_mix),
        cmocka_unit_test(test_value_and_name_are_compared),
        cmocka_unit_test(test_too_much_is_refused),
        cmocka_unit_test(test_snapshot_keeps_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
