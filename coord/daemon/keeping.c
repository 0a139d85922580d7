/* SPDX-License-Identifier: Apache-2.0
 *
 * Who else holds what this rank holds: the keeper, which may die and be replaced, and every gms-exec on this rank. The
 * rank serves on without a keeper; memory then lives as long as coordinators, engines or gms-exec do.
 */
#include <errno.h>
#include <event2/event.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/daemon_state.h"

static const uint64_t first_pause_ns = 20 * GMS_NS_PER_MS, longest_pause_ns = GMS_NS_PER_S;

static void retry_later(struct gms_daemon *daemon)
{
    const struct timeval pause = {.tv_sec = (time_t)(daemon->keeper_pause_ns / GMS_NS_PER_S),
                                  .tv_usec = (suseconds_t)(daemon->keeper_pause_ns % GMS_NS_PER_S / 1000)};
    event_add(daemon->keeper_retry, &pause);
    daemon->keeper_pause_ns =
        2 * daemon->keeper_pause_ns < longest_pause_ns ? 2 * daemon->keeper_pause_ns : longest_pause_ns;
}

void gms_daemon_keeper_is_lost(struct gms_daemon *daemon, const char *why)
{
    if (daemon->keeper_lost)
        return;
    gms_log(GMS_LOG_ERROR,
            "the keeper is gone (%s): memory now lives only as long as coordinators and engines do; start gms-keeper "
            "--run-dir %s",
            why, daemon->options.config->run_dir);
    daemon->keeper_lost = true;
    if (daemon->keeper_news != NULL)
        event_free(daemon->keeper_news);
    daemon->keeper_news = NULL;
    gms_keeper_disconnect(daemon->options.keeper);
    daemon->keeper_pause_ns = first_pause_ns;
    if (daemon->keeper_retry != NULL)
        retry_later(daemon);
}

void gms_daemon_mirror(struct gms_daemon *daemon)
{
    struct gms_error error;
    if (daemon->keeper_lost)
        return;
    gms_status status = gms_keeper_mirror(daemon->options.keeper, daemon->stored_round, &error);
    if (status == GMS_E_DISCONNECTED)
        gms_daemon_keeper_is_lost(daemon, error.text);
    else if (status != GMS_OK)
        gms_daemon_leave(daemon, status, error.text);
}

/* Every call to the keeper reads its answer, so what can be read here is its end, or an answer that came too late. */
static void on_keeper_news(evutil_socket_t fd, short what, void *context)
{
    struct gms_daemon *daemon = context;
    struct pollfd end = {.fd = (int)fd, .events = POLLRDHUP};
    (void)what;
    if (poll(&end, 1, 0) > 0 && (end.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
        gms_daemon_keeper_is_lost(daemon, "its connection ended");
    else
        event_add(daemon->keeper_news, &(struct timeval){.tv_sec = 1}); /* read by the next call */
}

static gms_status watch_keeper(struct gms_daemon *daemon, struct gms_error *ret_error)
{
    daemon->keeper_news = event_new(daemon->base, daemon->options.keeper->fd, EV_READ, on_keeper_news, daemon);
    if (daemon->keeper_news == NULL || event_add(daemon->keeper_news, NULL) != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "the event loop refused the keeper's socket");
    return GMS_OK;
}

static void on_keeper_retry(evutil_socket_t fd, short what, void *context)
{
    struct gms_daemon *daemon = context;
    const struct gms_daemon_options *options = &daemon->options;
    struct gms_error error;
    (void)fd;
    (void)what;
    gms_status status = gms_keeper_connect(options->config->run_dir, options->world, daemon->rank, daemon->ranks,
                                           options->keeper, &error);
    if (status == GMS_E_FOREIGN_WORLD)
        gms_daemon_leave(daemon, status, error.text); /* a newer world has this rank */
    if (status == GMS_OK)
        status = gms_copies_refill(daemon->copies, &error);
    if (status == GMS_OK)
        status = gms_keeper_mirror(options->keeper, daemon->stored_round, &error);
    if (status == GMS_OK)
        status = watch_keeper(daemon, &error);
    if (status != GMS_OK) {
        gms_keeper_disconnect(options->keeper);
        gms_log(GMS_LOG_DEBUG, "no keeper yet: %s", error.text);
        retry_later(daemon);
        return;
    }
    daemon->keeper_lost = false;
    gms_log(GMS_LOG_NOTICE, "a keeper is back; it has copies of everything again");
}

/* -------------------------------------------------------------------------------------------------- gms-exec -- */

static void send_copy(struct gms_client *client, enum gms_copy_kind kind, const struct gms_copy *copy)
{
    struct gms_message message = {.type = GMS_MESSAGE_COPY, .fds = {-1, -1, -1, -1}};
    message.copy.kind = kind;
    if (copy != NULL) {
        message.copy.name = (struct gms_bytes){copy->name, (uint32_t)strlen(copy->name)};
        message.copy.meta = (struct gms_bytes){copy->meta, copy->meta_bytes};
        if (kind == GMS_COPY_PUT)
            message.fds[message.fd_count++] = copy->fd;
    }
    gms_sessions_send(client, &message);
}

static void on_copy(void *context, const struct gms_copy *copy)
{
    struct gms_daemon *daemon = context;
    struct gms_client *client = NULL;
    while (daemon->sessions != NULL && (client = gms_sessions_next(daemon->sessions, client)) != NULL)
        if (client->role == GMS_CLIENT_EXEC && client->has_copies)
            send_copy(client, copy->fd >= 0 ? GMS_COPY_PUT : GMS_COPY_DROP, copy);
}

void gms_daemon_tell_copies(struct gms_daemon *daemon, struct gms_client *client)
{
    struct gms_copy copy;
    send_copy(client, GMS_COPY_BEGIN, NULL);
    for (uint32_t i = 0; gms_copies_at(daemon->copies, i, &copy); i++)
        send_copy(client, GMS_COPY_PUT, &copy);
    send_copy(client, GMS_COPY_END, NULL);
    client->has_copies = true;
}

/* --------------------------------------------------------------------------------------------- open, close ---- */

gms_status gms_daemon_keeping_open(struct gms_daemon *daemon, struct gms_error *ret_error)
{
    daemon->keeper_retry = evtimer_new(daemon->base, on_keeper_retry, daemon);
    if (daemon->keeper_retry == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a timer");
    gms_copies_listen(daemon->copies, on_copy, daemon);
    return watch_keeper(daemon, ret_error);
}

void gms_daemon_keeping_close(struct gms_daemon *daemon)
{
    gms_copies_listen(daemon->copies, NULL, NULL);
    if (daemon->keeper_news != NULL)
        event_free(daemon->keeper_news);
    if (daemon->keeper_retry != NULL)
        event_free(daemon->keeper_retry);
    daemon->keeper_news = daemon->keeper_retry = NULL;
}
