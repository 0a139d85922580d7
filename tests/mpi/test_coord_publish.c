/* SPDX-License-Identifier: Apache-2.0
 *
 * Publishing is refused on all ranks while somebody on one rank has the weights mapped writable; afterwards the memory
 * is read-only for everybody. And: the hook that is run when an engine serves.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness.h"

enum { RANKS = 2, BUSY_RANK = 1, WEIGHTS = 65536, AT_REFUSED = 1, AT_PUBLISHED = 2, GATE_AGAIN = 1, GATE_END = 2 };

static gms_status body(struct engine_rank *rank, struct gms_error *error)
{
    const struct gms_pool_description description = {.name = "weights", .kind = GMS_POOL_WEIGHTS, .bytes = WEIGHTS};
    gms_session *session = NULL;
    gms_pool *weights = NULL;
    struct gms_membership membership;
    struct gms_error told = {.status = GMS_OK};
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status == GMS_OK)
        status = gms_pool_attach(session, &description, &weights, error);
    if (status == GMS_OK)
        status = gms_manifest_add(weights, "all", 0, WEIGHTS, error);
    if (status != GMS_OK)
        return status;
    memset(gms_pool_address(weights), 1, WEIGHTS);
    pid_t child = rank->rank == BUSY_RANK ? fork() : 0;
    if (rank->rank == BUSY_RANK && child == 0) { /* inherits the writable mapping */
        alarm(60);
        for (;;)
            pause();
    }
    rank->values[0] = (uint64_t)gms_publish(weights, &told);
    rank->error_rank = told.rank;
    memcpy(rank->text, told.text, sizeof rank->text);
    memset(gms_pool_address(weights), 2, WEIGHTS); /* still ours to write */
    if (child > 0) {
        kill(child, SIGKILL); /* our own child, not reaped: the number is its */
        waitpid(child, NULL, 0);
    }
    rank_at(rank, AT_REFUSED);
    rank_gate(rank, GATE_AGAIN);
    status = gms_publish(weights, error);
    if (status != GMS_OK)
        return status;
    rank->values[1] = *(unsigned char *)gms_pool_address(weights);
    rank_at(rank, AT_PUBLISHED);
    rank_gate(rank, GATE_END);
    gms_close(session);
    return GMS_OK;
}

static void test_busy(void **state)
{
    struct cluster cluster;
    struct engine engine;
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    engine_start(&engine, &cluster, 0, "a", body, 0);
    assert_true(engine_reached(&engine, AT_REFUSED, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(engine.ranks[rank].values[0], GMS_E_BUSY);
        assert_int_equal(engine.ranks[rank].error_rank, BUSY_RANK);
        assert_string_equal(engine.ranks[rank].text, engine.ranks[0].text);
    }
    engine_go(&engine, GATE_AGAIN);
    assert_true(engine_reached(&engine, AT_PUBLISHED, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(engine.ranks[rank].values[1], 2);
    engine_go(&engine, GATE_END);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    engine_finish(&engine);
    cluster_stop(&cluster);
}

/* ---------------------------------------------------------------------------------------------------- another -- */

/* Attaches weights that are 4 KiB larger on one rank, if its argument says so: only that rank can know. */
static gms_status attach(struct engine_rank *rank, struct gms_error *error)
{
    struct gms_pool_description description = {.name = "weights", .kind = GMS_POOL_WEIGHTS, .bytes = WEIGHTS};
    gms_session *session = NULL;
    gms_pool *weights = NULL;
    struct gms_membership membership;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status == GMS_OK && rank->argument == 0)
        status = rank_attach_weights(session, &weights, error);
    if (status != GMS_OK)
        return status;
    if (rank->argument != 0) {
        struct gms_error told = {.status = GMS_OK};
        if (rank->rank == BUSY_RANK)
            description.bytes += 4096;
        rank->values[0] = (uint64_t)gms_pool_attach(session, &description, &weights, &told);
        rank->error_rank = told.rank;
        memcpy(rank->text, told.text, sizeof rank->text);
    }
    rank_at(rank, AT_REFUSED);
    rank_gate(rank, GATE_END);
    gms_close(session);
    return GMS_OK;
}

static void test_other_size(void **state)
{
    struct cluster cluster;
    struct engine first, second;
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    engine_start(&first, &cluster, 0, "a", attach, 0);
    assert_true(engine_reached(&first, AT_REFUSED, HARNESS_DEADLINE_MS));
    engine_start(&second, &cluster, 1, "b", attach, 1);
    assert_true(engine_reached(&second, AT_REFUSED, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(second.ranks[rank].values[0], GMS_E_MISMATCH);
        assert_int_equal(second.ranks[rank].error_rank, BUSY_RANK);
        assert_string_equal(second.ranks[rank].text, second.ranks[0].text);
    }
    engine_finish(&first);
    engine_finish(&second);
    cluster_stop(&cluster);
}

/* ------------------------------------------------------------------------------------------------------- hook -- */

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
        status = rank_serve(session, rank->rank == 0 ? "tcp:127.0.0.1:4711" : NULL, &adoption, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, 1);
    rank_gate(rank, 1);
    return GMS_OK;
}

static bool file_there(void *context)
{
    struct stat about;
    return stat(context, &about) == 0 && about.st_size > 0;
}

static void test_hook(void **state)
{
    struct cluster cluster;
    struct engine engine;
    char hooks[1024], path[64], text[1024] = "";
    (void)state;
    char scratch[] = "/tmp/gms-hook-XXXXXX";
    assert_non_null(mkdtemp(scratch));
    snprintf(path, sizeof path, "%s/said", scratch);
    /* What it is told, what it inherits, and that descriptors of ours do not leak into it. */
    snprintf(hooks, sizeof hooks,
             "{ on_serving = ( \"/bin/sh\", \"-c\", \"(echo epoch=$GMS_EPOCH endpoint=$GMS_ENDPOINT "
             "ompi=${OMPI_COMM_WORLD_RANK:-none}; ls /proc/self/fd | tr '\\\\n' ' ') > %s.new; mv %s.new %s\" ); }",
             path, path, path);
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .hooks = hooks});
    engine_start(&engine, &cluster, 0, "a", serve, 0);
    assert_true(engine_reached(&engine, 1, HARNESS_DEADLINE_MS));
    assert_true(eventually(file_there, path, HARNESS_DEADLINE_MS));
    FILE *stream = fopen(path, "re");
    assert_non_null(stream);
    assert_true(fread(text, 1, sizeof text - 1, stream) > 0);
    fclose(stream);
    assert_non_null(strstr(text, "epoch=1 endpoint=tcp:127.0.0.1:4711 ompi=none"));
    assert_non_null(strstr(text, "\n0 1 2 3 ")); /* 3 is ls's own */
    assert_null(strstr(text, " 4 "));
    engine_finish(&engine);
    cluster_stop(&cluster);
    unlink(path);
    rmdir(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_other_size),
        cmocka_unit_test(test_hook),
    };
    return cmocka_run_group_tests_name("coord_publish", tests, NULL, NULL);
}
