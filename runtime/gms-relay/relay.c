/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/relay.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "gms-relay/follow.h"
#include "gms-relay/job.h"
#include "gms-relay/server.h"

enum { TICK_MS = 250 };

struct relay {
    const struct relay_options *options;
    struct relay_server *server;
    struct relay_follow *follow;
    struct relay_jobs jobs;
    struct relay_metrics metrics;
    struct event *timer;
    uint64_t timer_ns; /* when it is due; UINT64_MAX: not set */
    uint64_t heard_serial;
    bool stopping;
};

/* ------------------------------------------------------------------------------------------------ the clock --- */

static void wake_at(struct relay *relay, uint64_t at_ns)
{
    uint64_t now_ns = gms_clock_ns(), left_ns = at_ns > now_ns ? at_ns - now_ns : 0;
    if (at_ns >= relay->timer_ns)
        return;
    struct timeval left = {.tv_sec = (time_t)(left_ns / GMS_NS_PER_S),
                           .tv_usec = (suseconds_t)(left_ns % GMS_NS_PER_S / 1000 + 1)};
    if (left.tv_usec >= 1000000) {
        left.tv_sec++;
        left.tv_usec = 0;
    }
    relay->timer_ns = at_ns;
    event_add(relay->timer, &left);
}

static void on_changed(void *context, uint64_t at_ns)
{
    struct relay *relay = context;
    if (relay->timer != NULL && relay->jobs.count > 0)
        wake_at(relay, at_ns != UINT64_MAX ? at_ns : gms_clock_ns()); /* another may have the place */
}

static const struct relay_serving *serving_of(void *context)
{
    const struct relay *relay = context;
    return relay_follow_look(relay->follow);
}

/* Gives waiting requests, oldest first, to the engine that serves, as many as may be there at once. */
static void offer(struct relay *relay)
{
    const struct relay_serving *serving = relay_follow_look(relay->follow);
    if (serving->engine < 0)
        return;
    struct relay_event event = {.type = RELAY_SERVES, .now_ns = gms_clock_ns(), .incarnation = serving->serial};
    for (struct relay_job *job = relay->jobs.first, *next; job != NULL; job = next) {
        next = job->next;
        if (relay->jobs.running >= relay->options->max_streams)
            return;
        if (job->life.state == RELAY_WAITING)
            relay_job_event(job, &event);
    }
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    struct relay *relay = context;
    uint64_t now_ns = gms_clock_ns(), next_ns = now_ns + TICK_MS * GMS_NS_PER_MS;
    (void)fd;
    (void)what;
    relay->timer_ns = UINT64_MAX;
    for (struct relay_job *job = relay->jobs.first, *next; job != NULL; job = next) {
        next = job->next;
        relay_job_tick(job, now_ns);
    }
    offer(relay);
    bool room = relay->jobs.running < relay->options->max_streams && relay_follow_look(relay->follow)->engine >= 0;
    for (const struct relay_job *job = relay->jobs.first; job != NULL; job = job->next) {
        uint64_t at_ns = relay_request_deadline(&job->life);
        if (job->life.state == RELAY_WAITING && room && job->life.not_before_ns < at_ns)
            at_ns = job->life.not_before_ns;
        next_ns = at_ns < next_ns ? at_ns : next_ns;
    }
    uint64_t soonest_ns = gms_clock_ns() + GMS_NS_PER_MS;
    if (relay->jobs.count > 0)
        wake_at(relay, next_ns > soonest_ns ? next_ns : soonest_ns);
}

static void on_news(void *context)
{
    struct relay *relay = context;
    const struct relay_serving *serving = relay_follow_look(relay->follow);
    struct relay_event event = {.type = serving->engine < 0 ? RELAY_VACANT : RELAY_SERVES,
                                .now_ns = gms_clock_ns(),
                                .incarnation = serving->serial};
    if (serving->engine >= 0 && serving->serial != relay->heard_serial) {
        relay->metrics.takeovers++;
        relay->heard_serial = serving->serial;
        if (!relay_endpoint_good(serving->endpoint))
            gms_log(GMS_LOG_ERROR,
                    "the endpoint %s is none that can be connected to: unix:PATH, tcp:HOST:PORT or "
                    "http://HOST:PORT with a numeric HOST",
                    serving->endpoint);
    }
    for (struct relay_job *job = relay->jobs.first, *next; job != NULL; job = next) {
        next = job->next;
        if (job->life.state != RELAY_WAITING)
            relay_job_event(job, &event);
    }
    offer(relay);
    on_changed(relay, event.now_ns + GMS_NS_PER_MS);
}

/* ------------------------------------------------------------------------------------------------- requests --- */

