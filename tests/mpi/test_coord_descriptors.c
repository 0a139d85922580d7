/* SPDX-License-Identifier: Apache-2.0
 *
 * Coordinators that may have no more than 64 descriptors, and more clients than that: the clients are displaced, nobody
 * spins, and an engine starts and is succeeded.
 */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/run_dir.h"
#include "harness.h"
#include "wire/channel.h"

enum { RANKS = 2, LIMIT = 64, CLIENTS = 40, ROUNDS = 3, AT_SERVING = 1, GATE_END = 1 };

static struct cluster cluster;

static gms_status serve(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    gms_pool *kv = NULL;
    struct gms_membership membership;
    struct gms_adoption adoption;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status == GMS_OK)
        status = rank_attach_kv(session, HARNESS_SLOTS, &kv, error);
    if (status == GMS_OK)
        status = rank_serve(session, "here", &adoption, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    rank_gate(rank, GATE_END);
    return GMS_OK;
}

static void open_clients(int *fds)
{
    char path[GMS_RUN_PATH_BYTES];
    assert_int_equal(gms_run_dir_path(cluster.run_dir, "c", 0, path, NULL), GMS_OK);
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(gms_channel_connect(path, 2000, &fds[i], NULL), GMS_OK);
}

static void test_few_descriptors(void **state)
{
    int fds[CLIENTS];
    static struct engine engines[ROUNDS];
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    for (uint32_t round = 0; round < ROUNDS; round++) {
        char launch[16];
        snprintf(launch, sizeof launch, "few-%u", round);
        open_clients(fds); /* silent ones */
        json_t *status = cluster_status(&cluster, 0);
        assert_non_null(status);
        json_decref(status);
        engine_start(&engines[round], &cluster, round, launch, serve, 0);
        if (round > 0)
            engine_kill(&engines[round - 1], round % RANKS);
        assert_true(engine_reached(&engines[round], AT_SERVING, HARNESS_DEADLINE_MS));
        for (int i = 0; i < CLIENTS; i++)
            gms_fd_close(&fds[i]);
    }
    assert_true(cluster_log_count(&cluster, "out of file descriptors") < 20);
    for (uint32_t round = 0; round < ROUNDS; round++)
        engine_finish(&engines[round]);
    cluster_stop(&cluster);
}

int main(void)
{
    /* Hard too: the coordinators raise the soft one. */
    const struct rlimit limit = {.rlim_cur = LIMIT, .rlim_max = LIMIT};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        fprintf(stderr, "skipped: the limit of descriptors cannot be set\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_few_descriptors)};
    return cmocka_run_group_tests_name("coord_descriptors", tests, NULL, NULL);
}
