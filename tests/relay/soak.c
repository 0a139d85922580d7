/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-relay-soak: many streams through one relay, and an engine killed every few seconds.
 *
 * A scratch deployment (keeper, coordinators, one serving engine, one parked) with a relay before it. Every client asks
 * again and again; each answer is compared with two undisturbed controls of the same prompt and seed. The killed engine
 * is started again as the next shadow. Judged: failed requests, differing tokens, what the relay cost, how long streams
 * were silent, and how long a new request took at each kill.
 */
#include <argp.h>
#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "deployment.h"
#include "http_streams.h"
#include "plan.h"
#include "prompts.h"
#include "relay_program.h"

enum {
    PROMPTS_MOST = 256,
    FAILOVERS_MOST = 4096,
    REASONS = 12,
    REASON_BYTES = 400,
    PROBE_TOKENS = 8,
    PROMPT_BYTES = 400
};

struct reference {
    char prompt[PROMPT_BYTES];
    char *text; /* owned; NULL: not known yet */
    uint32_t tokens;
};

struct failover {
    uint64_t at_ns;
    uint64_t gap_ns;   /* the longest silence of a stream that began within reach of the kill */
    uint64_t probe_ns; /* a new request, from the kill to its end; 0: not complete */
    uint32_t interrupted;
};

struct soak {
    uint32_t streams, seconds, every_ms, kills_most, max_tokens;
    const char *json;
    bool keep;
    const char *poison; /* NULL: no sabotage */
    struct drill_plan plan;
    char work_dir[DRILL_PATH_BYTES], shared_dir[DRILL_PATH_BYTES];
    struct drill_deployment deployment;
    struct drill_process *relay;
    uint16_t port;
    struct reference references[PROMPTS_MOST];
    uint32_t prompt_count;

    pthread_t thread;
    pthread_mutex_t lock; /* over all below */
    struct http_streams clients;
    bool learning, stopping; /* learning: answers become references */
    uint32_t next_prompt;
    uint64_t requests, tokens, errors, wrong, probe_begun_ns;
    uint32_t control_differences, probes_asked;
    bool probe_wanted;
    struct failover failovers[FAILOVERS_MOST];
    uint32_t failover_count, reason_count;
    char reasons[REASONS][REASON_BYTES];
};

__attribute__((format(printf, 2, 3))) static void fail(struct soak *soak, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (soak->reason_count < REASONS)
        vsnprintf(soak->reasons[soak->reason_count], REASON_BYTES, format, arguments);
    soak->reason_count++;
    va_end(arguments);
}

/* ------------------------------------------------------------------------------------------------- clients ---- */

static void ask_next(struct soak *soak, struct http_stream *stream)
{
    uint32_t number = soak->next_prompt++ % soak->prompt_count;
    const struct http_ask ask = {.prompt = soak->references[number].prompt,
                                 .number = number,
                                 .max_tokens = soak->max_tokens,
                                 .temperature = soak->plan.temperature,
                                 .seed = soak->plan.seed + number};
    http_stream_ask(&soak->clients, stream, &ask);
}

static void judge(struct soak *soak, const struct http_stream *stream)
{
    struct reference *reference = &soak->references[stream->ask.number];
    const char *text = stream->text.data != NULL ? stream->text.data : "";
    if (soak->learning && reference->text == NULL) {
        reference->text = strdup(text);
        reference->tokens = stream->tokens;
        return;
    }
    if (stream->tokens == reference->tokens && reference->text != NULL && strcmp(text, reference->text) == 0)
        return;
    if (soak->learning) {
        soak->control_differences++;
        return;
    }
    size_t at = 0;
    while (reference->text != NULL && text[at] != '\0' && text[at] == reference->text[at])
        at++;
    soak->wrong++;
    fail(soak, "prompt %u differs at byte %zu: %u tokens, control %u", stream->ask.number, at, stream->tokens,
         reference->tokens);
}

/* Which kill a silence belongs to: it began before the kill or in the moments after, and ended after it. */
static void note_gap(struct soak *soak, const struct http_stream *stream)
{
    uint64_t from_ns = stream->longest_gap_at_ns, to_ns = from_ns + stream->longest_gap_ns;
    for (uint32_t i = soak->failover_count; i-- > 0;) {
        struct failover *failover = &soak->failovers[i];
        if (to_ns < failover->at_ns || stream->begun_ns > failover->at_ns)
            continue;
        if (from_ns > failover->at_ns + 100 * GMS_NS_PER_MS)
            return;
        failover->interrupted++;
        if (stream->longest_gap_ns > failover->gap_ns)
            failover->gap_ns = stream->longest_gap_ns;
        return;
    }
}

