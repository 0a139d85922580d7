/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory's reader: any file content is refused or read without a step outside of it, and nothing that a reader
 * or a classification hands out contradicts the slot words.
 *
 * Input: byte 0, how the file is made; then its bytes, spread: the header, the words, the records and the tails of a
 * small file come from consecutive parts of the input, so that mutations reach all of them.
 */
#include "fuzz.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "directory/layout.h"
#include "directory/tail.h"

enum {
    SLOTS = 12,
    HEADER_PART = 80,
    WORDS_PART = SLOTS * 8,
    RECORDS_PART = SLOTS * GMS_RECORD_BYTES,
    TAILS_PART = SLOTS * GMS_TAIL_BYTES
};
enum { KEEP_HEADER = 1, EXACT_SIZE = 2 };

static const struct gms_directory_geometry geometry = {
    .slot_count = SLOTS, .block_bytes = 64, .identity_digest = 5, .world = 1, .incarnation = 1};

/* A living directory with a bit of everything. */
static void fill(struct gms_directory *directory)
{
    struct gms_directory *all[GMS_MAX_POOLS] = {directory};
    uint64_t generation[SLOTS] = {0};
    for (uint32_t slot = 0; slot < 8; slot++)
        gms_directory_acquire(directory, slot, &generation[slot]);
    for (uint32_t slot = 0; slot < 4; slot++) {
        struct gms_block block = {.token_count = 4, .part_count = 1, .parts = {{0, slot, generation[slot]}}};
        block.hash[0] = (uint8_t)slot;
        if (slot == 3) {
            block.part_count = 2;
            block.parts[1] = (struct gms_part){0, 4, generation[4]};
        }
        FUZZ_CHECK(gms_directory_seal(all, &block, 1) == GMS_OK);
    }
    gms_directory_release(directory, 6, generation[6]);
    static const uint8_t hash[GMS_BLOCK_HASH_BYTES] = {1};
    for (uint32_t count = 1; count <= 5; count++) {
        const struct gms_tail_progress progress = {.parent_hash = hash, .hash = hash, .token_count = count};
        FUZZ_CHECK(gms_directory_note_tail(directory, 5, generation[5], &progress) == GMS_OK);
        FUZZ_CHECK(count > 1 || gms_directory_note_tail(directory, 7, generation[7], &progress) == GMS_OK);
    }
}

size_t fuzz_seed(size_t index, uint8_t *ret_data, size_t capacity)
{
    static const uint8_t modes[] = {KEEP_HEADER | EXACT_SIZE, EXACT_SIZE, 0};
    const size_t bytes = 1 + HEADER_PART + WORDS_PART + RECORDS_PART + TAILS_PART;
    struct gms_directory directory;
    if (index >= sizeof modes || capacity < bytes)
        return 0;
    FUZZ_CHECK(gms_directory_create(&geometry, &directory, NULL) == GMS_OK);
    fill(&directory);
    ret_data[0] = modes[index];
    memcpy(ret_data + 1, directory.base, HEADER_PART);
    memcpy(ret_data + 1 + HEADER_PART, gms_directory_words(&directory), WORDS_PART);
    memcpy(ret_data + 1 + HEADER_PART + WORDS_PART, gms_directory_record_words(&directory, 0), RECORDS_PART);
    memcpy(ret_data + 1 + HEADER_PART + WORDS_PART + RECORDS_PART, gms_directory_tail_words(&directory, 0), TAILS_PART);
    gms_directory_close(&directory);
    return bytes;
}

static size_t take(const uint8_t **data, size_t *left, void *into, size_t bytes)
{
    if (bytes > *left)
        bytes = *left;
    memcpy(into, *data, bytes);
    *data += bytes;
    *left -= bytes;
    return bytes;
}

static int make_file(uint8_t mode, const uint8_t *data, size_t left)
{
    static uint8_t image[4 * 4096];
    struct gms_directory good;
    size_t bytes = gms_directory_bytes(SLOTS);
    FUZZ_CHECK(bytes <= sizeof image);
    FUZZ_CHECK(gms_directory_create(&geometry, &good, NULL) == GMS_OK);
    memcpy(image, good.base, bytes);
    gms_directory_close(&good);
    uint8_t header[HEADER_PART] = {0};
    take(&data, &left, header, sizeof header);
    if ((mode & KEEP_HEADER) == 0)
        memcpy(image, header, sizeof header);
    take(&data, &left, image + GMS_DIRECTORY_HEADER_BYTES, WORDS_PART);
    take(&data, &left, image + gms_directory_records_offset(SLOTS), RECORDS_PART);
    take(&data, &left, image + gms_directory_tails_offset(SLOTS), TAILS_PART);
    if ((mode & EXACT_SIZE) == 0)
        bytes = (size_t)(mode >> 2) * 200;
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    const size_t written = bytes < sizeof image ? bytes : sizeof image;
    FUZZ_CHECK(pwrite(fd, image, written, 0) == (ssize_t)written);
    FUZZ_CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    return fd;
}

