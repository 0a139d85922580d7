/* SPDX-License-Identifier: Apache-2.0 */
#include "fence/fence.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "fence/before_kill.h"
#include "fence/holders.h"
#include "fence/kin.h"
#include "fence/loan.h"
#include "fence/rehearsal.h"
#include "host/maps.h"
#include "host/threads.h"

/* Most cohorts are retired within milliseconds, large ones on a GPU within tens: until then the looks stay close. */
enum { FIRST_PAUSE_US = 100, EARLY_PAUSE_US = 500, LONGEST_PAUSE_US = 50000 };
static const uint64_t early_ns = 50 * GMS_NS_PER_MS;
/* How long the memory of ended processes may take to come back before anybody else is suspected. Short: where they have
 * to wait for a processor to end on, looking around is done before they are. */
static const uint64_t loan_patience_ns = GMS_NS_PER_MS / 4;

/* What keeps a cohort from being retired, in the order in which it is asked. */
enum gap { GAP_NONE, GAP_FAMILY, GAP_STRANGER, GAP_MEMORY };

struct cohort {
    struct cohort *next;
    struct gms_fence *fence;
    uint32_t engine;
    uint64_t incarnation;
    int pidfd;
    pid_t pid; /* for people; never signalled */
    struct gms_container container;
    enum gms_fence_state state;
    uint64_t leave_ns; /* LIVE: until when it may end by itself; 0: it has not been asked to end */
    uint64_t started_ns, report_ns, report_pause_ns;
    uint32_t pause_us;
    struct event *timer, *engine_ended, *guardian_ended;

    struct gms_kin family, strangers;
    bool group_killed;               /* cgroup.kill was written */
    bool seeded;                     /* the family */
    struct gms_before_kill *holding; /* the kill waits for it */
    struct gms_holders *walk;        /* under way */
    uint64_t memory_ns;              /* since when only the memory is missing; 0: it is not */
    uint64_t next_walk_ns;           /* not before */
    uint64_t walk_pause_ns;
    bool walked_clean; /* a walk that began when only the memory was missing found nobody */
    bool untouchable;  /* it found somebody who cannot be named by a pidfd */
};

struct gms_fence {
    struct gms_fence_options options;
    struct cohort *cohorts;
    struct gms_rehearsal rehearsal;
};

static struct cohort *find(const struct gms_fence *fence, uint64_t incarnation)
{
    for (struct cohort *cohort = fence->cohorts; cohort != NULL; cohort = cohort->next)
        if (cohort->incarnation == incarnation)
            return cohort;
    return NULL;
}

/* What only a cohort that is not retired yet needs. */
static void end_watch(struct cohort *cohort)
{
    struct event **events[] = {&cohort->timer, &cohort->engine_ended, &cohort->guardian_ended};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        if (*events[i] != NULL)
            event_free(*events[i]);
        *events[i] = NULL;
    }
    gms_holders_abandon(cohort->walk);
    cohort->walk = NULL;
    gms_before_kill_abandon(cohort->holding);
    cohort->holding = NULL;
}

static void free_cohort(struct cohort *cohort)
{
    end_watch(cohort);
    gms_kin_clear(&cohort->family);
    gms_kin_clear(&cohort->strangers);
    gms_fd_close(&cohort->pidfd);
    if (cohort->state == GMS_FENCE_RETIRED && cohort->container.cgroup_fd >= 0)
        (void)gms_cgroup_remove_fd(cohort->container.cgroup_fd); /* if gms-exec did not live to do it */
    gms_container_close(&cohort->container);
    free(cohort);
}

/* ---------------------------------------------------------------------------------------------- the family ----- */

/* The guardian of a subreaper is gone. By itself: nothing was left. Killed: what it had below it went up to gms-exec,
 * which ends it and then itself. Both killed: nobody knows; what reaches the memory is found by it. */
static bool subreaper_left_nothing(const struct cohort *cohort)
{
    int status = -1;
    if (gms_pidfd_status(cohort->container.guardian_fd, &status) && status == 0)
        return true;
    return cohort->container.exec_fd < 0 || gms_pidfd_ended(cohort->container.exec_fd);
}

/* What the search starts from. Kills them. False: no descriptor for one now; to be called again. */
static bool seed_family(struct cohort *cohort)
{
    if (cohort->seeded)
        return true;
    gms_kin_clear(&cohort->family);
    cohort->seeded = (cohort->container.engine_fd < 0 || gms_kin_add(&cohort->family, cohort->container.engine_fd)) &&
                     gms_kin_add(&cohort->family, cohort->pidfd);
    return cohort->seeded;
}

