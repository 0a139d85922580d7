/* SPDX-License-Identifier: Apache-2.0
 *
 * One deployment as a drill uses it: a scratch one that it starts (run directory, deployment file, keeper,
 * coordinators, engines) and ends again, or one that runs already and is only looked at.
 */
#ifndef GMS_DRILL_DEPLOYMENT_H
#define GMS_DRILL_DEPLOYMENT_H

#include "cluster.h"
#include "hosts.h"
#include "plan.h"
#include "processes.h"

struct drill_engine {
    bool started;
    struct drill_process *launcher; /* borrowed from the process list; NULL when attached */
    uint64_t incarnation;           /* 0: not known yet */
    int32_t pids[DRILL_MAX_RANKS];  /* engine ranks, by their coordinators' status */
    char containment[DRILL_MAX_RANKS][16];
    int pidfds[DRILL_MAX_RANKS]; /* owned; -1 */
};

struct drill_deployment {
    const struct drill_plan *plan; /* borrowed */
    bool attached, verify_full;
    bool trusts_broken_device; /* adopts what an engine has sealed whose device failed
                                  (takeover.adopt_after_device_error) */
    uint32_t ranks;
    char dir[DRILL_PATH_BYTES]; /* its part of the work directory */
    char run_dir[DRILL_PATH_BYTES], log_dir[DRILL_PATH_BYTES], config[DRILL_PATH_BYTES], command[DRILL_PATH_BYTES];
    const char *engine_words[DRILL_COMMAND_WORDS + 1]; /* owned */
    struct drill_processes processes;
    struct drill_hosts hosts; /* not up: everything is on this host */
    struct drill_engine engines[DRILL_MAX_ENGINES];
    struct drill_status status[DRILL_MAX_RANKS]; /* as fetched last */
};

/* Starts keeper and coordinators in `dir` (made; its path is kept short: sockets live in it) and waits until every rank
 * answers. `shared_dir` is for what MPI keeps in shared memory; `word` tells two deployments of one drill apart. On
 * failure everything it started has ended again. */
gms_status drill_deployment_start(const struct drill_plan *plan, const char *dir, const char *shared_dir,
                                  const char *word, struct drill_deployment *ret_deployment,
                                  struct gms_error *ret_error);
/* Starts gms-up (again: after its death it goes on with what it had started). */
gms_status drill_deployment_start_up(struct drill_deployment *deployment, struct gms_error *ret_error);
/* Looks at the running deployment of plan->attach. */
gms_status drill_deployment_attach(const struct drill_plan *plan, struct drill_deployment *ret_deployment,
                                   struct gms_error *ret_error);
/* Ends what was started: engines, coordinators, keeper. Half-started and attached ones allowed. Returns how many
 * processes had to be killed in the end. */
size_t drill_deployment_stop(struct drill_deployment *deployment);

/* Launches engine `engine`; does not wait. The second form adds words to its command, NULL last. */
gms_status drill_deployment_launch(struct drill_deployment *deployment, uint32_t engine, struct gms_error *ret_error);
gms_status drill_deployment_launch_with(struct drill_deployment *deployment, uint32_t engine, const char *const *words,
                                        struct gms_error *ret_error);

/*
 * Waits until `engine` has `role` ("serving", "parked") on every rank, or, with `role` NULL, until no rank has
 * `incarnation` any more and nobody serves. Leaves the ranks' status in deployment->status, and of an engine that is
 * waited for its incarnation and its ranks' pidfds. Errors: TIMEOUT (what every rank said last), DISCONNECTED (a
 * process of the drill ended; its last words), REFUSED (status names a process that is not the drill's).
 */
gms_status drill_deployment_wait(struct drill_deployment *deployment, uint32_t engine, const char *role,
                                 uint64_t incarnation, uint32_t timeout_s, struct gms_error *ret_error);
/* Fetches the status of all ranks until they agree, for at most two seconds: a snapshot may fall between two ranks'
 * applying the same round. Leaves it in deployment->status. Errors: as drill_status_fetch_all and drill_status_agree.
 */
gms_status drill_deployment_agree(struct drill_deployment *deployment, struct gms_error *ret_error);
/* OK while keeper, coordinators and the launchers of all engines but those in `excused` (bit per engine) run, and
 * nobody has interrupted the drill (REFUSED). */
gms_status drill_deployment_check(struct drill_deployment *deployment, uint32_t excused, struct gms_error *ret_error);

#endif
