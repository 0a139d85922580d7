/* SPDX-License-Identifier: Apache-2.0
 *
 * The slot word: one 64-bit value (state, generation) per slot is the only truth about it; whoever changes it does so
 * by compare-and-swap, and deleting a record *is* that swap. Pure: values in, values out; the atomics live with the
 * memory (runtime/directory).
 *
 *            acquire                seal                 release
 *   IDLE ------------> LEASED(g+1) ------> SEALED(g+1) ----------> RELEASED(g+1) --fence of the step passed-->
 * IDLE(g+1) ^                    |  release                                   |  ^ | +---------------------> RELEASED
 * |  |  acquire by the same incarnation: LEASED(g+2)
 *    +-- reclaim with proof -- QUARANTINED <-- classification of LEASED, RELEASED, damaged
 *   generation exhausted: RETIRED, for ever
 */
#ifndef GMS_CORE_SLOT_H
#define GMS_CORE_SLOT_H

#include <stdbool.h>
#include <stdint.h>

#include "gms/engine.h"

typedef uint64_t gms_slot_word;

enum { GMS_SLOT_STATE_BITS = 3 };
#define GMS_SLOT_GENERATION_MAX ((UINT64_C(1) << (64 - GMS_SLOT_STATE_BITS)) - 1)

static inline gms_slot_word gms_slot_word_make(enum gms_slot_state state, uint64_t generation)
{
    return (generation << GMS_SLOT_STATE_BITS) | (uint64_t)state;
}
static inline enum gms_slot_state gms_slot_word_state(gms_slot_word word)
{
    return (enum gms_slot_state)(word & ((1u << GMS_SLOT_STATE_BITS) - 1));
}
static inline uint64_t gms_slot_word_generation(gms_slot_word word)
{
    return word >> GMS_SLOT_STATE_BITS;
}

enum gms_slot_event {
    GMS_SLOT_EVENT_ACQUIRE,
    GMS_SLOT_EVENT_SEAL,
    GMS_SLOT_EVENT_RELEASE,
    GMS_SLOT_EVENT_FENCE_PASSED, /* the step that the slot was released under is complete */
    GMS_SLOT_EVENT_QUARANTINE,
    GMS_SLOT_EVENT_RECLAIM, /* proof that nobody can write it any more */
    GMS_SLOT_EVENT_COUNT,
};

/*
 * What `event` makes of `word`, by table. Returns GMS_OK and *ret_word, or why not: BUSY (leased or sealed),
 * QUARANTINED, STALE (generation given is not the word's), REFUSED (no such transition). Acquire ignores `generation`
 * and raises it; an exhausted generation yields GMS_SLOT_RETIRED and status REFUSED with *ret_word set to it.
 */
gms_status gms_slot_step(gms_slot_word word, enum gms_slot_event event, uint64_t generation, gms_slot_word *ret_word);

/* Classification of what a dead incarnation left (design: sealed, listed, exact -> adoptable; idle -> free; else
 * quarantined). */
enum gms_slot_class { GMS_CLASS_FREE, GMS_CLASS_ADOPTABLE, GMS_CLASS_QUARANTINED, GMS_CLASS_RETIRED };

/* `record_valid`: a copy of the record passed its checksum and names exactly this slot and generation.
 * `departed_cleanly`: the incarnation left by gms_close with no step in flight, so RELEASED is free. */
enum gms_slot_class gms_slot_classify(gms_slot_word word, bool record_valid, bool departed_cleanly);

#endif
