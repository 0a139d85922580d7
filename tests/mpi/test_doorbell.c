/* SPDX-License-Identifier: Apache-2.0
 *
 * Doorbells without MPI: three of them in one process, each with a loop of its own.
 */
#include <event2/event.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <pthread.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "group/doorbell.h"

enum { RANKS = 3 };

struct rank {
    struct gms_doorbell *doorbell;
    struct event_base *base;
    uint64_t rung, rings, beats;
    char lost[256];
    gms_status connected;
    struct gms_error error;
};

static char directory[64];
static struct rank ranks[RANKS];

static void on_rung(void *context, uint64_t round)
{
    struct rank *rank = context;
    rank->rung = round;
    rank->rings++;
}

static void on_lost(void *context, const char *text)
{
    struct rank *rank = context;
    snprintf(rank->lost, sizeof rank->lost, "%s", text);
}

static void on_beat(void *context)
{
    struct rank *rank = context;
    rank->beats++;
}

static struct gms_doorbell_options options_of(uint32_t rank, uint64_t heartbeat_ms)
{
    return (struct gms_doorbell_options){.run_dir = directory,
                                         .world = 9,
                                         .rank = rank,
                                         .ranks = RANKS,
                                         .heartbeat_ns = heartbeat_ms * GMS_NS_PER_MS,
                                         .rung = on_rung,
                                         .lost = on_lost,
                                         .beat = on_beat,
                                         .context = &ranks[rank]};
}

static void *connect_one(void *context)
{
    struct rank *rank = context;
    rank->connected = gms_doorbell_connect(rank->doorbell, rank->base, gms_clock_ns() + 5 * GMS_NS_PER_S, &rank->error);
    return NULL;
}

static void begin(uint64_t heartbeat_ms)
{
    pthread_t threads[RANKS];
    snprintf(directory, sizeof directory, "/tmp/gms-bell-XXXXXX");
    assert_non_null(mkdtemp(directory));
    memset(ranks, 0, sizeof ranks);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct gms_doorbell_options options = options_of(rank, heartbeat_ms);
        struct gms_error error;
        ranks[rank].base = event_base_new();
        assert_int_equal(gms_doorbell_open(&options, &ranks[rank].doorbell, &error), GMS_OK);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(pthread_create(&threads[rank], NULL, connect_one, &ranks[rank]), 0);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        pthread_join(threads[rank], NULL);
        if (ranks[rank].connected != GMS_OK)
            fail_msg("rank %u: %s", rank, ranks[rank].error.text);
    }
}

static void end(void)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        gms_doorbell_close(ranks[rank].doorbell);
        event_base_free(ranks[rank].base);
    }
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    assert_int_equal(system(command), 0);
}

/* Lets this rank's loop handle what is there. */
static void turn(uint32_t rank)
{
    event_base_loop(ranks[rank].base, EVLOOP_NONBLOCK);
}

static void test_rings(void **state)
{
    (void)state;
    begin(60000);
    gms_doorbell_ring(ranks[1].doorbell, 5);
    turn(0);
    turn(2);
    assert_int_equal(ranks[0].rung, 5);
    assert_int_equal(ranks[2].rung, 5);
    assert_int_equal(ranks[1].rings, 0);
    gms_doorbell_ring(ranks[1].doorbell, 5); /* idempotent: nothing is sent */
    gms_doorbell_ring(ranks[1].doorbell, 4);
    turn(0);
    assert_int_equal(ranks[0].rings, 1);
    gms_doorbell_ring(ranks[0].doorbell, 6); /* both at once */
    gms_doorbell_ring(ranks[2].doorbell, 6);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        turn(rank);
        assert_int_equal(ranks[rank].rung, 6);
    }
    end();
}

/* Rank 0 does not read while rank 1 rings far more often than a socket holds: no ring blocks, the last one arrives. */
static void test_full(void **state)
{
    enum { MANY = 20000 };
    (void)state;
    begin(60000);
    for (uint64_t round = 1; round <= MANY; round++) {
        gms_doorbell_ring(ranks[1].doorbell, round);
        if (round % 100 == 0)
            turn(2);
    }
    assert_int_equal(ranks[0].rings, 0);
    for (int i = 0; i < 1000 && ranks[0].rung < MANY; i++) {
        turn(0);
        turn(1); /* sends the latest once there is room */
    }
    assert_int_equal(ranks[0].rung, MANY);
    turn(2);
    assert_int_equal(ranks[2].rung, MANY);
    end();
}

