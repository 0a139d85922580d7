/* SPDX-License-Identifier: Apache-2.0
 *
 * Quarantine that ends: with real coordinators and engine ranks that write. Pages come back to the successor, and to
 * its successor; through a restart of all coordinators in the middle; while a slow return goes on a takeover is as fast
 * as ever (V11); by policy instead of proof; and never where MPS makes death meaningless (V33).
 */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness.h"

enum { RANKS = 2, AT_PARKED = 1, AT_SERVING = 2, AT_LEASED = 3, GATE_LEASE = 1, GATE_END = 1000 };
enum { VALUE_INCARNATION, VALUE_QUARANTINED, VALUE_LEASED, VALUE_RETURNED, VALUE_BAD, VALUE_SERVING_NS, VALUE_LAST_NS };
/* In the argument of an engine: how many slots there are, and how many of them it leases from the first on. */
#define PLAN(slots, leases) ((uint64_t)(slots) << 32 | (leases))

/* What comes back is checked by using it: it must be idle here, and nobody may have written it since. */
static void take_returned(struct engine_rank *rank, gms_pool *kv, bool lease)
{
    uint32_t slot;
    while (gms_returned_next(kv, &slot) == GMS_OK) {
        uint64_t generation;
        rank->values[VALUE_RETURNED]++;
        rank->values[VALUE_LAST_NS] = gms_clock_ns();
        if (gms_slot_state(kv, slot, NULL) != GMS_SLOT_IDLE)
            rank->values[VALUE_BAD]++;
        if (lease && gms_slot_acquire(kv, slot, &generation) != GMS_OK)
            rank->values[VALUE_BAD]++;
    }
}

static gms_status body(struct engine_rank *rank, struct gms_error *error)
{
    const uint32_t slots = (uint32_t)(rank->argument >> 32), leases = (uint32_t)rank->argument;
    struct rank_life life = {0};
    gms_status status = rank_open(rank, &life.session, error);
    if (status == GMS_OK)
        status = rank_join(life.session, rank, &life.membership, error);
    if (status == GMS_OK)
        status = rank_attach_kv(life.session, slots, &life.kv, error);
    if (status == GMS_OK)
        status = gms_park(life.session, error);
    if (status != GMS_OK)
        return status;
    rank->values[VALUE_INCARNATION] = life.membership.incarnation;
    rank_at(rank, AT_PARKED);
    status = rank_take_over(rank, &life, "here", error);
    if (status != GMS_OK)
        return status;
    rank->values[VALUE_SERVING_NS] = gms_clock_ns();
    rank->values[VALUE_QUARANTINED] = life.adoption.quarantined;
    rank_at(rank, AT_SERVING);
    bool leased = false;
    while (atomic_load(&rank->go) < GATE_END) {
        struct pollfd news = {.fd = gms_event_fd(life.session), .events = POLLIN};
        struct gms_promotion promotion;
        poll(&news, 1, 5);
        status = gms_wait_promotion(life.session, 0, &promotion, error);
        if (gms_status_is_fatal_to_engine(status))
            return status;
        take_returned(rank, life.kv, false);
        if (leased || atomic_load(&rank->go) < GATE_LEASE)
            continue;
        leased = true;
        for (uint32_t slot = 0; slot < slots && rank->values[VALUE_LEASED] < leases; slot++) {
            uint64_t generation;
            if (gms_slot_acquire(life.kv, slot, &generation) != GMS_OK)
                continue;
            memset((char *)gms_pool_address(life.kv) + (size_t)slot * HARNESS_BLOCK_BYTES, 0x77, 64);
            rank->values[VALUE_LEASED]++;
        }
        rank_at(rank, AT_LEASED);
    }
    return GMS_OK;
}

static struct cluster cluster;
static struct engine engines[8];

static void start(uint32_t which, uint32_t id, uint64_t plan)
{
    char launch[32];
    snprintf(launch, sizeof launch, "reclaim-%u", which);
    engine_start(&engines[which], &cluster, id, launch, body, plan);
    assert_true(engine_reached(&engines[which], AT_PARKED, HARNESS_DEADLINE_MS));
}

