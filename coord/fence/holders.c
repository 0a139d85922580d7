/* SPDX-License-Identifier: Apache-2.0 */
#include "fence/holders.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/thread.h"
#include "fence/handout.h"
#include "host/processes.h"
#include "host/threads.h"

enum { FIRST_ROOM = 16, MOST_THREADS = 4, DESCRIPTORS = 32, MAPPINGS = 64 /* in a piece */ };

/* What a process has so much of that several threads look at it: as long as the walk. */
struct crowd {
    struct crowd *next;
    enum { CROWD_DESCRIPTORS, CROWD_MAPPINGS } kind;
    uint64_t from, until; /* addresses of mappings */
    atomic_size_t taken;  /* pieces */
    atomic_size_t left;   /* pieces not done yet; who does the last looks at what is not a piece */
    size_t pieces, count; /* count: descriptors */
    bool known[];         /* by descriptor */
};

/* Shared by the loop and the threads; freed by the last of them. */
struct gms_holders {
    atomic_int references;
    atomic_size_t joined, working; /* threads: that have begun; that have not finished */
    struct gms_handout *handout;
    struct gms_processes processes; /* of the thread that lists */
    bool listed;                    /* before */
    size_t threads;                 /* at most */
    int finished[2];                /* the last thread closes the write end: the read end becomes readable */
    struct event *news;
    uint64_t incarnation;
    struct gms_inode *files; /* own first, then shared */
    size_t own_count, shared_count;
    pid_t *anchors;
    size_t anchor_count;
    void (*done)(void *context, const struct gms_holder *list, size_t count);
    void *context;
    pthread_mutex_t lock; /* of what follows */
    struct gms_holder *list;
    size_t count, capacity;
    struct crowd *crowds;
};

static void put(struct gms_holders *walk)
{
    if (atomic_fetch_sub(&walk->references, 1) > 1)
        return;
    for (size_t i = 0; i < walk->count; i++)
        gms_fd_close(&walk->list[i].pidfd);
    for (struct crowd *crowd = walk->crowds, *next; crowd != NULL; crowd = next) {
        next = crowd->next;
        free(crowd);
    }
    gms_fd_close(&walk->finished[0]);
    gms_fd_close(&walk->finished[1]);
    gms_handout_free(walk->handout);
    gms_processes_end(&walk->processes);
    pthread_mutex_destroy(&walk->lock);
    free(walk->files);
    free(walk->anchors);
    free(walk->list);
    free(walk);
}

/* ------------------------------------------------------------------------------------------- the looks --------- */

static void note(struct gms_holders *walk, pid_t pid, int pidfd)
{
    pthread_mutex_lock(&walk->lock);
    struct gms_holder *list = walk->list;
    bool known = false;
    for (size_t i = 0; i < walk->count; i++)
        known = known || list[i].pid == pid;
    if (!known && walk->count == walk->capacity) {
        list = realloc(walk->list, 2 * walk->capacity * sizeof *list);
        if (list != NULL) {
            walk->list = list;
            walk->capacity *= 2;
        }
    }
    if (!known && list != NULL)
        walk->list[walk->count++] = (struct gms_holder){pid, pidfd};
    else
        gms_fd_close(&pidfd); /* without memory for it: it found others, so it says nobody to nobody; the next walk
                                 finds this one */
    pthread_mutex_unlock(&walk->lock);
}

/* Returns `found`, what a look says. */
static bool judge(struct gms_holders *walk, bool found)
{
    if (!found && gms_maps_unknown(errno))
        note(walk, 0, -1);
    return found;
}

/* Orphans of a cohort come up to its guardian, so the line to an anchor does not break. */
static bool descends_from_anchor(struct gms_holders *walk, pid_t pid)
{
    enum { GENERATIONS = 256 };
    for (int i = 0; i < GENERATIONS && pid > 1; i++) {
        if (gms_pid_is_in(walk->anchors, walk->anchor_count, pid))
            return true;
        errno = 0;
        pid = gms_parent_of(pid);
        if (pid < 0 && gms_maps_unknown(errno))
            return true; /* not known: whoever counts as a holder is killed */
    }
    return false;
}

