/* SPDX-License-Identifier: Apache-2.0
 * Roles and the takeover: one serves, nobody is promoted before the former is retired everywhere, ranks agree. */
#include "core_support.h"

/* Engine 0 serves as incarnation 1; engines 1.. are parked shadows, incarnations 2... */
static struct cluster *serving_group(uint32_t ranks, uint32_t shadows)
{
    struct cluster *c = new_cluster(ranks);

    for (uint32_t e = 0; e <= shadows; e++)
        assert_int_equal(join(c, e, 11 + e), e + 1);
    fact_everywhere(c, 0, 1, GMS_FACT_PARKED);
    adopt_and_serve(c, 0, 1);
    for (uint32_t e = 1; e <= shadows; e++)
        fact_everywhere(c, e, e + 1, GMS_FACT_PARKED);
    assert_int_equal(cluster_look(c, 0).epoch, 1);
    cluster_forget_trace(c);
    return c;
}

static void hold(struct cluster *c, uint32_t kinds)
{
    for (uint32_t r = 0; r < c->ranks; r++)
        c->held[r] = kinds;
}

static void test_first_engine_is_promoted_when_parked(void **state)
{
    struct cluster *c = new_cluster(3);

    (void)state;
    assert_int_equal(join(c, 0, 11), 1);
    cluster_fact(c, 0, 0, 1, GMS_FACT_PARKED);
    cluster_fact(c, 2, 0, 1, GMS_FACT_PARKED);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).engines[0].role, GMS_ROLE_JOINED); /* not on all ranks yet */
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PROMOTE), 0);
    cluster_fact(c, 1, 0, 1, GMS_FACT_PARKED);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PROMOTE), 3);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_CLASSIFY), 0); /* nobody left anything */
    const struct gms_action *promote = cluster_last(c, 2, GMS_ACTION_PROMOTE);
    assert_int_equal(promote->promote.epoch, 1);
    assert_int_equal(promote->promote.source, 0);
    adopt_and_serve(c, 0, 1);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_SERVING), 3);
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_SERVING)->promote.epoch, 1);
    assert_agreed(c);
    cluster_free(c);
}

static void test_shadow_takes_over(void **state)
{
    (void)state;
    static const enum gms_fact causes[] = {GMS_FACT_GONE, GMS_FACT_STICKY, GMS_FACT_STALLED, GMS_FACT_COMMANDED,
                                           GMS_FACT_LEFT};
    for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
        struct cluster *c = serving_group(3, 2);

        cluster_fact(c, 1, 0, 1, causes[i]);
        cluster_settle(c);
        assert_sound(c);
        struct gms_core_view view = cluster_look(c, 0);
        assert_int_equal(view.takeover, GMS_TAKEOVER_PROMOTING);
        assert_int_equal(view.successor_engine, 1);
        assert_int_equal(view.serving_engine, -1);
        assert_int_equal(view.epoch, 2);
        assert_int_equal(view.engines[0].role, GMS_ROLE_EMPTY);
        const struct gms_action *promote = cluster_last(c, 2, GMS_ACTION_PROMOTE);
        assert_int_equal(promote->promote.incarnation, 2);
        assert_int_equal(promote->promote.source, 1);
        assert_int_equal(promote->promote.epoch, 2);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_FENCE), 3);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_CONDEMNED), 3);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_CLASSIFY), 3);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_FORGET), 0); /* it is the source */
        adopt_and_serve(c, 1, 2);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_FORGET), 3);
        assert_int_equal(cluster_last(c, 0, GMS_ACTION_FORGET)->promote.incarnation, 1);
        assert_int_equal(cluster_look(c, 0).writer_incarnation, 2);
        assert_agreed(c);
        cluster_free(c);
    }
}

