/* SPDX-License-Identifier: Apache-2.0 */
#include "fence/handout.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "host/processes.h"

/* More listings than that come to no end: somebody starts processes as fast as they are looked at. */
enum { LISTINGS = 16 };

struct pieces {
    pid_t pid;
    void *piece;
    size_t left;
};

struct under_way {
    pid_t pid; /* 0: nobody */
    uint64_t since;
};

struct gms_handout {
    pthread_mutex_t lock; /* of everything below; never held while somebody is looked at */
    pthread_cond_t news;
    size_t threads, turn;
    pid_t *except;
    size_t except_count;
    pid_t *list, *before; /* this listing, and the one before */
    size_t count, before_count, listings;
    size_t next; /* index into `list` */
    struct pieces *pieces;
    size_t pieces_count, pieces_capacity;
    size_t jobs;    /* under way, the listing too */
    size_t waiting; /* threads */
    uint64_t taken;
    bool stopped, ended, whole;
    struct under_way at[]; /* by thread */
};

struct gms_handout *gms_handout_make(size_t threads, size_t turn, const pid_t *except, size_t except_count)
{
    struct gms_handout *handout = calloc(1, sizeof *handout + threads * sizeof handout->at[0]);
    pid_t *copy = calloc(except_count + 1, sizeof *copy);
    if (handout == NULL || copy == NULL) {
        free(handout);
        free(copy);
        return NULL;
    }
    if (except_count > 0)
        memcpy(copy, except, except_count * sizeof *copy);
    pthread_mutex_init(&handout->lock, NULL);
    pthread_cond_init(&handout->news, NULL);
    handout->threads = threads;
    handout->turn = turn;
    handout->except = copy;
    handout->except_count = except_count;
    return handout;
}

void gms_handout_free(struct gms_handout *handout)
{
    if (handout == NULL)
        return;
    pthread_cond_destroy(&handout->news);
    pthread_mutex_destroy(&handout->lock);
    free(handout->except);
    free(handout->list);
    free(handout->before);
    free(handout->pieces);
    free(handout);
}

/* The next look, if there is one to be taken. */
static bool next_look(struct gms_handout *handout, struct gms_job *ret_job)
{
    if (handout->pieces_count > 0) {
        struct pieces *pieces = &handout->pieces[handout->pieces_count - 1];
        *ret_job = (struct gms_job){GMS_JOB_LOOK, pieces->pid, pieces->piece};
        handout->pieces_count -= --pieces->left == 0;
        return true;
    }
    if (handout->next == handout->count)
        return false;
    *ret_job = (struct gms_job){.kind = GMS_JOB_LOOK,
                                .pid = handout->list[(handout->turn + handout->next++) % handout->count]};
    return true;
}

struct gms_job gms_handout_take(struct gms_handout *handout, size_t thread)
{
    struct gms_job job = {.kind = GMS_JOB_END};
    pthread_mutex_lock(&handout->lock);
    struct under_way *own = &handout->at[thread];
    if (own->since > 0) {
        handout->jobs--;
        *own = (struct under_way){0};
    }
    while (!handout->stopped && !handout->ended) {
        if (next_look(handout, &job))
            break;
        if (handout->jobs == 0) {
            job.kind = GMS_JOB_LIST;
            break;
        }
        handout->waiting++;
        pthread_cond_wait(&handout->news, &handout->lock);
        handout->waiting--;
    }
    if (job.kind != GMS_JOB_END) {
        *own = (struct under_way){job.pid, ++handout->taken};
        handout->jobs++;
    } else {
        pthread_cond_broadcast(&handout->news);
    }
    pthread_mutex_unlock(&handout->lock);
    return job;
}

bool gms_handout_add(struct gms_handout *handout, pid_t pid, void *piece, size_t count)
{
    bool added = true;
    pthread_mutex_lock(&handout->lock);
    if (handout->pieces_count == handout->pieces_capacity) {
        size_t capacity = handout->pieces_capacity > 0 ? 2 * handout->pieces_capacity : 16;
        struct pieces *pieces = realloc(handout->pieces, capacity * sizeof *pieces);
        if (pieces != NULL) {
            handout->pieces = pieces;
            handout->pieces_capacity = capacity;
        } else {
            added = false;
        }
    }
    if (added && count > 0) {
        handout->pieces[handout->pieces_count++] = (struct pieces){pid, piece, count};
        pthread_cond_broadcast(&handout->news);
    }
    pthread_mutex_unlock(&handout->lock);
    return added;
}

size_t gms_handout_wanted(struct gms_handout *handout)
{
    pthread_mutex_lock(&handout->lock);
    size_t wanted = handout->pieces_count == 0 && handout->next == handout->count ? handout->waiting : 0;
    pthread_mutex_unlock(&handout->lock);
    return wanted;
}

void gms_handout_listed(struct gms_handout *handout, pid_t *list, size_t count)
{
    size_t fresh = 0;
    pthread_mutex_lock(&handout->lock);
    handout->listings++;
    pid_t *looks = list != NULL && handout->listings < LISTINGS ? malloc((count + 1) * sizeof *looks) : NULL;
    for (size_t i = 0; looks != NULL && i < count; i++)
        if (!gms_pid_is_in(handout->except, handout->except_count, list[i]) &&
            !gms_pid_is_in(handout->before, handout->before_count, list[i]))
            looks[fresh++] = list[i];
    handout->ended = fresh == 0;
    handout->whole = fresh == 0 && looks != NULL;
    free(handout->list);
    free(handout->before);
    handout->list = looks;
    handout->count = fresh;
    handout->next = 0;
    handout->before = list;
    handout->before_count = list != NULL ? count : 0;
    pthread_cond_broadcast(&handout->news);
    pthread_mutex_unlock(&handout->lock);
}

void gms_handout_gone(struct gms_handout *handout, pid_t pid)
{
    pthread_mutex_lock(&handout->lock);
    for (size_t i = 0; i < handout->before_count; i++)
        if (handout->before[i] == pid)
            handout->before[i] = i > 0 ? handout->before[i - 1] : 0; /* ascending still */
    pthread_mutex_unlock(&handout->lock);
}

void gms_handout_stop(struct gms_handout *handout)
{
    pthread_mutex_lock(&handout->lock);
    handout->stopped = true;
    pthread_cond_broadcast(&handout->news);
    pthread_mutex_unlock(&handout->lock);
}

pid_t gms_handout_at(struct gms_handout *handout)
{
    struct under_way oldest = {0};
    pthread_mutex_lock(&handout->lock);
    for (size_t i = 0; i < handout->threads; i++)
        if (handout->at[i].pid > 0 && (oldest.pid == 0 || handout->at[i].since < oldest.since))
            oldest = handout->at[i];
    pthread_mutex_unlock(&handout->lock);
    return oldest.pid;
}

bool gms_handout_is_whole(struct gms_handout *handout)
{
    pthread_mutex_lock(&handout->lock);
    bool whole = handout->whole;
    pthread_mutex_unlock(&handout->lock);
    return whole;
}
