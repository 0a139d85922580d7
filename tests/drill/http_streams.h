/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients of a relay: each streams one completion after the other on a connection of its own, and keeps what it got and
 * when. One poll loop, not thread-safe; a thread may own the whole set.
 */
#ifndef GMS_DRILL_HTTP_STREAMS_H
#define GMS_DRILL_HTTP_STREAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gms-relay/http.h"
#include "gms-relay/text.h"

struct http_ask {
    const char *prompt; /* borrowed */
    uint32_t number;    /* the caller's: which ask it is */
    uint32_t max_tokens;
    double temperature;
    uint64_t seed;
};

struct http_stream {
    int fd; /* -1: none */
    bool busy, failed;
    struct http_ask ask;
    struct relay_text out, in, line, text; /* text: the answer */
    size_t sent, used, scanned;
    bool has_head, ended; /* ended: [DONE] was seen */
    struct relay_http_response head;
    struct relay_chunks chunks;
    uint32_t tokens;
    uint64_t begun_ns, first_ns, last_ns, longest_gap_ns, longest_gap_at_ns;
    char resume[64]; /* of the header GMS-Resume */
    char error[200];
};

struct http_streams {
    uint16_t port;
    size_t count;
    struct http_stream *items; /* owned */
    /* An answer is complete, or failed (stream->failed, ->error). The stream is free again; give it another ask or not.
     */
    void (*finished)(void *context, struct http_stream *stream);
    void *context;
};

bool http_streams_open(struct http_streams *streams, uint16_t port, size_t count);
void http_streams_close(struct http_streams *streams);
/* Begins an answer on a free stream. */
void http_stream_ask(struct http_streams *streams, struct http_stream *stream, const struct http_ask *ask);
/* One turn: waits until `deadline_ns` at most. */
void http_streams_pump(struct http_streams *streams, uint64_t deadline_ns);
size_t http_streams_busy(const struct http_streams *streams);

/* GET `path`; the body as text, owned by the caller. NULL: it failed. */
char *http_get(uint16_t port, const char *path, uint64_t deadline_ns);
/* A number in Prometheus text; -1: not there. */
double http_metric(const char *text, const char *name);

#endif