struct group_look {
    struct cohort *cohort;
    pid_t waits;
};

static bool look_at_member(void *context, pid_t pid)
{
    struct group_look *look = context;
    if (!gms_threads_exiting(pid))
        look->waits = pid;
    return look->waits == 0;
}

/* Everybody in the control group got the signal with cgroup.kill, also who was being started just then. */
static bool group_exiting(struct cohort *cohort, pid_t *ret_waits)
{
    struct group_look look = {.cohort = cohort};
    int group = cohort->container.cgroup_fd;
    if (!gms_cgroup_populated(group))
        return true;
    cohort->group_killed = cohort->group_killed || gms_cgroup_kill(group);
    bool whole = gms_cgroup_each(group, look_at_member, &look);
    *ret_waits = look.waits;
    return cohort->group_killed && whole && look.waits == 0;
}

static bool family_exiting(struct cohort *cohort, pid_t *ret_waits)
{
    if (!seed_family(cohort))
        return false;
    const struct gms_container *container = &cohort->container;
    bool contained = container->kind != 0;
    if (container->kind == GMS_CONTAINER_CGROUP && !group_exiting(cohort, ret_waits))
        return false;
    int anchor = contained ? container->guardian_fd : -1;
    enum gms_kin_state state = gms_kin_look(&cohort->family, anchor, ret_waits);
    if (!contained)
        return state == GMS_KIN_EXITING;
    bool init = container->kind == GMS_CONTAINER_PID_NAMESPACE;
    pid_t guardian = gms_pidfd_pid(container->guardian_fd);
    switch (state) {
    case GMS_KIN_LIVE:
        return false;
    case GMS_KIN_EXITING:
        *ret_waits = init ? guardian : 0;
        return !init || gms_threads_exiting(guardian);
    case GMS_KIN_UNKNOWN:
        break;
    }
    *ret_waits = guardian > 0 ? guardian : 0;
    if (!gms_pidfd_ended(container->guardian_fd))
        return false; /* it cannot be seen from here: its end has to tell */
    if (gms_kin_look(&cohort->family, -1, ret_waits) != GMS_KIN_EXITING)
        return false; /* also a rank that does not live in its namespace, whose end says nothing about it then */
    *ret_waits = container->exec_fd >= 0 ? gms_pidfd_pid(container->exec_fd) : 0;
    return init || container->kind == GMS_CONTAINER_CGROUP || subreaper_left_nothing(cohort);
}

/* ---------------------------------------------------------------------------------------------- the memory ----- */

static size_t lent(const struct cohort *cohort, struct gms_fence_file ret_files[GMS_FENCE_FILES])
{
    const struct gms_fence_options *options = &cohort->fence->options;
    return options->lent(options->context, cohort->incarnation, ret_files);
}

static bool memory_is_out(const struct cohort *cohort)
{
    struct gms_fence_file files[GMS_FENCE_FILES];
    size_t count = lent(cohort, files);
    for (size_t i = 0; i < count; i++)
        if (gms_loan_is_out(files[i].fd, cohort->incarnation))
            return true;
    return false;
}

static bool is_over(const struct cohort *cohort)
{
    return gms_kin_ended(&cohort->family) && gms_kin_ended(&cohort->strangers) &&
           (cohort->container.guardian_fd < 0 || gms_pidfd_ended(cohort->container.guardian_fd));
}

static void check(struct cohort *cohort);

static void on_walked(void *context, const struct gms_holder *list, size_t count)
{
    struct cohort *cohort = context;
    gms_holders_abandon(cohort->walk);
    cohort->walk = NULL;
    cohort->walked_clean = count == 0;
    cohort->untouchable = false;
    for (size_t i = 0; i < count; i++) {
        int pidfd = list[i].pidfd;
        if (list[i].pid == 0)
            gms_log(GMS_LOG_NOTICE,
                    "fence: engine %u incarnation %llu: not everybody could be looked at for its memory; tried again",
                    cohort->engine, (unsigned long long)cohort->incarnation);
        else
            gms_log(GMS_LOG_NOTICE,
                    "fence: pid %d is not of engine %u incarnation %llu but holds its memory; it is killed too",
                    (int)list[i].pid, cohort->engine, (unsigned long long)cohort->incarnation);
        if (list[i].pid > 0 && (pidfd < 0 || !gms_kin_add(&cohort->strangers, pidfd)))
            cohort->untouchable = true;
        gms_fd_close(&pidfd);
    }
    cohort->pause_us = FIRST_PAUSE_US;
    check(cohort);
}

