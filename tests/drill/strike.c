/* SPDX-License-Identifier: Apache-2.0 */
#include "strike.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "parts.h"
#include "streams.h"

enum { MAX_VICTIMS = 2 * DRILL_MAX_RANKS + 4, ARM_TIMEOUT_MS = 5000, CHILD_TIMEOUT_MS = 5000, ANSWER_BYTES = 4096 };

struct victims {
    size_t count;
    int pidfds[MAX_VICTIMS]; /* owned */
    int signals[MAX_VICTIMS];
};

/* The coordinator's own list of settings tells what it can do. */
static bool detects_hangs(const struct drill_plan *plan)
{
    char command[DRILL_PATH_BYTES + 64], line[512];
    bool found = false;
    snprintf(command, sizeof command, "'%s/gms-coord' --help-config 2>/dev/null", plan->bin_dir);
    FILE *stream = popen(command, "re");
    while (stream != NULL && fgets(line, sizeof line, stream) != NULL)
        found |= strncmp(line, DRILL_HANG_SETTING " ", sizeof DRILL_HANG_SETTING) == 0;
    if (stream != NULL)
        pclose(stream);
    return found;
}

bool drill_strike_missing(const struct drill_fault *fault, const struct drill_plan *plan, char *ret_text, size_t bytes)
{
    ret_text[0] = '\0';
    if ((fault->needs & DRILL_NEED_HANG) != 0 && !detects_hangs(plan))
        snprintf(ret_text, bytes, "gms-coord has no setting " DRILL_HANG_SETTING ", so it does not notice hangs");
    else if ((fault->needs & DRILL_NEED_CUDA) != 0 && access("/dev/nvidiactl", R_OK) != 0)
        snprintf(ret_text, bytes, "no GPU: /dev/nvidiactl: %s", strerror(errno));
    else if ((fault->needs & DRILL_NEED_HOSTS) != 0 && plan->ranks < DRILL_HOSTS)
        snprintf(ret_text, bytes, "two hosts take two ranks");
    else if ((fault->needs & DRILL_NEED_HOSTS) != 0)
        drill_hosts_missing(ret_text, bytes);
    return ret_text[0] != '\0';
}

/* ------------------------------------------------------------------------------------------ by its own hand --- */

static gms_status arm(struct drill_strike strike, uint32_t rank, const char *endpoint, struct gms_error *ret_error)
{
    char line[200], answer[ANSWER_BYTES];
    snprintf(line, sizeof line, "{\"op\":\"arm\",\"rank\":%u,\"at\":\"%s\",\"after\":2,\"how\":\"%s\"}\n", rank,
             strike.at, strike.how);
    gms_status status = drill_endpoint_ask(endpoint, line, gms_clock_ns() + ARM_TIMEOUT_MS * GMS_NS_PER_MS, answer,
                                           sizeof answer, ret_error);
    if (status == GMS_OK && strstr(answer, "\"armed\":true") == NULL)
        status = gms_fail(ret_error, GMS_E_UNSUPPORTED, "the engine does not do that to itself: %.200s", answer);
    return status;
}

/* The child that a rank was asked to leave behind. */
static gms_status wait_for_child(pid_t rank_pid, size_t before, struct gms_error *ret_error)
{
    uint64_t deadline_ns = gms_clock_ns() + CHILD_TIMEOUT_MS * GMS_NS_PER_MS;
    pid_t pids[DRILL_MAX_COHORT];
    while (drill_descendants(rank_pid, pids, DRILL_MAX_COHORT) <= before) {
        if (gms_clock_ns() >= deadline_ns)
            return gms_fail(ret_error, GMS_E_TIMEOUT, "pid %d did not fork within %d ms", (int)rank_pid,
                            CHILD_TIMEOUT_MS);
        poll(NULL, 0, 2);
    }
    return GMS_OK;
}

/* ------------------------------------------------------------------------------------------------- victims ---- */

