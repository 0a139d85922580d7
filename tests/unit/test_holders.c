/* SPDX-License-Identifier: Apache-2.0
 * The walk for holders with several threads: whoever has the memory is found, once, whichever thread meets it and
 * wherever it lies; nobody else is; and a walk that is given up leaves nothing behind. */
#include "unit_support.h"

#include <dirent.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "fence/holders.h"
#include "fence/loan.h"

enum { INCARNATION = 77, PAGE = 4096, THREADS = 4, MANY = 200 /* descriptors: several pieces */ };

struct scene {
    struct event_base *base;
    int file, loan;
    struct gms_inode inode;
    pid_t *found;
    size_t count;
    bool done;
};

static int setup(void **state)
{
    struct scene *scene = calloc(1, sizeof *scene);
    scene->base = event_base_new();
    scene->file = memfd_create("directory", MFD_CLOEXEC);
    if (scene->base == NULL || ftruncate(scene->file, PAGE) != 0 || !gms_inode_of(scene->file, &scene->inode) ||
        gms_loan_give(scene->file, INCARNATION, &scene->loan, NULL) != GMS_OK)
        return -1;
    *state = scene;
    return 0;
}

static int teardown(void **state)
{
    struct scene *scene = *state;
    gms_fd_close(&scene->loan);
    gms_fd_close(&scene->file);
    event_base_free(scene->base);
    free(scene->found);
    free(scene);
    return 0;
}

static void on_done(void *context, const struct gms_holder *list, size_t count)
{
    struct scene *scene = context;
    free(scene->found);
    scene->found = calloc(count + 1, sizeof *scene->found);
    scene->count = count;
    scene->done = true;
    for (size_t i = 0; i < count; i++) {
        int pidfd = list[i].pidfd;
        scene->found[i] = list[i].pid;
        gms_fd_close(&pidfd);
    }
}

static struct gms_holders *start(struct scene *scene, size_t threads, const pid_t *dead, size_t dead_count)
{
    struct gms_error error = {0};
    struct gms_holders *walk = NULL;
    const struct gms_holders_options options = {.base = scene->base,
                                                .incarnation = INCARNATION,
                                                .own = &scene->inode,
                                                .own_count = 1,
                                                .dead = dead,
                                                .dead_count = dead_count,
                                                .threads = threads,
                                                .done = on_done,
                                                .context = scene};
    scene->done = false;
    assert_ok(gms_holders_start(&options, &walk, &error));
    return walk;
}

static void walk(struct scene *scene, size_t threads, const pid_t *dead, size_t dead_count)
{
    struct gms_holders *walk = start(scene, threads, dead, dead_count);
    const uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (!scene->done) {
        event_base_loop(scene->base, EVLOOP_NONBLOCK);
        assert_true(gms_clock_ns() < deadline_ns);
    }
    assert_int_equal(gms_holders_at(walk), 0);
    gms_holders_abandon(walk);
}

static bool was_found(const struct scene *scene, pid_t pid)
{
    size_t times = 0;
    for (size_t i = 0; i < scene->count; i++)
        times += scene->found[i] == pid;
    assert_true(times <= 1);
    return times == 1;
}

/* A child with `descriptors` more than it came with, twice as many mappings, and the loan as `place` says. */
enum place { NOWHERE, LOWEST, AMID, HIGHEST, FAR, MAPPED, MAPPED_AMID, MAPPED_LAST, PLACES };

/* `count` mappings of a file of its own, which stay apart; one is of the loan. */
static void map_many(int loan, int count, enum place place)
{
    const int own = memfd_create("pool", MFD_CLOEXEC);
    const int at = place == MAPPED ? 0 : place == MAPPED_AMID ? count / 2 : place == MAPPED_LAST ? count - 1 : -1;
    char *range = mmap(NULL, (size_t)count * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own < 0 || range == MAP_FAILED || ftruncate(own, PAGE) != 0)
        _exit(1);
    for (int i = 0; i < count; i++)
        if (mmap(range + (size_t)i * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, i == at ? loan : own, 0) ==
            MAP_FAILED)
            _exit(1);
    close(own);
}

