/* SPDX-License-Identifier: Apache-2.0
 *
 * The connection to the coordinator, and how it comes back. Slots need none of it.
 *
 *             connected, HELLO sent          WELCOME
 *   LINK_DOWN --------------------> GREETING ---------> LINK_UP
 *       ^                              |                   |
 *       +-- refused, no answer, closed +--- end of file ---+
 *
 * The end of the connection is the end of a coordinator job: what it knew of us it has stored or left with others, and
 * what it had not yet carried on is said again here (parked, ready to serve, open transfers); the caller repeats its
 * own unanswered request under the same key. No step of it blocks.
 */
#include "libgms/session.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "core/ballot.h"
#include "gms/version.h"
#include "vmm/cuda.h"

enum { CONNECT_MS = 20 };
static const uint64_t first_pause_ns = 20 * GMS_NS_PER_MS;
static const uint64_t soon_pause_ns = 100 * GMS_NS_PER_MS; /* while a restart may be on its way */
static const uint64_t longest_pause_ns = GMS_NS_PER_S;
static const uint64_t soon_ns = 10 * GMS_NS_PER_S;
static const uint64_t greeting_ns = 5 * GMS_NS_PER_S;

/* ------------------------------------------------------------------------------------------------ descriptor - */

gms_status gms_link_open(struct gms_session *session, struct gms_error *ret_error)
{
    struct epoll_event interest = {.events = EPOLLIN};
    session->event_fd = epoll_create1(EPOLL_CLOEXEC);
    session->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (session->event_fd < 0 || session->timer_fd < 0 ||
        epoll_ctl(session->event_fd, EPOLL_CTL_ADD, session->timer_fd, &interest) != 0) {
        gms_status status = gms_fd_fail("the session's event descriptor", ret_error);
        gms_link_close(session);
        return status;
    }
    return GMS_OK;
}

void gms_link_close(struct gms_session *session)
{
    gms_fd_close(&session->fd);
    gms_fd_close(&session->timer_fd);
    gms_fd_close(&session->event_fd);
}

/* When gms_event_fd is to be readable without a message; 0: not any more. */
static void set_timer(struct gms_session *session, uint64_t at_ns)
{
    const uint64_t now_ns = gms_clock_ns();
    uint64_t left_ns = at_ns > now_ns ? at_ns - now_ns : 1;
    if (at_ns == 0)
        left_ns = 0;
    const struct itimerspec when = {
        .it_value = {.tv_sec = (time_t)(left_ns / GMS_NS_PER_S), .tv_nsec = (long)(left_ns % GMS_NS_PER_S)}};
    (void)timerfd_settime(session->timer_fd, 0, &when, NULL);
}

/* The end of this socket is how the coordinator hears that we died, and the kernel closes low descriptors first. */
static gms_status raise_socket(int *fd, struct gms_error *ret_error)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return GMS_OK;
    int minimum = 0;
    if (limit.rlim_cur > 901)
        minimum = 900;
    else if (limit.rlim_cur > 201)
        minimum = 200;
    return minimum == 0 ? GMS_OK : gms_fd_raise(fd, minimum, ret_error);
}

gms_status gms_link_connect(struct gms_session *session, int timeout_ms, struct gms_error *ret_error)
{
    struct epoll_event interest = {.events = EPOLLIN};
    gms_status status = gms_channel_connect(session->path, timeout_ms, &session->fd, ret_error);
    if (status == GMS_E_NOT_FOUND || status == GMS_E_DISCONNECTED)
        return gms_fail(ret_error, GMS_E_DISCONNECTED,
                        "no coordinator listens at %s: is gms-coord rank %" PRIu32 " running with this run directory?",
                        session->path, session->rank);
    if (status == GMS_OK)
        status = raise_socket(&session->fd, ret_error);
    if (status == GMS_OK && epoll_ctl(session->event_fd, EPOLL_CTL_ADD, session->fd, &interest) != 0)
        status = gms_fd_fail("watching the coordinator's socket", ret_error);
    if (status != GMS_OK)
        gms_fd_close(&session->fd);
    return status;
}

gms_status gms_link_hello(struct gms_session *session, uint64_t deadline_ns, struct gms_error *ret_error)
{
    struct gms_message hello = {.type = GMS_MESSAGE_HELLO, .fds = {-1, -1, -1, -1}, .fd_count = 1};
    gms_status status = gms_pidfd_open(getpid(), &hello.fds[0], ret_error);
    if (status != GMS_OK)
        return status;
    hello.hello.role = GMS_CLIENT_ENGINE;
    hello.hello.pid = (uint32_t)getpid();
    hello.hello.engine_id = session->engine_id;
    hello.hello.rank = session->rank;
    hello.hello.launch = (struct gms_bytes){session->launch, (uint32_t)strlen(session->launch)};
    hello.hello.version = (struct gms_bytes){GMS_VERSION, (uint32_t)strlen(GMS_VERSION)};
    hello.hello.incarnation = session->incarnation;
    if (session->incarnation != 0)
        hello.hello.secret = (struct gms_bytes){session->secret, session->has_secret ? sizeof session->secret : 0};
    status = gms_session_send(session, &hello, deadline_ns, ret_error);
    gms_fd_close(&hello.fds[0]);
    return status;
}

