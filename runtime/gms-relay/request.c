/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/request.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { HTTP_BAD_GATEWAY = 502, HTTP_UNAVAILABLE = 503, HTTP_GATEWAY_TIMEOUT = 504, RETRY_AFTER_S = 1 };

typedef void (*reaction)(struct relay_request *request, const struct relay_event *event, struct relay_actions *actions);

static void move(struct relay_request *request, enum relay_state state, uint64_t now_ns)
{
    request->state = state;
    request->since_ns = now_ns;
}

__attribute__((format(printf, 6, 7))) static void fail(struct relay_request *request, const struct relay_event *event,
                                                       struct relay_actions *actions, int status,
                                                       uint32_t retry_after_s, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(actions->text, sizeof actions->text, format, arguments);
    va_end(arguments);
    actions->drop = request->state == RELAY_ASKED || request->state == RELAY_FLOWING;
    actions->ask = false;
    actions->fail = true;
    actions->status = status;
    actions->retry_after_s = retry_after_s;
    move(request, RELAY_FAILED, event->now_ns);
}

/* ------------------------------------------------------------------------------------------------ reactions --- */

static void ask(struct relay_request *request, const struct relay_event *event, struct relay_actions *actions)
{
    if (event->now_ns < request->not_before_ns && event->incarnation <= request->incarnation)
        return;
    if (event->incarnation < request->incarnation)
        return; /* old news: a later one has been asked already */
    request->incarnation = event->incarnation;
    request->attempt++;
    actions->ask = true;
    move(request, RELAY_ASKED, event->now_ns);
}

/* The engine that has the request is dead, or as good as dead. */
static void lose(struct relay_request *request, const struct relay_event *event, struct relay_actions *actions)
{
    const struct relay_limits *limits = request->limits;
    bool in_a_row = request->crashes > 0 && event->now_ns - request->crashed_ns <= limits->crash_window_ns;
    request->crashes = in_a_row ? request->crashes + 1 : 1;
    request->crashed_ns = event->now_ns;
    if (request->crashes >= limits->crash_limit && limits->crash_limit > 1) {
        fail(request, event, actions, HTTP_BAD_GATEWAY, 0,
             "this request was in flight in %u engine crashes in a row and is not tried again", request->crashes);
        return;
    }
    if (request->crashes >= limits->crash_limit) {
        fail(request, event, actions, HTTP_BAD_GATEWAY, RETRY_AFTER_S, "the engine ended while it answered");
        return;
    }
    if (request->visible && !request->resumable) {
        fail(request, event, actions, HTTP_BAD_GATEWAY, RETRY_AFTER_S,
             "the engine ended in the middle of the answer, which cannot be continued: %s",
             request->why_not_resumable != NULL ? request->why_not_resumable : "its tokens are not known");
        return;
    }
    actions->drop = true;
    request->not_before_ns = event->now_ns + limits->break_grace_ns;
    request->waiting_since_ns = event->now_ns;
    move(request, RELAY_WAITING, event->now_ns);
}

static void serves(struct relay_request *request, const struct relay_event *event, struct relay_actions *actions)
{
    if (event->incarnation <= request->incarnation)
        return; /* the one that was asked */
    lose(request, event, actions);
    if (request->state == RELAY_WAITING)
        ask(request, event, actions);
}

static void unasked(struct relay_request *request, const struct relay_event *event, struct relay_actions *actions)
{
    actions->drop = true;
    request->not_before_ns = event->now_ns + request->limits->retry_ns;
    move(request, RELAY_WAITING, event->now_ns); /* waiting_since_ns stays: one wait, however often it is tried */
}

static void tokens(struct relay_request *request, const struct relay_event *event, struct relay_actions *actions)
{
    if (event->index != request->token_count) {
        fail(request, event, actions, HTTP_BAD_GATEWAY, 0, "the engine sent token %u when %u was due", event->index,
             request->token_count);
        return;
    }
    if (request->max_tokens != 0 && event->count > request->max_tokens - request->token_count) {
        fail(request, event, actions, HTTP_BAD_GATEWAY, 0, "the engine sent more than the %u tokens asked for",
             request->max_tokens);
        return;
    }
    request->resumes += request->state == RELAY_ASKED && request->token_count > 0;
    request->token_count += event->count;
    actions->forward = true;
    move(request, RELAY_FLOWING, event->now_ns);
}

static void end(struct relay_request *request, const struct relay_event *event, struct relay_actions *actions)
{
    actions->drop = true;
    actions->finish = true;
    move(request, RELAY_DONE, event->now_ns);
}

static void refused(struct relay_request *request, const struct relay_event *event, struct relay_actions *actions)
{
    fail(request, event, actions, event->status, event->status == HTTP_UNAVAILABLE ? RETRY_AFTER_S : 0, "%s",
         event->text);
}

static void broken(struct relay_request *request, const struct relay_event *event, struct relay_actions *actions)
{
    fail(request, event, actions, HTTP_BAD_GATEWAY, 0, "the engine does not keep to its protocol: %s", event->text);
}

/* False: the whole request took too long, and has failed. */
static bool is_in_time(struct relay_request *request, const struct relay_event *event, struct relay_actions *actions)
{
    const uint64_t total_ns = request->limits->total_ns;
    if (event->now_ns - request->arrived_ns < total_ns)
        return true;
    fail(request, event, actions, HTTP_GATEWAY_TIMEOUT, 0, "not finished within %llu ms",
         (unsigned long long)(total_ns / 1000000));
    return false;
}

