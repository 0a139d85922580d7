/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-token-drill: are the tokens of a deployment on several hosts those of an undisturbed run?
 *
 *   gms-token-drill RUN_DIR [--streams N] [--max-tokens N] [--timeout SECONDS] -- COMMAND...
 *
 * Every prompt is streamed twice undisturbed from whoever serves; then all are streamed again, COMMAND is run when a
 * third of the tokens has come, and every token is compared. COMMAND does the harm, wherever that is: gms-failover-test
 * does its own, and sees engine ranks of one host only. RUN_DIR is rank 0's, on this host.
 *
 * Exit status: 0 all tokens equal and another engine gave the last of them; 1 not; 2 it could not be tried; 64 usage.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "requests.h"

enum { PASSED, FAILED, NOT_TRIED, USAGE = 64 };

static int usage(const char *why)
{
    fprintf(stderr,
            "gms-token-drill: %s; usage: gms-token-drill RUN_DIR [--streams N] [--max-tokens N] [--timeout SECONDS] -- "
            "COMMAND...\n",
            why);
    return USAGE;
}

/* Fills the plan in. NULL: what is wrong. */
static const char *parse(int argc, char **argv, struct drill_plan *ret_plan, char ***ret_command,
                         struct gms_error *ret_error)
{
    int at = 2;
    drill_plan_defaults(ret_plan);
    ret_plan->streams = 4;
    if (argc < 2 || strlen(argv[1]) >= sizeof ret_plan->attach)
        return "no run directory";
    snprintf(ret_plan->attach, sizeof ret_plan->attach, "%s", argv[1]);
    for (; at + 1 < argc && strcmp(argv[at], "--") != 0; at += 2) {
        uint64_t value;
        bool streams = strcmp(argv[at], "--streams") == 0, tokens = strcmp(argv[at], "--max-tokens") == 0;
        if (!streams && !tokens && strcmp(argv[at], "--timeout") != 0)
            return "unknown option";
        if (drill_number_parse(argv[at], argv[at + 1], 1, streams ? DRILL_MAX_STREAMS : DRILL_MAX_TOKENS, &value,
                               ret_error) != GMS_OK)
            return ret_error->text;
        *(streams ? &ret_plan->streams : tokens ? &ret_plan->max_tokens : &ret_plan->timeout_s) = (uint32_t)value;
    }
    if (at + 1 >= argc)
        return "no command";
    *ret_command = argv + at + 1;
    return drill_plan_complete(ret_plan, ret_error) == GMS_OK ? NULL : ret_error->text;
}

/* Runs COMMAND and waits for its end. */
static bool harm(char **command)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        execvp(command[0], command);
        perror(command[0]);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* All streams, and the harm in the middle of them. */
static const char *stream(const struct drill_requests *requests, struct drill_streams *streams, char **command,
                          uint64_t *ret_incarnation)
{
    const struct drill_plan *plan = requests->plan;
    const uint64_t moment = (uint64_t)plan->streams * plan->max_tokens / 3;
    uint64_t news_ns = gms_clock_ns(), before = 0;
    *ret_incarnation = 0;
    for (uint32_t i = 0; i < plan->streams; i++) {
        char id[16];
        snprintf(id, sizeof id, "s%u", i);
        struct drill_stream *one = drill_requests_add(requests, i, id, streams);
        if (one == NULL)
            return "no memory for a stream";
        drill_stream_start(one);
    }
    while (!drill_streams_finished(streams)) {
        drill_streams_pump(streams, gms_clock_ns() + 20 * GMS_NS_PER_MS, NULL, 0);
        uint64_t total = drill_streams_token_total(streams);
        if (*ret_incarnation == 0 && total >= moment) {
            *ret_incarnation = streams->killed_incarnation = streams->serving.incarnation;
            if (!harm(command))
                return "the command failed";
        }
        if (total != before)
            news_ns = gms_clock_ns();
        before = total;
        if (gms_clock_ns() - news_ns > plan->timeout_s * GMS_NS_PER_S)
            return "no token of any stream within --timeout";
    }
    return NULL;
}

static bool equal(const struct drill_stream *stream, const struct drill_stream *control)
{
    uint32_t at = 0;
    while (at < stream->token_count && at < control->token_count &&
           stream->tokens[at].token == control->tokens[at].token)
        at++;
    if (stream->state == DRILL_STREAM_DONE && at == stream->token_count && at == control->token_count)
        return true;
    fprintf(stderr, "stream %s: %u tokens, control %u, equal up to %u; %s\n", stream->id, stream->token_count,
            control->token_count, at, stream->error);
    return false;
}

static int judge(const struct drill_streams *streams, const struct drill_control *control, uint64_t incarnation)
{
    uint64_t gap_ns = 0;
    uint32_t resumed = 0, wrong = 0, tokens = 0;
    for (size_t i = 0; i < streams->count; i++) {
        const struct drill_stream *one = &streams->items[i];
        wrong += !equal(one, &control->first.items[i]);
        tokens += one->token_count;
        resumed +=
            one->token_count > 0 && one->resumes > 0 && one->tokens[one->token_count - 1].incarnation != incarnation;
        for (uint32_t at = 1; at < one->token_count; at++)
            if (one->tokens[at].at_ns - one->tokens[at - 1].at_ns > gap_ns)
                gap_ns = one->tokens[at].at_ns - one->tokens[at - 1].at_ns;
    }
    printf("%zu streams, %u tokens, %u streams went on at another engine, longest gap %.1f ms, %u differ from the "
           "control\n",
           streams->count, tokens, resumed, (double)gap_ns / 1e6, wrong);
    if (resumed == 0)
        fprintf(stderr, "no stream was interrupted: nothing is shown\n");
    return wrong == 0 && resumed > 0 ? PASSED : FAILED;
}

int main(int argc, char **argv)
{
    static struct drill_plan plan;
    static struct drill_requests requests;
    static struct drill_control control;
    static struct drill_streams streams;
    static struct drill_deployment deployment; /* only its run directory: no process here is ours */
    struct gms_error error = {.text = ""};
    char **command = NULL;
    uint64_t incarnation = 0;
    signal(SIGPIPE, SIG_IGN);
    const char *wrong = parse(argc, argv, &plan, &command, &error);
    if (wrong != NULL)
        return usage(wrong);
    deployment.plan = &plan;
    snprintf(deployment.run_dir, sizeof deployment.run_dir, "%s", plan.attach);
    if (drill_requests_open(&plan, plan.streams, 0, &requests, &error) != GMS_OK ||
        drill_control_stream(&requests, &deployment, &control, &error) != GMS_OK ||
        drill_streams_open(plan.attach, plan.streams, &streams, &error) != GMS_OK)
        wrong = error.text;
    else if (!control.exact)
        wrong = control.divergence;
    else
        wrong = stream(&requests, &streams, command, &incarnation);
    int code = NOT_TRIED;
    if (wrong != NULL)
        fprintf(stderr, "gms-token-drill: %s\n", wrong);
    else
        code = judge(&streams, &control, incarnation);
    drill_streams_close(&streams);
    drill_control_close(&control);
    drill_requests_close(&requests);
    return code;
}
