/* SPDX-License-Identifier: Apache-2.0 */
#include "round.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "follow.h"
#include "logs.h"
#include "measure.h"
#include "strike.h"
#include "streams.h"
#include "verdict.h"

enum {
    MOMENT_LEAST = 6, /* tokens of each stream before a strike, and at most so many more */
    MOMENT_MORE = 12,
};

struct round {
    struct drill_scene *scene;
    struct drill_deployment *deployment; /* the scene's */
    const struct drill_plan *plan;
    const struct drill_fault *fault;
    const struct drill_requests *requests;
    const struct drill_control *control;
    struct drill_result *result;
    uint64_t random;
    struct drill_streams streams;
    uint32_t asked;   /* requests opened so far */
    uint64_t next_ns; /* not before this moment, with a rate */
    bool closing;     /* no new request any more */
    struct drill_observation seen;
};

static uint32_t draw(struct round *round, uint32_t below)
{
    uint64_t z = (round->random += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return below > 0 ? (uint32_t)((z ^ (z >> 31)) % below) : 0;
}

static uint64_t limit(const struct round *round)
{
    return gms_clock_ns() + round->plan->timeout_s * GMS_NS_PER_S;
}

/* -------------------------------------------------------------------------------------------------- load ------ */

static size_t running(const struct round *round)
{
    size_t count = 0;
    for (size_t i = 0; i < round->streams.count; i++) {
        enum drill_stream_state state = round->streams.items[i].state;
        count += !round->streams.items[i].probe &&
                 (state == DRILL_STREAM_WAITING || state == DRILL_STREAM_GREETING || state == DRILL_STREAM_RUNNING);
    }
    return count;
}

/* Keeps as many streams open as the plan says, one new request after the other. */
static void feed(struct round *round)
{
    size_t open = running(round);
    while (!round->closing && open < round->plan->streams && round->streams.count + 1 < round->streams.capacity &&
           gms_clock_ns() >= round->next_ns) {
        char id[16];
        snprintf(id, sizeof id, "r%u", round->asked);
        struct drill_stream *stream =
            drill_requests_add(round->requests, round->asked % round->requests->count, id, &round->streams);
        if (stream == NULL)
            return;
        drill_stream_start(stream);
        round->asked++;
        open++;
        if (round->plan->rate > 0)
            round->next_ns = gms_clock_ns() + (uint64_t)(1e9 / round->plan->rate);
    }
}

static void pump(struct round *round)
{
    feed(round);
    drill_follow_pump(round->deployment, &round->streams, &round->seen);
}

static bool deployment_good(struct round *round, const char *when)
{
    struct gms_error error;
    uint32_t excused = round->seen.injected ? 1u << round->seen.from_engine : 0;
    if (drill_deployment_check(round->deployment, excused, &error) == GMS_OK)
        return true;
    drill_result_fail(round->result, "%s: %s", when, error.text);
    return false;
}

/* Streams until a drawn number of tokens has come and somebody is in the middle of an answer. */
static bool wait_for_moment(struct round *round)
{
    uint64_t wanted = drill_streams_token_total(&round->streams) +
                      (uint64_t)round->plan->streams * (MOMENT_LEAST + draw(round, MOMENT_MORE));
    uint64_t deadline_ns = limit(round);
    while (drill_streams_token_total(&round->streams) < wanted ||
           drill_streams_in_state(&round->streams, DRILL_STREAM_RUNNING) == 0) {
        pump(round);
        if (!deployment_good(round, "before the fault"))
            return false;
        if (drill_streams_in_state(&round->streams, DRILL_STREAM_FAILED) > 0)
            return false; /* judged later */
        if (gms_clock_ns() < deadline_ns)
            continue;
        drill_result_fail(round->result, "waited %u s for %llu tokens before the fault, %llu had come",
                          round->plan->timeout_s, (unsigned long long)wanted,
                          (unsigned long long)drill_streams_token_total(&round->streams));
        return false;
    }
    return true;
}

/* ----------------------------------------------------------------------------------------------- takeover ----- */

static bool wait_for_successor(struct round *round, struct drill_stream *probe)
{
    struct drill_observation *seen = &round->seen;
    uint64_t deadline_ns = limit(round);
    for (;;) {
        pump(round);
        bool settled = probe->state == DRILL_STREAM_DONE || probe->state == DRILL_STREAM_FAILED;
        if (round->streams.serving.incarnation > seen->from_incarnation && settled &&
            drill_follow_resumed(&round->streams, seen->from_incarnation))
            return true;
        if (!deployment_good(round, "during the failover"))
            return false;
        if (gms_clock_ns() < deadline_ns)
            continue;
        drill_result_fail(
            round->result,
            "waited %u s after the fault; %s; %zu streams wait for an endpoint, %zu for a first word; "
            "new request %s",
            round->plan->timeout_s,
            round->streams.serving.incarnation > seen->from_incarnation ? "a successor serves" : "no successor serves",
            drill_streams_in_state(&round->streams, DRILL_STREAM_WAITING),
            drill_streams_in_state(&round->streams, DRILL_STREAM_GREETING), settled ? "answered" : "not answered");
        return false;
    }
}

/* The engine that serves is struck; the next one must go on. */
static bool take_over(struct round *round)
{
    struct drill_observation *seen = &round->seen;
    struct gms_error error;
    seen->from_engine = (int32_t)round->scene->serving;
    seen->from_incarnation = round->streams.serving.incarnation;
    if (round->streams.serving.engine != seen->from_engine ||
        round->deployment->engines[seen->from_engine].incarnation != seen->from_incarnation) {
        drill_result_fail(round->result, "the serving file names engine %d incarnation %llu, the drill knows %d, %llu",
                          round->streams.serving.engine, (unsigned long long)seen->from_incarnation, seen->from_engine,
                          (unsigned long long)round->deployment->engines[seen->from_engine].incarnation);
        return false;
    }
    struct drill_stream *probe = drill_requests_add(round->requests, round->requests->count, "probe", &round->streams);
    if (probe == NULL) {
        drill_result_fail(round->result, "no room for the new request of the failover");
        return false;
    }
    seen->tokens_before = drill_streams_token_total(&round->streams);
    round->streams.killed_incarnation = seen->from_incarnation;
    uint32_t rank = draw(round, round->deployment->ranks);
    if (drill_strike(round->fault, rank, round->deployment, seen, &error) != GMS_OK) {
        drill_result_fail(round->result, "the fault could not be made: %s", error.text);
        return false;
    }
    seen->injected = true;
    drill_stream_start(probe); /* in the very moment of the fault */
    seen->probe = probe;
    if (!wait_for_successor(round, probe))
        return false;
    seen->to_engine = round->streams.serving.engine;
    seen->to_incarnation = round->streams.serving.incarnation;
    seen->completed = true;
    if (seen->to_engine < 0 || seen->to_engine >= DRILL_MAX_ENGINES ||
        drill_deployment_wait(round->deployment, (uint32_t)seen->to_engine, "serving", 0, round->plan->timeout_s,
                              &error) != GMS_OK ||
        drill_deployment_agree(round->deployment, &error) != GMS_OK) {
        drill_result_fail(round->result, "after the failover: %s", seen->to_engine < 0 ? "nobody serves" : error.text);
        return false;
    }
    drill_follow_check(round->deployment, &round->streams, 1, seen->to_incarnation, round->result);
    return true;
}

static void finish_streams(struct round *round)
{
    uint64_t deadline_ns = limit(round), before = 0;
    round->closing = true;
    while (!drill_streams_finished(&round->streams)) {
        pump(round);
        uint64_t total = drill_streams_token_total(&round->streams);
        if (total != before)
            deadline_ns = limit(round);
        before = total;
        if (!deployment_good(round, "after the failover"))
            return;
        if (gms_clock_ns() >= deadline_ns) {
            drill_result_fail(round->result, "waited %u s for the next token of any stream", round->plan->timeout_s);
            return;
        }
    }
}

/* -------------------------------------------------------------------------------------------------- whole ----- */

static void gather(struct round *round)
{
    struct gms_error error;
    struct drill_logs logs = {0};
    gms_status status = drill_deployment_agree(round->deployment, &error);
    bool have_status = status == GMS_OK || status == GMS_E_MISMATCH;
    if (status != GMS_OK)
        drill_result_fail(round->result, "the ranks' status at the end: %s", error.text);
    bool have_logs = drill_logs_read(round->deployment->log_dir, &logs, &error) == GMS_OK;
    if (!have_logs || drill_logs_check_overlap(&logs, &error) != GMS_OK)
        drill_result_fail(round->result, "%s", error.text);
    struct drill_evidence evidence = {
        .ranks = round->deployment->ranks,
        .repeat = 1,
        .observations = &round->seen,
        .streams = &round->streams,
        .control = &round->control->first,
        .status = have_status ? round->deployment->status : NULL,
        .logs = have_logs ? &logs : NULL,
        .blocks = &round->scene->blocks,
    };
    drill_measure(&evidence, round->result);
    drill_logs_free(&logs);
}

void drill_round_run(struct drill_scene *scene, const struct drill_fault *fault, const struct drill_requests *requests,
                     const struct drill_control *control, uint64_t seed, struct drill_result *ret_result)
{
    struct round round = {.scene = scene,
                          .deployment = &scene->deployment,
                          .plan = &scene->plan,
                          .fault = fault,
                          .requests = requests,
                          .control = control,
                          .result = ret_result,
                          .random = seed,
                          .streams = {.inotify = -1}};
    struct gms_error error;
    uint64_t begun_ns = gms_clock_ns();
    memset(ret_result, 0, sizeof *ret_result);
    ret_result->plan = &scene->plan;
    ret_result->ranks = scene->deployment.ranks;
    ret_result->control_ns = control->ns;
    ret_result->inexact = !control->exact;
    memcpy(ret_result->divergence, control->divergence, sizeof ret_result->divergence);
    round.seen.from_engine = round.seen.to_engine = -1;
    if (drill_streams_open(scene->deployment.run_dir, DRILL_MAX_STREAM_RESULTS, &round.streams, &error) != GMS_OK) {
        ret_result->could_not_run = true;
        drill_result_fail(ret_result, "streams: %s", error.text);
        return;
    }
    if (wait_for_moment(&round) && take_over(&round))
        finish_streams(&round);
    if (drill_interrupted()) {
        ret_result->could_not_run = true;
        drill_result_fail(ret_result, "interrupted");
    } else {
        gather(&round);
        drill_verdict(ret_result);
    }
    drill_streams_close(&round.streams);
    ret_result->wall_ns = gms_clock_ns() - begun_ns;
    if (ret_result->failure_count > 0)
        return;
    scene->serving = (uint32_t)round.seen.to_engine;
    drill_scene_buried(scene, (uint32_t)round.seen.from_engine);
}
