/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

size_t text_of_token(uint32_t token, char ret_text[TEXT_TOKEN_BYTES])
{
    if ((token >= 0x20 && token <= 0x7e) || token == '\n') {
        ret_text[0] = (char)token;
        return 1;
    }
    const uint32_t character = 0x100 + (token & 0xff);
    ret_text[0] = (char)(0xc0 | character >> 6);
    ret_text[1] = (char)(0x80 | (character & 0x3f));
    return 2;
}

size_t text_to_tokens(const char *text, size_t bytes, uint32_t *ret_tokens)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t count = 0;
    for (size_t i = 0; i < bytes; count++) {
        uint32_t token = at[i++];
        if (token >= 0xc4 && token <= 0xc7 && i < bytes && (at[i] & 0xc0) == 0x80) /* U+0100 to U+01FF */
            token = (token & 3) << 6 | (at[i++] & 0x3f);
        if (ret_tokens != NULL)
            ret_tokens[count] = token;
    }
    return count;
}
