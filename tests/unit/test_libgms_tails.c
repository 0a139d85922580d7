/* SPDX-License-Identifier: Apache-2.0
 *
 * Unfinished blocks through libgms: noted by one engine, taken up by the next, and everything that is no such block
 * refused.
 */
#include "libgms_support.h"

#include "directory/tail.h"

enum {
    PLANES = 4,
    POSITION_BYTES = 16,
    PLANE_BYTES = KV_BLOCK_BYTES / PLANES,
    POSITIONS = PLANE_BYTES / POSITION_BYTES
};

static const struct gms_tail_layout layout = {
    .planes = PLANES, .position_bytes = POSITION_BYTES, .plane_bytes = PLANE_BYTES};
static const uint8_t parent[GMS_BLOCK_HASH_BYTES] = {1, 2, 3};

static uint8_t *position(const gms_pool *pool, uint32_t slot, uint32_t plane, uint32_t at)
{
    return (uint8_t *)gms_pool_address(pool) + (size_t)slot * KV_BLOCK_BYTES + plane * PLANE_BYTES +
           at * POSITION_BYTES;
}

static uint8_t byte_of(uint32_t slot, uint32_t plane, uint32_t at)
{
    return (uint8_t)(1 + slot * 31 + plane * 7 + at);
}

static void write_position(const gms_pool *pool, uint32_t slot, uint32_t at)
{
    for (uint32_t plane = 0; plane < PLANES; plane++)
        memset(position(pool, slot, plane, at), byte_of(slot, plane, at), POSITION_BYTES);
}

static struct gms_tail_entry entry_of(uint32_t slot, uint32_t count)
{
    return (struct gms_tail_entry){.hash = {(uint8_t)(slot + 1), (uint8_t)count}, .token_count = count};
}

/* Writes up to `count` positions and says so step by step. */
static uint64_t fill(struct engine *engine, uint32_t slot, uint32_t count)
{
    uint64_t generation = 0;
    assert_int_equal(gms_slot_acquire(engine->kv, slot, &generation), GMS_OK);
    for (uint32_t at = 0; at < count; at++) {
        const gms_token token = gms_step_begin(engine->session);
        const struct gms_tail_entry entry = entry_of(slot, at + 1);
        write_position(engine->kv, slot, at);
        assert_int_equal(gms_tail_note(engine->kv, slot, generation, parent, &entry, token), GMS_E_NOT_DONE);
        gms_step_complete(engine->session, token);
        assert_int_equal(gms_tail_note(engine->kv, slot, generation, parent, &entry, token), GMS_OK);
    }
    return generation;
}

static struct engine begin(struct libgms_fixture *f)
{
    struct gms_error error;
    struct engine engine = serving_engine(f, 0);
    assert_ok(gms_tail_layout_set(engine.kv, &layout, &error));
    return engine;
}

/* The next engine after `first`, which is gone then. */
static struct engine succeed(struct libgms_fixture *f, struct engine *first, int32_t id)
{
    struct gms_error error;
    struct engine second = park_engine(f, id);
    assert_ok(gms_tail_layout_set(second.kv, &layout, &error));
    const uint64_t source = first->member.incarnation;
    crash_engine(f, first);
    adopt_engine(f, &second, source, false);
    return second;
}

static uint32_t list(const struct engine *engine, struct gms_tail *ret_tails, uint32_t capacity)
{
    uint32_t cursor = 0, count = 0;
    while (count < capacity && gms_tail_next(engine->kv, &cursor, &ret_tails[count]) == GMS_OK)
        count++;
    struct gms_tail rest;
    assert_int_equal(gms_tail_next(engine->kv, &cursor, &rest), GMS_E_NOT_FOUND);
    return count;
}

/* Three tokens of a tail in slot 5, which the engine that is returned has taken over; its slot 20 is leased for them.
 */
static struct engine succeed_to_a_tail(struct libgms_fixture *f, struct gms_tail *ret_tail, uint64_t *ret_mine)
{
    struct engine first = begin(f);
    (void)fill(&first, 5, 3);
    struct engine second = succeed(f, &first, 1);
    assert_int_equal(list(&second, ret_tail, 1), 1);
    assert_int_equal(gms_slot_acquire(second.kv, 20, ret_mine), GMS_OK);
    return second;
}

/* ---------------------------------------------------------------------------------------------- the good way --- */

