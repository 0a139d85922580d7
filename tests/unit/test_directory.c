/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory: its file, slot words, and records as their owner writes and a reader takes them.
 */
#include "unit_support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "directory/layout.h"

static const struct gms_directory_geometry geometry = {.pool = 0,
                                                       .slot_count = 100,
                                                       .block_bytes = 4096,
                                                       .identity_digest = 0x1122334455667788,
                                                       .world = 3,
                                                       .incarnation = 7,
                                                       .epoch = 5};

struct fixture {
    struct gms_directory a, b; /* pools 0 and 1 */
    struct gms_directory *all[GMS_MAX_POOLS];
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct gms_directory_geometry other = geometry;
    other.pool = 1;
    other.slot_count = 33;
    if (gms_directory_create(&geometry, &f->a, NULL) != GMS_OK || gms_directory_create(&other, &f->b, NULL) != GMS_OK)
        return -1;
    f->all[0] = &f->a;
    f->all[1] = &f->b;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    gms_directory_close(&f->a);
    gms_directory_close(&f->b);
    gms_directory_close(&f->b); /* a closed one is allowed */
    free(f);
    return 0;
}

static struct gms_block block_at(uint32_t pool, uint32_t slot, uint64_t generation)
{
    struct gms_block block = {
        .token_count = 16, .part_count = 1, .parts = {{.pool = pool, .slot = slot, .generation = generation}}};
    memset(block.hash, (int)(slot + 1), sizeof block.hash);
    memset(block.parent_hash, (int)slot, sizeof block.parent_hash);
    return block;
}

static enum gms_slot_state state_of(const struct gms_directory *directory, uint32_t slot)
{
    return gms_slot_word_state(gms_directory_word(directory, slot));
}

static uint64_t lease(struct gms_directory *directory, uint32_t slot)
{
    uint64_t generation = 0;
    assert_int_equal(gms_directory_acquire(directory, slot, &generation), GMS_OK);
    return generation;
}

static uint64_t lease_and_seal(struct fixture *f, uint32_t pool, uint32_t slot)
{
    const uint64_t generation = lease(f->all[pool], slot);
    const struct gms_block block = block_at(pool, slot, generation);
    assert_int_equal(gms_directory_seal(f->all, &block, 99), GMS_OK);
    return generation;
}

/* --------------------------------------------------------------------------------------------------- file ---- */

static void test_open_sees_what_create_made(void **state)
{
    struct fixture *f = *state;
    struct gms_error error;
    struct gms_directory seen;
    assert_ok(gms_directory_open(dup(f->a.fd), &geometry, &seen, &error));
    assert_int_equal(seen.slot_count, 100);
    assert_memory_equal(&seen.geometry, &geometry, sizeof geometry);
    for (uint32_t slot = 0; slot < 100; slot++)
        assert_int_equal(gms_directory_word(&seen, slot), gms_slot_word_make(GMS_SLOT_IDLE, 0));
    assert_int_equal(lease(&f->a, 0), 1);
    assert_int_equal(gms_directory_word(&seen, 0), gms_slot_word_make(GMS_SLOT_LEASED, 1));
    gms_directory_progress(&f->a);
    gms_directory_progress(&f->a);
    gms_directory_announce_pause(&f->a, 77);
    gms_directory_set_work(&f->a, 3);
    gms_directory_step_begun(&f->a, 2);
    gms_directory_step_begun(&f->a, 1);
    gms_directory_step_completed(&f->a, 1);
    gms_directory_step_completed(&f->a, 0); /* late: changes nothing */
    assert_int_equal(gms_directory_progress_count(&seen), 2);
    struct gms_directory_activity activity;
    gms_directory_activity(&seen, &activity);
    assert_int_equal(activity.progress, 2);
    assert_int_equal(activity.pause, 1);
    assert_int_equal(activity.pause_ms, 77);
    assert_int_equal(activity.work, 3);
    assert_int_equal(activity.steps_begun, 2);
    assert_int_equal(activity.steps_completed, 1);
    assert_int_equal(gms_directory_change_count(&seen), 1);
    gms_directory_close(&seen);
}

