/* SPDX-License-Identifier: Apache-2.0
 *
 * The OpenAI API from a client's side: what an engine with such a server (vLLM, SGLang) is asked, and what its events
 * say. Text only, no sockets.
 *
 * The first time an engine is asked in the client's own words, plus "return_token_ids". Once the tokens are known, a
 * request is continued as /v1/completions with prompt tokens + tokens so far as its prompt, chat too.
 */
#ifndef GMS_RELAY_OPENAI_H
#define GMS_RELAY_OPENAI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gms-relay/call.h"

struct relay_openai_ask {
    const struct relay_call *call;
    const char *host, *prefix; /* "127.0.0.1:8000"; "" or a path before /v1 */
    const uint32_t *prompt;    /* its tokens, when known */
    size_t prompt_count;
    const uint32_t *tokens; /* of the answer so far; with any the request is continued */
    size_t token_count;
    bool verbatim; /* in the client's words and nothing else */
};

/* The whole HTTP request; the caller frees it. NULL: no memory. */
char *relay_openai_request(const struct relay_openai_ask *ask, size_t *ret_bytes);

/* One event, or a whole answer, of the engine. */
struct relay_delta {
    json_t *root;     /* owned */
    const char *text; /* borrowed from root; NULL: none */
    size_t text_bytes;
    const json_t *tokens, *prompt; /* borrowed arrays of integers; NULL: not given */
    char reason[24];               /* "": not finished */
    struct relay_usage usage;
    bool foreign;     /* says something that is not plain text: reasoning, a tool call */
    char error[200];  /* "": none */
    int error_status; /* 0: not said */
    bool engine_died; /* the error is the engine's end, whatever its code */
};

/* Reads the JSON of an event. False: it is none; `ret_why` is constant. On success relay_delta_free. */
bool relay_openai_read(const char *data, size_t bytes, struct relay_delta *ret_delta, const char **ret_why);
void relay_delta_free(struct relay_delta *delta);

#endif
