/* SPDX-License-Identifier: Apache-2.0
 * Coordinators die, are begun anew, and sometimes a store is not what it was. */
#include "schedule.h"

#include <string.h>

void sim_count_rows(struct sim *sim)
{
    for (uint32_t r = 0; r < sim->cluster->ranks; r++) {
        sim->totals->rows.roles |= sim->cluster->cores[r]->rows.roles;
        sim->totals->rows.takeover |= sim->cluster->cores[r]->rows.takeover;
        sim->totals->rows.votes |= sim->cluster->cores[r]->rows.votes;
        sim->totals->rows.reclaim |= sim->cluster->cores[r]->rows.reclaim;
    }
}

/* Where the group was when the first of them died. */
static void count_crash(struct sim *sim, uint32_t rank)
{
    const struct gms_core *core = sim->cluster->cores[rank];
    bool preparing = false;

    for (uint32_t e = 0; e < GMS_MAX_ENGINES; e++)
        preparing = preparing || core->engines[e].operation.preparing;
    sim->totals->crashes++;
    sim->totals->crashed_in[core->takeover]++;
    sim->totals->crashed_preparing += preparing;
}

/* Was some rank told the end of an exchange that another one still asks for? */
static void count_split(struct sim *sim)
{
    bool split = false;

    for (uint32_t e = 0; e < sim->engine_count; e++) {
        const struct process *processes = sim->engines[e].processes;
        uint32_t least = UINT32_MAX, greatest = 0;

        for (uint32_t r = 0; r < sim->cluster->ranks; r++) {
            uint32_t exchanged = processes[r].alive ? processes[r].exchanged : 0;
            bool asks = processes[r].alive && processes[r].waiting && processes[r].life == LIFE_EXCHANGE;

            greatest = exchanged > greatest ? exchanged : greatest;
            least = asks && exchanged < least ? exchanged : least;
        }
        split = split || least < greatest;
    }
    sim->totals->split += split;
}

/* ------------------------------------------------------------------------------------------------- losses ----- */

/* What must not, and what need not be gone on from. */
struct loss {
    bool any;        /* a store is not what it was */
    bool real;       /* with something that no other store has and that may have been told, or memory */
    bool unknowable; /* its keeper could not say how far it was */
};

static struct loss lose(struct sim *sim)
{
    struct cluster *cluster = sim->cluster;
    uint32_t rank = sim_below(sim, cluster->ranks);
    static const enum gms_recovery_doubt ways[] = {GMS_DOUBT_MISSING, GMS_DOUBT_OLDER,      GMS_DOUBT_OLDER,
                                                   GMS_DOUBT_DAMAGED, GMS_DOUBT_OTHER_BOOT, GMS_DOUBT_MEMORY_LOST};
    struct loss loss = {.any = sim_chance(sim, 5)};

    if (sim_chance(sim, 12)) /* keepers ended too; gms-exec brought their memory back */
        for (uint32_t r = 0; r < cluster->ranks; r++)
            if (sim_chance(sim, 2))
                cluster_forget_mirror(cluster, r);
    if (!loss.any)
        return loss;
    enum gms_recovery_doubt how = ways[sim_below(sim, 6)];
    loss.unknowable = !cluster->disks[rank].mirror.world;
    if (how == GMS_DOUBT_OLDER && loss.unknowable)
        how = GMS_DOUBT_MISSING; /* an old copy that nobody remembers to be old: recovery.h */
    cluster_lose(cluster, rank, how);
    loss.real = how == GMS_DOUBT_MEMORY_LOST || cluster_is_later(cluster->disks[rank].told, cluster_latest(cluster));
    return loss;
}

/* Everything on every node ends, keepers too; perhaps not who is still to join. */
static void end_everything(struct sim *sim)
{
    bool joiners_too = sim_chance(sim, 2);

    for (uint32_t e = 0; e < sim->engine_count; e++) {
        for (uint32_t r = 0; r < sim->cluster->ranks; r++) {
            struct process *process = &sim->engines[e].processes[r];
            process->alive = process->alive && !joiners_too && !process->incarnation;
        }
    }
    cluster_forget_effects(sim->cluster);
    for (uint32_t r = 0; r < sim->cluster->ranks; r++)
        cluster_forget_mirror(sim->cluster, r);
    if (sim_chance(sim, 4)) /* and the run directories are gone */
        cluster_forget_everything(sim->cluster);
}

/* A salvage may only begin when nobody lives that the snapshot does not know: drivers see to that. */
static void end_unknown(struct sim *sim)
{
    struct gms_core_view view = cluster_look(sim->cluster, 0);

    for (uint32_t e = 0; e < sim->engine_count; e++)
        for (uint32_t r = 0; r < sim->cluster->ranks; r++)
            if (sim->engines[e].processes[r].incarnation != view.engines[e].incarnation)
                sim->engines[e].processes[r].alive = false;
}

/* ------------------------------------------------------------------------------------------------- worlds ----- */

