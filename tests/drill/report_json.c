/* SPDX-License-Identifier: Apache-2.0 */
#include "report_json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "verdict.h"

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

static json_t *ms_or_null(bool known, int64_t ns)
{
    return known ? json_real(ms(ns)) : json_null();
}

static json_t *known_ms(int64_t ns)
{
    return ms_or_null(ns != INT64_MIN, ns);
}

/* Texts that came from elsewhere may be cut in the middle of a character. */
static json_t *json_text(const char *text)
{
    json_t *value = json_string(text);
    char plain[DRILL_FAILURE_BYTES];
    size_t length = 0;
    for (; value == NULL && text[length] != '\0' && length < sizeof plain - 1; length++)
        plain[length] = (signed char)text[length] < 0 ? '?' : text[length];
    return value != NULL ? value : json_stringn(plain, length);
}

static json_t *json_rank(const struct drill_failover *failover, uint32_t index)
{
    const struct drill_rank_outcome *rank = &failover->ranks[index];
    json_t *steps = json_object();
    for (int step = 0; step < DRILL_STEP_COUNT; step++)
        json_object_set_new(steps, drill_step_name((enum drill_step)step), known_ms(rank->step_ns[step]));
    json_t *successor =
        json_pack("{s:o, s:o, s:o, s:o}", "promoted", known_ms(rank->promoted_ns), "adopted",
                  known_ms(rank->adopted_ns), "woken", known_ms(rank->woken_ns), "serving", known_ms(rank->serving_ns));
    return json_pack("{s:i, s:i, s:s, s:b, s:o, s:o, s:s, s:i, s:i, s:i, s:i, s:i, s:o, s:o}", "rank", (int)index,
                     "pid", (int)rank->pid, "containment", rank->containment, "killed", rank->killed, "ended_ms",
                     ms_or_null(rank->ended, rank->ended_ns), "last_log_ms",
                     ms_or_null(rank->last_log_ns != INT64_MIN, rank->last_log_ns), "last_event", rank->last_event,
                     "sealed", (int)rank->sealed_here, "adoptable", (int)rank->adoptable_here, "quarantined",
                     (int)rank->quarantined, "damaged", (int)rank->damaged, "reclaimed", (int)rank->reclaimed,
                     "steps_ms", steps, "successor_ms", successor);
}

