/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>

#include "vmm/cuda.h"
#include "vmm/cuda_device.h"

gms_status gms_cuda_sync(struct gms_error *ret_error)
{
    gms_status status = gms_cuda_enter_unlocked(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result = GMS_CU(gms_cuda.api, context_sync);
    gms_cuda_leave_unlocked();
    return result == GMS_CU_SUCCESS
               ? GMS_OK
               : gms_cu_fail(gms_cuda.api, result, ret_error, "waiting for device %d", gms_cuda.device.ordinal);
}

gms_status gms_cuda_read(void *to, const void *from, uint64_t bytes, struct gms_error *ret_error)
{
    gms_status status = gms_cuda_enter_unlocked(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result = GMS_CU(gms_cuda.api, read, to, (uintptr_t)from, bytes);
    gms_cuda_leave_unlocked();
    return result == GMS_CU_SUCCESS ? GMS_OK
                                    : gms_cu_fail(gms_cuda.api, result, ret_error, "reading %llu bytes at %p",
                                                  (unsigned long long)bytes, from);
}

gms_status gms_cuda_write(void *to, const void *from, uint64_t bytes, struct gms_error *ret_error)
{
    gms_status status = gms_cuda_enter_unlocked(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    gms_cu_result result = GMS_CU(gms_cuda.api, write, (uintptr_t)to, from, bytes);
    if (result == GMS_CU_SUCCESS) {
        /* The driver returns when the source has been read; the stores may come later, and must not meet another
         * mapping. */
        result = GMS_CU(gms_cuda.api, context_sync);
    }
    gms_cuda_leave_unlocked();
    return result == GMS_CU_SUCCESS ? GMS_OK
                                    : gms_cu_fail(gms_cuda.api, result, ret_error, "writing %llu bytes at %p",
                                                  (unsigned long long)bytes, to);
}
