/* SPDX-License-Identifier: Apache-2.0
 *
 * An allocation that does not fit on one rank happens on none: same outcome everywhere, the rank is named, inventories
 * are equal, no descriptor is left behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"

enum { RANKS = 3, AT_READY = 1, AT_REFUSED = 2, AT_FITS = 3, GATE_BIG = 1, GATE_SMALL = 2, GATE_END = 3 };
/* Weights of 64 KiB and 32 slots of 4 KiB fit exactly; one rank has a slot less. */
enum { CAPACITY_KIB = 64 + 4 * HARNESS_SLOTS };

static gms_status body(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    gms_pool *weights = NULL, *kv = NULL;
    struct gms_membership membership;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status == GMS_OK)
        status = rank_attach_weights(session, &weights, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_READY);
    rank_gate(rank, GATE_BIG);
    struct gms_error refusal = {.status = GMS_OK};
    rank->values[0] = (uint64_t)rank_attach_kv(session, HARNESS_SLOTS, &kv, &refusal);
    rank->error_rank = refusal.rank;
    memcpy(rank->text, refusal.text, sizeof rank->text);
    rank_at(rank, AT_REFUSED);
    rank_gate(rank, GATE_SMALL);
    status = rank_attach_kv(session, HARNESS_SLOTS - 1, &kv, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_FITS);
    rank_gate(rank, GATE_END);
    gms_close(session);
    return GMS_OK;
}

static void one_slot_short(uint32_t small)
{
    struct cluster cluster;
    struct engine engine;
    char memory[256], expected[64];
    int64_t descriptors[RANKS];
    snprintf(memory, sizeof memory,
             "{ backend = \"host\"; capacity = \"%dKiB\"; capacity_of = ( { rank = %u; capacity = \"%dKiB\"; } ); }",
             CAPACITY_KIB, small, CAPACITY_KIB - 4);
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .memory = memory});
    engine_start(&engine, &cluster, 0, "a", body, 0);
    assert_true(engine_reached(&engine, AT_READY, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        descriptors[rank] = cluster_number(&cluster, rank, "descriptors");

    engine_go(&engine, GATE_BIG);
    assert_true(engine_reached(&engine, AT_REFUSED, HARNESS_DEADLINE_MS));
    snprintf(expected, sizeof expected, "rank %u", small);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(engine.ranks[rank].values[0], GMS_E_NO_CAPACITY);
        assert_int_equal(engine.ranks[rank].error_rank, small);
        assert_string_equal(engine.ranks[rank].text, engine.ranks[0].text);
        if (strstr(engine.ranks[rank].text, expected) == NULL)
            fail_msg("\"%s\" does not name %s", engine.ranks[rank].text, expected);
        assert_int_equal(cluster_number(&cluster, rank, "used_bytes"), 65536);
        assert_int_equal(cluster_number(&cluster, rank, "descriptors"), descriptors[rank]);
        json_t *status = cluster_status(&cluster, rank);
        assert_int_equal(json_array_size(json_object_get(status, "pools")), 1);
        json_decref(status);
    }

    engine_go(&engine, GATE_SMALL);
    assert_true(engine_reached(&engine, AT_FITS, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(cluster_number(&cluster, rank, "used_bytes"), (CAPACITY_KIB - 4) * 1024);
        assert_int_equal(cluster_number(&cluster, rank, "descriptors"),
                         descriptors[rank] + 6); /* memory, directory, suspects; copies */
    }
    engine_go(&engine, GATE_END);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    engine_finish(&engine);
    cluster_stop(&cluster);
}

static void test_first_rank_short(void **state)
{
    (void)state;
    one_slot_short(0);
}

static void test_middle_rank_short(void **state)
{
    (void)state;
    one_slot_short(1);
}

static void test_last_rank_short(void **state)
{
    (void)state;
    one_slot_short(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_rank_short),
        cmocka_unit_test(test_middle_rank_short),
        cmocka_unit_test(test_last_rank_short),
    };
    return cmocka_run_group_tests_name("coord_all_or_none", tests, NULL, NULL);
}
