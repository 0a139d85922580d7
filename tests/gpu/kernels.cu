/* SPDX-License-Identifier: Apache-2.0
 *
 * The device side of the GPU tests. kernels.ptx is this file, compiled for a virtual architecture that every GPU since
 * Turing understands; the driver makes machine code of it. Where nvcc is found the build compiles it anew.
 */
typedef unsigned long long u64;

static __device__ u64 now_ns()
{
    u64 ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* Stores the time into every word of `pages` pages of `page_words` words from `target`, until `life_ns` have passed. One
 * block for a page. */
extern "C" __global__ void write_for(volatile u64 *target, u64 page_words, u64 life_ns)
{
    const u64 end = now_ns() + life_ns;
    volatile u64 *page = target + blockIdx.x * page_words;
    for (u64 now = now_ns(); now < end; now = now_ns())
        for (u64 i = threadIdx.x; i < page_words; i += blockDim.x)
            page[i] = now;
}

extern "C" __global__ void fill(u64 *target, u64 words, u64 value)
{
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x)
        target[i] = value + i;
}

/* What a step of an engine is: reads weights and KV, writes an output that both decide bit for bit. */
extern "C" __global__ void step(const u64 *weights, const u64 *kv, u64 *output, u64 words)
{
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x)
        output[i] = weights[i] * 6364136223846793005ull + (kv[i] ^ (kv[i] >> 7)) + i;
}

extern "C" __global__ void fault(u64 *nowhere)
{
    nowhere[threadIdx.x] = 1;
}
