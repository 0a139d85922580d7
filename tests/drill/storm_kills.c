/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "storm.h"
#include "wire/channel.h"

static const struct {
    const char *name;
    uint32_t weight;
    bool ends_world;
} targets[TARGET_COUNT] = {
    [TARGET_RANK] = {"one coordinator rank", 45, true},
    [TARGET_ALL] = {"all coordinator ranks", 15, true},
    [TARGET_LAUNCHER] = {"mpirun", 10, true},
    [TARGET_KEEPER] = {"the keeper", 12, false},
    [TARGET_UP] = {"gms-up", 10, false},
    [TARGET_KEEPER_AND_ALL] = {"keeper and all ranks", 8, true},
};

const char *storm_target_name(enum target target)
{
    return targets[target].name;
}

/* -------------------------------------------------------------------------------------------------- state ---- */

const char *const storm_roles[WORKER + 1] = {"serving", "parked", "joined"};

/* Is the group whole: every rank answers, all agree, and all engines are attached as what they were? */
static bool is_whole(struct storm *storm, uint64_t former_world, const char **ret_missing)
{
    struct gms_error error;
    const struct drill_status *all = storm->deployment.status;
    if (drill_status_fetch_all(storm->deployment.run_dir, storm->deployment.ranks, gms_clock_ns() + 200 * GMS_NS_PER_MS,
                               storm->deployment.status, &error) != GMS_OK) {
        *ret_missing = "a rank does not answer";
        return false;
    }
    *ret_missing = "the ranks do not agree";
    if (drill_status_agree(all, storm->deployment.ranks, &error) != GMS_OK)
        return false;
    *ret_missing = "the old world still answers";
    if (all[0].world == former_world)
        return false;
    for (uint32_t rank = 0; rank < storm->deployment.ranks; rank++) {
        *ret_missing = "a rank has no keeper";
        if (!all[rank].keeper)
            return false;
        *ret_missing = "a gms-exec is not attached";
        if (all[rank].copy_holders < WORKER) /* of the two engines that have one */
            return false;
        *ret_missing = "an engine is not attached";
        for (uint32_t engine = 0; engine <= WORKER; engine++) {
            const struct drill_status_engine *one = drill_status_engine(&all[rank], engine);
            if (one == NULL || !one->connected || strcmp(one->role, storm_roles[engine]) != 0)
                return false;
        }
    }
    *ret_missing = "";
    return true;
}

/* Once it is whole, it must be what it was. */
static void check_same(struct storm *storm)
{
    const struct drill_status *all = storm->deployment.status;
    for (uint32_t rank = 0; rank < storm->deployment.ranks; rank++) {
        if (all[rank].epoch != storm->epoch)
            storm_fail(storm, "rank %u: the epoch was %llu and is %llu", rank, (unsigned long long)storm->epoch,
                       (unsigned long long)all[rank].epoch);
        for (uint32_t engine = 0; engine <= WORKER; engine++) {
            const struct drill_status_engine *one = drill_status_engine(&all[rank], engine);
            if (one->incarnation != storm->incarnations[engine] || one->pid != storm->pids[engine][rank])
                storm_fail(storm, "rank %u: engine %u was incarnation %llu (pid %d) and is %llu (pid %d)", rank, engine,
                           (unsigned long long)storm->incarnations[engine], storm->pids[engine][rank],
                           (unsigned long long)one->incarnation, one->pid);
        }
    }
}

void storm_remember(struct storm *storm)
{
    const struct drill_status *all = storm->deployment.status;
    storm->epoch = all[0].epoch;
    for (uint32_t engine = 0; engine <= WORKER; engine++) {
        storm->incarnations[engine] = drill_status_engine(&all[0], engine)->incarnation;
        for (uint32_t rank = 0; rank < storm->deployment.ranks; rank++)
            storm->pids[engine][rank] = drill_status_engine(&all[rank], engine)->pid;
    }
}

/* What restarted coordinators said about the moment in which the world before them had ended. */
static void read_moments(struct storm *storm)
{
    char path[DRILL_PATH_BYTES + 16], line[1024];
    snprintf(path, sizeof path, "%.480s/up.out", storm->deployment.dir);
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return;
    fseeko(stream, storm->log_read, SEEK_SET);
    while (fgets(line, sizeof line, stream) != NULL && strchr(line, '\n') != NULL) {
        unsigned long long round;
        unsigned engines, pools, under_way, prepared;
        const char *at = strstr(line, "the earlier world ended after its round");
        if (at != NULL && sscanf(at,
                                 "the earlier world ended after its round %llu: %u engines, %u pools, %u operations "
                                 "under way, %u prepared here",
                                 &round, &engines, &pools, &under_way, &prepared) == 5) {
            storm->restarts++;
            storm->by_moment[under_way > 0 ? MOMENT_PREPARED : prepared > 0 ? MOMENT_DECIDED : MOMENT_REST]++;
        }
        if (strstr(line, "GMS_E_DIVERGED") != NULL || strstr(line, "is condemned") != NULL)
            storm_fail(storm, "the log says: %.400s", line);
        storm->log_read = ftello(stream);
    }
    fclose(stream);
}

