/* SPDX-License-Identifier: Apache-2.0
 *
 * From what a predecessor left to the prefix cache of rank 0.
 */
#ifndef MINILLM_ADOPT_H
#define MINILLM_ADOPT_H

#include "prefix.h"
#include "ranks.h"

enum adopted_use { ADOPTED_UNUSABLE = 0, ADOPTED_IDLE, ADOPTED_SEALED };

struct adopted_slot {
    enum adopted_use use;
    struct block_hash hash, parent; /* SEALED */
};

/* COLLECTIVE. A slot that is not idle on some rank becomes unusable on all. False (told in the log) if the ranks were
 * given different sealed blocks, or memory is short: then nothing may be served. */
bool adopt_agree(struct ranks *ranks, struct adopted_slot *slots, uint32_t slot_count);

/* COLLECTIVE. Have all ranks been given the same unfinished blocks? `tails` without padding that differs. False (told
 * in the log): none of them may be used. */
bool adopt_tails_agree(struct ranks *ranks, const struct prefix_tail *tails, uint32_t count);

/* The prefix cache: unusable slots excluded, sealed blocks cached, a chain's tail before its head in eviction order,
 * blocks whose chain is broken first of all. NULL when memory is short. */
struct prefix *adopt_build(const struct adopted_slot *slots, uint32_t slot_count, uint32_t *ret_adopted);

/* Overwrites a page with noise of the scale of real K and V. For drills and tests. */
void adopt_poison_page(float *page, size_t count);

#endif
