/* SPDX-License-Identifier: Apache-2.0
 *
 * A step plan: what rank 0 decided for one step, broadcast to every rank and executed by all in the same order.
 *
 *   releases -> acquires, each with the salvage into it -> begin step -> forward over rows -> complete step -> notes
 *     -> seals
 *
 * On the wire: a plan_header, then the arrays in the order of its counts, native byte order (one MPI job).
 */
#ifndef MINILLM_PLAN_H
#define MINILLM_PLAN_H

#include "prefix.h"

#include <stddef.h>
#include <stdint.h>

enum plan_kind {
    PLAN_STEP = 1, /* execute */
    PLAN_IDLE = 2, /* sleep until rung */
    PLAN_END = 3,  /* clean end */
};

enum drill_phase { DRILL_NONE = 0, DRILL_PREFILL = 1, DRILL_DECODE = 2, DRILL_SEAL = 3 };

/* That rank (or every rank) comes to grief the `after`-th time it is in the middle of that phase. */
#define DRILL_EVERY_RANK UINT32_MAX
struct plan_drill {
    uint32_t phase; /* enum drill_phase */
    uint32_t rank, after;
    uint32_t how; /* enum ending */
};

enum { PLAN_DRILLS = 8 }; /* that one plan can arm */

struct plan_header {
    uint32_t kind;
    uint32_t row_count, block_count, acquire_count, release_count, seal_count;
    uint32_t drill_count, salvage_count, note_count;
    uint32_t reserved;
    uint64_t step;
    struct plan_drill drills[PLAN_DRILLS];
};

struct plan_row {
    uint32_t token, position;
    uint32_t first_block; /* index into blocks: the sequence's slots */
    uint16_t wants_logits, is_decode;
};

struct plan_seal {
    uint32_t slot;
    struct block_hash hash, parent;
};

/* The block in `slot` is complete up to token_count when the step is, or, of a salvage, already in `source`. */
struct plan_progress {
    uint32_t slot, token_count;
    uint32_t source; /* salvage: where a dead engine has left it */
    struct block_hash hash, parent;
};

/* Growable arrays; capacities grow as needed and are kept. Zero-initialise; plan_free when done. */
struct plan {
    struct plan_header header;
    struct plan_row *rows;
    uint32_t *blocks, *acquires, *releases;
    struct plan_seal *seals;
    struct plan_progress *salvages, *notes; /* salvages in the order of their slots' acquires */
    uint32_t row_capacity, block_capacity, acquire_capacity, release_capacity, seal_capacity, salvage_capacity,
        note_capacity;
};

void plan_clear(struct plan *plan); /* keeps memory */
void plan_free(struct plan *plan);

/* Append one; false when memory is short. */
bool plan_add_row(struct plan *plan, struct plan_row row);
bool plan_add_blocks(struct plan *plan, const uint32_t *slots, uint32_t count);
bool plan_add_acquire(struct plan *plan, uint32_t slot);
bool plan_add_release(struct plan *plan, uint32_t slot);
bool plan_add_seal(struct plan *plan, const struct plan_seal *seal);
bool plan_add_salvage(struct plan *plan, const struct plan_progress *salvage);
bool plan_add_note(struct plan *plan, const struct plan_progress *note);

size_t plan_payload_bytes(const struct plan_header *header);
void plan_encode(const struct plan *plan, void *payload);
/* Takes a payload of plan_payload_bytes(header). False when memory is short. */
bool plan_decode(struct plan *plan, const struct plan_header *header, const void *payload);

#endif