static json_t *json_failover(const struct drill_result *result, const struct drill_failover *failover)
{
    json_t *steps = json_object(), *ranks = json_array();
    for (int step = 0; step < DRILL_STEP_COUNT; step++) {
        const struct drill_span *span = &failover->steps[step];
        json_object_set_new(steps, drill_step_name((enum drill_step)step),
                            span->known ? json_pack("[f, f]", ms(span->least_ns), ms(span->greatest_ns)) : json_null());
    }
    for (uint32_t rank = 0; rank < result->ranks && rank < DRILL_MAX_RANKS; rank++)
        json_array_append_new(ranks, json_rank(failover, rank));
    bool resumed = failover->resumed_streams > 0;
    json_t *gap = json_pack("{s:o, s:o, s:o}", "least", ms_or_null(resumed, failover->gap_least_ns), "median",
                            ms_or_null(resumed, failover->gap_median_ns), "greatest",
                            ms_or_null(resumed, failover->gap_greatest_ns));
    json_t *blocks =
        json_pack("{s:o, s:o, s:o, s:i, s:i, s:i, s:i, s:i, s:o}", "sealed_on_all_ranks",
                  failover->logs_known ? json_integer(failover->sealed_everywhere) : json_null(), "sealed_least",
                  failover->status_known ? json_integer(failover->sealed_least) : json_null(), "sealed_greatest",
                  failover->status_known ? json_integer(failover->sealed_greatest) : json_null(), "damaged",
                  (int)failover->spoiled, "adopted", (int)failover->adopted, "quarantined", (int)failover->quarantined,
                  "idle", (int)failover->idle, "reclaimed", (int)failover->reclaimed, "reclaimed_ms",
                  ms_or_null(failover->back.known, failover->back.greatest_ns));
    json_t *tags = json_array();
    for (uint32_t i = 0; i < failover->tag_count; i++)
        json_array_append_new(tags, json_pack("{s:o, s:I, s:f}", "name", json_text(failover->tags[i].name), "bytes",
                                              (json_int_t)failover->tags[i].bytes, "wake_ms",
                                              (double)failover->tags[i].wake_ns / 1e6));
    return json_pack(
        "{s:b, s:b, s:i, s:i, s:I, s:I, s:I, s:s, s:I, s:s, s:I, s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o, s:o}",
        "injected", failover->injected, "completed", failover->completed, "from_engine", (int)failover->from_engine,
        "to_engine", (int)failover->to_engine, "from_incarnation", (json_int_t)failover->from_incarnation,
        "to_incarnation", (json_int_t)failover->to_incarnation, "epoch", (json_int_t)failover->epoch, "cause",
        failover->cause, "fault_monotonic_ns", (json_int_t)failover->fault_ns, "fault_known_from",
        failover->fault_known_from != NULL ? failover->fault_known_from : "", "tokens_before",
        (json_int_t)failover->tokens_before, "steps_ms", steps, "first_token_ms",
        ms_or_null(failover->first_token_ns >= 0, failover->first_token_ns), "new_request_ms",
        ms_or_null(failover->probe_done_ns >= 0, failover->probe_done_ns), "resumed_streams",
        (int)failover->resumed_streams, "gap_ms", gap, "blocks", blocks, "silence_ms",
        ms_or_null(failover->silence_ns != INT64_MIN, failover->silence_ns), "ranks", ranks, "tags", tags);
}

static json_t *json_stream(const struct drill_stream_result *stream)
{
    return json_pack("{s:s, s:b, s:b, s:b, s:o, s:i, s:i, s:i, s:o, s:o, s:I, s:I, s:I, s:I, s:o}", "id", stream->id,
                     "probe", stream->probe, "done", stream->done, "equal", stream->equal, "first_difference",
                     stream->equal ? json_null() : json_integer(stream->first_difference), "tokens",
                     (int)stream->tokens, "control_tokens", (int)stream->control_tokens, "resumes",
                     (int)stream->resumes, "longest_gap_ms",
                     ms_or_null(stream->longest_gap_ns >= 0, stream->longest_gap_ns), "failover_gap_ms",
                     ms_or_null(stream->failover_gap_ns >= 0, stream->failover_gap_ns), "prompt_tokens",
                     (json_int_t)stream->prompt_tokens, "cached_tokens", (json_int_t)stream->cached_tokens,
                     "salvaged_tokens", (json_int_t)stream->salvaged_tokens, "computed_tokens",
                     (json_int_t)stream->computed_tokens, "error", json_text(stream->error));
}

static json_t *json_plan(const struct drill_plan *plan, uint32_t ranks)
{
    json_t *rank = plan->rank == DRILL_RANK_ALL ? json_string("all") : json_integer(plan->rank);
    return json_pack("{s:i, s:i, s:i, s:i, s:f, s:I, s:s, s:s, s:o, s:s, s:i, s:s, s:b}", "ranks", (int)ranks,
                     "engines", (int)plan->engines, "streams", (int)plan->streams, "max_tokens", (int)plan->max_tokens,
                     "temperature", plan->temperature, "seed", (json_int_t)plan->seed, "kv_verify",
                     drill_verify_name(plan->verify), "fault", "sigkill", "rank", rank, "when",
                     drill_when_name(plan->when), "repeat", (int)plan->repeat, "sabotage",
                     drill_sabotage_name(plan->sabotage), "attached", plan->attach[0] != '\0');
}

static json_t *json_spread(const struct drill_spread *spread)
{
    if (spread->count == 0)
        return json_null();
    return json_pack("{s:I, s:f, s:f, s:f, s:f}", "count", (json_int_t)spread->count, "least", ms(spread->least),
                     "median", ms(spread->median), "nine_of_ten", ms(spread->most_of_ten), "greatest",
                     ms(spread->greatest));
}

