/* SPDX-License-Identifier: Apache-2.0
 * Engines that make one exchange after the other while the coordinators die at each moment of it. */
#include "schedule.h"

#include <stdio.h>

enum { TURNS = 200000, MOST_DEATHS = 3 };

static bool all_have_exchanged(const struct sim *sim)
{
    for (uint32_t e = 0; e < sim->engine_count; e++)
        for (uint32_t r = 0; r < sim->cluster->ranks; r++)
            if (sim->engines[e].processes[r].life <= LIFE_EXCHANGE)
                return false;
    return true;
}

static void restart(struct sim *sim)
{
    sim_kill_coordinators(sim);
    sim_restart(sim, true);
}

/* One life in which the coordinators die at turn `at`, and perhaps again later. *ret_turns: how long it took. */
static bool live(uint64_t seed, uint64_t at, bool trace, struct totals *totals, uint64_t *ret_turns)
{
    struct sim *sim = sim_new(seed, 2 + (uint32_t)(seed % 3), 0, totals);
    struct cluster *cluster = sim->cluster;
    uint32_t deaths = 0;
    uint64_t turn = 0;

    sim->quiet = sim->exchanges_only = true;
    cluster->print_trace = trace;
    for (uint32_t e = 0; e < sim->engine_count; e++)
        sim_launch(sim, e);
    for (; !cluster->fault[0] && !all_have_exchanged(sim); turn++) {
        if (turn == TURNS)
            cluster_fail(cluster, "an exchange does not end");
        if (turn == at || (turn > at && deaths < MOST_DEATHS && sim_chance(sim, 100))) {
            restart(sim);
            deaths++;
        }
        sim_turn(sim);
    }
    *ret_turns = turn;
    sim_come_to_rest(sim);
    sim_check_rest(sim);
    bool ok = !cluster->fault[0];
    if (!ok)
        printf("FAIL seed %llu (%u ranks, %u engines): %s\n"
               "  again with: sim --exchanges --seed %llu --schedules 1 --at %llu --trace\n",
               (unsigned long long)seed, cluster->ranks, sim->engine_count, cluster->fault, (unsigned long long)seed,
               (unsigned long long)at);
    totals->schedules++;
    totals->steps += cluster->steps;
    sim_free(sim);
    return ok;
}

bool sim_exchanges(uint64_t seed, uint64_t seeds, uint64_t at, bool trace)
{
    struct totals totals = {0};
    uint64_t failed = 0;

    for (uint64_t i = 0; i < seeds && failed < 5; i++) {
        uint64_t turns = 0, ignored;

        if (at != UINT64_MAX) {
            failed += !live(seed + i, at, trace, &totals, &ignored);
            continue;
        }
        failed += !live(seed + i, UINT64_MAX, trace, &totals, &turns);
        for (uint64_t turn = 0; turn < turns && failed < 5; turn++)
            failed += !live(seed + i, turn, trace, &totals, &ignored);
    }
    printf(
        "%llu lives from seed %llu, %llu steps: %llu failed\n"
        "  %llu answers with what rank 0 gave, no other; %llu restarts, %llu of them when an exchange was told to some "
        "ranks only\n",
        (unsigned long long)totals.schedules, (unsigned long long)seed, (unsigned long long)totals.steps,
        (unsigned long long)failed, (unsigned long long)totals.exchanged, (unsigned long long)totals.crashes,
        (unsigned long long)totals.split);
    if (at == UINT64_MAX && !failed && !totals.split) {
        printf("FAIL: no restart came between two ranks' answers: the run proves nothing\n");
        return false;
    }
    return failed == 0;
}
