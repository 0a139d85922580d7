/* SPDX-License-Identifier: Apache-2.0
 *
 * What it costs to put memory at addresses, by the size of the handles: ours beside the bare driver calls on the same
 * handles, in one process, one after the other. The memory is made by another process that has no context, as a
 * coordinator's is.
 *
 *   gpu_wake [TOTAL_GIB...]          default: 64 128
 */
#include "gpu.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"

enum { ROUNDS = 3 };

static struct gpu gpu;
static struct gms_error error;

/* The maker: a process of its own, which sends `count` descriptors, and ends when nobody reads any more. */
static int make(int socket, uint64_t slab_bytes, unsigned count)
{
    const struct gms_vmm *vmm = gms_vmm_cuda();
    char byte;

    gpu_open_bare(&gpu);
    gms_fd_raise_limit();
    const uint64_t since_ns = gms_clock_ns();
    for (unsigned i = 0; i < count; i++) {
        struct gms_vmm_handle handle = {.fd = -1};
        const gms_status status = vmm->create("wake", slab_bytes, &handle, &error);

        if (status != GMS_OK) {
            fprintf(stderr, "handle %u of %u: %s\n", i, count, error.text);
            return status == GMS_E_NO_MEMORY ? 77 : 1;
        }
        gpu_send_fd(socket, handle.fd);
        vmm->release(&handle);
    }
    const double ms = gpu_ms(since_ns);
    REQUIRE(write(socket, &ms, sizeof(ms)) == sizeof(ms));
    return read(socket, &byte, 1) == 0 ? 0 : 1;
}

struct costs {
    double bare_ms, bare_import_ms, bare_map_ms, bare_access_ms, ours_ms, unmap_ms;
    uint64_t held_bytes; /* device memory that keeping it all mapped costs */
};

static double least(double one, double other)
{
    return one == 0 || other < one ? other : one;
}

static uint64_t free_bytes(void)
{
    size_t left = 0;
    size_t total = 0;

    CU(gpu.memory->memory_info(&left, &total));
    return left;
}

/* import all, map all, one set_access over everything. */
static void bare(char *address, const int *fds, uint64_t slab_bytes, unsigned count, struct costs *costs)
{
    gms_cu_memory *objects = calloc(count, sizeof(*objects));
    const struct gms_cu_access access = {{GMS_CU_LOCATION_DEVICE, gpu.device.ordinal}, GMS_CU_ACCESS_READ_WRITE};

    REQUIRE(objects != NULL);
    uint64_t since_ns = gms_clock_ns();
    for (unsigned i = 0; i < count; i++) {
        CU(gpu.memory->import_from(&objects[i], (void *)(uintptr_t)fds[i], GMS_CU_HANDLE_POSIX_FD));
    }
    const double import_ms = gpu_ms(since_ns);
    since_ns = gms_clock_ns();
    for (unsigned i = 0; i < count; i++) {
        CU(gpu.memory->map((uintptr_t)address + i * slab_bytes, slab_bytes, 0, objects[i], 0));
    }
    const double map_ms = gpu_ms(since_ns);
    since_ns = gms_clock_ns();
    CU(gpu.memory->set_access((uintptr_t)address, count * slab_bytes, &access, 1));
    const double access_ms = gpu_ms(since_ns);
    if (costs->bare_ms == 0 || import_ms + map_ms + access_ms < costs->bare_ms) {
        costs->bare_ms = import_ms + map_ms + access_ms;
        costs->bare_import_ms = import_ms;
        costs->bare_map_ms = map_ms;
        costs->bare_access_ms = access_ms;
    }
    for (unsigned i = 0; i < count; i++) {
        CU(gpu.memory->unmap((uintptr_t)address + i * slab_bytes, slab_bytes));
        CU(gpu.memory->release(objects[i]));
    }
    free(objects);
}

