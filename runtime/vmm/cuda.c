/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/units.h"
#include "vmm/cuda_api.h"
#include "vmm/cuda_book.h"
#include "vmm/handle.h"

/* What every device so far maps by. It is needed before the driver is started, and checked when it is. */
enum { GRANULARITY_BYTES = 2 * 1024 * 1024, LABEL_BYTES = 250 };

static struct {
    pthread_mutex_t lock;
    char wanted[GMS_UUID_TEXT_BYTES]; /* "": the only one */
    bool chosen, ready;
    pid_t pid; /* of the process that started the driver */
    const struct gms_cu_api *api;
    struct gms_vmm_cuda_device device;
    bool rdma;
    gms_cu_context context; /* NULL: not retained */
    struct gms_cu_book book;
} cuda = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t gms_vmm_cuda_calls(void)
{
    return gms_cu_calls();
}

/* ------------------------------------------------------------------------------------------ driver, device ----- */

gms_status gms_vmm_cuda_choose(const char *device, struct gms_error *ret_error)
{
    gms_status status = GMS_OK;
    const char *wanted = device ? device : "";

    if (strlen(wanted) >= sizeof(cuda.wanted)) {
        return gms_fail(ret_error, GMS_E_INVALID, "device \"%.64s...\" is too long", wanted);
    }
    pthread_mutex_lock(&cuda.lock);
    if (cuda.chosen && strcmp(cuda.wanted, wanted) != 0) {
        status = gms_fail(ret_error, GMS_E_REFUSED,
                          "this process uses device %s already; device %s needs a process of its own",
                          *cuda.wanted ? cuda.wanted : "\"the only one\"", *wanted ? wanted : "\"the only one\"");
    } else {
        snprintf(cuda.wanted, sizeof(cuda.wanted), "%s", wanted);
        cuda.chosen = true;
    }
    pthread_mutex_unlock(&cuda.lock);
    return status;
}

static gms_status visible_devices(struct gms_device ret_devices[GMS_DEVICES_MAX], uint32_t *ret_count,
                                  struct gms_error *ret_error)
{
    int count = 0;
    gms_cu_result result = GMS_CU(cuda.api, device_count, &count);

    for (int i = 0; result == GMS_CU_SUCCESS && i < count && i < GMS_DEVICES_MAX; i++) {
        struct gms_cu_uuid uuid;
        gms_cu_device device = 0;

        result = GMS_CU(cuda.api, device_get, &device, i);
        if (result == GMS_CU_SUCCESS) {
            result = GMS_CU(cuda.api, device_uuid, &uuid, device);
        }
        if (result == GMS_CU_SUCCESS) {
            memcpy(ret_devices[i].uuid.bytes, uuid.bytes, sizeof(uuid.bytes));
            ret_devices[i].slice = false;
        }
    }
    if (result != GMS_CU_SUCCESS) {
        return gms_cu_fail(cuda.api, result, ret_error, "list of devices");
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

    if (status == GMS_OK && *cuda.wanted == '#') {
        status = count == 1 ? GMS_OK : gms_device_find(cuda.wanted + 1, devices, count, &index, ret_error);
    } else if (status == GMS_OK && *cuda.wanted) {
        /* The driver gives a slice's own UUID under MIG, and shows one slice; its kind is what was asked for. */
        for (uint32_t i = 0; i < count; i++) {
            devices[i].slice = strncasecmp(cuda.wanted, "MIG-", 4) == 0;
        }
        status = gms_device_find(cuda.wanted, devices, count, &index, ret_error);
    } else if (status == GMS_OK && count != 1) {
        status = gms_fail(ret_error, GMS_E_REFUSED, "%u devices are visible and none was named: say which", count);
    }
    if (status == GMS_OK) {
        *ret_ordinal = (int)index;
        *ret_uuid = devices[index].uuid;
    }
    return status;
}

static struct gms_cu_properties properties_of_pools(int ordinal)
{
    return (struct gms_cu_properties){.type = GMS_CU_ALLOCATION_PINNED,
                                      .handle_types = GMS_CU_HANDLE_POSIX_FD,
                                      .location = {.type = GMS_CU_LOCATION_DEVICE, .id = ordinal},
                                      .rdma_capable = cuda.rdma};
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
    gms_cu_result result = GMS_CU(cuda.api, device_name, device->name, sizeof(device->name), ordinal);