static json_t *json_totals(struct drill_campaign *campaign)
{
    struct drill_totals totals = drill_campaign_totals(campaign);
    json_t *steps = json_object();
    for (int step = 0; step < DRILL_STEP_COUNT; step++)
        json_object_set_new(steps, drill_step_name((enum drill_step)step), json_spread(&totals.steps[step]));
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "failovers",
                     (json_int_t)totals.failovers, "streams", (json_int_t)totals.streams, "equal",
                     (json_int_t)totals.equal, "tokens", (json_int_t)totals.tokens, "sealed", (json_int_t)totals.sealed,
                     "adopted", (json_int_t)totals.adopted, "quarantined", (json_int_t)totals.quarantined, "steps_ms",
                     steps, "first_token_ms", json_spread(&totals.first_token), "new_request_ms",
                     json_spread(&totals.new_request), "gap_ms", json_spread(&totals.gap));
}

/* The evidence of a round; nothing when there were too many good ones to keep it. */
static void add_result(json_t *round, const struct drill_result *result)
{
    if (result == NULL)
        return;
    json_t *failovers = json_array(), *streams = json_array(), *failures = json_array();
    for (uint32_t i = 0; i < result->failover_count; i++)
        json_array_append_new(failovers, json_failover(result, &result->failovers[i]));
    for (size_t i = 0; i < result->stream_count; i++)
        json_array_append_new(streams, json_stream(&result->streams[i]));
    for (size_t i = 0; i < result->failure_count && i < DRILL_MAX_FAILURES; i++)
        json_array_append_new(failures, json_text(result->failures[i]));
    json_object_set_new(round, "failovers", failovers);
    json_object_set_new(round, "streams", streams);
    json_object_set_new(round, "failures", failures);
    json_object_set_new(round, "prompt_tokens",
                        json_pack("{s:I, s:I, s:I, s:I}", "sum", (json_int_t)result->prompt_tokens, "cached",
                                  (json_int_t)result->cached_tokens, "salvaged", (json_int_t)result->salvaged_tokens,
                                  "computed", (json_int_t)result->computed_tokens));
    json_object_set_new(round, "computed_again",
                        json_pack("{s:I, s:I, s:I, s:I}", "streams", (json_int_t)result->again_streams, "least",
                                  (json_int_t)result->again_least, "median", (json_int_t)result->again_median,
                                  "greatest", (json_int_t)result->again_greatest));
    json_object_set_new(
        round, "poisoned",
        json_pack("{s:i, s:i}", "pages", (int)result->poisoned_pages, "chains", (int)result->poisoned_chains));
}

static json_t *json_round(const struct drill_round *round)
{
    const struct drill_summary *sum = &round->summary;
    json_t *steps = json_object();
    for (int step = 0; step < DRILL_STEP_COUNT; step++)
        json_object_set_new(steps, drill_step_name((enum drill_step)step),
                            ms_or_null(sum->completed && sum->steps[step] != INT64_MIN, sum->steps[step]));
    bool done = sum->completed;
    json_t *summary = json_pack(
        "{s:b, s:o, s:o, s:o, s:o, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:o, s:o}", "completed", sum->completed,
        "steps_ms", steps, "first_token_ms", done ? known_ms(sum->first_token_ns) : json_null(), "new_request_ms",
        done ? known_ms(sum->new_request_ns) : json_null(), "gap_median_ms",
        done ? known_ms(sum->gap_median_ns) : json_null(), "gap_greatest_ms",
        done ? known_ms(sum->gap_greatest_ns) : json_null(), "resumed", (int)sum->resumed, "sealed", (int)sum->sealed,
        "adopted", (int)sum->adopted, "quarantined", (int)sum->quarantined, "streams", (int)sum->streams, "equal",
        (int)sum->equal, "tokens", (json_int_t)sum->tokens, "whole_ms", ms_or_null(sum->unnoticed, sum->whole_ns),
        "unnoticed_gap_ms", ms_or_null(sum->unnoticed, sum->unnoticed_gap_ns));
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:I, s:f, s:s, s:o}", "fault", round->name, "done", round->done,
                  "checked", round->checked, "outcome", round->outcome, "verdict", drill_word_name(round->word),
                  "reason", json_text(round->reason), "seed", (json_int_t)round->seed, "seconds", round->seconds,
                  "note", sum->note, "summary", summary);
    if (object != NULL)
        add_result(object, round->result);
    return object;
}

