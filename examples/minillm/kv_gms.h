/* SPDX-License-Identifier: Apache-2.0
 *
 * KV slots over a libgms pool.
 */
#ifndef MINILLM_KV_GMS_H
#define MINILLM_KV_GMS_H

#include "kv.h"

#include "prefix.h"

#include <gms/engine.h>

/* `session` and `pool` are borrowed and must outlive the store. 0, or -1 when memory is short. */
int kv_gms_open(struct kv_store *store, gms_session *session, gms_pool *pool, const struct kv_geometry *geometry);

/* After adoption: what the predecessor has left of blocks that it had not finished; `ret_tails` is borrowed until the
 * store is closed. Salvage knows these only. -1: memory is short. */
int kv_gms_take_tails(struct kv_store *store, const struct prefix_tail **ret_tails, uint32_t *ret_count);

#endif
