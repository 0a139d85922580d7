/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"

enum {
    COMPLETION_TOKENS = 16, /* when the client does not say, as in the OpenAI API */
    CHAT_TOKENS = 256,
    WHOLE_BYTES = 16 * 1024 * 1024,
    HEADERS_BYTES = 512,
};

static const char sse[] = "text/event-stream", json[] = "application/json";
static const char untold[] = "the engine does not tell its tokens";

/* ---------------------------------------------------------------------------------------------- life and end -- */

struct relay_job *relay_job_begin(struct relay_jobs *jobs, struct relay_connection *connection, struct relay_call *call,
                                  const char *id, uint64_t now_ns)
{
    struct relay_job *job = calloc(1, sizeof *job);
    uint64_t random[2] = {0};
    if (job == NULL || getrandom(random, sizeof random, 0) != sizeof random) {
        free(job);
        relay_call_free(call);
        return NULL;
    }
    job->jobs = jobs;
    job->connection = connection;
    job->call = *call;
    call->body = NULL;
    job->created = (int64_t)time(NULL);
    job->temperature = job->call.temperature < 0 ? 1 : job->call.temperature;
    job->seed = job->call.has_seed ? job->call.seed : random[0] >> 1;
    const char *prefix = job->call.chat ? "chatcmpl" : "cmpl";
    if (id[0] != '\0')
        snprintf(job->id, sizeof job->id, "%s-%s", prefix, id);
    else
        snprintf(job->id, sizeof job->id, "%s-%016" PRIx64 "%08" PRIx32, prefix, random[1], (uint32_t)random[0]);
    relay_request_begin(&job->life, &jobs->options->limits, 0, now_ns);
    job->previous = jobs->last;
    if (jobs->last != NULL)
        jobs->last->next = job;
    else
        jobs->first = job;
    jobs->last = job;
    jobs->count++;
    relay_connection_set(connection, job);
    return job;
}

static void drop(struct relay_job *job)
{
    if (job->upstream == NULL)
        return;
    relay_upstream_drop(job->upstream);
    job->upstream = NULL;
    job->paused = false;
    job->jobs->running--;
}

static void release(struct relay_job *job)
{
    struct relay_jobs *jobs = job->jobs;
    drop(job);
    if (job->previous != NULL)
        job->previous->next = job->next;
    else
        jobs->first = job->next;
    if (job->next != NULL)
        job->next->previous = job->previous;
    else
        jobs->last = job->previous;
    jobs->count--;
    relay_call_free(&job->call);
    relay_text_free(&job->text);
    free(job->tokens);
    free(job->prompt);
    free(job);
    jobs->changed(jobs->context, UINT64_MAX);
}

static void count(struct relay_job *job, enum relay_outcome outcome)
{
    job->jobs->metrics->requests[job->call.chat][outcome]++;
    job->jobs->metrics->resumes += job->life.resumes;
}

void relay_job_cut(struct relay_job *job)
{
    release(job);
}

/* --------------------------------------------------------------------------------------------------- answers -- */

static struct relay_voice voice_of(const struct relay_job *job)
{
    const char *model = job->call.model;
    if (model[0] == '\0')
        model = job->jobs->options->model[0] != '\0' ? job->jobs->options->model : "default";
    return (struct relay_voice){.chat = job->call.chat, .id = job->id, .model = model, .created = job->created};
}

