/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/earlier.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "gms/version.h"
#include "wire/channel.h"

enum { NAMES_BYTES = 1 << 20, ANSWER_SECONDS = 5 };

/* Says hello as gms-ctl would. Whatever comes back, somebody is there. */
static bool answers(int fd, uint32_t rank, void *buffer)
{
    uint64_t deadline_ns = gms_clock_ns() + ANSWER_SECONDS * GMS_NS_PER_S;
    struct gms_message hello = {.type = GMS_MESSAGE_HELLO, .request_id = 1, .fd_count = 1}, answer;
    int own = -1;
    if (gms_pidfd_open(getpid(), &own, NULL) != GMS_OK)
        return false;
    hello.hello.role = GMS_CLIENT_CONTROL;
    hello.hello.pid = (uint32_t)getpid();
    hello.hello.rank = rank;
    hello.hello.launch = (struct gms_bytes){"", 0};
    hello.hello.version = (struct gms_bytes){GMS_VERSION, sizeof GMS_VERSION - 1};
    hello.fds[0] = own;
    gms_status status = gms_channel_send_until(fd, &hello, deadline_ns, NULL);
    if (status == GMS_OK)
        status = gms_channel_receive_until(fd, buffer, deadline_ns, &answer, NULL);
    if (status == GMS_OK)
        gms_message_close_fds(&answer);
    gms_fd_close(&own);
    return status == GMS_OK;
}

gms_status gms_earlier_coordinator(const char *run_dir, uint32_t rank, struct gms_error *ret_error)
{
    char path[GMS_RUN_PATH_BYTES];
    int fd = -1;
    gms_status status = gms_run_dir_path(run_dir, "c", (int32_t)rank, path, ret_error);
    if (status != GMS_OK)
        return status;
    if (gms_channel_connect(path, ANSWER_SECONDS * 1000, &fd, NULL) != GMS_OK)
        return GMS_OK; /* nobody there */
    void *buffer = malloc(GMS_WIRE_MAX_BYTES);
    if (buffer == NULL) {
        status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a message");
    } else if (answers(fd, rank, buffer)) {
        struct ucred owner = {0};
        socklen_t bytes = sizeof owner;
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &bytes);
        status =
            gms_fail(ret_error, GMS_E_FOREIGN_WORLD,
                     "a coordinator job runs in %.200s: process %d answers as rank %u. Nothing was changed. Stop it "
                     "first (gms-ctl --run-dir %.200s down), or start with --replace",
                     run_dir, (int)owner.pid, rank, run_dir);
    }
    free(buffer);
    gms_fd_close(&fd);
    return status;
}

typedef gms_status (*visitor)(struct gms_keeper_client *keeper, const char *name, struct gms_error *ret_error);

static gms_status for_each(struct gms_keeper_client *keeper, const char *prefix, visitor visit,
                           struct gms_error *ret_error)
{
    char *names = malloc(NAMES_BYTES);
    uint32_t bytes = 0;
    if (names == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the keeper's names");
    gms_status status = gms_keeper_list(keeper, prefix, names, NAMES_BYTES, &bytes, ret_error);
    for (const char *name = names; status == GMS_OK && name < names + bytes; name += strlen(name) + 1)
        status = visit(keeper, name, ret_error);
    free(names);
    return status;
}

static gms_status refuse_living(struct gms_keeper_client *keeper, const char *name, struct gms_error *ret_error)
{
    char meta[GMS_KEEPER_META_BYTES];
    uint32_t meta_bytes = sizeof meta;
    int pidfd = -1;
    gms_status status = gms_keeper_get(keeper, name, &pidfd, meta, &meta_bytes, ret_error);
    if (status == GMS_E_NOT_FOUND)
        return GMS_OK; /* another rank's start has dropped it */
    if (status == GMS_OK && !gms_pidfd_ended(pidfd))
        status = gms_fail(ret_error, GMS_E_IN_DOUBT,
                          "--fresh: an engine rank of the earlier start still runs: process %d, %s (incarnation/rank). "
                          "It may be serving. End every engine (SIGUSR1 or SIGTERM to its launcher), then start again",
                          (int)gms_pidfd_pid(pidfd), name);
    gms_fd_close(&pidfd);
    return status;
}

static gms_status drop_own(struct gms_keeper_client *keeper, const char *name, struct gms_error *ret_error)
{
    char own[16];
    const char *rank = strrchr(name, '/');
    snprintf(own, sizeof own, "/%u", keeper->rank);
    if (rank == NULL || strcmp(rank, own) != 0)
        return GMS_OK;
    gms_status status = gms_keeper_drop(keeper, name, ret_error);
    return status == GMS_E_NOT_FOUND ? GMS_OK : status;
}

gms_status gms_earlier_engines(struct gms_keeper_client *keeper, struct gms_error *ret_error)
{
    return for_each(keeper, "session/", refuse_living, ret_error);
}

gms_status gms_earlier_give_up(struct gms_keeper_client *keeper, const char *run_dir, struct gms_error *ret_error)
{
    char path[GMS_RUN_PATH_BYTES];
    gms_status status = for_each(keeper, "", drop_own, ret_error); /* whatever kinds there are, and will be */
    if (status == GMS_OK && keeper->rank == 0)
        status = gms_run_dir_path(run_dir, "serving", -1, path, ret_error);
    if (status == GMS_OK && keeper->rank == 0 && unlink(path) != 0 && errno != ENOENT)
        status = gms_fail(ret_error, GMS_E_SYSTEM, "%s cannot be removed: %s", path, strerror(errno));
    return status;
}
