/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-exec: one engine rank, contained. The order of its life:
 *
 *   WAITING   for the coordinator and the agreed environment
 *   STARTING  the guardian forks the rank, which waits
 *   OFFERING  the coordinator is given the container
 *   RUNNING   the rank runs; the coordinator may come and go
 *   ENDING    the rank has ended, or we were told to; the guardian kills what is left
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/launcher.h"
#include "base/log.h"
#include "base/run_dir.h"
#include "base/units.h"
#include "gms-exec/container.h"
#include "gms-exec/descendants.h"
#include "gms-exec/environment.h"
#include "gms-exec/link.h"
#include "gms-exec/options.h"

enum phase { PHASE_WAITING, PHASE_STARTING, PHASE_OFFERING, PHASE_RUNNING, PHASE_ENDING };

static const int passed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
static const uint64_t ending_limit_ns = 10 * GMS_NS_PER_S; /* of a rank that was never let run */

struct program {
    struct gms_exec_options options;
    struct gms_link link;
    struct gms_saved saved;
    struct gms_container container;
    struct gms_spared spared;
    enum gms_guard guard;
    enum phase phase;
    int signals;
    int own;          /* our pidfd */
    bool terminal;    /* we are the foreground of a terminal, which signals the rank by itself */
    pid_t engine_pid; /* as this namespace counts; to recognise it when it comes to us orphaned */
    int exit_code;
    bool exit_known; /* exit_code is the command's */
    bool guardian_ended, guardian_clean;
    bool leaving; /* told to end again while the guardian is still at work */
    uint64_t wait_deadline_ns, next_progress_ns, ending_deadline_ns;
};

