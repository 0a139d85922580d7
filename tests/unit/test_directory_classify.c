/* SPDX-License-Identifier: Apache-2.0
 *
 * What a successor gets of what an incarnation left: index, classification, and the vectors the ranks compare.
 */
#include "unit_support.h"

#include "directory/layout.h"

enum { SLOTS = 64, OTHER_SLOTS = 16, MANY_SLOTS = 344905 };
static const uint64_t IDENTITY = 0xabcdef;

/* Pools 0 and 1 of a predecessor and of its successor. */
struct fixture {
    struct gms_directory old[2], new[2];
    struct gms_directory *source[GMS_MAX_POOLS], *into[GMS_MAX_POOLS];
    struct gms_directory_index *index[GMS_MAX_POOLS];
    struct gms_classification counts[GMS_MAX_POOLS];
};

static struct gms_directory_geometry geometry_of(uint32_t pool, uint32_t slots, uint64_t incarnation)
{
    return (struct gms_directory_geometry){.pool = pool,
                                           .slot_count = slots,
                                           .block_bytes = 512,
                                           .identity_digest = IDENTITY,
                                           .world = 1,
                                           .incarnation = incarnation,
                                           .epoch = incarnation};
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    for (uint32_t pool = 0; pool < 2; pool++) {
        const uint32_t slots = pool == 0 ? SLOTS : OTHER_SLOTS;
        const struct gms_directory_geometry old = geometry_of(pool, slots, 1), new = geometry_of(pool, slots, 2);
        if (gms_directory_create(&old, &f->old[pool], NULL) != GMS_OK ||
            gms_directory_create(&new, &f->new[pool], NULL) != GMS_OK ||
            gms_directory_index_create(slots, &f->index[pool], NULL) != GMS_OK)
            return -1;
        f->source[pool] = &f->old[pool];
        f->into[pool] = &f->new[pool];
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    for (uint32_t pool = 0; pool < 2; pool++) {
        gms_directory_close(&f->old[pool]);
        gms_directory_close(&f->new[pool]);
        gms_directory_index_free(f->index[pool]);
    }
    free(f);
    return 0;
}

static void classify(struct fixture *f, bool clean)
{
    struct gms_error error;
    assert_ok(gms_directory_classify(f->index, f->source, f->into, clean, f->counts, &error));
}

static enum gms_slot_state became(const struct fixture *f, uint32_t pool, uint32_t slot)
{
    return gms_slot_word_state(gms_directory_word(f->into[pool], slot));
}

static uint64_t lease(struct fixture *f, uint32_t pool, uint32_t slot)
{
    uint64_t generation = 0;
    assert_int_equal(gms_directory_acquire(f->source[pool], slot, &generation), GMS_OK);
    return generation;
}

static struct gms_block make_block(uint32_t pool, uint32_t slot, uint64_t generation)
{
    struct gms_block block = {
        .token_count = 16, .part_count = 1, .parts = {{.pool = pool, .slot = slot, .generation = generation}}};
    memset(block.hash, (int)(0x10 + slot + 100 * pool), sizeof block.hash);
    return block;
}

static void seal(struct fixture *f, uint32_t pool, uint32_t slot)
{
    const struct gms_block block = make_block(pool, slot, lease(f, pool, slot));
    assert_int_equal(gms_directory_seal(f->source, &block, 1), GMS_OK);
}

/* Home in pool 0, second part in pool 1. */
static void seal_spanning(struct fixture *f, uint32_t slot, uint32_t other)
{
    struct gms_block block = make_block(0, slot, lease(f, 0, slot));
    block.part_count = 2;
    block.parts[1] = (struct gms_part){.pool = 1, .slot = other, .generation = lease(f, 1, other)};
    assert_int_equal(gms_directory_seal(f->source, &block, 1), GMS_OK);
}

static void flip(const struct gms_directory *directory, uint32_t slot)
{
    ((uint8_t *)gms_directory_record_words(directory, slot))[17] ^= 4;
}

/* ------------------------------------------------------------------------------------------------- classes --- */

static void test_each_state_has_its_class(void **state)
{
    struct fixture *f = *state;
    struct gms_record record;
    seal(f, 0, 1);
    lease(f, 0, 2);
    assert_int_equal(gms_directory_release(f->source[0], 3, lease(f, 0, 3)), GMS_OK);
    gms_directory_set_word(f->source[0], 4, gms_slot_word_make(GMS_SLOT_QUARANTINED, 8));
    gms_directory_set_word(f->source[0], 5, gms_slot_word_make(GMS_SLOT_RETIRED, GMS_SLOT_GENERATION_MAX));
    gms_directory_set_word(f->source[0], 6, gms_slot_word_make(GMS_SLOT_IDLE, 33));
    gms_directory_set_word(f->source[0], 7, UINT64_MAX); /* no state at all */
    gms_directory_set_word(f->source[0], 8, (UINT64_C(5) << 3) | 6);
    gms_directory_set_word(f->source[0], 9, gms_slot_word_make(GMS_SLOT_SEALED, 2)); /* sealed, but no record */
    classify(f, false);
    assert_int_equal(gms_directory_word(f->into[0], 0), gms_slot_word_make(GMS_SLOT_IDLE, 0));
    assert_int_equal(gms_directory_word(f->into[0], 1), gms_slot_word_make(GMS_SLOT_SEALED, 1));
    assert_true(gms_directory_read(f->into, 0, 1, &record));
    assert_int_equal(gms_directory_word(f->into[0], 2), gms_slot_word_make(GMS_SLOT_QUARANTINED, 1));
    assert_int_equal(gms_directory_word(f->into[0], 3), gms_slot_word_make(GMS_SLOT_QUARANTINED, 1));
    assert_int_equal(gms_directory_word(f->into[0], 4), gms_slot_word_make(GMS_SLOT_QUARANTINED, 8));
    assert_int_equal(gms_directory_word(f->into[0], 5), gms_slot_word_make(GMS_SLOT_RETIRED, GMS_SLOT_GENERATION_MAX));
    assert_int_equal(gms_directory_word(f->into[0], 6), gms_slot_word_make(GMS_SLOT_IDLE, 33));
    for (uint32_t slot = 7; slot <= 9; slot++)
        assert_int_equal(became(f, 0, slot), GMS_SLOT_QUARANTINED);
    assert_int_equal(f->counts[0].adoptable, 1);
    assert_int_equal(f->counts[0].retired, 1);
    assert_int_equal(f->counts[0].quarantined, 6);
    assert_int_equal(f->counts[0].damaged, 1);
    assert_int_equal(f->counts[0].free, SLOTS - 8);
    assert_int_equal(f->counts[1].free, OTHER_SLOTS);
}

static void test_goodbye_frees_what_was_released(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(gms_directory_release(f->source[0], 3, lease(f, 0, 3)), GMS_OK);
    lease(f, 0, 4);
    classify(f, true);
    assert_int_equal(became(f, 0, 3), GMS_SLOT_IDLE);
    assert_int_equal(became(f, 0, 4), GMS_SLOT_QUARANTINED);
}

static void test_flipped_byte_is_quarantined(void **state)
{
    struct fixture *f = *state;
    struct gms_record record;
    seal(f, 0, 10);
    seal(f, 0, 11);
    flip(f->source[0], 10);
    classify(f, true);
    assert_int_equal(became(f, 0, 10), GMS_SLOT_QUARANTINED);
    assert_int_equal(became(f, 0, 11), GMS_SLOT_SEALED);
    assert_false(gms_directory_read(f->into, 0, 10, &record));
    assert_int_equal(f->counts[0].damaged, 1);
    assert_int_equal(f->counts[0].adoptable, 1);
}

static void test_other_identity_adopts_nothing(void **state)
{
    struct fixture *f = *state;
    seal(f, 0, 10);
    f->new[0].geometry.identity_digest ^= 1;
    classify(f, true);
    assert_int_equal(became(f, 0, 10), GMS_SLOT_QUARANTINED);
    assert_int_equal(f->counts[0].adoptable, 0);
}

static void test_new_pool_is_all_free(void **state)
{
    struct fixture *f = *state;
    f->source[1] = NULL;
    gms_directory_set_word(f->into[1], 3, gms_slot_word_make(GMS_SLOT_QUARANTINED, 1));
    classify(f, false);
    assert_int_equal(f->counts[1].free, OTHER_SLOTS);
    assert_int_equal(gms_directory_word(f->into[1], 3), gms_slot_word_make(GMS_SLOT_IDLE, 0));
}

static void test_slot_counts_must_agree(void **state)
{
    struct fixture *f = *state;
    struct gms_error error;
    struct gms_directory small;
    const struct gms_directory_geometry geometry = geometry_of(0, SLOTS - 1, 2);
    assert_ok(gms_directory_create(&geometry, &small, &error));
    f->into[0] = &small;
    gms_directory_set_word(f->source[1], 0, gms_slot_word_make(GMS_SLOT_IDLE, 9));
    assert_status(gms_directory_classify(f->index, f->source, f->into, false, f->counts, &error), GMS_E_MISMATCH);
    assert_text_has("63");
    assert_text_has("64");
    assert_int_equal(gms_directory_word(f->into[1], 0), gms_slot_word_make(GMS_SLOT_IDLE, 0)); /* nothing was set */
    gms_directory_close(&small);
}

/* ----------------------------------------------------------------------------------------- spanning records -- */

static void test_spanning_block_is_adopted_whole(void **state)
{
    struct fixture *f = *state;
    struct gms_record record;
    seal_spanning(f, 5, 7);
    seal(f, 0, 6);
    classify(f, false);
    assert_int_equal(became(f, 0, 5), GMS_SLOT_SEALED);
    assert_int_equal(became(f, 1, 7), GMS_SLOT_SEALED);
    assert_true(gms_directory_read(f->into, 0, 5, &record));
    assert_int_equal(record.part_count, 2);
    assert_int_equal(f->counts[0].adoptable, 2);
    assert_int_equal(f->counts[1].adoptable, 1);
    assert_int_equal(f->counts[0].damaged + f->counts[1].damaged, 0);
}

static void test_spanning_block_is_refused_whole(void **state)
{
    struct fixture *f = *state;
    seal_spanning(f, 1, 1); /* its second part was given back */
    assert_int_equal(gms_directory_release(f->source[1], 1, 1), GMS_OK);
    seal_spanning(f, 2, 2); /* its second part was given back and leased again */
    assert_int_equal(gms_directory_release(f->source[1], 2, 1), GMS_OK);
    assert_int_equal(lease(f, 1, 2), 2);
    seal_spanning(f, 3, 3); /* its record is damaged */
    flip(f->source[0], 3);
    seal_spanning(f, 4, 4); /* its home was given back */
    assert_int_equal(gms_directory_release(f->source[0], 4, 1), GMS_OK);
    seal_spanning(f, 5, 5); /* this one is right */
    classify(f, true);
    for (uint32_t slot = 1; slot <= 3; slot++)
        assert_int_equal(became(f, 0, slot), GMS_SLOT_QUARANTINED);
    assert_int_equal(became(f, 0, 4), GMS_SLOT_IDLE);
    assert_int_equal(became(f, 1, 1), GMS_SLOT_IDLE);
    for (uint32_t slot = 2; slot <= 4; slot++)
        assert_int_equal(became(f, 1, slot), GMS_SLOT_QUARANTINED);
    assert_int_equal(became(f, 0, 5), GMS_SLOT_SEALED);
    assert_int_equal(became(f, 1, 5), GMS_SLOT_SEALED);
    assert_int_equal(f->counts[0].adoptable, 1);
    assert_int_equal(f->counts[1].adoptable, 1);
}

static void test_spanning_block_needs_all_pools(void **state)
{
    struct fixture *f = *state;
    seal_spanning(f, 5, 7);
    f->into[1] = NULL;
    classify(f, false);
    assert_int_equal(became(f, 0, 5), GMS_SLOT_QUARANTINED);
}

static void test_two_claims_on_one_slot_refuse_both(void **state)
{
    struct fixture *f = *state;
    struct gms_record record;
    seal_spanning(f, 5, 7);
    seal(f, 0, 6);
    assert_true(gms_directory_read(f->source, 0, 6, &record));
    record.part_count = 2; /* forged: slot 6 says that it owns 7 of pool 1 as well */
    record.parts[1] = (struct gms_record_part){.pool = 1, .slot = 7, .generation = 1};
    record.checksum = gms_record_checksum(&record, IDENTITY, 6);
    gms_directory_copy_record_in(f->source[0], 6, &record);
    classify(f, false);
    assert_int_equal(became(f, 0, 5), GMS_SLOT_QUARANTINED);
    assert_int_equal(became(f, 0, 6), GMS_SLOT_QUARANTINED);
    assert_int_equal(became(f, 1, 7), GMS_SLOT_QUARANTINED);
}

/* --------------------------------------------------------------------------------------------------- index --- */

static void test_refresh_looks_only_at_what_changed(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(gms_directory_index_refresh(f->index[0], f->source, 0, f->into[0]), SLOTS);
    assert_int_equal(gms_directory_index_refresh(f->index[0], f->source, 0, f->into[0]), 0);
    const uint64_t before = gms_directory_change_count(f->source[0]);
    seal(f, 0, 1);
    lease(f, 0, 2);
    assert_true(gms_directory_change_count(f->source[0]) > before);
    assert_int_equal(gms_directory_index_refresh(f->index[0], f->source, 0, f->into[0]), 2);
    assert_int_equal(gms_directory_index_refresh(f->index[0], f->source, 0, f->into[0]), 0);
    assert_int_equal(became(f, 0, 1), GMS_SLOT_IDLE); /* words are set by classification, not before */
    assert_int_equal(gms_directory_release(f->source[0], 1, 1), GMS_OK);
    seal(f, 0, 1); /* same slot, new generation */
    assert_int_equal(gms_directory_index_refresh(f->index[0], f->source, 0, f->into[0]), 1);
    classify(f, false);
    struct gms_record record;
    assert_true(gms_directory_read(f->into, 0, 1, &record));
    assert_int_equal(record.parts[0].generation, 2);
}

static void test_index_serves_one_successor_after_another(void **state)
{
    struct fixture *f = *state;
    struct gms_error error;
    struct gms_record record;
    struct gms_directory third, *keep = f->into[0];
    const struct gms_directory_geometry geometry = geometry_of(0, SLOTS, 3);
    assert_ok(gms_directory_create(&geometry, &third, &error));
    seal(f, 0, 1);
    gms_directory_index_refresh(f->index[0], f->source, 0, NULL); /* no successor yet */
    gms_directory_index_refresh(f->index[0], f->source, 0, keep);
    seal(f, 0, 2);
    gms_directory_index_refresh(f->index[0], f->source, 0, NULL); /* it is gone; this one is copied nowhere */
    gms_directory_index_refresh(f->index[0], f->source, 0, keep); /* and back */
    f->into[0] = &third;
    seal(f, 0, 3);
    classify(f, false);
    for (uint32_t slot = 1; slot <= 3; slot++)
        assert_true(gms_directory_read(f->into, 0, slot, &record));
    f->into[0] = keep;
    classify(f, false);
    for (uint32_t slot = 1; slot <= 3; slot++)
        assert_true(gms_directory_read(f->into, 0, slot, &record));
    gms_directory_close(&third);
}

static void test_classify_builds_a_missing_index(void **state)
{
    struct fixture *f = *state;
    struct gms_record record;
    seal_spanning(f, 5, 7);
    gms_directory_index_free(f->index[0]);
    gms_directory_index_free(f->index[1]);
    f->index[0] = f->index[1] = NULL;
    classify(f, false);
    assert_true(gms_directory_read(f->into, 0, 5, &record));
    assert_int_equal(became(f, 1, 7), GMS_SLOT_SEALED);
}

/* Generations travel with the slots, so a lease of the dead can never be taken for one of the living. */
static void test_chain_of_successors_keeps_generations(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(gms_directory_release(f->source[0], 0, lease(f, 0, 0)), GMS_OK);
    assert_int_equal(gms_directory_fence_passed(f->source[0], 0, 3), GMS_OK);
    classify(f, false);
    uint64_t generation = 0;
    assert_int_equal(gms_directory_acquire(f->into[0], 0, &generation), GMS_OK);
    assert_int_equal(generation, 4);
    assert_int_equal(gms_directory_release(f->into[0], 0, 3), GMS_E_STALE);
}

/* --------------------------------------------------------------------------------------------------- bulk ---- */

struct vectors {
    uint8_t adoptable[SLOTS / 8], usable[SLOTS / 8];
    uint32_t digests[SLOTS];
};

static void combine(struct vectors *into, const struct vectors *from)
{
    for (uint32_t i = 0; i < SLOTS / 8; i++) {
        into->adoptable[i] &= from->adoptable[i];
        into->usable[i] &= from->usable[i];
    }
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        if (into->digests[slot] != from->digests[slot])
            into->adoptable[slot / 8] &= (uint8_t) ~(1u << (slot % 8));
}

static void test_ranks_keep_what_is_equal_everywhere(void **state)
{
    struct fixture *left = *state, *right = NULL;
    assert_int_equal(setup((void **)&right), 0);
    /* On the right every slot has been leased once more, and contents are another shard's: neither matters. */
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        assert_int_equal(gms_directory_release(right->source[0], slot, lease(right, 0, slot)), GMS_OK);
        assert_int_equal(gms_directory_fence_passed(right->source[0], slot, 1), GMS_OK);
    }
    seal(left, 0, 0);
    seal(right, 0, 0);
    seal(left, 0, 1); /* sealed here, idle there */
    seal(left, 0, 2); /* sealed here, leased there */
    lease(right, 0, 2);
    seal(left, 0, 3); /* other contents by the hash */
    struct gms_block block = make_block(0, 3, lease(right, 0, 3));
    block.hash[0] ^= 1;
    assert_int_equal(gms_directory_seal(right->source, &block, 1), GMS_OK);
    lease(left, 0, 4); /* leased here, idle there */
    gms_directory_set_word(left->source[0], 5, gms_slot_word_make(GMS_SLOT_RETIRED, 9));
    seal_spanning(left, 6, 0); /* whole on both */
    seal_spanning(right, 6, 0);
    seal_spanning(left, 7, 1); /* another second part */
    seal_spanning(right, 7, 2);
    seal_spanning(left, 8, 3); /* another home for the same second part */
    seal_spanning(right, 9, 3);
    classify(left, false);
    classify(right, false);