static void answer_error(struct relay_connection *connection, int status, const char *headers, const char *param,
                         const char *text)
{
    struct relay_text out = {0};
    relay_say_error(&out, status, param, text);
    relay_answer(connection, status, "application/json", headers, out.data != NULL ? out.data : "", out.bytes);
    relay_text_free(&out);
}

static void begin_job(struct relay *relay, struct relay_connection *connection, struct relay_call *call,
                      const struct relay_http_request *request)
{
    uint64_t now_ns = gms_clock_ns();
    if (relay->jobs.count >= relay->options->max_requests || relay->stopping) {
        relay->metrics.requests[call->chat][RELAY_OUTCOME_REFUSED]++;
        relay_call_free(call);
        answer_error(connection, 503, "Retry-After: 1\r\n", "",
                     relay->stopping ? "this relay is about to end" : "too many requests run or wait (--max-requests)");
        return;
    }
    if (relay_job_begin(&relay->jobs, connection, call, request->id, now_ns) == NULL) {
        answer_error(connection, 503, "Retry-After: 1\r\n", "", "out of memory");
        return;
    }
    offer(relay);
    on_changed(relay, now_ns + TICK_MS * GMS_NS_PER_MS);
}

static void complete(struct relay *relay, struct relay_connection *connection, bool chat,
                     const struct relay_http_request *request, const char *body, size_t bytes)
{
    struct relay_call call;
    struct relay_problem problem;
    const char *model = relay->options->model;
    if (!relay_call_read(chat, body, bytes, relay->options->max_tokens, &call, &problem)) {
        relay->metrics.requests[chat][RELAY_OUTCOME_REFUSED]++;
        answer_error(connection, problem.status, "", problem.param, problem.text);
        return;
    }
    if (model[0] != '\0' && call.model[0] != '\0' && strcmp(call.model, model) != 0) {
        char text[2 * RELAY_MODEL_BYTES + 64];
        snprintf(text, sizeof text, "the model '%s' is not served here; it is '%s'", call.model, model);
        relay->metrics.requests[chat][RELAY_OUTCOME_REFUSED]++;
        relay_call_free(&call);
        answer_error(connection, 404, "", "model", text);
        return;
    }
    begin_job(relay, connection, &call, request);
}

static void models(struct relay *relay, struct relay_connection *connection, const struct relay_http_request *request)
{
    const struct relay_serving *serving = relay_follow_look(relay->follow);
    const char *model = relay->options->model;
    if (model[0] == '\0' && serving->engine >= 0 && relay_endpoint_is_openai(serving->endpoint)) {
        struct relay_call call = {.get = "/v1/models", .temperature = -1};
        begin_job(relay, connection, &call, request);
        return;
    }
    struct relay_text out = {0};
    relay_text_print(&out, "{\"object\":\"list\",\"data\":[{\"id\":");
    model = model[0] != '\0' ? model : "default";
    relay_text_json(&out, model, strlen(model));
    relay_text_print(&out, ",\"object\":\"model\",\"created\":0,\"owned_by\":\"gms-relay\"}]}\n");
    relay_answer(connection, 200, "application/json", "", out.data, out.bytes);
    relay_text_free(&out);
}

static void health(const struct relay *relay, struct relay_connection *connection)
{
    const struct relay_serving *serving = relay_follow_look(relay->follow);
    bool serves = serving->engine >= 0 && !relay->stopping;
    char body[256];
    int length = snprintf(body, sizeof body,
                          "{\"status\":\"%s\",\"engine\":%d,\"incarnation\":%llu,\"epoch\":%llu,\"coordinator\":%s}\n",
                          relay->stopping ? "ending"
                          : serves        ? "serving"
                                          : "nobody serves",
                          serving->engine, (unsigned long long)(serving->engine >= 0 ? serving->incarnation : 0),
                          (unsigned long long)serving->epoch, relay_follow_connected(relay->follow) ? "true" : "false");
    relay_answer(connection, serves ? 200 : 503, "application/json", serves ? "" : "Retry-After: 1\r\n", body,
                 (size_t)length);
}

static void metrics(const struct relay *relay, struct relay_connection *connection)
{
    const struct relay_serving *serving = relay_follow_look(relay->follow);
    const struct relay_server_counts *counts = relay_server_counts(relay->server);
    const struct relay_gauges gauges = {.waiting = relay->jobs.count - relay->jobs.running,
                                        .running = relay->jobs.running,
                                        .connections = counts->open,
                                        .engine = serving->engine,
                                        .coordinator = relay_follow_connected(relay->follow),
                                        .epoch = serving->epoch,
                                        .accepted = counts->accepted,
                                        .turned_away = counts->refused,
                                        .bad_requests = counts->bad_requests,
                                        .timeouts = counts->timeouts,
                                        .stalled = counts->stalled};
    struct relay_text out = {0};
    relay_metrics_write(&relay->metrics, &gauges, &out);
    relay_answer(connection, 200, "text/plain; version=0.0.4", "", out.data != NULL ? out.data : "", out.bytes);
    relay_text_free(&out);
}

