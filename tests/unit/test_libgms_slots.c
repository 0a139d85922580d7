/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps, slots, blocks, and what a successor makes of them.
 */
#include "libgms_support.h"

#include "directory/layout.h"

/* ------------------------------------------------------------------------------------------------ slots ------ */

static void test_slots_are_shut_until_adoption(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = park_engine(f, 0);
    uint64_t generation = 99;
    uint32_t cursor = 0;
    struct gms_block block = block_of_slot(engine.kv, 0, 1), found;
    assert_int_equal(gms_slot_acquire(engine.kv, 0, &generation), GMS_E_REFUSED);
    assert_int_equal(generation, 99);
    assert_int_equal(gms_slot_release(engine.kv, 0, 0, 0), GMS_E_REFUSED);
    assert_int_equal(gms_block_seal(engine.session, &block, 0), GMS_E_REFUSED);
    assert_int_equal(gms_lookup(engine.session, block.hash, &found), GMS_E_REFUSED);
    assert_int_equal(gms_sealed_next(engine.kv, &cursor, &found), GMS_E_REFUSED);
    uint32_t count = 7;
    assert_int_equal(gms_sealed_list(engine.kv, &cursor, &found, 1, &count), GMS_E_REFUSED);
    assert_int_equal(count, 0);
    adopt_engine(f, &engine, 0, false);
    assert_int_equal(gms_slot_acquire(engine.kv, 0, &generation), GMS_OK);
    assert_int_equal(generation, 1);
    gms_close(engine.session);
}

static void test_seal_waits_for_its_step(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0);
    uint64_t generation = 0;
    struct gms_block found;
    const gms_token first = gms_step_begin(engine.session), second = gms_step_begin(engine.session);
    assert_int_equal(second, first + 1);
    assert_int_equal(gms_slot_acquire(engine.kv, 4, &generation), GMS_OK);
    const struct gms_block block = block_of_slot(engine.kv, 4, generation);
    assert_int_equal(gms_block_seal(engine.session, &block, second), GMS_E_NOT_DONE);
    gms_step_complete(engine.session, first);
    assert_int_equal(gms_block_seal(engine.session, &block, second), GMS_E_NOT_DONE);
    assert_int_equal(gms_block_seal(engine.session, &block, second + 1), GMS_E_NOT_DONE); /* never begun */
    gms_step_complete(engine.session, second + 5); /* completes no more than was begun */
    assert_int_equal(gms_block_seal(engine.session, &block, second + 1), GMS_E_NOT_DONE);
    assert_int_equal(slot_state(engine.kv, 4), GMS_SLOT_LEASED);
    assert_int_equal(gms_lookup(engine.session, block.hash, &found), GMS_E_NOT_FOUND);
    assert_int_equal(gms_block_seal(engine.session, &block, second), GMS_OK);
    assert_int_equal(slot_state(engine.kv, 4), GMS_SLOT_SEALED);
    gms_close(engine.session);
}

static void test_released_slot_waits_for_its_step(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0);
    const uint64_t generation = seal_slot(&engine, 0);
    seal_slot(&engine, 1);
    const gms_token token = gms_step_begin(engine.session), later = gms_step_begin(engine.session);
    assert_int_equal(gms_slot_release(engine.kv, 0, generation, later + 1), GMS_E_INVALID); /* never begun */
    assert_int_equal(gms_slot_release(engine.kv, 0, generation, later), GMS_OK);
    assert_int_equal(gms_slot_release(engine.kv, 1, 1, token), GMS_OK); /* out of order */
    assert_int_equal(slot_state(engine.kv, 0), GMS_SLOT_RELEASED);
    gms_step_complete(engine.session, token);
    assert_int_equal(slot_state(engine.kv, 0), GMS_SLOT_RELEASED);
    assert_int_equal(slot_state(engine.kv, 1), GMS_SLOT_IDLE);
    assert_int_not_equal(gms_slot_release(engine.kv, 0, generation, later), GMS_OK); /* listed twice */
    uint64_t again = 0;
    assert_int_equal(gms_slot_acquire(engine.kv, 0, &again), GMS_OK); /* its own incarnation may have it at once */
    assert_int_equal(again, generation + 1);
    gms_step_complete(engine.session, later);
    assert_int_equal(slot_state(engine.kv, 0), GMS_SLOT_LEASED); /* the old release does not touch the new lease */
    assert_int_equal(gms_slot_release(engine.kv, 0, generation, 0), GMS_E_STALE);
    assert_int_equal(gms_slot_release(engine.kv, 0, again, 0), GMS_OK); /* token 0: complete already */
    assert_int_equal(slot_state(engine.kv, 0), GMS_SLOT_IDLE);
    assert_int_not_equal(gms_slot_release(engine.kv, 0, again, 0), GMS_OK);
    gms_close(engine.session);
}

