/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory behind the table of vmm.h. One process uses one device, named before the first call that needs it.
 *
 * What needs the driver, and what does not: export, import, freeze and release are plain descriptor work, so that a
 * coordinator which takes up memory again serves sessions without waiting for the driver's start (a quarter of a
 * second). create starts the driver but makes no context; everything that maps makes the device's primary context
 * current for the call, as engines and their frameworks do.
 *
 * A forked child of a process that has used the driver cannot use it: every call answers REFUSED there.
 */
#ifndef GMS_VMM_CUDA_H
#define GMS_VMM_CUDA_H

#include "vmm/devices.h"
#include "vmm/vmm.h"

const struct gms_vmm *gms_vmm_cuda(void);

/*
 * Which device: a form of gms_device_find, over those that the driver shows this process; "#N": device N, or the only
 * one where one alone is visible. NULL: the only one. No driver call is made. REFUSED: another was named before.
 */
gms_status gms_vmm_cuda_choose(const char *device, struct gms_error *ret_error);

struct gms_vmm_cuda_device {
    struct gms_uuid uuid;
    int ordinal; /* in this process */
    uint64_t bytes;
    int compute_mode; /* 0: default */
    char name[64];
};

/*
 * Starts the driver, finds the device and checks that it can do what is needed. Again: at once. May be called from a
 * thread of its own, ahead of need. Errors: UNSUPPORTED (no driver, no device, too old, no virtual memory management),
 * those of gms_device_find, REFUSED (compute mode is prohibited, or none was chosen and several are visible).
 */
gms_status gms_vmm_cuda_ready(struct gms_vmm_cuda_device *ret_device, struct gms_error *ret_error);

/* Bytes free on the device, with its context. */
gms_status gms_vmm_cuda_free_bytes(uint64_t *ret_free, uint64_t *ret_total, struct gms_error *ret_error);

/* Is the address open, as the driver says? NONE also where nothing is mapped. */
gms_status gms_vmm_cuda_access(const void *address, enum gms_vmm_access *ret_access, struct gms_error *ret_error);

/* Driver calls that this process has made through this library. */
uint64_t gms_vmm_cuda_calls(void);

#endif
