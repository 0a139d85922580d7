/* SPDX-License-Identifier: Apache-2.0
 *
 * A standby beside a primary on a device that is nearly full: with what the budget leaves for it it can capture, and
 * without, it fails cleanly and the primary notices nothing. Real coordinators, keeper and engine ranks; what a capture
 * takes is memory of the engine's own under the tag "graphs".
 */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"
#include "vmm/cuda.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
enum { AT_PARKED = 1, AT_SERVING, GATE_END = 1, SEALED = 8 };
enum { BUDGET, STATUS, FREE, TOTAL, SEALS, SLOTS };
static const uint64_t block_bytes = 2 * MIB;
static uint64_t device; /* bytes */

/* What a rank does: how much its capture takes, and whether its pool is small (1) or all that the budget has. */
static uint64_t argument_of(uint64_t capture_bytes, bool small)
{
    return capture_bytes | small;
}

static gms_status seal(struct rank_life *life, uint32_t slot, int byte, struct gms_error *error)
{
    static char data[65536];
    struct gms_block block = {.token_count = 16, .part_count = 1};
    uint64_t generation = 0;
    const gms_token token = gms_step_begin(life->session);
    gms_status status = gms_slot_acquire(life->kv, slot, &generation);
    memset(data, byte, sizeof data);
    if (status == GMS_OK)
        status =
            gms_vmm_cuda()->write((char *)gms_pool_address(life->kv) + slot * block_bytes, data, sizeof data, error);
    gms_step_complete(life->session, token);
    if (status != GMS_OK)
        return status;
    block.hash[0] = (uint8_t)(slot + 1);
    block.hash[1] = (uint8_t)byte;
    block.parts[0] = (struct gms_part){gms_pool_index(life->kv), slot, generation};
    return gms_block_seal(life->session, &block, token);
}

static gms_status check(const struct rank_life *life, uint32_t slot, int byte, struct gms_error *error)
{
    unsigned char data[4096];
    gms_status status =
        gms_vmm_cuda()->read(data, (char *)gms_pool_address(life->kv) + slot * block_bytes, sizeof data, error);
    for (size_t i = 0; status == GMS_OK && i < sizeof data; i++)
        if (data[i] != byte)
            status = gms_fail(error, GMS_E_CORRUPT, "slot %u byte %zu is %d, not %d", slot, i, data[i], byte);
    return status;
}

/* Work, as long as the test wants: seals, or has what its predecessor sealed, and looks at it. */
static gms_status work(struct engine_rank *rank, struct rank_life *life, struct gms_error *error)
{
    gms_status status = GMS_OK;
    for (uint32_t slot = 0; status == GMS_OK && slot < SEALED && life->adoption.adopted == 0; slot++)
        status = seal(life, slot, (int)slot + 1, error);
    while (status == GMS_OK && atomic_load(&rank->go) < GATE_END) {
        struct gms_promotion promotion;
        struct gms_error ignored;
        const uint32_t slot = (uint32_t)rank->values[SEALS]++ % SEALED;
        status = check(life, slot, (int)slot + 1, error);
        const gms_status heard = gms_wait_promotion(life->session, 0, &promotion, &ignored);
        if (gms_status_is_fatal_to_engine(heard))
            return heard;
        (void)poll(NULL, 0, 1);
    }
    return status;
}

