/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/inherit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "config/environment.h"
#include "config/environment_difference.h"

extern char **environ;

struct start {
    struct gms_round *round;
    const struct gms_config *config;
    const struct gms_daemon_place *place;
    uint32_t rank;
    char *inherited;
    size_t inherited_bytes;
};

/* Every unknown GMS_ name once, for whoever mistyped one. */
static void name_unknown(const struct start *start)
{
    for (size_t at = 0; at < start->inherited_bytes; at += strlen(start->inherited + at) + 1) {
        size_t bytes = strcspn(start->inherited + at, "=");
        if (gms_environment_is_unknown(start->inherited + at, bytes))
            gms_log(GMS_LOG_NOTICE, "%.*s is handed on to all engine ranks; no program of gms-failover reads it",
                    (int)bytes, start->inherited + at);
    }
}

/* Do the variables of every engine fit? */
static gms_status try_environment(struct start *start, struct gms_error *ret_error)
{
    struct gms_environment_place place = {.rank = start->rank,
                                          .ranks = start->config->ranks,
                                          .local_rank = start->place->local_rank,
                                          .local_ranks = start->place->local_ranks,
                                          .port = UINT16_MAX,
                                          .host = start->place->host,
                                          .address = start->place->address,
                                          .master_address = start->place->master_address};
    char *variables = malloc(GMS_ENVIRONMENT_BYTES);
    gms_status status = GMS_OK;
    size_t bytes;
    if (variables == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for %d bytes", GMS_ENVIRONMENT_BYTES);
    for (place.engine = 0; status == GMS_OK && place.engine < GMS_MAX_ENGINES; place.engine++)
        status = gms_environment_render(start->config, start->inherited, start->inherited_bytes, &place, variables,
                                        GMS_ENVIRONMENT_BYTES, &bytes, ret_error);
    free(variables);
    return status;
}

/* Behind the variables, for the comparison only: one name may lead to two files (mounts). Numbers of files mean
 * something only within a host. */
static gms_status add_lock_file(const struct start *start, char *own, size_t *inout_bytes, struct gms_error *ret_error)
{
    static const char name[] = "FAILOVER_LOCK_PATH=";
    char file[80], entry[128];
    for (size_t at = 0; at < *inout_bytes; at += strlen(own + at) + 1) {
        if (strncmp(own + at, name, sizeof name - 1) != 0 || start->place->local_ranks != start->config->ranks)
            continue;
        gms_file_describe(own + at + sizeof name - 1, file, sizeof file);
        size_t bytes = (size_t)snprintf(entry, sizeof entry, "(file of FAILOVER_LOCK_PATH)=%s", file) + 1;
        if (bytes > GMS_ENVIRONMENT_INHERITED_BYTES - *inout_bytes)
            return gms_fail(ret_error, GMS_E_CONFIG,
                            "GMS_ variables of this process leave no room, the limit is %d bytes",
                            GMS_ENVIRONMENT_INHERITED_BYTES);
        memcpy(own + *inout_bytes, entry, bytes);
        *inout_bytes += bytes;
        break;
    }
    return GMS_OK;
}

/* This rank's own against rank 0's: any difference stops the start. */
static gms_status compare_environment(struct start *start, const char *own, size_t own_bytes, size_t first_bytes,
                                      struct gms_error *ret_error)
{
    char text[GMS_ERROR_TEXT_BYTES - 240];
    const struct gms_environment_list first = {start->inherited, first_bytes, 0};
    const struct gms_environment_list mine = {own, own_bytes, start->rank};
    if (gms_environment_difference(&first, &mine, text, sizeof text) > 0)
        return gms_fail(ret_error, GMS_E_MISMATCH,
                        "the coordinators were started with different variables: %s. Launchers forward what they like "
                        "(mpirun -x NAME, srun --export=ALL): forward it, set it in the deployment file, or name what "
                        "is forwarded in environment.rename",
                        text);
    return try_environment(start, ret_error);
}

static gms_status agree_on_environment(struct start *start, struct gms_error *ret_error)
{
    struct gms_error mine = {.status = GMS_OK};
    char *own = malloc(GMS_ENVIRONMENT_INHERITED_BYTES);
    size_t own_bytes = 0, compared_bytes;
    uint64_t bytes[2]; /* rank 0's variables; with what is only compared */
    start->inherited = malloc(GMS_ENVIRONMENT_INHERITED_BYTES);
    mine.status =
        own == NULL || start->inherited == NULL
            ? gms_fail(&mine, GMS_E_NO_MEMORY, "no memory for %d bytes", GMS_ENVIRONMENT_INHERITED_BYTES)
            : gms_environment_inherit(environ, start->config, own, GMS_ENVIRONMENT_INHERITED_BYTES, &own_bytes, &mine);
    compared_bytes = own_bytes;
    if (mine.status == GMS_OK)
        mine.status = add_lock_file(start, own, &compared_bytes, &mine);
    gms_status status = gms_round_concur(start->round, &mine, ret_error);
    if (status == GMS_OK && start->rank == 0)
        memcpy(start->inherited, own, compared_bytes);
    bytes[0] = own_bytes;
    bytes[1] = compared_bytes;
    if (status == GMS_OK)
        status = gms_round_share(start->round, bytes, sizeof bytes, ret_error);
    if (status == GMS_OK)
        status = gms_round_share(start->round, start->inherited, bytes[1], ret_error);
    if (status == GMS_OK) {
        start->inherited_bytes = bytes[0];
        mine.status = compare_environment(start, own, compared_bytes, bytes[1], &mine);
        status = gms_round_concur(start->round, &mine, ret_error);
    }
    if (status == GMS_OK && start->rank == 0)
        name_unknown(start);
    free(own);
    return status;
}

gms_status gms_inherit_together(struct gms_round *round, const struct gms_config *config,
                                const struct gms_daemon_place *place, char **ret_variables, size_t *ret_bytes,
                                struct gms_error *ret_error)
{
    struct start start = {.round = round, .config = config, .place = place, .rank = gms_round_rank(round)};
    gms_status status = agree_on_environment(&start, ret_error);
    if (status != GMS_OK)
        return status; /* the process ends; MPI may still write there */
    *ret_variables = start.inherited;
    *ret_bytes = start.inherited_bytes;
    return GMS_OK;
}
