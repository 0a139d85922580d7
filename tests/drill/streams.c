/* SPDX-License-Identifier: Apache-2.0 */
#include "streams.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "gms-relay/lines.h"

enum { LINE_BYTES = 64 * 1024, SERVING_BYTES = 4096, RETRY_MS = 10, LOOK_MS = 100 };

/* --------------------------------------------------------------------------------------------- endpoints ------ */

gms_status drill_endpoint_connect(const char *endpoint, int *ret_fd, pid_t *ret_peer, struct gms_error *ret_error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = endpoint + 5;
    if (strncmp(endpoint, "unix:", 5) != 0 || path[0] == '\0' || strlen(path) >= sizeof address.sun_path)
        return gms_fail(
            ret_error, GMS_E_INVALID,
            "endpoint '%s': the drill needs unix:PATH of at most %zu bytes; only there can it prove who owns "
            "the socket",
            endpoint, sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "socket: %s", strerror(errno));
    struct ucred peer;
    socklen_t peer_bytes = sizeof peer;
    gms_status status = GMS_OK;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        status = gms_fail(ret_error, errno == EAGAIN ? GMS_E_AGAIN : GMS_E_DISCONNECTED, "%s: %s", endpoint,
                          strerror(errno));
    else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) != 0)
        status = gms_fail(ret_error, GMS_E_SYSTEM, "%s: SO_PEERCRED: %s", endpoint, strerror(errno));
    if (status != GMS_OK) {
        gms_fd_close(&fd);
        return status;
    }
    *ret_fd = fd;
    *ret_peer = peer.pid;
    return GMS_OK;
}

bool drill_pid_is(pid_t pid, int32_t inner)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    int fd = pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    ssize_t length = read(fd, text, sizeof text - 1);
    gms_fd_close(&fd);
    text[length > 0 ? length : 0] = '\0';
    char *line = strstr(text, "\nNSpid:");
    if (line == NULL)
        return false;
    line += 7;
    line[strcspn(line, "\n")] = '\0';
    char *last = strrchr(line, '\t');
    return last != NULL && atoi(last + 1) == inner;
}

gms_status drill_endpoint_ask(const char *endpoint, const char *line, uint64_t deadline_ns, char *ret_answer,
                              size_t bytes, struct gms_error *ret_error)
{
    int fd = -1;
    pid_t peer;
    gms_status status = drill_endpoint_connect(endpoint, &fd, &peer, ret_error);
    if (status != GMS_OK)
        return status;
    size_t length = strlen(line), got = 0;
    if (send(fd, line, length, MSG_NOSIGNAL) != (ssize_t)length)
        status = gms_fail(ret_error, GMS_E_DISCONNECTED, "%s: a line of %zu bytes cannot be sent: %s", endpoint, length,
                          strerror(errno));
    int lines = 0; /* hello, then the answer */
    while (status == GMS_OK && lines < 2) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        int wait_ms = gms_clock_poll_ms(deadline_ns);
        int ready = poll(&wait, 1, wait_ms);
        ssize_t n = ready > 0 ? recv(fd, ret_answer + got, 1, 0) : -1;
        if (ready == 0 && wait_ms == 0)
            status = gms_fail(ret_error, GMS_E_TIMEOUT, "%s: no answer to %s", endpoint, line);
        else if (n == 0 || (n < 0 && ready > 0 && errno != EAGAIN && errno != EINTR))
            status = gms_fail(ret_error, GMS_E_DISCONNECTED, "%s: closed before it answered %s", endpoint, line);
        else if (n == 1 && ret_answer[got] == '\n') {
            ret_answer[got] = '\0';
            got = ++lines < 2 ? 0 : got;
        } else if (n == 1 && ++got == bytes)
            status = gms_fail(ret_error, GMS_E_PROTOCOL, "%s: a line of more than %zu bytes", endpoint, bytes);
    }
    gms_fd_close(&fd);
    return status;
}

/* --------------------------------------------------------------------------------------- the serving file ----- */

bool drill_streams_look(struct drill_streams *streams)
{
    char path[DRILL_PATH_BYTES + 16], text[SERVING_BYTES];
    snprintf(path, sizeof path, "%s/serving", streams->run_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, text, sizeof text);
    gms_fd_close(&fd);
    if (length <= 0)
        return false;
    json_t *root = json_loadb(text, (size_t)length, 0, NULL);
    const char *endpoint = json_string_value(json_object_get(root, "endpoint"));
    json_int_t incarnation = json_integer_value(json_object_get(root, "incarnation"));
    bool good = endpoint != NULL && strlen(endpoint) < sizeof streams->serving.endpoint && incarnation > 0;
    uint64_t epoch = (uint64_t)json_integer_value(json_object_get(root, "epoch"));
    if (good && epoch >= streams->serving.epoch) { /* incarnations are numbered as they join, not as they serve */
        streams->serving.incarnation = (uint64_t)incarnation;
        streams->serving.epoch = epoch;
        streams->serving.engine = (int32_t)json_integer_value(json_object_get(root, "engine"));
        memcpy(streams->serving.endpoint, endpoint, strlen(endpoint) + 1);
    }
    json_decref(root);
    return good;
}

