/* SPDX-License-Identifier: Apache-2.0 */
#include "base/symbols.h"

#include <dlfcn.h>
#include <string.h>

const char *gms_symbols_find(void *library, const struct gms_symbol *list, size_t count, void *into)
{
    for (size_t i = 0; i < count; i++) {
        void *address = dlsym(library, list[i].name);
        if (address == NULL && !list[i].optional)
            return list[i].name;
        memcpy((char *)into + list[i].offset, &address, sizeof address);
    }
    return NULL;
}
