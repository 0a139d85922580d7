/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "gms/version.h"
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

enum block_row { ROW_SEALED, ROW_SEALED_STATUS, ROW_ADOPTED, ROW_QUARANTINED, ROW_SPOILED, ROW_IDLE };

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
    case ROW_SPOILED:
        put(text, "%u", failover->spoiled);
        break;
    case ROW_IDLE:
        put(text, "%u", failover->idle);
        break;
    }
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
    fprintf(stream, "  %-*s%llu = %llu cached + %llu computed (last request of each stream)\n", LABEL_WIDTH,
            "prompt tokens", (unsigned long long)result->prompt_tokens, (unsigned long long)result->cached_tokens,
            (unsigned long long)result->computed_tokens);
    if (result->poisoned_pages > 0) {
        size_t different = 0;
        for (size_t i = 0; i < result->stream_count; i++)
            different += result->streams[i].done && !result->streams[i].equal;
        fprintf(stream, "  %-*s%u; %zu of %u poisoned streams differ from the control run\n", LABEL_WIDTH,
                "poisoned pages", result->poisoned_pages, different, result->poisoned_chains);
    }
    if (!result->plan->verbose)
        return;
    fprintf(stream, "\n  %-8s%8s%9s%14s%9s%9s%10s\n", "stream", "tokens", "resumes", "longest gap", "prompt", "cached",
            "computed");
    for (size_t i = 0; i < result->stream_count; i++) {
        const struct drill_stream_result *one = &result->streams[i];
        fprintf(stream, "  %-8s%8u%9u%11.1f ms%9llu%9llu%10llu%s\n", one->id, one->tokens, one->resumes,
                one->longest_gap_ns >= 0 ? ms(one->longest_gap_ns) : 0.0, (unsigned long long)one->prompt_tokens,
                (unsigned long long)one->cached_tokens, (unsigned long long)one->computed_tokens,
                one->equal ? "" : "  DIFFERS");
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
        row(result, stream, "free", cell_blocks, ROW_IDLE);
        fprintf(stream, "\n  the dead engine, ms after the fault\n");
        for (uint32_t rank = 0; rank < result->ranks && rank < DRILL_MAX_RANKS; rank++) {
            char label[32];
            snprintf(label, sizeof label, "rank %u", rank);
            row(result, stream, label, cell_rank, (int)rank);
        }
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

/* -------------------------------------------------------------------------------------------------- JSON ------ */

static json_t *real_ms_or_null(bool known, int64_t ns)
{
    return known ? json_real(ms(ns)) : json_null();
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
    return json_pack("{s:i, s:i, s:b, s:o, s:o, s:s, s:i, s:i, s:i, s:i}", "rank", (int)index, "pid", (int)rank->pid,
                     "killed", rank->killed, "ended_ms", real_ms_or_null(rank->ended, rank->ended_ns), "last_log_ms",
                     real_ms_or_null(rank->last_log_ns != INT64_MIN, rank->last_log_ns), "last_event", rank->last_event,
                     "sealed", (int)rank->sealed_here, "adoptable", (int)rank->adoptable_here, "quarantined",
                     (int)rank->quarantined, "damaged", (int)rank->damaged);
}

static json_t *json_failover(const struct drill_result *result, const struct drill_failover *failover)
{
    json_t *steps = json_object(), *ranks = json_array();
    for (int step = 0; step < DRILL_STEP_COUNT; step++) {
        const struct drill_span *span = &failover->steps[step];
        json_object_set_new(steps, step_names[step],
                            span->known ? json_pack("[f, f]", ms(span->least_ns), ms(span->greatest_ns)) : json_null());
    }
    for (uint32_t rank = 0; rank < result->ranks && rank < DRILL_MAX_RANKS; rank++)
        json_array_append_new(ranks, json_rank(failover, rank));
    bool resumed = failover->resumed_streams > 0;
    json_t *gap = json_pack("{s:o, s:o, s:o}", "least", real_ms_or_null(resumed, failover->gap_least_ns), "median",
                            real_ms_or_null(resumed, failover->gap_median_ns), "greatest",
                            real_ms_or_null(resumed, failover->gap_greatest_ns));
    json_t *blocks =
        json_pack("{s:o, s:o, s:o, s:i, s:i, s:i, s:i}", "sealed_on_all_ranks",
                  failover->logs_known ? json_integer(failover->sealed_everywhere) : json_null(), "sealed_least",
                  failover->status_known ? json_integer(failover->sealed_least) : json_null(), "sealed_greatest",
                  failover->status_known ? json_integer(failover->sealed_greatest) : json_null(), "damaged",
                  (int)failover->spoiled, "adopted", (int)failover->adopted, "quarantined", (int)failover->quarantined,
                  "idle", (int)failover->idle);
    return json_pack("{s:b, s:b, s:i, s:i, s:I, s:I, s:I, s:s, s:I, s:s, s:I, s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o}",
                     "injected", failover->injected, "completed", failover->completed, "from_engine",
                     (int)failover->from_engine, "to_engine", (int)failover->to_engine, "from_incarnation",
                     (json_int_t)failover->from_incarnation, "to_incarnation", (json_int_t)failover->to_incarnation,
                     "epoch", (json_int_t)failover->epoch, "cause", failover->cause, "fault_monotonic_ns",
                     (json_int_t)failover->fault_ns, "fault_known_from",
                     failover->fault_known_from != NULL ? failover->fault_known_from : "", "tokens_before",
                     (json_int_t)failover->tokens_before, "steps_ms", steps, "first_token_ms",
                     real_ms_or_null(failover->first_token_ns >= 0, failover->first_token_ns), "new_request_ms",
                     real_ms_or_null(failover->probe_done_ns >= 0, failover->probe_done_ns), "resumed_streams",
                     (int)failover->resumed_streams, "gap_ms", gap, "blocks", blocks, "silence_ms",
                     real_ms_or_null(failover->silence_ns != INT64_MIN, failover->silence_ns), "ranks", ranks);
}

static json_t *json_stream(const struct drill_stream_result *stream)
{
    return json_pack("{s:s, s:b, s:b, s:b, s:o, s:i, s:i, s:i, s:o, s:I, s:I, s:I, s:o}", "id", stream->id, "probe",
                     stream->probe, "done", stream->done, "equal", stream->equal, "first_difference",
                     stream->equal ? json_null() : json_integer(stream->first_difference), "tokens",
                     (int)stream->tokens, "control_tokens", (int)stream->control_tokens, "resumes",
                     (int)stream->resumes, "longest_gap_ms",
                     real_ms_or_null(stream->longest_gap_ns >= 0, stream->longest_gap_ns), "prompt_tokens",
                     (json_int_t)stream->prompt_tokens, "cached_tokens", (json_int_t)stream->cached_tokens,
                     "computed_tokens", (json_int_t)stream->computed_tokens, "error", json_text(stream->error));
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

char *drill_report_json(const struct drill_result *result)
{
    json_t *failovers = json_array(), *streams = json_array(), *failures = json_array();
    for (uint32_t i = 0; i < result->failover_count; i++)
        json_array_append_new(failovers, json_failover(result, &result->failovers[i]));
    for (size_t i = 0; i < result->stream_count; i++)
        json_array_append_new(streams, json_stream(&result->streams[i]));
    for (size_t i = 0; i < result->failure_count && i < DRILL_MAX_FAILURES; i++)
        json_array_append_new(failures, json_text(result->failures[i]));
    int code = drill_verdict_exit_code(result);
    json_t *root =
        json_pack("{s:i, s:s, s:s, s:i, s:f, s:f, s:o, s:o, s:o, s:{s:I, s:I, s:I}, s:{s:i, s:i}, s:o}", "version",
                  DRILL_REPORT_VERSION, "program", "gms-failover-test " GMS_VERSION, "verdict",
                  code == DRILL_EXIT_PASS ? "passed" : (code == DRILL_EXIT_FAIL ? "failed" : "could-not-run"),
                  "exit_code", code, "seconds", (double)result->wall_ns / 1e9, "control_seconds",
                  (double)result->control_ns / 1e9, "plan", json_plan(result->plan, result->ranks), "failovers",
                  failovers, "streams", streams, "prompt_tokens", "sum", (json_int_t)result->prompt_tokens, "cached",
                  (json_int_t)result->cached_tokens, "computed", (json_int_t)result->computed_tokens, "poisoned",
                  "pages", (int)result->poisoned_pages, "chains", (int)result->poisoned_chains, "failures", failures);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    return text;
}

gms_status drill_report_write_json(const struct drill_result *result, const char *path, struct gms_error *ret_error)
{
    char *text = drill_report_json(result);
    if (text == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "%s: no memory for the report", path);
    gms_status status = gms_file_replace(path, text, strlen(text), ret_error);
    free(text);
    return status;
}
