/* SPDX-License-Identifier: Apache-2.0
 *
 * What NVML says of a device's memory and settings, asked once and forgotten: each call opens libnvidia-ml, asks and
 * closes it again (some 10 ms; slower on a busy driver, so not on the event loop). The provider of quiescence has a
 * session of its own (quiescence_nvml.c): its sightings must not come and go with questions like these.
 */
#ifndef GMS_COORD_NVML_H
#define GMS_COORD_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "vmm/devices.h"

struct gms_nvml_memory {
    uint64_t used_bytes;    /* on the device, by whomever */
    uint64_t process_bytes; /* by the processes asked about; valid where `listed` */
    bool listed;            /* NVML listed one of them at least, with a number for each */
};

/* `library` NULL: libnvidia-ml.so.1. Errors: UNSUPPORTED (no NVML, or too old), NOT_FOUND (no such device), SYSTEM. */
gms_status gms_nvml_memory(const char *library, const struct gms_uuid *device, const pid_t *pids, size_t count,
                           struct gms_nvml_memory *ret_memory, struct gms_error *ret_error);
/* Does the driver stay loaded while nobody uses the device? Errors as above. */
gms_status gms_nvml_persistence(const char *library, const struct gms_uuid *device, bool *ret_on,
                                struct gms_error *ret_error);

#endif
