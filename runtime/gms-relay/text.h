/* SPDX-License-Identifier: Apache-2.0
 * Bytes that grow, and JSON strings in them. A failure to grow is kept and told at the end. */
#ifndef GMS_RELAY_TEXT_H
#define GMS_RELAY_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct relay_text { /* zero it to begin */
    char *data;     /* owned; NUL-terminated unless NULL */
    size_t bytes, capacity;
    bool failed; /* out of memory: what is there is not whole */
};

void relay_text_free(struct relay_text *text);
void relay_text_clear(struct relay_text *text); /* keeps the memory */
void relay_text_add(struct relay_text *text, const char *data, size_t bytes);
__attribute__((format(printf, 2, 3))) void relay_text_print(struct relay_text *text, const char *format, ...);
/* `data` as a JSON string with its quotes; what is not UTF-8 in it becomes '?'. */
void relay_text_json(struct relay_text *text, const char *data, size_t bytes);

#endif
