/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_cuda_state.h"

/* ------------------------------------------------------------------------------------------------ objects ------ */

static size_t used_bytes(void)
{
    size_t used = 0;

    for (int i = 0; i < OBJECTS; i++) {
        used += fake.objects[i].references > 0 && fake.objects[i].created ? fake.objects[i].bytes : 0;
    }
    return used;
}

gms_cu_result cuMemGetInfo_v2(size_t *ret_free, size_t *ret_total)
{
    BEGIN(cuMemGetInfo_v2, true);
    *ret_total = fake.bytes_each;
    *ret_free = fake.bytes_each - used_bytes();
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemGetAllocationGranularity(size_t *ret_bytes, const struct gms_cu_properties *properties, int option)
{
    BEGIN(cuMemGetAllocationGranularity, false);
    if (properties->type != GMS_CU_ALLOCATION_PINNED || option != GMS_CU_GRANULARITY_MINIMUM) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    *ret_bytes = GRANULE;
    return fake_cuda_end(GMS_CU_SUCCESS);
}

static struct object *new_object(void)
{
    for (int i = 0; i < OBJECTS; i++) {
        if (fake.objects[i].references == 0) {
            fake.objects[i] = (struct object){.fd = -1};
            return &fake.objects[i];
        }
    }
    return NULL;
}

static struct object *object_of(gms_cu_memory memory)
{
    const size_t index = (size_t)(memory & 0xffff) - 1;

    return memory >> 16 == 0xfade && index < OBJECTS && fake.objects[index].handles > 0 ? &fake.objects[index] : NULL;
}

static gms_cu_memory handle_of(struct object *object)
{
    object->references++;
    object->handles++;
    return 0xfade0000ULL | (gms_cu_memory)(object - fake.objects + 1);
}

static void drop(struct object *object)
{
    if (--object->references == 0) {
        close(object->fd);
        object->fd = -1;
    }
}

gms_cu_result cuMemCreate(gms_cu_memory *ret_memory, size_t bytes, const struct gms_cu_properties *properties,
                          unsigned long long flags)
{
    char name[64];
    BEGIN(cuMemCreate, false);
    if (bytes == 0 || bytes % GRANULE != 0 || flags != 0 || properties->type != GMS_CU_ALLOCATION_PINNED ||
        properties->location.type != GMS_CU_LOCATION_DEVICE || properties->location.id >= fake.devices) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    struct object *object = new_object();
    if (!object || bytes > fake.bytes_each - used_bytes()) {
        return fake_cuda_end(GMS_CU_OUT_OF_MEMORY);
    }
    snprintf(name, sizeof(name), "fake-cuda-%d", fake.order[properties->location.id & 15]);
    object->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (object->fd < 0) {
        return fake_cuda_end(GMS_CU_OPERATING_SYSTEM);
    }
    if (ftruncate(object->fd, (off_t)bytes) != 0) {
        close(object->fd);
        return fake_cuda_end(GMS_CU_OUT_OF_MEMORY);
    }
    object->bytes = bytes;
    object->device = properties->location.id;
    object->exportable = properties->handle_types == GMS_CU_HANDLE_POSIX_FD;
    object->created = true;
    *ret_memory = handle_of(object);
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemRelease(gms_cu_memory memory)
{
    BEGIN(cuMemRelease, false);
    struct object *object = object_of(memory);
    if (!object) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    object->handles--;
    drop(object);
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemExportToShareableHandle(void *ret_handle, gms_cu_memory memory, int type, unsigned long long flags)
{
    BEGIN(cuMemExportToShareableHandle, false);
    const struct object *object = object_of(memory);
    if (!object || !object->exportable || type != GMS_CU_HANDLE_POSIX_FD || flags != 0) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    const int fd = dup(object->fd); /* inheritable, as the driver's are */
    if (fd < 0) {
        return fake_cuda_end(GMS_CU_OPERATING_SYSTEM);
    }
    *(int *)ret_handle = fd;
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemImportFromShareableHandle(gms_cu_memory *ret_memory, void *handle, int type)
{
    char link[64];
    char target[128] = "";
    struct stat info;
    int device = -1;
    BEGIN(cuMemImportFromShareableHandle, false);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", (int)(intptr_t)handle);
    if (type != GMS_CU_HANDLE_POSIX_FD || readlink(link, target, sizeof(target) - 1) < 0 ||
        sscanf(target, "/memfd:fake-cuda-%d", &device) != 1) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    struct object *object = new_object();
    const int fd = fcntl((int)(intptr_t)handle, F_DUPFD_CLOEXEC, 0);
    if (!object || fd < 0 || fstat(fd, &info) != 0) {
        return fake_cuda_end(GMS_CU_OPERATING_SYSTEM);
    }
    object->fd = fd;
    object->bytes = (size_t)info.st_size;
    object->device = -1;
    for (int i = 0; i < fake.devices; i++) {
        object->device = fake.order[i] == device ? i : object->device;
    }
    *ret_memory = handle_of(object);
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemGetAllocationPropertiesFromHandle(struct gms_cu_properties *ret_properties, gms_cu_memory memory)
{
    BEGIN(cuMemGetAllocationPropertiesFromHandle, false);
    const struct object *object = object_of(memory);
    if (!object) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    *ret_properties = (struct gms_cu_properties){.type = GMS_CU_ALLOCATION_PINNED,
                                                 .handle_types = GMS_CU_HANDLE_POSIX_FD,
                                                 .location = {GMS_CU_LOCATION_DEVICE, object->device}};
    return fake_cuda_end(GMS_CU_SUCCESS);
}

/* ----------------------------------------------------------------------------------------------- mappings ------ */

gms_cu_result cuMemAddressReserve(gms_cu_pointer *ret_address, size_t bytes, size_t alignment, gms_cu_pointer wish,
                                  unsigned long long flags)
{
    BEGIN(cuMemAddressReserve, false);
    if (bytes == 0 || bytes % GRANULE != 0 || alignment > GRANULE || wish != 0 || flags != 0) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    for (int i = 0; i < RANGES; i++) {
        if (fake.ranges[i].bytes == 0) {
            char *whole = mmap(NULL, bytes + GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (whole == MAP_FAILED) {
                return fake_cuda_end(GMS_CU_OUT_OF_MEMORY);
            }
            const uintptr_t start = ((uintptr_t)whole + GRANULE - 1) / GRANULE * GRANULE;
            if (start != (uintptr_t)whole) {
                munmap(whole, start - (uintptr_t)whole);
            }
            munmap((char *)start + bytes, (uintptr_t)whole + GRANULE - start);
            fake.ranges[i] = (struct range){start, bytes};
            *ret_address = start;
            return fake_cuda_end(GMS_CU_SUCCESS);
        }
    }
    return fake_cuda_end(GMS_CU_OUT_OF_MEMORY);
}

static bool overlaps(const struct mapping *mapping, gms_cu_pointer address, size_t bytes)
{
    return mapping->bytes > 0 && address < mapping->address + mapping->bytes && mapping->address < address + bytes;
}

gms_cu_result cuMemAddressFree(gms_cu_pointer address, size_t bytes)
{
    BEGIN(cuMemAddressFree, false);
    for (int i = 0; i < MAPPINGS; i++) {
        if (overlaps(&fake.mappings[i], address, bytes)) {
            return fake_cuda_end(GMS_CU_INVALID_VALUE);
        }
    }
    for (int i = 0; i < RANGES; i++) {
        if (fake.ranges[i].address == address && fake.ranges[i].bytes == bytes && bytes > 0) {
            munmap((void *)(uintptr_t)address, bytes);
            fake.ranges[i].bytes = 0;
            return fake_cuda_end(GMS_CU_SUCCESS);
        }
    }
    return fake_cuda_end(GMS_CU_INVALID_VALUE);
}

static bool is_reserved(gms_cu_pointer address, size_t bytes)
{
    for (int i = 0; i < RANGES; i++) {
        const struct range *range = &fake.ranges[i];
        if (range->bytes > 0 && address >= range->address && address + bytes <= range->address + range->bytes) {
            return true;
        }
    }
    return false;
}

gms_cu_result cuMemMap(gms_cu_pointer address, size_t bytes, size_t offset, gms_cu_memory memory,
                       unsigned long long flags)
{
    BEGIN(cuMemMap, false);
    struct object *object = object_of(memory);
    struct mapping *place = NULL;
    if (!object || object->bytes != bytes || offset != 0 || flags != 0 || address % GRANULE != 0 ||
        !is_reserved(address, bytes)) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    for (int i = 0; i < MAPPINGS; i++) {
        if (overlaps(&fake.mappings[i], address, bytes)) {
            return fake_cuda_end(GMS_CU_INVALID_VALUE);
        }
        place = !place && fake.mappings[i].bytes == 0 ? &fake.mappings[i] : place;
    }
    if (!place ||
        mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, object->fd, 0) == MAP_FAILED) {
        return fake_cuda_end(GMS_CU_OUT_OF_MEMORY);
    }
    object->references++;
    *place = (struct mapping){.address = (uintptr_t)address, .bytes = bytes, .object = object};
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemUnmap(gms_cu_pointer address, size_t bytes)
{
    BEGIN(cuMemUnmap, false);
    if (address < fake.storing_to && fake.storing_from < address + bytes) {
        fake.sticky = GMS_CU_LAUNCH_FAILED; /* as a GPU whose copy engine meets what is mapped no more */
        return fake_cuda_end(fake.sticky);
    }
    for (int i = 0; i < MAPPINGS; i++) {
        struct mapping *mapping = &fake.mappings[i];
        if (mapping->bytes > 0 && mapping->address == address && mapping->bytes == bytes) {
            if (mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
                return fake_cuda_end(GMS_CU_OPERATING_SYSTEM);
            }
            drop(mapping->object);
            *mapping = (struct mapping){0};
            return fake_cuda_end(GMS_CU_SUCCESS);
        }
    }
    return fake_cuda_end(GMS_CU_INVALID_VALUE);
}

/* Do whole mappings cover the range without a gap? */
static bool is_covered(gms_cu_pointer address, size_t bytes, bool whole)
{
    size_t covered = 0;

    for (int i = 0; i < MAPPINGS; i++) {
        const struct mapping *mapping = &fake.mappings[i];
        if (!overlaps(mapping, address, bytes)) {
            continue;
        }
        const uintptr_t from = mapping->address > address ? mapping->address : address;
        const uintptr_t to =
            mapping->address + mapping->bytes < address + bytes ? mapping->address + mapping->bytes : address + bytes;
        if (whole && to - from != mapping->bytes) {
            return false;
        }
        covered += to - from;
    }
    return covered == bytes;
}

gms_cu_result cuMemSetAccess(gms_cu_pointer address, size_t bytes, const struct gms_cu_access *access, size_t count)
{
    BEGIN(cuMemSetAccess, true);
    if (count != 1 || access->location.type != GMS_CU_LOCATION_DEVICE || !is_covered(address, bytes, true)) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    const int protection = access->flags == GMS_CU_ACCESS_READ_WRITE ? PROT_READ | PROT_WRITE
                           : access->flags == GMS_CU_ACCESS_READ     ? PROT_READ
                                                                     : PROT_NONE;
    for (int i = 0; i < MAPPINGS; i++) {
        struct mapping *mapping = &fake.mappings[i];
        if (!overlaps(mapping, address, bytes)) {
            continue;
        }
        if (access->location.id != mapping->object->device ||
            mprotect((void *)mapping->address, mapping->bytes, protection) != 0) {
            return fake_cuda_end(GMS_CU_INVALID_VALUE);
        }
        mapping->flags = access->flags;
    }
    return fake_cuda_end(GMS_CU_SUCCESS);
}

static int access_of(gms_cu_pointer address, size_t bytes)
{
    int flags = GMS_CU_ACCESS_READ_WRITE;

    if (!is_covered(address, bytes, false)) {
        return -1;
    }
    for (int i = 0; i < MAPPINGS; i++) {
        if (overlaps(&fake.mappings[i], address, bytes)) {
            flags &= fake.mappings[i].flags;
        }
    }
    return flags;
}

gms_cu_result cuMemGetAccess(unsigned long long *ret_flags, const struct gms_cu_location *location,
                             gms_cu_pointer address)
{
    BEGIN(cuMemGetAccess, false);
    const int flags = access_of(address, 1);
    if (flags < 0 || location->type != GMS_CU_LOCATION_DEVICE) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    *ret_flags = (unsigned long long)flags;
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemcpyDtoH_v2(void *to, gms_cu_pointer from, size_t bytes)
{
    BEGIN(cuMemcpyDtoH_v2, true);
    const int flags = access_of(from, bytes);
    if (flags < 0 || !(flags & GMS_CU_ACCESS_READ)) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return fake_cuda_end(GMS_CU_SUCCESS);
}

/* Both return before the stores are done, as the driver does. */
static void storing(gms_cu_pointer to, size_t bytes)
{
    if (fake.storing_to == 0 || to < fake.storing_from) {
        fake.storing_from = to;
    }
    if (to + bytes > fake.storing_to) {
        fake.storing_to = to + bytes;
    }
}

gms_cu_result cuMemcpyHtoD_v2(gms_cu_pointer to, const void *from, size_t bytes)
{
    BEGIN(cuMemcpyHtoD_v2, true);
    if (access_of(to, bytes) != GMS_CU_ACCESS_READ_WRITE) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    memcpy((void *)(uintptr_t)to, from, bytes);
    storing(to, bytes);
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemsetD8_v2(gms_cu_pointer address, unsigned char byte, size_t bytes)
{
    BEGIN(cuMemsetD8_v2, true);
    if (access_of(address, bytes) != GMS_CU_ACCESS_READ_WRITE) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    memset((void *)(uintptr_t)address, byte, bytes);
    storing(address, bytes);
    return fake_cuda_end(GMS_CU_SUCCESS);
}