/* What the client may expect of a failover, in the header GMS-Resume. */
static void describe(const struct relay_job *job, char *ret_text, size_t bytes)
{
    enum relay_exact exact = job->jobs->options->exact;
    if (!job->openai)
        snprintf(ret_text, bytes, "exact");
    else if (job->verbatim)
        snprintf(ret_text, bytes, "none; reason=\"%s%s\"", job->call.special[0] != '\0' ? "the request uses " : untold,
                 job->call.special);
    else if (job->tokens_unknown || !job->life.resumable)
        snprintf(ret_text, bytes, "none; reason=\"%s\"",
                 job->life.why_not_resumable != NULL ? job->life.why_not_resumable : untold);
    else if (job->call.sampling[0] != '\0' && strcmp(job->call.sampling, "top_p") != 0)
        snprintf(ret_text, bytes, "continued; reason=\"%s may see another history\"", job->call.sampling);
    else if (job->temperature == 0 && exact >= RELAY_EXACT_GREEDY)
        snprintf(ret_text, bytes, "exact");
    else if (job->call.has_seed && exact == RELAY_EXACT_SEEDED)
        snprintf(ret_text, bytes, "exact");
    else
        snprintf(ret_text, bytes, "continued; reason=\"%s\"",
                 job->temperature != 0 && !job->call.has_seed ? "sampled without a seed"
                 : job->temperature != 0                      ? "the engine does not promise to go on with a seed"
                                         : "the engine does not promise the same numbers for recomputed tokens");
}

static void write_headers(const struct relay_job *job, char ret_text[HEADERS_BYTES])
{
    char resume[200];
    describe(job, resume, sizeof resume);
    snprintf(ret_text, HEADERS_BYTES, "X-Request-Id: %s\r\nGMS-Resume: %s\r\n", job->id, resume);
}

static void begin_stream(struct relay_job *job, struct relay_text *out)
{
    char headers[HEADERS_BYTES];
    if (job->begun)
        return;
    const struct relay_voice voice = voice_of(job);
    write_headers(job, headers);
    relay_stream_begin(job->connection, 200, sse, headers);
    job->begun = true;
    job->life.visible = true;
    if (job->call.chat && !job->verbatim)
        relay_say_role(out, &voice);
}

/* A piece that cannot be built ends the connection: nothing may be missing in the middle. */
static void flush(struct relay_job *job, struct relay_text *out)
{
    if (out->failed)
        relay_connection_break(job->connection);
    else
        relay_stream_write(job->connection, out->data, out->bytes);
    relay_text_free(out);
}

static void finish(struct relay_job *job, const struct relay_ending *ending)
{
    struct relay_text out = {0};
    const struct relay_voice voice = voice_of(job);
    struct relay_usage usage = ending->usage;
    bool all_known = !job->tokens_unknown && !job->verbatim;
    if (usage.known && job->openai && usage.prompt >= job->sent_tokens)
        usage.prompt -= job->sent_tokens;
    if (all_known)
        usage.completion = job->life.token_count;
    const char *reason = ending->reason[0] != '\0' ? ending->reason : "stop";
    count(job, RELAY_OUTCOME_DONE);
    if (job->call.stream) {
        begin_stream(job, &out);
        if (!job->verbatim) {
            relay_say_end(&out, &voice, reason);
            if (job->call.include_usage && usage.known)
                relay_say_usage(&out, &voice, &usage);
        }
        relay_say_done(&out);
        flush(job, &out);
        relay_stream_end(job->connection, true);
    } else {
        char headers[HEADERS_BYTES];
        write_headers(job, headers);
        if (job->verbatim)
            relay_text_add(&out, ending->body, ending->body_bytes);
        else
            relay_say_whole(&out, &voice, job->text.data != NULL ? job->text.data : "", job->text.bytes, reason,
                            &usage);
        relay_answer(job->connection, 200, json, headers, out.data, out.bytes);
        relay_text_free(&out);
    }
    release(job);
}

static void answer_failure(struct relay_job *job, const struct relay_actions *actions)
{
    struct relay_text out = {0};
    char headers[HEADERS_BYTES];
    gms_log(actions->status < 500 ? GMS_LOG_INFO : GMS_LOG_NOTICE, "request %s ends with %d after %u tokens: %s",
            job->id, actions->status, job->life.token_count, actions->text);
    if (job->begun) {
        relay_say_failure(&out, actions->status, actions->text);
        flush(job, &out);
        relay_stream_end(job->connection, false);
    } else {
        relay_say_error(&out, actions->status, "", actions->text);
        int length = snprintf(headers, sizeof headers, "X-Request-Id: %s\r\n", job->id);
        if (actions->retry_after_s > 0)
            snprintf(headers + length, sizeof headers - (size_t)length, "Retry-After: %" PRIu32 "\r\n",
                     actions->retry_after_s);
        relay_answer(job->connection, actions->status, json, headers, out.data, out.bytes);
        relay_text_free(&out);
    }
}

