/* SPDX-License-Identifier: Apache-2.0
 *
 * Work on the device that is not memory of pools: its context for libraries that want it current, streams of our own,
 * and host memory that the device can read and write. Of the one device of this process (cuda.h).
 */
#ifndef GMS_VMM_CUDA_STREAM_H
#define GMS_VMM_CUDA_STREAM_H

#include "vmm/cuda.h"

/* Makes the device's primary context current in this thread, on top of whatever is. OK: leave must follow, in the same
 * thread. Errors: those of gms_vmm_cuda_ready, and the driver's. */
gms_status gms_vmm_cuda_enter(struct gms_error *ret_error);
void gms_vmm_cuda_leave(void);

/* A stream that does not wait for the default one. The caller owns *ret_stream. */
gms_status gms_vmm_cuda_stream_create(void **ret_stream, struct gms_error *ret_error);
void gms_vmm_cuda_stream_destroy(void *stream); /* NULL allowed */

/* Host memory at an address that the device uses too. Undefined contents; owned by the caller. */
gms_status gms_vmm_cuda_host_alloc(uint64_t bytes, void **ret_address, struct gms_error *ret_error);
/* NULL allowed. Waits for the device; never while something that may hang is in flight there. */
void gms_vmm_cuda_host_free(void *address);

/*
 * A mark in a stream of work: recorded behind what was submitted so far, passed when the device has come to it.
 * `stream` is the driver's (CUstream), NULL the default one. passed: OK, NOT_DONE, or STICKY. One thread at a time for
 * each mark.
 */
gms_status gms_vmm_cuda_mark_create(void **ret_mark, struct gms_error *ret_error);
gms_status gms_vmm_cuda_mark_record(void *mark, void *stream, struct gms_error *ret_error);
gms_status gms_vmm_cuda_mark_passed(void *mark, struct gms_error *ret_error);
void gms_vmm_cuda_mark_destroy(void *mark);

#endif
