/* SPDX-License-Identifier: Apache-2.0
 * Merge: associative, commutative, with an identity; what it reports of many ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/ballot.h"

static uint64_t seed, random_state;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Values from a small range, so that ties and equal keys are common. */
static uint64_t few(uint64_t count)
{
    uint64_t value = next_random();
    return value % 16 == 0 ? UINT64_MAX - value % 3 : value % count;
}

/* Anything a rank may say, and some that none would. */
static void random_ballot(struct gms_ballot *ballot)
{
    gms_ballot_init(ballot);
    ballot->ranks = (uint16_t)(next_random() % 3 ? 1 : few(2000));
    ballot->flags = next_random() % 4 == 0;
    ballot->version = next_random() % 50 ? GMS_BALLOT_VERSION : (uint32_t)few(4);
    ballot->world_least = few(3);
    ballot->world_greatest = few(3);
    ballot->round_least = few(3);
    ballot->round_greatest = few(3);
    ballot->state_least = few(3);
    ballot->state_greatest = few(3);
    ballot->reclaim.step = few(3);
    ballot->reclaim.next = next_random();
    ballot->reclaim.done = (uint16_t)few(2);
    for (unsigned i = 0; i < GMS_RECLAIM_SUSPECTS; i += 5) {
        ballot->reclaim.quiet[i] = (uint16_t)few(UINT16_MAX);
        ballot->reclaim.best_effort[i] = (uint16_t)few(2);
        ballot->reclaim.cannot_know[i] = (uint16_t)few(2);
        ballot->reclaim.cannot_know_rank[i] = (uint16_t)few(UINT16_MAX);
        ballot->reclaim.blocked[i] = (uint8_t)next_random();
    }
    if (next_random() % 2) {
        ballot->exchange = (struct gms_ballot_exchange){1 + next_random() % 2, (uint32_t)few(2), (uint32_t)few(2), {0}};
        ballot->exchange.data[few(2) % sizeof ballot->exchange.data] = (uint8_t)few(3);
    }
    for (unsigned e = 0; e < GMS_MAX_ENGINES; e++) {
        struct gms_ballot_proposal *proposal = &ballot->proposals[e];

        ballot->facts[e].incarnation = next_random() % 8 ? 5 : few(3);
        for (unsigned f = 0; f < GMS_FACT_COUNT; f++) {
            ballot->facts[e].count[f] = (uint16_t)few(3);
            ballot->facts[e].lowest_rank[f] = (uint16_t)few(5);
        }
        if (next_random() % 3 == 0)
            continue;
        proposal->least = (struct gms_operation_key){few(3), few(3), (uint32_t)few(3), (uint32_t)few(3)};
        proposal->greatest = (struct gms_operation_key){few(3), few(3), (uint32_t)few(3), (uint32_t)few(3)};
        proposal->least_rank = (uint16_t)few(5);
        proposal->greatest_rank = (uint16_t)few(5);
        proposal->spoken = (uint16_t)few(3);
        proposal->prepared = (uint16_t)few(3);
        proposal->refused = (uint16_t)few(3);
        proposal->expired = (uint16_t)few(3);
        proposal->lowest_silent = (uint16_t)few(5);
        proposal->lowest_undecided = (uint16_t)few(5);
        proposal->refused_rank = (uint16_t)few(4);
        if (proposal->refused_rank == UINT16_MAX)
            continue; /* nobody: says nothing more */
        proposal->refused_status = (int32_t)few(3);
        proposal->refused_detail[0] = few(3);
        proposal->refused_detail[1] = few(3);
        for (unsigned i = 0; i < GMS_PROPOSAL_FIELDS; i++)
            proposal->fields[i] = (struct gms_digest_pair){few(4), few(4), (uint16_t)few(4), (uint16_t)few(4), {0, 0}};
    }
    /* Ordered and without doubles, as merge itself makes them. */
    for (unsigned i = 0, count = (unsigned)(next_random() % (GMS_BALLOT_TRANSFERS + 1)); i < count; i++) {
        struct gms_ballot own;

        gms_ballot_init(&own);
        own.version = ballot->version;
        own.transfers[0].incarnation = 1 + next_random() % 2;
        own.transfers[0].id = few(5);
        for (unsigned b = 0; b < sizeof own.transfers[0].finished; b += 9) {
            own.transfers[0].finished[b] = (uint8_t)next_random();
            own.transfers[0].failed[b] = (uint8_t)next_random();
        }
        gms_ballot_merge(ballot, &own);
    }
}