static void fail(struct relay_job *job, const struct relay_actions *actions)
{
    struct relay_metrics *metrics = job->jobs->metrics;
    count(job, actions->status < 500 ? RELAY_OUTCOME_REFUSED : RELAY_OUTCOME_FAILED);
    metrics->unavailable += actions->status == 503;
    metrics->crash_failures += job->life.crashes >= job->jobs->options->limits.crash_limit;
    answer_failure(job, actions);
    release(job);
}

/* --------------------------------------------------------------------------------------------------- asking --- */

static const struct relay_upstream_events upstream_events;

static void set_pause(struct relay_job *job)
{
    bool pause = job->begun && relay_unsent(job->connection) > job->jobs->options->max_unsent_bytes;
    if (job->upstream == NULL || pause == job->paused)
        return;
    job->paused = pause;
    relay_upstream_pause(job->upstream, pause);
    relay_request_heard(&job->life, gms_clock_ns());
}

/* Hands the request to the engine. False: it could not. */
static bool begin_upstream(struct relay_job *job)
{
    struct relay_jobs *jobs = job->jobs;
    const struct relay_serving *serving = jobs->serving(jobs->context);
    const struct relay_upstream_ask ask = {.endpoint = serving->endpoint,
                                           .incarnation = serving->incarnation,
                                           .id = job->id,
                                           .call = &job->call,
                                           .prompt = job->prompt,
                                           .prompt_count = job->prompt_count,
                                           .tokens = job->tokens,
                                           .token_count = job->tokens_unknown ? 0 : job->life.token_count,
                                           .max_tokens = job->life.max_tokens,
                                           .temperature = job->temperature,
                                           .seed = job->seed,
                                           .verbatim = job->verbatim};
    job->sent_tokens = (uint32_t)ask.token_count;
    job->upstream = relay_upstream_begin(jobs->base, &ask, &upstream_events, job);
    if (job->upstream == NULL)
        return false;
    jobs->running++;
    set_pause(job);
    return true;
}

static bool send_event(struct relay_job *job, enum relay_event_type type, int status, const char *text)
{
    const struct relay_event event = {
        .type = type, .now_ns = gms_clock_ns(), .attempt = job->life.attempt, .status = status, .text = text};
    return relay_job_event(job, &event);
}

/* Is the request one for the kind of engine that serves? Decides how it is asked. */
static bool check_kind(struct relay_job *job, struct relay_problem *ret_problem)
{
    const struct relay_serving *serving = job->jobs->serving(job->jobs->context);
    char *text = NULL;
    uint32_t *tokens = NULL;
    size_t count_of_tokens = 0;
    bool openai = relay_endpoint_is_openai(serving->endpoint);
    if (openai != job->openai && job->life.token_count > 0) {
        *ret_problem =
            (struct relay_problem){.status = 502, .text = "the engine that serves now speaks another protocol"};
        return false;
    }
    job->openai = openai;
    job->verbatim |= job->openai && (job->call.special[0] != '\0' || job->call.get != NULL);
    if (job->openai)
        return true;
    job->life.resumable = true;
    job->life.max_tokens = job->call.max_tokens != 0 ? job->call.max_tokens
                           : job->call.chat          ? CHAT_TOKENS
                                                     : COMPLETION_TOKENS;
    bool good = relay_call_prompt(&job->call, &text, &tokens, &count_of_tokens, ret_problem);
    free(text);
    free(tokens);
    return good;
}

static bool ask(struct relay_job *job)
{
    struct relay_problem problem;
    if (!check_kind(job, &problem))
        return send_event(job, RELAY_REFUSED, problem.status, problem.text);
    if (job->tokens_unknown || job->verbatim) {
        /* Nothing was visible and the engine's tokens are not known: from the beginning. */
        job->life.token_count = 0;
        relay_text_clear(&job->text);
    } else if (job->openai) {
        /* Text that the dead engine had not given out yet comes from the next one, with its tokens. */
        job->life.token_count = job->said;
    }
    if (!begin_upstream(job))
        return send_event(job, RELAY_UNASKED, 0, "the engine cannot be connected to");
    return false;
}

