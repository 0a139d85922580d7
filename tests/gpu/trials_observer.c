/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the pages of every watched slot, round and round. Copies are submissions like launches, so the teardown of the
 * dead does not hold it up; the slowest round is told.
 */
#include "trials.h"

#include "gpu.h"

#include <string.h>
#include <unistd.h>

enum { PAGES_BYTES = PAGES * PAGE_BYTES };

static struct gpu gpu;
static struct gms_error error;

static void compare(struct slot *slot, const char *now, char *before, uint64_t before_ns, uint64_t now_ns)
{
    for (int page = 0; page < PAGES; page++) {
        if (memcmp(now + page * PAGE_BYTES, before + page * PAGE_BYTES, PAGE_BYTES) == 0) {
            continue;
        }
        memcpy(before + page * PAGE_BYTES, now + page * PAGE_BYTES, PAGE_BYTES);
        slot->pages[page].after_ns = before_ns;
        slot->pages[page].before_ns = now_ns;
        slot->pages[page].count++;
    }
}

int trial_observer(struct shared *shared, unsigned slots)
{
    static char before[TRIAL_SLOTS][PAGES_BYTES];
    const struct gms_vmm *vmm = gms_vmm_cuda();
    const void *memory[TRIAL_SLOTS];
    uint64_t sampled_ns[TRIAL_SLOTS] = {0};
    gms_cu_stream stream = NULL;
    char *copies = NULL;

    gpu_open(&gpu);
    for (unsigned i = 0; i < slots; i++) {
        struct gms_vmm_handle handle = {.fd = -1};
        void *address = NULL;

        GMS(vmm->import_fd(FIRST_FD + (int)i, SLOT_BYTES, &handle, &error));
        GMS(vmm->reserve(SLOT_BYTES, &address, &error));
        GMS(vmm->map(address, &handle, GMS_VMM_READ, &error));
        memory[i] = address;
    }
    CU(gpu.stream_create(&stream, 1));
    CU(gpu.host_allocate((void **)&copies, (size_t)slots * PAGES_BYTES, 0));
    shared->observer_ready = 1;
    while (!shared->stop && getppid() != 1) {
        const uint64_t begun_ns = gms_clock_ns();
        uint32_t watched = 0;

        for (unsigned i = 0; i < slots; i++) {
            if (shared->slots[i].watched) {
                watched |= 1U << i;
                CU(gpu.read_async(copies + (size_t)i * PAGES_BYTES, (uintptr_t)memory[i], PAGES_BYTES, stream));
            }
        }
        CU(gpu.stream_sync(stream));
        const uint64_t ended_ns = gms_clock_ns();
        for (unsigned i = 0; i < slots; i++) {
            if (watched >> i & 1) {
                compare(&shared->slots[i], copies + (size_t)i * PAGES_BYTES, before[i], sampled_ns[i], ended_ns);
                sampled_ns[i] = begun_ns;
            }
        }
        if (ended_ns - begun_ns > shared->slowest_sample_ns) {
            shared->slowest_sample_ns = ended_ns - begun_ns;
        }
        shared->samples++;
        usleep(50);
    }
    return 0;
}
