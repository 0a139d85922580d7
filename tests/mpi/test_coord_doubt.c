/* SPDX-License-Identifier: Apache-2.0
 *
 * Reported fault V12: a store that is missing, damaged, or an older copy, while engines still map what it knew of.
 * Everything is refused, on every rank, with what to do; putting it right needs no engine to end; going on without it
 * needs a person's word, and ends them.
 */
#include <fcntl.h>
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

enum {
    RANKS = 2,
    AT_SERVING = 1,
    AT_MORE = 2,
    AT_STILL = 3,
    GATE_MORE = 1,
    GATE_STILL = 2,
    GATE_END = 9,
    EXIT_OPERATOR = 70
};

/* Serves; lets messages in at each gate, and uses slots with and without a coordinator. */
static gms_status live(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    gms_status status = rank_live(rank, &life, "unix:/e", error);
    if (status != GMS_OK)
        return status;
    rank->values[0] = life.membership.incarnation;
    rank->values[1] = life.membership.epoch;
    rank_at(rank, AT_SERVING);
    rank_gate(rank, GATE_MORE);
    status = rank_operate(&life, 3, NULL, error); /* its end is stored */
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_MORE);
    rank_gate(rank, GATE_STILL);
    status = rank_seal(life.session, life.kv, 0, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_STILL);
    rank_gate(rank, GATE_END);
    gms_close(life.session);
    return GMS_OK;
}

/* In the run directory. */
static void shell(const struct cluster *cluster, const char *command)
{
    char *words[] = {
        "sh", "-c", "cd \"$0\" && eval \"$1\"", (char *)(uintptr_t)cluster->run_dir, (char *)(uintptr_t)command, NULL};
    assert_int_equal(run_program(words, "/dev/stderr"), 0);
}

/* A start that must answer 70, and say so once. */
static void refused(const struct cluster *cluster, const char *reason)
{
    char path[512], ranks[16];
    int said = cluster_log_count(cluster, reason);
    program("gms-coord", path);
    snprintf(ranks, sizeof ranks, "%u", cluster->ranks);
    char destination[128];
    snprintf(destination, sizeof destination, "file:%s", cluster->log);
    char *words[] = {"mpirun",
                     "--oversubscribe",
                     "-n",
                     ranks,
                     path,
                     "--config",
                     (char *)(uintptr_t)cluster->config,
                     "--log-destination",
                     destination,
                     NULL};
    int code = run_program(words, cluster->log);
    if (code != EXIT_OPERATOR || cluster_log_count(cluster, reason) != said + 1) {
        char *show[] = {"tail", "-n", "12", (char *)(uintptr_t)cluster->log, NULL};
        run_program(show, "/dev/stderr");
        fail_msg("exit %d, and not \"%s\"", code, reason);
    }
    assert_true(cluster_log_has(cluster, "--accept-store-loss"));
    assert_true(cluster_log_has(cluster, "--fresh"));
}

static bool serves_again(void *context)
{
    const struct cluster *cluster = context;
    for (uint32_t rank = 0; rank < cluster->ranks; rank++)
        if (cluster_number(cluster, rank, "serving_engine") != 0)
            return false;
    return true;
}

