/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-up/local.h"

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "core/ballot.h"
#include "gms-up/options.h"

static const int passed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
enum { PASSED_ON = sizeof passed_on / sizeof passed_on[0] };
static const uint64_t grace_ns = 2 * GMS_NS_PER_S;

struct rank {
    pid_t pid; /* 0: ended */
    int pidfd;
};

_Noreturn static void run(char **words, uint32_t rank, const char *launch, pid_t parent)
{
    char number[16];
    sigset_t none;
    snprintf(number, sizeof number, "%u", rank);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it ended before that was armed */
        _exit(128 + SIGKILL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setenv("GMS_RANK", number, 1);
    setenv("GMS_LAUNCH_ID", launch, 1);
    execvp(words[0], words);
    perror(words[0]);
    _exit(127);
}

static void signal_all(const struct rank *ranks, uint32_t count, int number)
{
    for (uint32_t i = 0; i < count; i++)
        if (ranks[i].pid != 0)
            gms_pidfd_signal(ranks[i].pidfd, number);
}

/* Returns how many run yet. */
static uint32_t reap(struct rank *ranks, uint32_t count, int *inout_code)
{
    uint32_t running = 0;
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (uint32_t i = 0; i < count; i++) {
            if (ranks[i].pid != pid)
                continue;
            ranks[i].pid = 0;
            gms_fd_close(&ranks[i].pidfd);
            int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            if (*inout_code == 0 && code != 0) {
                *inout_code = code;
                fprintf(stderr, "gms-up local: rank %u ended with %d; ending the others\n", i, code);
            }
        }
    }
    for (uint32_t i = 0; i < count; i++)
        running += ranks[i].pid != 0;
    return running;
}

static int look_after(struct rank *ranks, uint32_t count, int signals)
{
    int code = 0;
    uint64_t deadline_ns = UINT64_MAX; /* for those that are told to end */
    while (reap(ranks, count, &code) > 0) {
        struct pollfd ready = {.fd = signals, .events = POLLIN};
        struct signalfd_siginfo info;
        if (code != 0 && deadline_ns == UINT64_MAX) {
            deadline_ns = gms_clock_ns() + grace_ns;
            signal_all(ranks, count, SIGTERM);
        }
        if (gms_clock_ns() >= deadline_ns)
            signal_all(ranks, count, SIGKILL);
        poll(&ready, 1, gms_clock_ns() >= deadline_ns ? 100 : gms_clock_poll_ms(deadline_ns));
        while (read(signals, &info, sizeof info) == (ssize_t)sizeof info)
            if (info.ssi_signo != SIGCHLD)
                signal_all(ranks, count, (int)info.ssi_signo);
    }
    return code;
}

int gms_up_local(int argc, char **argv)
{
    char launch[64], *end = NULL;
    unsigned long count = argc >= 3 ? strtoul(argv[1], &end, 10) : 0;
    pid_t self = getpid();
    sigset_t watched;
    int code = 0;
    if (count == 0 || count > GMS_MAX_RANKS || end == NULL || *end != '\0') {
        fprintf(stderr, "usage: gms-up local RANKS COMMAND...   (1 to %d ranks)\n", GMS_MAX_RANKS);
        return GMS_UP_USAGE;
    }
    struct rank *ranks = calloc(count, sizeof *ranks);
    if (ranks == NULL)
        return GMS_UP_SYSTEM;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    for (size_t i = 0; i < PASSED_ON; i++)
        sigaddset(&watched, passed_on[i]);
    sigprocmask(SIG_BLOCK, &watched, NULL);
    int signals = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    snprintf(launch, sizeof launch, "local.%d.%llu", (int)self, (unsigned long long)gms_clock_ns());
    for (uint32_t i = 0; i < count; i++)
        ranks[i].pidfd = -1;
    for (uint32_t i = 0; i < count && code == 0; i++) {
        pid_t pid = fork();
        if (pid == 0)
            run(argv + 2, i, launch, self);
        if (pid < 0 || gms_pidfd_open(pid, &ranks[i].pidfd, NULL) != GMS_OK) {
            perror("gms-up local: fork");
            code = GMS_UP_SYSTEM;
        }
        ranks[i].pid = pid > 0 ? pid : 0;
    }
    if (code != 0 || signals < 0)
        signal_all(ranks, (uint32_t)count, SIGKILL);
    int ended = look_after(ranks, (uint32_t)count, signals);
    gms_fd_close(&signals);
    free(ranks);
    return code != 0 ? code : ended;
}
