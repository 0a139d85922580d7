/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps whose work is on a device: complete when the device has come past what was submitted to the stream that the
 * step names. A mark is an event of the driver; marks are used again, so that a token costs no allocation.
 */
#include "libgms/session.h"

#include <inttypes.h>
#include <stdlib.h>

#include "vmm/cuda_stream.h"

gms_status gms_step_submitted(gms_session *session, gms_token token, void *stream, struct gms_error *ret_error)
{
    if (token == 0 || token > atomic_load(&session->steps_begun))
        return gms_fail(ret_error, GMS_E_INVALID, "step %" PRIu64 " was never begun", token);
    if (session->vmm->cpu_addresses) {
        gms_step_complete(session, token);
        return GMS_OK;
    }
    if (session->mark_count == GMS_MARKS)
        return gms_fail(ret_error, GMS_E_BUSY, "%d steps are under way on the device: gms_step_poll completes some",
                        GMS_MARKS);
    if (session->mark_count > 0 && token <= session->last_marked)
        return gms_fail(ret_error, GMS_E_INVALID, "step %" PRIu64 " comes after step %" PRIu64 ": submit them in order",
                        token, session->last_marked);
    struct gms_mark *mark = &session->marks[(session->mark_first + session->mark_count) % GMS_MARKS];
    gms_status status = GMS_OK;
    if (mark->event == NULL)
        status = gms_vmm_cuda_mark_create(&mark->event, ret_error);
    if (status == GMS_OK)
        status = gms_vmm_cuda_mark_record(mark->event, stream, ret_error);
    if (status != GMS_OK)
        return status;
    mark->token = session->last_marked = token;
    session->mark_count++;
    return GMS_OK;
}

gms_status gms_step_poll(gms_session *session, struct gms_error *ret_error)
{
    gms_token done = 0;
    gms_status status = GMS_OK;
    while (session->mark_count > 0 && status == GMS_OK) {
        const struct gms_mark *mark = &session->marks[session->mark_first];
        status = gms_vmm_cuda_mark_passed(mark->event, ret_error);
        if (status != GMS_OK)
            break;
        done = mark->token > done ? mark->token : done;
        session->mark_first = (session->mark_first + 1) % GMS_MARKS;
        session->mark_count--;
    }
    if (done > 0)
        gms_step_complete(session, done);
    return status;
}

void gms_marks_free(struct gms_session *session)
{
    for (uint32_t i = 0; i < GMS_MARKS; i++)
        if (session->marks[i].event != NULL)
            gms_vmm_cuda_mark_destroy(session->marks[i].event);
}
