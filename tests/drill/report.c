/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "verdict.h"

enum { LABEL_WIDTH = 30, COLUMN_WIDTH = 20, CELL_BYTES = 64 };

static const char *const step_names[DRILL_STEP_COUNT] = {
    [DRILL_STEP_DETECT] = "detect",     [DRILL_STEP_CONDEMN] = "condemn", [DRILL_STEP_FENCE] = "fence",
    [DRILL_STEP_CLASSIFY] = "classify", [DRILL_STEP_PROMOTE] = "promote", [DRILL_STEP_ADOPT] = "adopt",
    [DRILL_STEP_SERVE] = "serve",
};

static const char *const step_labels[DRILL_STEP_COUNT] = {
    [DRILL_STEP_DETECT] = "death detected",
    [DRILL_STEP_CONDEMN] = "engine condemned",
    [DRILL_STEP_FENCE] = "fenced, all processes ended",
    [DRILL_STEP_CLASSIFY] = "blocks classified",
    [DRILL_STEP_PROMOTE] = "shadow promoted",
    [DRILL_STEP_ADOPT] = "blocks adopted",
    [DRILL_STEP_SERVE] = "serving",
};

const char *drill_step_name(enum drill_step step)
{
    return step < DRILL_STEP_COUNT ? step_names[step] : "?";
}

/* ------------------------------------------------------------------------------------------------- table ------ */

typedef void (*cell_function)(const struct drill_result *result, const struct drill_failover *failover, int argument,
                              char *text);

static void row(const struct drill_result *result, FILE *stream, const char *label, cell_function cell, int argument)
{
    fprintf(stream, "  %-*s", LABEL_WIDTH, label);
    for (uint32_t i = 0; i < result->failover_count; i++) {
        char text[CELL_BYTES] = "-";
        cell(result, &result->failovers[i], argument, text);
        fprintf(stream, "%*s", COLUMN_WIDTH, text);
    }
    fputc('\n', stream);
}

__attribute__((format(printf, 2, 3))) static void put(char *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, CELL_BYTES, format, arguments);
    va_end(arguments);
}

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

static void cell_number(const struct drill_result *result, const struct drill_failover *failover, int argument,
                        char *text)
{
    (void)argument;
    put(text, "failover %td", failover - result->failovers + 1);
}

static void cell_engines(const struct drill_result *result, const struct drill_failover *failover, int argument,
                         char *text)
{
    (void)result;
    (void)argument;
    if (failover->to_engine >= 0)
        put(text, "%d -> %d", failover->from_engine, failover->to_engine);
    else
        put(text, "%d -> nobody", failover->from_engine);
}

static void cell_epoch(const struct drill_result *result, const struct drill_failover *failover, int argument,
                       char *text)
{
    (void)result;
    (void)argument;
    if (failover->completed)
        put(text, "%llu", (unsigned long long)failover->epoch);
}

static void cell_tokens(const struct drill_result *result, const struct drill_failover *failover, int argument,
                        char *text)
{
    (void)result;
    (void)argument;
    put(text, "%llu", (unsigned long long)failover->tokens_before);
}

static void cell_step(const struct drill_result *result, const struct drill_failover *failover, int argument,
                      char *text)
{
    (void)result;
    const struct drill_span *span = &failover->steps[argument];
    if (span->known)
        put(text, "%.2f .. %.2f", ms(span->least_ns), ms(span->greatest_ns));
}

static void cell_first_token(const struct drill_result *result, const struct drill_failover *failover, int argument,
                             char *text)
{
    (void)result;
    (void)argument;
    if (failover->first_token_ns >= 0)
        put(text, "%.2f", ms(failover->first_token_ns));
}

static void cell_probe(const struct drill_result *result, const struct drill_failover *failover, int argument,
                       char *text)
{
    (void)result;
    (void)argument;
    if (failover->probe_done_ns >= 0)
        put(text, "%.2f", ms(failover->probe_done_ns));
}

static void cell_gap(const struct drill_result *result, const struct drill_failover *failover, int argument, char *text)
{
    (void)result;
    (void)argument;
    if (failover->resumed_streams > 0)
        put(text, "%.0f/%.0f/%.0f", ms(failover->gap_least_ns), ms(failover->gap_median_ns),
            ms(failover->gap_greatest_ns));
}

static void cell_resumed(const struct drill_result *result, const struct drill_failover *failover, int argument,
                         char *text)
{
    (void)result;
    (void)argument;
    put(text, "%u", failover->resumed_streams);
}

enum block_row { ROW_SEALED, ROW_SEALED_STATUS, ROW_ADOPTED, ROW_QUARANTINED, ROW_SPOILED, ROW_RECLAIMED, ROW_IDLE };

