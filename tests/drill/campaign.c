/* SPDX-License-Identifier: Apache-2.0 */
#include "campaign.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "verdict.h"

struct drill_round *drill_campaign_add(struct drill_campaign *campaign)
{
    if (campaign->count == campaign->capacity) {
        size_t capacity = campaign->capacity * 2 + 32;
        struct drill_round *grown = realloc(campaign->rounds, capacity * sizeof *grown);
        if (grown == NULL)
            return NULL;
        campaign->rounds = grown;
        campaign->capacity = capacity;
    }
    struct drill_round *round = &campaign->rounds[campaign->count++];
    memset(round, 0, sizeof *round);
    return round;
}

/* Of several failovers (one drill may have them) the first speaks for the round; their gaps all count. */
static void summarise(const struct drill_result *result, struct drill_summary *ret_summary)
{
    struct drill_summary *sum = ret_summary;
    memset(sum, 0, sizeof *sum);
    const struct drill_failover *failover = &result->failovers[0];
    sum->completed = result->failover_count > 0 && failover->completed;
    for (int step = 0; step < DRILL_STEP_COUNT; step++)
        sum->steps[step] =
            sum->completed && failover->steps[step].known ? failover->steps[step].greatest_ns : INT64_MIN;
    sum->first_token_ns = sum->completed && failover->first_token_ns >= 0 ? failover->first_token_ns : INT64_MIN;
    sum->new_request_ns = sum->completed && failover->probe_done_ns >= 0 ? failover->probe_done_ns : INT64_MIN;
    sum->gap_median_ns = sum->completed && failover->resumed_streams > 0 ? failover->gap_median_ns : INT64_MIN;
    sum->gap_greatest_ns = sum->completed && failover->resumed_streams > 0 ? failover->gap_greatest_ns : INT64_MIN;
    for (uint32_t i = 0; i < result->failover_count; i++) {
        sum->resumed += result->failovers[i].resumed_streams;
        sum->sealed += result->failovers[i].sealed_everywhere;
        sum->adopted += result->failovers[i].adopted;
        sum->quarantined += result->failovers[i].quarantined;
    }
    for (size_t i = 0; i < result->stream_count; i++) {
        sum->streams++;
        sum->equal += result->streams[i].done && result->streams[i].equal;
        sum->tokens += result->streams[i].tokens;
    }
    sum->unnoticed = result->unnoticed;
    sum->whole_ns = result->whole_ns;
    sum->unnoticed_gap_ns = result->unnoticed_gap_ns;
    memcpy(sum->note, result->note, sizeof sum->note);
}

void drill_campaign_take(struct drill_campaign *campaign, struct drill_round *round, struct drill_result *result)
{
    round->word = result->unsupported         ? DRILL_WORD_SKIPPED
                  : result->could_not_run     ? DRILL_WORD_COULD_NOT_RUN
                  : result->failure_count > 0 ? DRILL_WORD_FAILED
                                              : DRILL_WORD_PASSED;
    if (result->failure_count > 0)
        snprintf(round->reason, sizeof round->reason, "%s", result->failures[0]);
    summarise(result, &round->summary);
    for (size_t i = 0; i < result->stream_count; i++)
        if (result->streams[i].failover_gap_ns >= 0)
            drill_numbers_add(&campaign->gaps, result->streams[i].failover_gap_ns);
    round->result = result;
    if (round->word == DRILL_WORD_PASSED && ++campaign->kept > DRILL_KEPT_RESULTS) {
        free(result);
        round->result = NULL;
    }
}

void drill_campaign_free(struct drill_campaign *campaign)
{
    for (size_t i = 0; i < campaign->count; i++)
        free(campaign->rounds[i].result);
    free(campaign->rounds);
    campaign->rounds = NULL;
    campaign->count = campaign->capacity = 0;
    drill_numbers_free(&campaign->gaps);
    for (size_t i = 0; i < DRILL_SIDES; i++) {
        drill_numbers_free(&campaign->sides[i].gaps);
        drill_numbers_free(&campaign->sides[i].first_tokens);
        drill_numbers_free(&campaign->sides[i].new_requests);
        drill_numbers_free(&campaign->sides[i].again);
    }
}

size_t drill_campaign_count(const struct drill_campaign *campaign, enum drill_word word)
{
    size_t count = 0;
    for (size_t i = 0; i < campaign->count; i++)
        count += campaign->rounds[i].word == word;
    return count;
}

int drill_campaign_exit_code(const struct drill_campaign *campaign)
{
    if (drill_campaign_count(campaign, DRILL_WORD_FAILED) > 0)
        return DRILL_EXIT_FAIL;
    for (size_t i = 0; i < campaign->side_count; i++)
        if (campaign->sides[i].failure[0] != '\0')
            return DRILL_EXIT_FAIL;
    if (campaign->could_not_run || drill_campaign_count(campaign, DRILL_WORD_COULD_NOT_RUN) > 0 ||
        drill_campaign_count(campaign, DRILL_WORD_PASSED) + campaign->side_count == 0)
        return DRILL_EXIT_COULD_NOT_RUN;
    return DRILL_EXIT_PASS;
}

const char *drill_word_name(enum drill_word word)
{
    static const char *const names[DRILL_WORD_COUNT] = {
        [DRILL_WORD_PASSED] = "passed",
        [DRILL_WORD_FAILED] = "failed",
        [DRILL_WORD_SKIPPED] = "skipped",
        [DRILL_WORD_COULD_NOT_RUN] = "could-not-run",
    };
    return word < DRILL_WORD_COUNT ? names[word] : "?";
}

static struct drill_spread spread_and_free(struct drill_numbers *numbers)
{
    struct drill_spread spread = drill_spread_of(numbers);
    drill_numbers_free(numbers);
    return spread;
}

static void add_known(struct drill_numbers *numbers, int64_t value)
{
    if (value != INT64_MIN)
        drill_numbers_add(numbers, value);
}

struct drill_totals drill_campaign_totals(struct drill_campaign *campaign)
{
    struct drill_totals totals = {0};
    struct drill_numbers steps[DRILL_STEP_COUNT] = {0}, first_token = {0}, new_request = {0};
    for (size_t i = 0; i < campaign->count; i++) {
        const struct drill_summary *sum = &campaign->rounds[i].summary;
        totals.streams += sum->streams;
        totals.equal += sum->equal;
        totals.tokens += sum->tokens;
        if (!sum->completed)
            continue;
        totals.failovers++;
        totals.sealed += sum->sealed;
        totals.adopted += sum->adopted;
        totals.quarantined += sum->quarantined;
        for (int step = 0; step < DRILL_STEP_COUNT; step++)
            add_known(&steps[step], sum->steps[step]);
        add_known(&first_token, sum->first_token_ns);
        add_known(&new_request, sum->new_request_ns);
    }
    for (int step = 0; step < DRILL_STEP_COUNT; step++)
        totals.steps[step] = spread_and_free(&steps[step]);
    totals.first_token = spread_and_free(&first_token);
    totals.new_request = spread_and_free(&new_request);
    totals.gap = drill_spread_of(&campaign->gaps);
    return totals;
}
