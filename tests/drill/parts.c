/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "wire/channel.h"

enum { CONNECT_MS = 100 };

pid_t drill_parts_keeper(const struct drill_deployment *deployment)
{
    char path[GMS_RUN_PATH_BYTES];
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    int fd = -1;
    if (gms_run_dir_path(deployment->run_dir, "keeper", -1, path, NULL) != GMS_OK ||
        gms_channel_connect(path, CONNECT_MS, &fd, NULL) != GMS_OK)
        return 0;
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
    gms_fd_close(&fd);
    return peer.pid;
}

pid_t drill_parts_coordinator_launcher(const struct drill_deployment *deployment)
{
    char path[DRILL_PATH_BYTES + 16], text[64] = "";
    snprintf(path, sizeof path, "%.480s/up.job", deployment->run_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    gms_fd_close(&fd);
    return length > 0 ? (pid_t)strtol(text, NULL, 10) : 0;
}

static struct drill_process *named(struct drill_deployment *deployment, const char *name)
{
    for (size_t i = 0; i < deployment->processes.count; i++)
        if (strcmp(deployment->processes.items[i].name, name) == 0)
            return &deployment->processes.items[i];
    return NULL;
}

struct drill_process *drill_parts_up(struct drill_deployment *deployment)
{
    return named(deployment, "gms-up");
}

struct drill_process *drill_parts_relay(struct drill_deployment *deployment)
{
    return named(deployment, "relay");
}

bool drill_parts_whole(struct drill_deployment *deployment, uint64_t former_world, uint32_t serving, int within_ms,
                       const char **ret_missing)
{
    struct gms_error error;
    const struct drill_status *all = deployment->status;
    *ret_missing = "a rank does not answer";
    if (drill_status_fetch_all(deployment->run_dir, deployment->ranks,
                               gms_clock_ns() + (uint64_t)within_ms * GMS_NS_PER_MS, deployment->status,
                               &error) != GMS_OK)
        return false;
    *ret_missing = "the ranks do not agree";
    if (drill_status_agree(all, deployment->ranks, &error) != GMS_OK)
        return false;
    *ret_missing = "the old world still answers";
    if (all[0].world <= former_world)
        return false;
    for (uint32_t rank = 0; rank < deployment->ranks; rank++) {
        *ret_missing = "a rank has no keeper";
        if (!all[rank].keeper)
            return false;
        uint32_t engines = 0;
        for (uint32_t engine = 0; engine < DRILL_MAX_ENGINES; engine++) {
            if (!deployment->engines[engine].started)
                continue;
            engines++;
            const struct drill_status_engine *one = drill_status_engine(&all[rank], engine);
            *ret_missing = engine == serving ? "the serving engine is not attached" : "a parked engine is not attached";
            if (one == NULL || !one->connected || strcmp(one->role, engine == serving ? "serving" : "parked") != 0)
                return false;
        }
        *ret_missing = "a gms-exec is not attached";
        if (all[rank].copy_holders < engines)
            return false;
    }
    *ret_missing = "";
    return true;
}
