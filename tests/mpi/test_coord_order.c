/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages in the wrong order, in somebody else's name, or with the wrong descriptors, on real coordinators: each is
 * refused in words, and the engine that is told so can go on and serve. Then more idle clients than fit, all greeted,
 * while a takeover runs.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "core/ballot.h"
#include "harness.h"
#include "raw.h"
#include "wire/channel.h"

enum { RANKS = 2, IDLE_CLIENTS = 1000 };
enum { AT_HELD = 1, AT_SERVING, AT_SHADOW };
enum { GATE_READY = 1, GATE_END };

static struct cluster cluster;

/* ------------------------------------------------------------------------------------------ an engine by hand --- */

static gms_status wrong_hellos(struct raw *raw, struct gms_error *error)
{
    int pipe_fds[2], own = -1, first = -1, parent = -1;
    gms_status status = pipe2(pipe_fds, O_CLOEXEC) == 0 ? GMS_OK : GMS_E_SYSTEM;
    if (status == GMS_OK)
        status = gms_pidfd_open(getpid(), &own, error);
    if (status == GMS_OK)
        status = gms_pidfd_open(1, &first, error);
    if (status == GMS_OK)
        status = gms_pidfd_open(getppid(), &parent, error);
    if (status != GMS_OK)
        return status;
    const struct {
        int fds[2];
        uint32_t count;
        gms_status wanted;
    } tries[] = {
        {{-1}, 0, GMS_E_PROTOCOL}, /* missing */
        {{pipe_fds[0]}, 1, GMS_E_PROTOCOL}, {{pipe_fds[1]}, 1, GMS_E_PROTOCOL},
        {{raw->fd}, 1, GMS_E_PROTOCOL},     {{first}, 1, GMS_E_REFUSED}, /* others' */
        {{parent}, 1, GMS_E_REFUSED},
    };
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        RAW_EXPECT(raw_connect(raw, error), GMS_OK);
        RAW_EXPECT(raw_hello(raw, tries[i].fds[0] >= 0 ? tries[i].fds : &raw->fd, tries[i].count), tries[i].wanted);
    }
    RAW_EXPECT(raw_connect(raw, error), GMS_OK);
    RAW_EXPECT(raw_plain(raw, GMS_MESSAGE_PARKED, 1), GMS_E_PROTOCOL); /* before HELLO */
    RAW_EXPECT(raw_connect(raw, error), GMS_OK);
    RAW_EXPECT(raw_hello(raw, &own, 1), GMS_OK);

    struct raw *other = raw_new(raw->rank); /* two sessions of one engine */
    gms_status second = other != NULL ? raw_connect(other, error) : GMS_E_NO_MEMORY;
    if (second == GMS_OK)
        second = raw_hello(other, &own, 1);
    raw_free(other);
    RAW_EXPECT(second, GMS_E_BUSY);
    for (size_t i = 0; i < 2; i++)
        gms_fd_close(&pipe_fds[i]);
    gms_fd_close(&own);
    gms_fd_close(&first);
    gms_fd_close(&parent);
    return GMS_OK;
}

