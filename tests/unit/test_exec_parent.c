/* SPDX-License-Identifier: Apache-2.0
 *
 * Reported fault V23: the parent-death signal follows the thread that forked, and is armed some time after the fork.
 * A gms-exec that a thread started which is gone now lives on, with its engine; and a parent that dies before the
 * signal is armed is noticed all the same, by the guardian and by the engine rank.
 */
#include "exec_fake.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/un.h>

static const char *const kinds[] = {"subreaper", "pid-namespace"};
enum { KIND_COUNT = 2 };

struct starting {
    struct bench *bench;
    const char *containment;
};

static void *start_from_a_thread(void *context)
{
    const struct starting *starting = context;
    const char *words[] = {program_path("GMS_TEST_ENGINE", ""), "daemon-exit", NULL};
    const struct start how = {.containment = starting->containment};

    bench_start(starting->bench, &how, words);
    return NULL;
}

static void the_thread_that_started_it_ends(void **state)
{
    struct bench *bench = *state;

    bench_listen(bench);
    for (size_t k = 0; k < KIND_COUNT; k++) {
        struct starting starting = {bench, kinds[k]};
        struct exec_say say;
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, start_from_a_thread, &starting), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        bench_run_engine(bench);
        while (bench->process_count < 2) {
            assert_true(bench_hear(bench, &say));
        }
        assert_int_equal(send(bench->talk, "", 1, MSG_NOSIGNAL), 1); /* it does what it is told, and ends so */
        assert_int_equal(bench_exit_code(bench), 5);
        gms_fd_close(&bench->talk);
        for (; bench->process_count > 0; bench->process_count--) {
            gms_fd_close(&bench->processes[bench->process_count - 1]);
        }
    }
}

/* ---------------------------------------------------------------------------------- between fork and prctl ---- */

struct gate {
    int listener;
    char path[128], hold[160], preload[1100];
    char *environment[4];
};

static void gate_open(struct gate *gate, const struct bench *bench)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(gate->path, sizeof gate->path, "%s/gate", bench->dir);
    snprintf(gate->hold, sizeof gate->hold, "GMS_TEST_HOLD=%s", gate->path);
    snprintf(gate->preload, sizeof gate->preload, "LD_PRELOAD=%s", program_path("GMS_TEST_HOLD_PRCTL", ""));
    gate->environment[0] = gate->hold;
    gate->environment[1] = gate->preload;
    gate->environment[2] = (char *)(uintptr_t) "ASAN_OPTIONS=verify_asan_link_order=0";
    gate->environment[3] = NULL;
    assert_true(strlen(gate->path) < sizeof address.sun_path);
    memcpy(address.sun_path, gate->path, strlen(gate->path) + 1);
    gate->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(gate->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(gate->listener, 8), 0);
}

/* The next process that is about to arm its signal; it waits until the connection is closed. -1: none within the time.
 */
static int gate_next(const struct gate *gate, int timeout_ms, int *ret_pidfd)
{
    struct pollfd ready = {.fd = gate->listener, .events = POLLIN};
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;

    if (poll(&ready, 1, timeout_ms) != 1) {
        return -1;
    }
    int connection = accept4(gate->listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(connection >= 0);
    assert_int_equal(getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes), 0);
    assert_true(peer.pid > 1);
    assert_int_equal(gms_pidfd_open(peer.pid, ret_pidfd, NULL), GMS_OK);
    return connection;
}

static void begin_held(struct bench *bench, struct gate *gate, const char *containment)
{
    bench_listen(bench);
    gate_open(gate, bench);
    const char *words[] = {program_path("GMS_TEST_ENGINE", ""), "stay", NULL};
    const struct start how = {.containment = containment, .environment = gate->environment};
    bench_start(bench, &how, words);
    bench_accept(bench);
    bench_greet(bench, 1);
    bench_give_environment(bench, "", 0);
}

static void end_exec(struct bench *bench)
{
    assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGKILL));
    assert_int_equal(bench_exit_code(bench), -1000 - SIGKILL);
}

/* gms-exec dies while the first process of the namespace has not armed its signal: it ends by itself, before it makes
 * an engine rank. */
static void gms_exec_dies_before_the_guardian_is_armed(void **state)
{
    struct bench *bench = *state;
    struct gate gate;
    int guardian = -1;

    begin_held(bench, &gate, "pid-namespace");
    int held = gate_next(&gate, UNIT_PATIENCE_MS, &guardian);
    assert_true(held >= 0);
    end_exec(bench);
    assert_false(gms_pidfd_ended(guardian)); /* nothing else ends it */
    gms_fd_close(&held);
    assert_true(wait_ended(guardian));
    int nobody = -1;
    assert_int_equal(gate_next(&gate, 0, &nobody), -1);
    gms_fd_close(&guardian);
    gms_fd_close(&gate.listener);
}

/* Its guardian dies (and gms-exec, who would clean up) while the engine rank has not armed its signal: it never runs
 * the command. */
static void the_guardian_dies_before_the_rank_is_armed(void **state)
{
    struct bench *bench = *state;
    struct gate gate;
    struct exec_say say;
    int rank = -1;

    begin_held(bench, &gate, "subreaper");
    int held = gate_next(&gate, UNIT_PATIENCE_MS, &rank);
    assert_true(held >= 0);
    (void)bench_take_container(bench);
    assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGSTOP)); /* it cleans up when the guardian ends */
    assert_true(gms_pidfd_signal(bench->container, SIGKILL));
    assert_true(wait_ended(bench->container));
    end_exec(bench);
    assert_false(gms_pidfd_ended(rank));
    gms_fd_close(&held);
    assert_true(wait_ended(rank));
    /* It said nothing: the other end is closed and no datagram came before. */
    assert_int_equal(recv(bench->talk, &say, sizeof say, 0), 0);
    gms_fd_close(&rank);
    gms_fd_close(&gate.listener);
}

/* In a namespace the kernel ends the rank with the guardian, armed or not. */
static void the_namespace_ends_before_the_rank_is_armed(void **state)
{
    struct bench *bench = *state;
    struct gate gate;
    int guardian = -1, rank = -1;

    begin_held(bench, &gate, "pid-namespace");
    int held = gate_next(&gate, UNIT_PATIENCE_MS, &guardian);
    assert_true(held >= 0);
    gms_fd_close(&held);
    held = gate_next(&gate, UNIT_PATIENCE_MS, &rank);
    assert_true(held >= 0);
    end_exec(bench);
    assert_true(wait_ended(guardian));
    assert_true(wait_ended(rank));
    gms_fd_close(&held);
    gms_fd_close(&guardian);
    gms_fd_close(&rank);
    gms_fd_close(&gate.listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_thread_that_started_it_ends, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(gms_exec_dies_before_the_guardian_is_armed, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(the_guardian_dies_before_the_rank_is_armed, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(the_namespace_ends_before_the_rank_is_armed, bench_setup, bench_teardown),
    };

    prctl(PR_SET_CHILD_SUBREAPER, 1); /* what is left behind comes to us and is seen */
    return cmocka_run_group_tests_name("gms-exec and the death of parents", tests, NULL, NULL);
}