static void test_closed(void **state)
{
    (void)state;
    begin(60000);
    assert_false(gms_doorbell_any_closed(ranks[0].doorbell));
    gms_doorbell_ring(ranks[1].doorbell, 3); /* its last word counts */
    gms_doorbell_close(ranks[1].doorbell);
    ranks[1].doorbell = NULL;
    assert_true(gms_doorbell_any_closed(ranks[0].doorbell));
    turn(0);
    assert_int_equal(ranks[0].rung, 3);
    assert_non_null(strstr(ranks[0].lost, "rank 1"));
    gms_doorbell_expect_end(ranks[2].doorbell); /* a planned stop is no loss */
    assert_false(gms_doorbell_any_closed(ranks[2].doorbell));
    turn(2);
    assert_string_equal(ranks[2].lost, "");
    end();
}

/* Runs the loops of the ranks in `mask` until rank 0 lost somebody or `ms` passed. */
static void run_for(uint32_t mask, uint64_t ms)
{
    uint64_t deadline_ns = gms_clock_ns() + ms * GMS_NS_PER_MS;
    while (gms_clock_ns() < deadline_ns && ranks[0].lost[0] == '\0') {
        for (uint32_t rank = 0; rank < RANKS; rank++)
            if ((mask & (1u << rank)) != 0)
                turn(rank);
        usleep(500); /* loops are polled here, not waited for */
    }
}

static void test_beats(void **state)
{
    (void)state;
    begin(20);
    run_for(7, 300);
    assert_string_equal(ranks[0].lost, "");
    assert_true(ranks[0].beats >= 5);
    run_for(5, 3000); /* rank 1 has stopped */
    assert_non_null(strstr(ranks[0].lost, "rank 1 was silent"));
    end();
}

/* Who did not run himself says nothing about the others (V17). */
static void test_own_sleep(void **state)
{
    (void)state;
    begin(20);
    run_for(7, 100);
    run_for(6, 300); /* rank 0 is frozen for 15 beats; the others beat on */
    for (int i = 0; i < 3; i++)
        turn(0);
    assert_string_equal(ranks[0].lost, "");
    run_for(7, 200);
    assert_string_equal(ranks[0].lost, "");
    end();
}

/* Nor when the whole machine stood still: nobody beat meanwhile, and that proves nothing. */
static void test_all_slept(void **state)
{
    (void)state;
    begin(20);
    run_for(7, 100);
    usleep(300 * 1000); /* the standstill is the point */
    for (int i = 0; i < 3; i++)
        turn(0);
    assert_string_equal(ranks[0].lost, "");
    run_for(7, 200);
    assert_string_equal(ranks[0].lost, "");
    end();
}

static void test_missing_rank(void **state)
{
    struct gms_error error;
    (void)state;
    snprintf(directory, sizeof directory, "/tmp/gms-bell-XXXXXX");
    assert_non_null(mkdtemp(directory));
    memset(ranks, 0, sizeof ranks);
    ranks[0].base = event_base_new();
    struct gms_doorbell_options options = options_of(0, 1000);
    assert_int_equal(gms_doorbell_open(&options, &ranks[0].doorbell, &error), GMS_OK);
    assert_int_equal(
        gms_doorbell_connect(ranks[0].doorbell, ranks[0].base, gms_clock_ns() + 50 * GMS_NS_PER_MS, &error),
        GMS_E_TIMEOUT);
    assert_non_null(strstr(error.text, "rank 1"));
    gms_doorbell_close(ranks[0].doorbell);
    event_base_free(ranks[0].base);
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rings),        cmocka_unit_test(test_full),      cmocka_unit_test(test_closed),
        cmocka_unit_test(test_beats),        cmocka_unit_test(test_own_sleep), cmocka_unit_test(test_all_slept),
        cmocka_unit_test(test_missing_rank),
    };
    return cmocka_run_group_tests_name("doorbell", tests, NULL, NULL);
}