/* One whole life, with everything that does not belong in it tried at each step. */
static gms_status disorder(struct raw *raw, struct gms_error *error)
{
    static const enum gms_message_type plain[] = {GMS_MESSAGE_PARKED, GMS_MESSAGE_READY, GMS_MESSAGE_LEAVING,
                                                  GMS_MESSAGE_STICKY, GMS_MESSAGE_TRANSFER_DISPATCH};
    static const enum gms_operation operations[] = {GMS_OPERATION_ADOPT, GMS_OPERATION_ALLOCATE};
    gms_status status = wrong_hellos(raw, error);
    if (status != GMS_OK)
        return status;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) /* before the join */
        RAW_EXPECT(raw_plain(raw, plain[i], 1), GMS_E_REFUSED);
    RAW_EXPECT(raw_propose(raw, GMS_OPERATION_ADOPT, 1, 1, 0, 0), GMS_E_REFUSED);
    RAW_EXPECT(raw_propose(raw, GMS_OPERATION_RECLAIM, 1, 1, 0, 0), GMS_E_PROTOCOL);
    RAW_EXPECT(raw_propose(raw, GMS_OPERATION_TAKEOVER, 0, 0, 0, 0), GMS_E_PROTOCOL);

    RAW_EXPECT(raw_propose(raw, GMS_OPERATION_JOIN, 0, 0, 0, 0), GMS_OK);
    const uint64_t own = raw->reply.reply.incarnation;
    RAW_EXPECT(raw_propose(raw, GMS_OPERATION_JOIN, 0, 0, 0, 0), GMS_E_STALE);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) { /* another's incarnation, and older ones */
        RAW_EXPECT(raw_plain(raw, plain[i], own + 1), GMS_E_STALE);
        RAW_EXPECT(raw_plain(raw, plain[i], own - 1), GMS_E_STALE);
    }
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        if (operations[i] == GMS_OPERATION_ALLOCATE) /* without a name */
            RAW_EXPECT(raw_propose(raw, operations[i], own, 1, 0, 0), GMS_E_INVALID);
        else
            RAW_EXPECT(raw_propose(raw, operations[i], own + 1, 1, 0, 0), GMS_E_STALE);
    }
    /* Agreed on as one thing, done as another: on this rank alone the pool would have more slots. */
    struct gms_message allocate = {.type = GMS_MESSAGE_PROPOSE};
    allocate.propose.kind = GMS_OPERATION_ALLOCATE;
    allocate.propose.incarnation = own;
    allocate.propose.sequence = 1;
    allocate.propose.pool = (struct gms_bytes){"kv", 2};
    allocate.propose.pool_kind = GMS_POOL_KV;
    allocate.propose.slot_count = 8 + raw->rank->rank;
    allocate.propose.block_bytes = 4096;
    allocate.propose.fields[0] = XXH3_64bits("kv", 2);
    allocate.propose.fields[1] = GMS_POOL_KV;
    allocate.propose.fields[2] = 20;
    allocate.propose.fields[3] = 4096;
    RAW_EXPECT(raw_ask(raw, &allocate), GMS_E_PROTOCOL);
    RAW_EXPECT(raw_plain(raw, GMS_MESSAGE_READY, own), GMS_E_REFUSED);               /* before the promotion */
    RAW_EXPECT(raw_propose(raw, GMS_OPERATION_ADOPT, own, 7, 0, 0), GMS_E_PROTOCOL); /* number 7 is not next */
    RAW_EXPECT(raw_propose(raw, GMS_OPERATION_ADOPT, own, 1, 0, 0), GMS_E_REFUSED);  /* before the promotion */

    rank_at(raw->rank, AT_HELD);
    RAW_EXPECT(raw_plain(raw, GMS_MESSAGE_PARKED, own), GMS_OK);
    struct gms_message promote = {0};
    uint64_t deadline_ns = gms_clock_ns() + 10 * GMS_NS_PER_S;
    while (promote.type != GMS_MESSAGE_PROMOTE)
        RAW_EXPECT(gms_channel_receive_until(raw->fd, raw->buffer, deadline_ns, &promote, error), GMS_OK);
    RAW_EXPECT(raw_plain(raw, GMS_MESSAGE_PARKED, own), GMS_OK);       /* parked twice is nothing */
    RAW_EXPECT(raw_plain(raw, GMS_MESSAGE_READY, own), GMS_E_REFUSED); /* before the adoption */
    RAW_EXPECT(raw_propose(raw, GMS_OPERATION_ADOPT, own, 2, promote.promote.epoch + 1, 0), GMS_E_STALE);
    RAW_EXPECT(raw_propose(raw, GMS_OPERATION_ADOPT, own, 3, promote.promote.epoch, promote.promote.source), GMS_OK);
    RAW_EXPECT(raw_propose(raw, GMS_OPERATION_ADOPT, own, 4, promote.promote.epoch, promote.promote.source),
               GMS_E_REFUSED);
    RAW_EXPECT(raw_plain(raw, GMS_MESSAGE_READY, own), GMS_OK);
    rank_at(raw->rank, AT_SERVING);
    rank_gate(raw->rank, GATE_READY);
    RAW_EXPECT(raw_plain(raw, GMS_MESSAGE_READY, own), GMS_E_REFUSED); /* it serves already */
    RAW_EXPECT(raw_propose(raw, GMS_OPERATION_ADOPT, own, 5, promote.promote.epoch, own), GMS_E_REFUSED);
    rank_at(raw->rank, AT_SHADOW);
    rank_gate(raw->rank, GATE_END);
    return GMS_OK;
}

static gms_status disordered_engine(struct engine_rank *rank, struct gms_error *error)
{
    struct raw *raw = raw_new(rank);
    if (raw == NULL)
        return gms_fail(error, GMS_E_NO_MEMORY, "no memory");
    gms_status status = disorder(raw, error);
    raw_free(raw);
    return status;
}