static size_t file_count(const struct gms_holders *walk)
{
    return walk->own_count + walk->shared_count;
}

/* `first`: as gms_maps_first has it. */
static bool is_holder(struct gms_holders *walk, pid_t pid, size_t first)
{
    return judge(walk, first < walk->own_count || (first < file_count(walk) && !descends_from_anchor(walk, pid)));
}

/* By whichever of its threads lives. */
static bool holds(struct gms_holders *walk, pid_t pid)
{
    if (judge(walk, gms_maps_borrows(pid, walk->files, file_count(walk), walk->incarnation)))
        return true;
    if (errno == ESRCH)
        return false; /* nobody any more */
    return is_holder(walk, pid, gms_maps_first(pid, walk->files, file_count(walk), GMS_MAPS_SHARED));
}

static void look_closely(struct gms_holders *walk, pid_t pid)
{
    int pidfd = -1;
    if (gms_threads_living(pid) == 0 || gms_pidfd_open(pid, &pidfd, NULL) == GMS_E_NOT_FOUND)
        return;
    /* The pidfd first, then once more, so that a number which went to somebody else does not answer for it. */
    if (pidfd >= 0 && (!holds(walk, pid) || gms_pidfd_pid(pidfd) != pid)) {
        gms_fd_close(&pidfd);
        return;
    }
    note(walk, pid, pidfd);
}

/* By its number it had nothing: its first thread has ended, and another may show what it has, or all have. */
static void look_past_first(struct gms_holders *walk, pid_t pid)
{
    if (holds(walk, pid)) {
        look_closely(walk, pid);
        return;
    }
    errno = 0;
    if (gms_parent_of(pid) < 0 && (errno == ENOENT || errno == ESRCH))
        gms_handout_gone(walk->handout, pid);
}

static struct crowd *make_crowd(struct gms_holders *walk, int kind, size_t count)
{
    struct crowd *crowd = calloc(1, sizeof *crowd + count * sizeof crowd->known[0]);
    if (crowd == NULL)
        return NULL;
    crowd->kind = kind;
    crowd->count = count;
    pthread_mutex_lock(&walk->lock);
    crowd->next = walk->crowds;
    walk->crowds = crowd;
    pthread_mutex_unlock(&walk->lock);
    return crowd;
}

/* Of the addresses that are left gives away the upper ones. */
static bool give_away_mappings(struct gms_holders *walk, pid_t pid, uint64_t from, uint64_t *inout_until)
{
    uint64_t middle;
    if (gms_handout_wanted(walk->handout) == 0 || !gms_maps_split(pid, GMS_MAPS_SHARED, from, *inout_until, &middle))
        return false;
    struct crowd *crowd = make_crowd(walk, CROWD_MAPPINGS, 0);
    if (crowd == NULL)
        return false;
    crowd->from = middle;
    crowd->until = *inout_until;
    if (!gms_handout_add(walk->handout, pid, crowd, 1))
        return false;
    *inout_until = middle;
    return true;
}

/* After the descriptors: who receives one, maps it and closes it is found by either. */
static void look_at_mappings(struct gms_holders *walk, pid_t pid, uint64_t from, uint64_t until)
{
    const size_t most = walk->threads > 1 ? MAPPINGS : SIZE_MAX;
    while (from < until) {
        size_t first = gms_maps_first_between(pid, walk->files, file_count(walk), GMS_MAPS_SHARED, most, &from, until);
        const bool ended = errno == ESRCH;
        if (is_holder(walk, pid, first)) {
            look_closely(walk, pid);
            return;
        }
        if (ended) {
            look_past_first(walk, pid);
            return;
        }
        if (from < until)
            (void)give_away_mappings(walk, pid, from, &until);
    }
}

