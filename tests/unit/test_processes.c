/* SPDX-License-Identifier: Apache-2.0
 * The list of processes against a plain reading of /proc, and what /proc says of a process that the test made. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "fence/loan.h"
#include "host/maps.h"
#include "host/processes.h"

enum { INCARNATION = 77, PAGE = 4096 };

/* ----------------------------------------------------------------------------------------------- the list ------ */

/* Plainly: every number in /proc, the kernel's too. */
static struct gms_processes read_plainly(void)
{
    struct gms_processes plain = {.list = calloc(100000, sizeof(pid_t))};
    DIR *directory = opendir("/proc");
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL && plain.count < 100000;)
        if (isdigit((unsigned char)entry->d_name[0]))
            plain.list[plain.count++] = (pid_t)atoi(entry->d_name);
    closedir(directory);
    gms_pids_sort(plain.list, plain.count);
    return plain;
}

static void test_list(void **state)
{
    (void)state;
    struct gms_processes processes, before, after;
    gms_processes_begin(&processes);
    for (int i = 0; i < 20; i++) {
        before = read_plainly();
        assert_true(gms_processes_list(&processes));
        after = read_plainly();
        assert_true(gms_pid_is_in(processes.list, processes.count, getpid()));
        for (size_t k = 1; k < processes.count; k++)
            assert_true(processes.list[k - 1] < processes.list[k]);
        /* Who was there all the while is a thread of the kernel or in the list. */
        for (size_t k = 0; k < before.count; k++)
            if (gms_pid_is_in(after.list, after.count, before.list[k]))
                assert_int_not_equal(gms_pid_is_in(processes.list, processes.count, before.list[k]),
                                     gms_pid_is_in(processes.kernel, processes.kernel_count, before.list[k]));
        gms_processes_end(&before);
        gms_processes_end(&after);
    }
    gms_processes_end(&processes);
}

/* Long runs of "kernel threads" are passed over, and nobody beside them is; here the runs are ordinary processes. */
static void test_passes_over_runs(void **state)
{
    (void)state;
    enum { CHILDREN = 40 };
    pid_t children[CHILDREN], kernel[CHILDREN];
    size_t kernel_count = 0, beside = 0;
    int gate[2];
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            char byte;
            close(gate[1]);
            (void)!read(gate[0], &byte, 1);
            _exit(0);
        }
    }
    for (int i = 0; i < CHILDREN; i++)
        if (i % 14 != 5) /* runs of thirteen, and one between them */
            kernel[kernel_count++] = children[i];
    gms_pids_sort(kernel, kernel_count);
    struct gms_processes processes = {.kernel = kernel, .kernel_count = kernel_count};
    assert_true(gms_processes_list(&processes));
    for (int i = 0; i < CHILDREN; i++) {
        const bool listed = gms_pid_is_in(processes.list, processes.count, children[i]);
        assert_int_equal(listed, i % 14 == 5);
        beside += listed;
    }
    assert_int_equal(beside, 3);
    assert_true(gms_pid_is_in(processes.list, processes.count, getpid()));
    assert_true(gms_pid_is_in(processes.list, processes.count, 1));
    processes.kernel = NULL; /* the test's */
    processes.kernel_count = 0;
    assert_true(gms_processes_list(&processes)); /* nothing is known of the kernel's: all are processes */
    for (int i = 0; i < CHILDREN; i++)
        assert_true(gms_pid_is_in(processes.list, processes.count, children[i]));
    gms_processes_end(&processes);
    close(gate[0]);
    close(gate[1]);
    for (int i = 0; i < CHILDREN; i++)
        assert_int_equal(waitpid(children[i], NULL, 0), children[i]);
}

static void test_sorted(void **state)
{
    (void)state;
    pid_t list[] = {5, 3, 9, 3, 1};
    gms_pids_sort(list, 5);
    for (int i = 1; i < 5; i++)
        assert_true(list[i - 1] <= list[i]);
    assert_true(gms_pid_is_in(list, 5, 9));
    assert_false(gms_pid_is_in(list, 5, 4));
    assert_false(gms_pid_is_in(NULL, 0, 4));
}

