/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-up/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "wire/channel.h"

static const uint64_t look_again_ns = 20 * GMS_NS_PER_MS;
static const uint64_t start_again_ns = 200 * GMS_NS_PER_MS; /* one that ends at once is not started in a loop */

gms_status gms_up_keeper_open(struct gms_up_keeper *keeper, const struct gms_up_options *options, const char *run_dir,
                              struct gms_error *ret_error)
{
    *keeper = (struct gms_up_keeper){.options = options, .run_dir = run_dir, .pidfd = -1};
    return gms_watch_open(&keeper->watch, run_dir, "keeper", -1, false, ret_error);
}

static void start(struct gms_up_keeper *keeper)
{
    const char *const words[] = {keeper->options->keeper, "--run-dir", keeper->run_dir, NULL};
    pid_t pid = fork();
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
        signal(SIGXFSZ, SIG_DFL);
        setsid();
        int null = open("/dev/null", O_RDONLY);
        if (null >= 0)
            dup2(null, 0);
        close_range(STDERR_FILENO + 1, ~0U, 0);
        execvp(words[0], (char *const *)(uintptr_t)words);
        _exit(127);
    }
    if (pid < 0) {
        gms_log(GMS_LOG_ERROR, "the keeper cannot be started: fork: %s", strerror(errno));
        return;
    }
    keeper->pid = pid;
    gms_fd_close(&keeper->pidfd);
    (void)gms_pidfd_open(pid, &keeper->pidfd, NULL); /* our child, not yet waited for: the number is its own */
    gms_log(GMS_LOG_NOTICE, "no keeper serves %s: started one, process %d", keeper->run_dir, (int)pid);
}

bool gms_up_keeper_step(struct gms_up_keeper *keeper, uint64_t now_ns, bool may_start)
{
    if (gms_watch_step(&keeper->watch))
        gms_log(GMS_LOG_WARNING, "the keeper's connection ended");
    if (keeper->watch.state == GMS_WATCH_DOWN)
        gms_watch_step(&keeper->watch); /* it may only have closed a silent client */
    if (keeper->watch.state == GMS_WATCH_UP)
        return true;
    if (may_start && keeper->options->keep_keeper && keeper->pid == 0 && now_ns >= keeper->next_start_ns) {
        keeper->next_start_ns = now_ns + start_again_ns;
        start(keeper);
    }
    return false;
}

uint64_t gms_up_keeper_deadline(const struct gms_up_keeper *keeper)
{
    return keeper->watch.state == GMS_WATCH_UP ? UINT64_MAX : gms_clock_ns() + look_again_ns;
}

void gms_up_keeper_reaped(struct gms_up_keeper *keeper, pid_t pid, int wait_status)
{
    if (pid != keeper->pid)
        return;
    keeper->pid = 0;
    gms_fd_close(&keeper->pidfd);
    if (WIFSIGNALED(wait_status))
        gms_log(GMS_LOG_WARNING, "the keeper was ended by signal %d", WTERMSIG(wait_status));
    else
        gms_log(GMS_LOG_WARNING, "the keeper ended with status %d%s", WEXITSTATUS(wait_status),
                WEXITSTATUS(wait_status) == 127 ? ": it cannot be run" : "");
}

/* A keeper that we started has not ended; whether it listens already is another matter. */
static bool runs(const struct gms_up_keeper *keeper)
{
    return keeper->pid != 0 && !gms_pidfd_ended(keeper->pidfd);
}

bool gms_up_keeper_is_gone(struct gms_up_keeper *keeper, uint64_t deadline_ns)
{
    for (;;) {
        gms_watch_step(&keeper->watch);
        if (keeper->watch.state == GMS_WATCH_UP)
            return false;
        if (keeper->watch.nobody && !runs(keeper))
            return true;
        if (gms_clock_ns() >= deadline_ns)
            return false;
        struct pollfd ended = {.fd = runs(keeper) ? keeper->pidfd : -1, .events = POLLIN};
        poll(&ended, 1, (int)(look_again_ns / GMS_NS_PER_MS));
    }
}

/* Asked, not signalled: a second SIGTERM would end it whatever it holds, and somebody else may have sent the first. */
bool gms_up_keeper_let_go(struct gms_up_keeper *keeper, bool force)
{
    struct gms_message stop = {.type = GMS_MESSAGE_SHUTDOWN, .request_id = 1, .plain.incarnation = force};
    if ((keeper->pid == 0 && !force) || keeper->watch.state != GMS_WATCH_UP)
        return false;
    return gms_channel_send(keeper->watch.fd, &stop, NULL) == GMS_OK; /* refused by one that holds something */
}

void gms_up_keeper_close(struct gms_up_keeper *keeper)
{
    gms_watch_close(&keeper->watch);
    gms_fd_close(&keeper->pidfd);
}
