/* SPDX-License-Identifier: Apache-2.0
 *
 * What gms_adopt costs an engine rank for the blocks of a dead engine, contents not verified: the coordinator's vectors
 * and their application, which bench_adopt measures over ranks, and the engine's own index of hashes.
 *
 *   bench_adopt_rank [SLOTS (default 344,905)]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "fake_coordinator.h"
#include "gms/engine.h"

enum { DEFAULT_SLOTS = 344905, BLOCK_BYTES = 16 };

struct engine {
    gms_session *session;
    gms_pool *pool;
    struct gms_membership member;
};

static struct gms_error error;

static void must(gms_status status, const char *what)
{
    if (status == GMS_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, gms_status_name(status), error.text);
    exit(1);
}

static struct engine parked(struct fake_coordinator *fake, uint32_t slots, int32_t engine_id)
{
    static const struct gms_identity identity = {.model = "bench",
                                                 .dtype = "f32",
                                                 .layout = "paged",
                                                 .hash_algorithm = "none",
                                                 .engine_name = "bench",
                                                 .engine_version = "1",
                                                 .block_tokens = 16,
                                                 .world_size = 1};
    struct engine engine = {0};
    const struct gms_open_options options = {.run_dir = fake->run_dir, .engine_id = engine_id, .launch = "bench"};
    must(gms_open(&options, &engine.session, &error), "open");
    must(gms_join(engine.session, &identity, &engine.member, &error), "join");
    const struct gms_pool_description kv = {
        .name = "kv", .kind = GMS_POOL_KV, .slot_count = slots, .block_bytes = BLOCK_BYTES};
    must(gms_pool_attach(engine.session, &kv, &engine.pool, &error), "attach");
    must(gms_park(engine.session, &error), "park");
    return engine;
}

static double adopt(struct fake_coordinator *fake, struct engine *engine, uint64_t source,
                    struct gms_adoption *ret_adoption)
{
    struct gms_classification counts;
    struct gms_promotion promotion;
    fake_promote(fake, source, engine->member.incarnation, false, &counts);
    must(gms_wait_promotion(engine->session, 60000, &promotion, &error), "promotion");
    const uint64_t begin = gms_clock_ns();
    must(gms_adopt(engine->session, ret_adoption, &error), "adopt");
    return (double)(gms_clock_ns() - begin) / 1e6;
}

static void seal_all(struct engine *engine, uint32_t slots)
{
    struct gms_block block = {.token_count = 16, .part_count = 1, .parts = {{.pool = gms_pool_index(engine->pool)}}};
    for (uint32_t slot = 0; slot < slots; slot++) {
        const uint64_t hash[2] = {(slot + 1) * UINT64_C(0x9e3779b97f4a7c15), slot};
        memcpy(block.hash, hash, sizeof block.hash);
        block.parts[0].slot = slot;
        must(gms_slot_acquire(engine->pool, slot, &block.parts[0].generation), "acquire");
        must(gms_block_seal(engine->session, &block, 0), "seal");
    }
}

int main(int argc, char **argv)
{
    const long slots = argc > 1 ? strtol(argv[1], NULL, 10) : DEFAULT_SLOTS;
    if (slots < 1 || slots > 10000000) {
        fprintf(stderr, "usage: bench_adopt_rank [SLOTS from 1 to 10000000]\n");
        return 64;
    }
    char dir[] = "/tmp/gms-bench-XXXXXX", path[64];
    if (mkdtemp(dir) == NULL) {
        perror(dir);
        return 1;
    }
    struct fake_coordinator fake = {.world_size = 1, .operation_timeout_ms = 20000, .epoch = 1};
    snprintf(fake.run_dir, sizeof fake.run_dir, "%s", dir);
    fake_start(&fake);
    struct engine first = parked(&fake, (uint32_t)slots, 0), second = parked(&fake, (uint32_t)slots, 1);
    struct gms_adoption adoption;
    adopt(&fake, &first, 0, &adoption);
    seal_all(&first, (uint32_t)slots);
    const double took_ms = adopt(&fake, &second, 1, &adoption);
    printf("gms_adopt: %.1f ms for %u blocks\n", took_ms, adoption.adopted);
    gms_close(first.session);
    gms_close(second.session);
    fake_stop(&fake);
    snprintf(path, sizeof path, "%s/c0", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/c0.lock", dir);
    unlink(path);
    return rmdir(dir) == 0 && adoption.adopted == (uint32_t)slots ? 0 : 1;
}
