/* SPDX-License-Identifier: Apache-2.0
 *
 * From parked to serving. The order is fixed: park, promotion, adopt, wake, serve.
 */
#include "libgms/session.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "core/ballot.h"

enum { ENDPOINT_BYTES_MAX = GMS_ENDPOINT_BYTES - 1 };

/* ---------------------------------------------------------------------------------------------------- park --- */

/* The group's memory takes the scratch's place under the same addresses. What was mapped stays if one fails, and the
 * next try goes on from there. */
static gms_status map_group_memory(struct gms_session *session, struct gms_error *ret_error)
{
    const struct gms_vmm *vmm = session->vmm;
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++) {
        struct gms_pool *pool = session->pools[i];
        if (pool == NULL || pool->description.kind != GMS_POOL_KV || pool->handle.fd < 0)
            continue;
        const uint64_t since_ns = gms_clock_ns();
        gms_status status = vmm->map(pool->address, &pool->handle, GMS_VMM_READ_WRITE, ret_error);
        if (status != GMS_OK)
            return status;
        gms_tags_note_park(session, pool, gms_clock_ns() - since_ns);
        pool->mapping_epoch++;
        session->mapping_epoch++;
        vmm->release(&pool->handle);
    }
    return GMS_OK;
}

/* Gives back and maps what is to be; after a failure what was given back is there again, or this engine must end. */
static gms_status park_memory(struct gms_session *session, struct gms_error *ret_error)
{
    session->park_state = GMS_STATE_PARKING;
    for (uint32_t i = 0; i < session->tag_count; i++)
        session->tags[i].park_ns = 0;
    gms_status status = session->vmm->sync(ret_error);
    if (status == GMS_OK)
        status = map_group_memory(session, ret_error);
    if (status == GMS_OK)
        status = gms_regions_park(session, ret_error);
    if (status == GMS_OK)
        return GMS_OK;
    if (status != GMS_E_STICKY && !gms_regions_whole(session) && gms_regions_wake(session, 0, NULL) != GMS_OK)
        status = gms_fail(ret_error, GMS_E_STICKY,
                          "parking failed (%s), and memory that was given back for it could not be had again: this "
                          "engine must end",
                          gms_status_text(status));
    session->park_state = status == GMS_E_STICKY ? GMS_STATE_FAILED : GMS_STATE_RUNNING;
    return status;
}

gms_status gms_park(gms_session *session, struct gms_error *ret_error)
{
    gms_status status = gms_session_ready(session, true, gms_session_deadline(session), ret_error);
    if (status != GMS_OK || session->parked)
        return status;
    if (session->park_state == GMS_STATE_FAILED)
        return gms_fail(ret_error, GMS_E_STICKY, "this engine has failed before and must end");
    const uint64_t begun = atomic_load(&session->steps_begun), completed = atomic_load(&session->steps_completed);
    if (begun != completed)
        return gms_fail(ret_error, GMS_E_BUSY,
                        "%" PRIu64 " steps are in flight (%" PRIu64 " begun, %" PRIu64 " complete): complete them, "
                        "then park",
                        begun - completed, begun, completed);
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++)
        if (session->pools[i] != NULL && session->pools[i]->must_publish)
            return gms_fail(ret_error, GMS_E_REFUSED, "weights pool %s is not published yet",
                            session->pools[i]->description.name);
    status = gms_blocks_create(session, ret_error);
    if (status == GMS_OK && session->park_state != GMS_STATE_PARKING) /* else only the answer is missing */
        status = park_memory(session, ret_error);
    if (status != GMS_OK)
        return status;
    gms_tags_tell(session);
    struct gms_message parked = {.type = GMS_MESSAGE_PARKED, .plain = {.incarnation = session->incarnation}}, reply;
    status = gms_session_ask(session, &parked, gms_session_deadline(session), &reply, ret_error);
    if (status != GMS_OK)
        return status;
    gms_message_close_fds(&reply);
    session->parked = true;
    session->park_state = GMS_STATE_PARKED;
    return GMS_OK;
}

