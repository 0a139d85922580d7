/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL communicators of a session: the id through the coordinators, all ranks or none, and an end when the incarnation
 * is condemned.
 *
 *   every rank: open NCCL --> exchange "nccl-id" (value: its version, 0 where it has none) --> init, first verification
 *               --> exchange "nccl-made" (value: 1 where that went well) --> usable
 *
 * Each step is taken by every rank whatever its own came to, so that a rank that cannot is named at once and nobody
 * waits for it.
 */
#include "gms/nccl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "libgms/session.h"
#include "nccl/communicator.h"
#include "vmm/cuda_stream.h"

enum { OPEN_TIMEOUT_MS = 60000, LAUNCH_TIMEOUT_MS = 30000 };

struct gms_nccl {
    struct gms_nccl *next; /* of the session */
    gms_session *session;
    const struct gms_nccl_api *api;
    struct gms_communicator communicator;
};

static gms_status interrupted(void *context, struct gms_error *ret_error)
{
    return gms_session_let_in(context, ret_error);
}

void gms_nccl_condemned(struct gms_session *session)
{
    for (struct gms_nccl *nccl = session->communicators; nccl != NULL; nccl = nccl->next)
        gms_communicator_abort(&nccl->communicator, "this incarnation is condemned");
}

void gms_nccl_forget(struct gms_session *session)
{
    while (session->communicators != NULL)
        gms_nccl_close(session->communicators);
}

/* ---------------------------------------------------------------------------------------------------- open ---- */

static gms_status check_session(gms_session *session, struct gms_error *ret_error)
{
    gms_status status = gms_session_ready(session, true, gms_session_deadline(session), ret_error);
    if (status != GMS_OK)
        return status;
    if (session->vmm->cpu_addresses)
        return gms_fail(ret_error, GMS_E_UNSUPPORTED,
                        "this deployment's memory is the host's (memory.backend): NCCL needs a GPU for every rank");
    if (session->parked)
        return gms_fail(
            ret_error, GMS_E_REFUSED,
            "parked already: a communicator is made before parking, so that promotion need not wait for it");
    return GMS_OK;
}

static gms_status make_id(const struct gms_nccl_api *api, struct gms_nccl_id *ret_id, struct gms_error *ret_error)
{
    gms_status status = gms_vmm_cuda_enter(ret_error);
    if (status != GMS_OK)
        return status;
    gms_nccl_result result = api->unique_id(ret_id);
    gms_vmm_cuda_leave();
    return result == GMS_NCCL_SUCCESS ? GMS_OK : gms_nccl_fail(api, NULL, result, ret_error, "a unique id");
}

/* Opens NCCL and has the id of this incarnation's communicator. */
static gms_status agree_on_id(gms_session *session, const char *library, const struct gms_nccl_api **ret_api,
                              struct gms_nccl_id *ret_id, struct gms_error *ret_error)
{
    struct gms_error own = {.status = GMS_OK}, error = {.status = GMS_OK};
    struct gms_nccl_id given = {{0}};
    uint8_t got[GMS_EXCHANGE_BYTES];
    uint32_t bytes = 0;
    _Static_assert(sizeof given <= sizeof got, "an id is one exchange");
    gms_status mine = gms_nccl_library_open(library, ret_api, &own);
    if (mine == GMS_OK && session->rank == 0)
        mine = make_id(*ret_api, &given, &own);
    gms_status status = gms_exchange(session, "nccl-id", mine == GMS_OK ? (uint64_t)(*ret_api)->number : 0, &given,
                                     sizeof given, got, &bytes, &error);
    if (mine != GMS_OK) {
        if (ret_error != NULL)
            *ret_error = own;
        return mine;
    }
    if (status == GMS_E_MISMATCH)
        return gms_fail(ret_error, status, "%s; the value is NCCL's version (%d here), 0 where a rank has none",
                        error.text, (*ret_api)->number);
    if (status == GMS_OK && bytes != sizeof *ret_id)
        status = gms_fail(&error, GMS_E_PROTOCOL, "rank 0 gave %" PRIu32 " bytes as NCCL's id", bytes);
    if (status == GMS_OK)
        memcpy(ret_id, got, sizeof *ret_id);
    else if (ret_error != NULL)
        *ret_error = error;
    return status;
}

/* Has every rank made it? `mine` is what came of it here. */
static gms_status agree_on_success(struct gms_nccl *nccl, gms_status mine, const struct gms_error *own,
                                   struct gms_error *ret_error)
{
    struct gms_error error = {.status = GMS_OK};
    uint8_t got[GMS_EXCHANGE_BYTES];
    uint32_t bytes = 0;
    gms_status status = GMS_OK;
    if (mine != GMS_E_CONDEMNED)
        status = gms_exchange(nccl->session, "nccl-made", mine == GMS_OK, NULL, 0, got, &bytes, &error);
    if (mine == GMS_OK && status == GMS_OK)
        return GMS_OK;
    gms_communicator_abort(&nccl->communicator, "not every rank could make it");
    if (mine == GMS_OK && status == GMS_E_MISMATCH)
        return gms_fail(ret_error, status, "%s; 0 is a rank that could not make its part of the communicator",
                        error.text);
    if (ret_error != NULL)
        *ret_error = mine != GMS_OK ? *own : error;
    return mine != GMS_OK ? mine : status;
}

