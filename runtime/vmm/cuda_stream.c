/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/cuda_stream.h"

#include <inttypes.h>

#include "vmm/cuda_device.h"

gms_status gms_vmm_cuda_enter(struct gms_error *ret_error)
{
    return gms_cuda_enter_unlocked(ret_error);
}

void gms_vmm_cuda_leave(void)
{
    gms_cuda_leave_unlocked();
}

gms_status gms_vmm_cuda_stream_create(void **ret_stream, struct gms_error *ret_error)
{
    gms_cu_stream stream = NULL;
    gms_status status = gms_cuda_enter_unlocked(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result = GMS_CU(gms_cuda.api, stream_create, &stream, GMS_CU_STREAM_NON_BLOCKING);
    gms_cuda_leave_unlocked();
    if (result != GMS_CU_SUCCESS) {
        return gms_cu_fail(gms_cuda.api, result, ret_error, "a stream");
    }
    *ret_stream = stream;
    return GMS_OK;
}

void gms_vmm_cuda_stream_destroy(void *stream)
{
    if (stream && gms_cuda_enter_unlocked(NULL) == GMS_OK) {
        (void)GMS_CU(gms_cuda.api, stream_destroy, stream);
        gms_cuda_leave_unlocked();
    }
}

gms_status gms_vmm_cuda_host_alloc(uint64_t bytes, void **ret_address, struct gms_error *ret_error)
{
    void *address = NULL;
    gms_status status = gms_cuda_enter_unlocked(ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const gms_cu_result result =
        GMS_CU(gms_cuda.api, host_alloc, &address, bytes, GMS_CU_HOST_PORTABLE | GMS_CU_HOST_MAPPED);
    gms_cuda_leave_unlocked();
    if (result != GMS_CU_SUCCESS) {
        return gms_cu_fail(gms_cuda.api, result, ret_error, "%" PRIu64 " bytes of host memory for the device", bytes);
    }
    *ret_address = address;
    return GMS_OK;
}

void gms_vmm_cuda_host_free(void *address)
{
    if (address && gms_cuda_enter_unlocked(NULL) == GMS_OK) {
        (void)GMS_CU(gms_cuda.api, host_free, address);
        gms_cuda_leave_unlocked();
    }
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
