/* SPDX-License-Identifier: Apache-2.0
 *
 * The deployment file that a drill runs: the plan's, or the built-in one, with this drill's run directory, ranks,
 * verification and limits in it.
 */
#ifndef GMS_DRILL_DEPLOYMENT_FILE_H
#define GMS_DRILL_DEPLOYMENT_FILE_H

#include "deployment.h"

/* Writes deployment->config, and takes from it the engine's command (owned by *deployment) and what the drill judges
 * by. `word` tells two deployments of one drill apart. Errors: CONFIG (file and line), INVALID (the command),
 * NO_MEMORY. */
gms_status drill_deployment_write_file(struct drill_deployment *deployment, const char *word,
                                       struct gms_error *ret_error);

#endif
