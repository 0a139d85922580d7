/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory: shared memory in which one incarnation says what its slots of one pool hold. Every incarnation has a
 * file of its own (per pool), so a stale writer scribbles on a dead inode. The engine rank writes it through libgms,
 * the coordinator reads it: it copies a record, then validates the copy; every read is bounded.
 *
 *   +--------------------+ 0
 *   | header, 4096 bytes |  magic, version, geometry, identity digest, incarnation, world, epoch; checksum; counters
 *   +--------------------+ 4096
 *   | slot words, 8 each |  64-bit atomics, the only truth (coord/core/slot.h)
 *   +--------------------+ rounded up to 4096
 *   | records, 128 each  |  record i describes the block whose home is slot i; valid only if its checksum fits and its
 *   +--------------------+  parts name the slot words' exact generations in state SEALED; rounded up to 4096
 *   | tails, 128 each    |  tail i: how far the block in the leased slot i has come (tail.h)
 *   +--------------------+
 *
 * Ordering: a sealer writes the record, then stores the slot word with release; a reader loads the word with acquire,
 * copies the record, loads the word again. A successor's directory is filled by the coordinator
 * (gms_directory_classify) while the successor may not touch it.
 */
#ifndef GMS_DIRECTORY_H
#define GMS_DIRECTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/slot.h"
#include "gms/engine.h"

enum { GMS_DIRECTORY_VERSION = 2, GMS_DIRECTORY_HEADER_BYTES = 4096, GMS_RECORD_BYTES = 128, GMS_TAIL_BYTES = 128 };
#define GMS_DIRECTORY_MAGIC UINT64_C(0x315249444d534d47) /* "GMSMDIR1" */

struct gms_record_part {
    uint32_t pool;
    uint32_t slot;
    uint64_t generation;
};

struct gms_record {
    uint8_t hash[GMS_BLOCK_HASH_BYTES];
    uint8_t parent_hash[GMS_BLOCK_HASH_BYTES];
    uint64_t content_digest; /* XXH3-64 over the parts' bytes in order; 0: not taken (kv.verify = none) */
    uint32_t token_count;
    uint16_t part_count;
    uint16_t flags;
    struct gms_record_part parts[GMS_RECORD_PARTS];
    uint64_t sealed_epoch; /* the epoch it was sealed under: evidence, decides nothing */
    uint64_t checksum;     /* XXH3-64 of all bytes before, seeded with identity digest + home slot */
} __attribute__((aligned(8)));
_Static_assert(sizeof(struct gms_record) == GMS_RECORD_BYTES, "record layout is a format");

struct gms_directory_geometry {
    uint32_t pool; /* index in the group */
    uint32_t slot_count;
    uint64_t block_bytes;
    uint64_t identity_digest; /* of everything that makes KV readable, rank included */
    uint64_t world, incarnation, epoch;
};

/* One mapping of one directory file. */
struct gms_directory {
    void *base;
    size_t bytes;
    uint32_t slot_count;
    int fd;                                 /* owned; -1 */
    struct gms_directory_geometry geometry; /* copied from the header when opened, never read again from it */
};

size_t gms_directory_bytes(uint32_t slot_count);
/* Makes a memfd (sealed against resize), maps it, writes the header; all slots IDLE, generation 0. Errors: NO_MEMORY,
 * DESCRIPTORS. */
gms_status gms_directory_create(const struct gms_directory_geometry *geometry, struct gms_directory *ret_directory,
                                struct gms_error *ret_error);
/* Maps and validates a received file; takes ownership of `fd` on success only. Never trusts a length or count in it
 * beyond the file's real size. Errors: CORRUPT, VERSION, MISMATCH (with `expected` not NULL: names the field and both
 * values; an identity digest, world, incarnation or epoch of 0 in it is not compared). */
gms_status gms_directory_open(int fd, const struct gms_directory_geometry *expected,
                              struct gms_directory *ret_directory, struct gms_error *ret_error);
void gms_directory_close(struct gms_directory *directory); /* half-built and closed ones allowed */

/* Owner's side: atomics only, no system call. See gms_slot_step for statuses. */
gms_status gms_directory_acquire(struct gms_directory *directory, uint32_t slot, uint64_t *ret_generation);
gms_status gms_directory_release(struct gms_directory *directory, uint32_t slot, uint64_t generation);
gms_status gms_directory_fence_passed(struct gms_directory *directory, uint32_t slot, uint64_t generation);
gms_slot_word gms_directory_word(const struct gms_directory *directory, uint32_t slot); /* acquire load */
void gms_directory_set_word(struct gms_directory *directory, uint32_t slot,
                            gms_slot_word word); /* release store; coordinator into a successor's, before adoption */
bool gms_directory_replace_word(struct gms_directory *directory, uint32_t slot, gms_slot_word expected,
                                gms_slot_word word);
/* Seals a block whose home is this directory: `all` are the owner's directories by pool index (for parts elsewhere).
 * Writes the record, then the parts' words, home last. LOST_OWNERSHIP when a word is not LEASED at its generation;
 * nothing is sealed then. */
