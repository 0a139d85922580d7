/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1 messages, read from bytes: request heads (of clients), response heads (of engines), chunked bodies. Pure: no
 * sockets, nothing kept but what the caller holds. Strict where leniency lets two readers see two messages: lines end
 * with CR LF, a length and chunking exclude each other, a length is said once, folded lines are refused.
 */
#ifndef GMS_RELAY_HTTP_H
#define GMS_RELAY_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RELAY_HTTP_METHOD_BYTES = 16,
    RELAY_HTTP_PATH_BYTES = 256,
    RELAY_HTTP_ID_BYTES = 65,
    RELAY_HTTP_HEAD_BYTES = 16 * 1024, /* longest head */
    RELAY_HTTP_HEADERS = 100,          /* lines in a head */
};

struct relay_http_request {
    char method[RELAY_HTTP_METHOD_BYTES], path[RELAY_HTTP_PATH_BYTES]; /* path: without the query */
    char id[RELAY_HTTP_ID_BYTES]; /* X-Request-Id, if it is of letters, digits, '-', '_' and '.'; else "" */
    int minor;                    /* of HTTP/1.minor */
    bool keep_alive, chunked, expects_continue, has_length;
    uint64_t length;
};

struct relay_http_response {
    int status;
    bool chunked, has_length, event_stream;
    uint64_t length;
};

/* Length of the head with its empty line, 0: not all there. `scanned` (in, out): bytes known to hold no end. */
size_t relay_http_head_end(const char *data, size_t bytes, size_t *scanned);

/*
 * Reads a whole head of `bytes`. 0: read. Else the status to refuse it with (400, 414, 431, 501, 505), and *ret_why
 * says why in constant text; *ret_request is not to be used then.
 */
int relay_http_read_request(const char *head, size_t bytes, struct relay_http_request *ret_request,
                            const char **ret_why);
/* 0: read; else 502. */
int relay_http_read_response(const char *head, size_t bytes, struct relay_http_response *ret_response,
                             const char **ret_why);

enum relay_chunk_state {
    RELAY_CHUNK_SIZE,
    RELAY_CHUNK_EXTENSION,
    RELAY_CHUNK_SIZE_LF,
    RELAY_CHUNK_DATA,
    RELAY_CHUNK_DATA_CR,
    RELAY_CHUNK_DATA_LF,
    RELAY_CHUNK_TRAILER, /* at the start of a line */
    RELAY_CHUNK_TRAILER_LINE,
    RELAY_CHUNK_TRAILER_LF,
    RELAY_CHUNK_LAST_LF,
    RELAY_CHUNK_DONE,
    RELAY_CHUNK_BAD
};

/* Decodes a chunked body piece by piece. Zero it before the first. */
struct relay_chunks {
    enum relay_chunk_state state;
    uint64_t left;             /* of the chunk */
    uint32_t digits, overhead; /* overhead: bytes of extensions and trailers */
};

/*
 * Takes up to `bytes` and returns how many were used; *ret_data and *ret_bytes are the piece of the body that starts
 * within them (borrowed; may be empty). Call again with the rest until it is used up, or state is DONE or BAD.
 */
size_t relay_http_chunks(struct relay_chunks *chunks, const char *data, size_t bytes, const char **ret_data,
                         size_t *ret_bytes);

const char *relay_http_reason(int status);

#endif