/* Whom an operator wants is the next, though another has been parked for longer; on any rank, once is enough. */
static void test_the_wanted_one_takes_over(void **state)
{
    (void)state;
    for (unsigned dies = 0; dies < 2; dies++) {
        struct cluster *c = serving_group(3, 3);

        cluster_fact(c, 2, 2, 3, GMS_FACT_WANTED);
        cluster_settle(c);
        assert_int_equal(cluster_look(c, 0).serving_engine, 0); /* alone it changes nothing */
        if (dies)
            fact_everywhere(c, 2, 3, GMS_FACT_GONE);
        cluster_fact(c, 2, 0, 1, GMS_FACT_COMMANDED);
        cluster_settle(c);
        assert_sound(c);
        assert_int_equal(cluster_look(c, 0).successor_engine, dies ? 1 : 2);
        assert_agreed(c);
        adopt_and_serve(c, dies ? 1 : 2, dies ? 2 : 3);
        /* Said of one that is not parked it is forgotten. */
        uint64_t late = join(c, 0, 99);
        cluster_fact(c, 0, 0, late, GMS_FACT_WANTED);
        fact_everywhere(c, 0, late, GMS_FACT_PARKED);
        cluster_fact(c, 1, dies ? 1 : 2, dies ? 2 : 3, GMS_FACT_COMMANDED);
        cluster_settle(c);
        assert_int_equal(cluster_look(c, 0).successor_engine, dies ? 3 : 1);
        cluster_free(c);
    }
}

static void test_three_takeovers_in_a_row(void **state)
{
    struct cluster *c = serving_group(2, 3);

    (void)state;
    for (uint32_t e = 0; e < 3; e++) {
        cluster_fact(c, e % 2, e, e + 1, GMS_FACT_GONE);
        cluster_settle(c);
        adopt_and_serve(c, e + 1, e + 2);
        assert_int_equal(cluster_look(c, 0).epoch, e + 2);
        /* A new start of the dead engine joins as a shadow while the other serves. */
        assert_int_equal(join(c, e, 100 + e), 5 + e);
    }
    assert_sound(c);
    cluster_free(c);
}

/* Two engines die; one rank sees the one first, the other the other: both ranks conclude the same. */
static void test_detectors_in_different_order(void **state)
{
    (void)state;
    for (unsigned order = 0; order < 2; order++) {
        struct cluster *c = serving_group(2, 2);

        cluster_fact(c, 0, order ? 1 : 0, order ? 2 : 1, GMS_FACT_GONE);
        cluster_fact(c, 1, order ? 0 : 1, order ? 1 : 2, GMS_FACT_GONE);
        cluster_settle(c);
        cluster_fact(c, 1, order ? 1 : 0, order ? 2 : 1, GMS_FACT_GONE);
        cluster_fact(c, 0, order ? 0 : 1, order ? 1 : 2, GMS_FACT_GONE);
        cluster_settle(c);
        assert_sound(c);
        assert_agreed(c);
        assert_int_equal(cluster_look(c, 0).successor_engine, 2);
        adopt_and_serve(c, 2, 3);
        cluster_free(c);
    }
}

static void test_successor_is_who_parked_first(void **state)
{
    struct cluster *c = new_cluster(2);

    (void)state;
    for (uint32_t e = 0; e < 4; e++)
        join(c, e, 11 + e);
    fact_everywhere(c, 0, 1, GMS_FACT_PARKED);
    adopt_and_serve(c, 0, 1);
    fact_everywhere(c, 3, 4, GMS_FACT_PARKED);
    fact_everywhere(c, 1, 2, GMS_FACT_PARKED);
    cluster_fact(c, 0, 2, 3, GMS_FACT_PARKED); /* on one rank only: no candidate */
    cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).successor_engine, 3);
    cluster_fact(c, 1, 3, 4, GMS_FACT_GONE);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).successor_engine, 1);
    cluster_free(c);
}

