/* SPDX-License-Identifier: Apache-2.0
 *
 * The policy process-death-timeout. It proves nothing: a killed process's GPU work may outlive it by seconds where a
 * child kept the driver's files open. So it is opt-in, refused under MPS, and whatever it returns is reported as best
 * effort. Every process of the container must be found dead twice, one grace apart, counted from the last death.
 */
#include "quiescence/quiescence.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

enum { NOTES = 32 };

struct death {
    uint64_t grace_ns;
    struct note {
        uint64_t incarnation; /* 0: free */
        uint64_t dead_ns;     /* when it was first found dead; 0: it was not */
        bool mps;
    } notes[NOTES];
};

static struct note *note_of(struct death *death, uint64_t incarnation)
{
    struct note *free_note = NULL;
    for (size_t i = 0; i < NOTES; i++) {
        if (death->notes[i].incarnation == incarnation)
            return &death->notes[i];
        if (death->notes[i].incarnation == 0 && free_note == NULL)
            free_note = &death->notes[i];
    }
    if (free_note != NULL)
        free_note->incarnation = incarnation;
    return free_note;
}

static gms_status open_death(const struct gms_quiescence_options *options, void **ret_context,
                             struct gms_error *ret_error)
{
    struct death *death = calloc(1, sizeof *death);
    if (death == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the policy process-death-timeout");
    death->grace_ns = options->grace_ns;
    *ret_context = death;
    return GMS_OK;
}

static void close_death(void *context)
{
    free(context);
}

static void witness(void *context, const struct gms_cohort *cohort)
{
    char reason[GMS_QUIESCENCE_REASON_BYTES];
    struct note *note = note_of(context, cohort->incarnation);
    if (note != NULL && gms_mps_in_use(cohort->pidfd, reason))
        note->mps = true;
}

static enum gms_reclaim_answer ask(void *context, const struct gms_cohort *cohort,
                                   char ret_reason[GMS_QUIESCENCE_REASON_BYTES])
{
    struct death *death = context;
    struct note *note = note_of(death, cohort->incarnation);
    const uint64_t now_ns = gms_clock_ns();
    bool never = false;
    if (note == NULL) {
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "%d suspects are waited for already", NOTES);
        return GMS_RECLAIM_NOT_YET;
    }
    if (note->mps || gms_mps_in_use(-1, ret_reason)) {
        if (note->mps)
            snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "CUDA MPS was in use while it lived");
        return GMS_RECLAIM_CANNOT_KNOW; /* under MPS no death says anything about the GPU (V33) */
    }
    if (!gms_cohort_ended(cohort, &never, ret_reason)) {
        note->dead_ns = 0; /* the last death is still to come */
        return never ? GMS_RECLAIM_CANNOT_KNOW : GMS_RECLAIM_NOT_YET;
    }
    if (gms_cohort_holder(cohort, ret_reason) != 0) {
        note->dead_ns = 0;
        return GMS_RECLAIM_NOT_YET;
    }
    if (note->dead_ns == 0)
        note->dead_ns = now_ns;
    if (now_ns - note->dead_ns < death->grace_ns || death->grace_ns == 0) {
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES,
                 "found dead %" PRIu64 " ms ago; looked at again after %" PRIu64 " ms",
                 (now_ns - note->dead_ns) / GMS_NS_PER_MS, death->grace_ns / GMS_NS_PER_MS);
        return GMS_RECLAIM_NOT_YET;
    }
    snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES,
             "found dead twice, %" PRIu64 " ms apart; that proves nothing about "
             "a device",
             (now_ns - note->dead_ns) / GMS_NS_PER_MS);
    return GMS_RECLAIM_BEST_EFFORT;
}

static void forget(void *context, uint64_t incarnation)
{
    struct death *death = context;
    for (size_t i = 0; i < NOTES; i++)
        if (death->notes[i].incarnation == incarnation)
            death->notes[i] = (struct note){0};
}

const struct gms_quiescence_provider gms_quiescence_process_death = {.name = "process-death",
                                                                     .open = open_death,
                                                                     .close = close_death,
                                                                     .witness = witness,
                                                                     .ask = ask,
                                                                     .forget = forget};