static int code_of_status(int status)
{
    return WIFSIGNALED(status) ? GMS_EXEC_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Descriptors 0 to 2 must be somebody's, or a socket of ours becomes the command's standard output. */
static void fill_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            (void)!open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- the parts ----- */

/* From here on the only way is down: the guardian kills what is left, its end ends us. */
static void end(struct program *program, int exit_code)
{
    if (program->phase != PHASE_ENDING) {
        program->exit_code = exit_code;
        program->ending_deadline_ns = gms_clock_ns() + ending_limit_ns;
        program->phase = PHASE_ENDING;
        /* A rank that was never let run reads the end of this pipe and goes. */
        gms_fd_close(&program->container.go);
        if (program->container.control >= 0 && program->container.engine < 0) {
            gms_fd_close(&program->container.control);
        }
    }
}

static gms_status set_variables(struct program *program, struct gms_error *ret_error)
{
    const struct gms_exec_options *options = &program->options;
    char rank[16], world_size[16], engine[16];
    size_t skipped = 0;
    gms_status status;

    gms_launcher_make_directories();
    status = gms_environment_apply(program->link.environment, program->link.environment_bytes, &skipped, ret_error);
    if (status != GMS_OK) {
        return status;
    }
    if (skipped > 0) {
        gms_log(GMS_LOG_WARNING,
                "%zu launcher variables (OMPI_, PMIX_, SLURM_...) came with the agreed environment and were left out",
                skipped);
    }
    snprintf(rank, sizeof rank, "%u", options->rank);
    snprintf(world_size, sizeof world_size, "%u", program->link.world_size);
    snprintf(engine, sizeof engine, "%u", options->engine);
    if (setenv("GMS_RUN_DIR", options->run_dir, 1) != 0 || setenv("GMS_RANK", rank, 1) != 0 ||
        setenv("GMS_WORLD_SIZE", world_size, 1) != 0 || setenv("GMS_LAUNCH_ID", options->launch, 1) != 0 ||
        setenv("ENGINE_ID", engine, 1) != 0) {
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the environment");
    }
    if (program->guard == GMS_GUARD_NAMESPACE) {
        /* Ranks in namespaces of their own cannot read each other's memory by pid (Open MPI 4 and 5). */
        setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
        setenv("OMPI_MCA_smsc", "^cma", 0);
    }
    return GMS_OK;
}

static void start(struct program *program)
{
    const int ours[] = {program->link.fd, program->signals, program->own};
    struct gms_error error;

    if (program->options.containment == GMS_EXEC_AS_DEPLOYED) {
        enum gms_exec_containment wanted = program->link.containment < GMS_EXEC_CONTAINMENT_COUNT
                                               ? (enum gms_exec_containment)program->link.containment
                                               : GMS_EXEC_AUTO;
        if (gms_container_choose(&program->container, wanted, &program->guard, &error) != GMS_OK) {
            gms_log(GMS_LOG_ERROR, "%s", error.text);
            end(program, GMS_EXEC_SYSTEM);
            return;
        }
    }
    if (set_variables(program, &error) != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        end(program, GMS_EXEC_NO_COORDINATOR);
        return;
    }
    if (gms_container_start(&program->container, program->guard, !program->terminal, program->options.command, ours,
                            sizeof ours / sizeof ours[0], &error) != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        end(program, GMS_EXEC_SYSTEM);
        return;
    }
    program->phase = PHASE_STARTING;
}

static void on_link(struct program *program, enum gms_link_event event)
{
    bool started = program->phase == PHASE_RUNNING || program->phase == PHASE_ENDING;

    switch (event) {
    case GMS_LINK_NOTHING:
        break;
    case GMS_LINK_ENVIRONMENT:
        if (program->phase == PHASE_WAITING) {
            start(program);
        }
        break;
    case GMS_LINK_TAKEN:
        if (program->phase == PHASE_OFFERING) {
            gms_log(GMS_LOG_INFO, "the coordinator has the container; running %s", program->options.command[0]);
            gms_container_go(&program->container);
            program->phase = PHASE_RUNNING;
        } else {
            gms_log(GMS_LOG_NOTICE, "attached to the coordinator again, world %llu",
                    (unsigned long long)program->link.world);
        }
        break;
    case GMS_LINK_LOST:
        gms_log(GMS_LOG_NOTICE, "the coordinator is gone; the engine runs on, attaching again when it is back");
        break;
    case GMS_LINK_REFUSED:
        gms_log(started ? GMS_LOG_WARNING : GMS_LOG_ERROR, "%s%s", program->link.error.text,
                started ? "; the engine runs on, asking again" : "");
        if (!started) {
            end(program, GMS_EXEC_NO_COORDINATOR);
        }
        break;
    }
}

static void on_report(struct program *program, const struct gms_report *report)
{
    switch ((enum gms_report_kind)report->kind) {
    case GMS_REPORT_READY:
        if (program->guard == GMS_GUARD_WALK) { /* /proc is known to count as we do */
            program->engine_pid = gms_pidfd_pid(program->container.engine);
        }
        if (report->value == 1) {
            gms_container_remove_group(&program->container);
            gms_fd_close(&program->container.cgroup);
        }
        if (program->phase == PHASE_STARTING) {
            gms_link_offer(&program->link, gms_container_kind(&program->container),
                           gms_container_pidfd(&program->container), program->container.engine,
                           program->container.cgroup);
            program->phase = PHASE_OFFERING;
        }
        break;
    case GMS_REPORT_FAILED:
        gms_log(GMS_LOG_ERROR, "the cohort cannot be contained: %s: %s%s", report->step, strerror(report->value),
                program->guard == GMS_GUARD_NAMESPACE ? "; use --containment subreaper" : "");
        end(program, GMS_EXEC_SYSTEM);
        break;
    case GMS_REPORT_EXEC_FAILED:
        gms_log(GMS_LOG_ERROR, "cannot run %s: %s", program->options.command[0], strerror(report->value));
        break;
    case GMS_REPORT_ENDED:
        if (program->phase != PHASE_ENDING) {
            program->exit_known = true;
            end(program, code_of_status(report->value));
        }
        break;
    }
}

static void on_signal(struct program *program, const struct signalfd_siginfo *info)
{
    int number = (int)info->ssi_signo;

    if (number == SIGCHLD) {
        return; /* reap() follows */
    }
    switch (program->phase) {
    case PHASE_WAITING:
    case PHASE_STARTING:
    case PHASE_OFFERING:
        gms_log(GMS_LOG_NOTICE, "told to end (%s) before the engine ran", strsignal(number));
        end(program, GMS_EXEC_SIGNAL + number);
        break;
    case PHASE_RUNNING:
        if (program->terminal && info->ssi_code == SI_KERNEL) {
            break; /* Ctrl-C went to the whole foreground group */
        }
        gms_log(GMS_LOG_INFO, "passing on %s", strsignal(number));
        if (number == SIGTERM) {
            gms_link_tell_leaving(&program->link); /* before the rank can end of it */
        }
        gms_pidfd_signal(program->container.engine, number);
        break;
    case PHASE_ENDING: /* V34: what cannot be killed must not keep us; the guardian goes on without us */
        program->leaving = program->exit_known;
        break;
    }
}

/* Reaps every child that has ended; as PID 1 or subreaper we get orphans too. */
static void reap(struct program *program)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == program->container.guardian_pid) {
            program->guardian_ended = true;
            program->guardian_clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        } else if (pid == program->engine_pid && !program->exit_known) {
            program->exit_known = true;
            program->exit_code = code_of_status(status);
        }
        gms_spared_reaped(&program->spared, pid);
    }
}