/* A process that may be signalled: of the drill's own, or of the deployment that a person has pointed at. */
static gms_status open_process(const struct drill_deployment *deployment, pid_t pid, int *ret_pidfd,
                               struct gms_error *ret_error)
{
    if (!deployment->attached)
        return drill_descendant_open(getpid(), pid, ret_pidfd, ret_error);
    char path[32];
    struct stat owner;
    gms_status status = gms_pidfd_open(pid, ret_pidfd, ret_error);
    snprintf(path, sizeof path, "/proc/%d", (int)pid);
    if (status == GMS_OK && (stat(path, &owner) != 0 || owner.st_uid != geteuid() || gms_pidfd_ended(*ret_pidfd))) {
        gms_fd_close(ret_pidfd);
        status = gms_fail(ret_error, GMS_E_REFUSED, "pid %d is not a process of this user, or has ended", (int)pid);
    }
    return status;
}

static gms_status add(const struct drill_deployment *deployment, struct victims *victims, const char *what, pid_t pid,
                      enum drill_act act, struct gms_error *ret_error)
{
    if (pid <= 0)
        return gms_fail(ret_error, GMS_E_NOT_FOUND, "%s is not there now", what);
    gms_status status = open_process(deployment, pid, &victims->pidfds[victims->count], ret_error);
    if (status == GMS_OK)
        victims->signals[victims->count++] = act == DRILL_ACT_STOP ? SIGSTOP : SIGKILL;
    return status;
}

/* The parked engine that was parked first: the group promotes that one. NULL: none. */
static const struct drill_engine *first_shadow(const struct drill_deployment *deployment, int32_t serving)
{
    const struct drill_engine *first = NULL;
    for (int32_t engine = 0; engine < DRILL_MAX_ENGINES; engine++) {
        const struct drill_engine *one = &deployment->engines[engine];
        if (engine != serving && one->started && (first == NULL || one->incarnation < first->incarnation))
            first = one;
    }
    return first;
}

static gms_status find(struct drill_strike strike, uint32_t rank, struct drill_deployment *deployment,
                       struct drill_observation *seen, struct victims *victims, struct gms_error *ret_error)
{
    const struct drill_engine *engine = &deployment->engines[seen->from_engine];
    const struct drill_engine *shadow;
    const struct drill_process *process;
    gms_status status = GMS_OK;
    switch (strike.target) {
    case DRILL_TARGET_ENGINE_RANK:
        seen->killed[rank] = true;
        return add(deployment, victims, "the engine's rank", engine->pids[rank], strike.act, ret_error);
    case DRILL_TARGET_ENGINE_ALL:
        for (uint32_t i = 0; i < deployment->ranks && status == GMS_OK; i++) {
            seen->killed[i] = true;
            status = add(deployment, victims, "a rank of the engine", engine->pids[i], strike.act, ret_error);
        }
        return status;
    case DRILL_TARGET_ENGINE_LAUNCHER:
        return add(deployment, victims, "the engine's launcher", engine->launcher != NULL ? engine->launcher->pid : 0,
                   strike.act, ret_error);
    case DRILL_TARGET_SHADOW_RANK:
        shadow = first_shadow(deployment, seen->from_engine);
        return add(deployment, victims, "a parked engine", shadow != NULL ? shadow->pids[rank] : 0, strike.act,
                   ret_error);
    case DRILL_TARGET_COORDINATOR:
        return add(deployment, victims, "the coordinator", deployment->status[rank].pid, strike.act, ret_error);
    case DRILL_TARGET_COORDINATORS:
        for (uint32_t i = 0; i < deployment->ranks && status == GMS_OK; i++)
            status = add(deployment, victims, "a coordinator", deployment->status[i].pid, strike.act, ret_error);
        return status;
    case DRILL_TARGET_COORDINATOR_LAUNCHER:
        return add(deployment, victims, "the coordinators' mpirun", drill_parts_coordinator_launcher(deployment),
                   strike.act, ret_error);
    case DRILL_TARGET_KEEPER:
        return add(deployment, victims, "gms-keeper", drill_parts_keeper(deployment), strike.act, ret_error);
    case DRILL_TARGET_UP:
        process = drill_parts_up(deployment);
        return add(deployment, victims, "gms-up", process != NULL && !process->ended ? process->pid : 0, strike.act,
                   ret_error);
    case DRILL_TARGET_RELAY:
        process = drill_parts_relay(deployment);
        return add(deployment, victims, "gms-relay", process != NULL && !process->ended ? process->pid : 0, strike.act,
                   ret_error);
    case DRILL_TARGET_RUN_DISK:
    case DRILL_TARGET_LINK:
    case DRILL_TARGET_NONE:
    case DRILL_TARGET_COUNT:
        break;
    }
    return status;
}

