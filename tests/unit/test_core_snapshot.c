/* SPDX-License-Identifier: Apache-2.0
 * The replicated state as bytes: the same on all ranks, looked at with suspicion, never more than has room. */
#include "core/core_state.h"
#include "core/snapshot.h"
#include "core_support.h"

static uint8_t bytes[GMS_SNAPSHOT_MAX_BYTES], other[GMS_SNAPSHOT_MAX_BYTES];

static void test_ranks_write_the_same_bytes(void **state)
{
    struct cluster *c = serving_pair(3);
    size_t count = gms_core_snapshot(c->cores[0], bytes, sizeof bytes);

    (void)state;
    assert_in_range(count, 100, sizeof bytes);
    for (uint32_t r = 1; r < 3; r++) {
        assert_int_equal(gms_core_snapshot(c->cores[r], other, sizeof other), count);
        assert_memory_equal(bytes, other, count);
    }
    cluster_free(c);
}

static void test_writing_changes_nothing(void **state)
{
    struct cluster *c = serving_pair(2);
    struct gms_core *copy = test_malloc(gms_core_bytes());
    size_t count = gms_core_snapshot(c->cores[0], bytes, sizeof bytes);

    (void)state;
    memcpy(copy, c->cores[0], gms_core_bytes());
    for (size_t room = 0; room < count; room++) { /* too little room: nothing is written, nothing is harmed */
        assert_int_equal(gms_core_snapshot(copy, other, room), 0);
        assert_memory_equal(copy, c->cores[0], gms_core_bytes());
    }
    assert_int_equal(gms_core_snapshot(copy, other, count), count);
    assert_memory_equal(copy, c->cores[0], gms_core_bytes());
    test_free(copy);
    cluster_free(c);
}

static void test_look_says_what_is_in_it(void **state)
{
    struct cluster *c = serving_pair(2);
    struct gms_snapshot_view view;
    struct gms_core_view group = cluster_look(c, 0);
    size_t count = gms_core_snapshot(c->cores[0], bytes, sizeof bytes);

    (void)state;
    assert_int_equal(gms_snapshot_look(bytes, count, &view), GMS_OK);
    assert_int_equal(view.world, 77);
    assert_int_equal(view.round, group.next_round - 1);
    assert_int_equal(view.world_size, 2);
    assert_int_equal(view.engines, 2);
    assert_int_equal(view.pools, 1);
    assert_int_equal(view.prepared, 0);
    assert_int_equal(view.epoch, 1);
    assert_int_equal(view.incarnation, 2);
    cluster_free(c);
}