static void serve(uint32_t which)
{
    assert_true(engine_reached(&engines[which], AT_SERVING, HARNESS_DEADLINE_MS));
}

static void lease(uint32_t which)
{
    engine_go(&engines[which], GATE_LEASE);
    assert_true(engine_reached(&engines[which], AT_LEASED, HARNESS_DEADLINE_MS));
}

struct wanted {
    uint32_t which;
    uint64_t returned;
};

static bool has_returned(void *context)
{
    const struct wanted *wanted = context;
    for (uint32_t r = 0; r < RANKS; r++)
        if (engines[wanted->which].ranks[r].values[VALUE_RETURNED] < wanted->returned)
            return false;
    return true;
}

static void assert_returned(uint32_t which, uint64_t returned, int timeout_ms)
{
    struct wanted wanted = {which, returned};
    if (!eventually(has_returned, &wanted, timeout_ms)) {
        cluster_show_log(&cluster);
        fail_msg("engine %u: %llu and %llu of %llu slots came back", which,
                 (unsigned long long)engines[which].ranks[0].values[VALUE_RETURNED],
                 (unsigned long long)engines[which].ranks[1].values[VALUE_RETURNED], (unsigned long long)returned);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(engines[which].ranks[r].values[VALUE_RETURNED], returned);
        assert_int_equal(engines[which].ranks[r].values[VALUE_BAD], 0);
    }
}

/* One dead writer in a rank's status; the caller drops it. NULL: unknown. */
static json_t *suspect(uint32_t rank, uint64_t incarnation)
{
    json_t *status = cluster_status(&cluster, rank), *found = NULL, *item;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(status, "reclaim"), "suspects"), i,
                       item) if (json_integer_value(json_object_get(item, "incarnation")) == (json_int_t)incarnation)
        found = json_incref(item);
    json_decref(status);
    return found;
}

static char state_seen[RANKS][64];

static bool states_are(uint64_t incarnation, const char *state)
{
    bool all = true;
    for (uint32_t r = 0; r < RANKS; r++) {
        json_t *item = suspect(r, incarnation);
        const char *is = json_string_value(json_object_get(item, "state"));
        snprintf(state_seen[r], sizeof state_seen[r], "%s", is != NULL ? is : "unknown");
        all = all && strcmp(state_seen[r], state) == 0;
        json_decref(item);
    }
    return all;
}

struct state_wanted {
    uint64_t incarnation;
    const char *state;
};

static bool state_reached(void *context)
{
    const struct state_wanted *wanted = context;
    return states_are(wanted->incarnation, wanted->state);
}

static void assert_state(uint64_t incarnation, const char *state)
{
    struct state_wanted wanted = {incarnation, state};
    if (!eventually(state_reached, &wanted, HARNESS_DEADLINE_MS)) {
        cluster_show_log(&cluster);
        fail_msg("incarnation %llu is %s and %s, not %s", (unsigned long long)incarnation, state_seen[0], state_seen[1],
                 state);
    }
}

/* The file beside the status says the same. */
static bool file_says(void *context)
{
    const struct state_wanted *wanted = context;
    for (uint32_t r = 0; r < RANKS; r++) {
        bool found = false;
        for (uint32_t engine = 0; engine < 3; engine++) {
            char path[256];
            size_t i;
            json_t *item;
            snprintf(path, sizeof path, "%s/reclaim.%u.%u", cluster.run_dir, engine, r);
            json_t *document = json_load_file(path, 0, NULL);
            json_array_foreach(json_object_get(document, "incarnations"), i,
                               item) if (json_integer_value(json_object_get(item, "incarnation")) ==
                                             (json_int_t)wanted->incarnation &&
                                         strcmp(json_string_value(json_object_get(item, "state")), wanted->state) == 0)
                found = json_integer_value(json_object_get(document, "rank")) == r &&
                        json_integer_value(json_object_get(document, "engine")) == engine;
            json_decref(document);
        }
        if (!found)
            return false;
    }
    return true;
}

