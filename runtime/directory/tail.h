/* SPDX-License-Identifier: Apache-2.0
 *
 * Tails: how far the block in a leased slot had come, so that a successor can go on from there and not from the block's
 * beginning. Record i of a directory's tail area describes the block in slot i, while that slot is leased at the
 * record's generation.
 *
 *        0             8        16             32          64          96         128
 *   +------------+---------+--------------+-----------+-----------+-----------+
 *   | generation |  notes  | parent hash  |  entry 0  |  entry 1  |  entry 2  |
 *   +------------+---------+--------------+-----------+-----------+-----------+
 *                              an entry:  hash, 16 | count, 2 bytes, and content, 6 | checksum, 8
 *
 * A ring: the n-th note of a lease goes to entry n % 3, so the last three are there, and ranks that made the same notes
 * in the same order have them at the same places (which is how they are compared, see gms_tail_candidate).
 *
 * What can be trusted. An entry's checksum covers all that gives it meaning: identity digest, incarnation of the
 * writer, pool, slot, generation, parent, hash, count and content. So whatever is older, moved, mixed from two notes,
 * of another lease or another engine, or scribbled on does not fit and is a miss; there is no state beside the words of
 * an entry and the parent that a reader believes. (`notes` only chooses the next place; scribbled on, it costs
 * entries.)
 *
 * Every prefix of the stores of a note is safe. A note first sets the checksum of the entry that it replaces to 0,
 * which never fits, and stores the checksum last; a first note of a lease sets all three to 0 before it touches the
 * head. A process ends between two instructions, so what it leaves is a prefix of its stores in program order; the
 * release stores keep compiler and processor to that order for a reader that sees them one by one. After any prefix the
 * reader finds the entries that the note leaves alone, and the new one only when it is whole. gms_tail_stores gives the
 * stores as a list, so that tests can stop after each.
 *
 * Why [0, count) may be copied from a slot that somebody might still write. Positions of a block are written once, in
 * order, and a note is made when the step that wrote position count-1 is complete: on the host after its stores, on a
 * device after the event behind its kernels has passed. What of the dead may still be in flight is a later step, and
 * that writes position count and after. So the bytes below count are as final as those of a sealed block, and the bytes
 * above are not looked at. The data's stores come before the release store of the checksum, so who reads an entry finds
 * them.
 */
#ifndef GMS_DIRECTORY_TAIL_H
#define GMS_DIRECTORY_TAIL_H

#include "directory/directory.h"

enum {
    GMS_TAIL_POSITIONS_MAX = 65535, /* the count has 16 bits */
    GMS_TAIL_WORDS = GMS_TAIL_BYTES / 8,
    GMS_TAIL_STORES_MAX = 12,
    GMS_TAIL_LANES = GMS_TAIL_ENTRIES + 1,
};
#define GMS_TAIL_CONTENT_MASK ((UINT64_C(1) << 48) - 1)

struct gms_tail_place {
    uint8_t hash[GMS_BLOCK_HASH_BYTES];
    uint64_t extent;   /* content digest << 16 | count */
    uint64_t checksum; /* 0: no entry */
};

struct gms_tail_record {
    uint64_t generation;
    uint64_t notes; /* made in this lease */
    uint8_t parent_hash[GMS_BLOCK_HASH_BYTES];
    struct gms_tail_place places[GMS_TAIL_ENTRIES];
};
_Static_assert(sizeof(struct gms_tail_record) == GMS_TAIL_BYTES, "tail layout is a format");

static inline uint32_t gms_tail_count(const struct gms_tail_place *place)
{
    return (uint32_t)(place->extent & GMS_TAIL_POSITIONS_MAX);
}
static inline uint64_t gms_tail_content(const struct gms_tail_place *place)
{
    return place->extent >> 16;
}

/* What is said of a block. */
struct gms_tail_progress {
    const uint8_t *parent_hash, *hash; /* GMS_BLOCK_HASH_BYTES each; borrowed */
    uint32_t token_count;
    uint64_t content; /* digest of the bytes of these positions, 48 bits; 0: not taken */
};

/* --------------------------------------------------------------------------------------------- owner's side --- */

/*
 * Notes that the block in `slot`, leased at `generation`, is complete up to `progress`. A few loads and stores. Errors,
 * nothing changed: INVALID (slot, a count of 0 or above GMS_TAIL_POSITIONS_MAX, a count below the last one, another
 * parent than before in this lease), STALE (not the word's generation), REFUSED (not leased). The last count again is
 * OK and does nothing. Calls for the same slot must not race each other.
 */
gms_status gms_directory_note_tail(struct gms_directory *directory, uint32_t slot, uint64_t generation,
                                   const struct gms_tail_progress *progress);
/* The last note of this lease, as it stands there, unchecked: for going on from it. False: none. */
bool gms_directory_last_tail(const struct gms_directory *directory, uint32_t slot, uint64_t generation,
                             uint32_t *ret_count, uint64_t *ret_content);

/* One store of a note. */
struct gms_tail_store {
    uint32_t word;
    uint64_t value;
};
/* The stores of a note in their order, given the generation and the number of notes that stand there; returns how many.
 * Pure. */
uint32_t gms_tail_stores(const struct gms_directory_geometry *geometry, uint32_t slot, uint64_t leased, uint64_t noted,
                         uint64_t generation, const struct gms_tail_progress *progress,
                         struct gms_tail_store ret_stores[]);

/* -------------------------------------------------------------------------------------------- reader's side --- */

/*
 * Copies the tail of `slot` and validates the copy: a bit per place whose entry incarnation `writer` wrote for that
 * generation; what is not valid is zero in *ret_record. 0: a miss. Says nothing about the slot word.
 */
uint32_t gms_directory_read_tail(const struct gms_directory *directory, uint32_t slot, uint64_t generation,
                                 uint64_t writer, struct gms_tail_record *ret_record);
/* Replaces the tail of `slot` by the places in `mask` of `record`, checksums as they are. Others go. */
void gms_directory_keep_tail(struct gms_directory *directory, uint32_t slot, const struct gms_tail_record *record,
                             uint32_t mask);
/* Every tail of a slot in quarantine goes: what it says is not to be trusted. Returns how many there were. */
uint32_t gms_directory_drop_tails(struct gms_directory *directory);

/* ------------------------------------------------------------------------------------------------ agreement --- */

/*
 * What one rank offers of a slot that is not to be used as it is: a lane per place of the ring, and one for the newest.
 * A rank that had sealed the block already, while another had not, offers what its ring says of the block's last steps
 * (the source's file still has it), and the sealed record in the last lane: a hash of all tokens of a block is the
 * block's hash.
 */
struct gms_tail_candidate {
    struct gms_tail_record record;
    uint32_t newest; /* the place of the last lane */
    uint32_t
        digests[GMS_TAIL_LANES]; /* of what all ranks must have equal: place, parent, hash, count; 0: not offered */
};

/* Of `directory`, the successor's, and `source`, the writer's (NULL allowed). `word`: what stood in the successor's
 * before the ranks compared slots. False: nothing to offer. */
bool gms_directory_tail_candidate(const struct gms_directory *directory, const struct gms_directory *source,
                                  uint32_t slot, gms_slot_word word, uint64_t writer,
                                  struct gms_tail_candidate *ret_candidate);
/* Leaves those of its lanes that all ranks agreed on, a bit each, and nothing else. */
void gms_directory_tail_agreed(struct gms_directory *directory, uint32_t slot,
                               const struct gms_tail_candidate *candidate, uint32_t lanes);

#endif