static void stay(int ready)
{
    (void)!write(ready, "y", 1);
    for (;;)
        pause();
}

/* `live` does not come back: what the child does when it has everything. */
static pid_t child_that(void (*live)(int ready), struct scene *scene, enum place place, int descriptors)
{
    char byte;
    int ready[2], loan = scene->loan;
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid != 0) {
        close(ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    gms_fd_close(&scene->file);
    if (place == LOWEST)
        (void)!dup2(loan, 0);
    map_many(loan, 2 * descriptors, place);
    for (int i = 0; i < descriptors; i++) {
        (void)!open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (place == AMID && i == descriptors / 2)
            (void)!dup(loan);
    }
    if (place == HIGHEST)
        (void)!dup(loan);
    if (place == FAR)
        (void)!dup2(loan, 900);
    close(loan);
    live(ready[1]);
    _exit(1);
}

static pid_t child(struct scene *scene, enum place place, int descriptors)
{
    return child_that(stay, scene, place, descriptors);
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL); /* a child not waited for: the number is its */
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void test_wherever_it_lies(void **state)
{
    struct scene *scene = *state;
    for (int many = 0; many < 2; many++) {
        pid_t children[PLACES];
        for (int place = 0; place < PLACES; place++)
            children[place] = child(scene, place, many ? MANY : 3);
        gms_fd_close(&scene->loan); /* else we are one, but nobody looks at us */
        for (size_t threads = 1; threads <= THREADS; threads++) {
            walk(scene, threads, NULL, 0);
            for (int place = 0; place < PLACES; place++)
                if (was_found(scene, children[place]) != (place != NOWHERE))
                    fail_msg("place %d, %d descriptors, %zu threads: %s", place, many ? MANY : 3, threads,
                             place == NOWHERE ? "found though it has nothing" : "not found");
            assert_int_equal(scene->count, PLACES - 1);
        }
        walk(scene, THREADS, children, PLACES); /* all count as dead */
        assert_int_equal(scene->count, 0);
        for (int place = 0; place < PLACES; place++)
            end(children[place]);
        walk(scene, THREADS, NULL, 0);
        assert_int_equal(scene->count, 0);
        assert_int_equal(gms_loan_give(scene->file, INCARNATION, &scene->loan, NULL), GMS_OK);
    }
}

/* A child whose first thread has ended, and whose number shows nothing any more, is found as any other. */
static void await_end_of_first(void)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", getpid());
    while (strstr(text, ") Z ") == NULL) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = read(fd, text, sizeof text - 1);
        text[got > 0 ? got : 0] = '\0';
        gms_fd_close(&fd);
    }
}

static void *stay_behind(void *ready)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* each thread's own */
    await_end_of_first();
    stay(*(int *)ready);
    return NULL;
}

static void leave_a_thread(int ready)
{
    static int kept;
    pthread_t thread;
    kept = ready;
    if (pthread_create(&thread, NULL, stay_behind, &kept) == 0)
        syscall(SYS_exit, 0); /* this thread only */
}

