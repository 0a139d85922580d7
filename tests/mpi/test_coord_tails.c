/* SPDX-License-Identifier: Apache-2.0
 *
 * Unfinished blocks over real coordinators: an engine of two ranks is killed at every boundary of a step, the ranks at
 * the same place or a step apart; its successor is given, on both ranks alike, what both had complete, copies it, and
 * is the next to die.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"

enum { RANKS = 2, PLANES = 4, POSITION_BYTES = 64, FULL = 16 };
enum { GATE_DIE = 1 };
enum { AT_DONE = 1 };
enum { VALUE_TAILS, VALUE_COUNTS, VALUE_SALVAGED, VALUE_ADOPTED };
enum extra { NONE, ACQUIRED, WRITTEN, COMPLETED, SEALED };

static const struct gms_tail_layout layout = {
    .planes = PLANES, .position_bytes = POSITION_BYTES, .plane_bytes = HARNESS_BLOCK_BYTES / PLANES};

#define COUNT(n) (UINT64_C(1) << (n))

/* Where the ranks are when the engine dies, and what its successor has to find. */
static const struct place {
    const char *what;
    uint32_t noted[RANKS];
    enum extra then[RANKS]; /* than the last note */
    bool unequal;           /* other tokens in the last step of rank 1 */
    bool broken;            /* its device is, and it says so, instead of being killed */
    uint64_t counts;
    uint32_t adopted;
} places[] = {
    {"both after a step", {5, 5}, {NONE, NONE}, false, false, COUNT(3) | COUNT(4) | COUNT(5), 0},
    {"rank 0 a step ahead", {6, 5}, {NONE, NONE}, false, false, COUNT(4) | COUNT(5), 0},
    {"rank 1 a step ahead", {5, 6}, {NONE, NONE}, false, false, COUNT(4) | COUNT(5), 0},
    {"two steps apart", {5, 7}, {NONE, NONE}, false, false, COUNT(5), 0},
    {"rank 1 complete and not noted", {5, 5}, {WRITTEN, COMPLETED}, false, false, COUNT(3) | COUNT(4) | COUNT(5), 0},
    {"leased, nothing written", {0, 0}, {ACQUIRED, WRITTEN}, false, false, 0, 0},
    {"the first step on one rank only", {1, 0}, {NONE, WRITTEN}, false, false, 0, 0},
    {"after the first step", {1, 1}, {NONE, WRITTEN}, false, false, COUNT(1), 0},
    {"full, not sealed", {FULL, FULL}, {NONE, NONE}, false, false, COUNT(14) | COUNT(15) | COUNT(16), 0},
    {"sealed on rank 0 only", {FULL, FULL}, {SEALED, NONE}, false, false, COUNT(14) | COUNT(15) | COUNT(16), 0},
    {"sealed on both", {FULL, FULL}, {SEALED, SEALED}, false, false, 0, 1},
    {"unequal in the last step", {5, 5}, {NONE, NONE}, true, false, COUNT(3) | COUNT(4), 0},
    {"after a device error", {5, 5}, {NONE, NONE}, false, true, COUNT(3) | COUNT(4) | COUNT(5), 0},
};
enum { PLACES = sizeof places / sizeof places[0] };

static int byte_of(uint64_t place, uint32_t rank, uint32_t at)
{
    return (int)(1 + (place * 37 + rank * 11 + at * 3) % 250);
}

static gms_status write_position(gms_pool *pool, uint32_t slot, uint64_t place, uint32_t rank, uint32_t at,
                                 struct gms_error *error)
{
    gms_status status = GMS_OK;
    for (uint32_t plane = 0; plane < PLANES && status == GMS_OK; plane++)
        status = rank_fill(pool, (size_t)slot * HARNESS_BLOCK_BYTES + plane * layout.plane_bytes + at * POSITION_BYTES,
                           byte_of(place, rank, at), POSITION_BYTES, error);
    return status;
}

static struct gms_tail_entry entry_of(uint64_t place, uint32_t count, bool other)
{
    return (struct gms_tail_entry){.hash = {(uint8_t)(place + 1), (uint8_t)count, other}, .token_count = count};
}

/* Comes to where it is to die. */
static gms_status work(struct engine_rank *rank, gms_session *session, gms_pool *kv, struct gms_error *error)
{
    static const uint8_t parent[GMS_BLOCK_HASH_BYTES] = {9};
    const struct place *place = &places[rank->argument];
    const uint32_t slot = 10 + (uint32_t)rank->argument, noted = place->noted[rank->rank];
    const enum extra then = place->then[rank->rank];
    uint64_t generation = 0;
    gms_status status = gms_slot_acquire(kv, slot, &generation);
    if (status != GMS_OK)
        return gms_fail(error, status, "slot %u cannot be leased", slot);
    const uint32_t written = noted + (then == WRITTEN || then == COMPLETED);
    for (uint32_t at = 0; at < written && status == GMS_OK; at++) {
        const gms_token token = gms_step_begin(session);
        const struct gms_tail_entry entry =
            entry_of(rank->argument, at + 1, place->unequal && rank->rank == 1 && at + 1 == noted);
        status = write_position(kv, slot, rank->argument, rank->rank, at, error);
        if (status != GMS_OK || (at == noted && then == WRITTEN))
            break;
        gms_step_complete(session, token);
        if (at < noted)
            status = gms_tail_note(kv, slot, generation, parent, &entry, token);
        if (status != GMS_OK)
            return gms_fail(error, status, "step %u cannot be noted", at);
    }
    if (status == GMS_OK && then == SEALED) {
        struct gms_block block = {
            .token_count = FULL, .part_count = 1, .parts = {{gms_pool_index(kv), slot, generation}}};
        const struct gms_tail_entry entry = entry_of(rank->argument, FULL, false);
        memcpy(block.hash, entry.hash, sizeof block.hash);
        memcpy(block.parent_hash, parent, sizeof block.parent_hash);
        status = gms_block_seal(session, &block, 0);
        if (status != GMS_OK)
            return gms_fail(error, status, "the block cannot be sealed");
    }
    return status;
}