/* Every process below the ranks of the engine that serves, before anybody has ended. */
static void note_cohort(const struct drill_deployment *deployment, const struct drill_observation *seen,
                        struct drill_blow *blow)
{
    for (uint32_t rank = 0; rank < deployment->ranks; rank++) {
        pid_t root = deployment->engines[seen->from_engine].pids[rank], pids[DRILL_MAX_COHORT];
        size_t count = drill_descendants(root, pids, DRILL_MAX_COHORT);
        for (size_t i = 0; i <= count && blow->cohort_count < DRILL_MAX_COHORT; i++) {
            pid_t pid = i == count ? root : pids[i];
            if (open_process(deployment, pid, &blow->cohort[blow->cohort_count], NULL) == GMS_OK)
                blow->cohort_pids[blow->cohort_count++] = pid;
        }
    }
}

int32_t drill_strike_survivor(const struct drill_blow *blow)
{
    for (size_t i = 0; i < blow->cohort_count; i++)
        if (!gms_pidfd_ended(blow->cohort[i]) && drill_process_acts(blow->cohort_pids[i]) &&
            !gms_pidfd_ended(blow->cohort[i]))
            return blow->cohort_pids[i];
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- disk ---- */

static gms_status fill_disk(const struct drill_deployment *deployment, struct drill_blow *blow,
                            struct gms_error *ret_error)
{
    static const char zeros[65536];
    snprintf(blow->ballast, sizeof blow->ballast, "%.490s/ballast", deployment->run_dir);
    int fd = open(blow->ballast, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    size_t piece = sizeof zeros;
    uint64_t written = 0;
    int error = fd < 0 ? errno : 0;
    while (error == 0) { /* to the last byte */
        ssize_t n = write(fd, zeros, piece);
        if (n > 0)
            written += (uint64_t)n;
        else if (errno == ENOSPC && piece > 1)
            piece /= 2;
        else
            error = errno;
    }
    gms_fd_close(&fd);
    if (error != ENOSPC)
        return gms_fail(ret_error, GMS_E_SYSTEM, "%s cannot be filled: %s", deployment->run_dir, strerror(error));
    snprintf(blow->note, sizeof blow->note, "filled with %llu KiB", (unsigned long long)written / 1024);
    return GMS_OK;
}

void drill_strike_relent(struct drill_blow *blow)
{
    if (blow->ballast[0] != '\0')
        unlink(blow->ballast);
    blow->ballast[0] = '\0';
    if (blow->cut != NULL)
        drill_hosts_link(&blow->cut->hosts, true, &blow->cut->processes, NULL);
    blow->cut = NULL;
}

/* ----------------------------------------------------------------------------------------------------- all ---- */

static gms_status prepare(struct drill_strike strike, uint32_t rank, struct drill_deployment *deployment,
                          const char *endpoint, struct drill_observation *seen, struct drill_blow *blow,
                          struct gms_error *ret_error)
{
    pid_t pid = deployment->engines[seen->from_engine].pids[rank], pids[DRILL_MAX_COHORT];
    gms_status status;
    size_t before;
    switch (strike.act) {
    case DRILL_ACT_ARM:
        before = drill_descendants(pid, pids, DRILL_MAX_COHORT);
        seen->killed[rank] = true;
        status = arm(strike, rank, endpoint, ret_error);
        if (status == GMS_OK && strcmp(strike.how, "fork") == 0)
            status = wait_for_child(pid, before, ret_error);
        return status;
    case DRILL_ACT_LIMIT_MEMORY:
        status = drill_memory_limit_set(pid, &blow->memory, ret_error);
        if (status == GMS_OK)
            snprintf(blow->note, sizeof blow->note, "memory limit: %s", blow->memory.kind);
        return status;
    case DRILL_ACT_FILL:
        return fill_disk(deployment, blow, ret_error);
    case DRILL_ACT_CUT:
        blow->cut = deployment;
        return drill_hosts_link(&deployment->hosts, false, &deployment->processes, ret_error);
    case DRILL_ACT_KILL:
    case DRILL_ACT_STOP:
    case DRILL_ACT_COUNT:
        break;
    }
    return GMS_OK;
}

/* After the processes were opened the deployment must still name the same numbers, else they may be somebody else's. */
static gms_status still_the_same(struct drill_deployment *deployment, const struct drill_observation *seen,
                                 struct gms_error *ret_error)
{
    int32_t coordinators[DRILL_MAX_RANKS] = {0};
    for (uint32_t rank = 0; rank < deployment->ranks; rank++)
        coordinators[rank] = deployment->status[rank].pid;
    gms_status status = drill_deployment_agree(deployment, ret_error);
    for (uint32_t rank = 0; rank < deployment->ranks && status == GMS_OK; rank++) {
        const struct drill_status_engine *engine =
            drill_status_engine(&deployment->status[rank], (uint32_t)seen->from_engine);
        if (deployment->status[rank].pid != coordinators[rank] || engine == NULL ||
            engine->pid != deployment->engines[seen->from_engine].pids[rank])
            status = gms_fail(ret_error, GMS_E_REFUSED, "rank %u has other processes than a moment ago", rank);
    }
    return status;
}

gms_status drill_strike(const struct drill_strike *strikes, size_t count, uint32_t rank,
                        struct drill_deployment *deployment, const char *endpoint, struct drill_observation *seen,
                        struct drill_blow *blow, struct gms_error *ret_error)
{
    struct victims victims = {0};
    gms_status status = GMS_OK;
    for (uint32_t i = 0; i < deployment->ranks; i++)
        seen->pids[i] = deployment->engines[seen->from_engine].pids[i];
    bool last_breath = false; /* an armed engine may be gone before its processes have been noted */
    for (size_t i = 0; i < count; i++)
        last_breath |= strikes[i].act == DRILL_ACT_ARM && strcmp(strikes[i].how, "fork") != 0;
    if (last_breath)
        note_cohort(deployment, seen, blow);
    for (size_t i = 0; i < count && status == GMS_OK; i++)
        if (strikes[i].target != DRILL_TARGET_NONE)
            status = prepare(strikes[i], rank, deployment, endpoint, seen, blow, ret_error);
    if (!last_breath)
        note_cohort(deployment, seen, blow);
    for (size_t i = 0; i < count && status == GMS_OK; i++)
        if (strikes[i].act == DRILL_ACT_KILL || strikes[i].act == DRILL_ACT_STOP)
            status = find(strikes[i], rank, deployment, seen, &victims, ret_error);
    if (status == GMS_OK && deployment->attached)
        status = still_the_same(deployment, seen, ret_error);
    if (status == GMS_OK && victims.count > 0)
        seen->signal_ns = gms_clock_ns();
    for (size_t i = 0; i < victims.count; i++) {
        if (status == GMS_OK)
            gms_pidfd_signal(victims.pidfds[i], victims.signals[i]);
        gms_fd_close(&victims.pidfds[i]);
    }
    return status;
}

void drill_strike_over(struct drill_blow *blow)
{
    drill_strike_relent(blow);
    drill_memory_limit_drop(&blow->memory);
    for (size_t i = 0; i < blow->cohort_count; i++)
        gms_fd_close(&blow->cohort[i]);
    blow->cohort_count = 0;
}