static void test_create_refuses_nonsense(void **state)
{
    struct gms_error error;
    struct gms_directory directory;
    struct gms_directory_geometry wrong = geometry;
    (void)state;
    wrong.slot_count = 0;
    assert_status(gms_directory_create(&wrong, &directory, &error), GMS_E_INVALID);
    wrong = geometry;
    wrong.pool = GMS_MAX_POOLS;
    assert_status(gms_directory_create(&wrong, &directory, &error), GMS_E_INVALID);
}

static void test_open_names_the_field_that_differs(void **state)
{
    struct fixture *f = *state;
    static const struct {
        size_t offset;
        bool wide, optional;
        const char *name;
    } fields[] = {
        {offsetof(struct gms_directory_geometry, pool), false, false, "pool"},
        {offsetof(struct gms_directory_geometry, slot_count), false, false, "slot count"},
        {offsetof(struct gms_directory_geometry, block_bytes), true, false, "block bytes"},
        {offsetof(struct gms_directory_geometry, identity_digest), true, true, "identity digest"},
        {offsetof(struct gms_directory_geometry, world), true, true, "world"},
        {offsetof(struct gms_directory_geometry, incarnation), true, true, "incarnation"},
        {offsetof(struct gms_directory_geometry, epoch), true, true, "epoch"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        struct gms_directory_geometry expected = geometry;
        struct gms_error error;
        struct gms_directory seen;
        char *field = (char *)&expected + fields[i].offset;
        const uint64_t value = 12345, zero = 0;
        memcpy(field, &value, fields[i].wide ? 8 : 4);
        int fd = dup(f->a.fd);
        assert_status(gms_directory_open(fd, &expected, &seen, &error), GMS_E_MISMATCH);
        assert_text_has(fields[i].name);
        assert_text_has("12345");
        if (fields[i].optional) {
            memcpy(field, &zero, 8);
            assert_ok(gms_directory_open(fd, &expected, &seen, &error));
            gms_directory_close(&seen);
        } else {
            close(fd); /* still ours after a failure */
        }
    }
}

/* A copy of `source` cut or grown to `bytes`, sealed or not. */
static int copy_file(const struct gms_directory *source, size_t bytes, int seals)
{
    int fd = memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const size_t common = bytes < source->bytes ? bytes : source->bytes;
    assert_int_equal(write(fd, source->base, common), common);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    if (seals != 0)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void test_open_refuses_files_of_any_other_shape(void **state)
{
    struct fixture *f = *state;
    struct gms_error error;
    struct gms_directory seen;
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    const size_t sizes[] = {0, 1, 8, 4095, 4096, f->a.bytes - 4096, f->a.bytes - 1, f->a.bytes + 1, f->a.bytes * 2};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int fd = copy_file(&f->a, sizes[i], seals);
        assert_status(gms_directory_open(fd, NULL, &seen, &error), GMS_E_CORRUPT);
        close(fd);
    }
    const int too_few[] = {0, F_SEAL_GROW, F_SEAL_SHRINK};
    for (size_t i = 0; i < sizeof too_few / sizeof too_few[0]; i++) {
        int fd = copy_file(&f->a, f->a.bytes, too_few[i]);
        assert_status(gms_directory_open(fd, NULL, &seen, &error), GMS_E_CORRUPT);
        assert_text_has("seal");
        close(fd);
    }
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    assert_status(gms_directory_open(pipes[0], NULL, &seen, &error), GMS_E_CORRUPT);
    close(pipes[0]);
    close(pipes[1]);
    int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);
    assert_status(gms_directory_open(zero, NULL, &seen, &error), GMS_E_CORRUPT);
    close(zero);
    assert_status(gms_directory_open(-1, NULL, &seen, &error), GMS_E_SYSTEM);
}

static void test_every_flipped_header_byte_is_refused(void **state)
{
    struct fixture *f = *state;
    for (size_t at = 0; at < offsetof(struct gms_directory_header, checksum) + 8; at++) {
        struct gms_error error;
        struct gms_directory seen;
        int fd = copy_file(&f->a, f->a.bytes, F_SEAL_SHRINK | F_SEAL_GROW);
        uint8_t byte;
        assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
        byte ^= 0x20;
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
        assert_status(gms_directory_open(fd, NULL, &seen, &error), at >= 8 && at < 12 ? GMS_E_VERSION : GMS_E_CORRUPT);
        close(fd);
    }
}

