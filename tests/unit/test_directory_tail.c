/* SPDX-License-Identifier: Apache-2.0
 *
 * Tails: how far the block in a leased slot has come. Whatever a reader finds was noted, in that lease, by that writer:
 * after every prefix of a note's stores, after any scribble, and against a model under random lives.
 */
#include "unit_support.h"

#include <pthread.h>
#include <stdatomic.h>

#include "directory/layout.h"
#include "directory/tail.h"

enum { SLOTS = 24, WRITER = 7, SUCCESSOR = 8 };

static const struct gms_directory_geometry geometry = {.pool = 2,
                                                       .slot_count = SLOTS,
                                                       .block_bytes = 4096,
                                                       .identity_digest = 0x1122334455667788,
                                                       .world = 3,
                                                       .incarnation = WRITER,
                                                       .epoch = 5};

struct fixture {
    struct gms_directory source, into;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct gms_directory_geometry other = geometry;
    other.incarnation = SUCCESSOR;
    if (gms_directory_create(&geometry, &f->source, NULL) != GMS_OK ||
        gms_directory_create(&other, &f->into, NULL) != GMS_OK)
        return -1;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    gms_directory_close(&f->source);
    gms_directory_close(&f->into);
    free(f);
    return 0;
}

/* A progress that is told apart by lease and count. */
struct said {
    uint8_t parent[GMS_BLOCK_HASH_BYTES], hash[GMS_BLOCK_HASH_BYTES];
    struct gms_tail_progress progress;
};

static void say(struct said *said, uint64_t lease, uint32_t count)
{
    memset(said, 0, sizeof *said);
    memcpy(said->parent, &lease, sizeof lease);
    memcpy(said->hash, &lease, sizeof lease);
    memcpy(said->hash + sizeof lease, &count, sizeof count);
    said->progress = (struct gms_tail_progress){
        .parent_hash = said->parent, .hash = said->hash, .token_count = count, .content = lease * 1000 + count};
}

static gms_status note(struct gms_directory *directory, uint32_t slot, uint64_t generation, uint32_t count)
{
    struct said said;
    say(&said, generation, count);
    return gms_directory_note_tail(directory, slot, generation, &said.progress);
}

static uint64_t lease(struct gms_directory *directory, uint32_t slot)
{
    uint64_t generation = 0;
    assert_int_equal(gms_directory_acquire(directory, slot, &generation), GMS_OK);
    return generation;
}

/* The counts that a reader finds, a bit each; what it finds is what was said. */
static uint64_t counts_of(const struct gms_directory *directory, uint32_t slot, uint64_t generation, uint64_t writer)
{
    struct gms_tail_record record;
    uint64_t counts = 0;
    const uint32_t places = gms_directory_read_tail(directory, slot, generation, writer, &record);
    for (uint32_t i = 0; i < GMS_TAIL_ENTRIES; i++) {
        struct said said;
        const struct gms_tail_place nothing = {.extent = 0};
        if ((places >> i & 1) == 0) {
            if (places != 0)
                assert_memory_equal(&record.places[i], &nothing, sizeof nothing);
            continue;
        }
        const uint32_t count = gms_tail_count(&record.places[i]);
        say(&said, generation, count);
        assert_memory_equal(record.parent_hash, said.parent, sizeof said.parent);
        assert_memory_equal(record.places[i].hash, said.hash, sizeof said.hash);
        assert_int_equal(gms_tail_content(&record.places[i]), said.progress.content);
        counts |= UINT64_C(1) << count;
    }
    return counts;
}

#define COUNT(n) (UINT64_C(1) << (n))

/* --------------------------------------------------------------------------------------------------- notes ---- */

