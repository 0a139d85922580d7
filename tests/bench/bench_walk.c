/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fence's look for holders of a dead cohort's memory costs: a walk over all processes of the machine
 * (coord/fence/holders.h). Makes a host with engines on it, processes with many descriptors and many shared mappings,
 * and walks; --as-it-is walks over the machine as it stands.
 *
 *   bench_walk [--processes N] [--descriptors N] [--mappings N] [--fresh N] [OPTIONS]
 *   bench_walk --as-it-is [OPTIONS]
 *   OPTIONS: [--rounds N] [--threads N] [--coordinators N]
 *
 * Prints how many there are of everything; the time of the parts and of whole walks, least and median over the rounds,
 * the plain walk (plain_walk.h) beside ours in each; and the same for processes that nobody has looked at before, which
 * are made anew for each of --fresh rounds: the kernel remembers what was looked at. (--as-it-is has the first walk for
 * that.) --coordinators: so many processes walk at the same time, as on a host with so many ranks, and the slowest
 * counts. All walks find nobody, and in the end one finds a process that has the memory; exit status 1: not so.
 */
#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "fence/holders.h"
#include "fence/loan.h"
#include "host/processes.h"
#include "plain_walk.h"

enum { MOST_PROCESSES = 1024, MOST_COORDINATORS = 64, INCARNATION = 77, PAGE = 4096 };

struct stage {
    long processes, descriptors, mappings;
    pid_t pids[MOST_PROCESSES];
    int file; /* the dead cohort's directory */
    pid_t dead;
    struct event_base *base;
    size_t threads;    /* 0: as many as the fence takes */
    size_t found;      /* by the last walk */
    long coordinators; /* that walk at the same time, this one too */
    struct coordinator {
        pid_t pid;
        int orders, answers;
    } others[MOST_COORDINATORS];
};

struct samples {
    double *us;
    size_t count;
};

static _Noreturn void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* ----------------------------------------------------------------------------------------------- the host ------ */

/* A child that says through `ready` when it has what it is to have. */
static pid_t start_child(int file, long descriptors, long mappings, int ready)
{
    const pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    const int own = memfd_create("pool", MFD_CLOEXEC);
    const size_t bytes = 2 * PAGE * (size_t)(mappings + 1);
    bool whole = own >= 0 && ftruncate(own, (off_t)bytes) == 0;
    if (file >= 0)
        whole = whole && mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) != MAP_FAILED;
    for (long i = 0; i < descriptors && whole; i++)
        whole = open("/dev/null", O_RDWR | O_CLOEXEC) >= 0;
    char *range = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (long i = 0; i < mappings && whole; i++) /* every other page, so that they stay apart */
        whole = mmap(range + 2 * PAGE * i, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, own,
                     (off_t)(2 * PAGE * i)) != MAP_FAILED;
    if (write(ready, whole ? "y" : "n", 1) != 1 || !whole)
        _exit(1);
    close(ready);
    for (;;)
        pause();
}

static void end_child(pid_t pid)
{
    if (pid > 0) {
        kill(pid, SIGKILL); /* our own child, not waited for yet: the number is its */
        waitpid(pid, NULL, 0);
    }
}

static void make_processes(struct stage *stage)
{
    int ends[2];
    char byte;
    if (pipe2(ends, O_CLOEXEC) != 0)
        fail("pipe");
    for (long i = 0; i < stage->processes; i++)
        if ((stage->pids[i] = start_child(-1, stage->descriptors, stage->mappings, ends[1])) < 0)
            fail("fork");
    close(ends[1]);
    for (long i = 0; i < stage->processes; i++)
        if (read(ends[0], &byte, 1) != 1 || byte != 'y')
            fail("a process could not get its descriptors and mappings (ulimit -n, vm.max_map_count)");
    close(ends[0]);
}

static void end_processes(struct stage *stage)
{
    for (long i = 0; i < stage->processes; i++)
        end_child(stage->pids[i]);
}