/* -------------------------------------------------------------------------------------------------- words ---- */

static void test_life_of_a_slot(void **state)
{
    struct fixture *f = *state;
    uint64_t generation = 0;
    assert_int_equal(gms_directory_acquire(&f->a, 0, &generation), GMS_OK); /* slot 0 is a slot */
    assert_int_equal(generation, 1);
    assert_int_equal(gms_directory_acquire(&f->a, 0, &generation), GMS_E_BUSY);
    assert_int_equal(generation, 1);
    const struct gms_block block = block_at(0, 0, 1);
    assert_int_equal(gms_directory_seal(f->all, &block, 0), GMS_OK);
    assert_int_equal(gms_directory_acquire(&f->a, 0, &generation), GMS_E_BUSY);
    assert_int_equal(gms_directory_seal(f->all, &block, 0), GMS_E_LOST_OWNERSHIP);
    assert_int_equal(gms_directory_fence_passed(&f->a, 0, 1), GMS_E_REFUSED);
    assert_int_equal(gms_directory_release(&f->a, 0, 2), GMS_E_STALE);
    assert_int_equal(gms_directory_release(&f->a, 0, 1), GMS_OK);
    assert_int_equal(state_of(&f->a, 0), GMS_SLOT_RELEASED);
    assert_int_not_equal(gms_directory_release(&f->a, 0, 1), GMS_OK); /* listed twice: freed once */
    assert_int_equal(gms_directory_acquire(&f->a, 0, &generation), GMS_OK);
    assert_int_equal(generation, 2);
    assert_int_equal(gms_directory_fence_passed(&f->a, 0, 1), GMS_E_STALE); /* the old fence frees nothing */
    assert_int_equal(gms_directory_release(&f->a, 0, 1), GMS_E_STALE);
    assert_int_equal(state_of(&f->a, 0), GMS_SLOT_LEASED);
    assert_int_equal(gms_directory_release(&f->a, 0, 2), GMS_OK);
    assert_int_equal(gms_directory_fence_passed(&f->a, 0, 2), GMS_OK);
    assert_int_equal(gms_directory_word(&f->a, 0), gms_slot_word_make(GMS_SLOT_IDLE, 2));
}

static void test_out_of_range_is_invalid(void **state)
{
    struct fixture *f = *state;
    const uint32_t slots[] = {100, 101, UINT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        uint64_t generation = 42;
        assert_int_equal(gms_directory_acquire(&f->a, slots[i], &generation), GMS_E_INVALID);
        assert_int_equal(generation, 42);
        assert_int_equal(gms_directory_release(&f->a, slots[i], 0), GMS_E_INVALID);
        assert_int_equal(gms_directory_fence_passed(&f->a, slots[i], 0), GMS_E_INVALID);
        struct gms_record record;
        assert_false(gms_directory_read(f->all, 0, slots[i], &record));
        assert_false(gms_directory_read(f->all, slots[i], 0, &record));
        struct gms_block block = block_at(0, slots[i], 1);
        assert_int_equal(gms_directory_seal(f->all, &block, 0), GMS_E_INVALID);
        block = block_at(slots[i], 0, 1);
        assert_int_equal(gms_directory_seal(f->all, &block, 0), GMS_E_INVALID);
    }
    struct gms_record record;
    assert_false(gms_directory_read(f->all, 2, 0, &record)); /* a pool that is not there */
}

static void test_exhausted_generation_retires(void **state)
{
    struct fixture *f = *state;
    uint64_t generation = 0;
    gms_directory_set_word(&f->a, 4, gms_slot_word_make(GMS_SLOT_IDLE, GMS_SLOT_GENERATION_MAX - 1));
    assert_int_equal(gms_directory_acquire(&f->a, 4, &generation), GMS_OK);
    assert_true(generation == GMS_SLOT_GENERATION_MAX);
    assert_int_equal(gms_directory_release(&f->a, 4, generation), GMS_OK);
    assert_int_equal(gms_directory_acquire(&f->a, 4, &generation), GMS_E_REFUSED);
    assert_int_equal(state_of(&f->a, 4), GMS_SLOT_RETIRED);
    assert_int_equal(gms_directory_fence_passed(&f->a, 4, generation), GMS_E_REFUSED);
    assert_int_equal(gms_directory_acquire(&f->a, 4, &generation), GMS_E_REFUSED);
    assert_int_equal(state_of(&f->a, 4), GMS_SLOT_RETIRED);
}