static void test_the_last_three_are_kept(void **state)
{
    struct fixture *f = *state;
    const uint64_t generation = lease(&f->source, 5);
    uint32_t count = 0;
    uint64_t content = 0;
    assert_int_equal(counts_of(&f->source, 5, generation, WRITER), 0);
    assert_false(gms_directory_last_tail(&f->source, 5, generation, &count, &content));
    static const uint32_t counts[] = {1, 2, 3, 4, 9, 16};
    uint64_t expected = 0;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        assert_int_equal(note(&f->source, 5, generation, counts[i]), GMS_OK);
        expected |= COUNT(counts[i]);
        if (i >= GMS_TAIL_ENTRIES)
            expected &= ~COUNT(counts[i - GMS_TAIL_ENTRIES]);
        assert_int_equal(counts_of(&f->source, 5, generation, WRITER), expected);
        assert_true(gms_directory_last_tail(&f->source, 5, generation, &count, &content));
        assert_int_equal(count, counts[i]);
        assert_int_equal(content, generation * 1000 + counts[i]);
    }
    assert_int_equal(note(&f->source, 5, generation, 16), GMS_OK); /* again: nothing new */
    assert_int_equal(counts_of(&f->source, 5, generation, WRITER), expected);
    assert_int_equal(note(&f->source, 5, generation, 15), GMS_E_INVALID); /* positions are written once */
    struct said said;
    say(&said, generation, 17);
    said.parent[3] ^= 1;
    assert_int_equal(gms_directory_note_tail(&f->source, 5, generation, &said.progress), GMS_E_INVALID);
    assert_int_equal(counts_of(&f->source, 5, generation, WRITER), expected);
}

static void test_only_a_lease_has_a_tail(void **state)
{
    struct fixture *f = *state;
    struct gms_directory *all[GMS_MAX_POOLS] = {[2] = &f->source};
    assert_int_equal(note(&f->source, 3, 0, 1), GMS_E_REFUSED); /* idle */
    uint64_t generation = lease(&f->source, 3);
    assert_int_equal(note(&f->source, 3, generation + 1, 1), GMS_E_STALE);
    assert_int_equal(note(&f->source, 3, generation - 1, 1), GMS_E_STALE);
    assert_int_equal(note(&f->source, 3, generation, 0), GMS_E_INVALID);
    assert_int_equal(note(&f->source, 3, generation, GMS_TAIL_POSITIONS_MAX + 1), GMS_E_INVALID);
    assert_int_equal(note(&f->source, SLOTS, 0, 1), GMS_E_INVALID);
    assert_int_equal(note(&f->source, 3, generation, 4), GMS_OK);
    assert_int_equal(gms_directory_release(&f->source, 3, generation), GMS_OK);
    assert_int_equal(note(&f->source, 3, generation, 5), GMS_E_REFUSED);
    /* The next lease of the slot begins with nothing, and what the last one said does not fit it. */
    const uint64_t next = lease(&f->source, 3);
    assert_int_equal(counts_of(&f->source, 3, next, WRITER), 0);
    assert_int_equal(note(&f->source, 3, next, 2), GMS_OK); /* fewer than the last lease had */
    assert_int_equal(counts_of(&f->source, 3, next, WRITER), COUNT(2));
    assert_int_equal(counts_of(&f->source, 3, generation, WRITER), 0);
    const struct gms_block block = {.token_count = 16, .part_count = 1, .parts = {{2, 3, next}}};
    assert_int_equal(gms_directory_seal(all, &block, 0), GMS_OK);
    assert_int_equal(note(&f->source, 3, next, 16), GMS_E_REFUSED);
}

/* The entry of another place, generation, writer, pool or identity does not fit, byte for byte the same as it is. */
static void test_an_entry_fits_one_place(void **state)
{
    struct fixture *f = *state;
    struct gms_tail_record record;
    const uint64_t generation = lease(&f->source, 1);
    lease(&f->source, 2);
    assert_int_equal(note(&f->source, 1, generation, 6), GMS_OK);
    assert_int_equal(counts_of(&f->source, 1, generation, WRITER), COUNT(6));
    assert_int_equal(counts_of(&f->source, 1, generation, WRITER + 1), 0);
    assert_int_equal(counts_of(&f->source, 1, generation + 1, WRITER), 0);
    assert_int_equal(counts_of(&f->source, SLOTS, generation, WRITER), 0);
    const uint32_t places = gms_directory_read_tail(&f->source, 1, generation, WRITER, &record);
    gms_directory_keep_tail(&f->source, 2, &record, places);
    assert_int_equal(gms_directory_read_tail(&f->source, 2, generation, WRITER, &record), 0);
    f->source.geometry.pool++;
    assert_int_equal(gms_directory_read_tail(&f->source, 1, generation, WRITER, &record), 0);
    f->source.geometry.pool--;
    f->source.geometry.identity_digest++;
    assert_int_equal(gms_directory_read_tail(&f->source, 1, generation, WRITER, &record), 0);
    f->source.geometry.identity_digest--;
    assert_int_equal(gms_directory_read_tail(&f->source, 1, generation, WRITER, &record), places);
}

