/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-up/node.h"

#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "gms-up/job.h"
#include "gms-up/keeper.h"

enum { ENDED = 75 };
static const uint64_t letting_go_ns = 2 * GMS_NS_PER_S, asking_ns = 300 * GMS_NS_PER_MS,
                      together_ns = GMS_NS_PER_S; /* signals to end that come together are one */

static bool parse(int argc, char **argv, struct gms_up_options *ret_options, const char **ret_run_dir)
{
    static const struct option options[] = {
        {"run-dir", required_argument, NULL, 'r'}, {"gms-keeper", required_argument, NULL, 'k'}, {NULL, 0, NULL, 0}};
    gms_up_options_default(ret_options);
    *ret_run_dir = NULL;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 'r')
            *ret_run_dir = optarg;
        else if (option == 'k' && strlen(optarg) < sizeof ret_options->keeper)
            snprintf(ret_options->keeper, sizeof ret_options->keeper, "%s", optarg);
        else
            return false;
    }
    return *ret_run_dir != NULL && optind == argc;
}

/* Asks the keeper to end. True: it has, or there is none. */
static bool let_go(struct gms_up_keeper *keeper, bool force)
{
    const uint64_t patience_ns = force ? letting_go_ns : asking_ns;
    if (gms_up_keeper_is_gone(keeper, gms_clock_ns() + patience_ns))
        return true;
    if (keeper->watch.state != GMS_WATCH_UP)
        return false;
    bool asked = gms_up_keeper_let_go(keeper, force);
    struct pollfd end = {.fd = keeper->watch.fd, .events = POLLRDHUP};
    if (poll(&end, 1, gms_clock_poll_ms(gms_clock_ns() + patience_ns)) <= 0)
        return false;
    return asked || gms_up_keeper_is_gone(keeper, gms_clock_ns() + patience_ns); /* somebody else may have asked */
}

/* How it ends. */
static int serve(struct gms_up_keeper *keeper, int signals)
{
    uint64_t told_ns = 0;
    for (;;) {
        struct signalfd_siginfo info;
        gms_up_keeper_step(keeper, gms_clock_ns(), true);
        struct pollfd ready[] = {{.fd = signals, .events = POLLIN},
                                 {.fd = keeper->watch.fd, .events = POLLIN | POLLRDHUP}};
        poll(ready, 2, gms_clock_poll_ms(gms_up_keeper_deadline(keeper)));
        while (read(signals, &info, sizeof info) == (ssize_t)sizeof info) {
            int status;
            pid_t pid;
            switch (info.ssi_signo) {
            case SIGCHLD:
                while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
                    gms_up_keeper_reaped(keeper, pid, status);
                break;
            case SIGUSR1:
                let_go(keeper, true);
                return 0;
            case SIGHUP:
                return ENDED;
            default:
                if (let_go(keeper, false))
                    return 0;
                if (told_ns != 0 && gms_clock_ns() - told_ns >= together_ns)
                    return ENDED;
                told_ns = told_ns != 0 ? told_ns : gms_clock_ns();
                gms_log(GMS_LOG_NOTICE,
                        "told to end, but the keeper holds memory or is silent: going on until told again");
                break;
            }
        }
    }
}

int gms_up_node(int argc, char **argv)
{
    struct gms_up_options options;
    struct gms_up_keeper keeper;
    struct gms_error error;
    const char *run_dir;
    pid_t parent = getppid();
    sigset_t watched;
    if (!parse(argc, argv, &options, &run_dir)) {
        fprintf(stderr, "usage: gms-up keeper --run-dir DIR [--gms-keeper PATH]\n");
        return GMS_UP_USAGE;
    }
    if (gms_log_open("gms-up keeper", "stderr", GMS_LOG_NOTICE, &error) != GMS_OK)
        return GMS_UP_SYSTEM;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGHUP);
    sigaddset(&watched, SIGUSR1);
    sigprocmask(SIG_BLOCK, &watched, NULL);
    int signals = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    prctl(PR_SET_PDEATHSIG, SIGHUP);
    if (signals < 0 || getppid() != parent) /* it ended before that was armed */
        return GMS_UP_SYSTEM;
    if (gms_run_dir_check(run_dir, 1, 1, &error) != GMS_OK ||
        gms_up_keeper_open(&keeper, &options, run_dir, &error) != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        return GMS_UP_CONFIG;
    }
    gms_up_scratch_note(run_dir);
    int code = serve(&keeper, signals);
    if (code == 0)
        gms_up_scratch_sweep(run_dir, "keepers.");
    gms_up_keeper_close(&keeper);
    gms_fd_close(&signals);
    return code;
}
