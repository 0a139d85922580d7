/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "deployment.h"
#include "fault.h"
#include "follow.h"
#include "logs.h"
#include "measure.h"
#include "requests.h"
#include "scratch.h"
#include "streams.h"

struct run {
    const struct drill_plan *plan;
    struct drill_result *result;
    FILE *progress;
    uint64_t started_ns;
    struct drill_scratch scratch;
    struct drill_requests requests;
    struct drill_control control;
    struct drill_deployment deployment;
    struct drill_streams streams;
    size_t probe_from;
    struct drill_observation observations[DRILL_MAX_FAILOVERS];
    struct drill_logs logs;
};

__attribute__((format(printf, 2, 3))) static void say(const struct run *run, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(run->progress, "[%6.1f s] ", (double)(gms_clock_ns() - run->started_ns) / 1e9);
    vfprintf(run->progress, format, arguments);
    fputc('\n', run->progress);
    fflush(run->progress);
    va_end(arguments);
}

static void could_not(struct run *run, const char *what, const struct gms_error *error)
{
    run->result->could_not_run = true;
    drill_result_fail(run->result, "%s: %s", what, error->text);
}

static uint64_t limit(const struct run *run)
{
    return gms_clock_ns() + run->plan->timeout_s * GMS_NS_PER_S;
}

/* -------------------------------------------------------------------------------------------- preparation ----- */

static gms_status open_streams(struct run *run, struct gms_error *ret_error)
{
    const struct drill_plan *plan = run->plan;
    gms_status status =
        drill_streams_open(run->deployment.run_dir, plan->streams + plan->repeat, &run->streams, ret_error);
    for (uint32_t i = 0; i < plan->streams + plan->repeat && status == GMS_OK; i++) {
        char id[16];
        snprintf(id, sizeof id, "%c%u", i >= plan->streams ? 'p' : 's', i >= plan->streams ? i - plan->streams : i);
        if (drill_requests_add(&run->requests, i, id, &run->streams) == NULL)
            status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for stream %s", id);
    }
    run->probe_from = plan->streams;
    return status;
}

static void note_control(struct run *run)
{
    run->result->control_ns = run->control.ns;
    run->result->inexact = !run->control.exact;
    memcpy(run->result->divergence, run->control.divergence, sizeof run->result->divergence);
    say(run, "two control runs: %zu streams, %llu tokens each, in %.1f s; %s", run->control.first.count,
        (unsigned long long)drill_streams_token_total(&run->control.first), (double)run->control.ns / 1e9,
        run->control.exact ? "equal" : run->control.divergence);
}

/* ----------------------------------------------------------------------------------------- the deployment ----- */

static gms_status start_engine(struct run *run, uint32_t engine, const char *role, struct gms_error *ret_error)
{
    gms_status status = drill_deployment_launch(&run->deployment, engine, ret_error);
    if (status == GMS_OK)
        status = drill_deployment_wait(&run->deployment, engine, role, 0, run->plan->timeout_s, ret_error);
    if (status == GMS_OK)
        say(run, "engine %u is %s on all ranks, incarnation %llu, pids %d%s", engine, role,
            (unsigned long long)run->deployment.engines[engine].incarnation, run->deployment.engines[engine].pids[0],
            run->deployment.ranks > 1 ? ", ..." : "");
    return status;
}

static gms_status start_deployment(struct run *run, struct gms_error *ret_error)
{
    char dir[DRILL_PATH_BYTES];
    snprintf(dir, sizeof dir, "%.500s/d", run->scratch.work_dir);
    gms_status status =
        drill_deployment_start(run->plan, dir, run->scratch.shared_dir, "fault", &run->deployment, ret_error);
    if (status != GMS_OK)
        return status;
    say(run, "keeper and %u coordinator ranks are up", run->deployment.ranks);
    status = start_engine(run, 0, "serving", ret_error);
    for (uint32_t engine = 1; engine < run->plan->engines && status == GMS_OK; engine++)
        if (run->plan->sabotage == DRILL_SABOTAGE_NONE)
            status = start_engine(run, engine, "parked", ret_error);
    return status;
}

/* ------------------------------------------------------------------------------------------------- fault ------ */

/* Engines that were killed may have ended, all others of ours may not. */
static uint32_t excused_engines(const struct run *run, uint32_t failovers)
{
    uint32_t excused = 0;
    for (uint32_t i = 0; i < failovers; i++)
        if (run->observations[i].from_engine >= 0)
            excused |= 1u << run->observations[i].from_engine;
    return excused;
}

