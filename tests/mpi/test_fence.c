/* SPDX-License-Identifier: Apache-2.0
 *
 * The fence alone, on children of this test: what is killed, and when it is called retired.
 */
#include <event2/event.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "fence.h"
#include "maps.h"

enum { ENGINE = 2, INCARNATION = 77 };
static const struct gms_container nowhere = {.guardian_fd = -1, .engine_fd = -1};

struct fixture {
    struct event_base *base;
    struct gms_fence *fence;
    int retired;
    int file; /* stands for a directory */
};

static void on_retired(void *context, uint32_t engine, uint64_t incarnation)
{
    struct fixture *fixture = context;
    assert_int_equal(engine, ENGINE);
    assert_int_equal(incarnation, INCARNATION);
    fixture->retired++;
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->base = event_base_new();
    fixture->file = memfd_create("directory", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fixture->file, 4096), 0);
    const struct gms_fence_options options = {.base = fixture->base, .retired = on_retired, .context = fixture};
    assert_int_equal(gms_fence_open(&options, &fixture->fence, NULL), GMS_OK);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    gms_fence_close(fixture->fence);
    event_base_free(fixture->base);
    gms_fd_close(&fixture->file);
    free(fixture);
    return 0;
}

/* A child that sleeps; with `file` it maps that. */
static pid_t child(int file, int *ret_pidfd)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60); /* whatever happens to the test */
        if (file >= 0 && mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(gms_pidfd_open(pid, ret_pidfd, NULL), GMS_OK);
    return pid;
}

static void turn_for(struct fixture *fixture, uint64_t ms)
{
    uint64_t deadline_ns = gms_clock_ns() + ms * GMS_NS_PER_MS;
    while (gms_clock_ns() < deadline_ns && fixture->retired == 0)
        event_base_loop(fixture->base, EVLOOP_NONBLOCK);
}

static bool maps(pid_t pid, int file)
{
    struct gms_inode inode;
    return gms_inode_of(file, &inode) && gms_maps_has(pid, &inode, 1, GMS_MAPS_WRITABLE);
}

static void wait_until_mapped(pid_t pid, int file)
{
    uint64_t deadline_ns = gms_clock_ns() + 5 * GMS_NS_PER_S;
    while (!maps(pid, file))
        assert_true(gms_clock_ns() < deadline_ns);
}

static void test_unknown(void **state)
{
    struct fixture *fixture = *state;
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    assert_int_equal(fixture->retired, 1);
}

static void test_plain(void **state)
{
    struct fixture *fixture = *state;
    int pidfd = -1;
    pid_t pid = child(-1, &pidfd);
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &nowhere, NULL), GMS_OK);
    assert_int_equal(gms_fence_look(fixture->fence, INCARNATION, NULL, NULL), GMS_FENCE_LIVE);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION); /* twice changes nothing */
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    assert_int_equal(gms_fence_look(fixture->fence, INCARNATION, NULL, NULL), GMS_FENCE_RETIRED);
    assert_int_equal(waitpid(pid, NULL, 0), pid); /* not reaped by the fence: a zombie is retired */
    gms_fence_forget(fixture->fence, INCARNATION);
    assert_int_equal(gms_fence_look(fixture->fence, INCARNATION, NULL, NULL), GMS_FENCE_UNKNOWN);
    gms_fd_close(&pidfd);
}

/* Somebody else has the incarnation's file mapped: killed as well, and before "retired". */
static void test_holder(void **state)
{
    struct fixture *fixture = *state;
    int pidfd = -1, other = -1, bystander = -1, unrelated = memfd_create("other", MFD_CLOEXEC);
    assert_int_equal(ftruncate(unrelated, 4096), 0);
    pid_t pid = child(fixture->file, &pidfd), holder = child(fixture->file, &other),
          innocent = child(unrelated, &bystander);
    wait_until_mapped(holder, fixture->file);
    wait_until_mapped(innocent, unrelated);
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &nowhere, NULL), GMS_OK);
    gms_fence_add_file(fixture->fence, INCARNATION, fixture->file);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    assert_true(gms_pidfd_ended(other));
    assert_false(gms_pidfd_ended(bystander));
    gms_pidfd_signal(bystander, SIGKILL);
    waitpid(pid, NULL, 0);
    waitpid(holder, NULL, 0);
    waitpid(innocent, NULL, 0);
    gms_fd_close(&pidfd);
    gms_fd_close(&other);
    gms_fd_close(&bystander);
    gms_fd_close(&unrelated);
}

