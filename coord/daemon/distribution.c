/* SPDX-License-Identifier: Apache-2.0
 *
 * The agreed environment, handed out and compared: gms-exec asks for an engine rank's variables and gets them once rank
 * 0 has given this start of the engine a port; engine ranks say with their join what arrived in them, and where that
 * differs all ranks look at it together, so that the refusal names rank, variable and both values. And the lock that
 * one of those variables names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/log.h"
#include "config/environment.h"
#include "config/environment_difference.h"
#include "daemon/daemon_state.h"
#include "daemon/failover_lock.h"

enum { GMS_LOCK_PATH_BYTES = 4096 };

/* ------------------------------------------------------------------------------------------------ handing out -- */

/* Names one start of an engine on all ranks. */
static uint64_t start_key(const struct gms_client *client)
{
    char text[GMS_LAUNCH_BYTES + 16];
    int bytes = snprintf(text, sizeof text, "%u %s", client->engine_id, client->launch);
    uint64_t key = XXH3_64bits(text, (size_t)bytes);
    return key != 0 ? key : 1;
}

/* The variables of this rank of `engine`; the caller frees. NULL: *ret_error. */
static char *render(const struct gms_daemon *daemon, uint32_t engine, uint32_t port, size_t *ret_bytes,
                    struct gms_error *ret_error)
{
    const struct gms_daemon_options *options = &daemon->options;
    const struct gms_environment_place place = {.rank = daemon->rank,
                                                .ranks = daemon->ranks,
                                                .local_rank = options->place.local_rank,
                                                .local_ranks = options->place.local_ranks,
                                                .engine = engine,
                                                .port = port,
                                                .host = options->place.host,
                                                .address = options->place.address,
                                                .master_address = options->place.master_address};
    char *variables = malloc(GMS_ENVIRONMENT_BYTES);
    gms_status status = variables == NULL
                            ? gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for %d bytes", GMS_ENVIRONMENT_BYTES)
                            : gms_environment_render(options->config, options->inherited, options->inherited_bytes,
                                                     &place, variables, GMS_ENVIRONMENT_BYTES, ret_bytes, ret_error);
    if (status == GMS_OK)
        return variables;
    free(variables);
    return NULL;
}

static void send_environment(struct gms_daemon *daemon, struct gms_client *client, uint32_t engine, uint32_t port)
{
    struct gms_error error;
    size_t bytes = 0;
    char *variables = render(daemon, engine, port, &bytes, &error);
    uint32_t request = client->environment_request;
    client->environment_request = 0;
    if (variables == NULL) {
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        gms_sessions_answer(client, request, error.status, error.text);
    } else {
        struct gms_message reply = {.type = GMS_MESSAGE_ENVIRONMENT_REPLY, .request_id = request};
        reply.environment_reply.variables = (struct gms_bytes){variables, (uint32_t)bytes};
        reply.environment_reply.digest = XXH3_64bits(variables, bytes);
        reply.environment_reply.containment = (uint32_t)daemon->options.config->containment;
        gms_sessions_send(client, &reply);
    }
    free(variables);
}

void gms_daemon_give_environment(struct gms_daemon *daemon, struct gms_client *client, uint32_t request_id)
{
    uint64_t key = start_key(client);
    uint32_t port = gms_ports_find(&daemon->ports, key);
    struct gms_error error;
    client->environment_request = request_id;
    if (port == 0 && daemon->rank == 0 && gms_ports_give(&daemon->ports, key, &port, &error) != GMS_OK) {
        client->environment_request = 0;
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        gms_sessions_answer(client, request_id, error.status, error.text);
    } else if (port != 0) {
        daemon->last_ports[client->engine_id] = port;
        send_environment(daemon, client, client->engine_id, port);
    } else {
        (void)gms_doorbell_note(daemon->doorbell, 0, key, 0); /* lost: gms-exec asks again when nothing comes */
    }
}

void gms_daemon_show_environment(struct gms_daemon *daemon, struct gms_client *client, uint32_t request_id,
                                 uint32_t engine)
{
    client->environment_request = request_id;
    send_environment(daemon, client, engine, daemon->last_ports[engine]);
}