static void look_at_piece(struct gms_holders *walk, pid_t pid, struct crowd *crowd, size_t piece)
{
    const size_t from = piece * DESCRIPTORS, rest = crowd->count - from;
    if (judge(walk, gms_maps_borrows_numbers(pid, walk->files, file_count(walk), walk->incarnation, (int)from,
                                             rest < DESCRIPTORS ? rest : DESCRIPTORS, crowd->known + from)))
        look_closely(walk, pid);
    if (atomic_fetch_sub(&crowd->left, 1) > 1)
        return;
    if (judge(walk, gms_maps_borrows_others(pid, walk->files, file_count(walk), walk->incarnation, crowd->known,
                                            crowd->count)))
        look_closely(walk, pid);
    else
        look_at_mappings(walk, pid, 0, UINT64_MAX);
}

/* Piece by piece, together with whoever has nothing else to do: several at one process are in each other's way. */
static void look_at_pieces(struct gms_holders *walk, pid_t pid, struct crowd *crowd)
{
    for (size_t piece; (piece = atomic_fetch_add(&crowd->taken, 1)) < crowd->pieces;) {
        const size_t wanted = gms_handout_wanted(walk->handout), rest = crowd->pieces - piece - 1;
        if (wanted > 0 && rest > 0)
            (void)gms_handout_add(walk->handout, pid, crowd, wanted < rest ? wanted : rest);
        look_at_piece(walk, pid, crowd, piece);
    }
}

static void look_at(struct gms_holders *walk, const struct gms_job *job)
{
    struct crowd *crowd = job->piece;
    if (crowd != NULL && crowd->kind == CROWD_MAPPINGS) {
        look_at_mappings(walk, job->pid, crowd->from, crowd->until);
        return;
    }
    const size_t count = crowd == NULL && walk->threads > 1 ? gms_maps_descriptors(job->pid) : 0;
    if (count > 2 * DESCRIPTORS && (crowd = make_crowd(walk, CROWD_DESCRIPTORS, count)) != NULL) {
        crowd->pieces = (count + DESCRIPTORS - 1) / DESCRIPTORS;
        atomic_store(&crowd->left, crowd->pieces);
    }
    if (crowd != NULL)
        look_at_pieces(walk, job->pid, crowd);
    else if (judge(walk, gms_maps_borrows(job->pid, walk->files, file_count(walk), walk->incarnation)))
        look_closely(walk, job->pid);
    else
        look_at_mappings(walk, job->pid, 0, UINT64_MAX);
}

/* ------------------------------------------------------------------------------------------ the threads -------- */

static void *run(void *context);

static int start_thread(struct gms_holders *walk)
{
    atomic_fetch_add(&walk->references, 1);
    atomic_fetch_add(&walk->working, 1);
    const int error = gms_thread_start(run, walk, NULL);
    if (error != 0) {
        atomic_fetch_sub(&walk->working, 1);
        atomic_fetch_sub(&walk->references, 1);
    }
    return error;
}

static void list(struct gms_holders *walk)
{
    struct gms_processes *processes = &walk->processes;
    if (!walk->listed)
        gms_processes_begin(processes);
    walk->listed = true;
    if (!gms_processes_list(processes)) {
        gms_handout_listed(walk->handout, NULL, 0);
        return;
    }
    gms_handout_listed(walk->handout, processes->list, processes->count);
    processes->list = NULL;
    processes->count = processes->capacity = 0;
}

static void *run(void *context)
{
    struct gms_holders *walk = context;
    const size_t self = atomic_fetch_add(&walk->joined, 1);
    if (self + 1 < walk->threads)
        (void)start_thread(walk); /* each the next, so that all begin soon; those that there are do it */
    for (bool over = false; !over;) {
        const struct gms_job job = gms_handout_take(walk->handout, self);
        switch (job.kind) {
        case GMS_JOB_LIST:
            list(walk);
            break;
        case GMS_JOB_LOOK:
            look_at(walk, &job);
            break;
        case GMS_JOB_END:
            over = true;
            break;
        }
    }
    if (atomic_fetch_sub(&walk->working, 1) == 1) {
        if (!gms_handout_is_whole(walk->handout))
            note(walk, 0, -1); /* not everybody was looked at: that is not nobody */
        gms_fd_close(&walk->finished[1]);
    }
    put(walk);
    return NULL;
}

