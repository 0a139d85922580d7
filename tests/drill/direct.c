/* SPDX-License-Identifier: Apache-2.0 */
#include "direct.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "against.h"
#include "plain.h"
#include "requests.h"
#include "round.h"
#include "scene.h"
#include "strike.h"

/* More requests than a prefix cache has room for, so that blocks are sealed and given back in every round. A few rounds
 * do not fill it. */
enum { REQUESTS = 48, FEW_REQUESTS = 24, FEW_ROUNDS = 4 };
/* A soak ends after so many failures: each keeps its scratch space. */
enum { SOAK_FAILURES = 8 };
#define SEED_MASK ((UINT64_C(1) << 52) - 1)

struct director {
    const struct drill_plan *plan;
    struct drill_campaign *campaign;
    FILE *progress;
    uint64_t started_ns, random;
    struct drill_scratch scratch;
    struct drill_requests requests;
    struct drill_control control;
    struct drill_scene *scene; /* owned */
    struct drill_side *side;   /* of the comparison that the rounds count for now; NULL: none */
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

static void tell(const struct director *director, const struct drill_round *round)
{
    const struct drill_summary *sum = &round->summary;
    if (round->word != DRILL_WORD_PASSED)
        say(director, "%-26s %s  %s", round->name, drill_word_name(round->word), round->reason);
    else if (sum->unnoticed)
        say(director,
            "%-26s passed  whole again after %.0f ms, longest gap of a stream %.0f ms; then %u of %u blocks adopted, "
            "%u "
            "streams equal",
            round->name, (double)sum->whole_ns / 1e6, (double)sum->unnoticed_gap_ns / 1e6, sum->adopted, sum->sealed,
            sum->equal);
    else
        say(director, "%-26s passed  stream gap %.0f ms, %u of %u blocks adopted, %u streams equal", round->name,
            (double)sum->gap_median_ns / 1e6, sum->adopted, sum->sealed, sum->equal);
}

static void count_for(struct drill_side *side, const struct drill_result *result)
{
    if (result->failovers[0].first_token_ns >= 0)
        drill_numbers_add(&side->first_tokens, result->failovers[0].first_token_ns);
    if (result->failovers[0].probe_done_ns >= 0)
        drill_numbers_add(&side->new_requests, result->failovers[0].probe_done_ns);
    for (size_t s = 0; s < result->stream_count; s++) {
        const struct drill_stream_result *stream = &result->streams[s];
        side->streams++;
        side->equal += stream->done && stream->equal;
        if (stream->failover_gap_ns >= 0)
            drill_numbers_add(&side->gaps, stream->failover_gap_ns);
        if (stream->resumes == 0)
            continue;
        side->prompt_tokens += stream->prompt_tokens;
        side->cached_tokens += stream->cached_tokens;
        side->salvaged_tokens += stream->salvaged_tokens;
        side->computed_tokens += stream->computed_tokens;
        if (stream->resent_tokens > 0)
            drill_numbers_add(&side->again, (int64_t)stream->computed_tokens);
    }
    side->failovers++;
}

/* False: no use in going on. */
static bool run_row(struct director *director, const struct drill_fault *fault)
{
    struct gms_error error;
    uint64_t begun_ns = gms_clock_ns();
    struct drill_campaign *campaign = director->campaign;
    struct drill_round *round = drill_campaign_add(campaign);
    struct drill_result *result = calloc(1, sizeof *result);
    if (round == NULL || result == NULL) {
        free(result);
        error = (struct gms_error){.text = "no memory"};
        could_not(director, fault->name, &error);
        return false;
    }
    round->name = fault->name;
    round->done = fault->done;
    round->checked = fault->checked;
    round->outcome = drill_outcome_name(fault->outcome);
    round->seed = draw(director) & SEED_MASK;
    const char *unfit = director->plan->against[0] != '\0' ? drill_against_unfit(fault) : NULL;
    if (unfit != NULL) {
        round->word = DRILL_WORD_SKIPPED;
        snprintf(round->reason, sizeof round->reason, "%s", unfit);
        free(result);
    } else if (drill_strike_missing(fault, director->plan, round->reason, sizeof round->reason)) {
        round->word = DRILL_WORD_SKIPPED;
        free(result);
    } else if (drill_scene_ready(director->scene, fault,
                                 (uint32_t)(round->seed % (director->plan->ranks > 0 ? director->plan->ranks : 1)),
                                 &error) != GMS_OK) {
        round->word = error.status == GMS_E_PERMISSION ? DRILL_WORD_SKIPPED : DRILL_WORD_COULD_NOT_RUN;
        snprintf(round->reason, sizeof round->reason, "the deployment was not ready: %.440s", error.text);
        free(result);
    } else {
        bool usable;
        drill_round_run(director->scene, fault, &director->requests, &director->control, round->seed, result, &usable);
        if (!usable)
            drill_scene_drop(director->scene, true);
        result->plan = director->plan;
        if (director->side != NULL)
            count_for(director->side, result);
        drill_campaign_take(campaign, round, result);
    }
    round->seconds = (double)(gms_clock_ns() - begun_ns) / 1e9;
    tell(director, round);
    return !drill_interrupted();
}

static void run_rows(struct director *director)
{
    const struct drill_plan *plan = director->plan;
    size_t rows = drill_catalogue_count();
    uint64_t until_ns = gms_clock_ns() + plan->soak_ns;
    while (plan->soak_ns > 0 && gms_clock_ns() < until_ns) {
        size_t row = draw(director) % rows;
        if ((plan->rows >> row & 1) != 0 && !run_row(director, drill_catalogue_at(row)))
            return;
        if (drill_campaign_count(director->campaign, DRILL_WORD_FAILED) >= SOAK_FAILURES) {
            say(director, "%d rounds have failed; that is enough", SOAK_FAILURES);
            return;
        }
    }
    if (plan->soak_ns > 0)
        return;
    for (uint32_t turn = 0; turn < plan->repeat; turn++)
        for (size_t i = 0; i < rows; i++)
            if ((plan->rows >> i & 1) != 0 && !run_row(director, drill_catalogue_at(i)))
                return;
}

/* --------------------------------------------------------------------------------------------- comparison ----- */

static struct drill_side *next_side(struct drill_campaign *campaign, const char *name, const char *what)
{
    struct drill_side *side = &campaign->sides[campaign->side_count++];
    *side = (struct drill_side){.name = name, .what = what};
    return side;
}

static void tell_side(const struct director *director, struct drill_side *side)
{
    struct drill_spread gap = drill_spread_of(&side->gaps);
    say(director, "%-26s %u failovers, median gap of a stream %.0f ms  %s", side->name, side->failovers,
        (double)gap.median / 1e6, side->failure);
}

/* Ours: rounds of the catalogue, judged and reported as there. */
static void compare_ours(struct director *director, struct drill_side *side)
{
    const struct drill_fault *fault = drill_catalogue_find("sigkill-rank");
    struct drill_campaign *campaign = director->campaign;
    director->side = side;
    for (uint32_t i = 0; i < director->plan->repeat && side->failure[0] == '\0'; i++) {
        size_t before = campaign->count;
        bool go_on = run_row(director, fault);
        const struct drill_round *round = campaign->count > before ? &campaign->rounds[before] : NULL;
        if (round == NULL || round->word != DRILL_WORD_PASSED)
            snprintf(side->failure, sizeof side->failure, "%s", round != NULL ? round->reason : "no memory");
        if (!go_on)
            break;
    }
    director->side = NULL;
}

/* Ours again, with an engine that computes unfinished blocks from their first token. */
static void compare_without_salvage(struct director *director, struct drill_side *side)
{
    struct drill_plan plan = *director->plan;
    size_t words = 0;
    if (plan.command[0] == NULL)
        plan.command[0] = "minillm";
    while (words < DRILL_COMMAND_WORDS && plan.command[words] != NULL)
        words++;
    struct drill_scene *scene = calloc(1, sizeof *scene), *other = director->scene;
    if (scene == NULL || words == DRILL_COMMAND_WORDS) {
        snprintf(side->failure, sizeof side->failure, "no memory, or an engine command of %d words",
                 DRILL_COMMAND_WORDS);
        free(scene);
        return;
    }
    plan.command[words] = "--no-salvage";
    plan.command[words + 1] = NULL;
    drill_scene_init(&plan, &director->scratch, scene);
    director->scene = scene;
    compare_ours(director, side);
    drill_scene_drop(scene, false);
    director->scene = other;
    free(scene);
}

static void compare(struct director *director)
{
    static const struct {
        enum drill_plain kind;
        const char *name, *what, *dir;
    } others[] = {
        {DRILL_PLAIN_LOCK, "file-lock standby",
         "a loaded standby looks at a file lock every 100 ms; it has nobody's cache, clients try one address every 10 "
         "ms",
         "lock"},
        {DRILL_PLAIN_COLD, "cold restart",
         "the engine is started again as soon as its launcher has ended; clients try one address every 10 ms", "cold"},
    };
    struct drill_campaign *campaign = director->campaign;
    struct drill_side *side = next_side(campaign, "gms-failover",
                                        "a parked engine takes over with what was finished, and goes on in what was "
                                        "not");
    compare_ours(director, side);
    tell_side(director, side);
    drill_scene_drop(director->scene, false);
    if (!drill_interrupted()) {
        side = next_side(campaign, "whole blocks only",
                         "the same, but a block that was not finished is computed from its first token");
        compare_without_salvage(director, side);
        tell_side(director, side);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0] && !drill_interrupted(); i++) {
        char dir[DRILL_PATH_BYTES];
        snprintf(dir, sizeof dir, "%.480s/%s", director->scratch.work_dir, others[i].dir);
        side = next_side(campaign, others[i].name, others[i].what);
        drill_plain_run(others[i].kind, &director->requests, &director->control, dir, draw(director), side);
        tell_side(director, side);
    }
    /* The one thing that must differ only in time. */
    for (size_t i = 0; i < campaign->side_count; i++)
        if (!campaign->inexact && campaign->sides[i].failure[0] == '\0' &&
            campaign->sides[i].equal < campaign->sides[i].streams)
            snprintf(campaign->sides[i].failure, sizeof campaign->sides[i].failure,
                     "%zu streams differ from the control", campaign->sides[i].streams - campaign->sides[i].equal);
}

