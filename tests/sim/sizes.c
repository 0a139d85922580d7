/* SPDX-License-Identifier: Apache-2.0
 *
 * What agreements cost by the number of ranks, measured on the cores themselves: rounds, doorbells, bytes.
 *
 * Two extremes of the same events. AT ONCE: every rank has its news before the first round of it begins. IN TURN: each
 * rank's news comes when the round that carried the one before has ended everywhere, so every one has a round of its
 * own. Real groups lie between.
 */
#include "schedule.h"

#include <stdio.h>
#include <string.h>

enum order { AT_ONCE, IN_TURN, ORDERS };
enum agreement { JOIN, ALLOCATE, TAKEOVER, AGREEMENTS };

struct cost {
    uint64_t rounds, doorbells, records, bulks;
};

static const char *const agreement_names[AGREEMENTS] = {"join", "allocate", "takeover"};

/* Of one allreduce by recursive doubling. */
static uint32_t log2_up(uint32_t ranks)
{
    uint32_t steps = 0;

    while ((UINT32_C(1) << steps) < ranks)
        steps++;
    return steps;
}

static bool belongs_to_rounds(const struct cluster_item *item)
{
    return item->kind == CLUSTER_RING || item->kind == CLUSTER_ROUND;
}

/* Rounds that are wanted run, nothing else happens. What they set going comes behind them. */
static void run_rounds(struct cluster *cluster)
{
    for (uint32_t at = 0; at < cluster->item_count && !cluster->fault[0];) {
        if (belongs_to_rounds(&cluster->items[at])) {
            cluster_deliver(cluster, at);
            at = 0;
        } else {
            at++;
        }
    }
}

/* Doorbells and rounds first, or last. */
static void settle(struct cluster *cluster, enum order order)
{
    while (cluster->item_count && !cluster->fault[0]) {
        uint32_t at = 0;

        if (order == IN_TURN)
            run_rounds(cluster);
        while (order == AT_ONCE && at < cluster->item_count && belongs_to_rounds(&cluster->items[at]))
            at++;
        if (cluster->item_count)
            cluster_deliver(cluster, at < cluster->item_count ? at : 0);
    }
}

static void ask(struct cluster *cluster, enum order order, uint32_t engine, const struct gms_proposal *proposal)
{
    for (uint32_t r = 0; r < cluster->ranks; r++) {
        cluster_propose(cluster, r, engine, 1 + engine, proposal);
        if (order == IN_TURN)
            run_rounds(cluster);
    }
    settle(cluster, order);
}

static void say(struct cluster *cluster, enum order order, uint32_t engine, uint64_t incarnation, enum gms_fact fact)
{
    for (uint32_t r = 0; r < cluster->ranks; r++) {
        cluster_fact(cluster, r, engine, incarnation, fact);
        if (order == IN_TURN)
            run_rounds(cluster);
    }
    settle(cluster, order);
}

static void join(struct cluster *cluster, enum order order, uint32_t engine)
{
    const struct gms_proposal proposal = cluster_join(1 + engine);

    ask(cluster, order, engine, &proposal);
}

static void allocate(struct cluster *cluster, enum order order, uint32_t engine)
{
    const struct gms_proposal proposal = cluster_allocate(1 + engine, 1, "kv", GMS_POOL_KV, 64, 4096);

    ask(cluster, order, engine, &proposal);
}

/* From the promotion to the service. */
static void go_on(struct cluster *cluster, enum order order, uint32_t engine)
{
    const struct gms_core_view view = cluster_look(cluster, 0);
    const struct gms_proposal adopt = cluster_adopt(1 + engine, 2, view.epoch, view.writer_incarnation);

    ask(cluster, order, engine, &adopt);
    say(cluster, order, engine, 1 + engine, GMS_FACT_READY);
    if (cluster_look(cluster, 0).serving_engine != (int32_t)engine)
        cluster_fail(cluster, "engine %u does not serve", engine);
}

static struct cost now(const struct cluster *cluster)
{
    return (struct cost){cluster->rounds, cluster->rung, cluster->stored, cluster->bulks};
}

static struct cost since(const struct cluster *cluster, struct cost before)
{
    return (struct cost){cluster->rounds - before.rounds, cluster->rung - before.doorbells,
                         cluster->stored - before.records, cluster->bulks - before.bulks};
}

