/* SPDX-License-Identifier: Apache-2.0
 * gms-relay beside a drill's deployment. */
#ifndef GMS_DRILL_RELAY_PROGRAM_H
#define GMS_DRILL_RELAY_PROGRAM_H

#include "deployment.h"

/* Starts gms-relay (again: one that has ended makes room) on a free port of loopback and waits until it listens. Its
 * end is the deployment's, see drill_deployment_stop. Errors: as drill_process_start; TIMEOUT, DISCONNECTED. */
gms_status relay_program_start(struct drill_deployment *deployment, struct drill_process **ret_process,
                               uint16_t *ret_port, struct gms_error *ret_error);

#endif
