/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens as text and back: printable ASCII and the newline are themselves, every other byte b is the character
 * U+0100 + b. So every answer is valid UTF-8, one character a token, and text_to_tokens gives the same tokens back.
 */
#ifndef MINILLM_TEXT_H
#define MINILLM_TEXT_H

#include <stddef.h>
#include <stdint.h>

enum { TEXT_TOKEN_BYTES = 2 };

/* Writes the character of `token` (below 256) without a NUL; returns 1 or 2. */
size_t text_of_token(uint32_t token, char ret_text[TEXT_TOKEN_BYTES]);

/* Tokens of UTF-8 text: U+0100 to U+01FF are one byte each, anything else its UTF-8 bytes. Returns how many; they are
 * written if ret_tokens (room for `bytes`) is not NULL. */
size_t text_to_tokens(const char *text, size_t bytes, uint32_t *ret_tokens);

#endif