static gms_status live(struct engine_rank *rank, struct gms_error *error)
{
    struct rank_life life = {0};
    struct gms_error refusal = {.status = GMS_OK};
    struct gms_pool_description kv = {.name = "kv", .kind = GMS_POOL_KV, .block_bytes = block_bytes};
    void *graphs = NULL;
    (void)gms_vmm_cuda_choose("0", NULL); /* of this program's own copy of the table */
    gms_status status = rank_open(rank, &life.session, error);
    if (status == GMS_OK)
        status = rank_join(life.session, rank, &life.membership, error);
    if (status == GMS_OK)
        status = gms_kv_budget(life.session, &rank->values[BUDGET], error);
    if (status != GMS_OK)
        return status;
    kv.slot_count = (rank->argument & 1) != 0 ? 1024 : (uint32_t)(rank->values[BUDGET] / block_bytes);
    rank->values[SLOTS] = kv.slot_count;
    /* Everything from here on takes memory of the device, and may be what there is too little of. */
    status = gms_pool_attach(life.session, &kv, &life.kv, &refusal);
    if (status == GMS_OK)
        status = gms_region_alloc(life.session, "graphs", rank->argument & ~UINT64_C(1), &graphs, &refusal);
    if (status == GMS_OK)
        status = gms_park(life.session, &refusal);
    rank->values[STATUS] = (uint64_t)status;
    memcpy(rank->text, refusal.text, sizeof rank->text);
    if (status != GMS_OK) { /* as an engine that cannot start ends */
        gms_close(life.session);
        return GMS_OK;
    }
    (void)gms_vmm_cuda_free_bytes(&rank->values[FREE], &rank->values[TOTAL], error);
    rank_at(rank, AT_PARKED);
    status = rank_take_over(rank, &life, "unix:/here", error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    status = work(rank, &life, error);
    gms_close(life.session);
    return status;
}

/* ------------------------------------------------------------------------------------------------- cases ------ */

static void start(struct cluster *cluster, const char *budget)
{
    cluster_start(cluster, &(struct cluster_options){.ranks = 1,
                                                     .memory = "{ backend = \"cuda\"; capacity = \"1TiB\"; }",
                                                     .verify = "none",
                                                     .operation_timeout = "20s",
                                                     .more = budget});
}

static void tell(const char *what, const struct engine *engine)
{
    const struct engine_rank *rank = &engine->ranks[0];
    printf("%-34s budget %7.2f GiB, %6llu slots; ", what, (double)rank->values[BUDGET] / (double)GIB,
           (unsigned long long)rank->values[SLOTS]);
    if (rank->values[STATUS] != GMS_OK)
        printf("%s: %s\n", gms_status_name((gms_status)rank->values[STATUS]), rank->text);
    else
        printf("parked, %.2f GiB free (%.2f %%)\n", (double)rank->values[FREE] / (double)GIB,
               100.0 * (double)rank->values[FREE] / (double)rank->values[TOTAL]);
    fflush(stdout);
}

/* The primary goes on as if there had been no shadow. */
static void assert_undisturbed(const struct cluster *cluster, const struct engine *primary, uint64_t seals_before)
{
    for (int i = 0; i < 2000 && primary->ranks[0].values[SEALS] < seals_before + 50; i++)
        (void)poll(NULL, 0, 1);
    assert_true(engine_rank_alive(primary, 0));
    assert_true(primary->ranks[0].values[SEALS] >= seals_before + 50);
    assert_int_equal(primary->ranks[0].status, GMS_OK);
    assert_int_equal(cluster_number(cluster, 0, "serving_engine"), 0);
    assert_int_equal(cluster_number(cluster, 0, "epoch"), 1);
}

static void end(struct engine *engine)
{
    engine_go(engine, GATE_END);
    assert_true(engine_wait_end(engine, HARNESS_DEADLINE_MS));
    assert_int_equal(engine->ranks[0].status, GMS_OK);
    engine_finish(engine);
}

/* A shadow beside a primary that has all that the budget gives it. */
static void beside(const char *budget, uint64_t capture_bytes, bool passes)
{
    struct cluster cluster;
    struct engine primary, shadow;
    start(&cluster, budget);
    engine_start(&primary, &cluster, 0, "a", live, argument_of(capture_bytes, false));
    assert_true(engine_reached(&primary, AT_SERVING, HARNESS_DEADLINE_MS));
    tell("primary", &primary);
    const uint64_t before = primary.ranks[0].values[SEALS];
    engine_start(&shadow, &cluster, 1, "b", live, argument_of(capture_bytes, false));
    assert_true(passes ? engine_reached(&shadow, AT_PARKED, HARNESS_DEADLINE_MS)
                       : engine_wait_end(&shadow, HARNESS_DEADLINE_MS));
    tell("shadow", &shadow);
    assert_int_equal(shadow.ranks[0].values[STATUS], passes ? GMS_OK : GMS_E_NO_MEMORY);
    assert_int_equal(shadow.ranks[0].values[BUDGET], primary.ranks[0].values[BUDGET]);
    assert_true(passes || strlen(shadow.ranks[0].text) > 0);
    assert_undisturbed(&cluster, &primary, before);
    engine_kill(&primary, 0); /* the one that is parked is worth something */
    if (passes)
        assert_true(engine_reached(&shadow, AT_SERVING, HARNESS_DEADLINE_MS));
    end(&shadow);
    engine_finish(&primary);
    cluster_stop(&cluster);
}

/* Of 140 GiB: captures of 12, which fit once and not twice into what 85 % leave, or with 16 for the shadow. */
static void with_fraction(uint64_t reserve_bytes, bool passes)
{
    char budget[128];
    const uint64_t capture_bytes = device / 140 * 12 / MIB * MIB;
    printf("-- 85 %%, %.1f GiB left for a shadow; captures of %.1f GiB\n", (double)reserve_bytes / (double)GIB,
           (double)capture_bytes / (double)GIB);
    snprintf(budget, sizeof budget, "budget : { percent = 85; reserve = \"%lluMiB\"; };",
             (unsigned long long)(reserve_bytes / MIB));
    beside(budget, capture_bytes, passes);
}

static void test_fraction_without_reserve(void **state)
{
    (void)state;
    with_fraction(0, false);
}

static void test_fraction_with_reserve(void **state)
{
    (void)state;
    with_fraction(device / 140 * 16, true);
}

/* The primary alone leaves less than 1 % free. */
static void test_nearly_full_without_reserve(void **state)
{
    (void)state;
    printf("-- 98 %%, nothing left for a shadow; captures of 1.1 GiB\n");
    beside("budget : { percent = 98; reserve = \"0B\"; };", 1126 * MIB, false);
}

static bool is_measured(void *context)
{
    json_t *status = cluster_status(context, 0);
    const json_t *budget = json_object_get(status, "budget");
    const bool measured = json_integer_value(json_object_get(budget, "measured_bytes")) > 0;
    json_decref(status);
    return measured;
}

/* What a parked shadow was measured to need is left in the next deployment, and less than 1 % of the device is free. */
static void test_nearly_full_with_the_measured(void **state)
{
    struct cluster cluster;
    struct engine primary, shadow;
    struct gms_message down = {.type = GMS_MESSAGE_SHUTDOWN};
    (void)state;
    printf("-- 99 %%, a shadow is measured first; captures of 512 MiB\n");
    start(&cluster, "budget : { percent = 99; };");
    engine_start(&primary, &cluster, 0, "a", live, argument_of(512 * MIB, true));
    assert_true(engine_reached(&primary, AT_SERVING, HARNESS_DEADLINE_MS));
    engine_start(&shadow, &cluster, 1, "b", live, argument_of(512 * MIB, true));
    assert_true(engine_reached(&shadow, AT_PARKED, HARNESS_DEADLINE_MS));
    assert_true(eventually(is_measured, &cluster, HARNESS_DEADLINE_MS));
    json_t *status = cluster_status(&cluster, 0), *budget = json_object_get(status, "budget");
    printf("measured by %s: a shadow needs %.3f GiB\n", json_string_value(json_object_get(budget, "measured_by")),
           (double)json_integer_value(json_object_get(budget, "measured_bytes")) / (double)GIB);
    json_decref(status);
    engine_kill(&primary, 0);
    assert_true(engine_reached(&shadow, AT_SERVING, HARNESS_DEADLINE_MS));
    end(&shadow);
    engine_finish(&primary);
    assert_int_equal(cluster_order(&cluster, 0, &down), GMS_OK);
    assert_int_equal(cluster_wait_end(&cluster, HARNESS_DEADLINE_MS), 0);

    cluster_relaunch(&cluster, "--fresh");
    engine_start(&primary, &cluster, 0, "c", live, argument_of(512 * MIB, false));
    assert_true(engine_reached(&primary, AT_SERVING, HARNESS_DEADLINE_MS));
    tell("primary", &primary);
    const uint64_t before = primary.ranks[0].values[SEALS];
    engine_start(&shadow, &cluster, 1, "d", live, argument_of(512 * MIB, false));
    assert_true(engine_reached(&shadow, AT_PARKED, HARNESS_DEADLINE_MS));
    tell("shadow", &shadow);
    assert_true(shadow.ranks[0].values[FREE] < shadow.ranks[0].values[TOTAL] / 100);
    assert_undisturbed(&cluster, &primary, before);
    engine_kill(&primary, 0);
    assert_true(engine_reached(&shadow, AT_SERVING, HARNESS_DEADLINE_MS));
    end(&shadow);
    engine_finish(&primary);
    cluster_stop(&cluster);
}

/* Asked by another process: this one must not have used the driver when it forks engine ranks. 0: there is none. */
static uint64_t device_bytes(void)
{
    FILE *list = popen("nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null", "re");
    char line[256] = "";
    if (list == NULL)
        return 0;
    const bool found = fgets(line, sizeof line, list) != NULL;
    pclose(list);
    return found ? strtoull(line, NULL, 10) * MIB : 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fraction_without_reserve),
        cmocka_unit_test(test_fraction_with_reserve),
        cmocka_unit_test(test_nearly_full_without_reserve),
        cmocka_unit_test(test_nearly_full_with_the_measured),
    };
    device = device_bytes();
    if (device == 0) {
        fprintf(stderr, "skipped: nvidia-smi lists no GPU\n");
        return 77;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("gpu_budget", tests, NULL, NULL);
}
