/* SPDX-License-Identifier: Apache-2.0
 *
 * The fence alone, on children of this test: what is killed, and when it is called retired.
 */
#include <event2/event.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "fence/fence.h"
#include "fence/loan.h"
#include "host/maps.h"
#include "host/threads.h"

enum { ENGINE = 2, INCARNATION = 77 };
static const struct gms_container nowhere = {.guardian_fd = -1, .engine_fd = -1, .exec_fd = -1, .cgroup_fd = -1};

struct fixture {
    struct event_base *base;
    struct gms_fence *fence;
    int retired;
    int file;    /* stands for what is lent */
    bool shared; /* it is a pool, else a directory */
};

static size_t list_lent(void *context, uint64_t incarnation, struct gms_fence_file ret_files[GMS_FENCE_FILES])
{
    const struct fixture *fixture = context;
    (void)incarnation;
    ret_files[0] = (struct gms_fence_file){.fd = fixture->file, .shared = fixture->shared};
    return 1;
}

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
    const struct gms_fence_options options = {
        .base = fixture->base, .lent = list_lent, .retired = on_retired, .context = fixture};
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

static void keep_only(int file)
{
    for (int fd = 3; fd < 256; fd++)
        if (fd != file)
            close(fd);
}

/* A child that sleeps; with `file` it maps that. It keeps no other descriptor of ours but that one. */
static pid_t child(int file, int *ret_pidfd)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60); /* whatever happens to the test */
        keep_only(file);
        if (file >= 0 && mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED)
            _exit(1);
        keep_only(-1);
        for (;;)
            pause();
    }
    assert_int_equal(gms_pidfd_open(pid, ret_pidfd, NULL), GMS_OK);
    return pid;
}

/* A child that has the file open and does not map it. */
static pid_t keeper_of(int file, int *ret_pidfd)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60);
        keep_only(file);
        for (;;)
            pause();
    }
    assert_int_equal(gms_pidfd_open(pid, ret_pidfd, NULL), GMS_OK);
    return pid;
}

static void send_descriptor(int socket, int fd)
{
    char byte = 0;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ancillary = {0};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    assert_int_equal(sendmsg(socket, &message, MSG_NOSIGNAL), 1);
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

/* A process that ends by itself, with 3, when the other end of `ret_gate` is closed. */
static pid_t leaving_child(int *ret_pidfd, int *ret_gate)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char byte;
        close(ends[1]);
        while (read(ends[0], &byte, 1) > 0) {
        }
        _exit(3);
    }
    close(ends[0]);
    *ret_gate = ends[1];
    assert_int_equal(gms_pidfd_open(pid, ret_pidfd, NULL), GMS_OK);
    return pid;
}

/* One that said goodbye ends by itself: it is waited for, and its exit status is its own. */
static void test_leaving(void **state)
{
    struct fixture *fixture = *state;
    int pidfd = -1, gate = -1, status = 0;
    pid_t pid = leaving_child(&pidfd, &gate);
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &nowhere, NULL), GMS_OK);
    gms_fence_start_leaving(fixture->fence, ENGINE, INCARNATION, 20 * GMS_NS_PER_S);
    gms_fence_start_leaving(fixture->fence, ENGINE, INCARNATION, 0); /* too late to say that: it is under way */
    turn_for(fixture, 50);
    assert_int_equal(fixture->retired, 0);
    assert_int_equal(gms_fence_look(fixture->fence, INCARNATION, NULL, NULL), GMS_FENCE_LIVE);
    gms_fd_close(&gate);
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    gms_fd_close(&pidfd);
}

/* One that does not end is killed when its time is over, not before; and at once when it is not a goodbye any more. */
static void test_leaving_too_long(void **state)
{
    struct fixture *fixture = *state;
    for (int ordered = 0; ordered < 2; ordered++) {
        int pidfd = -1, gate = -1, status = 0;
        pid_t pid = leaving_child(&pidfd, &gate);
        uint64_t begin_ns = gms_clock_ns();
        fixture->retired = 0;
        assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &nowhere, NULL), GMS_OK);
        gms_fence_start_leaving(fixture->fence, ENGINE, INCARNATION, ordered ? 20 * GMS_NS_PER_S : 80 * GMS_NS_PER_MS);
        assert_int_equal(fixture->retired, 0);
        if (ordered)
            gms_fence_start(fixture->fence, ENGINE, INCARNATION);
        turn_for(fixture, 5000);
        assert_int_equal(fixture->retired, 1);
        assert_true(ordered || gms_clock_ns() - begin_ns >= 80 * GMS_NS_PER_MS);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        gms_fd_close(&pidfd);
        gms_fd_close(&gate);
        gms_fence_forget(fixture->fence, INCARNATION);
    }
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

