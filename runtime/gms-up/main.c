/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-up: keeper and coordinator job, kept running, and engines where the deployment file says how.
 *
 *            a keeper answers          rank 0 answers
 *   WAITING ------------------> STARTED -------------> UP
 *      ^                          |   job ended, lost  |
 *      +------ after a pause -----+--------------------+
 *                                 | planned, or no use: exit
 *
 * The end of rank 0's connection is the end of the job: the next one is started while the launcher still cleans up.
 * World tokens make that safe: whatever of the old world lives is ended before the new one begins.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "config/config.h"
#include "config/environment.h"
#include "gms-up/engines.h"
#include "gms-up/job.h"
#include "gms-up/keeper.h"
#include "gms-up/keepers.h"
#include "gms-up/local.h"
#include "gms-up/node.h"
#include "gms-up/options.h"
#include "gms-up/watch.h"

extern char **environ;

enum { EXIT_RESTART = 75, EXIT_NOTHING = -1 };
static const uint64_t pauses_ns[] = {0, 200 * GMS_NS_PER_MS, 500 * GMS_NS_PER_MS, GMS_NS_PER_S, 2 * GMS_NS_PER_S};
enum { PAUSES = sizeof pauses_ns / sizeof pauses_ns[0] };
static const uint64_t look_again_ns = 20 * GMS_NS_PER_MS, launcher_grace_ns = 5 * GMS_NS_PER_S;
static const uint64_t letting_go_ns = 2 * GMS_NS_PER_S; /* for a keeper that is starting to answer */
static const uint64_t told_once_ns = GMS_NS_PER_S;      /* signals to stop that come together are one */

struct program {
    struct gms_up_options options;
    struct gms_config config;
    struct gms_up_options here; /* `options`; keepers of several hosts are not started by the one that watches here */
    struct gms_up_keeper keeper;
    struct gms_up_keepers keepers;
    struct gms_up_job job;
    struct gms_up_engines engines;
    struct gms_watch coordinator;
    char stopped[GMS_RUN_PATH_BYTES]; /* RUN/stopped: the coordinators ended as planned */
    int signals, lock;
    uint32_t failures; /* ends in a row without a settled life */
    uint64_t next_start_ns, up_ns;
    uint64_t former_world; /* its ranks may answer yet when the next job starts already */
    bool lived; /* the job was up, or runs of an earlier gms-up were adopted: what cannot be started is tried again */
    bool stopping, hurried;
    bool ending_engines; /* the coordinators have stopped as planned by us, now the engines do */
    uint64_t stopping_ns, stop_deadline_ns;
    int exit_code; /* EXIT_NOTHING: go on */
};

/* -------------------------------------------------------------------------------------------------- ends ------ */

static bool was_planned(const struct program *program)
{
    return access(program->stopped, F_OK) == 0;
}

/* A stop was asked for, or the present job has noted one (`stopped` is removed before a job starts): a keeper that ends
 * now was told to by somebody who takes all of it down. */
static bool may_start_keeper(const struct program *program)
{
    return !program->stopping && !(program->job.now.pid != 0 && was_planned(program));
}

/* Returns the pause, in ms for the log. */
static unsigned start_later(struct program *program)
{
    const struct gms_up_launcher *now = &program->job.now;
    uint64_t now_ns = gms_clock_ns();
    if (program->up_ns != 0 && now_ns - now->started_ns >= program->options.settled_ns)
        program->failures = 0;
    program->former_world = program->coordinator.world;
    uint64_t pause_ns = pauses_ns[program->failures < PAUSES ? program->failures : PAUSES - 1];
    program->failures++;
    program->next_start_ns = now_ns + pause_ns;
    program->up_ns = 0;
    return (unsigned)(pause_ns / GMS_NS_PER_MS);
}

static const char *end_in_words(int wait_status, char text[64])
{
    if (WIFSIGNALED(wait_status))
        snprintf(text, 64, "signal %d", WTERMSIG(wait_status));
    else
        snprintf(text, 64, "exit status %d", WEXITSTATUS(wait_status));
    return text;
}