gms_status drill_streams_open(const char *run_dir, size_t capacity, struct drill_streams *ret_streams,
                              struct gms_error *ret_error)
{
    memset(ret_streams, 0, sizeof *ret_streams);
    ret_streams->inotify = -1;
    ret_streams->serving.engine = -1;
    snprintf(ret_streams->run_dir, sizeof ret_streams->run_dir, "%s", run_dir);
    ret_streams->items = calloc(capacity, sizeof *ret_streams->items);
    ret_streams->capacity = capacity;
    if (ret_streams->items == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for %zu streams", capacity);
    ret_streams->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (ret_streams->inotify < 0 ||
        inotify_add_watch(ret_streams->inotify, run_dir, IN_MOVED_TO | IN_CLOSE_WRITE) < 0) {
        gms_status status = gms_fail(ret_error, GMS_E_SYSTEM, "%s cannot be watched: %s", run_dir, strerror(errno));
        drill_streams_close(ret_streams);
        return status;
    }
    drill_streams_look(ret_streams);
    return GMS_OK;
}

void drill_streams_close(struct drill_streams *streams)
{
    for (size_t i = 0; i < streams->count; i++) {
        struct drill_stream *stream = &streams->items[i];
        gms_fd_close(&stream->fd);
        free(stream->in);
        free(stream->out);
        free(stream->tokens);
    }
    free(streams->items);
    streams->items = NULL;
    streams->count = 0;
    gms_fd_close(&streams->inotify);
}

/* ------------------------------------------------------------------------------------------- one stream ------- */

struct drill_stream *drill_streams_add(struct drill_streams *streams, const char *id, const char *prompt, uint64_t seed,
                                       double temperature, uint32_t max_tokens)
{
    if (streams->count == streams->capacity)
        return NULL;
    struct drill_stream *stream = &streams->items[streams->count];
    memset(stream, 0, sizeof *stream);
    stream->fd = -1;
    stream->in = malloc(LINE_BYTES);
    stream->tokens = calloc(max_tokens, sizeof *stream->tokens);
    if (stream->in == NULL || stream->tokens == NULL) {
        free(stream->in);
        free(stream->tokens);
        return NULL;
    }
    snprintf(stream->id, sizeof stream->id, "%s", id);
    stream->prompt = prompt;
    stream->seed = seed;
    stream->temperature = temperature;
    stream->max_tokens = max_tokens;
    streams->count++;
    return stream;
}

void drill_stream_start(struct drill_stream *stream)
{
    if (stream->state == DRILL_STREAM_HELD) {
        stream->state = DRILL_STREAM_WAITING;
        stream->started_ns = gms_clock_ns();
    }
}

static void disconnect(struct drill_stream *stream)
{
    gms_fd_close(&stream->fd);
    free(stream->out);
    stream->out = NULL;
    stream->out_bytes = stream->out_sent = stream->in_bytes = 0;
}

__attribute__((format(printf, 2, 3))) static void fail_stream(struct drill_stream *stream, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(stream->error, sizeof stream->error, format, arguments);
    va_end(arguments);
    stream->state = DRILL_STREAM_FAILED;
    disconnect(stream);
}

/* The connection has ended. After the kill of its engine that is what the drill is about; else it is an error. */
static void connection_ended(const struct drill_streams *streams, struct drill_stream *stream, const char *why)
{
    uint64_t incarnation = stream->greeting.incarnation;
    if (stream->state == DRILL_STREAM_RUNNING && incarnation != streams->killed_incarnation &&
        incarnation != streams->lost_incarnation) {
        fail_stream(stream, "the connection to incarnation %llu ended though nobody had killed it (%s)",
                    (unsigned long long)incarnation, why);
        return;
    }
    /* To another engine as soon as there is one; to one that did not greet, in a moment. */
    if (stream->state == DRILL_STREAM_RUNNING)
        stream->broken_incarnation = incarnation;
    else
        stream->retry_ns = gms_clock_ns() + RETRY_MS * GMS_NS_PER_MS;
    stream->state = DRILL_STREAM_WAITING;
    disconnect(stream);
}

static void connect_stream(const struct drill_streams *streams, struct drill_stream *stream)
{
    struct gms_error error;
    pid_t peer = 0;
    gms_status status = drill_endpoint_connect(streams->serving.endpoint, &stream->fd, &peer, &error);
    if (status == GMS_E_INVALID) {
        fail_stream(stream, "%.150s", error.text);
        return;
    }
    if (status != GMS_OK) { /* not there yet, or dead already: the next look at the serving file will tell */
        stream->retry_ns = gms_clock_ns() + RETRY_MS * GMS_NS_PER_MS;
        return;
    }
    memset(&stream->greeting, 0, sizeof stream->greeting);
    stream->greeting.peer_pid = peer;
    stream->state = DRILL_STREAM_GREETING;
}

static bool build_request(struct drill_stream *stream)
{
    uint32_t *generated = calloc(stream->token_count + 1, sizeof *generated);
    for (uint32_t i = 0; generated != NULL && i < stream->token_count; i++)
        generated[i] = stream->tokens[i].token;
    const struct relay_lines_ask ask = {.id = stream->id,
                                        .prompt = stream->prompt,
                                        .generated = generated,
                                        .generated_count = stream->token_count,
                                        .max_tokens = stream->max_tokens,
                                        .temperature = stream->temperature,
                                        .seed = stream->seed};
    stream->out = generated != NULL ? relay_lines_generate(&ask, &stream->out_bytes) : NULL;
    stream->out_sent = 0;
    free(generated);
    return stream->out != NULL;
}

static void greet(struct drill_stream *stream, const struct relay_line *line)
{
    struct drill_greeting *greeting = &stream->greeting;
    greeting->engine = line->engine;
    greeting->incarnation = line->incarnation;
    greeting->epoch = line->epoch;
    greeting->claimed_pid = line->pid;
    greeting->namespaced_pid_fits = drill_pid_is(greeting->peer_pid, greeting->claimed_pid);
    if (!build_request(stream)) {
        fail_stream(stream, "the request cannot be made: prompt not UTF-8, or no memory");
        return;
    }
    if (stream->broken_incarnation != 0) {
        stream->resumes++;
        stream->resent_tokens = stream->token_count;
    }
    stream->state = DRILL_STREAM_RUNNING;
}

static void finish(struct drill_stream *stream, const struct relay_line *line, uint64_t now_ns)
{
    stream->prompt_tokens = line->prompt_tokens;
    stream->cached_tokens = line->cached_tokens;
    stream->salvaged_tokens = line->salvaged_tokens;
    stream->computed_tokens = line->computed_tokens;
    stream->done_ns = now_ns;
    stream->state = DRILL_STREAM_DONE;
    disconnect(stream);
}

static void take_token(struct drill_stream *stream, const struct relay_line *line, uint64_t now_ns)
{
    if (line->index != stream->token_count) {
        fail_stream(stream, "token %u came when %u was due", line->index, stream->token_count);
    } else if (stream->token_count == stream->max_tokens) {
        fail_stream(stream, "more than the %u tokens asked for", stream->max_tokens);
    } else {
        struct drill_token *slot = &stream->tokens[stream->token_count++];
        slot->token = line->token;
        slot->at_ns = now_ns;
        slot->incarnation = stream->greeting.incarnation;
    }
}

static void handle_line(struct drill_stream *stream, const char *text, size_t bytes, uint64_t now_ns)
{
    struct relay_line line;
    char why[RELAY_LINE_WHY_BYTES];
    bool greeting = stream->state == DRILL_STREAM_GREETING;
    if (!relay_lines_read(text, bytes, &line, why))
        fail_stream(stream, "%s%.120s", greeting ? "the first line is not a hello: " : "", why);
    else if (line.kind == RELAY_LINE_ERROR)
        fail_stream(stream, "the engine says: %.120s", line.error);
    else if (greeting != (line.kind == RELAY_LINE_HELLO))
        fail_stream(stream, greeting ? "the first line is not a hello with engine, incarnation, epoch and pid"
                                     : "a second hello came");
    else if (greeting)
        greet(stream, &line);
    else if (strcmp(line.id, stream->id) != 0)
        fail_stream(stream, "a line for request '%.20s' came", line.id);
    else if (line.kind == RELAY_LINE_DONE)
        finish(stream, &line, now_ns);
    else
        take_token(stream, &line, now_ns);
}

static void read_stream(const struct drill_streams *streams, struct drill_stream *stream)
{
    for (;;) {
        ssize_t n = recv(stream->fd, stream->in + stream->in_bytes, LINE_BYTES - stream->in_bytes, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            connection_ended(streams, stream, n == 0 ? "end of file" : strerror(errno));
            return;
        }
        uint64_t now_ns = gms_clock_ns();
        stream->in_bytes += (size_t)n;
        size_t used = 0;
        char *newline;
        while ((newline = memchr(stream->in + used, '\n', stream->in_bytes - used)) != NULL) {
            *newline = '\0';
            handle_line(stream, stream->in + used, (size_t)(newline - (stream->in + used)), now_ns);
            if (stream->fd < 0)
                return;
            used = (size_t)(newline - stream->in) + 1;
        }
        memmove(stream->in, stream->in + used, stream->in_bytes - used);
        stream->in_bytes -= used;
        if (stream->in_bytes == LINE_BYTES) {
            fail_stream(stream, "a line of more than %d bytes", LINE_BYTES);
            return;
        }
    }
}

static void write_stream(const struct drill_streams *streams, struct drill_stream *stream)
{
    while (stream->out_sent < stream->out_bytes) {
        ssize_t n =
            send(stream->fd, stream->out + stream->out_sent, stream->out_bytes - stream->out_sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0) {
            connection_ended(streams, stream, strerror(errno));
            return;
        }
        stream->out_sent += (size_t)n;
    }
}

/* ----------------------------------------------------------------------------------------------- the loop ----- */

static void drain_inotify(struct drill_streams *streams)
{
    char events[4096] __attribute__((aligned(8)));
    while (read(streams->inotify, events, sizeof events) > 0)
        ;
    drill_streams_look(streams);
}

static bool may_connect(const struct drill_streams *streams, const struct drill_stream *stream)
{
    return stream->state == DRILL_STREAM_WAITING && streams->serving.incarnation != 0 &&
           streams->serving.incarnation != stream->broken_incarnation;
}

static bool wants_to_write(const struct drill_stream *stream)
{
    return stream->out_sent < stream->out_bytes;
}

void drill_streams_pump(struct drill_streams *streams, uint64_t deadline_ns, struct pollfd *extra, size_t extra_count)
{
    struct pollfd *set = calloc(1 + streams->count + extra_count, sizeof *set);
    if (set == NULL)
        return;
    bool waiting = false;
    uint64_t now_ns = gms_clock_ns();
    for (size_t i = 0; i < streams->count; i++) {
        struct drill_stream *stream = &streams->items[i];
        if (may_connect(streams, stream) && now_ns >= stream->retry_ns)
            connect_stream(streams, stream);
        if (stream->state == DRILL_STREAM_WAITING) {
            waiting = true;
            if (may_connect(streams, stream) && stream->retry_ns < deadline_ns)
                deadline_ns = stream->retry_ns;
        }
    }
    /* inotify may be of no use on some file systems: look now and then while somebody waits. */
    if (waiting && deadline_ns > now_ns + LOOK_MS * GMS_NS_PER_MS)
        deadline_ns = now_ns + LOOK_MS * GMS_NS_PER_MS;
    set[0] = (struct pollfd){.fd = streams->inotify, .events = POLLIN};
    for (size_t i = 0; i < streams->count; i++)
        set[1 + i] = (struct pollfd){.fd = streams->items[i].fd,
                                     .events = (short)(POLLIN | (wants_to_write(&streams->items[i]) ? POLLOUT : 0))};
    for (size_t i = 0; i < extra_count; i++)
        set[1 + streams->count + i] = extra[i];
    int ready = poll(set, (nfds_t)(1 + streams->count + extra_count), gms_clock_poll_ms(deadline_ns));
    for (size_t i = 0; i < extra_count; i++)
        extra[i].revents = ready > 0 ? set[1 + streams->count + i].revents : 0;
    for (size_t i = 0; ready > 0 && i < streams->count; i++) {
        struct drill_stream *stream = &streams->items[i];
        if (set[1 + i].revents != 0 && stream->fd >= 0)
            read_stream(streams, stream);
        if (stream->fd >= 0 && wants_to_write(stream))
            write_stream(streams, stream);
    }
    if ((ready > 0 && set[0].revents != 0) || waiting)
        drain_inotify(streams);
    free(set);
}

size_t drill_streams_in_state(const struct drill_streams *streams, enum drill_stream_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < streams->count; i++)
        count += streams->items[i].state == state;
    return count;
}

uint64_t drill_streams_token_total(const struct drill_streams *streams)
{
    uint64_t total = 0;
    for (size_t i = 0; i < streams->count; i++)
        total += streams->items[i].token_count;
    return total;
}

bool drill_streams_finished(const struct drill_streams *streams)
{
    for (size_t i = 0; i < streams->count; i++) {
        enum drill_stream_state state = streams->items[i].state;
        if (state == DRILL_STREAM_WAITING || state == DRILL_STREAM_GREETING || state == DRILL_STREAM_RUNNING)
            return false;
    }
    return true;
}

uint64_t drill_streams_first_token(const struct drill_streams *streams, uint64_t incarnation)
{
    uint64_t first_ns = 0;
    for (size_t i = 0; i < streams->count; i++)
        for (uint32_t t = 0; t < streams->items[i].token_count; t++)
            if (streams->items[i].tokens[t].incarnation == incarnation) {
                if (first_ns == 0 || streams->items[i].tokens[t].at_ns < first_ns)
                    first_ns = streams->items[i].tokens[t].at_ns;
                break;
            }
    return first_ns;
}
