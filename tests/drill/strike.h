/* SPDX-License-Identifier: Apache-2.0
 *
 * Carries out the strikes of a catalogue row. Only processes that descend from the drill are signalled, by pidfd.
 */
#ifndef GMS_DRILL_STRIKE_H
#define GMS_DRILL_STRIKE_H

#include "catalogue.h"
#include "deployment.h"
#include "measure.h"

/* What a row needs that this place or this engine does not have: then the row is skipped, not failed. */
struct drill_missing {
    char text[240]; /* "": nothing */
};

/*
 * Strikes at what row `fault` names, in order and without a pause between victims that are already found. `rank` is the
 * one that is meant where one of several is. Notes in *seen the moment just before the first signal, the ranks' pids
 * and which engine ranks are killed. Errors: NOT_FOUND (a victim has ended before, or is not known now), REFUSED (it
 * does not descend from the drill).
 */
gms_status drill_strike(const struct drill_fault *fault, uint32_t rank, struct drill_deployment *deployment,
                        struct drill_observation *seen, struct gms_error *ret_error);

#endif