static void on_finished(void *context, struct http_stream *stream)
{
    struct soak *soak = context;
    bool probe = stream == &soak->clients.items[soak->streams];
    soak->requests++;
    soak->tokens += stream->tokens;
    if (stream->failed) {
        soak->errors++;
        fail(soak, "%s %u: %s", probe ? "probe" : "prompt", stream->ask.number, stream->error);
    } else if (strcmp(stream->resume, "exact") != 0) {
        fail(soak, "GMS-Resume says '%s'", stream->resume);
    } else if (probe) {
        soak->failovers[stream->ask.number].probe_ns = gms_clock_ns() - soak->failovers[stream->ask.number].at_ns;
    } else {
        judge(soak, stream);
        if (!soak->learning)
            note_gap(soak, stream);
    }
}

static void ask_probe(struct soak *soak)
{
    static char prompts[2][64];
    struct http_stream *stream = &soak->clients.items[soak->streams];
    if (!soak->probe_wanted || stream->busy)
        return;
    soak->probe_wanted = false;
    char *prompt = prompts[soak->probes_asked++ % 2];
    snprintf(prompt, sizeof prompts[0], "Nobody has asked number %u before.", soak->probes_asked);
    const struct http_ask ask = {
        .prompt = prompt, .number = soak->failover_count - 1, .max_tokens = PROBE_TOKENS, .temperature = 0, .seed = 1};
    http_stream_ask(&soak->clients, stream, &ask);
}

static void *pump_clients(void *context)
{
    struct soak *soak = context;
    for (bool over = false; !over;) {
        pthread_mutex_lock(&soak->lock);
        ask_probe(soak);
        for (uint32_t i = 0; i < soak->streams; i++) /* one that failed is asked again, in the next turn */
            if (!soak->clients.items[i].busy && !soak->stopping && soak->errors < 100)
                ask_next(soak, &soak->clients.items[i]);
        http_streams_pump(&soak->clients, gms_clock_ns() + 20 * GMS_NS_PER_MS);
        over = soak->stopping && http_streams_busy(&soak->clients) == 0;
        pthread_mutex_unlock(&soak->lock);
    }
    return NULL;
}

/* Every prompt once, all at the same time. */
static gms_status run_control(struct soak *soak, struct gms_error *ret_error)
{
    uint64_t deadline_ns = gms_clock_ns() + soak->plan.timeout_s * GMS_NS_PER_S;
    uint32_t asked = 0;
    soak->learning = true;
    while (asked < soak->prompt_count || http_streams_busy(&soak->clients) > 0) {
        for (uint32_t i = 0; i < soak->streams && asked < soak->prompt_count; i++)
            if (!soak->clients.items[i].busy) {
                ask_next(soak, &soak->clients.items[i]);
                asked++;
            }
        http_streams_pump(&soak->clients, gms_clock_ns() + 50 * GMS_NS_PER_MS);
        if (gms_clock_ns() >= deadline_ns)
            return gms_fail(ret_error, GMS_E_TIMEOUT, "the control run did not end within %u s", soak->plan.timeout_s);
    }
    soak->learning = false;
    if (soak->errors > 0)
        return gms_fail(ret_error, GMS_E_REFUSED, "control run: %s", soak->reasons[0]);
    return GMS_OK;
}

/* ------------------------------------------------------------------------------------------------ the faults -- */

static gms_status sleep_until(struct soak *soak, uint64_t at_ns, uint32_t excused, struct gms_error *ret_error)
{
    while (gms_clock_ns() < at_ns) {
        uint64_t look_ns = gms_clock_ns() + 100 * GMS_NS_PER_MS;
        poll(NULL, 0, gms_clock_poll_ms(at_ns < look_ns ? at_ns : look_ns));
        gms_status status = drill_deployment_check(&soak->deployment, excused, ret_error);
        if (status != GMS_OK)
            return status;
    }
    return GMS_OK;
}

