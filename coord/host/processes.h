/* SPDX-License-Identifier: Apache-2.0
 *
 * Which processes there are: numbers from /proc, without the kernel's own threads, which hold nothing and of which a
 * machine with many processors has many. Every process that this PID namespace can see from before the call until after
 * it is in the list.
 */
#ifndef GMS_COORD_PROCESSES_H
#define GMS_COORD_PROCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct gms_processes {
    pid_t *list; /* ascending */
    size_t count, capacity;
    pid_t *kernel; /* threads of the kernel, ascending; known only where process 2 is their parent */
    size_t kernel_count;
};

/* Asks for the kernel's threads; what it is not told, it lists as processes. Nothing to be freed yet. */
void gms_processes_begin(struct gms_processes *ret_processes);
/* Makes the list anew. False: it is not whole, errno says why. */
bool gms_processes_list(struct gms_processes *processes);
/* Is the number in `list`, which is ascending? */
bool gms_pid_is_in(const pid_t *list, size_t count, pid_t pid);
/* Brings numbers into ascending order, for gms_pid_is_in. */
void gms_pids_sort(pid_t *list, size_t count);
/* Frees both lists. */
void gms_processes_end(struct gms_processes *processes);

#endif
