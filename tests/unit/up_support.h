/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of gms-up's parts: a run directory, and a launcher that says how it was started and stays.
 */
#ifndef GMS_TESTS_UP_SUPPORT_H
#define GMS_TESTS_UP_SUPPORT_H

#include "unit_support.h"

#include "gms-up/job.h"

static struct gms_error error;
static char run_dir[200], script[256], told[256];
static const char *words[] = {script, "--word", "a, b", NULL};
static struct gms_up_start how;
static struct gms_up_job job;

/* A launcher that says how it was started, and stays. */
static inline int setup(void **state)
{
    static const char text[] =
        "#!/bin/sh\n"
        "{ echo \"$*\"; echo \"$TMPDIR\"; ls /proc/self/fd | tr '\\n' ' '; echo; } >\"$TOLD.new\"\n"
        "mv \"$TOLD.new\" \"$TOLD\"\n"
        "exec sleep 1000\n";
    if (unit_make_dir(state) != 0)
        return -1;
    snprintf(run_dir, sizeof run_dir, "%s/run", (char *)*state);
    snprintf(script, sizeof script, "%s/launcher", (char *)*state);
    snprintf(told, sizeof told, "%s/told", (char *)*state);
    setenv("TOLD", told, 1);
    int fd = open(script, O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
    if (mkdir(run_dir, 0700) != 0 || fd < 0 || write(fd, text, sizeof text - 1) != sizeof text - 1)
        return -1;
    close(fd);
    words[0] = script;
    how = (struct gms_up_start){.words = words, .temporary_files = true};
    return gms_up_job_open(&job, run_dir, "job", &error) == GMS_OK ? 0 : -1;
}

static inline void end_launcher(struct gms_up_launcher *launcher)
{
    pid_t pid = launcher->pid;
    if (pid == 0)
        return;
    gms_pidfd_signal(launcher->pidfd, SIGKILL);
    waitpid(pid, NULL, 0);
    gms_up_launcher_over(&job, launcher);
}

static inline int teardown(void **state)
{
    end_launcher(&job.now);
    end_launcher(&job.before);
    gms_up_job_close(&job);
    return unit_remove_dir(state);
}

static inline bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

#endif
