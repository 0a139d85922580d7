/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "deployment.h"
#include "fault.h"
#include "logs.h"
#include "measure.h"
#include "prompts.h"
#include "streams.h"

static const char *const probe_prompts[DRILL_MAX_FAILOVERS] = {
    "A visitor who arrives in the middle asks: is this place open?",
    "By the way, a new customer has just come in and would like a table.",
    "Could somebody who has not waited yet be served now, please?",
    "During the repair a bicycle stops at the barrier and rings.",
    "Even the last train takes one more passenger. Who is it?",
    "Fresh from the street, a courier with one small parcel says:",
    "Good evening, I have no ticket yet. Where does one begin?",
};

struct run {
    const struct drill_plan *plan;
    struct drill_result *result;
    FILE *progress;
    uint64_t started_ns;
    char work_dir[DRILL_PATH_BYTES], shared_dir[DRILL_PATH_BYTES];
    bool made_work_dir;
    struct drill_prompts prompts;
    char *long_prompts[DRILL_MAX_STREAMS]; /* owned; prompts that are used again, made different */
    struct drill_deployment deployment, control_deployment;
    struct drill_streams streams, control;
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

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static gms_status make_work_dir(struct run *run, struct gms_error *ret_error)
{
    if (run->plan->work_dir[0] != '\0') {
        if (mkdir(run->plan->work_dir, 0700) != 0 && errno != EEXIST)
            return gms_fail(ret_error, GMS_E_SYSTEM, "--work-dir %s: %s", run->plan->work_dir, strerror(errno));
        if (rmdir(run->plan->work_dir) != 0 || mkdir(run->plan->work_dir, 0700) != 0)
            return gms_fail(ret_error, GMS_E_EXISTS, "--work-dir %s is not an empty directory: %s", run->plan->work_dir,
                            strerror(errno));
        if (realpath(run->plan->work_dir, run->work_dir) == NULL)
            return gms_fail(ret_error, GMS_E_SYSTEM, "--work-dir %s: %s", run->plan->work_dir, strerror(errno));
    } else {
        const char *base = getenv("TMPDIR");
        if (base == NULL || base[0] != '/' || strlen(base) > 40) /* sockets with short paths live below */
            base = "/tmp";
        snprintf(run->work_dir, sizeof run->work_dir, "%s/gms-drill-XXXXXX", base);
        if (mkdtemp(run->work_dir) == NULL)
            return gms_fail(ret_error, GMS_E_SYSTEM, "%s cannot be made: %s", run->work_dir, strerror(errno));
    }
    run->made_work_dir = true;
    snprintf(run->shared_dir, sizeof run->shared_dir, "/dev/shm/gms-drill-XXXXXX");
    if (mkdtemp(run->shared_dir) == NULL)
        memcpy(run->shared_dir, run->work_dir, sizeof run->shared_dir);
    return GMS_OK;
}

/* The text of stream `index`: when there are more streams than prompts, later rounds get another beginning. */
static const char *prompt_of(struct run *run, uint32_t index)
{
    const char *prompt = run->prompts.items[index % run->prompts.count];
    size_t round = index / run->prompts.count;
    if (round == 0)
        return prompt;
    if (run->long_prompts[index] == NULL) {
        size_t bytes = strlen(prompt) + 32;
        if ((run->long_prompts[index] = malloc(bytes)) != NULL)
            snprintf(run->long_prompts[index], bytes, "(%zu) %s", round + 1, prompt);
    }
    return run->long_prompts[index];
}

static gms_status open_streams(struct run *run, const char *run_dir, struct drill_streams *ret_streams,
                               struct gms_error *ret_error)
{
    const struct drill_plan *plan = run->plan;
    gms_status status = drill_streams_open(run_dir, plan->streams + plan->repeat, ret_streams, ret_error);
    for (uint32_t i = 0; i < plan->streams + plan->repeat && status == GMS_OK; i++) {
        bool probe = i >= plan->streams;
        char id[16];
        snprintf(id, sizeof id, "%c%u", probe ? 'p' : 's', probe ? i - plan->streams : i);
        const char *prompt = probe ? probe_prompts[i - plan->streams] : prompt_of(run, i);
        if (prompt == NULL || drill_streams_add(ret_streams, id, prompt, plan->seed + i, plan->temperature,
                                                probe ? DRILL_PROBE_TOKENS : plan->max_tokens) == NULL)
            status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for stream %s", id);
    }
    run->probe_from = plan->streams;
    return status;
}

/* ------------------------------------------------------------------------------------------------ control ----- */

/* All requests, undisturbed. */
static gms_status stream_control(struct run *run, struct drill_deployment *deployment, struct gms_error *ret_error)
{
    uint64_t begun_ns = gms_clock_ns(), news_ns = begun_ns, before = 0;
    for (size_t i = 0; i < run->control.count; i++)
        drill_stream_start(&run->control.items[i]);
    while (!drill_streams_finished(&run->control)) {
        drill_streams_pump(&run->control, gms_clock_ns() + 200 * GMS_NS_PER_MS, NULL, 0);
        gms_status status = drill_deployment_check(deployment, 0, ret_error);
        if (status != GMS_OK)
            return status;
        uint64_t total = drill_streams_token_total(&run->control);
        if (total != before) {
            before = total;
            news_ns = gms_clock_ns();
        }
        if (gms_clock_ns() - news_ns > run->plan->timeout_s * GMS_NS_PER_S)
            return gms_fail(
                ret_error, GMS_E_TIMEOUT, "waited %u s for the next token of any stream; %zu of %zu are complete",
                run->plan->timeout_s, drill_streams_in_state(&run->control, DRILL_STREAM_DONE), run->control.count);
    }
    for (size_t i = 0; i < run->control.count; i++)
        if (run->control.items[i].state != DRILL_STREAM_DONE)
            return gms_fail(ret_error, GMS_E_REFUSED, "stream %s: %s", run->control.items[i].id,
                            run->control.items[i].error);
    run->result->control_ns = gms_clock_ns() - begun_ns;
    say(run, "control run: %zu streams, %llu tokens in %.1f s", run->control.count,
        (unsigned long long)drill_streams_token_total(&run->control), (double)run->result->control_ns / 1e9);
    return GMS_OK;
}

static gms_status run_control_apart(struct run *run, struct gms_error *ret_error)
{
    char dir[DRILL_PATH_BYTES];
    snprintf(dir, sizeof dir, "%.500s/c", run->work_dir);
    struct drill_deployment *deployment = &run->control_deployment;
    say(run, "control run: a deployment of its own, %u ranks", run->plan->ranks);
    gms_status status = drill_deployment_start(run->plan, dir, run->shared_dir, "control", deployment, ret_error);
    if (status != GMS_OK)
        return status;
    status = drill_deployment_launch(deployment, 0, ret_error);
    if (status == GMS_OK)
        status = drill_deployment_wait(deployment, 0, "serving", 0, run->plan->timeout_s, ret_error);
    if (status == GMS_OK)
        status = open_streams(run, deployment->run_dir, &run->control, ret_error);
    if (status == GMS_OK)
        status = stream_control(run, deployment, ret_error);
    drill_deployment_stop(deployment);
    return status;
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
    snprintf(dir, sizeof dir, "%.500s/d", run->work_dir);
    gms_status status = drill_deployment_start(run->plan, dir, run->shared_dir, "fault", &run->deployment, ret_error);
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

/* Who answers at the endpoint must be who the status says, by the kernel's word. */
static void check_readiness(struct run *run, uint32_t number, uint64_t incarnation)
{
    const struct drill_status *status = &run->deployment.status[0];
    const struct drill_status_engine *engine =
        status->serving_engine >= 0 ? drill_status_engine(status, (uint32_t)status->serving_engine) : NULL;
    if (engine == NULL || status->serving_incarnation != incarnation) {
        drill_result_fail(run->result, "after failover %u: clients are served by incarnation %llu, status names %llu",
                          number, (unsigned long long)incarnation, (unsigned long long)status->serving_incarnation);
        return;
    }
    size_t proven = 0;
    for (size_t i = 0; i < run->streams.count; i++) {
        const struct drill_greeting *greeting = &run->streams.items[i].greeting;
        if (greeting->incarnation != incarnation)
            continue;
        if (greeting->peer_pid == engine->pid && greeting->namespaced_pid_fits && greeting->epoch == status->epoch &&
            greeting->engine == engine->engine) {
            proven++;
            continue;
        }
        drill_result_fail(
            run->result,
            "after failover %u: stream %s is not proven to talk to the serving engine: the socket belongs to pid "
            "%d, status says pid %d; hello says engine %u, pid %d (%s), epoch %llu, status engine %u, epoch %llu",
            number, run->streams.items[i].id, (int)greeting->peer_pid, engine->pid, greeting->engine,
            greeting->claimed_pid, greeting->namespaced_pid_fits ? "fits" : "does not fit the owner",
            (unsigned long long)greeting->epoch, engine->engine, (unsigned long long)status->epoch);
        return;
    }
    if (proven == 0)
        drill_result_fail(run->result,
                          "after failover %u: no client spoke to incarnation %llu, so its readiness is not proven",
                          number, (unsigned long long)incarnation);
}

static bool interrupted_all_resumed(const struct run *run, uint64_t from_incarnation)
{
    for (size_t i = 0; i < run->streams.count; i++) {
        const struct drill_stream *stream = &run->streams.items[i];
        if (stream->state == DRILL_STREAM_HELD || stream->state == DRILL_STREAM_DONE ||
            stream->state == DRILL_STREAM_FAILED)
            continue;
        if (stream->token_count == 0 || stream->tokens[stream->token_count - 1].incarnation <= from_incarnation)
            return false;
    }
    return true;
}

/* Pumps the streams once and notes which ranks of the engine under fault have ended. */
static void pump(struct run *run, struct drill_observation *seen)
{
    struct pollfd ends[DRILL_MAX_RANKS];
    size_t count = 0;
    if (seen != NULL && seen->from_engine >= 0) {
        const struct drill_engine *engine = &run->deployment.engines[seen->from_engine];
        for (; count < run->deployment.ranks; count++)
            ends[count] =
                (struct pollfd){.fd = seen->ended_ns[count] == 0 ? engine->pidfds[count] : -1, .events = POLLIN};
    }
    drill_streams_pump(&run->streams, gms_clock_ns() + 200 * GMS_NS_PER_MS, ends, count);
    uint64_t now_ns = gms_clock_ns();
    for (size_t rank = 0; seen != NULL && rank < count; rank++)
        if (ends[rank].revents != 0)
            seen->ended_ns[rank] = now_ns;
}

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
        if (total >= wanted && interrupted_all_resumed(run, last_incarnation))
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
        pump(run, NULL);
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
        pump(run, seen);
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
        if (run->streams.serving.incarnation > seen->from_incarnation && settled &&
            interrupted_all_resumed(run, seen->from_incarnation))
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
            !dead                                                       ? "the fault did not happen"
            : run->streams.serving.incarnation > seen->from_incarnation ? "a successor serves"
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
    check_readiness(run, index + 1, seen->to_incarnation);
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
        pump(run, made > 0 ? &run->observations[made - 1] : NULL);
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
        .control = &run->control,
        .probe_from = run->probe_from,
        .status = have_status ? run->deployment.status : NULL,
        .logs = have_logs ? &run->logs : NULL,
    };
    drill_measure(&evidence, run->result);
}