gms_status gms_nccl_open(gms_session *session, const struct gms_nccl_options *options, gms_nccl **ret_nccl,
                         struct gms_error *ret_error)
{
    static const struct gms_nccl_options defaults = {0};
    options = options != NULL ? options : &defaults;
    gms_status status = check_session(session, ret_error);
    if (status != GMS_OK)
        return status;
    struct gms_nccl *nccl = calloc(1, sizeof *nccl);
    if (nccl == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a communicator (%zu bytes)", sizeof *nccl);
    nccl->session = session;
    struct gms_nccl_id id;
    status = agree_on_id(session, options->library, &nccl->api, &id, ret_error);
    if (status != GMS_OK) {
        free(nccl);
        return status;
    }
    const uint64_t timeout_ms = options->timeout_ms != 0 ? options->timeout_ms : OPEN_TIMEOUT_MS;
    const uint64_t launch_ms = options->launch_ms != 0 ? options->launch_ms : LAUNCH_TIMEOUT_MS;
    const uint64_t deadline_ns = gms_clock_ns() + timeout_ms * GMS_NS_PER_MS;
    const struct gms_communicator_options make = {.api = nccl->api,
                                                  .rank = session->rank,
                                                  .ranks = session->world_size,
                                                  .launch_ns = launch_ms * GMS_NS_PER_MS,
                                                  .interrupted = interrupted,
                                                  .context = session};
    struct gms_error own = {.status = GMS_OK};
    gms_status mine = gms_communicator_init(&nccl->communicator, &make, &id, deadline_ns, &own);
    if (mine == GMS_OK)
        mine = gms_communicator_verify(&nccl->communicator, deadline_ns, &own);
    status = agree_on_success(nccl, mine, &own, ret_error);
    if (status != GMS_OK) {
        gms_communicator_close(&nccl->communicator);
        free(nccl);
        return status;
    }
    nccl->next = session->communicators;
    session->communicators = nccl;
    *ret_nccl = nccl;
    return GMS_OK;
}

void gms_nccl_close(gms_nccl *nccl)
{
    if (nccl == NULL)
        return;
    for (struct gms_nccl **link = &nccl->session->communicators; *link != NULL; link = &(*link)->next)
        if (*link == nccl) {
            *link = nccl->next;
            break;
        }
    gms_communicator_close(&nccl->communicator);
    free(nccl);
}

int gms_nccl_version(const gms_nccl *nccl)
{
    return nccl->api->number;
}

const char *gms_nccl_library(const gms_nccl *nccl)
{
    return nccl->api->file;
}

/* ---------------------------------------------------------------------------------------------- collectives --- */

gms_status gms_nccl_all_reduce(gms_nccl *nccl, const void *send, void *receive, uint64_t count, enum gms_nccl_type type,
                               enum gms_nccl_reduction reduction, void *stream, struct gms_error *ret_error)
{
    const struct gms_collective_call call = {.kind = GMS_COLLECTIVE_ALL_REDUCE,
                                             .send = send,
                                             .receive = receive,
                                             .count = count,
                                             .type = (int)type,
                                             .argument = (int)reduction,
                                             .stream = stream};
    return gms_communicator_submit(&nccl->communicator, &call, ret_error);
}

gms_status gms_nccl_all_gather(gms_nccl *nccl, const void *send, void *receive, uint64_t count, enum gms_nccl_type type,
                               void *stream, struct gms_error *ret_error)
{
    const struct gms_collective_call call = {.kind = GMS_COLLECTIVE_ALL_GATHER,
                                             .send = send,
                                             .receive = receive,
                                             .count = count,
                                             .type = (int)type,
                                             .stream = stream};
    return gms_communicator_submit(&nccl->communicator, &call, ret_error);
}

gms_status gms_nccl_broadcast(gms_nccl *nccl, const void *send, void *receive, uint64_t count, enum gms_nccl_type type,
                              uint32_t root, void *stream, struct gms_error *ret_error)
{
    const struct gms_collective_call call = {.kind = GMS_COLLECTIVE_BROADCAST,
                                             .send = send,
                                             .receive = receive,
                                             .count = count,
                                             .type = (int)type,
                                             .argument = (int)root,
                                             .stream = stream};
    return gms_communicator_submit(&nccl->communicator, &call, ret_error);
}

gms_status gms_nccl_wait(gms_nccl *nccl, void *stream, uint32_t timeout_ms, struct gms_error *ret_error)
{
    return gms_communicator_wait(&nccl->communicator, stream, gms_clock_ns() + timeout_ms * GMS_NS_PER_MS, ret_error);
}

gms_status gms_nccl_check(gms_nccl *nccl, struct gms_error *ret_error)
{
    return gms_communicator_check(&nccl->communicator, ret_error);
}

gms_status gms_nccl_verify(gms_nccl *nccl, uint32_t timeout_ms, struct gms_nccl_verification *ret_verification,
                           struct gms_error *ret_error)
{
    const uint64_t begun_ns = gms_clock_ns();
    gms_status status = gms_session_check(nccl->session, true, ret_error);
    if (status == GMS_OK)
        status = gms_communicator_verify(&nccl->communicator, begun_ns + timeout_ms * GMS_NS_PER_MS, ret_error);
    if (status == GMS_OK && ret_verification != NULL)
        *ret_verification = (struct gms_nccl_verification){.duration_ns = gms_clock_ns() - begun_ns,
                                                           .number = nccl->communicator.verifications};
    return status;
}

void gms_nccl_abort(gms_nccl *nccl)
{
    gms_communicator_abort(&nccl->communicator, "the engine ended it");
}

gms_status gms_nccl_suspend(gms_nccl *nccl, struct gms_error *ret_error)
{
    return gms_communicator_suspend(&nccl->communicator, ret_error);
}

gms_status gms_nccl_resume(gms_nccl *nccl, uint32_t timeout_ms, struct gms_error *ret_error)
{
    return gms_communicator_resume(&nccl->communicator, gms_clock_ns() + timeout_ms * GMS_NS_PER_MS, ret_error);
}
