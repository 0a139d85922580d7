/* SPDX-License-Identifier: Apache-2.0
 *
 * Reported fault V27: after a restart KV gave garbage, and said it was fine. Blocks that were sealed, and a successor
 * whose identity differs in one field at a time, or a pool of another shape: nothing is adopted, and the field is
 * named. One flipped byte, contents of two blocks exchanged, contents of two ranks exchanged, two records exchanged,
 * another generation: those blocks are refused on all ranks, the others are adopted. tests/drill does the rest: tokens
 * are compared, and a drill whose pages were poisoned fails.
 */
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "directory/directory.h"
#include "directory/layout.h"
#include "harness.h"

enum { RANKS = 2, SEALED = 6, AT_SERVING = 1, AT_DAMAGED, GATE_DAMAGE = 1, GATE_END };
enum { VALUE_ADOPTED, VALUE_BAD_HERE, VALUE_WRONG };

/* What a start has another value of than the one before: a field of its identity. */
enum field { MODEL, DTYPE, LAYOUT, HASH_ALGORITHM, ENGINE_NAME, ENGINE_VERSION, HASH_SEED, BLOCK_TOKENS, NOTHING };
static const char *const named[] = {
    "model=other, the group has model=test",        "dtype=bf16, the group has dtype=f32",
    "layout=paged, the group has layout=flat",      "hash_algorithm=sha256, the group has hash_algorithm=none",
    "engine=another, the group has engine=harness", "version=2, the group has version=1",
    "hash_seed=2, the group has hash_seed=1",       "block_tokens=32, the group has block_tokens=16"};

/* What is done to sealed blocks, and how many of each rank are bad then. The first block stays good. */
enum damage { FLIPPED_BYTE, SWAPPED_BLOCKS, SWAPPED_RANKS, SWAPPED_RECORDS, OTHER_GENERATION, DAMAGES, NO_DAMAGE };
static const struct {
    const char *name;
    uint32_t lost;       /* blocks, on all ranks */
    uint32_t bad[RANKS]; /* found by their contents, at adoption; else it was the record, before it */
} damages[DAMAGES] = {
    [FLIPPED_BYTE] = {"one flipped byte on rank 1", 1, {0, 1}},
    [SWAPPED_BLOCKS] = {"contents of two blocks exchanged on rank 0", 2, {2, 0}},
    [SWAPPED_RANKS] = {"contents of the ranks exchanged", 1, {1, 1}},
    [SWAPPED_RECORDS] = {"records of two blocks exchanged on rank 1", 2, {0, 0}},
    [OTHER_GENERATION] = {"another generation on rank 0", 1, {0, 0}},
};

static struct cluster cluster;
static struct engine engines[2];

/* ------------------------------------------------------------------------------------------------ an engine ---- */

static struct gms_identity identity_with(enum field field)
{
    struct gms_identity identity = {.model = "test",
                                    .dtype = "f32",
                                    .layout = "flat",
                                    .hash_algorithm = "none",
                                    .engine_name = "harness",
                                    .engine_version = "1",
                                    .hash_seed = 1,
                                    .block_tokens = 16,
                                    .world_size = RANKS};
    switch (field) {
    case MODEL:
        identity.model = "other";
        break;
    case DTYPE:
        identity.dtype = "bf16";
        break;
    case LAYOUT:
        identity.layout = "paged";
        break;
    case HASH_ALGORITHM:
        identity.hash_algorithm = "sha256";
        break;
    case ENGINE_NAME:
        identity.engine_name = "another";
        break;
    case ENGINE_VERSION:
        identity.engine_version = "2";
        break;
    case HASH_SEED:
        identity.hash_seed = 2;
        break;
    case BLOCK_TOKENS:
        identity.block_tokens = 32;
        break;
    case NOTHING:
        break;
    }
    return identity;
}

static int byte_of(uint32_t rank, uint32_t slot)
{
    return (int)(1 + slot + 100 * rank);
}

static char *page(const gms_pool *kv, uint32_t slot)
{
    return (char *)gms_pool_address(kv) + (size_t)slot * HARNESS_BLOCK_BYTES;
}