bool relay_job_event(struct relay_job *job, const struct relay_event *event)
{
    struct relay_actions actions;
    struct relay_jobs *jobs = job->jobs;
    bool had_engine = job->upstream != NULL;
    uint32_t crashes = job->life.crashes;
    uint64_t crashed_ns = job->life.crashed_ns;
    relay_request_step(&job->life, event, &actions);
    if (job->life.crashes != crashes || job->life.crashed_ns != crashed_ns) {
        jobs->metrics->crashes++;
        job->lost_ns = event->now_ns;
    }
    if (actions.drop)
        drop(job);
    if (actions.ask)
        return ask(job);
    if (actions.fail) {
        fail(job, &actions);
        return true;
    }
    if (job->life.state == RELAY_GONE) {
        count(job, RELAY_OUTCOME_GONE);
        release(job);
        return true;
    }
    if (job->life.state == RELAY_WAITING && (had_engine || event->type == RELAY_UNASKED))
        jobs->changed(jobs->context, job->life.not_before_ns);
    return false;
}

bool relay_job_tick(struct relay_job *job, uint64_t now_ns)
{
    if (job->paused)
        relay_request_heard(&job->life, now_ns);
    const struct relay_event event = {.type = RELAY_TICK, .now_ns = now_ns};
    return relay_job_event(job, &event);
}

void relay_job_drained(struct relay_job *job)
{
    set_pause(job);
}

/* ------------------------------------------------------------------------------------------ engine's words ---- */

/* In the client's own words, and the engine's answer as it comes. Possible while nothing has been seen of it. */
static bool ask_verbatim(struct relay_job *job)
{
    drop(job);
    job->verbatim = true;
    job->life.resumable = false;
    job->life.why_not_resumable = "the answer is more than text";
    relay_request_restart(&job->life, gms_clock_ns());
    return ask(job);
}

static bool keep_prompt(struct relay_job *job, const struct relay_piece *piece)
{
    if (piece->prompt_count == 0 || job->prompt != NULL)
        return true;
    job->prompt = malloc(piece->prompt_count * sizeof *job->prompt);
    if (job->prompt == NULL)
        return false;
    memcpy(job->prompt, piece->prompt, piece->prompt_count * sizeof *job->prompt);
    job->prompt_count = (uint32_t)piece->prompt_count;
    return true;
}

static bool keep_tokens(struct relay_job *job, uint32_t index, const struct relay_piece *piece)
{
    size_t wanted = (size_t)index + piece->token_count;
    if (wanted > job->token_capacity) {
        size_t capacity = wanted < 64 ? 64 : wanted * 2;
        uint32_t *grown = realloc(job->tokens, capacity * sizeof *grown);
        if (grown == NULL)
            return false;
        job->tokens = grown;
        job->token_capacity = (uint32_t)capacity;
    }
    memcpy(job->tokens + index, piece->tokens, piece->token_count * sizeof *job->tokens);
    return true;
}

/* Can the answer be continued after this piece? */
static void note_tokens(struct relay_job *job, uint32_t index, const struct relay_piece *piece)
{
    if (job->verbatim || !keep_prompt(job, piece))
        job->tokens_unknown = true;
    else if (job->openai && (job->call.holds_back || (piece->text_bytes > 0 && piece->token_count == 0)))
        job->tokens_unknown = true;
    else if (piece->token_count > 0 && !keep_tokens(job, index, piece))
        job->tokens_unknown = true;
    if (!job->openai)
        return;
    if (piece->text_bytes > 0)
        job->said = index + (uint32_t)piece->token_count;
    job->life.resumable = !job->tokens_unknown && job->prompt_count > 0;
    job->life.why_not_resumable = job->verbatim          ? "the request is passed on as it is"
                                  : job->call.holds_back ? "an engine holds text back that may become a stop string"
                                                         : untold;
}

