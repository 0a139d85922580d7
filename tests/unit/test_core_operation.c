/* SPDX-License-Identifier: Apache-2.0
 * Collective calls: all or none, the same outcome for everybody, late askers included. */
#include "core_support.h"

static void test_join_gives_one_incarnation(void **state)
{
    struct cluster *c = new_cluster(3);

    (void)state;
    assert_int_equal(join(c, 0, 11), 1);
    assert_int_equal(join(c, 3, 12), 2);
    struct gms_core_view view = cluster_look(c, 2);
    assert_int_equal(view.engines[0].role, GMS_ROLE_JOINED);
    assert_int_equal(view.engines[0].incarnation, 1);
    assert_int_equal(view.engines[0].next_sequence, 1);
    assert_int_equal(view.engines[3].incarnation, 2);
    assert_agreed(c);
    cluster_free(c);
}

static void test_nothing_happens_until_all_ask(void **state)
{
    struct cluster *c = new_cluster(3);
    struct gms_proposal proposal = cluster_join(11);

    (void)state;
    cluster_propose(c, 0, 0, 1, &proposal);
    cluster_propose(c, 2, 0, 1, &proposal);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PREPARE), 0);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 0);
    uint64_t round = cluster_look(c, 0).next_round;
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).next_round, round); /* at rest, not spinning */
    cluster_propose(c, 1, 0, 1, &proposal);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_COMMIT), 3);
    assert_sound(c);
    cluster_free(c);
}

/* kind -> a proposal of that kind whose preconditions hold for engine 0, incarnation 1. */
static struct gms_proposal next_of(struct cluster *c, enum gms_operation kind)
{
    uint32_t sequence = cluster_look(c, 0).engines[0].next_sequence;
    struct gms_core_view view = cluster_look(c, 0);

    switch (kind) {
    case GMS_OPERATION_JOIN:
        return cluster_join(4242);
    case GMS_OPERATION_ALLOCATE:
        return cluster_allocate(1, sequence, "kv", GMS_POOL_KV, 8, 4096);
    case GMS_OPERATION_PUBLISH:
    case GMS_OPERATION_RELEASE:
    case GMS_OPERATION_EXCHANGE:
        return cluster_on_pool(kind, 1, sequence, "w");
    case GMS_OPERATION_ADOPT:
        return cluster_adopt(1, sequence, view.epoch, 0);
    case GMS_OPERATION_BUDGET: {
        struct gms_proposal budget = cluster_call(kind, 1, sequence);
        budget.fields[GMS_BUDGET_FIELD_HERE] = 1 << 20;
        return budget;
    }
    case GMS_OPERATION_NONE:
    case GMS_OPERATION_TAKEOVER:
    case GMS_OPERATION_RECLAIM:
    case GMS_OPERATION_COUNT:
        break;
    }
    fail_msg("not a call of engines");
    return cluster_join(0);
}

static const enum gms_operation kinds[] = {GMS_OPERATION_JOIN,  GMS_OPERATION_ALLOCATE, GMS_OPERATION_PUBLISH,
                                           GMS_OPERATION_ADOPT, GMS_OPERATION_RELEASE,  GMS_OPERATION_EXCHANGE,
                                           GMS_OPERATION_BUDGET};

/* Ready for an operation of `kind` by the engine slot in *ret_engine. */
static struct cluster *ready_for(enum gms_operation kind, uint32_t ranks, uint32_t *ret_engine)
{
    struct cluster *c = new_cluster(ranks);
    struct gms_proposal weights = cluster_allocate(1, 1, "w", GMS_POOL_WEIGHTS, 0, 0);

    *ret_engine = kind == GMS_OPERATION_JOIN ? 1 : 0;
    if (kind == GMS_OPERATION_ADOPT) {
        join_and_park(c, 0, 11);
        cluster_forget_trace(c);
        return c;
    }
    join(c, 0, 11);
    assert_int_equal(everywhere(c, 0, &weights).status, GMS_OK);
    cluster_forget_trace(c);
    return c;
}