static void assert_file(uint64_t incarnation, const char *state)
{
    struct state_wanted wanted = {incarnation, state};
    assert_true(eventually(file_says, &wanted, HARNESS_DEADLINE_MS));
}

static void finish(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        engine_finish(&engines[i]);
}

/* ------------------------------------------------------------------------------------------------- succession -- */

/* Four engines, three deaths: each successor has in quarantine what its predecessor leased, and gets all of it back. */
static void test_usable_slots_after_n_failovers_equal_the_first(void **state)
{
    enum { SLOTS = 200, LEASES = 30, FAILOVERS = 3 };
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .reclaim = "{ step = 7; }"});
    start(0, 0, PLAN(SLOTS, LEASES));
    serve(0);
    for (uint32_t i = 0; i < FAILOVERS; i++) {
        lease(i);
        start(i + 1, (i + 1) % 2, PLAN(SLOTS, LEASES));
        engine_kill(&engines[i], i % RANKS);
        serve(i + 1);
        for (uint32_t r = 0; r < RANKS; r++)
            assert_int_equal(engines[i + 1].ranks[r].values[VALUE_QUARANTINED], LEASES);
        assert_returned(i + 1, LEASES, HARNESS_DEADLINE_MS);
        uint64_t incarnation = engines[i].ranks[0].values[VALUE_INCARNATION];
        assert_state(incarnation, "reclaimed");
        assert_file(incarnation, "reclaimed");
        for (uint32_t r = 0; r < RANKS; r++) {
            json_t *item = suspect(r, incarnation);
            assert_int_equal(json_integer_value(json_object_get(item, "pages")), LEASES);
            assert_int_equal(json_integer_value(json_object_get(item, "returned")), LEASES);
            assert_true(json_integer_value(json_object_get(item, "trials")) > 0);
            assert_string_equal(json_string_value(json_object_get(item, "provider")), "procmap");
            json_decref(item);
            json_t *status = cluster_status(&cluster, r), *takeovers = json_object_get(status, "takeovers");
            const json_t *last = json_array_get(takeovers, json_array_size(takeovers) - 1);
            assert_int_equal(json_integer_value(json_object_get(last, "reclaimed")), LEASES);
            assert_true(json_integer_value(json_object_get(last, "reclaim_ns")) >
                        json_integer_value(json_object_get(last, "serve_ns")));
            json_decref(status);
        }
    }
    finish(FAILOVERS + 1);
    cluster_stop(&cluster);
}

/* ------------------------------------------------------------------------------------------------- V11 --------- */

/* From the first sign of death to serving, in the successor's takeover, the slower rank's. */
static double takeover_ms(void)
{
    int64_t longest_ns = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        json_t *status = cluster_status(&cluster, r), *takeovers = json_object_get(status, "takeovers");
        const json_t *last = json_array_get(takeovers, json_array_size(takeovers) - 1);
        int64_t detect_ns = json_integer_value(json_object_get(last, "detect_ns")),
                serve_ns = json_integer_value(json_object_get(last, "serve_ns"));
        assert_true(detect_ns > 0 && serve_ns > detect_ns);
        if (serve_ns - detect_ns > longest_ns)
            longest_ns = serve_ns - detect_ns;
        json_decref(status);
    }
    return (double)longest_ns / 1e6;
}