/* Kills a rank of `engine`, waits for the other to serve, and brings it back as the shadow. */
static gms_status fail_over(struct soak *soak, uint32_t engine, uint32_t number, struct gms_error *ret_error)
{
    struct drill_deployment *deployment = &soak->deployment;
    uint32_t rank = number % soak->plan.ranks;
    pthread_mutex_lock(&soak->lock);
    struct failover *failover = &soak->failovers[soak->failover_count++];
    failover->at_ns = gms_clock_ns();
    gms_pidfd_signal(deployment->engines[engine].pidfds[rank], SIGKILL);
    soak->probe_wanted = true;
    pthread_mutex_unlock(&soak->lock);
    gms_status status = drill_deployment_wait(deployment, 1 - engine, "serving", 0, soak->plan.timeout_s, ret_error);
    if (status != GMS_OK)
        return status;
    struct drill_process *launcher = deployment->engines[engine].launcher;
    launcher->asked_to_end = true;
    if (!drill_process_wait(launcher, gms_clock_ns() + soak->plan.timeout_s * GMS_NS_PER_S))
        return gms_fail(ret_error, GMS_E_TIMEOUT, "the launcher of the killed engine %u does not end", engine);
    status = drill_deployment_launch(deployment, engine, ret_error);
    if (status == GMS_OK)
        status = drill_deployment_wait(deployment, engine, "parked", 0, soak->plan.timeout_s, ret_error);
    return status;
}

static gms_status run_faults(struct soak *soak, struct gms_error *ret_error)
{
    uint64_t begun_ns = gms_clock_ns(), end_ns = begun_ns + soak->seconds * GMS_NS_PER_S;
    uint64_t every_ns = soak->every_ms * GMS_NS_PER_MS, next_ns = begun_ns + every_ns / 2;
    gms_status status = GMS_OK;
    for (uint32_t number = 0; status == GMS_OK && number < soak->kills_most && next_ns < end_ns; number++) {
        status = sleep_until(soak, next_ns, 0, ret_error);
        if (status == GMS_OK)
            status = fail_over(soak, number % 2, number, ret_error);
        next_ns = next_ns + every_ns > gms_clock_ns() ? next_ns + every_ns : gms_clock_ns() + every_ns / 10;
        if (status == GMS_OK) {
            pthread_mutex_lock(&soak->lock);
            const struct failover *failover = &soak->failovers[soak->failover_count - 1];
            printf("%6.1f s  failover %u: new request %.1f ms; so far %" PRIu64 " requests, %" PRIu64
                   " tokens, %" PRIu64 " errors, %" PRIu64 " wrong\n",
                   (double)(gms_clock_ns() - begun_ns) / 1e9, soak->failover_count, (double)failover->probe_ns / 1e6,
                   soak->requests, soak->tokens, soak->errors, soak->wrong);
            fflush(stdout);
            bool hopeless = soak->errors + soak->wrong >= 50;
            pthread_mutex_unlock(&soak->lock);
            if (hopeless)
                return GMS_OK;
        }
    }
    if (status == GMS_OK)
        status = sleep_until(soak, soak->kills_most < UINT32_MAX && next_ns < end_ns ? next_ns : end_ns, 0, ret_error);
    return status;
}

/* ------------------------------------------------------------------------------------------------ the report -- */

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

struct spread {
    double least, median, greatest; /* ms */
    uint32_t count;
};

static struct spread spread_of(const struct soak *soak, bool probes)
{
    static uint64_t values[FAILOVERS_MOST];
    struct spread spread = {0};
    for (uint32_t i = 0; i < soak->failover_count; i++) {
        uint64_t value = probes ? soak->failovers[i].probe_ns : soak->failovers[i].gap_ns;
        if (value > 0)
            values[spread.count++] = value;
    }
    if (spread.count == 0)
        return spread;
    qsort(values, spread.count, sizeof values[0], compare);
    spread.least = (double)values[0] / 1e6;
    spread.median = (double)values[spread.count / 2] / 1e6;
    spread.greatest = (double)values[spread.count - 1] / 1e6;
    return spread;
}

struct figures {
    double cpu_s, relay_tokens, resident_bytes, resumes, seconds;
    struct spread gaps, probes;
    uint32_t without_interruption;
};