static void test_words_that_are_no_state_are_left_alone(void **state)
{
    struct fixture *f = *state;
    for (uint64_t bits = 6; bits < 8; bits++) {
        uint64_t generation = 0;
        const gms_slot_word word = (UINT64_C(9) << GMS_SLOT_STATE_BITS) | bits;
        gms_directory_set_word(&f->a, 5, word);
        assert_int_equal(gms_directory_acquire(&f->a, 5, &generation), GMS_E_REFUSED);
        assert_int_equal(gms_directory_release(&f->a, 5, 9), GMS_E_REFUSED);
        assert_int_equal(gms_directory_word(&f->a, 5), word);
    }
}

/* ------------------------------------------------------------------------------------------------ records ---- */

static void test_read_gives_what_was_sealed(void **state)
{
    struct fixture *f = *state;
    struct gms_record record;
    assert_false(gms_directory_read(f->all, 0, 9, &record));
    const uint64_t generation = lease(&f->a, 9);
    assert_false(gms_directory_read(f->all, 0, 9, &record));
    const struct gms_block block = block_at(0, 9, generation);
    assert_int_equal(gms_directory_seal(f->all, &block, 4711), GMS_OK);
    assert_true(gms_directory_read(f->all, 0, 9, &record));
    assert_memory_equal(record.hash, block.hash, sizeof record.hash);
    assert_memory_equal(record.parent_hash, block.parent_hash, sizeof record.parent_hash);
    assert_int_equal(record.content_digest, 4711);
    assert_int_equal(record.token_count, 16);
    assert_int_equal(record.part_count, 1);
    assert_int_equal(record.parts[0].generation, generation);
    assert_int_equal(record.sealed_epoch, geometry.epoch);
    assert_int_equal(gms_directory_release(&f->a, 9, generation), GMS_OK); /* the swap is the deletion */
    assert_false(gms_directory_read(f->all, 0, 9, &record));
}

static void test_seal_needs_every_lease(void **state)
{
    struct fixture *f = *state;
    struct gms_record record;
    const uint64_t a = lease(&f->a, 1), b = lease(&f->b, 2);
    struct gms_block block = block_at(0, 1, a);
    block.part_count = 2;
    block.parts[1] = (struct gms_part){.pool = 1, .slot = 2, .generation = b + 1};
    assert_int_equal(gms_directory_seal(f->all, &block, 0), GMS_E_LOST_OWNERSHIP);
    block.parts[1].generation = b + (UINT64_C(1) << 61); /* would be b when packed into a word */
    assert_int_equal(gms_directory_seal(f->all, &block, 0), GMS_E_LOST_OWNERSHIP);
    block.parts[1] = block.parts[0];
    assert_int_equal(gms_directory_seal(f->all, &block, 0), GMS_E_INVALID);
    block.part_count = 0;
    assert_int_equal(gms_directory_seal(f->all, &block, 0), GMS_E_INVALID);
    block.part_count = GMS_RECORD_PARTS + 1;
    assert_int_equal(gms_directory_seal(f->all, &block, 0), GMS_E_INVALID);
    assert_int_equal(state_of(&f->a, 1), GMS_SLOT_LEASED);
    assert_int_equal(state_of(&f->b, 2), GMS_SLOT_LEASED);
    assert_false(gms_directory_read(f->all, 0, 1, &record));
    block.part_count = 2;
    block.parts[1] = (struct gms_part){.pool = 1, .slot = 2, .generation = b};
    assert_int_equal(gms_directory_seal(f->all, &block, 0), GMS_OK);
    assert_int_equal(state_of(&f->a, 1), GMS_SLOT_SEALED);
    assert_int_equal(state_of(&f->b, 2), GMS_SLOT_SEALED);
    assert_true(gms_directory_read(f->all, 0, 1, &record));
    assert_false(gms_directory_read(f->all, 1, 2, &record)); /* its home is elsewhere */
    assert_int_equal(gms_directory_release(&f->b, 2, b), GMS_OK);
    assert_false(gms_directory_read(f->all, 0, 1, &record)); /* whole or not at all */
}

