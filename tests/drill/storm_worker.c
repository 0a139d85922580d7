/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "gms/engine.h"
#include "storm.h"

/* minillm's own words for the engines; the third one says that it is the same, or the group would not take it. */
const char *const storm_engine_command[] = {"minillm", "--layers", "2",       "--width", "64",
                                            "--mlp",   "128",      "--slots", "512",     NULL};
#define ENGINE_MODEL        "minillm layers=2 width=64 heads=8/4 mlp=128 vocab=256 seed=1"
#define ENGINE_BLOCK_TOKENS 16

static void mix(struct worker *worker, uint64_t value)
{
    worker->digest = (worker->digest ^ value) * UINT64_C(0x100000001b3);
}

/* A call, repeated for as long as there is no coordinator; every rank makes the same calls in the same order. */
static gms_status attach(gms_session *session, uint64_t number, gms_pool **ret_pool, struct gms_error *error)
{
    struct gms_pool_description description = {.kind = GMS_POOL_KV, .slot_count = 8, .block_bytes = 4096};
    snprintf(description.name, sizeof description.name, "storm%llu", (unsigned long long)(number % 3));
    gms_status status = GMS_E_AGAIN;
    while (status == GMS_E_AGAIN || status == GMS_E_TIMEOUT)
        status = gms_pool_attach(session, &description, ret_pool, error);
    return status;
}

static gms_status release(gms_pool *pool, struct gms_error *error)
{
    gms_status status = GMS_E_AGAIN;
    while (status == GMS_E_AGAIN || status == GMS_E_TIMEOUT)
        status = gms_pool_release(pool, error);
    return status;
}

static gms_status work(struct worker *worker, const char *run_dir, uint32_t rank, uint32_t ranks,
                       struct gms_error *error)
{
    const struct gms_open_options options = {
        .run_dir = run_dir, .rank = (int32_t)rank, .engine_id = WORKER, .launch = "storm"};
    char layout[64];
    snprintf(layout, sizeof layout, "layer,k|v,token,head,dim tp=%u", ranks);
    const struct gms_identity identity = {.model = ENGINE_MODEL,
                                          .dtype = "f32",
                                          .layout = layout,
                                          .hash_algorithm = "xxh3-128-chain",
                                          .engine_name = "minillm",
                                          .engine_version = "1",
                                          .hash_seed = 0,
                                          .block_tokens = ENGINE_BLOCK_TOKENS,
                                          .world_size = ranks};
    struct gms_membership membership;
    gms_session *session = NULL;
    gms_status status = gms_open(&options, &session, error);
    if (status == GMS_OK)
        status = gms_join(session, &identity, &membership, error);
    mix(worker, (uint64_t)status);
    for (uint64_t number = 1; status == GMS_OK; number++) {
        uint64_t stop_at = atomic_load(&worker->stop_at);
        if (stop_at != 0 && number > stop_at)
            break;
        gms_pool *pool = NULL;
        status = attach(session, number, &pool, error);
        mix(worker, (uint64_t)status);
        if (status == GMS_OK) {
            mix(worker, gms_pool_index(pool));
            status = release(pool, error);
        }
        mix(worker, (uint64_t)status);
        worker->history[number % HISTORY] = worker->digest;
        if (status == GMS_OK)
            atomic_store(&worker->done, number);
    }
    /* The first that leaves has the others fenced: nobody does before all are done. */
    memcpy(worker->text, error->text, sizeof worker->text);
    atomic_store(&worker->failed, (int)status);
    atomic_store(&worker->over, 1);
    while (!atomic_load(&worker->may_close))
        poll(NULL, 0, 5); /* the parent's end ends this process */
    gms_close(session);
    return status;
}

void storm_start_workers(struct storm *storm)
{
    uint32_t ranks = storm->deployment.ranks;
    storm->workers =
        mmap(NULL, ranks * sizeof *storm->workers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (storm->workers == MAP_FAILED) {
        storm->workers = NULL;
        storm_fail(storm, "no memory for the third engine");
        return;
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct worker *worker = &storm->workers[rank];
        pid_t parent = getpid();
        worker->pid = fork();
        if (worker->pid == 0) {
            struct gms_error error = {.status = GMS_OK};
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            gms_status status =
                getppid() == parent ? work(worker, storm->deployment.run_dir, rank, ranks, &error) : GMS_E_SYSTEM;
            _exit(status == GMS_OK ? 0 : 1);
        }
        worker->pidfd = -1;
        if (worker->pid < 0 || gms_pidfd_open(worker->pid, &worker->pidfd, NULL) != GMS_OK)
            storm_fail(storm, "the third engine cannot be started");
    }
}

void storm_check_workers(struct storm *storm)
{
    for (uint32_t rank = 0; rank < storm->deployment.ranks; rank++)
        if (atomic_load(&storm->workers[rank].over) || gms_pidfd_ended(storm->workers[rank].pidfd))
            storm_fail(storm, "rank %u of the third engine ended: %s: %.300s", rank,
                       gms_status_name((gms_status)atomic_load(&storm->workers[rank].failed)),
                       storm->workers[rank].text);
}

/* The first operation with different outcomes that is still in the history. */
static uint64_t first_difference(const struct storm *storm, uint32_t rank)
{
    const struct worker *a = &storm->workers[0], *b = &storm->workers[rank];
    uint64_t last = a->done < b->done ? a->done : b->done, first = last > HISTORY ? last - HISTORY + 1 : 1;
    for (uint64_t number = first; number <= last; number++)
        if (a->history[number % HISTORY] != b->history[number % HISTORY])
            return number;
    return 0;
}

/* All ranks stop after the same operation, and must have had the same outcomes. */
void storm_stop_workers(struct storm *storm)
{
    uint64_t most = 0, deadline_ns = gms_clock_ns() + storm->plan.timeout_s * GMS_NS_PER_S;
    uint32_t ranks = storm->deployment.ranks;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        uint64_t done = atomic_load(&storm->workers[rank].done);
        most = done > most ? done : most;
    }
    for (uint32_t rank = 0; rank < ranks; rank++)
        atomic_store(&storm->workers[rank].stop_at, most + STOP_AHEAD);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        while (!atomic_load(&storm->workers[rank].over) && gms_clock_ns() < deadline_ns)
            poll(NULL, 0, POLL_MS);
        if (!atomic_load(&storm->workers[rank].over))
            storm_fail(storm, "rank %u of the third engine does not come to operation %llu", rank,
                       (unsigned long long)(most + STOP_AHEAD));
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const struct worker *worker = &storm->workers[rank];
        if (worker->failed != 0)
            storm_fail(storm, "rank %u of the third engine: %s: %.300s", rank,
                       gms_status_name((gms_status)worker->failed), worker->text);
        if (worker->done != most + STOP_AHEAD || worker->digest != storm->workers[0].digest)
            storm_fail(
                storm,
                "rank %u of the third engine had other outcomes than rank 0 (%llu and %llu operations, told to stop "
                "after %llu; the first that differs: %llu)",
                rank, (unsigned long long)worker->done, (unsigned long long)storm->workers[0].done,
                (unsigned long long)most + STOP_AHEAD, (unsigned long long)first_difference(storm, rank));
    }
    for (uint32_t rank = 0; rank < ranks; rank++)
        atomic_store(&storm->workers[rank].may_close, 1);
}