/* The guardian was killed. Its orphans have come to us; the rank was killed by its parent-death signal. */
static void clean_up_after_guardian(struct program *program)
{
    int quiet_passes = 0, pause_ms = 1;

    while (quiet_passes < 2) {
        struct pollfd ready = {.fd = program->signals, .events = POLLIN};
        struct signalfd_siginfo ignored[8];
        pid_t first;

        reap(program);
        quiet_passes = gms_descendants_kill(&program->spared, &first) == 0 ? quiet_passes + 1 : 0;
        if (poll(&ready, 1, pause_ms) > 0) {
            (void)!read(program->signals, ignored, sizeof ignored);
            pause_ms = 1;
        } else if (pause_ms < 64) {
            pause_ms *= 2;
        }
    }
    reap(program);
}

/* ----------------------------------------------------------------------------------------------- the loop ----- */

static void report_progress(struct program *program, uint64_t now_ns)
{
    char waited[32], limit[32];

    gms_format_duration(now_ns + program->options.wait_ns - program->wait_deadline_ns, waited, sizeof waited);
    gms_format_duration(program->options.wait_ns, limit, sizeof limit);
    gms_log(GMS_LOG_NOTICE, "waiting for coordinator rank %u at %s for %s of %s (%s)", program->options.rank,
            program->link.path, waited, limit,
            program->link.error.text[0] != '\0' ? program->link.error.text : "connected, no answer yet");
}

static void on_time(struct program *program, uint64_t now_ns)
{
    if (program->phase == PHASE_RUNNING || program->phase == PHASE_ENDING) {
        return;
    }
    if (now_ns >= program->wait_deadline_ns) {
        gms_log(
            GMS_LOG_ERROR,
            "no coordinator for rank %u within --wait: %s. Is gms-coord running with this run directory, and does the "
            "deployment have that rank?",
            program->options.rank, program->link.error.text[0] != '\0' ? program->link.error.text : program->link.path);
        end(program, GMS_EXEC_NO_COORDINATOR);
    } else if (now_ns >= program->next_progress_ns) {
        report_progress(program, now_ns);
        program->next_progress_ns = now_ns + 10 * GMS_NS_PER_S;
    }
}

static uint64_t earliest(const struct program *program)
{
    uint64_t deadline_ns = program->link.deadline_ns;

    if (program->phase == PHASE_ENDING) {
        return program->exit_known ? UINT64_MAX : program->ending_deadline_ns;
    }
    if (program->phase != PHASE_RUNNING) {
        deadline_ns = program->wait_deadline_ns < deadline_ns ? program->wait_deadline_ns : deadline_ns;
        deadline_ns = program->next_progress_ns < deadline_ns ? program->next_progress_ns : deadline_ns;
    } else if (program->saved.fd < 0 && program->saved.retry_ns < deadline_ns) {
        deadline_ns = program->saved.retry_ns;
    }
    return deadline_ns;
}

/* True when there is nothing to wait for any more. */
static bool is_over(const struct program *program, uint64_t now_ns)
{
    if (program->guardian_ended || program->leaving) {
        return true;
    }
    if (program->phase != PHASE_ENDING) {
        return false;
    }
    return program->container.guardian < 0 || (!program->exit_known && now_ns >= program->ending_deadline_ns) ||
           (program->guard == GMS_GUARD_OUTER && program->exit_known);
}

