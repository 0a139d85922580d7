/* SPDX-License-Identifier: Apache-2.0 */
#include "fence/holders.h"

#include <event2/event.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "host/processes.h"

enum { FIRST_ROOM = 16, LISTINGS = 16 };

/* Shared by the loop and the thread; freed by the last of the two. */
struct gms_holders {
    atomic_int references;
    _Atomic pid_t at;
    atomic_bool abandoned;
    int finished[2]; /* the thread closes the write end: the read end becomes readable */
    struct event *news;
    uint64_t incarnation;
    struct gms_inode *files; /* own first, then shared */
    size_t own_count, shared_count;
    pid_t *anchors, *dead;
    size_t anchor_count, dead_count;
    void (*done)(void *context, const struct gms_holder *list, size_t count);
    void *context;
    struct gms_holder *list; /* the thread's until it has finished */
    size_t count, capacity;
};

static void put(struct gms_holders *walk)
{
    if (atomic_fetch_sub(&walk->references, 1) > 1)
        return;
    for (size_t i = 0; i < walk->count; i++)
        gms_fd_close(&walk->list[i].pidfd);
    gms_fd_close(&walk->finished[0]);
    gms_fd_close(&walk->finished[1]);
    free(walk->files);
    free(walk->anchors);
    free(walk->dead);
    free(walk->list);
    free(walk);
}

/* ------------------------------------------------------------------------------------------- the thread -------- */

/* Orphans of a cohort come up to its guardian, so the line to an anchor does not break. */
static bool descends_from_anchor(const struct gms_holders *walk, pid_t pid)
{
    enum { GENERATIONS = 256 };
    for (int i = 0; i < GENERATIONS && pid > 1; i++, pid = gms_parent_of(pid))
        if (gms_pid_is_in(walk->anchors, walk->anchor_count, pid))
            return true;
    return false;
}

static bool holds(const struct gms_holders *walk, pid_t pid)
{
    size_t count = walk->own_count + walk->shared_count;
    if (gms_maps_borrows(pid, walk->files, count, walk->incarnation))
        return true;
    size_t first = gms_maps_first(pid, walk->files, count, GMS_MAPS_SHARED);
    return first < walk->own_count || (first < count && !descends_from_anchor(walk, pid));
}

static void note(struct gms_holders *walk, pid_t pid, int pidfd)
{
    if (walk->count == walk->capacity) {
        size_t capacity = 2 * walk->capacity;
        struct gms_holder *list = realloc(walk->list, capacity * sizeof *list);
        if (list == NULL) {
            gms_fd_close(&pidfd);
            return; /* this one found others, so it says nobody to nobody; the next walk finds it */
        }
        walk->list = list;
        walk->capacity = capacity;
    }
    walk->list[walk->count++] = (struct gms_holder){pid, pidfd};
}

static void look_at(struct gms_holders *walk, pid_t pid)
{
    int pidfd = -1;
    if (gms_pid_is_in(walk->dead, walk->dead_count, pid) || !holds(walk, pid) || gms_threads_exiting(pid))
        return;
    if (gms_pidfd_open(pid, &pidfd, NULL) == GMS_E_NOT_FOUND)
        return;
    /* The pidfd first, then once more, so that a number which went to somebody else does not answer for it. */
    if (pidfd >= 0 && (!holds(walk, pid) || gms_pidfd_pid(pidfd) != pid)) {
        gms_fd_close(&pidfd);
        return;
    }
    note(walk, pid, pidfd);
}

/* Looks at everybody who was not there `before`. False: there was nobody to look at. */
static bool look_at_new(struct gms_holders *walk, const struct gms_processes *now, const pid_t *before, size_t count)
{
    bool looked = false;
    for (size_t i = 0; i < now->count && !atomic_load(&walk->abandoned); i++) {
        pid_t pid = now->list[i];
        if (pid == getpid() || gms_pid_is_in(before, count, pid))
            continue;
        looked = true;
        atomic_store(&walk->at, pid);
        look_at(walk, pid);
    }
    return looked;
}