/* ------------------------------------------------------------------------------------------------ torn notes --- */

static void carry_out(struct gms_directory *directory, uint32_t slot, const struct gms_tail_store *stores,
                      uint32_t from, uint32_t to)
{
    _Atomic uint64_t *words = gms_directory_tail_words(directory, slot);
    for (uint32_t i = from; i < to; i++)
        atomic_store_explicit(&words[stores[i].word], stores[i].value, memory_order_release);
}

static void snapshot(const struct gms_directory *directory, uint32_t slot, struct gms_tail_record *ret_record)
{
    memcpy(ret_record, (const void *)gms_directory_tail_words(directory, slot), sizeof *ret_record);
}

/* A writer that ends between two stores of any note, the first of a lease over an older one's included. */
static void test_every_prefix_of_a_note_is_safe(void **state)
{
    struct fixture *f = *state;
    uint64_t generation = lease(&f->source, 4);
    for (uint32_t count = 1; count <= 9; count++) /* an older lease's tail, all places used */
        assert_int_equal(note(&f->source, 4, generation, count), GMS_OK);
    assert_int_equal(gms_directory_release(&f->source, 4, generation), GMS_OK);
    generation = lease(&f->source, 4);
    uint32_t prefixes = 0;
    for (uint32_t count = 1; count <= 8; count++) {
        struct gms_tail_record before, torn;
        struct gms_tail_store stores[GMS_TAIL_STORES_MAX];
        struct said said;
        say(&said, generation, count);
        snapshot(&f->source, 4, &before);
        const uint64_t known = counts_of(&f->source, 4, generation, WRITER);
        const uint64_t after =
            (known & ~(count > GMS_TAIL_ENTRIES ? COUNT(count - GMS_TAIL_ENTRIES) : 0)) | COUNT(count);
        const uint32_t length = gms_tail_stores(&f->source.geometry, 4, before.generation, before.notes, generation,
                                                &said.progress, stores);
        assert_true(length <= GMS_TAIL_STORES_MAX);
        for (uint32_t prefix = 0; prefix <= length; prefix++, prefixes++) {
            memcpy((void *)gms_directory_tail_words(&f->source, 4), &before, sizeof before);
            carry_out(&f->source, 4, stores, 0, prefix);
            const uint64_t found = counts_of(&f->source, 4, generation, WRITER); /* checks what it finds */
            const bool whole = (found & COUNT(count)) != 0;
            assert_int_equal(whole, prefix + 1 >= length); /* the checksum is the last but one, then the counter */
            /* Nothing but the oldest is ever missing, so the step before is there at any moment. */
            assert_int_equal(found, whole ? after : prefix == 0 ? known : known & after);
            if (count > 1)
                assert_true((found & COUNT(count - 1)) != 0);
            /* A writer that went on after it (in truth it is dead) would not make it worse. */
            snapshot(&f->source, 4, &torn);
            if (!whole) {
                assert_int_equal(note(&f->source, 4, generation, count), GMS_OK);
                assert_true((counts_of(&f->source, 4, generation, WRITER) & COUNT(count)) != 0);
            }
        }
        memcpy((void *)gms_directory_tail_words(&f->source, 4), &before, sizeof before);
        assert_int_equal(note(&f->source, 4, generation, count), GMS_OK);
    }
    print_message("%u prefixes\n", prefixes);
}

