/* SPDX-License-Identifier: Apache-2.0
 *
 * What the engine reports: progress and pauses in shared memory, device errors and transfers as messages.
 */
#include "libgms/session.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"

/* The counters stand in the directory of the first KV pool. An engine without one reports nothing. */
static struct gms_directory *counters(const struct gms_session *session)
{
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++)
        if (session->directories[i] != NULL)
            return session->directories[i];
    return NULL;
}

void gms_progress(gms_session *session)
{
    struct gms_directory *directory = counters(session);
    if (directory != NULL)
        gms_directory_progress(directory);
}

void gms_busy(gms_session *session, uint32_t duration_ms)
{
    struct gms_directory *directory = counters(session);
    if (directory != NULL)
        gms_directory_announce_pause(directory, duration_ms);
}

void gms_work(gms_session *session, uint32_t count)
{
    struct gms_directory *directory = counters(session);
    if (directory != NULL)
        gms_directory_set_work(directory, count);
}

void gms_report_step_begun(struct gms_session *session, uint64_t step)
{
    struct gms_directory *directory = counters(session);
    if (directory != NULL)
        gms_directory_step_begun(directory, step);
}

void gms_report_step_completed(struct gms_session *session, uint64_t step)
{
    struct gms_directory *directory = counters(session);
    if (directory != NULL)
        gms_directory_step_completed(directory, step);
}

static gms_status ask_and_drop(struct gms_session *session, struct gms_message *message, struct gms_error *ret_error)
{
    struct gms_message reply;
    gms_status status = gms_session_ask(session, message, gms_session_deadline(session), &reply, ret_error);
    if (status == GMS_OK)
        gms_message_close_fds(&reply);
    return status;
}

gms_status gms_report_sticky_error(gms_session *session, int32_t code, const char *text, struct gms_error *ret_error)
{
    gms_status status = gms_session_ready(session, true, gms_session_deadline(session), ret_error);
    if (status != GMS_OK)
        return status;
    struct gms_message sticky = {.type = GMS_MESSAGE_STICKY,
                                 .sticky = {.incarnation = session->incarnation, .code = code}};
    sticky.sticky.text = (struct gms_bytes){text != NULL ? text : "",
                                            text != NULL ? (uint32_t)strnlen(text, GMS_ERROR_TEXT_BYTES - 1) : 0};
    return ask_and_drop(session, &sticky, ret_error);
}

/* ------------------------------------------------------------------------------------------------ transfer --- */

static struct gms_transfer_news *find_news(struct gms_session *session, uint64_t transfer_id)
{
    for (uint32_t i = 0; i < GMS_TRANSFER_RESULTS; i++)
        if (session->transfers[i].id == transfer_id)
            return &session->transfers[i];
    return NULL;
}

/* 0: a free place. NULL: none. */
static struct gms_open_transfer *find_open(struct gms_session *session, uint64_t transfer_id)
{
    for (uint32_t i = 0; i < GMS_OPEN_TRANSFERS; i++)
        if (session->open_transfers[i].id == transfer_id)
            return &session->open_transfers[i];
    return NULL;
}

static gms_status transfer_ready(struct gms_session *session, uint64_t transfer_id, struct gms_error *ret_error)
{
    gms_status status = gms_session_ready(session, true, gms_session_deadline(session), ret_error);
    if (status == GMS_OK && transfer_id == 0)
        return gms_fail(ret_error, GMS_E_INVALID, "transfer 0: transfers are named by numbers from 1");
    return status;
}