static bool measure(uint32_t ranks, enum order order, struct cost ret_costs[AGREEMENTS])
{
    const struct gms_core_options options = {.world = 1, .world_size = ranks};
    struct cluster *cluster = cluster_new(&options);
    struct cost before;

    if (!cluster) {
        printf("no memory for %u ranks\n", ranks);
        return false;
    }
    cluster->keep_trace = false;
    before = now(cluster);
    join(cluster, order, 0);
    ret_costs[JOIN] = since(cluster, before);
    before = now(cluster);
    allocate(cluster, order, 0);
    ret_costs[ALLOCATE] = since(cluster, before);
    say(cluster, AT_ONCE, 0, 1, GMS_FACT_PARKED);
    go_on(cluster, AT_ONCE, 0);
    join(cluster, AT_ONCE, 1);
    allocate(cluster, AT_ONCE, 1);
    say(cluster, AT_ONCE, 1, 2, GMS_FACT_PARKED);
    before = now(cluster);
    cluster_fact(cluster, ranks / 2, 0, 1, GMS_FACT_GONE); /* one rank's engine process dies */
    settle(cluster, order);
    go_on(cluster, order, 1);
    ret_costs[TAKEOVER] = since(cluster, before);
    bool ok = !cluster->fault[0];
    if (!ok)
        printf("FAIL %u ranks: %s\n", ranks, cluster->fault);
    cluster_free(cluster);
    return ok;
}

static void print_row(uint32_t ranks, enum agreement agreement, const struct cost *at_once, const struct cost *in_turn)
{
    const double kib = 1024.0, ballot = sizeof(struct gms_ballot), steps = log2_up(ranks);
    const double rank_bytes = (double)at_once->rounds * steps * ballot;

    printf("| %u | %s | %llu | %.0f | %.0f | %llu | %.1f | %.0f | %llu | %llu | %.0f |\n", ranks,
           agreement_names[agreement], (unsigned long long)at_once->rounds, steps * ballot / kib, rank_bytes / kib,
           (unsigned long long)(at_once->records / ranks), rank_bytes * ranks / kib / kib,
           (double)at_once->doorbells / ranks, (unsigned long long)in_turn->rounds,
           (unsigned long long)(in_turn->doorbells / ranks), (double)in_turn->rounds * steps * ballot / kib);
}

/* All ranks at once: as many rounds whatever their number. In turn: a few rounds for each rank, no more. */
static bool is_as_designed(uint32_t ranks, const struct cost *first, const struct cost *at_once,
                           const struct cost *in_turn)
{
    for (unsigned a = 0; a < AGREEMENTS; a++) {
        if (at_once[a].rounds == first[a].rounds && in_turn[a].rounds <= 8 * (uint64_t)ranks + 16 &&
            at_once[a].bulks == (a == TAKEOVER))
            continue;
        printf("FAIL %u ranks: %s takes %llu rounds at once and %llu in turn\n", ranks, agreement_names[a],
               (unsigned long long)at_once[a].rounds, (unsigned long long)in_turn[a].rounds);
        return false;
    }
    return true;
}

bool sim_sizes(uint32_t most)
{
    struct cost first[AGREEMENTS] = {{0}}, costs[ORDERS][AGREEMENTS];

    printf(
        "A ballot has %zu bytes, a core %zu KiB. Bytes: what a rank sends when the allreduce doubles recursively.\n\n",
        sizeof(struct gms_ballot), gms_core_bytes() / 1024);
    printf(
        "| ranks | agreement | rounds | KiB a round | KiB a rank | records a rank | MiB, all ranks | doorbells a rank "
        "| in turn: rounds | doorbells a rank | KiB a rank |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (uint32_t ranks = 8; ranks <= most && ranks <= GMS_MAX_RANKS; ranks *= 2) {
        for (unsigned order = 0; order < ORDERS; order++)
            if (!measure(ranks, (enum order)order, costs[order]))
                return false;
        if (ranks == 8)
            memcpy(first, costs[AT_ONCE], sizeof first);
        for (unsigned a = 0; a < AGREEMENTS; a++)
            print_row(ranks, (enum agreement)a, &costs[AT_ONCE][a], &costs[IN_TURN][a]);
        fflush(stdout);
        if (!is_as_designed(ranks, first, costs[AT_ONCE], costs[IN_TURN]))
            return false;
    }
    return true;
}
