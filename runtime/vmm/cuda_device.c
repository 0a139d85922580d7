/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/cuda_device.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cuda.h"

struct gms_cuda gms_cuda = {.lock = PTHREAD_MUTEX_INITIALIZER};

gms_status gms_vmm_cuda_choose(const char *device, struct gms_error *ret_error)
{
    gms_status status = GMS_OK;
    const char *wanted = device ? device : "";

    if (strlen(wanted) >= sizeof(gms_cuda.wanted)) {
        return gms_fail(ret_error, GMS_E_INVALID, "device \"%.64s...\" is too long", wanted);
    }
    pthread_mutex_lock(&gms_cuda.lock);
    if (gms_cuda.chosen && strcmp(gms_cuda.wanted, wanted) != 0) {
        status = gms_fail(
            ret_error, GMS_E_REFUSED, "this process uses device %s already; device %s needs a process of its own",
            *gms_cuda.wanted ? gms_cuda.wanted : "\"the only one\"", *wanted ? wanted : "\"the only one\"");
    } else {
        snprintf(gms_cuda.wanted, sizeof(gms_cuda.wanted), "%s", wanted);
        gms_cuda.chosen = true;
    }
    pthread_mutex_unlock(&gms_cuda.lock);
    return status;
}

static gms_status visible_devices(struct gms_device ret_devices[GMS_DEVICES_MAX], uint32_t *ret_count,
                                  struct gms_error *ret_error)
{
    int count = 0;
    gms_cu_result result = GMS_CU(gms_cuda.api, device_count, &count);

    for (int i = 0; result == GMS_CU_SUCCESS && i < count && i < GMS_DEVICES_MAX; i++) {
        struct gms_cu_uuid uuid;
        gms_cu_device device = 0;

        result = GMS_CU(gms_cuda.api, device_get, &device, i);
        if (result == GMS_CU_SUCCESS) {
            result = GMS_CU(gms_cuda.api, device_uuid, &uuid, device);
        }
        if (result == GMS_CU_SUCCESS) {
            memcpy(ret_devices[i].uuid.bytes, uuid.bytes, sizeof(uuid.bytes));
            ret_devices[i].slice = false;
        }
    }
    if (result != GMS_CU_SUCCESS) {
        return gms_cu_fail(gms_cuda.api, result, ret_error, "list of devices");
    }
    *ret_count = count < GMS_DEVICES_MAX ? (uint32_t)count : GMS_DEVICES_MAX;
    return GMS_OK;
}

static gms_status find_device(int *ret_ordinal, struct gms_uuid *ret_uuid, struct gms_error *ret_error)
{
    struct gms_device devices[GMS_DEVICES_MAX];
    uint32_t count = 0;
    uint32_t index = 0;
    gms_status status = visible_devices(devices, &count, ret_error);

    if (status == GMS_OK && *gms_cuda.wanted == '#') {
        status = count == 1 ? GMS_OK : gms_device_find(gms_cuda.wanted + 1, devices, count, &index, ret_error);
    } else if (status == GMS_OK && *gms_cuda.wanted) {
        /* The driver gives a slice's own UUID under MIG, and shows one slice; its kind is what was asked for. */
        for (uint32_t i = 0; i < count; i++) {
            devices[i].slice = strncasecmp(gms_cuda.wanted, "MIG-", 4) == 0;
        }
        status = gms_device_find(gms_cuda.wanted, devices, count, &index, ret_error);
    } else if (status == GMS_OK && count != 1) {
        status = gms_fail(ret_error, GMS_E_REFUSED, "%u devices are visible and none was named: say which", count);
    }
    if (status == GMS_OK) {
        *ret_ordinal = (int)index;
        *ret_uuid = devices[index].uuid;
    }
    return status;
}

struct gms_cu_properties gms_cuda_properties_of_pools(int ordinal)
{
    return (struct gms_cu_properties){.type = GMS_CU_ALLOCATION_PINNED,
                                      .handle_types = GMS_CU_HANDLE_POSIX_FD,
                                      .location = {.type = GMS_CU_LOCATION_DEVICE, .id = ordinal},
                                      .rdma_capable = gms_cuda.rdma};
}