/* Given back twice under different steps: the first step's end does not free what the second still writes. */
static void test_each_release_waits_for_its_own_step(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0);
    uint64_t generation = 0;
    const gms_token first = gms_step_begin(engine.session), second = gms_step_begin(engine.session);
    assert_int_equal(gms_slot_acquire(engine.kv, 9, &generation), GMS_OK);
    assert_int_equal(gms_slot_release(engine.kv, 9, generation, first), GMS_OK);
    assert_int_equal(gms_slot_acquire(engine.kv, 9, &generation), GMS_OK);
    assert_int_equal(gms_slot_release(engine.kv, 9, generation, second), GMS_OK);
    gms_step_complete(engine.session, first);
    assert_int_equal(slot_state(engine.kv, 9), GMS_SLOT_RELEASED);
    gms_step_complete(engine.session, second);
    assert_int_equal(slot_state(engine.kv, 9), GMS_SLOT_IDLE);
    gms_close(engine.session);
}

/* Far more releases in one step than there are slots: those of earlier leases must not crowd out the others. */
static void test_many_releases_in_one_step(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0);
    uint64_t generation = 0;
    const gms_token token = gms_step_begin(engine.session);
    for (uint32_t slot = 0; slot < KV_SLOTS; slot++) {
        assert_int_equal(gms_slot_acquire(engine.kv, slot, &generation), GMS_OK);
        assert_int_equal(gms_slot_release(engine.kv, slot, generation, token), GMS_OK);
    }
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(gms_slot_acquire(engine.kv, 5, &generation), GMS_OK);
        assert_int_equal(gms_slot_release(engine.kv, 5, generation, token), GMS_OK);
    }
    assert_int_equal(generation, 1001);
    for (uint32_t slot = 0; slot < KV_SLOTS; slot++)
        assert_int_equal(slot_state(engine.kv, slot), GMS_SLOT_RELEASED);
    gms_step_complete(engine.session, token);
    for (uint32_t slot = 0; slot < KV_SLOTS; slot++)
        assert_int_equal(slot_state(engine.kv, slot), GMS_SLOT_IDLE);
    gms_close(engine.session);
}

/* The same from outside: the engine dies before the step is complete, and nobody is handed the slot. */
static void test_released_slot_of_the_dead_is_not_handed_out(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0), shadow = park_engine(f, 1);
    const uint64_t first = seal_slot(&engine, 0), second = seal_slot(&engine, 1);
    const gms_token done = gms_step_begin(engine.session), running = gms_step_begin(engine.session);
    assert_int_equal(gms_slot_release(engine.kv, 0, first, done), GMS_OK);
    assert_int_equal(gms_slot_release(engine.kv, 1, second, running), GMS_OK);
    gms_step_complete(engine.session, done);
    crash_engine(f, &engine);
    adopt_engine(f, &shadow, 1, false);
    uint64_t generation = 0;
    assert_int_equal(gms_slot_acquire(shadow.kv, 1, &generation), GMS_E_QUARANTINED);
    assert_int_equal(gms_slot_acquire(shadow.kv, 0, &generation), GMS_OK);
    assert_int_equal(generation, first + 1);
    assert_int_equal(shadow.adoption.quarantined, 1);
    gms_close(shadow.session);
}