/* Codes with which starting again is of no use. */
static bool is_final(int wait_status)
{
    if (!WIFEXITED(wait_status))
        return false;
    int code = WEXITSTATUS(wait_status);
    return code == GMS_UP_USAGE || code == GMS_UP_OPERATOR || code == GMS_UP_CONFIG;
}

static void give_up(struct program *program, int code)
{
    if (program->exit_code == EXIT_NOTHING)
        program->exit_code = code;
}

/* The coordinators have stopped because we were told to: now engines may end without being taken over from. */
static void stopped(struct program *program)
{
    if (!program->stopping || program->options.keep_engines || gms_up_engines_over(&program->engines)) {
        give_up(program, GMS_UP_PLANNED);
        return;
    }
    gms_log(GMS_LOG_NOTICE, "planned stop of the engines");
    program->ending_engines = true;
    gms_up_engines_stop(&program->engines, gms_clock_ns(), program->hurried ? 0 : program->options.grace_ns);
}

/* The launcher of the present job has ended; `known`: with this status. */
static void job_ended(struct program *program, int wait_status, bool known)
{
    char text[64];
    bool planned = was_planned(program) || (known && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0);
    if (planned) {
        gms_log(GMS_LOG_NOTICE, "the coordinators stopped as planned");
        stopped(program);
    } else if (known && is_final(wait_status)) {
        gms_log(GMS_LOG_ERROR, "the coordinators ended with %s: starting again is of no use, see their log",
                end_in_words(wait_status, text));
        give_up(program, WEXITSTATUS(wait_status));
    } else if (program->stopping) {
        stopped(program);
    } else {
        unsigned pause_ms = start_later(program);
        gms_log(GMS_LOG_WARNING, "the coordinator job ended (%s); starting it again in %u ms",
                known ? end_in_words(wait_status, text) : "its launcher was not ours", pause_ms);
    }
    gms_watch_drop(&program->coordinator);
    gms_up_launcher_over(&program->job, &program->job.now);
}

/* Rank 0 is gone. Its launcher takes a second to say so. */
static void coordinator_lost(struct program *program)
{
    if (was_planned(program) || program->stopping || program->job.now.pid == 0)
        return; /* the launcher's end follows */
    unsigned pause_ms = start_later(program);
    gms_log(GMS_LOG_WARNING, "the coordinators are gone; starting them again in %u ms", pause_ms);
    gms_up_job_set_aside(&program->job);
}

/* The ranks have said that their start failed; the launcher takes a second to end them. */
static void start_failed(struct program *program)
{
    unsigned pause_ms = start_later(program);
    gms_log(GMS_LOG_WARNING, "the coordinators' start failed; starting them again in %u ms", pause_ms);
    gms_watch_drop(&program->coordinator);
    gms_up_job_set_aside(&program->job);
}

static void before_ended(struct program *program, int wait_status, bool known)
{
    char text[64];
    if (known && is_final(wait_status)) {
        gms_log(GMS_LOG_ERROR, "the earlier coordinator job ended with %s: going on is of no use, see its log",
                end_in_words(wait_status, text));
        give_up(program, WEXITSTATUS(wait_status));
    }
    gms_up_launcher_over(&program->job, &program->job.before);
}

static void reap(struct program *program)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        gms_up_keeper_reaped(&program->keeper, pid, status);
        gms_up_keepers_reaped(&program->keepers, pid, gms_clock_ns());
        gms_up_engines_reaped(&program->engines, pid, status, gms_clock_ns());
        if (pid == program->job.now.pid)
            job_ended(program, status, true);
        else if (pid == program->job.before.pid)
            before_ended(program, status, true);
    }
}

/* Launchers that an earlier gms-up started are no children of ours. */
static void look_at_adopted(struct program *program)
{
    if (program->job.now.adopted && gms_pidfd_ended(program->job.now.pidfd))
        job_ended(program, 0, false);
    if (program->job.before.adopted && gms_pidfd_ended(program->job.before.pidfd))
        before_ended(program, 0, false);
    gms_up_keepers_look_at_adopted(&program->keepers, gms_clock_ns());
    gms_up_engines_look_at_adopted(&program->engines, gms_clock_ns());
}

