/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is suspected of which slot: through classifications, successors that die too, restarts, and back.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "directory/quarantine.h"

enum { SLOTS = 40, POOL = 3 };
enum { IDLE, LEASED, SEALED, RELEASED, DAMAGED, QUARANTINED, KINDS };

static struct gms_directory make(uint64_t incarnation)
{
    struct gms_directory directory;
    const struct gms_directory_geometry geometry = {
        .pool = POOL, .slot_count = SLOTS, .block_bytes = 64, .identity_digest = 9, .incarnation = incarnation};
    assert_int_equal(gms_directory_create(&geometry, &directory, NULL), GMS_OK);
    return directory;
}

static struct gms_quarantine make_suspects(void)
{
    struct gms_quarantine quarantine;
    assert_int_equal(gms_quarantine_create(POOL, SLOTS, &quarantine, NULL), GMS_OK);
    return quarantine;
}

static enum gms_slot_state state_of(const struct gms_directory *directory, uint32_t slot)
{
    return gms_slot_word_state(gms_directory_word(directory, slot));
}

static void put(struct gms_directory *directory, uint32_t slot, enum gms_slot_state state)
{
    gms_directory_set_word(directory, slot, gms_slot_word_make(state, 5));
}

/* As the coordinator does it. */
static void classify(struct gms_quarantine *quarantine, struct gms_directory *source, struct gms_directory *into,
                     uint32_t place)
{
    struct gms_directory *from[GMS_MAX_POOLS] = {NULL}, *to[GMS_MAX_POOLS] = {NULL};
    struct gms_directory_index *index[GMS_MAX_POOLS] = {NULL};
    struct gms_classification counts[GMS_MAX_POOLS];
    from[POOL] = source;
    to[POOL] = into;
    assert_int_equal(gms_directory_index_create(SLOTS, &index[POOL], NULL), GMS_OK);
    assert_int_equal(gms_directory_classify(index, from, to, false, counts, NULL), GMS_OK);
    gms_quarantine_classified(quarantine, index[POOL], source, into, place);
    gms_directory_index_free(index[POOL]);
}

static void test_what_the_source_may_write_is_suspected_of_it(void **state)
{
    struct gms_quarantine quarantine = make_suspects();
    struct gms_directory a = make(1), b = make(2);
    (void)state;
    put(&a, LEASED, GMS_SLOT_LEASED);
    put(&a, RELEASED, GMS_SLOT_RELEASED);
    put(&a, DAMAGED, GMS_SLOT_SEALED); /* without a record */
    put(&a, QUARANTINED, GMS_SLOT_QUARANTINED);
    gms_quarantine_suspect(&quarantine, QUARANTINED, 1u << 7);
    gms_quarantine_suspect(&quarantine, IDLE, 1u << 7); /* what a crash in a return leaves */
    classify(&quarantine, &a, &b, 2);
    assert_int_equal(gms_quarantine_suspects(&quarantine, IDLE), 0);
    assert_int_equal(gms_quarantine_suspects(&quarantine, LEASED), 1u << 2);
    assert_int_equal(gms_quarantine_suspects(&quarantine, RELEASED), 1u << 2);
    assert_int_equal(gms_quarantine_suspects(&quarantine, DAMAGED), 1u << 2);
    assert_int_equal(gms_quarantine_suspects(&quarantine, QUARANTINED), 1u << 7); /* it never had it */
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        assert_int_equal(state_of(&b, slot) == GMS_SLOT_QUARANTINED, gms_quarantine_suspects(&quarantine, slot) != 0);
    classify(&quarantine, &a, &b, 2); /* again after a restart: the same */
    assert_int_equal(gms_quarantine_suspects(&quarantine, LEASED), 1u << 2);
    gms_directory_close(&a);
    gms_directory_close(&b);
    gms_quarantine_close(&quarantine);
}

