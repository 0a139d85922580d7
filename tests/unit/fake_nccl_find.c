/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_nccl.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

struct fake_nccl *fake_nccl_get(const char *path)
{
    struct fake_nccl *(*get)(void) = NULL;
    void *library = dlopen(path != NULL ? path : "libnccl.so.2", RTLD_NOW);
    void *symbol = library != NULL ? dlsym(library, "fake_nccl_table") : NULL;
    memcpy(&get, &symbol, sizeof get);
    return get != NULL ? get() : NULL;
}
