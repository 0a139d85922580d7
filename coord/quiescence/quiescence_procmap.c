/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory. Whatever an incarnation can reach the memory with was made from what was lent to it (loan.h):
 * descriptors, also those that lie in a socket nobody has read, and mappings, until the last thread that has them is
 * done with its exit. So when the loan is back, nothing of it can be stored any more, whoever had it and wherever it
 * went. What a loan does not see is the memory opened anew through /proc/PID/fd: for that, /proc is walked, and a
 * holder who belongs to nobody living speaks against it.
 */
#include "quiescence/quiescence.h"

#include <stdio.h>

#include "base/fd.h"
#include "fence/loan.h"

static gms_status open_procmap(const struct gms_quiescence_options *options, void **ret_context,
                               struct gms_error *ret_error)
{
    (void)options;
    (void)ret_error;
    *ret_context = NULL;
    return GMS_OK;
}

static void close_procmap(void *context)
{
    (void)context;
}

static enum gms_reclaim_answer ask(void *context, const struct gms_cohort *cohort,
                                   char ret_reason[GMS_QUIESCENCE_REASON_BYTES])
{
    (void)context;
    if (cohort->pidfd >= 0 && !gms_pidfd_ended(cohort->pidfd)) {
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "its process %d has not ended",
                 (int)gms_pidfd_pid(cohort->pidfd));
        return GMS_RECLAIM_NOT_YET;
    }
    for (size_t i = 0; i < cohort->memory_count; i++)
        if (gms_loan_is_out(cohort->loans[i], cohort->incarnation)) {
            snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES,
                     "somebody still has a descriptor or a mapping of the memory that was lent to it");
            return GMS_RECLAIM_NOT_YET;
        }
    if (gms_cohort_holder(cohort, ret_reason) != 0)
        return GMS_RECLAIM_NOT_YET;
    snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES,
             "the memory that was lent to it is back, and no process but the living holds it");
    return GMS_RECLAIM_QUIET;
}

const struct gms_quiescence_provider gms_quiescence_procmap = {
    .name = "procmap", .memory = "host", .open = open_procmap, .close = close_procmap, .ask = ask};
