/* SPDX-License-Identifier: Apache-2.0
 *
 * A gms-relay beside the deployment of a round, with streams through it, on a thread of their own. For the row that
 * kills the relay: what it had open must break so that a client sees it, and asked again of the next relay be whole.
 */
#ifndef GMS_DRILL_RELAYED_H
#define GMS_DRILL_RELAYED_H

#include "deployment.h"
#include "requests.h"

struct drill_relayed;

enum { DRILL_RELAYED_STREAMS = 4 };

/* Starts the relay, asks some of the requests through it undisturbed (the control), then again and goes on in the
 * background. Returns once every one of them is in the middle of its answer. `meanwhile` is called again and again
 * while this module waits, here and later. Errors: as relay_program_start; UNSUPPORTED (the engine cannot be asked
 * through a relay), TIMEOUT, REFUSED (a request failed). Freed by drill_relayed_close in any case. */
gms_status drill_relayed_open(struct drill_deployment *deployment, const struct drill_requests *requests,
                              void (*meanwhile)(void *context), void *context, struct drill_relayed **ret_relayed,
                              struct gms_error *ret_error);
/* After the relay was killed: waits until every stream has ended, and none as if it were whole; starts the relay again
 * and asks again. Errors: MISMATCH (a stream seemed whole), as above. */
gms_status drill_relayed_again(struct drill_relayed *relayed, struct gms_error *ret_error);
/* Waits until all have their answers. Errors: MISMATCH (one differs from its control), REFUSED (one failed), TIMEOUT.
 */
gms_status drill_relayed_finish(struct drill_relayed *relayed, struct gms_error *ret_error);
/* Of what was in the middle when the relay died, for the report. */
uint32_t drill_relayed_broken(const struct drill_relayed *relayed);
void drill_relayed_close(struct drill_relayed *relayed); /* ends the relay; NULL allowed */

#endif
