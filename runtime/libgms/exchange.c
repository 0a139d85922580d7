/* SPDX-License-Identifier: Apache-2.0
 *
 * One conversation: requests of ours with their replies, and in between what the coordinator says by itself. The latter
 * is filed in the session whenever it is met, whatever call happens to be reading.
 */
#include "libgms/session.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "core/ballot.h"

uint64_t gms_session_deadline(const struct gms_session *session)
{
    return gms_clock_ns() + session->operation_timeout_ms * GMS_NS_PER_MS + GMS_NS_PER_S;
}

bool gms_session_condemned(const struct gms_session *session)
{
    return atomic_load_explicit(&session->gate, memory_order_acquire) == GMS_E_CONDEMNED;
}

gms_status gms_session_condemn(struct gms_session *session, const char *text, size_t length)
{
    if (!gms_session_condemned(session)) {
        if (length >= sizeof session->condemned_text)
            length = sizeof session->condemned_text - 1;
        memcpy(session->condemned_text, text, length);
        session->condemned_text[length] = '\0';
        atomic_store_explicit(&session->gate, GMS_E_CONDEMNED, memory_order_release);
        gms_nccl_condemned(session); /* whoever waits on the device for a rank that is gone waits no longer */
    }
    return GMS_E_CONDEMNED;
}

gms_status gms_session_fail_condemned(const struct gms_session *session, struct gms_error *ret_error)
{
    return gms_fail(ret_error, GMS_E_CONDEMNED, "incarnation %" PRIu64 " of engine %" PRIu32 " is condemned%s%s: exit",
                    session->incarnation, session->engine_id, session->condemned_text[0] != '\0' ? ": " : "",
                    session->condemned_text);
}

gms_status gms_session_check(const struct gms_session *session, bool joined, struct gms_error *ret_error)
{
    if (gms_session_condemned(session))
        return gms_session_fail_condemned(session, ret_error);
    if (joined && session->incarnation == 0)
        return gms_fail(ret_error, GMS_E_REFUSED, "this session has not joined: call gms_join first");
    return GMS_OK;
}

static gms_status nobody_there(const struct gms_session *session, struct gms_error *ret_error)
{
    return gms_fail(ret_error, GMS_E_AGAIN,
                    "coordinator rank %" PRIu32 " is gone and not back yet; tokens may go on, ask again",
                    session->rank);
}

gms_status gms_session_ready(struct gms_session *session, bool joined, uint64_t deadline_ns,
                             struct gms_error *ret_error)
{
    gms_status status = gms_session_check(session, joined, ret_error);
    if (status == GMS_OK)
        status = gms_link_wait(session, deadline_ns, ret_error);
    return status == GMS_E_DISCONNECTED ? nobody_there(session, ret_error) : status;
}

gms_status gms_session_send(struct gms_session *session, struct gms_message *message, uint64_t deadline_ns,
                            struct gms_error *ret_error)
{
    if (session->fd < 0)
        return gms_fail(ret_error, GMS_E_DISCONNECTED, "coordinator rank %" PRIu32 " is gone", session->rank);
    if (++session->last_request == 0)
        session->last_request = 1; /* 0 marks what nobody asked for */
    message->request_id = session->last_request;
    gms_status status = gms_channel_send_until(session->fd, message, deadline_ns, ret_error);
    /* Its last words may still wait to be read (CONDEMNED above all), so this is noticed by the next receive. */
    return status;
}

/* ----------------------------------------------------------------------------------------------- unasked for --- */

static void file_promotion(struct gms_session *session, const struct gms_message *message)
{
    if (message->promote.incarnation != session->incarnation || session->incarnation == 0 ||
        message->promote.epoch <= session->promotion.epoch)
        return;
    session->promotion = (struct gms_promotion_state){
        .arrived = true, .epoch = message->promote.epoch, .source = message->promote.source};
    session->promotion_taken = false;
}

static void file_transfer(struct gms_session *session, const struct gms_message *message)
{
    if (message->transfer_result.incarnation != session->incarnation || message->transfer_result.id == 0)
        return;
    struct gms_transfer_news *news = NULL;
    for (uint32_t i = 0; i < GMS_TRANSFER_RESULTS && news == NULL; i++)
        if (session->transfers[i].id == message->transfer_result.id)
            news = &session->transfers[i];
    if (news == NULL)
        news = &session->transfers[session->next_transfer++ % GMS_TRANSFER_RESULTS];
    for (uint32_t i = 0; i < GMS_OPEN_TRANSFERS; i++)
        if (session->open_transfers[i].id == message->transfer_result.id)
            session->open_transfers[i].id = 0;
    *news = (struct gms_transfer_news){.id = message->transfer_result.id,
                                       .status = (gms_status)message->transfer_result.status};
    news->result.finished_ranks = message->transfer_result.finished;
    news->result.failed_ranks = message->transfer_result.failed;
    news->result.first_failed_rank = message->transfer_result.first_failed;
    _Static_assert(sizeof news->result.failed_bitmap == GMS_FAILED_BITMAP_BYTES, "bitmap of all ranks");
    uint32_t bytes = message->transfer_result.failed_bitmap.length;
    if (bytes > GMS_FAILED_BITMAP_BYTES)
        bytes = GMS_FAILED_BITMAP_BYTES;
    if (bytes > 0)
        memcpy(news->result.failed_bitmap, message->transfer_result.failed_bitmap.data, bytes);
    uint32_t length = message->transfer_result.text.length;
    if (length >= sizeof news->text)
        length = sizeof news->text - 1;
    if (length > 0)
        memcpy(news->text, message->transfer_result.text.data, length);
}

