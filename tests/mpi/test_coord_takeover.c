/* SPDX-License-Identifier: Apache-2.0
 *
 * Successions with real coordinators: three in a row with relaunched engine ids, whoever is killed; a goodbye; an
 * order; a sticky error; a successor that dies half-way; a child that hides from its dead parent. Each time the
 * published endpoint, the hook and the timeline are looked at.
 */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "harness.h"

enum { RANKS = 3, AT_PARKED = 1, AT_PROMOTED = 2, AT_SERVING = 3, AT_SEALED = 4, GATE_ADOPT = 1, GATE_ACT = 2 };
enum act { ACT_WAIT, ACT_LEAVE, ACT_STICKY, ACT_HIDE_CHILD };
enum { VALUE_ADOPTED, VALUE_IDLE, VALUE_QUARANTINED, VALUE_FOUND, VALUE_CHILD, VALUE_INCARNATION };

/* Slots 0.. are sealed by whoever serves and does not find them sealed; one more is leased and one released. */
enum { SEALED = 6, LEASED = 10, RELEASED = 12 };

static gms_status use_slots(struct engine_rank *rank, gms_session *session, gms_pool *kv, struct gms_error *error)
{
    for (uint32_t slot = 0; slot < SEALED; slot++) {
        uint8_t hash[GMS_BLOCK_HASH_BYTES] = {(uint8_t)(slot + 1)};
        struct gms_block block;
        if (gms_lookup(session, hash, &block) == GMS_OK) {
            const size_t offset = (size_t)slot * HARNESS_BLOCK_BYTES;
            if (block.parts[0].slot != slot || rank_byte(kv, offset) != (int)slot + 1 ||
                rank_byte(kv, offset + HARNESS_BLOCK_BYTES - 1) != (int)slot + 1)
                return gms_fail(error, GMS_E_CORRUPT, "adopted block %u is not what was sealed", slot);
            rank->values[VALUE_FOUND]++;
            continue;
        }
        gms_status status = rank_seal(session, kv, slot, error);
        if (status != GMS_OK)
            return status;
    }
    uint64_t generation;
    gms_slot_acquire(kv, LEASED, &generation); /* quarantined after the first succession, and refused then */
    if (gms_slot_acquire(kv, RELEASED, &generation) == GMS_OK)
        gms_slot_release(kv, RELEASED, generation, 0);
    return GMS_OK;
}

static gms_status body(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    gms_pool *weights = NULL, *kv = NULL;
    struct gms_membership membership;
    struct gms_promotion promotion;
    struct gms_adoption adoption = {0};
    char endpoint[64];
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status == GMS_OK)
        status = rank_attach_weights(session, &weights, error);
    if (status == GMS_OK)
        status = rank_attach_kv(session, HARNESS_SLOTS, &kv, error);
    if (status == GMS_OK && rank_byte(weights, 0) != 0x5a)
        status = gms_fail(error, GMS_E_CORRUPT, "the weights are not what was published");
    if (status == GMS_OK)
        status = gms_park(session, error);
    if (status != GMS_OK)
        return status;
    rank->values[VALUE_INCARNATION] = membership.incarnation;
    rank_at(rank, AT_PARKED);
    status = gms_wait_promotion(session, 2 * HARNESS_DEADLINE_MS, &promotion, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_PROMOTED);
    rank_gate(rank, GATE_ADOPT);
    status = gms_adopt(session, &adoption, error);
    snprintf(endpoint, sizeof endpoint, "unix:/engine%u.%llu", rank->engine,
             (unsigned long long)membership.incarnation);
    if (status == GMS_OK)
        status = gms_serve(session, rank->rank == 0 ? endpoint : NULL, error);
    if (status != GMS_OK)
        return status;
    rank->values[VALUE_ADOPTED] = adoption.adopted;
    rank->values[VALUE_IDLE] = adoption.idle;
    rank->values[VALUE_QUARANTINED] = adoption.quarantined;
    rank_at(rank, AT_SERVING);
    status = use_slots(rank, session, kv, error);
    if (status != GMS_OK)
        return status;
    if (rank->argument == ACT_HIDE_CHILD && rank->rank == 1) {
        pid_t child = fork(); /* keeps all mappings, and no session */
        if (child == 0) {
            setsid();
            for (;;)
                pause();
        }
        rank->values[VALUE_CHILD] = (uint64_t)child;
    }
    rank_at(rank, AT_SEALED);
    rank_gate(rank, GATE_ACT);
    if (rank->argument == ACT_STICKY && rank->rank == 1)
        status = gms_report_sticky_error(session, 700, "illegal address", error);
    if (rank->argument == ACT_LEAVE) {
        gms_close(session);
        return GMS_OK;
    }
    rank_gate(rank, 1000); /* ended from outside */
    return status;
}

static struct cluster cluster;
static struct engine engines[8];

static bool is_condemned(void *context)
{
    (void)context;
    return cluster_log_count(&cluster, "is condemned: left") == RANKS;
}