/* Not even an order of the stores that no machine makes gives a wrong entry: any subset of them. */
static void test_any_subset_of_the_stores_is_safe(void **state)
{
    struct fixture *f = *state;
    uint64_t generation = lease(&f->source, 4);
    for (uint32_t count = 1; count <= 5; count++)
        assert_int_equal(note(&f->source, 4, generation, count), GMS_OK);
    assert_int_equal(gms_directory_release(&f->source, 4, generation), GMS_OK);
    generation = lease(&f->source, 4);
    for (uint32_t count = 1; count <= 5; count++) {
        struct gms_tail_record before;
        struct gms_tail_store stores[GMS_TAIL_STORES_MAX];
        struct said said;
        say(&said, generation, count);
        snapshot(&f->source, 4, &before);
        const uint64_t known = counts_of(&f->source, 4, generation, WRITER);
        const uint32_t length = gms_tail_stores(&f->source.geometry, 4, before.generation, before.notes, generation,
                                                &said.progress, stores);
        for (uint32_t subset = 0; subset < 1u << length; subset++) {
            memcpy((void *)gms_directory_tail_words(&f->source, 4), &before, sizeof before);
            for (uint32_t i = 0; i < length; i++)
                if ((subset >> i & 1) != 0)
                    carry_out(&f->source, 4, stores, i, i + 1);
            const uint64_t found = counts_of(&f->source, 4, generation, WRITER);
            assert_int_equal(found & ~(known | COUNT(count)), 0);
        }
        memcpy((void *)gms_directory_tail_words(&f->source, 4), &before, sizeof before);
        assert_int_equal(note(&f->source, 4, generation, count), GMS_OK);
    }
}

/* Every field of a record, every bit of it: what is left is what was said, and the entry it hits is gone. */
static void test_every_scribbled_bit_is_a_miss(void **state)
{
    struct fixture *f = *state;
    const uint64_t generation = lease(&f->source, 6);
    for (uint32_t count = 4; count <= 6; count++)
        assert_int_equal(note(&f->source, 6, generation, count), GMS_OK);
    const uint64_t all = COUNT(4) | COUNT(5) | COUNT(6);
    uint8_t *bytes = (uint8_t *)gms_directory_tail_words(&f->source, 6);
    for (size_t at = 0; at < GMS_TAIL_BYTES; at++)
        for (int bit = 0; bit < 8; bit++) {
            bytes[at] ^= (uint8_t)(1 << bit);
            const uint64_t found = counts_of(&f->source, 6, generation, WRITER);
            if (at < 8 || (at >= 16 && at < 32))
                assert_int_equal(found, 0); /* generation, parent: of all entries */
            else if (at < 16)
                assert_int_equal(found, all); /* the counter says nothing to a reader */
            else
                assert_int_equal(found, all & ~COUNT(4 + (at - 32) / 32));
            bytes[at] ^= (uint8_t)(1 << bit);
        }
    assert_int_equal(counts_of(&f->source, 6, generation, WRITER), all);
}

/* -------------------------------------------------------------------------------------------- classification --- */

static void classify(struct fixture *f, struct gms_classification *ret_counts)
{
    struct gms_directory_index *const index[GMS_MAX_POOLS] = {0};
    struct gms_directory *const from[GMS_MAX_POOLS] = {[2] = &f->source}, *const into[GMS_MAX_POOLS] = {[2] = &f->into};
    struct gms_classification counts[GMS_MAX_POOLS];
    assert_int_equal(gms_directory_classify(index, from, into, false, counts, NULL), GMS_OK);
    *ret_counts = counts[2];
}

static void test_only_what_the_source_had_leased_is_copied(void **state)
{
    struct fixture *f = *state;
    struct gms_classification counts;
    uint64_t generation[5];
    for (uint32_t slot = 0; slot < 5; slot++) {
        generation[slot] = lease(&f->source, slot);
        assert_int_equal(note(&f->source, slot, generation[slot], 3 + slot), GMS_OK);
    }
    assert_int_equal(gms_directory_release(&f->source, 1, generation[1]), GMS_OK);
    /* Found in quarantine by the source: an earlier engine's, whatever the tail says. */
    gms_directory_set_word(&f->source, 2, gms_slot_word_make(GMS_SLOT_QUARANTINED, generation[2]));
    /* Leased anew since, and nothing said yet. */
    gms_directory_set_word(&f->source, 3, gms_slot_word_make(GMS_SLOT_LEASED, generation[3] + 1));
    classify(f, &counts);
    assert_int_equal(counts.tails, 2);
    assert_int_equal(counts_of(&f->into, 0, generation[0], WRITER), COUNT(3));
    assert_int_equal(counts_of(&f->into, 1, generation[1], WRITER), 0);
    assert_int_equal(counts_of(&f->into, 2, generation[2], WRITER), 0);
    assert_int_equal(counts_of(&f->into, 3, generation[3], WRITER), 0);
    assert_int_equal(counts_of(&f->into, 3, generation[3] + 1, WRITER), 0);
    assert_int_equal(counts_of(&f->into, 4, generation[4], WRITER), COUNT(7));
    assert_int_equal(counts_of(&f->into, 0, generation[0], SUCCESSOR), 0); /* it stays the source's word */
    /* Classified once more: what is gone meanwhile is gone here too. */
    memset((void *)gms_directory_tail_words(&f->source, 0), 0, GMS_TAIL_BYTES);
    classify(f, &counts);
    assert_int_equal(counts.tails, 1);
    assert_int_equal(counts_of(&f->into, 0, generation[0], WRITER), 0);
    assert_int_equal(gms_directory_drop_tails(&f->into), 1);
    assert_int_equal(counts_of(&f->into, 4, generation[4], WRITER), 0);
    assert_int_equal(gms_directory_drop_tails(&f->into), 0);
}