/* True: filed. False: a reply, or something this library does not know what to do with. */
static bool file_message(struct gms_session *session, const struct gms_message *message)
{
    switch (message->type) {
    case GMS_MESSAGE_PROMOTE:
        file_promotion(session, message);
        return true;
    case GMS_MESSAGE_SERVING:
        if (message->promote.incarnation == session->incarnation && session->incarnation != 0)
            session->serving_epoch = message->promote.epoch;
        return true;
    case GMS_MESSAGE_CONDEMNED:
        if (message->condemned.incarnation == session->incarnation && session->incarnation != 0)
            gms_session_condemn(session, message->condemned.text.data, message->condemned.text.length);
        return true;
    case GMS_MESSAGE_TRANSFER_RESULT:
        file_transfer(session, message);
        return true;
    case GMS_MESSAGE_RECLAIMED:
        gms_returned_file(session, message);
        return true;
    case GMS_MESSAGE_ASKED:
        session->asked_to_park =
            session->asked_to_park || (message->plain.incarnation == session->incarnation && session->incarnation != 0);
        return true;
    case GMS_MESSAGE_TRANSFER_STALLED: /* the coordinator has logged it; the transfer goes on */
        return true;
    case GMS_MESSAGE_HELLO:
    case GMS_MESSAGE_WELCOME:
    case GMS_MESSAGE_REPLY:
    case GMS_MESSAGE_ENVIRONMENT:
    case GMS_MESSAGE_ENVIRONMENT_REPLY:
    case GMS_MESSAGE_CONTAINER:
    case GMS_MESSAGE_PROPOSE:
    case GMS_MESSAGE_PARKED:
    case GMS_MESSAGE_READY:
    case GMS_MESSAGE_LEAVING:
    case GMS_MESSAGE_STICKY:
    case GMS_MESSAGE_TRANSFER_DISPATCH:
    case GMS_MESSAGE_TRANSFER_END:
    case GMS_MESSAGE_TRANSFER_WAIT:
    case GMS_MESSAGE_STATUS:
    case GMS_MESSAGE_STATUS_REPLY:
    case GMS_MESSAGE_TAKEOVER:
    case GMS_MESSAGE_MEMORY:
    case GMS_MESSAGE_PARK:
    case GMS_MESSAGE_WAKE:
    case GMS_MESSAGE_SHUTDOWN:
    case GMS_MESSAGE_COPY:
    case GMS_MESSAGE_WATCH:
    case GMS_MESSAGE_SERVES:
    case GMS_MESSAGE_KEEPER_WORLD:
    case GMS_MESSAGE_KEEPER_PUT:
    case GMS_MESSAGE_KEEPER_GET:
    case GMS_MESSAGE_KEEPER_LIST:
    case GMS_MESSAGE_KEEPER_DROP:
    case GMS_MESSAGE_KEEPER_MIRROR:
    case GMS_MESSAGE_KEEPER_REPLY:
    case GMS_MESSAGE_KEEPER_REFILL:
        break;
    }
    return false;
}

gms_status gms_session_receive(struct gms_session *session, uint64_t deadline_ns, struct gms_message *ret_message,
                               bool *ret_filed, struct gms_error *ret_error)
{
    struct gms_message message;
    if (session->link != GMS_LINK_UP && session->fd < 0)
        return gms_fail(ret_error, GMS_E_DISCONNECTED, "coordinator rank %" PRIu32 " is gone", session->rank);
    gms_status status = gms_channel_receive_until(session->fd, session->buffer, deadline_ns, &message, ret_error);
    if (status == GMS_E_DISCONNECTED)
        gms_link_lost(session);
    if (status != GMS_OK)
        return status;
    if (file_message(session, &message)) {
        gms_message_close_fds(&message);
        *ret_filed = true;
        return gms_session_condemned(session) ? gms_session_fail_condemned(session, ret_error) : GMS_OK;
    }
    *ret_filed = false;
    *ret_message = message;
    return GMS_OK;
}

gms_status gms_session_let_in(struct gms_session *session, struct gms_error *ret_error)
{
    struct pollfd news = {.fd = session->event_fd, .events = POLLIN};
    struct gms_error error;
    if (gms_session_condemned(session))
        return gms_session_fail_condemned(session, ret_error);
    if (poll(&news, 1, 0) <= 0)
        return GMS_OK;
    gms_status status = gms_link_step(session, &error);
    while (status == GMS_OK) {
        struct gms_message message;
        bool filed = false;
        status = gms_session_receive(session, 0, &message, &filed, &error);
        if (status == GMS_OK && !filed)
            gms_message_close_fds(&message); /* a late answer to a call that gave up */
    }
    return gms_session_condemned(session) ? gms_session_fail_condemned(session, ret_error) : GMS_OK;
}

