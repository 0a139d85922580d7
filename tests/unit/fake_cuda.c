/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/cuda_api.h"

#define EXPORT __attribute__((visibility("default")))

enum { OBJECTS = 4096, MAPPINGS = 8192, RANGES = 1024, EVENTS = 1024, STREAMS = 16, GRANULE = 2 * 1024 * 1024 };

struct object {
    int fd;
    size_t bytes;
    int device;
    unsigned references; /* handles and mappings */
    unsigned handles;
    bool exportable, created;
};
struct mapping {
    uintptr_t address;
    size_t bytes;
    struct object *object;
    int flags;
};
struct range {
    uintptr_t address;
    size_t bytes;
};
struct event {
    bool used;
    void *stream;
    bool recorded;
};

static struct {
    pthread_mutex_t lock;
    pid_t pid; /* 0: not initialized */
    int devices, compute_mode, order[16];
    size_t bytes_each;
    int sticky;
    char fail_symbol[64];
    unsigned fail_skip, fail_times;
    int fail_result;
    uint64_t calls;
    unsigned contexts;
    uintptr_t storing_from, storing_to; /* stores that were submitted and not waited for */
    struct object objects[OBJECTS];
    struct mapping mappings[MAPPINGS];
    struct range ranges[RANGES];
    struct event events[EVENTS];
    void *held[STREAMS];
    uintptr_t streams; /* made so far */
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local int current_depth;

/* ------------------------------------------------------------------------------------------------ script ------- */

static void fail_next(const char *symbol, unsigned skip, unsigned times, int result)
{
    pthread_mutex_lock(&fake.lock);
    snprintf(fake.fail_symbol, sizeof(fake.fail_symbol), "%s", symbol ? symbol : "");
    fake.fail_skip = skip;
    fake.fail_times = times;
    fake.fail_result = result;
    pthread_mutex_unlock(&fake.lock);
}

static void hold(void *stream, bool held)
{
    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < STREAMS; i++) {
        if (held ? fake.held[i] == NULL : fake.held[i] == stream) {
            fake.held[i] = held ? stream : NULL;
            break;
        }
    }
    pthread_mutex_unlock(&fake.lock);
}

static void heal(void)
{
    fake.storing_to = 0;
    fake.sticky = 0;
}

static uint64_t calls(void)
{
    return fake.calls;
}

static struct fake_cuda_counts counts(void)
{
    struct fake_cuda_counts result = {.contexts = fake.contexts};

    for (int i = 0; i < OBJECTS; i++) {
        result.objects += fake.objects[i].handles > 0;
    }
    for (int i = 0; i < MAPPINGS; i++) {
        result.mappings += fake.mappings[i].bytes > 0;
    }
    for (int i = 0; i < RANGES; i++) {
        result.reservations += fake.ranges[i].bytes > 0;
    }
    for (int i = 0; i < EVENTS; i++) {
        result.events += fake.events[i].used;
    }
    return result;
}

EXPORT const struct fake_cuda *fake_cuda_table(void);
const struct fake_cuda *fake_cuda_table(void)
{
    static const struct fake_cuda table = {
        .fail_next = fail_next, .hold = hold, .heal = heal, .calls = calls, .counts = counts};

    return &table;
}

static size_t number_of(const char *name, size_t otherwise)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 0) : otherwise;
}

static void read_environment(void)
{
    const char *failure = getenv("FAKE_CUDA_FAIL");
    const char *order = getenv("FAKE_CUDA_VISIBLE");
    char symbol[64];
    unsigned skip = 0;
    int result = 0;

    fake.devices = (int)number_of("FAKE_CUDA_DEVICES", 1);
    fake.bytes_each = number_of("FAKE_CUDA_BYTES", (size_t)1 << 30);
    fake.compute_mode = (int)number_of("FAKE_CUDA_COMPUTE_MODE", 0);
    for (int i = 0; i < 16; i++) {
        fake.order[i] = i;
    }
    for (int i = 0; order && *order && i < 16; i++) {
        char *end = NULL;

        fake.order[i] = (int)strtol(order, &end, 10);
        fake.devices = i + 1;
        order = *end == ',' ? end + 1 : NULL;
    }
    if (failure && sscanf(failure, "%63[^:]:%u:%d", symbol, &skip, &result) == 3) {
        snprintf(fake.fail_symbol, sizeof(fake.fail_symbol), "%s", symbol);
        fake.fail_skip = skip;
        fake.fail_times = 1;
        fake.fail_result = result;
    }
}