static void cell_blocks(const struct drill_result *result, const struct drill_failover *failover, int argument,
                        char *text)
{
    (void)result;
    bool known = argument == ROW_SEALED || argument == ROW_SPOILED ? failover->logs_known : failover->status_known;
    if (!known)
        return;
    switch ((enum block_row)argument) {
    case ROW_SEALED:
        put(text, "%u", failover->sealed_everywhere);
        break;
    case ROW_SEALED_STATUS:
        put(text, "%u .. %u", failover->sealed_least, failover->sealed_greatest);
        break;
    case ROW_ADOPTED:
        put(text, "%u", failover->adopted);
        break;
    case ROW_QUARANTINED:
        put(text, "%u", failover->quarantined);
        break;
    case ROW_RECLAIMED:
        put(text, "%u", failover->reclaimed);
        break;
    case ROW_SPOILED:
        put(text, "%u", failover->spoiled);
        break;
    case ROW_IDLE:
        put(text, "%u", failover->idle);
        break;
    }
}

static void cell_back(const struct drill_result *result, const struct drill_failover *failover, int argument,
                      char *text)
{
    (void)result;
    (void)argument;
    if (failover->back.known)
        put(text, "%.2f .. %.2f", ms(failover->back.least_ns), ms(failover->back.greatest_ns));
}

static void cell_silence(const struct drill_result *result, const struct drill_failover *failover, int argument,
                         char *text)
{
    (void)result;
    (void)argument;
    if (failover->silence_ns != INT64_MIN)
        put(text, "%.2f", ms(failover->silence_ns));
}

static void cell_rank(const struct drill_result *result, const struct drill_failover *failover, int argument,
                      char *text)
{
    (void)result;
    const struct drill_rank_outcome *rank = &failover->ranks[argument];
    const char *what = rank->killed ? "killed" : "fenced";
    if (rank->ended)
        put(text, "%s, ended %.1f", what, ms(rank->ended_ns));
    else if (rank->pid != 0)
        put(text, "%s, end not seen", what);
}

/* The same on all ranks, or each of them. */
static void cell_containment(const struct drill_result *result, const struct drill_failover *failover, int argument,
                             char *text)
{
    bool equal = true;
    (void)argument;
    for (uint32_t rank = 1; rank < result->ranks && rank < DRILL_MAX_RANKS; rank++)
        equal = equal && strcmp(failover->ranks[rank].containment, failover->ranks[0].containment) == 0;
    put(text, "%s", equal ? failover->ranks[0].containment : "RANKS DIFFER");
}

static void print_streams(const struct drill_result *result, FILE *stream)
{
    size_t done = 0, equal = 0, errors = 0;
    uint64_t tokens = 0;
    for (size_t i = 0; i < result->stream_count; i++) {
        done += result->streams[i].done;
        equal += result->streams[i].equal && result->streams[i].done;
        errors += result->streams[i].error[0] != '\0';
        tokens += result->streams[i].tokens;
    }
    if (result->stream_count == 0)
        return; /* nothing was shown: zeros would look like a result */
    fprintf(stream, "\n  %-*s%zu of %zu complete, %zu equal to the control run, %llu tokens\n", LABEL_WIDTH,
            "streams (probes included)", done, result->stream_count, equal, (unsigned long long)tokens);
    fprintf(stream, "  %-*s%zu\n", LABEL_WIDTH, "request errors", errors);
    fprintf(stream, "  %-*s%llu = %llu cached + %llu salvaged + %llu computed (last request of each stream)\n",
            LABEL_WIDTH, "prompt tokens", (unsigned long long)result->prompt_tokens,
            (unsigned long long)result->cached_tokens, (unsigned long long)result->salvaged_tokens,
            (unsigned long long)result->computed_tokens);
    if (result->again_streams > 0)
        fprintf(stream, "  %-*s%llu/%llu/%llu, min/median/max of %zu streams that were cut\n", LABEL_WIDTH,
                "tokens computed again", (unsigned long long)result->again_least,
                (unsigned long long)result->again_median, (unsigned long long)result->again_greatest,
                result->again_streams);
    if (result->poisoned_pages > 0) {
        size_t different = 0;
        for (size_t i = 0; i < result->stream_count; i++)
            different += result->streams[i].done && !result->streams[i].equal;
        fprintf(stream, "  %-*s%u; %zu of %u poisoned streams differ from the control run\n", LABEL_WIDTH,
                "poisoned pages", result->poisoned_pages, different, result->poisoned_chains);
    }
    if (!result->plan->verbose)
        return;
    fprintf(stream, "\n  %-8s%8s%9s%14s%9s%9s%10s%10s\n", "stream", "tokens", "resumes", "longest gap", "prompt",
            "cached", "salvaged", "computed");
    for (size_t i = 0; i < result->stream_count; i++) {
        const struct drill_stream_result *one = &result->streams[i];
        fprintf(stream, "  %-8s%8u%9u%11.1f ms%9llu%9llu%10llu%10llu%s\n", one->id, one->tokens, one->resumes,
                one->longest_gap_ns >= 0 ? ms(one->longest_gap_ns) : 0.0, (unsigned long long)one->prompt_tokens,
                (unsigned long long)one->cached_tokens, (unsigned long long)one->salvaged_tokens,
                (unsigned long long)one->computed_tokens, one->equal ? "" : "  DIFFERS");
    }
}

