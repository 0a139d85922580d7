/* SPDX-License-Identifier: Apache-2.0
 *
 * Quiescence: can a dead cohort still write on this rank? A provider answers for one cohort at a time, each answer with
 * its reason. Time, silence and death are no proof (invariant 9); what cannot be known is never quiet.
 *
 * Providers are rows of the table in quiescence.c, each with a file of its own:
 *
 *   procmap         host memory: what was lent to it is back, and nobody but the living holds the memory
 *   nvml            CUDA: the driver lists no process of it any more, as it once did
 *   process-death   the opt-in policy: the container was found dead twice, one grace apart; proves nothing
 *
 * All calls of a provider come from one thread (worker.h), never two at a time.
 */
#ifndef GMS_COORD_QUIESCENCE_H
#define GMS_COORD_QUIESCENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/reclaim.h"
#include "host/maps.h"
#include "sessions/sessions.h"

enum { GMS_QUIESCENCE_REASON_BYTES = 192, GMS_QUIESCENCE_OURS = 64 };

/* A cohort, and what surrounds it, as of the question. */
struct gms_cohort {
    uint32_t engine;
    uint64_t incarnation;
    int pidfd; /* of the engine rank; -1: nothing is known of it here */
    struct gms_container container;
    /* The memory of this rank that it could write. */
    struct gms_inode memory[GMS_MAX_POOLS];
    int loans[GMS_MAX_POOLS]; /* descriptors of it that are not of the loan (loan.h); owned */
    size_t memory_count;
    /* Who may hold that memory all the same: this process, the keeper, gms-exec, and living engine ranks with all that
     * descends from them or lives in their PID namespace. */
    pid_t ours[GMS_QUIESCENCE_OURS];
    size_t ours_count;
    pid_t living[GMS_MAX_ENGINES * 2];
    size_t living_count;
    uint64_t since; /* when the oldest of keeper and coordinator started, in the kernel's ticks: what is older than that
                       has inherited nothing */
};
void gms_cohort_close(struct gms_cohort *cohort);

struct gms_quiescence_options {
    uint64_t grace_ns;   /* process-death */
    const char *nvml;    /* borrowed for the call; the library; NULL: libnvidia-ml.so.1 */
    const char *module;  /* borrowed for the call; its inode changes when the driver is reloaded; NULL:
                            /sys/module/nvidia */
    const char *devices; /* borrowed for the call; how the names of the driver's files begin; NULL: /dev/nvidia */
};

struct gms_quiescence_provider {
    const char *name;
    const char *memory; /* the backend it speaks for; NULL: any, by policy alone */
    gms_status (*open)(const struct gms_quiescence_options *options, void **ret_context, struct gms_error *ret_error);
    void (*close)(void *context);
    /* The cohort lives, and may be about to write: whatever must be seen of it while it does (NULL: nothing). May be
     * called again. */
    void (*witness)(void *context, const struct gms_cohort *cohort);
    /* Never QUIET without proof. CANNOT_KNOW is for good. `ret_reason` is always set, in plain words. */
    enum gms_reclaim_answer (*ask)(void *context, const struct gms_cohort *cohort,
                                   char ret_reason[GMS_QUIESCENCE_REASON_BYTES]);
    void (*forget)(void *context, uint64_t incarnation); /* NULL: it remembers nothing */
};

/* The one of this name, or, NULL, the one that proves for `memory`; else "none", which never knows. Never NULL. */
const struct gms_quiescence_provider *gms_quiescence_find(const char *name, const char *memory);

/* Has every process of the container ended? Without a container: the engine rank, and whoever had what was lent to it.
 * Its reason when not, or when that cannot be known (*ret_never). */
bool gms_cohort_ended(const struct gms_cohort *cohort, bool *ret_never, char ret_reason[GMS_QUIESCENCE_REASON_BYTES]);
/* A process outside `ours` and `living` that maps the cohort's memory or has a descriptor of it; 0: none. Walks /proc.
 */
pid_t gms_cohort_holder(const struct gms_cohort *cohort, char ret_reason[GMS_QUIESCENCE_REASON_BYTES]);
/* One of `ours`, or of the living, their descendants and PID namespaces. */
bool gms_cohort_knows(const struct gms_cohort *cohort, pid_t pid);
/* Is it one of these processes, or below one? */
bool gms_process_descends(pid_t pid, const pid_t *roots, size_t count);
/* When a process started, in clock ticks after boot; 0: gone, or unreadable. */
uint64_t gms_process_started(pid_t pid);
/* Is CUDA MPS in use: CUDA_MPS_PIPE_DIRECTORY in this process or in that of `pidfd` (-1: none), or a server running
 * here? Under MPS no death is a proof (V33). Words for it in `ret_reason` when so. */
bool gms_mps_in_use(int pidfd, char ret_reason[GMS_QUIESCENCE_REASON_BYTES]);

extern const struct gms_quiescence_provider gms_quiescence_procmap, gms_quiescence_nvml, gms_quiescence_process_death;

#endif
