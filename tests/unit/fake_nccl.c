/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_nccl.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_cuda.h"
#include "gms/nccl.h"
#include "nccl/nccl_api.h"

#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 22803
#endif

#define EXPORT __attribute__((visibility("default")))

enum { RANKS = 8, BYTES = 16384 };

/* What the ranks of one id share. Two places for data, by turns: a rank that is ahead waits before it writes over what
 * another has not taken yet. */
struct meeting {
    _Atomic uint32_t arrived;
    _Atomic uint64_t given[RANKS], taken[RANKS]; /* collectives */
    unsigned char data[2][RANKS][BYTES];
};

struct ncclComm {
    struct ncclComm *before; /* the one that was made before: a handle outlives its abort, so that its use is noticed */
    int ranks, rank;
    struct meeting *meeting;
    bool counted; /* among those that have arrived */
    bool suspended;
    _Atomic bool dead;
    _Atomic int result; /* async error */
    _Atomic uint32_t threads;
    uint64_t collectives;  /* submitted */
    _Atomic uint64_t done; /* the last */
};

struct work {
    gms_nccl_handle comm;
    enum fake_nccl_behaviour behaviour;
    uint64_t number;
    const void *send;
    void *receive, *stream;
    size_t count, element;
    int type, reduction, root, kind; /* kind: 0 all-reduce, 1 all-gather, 2 broadcast */
};

static struct fake_nccl fake;
static char last_error[128];

EXPORT struct fake_nccl *fake_nccl_table(void);
struct fake_nccl *fake_nccl_table(void)
{
    return &fake;
}

#define DECLARE(member, symbol, parameters) EXPORT gms_nccl_result symbol parameters;
GMS_NCCL_LIST(DECLARE)
GMS_NCCL_OPTIONAL_LIST(DECLARE)
EXPORT const char *ncclGetErrorString(gms_nccl_result result);
EXPORT const char *ncclGetLastError(gms_nccl_handle handle);

static gms_nccl_result fails(gms_nccl_result result, const char *why)
{
    snprintf(last_error, sizeof last_error, "%s\nsecond line", why);
    return result;
}

/* No test may go on from here: the real one would use memory that is gone. */
static void must_live(gms_nccl_handle comm)
{
    if (comm == NULL || atomic_load(&comm->dead)) {
        fprintf(stderr, "fake_nccl: a handle is used that was aborted\n");
        abort();
    }
}

const char *ncclGetErrorString(gms_nccl_result result)
{
    static const char *const words[] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process exited",  "NCCL operation in progress"};
    return result >= 0 && result < (int)(sizeof words / sizeof words[0]) ? words[result] : "unknown";
}

const char *ncclGetLastError(gms_nccl_handle handle)
{
    (void)handle;
    return last_error;
}

gms_nccl_result ncclGetVersion(int *ret_version)
{
    *ret_version = FAKE_NCCL_VERSION;
    return GMS_NCCL_SUCCESS;
}

gms_nccl_result ncclGetUniqueId(struct gms_nccl_id *ret_id)
{
    const char *directory = getenv("TMPDIR");
    memset(ret_id, 0, sizeof *ret_id);
    snprintf(ret_id->bytes, sizeof ret_id->bytes, "%s/fake-nccl.XXXXXX", directory != NULL ? directory : "/tmp");
    int fd = mkostemp(ret_id->bytes, O_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(struct meeting)) != 0)
        return fails(GMS_NCCL_SYSTEM_ERROR, "no file to meet in");
    close(fd);
    return GMS_NCCL_SUCCESS;
}

/* A moment in which others may come; false: this communicator is dead. */
static bool moment(gms_nccl_handle comm)
{
    sched_yield();
    return !atomic_load(&comm->dead);
}

static void start(void *(*body)(void *), void *context, gms_nccl_handle comm)
{
    pthread_t thread;
    atomic_fetch_add(&comm->threads, 1);
    if (pthread_create(&thread, NULL, body, context) != 0)
        abort();
    pthread_detach(thread);
}

/* ---------------------------------------------------------------------------------------------------- making -- */

#if FAKE_NCCL_VERSION >= 21400
static gms_nccl_handle made_last;

static void *make(void *context)
{
    gms_nccl_handle comm = context;
    if (fake.init == FAKE_NCCL_FAILS) {
        atomic_store(&comm->result, fails(GMS_NCCL_REMOTE_ERROR, "a peer went away"));
    } else {
        if (fake.init != FAKE_NCCL_HANGS)
            atomic_fetch_add(&comm->meeting->arrived, 1);
        while (moment(comm) &&
               (fake.init == FAKE_NCCL_HANGS || atomic_load(&comm->meeting->arrived) < (uint32_t)comm->ranks))
            ;
        atomic_store(&comm->result, GMS_NCCL_SUCCESS);
    }
    atomic_fetch_sub(&comm->threads, 1);
    return NULL;
}

