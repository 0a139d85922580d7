/* SPDX-License-Identifier: Apache-2.0
 *
 * MASTER_PORT of engine starts: rank 0 gives each start (named by a key) a port of its own, the others learn it. A port
 * is given when nothing is bound to it on this host, and not again before all others of the range had their turn. It is
 * not held: between here and the engine's own bind somebody else may take it, and the engine then says so.
 * Main thread only.
 */
#ifndef GMS_COORD_PORTS_H
#define GMS_COORD_PORTS_H

#include <stdint.h>

#include "gms/status.h"

enum { GMS_PORTS_REMEMBERED = 64 };

struct gms_ports {
    uint32_t first, count, next;
    struct {
        uint64_t key; /* 0: free */
        uint32_t port;
    } known[GMS_PORTS_REMEMBERED];
    uint32_t oldest;
};

void gms_ports_init(struct gms_ports *ports, uint32_t first, uint32_t count);
/* 0: not known here (any more). */
uint32_t gms_ports_find(const struct gms_ports *ports, uint64_t key);
void gms_ports_learn(struct gms_ports *ports, uint64_t key, uint32_t port);
/* Rank 0: the start's port, the same one each time it is asked. Errors: BUSY (all of the range are in use: the range).
 */
gms_status gms_ports_give(struct gms_ports *ports, uint64_t key, uint32_t *ret_port, struct gms_error *ret_error);

#endif