static void test_first_thread_has_ended(void **state)
{
    struct scene *scene = *state;
    for (int many = 0; many < 2; many++) {
        pid_t children[PLACES];
        for (int place = 0; place < PLACES; place++)
            children[place] = child_that(leave_a_thread, scene, place, many ? MANY : 3);
        gms_fd_close(&scene->loan);
        for (size_t threads = 1; threads <= THREADS; threads += THREADS - 1) {
            walk(scene, threads, NULL, 0);
            for (int place = 0; place < PLACES; place++)
                if (was_found(scene, children[place]) != (place != NOWHERE))
                    fail_msg("place %d, %d descriptors, %zu threads: %s", place, many ? MANY : 3, threads,
                             place == NOWHERE ? "found though it has nothing" : "not found");
            assert_int_equal(scene->count, PLACES - 1);
        }
        for (int place = 0; place < PLACES; place++) {
            assert_int_equal(gms_maps_has(children[place], &scene->inode, 1, GMS_MAPS_SHARED), place >= MAPPED);
            assert_int_equal(gms_maps_has_descriptor(children[place], &scene->inode, 1),
                             place > NOWHERE && place < MAPPED);
            assert_true(gms_maps_may_be_read(children[place]));
            end(children[place]);
            assert_false(gms_maps_may_be_read(children[place]));
            assert_int_equal(errno, ESRCH);
        }
        walk(scene, THREADS, NULL, 0);
        assert_int_equal(scene->count, 0);
        assert_int_equal(gms_loan_give(scene->file, INCARNATION, &scene->loan, NULL), GMS_OK);
    }
}

/* Nor does it help to go on from thread to thread, each of which ends when the next has begun: that is found, or not
 * known, and never nobody. */
static void *go_on(void *unused)
{
    pthread_t next;
    pthread_attr_t attributes;
    const uint64_t until_ns = gms_clock_ns() + 20000;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (gms_clock_ns() < until_ns) {
    }
    while (pthread_create(&next, &attributes, go_on, unused) != 0) {
    }
    pthread_attr_destroy(&attributes);
    return NULL;
}

static void *begin_to_go_on(void *ready)
{
    await_end_of_first();
    (void)!write(*(int *)ready, "y", 1);
    return go_on(NULL);
}

static void go_from_thread_to_thread(int ready)
{
    static int kept;
    pthread_t thread;
    kept = ready;
    if (pthread_create(&thread, NULL, begin_to_go_on, &kept) == 0)
        syscall(SYS_exit, 0);
}

static void test_threads_that_hop(void **state)
{
    struct scene *scene = *state;
    const pid_t pids[] = {child_that(go_from_thread_to_thread, scene, HIGHEST, 3),
                          child_that(go_from_thread_to_thread, scene, MAPPED, MANY)};
    for (size_t i = 0; i < 2; i++) {
        for (int round = 0; round < 20; round++) {
            walk(scene, THREADS, &pids[1 - i], 1);
            assert_true(scene->count > 0);
            for (size_t found = 0; found < scene->count; found++)
                assert_true(scene->found[found] == pids[i] || scene->found[found] == 0);
        }
    }
    end(pids[0]);
    end(pids[1]);
}

/* Every one of many, by as many threads as there are. */
static void test_many(void **state)
{
    enum { HOLDERS = 24 };
    struct scene *scene = *state;
    pid_t children[HOLDERS];
    for (int i = 0; i < HOLDERS; i++)
        children[i] = child(scene, i % 2 == 0 ? MAPPED : HIGHEST, i % 3 == 0 ? MANY : 5);
    for (int round = 0; round < 5; round++) {
        walk(scene, THREADS, children, (size_t)round);
        for (int i = 0; i < HOLDERS; i++)
            assert_int_equal(was_found(scene, children[i]), i >= round);
    }
    for (int i = 0; i < HOLDERS; i++)
        end(children[i]);
}

/* Somebody who forks and ends all the time, and hands the loan from parent to child: it may slip through a look, so the
 * walk finds it or says that it was not everybody; it never says nobody. */
struct hops {
    atomic_bool stop;
    atomic_ulong count;
    uint64_t deadline_ns;
};

static void hop(struct hops *hops)
{
    for (;;) {
        const uint64_t pause_ns = gms_clock_ns() + 100000;
        while (gms_clock_ns() < pause_ns) {
        }
        if (atomic_load(&hops->stop) || gms_clock_ns() > hops->deadline_ns)
            _exit(0);
        const pid_t pid = fork();
        if (pid != 0)
            _exit(pid > 0 ? 0 : 1);
        atomic_fetch_add(&hops->count, 1);
    }
}