static void test_goodbye_leaves_no_quarantine(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0), shadow = park_engine(f, 1);
    const uint64_t generation = seal_slot(&engine, 0);
    const gms_token token = gms_step_begin(engine.session);
    assert_int_equal(gms_slot_release(engine.kv, 0, generation, token), GMS_OK);
    gms_step_complete(engine.session, token);
    seal_slot(&engine, 1);
    gms_close(engine.session);
    fake_await_gone(&f->fake, 1);
    assert_true(FAKE_GET(fake_find(&f->fake, 1)->left));
    adopt_engine(f, &shadow, 1, true);
    assert_int_equal(shadow.adoption.quarantined, 0);
    assert_int_equal(shadow.adoption.adopted, 1);
    gms_close(shadow.session);
}

static void test_lost_ownership_is_told(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0);
    uint64_t generation = 0;
    assert_int_equal(gms_slot_acquire(engine.kv, 3, &generation), GMS_OK);
    struct gms_block block = block_of_slot(engine.kv, 3, generation + 1);
    assert_int_equal(gms_block_seal(engine.session, &block, 0), GMS_E_LOST_OWNERSHIP);
    block = block_of_slot(engine.kv, 5, 0); /* never leased */
    assert_int_equal(gms_block_seal(engine.session, &block, 0), GMS_E_LOST_OWNERSHIP);
    struct gms_directory *directory = &fake_find(&f->fake, 1)->directories[gms_pool_index(engine.kv)];
    gms_directory_set_word(directory, 3, gms_slot_word_make(GMS_SLOT_QUARANTINED, generation));
    block = block_of_slot(engine.kv, 3, generation);
    assert_int_equal(gms_block_seal(engine.session, &block, 0), GMS_E_LOST_OWNERSHIP);
    gms_close(engine.session);
}

static void test_nonsense_is_invalid(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0);
    uint64_t generation = 0;
    assert_int_equal(gms_slot_acquire(engine.kv, KV_SLOTS, &generation), GMS_E_INVALID);
    assert_int_equal(gms_slot_acquire(engine.kv, UINT32_MAX, &generation), GMS_E_INVALID);
    assert_int_equal(gms_slot_release(engine.kv, KV_SLOTS, 0, 0), GMS_E_INVALID);
    assert_int_equal(gms_slot_state(engine.kv, KV_SLOTS, &generation), GMS_SLOT_RETIRED);
    struct gms_block block = block_of_slot(engine.kv, 0, 1);
    block.part_count = 0;
    assert_int_equal(gms_block_seal(engine.session, &block, 0), GMS_E_INVALID);
    block.part_count = GMS_RECORD_PARTS + 1;
    assert_int_equal(gms_block_seal(engine.session, &block, 0), GMS_E_INVALID);
    block.part_count = 1;
    block.parts[0].pool = 0; /* there is none */
    assert_int_equal(gms_block_seal(engine.session, &block, 0), GMS_E_INVALID);
    block.parts[0].pool = GMS_MAX_POOLS;
    assert_int_equal(gms_block_seal(engine.session, &block, 0), GMS_E_INVALID);
    block = block_of_slot(engine.kv, KV_SLOTS, 1);
    assert_int_equal(gms_block_seal(engine.session, &block, 0), GMS_E_INVALID);
    gms_close(engine.session);
}

/* ------------------------------------------------------------------------------------------------ blocks ----- */

/* Every second slot is sealed, from 1 on; all are seen, however many are asked for at once. */
static void walk_many(struct engine *engine, uint32_t sealed)
{
    struct gms_block blocks[KV_SLOTS];
    uint8_t states[KV_SLOTS + 2];
    for (uint32_t capacity = 1; capacity <= KV_SLOTS; capacity++) {
        uint32_t cursor = 0, walked = 0, count = 0;
        while (gms_sealed_list(engine->kv, &cursor, blocks, capacity, &count) == GMS_OK) {
            assert_in_range(count, 1, capacity);
            for (uint32_t i = 0; i < count; i++)
                assert_int_equal(blocks[i].parts[0].slot, 2 * walked++ + 1);
        }
        assert_int_equal(count, 0);
        assert_int_equal(walked, sealed);
        assert_int_equal(gms_sealed_list(engine->kv, &cursor, blocks, capacity, &count), GMS_E_NOT_FOUND);
    }
    uint32_t cursor = 0, count = 0;
    assert_int_equal(gms_sealed_list(engine->kv, &cursor, blocks, 0, &count), GMS_E_INVALID);
    gms_slot_states(engine->kv, 1, KV_SLOTS + 1, states);
    for (uint32_t i = 0; i <= KV_SLOTS; i++)
        assert_int_equal(states[i], gms_slot_state(engine->kv, 1 + i, NULL)); /* the last ones do not exist */
    gms_slot_states(engine->kv, UINT32_MAX, 2, states);
    assert_int_equal(states[0], GMS_SLOT_RETIRED);
    assert_int_equal(states[1], GMS_SLOT_RETIRED);
}