static void test_each_kind_commits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        uint32_t engine;
        struct cluster *c = ready_for(kinds[i], 3, &engine);
        struct gms_proposal proposal = next_of(c, kinds[i]);

        c->adopted = 5;
        struct gms_outcome outcome = everywhere(c, engine, &proposal);
        assert_int_equal(outcome.status, GMS_OK);
        assert_int_equal(outcome.rank, -1);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_COMMIT), 3);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_ABORT), 0);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_BULK), kinds[i] == GMS_OPERATION_ADOPT ? 3 : 0);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PREPARE), kinds[i] == GMS_OPERATION_ADOPT ? 0 : 3);
        assert_int_equal(outcome.adopted, kinds[i] == GMS_OPERATION_ADOPT ? 5 : 0);
        assert_agreed(c);
        cluster_free(c);
    }
}

/* One rank's bulk or prepare fails: no rank commits, all are told who and why. */
static void test_each_kind_refused_names_the_rank(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        uint32_t engine;
        struct cluster *c = ready_for(kinds[i], 3, &engine);
        struct gms_proposal proposal = next_of(c, kinds[i]);

        if (kinds[i] == GMS_OPERATION_ADOPT)
            c->bulk_status = GMS_E_CORRUPT;
        c->prepare_status[1] = c->prepare_status[2] = GMS_E_NO_CAPACITY;
        c->prepare_detail[1][0] = 16777216;
        c->prepare_detail[1][1] = 8388608;
        struct gms_outcome outcome = everywhere(c, engine, &proposal);
        assert_int_equal(outcome.status, kinds[i] == GMS_OPERATION_ADOPT ? GMS_E_CORRUPT : GMS_E_NO_CAPACITY);
        assert_int_equal(outcome.rank, kinds[i] == GMS_OPERATION_ADOPT ? 0 : 1);
        if (kinds[i] != GMS_OPERATION_ADOPT)
            assert_non_null(strstr(outcome.text, "rank 1: 16777216 bytes asked, 8388608 free of the device capacity"));
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_COMMIT), 0);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_ABORT), 3);
        assert_agreed(c);

        /* The next call goes through: nothing is left behind. */
        c->bulk_status = GMS_OK;
        c->prepare_status[1] = c->prepare_status[2] = GMS_OK;
        proposal = next_of(c, kinds[i]);
        if (kinds[i] == GMS_OPERATION_JOIN)
            proposal.key.launch++;
        assert_int_equal(everywhere(c, engine, &proposal).status, GMS_OK);
        cluster_free(c);
    }
}

/* Descriptors that ran out are told with their numbers (V36). */
static void test_descriptors_refused_with_the_numbers(void **state)
{
    uint32_t engine;
    struct cluster *c = ready_for(GMS_OPERATION_ALLOCATE, 3, &engine);
    struct gms_proposal proposal = next_of(c, GMS_OPERATION_ALLOCATE);
    (void)state;
    c->prepare_status[2] = GMS_E_DESCRIPTORS;
    c->prepare_detail[2][0] = 256;
    c->prepare_detail[2][1] = 256;
    struct gms_outcome outcome = everywhere(c, engine, &proposal);
    assert_int_equal(outcome.status, GMS_E_DESCRIPTORS);
    assert_int_equal(outcome.rank, 2);
    assert_non_null(strstr(outcome.text, "rank 2: out of file descriptors, 256 used of 256 allowed; raise the limit"));
    assert_agreed(c);
    cluster_free(c);
}

static void test_each_kind_mismatch_names_field_and_ranks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        for (uint32_t field = 0; gms_operation_field_name(kinds[i], field); field++) {
            uint32_t engine;
            struct cluster *c = ready_for(kinds[i], 4, &engine);
            struct gms_proposal proposal = next_of(c, kinds[i]);
            char expected[128];

            proposal.fields[field] = 0x77;
            for (uint32_t r = 0; r < 4; r++) {
                struct gms_proposal own = proposal;
                if (r >= 2)
                    own.fields[field] = 0x55;
                cluster_propose(c, r, engine, 1, &own);
            }
            cluster_settle(c);
            assert_sound(c);
            snprintf(expected, sizeof expected,
                     "%s differs: rank 0 has 0x0000000000000077, rank 2 has "
                     "0x0000000000000055",
                     gms_operation_field_name(kinds[i], field));
            for (uint32_t r = 0; r < 4; r++) {
                const struct gms_action *reply = cluster_last(c, r, GMS_ACTION_REPLY);
                assert_non_null(reply);
                assert_int_equal(reply->reply.outcome.status, GMS_E_MISMATCH);
                assert_non_null(strstr(reply->reply.outcome.text, expected));
            }
            assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PREPARE), 0);
            assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_COMMIT), 0);
            assert_agreed(c);
            cluster_free(c);
        }
    }
}

