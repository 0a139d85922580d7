/* SPDX-License-Identifier: Apache-2.0
 * The relay: clients' requests, the engine that serves, and what joins them. Main thread only. */
#ifndef GMS_RELAY_RELAY_H
#define GMS_RELAY_RELAY_H

#include <stdbool.h>

#include "gms-relay/options.h"
#include "gms/status.h"

struct event_base;
struct relay;

/* Errors: those of relay_server_open and relay_follow_open. `options` are borrowed. */
gms_status relay_open(struct event_base *base, const struct relay_options *options, struct relay **ret_relay,
                      struct gms_error *ret_error);
void relay_close(struct relay *relay); /* NULL allowed; streams that run are cut, visibly for their clients */
const char *relay_address(const struct relay *relay);
/* No new requests; *ret_idle of relay_idle tells when those that run have ended. */
void relay_stop(struct relay *relay);
bool relay_idle(const struct relay *relay);

#endif
