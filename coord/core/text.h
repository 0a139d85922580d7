/* SPDX-License-Identifier: Apache-2.0
 * Texts for people, put together without stdio: the core is pure. Always terminated; what does not fit is cut. */
#ifndef GMS_CORE_TEXT_H
#define GMS_CORE_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct gms_text {
    char *at;    /* where the next byte goes */
    size_t left; /* bytes left there, the terminating NUL included; at least 1 */
};

static inline struct gms_text gms_text_begin(char *buffer, size_t bytes)
{
    buffer[0] = '\0';
    return (struct gms_text){buffer, bytes};
}

static inline void gms_text_char(struct gms_text *text, char c)
{
    if (text->left < 2)
        return;
    *text->at++ = c;
    *text->at = '\0';
    text->left--;
}

static inline void gms_text_add(struct gms_text *text, const char *words)
{
    while (*words)
        gms_text_char(text, *words++);
}

/* A name that may lack its terminator. */
static inline void gms_text_name(struct gms_text *text, const char *name, size_t bytes)
{
    for (size_t i = 0; i < bytes && name[i]; i++)
        gms_text_char(text, name[i]);
}

static inline void gms_text_u64(struct gms_text *text, uint64_t value)
{
    char digits[20];
    unsigned count = 0;

    do {
        digits[count++] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    while (count)
        gms_text_char(text, digits[--count]);
}

static inline void gms_text_hex(struct gms_text *text, uint64_t value)
{
    gms_text_add(text, "0x");
    for (int shift = 60; shift >= 0; shift -= 4)
        gms_text_char(text, "0123456789abcdef"[(value >> shift) & 15]);
}

/* "words" then the number. */
static inline void gms_text_count(struct gms_text *text, const char *words, uint64_t value)
{
    gms_text_add(text, words);
    gms_text_u64(text, value);
}

#endif
