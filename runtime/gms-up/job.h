/* SPDX-License-Identifier: Apache-2.0
 *
 * A job that gms-up starts (the coordinators, the keepers, an engine): one launcher process, known by its pidfd, ours
 * or an earlier gms-up's (which named it in RUN/up.NAME, by pid and start time). Each start has a scratch directory for
 * the launcher's and MPI's files, which is removed after it; what an earlier gms-up left behind is too.
 */
#ifndef GMS_UP_JOB_H
#define GMS_UP_JOB_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/run_dir.h"
#include "gms-up/options.h"
#include "gms/status.h"

enum { GMS_UP_SCRATCH_BYTES = 96 };

struct gms_up_launcher {
    pid_t pid;    /* 0: none */
    int pidfd;    /* owned; -1 */
    bool adopted; /* not our child: how it ends is not known */
    uint64_t started_ns;
    char scratch[GMS_UP_SCRATCH_BYTES];
};

struct gms_up_job {
    char note[GMS_RUN_PATH_BYTES];          /* RUN/up.NAME */
    char prefix[GMS_UP_SCRATCH_BYTES - 16]; /* of all scratch directories of this job */
    uint32_t starts;
    struct gms_up_launcher now, before; /* before: still ending, while the next one runs */
};

struct gms_up_start {
    const char *const *words; /* NULL-terminated; the first is looked for in PATH */
    const char *output;       /* file for its output, begun anew; NULL: ours */
    bool temporary_files;     /* TMPDIR is the scratch directory too */
};

/* `name`: of the note and of the scratch directories; a-z and digits. Errors: INVALID (path too long). */
gms_status gms_up_job_open(struct gms_up_job *job, const char *run_dir, const char *name, struct gms_error *ret_error);
/* Goes on with the launcher that an earlier gms-up left running. False: there is none. */
bool gms_up_job_adopt(struct gms_up_job *job);
/* Errors: CONFIG (the launcher cannot be run), SYSTEM; nothing of the start stays then, `now` is none. */
gms_status gms_up_job_start(struct gms_up_job *job, const struct gms_up_start *start, struct gms_error *ret_error);
/* Has a rank of the present job said that their start failed? (It says so in the scratch directory, as start.h tells.)
 * Its launcher takes a second longer to end. */
bool gms_up_job_failed(const struct gms_up_job *job);
/* Has its rank 0 said that sessions are listened to? */
bool gms_up_job_began(const struct gms_up_job *job);
/* The job is lost, its launcher only has not noticed: room for the next one. What is still `before` is killed. */
void gms_up_job_set_aside(struct gms_up_job *job);
/* A launcher is over: forgets it and removes its scratch directory. */
void gms_up_launcher_over(struct gms_up_job *job, struct gms_up_launcher *launcher);
/* Removes the scratch directories of all jobs of a run directory that are on this host, but for those of jobs whose
 * name begins with `spare`. For hosts on which gms-up does not run: launchers make them there too. */
void gms_up_scratch_sweep(const char *run_dir, const char *spare);
/* Says in RUN/scratch what they begin with, for an epilog. */
void gms_up_scratch_note(const char *run_dir);
/* Ends without a launcher of ours left behind; one that was told to stay is left. */
void gms_up_job_close(struct gms_up_job *job);

#endif
