/* SPDX-License-Identifier: Apache-2.0
 *
 * The look at all processes as one writes it down: one thread, /proc listed, every descriptor listed and its name read,
 * every shared mapping of a file asked for. What bench_walk measures the fence's walk against; and its counts.
 */
#ifndef GMS_BENCH_PLAIN_WALK_H
#define GMS_BENCH_PLAIN_WALK_H

#include <stddef.h>
#include <sys/types.h>

struct plain_walk {
    size_t processes; /* but this one and those of the kernel */
    size_t kernel_threads;
    size_t descriptors;
    size_t memory_files; /* descriptors that are named like one, about which more is asked */
    size_t mappings;     /* shared ones of files; 0 where the kernel cannot be asked (before Linux 6.11) */
    double list_us, descriptors_us, mappings_us;
};

/* The times are those of the parts; list_us is what is left of the whole. */
void plain_walk(struct plain_walk *ret_walk);

#endif
