/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/upstream.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "gms-relay/http.h"
#include "gms-relay/lines.h"
#include "gms-relay/openai.h"

enum {
    CONNECT_S = 2, /* a host that does not answer at all */
    READ_AHEAD_BYTES = 256 * 1024,
    EVENT_BYTES = 1024 * 1024, /* longest event of an OpenAI stream */
    WHOLE_BYTES = 16 * 1024 * 1024,
    PROMPT_TOKENS = 4 * 1024 * 1024,
};

struct relay_upstream {
    struct relay_upstream_events events;
    void *context;
    struct bufferevent *bev;
    struct event *reaper;
    struct relay_address address;
    uint64_t incarnation;
    char id[129];
    uint32_t sent_tokens; /* re-sent by this ask */
    char *request;        /* owned; not said yet */
    size_t request_bytes;
    bool asked, over, chat, verbatim, streams, spoke; /* spoke: tokens or text have come */
    /* OpenAI */
    bool has_head, complete; /* complete: [DONE] or the whole body was seen */
    size_t scanned;
    struct relay_http_response response;
    struct relay_chunks chunks;
    struct relay_text body; /* what is not a whole line yet, or the whole answer */
    size_t body_read;
    struct relay_ending ending;
};

/* ------------------------------------------------------------------------------------------------- endings ---- */

static void stop(struct relay_upstream *upstream)
{
    upstream->over = true;
    bufferevent_disable(upstream->bev, EV_READ | EV_WRITE);
}

static void lost(struct relay_upstream *upstream, const char *text)
{
    if (upstream->over)
        return;
    stop(upstream);
    if (upstream->ending.reason[0] != '\0' && strcmp(upstream->ending.reason, "abort") != 0)
        upstream->events.ended(upstream->context, &upstream->ending); /* only the last word was cut off */
    else if (upstream->asked)
        upstream->events.lost(upstream->context, text);
    else
        upstream->events.unasked(upstream->context, text);
}

static void unasked(struct relay_upstream *upstream, const char *text)
{
    stop(upstream);
    upstream->events.unasked(upstream->context, text);
}

static void broken(struct relay_upstream *upstream, const char *text)
{
    stop(upstream);
    upstream->events.broken(upstream->context, text);
}

static void refused(struct relay_upstream *upstream, int status, const char *text)
{
    stop(upstream);
    upstream->events.refused(upstream->context, status, text);
}

static void ended(struct relay_upstream *upstream)
{
    stop(upstream);
    upstream->events.ended(upstream->context, &upstream->ending);
}

static void say_request(struct relay_upstream *upstream)
{
    upstream->asked = true;
    bufferevent_write(upstream->bev, upstream->request, upstream->request_bytes);
    free(upstream->request);
    upstream->request = NULL;
}

/* --------------------------------------------------------------------------------------------------- lines ---- */

static void take_line(struct relay_upstream *upstream, const char *text, size_t bytes)
{
    struct relay_line line;
    char why[RELAY_LINE_WHY_BYTES];
    if (!relay_lines_read(text, bytes, &line, why)) {
        broken(upstream, why);
        return;
    }
    if (!upstream->asked) {
        if (line.kind != RELAY_LINE_HELLO)
            unasked(upstream, line.kind == RELAY_LINE_ERROR ? line.error : "it did not greet");
        else if (upstream->incarnation != 0 && line.incarnation != upstream->incarnation)
            unasked(upstream, "another incarnation answers at this endpoint");
        else
            say_request(upstream);
        return;
    }
    if (line.kind == RELAY_LINE_ERROR) {
        refused(upstream, 400, line.error);
    } else if (line.kind == RELAY_LINE_HELLO || strcmp(line.id, upstream->id) != 0) {
        broken(upstream, "a line that belongs to another request");
    } else if (line.kind == RELAY_LINE_DONE) {
        snprintf(upstream->ending.reason, sizeof upstream->ending.reason, "%s",
                 line.reason[0] != '\0' ? line.reason : "length");
        upstream->ending.usage = (struct relay_usage){
            .known = true,
            .prompt = line.prompt_tokens > upstream->sent_tokens ? line.prompt_tokens - upstream->sent_tokens : 0,
            .cached = line.cached_tokens};
        ended(upstream);
    } else if (line.text_bytes == 0) {
        broken(upstream, "a token without its text");
    } else {
        const struct relay_piece piece = {.text = line.text,
                                          .text_bytes = line.text_bytes,
                                          .tokens = &line.token,
                                          .token_count = 1,
                                          .has_index = true,
                                          .index = line.index};
        upstream->events.piece(upstream->context, &piece);
    }
}