static void begin(void)
{
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
}

static void start(int which, uint32_t id, const char *launch, enum act act)
{
    engine_start(&engines[which], &cluster, id, launch, body, (uint64_t)act);
    assert_true(engine_reached(&engines[which], AT_PARKED, HARNESS_DEADLINE_MS));
}

static void expect_serving(int which, uint64_t adopted)
{
    struct engine *engine = &engines[which];
    engine_go(engine, GATE_ADOPT);
    assert_true(engine_reached(engine, AT_SEALED, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(engine->ranks[rank].values[VALUE_ADOPTED], adopted);
        assert_int_equal(engine->ranks[rank].values[VALUE_FOUND], adopted);
        assert_int_equal(cluster_number(&cluster, rank, "serving_engine"), engine->ranks[0].engine);
    }
    char path[160], expected[64], text[512] = "";
    snprintf(path, sizeof path, "%s/serving", cluster.run_dir);
    snprintf(expected, sizeof expected, "unix:/engine%u.%llu", engine->ranks[0].engine,
             (unsigned long long)engine->ranks[0].values[VALUE_INCARNATION]);
    FILE *stream = fopen(path, "re");
    assert_non_null(stream);
    assert_true(fread(text, 1, sizeof text - 1, stream) > 0);
    fclose(stream);
    assert_non_null(strstr(text, expected));
}

/* The newest takeover on every rank: complete, in order, with this cause. */
static void expect_takeover(const char *cause, uint32_t sealed)
{
    static const char *const steps[] = {"detect_ns",  "condemn_ns", "fence_ns", "classify_ns",
                                        "promote_ns", "adopt_ns",   "serve_ns"};
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        json_t *status = cluster_status(&cluster, rank);
        const json_t *list = json_object_get(status, "takeovers");
        const json_t *last = json_array_get(list, json_array_size(list) - 1);
        json_int_t before = 1;
        if (last == NULL)
            fail_msg("rank %u tells of no takeover: %s", rank, status != NULL ? json_dumps(status, 0) : "no answer");
        assert_string_equal(json_string_value(json_object_get(last, "cause")), cause);
        for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            json_int_t at = json_integer_value(json_object_get(last, steps[i]));
            if (at < before)
                fail_msg("rank %u: %s is %lld, before the step before it", rank, steps[i], (long long)at);
            before = at;
        }
        assert_int_equal(json_integer_value(json_object_get(last, "sealed_here")), sealed);
        assert_int_equal(json_integer_value(json_object_get(last, "adopted")), sealed);
        json_decref(status);
    }
}

static void expect_gone(int which)
{
    assert_true(engine_wait_end(&engines[which], HARNESS_DEADLINE_MS));
    engine_finish(&engines[which]);
}

static void end_all(int first, int last)
{
    for (int which = first; which <= last; which++)
        engine_finish(&engines[which]);
    cluster_stop(&cluster);
}

static void test_three_in_a_row(void **state)
{
    (void)state;
    begin();
    start(0, 0, "a", ACT_WAIT);
    expect_serving(0, 0);
    start(1, 1, "b", ACT_WAIT);
    for (int turn = 0; turn < 3; turn++) { /* rank 0, 1, 2; ids alternate, each launch is new */
        char launch[8];
        engine_kill(&engines[turn], (uint32_t)turn);
        expect_serving(turn + 1, SEALED);
        expect_takeover("gone", SEALED);
        expect_gone(turn); /* the whole cohort */
        snprintf(launch, sizeof launch, "r%d", turn);
        start(turn + 2, (uint32_t)turn % 2, launch, ACT_WAIT);
    }
    end_all(3, 4);
}

static void test_all_killed(void **state)
{
    (void)state;
    begin();
    start(0, 0, "a", ACT_WAIT);
    expect_serving(0, 0);
    start(1, 1, "b", ACT_WAIT);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        engine_kill(&engines[0], rank);
    expect_serving(1, SEALED);
    expect_gone(0);
    end_all(1, 1);
}

/* Said goodbye: what it had released is idle, what it had leased is not. */
static void test_goodbye(void **state)
{
    (void)state;
    begin();
    start(0, 0, "a", ACT_LEAVE);
    expect_serving(0, 0);
    start(1, 1, "b", ACT_WAIT);
    engine_go(&engines[0], GATE_ACT);
    expect_serving(1, SEALED);
    expect_takeover("left", SEALED);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(engines[1].ranks[rank].values[VALUE_QUARANTINED], 1);
    expect_gone(0);
    end_all(1, 1);
}

/* One rank after the other says goodbye: the group knows it with the first, and the rest may still end by themselves,
 * each with its own exit status. The successor waits for that. */
