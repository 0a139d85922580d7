/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl/nccl_api.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/symbols.h"

static const char soname[] = "libnccl.so.2";

static struct {
    pthread_mutex_t lock;
    void *handle; /* NULL: not opened. Never closed: its threads cannot be unloaded */
    struct gms_nccl_api api;
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const struct gms_symbol list[] = {
#define NEEDED(member, symbol, parameters)   {#symbol, offsetof(struct gms_nccl_api, member), false},
#define OPTIONAL(member, symbol, parameters) {#symbol, offsetof(struct gms_nccl_api, member), true},
    GMS_NCCL_LIST(NEEDED) GMS_NCCL_OPTIONAL_LIST(OPTIONAL)
#undef NEEDED
#undef OPTIONAL
        {"ncclGetErrorString", offsetof(struct gms_nccl_api, result_text), false},
    {"ncclGetLastError", offsetof(struct gms_nccl_api, last_error), true},
};

/* The one that somebody else loaded (PyTorch brings its own) before any that the loader would add to it: two in one
 * process would be two worlds. */
static void *open_named(const char *name)
{
    const char *wanted = name != NULL ? name : getenv("GMS_NCCL_LIBRARY");
    if (wanted != NULL && wanted[0] != '\0')
        return dlopen(wanted, RTLD_NOW | RTLD_LOCAL);
    void *loaded = dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    return loaded != NULL ? loaded : dlopen(soname, RTLD_NOW | RTLD_LOCAL);
}

static gms_status open_library(const char *name, struct gms_error *ret_error)
{
    struct gms_nccl_api api = {0};
    struct link_map *map = NULL;
    int number = 0, (*version)(int *) = NULL;
    void *handle = open_named(name);
    if (handle == NULL)
        return gms_fail(ret_error, GMS_E_UNSUPPORTED,
                        "no NCCL here: %s; name the library with GMS_NCCL_LIBRARY, or load PyTorch before", dlerror());
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != NULL)
        snprintf(api.file, sizeof api.file, "%s", map->l_name);
    const char *missing = gms_symbols_find(handle, list, sizeof list / sizeof list[0], &api);
    void *symbol = dlsym(handle, "ncclGetVersion");
    memcpy(&version, &symbol, sizeof version);
    if (version != NULL && version(&number) != GMS_NCCL_SUCCESS)
        number = 0;
    if (missing != NULL)
        gms_fail(ret_error, GMS_E_UNSUPPORTED, "%s (version %d) has no %s: NCCL 2.14 or newer is needed", api.file,
                 number, missing);
    if (missing != NULL || library.handle == handle) {
        dlclose(handle); /* one count of it is enough */
        return missing != NULL ? GMS_E_UNSUPPORTED : GMS_OK;
    }
    if (library.handle != NULL) {
        dlclose(handle);
        return gms_fail(ret_error, GMS_E_REFUSED, "this process uses %s already; %s needs a process of its own",
                        library.api.file, api.file);
    }
    api.number = number;
    library.handle = handle;
    library.api = api;
    return GMS_OK;
}

gms_status gms_nccl_library_open(const char *name, const struct gms_nccl_api **ret_api, struct gms_error *ret_error)
{
    pthread_mutex_lock(&library.lock);
    gms_status status = open_library(name, ret_error);
    pthread_mutex_unlock(&library.lock);
    if (status == GMS_OK)
        *ret_api = &library.api;
    return status;
}

gms_status gms_nccl_fail(const struct gms_nccl_api *api, gms_nccl_handle handle, gms_nccl_result result,
                         struct gms_error *ret_error, const char *what, ...)
{
    char subject[GMS_ERROR_TEXT_BYTES / 2];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(subject, sizeof subject, what, arguments);
    va_end(arguments);
    const char *words = api->result_text(result);
    const char *more = api->last_error != NULL ? api->last_error(handle) : NULL;
    size_t length = more != NULL ? strcspn(more, "\n") : 0;
    return gms_fail(ret_error,
                    result == GMS_NCCL_INVALID_ARGUMENT || result == GMS_NCCL_INVALID_USAGE ? GMS_E_INVALID
                                                                                            : GMS_E_SYSTEM,
                    "%s: NCCL says %s (%d)%s%.*s", subject, words != NULL ? words : "nothing", result,
                    length > 0 ? ", " : "", (int)length, length > 0 ? more : "");
}