/* -------------------------------------------------------------------------------------------- descriptors ------ */

/* A child with nothing open but what `arrange` leaves it. */
static pid_t child(void (*arrange)(int loan), int loan)
{
    char byte;
    int ready[2];
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        arrange(loan);
        (void)!write(ready[1], "y", 1);
        for (;;)
            pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL); /* a child not waited for: the number is its */
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void as_it_is(int loan)
{
    (void)loan;
}

static void at_end(int loan)
{
    for (int i = 0; i < 100; i++)
        (void)!open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void)!dup(loan);
    close(loan);
}

static void behind_a_hole(int loan)
{
    (void)!dup2(loan, 900);
    close(loan);
}

static void behind_many_holes(int loan)
{
    for (int i = 100; i < 600; i += 20)
        (void)!dup2(0, i);
    (void)!dup2(loan, 605);
    close(loan);
}

static void before_all(int loan)
{
    (void)!dup2(loan, 0);
    close(loan);
}

static void nowhere(int loan)
{
    for (int i = 100; i < 600; i += 7)
        (void)!dup2(0, i);
    close(loan);
}

static void mapped(int loan)
{
    if (mmap(NULL, PAGE, PROT_READ, MAP_SHARED, loan, 0) == MAP_FAILED)
        _exit(1);
    close(loan);
}

static void test_borrows(void **state)
{
    (void)state;
    static const struct {
        const char *where;
        void (*arrange)(int loan);
        bool borrows;
    } rows[] = {{"as it came", as_it_is, true},
                {"last of many", at_end, true},
                {"behind a hole", behind_a_hole, true},
                {"behind many holes", behind_many_holes, true},
                {"in place of standard input", before_all, true},
                {"closed", nowhere, false},
                {"mapped and closed", mapped, false}};
    int file = memfd_create("directory", MFD_CLOEXEC), other = memfd_create("other", MFD_CLOEXEC);
    struct gms_inode inode, another;
    assert_int_equal(ftruncate(file, PAGE), 0);
    assert_true(gms_inode_of(file, &inode));
    assert_true(gms_inode_of(other, &another));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int loan = -1;
        assert_int_equal(gms_loan_give(file, INCARNATION, &loan, NULL), GMS_OK);
        const pid_t pid = child(rows[i].arrange, loan);
        gms_fd_close(&loan);
        if (gms_maps_borrows(pid, &inode, 1, INCARNATION) != rows[i].borrows)
            fail_msg("%s: wrong", rows[i].where);
        assert_false(gms_maps_borrows(pid, &inode, 1, INCARNATION + 1));
        assert_false(gms_maps_borrows(pid, &another, 1, INCARNATION));
        end(pid);
        assert_false(gms_maps_borrows(pid, &inode, 1, INCARNATION));
    }
    gms_fd_close(&file);
    gms_fd_close(&other);
}

/* ----------------------------------------------------------------------------------------------- mappings ------ */

