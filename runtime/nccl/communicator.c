/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl/communicator.h"

#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "gms/nccl.h"
#include "vmm/cuda.h"
#include "vmm/cuda_stream.h"

enum { NUMBERS = 64 };

static const uint64_t spin_ns = GMS_NS_PER_MS;       /* without a system call */
static const uint64_t yield_ns = 50 * GMS_NS_PER_MS; /* then giving the processor away, then asleep in between */
static const uint64_t ask_ns = GMS_NS_PER_MS;
static const long sleep_ns = 100 * 1000;
static const uint64_t close_ns = GMS_NS_PER_S; /* for NCCL to free everything */

static const char *const collective_names[] = {
    [GMS_COLLECTIVE_ALL_REDUCE] = "all-reduce",
    [GMS_COLLECTIVE_ALL_GATHER] = "all-gather",
    [GMS_COLLECTIVE_BROADCAST] = "broadcast",
};

/* --------------------------------------------------------------------------------------------------- state ---- */

/* Under the lock. */
static gms_status fail_aborted(const struct gms_communicator *c, struct gms_error *ret_error)
{
    return gms_fail(ret_error, GMS_E_REFUSED, "the communicator is not usable: %s",
                    c->state == GMS_COMMUNICATOR_SUSPENDED ? "it is suspended; resume it first"
                    : c->state == GMS_COMMUNICATOR_ABORTED ? c->why
                                                           : "it was never made");
}

/* OK, or REFUSED with why not. */
static gms_status usable(struct gms_communicator *c, struct gms_error *ret_error)
{
    pthread_mutex_lock(&c->lock);
    gms_status status = c->state == GMS_COMMUNICATOR_USABLE ? GMS_OK : fail_aborted(c, ret_error);
    pthread_mutex_unlock(&c->lock);
    return status;
}

void gms_communicator_abort(struct gms_communicator *c, const char *why)
{
    pthread_mutex_lock(&c->lock);
    if (c->state != GMS_COMMUNICATOR_ABORTED && c->state != GMS_COMMUNICATOR_EMPTY) {
        c->state = GMS_COMMUNICATOR_ABORTED;
        snprintf(c->why, sizeof c->why, "aborted: %s", why);
        /* Whoever calls NCCL does so under the lock, so nobody is in a call on this handle, and nobody finds it any
         * more. */
        if (c->handle != NULL)
            gms_ending_begin(c->ending, c->handle);
        c->handle = NULL;
    }
    pthread_mutex_unlock(&c->lock);
}

/* Aborts because of `status` and returns it. */
static gms_status give_up(struct gms_communicator *c, gms_status status, const struct gms_error *error,
                          struct gms_error *ret_error)
{
    gms_communicator_abort(c, error->text);
    if (ret_error != NULL)
        *ret_error = *error;
    return status;
}