static void test_another_identity_has_no_tails(void **state)
{
    struct fixture *f = *state;
    struct gms_classification counts;
    assert_int_equal(note(&f->source, 0, lease(&f->source, 0), 3), GMS_OK);
    f->into.geometry.identity_digest++;
    classify(f, &counts);
    assert_int_equal(counts.tails, 0);
}

/* ------------------------------------------------------------------------------------------------ agreement ---- */

enum { RANKS = 3 };

/* One slot on several ranks: what they agree on, as the bulk sub-round does: all offer, all alike. Each rank's answer.
 */
static void agree(struct gms_directory into[RANKS], const struct gms_directory *source, uint32_t slot,
                  uint64_t ret_counts[RANKS])
{
    struct gms_tail_candidate candidates[RANKS];
    uint32_t lanes = (1u << GMS_TAIL_LANES) - 1;
    for (int rank = 0; rank < RANKS; rank++) {
        (void)gms_directory_tail_candidate(&into[rank], source != NULL ? &source[rank] : NULL, slot,
                                           gms_directory_word(&into[rank], slot), WRITER, &candidates[rank]);
        for (uint32_t lane = 0; lane < GMS_TAIL_LANES; lane++)
            if (candidates[rank].digests[lane] == 0 || candidates[rank].digests[lane] != candidates[0].digests[lane])
                lanes &= ~(1u << lane);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        const gms_slot_word word = gms_directory_word(&into[rank], slot);
        const uint64_t generation = gms_slot_word_generation(word);
        gms_directory_set_word(&into[rank], slot, gms_slot_word_make(GMS_SLOT_QUARANTINED, generation));
        gms_directory_tail_agreed(&into[rank], slot, &candidates[rank], lanes);
        struct gms_tail_record record;
        const uint32_t places = gms_directory_read_tail(&into[rank], slot, generation, WRITER, &record);
        ret_counts[rank] = 0;
        for (uint32_t i = 0; i < GMS_TAIL_ENTRIES; i++)
            if ((places >> i & 1) != 0)
                ret_counts[rank] |= COUNT(gms_tail_count(&record.places[i]));
    }
}

/* Ranks lease a slot a different number of times, so generations differ; what is said of a block does not. */
static gms_status note_as(struct gms_directory *directory, uint32_t slot, uint64_t block, uint32_t count)
{
    struct said said;
    say(&said, block, count);
    return gms_directory_note_tail(directory, slot, gms_slot_word_generation(gms_directory_word(directory, slot)),
                                   &said.progress);
}

struct ranks {
    struct gms_directory source[RANKS], into[RANKS];
};

static void ranks_open(struct ranks *ranks)
{
    for (int rank = 0; rank < RANKS; rank++) {
        struct gms_directory_geometry mine = geometry;
        mine.identity_digest += (uint64_t)rank; /* ranks have their own */
        assert_int_equal(gms_directory_create(&mine, &ranks->source[rank], NULL), GMS_OK);
        mine.incarnation = SUCCESSOR;
        assert_int_equal(gms_directory_create(&mine, &ranks->into[rank], NULL), GMS_OK);
        for (int i = 0; i < rank; i++) { /* so that generations differ */
            const uint64_t generation = lease(&ranks->source[rank], 0);
            assert_int_equal(gms_directory_release(&ranks->source[rank], 0, generation), GMS_OK);
        }
        lease(&ranks->source[rank], 0);
    }
}