/* Who of the processes of this machine belongs to a cohort that lives descends from one of these. */
static size_t list_anchors(const struct gms_fence *fence, pid_t *ret_list, size_t room)
{
    size_t count = 0;
    for (const struct cohort *cohort = fence->cohorts; cohort != NULL; cohort = cohort->next) {
        const int fds[] = {cohort->pidfd, cohort->container.guardian_fd};
        for (size_t i = 0; i < 2 && cohort->state == GMS_FENCE_LIVE && count < room; i++) {
            pid_t pid = fds[i] >= 0 ? gms_pidfd_pid(fds[i]) : 0;
            if (pid > 0)
                ret_list[count++] = pid;
        }
    }
    return count;
}

static void start_walk(struct cohort *cohort, uint64_t now_ns)
{
    gms_rehearsal_stop(&cohort->fence->rehearsal);
    struct gms_fence_file files[GMS_FENCE_FILES];
    struct gms_inode own[GMS_FENCE_FILES], shared[GMS_FENCE_FILES];
    pid_t anchors[4 * GMS_MAX_ENGINES], *dead = calloc(cohort->family.count + 1, sizeof *dead);
    struct gms_holders_options options = {.base = cohort->fence->options.base,
                                          .incarnation = cohort->incarnation,
                                          .own = own,
                                          .shared = shared,
                                          .anchors = anchors,
                                          .dead = dead,
                                          .done = on_walked,
                                          .context = cohort};
    struct gms_error error;
    size_t count = lent(cohort, files);
    for (size_t i = 0; i < count; i++) {
        struct gms_inode inode;
        if (!gms_inode_of(files[i].fd, &inode))
            continue;
        if (files[i].shared)
            shared[options.shared_count++] = inode;
        else
            own[options.own_count++] = inode;
    }
    for (size_t i = 0; dead != NULL && i < cohort->family.count; i++) {
        const struct gms_kin_process *process = &cohort->family.list[i];
        if (process->pid > 0 && gms_pidfd_pid(process->pidfd) == process->pid) /* else it may be another's by now */
            dead[options.dead_count++] = process->pid;
    }
    options.anchor_count = list_anchors(cohort->fence, anchors, sizeof anchors / sizeof anchors[0]);
    cohort->walk_pause_ns = cohort->walk_pause_ns > 0 ? 2 * cohort->walk_pause_ns : loan_patience_ns;
    if (cohort->walk_pause_ns > GMS_NS_PER_S)
        cohort->walk_pause_ns = GMS_NS_PER_S;
    cohort->next_walk_ns = now_ns + cohort->walk_pause_ns;
    if (gms_holders_start(&options, &cohort->walk, &error) != GMS_OK)
        gms_log(GMS_LOG_ERROR, "fence: %s; it is tried again", error.text);
    free(dead);
}

/* Only the memory is missing: is it somebody else's hand, or are the dead not taken down yet? */
static bool memory_is_safe(struct cohort *cohort)
{
    uint64_t now_ns = gms_clock_ns();
    if (!memory_is_out(cohort))
        return true;
    if (cohort->memory_ns == 0) {
        cohort->memory_ns = now_ns;
        if (cohort->next_walk_ns < now_ns + loan_patience_ns)
            cohort->next_walk_ns = now_ns + loan_patience_ns;
    }
    if (cohort->walked_clean && !is_over(cohort))
        return true;
    /* All have ended, and a walk found nobody: the descriptor lies in a socket, or with somebody who cannot be seen. */
    if (cohort->walk == NULL && now_ns >= cohort->next_walk_ns)
        start_walk(cohort, now_ns);
    return false;
}

/* ---------------------------------------------------------------------------------------------- the verdict ---- */

static enum gap first_gap(struct cohort *cohort, pid_t *ret_waits)
{
    enum gap gap = GAP_NONE;
    *ret_waits = 0;
    if (!family_exiting(cohort, ret_waits))
        gap = GAP_FAMILY;
    else if (gms_kin_look(&cohort->strangers, -1, ret_waits) != GMS_KIN_EXITING)
        gap = GAP_STRANGER;
    if (gap != GAP_NONE) { /* what a walk found before is older than this */
        cohort->walked_clean = false;
        cohort->memory_ns = 0;
        return gap;
    }
    return memory_is_safe(cohort) ? GAP_NONE : GAP_MEMORY;
}

