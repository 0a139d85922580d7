/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"

#include <stdlib.h>
#include <string.h>

#include "statistics.h"

static int64_t after(uint64_t at_ns, uint64_t origin_ns)
{
    return (int64_t)(at_ns - origin_ns);
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* ------------------------------------------------------------------------------------------- the fault -------- */

/* The moment of the fault. An engine that kills itself is alive in its last log line, so that is the latest moment
 * known to be before the fault: what is counted from there is never too short. */
static void find_fault(const struct drill_evidence *evidence, const struct drill_observation *seen,
                       struct drill_failover *failover)
{
    failover->fault_ns = seen->signal_ns;
    failover->fault_known_from = "signal";
    if (seen->signal_ns != 0)
        return;
    uint64_t from_log = 0, from_end = 0;
    for (uint32_t rank = 0; rank < evidence->ranks; rank++) {
        if (!seen->killed[rank])
            continue;
        const struct drill_log *log =
            evidence->logs != NULL ? drill_logs_find(evidence->logs, seen->from_incarnation, rank) : NULL;
        if (log != NULL && log->last_ns != 0 && (from_log == 0 || log->last_ns < from_log))
            from_log = log->last_ns;
        if (seen->ended_ns[rank] != 0 && (from_end == 0 || seen->ended_ns[rank] < from_end))
            from_end = seen->ended_ns[rank];
    }
    failover->fault_ns = from_log != 0 ? from_log : from_end;
    failover->fault_known_from = from_log != 0 ? "log" : "end";
}

static void measure_ranks(const struct drill_evidence *evidence, const struct drill_observation *seen,
                          struct drill_failover *failover)
{
    for (uint32_t rank = 0; rank < evidence->ranks; rank++) {
        struct drill_rank_outcome *outcome = &failover->ranks[rank];
        outcome->pid = seen->pids[rank];
        memcpy(outcome->containment, seen->containment[rank], sizeof outcome->containment);
        outcome->killed = seen->killed[rank];
        outcome->ended = seen->ended_ns[rank] != 0;
        outcome->ended_ns = outcome->ended ? after(seen->ended_ns[rank], failover->fault_ns) : 0;
        outcome->last_log_ns = INT64_MIN;
        outcome->promoted_ns = outcome->adopted_ns = outcome->woken_ns = outcome->serving_ns = INT64_MIN;
        for (int step = 0; step < DRILL_STEP_COUNT; step++)
            outcome->step_ns[step] = INT64_MIN;
        const struct drill_log *log =
            evidence->logs != NULL ? drill_logs_find(evidence->logs, seen->from_incarnation, rank) : NULL;
        if (log != NULL && log->last_ns != 0) {
            outcome->last_log_ns = after(log->last_ns, failover->fault_ns);
            memcpy(outcome->last_event, log->last_event, sizeof outcome->last_event);
        }
    }
}

static int64_t known_after(uint64_t at_ns, uint64_t origin_ns)
{
    return at_ns != 0 ? after(at_ns, origin_ns) : INT64_MIN;
}

/* What the successor's ranks say of themselves. */
static void measure_successor(const struct drill_evidence *evidence, const struct drill_observation *seen,
                              struct drill_failover *failover)
{
    for (uint32_t rank = 0; rank < evidence->ranks; rank++) {
        struct drill_rank_outcome *outcome = &failover->ranks[rank];
        const struct drill_log *log =
            evidence->logs != NULL ? drill_logs_find(evidence->logs, seen->to_incarnation, rank) : NULL;
        if (log == NULL)
            continue;
        outcome->promoted_ns = known_after(log->promoted_ns, failover->fault_ns);
        outcome->adopted_ns = known_after(log->adopted_ns, failover->fault_ns);
        outcome->woken_ns = known_after(log->woken_ns, failover->fault_ns);
        outcome->serving_ns = known_after(log->serving_ns, failover->fault_ns);
        for (uint32_t i = 0; i < log->tag_count; i++) {
            struct drill_log_tag *tag = &failover->tags[i];
            if (i >= failover->tag_count) {
                *tag = log->tags[i];
                failover->tag_count++;
            } else if (log->tags[i].wake_ns > tag->wake_ns) {
                tag->wake_ns = log->tags[i].wake_ns;
            }
        }
    }
}

/* ------------------------------------------------------------------------------------ what the ranks say ------ */

static void widen(struct drill_span *span, uint64_t at_ns, uint64_t origin_ns, bool *known)
{
    if (at_ns == 0) {
        *known = false;
        return;
    }
    int64_t value = after(at_ns, origin_ns);
    if (!span->known || value < span->least_ns)
        span->least_ns = value;
    if (!span->known || value > span->greatest_ns)
        span->greatest_ns = value;
    span->known = true;
}

static void measure_status(const struct drill_evidence *evidence, const struct drill_observation *seen,
                           struct drill_failover *failover, struct drill_result *result, uint32_t number)
{
    bool step_known[DRILL_STEP_COUNT];
    memset(step_known, true, sizeof step_known);
    for (uint32_t rank = 0; rank < evidence->ranks; rank++) {
        const struct drill_status_takeover *told =
            evidence->status != NULL ? drill_status_takeover(&evidence->status[rank], seen->to_incarnation) : NULL;
        if (told == NULL)
            return;
        uint64_t moments[DRILL_STEP_COUNT] = {
            [DRILL_STEP_DETECT] = told->detect_ns,   [DRILL_STEP_CONDEMN] = told->condemn_ns,
            [DRILL_STEP_FENCE] = told->fence_ns,     [DRILL_STEP_CLASSIFY] = told->classify_ns,
            [DRILL_STEP_PROMOTE] = told->promote_ns, [DRILL_STEP_ADOPT] = told->adopt_ns,
            [DRILL_STEP_SERVE] = told->serve_ns,
        };
        for (int step = 0; step < DRILL_STEP_COUNT; step++)
            widen(&failover->steps[step], moments[step], failover->fault_ns, &step_known[step]);
        if (told->from_incarnation != seen->from_incarnation &&
            (seen->lost_incarnation == 0 || told->from_incarnation != seen->lost_incarnation))
            drill_result_fail(result, "failover %u: rank %u took over from incarnation %llu, the drill killed %llu",
                              number, rank, (unsigned long long)told->from_incarnation,
                              (unsigned long long)seen->from_incarnation);
        struct drill_rank_outcome *outcome = &failover->ranks[rank];
        for (int step = 0; step < DRILL_STEP_COUNT; step++)
            outcome->step_ns[step] = known_after(moments[step], failover->fault_ns);
        outcome->sealed_here = told->sealed_here;
        outcome->adoptable_here = told->adoptable_here;
        outcome->quarantined = told->quarantined;
        outcome->damaged = told->damaged;
        outcome->reclaimed = told->reclaimed;
        bool back_known = true;
        if (told->reclaimed > 0)
            widen(&failover->back, told->reclaim_ns, failover->fault_ns, &back_known);
        if (rank == 0 || told->sealed_here < failover->sealed_least)
            failover->sealed_least = told->sealed_here;
        if (rank == 0 || told->sealed_here > failover->sealed_greatest)
            failover->sealed_greatest = told->sealed_here;
        if (rank == 0) {
            failover->epoch = told->epoch;
            memcpy(failover->cause, told->cause, sizeof failover->cause);
            failover->adopted = told->adopted;
            failover->idle = told->idle;
            failover->quarantined = told->quarantined;
            failover->reclaimed = told->reclaimed;
        }
    }
    failover->status_known = true;
    for (int step = 0; step < DRILL_STEP_COUNT; step++)
        if (!step_known[step])
            failover->steps[step].known = false;
}

/* Without the coordinators' word: what every rank of the successor says in its own log that it has adopted. */
static void measure_adopted(const struct drill_evidence *evidence, const struct drill_observation *seen,
                            struct drill_failover *failover)
{
    uint32_t adopted = UINT32_MAX;
    for (uint32_t rank = 0; rank < evidence->ranks; rank++) {
        const struct drill_log *log =
            evidence->logs != NULL ? drill_logs_find(evidence->logs, seen->to_incarnation, rank) : NULL;
        if (log == NULL || log->adopted < 0)
            return;
        if ((uint64_t)log->adopted < adopted)
            adopted = (uint32_t)log->adopted;
    }
    failover->adopted = failover->sealed_least = failover->sealed_greatest = adopted;
    failover->status_known = true;
}

/* --------------------------------------------------------------------------------------------- clients -------- */

static void measure_gaps(const struct drill_evidence *evidence, const struct drill_observation *seen,
                         struct drill_failover *failover)
{
    int64_t gaps[DRILL_MAX_STREAM_RESULTS];
    size_t count = 0;
    failover->first_token_ns = -1;
    for (size_t i = 0; i < evidence->streams->count; i++) {
        const struct drill_stream *stream = &evidence->streams->items[i];
        for (uint32_t t = 0; t < stream->token_count; t++) {
            const struct drill_token *token = &stream->tokens[t];
            if (token->incarnation != seen->to_incarnation)
                continue;
            int64_t at = after(token->at_ns, failover->fault_ns);
            if (failover->first_token_ns < 0 || at < failover->first_token_ns)
                failover->first_token_ns = at;
            if (t > 0 && count < sizeof gaps / sizeof gaps[0])
                gaps[count++] = after(token->at_ns, stream->tokens[t - 1].at_ns);
            break;
        }
    }
    failover->resumed_streams = (uint32_t)count;
    if (count == 0)
        return;
    qsort(gaps, count, sizeof gaps[0], by_value);
    failover->gap_least_ns = gaps[0];
    failover->gap_median_ns = gaps[count / 2];
    failover->gap_greatest_ns = gaps[count - 1];
}

static void measure_stream(const struct drill_stream *stream, const struct drill_stream *control,
                           struct drill_stream_result *ret_result)
{
    memset(ret_result, 0, sizeof *ret_result);
    memcpy(ret_result->id, stream->id, sizeof ret_result->id);
    memcpy(ret_result->error, stream->error, sizeof ret_result->error);
    ret_result->probe = stream->probe;
    ret_result->done = stream->state == DRILL_STREAM_DONE;
    ret_result->tokens = stream->token_count;
    ret_result->control_tokens = control->token_count;
    ret_result->resumes = stream->resumes;
    ret_result->longest_gap_ns = ret_result->failover_gap_ns = -1;
    for (uint32_t t = 1; t < stream->token_count; t++) {
        int64_t gap = after(stream->tokens[t].at_ns, stream->tokens[t - 1].at_ns);
        if (gap > ret_result->longest_gap_ns)
            ret_result->longest_gap_ns = gap;
        if (stream->tokens[t].incarnation != stream->tokens[t - 1].incarnation && gap > ret_result->failover_gap_ns)
            ret_result->failover_gap_ns = gap;
    }
    uint32_t at = 0;
    while (at < stream->token_count && at < control->token_count &&
           stream->tokens[at].token == control->tokens[at].token)
        at++;
    ret_result->equal = at == stream->token_count && at == control->token_count;
    ret_result->first_difference = at;
    ret_result->token = at < stream->token_count ? stream->tokens[at].token : 0;
    ret_result->expected_token = at < control->token_count ? control->tokens[at].token : 0;
    ret_result->prompt_tokens = stream->prompt_tokens;
    ret_result->cached_tokens = stream->cached_tokens;
    ret_result->salvaged_tokens = stream->salvaged_tokens;
    ret_result->computed_tokens = stream->computed_tokens;
    ret_result->resent_tokens = stream->resumes > 0 ? stream->resent_tokens : 0;
    ret_result->sent_tokens = strlen(stream->prompt) + stream->resent_tokens;
}

/* ------------------------------------------------------------------------------------------------- all -------- */

void drill_measure(const struct drill_evidence *evidence, struct drill_result *result)
{
    result->ranks = evidence->ranks;
    struct drill_blocks before = {0};
    if (evidence->blocks != NULL)
        before = *evidence->blocks;
    for (uint32_t i = 0; i < evidence->repeat; i++) {
        const struct drill_observation *seen = &evidence->observations[i];
        struct drill_failover *failover = &result->failovers[i];
        memset(failover, 0, sizeof *failover);
        failover->first_token_ns = failover->probe_done_ns = -1;
        failover->silence_ns = INT64_MIN;
        failover->to_engine = -1;
        if (!seen->injected)
            break;
        result->failover_count = i + 1;
        failover->injected = true;
        failover->completed = seen->completed;
        failover->from_engine = seen->from_engine;
        failover->from_incarnation = seen->from_incarnation;
        failover->tokens_before = seen->tokens_before;
        failover->spoiled = seen->spoiled;
        find_fault(evidence, seen, failover);
        measure_ranks(evidence, seen, failover);
        struct drill_blocks sealed = {0};
        if (evidence->logs != NULL && drill_logs_sealed(evidence->logs, seen->from_incarnation, evidence->ranks,
                                                        &before, &sealed, NULL) == GMS_OK) {
            failover->logs_known = true;
            failover->sealed_everywhere = (uint32_t)sealed.count;
        }
        drill_blocks_free(&before);
        before = sealed;
        if (!seen->completed)
            continue;
        failover->to_engine = seen->to_engine;
        failover->to_incarnation = seen->to_incarnation;
        measure_status(evidence, seen, failover, result, i + 1);
        if (!failover->status_known && seen->status_may_forget)
            measure_adopted(evidence, seen, failover);
        measure_successor(evidence, seen, failover);
        measure_gaps(evidence, seen, failover);
        if (seen->probe != NULL && seen->probe->state == DRILL_STREAM_DONE)
            failover->probe_done_ns = after(seen->probe->done_ns, failover->fault_ns);
        uint64_t first, last, unused;
        if (evidence->logs != NULL && drill_logs_activity(evidence->logs, seen->from_incarnation, &unused, &last) &&
            drill_logs_activity(evidence->logs, seen->to_incarnation, &first, &unused))
            failover->silence_ns = (int64_t)(first - last);
        result->poisoned_pages += seen->spoiled == 0 ? seen->damage.blocks : 0;
        result->poisoned_chains += seen->spoiled == 0 ? seen->damage.chains : 0;
    }
    if (evidence->blocks != NULL)
        *evidence->blocks = before;
    else
        drill_blocks_free(&before);

    struct drill_numbers again = {0};
    for (size_t i = 0; i < evidence->streams->count && result->stream_count < DRILL_MAX_STREAM_RESULTS; i++) {
        const struct drill_stream *seen = &evidence->streams->items[i];
        struct drill_stream_result *stream = &result->streams[result->stream_count];
        if (seen->state == DRILL_STREAM_HELD && seen->probe)
            continue; /* a probe of a failover that was not made; that is a failure of its own */
        measure_stream(seen, &evidence->control->items[seen->control], stream);
        result->stream_count++;
        if (!stream->done)
            continue;
        result->prompt_tokens += stream->prompt_tokens;
        result->cached_tokens += stream->cached_tokens;
        result->salvaged_tokens += stream->salvaged_tokens;
        result->computed_tokens += stream->computed_tokens;
        if (stream->resumes > 0) {
            result->resumed_done++;
            result->resumed_cached_tokens += stream->cached_tokens;
        }
        if (stream->resent_tokens > 0)
            drill_numbers_add(&again, (int64_t)stream->computed_tokens);
    }
    const struct drill_spread spread = drill_spread_of(&again);
    result->again_streams = spread.count;
    result->again_least = (uint64_t)spread.least;
    result->again_median = (uint64_t)spread.median;
    result->again_greatest = (uint64_t)spread.greatest;
    drill_numbers_free(&again);
}
