/* SPDX-License-Identifier: Apache-2.0
 *
 * What the GPU tests share: the driver's calls that the product does not use (modules, streams, graphs), kernels,
 * clocks, and ends with a reason. Every program here exits 77 where there is no GPU.
 */
#ifndef GMS_TESTS_GPU_H
#define GMS_TESTS_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "vmm/cuda.h"
#include "vmm/cuda_api.h"

typedef struct CUmod_st *gpu_module;
typedef struct CUfunc_st *gpu_function;
typedef struct CUgraph_st *gpu_graph;
typedef struct CUgraphExec_st *gpu_executable;

#define GPU_LIST(X)                                                                                                    \
    X(module_load, cuModuleLoadData, (gpu_module * ret_module, const void *image))                                     \
    X(module_function, cuModuleGetFunction, (gpu_function * ret_function, gpu_module module, const char *name))        \
    X(launch, cuLaunchKernel,                                                                                          \
      (gpu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,   \
       unsigned block_z, unsigned shared_bytes, gms_cu_stream stream, void **arguments, void **extra))                 \
    X(stream_create, cuStreamCreate, (gms_cu_stream * ret_stream, unsigned flags))                                     \
    X(stream_sync, cuStreamSynchronize, (gms_cu_stream stream))                                                        \
    X(stream_query, cuStreamQuery, (gms_cu_stream stream))                                                             \
    X(capture_begin, cuStreamBeginCapture_v2, (gms_cu_stream stream, int mode))                                        \
    X(capture_end, cuStreamEndCapture, (gms_cu_stream stream, gpu_graph * ret_graph))                                  \
    X(instantiate, cuGraphInstantiateWithFlags,                                                                        \
      (gpu_executable * ret_executable, gpu_graph graph, unsigned long long flags))                                    \
    X(graph_launch, cuGraphLaunch, (gpu_executable executable, gms_cu_stream stream))                                  \
    X(allocate, cuMemAlloc_v2, (gms_cu_pointer * ret_address, size_t bytes))                                           \
    X(copy_async, cuMemcpyAsync, (gms_cu_pointer to, gms_cu_pointer from, size_t bytes, gms_cu_stream stream))         \
    X(read_async, cuMemcpyDtoHAsync_v2, (void *to, gms_cu_pointer from, size_t bytes, gms_cu_stream stream))           \
    X(host_allocate, cuMemHostAlloc, (void **ret_address, size_t bytes, unsigned flags))                               \
    X(context_current, cuCtxSetCurrent, (gms_cu_context context))

struct gpu {
    const struct gms_cu_api *memory;
    struct gms_vmm_cuda_device device;
    gms_cu_context context;
    gpu_module module;
    gpu_function write_for, fill, step, fault;
#define GPU_MEMBER(member, symbol, parameters) gms_cu_result(*member) parameters;
    GPU_LIST(GPU_MEMBER)
#undef GPU_MEMBER
};

/* The first GPU, its context current in this thread, the kernels loaded. Exits 77 where there is none (also with the
 * fake driver, which runs no kernels). */
void gpu_open(struct gpu *gpu);
/* The same without context and kernels: what a coordinator has. */
void gpu_open_bare(struct gpu *gpu);

/* Exits 1 with the call's text unless it succeeded. */
void gpu_must(const struct gpu *gpu, gms_cu_result result, const char *call, const char *file, int line);
void gpu_must_gms(gms_status status, const struct gms_error *error, const char *call, const char *file, int line);
void gpu_require(bool condition, const char *what, const char *file, int line);
#define CU(call)      gpu_must(&gpu, (call), #call, __FILE__, __LINE__)
#define GMS(call)     gpu_must_gms((call), &error, #call, __FILE__, __LINE__)
#define REQUIRE(what) gpu_require((what), #what, __FILE__, __LINE__)

void gpu_launch(const struct gpu *gpu, gpu_function function, unsigned blocks, unsigned threads, gms_cu_stream stream,
                void **arguments);

static inline double gpu_ms(uint64_t since_ns)
{
    return (double)(gms_clock_ns() - since_ns) / 1e6;
}

/* Sends and takes a descriptor with one byte over a Unix socket. */
void gpu_send_fd(int socket, int fd);
int gpu_take_fd(int socket);

#endif
