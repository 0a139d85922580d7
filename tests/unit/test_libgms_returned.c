/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes back from quarantine, and invariant 10: an engine's allocator makes the same choices with and without
 * libgms.
 */
#include "libgms_support.h"

#include "directory/layout.h"

/* ------------------------------------------------------------------------------------------------- returned ---- */

static uint32_t place_of(const struct engine *engine)
{
    return gms_pool_index(engine->kv);
}

/* As the coordinator returns a slot on this rank: the word first. */
static void free_here(struct libgms_fixture *f, const struct engine *engine, uint32_t slot)
{
    pthread_mutex_lock(&f->fake.lock);
    struct gms_directory *directory = &fake_find(&f->fake, engine->member.incarnation)->directories[place_of(engine)];
    const gms_slot_word word = gms_directory_word(directory, slot);
    gms_slot_word next = word;
    assert_int_equal(gms_slot_step(word, GMS_SLOT_EVENT_RECLAIM, gms_slot_word_generation(word), &next), GMS_OK);
    assert_true(gms_directory_replace_word(directory, slot, word, next));
    pthread_mutex_unlock(&f->fake.lock);
}

static void tell(struct libgms_fixture *f, const struct engine *engine, uint64_t incarnation, uint32_t first,
                 uint32_t slots, const uint8_t *bitmap, uint32_t bytes)
{
    struct gms_message message = {.type = GMS_MESSAGE_RECLAIMED};
    message.reclaimed.incarnation = incarnation;
    message.reclaimed.pool = place_of(engine);
    message.reclaimed.first = first;
    message.reclaimed.slots = slots;
    message.reclaimed.bitmap = (struct gms_bytes){bitmap, bytes};
    fake_send(&f->fake, engine->member.incarnation, &message);
}

/* Lets everything in that was said before: the fake answers in order. */
static void hear(const struct engine *engine)
{
    struct gms_error error;
    struct gms_promotion promotion;
    assert_ok(gms_report_sticky_error(engine->session, 1, "a question and its answer", &error));
    assert_ok(gms_wait_promotion(engine->session, 0, &promotion, &error));
}

static uint32_t next(const struct engine *engine)
{
    uint32_t slot = 0;
    const gms_status status = gms_returned_next(engine->kv, &slot);
    if (status == GMS_OK)
        return slot;
    assert_int_equal(status, GMS_E_NOT_FOUND);
    return UINT32_MAX;
}

/* A successor with slots 2, 9 and 17 in quarantine. */
static struct engine successor(struct libgms_fixture *f)
{
    struct engine first = serving_engine(f, 0);
    uint64_t generation;
    static const uint32_t slots[] = {2, 9, 17};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(gms_slot_acquire(first.kv, slots[i], &generation), GMS_OK);
    struct engine second = park_engine(f, 1);
    const uint64_t source = first.member.incarnation;
    crash_engine(f, &first);
    adopt_engine(f, &second, source, false);
    assert_int_equal(second.adoption.quarantined, 3);
    return second;
}

static void test_a_slot_comes_back_once(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = successor(f);
    const uint8_t nine[] = {0x80}; /* first 2: bit 7 is slot 9 */
    uint64_t generation;
    assert_int_equal(next(&engine), UINT32_MAX);
    free_here(f, &engine, 9);
    assert_int_equal(next(&engine), UINT32_MAX); /* here it is idle; whether it is on other ranks nobody has said */
    tell(f, &engine, engine.member.incarnation, 2, 8, nine, 1);
    hear(&engine);
    assert_int_equal(next(&engine), 9);
    assert_int_equal(next(&engine), UINT32_MAX);
    assert_int_equal(gms_slot_acquire(engine.kv, 9, &generation), GMS_OK);
    assert_int_equal(gms_slot_acquire(engine.kv, 2, &generation), GMS_E_QUARANTINED);
    tell(f, &engine, engine.member.incarnation, 2, 8, nine,
         1); /* told twice: in use by now, or free, it is the engine's */
    hear(&engine);
    assert_int_equal(next(&engine), UINT32_MAX);
    gms_close(engine.session);
}

/* After a restart everything that is idle is told; what the engine has itself is not news. */
static void test_only_what_was_withheld_comes_back(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = successor(f);
    const uint8_t all[(KV_SLOTS + 7) / 8] = {0xff, 0xff, 0xff, 0xff};
    free_here(f, &engine, 17);
    free_here(f, &engine, 2);
    tell(f, &engine, engine.member.incarnation, 0, KV_SLOTS, all, sizeof all);
    hear(&engine);
    assert_int_equal(next(&engine), 2);
    assert_int_equal(next(&engine), 17);
    assert_int_equal(next(&engine), UINT32_MAX); /* 9 is in quarantine still, whatever was said */
    free_here(f, &engine, 9);
    tell(f, &engine, engine.member.incarnation, 0, KV_SLOTS, all, sizeof all);
    hear(&engine);
    assert_int_equal(next(&engine), 9);
    gms_close(engine.session);
}

