/* SPDX-License-Identifier: Apache-2.0 */
#include "fence/before_kill.h"

#include <event2/event.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "host/program.h"

enum { DEATH_MS = 20 };

struct gms_before_kill {
    struct gms_before_kill_options options;
    int pidfd;
    struct event *ended, *deadline;
};

static void free_event(struct event **event)
{
    if (*event != NULL)
        event_free(*event);
    *event = NULL;
}

/* Reaped if it can be, never waited for without a bound. True: it did what it was asked. */
static bool let_go(struct gms_before_kill *run)
{
    siginfo_t result = {0};
    bool good = run->pidfd >= 0 && waitid(P_PIDFD, (id_t)run->pidfd, &result, WEXITED | WNOHANG) == 0 &&
                result.si_pid != 0 && result.si_code == CLD_EXITED && result.si_status == 0;
    free_event(&run->ended);
    free_event(&run->deadline);
    gms_fd_close(&run->pidfd);
    return good;
}

static void on_ended(evutil_socket_t fd, short what, void *context)
{
    struct gms_before_kill *run = context;
    (void)fd;
    (void)what;
    if (!let_go(run))
        gms_log(GMS_LOG_WARNING, "hooks.before_kill failed for pid %d", (int)run->options.pid);
    run->options.done(run->options.context); /* may abandon it */
}

static void kill_it(struct gms_before_kill *run)
{
    struct pollfd ended = {.fd = run->pidfd, .events = POLLIN};
    if (run->pidfd < 0)
        return;
    gms_pidfd_signal(run->pidfd, SIGKILL);
    poll(&ended, 1, DEATH_MS);
    (void)let_go(run);
}

static void on_deadline(evutil_socket_t fd, short what, void *context)
{
    struct gms_before_kill *run = context;
    (void)fd;
    (void)what;
    gms_log(GMS_LOG_WARNING, "hooks.before_kill for pid %d has not ended within %llu ms", (int)run->options.pid,
            (unsigned long long)(run->options.limit_ns / GMS_NS_PER_MS));
    kill_it(run);
    run->options.done(run->options.context);
}

gms_status gms_before_kill_start(const struct gms_before_kill_options *options, struct gms_before_kill **ret_run,
                                 struct gms_error *ret_error)
{
    struct gms_before_kill *run = calloc(1, sizeof *run);
    char pid[16];
    if (run == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for hooks.before_kill");
    run->options = *options;
    run->pidfd = -1;
    snprintf(pid, sizeof pid, "%d", (int)options->pid);
    const struct gms_program what = {.words = options->words, .words_bytes = options->words_bytes, .last_word = pid};
    gms_status status = gms_program_start(&what, &run->pidfd, ret_error);
    if (status == GMS_OK) {
        const struct timeval limit = {.tv_sec = (time_t)(options->limit_ns / GMS_NS_PER_S),
                                      .tv_usec = (suseconds_t)(options->limit_ns % GMS_NS_PER_S / 1000)};
        run->ended = event_new(options->base, run->pidfd, EV_READ, on_ended, run);
        run->deadline = evtimer_new(options->base, on_deadline, run);
        if (run->ended == NULL || run->deadline == NULL || event_add(run->ended, NULL) != 0 ||
            event_add(run->deadline, &limit) != 0)
            status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to watch hooks.before_kill");
    }
    if (status != GMS_OK) {
        gms_before_kill_abandon(run);
        return status;
    }
    *ret_run = run;
    return GMS_OK;
}

void gms_before_kill_abandon(struct gms_before_kill *run)
{
    if (run == NULL)
        return;
    kill_it(run);
    free(run);
}