/* ------------------------------------------------------------------------------------------------- asked for --- */

gms_status gms_reply_error(const struct gms_message *reply, struct gms_error *ret_error)
{
    const gms_status status = (gms_status)reply->reply.status;
    if (status == GMS_OK)
        return GMS_OK;
    const uint32_t length = reply->reply.text.length;
    gms_fail(ret_error, status, "%.*s", length < GMS_ERROR_TEXT_BYTES ? (int)length : GMS_ERROR_TEXT_BYTES - 1,
             length > 0 ? (const char *)reply->reply.text.data : "");
    if (ret_error != NULL)
        ret_error->rank = reply->reply.rank;
    return status;
}

static gms_status take_reply(struct gms_session *session, struct gms_message *reply, struct gms_error *ret_error)
{
    const gms_status status = gms_reply_error(reply, ret_error);
    if (status != GMS_OK)
        gms_message_close_fds(reply);
    if (status == GMS_E_CONDEMNED)
        gms_session_condemn(session, reply->reply.text.data, reply->reply.text.length);
    return status;
}

/* The REPLY to what was sent just now. */
static gms_status hear_reply(struct gms_session *session, const struct gms_message *message, uint64_t deadline_ns,
                             struct gms_message *ret_reply, struct gms_error *ret_error)
{
    for (;;) {
        struct gms_message reply;
        bool filed = false;
        gms_status status = gms_session_receive(session, deadline_ns, &reply, &filed, ret_error);
        if (status == GMS_E_TIMEOUT)
            return gms_fail(ret_error, GMS_E_TIMEOUT,
                            "coordinator rank %" PRIu32 " did not answer %s in time; call again to learn the outcome",
                            session->rank, gms_message_name(message->type));
        if (status != GMS_OK)
            return status;
        if (filed)
            continue;
        /* Request 0 without a kind answers what could not even be read; the connection ends after it. With a kind it is
         * the outcome of a call that was given up here. */
        const bool refused = reply.type == GMS_MESSAGE_REPLY && reply.request_id == 0 &&
                             reply.reply.kind == GMS_OPERATION_NONE && reply.reply.status != GMS_OK;
        if (reply.type == GMS_MESSAGE_REPLY && (reply.request_id == message->request_id || refused)) {
            status = take_reply(session, &reply, ret_error);
            *ret_reply = reply;
            return status;
        }
        gms_message_close_fds(&reply); /* a late answer to a call that gave up */
    }
}

gms_status gms_session_ask(struct gms_session *session, struct gms_message *message, uint64_t deadline_ns,
                           struct gms_message *ret_reply, struct gms_error *ret_error)
{
    for (;;) {
        gms_status status = gms_session_send(session, message, deadline_ns, ret_error);
        if (status != GMS_OK && status != GMS_E_DISCONNECTED)
            return status;
        status = hear_reply(session, message, deadline_ns, ret_reply, ret_error); /* its last words, too */
        if (status != GMS_E_DISCONNECTED)
            return status;
        status = gms_link_wait(session, deadline_ns, ret_error);
        if (status == GMS_E_DISCONNECTED)
            return nobody_there(session, ret_error);
        if (status != GMS_OK)
            return status;
        if (message->type == GMS_MESSAGE_TRANSFER_END) { /* said again with the transfer itself */
            *ret_reply = (struct gms_message){.type = GMS_MESSAGE_REPLY};
            return GMS_OK;
        }
        if (message->type == GMS_MESSAGE_TRANSFER_DISPATCH)
            message->transfer.again = 1;
    }
}

/* These the coordinator says without asking the group: the number is still to be used. */
static bool decided(gms_status status)
{
    return status != GMS_E_PROTOCOL && status != GMS_E_STALE && status != GMS_E_CONDEMNED;
}

gms_status gms_session_propose(struct gms_session *session, struct gms_message *message, struct gms_message *ret_reply,
                               struct gms_error *ret_error)
{
    const bool join = message->propose.kind == GMS_OPERATION_JOIN;
    message->type = GMS_MESSAGE_PROPOSE;
    message->propose.incarnation = session->incarnation;
    message->propose.launch = join ? session->launch_digest : 0;
    message->propose.sequence = join ? 0 : session->next_sequence;
    if (join && session->asked_world == 0)
        session->asked_world = session->world;
    message->propose.since = join ? session->asked_world : 0;
    struct gms_message reply = {0};
    gms_status status = gms_session_ask(session, message, gms_session_deadline(session), &reply, ret_error);
    /* Counted only when it was decided: after a lost answer the same key asks for the same outcome. */
    if (!join && reply.type == GMS_MESSAGE_REPLY && reply.reply.sequence == message->propose.sequence &&
        decided((gms_status)reply.reply.status))
        session->next_sequence++;
    if (status == GMS_OK)
        *ret_reply = reply;
    return status;
}