/* The successor dies in each step of its way; the next one gets through, under an epoch of its own. */
static void test_successor_dies_in_each_step(void **state)
{
    (void)state;
    for (unsigned step = 0; step < 5; step++) {
        struct cluster *c = serving_group(3, 2);
        uint64_t source = 1;

        if (step == 0)
            hold(c, 1u << CLUSTER_RETIRED);
        else if (step == 1)
            c->held[1] = 1u << CLUSTER_CLASSIFIED;
        cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
        cluster_settle(c);
        assert_int_equal(cluster_look(c, 0).successor_engine, 1);
        switch (step) {
        case 0:
            assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_FENCING);
            break;
        case 1:
            assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_CLASSIFYING);
            break;
        case 3: /* has adopted */
            adopt(c, 1, 2);
            source = 2;
            break;
        case 4: /* ready on some */
            adopt(c, 1, 2);
            source = 2;
            cluster_fact(c, 0, 1, 2, GMS_FACT_READY);
            cluster_settle(c);
            break;
        default: /* promoted */
            break;
        }
        uint64_t epoch = cluster_look(c, 0).epoch;
        cluster_fact(c, 2, 1, 2, GMS_FACT_STICKY);
        cluster_settle(c);
        assert_sound(c);
        hold(c, 0);
        cluster_settle(c);
        assert_sound(c);
        struct gms_core_view view = cluster_look(c, 0);
        assert_int_equal(view.successor_engine, 2);
        assert_int_equal(view.takeover, GMS_TAKEOVER_PROMOTING);
        assert_true(view.epoch > epoch);
        const struct gms_action *promote = cluster_last(c, 1, GMS_ACTION_PROMOTE);
        assert_int_equal(promote->promote.incarnation, 3);
        assert_int_equal(promote->promote.source, source);
        assert_int_equal(promote->promote.epoch, view.epoch);
        if (step < 2) /* it never heard of it */
            assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PROMOTE), 3);
        adopt_and_serve(c, 2, 3);
        assert_agreed(c);
        cluster_free(c);
    }
}

static void test_nobody_is_ready_then_one_parks(void **state)
{
    struct cluster *c = serving_group(2, 0);

    (void)state;
    assert_int_equal(join(c, 1, 12), 2);
    cluster_forget_trace(c);
    cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_VACANT);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PROMOTE), 0);
    bool loud = false;
    for (uint32_t i = 0; i < c->trace_count; i++)
        loud = loud ||
               (c->trace[i].action.type == GMS_ACTION_NOTE && strstr(c->trace[i].action.note.text, "NOBODY SERVES"));
    assert_true(loud);

    /* Joins go on while nobody serves. */
    assert_int_equal(join(c, 0, 13), 3);
    fact_everywhere(c, 1, 2, GMS_FACT_PARKED);
    const struct gms_action *promote = cluster_last(c, 0, GMS_ACTION_PROMOTE);
    assert_non_null(promote);
    assert_int_equal(promote->promote.incarnation, 2);
    assert_int_equal(promote->promote.source, 1);
    adopt_and_serve(c, 1, 2);
    cluster_free(c);
}

