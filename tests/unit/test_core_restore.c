/* SPDX-License-Identifier: Apache-2.0
 * A group that goes on from a snapshot: what is told, fenced, classified and undone again, and what is not believed. */
#include "core/core_state.h"
#include "core/snapshot.h"
#include "core_support.h"

static uint8_t bytes[GMS_SNAPSHOT_MAX_BYTES];

static void attach(struct cluster *c, uint32_t rank, uint32_t engine, uint64_t incarnation)
{
    struct gms_event event = {.type = GMS_EVENT_ATTACHED};

    event.attached.engine = engine;
    event.attached.incarnation = incarnation;
    cluster_step(c, rank, &event);
    cluster_settle(c);
}

static void attach_everywhere(struct cluster *c, uint32_t engine, uint64_t incarnation)
{
    for (uint32_t r = 0; r < c->ranks; r++)
        attach(c, r, engine, incarnation);
}

/* Of one rank, which asked in world `since` first. The answer at once; -1: none yet. */
static int ask_join(struct cluster *c, uint32_t rank, uint32_t engine, uint64_t launch, uint64_t since)
{
    struct gms_proposal proposal = cluster_join(launch);

    cluster_forget_trace(c);
    cluster_ask(c, rank, engine, 900 + launch, since, &proposal);
    cluster_settle(c);
    const struct gms_action *answer = cluster_last(c, rank, GMS_ACTION_REPLY);
    return answer ? (int)answer->reply.outcome.status : -1;
}

static void test_a_group_at_rest_goes_on(void **state)
{
    struct cluster *c = serving_pair(3);
    struct gms_core_view before = cluster_look(c, 0), after;
    struct gms_core_pool_view pool;

    (void)state;
    cluster_bounce(c, NULL);
    assert_sound(c);
    assert_agreed(c);
    after = cluster_look(c, 0);
    assert_int_equal(after.world, 78);
    assert_int_equal(after.epoch, before.epoch);
    assert_int_equal(after.serving_engine, 0);
    assert_int_equal(after.writer_incarnation, 1);
    assert_int_equal(after.takeover, GMS_TAKEOVER_SERVING);
    assert_memory_equal(&after.engines[0], &before.engines[0], sizeof after.engines[0]);
    assert_int_equal(after.engines[1].incarnation, 2); /* parking is no record: engines say it again */
    attach_everywhere(c, 1, 2);
    fact_everywhere(c, 1, 2, GMS_FACT_PARKED);
    assert_int_equal(cluster_look(c, 0).engines[1].role, GMS_ROLE_PARKED);
    assert_true(gms_core_look_pool(c->cores[2], 0, &pool));
    assert_string_equal(pool.name, "kv");
    assert_int_equal(pool.attached_mask, 1);
    cluster_free(c);
}

/* What the group is outlives its coordinators: an engine that hashes otherwise is still refused (V28). */
static void test_a_stranger_is_refused_as_before(void **state)
{
    struct cluster *c = serving_pair(2);
    struct gms_proposal stranger = cluster_join(500);
    struct gms_outcome outcome;

    (void)state;
    cluster_bounce(c, NULL);
    stranger.fields[4] ^= 0x5eed;
    outcome = everywhere(c, 2, &stranger);
    assert_int_equal(outcome.status, GMS_E_MISMATCH);
    assert_non_null(strstr(outcome.text, "hash seed"));
    assert_non_null(strstr(outcome.text, "since incarnation 1"));
    cluster_free(c);
}

static void test_who_serves_is_told_again(void **state)
{
    struct cluster *c = serving_pair(2);

    (void)state;
    cluster_bounce(c, NULL);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_SERVING), 0); /* nobody is there to hear it */
    attach_everywhere(c, 0, 1);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_SERVING), 2);
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_SERVING)->promote.epoch, 1);
    attach_everywhere(c, 1, 2);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PROMOTE), 0);
    assert_sound(c);
    cluster_free(c);
}

