/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/units.h"
#include "vmm/cuda_book.h"
#include "vmm/cuda_device.h"
#include "vmm/handle.h"

enum { LABEL_BYTES = 250 };

static struct gms_cu_book book; /* under gms_cuda.lock */

uint64_t gms_vmm_cuda_calls(void)
{
    return gms_cu_calls();
}

/* ------------------------------------------------------------------------------------------------- checks ------ */

static gms_status check_size(const char *what, uint64_t bytes, struct gms_error *ret_error)
{
    if (bytes == 0 || bytes % GMS_CUDA_GRANULARITY_BYTES != 0 || bytes > INT64_MAX) {
        return gms_fail(ret_error, GMS_E_INVALID, "%s of %llu bytes: must be a positive multiple of %d", what,
                        (unsigned long long)bytes, GMS_CUDA_GRANULARITY_BYTES);
    }
    return GMS_OK;
}

static gms_status check_range(const char *what, const void *address, uint64_t bytes, struct gms_error *ret_error)
{
    if (!address || (uintptr_t)address % GMS_CUDA_GRANULARITY_BYTES != 0) {
        return gms_fail(ret_error, GMS_E_INVALID, "%s at %p: not an address of a reservation (granularity %d)", what,
                        address, GMS_CUDA_GRANULARITY_BYTES);
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
    if (!gms_cu_book_is_reserved(&book, (uintptr_t)address, bytes)) {
        return gms_fail(ret_error, GMS_E_INVALID, "%s of %llu bytes at %p: not inside a reservation", what,
                        (unsigned long long)bytes, address);
    }
    if (!gms_cu_book_find(&book, (uintptr_t)address, bytes, ret_first, ret_count)) {
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
        status = gms_cuda_enter(ret_error);
    }
    if (status != GMS_OK) {
        return status;
    }
    if (!gms_cu_book_make_room(&book)) {
        status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to note a reservation");
    } else {
        const gms_cu_result result = GMS_CU(gms_cuda.api, reserve, &address, bytes, GMS_CUDA_GRANULARITY_BYTES, 0, 0);

        if (result != GMS_CU_SUCCESS) {
            status =
                gms_cu_fail(gms_cuda.api, result, ret_error, "reservation of %llu bytes", (unsigned long long)bytes);
        } else {
            gms_cu_book_reserve(&book, address, bytes);
            *ret_address = (void *)(uintptr_t)address;
        }
    }
    gms_cuda_leave();
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

        result =
            GMS_CU(gms_cuda.api, map, mapping->address + done, bytes, 0, tail ? mapping->tail : mapping->object, 0);
        done += result == GMS_CU_SUCCESS ? bytes : 0;
    }
    while (result != GMS_CU_SUCCESS && done > 0) { /* only whole pieces can be there */
        done -= mapping->piece_bytes;
        (void)GMS_CU(gms_cuda.api, unmap, mapping->address + done, mapping->piece_bytes);
    }
    return result;
}

static gms_cu_result unmap_pieces(const struct gms_cu_mapping *mapping)
{
    gms_cu_result result = GMS_CU_SUCCESS;

    for (uint64_t done = 0; result == GMS_CU_SUCCESS && done < mapping->bytes;) {
        const uint64_t left = mapping->bytes - done;
        const uint64_t bytes = left < mapping->piece_bytes ? left : mapping->piece_bytes;

        result = GMS_CU(gms_cuda.api, unmap, mapping->address + done, bytes);
        done += bytes;
    }
    return result;
}

static gms_cu_result open_range(uint64_t address, uint64_t bytes, enum gms_vmm_access access)
{
    const struct gms_cu_access wish = {.location = {.type = GMS_CU_LOCATION_DEVICE, .id = gms_cuda.device.ordinal},
                                       .flags = flags_of(access)};

    return GMS_CU(gms_cuda.api, set_access, address, bytes, &wish, 1);
}

static void release_objects(const struct gms_cu_mapping *mapping)
{
    if (mapping->object != 0) {
        (void)GMS_CU(gms_cuda.api, release, mapping->object);
    }
    if (mapping->tail != 0) {
        (void)GMS_CU(gms_cuda.api, release, mapping->tail);
    }
}

/* Removes every mapping in the range, memory included. */
static gms_status unmap_range(const char *what, const void *address, uint64_t bytes, struct gms_error *ret_error)
{
    size_t first = 0;
    size_t count = 0;
    gms_status status = look_up(what, address, bytes, &first, &count, ret_error);

    while (status == GMS_OK && count > 0) {
        const struct gms_cu_mapping mapping = book.mappings[first + count - 1];
        const gms_cu_result result = unmap_pieces(&mapping);

        if (result != GMS_CU_SUCCESS) {
            return gms_cu_fail(gms_cuda.api, result, ret_error, "%s of %llu bytes at %p", what,
                               (unsigned long long)mapping.bytes, (void *)(uintptr_t)mapping.address);
        }
        release_objects(&mapping);
        gms_cu_book_remove(&book, first + --count, 1);
    }
    return status;
}