static void test_lookup_finds_what_is_sealed_now(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0);
    struct gms_block found;
    uint64_t generations[KV_SLOTS];
    for (uint32_t slot = 0; slot < KV_SLOTS; slot++)
        generations[slot] = seal_slot(&engine, slot);
    for (uint32_t slot = 0; slot < KV_SLOTS; slot++) {
        const struct gms_block block = block_of_slot(engine.kv, slot, generations[slot]);
        assert_int_equal(gms_lookup(engine.session, block.hash, &found), GMS_OK);
        assert_memory_equal(&found, &block, sizeof block);
    }
    for (uint32_t slot = 0; slot < KV_SLOTS; slot += 2)
        assert_int_equal(gms_slot_release(engine.kv, slot, generations[slot], 0), GMS_OK);
    uint32_t cursor = 0, walked = 0;
    while (gms_sealed_next(engine.kv, &cursor, &found) == GMS_OK)
        assert_int_equal(found.parts[0].slot, 2 * walked++ + 1);
    assert_int_equal(walked, KV_SLOTS / 2);
    walk_many(&engine, KV_SLOTS / 2);
    for (uint32_t slot = 0; slot < KV_SLOTS; slot++) {
        const struct gms_block block = block_of_slot(engine.kv, slot, 0);
        assert_int_equal(gms_lookup(engine.session, block.hash, &found), slot % 2 == 0 ? GMS_E_NOT_FOUND : GMS_OK);
    }
    gms_close(engine.session);
}

static void test_same_hash_in_two_slots(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0);
    struct gms_block found, blocks[2];
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t generation = 0;
        assert_int_equal(gms_slot_acquire(engine.kv, 10 + i, &generation), GMS_OK);
        blocks[i] = block_of_slot(engine.kv, 10 + i, generation);
        memset(blocks[i].hash, 0, sizeof blocks[i].hash); /* the zero hash is a hash */
        blocks[i].hash[15] = 3;
        assert_int_equal(gms_block_seal(engine.session, &blocks[i], 0), GMS_OK);
    }
    assert_int_equal(gms_slot_release(engine.kv, 10, blocks[0].parts[0].generation, 0), GMS_OK);
    assert_int_equal(gms_lookup(engine.session, blocks[0].hash, &found), GMS_OK);
    assert_int_equal(found.parts[0].slot, 11);
    assert_int_equal(gms_slot_release(engine.kv, 11, blocks[1].parts[0].generation, 0), GMS_OK);
    assert_int_equal(gms_lookup(engine.session, blocks[0].hash, &found), GMS_E_NOT_FOUND);
    gms_close(engine.session);
}

static void test_hashes_that_begin_alike(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0);
    struct gms_block found, block = block_of_slot(engine.kv, 0, 0);
    for (uint32_t slot = 0; slot < 8; slot++) {
        assert_int_equal(gms_slot_acquire(engine.kv, slot, &block.parts[0].generation), GMS_OK);
        block.parts[0].slot = slot;
        block.hash[15] = (uint8_t)slot;
        assert_int_equal(gms_block_seal(engine.session, &block, 0), GMS_OK);
    }
    for (uint32_t slot = 0; slot < 8; slot++) {
        block.hash[15] = (uint8_t)slot;
        assert_int_equal(gms_lookup(engine.session, block.hash, &found), GMS_OK);
        assert_int_equal(found.parts[0].slot, slot);
    }
    block.hash[15] = 8;
    assert_int_equal(gms_lookup(engine.session, block.hash, &found), GMS_E_NOT_FOUND);
    gms_close(engine.session);
}