static void test_words_that_do_not_fit_change_nothing(void **state)
{
    struct libgms_fixture *f = *state;
    struct engine engine = successor(f);
    const uint8_t all[(KV_SLOTS + 7) / 8] = {0xff, 0xff, 0xff, 0xff};
    free_here(f, &engine, 9);
    tell(f, &engine, engine.member.incarnation - 1, 0, KV_SLOTS, all, sizeof all); /* an older incarnation's */
    tell(f, &engine, engine.member.incarnation, 0, KV_SLOTS, all, 1);              /* fewer bits than slots */
    tell(f, &engine, engine.member.incarnation, UINT32_MAX - 3, KV_SLOTS, all, sizeof all);
    tell(f, &engine, engine.member.incarnation, KV_SLOTS, 8, all, 1);
    hear(&engine);
    assert_int_equal(next(&engine), UINT32_MAX);
    tell(f, &engine, engine.member.incarnation, 9, UINT32_MAX, all, sizeof all);
    hear(&engine);
    assert_int_equal(next(&engine), UINT32_MAX);
    gms_close(engine.session);
}

/* ------------------------------------------------------------------------------------------------- allocator --- */

/*
 * An engine's allocator, as engines have them: a free list, blocks that stay cached when nobody refers to them and are
 * evicted least recently used first, reference counts, and a whole request that is rolled back when it does not fit.
 * What it does with a slot is told to a backend, which may only say that it is so.
 */
enum { SLOTS = KV_SLOTS, MOST = 6, REQUESTS = 8, CHOICES = 20000 };

struct backend {
    bool (*acquire)(void *context, uint32_t slot);
    bool (*seal)(void *context, uint32_t slot);
    bool (*release)(void *context, uint32_t slot);
    void *context;
};

struct allocator {
    const struct backend *backend;
    uint32_t free[SLOTS], free_first, free_count; /* a ring */
    uint32_t cached[SLOTS], cached_count;         /* sealed and unreferenced, oldest first */
    uint32_t references[SLOTS];
    struct {
        uint32_t slots[MOST], count;
    } requests[REQUESTS];
    uint32_t log[CHOICES], log_count; /* every choice, in order */
};

static void note(struct allocator *a, uint32_t what)
{
    assert_true(a->log_count < CHOICES);
    a->log[a->log_count++] = what;
}

static void append_free(struct allocator *a, uint32_t slot)
{
    a->free[(a->free_first + a->free_count++) % SLOTS] = slot;
}

/* UINT32_MAX: every slot is referred to. */
static uint32_t take(struct allocator *a)
{
    uint32_t slot;
    if (a->free_count > 0) {
        slot = a->free[a->free_first];
        a->free_first = (a->free_first + 1) % SLOTS;
        a->free_count--;
    } else if (a->cached_count > 0) {
        slot = a->cached[0];
        memmove(&a->cached[0], &a->cached[1], --a->cached_count * sizeof a->cached[0]);
        assert_true(a->backend->release(a->backend->context, slot));
        note(a, 1000 + slot);
    } else {
        return UINT32_MAX;
    }
    assert_true(a->backend->acquire(a->backend->context, slot));
    a->references[slot] = 1;
    note(a, slot);
    return slot;
}

static void give_back(struct allocator *a, uint32_t slot)
{
    assert_true(a->backend->release(a->backend->context, slot));
    a->references[slot] = 0;
    append_free(a, slot);
    note(a, 2000 + slot);
}

static void begin(struct allocator *a, uint32_t request, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t slot = take(a);
        if (slot == UINT32_MAX) { /* does not fit: as if it had never come */
            while (a->requests[request].count > 0)
                give_back(a, a->requests[request].slots[--a->requests[request].count]);
            note(a, 3000);
            return;
        }
        a->requests[request].slots[a->requests[request].count++] = slot;
    }
}

/* Its blocks stay cached. */
static void finish(struct allocator *a, uint32_t request)
{
    for (uint32_t i = 0; i < a->requests[request].count; i++) {
        const uint32_t slot = a->requests[request].slots[i];
        assert_true(a->backend->seal(a->backend->context, slot));
        if (--a->references[slot] == 0)
            a->cached[a->cached_count++] = slot;
    }
    a->requests[request].count = 0;
}

static void give_up(struct allocator *a, uint32_t request)
{
    while (a->requests[request].count > 0)
        give_back(a, a->requests[request].slots[--a->requests[request].count]);
}

static void run(struct allocator *a, uint64_t seed, uint32_t steps, void (*between)(void *context, uint32_t step),
                void *context)
{
    for (uint32_t step = 0; step < steps; step++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const uint32_t request = (uint32_t)(seed >> 33) % REQUESTS, what = (uint32_t)(seed >> 45) % 8;
        if (a->requests[request].count == 0)
            begin(a, request, 1 + (uint32_t)(seed >> 50) % MOST);
        else if (what < 5)
            finish(a, request);
        else
            give_up(a, request);
        if (between != NULL)
            between(context, step);
    }
    note(a, 4000 + a->free_count * 64 + a->cached_count);
}

