/* SPDX-License-Identifier: Apache-2.0
 *
 * What a round costs, beside the least it could cost, both sides in one run:
 *
 *   together   all ranks arrive at once: the round's collective against a bare MPI_Allreduce of as many bytes
 *   asleep     all ranks sleep, rank 0 rings: doorbell, event loop and round, against raw sockets, poll(2) and
 *              MPI_Allreduce; from the ring to the last rank done
 *
 *   mpirun -n RANKS bench_round [ITERATIONS] [RINGS]
 */
#include <event2/event.h>
#include <fcntl.h>
#include <mpi.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "group/doorbell.h"
#include "group/round_mpi.h"
#include "wire/channel.h"

enum { RANKS_MAX = 64, GAP_MS = 5 };

static int rank, size;

static void check(gms_status status, const struct gms_error *error)
{
    if (status == GMS_OK)
        return;
    fprintf(stderr, "rank %d: %s\n", rank, error->text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double quantile(double *values, int count, double which)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    int index = (int)(which * (count - 1) + 0.5);
    return values[index];
}

/* The slowest rank's time of each iteration, on rank 0. */
static void slowest(double *values, int count)
{
    MPI_Reduce(rank == 0 ? MPI_IN_PLACE : values, values, count, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
}

static void report(const char *what, const char *ours, double *a, const char *bare, double *b, int count, double goal)
{
    if (rank != 0)
        return;
    double a50 = quantile(a, count, 0.5), b50 = quantile(b, count, 0.5);
    printf("%-9s ranks %2d  %s p50 %8.1f us p99 %8.1f us   %s p50 %8.1f us p99 %8.1f us   ratio %.2f (goal <= %.1f)\n",
           what, size, ours, a50, quantile(a, count, 0.99), bare, b50, quantile(b, count, 0.99), a50 / b50, goal);
    fflush(stdout);
}

/* ---------------------------------------------------------------------------------------------------- together - */

static void together(struct gms_round *round, int count)
{
    static struct gms_ballot mine, merged;
    static uint8_t bytes[sizeof(struct gms_ballot)], result[sizeof(struct gms_ballot)];
    double *ours = calloc((size_t)count, sizeof *ours), *bare = calloc((size_t)count, sizeof *bare);
    struct gms_error error;
    gms_ballot_init(&mine);
    mine.ranks = 1;
    for (int i = -100; i < count; i++) { /* the first hundred warm up */
        MPI_Barrier(MPI_COMM_WORLD);
        uint64_t begin_ns = gms_clock_ns();
        check(gms_round_run(round, &mine, &merged, &error), &error);
        uint64_t end_ns = gms_clock_ns();
        if (i >= 0)
            ours[i] = (double)(end_ns - begin_ns) / 1e3;
        MPI_Barrier(MPI_COMM_WORLD);
        begin_ns = gms_clock_ns();
        MPI_Allreduce(bytes, result, (int)sizeof bytes, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD);
        end_ns = gms_clock_ns();
        if (i >= 0)
            bare[i] = (double)(end_ns - begin_ns) / 1e3;
    }
    if (merged.ranks != size)
        check(GMS_E_DIVERGED, &(struct gms_error){.text = "the merged ballot does not hold all ranks"});
    slowest(ours, count);
    slowest(bare, count);
    report("together", "round", ours, "MPI_Allreduce", bare, count, 3.0);
    free(ours);
    free(bare);
}

/* ------------------------------------------------------------------------------------------------------ asleep - */

struct sleeper {
    struct event_base *base;
    struct gms_doorbell *doorbell;
    uint64_t rung;
};

static void on_rung(void *context, uint64_t round)
{
    struct sleeper *sleeper = context;
    sleeper->rung = round;
    event_base_loopbreak(sleeper->base);
}

static void on_lost(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "rank %d: %s\n", rank, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static uint64_t ring_ours(struct sleeper *sleeper, struct gms_round *round, uint64_t number, uint64_t *ret_rung_ns)
{
    static struct gms_ballot mine, merged;
    struct gms_error error;
    gms_ballot_init(&mine);
    mine.ranks = 1;
    if (rank == 0) {
        poll(NULL, 0, GAP_MS); /* the others go to sleep */
        *ret_rung_ns = gms_clock_ns();
        gms_doorbell_ring(sleeper->doorbell, number);
    } else {
        while (sleeper->rung < number)
            event_base_loop(sleeper->base, EVLOOP_ONCE);
    }
    check(gms_round_run(round, &mine, &merged, &error), &error);
    return gms_clock_ns();
}

static uint64_t ring_bare(const int *peers, uint64_t number, uint64_t *ret_rung_ns)
{
    static uint8_t bytes[sizeof(struct gms_ballot)], result[sizeof(struct gms_ballot)];
    if (rank == 0) {
        poll(NULL, 0, GAP_MS);
        *ret_rung_ns = gms_clock_ns();
        for (int peer = 1; peer < size; peer++)
            if (send(peers[peer], &number, sizeof number, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof number)
                MPI_Abort(MPI_COMM_WORLD, 1);
    } else {
        struct pollfd waiting = {.fd = peers[0], .events = POLLIN};
        uint64_t heard = 0;
        while (poll(&waiting, 1, -1) < 1 || recv(peers[0], &heard, sizeof heard, MSG_DONTWAIT) < 0 || heard < number)
            continue;
    }
    MPI_Allreduce(bytes, result, (int)sizeof bytes, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD);
    return gms_clock_ns();
}

/* A star of plain sockets around rank 0. */
static void connect_bare(const char *directory, int peers[RANKS_MAX])
{
    char path[GMS_RUN_PATH_BYTES];
    struct gms_error error;
    int listener = -1;
    check(gms_run_dir_path(directory, "plain", -1, path, &error), &error);
    if (rank == 0)
        check(gms_channel_listen(path, &listener, &error), &error);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank != 0) {
        check(gms_channel_connect(path, 5000, &peers[0], &error), &error);
        if (send(peers[0], &rank, sizeof rank, MSG_NOSIGNAL) != sizeof rank)
            MPI_Abort(MPI_COMM_WORLD, 1);
        return;
    }
    for (int left = size - 1; left > 0; left--) {
        struct pollfd waiting = {.fd = listener, .events = POLLIN};
        int fd = -1, who = -1;
        pid_t pid;
        uid_t uid;
        if (poll(&waiting, 1, 5000) < 1)
            MPI_Abort(MPI_COMM_WORLD, 1);
        check(gms_channel_accept(listener, &fd, &pid, &uid, &error), &error);
        waiting.fd = fd;
        if (poll(&waiting, 1, 5000) < 1 || recv(fd, &who, sizeof who, 0) != sizeof who || who < 1 || who >= size)
            MPI_Abort(MPI_COMM_WORLD, 1);
        peers[who] = fd;
    }
    gms_fd_close(&listener);
}

static void asleep(struct gms_round *round, const char *directory, int count)
{
    struct sleeper sleeper = {.base = event_base_new()};
    const struct gms_doorbell_options options = {.run_dir = directory,
                                                 .world = 1,
                                                 .rank = (uint32_t)rank,
                                                 .ranks = (uint32_t)size,
                                                 .heartbeat_ns = 60 * GMS_NS_PER_S,
                                                 .rung = on_rung,
                                                 .lost = on_lost,
                                                 .context = &sleeper};
    double *ours = calloc((size_t)count, sizeof *ours), *bare = calloc((size_t)count, sizeof *bare);
    struct gms_error error;
    int peers[RANKS_MAX];
    check(gms_doorbell_open(&options, &sleeper.doorbell, &error), &error);
    MPI_Barrier(MPI_COMM_WORLD);
    check(gms_doorbell_connect(sleeper.doorbell, sleeper.base, gms_clock_ns() + 10 * GMS_NS_PER_S, &error), &error);
    connect_bare(directory, peers);
    for (int i = 0; i < count; i++) {
        uint64_t rung_ns[2] = {0, 0}, done_ns[2];
        done_ns[0] = ring_ours(&sleeper, round, (uint64_t)i + 1, &rung_ns[0]);
        MPI_Barrier(MPI_COMM_WORLD);
        done_ns[1] = ring_bare(peers, (uint64_t)i + 1, &rung_ns[1]);
        MPI_Barrier(MPI_COMM_WORLD);
        /* One clock on one host: rank 0 rang, the last one was done. */
        MPI_Bcast(rung_ns, 2, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        ours[i] = (double)(done_ns[0] - rung_ns[0]) / 1e3;
        bare[i] = (double)(done_ns[1] - rung_ns[1]) / 1e3;
    }
    slowest(ours, count);
    slowest(bare, count);
    report("asleep", "ring + round", ours, "ring + MPI_Allreduce", bare, count, 1.5);
    gms_doorbell_expect_end(sleeper.doorbell);
    MPI_Barrier(MPI_COMM_WORLD);
    gms_doorbell_close(sleeper.doorbell);
    event_base_free(sleeper.base);
    free(ours);
    free(bare);
}

int main(int argc, char **argv)
{
    int iterations = argc > 1 ? atoi(argv[1]) : 1000, rings = argc > 2 ? atoi(argv[2]) : 200, provided;
    struct gms_round *round = NULL;
    struct gms_error error;
    char directory[64] = "/tmp/gms-bench-XXXXXX";
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (iterations < 1 || rings < 1 || size < 2 || size > RANKS_MAX) {
        fprintf(stderr, "usage: mpirun -n 2..%d bench_round [ITERATIONS] [RINGS]\n", RANKS_MAX);
        MPI_Abort(MPI_COMM_WORLD, 64);
    }
    if (rank == 0 && mkdtemp(directory) == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Bcast(directory, sizeof directory, MPI_CHAR, 0, MPI_COMM_WORLD);
    check(gms_round_open(30 * GMS_NS_PER_S, &round, &error), &error);
    if (rank == 0)
        printf("ballot %zu bytes\n", sizeof(struct gms_ballot));
    together(round, iterations);
    asleep(round, directory, rings);
    gms_round_close(round);
    MPI_Finalize();
    if (rank == 0) {
        char command[96];
        snprintf(command, sizeof command, "rm -rf %s", directory);
        return system(command) == 0 ? 0 : 1;
    }
    return 0;
}
