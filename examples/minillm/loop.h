/* SPDX-License-Identifier: Apache-2.0
 *
 * Serving: rank 0 plans, broadcasts and samples; the others follow. Idle ranks sleep.
 */
#ifndef MINILLM_LOOP_H
#define MINILLM_LOOP_H

#include "engine.h"

/* Largest number of rows of one step, for model_open. */
uint32_t loop_max_rows(const struct engine_options *options);

/* Serves until rank 0 is asked to end. The exit status of this rank. */
int loop_serve(struct engine *engine);

#endif
