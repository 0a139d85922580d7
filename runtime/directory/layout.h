/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a directory file, for the files of this folder and for tests that damage them. Integers are in the
 * host's order: the file never leaves the node. Everything above `checksum` is written once, by the creator; the
 * counters below it change all the time and decide nothing.
 */
#ifndef GMS_DIRECTORY_LAYOUT_H
#define GMS_DIRECTORY_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "directory/directory.h"

struct gms_directory_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes;
    uint32_t record_bytes;
    uint32_t pool;
    uint32_t slot_count;
    uint32_t tail_bytes;
    uint64_t block_bytes;
    uint64_t identity_digest;
    uint64_t world;
    uint64_t incarnation;
    uint64_t epoch;
    uint64_t checksum; /* XXH3-64 of all bytes before */
    /* One cache line each: the work loop, its announcements, and slot traffic come from different threads. */
    _Alignas(64) _Atomic uint64_t progress;
    _Alignas(64) _Atomic uint64_t busy; /* announcements so far << 32 | milliseconds of the last */
    _Alignas(64) _Atomic uint64_t work; /* as the engine says */
    _Atomic uint64_t steps_begun, steps_completed;
    _Alignas(64) _Atomic uint64_t changes;
};
_Static_assert(offsetof(struct gms_directory_header, checksum) == 72, "header layout is a format");
_Static_assert(sizeof(struct gms_directory_header) <= GMS_DIRECTORY_HEADER_BYTES, "header fits its page");
_Static_assert(sizeof(_Atomic uint64_t) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "slot words are lock-free");

static inline struct gms_directory_header *gms_directory_header(const struct gms_directory *directory)
{
    return directory->base;
}

static inline _Atomic gms_slot_word *gms_directory_words(const struct gms_directory *directory)
{
    return (_Atomic gms_slot_word *)((char *)directory->base + GMS_DIRECTORY_HEADER_BYTES);
}

/* Records follow the words, on the next page. */
static inline size_t gms_directory_records_offset(uint32_t slot_count)
{
    const size_t page = GMS_DIRECTORY_HEADER_BYTES;
    return page + ((size_t)slot_count * sizeof(gms_slot_word) + page - 1) / page * page;
}

/* Tails follow the records, on the next page. */
static inline size_t gms_directory_tails_offset(uint32_t slot_count)
{
    const size_t page = GMS_DIRECTORY_HEADER_BYTES;
    return gms_directory_records_offset(slot_count) + ((size_t)slot_count * GMS_RECORD_BYTES + page - 1) / page * page;
}

static inline _Atomic uint64_t *gms_directory_tail_words(const struct gms_directory *directory, uint32_t slot)
{
    return (_Atomic uint64_t *)((char *)directory->base + gms_directory_tails_offset(directory->slot_count) +
                                (size_t)slot * GMS_TAIL_BYTES);
}

static inline _Atomic uint64_t *gms_directory_record_words(const struct gms_directory *directory, uint32_t slot)
{
    return (_Atomic uint64_t *)((char *)directory->base + gms_directory_records_offset(directory->slot_count) +
                                (size_t)slot * GMS_RECORD_BYTES);
}

/* A record is copied word by word. Release stores keep an earlier change of the slot word before the new bytes, and
 * acquire loads keep the second look at the slot word after the copy: a reader that saw a new byte sees the new word.
 */
static inline void gms_directory_copy_record_out(const struct gms_directory *directory, uint32_t slot,
                                                 struct gms_record *ret_record)
{
    _Atomic uint64_t *source = gms_directory_record_words(directory, slot);
    uint64_t words[GMS_RECORD_BYTES / 8];
    for (size_t i = 0; i < GMS_RECORD_BYTES / 8; i++)
        words[i] = atomic_load_explicit(&source[i], memory_order_acquire);
    __builtin_memcpy(ret_record, words, sizeof words);
}

static inline void gms_directory_copy_record_in(const struct gms_directory *directory, uint32_t slot,
                                                const struct gms_record *record)
{
    _Atomic uint64_t *target = gms_directory_record_words(directory, slot);
    uint64_t words[GMS_RECORD_BYTES / 8];
    __builtin_memcpy(words, record, sizeof words);
    for (size_t i = 0; i < GMS_RECORD_BYTES / 8; i++)
        atomic_store_explicit(&target[i], words[i], memory_order_release);
}

/* True when the copy `record` fits its checksum and its shape is one that seal writes: home first, 1 to
 * GMS_RECORD_PARTS parts, no pool out of range. Says nothing about slot words. */
bool gms_record_plausible(const struct gms_record *record, uint64_t identity_digest, uint32_t pool, uint32_t slot,
                          uint64_t generation);

#endif