static void test_engine(void **state)
{
    struct engine engine;
    (void)state;
    engine_start(&engine, &cluster, 0, "disorder", disordered_engine, 0);
    assert_true(engine_reached(&engine, AT_SERVING, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(cluster_number(&cluster, rank, "serving_engine"), 0);
    engine_go(&engine, GATE_READY);
    assert_true(engine_reached(&engine, AT_SHADOW, HARNESS_DEADLINE_MS));
    engine_go(&engine, GATE_END);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    engine_finish(&engine);
}

/* ------------------------------------------------------------------------------------------------ containers ---- */

struct offer {
    uint32_t exec_engine, engine;
    uint32_t kind;
    int fds[2];
    uint32_t fd_count;
};

/* One CONTAINER over a fresh session of gms-exec; what it is answered. *ret_fd keeps the session when not NULL. */
static gms_status offer(const char *launch, const struct offer *offered)
{
    char path[GMS_RUN_PATH_BYTES];
    static uint8_t buffer[GMS_WIRE_MAX_BYTES];
    struct gms_message hello = {.type = GMS_MESSAGE_HELLO, .request_id = 1}, reply;
    struct gms_message container = {.type = GMS_MESSAGE_CONTAINER, .request_id = 2, .fd_count = offered->fd_count};
    uint64_t deadline_ns = gms_clock_ns() + 5 * GMS_NS_PER_S;
    int fd = -1;
    hello.hello.role = GMS_CLIENT_EXEC;
    hello.hello.engine_id = offered->exec_engine;
    hello.hello.launch = (struct gms_bytes){launch, (uint32_t)strlen(launch)};
    container.container.kind = offered->kind;
    container.container.engine_id = offered->engine;
    for (uint32_t i = 0; i < offered->fd_count; i++)
        container.fds[i] = offered->fds[i];
    assert_int_equal(gms_run_dir_path(cluster.run_dir, "c", 0, path, NULL), GMS_OK);
    assert_int_equal(gms_channel_connect(path, 2000, &fd, NULL), GMS_OK);
    assert_int_equal(gms_channel_send_until(fd, &hello, deadline_ns, NULL), GMS_OK);
    assert_int_equal(gms_channel_receive_until(fd, buffer, deadline_ns, &reply, NULL), GMS_OK);
    assert_int_equal(reply.type, GMS_MESSAGE_WELCOME);
    assert_int_equal(gms_channel_send_until(fd, &container, deadline_ns, NULL), GMS_OK);
    assert_int_equal(gms_channel_receive_until(fd, buffer, deadline_ns, &reply, NULL), GMS_OK);
    assert_int_equal(reply.type, GMS_MESSAGE_REPLY);
    gms_fd_close(&fd);
    return (gms_status)reply.reply.status;
}

/* A process that waits for its parent's end, or to be killed. */
static pid_t sleeper(int *ret_pidfd)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char byte;
        close(ends[1]);
        (void)!read(ends[0], &byte, 1);
        _exit(0);
    }
    close(ends[0]); /* the other end stays open until this process ends */
    assert_int_equal(gms_pidfd_open(pid, ret_pidfd, NULL), GMS_OK);
    return pid;
}