static void ranks_classify(struct ranks *ranks)
{
    for (int rank = 0; rank < RANKS; rank++) {
        struct fixture one = {.source = ranks->source[rank], .into = ranks->into[rank]};
        struct gms_classification counts;
        classify(&one, &counts);
    }
}

static void ranks_close(struct ranks *ranks)
{
    for (int rank = 0; rank < RANKS; rank++) {
        gms_directory_close(&ranks->source[rank]);
        gms_directory_close(&ranks->into[rank]);
    }
}

/* Rank 0 has come `ahead` steps further than the others. */
static uint64_t agreed_when_ahead(uint32_t steps, uint32_t ahead)
{
    struct ranks ranks;
    uint64_t counts[RANKS];
    ranks_open(&ranks);
    for (int rank = 0; rank < RANKS; rank++)
        for (uint32_t count = 1; count <= steps + (rank == 0 ? ahead : 0); count++)
            assert_int_equal(note_as(&ranks.source[rank], 0, 9, count), GMS_OK);
    ranks_classify(&ranks);
    agree(ranks.into, ranks.source, 0, counts);
    for (int rank = 1; rank < RANKS; rank++)
        assert_int_equal(counts[rank], counts[0]);
    ranks_close(&ranks);
    return counts[0];
}

static void test_ranks_that_are_a_step_apart(void **state)
{
    (void)state;
    assert_int_equal(agreed_when_ahead(5, 0), COUNT(3) | COUNT(4) | COUNT(5));
    assert_int_equal(agreed_when_ahead(5, 1), COUNT(4) | COUNT(5)); /* the least of them, not the greatest */
    assert_int_equal(agreed_when_ahead(5, 2), COUNT(5));
    assert_int_equal(agreed_when_ahead(5, 3), 0);
    assert_int_equal(agreed_when_ahead(1, 1), COUNT(1));
    assert_int_equal(agreed_when_ahead(0, 1), 0);
}

/* Killed between two seals: the block is sealed on some ranks and not on others, and no rank may adopt it. */
static void sealed_on_one_rank_only(uint32_t noted_there, bool with_source, uint64_t expected)
{
    struct ranks ranks;
    uint64_t counts[RANKS];
    ranks_open(&ranks);
    for (int rank = 0; rank < RANKS; rank++)
        for (uint32_t count = 14; count <= (rank == 1 ? noted_there : 16); count++)
            assert_int_equal(note_as(&ranks.source[rank], 0, 9, count), GMS_OK);
    struct gms_directory *all[GMS_MAX_POOLS] = {[2] = &ranks.source[1]};
    struct gms_block block = {.token_count = 16, .part_count = 1};
    struct said said;
    say(&said, 9, 16);
    memcpy(block.hash, said.hash, sizeof block.hash);
    memcpy(block.parent_hash, said.parent, sizeof block.parent_hash);
    block.parts[0] = (struct gms_part){2, 0, gms_slot_word_generation(gms_directory_word(&ranks.source[1], 0))};
    assert_int_equal(gms_directory_seal(all, &block, 0), GMS_OK);
    ranks_classify(&ranks);
    assert_int_equal(gms_slot_word_state(gms_directory_word(&ranks.into[1], 0)), GMS_SLOT_SEALED);
    for (int time = 0; time < 2; time++) { /* asked again, as after a restart in the middle: the same */
        agree(ranks.into, with_source ? ranks.source : NULL, 0, counts);
        for (int rank = 0; rank < RANKS; rank++)
            assert_int_equal(counts[rank], expected);
    }
    ranks_close(&ranks);
}

/* What it had noted before is there too: a client may not know the block's last token yet. */
static void test_sealed_on_one_rank_only(void **state)
{
    (void)state;
    sealed_on_one_rank_only(16, true, COUNT(14) | COUNT(15) | COUNT(16));
    sealed_on_one_rank_only(16, false, COUNT(16)); /* the source's file is gone */
    sealed_on_one_rank_only(15, true, COUNT(16));  /* sealed without a note of its last step */
    sealed_on_one_rank_only(13, true, COUNT(16));  /* nothing noted */
}

