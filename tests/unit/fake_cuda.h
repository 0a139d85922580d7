/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA driver of host memory, for tests: libcuda.so.1 in a directory of its own, found through LD_LIBRARY_PATH.
 * Handles are memfds, so they travel between processes; mapping, access and their errors follow the driver's rules
 * (whole mappings only, sizes exact, nothing mapped twice, nothing unmapped under a copy that was not waited for, no
 * use after a fork, a sticky error stays). The CPU can read what is mapped, so a whole engine runs on it.
 *
 * Environment, for processes that a test cannot script: FAKE_CUDA_DEVICES (1), FAKE_CUDA_BYTES of each (1 GiB),
 * FAKE_CUDA_COMPUTE_MODE (0), FAKE_CUDA_FAIL ("SYMBOL:SKIP:RESULT": the call after SKIP good ones fails),
 * FAKE_CUDA_VISIBLE ("1,0": ordinals to devices).
 */
#ifndef GMS_TESTS_FAKE_CUDA_H
#define GMS_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

/* Found with dlsym in the library that is loaded already: fake_cuda_get. */
struct fake_cuda {
    /* `times` calls of `symbol` after `skip` good ones answer `result` (a sticky one: all from then on). NULL: nothing.
     */
    void (*fail_next)(const char *symbol, unsigned skip, unsigned times, int result);
    /* Events recorded on this stream are not ready until it is let go. */
    void (*hold)(void *stream, bool held);
    /* Forgets a sticky error, as a new process would have none. */
    void (*heal)(void);
    uint64_t (*calls)(void);
    /* What this process has: objects of the driver, mappings, reservations, contexts retained, events. */
    struct fake_cuda_counts {
        unsigned objects, mappings, reservations, contexts, events;
    } (*counts)(void);
};

/* fake_cuda_find.c. NULL: the driver that is found is not this one. */
const struct fake_cuda *fake_cuda_get(void);

#endif