/* ------------------------------------------------------------------------------------------- planned stop ---- */

static void stop(struct program *program, uint64_t now_ns)
{
    if (program->stopping && now_ns - program->stopping_ns < told_once_ns)
        return; /* schedulers tell everybody, and so does everybody's parent */
    if (program->stopping) {
        program->hurried = true;
        program->stop_deadline_ns = now_ns;
        program->engines.stop_deadline_ns = now_ns;
        return;
    }
    gms_log(GMS_LOG_NOTICE, "planned stop of the coordinators%s",
            gms_up_engines_over(&program->engines) || program->options.keep_engines ? "; engines go on" : "");
    program->stopping = true;
    program->stopping_ns = now_ns;
    program->stop_deadline_ns = now_ns + program->options.grace_ns;
    if (program->job.now.pid == 0)
        stopped(program);
    else
        gms_watch_ask_stop(&program->coordinator);
}

static void hurry_stop(struct program *program, uint64_t now_ns)
{
    if (!program->stopping || now_ns < program->stop_deadline_ns || program->job.now.pid == 0)
        return;
    if (program->hurried) {
        gms_log(GMS_LOG_WARNING, "the coordinators' launcher does not end; it is killed");
        gms_pidfd_signal(program->job.now.pidfd, SIGKILL);
        program->stop_deadline_ns = UINT64_MAX;
        return;
    }
    gms_log(GMS_LOG_WARNING, "the coordinators have not stopped in time; their launcher is told to end");
    gms_pidfd_signal(program->job.now.pidfd, SIGTERM);
    program->hurried = true;
    program->stop_deadline_ns = now_ns + launcher_grace_ns;
}