/* B dies too: what it leased is suspected of B, what A may write is suspected of A still. */
static void test_earlier_suspects_stay(void **state)
{
    struct gms_quarantine quarantine = make_suspects();
    struct gms_directory a = make(1), b = make(2), x = make(3);
    uint64_t generation;
    uint32_t suspects = 0;
    const struct gms_quarantine_pass only_b = {.owner = 3, .chosen = 1u << 1}, both = {.owner = 3, .chosen = 3};
    (void)state;
    put(&a, 1, GMS_SLOT_LEASED);
    classify(&quarantine, &a, &b, 0);
    assert_int_equal(gms_directory_acquire(&b, 2, &generation), GMS_OK);
    assert_int_equal(gms_directory_acquire(&b, 1, &generation), GMS_E_QUARANTINED);
    classify(&quarantine, &b, &x, 1);
    assert_int_equal(gms_quarantine_suspects(&quarantine, 1), 1u << 0);
    assert_int_equal(gms_quarantine_suspects(&quarantine, 2), 1u << 1);
    uint32_t by[32];
    assert_int_equal(gms_quarantine_stamp_all(&quarantine, &x, &both, by), 2);
    assert_int_equal(by[0], 1);
    assert_int_equal(by[1], 1);
    assert_true(gms_quarantine_holds_back(&quarantine, &x, &only_b, 1));
    assert_false(gms_quarantine_holds_back(&quarantine, &x, &only_b, 2));
    gms_quarantine_suspect(&quarantine, 2, 1u << 0); /* of two now: one that is quiet is not enough */
    assert_true(gms_quarantine_holds_back(&quarantine, &x, &only_b, 2));
    gms_quarantine_clear(&quarantine, 1u << 0);
    gms_quarantine_suspect(&quarantine, 1, 1u << 0);
    assert_true(gms_quarantine_holds_back(&quarantine, &x, &both, 0)); /* not in quarantine */
    assert_true(gms_quarantine_holds_back(&quarantine, &x, &both, SLOTS));
    assert_true(gms_quarantine_return(&quarantine, &x, 2, &suspects));
    assert_int_equal(suspects, 1u << 1);
    assert_int_equal(state_of(&x, 2), GMS_SLOT_IDLE);
    assert_int_equal(gms_quarantine_suspects(&quarantine, 2), 0);
    assert_int_equal(gms_quarantine_stamp(&quarantine, 2), 0);
    assert_false(gms_quarantine_return(&quarantine, &x, 2, &suspects)); /* once */
    assert_int_equal(gms_directory_acquire(&x, 2, &generation), GMS_OK);
    assert_false(gms_quarantine_return(&quarantine, &x, 2, &suspects)); /* least of all when it is leased again */
    assert_int_equal(state_of(&x, 2), GMS_SLOT_LEASED);
    gms_directory_close(&a);
    gms_directory_close(&b);
    gms_directory_close(&x);
    gms_quarantine_close(&quarantine);
}

static void test_stamps_are_their_owners(void **state)
{
    struct gms_quarantine quarantine = make_suspects();
    struct gms_directory b = make(2);
    const struct gms_quarantine_pass old = {.owner = 2, .chosen = 1}, next = {.owner = 3, .chosen = 1},
                                     heir = {.owner = 3, .chosen = 1, .inherits = true};
    (void)state;
    put(&b, 1, GMS_SLOT_QUARANTINED);
    gms_quarantine_suspect(&quarantine, 1, 1);
    assert_true(gms_quarantine_holds_back(&quarantine, &b, &old, 1)); /* not stamped */
    assert_true(gms_quarantine_holds_back(&quarantine, &b, &heir, 1));
    gms_quarantine_stamp_all(&quarantine, &b, &old, NULL);
    assert_false(gms_quarantine_holds_back(&quarantine, &b, &old, 1));
    assert_true(gms_quarantine_holds_back(&quarantine, &b, &next, 1));
    assert_false(gms_quarantine_holds_back(&quarantine, &b, &heir, 1));
    gms_quarantine_stamp_all(&quarantine, &b, &heir, NULL);
    assert_int_equal(gms_quarantine_stamp(&quarantine, 1), 2); /* the dead one's stays */
    gms_quarantine_stamp_all(&quarantine, &b, &next, NULL);
    assert_int_equal(gms_quarantine_stamp(&quarantine, 1), 3);
    gms_quarantine_suspect(&quarantine, 1, 6);
    gms_quarantine_clear(&quarantine, 1u << 1);
    assert_int_equal(gms_quarantine_suspects(&quarantine, 1), 5);
    gms_directory_close(&b);
    gms_quarantine_close(&quarantine);
}

/* The second KV pool of an engine that the next one does not have, and the one after it has again. */
static void test_a_pool_that_a_successor_does_not_have(void **state)
{
    struct gms_quarantine quarantine = make_suspects();
    struct gms_directory a = make(1), x = make(3);
    (void)state;
    put(&a, 1, GMS_SLOT_LEASED);
    put(&a, 2, GMS_SLOT_SEALED);
    gms_quarantine_classified(&quarantine, NULL, &a, NULL, 4);
    assert_int_equal(gms_quarantine_suspects(&quarantine, 1), 1u << 4);
    assert_int_equal(gms_quarantine_suspects(&quarantine, 2), 0); /* complete: nobody writes it */
    gms_quarantine_classified(&quarantine, NULL, NULL, &x, 5);
    assert_int_equal(state_of(&x, 1), GMS_SLOT_QUARANTINED);
    assert_int_equal(state_of(&x, 2), GMS_SLOT_IDLE);
    assert_int_equal(gms_quarantine_suspects(&quarantine, 1), 1u << 4);
    gms_directory_close(&a);
    gms_directory_close(&x);
    gms_quarantine_close(&quarantine);
}