static void pass_on(struct relay_job *job, const struct relay_piece *piece)
{
    struct relay_text out = {0};
    const struct relay_voice voice = voice_of(job);
    if (!job->call.stream) {
        relay_text_add(&job->text, piece->text, piece->text_bytes);
        return;
    }
    begin_stream(job, &out);
    if (job->verbatim || piece->foreign)
        relay_text_print(&out, "data: %.*s\n\n", (int)piece->event_bytes, piece->event);
    else if (piece->text_bytes > 0)
        relay_say_piece(&out, &voice, piece->text, piece->text_bytes);
    flush(job, &out);
    set_pause(job);
}

static void on_piece(void *context, const struct relay_piece *piece)
{
    struct relay_job *job = context;
    uint64_t now_ns = gms_clock_ns();
    uint32_t index = piece->has_index ? piece->index : job->life.token_count;
    bool says = piece->text_bytes > 0 || piece->foreign || job->verbatim;
    if (piece->foreign && !job->verbatim && !job->life.visible) {
        ask_verbatim(job);
        return;
    }
    uint32_t number = piece->token_count > 0 ? (uint32_t)piece->token_count : says ? 1 : 0;
    if (number == 0) { /* the prompt's tokens, or nothing */
        relay_request_heard(&job->life, now_ns);
        if (!keep_prompt(job, piece))
            job->tokens_unknown = true;
        return;
    }
    const struct relay_event event = {
        .type = RELAY_TOKENS, .now_ns = now_ns, .attempt = job->life.attempt, .index = index, .count = number};
    if (relay_job_event(job, &event))
        return;
    note_tokens(job, index, piece);
    if (job->lost_ns != 0)
        relay_metrics_gap(job->jobs->metrics, now_ns - job->lost_ns);
    job->lost_ns = 0;
    job->jobs->metrics->tokens += number;
    if (piece->foreign && !job->verbatim) {
        job->tokens_unknown = true; /* what is seen now cannot be built again */
        job->life.resumable = false;
        job->life.why_not_resumable = "the answer is more than text";
    }
    if (says)
        pass_on(job, piece);
    if (job->text.failed || job->text.bytes > WHOLE_BYTES)
        send_event(job, RELAY_BROKEN, 0, "its answer is longer than 16 MiB");
}

static void on_ended(void *context, const struct relay_ending *ending)
{
    struct relay_job *job = context;
    struct relay_ending own = *ending;
    char *body = NULL;
    if (ending->body != NULL && (body = malloc(ending->body_bytes + 1)) != NULL)
        memcpy(body, ending->body, ending->body_bytes);
    own.body = body != NULL ? body : "";
    own.body_bytes = body != NULL ? ending->body_bytes : 0;
    if (!send_event(job, RELAY_END, 0, NULL))
        finish(job, &own);
    free(body);
}

static void on_refused(void *context, int status, const char *text)
{
    struct relay_job *job = context;
    /* SGLang streams no token ids in chat, and says so. */
    if (job->openai && !job->verbatim && !job->life.visible && job->life.token_count == 0 &&
        strstr(text, "token_ids") != NULL)
        ask_verbatim(job);
    else
        send_event(job, RELAY_REFUSED, status, text);
}

static void on_lost(void *context, const char *text)
{
    struct relay_job *job = context;
    gms_log(GMS_LOG_INFO, "request %s lost its engine after %u tokens: %s", job->id, job->life.token_count, text);
    send_event(job, RELAY_LOST, 0, text);
}

static void on_unasked(void *context, const char *text)
{
    struct relay_job *job = context;
    gms_log(GMS_LOG_DEBUG, "request %s: %s", job->id, text);
    send_event(job, RELAY_UNASKED, 0, text);
}

static void on_broken(void *context, const char *text)
{
    send_event(context, RELAY_BROKEN, 0, text);
}

static const struct relay_upstream_events upstream_events = {.piece = on_piece,
                                                             .ended = on_ended,
                                                             .refused = on_refused,
                                                             .lost = on_lost,
                                                             .unasked = on_unasked,
                                                             .broken = on_broken};
