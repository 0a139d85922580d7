/* SPDX-License-Identifier: Apache-2.0
 *
 * Reported fault V16: clients of every kind that were stopped while the coordinator still had something to tell them,
 * their sockets full. Nobody waits for them: the engine's operations take as long as before, and a takeover happens.
 * And an engine that was stopped itself is taken over from, by order.
 */
#include <linux/sockios.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness.h"
#include "wire/channel.h"

enum { RANKS = 4, AT_PARKED = 1, AT_SERVING = 2, GATE_END = 1, CALLS = 60, MOST = 5000, QUEUED = 24 };
enum { VALUE_CALLS, VALUE_TOOK_US }; /* and the values after it: a ring of the last ones */
enum { RING = HARNESS_VALUES - VALUE_TOOK_US };

static struct cluster cluster;

/* Serves when it is its turn; from then on one operation of the group after the other, each timed. */
static gms_status work(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    gms_status status = rank_park(rank, &life, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_PARKED);
    status = rank_take_over(rank, &life, "unix:/e", error);
    for (uint64_t id = 1; status == GMS_OK; id++) {
        uint64_t begin_ns = gms_clock_ns();
        status = rank_operate(&life, id, NULL, error);
        rank->values[VALUE_TOOK_US + id % RING] = (gms_clock_ns() - begin_ns) / 1000;
        rank->values[VALUE_CALLS] = id;
        if (status == GMS_OK)
            rank_at(rank, AT_SERVING);
        poll(NULL, 0, 2);
    }
    return status; /* ended from outside */
}

static bool made_calls(void *context)
{
    const struct engine_rank *rank = context;
    return rank->values[VALUE_CALLS] >= rank->argument;
}

