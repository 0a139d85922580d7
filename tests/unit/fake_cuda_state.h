/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fake driver's two files share: fake_cuda.c (script, device, streams and events) and fake_cuda_memory.c
 * (memory objects, what is mapped where, copies). Nobody else includes this.
 */
#ifndef GMS_TESTS_FAKE_CUDA_STATE_H
#define GMS_TESTS_FAKE_CUDA_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "vmm/cuda_api.h"

enum { OBJECTS = 4096, MAPPINGS = 8192, RANGES = 1024, EVENTS = 1024, STREAMS = 16, GRANULE = 2 * 1024 * 1024 };

struct object {
    int fd;
    size_t bytes;
    int device;
    unsigned references; /* handles and mappings */
    unsigned handles;
    bool exportable, created;
};
struct mapping {
    uintptr_t address;
    size_t bytes;
    struct object *object;
    int flags;
};
struct range {
    uintptr_t address;
    size_t bytes;
};
struct event {
    bool used;
    void *stream;
    bool recorded;
};

struct fake_cuda_state {
    pthread_mutex_t lock;
    pid_t pid; /* 0: not initialized */
    int devices, compute_mode, order[16];
    size_t bytes_each;
    int sticky;
    char fail_symbol[64];
    unsigned fail_skip, fail_times;
    int fail_result;
    uint64_t calls;
    unsigned contexts;
    uintptr_t storing_from, storing_to; /* stores that were submitted and not waited for */
    struct object objects[OBJECTS];
    struct mapping mappings[MAPPINGS];
    struct range ranges[RANGES];
    struct event events[EVENTS];
    void *held[STREAMS];
    uintptr_t streams; /* made so far */
};
extern struct fake_cuda_state fake;

/* Takes the lock and says how this call must fail, whatever it wants; 0: it need not. */
int fake_cuda_begin(const char *symbol, bool needs_context);
/* Gives the lock back; returns `result`. */
int fake_cuda_end(int result);

#define BEGIN(symbol, needs_context)                                                                                   \
    const int must = fake_cuda_begin(#symbol, needs_context);                                                          \
    if (must != 0) {                                                                                                   \
        return fake_cuda_end(must);                                                                                    \
    }

#define EXPORT                              __attribute__((visibility("default")))
#define DECLARE(member, symbol, parameters) EXPORT gms_cu_result symbol parameters;
GMS_CU_LIST(DECLARE)

#endif