/* What gms_park does for a pool of as many handles. */
static void ours(char *address, const int *fds, uint64_t slab_bytes, unsigned count, struct costs *costs)
{
    const struct gms_vmm *vmm = gms_vmm_cuda();
    const uint64_t before = free_bytes();
    uint64_t since_ns = gms_clock_ns();

    for (unsigned i = 0; i < count; i++) {
        const struct gms_vmm_handle handle = {.fd = fds[i], .bytes = slab_bytes};
        GMS(vmm->map(address + i * slab_bytes, &handle, GMS_VMM_READ_WRITE, &error));
    }
    costs->ours_ms = least(costs->ours_ms, gpu_ms(since_ns));
    const uint64_t after = free_bytes();
    costs->held_bytes = before > after ? before - after : 0;
    since_ns = gms_clock_ns();
    GMS(vmm->unmap(address, count * slab_bytes, &error));
    costs->unmap_ms = least(costs->unmap_ms, gpu_ms(since_ns));
}

static void measure(uint64_t total_bytes, uint64_t slab_bytes)
{
    const unsigned count = (unsigned)(total_bytes / slab_bytes);
    const struct gms_vmm *vmm = gms_vmm_cuda();
    struct costs costs = {0};
    void *address = NULL;
    char words[2][32];
    int ends[2];
    int *fds = calloc(count, sizeof(*fds));
    double create_ms = 0;
    int status = 0;

    REQUIRE(fds != NULL && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        dup2(ends[1], 100);
        snprintf(words[0], sizeof(words[0]), "%" PRIu64, slab_bytes);
        snprintf(words[1], sizeof(words[1]), "%u", count);
        execl("/proc/self/exe", "gpu_wake", "--make", words[0], words[1], (char *)NULL);
        _exit(97);
    }
    close(ends[1]);
    for (unsigned i = 0; i < count; i++) {
        fds[i] = gpu_take_fd(ends[0]);
    }
    REQUIRE(read(ends[0], &create_ms, sizeof(create_ms)) == sizeof(create_ms));
    GMS(vmm->reserve(total_bytes, &address, &error));
    for (int round = 0; round < ROUNDS; round++) { /* by turns, the best of each: whatever else happens hits both */
        bare(address, fds, slab_bytes, count, &costs);
        ours(address, fds, slab_bytes, count, &costs);
    }
    GMS(vmm->unreserve(address, total_bytes, &error));
    for (unsigned i = 0; i < count; i++) {
        close(fds[i]);
    }
    close(ends[0]);
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    free(fds);
    printf("| %3" PRIu64 " GiB | %5" PRIu64
           " MiB | %5u | %7.1f | %7.1f | %6.1f | %7.1f | %8.1f | %8.1f | %5.2f | %7.1f | "
           "%6.1f |\n",
           total_bytes >> 30, slab_bytes >> 20, count, create_ms, costs.bare_import_ms, costs.bare_map_ms,
           costs.bare_access_ms, costs.bare_ms, costs.ours_ms, costs.ours_ms / costs.bare_ms, costs.unmap_ms,
           (double)costs.held_bytes / (1 << 20));
    fflush(stdout);
}

int main(int argc, char *argv[])
{
    static const uint64_t slabs_mib[] = {16, 64, 256, 1024, 4096, 16384, 0};

    if (argc == 4 && strcmp(argv[1], "--make") == 0) {
        return make(100, strtoull(argv[2], NULL, 10), (unsigned)strtoul(argv[3], NULL, 10));
    }
    gpu_open(&gpu);
    gms_fd_raise_limit();
    printf("%s, %.1f GiB\n", gpu.device.name, (double)gpu.device.bytes / (1 << 30));
    printf("| total | handle | handles | create ms | import ms | map ms | access ms | bare ms | ours ms | ratio | "
           "unmap ms "
           "| MiB held |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 1; i < (argc > 1 ? argc : 3); i++) {
        const uint64_t total_bytes = (argc > 1 ? strtoull(argv[i], NULL, 10) : i == 1 ? 64 : 128) << 30;

        if (total_bytes == 0 || total_bytes > free_bytes()) {
            printf("| %" PRIu64 " GiB | more than is free here |\n", total_bytes >> 30);
            continue;
        }
        for (size_t s = 0; s < sizeof(slabs_mib) / sizeof(slabs_mib[0]); s++) {
            const uint64_t slab_bytes = slabs_mib[s] > 0 ? slabs_mib[s] << 20 : total_bytes;
            if (slab_bytes <= total_bytes) {
                measure(total_bytes, slab_bytes);
            }
        }
    }
    return 0;
}
