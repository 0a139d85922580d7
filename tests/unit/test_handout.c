/* SPDX-License-Identifier: Apache-2.0
 * Who is looked at next when several threads look: everybody once, whoever is stuck, and until nobody is new. The
 * processes here are numbers, and looks what a test makes of them. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "fence/handout.h"

enum { THREADS = 4, NUMBERS = 300, FIRST = 1000, MOST_LISTINGS = 64, PIECES = 40 };

struct scene;

struct worker {
    pthread_t thread;
    struct scene *scene;
    size_t number;
    bool over;
};

struct scene {
    struct gms_handout *handout;
    struct worker workers[THREADS];
    size_t (*list)(struct scene *scene, pid_t *ret_list); /* SIZE_MAX: there can be none */
    void (*look)(struct scene *scene, const struct gms_job *job);
    atomic_size_t listings, under_way, done, pieces_done;
    atomic_size_t looks[FIRST + 2 * NUMBERS];
    atomic_bool gate; /* open */
    pid_t stuck;      /* whose look waits for the gate */
    char piece;
};

static void until(bool (*holds)(struct scene *scene), struct scene *scene)
{
    const uint64_t deadline_ns = gms_clock_ns() + 20 * GMS_NS_PER_S;
    while (!holds(scene))
        if (gms_clock_ns() > deadline_ns)
            fail_msg("it does not come to that");
}

static void *work(void *context)
{
    struct worker *worker = context;
    struct scene *scene = worker->scene;
    for (;;) {
        const struct gms_job job = gms_handout_take(scene->handout, worker->number);
        if (job.kind == GMS_JOB_END)
            return NULL;
        if (job.kind == GMS_JOB_LIST) {
            if (atomic_load(&scene->under_way) != 0)
                abort(); /* nobody may be under way then */
            pid_t *list = malloc((2 * NUMBERS + 1) * sizeof *list);
            size_t count = scene->list(scene, list);
            if (count == SIZE_MAX) {
                free(list);
                list = NULL;
            }
            atomic_fetch_add(&scene->listings, 1);
            gms_handout_listed(scene->handout, list, count);
            continue;
        }
        atomic_fetch_add(&scene->under_way, 1);
        scene->look(scene, &job);
        atomic_fetch_sub(&scene->under_way, 1);
        atomic_fetch_add(&scene->done, 1);
    }
}

static void begin(struct scene *scene, const pid_t *except, size_t except_count)
{
    scene->handout = gms_handout_make(THREADS, 12345, except, except_count);
    assert_non_null(scene->handout);
    for (size_t i = 0; i < THREADS; i++) {
        scene->workers[i] = (struct worker){.scene = scene, .number = i};
        assert_int_equal(pthread_create(&scene->workers[i].thread, NULL, work, &scene->workers[i]), 0);
    }
}

static void finish(struct scene *scene)
{
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(scene->workers[i].thread, NULL);
    assert_int_equal(gms_handout_at(scene->handout), 0);
}

static size_t list_same(struct scene *scene, pid_t *ret_list)
{
    (void)scene;
    for (int i = 0; i < NUMBERS; i++)
        ret_list[i] = FIRST + i;
    return NUMBERS;
}

static void count_look(struct scene *scene, const struct gms_job *job)
{
    atomic_fetch_add(&scene->looks[job->pid], 1);
    if (job->pid == scene->stuck)
        while (!atomic_load(&scene->gate))
            sched_yield();
}

static void test_everybody_once(void **state)
{
    (void)state;
    static const pid_t except[] = {FIRST + 1, FIRST + 7, FIRST + NUMBERS + 5};
    struct scene *scene = calloc(1, sizeof *scene);
    scene->list = list_same;
    scene->look = count_look;
    begin(scene, except, 3);
    finish(scene);
    for (int i = 0; i < NUMBERS; i++)
        assert_int_equal(atomic_load(&scene->looks[FIRST + i]), i != 1 && i != 7);
    assert_int_equal(atomic_load(&scene->listings), 2); /* the second shows nobody new */
    assert_true(gms_handout_is_whole(scene->handout));
    gms_handout_free(scene->handout);
    free(scene);
}

static bool all_but_one(struct scene *scene)
{
    return atomic_load(&scene->done) == NUMBERS - 1;
}