static void test_a_successor_goes_on_in_the_middle(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine first = begin(f);
    struct gms_error error;
    const uint64_t generation = fill(&first, 5, 6);
    (void)fill(&first, 9, 1);
    write_position(first.kv, 5, 6); /* a step that was not complete: it is not ours to believe */
    memset(position(first.kv, 5, 0, 6), 0xee, POSITION_BYTES);
    struct engine second = succeed(f, &first, 1);
    struct gms_tail tails[4];
    assert_int_equal(list(&second, tails, 4), 2);
    assert_int_equal(tails[0].slot, 5);
    assert_int_equal(tails[0].generation, generation);
    assert_memory_equal(tails[0].parent_hash, parent, sizeof parent);
    assert_int_equal(tails[0].entry_count, 3);
    for (uint32_t i = 0; i < 3; i++) { /* the longest first */
        const struct gms_tail_entry expected = entry_of(5, 6 - i);
        assert_int_equal(tails[0].entries[i].token_count, 6 - i);
        assert_memory_equal(tails[0].entries[i].hash, expected.hash, sizeof expected.hash);
    }
    assert_int_equal(tails[1].slot, 9);
    assert_int_equal(tails[1].entry_count, 1);

    uint64_t mine = 0;
    assert_int_equal(gms_slot_acquire(second.kv, 5, &mine), GMS_E_QUARANTINED); /* the source stays where it is */
    assert_int_equal(gms_slot_acquire(second.kv, 20, &mine), GMS_OK);
    fill_slot(second.kv, 20, KV_BLOCK_BYTES, 0x55);
    for (uint32_t entry = 0; entry < 2; entry++) { /* the shorter one too: a client may know fewer tokens */
        uint64_t lease = mine;
        const uint32_t slot = entry == 0 ? 20 : 21, count = 6 - entry;
        if (entry == 1)
            assert_int_equal(gms_slot_acquire(second.kv, slot, &lease), GMS_OK);
        fill_slot(second.kv, slot, KV_BLOCK_BYTES, 0x55);
        assert_ok(gms_tail_salvage(second.kv, &tails[0], entry, slot, lease, NULL, NULL, &error));
        for (uint32_t plane = 0; plane < PLANES; plane++)
            for (uint32_t at = 0; at < POSITIONS; at++)
                assert_int_equal(*position(second.kv, slot, plane, at), at < count ? byte_of(5, plane, at) : 0x55);
    }
    assert_int_equal(slot_state(second.kv, 5), GMS_SLOT_QUARANTINED);

    /* An ordinary leased slot with that progress: it goes on, and the next successor finds it. */
    assert_int_equal(slot_state(second.kv, 20), GMS_SLOT_LEASED);
    const gms_token token = gms_step_begin(second.session);
    struct gms_tail_entry next = entry_of(5, 7);
    write_position(second.kv, 20, 6);
    gms_step_complete(second.session, token);
    assert_int_equal(gms_tail_note(second.kv, 20, mine, parent, &next, token), GMS_OK);
    struct engine third = succeed(f, &second, 2);
    assert_int_equal(list(&third, tails, 4), 2); /* what the first had left in quarantine is nobody's any more */
    assert_int_equal(tails[0].slot, 20);
    assert_int_equal(tails[0].entry_count, 2);
    assert_int_equal(tails[0].entries[0].token_count, 7);
    assert_int_equal(tails[0].entries[1].token_count, 6);
    assert_int_equal(tails[1].slot, 21);
    gms_close(third.session);
}

struct copier {
    uint32_t calls;
    int answer;
    gms_pool *pool;
    uint32_t lease_anew; /* during the copy; UINT32_MAX: not */
};

static int copy(void *context, void *to, const void *from, uint64_t pitch_bytes, uint64_t width_bytes, uint64_t rows)
{
    struct copier *copier = context;
    copier->calls++;
    assert_int_equal(pitch_bytes, PLANE_BYTES);
    assert_int_equal(width_bytes, 3 * POSITION_BYTES);
    assert_int_equal(rows, PLANES);
    for (uint64_t row = 0; row < rows; row++)
        memcpy((char *)to + row * pitch_bytes, (const char *)from + row * pitch_bytes, width_bytes);
    if (copier->lease_anew != UINT32_MAX) {
        uint64_t generation;
        assert_int_equal(gms_slot_acquire(copier->pool, copier->lease_anew, &generation), GMS_OK);
    }
    return copier->answer;
}