enum route { ROUTE_COMPLETIONS, ROUTE_CHAT, ROUTE_MODELS, ROUTE_HEALTH, ROUTE_METRICS };

static const struct {
    const char *path;
    enum route route;
    bool posts;
} routes[] = {{"/v1/completions", ROUTE_COMPLETIONS, true},
              {"/v1/chat/completions", ROUTE_CHAT, true},
              {"/v1/models", ROUTE_MODELS, false},
              {"/health", ROUTE_HEALTH, false},
              {"/metrics", ROUTE_METRICS, false}};

static void on_request(void *context, struct relay_connection *connection, const struct relay_http_request *request,
                       const char *body, size_t bytes)
{
    struct relay *relay = context;
    bool post = strcmp(request->method, "POST") == 0;
    bool get = strcmp(request->method, "GET") == 0 || strcmp(request->method, "HEAD") == 0;
    size_t i = 0;
    while (i < sizeof routes / sizeof routes[0] && strcmp(routes[i].path, request->path) != 0)
        i++;
    if (i == sizeof routes / sizeof routes[0]) {
        answer_error(connection, 404, "", "",
                     "no such path; there are /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics");
        return;
    }
    if (routes[i].posts ? !post : !get) {
        answer_error(connection, 405, routes[i].posts ? "Allow: POST\r\n" : "Allow: GET, HEAD\r\n", "",
                     routes[i].posts ? "this path takes POST" : "this path takes GET");
        return;
    }
    switch (routes[i].route) {
    case ROUTE_COMPLETIONS:
    case ROUTE_CHAT:
        complete(relay, connection, routes[i].route == ROUTE_CHAT, request, body, bytes);
        break;
    case ROUTE_MODELS:
        models(relay, connection, request);
        break;
    case ROUTE_HEALTH:
        health(relay, connection);
        break;
    case ROUTE_METRICS:
        metrics(relay, connection);
        break;
    }
}

static void on_gone(void *context, struct relay_connection *connection)
{
    (void)context;
    struct relay_job *job = relay_connection_get(connection);
    const struct relay_event event = {.type = RELAY_CLIENT_GONE, .now_ns = gms_clock_ns()};
    relay_job_event(job, &event);
}

static void on_drained(void *context, struct relay_connection *connection)
{
    (void)context;
    relay_job_drained(relay_connection_get(connection));
}

/* ---------------------------------------------------------------------------------------------------- life ---- */

gms_status relay_open(struct event_base *base, const struct relay_options *options, struct relay **ret_relay,
                      struct gms_error *ret_error)
{
    struct relay *relay = calloc(1, sizeof *relay);
    if (relay == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the relay");
    relay->options = options;
    relay->timer_ns = UINT64_MAX;
    relay->jobs = (struct relay_jobs){.base = base,
                                      .options = options,
                                      .metrics = &relay->metrics,
                                      .serving = serving_of,
                                      .changed = on_changed,
                                      .context = relay};
    const struct relay_server_options server = {.host = options->host,
                                                .port = options->port,
                                                .max_connections = options->max_connections,
                                                .max_body_bytes = (size_t)options->max_body_bytes,
                                                .head_ns = options->head_ns,
                                                .body_ns = options->body_ns,
                                                .idle_ns = options->idle_ns,
                                                .stall_ns = options->stall_ns,
                                                .request = on_request,
                                                .gone = on_gone,
                                                .drained = on_drained,
                                                .context = relay};
    relay->timer = event_new(base, -1, 0, on_timer, relay);
    gms_status status = relay->timer == NULL ? gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the relay") : GMS_OK;
    if (status == GMS_OK)
        status = relay_server_open(base, &server, &relay->server, ret_error);
    if (status == GMS_OK)
        status = relay_follow_open(base, options->run_dir, on_news, relay, &relay->follow, ret_error);
    if (status != GMS_OK) {
        relay_close(relay);
        return status;
    }
    *ret_relay = relay;
    return GMS_OK;
}

void relay_close(struct relay *relay)
{
    if (relay == NULL)
        return;
    if (relay->timer != NULL)
        event_free(relay->timer);
    relay->timer = NULL;
    while (relay->jobs.first != NULL)
        relay_job_cut(relay->jobs.first);
    relay_server_close(relay->server);
    relay_follow_close(relay->follow);
    free(relay);
}

const char *relay_address(const struct relay *relay)
{
    return relay_server_address(relay->server);
}

void relay_stop(struct relay *relay)
{
    if (!relay->stopping)
        relay_server_stop_listening(relay->server);
    relay->stopping = true;
}

bool relay_idle(const struct relay *relay)
{
    return relay->jobs.count == 0;
}