static void write_json(const struct soak *soak, const struct figures *f, bool passed)
{
    FILE *out = soak->json != NULL ? fopen(soak->json, "we") : NULL;
    if (out == NULL)
        return;
    fprintf(out,
            "{\"version\":1,\"verdict\":\"%s\",\"streams\":%u,\"seconds\":%.1f,\"failovers\":%u,\"requests\":%" PRIu64
            ",\"tokens\":%" PRIu64 ",\"errors\":%" PRIu64 ",\"differing\":%" PRIu64 ",\"control_differences\":%u,"
            "\"resumed\":%.0f,\"relay_us_per_token\":%.2f,\"relay_cpu_seconds\":%.3f,\"relay_resident_bytes\":%.0f,"
            "\"gap_ms\":{\"least\":%.1f,\"median\":%.1f,\"greatest\":%.1f},"
            "\"new_request_ms\":{\"least\":%.1f,\"median\":%.1f,\"greatest\":%.1f}}\n",
            passed ? "passed" : "failed", soak->streams, f->seconds, soak->failover_count, soak->requests, soak->tokens,
            soak->errors, soak->wrong, soak->control_differences, f->resumes,
            f->relay_tokens > 0 ? f->cpu_s * 1e6 / f->relay_tokens : 0, f->cpu_s, f->resident_bytes, f->gaps.least,
            f->gaps.median, f->gaps.greatest, f->probes.least, f->probes.median, f->probes.greatest);
    fclose(out);
}

static void print_figures(const struct soak *soak, const struct figures *f)
{
    printf("\n  streams at once                          %u\n", soak->streams);
    printf("  seconds, failovers                       %.0f, %u\n", f->seconds, soak->failover_count);
    printf("  requests, tokens                         %" PRIu64 ", %" PRIu64 " (%.0f a second)\n", soak->requests,
           soak->tokens, (double)soak->tokens / f->seconds);
    printf("  errors, differing answers                %" PRIu64 ", %" PRIu64 "\n", soak->errors, soak->wrong);
    printf("  answers that another engine went on with %.0f\n", f->resumes);
    printf("  the relay's cost, us a token             %.1f (all of it: %.2f s; at most %.1f MiB)\n",
           f->relay_tokens > 0 ? f->cpu_s * 1e6 / f->relay_tokens : 0, f->cpu_s, f->resident_bytes / 1048576);
    printf("  longest gap of a failover, ms            %.1f / %.1f / %.1f (min, median, max of %u)\n", f->gaps.least,
           f->gaps.median, f->gaps.greatest, f->gaps.count);
    printf("  kill to a new request complete, ms       %.1f / %.1f / %.1f (of %u)\n", f->probes.least, f->probes.median,
           f->probes.greatest, f->probes.count);
}

static int report(struct soak *soak, const struct figures *figures)
{
    if (soak->failover_count == 0)
        fail(soak, "there was no failover");
    if (figures->gaps.count < soak->failover_count)
        fail(soak, "%u of %u failovers interrupted no stream", soak->failover_count - figures->gaps.count,
             soak->failover_count);
    if (figures->probes.count < soak->failover_count)
        fail(soak, "%u new requests were not completed", soak->failover_count - figures->probes.count);
    if (figures->resumes < 1)
        fail(soak, "the relay went on with no answer");
    if (soak->control_differences > 0)
        fail(soak, "the two controls differ in %u answers: nothing can be said about exactness",
             soak->control_differences);
    print_figures(soak, figures);
    for (uint32_t i = 0; i < soak->reason_count && i < REASONS; i++)
        printf("  FAILED: %s\n", soak->reasons[i]);
    if (soak->reason_count > REASONS)
        printf("  FAILED: and %u more\n", soak->reason_count - REASONS);
    write_json(soak, figures, soak->reason_count == 0);
    printf("%s\n", soak->reason_count == 0 ? "PASSED" : "FAILED");
    return soak->reason_count == 0 ? 0 : 1;
}

/* --------------------------------------------------------------------------------------------------- stages --- */

static gms_status make_prompts(struct soak *soak, struct gms_error *ret_error)
{
    struct drill_prompts prompts = {0};
    gms_status status = drill_prompts_read(soak->plan.prompts, &prompts, ret_error);
    soak->prompt_count = soak->streams < 64 ? soak->streams : 64;
    for (uint32_t i = 0; status == GMS_OK && i < soak->prompt_count; i++)
        snprintf(soak->references[i].prompt, PROMPT_BYTES, "(%u) %.120s", i, prompts.items[i % prompts.count]);
    drill_prompts_free(&prompts);
    return status;
}

