/* SPDX-License-Identifier: Apache-2.0
 *
 * The line protocol of minillm (examples/minillm/README.md) from a client's side: one JSON object a line. Text only, no
 * sockets.
 */
#ifndef GMS_RELAY_LINES_H
#define GMS_RELAY_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RELAY_LINE_BYTES = 64 * 1024, RELAY_LINE_WHY_BYTES = 200, RELAY_LINE_TEXT_BYTES = 64 };

struct relay_lines_ask {
    const char *id;
    const char *prompt; /* UTF-8; NULL: `prompt_tokens` */
    const uint32_t *prompt_tokens;
    size_t prompt_count;
    const uint32_t *generated; /* what the client has already */
    size_t generated_count;
    uint32_t max_tokens; /* `generated` included */
    double temperature;
    uint64_t seed;
    bool with_text;
};

/* The request's line, newline included; the caller frees it. NULL: the prompt is not UTF-8, or no memory. */
char *relay_lines_generate(const struct relay_lines_ask *ask, size_t *ret_bytes);

enum relay_line_kind { RELAY_LINE_HELLO, RELAY_LINE_TOKEN, RELAY_LINE_DONE, RELAY_LINE_ERROR };

struct relay_line {
    enum relay_line_kind kind;
    char id[129]; /* TOKEN, DONE; ERROR: "" when it is about no request */
    uint32_t engine;
    uint64_t incarnation, epoch;
    int32_t pid;                                            /* HELLO */
    uint32_t index, token;                                  /* TOKEN */
    size_t text_bytes;                                      /* TOKEN; 0: none */
    char text[RELAY_LINE_TEXT_BYTES];                       /* not terminated */
    uint64_t prompt_tokens, cached_tokens, computed_tokens; /* DONE: re-sent tokens included */
    uint64_t salvaged_tokens;                               /* DONE; 0 where the engine does not say */
    char reason[16];                                        /* DONE */
    char error[RELAY_LINE_WHY_BYTES];
};

/* Reads one line (without its newline). False: it is none of the protocol's; `ret_why` says why. */
bool relay_lines_read(const char *line, size_t bytes, struct relay_line *ret_line, char ret_why[RELAY_LINE_WHY_BYTES]);

#endif
