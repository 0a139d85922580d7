/* SPDX-License-Identifier: Apache-2.0 */
#include "fault.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"

enum { ARM_TIMEOUT_MS = 5000, ANSWER_BYTES = 4096 };

static gms_status arm(const struct drill_plan *plan, const char *endpoint, struct gms_error *ret_error)
{
    /* The second pass through a phase: the first may be over before the armed rank hears of it. A prefill happens once
     * for each request that the drill starts, so there it is the next one. */
    enum drill_when when = plan->when == DRILL_WHEN_ANY ? DRILL_WHEN_DECODE : plan->when;
    char rank[16], line[160], answer[ANSWER_BYTES];
    snprintf(rank, sizeof rank, plan->rank == DRILL_RANK_ALL ? "\"all\"" : "%d", plan->rank);
    snprintf(line, sizeof line, "{\"op\":\"arm\",\"rank\":%s,\"at\":\"%s\",\"after\":%d}\n", rank,
             drill_when_name(when), when == DRILL_WHEN_PREFILL ? 1 : 2);
    gms_status status = drill_endpoint_ask(endpoint, line, gms_clock_ns() + ARM_TIMEOUT_MS * GMS_NS_PER_MS, answer,
                                           sizeof answer, ret_error);
    if (status == GMS_OK && strstr(answer, "\"armed\":true") == NULL && strstr(answer, "\"armed\": true") == NULL)
        status = gms_fail(ret_error, GMS_E_REFUSED, "rank %s was not armed; the engine says: %.200s", rank, answer);
    return status;
}

gms_status drill_fault_make(const struct drill_plan *plan, const struct drill_deployment *deployment,
                            const char *endpoint, struct drill_observation *observation, struct gms_error *ret_error)
{
    const struct drill_engine *engine = &deployment->engines[observation->from_engine];
    for (uint32_t rank = 0; rank < deployment->ranks; rank++) {
        observation->pids[rank] = engine->pids[rank];
        memcpy(observation->containment[rank], engine->containment[rank], sizeof observation->containment[rank]);
        observation->killed[rank] = plan->rank == DRILL_RANK_ALL || (uint32_t)plan->rank == rank;
        if (observation->killed[rank] && (engine->pidfds[rank] < 0 || gms_pidfd_ended(engine->pidfds[rank])))
            return gms_fail(ret_error, GMS_E_NOT_FOUND, "rank %u of engine %d had ended before the drill killed it",
                            rank, observation->from_engine);
    }
    if (drill_plan_armed(plan))
        return arm(plan, endpoint, ret_error);
    observation->signal_ns = gms_clock_ns();
    for (uint32_t rank = 0; rank < deployment->ranks; rank++)
        if (observation->killed[rank])
            gms_pidfd_signal(engine->pidfds[rank], SIGKILL);
    return GMS_OK;
}