static void test_one_that_hops(void **state)
{
    struct scene *scene = *state;
    struct hops *hops = mmap(NULL, sizeof *hops, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int alive[2];
    char byte;
    assert_true(hops != MAP_FAILED);
    hops->deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    assert_int_equal(pipe2(alive, O_CLOEXEC), 0);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    const pid_t first = fork();
    assert_true(first >= 0);
    if (first == 0)
        hop(hops);
    close(alive[1]);
    for (int i = 0; i < 20; i++) {
        walk(scene, THREADS, NULL, 0);
        assert_true(scene->count > 0);
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
    assert_true(atomic_load(&hops->count) > 0);
    atomic_store(&hops->stop, true);
    assert_int_equal(read(alive[0], &byte, 1), 0); /* the last has ended */
    close(alive[0]);
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
    munmap(hops, sizeof *hops);
}

static size_t count_tasks(void)
{
    size_t count = 0;
    DIR *directory = opendir("/proc/self/task");
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static size_t count_descriptors(void)
{
    uint64_t used = 0, limit = 0;
    gms_fd_usage(&used, &limit);
    return (size_t)used;
}

/* Given up at any time, with holders found and not: all threads go, and nothing of theirs stays open. */
static void test_abandoned(void **state)
{
    struct scene *scene = *state;
    const pid_t children[] = {child(scene, HIGHEST, MANY), child(scene, NOWHERE, MANY), child(scene, MAPPED, 3)};
    const size_t tasks = count_tasks(), descriptors = count_descriptors();
    for (int i = 0; i < 60; i++) {
        struct gms_holders *walk = start(scene, THREADS, NULL, 0);
        const uint64_t until_ns = gms_clock_ns() + (uint64_t)i * 40000;
        while (gms_clock_ns() < until_ns)
            (void)gms_holders_at(walk);
        gms_holders_abandon(walk);
        assert_false(scene->done);
    }
    const uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (count_tasks() > tasks || count_descriptors() > descriptors)
        assert_true(gms_clock_ns() < deadline_ns);
    for (size_t i = 0; i < sizeof children / sizeof children[0]; i++)
        end(children[i]);
}

/* Without descriptors of our own nobody can be looked at: that is not nobody. */
static void test_no_descriptors(void **state)
{
    struct scene *scene = *state;
    struct rlimit before, none;
    const pid_t pid = child(scene, HIGHEST, 3);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int fill[64], filled = 0; /* no hole among the numbers, and then two for the walk's own news */
    do {
        fill[filled] = dup(scene->file);
        none = (struct rlimit){(rlim_t)fill[filled] + 1, before.rlim_max};
    } while (count_descriptors() != (size_t)fill[filled++] + 1 && filled < 64);
    none.rlim_cur += 2;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    walk(scene, THREADS, NULL, 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(scene->count, 1);
    assert_int_equal(scene->found[0], 0);
    none.rlim_cur -= 2;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const bool borrows = gms_maps_borrows(pid, &scene->inode, 1, INCARNATION);
    const int descriptors_errno = errno;
    const size_t first = gms_maps_first(pid, &scene->inode, 1, GMS_MAPS_SHARED);
    const int mappings_errno = errno;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_false(borrows);
    assert_int_equal(descriptors_errno, EMFILE);
    assert_int_equal(first, 1);
    assert_int_equal(mappings_errno, EMFILE);
    while (filled > 0)
        gms_fd_close(&fill[--filled]);
    end(pid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_wherever_it_lies, setup, teardown),
        cmocka_unit_test_setup_teardown(test_first_thread_has_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(test_threads_that_hop, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_that_hops, setup, teardown),
        cmocka_unit_test_setup_teardown(test_abandoned, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_descriptors, setup, teardown),
    };
    return cmocka_run_group_tests_name("holders", tests, NULL, NULL);
}
