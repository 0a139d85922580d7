/* SPDX-License-Identifier: Apache-2.0
 * The walk for nobody: one at a time, also where it is stuck and a walk that counts has put it aside. The list of
 * processes is where it gets stuck here. */
#include "unit_support.h"

#include <dirent.h>
#include <event2/event.h>
#include <stdatomic.h>

#include "fence/rehearsal.h"
#include "host/processes.h"

static atomic_int listings;
static int gate[2]; /* closed for writing: open */

bool __real_gms_processes_list(struct gms_processes *processes);
bool __wrap_gms_processes_list(struct gms_processes *processes);
bool __wrap_gms_processes_list(struct gms_processes *processes)
{
    char byte;
    atomic_fetch_add(&listings, 1);
    (void)!read(gate[0], &byte, 1);
    return __real_gms_processes_list(processes);
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

static void await_tasks(size_t count)
{
    const uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (count_tasks() != count)
        assert_true(gms_clock_ns() < deadline_ns);
}

static void await_listings(int count)
{
    const uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (atomic_load(&listings) < count)
        assert_true(gms_clock_ns() < deadline_ns);
    assert_int_equal(atomic_load(&listings), count);
}

static void test_one_at_a_time(void **state)
{
    (void)state;
    struct gms_error error = {0};
    struct gms_rehearsal rehearsal = {0};
    struct event_base *base = event_base_new();
    const size_t tasks = count_tasks();
    atomic_store(&listings, 0);
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    assert_non_null(base);
    for (int takeover = 0; takeover < 20; takeover++) {
        assert_ok(gms_rehearsal_start(&rehearsal, base, &error));
        await_listings(1); /* stuck */
        gms_rehearsal_stop(&rehearsal);
        event_base_loop(base, EVLOOP_NONBLOCK);
        assert_int_equal(count_tasks(), tasks + 1);
    }
    gms_fd_close(&gate[1]); /* it comes back, and looks at nobody: it was stopped */
    const uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (rehearsal.walk != NULL) {
        event_base_loop(base, EVLOOP_NONBLOCK);
        assert_true(gms_clock_ns() < deadline_ns);
    }
    await_tasks(tasks);
    assert_int_equal(atomic_load(&listings), 1);
    gms_fd_close(&gate[0]);
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    assert_ok(gms_rehearsal_start(&rehearsal, base, &error)); /* and the next begins */
    await_listings(2);
    gms_rehearsal_end(&rehearsal);
    gms_fd_close(&gate[1]);
    await_tasks(tasks);
    gms_fd_close(&gate[0]);
    event_base_free(base);
}

/* Let go of while it is stuck, as at the end of a coordinator. */
static void test_ended_while_stuck(void **state)
{
    (void)state;
    struct gms_error error = {0};
    struct gms_rehearsal rehearsal = {0};
    struct event_base *base = event_base_new();
    const size_t tasks = count_tasks();
    atomic_store(&listings, 0);
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    assert_ok(gms_rehearsal_start(&rehearsal, base, &error));
    await_listings(1);
    gms_rehearsal_end(&rehearsal);
    gms_rehearsal_end(&rehearsal);
    gms_rehearsal_stop(&rehearsal);
    assert_int_equal(count_tasks(), tasks + 1);
    gms_fd_close(&gate[1]);
    await_tasks(tasks);
    gms_fd_close(&gate[0]);
    event_base_free(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_at_a_time),
        cmocka_unit_test(test_ended_while_stuck),
    };
    return cmocka_run_group_tests_name("rehearsal", tests, NULL, NULL);
}