/* One part of a block was given back, leased anew and sealed as another block: the first is a miss from then on. */
static void test_part_of_another_generation_is_a_miss(void **state)
{
    struct fixture *f = *state;
    struct gms_record record;
    uint64_t a = lease(&f->a, 1), b = lease(&f->b, 2);
    struct gms_block block = block_at(0, 1, a);
    block.part_count = 2;
    block.parts[1] = (struct gms_part){.pool = 1, .slot = 2, .generation = b};
    assert_int_equal(GMS_OK, gms_directory_seal(f->all, &block, 0));
    assert_true(gms_directory_read(f->all, 0, 1, &record));
    assert_int_equal(GMS_OK, gms_directory_release(&f->b, 2, b));
    assert_false(gms_directory_read(f->all, 0, 1, &record));
    assert_int_equal(GMS_OK, gms_directory_fence_passed(&f->b, 2, b));
    lease_and_seal(f, 1, 2);
    assert_true(gms_directory_read(f->all, 1, 2, &record));
    assert_false(gms_directory_read(f->all, 0, 1, &record)); /* SEALED again, at another generation */
}

static void test_failed_seal_leaves_the_record_alone(void **state)
{
    struct fixture *f = *state;
    struct gms_record before, after;
    const uint64_t generation = lease_and_seal(f, 0, 3);
    assert_true(gms_directory_read(f->all, 0, 3, &before));
    struct gms_block block = block_at(0, 3, generation);
    memset(block.hash, 0x5a, sizeof block.hash);
    assert_int_equal(gms_directory_seal(f->all, &block, 1), GMS_E_LOST_OWNERSHIP);
    assert_true(gms_directory_read(f->all, 0, 3, &after));
    assert_memory_equal(&before, &after, sizeof before);
}

static void test_every_flipped_record_byte_is_a_miss(void **state)
{
    struct fixture *f = *state;
    struct gms_record record;
    lease_and_seal(f, 0, 3);
    uint8_t *bytes = (uint8_t *)gms_directory_record_words(&f->a, 3);
    for (size_t at = 0; at < GMS_RECORD_BYTES; at++) {
        for (int bit = 0; bit < 8; bit++) {
            bytes[at] ^= (uint8_t)(1 << bit);
            assert_false(gms_directory_read(f->all, 0, 3, &record));
            bytes[at] ^= (uint8_t)(1 << bit);
        }
    }
    assert_true(gms_directory_read(f->all, 0, 3, &record));
}

static void test_record_fits_one_place_and_one_identity(void **state)
{
    struct fixture *f = *state;
    struct gms_record record;
    const uint64_t generation = lease_and_seal(f, 0, 3);
    assert_true(gms_directory_read(f->all, 0, 3, &record));
    /* Copied to another slot of the same generation, even with its part renamed, it does not fit. */
    gms_directory_set_word(&f->a, 8, gms_slot_word_make(GMS_SLOT_SEALED, generation));
    gms_directory_copy_record_in(&f->a, 8, &record);
    struct gms_record seen;
    assert_false(gms_directory_read(f->all, 0, 8, &seen));
    struct gms_record moved = record;
    moved.parts[0].slot = 8;
    gms_directory_copy_record_in(&f->a, 8, &moved);
    assert_false(gms_directory_read(f->all, 0, 8, &seen));
    assert_true(gms_record_checksum(&record, 5, 3) != gms_record_checksum(&record, 5, 4));
    f->a.geometry.identity_digest++;
    assert_false(gms_directory_read(f->all, 0, 3, &seen));
    f->a.geometry.identity_digest--;
    /* A stale generation never matches. */
    gms_directory_set_word(&f->a, 3, gms_slot_word_make(GMS_SLOT_SEALED, generation + 1));
    assert_false(gms_directory_read(f->all, 0, 3, &seen));
}