static void test_every_cut_and_every_flipped_bit_is_found(void **state)
{
    struct cluster *c = serving_pair(2);
    struct gms_snapshot_view view;
    size_t count = gms_core_snapshot(c->cores[0], bytes, sizeof bytes);

    (void)state;
    for (size_t cut = 0; cut < count; cut++)
        assert_int_equal(gms_snapshot_look(bytes, cut, &view), GMS_E_CORRUPT);
    for (size_t bit = 0; bit < count * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        assert_int_equal(gms_snapshot_look(bytes, count, &view), GMS_E_CORRUPT);
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    for (size_t at = 0; at + 16 <= count; at += 8) { /* two words change places */
        memcpy(other, bytes, count);
        memcpy(other + at, bytes + at + 8, 8);
        memcpy(other + at + 8, bytes + at, 8);
        if (memcmp(other, bytes, count) != 0)
            assert_int_equal(gms_snapshot_look(other, count, &view), GMS_E_CORRUPT);
    }
    assert_int_equal(gms_snapshot_look(bytes, count, &view), GMS_OK);
    cluster_free(c);
}

static void seal(uint8_t *snapshot, size_t count)
{
    uint64_t digest = gms_snapshot_digest(snapshot, count);

    for (unsigned i = 0; i < 8; i++)
        snapshot[GMS_SNAPSHOT_DIGEST_AT + i] = (uint8_t)(digest >> (8 * i));
}

/* Bytes with a right digest that no core wrote: refused, or a state that a core can live with. */
static void test_forged_bytes_do_no_harm(void **state)
{
    struct cluster *c = serving_pair(2);
    size_t count = gms_core_snapshot(c->cores[0], bytes, sizeof bytes);
    struct gms_core *memory = test_malloc(gms_core_bytes());
    struct gms_actions *actions = test_malloc(sizeof *actions);
    uint64_t random = 1, restored = 0;

    (void)state;
    c->cores[0]->options.world = 78;
    for (unsigned i = 0; i < 20000; i++) {
        struct gms_core *core;
        struct gms_core_options options = c->options;
        size_t at;

        memcpy(other, bytes, count);
        random = random * 6364136223846793005u + 1442695040888963407u;
        at = (size_t)(random >> 33) % count;
        other[at] = (uint8_t)(random >> 20);
        seal(other, count);
        options.world = 78;
        if (gms_core_restore(memory, &options, GMS_RECOVERY_RESTORE, other, count, 1, &core, actions) != GMS_OK)
            continue;
        restored++;
        struct gms_event event = {.type = GMS_EVENT_TICK, .now_ns = UINT64_MAX / 2};
        gms_core_step(core, &event, actions);
    }
    assert_in_range(restored, 1, 20000);
    test_free(actions);
    test_free(memory);
    cluster_free(c);
}

static void test_another_version_is_named_so(void **state)
{
    struct cluster *c = serving_pair(2);
    struct gms_snapshot_view view;
    size_t count = gms_core_snapshot(c->cores[0], bytes, sizeof bytes);

    (void)state;
    bytes[8]++;
    seal(bytes, count);
    assert_int_equal(gms_snapshot_look(bytes, count, &view), GMS_E_VERSION);
    cluster_free(c);
}

/* The largest state there can be fits. */
static void test_the_largest_fits(void **state)
{
    struct gms_core_options options = {.world = 1, .world_size = GMS_MAX_RANKS};
    struct gms_core *core = gms_core_init(test_malloc(gms_core_bytes()), &options);
    struct gms_snapshot_view view;

    (void)state;
    core->round = 2;
    core->incarnations = 100;
    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++) {
        struct gms_core_engine *slot = &core->engines[e];

        slot->role = GMS_ROLE_JOINED;
        slot->incarnation = e + 1;
        slot->last.known = slot->last.decided = true;
        slot->last.proposal.key.kind = slot->last.outcome.key.kind = GMS_OPERATION_ALLOCATE;
        memset(slot->last.outcome.text, 'x', sizeof slot->last.outcome.text - 1);
        for (unsigned i = 0; i < GMS_CORE_OUTCOMES; i++) {
            slot->decided[i].outcome.key.kind = GMS_OPERATION_ALLOCATE;
            memset(slot->decided[i].outcome.text, 'x', sizeof slot->decided[i].outcome.text - 1);
        }
    }
    for (unsigned i = 0; i < GMS_CORE_MAX_POOLS; i++)
        core->pools[i].state = GMS_POOL_READY;
    for (unsigned i = 0; i < GMS_CORE_MAX_TRANSFERS; i++)
        core->transfers[i].used = true;
    for (unsigned i = 0; i < GMS_CORE_ENDED_TRANSFERS; i++)
        core->ended[i].used = true;
    size_t count = gms_core_snapshot(core, bytes, sizeof bytes);
    assert_in_range(count, 100000, GMS_SNAPSHOT_MAX_BYTES);
    assert_int_equal(gms_snapshot_look(bytes, count, &view), GMS_OK);
    test_free(core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_write_the_same_bytes),
        cmocka_unit_test(test_writing_changes_nothing),
        cmocka_unit_test(test_look_says_what_is_in_it),
        cmocka_unit_test(test_every_cut_and_every_flipped_bit_is_found),
        cmocka_unit_test(test_forged_bytes_do_no_harm),
        cmocka_unit_test(test_another_version_is_named_so),
        cmocka_unit_test(test_the_largest_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
