/* SPDX-License-Identifier: Apache-2.0
 *
 * How much memory the processes of a parked engine rank keep for themselves, beside the group's pools.
 *
 *   smaps        host memory: anonymous pages and the process's share of file pages, swapped ones included, from
 *                /proc/PID/smaps_rollup. Shared memory is not counted: that is what pools and regions are
 *   nvml         device memory: what NVML lists for the processes
 *   difference   device memory, where NVML has no such list (MIG, containers): what is used there now and was not when
 *                the engine joined. Right as long as nobody else takes or gives back any meanwhile
 *
 * Any thread; slow (NVML).
 */
#ifndef GMS_COORD_FOOTPRINT_H
#define GMS_COORD_FOOTPRINT_H

#include <stddef.h>
#include <sys/types.h>

#include "memory/device.h"

enum gms_footprint_source {
    GMS_FOOTPRINT_NONE,
    GMS_FOOTPRINT_SMAPS,
    GMS_FOOTPRINT_NVML,
    GMS_FOOTPRINT_DIFFERENCE,
    GMS_FOOTPRINT_SOURCES
};
/* "", "smaps", "nvml", "difference". */
const char *gms_footprint_source_name(enum gms_footprint_source source);

struct gms_footprint {
    enum gms_footprint_source source;
    uint64_t bytes;
    uint64_t device_used_bytes; /* of the whole device; 0: host memory */
};

enum { GMS_FOOTPRINT_PIDS = 256 };

/* The process `pid` and all below it, as far as `proc` ("/proc") shows them, at most GMS_FOOTPRINT_PIDS. */
size_t gms_footprint_family(const char *proc, pid_t pid, pid_t ret_pids[GMS_FOOTPRINT_PIDS]);

/* Errors: NOT_FOUND (none of them is there, or can be looked at). */
gms_status gms_footprint_host(const char *proc, const pid_t *pids, size_t count, struct gms_footprint *ret_footprint,
                              struct gms_error *ret_error);
/* `used_before_bytes`: of the device when the engine joined, 0: not known. Errors: those of gms_nvml_memory, NOT_FOUND
 * (NVML does not list them, and what was used before is not known). */
gms_status gms_footprint_device(const char *library, const struct gms_uuid *device, const pid_t *pids, size_t count,
                                uint64_t used_before_bytes, struct gms_footprint *ret_footprint,
                                struct gms_error *ret_error);

#endif