static void test_who_is_promoted_is_told_again(void **state)
{
    struct cluster *c = serving_pair(2);

    (void)state;
    cluster_fact(c, 1, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_PROMOTING);
    cluster_bounce(c, NULL);
    cluster_forget_trace(c);
    attach_everywhere(c, 1, 2);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PROMOTE), 2);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_PROMOTE)->promote.epoch, 2);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_PROMOTE)->promote.source, 1);
    adopt_and_serve(c, 1, 2);
    assert_int_equal(cluster_look(c, 1).serving_engine, 1);
    cluster_bounce(c, NULL);
    cluster_forget_trace(c);
    attach_everywhere(c, 1, 2); /* after it adopted, the source is still the one it was promoted with */
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_SERVING), 2);
    assert_sound(c);
    cluster_free(c);
}

static void test_who_was_retired_meanwhile_must_end(void **state)
{
    struct cluster *c = serving_pair(2);

    (void)state;
    cluster_fact(c, 1, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    cluster_bounce(c, NULL);
    cluster_forget_trace(c);
    attach(c, 0, 0, 1);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_CONDEMNED), 1);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_CONDEMNED)->promote.incarnation, 1);
    attach(c, 0, GMS_MAX_ENGINES, 1); /* no such slot */
    assert_sound(c);
    cluster_free(c);
}

static void test_the_condemned_are_fenced_again(void **state)
{
    struct cluster *c = serving_pair(2);

    (void)state;
    c->held[0] = c->held[1] = 1u << CLUSTER_RETIRED;
    cluster_fact(c, 1, 0, 1, GMS_FACT_STICKY);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).engines[0].role, GMS_ROLE_CONDEMNED);
    cluster_forget_trace(c);
    cluster_bounce(c, NULL);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_FENCE), 2);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_CONDEMNED), 2);
    assert_int_equal(cluster_look(c, 0).engines[0].role, GMS_ROLE_CONDEMNED);
    struct gms_proposal late = cluster_on_pool(GMS_OPERATION_RELEASE, 1, 3, "kv"); /* it calls before it is dead */
    cluster_propose(c, 0, 0, 900, &late);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.outcome.status, GMS_E_CONDEMNED);
    c->held[0] = c->held[1] = 0;
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_CLASSIFY), 2);
    assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_PROMOTING);
    assert_sound(c);
    cluster_free(c);
}

static void test_a_classification_is_done_again(void **state)
{
    struct cluster *c = serving_pair(2);

    (void)state;
    c->held[1] = 1u << CLUSTER_CLASSIFIED;
    cluster_fact(c, 1, 0, 1, GMS_FACT_GONE);
    cluster_settle(c);
    assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_CLASSIFYING);
    cluster_forget_trace(c);
    c->held[1] = 0;
    cluster_bounce(c, NULL);
    assert_true(cluster_count(c, 0, GMS_ACTION_CLASSIFY) == 1 && cluster_count(c, 1, GMS_ACTION_CLASSIFY) == 1);
    assert_false(cluster_last(c, 0, GMS_ACTION_CLASSIFY)->classify.source_clean);
    assert_int_equal(cluster_look(c, 0).takeover, GMS_TAKEOVER_PROMOTING);
    assert_sound(c);
    cluster_free(c);
}

/* Prepared on all, decided on none: undone, and asked again it starts anew under its number. */
static void test_what_nobody_decided_is_undone(void **state)
{
    struct cluster *c = serving_pair(3);
    struct gms_proposal spare = cluster_allocate(2, 1, "spare", GMS_POOL_KV, 8, 4096);
    struct gms_snapshot_view view;

    (void)state;
    for (uint32_t r = 0; r < 3; r++)
        c->held[r] = 1u << CLUSTER_PREPARE;
    for (uint32_t r = 0; r < 3; r++)
        cluster_propose(c, r, 1, session_of(1, r), &spare);
    cluster_settle(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_PREPARE), 3);
    size_t count = gms_core_snapshot(c->cores[0], bytes, sizeof bytes);
    assert_int_equal(gms_snapshot_look(bytes, count, &view), GMS_OK);
    assert_int_equal(view.prepared, 1);
    cluster_bounce(c, NULL);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_ABORT), 3);
    assert_int_equal(cluster_last(c, 2, GMS_ACTION_ABORT)->commit.outcome.status, GMS_E_AGAIN);
    assert_int_equal(cluster_last(c, 2, GMS_ACTION_ABORT)->commit.proposal.key.sequence, 1);
    assert_int_equal(cluster_look(c, 0).engines[1].next_sequence, 1);
    for (uint32_t r = 0; r < 3; r++)
        c->held[r] = 0;
    assert_int_equal(everywhere(c, 1, &spare).status, GMS_OK);
    cluster_check_effects(c);
    assert_sound(c);
    cluster_free(c);
}

