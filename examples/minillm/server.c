/* SPDX-License-Identifier: Apache-2.0 */
#include "server.h"

#include "endpoint.h"
#include "log.h"
#include "protocol.h"
#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ACCEPT_AT_ONCE = 64 };

struct request {
    struct request *next, *previous; /* of its client */
    struct client *client;
    struct sequence *sequence; /* borrowed from the scheduler; valid while this request exists */
    char *id_json;             /* owned */
    bool with_text;
    char id[PROTOCOL_ID_BYTES + 1];
    char log_id[3 * PROTOCOL_ID_BYTES + 4];
};

struct buffer {
    char *bytes; /* owned */
    size_t used, capacity, start;
};

struct client {
    struct client *next, *previous;
    struct request *requests;
    uint32_t request_count;
    int fd;
    bool dead;     /* reaped at the next poll, never inside a callback */
    bool skipping; /* inside a line that was too long */
    struct buffer in, out;
};

struct server {
    struct endpoint endpoint;
    bool serving;
    struct server_identity identity;
    struct scheduler *scheduler;
    struct client *clients;
    uint32_t client_count;
    struct pollfd *fds; /* owned */
    uint32_t fd_capacity;
    bool accept_paused; /* out of descriptors: do not spin on the listener */
};

static bool buffer_append(struct buffer *b, const void *bytes, size_t count, size_t limit)
{
    if (b->start > 0 && (b->start == b->used || b->used + count > b->capacity)) {
        memmove(b->bytes, b->bytes + b->start, b->used - b->start);
        b->used -= b->start;
        b->start = 0;
    }
    if (b->used + count > limit)
        return false;
    if (b->used + count > b->capacity) {
        size_t capacity = (b->used + count) * 2;
        char *grown = realloc(b->bytes, capacity);
        if (grown == NULL)
            return false;
        b->bytes = grown;
        b->capacity = capacity;
    }
    memcpy(b->bytes + b->used, bytes, count);
    b->used += count;
    return true;
}

static void flush(struct client *c)
{
    while (!c->dead && c->out.start < c->out.used) {
        ssize_t sent =
            send(c->fd, c->out.bytes + c->out.start, c->out.used - c->out.start, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0)
            c->out.start += (size_t)sent;
        else if (errno == EAGAIN)
            return;
        else if (errno != EINTR)
            c->dead = true;
    }
    c->out.start = c->out.used = 0;
}

static void client_write(struct client *c, const char *text, size_t length)
{
    if (c->dead)
        return;
    if (!buffer_append(&c->out, text, length, SERVER_OUTPUT_BYTES)) {
        note(NOTE_WARNING, "a client left more than %d bytes of output unread; it is dropped", SERVER_OUTPUT_BYTES);
        c->dead = true;
    }
}

/* Lines that have a bound: numbers and one id. */
__attribute__((format(printf, 2, 3))) static void client_print(struct client *c, const char *format, ...)
{
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length > 0 && (size_t)length < sizeof line)
        client_write(c, line, (size_t)length);
    else
        c->dead = true;
}

static void client_error(struct client *c, const char *id_json, const char *text)
{
    char *line = protocol_error(id_json, text);
    if (line == NULL)
        c->dead = true;
    else
        client_write(c, line, strlen(line));
    free(line);
}

/* ------------------------------------------------------------------------------------------------ requests ---- */

static void request_free(struct request *r)
{
    struct client *c = r->client;
    if (r->previous == NULL)
        c->requests = r->next;
    else
        r->previous->next = r->next;
    if (r->next != NULL)
        r->next->previous = r->previous;
    c->request_count--;
    free(r->id_json);
    free(r);
}

static void sink_token(void *context, void *owner, uint32_t index, uint32_t token)
{
    (void)context;
    struct request *r = owner;
    event_log("token id=%s index=%" PRIu32 " token=%" PRIu32, r->log_id, index, token);
    if (!r->with_text) {
        client_print(r->client, "{\"id\":%s,\"index\":%" PRIu32 ",\"token\":%" PRIu32 "}\n", r->id_json, index, token);
        return;
    }
    char text[TEXT_TOKEN_BYTES + 1];
    size_t length = text_of_token(token, text);
    text[length] = '\0';
    const char *shown = token == '\n' ? "\\n" : token == '"' ? "\\\"" : token == '\\' ? "\\\\" : text;
    client_print(r->client, "{\"id\":%s,\"index\":%" PRIu32 ",\"token\":%" PRIu32 ",\"text\":\"%s\"}\n", r->id_json,
                 index, token, shown);
}

