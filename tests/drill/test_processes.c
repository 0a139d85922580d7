/* SPDX-License-Identifier: Apache-2.0
 * What the drill starts, it ends; what it did not start, it does not touch. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "processes.h"

static struct drill_processes processes;

static struct drill_process *start(const char *script)
{
    struct drill_process *process = NULL;
    struct gms_error error = {0};
    const char *argv[] = {"sh", "-c", script, NULL};
    if (drill_process_start(&processes, "test", "/dev/null", argv, -1, SIGKILL, &process, &error) != GMS_OK)
        fail_msg("%s", error.text);
    return process;
}

static uint64_t soon(void)
{
    return gms_clock_ns() + 10 * GMS_NS_PER_S;
}

static size_t wait_for_descendants(size_t count)
{
    pid_t pids[64];
    uint64_t deadline_ns = soon();
    size_t found;
    do
        found = drill_descendants(getpid(), pids, 64);
    while (found < count && gms_clock_ns() < deadline_ns);
    return found;
}

static int setup(void **state)
{
    (void)state;
    memset(&processes, 0, sizeof processes);
    return drill_processes_prepare(NULL) == GMS_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    drill_processes_end(&processes, 0);
    pid_t pids[4];
    return drill_descendants(getpid(), pids, 4) == 0 ? 0 : -1;
}

static void exit_status(void **state)
{
    (void)state;
    char text[32];
    struct drill_process *one = start("exit 3"), *two = start("kill -9 $$");
    assert_true(drill_process_wait(one, soon()));
    assert_true(drill_process_wait(two, soon()));
    assert_string_equal(drill_process_outcome(one, text, sizeof text), "exit 3");
    assert_string_equal(drill_process_outcome(two, text, sizeof text), "signal 9");
    assert_ptr_equal(drill_processes_check(&processes), one); /* nobody had asked it to end */
    one->asked_to_end = two->asked_to_end = true;
    assert_null(drill_processes_check(&processes));
}

static void cannot_be_executed(void **state)
{
    (void)state;
    struct drill_process *process = NULL;
    struct gms_error error = {0};
    const char *argv[] = {"/nowhere/program", NULL};
    assert_int_equal(drill_process_start(&processes, "x", "/dev/null", argv, -1, SIGKILL, &process, &error),
                     GMS_E_NOT_FOUND);
    assert_non_null(strstr(error.text, "/nowhere/program"));
    assert_int_equal(processes.count, 0);
}

static void own_session_and_descriptors(void **state)
{
    (void)state;
    int pipe_fds[2];
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    struct drill_process *process = NULL;
    char script[256];
    /* Its session is its own, its input is empty, and of our descriptors it has the one that was passed. */
    assert_int_equal(dup2(pipe_fds[0], 200), 200); /* as if we had been born with it */
    snprintf(script, sizeof script,
             "cat; [ -e /proc/$$/fd/200 ] && echo leaked >&%d; set -- $(cat /proc/self/stat); echo $6 >&%d",
             pipe_fds[1], pipe_fds[1]);
    const char *argv[] = {"sh", "-c", script, NULL};
    assert_int_equal(drill_process_start(&processes, "x", "/dev/null", argv, pipe_fds[1], SIGKILL, &process, NULL),
                     GMS_OK);
    pid_t pid = process->pid;
    gms_fd_close(&pipe_fds[1]);
    assert_true(drill_process_wait(process, soon()));
    char text[64] = "", wanted[64];
    assert_true(read(pipe_fds[0], text, sizeof text - 1) > 0);
    snprintf(wanted, sizeof wanted, "%d\n", (int)pid);
    assert_string_equal(text, wanted);
    process->asked_to_end = true;
    close(200);
    gms_fd_close(&pipe_fds[0]);
}

/* A tree that ignores SIGTERM and hides: another session, a grandchild whose parent is gone. */
static void stubborn_tree(void **state)
{
    (void)state;
    struct drill_process *process = start(
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1000 & sleep 1000' & (sleep 1000 &) ; wait; sleep 1000");
    assert_true(wait_for_descendants(5) >= 5);
    drill_process_end(process, 50);
    assert_true(process->ended);
    assert_int_equal(WTERMSIG(process->wait_status), SIGKILL);
    assert_true(drill_processes_end(&processes, 0) >= 1); /* the orphan came to us */
    pid_t pids[8];
    assert_int_equal(drill_descendants(getpid(), pids, 8), 0);
}

static void asked_nicely(void **state)
{
    (void)state;
    struct drill_process *process = start("trap 'exit 7' TERM; while :; do sleep 0.05; done");
    assert_true(wait_for_descendants(2) >= 2); /* the trap is set */
    drill_process_end(process, 5000);
    char text[32];
    assert_string_equal(drill_process_outcome(process, text, sizeof text), "exit 7");
    drill_process_end(process, 5000); /* again: nothing happens */
}

static void strangers(void **state)
{
    (void)state;
    int pidfd = -1;
    struct gms_error error = {0};
    struct drill_process *process = start("sleep 1000");
    assert_int_equal(drill_descendant_open(getpid(), process->pid, &pidfd, &error), GMS_OK);
    gms_fd_close(&pidfd);
    assert_int_equal(drill_descendant_open(process->pid, getpid(), &pidfd, &error), GMS_E_REFUSED);
    assert_non_null(strstr(error.text, "only what it started"));
    static const pid_t others[] = {0, -1, 1};
    for (size_t i = 0; i < 3; i++)
        assert_int_not_equal(drill_descendant_open(getpid(), others[i], &pidfd, &error), GMS_OK);
    assert_int_not_equal(drill_descendant_open(getpid(), getppid(), &pidfd, &error), GMS_OK);
    assert_int_equal(pidfd, -1);
}

static void interruption(void **state)
{
    (void)state;
    assert_false(drill_interrupted());
    raise(SIGTERM);
    assert_true(drill_interrupted());
}

static void who_can_act(void **state)
{
    (void)state;
    siginfo_t end;
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    assert_true(drill_process_acts(getpid()));
    assert_true(drill_process_acts(child));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitid(P_PID, (id_t)child, &end, WEXITED | WNOWAIT), 0);
    assert_false(drill_process_acts(child)); /* it is there still, as a zombie */
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_false(drill_process_acts(child));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(exit_status),   T(cannot_be_executed), T(own_session_and_descriptors),
        T(stubborn_tree), T(asked_nicely),       T(strangers),
        T(who_can_act),   T(interruption),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