static gms_status start(struct soak *soak, struct gms_error *ret_error)
{
    char dir[DRILL_PATH_BYTES];
    struct drill_deployment *deployment = &soak->deployment;
    snprintf(dir, sizeof dir, "%.480s/d", soak->work_dir);
    gms_status status = drill_deployment_start(&soak->plan, dir, soak->shared_dir, "soak", deployment, ret_error);
    if (status == GMS_OK)
        status = drill_deployment_launch(deployment, 0, ret_error);
    if (status == GMS_OK)
        status = drill_deployment_wait(deployment, 0, "serving", 0, soak->plan.timeout_s, ret_error);
    if (status == GMS_OK)
        status = drill_deployment_launch(deployment, 1, ret_error);
    if (status == GMS_OK)
        status = drill_deployment_wait(deployment, 1, "parked", 0, soak->plan.timeout_s, ret_error);
    if (status == GMS_OK)
        status = relay_program_start(deployment, &soak->relay, &soak->port, ret_error);
    if (status == GMS_OK && !http_streams_open(&soak->clients, soak->port, soak->streams + 1))
        status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for %u streams", soak->streams);
    soak->clients.finished = on_finished;
    soak->clients.context = soak;
    return status;
}

static gms_status run(struct soak *soak, struct figures *ret_figures, struct gms_error *ret_error)
{
    gms_status status = make_prompts(soak, ret_error);
    if (status == GMS_OK)
        status = start(soak, ret_error);
    for (int control = 0; control < 2 && status == GMS_OK; control++)
        status = run_control(soak, ret_error);
    if (status != GMS_OK)
        return status;
    printf("control runs: %u prompts twice, %" PRIu64 " tokens\n", soak->prompt_count, soak->tokens);
    fflush(stdout);
    soak->requests = soak->tokens = 0;
    char *before = http_get(soak->port, "/metrics", gms_clock_ns() + 5 * GMS_NS_PER_S);
    uint64_t begun_ns = gms_clock_ns();
    if (pthread_create(&soak->thread, NULL, pump_clients, soak) != 0) {
        free(before);
        return gms_fail(ret_error, GMS_E_SYSTEM, "no thread for the clients");
    }
    status = run_faults(soak, ret_error);
    pthread_mutex_lock(&soak->lock);
    soak->stopping = true;
    pthread_mutex_unlock(&soak->lock);
    pthread_join(soak->thread, NULL);
    ret_figures->seconds = (double)(gms_clock_ns() - begun_ns) / 1e9;
    char *after = http_get(soak->port, "/metrics", gms_clock_ns() + 5 * GMS_NS_PER_S);
    ret_figures->cpu_s =
        http_metric(after, "gms_relay_cpu_seconds_total") - http_metric(before, "gms_relay_cpu_seconds_total");
    ret_figures->relay_tokens =
        http_metric(after, "gms_relay_tokens_total") - http_metric(before, "gms_relay_tokens_total");
    ret_figures->resumes = http_metric(after, "gms_relay_resumes_total");
    ret_figures->resident_bytes = http_metric(after, "gms_relay_resident_bytes_most");
    free(before);
    free(after);
    ret_figures->gaps = spread_of(soak, false);
    ret_figures->probes = spread_of(soak, true);
    return status;
}

