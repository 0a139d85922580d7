/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled only where cuda.h exists, linked by nobody: cuda_api.h says the same as NVIDIA's header.
 */
#include <cuda.h>

#include "vmm/cuda_api.h"

#define SAME_VALUE(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)

SAME_VALUE(GMS_CU_SUCCESS, CUDA_SUCCESS);
SAME_VALUE(GMS_CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME_VALUE(GMS_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(GMS_CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(GMS_CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME_VALUE(GMS_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME_VALUE(GMS_CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME_VALUE(GMS_CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME_VALUE(GMS_CU_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME_VALUE(GMS_CU_NVLINK_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE);
SAME_VALUE(GMS_CU_OPERATING_SYSTEM, CUDA_ERROR_OPERATING_SYSTEM);
SAME_VALUE(GMS_CU_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME_VALUE(GMS_CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME_VALUE(GMS_CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_VALUE(701, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
SAME_VALUE(GMS_CU_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_TIMEOUT);
SAME_VALUE(GMS_CU_ASSERT, CUDA_ERROR_ASSERT);
SAME_VALUE(GMS_CU_HARDWARE_STACK_ERROR, CUDA_ERROR_HARDWARE_STACK_ERROR);
SAME_VALUE(715, CUDA_ERROR_ILLEGAL_INSTRUCTION);
SAME_VALUE(716, CUDA_ERROR_MISALIGNED_ADDRESS);
SAME_VALUE(717, CUDA_ERROR_INVALID_ADDRESS_SPACE);
SAME_VALUE(718, CUDA_ERROR_INVALID_PC);
SAME_VALUE(GMS_CU_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
SAME_VALUE(GMS_CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME_VALUE(GMS_CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME_VALUE(GMS_CU_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_NOT_READY);
SAME_VALUE(GMS_CU_MPS_CONNECTION_FAILED, CUDA_ERROR_MPS_CONNECTION_FAILED);
SAME_VALUE(GMS_CU_MPS_CLIENT_TERMINATED, CUDA_ERROR_MPS_CLIENT_TERMINATED);
SAME_VALUE(GMS_CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_VALUE(GMS_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME_VALUE(GMS_CU_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_VALUE(GMS_CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME_VALUE(GMS_CU_ACCESS_NONE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
SAME_VALUE(GMS_CU_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME_VALUE(GMS_CU_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_VALUE(GMS_CU_ATTRIBUTE_COMPUTE_MODE, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME_VALUE(GMS_CU_ATTRIBUTE_VMM_SUPPORTED, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME_VALUE(GMS_CU_ATTRIBUTE_POSIX_FD_SUPPORTED, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME_VALUE(GMS_CU_ATTRIBUTE_RDMA_WITH_VMM, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME_VALUE(GMS_CU_COMPUTE_MODE_DEFAULT, CU_COMPUTEMODE_DEFAULT);
SAME_VALUE(GMS_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME_VALUE(GMS_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME_VALUE(GMS_CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME_VALUE(GMS_CU_HOST_MAPPED, CU_MEMHOSTALLOC_DEVICEMAP);

#define SAME_PLACE(ours, ours_member, theirs, theirs_member)                                                           \
    _Static_assert(offsetof(ours, ours_member) == offsetof(theirs, theirs_member) &&                                   \
                       sizeof(((ours *)0)->ours_member) == sizeof(((theirs *)0)->theirs_member),                       \
                   #theirs "." #theirs_member)

_Static_assert(sizeof(gms_cu_result) == sizeof(CUresult), "CUresult");
_Static_assert(sizeof(gms_cu_device) == sizeof(CUdevice), "CUdevice");
_Static_assert(sizeof(gms_cu_pointer) == sizeof(CUdeviceptr), "CUdeviceptr");
_Static_assert(sizeof(gms_cu_memory) == sizeof(CUmemGenericAllocationHandle), "CUmemGenericAllocationHandle");
_Static_assert(sizeof(struct gms_cu_uuid) == sizeof(CUuuid), "CUuuid");
_Static_assert(sizeof(struct gms_cu_location) == sizeof(CUmemLocation), "CUmemLocation");
SAME_PLACE(struct gms_cu_location, type, CUmemLocation, type);
SAME_PLACE(struct gms_cu_location, id, CUmemLocation, id);
_Static_assert(sizeof(struct gms_cu_properties) == sizeof(CUmemAllocationProp), "CUmemAllocationProp");
SAME_PLACE(struct gms_cu_properties, type, CUmemAllocationProp, type);
SAME_PLACE(struct gms_cu_properties, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(struct gms_cu_properties, location, CUmemAllocationProp, location);
SAME_PLACE(struct gms_cu_properties, windows, CUmemAllocationProp, win32HandleMetaData);
SAME_PLACE(struct gms_cu_properties, compression, CUmemAllocationProp, allocFlags.compressionType);
SAME_PLACE(struct gms_cu_properties, rdma_capable, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_PLACE(struct gms_cu_properties, usage, CUmemAllocationProp, allocFlags.usage);
_Static_assert(sizeof(struct gms_cu_access) == sizeof(CUmemAccessDesc), "CUmemAccessDesc");
SAME_PLACE(struct gms_cu_access, location, CUmemAccessDesc, location);
SAME_PLACE(struct gms_cu_access, flags, CUmemAccessDesc, flags);

/* The name that is looked up is the newest: the header maps it to no other. */
#define TEXT(symbol)    #symbol
#define TEXT_OF(symbol) TEXT(symbol)
#define NEWEST(member, symbol, parameters)                                                                             \
    _Static_assert(__builtin_strcmp(#symbol, TEXT_OF(symbol)) == 0 && sizeof(&symbol) > 0, #symbol " has a "           \
                                                                                                   "successor");
GMS_CU_LIST(NEWEST)

/* What the header says that each takes; ours differ from it in names of types alone. */
#define CHECK(symbol, theirs) _Static_assert(_Generic(&symbol, theirs : 1, default : 0), #symbol)
CHECK(cuInit, CUresult (*)(unsigned));
CHECK(cuGetErrorName, CUresult (*)(CUresult, const char **));
CHECK(cuGetErrorString, CUresult (*)(CUresult, const char **));
CHECK(cuDeviceGetCount, CUresult (*)(int *));
CHECK(cuDeviceGet, CUresult (*)(CUdevice *, int));
CHECK(cuDeviceGetUuid, CUresult (*)(CUuuid *, CUdevice));
CHECK(cuDeviceGetName, CUresult (*)(char *, int, CUdevice));
CHECK(cuDeviceTotalMem, CUresult (*)(size_t *, CUdevice));
CHECK(cuDeviceGetAttribute, CUresult (*)(int *, CUdevice_attribute, CUdevice));
CHECK(cuDevicePrimaryCtxRetain, CUresult (*)(CUcontext *, CUdevice));
CHECK(cuCtxPushCurrent, CUresult (*)(CUcontext));
CHECK(cuCtxPopCurrent, CUresult (*)(CUcontext *));
CHECK(cuCtxSynchronize, CUresult (*)(void));
CHECK(cuMemGetInfo, CUresult (*)(size_t *, size_t *));
CHECK(cuMemGetAllocationGranularity,
      CUresult (*)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags));
CHECK(cuMemCreate,
      CUresult (*)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long));
CHECK(cuMemRelease, CUresult (*)(CUmemGenericAllocationHandle));
CHECK(cuMemExportToShareableHandle,
      CUresult (*)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long));
CHECK(cuMemImportFromShareableHandle, CUresult (*)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType));
CHECK(cuMemGetAllocationPropertiesFromHandle, CUresult (*)(CUmemAllocationProp *, CUmemGenericAllocationHandle));
CHECK(cuMemAddressReserve, CUresult (*)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long));
CHECK(cuMemAddressFree, CUresult (*)(CUdeviceptr, size_t));
CHECK(cuMemMap, CUresult (*)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long));
CHECK(cuMemUnmap, CUresult (*)(CUdeviceptr, size_t));
CHECK(cuMemSetAccess, CUresult (*)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t));
CHECK(cuMemGetAccess, CUresult (*)(unsigned long long *, const CUmemLocation *, CUdeviceptr));
CHECK(cuMemcpyDtoH, CUresult (*)(void *, CUdeviceptr, size_t));
CHECK(cuMemcpyHtoD, CUresult (*)(CUdeviceptr, const void *, size_t));
CHECK(cuMemsetD8, CUresult (*)(CUdeviceptr, unsigned char, size_t));
CHECK(cuEventCreate, CUresult (*)(CUevent *, unsigned));
CHECK(cuEventRecord, CUresult (*)(CUevent, CUstream));
CHECK(cuEventQuery, CUresult (*)(CUevent));
CHECK(cuEventDestroy, CUresult (*)(CUevent));
CHECK(cuStreamCreate, CUresult (*)(CUstream *, unsigned));
CHECK(cuStreamDestroy, CUresult (*)(CUstream));
CHECK(cuMemHostAlloc, CUresult (*)(void **, size_t, unsigned));
CHECK(cuMemFreeHost, CUresult (*)(void *));
