/* SPDX-License-Identifier: Apache-2.0 */
#include "host/nvml.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct nvml_device *nvml_device;

struct nvml_process {
    unsigned int pid;
    unsigned long long memory_bytes; /* all ones: not available */
    unsigned int gpu_instance, compute_instance;
};

struct nvml_memory {
    unsigned long long total, free, used;
};

/* X(member, symbol, parameters) */
#define NVML_FUNCTIONS(X)                                                                                              \
    X(init, "nvmlInit_v2", (void))                                                                                     \
    X(shutdown, "nvmlShutdown", (void))                                                                                \
    X(device, "nvmlDeviceGetHandleByUUID", (const char *, nvml_device *))                                              \
    X(memory, "nvmlDeviceGetMemoryInfo", (nvml_device, struct nvml_memory *))                                          \
    X(compute, "nvmlDeviceGetComputeRunningProcesses_v3", (nvml_device, unsigned int *, struct nvml_process *))        \
    X(persistence, "nvmlDeviceGetPersistenceMode", (nvml_device, int *))

struct nvml {
    void *handle;
    nvml_device asked;
#define X(member, symbol, parameters) int(*member) parameters;
    NVML_FUNCTIONS(X)
#undef X
};

enum { NVML_OK = 0, NVML_NOT_FOUND = 6, LISTED = 1024 };

static void close_nvml(struct nvml *nvml)
{
    (void)nvml->shutdown();
    dlclose(nvml->handle);
}

static gms_status open_nvml(const char *library, const struct gms_uuid *device, struct nvml *ret_nvml,
                            struct gms_error *ret_error)
{
    char name[GMS_UUID_TEXT_BYTES];
    ret_nvml->handle = dlopen(library != NULL ? library : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (ret_nvml->handle == NULL)
        return gms_fail(ret_error, GMS_E_UNSUPPORTED, "NVML cannot be opened: %s", dlerror());
        /* POSIX: what dlsym returns for a function may be called through a pointer of its type. */
#define X(member, symbol, parameters)                                                                                  \
    *(void **)&ret_nvml->member = dlsym(ret_nvml->handle, symbol);                                                     \
    if (ret_nvml->member == NULL) {                                                                                    \
        dlclose(ret_nvml->handle);                                                                                     \
        return gms_fail(ret_error, GMS_E_UNSUPPORTED, "NVML is too old: it has no " symbol);                           \
    }
    NVML_FUNCTIONS(X)
#undef X
    int result = ret_nvml->init();
    if (result != NVML_OK) {
        dlclose(ret_nvml->handle);
        return gms_fail(ret_error, GMS_E_UNSUPPORTED, "NVML does not start (%d)", result);
    }
    result = ret_nvml->device(gms_uuid_format(device, false, name), &ret_nvml->asked);
    if (result != NVML_OK) {
        close_nvml(ret_nvml);
        return gms_fail(ret_error, result == NVML_NOT_FOUND ? GMS_E_NOT_FOUND : GMS_E_SYSTEM,
                        "NVML does not know %s (%d)", name, result);
    }
    return GMS_OK;
}

/* The sum over `pids`; false: NVML lists none of them, or has no number for one. */
static bool add_processes(const struct nvml_process *listed, unsigned int listed_count, const pid_t *pids, size_t count,
                          uint64_t *ret_bytes)
{
    bool any = false;
    *ret_bytes = 0;
    for (unsigned int i = 0; i < listed_count; i++) {
        for (size_t p = 0; p < count; p++) {
            if (listed[i].pid != (unsigned int)pids[p])
                continue;
            if (listed[i].memory_bytes == UINT64_MAX)
                return false;
            *ret_bytes += listed[i].memory_bytes;
            any = true;
        }
    }
    return any;
}

gms_status gms_nvml_memory(const char *library, const struct gms_uuid *device, const pid_t *pids, size_t count,
                           struct gms_nvml_memory *ret_memory, struct gms_error *ret_error)
{
    struct nvml nvml;
    struct nvml_memory memory = {0};
    unsigned int listed_count = LISTED;
    struct nvml_process *listed = calloc(LISTED, sizeof *listed);
    if (listed == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a list of processes");
    gms_status status = open_nvml(library, device, &nvml, ret_error);
    if (status != GMS_OK) {
        free(listed);
        return status;
    }
    int result = nvml.memory(nvml.asked, &memory);
    if (result != NVML_OK)
        status = gms_fail(ret_error, GMS_E_SYSTEM, "NVML does not tell how much memory is used (%d)", result);
    result = nvml.compute(nvml.asked, &listed_count, listed);
    if (result != NVML_OK || listed_count > LISTED)
        listed_count = 0;
    close_nvml(&nvml);
    struct gms_nvml_memory found = {.used_bytes = memory.used};
    found.listed = add_processes(listed, listed_count, pids, count, &found.process_bytes);
    free(listed);
    if (status == GMS_OK)
        *ret_memory = found;
    return status;
}

gms_status gms_nvml_persistence(const char *library, const struct gms_uuid *device, bool *ret_on,
                                struct gms_error *ret_error)
{
    struct nvml nvml;
    int mode = 0;
    const gms_status status = open_nvml(library, device, &nvml, ret_error);
    if (status != GMS_OK)
        return status;
    const int result = nvml.persistence(nvml.asked, &mode);
    close_nvml(&nvml);
    if (result != NVML_OK)
        return gms_fail(ret_error, GMS_E_SYSTEM, "NVML does not tell the persistence mode (%d)", result);
    *ret_on = mode != 0;
    return GMS_OK;
}
