/* SPDX-License-Identifier: Apache-2.0
 *
 * What a drill found out. drill.c fills it in, verdict.c judges it, report.c shows it; none of the latter two measures
 * anything, so both are tested with results written by hand.
 */
#ifndef GMS_DRILL_RESULT_H
#define GMS_DRILL_RESULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cluster.h"
#include "logs.h"
#include "plan.h"

/* Steps of a takeover, each as the least and the greatest moment over the ranks, in ns after the fault. */
enum drill_step {
    DRILL_STEP_DETECT,
    DRILL_STEP_CONDEMN,
    DRILL_STEP_FENCE,
    DRILL_STEP_CLASSIFY,
    DRILL_STEP_PROMOTE,
    DRILL_STEP_ADOPT,
    DRILL_STEP_SERVE,
    DRILL_STEP_COUNT
};

struct drill_span {
    bool known;
    int64_t least_ns, greatest_ns;
};

struct drill_rank_outcome {
    int32_t pid;          /* 0: unknown */
    char containment[16]; /* how it was contained; "": not known */
    bool killed;          /* by the drill, or armed to kill itself */
    bool ended;           /* seen to end */
    int64_t ended_ns;     /* after the fault, by its pidfd: an upper bound, the drill has other things to do too */
    int64_t last_log_ns;  /* after the fault: its last own line; INT64_MIN: none */
    char last_event[16];
    uint32_t sealed_here, adoptable_here, quarantined, reclaimed, damaged; /* status of that rank's coordinator */
    /* All after the fault; INT64_MIN: not known. */
    int64_t step_ns[DRILL_STEP_COUNT];                     /* by that rank's coordinator */
    int64_t promoted_ns, adopted_ns, woken_ns, serving_ns; /* by the log of the successor's rank */
};

struct drill_failover {
    bool injected, completed;
    int32_t from_engine, to_engine;
    uint64_t from_incarnation, to_incarnation, epoch;
    char cause[16];
    uint64_t fault_ns;            /* monotonic */
    const char *fault_known_from; /* "signal", "log", "end": how fault_ns was found out */
    uint64_t tokens_before;       /* of all streams, when the fault was made */
    struct drill_span steps[DRILL_STEP_COUNT];
    int64_t first_token_ns, probe_done_ns; /* after the fault; -1: never */
    uint32_t resumed_streams;
    int64_t gap_least_ns, gap_median_ns, gap_greatest_ns; /* of the streams that it interrupted */
    bool logs_known;
    uint32_t sealed_everywhere; /* by the dead engine's own logs: at least so many */
    uint32_t spoiled;           /* of these, how many the sabotage made unadoptable */
    bool status_known;
    uint32_t adopted, idle, quarantined, sealed_least, sealed_greatest;
    uint32_t tag_count; /* tags of the successor's memory; each time is the longest of all ranks */
    struct drill_log_tag tags[DRILL_LOG_TAGS];
    uint32_t reclaimed;     /* slots that came back while its successor served */
    struct drill_span back; /* when the last of them did, after the fault */
    int64_t silence_ns; /* last act of the old engine to first act of the new one, by their logs; INT64_MIN: unknown */
    struct drill_rank_outcome ranks[DRILL_MAX_RANKS];
};

struct drill_stream_result {
    char id[16];
    bool done, probe;
    bool equal;                                                               /* to the control run's */
    uint32_t first_difference, tokens, control_tokens, expected_token, token; /* the last two at first_difference */
    uint32_t resumes;
    int64_t failover_gap_ns; /* longest between tokens of two engines; -1: none */
    int64_t longest_gap_ns;  /* between two tokens, whole life; -1: fewer than two */
    uint64_t prompt_tokens, cached_tokens, salvaged_tokens, computed_tokens; /* of its last request */
    uint64_t sent_tokens;   /* what the client had sent then: bytes of the prompt + re-sent tokens */
    uint64_t resent_tokens; /* of these, re-sent */
    char error[160];
};

enum { DRILL_MAX_STREAM_RESULTS = 1024, DRILL_MAX_FAILURES = 128, DRILL_FAILURE_BYTES = 512 };

/* What of the sealed blocks the successor has to take over. */
enum drill_adoption {
    DRILL_ADOPTION_ALL,
    DRILL_ADOPTION_NONE,    /* the deployment does not trust what an engine with that fault has left */
    DRILL_ADOPTION_UNKNOWN, /* somebody else's deployment: its policy is not known here */
};

struct drill_result {
    const struct drill_plan *plan; /* borrowed */
    enum drill_adoption adoption;
    bool unsupported;                /* the engine cannot do what the fault is about; the first failure says why */
    bool could_not_run;              /* nothing was shown, neither good nor bad: the failures say why */
    char work_dir[DRILL_PATH_BYTES]; /* that the run made; "": none */
    uint32_t ranks;
    uint64_t wall_ns, control_ns;
    uint32_t failover_count;
    struct drill_failover failovers[DRILL_MAX_FAILOVERS];
    bool quarantine_known; /* the next two are of the end, after everybody had time */
    uint32_t suspects_pending, suspects_given_up, left_in_quarantine;
    size_t stream_count;
    struct drill_stream_result streams[DRILL_MAX_STREAM_RESULTS];
    /* A fault that no stream may notice, before the failovers. */
    bool unnoticed;
    int64_t whole_ns;         /* from the fault until the group was whole again */
    int64_t unnoticed_gap_ns; /* longest gap of a stream meanwhile */
    char note[160];           /* what was chosen where a fault has a choice */
    bool inexact;             /* the two control runs differ, so equal tokens are not claimed */
    char divergence[160];     /* where they differ first */
    uint32_t poisoned_pages,
        poisoned_chains; /* chains: prefix chains, that is streams, that a poisoned page is part of */
    uint64_t prompt_tokens, cached_tokens, salvaged_tokens, computed_tokens; /* sums over completed requests */
    uint64_t resumed_cached_tokens;                                          /* of them, of those that were re-sent */
    size_t resumed_done;
    /* Tokens computed again, of each stream that had some before its engine died: its prompt had been complete. */
    size_t again_streams;
    uint64_t again_least, again_median, again_greatest;
    size_t failure_count; /* may exceed what is kept */
    char failures[DRILL_MAX_FAILURES][DRILL_FAILURE_BYTES];
};

/* Adds one reason why the drill failed. */
__attribute__((format(printf, 2, 3))) void drill_result_fail(struct drill_result *result, const char *format, ...);
const char *drill_step_name(enum drill_step step);

#endif