/* A rank that answers after the deadline, for each kind; then it asks late and gets the decided outcome. */
static void test_each_kind_expired_and_late_asker(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        uint32_t engine;
        struct cluster *c = ready_for(kinds[i], 3, &engine);
        struct gms_proposal proposal = next_of(c, kinds[i]);

        cluster_propose(c, 0, engine, session_of(engine, 0), &proposal);
        cluster_propose(c, 2, engine, session_of(engine, 2), &proposal);
        cluster_settle(c);
        cluster_advance(c, 9999 * MS);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 0);
        cluster_advance(c, 1 * MS);
        assert_sound(c);
        const struct gms_action *reply = cluster_last(c, 0, GMS_ACTION_REPLY);
        assert_non_null(reply);
        assert_int_equal(reply->reply.outcome.status, GMS_E_EXPIRED);
        assert_int_equal(reply->reply.outcome.rank, 1);
        assert_non_null(strstr(reply->reply.outcome.text, "expired: rank 1 did not ask for it in time"));
        char text[192];
        memcpy(text, reply->reply.outcome.text, sizeof text);

        uint64_t round = cluster_look(c, 1).next_round;
        cluster_propose(c, 1, engine, session_of(engine, 1), &proposal);
        reply = cluster_last(c, 1, GMS_ACTION_REPLY); /* at once */
        assert_non_null(reply);
        assert_int_equal(reply->reply.outcome.status, GMS_E_EXPIRED);
        assert_string_equal(reply->reply.outcome.text, text);
        cluster_settle(c);
        assert_int_equal(cluster_look(c, 1).next_round, round); /* and without a round */
        assert_agreed(c);
        cluster_free(c);
    }
}

/* A rank's preparation hangs: everywhere aborted, it is named, and what it prepares late is undone. */
static void test_each_kind_expired_while_preparing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        uint32_t engine;
        struct cluster *c;
        struct gms_proposal proposal;

        if (kinds[i] == GMS_OPERATION_ADOPT)
            continue; /* its bulk has the round's own deadline in the driver */
        c = ready_for(kinds[i], 3, &engine);
        proposal = next_of(c, kinds[i]);
        c->held[2] = 1u << CLUSTER_PREPARE;
        for (uint32_t r = 0; r < 3; r++)
            cluster_propose(c, r, engine, session_of(engine, r), &proposal);
        cluster_settle(c);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PREPARE), 3);
        cluster_advance(c, 10000 * MS);
        for (uint32_t r = 0; r < 3; r++) {
            const struct gms_action *reply = cluster_last(c, r, GMS_ACTION_REPLY);
            assert_non_null(reply);
            assert_int_equal(reply->reply.outcome.status, GMS_E_EXPIRED);
            assert_int_equal(reply->reply.outcome.rank, 2);
            assert_non_null(strstr(reply->reply.outcome.text, "rank 2 had not prepared it in time"));
            assert_int_equal(cluster_count(c, r, GMS_ACTION_ABORT), 1);
        }
        c->held[2] = 0;
        cluster_settle(c);
        assert_int_equal(cluster_count(c, 2, GMS_ACTION_ABORT), 2);
        const struct gms_action *abort_action = cluster_last(c, 2, GMS_ACTION_ABORT);
        assert_string_equal(abort_action->commit.proposal.pool, proposal.pool);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_COMMIT), 0);
        assert_sound(c);
        assert_agreed(c);
        cluster_free(c);
    }
}

static void test_condemned_in_the_middle(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        uint32_t engine;
        struct cluster *c;
        struct gms_proposal proposal;

        if (kinds[i] == GMS_OPERATION_JOIN)
            continue;
        c = ready_for(kinds[i], 3, &engine);
        proposal = next_of(c, kinds[i]);
        for (uint32_t r = 0; r < 3; r++) /* a bulk that is done on one rank may commit first, and rightly */
            c->held[r] = r == 1 || kinds[i] == GMS_OPERATION_ADOPT ? 1u << CLUSTER_PREPARE | 1u << CLUSTER_BULK : 0;
        for (uint32_t r = 0; r < 3; r++)
            cluster_propose(c, r, engine, session_of(engine, r), &proposal);
        cluster_settle(c);
        cluster_fact(c, 0, engine, 1, GMS_FACT_GONE);
        memset(c->held, 0, c->ranks * sizeof c->held[0]);
        cluster_settle(c);
        assert_sound(c);
        for (uint32_t r = 0; r < 3; r++) {
            const struct gms_action *reply = cluster_last(c, r, GMS_ACTION_REPLY);
            assert_non_null(reply);
            assert_int_equal(reply->reply.outcome.status, GMS_E_CONDEMNED);
        }
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_COMMIT), 0);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_FENCE), 3);
        assert_int_equal(cluster_look(c, 0).engines[engine].role, GMS_ROLE_EMPTY);
        assert_agreed(c);
        cluster_free(c);
    }
}

