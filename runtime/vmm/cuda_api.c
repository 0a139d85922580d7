/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/cuda_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/fd.h"
#include "base/symbols.h"

static struct {
    pthread_once_t once;
    gms_status status;
    struct gms_error error;
    struct gms_cu_api api;
} library = {.once = PTHREAD_ONCE_INIT};

static _Atomic uint64_t call_count;

static void open_library(void)
{
    static const struct gms_symbol list[] = {
#define SYMBOL(member, symbol, parameters) {#symbol, offsetof(struct gms_cu_api, member), false},
        GMS_CU_LIST(SYMBOL)
#undef SYMBOL
    };
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!driver) {
        library.status = gms_fail(&library.error, GMS_E_UNSUPPORTED, "no CUDA driver here: %s", dlerror());
        return;
    }
    const char *missing = gms_symbols_find(driver, list, sizeof(list) / sizeof(list[0]), &library.api);

    if (missing) {
        library.status = gms_fail(&library.error, GMS_E_UNSUPPORTED,
                                  "this CUDA driver has no %s: it is older than this program needs (12.0)", missing);
        return; /* stays open: other threads of a driver cannot be unloaded */
    }
    library.status = GMS_OK;
}

gms_status gms_cu_open(const struct gms_cu_api **ret_api, struct gms_error *ret_error)
{
    pthread_once(&library.once, open_library);
    if (library.status != GMS_OK) {
        return gms_fail(ret_error, library.status, "%s", library.error.text);
    }
    *ret_api = &library.api;
    return GMS_OK;
}

void gms_cu_count(void)
{
    atomic_fetch_add_explicit(&call_count, 1, memory_order_relaxed);
}

uint64_t gms_cu_calls(void)
{
    return atomic_load_explicit(&call_count, memory_order_relaxed);
}

bool gms_cu_is_sticky(gms_cu_result result)
{
    return result == GMS_CU_ECC_UNCORRECTABLE || result == GMS_CU_NVLINK_UNCORRECTABLE ||
           (result >= GMS_CU_ILLEGAL_ADDRESS && result <= GMS_CU_LAUNCH_TIMEOUT && result != 701) ||
           result == GMS_CU_ASSERT || (result >= GMS_CU_HARDWARE_STACK_ERROR && result <= GMS_CU_LAUNCH_FAILED) ||
           result == GMS_CU_MPS_CLIENT_TERMINATED;
}

static gms_status meaning_of(gms_cu_result result)
{
    if (gms_cu_is_sticky(result)) {
        return GMS_E_STICKY;
    }
    switch (result) {
    case GMS_CU_OUT_OF_MEMORY:
        return GMS_E_NO_MEMORY;
    case GMS_CU_INVALID_VALUE:
    case GMS_CU_INVALID_HANDLE:
        return GMS_E_INVALID;
    case GMS_CU_NO_DEVICE:
    case GMS_CU_NOT_SUPPORTED:
    case GMS_CU_NOT_PERMITTED:
    case GMS_CU_SYSTEM_NOT_READY:
        return GMS_E_UNSUPPORTED;
    default:
        return GMS_E_SYSTEM;
    }
}

gms_status gms_cu_fail(const struct gms_cu_api *api, gms_cu_result result, struct gms_error *ret_error,
                       const char *what, ...)
{
    char subject[GMS_ERROR_TEXT_BYTES / 2];
    const char *name = NULL;
    const char *text = NULL;
    va_list arguments;

    va_start(arguments, what);
    vsnprintf(subject, sizeof(subject), what, arguments);
    va_end(arguments);
    if (result == GMS_CU_OPERATING_SYSTEM) {
        uint64_t used = 0;
        uint64_t limit = 0;

        /* What the driver says when it cannot make a descriptor; a few are needed at once, so "nearly" counts. */
        gms_fd_usage(&used, &limit);
        if (used + 2 >= limit) {
            return gms_fail(ret_error, GMS_E_DESCRIPTORS,
                            "%s: out of file descriptors, %llu used of %llu allowed; raise the limit (ulimit -n)",
                            subject, (unsigned long long)used, (unsigned long long)limit);
        }
    }
    if (api->error_name(result, &name) != GMS_CU_SUCCESS || !name) {
        name = "an error without a name";
    }
    if (api->error_text(result, &text) != GMS_CU_SUCCESS || !text) {
        text = "";
    }
    return gms_fail(ret_error, meaning_of(result), "%s: %s (%d)%s%s%s", subject, name, result, *text ? ", " : "", text,
                    gms_cu_is_sticky(result) ? "; this process cannot use the device any more" : "");
}
