/* SPDX-License-Identifier: Apache-2.0
 *
 * Libraries that are opened at run time: which of their functions are needed, as one list, and where each belongs.
 */
#ifndef GMS_BASE_SYMBOLS_H
#define GMS_BASE_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>

struct gms_symbol {
    const char *name;
    size_t offset; /* of the function pointer in the caller's struct */
    bool optional;
};

/* Stores the address of every symbol of `library` (dlopen's) at its place in `into`; NULL there for an optional one
 * that is missing. Returns NULL, or the name of the first that is missing and needed; the rest is not looked for then.
 */
const char *gms_symbols_find(void *library, const struct gms_symbol *list, size_t count, void *into);

#endif
