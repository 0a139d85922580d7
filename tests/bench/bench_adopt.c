/* SPDX-License-Identifier: Apache-2.0
 *
 * What adoption costs after the fault, by phase: classify what the dead engine left, then compare over all ranks and
 * apply. With the index built before the fault, as the coordinators do with every heartbeat, and without.
 *
 *   mpirun -n RANKS bench_adopt [SLOTS]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "memory/pools.h"

enum { SLOTS = 344905, BLOCK_BYTES = 16, SOURCE = 1, SUCCESSOR = 2, SECOND = 3, EVERY_TH_LEASED = 100 };

static int rank, size;

static void check(gms_status status, const struct gms_error *error)
{
    if (status == GMS_OK)
        return;
    fprintf(stderr, "rank %d: %s\n", rank, error->text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void allocate(struct gms_pools *pools, uint64_t incarnation, uint32_t slots, bool create)
{
    const struct gms_pools_caller caller = {
        .engine = (uint32_t)incarnation, .incarnation = incarnation, .epoch = 1, .identity_digest = 42};
    struct gms_call call = {.slot_count = slots, .block_bytes = BLOCK_BYTES};
    struct gms_outcome outcome = {.status = GMS_OK};
    struct gms_error error;
    uint64_t detail[2];
    call.proposal.key.kind = outcome.key.kind = GMS_OPERATION_ALLOCATE;
    call.proposal.pool_kind = GMS_POOL_KV;
    snprintf(call.proposal.pool, sizeof call.proposal.pool, "kv");
    check(gms_pools_prepare(pools, &caller, &call, 0, create, detail, &error), &error);
    check(gms_pools_commit(pools, &caller, &outcome, "kv", &error), &error);
}

/* What a busy engine leaves: nearly all blocks sealed, a few being written. */
static void fill(struct gms_directory *directory)
{
    struct gms_directory *all[GMS_MAX_POOLS] = {directory};
    for (uint32_t slot = 0; slot < directory->slot_count; slot++) {
        struct gms_block block = {.token_count = 16, .part_count = 1};
        struct gms_error error = {.text = "a slot was not sealed"};
        uint64_t generation = 0;
        check(gms_directory_acquire(directory, slot, &generation), &error);
        if (slot % EVERY_TH_LEASED == 0)
            continue;
        memcpy(block.hash, &slot, sizeof slot);
        block.hash[15] = 1;
        block.parts[0] = (struct gms_part){0, slot, generation};
        check(gms_directory_seal(all, &block, slot + 1), &error);
    }
}

/* CPU time of this rank: what its share costs where every rank has a core of its own. */
static double cpu_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static double slowest_ms(uint64_t begin_ns)
{
    double mine = (double)(gms_clock_ns() - begin_ns) / 1e6, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

static void adopt(struct gms_pools *pools, struct gms_round *round, uint64_t successor, const char *how)
{
    struct gms_pools_classified classified;
    struct gms_pools_adopted adopted;
    struct gms_error error;
    MPI_Barrier(MPI_COMM_WORLD);
    double cpu_begin_ms = cpu_ms();
    uint64_t begin_ns = gms_clock_ns();
    check(gms_pools_classify(pools, SOURCE, successor, false, 0, &classified, &error), &error);
    double classify_ms = slowest_ms(begin_ns);
    MPI_Barrier(MPI_COMM_WORLD);
    begin_ns = gms_clock_ns();
    check(gms_pools_bulk(pools, round, successor, SOURCE, &adopted, &error), &error);
    double spent_ms = cpu_ms() - cpu_begin_ms, bulk_ms = slowest_ms(begin_ns);
    if (rank == 0)
        printf("ranks %2d  %-16s classify %7.2f ms  compare and apply %7.2f ms  together %7.2f ms (goal <= 50)   CPU "
               "%.2f ms   "
               "adopted %u of %u sealed, quarantined %u\n",
               size, how, classify_ms, bulk_ms, classify_ms + bulk_ms, spent_ms, adopted.adopted,
               classified.sealed_here, adopted.quarantined);
}

int main(int argc, char **argv)
{
    int provided;
    uint32_t slots = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : SLOTS;
    struct gms_round *round = NULL;
    struct gms_pools *pools = NULL;
    struct gms_error error;
    const struct gms_pools_options options = {.deployment = "bench", .world = 1, .capacity_bytes = UINT64_MAX / 2};
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (slots == 0) {
        fprintf(stderr, "usage: mpirun -n RANKS bench_adopt [SLOTS]\n");
        MPI_Abort(MPI_COMM_WORLD, 64);
    }
    gms_log_open("bench", "stderr", GMS_LOG_WARNING, NULL);
    check(gms_round_open(60 * GMS_NS_PER_S, &round, &error), &error);
    check(gms_pools_open(&options, &pools, &error), &error);
    allocate(pools, SOURCE, slots, true);
    allocate(pools, SUCCESSOR, slots, false);
    allocate(pools, SECOND, slots, false);
    fill(gms_pools_directory(pools, SOURCE, 0));

    MPI_Barrier(MPI_COMM_WORLD);
    uint64_t begin_ns = gms_clock_ns();
    gms_pools_refresh(pools, SOURCE, SUCCESSOR);
    double index_ms = slowest_ms(begin_ns);
    if (rank == 0)
        printf("%u slots, records of %d bytes; index built before the fault in %.1f ms\n", slots, GMS_RECORD_BYTES,
               index_ms);
    adopt(pools, round, SUCCESSOR, "index built");
    adopt(pools, round, SECOND, "no index");
    gms_pools_close(pools);
    gms_round_close(round);
    MPI_Finalize();
    return 0;
}