/* Streams until it is time for fault `index`. False: it cannot be made. */
static bool wait_for_moment(struct run *run, uint32_t index)
{
    uint64_t wanted = drill_plan_fault_tokens(run->plan, index), deadline_ns = limit(run), before = 0;
    uint64_t last_incarnation = index > 0 ? run->observations[index - 1].from_incarnation : 0;
    for (;;) {
        uint64_t total = drill_streams_token_total(&run->streams);
        if (total >= wanted && drill_follow_resumed(&run->streams, last_incarnation))
            break;
        if (drill_streams_finished(&run->streams))
            break;
        if (total != before)
            deadline_ns = limit(run);
        before = total;
        if (gms_clock_ns() >= deadline_ns) {
            drill_result_fail(run->result,
                              "failover %u: waited %u s for the next token of any stream, %llu of %llu had come",
                              index + 1, run->plan->timeout_s, (unsigned long long)total, (unsigned long long)wanted);
            return false;
        }
        drill_follow_pump(&run->deployment, &run->streams, NULL);
        struct gms_error error;
        if (drill_deployment_check(&run->deployment, excused_engines(run, index), &error) != GMS_OK) {
            drill_result_fail(run->result, "before failover %u: %s", index + 1, error.text);
            return false;
        }
    }
    if (drill_streams_in_state(&run->streams, DRILL_STREAM_RUNNING) == 0) {
        drill_result_fail(run->result,
                          "failover %u: no stream was running when the fault was due; give more --max-tokens",
                          index + 1);
        return false;
    }
    return true;
}

/* Between the death of the primary and the start of its successor. */
static bool do_sabotage(struct run *run, struct drill_observation *seen)
{
    const struct drill_plan *plan = run->plan;
    struct gms_error error;
    if (drill_deployment_wait(&run->deployment, (uint32_t)seen->from_engine, NULL, seen->from_incarnation,
                              plan->timeout_s, &error) != GMS_OK ||
        drill_sabotage(plan, &run->deployment.status[plan->sabotage_rank], seen->from_incarnation, &seen->damage,
                       &error) != GMS_OK) {
        could_not(run, "sabotage", &error);
        return false;
    }
    bool noticed = plan->sabotage != DRILL_SABOTAGE_POISON_PAGE || run->deployment.verify_full;
    seen->spoiled = noticed ? seen->damage.blocks : 0;
    say(run, "sabotage: %s, %u of %u sealed blocks on rank %d, in %u chains", drill_sabotage_name(plan->sabotage),
        seen->damage.blocks, seen->damage.sealed, plan->sabotage_rank, seen->damage.chains);
    if (drill_deployment_launch(&run->deployment, 1, &error) != GMS_OK) {
        could_not(run, "the successor", &error);
        return false;
    }
    return true;
}

static bool wait_for_successor(struct run *run, struct drill_observation *seen, uint32_t index)
{
    struct drill_stream *probe = &run->streams.items[run->probe_from + index];
    uint64_t deadline_ns = limit(run);
    bool sabotaged = run->plan->sabotage == DRILL_SABOTAGE_NONE;
    for (;;) {
        drill_follow_pump(&run->deployment, &run->streams, seen);
        bool dead = false;
        for (uint32_t rank = 0; rank < run->deployment.ranks; rank++)
            dead |= seen->killed[rank] && seen->ended_ns[rank] != 0;
        if (dead && probe->state == DRILL_STREAM_HELD) {
            drill_stream_start(probe);
            seen->probe = probe;
        }
        if (dead && !sabotaged) {
            if (!do_sabotage(run, seen))
                return false;
            sabotaged = true;
            deadline_ns = limit(run);
        }
        bool settled = probe->state == DRILL_STREAM_DONE || probe->state == DRILL_STREAM_FAILED;
        if (drill_follow_succeeded(&run->streams, seen->from_incarnation) && settled &&
            drill_follow_resumed(&run->streams, seen->from_incarnation))
            return true;
        struct gms_error error;
        if (drill_deployment_check(&run->deployment, excused_engines(run, index + 1), &error) != GMS_OK) {
            drill_result_fail(run->result, "during failover %u: %s", index + 1, error.text);
            return false;
        }
        if (gms_clock_ns() < deadline_ns)
            continue;
        drill_result_fail(
            run->result,
            "failover %u: waited %u s; %s; %zu streams wait for an endpoint, %zu for a first word; new request %s",
            index + 1, run->plan->timeout_s,
            !dead                                                           ? "the fault did not happen"
            : drill_follow_succeeded(&run->streams, seen->from_incarnation) ? "a successor serves"
                                                                            : "no successor serves",
            drill_streams_in_state(&run->streams, DRILL_STREAM_WAITING),
            drill_streams_in_state(&run->streams, DRILL_STREAM_GREETING), settled ? "answered" : "not answered");
        return false;
    }
}

