/* SPDX-License-Identifier: Apache-2.0
 *
 * The one device of this process, for the files of this folder: which it is, that it can do what is needed, and its
 * context made current for a call. cuda.h says what of it others may use.
 */
#ifndef GMS_VMM_CUDA_DEVICE_H
#define GMS_VMM_CUDA_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "vmm/cuda.h"
#include "vmm/cuda_api.h"

/* What every device so far maps by. It is needed before the driver is started, and checked when it is. */
enum { GMS_CUDA_GRANULARITY_BYTES = 2 * 1024 * 1024 };

struct gms_cuda {
    pthread_mutex_t lock;             /* over everything here, and over what is mapped where (cuda.c) */
    char wanted[GMS_UUID_TEXT_BYTES]; /* "": the only one */
    bool chosen, ready;
    pid_t pid; /* of the process that started the driver */
    const struct gms_cu_api *api;
    struct gms_vmm_cuda_device device;
    bool rdma;
    gms_cu_context context; /* NULL: not retained */
};
/* api and device do not change once ready: after an enter they may be read without the lock. */
extern struct gms_cuda gms_cuda;

/*
 * Starts the driver, finds the device and checks it; again: at once. Under the lock. Errors: those of
 * gms_vmm_cuda_ready.
 */
gms_status gms_cuda_make_ready(struct gms_error *ret_error);

/*
 * Starts the driver if need be, takes the lock and makes the device's context current. OK: gms_cuda_leave must follow,
 * by the same thread. Errors: those of gms_vmm_cuda_ready, and the driver's; nothing is held then.
 */
gms_status gms_cuda_enter(struct gms_error *ret_error);
void gms_cuda_leave(void);

/* The same without holding the lock meanwhile: what waits for the device must not hold up others. */
gms_status gms_cuda_enter_unlocked(struct gms_error *ret_error);
void gms_cuda_leave_unlocked(void);

/* How memory of pools is made on device `ordinal`, which has been checked. */
struct gms_cu_properties gms_cuda_properties_of_pools(int ordinal);

/* The table's sync, read and write (vmm.h). */
gms_status gms_cuda_sync(struct gms_error *ret_error);
gms_status gms_cuda_read(void *to, const void *from, uint64_t bytes, struct gms_error *ret_error);
gms_status gms_cuda_write(void *to, const void *from, uint64_t bytes, struct gms_error *ret_error);

#endif
