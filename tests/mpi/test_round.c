/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounds without a daemon: an MPI program under mpirun -n 4 whose ranks check the same things together.
 *
 *   test_round         everything that completes
 *   test_round late    rank 0 enters a round that nobody else enters: it must give up by itself, with exit 75
 *   test_round closed  the same, but its watch says that a peer is gone
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "group/round_mpi.h"

enum { SLOTS = 1003, BYTES = (SLOTS + 7) / 8 };

static int rank, size;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "rank %d: %s:%d: %s\n", rank, __FILE__, __LINE__, #condition);                             \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                              \
        }                                                                                                              \
    } while (0)

static bool get(const uint8_t *bitmap, uint32_t slot)
{
    return (bitmap[slot / 8] >> (slot % 8)) & 1;
}

static void clear(uint8_t *bitmap, uint32_t slot)
{
    bitmap[slot / 8] &= (uint8_t) ~(1u << (slot % 8));
}

static void test_merge(struct gms_round *round)
{
    struct gms_ballot mine, merged;
    struct gms_error error;
    for (uint64_t number = 1; number <= 200; number++) {
        gms_ballot_init(&mine);
        mine.ranks = 1;
        mine.round_least = mine.round_greatest = number;
        mine.world_least = mine.world_greatest = 7;
        mine.state_least = (uint64_t)rank + 10;
        mine.state_greatest = (uint64_t)rank + 10;
        CHECK(gms_round_run(round, &mine, &merged, &error) == GMS_OK);
        CHECK(merged.ranks == size);
        CHECK(merged.round_least == number && merged.round_greatest == number);
        CHECK(merged.state_least == 10 && merged.state_greatest == (uint64_t)size + 9);
        CHECK((merged.flags & GMS_BALLOT_MALFORMED) == 0);
    }
}

static void test_share(struct gms_round *round)
{
    static uint8_t data[100000];
    struct gms_error error;
    uint64_t greatest = 0;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(rank == 0 ? i * 7 : 0);
    CHECK(gms_round_share(round, data, sizeof data, &error) == GMS_OK);
    for (size_t i = 0; i < sizeof data; i++)
        CHECK(data[i] == (uint8_t)(i * 7));
    CHECK(gms_round_greatest(round, UINT64_MAX - (uint64_t)rank, &greatest, &error) == GMS_OK);
    CHECK(greatest == UINT64_MAX);
    CHECK(gms_round_greatest(round, (uint64_t)rank, &greatest, &error) == GMS_OK);
    CHECK(greatest == (uint64_t)size - 1);
}

static void test_concur(struct gms_round *round)
{
    struct gms_error mine = {.status = GMS_OK}, all;
    CHECK(gms_round_concur(round, &mine, &all) == GMS_OK);
    if (rank >= 2) { /* two ranks fail, for reasons of their own: the lower one's is told to everybody */
        char text[64];
        snprintf(text, sizeof text, "reason of %d", rank);
        gms_fail(&mine, GMS_E_BUSY, "%s", text);
    }
    CHECK(gms_round_concur(round, &mine, &all) == GMS_E_BUSY);
    CHECK(all.rank == 2 && strcmp(all.text, "reason of 2") == 0);
}

/* Rank r misses slot r, may not use slot 100 + r, and holds something else in slot 200 + r. */
static void test_bulk(struct gms_round *round, bool unequal)
{
    uint8_t adoptable[BYTES], usable[BYTES];
    static uint32_t digests[SLOTS];
    struct gms_round_bulk_result result;
    struct gms_error error;
    memset(adoptable, 0xff, sizeof adoptable);
    memset(usable, 0xff, sizeof usable);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        digests[slot] = slot * 3 + 1;
    for (uint32_t slot = SLOTS; slot < 8 * BYTES; slot++) {
        clear(adoptable, slot);
        clear(usable, slot);
    }
    clear(adoptable, (uint32_t)rank);
    digests[rank] = 0;
    clear(adoptable, 100 + (uint32_t)rank);
    clear(usable, 100 + (uint32_t)rank);
    digests[100 + rank] = 0;
    if (unequal)
        digests[200 + rank] = 0xdead0000u + (uint32_t)rank;
    CHECK(gms_round_bulk(round, SLOTS, adoptable, usable, digests, &result, &error) == GMS_OK);
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        bool missing = slot < (uint32_t)size, forbidden = slot >= 100 && slot < 100 + (uint32_t)size,
             differs = unequal && slot >= 200 && slot < 200 + (uint32_t)size;
        CHECK(get(adoptable, slot) == (!missing && !forbidden && !differs));
        CHECK(get(usable, slot) == !forbidden);
        count += get(adoptable, slot);
    }
    CHECK(result.adoptable == count);
    CHECK(result.adoptable_here == SLOTS - 2);
    CHECK(result.unequal == (unequal ? (uint32_t)size : 0));
}

static void test_bulk_edges(struct gms_round *round)
{
    uint8_t adoptable[1] = {1}, usable[1] = {1};
    uint32_t digest = 5;
    struct gms_error error;
    CHECK(gms_round_bulk(round, 0, adoptable, usable, &digest, NULL, &error) == GMS_OK);
    CHECK(gms_round_bulk(round, 1, adoptable, usable, &digest, NULL, &error) == GMS_OK);
    CHECK(adoptable[0] == 1 && usable[0] == 1);
    digest = rank == 1 ? 6 : 5;
    CHECK(gms_round_bulk(round, 1, adoptable, usable, &digest, NULL, &error) == GMS_OK);
    CHECK(adoptable[0] == 0 && usable[0] == 1);
    CHECK(gms_round_bulk(round, rank == 0 ? 1 : 0, adoptable, usable, &digest, NULL, &error) == GMS_E_MISMATCH);
}

static bool gone(void *context)
{
    (*(int *)context)++;
    return true;
}

/* Rank 0 alone. The others wait outside MPI until it ends: their launcher ends them. */
static void alone(struct gms_round *round, bool closed)
{
    struct gms_ballot mine, merged;
    struct gms_error error;
    int asked = 0;
    gms_ballot_init(&mine);
    gms_round_set_deadline(round, (closed ? 30000 : 300) * GMS_NS_PER_MS, closed ? gone : NULL, &asked);
    if (rank != 0) {
        for (;;)
            pause();
    }
    uint64_t begin_ns = gms_clock_ns();
    gms_status status = gms_round_run(round, &mine, &merged, &error);
    uint64_t took_ms = (gms_clock_ns() - begin_ns) / GMS_NS_PER_MS;
    fprintf(stderr, "%s after %llu ms\n", error.text, (unsigned long long)took_ms);
    if (closed ? status != GMS_E_PEER_LOST || asked != 1 || took_ms > 1000
               : status != GMS_E_ROUND_TIMEOUT || took_ms < 300 || took_ms > 5000)
        _exit(1);
    _exit(75);
}

int main(int argc, char **argv)
{
    struct gms_round *round = NULL;
    struct gms_error error;
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(size == 4);
    CHECK(gms_round_open(20 * GMS_NS_PER_S, &round, &error) == GMS_OK);
    CHECK(gms_round_rank(round) == (uint32_t)rank && gms_round_size(round) == (uint32_t)size);
    if (argc > 1)
        alone(round, strcmp(argv[1], "closed") == 0);
    test_merge(round);
    test_share(round);
    test_concur(round);
    test_bulk(round, false);
    test_bulk(round, true);
    test_bulk_edges(round);
    gms_round_close(round);
    MPI_Finalize();
    return 0;
}
