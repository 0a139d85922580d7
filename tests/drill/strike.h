/* SPDX-License-Identifier: Apache-2.0
 *
 * Carries out the strikes of a catalogue row. Only processes that descend from the drill are signalled, by pidfd.
 */
#ifndef GMS_DRILL_STRIKE_H
#define GMS_DRILL_STRIKE_H

#include "catalogue.h"
#include "deployment.h"
#include "measure.h"
#include "memory_limit.h"

enum { DRILL_MAX_COHORT = 512 };

/* What a strike leaves behind, until drill_strike_over. */
struct drill_blow {
    char note[160]; /* for the report: what was chosen where there was a choice; "": nothing */
    struct drill_memory_limit memory;
    char ballast[DRILL_PATH_BYTES]; /* file that fills a disk; "": none */
    struct drill_deployment *cut;   /* its link is down; borrowed, NULL: none */
    /* What descended from the ranks of the engine that serves, ranks included, in the moment of the strike. */
    size_t cohort_count;
    int cohort[DRILL_MAX_COHORT]; /* pidfds, owned */
    int32_t cohort_pids[DRILL_MAX_COHORT];
};

/* What row `fault` needs and this place does not have. False: nothing is missing. */
bool drill_strike_missing(const struct drill_fault *fault, const struct drill_plan *plan, char *ret_text, size_t bytes);

/*
 * Strikes `count` times, at once: what an engine does to itself is armed first, then all victims are found, then
 * signalled without a pause. `rank` is meant where one of several is; `endpoint` is where the engine listens that
 * serves. Notes in *seen the moment just before the first signal (0: none was sent), the ranks' pids and which engine
 * ranks are struck. *blow must be zeroed or over. Errors: NOT_FOUND (a victim has ended before, or is not known now),
 * REFUSED (it does not descend from the drill), UNSUPPORTED (the engine does not want to be armed; its answer), SYSTEM.
 */
gms_status drill_strike(const struct drill_strike *strikes, size_t count, uint32_t rank,
                        struct drill_deployment *deployment, const char *endpoint, struct drill_observation *seen,
                        struct drill_blow *blow, struct gms_error *ret_error);
/* A process of the engine's cohort that can still act; 0: all have ended, or are past their last instruction. */
int32_t drill_strike_survivor(const struct drill_blow *blow);
/* Makes room on the disk again, puts the link up again. */
void drill_strike_relent(struct drill_blow *blow);
void drill_strike_over(struct drill_blow *blow);

#endif
