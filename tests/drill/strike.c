/* SPDX-License-Identifier: Apache-2.0 */
#include "strike.h"

#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

enum { MAX_VICTIMS = 2 * DRILL_MAX_RANKS + 4 };

struct victims {
    size_t count;
    int pidfds[MAX_VICTIMS]; /* owned */
};

static gms_status add(struct victims *victims, const char *what, pid_t pid, struct gms_error *ret_error)
{
    if (pid <= 0)
        return gms_fail(ret_error, GMS_E_NOT_FOUND, "%s is not there now", what);
    gms_status status = drill_descendant_open(getpid(), pid, &victims->pidfds[victims->count], ret_error);
    if (status == GMS_OK)
        victims->count++;
    return status;
}

static gms_status find(struct drill_strike strike, uint32_t rank, struct drill_deployment *deployment,
                       struct drill_observation *seen, struct victims *victims, struct gms_error *ret_error)
{
    const struct drill_engine *engine = &deployment->engines[seen->from_engine];
    gms_status status = GMS_OK;
    switch (strike.target) {
    case DRILL_TARGET_ENGINE_RANK:
        seen->killed[rank] = true;
        return add(victims, "the engine's rank", engine->pids[rank], ret_error);
    case DRILL_TARGET_ENGINE_ALL:
        for (uint32_t i = 0; i < deployment->ranks && status == GMS_OK; i++) {
            seen->killed[i] = true;
            status = add(victims, "a rank of the engine", engine->pids[i], ret_error);
        }
        return status;
    case DRILL_TARGET_ENGINE_LAUNCHER:
        return add(victims, "the engine's launcher", engine->launcher != NULL ? engine->launcher->pid : 0, ret_error);
    case DRILL_TARGET_NONE:
    case DRILL_TARGET_COUNT:
        break;
    }
    return status;
}

gms_status drill_strike(const struct drill_fault *fault, uint32_t rank, struct drill_deployment *deployment,
                        struct drill_observation *seen, struct gms_error *ret_error)
{
    struct victims victims = {0};
    gms_status status = GMS_OK;
    for (uint32_t i = 0; i < deployment->ranks; i++)
        seen->pids[i] = deployment->engines[seen->from_engine].pids[i];
    for (int i = 0; i < DRILL_STRIKES && status == GMS_OK; i++)
        if (fault->strikes[i].target != DRILL_TARGET_NONE)
            status = find(fault->strikes[i], rank, deployment, seen, &victims, ret_error);
    if (status == GMS_OK)
        seen->signal_ns = gms_clock_ns();
    for (size_t i = 0; i < victims.count; i++) {
        if (status == GMS_OK)
            gms_pidfd_signal(victims.pidfds[i], SIGKILL);
        gms_fd_close(&victims.pidfds[i]);
    }
    return status;
}