gms_status gms_directory_seal(struct gms_directory *const all[GMS_MAX_POOLS], const struct gms_block *block,
                              uint64_t content_digest);

/* Reader's side. Copies record `slot`, validates the copy against checksum, bounds, and all parts' words. False: a
 * miss. */
bool gms_directory_read(struct gms_directory *const all[GMS_MAX_POOLS], uint32_t pool, uint32_t slot,
                        struct gms_record *ret_record);
uint64_t gms_record_checksum(const struct gms_record *record, uint64_t identity_digest, uint32_t home_slot);

/*
 * The index that adoption needs, built before the fault: for each slot the word last seen and whether its record was
 * valid, with the record already copied to the successor's file. refresh() looks only at slots whose word changed.
 * An index serves one pool; given another source or another successor it starts over by itself. Not thread-safe.
 */
struct gms_directory_index;
gms_status gms_directory_index_create(uint32_t slot_count, struct gms_directory_index **ret_index,
                                      struct gms_error *ret_error);
void gms_directory_index_free(struct gms_directory_index *index);
/* Returns how many slots were looked at anew. `into` may be NULL (no successor yet: only validates). */
uint32_t gms_directory_index_refresh(struct gms_directory_index *index,
                                     struct gms_directory *const source[GMS_MAX_POOLS], uint32_t pool,
                                     struct gms_directory *into);

struct gms_classification {
    uint32_t adoptable, free, quarantined, retired;
    uint32_t damaged; /* of quarantined: bad records */
    uint32_t tails;   /* of quarantined: with a valid tail, which was copied */
};

/*
 * After the source's cohort is retired: final refresh, then every slot word of `into` is set: SEALED where adoptable,
 * IDLE where free, QUARANTINED or RETIRED else, generations carried over so that no old lease can match. A record that
 * spans several pools is adoptable only whole, so all pools are classified in one call. source[p] NULL: p is new, all
 * free. into[p] NULL: the successor does not have p, and no block with a part in p is adoptable. index[p] NULL: built
 * here, which costs a copy of all records. The record place of a slot that is not its block's home receives a copy of
 * the block's record, so that the ranks can compare it. The tail of a slot that the source had leased is copied too,
 * as the source wrote it, and no other: it stays bound to the source. A source with another identity digest or block
 * size has nothing adoptable. Errors: MISMATCH (slot counts differ), NO_MEMORY; nothing was set then.
 */
gms_status gms_directory_classify(struct gms_directory_index *const index[GMS_MAX_POOLS],
                                  struct gms_directory *const source[GMS_MAX_POOLS],
                                  struct gms_directory *const into[GMS_MAX_POOLS], bool source_clean,
                                  struct gms_classification ret_counts[GMS_MAX_POOLS], struct gms_error *ret_error);

/* What the bulk sub-round combines: two bitmaps (adoptable here, usable here = adoptable or free; slot s is bit s % 8
 * of byte s / 8, (slot_count + 7) / 8 bytes each) and slot_count digests, 0 where not adoptable. A digest covers what
 * all ranks must have equal: hashes, token count and the places of all parts; not generations and contents. */
void gms_directory_bulk_vectors(const struct gms_directory *directory, uint8_t *ret_adoptable, uint8_t *ret_usable,
                                uint32_t *ret_digests);
/* The same from the index that classify used (NULL allowed): its digests, taken before the fault, save reading all
 * records. */
void gms_directory_bulk_vectors_indexed(const struct gms_directory *directory, const struct gms_directory_index *index,
                                        uint8_t *ret_adoptable, uint8_t *ret_usable, uint32_t *ret_digests);
/* Applies the merged vectors: adoptable everywhere with equal digests stays SEALED; usable everywhere becomes IDLE;
 * else QUARANTINED. */
void gms_directory_bulk_apply(struct gms_directory *directory, const uint8_t *adoptable, const uint8_t *usable,
                              struct gms_classification *ret_counts);

/* Shared counters in the header (relaxed atomics), by which the coordinator sees whether the engine's work goes on. No
 * time of day or clock crosses processes here. */
void gms_directory_progress(struct gms_directory *directory);
uint64_t gms_directory_progress_count(const struct gms_directory *directory);
void gms_directory_announce_pause(struct gms_directory *directory, uint32_t duration_ms);
void gms_directory_set_work(struct gms_directory *directory, uint64_t count);
void gms_directory_step_begun(struct gms_directory *directory, uint64_t step);
void gms_directory_step_completed(struct gms_directory *directory, uint64_t step); /* and all before it */
struct gms_directory_activity {
    uint64_t progress, steps_begun, steps_completed;
    uint64_t work;            /* what the engine says that it has to do */
    uint32_t pause, pause_ms; /* number of the last announcement and how long it is for; 0: none yet */
};
void gms_directory_activity(const struct gms_directory *directory, struct gms_directory_activity *ret_activity);
/* How many slot words were changed through this header's owner, roughly: lets a reader skip a refresh when nothing
 * moved. */
uint64_t gms_directory_change_count(const struct gms_directory *directory);

#endif
