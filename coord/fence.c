/* SPDX-License-Identifier: Apache-2.0 */
#include "fence.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "maps.h"

enum { LONGEST_PAUSE_MS = 50, FILES = GMS_MAX_POOLS };

struct cohort {
    struct cohort *next;
    struct gms_fence *fence;
    uint32_t engine;
    uint64_t incarnation;
    int pidfd;
    pid_t pid; /* for people; never signalled */
    struct gms_container container;
    struct gms_inode files[FILES];
    size_t file_count;
    enum gms_fence_state state;
    uint64_t started_ns;
    uint32_t pause_ms;
    struct event *timer, *engine_ended, *guardian_ended;
};

struct gms_fence {
    struct gms_fence_options options;
    struct cohort *cohorts;
};

static struct cohort *find(const struct gms_fence *fence, uint64_t incarnation)
{
    for (struct cohort *cohort = fence->cohorts; cohort != NULL; cohort = cohort->next)
        if (cohort->incarnation == incarnation)
            return cohort;
    return NULL;
}

void gms_fence_each_living(const struct gms_fence *fence, void (*visit)(void *context, uint64_t incarnation, int pidfd),
                           void *context)
{
    for (const struct cohort *cohort = fence->cohorts; cohort != NULL; cohort = cohort->next)
        if (!gms_pidfd_ended(cohort->pidfd))
            visit(context, cohort->incarnation, cohort->pidfd);
}

static void free_cohort(struct cohort *cohort)
{
    struct event **events[] = {&cohort->timer, &cohort->engine_ended, &cohort->guardian_ended};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (*events[i] != NULL)
            event_free(*events[i]);
    gms_fd_close(&cohort->pidfd);
    gms_container_close(&cohort->container);
    free(cohort);
}

/* The process of a pidfd: ended, or every thread past the start of its exit. The pid is asked twice, so that a number
 * given to somebody else in between does not answer for it. */
static bool engine_exiting(const struct cohort *cohort)
{
    if (gms_pidfd_ended(cohort->pidfd))
        return true;
    pid_t pid = gms_pidfd_pid(cohort->pidfd);
    if (pid <= 0)
        return false; /* outside our namespace: unknown, and unknown is never dead */
    return gms_threads_exiting(pid) && (gms_pidfd_ended(cohort->pidfd) || gms_pidfd_pid(cohort->pidfd) == pid);
}

/* Somebody maps a directory of a dead cohort: a child of it. Named by pidfd, and asked again through it, before the
 * signal. */
static bool kill_holder(void *context, pid_t pid)
{
    struct cohort *cohort = context;
    int pidfd = -1;
    if (gms_threads_exiting(pid) || gms_pidfd_open(pid, &pidfd, NULL) != GMS_OK)
        return true;
    if (gms_maps_has(pid, cohort->files, cohort->file_count, GMS_MAPS_ANY) && gms_pidfd_pid(pidfd) == pid) {
        gms_log(GMS_LOG_NOTICE, "fence: pid %d still maps a directory of incarnation %llu; it is killed too", (int)pid,
                (unsigned long long)cohort->incarnation);
        gms_pidfd_signal(pidfd, SIGKILL);
    }
    gms_fd_close(&pidfd);
    return true;
}

static bool count_holder(void *context, pid_t pid)
{
    size_t *live = context;
    if (!gms_threads_exiting(pid))
        (*live)++;
    return true;
}

static bool nobody_maps(struct cohort *cohort)
{
    size_t live = 0;
    gms_maps_each(cohort->files, cohort->file_count, GMS_MAPS_ANY, count_holder, &live);
    if (live == 0)
        return true;
    gms_maps_each(cohort->files, cohort->file_count, GMS_MAPS_ANY, kill_holder, cohort);
    return false; /* looked for again at the next turn */
}

static bool is_retired(struct cohort *cohort)
{
    switch (cohort->container.kind) {
    case GMS_CONTAINER_PID_NAMESPACE: /* the rank as well: a namespace that is not its own proves nothing */
        return gms_pidfd_ended(cohort->container.guardian_fd) && gms_pidfd_ended(cohort->pidfd);
    case GMS_CONTAINER_SUBREAPER:
        if (!gms_pidfd_ended(cohort->pidfd) || !gms_pidfd_ended(cohort->container.guardian_fd))
            return false;
        break;
    default:
        if (!engine_exiting(cohort))
            return false;
        break;
    }
    /* The guardian may have been killed, and without one there may be children anywhere. */
    return nobody_maps(cohort);
}

static void check(struct cohort *cohort)
{
    if (cohort->state != GMS_FENCE_KILLED)
        return;
    if (!is_retired(cohort)) {
        struct timeval pause = {.tv_usec = (suseconds_t)cohort->pause_ms * 1000};
        event_add(cohort->timer, &pause);
        cohort->pause_ms = cohort->pause_ms * 2 < LONGEST_PAUSE_MS ? cohort->pause_ms * 2 : LONGEST_PAUSE_MS;
        return;
    }
    cohort->state = GMS_FENCE_RETIRED;
    event_del(cohort->timer);
    if (cohort->engine_ended != NULL)
        event_del(cohort->engine_ended);
    if (cohort->guardian_ended != NULL)
        event_del(cohort->guardian_ended);
    gms_log(GMS_LOG_NOTICE, "fence: engine %u incarnation %llu is retired here after %.3f ms", cohort->engine,
            (unsigned long long)cohort->incarnation, (double)(gms_clock_ns() - cohort->started_ns) / GMS_NS_PER_MS);
    cohort->fence->options.retired(cohort->fence->options.context, cohort->engine, cohort->incarnation);
}

static void on_news(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    check(context);
}

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

void gms_fence_close(struct gms_fence *fence)
{
    if (fence == NULL)
        return;
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
    cohort->container = (struct gms_container){.guardian_fd = -1, .engine_fd = -1};
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

void gms_fence_add_file(struct gms_fence *fence, uint64_t incarnation, int fd)
{
    struct cohort *cohort = find(fence, incarnation);
    if (cohort != NULL && cohort->file_count < FILES && gms_inode_of(fd, &cohort->files[cohort->file_count]))
        cohort->file_count++;
}

void gms_fence_start(struct gms_fence *fence, uint32_t engine, uint64_t incarnation)
{
    struct cohort *cohort = find(fence, incarnation);
    if (cohort == NULL) {
        fence->options.retired(fence->options.context, engine, incarnation);
        return;
    }
    if (cohort->state != GMS_FENCE_LIVE)
        return;
    cohort->state = GMS_FENCE_KILLED;
    cohort->started_ns = gms_clock_ns();
    cohort->pause_ms = 1;
    gms_log(GMS_LOG_NOTICE, "fence: engine %u incarnation %llu (pid %d) is killed", engine,
            (unsigned long long)incarnation, (int)cohort->pid);
    if (cohort->container.kind == GMS_CONTAINER_PID_NAMESPACE)
        gms_pidfd_signal(cohort->container.guardian_fd, SIGKILL);
    if (cohort->container.engine_fd >= 0)
        gms_pidfd_signal(cohort->container.engine_fd, SIGKILL);
    gms_pidfd_signal(cohort->pidfd, SIGKILL);
    event_add(cohort->engine_ended, NULL);
    if (cohort->guardian_ended != NULL)
        event_add(cohort->guardian_ended, NULL);
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