/* One processor is left to the dead, who are being taken down meanwhile: on two a second thread made the fence slower.
 * A few are enough: all coordinators of a host may walk at the same time, and engines live there. */
static size_t count_threads(size_t wanted)
{
    cpu_set_t allowed;
    if (wanted > 0)
        return wanted;
    const size_t processors =
        sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (size_t)CPU_COUNT(&allowed) : MOST_THREADS + 1;
    const size_t threads = processors > 1 ? processors - 1 : 1;
    return threads < MOST_THREADS ? threads : MOST_THREADS;
}

/* --------------------------------------------------------------------------------------------- the loop -------- */

static void on_finished(evutil_socket_t fd, short what, void *context)
{
    struct gms_holders *walk = context;
    (void)fd;
    (void)what;
    pthread_mutex_lock(&walk->lock);
    struct gms_holder *list = walk->list;
    size_t count = walk->count;
    walk->list = NULL;
    walk->count = walk->capacity = 0;
    pthread_mutex_unlock(&walk->lock);
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

/* Whom nobody looks at: ourselves, and the dead. */
static struct gms_handout *make_handout(const struct gms_holders_options *options, size_t threads)
{
    pid_t *except = malloc((options->dead_count + 1) * sizeof *except);
    if (except == NULL)
        return NULL;
    except[0] = getpid();
    for (size_t i = 0; i < options->dead_count; i++)
        except[i + 1] = options->dead[i];
    gms_pids_sort(except, options->dead_count + 1);
    struct gms_handout *handout = gms_handout_make(threads, (size_t)getpid() * 7919, except, options->dead_count + 1);
    free(except);
    return handout;
}

gms_status gms_holders_start(const struct gms_holders_options *options, struct gms_holders **ret_walk,
                             struct gms_error *ret_error)
{
    struct gms_holders *walk = calloc(1, sizeof *walk);
    if (walk == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to look for holders of memory");
    atomic_store(&walk->references, 1);
    pthread_mutex_init(&walk->lock, NULL);
    walk->finished[0] = walk->finished[1] = -1;
    walk->threads = count_threads(options->threads);
    walk->incarnation = options->incarnation;
    walk->own_count = options->own_count;
    walk->shared_count = options->shared_count;
    walk->anchor_count = options->anchor_count;
    walk->done = options->done;
    walk->context = options->context;
    walk->files = calloc(options->own_count + options->shared_count + 1, sizeof *walk->files);
    walk->anchors = copy(options->anchors, options->anchor_count * sizeof *walk->anchors);
    walk->handout = make_handout(options, walk->threads);
    gms_status status = GMS_OK;
    walk->capacity = FIRST_ROOM;
    walk->list = calloc(walk->capacity, sizeof *walk->list);
    if (walk->list == NULL || walk->files == NULL || walk->anchors == NULL || walk->handout == NULL) {
        status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to look for holders of memory");
    } else {
        gms_pids_sort(walk->anchors, walk->anchor_count);
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
    if (status == GMS_OK) {
        int error = start_thread(walk);
        if (error != 0)
            status = gms_fail(ret_error, GMS_E_SYSTEM, "no thread to look for holders of memory: %s", strerror(error));
    }
    if (status != GMS_OK) {
        gms_holders_abandon(walk);
        return status;
    }
    *ret_walk = walk;
    return GMS_OK;
}

pid_t gms_holders_at(const struct gms_holders *walk)
{
    return gms_handout_at(walk->handout);
}

void gms_holders_stop(struct gms_holders *walk)
{
    gms_handout_stop(walk->handout);
}

void gms_holders_abandon(struct gms_holders *walk)
{
    if (walk == NULL)
        return;
    if (walk->handout != NULL)
        gms_handout_stop(walk->handout);
    if (walk->news != NULL)
        event_free(walk->news);
    walk->news = NULL;
    put(walk);
}