/* B is killed while it gets 20,000 pages back, each taking 2 ms; or, without A's leases, while nothing comes back. */
static double second_takeover(uint32_t leases)
{
    enum { SLOTS = 24000 };
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS,
                                                      .memory = "{ backend = \"host\"; capacity = \"128MiB\"; }",
                                                      .reclaim = "{ page_pause = \"2ms\"; }"});
    start(0, 0, PLAN(SLOTS, leases));
    serve(0);
    lease(0);
    start(1, 1, PLAN(SLOTS, 10));
    engine_kill(&engines[0], 0);
    serve(1);
    lease(1);
    if (leases > 0) { /* it is under way, and far from its end */
        struct state_wanted wanted = {engines[0].ranks[0].values[VALUE_INCARNATION], "pending"};
        assert_true(states_are(wanted.incarnation, wanted.state));
        assert_int_equal(engines[1].ranks[0].values[VALUE_QUARANTINED], leases);
    }
    start(2, 0, PLAN(SLOTS, 10));
    engine_kill(&engines[1], 1);
    serve(2);
    double ms = takeover_ms();
    if (leases > 0) /* and what A left is with the third one now, all or none of each page */
        for (uint32_t r = 0; r < RANKS; r++)
            assert_in_range(engines[2].ranks[r].values[VALUE_QUARANTINED] + engines[1].ranks[0].values[VALUE_RETURNED],
                            leases, leases + 10 + 1024 /* freed, but not on all ranks yet */);
    finish(3);
    cluster_stop(&cluster);
    return ms;
}

static void test_a_slow_return_does_not_slow_a_takeover(void **state)
{
    (void)state;
    double without = second_takeover(0), with = second_takeover(20000);
    printf("second takeover: %.1f ms with nothing to return, %.1f ms while 20,000 pages come back at 2 ms each\n",
           without, with);
    if (with > 2 * without + 100) /* 40 s are still to be waited for; a shared machine is not that slow */
        fail_msg("a takeover took %.1f ms while pages were returned, %.1f ms else", with, without);
}

/* ------------------------------------------------------------------------------------------------- restart ----- */

/* All coordinators die in the middle of a slow return. The next ones go on; the engine is told of everything once. */
static void test_a_return_goes_on_after_a_restart(void **state)
{
    enum { SLOTS = 600, LEASES = 400 };
    struct wanted some = {1, 20};
    (void)state;
    cluster_start(&cluster,
                  &(struct cluster_options){.ranks = RANKS, .reclaim = "{ step = 10; page_pause = \"2ms\"; }"});
    start(0, 0, PLAN(SLOTS, LEASES));
    serve(0);
    lease(0);
    start(1, 1, PLAN(SLOTS, 0));
    engine_kill(&engines[0], 1);
    serve(1);
    assert_true(eventually(has_returned, &some, HARNESS_DEADLINE_MS));
    for (uint32_t kill = 0; kill < 3; kill++) {
        cluster_kill_coordinators(&cluster, -1);
        assert_true(engines[1].ranks[0].values[VALUE_RETURNED] < LEASES);
        assert_file(engines[0].ranks[0].values[VALUE_INCARNATION], "pending");
        cluster_relaunch(&cluster, NULL);
    }
    assert_returned(1, LEASES, HARNESS_DEADLINE_MS);
    assert_state(engines[0].ranks[0].values[VALUE_INCARNATION], "reclaimed");
    assert_file(engines[0].ranks[0].values[VALUE_INCARNATION], "reclaimed");
    /* What was told stays told. */
    cluster_kill_coordinators(&cluster, -1);
    cluster_relaunch(&cluster, NULL);
    assert_state(engines[0].ranks[0].values[VALUE_INCARNATION], "reclaimed");
    finish(2);
    cluster_stop(&cluster);
}

/* ------------------------------------------------------------------------------------------------- policies ---- */

static void test_death_and_time_are_best_effort(void **state)
{
    enum { SLOTS = 60, LEASES = 10 };
    (void)state;
    cluster_start(&cluster,
                  &(struct cluster_options){.ranks = RANKS,
                                            .reclaim = "{ policy = \"process-death-timeout\"; grace = \"300ms\"; }"});
    start(0, 0, PLAN(SLOTS, LEASES));
    serve(0);
    lease(0);
    start(1, 1, PLAN(SLOTS, 0));
    uint64_t killed_ns = gms_clock_ns();
    engine_kill(&engines[0], 0);
    serve(1);
    assert_returned(1, LEASES, HARNESS_DEADLINE_MS);
    for (uint32_t r = 0; r < RANKS; r++) /* the last death is later than the first kill */
        assert_true(engines[1].ranks[r].values[VALUE_LAST_NS] - killed_ns >= 300 * GMS_NS_PER_MS);
    assert_state(engines[0].ranks[0].values[VALUE_INCARNATION], "reclaimed-best-effort");
    assert_file(engines[0].ranks[0].values[VALUE_INCARNATION], "reclaimed-best-effort");
    finish(2);
    cluster_stop(&cluster);
}