static void sink_done(void *context, void *owner, const struct scheduler_usage *usage)
{
    (void)context;
    struct request *r = owner;
    client_print(r->client,
                 "{\"id\":%s,\"done\":true,\"reason\":\"length\",\"prompt_tokens\":%" PRIu32
                 ",\"cached_tokens\":%" PRIu32 ",\"salvaged_tokens\":%" PRIu32 ",\"computed_tokens\":%" PRIu32 "}\n",
                 r->id_json, usage->prompt_tokens, usage->cached_tokens, usage->salvaged_tokens,
                 usage->computed_tokens);
    request_free(r);
}

struct scheduler_sink server_sink(struct server *server)
{
    return (struct scheduler_sink){.token = sink_token, .done = sink_done, .context = server};
}

static void handle_generate(struct server *s, struct client *c, struct protocol_message *m)
{
    for (const struct request *r = c->requests; r != NULL; r = r->next)
        if (strcmp(r->id, m->id) == 0) {
            client_error(c, m->id_json, "a request with this id is running on this connection");
            return;
        }
    if (c->request_count >= SERVER_CLIENT_REQUESTS) {
        client_error(c, m->id_json, "too many requests on this connection; wait for some to end");
        return;
    }
    struct request *r = calloc(1, sizeof *r);
    char text[PROTOCOL_TEXT_BYTES] = "out of memory for this request";
    if (r != NULL) {
        struct scheduler_request wanted = {.prompt = m->tokens,
                                           .generated = m->tokens + m->prompt_count,
                                           .prompt_count = m->prompt_count,
                                           .generated_count = m->generated_count,
                                           .max_tokens = m->max_tokens,
                                           .temperature = m->temperature,
                                           .seed = m->seed,
                                           .owner = r};
        r->sequence = scheduler_submit(s->scheduler, &wanted, text, sizeof text);
    }
    if (r == NULL || r->sequence == NULL) {
        free(r);
        client_error(c, m->id_json, text);
        return;
    }
    r->client = c;
    r->with_text = m->with_text;
    r->id_json = m->id_json;
    m->id_json = NULL;
    memcpy(r->id, m->id, sizeof r->id);
    event_log_escape(r->id, r->log_id, sizeof r->log_id);
    r->next = c->requests;
    if (r->next != NULL)
        r->next->previous = r;
    c->requests = r;
    c->request_count++;
}

static void handle_line(struct server *s, struct client *c, const char *line, size_t length)
{
    struct protocol_message m;
    char text[PROTOCOL_TEXT_BYTES];
    if (!protocol_parse(line, length, s->identity.vocabulary, s->identity.context_tokens, s->identity.world_size, &m,
                        text)) {
        client_error(c, m.id_json, text);
        protocol_free(&m);
        return;
    }
    switch (m.operation) {
    case PROTOCOL_GENERATE:
        handle_generate(s, c, &m);
        break;
    case PROTOCOL_STATS: {
        struct scheduler_stats t = scheduler_get_stats(s->scheduler);
        client_print(c,
                     "{\"stats\":{\"sealed\":%" PRIu32 ",\"active\":%" PRIu32 ",\"waiting\":%" PRIu32
                     ",\"steps\":%" PRIu64 ",\"idle\":%" PRIu32 ",\"quarantined\":%" PRIu32 ",\"adopted\":%" PRIu32
                     "}}\n",
                     t.sealed, t.active, t.waiting, t.steps, t.idle, t.quarantined, t.adopted);
        break;
    }
    case PROTOCOL_ARM:
        if (scheduler_arm(s->scheduler, m.drill))
            client_print(c, "{\"armed\":true}\n");
        else
            client_error(c, NULL, "too many drills were armed at once; arm again after the next step");
        break;
    }
    protocol_free(&m);
}

/* ------------------------------------------------------------------------------------------------- clients ---- */

static void client_free(struct server *s, struct client *c)
{
    while (c->requests != NULL) {
        struct request *r = c->requests;
        scheduler_cancel(s->scheduler, r->sequence);
        request_free(r);
    }
    if (c->previous == NULL)
        s->clients = c->next;
    else
        c->previous->next = c->next;
    if (c->next != NULL)
        c->next->previous = c->previous;
    s->client_count--;
    s->accept_paused = false;
    close(c->fd);
    free(c->in.bytes);
    free(c->out.bytes);
    free(c);
}

static void split_lines(struct server *s, struct client *c)
{
    static const char too_long[] = "line is longer than 1048576 bytes; it is skipped";
    struct buffer *in = &c->in;
    while (!c->dead) {
        char *start = in->bytes + in->start;
        char *newline = in->start == in->used ? NULL : memchr(start, '\n', in->used - in->start);
        if (newline == NULL)
            break;
        size_t length = (size_t)(newline - start);
        in->start += length + 1;
        if (c->skipping)
            c->skipping = false;
        else if (length > PROTOCOL_LINE_BYTES)
            client_error(c, NULL, too_long);
        else if (length > 0)
            handle_line(s, c, start, length);
    }
    if (!c->skipping && in->used - in->start > PROTOCOL_LINE_BYTES) {
        client_error(c, NULL, too_long);
        c->skipping = true;
    }
    if (c->skipping)
        in->start = in->used = 0;
}

