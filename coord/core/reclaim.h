/* SPDX-License-Identifier: Apache-2.0
 *
 * Reclaim: how pages that a dead writer left in quarantine come back, on every rank or on none.
 *
 * A suspect is a dead writer whose work may still be under way somewhere. Every page in quarantine has the set of its
 * suspects on each rank (runtime/directory/quarantine.h); the group has the list of them, at most GMS_RECLAIM_SUSPECTS,
 * each with a place that is its bit in those sets.
 *
 *   RESTING --somebody serves, a suspect is pending--> STAMPING --stamped on all--> PROVING
 *                                                                                   |  ^
 *                                     some suspects are quiet on all ranks: `chosen`|  | others are pending
 *                                                                                   v  |
 *                   RESTING <--no suspect is pending-- CLEARING <--no page left-- LOOKING <--freed on all--+
 *                                                                                   |                      |
 *                                                                                   +--pages free on all: FREEING
 *   any state --its owner serves no longer--> RESTING
 *
 * STAMPING: each rank stamps what is in quarantine in the owner's directory (the owner is who serves). PROVING: each
 * rank asks its provider about every pending suspect; answers that were asked for before are worth nothing. LOOKING:
 * the next step of pages (a `position`, at most GMS_RECLAIM_SLOTS of them): which of them does a rank hold back?
 * FREEING: those that no rank holds back go from QUARANTINED to IDLE. Only when all ranks have done so is the engine
 * told (GRANT). CLEARING: the chosen suspects are taken from all pages, then from the list.
 *
 * A page is decided on by its bitmap, stored before any rank frees it; a repeated FREE finds nothing left to do. So a
 * crash at any point goes on from there. Under `inherits` (process-death-timeout) a dead owner's stamps count for its
 * successor; else it stamps anew. Nothing here looks at a clock.
 */
#ifndef GMS_CORE_RECLAIM_H
#define GMS_CORE_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/ballot.h"

enum gms_reclaim_state {
    GMS_RECLAIM_RESTING,
    GMS_RECLAIM_STAMPING,
    GMS_RECLAIM_PROVING,
    GMS_RECLAIM_LOOKING,
    GMS_RECLAIM_FREEING,
    GMS_RECLAIM_CLEARING,
    GMS_RECLAIM_STATE_COUNT
};

/* A provider's answer about one suspect on one rank. */
enum gms_reclaim_answer {
    GMS_RECLAIM_NOT_YET,
    GMS_RECLAIM_QUIET,
    GMS_RECLAIM_BEST_EFFORT, /* quiet by a policy that proves nothing */
    GMS_RECLAIM_CANNOT_KNOW, /* for good */
    GMS_RECLAIM_ANSWER_COUNT
};

/* What the group holds of a suspect: NOT_YET is pending, the others are what will be, or was, told. */
struct gms_core_suspect {
    uint64_t incarnation; /* 0: the place is free; UINT64_MAX: several for which there was no place */
    uint32_t engine;
    enum gms_reclaim_answer verdict;
};

enum gms_reclaim_work {
    GMS_RECLAIM_STAMP,
    GMS_RECLAIM_ASK, /* about `suspect`, until there is an answer or the next work comes */
    GMS_RECLAIM_LOOK,
    GMS_RECLAIM_FREE,
    GMS_RECLAIM_CLEAR,
    GMS_RECLAIM_GRANT, /* the pages of `bitmap` are free on all ranks: tell the engine */
    GMS_RECLAIM_ENDED, /* `suspect` has its verdict, on all ranks */
    GMS_RECLAIM_STOP,  /* the owner serves no longer: leave off */
    GMS_RECLAIM_WORK_COUNT
};

/* Where a step of pages begins: slot in the low 32 bits, pool above. */
#define GMS_RECLAIM_END UINT64_MAX
static inline uint32_t gms_reclaim_pool(uint64_t position)
{
    return (uint32_t)(position >> 32);
}
static inline uint32_t gms_reclaim_slot(uint64_t position)
{
    return (uint32_t)position;
}

struct gms_core_reclaim {
    /* replicated */
    enum gms_reclaim_state state;
    uint64_t step;   /* grows with every move; names work and votes */
    uint64_t owner;  /* whose directory is worked on; 0 when resting */
    uint32_t chosen; /* bit per suspect that is quiet on all ranks and not cleared yet */
    uint64_t position, next;
    uint8_t free[GMS_RECLAIM_SLOTS / 8]; /* FREEING */
    struct gms_core_suspect suspects[GMS_RECLAIM_SUSPECTS];

    /* local */
    uint64_t stored_step, issued_step, done_step;
    uint8_t answers[GMS_RECLAIM_SUSPECTS]; /* enum gms_reclaim_answer, to the present PROVING */
    uint8_t blocked[GMS_RECLAIM_SLOTS / 8];
    uint64_t found_next;
};

const char *gms_reclaim_state_name(enum gms_reclaim_state state);
const char *gms_reclaim_answer_name(enum gms_reclaim_answer answer);

struct gms_core;
struct gms_core_store;
struct gms_event;

/* ---- what the core's other files call */
/* In the round that condemns the writer: it is a suspect from here on. */
void gms_core_reclaim_suspect(struct gms_core *core, uint32_t engine);
/* Its place, GMS_RECLAIM_CROWD when it has none of its own. */
uint32_t gms_core_reclaim_place(const struct gms_core *core, uint64_t incarnation);
/* Its lane of the ballot; of a completed round. */
void gms_core_reclaim_offer(const struct gms_core *core, struct gms_ballot_reclaim *ret_lane);
/* Is there anything in it? */
bool gms_core_reclaim_says(const struct gms_ballot_reclaim *lane);
void gms_core_reclaim_round(struct gms_core *core, const struct gms_ballot *merged);
void gms_core_reclaim_stored(struct gms_core *core, const struct gms_core_store *store);
void gms_core_reclaim_event(struct gms_core *core, const struct gms_event *event);
/* The last thing of every step: work that may begin. */
void gms_core_reclaim_settle(struct gms_core *core);
void gms_core_reclaim_restored(struct gms_core *core, bool salvaged);
/* Bit 8 * state + next for each move made so far, and of all there are; for tests. */
uint64_t gms_core_reclaim_rows(void);

#endif
