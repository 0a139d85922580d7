/* SPDX-License-Identifier: Apache-2.0
 *
 * Transfers: a vote that ends when every rank has finished or failed every part, and not before; kept votes; failures
 * reported apart; slow is not failed; silence is named.
 */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"

enum { RANKS = 3, FAILING = 2, SLOW = 1, PAGES = 0, RECURRENT = 1, FIRST = 5, SILENT = 6 };
enum { AT_PAGES = 1, AT_MOST_DONE = 2, AT_ENDED = 3, AT_SILENT = 4 };
enum { GATE_RECURRENT = 1, GATE_SLOW = 2, GATE_SILENT = 3, GATE_END = 4 };

static gms_status body(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    struct gms_membership membership;
    struct gms_transfer_result result;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status == GMS_OK)
        status = gms_transfer_dispatch(session, FIRST, 2, error);
    if (status == GMS_OK)
        status = gms_transfer_end_part(session, FIRST, PAGES, rank->rank == FAILING, error);
    if (status != GMS_OK)
        return status;
    rank->values[0] = (uint64_t)gms_transfer_wait(session, FIRST, 100, &result, error);
    rank_at(rank, AT_PAGES);
    rank_gate(rank, GATE_RECURRENT);
    if (rank->rank != SLOW)
        status = gms_transfer_end_part(session, FIRST, RECURRENT, 0, error);
    if (status != GMS_OK)
        return status;
    rank->values[1] = (uint64_t)gms_transfer_wait(session, FIRST, 100, &result, error);
    rank_at(rank, AT_MOST_DONE);
    rank_gate(rank, GATE_SLOW);
    if (rank->rank == SLOW)
        status = gms_transfer_end_part(session, FIRST, RECURRENT, 0, error);
    if (status == GMS_OK)
        status = gms_transfer_wait(session, FIRST, HARNESS_DEADLINE_MS, &result, error);
    if (status != GMS_OK)
        return status;
    rank->values[2] = result.finished_ranks;
    rank->values[3] = result.failed_ranks;
    rank->values[4] = (uint64_t)result.first_failed_rank;
    rank->values[5] = result.failed_bitmap[0];
    rank_at(rank, AT_ENDED);
    rank_gate(rank, GATE_SILENT);
    status = gms_transfer_dispatch(session, SILENT, 1, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SILENT);
    rank_gate(rank, GATE_END);
    gms_close(session);
    return GMS_OK;
}

/* The open transfer with this id as rank 0 sees it; false: none. */
static bool look(const struct cluster *cluster, uint64_t id, int64_t *ret_finished, int64_t *ret_failed)
{
    json_t *status = cluster_status(cluster, 0), *item;
    size_t i;
    bool found = false;
    json_array_foreach(json_object_get(status, "transfers"), i, item)
    {
        if (json_integer_value(json_object_get(item, "id")) != (json_int_t)id)
            continue;
        *ret_finished = json_integer_value(json_object_get(item, "finished"));
        *ret_failed = json_integer_value(json_object_get(item, "failed"));
        found = true;
    }
    json_decref(status);
    return found;
}

static bool silence_named(void *context)
{
    return cluster_log_has(context, "transfer 6 ");
}

static void test_transfer(void **state)
{
    struct cluster cluster;
    struct engine engine;
    int64_t finished = -1, failed = -1;
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .operation_timeout = "500ms"});
    engine_start(&engine, &cluster, 0, "a", body, 0);

    assert_true(engine_reached(&engine, AT_PAGES, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(engine.ranks[rank].values[0], GMS_E_TIMEOUT); /* recurrent state is still moving */
    assert_true(look(&cluster, FIRST, &finished, &failed));
    assert_int_equal(finished, 0);

    engine_go(&engine, GATE_RECURRENT);
    assert_true(engine_reached(&engine, AT_MOST_DONE, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(engine.ranks[rank].values[1], GMS_E_TIMEOUT); /* one rank is slow: nothing may be freed */
    assert_true(look(&cluster, FIRST, &finished, &failed));
    assert_int_equal(finished, 1); /* kept votes */
    assert_int_equal(failed, 1);

    poll(NULL, 0, 1200); /* well past the operation timeout: the length of the wait is the point */
    assert_true(look(&cluster, FIRST, &finished, &failed));
    assert_int_equal(finished, 1);
    assert_int_equal(failed, 1); /* slow is not failed */

    engine_go(&engine, GATE_SLOW);
    assert_true(engine_reached(&engine, AT_ENDED, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(engine.ranks[rank].values[2], 2);
        assert_int_equal(engine.ranks[rank].values[3], 1);
        assert_int_equal(engine.ranks[rank].values[4], FAILING);
        assert_int_equal(engine.ranks[rank].values[5], 1 << FAILING);
    }
    assert_false(look(&cluster, FIRST, &finished, &failed));

    engine_go(&engine, GATE_SILENT);
    assert_true(engine_reached(&engine, AT_SILENT, HARNESS_DEADLINE_MS));
    int64_t round = cluster_number(&cluster, 0, "round");
    assert_true(eventually(silence_named, &cluster, HARNESS_DEADLINE_MS));
    assert_int_equal(cluster_number(&cluster, 0, "round"), round); /* while the group is idle */
    assert_true(look(&cluster, SILENT, &finished, &failed));
    engine_go(&engine, GATE_END);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    engine_finish(&engine);
    cluster_stop(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transfer),
    };
    return cmocka_run_group_tests_name("coord_transfer", tests, NULL, NULL);
}