/* Decided, stored and told on one rank, which alone saw the round's end. */
static void test_what_one_rank_told_is_completed_everywhere(void **state)
{
    (void)state;
    for (uint32_t teller = 0; teller < 3; teller++) {
        struct cluster *c = serving_pair(3);
        struct gms_proposal spare = cluster_allocate(2, 1, "spare", GMS_POOL_KV, 8, 4096);

        for (uint32_t r = 0; r < 3; r++) {
            c->held[r] = 1u << CLUSTER_PREPARE;
            cluster_propose(c, r, 1, session_of(1, r), &spare);
        }
        cluster_settle(c);
        for (uint32_t r = 0; r < 3; r++)
            c->held[r] = r == teller ? 0 : 1u << CLUSTER_ROUND;
        cluster_forget_trace(c);
        cluster_settle(c); /* the votes differ in when they come: rounds go on until the last one's vote is in */
        for (unsigned turn = 0; turn < 20 && !cluster_count(c, teller, GMS_ACTION_REPLY); turn++) {
            for (uint32_t i = 0; i < c->item_count; i++)
                if (c->items[i].kind == CLUSTER_ROUND &&
                    cluster_look(c, c->items[i].rank).next_round + 1 == cluster_look(c, teller).next_round) {
                    cluster_deliver(c, i);
                    break;
                }
            cluster_settle(c);
        }
        assert_int_equal(cluster_count(c, teller, GMS_ACTION_COMMIT), 1);
        assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_COMMIT), 1);
        const uint32_t none[CLUSTER_RANKS] = {0};
        for (uint32_t r = 0; r < 3; r++)
            c->held[r] = 0;
        cluster_forget_trace(c);
        cluster_bounce(c, none);
        assert_sound(c);
        for (uint32_t r = 0; r < 3; r++)
            assert_true(cluster_count(c, r, GMS_ACTION_COMMIT) >= 1);
        assert_int_equal(cluster_look(c, 0).engines[1].next_sequence, 2);
        assert_int_equal(everywhere(c, 1, &spare).status, GMS_OK); /* late askers get what was told */
        cluster_check_effects(c);
        assert_sound(c);
        cluster_free(c);
    }
}

static void test_a_join_that_was_not_heard_is_told_again(void **state)
{
    struct cluster *c = serving_pair(2);
    struct gms_proposal proposal = cluster_join(33);

    (void)state;
    assert_int_equal(join(c, 2, 33), 3);
    cluster_bounce(c, NULL);
    cluster_forget_trace(c);
    cluster_propose(c, 1, 2, 900, &proposal);
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_REPLY)->reply.outcome.incarnation, 3);
    assert_int_equal(join(c, 3, 34), 4); /* numbers go on */
    assert_sound(c);
    cluster_free(c);
}

static void test_who_does_not_come_back_is_named(void **state)
{
    struct cluster *c = serving_pair(2);

    (void)state;
    c->options.reattach_ns = 5000 * MS;
    cluster_bounce(c, NULL);
    attach_everywhere(c, 0, 1);
    attach(c, 0, 1, 2);
    cluster_forget_trace(c);
    cluster_advance(c, 4999 * MS);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_NOTE), 0);
    cluster_advance(c, 1 * MS);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_NOTE), 1);
    assert_non_null(strstr(cluster_last(c, 1, GMS_ACTION_NOTE)->note.text, "engine 1 incarnation 2"));
    assert_int_equal(cluster_look(c, 0).engines[1].role, GMS_ROLE_JOINED); /* not condemned for it */
    cluster_advance(c, 5000 * MS);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_NOTE), 2);
    attach(c, 1, 1, 2);
    cluster_advance(c, 50000 * MS);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_NOTE), 2);
    cluster_free(c);
}

