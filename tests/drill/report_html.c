/* SPDX-License-Identifier: Apache-2.0 */
#include "report_html.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "markup.h"
#include "options.h"
#include "report_charts.h"
#include "report_style.h"

enum { STREAMS_SHOWN = 64 };

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

static void text(FILE *page, const char *words)
{
    drill_markup_text(page, words);
}

static const char *plural(size_t count)
{
    return count == 1 ? "" : "s";
}

static void cell_ms(FILE *page, bool known, int64_t ns)
{
    if (known && ns != INT64_MIN)
        fprintf(page, "<td>%.1f</td>", ms(ns));
    else
        fputs("<td class=\"soft\">–</td>", page);
}

static void pill(FILE *page, enum drill_word word)
{
    const char *name = drill_word_name(word);
    fprintf(page, "<span class=\"pill %s\">%s</span>", name, word == DRILL_WORD_COULD_NOT_RUN ? "could not run" : name);
}

/* ---------------------------------------------------------------------------------------------------- top ----- */

static void lead(FILE *page, const struct drill_campaign *campaign, const struct drill_totals *totals)
{
    size_t passed = drill_campaign_count(campaign, DRILL_WORD_PASSED),
           skipped = drill_campaign_count(campaign, DRILL_WORD_SKIPPED), tried = campaign->count - skipped;
    fprintf(
        page,
        "<p class=\"lead\">An inference engine was made to fail, again and again, while clients were reading answers "
        "from it. %zu of %zu fault%s ended as %s should%s. ",
        passed, tried, plural(tried), tried == 1 ? "it" : "they", skipped > 0 ? "; some could not be tried here" : "");
    if (campaign->inexact) {
        fputs("This engine is not exact by itself (", page);
        text(page, campaign->divergence);
        fputs("), so equal answers are not claimed.", page);
    } else if (totals->streams > 0) {
        fprintf(page, "%zu of %zu answers (%llu tokens) are, token by token, those of two runs that nobody disturbed.",
                totals->equal, totals->streams, (unsigned long long)totals->tokens);
    }
    fputs("</p>", page);
}

static void head(FILE *page, const struct drill_campaign *campaign, const struct drill_totals *totals)
{
    static const char *const verdicts[] = {"passed", "failed", "could-not-run"};
    int code = drill_campaign_exit_code(campaign);
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
          "content=\"width=device-width,initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">"
          "<link rel=\"icon\" href=\"data:,\"><title>Failover drill: ",
          page);
    text(page, verdicts[code]);
    fprintf(page, "</title><style>%s</style></head><body><main>", drill_report_style);
    fprintf(page,
            "<header><h1>Failover drill</h1><span id=\"verdict\" class=\"pill %s\">%s</span><span class=\"soft\">",
            verdicts[code], code == DRILL_EXIT_COULD_NOT_RUN ? "could not run" : verdicts[code]);
    text(page, campaign->environment.started);
    fprintf(page, ", %.0f seconds</span></header>", (double)campaign->wall_ns / 1e9);
    if (campaign->count > 0)
        lead(page, campaign, totals);
    else if (campaign->side_count > 0)
        fputs("<p class=\"lead\">An inference engine was made to fail while clients were reading answers from it, and "
              "got "
              "over it in different ways.</p>",
              page);
    if (campaign->could_not_run) {
        fputs("<ul class=\"failures\"><li>", page);
        text(page, campaign->reason);
        fputs("</li></ul>", page);
    }
}