/* ----------------------------------------------------------------------------------------------- promotion --- */

/* Reads one message. What goes well is answered by a message of its own kind (PROMOTE, SERVING); a REPLY to
 * `request_id` is a refusal and becomes the status. */
static gms_status hear(struct gms_session *session, uint32_t request_id, uint64_t deadline_ns,
                       struct gms_error *ret_error)
{
    struct gms_message message;
    bool filed = false;
    gms_status status = gms_session_receive(session, deadline_ns, &message, &filed, ret_error);
    if (status != GMS_OK || filed)
        return status;
    if (message.type == GMS_MESSAGE_REPLY && message.request_id == request_id && request_id != 0)
        status = gms_reply_error(&message, ret_error);
    gms_message_close_fds(&message);
    return status;
}

gms_status gms_wait_promotion(gms_session *session, int32_t timeout_ms, struct gms_promotion *ret_promotion,
                              struct gms_error *ret_error)
{
    gms_status status = gms_session_check(session, true, ret_error);
    if (status != GMS_OK)
        return status;
    if (!session->parked)
        return gms_fail(ret_error, GMS_E_REFUSED, "not parked: call gms_park first");
    const uint64_t deadline_ns = timeout_ms < 0 ? UINT64_MAX : gms_clock_ns() + (uint64_t)timeout_ms * GMS_NS_PER_MS;
    /* With timeout 0 this is also how an engine with a loop of its own lets messages in, and is attached again, so what
     * waits is read even when the promotion is here already. */
    do {
        const uint64_t until_ns = session->promotion.arrived ? 0 : deadline_ns;
        status = gms_link_wait(session, until_ns, ret_error);
        while (status == GMS_OK)
            status = hear(session, 0, session->promotion.arrived ? 0 : deadline_ns, ret_error);
    } while (status == GMS_E_DISCONNECTED && !session->promotion.arrived && gms_clock_ns() < deadline_ns);
    if ((status == GMS_E_TIMEOUT || status == GMS_E_DISCONNECTED) && session->promotion.arrived)
        status = GMS_OK;
    else if (status == GMS_E_TIMEOUT)
        return gms_fail(ret_error, GMS_E_TIMEOUT, "not promoted within %" PRId32 " ms", timeout_ms);
    if (status != GMS_OK)
        return status;
    session->promotion_taken = true;
    *ret_promotion =
        (struct gms_promotion){.epoch = session->promotion.epoch, .source_incarnation = session->promotion.source};
    return GMS_OK;
}

gms_status gms_adopt(gms_session *session, struct gms_adoption *ret_adoption, struct gms_error *ret_error)
{
    gms_status status = gms_session_ready(session, true, gms_session_deadline(session), ret_error);
    if (status != GMS_OK)
        return status;
    if (!session->promotion_taken)
        return gms_fail(ret_error, GMS_E_REFUSED, "not promoted: gms_wait_promotion has to return first");
    if (session->adopted)
        return gms_fail(ret_error, GMS_E_REFUSED, "adopted already, under epoch %" PRIu64, session->promotion.epoch);
    struct gms_adoption adoption = {0};
    status = gms_returned_create(session, ret_error);
    if (status == GMS_OK && session->promotion.source != 0)
        status = gms_verify_adoption(session, &adoption, ret_error);
    if (status != GMS_OK)
        return status;
    gms_tails_verify(session);
    struct gms_message proposal = {0}, reply;
    proposal.propose.kind = GMS_OPERATION_ADOPT;
    proposal.propose.fields[0] = session->promotion.epoch;
    proposal.propose.fields[1] = session->promotion.source;
    status = gms_session_propose(session, &proposal, &reply, ret_error);
    if (status != GMS_OK)
        return status;
    gms_message_close_fds(&reply);
    adoption.adopted = reply.reply.adopted;
    adoption.idle = reply.reply.idle;
    adoption.quarantined = reply.reply.quarantined;
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++)
        if (session->directories[i] != NULL)
            session->directories[i]->geometry.epoch = session->promotion.epoch; /* what seals carry from here on */
    gms_blocks_fill(session);
    gms_returned_begin(session);
    session->adopted = true;
    int closed = GMS_E_REFUSED;
    atomic_compare_exchange_strong(&session->gate, &closed, GMS_OK); /* a condemned one stays shut */
    *ret_adoption = adoption;
    return GMS_OK;
}