static void test_damaged_record_is_a_miss(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0);
    struct gms_block found, block = block_of_slot(engine.kv, 6, seal_slot(&engine, 6));
    struct gms_directory *directory = &fake_find(&f->fake, 1)->directories[gms_pool_index(engine.kv)];
    uint32_t cursor = 0;
    ((uint8_t *)gms_directory_record_words(directory, 6))[40] ^= 1;
    assert_int_equal(gms_lookup(engine.session, block.hash, &found), GMS_E_NOT_FOUND);
    assert_int_equal(gms_sealed_next(engine.kv, &cursor, &found), GMS_E_NOT_FOUND);
    assert_int_equal(gms_slot_release(engine.kv, 6, block.parts[0].generation, 0), GMS_OK);
    seal_slot(&engine, 6); /* and the slot is as good as new */
    assert_int_equal(gms_lookup(engine.session, block.hash, &found), GMS_OK);
    gms_close(engine.session);
}

/* A block with a page of KV and a recurrent state. */
static struct gms_block seal_both(struct engine *engine, uint32_t slot, uint32_t state_slot)
{
    struct gms_block block = block_of_slot(engine->kv, slot, 0);
    block.part_count = 2;
    block.parts[1] = (struct gms_part){.pool = gms_pool_index(engine->state), .slot = state_slot};
    assert_int_equal(gms_slot_acquire(engine->kv, slot, &block.parts[0].generation), GMS_OK);
    assert_int_equal(gms_slot_acquire(engine->state, state_slot, &block.parts[1].generation), GMS_OK);
    fill_slot(engine->kv, slot, KV_BLOCK_BYTES, 'k');
    fill_slot(engine->state, state_slot, STATE_BLOCK_BYTES, 's');
    assert_int_equal(gms_block_seal(engine->session, &block, 0), GMS_OK);
    return block;
}

static void test_spanning_block_ends_with_any_part(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0);
    struct gms_block found;
    const struct gms_block block = seal_both(&engine, 0, 7);
    assert_int_equal(gms_lookup(engine.session, block.hash, &found), GMS_OK);
    assert_memory_equal(&found, &block, sizeof block);
    assert_int_equal(gms_slot_release(engine.state, 7, block.parts[1].generation, 0), GMS_OK);
    assert_int_equal(gms_lookup(engine.session, block.hash, &found), GMS_E_NOT_FOUND);
    assert_int_equal(slot_state(engine.kv, 0), GMS_SLOT_SEALED);
    assert_int_equal(gms_slot_release(engine.kv, 0, block.parts[0].generation, 0), GMS_OK);
    gms_close(engine.session);
}

/* ---------------------------------------------------------------------------------------------- adoption ----- */

static void test_successor_adopts_what_was_sealed(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0), shadow = park_engine(f, 1);
    struct gms_block found;
    for (uint32_t slot = 0; slot < 10; slot++)
        seal_slot(&engine, slot);
    const struct gms_block both = seal_both(&engine, 20, 5);
    uint64_t generation = 0;
    assert_int_equal(gms_slot_acquire(engine.kv, 12, &generation), GMS_OK); /* a tail block, half written */
    crash_engine(f, &engine);
    adopt_engine(f, &shadow, 1, false);
    assert_int_equal(shadow.promotion.source_incarnation, 1);
    assert_int_equal(shadow.adoption.sealed_here, 12);
    assert_int_equal(shadow.adoption.bad_here, 0);
    assert_int_equal(shadow.adoption.adopted, 12);
    assert_int_equal(shadow.adoption.quarantined, 1);
    assert_int_equal(shadow.adoption.idle, KV_SLOTS + STATE_SLOTS - 13);
    for (uint32_t slot = 0; slot < 10; slot++) {
        const struct gms_block block = block_of_slot(shadow.kv, slot, 1);
        assert_int_equal(gms_lookup(shadow.session, block.hash, &found), GMS_OK);
        assert_memory_equal(&found, &block, sizeof block);
        assert_int_equal(((uint8_t *)gms_pool_address(shadow.kv))[slot * KV_BLOCK_BYTES], slot + 1);
    }
    memset(&found, 0, sizeof found);
    assert_int_equal(gms_lookup(shadow.session, both.hash, &found), GMS_OK);
    assert_int_equal(found.part_count, 2);
    assert_int_equal(gms_slot_acquire(shadow.kv, 12, &generation), GMS_E_QUARANTINED);
    /* Adopted blocks are released and leased like one's own. */
    assert_int_equal(gms_slot_release(shadow.kv, 3, 1, 0), GMS_OK);
    assert_int_equal(gms_slot_acquire(shadow.kv, 3, &generation), GMS_OK);
    assert_int_equal(generation, 2);
    gms_close(shadow.session);
}

