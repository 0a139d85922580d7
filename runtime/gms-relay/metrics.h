/* SPDX-License-Identifier: Apache-2.0
 * Counters of the relay, and their Prometheus text (format 0.0.4). */
#ifndef GMS_RELAY_METRICS_H
#define GMS_RELAY_METRICS_H

#include <stdint.h>

#include "gms-relay/text.h"

enum relay_outcome {
    RELAY_OUTCOME_DONE,
    RELAY_OUTCOME_FAILED,
    RELAY_OUTCOME_REFUSED,
    RELAY_OUTCOME_GONE,
    RELAY_OUTCOME_COUNT
};

enum { RELAY_GAP_BUCKETS = 12 };

struct relay_metrics {
    uint64_t requests[2][RELAY_OUTCOME_COUNT]; /* completions, chat */
    uint64_t tokens, resumes, crashes, crash_failures, unavailable;
    uint64_t gap_counts[RELAY_GAP_BUCKETS + 1], gap_sum_ns; /* from a crash to the next token of a resumed stream */
    uint64_t takeovers;
};

/* Gauges as they are now. */
struct relay_gauges {
    uint32_t waiting, running, connections;
    int engine, coordinator;
    uint64_t epoch, accepted, turned_away, bad_requests, timeouts, stalled;
};

void relay_metrics_gap(struct relay_metrics *metrics, uint64_t gap_ns);
void relay_metrics_write(const struct relay_metrics *metrics, const struct relay_gauges *gauges,
                         struct relay_text *out);

#endif