static gms_status cuda_unmap(void *address, uint64_t bytes, struct gms_error *ret_error)
{
    gms_status status = check_range("unmap", address, bytes, ret_error);

    if (status == GMS_OK) {
        status = gms_cuda_enter(ret_error);
    }
    if (status == GMS_OK) {
        status = unmap_range("unmap", address, bytes, ret_error);
        gms_cuda_leave();
    }
    return status;
}

static gms_status cuda_unreserve(void *address, uint64_t bytes, struct gms_error *ret_error)
{
    gms_status status = check_range("unreserve", address, bytes, ret_error);

    if (status == GMS_OK) {
        status = gms_cuda_enter(ret_error);
    }
    if (status != GMS_OK) {
        return status;
    }
    if (!gms_cu_book_is_whole(&book, (uintptr_t)address, bytes)) {
        gms_cuda_leave();
        return gms_fail(ret_error, GMS_E_INVALID, "unreserve of %llu bytes at %p: not a whole reservation",
                        (unsigned long long)bytes, address);
    }
    status = unmap_range("unreserve", address, bytes, ret_error);
    if (status == GMS_OK) {
        const gms_cu_result result = GMS_CU(gms_cuda.api, unreserve, (uintptr_t)address, bytes);

        if (result == GMS_CU_SUCCESS) {
            gms_cu_book_unreserve(&book, (uintptr_t)address, bytes);
        } else {
            status = gms_cu_fail(gms_cuda.api, result, ret_error, "unreserve of %llu bytes at %p",
                                 (unsigned long long)bytes, address);
        }
    }
    gms_cuda_leave();
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
            gms_cu_book_insert(&book, &old[i]);
            continue;
        }
        status = gms_cu_fail(gms_cuda.api, result, ret_error,
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
    if (!gms_cu_book_make_room(&book)) {
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to note a mapping");
    }
    memcpy(old, &book.mappings[first], count * sizeof(old[0]));
    while (result == GMS_CU_SUCCESS && taken < count) {
        result = unmap_pieces(&old[taken]);
        taken += result == GMS_CU_SUCCESS;
    }
    gms_cu_book_remove(&book, first, taken);
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
        status = gms_cu_fail(gms_cuda.api, result, ret_error, "%s of %llu bytes at %p", what,
                             (unsigned long long)mapping->bytes, (void *)(uintptr_t)mapping->address);
        return put_back(old, taken, status, ret_error);
    }
    gms_cu_book_insert(&book, mapping);
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
        GMS_CU(gms_cuda.api, import_from, &object, (void *)(uintptr_t)handle->fd, GMS_CU_HANDLE_POSIX_FD);

    if (result != GMS_CU_SUCCESS) {
        return gms_cu_fail(gms_cuda.api, result, ret_error,
                           "map: descriptor %d is not device memory that can be used here", handle->fd);
    }
    result = GMS_CU(gms_cuda.api, properties_of, &properties, object);
    gms_status status = GMS_OK;
    if (result != GMS_CU_SUCCESS) {
        status = gms_cu_fail(gms_cuda.api, result, ret_error, "map: properties of descriptor %d", handle->fd);
    } else if (properties.location.type != GMS_CU_LOCATION_DEVICE ||
               properties.location.id != gms_cuda.device.ordinal) {
        status = gms_fail(ret_error, GMS_E_MISMATCH,
                          "map: this memory is on device %d (kind of place %d), this process uses device %d: give it "
                          "the GPU of its rank",
                          properties.location.id, properties.location.type, gms_cuda.device.ordinal);
    }
    if (status != GMS_OK) {
        (void)GMS_CU(gms_cuda.api, release, object);
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
        status = gms_cuda_enter(ret_error);
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
    gms_cuda_leave();
    return status;
}

/* Not exported: it ends with this process. */
static gms_cu_result make_scratch(uint64_t bytes, gms_cu_memory *ret_object)
{
    struct gms_cu_properties properties = gms_cuda_properties_of_pools(gms_cuda.device.ordinal);

    properties.handle_types = 0;
    return GMS_CU(gms_cuda.api, create, ret_object, bytes, &properties, 0);
}

