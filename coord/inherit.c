/* SPDX-License-Identifier: Apache-2.0 */
#include "inherit.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "environment.h"

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

/* This rank's own against rank 0's: what a launcher did not forward is taken from there, what it made of it otherwise
 * stops the start. */
static gms_status compare_environment(struct start *start, const char *own, size_t own_bytes,
                                      struct gms_error *ret_error)
{
    char text[GMS_ERROR_TEXT_BYTES - 96];
    const struct gms_environment_list first = {start->inherited, start->inherited_bytes, 0};
    const struct gms_environment_list mine = {own, own_bytes, start->rank};
    if (gms_environment_difference(&first, &mine, true, text, sizeof text) > 0)
        return gms_fail(ret_error, GMS_E_MISMATCH, "the coordinators were started with different variables: %s", text);
    return try_environment(start, ret_error);
}

static gms_status agree_on_environment(struct start *start, struct gms_error *ret_error)
{
    struct gms_error mine = {.status = GMS_OK};
    char *own = malloc(GMS_ENVIRONMENT_INHERITED_BYTES);
    size_t own_bytes = 0;
    uint64_t bytes;
    start->inherited = malloc(GMS_ENVIRONMENT_INHERITED_BYTES);
    mine.status = own == NULL || start->inherited == NULL
                      ? gms_fail(&mine, GMS_E_NO_MEMORY, "no memory for %d bytes", GMS_ENVIRONMENT_INHERITED_BYTES)
                      : gms_environment_inherit(environ, own, GMS_ENVIRONMENT_INHERITED_BYTES, &own_bytes, &mine);
    gms_status status = gms_round_concur(start->round, &mine, ret_error);
    if (status == GMS_OK && start->rank == 0)
        memcpy(start->inherited, own, own_bytes);
    bytes = own_bytes;
    if (status == GMS_OK)
        status = gms_round_share(start->round, &bytes, sizeof bytes, ret_error);
    if (status == GMS_OK)
        status = gms_round_share(start->round, start->inherited, bytes, ret_error);
    start->inherited_bytes = bytes;
    if (status == GMS_OK) {
        mine.status = compare_environment(start, own, own_bytes, &mine);
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