static void run(struct program *program)
{
    for (;;) {
        uint64_t now_ns = gms_clock_ns();
        struct pollfd ready[] = {
            {.fd = program->signals, .events = POLLIN},
            {.fd = program->link.fd, .events = POLLIN},
            {.fd = program->container.control, .events = POLLIN},
            {.fd = program->container.guardian, .events = POLLIN},
            {.fd = program->saved.fd, .events = POLLIN | POLLRDHUP},
        };
        struct signalfd_siginfo info;
        struct gms_report report;
        enum gms_link_event event;

        if (is_over(program, now_ns)) {
            return;
        }
        if (poll(ready, sizeof ready / sizeof ready[0], gms_clock_poll_ms(earliest(program))) < 0 && errno != EINTR) {
            return;
        }
        /* Reports first: the rank's status must be known before its guardian's end is noticed. */
        while (program->container.control >= 0 && gms_container_report(&program->container, &report)) {
            on_report(program, &report);
        }
        while (read(program->signals, &info, sizeof info) == (ssize_t)sizeof info) {
            on_signal(program, &info);
        }
        reap(program);
        if (program->guardian_ended) {
            while (program->container.control >= 0 && gms_container_report(&program->container, &report)) {
                on_report(program, &report);
            }
        }
        if (ready[2].revents & (POLLHUP | POLLERR)) {
            gms_fd_close(&program->container.control); /* its end follows; a closed pair would keep us awake */
        }
        now_ns = gms_clock_ns();
        if (program->phase != PHASE_ENDING) {
            do {
                event = gms_link_step(&program->link, now_ns);
                on_link(program, event);
            } while (event != GMS_LINK_NOTHING && program->phase != PHASE_ENDING);
            on_time(program, now_ns);
            if (program->phase == PHASE_RUNNING && gms_saved_step(&program->saved, now_ns))
                gms_log(GMS_LOG_NOTICE, "a new keeper was given the copies that are saved here");
        } else {
            gms_fd_close(&program->link.fd);
        }
    }
}

static gms_status prepare(struct program *program, struct gms_error *ret_error)
{
    sigset_t watched;
    gms_status status;

    if (program->options.containment != GMS_EXEC_AS_DEPLOYED) { /* before anybody waits for us */
        status = gms_container_choose(&program->container, program->options.containment, &program->guard, ret_error);
        if (status != GMS_OK) {
            return status;
        }
    }
    gms_spared_note(&program->spared);
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    for (size_t i = 0; i < sizeof passed_on / sizeof passed_on[0]; i++) {
        sigaddset(&watched, passed_on[i]);
    }
    sigprocmask(SIG_BLOCK, &watched, NULL);
    program->signals = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (program->signals < 0) {
        return gms_fail(ret_error, GMS_E_SYSTEM, "signalfd: %s", strerror(errno));
    }
    program->terminal = isatty(STDIN_FILENO) && tcgetpgrp(STDIN_FILENO) == getpgrp();
    program->wait_deadline_ns = gms_clock_ns() + program->options.wait_ns;
    program->next_progress_ns = gms_clock_ns() + GMS_NS_PER_S;
    return gms_pidfd_open(getpid(), &program->own, ret_error);
}

int main(int argc, char **argv)
{
    static struct program program = {.container = GMS_CONTAINER_NONE, .saved = {.fd = -1}, .signals = -1, .own = -1};
    struct gms_error error;
    char ident[32];

    gms_signals_reset();
    fill_standard_descriptors();
    gms_exec_options_parse(argc, argv, &program.options);
    snprintf(ident, sizeof ident, "gms-exec[%u]", program.options.rank);
    if (gms_log_open(ident, program.options.log_destination, program.options.log_level, &error) != GMS_OK) {
        fprintf(stderr, "gms-exec: --log-destination: %s\n", error.text);
        return GMS_EXEC_USAGE;
    }
    if (prepare(&program, &error) != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        return GMS_EXEC_SYSTEM;
    }
    if (gms_link_open(&program.link, program.options.run_dir, program.options.rank, program.options.engine,
                      program.options.launch, program.own, &error) != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        return GMS_EXEC_USAGE;
    }
    if (gms_saved_open(&program.saved, program.options.run_dir, program.options.rank, &error) != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        return GMS_EXEC_USAGE;
    }
    program.link.saved = &program.saved;
    run(&program);
    if (program.guardian_ended && !program.guardian_clean) {
        if (program.guard == GMS_GUARD_WALK) {
            clean_up_after_guardian(&program);
        }
        if (!program.exit_known && program.phase != PHASE_ENDING) {
            gms_log(GMS_LOG_WARNING, "the cohort's guardian was killed");
            program.exit_code = GMS_EXEC_SIGNAL + SIGKILL;
        }
    }
    gms_container_remove_group(&program.container);
    gms_link_close(&program.link);
    gms_saved_close(&program.saved);
    gms_container_close(&program.container);
    free(program.spared.pids);
    return program.exit_code;
}