static void test_unequal_tails_are_nobodys(void **state)
{
    struct ranks ranks;
    uint64_t counts[RANKS];
    (void)state;
    ranks_open(&ranks);
    for (int rank = 0; rank < RANKS; rank++)
        for (uint32_t count = 1; count <= 3; count++)
            assert_int_equal(note_as(&ranks.source[rank], 0, 9, count), GMS_OK);
    /* Another block on rank 2: other tokens in its last step. */
    struct said said;
    say(&said, 9, 4);
    for (int rank = 0; rank < RANKS; rank++) {
        said.hash[15] = (uint8_t)(rank == 2);
        assert_int_equal(gms_directory_note_tail(&ranks.source[rank], 0,
                                                 gms_slot_word_generation(gms_directory_word(&ranks.source[rank], 0)),
                                                 &said.progress),
                         GMS_OK);
    }
    ranks_classify(&ranks);
    agree(ranks.into, ranks.source, 0, counts);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(counts[rank], COUNT(2) | COUNT(3));
    /* One rank has none: nobody has. */
    gms_directory_drop_tails(&ranks.into[1]);
    agree(ranks.into, ranks.source, 0, counts);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(counts[rank], 0);
    ranks_close(&ranks);
}

/* ------------------------------------------------------------------------------------------------- property ---- */

static uint64_t random_state;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % limit);
}

/* What was said of a slot in its present lease. */
struct model {
    uint32_t counts[64], noted; /* in order */
    bool scribbled, torn;
};

static void live(struct fixture *f, struct model models[SLOTS])
{
    memset(models, 0, SLOTS * sizeof *models);
    for (int step = 0; step < 600; step++) {
        const uint32_t slot = random_below(SLOTS);
        struct model *model = &models[slot];
        const gms_slot_word word = gms_directory_word(&f->source, slot);
        const uint64_t generation = gms_slot_word_generation(word);
        const uint32_t last = model->noted > 0 ? model->counts[model->noted - 1] : 0;
        switch (random_below(12)) {
        case 0:
            if (gms_slot_word_state(word) == GMS_SLOT_LEASED)
                assert_int_equal(gms_directory_release(&f->source, slot, generation), GMS_OK);
            break;
        case 1:
            if (random_below(4) == 0) {
                ((uint8_t *)gms_directory_tail_words(&f->source, slot))[random_below(GMS_TAIL_BYTES)] ^=
                    (uint8_t)(1 + random_below(255));
                model->scribbled = true;
            }
            break;
        case 2:
        case 3:
            if (gms_slot_word_state(word) != GMS_SLOT_LEASED) {
                lease(&f->source, slot);
                /* A scribble can name the very generation that comes next: then its notes stand, and may not fit. */
                const bool stands =
                    gms_directory_tail_words(&f->source, slot)[offsetof(struct gms_tail_record, generation) / 8] ==
                    gms_slot_word_generation(gms_directory_word(&f->source, slot));
                *model = (struct model){.scribbled = model->scribbled && (random_below(2) == 0 || stands)};
            }
            break;
        default:
            if (gms_slot_word_state(word) == GMS_SLOT_LEASED && last < 60 && model->noted < 60) {
                const uint32_t count = last + 1 + random_below(3);
                const gms_status status = note(&f->source, slot, generation, count);
                assert_true(status == GMS_OK || model->scribbled);
                if (status == GMS_OK)
                    model->counts[model->noted++] = count;
            }
            break;
        }
    }
    /* The writer dies in the middle of a note. */
    const uint32_t slot = random_below(SLOTS);
    const gms_slot_word word = gms_directory_word(&f->source, slot);
    if (gms_slot_word_state(word) == GMS_SLOT_LEASED && !models[slot].scribbled && models[slot].noted < 60) {
        struct gms_tail_record before;
        struct gms_tail_store stores[GMS_TAIL_STORES_MAX];
        struct said said;
        struct model *model = &models[slot];
        const uint32_t count = model->noted > 0 ? model->counts[model->noted - 1] + 1 : 1;
        say(&said, gms_slot_word_generation(word), count);
        snapshot(&f->source, slot, &before);
        const uint32_t length = gms_tail_stores(&f->source.geometry, slot, before.generation, before.notes,
                                                gms_slot_word_generation(word), &said.progress, stores);
        carry_out(&f->source, slot, stores, 0, random_below(length + 1));
        model->counts[model->noted++] = count;
        model->torn = true;
    }
}

