/* SPDX-License-Identifier: Apache-2.0
 *
 * What many rounds have shown: the data behind every report. One drill without a catalogue is a campaign of one round.
 * Pure; direct.c carries a plan out.
 */
#ifndef GMS_DRILL_CAMPAIGN_H
#define GMS_DRILL_CAMPAIGN_H

#include "catalogue.h"
#include "environment.h"
#include "result.h"
#include "statistics.h"

enum drill_word {
    DRILL_WORD_PASSED,
    DRILL_WORD_FAILED,
    DRILL_WORD_SKIPPED,
    DRILL_WORD_COULD_NOT_RUN,
    DRILL_WORD_COUNT
};

/* The numbers of a round that are kept when there are too many rounds to keep everything. */
struct drill_summary {
    bool completed; /* its failover; the times below count only then. ns after the fault, INT64_MIN: not known */
    int64_t steps[DRILL_STEP_COUNT]; /* the latest rank */
    int64_t first_token_ns, new_request_ns, gap_median_ns, gap_greatest_ns;
    uint32_t resumed, sealed, adopted, quarantined;
    uint32_t streams, equal;
    uint64_t tokens;
    bool unnoticed;
    int64_t whole_ns, unnoticed_gap_ns;
    char note[160];
};

struct drill_round {
    const char *name, *done, *checked, *outcome; /* of the catalogue, or written for the one drill; borrowed */
    enum drill_word word;
    char reason[DRILL_FAILURE_BYTES]; /* skipped, failed or could not: the first reason */
    uint64_t seed;                    /* below 2^52, so that every reader of JSON keeps it */
    double seconds;
    struct drill_summary summary;
    struct drill_result *result; /* owned; NULL: not carried out, or one of too many good ones to be kept */
};

/* One way to get over the same faults, beside others. */
struct drill_side {
    const char *name, *what;
    uint32_t failovers;
    struct drill_numbers gaps, first_tokens, new_requests;                   /* ns */
    uint64_t prompt_tokens, cached_tokens, salvaged_tokens, computed_tokens; /* of the re-sent requests */
    struct drill_numbers again;                                              /* computed of each of them */
    size_t streams, equal;
    char failure[DRILL_FAILURE_BYTES]; /* "": none */
};

enum { DRILL_SIDES = 4, DRILL_KEPT_RESULTS = 64 };

struct drill_campaign {
    const struct drill_plan *plan; /* borrowed */
    struct drill_environment environment;
    char work_dir[DRILL_PATH_BYTES];
    bool inexact; /* the controls differ */
    char divergence[160];
    size_t count, capacity, kept;
    struct drill_round *rounds; /* owned */
    struct drill_numbers gaps;  /* of every stream over every failover, ns */
    size_t side_count;
    struct drill_side sides[DRILL_SIDES];
    uint64_t wall_ns, control_ns;
    bool could_not_run;
    char reason[DRILL_FAILURE_BYTES];
};

/* A new round at the end; NULL: no memory. Older ones may move. */
struct drill_round *drill_campaign_add(struct drill_campaign *campaign);
/* Takes `result` (owned from here on) as what came of the round: word, reason, summary. */
void drill_campaign_take(struct drill_campaign *campaign, struct drill_round *round, struct drill_result *result);
void drill_campaign_free(struct drill_campaign *campaign);

/* DRILL_EXIT_...: failed when any round failed, could not run when none was carried out. */
int drill_campaign_exit_code(const struct drill_campaign *campaign);
size_t drill_campaign_count(const struct drill_campaign *campaign, enum drill_word word);
const char *drill_word_name(enum drill_word word);

/* Over all completed failovers. */
struct drill_totals {
    size_t failovers, streams, equal;
    uint64_t tokens;
    uint64_t sealed, adopted, quarantined;
    struct drill_spread steps[DRILL_STEP_COUNT], first_token, new_request, gap;
};
struct drill_totals drill_campaign_totals(struct drill_campaign *campaign);

#endif
