/* SPDX-License-Identifier: Apache-2.0 */
#include "http_streams.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "gms-relay/openai.h"

enum { READ_BYTES = 64 * 1024 };

static int connect_to(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int yes = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        gms_fd_close(&fd);
    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

bool http_streams_open(struct http_streams *streams, uint16_t port, size_t count)
{
    *streams = (struct http_streams){.port = port, .count = count, .items = calloc(count, sizeof *streams->items)};
    for (size_t i = 0; streams->items != NULL && i < count; i++)
        streams->items[i].fd = -1;
    return streams->items != NULL;
}

void http_streams_close(struct http_streams *streams)
{
    for (size_t i = 0; streams->items != NULL && i < streams->count; i++) {
        struct http_stream *stream = &streams->items[i];
        gms_fd_close(&stream->fd);
        relay_text_free(&stream->out);
        relay_text_free(&stream->in);
        relay_text_free(&stream->line);
        relay_text_free(&stream->text);
    }
    free(streams->items);
    streams->items = NULL;
    streams->count = 0;
}

size_t http_streams_busy(const struct http_streams *streams)
{
    size_t busy = 0;
    for (size_t i = 0; i < streams->count; i++)
        busy += streams->items[i].busy;
    return busy;
}

/* ------------------------------------------------------------------------------------------------ one stream -- */

static void finish(struct http_streams *streams, struct http_stream *stream)
{
    stream->busy = false;
    if (stream->failed)
        gms_fd_close(&stream->fd);
    streams->finished(streams->context, stream);
}

__attribute__((format(printf, 3, 4))) static void fail(struct http_streams *streams, struct http_stream *stream,
                                                       const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(stream->error, sizeof stream->error, format, arguments);
    va_end(arguments);
    stream->failed = true;
    finish(streams, stream);
}

void http_stream_ask(struct http_streams *streams, struct http_stream *stream, const struct http_ask *ask)
{
    struct relay_text body = {0};
    stream->ask = *ask;
    stream->busy = true;
    stream->failed = stream->has_head = stream->ended = false;
    stream->sent = stream->used = stream->scanned = 0;
    stream->tokens = 0;
    stream->first_ns = stream->last_ns = stream->longest_gap_ns = stream->longest_gap_at_ns = 0;
    stream->error[0] = stream->resume[0] = '\0';
    memset(&stream->chunks, 0, sizeof stream->chunks);
    relay_text_clear(&stream->out);
    relay_text_clear(&stream->in);
    relay_text_clear(&stream->line);
    relay_text_clear(&stream->text);
    relay_text_print(&body, "{\"prompt\":");
    relay_text_json(&body, ask->prompt, strlen(ask->prompt));
    relay_text_print(&body, ",\"max_tokens\":%" PRIu32 ",\"temperature\":%g,\"seed\":%" PRIu64 ",\"stream\":true}",
                     ask->max_tokens, ask->temperature, ask->seed);
    relay_text_print(&stream->out,
                     "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: "
                     "%zu\r\n\r\n%s",
                     body.bytes, body.data);
    relay_text_free(&body);
    stream->begun_ns = gms_clock_ns();
    if (stream->fd < 0)
        stream->fd = connect_to(streams->port);
    if (stream->fd < 0)
        fail(streams, stream, "cannot connect: %s", strerror(errno));
}

static void take_token(struct http_stream *stream, uint64_t now_ns)
{
    if (stream->tokens++ == 0) {
        stream->first_ns = now_ns;
    } else if (now_ns - stream->last_ns > stream->longest_gap_ns) {
        stream->longest_gap_ns = now_ns - stream->last_ns;
        stream->longest_gap_at_ns = stream->last_ns;
    }
    stream->last_ns = now_ns;
}

static bool take_line(struct http_streams *streams, struct http_stream *stream, const char *line, size_t bytes,
                      uint64_t now_ns)
{
    struct relay_delta delta;
    const char *why;
    if (bytes < 6 || memcmp(line, "data: ", 6) != 0)
        return true;
    if (bytes == 12 && memcmp(line, "data: [DONE]", 12) == 0) {
        stream->ended = true;
        return true;
    }
    if (!relay_openai_read(line + 6, bytes - 6, &delta, &why)) {
        fail(streams, stream, "%s", why);
        return false;
    }
    if (delta.error[0] != '\0')
        fail(streams, stream, "the relay says: %.150s", delta.error);
    else if (delta.text_bytes > 0) {
        relay_text_add(&stream->text, delta.text, delta.text_bytes);
        take_token(stream, now_ns);
    }
    relay_delta_free(&delta);
    return stream->busy;
}

static bool take_data(struct http_streams *streams, struct http_stream *stream, const char *data, size_t bytes,
                      uint64_t now_ns)
{
    while (bytes > 0) {
        const char *end = memchr(data, '\n', bytes);
        size_t piece = end != NULL ? (size_t)(end - data) : bytes;
        relay_text_add(&stream->line, data, piece);
        if (end == NULL)
            return true;
        bool good =
            take_line(streams, stream, stream->line.data != NULL ? stream->line.data : "", stream->line.bytes, now_ns);
        relay_text_clear(&stream->line);
        if (!good)
            return false;
        data += piece + 1;
        bytes -= piece + 1;
    }
    return true;
}

static bool take_head(struct http_streams *streams, struct http_stream *stream)
{
    const char *why;
    size_t bytes = relay_http_head_end(stream->in.data, stream->in.bytes, &stream->scanned);
    if (bytes == 0)
        return false;
    if (relay_http_read_response(stream->in.data, bytes, &stream->head, &why) != 0) {
        fail(streams, stream, "%s", why);
        return false;
    }
    const char *resume = memmem(stream->in.data, bytes, "GMS-Resume: ", 12);
    if (resume != NULL)
        snprintf(stream->resume, sizeof stream->resume, "%.*s", (int)strcspn(resume + 12, "\r"), resume + 12);
    if (stream->head.status != 200 || !stream->head.chunked) {
        fail(streams, stream, "status %d: %.*s", stream->head.status, (int)(stream->in.bytes - bytes),
             stream->in.data + bytes);
        return false;
    }
    stream->has_head = true;
    stream->used = bytes;
    return true;
}

/* Goes through what has come. */
static void take(struct http_streams *streams, struct http_stream *stream, uint64_t now_ns)
{
    if (!stream->has_head && !take_head(streams, stream))
        return;
    while (stream->busy && stream->used < stream->in.bytes) {
        const char *piece;
        size_t bytes;
        stream->used += relay_http_chunks(&stream->chunks, stream->in.data + stream->used,
                                          stream->in.bytes - stream->used, &piece, &bytes);
        if (!take_data(streams, stream, piece, bytes, now_ns))
            return;
        if (stream->chunks.state == RELAY_CHUNK_BAD) {
            fail(streams, stream, "malformed chunks");
        } else if (stream->chunks.state == RELAY_CHUNK_DONE) {
            if (!stream->ended)
                fail(streams, stream, "the answer ended without [DONE]");
            else if (stream->used != stream->in.bytes)
                fail(streams, stream, "bytes after the end of the answer");
            else
                finish(streams, stream);
            return;
        }
    }
    relay_text_clear(&stream->in);
    stream->used = 0;
}

static void receive(struct http_streams *streams, struct http_stream *stream)
{
    char buffer[READ_BYTES];
    ssize_t got = recv(stream->fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        fail(streams, stream, "the connection ended after %u tokens: %s", stream->tokens,
             got == 0 ? "end of file" : strerror(errno));
        return;
    }
    relay_text_add(&stream->in, buffer, (size_t)got);
    take(streams, stream, gms_clock_ns());
}

void http_streams_pump(struct http_streams *streams, uint64_t deadline_ns)
{
    struct pollfd *set = calloc(streams->count + 1, sizeof *set);
    if (set == NULL)
        return;
    for (size_t i = 0; i < streams->count; i++) {
        const struct http_stream *stream = &streams->items[i];
        set[i].fd = stream->busy ? stream->fd : -1;
        set[i].events = (short)(POLLIN | (stream->sent < stream->out.bytes ? POLLOUT : 0));
    }
    int ready = poll(set, (nfds_t)streams->count, gms_clock_poll_ms(deadline_ns));
    for (size_t i = 0; ready > 0 && i < streams->count; i++) {
        struct http_stream *stream = &streams->items[i];
        if ((set[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
            receive(streams, stream);
        if ((set[i].revents & POLLOUT) != 0 && stream->busy && stream->sent < stream->out.bytes) {
            ssize_t n = send(stream->fd, stream->out.data + stream->sent, stream->out.bytes - stream->sent,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
            stream->sent += n > 0 ? (size_t)n : 0;
        }
    }
    free(set);
}

/* ------------------------------------------------------------------------------------------------- one get ---- */

char *http_get(uint16_t port, const char *path, uint64_t deadline_ns)
{
    struct relay_text in = {0};
    char request[256], buffer[READ_BYTES];
    int length = snprintf(request, sizeof request, "GET %s HTTP/1.0\r\n\r\n", path), fd = connect_to(port);
    bool whole = fd >= 0 && send(fd, request, (size_t)length, MSG_NOSIGNAL) == length;
    while (whole) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        ssize_t got = poll(&wait, 1, gms_clock_poll_ms(deadline_ns)) == 1 ? recv(fd, buffer, sizeof buffer, 0) : -1;
        if (got == 0)
            break;
        whole = got > 0;
        relay_text_add(&in, buffer, got > 0 ? (size_t)got : 0);
    }
    gms_fd_close(&fd);
    const char *body = whole && in.data != NULL ? strstr(in.data, "\r\n\r\n") : NULL;
    char *copy = body != NULL && strncmp(in.data, "HTTP/1.1 200", 12) == 0 ? strdup(body + 4) : NULL;
    relay_text_free(&in);
    return copy;
}

double http_metric(const char *text, const char *name)
{
    char wanted[128];
    snprintf(wanted, sizeof wanted, "\n%s ", name);
    const char *at = text != NULL ? strstr(text, wanted) : NULL;
    return at != NULL ? strtod(at + strlen(wanted), NULL) : -1;
}
