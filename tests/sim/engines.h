/* SPDX-License-Identifier: Apache-2.0
 *
 * The engines of a simulated group: processes that go through the life of an engine rank, and what the drivers of
 * their sessions know. Everything random comes from the schedule's seed.
 */
#ifndef TESTS_SIM_ENGINES_H
#define TESTS_SIM_ENGINES_H

#include "cluster.h"

enum { ENGINES = 3, TRANSFER_PARTS = 2, FORMER = 512 };

enum life {
    LIFE_JOIN,
    LIFE_WEIGHTS,
    LIFE_PUBLISH,
    LIFE_KV,
    LIFE_EXTRA, /* a pool that is given back at once, by several engines at the same time */
    LIFE_RELEASE,
    LIFE_PARK,
    LIFE_PARKED, /* until PROMOTE */
    LIFE_ADOPT,
    LIFE_READY,
    LIFE_SERVE, /* until SERVING, then with transfers */
};

/* One engine rank's process, and what its session's driver knows. */
struct process {
    bool alive, waiting, leaving;
    bool serving;
    enum life life;
    uint64_t session, incarnation; /* 0: the driver was not told yet */
    uint32_t sequence;
    uint64_t epoch, source;
    uint64_t transfer; /* id, 0: none under way */
    uint32_t parts_ended;
};

struct engine {
    uint64_t launch;
    uint32_t launches;
    struct process processes[CLUSTER_RANKS];
};

struct totals {
    uint64_t steps, rounds, commits[GMS_OPERATION_COUNT], aborts[GMS_OPERATION_COUNT], promotions, servings,
        classifications, transfers, condemned;
};

struct sim {
    struct cluster *cluster;
    uint64_t random_state, sessions, launches, transfers;
    uint32_t engine_count, launch_limit;
    bool quiet; /* no faults any more */
    struct engine engines[ENGINES];
    struct {
        uint32_t engine, rank;
        struct process process;
    } former[FORMER]; /* of earlier launches: their sessions' ends, and answers to them, may come late */
    uint32_t former_count;
    struct totals *totals;
};

/* Random, from the seed: true once in `one_in`; a number below `count`. */
bool sim_chance(struct sim *sim, uint32_t one_in);
uint32_t sim_below(struct sim *sim, uint32_t count);
/* Heard by that rank's core at some later step. */
void sim_later_fact(struct sim *sim, uint32_t rank, uint32_t engine, uint64_t incarnation, enum gms_fact fact);
/* The process ends now; its session's end is heard later. */
void sim_end_process(struct sim *sim, uint32_t engine, uint32_t rank);
bool sim_cohort_is_gone(const struct sim *sim, uint32_t engine);
/* A new start of the engine: a process on every rank, under a new launch. */
void sim_launch(struct sim *sim, uint32_t engine);
/* A transfer, dispatched on all ranks of an engine for which sim_may_dispatch said yes. */
void sim_dispatch(struct sim *sim, uint32_t engine);
bool sim_may_dispatch(const struct sim *sim, uint32_t engine);
/* The process does the next thing of its program; false: it has nothing to do. */
bool sim_work(struct sim *sim, uint32_t engine, uint32_t rank);
struct process *sim_by_session(struct sim *sim, uint32_t rank, uint64_t session, uint32_t *ret_engine);
/* The drivers' side of every action that concerns engines (cluster.hook). */
void sim_hook(struct cluster *cluster, uint32_t rank, const struct gms_action *action);

#endif
