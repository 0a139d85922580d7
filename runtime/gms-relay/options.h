/* SPDX-License-Identifier: Apache-2.0
 * The command line of gms-relay. */
#ifndef GMS_RELAY_OPTIONS_H
#define GMS_RELAY_OPTIONS_H

#include <stdint.h>

#include "base/log.h"
#include "gms-relay/request.h"

/* What the operator vouches for when engines speak the OpenAI protocol: which requests give the same tokens again. */
enum relay_exact { RELAY_EXACT_NONE, RELAY_EXACT_GREEDY, RELAY_EXACT_SEEDED };

struct relay_options {
    const char *run_dir, *host, *port, *model; /* model "": any */
    const char *log_destination;
    enum gms_log_level log_level;
    enum relay_exact exact;
    uint32_t max_connections, max_requests, max_streams, max_tokens;
    uint64_t max_body_bytes, max_unsent_bytes;
    uint64_t head_ns, body_ns, idle_ns, stall_ns, drain_ns;
    struct relay_limits limits;
};

/* Exits with 64 on a mistake, with 0 after --help. Strings are argv's. */
void relay_options_read(int argc, char **argv, struct relay_options *ret_options);

#endif