/* Takes up every length of what the one before has left, and looks at each byte. */
static gms_status take_up(struct engine_rank *rank, gms_pool *kv, struct gms_error *error)
{
    struct gms_tail tail, rest;
    uint32_t cursor = 0, slot = 0;
    const uint64_t before = rank->argument - 1;
    while (gms_tail_next(kv, &cursor, &rest) == GMS_OK) {
        tail = rest;
        rank->values[VALUE_TAILS]++;
    }
    for (uint32_t i = 0; rank->values[VALUE_TAILS] == 1 && i < tail.entry_count; i++) {
        const uint32_t count = tail.entries[i].token_count;
        const struct gms_tail_entry expected = entry_of(before, count, false);
        uint64_t generation = 0;
        gms_status status;
        while ((status = gms_slot_acquire(kv, slot, &generation)) == GMS_E_QUARANTINED)
            slot++;
        if (status == GMS_OK)
            status = rank_fill(kv, (size_t)slot * HARNESS_BLOCK_BYTES, 0xfe, HARNESS_BLOCK_BYTES, error);
        if (status == GMS_OK)
            status = gms_tail_salvage(kv, &tail, i, slot, generation, NULL, NULL, error);
        if (status != GMS_OK)
            return status;
        rank->values[VALUE_COUNTS] |= COUNT(count);
        bool good = tail.slot == 10 + before && memcmp(tail.entries[i].hash, expected.hash, sizeof expected.hash) == 0;
        for (size_t at = 0; at < HARNESS_BLOCK_BYTES; at++) {
            const uint32_t position = (uint32_t)(at % layout.plane_bytes / POSITION_BYTES);
            good = good && rank_byte(kv, (size_t)slot * HARNESS_BLOCK_BYTES + at) ==
                               (position < count ? byte_of(before, rank->rank, position) : 0xfe);
        }
        rank->values[VALUE_SALVAGED] += good;
        status = gms_slot_release(kv, slot, generation, 0);
        if (status != GMS_OK)
            return gms_fail(error, status, "slot %u cannot be given back", slot);
    }
    return GMS_OK;
}

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
        status = gms_tail_layout_set(kv, &layout, error);
    if (status == GMS_OK)
        status = rank_serve(session, "here", &adoption, error);
    if (status == GMS_OK)
        status = take_up(rank, kv, error);
    if (status == GMS_OK && rank->argument < PLACES)
        status = work(rank, session, kv, error);
    if (status != GMS_OK)
        return status;
    rank->values[VALUE_ADOPTED] = adoption.adopted;
    if (rank->argument < PLACES && places[rank->argument].broken && rank->rank == 0)
        status = gms_report_sticky_error(session, 700, "illegal address", error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_DONE);
    rank_gate(rank, GATE_DIE);
    return GMS_OK;
}

static void each_boundary(const char *verify)
{
    static struct engine engines[PLACES + 1];
    static struct cluster cluster;
    char launch[16];
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .verify = verify});
    uint64_t adopted = 0;
    for (uint32_t i = 0; i <= PLACES; i++) {
        snprintf(launch, sizeof launch, "tail-%u", i);
        engine_start(&engines[i], &cluster, i % 2, launch, serve, i);
        if (i > 0 && !places[i - 1].broken)
            engine_kill(&engines[i - 1], i % RANKS);
        if (!engine_reached(&engines[i], AT_DONE, HARNESS_DEADLINE_MS)) {
            for (uint32_t rank = 0; rank < RANKS; rank++)
                print_error("rank %u: %s\n", rank, engines[i].ranks[rank].text);
            cluster_show_log(&cluster);
            fail();
        }
        if (i == 0)
            continue;
        const struct place *place = &places[i - 1];
        /* A wild kernel may have written anywhere: what was checked is taken, else neither sealed blocks nor these. */
        const uint64_t expected = place->broken && strcmp(verify, "full") != 0 ? 0 : place->counts;
        adopted += place->adopted;
        uint32_t lengths = 0;
        for (uint64_t counts = expected; counts != 0; counts &= counts - 1)
            lengths++;
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            const uint64_t *values = engines[i].ranks[rank].values;
            print_message("%s, rank %u: counts %#llx, %llu salvaged\n", place->what, rank,
                          (unsigned long long)values[VALUE_COUNTS], (unsigned long long)values[VALUE_SALVAGED]);
            assert_int_equal(values[VALUE_TAILS], expected != 0);
            assert_int_equal(values[VALUE_COUNTS], expected);
            assert_int_equal(values[VALUE_SALVAGED], lengths);
            assert_int_equal(values[VALUE_ADOPTED], place->broken && expected == 0 ? 0 : adopted);
        }
    }
    engine_go(&engines[PLACES], GATE_DIE);
    for (uint32_t i = 0; i <= PLACES; i++)
        engine_finish(&engines[i]);
    cluster_stop(&cluster);
}

static void test_each_boundary_verified(void **state)
{
    (void)state;
    each_boundary("full");
}

static void test_each_boundary_unverified(void **state)
{
    (void)state;
    each_boundary("none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_boundary_verified),
                                       cmocka_unit_test(test_each_boundary_unverified)};
    return cmocka_run_group_tests_name("coord_tails", tests, NULL, NULL);
}