static void test_leaves_one_by_one(void **state)
{
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .leave = "15s"});
    start(0, 0, "a", ACT_LEAVE);
    expect_serving(0, 0);
    start(1, 1, "b", ACT_WAIT);
    atomic_store(&engines[0].ranks[0].go, GATE_ACT);
    assert_true(eventually(is_condemned, NULL, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 1; rank < RANKS; rank++)
        assert_true(engine_rank_alive(&engines[0], rank));
    engine_go(&engines[0], GATE_ACT);
    expect_serving(1, SEALED);
    expect_takeover("left", SEALED);
    for (uint32_t rank = 0; rank < RANKS; rank++) { /* their bodies came to an end: nobody was killed */
        assert_int_equal(engines[0].ranks[rank].at, 1000);
        assert_int_equal(engines[0].ranks[rank].status, GMS_OK);
    }
    expect_gone(0);
    end_all(1, 1);
}

static void test_ordered(void **state)
{
    (void)state;
    begin();
    start(0, 0, "a", ACT_WAIT);
    expect_serving(0, 0);
    start(1, 1, "b", ACT_WAIT);
    struct gms_message order = {.type = GMS_MESSAGE_TAKEOVER, .takeover = {.engine_id = 5}};
    assert_int_equal(cluster_order(&cluster, 1, &order), GMS_E_NOT_FOUND);
    order.takeover.engine_id = 0;
    assert_int_equal(cluster_order(&cluster, 1, &order), GMS_OK);
    expect_serving(1, SEALED);
    expect_takeover("commanded", SEALED);
    expect_gone(0);
    end_all(1, 1);
}

static void test_sticky(void **state)
{
    (void)state;
    begin();
    start(0, 0, "a", ACT_STICKY);
    expect_serving(0, 0);
    start(1, 1, "b", ACT_WAIT);
    engine_go(&engines[0], GATE_ACT);
    expect_serving(1, SEALED);
    expect_takeover("sticky", SEALED);
    expect_gone(0);
    end_all(1, 1);
}

/* The successor dies between its promotion and its adoption: the next one gets the same slots. */
static void test_successor_dies(void **state)
{
    (void)state;
    begin();
    start(0, 0, "a", ACT_WAIT);
    expect_serving(0, 0);
    start(1, 1, "b", ACT_WAIT);
    start(2, 2, "c", ACT_WAIT);
    engine_kill(&engines[0], 2);
    assert_true(engine_reached(&engines[1], AT_PROMOTED, HARNESS_DEADLINE_MS));
    engine_kill(&engines[1], 0);
    expect_serving(2, SEALED);
    expect_gone(0);
    expect_gone(1);
    end_all(2, 2);
}

static bool has_ended(void *pidfd)
{
    return gms_pidfd_ended(*(const int *)pidfd);
}

/* A child with the engine's mappings, out of its session and process group, outlives nobody. */
static void test_hidden_child(void **state)
{
    (void)state;
    begin();
    start(0, 0, "a", ACT_HIDE_CHILD);
    expect_serving(0, 0);
    pid_t child = (pid_t)engines[0].ranks[1].values[VALUE_CHILD];
    int pidfd = -1;
    assert_int_equal(gms_pidfd_open(child, &pidfd, NULL), GMS_OK);
    assert_false(gms_pidfd_ended(pidfd));
    start(1, 1, "b", ACT_WAIT);
    engine_kill(&engines[0], 1);
    assert_true(engine_reached(&engines[1], AT_PROMOTED, HARNESS_DEADLINE_MS));
    /* Before anybody was promoted. With a GPU it is retired by then, and its end waits for the driver. */
    assert_true(gms_pidfd_ended(pidfd) ||
                (getenv("GMS_TEST_MEMORY") != NULL && eventually(has_ended, &pidfd, HARNESS_DEADLINE_MS)));
    gms_fd_close(&pidfd);
    expect_serving(1, SEALED);
    expect_gone(0);
    end_all(1, 1);
}

/* A shadow that dies is no takeover, and its id is free again. */
static void test_shadow_dies(void **state)
{
    (void)state;
    begin();
    start(0, 0, "a", ACT_WAIT);
    expect_serving(0, 0);
    start(1, 1, "b", ACT_WAIT);
    engine_kill(&engines[1], 1);
    expect_gone(1);
    start(2, 1, "c", ACT_WAIT);
    assert_int_equal(cluster_number(&cluster, 0, "serving_engine"), 0);
    json_t *status = cluster_status(&cluster, 0);
    assert_int_equal(json_array_size(json_object_get(status, "takeovers")), 0);
    json_decref(status);
    engine_kill(&engines[0], 0);
    expect_serving(2, SEALED);
    expect_gone(0);
    end_all(2, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three_in_a_row),    cmocka_unit_test(test_all_killed),
        cmocka_unit_test(test_leaves_one_by_one), cmocka_unit_test(test_goodbye),
        cmocka_unit_test(test_ordered),           cmocka_unit_test(test_sticky),
        cmocka_unit_test(test_successor_dies),    cmocka_unit_test(test_hidden_child),
        cmocka_unit_test(test_shadow_dies),
    };
    return cmocka_run_group_tests_name("coord_takeover", tests, NULL, NULL);
}