static void end_sleeper(pid_t pid, int *pidfd)
{
    gms_pidfd_signal(*pidfd, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    gms_fd_close(pidfd);
}

/* Opens a session under a launch and says whether it was welcomed. */
static gms_status open_as(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    if (rank->rank != 0)
        return GMS_OK;
    gms_status status = rank_open(rank, &session, error);
    gms_close(session);
    return status;
}

static gms_status opened_as(const char *launch)
{
    struct engine engine;
    engine_start(&engine, &cluster, 5, launch, open_as, 0);
    assert_true(engine_wait_end(&engine, HARNESS_DEADLINE_MS));
    gms_status status = engine.ranks[0].status;
    engine_finish(&engine);
    return status;
}

static void test_containers(void **state)
{
    int pipe_fds[2], guardian = -1, engine = -1, other = -1, coordinator = cluster_coordinator(&cluster, 0);
    (void)state;
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    assert_true(coordinator >= 0);
    pid_t guardian_pid = sleeper(&guardian), engine_pid = sleeper(&engine), other_pid = sleeper(&other);
    const struct {
        struct offer offer;
        gms_status wanted;
    } tries[] = {
        {{5, 4, GMS_CONTAINER_SUBREAPER, {guardian, engine}, 2}, GMS_E_PROTOCOL}, /* somebody else's engine */
        {{5, 5, 9, {guardian, engine}, 2}, GMS_E_PROTOCOL},
        {{5, 5, GMS_CONTAINER_SUBREAPER, {guardian, -1}, 1}, GMS_E_PROTOCOL},
        {{5, 5, GMS_CONTAINER_SUBREAPER, {-1, -1}, 0}, GMS_E_PROTOCOL},
        {{5, 5, GMS_CONTAINER_PID_NAMESPACE, {pipe_fds[0], engine}, 2}, GMS_E_PROTOCOL},
        {{5, 5, GMS_CONTAINER_PID_NAMESPACE, {guardian, pipe_fds[1]}, 2}, GMS_E_PROTOCOL},
        {{5, 5, GMS_CONTAINER_PID_NAMESPACE, {coordinator, engine}, 2}, GMS_E_INVALID},
        {{5, 5, GMS_CONTAINER_PID_NAMESPACE, {guardian, coordinator}, 2}, GMS_E_INVALID},
        {{5, 5, GMS_CONTAINER_SUBREAPER, {guardian, engine}, 2}, GMS_OK},
        {{5, 5, GMS_CONTAINER_SUBREAPER, {guardian, engine}, 2}, GMS_OK}, /* said twice */
    };
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        gms_status got = offer("first", &tries[i].offer);
        if (got != tries[i].wanted)
            fail_msg("offer %zu: %s, not %s", i, gms_status_name(got), gms_status_name(tries[i].wanted));
    }
    /* Two launches of one engine: the second must not get between the first's container and the first's rank. */
    const struct offer second = {5, 5, GMS_CONTAINER_SUBREAPER, {other, other}, 2};
    assert_int_equal(offer("second", &second), GMS_E_BUSY);
    assert_int_equal(opened_as("second"), GMS_E_BUSY);
    end_sleeper(guardian_pid, &guardian);
    assert_int_equal(offer("second", &second), GMS_OK);
    assert_int_equal(opened_as("first"), GMS_E_BUSY);
    assert_int_equal(opened_as("second"), GMS_OK);
    end_sleeper(other_pid, &other);
    end_sleeper(engine_pid, &engine);
    const struct offer dead = {5, 5, GMS_CONTAINER_SUBREAPER, {pipe_fds[0], pipe_fds[0]}, 2};
    assert_int_equal(offer("third", &dead), GMS_E_PROTOCOL);
    for (size_t i = 0; i < 2; i++)
        gms_fd_close(&pipe_fds[i]);
    gms_fd_close(&coordinator);
}

/* ------------------------------------------------------------------------------------------ idle, but greeted --- */

static gms_status server(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    gms_pool *kv = NULL;
    struct gms_membership membership;
    struct gms_adoption adoption;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status == GMS_OK)
        status = rank_attach_kv(session, HARNESS_SLOTS, &kv, error);
    if (status == GMS_OK)
        status = gms_park(session, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_HELD);
    status = rank_serve(session, "here", &adoption, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    rank_gate(rank, GATE_END);
    gms_close(session);
    return GMS_OK;
}

static void test_idle_clients(void **state)
{
    static int fds[IDLE_CLIENTS];
    struct engine first, shadow, late;
    (void)state;
    gms_fd_raise_limit();
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < IDLE_CLIENTS + 64) {
        fprintf(stderr, "skipped: %llu descriptors are too few\n", (unsigned long long)limit.rlim_cur);
        skip();
    }
    engine_start(&first, &cluster, 1, "idle-1", server, 0);
    assert_true(engine_reached(&first, AT_SERVING, HARNESS_DEADLINE_MS));
    engine_start(&shadow, &cluster, 2, "idle-2", server, 0);
    assert_true(engine_reached(&shadow, AT_HELD, HARNESS_DEADLINE_MS));
    for (int i = 0; i < IDLE_CLIENTS; i++) {
        if (i == IDLE_CLIENTS / 2)
            engine_kill(&first, 0);
        fds[i] = cluster_client(&cluster, 0, i % 2 == 0 ? GMS_CLIENT_CONTROL : GMS_CLIENT_EXEC, 7);
        assert_true(fds[i] >= 0);
    }
    assert_true(engine_reached(&shadow, AT_SERVING, HARNESS_DEADLINE_MS));
    engine_start(&late, &cluster, 3, "idle-3", server, 0); /* and a newcomer finds room */
    assert_true(engine_reached(&late, AT_HELD, HARNESS_DEADLINE_MS));
    for (int i = 0; i < IDLE_CLIENTS; i++)
        gms_fd_close(&fds[i]);
    engine_finish(&first);
    engine_finish(&shadow);
    assert_true(engine_reached(&late, AT_SERVING, HARNESS_DEADLINE_MS));
    engine_go(&late, GATE_END);
    assert_true(engine_wait_end(&late, HARNESS_DEADLINE_MS));
    engine_finish(&late);
}

static int setup(void **state)
{
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    cluster_stop(&cluster);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_engine, setup, teardown),
        cmocka_unit_test_setup_teardown(test_containers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_idle_clients, setup, teardown),
    };
    return cmocka_run_group_tests_name("coord_order", tests, NULL, NULL);
}
