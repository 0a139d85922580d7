/* SPDX-License-Identifier: Apache-2.0
 *
 *   leader ---- its socket ----> referee ---- asked, answers, told ----> successor
 *     |                             |
 *   writer <------- SIGKILL --------+
 */
#include "bare.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "host/threads.h"

enum { FIRST_PAUSE_US = 100, LONGEST_PAUSE_US = 500, RECORD_BYTES = 512, RECORDS = 2, AT_IT_NS = 20000 };

struct scene {
    _Atomic pid_t writer;
    _Atomic uint64_t last_write_ns, told_ns;
};

static void stop_with(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
}

static pid_t start_leader(struct scene *scene, int alive)
{
    const pid_t parent = getpid(), leader = fork();
    if (leader != 0)
        return leader;
    stop_with(parent);
    const pid_t writer = fork();
    if (writer == 0) {
        alarm(20);
        close(alive);
        for (;;)
            atomic_store(&scene->last_write_ns, gms_clock_ns());
    }
    atomic_store(&scene->writer, writer);
    for (;;)
        pause();
}

static pid_t start_successor(struct scene *scene, int socket)
{
    char word;
    const pid_t parent = getpid(), successor = fork();
    if (successor != 0)
        return successor;
    stop_with(parent);
    while (recv(socket, &word, 1, 0) == 1 && word != 'p' && send(socket, &word, 1, MSG_NOSIGNAL) == 1)
        ;
    atomic_store(&scene->told_ns, gms_clock_ns());
    _exit(0);
}

static void store(int file)
{
    static const char record[RECORD_BYTES];
    (void)!write(file, record, sizeof record);
}

static pid_t start_referee(const pid_t pids[2], const int pidfds[2], int alive, int successor, int file)
{
    char word = 'c';
    const pid_t parent = getpid(), referee = fork();
    if (referee != 0)
        return referee;
    stop_with(parent);
    (void)!recv(alive, &word, 1, 0); /* end of file: the leader is dead */
    store(file);
    for (int i = 0; i < 2; i++)
        gms_pidfd_signal(pidfds[i], SIGKILL);
    for (long pause_us = FIRST_PAUSE_US; !gms_threads_exiting(pids[0]) || !gms_threads_exiting(pids[1]);) {
        const struct timespec pause = {.tv_nsec = pause_us * 1000};
        ppoll(NULL, 0, &pause, NULL);
        pause_us = pause_us * 3 / 2 < LONGEST_PAUSE_US ? pause_us * 3 / 2 : LONGEST_PAUSE_US;
    }
    for (int i = 0; i < RECORDS; i++) {
        store(file);
        (void)!send(successor, "c", 1, MSG_NOSIGNAL);
        (void)!recv(successor, &word, 1, 0);
    }
    (void)!send(successor, "p", 1, MSG_NOSIGNAL);
    _exit(0);
}

double bare_admission_ms(void)
{
    int alive[2], pair[2], pidfds[2] = {-1, -1};
    const int file = memfd_create("records", MFD_CLOEXEC);
    struct scene *scene = mmap(NULL, sizeof *scene, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (file < 0 || scene == MAP_FAILED || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, alive) != 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    const pid_t leader = start_leader(scene, alive[1]);
    gms_fd_close(&alive[1]);
    while (atomic_load(&scene->writer) == 0 || atomic_load(&scene->last_write_ns) == 0)
        poll(NULL, 0, 1);
    const pid_t pids[2] = {leader, atomic_load(&scene->writer)};
    for (int i = 0; i < 2; i++)
        (void)gms_pidfd_open(pids[i], &pidfds[i], NULL);
    const pid_t successor = start_successor(scene, pair[1]);
    const pid_t referee = start_referee(pids, pidfds, alive[0], pair[0], file);
    poll(NULL, 0, 80); /* the writer has used up what it was owed, like any */
    for (uint64_t end_ns = gms_clock_ns() + GMS_NS_PER_S; gms_clock_ns() < end_ns;)
        if (gms_clock_ns() - atomic_load(&scene->last_write_ns) < AT_IT_NS)
            break;
    gms_pidfd_signal(pidfds[0], SIGKILL);
    waitpid(leader, NULL, 0);
    waitpid(referee, NULL, 0);
    waitpid(successor, NULL, 0);
    const double took_ms = (double)(int64_t)(atomic_load(&scene->told_ns) - atomic_load(&scene->last_write_ns)) / 1e6;
    for (int i = 0; i < 2; i++) {
        gms_pidfd_signal(pidfds[i], SIGKILL);
        gms_fd_close(&pidfds[i]);
    }
    gms_fd_close(&alive[0]);
    gms_fd_close(&pair[0]);
    gms_fd_close(&pair[1]);
    close(file);
    munmap(scene, sizeof *scene);
    return took_ms;
}