/* A thread that is stuck keeps the others from nothing but the end, and it is known at whom. */
static void test_stuck(void **state)
{
    (void)state;
    struct scene *scene = calloc(1, sizeof *scene);
    scene->list = list_same;
    scene->look = count_look;
    scene->stuck = FIRST + 20;
    begin(scene, NULL, 0);
    until(all_but_one, scene);
    assert_int_equal(atomic_load(&scene->looks[scene->stuck]), 1);
    const uint64_t until_ns = gms_clock_ns() + 20 * GMS_NS_PER_MS;
    while (gms_clock_ns() < until_ns) {
        assert_int_equal(gms_handout_at(scene->handout), scene->stuck);
        assert_int_equal(atomic_load(&scene->listings), 1);
        assert_false(gms_handout_is_whole(scene->handout));
    }
    atomic_store(&scene->gate, true);
    finish(scene);
    assert_int_equal(atomic_load(&scene->done), NUMBERS);
    assert_true(gms_handout_is_whole(scene->handout));
    gms_handout_free(scene->handout);
    free(scene);
}

/* Given up while one is stuck: the others go at once, that one when it comes back, and nobody else is looked at. */
static void test_stopped(void **state)
{
    (void)state;
    struct scene *scene = calloc(1, sizeof *scene);
    scene->list = list_same;
    scene->look = count_look;
    scene->stuck = FIRST + 20;
    begin(scene, NULL, 0);
    until(all_but_one, scene);
    gms_handout_stop(scene->handout);
    atomic_store(&scene->gate, true);
    finish(scene);
    assert_int_equal(atomic_load(&scene->listings), 1);
    assert_false(gms_handout_is_whole(scene->handout));
    gms_handout_free(scene->handout);
    free(scene);
}

static void stop_early(struct scene *scene, const struct gms_job *job)
{
    count_look(scene, job);
    if (atomic_load(&scene->done) >= 50)
        gms_handout_stop(scene->handout);
}

static void test_stopped_early(void **state)
{
    (void)state;
    struct scene *scene = calloc(1, sizeof *scene);
    scene->list = list_same;
    scene->look = stop_early;
    begin(scene, NULL, 0);
    finish(scene);
    assert_true(atomic_load(&scene->done) <= 51 + 2 * THREADS);
    assert_false(gms_handout_is_whole(scene->handout));
    gms_handout_free(scene->handout);
    free(scene);
}

/* One more with each listing, one less as well: a family that runs ahead of the look. */
static size_t list_moving(struct scene *scene, pid_t *ret_list)
{
    const size_t listing = atomic_load(&scene->listings), from = listing < 5 ? listing : 5;
    for (size_t i = 0; i < NUMBERS; i++)
        ret_list[i] = (pid_t)(FIRST + from + i);
    return NUMBERS;
}

static void test_new_ones(void **state)
{
    (void)state;
    struct scene *scene = calloc(1, sizeof *scene);
    scene->list = list_moving;
    scene->look = count_look;
    begin(scene, NULL, 0);
    finish(scene);
    for (int i = 0; i < NUMBERS + 5; i++)
        assert_int_equal(atomic_load(&scene->looks[FIRST + i]), 1);
    assert_int_equal(atomic_load(&scene->done), NUMBERS + 5);
    assert_int_equal(atomic_load(&scene->listings), 7);
    assert_true(gms_handout_is_whole(scene->handout));
    gms_handout_free(scene->handout);
    free(scene);
}

/* Numbers 1 and 3 of the listing belong to nobody when they are looked at; a later listing has number 3 again. */
static size_t list_reused(struct scene *scene, pid_t *ret_list)
{
    static const pid_t listings[][4] = {
        {FIRST, FIRST + 1, FIRST + 2, FIRST + 3}, {FIRST, FIRST + 2, FIRST + 3}, {FIRST, FIRST + 2, FIRST + 3}};
    const size_t listing = atomic_load(&scene->listings), count = listing == 0 ? 4 : 3;
    for (size_t i = 0; i < count; i++)
        ret_list[i] = listings[listing < 2 ? listing : 2][i];
    return count;
}

static void miss_some(struct scene *scene, const struct gms_job *job)
{
    if (atomic_fetch_add(&scene->looks[job->pid], 1) == 0 && job->pid % 2 == 1)
        gms_handout_gone(scene->handout, job->pid);
}

static void test_reused(void **state)
{
    (void)state;
    struct scene *scene = calloc(1, sizeof *scene);
    scene->list = list_reused;
    scene->look = miss_some;
    begin(scene, NULL, 0);
    finish(scene);
    for (int i = 0; i < 4; i++)
        assert_int_equal(atomic_load(&scene->looks[FIRST + i]), i == 3 ? 2 : 1);
    assert_int_equal(atomic_load(&scene->listings), 3);
    assert_true(gms_handout_is_whole(scene->handout));
    gms_handout_free(scene->handout);
    free(scene);
}

