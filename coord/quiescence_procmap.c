/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory. Who stores into it has it mapped or, through a system call that is under way, in its hands: a cohort
 * whose container has ended does neither. To whom it may have handed the memory on is looked for in /proc. A descriptor
 * that lies in a socket is invisible there, so a container must have ended first: what its own sockets held is gone
 * with them. What it sent to a stranger who has not read it yet stays invisible; engines have no business doing that.
 */
#include "quiescence.h"

#include <stdio.h>

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
    bool never = false;
    (void)context;
    if (!gms_cohort_ended(cohort, &never, ret_reason))
        return never ? GMS_RECLAIM_CANNOT_KNOW : GMS_RECLAIM_NOT_YET;
    if (gms_cohort_holder(cohort, ret_reason) != 0)
        return GMS_RECLAIM_NOT_YET;
    snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES,
             "its container has ended, and no process but the living holds the memory");
    return GMS_RECLAIM_QUIET;
}

const struct gms_quiescence_provider gms_quiescence_procmap = {
    .name = "procmap", .memory = "host", .open = open_procmap, .close = close_procmap, .ask = ask};
