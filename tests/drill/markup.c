/* SPDX-License-Identifier: Apache-2.0 */
#include "markup.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes of the character at `text`; 0: not one that XML allows. */
static unsigned length_of(const unsigned char *text)
{
    if (text[0] < 0x80)
        return text[0] >= 0x20 || text[0] == '\n' || text[0] == '\t' ? 1 : 0;
    unsigned bytes = text[0] >= 0xf0 && text[0] < 0xf5 ? 4 : text[0] >= 0xe0 ? 3 : text[0] >= 0xc2 ? 2 : 0;
    if (bytes == 0 || text[0] >= 0xf5)
        return 0;
    uint32_t character = text[0] & (0x7fu >> bytes);
    for (unsigned i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        character = character << 6 | (text[i] & 0x3f);
    }
    bool too_long = character < (bytes == 4 ? 0x10000u : bytes == 3 ? 0x800u : 0x80u);
    bool surrogate = character >= 0xd800 && character <= 0xdfff;
    return too_long || surrogate || character > 0x10ffff || character == 0xfffe || character == 0xffff ? 0 : bytes;
}

void drill_markup_text(FILE *stream, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at != '\0') {
        unsigned bytes = length_of(at);
        if (bytes == 0)
            fputc('?', stream);
        else if (*at == '<')
            fputs("&lt;", stream);
        else if (*at == '>')
            fputs("&gt;", stream);
        else if (*at == '&')
            fputs("&amp;", stream);
        else if (*at == '"')
            fputs("&quot;", stream);
        else if (*at == '\'')
            fputs("&#39;", stream);
        else
            fwrite(at, 1, bytes, stream);
        at += bytes > 0 ? bytes : 1;
    }
}