    struct vectors a, b;
    gms_directory_bulk_vectors(left->into[0], a.adoptable, a.usable, a.digests);
    gms_directory_bulk_vectors(right->into[0], b.adoptable, b.usable, b.digests);
    assert_true((a.adoptable[0] & 0x0f) == 0x0f && a.digests[0] == b.digests[0] && a.digests[0] != 0);
    assert_int_not_equal(a.digests[3], b.digests[3]);
    combine(&a, &b);
    struct gms_classification counts[2];
    gms_directory_bulk_apply(left->into[0], a.adoptable, a.usable, &counts[0]);
    gms_directory_bulk_apply(right->into[0], a.adoptable, a.usable, &counts[1]);
    static const enum gms_slot_state expected[] = {GMS_SLOT_SEALED, GMS_SLOT_IDLE,        GMS_SLOT_QUARANTINED,
                                                   GMS_SLOT_IDLE,   GMS_SLOT_QUARANTINED, GMS_SLOT_RETIRED,
                                                   GMS_SLOT_SEALED, GMS_SLOT_IDLE,        GMS_SLOT_IDLE};
    for (uint32_t slot = 0; slot < sizeof expected / sizeof expected[0]; slot++) {
        assert_int_equal(became(left, 0, slot), expected[slot]);
        assert_int_equal(became(right, 0, slot), slot == 5 ? GMS_SLOT_QUARANTINED : expected[slot]);
    }
    assert_int_equal(counts[0].adoptable, 2);
    assert_int_equal(counts[1].adoptable, 2);
    assert_int_equal(counts[0].free, counts[1].free);