/* The kind of memory is known from the first WELCOME on. The driver is started here, so that a rank which does not see
 * the GPU of its coordinator rank is told before anybody waits for it. */
static gms_status choose_memory(struct gms_session *session, const struct gms_message *message,
                                struct gms_error *ret_error)
{
    const struct gms_vmm *vmm = message->welcome.on_device ? gms_vmm_cuda() : gms_vmm_host();
    struct gms_uuid uuid;
    struct gms_error error = {.status = GMS_OK};
    char text[GMS_UUID_TEXT_BYTES];
    if (session->vmm != NULL && session->vmm != vmm)
        return gms_fail(ret_error, GMS_E_REFUSED,
                        "the deployment's pools are %s memory now, and were %s memory when this "
                        "engine joined",
                        vmm->name, session->vmm->name);
    if (session->vmm == NULL && message->welcome.on_device) {
        if (message->welcome.device.length != sizeof uuid.bytes)
            return gms_fail(ret_error, GMS_E_PROTOCOL,
                            "coordinator rank %" PRIu32 " names its GPU in %" PRIu32 " bytes", session->rank,
                            message->welcome.device.length);
        memcpy(uuid.bytes, message->welcome.device.data, sizeof uuid.bytes);
        gms_status status = gms_vmm_cuda_choose(gms_uuid_format(&uuid, false, text), &error);
        if (status == GMS_OK)
            status = gms_vmm_cuda_ready(NULL, &error);
        if (status != GMS_OK)
            return gms_fail(ret_error, status,
                            "pools of rank %" PRIu32 " are on %s: %s; give this engine rank that GPU "
                            "(CUDA_VISIBLE_DEVICES)",
                            session->rank, text, error.text);
    }
    session->vmm = vmm;
    return GMS_OK;
}

gms_status gms_link_welcomed(struct gms_session *session, const struct gms_message *message,
                             struct gms_error *ret_error)
{
    if (message->type == GMS_MESSAGE_REPLY && message->reply.status != GMS_OK)
        return gms_reply_error(message, ret_error);
    if (message->type != GMS_MESSAGE_WELCOME)
        return gms_fail(ret_error, GMS_E_PROTOCOL, "coordinator rank %" PRIu32 " answered HELLO with %s", session->rank,
                        gms_message_name(message->type));
    if (message->welcome.rank != session->rank || message->welcome.world_size == 0 ||
        message->welcome.world_size > GMS_MAX_RANKS || message->welcome.rank >= message->welcome.world_size)
        return gms_fail(ret_error, GMS_E_PROTOCOL,
                        "the coordinator at rank %" PRIu32 "'s socket says it is rank %" PRIu32 " of %" PRIu32,
                        session->rank, message->welcome.rank, message->welcome.world_size);
    if (session->world_size != 0 && session->world_size != message->welcome.world_size)
        return gms_fail(ret_error, GMS_E_REFUSED,
                        "the deployment has %" PRIu32 " ranks now, and had %" PRIu32 " when this engine joined",
                        message->welcome.world_size, session->world_size);
    gms_status status = choose_memory(session, message, ret_error);
    if (status == GMS_OK && session->world == 0)
        status = gms_tags_take_preset(session, message, ret_error);
    if (status != GMS_OK)
        return status;
    session->world = message->welcome.world;
    session->world_size = message->welcome.world_size;
    session->kv_verify_full = message->welcome.kv_verify_full != 0;
    session->operation_timeout_ms = message->welcome.operation_timeout_ms;
    session->link = GMS_LINK_UP;
    set_timer(session, 0);
    return GMS_OK;
}

/* ------------------------------------------------------------------------------------------------ coming back - */

void gms_link_lost(struct gms_session *session)
{
    const uint64_t now_ns = gms_clock_ns();
    if (session->link == GMS_LINK_UP) {
        session->lost_ns = now_ns;
        session->pause_ns = first_pause_ns;
    }
    /* Closing is not enough where a forked child has a copy: its end would make the event descriptor readable for ever.
     */
    if (session->fd >= 0)
        (void)epoll_ctl(session->event_fd, EPOLL_CTL_DEL, session->fd, NULL);
    gms_fd_close(&session->fd);
    session->link = GMS_LINK_DOWN;
    session->retry_ns = now_ns + session->pause_ns;
    const uint64_t limit_ns = now_ns - session->lost_ns < soon_ns ? soon_pause_ns : longest_pause_ns;
    session->pause_ns = 2 * session->pause_ns < limit_ns ? 2 * session->pause_ns : limit_ns;
    set_timer(session, session->retry_ns);
}