static void read_lines(struct relay_upstream *upstream, struct evbuffer *in)
{
    while (!upstream->over) {
        struct evbuffer_ptr end = evbuffer_search_eol(in, NULL, NULL, EVBUFFER_EOL_LF);
        if (end.pos < 0) {
            if (evbuffer_get_length(in) > RELAY_LINE_BYTES)
                broken(upstream, "a line of more than 65536 bytes");
            return;
        }
        const char *line = (const char *)evbuffer_pullup(in, end.pos + 1);
        if (line == NULL) {
            lost(upstream, "out of memory");
            return;
        }
        take_line(upstream, line, (size_t)end.pos);
        if (!upstream->over)
            evbuffer_drain(in, (size_t)end.pos + 1);
    }
}

/* -------------------------------------------------------------------------------------------------- OpenAI ---- */

static uint32_t *copy_numbers(const json_t *array, size_t *ret_count)
{
    size_t count = json_array_size(array);
    uint32_t *values = count > 0 && count <= PROMPT_TOKENS ? calloc(count, sizeof *values) : NULL;
    *ret_count = values != NULL ? count : 0;
    for (size_t i = 0; i < *ret_count; i++)
        values[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return values;
}

static void take_event(struct relay_upstream *upstream, const char *data, size_t bytes)
{
    struct relay_delta delta;
    const char *why;
    if (bytes == 6 && memcmp(data, "[DONE]", 6) == 0) {
        upstream->complete = true;
        if (strcmp(upstream->ending.reason, "abort") == 0)
            lost(upstream, "the engine aborted the request");
        else
            ended(upstream);
        return;
    }
    if (!relay_openai_read(data, bytes, &delta, &why)) {
        broken(upstream, why);
        return;
    }
    if (delta.error[0] != '\0') {
        /* Its own fault is its death, for us: the API server outlives the engine by a moment. What is wrong with a
         * request is said before its first token. */
        if (delta.error_status >= 400 && delta.error_status < 500 && !delta.engine_died && !upstream->spoke)
            refused(upstream, delta.error_status, delta.error);
        else
            lost(upstream, delta.error);
        relay_delta_free(&delta);
        return;
    }
    if (delta.reason[0] != '\0')
        memcpy(upstream->ending.reason, delta.reason, sizeof delta.reason);
    if (delta.usage.known)
        upstream->ending.usage = delta.usage;
    struct relay_piece piece = {.text = delta.text,
                                .text_bytes = delta.text_bytes,
                                .foreign = delta.foreign,
                                .event = data,
                                .event_bytes = bytes};
    uint32_t *tokens = copy_numbers(delta.tokens, &piece.token_count);
    uint32_t *prompt = copy_numbers(delta.prompt, &piece.prompt_count);
    piece.tokens = tokens;
    piece.prompt = prompt;
    upstream->spoke |= piece.text_bytes > 0 || piece.token_count > 0 || piece.foreign;
    if (upstream->verbatim || piece.text_bytes > 0 || piece.token_count > 0 || piece.prompt_count > 0 || piece.foreign)
        upstream->events.piece(upstream->context, &piece);
    free(tokens);
    free(prompt);
    relay_delta_free(&delta);
}

/* Lines of text/event-stream; only data lines mean anything here. */
static void take_events(struct relay_upstream *upstream)
{
    struct relay_text *body = &upstream->body;
    while (!upstream->over) {
        char *start = body->data + upstream->body_read;
        char *end = body->bytes > upstream->body_read ? memchr(start, '\n', body->bytes - upstream->body_read) : NULL;
        if (end == NULL)
            break;
        size_t bytes = (size_t)(end - start);
        upstream->body_read += bytes + 1;
        if (bytes > 0 && start[bytes - 1] == '\r')
            bytes--;
        if (bytes < 5 || memcmp(start, "data:", 5) != 0)
            continue;
        size_t skip = bytes > 5 && start[5] == ' ' ? 6 : 5;
        take_event(upstream, start + skip, bytes - skip);
    }
    if (upstream->over)
        return;
    size_t left = body->bytes - upstream->body_read;
    if (left > 0)
        memmove(body->data, body->data + upstream->body_read, left);
    body->bytes = left;
    upstream->body_read = 0;
    if (left > EVENT_BYTES)
        broken(upstream, "an event of more than a MiB");
}

static void take_whole(struct relay_upstream *upstream)
{
    struct relay_delta delta;
    const char *why;
    int status = upstream->response.status;
    upstream->complete = true;
    if (status >= 200 && status < 300) {
        upstream->ending.body = upstream->body.data;
        upstream->ending.body_bytes = upstream->body.bytes;
        if (upstream->verbatim && !upstream->streams)
            ended(upstream);
        else
            broken(upstream, "a whole answer where a stream was asked for");
        return;
    }
    char text[220];
    if (upstream->body.bytes > 0 && relay_openai_read(upstream->body.data, upstream->body.bytes, &delta, &why)) {
        const char *detail = json_string_value(json_object_get(delta.root, "message"));
        if (detail == NULL)
            detail = json_string_value(json_object_get(delta.root, "detail"));
        snprintf(text, sizeof text, "%s",
                 delta.error[0] != '\0' ? delta.error
                 : detail != NULL       ? detail
                                        : "the engine refused the request");
        relay_delta_free(&delta);
    } else {
        snprintf(text, sizeof text, "the engine answered with status %d", status);
    }
    if (status == 503 || status == 429)
        unasked(upstream, text);
    else if (status >= 500)
        lost(upstream, text);
    else
        refused(upstream, status >= 400 ? status : 502, text);
}

static void take_body(struct relay_upstream *upstream, const char *data, size_t bytes)
{
    relay_text_add(&upstream->body, data, bytes);
    bool events = upstream->response.event_stream && upstream->response.status == 200;
    if (upstream->body.failed || upstream->body.bytes > WHOLE_BYTES)
        broken(upstream, "an answer that is too long");
    else if (events)
        take_events(upstream);
}

static void body_ended(struct relay_upstream *upstream)
{
    if (upstream->over)
        return;
    if (upstream->response.event_stream && upstream->response.status == 200)
        lost(upstream, "the stream ended before its end");
    else
        take_whole(upstream);
}

static bool take_head(struct relay_upstream *upstream, struct evbuffer *in)
{
    size_t there = evbuffer_get_length(in), most = RELAY_HTTP_HEAD_BYTES;
    const char *why, *head = (const char *)evbuffer_pullup(in, (ev_ssize_t)(there < most ? there : most));
    size_t bytes = head != NULL ? relay_http_head_end(head, there < most ? there : most, &upstream->scanned) : 0;
    if (bytes == 0) {
        if (there >= most)
            broken(upstream, "the head of its answer is too long");
        return false;
    }
    if (relay_http_read_response(head, bytes, &upstream->response, &why) != 0) {
        broken(upstream, why);
        return false;
    }
    evbuffer_drain(in, bytes);
    upstream->scanned = 0;
    upstream->has_head = upstream->response.status >= 200; /* 1xx: another head follows */
    return true;
}

static void read_openai(struct relay_upstream *upstream, struct evbuffer *in)
{
    while (!upstream->over && evbuffer_get_length(in) > 0) {
        if (!upstream->has_head) {
            if (!take_head(upstream, in))
                return;
            if (upstream->has_head && upstream->response.has_length && upstream->response.length == 0)
                body_ended(upstream);
            continue;
        }
        size_t there = evbuffer_get_contiguous_space(in), used = there, bytes = there;
        const char *data = (const char *)evbuffer_pullup(in, (ev_ssize_t)there), *piece = data;
        if (upstream->response.chunked)
            used = relay_http_chunks(&upstream->chunks, data, there, &piece, &bytes);
        else if (upstream->response.has_length && bytes > upstream->response.length)
            used = bytes = (size_t)upstream->response.length;
        take_body(upstream, piece, bytes);
        if (upstream->over)
            return;
        evbuffer_drain(in, used);
        if (upstream->response.has_length) {
            upstream->response.length -= bytes;
            if (upstream->response.length == 0)
                body_ended(upstream);
        }
        if (upstream->response.chunked && upstream->chunks.state == RELAY_CHUNK_BAD)
            broken(upstream, "its chunks are malformed");
        else if (upstream->response.chunked && upstream->chunks.state == RELAY_CHUNK_DONE)
            body_ended(upstream);
    }
}

/* ------------------------------------------------------------------------------------------------ callbacks --- */

static void on_readable(struct bufferevent *bev, void *context)
{
    struct relay_upstream *upstream = context;
    if (upstream->over)
        return;
    if (upstream->address.openai)
        read_openai(upstream, bufferevent_get_input(bev));
    else
        read_lines(upstream, bufferevent_get_input(bev));
}

static void on_event(struct bufferevent *bev, short what, void *context)
{
    struct relay_upstream *upstream = context;
    if (upstream->over)
        return;
    if ((what & BEV_EVENT_CONNECTED) != 0) {
        int yes = 1;
        bufferevent_set_timeouts(bev, NULL, NULL); /* from here on silence is the request's business */
        if (upstream->address.any.sa_family != AF_UNIX)
            setsockopt(bufferevent_getfd(bev), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        if (upstream->address.openai)
            say_request(upstream);
        return;
    }
    if ((what & BEV_EVENT_EOF) != 0 && upstream->has_head && !upstream->response.chunked &&
        !upstream->response.has_length) {
        body_ended(upstream); /* until the end of the connection */
        return;
    }
    lost(upstream, (what & BEV_EVENT_EOF) != 0       ? "the connection to the engine ended"
                   : (what & BEV_EVENT_TIMEOUT) != 0 ? "the engine's host does not answer"
                                                     : strerror(errno));
}

static void release(struct relay_upstream *upstream)
{
    if (upstream->bev != NULL)
        bufferevent_free(upstream->bev);
    if (upstream->reaper != NULL)
        event_free(upstream->reaper);
    free(upstream->request);
    relay_text_free(&upstream->body);
    free(upstream);
}

static void on_reap(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    release(context);
}

/* -------------------------------------------------------------------------------------------------- public ---- */

static char *make_request(const struct relay_upstream_ask *ask, const struct relay_address *address, size_t *ret_bytes)
{
    if (address->openai) {
        const struct relay_openai_ask words = {.call = ask->call,
                                               .host = address->host,
                                               .prefix = address->prefix,
                                               .prompt = ask->prompt,
                                               .prompt_count = ask->prompt_count,
                                               .tokens = ask->tokens,
                                               .token_count = ask->token_count,
                                               .verbatim = ask->verbatim};
        return relay_openai_request(&words, ret_bytes);
    }
    struct relay_problem problem;
    struct relay_lines_ask words = {.id = ask->id,
                                    .generated = ask->tokens,
                                    .generated_count = ask->token_count,
                                    .max_tokens = ask->max_tokens,
                                    .temperature = ask->temperature,
                                    .seed = ask->seed,
                                    .with_text = true};
    char *text = NULL, *line = NULL;
    uint32_t *tokens = NULL;
    if (relay_call_prompt(ask->call, &text, &tokens, &words.prompt_count, &problem)) {
        words.prompt = text;
        words.prompt_tokens = tokens;
        line = relay_lines_generate(&words, ret_bytes);
    }
    free(text);
    free(tokens);
    return line;
}

struct relay_upstream *relay_upstream_begin(struct event_base *base, const struct relay_upstream_ask *ask,
                                            const struct relay_upstream_events *events, void *context)
{
    struct relay_upstream *upstream = calloc(1, sizeof *upstream);
    if (upstream == NULL)
        return NULL;
    upstream->events = *events;
    upstream->context = context;
    upstream->incarnation = ask->incarnation;
    upstream->chat = ask->call->chat;
    upstream->verbatim = ask->verbatim;
    upstream->streams = ask->call->stream;
    upstream->sent_tokens = (uint32_t)ask->token_count;
    snprintf(upstream->id, sizeof upstream->id, "%s", ask->id);
    if (relay_address_read(ask->endpoint, &upstream->address))
        upstream->request = make_request(ask, &upstream->address, &upstream->request_bytes);
    upstream->reaper = event_new(base, -1, 0, on_reap, upstream);
    upstream->bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (upstream->request == NULL || upstream->reaper == NULL || upstream->bev == NULL) {
        release(upstream);
        return NULL;
    }
    bufferevent_setcb(upstream->bev, on_readable, NULL, on_event, upstream);
    bufferevent_setwatermark(upstream->bev, EV_READ, 0, READ_AHEAD_BYTES);
    const struct timeval patience = {.tv_sec = CONNECT_S};
    bufferevent_set_timeouts(upstream->bev, NULL, &patience);
    bufferevent_enable(upstream->bev, EV_READ | EV_WRITE);
    if (bufferevent_socket_connect(upstream->bev, &upstream->address.any, (int)upstream->address.bytes) != 0) {
        release(upstream);
        return NULL;
    }
    return upstream;
}

void relay_upstream_pause(struct relay_upstream *upstream, bool pause)
{
    if (upstream->over)
        return;
    if (pause)
        bufferevent_disable(upstream->bev, EV_READ);
    else
        bufferevent_enable(upstream->bev, EV_READ);
}

void relay_upstream_drop(struct relay_upstream *upstream)
{
    if (upstream == NULL)
        return;
    stop(upstream);
    upstream->context = NULL;
    event_active(upstream->reaper, EV_TIMEOUT, 0); /* not under the hands of a callback */
}