static void test_changed_contents_are_refused_when_verifying(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0), shadow = park_engine(f, 1);
    struct gms_block found;
    for (uint32_t slot = 0; slot < 4; slot++)
        seal_slot(&engine, slot);
    seal_both(&engine, 20, 5);
    ((uint8_t *)gms_pool_address(engine.kv))[2 * KV_BLOCK_BYTES + 100] ^= 1; /* poisoned after the seal */
    ((uint8_t *)gms_pool_address(engine.state))[5 * STATE_BLOCK_BYTES] ^= 1; /* one part of two */
    crash_engine(f, &engine);
    adopt_engine(f, &shadow, 1, false);
    assert_int_equal(shadow.adoption.sealed_here, 6);
    assert_int_equal(shadow.adoption.bad_here, 3);
    assert_int_equal(shadow.adoption.adopted, 3);
    assert_int_equal(slot_state(shadow.kv, 2), GMS_SLOT_QUARANTINED);
    assert_int_equal(slot_state(shadow.kv, 20), GMS_SLOT_QUARANTINED);
    assert_int_equal(slot_state(shadow.state, 5), GMS_SLOT_QUARANTINED);
    const struct gms_block bad = block_of_slot(shadow.kv, 2, 1), good = block_of_slot(shadow.kv, 1, 1);
    assert_int_equal(gms_lookup(shadow.session, bad.hash, &found), GMS_E_NOT_FOUND);
    assert_int_equal(gms_lookup(shadow.session, good.hash, &found), GMS_OK);
    gms_close(shadow.session);
}

static void test_changed_contents_pass_without_verifying(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0), shadow = park_engine(f, 1);
    seal_slot(&engine, 2);
    ((uint8_t *)gms_pool_address(engine.kv))[2 * KV_BLOCK_BYTES + 100] ^= 1;
    crash_engine(f, &engine);
    adopt_engine(f, &shadow, 1, false);
    assert_int_equal(shadow.adoption.sealed_here, 1);
    assert_int_equal(shadow.adoption.bad_here, 0);
    assert_int_equal(shadow.adoption.adopted, 1);
    gms_close(shadow.session);
}

/* Damage between classification and the successor's own look. */
static void test_damaged_copy_is_refused(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_classification counts;
    struct engine engine = serving_engine(f, 0), shadow = park_engine(f, 1);
    seal_slot(&engine, 2);
    seal_slot(&engine, 3);
    crash_engine(f, &engine);
    fake_promote(&f->fake, 1, 2, false, &counts);
    assert_int_equal(counts.adoptable, 2);
    struct gms_directory *directory = &fake_find(&f->fake, 2)->directories[gms_pool_index(shadow.kv)];
    ((uint8_t *)gms_directory_record_words(directory, 2))[40] ^= 1;
    assert_ok(gms_wait_promotion(shadow.session, UNIT_PATIENCE_MS, &shadow.promotion, &error));
    assert_ok(gms_adopt(shadow.session, &shadow.adoption, &error));
    assert_int_equal(shadow.adoption.bad_here, 1);
    assert_int_equal(shadow.adoption.adopted, 1);
    assert_int_equal(slot_state(shadow.kv, 2), GMS_SLOT_QUARANTINED);
    gms_close(shadow.session);
}