static gms_status seal_all(gms_session *session, gms_pool *kv, uint32_t rank, struct gms_error *error)
{
    gms_status status = GMS_OK;
    for (uint32_t slot = 0; slot < HARNESS_SLOTS && status == GMS_OK; slot++) {
        if (gms_slot_state(kv, slot, NULL) ==
            GMS_SLOT_SEALED) { /* adopted: given up, so that each start has the same */
            uint64_t generation;
            (void)gms_slot_state(kv, slot, &generation);
            status = gms_slot_release(kv, slot, generation, 0);
        }
    }
    for (uint32_t slot = 0, sealed = 0; slot < HARNESS_SLOTS && sealed < SEALED && status == GMS_OK; slot++) {
        struct gms_block block = {.token_count = 16, .part_count = 1};
        const gms_token token = gms_step_begin(session);
        if (gms_slot_acquire(kv, slot, &block.parts[0].generation) != GMS_OK) {
            gms_step_complete(session, token);
            continue; /* in quarantine still */
        }
        memset(page(kv, slot), byte_of(rank, slot), HARNESS_BLOCK_BYTES);
        gms_step_complete(session, token);
        block.hash[0] = (uint8_t)(slot + 1);
        block.parts[0].pool = gms_pool_index(kv);
        block.parts[0].slot = slot;
        status = gms_block_seal(session, &block, token);
        sealed += status == GMS_OK;
    }
    return status == GMS_OK ? GMS_OK : gms_fail(error, status, "the blocks could not be sealed");
}

/* The sealed slot of this number, from 0. */
static uint32_t sealed_slot(const gms_pool *kv, uint32_t number)
{
    for (uint32_t slot = 0; slot < HARNESS_SLOTS; slot++)
        if (gms_slot_state(kv, slot, NULL) == GMS_SLOT_SEALED && number-- == 0)
            return slot;
    return HARNESS_SLOTS;
}

/* The library keeps it to itself, but the kernel knows. */
static int directory_of_this_process(void)
{
    char path[64], target[PATH_MAX];
    for (int fd = 3; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t bytes = readlink(path, target, sizeof target - 1);
        target[bytes > 0 ? bytes : 0] = '\0';
        if (strstr(target, "gms-directory") != NULL)
            return fd;
    }
    return -1;
}

static bool swap_records(uint32_t one, uint32_t other)
{
    char first[GMS_RECORD_BYTES], second[GMS_RECORD_BYTES];
    const int fd = directory_of_this_process();
    const off_t records = (off_t)gms_directory_records_offset(HARNESS_SLOTS);
    const off_t at_one = records + (off_t)one * GMS_RECORD_BYTES, at_other = records + (off_t)other * GMS_RECORD_BYTES;
    return pread(fd, first, sizeof first, at_one) == sizeof first &&
           pread(fd, second, sizeof second, at_other) == sizeof second &&
           pwrite(fd, second, sizeof second, at_one) == sizeof second &&
           pwrite(fd, first, sizeof first, at_other) == sizeof first;
}

static bool raise_generation(const gms_pool *kv, uint32_t slot)
{
    uint64_t generation = 0;
    (void)gms_slot_state(kv, slot, &generation);
    const uint64_t word = gms_slot_word_make(GMS_SLOT_SEALED, generation + 1);
    return pwrite(directory_of_this_process(), &word, sizeof word, GMS_DIRECTORY_HEADER_BYTES + 8 * (off_t)slot) ==
           sizeof word;
}