/* Takes the lock and says how this call must fail, whatever it wants; 0: it need not. */
static int begin(const char *symbol, bool needs_context)
{
    pthread_mutex_lock(&fake.lock);
    fake.calls++;
    if (fake.pid == 0 || fake.pid != getpid()) {
        return GMS_CU_NOT_INITIALIZED;
    }
    if (fake.sticky != 0) {
        return fake.sticky;
    }
    if (strcmp(symbol, fake.fail_symbol) == 0) {
        if (fake.fail_skip == 0) {
            const int result = fake.fail_result;

            fake.fail_symbol[--fake.fail_times == 0 ? 0 : 63] = '\0';
            fake.sticky = gms_cu_is_sticky(result) ? result : 0;
            return result;
        }
        fake.fail_skip--;
    }
    return needs_context && current_depth == 0 ? GMS_CU_INVALID_CONTEXT : 0;
}

static int end(int result)
{
    pthread_mutex_unlock(&fake.lock);
    return result;
}

#define BEGIN(symbol, needs_context)                                                                                   \
    const int must = begin(#symbol, needs_context);                                                                    \
    if (must != 0) {                                                                                                   \
        return end(must);                                                                                              \
    }

/* ------------------------------------------------------------------------------------------ driver, device ----- */

#define DECLARE(member, symbol, parameters) EXPORT gms_cu_result symbol parameters;
GMS_CU_LIST(DECLARE)

gms_cu_result cuInit(unsigned flags)
{
    pthread_mutex_lock(&fake.lock);
    fake.calls++;
    if (fake.pid == 0) {
        read_environment();
        fake.pid = getpid();
        if (strcmp(fake.fail_symbol, "cuInit") == 0) {
            fake.pid = 0;
            return end(fake.fail_result);
        }
    }
    if (flags != 0) {
        return end(GMS_CU_INVALID_VALUE);
    }
    return end(fake.pid == getpid() ? fake.devices > 0 ? GMS_CU_SUCCESS : GMS_CU_NO_DEVICE : GMS_CU_NOT_INITIALIZED);
}

gms_cu_result cuGetErrorName(gms_cu_result result, const char **ret_text)
{
    static const struct {
        int result;
        const char *name;
    } names[] = {{GMS_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
                 {GMS_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {GMS_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
                 {GMS_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
                 {GMS_CU_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM"},
                 {GMS_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"}};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].result == result) {
            *ret_text = names[i].name;
            return GMS_CU_SUCCESS;
        }
    }
    return GMS_CU_INVALID_VALUE;
}

gms_cu_result cuGetErrorString(gms_cu_result result, const char **ret_text)
{
    *ret_text = "said by the fake driver";
    return result >= 0 ? GMS_CU_SUCCESS : GMS_CU_INVALID_VALUE;
}

gms_cu_result cuDeviceGetCount(int *ret_count)
{
    BEGIN(cuDeviceGetCount, false);
    *ret_count = fake.devices;
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuDeviceGet(gms_cu_device *ret_device, int ordinal)
{
    BEGIN(cuDeviceGet, false);
    if (ordinal < 0 || ordinal >= fake.devices) {
        return end(GMS_CU_INVALID_DEVICE);
    }
    *ret_device = ordinal;
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuDeviceGetUuid_v2(struct gms_cu_uuid *ret_uuid, gms_cu_device device)
{
    BEGIN(cuDeviceGetUuid_v2, false);
    memset(ret_uuid->bytes, 0xfa, sizeof(ret_uuid->bytes));
    ret_uuid->bytes[0] = (char)(0x10 + fake.order[device & 15]);
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuDeviceGetName(char *ret_name, int bytes, gms_cu_device device)
{
    BEGIN(cuDeviceGetName, false);
    snprintf(ret_name, (size_t)bytes, "fake device %d", fake.order[device & 15]);
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuDeviceTotalMem_v2(size_t *ret_bytes, gms_cu_device device)
{
    BEGIN(cuDeviceTotalMem_v2, false);
    (void)device;
    *ret_bytes = fake.bytes_each;
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuDeviceGetAttribute(int *ret_value, int attribute, gms_cu_device device)
{
    BEGIN(cuDeviceGetAttribute, false);
    (void)device;
    *ret_value = attribute == GMS_CU_ATTRIBUTE_COMPUTE_MODE ? fake.compute_mode : 1;
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuDevicePrimaryCtxRetain(gms_cu_context *ret_context, gms_cu_device device)
{
    BEGIN(cuDevicePrimaryCtxRetain, false);
    fake.contexts++;
    *ret_context = (gms_cu_context)(uintptr_t)(0x1000 + (unsigned)device);
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuCtxPushCurrent_v2(gms_cu_context context)
{
    BEGIN(cuCtxPushCurrent_v2, false);
    current_depth += context != NULL;
    return end(context ? GMS_CU_SUCCESS : GMS_CU_INVALID_CONTEXT);
}

gms_cu_result cuCtxPopCurrent_v2(gms_cu_context *ret_context)
{
    pthread_mutex_lock(&fake.lock);
    fake.calls++;
    *ret_context = NULL;
    if (current_depth == 0) {
        return end(GMS_CU_INVALID_CONTEXT);
    }
    current_depth--;
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuCtxSynchronize(void)
{
    BEGIN(cuCtxSynchronize, true);
    fake.storing_to = 0;
    return end(GMS_CU_SUCCESS);
}

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
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemGetAllocationGranularity(size_t *ret_bytes, const struct gms_cu_properties *properties, int option)
{
    BEGIN(cuMemGetAllocationGranularity, false);
    if (properties->type != GMS_CU_ALLOCATION_PINNED || option != GMS_CU_GRANULARITY_MINIMUM) {
        return end(GMS_CU_INVALID_VALUE);
    }
    *ret_bytes = GRANULE;
    return end(GMS_CU_SUCCESS);
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
        return end(GMS_CU_INVALID_VALUE);
    }
    struct object *object = new_object();
    if (!object || bytes > fake.bytes_each - used_bytes()) {
        return end(GMS_CU_OUT_OF_MEMORY);
    }
    snprintf(name, sizeof(name), "fake-cuda-%d", fake.order[properties->location.id & 15]);
    object->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (object->fd < 0) {
        return end(GMS_CU_OPERATING_SYSTEM);
    }
    if (ftruncate(object->fd, (off_t)bytes) != 0) {
        close(object->fd);
        return end(GMS_CU_OUT_OF_MEMORY);
    }
    object->bytes = bytes;
    object->device = properties->location.id;
    object->exportable = properties->handle_types == GMS_CU_HANDLE_POSIX_FD;
    object->created = true;
    *ret_memory = handle_of(object);
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemRelease(gms_cu_memory memory)
{
    BEGIN(cuMemRelease, false);
    struct object *object = object_of(memory);
    if (!object) {
        return end(GMS_CU_INVALID_VALUE);
    }
    object->handles--;
    drop(object);
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemExportToShareableHandle(void *ret_handle, gms_cu_memory memory, int type, unsigned long long flags)
{
    BEGIN(cuMemExportToShareableHandle, false);
    const struct object *object = object_of(memory);
    if (!object || !object->exportable || type != GMS_CU_HANDLE_POSIX_FD || flags != 0) {
        return end(GMS_CU_INVALID_VALUE);
    }
    const int fd = dup(object->fd); /* inheritable, as the driver's are */
    if (fd < 0) {
        return end(GMS_CU_OPERATING_SYSTEM);
    }
    *(int *)ret_handle = fd;
    return end(GMS_CU_SUCCESS);
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
        return end(GMS_CU_INVALID_VALUE);
    }
    struct object *object = new_object();
    const int fd = fcntl((int)(intptr_t)handle, F_DUPFD_CLOEXEC, 0);
    if (!object || fd < 0 || fstat(fd, &info) != 0) {
        return end(GMS_CU_OPERATING_SYSTEM);
    }
    object->fd = fd;
    object->bytes = (size_t)info.st_size;
    object->device = -1;
    for (int i = 0; i < fake.devices; i++) {
        object->device = fake.order[i] == device ? i : object->device;
    }
    *ret_memory = handle_of(object);
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemGetAllocationPropertiesFromHandle(struct gms_cu_properties *ret_properties, gms_cu_memory memory)
{
    BEGIN(cuMemGetAllocationPropertiesFromHandle, false);
    const struct object *object = object_of(memory);
    if (!object) {
        return end(GMS_CU_INVALID_VALUE);
    }
    *ret_properties = (struct gms_cu_properties){.type = GMS_CU_ALLOCATION_PINNED,
                                                 .handle_types = GMS_CU_HANDLE_POSIX_FD,
                                                 .location = {GMS_CU_LOCATION_DEVICE, object->device}};
    return end(GMS_CU_SUCCESS);
}

/* ----------------------------------------------------------------------------------------------- mappings ------ */

gms_cu_result cuMemAddressReserve(gms_cu_pointer *ret_address, size_t bytes, size_t alignment, gms_cu_pointer wish,
                                  unsigned long long flags)
{
    BEGIN(cuMemAddressReserve, false);
    if (bytes == 0 || bytes % GRANULE != 0 || alignment > GRANULE || wish != 0 || flags != 0) {
        return end(GMS_CU_INVALID_VALUE);
    }
    for (int i = 0; i < RANGES; i++) {
        if (fake.ranges[i].bytes == 0) {
            char *whole = mmap(NULL, bytes + GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (whole == MAP_FAILED) {
                return end(GMS_CU_OUT_OF_MEMORY);
            }
            const uintptr_t start = ((uintptr_t)whole + GRANULE - 1) / GRANULE * GRANULE;
            if (start != (uintptr_t)whole) {
                munmap(whole, start - (uintptr_t)whole);
            }
            munmap((char *)start + bytes, (uintptr_t)whole + GRANULE - start);
            fake.ranges[i] = (struct range){start, bytes};
            *ret_address = start;
            return end(GMS_CU_SUCCESS);
        }
    }
    return end(GMS_CU_OUT_OF_MEMORY);
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
            return end(GMS_CU_INVALID_VALUE);
        }
    }
    for (int i = 0; i < RANGES; i++) {
        if (fake.ranges[i].address == address && fake.ranges[i].bytes == bytes && bytes > 0) {
            munmap((void *)(uintptr_t)address, bytes);
            fake.ranges[i].bytes = 0;
            return end(GMS_CU_SUCCESS);
        }
    }
    return end(GMS_CU_INVALID_VALUE);
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
        return end(GMS_CU_INVALID_VALUE);
    }
    for (int i = 0; i < MAPPINGS; i++) {
        if (overlaps(&fake.mappings[i], address, bytes)) {
            return end(GMS_CU_INVALID_VALUE);
        }
        place = !place && fake.mappings[i].bytes == 0 ? &fake.mappings[i] : place;
    }
    if (!place ||
        mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, object->fd, 0) == MAP_FAILED) {
        return end(GMS_CU_OUT_OF_MEMORY);
    }
    object->references++;
    *place = (struct mapping){.address = (uintptr_t)address, .bytes = bytes, .object = object};
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemUnmap(gms_cu_pointer address, size_t bytes)
{
    BEGIN(cuMemUnmap, false);
    if (address < fake.storing_to && fake.storing_from < address + bytes) {
        fake.sticky = GMS_CU_LAUNCH_FAILED; /* as a GPU whose copy engine meets what is mapped no more */
        return end(fake.sticky);
    }
    for (int i = 0; i < MAPPINGS; i++) {
        struct mapping *mapping = &fake.mappings[i];
        if (mapping->bytes > 0 && mapping->address == address && mapping->bytes == bytes) {
            if (mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
                return end(GMS_CU_OPERATING_SYSTEM);
            }
            drop(mapping->object);
            *mapping = (struct mapping){0};
            return end(GMS_CU_SUCCESS);
        }
    }
    return end(GMS_CU_INVALID_VALUE);
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
        return end(GMS_CU_INVALID_VALUE);
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
            return end(GMS_CU_INVALID_VALUE);
        }
        mapping->flags = access->flags;
    }
    return end(GMS_CU_SUCCESS);
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
        return end(GMS_CU_INVALID_VALUE);
    }
    *ret_flags = (unsigned long long)flags;
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemcpyDtoH_v2(void *to, gms_cu_pointer from, size_t bytes)
{
    BEGIN(cuMemcpyDtoH_v2, true);
    const int flags = access_of(from, bytes);
    if (flags < 0 || !(flags & GMS_CU_ACCESS_READ)) {
        return end(GMS_CU_INVALID_VALUE);
    }
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return end(GMS_CU_SUCCESS);
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
        return end(GMS_CU_INVALID_VALUE);
    }
    memcpy((void *)(uintptr_t)to, from, bytes);
    storing(to, bytes);
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuMemsetD8_v2(gms_cu_pointer address, unsigned char byte, size_t bytes)
{
    BEGIN(cuMemsetD8_v2, true);
    if (access_of(address, bytes) != GMS_CU_ACCESS_READ_WRITE) {
        return end(GMS_CU_INVALID_VALUE);
    }
    memset((void *)(uintptr_t)address, byte, bytes);
    storing(address, bytes);
    return end(GMS_CU_SUCCESS);
}

/* ------------------------------------------------------------------------------------------------- events ------ */

static struct event *event_of(gms_cu_event handle)
{
    const uintptr_t index = (uintptr_t)handle - 1;

    return index < EVENTS && fake.events[index].used ? &fake.events[index] : NULL;
}

/* A stream is a name: what is submitted is done at once, unless it is held. */
gms_cu_result cuStreamCreate(gms_cu_stream *ret_stream, unsigned flags)
{
    BEGIN(cuStreamCreate, true);
    (void)flags;
    *ret_stream = (gms_cu_stream)(uintptr_t)(0x1000 + ++fake.streams);
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuStreamDestroy_v2(gms_cu_stream stream)
{
    BEGIN(cuStreamDestroy_v2, true);
    return end(stream ? GMS_CU_SUCCESS : GMS_CU_INVALID_HANDLE);
}

gms_cu_result cuMemHostAlloc(void **ret_address, size_t bytes, unsigned flags)
{
    BEGIN(cuMemHostAlloc, true);
    (void)flags;
    *ret_address = calloc(1, bytes);
    return end(*ret_address ? GMS_CU_SUCCESS : GMS_CU_OUT_OF_MEMORY);
}

gms_cu_result cuMemFreeHost(void *address)
{
    BEGIN(cuMemFreeHost, true);
    free(address);
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuEventCreate(gms_cu_event *ret_event, unsigned flags)
{
    BEGIN(cuEventCreate, true);
    (void)flags;
    for (uintptr_t i = 0; i < EVENTS; i++) {
        if (!fake.events[i].used) {
            fake.events[i] = (struct event){.used = true};
            *ret_event = (gms_cu_event)(i + 1);
            return end(GMS_CU_SUCCESS);
        }
    }
    return end(GMS_CU_OUT_OF_MEMORY);
}

gms_cu_result cuEventRecord(gms_cu_event handle, gms_cu_stream stream)
{
    BEGIN(cuEventRecord, true);
    struct event *event = event_of(handle);
    if (!event) {
        return end(GMS_CU_INVALID_HANDLE);
    }
    event->stream = stream;
    event->recorded = true;
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuEventQuery(gms_cu_event handle)
{
    BEGIN(cuEventQuery, false);
    const struct event *event = event_of(handle);
    if (!event) {
        return end(GMS_CU_INVALID_HANDLE);
    }
    for (int i = 0; event->recorded && i < STREAMS; i++) {
        if (fake.held[i] && fake.held[i] == event->stream) {
            return end(GMS_CU_NOT_READY);
        }
    }
    return end(GMS_CU_SUCCESS);
}

gms_cu_result cuEventDestroy_v2(gms_cu_event handle)
{
    BEGIN(cuEventDestroy_v2, false);
    struct event *event = event_of(handle);
    if (!event) {
        return end(GMS_CU_INVALID_HANDLE);
    }
    event->used = false;
    return end(GMS_CU_SUCCESS);
}