void gms_daemon_noted(void *context, uint32_t from, uint64_t key, uint32_t value)
{
    struct gms_daemon *daemon = context;
    struct gms_error error;
    uint32_t port = 0;
    if (value == 0 && daemon->rank == 0) {
        if (gms_ports_give(&daemon->ports, key, &port, &error) == GMS_OK)
            (void)gms_doorbell_note(daemon->doorbell, from, key, port);
        else
            gms_log(GMS_LOG_ERROR, "%s", error.text);
    } else if (value != 0 && from == 0) {
        gms_ports_learn(&daemon->ports, key, value);
        for (struct gms_client *client = gms_sessions_next(daemon->sessions, NULL); client != NULL;
             client = gms_sessions_next(daemon->sessions, client))
            if (client->environment_request != 0 && start_key(client) == key) {
                daemon->last_ports[client->engine_id] = value;
                send_environment(daemon, client, client->engine_id, value);
            }
    }
}

/* ------------------------------------------------------------------------------------------------- the lock ---- */

/* FAILOVER_LOCK_PATH as this engine has it, for rank 0, which sees to the lock. False: none. */
static bool lock_path(const struct gms_daemon *daemon, uint32_t engine, char ret_path[GMS_LOCK_PATH_BYTES])
{
    static const char name[] = "FAILOVER_LOCK_PATH=";
    struct gms_error error;
    size_t bytes = 0;
    char *variables = daemon->rank == 0 ? render(daemon, engine, 0, &bytes, &error) : NULL;
    ret_path[0] = '\0';
    if (variables == NULL)
        return false;
    for (size_t at = 0; at < bytes; at += strlen(variables + at) + 1)
        if (strncmp(variables + at, name, sizeof name - 1) == 0)
            snprintf(ret_path, GMS_LOCK_PATH_BYTES, "%s", variables + at + sizeof name - 1);
    free(variables);
    return ret_path[0] != '\0';
}

gms_status gms_daemon_take_lock(struct gms_daemon *daemon, uint32_t engine, struct gms_error *ret_error)
{
    char path[GMS_LOCK_PATH_BYTES];
    if (!lock_path(daemon, engine, path))
        return GMS_OK;
    return gms_failover_lock_take(daemon->copies, path, ret_error);
}

void gms_daemon_look_after_lock(struct gms_daemon *daemon)
{
    struct gms_core_view view;
    struct gms_error error;
    char path[GMS_LOCK_PATH_BYTES];
    bool anybody = false;
    if (daemon->rank != 0 || !gms_failover_lock_held(daemon->copies))
        return;
    gms_core_look(daemon->core, &view);
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        anybody = anybody || view.engines[engine].role >= GMS_ROLE_PARKED;
    if (!anybody && view.takeover == GMS_TAKEOVER_VACANT) {
        gms_log(GMS_LOG_NOTICE, "nobody serves or will: FAILOVER_LOCK_PATH is given back");
        gms_failover_lock_release(daemon->copies);
    } else if (view.serving_engine >= 0 && lock_path(daemon, (uint32_t)view.serving_engine, path) &&
               gms_failover_lock_take(daemon->copies, path, &error) != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "engine %d serves, but its lock is not the one that others see: %s", view.serving_engine,
                error.text);
    }
}

/* ------------------------------------------------------------------------------------------------- comparing -- */

/* What an engine rank that is joining says it has: behind the words about its identity. */
static struct gms_bytes own_variables(struct gms_daemon *daemon, uint32_t engine, const struct gms_operation_key *key)
{
    const struct gms_client *client = gms_sessions_engine(daemon->sessions, engine);
    const struct gms_call *call = client != NULL ? &client->call : NULL;
    if (call == NULL || call->payload == NULL || call->proposal.key.kind != key->kind ||
        call->proposal.key.launch != key->launch || call->proposal.key.sequence != key->sequence)
        return (struct gms_bytes){"", 0};
    size_t words = strnlen(call->payload, call->payload_bytes);
    const char *bytes = call->payload;
    if (words >= call->payload_bytes || bytes[call->payload_bytes - 1] != '\0')
        return (struct gms_bytes){"", 0};
    return (struct gms_bytes){bytes + words + 1, (uint32_t)(call->payload_bytes - words - 1)};
}

