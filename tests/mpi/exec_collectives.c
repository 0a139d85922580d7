/* SPDX-License-Identifier: Apache-2.0
 * Allgather and allreduce of 1 KiB to 1 MiB, every word checked. Exit code 0: all right; 3: words were wrong. What
 * containment breaks in shared memory transports shows here (runtime/gms-exec/README.md). */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 5 };

static uint32_t word(size_t index, int rank, int round)
{
    return (uint32_t)(index * 2654435761u) ^ (uint32_t)(rank * 977 + round);
}

static long check(size_t words, int rank, int ranks, int round, uint32_t *own, uint32_t *all, uint32_t *sum)
{
    long wrong = 0;

    for (size_t i = 0; i < words; i++) {
        own[i] = word(i, rank, round);
        sum[i] = 0;
    }
    for (size_t i = 0; i < words * (size_t)ranks; i++) {
        all[i] = 0;
    }
    MPI_Allgather(own, (int)words, MPI_UINT32_T, all, (int)words, MPI_UINT32_T, MPI_COMM_WORLD);
    MPI_Allreduce(own, sum, (int)words, MPI_UINT32_T, MPI_SUM, MPI_COMM_WORLD);
    for (size_t i = 0; i < words; i++) {
        uint32_t expected = 0;

        for (int other = 0; other < ranks; other++) {
            expected += word(i, other, round);
            wrong += all[(size_t)other * words + i] != word(i, other, round);
        }
        wrong += sum[i] != expected;
    }
    return wrong;
}

int main(int argc, char **argv)
{
    int rank, ranks;
    long wrong = 0, wrong_anywhere = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (size_t bytes = 1024; bytes <= 1 << 20; bytes *= 4) {
        uint32_t *own = malloc(bytes), *sum = malloc(bytes), *all = malloc(bytes * (size_t)ranks);

        if (own == NULL || sum == NULL || all == NULL) {
            MPI_Abort(MPI_COMM_WORLD, 4);
        }
        for (int round = 0; round < ROUNDS; round++) {
            wrong += check(bytes / sizeof(uint32_t), rank, ranks, round, own, all, sum);
        }
        free(own);
        free(sum);
        free(all);
    }
    MPI_Allreduce(&wrong, &wrong_anywhere, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%d ranks, wrong words: %ld\n", ranks, wrong_anywhere);
    }
    MPI_Finalize();
    return wrong_anywhere == 0 ? 0 : 3;
}