void drill_report_table(const struct drill_result *result, FILE *stream)
{
    if (result->failover_count > 0) {
        fputc('\n', stream);
        row(result, stream, "", cell_number, 0);
        row(result, stream, "engine", cell_engines, 0);
        row(result, stream, "epoch", cell_epoch, 0);
        row(result, stream, "tokens streamed before", cell_tokens, 0);
        fprintf(stream, "\n  ms after the fault, earliest .. latest rank\n");
        for (int step = 0; step < DRILL_STEP_COUNT; step++)
            row(result, stream, step_labels[step], cell_step, step);
        row(result, stream, "first token to a client", cell_first_token, 0);
        row(result, stream, "a new request complete", cell_probe, 0);
        fprintf(stream, "\n  streams\n");
        row(result, stream, "interrupted and resumed", cell_resumed, 0);
        row(result, stream, "gap, ms, min/median/max", cell_gap, 0);
        fprintf(stream, "\n  blocks\n");
        row(result, stream, "sealed on all ranks (logs)", cell_blocks, ROW_SEALED);
        row(result, stream, "sealed per rank (status)", cell_blocks, ROW_SEALED_STATUS);
        if (result->plan->sabotage != DRILL_SABOTAGE_NONE)
            row(result, stream, "damaged by the drill", cell_blocks, ROW_SPOILED);
        row(result, stream, "adopted", cell_blocks, ROW_ADOPTED);
        row(result, stream, "quarantined", cell_blocks, ROW_QUARANTINED);
        row(result, stream, "came back from quarantine", cell_blocks, ROW_RECLAIMED);
        row(result, stream, "the last, ms after the fault", cell_back, 0);
        row(result, stream, "free", cell_blocks, ROW_IDLE);
        fprintf(stream, "\n  the dead engine, ms after the fault\n");
        for (uint32_t rank = 0; rank < result->ranks && rank < DRILL_MAX_RANKS; rank++) {
            char label[32];
            snprintf(label, sizeof label, "rank %u", rank);
            row(result, stream, label, cell_rank, (int)rank);
        }
        row(result, stream, "contained by", cell_containment, 0);
        row(result, stream, "silence, old to new, ms (logs)", cell_silence, 0);
    }
    print_streams(result, stream);
    for (size_t i = 0; i < result->failure_count && i < DRILL_MAX_FAILURES; i++)
        fprintf(stream, "%s  - %s\n", i == 0 ? "\n" : "", result->failures[i]);
    if (result->failure_count > DRILL_MAX_FAILURES)
        fprintf(stream, "  - and %zu more\n", result->failure_count - DRILL_MAX_FAILURES);
    int code = drill_verdict_exit_code(result);
    fprintf(stream, "\n%s in %.1f s\n",
            code == DRILL_EXIT_PASS   ? "PASSED"
            : code == DRILL_EXIT_FAIL ? "FAILED"
                                      : "COULD NOT RUN",
            (double)result->wall_ns / 1e9);
}

/* --------------------------------------------------------------------------------------------- campaign ------- */

static void print_ms(FILE *stream, int width, bool known, int64_t ns)
{
    if (known)
        fprintf(stream, "%*.1f", width, ms(ns));
    else
        fprintf(stream, "%*s", width, "-");
}

static void print_round(const struct drill_round *round, FILE *stream)
{
    const struct drill_summary *sum = &round->summary;
    fprintf(stream, "  %-26s%-14s", round->name, drill_word_name(round->word));
    if (!sum->completed) {
        fprintf(stream, "%.120s\n", round->reason);
        return;
    }
    print_ms(stream, 10, sum->unnoticed, sum->whole_ns);
    print_ms(stream, 10, sum->steps[DRILL_STEP_SERVE] != INT64_MIN, sum->steps[DRILL_STEP_SERVE]);
    print_ms(stream, 10, sum->first_token_ns != INT64_MIN, sum->first_token_ns);
    print_ms(stream, 10, sum->gap_median_ns != INT64_MIN, sum->gap_median_ns);
    fprintf(stream, "%8u of %-5u%5u of %u\n", sum->adopted, sum->sealed, sum->equal, sum->streams);
}