static void test_first(void **state)
{
    (void)state;
    enum { FILES = 4 };
    int files[FILES];
    struct gms_inode inodes[FILES];
    for (int i = 0; i < FILES; i++) {
        files[i] = memfd_create("file", MFD_CLOEXEC);
        assert_int_equal(ftruncate(files[i], PAGE), 0);
        assert_true(gms_inode_of(files[i], &inodes[i]));
    }
    /* The later file first in the address space, and one that is not shared. */
    char *place = mmap(NULL, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(place != MAP_FAILED);
    assert_true(mmap(place, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, files[3], 0) != MAP_FAILED);
    assert_true(mmap(place + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, files[2], 0) != MAP_FAILED);
    assert_true(mmap(place + 2 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, files[0], 0) != MAP_FAILED);
    const pid_t pid = child(as_it_is, -1);
    assert_int_equal(gms_maps_first(pid, inodes, FILES, GMS_MAPS_ANY), 0);
    assert_int_equal(gms_maps_first(pid, inodes, FILES, GMS_MAPS_SHARED), 2);
    assert_int_equal(gms_maps_first(pid, inodes, FILES, GMS_MAPS_WRITABLE), 2);
    assert_int_equal(gms_maps_first(pid, inodes + 3, 1, GMS_MAPS_SHARED), 0);
    assert_int_equal(gms_maps_first(pid, inodes + 3, 1, GMS_MAPS_WRITABLE), 1);
    assert_int_equal(gms_maps_first(pid, inodes, 2, GMS_MAPS_SHARED), 2);
    assert_int_equal(gms_maps_first(pid, inodes, 0, GMS_MAPS_ANY), 0);
    assert_true(gms_maps_has(pid, inodes, FILES, GMS_MAPS_SHARED));
    assert_true(gms_maps_has(pid, inodes, 1, GMS_MAPS_ANY));
    assert_false(gms_maps_has(pid, inodes, 2, GMS_MAPS_SHARED));
    assert_false(gms_maps_has(pid, inodes, 0, GMS_MAPS_ANY));
    end(pid);
    assert_int_equal(gms_maps_first(pid, inodes, FILES, GMS_MAPS_ANY), FILES);
    munmap(place, 3 * PAGE);
    for (int i = 0; i < FILES; i++)
        gms_fd_close(&files[i]);
}

/* Looked at in pieces, split again and again, a mapping is met wherever it lies. */
static size_t first_in_pieces(pid_t pid, const struct gms_inode *inode, uint64_t from, uint64_t until,
                              size_t *ret_pieces)
{
    size_t first = 1;
    uint64_t middle = 0;
    ++*ret_pieces;
    while (from < until && first == 1) {
        const uint64_t before = from;
        first = gms_maps_first_between(pid, inode, 1, GMS_MAPS_SHARED, 10, &from, until);
        assert_true(from > before);
        if (first == 1 && from < until && gms_maps_split(pid, GMS_MAPS_SHARED, from, until, &middle)) {
            assert_true(middle > from && middle < until);
            first = first_in_pieces(pid, inode, middle, until, ret_pieces);
            until = middle;
        }
    }
    return first;
}

static void test_pieces_of_mappings(void **state)
{
    (void)state;
    enum { MANY = 400 };
    const int many = memfd_create("many", MFD_CLOEXEC);
    assert_int_equal(ftruncate(many, PAGE), 0);
    /* Two crowds far from one another, and one mapping of another file at a time. */
    char *low = mmap((void *)UINT64_C(0x200000000), (size_t)PAGE * MANY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
         *high = mmap(NULL, (size_t)PAGE * MANY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(low != MAP_FAILED && high != MAP_FAILED);
    for (size_t i = 0; i < MANY; i++) /* one page of the file, again and again: they stay apart */
        assert_true(mmap((i < MANY / 2 ? low : high) + i * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, many, 0) !=
                    MAP_FAILED);
    static const size_t places[] = {0, 9, 10, 11, 150, MANY / 2 - 1, MANY / 2, 333, MANY - 1, MANY};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const int file = memfd_create("file", MFD_CLOEXEC);
        struct gms_inode inode;
        size_t pieces = 0;
        assert_int_equal(ftruncate(file, PAGE), 0);
        assert_true(gms_inode_of(file, &inode));
        char *place = (places[i] < MANY / 2 ? low : high) + places[i] * PAGE;
        if (places[i] < MANY)
            assert_true(mmap(place, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED);
        const pid_t pid = child(as_it_is, -1);
        assert_int_equal(first_in_pieces(pid, &inode, 0, UINT64_MAX, &pieces), places[i] == MANY);
        assert_true(places[i] < MANY || pieces > 1 ||
                    !gms_maps_split(pid, GMS_MAPS_SHARED, 0, UINT64_MAX, &(uint64_t){0}));
        end(pid);
        if (places[i] < MANY)
            assert_true(mmap(place, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, many, 0) != MAP_FAILED);
        close(file);
    }
    munmap(low, (size_t)PAGE * MANY);
    munmap(high, (size_t)PAGE * MANY);
    close(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),   cmocka_unit_test(test_passes_over_runs),
        cmocka_unit_test(test_sorted), cmocka_unit_test(test_borrows),
        cmocka_unit_test(test_first),  cmocka_unit_test(test_pieces_of_mappings),
    };
    return cmocka_run_group_tests_name("processes", tests, NULL, NULL);
}
