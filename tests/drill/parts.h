/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a deployment under gms-up, as processes to be struck, and whether they are all there again.
 */
#ifndef GMS_DRILL_PARTS_H
#define GMS_DRILL_PARTS_H

#include "deployment.h"

/* 0: not there, or not known now. */
pid_t drill_parts_keeper(const struct drill_deployment *deployment);
pid_t drill_parts_coordinator_launcher(const struct drill_deployment *deployment);
/* gms-up itself, NULL: this deployment has none that the drill started. */
struct drill_process *drill_parts_up(struct drill_deployment *deployment);
/* gms-relay, NULL: none was started. */
struct drill_process *drill_parts_relay(struct drill_deployment *deployment);

/*
 * Is the group whole: every rank answers in a world later than `former_world` (0: in any) and has a keeper, all agree,
 * every engine that the drill has started is attached, and `serving` serves? Asks for `within_ms` at most and leaves
 * the ranks' status in deployment->status. *ret_missing says what is not there ("": nothing).
 */
bool drill_parts_whole(struct drill_deployment *deployment, uint64_t former_world, uint32_t serving, int within_ms,
                       const char **ret_missing);

#endif