static int ascending(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

/* The median of an engine's last operations after CALLS more of them, in us, the greatest of its ranks. */
static uint64_t median_us(struct engine *engine)
{
    uint64_t median = 0;
    for (uint32_t i = 0; i < RANKS; i++) {
        struct engine_rank *rank = &engine->ranks[i];
        uint64_t took[RING];
        rank->argument = rank->values[VALUE_CALLS] + CALLS;
        assert_true(eventually(made_calls, rank, HARNESS_DEADLINE_MS));
        memcpy(took, &rank->values[VALUE_TOOK_US], sizeof took);
        qsort(took, RING, sizeof took[0], ascending);
        median = took[RING / 2] > median ? took[RING / 2] : median;
    }
    return median;
}

/* ------------------------------------------------------------------------------------- those who do not read --- */

/* One question that its role may ask (or not: a refusal is an answer too). */
static struct gms_message question(enum gms_client_role role, uint32_t id)
{
    struct gms_message message = {.type = GMS_MESSAGE_STATUS, .request_id = id, .fds = {-1, -1, -1, -1}};
    if (role == GMS_CLIENT_ENGINE) {
        message.type = GMS_MESSAGE_PARKED; /* of an incarnation that it is not */
        message.plain.incarnation = 99;
    } else if (role == GMS_CLIENT_EXEC) {
        message.type = GMS_MESSAGE_ENVIRONMENT;
    }
    return message;
}

static bool was_taken(void *context)
{
    int left = 0;
    return ioctl(*(int *)context, SIOCOUTQ, &left) != 0 || left == 0;
}

/* Asks and never reads, until `limit` questions are asked or the coordinator has had enough. Returns how many; each was
 * taken by the coordinator before the next. */
static int ask_without_reading(int fd, enum gms_client_role role, int limit)
{
    for (int asked = 0; asked < limit; asked++) {
        struct gms_message message = question(role, (uint32_t)asked + 10);
        if (gms_channel_send(fd, &message, NULL) != GMS_OK || !eventually(was_taken, &fd, HARNESS_DEADLINE_MS))
            return asked;
    }
    return limit;
}

struct stopped {
    pid_t pid;
    int pidfd;
};

/* A client whose socket is full, with more waiting for it in the coordinator, stopped. */
static struct stopped stop_one(enum gms_client_role role, uint32_t engine)
{
    /* How much is too much? That client is dropped at its bound; this one stays QUEUED below. */
    int fd = cluster_client(&cluster, 0, role, engine);
    assert_true(fd >= 0);
    int most = ask_without_reading(fd, role, MOST);
    gms_fd_close(&fd);
    assert_in_range(most, QUEUED + 1, MOST - 1);

    pid_t parent = getpid();
    struct stopped stopped = {.pid = fork(), .pidfd = -1};
    assert_true(stopped.pid >= 0);
    if (stopped.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fd = getppid() == parent ? cluster_client(&cluster, 0, role, engine) : -1;
        if (fd < 0 || ask_without_reading(fd, role, most - QUEUED) != most - QUEUED)
            _exit(1);
        raise(SIGSTOP);
        _exit(2);
    }
    assert_int_equal(gms_pidfd_open(stopped.pid, &stopped.pidfd, NULL), GMS_OK);
    siginfo_t info = {0};
    assert_int_equal(waitid(P_PID, (id_t)stopped.pid, &info, WSTOPPED | WEXITED), 0);
    assert_int_equal(info.si_code, CLD_STOPPED);
    return stopped;
}

static void end_one(struct stopped *stopped)
{
    gms_pidfd_signal(stopped->pidfd, SIGKILL);
    gms_fd_close(&stopped->pidfd);
    waitpid(stopped->pid, NULL, 0);
}

static void test_stopped_clients(void **state)
{
    static const enum gms_client_role roles[] = {GMS_CLIENT_CONTROL, GMS_CLIENT_ENGINE, GMS_CLIENT_EXEC};
    enum { ROLES = sizeof roles / sizeof roles[0] };
    struct engine engines[2];
    struct stopped stopped[ROLES];
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    engine_start(&engines[0], &cluster, 0, "a", work, 0);
    assert_true(engine_reached(&engines[0], AT_SERVING, HARNESS_DEADLINE_MS));
    engine_start(&engines[1], &cluster, 1, "b", work, 0);
    assert_true(engine_reached(&engines[1], AT_PARKED, HARNESS_DEADLINE_MS));

    uint64_t before_us = median_us(&engines[0]);
    for (uint32_t i = 0; i < ROLES; i++)
        stopped[i] = stop_one(roles[i], 5 + i);
    uint64_t after_us = median_us(&engines[0]);
    fprintf(stderr, "median operation: %llu us, with stopped clients %llu us\n", (unsigned long long)before_us,
            (unsigned long long)after_us);
    assert_true(after_us < 3 * before_us + 20000); /* nobody waits for anything that ends by time */

    engine_kill(&engines[0], 1);
    assert_true(engine_reached(&engines[1], AT_SERVING, HARNESS_DEADLINE_MS));
    assert_int_equal(cluster_log_count(&cluster, "silent"), 0);
    for (uint32_t i = 0; i < ROLES; i++) {
        assert_false(gms_pidfd_ended(stopped[i].pidfd)); /* they were there all the time */
        end_one(&stopped[i]);
    }
    engine_finish(&engines[0]);
    engine_finish(&engines[1]);
    cluster_stop(&cluster);
}

/* What hangs is the engine itself, all ranks of it, in the middle of operations. */
static void test_stopped_engine(void **state)
{
    struct engine engines[2];
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    engine_start(&engines[0], &cluster, 0, "a", work, 0);
    assert_true(engine_reached(&engines[0], AT_SERVING, HARNESS_DEADLINE_MS));
    engine_start(&engines[1], &cluster, 1, "b", work, 0);
    assert_true(engine_reached(&engines[1], AT_PARKED, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        gms_pidfd_signal(engines[0].ranks[rank].pidfd, SIGSTOP);
    struct gms_message order = {.type = GMS_MESSAGE_TAKEOVER, .fds = {-1, -1, -1, -1}};
    uint64_t begin_ns = gms_clock_ns();
    assert_int_equal(cluster_order(&cluster, 2, &order), GMS_OK);
    assert_true(engine_reached(&engines[1], AT_SERVING, HARNESS_DEADLINE_MS));
    fprintf(stderr, "taken over from a stopped engine within %llu ms\n",
            (unsigned long long)((gms_clock_ns() - begin_ns) / GMS_NS_PER_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_false(engine_rank_alive(&engines[0], rank));
    engine_finish(&engines[0]);
    engine_finish(&engines[1]);
    cluster_stop(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stopped_clients),
        cmocka_unit_test(test_stopped_engine),
    };
    return cmocka_run_group_tests_name("coord_stopped", tests, NULL, NULL);
}
