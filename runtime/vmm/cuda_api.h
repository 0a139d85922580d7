/* SPDX-License-Identifier: Apache-2.0
 *
 * What is used of the CUDA driver: our own declarations, one list of symbols, opened at run time. Nothing here is
 * linked against, and a build needs no CUDA headers; where there are some, cuda_api_check.c compiles these declarations
 * against them.
 */
#ifndef GMS_VMM_CUDA_API_H
#define GMS_VMM_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

#include "gms/status.h"

typedef int gms_cu_result;
typedef int gms_cu_device;
typedef struct CUctx_st *gms_cu_context;
typedef struct CUstream_st *gms_cu_stream;
typedef struct CUevent_st *gms_cu_event;
typedef unsigned long long gms_cu_pointer; /* CUdeviceptr */
typedef unsigned long long gms_cu_memory;  /* CUmemGenericAllocationHandle */

struct gms_cu_uuid {
    char bytes[16];
};
struct gms_cu_location {
    int type, id;
};
struct gms_cu_properties {
    int type, handle_types;
    struct gms_cu_location location;
    void *windows;
    unsigned char compression, rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
};
struct gms_cu_access {
    struct gms_cu_location location;
    int flags;
};

enum {
    GMS_CU_SUCCESS = 0,
    GMS_CU_INVALID_VALUE = 1,
    GMS_CU_OUT_OF_MEMORY = 2,
    GMS_CU_NOT_INITIALIZED = 3,
    GMS_CU_DEINITIALIZED = 4,
    GMS_CU_NO_DEVICE = 100,
    GMS_CU_INVALID_DEVICE = 101,
    GMS_CU_INVALID_CONTEXT = 201,
    GMS_CU_ECC_UNCORRECTABLE = 214,
    GMS_CU_NVLINK_UNCORRECTABLE = 220,
    GMS_CU_OPERATING_SYSTEM = 304,
    GMS_CU_INVALID_HANDLE = 400,
    GMS_CU_NOT_READY = 600,
    GMS_CU_ILLEGAL_ADDRESS = 700,
    GMS_CU_LAUNCH_TIMEOUT = 702,
    GMS_CU_ASSERT = 710,
    GMS_CU_HARDWARE_STACK_ERROR = 714,
    GMS_CU_LAUNCH_FAILED = 719,
    GMS_CU_NOT_PERMITTED = 800,
    GMS_CU_NOT_SUPPORTED = 801,
    GMS_CU_SYSTEM_NOT_READY = 802,
    GMS_CU_MPS_CONNECTION_FAILED = 805,
    GMS_CU_MPS_CLIENT_TERMINATED = 810,

    GMS_CU_ALLOCATION_PINNED = 1,
    GMS_CU_LOCATION_DEVICE = 1,
    GMS_CU_HANDLE_POSIX_FD = 1,
    GMS_CU_GRANULARITY_MINIMUM = 0,
    GMS_CU_ACCESS_NONE = 0,
    GMS_CU_ACCESS_READ = 1,
    GMS_CU_ACCESS_READ_WRITE = 3,
    GMS_CU_ATTRIBUTE_COMPUTE_MODE = 20,
    GMS_CU_ATTRIBUTE_VMM_SUPPORTED = 102,
    GMS_CU_ATTRIBUTE_POSIX_FD_SUPPORTED = 103,
    GMS_CU_ATTRIBUTE_RDMA_WITH_VMM = 110,
    GMS_CU_COMPUTE_MODE_DEFAULT = 0,
    GMS_CU_EVENT_DISABLE_TIMING = 2,
    GMS_CU_STREAM_NON_BLOCKING = 1,
    GMS_CU_HOST_PORTABLE = 1,
    GMS_CU_HOST_MAPPED = 2,
};