static void run_all(struct run *run)
{
    struct gms_error error;
    bool attach = run->plan->attach[0] != '\0';
    if (drill_prompts_read(run->plan->prompts, &run->prompts, &error) != GMS_OK ||
        drill_processes_prepare(&error) != GMS_OK || (!attach && make_work_dir(run, &error) != GMS_OK)) {
        could_not(run, "preparation", &error);
        return;
    }
    if (!attach && run_control_apart(run, &error) != GMS_OK) {
        could_not(run, "control run", &error);
        return;
    }
    if ((attach ? drill_deployment_attach(run->plan, &run->deployment, &error) : start_deployment(run, &error)) !=
        GMS_OK) {
        could_not(run, "deployment", &error);
        return;
    }
    if (attach && (open_streams(run, run->deployment.run_dir, &run->control, &error) != GMS_OK ||
                   stream_control(run, &run->deployment, &error) != GMS_OK)) {
        could_not(run, "control run", &error);
        return;
    }
    if (open_streams(run, run->deployment.run_dir, &run->streams, &error) != GMS_OK) {
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
    run->streams.inotify = run->control.inotify = -1;
    run_all(run);
    size_t left = drill_deployment_stop(&run->deployment);
    if (left > 0)
        say(run, "%zu processes had to be killed at the end", left);
    drill_streams_close(&run->streams);
    drill_streams_close(&run->control);
    drill_logs_free(&run->logs);
    drill_prompts_free(&run->prompts);
    for (size_t i = 0; i < DRILL_MAX_STREAMS; i++)
        free(run->long_prompts[i]);
    ret_result->wall_ns = gms_clock_ns() - run->started_ns;
    if (run->made_work_dir && strcmp(run->shared_dir, run->work_dir) != 0)
        nftw(run->shared_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    snprintf(ret_result->work_dir, sizeof ret_result->work_dir, "%s", run->made_work_dir ? run->work_dir : "");
    free(run);
}

void drill_run_clean(const struct drill_result *result)
{
    if (result->work_dir[0] != '\0')
        nftw(result->work_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
