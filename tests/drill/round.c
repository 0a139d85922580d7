/* SPDX-License-Identifier: Apache-2.0 */
#include "round.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "follow.h"
#include "load.h"
#include "logs.h"
#include "measure.h"
#include "parts.h"
#include "relayed.h"
#include "strike.h"
#include "streams.h"
#include "verdict.h"

enum {
    MOMENT_LEAST = 6, /* tokens of each stream before a strike, and at most so many more */
    MOMENT_MORE = 12,
    ASK_MS = 30, /* for one look at all ranks, while streams wait */
    DISK_FULL_MS = 1000,
    UP_ENDS_S = 5,
    NOBODY_REPAIRS_MS = 1500,
    LINK_LEAVE_S = 15,
    LINK_CUT_MS = 1000, /* after everybody has left */
};

static const struct drill_strike one_rank = {DRILL_TARGET_ENGINE_RANK, DRILL_ACT_KILL, NULL, NULL};

struct round {
    struct drill_scene *scene;
    struct drill_deployment *deployment; /* the scene's */
    const struct drill_plan *plan;
    const struct drill_fault *fault;
    const struct drill_requests *requests;
    const struct drill_control *control;
    struct drill_result *result;
    uint64_t random;
    struct drill_load load;
    struct drill_observation seen;
    struct drill_blow blow;
    struct drill_relayed *relayed; /* NULL: no relay in this round */
    uint32_t excused;              /* bit per engine that may end */
    bool survivors_counted;        /* when the successor's first token was there */
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

/* ------------------------------------------------------------------------------------------------ streams ---- */

static void pump(struct round *round)
{
    drill_load_feed(&round->load);
    drill_follow_pump(round->deployment, &round->load.streams, &round->seen);
}

static bool deployment_good(struct round *round, const char *when)
{
    struct gms_error error;
    if (drill_deployment_check(round->deployment, round->excused, &error) == GMS_OK)
        return true;
    drill_result_fail(round->result, "%s: %s", when, error.text);
    return false;
}

/* Streams until a drawn number of tokens has come and somebody is in the middle of an answer. */
static bool wait_for_moment(struct round *round)
{
    uint64_t wanted = drill_streams_token_total(&round->load.streams) +
                      (uint64_t)round->plan->streams * (MOMENT_LEAST + draw(round, MOMENT_MORE));
    uint64_t deadline_ns = limit(round);
    while (drill_streams_token_total(&round->load.streams) < wanted ||
           drill_streams_in_state(&round->load.streams, DRILL_STREAM_RUNNING) == 0) {
        pump(round);
        if (!deployment_good(round, "before the fault"))
            return false;
        if (drill_streams_in_state(&round->load.streams, DRILL_STREAM_FAILED) > 0)
            return false; /* judged later */
        if (gms_clock_ns() < deadline_ns)
            continue;
        drill_result_fail(round->result, "waited %u s for %llu tokens before the fault, %llu had come",
                          round->plan->timeout_s, (unsigned long long)wanted,
                          (unsigned long long)drill_streams_token_total(&round->load.streams));
        return false;
    }
    return true;
}

/* ----------------------------------------------------------------------------------------------- takeover ----- */

/* Nothing of the old engine may live when the new one gives its first token. */
static void look_for_survivors(struct round *round)
{
    if (round->survivors_counted)
        return;
    for (size_t i = 0; i < round->load.streams.count && !round->survivors_counted; i++) {
        const struct drill_stream *stream = &round->load.streams.items[i];
        round->survivors_counted = stream->token_count > 0 &&
                                   stream->tokens[stream->token_count - 1].incarnation != round->seen.from_incarnation;
    }
    int32_t survivor = round->survivors_counted ? drill_strike_survivor(&round->blow) : 0;
    if (survivor != 0)
        drill_result_fail(round->result, "pid %d of the old engine lived when the new one gave its first token",
                          survivor);
}

static bool wait_for_successor(struct round *round, struct drill_stream *probe)
{
    struct drill_observation *seen = &round->seen;
    uint64_t deadline_ns = limit(round), relent_ns = gms_clock_ns() + DISK_FULL_MS * GMS_NS_PER_MS;
    uint64_t begun_ns = gms_clock_ns();
    bool never_relents =
        round->plan->sabotage == DRILL_SABOTAGE_EACH && round->fault->outcome == DRILL_OUTCOME_UNNOTICED;
    if (never_relents)
        deadline_ns = gms_clock_ns() + NOBODY_REPAIRS_MS * GMS_NS_PER_MS;
    for (;;) {
        pump(round);
        if (gms_clock_ns() > relent_ns && !never_relents)
            drill_strike_relent(&round->blow);
        look_for_survivors(round);
        bool settled = probe->state == DRILL_STREAM_DONE || probe->state == DRILL_STREAM_FAILED;
        if (drill_follow_succeeded(&round->load.streams, seen->from_incarnation) && settled &&
            drill_follow_resumed(&round->load.streams, seen->from_incarnation))
            return true;
        if (!deployment_good(round, "during the failover"))
            return false;
        if (gms_clock_ns() < deadline_ns)
            continue;
        drill_result_fail(round->result,
                          "waited %.0f s after the fault; %s; %zu streams wait for an endpoint, %zu for a first word; "
                          "new request %s",
                          (double)(gms_clock_ns() - begun_ns) / 1e9,
                          drill_follow_succeeded(&round->load.streams, seen->from_incarnation) ? "a successor serves"
                                                                                               : "no successor serves",
                          drill_streams_in_state(&round->load.streams, DRILL_STREAM_WAITING),
                          drill_streams_in_state(&round->load.streams, DRILL_STREAM_GREETING),
                          settled ? "answered" : "not answered");
        return false;
    }
}

static int32_t first_shadow(const struct round *round)
{
    int32_t first = -1;
    const struct drill_engine *engines = round->deployment->engines;
    for (int32_t engine = 0; engine < DRILL_MAX_ENGINES; engine++)
        if (engine != (int32_t)round->scene->serving && engines[engine].started &&
            (first < 0 || engines[engine].incarnation < engines[first].incarnation))
            first = engine;
    return first;
}

static bool strikes_at(const struct drill_strike *strikes, size_t count, enum drill_target target)
{
    for (size_t i = 0; i < count; i++)
        if (strikes[i].target == target)
            return true;
    return false;
}

static bool strike(struct round *round, const struct drill_strike *strikes, size_t count,
                   struct drill_observation *seen)
{
    struct gms_error error;
    uint32_t rank = draw(round, round->deployment->ranks);
    gms_status status = drill_strike(strikes, count, rank, round->deployment, round->load.streams.serving.endpoint,
                                     seen, &round->blow, &error);
    if (round->blow.note[0] != '\0')
        memcpy(round->result->note, round->blow.note, sizeof round->result->note);
    if (status == GMS_OK)
        return true;
    round->result->unsupported |= status == GMS_E_UNSUPPORTED;
    drill_result_fail(round->result, "the fault could not be made: %s", error.text);
    return false;
}

/* The engine that serves is struck; the next one must go on. */
static bool take_over(struct round *round, const struct drill_strike *strikes, size_t count)
{
    struct drill_observation *seen = &round->seen;
    struct gms_error error;
    seen->from_engine = (int32_t)round->scene->serving;
    seen->from_incarnation = round->load.streams.serving.incarnation;
    if (round->load.streams.serving.engine != seen->from_engine ||
        round->deployment->engines[seen->from_engine].incarnation != seen->from_incarnation) {
        drill_result_fail(round->result, "the serving file names engine %d incarnation %llu, the drill knows %d, %llu",
                          round->load.streams.serving.engine, (unsigned long long)seen->from_incarnation,
                          seen->from_engine,
                          (unsigned long long)round->deployment->engines[seen->from_engine].incarnation);
        return false;
    }
    struct drill_stream *probe = drill_load_probe(&round->load);
    if (probe == NULL) {
        drill_result_fail(round->result, "no room for the new request of the failover");
        return false;
    }
    seen->tokens_before = drill_streams_token_total(&round->load.streams);
    round->load.streams.killed_incarnation = seen->from_incarnation;
    round->excused |= 1u << seen->from_engine;
    int32_t lost = -1; /* the shadow that dies as well */
    if (round->fault->shadows > 1) {
        lost = first_shadow(round);
        seen->lost_incarnation = round->deployment->engines[lost].incarnation;
        round->load.streams.lost_incarnation = seen->lost_incarnation;
        round->excused |= 1u << lost;
    }
    seen->status_may_forget = strikes_at(strikes, count, DRILL_TARGET_COORDINATOR) ||
                              strikes_at(strikes, count, DRILL_TARGET_COORDINATORS) ||
                              strikes_at(strikes, count, DRILL_TARGET_COORDINATOR_LAUNCHER);
    if (!strike(round, strikes, count, seen))
        return false;
    seen->injected = true;
    drill_stream_start(probe); /* in the very moment of the fault */
    seen->probe = probe;
    if (!wait_for_successor(round, probe))
        return false;
    seen->to_engine = round->load.streams.serving.engine;
    seen->to_incarnation = round->load.streams.serving.incarnation;
    seen->completed = true;
    if (seen->to_engine < 0 || seen->to_engine >= DRILL_MAX_ENGINES ||
        drill_deployment_wait(round->deployment, (uint32_t)seen->to_engine, "serving", 0, round->plan->timeout_s,
                              &error) != GMS_OK ||
        drill_deployment_agree(round->deployment, &error) != GMS_OK) {
        drill_result_fail(round->result, "after the failover: %s", seen->to_engine < 0 ? "nobody serves" : error.text);
        return false;
    }
    if (seen->to_engine == lost)
        drill_result_fail(round->result, "engine %d was to die as well, and serves", lost);
    drill_follow_check(round->deployment, &round->load.streams, 1, seen->to_incarnation, round->result);
    return true;
}

static void finish_streams(struct round *round)
{
    uint64_t deadline_ns = limit(round), before = 0;
    round->load.closing = true;
    while (!drill_streams_finished(&round->load.streams)) {
        pump(round);
        uint64_t total = drill_streams_token_total(&round->load.streams);
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

/* ---------------------------------------------------------------------------------------------- unnoticed ----- */

static int64_t longest_gap(const struct round *round, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t longest_ns = 0;
    for (size_t i = 0; i < round->load.streams.count; i++) {
        const struct drill_stream *stream = &round->load.streams.items[i];
        for (uint32_t t = 1; t < stream->token_count; t++) {
            uint64_t begin = stream->tokens[t - 1].at_ns, end = stream->tokens[t].at_ns;
            if (end > from_ns && begin < to_ns && end - begin > longest_ns)
                longest_ns = end - begin;
        }
    }
    return (int64_t)longest_ns;
}

/* Sabotage: nobody is there who would repair anything. */
static bool end_up(struct round *round)
{
    static const struct drill_strike up = {DRILL_TARGET_UP, DRILL_ACT_KILL, NULL, NULL};
    struct drill_observation seen = {.from_engine = (int32_t)round->scene->serving};
    drill_parts_up(round->deployment)->asked_to_end = true;
    bool good = strike(round, &up, 1, &seen);
    drill_strike_over(&round->blow);
    return good;
}

static bool restart_up(struct round *round)
{
    struct gms_error error;
    struct drill_process *up = drill_parts_up(round->deployment);
    if (!drill_process_wait(up, gms_clock_ns() + UP_ENDS_S * GMS_NS_PER_S)) {
        drill_result_fail(round->result, "gms-up does not end by SIGKILL");
        return false;
    }
    if (drill_deployment_start_up(round->deployment, &error) == GMS_OK)
        return true;
    drill_result_fail(round->result, "gms-up: %s", error.text);
    return false;
}

static void pump_again(void *context)
{
    pump(context);
}

static bool relayed_good(struct round *round, gms_status status, const struct gms_error *error)
{
    if (status == GMS_OK)
        return true;
    round->result->unsupported |= status == GMS_E_UNSUPPORTED;
    drill_result_fail(round->result, "%s", error->text);
    return false;
}

/* The link is cut: the coordinators of both sides leave, and nobody is promoted, then nor a second later. */
static bool hold_out(struct round *round, const struct drill_serving *before, uint64_t begun_ns)
{
    struct drill_deployment *deployment = round->deployment;
    uint64_t deadline_ns = gms_clock_ns() + LINK_LEAVE_S * GMS_NS_PER_S, until_ns = 0;
    int left[DRILL_MAX_RANKS];
    uint32_t there = 0;
    for (uint32_t rank = 0; rank < deployment->ranks; rank++) /* an error: it has left already */
        if (drill_descendant_open(getpid(), deployment->status[rank].pid, &left[there], NULL) == GMS_OK)
            there++;
    while (until_ns == 0 || gms_clock_ns() < until_ns) {
        pump(round);
        const struct drill_serving *now = &round->load.streams.serving;
        if (now->incarnation != before->incarnation || now->epoch != before->epoch) {
            drill_result_fail(round->result, "engine %d incarnation %llu serves while the link is cut", now->engine,
                              (unsigned long long)now->incarnation);
            break;
        }
        while (there > 0 && gms_pidfd_ended(left[there - 1]))
            gms_fd_close(&left[--there]);
        if (there == 0 && until_ns == 0) {
            until_ns = gms_clock_ns() + LINK_CUT_MS * GMS_NS_PER_MS;
            snprintf(round->result->note, sizeof round->result->note, "both sides had left after %.0f ms",
                     (double)(gms_clock_ns() - begun_ns) / 1e6);
        }
        if (!deployment_good(round, "while the link was cut"))
            break;
        if (there > 0 && gms_clock_ns() >= deadline_ns) {
            drill_result_fail(round->result, "%u coordinators have not left %d s after the link was cut", there,
                              LINK_LEAVE_S);
            break;
        }
    }
    while (there > 0)
        gms_fd_close(&left[--there]);
    return round->result->failure_count == 0;
}

/* Something of the control plane is struck; streams go on, and it must be whole again. */
static bool suffer(struct round *round, const struct drill_strike *strikes, size_t count)
{
    struct drill_deployment *deployment = round->deployment;
    struct gms_error error;
    if (drill_deployment_agree(deployment, &error) != GMS_OK) {
        drill_result_fail(round->result, "before the fault: %s", error.text);
        return false;
    }
    bool cut = strikes_at(strikes, count, DRILL_TARGET_LINK);
    bool world_ends = cut || strikes_at(strikes, count, DRILL_TARGET_COORDINATOR) ||
                      strikes_at(strikes, count, DRILL_TARGET_COORDINATORS) ||
                      strikes_at(strikes, count, DRILL_TARGET_COORDINATOR_LAUNCHER);
    uint64_t former_world = world_ends ? deployment->status[0].world : 0;
    pid_t former_keeper = strikes_at(strikes, count, DRILL_TARGET_KEEPER) ? drill_parts_keeper(deployment) : 0;
    bool up_ends = strikes_at(strikes, count, DRILL_TARGET_UP);
    if (strikes_at(strikes, count, DRILL_TARGET_RELAY) &&
        !relayed_good(
            round, drill_relayed_open(deployment, round->requests, pump_again, round, &round->relayed, &error), &error))
        return false;
    struct drill_observation seen = {.from_engine = (int32_t)round->scene->serving};
    if (up_ends)
        drill_parts_up(deployment)->asked_to_end = true;
    bool sabotaged = round->plan->sabotage == DRILL_SABOTAGE_EACH;
    if (sabotaged && !up_ends && !cut && !drill_parts_up(deployment)->asked_to_end && !end_up(round))
        return false;
    const struct drill_serving before = round->load.streams.serving;
    uint64_t begun_ns = gms_clock_ns();
    if (!strike(round, strikes, count, &seen) || (cut && !hold_out(round, &before, begun_ns)) ||
        (up_ends && !sabotaged && !restart_up(round)) ||
        (round->relayed != NULL && !sabotaged &&
         !relayed_good(round, drill_relayed_again(round->relayed, &error), &error)))
        return false;
    uint64_t deadline_ns = sabotaged ? gms_clock_ns() + NOBODY_REPAIRS_MS * GMS_NS_PER_MS : limit(round);
    uint64_t relent_ns = round->blow.ballast[0] != '\0' ? begun_ns + DISK_FULL_MS * GMS_NS_PER_MS : 0;
    const char *missing = "";
    for (;;) {
        pump(round);
        if (!deployment_good(round, "after the fault"))
            return false;
        if (drill_streams_in_state(&round->load.streams, DRILL_STREAM_FAILED) > 0)
            return false; /* judged later */
        if (relent_ns > gms_clock_ns())
            continue;
        if (!sabotaged)
            drill_strike_relent(&round->blow);
        if (drill_parts_whole(deployment, former_world, round->scene->serving, ASK_MS, &missing)) {
            pid_t keeper = former_keeper != 0 ? drill_parts_keeper(deployment) : 1;
            if (keeper > 0 && keeper != former_keeper)
                break;
            missing = "the keeper is not a new one";
        }
        if (gms_clock_ns() < deadline_ns)
            continue;
        drill_result_fail(round->result, "the group is not whole again %.0f s after the fault: %s",
                          (double)(gms_clock_ns() - begun_ns) / 1e9, missing);
        return false;
    }
    uint64_t now_ns = gms_clock_ns();
    int64_t gap_ns = longest_gap(round, begun_ns, now_ns);
    round->result->unnoticed = true;
    round->result->whole_ns = (int64_t)(now_ns - begun_ns);
    if (gap_ns > round->result->unnoticed_gap_ns)
        round->result->unnoticed_gap_ns = gap_ns;
    if (!sabotaged)
        drill_strike_over(&round->blow);
    return true;
}

static bool suffer_all(struct round *round)
{
    const struct drill_fault *fault = round->fault;
    size_t step = fault->one_by_one ? 1 : DRILL_STRIKES;
    for (size_t i = 0; i < DRILL_STRIKES && fault->strikes[i].target != DRILL_TARGET_NONE; i += step)
        if (!suffer(round, &fault->strikes[i], step) || !wait_for_moment(round))
            return false;
    return true;
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
        .streams = &round->load.streams,
        .control = &round->control->first,
        .status = have_status ? round->deployment->status : NULL,
        .logs = have_logs ? &logs : NULL,
        .blocks = &round->scene->blocks,
    };
    drill_measure(&evidence, round->result);
    drill_logs_free(&logs);
}

static bool everybody_is_done(const struct drill_result *result)
{
    for (size_t i = 0; i < result->stream_count; i++)
        if (!result->streams[i].done)
            return false;
    return result->stream_count > 0;
}

void drill_round_run(struct drill_scene *scene, const struct drill_fault *fault, const struct drill_requests *requests,
                     const struct drill_control *control, uint64_t seed, struct drill_result *ret_result,
                     bool *ret_usable)
{
    struct round round = {.scene = scene,
                          .deployment = &scene->deployment,
                          .plan = &scene->plan,
                          .fault = fault,
                          .requests = requests,
                          .control = control,
                          .result = ret_result,
                          .random = seed,
                          .load = {.streams = {.inotify = -1}}};
    struct gms_error error;
    uint64_t begun_ns = gms_clock_ns();
    *ret_usable = false;
    memset(ret_result, 0, sizeof *ret_result);
    ret_result->plan = &scene->plan;
    ret_result->ranks = scene->deployment.ranks;
    ret_result->control_ns = control->ns;
    ret_result->inexact = !control->exact;
    memcpy(ret_result->divergence, control->divergence, sizeof ret_result->divergence);
    if ((fault->needs & DRILL_NEED_CUDA) != 0) {
        ret_result->adoption = scene->deployment.attached               ? DRILL_ADOPTION_UNKNOWN
                               : scene->deployment.trusts_broken_device ? DRILL_ADOPTION_ALL
                                                                        : DRILL_ADOPTION_NONE;
        snprintf(ret_result->note, sizeof ret_result->note, "by the deployment file what was sealed before it is %s",
                 scene->deployment.attached               ? "adopted or not"
                 : scene->deployment.trusts_broken_device ? "adopted"
                                                          : "not adopted");
    }
    round.seen.from_engine = round.seen.to_engine = -1;
    if (drill_load_open(requests, scene->deployment.run_dir, draw(&round, requests->count), &round.load, &error) !=
        GMS_OK) {
        ret_result->could_not_run = true;
        drill_result_fail(ret_result, "streams: %s", error.text);
        return;
    }
    bool good = wait_for_moment(&round);
    if (good && fault->outcome != DRILL_OUTCOME_TAKEOVER)
        good = suffer_all(&round) && take_over(&round, &one_rank, 1);
    else if (good)
        good = take_over(&round, fault->strikes, DRILL_STRIKES);
    if (good)
        finish_streams(&round);
    if (good && round.relayed != NULL)
        relayed_good(&round, drill_relayed_finish(round.relayed, &error), &error);
    if (good && round.relayed != NULL)
        snprintf(ret_result->note, sizeof ret_result->note, "%u streams through the relay broken and asked again",
                 drill_relayed_broken(round.relayed));
    drill_relayed_close(round.relayed);
    drill_strike_over(&round.blow);
    if (drill_interrupted()) {
        ret_result->could_not_run = true;
        drill_result_fail(ret_result, "interrupted");
    } else if (!ret_result->unsupported) {
        if (good)
            drill_follow_quiet(&scene->deployment, ret_result);
        gather(&round);
        drill_verdict(ret_result);
    }
    bool went_through = good && drill_streams_finished(&round.load.streams);
    drill_load_close(&round.load);
    ret_result->wall_ns = gms_clock_ns() - begun_ns;
    /* Poisoned blocks were found out and are out of use: the deployment is as good as before. */
    if (ret_result->failure_count > 0 && !(went_through && scene->plan.sabotage == DRILL_SABOTAGE_EACH &&
                                           fault->outcome == DRILL_OUTCOME_TAKEOVER && everybody_is_done(ret_result)))
        return;
    if (ret_result->failure_count > 0)
        drill_blocks_free(&scene->blocks);
    *ret_usable = true;
    scene->serving = (uint32_t)round.seen.to_engine;
    for (uint32_t engine = 0; engine < DRILL_MAX_ENGINES && !scene->deployment.attached; engine++)
        if ((round.excused >> engine & 1) != 0)
            drill_scene_buried(scene, engine);
}
