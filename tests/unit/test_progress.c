/* SPDX-License-Identifier: Apache-2.0
 *
 * When an engine counts as hung: by what is seen of it from time to time, and never by a watcher that stood still
 * itself.
 */
#include "unit_support.h"

#include "daemon/progress.h"

enum { ENGINE = 3 };
static const uint64_t second = GMS_NS_PER_S;

struct play {
    struct gms_progress_watch watch;
    struct gms_progress_look look;
    uint64_t now_ns, still_ns;
};

static struct play begin(void)
{
    return (struct play){.watch = {.timeout_ns = 4 * second}, .look = {.incarnation = 9}, .now_ns = 1000 * second};
}

/* One look after `seconds`. */
static bool stalls(struct play *play, uint64_t seconds)
{
    play->now_ns += seconds * second;
    bool on_time = gms_progress_begin(&play->watch, play->now_ns);
    return gms_progress_look(&play->watch, ENGINE, &play->look, play->now_ns, &play->still_ns) && on_time;
}

static bool stalls_within(struct play *play, int looks)
{
    for (int i = 0; i < looks; i++)
        if (stalls(play, 1))
            return true;
    return false;
}

static void test_idle(void **state)
{
    struct play play = begin();
    (void)state;
    assert_false(stalls_within(&play, 100));
    play.look.activity.steps_begun = play.look.activity.steps_completed = 7; /* all done */
    assert_false(stalls_within(&play, 100));
}

static void test_work_that_goes_on(void **state)
{
    struct play play = begin();
    (void)state;
    play.look.activity.work = 5;
    for (int i = 0; i < 30; i++) {
        uint64_t *counters[] = {&play.look.activity.progress, &play.look.activity.steps_begun,
                                &play.look.activity.steps_completed};
        assert_false(stalls_within(&play, 3));
        (*counters[i % 3])++;
    }
}

static void test_work_that_stands_still(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct play play = begin();
        assert_false(stalls_within(&play, 50));
        if (kind == 0)
            play.look.activity.work = 1;
        else if (kind == 1)
            play.look.activity.steps_begun = 1;
        else
            play.look.has_work = true;
        for (int i = 0; i < (kind == 1 ? 4 : 3); i++) /* a step that begins is a change by itself */
            assert_false(stalls(&play, 1));
        assert_true(stalls(&play, 1));
        assert_true(play.still_ns >= play.watch.timeout_ns);
        play.look.activity.progress++;
        assert_false(stalls(&play, 1));
    }
}

static void test_announced_pause(void **state)
{
    struct play play = begin();
    (void)state;
    play.look.activity.work = 1;
    assert_false(stalls(&play, 1));
    play.look.activity.pause++;
    play.look.activity.pause_ms = 60000;
    assert_false(stalls_within(&play, 60)); /* V15: a graph is being captured */
    assert_false(stalls_within(&play, 3));
    assert_true(stalls_within(&play, 2)); /* and it is over, without a sign of life */

    play = begin();
    play.look.activity.work = 1;
    play.look.activity.pause = 4;
    play.look.activity.pause_ms = 60000; /* announced to an earlier coordinator */
    assert_false(stalls_within(&play, 50));
    play.look.activity.progress++; /* earlier than announced: watched again */
    assert_false(stalls_within(&play, 4));
    assert_true(stalls_within(&play, 1));

    play = begin();
    play.look.activity.work = 1;
    assert_false(stalls(&play, 1));
    for (int i = 0; i < 20; i++) { /* one after another */
        play.look.activity.pause++;
        play.look.activity.pause_ms = 2000;
        assert_false(stalls_within(&play, 5));
    }
}

static void test_progresser_that_stood_still(void **state)
{
    struct play play = begin();
    (void)state;
    play.look.activity.work = 1;
    assert_false(stalls_within(&play, 3));
    assert_false(stalls(&play, 30)); /* V17: it looks as if the engine had done nothing for 33 s */
    assert_false(stalls_within(&play, 3));
    assert_true(stalls_within(&play, 1)); /* seen with open eyes */

    play = begin();
    play.look.activity.work = 1;
    assert_false(stalls(&play, 1));
    play.look.activity.pause++;
    play.look.activity.pause_ms = 10000;
    assert_false(stalls_within(&play, 5));
    assert_false(stalls(&play, 100)); /* the engine was stopped along with us: half of its pause is left */
    assert_false(stalls_within(&play, 7));
}

static void test_another_incarnation(void **state)
{
    struct play play = begin();
    (void)state;
    play.look.activity.work = 1;
    assert_false(stalls_within(&play, 4));
    play.look.incarnation++;
    assert_false(stalls_within(&play, 4));
    assert_true(stalls_within(&play, 1));
    gms_progress_rest(&play.watch);
    assert_false(stalls(&play, 1000)); /* nobody was watched meanwhile: that is no gap */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle),
        cmocka_unit_test(test_work_that_goes_on),
        cmocka_unit_test(test_work_that_stands_still),
        cmocka_unit_test(test_announced_pause),
        cmocka_unit_test(test_progresser_that_stood_still),
        cmocka_unit_test(test_another_incarnation),
    };
    return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