static void on_signals(struct program *program, uint64_t now_ns)
{
    struct signalfd_siginfo info;
    struct gms_error error;
    while (read(program->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            reap(program);
        else if (info.ssi_signo != SIGHUP)
            stop(program, now_ns);
        else if (gms_log_reopen(&error) != GMS_OK)
            gms_log(GMS_LOG_WARNING, "the log was not reopened: %s", error.text);
    }
}

/* --------------------------------------------------------------------------------------------------- loop ---- */

/* --launcher, else launch.coordinators, else mpirun. Returns how many, fewer than 2 * GMS_UP_WORDS. */
static size_t launcher_words(const struct program *program, const char *words[2 * GMS_UP_WORDS])
{
    const struct gms_config *config = &program->config;
    size_t count = 0;
    while (program->options.launcher[count] != NULL) {
        words[count] = program->options.launcher[count];
        count++;
    }
    if (count > 0)
        return count;
    for (uint32_t at = 0; at < config->launch_coordinators_bytes && count < GMS_UP_WORDS;
         at += (uint32_t)strlen(config->launch_coordinators + at) + 1)
        words[count++] = config->launch_coordinators + at;
    if (count == 0) {
        words[count++] = "mpirun";
        words[count++] = "--oversubscribe";
    }
    return count;
}

/* Only before anything lived: later an end would take healthy coordinators along. */
static void fail(struct program *program, const struct gms_error *error)
{
    gms_log(GMS_LOG_ERROR, "%s", error->text);
    give_up(program, error->status == GMS_E_CONFIG ? GMS_UP_CONFIG : GMS_UP_SYSTEM);
}

static void start(struct program *program)
{
    struct gms_error error;
    const char *words[3 * GMS_UP_WORDS];
    char ranks[16];
    size_t count = launcher_words(program, words);
    snprintf(ranks, sizeof ranks, "%u", program->config.ranks);
    const char *const ours[] = {"-n",       ranks, program->options.coordinator, "--config", program->options.config,
                                "--replace" /* ranks can outlive their launcher */};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        words[count++] = ours[i];
    for (size_t i = 0; program->options.extra[i] != NULL; i++)
        words[count++] = program->options.extra[i];
    words[count] = NULL;
    unlink(program->stopped);
    const struct gms_up_start how = {.words = words, .temporary_files = true};
    if (gms_up_job_start(&program->job, &how, &error) == GMS_OK) {
        gms_log(GMS_LOG_NOTICE, "started the coordinators: %s, process %d", words[0], (int)program->job.now.pid);
    } else if (program->lived) {
        unsigned pause_ms = start_later(program);
        gms_log(GMS_LOG_ERROR, "the coordinators were not started: %s; trying again in %u ms", error.text, pause_ms);
    } else {
        fail(program, &error);
    }
}

/* What rank 0 says of the group, and what follows for engines. */
static void keep_engines(struct program *program, uint64_t now_ns)
{
    struct gms_error error;
    bool up = program->coordinator.state == GMS_WATCH_UP && program->coordinator.world != program->former_world;
    if (!gms_up_engines_wanted(&program->engines))
        return;
    if (!up || program->coordinator.status != NULL) {
        gms_up_engines_hear(&program->engines, up ? program->coordinator.status : NULL, now_ns);
        free(program->coordinator.status);
        program->coordinator.status = NULL;
    }
    if (!program->stopping && gms_up_engines_should_ask(&program->engines, now_ns) && up)
        (void)gms_watch_ask_status(&program->coordinator);
    if ((!program->stopping || program->ending_engines) &&
        gms_up_engines_step(&program->engines, now_ns, &error) != GMS_OK && !program->lived)
        fail(program, &error);
    if (program->ending_engines && gms_up_engines_over(&program->engines))
        give_up(program, GMS_UP_PLANNED);
}

static void step(struct program *program, uint64_t now_ns)
{
    struct gms_error error;
    bool may_start = may_start_keeper(program);
    if (may_start && gms_up_keepers_step(&program->keepers, now_ns, &error) != GMS_OK) {
        if (program->lived)
            gms_up_keepers_not_started(&program->keepers, &error, now_ns);
        else
            fail(program, &error);
    }
    bool kept = gms_up_keeper_step(&program->keeper, now_ns, may_start);
    if (program->job.now.pid != 0) {
        bool was_former = program->coordinator.world == program->former_world;
        bool began =
            program->up_ns == 0 && gms_up_job_began(&program->job); /* first: it is said once somebody listens */
        bool ended = gms_watch_step(&program->coordinator);
        bool former = program->coordinator.world == program->former_world; /* another world may have answered */
        bool missed = began && program->coordinator.nobody;                /* it was up and gone before we looked */
        if ((ended && !was_former) || missed) {
            coordinator_lost(program);
        } else if (program->coordinator.state == GMS_WATCH_UP && !former) {
            program->up_ns = program->up_ns != 0 ? program->up_ns : now_ns;
            program->lived = true;
            if (program->stopping && !program->coordinator.stop_asked)
                gms_watch_ask_stop(&program->coordinator);
        } else if (program->up_ns == 0 && !program->stopping && gms_up_job_failed(&program->job)) {
            start_failed(program);
        }
    }
    if (program->job.now.pid == 0 && kept && !program->stopping && now_ns >= program->next_start_ns)
        start(program);
    keep_engines(program, now_ns);
    hurry_stop(program, now_ns);
}

static uint64_t earliest(const struct program *program, uint64_t now_ns)
{
    uint64_t deadline_ns = gms_up_keeper_deadline(&program->keeper), other;
    if (program->job.now.pid == 0)
        other = program->keeper.watch.state == GMS_WATCH_UP ? program->next_start_ns : UINT64_MAX;
    else
        other = program->coordinator.fd < 0 ? now_ns + look_again_ns : UINT64_MAX;
    if (program->stopping && program->stop_deadline_ns < other)
        other = program->stop_deadline_ns;
    if (other < deadline_ns)
        deadline_ns = other;
    other = may_start_keeper(program) ? gms_up_keepers_deadline(&program->keepers) : UINT64_MAX;
    if (other < deadline_ns)
        deadline_ns = other;
    other =
        !program->stopping || program->ending_engines ? gms_up_engines_deadline(&program->engines, now_ns) : UINT64_MAX;
    return other < deadline_ns ? other : deadline_ns;
}

static void run(struct program *program)
{
    while (program->exit_code == EXIT_NOTHING) {
        struct pollfd ready[] = {
            {.fd = program->signals, .events = POLLIN},
            {.fd = program->keeper.watch.fd, .events = POLLIN | POLLRDHUP},
            {.fd = program->coordinator.fd, .events = POLLIN},
            {.fd = program->job.now.adopted ? program->job.now.pidfd : -1, .events = POLLIN},
            {.fd = program->job.before.adopted ? program->job.before.pidfd : -1, .events = POLLIN},
            {.fd = program->keepers.job.now.adopted ? program->keepers.job.now.pidfd : -1, .events = POLLIN},
        };
        poll(ready, sizeof ready / sizeof ready[0], gms_clock_poll_ms(earliest(program, gms_clock_ns())));
        uint64_t now_ns = gms_clock_ns();
        on_signals(program, now_ns);
        look_at_adopted(program);
        if (program->exit_code == EXIT_NOTHING)
            step(program, now_ns);
    }
}

/* Nothing of ours stays behind but a keeper that holds memory; a launcher that is still busy gets its time. */
static void wind_up(struct program *program)
{
    uint64_t deadline_ns = gms_clock_ns() + launcher_grace_ns;
    struct gms_up_launcher *left[] = {&program->job.now, &program->job.before};
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++) {
        if (left[i]->pid == 0)
            continue;
        if (left[i] == &program->job.now)
            gms_pidfd_signal(left[i]->pidfd, SIGTERM);
        struct pollfd ended = {.fd = left[i]->pidfd, .events = POLLIN};
        if (poll(&ended, 1, gms_clock_poll_ms(deadline_ns)) == 0)
            gms_pidfd_signal(left[i]->pidfd, SIGKILL);
        gms_up_launcher_over(&program->job, left[i]);
    }
    if (program->exit_code == GMS_UP_PLANNED) { /* with the engines gone as well nobody needs their memory */
        gms_up_keepers_stop(&program->keepers, program->ending_engines, gms_clock_ns() + launcher_grace_ns);
        bool ours = program->keeper.pid != 0 || program->ending_engines; /* to let go; it may only be starting */
        if (ours && !gms_up_keeper_is_gone(&program->keeper, gms_clock_ns() + letting_go_ns))
            (void)gms_up_keeper_let_go(&program->keeper, program->ending_engines);
    }
    gms_up_engines_close(&program->engines);
    gms_watch_close(&program->coordinator);
    gms_up_keeper_close(&program->keeper);
    gms_up_keepers_close(&program->keepers);
    gms_up_job_close(&program->job);
}