static void test_failed_adoption_can_be_repeated(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_classification counts;
    struct engine engine = serving_engine(f, 0), shadow = park_engine(f, 1);
    uint64_t generation;
    seal_slot(&engine, 2);
    crash_engine(f, &engine);
    fake_promote(&f->fake, 1, 2, false, &counts);
    assert_status(gms_adopt(shadow.session, &shadow.adoption, &error), GMS_E_REFUSED); /* not told yet */
    assert_ok(gms_wait_promotion(shadow.session, UNIT_PATIENCE_MS, &shadow.promotion, &error));
    FAKE_SET(f->fake.refuse = GMS_E_EXPIRED);
    FAKE_SET(f->fake.refuse_times = 1);
    assert_int_equal(gms_adopt(shadow.session, &shadow.adoption, &error), GMS_E_EXPIRED);
    assert_int_equal(gms_slot_acquire(shadow.kv, 9, &generation), GMS_E_REFUSED);
    assert_ok(gms_adopt(shadow.session, &shadow.adoption, &error));
    assert_int_equal(shadow.adoption.adopted, 1);
    assert_int_equal(FAKE_GET(f->fake.seen.fields[0]), shadow.promotion.epoch);
    assert_int_equal(FAKE_GET(f->fake.seen.fields[1]), 1);
    gms_close(shadow.session);
}

/* ------------------------------------------------------------------------------------------------ property --- */

static uint64_t random_state;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % limit);
}

/* The library against the plainest model of the rules: what each slot is, and under which step it was given back. */
struct model {
    enum gms_slot_state state[KV_SLOTS];
    uint64_t generation[KV_SLOTS], token[KV_SLOTS];
    uint64_t begun, completed;
};

static void model_release(struct model *m, uint32_t slot, uint64_t token)
{
    m->state[slot] = token <= m->completed ? GMS_SLOT_IDLE : GMS_SLOT_RELEASED;
    m->token[slot] = token;
}

static void play(struct engine *engine, struct model *m)
{
    const uint32_t slot = random_below(KV_SLOTS);
    const uint64_t token = m->completed + random_below((uint32_t)(m->begun - m->completed + 1));
    uint64_t generation = 0;
    switch (random_below(14) == 0 ? 1 : random_below(5) == 1 ? 0 : 2 + random_below(5)) {
    case 0:
        assert_int_equal(gms_step_begin(engine->session), ++m->begun);
        break;
    case 1:
        gms_step_complete(engine->session, token);
        m->completed = token;
        for (uint32_t i = 0; i < KV_SLOTS; i++)
            if (m->state[i] == GMS_SLOT_RELEASED && m->token[i] <= token)
                m->state[i] = GMS_SLOT_IDLE;
        break;
    case 2:
    case 3:
        if (gms_slot_acquire(engine->kv, slot, &generation) == GMS_OK) {
            assert_true(m->state[slot] == GMS_SLOT_IDLE || m->state[slot] == GMS_SLOT_RELEASED);
            assert_true(generation == ++m->generation[slot]);
            m->state[slot] = GMS_SLOT_LEASED;
        } else {
            assert_true(m->state[slot] == GMS_SLOT_LEASED || m->state[slot] == GMS_SLOT_SEALED);
        }
        break;
    case 4: {
        const struct gms_block block = block_of_slot(engine->kv, slot, m->generation[slot]);
        const gms_status status = gms_block_seal(engine->session, &block, token);
        if (token > m->completed) {
            assert_int_equal(status, GMS_E_NOT_DONE);
        } else if (m->state[slot] == GMS_SLOT_LEASED) {
            assert_int_equal(status, GMS_OK);
            m->state[slot] = GMS_SLOT_SEALED;
        } else {
            assert_int_equal(status, GMS_E_LOST_OWNERSHIP);
        }
        break;
    }
    default: {
        const gms_status status = gms_slot_release(engine->kv, slot, m->generation[slot], token);
        const bool held = m->state[slot] == GMS_SLOT_LEASED || m->state[slot] == GMS_SLOT_SEALED;
        assert_int_equal(status == GMS_OK, held);
        if (held)
            model_release(m, slot, token);
        break;
    }
    }
}