static void test_clean_leave(void **state)
{
    struct cluster *c = serving_group(2, 1);

    (void)state;
    for (uint32_t r = 0; r < 2; r++) {
        cluster_fact(c, r, 0, 1, GMS_FACT_LEFT);
        cluster_fact(c, r, 0, 1, GMS_FACT_GONE); /* its process ends after it: no news */
    }
    cluster_settle(c);
    assert_sound(c);
    for (uint32_t r = 0; r < 2; r++) {
        assert_true(cluster_last(c, r, GMS_ACTION_FENCE)->fence.clean);
        assert_true(cluster_last(c, r, GMS_ACTION_CLASSIFY)->classify.source_clean);
    }
    adopt_and_serve(c, 1, 2);

    /* Left on one rank only, when the group decides: the other is fenced, and what it left is not clean. */
    uint64_t third = join_and_park(c, 0, 19);
    cluster_forget_trace(c);
    cluster_fact(c, 1, 1, 2, GMS_FACT_LEFT);
    cluster_settle(c);
    for (uint32_t r = 0; r < 2; r++) {
        assert_true(cluster_last(c, r, GMS_ACTION_FENCE)->fence.clean);
        assert_int_equal(cluster_last(c, r, GMS_ACTION_CLASSIFY)->classify.source_clean, r == 1);
    }
    adopt_and_serve(c, 0, third);

    /* The other way: gone, not left. */
    join_and_park(c, 1, 20);
    cluster_fact(c, 0, 0, third, GMS_FACT_GONE);
    cluster_settle(c);
    assert_false(cluster_last(c, 0, GMS_ACTION_FENCE)->fence.clean);
    assert_false(cluster_last(c, 0, GMS_ACTION_CLASSIFY)->classify.source_clean);
    cluster_free(c);
}

/* Kept from leaving: clean or not is remembered until a successor comes. */
static void test_clean_is_remembered(void **state)
{
    (void)state;
    for (unsigned clean = 0; clean < 2; clean++) {
        struct cluster *c = serving_group(2, 0);

        for (uint32_t r = 0; r < 2; r++)
            cluster_fact(c, r, 0, 1, clean ? GMS_FACT_LEFT : GMS_FACT_GONE);
        cluster_settle(c);
        join_and_park(c, 0, 20);
        for (uint32_t r = 0; r < 2; r++)
            assert_int_equal(cluster_last(c, r, GMS_ACTION_CLASSIFY)->classify.source_clean, clean);
        cluster_free(c);
    }
}

static void test_a_shadow_dies(void **state)
{
    struct cluster *c = serving_group(3, 2);

    (void)state;
    cluster_fact(c, 1, 1, 2, GMS_FACT_GONE);
    cluster_settle(c);
    assert_sound(c);
    struct gms_core_view view = cluster_look(c, 0);
    assert_int_equal(view.takeover, GMS_TAKEOVER_SERVING);
    assert_int_equal(view.serving_engine, 0);
    assert_int_equal(view.epoch, 1); /* only one that may write raises it */
    assert_int_equal(view.engines[1].role, GMS_ROLE_EMPTY);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_FORGET), 3);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_FORGET)->promote.incarnation, 2);
    assert_int_equal(join(c, 1, 30), 4);
    cluster_free(c);
}

/* No fence before "condemned" is stored, no promotion before the epoch is, no serving before that is. */
static void test_stored_before_visible(void **state)
{
    struct cluster *c = serving_group(2, 1);

    (void)state;
    hold(c, 1u << CLUSTER_STORE);
    cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_STORE), 2);
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_STORE)->store.kind, GMS_STORE_CONDEMNED);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_FENCE), 0);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_CONDEMNED), 0);
    assert_int_equal(cluster_look(c, 0).epoch, 2); /* raised before the first signal */

    /* Nor is the condemned engine told by an answer. */
    struct gms_proposal proposal = cluster_on_pool(GMS_OPERATION_RELEASE, 1, 2, "w");
    cluster_propose(c, 0, 0, 1, &proposal);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 0);

    /* And a cohort that nobody was told to fence is not retired, whoever says so. */
    cluster_fact(c, 0, 0, 1, GMS_FACT_RETIRED);
    cluster_fact(c, 1, 0, 1, GMS_FACT_RETIRED);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).engines[0].role, GMS_ROLE_CONDEMNED);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_CLASSIFY), 0);

    cluster_deliver(c, 0);
    cluster_deliver(c, 0);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_FENCE), 2);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.outcome.status, GMS_E_CONDEMNED);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_PROMOTING);
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_STORE)->store.kind, GMS_STORE_EPOCH);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PROMOTE), 0);

    /* An engine that was not promoted cannot be ready. */
    cluster_fact(c, 0, 1, 2, GMS_FACT_READY);
    cluster_fact(c, 1, 1, 2, GMS_FACT_READY);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_PROMOTING);
    hold(c, 0);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PROMOTE), 2);

    /* Nor one that has not adopted: the slots are its predecessor's until then, and the next takeover would read the
     * predecessor's words for pages that this one wrote. */
    cluster_fact(c, 0, 1, 2, GMS_FACT_READY);
    cluster_fact(c, 1, 1, 2, GMS_FACT_READY);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_PROMOTING);
    adopt(c, 1, 2);
    assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_PROMOTING);
    hold(c, 1u << CLUSTER_STORE);
    cluster_fact(c, 0, 1, 2, GMS_FACT_READY);
    cluster_fact(c, 1, 1, 2, GMS_FACT_READY);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_SERVING);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_SERVING), 0);
    hold(c, 0);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_SERVING), 2);
    assert_sound(c);
    cluster_free(c);
}