    for (size_t i = 0; result == GMS_CU_SUCCESS && i < sizeof(needed) / sizeof(needed[0]); i++) {
        int has = 0;

        result = GMS_CU(cuda.api, device_attribute, &has, needed[i].attribute, ordinal);
        if (result == GMS_CU_SUCCESS && !has) {
            return gms_fail(ret_error, GMS_E_UNSUPPORTED, "device %d (%s) has no %s", ordinal, device->name,
                            needed[i].what);
        }
    }
    if (result == GMS_CU_SUCCESS) {
        result = GMS_CU(cuda.api, device_attribute, &device->compute_mode, GMS_CU_ATTRIBUTE_COMPUTE_MODE, ordinal);
    }
    if (result == GMS_CU_SUCCESS) {
        result = GMS_CU(cuda.api, device_attribute, &rdma, GMS_CU_ATTRIBUTE_RDMA_WITH_VMM, ordinal);
        cuda.rdma = rdma != 0;
    }
    if (result == GMS_CU_SUCCESS) {
        result = GMS_CU(cuda.api, device_bytes, &bytes, ordinal);
        device->bytes = bytes;
    }
    if (result == GMS_CU_SUCCESS) {
        const struct gms_cu_properties properties = properties_of_pools(ordinal);

        result = GMS_CU(cuda.api, granularity, &bytes, &properties, GMS_CU_GRANULARITY_MINIMUM);
        if (result == GMS_CU_SUCCESS && (bytes == 0 || GRANULARITY_BYTES % bytes != 0)) {
            return gms_fail(ret_error, GMS_E_UNSUPPORTED, "device %d (%s) maps memory by %zu bytes, only %d fits",
                            ordinal, device->name, bytes, GRANULARITY_BYTES);
        }
    }
    if (result != GMS_CU_SUCCESS) {
        return gms_cu_fail(cuda.api, result, ret_error, "device %d", ordinal);
    }
    if (device->compute_mode != GMS_CU_COMPUTE_MODE_DEFAULT) {
        return gms_fail(ret_error, GMS_E_REFUSED,
                        "device %d (%s) is in compute mode %d: standby and primary share a device, set it to DEFAULT "
                        "(nvidia-smi -c DEFAULT)",
                        ordinal, device->name, device->compute_mode);
    }
    return GMS_OK;
}

/* Under the lock. */
static gms_status make_ready(struct gms_error *ret_error)
{
    if (cuda.ready) {
        return cuda.pid == getpid() ? GMS_OK
                                    : gms_fail(ret_error, GMS_E_REFUSED,
                                               "this process was forked from %d, which uses the CUDA driver: a forked "
                                               "child cannot; start a new program",
                                               (int)cuda.pid);
    }
    gms_status status = gms_cu_open(&cuda.api, ret_error);
    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result = GMS_CU(cuda.api, init, 0);
    if (result != GMS_CU_SUCCESS) {
        return gms_cu_fail(cuda.api, result, ret_error, "start of the CUDA driver");
    }
    struct gms_vmm_cuda_device device = {.ordinal = -1};
    status = find_device(&device.ordinal, &device.uuid, ret_error);
    if (status == GMS_OK) {
        status = check_device(&device, ret_error);
    }
    if (status == GMS_OK) {
        cuda.device = device;
        cuda.pid = getpid();
        cuda.ready = true;
    }
    return status;
}

gms_status gms_vmm_cuda_ready(struct gms_vmm_cuda_device *ret_device, struct gms_error *ret_error)
{
    pthread_mutex_lock(&cuda.lock);
    const gms_status status = make_ready(ret_error);
    if (status == GMS_OK && ret_device) {
        *ret_device = cuda.device;
    }
    pthread_mutex_unlock(&cuda.lock);
    return status;
}

/* Takes the lock, and makes the device's context current. OK: leave() must follow. */
static gms_status enter(struct gms_error *ret_error)
{
    pthread_mutex_lock(&cuda.lock);
    gms_status status = make_ready(ret_error);
    gms_cu_result result = GMS_CU_SUCCESS;

    if (status == GMS_OK && !cuda.context) {
        result = GMS_CU(cuda.api, context_retain, &cuda.context, cuda.device.ordinal);
    }
    if (status == GMS_OK && result == GMS_CU_SUCCESS) {
        result = GMS_CU(cuda.api, context_push, cuda.context);
    }
    if (result != GMS_CU_SUCCESS) {
        status = gms_cu_fail(cuda.api, result, ret_error, "context of device %d", cuda.device.ordinal);
    }
    if (status != GMS_OK) {
        pthread_mutex_unlock(&cuda.lock);
    }
    return status;
}

static void leave(void)
{
    gms_cu_context context;

    (void)GMS_CU(cuda.api, context_pop, &context);
    pthread_mutex_unlock(&cuda.lock);
}

gms_status gms_vmm_cuda_free_bytes(uint64_t *ret_free, uint64_t *ret_total, struct gms_error *ret_error)
{
    size_t left = 0;
    size_t total = 0;
    gms_status status = enter(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result = GMS_CU(cuda.api, memory_info, &left, &total);
    if (result != GMS_CU_SUCCESS) {
        status = gms_cu_fail(cuda.api, result, ret_error, "free memory of device %d", cuda.device.ordinal);
    } else {
        *ret_free = left;
        *ret_total = total;
    }
    leave();
    return status;
}

/* ------------------------------------------------------------------------------------------------- checks ------ */

static gms_status check_size(const char *what, uint64_t bytes, struct gms_error *ret_error)
{
    if (bytes == 0 || bytes % GRANULARITY_BYTES != 0 || bytes > INT64_MAX) {
        return gms_fail(ret_error, GMS_E_INVALID, "%s of %llu bytes: must be a positive multiple of %d", what,
                        (unsigned long long)bytes, GRANULARITY_BYTES);
    }
    return GMS_OK;
}

static gms_status check_range(const char *what, const void *address, uint64_t bytes, struct gms_error *ret_error)
{
    if (!address || (uintptr_t)address % GRANULARITY_BYTES != 0) {
        return gms_fail(ret_error, GMS_E_INVALID, "%s at %p: not an address of a reservation (granularity %d)", what,
                        address, GRANULARITY_BYTES);
    }
    return check_size(what, bytes, ret_error);
}

static int flags_of(enum gms_vmm_access access)
{
    switch (access) {
    case GMS_VMM_NONE:
        return GMS_CU_ACCESS_NONE;
    case GMS_VMM_READ:
        return GMS_CU_ACCESS_READ;
    case GMS_VMM_READ_WRITE:
        return GMS_CU_ACCESS_READ_WRITE;
    }
    return -1;
}

/* Under the lock: the range is reserved, and *ret_first.. are the mappings in it. */
static gms_status look_up(const char *what, const void *address, uint64_t bytes, size_t *ret_first, size_t *ret_count,
                          struct gms_error *ret_error)
{
    if (!gms_cu_book_is_reserved(&cuda.book, (uintptr_t)address, bytes)) {
        return gms_fail(ret_error, GMS_E_INVALID, "%s of %llu bytes at %p: not inside a reservation", what,
                        (unsigned long long)bytes, address);
    }
    if (!gms_cu_book_find(&cuda.book, (uintptr_t)address, bytes, ret_first, ret_count)) {
        return gms_fail(ret_error, GMS_E_INVALID,
                        "%s of %llu bytes at %p: a mapping lies in it only in part, and mappings are changed whole",
                        what, (unsigned long long)bytes, address);
    }
    return GMS_OK;
}

/* ------------------------------------------------------------------------------------------ address space ------ */

static gms_status cuda_reserve(uint64_t bytes, void **ret_address, struct gms_error *ret_error)
{
    gms_cu_pointer address = 0;
    gms_status status = check_size("reservation", bytes, ret_error);

    if (status == GMS_OK) {
        status = enter(ret_error);
    }
    if (status != GMS_OK) {
        return status;
    }
    if (!gms_cu_book_make_room(&cuda.book)) {
        status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to note a reservation");
    } else {
        const gms_cu_result result = GMS_CU(cuda.api, reserve, &address, bytes, GRANULARITY_BYTES, 0, 0);

        if (result != GMS_CU_SUCCESS) {
            status = gms_cu_fail(cuda.api, result, ret_error, "reservation of %llu bytes", (unsigned long long)bytes);
        } else {
            gms_cu_book_reserve(&cuda.book, address, bytes);
            *ret_address = (void *)(uintptr_t)address;
        }
    }
    leave();
    return status;
}

static gms_cu_result map_pieces(const struct gms_cu_mapping *mapping)
{
    gms_cu_result result = GMS_CU_SUCCESS;
    uint64_t done = 0;

    while (result == GMS_CU_SUCCESS && done < mapping->bytes) {
        const uint64_t left = mapping->bytes - done;
        const bool tail = left < mapping->piece_bytes;
        const uint64_t bytes = tail ? left : mapping->piece_bytes;

        result = GMS_CU(cuda.api, map, mapping->address + done, bytes, 0, tail ? mapping->tail : mapping->object, 0);
        done += result == GMS_CU_SUCCESS ? bytes : 0;
    }
    while (result != GMS_CU_SUCCESS && done > 0) { /* only whole pieces can be there */
        done -= mapping->piece_bytes;
        (void)GMS_CU(cuda.api, unmap, mapping->address + done, mapping->piece_bytes);
    }
    return result;
}

static gms_cu_result unmap_pieces(const struct gms_cu_mapping *mapping)
{
    gms_cu_result result = GMS_CU_SUCCESS;

    for (uint64_t done = 0; result == GMS_CU_SUCCESS && done < mapping->bytes;) {
        const uint64_t left = mapping->bytes - done;
        const uint64_t bytes = left < mapping->piece_bytes ? left : mapping->piece_bytes;

        result = GMS_CU(cuda.api, unmap, mapping->address + done, bytes);
        done += bytes;
    }
    return result;
}

static gms_cu_result open_range(uint64_t address, uint64_t bytes, enum gms_vmm_access access)
{
    const struct gms_cu_access wish = {.location = {.type = GMS_CU_LOCATION_DEVICE, .id = cuda.device.ordinal},
                                       .flags = flags_of(access)};

    return GMS_CU(cuda.api, set_access, address, bytes, &wish, 1);
}

static void release_objects(const struct gms_cu_mapping *mapping)
{
    if (mapping->object != 0) {
        (void)GMS_CU(cuda.api, release, mapping->object);
    }
    if (mapping->tail != 0) {
        (void)GMS_CU(cuda.api, release, mapping->tail);
    }
}

/* Removes every mapping in the range, memory included. */
static gms_status unmap_range(const char *what, const void *address, uint64_t bytes, struct gms_error *ret_error)
{
    size_t first = 0;
    size_t count = 0;
    gms_status status = look_up(what, address, bytes, &first, &count, ret_error);

    while (status == GMS_OK && count > 0) {
        const struct gms_cu_mapping mapping = cuda.book.mappings[first + count - 1];
        const gms_cu_result result = unmap_pieces(&mapping);

        if (result != GMS_CU_SUCCESS) {
            return gms_cu_fail(cuda.api, result, ret_error, "%s of %llu bytes at %p", what,
                               (unsigned long long)mapping.bytes, (void *)(uintptr_t)mapping.address);
        }
        release_objects(&mapping);
        gms_cu_book_remove(&cuda.book, first + --count, 1);
    }
    return status;
}

static gms_status cuda_unmap(void *address, uint64_t bytes, struct gms_error *ret_error)
{
    gms_status status = check_range("unmap", address, bytes, ret_error);

    if (status == GMS_OK) {
        status = enter(ret_error);
    }
    if (status == GMS_OK) {
        status = unmap_range("unmap", address, bytes, ret_error);
        leave();
    }
    return status;
}

static gms_status cuda_unreserve(void *address, uint64_t bytes, struct gms_error *ret_error)
{
    gms_status status = check_range("unreserve", address, bytes, ret_error);

    if (status == GMS_OK) {
        status = enter(ret_error);
    }
    if (status != GMS_OK) {
        return status;
    }
    if (!gms_cu_book_is_whole(&cuda.book, (uintptr_t)address, bytes)) {
        leave();
        return gms_fail(ret_error, GMS_E_INVALID, "unreserve of %llu bytes at %p: not a whole reservation",
                        (unsigned long long)bytes, address);
    }
    status = unmap_range("unreserve", address, bytes, ret_error);
    if (status == GMS_OK) {
        const gms_cu_result result = GMS_CU(cuda.api, unreserve, (uintptr_t)address, bytes);

        if (result == GMS_CU_SUCCESS) {
            gms_cu_book_unreserve(&cuda.book, (uintptr_t)address, bytes);
        } else {
            status = gms_cu_fail(cuda.api, result, ret_error, "unreserve of %llu bytes at %p",
                                 (unsigned long long)bytes, address);
        }
    }
    leave();
    return status;
}

/* -------------------------------------------------------------------------------------------------- map -------- */

/* Puts back what put_in_place took out. What cannot be put back is dropped and named. */
static gms_status put_back(struct gms_cu_mapping *old, size_t count, gms_status status, struct gms_error *ret_error)
{
    for (size_t i = 0; i < count; i++) {
        gms_cu_result result = map_pieces(&old[i]);

        if (result == GMS_CU_SUCCESS && old[i].access != GMS_VMM_NONE) {
            result = open_range(old[i].address, old[i].bytes, old[i].access);
        }
        if (result == GMS_CU_SUCCESS) {
            gms_cu_book_insert(&cuda.book, &old[i]);
            continue;
        }
        status = gms_cu_fail(cuda.api, result, ret_error,
                             "map: replacing failed, and so did putting back the %llu bytes at %p; nothing is mapped "
                             "there now",
                             (unsigned long long)old[i].bytes, (void *)(uintptr_t)old[i].address);
        (void)unmap_pieces(&old[i]);
        release_objects(&old[i]);
    }
    return status;
}

/* Under the lock: takes out what is in the mapping's range and puts the mapping there. On failure the old is back, and
 * the new objects are still the caller's. */
static gms_status put_in_place(const char *what, const struct gms_cu_mapping *mapping, struct gms_error *ret_error)
{
    enum { OLD_MAX = 64 };
    struct gms_cu_mapping old[OLD_MAX];
    size_t first = 0;
    size_t count = 0;
    size_t taken = 0;
    gms_cu_result result = GMS_CU_SUCCESS;
    gms_status status =
        look_up(what, (const void *)(uintptr_t)mapping->address, mapping->bytes, &first, &count, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    if (count > OLD_MAX) {
        return gms_fail(ret_error, GMS_E_INVALID, "%s: %zu mappings would be replaced at once, the limit is %d", what,
                        count, OLD_MAX);
    }
    if (!gms_cu_book_make_room(&cuda.book)) {
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to note a mapping");
    }
    memcpy(old, &cuda.book.mappings[first], count * sizeof(old[0]));
    while (result == GMS_CU_SUCCESS && taken < count) {
        result = unmap_pieces(&old[taken]);
        taken += result == GMS_CU_SUCCESS;
    }
    gms_cu_book_remove(&cuda.book, first, taken);
    if (result == GMS_CU_SUCCESS) {
        result = map_pieces(mapping);
        if (result == GMS_CU_SUCCESS && mapping->access != GMS_VMM_NONE) {
            result = open_range(mapping->address, mapping->bytes, mapping->access);
            if (result != GMS_CU_SUCCESS) {
                (void)unmap_pieces(mapping);
            }
        }
    }
    if (result != GMS_CU_SUCCESS) {
        status = gms_cu_fail(cuda.api, result, ret_error, "%s of %llu bytes at %p", what,
                             (unsigned long long)mapping->bytes, (void *)(uintptr_t)mapping->address);
        return put_back(old, taken, status, ret_error);
    }
    gms_cu_book_insert(&cuda.book, mapping);
    for (size_t i = 0; i < taken; i++) {
        release_objects(&old[i]);
    }
    return GMS_OK;
}

/* The driver's object for a descriptor; it must be memory of this process's device. */
static gms_status open_object(const struct gms_vmm_handle *handle, gms_cu_memory *ret_object,
                              struct gms_error *ret_error)
{
    struct gms_cu_properties properties = {0};
    gms_cu_memory object = 0;
    gms_cu_result result =
        GMS_CU(cuda.api, import_from, &object, (void *)(uintptr_t)handle->fd, GMS_CU_HANDLE_POSIX_FD);

    if (result != GMS_CU_SUCCESS) {
        return gms_cu_fail(cuda.api, result, ret_error, "map: descriptor %d is not device memory that can be used here",
                           handle->fd);
    }
    result = GMS_CU(cuda.api, properties_of, &properties, object);
    gms_status status = GMS_OK;
    if (result != GMS_CU_SUCCESS) {
        status = gms_cu_fail(cuda.api, result, ret_error, "map: properties of descriptor %d", handle->fd);
    } else if (properties.location.type != GMS_CU_LOCATION_DEVICE || properties.location.id != cuda.device.ordinal) {
        status = gms_fail(ret_error, GMS_E_MISMATCH,
                          "map: this memory is on device %d (kind of place %d), this process uses device %d: give it "
                          "the GPU of its rank",
                          properties.location.id, properties.location.type, cuda.device.ordinal);
    }
    if (status != GMS_OK) {
        (void)GMS_CU(cuda.api, release, object);
        return status;
    }
    *ret_object = object;
    return GMS_OK;
}

static gms_status cuda_map(void *address, const struct gms_vmm_handle *handle, enum gms_vmm_access access,
                           struct gms_error *ret_error)
{
    gms_status status = check_range("map", address, handle->bytes, ret_error);

    if (status == GMS_OK && (handle->fd < 0 || flags_of(access) < 0)) {
        status = gms_fail(ret_error, GMS_E_INVALID, "map: empty handle or unknown access %d", (int)access);
    }
    if (status == GMS_OK) {
        status = enter(ret_error);
    }
    if (status != GMS_OK) {
        return status;
    }
    struct gms_cu_mapping mapping = {.address = (uintptr_t)address,
                                     .bytes = handle->bytes,
                                     .piece_bytes = handle->bytes,
                                     .access = access,
                                     .limit = access == GMS_VMM_READ_WRITE ? GMS_VMM_READ_WRITE : GMS_VMM_READ};
    status = open_object(handle, &mapping.object, ret_error);
    if (status == GMS_OK) {
        status = put_in_place("map", &mapping, ret_error);
        if (status != GMS_OK) {
            release_objects(&mapping);
        }
    }
    leave();
    return status;
}

/* Not exported: it ends with this process. */
static gms_cu_result make_scratch(uint64_t bytes, gms_cu_memory *ret_object)
{
    struct gms_cu_properties properties = properties_of_pools(cuda.device.ordinal);

    properties.handle_types = 0;
    return GMS_CU(cuda.api, create, ret_object, bytes, &properties, 0);
}

static gms_status cuda_map_scratch(void *address, uint64_t bytes, struct gms_error *ret_error)
{
    gms_status status = check_range("scratch", address, bytes, ret_error);

    if (status == GMS_OK) {
        status = enter(ret_error);
    }
    if (status != GMS_OK) {
        return status;
    }
    struct gms_cu_mapping mapping = {.address = (uintptr_t)address,
                                     .bytes = bytes,
                                     .piece_bytes = bytes < GMS_VMM_SCRATCH_BYTES ? bytes : GMS_VMM_SCRATCH_BYTES,
                                     .access = GMS_VMM_READ_WRITE,
                                     .limit = GMS_VMM_READ_WRITE};
    const uint64_t tail_bytes = bytes % mapping.piece_bytes;
    gms_cu_result result = make_scratch(mapping.piece_bytes, &mapping.object);
    if (result == GMS_CU_SUCCESS && tail_bytes > 0) {
        result = make_scratch(tail_bytes, &mapping.tail);
    }
    if (result != GMS_CU_SUCCESS) {
        status = gms_cu_fail(cuda.api, result, ret_error, "scratch of %llu bytes (for %llu)",
                             (unsigned long long)(mapping.piece_bytes + tail_bytes), (unsigned long long)bytes);
    } else {
        status = put_in_place("scratch", &mapping, ret_error);
    }
    if (status != GMS_OK) {
        release_objects(&mapping);
    } else {
        /* Every piece is the same memory: the first and the tail are all of it. */
        result = GMS_CU(cuda.api, fill, mapping.address, 0, mapping.piece_bytes);
        if (result == GMS_CU_SUCCESS && tail_bytes > 0) {
            result = GMS_CU(cuda.api, fill, mapping.address + bytes - tail_bytes, 0, tail_bytes);
        }
        if (result == GMS_CU_SUCCESS) {
            result = GMS_CU(cuda.api, context_sync); /* nothing of ours is in flight where the next call may unmap */
        }
        if (result != GMS_CU_SUCCESS) {
            status = gms_cu_fail(cuda.api, result, ret_error, "clearing of scratch");
        }
    }
    leave();
    return status;
}

static gms_status change_access(void *address, uint64_t bytes, enum gms_vmm_access access, struct gms_error *ret_error)
{
    size_t first = 0;
    size_t count = 0;
    uint64_t covered = 0;
    const gms_status status = look_up("access", address, bytes, &first, &count, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    for (size_t i = first; i < first + count; i++) {
        covered += cuda.book.mappings[i].bytes;
        if (access > cuda.book.mappings[i].limit) {
            return gms_fail(ret_error, GMS_E_REFUSED,
                            "%llu bytes at %p were mapped for reading only; map them anew to write",
                            (unsigned long long)bytes, address);
        }
    }
    if (covered != bytes) {
        return gms_fail(ret_error, GMS_E_INVALID, "access: of %llu bytes at %p only %llu are mapped",
                        (unsigned long long)bytes, address, (unsigned long long)covered);
    }
    const gms_cu_result result = open_range((uintptr_t)address, bytes, access);
    if (result != GMS_CU_SUCCESS) {
        return gms_cu_fail(cuda.api, result, ret_error, "access to %llu bytes at %p", (unsigned long long)bytes,
                           address);
    }
    for (size_t i = first; i < first + count; i++) {
        cuda.book.mappings[i].access = access;
    }
    return GMS_OK;
}

static gms_status cuda_set_access(void *address, uint64_t bytes, enum gms_vmm_access access,
                                  struct gms_error *ret_error)
{
    gms_status status = check_range("access", address, bytes, ret_error);

    if (status == GMS_OK && flags_of(access) < 0) {
        status = gms_fail(ret_error, GMS_E_INVALID, "access %d is unknown", (int)access);
    }
    if (status == GMS_OK) {
        status = enter(ret_error);
    }
    if (status == GMS_OK) {
        status = change_access(address, bytes, access, ret_error);
        leave();
    }
    return status;
}

gms_status gms_vmm_cuda_access(const void *address, enum gms_vmm_access *ret_access, struct gms_error *ret_error)
{
    unsigned long long flags = 0;
    const gms_status status = enter(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const struct gms_cu_location place = {.type = GMS_CU_LOCATION_DEVICE, .id = cuda.device.ordinal};
    const gms_cu_result result = GMS_CU(cuda.api, get_access, &flags, &place, (uintptr_t)address);
    leave();
    if (result != GMS_CU_SUCCESS && result != GMS_CU_INVALID_VALUE) {
        return gms_cu_fail(cuda.api, result, ret_error, "access to %p", address);
    }
    *ret_access = result != GMS_CU_SUCCESS            ? GMS_VMM_NONE
                  : flags == GMS_CU_ACCESS_READ_WRITE ? GMS_VMM_READ_WRITE
                  : flags == GMS_CU_ACCESS_READ       ? GMS_VMM_READ
                                                      : GMS_VMM_NONE;
    return GMS_OK;
}

/* ------------------------------------------------------------------------------------------------ handles ------ */

static gms_status create_failed(gms_cu_result result, const char *label, uint64_t bytes, struct gms_error *ret_error)
{
    char asked[32];
    char total[32];

    if (result != GMS_CU_OUT_OF_MEMORY) {
        return gms_cu_fail(cuda.api, result, ret_error, "memory \"%s\" of %llu bytes", label,
                           (unsigned long long)bytes);
    }
    return gms_fail(ret_error, GMS_E_NO_MEMORY,
                    "memory \"%s\": %s asked (%llu bytes), and device %d (%s, %s in all) has not as much available",
                    label, gms_format_size(bytes, asked, sizeof(asked)), (unsigned long long)bytes, cuda.device.ordinal,
                    cuda.device.name, gms_format_size(cuda.device.bytes, total, sizeof(total)));
}

static gms_status cuda_create(const char *label, uint64_t bytes, struct gms_vmm_handle *ret_handle,
                              struct gms_error *ret_error)
{
    gms_cu_memory object = 0;
    int fd = -1;
    gms_status status = check_size("memory", bytes, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    if (!label || strlen(label) >= LABEL_BYTES - 4) {
        return gms_fail(ret_error, GMS_E_INVALID, "memory label has %zu bytes, the limit is %d",
                        label ? strlen(label) : 0, LABEL_BYTES - 5);
    }
    pthread_mutex_lock(&cuda.lock); /* and no context: a coordinator has none */
    status = make_ready(ret_error);
    if (status == GMS_OK) {
        const struct gms_cu_properties properties = properties_of_pools(cuda.device.ordinal);
        gms_cu_result result = GMS_CU(cuda.api, create, &object, bytes, &properties, 0);

        if (result == GMS_CU_SUCCESS) {
            result = GMS_CU(cuda.api, export_to, &fd, object, GMS_CU_HANDLE_POSIX_FD, 0);
            (void)GMS_CU(cuda.api, release, object); /* the descriptor holds the memory */
        }
        if (result != GMS_CU_SUCCESS) {
            status = create_failed(result, label, bytes, ret_error);
        }
    }
    pthread_mutex_unlock(&cuda.lock);
    if (status != GMS_OK) {
        return status;
    }
    const int flags = fcntl(fd, F_GETFD);
    if (flags < 0 || fcntl(fd, F_SETFD, flags | FD_CLOEXEC) < 0) {
        status = gms_fail(ret_error, GMS_E_SYSTEM, "memory \"%s\": descriptor %d: %s", label, fd, strerror(errno));
        gms_fd_close(&fd);
        return status;
    }
    *ret_handle = (struct gms_vmm_handle){.fd = fd, .bytes = bytes};
    return GMS_OK;
}

static gms_status cuda_import_fd(int fd, uint64_t bytes, struct gms_vmm_handle *ret_handle, struct gms_error *ret_error)
{
    const gms_status status = check_size("import", bytes, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const int flags = fcntl(fd, F_GETFD);
    if (flags < 0 || fcntl(fd, F_SETFD, flags | FD_CLOEXEC) < 0) {
        return gms_fail(ret_error, GMS_E_INVALID, "import: descriptor %d: %s", fd, strerror(errno));
    }
    *ret_handle = (struct gms_vmm_handle){.fd = fd, .bytes = bytes};
    return GMS_OK;
}

static gms_status cuda_freeze(const struct gms_vmm_handle *handle, struct gms_error *ret_error)
{
    return handle->fd >= 0 ? GMS_OK : gms_fail(ret_error, GMS_E_INVALID, "freeze of an empty handle");
}

/* ----------------------------------------------------------------------------------------------- contents ------ */

/* The context is made current without holding the lock: what waits for the device must not hold up others. */
static gms_status enter_unlocked(struct gms_error *ret_error)
{
    const gms_status status = enter(ret_error);

    if (status == GMS_OK) {
        pthread_mutex_unlock(&cuda.lock);
    }
    return status;
}

static void leave_unlocked(void)
{
    gms_cu_context context;

    (void)GMS_CU(cuda.api, context_pop, &context);
}

static gms_status cuda_sync(struct gms_error *ret_error)
{
    gms_status status = enter_unlocked(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result = GMS_CU(cuda.api, context_sync);
    leave_unlocked();
    return result == GMS_CU_SUCCESS
               ? GMS_OK
               : gms_cu_fail(cuda.api, result, ret_error, "waiting for device %d", cuda.device.ordinal);
}

static gms_status cuda_read(void *to, const void *from, uint64_t bytes, struct gms_error *ret_error)
{
    gms_status status = enter_unlocked(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result = GMS_CU(cuda.api, read, to, (uintptr_t)from, bytes);
    leave_unlocked();
    return result == GMS_CU_SUCCESS
               ? GMS_OK
               : gms_cu_fail(cuda.api, result, ret_error, "reading %llu bytes at %p", (unsigned long long)bytes, from);
}

static gms_status cuda_write(void *to, const void *from, uint64_t bytes, struct gms_error *ret_error)
{
    gms_status status = enter_unlocked(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    gms_cu_result result = GMS_CU(cuda.api, write, (uintptr_t)to, from, bytes);
    if (result == GMS_CU_SUCCESS) {
        /* The driver returns when the source has been read; the stores may come later, and must not meet another
         * mapping. */
        result = GMS_CU(cuda.api, context_sync);
    }
    leave_unlocked();
    return result == GMS_CU_SUCCESS
               ? GMS_OK
               : gms_cu_fail(cuda.api, result, ret_error, "writing %llu bytes at %p", (unsigned long long)bytes, to);
}

/* --------------------------------------------------------------------------------------------------- marks ----- */

gms_status gms_vmm_cuda_mark_create(void **ret_mark, struct gms_error *ret_error)
{
    gms_cu_event event = NULL;
    gms_status status = enter_unlocked(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result = GMS_CU(cuda.api, event_create, &event, GMS_CU_EVENT_DISABLE_TIMING);
    leave_unlocked();
    if (result != GMS_CU_SUCCESS) {
        return gms_cu_fail(cuda.api, result, ret_error, "an event");
    }
    *ret_mark = event;
    return GMS_OK;
}

gms_status gms_vmm_cuda_mark_record(void *mark, void *stream, struct gms_error *ret_error)
{
    gms_status status = enter_unlocked(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result = GMS_CU(cuda.api, event_record, mark, stream);
    leave_unlocked();
    return result == GMS_CU_SUCCESS ? GMS_OK : gms_cu_fail(cuda.api, result, ret_error, "a mark in a stream");
}

gms_status gms_vmm_cuda_mark_passed(void *mark, struct gms_error *ret_error)
{
    const gms_cu_result result = GMS_CU(cuda.api, event_query, mark);

    if (result == GMS_CU_NOT_READY) {
        return gms_fail(ret_error, GMS_E_NOT_DONE, "the device has not come to the mark yet");
    }
    return result == GMS_CU_SUCCESS ? GMS_OK : gms_cu_fail(cuda.api, result, ret_error, "a mark in a stream");
}

void gms_vmm_cuda_mark_destroy(void *mark)
{
    (void)GMS_CU(cuda.api, event_destroy, mark);
}

static const struct gms_vmm table = {
    .name = "cuda",
    .granularity_bytes = GRANULARITY_BYTES,
    .reserve = cuda_reserve,
    .unreserve = cuda_unreserve,
    .create = cuda_create,
    .export_fd = gms_vmm_handle_export,
    .import_fd = cuda_import_fd,
    .map = cuda_map,
    .map_scratch = cuda_map_scratch,
    .set_access = cuda_set_access,
    .unmap = cuda_unmap,
    .freeze = cuda_freeze,
    .sync = cuda_sync,
    .read = cuda_read,
    .write = cuda_write,
    .release = gms_vmm_handle_release,
};

const struct gms_vmm *gms_vmm_cuda(void)
{
    return &table;
}
