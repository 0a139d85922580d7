/* SPDX-License-Identifier: Apache-2.0 */
#include "campaign.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "options.h"
#include "requests.h"
#include "round.h"
#include "scene.h"
#include "strike.h"
#include "verdict.h"

enum {
    KEPT_RESULTS = 64,
    REQUESTS = 48 /* more than a prefix cache has room for, so that blocks are sealed and given back in every round */
};

struct director {
    const struct drill_plan *plan;
    struct drill_campaign *campaign;
    FILE *progress;
    uint64_t started_ns, random;
    struct drill_scratch scratch;
    struct drill_requests requests;
    struct drill_control control;
    struct drill_scene *scene; /* owned */
    size_t kept;
};

__attribute__((format(printf, 2, 3))) static void say(const struct director *director, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(director->progress, "[%6.1f s] ", (double)(gms_clock_ns() - director->started_ns) / 1e9);
    vfprintf(director->progress, format, arguments);
    fputc('\n', director->progress);
    fflush(director->progress);
    va_end(arguments);
}

static void could_not(struct director *director, const char *what, const struct gms_error *error)
{
    struct drill_campaign *campaign = director->campaign;
    campaign->could_not_run = true;
    snprintf(campaign->reason, sizeof campaign->reason, "%s: %.440s", what, error->text);
    say(director, "%s", campaign->reason);
}