static uint32_t request_count(const struct drill_plan *plan)
{
    uint64_t rounds = plan->compare ? plan->repeat : 0;
    for (size_t i = 0; i < drill_catalogue_count(); i++)
        rounds += (plan->rows >> i & 1) * plan->repeat;
    bool few = (plan->soak_ns == 0 && rounds <= FEW_ROUNDS) || plan->sabotage == DRILL_SABOTAGE_EACH;
    uint32_t requests = few ? FEW_REQUESTS : REQUESTS;
    return plan->streams > requests ? plan->streams : requests;
}

static void run_all(struct director *director)
{
    struct gms_error error;
    const struct drill_plan *plan = director->plan;
    struct drill_campaign *campaign = director->campaign;
    uint32_t requests = request_count(plan);
    if (drill_requests_open(plan, requests, 1, &director->requests, &error) != GMS_OK ||
        drill_processes_prepare(&error) != GMS_OK ||
        drill_scratch_make(plan->work_dir, &director->scratch, &error) != GMS_OK) {
        could_not(director, "preparation", &error);
        return;
    }
    drill_scene_init(plan, &director->scratch, director->scene);
    bool against = plan->against[0] != '\0';
    gms_status status = against ? drill_scene_attach(director->scene, &error)
                                : drill_control_run(&director->requests, director->scratch.work_dir,
                                                    director->scratch.shared_dir, &director->control, &error);
    if (against && status == GMS_OK)
        status = drill_control_stream(&director->requests, &director->scene->deployment, &director->control, &error);
    if (status != GMS_OK) {
        could_not(director, "control run", &error);
        return;
    }
    campaign->inexact = !director->control.exact;
    campaign->control_ns = director->control.ns;
    memcpy(campaign->divergence, director->control.divergence, sizeof campaign->divergence);
    say(director, "two control runs of %u requests: %s", requests,
        campaign->inexact ? campaign->divergence : "equal, token by token");
    run_rows(director);
    if (plan->compare && !drill_interrupted())
        compare(director);
    drill_scene_drop(director->scene, true);
}

void drill_direct(const struct drill_plan *plan, FILE *progress, struct drill_campaign *ret_campaign)
{
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
