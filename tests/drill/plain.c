/* SPDX-License-Identifier: Apache-2.0 */
#include "plain.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "follow.h"
#include "load.h"
#include "processes.h"

enum { LOOK_MS = 5, TURN_MS = 20, MOMENT_LEAST = 6, MOMENT_MORE = 12, WORDS = DRILL_COMMAND_WORDS + 24 };

struct plain {
    enum drill_plain kind;
    const struct drill_plan *plan;
    const struct drill_requests *requests;
    const struct drill_control *control;
    const char *dir;
    struct drill_side *side;
    uint64_t random;
    struct drill_processes processes;
    struct drill_process *serving, *standby; /* launchers; borrowed */
    uint64_t incarnation;                    /* of the engine that serves */
    struct drill_load load;
};

static uint32_t draw(struct plain *plain, uint32_t below)
{
    uint64_t z = (plain->random += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return below > 0 ? (uint32_t)((z ^ (z >> 31)) % below) : 0;
}

__attribute__((format(printf, 2, 3))) static bool fail(struct plain *plain, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (plain->side->failure[0] == '\0')
        vsnprintf(plain->side->failure, sizeof plain->side->failure, format, arguments);
    va_end(arguments);
    return false;
}

static uint64_t limit(const struct plain *plain)
{
    return gms_clock_ns() + plain->plan->timeout_s * GMS_NS_PER_S;
}

/* ---------------------------------------------------------------------------------------------- processes ----- */

static struct drill_process *launch(struct plain *plain, uint64_t incarnation)
{
    const char *argv[WORDS];
    char ranks[16], number[24], listen[DRILL_PATH_BYTES], log_dir[DRILL_PATH_BYTES], lock[DRILL_PATH_BYTES];
    char program[DRILL_PATH_BYTES + 16], output[DRILL_PATH_BYTES];
    size_t count = 0;
    snprintf(ranks, sizeof ranks, "%u", plain->plan->ranks);
    snprintf(number, sizeof number, "%llu", (unsigned long long)incarnation);
    snprintf(listen, sizeof listen, "unix:%.490s/e", plain->dir);
    snprintf(log_dir, sizeof log_dir, "%.490s/log", plain->dir);
    snprintf(lock, sizeof lock, "%.490s/lock", plain->dir);
    snprintf(program, sizeof program, "%s/minillm", plain->plan->bin_dir);
    snprintf(output, sizeof output, "%.470s/engine%s.out", plain->dir, number);
    const char *const front[] = {"mpirun", "-n", ranks, "--bind-to", "none", program};
    for (size_t i = 0; i < sizeof front / sizeof front[0]; i++)
        argv[count++] = front[i];
    for (size_t i = 1; plain->plan->command[0] != NULL && plain->plan->command[i] != NULL; i++)
        argv[count++] = plain->plan->command[i];
    const char *const back[] = {"--no-gms",  "--incarnation", number,         "--listen", listen,
                                "--log-dir", log_dir,         "--serve-lock", lock};
    /* Started again after a death there is nobody to wait for. */
    size_t back_count = sizeof back / sizeof back[0] - (plain->kind == DRILL_PLAIN_LOCK ? 0 : 2);
    for (size_t i = 0; i < back_count; i++)
        argv[count++] = back[i];
    argv[count] = NULL;
    struct drill_process *process = NULL;
    struct gms_error error;
    if (drill_process_start(&plain->processes, incarnation % 2 == 0 ? "engine a" : "engine b", output, argv, -1,
                            SIGTERM, &process, &error) != GMS_OK)
        fail(plain, "%s", error.text);
    if (process != NULL)
        process->passes_on = true;
    return process;
}

static bool log_says(const struct plain *plain, uint64_t incarnation, const char *event)
{
    char path[DRILL_PATH_BYTES + 64], text[4096], wanted[32];
    snprintf(path, sizeof path, "%s/log/engine0.%llu.0.log", plain->dir, (unsigned long long)incarnation);
    snprintf(wanted, sizeof wanted, " %.20s", event);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    gms_fd_close(&fd);
    text[length > 0 ? length : 0] = '\0';
    return strstr(text, wanted) != NULL;
}

static bool wait_for(struct plain *plain, struct drill_process *process, uint64_t incarnation, const char *event)
{
    uint64_t deadline_ns = limit(plain);
    char outcome[32];
    while (process != NULL && !log_says(plain, incarnation, event)) {
        drill_processes_check(&plain->processes);
        if (process->ended)
            return fail(plain, "an engine ended before it was %s (%s); %.200s tells why", event,
                        drill_process_outcome(process, outcome, sizeof outcome), process->output);
        if (drill_interrupted() || gms_clock_ns() >= deadline_ns)
            return fail(plain, "waited %u s for an engine to be %s", plain->plan->timeout_s, event);
        poll(NULL, 0, LOOK_MS);
    }
    return process != NULL;
}

/* A pidfd of one of the engine's ranks, drawn; -1: there is none. */
static int find_rank(struct plain *plain)
{
    static pid_t pids[DRILL_MAX_DESCENDANTS];
    pid_t ranks[DRILL_MAX_RANKS];
    size_t all = drill_descendants(plain->serving->pid, pids, DRILL_MAX_DESCENDANTS);
    uint32_t count = 0;
    for (size_t i = 0; i < all && count < DRILL_MAX_RANKS; i++) {
        char path[64], name[32] = "";
        snprintf(path, sizeof path, "/proc/%d/comm", (int)pids[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = fd >= 0 ? read(fd, name, sizeof name - 1) : -1;
        gms_fd_close(&fd);
        if (length > 0 && strcmp(name, "minillm\n") == 0)
            ranks[count++] = pids[i];
    }
    int pidfd = -1;
    if (count != plain->plan->ranks ||
        drill_descendant_open(plain->serving->pid, ranks[draw(plain, count)], &pidfd, NULL) != GMS_OK)
        return -1;
    return pidfd;
}

/* ------------------------------------------------------------------------------------------------ clients ----- */

/* All engines listen at one address, as behind a name; the number tells clients that there is a reason to come again.
 */
static bool publish(struct plain *plain, uint64_t incarnation)
{
    char path[DRILL_PATH_BYTES], text[DRILL_PATH_BYTES + 160];
    struct gms_error error;
    snprintf(path, sizeof path, "%.490s/serving", plain->dir);
    snprintf(text, sizeof text, "{\"engine\":0,\"incarnation\":%llu,\"epoch\":%llu,\"endpoint\":\"unix:%s/e\"}\n",
             (unsigned long long)incarnation, (unsigned long long)incarnation, plain->dir);
    return gms_file_replace(path, text, strlen(text), &error) == GMS_OK || fail(plain, "%s", error.text);
}

static void pump(struct plain *plain, struct pollfd *extra)
{
    drill_load_feed(&plain->load);
    drill_streams_pump(&plain->load.streams, gms_clock_ns() + TURN_MS * GMS_NS_PER_MS, extra, extra != NULL ? 1 : 0);
}

static bool wait_for_moment(struct plain *plain)
{
    uint64_t wanted = (uint64_t)plain->plan->streams * (MOMENT_LEAST + draw(plain, MOMENT_MORE));
    uint64_t deadline_ns = limit(plain);
    while (drill_streams_token_total(&plain->load.streams) < wanted ||
           drill_streams_in_state(&plain->load.streams, DRILL_STREAM_RUNNING) == 0) {
        pump(plain, NULL);
        if (drill_streams_in_state(&plain->load.streams, DRILL_STREAM_FAILED) > 0 || gms_clock_ns() >= deadline_ns)
            return fail(plain, "the streams do not come to %llu tokens before the fault", (unsigned long long)wanted);
    }
    return true;
}

void drill_side_add(struct drill_side *side, const struct drill_stream *stream, const struct drill_stream *control)
{
    bool equal = stream->state == DRILL_STREAM_DONE && stream->token_count == control->token_count;
    for (uint32_t t = 0; t < stream->token_count && t < control->token_count; t++)
        equal = equal && stream->tokens[t].token == control->tokens[t].token;
    side->streams++;
    side->equal += equal;
    if (stream->state == DRILL_STREAM_FAILED && side->failure[0] == '\0')
        snprintf(side->failure, sizeof side->failure, "stream %s: %s", stream->id, stream->error);
    for (uint32_t t = 1; t < stream->token_count; t++)
        if (stream->tokens[t].incarnation != stream->tokens[t - 1].incarnation)
            drill_numbers_add(&side->gaps, (int64_t)(stream->tokens[t].at_ns - stream->tokens[t - 1].at_ns));
    if (stream->resumes > 0) {
        side->prompt_tokens += stream->prompt_tokens;
        side->cached_tokens += stream->cached_tokens;
        side->salvaged_tokens += stream->salvaged_tokens;
        side->computed_tokens += stream->computed_tokens;
        if (stream->resent_tokens > 0)
            drill_numbers_add(&side->again, (int64_t)stream->computed_tokens);
    }
}

static void account(struct plain *plain, uint64_t signal_ns, const struct drill_stream *probe)
{
    uint64_t first_ns = drill_streams_first_token(&plain->load.streams, plain->incarnation + 1);
    if (first_ns != 0)
        drill_numbers_add(&plain->side->first_tokens, (int64_t)(first_ns - signal_ns));
    if (probe->state == DRILL_STREAM_DONE)
        drill_numbers_add(&plain->side->new_requests, (int64_t)(probe->done_ns - signal_ns));
    for (size_t i = 0; i < plain->load.streams.count; i++) {
        const struct drill_stream *stream = &plain->load.streams.items[i];
        drill_side_add(plain->side, stream, &plain->control->first.items[stream->control]);
    }
}

/* ------------------------------------------------------------------------------------------------ failover ---- */

/* Until every stream goes on with the next engine. */
static bool wait_for_successor(struct plain *plain, const struct drill_stream *probe)
{
    uint64_t deadline_ns = limit(plain);
    for (;;) {
        bool cold = plain->kind == DRILL_PLAIN_COLD && plain->standby == NULL;
        struct pollfd end = {.fd = cold ? plain->serving->pidfd : -1, .events = POLLIN};
        pump(plain, &end);
        drill_processes_check(&plain->processes);
        /* As soon as the launcher is over: the quickest that a supervisor can be. */
        if (cold && plain->serving->ended && (plain->standby = launch(plain, plain->incarnation + 1)) == NULL)
            return false;
        bool settled = probe->state == DRILL_STREAM_DONE || probe->state == DRILL_STREAM_FAILED;
        if (settled && drill_follow_resumed(&plain->load.streams, plain->incarnation))
            return true;
        if (drill_interrupted() || gms_clock_ns() >= deadline_ns)
            return fail(plain, "waited %u s for the streams to go on", plain->plan->timeout_s);
    }
}

static bool fail_over(struct plain *plain)
{
    plain->serving->asked_to_end = true;
    int victim = -1;
    if (!wait_for_moment(plain))
        return false;
    struct drill_stream *probe = drill_load_probe(&plain->load);
    if (probe == NULL || (victim = find_rank(plain)) < 0)
        return fail(plain, "the ranks of the serving engine cannot be found");
    plain->load.streams.killed_incarnation = plain->incarnation;
    uint64_t signal_ns = gms_clock_ns();
    gms_pidfd_signal(victim, SIGKILL);
    gms_fd_close(&victim);
    drill_stream_start(probe);
    if (!publish(plain, plain->incarnation + 1) || !wait_for_successor(plain, probe))
        return false;
    plain->load.closing = true;
    for (uint64_t deadline_ns = limit(plain); !drill_streams_finished(&plain->load.streams);) {
        pump(plain, NULL);
        if (drill_interrupted() || gms_clock_ns() >= deadline_ns)
            return fail(plain, "waited %u s for the streams to end", plain->plan->timeout_s);
    }
    account(plain, signal_ns, probe);
    plain->side->failovers++;
    plain->incarnation++;
    drill_process_wait(plain->serving, limit(plain));
    plain->serving = plain->standby;
    plain->standby = NULL;
    return true;
}

static bool one_failover(struct plain *plain)
{
    struct gms_error error;
    if (plain->kind == DRILL_PLAIN_LOCK) {
        plain->standby = launch(plain, plain->incarnation + 1);
        if (!wait_for(plain, plain->standby, plain->incarnation + 1, "parked"))
            return false;
    }
    if (!publish(plain, plain->incarnation))
        return false;
    bool good = drill_load_open(plain->requests, plain->dir, draw(plain, plain->requests->count), &plain->load,
                                &error) == GMS_OK ||
                fail(plain, "%s", error.text);
    good = good && fail_over(plain);
    drill_load_close(&plain->load);
    return good;
}

void drill_plain_run(enum drill_plain kind, const struct drill_requests *requests, const struct drill_control *control,
                     const char *dir, uint64_t seed, struct drill_side *ret_side)
{
    char log_dir[DRILL_PATH_BYTES];
    struct plain plain = {.kind = kind,
                          .plan = requests->plan,
                          .requests = requests,
                          .control = control,
                          .dir = dir,
                          .side = ret_side,
                          .random = seed,
                          .incarnation = 1,
                          .load = {.streams = {.inotify = -1}}};
    snprintf(log_dir, sizeof log_dir, "%.490s/log", dir);
    if (mkdir(dir, 0700) != 0 || mkdir(log_dir, 0700) != 0) {
        fail(&plain, "%s cannot be made: %s", dir, strerror(errno));
        return;
    }
    plain.serving = launch(&plain, plain.incarnation);
    bool good = wait_for(&plain, plain.serving, plain.incarnation, "serving");
    for (uint32_t i = 0; i < plain.plan->repeat && good; i++)
        good = one_failover(&plain);
    drill_processes_end(&plain.processes, 3000);
}