static bool yes(void *context, uint32_t slot)
{
    (void)context;
    (void)slot;
    return true;
}

struct gms_backend {
    struct engine *engine;
    uint64_t generations[SLOTS];
    gms_token token; /* of a step that is complete only after the next one was begun: releases wait for it */
};

static bool acquire(void *context, uint32_t slot)
{
    struct gms_backend *backend = context;
    return gms_slot_acquire(backend->engine->kv, slot, &backend->generations[slot]) == GMS_OK;
}

static bool seal(void *context, uint32_t slot)
{
    struct gms_backend *backend = context;
    const struct gms_block block = block_of_slot(backend->engine->kv, slot, backend->generations[slot]);
    return gms_block_seal(backend->engine->session, &block, 0) == GMS_OK;
}

static bool release(void *context, uint32_t slot)
{
    struct gms_backend *backend = context;
    return gms_slot_release(backend->engine->kv, slot, backend->generations[slot], backend->token) == GMS_OK;
}

static void step(void *context, uint32_t number)
{
    struct gms_backend *backend = context;
    (void)number;
    const gms_token before = backend->token;
    backend->token = gms_step_begin(backend->engine->session);
    if (before != 0)
        gms_step_complete(backend->engine->session, before);
}

/* Slots of the quarantine come back in the middle, and go to the end of the free list in both. */
struct coming_back {
    struct allocator *allocator;
    struct gms_backend *backend; /* NULL: without libgms */
    struct libgms_fixture *f;
};

static void come_back(void *context, uint32_t number)
{
    static const uint32_t slots[] = {2, 9, 17};
    struct coming_back *back = context;
    if (back->backend != NULL)
        step(back->backend, number);
    if (number != 700 && number != 1100)
        return;
    for (size_t i = number == 700 ? 0 : 1; i < (number == 700 ? 1 : 3); i++) {
        uint32_t slot = slots[i];
        if (back->backend != NULL) {
            const uint8_t bit = 1;
            free_here(back->f, back->backend->engine, slot);
            tell(back->f, back->backend->engine, back->backend->engine->member.incarnation, slot, 1, &bit, 1);
            hear(back->backend->engine);
            slot = next(back->backend->engine);
        }
        append_free(back->allocator, slot);
    }
}

/* The same sequence with and without libgms, from a full pool, then with what a dead engine left in quarantine. */
static void test_the_allocator_chooses_the_same(void **state)
{
    struct libgms_fixture *f = *state;
    static const struct backend alone = {yes, yes, yes, NULL};
    const uint64_t seeds[] = {1, 20261129, 77};
    struct engine engine = successor(f);
    struct gms_backend backend = {.engine = &engine};
    const struct backend ours = {acquire, seal, release, &backend};
    struct allocator *with = calloc(1, sizeof *with), *without = calloc(1, sizeof *without);
    assert_non_null(with);
    assert_non_null(without);
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        print_message("seed %llu\n", (unsigned long long)seeds[i]);
        memset(with, 0, sizeof *with);
        memset(without, 0, sizeof *without);
        with->backend = &ours;
        without->backend = &alone;
        for (uint32_t slot = 0; slot < SLOTS; slot++) { /* what the engine was shown as its capacity */
            if (i == 0 && gms_slot_state(engine.kv, slot, NULL) == GMS_SLOT_QUARANTINED)
                continue;
            append_free(with, slot);
            append_free(without, slot);
        }
        struct coming_back back_with = {with, &backend, f}, back_without = {without, NULL, f};
        run(without, seeds[i], 1500, i == 0 ? come_back : NULL, &back_without);
        run(with, seeds[i], 1500, i == 0 ? come_back : step, i == 0 ? (void *)&back_with : (void *)&backend);
        assert_int_equal(with->log_count, without->log_count);
        assert_memory_equal(with->log, without->log, with->log_count * sizeof with->log[0]);
        assert_true(with->log_count > 2000);
        for (uint32_t request = 0; request < REQUESTS; request++) /* everything is given back for the next one */
            give_up(with, request);
        while (with->cached_count > 0)
            give_back(with, with->cached[--with->cached_count]);
        gms_step_complete(engine.session, backend.token);
        for (uint32_t slot = 0; slot < SLOTS; slot++)
            assert_int_equal(gms_slot_state(engine.kv, slot, NULL), GMS_SLOT_IDLE);
    }
    free(with);
    free(without);
    gms_close(engine.session);
}

#define FIXTURE_TEST(name) cmocka_unit_test_setup_teardown(name, libgms_setup, libgms_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(test_a_slot_comes_back_once),
        FIXTURE_TEST(test_only_what_was_withheld_comes_back),
        FIXTURE_TEST(test_words_that_do_not_fit_change_nothing),
        FIXTURE_TEST(test_the_allocator_chooses_the_same),
    };
    return cmocka_run_group_tests_name("libgms_returned", tests, NULL, NULL);
}
