/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's life with libgms, in the order of gms/engine.h. Each function returns 0 or an exit status after it has
 * told the reason. All ranks call the same ones in the same order.
 */
#ifndef MINILLM_LIFE_H
#define MINILLM_LIFE_H

#include "engine.h"

/* Opens, joins, attaches both pools, publishes the weights if this engine is to. Fills weights, kv, ids. */
int life_begin(struct engine *engine);
/* Parks and blocks until this engine is chosen; then adopts, and fills `prefix` on rank 0. */
int life_take_over(struct engine *engine);
/* Declares this rank serving. */
int life_serve(struct engine *engine, const char *endpoint);
/* How much there is to do; 0: idle. */
void life_work(struct engine *engine, uint32_t requests);
/* Something arrived from the coordinator. 0: go on. */
int life_event(struct engine *engine);
/* An operator wants it out of service (gms-ctl park). */
bool life_asked_to_park(const struct engine *engine);
int life_event_fd(const struct engine *engine); /* -1: none */
void life_end(struct engine *engine);

#endif