/* The cohort: a process that has what was lent, and that counts as dead. */
static void make_dead(struct stage *stage)
{
    int ends[2], loan = -1;
    char byte;
    struct gms_error error;
    stage->file = memfd_create("directory", MFD_CLOEXEC);
    if (stage->file < 0 || ftruncate(stage->file, PAGE) != 0 || pipe2(ends, O_CLOEXEC) != 0)
        fail("the dead cohort's directory");
    if (gms_loan_give(stage->file, INCARNATION, &loan, &error) != GMS_OK) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    stage->dead = start_child(loan, 0, 0, ends[1]);
    close(ends[1]);
    close(loan);
    if (read(ends[0], &byte, 1) != 1 || byte != 'y')
        fail("the dead cohort's process");
    close(ends[0]);
}

/* ---------------------------------------------------------------------------------------------- the walks ------ */

static void on_done(void *context, const struct gms_holder *list, size_t count)
{
    struct stage *stage = context;
    stage->found = count;
    for (size_t i = 0; i < count; i++) {
        int pidfd = list[i].pidfd;
        gms_fd_close(&pidfd);
    }
    event_base_loopbreak(stage->base);
}

static double walk_us(struct stage *stage, size_t dead_count)
{
    struct gms_inode inode;
    struct gms_error error;
    struct gms_holders *walk = NULL;
    if (!gms_inode_of(stage->file, &inode))
        fail("the dead cohort's directory");
    const struct gms_holders_options options = {.base = stage->base,
                                                .incarnation = INCARNATION,
                                                .own = &inode,
                                                .own_count = 1,
                                                .dead = &stage->dead,
                                                .dead_count = dead_count,
                                                .threads = stage->threads,
                                                .done = on_done,
                                                .context = stage};
    const uint64_t begin_ns = gms_clock_ns();
    if (gms_holders_start(&options, &walk, &error) != GMS_OK) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    event_base_dispatch(stage->base);
    const double us = (double)(gms_clock_ns() - begin_ns) / 1e3;
    gms_holders_abandon(walk);
    return us;
}

static double whole_walk_us(struct stage *stage)
{
    const double us = walk_us(stage, 1);
    if (stage->found != 0) {
        fprintf(stderr, "a walk found %zu holders where there is none\n", stage->found);
        exit(1);
    }
    return us;
}

struct parts {
    double list_us, descriptors_us, mappings_us;
};

static struct parts time_parts(struct stage *stage)
{
    struct gms_processes processes;
    struct gms_inode inode = {0};
    struct parts parts;
    (void)gms_inode_of(stage->file, &inode);
    uint64_t begin_ns = gms_clock_ns();
    gms_processes_begin(&processes);
    if (!gms_processes_list(&processes))
        fail("/proc");
    parts.list_us = (double)(gms_clock_ns() - begin_ns) / 1e3;
    begin_ns = gms_clock_ns();
    for (size_t i = 0; i < processes.count; i++)
        if (processes.list[i] != getpid() && processes.list[i] != stage->dead)
            (void)gms_maps_borrows(processes.list[i], &inode, 1, INCARNATION);
    parts.descriptors_us = (double)(gms_clock_ns() - begin_ns) / 1e3;
    begin_ns = gms_clock_ns();
    for (size_t i = 0; i < processes.count; i++)
        if (processes.list[i] != getpid() && processes.list[i] != stage->dead)
            (void)gms_maps_first(processes.list[i], &inode, 1, GMS_MAPS_SHARED);
    parts.mappings_us = (double)(gms_clock_ns() - begin_ns) / 1e3;
    gms_processes_end(&processes);
    return parts;
}

/* ----------------------------------------------------------------------------------------------- figures ------- */

