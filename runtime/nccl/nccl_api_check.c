/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled only where nccl.h exists, linked by nobody: nccl_api.h and gms/nccl.h say the same as NVIDIA's header.
 */
#include <nccl.h>

#include "gms/nccl.h"
#include "nccl/nccl_api.h"

#define SAME_VALUE(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)

SAME_VALUE(GMS_NCCL_ID_BYTES, NCCL_UNIQUE_ID_BYTES);
SAME_VALUE(GMS_NCCL_CONFIG_VERSION, NCCL_VERSION(2, 14, 0));
SAME_VALUE(GMS_NCCL_SUCCESS, ncclSuccess);
SAME_VALUE(GMS_NCCL_CUDA_ERROR, ncclUnhandledCudaError);
SAME_VALUE(GMS_NCCL_SYSTEM_ERROR, ncclSystemError);
SAME_VALUE(GMS_NCCL_INTERNAL_ERROR, ncclInternalError);
SAME_VALUE(GMS_NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME_VALUE(GMS_NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME_VALUE(GMS_NCCL_REMOTE_ERROR, ncclRemoteError);
SAME_VALUE(GMS_NCCL_IN_PROGRESS, ncclInProgress);
SAME_VALUE(GMS_NCCL_INT8, ncclInt8);
SAME_VALUE(GMS_NCCL_UINT8, ncclUint8);
SAME_VALUE(GMS_NCCL_INT32, ncclInt32);
SAME_VALUE(GMS_NCCL_UINT32, ncclUint32);
SAME_VALUE(GMS_NCCL_INT64, ncclInt64);
SAME_VALUE(GMS_NCCL_UINT64, ncclUint64);
SAME_VALUE(GMS_NCCL_FLOAT16, ncclFloat16);
SAME_VALUE(GMS_NCCL_FLOAT32, ncclFloat32);
SAME_VALUE(GMS_NCCL_FLOAT64, ncclFloat64);
SAME_VALUE(GMS_NCCL_BFLOAT16, ncclBfloat16);
SAME_VALUE(GMS_NCCL_SUM, ncclSum);
SAME_VALUE(GMS_NCCL_PRODUCT, ncclProd);
SAME_VALUE(GMS_NCCL_MAX, ncclMax);
SAME_VALUE(GMS_NCCL_MIN, ncclMin);
SAME_VALUE(GMS_NCCL_AVERAGE, ncclAvg);
#if NCCL_VERSION_CODE >= 22400
SAME_VALUE(GMS_NCCL_FLOAT8_E4M3, ncclFloat8e4m3);
SAME_VALUE(GMS_NCCL_FLOAT8_E5M2, ncclFloat8e5m2);
#endif

#define SAME_PLACE(member)                                                                                             \
    _Static_assert(offsetof(struct gms_nccl_config, member) == offsetof(ncclConfig_t, member) &&                       \
                       sizeof(((struct gms_nccl_config *)0)->member) == sizeof(((ncclConfig_t *)0)->member),           \
                   "ncclConfig_t." #member)

_Static_assert(sizeof(gms_nccl_result) == sizeof(ncclResult_t), "ncclResult_t");
_Static_assert(sizeof(struct gms_nccl_id) == sizeof(ncclUniqueId), "ncclUniqueId");
SAME_PLACE(size);
SAME_PLACE(magic);
SAME_PLACE(version);
SAME_PLACE(blocking);
/* Its magic is no constant of the header: a library refuses another one (INVALID), as does the one of tests. */

/* What the header says that each takes; ours differ from it in names of types alone. */
#define CHECK(symbol, theirs) _Static_assert(_Generic(&symbol, theirs : 1, default : 0), #symbol)
CHECK(ncclGetVersion, ncclResult_t (*)(int *));
CHECK(ncclGetUniqueId, ncclResult_t (*)(ncclUniqueId *));
CHECK(ncclCommInitRankConfig, ncclResult_t (*)(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *));
CHECK(ncclCommAbort, ncclResult_t (*)(ncclComm_t));
CHECK(ncclCommGetAsyncError, ncclResult_t (*)(ncclComm_t, ncclResult_t *));
CHECK(ncclAllReduce,
      ncclResult_t (*)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t));
CHECK(ncclAllGather, ncclResult_t (*)(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t));
CHECK(ncclBroadcast, ncclResult_t (*)(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
CHECK(ncclGetErrorString, const char *(*)(ncclResult_t));
CHECK(ncclGetLastError, const char *(*)(ncclComm_t));
#if NCCL_VERSION_CODE >= 22907
SAME_VALUE(GMS_NCCL_SUSPEND_MEMORY, NCCL_SUSPEND_MEM);
CHECK(ncclCommSuspend, ncclResult_t (*)(ncclComm_t, int));
CHECK(ncclCommResume, ncclResult_t (*)(ncclComm_t));
#endif