/* ---------------------------------------------------------------------------------------------------- main ---- */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static const struct argp_option option_table[] = {
    {"streams", 's', "N", 0, "Clients at once (default 200)", 0},
    {"seconds", 't', "N", 0, "How long (default 600)", 0},
    {"every", 'e', "SECONDS", 0, "Between two kills (default 10)", 0},
    {"kills", 'k', "N", 0, "At most (default: as time allows)", 0},
    {"max-tokens", 'm', "N", 0, "Of an answer (default 32)", 0},
    {"ranks", 'n', "N", 0, "Ranks of an engine (default 2)", 0},
    {"seed", 'S', "N", 0, "Of the first prompt (default 1)", 0},
    {"json", 'j', "FILE", 0, "Write the figures there too", 0},
    {"keep", 'K', NULL, 0, "Keep the scratch directory", 0},
    {"poison", 'P', "SLOT", 0,
     "Sabotage: a promoted engine has noise in this KV slot, and nothing verifies it. The soak must fail", 0},
    {0}};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct soak *soak = state->input;
    struct gms_error error;
    uint64_t value = 0;
    if (key == 'K') {
        soak->keep = true;
        return 0;
    }
    if (key == 'P') {
        soak->poison = text;
        return 0;
    }
    if (key == 'j') {
        soak->json = text;
        return 0;
    }
    uint64_t most = key == 's' ? 240 : key == 'n' ? 8 : key == 'm' ? 1024 : 1000000;
    if (key != 's' && key != 't' && key != 'e' && key != 'k' && key != 'm' && key != 'n' && key != 'S')
        return ARGP_ERR_UNKNOWN;
    if (drill_number_parse((char[]){(char)key, '\0'}, text, 1, most, &value, &error) != GMS_OK)
        argp_error(state, "%s", error.text);
    if (key == 's')
        soak->streams = (uint32_t)value;
    else if (key == 't')
        soak->seconds = (uint32_t)value;
    else if (key == 'e')
        soak->every_ms = (uint32_t)value * 1000;
    else if (key == 'k')
        soak->kills_most = (uint32_t)value;
    else if (key == 'm')
        soak->max_tokens = (uint32_t)value;
    else if (key == 'n')
        soak->plan.ranks = (uint32_t)value;
    else
        soak->plan.seed = value;
    return 0;
}

int main(int argc, char **argv)
{
    static const char doc[] = "Streams through gms-relay while engines are killed.\v"
                              "Exit codes: 0 passed, 1 failed, 2 could not run, 64 usage.";
    static const struct argp parser = {option_table, parse, NULL, doc, NULL, NULL, NULL};
    static const char *const engine[] = {"minillm", "--layers", "2",    "--width",     "64", "--mlp",
                                         "128",     "--slots",  "4096", "--max-batch", "256"};
    static struct soak soak = {.streams = 200,
                               .seconds = 600,
                               .every_ms = 10000,
                               .kills_most = UINT32_MAX,
                               .max_tokens = 32,
                               .lock = PTHREAD_MUTEX_INITIALIZER};
    struct gms_error error;
    struct figures figures = {0};
    gms_signals_reset();
    argp_err_exit_status = 64;
    drill_plan_defaults(&soak.plan);
    argp_parse(&parser, argc, argv, 0, NULL, &soak);
    soak.plan.repeat = 1;
    soak.plan.engines = 2;
    size_t words = 0;
    for (; words < sizeof engine / sizeof engine[0]; words++)
        soak.plan.command[words] = engine[words];
    if (soak.poison != NULL) {
        soak.plan.command[words++] = "--poison";
        soak.plan.command[words++] = soak.poison;
        soak.plan.verify = DRILL_VERIFY_NONE;
    }
    const char *base = getenv("TMPDIR");
    if (base == NULL || base[0] != '/' || strlen(base) > 40) /* sockets with short paths live below */
        base = "/tmp";
    snprintf(soak.work_dir, sizeof soak.work_dir, "%s/gms-soak-XXXXXX", base);
    snprintf(soak.shared_dir, sizeof soak.shared_dir, "/dev/shm/gms-soak-XXXXXX");
    gms_status status = drill_plan_complete(&soak.plan, &error);
    if (status == GMS_OK)
        status = drill_processes_prepare(&error);
    if (status == GMS_OK && (mkdtemp(soak.work_dir) == NULL || mkdtemp(soak.shared_dir) == NULL))
        status = gms_fail(&error, GMS_E_SYSTEM, "no scratch directory: %s", strerror(errno));
    if (status == GMS_OK)
        status = run(&soak, &figures, &error);
    int code = 2;
    if (status != GMS_OK && soak.failover_count == 0) {
        fprintf(stderr, "gms-relay-soak: %s\n", error.text);
    } else {
        if (status != GMS_OK)
            fail(&soak, "%s", error.text);
        code = report(&soak, &figures);
    }
    http_streams_close(&soak.clients);
    drill_deployment_stop(&soak.deployment);
    if (soak.keep || code != 0) {
        printf("scratch directory: %s\n", soak.work_dir);
    } else {
        nftw(soak.work_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
    nftw(soak.shared_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    for (uint32_t i = 0; i < soak.prompt_count; i++)
        free(soak.references[i].text);
    return code;
}