gms_nccl_result ncclCommInitRankConfig(gms_nccl_handle *ret_handle, int ranks, struct gms_nccl_id id, int rank,
                                       struct gms_nccl_config *config)
{
    fake.inits++;
    if (config->magic != 0xcafebeef || config->size < sizeof *config || config->version < 21400 ||
        config->blocking != 0)
        return fails(GMS_NCCL_INVALID_ARGUMENT, "a config that was not initialised");
    if (fake.init == FAKE_NCCL_REFUSES)
        return fails(GMS_NCCL_INVALID_USAGE, "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000");
    int fd = open(id.bytes, O_RDWR | O_CLOEXEC);
    if (fd < 0 || ranks > RANKS)
        return fails(GMS_NCCL_SYSTEM_ERROR, "nobody listens at this id");
    gms_nccl_handle comm = calloc(1, sizeof *comm);
    comm->meeting = mmap(NULL, sizeof *comm->meeting, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (comm->meeting == MAP_FAILED)
        abort();
    comm->ranks = ranks;
    comm->rank = rank;
    atomic_store(&comm->result, GMS_NCCL_IN_PROGRESS);
    comm->before = made_last;
    made_last = comm;
    __atomic_add_fetch(&fake.handles, 1, __ATOMIC_SEQ_CST);
    start(make, comm, comm);
    *ret_handle = comm;
    return GMS_NCCL_IN_PROGRESS;
}
#endif

gms_nccl_result ncclCommAbort(gms_nccl_handle comm)
{
    must_live(comm);
    __atomic_sub_fetch(&fake.handles, 1, __ATOMIC_SEQ_CST);
    atomic_store(&comm->dead, true);
    __atomic_add_fetch(&fake.aborts, 1, __ATOMIC_SEQ_CST);
    while (atomic_load(&comm->threads) > 0 || __atomic_load_n(&fake.abort, __ATOMIC_SEQ_CST) == FAKE_NCCL_HANGS)
        sched_yield();
    munmap(comm->meeting, sizeof *comm->meeting);
    __atomic_add_fetch(&fake.freed, 1, __ATOMIC_SEQ_CST);
    return GMS_NCCL_SUCCESS;
}

gms_nccl_result ncclCommGetAsyncError(gms_nccl_handle comm, gms_nccl_result *ret_result)
{
    must_live(comm);
    *ret_result = atomic_load(&comm->result);
    return GMS_NCCL_SUCCESS;
}

/* ----------------------------------------------------------------------------------------------- collectives -- */

static size_t element_bytes(int type)
{
    static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < (int)sizeof bytes ? bytes[type] : 0;
}

static uint64_t sum_of(const struct work *work, size_t index)
{
    const struct meeting *meeting = work->comm->meeting;
    uint64_t sum = 0;
    double real = 0;
    for (int rank = 0; rank < work->comm->ranks; rank++) {
        const unsigned char *at = meeting->data[work->number % 2][rank] + index * work->element;
        uint64_t value = 0;
        double number = 0;
        memcpy(&value, at, work->element < sizeof value ? work->element : sizeof value);
        if (work->type == GMS_NCCL_FLOAT32) {
            float single = 0;
            memcpy(&single, at, sizeof single);
            number = (double)single;
        }
        sum += value;
        real += number;
    }
    if (work->type == GMS_NCCL_FLOAT32) {
        float single = (float)real;
        sum = 0;
        memcpy(&sum, &single, sizeof single);
    }
    return sum;
}

static void deliver(const struct work *work)
{
    const struct meeting *meeting = work->comm->meeting;
    unsigned char *to = work->receive;
    for (int rank = 0; rank < work->comm->ranks && work->kind == 1; rank++)
        memcpy(to + (size_t)rank * work->count * work->element, meeting->data[work->number % 2][rank],
               work->count * work->element);
    for (size_t i = 0; i < work->count && work->kind == 0; i++) {
        uint64_t sum = sum_of(work, i);
        if (work->behaviour == FAKE_NCCL_LIES && i == work->count / 2)
            sum++;
        memcpy(to + i * work->element, &sum, work->element);
    }
    if (work->kind == 2)
        memcpy(to, meeting->data[work->number % 2][work->root], work->count * work->element);
}

static bool all_have(const gms_nccl_handle comm, _Atomic uint64_t counts[RANKS], uint64_t number)
{
    for (int rank = 0; rank < comm->ranks; rank++)
        if (atomic_load(&counts[rank]) < number)
            return false;
    return true;
}

static void *run(void *context)
{
    struct work *work = context;
    gms_nccl_handle comm = work->comm;
    struct meeting *meeting = comm->meeting;
    if (work->behaviour == FAKE_NCCL_FAILS)
        atomic_store(&comm->result, fails(GMS_NCCL_REMOTE_ERROR, "a peer went away"));
    else
        atomic_store(&comm->result, GMS_NCCL_SUCCESS); /* submitted */
    bool hangs = work->behaviour == FAKE_NCCL_HANGS || work->behaviour == FAKE_NCCL_FAILS;
    while (moment(comm) && (atomic_load(&comm->done) < work->number - 1 ||
                            (work->number > 2 && !all_have(comm, meeting->taken, work->number - 2))))
        ; /* one after another; and somebody may still be reading the place */
    if (!hangs && !atomic_load(&comm->dead)) {
        memcpy(meeting->data[work->number % 2][comm->rank], work->send, work->count * work->element);
        atomic_store(&meeting->given[comm->rank], work->number);
    }
    while (moment(comm) && (hangs || !all_have(comm, meeting->given, work->number)))
        ;
    if (!atomic_load(&comm->dead)) {
        deliver(work);
        atomic_store(&meeting->taken[comm->rank], work->number);
        atomic_store(&comm->done, work->number);
    }
    if (work->stream != NULL)
        fake_cuda_get()->hold(work->stream, false);
    atomic_fetch_sub(&comm->threads, 1);
    free(work);
    return NULL;
}

static gms_nccl_result submit(struct work like, const void *send)
{
    gms_nccl_handle comm = like.comm;
    must_live(comm);
    like.element = element_bytes(like.type);
    if (like.element == 0 || like.count * like.element > BYTES || comm->suspended)
        return fails(GMS_NCCL_INVALID_ARGUMENT, "too much, or suspended");
    if (fake.collective == FAKE_NCCL_REFUSES)
        return fails(GMS_NCCL_INTERNAL_ERROR, "no proxy");
    __atomic_add_fetch(&fake.collectives, 1, __ATOMIC_SEQ_CST);
    struct work *work = malloc(sizeof *work);
    *work = like;
    work->behaviour = fake.collective;
    work->number = ++comm->collectives;
    work->send = send;
    atomic_store(&comm->result, GMS_NCCL_IN_PROGRESS);
    if (work->stream != NULL)
        fake_cuda_get()->hold(work->stream, true);
    start(run, work, comm);
    return GMS_NCCL_IN_PROGRESS;
}

gms_nccl_result ncclAllReduce(const void *send, void *receive, size_t count, int type, int reduction,
                              gms_nccl_handle handle, void *stream)
{
    return submit(
        (struct work){
            .comm = handle, .receive = receive, .stream = stream, .count = count, .type = type, .reduction = reduction},
        send);
}

gms_nccl_result ncclAllGather(const void *send, void *receive, size_t count, int type, gms_nccl_handle handle,
                              void *stream)
{
    return submit(
        (struct work){.comm = handle, .receive = receive, .stream = stream, .count = count, .type = type, .kind = 1},
        send);
}

gms_nccl_result ncclBroadcast(const void *send, void *receive, size_t count, int type, int root, gms_nccl_handle handle,
                              void *stream)
{
    return submit((struct work){.comm = handle,
                                .receive = receive,
                                .stream = stream,
                                .count = count,
                                .type = type,
                                .root = root,
                                .kind = 2},
                  send);
}

#if FAKE_NCCL_VERSION >= 22907
gms_nccl_result ncclCommSuspend(gms_nccl_handle comm, int flags)
{
    must_live(comm);
    if (flags != GMS_NCCL_SUSPEND_MEMORY || comm->suspended)
        return fails(GMS_NCCL_INVALID_USAGE, "suspended already");
    fake.suspends++;
    comm->suspended = true;
    return GMS_NCCL_SUCCESS;
}

gms_nccl_result ncclCommResume(gms_nccl_handle comm)
{
    must_live(comm);
    if (!comm->suspended || fake.resume == FAKE_NCCL_REFUSES)
        return fails(GMS_NCCL_CUDA_ERROR, "out of memory");
    comm->suspended = false;
    if (fake.resume == FAKE_NCCL_HANGS)
        atomic_store(&comm->result, GMS_NCCL_IN_PROGRESS);
    return GMS_NCCL_SUCCESS;
}
#endif
