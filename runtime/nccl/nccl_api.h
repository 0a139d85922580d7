/* SPDX-License-Identifier: Apache-2.0
 *
 * What is used of NCCL: our own declarations, one list of symbols, opened at run time. Nothing here is linked against,
 * and a build needs no nccl.h; where there is one, nccl_api_check.c compiles these declarations against it.
 */
#ifndef GMS_NCCL_NCCL_API_H
#define GMS_NCCL_NCCL_API_H

#include <stddef.h>
#include <stdint.h>

#include "gms/status.h"

typedef int gms_nccl_result;
typedef struct ncclComm *gms_nccl_handle;

enum { GMS_NCCL_ID_BYTES = 128, GMS_NCCL_CONFIG_MAGIC = (int)0xcafebeef, GMS_NCCL_CONFIG_VERSION = 21400 };

struct gms_nccl_id {
    char bytes[GMS_NCCL_ID_BYTES];
};

/* As NCCL 2.14 has it: a newer one takes the defaults for what it has learnt since. */
struct gms_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

enum {
    GMS_NCCL_SUCCESS = 0,
    GMS_NCCL_CUDA_ERROR = 1,
    GMS_NCCL_SYSTEM_ERROR = 2,
    GMS_NCCL_INTERNAL_ERROR = 3,
    GMS_NCCL_INVALID_ARGUMENT = 4,
    GMS_NCCL_INVALID_USAGE = 5,
    GMS_NCCL_REMOTE_ERROR = 6,
    GMS_NCCL_IN_PROGRESS = 7,

    GMS_NCCL_SUSPEND_MEMORY = 1,
};

/* X(member, symbol, parameters): what NCCL 2.14 has. */
#define GMS_NCCL_LIST(X)                                                                                               \
    X(version, ncclGetVersion, (int *ret_version))                                                                     \
    X(unique_id, ncclGetUniqueId, (struct gms_nccl_id * ret_id))                                                       \
    X(init, ncclCommInitRankConfig,                                                                                    \
      (gms_nccl_handle * ret_handle, int ranks, struct gms_nccl_id id, int rank, struct gms_nccl_config *config))      \
    X(abort, ncclCommAbort, (gms_nccl_handle handle))                                                                  \
    X(async_error, ncclCommGetAsyncError, (gms_nccl_handle handle, gms_nccl_result * ret_result))                      \
    X(all_reduce, ncclAllReduce,                                                                                       \
      (const void *send, void *receive, size_t count, int type, int reduction, gms_nccl_handle handle, void *stream))  \
    X(all_gather, ncclAllGather,                                                                                       \
      (const void *send, void *receive, size_t count, int type, gms_nccl_handle handle, void *stream))                 \
    X(broadcast, ncclBroadcast,                                                                                        \
      (const void *send, void *receive, size_t count, int type, int root, gms_nccl_handle handle, void *stream))

/* The same: what a newer one has. NULL where the library does not. */
#define GMS_NCCL_OPTIONAL_LIST(X)                                                                                      \
    X(suspend, ncclCommSuspend, (gms_nccl_handle handle, int flags))                                                   \
    X(resume, ncclCommResume, (gms_nccl_handle handle))

struct gms_nccl_api {
#define GMS_NCCL_MEMBER(member, symbol, parameters) gms_nccl_result(*member) parameters;
    GMS_NCCL_LIST(GMS_NCCL_MEMBER)
    GMS_NCCL_OPTIONAL_LIST(GMS_NCCL_MEMBER)
#undef GMS_NCCL_MEMBER
    const char *(*result_text)(gms_nccl_result result); /* ncclGetErrorString */
    const char *(*last_error)(gms_nccl_handle handle);  /* ncclGetLastError; NULL where missing */
    int number;                                         /* its version, 22803 for 2.28.3 */
    char file[256];                                     /* where it was found */
};

/*
 * Opens NCCL and finds its symbols; once for the process, any thread: a second library is REFUSED. `library` is a path
 * or a name; NULL: environment GMS_NCCL_LIBRARY, else the libnccl.so.2 that is loaded already, else the loader's.
 * Errors: UNSUPPORTED (no such library; a symbol is missing: named, with its version).
 */
gms_status gms_nccl_library_open(const char *library, const struct gms_nccl_api **ret_api, struct gms_error *ret_error);

/*
 * What NCCL's answer means here: INVALID (argument, usage), STICKY never (the driver says that), SYSTEM. The text is
 * `what` (printf), NCCL's words for the number, and its last error's text, which `handle` (NULL allowed) may know.
 */
__attribute__((format(printf, 5, 6))) gms_status gms_nccl_fail(const struct gms_nccl_api *api, gms_nccl_handle handle,
                                                               gms_nccl_result result, struct gms_error *ret_error,
                                                               const char *what, ...);

#endif