static void dispatch(struct cluster *c, uint32_t rank, uint64_t id, bool again, uint32_t ended, uint32_t failed)
{
    struct gms_event event = {.type = GMS_EVENT_TRANSFER_DISPATCH};

    event.transfer_dispatch.incarnation = 1;
    event.transfer_dispatch.session = 7;
    event.transfer_dispatch.id = id;
    event.transfer_dispatch.part_count = 2;
    event.transfer_dispatch.again = again;
    event.transfer_dispatch.ended_mask = ended;
    event.transfer_dispatch.failed_mask = failed;
    cluster_step(c, rank, &event);
    cluster_settle(c);
}

static void wait_for(struct cluster *c, uint32_t rank, uint64_t id)
{
    struct gms_event event = {.type = GMS_EVENT_TRANSFER_WAIT};

    event.transfer_wait.incarnation = 1;
    event.transfer_wait.session = 7;
    event.transfer_wait.id = id;
    cluster_step(c, rank, &event);
    cluster_settle(c);
}

/* One rank was told the end, the other was not; a third one is not ended. */
static void test_transfers_go_on(void **state)
{
    struct cluster *c = serving_pair(2);

    (void)state;
    dispatch(c, 0, 5, false, 0, 0);
    dispatch(c, 1, 5, false, 0, 0);
    cluster_bounce(c, NULL); /* nothing was voted: only the engines know of it */
    attach_everywhere(c, 0, 1);
    dispatch(c, 0, 5, true, 3, 2);
    wait_for(c, 0, 5);
    c->held[1] = 1u << CLUSTER_STORE;
    dispatch(c, 1, 5, true, 3, 0);
    wait_for(c, 1, 5);
    assert_int_equal(cluster_count(c, 0, GMS_ACTION_TRANSFER_DONE), 1);
    assert_int_equal(cluster_count(c, 1, GMS_ACTION_TRANSFER_DONE), 0); /* not stored there yet */
    c->held[1] = 0;
    cluster_bounce(c, (const uint32_t[CLUSTER_RANKS]){0});
    dispatch(c, 1, 5, true, 3, 0);
    wait_for(c, 1, 5);
    assert_int_equal(cluster_count(c, 1, GMS_ACTION_TRANSFER_DONE), 1);
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_TRANSFER_DONE)->transfer.failed, 1);
    assert_int_equal(cluster_last(c, 1, GMS_ACTION_TRANSFER_DONE)->transfer.first_failed, 0);
    assert_sound(c);
    cluster_free(c);
}

static void test_nothing_lives_only_numbers_go_on(void **state)
{
    struct cluster *c = serving_pair(2);
    struct gms_core_pool_view pool;

    (void)state;
    cluster_crash(c, NULL);
    cluster_forget_effects(c);
    cluster_bounce(c, NULL);
    assert_sound(c);
    assert_int_equal(cluster_look(c, 0).epoch, 1);
    assert_int_equal(cluster_look(c, 0).engines[0].role, GMS_ROLE_EMPTY);
    assert_false(gms_core_look_pool(c->cores[0], 0, &pool));
    assert_int_equal(ask_join(c, 1, 1, 12, 77), GMS_E_CONDEMNED); /* what was told is remembered */
    assert_int_equal(join(c, 0, 13), 3);
    fact_everywhere(c, 0, 3, GMS_FACT_PARKED);
    adopt_and_serve(c, 0, 3);
    assert_int_equal(cluster_look(c, 0).epoch, 2);
    cluster_free(c);
}

