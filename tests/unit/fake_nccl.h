/* SPDX-License-Identifier: Apache-2.0
 *
 * A NCCL of host memory, for tests: libnccl.so.2 in a directory of its own, found through LD_LIBRARY_PATH beside the
 * CUDA driver of the same kind (fake_cuda.h). Ranks are processes that meet in a file which the unique id names
 * (TMPDIR). Collectives are submitted by a thread in the background, as those of a non-blocking communicator are, and
 * hold their stream until every rank has come. A handle that is used after its abort ends the process.
 *
 * The same source makes two more, by path: fake_nccl_old lacks what 2.14 brought, fake_nccl_new can suspend.
 */
#ifndef GMS_TESTS_FAKE_NCCL_H
#define GMS_TESTS_FAKE_NCCL_H

#include <stdbool.h>
#include <stdint.h>

enum fake_nccl_behaviour {
    FAKE_NCCL_WELL,
    FAKE_NCCL_HANGS,   /* never comes to an end */
    FAKE_NCCL_REFUSES, /* answers with an error at once */
    FAKE_NCCL_FAILS,   /* begins, and then reports an error */
    FAKE_NCCL_LIES,    /* collectives: one element of the result is wrong */
};

/* Of this process. */
struct fake_nccl {
    /* How the next calls go, until it is said otherwise. */
    enum fake_nccl_behaviour init, collective, resume;
    /* HANGS: until it is said otherwise, as behind a kernel, or while a graph holds a collective; from any thread,
     * atomic */
    enum fake_nccl_behaviour abort;
    uint64_t inits, suspends;
    uint64_t collectives, aborts, freed; /* atomic: begun, begun, and ended aborts */
    uint64_t handles;                    /* atomic: made, and their abort has not begun */
};

/* fake_nccl_find.c. NULL: the library at `path` (NULL: libnccl.so.2) is not this one. */
struct fake_nccl *fake_nccl_get(const char *path);
/* Whether `count`, of a table, becomes `value` within ten seconds: an abort is another thread's work. */
bool fake_nccl_comes_to(const uint64_t *count, uint64_t value);

#endif