static void client_read(struct server *s, struct client *c)
{
    char chunk[65536];
    ssize_t got = recv(c->fd, chunk, sizeof chunk, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0 || !buffer_append(&c->in, chunk, (size_t)got, PROTOCOL_LINE_BYTES + 2 * sizeof chunk)) {
        c->dead = true;
        return;
    }
    split_lines(s, c);
}

/* False: nobody waits, or nobody can be let in now. */
static bool accept_one(struct server *s)
{
    int fd = accept4(s->endpoint.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        /* Out of descriptors: the connection stays queued until a client leaves. */
        s->accept_paused = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        return errno == ECONNABORTED || errno == EINTR;
    }
    struct client *c = s->client_count < SERVER_MAX_CLIENTS ? calloc(1, sizeof *c) : NULL;
    if (c == NULL) {
        static const char full[] = "{\"error\":\"too many clients; try again later\"}\n";
        ssize_t sent = send(fd, full, sizeof full - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)sent;
        close(fd);
        return true;
    }
    c->fd = fd;
    c->next = s->clients;
    if (c->next != NULL)
        c->next->previous = c;
    s->clients = c;
    s->client_count++;
    client_print(c,
                 "{\"hello\":\"minillm\",\"engine\":%" PRIu32 ",\"incarnation\":%" PRIu64 ",\"epoch\":%" PRIu64
                 ",\"pid\":%d}\n",
                 s->identity.engine, s->identity.incarnation, s->identity.epoch, (int)getpid());
    return true;
}

static void flush_and_reap(struct server *s)
{
    struct client *next;
    for (struct client *c = s->clients; c != NULL; c = next) {
        next = c->next;
        flush(c);
        if (c->dead)
            client_free(s, c);
    }
}

void server_poll(struct server *s, int64_t timeout_ns, struct pollfd *extra, uint32_t extra_count)
{
    flush_and_reap(s);
    uint32_t count = extra_count + 1 + s->client_count;
    if (count > s->fd_capacity) {
        struct pollfd *grown = realloc(s->fds, count * 2 * sizeof *grown);
        if (grown == NULL)
            return;
        s->fds = grown;
        s->fd_capacity = count * 2;
    }
    struct pollfd *fds = s->fds;
    if (extra_count != 0)
        memcpy(fds, extra, extra_count * sizeof *fds);
    bool accepting = s->serving && !s->accept_paused;
    fds[extra_count] = (struct pollfd){.fd = accepting ? s->endpoint.fd : -1, .events = POLLIN};
    uint32_t i = extra_count + 1;
    for (struct client *c = s->clients; c != NULL; c = c->next)
        fds[i++] = (struct pollfd){.fd = c->fd, .events = (short)(POLLIN | (c->out.start < c->out.used ? POLLOUT : 0))};
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    int ready = ppoll(fds, count, timeout_ns < 0 ? NULL : &timeout, NULL);
    for (i = 0; i < extra_count; i++)
        extra[i].revents = ready > 0 ? fds[i].revents : 0;
    if (ready <= 0)
        return;
    /* Clients that are accepted below are put in front of this walk, so it stays in step with fds. */
    i = extra_count + 1;
    for (struct client *c = s->clients; c != NULL; c = c->next, i++)
        if ((fds[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
            client_read(s, c);
    /* After a failover they all come at once; a step lies between two polls. */
    if ((fds[extra_count].revents & POLLIN) != 0)
        for (uint32_t accepted = 0; accepted < ACCEPT_AT_ONCE && accept_one(s); accepted++)
            ;
    flush_and_reap(s);
}

/* --------------------------------------------------------------------------------------------------- life ----- */

struct server *server_open(const char *listen_on, char *ret_text, size_t text_bytes)
{
    struct server *s = calloc(1, sizeof *s);
    if (s == NULL) {
        snprintf(ret_text, text_bytes, "out of memory");
        return NULL;
    }
    if (!endpoint_open(&s->endpoint, listen_on, ret_text, text_bytes)) {
        free(s);
        return NULL;
    }
    return s;
}

const char *server_endpoint(const struct server *server)
{
    return server->endpoint.name;
}

bool server_listen(struct server *s, char *ret_text, size_t text_bytes)
{
    return endpoint_listen(&s->endpoint, ret_text, text_bytes);
}

void server_serve(struct server *s, const struct server_identity *identity, struct scheduler *scheduler)
{
    s->identity = *identity;
    s->scheduler = scheduler;
    s->serving = true;
}

void server_close(struct server *s)
{
    if (s == NULL)
        return;
    while (s->clients != NULL) {
        flush(s->clients);
        client_free(s, s->clients);
    }
    endpoint_close(&s->endpoint);
    free(s->fds);
    free(s);
}
