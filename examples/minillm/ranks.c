/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include "log.h"

#include <errno.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { NAME_BYTES = 96 };

struct ranks {
    int rank, size;
    int *doorbells; /* owned; rank 0: one per other rank; others: [0] is rank 0's */
    uint32_t doorbell_count;
    bool idle; /* ranks above 0 without doorbells: the next broadcast may be far away */
};

static const uint64_t SPIN_NS = 3000000, PEER_CHECK_NS = 50000000;

_Noreturn void ranks_peer_lost(const struct ranks *r)
{
    note(NOTE_ERROR, "another rank of this engine is gone; rank %d ends too", r->rank);
    _exit(EXIT_PEER_LOST);
}

static void check_peers(const struct ranks *r)
{
    struct pollfd fds[1024];
    uint32_t count = r->doorbell_count < 1024 ? r->doorbell_count : 1024;
    for (uint32_t i = 0; i < count; i++)
        fds[i] = (struct pollfd){.fd = r->doorbells[i]};
    if (count == 0 || poll(fds, count, 0) <= 0)
        return;
    for (uint32_t i = 0; i < count; i++)
        if ((fds[i].revents & (POLLHUP | POLLERR)) != 0)
            ranks_peer_lost(r);
}

static void nap(uint64_t ns)
{
    struct timespec time = {.tv_nsec = (long)ns};
    nanosleep(&time, NULL);
}

/* Completes one nonblocking collective: yields at first, naps once it takes long (a rank may be stopped or far away).
 */
static void complete(struct ranks *r, MPI_Request *request)
{
    uint64_t start = 0, checked = 0;
    for (uint32_t turn = 0;; turn++) {
        int done;
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done)
            return;
        if (turn % 16 != 15) {
            sched_yield();
            continue;
        }
        uint64_t now = monotonic_ns();
        if (start == 0)
            start = checked = now;
        if (now - start > SPIN_NS)
            nap(r->idle && now - start > 100 * SPIN_NS ? 5000000 : 200000);
        if (now - checked > PEER_CHECK_NS) {
            checked = now;
            check_peers(r);
        }
    }
}

/* ----------------------------------------------------------------------------------------------- doorbells ---- */

/* A listening socket under an unguessable abstract name. */
static int doorbell_listen(char name[NAME_BYTES], int backlog)
{
    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return -1;
    snprintf(name, NAME_BYTES, "minillm.%d.%016llx%016llx", (int)getpid(), (unsigned long long)random[0],
             (unsigned long long)random[1]);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path + 1, name, strlen(name));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    if (fd >= 0 && (bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, backlog) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static int doorbell_connect(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path + 1, name, strlen(name));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, size) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* All or none: where one rank has no doorbell, nobody uses them. */
static void open_doorbells(struct ranks *r)
{
    char name[NAME_BYTES] = "";
    int listener = r->rank == 0 ? doorbell_listen(name, r->size) : -1;
    MPI_Bcast(name, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
    int fine = listener >= 0;
    if (r->rank != 0) {
        r->doorbells[0] = name[0] == 0 ? -1 : doorbell_connect(name);
        fine = r->doorbells[0] >= 0;
        r->doorbell_count = fine ? 1 : 0;
    }
    int all_fine;
    MPI_Allreduce(&fine, &all_fine, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    /* Every rank is connected by now, so accept does not wait; a stranger of another user takes no seat. */
    while (all_fine && r->rank == 0 && r->doorbell_count + 1 < (uint32_t)r->size) {
        struct ucred peer = {.uid = (uid_t)-1};
        socklen_t size = sizeof peer;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0)
            ranks_peer_lost(r);
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid())
            close(fd);
        else
            r->doorbells[r->doorbell_count++] = fd;
    }
    if (!all_fine && r->doorbell_count == 1) {
        close(r->doorbells[0]);
        r->doorbell_count = 0;
    }
    if (listener >= 0)
        close(listener);
}

/* ------------------------------------------------------------------------------------------------- public ----- */

struct ranks *ranks_open(int *argc, char ***argv)
{
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    MPI_Init(argc, argv);
    struct ranks *r = calloc(1, sizeof *r);
    if (r == NULL)
        return NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &r->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &r->size);
    r->doorbells = calloc((size_t)r->size, sizeof *r->doorbells);
    if (r->doorbells == NULL) {
        free(r);
        return NULL;
    }
    if (r->size > 1)
        open_doorbells(r);
    return r;
}

void ranks_close(struct ranks *r)
{
    MPI_Finalize();
    for (uint32_t i = 0; i < r->doorbell_count; i++)
        close(r->doorbells[i]);
    free(r->doorbells);
    free(r);
}

uint32_t ranks_rank(const struct ranks *r)
{
    return (uint32_t)r->rank;
}

uint32_t ranks_size(const struct ranks *r)
{
    return (uint32_t)r->size;
}

void ranks_broadcast(struct ranks *r, void *bytes, size_t count)
{
    if (r->size == 1 || count == 0)
        return;
    MPI_Request request;
    MPI_Ibcast(bytes, (int)count, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
    complete(r, &request);
    r->idle = false;
}

void ranks_gather_floats(void *ranks, const float *mine, float *all, size_t count)
{
    struct ranks *r = ranks;
    MPI_Request request;
    MPI_Iallgather(mine, (int)count, MPI_FLOAT, all, (int)count, MPI_FLOAT, MPI_COMM_WORLD, &request);
    complete(r, &request);
}

void ranks_least_bytes(struct ranks *r, uint8_t *bytes, size_t count)
{
    if (r->size == 1)
        return;
    MPI_Request request;
    MPI_Iallreduce(MPI_IN_PLACE, bytes, (int)count, MPI_UINT8_T, MPI_MIN, MPI_COMM_WORLD, &request);
    complete(r, &request);
}

bool ranks_sleep(struct ranks *r, int other_fd)
{
    r->idle = true;
    if (r->rank == 0 || r->doorbell_count == 0)
        return true;
    struct pollfd news[2] = {{.fd = r->doorbells[0], .events = POLLIN}, {.fd = other_fd, .events = POLLIN}};
    while (poll(news, 2, -1) < 0)
        if (errno != EINTR)
            return true;
    if (news[0].revents == 0)
        return false;
    char ring;
    ssize_t got;
    do
        got = recv(r->doorbells[0], &ring, 1, 0);
    while (got < 0 && errno == EINTR);
    if (got != 1)
        ranks_peer_lost(r);
    return true;
}

void ranks_ring(struct ranks *r)
{
    for (uint32_t i = 0; i < r->doorbell_count; i++)
        if (send(r->doorbells[i], "!", 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1)
            ranks_peer_lost(r);
}

uint32_t ranks_doorbells(struct ranks *r, struct pollfd *ret_fds, uint32_t capacity)
{
    uint32_t count = r->doorbell_count < capacity ? r->doorbell_count : capacity;
    for (uint32_t i = 0; i < count; i++)
        ret_fds[i] = (struct pollfd){.fd = r->doorbells[i]};
    return count;
}
