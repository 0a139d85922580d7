/* SPDX-License-Identifier: Apache-2.0
 *
 * Following streams and engines through a failover: what run.c and round.c have in common.
 */
#ifndef GMS_DRILL_FOLLOW_H
#define GMS_DRILL_FOLLOW_H

#include "deployment.h"
#include "measure.h"
#include "streams.h"

/* One turn of the streams' loop, 200 ms at most; notes in *seen (NULL: nobody) which ranks of the engine under fault
 * have ended meanwhile. */
void drill_follow_pump(const struct drill_deployment *deployment, struct drill_streams *streams,
                       struct drill_observation *seen);
/* Does another one serve than `from_incarnation`? Incarnations are numbered as they join, not as they serve. */
bool drill_follow_succeeded(const struct drill_streams *streams, uint64_t from_incarnation);
/* Has every stream that is neither held nor over got its last token from another one than `from_incarnation`? */
bool drill_follow_resumed(const struct drill_streams *streams, uint64_t from_incarnation);
/* Who answers at the endpoint must be who deployment->status says, by the kernel's word; else a failure is added.
 * `number` of the failover, from 1. */
void drill_follow_check(const struct drill_deployment *deployment, const struct drill_streams *streams, uint32_t number,
                        uint64_t incarnation, struct drill_result *result);

/* What the dead might still write comes back when they are known to be quiet: that takes milliseconds, not for ever.
 * Waits ten seconds at most and notes in *result what is left. */
void drill_follow_quiet(struct drill_deployment *deployment, struct drill_result *result);

#endif
