/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-up/job.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/start.h"

/* ---------------------------------------------------------------------------------------------- scratch ------ */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static void remove_tree(const char *path)
{
    if (path[0] != '\0')
        nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Our directories whose names begin with `prefix`, but for those that `spared` names. */
static void sweep(const char *prefix, bool (*spared)(const void *context, const char *path), const void *context)
{
    const char *base = strrchr(prefix, '/') + 1;
    char parent[GMS_UP_SCRATCH_BYTES], path[GMS_UP_SCRATCH_BYTES + 256];
    snprintf(parent, sizeof parent, "%.*s", (int)(base - prefix - 1), prefix);
    DIR *directory = opendir(parent);
    struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        struct stat status;
        snprintf(path, sizeof path, "%s/%s", parent, entry->d_name);
        if (strncmp(entry->d_name, base, strlen(base)) == 0 && !spared(context, path) && lstat(path, &status) == 0 &&
            S_ISDIR(status.st_mode) && status.st_uid == geteuid())
            remove_tree(path);
    }
    if (directory != NULL)
        closedir(directory);
}

static bool is_running(const void *context, const char *path)
{
    const struct gms_up_job *job = context;
    return strcmp(path, job->now.scratch) == 0 || strcmp(path, job->before.scratch) == 0;
}

/* Everything of earlier starts, but for those that still run. */
static void clean_up(const struct gms_up_job *job)
{
    sweep(job->prefix, is_running, job);
}

/* What all scratch directories of a run directory begin with, on every host. */
static void scratch_prefix(const char *run_dir, char ret_prefix[GMS_UP_SCRATCH_BYTES])
{
    snprintf(ret_prefix, GMS_UP_SCRATCH_BYTES, "%s/gms-up.%016" PRIx64 ".",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (uint64_t)XXH3_64bits(run_dir, strlen(run_dir)));
}

static bool has_name(const void *context, const char *path)
{
    const char *name = context, *hash = strstr(path, "/gms-up.");
    const char *at = hash != NULL ? strchr(hash + strlen("/gms-up."), '.') : NULL;
    return at != NULL && strncmp(at + 1, name, strlen(name)) == 0;
}

void gms_up_scratch_sweep(const char *run_dir, const char *spare)
{
    char prefix[GMS_UP_SCRATCH_BYTES];
    scratch_prefix(run_dir, prefix);
    sweep(prefix, has_name, spare);
}

void gms_up_scratch_note(const char *run_dir)
{
    char prefix[GMS_UP_SCRATCH_BYTES], path[GMS_RUN_PATH_BYTES];
    struct gms_error error;
    scratch_prefix(run_dir, prefix);
    if (gms_run_dir_path(run_dir, "scratch", -1, path, &error) != GMS_OK ||
        gms_file_publish(path, prefix, strlen(prefix), &error) != GMS_OK)
        gms_log(GMS_LOG_WARNING, "an epilog will not know what to remove: %s", error.text);
}

/* Short, because sockets live in it, and in memory, because Open MPI maps files of it. */
static gms_status make_scratch(struct gms_up_job *job, char ret_scratch[GMS_UP_SCRATCH_BYTES],
                               struct gms_error *ret_error)
{
    for (int tries = 0; tries < 1000; tries++) {
        snprintf(ret_scratch, GMS_UP_SCRATCH_BYTES, "%s%u", job->prefix, ++job->starts);
        if (mkdir(ret_scratch, 0700) == 0) {
            gms_start_watched(ret_scratch);
            return GMS_OK;
        }
        if (errno != EEXIST)
            break;
    }
    return gms_fail(ret_error, GMS_E_SYSTEM, "%s cannot be made: %s", ret_scratch, strerror(errno));
}

/* ---------------------------------------------------------------------------------------------- the note ----- */

/* When a process started, in the kernel's ticks; 0: it is gone. */
static uint64_t start_time(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    gms_fd_close(&fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    const char *at = strrchr(text, ')'); /* the name may hold anything */
    uint64_t ticks = 0;
    if (at == NULL ||
        sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64,
               &ticks) != 1)
        return 0;
    return ticks;
}

static void write_note(const struct gms_up_job *job)
{
    char text[GMS_UP_SCRATCH_BYTES + 64];
    struct gms_error error;
    int length = snprintf(text, sizeof text, "%d %" PRIu64 " %s\n", (int)job->now.pid, start_time(job->now.pid),
                          job->now.scratch);
    if (gms_file_publish(job->note, text, (size_t)length, &error) != GMS_OK)
        gms_log(GMS_LOG_WARNING, "the job's launcher is not noted, another gms-up will not find it: %s", error.text);
}

bool gms_up_job_adopt(struct gms_up_job *job)
{
    char text[GMS_UP_SCRATCH_BYTES + 64] = "", scratch[GMS_UP_SCRATCH_BYTES] = "";
    uint64_t ticks = 0;
    int pid = 0, pidfd = -1, fd = open(job->note, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, text, sizeof text - 1);
    gms_fd_close(&fd);
    if (length <= 0 || sscanf(text, "%d %" SCNu64 " %95s", &pid, &ticks, scratch) != 3 || pid <= 0 || ticks == 0)
        return false;
    /* The pidfd pins the process; that it started when the note says makes it the one that was noted. */
    if (gms_pidfd_open(pid, &pidfd, NULL) != GMS_OK)
        return false;
    if (start_time(pid) != ticks || gms_pidfd_ended(pidfd) || strncmp(scratch, job->prefix, strlen(job->prefix)) != 0) {
        gms_fd_close(&pidfd);
        return false;
    }
    job->now = (struct gms_up_launcher){.pid = pid, .pidfd = pidfd, .adopted = true, .started_ns = gms_clock_ns()};
    snprintf(job->now.scratch, sizeof job->now.scratch, "%s", scratch);
    return true;
}