gms_status gms_wake(gms_session *session, struct gms_error *ret_error)
{
    gms_status status = gms_session_check(session, true, ret_error);
    if (status == GMS_OK && !session->promotion_taken)
        return gms_fail(ret_error, GMS_E_REFUSED, "not promoted: gms_wait_promotion has to return first");
    if (status != GMS_OK || session->park_state == GMS_STATE_AWAKE)
        return status;
    if (session->park_state == GMS_STATE_FAILED)
        return gms_fail(ret_error, GMS_E_STICKY, "this engine has failed before and must end");
    session->park_state = GMS_STATE_WAKING;
    atomic_store(&session->wake_cancelled, false);
    if (!gms_regions_whole(session))
        status = gms_regions_wake(session, session->operation_timeout_ms, ret_error);
    session->park_state = status == GMS_OK         ? GMS_STATE_AWAKE
                          : status == GMS_E_STICKY ? GMS_STATE_FAILED
                                                   : GMS_STATE_PARKED;
    if (status == GMS_OK)
        gms_tags_tell(session);
    return status;
}

int gms_asked_to_park(const gms_session *session)
{
    return session->asked_to_park;
}

gms_status gms_serve(gms_session *session, const char *endpoint, struct gms_error *ret_error)
{
    gms_status status = gms_session_ready(session, true, gms_session_deadline(session), ret_error);
    if (status != GMS_OK)
        return status;
    if (!session->adopted)
        return gms_fail(ret_error, GMS_E_REFUSED, "nothing adopted yet: call gms_adopt first");
    if (!gms_regions_whole(session))
        return gms_fail(ret_error, GMS_E_REFUSED, "memory that parking gave away is not back: call gms_wake first");
    const size_t length = endpoint != NULL ? strnlen(endpoint, ENDPOINT_BYTES_MAX + 1) : 0;
    if (length > ENDPOINT_BYTES_MAX)
        return gms_fail(ret_error, GMS_E_INVALID, "the endpoint has more than %d bytes", ENDPOINT_BYTES_MAX);
    const uint64_t deadline_ns = gms_session_deadline(session);
    struct gms_message ready = {.type = GMS_MESSAGE_READY, .ready = {.incarnation = session->incarnation}};
    memcpy(session->endpoint, endpoint != NULL ? endpoint : "", length);
    session->endpoint[length] = '\0';
    ready.ready.endpoint = (struct gms_bytes){session->endpoint, (uint32_t)length};
    if (session->serving_epoch < session->promotion.epoch) {
        status = gms_session_send(session, &ready, deadline_ns, ret_error);
        session->ready_request = ready.request_id;
        session->said_ready = true; /* from here on every new coordinator is told by itself */
    }
    while ((status == GMS_OK || status == GMS_E_DISCONNECTED) && session->serving_epoch < session->promotion.epoch) {
        if (status == GMS_E_DISCONNECTED && gms_clock_ns() >= deadline_ns)
            return gms_fail(ret_error, GMS_E_AGAIN, "coordinator rank %" PRIu32 " is gone and not back yet; ask again",
                            session->rank);
        if (session->fd < 0 || session->link != GMS_LINK_UP)
            status = gms_link_wait(session, deadline_ns, ret_error);
        else
            status = hear(session, session->ready_request, deadline_ns, ret_error);
    }
    if (status == GMS_E_TIMEOUT)
        return gms_fail(ret_error, GMS_E_TIMEOUT, "not every rank was ready to serve under epoch %" PRIu64 " in time",
                        session->promotion.epoch);
    return status;
}