/* Rank `root`'s list, on all ranks. The caller frees. */
static char *shared_variables(struct gms_daemon *daemon, uint32_t engine, const struct gms_operation_key *key,
                              uint32_t root, uint64_t *ret_bytes)
{
    struct gms_error error;
    struct gms_bytes mine = own_variables(daemon, engine, key);
    *ret_bytes = mine.length;
    gms_status status = gms_round_share_from(daemon->options.round, root, ret_bytes, sizeof *ret_bytes, &error);
    char *variables = status == GMS_OK && *ret_bytes <= GMS_WIRE_MAX_BYTES ? malloc(*ret_bytes + 1) : NULL;
    if (status == GMS_OK && variables == NULL) /* the others are in the next collective already */
        status = gms_fail(&error, GMS_E_NO_MEMORY, "no memory for an environment of %llu bytes",
                          (unsigned long long)*ret_bytes);
    if (status == GMS_OK) {
        if (daemon->rank == root)
            memcpy(variables, mine.data, mine.length);
        variables[*ret_bytes] = '\0';
        status = gms_round_share_from(daemon->options.round, root, variables, *ret_bytes, &error);
    }
    if (status != GMS_OK)
        gms_daemon_leave(daemon, status, error.text);
    return variables;
}

static void compare(struct gms_daemon *daemon, uint32_t engine, const struct gms_ballot_proposal *proposal)
{
    const struct gms_digest_pair *pair = &proposal->fields[GMS_JOIN_FIELD_ENVIRONMENT];
    uint32_t low = pair->least_rank < pair->greatest_rank ? pair->least_rank : pair->greatest_rank;
    uint32_t high = pair->least_rank < pair->greatest_rank ? pair->greatest_rank : pair->least_rank;
    uint64_t low_bytes = 0, high_bytes = 0;
    char *first = shared_variables(daemon, engine, &proposal->least, low, &low_bytes);
    char *second = shared_variables(daemon, engine, &proposal->least, high, &high_bytes);
    const struct gms_environment_list one = {first, low_bytes, low}, other = {second, high_bytes, high};
    char *text = daemon->comparisons[engine].text;
    daemon->comparisons[engine].launch = proposal->least.launch;
    text[0] = '\0';
    if (low_bytes != 0 && high_bytes != 0) /* else an engine rank is gone meanwhile, or an older libgms */
        gms_environment_difference(&one, &other, text, sizeof daemon->comparisons[engine].text);
    if (daemon->rank == 0)
        gms_log(GMS_LOG_ERROR, "engine %u is not admitted: its ranks' environments differ: %s", engine, text);
    free(first);
    free(second);
}

void gms_daemon_compare_environments(struct gms_daemon *daemon)
{
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++) {
        const struct gms_ballot_proposal *proposal = &daemon->merged.proposals[engine];
        const struct gms_digest_pair *pair = &proposal->fields[GMS_JOIN_FIELD_ENVIRONMENT];
        /* From the merged ballot alone: all ranks come here, or none. */
        if (proposal->least.kind == GMS_OPERATION_JOIN && proposal->spoken == daemon->ranks &&
            memcmp(&proposal->least, &proposal->greatest, sizeof proposal->least) == 0 &&
            pair->least != pair->greatest && daemon->comparisons[engine].launch != proposal->least.launch)
            compare(daemon, engine, proposal);
    }
}

const char *gms_daemon_environment_text(const struct gms_daemon *daemon, const struct gms_outcome *outcome)
{
    if (outcome->status != GMS_E_MISMATCH || outcome->key.kind != GMS_OPERATION_JOIN)
        return "";
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        if (daemon->comparisons[engine].launch == outcome->key.launch)
            return daemon->comparisons[engine].text;
    return "";
}
