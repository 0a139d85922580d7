/* SPDX-License-Identifier: Apache-2.0
 *
 * What a client asks (the body of /v1/completions or /v1/chat/completions), and the words it is answered in. Text only.
 */
#ifndef GMS_RELAY_CALL_H
#define GMS_RELAY_CALL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gms-relay/text.h"

enum { RELAY_MODEL_BYTES = 128, RELAY_PROBLEM_BYTES = 240, RELAY_FIELD_BYTES = 48 };

struct relay_call {
    bool chat, stream, include_usage;
    char model[RELAY_MODEL_BYTES]; /* "": not said */
    const char *get;               /* not NULL: only this path is wanted, there is no body */
    json_t *body;                  /* owned; as the client sent it */
    uint32_t max_tokens;           /* 0: not said */
    double temperature;            /* < 0: not said */
    bool has_seed;
    uint64_t seed;
    char sampling[RELAY_FIELD_BYTES]; /* a field that changes the choice of tokens beyond temperature and seed; "": none
                                       */
    char special[RELAY_FIELD_BYTES];  /* a field that makes the answer more than one text; "": none */
    bool holds_back;                  /* stop strings: an engine keeps text to itself that may become one */
};

struct relay_problem {
    int status;
    char param[RELAY_FIELD_BYTES]; /* "": none */
    char text[RELAY_PROBLEM_BYTES];
};

/* Reads a body. False: *ret_problem is what to answer; nothing is owned then. Else relay_call_free. */
bool relay_call_read(bool chat, const char *body, size_t bytes, uint32_t most_tokens, struct relay_call *ret_call,
                     struct relay_problem *ret_problem);
void relay_call_free(struct relay_call *call);

/*
 * The prompt for an engine that has no API but "prompt": text (owned by the caller) or tokens (owned). Chat becomes one
 * "ROLE: CONTENT\n" a message and "assistant:". False: the call is not for such an engine; *ret_problem says why.
 */
bool relay_call_prompt(const struct relay_call *call, char **ret_text, uint32_t **ret_tokens, size_t *ret_count,
                       struct relay_problem *ret_problem);

/* ------------------------------------------------------------------------------------------------ answers ----- */

struct relay_voice {
    bool chat;
    const char *id, *model; /* borrowed */
    int64_t created;        /* wall clock, s */
};

struct relay_usage {
    bool known;
    uint64_t prompt, completion, cached;
};

/* One event of a stream: "data: {...}\n\n". */
void relay_say_role(struct relay_text *out, const struct relay_voice *voice); /* chat: the first event */
void relay_say_piece(struct relay_text *out, const struct relay_voice *voice, const char *text, size_t bytes);
void relay_say_end(struct relay_text *out, const struct relay_voice *voice, const char *reason);
void relay_say_usage(struct relay_text *out, const struct relay_voice *voice, const struct relay_usage *usage);
void relay_say_done(struct relay_text *out);
void relay_say_failure(struct relay_text *out, int status, const char *text);
/* A whole answer, and a whole error, as a body. `param` may be "". */
void relay_say_whole(struct relay_text *out, const struct relay_voice *voice, const char *text, size_t bytes,
                     const char *reason, const struct relay_usage *usage);
void relay_say_error(struct relay_text *out, int status, const char *param, const char *text);

#endif