static void test_different_operations_are_a_mismatch(void **state)
{
    struct cluster *c = new_cluster(3);
    struct gms_proposal release, publish;

    (void)state;
    join(c, 0, 11);
    cluster_forget_trace(c);
    release = cluster_on_pool(GMS_OPERATION_RELEASE, 1, 1, "w");
    publish = cluster_on_pool(GMS_OPERATION_PUBLISH, 1, 1, "w");
    cluster_propose(c, 0, 0, 1, &release);
    cluster_propose(c, 1, 0, 1, &publish);
    cluster_propose(c, 2, 0, 1, &release);
    cluster_settle(c);
    assert_sound(c);
    for (uint32_t r = 0; r < 3; r++) {
        const struct gms_action *reply = cluster_last(c, r, GMS_ACTION_REPLY);
        assert_non_null(reply);
        assert_int_equal(reply->reply.outcome.status, GMS_E_MISMATCH);
        assert_non_null(
            strstr(reply->reply.outcome.text, "operation differs: rank 1 asks for publish, rank 0 for release"));
    }
    assert_int_equal(cluster_look(c, 0).engines[0].next_sequence, 2); /* the call's number is used up, once */
    cluster_forget_trace(c);
    cluster_propose(c, 0, 0, 1, &publish); /* late askers are told about what they ask for */
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.outcome.key.kind, GMS_OPERATION_PUBLISH);
    cluster_propose(c, 0, 0, 1, &release);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.outcome.key.kind, GMS_OPERATION_RELEASE);
    cluster_free(c);
}

static void test_different_launches_are_a_mismatch(void **state)
{
    struct cluster *c = new_cluster(3);

    (void)state;
    for (uint32_t r = 0; r < 3; r++) { /* three different ones: the middle one is known to its rank only */
        struct gms_proposal proposal = cluster_join(10 + r);
        cluster_propose(c, r, 0, 1, &proposal);
    }
    cluster_settle(c);
    assert_sound(c);
    for (uint32_t r = 0; r < 3; r++) {
        const struct gms_action *reply = cluster_last(c, r, GMS_ACTION_REPLY);
        assert_non_null(reply);
        assert_int_equal(reply->reply.outcome.status, GMS_E_MISMATCH);
        assert_non_null(strstr(reply->reply.outcome.text, "launch differs: rank 0 has 0x000000000000000a, rank 2"));
    }
    assert_int_equal(join(c, 0, 20), 1);
    cluster_free(c);
}

static void test_refusals_at_once(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_proposal proposal;
    static const struct {
        uint32_t kind, sequence;
        uint64_t incarnation, launch;
        gms_status status;
        const char *words;
    } cases[] = {
        {GMS_OPERATION_ALLOCATE, 2, 1, 0, GMS_E_PROTOCOL, "the next call's number is 1"},
        {GMS_OPERATION_ALLOCATE, 0, 1, 0, GMS_E_PROTOCOL, "neither 0"},
        {GMS_OPERATION_ALLOCATE, 1, 1, 5, GMS_E_PROTOCOL, "launch 0"},
        {GMS_OPERATION_ALLOCATE, 1, 9, 0, GMS_E_STALE, "incarnation 1"},
        {GMS_OPERATION_JOIN, 0, 0, 5, GMS_E_BUSY, "held by engine 0 incarnation 1"},
        {GMS_OPERATION_JOIN, 1, 0, 5, GMS_E_PROTOCOL, "launch not 0"},
        {GMS_OPERATION_JOIN, 0, 0, 0, GMS_E_PROTOCOL, "launch not 0"},
        {GMS_OPERATION_RECLAIM, 1, 1, 0, GMS_E_UNSUPPORTED, "not offered"},
        {GMS_OPERATION_TAKEOVER, 1, 1, 0, GMS_E_PROTOCOL, "kind 5"},
        {GMS_OPERATION_NONE, 1, 1, 0, GMS_E_PROTOCOL, "kind 0"},
        {99, 1, 1, 0, GMS_E_PROTOCOL, "kind 99"},
    };

    (void)state;
    join(c, 0, 11);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cluster_forget_trace(c);
        proposal = cluster_call((enum gms_operation)cases[i].kind, cases[i].incarnation, cases[i].sequence);
        proposal.key.launch = cases[i].launch;
        cluster_propose(c, 1, 0, 9, &proposal);
        const struct gms_action *reply = cluster_last(c, 1, GMS_ACTION_REPLY);
        assert_non_null(reply);
        assert_int_equal(reply->reply.outcome.status, cases[i].status);
        assert_non_null(strstr(reply->reply.outcome.text, cases[i].words));
    }
    proposal = cluster_join(1);
    cluster_propose(c, 1, GMS_MAX_ENGINES, 9, &proposal);
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_REPLY)->reply.outcome.status, GMS_E_INVALID);
    cluster_settle(c);
    assert_sound(c);
    cluster_free(c);
}