static void test_by_the_engines_own_copier(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_tail tail;
    uint64_t mine = 0;
    struct engine second = succeed_to_a_tail(f, &tail, &mine);
    struct copier copier = {.pool = second.kv, .answer = 77, .lease_anew = UINT32_MAX};
    assert_status(gms_tail_salvage(second.kv, &tail, 0, 20, mine, copy, &copier, &error), GMS_E_SYSTEM);
    assert_text_has("77");
    copier.answer = 0;
    assert_ok(gms_tail_salvage(second.kv, &tail, 0, 20, mine, copy, &copier, &error));
    assert_int_equal(copier.calls, 2);
    for (uint32_t plane = 0; plane < PLANES; plane++)
        for (uint32_t at = 0; at < 3; at++)
            assert_int_equal(*position(second.kv, 20, plane, at), byte_of(5, plane, at));
    /* The copy may be under way still: nothing is noted of it until the engine's next step says so. */
    struct engine third = succeed(f, &second, 2);
    assert_int_equal(list(&third, &tail, 1), 0);
    gms_close(third.session);
}

/* Without a layout whole slots are copied, and only where contents are not to be checked. */
static void test_without_a_layout(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine first = serving_engine(f, 0);
    uint64_t generation = 0;
    assert_int_equal(gms_slot_acquire(first.kv, 5, &generation), GMS_OK);
    fill_slot(first.kv, 5, KV_BLOCK_BYTES, 0x33);
    const struct gms_tail_entry entry = entry_of(5, 3);
    assert_int_equal(gms_tail_note(first.kv, 5, generation, parent, &entry, 0), GMS_OK);
    struct engine second = park_engine(f, 1);
    const uint64_t source = first.member.incarnation;
    const bool verified = first.member.kv_verify_full != 0;
    crash_engine(f, &first);
    adopt_engine(f, &second, source, false);
    struct gms_tail tail;
    assert_int_equal(list(&second, &tail, 1), verified ? 0 : 1);
    if (!verified) {
        assert_int_equal(gms_slot_acquire(second.kv, 20, &generation), GMS_OK);
        assert_ok(gms_tail_salvage(second.kv, &tail, 0, 20, generation, NULL, NULL, &error));
        assert_int_equal(*position(second.kv, 20, PLANES - 1, POSITIONS - 1), 0x33);
    }
    gms_close(second.session);
}

/* -------------------------------------------------------------------------------------------------- refusals --- */