/* What the incarnation was lent is in the hands of somebody who is not of its family. */
static void expect_stranger_is_ended(struct fixture *fixture, bool shared, bool keeps_descriptor)
{
    fixture->shared = shared;
    int pidfd = -1, other = -1, bystander = -1, loan = -1, unrelated = memfd_create("other", MFD_CLOEXEC);
    assert_int_equal(ftruncate(unrelated, 4096), 0);
    assert_int_equal(gms_loan_give(fixture->file, INCARNATION, &loan, NULL), GMS_OK);
    pid_t pid = child(loan, &pidfd), holder = keeps_descriptor ? keeper_of(loan, &other) : child(loan, &other),
          innocent = child(unrelated, &bystander);
    wait_until_mapped(pid, fixture->file);
    if (!keeps_descriptor)
        wait_until_mapped(holder, fixture->file);
    wait_until_mapped(innocent, unrelated);
    gms_fd_close(&loan);
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &nowhere, NULL), GMS_OK);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    assert_true(gms_threads_exiting(holder));
    assert_false(gms_pidfd_ended(bystander));
    gms_pidfd_signal(bystander, SIGKILL);
    waitpid(pid, NULL, 0);
    waitpid(holder, NULL, 0);
    waitpid(innocent, NULL, 0);
    assert_true(gms_fence_is_over(fixture->fence, INCARNATION));
    assert_false(gms_loan_is_out(fixture->file, INCARNATION));
    gms_fd_close(&pidfd);
    gms_fd_close(&other);
    gms_fd_close(&bystander);
    gms_fd_close(&unrelated);
}

static void test_holder_of_directory(void **state)
{
    expect_stranger_is_ended(*state, false, false);
}

static void test_holder_of_pool(void **state)
{
    expect_stranger_is_ended(*state, true, false);
}

static void test_holder_of_descriptor(void **state)
{
    expect_stranger_is_ended(*state, true, true);
}

/* Somebody who maps the pool and belongs to a cohort that lives is left alone. */
static void test_other_cohort(void **state)
{
    struct fixture *fixture = *state;
    enum { OTHER = INCARNATION + 1 };
    fixture->shared = true;
    int dead = -1, living = -1, loan = -1, others_loan = -1, guard = -1;
    assert_int_equal(gms_loan_give(fixture->file, INCARNATION, &loan, NULL), GMS_OK);
    assert_int_equal(gms_loan_give(fixture->file, OTHER, &others_loan, NULL), GMS_OK);
    pid_t pid = child(loan, &dead), other = child(others_loan, &living), holder = child(loan, &guard);
    wait_until_mapped(pid, fixture->file);
    wait_until_mapped(other, fixture->file);
    wait_until_mapped(holder, fixture->file);
    gms_fd_close(&loan);
    gms_fd_close(&others_loan);
    for (int i = 0; i < 2; i++) {
        uint64_t incarnation = i == 0 ? INCARNATION : OTHER;
        assert_int_equal(gms_fence_add(fixture->fence, ENGINE, incarnation, i == 0 ? dead : living, &nowhere, NULL),
                         GMS_OK);
    }
    gms_fence_start(fixture->fence, ENGINE, INCARNATION); /* has to walk: `holder` has the loan */
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    assert_true(gms_threads_exiting(holder));
    assert_false(gms_pidfd_ended(living));
    assert_true(gms_loan_is_out(fixture->file, OTHER));
    gms_pidfd_signal(living, SIGKILL);
    waitpid(pid, NULL, 0);
    waitpid(other, NULL, 0);
    waitpid(holder, NULL, 0);
    gms_fd_close(&dead);
    gms_fd_close(&living);
    gms_fd_close(&guard);
}

/* A descriptor that lies in a socket: nobody can be found who has it, and yet somebody may take it out and write. */
static void test_descriptor_in_a_socket(void **state)
{
    struct fixture *fixture = *state;
    int pair[2], loan = -1, pidfd = -1;
    char text[256];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(gms_loan_give(fixture->file, INCARNATION, &loan, NULL), GMS_OK);
    send_descriptor(pair[0], loan);
    gms_fd_close(&loan);
    pid_t pid = child(-1, &pidfd);
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &nowhere, NULL), GMS_OK);
    gms_fd_close(&pair[0]);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    uint64_t deadline_ns = gms_clock_ns() + 5 * GMS_NS_PER_S;
    do {
        turn_for(fixture, 20);
        assert_int_equal(fixture->retired, 0);
        gms_fence_waits_for(fixture->fence, INCARNATION, text, sizeof text);
        assert_true(gms_clock_ns() < deadline_ns);
    } while (strstr(text, "cannot be seen") == NULL);
    gms_fd_close(&pair[1]); /* and it is nowhere any more */
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    gms_fd_close(&pidfd);
}