static gms_status cuda_map_scratch(void *address, uint64_t bytes, struct gms_error *ret_error)
{
    gms_status status = check_range("scratch", address, bytes, ret_error);

    if (status == GMS_OK) {
        status = gms_cuda_enter(ret_error);
    }
    if (status != GMS_OK) {
        return status;
    }
    /* A piece that is shown again and again, and a shorter one at the end. */
    struct gms_cu_mapping mapping = {.address = (uintptr_t)address,
                                     .bytes = bytes,
                                     .piece_bytes = bytes <= GMS_VMM_SCRATCH_BYTES ? bytes : GMS_VMM_SCRATCH_BYTES / 2,
                                     .access = GMS_VMM_READ_WRITE,
                                     .limit = GMS_VMM_READ_WRITE};
    const uint64_t tail_bytes = bytes % mapping.piece_bytes;
    gms_cu_result result = make_scratch(mapping.piece_bytes, &mapping.object);
    if (result == GMS_CU_SUCCESS && tail_bytes > 0) {
        result = make_scratch(tail_bytes, &mapping.tail);
    }
    if (result != GMS_CU_SUCCESS) {
        status = gms_cu_fail(gms_cuda.api, result, ret_error, "scratch of %llu bytes (for %llu)",
                             (unsigned long long)(mapping.piece_bytes + tail_bytes), (unsigned long long)bytes);
    } else {
        status = put_in_place("scratch", &mapping, ret_error);
    }
    if (status != GMS_OK) {
        release_objects(&mapping);
    } else {
        /* Every piece is the same memory: the first and the tail are all of it. */
        result = GMS_CU(gms_cuda.api, fill, mapping.address, 0, mapping.piece_bytes);
        if (result == GMS_CU_SUCCESS && tail_bytes > 0) {
            result = GMS_CU(gms_cuda.api, fill, mapping.address + bytes - tail_bytes, 0, tail_bytes);
        }
        if (result == GMS_CU_SUCCESS) {
            result =
                GMS_CU(gms_cuda.api, context_sync); /* nothing of ours is in flight where the next call may unmap */
        }
        if (result != GMS_CU_SUCCESS) {
            status = gms_cu_fail(gms_cuda.api, result, ret_error, "clearing of scratch");
        }
    }
    gms_cuda_leave();
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
        covered += book.mappings[i].bytes;
        if (access > book.mappings[i].limit) {
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
        return gms_cu_fail(gms_cuda.api, result, ret_error, "access to %llu bytes at %p", (unsigned long long)bytes,
                           address);
    }
    for (size_t i = first; i < first + count; i++) {
        book.mappings[i].access = access;
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
        status = gms_cuda_enter(ret_error);
    }
    if (status == GMS_OK) {
        status = change_access(address, bytes, access, ret_error);
        gms_cuda_leave();
    }
    return status;
}

gms_status gms_vmm_cuda_access(const void *address, enum gms_vmm_access *ret_access, struct gms_error *ret_error)
{
    unsigned long long flags = 0;
    const gms_status status = gms_cuda_enter(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const struct gms_cu_location place = {.type = GMS_CU_LOCATION_DEVICE, .id = gms_cuda.device.ordinal};
    const gms_cu_result result = GMS_CU(gms_cuda.api, get_access, &flags, &place, (uintptr_t)address);
    gms_cuda_leave();
    if (result != GMS_CU_SUCCESS && result != GMS_CU_INVALID_VALUE) {
        return gms_cu_fail(gms_cuda.api, result, ret_error, "access to %p", address);
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
        return gms_cu_fail(gms_cuda.api, result, ret_error, "memory \"%s\" of %llu bytes", label,
                           (unsigned long long)bytes);
    }
    return gms_fail(ret_error, GMS_E_NO_MEMORY,
                    "memory \"%s\": %s asked (%llu bytes), and device %d (%s, %s in all) has not as much available",
                    label, gms_format_size(bytes, asked, sizeof(asked)), (unsigned long long)bytes,
                    gms_cuda.device.ordinal, gms_cuda.device.name,
                    gms_format_size(gms_cuda.device.bytes, total, sizeof(total)));
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
    pthread_mutex_lock(&gms_cuda.lock); /* and no context: a coordinator has none */
    status = gms_cuda_make_ready(ret_error);
    if (status == GMS_OK) {
        const struct gms_cu_properties properties = gms_cuda_properties_of_pools(gms_cuda.device.ordinal);
        gms_cu_result result = GMS_CU(gms_cuda.api, create, &object, bytes, &properties, 0);

        if (result == GMS_CU_SUCCESS) {
            result = GMS_CU(gms_cuda.api, export_to, &fd, object, GMS_CU_HANDLE_POSIX_FD, 0);
            (void)GMS_CU(gms_cuda.api, release, object); /* the descriptor holds the memory */
        }
        if (result != GMS_CU_SUCCESS) {
            status = create_failed(result, label, bytes, ret_error);
        }
    }
    pthread_mutex_unlock(&gms_cuda.lock);
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

static const struct gms_vmm table = {
    .name = "cuda",
    .granularity_bytes = GMS_CUDA_GRANULARITY_BYTES,
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
    .sync = gms_cuda_sync,
    .read = gms_cuda_read,
    .write = gms_cuda_write,
    .release = gms_vmm_handle_release,
};

const struct gms_vmm *gms_vmm_cuda(void)
{
    return &table;
}
