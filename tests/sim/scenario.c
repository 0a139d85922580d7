/* SPDX-License-Identifier: Apache-2.0
 *
 * Named scenarios: their whole trace is printed and compared with golden/NAME.txt. What changes there changes what
 * ranks do, in an order that somebody has read. Two ranks; everything is delivered oldest first.
 */
#include "schedule.h"

#include <stdio.h>
#include <string.h>

enum { RANKS = 2 };

static void say(const char *words)
{
    printf("-- %s\n", words);
}

static void everywhere(struct cluster *cluster, uint32_t engine, const struct gms_proposal *proposal)
{
    for (uint32_t r = 0; r < RANKS; r++)
        cluster_propose(cluster, r, engine, 1 + engine * RANKS + r, proposal);
}

static void fact_everywhere(struct cluster *cluster, uint32_t engine, uint64_t incarnation, enum gms_fact fact)
{
    for (uint32_t r = 0; r < RANKS; r++)
        cluster_fact(cluster, r, engine, incarnation, fact);
    cluster_settle(cluster);
}

static void join_and_park(struct cluster *cluster, uint32_t engine, uint64_t incarnation)
{
    struct gms_proposal join = cluster_join(100 + incarnation);

    everywhere(cluster, engine, &join);
    cluster_settle(cluster);
    fact_everywhere(cluster, engine, incarnation, GMS_FACT_PARKED);
}

static void adopt_and_serve(struct cluster *cluster, uint32_t engine, uint64_t incarnation)
{
    struct gms_core_view view = cluster_look(cluster, 0);
    struct gms_proposal adopt =
        cluster_adopt(incarnation, view.engines[engine].next_sequence, view.epoch, view.writer_incarnation);

    everywhere(cluster, engine, &adopt);
    cluster_settle(cluster);
    fact_everywhere(cluster, engine, incarnation, GMS_FACT_READY);
}

/* An engine serves, its rank 1 dies, the shadow takes over. */
static void takeover(struct cluster *cluster)
{
    say("engine 0 joins, parks, serves");
    join_and_park(cluster, 0, 1);
    adopt_and_serve(cluster, 0, 1);
    say("engine 1 joins and parks as a shadow");
    join_and_park(cluster, 1, 2);
    say("rank 1 of engine 0 dies");
    cluster_fact(cluster, 1, 0, 1, GMS_FACT_GONE);
    cluster_settle(cluster);
    say("engine 1 adopts and serves");
    adopt_and_serve(cluster, 1, 2);
}

/* All coordinators die when one rank has stored and told an outcome that the other has not; then when none has. */
static void forward_and_back(struct cluster *cluster)
{
    struct gms_proposal kv = cluster_allocate(1, 1, "kv", GMS_POOL_KV, 8, 4096);
    struct gms_proposal spare = cluster_allocate(1, 2, "spare", GMS_POOL_KV, 8, 4096);

    say("engine 0 joins");
    everywhere(cluster, 0, &(struct gms_proposal[]){cluster_join(101)}[0]);
    cluster_settle(cluster);
    say("it allocates kv; rank 1 does not see the end of the round that decides");
    cluster->held[1] = 1u << CLUSTER_ROUND;
    everywhere(cluster, 0, &kv);
    cluster_settle(cluster);
    cluster->held[1] = 0;
    for (uint32_t i = 0; i < 2; i++) /* the round that starts it, the one that hears rank 0; the next one decides */
        for (uint32_t at = 0; at < cluster->item_count; at++)
            if (cluster->items[at].rank == 1 && cluster->items[at].kind == CLUSTER_ROUND) {
                cluster_deliver(cluster, at);
                cluster->held[1] = 1u << CLUSTER_ROUND;
                cluster_settle(cluster);
                break;
            }
    say("all coordinators die: what rank 0 told is completed on rank 1");
    cluster_bounce(cluster, (const uint32_t[CLUSTER_RANKS]){0});
    say("engine 0 comes back and asks for the next pool; prepared on both, decided on none");
    for (uint32_t r = 0; r < RANKS; r++) {
        struct gms_event attached = {.type = GMS_EVENT_ATTACHED};
        attached.attached.incarnation = 1;
        cluster_step(cluster, r, &attached);
        cluster->held[r] = 1u << CLUSTER_PREPARE;
    }
    everywhere(cluster, 0, &spare);
    cluster_settle(cluster);
    say("all coordinators die: it is undone, and asked again it starts anew under its number");
    for (uint32_t r = 0; r < RANKS; r++)
        cluster->held[r] = 0;
    cluster_bounce(cluster, NULL);
    everywhere(cluster, 0, &spare);
    cluster_settle(cluster);
}

