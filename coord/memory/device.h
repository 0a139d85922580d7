/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPU of this rank, where pools are device memory. It is a UUID to everybody; numbers stay inside one process.
 *
 * A start that takes up memory again knows the device from what is kept with the memory, and needs no driver for it:
 * the driver is started in a thread of its own, for the allocations that may come later.
 */
#ifndef GMS_COORD_DEVICE_H
#define GMS_COORD_DEVICE_H

#include "config/config.h"
#include "durable/copies.h"
#include "group/round_mpi.h"
#include "vmm/devices.h"

struct gms_device_of_rank {
    enum gms_memory_backend backend;
    struct gms_uuid uuid; /* host: unknown */
};

/*
 * Names this rank's device to the driver's side (vmm/cuda.h). `kept`: what an earlier world's memory was on; unknown:
 * there is none, and the driver is asked (it is started here, a quarter of a second). `proc` is "/proc", or a test's.
 * Errors: those of gms_device_mask for this process's CUDA_VISIBLE_DEVICES, and of gms_vmm_cuda_ready.
 */
gms_status gms_device_take(const struct gms_config *config, uint32_t rank, const struct gms_uuid *kept,
                           const char *proc, struct gms_device_of_rank *ret_device, struct gms_error *ret_error);

/* All ranks: no device belongs to two, unless the deployment file says "shared". Errors: MISMATCH (both ranks are
 * named), and the round's. */
gms_status gms_device_agree(const struct gms_config *config, struct gms_round *round,
                            const struct gms_device_of_rank *device, struct gms_error *ret_error);
/* The rule of it, for tests: MISMATCH names the first two. */
gms_status gms_device_check_distinct(const struct gms_uuid *uuids, uint32_t ranks, struct gms_error *ret_error);

/* Starts the driver in the background, if it is not running yet. What fails is told by the first allocation. */
void gms_device_warm_up(const struct gms_device_of_rank *device);

#endif