/* A file that somebody begins anew while what an earlier gms-up started still writes to it would get holes. */
static void append(int fd)
{
    struct stat info;
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
        (void)fcntl(fd, F_SETFL, flags | O_APPEND);
}

static void report(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "%s\n", text);
}

/* Launchers that forward only some prefixes: what we start is given the deployment's copies too. */
static gms_status set_renamed(const struct gms_config *config, struct gms_error *ret_error)
{
    enum { BYTES = GMS_ENVIRONMENT_INHERITED_BYTES };
    char *variables = malloc(BYTES), *copies = malloc(BYTES);
    size_t bytes = 0, copied = 0;
    gms_status status = variables == NULL || copies == NULL
                            ? gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for %d bytes", BYTES)
                            : gms_environment_inherit(environ, config, variables, BYTES, &bytes, ret_error);
    if (status == GMS_OK)
        status = gms_environment_renamed(config, variables, bytes, copies, BYTES, &copied, ret_error);
    for (size_t at = 0, next; status == GMS_OK && at < copied; at = next) {
        char *value = strchr(copies + at, '=');
        next = at + strlen(copies + at) + 1;
        *value = '\0';
        if (setenv(copies + at, value + 1, 1) != 0)
            status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the environment");
    }
    free(variables);
    free(copies);
    return status;
}