static void test_join_again_of_the_same_launch(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_proposal proposal = cluster_join(11);

    (void)state;
    join(c, 0, 11);
    cluster_forget_trace(c);
    cluster_propose(c, 1, 0, 55, &proposal);
    const struct gms_action *reply = cluster_last(c, 1, GMS_ACTION_REPLY);
    assert_int_equal(reply->reply.session, 55);
    assert_int_equal(reply->reply.outcome.status, GMS_OK);
    assert_int_equal(reply->reply.outcome.incarnation, 1);

    /* Its incarnation is gone: the launch is over. */
    fact_everywhere(c, 0, 1, GMS_FACT_GONE);
    assert_int_equal(cluster_look(c, 0).engines[0].role, GMS_ROLE_EMPTY);
    cluster_propose(c, 1, 0, 56, &proposal);
    reply = cluster_last(c, 1, GMS_ACTION_REPLY);
    assert_int_equal(reply->reply.outcome.status, GMS_E_CONDEMNED);
    assert_int_equal(join(c, 0, 12), 2);
    cluster_free(c);
}

/* A rank of a starting engine dies: the join ends everywhere long before its deadline. */

/* V28: KV hashed under another seed would be missed silently; the group says so when such an engine joins. */
static void test_join_must_fit_the_group(void **state)
{
    struct cluster *cluster = new_cluster(3);
    struct gms_proposal proposal = cluster_join(11);
    uint64_t first;
    (void)state;

    proposal.fields[GMS_JOIN_FIELD_ENVIRONMENT] = 1;
    first = everywhere(cluster, 0, &proposal).incarnation;
    assert_int_equal(first, 1);
    for (uint32_t field = 0; field < GMS_PROPOSAL_FIELDS; field++) {
        struct gms_proposal other = proposal;
        struct gms_outcome outcome;

        other.key.launch = 100 + field;
        other.fields[field] ^= 0x5eed;
        outcome = everywhere(cluster, 1, &other);
        if (field == GMS_JOIN_FIELD_ENVIRONMENT) { /* names the engine: may differ */
            assert_int_equal(outcome.status, GMS_OK);
            fact_everywhere(cluster, 1, outcome.incarnation, GMS_FACT_LEFT);
            cluster_settle(cluster);
            assert_sound(cluster);
            continue;
        }
        assert_int_equal(outcome.status, GMS_E_MISMATCH);
        assert_non_null(strstr(outcome.text, gms_operation_field_name(GMS_OPERATION_JOIN, field)));
        assert_non_null(strstr(outcome.text, "since incarnation 1"));
    }

    /* Nobody there and nothing kept: the next to join says anew what the group is. */
    fact_everywhere(cluster, 0, first, GMS_FACT_LEFT);
    cluster_settle(cluster);
    proposal.key.launch = 12;
    proposal.fields[4] ^= 0x5eed;
    assert_int_equal(everywhere(cluster, 0, &proposal).status, GMS_OK);
    cluster_free(cluster);
}

