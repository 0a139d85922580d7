/* SPDX-License-Identifier: Apache-2.0
 *
 * From what was seen to what is reported: joins the clients' clocks, the engines' logs and the coordinators' status
 * into a result. Pure: no process, socket or clock; tested with observations written by hand.
 */
#ifndef GMS_DRILL_MEASURE_H
#define GMS_DRILL_MEASURE_H

#include "logs.h"
#include "result.h"
#include "sabotage.h"
#include "streams.h"

/* One failover as it was seen. Times are CLOCK_MONOTONIC ns, 0: not seen. */
struct drill_observation {
    bool injected, completed;
    int32_t from_engine, to_engine;
    uint64_t from_incarnation, to_incarnation;
    bool status_may_forget;    /* coordinators ended in the middle of it: what they say of a takeover ends with them */
    uint64_t lost_incarnation; /* a successor that was to die on the way; 0: none */
    uint64_t signal_ns;        /* just before the first pidfd signal; 0: the engine killed itself */
    uint64_t ended_ns[DRILL_MAX_RANKS]; /* when the process behind the rank's pidfd was seen to have ended */
    int32_t pids[DRILL_MAX_RANKS];
    char containment[DRILL_MAX_RANKS][16]; /* of the engine that was struck; "": not known */
    bool killed[DRILL_MAX_RANKS];
    uint64_t tokens_before;
    const struct drill_stream *probe; /* borrowed; NULL: none was opened */
    struct drill_damage damage;
    uint32_t spoiled; /* damaged blocks that must not be adopted */
};

struct drill_evidence {
    uint32_t ranks, repeat;
    const struct drill_observation *observations;
    const struct drill_streams *streams;
    const struct drill_streams *control; /* undisturbed; each stream names the one that it must equal */
    const struct drill_status *status;   /* of every rank, at the end; NULL: could not be had */
    const struct drill_logs *logs;       /* NULL: could not be read */
    /* Blocks that the first engine under fault began with, by the logs; replaced by what the last successor began
     * with. NULL: none, and nobody asks. */
    struct drill_blocks *blocks;
};

/* Fills in everything but the verdict's failures. Adds a failure where the evidence contradicts itself. */
void drill_measure(const struct drill_evidence *evidence, struct drill_result *result);

#endif