/* All threads of this process. */
static double cpu_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int by_value(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void add(struct samples *samples, double us)
{
    samples->us[samples->count++] = us;
}

/* Returns the median. */
static double print(const char *what, struct samples *samples)
{
    qsort(samples->us, samples->count, sizeof *samples->us, by_value);
    const double median = samples->us[samples->count / 2];
    printf("  %-44s median %8.0f us, least %8.0f, most %8.0f\n", what, median, samples->us[0],
           samples->us[samples->count - 1]);
    samples->count = 0;
    return median;
}

enum {
    OURS,
    PLAIN,
    OURS_CPU,
    PLAIN_CPU,
    LIST,
    DESCRIPTORS,
    MAPPINGS,
    PLAIN_LIST,
    PLAIN_DESCRIPTORS,
    PLAIN_MAPPINGS,
    MEASURES
};

enum order { ORDER_WALK = 'w', ORDER_PLAIN = 'p' };

static double walk_as_ordered(struct stage *stage, char order, struct plain_walk *ret_plain)
{
    if (order == ORDER_WALK)
        return whole_walk_us(stage);
    const uint64_t begin_ns = gms_clock_ns();
    plain_walk(ret_plain);
    return (double)(gms_clock_ns() - begin_ns) / 1e3;
}

/* Another coordinator of the host: walks when it is told to, until nobody is there to tell it. */
static _Noreturn void be_coordinator(struct stage *stage, int orders, int answers)
{
    struct plain_walk plain;
    char order;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if ((stage->base = event_base_new()) == NULL)
        _exit(1);
    while (read(orders, &order, 1) == 1) {
        const double us = walk_as_ordered(stage, order, &plain);
        if (write(answers, &us, sizeof us) != sizeof us)
            break;
    }
    _exit(0);
}

static void make_coordinators(struct stage *stage)
{
    for (long i = 0; i < stage->coordinators - 1; i++) {
        int orders[2], answers[2];
        if (pipe2(orders, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0)
            fail("pipe");
        const pid_t pid = fork();
        if (pid < 0)
            fail("fork");
        if (pid == 0) {
            close(orders[1]);
            be_coordinator(stage, orders[0], answers[1]);
        }
        close(orders[0]);
        close(answers[1]);
        stage->others[i] = (struct coordinator){pid, orders[1], answers[0]};
    }
}

static void end_coordinators(struct stage *stage)
{
    for (long i = 0; i < stage->coordinators - 1; i++) {
        end_child(stage->others[i].pid);
        close(stage->others[i].orders);
        close(stage->others[i].answers);
    }
}

/* All coordinators at the same time; the slowest counts. */
static double walk_together(struct stage *stage, char order, struct plain_walk *ret_plain)
{
    for (long i = 0; i < stage->coordinators - 1; i++)
        if (write(stage->others[i].orders, &order, 1) != 1)
            fail("an order to a coordinator");
    double slowest = walk_as_ordered(stage, order, ret_plain), us;
    for (long i = 0; i < stage->coordinators - 1; i++) {
        if (read(stage->others[i].answers, &us, sizeof us) != sizeof us)
            fail("the answer of a coordinator");
        slowest = us > slowest ? us : slowest;
    }
    return slowest;
}

static void measure_ours(struct stage *stage, struct samples *all)
{
    struct plain_walk none;
    const double begin_us = cpu_us();
    add(&all[OURS], walk_together(stage, ORDER_WALK, &none));
    add(&all[OURS_CPU], cpu_us() - begin_us);
}

static void measure_plain(struct stage *stage, struct samples *all, struct plain_walk *ret_plain)
{
    const double begin_us = cpu_us();
    add(&all[PLAIN], walk_together(stage, ORDER_PLAIN, ret_plain));
    add(&all[PLAIN_CPU], cpu_us() - begin_us);
}

static void one_round(struct stage *stage, struct samples *all, struct plain_walk *ret_plain)
{
    measure_ours(stage, all);
    measure_plain(stage, all, ret_plain);
    const struct parts parts = time_parts(stage);
    add(&all[LIST], parts.list_us);
    add(&all[DESCRIPTORS], parts.descriptors_us);
    add(&all[MAPPINGS], parts.mappings_us);
    add(&all[PLAIN_LIST], ret_plain->list_us);
    add(&all[PLAIN_DESCRIPTORS], ret_plain->descriptors_us);
    add(&all[PLAIN_MAPPINGS], ret_plain->mappings_us);
}

static void print_counts(const struct plain_walk *plain)
{
    printf("%zu processes (%zu threads of the kernel left out), %zu descriptors (%zu of memory files), %zu shared "
           "mappings of files\n",
           plain->processes, plain->kernel_threads, plain->descriptors, plain->memory_files, plain->mappings);
}

static void print_walks(const char *when, struct samples *all)
{
    printf("%s\n", when);
    const double ours = print("the fence's walk", &all[OURS]), plain = print("the plain walk", &all[PLAIN]);
    const double ours_cpu = print("the fence's walk, processor time", &all[OURS_CPU]);
    const double plain_cpu = print("the plain walk, processor time", &all[PLAIN_CPU]);
    printf("  plain / fence's: %.2f (processor time %.2f)\n", plain / ours, plain_cpu / ours_cpu);
}

static void print_parts(struct samples *all)
{
    printf("parts, by one thread, seen before\n");
    print("listing /proc without the kernel's threads", &all[LIST]);
    print("descriptors", &all[DESCRIPTORS]);
    print("mappings", &all[MAPPINGS]);
    print("plain: listing /proc, the kernel's threads", &all[PLAIN_LIST]);
    print("plain: descriptors", &all[PLAIN_DESCRIPTORS]);
    print("plain: mappings", &all[PLAIN_MAPPINGS]);
}

static void measure(struct stage *stage, long rounds, long fresh)
{
    struct samples all[MEASURES];
    struct plain_walk plain;
    for (size_t i = 0; i < MEASURES; i++) {
        all[i] = (struct samples){.us = calloc((size_t)(rounds + fresh + 1), sizeof(double))};
        if (all[i].us == NULL)
            fail("memory for samples");
    }
    printf("first walk: %.0f us\n", whole_walk_us(stage));
    for (long i = 0; i < rounds; i++)
        one_round(stage, all, &plain);
    print_counts(&plain);
    print_walks("seen before", all);
    print_parts(all);
    for (long i = 0; i < fresh; i++) {
        end_processes(stage);
        make_processes(stage);
        measure_ours(stage, all);
        end_processes(stage);
        make_processes(stage);
        measure_plain(stage, all, &plain);
    }
    if (fresh > 0)
        print_walks("never seen before", all);
    for (size_t i = 0; i < MEASURES; i++)
        free(all[i].us);
}

static long number(const char *text, long most)
{
    char *end = NULL;
    const long value = text != NULL ? strtol(text, &end, 10) : -1;
    if (value < 0 || end == text || *end != '\0' || value > most) {
        fprintf(stderr, "bench_walk: need a number from 0 to %ld, not \"%s\"\n", most, text != NULL ? text : "");
        exit(64);
    }
    return value;
}

int main(int argc, char **argv)
{
    static struct stage stage = {.processes = 20, .descriptors = 300, .mappings = 1000};
    long rounds = 15, fresh = 5;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--processes") == 0)
            stage.processes = number(argv[++i], MOST_PROCESSES);
        else if (strcmp(argv[i], "--descriptors") == 0)
            stage.descriptors = number(argv[++i], 100000);
        else if (strcmp(argv[i], "--mappings") == 0)
            stage.mappings = number(argv[++i], 60000);
        else if (strcmp(argv[i], "--threads") == 0)
            stage.threads = (size_t)number(argv[++i], 64);
        else if (strcmp(argv[i], "--coordinators") == 0)
            stage.coordinators = number(argv[++i], MOST_COORDINATORS);
        else if (strcmp(argv[i], "--rounds") == 0)
            rounds = number(argv[++i], 100000);
        else if (strcmp(argv[i], "--fresh") == 0)
            fresh = number(argv[++i], 100000);
        else if (strcmp(argv[i], "--as-it-is") == 0)
            stage.processes = fresh = 0;
        else {
            fprintf(stderr, "usage: bench_walk [--processes N] [--descriptors N] [--mappings N] [--rounds N] "
                            "[--fresh N] [--threads N] [--coordinators N]\n"
                            "       bench_walk --as-it-is [--rounds N] [--threads N] [--coordinators N]\n");
            return 64;
        }
    }
    if (stage.processes == 0)
        fresh = 0;
    rounds = rounds > 0 ? rounds : 1;
    gms_fd_raise_limit();
    if ((stage.base = event_base_new()) == NULL)
        fail("event base");
    make_dead(&stage);
    make_coordinators(&stage);
    make_processes(&stage);
    measure(&stage, rounds, fresh);
    (void)walk_us(&stage, 0); /* it does not count as dead now */
    const bool seen = stage.found == 1;
    printf("a process that has the memory was %s\n", seen ? "found" : "NOT FOUND");
    end_processes(&stage);
    end_coordinators(&stage);
    end_child(stage.dead);
    event_base_free(stage.base);
    close(stage.file);
    return seen ? 0 : 1;
}
