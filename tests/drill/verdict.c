/* SPDX-License-Identifier: Apache-2.0 */
#include "verdict.h"

#include <stdarg.h>
#include <stdio.h>

#include "options.h"

void drill_result_fail(struct drill_result *result, const char *format, ...)
{
    if (result->failure_count < DRILL_MAX_FAILURES) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(result->failures[result->failure_count], DRILL_FAILURE_BYTES, format, arguments);
        va_end(arguments);
    }
    result->failure_count++;
}

static void judge_streams(struct drill_result *result)
{
    for (size_t i = 0; i < result->stream_count; i++) {
        const struct drill_stream_result *stream = &result->streams[i];
        if (stream->error[0] != '\0')
            drill_result_fail(result, "stream %s: request failed: %s", stream->id, stream->error);
        else if (!stream->done)
            drill_result_fail(result, "stream %s: not complete, %u of %u tokens came", stream->id, stream->tokens,
                              stream->control_tokens);
        if (!stream->done && stream->error[0] == '\0')
            continue;
        if (result->inexact)
            ; /* the engine itself gives other tokens each time: reported, not judged */
        else if (!stream->equal && stream->first_difference < stream->tokens &&
                 stream->first_difference < stream->control_tokens)
            drill_result_fail(result, "stream %s differs from the control run at token %u: %u, undisturbed it is %u",
                              stream->id, stream->first_difference, stream->token, stream->expected_token);
        else if (!stream->equal && stream->done)
            drill_result_fail(result, "stream %s has %u tokens, the control run %u", stream->id, stream->tokens,
                              stream->control_tokens);
        if (stream->done &&
            stream->prompt_tokens != stream->cached_tokens + stream->salvaged_tokens + stream->computed_tokens)
            drill_result_fail(
                result, "stream %s: %llu prompt tokens are not %llu cached + %llu salvaged + %llu computed", stream->id,
                (unsigned long long)stream->prompt_tokens, (unsigned long long)stream->cached_tokens,
                (unsigned long long)stream->salvaged_tokens, (unsigned long long)stream->computed_tokens);
        if (stream->done && stream->prompt_tokens != stream->sent_tokens)
            drill_result_fail(result, "stream %s: the engine counted %llu prompt tokens, the client sent %llu",
                              stream->id, (unsigned long long)stream->prompt_tokens,
                              (unsigned long long)stream->sent_tokens);
    }
}

static void judge_failover(struct drill_result *result, uint32_t index)
{
    const struct drill_failover *failover = &result->failovers[index];
    uint32_t number = index + 1;
    if (!failover->injected || !failover->completed)
        drill_result_fail(result, "failover %u: %s", number,
                          failover->injected ? "not completed" : "the fault was not made");
    if (!failover->completed)
        return;
    if (failover->resumed_streams == 0)
        drill_result_fail(result, "failover %u interrupted no stream, so it shows nothing; give more --max-tokens",
                          number);
    if (!failover->logs_known)
        drill_result_fail(result, "failover %u: what was sealed at the kill cannot be read from the engine's logs",
                          number);
    if (!failover->status_known) {
        drill_result_fail(result, "failover %u: some rank's status does not tell of it", number);
        return;
    }
    bool all = result->adoption == DRILL_ADOPTION_ALL;
    if (result->adoption == DRILL_ADOPTION_NONE && failover->adopted > 0)
        drill_result_fail(result,
                          "failover %u: %u blocks were adopted, which takeover.adopt_after_device_error forbids",
                          number, failover->adopted);
    if (all && failover->adopted == 0)
        drill_result_fail(result, "failover %u adopted nothing", number);
    if (all && failover->logs_known && failover->adopted + failover->spoiled < failover->sealed_everywhere)
        drill_result_fail(result, "failover %u: %u blocks were sealed on all ranks, %u were adopted%s", number,
                          failover->sealed_everywhere, failover->adopted,
                          failover->spoiled > 0 ? " although fewer were damaged" : "");
    /* Counted where the damage was done: another rank may not have come to seal the block that was chosen there. */
    uint32_t sealed_there = failover->spoiled > 0 ? failover->ranks[result->plan->sabotage_rank].sealed_here : 0;
    if (failover->spoiled > 0 && failover->adopted + failover->spoiled > sealed_there)
        drill_result_fail(result, "failover %u: %u of %u blocks of rank %d were damaged, but %u were adopted", number,
                          failover->spoiled, sealed_there, result->plan->sabotage_rank, failover->adopted);
    if (failover->adopted > failover->sealed_least)
        drill_result_fail(result, "failover %u: %u blocks were adopted, but a rank had only %u sealed", number,
                          failover->adopted, failover->sealed_least);
    if (failover->spoiled > failover->quarantined)
        drill_result_fail(result, "failover %u: %u blocks were damaged, but only %u are in quarantine", number,
                          failover->spoiled, failover->quarantined);
    if (failover->silence_ns != INT64_MIN && failover->silence_ns <= 0)
        drill_result_fail(result,
                          "failover %u: by their own logs the new engine acted %.3f ms before the old one's last "
                          "act",
                          number, (double)-failover->silence_ns / 1e6);
    if (failover->silence_ns == INT64_MIN)
        drill_result_fail(result,
                          "failover %u: the engines' logs do not show when they acted, so overlap cannot be "
                          "excluded",
                          number);
}

void drill_verdict(struct drill_result *result)
{
    judge_streams(result);
    for (uint32_t i = 0; i < result->failover_count; i++)
        judge_failover(result, i);
    if (result->failover_count < result->plan->repeat)
        drill_result_fail(result, "%u of %u failovers were made", result->failover_count, result->plan->repeat);
    if (result->quarantine_known && result->suspects_pending > 0)
        drill_result_fail(result, "%u dead engines are not known to be quiet at the end", result->suspects_pending);
    else if (result->quarantine_known && result->suspects_given_up == 0 && result->left_in_quarantine > 0)
        drill_result_fail(result, "%u slots are in quarantine at the end, and nobody is suspected of them any more",
                          result->left_in_quarantine);
    if (result->inexact && result->plan->exact)
        drill_result_fail(result, "--exact, and the engine is not: %s", result->divergence);
    if (result->stream_count == 0)
        drill_result_fail(result, "there was no stream to compare");
    if (result->adoption == DRILL_ADOPTION_NONE && result->salvaged_tokens > 0)
        drill_result_fail(result,
                          "%llu tokens came out of unfinished blocks, which takeover.adopt_after_device_error forbids",
                          (unsigned long long)result->salvaged_tokens);
    if (result->adoption == DRILL_ADOPTION_ALL && result->resumed_done > 0 && result->resumed_cached_tokens == 0)
        drill_result_fail(result, "%zu re-sent requests were completed and none found an adopted block",
                          result->resumed_done);
}

int drill_verdict_exit_code(const struct drill_result *result)
{
    if (result->could_not_run)
        return DRILL_EXIT_COULD_NOT_RUN;
    return result->failure_count > 0 ? DRILL_EXIT_FAIL : DRILL_EXIT_PASS;
}
