/* SPDX-License-Identifier: Apache-2.0
 *
 * One writer: seals four pages and waits for them, then keeps work in flight that writes leased pages, and pages that
 * it has released with work under way; far more is queued than has begun. Ends by what is done to it.
 */
#include "trials.h"

#include "gpu.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { STREAMS = 4, NODES = 8, KERNEL_MS = 16 };

static struct gpu gpu;
static struct gms_error error;

static gms_cu_pointer page(const void *memory, enum page_state state)
{
    return (uintptr_t)memory + (uint64_t)state * PAGES_OF_A_STATE * PAGE_BYTES;
}

static void write_pages(gms_cu_pointer target, uint64_t life_ms, gms_cu_stream stream)
{
    uint64_t page_words = PAGE_BYTES / sizeof(uint64_t);
    uint64_t life_ns = life_ms * GMS_NS_PER_MS;
    void *arguments[] = {&target, &page_words, &life_ns};

    gpu_launch(&gpu, gpu.write_for, PAGES_OF_A_STATE, 128, stream, arguments);
}

/* Leased and released pages lie side by side: one copy writes both. */
static void keep_copying(const struct slot *slot, const void *memory, gms_cu_stream stream)
{
    enum { COPY_BYTES = 2 * PAGES_OF_A_STATE * PAGE_BYTES };
    gms_cu_pointer sources[2];

    for (int i = 0; i < 2; i++) {
        CU(gpu.allocate(&sources[i], COPY_BYTES));
        CU(gpu.memory->fill(sources[i], (unsigned char)(0x30 + i), COPY_BYTES));
    }
    for (unsigned i = 0; gms_clock_ns() < slot->end_ns && !slot->fault_now; i++) {
        CU(gpu.copy_async(page(memory, PAGE_LEASED), sources[i % 2], COPY_BYTES, stream));
    }
}

static void keep_launching_graphs(const struct slot *slot, const void *memory, gms_cu_stream stream)
{
    gpu_graph graph = NULL;
    gpu_executable executable = NULL;

    CU(gpu.capture_begin(stream, 0));
    for (int i = 0; i < NODES; i++) {
        write_pages(page(memory, i % 2 ? PAGE_LEASED : PAGE_RELEASED), KERNEL_MS, stream);
    }
    CU(gpu.capture_end(stream, &graph));
    CU(gpu.instantiate(&executable, graph, 0));
    for (uint64_t queued_ms = 0; queued_ms < slot->life_ms; queued_ms += NODES * KERNEL_MS) {
        CU(gpu.graph_launch(executable, stream)); /* all that will ever run is queued now */
    }
}

static void launch(struct slot *slot, const void *memory, gms_cu_stream streams[STREAMS])
{
    switch ((enum workload)slot->workload) {
    case WORK_PERSISTENT:
        write_pages(page(memory, PAGE_LEASED), slot->life_ms, streams[0]);
        write_pages(page(memory, PAGE_RELEASED), slot->life_ms, streams[1]);
        return;
    case WORK_COPY:
        return; /* by keep_copying, later: it goes on submitting */
    case WORK_GRAPH:
        keep_launching_graphs(slot, memory, streams[0]);
        return;
    case WORK_STREAMS:
        for (uint64_t queued_ms = 0; queued_ms < slot->life_ms; queued_ms += KERNEL_MS) {
            for (int i = 0; i < STREAMS; i++) {
                write_pages(page(memory, i % 2 ? PAGE_LEASED : PAGE_RELEASED), KERNEL_MS, streams[i]);
            }
        }
        return;
    case WORKLOADS:
        break;
    }
}

/* A wild store on a stream of its own; then what an engine's main thread does when it sees the error. */
static void fault(struct slot *slot, gms_cu_stream stream)
{
    gms_cu_pointer nowhere = 0x10;
    void *arguments[] = {&nowhere};

    gpu_launch(&gpu, gpu.fault, 1, 32, stream, arguments);
    while (gpu.stream_query(stream) == GMS_CU_NOT_READY) {
    }
    slot->faulted_ns = gms_clock_ns();
    slot->stage = STAGE_FAULTED;
    abort();
}

int trial_writer(struct shared *shared, unsigned number)
{
    struct slot *slot = &shared->slots[number];
    const struct gms_vmm *vmm = gms_vmm_cuda();
    struct gms_vmm_handle handle = {.fd = -1};
    const struct rlimit none = {0};
    gms_cu_stream streams[STREAMS];
    gms_cu_stream other = NULL;
    void *memory = NULL;

    setrlimit(RLIMIT_CORE, &none);
    slot->stage = STAGE_FAILED; /* until it is not */
    gpu_open(&gpu);
    GMS(vmm->import_fd(FIRST_FD + (int)number, SLOT_BYTES, &handle, &error));
    GMS(vmm->reserve(SLOT_BYTES, &memory, &error));
    GMS(vmm->map(memory, &handle, GMS_VMM_READ_WRITE, &error));
    for (int i = 0; i < STREAMS; i++) {
        CU(gpu.stream_create(&streams[i], 1));
    }
    CU(gpu.stream_create(&other, 1));
    write_pages(page(memory, PAGE_SEALED), 1, streams[0]);
    GMS(vmm->sync(&error)); /* sealed: complete */
    if (slot->ending == END_CHILD && fork() == 0) {
        /* It has every descriptor of its parent, the driver's too, and does nothing but live. */
        pause();
        _exit(0);
    }
    slot->end_ns = gms_clock_ns() + slot->life_ms * GMS_NS_PER_MS;
    launch(slot, memory, streams);
    slot->stage = STAGE_RUNNING;
    if (slot->workload == WORK_COPY) {
        keep_copying(slot, memory, streams[0]);
    }
    while (!slot->fault_now) {
        usleep(500);
    }
    fault(slot, other);
    return 1;
}
