/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl/ending.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"

struct gms_ending {
    const struct gms_nccl_api *api;
    pthread_mutex_t lock;
    pthread_cond_t news;
    gms_nccl_handle handle; /* to be aborted; NULL: nothing is, as yet */
    bool done;
    bool left; /* the owner has let go: the thread frees it */
};

static void release(struct gms_ending *ending)
{
    pthread_cond_destroy(&ending->news);
    pthread_mutex_destroy(&ending->lock);
    free(ending);
}

static void *run(void *context)
{
    struct gms_ending *ending = context;
    pthread_mutex_lock(&ending->lock);
    while (ending->handle == NULL && !ending->left)
        pthread_cond_wait(&ending->news, &ending->lock);
    const gms_nccl_handle handle = ending->handle;
    pthread_mutex_unlock(&ending->lock);
    if (handle != NULL)
        (void)ending->api->abort(handle); /* whatever it answers, the handle is gone */
    pthread_mutex_lock(&ending->lock);
    ending->done = true;
    const bool left = ending->left;
    pthread_cond_signal(&ending->news);
    pthread_mutex_unlock(&ending->lock);
    if (left)
        release(ending);
    return NULL;
}

gms_status gms_ending_make(const struct gms_nccl_api *api, struct gms_ending **ret_ending, struct gms_error *ret_error)
{
    pthread_condattr_t monotonic;
    struct gms_ending *ending = calloc(1, sizeof *ending);
    if (ending == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the end of a communicator (%zu bytes)",
                        sizeof *ending);
    ending->api = api;
    pthread_mutex_init(&ending->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ending->news, &monotonic);
    pthread_condattr_destroy(&monotonic);
    const int error = gms_thread_start(run, ending, NULL);
    if (error != 0) {
        release(ending);
        return gms_fail(ret_error, GMS_E_SYSTEM, "no thread that could end a communicator: %s", strerror(error));
    }
    *ret_ending = ending;
    return GMS_OK;
}

void gms_ending_begin(struct gms_ending *ending, gms_nccl_handle handle)
{
    pthread_mutex_lock(&ending->lock);
    ending->handle = handle;
    pthread_cond_signal(&ending->news);
    pthread_mutex_unlock(&ending->lock);
}

bool gms_ending_finish(struct gms_ending *ending, uint64_t deadline_ns)
{
    if (ending == NULL)
        return true;
    const struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / GMS_NS_PER_S),
                                      .tv_nsec = (long)(deadline_ns % GMS_NS_PER_S)};
    pthread_mutex_lock(&ending->lock);
    const bool begun = ending->handle != NULL;
    while (begun && !ending->done && pthread_cond_timedwait(&ending->news, &ending->lock, &deadline) != ETIMEDOUT)
        ;
    const bool done = ending->done;
    ending->left = true;
    pthread_cond_signal(&ending->news);
    pthread_mutex_unlock(&ending->lock);
    if (done)
        release(ending);
    return done || !begun;
}