static void test_random_steps_and_slots(void **state)
{
    struct libgms_fixture *f = *state;
    const char *given = getenv("GMS_TEST_SEED");
    struct model model = {0};
    random_state = given != NULL ? strtoull(given, NULL, 0) : gms_clock_ns();
    print_message("GMS_TEST_SEED=%llu\n", (unsigned long long)random_state);
    struct engine engine = serving_engine(f, 0);
    for (int step = 0; step < 20000; step++) {
        play(&engine, &model);
        for (uint32_t each = 0; each < KV_SLOTS; each++) {
            uint64_t generation = 0;
            if (gms_slot_state(engine.kv, each, &generation) == model.state[each] &&
                generation == model.generation[each])
                continue;
            print_error("step %d: slot %u is not as it should be\n", step, each);
            fail();
        }
        const uint32_t slot = random_below(KV_SLOTS);
        struct gms_block found;
        const struct gms_block block = block_of_slot(engine.kv, slot, 0);
        assert_int_equal(gms_lookup(engine.session, block.hash, &found) == GMS_OK,
                         model.state[slot] == GMS_SLOT_SEALED);
    }
    gms_close(engine.session);
}

/* ------------------------------------------------------------------------------------------------- threads --- */

enum { THREADS = 3, TURNS = 3000 };

struct worker {
    struct engine *engine;
    uint32_t first_slot;
    unsigned wrong;
};

static void *work(void *context)
{
    struct worker *worker = context;
    struct engine *engine = worker->engine;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        const uint32_t slot = worker->first_slot + turn % 4;
        uint64_t generation = 0;
        struct gms_block found;
        const gms_token token = gms_step_begin(engine->session);
        worker->wrong += gms_slot_acquire(engine->kv, slot, &generation) != GMS_OK;
        struct gms_block block = block_of_slot(engine->kv, slot, generation);
        worker->wrong += gms_block_seal(engine->session, &block, 0) != GMS_OK;
        worker->wrong +=
            gms_lookup(engine->session, block.hash, &found) != GMS_OK || found.parts[0].generation != generation;
        worker->wrong += gms_slot_release(engine->kv, slot, generation, token) != GMS_OK;
        worker->wrong += gms_lookup(engine->session, block.hash, &found) != GMS_E_NOT_FOUND;
        if (turn % 3 == 0)
            gms_step_complete(engine->session, token);
        gms_progress(engine->session);
    }
    return NULL;
}

static void test_threads_share_a_session(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = serving_engine(f, 0);
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.engine = &engine, .first_slot = 8 * i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
    }
    gms_step_complete(engine.session, UINT64_MAX);
    for (uint32_t slot = 0; slot < KV_SLOTS; slot++)
        assert_int_equal(slot_state(engine.kv, slot), GMS_SLOT_IDLE);
    gms_close(engine.session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, libgms_setup, libgms_teardown)
        T(test_slots_are_shut_until_adoption),
        T(test_seal_waits_for_its_step),
        T(test_released_slot_waits_for_its_step),
        T(test_each_release_waits_for_its_own_step),
        T(test_many_releases_in_one_step),
        T(test_released_slot_of_the_dead_is_not_handed_out),
        T(test_goodbye_leaves_no_quarantine),
        T(test_lost_ownership_is_told),
        T(test_nonsense_is_invalid),
        T(test_lookup_finds_what_is_sealed_now),
        T(test_same_hash_in_two_slots),
        T(test_hashes_that_begin_alike),
        T(test_damaged_record_is_a_miss),
        T(test_spanning_block_ends_with_any_part),
        T(test_successor_adopts_what_was_sealed),
        T(test_changed_contents_are_refused_when_verifying),
        cmocka_unit_test_setup_teardown(test_changed_contents_pass_without_verifying, libgms_setup_unverified,
                                        libgms_teardown),
        T(test_damaged_copy_is_refused),
        T(test_failed_adoption_can_be_repeated),
        T(test_random_steps_and_slots),
        T(test_threads_share_a_session),
#undef T
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