/* The record of a promotion, or of serving, comes back when the engine is condemned already: it is not told to go on.
 */
static void test_condemned_while_a_record_is_stored(void **state)
{
    (void)state;
    for (unsigned serving = 0; serving < 2; serving++) {
        struct cluster *c = serving_group(2, 1);

        cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
        for (uint32_t r = 0; r < 2 && !serving; r++) /* until the epoch is to be stored, but on rank 1 not further */
            while (!cluster_last(c, r, GMS_ACTION_STORE) ||
                   cluster_last(c, r, GMS_ACTION_STORE)->store.kind != GMS_STORE_EPOCH)
                cluster_deliver(c, 0);
        if (serving) {
            cluster_settle(c);
            assert_int_equal(adopt(c, 1, 2).status, GMS_OK);
        }
        cluster_forget_trace(c);
        hold(c, 1u << CLUSTER_STORE);
        for (uint32_t r = 0; r < 2 && serving; r++)
            cluster_fact(c, r, 1, 2, GMS_FACT_READY);
        cluster_settle(c);
        cluster_fact(c, 1, 1, 2, GMS_FACT_GONE);
        cluster_settle(c);
        assert_int_equal(cluster_look(c, 0).engines[1].role, GMS_ROLE_CONDEMNED);
        hold(c, 0);
        cluster_settle(c);
        assert_sound(c);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PROMOTE), 0);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_SERVING), 0);
        assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_VACANT);
        cluster_free(c);
    }
}

/* One rank's cohort does not end: each rank classifies after its own fence, nobody is promoted, the rank says so. */
static void test_a_cohort_that_does_not_end(void **state)
{
    struct cluster *c = serving_group(3, 1);

    (void)state;
    c->held[1] = 1u << CLUSTER_RETIRED;
    cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_FENCING);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_CLASSIFY), 1);
    assert_int_equal(cluster_count(c, 1, GMS_ACTION_CLASSIFY), 0);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PROMOTE), 0);
    assert_int_equal(gms_core_deadline(c->cores[0]), UINT64_MAX); /* idle */
    cluster_forget_trace(c);
    for (unsigned times = 0; times < 3; times++)
        cluster_advance(c, 2000 * MS);
    assert_int_equal(cluster_count(c, 1, GMS_ACTION_NOTE), 3);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_NOTE), 0);
    assert_non_null(
        strstr(cluster_last(c, 1, GMS_ACTION_NOTE)->note.text, "rank 1 has not retired engine 0 incarnation 1"));
    assert_non_null(strstr(cluster_last(c, 1, GMS_ACTION_NOTE)->note.text, "6000 ms"));
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PROMOTE), 0);
    c->held[1] = 0;
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PROMOTE), 3);
    assert_sound(c);
    cluster_free(c);
}

/* A join waits while a takeover runs, and its deadline with it. */
static const struct gms_outcome *answer_of(const struct cluster *c, uint32_t rank)
{
    return &cluster_last(c, rank, GMS_ACTION_REPLY)->reply.outcome;
}

