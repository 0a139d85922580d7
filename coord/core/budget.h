/* SPDX-License-Identifier: Apache-2.0
 *
 * How many bytes the group's kv pools may have on each rank:
 *
 *   here     percent of (total - weights - shadows x what one of them needs), not more than the capacity leaves
 *   agreed   the least of all ranks' numbers, from one round; from then on bytes, the same everywhere
 *
 * What a shadow needs is a reserve until one has parked and was measured. An engine that was told a number may make its
 * pools by it, and no pool is ever shrunk: while there is a kv pool, or an engine that was told the number is still
 * warming up, it stands. It is agreed anew when an engine asks and neither is so. Pure.
 */
#ifndef GMS_CORE_BUDGET_H
#define GMS_CORE_BUDGET_H

#include <stdint.h>

/* What counts on one rank. */
struct gms_budget_inputs {
    uint64_t total_bytes;    /* of the device, or this rank's share of the host; 0: not known */
    uint32_t percent;        /* of what is left, 1 to 100 */
    uint64_t weights_bytes;  /* of pools that hold weights */
    uint64_t capacity_bytes; /* what memory.capacity leaves beside them; UINT64_MAX: not looked at */
    uint32_t shadows;        /* that are to park beside the engine that serves */
    uint64_t reserve_bytes;  /* for each of them, until one was measured */
    uint64_t measured_bytes; /* what one needs here; 0: not measured */
    uint64_t granularity_bytes;
};

/* This rank's number, a multiple of the granularity. Never 0, which in a ballot says nothing: 1 where nothing is left.
 * UINT64_MAX: there is no limit that is known. */
uint64_t gms_budget_here(const struct gms_budget_inputs *inputs);

/* What was agreed. */
struct gms_budget {
    uint64_t bytes;       /* 0: nothing */
    uint64_t incarnation; /* whose call it was */
    uint32_t rank;        /* the lowest rank that has no more */
};

#endif