static void describe_gap(struct cohort *cohort, char *ret_text, size_t bytes)
{
    pid_t waits = 0;
    char who[128] = "a process that cannot be seen from here";
    enum gap gap = first_gap(cohort, &waits);
    if (waits > 0)
        gms_threads_describe(waits, who, sizeof who);
    switch (gap) {
    case GAP_NONE:
        snprintf(ret_text, bytes, "nothing any more");
        break;
    case GAP_FAMILY:
        snprintf(ret_text, bytes, "%s, was killed and does not end", who);
        break;
    case GAP_STRANGER:
        snprintf(ret_text, bytes, "%s, holds its memory without being of it, was killed and does not end", who);
        break;
    case GAP_MEMORY:
        if (cohort->walk != NULL)
            snprintf(ret_text, bytes, "a look at who holds its memory, which is at pid %d",
                     (int)gms_holders_at(cohort->walk));
        else
            snprintf(ret_text, bytes, "its memory, which somebody holds who cannot be %s%s",
                     cohort->untouchable ? "ended" : "seen",
                     cohort->untouchable ? "" : " (a descriptor in a socket that nobody reads?)");
        break;
    }
}

static void report(struct cohort *cohort, uint64_t now_ns)
{
    char text[256];
    if (cohort->report_ns == 0 || now_ns < cohort->report_ns)
        return;
    cohort->report_pause_ns *= 2; /* a log is not to be filled */
    cohort->report_ns = now_ns + cohort->report_pause_ns;
    describe_gap(cohort, text, sizeof text);
    gms_log(GMS_LOG_WARNING, "fence: engine %u incarnation %llu is not retired here after %llu ms: waits for %s",
            cohort->engine, (unsigned long long)cohort->incarnation,
            (unsigned long long)((now_ns - cohort->started_ns) / GMS_NS_PER_MS), text);
}

static void kill_cohort(struct cohort *cohort);

/* Everything that names it has ended: the container where it has one, which ends after the rank and what it left. */
static bool ended_by_itself(const struct cohort *cohort)
{
    return gms_pidfd_ended(cohort->container.guardian_fd >= 0 ? cohort->container.guardian_fd : cohort->pidfd);
}

/* Until its grace is over. The loop's own time is that of its last wake-up, so a timer may fire before it is: then it
 * is set again. */
static void await_leave(struct cohort *cohort)
{
    const uint64_t now_ns = gms_clock_ns();
    const uint64_t us = (cohort->leave_ns > now_ns ? cohort->leave_ns - now_ns : 0) / 1000 + 1;
    const struct timeval pause = {.tv_sec = (time_t)(us / 1000000), .tv_usec = (suseconds_t)(us % 1000000)};
    event_add(cohort->timer, &pause);
}

/* Until the next look, which is not to be late for a walk. */
static void await_news(struct cohort *cohort)
{
    const uint64_t now_ns = gms_clock_ns(), due_ns = cohort->next_walk_ns;
    const uint32_t longest_us = now_ns < cohort->started_ns + early_ns ? EARLY_PAUSE_US : LONGEST_PAUSE_US;
    struct timeval pause = {.tv_usec = (suseconds_t)cohort->pause_us};
    if (cohort->memory_ns > 0 && cohort->walk == NULL && due_ns < now_ns + cohort->pause_us * 1000)
        pause.tv_usec = due_ns > now_ns ? (suseconds_t)((due_ns - now_ns) / 1000 + 1) : 1;
    event_add(cohort->timer, &pause);
    cohort->pause_us += cohort->pause_us / 2;
    if (cohort->pause_us > longest_us)
        cohort->pause_us = longest_us;
}