static void assert_same(const struct gms_ballot *a, const struct gms_ballot *b)
{
    if (memcmp(a, b, sizeof *a) != 0)
        fail_msg("ballots differ; seed %llu", (unsigned long long)seed);
}

static void test_associative_commutative_identity(void **state)
{
    (void)state;
    for (unsigned trial = 0; trial < 3000; trial++) {
        struct gms_ballot a, b, c, left, right, other;

        random_ballot(&a);
        random_ballot(&b);
        random_ballot(&c);
        left = a; /* (a b) c */
        gms_ballot_merge(&left, &b);
        other = left;
        gms_ballot_merge(&left, &c);
        right = b; /* a (b c) */
        gms_ballot_merge(&right, &c);
        struct gms_ballot outer = a;
        gms_ballot_merge(&outer, &right);
        assert_same(&left, &outer);
        right = b; /* b a */
        gms_ballot_merge(&right, &a);
        assert_same(&other, &right);
        gms_ballot_init(&other);
        if (a.version != GMS_BALLOT_VERSION || a.ranks > GMS_MAX_RANKS)
            continue; /* malformed by itself, and merge says so */
        right = a;
        gms_ballot_merge(&right, &other);
        assert_same(&right, &a);
        gms_ballot_merge(&other, &a);
        assert_same(&other, &a);
    }
}

/* Many ranks in any order and any tree: one result. */
static void test_any_tree(void **state)
{
    static const unsigned sizes[] = {3, 1024};

    (void)state;
    for (unsigned s = 0; s < 2; s++) {
        unsigned count = sizes[s];
        struct gms_ballot *ballots = calloc(count, sizeof *ballots), sum;

        assert_non_null(ballots);
        for (unsigned i = 0; i < count; i++) {
            random_ballot(&ballots[i]);
            ballots[i].ranks = 1;
        }
        gms_ballot_init(&sum);
        for (unsigned i = 0; i < count; i++)
            gms_ballot_merge(&sum, &ballots[i]);
        for (unsigned left = count; left > 1; left--) { /* two at random become one */
            unsigned from = (unsigned)(next_random() % left), into = (unsigned)(next_random() % (left - 1));

            if (into >= from)
                into++;
            gms_ballot_merge(&ballots[into], &ballots[from]);
            ballots[from] = ballots[left - 1];
        }
        assert_same(&ballots[0], &sum);
        assert_int_equal(sum.ranks, count);
        free(ballots);
    }
}

static void test_names_the_lowest_ranks(void **state)
{
    struct gms_ballot sum, own;

    (void)state;
    gms_ballot_init(&sum);
    for (int rank = GMS_MAX_RANKS - 1; rank >= 0; rank--) {
        struct gms_ballot_proposal *proposal = &own.proposals[2];

        gms_ballot_init(&own);
        own.ranks = 1;
        own.facts[2].incarnation = 7;
        if (rank % 100 == 17) {
            own.facts[2].count[GMS_FACT_GONE] = 1;
            own.facts[2].lowest_rank[GMS_FACT_GONE] = (uint16_t)rank;
        }
        if (rank == 500) {
            proposal->lowest_silent = proposal->lowest_undecided = (uint16_t)rank;
        } else {
            proposal->spoken = 1;
            proposal->least = proposal->greatest = (struct gms_operation_key){7, 0, 3, GMS_OPERATION_ALLOCATE};
            proposal->least_rank = proposal->greatest_rank = (uint16_t)rank;
            proposal->fields[1].least = proposal->fields[1].greatest = rank == 900 ? 1 : 9;
            proposal->fields[1].least_rank = proposal->fields[1].greatest_rank = (uint16_t)rank;
        }
        if (rank == 700 || rank == 600) {
            proposal->refused = 1;
            proposal->refused_rank = (uint16_t)rank;
            proposal->refused_status = GMS_E_NO_CAPACITY;
            proposal->refused_detail[0] = (uint64_t)rank;
        }
        gms_ballot_merge(&sum, &own);
    }
    assert_int_equal(sum.ranks, GMS_MAX_RANKS);
    assert_int_equal(sum.flags, 0);
    assert_int_equal(sum.facts[2].count[GMS_FACT_GONE], 11);
    assert_int_equal(sum.facts[2].lowest_rank[GMS_FACT_GONE], 17);
    assert_int_equal(sum.proposals[2].spoken, GMS_MAX_RANKS - 1);
    assert_int_equal(sum.proposals[2].lowest_silent, 500);
    assert_int_equal(sum.proposals[2].refused, 2);
    assert_int_equal(sum.proposals[2].refused_rank, 600);
    assert_int_equal(sum.proposals[2].refused_detail[0], 600);
    assert_int_equal(sum.proposals[2].fields[1].least, 1);
    assert_int_equal(sum.proposals[2].fields[1].least_rank, 900);
    assert_int_equal(sum.proposals[2].fields[1].greatest, 9);
    assert_int_equal(sum.proposals[2].fields[1].greatest_rank, 0);
    gms_ballot_merge(&sum, &own);
    assert_int_equal(sum.flags, GMS_BALLOT_MALFORMED); /* one more than there can be */
}

