/* SPDX-License-Identifier: Apache-2.0
 *
 * One schedule of the simulator: engines that live and die, coordinators that do too, and a random order of everything.
 */
#ifndef TESTS_SIM_SCHEDULE_H
#define TESTS_SIM_SCHEDULE_H

#include "cluster.h"
#include "core/core_state.h"

#define MS UINT64_C(1000000)
enum { ENGINES = 3, EXCHANGES = 4, TRANSFER_PARTS = 2, SCHEDULE_STEPS = 2500 };

enum life {
    LIFE_JOIN,
    LIFE_WEIGHTS,
    LIFE_PUBLISH,
    LIFE_BUDGET, /* each rank has a number of its own */
    LIFE_KV,
    LIFE_EXTRA, /* a pool that is given back at once, by several engines at the same time */
    LIFE_RELEASE,
    LIFE_EXCHANGE,
    LIFE_PARK,
    LIFE_PARKED, /* until PROMOTE */
    LIFE_ADOPT,
    LIFE_READY,
    LIFE_SERVE, /* until SERVING, then with transfers */
};

/* One engine rank's process, and what its session's driver knows. */
struct process {
    bool alive, waiting, leaving;
    bool attached; /* has a session with this world's coordinator */
    bool serving;
    enum life life;
    uint64_t session, incarnation; /* 0: the driver was not told yet */
    uint64_t since;                /* the world in which it asked to join; 0: not yet */
    uint32_t sequence;
    uint32_t exchanged; /* exchanges that succeeded */
    uint64_t epoch, source;
    struct gms_proposal asked; /* while it waits for a call */
    uint64_t transfer;         /* id, 0: none under way */
    uint32_t parts_ended, failed_mask;
};

/* What a driver knows of a session, also when its process is dead and another one has its place. */
struct session {
    uint32_t engine, rank;
    uint64_t incarnation; /* 0: not told yet */
};

struct engine {
    uint64_t launch;
    uint32_t launches;
    uint32_t exchanges;        /* that each rank of this launch makes, one after the other */
    struct process *processes; /* one for each rank */
};

struct totals {
    uint64_t schedules, steps, rounds, commits[GMS_OPERATION_COUNT], aborts[GMS_OPERATION_COUNT], promotions, servings,
        classifications, transfers, condemned;
    uint64_t crashes, undone, verdicts[GMS_RECOVERY_REFUSE + 1];
    uint64_t lost_in_vain; /* stores whose loss was none, since others had as much */
    uint64_t past;         /* launches of an earlier life that were refused */
    uint64_t exchanged;    /* answers to exchanges, a rank each, with what rank 0 gave */
    uint64_t split; /* restarts between the answers of two ranks to one exchange: some were told, some ask again */
    uint64_t crashed_in[GMS_TAKEOVER_STATE_COUNT], crashed_preparing; /* in which state; an operation was under way */
    struct gms_core_rows rows;
};

struct sim {
    struct cluster *cluster;
    uint64_t random_state, launches, transfers;
    struct session *sessions; /* of this schedule; session s is sessions[s], 0 is none */
    uint64_t session_count, session_capacity;
    uint32_t engine_count, launch_limit, salvages;
    uint32_t fault_rate, time_rate, crash_rate; /* one in so many turns */
    bool quiet;                                 /* no faults any more, and time stands still but for who waits */
    bool exchanges_only;                        /* nothing between join and exchanges, and each must succeed */
    struct engine engines[ENGINES];
    struct totals *totals;
};

/* ---- engines.c */
bool sim_chance(struct sim *sim, uint32_t one_in);
uint32_t sim_below(struct sim *sim, uint32_t count);
void sim_launch(struct sim *sim, uint32_t engine);
bool sim_cohort_is_gone(const struct sim *sim, uint32_t engine);
/* The process ends; its coordinator hears of it later. */
void sim_end_process(struct sim *sim, uint32_t engine, uint32_t rank);
/* The process does the next thing of its program, re-attaching first; false when it has nothing to do. */
bool sim_work(struct sim *sim, uint32_t engine, uint32_t rank);
/* Changes the proposal into one that no other rank makes. */
void sim_be_of_another_opinion(struct gms_proposal *proposal, uint32_t rank);
bool sim_may_dispatch(const struct sim *sim, uint32_t engine);
void sim_dispatch(struct sim *sim, uint32_t engine);
void sim_later_fact(struct sim *sim, uint32_t rank, uint32_t engine, uint64_t incarnation, enum gms_fact fact);
/* NULL: not one of this schedule's. */
struct session *sim_session(struct sim *sim, uint64_t session);
/* The process that has this session; NULL: none any more. */
struct process *sim_by_session(struct sim *sim, uint64_t session, uint32_t *ret_engine);
void sim_hook(struct cluster *cluster, uint32_t rank, const struct gms_action *action);

/* ---- schedule.c */
/* A schedule that nothing has happened in yet; 0 ranks or engines: as many as the seed says. Never NULL. */
struct sim *sim_new(uint64_t seed, uint32_t ranks, uint32_t engines, struct totals *totals);
void sim_free(struct sim *sim);
/* One step of the random life of everything. */
void sim_turn(struct sim *sim);
void sim_deliver(struct sim *sim, uint32_t index);
/* No more faults: everything under way arrives, everybody goes on, time passes where somebody waits for it. */
void sim_come_to_rest(struct sim *sim);
/* What must be true then. */
void sim_check_rest(struct sim *sim);
/* Runs a whole schedule, with this many ranks (0: as the seed says); false: an invariant did not hold, and it was
 * printed. */
bool sim_run_schedule(uint64_t seed, uint32_t ranks, bool trace, struct totals *totals);

/* ---- crash.c */
/* The coordinators die, one after the other; what is left of their stores is the next world's beginning. */
void sim_crash(struct sim *sim);
/* The new world, once all are dead. `faithful`: without anything lost. */
void sim_restart(struct sim *sim, bool faithful);
void sim_count_rows(struct sim *sim);

/* The same up to where all are dead. */
void sim_kill_coordinators(struct sim *sim);

/* ---- exchanges.c */
/* Lives that make exchanges, as many as `seeds` from `seed` on: each is lived once without a death, then once more for
 * every turn of it, in which the coordinators die then (at: that turn alone; UINT64_MAX: all). No engine dies and no
 * time passes, so every exchange must be answered on every rank, with what rank 0 gave to it. Prints what came of it;
 * false: something did not hold, and was printed. */
bool sim_exchanges(uint64_t seed, uint64_t seeds, uint64_t at, bool trace);

/* ---- sizes.c */
/* Prints what agreements of 8, 16, ... `most` ranks cost; false: something did not hold. */
bool sim_sizes(uint32_t most);

/* ---- scenario.c */
/* Prints a named scenario; false: there is none, or something in it did not hold. */
bool sim_scenario(const char *name);

#endif
