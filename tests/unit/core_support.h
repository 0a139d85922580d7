/* SPDX-License-Identifier: Apache-2.0
 * What the tests of the core share: a cluster in which every step is checked, and engines that go through their life.
 */
#ifndef TESTS_UNIT_CORE_SUPPORT_H
#define TESTS_UNIT_CORE_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../sim/cluster.h"

#define MS UINT64_C(1000000)
enum { ANY = -1 };

#define assert_sound(cluster)                                                                                          \
    do {                                                                                                               \
        if ((cluster)->fault[0])                                                                                       \
            fail_msg("%s", (cluster)->fault);                                                                          \
    } while (0)

static inline struct cluster *new_cluster(uint32_t ranks)
{
    struct gms_core_options options = {.world = 77,
                                       .world_size = ranks,
                                       .operation_timeout_ns = 10000 * MS,
                                       .transfer_stall_ns = 1000 * MS,
                                       .fence_report_ns = 2000 * MS};
    struct cluster *cluster = cluster_new(&options);

    assert_non_null(cluster);
    return cluster;
}

static inline uint64_t session_of(uint32_t engine, uint32_t rank)
{
    return 100 * (engine + 1) + rank;
}

/* Every rank proposes the same; returns what rank 0 was answered, and checks that all were answered alike. */
static inline struct gms_outcome everywhere(struct cluster *cluster, uint32_t engine,
                                            const struct gms_proposal *proposal)
{
    struct gms_outcome first;

    memset(&first, 0, sizeof first);
    for (uint32_t r = 0; r < cluster->ranks; r++)
        cluster_propose(cluster, r, engine, session_of(engine, r), proposal);
    cluster_settle(cluster);
    assert_sound(cluster);
    for (uint32_t r = 0; r < cluster->ranks; r++) {
        const struct gms_action *reply = cluster_last(cluster, r, GMS_ACTION_REPLY);

        assert_non_null(reply);
        assert_int_equal(reply->reply.session, session_of(engine, r));
        assert_int_equal(reply->reply.outcome.key.sequence, proposal->key.sequence);
        if (r == 0)
            first = reply->reply.outcome;
        assert_int_equal(reply->reply.outcome.status, first.status);
        assert_string_equal(reply->reply.outcome.text, first.text);
    }
    return first;
}

static inline uint64_t join(struct cluster *cluster, uint32_t engine, uint64_t launch)
{
    struct gms_proposal proposal = cluster_join(launch);
    struct gms_outcome outcome = everywhere(cluster, engine, &proposal);

    assert_int_equal(outcome.status, GMS_OK);
    return outcome.incarnation;
}

static inline void fact_everywhere(struct cluster *cluster, uint32_t engine, uint64_t incarnation, enum gms_fact fact)
{
    for (uint32_t r = 0; r < cluster->ranks; r++)
        cluster_fact(cluster, r, engine, incarnation, fact);
    cluster_settle(cluster);
    assert_sound(cluster);
}

static inline uint64_t join_and_park(struct cluster *cluster, uint32_t engine, uint64_t launch)
{
    uint64_t incarnation = join(cluster, engine, launch);

    fact_everywhere(cluster, engine, incarnation, GMS_FACT_PARKED);
    return incarnation;
}

static inline struct gms_outcome adopt(struct cluster *cluster, uint32_t engine, uint64_t incarnation)
{
    struct gms_core_view view = cluster_look(cluster, 0);
    struct gms_proposal proposal =
        cluster_adopt(incarnation, view.engines[engine].next_sequence, view.epoch, view.writer_incarnation);

    return everywhere(cluster, engine, &proposal);
}

/* A promoted engine adopts and serves. */
static inline void adopt_and_serve(struct cluster *cluster, uint32_t engine, uint64_t incarnation)
{
    assert_int_equal(adopt(cluster, engine, incarnation).status, GMS_OK);
    fact_everywhere(cluster, engine, incarnation, GMS_FACT_READY);
    struct gms_core_view view = cluster_look(cluster, 0);
    assert_int_equal(view.takeover, GMS_TAKEOVER_SERVING);
    assert_int_equal(view.serving_engine, engine);
}

/* Engine 0 serves as incarnation 1 with a pool, engine 1 is parked as incarnation 2. */
static inline struct cluster *serving_pair(uint32_t ranks)
{
    struct cluster *c = new_cluster(ranks);
    struct gms_proposal kv = cluster_allocate(1, 1, "kv", GMS_POOL_KV, 8, 4096);

    assert_int_equal(join(c, 0, 11), 1);
    assert_int_equal(everywhere(c, 0, &kv).status, GMS_OK);
    fact_everywhere(c, 0, 1, GMS_FACT_PARKED);
    adopt_and_serve(c, 0, 1);
    assert_int_equal(join(c, 1, 12), 2);
    fact_everywhere(c, 1, 2, GMS_FACT_PARKED);
    cluster_forget_trace(c);
    return c;
}

/* Every state of a cluster's rank is that of rank 0. */
static inline void assert_agreed(struct cluster *cluster)
{
    struct gms_core_view first = cluster_look(cluster, 0);

    for (uint32_t r = 1; r < cluster->ranks; r++) {
        struct gms_core_view view = cluster_look(cluster, r);
        assert_memory_equal(&view, &first, sizeof view);
    }
}

#endif
