/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>

#include "vmm/cuda.h"
#include "vmm/cuda_device.h"

/* ----------------------------------------------------------------------------------------------- contents ------ */

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

/* --------------------------------------------------------------------------------------------------- marks ----- */

gms_status gms_vmm_cuda_mark_create(void **ret_mark, struct gms_error *ret_error)
{
    gms_cu_event event = NULL;
    gms_status status = gms_cuda_enter_unlocked(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result = GMS_CU(gms_cuda.api, event_create, &event, GMS_CU_EVENT_DISABLE_TIMING);
    gms_cuda_leave_unlocked();
    if (result != GMS_CU_SUCCESS) {
        return gms_cu_fail(gms_cuda.api, result, ret_error, "an event");
    }
    *ret_mark = event;
    return GMS_OK;
}

gms_status gms_vmm_cuda_mark_record(void *mark, void *stream, struct gms_error *ret_error)
{
    gms_status status = gms_cuda_enter_unlocked(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result = GMS_CU(gms_cuda.api, event_record, mark, stream);
    gms_cuda_leave_unlocked();
    return result == GMS_CU_SUCCESS ? GMS_OK : gms_cu_fail(gms_cuda.api, result, ret_error, "a mark in a stream");
}

gms_status gms_vmm_cuda_mark_passed(void *mark, struct gms_error *ret_error)
{
    const gms_cu_result result = GMS_CU(gms_cuda.api, event_query, mark);

    if (result == GMS_CU_NOT_READY) {
        return gms_fail(ret_error, GMS_E_NOT_DONE, "the device has not come to the mark yet");
    }
    return result == GMS_CU_SUCCESS ? GMS_OK : gms_cu_fail(gms_cuda.api, result, ret_error, "a mark in a stream");
}

void gms_vmm_cuda_mark_destroy(void *mark)
{
    (void)GMS_CU(gms_cuda.api, event_destroy, mark);
}
