/* SPDX-License-Identifier: Apache-2.0
 *
 * One ask of one engine (endpoint.h says how they are spoken to): connects, says it, reads the answer. By the line
 * protocol it is asked only after a hello of the expected incarnation.
 *
 * One connection an ask: closing it is how an engine learns that nobody wants the rest. Callbacks come from the loop,
 * never from inside begin; after `ended`, `refused`, `lost`, `unasked` or `broken` none comes any more. Main thread
 * only.
 */
#ifndef GMS_RELAY_UPSTREAM_H
#define GMS_RELAY_UPSTREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gms-relay/call.h"
#include "gms-relay/endpoint.h"

struct event_base;
struct relay_upstream;

struct relay_upstream_ask {
    const char *endpoint;
    uint64_t incarnation;          /* 0: any */
    const char *id;                /* line protocol */
    const struct relay_call *call; /* all borrowed; call and id for the life of the ask */
    const uint32_t *prompt;        /* OpenAI: tokens, when known */
    size_t prompt_count;
    const uint32_t *tokens; /* of the answer so far */
    size_t token_count;
    uint32_t max_tokens; /* line protocol; all that the client shall get */
    double temperature;  /* line protocol */
    uint64_t seed;
    bool verbatim; /* OpenAI: the client's words, and the engine's answer as it comes */
};

/* What came: borrowed for the call. */
struct relay_piece {
    const char *text;
    size_t text_bytes;
    const uint32_t *tokens; /* NULL: not told */
    size_t token_count;
    bool has_index;
    uint32_t index;         /* of its first token in the answer */
    const uint32_t *prompt; /* OpenAI: tokens of the prompt, once */
    size_t prompt_count;
    bool foreign;      /* more than text; only the event itself says all */
    const char *event; /* OpenAI: the JSON */
    size_t event_bytes;
};

struct relay_ending {
    char reason[24];
    struct relay_usage usage; /* re-sent tokens included, as the engine counts */
    const char *body;         /* verbatim and no stream: the whole answer */
    size_t body_bytes;
};

struct relay_upstream_events {
    void (*piece)(void *context, const struct relay_piece *piece);
    void (*ended)(void *context, const struct relay_ending *ending);
    void (*refused)(void *context, int status, const char *text);
    void (*lost)(void *context, const char *text);
    void (*unasked)(void *context, const char *text);
    void (*broken)(void *context, const char *text);
};

/* NULL: out of memory or descriptors, or no endpoint. */
struct relay_upstream *relay_upstream_begin(struct event_base *base, const struct relay_upstream_ask *ask,
                                            const struct relay_upstream_events *events, void *context);
/* Reads nothing until told otherwise: the engine's own buffers hold it. */
void relay_upstream_pause(struct relay_upstream *upstream, bool pause);
/* Ends the conversation; also from inside a callback. NULL allowed. */
void relay_upstream_drop(struct relay_upstream *upstream);

#endif
