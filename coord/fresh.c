/* SPDX-License-Identifier: Apache-2.0 */
#include "fresh.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/run_dir.h"

enum { NAMES_BYTES = 1 << 20 };

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

gms_status gms_fresh_check(struct gms_keeper_client *keeper, struct gms_error *ret_error)
{
    return for_each(keeper, "session/", refuse_living, ret_error);
}

gms_status gms_fresh_clear(struct gms_keeper_client *keeper, const char *run_dir, struct gms_error *ret_error)
{
    static const char *const prefixes[] = {"directory/", "pool/", "session/"};
    char path[GMS_RUN_PATH_BYTES];
    gms_status status = GMS_OK;
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0] && status == GMS_OK; i++)
        status = for_each(keeper, prefixes[i], drop_own, ret_error);
    if (status == GMS_OK && keeper->rank == 0)
        status = gms_run_dir_path(run_dir, "serving", -1, path, ret_error);
    if (status == GMS_OK && keeper->rank == 0 && unlink(path) != 0 && errno != ENOENT)
        status = gms_fail(ret_error, GMS_E_SYSTEM, "%s cannot be removed: %s", path, strerror(errno));
    return status;
}