static void check_life(struct fixture *f, const struct model models[SLOTS])
{
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        const struct model *model = &models[slot];
        const gms_slot_word word = gms_directory_word(&f->source, slot);
        const uint64_t found = counts_of(&f->into, slot, gms_slot_word_generation(word), WRITER);
        uint64_t said = 0, lately = 0;
        for (uint32_t i = 0; i < model->noted; i++) {
            said |= COUNT(model->counts[i]);
            /* Of a torn note the new entry and the oldest may be missing. */
            if (i + GMS_TAIL_ENTRIES >= model->noted + model->torn && i + model->torn < model->noted)
                lately |= COUNT(model->counts[i]);
        }
        assert_int_equal(found & ~said, 0); /* nothing that was not said in this lease */
        if (gms_slot_word_state(word) != GMS_SLOT_LEASED)
            assert_int_equal(found, 0);
        else if (!model->scribbled)
            assert_int_equal(found & lately, lately);
    }
}

static void test_random_lives(void **state)
{
    const char *given = getenv("GMS_TEST_SEED");
    const uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : gms_clock_ns();
    (void)state;
    print_message("GMS_TEST_SEED=%llu\n", (unsigned long long)seed);
    random_state = seed;
    for (int round = 0; round < 300; round++) {
        struct fixture *f = NULL;
        struct model models[SLOTS];
        struct gms_classification counts;
        assert_int_equal(setup((void **)&f), 0);
        live(f, models);
        classify(f, &counts);
        check_life(f, models);
        teardown((void **)&f);
    }
}

/* A reader beside a writer that leases, notes and gives back all the time finds what was said in that lease, or
 * nothing.
 */
struct beside {
    struct gms_directory *directory;
    _Atomic bool end;
};

static void *write_on(void *context)
{
    struct beside *beside = context;
    while (!atomic_load(&beside->end)) {
        uint64_t generation = 0;
        if (gms_directory_acquire(beside->directory, 7, &generation) != GMS_OK)
            return NULL;
        for (uint32_t count = 1; count <= 16; count++)
            if (note(beside->directory, 7, generation, count) != GMS_OK)
                return NULL;
        if (gms_directory_release(beside->directory, 7, generation) != GMS_OK)
            return NULL;
    }
    return beside;
}

static void test_a_reader_beside_the_writer(void **state)
{
    enum { ENOUGH = 2000 };
    struct fixture *f = *state;
    struct beside beside = {.directory = &f->source};
    pthread_t writer;
    void *well = NULL;
    uint32_t found = 0, tries = 0;
    const uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    assert_int_equal(pthread_create(&writer, NULL, write_on, &beside), 0);
    for (; found < ENOUGH && gms_clock_ns() < deadline_ns; tries++)
        found += counts_of(&f->source, 7, gms_slot_word_generation(gms_directory_word(&f->source, 7)), WRITER) != 0;
    atomic_store(&beside.end, true);
    assert_int_equal(pthread_join(writer, &well), 0);
    assert_ptr_equal(well, &beside);
    print_message("%u of %u looks found something\n", found, tries);
    assert_int_equal(found, ENOUGH);
}

/* An older file is refused, and both versions are named. */
static void test_version_1_is_refused(void **state)
{
    struct fixture *f = *state;
    struct gms_error error;
    struct gms_directory seen;
    gms_directory_header(&f->source)->version = 1;
    assert_status(gms_directory_open(f->source.fd, NULL, &seen, &error), GMS_E_VERSION);
    assert_text_has("has version 1");
    assert_text_has("reads 2");
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_the_last_three_are_kept),
        T(test_only_a_lease_has_a_tail),
        T(test_an_entry_fits_one_place),
        T(test_every_prefix_of_a_note_is_safe),
        T(test_any_subset_of_the_stores_is_safe),
        T(test_every_scribbled_bit_is_a_miss),
        T(test_only_what_the_source_had_leased_is_copied),
        T(test_another_identity_has_no_tails),
        cmocka_unit_test(test_ranks_that_are_a_step_apart),
        cmocka_unit_test(test_sealed_on_one_rank_only),
        cmocka_unit_test(test_unequal_tails_are_nobodys),
        cmocka_unit_test(test_random_lives),
        T(test_a_reader_beside_the_writer),
        T(test_version_1_is_refused),
    };
    return cmocka_run_group_tests_name("directory_tail", tests, NULL, NULL);
}
