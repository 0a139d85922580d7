/* SPDX-License-Identifier: Apache-2.0
 *
 * The fault: SIGKILL to ranks of the serving engine, from outside by pidfd, or by the engine's own hand in the middle
 * of a named phase.
 */
#ifndef GMS_DRILL_FAULT_H
#define GMS_DRILL_FAULT_H

#include "deployment.h"
#include "measure.h"

/*
 * Makes (pidfd) or arms (own hand) the fault in engine `observation->from_engine`, and notes in *observation which
 * ranks are killed and when the signal was sent. `endpoint` is where the engine listens. Errors: NOT_FOUND (a rank has
 * ended before), REFUSED (the engine does not want to be armed; its answer), TIMEOUT, DISCONNECTED.
 */
gms_status drill_fault_make(const struct drill_plan *plan, const struct drill_deployment *deployment,
                            const char *endpoint, struct drill_observation *observation, struct gms_error *ret_error);

#endif