static void test_session_gone_ends_a_join_quickly(void **state)
{
    (void)state;
    for (unsigned asked_by_others = 0; asked_by_others < 2; asked_by_others++) {
        struct cluster *c = new_cluster(3);
        struct gms_proposal proposal = cluster_join(11);

        cluster_propose(c, 1, 0, 7, &proposal);
        if (asked_by_others)
            cluster_propose(c, 0, 0, 6, &proposal);
        cluster_settle(c);
        cluster_session_gone(c, 1, 0, 7);
        cluster_settle(c);
        assert_sound(c);
        if (asked_by_others)
            assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.outcome.status, GMS_E_EXPIRED);
        assert_int_equal(cluster_count(c, 1, GMS_ACTION_REPLY), 0);
        cluster_propose(c, 2, 0, 5, &proposal);
        assert_int_equal(cluster_last(c, 2, GMS_ACTION_REPLY)->reply.outcome.status, GMS_E_EXPIRED);
        assert_int_equal(join(c, 0, 12), 1);
        cluster_free(c);
    }
}

/* The session ends while the join is decided, before or after: nobody else can report the incarnation's end. */
static void test_session_gone_while_a_join_is_decided(void **state)
{
    (void)state;
    for (unsigned moment = 0; moment < 2; moment++) {
        struct cluster *c = new_cluster(2);
        struct gms_proposal proposal = cluster_join(11);
        struct gms_core_view view;

        for (uint32_t r = 0; r < 2; r++)
            cluster_propose(c, r, 0, 7, &proposal);
        while (!cluster_count(c, UINT32_MAX, GMS_ACTION_PREPARE) || c->items[0].kind == CLUSTER_PREPARE ||
               c->items[0].kind == CLUSTER_STORE)
            cluster_deliver(c, 0);
        c->held[1] = moment ? 1u << CLUSTER_STORE : 1u << CLUSTER_ROUND;
        cluster_settle(c);
        cluster_session_gone(c, 1, 0, 7);
        c->held[1] = 0;
        cluster_settle(c);
        assert_sound(c);
        view = cluster_look(c, 0);
        assert_int_equal(view.engines[0].role, GMS_ROLE_EMPTY);
        assert_agreed(c);
        assert_int_equal(cluster_count(c, 1, GMS_ACTION_REPLY), 0);
        cluster_free(c);
    }
}

static void test_adopt_needs_a_promotion(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_proposal proposal;

    (void)state;
    uint64_t first = join(c, 0, 11), second = join(c, 1, 12);
    fact_everywhere(c, 0, first, GMS_FACT_PARKED);
    fact_everywhere(c, 1, second, GMS_FACT_PARKED);
    struct gms_core_view view = cluster_look(c, 0);

    proposal = cluster_adopt(second, 1, view.epoch, 0);
    assert_int_equal(everywhere(c, 1, &proposal).status, GMS_E_REFUSED);
    proposal = cluster_adopt(first, 1, view.epoch + 1, 0);
    assert_int_equal(everywhere(c, 0, &proposal).status, GMS_E_STALE);
    proposal = cluster_adopt(first, 2, view.epoch, 99);
    assert_int_equal(everywhere(c, 0, &proposal).status, GMS_E_STALE);
    proposal = cluster_adopt(first, 3, view.epoch, 0);
    assert_int_equal(everywhere(c, 0, &proposal).status, GMS_OK);
    proposal = cluster_adopt(first, 4, view.epoch, first);
    assert_int_equal(everywhere(c, 0, &proposal).status, GMS_E_REFUSED);
    assert_int_equal(cluster_look(c, 1).writer_incarnation, first);
    cluster_free(c);
}

static void test_store_failure_is_a_refusal_or_a_restart(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        uint32_t engine;
        struct cluster *c = ready_for(kinds[i], 3, &engine);
        struct gms_proposal proposal = next_of(c, kinds[i]);

        c->held[1] = 1u << CLUSTER_STORE;
        for (uint32_t r = 0; r < 3; r++)
            cluster_propose(c, r, engine, session_of(engine, r), &proposal);
        cluster_settle(c);
        assert_int_equal(cluster_count(c, 1, GMS_ACTION_PREPARE), 0);
        for (uint32_t n = 0; n < c->item_count; n++)
            if (c->items[n].kind == CLUSTER_STORE)
                c->items[n].event.type = GMS_EVENT_STORE_FAILED;
        c->held[1] = 0;
        cluster_settle(c);
        assert_sound(c);
        const struct gms_action *reply = cluster_last(c, 0, GMS_ACTION_REPLY);
        assert_non_null(reply);
        assert_int_equal(reply->reply.outcome.status, GMS_E_STORE);
        assert_int_equal(reply->reply.outcome.rank, 1);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_RESTART), 0);

        /* What the group has decided must be kept: that rank restarts. */
        c->store_fails[2] = c->may_restart = true;
        proposal = next_of(c, kinds[i]);
        proposal.key.launch += kinds[i] == GMS_OPERATION_JOIN;
        c->bulk_status = GMS_E_CORRUPT;
        for (uint32_t r = 0; r < 3; r++)
            cluster_propose(c, r, engine, session_of(engine, r), &proposal);
        cluster_settle(c);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_RESTART), 1);
        assert_int_equal(cluster_last(c, 2, GMS_ACTION_RESTART)->note.status, GMS_E_STORE);
        cluster_free(c);
    }
}