    /* Second parts carry their block's digest, so they agree or disagree with it. */
    gms_directory_bulk_vectors(left->into[1], a.adoptable, a.usable, a.digests);
    gms_directory_bulk_vectors(right->into[1], b.adoptable, b.usable, b.digests);
    assert_int_equal(a.digests[0], b.digests[0]);
    assert_int_not_equal(a.digests[0], 0);
    assert_int_not_equal(a.digests[1], b.digests[1]);
    assert_true(a.digests[3] != 0 && b.digests[3] != 0 && a.digests[3] != b.digests[3]);
    teardown((void **)&right);
}

/* ------------------------------------------------------------------------------------------------ property --- */

static uint64_t random_state;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % limit);
}

static void play(struct fixture *f)
{
    for (int step = 0; step < 300; step++) {
        const uint32_t slot = random_below(SLOTS), other = random_below(OTHER_SLOTS);
        uint64_t a = 0, b = 0;
        switch (random_below(6)) {
        case 0:
        case 1:
            if (gms_directory_acquire(f->source[0], slot, &a) == GMS_OK && random_below(4) != 0) {
                const struct gms_block block = make_block(0, slot, a);
                assert_int_equal(gms_directory_seal(f->source, &block, 1), GMS_OK);
            }
            break;
        case 2:
            if (gms_directory_acquire(f->source[0], slot, &a) == GMS_OK &&
                gms_directory_acquire(f->source[1], other, &b) == GMS_OK) {
                struct gms_block block = make_block(0, slot, a);
                block.part_count = 2;
                block.parts[1] = (struct gms_part){.pool = 1, .slot = other, .generation = b};
                assert_int_equal(gms_directory_seal(f->source, &block, 1), GMS_OK);
            }
            break;
        case 3:
            a = gms_slot_word_generation(gms_directory_word(f->source[0], slot));
            if (gms_directory_release(f->source[0], slot, a) == GMS_OK && random_below(2) != 0)
                gms_directory_fence_passed(f->source[0], slot, a);
            break;
        case 4:
            b = gms_slot_word_generation(gms_directory_word(f->source[1], other));
            gms_directory_release(f->source[1], other, b);
            break;
        default:
            if (random_below(8) == 0)
                ((uint8_t *)gms_directory_record_words(f->source[0], slot))[random_below(GMS_RECORD_BYTES)] ^= 1;
            else if (random_below(8) == 0)
                gms_directory_set_word(f->source[1], other, random_below(64));
            else
                gms_directory_index_refresh(f->index[0], f->source, 0, random_below(3) != 0 ? f->into[0] : NULL);
            break;
        }
    }
}