/* One failover. False: no use in going on. */
static bool fail_over(struct run *run, uint32_t index)
{
    struct drill_observation *seen = &run->observations[index];
    struct gms_error error;
    seen->from_engine = seen->to_engine = -1;
    if (!wait_for_moment(run, index))
        return false;
    seen->from_engine = run->streams.serving.engine;
    seen->from_incarnation = run->streams.serving.incarnation;
    if (seen->from_engine < 0 || seen->from_engine >= DRILL_MAX_ENGINES ||
        run->deployment.engines[seen->from_engine].incarnation != seen->from_incarnation) {
        drill_result_fail(run->result,
                          "failover %u: the serving file names engine %d incarnation %llu, the drill knows %llu",
                          index + 1, seen->from_engine, (unsigned long long)seen->from_incarnation,
                          (unsigned long long)(seen->from_engine >= 0 && seen->from_engine < DRILL_MAX_ENGINES
                                                   ? run->deployment.engines[seen->from_engine].incarnation
                                                   : 0));
        return false;
    }
    seen->tokens_before = drill_streams_token_total(&run->streams);
    run->streams.killed_incarnation = seen->from_incarnation;
    if (drill_fault_make(run->plan, &run->deployment, run->streams.serving.endpoint, seen, &error) != GMS_OK) {
        drill_result_fail(run->result, "failover %u: the fault could not be made: %s", index + 1, error.text);
        return false;
    }
    seen->injected = true;
    struct drill_stream *probe = &run->streams.items[run->probe_from + index];
    if (!drill_plan_armed(run->plan)) { /* opened in the very moment of the fault */
        drill_stream_start(probe);
        seen->probe = probe;
    }
    if (run->plan->when == DRILL_WHEN_PREFILL)
        drill_stream_start(&run->streams.items[run->plan->streams - 1 - index]);
    say(run, "failover %u: SIGKILL %s engine %d after %llu tokens", index + 1,
        drill_plan_armed(run->plan) ? "armed in" : "sent to", seen->from_engine,
        (unsigned long long)seen->tokens_before);
    if (!wait_for_successor(run, seen, index))
        return false;
    seen->to_engine = run->streams.serving.engine;
    seen->to_incarnation = run->streams.serving.incarnation;
    seen->completed = true;
    if (drill_deployment_wait(&run->deployment, (uint32_t)seen->to_engine, "serving", 0, run->plan->timeout_s,
                              &error) != GMS_OK ||
        drill_deployment_agree(&run->deployment, &error) != GMS_OK) {
        drill_result_fail(run->result, "after failover %u: %s", index + 1, error.text);
        return false;
    }
    drill_follow_check(&run->deployment, &run->streams, index + 1, seen->to_incarnation, run->result);
    say(run, "failover %u: engine %d serves, all streams go on", index + 1, seen->to_engine);
    return true;
}

static void run_faults(struct run *run)
{
    const struct drill_plan *plan = run->plan;
    struct gms_error error;
    uint32_t held = plan->when == DRILL_WHEN_PREFILL ? plan->repeat : 0;
    for (uint32_t i = 0; i < plan->streams - held; i++)
        drill_stream_start(&run->streams.items[i]);
    say(run, "%u streams of %u tokens are open", plan->streams - held, plan->max_tokens);
    uint32_t made = 0;
    while (made < plan->repeat && fail_over(run, made))
        made++;
    if (run->result->failure_count > 0 && made < plan->repeat)
        return;
    uint64_t deadline_ns = limit(run), before = 0;
    while (!drill_streams_finished(&run->streams)) {
        drill_follow_pump(&run->deployment, &run->streams, made > 0 ? &run->observations[made - 1] : NULL);
        uint64_t total = drill_streams_token_total(&run->streams);
        if (total != before)
            deadline_ns = limit(run);
        before = total;
        if (drill_deployment_check(&run->deployment, excused_engines(run, made), &error) != GMS_OK) {
            drill_result_fail(run->result, "after the last failover: %s", error.text);
            return;
        }
        if (gms_clock_ns() >= deadline_ns) {
            drill_result_fail(run->result, "waited %u s for the next token of any stream", plan->timeout_s);
            return;
        }
    }
    say(run, "all streams have ended");
    drill_follow_quiet(&run->deployment, run->result);
}

