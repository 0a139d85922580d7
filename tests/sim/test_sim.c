/* SPDX-License-Identifier: Apache-2.0
 * What the simulator's own parts must do, or a fault of theirs would be taken for one of the core. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "schedule.h"

static struct totals totals;

static void assert_no_fault(const struct sim *sim)
{
    if (sim->cluster->fault[0])
        fail_msg("%s", sim->cluster->fault);
}

/* All engine ranks of all engines are as far as they get. */
static struct sim *group_at_rest(uint32_t ranks, uint32_t engines)
{
    struct sim *sim = sim_new(1, ranks, engines, &totals);

    for (uint32_t e = 0; e < engines; e++)
        sim_launch(sim, e);
    sim_come_to_rest(sim);
    sim_check_rest(sim);
    assert_no_fault(sim);
    sim->quiet = false;
    return sim;
}

/* A driver knows whose session ended, also when the engine id has another process meanwhile. */
static void test_end_is_heard_after_the_next_start(void **state)
{
    struct sim *sim = group_at_rest(2, 2);
    uint32_t engine = cluster_look(sim->cluster, 0).serving_engine == 0 ? 1 : 0;
    uint64_t incarnation = cluster_look(sim->cluster, 0).engines[engine].incarnation;

    (void)state;
    for (uint32_t r = 0; r < 2; r++)
        sim_end_process(sim, engine, r);
    sim->launch_limit = sim->engines[engine].launches + 1;
    sim_launch(sim, engine); /* before anybody heard of the end */
    sim_come_to_rest(sim);
    sim_check_rest(sim);
    assert_no_fault(sim);
    assert_true(cluster_look(sim->cluster, 0).engines[engine].incarnation > incarnation);
    sim_free(sim);
}

/* A rank whose store failed before the faults stopped restarts the group after they did. */
static void test_late_death_is_followed_by_a_restart(void **state)
{
    struct sim *sim = group_at_rest(3, 1);
    uint32_t worlds = sim->cluster->worlds;

    (void)state;
    cluster_kill(sim->cluster, 1, 0);
    sim_come_to_rest(sim);
    sim_check_rest(sim);
    assert_no_fault(sim);
    assert_int_equal(sim->cluster->worlds, worlds + 1);
    sim_free(sim);
}

/* Ranks that are all of another opinion must not come to agree on it: nobody would ever ask for what there is. */
static void test_other_opinions_differ(void **state)
{
    struct gms_proposal mine = cluster_allocate(1, 1, "kv", GMS_POOL_KV, 64, 4096), other = mine;

    (void)state;
    sim_be_of_another_opinion(&mine, 0);
    sim_be_of_another_opinion(&other, 1);
    assert_int_not_equal(mine.fields[1], other.fields[1]);
    assert_int_not_equal(mine.fields[1], GMS_POOL_KV);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_end_is_heard_after_the_next_start),
        cmocka_unit_test(test_late_death_is_followed_by_a_restart),
        cmocka_unit_test(test_other_opinions_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
