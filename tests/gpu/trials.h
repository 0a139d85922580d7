/* SPDX-License-Identifier: Apache-2.0
 *
 * Kills in mid-kernel: what the three kinds of process share. The supervisor has no CUDA; a writer is a new process for
 * every trial; one observer reads the pages of all slots, round and round, and notes when each changed last.
 */
#ifndef GMS_TESTS_GPU_TRIALS_H
#define GMS_TESTS_GPU_TRIALS_H

#include <stdatomic.h>
#include <stdint.h>

enum {
    TRIAL_SLOTS = 16,
    PAGE_BYTES = 4096,
    PAGES_OF_A_STATE = 4,
    PAGES = 4 * PAGES_OF_A_STATE, /* sealed, idle, leased, released: in this order */
    SLOT_BYTES = 2 * 1024 * 1024, /* of memory; the pages are its beginning */
    FIRST_FD = 200,               /* descriptor of slot 0's memory in writer and observer */
    SHARED_FD = 199,
};

enum page_state { PAGE_SEALED, PAGE_IDLE, PAGE_LEASED, PAGE_RELEASED };
enum workload { WORK_PERSISTENT, WORK_COPY, WORK_GRAPH, WORK_STREAMS, WORKLOADS };
enum ending { END_SIGKILL, END_FAULT, END_CHILD, ENDINGS };
enum stage { STAGE_STARTING, STAGE_RUNNING, STAGE_FAULTED, STAGE_FAILED };

/* The last change of a page lies between the two: the sample before began, the sample after ended. */
struct change {
    _Atomic uint64_t after_ns, before_ns;
    _Atomic uint64_t count;
};

struct slot {
    _Atomic uint32_t workload, ending, life_ms;
    _Atomic uint32_t stage, fault_now;
    _Atomic uint64_t end_ns;     /* when the writer's work ends by itself */
    _Atomic uint64_t faulted_ns; /* the writer has seen its fault and is about to abort */
    _Atomic uint32_t watched;    /* the observer reads this slot */
    struct change pages[PAGES];
};

struct shared {
    struct slot slots[TRIAL_SLOTS];
    _Atomic uint32_t observer_ready, stop;
    _Atomic uint64_t samples, slowest_sample_ns;
};

/* The two other kinds of process, in trials_writer.c and trials_observer.c; exit codes. */
int trial_writer(struct shared *shared, unsigned slot);
int trial_observer(struct shared *shared, unsigned slots);

#endif