static void check_records(struct gms_directory *const all[GMS_MAX_POOLS])
{
    for (uint32_t slot = 0; slot < all[0]->slot_count + 2; slot++) {
        struct gms_record record;
        if (!gms_directory_read(all, 0, slot, &record))
            continue;
        FUZZ_CHECK(record.part_count >= 1 && record.part_count <= GMS_RECORD_PARTS);
        FUZZ_CHECK(record.parts[0].pool == 0 && record.parts[0].slot == slot);
        for (uint32_t i = 0; i < record.part_count; i++)
            FUZZ_CHECK(gms_directory_word(all[record.parts[i].pool], record.parts[i].slot) ==
                       gms_slot_word_make(GMS_SLOT_SEALED, record.parts[i].generation));
    }
}

/* What was copied is what the source has, word for word, of a slot that it had leased; what a rank offers is what it
 * has, and the only rank agrees with itself. */
static void check_tails(const struct gms_directory *source, struct gms_directory *successor)
{
    const uint64_t writer = source->geometry.incarnation;
    for (uint32_t slot = 0; slot < successor->slot_count; slot++) {
        struct gms_tail_record copied, there;
        const gms_slot_word word = gms_directory_word(successor, slot), was = gms_directory_word(source, slot);
        const uint64_t generation = gms_slot_word_generation(word);
        const uint32_t places = gms_directory_read_tail(successor, slot, generation, writer, &copied);
        struct gms_tail_candidate candidate;
        if (gms_directory_tail_candidate(successor, source, slot, word, writer, &candidate)) {
            FUZZ_CHECK(candidate.newest < GMS_TAIL_ENTRIES && candidate.digests[GMS_TAIL_ENTRIES] != 0);
            gms_directory_tail_agreed(successor, slot, &candidate, (1u << GMS_TAIL_LANES) - 1);
            FUZZ_CHECK(gms_directory_read_tail(successor, slot, generation, writer, &copied) != 0);
        } else {
            FUZZ_CHECK(places == 0 || gms_slot_word_state(word) != GMS_SLOT_QUARANTINED || writer == 0);
        }
        if (places == 0)
            continue;
        FUZZ_CHECK(gms_slot_word_state(was) == GMS_SLOT_LEASED && gms_slot_word_generation(was) == generation);
        FUZZ_CHECK(gms_directory_read_tail(source, slot, generation, writer, &there) == places);
        for (uint32_t i = 0; i < GMS_TAIL_ENTRIES; i++)
            FUZZ_CHECK((places >> i & 1) == 0 || gms_tail_count(&there.places[i]) > 0);
    }
}

static void check_classification(struct gms_directory *source)
{
    struct gms_directory successor;
    struct gms_directory_geometry of_successor = source->geometry;
    of_successor.incarnation += 1;
    if (gms_directory_create(&of_successor, &successor, NULL) != GMS_OK)
        return;
    struct gms_directory *from[GMS_MAX_POOLS] = {0}, *into[GMS_MAX_POOLS] = {0};
    struct gms_directory_index *index[GMS_MAX_POOLS] = {0};
    struct gms_classification counts[GMS_MAX_POOLS];
    const uint32_t pool = source->geometry.pool;
    from[pool] = source;
    into[pool] = &successor;
    FUZZ_CHECK(gms_directory_classify(index, from, into, false, counts, NULL) == GMS_OK);
    FUZZ_CHECK(counts[pool].adoptable + counts[pool].free + counts[pool].quarantined + counts[pool].retired ==
               source->slot_count);
    uint32_t sealed = 0;
    for (uint32_t slot = 0; slot < successor.slot_count; slot++)
        sealed += gms_slot_word_state(gms_directory_word(&successor, slot)) == GMS_SLOT_SEALED;
    FUZZ_CHECK(sealed == counts[pool].adoptable);
    check_tails(source, &successor);
    uint32_t whole = 0;
    for (uint32_t slot = 0; slot < successor.slot_count; slot++) {
        struct gms_record record;
        if (gms_directory_read(into, pool, slot, &record))
            whole += record.part_count;
    }
    FUZZ_CHECK(whole == sealed);
    uint8_t adoptable[1024], usable[1024];
    uint32_t digests[8 * 1024];
    if (successor.slot_count <= 8 * 1024) {
        gms_directory_bulk_vectors(&successor, adoptable, usable, digests);
        gms_directory_bulk_apply(&successor, adoptable, usable, &counts[pool]);
        FUZZ_CHECK(counts[pool].adoptable == sealed);
    }
    gms_directory_close(&successor);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 1)
        return 0;
    int fd = make_file(data[0], data + 1, bytes - 1);
    struct gms_directory directory;
    if (gms_directory_open(fd, NULL, &directory, NULL) != GMS_OK) {
        close(fd);
        return 0;
    }
    struct gms_directory *all[GMS_MAX_POOLS] = {0};
    all[directory.geometry.pool] = &directory;
    FUZZ_CHECK(gms_directory_bytes(directory.slot_count) == directory.bytes);
    if (directory.geometry.pool == 0)
        check_records(all);
    check_classification(&directory);
    gms_directory_close(&directory);
    return 0;
}
