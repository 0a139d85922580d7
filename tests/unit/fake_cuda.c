/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_cuda_state.h"

struct fake_cuda_state fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

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

int fake_cuda_begin(const char *symbol, bool needs_context)
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

int fake_cuda_end(int result)
{
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* ------------------------------------------------------------------------------------------ driver, device ----- */

gms_cu_result cuInit(unsigned flags)
{
    pthread_mutex_lock(&fake.lock);
    fake.calls++;
    if (fake.pid == 0) {
        read_environment();
        fake.pid = getpid();
        if (strcmp(fake.fail_symbol, "cuInit") == 0) {
            fake.pid = 0;
            return fake_cuda_end(fake.fail_result);
        }
    }
    if (flags != 0) {
        return fake_cuda_end(GMS_CU_INVALID_VALUE);
    }
    return fake_cuda_end(fake.pid == getpid() ? fake.devices > 0 ? GMS_CU_SUCCESS : GMS_CU_NO_DEVICE
                                              : GMS_CU_NOT_INITIALIZED);
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
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuDeviceGet(gms_cu_device *ret_device, int ordinal)
{
    BEGIN(cuDeviceGet, false);
    if (ordinal < 0 || ordinal >= fake.devices) {
        return fake_cuda_end(GMS_CU_INVALID_DEVICE);
    }
    *ret_device = ordinal;
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuDeviceGetUuid_v2(struct gms_cu_uuid *ret_uuid, gms_cu_device device)
{
    BEGIN(cuDeviceGetUuid_v2, false);
    memset(ret_uuid->bytes, 0xfa, sizeof(ret_uuid->bytes));
    ret_uuid->bytes[0] = (char)(0x10 + fake.order[device & 15]);
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuDeviceGetName(char *ret_name, int bytes, gms_cu_device device)
{
    BEGIN(cuDeviceGetName, false);
    snprintf(ret_name, (size_t)bytes, "fake device %d", fake.order[device & 15]);
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuDeviceTotalMem_v2(size_t *ret_bytes, gms_cu_device device)
{
    BEGIN(cuDeviceTotalMem_v2, false);
    (void)device;
    *ret_bytes = fake.bytes_each;
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuDeviceGetAttribute(int *ret_value, int attribute, gms_cu_device device)
{
    BEGIN(cuDeviceGetAttribute, false);
    (void)device;
    *ret_value = attribute == GMS_CU_ATTRIBUTE_COMPUTE_MODE ? fake.compute_mode : 1;
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuDevicePrimaryCtxRetain(gms_cu_context *ret_context, gms_cu_device device)
{
    BEGIN(cuDevicePrimaryCtxRetain, false);
    fake.contexts++;
    *ret_context = (gms_cu_context)(uintptr_t)(0x1000 + (unsigned)device);
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuCtxPushCurrent_v2(gms_cu_context context)
{
    BEGIN(cuCtxPushCurrent_v2, false);
    current_depth += context != NULL;
    return fake_cuda_end(context ? GMS_CU_SUCCESS : GMS_CU_INVALID_CONTEXT);
}

gms_cu_result cuCtxPopCurrent_v2(gms_cu_context *ret_context)
{
    pthread_mutex_lock(&fake.lock);
    fake.calls++;
    *ret_context = NULL;
    if (current_depth == 0) {
        return fake_cuda_end(GMS_CU_INVALID_CONTEXT);
    }
    current_depth--;
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuCtxSynchronize(void)
{
    BEGIN(cuCtxSynchronize, true);
    fake.storing_to = 0;
    return fake_cuda_end(GMS_CU_SUCCESS);
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
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuStreamDestroy_v2(gms_cu_stream stream)
{
    BEGIN(cuStreamDestroy_v2, true);
    return fake_cuda_end(stream ? GMS_CU_SUCCESS : GMS_CU_INVALID_HANDLE);
}

gms_cu_result cuMemHostAlloc(void **ret_address, size_t bytes, unsigned flags)
{
    BEGIN(cuMemHostAlloc, true);
    (void)flags;
    *ret_address = calloc(1, bytes);
    return fake_cuda_end(*ret_address ? GMS_CU_SUCCESS : GMS_CU_OUT_OF_MEMORY);
}

gms_cu_result cuMemFreeHost(void *address)
{
    BEGIN(cuMemFreeHost, true);
    free(address);
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuEventCreate(gms_cu_event *ret_event, unsigned flags)
{
    BEGIN(cuEventCreate, true);
    (void)flags;
    for (uintptr_t i = 0; i < EVENTS; i++) {
        if (!fake.events[i].used) {
            fake.events[i] = (struct event){.used = true};
            *ret_event = (gms_cu_event)(i + 1);
            return fake_cuda_end(GMS_CU_SUCCESS);
        }
    }
    return fake_cuda_end(GMS_CU_OUT_OF_MEMORY);
}

gms_cu_result cuEventRecord(gms_cu_event handle, gms_cu_stream stream)
{
    BEGIN(cuEventRecord, true);
    struct event *event = event_of(handle);
    if (!event) {
        return fake_cuda_end(GMS_CU_INVALID_HANDLE);
    }
    event->stream = stream;
    event->recorded = true;
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuEventQuery(gms_cu_event handle)
{
    BEGIN(cuEventQuery, false);
    const struct event *event = event_of(handle);
    if (!event) {
        return fake_cuda_end(GMS_CU_INVALID_HANDLE);
    }
    for (int i = 0; event->recorded && i < STREAMS; i++) {
        if (fake.held[i] && fake.held[i] == event->stream) {
            return fake_cuda_end(GMS_CU_NOT_READY);
        }
    }
    return fake_cuda_end(GMS_CU_SUCCESS);
}

gms_cu_result cuEventDestroy_v2(gms_cu_event handle)
{
    BEGIN(cuEventDestroy_v2, false);
    struct event *event = event_of(handle);
    if (!event) {
        return fake_cuda_end(GMS_CU_INVALID_HANDLE);
    }
    event->used = false;
    return fake_cuda_end(GMS_CU_SUCCESS);
}