/* Can it do what is needed? Fills in the rest of `device`. */
static gms_status check_device(struct gms_vmm_cuda_device *device, struct gms_error *ret_error)
{
    static const struct {
        int attribute;
        const char *what;
    } needed[] = {{GMS_CU_ATTRIBUTE_VMM_SUPPORTED, "virtual memory management"},
                  {GMS_CU_ATTRIBUTE_POSIX_FD_SUPPORTED, "memory behind file descriptors"}};
    const gms_cu_device ordinal = device->ordinal;
    int rdma = 0;
    size_t bytes = 0;
    gms_cu_result result = GMS_CU(gms_cuda.api, device_name, device->name, sizeof(device->name), ordinal);

    for (size_t i = 0; result == GMS_CU_SUCCESS && i < sizeof(needed) / sizeof(needed[0]); i++) {
        int has = 0;

        result = GMS_CU(gms_cuda.api, device_attribute, &has, needed[i].attribute, ordinal);
        if (result == GMS_CU_SUCCESS && !has) {
            return gms_fail(ret_error, GMS_E_UNSUPPORTED, "device %d (%s) has no %s", ordinal, device->name,
                            needed[i].what);
        }
    }
    if (result == GMS_CU_SUCCESS) {
        result = GMS_CU(gms_cuda.api, device_attribute, &device->compute_mode, GMS_CU_ATTRIBUTE_COMPUTE_MODE, ordinal);
    }
    if (result == GMS_CU_SUCCESS) {
        result = GMS_CU(gms_cuda.api, device_attribute, &rdma, GMS_CU_ATTRIBUTE_RDMA_WITH_VMM, ordinal);
        gms_cuda.rdma = rdma != 0;
    }
    if (result == GMS_CU_SUCCESS) {
        result = GMS_CU(gms_cuda.api, device_bytes, &bytes, ordinal);
        device->bytes = bytes;
    }
    if (result == GMS_CU_SUCCESS) {
        const struct gms_cu_properties properties = gms_cuda_properties_of_pools(ordinal);

        result = GMS_CU(gms_cuda.api, granularity, &bytes, &properties, GMS_CU_GRANULARITY_MINIMUM);
        if (result == GMS_CU_SUCCESS && (bytes == 0 || GMS_CUDA_GRANULARITY_BYTES % bytes != 0)) {
            return gms_fail(ret_error, GMS_E_UNSUPPORTED, "device %d (%s) maps memory by %zu bytes, only %d fits",
                            ordinal, device->name, bytes, GMS_CUDA_GRANULARITY_BYTES);
        }
    }
    if (result != GMS_CU_SUCCESS) {
        return gms_cu_fail(gms_cuda.api, result, ret_error, "device %d", ordinal);
    }
    if (device->compute_mode != GMS_CU_COMPUTE_MODE_DEFAULT) {
        return gms_fail(ret_error, GMS_E_REFUSED,
                        "device %d (%s) is in compute mode %d: standby and primary share a device, set it to DEFAULT "
                        "(nvidia-smi -c DEFAULT)",
                        ordinal, device->name, device->compute_mode);
    }
    return GMS_OK;
}

gms_status gms_cuda_make_ready(struct gms_error *ret_error)
{
    if (gms_cuda.ready) {
        return gms_cuda.pid == getpid()
                   ? GMS_OK
                   : gms_fail(ret_error, GMS_E_REFUSED,
                              "this process was forked from %d, which uses the CUDA driver: a forked "
                              "child cannot; start a new program",
                              (int)gms_cuda.pid);
    }
    gms_status status = gms_cu_open(&gms_cuda.api, ret_error);
    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result = GMS_CU(gms_cuda.api, init, 0);
    if (result != GMS_CU_SUCCESS) {
        return gms_cu_fail(gms_cuda.api, result, ret_error, "start of the CUDA driver");
    }
    struct gms_vmm_cuda_device device = {.ordinal = -1};
    status = find_device(&device.ordinal, &device.uuid, ret_error);
    if (status == GMS_OK) {
        status = check_device(&device, ret_error);
    }
    if (status == GMS_OK) {
        gms_cuda.device = device;
        gms_cuda.pid = getpid();
        gms_cuda.ready = true;
    }
    return status;
}

gms_status gms_vmm_cuda_ready(struct gms_vmm_cuda_device *ret_device, struct gms_error *ret_error)
{
    pthread_mutex_lock(&gms_cuda.lock);
    const gms_status status = gms_cuda_make_ready(ret_error);
    if (status == GMS_OK && ret_device) {
        *ret_device = gms_cuda.device;
    }
    pthread_mutex_unlock(&gms_cuda.lock);
    return status;
}

/* Takes the lock, and makes the device's context current. OK: gms_cuda_leave() must follow. */
gms_status gms_cuda_enter(struct gms_error *ret_error)
{
    pthread_mutex_lock(&gms_cuda.lock);
    gms_status status = gms_cuda_make_ready(ret_error);
    gms_cu_result result = GMS_CU_SUCCESS;

    if (status == GMS_OK && !gms_cuda.context) {
        result = GMS_CU(gms_cuda.api, context_retain, &gms_cuda.context, gms_cuda.device.ordinal);
    }
    if (status == GMS_OK && result == GMS_CU_SUCCESS) {
        result = GMS_CU(gms_cuda.api, context_push, gms_cuda.context);
    }
    if (result != GMS_CU_SUCCESS) {
        status = gms_cu_fail(gms_cuda.api, result, ret_error, "context of device %d", gms_cuda.device.ordinal);
    }
    if (status != GMS_OK) {
        pthread_mutex_unlock(&gms_cuda.lock);
    }
    return status;
}

void gms_cuda_leave(void)
{
    gms_cu_context context;

    (void)GMS_CU(gms_cuda.api, context_pop, &context);
    pthread_mutex_unlock(&gms_cuda.lock);
}

gms_status gms_cuda_enter_unlocked(struct gms_error *ret_error)
{
    const gms_status status = gms_cuda_enter(ret_error);

    if (status == GMS_OK) {
        pthread_mutex_unlock(&gms_cuda.lock);
    }
    return status;
}

void gms_cuda_leave_unlocked(void)
{
    gms_cu_context context;

    (void)GMS_CU(gms_cuda.api, context_pop, &context);
}

gms_status gms_vmm_cuda_free_bytes(uint64_t *ret_free, uint64_t *ret_total, struct gms_error *ret_error)
{
    size_t left = 0;
    size_t total = 0;
    gms_status status = gms_cuda_enter(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result = GMS_CU(gms_cuda.api, memory_info, &left, &total);
    if (result != GMS_CU_SUCCESS) {
        status = gms_cu_fail(gms_cuda.api, result, ret_error, "free memory of device %d", gms_cuda.device.ordinal);
    } else {
        *ret_free = left;
        *ret_total = total;
    }
    gms_cuda_leave();
    return status;
}
