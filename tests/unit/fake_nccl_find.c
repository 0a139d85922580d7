/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_nccl.h"

#include <dlfcn.h>
#include <poll.h>
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

bool fake_nccl_comes_to(const uint64_t *count, uint64_t value)
{
    enum { LOOKS = 10000 };
    for (int i = 0; i < LOOKS && __atomic_load_n(count, __ATOMIC_SEQ_CST) != value; i++)
        (void)poll(NULL, 0, 1);
    return __atomic_load_n(count, __ATOMIC_SEQ_CST) == value;
}