static uint64_t draw(struct director *director)
{
    uint64_t z = (director->random += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static struct drill_round *next_round(struct drill_campaign *campaign)
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

/* False: no use in going on. */
static bool run_row(struct director *director, const struct drill_fault *fault)
{
    struct gms_error error;
    uint64_t begun_ns = gms_clock_ns();
    struct drill_round *round = next_round(director->campaign);
    struct drill_result *result = calloc(1, sizeof *result);
    if (round == NULL || result == NULL) {
        free(result);
        error = (struct gms_error){.text = "no memory"};
        could_not(director, fault->name, &error);
        return false;
    }
    round->fault = fault;
    round->seed = draw(director);
    if (drill_strike_missing(fault, director->plan, round->reason, sizeof round->reason)) {
        round->word = DRILL_WORD_SKIPPED;
        free(result);
    } else if (drill_scene_ready(director->scene, fault, (uint32_t)(round->seed % director->plan->ranks), &error) !=
               GMS_OK) {
        round->word = error.status == GMS_E_PERMISSION ? DRILL_WORD_SKIPPED : DRILL_WORD_COULD_NOT_RUN;
        snprintf(round->reason, sizeof round->reason, "the deployment was not ready: %.440s", error.text);
        free(result);
    } else {
        drill_round_run(director->scene, fault, &director->requests, &director->control, round->seed, result);
        round->word = result->unsupported         ? DRILL_WORD_SKIPPED
                      : result->could_not_run     ? DRILL_WORD_COULD_NOT_RUN
                      : result->failure_count > 0 ? DRILL_WORD_FAILED
                                                  : DRILL_WORD_PASSED;
        if (result->failure_count > 0) {
            snprintf(round->reason, sizeof round->reason, "%s", result->failures[0]);
            drill_scene_drop(director->scene, true);
        }
        round->result = result;
        result->plan = director->plan;
    }
    round->seconds = (double)(gms_clock_ns() - begun_ns) / 1e9;
    const struct drill_failover *failover = round->result != NULL ? &round->result->failovers[0] : NULL;
    if (round->word == DRILL_WORD_PASSED && failover != NULL && round->result->unnoticed)
        say(director,
            "%-26s passed  whole again after %.0f ms, longest gap of a stream %.0f ms; then %u of %u blocks adopted, "
            "%zu "
            "streams equal",
            fault->name, (double)round->result->whole_ns / 1e6, (double)round->result->unnoticed_gap_ns / 1e6,
            failover->adopted, failover->sealed_everywhere, round->result->stream_count);
    else if (round->word == DRILL_WORD_PASSED && failover != NULL)
        say(director, "%-26s passed  stream gap %.0f ms, %u of %u blocks adopted, %zu streams equal", fault->name,
            (double)failover->gap_median_ns / 1e6, failover->adopted, failover->sealed_everywhere,
            round->result->stream_count);
    else
        say(director, "%-26s %s  %s", fault->name, drill_word_name(round->word), round->reason);
    if (round->word == DRILL_WORD_PASSED && round->result != NULL && ++director->kept > KEPT_RESULTS) {
        free(round->result);
        round->result = NULL;
    }
    return !drill_interrupted();
}

static void run_rows(struct director *director)
{
    const struct drill_plan *plan = director->plan;
    size_t rows = drill_catalogue_count();
    for (uint32_t turn = 0; turn < plan->repeat; turn++)
        for (size_t i = 0; i < rows; i++)
            if ((plan->rows >> i & 1) != 0 && !run_row(director, drill_catalogue_at(i)))
                return;
}

static void run_all(struct director *director)
{
    struct gms_error error;
    const struct drill_plan *plan = director->plan;
    struct drill_campaign *campaign = director->campaign;
    uint32_t requests = plan->streams > REQUESTS ? plan->streams : REQUESTS;
    if (drill_requests_open(plan, requests, 1, &director->requests, &error) != GMS_OK ||
        drill_processes_prepare(&error) != GMS_OK ||
        drill_scratch_make(plan->work_dir, &director->scratch, &error) != GMS_OK) {
        could_not(director, "preparation", &error);
        return;
    }
    if (drill_control_run(&director->requests, director->scratch.work_dir, director->scratch.shared_dir,
                          &director->control, &error) != GMS_OK) {
        could_not(director, "control run", &error);
        return;
    }
    campaign->inexact = !director->control.exact;
    campaign->control_ns = director->control.ns;
    memcpy(campaign->divergence, director->control.divergence, sizeof campaign->divergence);
    say(director, "two control runs of %u requests: %s", requests,
        campaign->inexact ? campaign->divergence : "equal, token by token");
    drill_scene_init(plan, &director->scratch, director->scene);
    run_rows(director);
    drill_scene_drop(director->scene, true);
}

void drill_campaign_run(const struct drill_plan *plan, FILE *progress, struct drill_campaign *ret_campaign)
{
    memset(ret_campaign, 0, sizeof *ret_campaign);
    ret_campaign->plan = plan;
    struct director director = {.plan = plan,
                                .campaign = ret_campaign,
                                .progress = progress,
                                .started_ns = gms_clock_ns(),
                                .random = plan->seed,
                                .scene = calloc(1, sizeof *director.scene)};
    drill_control_init(&director.control);
    if (director.scene != NULL)
        run_all(&director);
    else
        ret_campaign->could_not_run = true;
    free(director.scene);
    drill_control_close(&director.control);
    drill_requests_close(&director.requests);
    drill_scratch_drop_shared(&director.scratch);
    memcpy(ret_campaign->work_dir, director.scratch.work_dir, sizeof ret_campaign->work_dir);
    ret_campaign->wall_ns = gms_clock_ns() - director.started_ns;
}

void drill_campaign_free(struct drill_campaign *campaign)
{
    for (size_t i = 0; i < campaign->count; i++)
        free(campaign->rounds[i].result);
    free(campaign->rounds);
    campaign->rounds = NULL;
    campaign->count = campaign->capacity = 0;
}

static size_t count_word(const struct drill_campaign *campaign, enum drill_word word)
{
    size_t count = 0;
    for (size_t i = 0; i < campaign->count; i++)
        count += campaign->rounds[i].word == word;
    return count;
}

int drill_campaign_exit_code(const struct drill_campaign *campaign)
{
    if (count_word(campaign, DRILL_WORD_FAILED) > 0)
        return DRILL_EXIT_FAIL;
    if (campaign->could_not_run || count_word(campaign, DRILL_WORD_COULD_NOT_RUN) > 0 ||
        count_word(campaign, DRILL_WORD_PASSED) == 0)
        return DRILL_EXIT_COULD_NOT_RUN;
    return DRILL_EXIT_PASS;
}

const char *drill_word_name(enum drill_word word)
{
    static const char *const names[DRILL_WORD_COUNT] = {
        [DRILL_WORD_PASSED] = "passed",
        [DRILL_WORD_FAILED] = "FAILED",
        [DRILL_WORD_SKIPPED] = "skipped",
        [DRILL_WORD_COULD_NOT_RUN] = "could not run",
    };
    return word < DRILL_WORD_COUNT ? names[word] : "?";
}

void drill_campaign_print(const struct drill_campaign *campaign, FILE *stream)
{
    fprintf(stream, "\n  %-26s%-15s%10s%10s%10s%12s%8s\n", "fault", "", "serving", "token", "gap", "adopted of",
            "streams");
    fprintf(stream, "  %-26s%-15s%10s%10s%10s%12s%8s\n", "", "", "after ms", "after ms", "median ms", "sealed",
            "equal");
    for (size_t i = 0; i < campaign->count; i++) {
        const struct drill_round *round = &campaign->rounds[i];
        fprintf(stream, "  %-26s%-15s", round->fault->name, drill_word_name(round->word));
        const struct drill_failover *failover =
            round->result != NULL && round->result->failover_count > 0 ? &round->result->failovers[0] : NULL;
        if (failover == NULL || !failover->completed) {
            fprintf(stream, "%.100s\n", round->reason);
            continue;
        }
        size_t equal = 0;
        for (size_t s = 0; s < round->result->stream_count; s++)
            equal += round->result->streams[s].done && round->result->streams[s].equal;
        fprintf(stream, "%10.1f%10.1f%10.1f%6u of %-4u%4zu/%zu\n",
                (double)failover->steps[DRILL_STEP_SERVE].greatest_ns / 1e6, (double)failover->first_token_ns / 1e6,
                (double)failover->gap_median_ns / 1e6, failover->adopted, failover->sealed_everywhere, equal,
                round->result->stream_count);
    }
    if (campaign->inexact)
        fprintf(stream, "\n  equal tokens are not claimed: %s\n", campaign->divergence);
    for (size_t i = 0; i < campaign->count; i++) {
        const struct drill_result *result = campaign->rounds[i].result;
        for (size_t f = 0; result != NULL && f < result->failure_count && f < DRILL_MAX_FAILURES; f++)
            fprintf(stream, "  - %s: %s\n", campaign->rounds[i].fault->name, result->failures[f]);
    }
    if (campaign->could_not_run)
        fprintf(stream, "  - %s\n", campaign->reason);
    int code = drill_campaign_exit_code(campaign);
    fprintf(stream, "\n%s: %zu passed, %zu failed, %zu skipped, %zu could not run, in %.1f s\n",
            code == DRILL_EXIT_PASS   ? "PASSED"
            : code == DRILL_EXIT_FAIL ? "FAILED"
                                      : "COULD NOT RUN",
            count_word(campaign, DRILL_WORD_PASSED), count_word(campaign, DRILL_WORD_FAILED),
            count_word(campaign, DRILL_WORD_SKIPPED), count_word(campaign, DRILL_WORD_COULD_NOT_RUN),
            (double)campaign->wall_ns / 1e9);
}
