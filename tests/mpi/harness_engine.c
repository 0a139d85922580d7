/* SPDX-License-Identifier: Apache-2.0
 *
 * The harness's engine ranks: children of the test, led by gates and steps in shared memory; and what their bodies
 * share.
 */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness.h"
#include "vmm/cuda.h"

/* ---------------------------------------------------------------------------------------------------- engines -- */

_Noreturn static void run_rank(struct engine_rank *rank, engine_body body, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    struct gms_error error = {.status = GMS_OK, .rank = -1};
    gms_status status = body(rank, &error);
    rank->status = status;
    rank->error_rank = error.rank;
    if (status != GMS_OK)
        memcpy(rank->text, error.text, sizeof rank->text);
    atomic_store(&rank->at, 1000);
    _exit(status == GMS_OK ? 0 : 1);
}

void engine_start(struct engine *engine, const struct cluster *cluster, uint32_t id, const char *launch,
                  engine_body body, uint64_t argument)
{
    memset(engine, 0, sizeof *engine);
    engine->count = cluster->ranks;
    engine->ranks =
        mmap(NULL, HARNESS_RANKS * sizeof *engine->ranks, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(engine->ranks, MAP_FAILED);
    for (uint32_t i = 0; i < engine->count; i++) {
        struct engine_rank *rank = &engine->ranks[i];
        rank->cluster = cluster;
        rank->engine = id;
        rank->rank = i;
        rank->ranks = engine->count;
        rank->argument = argument;
        snprintf(rank->launch, sizeof rank->launch, "%s", launch);
        /* Not rank->pid: that is shared, and what the parent writes there is not what fork returned to the child. */
        pid_t parent = getpid(), pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            run_rank(rank, body, parent);
        rank->pid = pid;
        struct gms_error error;
        assert_int_equal(gms_pidfd_open(rank->pid, &rank->pidfd, &error), GMS_OK);
    }
}

void engine_go(struct engine *engine, int gate)
{
    for (uint32_t i = 0; i < engine->count; i++)
        atomic_store(&engine->ranks[i].go, gate);
}

struct reaching {
    struct engine *engine;
    int step;
};

static bool all_reached(void *context)
{
    const struct reaching *reaching = context;
    for (uint32_t i = 0; i < reaching->engine->count; i++)
        if (atomic_load(&reaching->engine->ranks[i].at) < reaching->step &&
            !gms_pidfd_ended(reaching->engine->ranks[i].pidfd))
            return false;
    return true;
}

bool engine_reached(struct engine *engine, int step, int timeout_ms)
{
    struct reaching reaching = {engine, step};
    eventually(all_reached, &reaching, timeout_ms);
    bool reached = true;
    for (uint32_t i = 0; i < engine->count; i++) {
        int at = atomic_load(&engine->ranks[i].at);
        if (at >= step && at != 1000)
            continue;
        reached = false;
        fprintf(stderr, "engine %u rank %u is at step %d, not %d: %s %s\n", engine->ranks[i].engine, i, at, step,
                gms_status_name(engine->ranks[i].status), engine->ranks[i].text);
    }
    if (!reached)
        cluster_show_log(engine->ranks[0].cluster);
    return reached;
}

void engine_kill(struct engine *engine, uint32_t rank)
{
    gms_pidfd_signal(engine->ranks[rank].pidfd, SIGKILL);
}

bool engine_rank_alive(const struct engine *engine, uint32_t rank)
{
    return !gms_pidfd_ended(engine->ranks[rank].pidfd);
}

static bool all_ended(void *context)
{
    const struct engine *engine = context;
    for (uint32_t i = 0; i < engine->count; i++)
        if (!gms_pidfd_ended(engine->ranks[i].pidfd))
            return false;
    return true;
}

bool engine_wait_end(struct engine *engine, int timeout_ms)
{
    return eventually(all_ended, engine, timeout_ms);
}

void engine_finish(struct engine *engine)
{
    for (uint32_t i = 0; i < engine->count; i++) {
        gms_pidfd_signal(engine->ranks[i].pidfd, SIGKILL);
        gms_fd_close(&engine->ranks[i].pidfd);
        waitpid(engine->ranks[i].pid, NULL, 0);
    }
    munmap(engine->ranks, HARNESS_RANKS * sizeof *engine->ranks);
    engine->ranks = NULL;
}

/* ------------------------------------------------------------------------------------------------ for bodies --- */

void rank_at(struct engine_rank *rank, int step)
{
    atomic_store(&rank->at, step);
}

void rank_gate(struct engine_rank *rank, int gate)
{
    while (atomic_load(&rank->go) < gate)
        poll(NULL, 0, 2); /* the parent's end ends this process */
}

gms_status rank_open(struct engine_rank *rank, gms_session **ret_session, struct gms_error *error)
{
    const struct gms_open_options options = {.run_dir = rank->cluster->run_dir,
                                             .rank = (int32_t)rank->rank,
                                             .engine_id = (int32_t)rank->engine,
                                             .launch = rank->launch};
    return gms_open(&options, ret_session, error);
}

gms_status rank_join_as(gms_session *session, const struct gms_identity *identity,
                        struct gms_membership *ret_membership, struct gms_error *error)
{
    /* The one before under this engine id may have ended and not be given up everywhere yet: ask again. */
    uint64_t deadline_ns = gms_clock_ns() + HARNESS_DEADLINE_MS * GMS_NS_PER_MS;
    gms_status status = gms_join(session, identity, ret_membership, error);
    while (status == GMS_E_BUSY && strstr(error->text, "condemned") != NULL && gms_clock_ns() < deadline_ns) {
        poll(NULL, 0, 5);
        status = gms_join(session, identity, ret_membership, error);
    }
    return status;
}

gms_status rank_join(gms_session *session, const struct engine_rank *rank, struct gms_membership *ret_membership,
                     struct gms_error *error)
{
    const struct gms_identity identity = {.model = "test",
                                          .dtype = "f32",
                                          .layout = "flat",
                                          .hash_algorithm = "none",
                                          .engine_name = "harness",
                                          .engine_version = "1",
                                          .hash_seed = 1,
                                          .block_tokens = 16,
                                          .world_size = rank->ranks};
    return rank_join_as(session, &identity, ret_membership, error);
}

gms_status rank_attach_kv(gms_session *session, uint32_t slots, gms_pool **ret_pool, struct gms_error *error)
{
    const struct gms_pool_description description = {
        .name = "kv", .kind = GMS_POOL_KV, .slot_count = slots, .block_bytes = HARNESS_BLOCK_BYTES};
    return gms_pool_attach(session, &description, ret_pool, error);
}

/* Device memory by way of the driver; its table here is this program's own, not the library's. */
static const struct gms_vmm *memory_of(const gms_pool *pool)
{
    if (!gms_pool_on_device(pool))
        return gms_vmm_host();
    (void)gms_vmm_cuda_choose("0", NULL);
    return gms_vmm_cuda();
}

gms_status rank_fill(gms_pool *pool, size_t offset, int byte, size_t bytes, struct gms_error *error)
{
    char data[HARNESS_BLOCK_BYTES];
    gms_status status = GMS_OK;
    memset(data, byte, sizeof data);
    for (size_t done = 0; status == GMS_OK && done < bytes; done += sizeof data)
        status = memory_of(pool)->write((char *)gms_pool_address(pool) + offset + done, data,
                                        bytes - done < sizeof data ? bytes - done : sizeof data, error);
    return status;
}

int rank_byte(const gms_pool *pool, size_t offset)
{
    unsigned char byte = 0;
    const char *address = (const char *)gms_pool_address(pool) + offset;
    return memory_of(pool)->read(&byte, address, 1, NULL) == GMS_OK ? byte : -1;
}

gms_status rank_attach_weights(gms_session *session, gms_pool **ret_pool, struct gms_error *error)
{
    const struct gms_pool_description description = {.name = "weights", .kind = GMS_POOL_WEIGHTS, .bytes = 65536};
    gms_status status = gms_pool_attach(session, &description, ret_pool, error);
    if (status != GMS_OK || !gms_pool_must_publish(*ret_pool))
        return status;
    status = rank_fill(*ret_pool, 0, 0x5a, gms_pool_bytes(*ret_pool), error);
    if (status == GMS_OK)
        status = gms_manifest_add(*ret_pool, "all", 0, 65536, error);
    return status == GMS_OK ? gms_publish(*ret_pool, error) : status;
}

gms_status rank_serve(gms_session *session, const char *endpoint, struct gms_adoption *ret_adoption,
                      struct gms_error *error)
{
    struct gms_promotion promotion;
    gms_status status = gms_park(session, error);
    if (status == GMS_OK)
        status = gms_wait_promotion(session, HARNESS_DEADLINE_MS, &promotion, error);
    if (status == GMS_OK)
        status = gms_adopt(session, ret_adoption, error);
    if (status == GMS_OK)
        status = gms_wake(session, error);
    if (status == GMS_OK)
        status = gms_serve(session, endpoint, error);
    return status;
}

gms_status rank_seal(gms_session *session, gms_pool *pool, uint32_t slot, struct gms_error *error)
{
    uint64_t generation = 0;
    gms_token token = gms_step_begin(session);
    gms_status status = gms_slot_acquire(pool, slot, &generation);
    if (status != GMS_OK)
        return gms_fail(error, status, "slot %u was not acquired", slot);
    status = rank_fill(pool, (size_t)slot * HARNESS_BLOCK_BYTES, (int)slot + 1, HARNESS_BLOCK_BYTES, error);
    if (status != GMS_OK)
        return status;
    gms_step_complete(session, token);
    struct gms_block block = {.token_count = 16, .part_count = 1};
    block.hash[0] = (uint8_t)(slot + 1);
    block.parts[0] = (struct gms_part){gms_pool_index(pool), slot, generation};
    status = gms_block_seal(session, &block, token);
    return status == GMS_OK ? GMS_OK : gms_fail(error, status, "slot %u was not sealed", slot);
}

/* ----------------------------------------------------------------------------------------------- whole lives --- */

static gms_status park(struct engine_rank *rank, struct rank_life *life, bool weights, struct gms_error *error)
{
    memset(life, 0, sizeof *life);
    gms_status status = rank_open(rank, &life->session, error);
    if (status == GMS_OK)
        status = rank_join(life->session, rank, &life->membership, error);
    if (status == GMS_OK && weights)
        status = rank_attach_weights(life->session, &life->weights, error);
    if (status == GMS_OK)
        status = rank_attach_kv(life->session, HARNESS_SLOTS, &life->kv, error);
    if (status == GMS_OK)
        status = gms_park(life->session, error);
    return status;
}

gms_status rank_park(struct engine_rank *rank, struct rank_life *life, struct gms_error *error)
{
    return park(rank, life, true, error);
}

gms_status rank_park_without_weights(struct engine_rank *rank, struct rank_life *life, struct gms_error *error)
{
    return park(rank, life, false, error);
}

gms_status rank_take_over(struct engine_rank *rank, struct rank_life *life, const char *endpoint,
                          struct gms_error *error)
{
    struct gms_promotion promotion;
    gms_status status = gms_wait_promotion(life->session, -1, &promotion, error);
    if (status == GMS_OK)
        status = gms_adopt(life->session, &life->adoption, error);
    if (status == GMS_OK)
        status = gms_wake(life->session, error);
    if (status == GMS_OK)
        status = gms_serve(life->session, rank->rank == 0 ? endpoint : NULL, error);
    return status;
}

gms_status rank_live(struct engine_rank *rank, struct rank_life *life, const char *endpoint, struct gms_error *error)
{
    gms_status status = rank_park(rank, life, error);
    return status == GMS_OK ? rank_take_over(rank, life, endpoint, error) : status;
}

gms_status rank_operate(struct rank_life *life, uint64_t id, uint32_t *ret_finished, struct gms_error *error)
{
    struct gms_transfer_result result = {0};
    gms_status status = gms_transfer_dispatch(life->session, id, 1, error);
    if (status == GMS_OK)
        status = gms_transfer_end_part(life->session, id, 0, 0, error);
    if (status == GMS_OK)
        status = gms_transfer_wait(life->session, id, HARNESS_DEADLINE_MS, &result, error);
    if (ret_finished != NULL)
        *ret_finished = result.finished_ranks;
    return status;
}

gms_status rank_idle(struct engine_rank *rank, struct rank_life *life, int gate, struct gms_error *error)
{
    while (atomic_load(&rank->go) < gate) {
        struct pollfd news = {.fd = gms_event_fd(life->session), .events = POLLIN};
        struct gms_promotion promotion;
        poll(&news, 1, 5);
        gms_status status = gms_wait_promotion(life->session, 0, &promotion, error);
        if (gms_status_is_fatal_to_engine(status))
            return status;
    }
    return GMS_OK;
}

gms_status rank_serve_until(struct engine_rank *rank, int at, int gate, struct gms_error *error)
{
    struct rank_life life;
    gms_status status = rank_live(rank, &life, "unix:/e", error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, at);
    status = rank_idle(rank, &life, gate, error);
    gms_close(life.session);
    return status;
}