/* What a launch was told before is lost: it is not told anything else. A new one joins. */
static void test_a_launch_of_an_earlier_life_is_refused(void **state)
{
    struct cluster *c = new_cluster(2);
    struct gms_recovery_report reports[CLUSTER_RANKS];
    struct gms_recovery_decision decision;

    (void)state;
    assert_int_equal(ask_join(c, 0, 0, 11, 77), -1); /* nobody else asks: it fails in its time */
    cluster_advance(c, c->options.operation_timeout_ns);
    assert_int_equal(cluster_last(c, 0, GMS_ACTION_REPLY)->reply.outcome.status, GMS_E_EXPIRED);
    cluster_crash(c, (uint32_t[]){0, 0});
    cluster_lose(c, 0, GMS_DOUBT_MISSING);
    cluster_lose(c, 1, GMS_DOUBT_MISSING);
    cluster_reports(c, reports);
    gms_recovery_decide(reports, 2, &decision);
    assert_int_equal(decision.verdict, GMS_RECOVERY_FRESH);
    assert_int_equal(decision.life, 0);
    cluster_restart(c, &decision);
    assert_int_equal(ask_join(c, 0, 0, 11, 77), GMS_E_STALE);
    assert_int_equal(ask_join(c, 1, 0, 11, 77), GMS_E_STALE);
    assert_non_null(strstr(cluster_last(c, 1, GMS_ACTION_REPLY)->reply.outcome.text, "new launch"));
    assert_int_equal(join(c, 0, 12), 1);
    cluster_bounce(c, NULL); /* the life goes on with what is stored */
    assert_int_equal(ask_join(c, 0, 1, 11, 77), GMS_E_STALE);
    assert_int_equal(ask_join(c, 0, 1, 13, 78), -1);
    assert_sound(c);
    cluster_free(c);
}

static void test_salvage_ends_all_and_jumps(void **state)
{
    struct cluster *c = serving_pair(2);
    struct gms_proposal weights = cluster_allocate(2, 1, "w", GMS_POOL_WEIGHTS, 0, 0);
    struct gms_proposal publish = cluster_on_pool(GMS_OPERATION_PUBLISH, 2, 2, "w");
    struct gms_recovery_report reports[CLUSTER_RANKS];
    struct gms_recovery_decision decision;
    struct gms_core_pool_view pool;

    (void)state;
    assert_int_equal(everywhere(c, 1, &weights).status, GMS_OK);
    assert_int_equal(everywhere(c, 1, &publish).status, GMS_OK);
    c->held[1] = 1u << CLUSTER_STORE; /* what rank 0 is told now, rank 1 has not stored */
    cluster_fact(c, 0, 1, 2, GMS_FACT_COMMANDED);
    cluster_settle(c);
    c->held[1] = 0;
    cluster_crash(c, (uint32_t[]){0, 0});
    cluster_lose(c, 0, GMS_DOUBT_OLDER);
    cluster_reports(c, reports);
    gms_recovery_decide(reports, 2, &decision);
    assert_int_equal(decision.verdict, GMS_RECOVERY_REFUSE);
    reports[0].accept_loss = reports[1].accept_loss = true;
    gms_recovery_decide(reports, 2, &decision);
    assert_int_equal(decision.verdict, GMS_RECOVERY_SALVAGE);
    cluster_forget_trace(c);
    cluster_restart(c, &decision);
    cluster_settle(c);
    assert_sound(c);
    assert_int_equal(cluster_count(c, UINT32_MAX, GMS_ACTION_FENCE), 4);
    assert_int_equal(cluster_look(c, 0).engines[0].role, GMS_ROLE_EMPTY);
    assert_int_equal(cluster_look(c, 0).engines[1].role, GMS_ROLE_EMPTY);
    assert_int_equal(cluster_look(c, 0).writer_incarnation, 0);
    assert_true(cluster_look(c, 0).epoch > UINT32_MAX);
    assert_true(gms_core_look_pool(c->cores[0], 1, &pool));
    assert_int_equal(pool.state, GMS_POOL_UNPUBLISHED); /* what is in it is anybody's guess */
    assert_int_equal(ask_join(c, 0, 0, 13, 77), GMS_E_STALE);
    uint64_t incarnation = join(c, 0, 14);
    assert_true(incarnation > UINT32_MAX);
    weights = cluster_allocate(incarnation, 1, "w", GMS_POOL_WEIGHTS, 0, 0);
    assert_true(everywhere(c, 0, &weights).created);
    cluster_free(c);
}

