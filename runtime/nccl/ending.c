/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl/ending.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"

struct gms_ending {
    const struct gms_nccl_api *api;
    gms_nccl_handle handle;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
    bool left; /* whoever began it has let go: the thread frees it */
};

static void release(struct gms_ending *ending)
{
    pthread_cond_destroy(&ending->ended);
    pthread_mutex_destroy(&ending->lock);
    free(ending);
}

static void *run(void *context)
{
    struct gms_ending *ending = context;
    (void)ending->api->abort(ending->handle); /* whatever it answers, the handle is gone */
    pthread_mutex_lock(&ending->lock);
    ending->done = true;
    const bool left = ending->left;
    pthread_cond_signal(&ending->ended);
    pthread_mutex_unlock(&ending->lock);
    if (left)
        release(ending);
    return NULL;
}

static bool start(struct gms_ending *ending)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the engine's */
    const bool started = pthread_create(&thread, &attributes, run, ending) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}

struct gms_ending *gms_ending_begin(const struct gms_nccl_api *api, gms_nccl_handle handle)
{
    pthread_condattr_t monotonic;
    struct gms_ending *ending = calloc(1, sizeof *ending);
    if (ending == NULL) {
        (void)api->abort(handle);
        return NULL;
    }
    ending->api = api;
    ending->handle = handle;
    pthread_mutex_init(&ending->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ending->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (start(ending))
        return ending;
    (void)api->abort(handle);
    release(ending);
    return NULL;
}

bool gms_ending_finish(struct gms_ending *ending, uint64_t deadline_ns)
{
    if (ending == NULL)
        return true;
    const struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / GMS_NS_PER_S),
                                      .tv_nsec = (long)(deadline_ns % GMS_NS_PER_S)};
    pthread_mutex_lock(&ending->lock);
    while (!ending->done && pthread_cond_timedwait(&ending->ended, &ending->lock, &deadline) != ETIMEDOUT)
        ;
    const bool done = ending->done;
    ending->left = true;
    pthread_mutex_unlock(&ending->lock);
    if (done)
        release(ending);
    return done;
}