static void test_stores_that_are_not_what_they_were(void **state)
{
    struct cluster cluster;
    struct engine engine;
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    engine_start(&engine, &cluster, 0, "a", live, 0);
    assert_true(engine_reached(&engine, AT_SERVING, HARNESS_DEADLINE_MS));
    cluster_kill_coordinators(&cluster, -1);
    shell(&cluster, "mkdir old && cp store.0* store.1* old/");
    cluster_relaunch(&cluster, NULL);
    engine_go(&engine, GATE_MORE);
    assert_true(engine_reached(&engine, AT_MORE, HARNESS_DEADLINE_MS));
    cluster_kill_coordinators(&cluster, 0);
    shell(&cluster, "mkdir now && cp store.0* now/");

    /* Rank 1 has an old copy, so nobody has what rank 0 had. */
    shell(&cluster, "rm store.0* store.1* && cp old/store.1* .");
    refused(&cluster, "rank 0 has lost its store");
    refused(&cluster, "rank 0 has lost its store"); /* asking changed nothing */
    shell(&cluster, "cp now/store.0* . && rm -f store.0-wal && echo this is no store >store.0");
    refused(&cluster, "rank 0 has a damaged store");
    shell(&cluster, "rm store.0* && cp now/store.0* . && test -s store.0-wal && truncate -s -12000 store.0-wal");
    refused(&cluster, "rank 0 has a store that is older");
    shell(&cluster, "rm store.0* && cp old/store.0* .");
    refused(&cluster, "rank 0 has a store that is older");

    /* Nobody that serves has noticed. */
    engine_go(&engine, GATE_STILL);
    assert_true(engine_reached(&engine, AT_STILL, HARNESS_DEADLINE_MS));

    /* The one with the latest state is back, and rank 1 gets it: on as if nothing had been. */
    shell(&cluster, "rm store.0* && cp now/store.0* .");
    cluster_relaunch(&cluster, NULL);
    assert_true(eventually(serves_again, &cluster, HARNESS_DEADLINE_MS));
    assert_int_equal(cluster_number(&cluster, 1, "epoch"), 1);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_true(engine_rank_alive(&engine, rank));

    /* A store is lost of which another rank has all: nobody needs to be asked. */
    cluster_kill_coordinators(&cluster, 1);
    shell(&cluster, "rm store.1*");
    cluster_relaunch(&cluster, NULL);
    assert_true(eventually(serves_again, &cluster, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_true(engine_rank_alive(&engine, rank));

    /* A real loss is accepted: engines end, numbers jump. That this was so is stored before anybody is ended: the world
     * after it knows, too. The next engine begins. */
    cluster_kill_coordinators(&cluster, 1);
    shell(&cluster, "rm store.0* store.1* && cp old/store.0* .");
    cluster_relaunch(&cluster, "--accept-store-loss");
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    engine_finish(&engine);
    cluster_kill_coordinators(&cluster, 0);
    cluster_relaunch(&cluster, NULL);
    engine_start(&engine, &cluster, 0, "b", live, 0);
    assert_true(engine_reached(&engine, AT_SERVING, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_true(engine.ranks[rank].values[0] > UINT32_MAX);
    engine_go(&engine, GATE_END);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    engine_finish(&engine);
    cluster_stop(&cluster);
}

/* A keeper that lives and does not answer remembers less than would be told: the coordinators leave instead, and come
 * back when it does. */
static void test_a_keeper_that_stands_still(void **state)
{
    struct cluster cluster;
    struct engine engine;
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    engine_start(&engine, &cluster, 0, "a", live, 0);
    assert_true(engine_reached(&engine, AT_SERVING, HARNESS_DEADLINE_MS));
    assert_true(gms_pidfd_signal(cluster.keeper, SIGSTOP));
    engine_go(&engine, GATE_MORE);
    int code = cluster_wait_end(&cluster, HARNESS_DEADLINE_MS);
    assert_true(code > 0);
    assert_false(engine_reached(&engine, AT_MORE, 0)); /* nothing was told */
    assert_true(gms_pidfd_signal(cluster.keeper, SIGCONT));
    cluster_relaunch(&cluster, NULL);
    assert_true(engine_reached(&engine, AT_MORE, HARNESS_DEADLINE_MS));
    engine_go(&engine, GATE_STILL);
    assert_true(engine_reached(&engine, AT_STILL, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_true(engine_rank_alive(&engine, rank));
    engine_go(&engine, GATE_END);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    engine_finish(&engine);
    cluster_stop(&cluster);
}

/* Reported fault V29: a rank that is killed right after it was admitted is gone at once, on every rank, and not when
 * some heartbeat is missed; and a restart between two heartbeats is noticed by those that live. */
static gms_status join_only(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    struct gms_membership membership;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    while (atomic_load(&rank->go) < GATE_END) {
        struct gms_transfer_result result;
        status = gms_transfer_wait(session, 77, 50, &result, error); /* lets messages in, whatever it says */
        if (gms_status_is_fatal_to_engine(status))
            return status;
    }
    gms_close(session);
    return GMS_OK;
}

static bool nobody_is_there(void *context)
{
    const struct cluster *cluster = context;
    for (uint32_t rank = 0; rank < cluster->ranks; rank++) {
        json_t *status = cluster_status(cluster, rank);
        size_t engines = json_array_size(json_object_get(status, "engines"));
        json_decref(status);
        if (status == NULL || engines != 0)
            return false;
    }
    return true;
}

static bool attached_again(void *context)
{
    const struct cluster *cluster = context;
    for (uint32_t rank = 0; rank < cluster->ranks; rank++) {
        json_t *status = cluster_status(cluster, rank);
        json_t *first = json_array_get(json_object_get(status, "engines"), 0);
        bool connected = json_is_true(json_object_get(first, "connected"));
        json_decref(status);
        if (!connected)
            return false;
    }
    return true;
}

static void test_between_heartbeats(void **state)
{
    struct cluster cluster;
    struct engine engine;
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .heartbeat = "60s"});
    engine_start(&engine, &cluster, 0, "a", join_only, 0);
    assert_true(engine_reached(&engine, AT_SERVING, HARNESS_DEADLINE_MS));
    engine_kill(&engine, 1);
    assert_true(eventually(nobody_is_there, &cluster, HARNESS_DEADLINE_MS));
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS)); /* its other rank is fenced */
    engine_finish(&engine);

    engine_start(&engine, &cluster, 0, "b", join_only, 0);
    assert_true(engine_reached(&engine, AT_SERVING, HARNESS_DEADLINE_MS));
    cluster_kill_coordinators(&cluster, 1);
    cluster_relaunch(&cluster, NULL);
    assert_true(eventually(attached_again, &cluster, HARNESS_DEADLINE_MS));
    engine_kill(&engine, 0); /* and is watched again at once */
    assert_true(eventually(nobody_is_there, &cluster, HARNESS_DEADLINE_MS));
    engine_finish(&engine);
    cluster_stop(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stores_that_are_not_what_they_were),
        cmocka_unit_test(test_a_keeper_that_stands_still),
        cmocka_unit_test(test_between_heartbeats),
    };
    return cmocka_run_group_tests_name("coord_doubt", tests, NULL, NULL);
}