static bool do_damage(enum damage damage, const gms_pool *kv, uint32_t rank)
{
    const uint32_t one = sealed_slot(kv, 1), other = sealed_slot(kv, 2);
    char kept[HARNESS_BLOCK_BYTES];
    switch (damage) {
    case FLIPPED_BYTE:
        if (rank == 1)
            page(kv, one)[HARNESS_BLOCK_BYTES / 3] ^= 0x10;
        return true;
    case SWAPPED_BLOCKS:
        if (rank == 0) {
            memcpy(kept, page(kv, one), sizeof kept);
            memcpy(page(kv, one), page(kv, other), sizeof kept);
            memcpy(page(kv, other), kept, sizeof kept);
        }
        return true;
    case SWAPPED_RANKS:
        memset(page(kv, one), byte_of(1 - rank, one), HARNESS_BLOCK_BYTES);
        return true;
    case SWAPPED_RECORDS:
        return rank == 0 || swap_records(one, other);
    case OTHER_GENERATION:
        return rank == 1 || raise_generation(kv, one);
    case DAMAGES:
    case NO_DAMAGE:
        break;
    }
    return true;
}

/* Argument: the field that differs, and the damage that it does before it is killed. */
#define PLAN(field, damage) ((uint64_t)(field) << 8 | (uint64_t)(damage))

static gms_status live(struct engine_rank *rank, struct gms_error *error)
{
    const struct gms_identity identity = identity_with((enum field)(rank->argument >> 8));
    gms_session *session = NULL;
    gms_pool *kv = NULL;
    struct gms_membership membership;
    struct gms_adoption adoption;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join_as(session, &identity, &membership, error);
    if (status == GMS_OK)
        status = rank_attach_kv(session, HARNESS_SLOTS, &kv, error);
    if (status == GMS_OK)
        status = rank_serve(session, "here", &adoption, error);
    if (status != GMS_OK)
        return status;
    rank->values[VALUE_ADOPTED] = adoption.adopted;
    rank->values[VALUE_BAD_HERE] = adoption.bad_here;
    for (uint32_t slot = 0; slot < HARNESS_SLOTS; slot++)
        if (gms_slot_state(kv, slot, NULL) == GMS_SLOT_SEALED)
            for (size_t i = 0; i < HARNESS_BLOCK_BYTES; i++)
                rank->values[VALUE_WRONG] += (uint8_t)page(kv, slot)[i] != byte_of(rank->rank, slot);
    status = seal_all(session, kv, rank->rank, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    rank_gate(rank, GATE_DAMAGE);
    if (!do_damage((enum damage)(rank->argument & 0xff), kv, rank->rank))
        return gms_fail(error, GMS_E_SYSTEM, "the damage could not be done");
    rank_at(rank, AT_DAMAGED);
    rank_gate(rank, GATE_END);
    return GMS_OK;
}

/* ------------------------------------------------------------------------------------------------ takeovers ---- */

static uint32_t launches;
static struct engine *serving; /* NULL: nobody has yet */

static void name_launch(char launch[24])
{
    snprintf(launch, 24, "identity-%u", launches++);
}

/* Before its successor is parked: records of a source whose successor is there are copied ahead of the fault, and what
 * is done to the originals then does no harm. */
static void damage_serving(void)
{
    engine_go(serving, GATE_DAMAGE);
    assert_true(engine_reached(serving, AT_DAMAGED, HARNESS_DEADLINE_MS));
}

/* A start that succeeds the one before, if there is one, and will do this damage at its end. */
static const struct engine *succeed(enum damage damage)
{
    char launch[24];
    struct engine *before = serving, *next = &engines[before == &engines[0]];
    const bool lives = before != NULL && engine_rank_alive(before, 0) && engine_rank_alive(before, 1);
    if (lives)
        damage_serving();
    name_launch(launch);
    engine_start(next, &cluster, (uint32_t)(next - engines), launch, live, PLAN(NOTHING, damage));
    if (lives)
        engine_kill(before, launches % RANKS);
    assert_true(engine_reached(next, AT_SERVING, HARNESS_DEADLINE_MS));
    if (before != NULL)
        engine_finish(before);
    for (uint32_t rank = 0; rank < RANKS; rank++) /* whatever was adopted is what was sealed */
        assert_int_equal(next->ranks[rank].values[VALUE_WRONG], 0);
    serving = next;
    return next;
}

static void assert_adopted(const struct engine *engine, uint32_t adopted, const char *what)
{
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (engine->ranks[rank].values[VALUE_ADOPTED] != adopted) {
            cluster_show_log(&cluster);
            fail_msg("%s: rank %u adopted %llu blocks, not %u", what, rank,
                     (unsigned long long)engine->ranks[rank].values[VALUE_ADOPTED], adopted);
        }
}

static int set_up(void **state)
{
    (void)state;
    serving = NULL;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .verify = "full"});
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    engine_finish(serving);
    cluster_stop(&cluster);
    return 0;
}