static gms_status prepare(struct program *program, struct gms_error *ret_error)
{
    const char *run_dir = program->config.run_dir;
    char path[GMS_RUN_PATH_BYTES];
    sigset_t set;
    gms_status status = gms_run_dir_check(run_dir, program->config.ranks, 1, ret_error);
    if (status == GMS_OK)
        status = set_renamed(&program->config, ret_error);
    if (status == GMS_OK)
        status = gms_run_dir_path(run_dir, "stopped", -1, program->stopped, ret_error);
    if (status == GMS_OK)
        status = gms_run_dir_path(run_dir, "up.lock", -1, path, ret_error);
    if (status == GMS_OK)
        status = gms_file_lock(path, 100, &program->lock, ret_error);
    if (status == GMS_E_BUSY)
        return gms_fail(ret_error, status, "another gms-up looks after %s; one for each run directory", run_dir);
    if (status == GMS_OK)
        status = gms_up_keepers_open(&program->keepers, &program->options, &program->config, ret_error);
    program->here = program->options;
    program->here.keep_keeper = program->options.keep_keeper && program->config.launch_keepers_bytes == 0;
    if (status == GMS_OK)
        status = gms_up_keeper_open(&program->keeper, &program->here, run_dir, ret_error);
    if (status == GMS_OK)
        status = gms_watch_open(&program->coordinator, run_dir, "c", 0, true, ret_error);
    if (status == GMS_OK)
        status = gms_up_job_open(&program->job, run_dir, "job", ret_error);
    if (status == GMS_OK)
        status = gms_up_engines_open(&program->engines, &program->options, &program->config, ret_error);
    if (status != GMS_OK)
        return status;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    program->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return program->signals < 0 ? gms_fd_fail("signalfd", ret_error) : GMS_OK;
}

int main(int argc, char **argv)
{
    static struct program program = {.signals = -1, .lock = -1, .exit_code = EXIT_NOTHING};
    struct gms_error error;
    gms_signals_reset();
    append(STDOUT_FILENO);
    append(STDERR_FILENO);
    if (argc > 1 && strcmp(argv[1], "local") == 0)
        return gms_up_local(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "keeper") == 0)
        return gms_up_node(argc - 1, argv + 1);
    gms_up_options_parse(argc, argv, &program.options);
    if (gms_log_open("gms-up", program.options.log_destination, program.options.log_level, &error) != GMS_OK) {
        fprintf(stderr, "gms-up: --log-destination: %s\n", error.text);
        return GMS_UP_USAGE;
    }
    if (gms_config_read(program.options.config, &program.config, report, NULL, &error) != GMS_OK)
        return GMS_UP_CONFIG;
    gms_status status = prepare(&program, &error);
    if (status != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        return status == GMS_E_BUSY                                ? GMS_UP_UNAVAILABLE
               : status == GMS_E_INVALID || status == GMS_E_CONFIG ? GMS_UP_CONFIG
                                                                   : GMS_UP_SYSTEM;
    }
    program.lived = gms_up_job_adopt(&program.job);
    if (program.lived)
        gms_log(GMS_LOG_NOTICE, "the coordinators that an earlier gms-up started run (process %d); going on with them",
                (int)program.job.now.pid);
    if (gms_up_keepers_adopt(&program.keepers))
        gms_log(GMS_LOG_NOTICE, "what keeps a keeper on each host was started by an earlier gms-up (process %d)",
                (int)program.keepers.job.now.pid);
    uint32_t adopted = gms_up_engines_adopt(&program.engines);
    program.lived = program.lived || adopted > 0;
    if (adopted > 0)
        gms_log(GMS_LOG_NOTICE, "%u engines that an earlier gms-up started run; going on with them", adopted);
    run(&program);
    wind_up(&program);
    gms_fd_close(&program.signals);
    gms_fd_close(&program.lock);
    return program.exit_code;
}