/* Who is looked at may have started another before, and be gone: so until a listing shows nobody new. */
static void look_at_all(struct gms_holders *walk)
{
    struct gms_processes processes;
    pid_t *before = NULL;
    size_t before_count = 0;
    gms_processes_begin(&processes);
    for (int i = 0; !atomic_load(&walk->abandoned); i++) {
        if (i == LISTINGS || !gms_processes_list(&processes)) {
            note(walk, 0, -1); /* not everybody could be looked at: that is not nobody */
            break;
        }
        if (!look_at_new(walk, &processes, before, before_count))
            break;
        free(before);
        before = processes.list;
        before_count = processes.count;
        processes.list = NULL;
        processes.count = processes.capacity = 0;
    }
    free(before);
    gms_processes_end(&processes);
}

static void *run(void *context)
{
    struct gms_holders *walk = context;
    look_at_all(walk);
    atomic_store(&walk->at, 0);
    gms_fd_close(&walk->finished[1]);
    put(walk);
    return NULL;
}

/* --------------------------------------------------------------------------------------------- the loop -------- */

static void on_finished(evutil_socket_t fd, short what, void *context)
{
    struct gms_holders *walk = context;
    struct gms_holder *list = walk->list;
    size_t count = walk->count;
    (void)fd;
    (void)what;
    walk->list = NULL;
    walk->count = walk->capacity = 0;
    walk->done(walk->context, list, count); /* may abandon the walk */
    free(list);
}

static void *copy(const void *from, size_t bytes)
{
    void *to = malloc(bytes > 0 ? bytes : 1);
    if (to != NULL && bytes > 0)
        memcpy(to, from, bytes);
    return to;
}

static gms_status start_thread(struct gms_holders *walk, struct gms_error *ret_error)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the loop's */
    atomic_store(&walk->references, 2);
    int error = pthread_create(&thread, &attributes, run, walk);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error == 0)
        return GMS_OK;
    atomic_store(&walk->references, 1);
    return gms_fail(ret_error, GMS_E_SYSTEM, "no thread to look for holders of memory: %s", strerror(error));
}

gms_status gms_holders_start(const struct gms_holders_options *options, struct gms_holders **ret_walk,
                             struct gms_error *ret_error)
{
    struct gms_holders *walk = calloc(1, sizeof *walk);
    if (walk == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to look for holders of memory");
    atomic_store(&walk->references, 1);
    walk->finished[0] = walk->finished[1] = -1;
    walk->incarnation = options->incarnation;
    walk->own_count = options->own_count;
    walk->shared_count = options->shared_count;
    walk->anchor_count = options->anchor_count;
    walk->dead_count = options->dead_count;
    walk->done = options->done;
    walk->context = options->context;
    walk->files = calloc(options->own_count + options->shared_count + 1, sizeof *walk->files);
    walk->anchors = copy(options->anchors, options->anchor_count * sizeof *walk->anchors);
    walk->dead = copy(options->dead, options->dead_count * sizeof *walk->dead);
    gms_status status = GMS_OK;
    walk->capacity = FIRST_ROOM;
    walk->list = calloc(walk->capacity, sizeof *walk->list);
    if (walk->list == NULL || walk->files == NULL || walk->anchors == NULL || walk->dead == NULL) {
        status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to look for holders of memory");
    } else {
        gms_pids_sort(walk->anchors, walk->anchor_count);
        gms_pids_sort(walk->dead, walk->dead_count);
        for (size_t i = 0; i < options->own_count; i++)
            walk->files[i] = options->own[i];
        for (size_t i = 0; i < options->shared_count; i++)
            walk->files[options->own_count + i] = options->shared[i];
        if (pipe2(walk->finished, O_CLOEXEC | O_NONBLOCK) != 0)
            status = gms_fd_fail("the end of a walk over /proc", ret_error);
    }
    if (status == GMS_OK) {
        walk->news = event_new(options->base, walk->finished[0], EV_READ, on_finished, walk);
        if (walk->news == NULL || event_add(walk->news, NULL) != 0)
            status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to look for holders of memory");
    }
    if (status == GMS_OK)
        status = start_thread(walk, ret_error);
    if (status != GMS_OK) {
        gms_holders_abandon(walk);
        return status;
    }
    *ret_walk = walk;
    return GMS_OK;
}

pid_t gms_holders_at(const struct gms_holders *walk)
{
    return atomic_load(&walk->at);
}

void gms_holders_abandon(struct gms_holders *walk)
{
    if (walk == NULL)
        return;
    atomic_store(&walk->abandoned, true);
    if (walk->news != NULL)
        event_free(walk->news);
    walk->news = NULL;
    put(walk);
}