static void refused(enum field field)
{
    struct engine other;
    char launch[24];
    name_launch(launch);
    engine_start(&other, &cluster, 2, launch, live, PLAN(field, NO_DAMAGE));
    assert_true(engine_wait_end(&other, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (other.ranks[rank].status != GMS_E_MISMATCH || strstr(other.ranks[rank].text, named[field]) == NULL)
            fail_msg("rank %u: %s %s does not say \"%s\"", rank, gms_status_name(other.ranks[rank].status),
                     other.ranks[rank].text, named[field]);
    }
    engine_finish(&other);
}

static void test_another_identity(void **state)
{
    (void)state;
    succeed(NO_DAMAGE);
    for (enum field field = MODEL; field < NOTHING; field++)
        refused(field);
    assert_adopted(succeed(NO_DAMAGE), SEALED, "the same identity");
}

/* What was sealed outlives its writer, and so does what it is. Of whom the group has is told while they are known. */
static void test_another_identity_when_nobody_lives(void **state)
{
    (void)state;
    succeed(NO_DAMAGE);
    damage_serving();
    engine_kill(serving, 0);
    assert_true(engine_wait_end(serving, HARNESS_DEADLINE_MS));
    for (enum field field = MODEL; field < NOTHING; field++)
        refused(field);
    assert_adopted(succeed(NO_DAMAGE), SEALED, "the same identity");
}

static void test_other_contents(void **state)
{
    (void)state;
    succeed((enum damage)0);
    for (enum damage damage = 0; damage < DAMAGES; damage++) {
        const struct engine *next = succeed(damage + 1);
        assert_adopted(next, SEALED - damages[damage].lost, damages[damage].name);
        for (uint32_t rank = 0; rank < RANKS; rank++)
            assert_int_equal(next->ranks[rank].values[VALUE_BAD_HERE], damages[damage].bad[rank]);
    }
}

static gms_status attach_another_shape(struct engine_rank *rank, struct gms_error *error)
{
    const struct gms_pool_description shapes[] = {
        {.name = "kv", .kind = GMS_POOL_KV, .slot_count = HARNESS_SLOTS / 2, .block_bytes = HARNESS_BLOCK_BYTES},
        {.name = "kv", .kind = GMS_POOL_KV, .slot_count = HARNESS_SLOTS, .block_bytes = 2 * HARNESS_BLOCK_BYTES},
        {.name = "kv", .kind = GMS_POOL_KV, .slot_count = HARNESS_SLOTS / 2, .block_bytes = 2 * HARNESS_BLOCK_BYTES}};
    gms_session *session = NULL;
    gms_pool *kv = NULL;
    struct gms_membership membership;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] && status == GMS_OK; i++) {
        gms_status answer = gms_pool_attach(session, &shapes[i], &kv, error);
        rank->values[i] = answer == GMS_E_MISMATCH && strstr(error->text, "kv") != NULL;
    }
    return status;
}

/* A pool of another geometry is not attached, and the answer names it. */
static void test_another_geometry(void **state)
{
    struct engine other;
    (void)state;
    succeed(NO_DAMAGE);
    engine_start(&other, &cluster, 3, "shape", attach_another_shape, 0);
    assert_true(engine_wait_end(&other, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(other.ranks[rank].status, GMS_OK);
        for (size_t i = 0; i < 3; i++)
            assert_int_equal(other.ranks[rank].values[i], 1);
    }
    engine_finish(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_another_identity, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_another_identity_when_nobody_lives, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_contents, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_another_geometry, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("coord_identity", tests, NULL, NULL);
}
