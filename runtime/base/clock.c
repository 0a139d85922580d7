/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <limits.h>
#include <time.h>

uint64_t gms_clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock and a valid pointer */
    return (uint64_t)now.tv_sec * GMS_NS_PER_S + (uint64_t)now.tv_nsec;
}

int gms_clock_poll_ms(uint64_t deadline_ns)
{
    if (deadline_ns == UINT64_MAX) {
        return -1;
    }
    const uint64_t now_ns = gms_clock_ns();
    if (deadline_ns <= now_ns) {
        return 0;
    }
    const uint64_t left_ms = (deadline_ns - now_ns - 1) / GMS_NS_PER_MS + 1;
    return left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}
