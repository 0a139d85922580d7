/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines without this project: one that is started again when it has died, or a loaded standby that looks at a file
 * lock every 100 ms. The same program, load and fault as everywhere else in a drill; clients come again to one address.
 */
#ifndef GMS_DRILL_PLAIN_H
#define GMS_DRILL_PLAIN_H

#include "campaign.h"
#include "requests.h"

enum drill_plain { DRILL_PLAIN_LOCK, DRILL_PLAIN_COLD };

/* Kills a rank of the serving engine plan->repeat times under load, in `dir` (made), and fills ret_side in; what went
 * wrong is its failure. Everything that it started has ended when it returns, and everything else of the drill's too.
 */
void drill_plain_run(enum drill_plain kind, const struct drill_requests *requests, const struct drill_control *control,
                     const char *dir, uint64_t seed, struct drill_side *ret_side);

/* Adds what a stream of `side` shows: its gap over failovers, what it had to compute again, whether it is its control's
 * equal. */
void drill_side_add(struct drill_side *side, const struct drill_stream *stream, const struct drill_stream *control);

#endif