/* Whatever happened: a slot that became SEALED belongs to a block whose record reads whole in the successor's files,
 * and what became IDLE or SEALED had that word before. */
static void check(struct fixture *f)
{
    uint8_t covered[2][SLOTS] = {0};
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        struct gms_record record;
        if (!gms_directory_read(f->into, 0, slot, &record))
            continue;
        for (uint32_t i = 0; i < record.part_count; i++)
            covered[record.parts[i].pool][record.parts[i].slot]++;
    }
    for (uint32_t pool = 0; pool < 2; pool++) {
        for (uint32_t slot = 0; slot < f->into[pool]->slot_count; slot++) {
            const gms_slot_word before = gms_directory_word(f->source[pool], slot);
            const gms_slot_word after = gms_directory_word(f->into[pool], slot);
            assert_int_equal(gms_slot_word_generation(before), gms_slot_word_generation(after));
            assert_int_equal(covered[pool][slot], gms_slot_word_state(after) == GMS_SLOT_SEALED ? 1 : 0);
            if (gms_slot_word_state(after) == GMS_SLOT_SEALED || gms_slot_word_state(after) == GMS_SLOT_IDLE)
                assert_true(before == after);
        }
    }
}

static void test_random_lives(void **state)
{
    const char *given = getenv("GMS_TEST_SEED");
    const uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : gms_clock_ns();
    (void)state;
    print_message("GMS_TEST_SEED=%llu\n", (unsigned long long)seed);
    random_state = seed;
    for (int round = 0; round < 100; round++) {
        struct fixture *f = NULL;
        assert_int_equal(setup((void **)&f), 0);
        play(f);
        classify(f, false);
        check(f);
        teardown((void **)&f);
    }
}