/* X(member, symbol, parameters). Where a call has versions, the symbol is the one cuda.h maps the plain name to. */
#define GMS_CU_LIST(X)                                                                                                 \
    X(init, cuInit, (unsigned flags))                                                                                  \
    X(error_name, cuGetErrorName, (gms_cu_result result, const char **ret_text))                                       \
    X(error_text, cuGetErrorString, (gms_cu_result result, const char **ret_text))                                     \
    X(device_count, cuDeviceGetCount, (int *ret_count))                                                                \
    X(device_get, cuDeviceGet, (gms_cu_device * ret_device, int ordinal))                                              \
    X(device_uuid, cuDeviceGetUuid_v2, (struct gms_cu_uuid * ret_uuid, gms_cu_device device))                          \
    X(device_name, cuDeviceGetName, (char *ret_name, int bytes, gms_cu_device device))                                 \
    X(device_bytes, cuDeviceTotalMem_v2, (size_t * ret_bytes, gms_cu_device device))                                   \
    X(device_attribute, cuDeviceGetAttribute, (int *ret_value, int attribute, gms_cu_device device))                   \
    X(context_retain, cuDevicePrimaryCtxRetain, (gms_cu_context * ret_context, gms_cu_device device))                  \
    X(context_push, cuCtxPushCurrent_v2, (gms_cu_context context))                                                     \
    X(context_pop, cuCtxPopCurrent_v2, (gms_cu_context * ret_context))                                                 \
    X(context_sync, cuCtxSynchronize, (void))                                                                          \
    X(memory_info, cuMemGetInfo_v2, (size_t * ret_free, size_t * ret_total))                                           \
    X(granularity, cuMemGetAllocationGranularity,                                                                      \
      (size_t * ret_bytes, const struct gms_cu_properties *properties, int option))                                    \
    X(create, cuMemCreate,                                                                                             \
      (gms_cu_memory * ret_memory, size_t bytes, const struct gms_cu_properties *properties,                           \
       unsigned long long flags))                                                                                      \
    X(release, cuMemRelease, (gms_cu_memory memory))                                                                   \
    X(export_to, cuMemExportToShareableHandle,                                                                         \
      (void *ret_handle, gms_cu_memory memory, int type, unsigned long long flags))                                    \
    X(import_from, cuMemImportFromShareableHandle, (gms_cu_memory * ret_memory, void *handle, int type))               \
    X(properties_of, cuMemGetAllocationPropertiesFromHandle,                                                           \
      (struct gms_cu_properties * ret_properties, gms_cu_memory memory))                                               \
    X(reserve, cuMemAddressReserve,                                                                                    \
      (gms_cu_pointer * ret_address, size_t bytes, size_t alignment, gms_cu_pointer wish, unsigned long long flags))   \
    X(unreserve, cuMemAddressFree, (gms_cu_pointer address, size_t bytes))                                             \
    X(map, cuMemMap,                                                                                                   \
      (gms_cu_pointer address, size_t bytes, size_t offset, gms_cu_memory memory, unsigned long long flags))           \
    X(unmap, cuMemUnmap, (gms_cu_pointer address, size_t bytes))                                                       \
    X(set_access, cuMemSetAccess,                                                                                      \
      (gms_cu_pointer address, size_t bytes, const struct gms_cu_access *access, size_t count))                        \
    X(get_access, cuMemGetAccess,                                                                                      \
      (unsigned long long *ret_flags, const struct gms_cu_location *location, gms_cu_pointer address))                 \
    X(read, cuMemcpyDtoH_v2, (void *to, gms_cu_pointer from, size_t bytes))                                            \
    X(write, cuMemcpyHtoD_v2, (gms_cu_pointer to, const void *from, size_t bytes))                                     \
    X(fill, cuMemsetD8_v2, (gms_cu_pointer address, unsigned char byte, size_t bytes))                                 \
    X(event_create, cuEventCreate, (gms_cu_event * ret_event, unsigned flags))                                         \
    X(event_record, cuEventRecord, (gms_cu_event event, gms_cu_stream stream))                                         \
    X(event_query, cuEventQuery, (gms_cu_event event))                                                                 \
    X(event_destroy, cuEventDestroy_v2, (gms_cu_event event))                                                          \
    X(stream_create, cuStreamCreate, (gms_cu_stream * ret_stream, unsigned flags))                                     \
    X(stream_destroy, cuStreamDestroy_v2, (gms_cu_stream stream))                                                      \
    X(host_alloc, cuMemHostAlloc, (void **ret_address, size_t bytes, unsigned flags))                                  \
    X(host_free, cuMemFreeHost, (void *address))

struct gms_cu_api {
#define GMS_CU_MEMBER(member, symbol, parameters) gms_cu_result(*member) parameters;
    GMS_CU_LIST(GMS_CU_MEMBER)
#undef GMS_CU_MEMBER
};

/* Opens libcuda.so.1 and finds every symbol; once for the process, any thread. No driver call is made. Errors:
 * UNSUPPORTED (no driver here, or a symbol is missing: named). */
gms_status gms_cu_open(const struct gms_cu_api **ret_api, struct gms_error *ret_error);

/* Makes one driver call and counts it. */
#define GMS_CU(api, member, ...) (gms_cu_count(), (api)->member(__VA_ARGS__))
void gms_cu_count(void);
/* Driver calls that this library has made in this process. */
uint64_t gms_cu_calls(void);

/*
 * What a driver's answer means here: NO_MEMORY; STICKY (the context is lost, every later call fails alike);
 * DESCRIPTORS (the driver's "operating system error" with none left: used and limit are named); UNSUPPORTED; INVALID;
 * SYSTEM. The text is `what` (printf), the driver's name and number of the error, and its words.
 */
__attribute__((format(printf, 4, 5))) gms_status gms_cu_fail(const struct gms_cu_api *api, gms_cu_result result,
                                                             struct gms_error *ret_error, const char *what, ...);
/* Does this answer mean that the context is lost for good (V32)? */
bool gms_cu_is_sticky(gms_cu_result result);

#endif