static void test_layouts_that_are_none(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine engine = serving_engine(f, 0);
    static const struct gms_tail_layout wrong[] = {
        {0, 16, 64}, {4, 0, 64}, {4, 65, 64}, {4, 16, KV_BLOCK_BYTES / 4 + 1}, {UINT32_MAX, 16, 1 << 20}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_status(gms_tail_layout_set(engine.kv, &wrong[i], &error), GMS_E_INVALID);
    assert_ok(gms_tail_layout_set(engine.kv, &layout, &error));
    uint64_t generation = 0;
    assert_int_equal(gms_slot_acquire(engine.kv, 5, &generation), GMS_OK);
    struct gms_tail_entry entry = entry_of(5, POSITIONS);
    assert_int_equal(gms_tail_note(engine.kv, 5, generation, parent, &entry, 0), GMS_OK);
    entry.token_count++; /* more than a plane has */
    assert_int_equal(gms_tail_note(engine.kv, 5, generation, parent, &entry, 0), GMS_E_INVALID);
    assert_int_equal(gms_tail_note(engine.kv, 5, generation + 1, parent, &entry, 0), GMS_E_INVALID);
    entry.token_count = 3;
    assert_int_equal(gms_tail_note(engine.kv, 5, generation + 1, parent, &entry, 0), GMS_E_STALE);
    assert_int_equal(gms_tail_note(engine.kv, KV_SLOTS, generation, parent, &entry, 0), GMS_E_INVALID);
    gms_close(engine.session);
}

static void test_nothing_before_adoption(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine first = begin(f), second = park_engine(f, 1);
    (void)fill(&first, 5, 3);
    assert_ok(gms_tail_layout_set(second.kv, &layout, &error));
    /* The first lives and has its slot. */
    uint32_t cursor = 0;
    struct gms_tail tail = {.pool = gms_pool_index(second.kv), .slot = 5, .generation = 1, .entry_count = 1};
    memcpy(tail.parent_hash, parent, sizeof parent);
    tail.entries[0] = entry_of(5, 3);
    assert_int_equal(gms_tail_next(second.kv, &cursor, &tail), GMS_E_REFUSED);
    assert_status(gms_tail_salvage(second.kv, &tail, 0, 20, 1, NULL, NULL, &error), GMS_E_REFUSED);
    assert_int_equal(gms_tail_note(second.kv, 20, 1, parent, &tail.entries[0], 0), GMS_E_REFUSED);
    /* Dead, fenced and classified, but not adopted yet. */
    struct gms_classification counts;
    const uint64_t source = first.member.incarnation;
    crash_engine(f, &first);
    fake_promote(&f->fake, source, second.member.incarnation, false, &counts);
    assert_ok(gms_wait_promotion(second.session, UNIT_PATIENCE_MS, &second.promotion, &error));
    assert_status(gms_tail_salvage(second.kv, &tail, 0, 20, 1, NULL, NULL, &error), GMS_E_REFUSED);
    gms_close(second.session);
}

static void test_what_is_no_tail_is_refused(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct engine first = begin(f);
    (void)fill(&first, 5, 3);
    uint64_t other = 0, mine = 0;
    assert_int_equal(gms_slot_acquire(first.kv, 6, &other), GMS_OK); /* in quarantine later, and nothing said of it */
    seal_slot(&first, 7);
    struct engine second = succeed(f, &first, 1);
    struct gms_tail tail, wrong;
    assert_int_equal(list(&second, &tail, 1), 1);
    /* A slot of one's own first. */
    assert_status(gms_tail_salvage(second.kv, &tail, 0, 20, 1, NULL, NULL, &error), GMS_E_REFUSED);
    assert_int_equal(gms_slot_acquire(second.kv, 20, &mine), GMS_OK);
    assert_status(gms_tail_salvage(second.kv, &tail, 0, 20, mine + 1, NULL, NULL, &error), GMS_E_REFUSED);
    assert_status(gms_tail_salvage(second.kv, &tail, 0, 7, 1, NULL, NULL, &error), GMS_E_REFUSED); /* sealed */
    assert_status(gms_tail_salvage(second.kv, &tail, 0, 5, tail.generation, NULL, NULL, &error), GMS_E_REFUSED);
    static const struct {
        const char *what;
        gms_status expected;
    } cases[] = {{"slot", GMS_E_NOT_FOUND}, {"generation", GMS_E_STALE}, {"parent", GMS_E_NOT_FOUND},
                 {"hash", GMS_E_NOT_FOUND}, {"longer", GMS_E_NOT_FOUND}, {"range", GMS_E_INVALID},
                 {"entry", GMS_E_INVALID},  {"pool", GMS_E_INVALID},     {"sealed", GMS_E_STALE},
                 {"entries", GMS_E_INVALID}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t entry = 0;
        wrong = tail;
        if (strcmp(cases[i].what, "slot") == 0)
            wrong.slot = 6, wrong.generation = other;
        else if (strcmp(cases[i].what, "generation") == 0)
            wrong.generation++;
        else if (strcmp(cases[i].what, "parent") == 0)
            wrong.parent_hash[0] ^= 1;
        else if (strcmp(cases[i].what, "hash") == 0)
            wrong.entries[0].hash[15] ^= 1;
        else if (strcmp(cases[i].what, "longer") == 0)
            wrong.entries[0].token_count++;
        else if (strcmp(cases[i].what, "range") == 0)
            wrong.slot = KV_SLOTS;
        else if (strcmp(cases[i].what, "entry") == 0)
            entry = tail.entry_count;
        else if (strcmp(cases[i].what, "pool") == 0)
            wrong.pool = gms_pool_index(second.state);
        else if (strcmp(cases[i].what, "entries") == 0)
            wrong.entry_count = GMS_TAIL_ENTRIES + 1;
        else
            wrong.slot = 7, wrong.generation = 1;
        assert_status(gms_tail_salvage(second.kv, &wrong, entry, 20, mine, NULL, NULL, &error), cases[i].expected);
    }
    assert_ok(gms_tail_salvage(second.kv, &tail, 0, 20, mine, NULL, NULL, &error));
    gms_close(second.session);
}

static struct gms_directory *directory_of(struct libgms_fixture *f, uint64_t incarnation, const gms_pool *pool)
{
    return &fake_find(&f->fake, incarnation)->directories[gms_pool_index(pool)];
}

/* Back from quarantine the slot still has what was left there, until somebody leases it. */
static void test_a_slot_that_came_back(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_tail tail;
    uint64_t mine = 0, anew = 0;
    struct engine second = succeed_to_a_tail(f, &tail, &mine);
    struct gms_directory *directory = directory_of(f, second.member.incarnation, second.kv);
    gms_slot_word word = gms_directory_word(directory, 5), next = word;
    assert_int_equal(gms_slot_step(word, GMS_SLOT_EVENT_RECLAIM, tail.generation, &next), GMS_OK);
    gms_directory_set_word(directory, 5, next);
    assert_int_equal(list(&second, &(struct gms_tail){0}, 1), 0); /* not listed any more: it may be handed out */
    assert_ok(gms_tail_salvage(second.kv, &tail, 0, 20, mine, NULL, NULL, &error));
    struct copier copier = {.pool = second.kv, .lease_anew = 5}; /* in the middle of the copy */
    assert_int_equal(gms_slot_acquire(second.kv, 21, &mine), GMS_OK);
    assert_status(gms_tail_salvage(second.kv, &tail, 0, 21, mine, copy, &copier, &error), GMS_E_STALE);
    assert_text_has("while it was being copied");
    assert_int_equal(gms_slot_state(second.kv, 5, &anew), GMS_SLOT_LEASED);
    assert_status(gms_tail_salvage(second.kv, &tail, 0, 21, mine, NULL, NULL, &error), GMS_E_STALE);
    assert_int_equal(gms_slot_release(second.kv, 5, anew, 0), GMS_OK); /* idle again, at another generation */
    assert_status(gms_tail_salvage(second.kv, &tail, 0, 21, mine, NULL, NULL, &error), GMS_E_STALE);
    gms_close(second.session);
}

/* A record that is damaged after the ranks have agreed is not there any more. */
static void test_a_damaged_record(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    struct gms_tail tail;
    uint64_t mine = 0;
    struct engine second = succeed_to_a_tail(f, &tail, &mine);
    struct gms_directory *directory = directory_of(f, second.member.incarnation, second.kv);
    assert_int_equal(gms_directory_drop_tails(directory), 1);
    assert_status(gms_tail_salvage(second.kv, &tail, 0, 20, mine, NULL, NULL, &error), GMS_E_NOT_FOUND);
    assert_int_equal(list(&second, &tail, 1), 0);
    gms_close(second.session);
}

/* ------------------------------------------------------------------------------------------------- contents ---- */

/* With kv.verify = full: a byte that is not what was noted costs the entries that it is part of, and no others. */
static void test_poisoned_contents(void **state)
{
    struct libgms_fixture *f = *state;
    struct gms_error error;
    for (uint32_t at = 0; at < 7; at++) {
        struct engine first = at == 0 ? begin(f) : park_engine(f, (int32_t)(2 * at) % 8);
        if (at > 0) {
            adopt_engine(f, &first, 0, false);
            assert_ok(gms_tail_layout_set(first.kv, &layout, &error));
        }
        const bool verified = first.member.kv_verify_full != 0;
        (void)fill(&first, 5, 6); /* noted: 4, 5, 6 */
        position(first.kv, 5, at % PLANES, at)[at] ^= 0x10;
        struct engine second = succeed(f, &first, (int32_t)(2 * at + 1) % 8);
        struct gms_tail tail;
        /* Position p is in all entries of more than p. */
        const uint32_t expected = !verified || at >= 6 ? 3 : at >= 5 ? 2 : at >= 4 ? 1 : 0;
        assert_int_equal(list(&second, &tail, 1), expected > 0);
        if (expected > 0)
            assert_int_equal(tail.entry_count, expected);
        gms_close(second.session);
        fake_await_gone(&f->fake, second.member.incarnation);
        fake_forget_clients(&f->fake);
    }
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, libgms_setup, libgms_teardown)
#define U(test) cmocka_unit_test_setup_teardown(test, libgms_setup_unverified, libgms_teardown)
    const struct CMUnitTest tests[] = {
        T(test_a_successor_goes_on_in_the_middle),
        U(test_a_successor_goes_on_in_the_middle),
        T(test_by_the_engines_own_copier),
        T(test_without_a_layout),
        U(test_without_a_layout),
        T(test_layouts_that_are_none),
        T(test_nothing_before_adoption),
        T(test_what_is_no_tail_is_refused),
        T(test_a_slot_that_came_back),
        T(test_a_damaged_record),
        T(test_poisoned_contents),
        U(test_poisoned_contents),
    };
    return cmocka_run_group_tests_name("libgms_tails", tests, NULL, NULL);
}
