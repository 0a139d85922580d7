/* SPDX-License-Identifier: Apache-2.0
 *
 * A graph captured on scratch, before parking, replays after it: same addresses, the group's memory behind them, output
 * equal bit for bit, also over KV that another process has written. Then a hundred times back and forth: nothing grows.
 * And what reads a mapping for reading cannot write it: only the writer suffers.
 */
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"

enum { BYTES = 64 << 20, WORDS = BYTES / 8, CYCLES = 100 };

static struct gpu gpu;
static struct gms_error error;
static const struct gms_vmm *vmm;

static void fill_with(const void *address, uint64_t value)
{
    uint64_t words = WORDS;
    gms_cu_pointer target = (uintptr_t)address;
    void *arguments[] = {&target, &words, &value};

    gpu_launch(&gpu, gpu.fill, 128, 256, NULL, arguments);
    CU(gpu.memory->context_sync());
}

/* Maps the memory that is its descriptor 100 and fills it; or writes what it may only read. */
static int other_process(const char *what, uint64_t value)
{
    struct gms_vmm_handle handle = {.fd = -1};
    void *address = NULL;

    gpu_open(&gpu);
    vmm = gms_vmm_cuda();
    GMS(vmm->import_fd(100, BYTES, &handle, &error));
    GMS(vmm->reserve(BYTES, &address, &error));
    const bool reads = strcmp(what, "--write-what-is-read") == 0;
    GMS(vmm->map(address, &handle, reads ? GMS_VMM_READ : GMS_VMM_READ_WRITE, &error));
    if (!reads) {
        fill_with(address, value);
        return 0;
    }
    uint64_t words = WORDS;
    gms_cu_pointer target = (uintptr_t)address;
    void *arguments[] = {&target, &words, &value};
    gpu_launch(&gpu, gpu.fill, 128, 256, NULL, arguments);
    const gms_status status = vmm->sync(&error);
    fprintf(stderr, "  the writer is told: %s\n", error.text);
    _exit(status == GMS_E_STICKY ? 0 : 1); /* no destructors on a lost context */
}

static void run_other(const char *what, const struct gms_vmm_handle *handle, uint64_t value)
{
    char word[32];
    int status = 0;
    snprintf(word, sizeof(word), "%llu", (unsigned long long)value);
    const pid_t child = fork();

    if (child == 0) {
        dup2(handle->fd, 100);
        execl("/proc/self/exe", "gpu_graph", what, word, (char *)NULL);
        _exit(97);
    }
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
}

/* What the graph must put out, computed here. */
static uint64_t expected(uint64_t weights, uint64_t kv, uint64_t i)
{
    weights += i;
    kv += i;
    return weights * 6364136223846793005ull + (kv ^ (kv >> 7)) + i;
}

static void check_output(const void *output, uint64_t weights, uint64_t kv)
{
    static uint64_t copy[WORDS];

    GMS(vmm->read(copy, output, BYTES, &error));
    for (uint64_t i = 0; i < WORDS; i++) {
        if (copy[i] != expected(weights, kv, i)) {
            fprintf(stderr, "word %llu is %llx\n", (unsigned long long)i, (unsigned long long)copy[i]);
            exit(1);
        }
    }
}

static uint64_t free_bytes(void)
{
    uint64_t left = 0;
    uint64_t total = 0;

    GMS(gms_vmm_cuda_free_bytes(&left, &total, &error));
    return left;
}

int main(int argc, char *argv[])
{
    struct gms_vmm_handle weights = {.fd = -1};
    struct gms_vmm_handle kv = {.fd = -1};
    void *at_weights = NULL;
    void *at_kv = NULL;
    gms_cu_pointer output = 0;
    gms_cu_stream stream = NULL;
    gpu_graph graph = NULL;
    gpu_executable executable = NULL;

    if (argc == 3) {
        return other_process(argv[1], strtoull(argv[2], NULL, 10));
    }
    gpu_open(&gpu);
    vmm = gms_vmm_cuda();
    GMS(vmm->create("weights", BYTES, &weights, &error));
    GMS(vmm->create("kv", BYTES, &kv, &error));
    run_other("--fill", &weights, 1000);
    GMS(vmm->reserve(BYTES, &at_weights, &error));
    GMS(vmm->reserve(BYTES, &at_kv, &error));
    GMS(vmm->map(at_weights, &weights, GMS_VMM_READ, &error));
    GMS(vmm->map_scratch(at_kv, BYTES, &error));
    CU(gpu.allocate(&output, BYTES));
    CU(gpu.stream_create(&stream, 1));

    /* Captured on scratch. */
    fill_with(at_kv, 5);
    uint64_t words = WORDS;
    gms_cu_pointer weights_address = (uintptr_t)at_weights;
    gms_cu_pointer kv_address = (uintptr_t)at_kv;
    void *arguments[] = {&weights_address, &kv_address, &output, &words};
    CU(gpu.capture_begin(stream, 0));
    gpu_launch(&gpu, gpu.step, 256, 256, stream, arguments);
    CU(gpu.capture_end(stream, &graph));
    CU(gpu.instantiate(&executable, graph, 0));
    CU(gpu.graph_launch(executable, stream));
    CU(gpu.stream_sync(stream));
    check_output((void *)(uintptr_t)output, 1000, 5);
    printf("captured on scratch: output as computed\n");

    /* Parked: the group's memory at the same address. Another process, the primary, has written it. */
    run_other("--fill", &kv, 77);
    GMS(vmm->sync(&error));
    GMS(vmm->map(at_kv, &kv, GMS_VMM_READ_WRITE, &error));
    const uint64_t calls = gms_vmm_cuda_calls();
    CU(gpu.graph_launch(executable, stream)); /* from here to the output: what a promotion does */
    CU(gpu.stream_sync(stream));
    REQUIRE(gms_vmm_cuda_calls() == calls);
    check_output((void *)(uintptr_t)output, 1000, 77);
    printf("replayed over another process's KV at the same address: equal bit for bit, 0 driver calls of ours\n");

    /* Back and forth. */
    uint64_t before = 0;
    uint64_t fds_before = 0;
    uint64_t fds_after = 0;
    uint64_t limit = 0;
    double park_ms = 0;
    for (int cycle = 0; cycle < CYCLES; cycle++) {
        GMS(vmm->map_scratch(at_kv, BYTES, &error));
        CU(gpu.graph_launch(executable, stream));
        GMS(vmm->sync(&error));
        const uint64_t since_ns = gms_clock_ns();
        GMS(vmm->map(at_kv, &kv, GMS_VMM_READ_WRITE, &error));
        park_ms += gpu_ms(since_ns);
        CU(gpu.graph_launch(executable, stream));
        GMS(vmm->sync(&error));
        if (cycle == 4) {
            before = free_bytes();
            gms_fd_usage(&fds_before, &limit);
        }
    }
    gms_fd_usage(&fds_after, &limit);
    check_output((void *)(uintptr_t)output, 1000, 77);
    printf("%d cycles: %lld bytes of device memory more, %lld descriptors more; parking 64 MiB %.2f ms\n", CYCLES,
           (long long)(before - free_bytes()), (long long)(fds_after - fds_before), park_ms / CYCLES);
    REQUIRE(free_bytes() >= before && fds_after == fds_before);

    run_other("--write-what-is-read", &weights, 1);
    CU(gpu.graph_launch(executable, stream));
    CU(gpu.stream_sync(stream));
    check_output((void *)(uintptr_t)output, 1000, 77);
    printf("a writer through a mapping for reading: it alone is lost, contents and everybody else are as before\n");
    return 0;
}