/* What the new coordinator may not have from the old one. Answers to it are dropped by whoever reads next. */
static gms_status say_again(struct gms_session *session, uint64_t deadline_ns, struct gms_error *ret_error)
{
    gms_status status = GMS_OK;
    if (session->incarnation == 0)
        return GMS_OK;
    if (session->parked) {
        gms_tags_tell(session);
        struct gms_message parked = {.type = GMS_MESSAGE_PARKED, .plain = {.incarnation = session->incarnation}};
        status = gms_session_send(session, &parked, deadline_ns, ret_error);
    }
    if (session->said_ready && status == GMS_OK) {
        struct gms_message ready = {.type = GMS_MESSAGE_READY, .ready = {.incarnation = session->incarnation}};
        ready.ready.endpoint = (struct gms_bytes){session->endpoint, (uint32_t)strlen(session->endpoint)};
        status = gms_session_send(session, &ready, deadline_ns, ret_error);
        session->ready_request = ready.request_id;
    }
    for (uint32_t i = 0; i < GMS_OPEN_TRANSFERS && status == GMS_OK; i++) {
        const struct gms_open_transfer *open = &session->open_transfers[i];
        if (open->id == 0)
            continue;
        struct gms_message dispatch = {.type = GMS_MESSAGE_TRANSFER_DISPATCH,
                                       .transfer = {.incarnation = session->incarnation,
                                                    .id = open->id,
                                                    .part_count = open->part_count,
                                                    .again = 1,
                                                    .ended_mask = open->ended_mask,
                                                    .failed_mask = open->failed_mask}};
        status = gms_session_send(session, &dispatch, deadline_ns, ret_error);
    }
    return status;
}

/* The answer to HELLO, if it is here. */
static gms_status hear_welcome(struct gms_session *session, uint64_t now_ns, struct gms_error *ret_error)
{
    struct gms_message message;
    gms_status status = gms_channel_receive(session->fd, session->buffer, &message, ret_error);
    if (status == GMS_E_AGAIN && now_ns < session->greeting_deadline_ns)
        return gms_fail(ret_error, GMS_E_AGAIN, "coordinator rank %" PRIu32 " has not answered HELLO yet",
                        session->rank);
    if (status == GMS_OK) {
        status = gms_link_welcomed(session, &message, ret_error);
        gms_message_close_fds(&message);
        if (status == GMS_E_CONDEMNED && ret_error != NULL)
            gms_session_condemn(session, ret_error->text, strlen(ret_error->text));
    }
    if (status == GMS_OK)
        status = say_again(session, now_ns + GMS_NS_PER_S, ret_error);
    if (status != GMS_OK)
        gms_link_lost(session);
    return status;
}

gms_status gms_link_step(struct gms_session *session, struct gms_error *ret_error)
{
    struct gms_error error;
    uint64_t expirations;
    if (session->link == GMS_LINK_UP)
        return GMS_OK;
    (void)!read(session->timer_fd, &expirations, sizeof expirations);
    const uint64_t now_ns = gms_clock_ns(); /* after the read: an expiry that was taken away is one that has passed */
    gms_status status = GMS_E_AGAIN;
    if (session->link == GMS_LINK_DOWN && now_ns >= session->retry_ns) {
        status = gms_link_connect(session, CONNECT_MS, &error);
        if (status == GMS_OK)
            status = gms_link_hello(session, now_ns + GMS_NS_PER_MS, &error);
        if (status == GMS_OK) {
            session->link = GMS_LINK_GREETING;
            session->greeting_deadline_ns = now_ns + greeting_ns;
            set_timer(session, session->greeting_deadline_ns);
        } else {
            gms_link_lost(session);
        }
    }
    if (session->link == GMS_LINK_GREETING)
        status = hear_welcome(session, now_ns, &error);
    if (status == GMS_OK)
        return GMS_OK;
    if (gms_session_condemned(session))
        return gms_session_fail_condemned(session, ret_error);
    return gms_fail(ret_error, GMS_E_DISCONNECTED,
                    "coordinator rank %" PRIu32 " is gone; tokens may go on, this session is attached again when it is "
                    "back",
                    session->rank);
}

gms_status gms_link_wait(struct gms_session *session, uint64_t deadline_ns, struct gms_error *ret_error)
{
    for (;;) {
        gms_status status = gms_link_step(session, ret_error);
        if (status != GMS_E_DISCONNECTED || gms_clock_ns() >= deadline_ns)
            return status;
        const uint64_t due_ns = session->link == GMS_LINK_DOWN ? session->retry_ns : session->greeting_deadline_ns;
        struct pollfd news = {.fd = session->event_fd, .events = POLLIN};
        (void)poll(&news, 1, gms_clock_poll_ms(due_ns < deadline_ns ? due_ns : deadline_ns));
    }
}