static void tick_waiting(struct relay_request *request, const struct relay_event *event, struct relay_actions *actions)
{
    const struct relay_limits *limits = request->limits;
    if (!is_in_time(request, event, actions))
        return;
    if (event->now_ns - request->waiting_since_ns >= limits->wait_ns)
        fail(request, event, actions, HTTP_UNAVAILABLE, RETRY_AFTER_S, "no engine served this within %llu ms",
             (unsigned long long)(limits->wait_ns / 1000000));
}

static void tick_running(struct relay_request *request, const struct relay_event *event, struct relay_actions *actions)
{
    const struct relay_limits *limits = request->limits;
    if (!is_in_time(request, event, actions))
        return;
    if (event->now_ns - request->since_ns >= limits->silence_ns)
        fail(request, event, actions, HTTP_GATEWAY_TIMEOUT, RETRY_AFTER_S, "the engine said nothing for %llu ms",
             (unsigned long long)(limits->silence_ns / 1000000));
}

static void gone(struct relay_request *request, const struct relay_event *event, struct relay_actions *actions)
{
    actions->drop = request->state != RELAY_WAITING;
    move(request, RELAY_GONE, event->now_ns);
}

/* ---------------------------------------------------------------------------------------------------- table --- */

/* What is not named here is ignored: news that the state has no use for, and anything after the end. */
static const reaction table[RELAY_STATE_COUNT][RELAY_EVENT_COUNT] = {
    [RELAY_WAITING] = {[RELAY_SERVES] = ask, [RELAY_TICK] = tick_waiting, [RELAY_CLIENT_GONE] = gone},
    [RELAY_ASKED] = {[RELAY_SERVES] = serves,
                     [RELAY_VACANT] = lose,
                     [RELAY_UNASKED] = unasked,
                     [RELAY_LOST] = lose,
                     [RELAY_TOKENS] = tokens,
                     [RELAY_END] = end,
                     [RELAY_REFUSED] = refused,
                     [RELAY_BROKEN] = broken,
                     [RELAY_TICK] = tick_running,
                     [RELAY_CLIENT_GONE] = gone},
    [RELAY_FLOWING] = {[RELAY_SERVES] = serves,
                       [RELAY_VACANT] = lose,
                       [RELAY_LOST] = lose,
                       [RELAY_TOKENS] = tokens,
                       [RELAY_END] = end,
                       [RELAY_REFUSED] = refused,
                       [RELAY_BROKEN] = broken,
                       [RELAY_TICK] = tick_running,
                       [RELAY_CLIENT_GONE] = gone},
};

static bool of_an_attempt(enum relay_event_type type)
{
    return type == RELAY_UNASKED || type == RELAY_LOST || type == RELAY_TOKENS || type == RELAY_END ||
           type == RELAY_REFUSED || type == RELAY_BROKEN;
}

void relay_request_step(struct relay_request *request, const struct relay_event *event,
                        struct relay_actions *ret_actions)
{
    memset(ret_actions, 0, sizeof *ret_actions);
    if (of_an_attempt(event->type) && event->attempt != request->attempt)
        return;
    reaction react = table[request->state][event->type];
    if (react != NULL)
        react(request, event, ret_actions);
}

void relay_request_begin(struct relay_request *request, const struct relay_limits *limits, uint32_t max_tokens,
                         uint64_t now_ns)
{
    *request = (struct relay_request){.limits = limits,
                                      .state = RELAY_WAITING,
                                      .max_tokens = max_tokens,
                                      .arrived_ns = now_ns,
                                      .since_ns = now_ns,
                                      .waiting_since_ns = now_ns};
}

static uint64_t sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

uint64_t relay_request_deadline(const struct relay_request *request)
{
    if (relay_request_over(request))
        return UINT64_MAX;
    const struct relay_limits *limits = request->limits;
    uint64_t a = sum(request->arrived_ns, limits->total_ns);
    uint64_t b = request->state == RELAY_WAITING ? sum(request->waiting_since_ns, limits->wait_ns)
                                                 : sum(request->since_ns, limits->silence_ns);
    return a < b ? a : b;
}

void relay_request_restart(struct relay_request *request, uint64_t now_ns)
{
    if (request->visible || (request->state != RELAY_ASKED && request->state != RELAY_FLOWING))
        return;
    request->attempt++;
    request->token_count = 0;
    move(request, RELAY_ASKED, now_ns);
}

void relay_request_heard(struct relay_request *request, uint64_t now_ns)
{
    if (request->state == RELAY_ASKED || request->state == RELAY_FLOWING)
        request->since_ns = now_ns;
}

bool relay_request_over(const struct relay_request *request)
{
    return request->state == RELAY_DONE || request->state == RELAY_FAILED || request->state == RELAY_GONE;
}

const char *relay_state_name(enum relay_state state)
{
    static const char *const names[RELAY_STATE_COUNT] = {
        [RELAY_WAITING] = "waiting", [RELAY_ASKED] = "asked",   [RELAY_FLOWING] = "flowing",
        [RELAY_DONE] = "done",       [RELAY_FAILED] = "failed", [RELAY_GONE] = "gone"};
    return state < RELAY_STATE_COUNT ? names[state] : "unknown";
}