/* Main thread gone, worker alive: the state is Z, and it writes. */
static void *write_for_ever(void *at)
{
    for (volatile unsigned *place = at;;)
        (*place)++;
    return NULL;
}

static void test_zombie_with_a_thread(void **state)
{
    struct fixture *fixture = *state;
    int pidfd = -1;
    volatile unsigned *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fixture->file, 0);
    assert_true(page != MAP_FAILED);
    pid_t pid = fork();
    if (pid == 0) {
        pthread_t thread;
        alarm(60);
        pthread_create(&thread, NULL, write_for_ever, (void *)page);
        syscall(SYS_exit, 0); /* this thread only */
    }
    assert_int_equal(gms_pidfd_open(pid, &pidfd, NULL), GMS_OK);
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    uint64_t deadline_ns = gms_clock_ns() + 5 * GMS_NS_PER_S;
    while (strstr(text, ") Z ") == NULL) {
        FILE *stream = fopen(path, "re");
        assert_non_null(stream);
        assert_non_null(fgets(text, sizeof text, stream));
        fclose(stream);
        assert_true(gms_clock_ns() < deadline_ns);
    }
    assert_false(gms_pidfd_ended(pidfd));
    assert_false(gms_threads_exiting(pid));
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &nowhere, NULL), GMS_OK);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    unsigned last = *page;
    for (uint64_t until_ns = gms_clock_ns() + 20 * GMS_NS_PER_MS; gms_clock_ns() < until_ns;)
        assert_int_equal(*page, last);
    waitpid(pid, NULL, 0);
    munmap((void *)page, 4096);
    gms_fd_close(&pidfd);
}

/* A guardian that was killed proves nothing: gms-exec's end does, which cleans up then. A cohort has children of its
 * guardian: all are killed, the guardian is not. */
static void test_subreaper(void **state)
{
    struct fixture *fixture = *state;
    int guardian = -1, pair[2], pids[3];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    pid_t keeper = fork();
    if (keeper == 0) {
        alarm(60);
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        int engine = fork();
        if (engine == 0) {
            pid_t middle = fork(); /* double fork: its child comes up to the guardian */
            if (middle == 0) {
                int hidden = fork();
                if (hidden == 0) {
                    setsid();
                    for (;;)
                        pause();
                }
                send(pair[1], &hidden, sizeof hidden, MSG_NOSIGNAL);
                _exit(0);
            }
            for (;;)
                pause();
        }
        send(pair[1], &engine, sizeof engine, MSG_NOSIGNAL);
        for (;;)
            pause(); /* reaps nobody */
    }
    assert_int_equal(gms_pidfd_open(keeper, &guardian, NULL), GMS_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(recv(pair[0], &pids[i], sizeof pids[i], 0), sizeof pids[i]);
    if (gms_parent_of(pids[0]) != keeper) { /* the engine rank first */
        int first = pids[0];
        pids[0] = pids[1];
        pids[1] = first;
    }
    int engine = -1, hidden = -1;
    assert_int_equal(gms_pidfd_open(pids[0], &engine, NULL), GMS_OK);
    assert_int_equal(gms_pidfd_open(pids[1], &hidden, NULL), GMS_OK);
    const struct gms_container container = {
        .kind = GMS_CONTAINER_SUBREAPER, .guardian_fd = guardian, .engine_fd = engine, .exec_fd = -1, .cgroup_fd = -1};
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, engine, &container, NULL), GMS_OK);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    assert_true(gms_threads_exiting(pids[0]));
    assert_true(gms_threads_exiting(pids[1]));
    assert_false(gms_pidfd_ended(guardian)); /* nobody waited for it */
    gms_pidfd_signal(guardian, SIGKILL);
    waitpid(keeper, NULL, 0);
    int *all[] = {&engine, &hidden, &guardian, &pair[0], &pair[1]};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        gms_fd_close(all[i]);
}

