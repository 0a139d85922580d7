/* SPDX-License-Identifier: Apache-2.0
 *
 * One round: one row of the catalogue, carried out under load in a scene, and judged.
 */
#ifndef GMS_DRILL_ROUND_H
#define GMS_DRILL_ROUND_H

#include "catalogue.h"
#include "requests.h"
#include "result.h"
#include "scene.h"

/*
 * The scene must be ready for `fault`. Streams are kept open from the requests, over and over, until the row is over.
 * *ret_result holds measures and failures, the verdict's included. *ret_usable: the scene is whole but for its dead,
 * which are buried; else it must be dropped. `seed` draws rank and moment.
 */
void drill_round_run(struct drill_scene *scene, const struct drill_fault *fault, const struct drill_requests *requests,
                     const struct drill_control *control, uint64_t seed, struct drill_result *ret_result,
                     bool *ret_usable);

#endif