static void test_what_nobody_knows_any_more(void **state)
{
    struct gms_quarantine quarantine = make_suspects();
    struct gms_directory a = make(1), b = make(2);
    (void)state;
    put(&a, LEASED, GMS_SLOT_LEASED);
    put(&a, SEALED, GMS_SLOT_SEALED);
    put(&a, RELEASED, GMS_SLOT_RELEASED);
    put(&a, QUARANTINED, GMS_SLOT_QUARANTINED);
    gms_quarantine_distrust(&quarantine, &a, false);
    assert_int_equal(gms_quarantine_suspects(&quarantine, QUARANTINED), 1u << GMS_QUARANTINE_UNKNOWN);
    assert_int_equal(gms_quarantine_suspects(&quarantine, LEASED), 0); /* its owner lives */
    gms_quarantine_distrust(&quarantine, &a, true);
    assert_int_equal(gms_quarantine_suspects(&quarantine, LEASED), 1u << GMS_QUARANTINE_UNKNOWN);
    assert_int_equal(gms_quarantine_suspects(&quarantine, RELEASED), 1u << GMS_QUARANTINE_UNKNOWN);
    assert_int_equal(gms_quarantine_suspects(&quarantine, SEALED), 0);
    gms_quarantine_begin(&quarantine, &b);
    assert_int_equal(state_of(&b, LEASED), GMS_SLOT_QUARANTINED);
    assert_int_equal(state_of(&b, SEALED), GMS_SLOT_IDLE);
    gms_directory_close(&a);
    gms_directory_close(&b);
    gms_quarantine_close(&quarantine);
}

static void test_the_file_is_found_again_and_no_other(void **state)
{
    struct gms_quarantine quarantine = make_suspects(), other = {.fd = -1};
    struct gms_error error;
    (void)state;
    gms_quarantine_suspect(&quarantine, SLOTS - 1, 0x80000001u);
    int fd = fcntl(quarantine.fd, F_DUPFD_CLOEXEC, 3);
    assert_int_equal(gms_quarantine_open(fd, POOL, SLOTS + 1, &other, &error), GMS_E_MISMATCH);
    assert_int_equal(gms_quarantine_open(fd, POOL + 1, SLOTS, &other, &error), GMS_E_MISMATCH);
    assert_int_equal(gms_quarantine_open(fd, POOL, SLOTS, &other, &error), GMS_OK);
    assert_int_equal(gms_quarantine_suspects(&other, SLOTS - 1), 0x80000001u);
    gms_quarantine_close(&other);
    for (uint32_t byte = 0; byte < 32; byte++) { /* every bit of the header counts */
        ((unsigned char *)quarantine.base)[byte] ^= 0x10;
        fd = fcntl(quarantine.fd, F_DUPFD_CLOEXEC, 3);
        assert_int_not_equal(gms_quarantine_open(fd, POOL, SLOTS, &other, &error), GMS_OK);
        close(fd);
        ((unsigned char *)quarantine.base)[byte] ^= 0x10;
    }
    int unsealed = memfd_create("unsealed", MFD_CLOEXEC);
    assert_int_equal(write(unsealed, quarantine.base, 4096), 4096);
    assert_int_equal(gms_quarantine_open(unsealed, POOL, SLOTS, &other, &error), GMS_E_CORRUPT);
    close(unsealed);
    assert_int_equal(gms_quarantine_create(POOL, 0, &other, &error), GMS_E_INVALID);
    gms_quarantine_close(&quarantine);
    gms_quarantine_close(&quarantine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_the_source_may_write_is_suspected_of_it),
        cmocka_unit_test(test_earlier_suspects_stay),
        cmocka_unit_test(test_stamps_are_their_owners),
        cmocka_unit_test(test_a_pool_that_a_successor_does_not_have),
        cmocka_unit_test(test_what_nobody_knows_any_more),
        cmocka_unit_test(test_the_file_is_found_again_and_no_other),
    };
    return cmocka_run_group_tests_name("quarantine", tests, NULL, NULL);
}