static void test_killed_guardian(void **state)
{
    struct fixture *fixture = *state;
    int pidfd = -1, guardian = -1, exec = -1;
    pid_t pid = child(-1, &pidfd), keeper = child(-1, &guardian), executor = child(-1, &exec);
    const struct gms_container container = {
        .kind = GMS_CONTAINER_SUBREAPER, .guardian_fd = guardian, .engine_fd = pidfd, .exec_fd = exec, .cgroup_fd = -1};
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &container, NULL), GMS_OK);
    gms_pidfd_signal(guardian, SIGKILL);
    assert_int_equal(waitpid(keeper, NULL, 0), keeper);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    turn_for(fixture, 300); /* time makes nothing retired */
    assert_int_equal(fixture->retired, 0);
    assert_false(gms_pidfd_ended(exec));
    gms_pidfd_signal(exec, SIGKILL); /* the test plays its end */
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    waitpid(executor, NULL, 0);
    gms_fd_close(&pidfd);
    gms_fd_close(&guardian);
    gms_fd_close(&exec);
}

/* It ended by itself, with nothing left below it: that is enough. */
static void test_guardian_that_has_finished(void **state)
{
    struct fixture *fixture = *state;
    int pidfd = -1, guardian = -1, exec = -1, status;
    pid_t pid = child(-1, &pidfd), executor = child(-1, &exec), keeper = fork();
    if (keeper == 0)
        _exit(0);
    assert_int_equal(gms_pidfd_open(keeper, &guardian, NULL), GMS_OK);
    assert_int_equal(waitpid(keeper, NULL, 0), keeper);
    const struct gms_container container = {
        .kind = GMS_CONTAINER_SUBREAPER, .guardian_fd = guardian, .engine_fd = pidfd, .exec_fd = exec, .cgroup_fd = -1};
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &container, NULL), GMS_OK);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    turn_for(fixture, gms_pidfd_status(guardian, &status) ? 5000 : 100);
    assert_int_equal(fixture->retired, gms_pidfd_status(guardian, &status));
    gms_pidfd_signal(exec, SIGKILL);
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    waitpid(executor, NULL, 0);
    gms_fd_close(&pidfd);
    gms_fd_close(&guardian);
    gms_fd_close(&exec);
}

/* The init of a PID namespace is killed, and its end alone proves the end. */
static void test_namespace(void **state)
{
    struct fixture *fixture = *state;
    int pidfd = -1, init = -1;
    pid_t pid = child(-1, &pidfd), keeper = child(-1, &init);
    const struct gms_container container = {
        .kind = GMS_CONTAINER_PID_NAMESPACE, .guardian_fd = init, .engine_fd = pidfd, .exec_fd = -1, .cgroup_fd = -1};
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &container, NULL), GMS_OK);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    assert_true(gms_threads_exiting(keeper));
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
    const struct gms_container container = {GMS_CONTAINER_PID_NAMESPACE, guardian, guardian, -1, -1};
    assert_int_equal(gms_fence_add(fixture->fence, ENGINE, INCARNATION, pidfd, &container, NULL), GMS_OK);
    gms_pidfd_signal(guardian, SIGKILL);
    assert_int_equal(waitpid(guardian_pid, NULL, 0), guardian_pid);
    gms_fence_start(fixture->fence, ENGINE, INCARNATION);
    turn_for(fixture, 5000);
    assert_int_equal(fixture->retired, 1);
    assert_true(gms_threads_exiting(pid));
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    gms_fd_close(&pidfd);
    gms_fd_close(&guardian);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_unknown, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leaving, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leaving_too_long, setup, teardown),
        cmocka_unit_test_setup_teardown(test_holder_of_directory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_holder_of_pool, setup, teardown),
        cmocka_unit_test_setup_teardown(test_holder_of_descriptor, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_cohort, setup, teardown),
        cmocka_unit_test_setup_teardown(test_descriptor_in_a_socket, setup, teardown),
        cmocka_unit_test_setup_teardown(test_zombie_with_a_thread, setup, teardown),
        cmocka_unit_test_setup_teardown(test_subreaper, setup, teardown),
        cmocka_unit_test_setup_teardown(test_killed_guardian, setup, teardown),
        cmocka_unit_test_setup_teardown(test_guardian_that_has_finished, setup, teardown),
        cmocka_unit_test_setup_teardown(test_namespace, setup, teardown),
        cmocka_unit_test_setup_teardown(test_foreign_namespace, setup, teardown),
        cmocka_unit_test_setup_teardown(test_maps, setup, teardown),
    };
    return cmocka_run_group_tests_name("fence", tests, NULL, NULL);
}