/* V33. An engine under MPS: its death says nothing, whatever the operator chose. This process was started with the
 * variable, so its engines have it; coordinators have not. */
static void test_an_engine_under_mps_stays_in_quarantine(void **state)
{
    enum { SLOTS = 60, LEASES = 10 };
    (void)state;
    cluster_start(&cluster,
                  &(struct cluster_options){.ranks = RANKS,
                                            .reclaim = "{ policy = \"process-death-timeout\"; grace = \"50ms\"; }"});
    start(0, 0, PLAN(SLOTS, LEASES));
    serve(0);
    lease(0);
    start(1, 1, PLAN(SLOTS, 0));
    engine_kill(&engines[0], 0);
    serve(1);
    assert_state(engines[0].ranks[0].values[VALUE_INCARNATION], "quarantined");
    assert_file(engines[0].ranks[0].values[VALUE_INCARNATION], "quarantined");
    bool named = false; /* by the rank that was the first to say so; one is enough */
    for (uint32_t r = 0; r < RANKS; r++) {
        json_t *item = suspect(r, engines[0].ranks[0].values[VALUE_INCARNATION]);
        named = named || strstr(json_string_value(json_object_get(item, "reason")), "MPS") != NULL;
        json_decref(item);
    }
    assert_true(named);
    cluster_kill_coordinators(&cluster, -1); /* for good, across restarts */
    cluster_relaunch(&cluster, NULL);
    assert_state(engines[0].ranks[0].values[VALUE_INCARNATION], "quarantined");
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(engines[1].ranks[r].values[VALUE_RETURNED], 0);
    finish(2);
    cluster_stop(&cluster);
}

/* V33. On one rank is enough: nothing starts. */
static void test_the_policy_is_refused_under_mps(void **state)
{
    (void)state;
    cluster_prepare(&cluster,
                    &(struct cluster_options){.ranks = RANKS, .reclaim = "{ policy = \"process-death-timeout\"; }"},
                    true);
    cluster.script =
        "[ \"$OMPI_COMM_WORLD_RANK\" = 1 ] && export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps-of-a-test; c=$0; shift; "
        "exec \"$c\" \"$@\"";
    cluster_launch(&cluster, NULL);
    assert_int_equal(cluster_wait_end(&cluster, HARNESS_DEADLINE_MS), 78);
    if (!cluster_log_has(&cluster, "is refused on rank 1: CUDA MPS is in use")) {
        cluster_show_log(&cluster);
        fail_msg("the log does not say why");
    }
    cluster_discard(&cluster);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_usable_slots_after_n_failovers_equal_the_first),
        cmocka_unit_test(test_a_slow_return_does_not_slow_a_takeover),
        cmocka_unit_test(test_a_return_goes_on_after_a_restart),
        cmocka_unit_test(test_death_and_time_are_best_effort),
        cmocka_unit_test(test_the_policy_is_refused_under_mps),
    };
    const struct CMUnitTest under_mps[] = {cmocka_unit_test(test_an_engine_under_mps_stays_in_quarantine)};
    if (argc < 2)
        return cmocka_run_group_tests_name("coord_reclaim", tests, NULL, NULL);
    if (strcmp(argv[1], "mps") != 0 || getenv("CUDA_MPS_PIPE_DIRECTORY") == NULL) {
        fprintf(stderr, "usage: %s, or with CUDA_MPS_PIPE_DIRECTORY set: %s mps\n", argv[0], argv[0]);
        return 64;
    }
    unsetenv("CUDA_MPS_PIPE_DIRECTORY"); /* /proc/PID/environ still has what this process was started with */
    return cmocka_run_group_tests_name("coord_reclaim_mps", under_mps, NULL, NULL);
}