static void test_restore_refuses_what_does_not_fit(void **state)
{
    struct cluster *c = serving_pair(2);
    size_t count = gms_core_snapshot(c->cores[0], bytes, sizeof bytes);
    struct gms_core *memory = test_malloc(gms_core_bytes()), *core;
    struct gms_actions *actions = test_malloc(sizeof *actions);
    struct gms_core_options options = c->options;

    (void)state;
    assert_int_equal(gms_core_restore(memory, &options, GMS_RECOVERY_RESTORE, bytes, count, 1, &core, actions),
                     GMS_E_FOREIGN_WORLD); /* its own world */
    options.world = 78;
    options.world_size = 3;
    assert_int_equal(gms_core_restore(memory, &options, GMS_RECOVERY_RESTORE, bytes, count, 1, &core, actions),
                     GMS_E_MISMATCH);
    options.world_size = 2;
    assert_int_equal(gms_core_restore(memory, &options, GMS_RECOVERY_FRESH, bytes, count, 1, &core, actions),
                     GMS_E_INVALID);
    assert_int_equal(gms_core_restore(memory, &options, GMS_RECOVERY_REFUSE, bytes, count, 1, &core, actions),
                     GMS_E_INVALID);
    assert_int_equal(gms_core_restore(memory, &options, GMS_RECOVERY_RESTORE, bytes, count - 1, 1, &core, actions),
                     GMS_E_CORRUPT);
    assert_int_equal(gms_core_restore(memory, &options, GMS_RECOVERY_RESTORE, bytes, count, 1, &core, actions), GMS_OK);
    test_free(actions);
    test_free(memory);
    cluster_free(c);
}

/* Ranks that restored from different bytes find out before anything follows. */
static void test_different_restores_are_found(void **state)
{
    struct cluster *c = serving_pair(2);
    struct gms_core *cores[2], *memory[2] = {test_malloc(gms_core_bytes()), test_malloc(gms_core_bytes())};
    struct gms_actions *actions = test_malloc(sizeof *actions);
    struct gms_event event = {.type = GMS_EVENT_ROUND_DONE, .now_ns = 2};
    struct gms_ballot merged;

    (void)state;
    gms_ballot_init(&merged);
    for (uint32_t r = 0; r < 2; r++) {
        struct gms_core_options options = c->options;
        size_t count;

        options.rank = r;
        options.world = 78;
        if (r == 1)
            c->cores[r]->incarnations++;
        count = gms_core_snapshot(c->cores[r], bytes, sizeof bytes);
        assert_int_equal(
            gms_core_restore(memory[r], &options, GMS_RECOVERY_RESTORE, bytes, count, 1, &cores[r], actions), GMS_OK);
        assert_int_equal(actions->items[actions->count - 1].type, GMS_ACTION_ENTER_ROUND);
        gms_ballot_merge(&merged, actions->items[actions->count - 1].ballot);
    }
    event.merged = &merged;
    for (uint32_t r = 0; r < 2; r++) {
        gms_core_step(cores[r], &event, actions);
        assert_int_equal(actions->items[0].type, GMS_ACTION_RESTART);
        assert_int_equal(actions->items[0].note.status, GMS_E_DIVERGED);
        test_free(memory[r]);
    }
    test_free(actions);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_group_at_rest_goes_on),
        cmocka_unit_test(test_a_stranger_is_refused_as_before),
        cmocka_unit_test(test_who_serves_is_told_again),
        cmocka_unit_test(test_who_is_promoted_is_told_again),
        cmocka_unit_test(test_who_was_retired_meanwhile_must_end),
        cmocka_unit_test(test_the_condemned_are_fenced_again),
        cmocka_unit_test(test_a_classification_is_done_again),
        cmocka_unit_test(test_what_nobody_decided_is_undone),
        cmocka_unit_test(test_what_one_rank_told_is_completed_everywhere),
        cmocka_unit_test(test_a_join_that_was_not_heard_is_told_again),
        cmocka_unit_test(test_who_does_not_come_back_is_named),
        cmocka_unit_test(test_transfers_go_on),
        cmocka_unit_test(test_nothing_lives_only_numbers_go_on),
        cmocka_unit_test(test_a_launch_of_an_earlier_life_is_refused),
        cmocka_unit_test(test_salvage_ends_all_and_jumps),
        cmocka_unit_test(test_restore_refuses_what_does_not_fit),
        cmocka_unit_test(test_different_restores_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
