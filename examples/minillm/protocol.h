/* SPDX-License-Identifier: Apache-2.0
 *
 * The stream protocol of README.md: one JSON object a line. Parsing and printing only; no sockets.
 */
#ifndef MINILLM_PROTOCOL_H
#define MINILLM_PROTOCOL_H

#include "plan.h"
#include "scheduler.h"

#include <stddef.h>
#include <stdint.h>

enum {
    PROTOCOL_LINE_BYTES = 1024 * 1024, /* longest line a client may send */
    PROTOCOL_ID_BYTES = 128,           /* longest id, in bytes of UTF-8 */
    PROTOCOL_TEXT_BYTES = 256,
};

enum protocol_operation { PROTOCOL_GENERATE = 1, PROTOCOL_STATS, PROTOCOL_ARM };

struct protocol_message {
    enum protocol_operation operation;
    char id[PROTOCOL_ID_BYTES + 1]; /* GENERATE; also set on errors, when the line had a usable one */
    char *id_json;                  /* owned; the id as a JSON string with quotes, NULL when there is none */
    uint32_t *tokens;               /* owned; prompt, then generated */
    uint32_t prompt_count, generated_count, max_tokens;
    double temperature;
    bool with_text; /* token lines carry the token's text */
    uint64_t seed;
    struct plan_drill drill; /* ARM */
};

/* Reads one line (without its newline). False: malformed, the reason is in ret_text. The caller frees *ret_message with
 * protocol_free in both cases. `limit_tokens`: longest prompt and longest answer. */
bool protocol_parse(const char *line, size_t length, uint32_t vocabulary, uint32_t limit_tokens, uint32_t world_size,
                    struct protocol_message *ret_message, char ret_text[PROTOCOL_TEXT_BYTES]);
void protocol_free(struct protocol_message *message);

/* A line for an error, newline included; owned by the caller, NULL when memory is short. id_json may be NULL. */
char *protocol_error(const char *id_json, const char *text);

#endif