static json_t *json_side(struct drill_side *side)
{
    struct drill_spread gap = drill_spread_of(&side->gaps), first = drill_spread_of(&side->first_tokens),
                        request = drill_spread_of(&side->new_requests);
    struct drill_spread again = drill_spread_of(&side->again);
    json_t *each = again.count == 0 ? json_null()
                                    : json_pack("{s:I, s:I, s:I}", "least", (json_int_t)again.least, "median",
                                                (json_int_t)again.median, "greatest", (json_int_t)again.greatest);
    return json_pack("{s:s, s:s, s:i, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:o}", "name", side->name,
                     "what", side->what, "failovers", (int)side->failovers, "gap_ms", json_spread(&gap),
                     "first_token_ms", json_spread(&first), "new_request_ms", json_spread(&request), "prompt_tokens",
                     (json_int_t)side->prompt_tokens, "cached_tokens", (json_int_t)side->cached_tokens,
                     "salvaged_tokens", (json_int_t)side->salvaged_tokens, "computed_tokens",
                     (json_int_t)side->computed_tokens, "computed_again", each, "streams", (json_int_t)side->streams,
                     "equal", (json_int_t)side->equal, "failure", json_text(side->failure));
}

static json_t *json_environment(const struct drill_environment *e)
{
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:i, s:I}", "program", e->program, "compiler",
                     json_text(e->compiler), "mpi", json_text(e->mpi), "system", json_text(e->system), "distribution",
                     json_text(e->distribution), "cpu", json_text(e->cpu), "gpu", json_text(e->gpu), "started",
                     e->started, "command_line", json_text(e->command_line), "cores", (int)e->cores, "memory_bytes",
                     (json_int_t)e->memory_bytes);
}

char *drill_report_json(struct drill_campaign *campaign)
{
    static const char *const verdicts[] = {"passed", "failed", "could-not-run"};
    json_t *rounds = json_array(), *sides = json_array();
    uint32_t ranks = campaign->plan->ranks;
    for (size_t i = 0; i < campaign->count; i++) {
        json_array_append_new(rounds, json_round(&campaign->rounds[i]));
        if (campaign->rounds[i].result != NULL)
            ranks = campaign->rounds[i].result->ranks;
    }
    for (size_t i = 0; i < campaign->side_count; i++)
        json_array_append_new(sides, json_side(&campaign->sides[i]));
    int code = drill_campaign_exit_code(campaign);
    json_t *root = json_pack("{s:i, s:s, s:s, s:i, s:o, s:f, s:f, s:b, s:s, s:o, s:o, s:o, s:o, s:o}", "version",
                             DRILL_REPORT_VERSION, "program", campaign->environment.program, "verdict", verdicts[code],
                             "exit_code", code, "reason", json_text(campaign->reason), "seconds",
                             (double)campaign->wall_ns / 1e9, "control_seconds", (double)campaign->control_ns / 1e9,
                             "exact", !campaign->inexact, "divergence", campaign->divergence, "environment",
                             json_environment(&campaign->environment), "plan", json_plan(campaign->plan, ranks),
                             "rounds", rounds, "totals", json_totals(campaign), "comparison", sides);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    return text;
}

gms_status drill_report_write(const char *path, char *text, struct gms_error *ret_error)
{
    if (text == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "%s: no memory for the report", path);
    gms_status status = gms_file_replace(path, text, strlen(text), ret_error);
    free(text);
    return status;
}