/* A subreaper's guardian is not killed, and until it has ended nothing is retired, however dead the engine rank is. */
static void test_subreaper(void **state)
{
    struct fixture *fixture = *state;
    int pidfd = -1, guardian = -1;
    pid_t pid = child(-1, &pidfd), keeper = child(-1, &guardian);
    const struct gms_container container = {
        .kind = GMS_CONTAINER_SUBREAPER, .guardian_fd = guardian, .engine_fd = pidfd};
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &container, NULL), GMS_OK);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    turn_for(fixture, 300); /* time makes nothing retired */
    assert_int_equal(fixture->retired, 0);
    assert_false(gms_pidfd_ended(guardian));
    gms_pidfd_signal(guardian, SIGKILL); /* the test plays its end */
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    waitpid(keeper, NULL, 0);
    gms_fd_close(&pidfd);
    gms_fd_close(&guardian);
}

/* The init of a PID namespace is killed, and its end alone proves the end. */
static void test_namespace(void **state)
{
    struct fixture *fixture = *state;
    int pidfd = -1, init = -1;
    pid_t pid = child(-1, &pidfd), keeper = child(-1, &init);
    const struct gms_container container = {
        .kind = GMS_CONTAINER_PID_NAMESPACE, .guardian_fd = init, .engine_fd = pidfd};
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &container, NULL), GMS_OK);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    assert_true(gms_pidfd_ended(init));
    waitpid(pid, NULL, 0);
    waitpid(keeper, NULL, 0);
    gms_fd_close(&pidfd);
    gms_fd_close(&init);
}

static void test_maps(void **state)
{
    struct fixture *fixture = *state;
    int pidfd = -1;
    pid_t pid = child(fixture->file, &pidfd);
    wait_until_mapped(pid, fixture->file);
    struct gms_inode inode;
    assert_false(gms_inode_of(-1, &inode));
    assert_true(gms_inode_of(fixture->file, &inode));
    assert_false(gms_maps_has(getpid(), &inode, 1, GMS_MAPS_ANY));
    assert_false(gms_threads_exiting(pid));
    gms_pidfd_signal(pidfd, SIGKILL);
    uint64_t deadline_ns = gms_clock_ns() + 5 * GMS_NS_PER_S;
    while (!gms_pidfd_ended(pidfd))
        assert_true(gms_clock_ns() < deadline_ns);
    assert_true(gms_threads_exiting(pid)); /* a zombie */
    waitpid(pid, NULL, 0);
    assert_true(gms_threads_exiting(pid)); /* nobody */
    gms_fd_close(&pidfd);
}

/* A namespace that ends proves nothing about a rank that does not live in it. */
static void test_foreign_namespace(void **state)
{
    struct fixture *fixture = *state;
    int pidfd = -1, guardian = -1;
    pid_t pid = child(-1, &pidfd), guardian_pid = child(-1, &guardian);
    const struct gms_container container = {GMS_CONTAINER_PID_NAMESPACE, guardian, guardian};
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &container, NULL), GMS_OK);
    gms_pidfd_signal(guardian, SIGKILL);
    assert_int_equal(waitpid(guardian_pid, NULL, 0), guardian_pid);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    assert_true(gms_pidfd_ended(pidfd));
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    gms_fd_close(&pidfd);
    gms_fd_close(&guardian);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_unknown, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_holder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_subreaper, setup, teardown),
        cmocka_unit_test_setup_teardown(test_namespace, setup, teardown),
        cmocka_unit_test_setup_teardown(test_foreign_namespace, setup, teardown),
        cmocka_unit_test_setup_teardown(test_maps, setup, teardown),
    };
    return cmocka_run_group_tests_name("fence", tests, NULL, NULL);
}
