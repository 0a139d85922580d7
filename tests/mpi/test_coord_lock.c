/* SPDX-License-Identifier: Apache-2.0
 *
 * FAILOVER_LOCK_PATH with real coordinators (V13: who serves is not a question of who holds a lock): held while
 * somebody serves, through a restart of the coordinators and from one engine to the next; asked of others, so nobody
 * serves while a stranger holds it, or holds the file that took its place; given back when nobody is left.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "harness.h"

enum { RANKS = 2, AT_SERVING = 1, GATE_END = 1 };

static struct cluster cluster;
static char directory[] = "/tmp/gms-lock-XXXXXX", path[64];

static gms_status serve(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life;
    gms_status status = rank_live(rank, &life, "unix:/e", error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    rank_gate(rank, GATE_END);
    gms_close(life.session);
    return GMS_OK;
}

/* A stranger's lock; -1: it is held already. */
static int strangers_lock(void)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        gms_fd_close(&fd);
    return fd;
}

static void assert_locked(bool locked)
{
    int fd = strangers_lock();
    assert_int_equal(fd < 0, locked);
    gms_fd_close(&fd);
}

static bool is_free(void *context)
{
    int fd = strangers_lock();
    bool free = fd >= 0;
    (void)context;
    gms_fd_close(&fd);
    return free;
}

static bool nobody_is_left(void *context)
{
    (void)context;
    json_t *status = cluster_status(&cluster, 0);
    bool empty = status != NULL && json_array_size(json_object_get(status, "engines")) == 0;
    json_decref(status);
    return empty;
}

static bool one_is_parked(void *context)
{
    json_t *status = cluster_status(&cluster, 0), *engine;
    size_t index;
    bool parked = false;
    (void)context;
    json_array_foreach(json_object_get(status, "engines"), index, engine)
    {
        const char *role = json_string_value(json_object_get(engine, "role"));
        parked = parked || (role != NULL && strcmp(role, "parked") == 0);
    }
    json_decref(status);
    return parked;
}

static void test_lock(void **state)
{
    struct engine first, second, third;
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/failover.lock", directory);
    setenv("FAILOVER_LOCK_PATH", path, 1);
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .heartbeat = "200ms"});
    assert_locked(false);

    /* A stranger holds it: whoever is promoted is told so on all ranks, and nobody serves. */
    int stranger = strangers_lock();
    assert_true(stranger >= 0);
    engine_start(&first, &cluster, 0, "refused", serve, 0);
    assert_true(engine_wait_end(&first, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(first.ranks[rank].status, GMS_E_BUSY);
    assert_int_equal(cluster_number(&cluster, 0, "serving_engine"), -1);
    assert_true(cluster_log_has(&cluster, "is locked by another process"));
    engine_finish(&first);
    gms_fd_close(&stranger);
    assert_true(eventually(nobody_is_left, NULL, HARNESS_DEADLINE_MS));

    engine_start(&first, &cluster, 0, "first", serve, 0);
    assert_true(engine_reached(&first, AT_SERVING, HARNESS_DEADLINE_MS));
    assert_locked(true);
    cluster_kill_coordinators(&cluster, -1);
    assert_locked(true); /* nobody decides now, and still nobody else may serve */
    cluster_relaunch(&cluster, NULL);
    assert_locked(true);

    /* To its successor without a gap: from the kill to its serving the lock is asked for again and again. */
    engine_start(&second, &cluster, 1, "second", serve, 0);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        while (!cluster_log_has(&cluster, "engine 1 joined"))
            assert_locked(true);
    engine_kill(&first, 1);
    while (cluster_number(&cluster, 0, "serving_engine") != 1)
        assert_locked(true);
    assert_true(engine_reached(&second, AT_SERVING, HARNESS_DEADLINE_MS));
    assert_locked(true);
    engine_wait_end(&first, HARNESS_DEADLINE_MS);
    engine_finish(&first);

    /* The name leads to another file, which a stranger has locked: the inode decides, and it is asked anew. */
    assert_int_equal(unlink(path), 0);
    stranger = strangers_lock();
    assert_true(stranger >= 0);
    engine_start(&third, &cluster, 0, "third", serve, 0);
    assert_true(eventually(one_is_parked, NULL, HARNESS_DEADLINE_MS)); /* else the lock is given back in between */
    engine_kill(&second, 0);
    assert_true(engine_wait_end(&third, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(third.ranks[rank].status, GMS_E_BUSY);
    assert_true(cluster_log_has(&cluster, "leads to another file"));
    engine_finish(&third);
    engine_wait_end(&second, HARNESS_DEADLINE_MS);
    engine_finish(&second);
    gms_fd_close(&stranger);

    engine_start(&third, &cluster, 2, "fourth", serve, 0);
    assert_true(engine_reached(&third, AT_SERVING, HARNESS_DEADLINE_MS));
    assert_locked(true);
    engine_go(&third, GATE_END);
    assert_true(engine_wait_end(&third, HARNESS_DEADLINE_MS));
    engine_finish(&third);
    assert_true(eventually(is_free, NULL, HARNESS_DEADLINE_MS)); /* nobody serves or will */
    cluster_stop(&cluster);
    unsetenv("FAILOVER_LOCK_PATH");
    unlink(path);
    rmdir(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