static void print_spread(FILE *stream, const char *label, const struct drill_spread *spread)
{
    if (spread->count > 0)
        fprintf(stream, "  %-28s%10.2f%10.2f%12.2f%10.2f%9zu\n", label, ms(spread->least), ms(spread->median),
                ms(spread->most_of_ten), ms(spread->greatest), spread->count);
}

static void print_totals(struct drill_campaign *campaign, FILE *stream)
{
    struct drill_totals totals = drill_campaign_totals(campaign);
    if (totals.failovers < 2)
        return;
    fprintf(stream, "\n  %-28s%10s%10s%12s%10s%9s\n", "ms after the fault", "least", "median", "9 of 10", "greatest",
            "of");
    for (int step = 0; step < DRILL_STEP_COUNT; step++)
        print_spread(stream, step_labels[step], &totals.steps[step]);
    print_spread(stream, "first token to a client", &totals.first_token);
    print_spread(stream, "a new request complete", &totals.new_request);
    print_spread(stream, "gap of a stream", &totals.gap);
    fprintf(stream, "\n  %zu streams, %zu equal to the control runs, %llu tokens\n", totals.streams, totals.equal,
            (unsigned long long)totals.tokens);
}

static void print_sides(struct drill_campaign *campaign, FILE *stream)
{
    if (campaign->side_count == 0)
        return;
    fprintf(stream, "\n  %-22s%10s%12s%12s%12s%14s%14s%16s%12s\n", "the same fault with", "failovers", "gap median",
            "9 of 10", "first token", "new request", "computed", "a stream", "equal");
    for (size_t i = 0; i < campaign->side_count; i++) {
        struct drill_side *side = &campaign->sides[i];
        struct drill_spread gap = drill_spread_of(&side->gaps), first = drill_spread_of(&side->first_tokens),
                            request = drill_spread_of(&side->new_requests), each = drill_spread_of(&side->again);
        char again[64] = "";
        if (each.count > 0)
            snprintf(again, sizeof again, "%lld/%lld/%lld", (long long)each.least, (long long)each.median,
                     (long long)each.greatest);
        fprintf(stream, "  %-22s%10u%9.1f ms%9.1f ms%9.1f ms%11.1f ms%14llu%16s%6zu of %zu\n", side->name,
                side->failovers, ms(gap.median), ms(gap.most_of_ten), ms(first.median), ms(request.median),
                (unsigned long long)side->computed_tokens, again, side->equal, side->streams);
        if (side->failure[0] != '\0')
            fprintf(stream, "    - %s\n", side->failure);
    }
}

void drill_report_campaign(struct drill_campaign *campaign, FILE *stream)
{
    if (campaign->count > 0) {
        fprintf(stream, "\n  %-26s%-14s%10s%10s%10s%10s%16s%12s\n", "fault", "", "whole", "serving", "token", "gap",
                "adopted", "streams");
        fprintf(stream, "  %-26s%-14s%10s%10s%10s%10s%16s%12s\n", "", "", "after ms", "after ms", "after ms",
                "median ms", "of sealed", "equal");
    }
    for (size_t i = 0; i < campaign->count; i++)
        print_round(&campaign->rounds[i], stream);
    print_totals(campaign, stream);
    print_sides(campaign, stream);
    if (campaign->inexact)
        fprintf(stream, "\n  equal tokens are not claimed: %s\n", campaign->divergence);
    for (size_t i = 0; i < campaign->count; i++) {
        const struct drill_result *result = campaign->rounds[i].result;
        for (size_t f = 0; result != NULL && campaign->rounds[i].word != DRILL_WORD_SKIPPED &&
                           f < result->failure_count && f < DRILL_MAX_FAILURES;
             f++)
            fprintf(stream, "  - %s: %s\n", campaign->rounds[i].name, result->failures[f]);
    }
    if (campaign->could_not_run)
        fprintf(stream, "  - %s\n", campaign->reason);
    int code = drill_campaign_exit_code(campaign);
    fprintf(stream, "\n%s", code == DRILL_EXIT_PASS ? "PASSED" : code == DRILL_EXIT_FAIL ? "FAILED" : "COULD NOT RUN");
    if (campaign->count > 0)
        fprintf(stream, ": %zu passed, %zu failed, %zu skipped, %zu could not run,",
                drill_campaign_count(campaign, DRILL_WORD_PASSED), drill_campaign_count(campaign, DRILL_WORD_FAILED),
                drill_campaign_count(campaign, DRILL_WORD_SKIPPED),
                drill_campaign_count(campaign, DRILL_WORD_COULD_NOT_RUN));
    fprintf(stream, " in %.1f s\n", (double)campaign->wall_ns / 1e9);
}