/* Nobody is admitted in a takeover, and nobody waits for ever: after one operation timeout each rank says so, and who
 * asks again, under the same launch, is admitted when it is over. */
static void test_joins_wait_for_a_takeover(void **state)
{
    struct cluster *c = serving_group(2, 1);
    struct gms_proposal proposal = cluster_join(50);

    (void)state;
    cluster_propose(c, 0, 2, session_of(2, 0), &proposal); /* offered before it */
    cluster_settle(c);
    hold(c, 1u << CLUSTER_RETIRED);
    cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    cluster_advance(c, 6000 * MS);
    cluster_propose(c, 1, 2, session_of(2, 1), &proposal); /* and in it */
    cluster_settle(c);
    cluster_advance(c, 3999 * MS);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 0);
    cluster_advance(c, 1 * MS); /* 10 s after rank 0 was asked */
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 1);
    assert_int_equal(answer_of(c, 0)->status, GMS_E_TIMEOUT);
    assert_non_null(strstr(answer_of(c, 0)->text, "joins wait for its end"));
    cluster_propose(c, 0, 2, session_of(2, 0), &proposal);
    cluster_advance(c, 6000 * MS); /* and after rank 1 was */
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 2);
    assert_int_equal(answer_of(c, 1)->status, GMS_E_TIMEOUT);
    cluster_propose(c, 1, 2, session_of(2, 1), &proposal);
    cluster_propose(c, 0, 2, session_of(2, 0), &proposal); /* again: its time begins anew */
    cluster_settle(c);
    cluster_advance(c, 9999 * MS);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 2);
    hold(c, 0);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 2);
    adopt_and_serve(c, 1, 2);
    cluster_settle(c);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(answer_of(c, r)->key.launch, 50);
        assert_int_equal(answer_of(c, r)->status, GMS_OK);
    }
    assert_sound(c);
    assert_agreed(c);
    cluster_free(c);
}

/* A start that died while its join was held is followed by another one: that is not turned away. */
static void test_a_join_held_and_given_up(void **state)
{
    struct cluster *c = serving_group(2, 1);
    struct gms_proposal proposal = cluster_join(50);

    (void)state;
    hold(c, 1u << CLUSTER_CLASSIFIED);
    cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    cluster_propose(c, 0, 2, 7, &proposal);
    cluster_session_gone(c, 0, 2, 7);
    proposal = cluster_join(51);
    cluster_propose(c, 0, 2, 8, &proposal);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_REPLY), 0);
    hold(c, 0);
    cluster_settle(c);
    adopt_and_serve(c, 1, 2);
    cluster_propose(c, 1, 2, 9, &proposal);
    cluster_settle(c);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.session, 8);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.outcome.status, GMS_OK);

    /* One that the group heard of must be ended by the group first. */
    c->held[0] = 1u << CLUSTER_ROUND;
    proposal = cluster_join(60);
    cluster_propose(c, 0, 3, 7, &proposal);
    cluster_session_gone(c, 0, 3, 7);
    proposal = cluster_join(61);
    cluster_propose(c, 0, 3, 8, &proposal);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.outcome.status, GMS_E_AGAIN);
    c->held[0] = 0;
    cluster_settle(c);
    assert_int_equal(join(c, 3, 61), 4);
    assert_sound(c);
    cluster_free(c);
}