static void decide(struct sim *sim, bool accept_loss, struct gms_recovery_decision *ret_decision)
{
    struct gms_recovery_report reports[CLUSTER_RANKS];

    cluster_reports(sim->cluster, reports);
    for (uint32_t r = 0; r < sim->cluster->ranks; r++)
        reports[r].accept_loss = accept_loss;
    gms_recovery_decide(reports, sim->cluster->ranks, ret_decision);
}

static bool something_lives(const struct sim *sim)
{
    struct gms_recovery_report reports[CLUSTER_RANKS];
    bool lives = false;

    cluster_reports(sim->cluster, reports);
    for (uint32_t r = 0; r < sim->cluster->ranks; r++)
        lives = lives || reports[r].keeper_holds || reports[r].prepared;
    return lives;
}

/* Processes as the new coordinators find them. */
static void look_around(struct sim *sim)
{
    for (uint32_t r = 0; r < sim->cluster->ranks; r++) {
        struct gms_core_view view = cluster_look(sim->cluster, r);

        for (uint32_t e = 0; e < sim->engine_count; e++) {
            const struct process *process = &sim->engines[e].processes[r];
            bool own = process->incarnation ? process->incarnation == view.engines[e].incarnation
                                            : sim->engines[e].launch == view.engines[e].launch;

            if (view.engines[e].role != GMS_ROLE_EMPTY && (!own || !process->alive))
                sim_later_fact(sim, r, e, view.engines[e].incarnation, GMS_FACT_GONE);
        }
    }
}

void sim_restart(struct sim *sim, bool faithful)
{
    struct cluster *cluster = sim->cluster;
    struct gms_recovery_decision decision;
    struct loss loss = {0};
    bool salvage = false;

    sim_count_rows(sim);
    count_split(sim);
    for (uint32_t e = 0; e < sim->engine_count; e++)
        for (uint32_t r = 0; r < cluster->ranks; r++)
            sim->engines[e].processes[r].attached = false;
    if (!faithful)
        loss = lose(sim);
    decide(sim, false, &decision);
    sim->totals->verdicts[decision.verdict]++;
    sim->totals->lost_in_vain += loss.any && !loss.real && decision.verdict == GMS_RECOVERY_RESTORE;
    if (loss.real && something_lives(sim) && decision.verdict != GMS_RECOVERY_REFUSE)
        cluster_fail(cluster, "what was told is not known any more, engines may live, and the verdict is %d: %s",
                     decision.verdict, decision.text);
    if (!loss.real && !(loss.any && loss.unknowable) && decision.verdict == GMS_RECOVERY_REFUSE)
        cluster_fail(cluster, "nothing was lost that others have not, but: %s", decision.text);
    if (decision.verdict == GMS_RECOVERY_REFUSE && sim->salvages < 2 && sim_chance(sim, 4)) {
        decide(sim, true, &decision);
        salvage = decision.verdict == GMS_RECOVERY_SALVAGE;
        sim->salvages += salvage;
        sim->totals->verdicts[decision.verdict]++;
    }
    if (decision.verdict == GMS_RECOVERY_REFUSE) { /* somebody found it again */
        for (uint32_t r = 0; r < cluster->ranks; r++)
            cluster_lose(cluster, r, GMS_DOUBT_NONE);
        decide(sim, false, &decision);
    }
    if (decision.verdict == GMS_RECOVERY_REFUSE)
        cluster_fail(cluster, "all is there again, but: %s", decision.text);
    if (!loss.any && decision.verdict != GMS_RECOVERY_FRESH && sim_chance(sim, 8)) { /* and it dies while it begins */
        cluster_restart_in_vain(cluster, &decision, (uint32_t)sim->random_state);
        decide(sim, false, &decision);
    }
    cluster_restart(cluster, &decision);
    if (salvage)
        end_unknown(sim);
    look_around(sim);
}

void sim_kill_coordinators(struct sim *sim)
{
    struct cluster *cluster = sim->cluster;
    uint32_t victim = sim_below(sim, cluster->ranks), survivors[CLUSTER_RANKS];

    count_crash(sim, victim);
    cluster_kill(cluster, victim, sim_below(sim, 4));
    for (uint32_t turns = sim_below(sim, 60); turns && !cluster->fault[0]; turns--) {
        if (sim_chance(sim, 10))
            cluster_kill(cluster, sim_below(sim, cluster->ranks), sim_below(sim, 6));
        sim_turn(sim);
    }
    for (uint32_t r = 0; r < cluster->ranks; r++)
        survivors[r] = sim_below(sim, cluster->disks[r].queued + 1);
    cluster_crash(cluster, survivors);
}

void sim_crash(struct sim *sim)
{
    struct cluster *cluster = sim->cluster;

    sim_kill_coordinators(sim);
    for (uint32_t e = 0; e < sim->engine_count; e++)
        for (uint32_t r = 0; r < cluster->ranks; r++)
            if (sim_chance(sim, 20)) /* nobody hears it */
                sim->engines[e].processes[r].alive = false;
    if (sim_chance(sim, 40))
        end_everything(sim);
    cluster->now_ns += sim_below(sim, 3000) * MS;
    sim_restart(sim, false);
}