gms_status gms_transfer_dispatch(gms_session *session, uint64_t transfer_id, uint32_t part_count,
                                 struct gms_error *ret_error)
{
    gms_status status = transfer_ready(session, transfer_id, ret_error);
    if (status == GMS_OK && part_count == 0)
        status = gms_fail(ret_error, GMS_E_INVALID, "transfer %" PRIu64 " has no parts", transfer_id);
    if (status != GMS_OK)
        return status;
    struct gms_message dispatch = {
        .type = GMS_MESSAGE_TRANSFER_DISPATCH,
        .transfer = {.incarnation = session->incarnation, .id = transfer_id, .part_count = part_count}};
    struct gms_open_transfer *open = find_open(session, 0);
    if (open != NULL)
        *open = (struct gms_open_transfer){.id = transfer_id, .part_count = part_count};
    status = ask_and_drop(session, &dispatch, ret_error);
    if (status != GMS_OK && status != GMS_E_AGAIN && status != GMS_E_TIMEOUT && open != NULL)
        open->id = 0; /* refused */
    /* A number may be used again: whatever was told before this answer is about its predecessor. */
    struct gms_transfer_news *old = find_news(session, transfer_id);
    if (status == GMS_OK && old != NULL)
        old->id = 0;
    return status;
}

gms_status gms_transfer_end_part(gms_session *session, uint64_t transfer_id, uint32_t part, int failed,
                                 struct gms_error *ret_error)
{
    gms_status status = transfer_ready(session, transfer_id, ret_error);
    if (status != GMS_OK)
        return status;
    struct gms_message end = {
        .type = GMS_MESSAGE_TRANSFER_END,
        .transfer = {.incarnation = session->incarnation, .id = transfer_id, .part = part, .failed = failed != 0}};
    struct gms_open_transfer *open = find_open(session, transfer_id);
    if (open != NULL && part < 32) {
        open->ended_mask |= UINT32_C(1) << part;
        open->failed_mask |= failed != 0 ? UINT32_C(1) << part : 0;
    }
    return ask_and_drop(session, &end, ret_error);
}

gms_status gms_transfer_wait(gms_session *session, uint64_t transfer_id, int32_t timeout_ms,
                             struct gms_transfer_result *ret_result, struct gms_error *ret_error)
{
    gms_status status = transfer_ready(session, transfer_id, ret_error);
    if (status != GMS_OK)
        return status;
    const uint64_t deadline_ns = timeout_ms < 0 ? UINT64_MAX : gms_clock_ns() + (uint64_t)timeout_ms * GMS_NS_PER_MS;
    struct gms_message wait = {
        .type = GMS_MESSAGE_TRANSFER_WAIT,
        .transfer = {.incarnation = session->incarnation, .id = transfer_id, .timeout_ms = timeout_ms}};
    struct gms_transfer_news *news = find_news(session, transfer_id);
    if (news == NULL)
        status = gms_session_send(session, &wait, gms_session_deadline(session), ret_error);
    while ((status == GMS_OK || status == GMS_E_DISCONNECTED) && (news = find_news(session, transfer_id)) == NULL) {
        struct gms_message message;
        bool filed = false;
        if (session->link != GMS_LINK_UP) {
            status = gms_link_wait(session, deadline_ns, ret_error);
            if (status == GMS_E_DISCONNECTED)
                status = GMS_E_TIMEOUT;
            else if (status == GMS_OK)
                status = gms_session_send(session, &wait, gms_session_deadline(session), ret_error);
            continue;
        }
        status = gms_session_receive(session, deadline_ns, &message, &filed, ret_error);
        if (status != GMS_OK || filed)
            continue;
        if (message.type == GMS_MESSAGE_REPLY && message.request_id == wait.request_id)
            status = gms_reply_error(&message, ret_error);
        gms_message_close_fds(&message);
    }
    if (status == GMS_E_TIMEOUT)
        return gms_fail(ret_error, GMS_E_TIMEOUT,
                        "transfer %" PRIu64 " has not ended on every rank within %" PRId32 " ms; it goes on, ask again",
                        transfer_id, timeout_ms);
    if (status != GMS_OK)
        return status;
    news->id = 0;
    if (news->status != GMS_OK)
        return gms_fail(ret_error, news->status, "%s", news->text);
    *ret_result = news->result;
    return GMS_OK;
}
