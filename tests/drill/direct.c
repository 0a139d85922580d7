/* SPDX-License-Identifier: Apache-2.0 */
#include "direct.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "requests.h"
#include "round.h"
#include "scene.h"
#include "strike.h"

/* More requests than a prefix cache has room for, so that blocks are sealed and given back in every round. */
enum { REQUESTS = 48 };
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
        if (result->failure_count > 0)
            drill_scene_drop(director->scene, true);
        result->plan = director->plan;
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
