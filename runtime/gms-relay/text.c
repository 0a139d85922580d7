/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 512 }; /* an event of a stream fits */

static bool make_room(struct relay_text *text, size_t bytes)
{
    if (text->failed || bytes > (size_t)1 << 40)
        return false;
    if (text->bytes + bytes + 1 <= text->capacity)
        return true;
    size_t capacity = (text->bytes + bytes + 1) * 2 + FIRST_BYTES;
    char *grown = realloc(text->data, capacity);
    if (grown == NULL) {
        text->failed = true;
        return false;
    }
    text->data = grown;
    text->capacity = capacity;
    return true;
}

void relay_text_free(struct relay_text *text)
{
    free(text->data);
    *text = (struct relay_text){0};
}

void relay_text_clear(struct relay_text *text)
{
    text->bytes = 0;
    text->failed = false;
}

void relay_text_add(struct relay_text *text, const char *data, size_t bytes)
{
    if (!make_room(text, bytes))
        return;
    if (bytes > 0)
        memcpy(text->data + text->bytes, data, bytes);
    text->bytes += bytes;
    text->data[text->bytes] = '\0';
}

void relay_text_print(struct relay_text *text, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    size_t room = text->capacity - text->bytes; /* mostly it fits at once */
    int length = vsnprintf(room > 0 ? text->data + text->bytes : NULL, room, format, arguments);
    va_end(arguments);
    if (length >= 0 && !text->failed && (size_t)length < room) {
        text->bytes += (size_t)length;
    } else if (length >= 0 && make_room(text, (size_t)length)) {
        vsnprintf(text->data + text->bytes, (size_t)length + 1, format, again);
        text->bytes += (size_t)length;
    }
    va_end(again);
}

/* Bytes of the UTF-8 character that starts at `at`; 0: there is none. */
static size_t character(const unsigned char *at, size_t left)
{
    size_t bytes = at[0] < 0x80 ? 1 : at[0] >= 0xc2 && at[0] < 0xe0 ? 2 : at[0] >= 0xe0 && at[0] < 0xf0 ? 3 : 4;
    if ((at[0] >= 0x80 && at[0] < 0xc2) || at[0] > 0xf4 || bytes > left)
        return 0;
    for (size_t i = 1; i < bytes; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    bool bad = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf0 && at[1] < 0x90) ||
               (at[0] == 0xf4 && at[1] > 0x8f);
    return bad ? 0 : bytes;
}

void relay_text_json(struct relay_text *text, const char *data, size_t bytes)
{
    static const char digits[] = "0123456789abcdef";
    if (!make_room(text, bytes * 6 + 2))
        return;
    char *at = text->data + text->bytes;
    *at++ = '"';
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)data[i];
        if (c == '"' || c == '\\') {
            *at++ = '\\';
            *at++ = (char)c;
        } else if (c == '\n') {
            *at++ = '\\';
            *at++ = 'n';
        } else if (c < 0x20) {
            memcpy(at, "\\u00", 4);
            at[4] = digits[c >> 4];
            at[5] = digits[c & 15];
            at += 6;
        } else if (c < 0x80) {
            *at++ = (char)c;
        } else {
            size_t length = character((const unsigned char *)data + i, bytes - i);
            memcpy(at, length > 0 ? data + i : "?", length > 0 ? length : 1);
            at += length > 0 ? length : 1;
            i += length > 0 ? length - 1 : 0;
        }
    }
    *at++ = '"';
    *at = '\0';
    text->bytes = (size_t)(at - text->data);
}