static void check(struct cohort *cohort)
{
    pid_t waits;
    if (cohort->state == GMS_FENCE_LIVE && cohort->leave_ns != 0) {
        if (ended_by_itself(cohort) || gms_clock_ns() >= cohort->leave_ns)
            kill_cohort(cohort);
        else
            await_leave(cohort);
        return;
    }
    if (cohort->state != GMS_FENCE_KILLED)
        return;
    if (first_gap(cohort, &waits) != GAP_NONE) {
        await_news(cohort);
        report(cohort, gms_clock_ns());
        return;
    }
    cohort->state = GMS_FENCE_RETIRED;
    end_watch(cohort);
    uint64_t now_ns = gms_clock_ns();
    gms_log(GMS_LOG_NOTICE,
            "fence: engine %u incarnation %llu is retired here after %.3f ms (%zu processes, memory %.3f ms%s)",
            cohort->engine, (unsigned long long)cohort->incarnation,
            (double)(now_ns - cohort->started_ns) / GMS_NS_PER_MS, cohort->family.count + cohort->strangers.count,
            cohort->memory_ns > 0 ? (double)(now_ns - cohort->memory_ns) / GMS_NS_PER_MS : 0.0,
            is_over(cohort) ? "" : "; its last threads are still exiting");
    cohort->fence->options.retired(cohort->fence->options.context, cohort->engine, cohort->incarnation);
}

static void on_news(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    check(context);
}

/* ------------------------------------------------------------------------------------------- life, cohorts ----- */

