/* SPDX-License-Identifier: Apache-2.0
 *
 * Many rounds: rows of the catalogue, in order or drawn, once or for hours, in scenes that they share.
 */
#ifndef GMS_DRILL_CAMPAIGN_H
#define GMS_DRILL_CAMPAIGN_H

#include <stdio.h>

#include "catalogue.h"
#include "result.h"

enum drill_word {
    DRILL_WORD_PASSED,
    DRILL_WORD_FAILED,
    DRILL_WORD_SKIPPED,
    DRILL_WORD_COULD_NOT_RUN,
    DRILL_WORD_COUNT
};

struct drill_round {
    const struct drill_fault *fault;
    enum drill_word word;
    char reason[DRILL_FAILURE_BYTES]; /* skipped, failed or could not: the first reason */
    uint64_t seed;
    double seconds;
    struct drill_result *result; /* owned; NULL: not carried out, or one of too many good ones to be kept */
};

struct drill_campaign {
    const struct drill_plan *plan; /* borrowed */
    char work_dir[DRILL_PATH_BYTES];
    bool inexact;
    char divergence[160];
    size_t count, capacity;
    struct drill_round *rounds; /* owned */
    uint64_t wall_ns, control_ns;
    bool could_not_run;
    char reason[DRILL_FAILURE_BYTES];
};

/* Carries out plan->rows. Progress goes to `progress`. Never fails: what went wrong is in the campaign, which the
 * caller frees with drill_campaign_free. Every process has ended when it returns. */
void drill_campaign_run(const struct drill_plan *plan, FILE *progress, struct drill_campaign *ret_campaign);
void drill_campaign_free(struct drill_campaign *campaign);
/* DRILL_EXIT_...: failed when any round failed, could not run when none was carried out. */
int drill_campaign_exit_code(const struct drill_campaign *campaign);
const char *drill_word_name(enum drill_word word);

/* The table for people. */
void drill_campaign_print(const struct drill_campaign *campaign, FILE *stream);

#endif