static void serve_with_a_shadow(struct cluster *cluster)
{
    say("engine 0 serves, engine 1 is its shadow");
    join_and_park(cluster, 0, 1);
    adopt_and_serve(cluster, 0, 1);
    join_and_park(cluster, 1, 2);
}

/* The coordinators die while rank 1 is held in the takeover, and rank 0's store is lost. What the others conclude. */
static void lose_the_first_store(struct cluster *cluster, const uint32_t *survivors,
                                 struct gms_recovery_report *reports, struct gms_recovery_decision *ret_decision)
{
    cluster_fact(cluster, 0, 0, 1, GMS_FACT_COMMANDED);
    cluster_settle(cluster);
    cluster->held[1] = 0;
    cluster_crash(cluster, survivors);
    say("rank 0's store is gone");
    cluster_lose(cluster, 0, GMS_DOUBT_MISSING);
    cluster_reports(cluster, reports);
    gms_recovery_decide(reports, RANKS, ret_decision);
    printf("verdict %d: %s\n", ret_decision->verdict, ret_decision->text);
}

/* The coordinators die in a takeover; a store is gone that others equal: nothing is lost. */
static void spare_store(struct cluster *cluster)
{
    struct gms_recovery_report reports[CLUSTER_RANKS];
    struct gms_recovery_decision decision;

    serve_with_a_shadow(cluster);
    say("engine 0 is commanded away; the coordinators die before it is retired on rank 1");
    cluster->held[1] = 1u << CLUSTER_RETIRED;
    lose_the_first_store(cluster, NULL, reports, &decision);
    cluster_restart(cluster, &decision);
    cluster_settle(cluster);
}

/* The coordinators die in a takeover; the one store is gone that knew of it: refused. The operator accepts the loss. */
static void lost_store(struct cluster *cluster)
{
    struct gms_recovery_report reports[CLUSTER_RANKS];
    struct gms_recovery_decision decision;

    serve_with_a_shadow(cluster);
    say("engine 0 is commanded away; the coordinators die before rank 1 has stored that");
    cluster->held[1] = 1u << CLUSTER_STORE;
    lose_the_first_store(cluster, (uint32_t[RANKS]){0}, reports, &decision);
    say("its operator accepts the loss");
    for (uint32_t r = 0; r < RANKS; r++)
        reports[r].accept_loss = true;
    gms_recovery_decide(reports, RANKS, &decision);
    printf("verdict %d: %s\n", decision.verdict, decision.text);
    cluster_restart(cluster, &decision);
    cluster_settle(cluster);
}

static const struct {
    const char *name;
    void (*run)(struct cluster *cluster);
} scenarios[] = {{"takeover", takeover},
                 {"forward-and-back", forward_and_back},
                 {"spare-store", spare_store},
                 {"lost-store", lost_store}};

bool sim_scenario(const char *name)
{
    struct gms_core_options options = {.world = 1,
                                       .world_size = RANKS,
                                       .operation_timeout_ns = 10000 * MS,
                                       .transfer_stall_ns = 5000 * MS,
                                       .fence_report_ns = 2000 * MS,
                                       .reattach_ns = 5000 * MS};

    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        if (strcmp(name, "list") == 0)
            printf("%s\n", scenarios[i].name);
        if (strcmp(name, scenarios[i].name) != 0)
            continue;
        struct cluster *cluster = cluster_new(&options);
        if (!cluster)
            return false;
        cluster->keep_trace = false;
        cluster->print_trace = true;
        scenarios[i].run(cluster);
        cluster_check_effects(cluster);
        bool ok = !cluster->fault[0];
        if (!ok)
            printf("FAIL %s\n", cluster->fault);
        cluster_free(cluster);
        return ok;
    }
    return strcmp(name, "list") == 0;
}