static size_t list_for_ever(struct scene *scene, pid_t *ret_list)
{
    ret_list[0] = (pid_t)(FIRST + atomic_load(&scene->listings));
    return 1;
}

/* No end: said, not waited for, and not taken for nobody. */
static void test_no_end(void **state)
{
    (void)state;
    struct scene *scene = calloc(1, sizeof *scene);
    scene->list = list_for_ever;
    scene->look = count_look;
    begin(scene, NULL, 0);
    finish(scene);
    assert_true(atomic_load(&scene->listings) <= MOST_LISTINGS);
    assert_false(gms_handout_is_whole(scene->handout));
    gms_handout_free(scene->handout);
    free(scene);
}

static size_t list_nothing(struct scene *scene, pid_t *ret_list)
{
    (void)scene;
    (void)ret_list;
    return SIZE_MAX;
}

static void test_no_list(void **state)
{
    (void)state;
    struct scene *scene = calloc(1, sizeof *scene);
    scene->list = list_nothing;
    scene->look = count_look;
    begin(scene, NULL, 0);
    finish(scene);
    assert_int_equal(atomic_load(&scene->done), 0);
    assert_false(gms_handout_is_whole(scene->handout));
    gms_handout_free(scene->handout);
    free(scene);
}

static void look_in_pieces(struct scene *scene, const struct gms_job *job)
{
    if (job->piece != NULL) {
        if (job->piece != &scene->piece || job->pid % 100 != 0)
            abort();
        atomic_fetch_add(&scene->pieces_done, 1);
        return;
    }
    count_look(scene, job);
    if (job->pid % 100 == 0 && !gms_handout_add(scene->handout, job->pid, &scene->piece, PIECES))
        abort();
}

static void test_pieces(void **state)
{
    (void)state;
    struct scene *scene = calloc(1, sizeof *scene);
    scene->list = list_same;
    scene->look = look_in_pieces;
    begin(scene, NULL, 0);
    finish(scene);
    for (int i = 0; i < NUMBERS; i++)
        assert_int_equal(atomic_load(&scene->looks[FIRST + i]), 1);
    assert_int_equal(atomic_load(&scene->pieces_done), PIECES * NUMBERS / 100);
    assert_int_equal(atomic_load(&scene->done), NUMBERS + PIECES * NUMBERS / 100);
    assert_int_equal(atomic_load(&scene->listings), 2);
    gms_handout_free(scene->handout);
    free(scene);
}

/* A thread that has nothing to do is told of, and is given what another gives away. */
static void give_when_wanted(struct scene *scene, const struct gms_job *job)
{
    if (job->piece != NULL) {
        atomic_fetch_add(&scene->pieces_done, 1);
        return;
    }
    const uint64_t deadline_ns = gms_clock_ns() + 20 * GMS_NS_PER_S;
    while (gms_handout_wanted(scene->handout) < THREADS - 1)
        if (gms_clock_ns() > deadline_ns)
            abort();
    if (!gms_handout_add(scene->handout, job->pid, &scene->piece, PIECES))
        abort();
    while (atomic_load(&scene->pieces_done) < PIECES)
        if (gms_clock_ns() > deadline_ns)
            abort();
}

static size_t list_one(struct scene *scene, pid_t *ret_list)
{
    (void)scene;
    ret_list[0] = FIRST;
    return 1;
}

static void test_wanted(void **state)
{
    (void)state;
    struct scene *scene = calloc(1, sizeof *scene);
    scene->list = list_one;
    scene->look = give_when_wanted;
    begin(scene, NULL, 0);
    finish(scene);
    assert_int_equal(atomic_load(&scene->pieces_done), PIECES);
    assert_true(gms_handout_is_whole(scene->handout));
    gms_handout_free(scene->handout);
    free(scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everybody_once), cmocka_unit_test(test_stuck),    cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_stopped_early),  cmocka_unit_test(test_new_ones), cmocka_unit_test(test_no_end),
        cmocka_unit_test(test_no_list),        cmocka_unit_test(test_pieces),   cmocka_unit_test(test_wanted),
        cmocka_unit_test(test_reused),
    };
    return cmocka_run_group_tests_name("handout", tests, NULL, NULL);
}
