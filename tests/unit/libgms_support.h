/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of libgms share: a fake coordinator in a directory of its own, and an engine rank brought to a point
 * of its life. Includes cmocka.
 */
#ifndef GMS_TESTS_LIBGMS_SUPPORT_H
#define GMS_TESTS_LIBGMS_SUPPORT_H

#include "unit_support.h"

#include <pthread.h>
#include <xxhash.h>

#include "fake_coordinator.h"
#include "gms/engine.h"

enum { KV_SLOTS = 32, STATE_SLOTS = 8, KV_BLOCK_BYTES = 1024, STATE_BLOCK_BYTES = 256, WEIGHT_BYTES = 10000 };

static const struct gms_identity engine_identity = {.model = "toy@1",
                                                    .dtype = "f32",
                                                    .layout = "paged",
                                                    .hash_algorithm = "xxh3-128",
                                                    .engine_name = "unit",
                                                    .engine_version = "1.0",
                                                    .hash_seed = 42,
                                                    .block_tokens = 16,
                                                    .world_size = 1};
static const struct gms_pool_description weights_description = {
    .name = "weights", .kind = GMS_POOL_WEIGHTS, .bytes = WEIGHT_BYTES};
static const struct gms_pool_description kv_description = {
    .name = "kv_cache", .kind = GMS_POOL_KV, .slot_count = KV_SLOTS, .block_bytes = KV_BLOCK_BYTES};
static const struct gms_pool_description state_description = {
    .name = "state", .kind = GMS_POOL_KV, .slot_count = STATE_SLOTS, .block_bytes = STATE_BLOCK_BYTES};

struct engine {
    gms_session *session;
    gms_pool *kv, *state;
    struct gms_membership member;
    struct gms_promotion promotion;
    struct gms_adoption adoption;
};

struct libgms_fixture {
    struct fake_coordinator fake;
    char *dir;
};

/* The fake's state is its thread's too. `f` is the fixture. */
#define FAKE_GET(expression)                                                                                           \
    __extension__({                                                                                                    \
        pthread_mutex_lock(&f->fake.lock);                                                                             \
        const __typeof__(expression) fake_value = (expression);                                                        \
        pthread_mutex_unlock(&f->fake.lock);                                                                           \
        fake_value;                                                                                                    \
    })
#define FAKE_SET(assignment)                                                                                           \
    do {                                                                                                               \
        pthread_mutex_lock(&f->fake.lock);                                                                             \
        assignment;                                                                                                    \
        pthread_mutex_unlock(&f->fake.lock);                                                                           \
    } while (0)

static inline int start_fixture(void **state, bool verify_full)
{
    struct libgms_fixture *f = calloc(1, sizeof *f);
    if (unit_make_dir((void **)&f->dir) != 0)
        return -1;
    snprintf(f->fake.run_dir, sizeof f->fake.run_dir, "%s", f->dir);
    f->fake.world_size = 1;
    f->fake.operation_timeout_ms = 5000;
    f->fake.verify_full = verify_full;
    f->fake.epoch = 1;
    f->fake.on_device = getenv("GMS_TEST_MEMORY") != NULL && strcmp(getenv("GMS_TEST_MEMORY"), "cuda") == 0;
    fake_start(&f->fake);
    *state = f;
    return 0;
}

static inline int libgms_setup(void **state)
{
    return start_fixture(state, true);
}

static inline int libgms_setup_unverified(void **state)
{
    return start_fixture(state, false);
}

static inline int libgms_teardown(void **state)
{
    struct libgms_fixture *f = *state;
    const bool broken = f->fake.order_broken;
    fake_stop(&f->fake);
    void *dir = f->dir;
    unit_remove_dir(&dir);
    free(f);
    if (broken)
        print_error("a proposal's sequence number was not the next\n");
    return broken ? -1 : 0;
}

static inline gms_session *open_engine(struct libgms_fixture *f, int32_t engine_id)
{
    struct gms_error error;
    gms_session *session = NULL;
    const struct gms_open_options options = {
        .run_dir = f->dir, .rank = 0, .engine_id = engine_id, .launch = "launch-1"};
    assert_ok(gms_open(&options, &session, &error));
    return session;
}

static inline struct engine join_engine(struct libgms_fixture *f, int32_t engine_id)
{
    struct gms_error error;
    struct engine engine = {.session = open_engine(f, engine_id)};
    assert_ok(gms_join(engine.session, &engine_identity, &engine.member, &error));
    return engine;
}

/* Joined, both KV pools attached, parked: a shadow. */
static inline struct engine park_engine(struct libgms_fixture *f, int32_t engine_id)
{
    struct gms_error error;
    struct engine engine = join_engine(f, engine_id);
    assert_ok(gms_pool_attach(engine.session, &kv_description, &engine.kv, &error));
    assert_ok(gms_pool_attach(engine.session, &state_description, &engine.state, &error));
    assert_ok(gms_park(engine.session, &error));
    return engine;
}

static inline void adopt_engine(struct libgms_fixture *f, struct engine *engine, uint64_t source, bool source_clean)
{
    struct gms_error error;
    struct gms_classification counts;
    fake_promote(&f->fake, source, engine->member.incarnation, source_clean, &counts);
    assert_ok(gms_wait_promotion(engine->session, UNIT_PATIENCE_MS, &engine->promotion, &error));
    assert_ok(gms_adopt(engine->session, &engine->adoption, &error));
}

static inline struct engine serving_engine(struct libgms_fixture *f, int32_t engine_id)
{
    struct gms_error error;
    struct engine engine = park_engine(f, engine_id);
    adopt_engine(f, &engine, 0, false);
    assert_ok(gms_wake(engine.session, &error));
    assert_ok(gms_serve(engine.session, "unix:/somewhere", &error));
    return engine;
}

/* As SIGKILL would: no goodbye. The memory that this process still maps is the same as a dead one's would be. */
static inline void crash_engine(struct libgms_fixture *f, struct engine *engine)
{
    (void)gms_step_begin(engine->session); /* a step in flight: gms_close says no goodbye then */
    gms_close(engine->session);
    fake_await_gone(&f->fake, engine->member.incarnation);
    assert_false(FAKE_GET(fake_find(&f->fake, engine->member.incarnation)->left));
    engine->session = NULL;
}

static inline struct gms_block block_of_slot(const gms_pool *pool, uint32_t slot, uint64_t generation)
{
    struct gms_block block = {.token_count = 16,
                              .part_count = 1,
                              .parts = {{.pool = gms_pool_index(pool), .slot = slot, .generation = generation}}};
    memset(block.hash, (int)(slot + 1), sizeof block.hash);
    return block;
}

static inline void fill_slot(const gms_pool *pool, uint32_t slot, uint32_t block_bytes, int byte)
{
    memset((char *)gms_pool_address(pool) + (size_t)slot * block_bytes, byte, block_bytes);
}

/* Leases, fills and seals slot `slot` of the KV pool; returns the generation. */
static inline uint64_t seal_slot(struct engine *engine, uint32_t slot)
{
    uint64_t generation = 0;
    assert_int_equal(gms_slot_acquire(engine->kv, slot, &generation), GMS_OK);
    fill_slot(engine->kv, slot, KV_BLOCK_BYTES, (int)slot + 1);
    const struct gms_block block = block_of_slot(engine->kv, slot, generation);
    assert_int_equal(gms_block_seal(engine->session, &block, 0), GMS_OK);
    return generation;
}

static inline enum gms_slot_state slot_state(const gms_pool *pool, uint32_t slot)
{
    return gms_slot_state(pool, slot, NULL);
}

#endif