/* What NCCL is doing by itself: OK (nothing), NOT_DONE, or its error. */
static gms_status ask(struct gms_communicator *c, const char *what, struct gms_error *error)
{
    gms_nccl_result result = GMS_NCCL_SUCCESS;
    gms_status status = GMS_OK;
    pthread_mutex_lock(&c->lock);
    if (c->handle == NULL) {
        status = fail_aborted(c, error);
    } else {
        gms_nccl_result asked = c->options.api->async_error(c->handle, &result);
        if (asked != GMS_NCCL_SUCCESS && asked != GMS_NCCL_IN_PROGRESS)
            result = asked;
        if (result == GMS_NCCL_IN_PROGRESS)
            status = GMS_E_NOT_DONE;
        else if (result != GMS_NCCL_SUCCESS)
            status = gms_nccl_fail(c->options.api, c->handle, result, error, "rank %" PRIu32 " of %" PRIu32 ", %s",
                                   c->options.rank, c->options.ranks, what);
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* --------------------------------------------------------------------------------------------------- waits ---- */

/* Between two looks. Returns the time. */
static uint64_t pause_since(uint64_t begun_ns)
{
    const uint64_t now_ns = gms_clock_ns();
    if (now_ns - begun_ns >= yield_ns)
        nanosleep(&(struct timespec){.tv_nsec = sleep_ns}, NULL);
    else if (now_ns - begun_ns >= spin_ns)
        sched_yield();
    return now_ns;
}

/*
 * Until neither NCCL nor, where there is a mark, the device has anything left to do. TIMEOUT aborts nothing; any other
 * failure has aborted.
 */
static gms_status wait_for(struct gms_communicator *c, const char *what, void *mark, uint64_t deadline_ns,
                           struct gms_error *ret_error)
{
    const uint64_t begun_ns = gms_clock_ns();
    uint64_t asked_ns = begun_ns;
    struct gms_error error = {.rank = -1};
    for (;;) {
        gms_status status = ask(c, what, &error);
        if (status == GMS_OK && mark != NULL)
            status = gms_vmm_cuda_mark_passed(mark, &error);
        if (status == GMS_OK)
            return GMS_OK;
        const uint64_t now_ns = pause_since(begun_ns);
        if (status == GMS_E_NOT_DONE && now_ns >= deadline_ns)
            return gms_fail(ret_error, GMS_E_TIMEOUT,
                            "rank %" PRIu32 " of %" PRIu32 ", %s: not done after %" PRIu64 " ms; a rank that did not "
                            "come, or hangs, looks like this",
                            c->options.rank, c->options.ranks, what, (now_ns - begun_ns) / GMS_NS_PER_MS);
        if (status == GMS_E_NOT_DONE && c->options.interrupted != NULL && now_ns - asked_ns >= ask_ns) {
            status = c->options.interrupted(c->options.context, &error);
            asked_ns = now_ns;
            if (status == GMS_OK)
                continue;
        }
        if (status != GMS_E_NOT_DONE)
            return give_up(c, status, &error, ret_error);
    }
}

/* The same, and TIMEOUT aborts as well. */
static gms_status settle(struct gms_communicator *c, const char *what, void *mark, uint64_t deadline_ns,
                         struct gms_error *ret_error)
{
    struct gms_error error = {.rank = -1};
    gms_status status = wait_for(c, what, mark, deadline_ns, &error);
    return status == GMS_OK ? GMS_OK : give_up(c, status, &error, ret_error); /* twice is once */
}

/* ----------------------------------------------------------------------------------------------- beginning ---- */

static gms_status make_own(struct gms_communicator *c, struct gms_error *ret_error)
{
    void *numbers = NULL;
    gms_status status = gms_vmm_cuda_stream_create(&c->stream, ret_error);
    if (status == GMS_OK)
        status = gms_vmm_cuda_mark_create(&c->mark, ret_error);
    if (status == GMS_OK)
        status = gms_vmm_cuda_mark_create(&c->stream_mark, ret_error);
    if (status == GMS_OK)
        status = gms_vmm_cuda_host_alloc(2 * NUMBERS * sizeof *c->numbers, &numbers, ret_error);
    c->numbers = numbers;
    return status;
}

static gms_status begin_making(struct gms_communicator *c, const struct gms_nccl_id *id, struct gms_error *ret_error)
{
    struct gms_nccl_config config = {.size = sizeof config,
                                     .magic = (unsigned)GMS_NCCL_CONFIG_MAGIC,
                                     .version = GMS_NCCL_CONFIG_VERSION,
                                     .blocking = 0};
    gms_status status = gms_vmm_cuda_enter(ret_error);
    if (status != GMS_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    c->state = GMS_COMMUNICATOR_MAKING;
    gms_nccl_result result =
        c->options.api->init(&c->handle, (int)c->options.ranks, *id, (int)c->options.rank, &config);
    if (result != GMS_NCCL_SUCCESS && result != GMS_NCCL_IN_PROGRESS)
        status = gms_nccl_fail(c->options.api, c->handle, result, ret_error,
                               "rank %" PRIu32 " of %" PRIu32 " cannot begin", c->options.rank, c->options.ranks);
    pthread_mutex_unlock(&c->lock);
    gms_vmm_cuda_leave();
    return status;
}

gms_status gms_communicator_init(struct gms_communicator *c, const struct gms_communicator_options *options,
                                 const struct gms_nccl_id *id, uint64_t deadline_ns, struct gms_error *ret_error)
{
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    c->options = *options;
    gms_status status = gms_ending_make(options->api, &c->ending, ret_error);
    if (status == GMS_OK)
        status = make_own(c, ret_error);
    if (status == GMS_OK)
        status = begin_making(c, id, ret_error);
    if (status == GMS_OK)
        status = settle(c, "making the communicator", NULL, deadline_ns, ret_error);
    if (status != GMS_OK) {
        gms_communicator_abort(c, "it could not be made");
        return status;
    }
    pthread_mutex_lock(&c->lock);
    if (c->state == GMS_COMMUNICATOR_MAKING)
        c->state = GMS_COMMUNICATOR_USABLE;
    pthread_mutex_unlock(&c->lock);
    return GMS_OK;
}

static void free_own(struct gms_communicator *c)
{
    gms_vmm_cuda_stream_destroy(c->stream);
    if (c->mark != NULL)
        gms_vmm_cuda_mark_destroy(c->mark);
    if (c->stream_mark != NULL)
        gms_vmm_cuda_mark_destroy(c->stream_mark);
    gms_vmm_cuda_host_free(c->numbers);
}

/* The end of the process frees it. NULL allowed. In a list, linked through what is sent, which the device only reads.
 */
static void leave_behind(uint64_t *numbers)
{
    static _Atomic uintptr_t list;
    uintptr_t next = atomic_load(&list);
    if (numbers == NULL)
        return;
    do
        numbers[0] = next;
    while (!atomic_compare_exchange_weak(&list, &next, (uintptr_t)numbers));
}

void gms_communicator_close(struct gms_communicator *c)
{
    if (c->options.api == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    const bool healthy = c->state == GMS_COMMUNICATOR_USABLE || c->state == GMS_COMMUNICATOR_SUSPENDED;
    pthread_mutex_unlock(&c->lock);
    gms_communicator_abort(c, "closed");
    const bool ended = gms_ending_finish(c->ending, gms_clock_ns() + close_ns);
    /* Something may hang on the device for good, and freeing would wait for it. */
    if (ended && (healthy || c->verifications == 0))
        free_own(c);
    else
        leave_behind(c->numbers);
    pthread_mutex_destroy(&c->lock);
    memset(c, 0, sizeof *c);
}

gms_status gms_communicator_check(struct gms_communicator *c, struct gms_error *ret_error)
{
    struct gms_error error = {.rank = -1};
    gms_status status = ask(c, "looking", &error);
    if (status == GMS_OK || status == GMS_E_NOT_DONE)
        return GMS_OK;
    return give_up(c, status, &error, ret_error);
}

/* ---------------------------------------------------------------------------------------------- collectives --- */

static gms_nccl_result call_nccl(const struct gms_communicator *c, const struct gms_collective_call *call)
{
    const struct gms_nccl_api *api = c->options.api;
    switch (call->kind) {
    case GMS_COLLECTIVE_ALL_REDUCE:
        return api->all_reduce(call->send, call->receive, call->count, call->type, call->argument, c->handle,
                               call->stream);
    case GMS_COLLECTIVE_ALL_GATHER:
        return api->all_gather(call->send, call->receive, call->count, call->type, c->handle, call->stream);
    case GMS_COLLECTIVE_BROADCAST:
        return api->broadcast(call->send, call->receive, call->count, call->type, call->argument, c->handle,
                              call->stream);
    }
    return GMS_NCCL_INVALID_ARGUMENT;
}

gms_status gms_communicator_submit(struct gms_communicator *c, const struct gms_collective_call *call,
                                   struct gms_error *ret_error)
{
    const char *what = collective_names[call->kind];
    gms_nccl_result result = GMS_NCCL_SUCCESS;
    struct gms_error error = {.rank = -1};
    gms_status status = gms_vmm_cuda_enter(ret_error);
    if (status != GMS_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    if (c->state != GMS_COMMUNICATOR_USABLE)
        status = fail_aborted(c, &error);
    else
        result = call_nccl(c, call);
    if (result != GMS_NCCL_SUCCESS && result != GMS_NCCL_IN_PROGRESS)
        status = gms_nccl_fail(c->options.api, c->handle, result, &error,
                               "rank %" PRIu32 " of %" PRIu32 ", %s of %" PRIu64 " elements", c->options.rank,
                               c->options.ranks, what, call->count);
    pthread_mutex_unlock(&c->lock);
    /* In a graph's capture, too, the launch is NCCL's own thread's; the stream may be used again when it is made. */
    if (status == GMS_OK && result == GMS_NCCL_IN_PROGRESS)
        status = settle(c, what, NULL, gms_clock_ns() + c->options.launch_ns, &error);
    gms_vmm_cuda_leave();
    if (status == GMS_E_SYSTEM)
        return give_up(c, status, &error, ret_error);
    if (status != GMS_OK && ret_error != NULL)
        *ret_error = error;
    return status;
}

gms_status gms_communicator_wait(struct gms_communicator *c, void *stream, uint64_t deadline_ns,
                                 struct gms_error *ret_error)
{
    gms_status status = usable(c, ret_error);
    if (status == GMS_OK)
        status = gms_vmm_cuda_mark_record(c->stream_mark, stream, ret_error);
    if (status == GMS_OK)
        status = wait_for(c, "waiting for a stream", c->stream_mark, deadline_ns, ret_error);
    return status;
}

/* --------------------------------------------------------------------------------------------- verification --- */

/* Element `index` of what `rank` sends in verification `number`: nobody else's, and never sent before. */
static uint64_t number_of(uint64_t number, uint32_t rank, uint32_t index)
{
    uint64_t mixed = number * UINT64_C(0x9e3779b97f4a7c15) + ((uint64_t)rank << 32 | index);
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

static gms_status check_sum(const struct gms_communicator *c, struct gms_error *ret_error)
{
    const volatile uint64_t *received = c->numbers + NUMBERS; /* the device wrote it */
    for (uint32_t i = 0; i < NUMBERS; i++) {
        uint64_t sum = 0;
        for (uint32_t rank = 0; rank < c->options.ranks; rank++)
            sum += number_of(c->verifications, rank, i);
        if (received[i] != sum)
            return gms_fail(ret_error, GMS_E_CORRUPT,
                            "rank %" PRIu32 " of %" PRIu32 ", verification %" PRIu64 ": element %" PRIu32 " is %" PRIu64
                            ", not %" PRIu64 ": ranks are not in step, or one is missing",
                            c->options.rank, c->options.ranks, c->verifications, i, received[i], sum);
    }
    return GMS_OK;
}

gms_status gms_communicator_verify(struct gms_communicator *c, uint64_t deadline_ns, struct gms_error *ret_error)
{
    struct gms_error error = {.rank = -1};
    gms_status status = usable(c, ret_error);
    if (status != GMS_OK)
        return status; /* a suspended one stays what it is, and its numbers in step with the others' */
    c->verifications++;
    for (uint32_t i = 0; i < NUMBERS; i++) {
        c->numbers[i] = number_of(c->verifications, c->options.rank, i);
        c->numbers[NUMBERS + i] = ~c->numbers[i];
    }
    const struct gms_collective_call call = {.kind = GMS_COLLECTIVE_ALL_REDUCE,
                                             .send = c->numbers,
                                             .receive = c->numbers + NUMBERS,
                                             .count = NUMBERS,
                                             .type = GMS_NCCL_UINT64,
                                             .argument = GMS_NCCL_SUM,
                                             .stream = c->stream};
    status = gms_communicator_submit(c, &call, &error);
    if (status == GMS_OK)
        status = gms_vmm_cuda_mark_record(c->mark, c->stream, &error);
    if (status == GMS_OK)
        status = settle(c, "verification", c->mark, deadline_ns, &error);
    if (status == GMS_OK)
        status = check_sum(c, &error);
    return status == GMS_OK ? GMS_OK : give_up(c, status, &error, ret_error);
}

/* -------------------------------------------------------------------------------------------------- suspend --- */

static gms_status change(struct gms_communicator *c, bool suspend, uint64_t deadline_ns, struct gms_error *ret_error)
{
    const struct gms_nccl_api *api = c->options.api;
    const char *what = suspend ? "suspending" : "resuming";
    const enum gms_communicator_state from = suspend ? GMS_COMMUNICATOR_USABLE : GMS_COMMUNICATOR_SUSPENDED;
    struct gms_error error = {.rank = -1};
    if (api->suspend == NULL || api->resume == NULL)
        return gms_fail(ret_error, GMS_E_UNSUPPORTED, "NCCL %d (%s) cannot suspend a communicator: 2.29.7 can",
                        api->number, api->file);
    gms_status status = gms_vmm_cuda_enter(ret_error);
    if (status != GMS_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    if (c->state != from) {
        status = c->state == GMS_COMMUNICATOR_USABLE
                     ? gms_fail(&error, GMS_E_REFUSED, "the communicator is not suspended")
                     : fail_aborted(c, &error);
        pthread_mutex_unlock(&c->lock);
        gms_vmm_cuda_leave();
        if (ret_error != NULL)
            *ret_error = error;
        return status;
    }
    gms_nccl_result result = suspend ? api->suspend(c->handle, GMS_NCCL_SUSPEND_MEMORY) : api->resume(c->handle);
    if (result != GMS_NCCL_SUCCESS && result != GMS_NCCL_IN_PROGRESS)
        status = gms_nccl_fail(api, c->handle, result, &error, "rank %" PRIu32 " of %" PRIu32 ", %s", c->options.rank,
                               c->options.ranks, what);
    pthread_mutex_unlock(&c->lock);
    gms_vmm_cuda_leave();
    if (status == GMS_OK)
        status = settle(c, what, NULL, deadline_ns, &error);
    if (status != GMS_OK)
        return give_up(c, status, &error, ret_error);
    pthread_mutex_lock(&c->lock);
    if (c->state == from)
        c->state = suspend ? GMS_COMMUNICATOR_SUSPENDED : GMS_COMMUNICATOR_USABLE;
    pthread_mutex_unlock(&c->lock);
    return GMS_OK;
}

gms_status gms_communicator_suspend(struct gms_communicator *c, struct gms_error *ret_error)
{
    return change(c, true, gms_clock_ns() + c->options.launch_ns, ret_error);
}

gms_status gms_communicator_resume(struct gms_communicator *c, uint64_t deadline_ns, struct gms_error *ret_error)
{
    gms_status status = change(c, false, deadline_ns, ret_error);
    return status == GMS_OK ? gms_communicator_verify(c, deadline_ns, ret_error) : status;
}