static void test_malformed(void **state)
{
    struct gms_ballot a, b;

    (void)state;
    gms_ballot_init(&a);
    gms_ballot_init(&b);
    b.version = GMS_BALLOT_VERSION + 1;
    gms_ballot_merge(&a, &b);
    assert_int_equal(a.flags, GMS_BALLOT_MALFORMED);
    gms_ballot_init(&a);
    gms_ballot_init(&b);
    a.facts[1].incarnation = 3;
    b.facts[1].incarnation = 4;
    gms_ballot_merge(&a, &b);
    assert_int_equal(a.flags, GMS_BALLOT_MALFORMED);
}

static void test_transfers_keep_the_lowest(void **state)
{
    struct gms_ballot a, b;

    (void)state;
    gms_ballot_init(&a);
    for (unsigned i = 9; i > 0; i--) {
        gms_ballot_init(&b);
        b.transfers[0].incarnation = 1;
        b.transfers[0].id = i - 1; /* 0 is an id */
        b.transfers[0].finished[0] = 1;
        gms_ballot_merge(&a, &b);
        b.transfers[0].finished[0] = 2;
        gms_ballot_merge(&a, &b);
    }
    for (unsigned i = 0; i < GMS_BALLOT_TRANSFERS; i++) {
        assert_int_equal(a.transfers[i].incarnation, 1);
        assert_int_equal(a.transfers[i].id, i);
        assert_int_equal(a.transfers[i].finished[0], 3);
    }
}

static void test_names(void **state)
{
    (void)state;
    for (unsigned f = 0; f < GMS_FACT_COUNT; f++)
        assert_non_null(gms_fact_name((enum gms_fact)f));
    for (unsigned o = 0; o < GMS_OPERATION_COUNT; o++)
        assert_non_null(gms_operation_name((enum gms_operation)o));
    assert_string_equal(gms_operation_name((enum gms_operation)99), "unknown operation");
    assert_string_equal(gms_fact_name((enum gms_fact)99), "unknown fact");
    assert_string_equal(gms_operation_field_name(GMS_OPERATION_JOIN, 1), "environment");
    assert_string_equal(gms_operation_field_name(GMS_OPERATION_ALLOCATE, 2), "slot count");
    assert_null(gms_operation_field_name(GMS_OPERATION_ALLOCATE, 4));
    assert_null(gms_operation_field_name(GMS_OPERATION_JOIN, GMS_PROPOSAL_FIELDS));
    assert_null(gms_operation_field_name((enum gms_operation)99, 0));
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : UINT64_C(0x6b8b4567327b23c6);
    random_state = seed ? seed : 1;
    printf("# seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_associative_commutative_identity), cmocka_unit_test(test_any_tree),
        cmocka_unit_test(test_names_the_lowest_ranks),           cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_transfers_keep_the_lowest),        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
