/* SPDX-License-Identifier: Apache-2.0
 *
 * Load: so many streams open at a time, a new request as soon as one has ended or at a rate, from a list of requests
 * over and over.
 */
#ifndef GMS_DRILL_LOAD_H
#define GMS_DRILL_LOAD_H

#include "requests.h"

struct drill_load {
    const struct drill_requests *requests; /* borrowed */
    uint32_t first;                        /* request that it begins with */
    uint32_t asked;                        /* requests opened so far */
    uint64_t next_ns;                      /* not before this moment, with a rate */
    bool closing;                          /* no new request any more */
    struct drill_streams streams;          /* owned */
};

/* Clients that find their engine through run_dir's serving file. Errors: as drill_streams_open. Closed by
 * drill_load_close in any case. */
gms_status drill_load_open(const struct drill_requests *requests, const char *run_dir, uint32_t first,
                           struct drill_load *ret_load, struct gms_error *ret_error);
void drill_load_close(struct drill_load *load);
/* Opens what is due. Call it before every turn of the streams' loop. */
void drill_load_feed(struct drill_load *load);
/* Adds the request that is timed through a failover, held. NULL: no room. */
struct drill_stream *drill_load_probe(struct drill_load *load);

#endif
