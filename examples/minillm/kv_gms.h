/* SPDX-License-Identifier: Apache-2.0
 *
 * KV slots over a libgms pool.
 */
#ifndef MINILLM_KV_GMS_H
#define MINILLM_KV_GMS_H

#include "kv.h"

#include <gms/engine.h>

/* `session` and `pool` are borrowed and must outlive the store. 0, or -1 when memory is short. */
int kv_gms_open(struct kv_store *store, gms_session *session, gms_pool *pool, const struct kv_geometry *geometry);

#endif
