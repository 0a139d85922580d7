/* SPDX-License-Identifier: Apache-2.0 */
#include <event2/event.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/fd.h"
#include "base/log.h"
#include "daemon/daemon_state.h"
#include "host/program.h"

enum { HOOK_SECONDS = 10 };

static void free_event(struct event **event)
{
    if (*event != NULL)
        event_free(*event);
    *event = NULL;
}

enum { DEATH_MS = 100 };

/* It has ended, or is given up: reaped if it can be, never waited for without a bound. */
static void let_go(struct gms_daemon *daemon)
{
    siginfo_t result = {0};
    if (daemon->hook_fd < 0)
        return;
    if (waitid(P_PIDFD, (id_t)daemon->hook_fd, &result, WEXITED | WNOHANG) == 0 && result.si_pid != 0 &&
        (result.si_code != CLD_EXITED || result.si_status != 0))
        gms_log(GMS_LOG_WARNING, "hooks.on_serving failed (%s %d)", result.si_code == CLD_EXITED ? "exit" : "signal",
                result.si_status);
    free_event(&daemon->hook_ended);
    free_event(&daemon->hook_deadline);
    gms_fd_close(&daemon->hook_fd);
}

static void kill_hook(struct gms_daemon *daemon, const char *why)
{
    struct pollfd ended = {.fd = daemon->hook_fd, .events = POLLIN};
    gms_log(GMS_LOG_WARNING, "hooks.on_serving is killed: %s", why);
    gms_pidfd_signal(daemon->hook_fd, SIGKILL);
    poll(&ended, 1, DEATH_MS);
    let_go(daemon);
}

static void on_hook_ended(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    let_go(context);
}

static void on_hook_deadline(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    kill_hook(context, "it ran for more than 10 s");
}

void gms_daemon_run_hook(struct gms_daemon *daemon, uint64_t epoch)
{
    const struct gms_config *config = daemon->options.config;
    if (config->on_serving_bytes == 0)
        return;
    if (daemon->hook_fd >= 0)
        kill_hook(daemon, "a later epoch begins");
    char epoch_text[48], endpoint_text[320];
    snprintf(epoch_text, sizeof epoch_text, "GMS_EPOCH=%llu", (unsigned long long)epoch);
    snprintf(endpoint_text, sizeof endpoint_text, "GMS_ENDPOINT=%s", daemon->endpoint);
    const struct gms_program what = {
        .words = config->on_serving, .words_bytes = config->on_serving_bytes, .variables = {epoch_text, endpoint_text}};
    struct gms_error error;
    if (gms_program_start(&what, &daemon->hook_fd, &error) != GMS_OK) {
        gms_log(GMS_LOG_WARNING, "hooks.on_serving: %s", error.text);
        return;
    }
    const struct timeval limit = {.tv_sec = HOOK_SECONDS};
    daemon->hook_ended = event_new(daemon->base, daemon->hook_fd, EV_READ, on_hook_ended, daemon);
    daemon->hook_deadline = evtimer_new(daemon->base, on_hook_deadline, daemon);
    if (daemon->hook_ended == NULL || daemon->hook_deadline == NULL || event_add(daemon->hook_ended, NULL) != 0 ||
        event_add(daemon->hook_deadline, &limit) != 0)
        gms_log(GMS_LOG_WARNING, "hooks.on_serving is not watched: the event loop refused it");
}

void gms_daemon_end_hook(struct gms_daemon *daemon)
{
    let_go(daemon); /* one that runs may go on without us: the group stopped as planned */
}
