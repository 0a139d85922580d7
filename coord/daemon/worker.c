/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/thread.h"

struct list {
    struct gms_job *first, **last;
};

struct gms_worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wanted;
    struct list waiting, over; /* under the lock, like the rest */
    struct gms_job *running;
    bool stop, started;
    int news_fd; /* an eventfd: something is over */
    struct event *news;
};

static void append(struct list *list, struct gms_job *job)
{
    job->next = NULL;
    *list->last = job;
    list->last = &job->next;
}

static struct gms_job *take(struct list *list)
{
    struct gms_job *job = list->first;
    if (job == NULL)
        return NULL;
    list->first = job->next;
    if (list->first == NULL)
        list->last = &list->first;
    return job;
}

static void tell(const struct gms_worker *worker)
{
    uint64_t one = 1;
    while (write(worker->news_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

static void *work(void *context)
{
    struct gms_worker *worker = context;
    pthread_mutex_lock(&worker->lock);
    while (!worker->stop) {
        struct gms_job *job = take(&worker->waiting);
        if (job == NULL) {
            pthread_cond_wait(&worker->wanted, &worker->lock);
            continue;
        }
        worker->running = job;
        pthread_mutex_unlock(&worker->lock);
        if (!atomic_load(&job->cancelled))
            job->run(job);
        pthread_mutex_lock(&worker->lock);
        worker->running = NULL;
        append(&worker->over, job);
        tell(worker);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

static void finish(struct gms_worker *worker)
{
    for (;;) {
        pthread_mutex_lock(&worker->lock);
        struct gms_job *job = take(&worker->over);
        pthread_mutex_unlock(&worker->lock);
        if (job == NULL)
            return;
        job->done(job);
    }
}

static void on_news(evutil_socket_t fd, short what, void *context)
{
    uint64_t count;
    (void)what;
    (void)!read((int)fd, &count, sizeof count);
    finish(context);
}

gms_status gms_worker_open(struct event_base *base, struct gms_worker **ret_worker, struct gms_error *ret_error)
{
    struct gms_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the worker");
    worker->waiting.last = &worker->waiting.first;
    worker->over.last = &worker->over.first;
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->wanted, NULL);
    worker->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gms_status status = worker->news_fd < 0 ? gms_fd_fail("the worker's eventfd", ret_error) : GMS_OK;
    if (status == GMS_OK) {
        worker->news = event_new(base, worker->news_fd, EV_READ | EV_PERSIST, on_news, worker);
        if (worker->news == NULL || event_add(worker->news, NULL) != 0)
            status = gms_fail(ret_error, GMS_E_SYSTEM, "the event loop refused the worker's eventfd");
    }
    if (status == GMS_OK) {
        const int error = gms_thread_start(work, worker, &worker->thread);
        if (error != 0)
            status = gms_fail(ret_error, GMS_E_SYSTEM, "no thread for the worker: %s", strerror(error));
        worker->started = error == 0;
    }
    if (status != GMS_OK) {
        gms_worker_close(worker);
        return status;
    }
    *ret_worker = worker;
    return GMS_OK;
}

void gms_worker_submit(struct gms_worker *worker, struct gms_job *job)
{
    pthread_mutex_lock(&worker->lock);
    append(&worker->waiting, job);
    pthread_cond_signal(&worker->wanted);
    pthread_mutex_unlock(&worker->lock);
}

void gms_worker_cancel_all(struct gms_worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    for (struct gms_job *job = worker->waiting.first; job != NULL; job = job->next)
        if (!job->always)
            atomic_store(&job->cancelled, true);
    if (worker->running != NULL && !worker->running->always)
        atomic_store(&worker->running->cancelled, true);
    pthread_mutex_unlock(&worker->lock);
}

void gms_worker_close(struct gms_worker *worker)
{
    if (worker == NULL)
        return;
    gms_worker_cancel_all(worker);
    if (worker->started) {
        pthread_mutex_lock(&worker->lock);
        worker->stop = true;
        pthread_cond_signal(&worker->wanted);
        pthread_mutex_unlock(&worker->lock);
        pthread_join(worker->thread, NULL);
    }
    for (struct gms_job *job; (job = take(&worker->waiting)) != NULL; append(&worker->over, job))
        if (job->always)
            job->run(job);
    finish(worker);
    if (worker->news != NULL)
        event_free(worker->news);
    gms_fd_close(&worker->news_fd);
    pthread_cond_destroy(&worker->wanted);
    pthread_mutex_destroy(&worker->lock);
    free(worker);
}