/* ------------------------------------------------------------------------------------------------- start ----- */

gms_status gms_up_job_open(struct gms_up_job *job, const char *run_dir, const char *name, struct gms_error *ret_error)
{
    char note[32];
    memset(job, 0, sizeof *job);
    job->now.pidfd = job->before.pidfd = -1;
    char prefix[GMS_UP_SCRATCH_BYTES];
    scratch_prefix(run_dir, prefix);
    snprintf(job->prefix, sizeof job->prefix, "%.50s%.20s.", prefix, name);
    snprintf(note, sizeof note, "up.%s", name);
    return gms_run_dir_path(run_dir, note, -1, job->note, ret_error);
}

/* In the child: the launcher's and MPI's own files go to the scratch directory; Open MPI 4 and 5 have names of their
 * own for that. */
static void set_environment(const char *scratch, bool temporary_files)
{
    static const char *const names[] = {"TMPDIR",
                                        "OMPI_MCA_orte_tmpdir_base",
                                        "PRTE_MCA_prte_tmpdir_base",
                                        "PMIX_MCA_ptl_tcp_session_tmpdir",
                                        "OMPI_MCA_btl_vader_backing_directory",
                                        "OMPI_MCA_btl_sm_backing_directory"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (i > 0 || temporary_files)
            setenv(names[i], scratch, 1);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

_Noreturn static void run_launcher(const struct gms_up_start *start, const char *scratch, int report)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    setsid(); /* a terminal's signals are for us: a launcher that gets them kills ranks before they can agree to stop */
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0)
        dup2(null, 0);
    int output =
        start->output != NULL ? open(start->output, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW, 0600) : -1;
    if (output >= 0) {
        dup2(output, STDOUT_FILENO);
        dup2(output, STDERR_FILENO);
    }
    close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC); /* Open MPI 4's launcher dies of one beyond 1023 (V36) */
    set_environment(scratch, start->temporary_files);
    execvp(start->words[0], (char *const *)(uintptr_t)start->words);
    int error = errno;
    ssize_t ignored = write(report, &error, sizeof error);
    (void)ignored;
    _exit(127);
}

/* A start that came to nothing: nothing of it stays. `pid`: our child, not yet waited for, so the number is its own. */
static void undo_start(pid_t pid, const char *scratch)
{
    if (pid > 0) {
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    remove_tree(scratch);
}

gms_status gms_up_job_start(struct gms_up_job *job, const struct gms_up_start *start, struct gms_error *ret_error)
{
    char scratch[GMS_UP_SCRATCH_BYTES];
    int report[2], failed = 0;
    clean_up(job);
    gms_status status = make_scratch(job, scratch, ret_error);
    if (status != GMS_OK)
        return status;
    if (pipe2(report, O_CLOEXEC) != 0) {
        status = gms_fd_fail("a pipe to the launcher", ret_error);
        undo_start(-1, scratch);
        return status;
    }
    pid_t pid = fork();
    int fork_error = errno;
    if (pid == 0)
        run_launcher(start, scratch, report[1]);
    gms_fd_close(&report[1]);
    ssize_t got;
    do
        got = read(report[0], &failed, sizeof failed); /* end of file: it runs */
    while (got < 0 && errno == EINTR);
    gms_fd_close(&report[0]);
    int pidfd = -1;
    if (pid < 0)
        status = gms_fail(ret_error, GMS_E_SYSTEM, "fork: %s", strerror(fork_error));
    else if (got > 0)
        status =
            gms_fail(ret_error, GMS_E_CONFIG, "the launcher %s cannot be run: %s", start->words[0], strerror(failed));
    else
        status = gms_pidfd_open(pid, &pidfd, ret_error); /* our child, not yet waited for */
    if (status != GMS_OK) {
        undo_start(pid, scratch);
        return status;
    }
    job->now = (struct gms_up_launcher){.pid = pid, .pidfd = pidfd, .started_ns = gms_clock_ns()};
    snprintf(job->now.scratch, sizeof job->now.scratch, "%s", scratch);
    write_note(job);
    return GMS_OK;
}

bool gms_up_job_failed(const struct gms_up_job *job)
{
    return job->now.pid != 0 && job->now.scratch[0] != '\0' && gms_start_has_failed(job->now.scratch);
}

bool gms_up_job_began(const struct gms_up_job *job)
{
    return job->now.pid != 0 && job->now.scratch[0] != '\0' && gms_start_has_succeeded(job->now.scratch);
}

void gms_up_launcher_over(struct gms_up_job *job, struct gms_up_launcher *launcher)
{
    if (launcher == &job->now)
        unlink(job->note);
    gms_fd_close(&launcher->pidfd);
    remove_tree(launcher->scratch);
    *launcher = (struct gms_up_launcher){.pidfd = -1};
}

void gms_up_job_set_aside(struct gms_up_job *job)
{
    if (job->before.pid != 0) { /* two ends in a row, and the first launcher has not noticed yet */
        gms_pidfd_signal(job->before.pidfd, SIGKILL);
        gms_up_launcher_over(job, &job->before);
    }
    job->before = job->now;
    job->now = (struct gms_up_launcher){.pidfd = -1};
}

void gms_up_job_close(struct gms_up_job *job)
{
    gms_fd_close(&job->now.pidfd);
    gms_fd_close(&job->before.pidfd);
    clean_up(job);
}