static void tile(FILE *page, const char *label, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void tile(FILE *page, const char *label, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("<div class=\"tile\"><b>", page);
    vfprintf(page, format, arguments);
    fputs("</b><span class=\"soft\">", page);
    text(page, label);
    fputs("</span></div>", page);
    va_end(arguments);
}

static void tiles(FILE *page, struct drill_campaign *campaign, const struct drill_totals *totals)
{
    size_t skipped = drill_campaign_count(campaign, DRILL_WORD_SKIPPED);
    fputs("<div class=\"tiles\">", page);
    if (campaign->count > 0)
        tile(page, skipped > 0 ? "rounds passed (some skipped)" : "rounds passed", "%zu of %zu",
             drill_campaign_count(campaign, DRILL_WORD_PASSED), campaign->count - skipped);
    if (totals->gap.count > 0) {
        tile(page, "median pause of a stream", "%.1f ms", ms(totals->gap.median));
        tile(page, "nine of ten pauses are shorter than", "%.1f ms", ms(totals->gap.most_of_ten));
    }
    if (totals->steps[DRILL_STEP_SERVE].count > 0)
        tile(page, "median, fault to serving again", "%.1f ms", ms(totals->steps[DRILL_STEP_SERVE].median));
    if (totals->sealed > 0)
        tile(page, "finished cache blocks kept", "%.1f %%", 100.0 * (double)totals->adopted / (double)totals->sealed);
    if (totals->streams > 0)
        tile(page, "answers equal to undisturbed ones", "%zu of %zu", totals->equal, totals->streams);
    for (size_t i = 0; i < campaign->side_count; i++) {
        char label[96];
        struct drill_spread gap = drill_spread_of(&campaign->sides[i].gaps);
        snprintf(label, sizeof label, "median pause with %.60s", campaign->sides[i].name);
        if (gap.count > 0)
            tile(page, label, "%.1f ms", ms(gap.median));
    }
    fputs("</div>", page);
}

/* -------------------------------------------------------------------------------------------------- rounds ---- */

/* All rounds of one fault. */
struct group {
    size_t rounds, words[DRILL_WORD_COUNT];
    uint32_t sealed, adopted, streams, equal;
    struct drill_numbers gaps, serving, whole;
};

static void add_known(struct drill_numbers *numbers, bool known, int64_t value)
{
    if (known && value != INT64_MIN)
        drill_numbers_add(numbers, value);
}

static void gather(const struct drill_campaign *campaign, const char *name, struct group *ret_group)
{
    memset(ret_group, 0, sizeof *ret_group);
    for (size_t i = 0; i < campaign->count; i++) {
        const struct drill_summary *sum = &campaign->rounds[i].summary;
        if (strcmp(campaign->rounds[i].name, name) != 0)
            continue;
        ret_group->rounds++;
        ret_group->words[campaign->rounds[i].word]++;
        ret_group->sealed += sum->sealed;
        ret_group->adopted += sum->adopted;
        ret_group->streams += sum->streams;
        ret_group->equal += sum->equal;
        add_known(&ret_group->gaps, sum->completed, sum->gap_median_ns);
        add_known(&ret_group->serving, sum->completed, sum->steps[DRILL_STEP_SERVE]);
        add_known(&ret_group->whole, sum->unnoticed, sum->whole_ns);
    }
}

static void cell_median(FILE *page, struct drill_numbers *numbers)
{
    struct drill_spread spread = drill_spread_of(numbers);
    cell_ms(page, spread.count > 0, spread.median);
    drill_numbers_free(numbers);
}

static void fault_row(FILE *page, const struct drill_campaign *campaign, size_t first)
{
    const struct drill_round *round = &campaign->rounds[first];
    struct group group;
    gather(campaign, round->name, &group);
    enum drill_word word = group.words[DRILL_WORD_FAILED] > 0          ? DRILL_WORD_FAILED
                           : group.words[DRILL_WORD_COULD_NOT_RUN] > 0 ? DRILL_WORD_COULD_NOT_RUN
                           : group.words[DRILL_WORD_SKIPPED] > 0       ? DRILL_WORD_SKIPPED
                                                                       : DRILL_WORD_PASSED;
    fputs("<tr><td>", page);
    if (round->result != NULL)
        fprintf(page, "<a href=\"#round%zu\"><b>", first + 1);
    else
        fputs("<b>", page);
    text(page, round->name);
    fprintf(page, "</b>%s<br><small>", round->result != NULL ? "</a>" : "");
    text(page, round->done);
    for (size_t i = first; i < campaign->count; i++) /* why not, once */
        if (strcmp(campaign->rounds[i].name, round->name) == 0 && campaign->rounds[i].reason[0] != '\0') {
            fputs("<br><b>", page);
            text(page, campaign->rounds[i].reason);
            fputs("</b>", page);
            break;
        }
    if (round->summary.note[0] != '\0') {
        fputs("<br>", page);
        text(page, round->summary.note);
    }
    fputs("</small></td><td class=\"count\">", page);
    pill(page, word);
    if (group.rounds > 1)
        fprintf(page, "<br><small>%zu of %zu</small>", group.words[word], group.rounds);
    fputs("</td>", page);
    bool completed = group.gaps.count > 0;
    cell_median(page, &group.gaps);
    cell_median(page, &group.serving);
    cell_median(page, &group.whole);
    if (completed)
        fprintf(page, "<td class=\"count\">%u of %u</td><td class=\"count\">%u of %u</td></tr>", group.adopted,
                group.sealed, group.equal, group.streams);
    else
        fputs("<td class=\"soft\">–</td><td class=\"soft\">–</td></tr>", page);
}

static void rounds(FILE *page, const struct drill_campaign *campaign)
{
    if (campaign->count == 0)
        return;
    fputs("<h2>The faults</h2><div class=\"card\"><table id=\"faults\"><thead><tr><th>fault</th><th>result</th>"
          "<th>pause of a stream, median ms</th><th>serving again after ms</th><th>control plane whole after ms</th>"
          "<th>blocks kept</th><th>answers equal</th></tr></thead><tbody>",
          page);
    for (size_t i = 0; i < campaign->count; i++) {
        bool seen = false;
        for (size_t before = 0; before < i && !seen; before++)
            seen = strcmp(campaign->rounds[before].name, campaign->rounds[i].name) == 0;
        if (!seen)
            fault_row(page, campaign, i);
    }
    fputs("</tbody></table></div>", page);
}

static void times(FILE *page, const struct drill_campaign *campaign, const struct drill_totals *totals)
{
    if (totals->gap.count > 0) {
        fprintf(
            page,
            "<h2>How long streams paused</h2><div class=\"card\" id=\"distribution\">"
            "<p>Each of %zu answers was cut off in the middle and went on with the next engine. The pause is the "
            "time between the last token before and the first token after, as the client saw it: shortest %.1f, half "
            "within %.1f, nine of ten within %.1f, longest %.1f ms.</p>",
            totals->gap.count, ms(totals->gap.least), ms(totals->gap.median), ms(totals->gap.most_of_ten),
            ms(totals->gap.greatest));
        drill_chart_distribution(page, &campaign->gaps);
        fputs("</div>", page);
    }
    if (totals->failovers == 0)
        return;
    fprintf(
        page,
        "<h2>Where the time goes</h2><div class=\"card\" id=\"breakdown\"><p>Medians over %zu failover%s, in ms after "
        "the fault; a step counts when the last rank has done it.</p>",
        totals->failovers, plural(totals->failovers));
    drill_chart_breakdown(page, totals);
    fputs(
        "<table><thead><tr><th>step</th><th>least</th><th>median</th><th>nine of ten within</th><th>greatest</th></tr>"
        "</thead><tbody>",
        page);
    for (int step = 0; step < DRILL_STEP_COUNT + 2; step++) {
        const struct drill_spread *spread = step < DRILL_STEP_COUNT    ? &totals->steps[step]
                                            : step == DRILL_STEP_COUNT ? &totals->first_token
                                                                       : &totals->new_request;
        if (spread->count == 0)
            continue;
        fputs("<tr><td>", page);
        text(page, step < DRILL_STEP_COUNT    ? drill_chart_step_label((enum drill_step)step)
                   : step == DRILL_STEP_COUNT ? "first token at a client"
                                              : "a new request complete");
        fprintf(page, "</td><td>%.2f</td><td>%.2f</td><td>%.2f</td><td>%.2f</td></tr>", ms(spread->least),
                ms(spread->median), ms(spread->most_of_ten), ms(spread->greatest));
    }
    fputs("</tbody></table></div>", page);
}

static void comparison(FILE *page, struct drill_campaign *campaign)
{
    if (campaign->side_count == 0)
        return;
    fputs("<h2>What would have happened without</h2><div class=\"card\" id=\"comparison\"><p>The same engine, the same "
          "load and the same fault in this very run.</p>",
          page);
    drill_chart_sides(page, campaign->sides, campaign->side_count);
    fputs(
        "<table><thead><tr><th>with</th><th>failovers</th><th>pause of a stream, median ms</th><th>nine of ten within "
        "ms</th><th>first token after ms</th><th>new request after ms</th><th>prompt tokens computed again</th>"
        "<th>answers equal</th></tr></thead><tbody>",
        page);
    for (size_t i = 0; i < campaign->side_count; i++) {
        struct drill_side *side = &campaign->sides[i];
        struct drill_spread gap = drill_spread_of(&side->gaps), first = drill_spread_of(&side->first_tokens),
                            request = drill_spread_of(&side->new_requests);
        fputs("<tr><td><b>", page);
        text(page, side->name);
        fputs("</b><br><small>", page);
        text(page, side->what);
        if (side->failure[0] != '\0') {
            fputs("<br><b>", page);
            text(page, side->failure);
            fputs("</b>", page);
        }
        fprintf(page, "</small></td><td>%u</td>", side->failovers);
        cell_ms(page, gap.count > 0, gap.median);
        cell_ms(page, gap.count > 0, gap.most_of_ten);
        cell_ms(page, first.count > 0, first.median);
        cell_ms(page, request.count > 0, request.median);
        fprintf(page, "<td>%llu of %llu</td><td>%zu of %zu</td></tr>", (unsigned long long)side->computed_tokens,
                (unsigned long long)side->prompt_tokens, side->equal, side->streams);
    }
    fputs("</tbody></table><p class=\"soft\">This engine loads in a moment. One that reads its weights from disk and "
          "captures graphs for minutes adds all of that to a cold restart.</p></div>",
          page);
}

/* ----------------------------------------------------------------------------------------------- one round ---- */

static void rank_table(FILE *page, const struct drill_failover *failover, uint32_t ranks)
{
    fputs("<h3>Blocks and processes, rank by rank</h3><div style=\"overflow-x:auto\"><table "
          "class=\"narrow\"><thead><tr><th>rank</th>"
          "<th class=\"words\">old process</th><th>ended after ms</th><th>fence after ms</th><th>finished (sealed)</th>"
          "<th>could be kept</th><th>kept (adopted)</th><th>in quarantine</th><th>came back "
          "(reclaimed)</th><th>damaged</th></tr></thead><tbody>",
          page);
    for (uint32_t i = 0; i < ranks && i < DRILL_MAX_RANKS; i++) {
        const struct drill_rank_outcome *rank = &failover->ranks[i];
        fprintf(page, "<tr><td>%u</td><td class=\"words\">pid %d, %s%s%s</td>", i, rank->pid,
                rank->killed ? "struck" : "fenced", rank->containment[0] != '\0' ? ", contained by " : "",
                rank->containment);
        cell_ms(page, rank->ended, rank->ended_ns);
        cell_ms(page, true, rank->step_ns[DRILL_STEP_FENCE]);
        fprintf(page, "<td>%u</td><td>%u</td><td>%u</td><td>%u</td><td>%u</td><td>%u</td></tr>", rank->sealed_here,
                rank->adoptable_here, failover->adopted, rank->quarantined, rank->reclaimed, rank->damaged);
    }
    fputs("</tbody></table></div>", page);
    for (uint32_t i = 0; i < failover->tag_count; i++) {
        fputs(i == 0 ? "<p class=\"soft\">Waking, by tag of the engine's memory: " : "; ", page);
        text(page, failover->tags[i].name);
        fprintf(page, " %.1f MiB in %.2f ms", (double)failover->tags[i].bytes / 1048576.0,
                ms((int64_t)failover->tags[i].wake_ns));
        if (i + 1 == failover->tag_count)
            fputs(".</p>", page);
    }
}

static void stream_table(FILE *page, const struct drill_result *result)
{
    fputs("<h3>Streams</h3><div style=\"overflow-x:auto\"><table "
          "class=\"narrow\"><thead><tr><th>stream</th><th>tokens</th>"
          "<th>equal</th><th>went on after the fault</th><th>pause ms</th><th>prompt tokens</th><th>from cache</th>"
          "<th>salvaged</th><th>computed</th><th class=\"words\">error</th></tr></thead><tbody>",
          page);
    for (size_t i = 0; i < result->stream_count && i < STREAMS_SHOWN; i++) {
        const struct drill_stream_result *stream = &result->streams[i];
        fputs("<tr><td>", page);
        text(page, stream->probe ? "new request" : stream->id);
        fprintf(page, "</td><td>%u</td><td>%s</td><td>%s</td>", stream->tokens, stream->equal ? "yes" : "<b>no</b>",
                stream->resumes > 0 ? "yes" : "–");
        cell_ms(page, stream->failover_gap_ns >= 0, stream->failover_gap_ns);
        fprintf(page, "<td>%llu</td><td>%llu</td><td>%llu</td><td>%llu</td><td class=\"words\">",
                (unsigned long long)stream->prompt_tokens, (unsigned long long)stream->cached_tokens,
                (unsigned long long)stream->salvaged_tokens, (unsigned long long)stream->computed_tokens);
        text(page, stream->error);
        fputs("</td></tr>", page);
    }
    fputs("</tbody></table></div>", page);
    if (result->stream_count > STREAMS_SHOWN)
        fprintf(page, "<p class=\"soft\">And %zu more.</p>", result->stream_count - STREAMS_SHOWN);
}

static void one_round(FILE *page, const struct drill_round *round, size_t number, bool open)
{
    const struct drill_result *result = round->result;
    fprintf(page, "<details id=\"round%zu\"%s><summary>%zu. ", number, open ? " open" : "", number);
    text(page, round->name);
    fputs(" ", page);
    pill(page, round->word);
    fputs("<small>", page);
    text(page, round->done);
    fputs("</small></summary><p class=\"soft\">Checked beside what every round checks: ", page);
    text(page, round->checked);
    fprintf(page, ". Seed %llu.</p>", (unsigned long long)round->seed);
    if (result->failure_count > 0) {
        fputs("<ul class=\"failures\">", page);
        for (size_t i = 0; i < result->failure_count && i < DRILL_MAX_FAILURES; i++) {
            fputs("<li>", page);
            text(page, result->failures[i]);
            fputs("</li>", page);
        }
        fputs("</ul>", page);
    }
    if (result->unnoticed)
        fprintf(page,
                "<p>The control plane was whole again %.0f ms after the fault. No stream was cut off meanwhile; the "
                "longest "
                "time between two tokens of a stream was %.1f ms. Then a rank of the serving engine was killed:</p>",
                ms(result->whole_ns), ms(result->unnoticed_gap_ns));
    for (uint32_t i = 0; i < result->failover_count; i++) {
        const struct drill_failover *failover = &result->failovers[i];
        fprintf(page, "<h3>Engine %d to %s%d, epoch %llu</h3>", failover->from_engine,
                failover->to_engine < 0 ? "nobody " : "", failover->to_engine, (unsigned long long)failover->epoch);
        if (failover->completed)
            drill_chart_timeline(page, failover, result->ranks);
        rank_table(page, failover, result->ranks);
    }
    stream_table(page, result);
    fputs("</details>", page);
}

static void details(FILE *page, const struct drill_campaign *campaign)
{
    bool any = false;
    for (size_t i = 0; i < campaign->count; i++) {
        if (campaign->rounds[i].result == NULL)
            continue;
        if (!any)
            fputs("<h2>Each failover</h2>", page);
        one_round(page, &campaign->rounds[i], i + 1, !any || campaign->rounds[i].word == DRILL_WORD_FAILED);
        any = true;
    }
}

/* --------------------------------------------------------------------------------------------------- bottom --- */

static void pair(FILE *page, const char *name, const char *value)
{
    if (value[0] == '\0')
        return;
    fputs("<dt>", page);
    text(page, name);
    fputs("</dt><dd>", page);
    text(page, value);
    fputs("</dd>", page);
}

static void bottom(FILE *page, const struct drill_campaign *campaign)
{
    const struct drill_environment *e = &campaign->environment;
    const struct drill_plan *plan = campaign->plan;
    char line[512];
    fputs("<h2>Where and with what</h2><div class=\"card\"><dl id=\"environment\">", page);
    pair(page, "program", e->program);
    pair(page, "command", e->command_line);
    uint32_t ranks = plan->ranks;
    for (size_t i = 0; i < campaign->count; i++)
        if (campaign->rounds[i].result != NULL)
            ranks = campaign->rounds[i].result->ranks;
    snprintf(line, sizeof line, "%u ranks, kv.verify %s, %s", ranks, drill_verify_name(plan->verify),
             plan->attach[0] != '\0' ? "a deployment that was running" : "deployments of the drill's own");
    pair(page, "deployment", line);
    size_t used = 0;
    for (size_t i = 0; plan->command[i] != NULL && used < sizeof line; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s", i > 0 ? " " : "", plan->command[i]);
    pair(page, "engine", plan->command[0] != NULL ? line : "of the deployment file, else minillm");
    snprintf(line, sizeof line, "%u streams at a time, %u tokens each, temperature %g, seed %llu", plan->streams,
             plan->max_tokens, plan->temperature, (unsigned long long)plan->seed);
    pair(page, "load", line);
    snprintf(line, sizeof line, "%.300s%s%u cores, %.1f GiB of memory", e->cpu, e->cpu[0] != '\0' ? ", " : "", e->cores,
             (double)e->memory_bytes / 1073741824.0);
    pair(page, "machine", line);
    pair(page, "GPU", e->gpu[0] != '\0' ? e->gpu : "none");
    pair(page, "system", e->system);
    pair(page, "distribution", e->distribution);
    pair(page, "MPI", e->mpi);
    pair(page, "compiler", e->compiler);
    fputs(
        "</dl></div><h2>How to read this</h2><div class=\"card\"><dl>"
        "<dt>engine</dt><dd>all processes of one model instance, one rank per GPU; it dies as a whole when one rank "
        "dies</dd>"
        "<dt>stream</dt><dd>one client that is reading an answer, token by token; after the fault it asks the next "
        "engine "
        "with what it has</dd>"
        "<dt>block</dt><dd>a piece of the cache of a prompt's computation. <i>Sealed</i>: finished and unchangeable. "
        "<i>Adopted</i>: taken over by the next engine, so that it need not be computed again. <i>Quarantine</i>: "
        "somebody was writing there when it died; not used until it is known to be quiet (<i>reclaimed</i>)</dd>"
        "<dt>fence</dt><dd>making sure that no process of the old engine can do anything any more, before the next one "
        "may write</dd>"
        "<dt>checked</dt><dd>",
        page);
    text(page, drill_catalogue_checks);
    fputs("</dd></dl></div></main></body></html>\n", page);
}

char *drill_report_html(struct drill_campaign *campaign)
{
    char *whole = NULL;
    size_t bytes = 0;
    FILE *page = open_memstream(&whole, &bytes);
    if (page == NULL)
        return NULL;
    struct drill_totals totals = drill_campaign_totals(campaign);
    head(page, campaign, &totals);
    tiles(page, campaign, &totals);
    rounds(page, campaign);
    comparison(page, campaign);
    times(page, campaign, &totals);
    details(page, campaign);
    bottom(page, campaign);
    bool bad = ferror(page) != 0;
    if (fclose(page) != 0 || bad) {
        free(whole);
        return NULL;
    }
    return whole;
}
