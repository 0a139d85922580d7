/* SPDX-License-Identifier: Apache-2.0 */
#include "core/slot.h"

#include <stddef.h>

/* One row per state of a word, one column per event. OK: the state becomes `next`; else that status and no change. */
struct transition {
    uint8_t status; /* gms_status, request group: below 256 */
    uint8_t next;   /* enum gms_slot_state */
    uint8_t raises; /* a new lease: generation + 1 */
};

#define TO(state)                                                                                                      \
    {                                                                                                                  \
        GMS_OK, GMS_SLOT_##state, 0                                                                                    \
    }
#define LEASE                                                                                                          \
    {                                                                                                                  \
        GMS_OK, GMS_SLOT_LEASED, 1                                                                                     \
    }
#define NO(status_)                                                                                                    \
    {                                                                                                                  \
        GMS_E_##status_, 0, 0                                                                                          \
    }

enum { STATES = GMS_SLOT_RETIRED + 1 };

static const struct transition transitions[STATES][GMS_SLOT_EVENT_COUNT] = {
    [GMS_SLOT_IDLE] = {[GMS_SLOT_EVENT_ACQUIRE] = LEASE,
                       [GMS_SLOT_EVENT_SEAL] = NO(REFUSED),
                       [GMS_SLOT_EVENT_RELEASE] = NO(REFUSED),
                       [GMS_SLOT_EVENT_FENCE_PASSED] = NO(REFUSED),
                       [GMS_SLOT_EVENT_QUARANTINE] = TO(QUARANTINED),
                       [GMS_SLOT_EVENT_RECLAIM] = NO(REFUSED)},
    [GMS_SLOT_LEASED] = {[GMS_SLOT_EVENT_ACQUIRE] = NO(BUSY),
                         [GMS_SLOT_EVENT_SEAL] = TO(SEALED),
                         [GMS_SLOT_EVENT_RELEASE] = TO(RELEASED),
                         [GMS_SLOT_EVENT_FENCE_PASSED] = NO(REFUSED),
                         [GMS_SLOT_EVENT_QUARANTINE] = TO(QUARANTINED),
                         [GMS_SLOT_EVENT_RECLAIM] = NO(REFUSED)},
    [GMS_SLOT_SEALED] = {[GMS_SLOT_EVENT_ACQUIRE] = NO(BUSY),
                         [GMS_SLOT_EVENT_SEAL] = NO(REFUSED),
                         [GMS_SLOT_EVENT_RELEASE] = TO(RELEASED),
                         [GMS_SLOT_EVENT_FENCE_PASSED] = NO(REFUSED),
                         [GMS_SLOT_EVENT_QUARANTINE] = TO(QUARANTINED),
                         [GMS_SLOT_EVENT_RECLAIM] = NO(REFUSED)},
    /* The caller's word belongs to the incarnation that released it: its own stream order protects the new lease. */
    [GMS_SLOT_RELEASED] = {[GMS_SLOT_EVENT_ACQUIRE] = LEASE,
                           [GMS_SLOT_EVENT_SEAL] = NO(REFUSED),
                           [GMS_SLOT_EVENT_RELEASE] = NO(REFUSED),
                           [GMS_SLOT_EVENT_FENCE_PASSED] = TO(IDLE),
                           [GMS_SLOT_EVENT_QUARANTINE] = TO(QUARANTINED),
                           [GMS_SLOT_EVENT_RECLAIM] = NO(REFUSED)},
    [GMS_SLOT_QUARANTINED] = {[GMS_SLOT_EVENT_ACQUIRE] = NO(QUARANTINED),
                              [GMS_SLOT_EVENT_SEAL] = NO(QUARANTINED),
                              [GMS_SLOT_EVENT_RELEASE] = NO(QUARANTINED),
                              [GMS_SLOT_EVENT_FENCE_PASSED] = NO(QUARANTINED),
                              [GMS_SLOT_EVENT_QUARANTINE] = TO(QUARANTINED),
                              [GMS_SLOT_EVENT_RECLAIM] = TO(IDLE)},
    [GMS_SLOT_RETIRED] = {[GMS_SLOT_EVENT_ACQUIRE] = NO(REFUSED),
                          [GMS_SLOT_EVENT_SEAL] = NO(REFUSED),
                          [GMS_SLOT_EVENT_RELEASE] = NO(REFUSED),
                          [GMS_SLOT_EVENT_FENCE_PASSED] = NO(REFUSED),
                          [GMS_SLOT_EVENT_QUARANTINE] = NO(REFUSED),
                          [GMS_SLOT_EVENT_RECLAIM] = NO(REFUSED)},
};

gms_status gms_slot_step(gms_slot_word word, enum gms_slot_event event, uint64_t generation, gms_slot_word *ret_word)
{
    uint64_t current = gms_slot_word_generation(word);
    uint64_t state = (uint64_t)gms_slot_word_state(word);

    if (state >= STATES || (unsigned)event >= GMS_SLOT_EVENT_COUNT)
        return GMS_E_REFUSED; /* two of the eight bit patterns are no state: nothing may be done with such a word */
    if (event != GMS_SLOT_EVENT_ACQUIRE && generation != current)
        return GMS_E_STALE;

    const struct transition *move = &transitions[state][event];
    if (move->status != GMS_OK)
        return (gms_status)move->status;
    if (move->raises && current >= GMS_SLOT_GENERATION_MAX) {
        *ret_word = gms_slot_word_make(GMS_SLOT_RETIRED, current); /* a generation never comes twice */
        return GMS_E_REFUSED;
    }
    *ret_word = gms_slot_word_make((enum gms_slot_state)move->next, current + move->raises);
    return GMS_OK;
}

enum gms_slot_class gms_slot_classify(gms_slot_word word, bool record_valid, bool departed_cleanly)
{
    switch (gms_slot_word_state(word)) {
    case GMS_SLOT_IDLE:
        return GMS_CLASS_FREE;
    case GMS_SLOT_SEALED:
        return record_valid ? GMS_CLASS_ADOPTABLE : GMS_CLASS_QUARANTINED;
    case GMS_SLOT_RELEASED:
        return departed_cleanly ? GMS_CLASS_FREE : GMS_CLASS_QUARANTINED;
    case GMS_SLOT_RETIRED:
        return GMS_CLASS_RETIRED;
    case GMS_SLOT_LEASED:
    case GMS_SLOT_QUARANTINED:
        break;
    }
    return GMS_CLASS_QUARANTINED; /* also what is no state at all */
}