/* Durable before visible, step by step: what is held back by the store has not been said. */
static void test_nothing_leaves_before_it_is_stored(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_proposal proposal = cluster_join(11);

    (void)state;
    c->held[0] = c->held[1] = 1u << CLUSTER_STORE;
    for (uint32_t r = 0; r < 2; r++)
        cluster_propose(c, r, 0, 1, &proposal);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_STORE), 1);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_STORE)->store.kind, GMS_STORE_PREPARED);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_PREPARE), 0);
    uint64_t round = cluster_look(c, 0).next_round;

    for (uint32_t n = 0; n < 2; n++) /* "prepared" is stored on both */
        cluster_deliver(c, 0);
    cluster_settle(c);
    assert_true(cluster_look(c, 0).next_round > round);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_PREPARE), 1);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_STORE)->store.kind, GMS_STORE_OUTCOME);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_COMMIT), 0);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 0);

    /* A late asker over a new session waits for the record too. */
    cluster_propose(c, 0, 0, 2, &proposal);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 0);
    c->held[0] = c->held[1] = 0;
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_COMMIT), 2);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.session, 2);
    assert_sound(c);
    cluster_free(c);
}

static void test_outcomes_are_kept_for_a_while(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_proposal first;

    (void)state;
    join(c, 0, 11);
    first = cluster_on_pool(GMS_OPERATION_RELEASE, 1, 1, "none");
    for (uint32_t i = 1; i <= GMS_CORE_OUTCOMES; i++) {
        struct gms_proposal proposal = cluster_on_pool(GMS_OPERATION_RELEASE, 1, i, "none");
        assert_int_equal(everywhere(c, 0, &proposal).status, GMS_E_NOT_FOUND);
    }
    cluster_propose(c, 0, 0, 5, &first);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.outcome.status, GMS_E_NOT_FOUND);
    struct gms_proposal proposal = cluster_on_pool(GMS_OPERATION_RELEASE, 1, GMS_CORE_OUTCOMES + 1, "none");
    everywhere(c, 0, &proposal);
    cluster_propose(c, 0, 0, 5, &first);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.outcome.status, GMS_E_STALE);
    first = cluster_join(11); /* the live one's launch is known even so */
    cluster_propose(c, 0, 0, 5, &first);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.outcome.status, GMS_OK);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.outcome.incarnation, 1);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join_gives_one_incarnation),
        cmocka_unit_test(test_nothing_happens_until_all_ask),
        cmocka_unit_test(test_each_kind_commits),
        cmocka_unit_test(test_each_kind_refused_names_the_rank),
        cmocka_unit_test(test_descriptors_refused_with_the_numbers),
        cmocka_unit_test(test_each_kind_mismatch_names_field_and_ranks),
        cmocka_unit_test(test_each_kind_expired_and_late_asker),
        cmocka_unit_test(test_each_kind_expired_while_preparing),
        cmocka_unit_test(test_condemned_in_the_middle),
        cmocka_unit_test(test_different_operations_are_a_mismatch),
        cmocka_unit_test(test_different_launches_are_a_mismatch),
        cmocka_unit_test(test_refusals_at_once),
        cmocka_unit_test(test_join_again_of_the_same_launch),
        cmocka_unit_test(test_join_must_fit_the_group),
        cmocka_unit_test(test_session_gone_ends_a_join_quickly),
        cmocka_unit_test(test_session_gone_while_a_join_is_decided),
        cmocka_unit_test(test_adopt_needs_a_promotion),
        cmocka_unit_test(test_store_failure_is_a_refusal_or_a_restart),
        cmocka_unit_test(test_nothing_leaves_before_it_is_stored),
        cmocka_unit_test(test_outcomes_are_kept_for_a_while),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