/* Asked for by all in the very round in which the takeover begins: it waits too. */
static void test_a_join_in_the_round_of_the_death(void **state)
{
    struct cluster *c = serving_group(2, 1);
    struct gms_proposal proposal = cluster_join(50);
    struct gms_event event = {.type = GMS_EVENT_RUNG};

    (void)state;
    event.rung_round = cluster_look(c, 0).next_round;
    hold(c, 1u << CLUSTER_ROUND | 1u << CLUSTER_CLASSIFIED);
    for (uint32_t r = 0; r < 2; r++) { /* while this round runs, the next ballot gathers */
        cluster_step(c, r, &event);
        cluster_propose(c, r, 2, session_of(2, r), &proposal);
    }
    cluster_fact(c, 1, 0, 1, GMS_FACT_GONE);
    hold(c, 1u << CLUSTER_CLASSIFIED);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_CLASSIFYING);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PREPARE), 0);
    hold(c, 0);
    cluster_settle(c);
    adopt_and_serve(c, 1, 2);
    assert_int_equal(cluster_look(c, 0).engines[2].role, GMS_ROLE_JOINED);
    cluster_free(c);
}

/* A join that is half done when a takeover begins is ended, not held. */
static void test_a_join_half_done_goes_on(void **state)
{
    struct cluster *c = serving_group(2, 1);
    struct gms_proposal proposal = cluster_join(50);

    (void)state;
    hold(c, 1u << CLUSTER_PREPARE | 1u << CLUSTER_CLASSIFIED);
    for (uint32_t r = 0; r < 2; r++)
        cluster_propose(c, r, 2, session_of(2, r), &proposal);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PREPARE), 2);
    cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    hold(c, 1u << CLUSTER_CLASSIFIED);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_CLASSIFYING);
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_REPLY)->reply.outcome.status, GMS_OK);
    assert_int_equal(cluster_look(c, 1).engines[2].role, GMS_ROLE_JOINED);
    assert_sound(c);
    cluster_free(c);
}

static void test_store_failures_restart(void **state)
{
    struct cluster *c = serving_group(2, 1);

    (void)state;
    c->store_fails[1] = c->may_restart = true;
    cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, 1, GMS_ACTION_RESTART), 1);
    assert_int_equal(cluster_count(c, 1, GMS_ACTION_FENCE), 0);
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_RESTART)->note.status, GMS_E_STORE);
    assert_non_null(strstr(cluster_last(c, 1, GMS_ACTION_RESTART)->note.text, "condemned"));
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_PROMOTE), 0);
    cluster_free(c);
}

/* A planned stop: deaths in the same round are part of it. */
static void test_shutdown(void **state)
{
    struct cluster *c = serving_group(3, 1);
    struct gms_event event = {.type = GMS_EVENT_SHUTDOWN};

    (void)state;
    cluster_step(c, 1, &event);
    cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    assert_sound(c);
    for (uint32_t r = 0; r < 3; r++)
        assert_true(c->shut_down[r]);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_FENCE), 0);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_STORE), 0);
    cluster_forget_trace(c);
    cluster_fact(c, 0, 1, 2, GMS_FACT_GONE);
    assert_int_equal(c->trace_count, 0);
    assert_int_equal(gms_core_deadline(c->cores[0]), UINT64_MAX);
    cluster_free(c);
}

static void test_facts_of_others_are_ignored(void **state)
{
    struct cluster *c = serving_group(2, 1);
    uint64_t round = cluster_look(c, 0).next_round;

    (void)state;
    cluster_fact(c, 0, 0, 9, GMS_FACT_GONE);
    cluster_fact(c, 0, 5, 1, GMS_FACT_GONE);
    cluster_fact(c, 0, 5, 0, GMS_FACT_GONE);
    cluster_fact(c, 0, GMS_MAX_ENGINES, 1, GMS_FACT_GONE);
    cluster_fact(c, 0, 0, 1, GMS_FACT_COUNT);
    cluster_fact(c, 0, 0, 1, GMS_FACT_RETIRED);    /* nobody fenced it */
    cluster_fact(c, 0, 1, 2, GMS_FACT_CLASSIFIED); /* nobody asked for it */
    cluster_fact(c, 0, 1, 2, GMS_FACT_READY);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).next_round, round);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_RING), 0);
    cluster_free(c);
}

