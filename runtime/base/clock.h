/* SPDX-License-Identifier: Apache-2.0
 * Monotonic time only; wall time appears in log lines and reports and decides nothing (V40). */
#ifndef GMS_BASE_CLOCK_H
#define GMS_BASE_CLOCK_H

#include <stdint.h>

#define GMS_NS_PER_MS UINT64_C(1000000)
#define GMS_NS_PER_S  UINT64_C(1000000000)

uint64_t gms_clock_ns(void); /* CLOCK_MONOTONIC */
/* Milliseconds left until `deadline_ns` for poll(2): rounded up, 0 when passed, at most INT_MAX; UINT64_MAX -> -1. */
int gms_clock_poll_ms(uint64_t deadline_ns);

#endif