/* Wrong counts with a right checksum: shape is checked on its own. */
static void test_record_with_impossible_parts_is_a_miss(void **state)
{
    struct fixture *f = *state;
    struct gms_record record, seen;
    lease_and_seal(f, 0, 3);
    assert_true(gms_directory_read(f->all, 0, 3, &record));
    const struct gms_record_part wrong[] = {{.pool = GMS_MAX_POOLS, .slot = 0, .generation = 0},
                                            {.pool = UINT32_MAX, .slot = 0, .generation = 0},
                                            {.pool = 2, .slot = 0, .generation = 0},
                                            {.pool = 1, .slot = 33, .generation = 0},
                                            {.pool = 1, .slot = UINT32_MAX, .generation = 0},
                                            {.pool = 1, .slot = 0, .generation = UINT64_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct gms_record forged = record;
        forged.part_count = 2;
        forged.parts[1] = wrong[i];
        forged.checksum = gms_record_checksum(&forged, geometry.identity_digest, 3);
        gms_directory_copy_record_in(&f->a, 3, &forged);
        assert_false(gms_directory_read(f->all, 0, 3, &seen));
    }
    const uint16_t counts[] = {0, GMS_RECORD_PARTS + 1, UINT16_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct gms_record forged = record;
        forged.part_count = counts[i];
        forged.checksum = gms_record_checksum(&forged, geometry.identity_digest, 3);
        gms_directory_copy_record_in(&f->a, 3, &forged);
        assert_false(gms_directory_read(f->all, 0, 3, &seen));
    }
}

/* ---------------------------------------------------------------------------------------------- concurrency -- */

enum { ROUNDS = 20000, BUSY_SLOTS = 4 };

struct race {
    struct fixture *f;
    atomic_bool over;
    uint64_t hits;
    bool wrong;
};

static void *read_all_the_time(void *context)
{
    struct race *race = context;
    while (!atomic_load(&race->over)) {
        for (uint32_t slot = 0; slot < BUSY_SLOTS; slot++) {
            struct gms_record record;
            uint64_t generation;
            if (!gms_directory_read(race->f->all, 0, slot, &record))
                continue;
            memcpy(&generation, record.hash, sizeof generation);
            race->hits++;
            race->wrong = race->wrong || generation != record.parts[0].generation ||
                          record.content_digest != generation * 3 || record.parts[0].slot != slot;
        }
    }
    return NULL;
}

static void test_reader_never_sees_a_mixture(void **state)
{
    struct fixture *f = *state;
    struct race race = {.f = f};
    pthread_t reader;
    assert_int_equal(pthread_create(&reader, NULL, read_all_the_time, &race), 0);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t slot = round % BUSY_SLOTS;
        uint64_t generation = 0;
        assert_int_equal(gms_directory_acquire(&f->a, slot, &generation), GMS_OK);
        struct gms_block block = block_at(0, slot, generation);
        memcpy(block.hash, &generation, sizeof generation);
        assert_int_equal(gms_directory_seal(f->all, &block, generation * 3), GMS_OK);
        if (round % 8 == 7)
            sched_yield(); /* or one core would never show the reader a sealed slot */
        assert_int_equal(gms_directory_release(&f->a, slot, generation), GMS_OK);
    }
    atomic_store(&race.over, true);
    pthread_join(reader, NULL);
    print_message("%llu reads hit\n", (unsigned long long)race.hits);
    assert_false(race.wrong);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_open_sees_what_create_made),
        T(test_create_refuses_nonsense),
        T(test_open_names_the_field_that_differs),
        T(test_open_refuses_files_of_any_other_shape),
        T(test_every_flipped_header_byte_is_refused),
        T(test_life_of_a_slot),
        T(test_out_of_range_is_invalid),
        T(test_exhausted_generation_retires),
        T(test_words_that_are_no_state_are_left_alone),
        T(test_read_gives_what_was_sealed),
        T(test_seal_needs_every_lease),
        T(test_part_of_another_generation_is_a_miss),
        T(test_failed_seal_leaves_the_record_alone),
        T(test_every_flipped_record_byte_is_a_miss),
        T(test_record_fits_one_place_and_one_identity),
        T(test_record_with_impossible_parts_is_a_miss),
        T(test_reader_never_sees_a_mixture),
#undef T
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