/* -------------------------------------------------------------------------------------------------- kills ---- */

static pid_t launcher_pid(const struct storm *storm)
{
    char path[DRILL_PATH_BYTES + 16], text[64] = "";
    snprintf(path, sizeof path, "%.480s/up.job", storm->deployment.run_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    gms_fd_close(&fd);
    return length > 0 ? (pid_t)atoi(text) : 0;
}

static pid_t keeper_pid(const struct storm *storm)
{
    char path[GMS_RUN_PATH_BYTES];
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    int fd = -1;
    if (gms_run_dir_path(storm->deployment.run_dir, "keeper", -1, path, NULL) != GMS_OK ||
        gms_channel_connect(path, 100, &fd, NULL) != GMS_OK)
        return 0;
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
    gms_fd_close(&fd);
    return peer.pid;
}

static struct drill_process *up_process(struct storm *storm)
{
    for (size_t i = 0; i < storm->deployment.processes.count; i++)
        if (strcmp(storm->deployment.processes.items[i].name, "gms-up") == 0)
            return &storm->deployment.processes.items[i];
    return NULL;
}

/* Pidfds of what is to be killed, each checked to descend from us. Returns how many; 0: not there now. */
static size_t find_victims(struct storm *storm, enum target target, int ret_pidfds[DRILL_MAX_RANKS + 1])
{
    pid_t pids[DRILL_MAX_RANKS + 1];
    size_t count = 0, found = 0;
    uint32_t ranks = storm->deployment.ranks;
    switch (target) {
    case TARGET_RANK:
        pids[count++] = storm->deployment.status[storm_random(storm, ranks)].pid;
        break;
    case TARGET_KEEPER_AND_ALL:
        pids[count++] = keeper_pid(storm);
        /* fall through */
    case TARGET_ALL:
        for (uint32_t rank = 0; rank < ranks; rank++)
            pids[count++] = storm->deployment.status[rank].pid;
        break;
    case TARGET_LAUNCHER:
        pids[count++] = launcher_pid(storm);
        break;
    case TARGET_KEEPER:
        pids[count++] = keeper_pid(storm);
        break;
    case TARGET_UP:
        pids[count++] = up_process(storm)->pid;
        break;
    case TARGET_COUNT:
        break;
    }
    for (size_t i = 0; i < count; i++)
        if (pids[i] > 0 && drill_descendant_open(getpid(), pids[i], &ret_pidfds[found], NULL) == GMS_OK)
            found++;
    return found;
}

/* `within` a recovery keeper and coordinators are not ended together: before gms-exec is attached again nobody else has
 * what was made since, and the group refuses to go on without a person's word, as it should. */
static enum target choose(struct storm *storm, bool within)
{
    uint32_t sum = 0, at;
    for (int i = 0; i < TARGET_COUNT; i++)
        sum += targets[i].weight;
    if (within)
        sum -= targets[TARGET_KEEPER_AND_ALL].weight; /* the last row */
    at = storm_random(storm, sum);
    for (int i = 0; i < TARGET_COUNT; i++) {
        if (at < targets[i].weight)
            return (enum target)i;
        at -= targets[i].weight;
    }
    return TARGET_RANK;
}

static bool kill_now(struct storm *storm, enum target target)
{
    int victims[DRILL_MAX_RANKS + 1];
    size_t count = find_victims(storm, target, victims);
    if (target == TARGET_UP)
        up_process(storm)->asked_to_end = true;
    for (size_t i = 0; i < count; i++) {
        gms_pidfd_signal(victims[i], SIGKILL);
        gms_fd_close(&victims[i]);
    }
    if (count > 0)
        storm->by_target[target]++;
    return count > 0;
}

/* Sleeps in the sense of letting time pass that was drawn, not waiting for anything. */
static void let_pass(uint32_t most_ms, struct storm *storm)
{
    uint64_t until_ns = gms_clock_ns() + (uint64_t)storm_random(storm, 1000 * most_ms + 1) * 1000;
    struct timespec left = {0};
    for (uint64_t now_ns = gms_clock_ns(); now_ns < until_ns; now_ns = gms_clock_ns()) {
        left.tv_nsec = (long)((until_ns - now_ns) % GMS_NS_PER_S);
        left.tv_sec = (time_t)((until_ns - now_ns) / GMS_NS_PER_S);
        nanosleep(&left, NULL);
    }
}

static void restart_up(struct storm *storm)
{
    struct gms_error error;
    struct drill_process *process = up_process(storm);
    if (!drill_process_wait(process, gms_clock_ns() + 5 * GMS_NS_PER_S))
        storm_fail(storm, "gms-up does not end by SIGKILL");
    else if (drill_deployment_start_up(&storm->deployment, &error) != GMS_OK)
        storm_fail(storm, "gms-up: %s", error.text);
}

void storm_wait_whole(struct storm *storm, uint64_t former_world, struct storm_wait *ret_wait)
{
    uint64_t begin_ns = gms_clock_ns(), since_ns = begin_ns;
    uint64_t deadline_ns = begin_ns + storm->plan.timeout_s * GMS_NS_PER_S;
    const char *missing = "", *former = "";
    *ret_wait = (struct storm_wait){.missing = ""};
    while (storm_go_on(storm) && !is_whole(storm, former_world, &missing)) {
        uint64_t now_ns = gms_clock_ns();
        if (missing != former) { /* literals of is_whole: one reason, one address */
            since_ns = now_ns;
            former = missing;
        }
        if (now_ns - since_ns > ret_wait->longest_ns) {
            ret_wait->longest_ns = now_ns - since_ns;
            ret_wait->missing = missing;
        }
        storm_check_workers(storm);
        drill_processes_check(&storm->deployment.processes);
        const struct drill_process *up = up_process(storm);
        char outcome[32];
        if (up->ended && !up->asked_to_end)
            storm_fail(storm, "gms-up ended by itself (%s)", drill_process_outcome(up, outcome, sizeof outcome));
        if (now_ns >= deadline_ns)
            storm_fail(storm, "the group is not whole again after %u s: %s", storm->plan.timeout_s, missing);
        poll(NULL, 0, POLL_MS);
    }
    ret_wait->took_ns = gms_clock_ns() - begin_ns;
}

void storm_rage(struct storm *storm)
{
    const char *missing = "";
    for (uint32_t killed = 0; killed < storm->kills && storm_go_on(storm);) {
        let_pass(storm->pause_ms, storm);
        /* Pids may have changed: what is killed is what is there now. */
        bool known = is_whole(storm, 0, &missing);
        uint64_t world = storm->deployment.status[0].world;
        bool ends_world = false, single = false;
        enum target last = TARGET_RANK;
        for (bool again = true, first = true; again && killed < storm->kills; first = false) {
            enum target target = choose(storm, !first);
            if (!kill_now(storm, target))
                break;
            killed++;
            last = target;
            if (storm->plan.verbose)
                printf("  %.3f: killed %s, world %llu\n", (double)gms_clock_ns() / 1e9, targets[target].name,
                       (unsigned long long)world);
            ends_world = ends_world || targets[target].ends_world;
            single = first;
            if (target == TARGET_UP)
                restart_up(storm);
            again = storm_random(storm, 100) < storm->doubles_percent;
            if (again)
                let_pass(1500, storm); /* into the middle of the recovery */
        }
        struct storm_wait wait;
        storm_wait_whole(storm, ends_world ? world : 0, &wait);
        if (!storm_go_on(storm))
            break;
        if (ends_world && single && known) { /* else it may have ended what was ending already */
            wait.target = last;
            storm->took_ns[storm->took_count++] = wait.took_ns;
            storm->slowest = wait.took_ns > storm->slowest.took_ns ? wait : storm->slowest;
        }
        if (storm->plan.verbose)
            printf("  %.3f: whole after %.0f ms (longest, %.0f ms: %s), world %llu\n", (double)gms_clock_ns() / 1e9,
                   (double)wait.took_ns / 1e6, (double)wait.longest_ns / 1e6, wait.missing,
                   (unsigned long long)storm->deployment.status[0].world);
        check_same(storm);
        storm_check_workers(storm);
        read_moments(storm);
        if (killed % 50 == 0 || killed == storm->kills)
            printf("  %u kills, %llu rounds of streams\n", killed, (unsigned long long)atomic_load(&storm->rounds));
        fflush(stdout);
    }
}
