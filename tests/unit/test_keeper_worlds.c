/* SPDX-License-Identifier: Apache-2.0
 *
 * Seats of worlds by themselves, in orders of events that a running keeper meets only now and then.
 */
#include "unit_support.h"

#include <sys/prctl.h>

#include "gms-keeper/worlds.h"

static struct gms_error error;
static struct worlds worlds;

/* A child that waits to be ended, and its pidfd. */
struct process {
    pid_t pid;
    int pidfd;
};

static struct process make_process(void)
{
    struct process process = {.pid = fork(), .pidfd = -1};
    if (process.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    assert_ok(gms_pidfd_open(process.pid, &process.pidfd, &error));
    return process;
}

static void end_process(struct process *process)
{
    kill(process->pid, SIGKILL);
    assert_int_equal(WTERMSIG(unit_wait(process->pid)), SIGKILL);
    gms_fd_close(&process->pidfd);
}

/* Asks for (world, rank 0) on behalf of client number `client`. */
static gms_status ask(const struct process *process, uint64_t world, uint64_t client, struct world_seat **ret_seat,
                      struct world_waiter *ret_displaced)
{
    struct world_waiter waiter = {.client = client, .deadline_ns = 1000, .pidfd = -1};
    int pidfd = fcntl(process->pidfd, F_DUPFD_CLOEXEC, 0);
    gms_status status = worlds_ask(&worlds, world, 0, pidfd, process->pid, &waiter, ret_seat, ret_displaced, &error);
    if (status != GMS_OK && status != GMS_E_AGAIN)
        close(pidfd);
    return status;
}

static void wait_ended(const struct process *process)
{
    struct pollfd end = {.fd = process->pidfd, .events = POLLIN};
    assert_int_equal(poll(&end, 1, UNIT_PATIENCE_MS), 1);
}

static int teardown(void **state)
{
    (void)state;
    worlds_clear(&worlds);
    return 0;
}

/* The older holder has ended, nobody has settled that yet, and a still newer world asks: the one that waits is told,
 * and never gets the seat after the newer one. */
static void test_newer_comes_between_end_and_grant(void **state)
{
    struct process one = make_process(), two = make_process(), three = make_process();
    struct world_seat *seat = NULL;
    struct world_waiter displaced, waiter;
    bool granted = false;
    unsigned fds = unit_open_fds();
    (void)state;

    assert_int_equal(ask(&one, 1, 11, &seat, &displaced), GMS_OK);
    assert_int_equal(ask(&two, 2, 12, &seat, &displaced), GMS_E_AGAIN);
    assert_int_equal(displaced.client, 0);
    wait_ended(&one);
    assert_int_equal(ask(&three, 3, 13, &seat, &displaced), GMS_OK);
    assert_int_equal(displaced.client, 12);
    assert_int_equal(displaced.world, 2);
    assert_false(worlds_settle(seat, UINT64_MAX, &waiter, &granted));
    end_process(&three);
    assert_false(worlds_settle(seat, UINT64_MAX, &waiter, &granted));
    assert_int_equal(seat->world, 3);
    assert_int_equal(ask(&two, 2, 14, &seat, &displaced), GMS_E_FOREIGN_WORLD);
    assert_int_equal(worlds_newest(&worlds), 3);
    assert_int_equal(unit_open_fds(), fds - 1); /* all of the seat's are closed; three's is ours */
    end_process(&one);
    end_process(&two);
}

static void test_grant_follows_the_end(void **state)
{
    struct process one = make_process(), two = make_process();
    struct world_seat *seat = NULL;
    struct world_waiter displaced, waiter;
    bool granted = false;
    (void)state;

    assert_int_equal(ask(&one, 1, 11, &seat, &displaced), GMS_OK);
    uint64_t token = seat->token;
    assert_int_not_equal(token, 0);
    assert_ptr_equal(worlds_holder(&worlds, 1, 0, token), seat);
    assert_int_equal(ask(&two, 2, 12, &seat, &displaced), GMS_E_AGAIN);
    assert_null(worlds_holder(&worlds, 1, 0, token)); /* ended or not, it speaks for nobody */
    assert_int_equal(worlds_deadline(&worlds), 1000);
    wait_ended(&one);
    assert_true(worlds_settle(seat, 0, &waiter, &granted));
    assert_true(granted && waiter.client == 12);
    assert_int_equal(seat->world, 2);
    assert_ptr_equal(worlds_holder(&worlds, 2, 0, seat->token), seat);
    assert_true(worlds_deadline(&worlds) == UINT64_MAX);
    end_process(&one);
    end_process(&two);
}

static void test_overtaken_while_waiting(void **state)
{
    struct process one = make_process(), two = make_process(), three = make_process();
    struct world_seat *seat = NULL;
    struct world_waiter displaced, waiter;
    bool granted = false;
    (void)state;

    assert_int_equal(ask(&one, 1, 11, &seat, &displaced), GMS_OK);
    assert_int_equal(ask(&two, 2, 12, &seat, &displaced), GMS_E_AGAIN);
    gms_status status = ask(&three, 3, 13, &seat, &displaced); /* granted at once where the first has ended already */
    assert_true(status == GMS_E_AGAIN || status == GMS_OK);
    assert_int_equal(displaced.client, 12);
    wait_ended(&one);
    if (status == GMS_E_AGAIN)
        assert_true(worlds_settle(seat, 0, &waiter, &granted) && granted && waiter.client == 13);
    assert_int_equal(seat->world, 3);
    worlds_forget_client(&worlds, 13);
    assert_int_equal(seat->world, 3); /* only what waits is forgotten */
    end_process(&one);
    end_process(&two);
    end_process(&three);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_newer_comes_between_end_and_grant),
        TEST(test_grant_follows_the_end),
        TEST(test_overtaken_while_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