/* Printed, never asserted: tests are not timed. */
static void test_many_slots(void **state)
{
    struct gms_error error;
    struct gms_directory old, new;
    struct gms_directory_index *index = NULL;
    const struct gms_directory_geometry of_old = geometry_of(0, MANY_SLOTS, 1), of_new = geometry_of(0, MANY_SLOTS, 2);
    (void)state;
    assert_ok(gms_directory_create(&of_old, &old, &error));
    assert_ok(gms_directory_create(&of_new, &new, &error));
    assert_ok(gms_directory_index_create(MANY_SLOTS, &index, &error));
    struct gms_directory *source[GMS_MAX_POOLS] = {&old}, *into[GMS_MAX_POOLS] = {&new};
    struct gms_directory_index *indexes[GMS_MAX_POOLS] = {index};
    struct gms_classification counts[GMS_MAX_POOLS];
    for (uint32_t slot = 0; slot < MANY_SLOTS; slot++) {
        uint64_t generation = 0;
        assert_int_equal(gms_directory_acquire(&old, slot, &generation), GMS_OK);
        const struct gms_block block = make_block(0, slot, generation);
        assert_int_equal(gms_directory_seal(source, &block, 1), GMS_OK);
    }
    const uint64_t start = gms_clock_ns();
    gms_directory_index_refresh(index, source, 0, &new);
    const uint64_t built = gms_clock_ns();
    assert_ok(gms_directory_classify(indexes, source, into, false, counts, &error));
    const uint64_t classified = gms_clock_ns();
    uint8_t *bitmaps = malloc(2 * (MANY_SLOTS / 8 + 1));
    uint32_t *digests = malloc(MANY_SLOTS * sizeof *digests);
    gms_directory_bulk_vectors(&new, bitmaps, bitmaps + MANY_SLOTS / 8 + 1, digests);
    const uint64_t compared = gms_clock_ns();
    gms_directory_bulk_apply(&new, bitmaps, bitmaps + MANY_SLOTS / 8 + 1, &counts[1]);
    const uint64_t applied = gms_clock_ns();
    assert_int_equal(counts[0].adoptable, MANY_SLOTS);
    assert_int_equal(counts[1].adoptable, MANY_SLOTS);
    print_message("%d sealed slots: index %.1f ms before the fault; classify %.1f ms, vectors %.1f ms, apply %.1f ms\n",
                  MANY_SLOTS, (double)(built - start) / 1e6, (double)(classified - built) / 1e6,
                  (double)(compared - classified) / 1e6, (double)(applied - compared) / 1e6);
    free(bitmaps);
    free(digests);
    gms_directory_index_free(index);
    gms_directory_close(&old);
    gms_directory_close(&new);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_each_state_has_its_class),
        T(test_goodbye_frees_what_was_released),
        T(test_flipped_byte_is_quarantined),
        T(test_other_identity_adopts_nothing),
        T(test_new_pool_is_all_free),
        T(test_slot_counts_must_agree),
        T(test_spanning_block_is_adopted_whole),
        T(test_spanning_block_is_refused_whole),
        T(test_spanning_block_needs_all_pools),
        T(test_two_claims_on_one_slot_refuse_both),
        T(test_refresh_looks_only_at_what_changed),
        T(test_index_serves_one_successor_after_another),
        T(test_classify_builds_a_missing_index),
        T(test_chain_of_successors_keeps_generations),
        T(test_ranks_keep_what_is_equal_everywhere),
        cmocka_unit_test(test_random_lives),
        cmocka_unit_test(test_many_slots),
#undef T
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