/* What no round may conclude from. */
static void test_divergence_is_a_restart(void **state)
{
    (void)state;
    for (unsigned what = 0; what < 7; what++) {
        struct cluster *c = serving_group(2, 1);
        struct gms_ballot merged;
        struct gms_event event = {.type = GMS_EVENT_ROUND_DONE, .merged = &merged};

        hold(c, 1u << CLUSTER_ROUND);
        cluster_fact(c, 0, 0, 1, GMS_FACT_GONE);
        cluster_settle(c);
        merged = *c->items[0].event.merged;
        c->may_restart = true;
        switch (what) {
        case 0:
            merged.state_least--;
            break;
        case 1:
            merged.world_greatest++;
            break;
        case 2:
            merged.round_least--;
            break;
        case 3:
            merged.ranks = 3;
            break;
        case 4:
            merged.flags |= GMS_BALLOT_MALFORMED;
            break;
        case 5:
            merged.version++;
            break;
        default:
            merged.state_least = ++merged.state_greatest; /* all others agree; this rank is alone */
            break;
        }
        cluster_step(c, 0, &event);
        assert_int_equal(cluster_count(c, 0, GMS_ACTION_RESTART), 1);
        assert_int_equal(cluster_last(c, 0, GMS_ACTION_RESTART)->note.status, GMS_E_DIVERGED);
        assert_int_equal(cluster_count(c, 0, GMS_ACTION_STORE), 0);
        assert_true(strlen(cluster_last(c, 0, GMS_ACTION_RESTART)->note.text) > 40);
        cluster_free(c);
    }
}

static void test_doorbells(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_event event = {.type = GMS_EVENT_RUNG};

    (void)state;
    event.rung_round = 0; /* over long ago */
    cluster_step(c, 0, &event);
    assert_int_equal(c->trace_count, 0);
    event.rung_round = 7; /* impossible: a peer needs this rank's ballots */
    cluster_step(c, 0, &event);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_ENTER_ROUND), 0);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_NOTE), 1);
    event.rung_round = 1;
    cluster_step(c, 0, &event);
    cluster_step(c, 0, &event); /* twice is once */
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_ENTER_ROUND), 1);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_RING), 0); /* who was rung does not ring */
    event.rung_round = 2;                                      /* heard while in round 1: kept */
    cluster_step(c, 0, &event);
    event.rung_round = 1;
    cluster_step(c, 1, &event);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_ENTER_ROUND), 2);
    assert_int_equal(cluster_look(c, 0).next_round, 2);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_engine_is_promoted_when_parked),
        cmocka_unit_test(test_shadow_takes_over),
        cmocka_unit_test(test_the_wanted_one_takes_over),
        cmocka_unit_test(test_three_takeovers_in_a_row),
        cmocka_unit_test(test_detectors_in_different_order),
        cmocka_unit_test(test_successor_is_who_parked_first),
        cmocka_unit_test(test_successor_dies_in_each_step),
        cmocka_unit_test(test_nobody_is_ready_then_one_parks),
        cmocka_unit_test(test_clean_leave),
        cmocka_unit_test(test_clean_is_remembered),
        cmocka_unit_test(test_a_shadow_dies),
        cmocka_unit_test(test_stored_before_visible),
        cmocka_unit_test(test_condemned_while_a_record_is_stored),
        cmocka_unit_test(test_a_cohort_that_does_not_end),
        cmocka_unit_test(test_joins_wait_for_a_takeover),
        cmocka_unit_test(test_a_join_held_and_given_up),
        cmocka_unit_test(test_a_join_in_the_round_of_the_death),
        cmocka_unit_test(test_a_join_half_done_goes_on),
        cmocka_unit_test(test_store_failures_restart),
        cmocka_unit_test(test_shutdown),
        cmocka_unit_test(test_facts_of_others_are_ignored),
        cmocka_unit_test(test_divergence_is_a_restart),
        cmocka_unit_test(test_doorbells),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