/* ----------------------------------------------------------------------------------------------- evidence ----- */

static void gather(struct run *run)
{
    struct gms_error error;
    gms_status status = drill_deployment_agree(&run->deployment, &error);
    bool have_status = status == GMS_OK || status == GMS_E_MISMATCH;
    if (status != GMS_OK)
        drill_result_fail(run->result, "the ranks' status at the end: %s", error.text);
    bool have_logs = drill_logs_read(run->deployment.log_dir, &run->logs, &error) == GMS_OK;
    if (!have_logs)
        drill_result_fail(run->result, "%s", error.text);
    else if (drill_logs_check_overlap(&run->logs, &error) != GMS_OK)
        drill_result_fail(run->result, "%s", error.text);
    struct drill_evidence evidence = {
        .ranks = run->deployment.ranks,
        .repeat = run->plan->repeat,
        .observations = run->observations,
        .streams = &run->streams,
        .control = &run->control.first,
        .status = have_status ? run->deployment.status : NULL,
        .logs = have_logs ? &run->logs : NULL,
    };
    drill_measure(&evidence, run->result);
}

static void run_all(struct run *run)
{
    struct gms_error error;
    bool attach = run->plan->attach[0] != '\0';
    if (drill_requests_open(run->plan, run->plan->streams, run->plan->repeat, &run->requests, &error) != GMS_OK ||
        drill_processes_prepare(&error) != GMS_OK ||
        (!attach && drill_scratch_make(run->plan->work_dir, &run->scratch, &error) != GMS_OK)) {
        could_not(run, "preparation", &error);
        return;
    }
    if (!attach) {
        say(run, "control run: a deployment of its own, %u ranks", run->plan->ranks);
        if (drill_control_run(&run->requests, run->scratch.work_dir, run->scratch.shared_dir, &run->control, &error) !=
            GMS_OK) {
            could_not(run, "control run", &error);
            return;
        }
        note_control(run);
    }
    if ((attach ? drill_deployment_attach(run->plan, &run->deployment, &error) : start_deployment(run, &error)) !=
        GMS_OK) {
        could_not(run, "deployment", &error);
        return;
    }
    if (attach) {
        if (drill_control_stream(&run->requests, &run->deployment, &run->control, &error) != GMS_OK) {
            could_not(run, "control run", &error);
            return;
        }
        note_control(run);
    }
    if (open_streams(run, &error) != GMS_OK) {
        could_not(run, "streams", &error);
        return;
    }
    run_faults(run);
    run->result->could_not_run |= drill_interrupted();
    if (!run->result->could_not_run)
        gather(run);
}

void drill_run(const struct drill_plan *plan, FILE *progress, struct drill_result *ret_result)
{
    memset(ret_result, 0, sizeof *ret_result);
    ret_result->plan = plan;
    ret_result->ranks = plan->ranks;
    struct run *run = calloc(1, sizeof *run);
    if (run == NULL) {
        ret_result->could_not_run = true;
        drill_result_fail(ret_result, "no memory");
        return;
    }
    run->plan = plan;
    run->result = ret_result;
    run->progress = progress;
    run->started_ns = gms_clock_ns();
    run->streams.inotify = -1;
    drill_control_init(&run->control);
    run_all(run);
    size_t left = drill_deployment_stop(&run->deployment);
    if (left > 0)
        say(run, "%zu processes had to be killed at the end", left);
    drill_streams_close(&run->streams);
    drill_control_close(&run->control);
    drill_logs_free(&run->logs);
    drill_requests_close(&run->requests);
    ret_result->wall_ns = gms_clock_ns() - run->started_ns;
    drill_scratch_drop_shared(&run->scratch);
    memcpy(ret_result->work_dir, run->scratch.work_dir, sizeof ret_result->work_dir);
    free(run);
}