gms_status gms_fence_open(const struct gms_fence_options *options, struct gms_fence **ret_fence,
                          struct gms_error *ret_error)
{
    struct gms_fence *fence = calloc(1, sizeof *fence);
    if (fence == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the fence");
    fence->options = *options;
    *ret_fence = fence;
    return GMS_OK;
}

void gms_fence_rehearse(struct gms_fence *fence)
{
    struct gms_error error;
    if (gms_rehearsal_start(&fence->rehearsal, fence->options.base, &error) != GMS_OK)
        gms_log(GMS_LOG_INFO, "fence: no rehearsal: %s", error.text);
}

void gms_fence_close(struct gms_fence *fence)
{
    if (fence == NULL)
        return;
    gms_rehearsal_end(&fence->rehearsal);
    while (fence->cohorts != NULL) {
        struct cohort *next = fence->cohorts->next;
        free_cohort(fence->cohorts);
        fence->cohorts = next;
    }
    free(fence);
}

gms_status gms_fence_add(struct gms_fence *fence, uint32_t engine, uint64_t incarnation, int pidfd,
                         const struct gms_container *container, struct gms_error *ret_error)
{
    struct cohort *cohort = calloc(1, sizeof *cohort);
    if (cohort == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a cohort");
    cohort->fence = fence;
    cohort->engine = engine;
    cohort->incarnation = incarnation;
    cohort->state = GMS_FENCE_LIVE;
    cohort->pidfd = fcntl(pidfd, F_DUPFD_CLOEXEC, 3);
    cohort->container = GMS_NO_CONTAINER;
    gms_status status = GMS_OK;
    if (cohort->pidfd < 0)
        status = gms_fail(ret_error, GMS_E_DESCRIPTORS, "no descriptor left for the pidfd of engine %u: %s", engine,
                          strerror(errno));
    if (status == GMS_OK)
        status = gms_container_copy(container, &cohort->container, ret_error);
    if (status == GMS_OK) {
        cohort->pid = gms_pidfd_pid(cohort->pidfd);
        cohort->timer = event_new(fence->options.base, -1, 0, on_news, cohort);
        cohort->engine_ended = event_new(fence->options.base, cohort->pidfd, EV_READ, on_news, cohort);
        if (cohort->container.guardian_fd >= 0)
            cohort->guardian_ended =
                event_new(fence->options.base, cohort->container.guardian_fd, EV_READ, on_news, cohort);
        if (cohort->timer == NULL || cohort->engine_ended == NULL ||
            (cohort->container.guardian_fd >= 0 && cohort->guardian_ended == NULL))
            status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a cohort's events");
    }
    if (status != GMS_OK) {
        free_cohort(cohort);
        return status;
    }
    cohort->next = fence->cohorts;
    fence->cohorts = cohort;
    return GMS_OK;
}

/* From LIVE to KILLED: SIGKILL to all that is known. Who comes to light later is killed then. */
static void kill_cohort(struct cohort *cohort)
{
    const struct gms_fence *fence = cohort->fence;
    gms_before_kill_abandon(cohort->holding);
    cohort->holding = NULL;
    cohort->state = GMS_FENCE_KILLED;
    cohort->started_ns = gms_clock_ns();
    cohort->pause_us = FIRST_PAUSE_US;
    cohort->report_pause_ns = fence->options.report_ns;
    cohort->report_ns = fence->options.report_ns > 0 ? cohort->started_ns + fence->options.report_ns : 0;
    gms_log(GMS_LOG_NOTICE, "fence: engine %u incarnation %llu (pid %d) %s", cohort->engine,
            (unsigned long long)cohort->incarnation, (int)cohort->pid,
            cohort->leave_ns != 0 && ended_by_itself(cohort) ? "has ended by itself" : "is killed");
    if (cohort->container.kind == GMS_CONTAINER_PID_NAMESPACE)
        gms_pidfd_signal(cohort->container.guardian_fd, SIGKILL);
    if (cohort->container.kind == GMS_CONTAINER_CGROUP)
        cohort->group_killed = gms_cgroup_kill(cohort->container.cgroup_fd);
    seed_family(cohort);
    event_add(cohort->engine_ended, NULL);
    if (cohort->guardian_ended != NULL)
        event_add(cohort->guardian_ended, NULL);
    check(cohort);
}

void gms_fence_start(struct gms_fence *fence, uint32_t engine, uint64_t incarnation)
{
    struct cohort *cohort = find(fence, incarnation);
    if (cohort == NULL)
        fence->options.retired(fence->options.context, engine, incarnation);
    else if (cohort->state == GMS_FENCE_LIVE)
        kill_cohort(cohort);
}

static void on_held(void *context)
{
    kill_cohort(context);
}

void gms_fence_start_held(struct gms_fence *fence, uint32_t engine, uint64_t incarnation)
{
    struct cohort *cohort = find(fence, incarnation);
    pid_t pid = cohort != NULL ? gms_pidfd_pid(cohort->pidfd) : 0;
    const struct gms_before_kill_options run = {.base = fence->options.base,
                                                .words = fence->options.before_kill,
                                                .words_bytes = fence->options.before_kill_bytes,
                                                .pid = pid,
                                                .limit_ns = fence->options.before_kill_ns,
                                                .done = on_held,
                                                .context = cohort};
    struct gms_error error;
    if (cohort != NULL && cohort->holding != NULL)
        return;
    if (cohort != NULL && cohort->state == GMS_FENCE_LIVE && run.words_bytes > 0 && pid > 0 &&
        !gms_pidfd_ended(cohort->pidfd)) {
        if (gms_before_kill_start(&run, &cohort->holding, &error) == GMS_OK)
            return;
        gms_log(GMS_LOG_WARNING, "hooks.before_kill: %s", error.text);
    }
    gms_fence_start(fence, engine, incarnation);
}

void gms_fence_start_leaving(struct gms_fence *fence, uint32_t engine, uint64_t incarnation, uint64_t grace_ns)
{
    struct cohort *cohort = find(fence, incarnation);
    if (cohort != NULL && (cohort->state != GMS_FENCE_LIVE || cohort->leave_ns != 0))
        return;
    if (cohort == NULL || grace_ns == 0) {
        gms_fence_start(fence, engine, incarnation);
        return;
    }
    cohort->leave_ns = gms_clock_ns() + grace_ns;
    event_add(cohort->guardian_ended != NULL ? cohort->guardian_ended : cohort->engine_ended, NULL);
    check(cohort);
}

void gms_fence_forget(struct gms_fence *fence, uint64_t incarnation)
{
    for (struct cohort **link = &fence->cohorts; *link != NULL; link = &(*link)->next) {
        if ((*link)->incarnation != incarnation)
            continue;
        struct cohort *cohort = *link;
        *link = cohort->next;
        free_cohort(cohort);
        return;
    }
}

enum gms_fence_state gms_fence_look(const struct gms_fence *fence, uint64_t incarnation, pid_t *ret_pid,
                                    uint32_t *ret_container_kind)
{
    const struct cohort *cohort = find(fence, incarnation);
    if (ret_pid != NULL)
        *ret_pid = cohort != NULL ? cohort->pid : 0;
    if (ret_container_kind != NULL)
        *ret_container_kind = cohort != NULL ? cohort->container.kind : 0;
    return cohort != NULL ? cohort->state : GMS_FENCE_UNKNOWN;
}

void gms_fence_waits_for(struct gms_fence *fence, uint64_t incarnation, char *ret_text, size_t bytes)
{
    struct cohort *cohort = find(fence, incarnation);
    ret_text[0] = '\0';
    if (cohort != NULL && cohort->state == GMS_FENCE_KILLED)
        describe_gap(cohort, ret_text, bytes);
}

bool gms_fence_is_over(const struct gms_fence *fence, uint64_t incarnation)
{
    const struct cohort *cohort = find(fence, incarnation);
    return cohort != NULL && cohort->state != GMS_FENCE_LIVE && is_over(cohort);
}
