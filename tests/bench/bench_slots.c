/* SPDX-License-Identifier: Apache-2.0
 *
 * What a slot costs on the path of a token: acquire + seal + release, as an engine calls them through libgms.so, with a
 * step begun and completed for each. And what it costs to note how far a block has come, once for each of its tokens.
 *
 *   bench_slots [--slots N] [--rounds N] [--verify] [--loop SECONDS]
 *
 * Prints nanoseconds, and the same for the bare minimum beside it: three compare-and-swaps on one word, twelve words
 * written and a counter, so that the ratio says what the library adds on this machine. --loop runs the calls for so
 * many seconds between two writes to standard error, for strace to look at: between the two lines there must be no
 * system call.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "fake_coordinator.h"
#include "gms/engine.h"

enum { BLOCK_BYTES = 4096, BLOCK_TOKENS = 16, DEFAULT_SLOTS = 512, DEFAULT_ROUNDS = 2000, SAMPLES = 7 };

struct bench {
    struct fake_coordinator fake;
    gms_session *session;
    gms_pool *pool;
    uint32_t slots, rounds;
};

static void must(gms_status status, const struct gms_error *error, const char *what)
{
    if (status == GMS_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, gms_status_name(status), error->text);
    exit(1);
}

static void start(struct bench *bench)
{
    static const struct gms_identity identity = {.model = "bench",
                                                 .dtype = "f32",
                                                 .layout = "paged",
                                                 .hash_algorithm = "none",
                                                 .engine_name = "bench",
                                                 .engine_version = "1",
                                                 .block_tokens = 16,
                                                 .world_size = 1};
    struct gms_error error = {0};
    struct gms_membership member;
    struct gms_promotion promotion;
    struct gms_adoption adoption;
    struct gms_classification counts;
    fake_start(&bench->fake);
    const struct gms_open_options options = {.run_dir = bench->fake.run_dir, .launch = "bench"};
    must(gms_open(&options, &bench->session, &error), &error, "open");
    must(gms_join(bench->session, &identity, &member, &error), &error, "join");
    const struct gms_pool_description kv = {
        .name = "kv", .kind = GMS_POOL_KV, .slot_count = bench->slots, .block_bytes = BLOCK_BYTES};
    must(gms_pool_attach(bench->session, &kv, &bench->pool, &error), &error, "attach");
    const struct gms_tail_layout layout = {
        .planes = 8, .position_bytes = BLOCK_BYTES / 8 / BLOCK_TOKENS, .plane_bytes = BLOCK_BYTES / 8};
    must(gms_tail_layout_set(bench->pool, &layout, &error), &error, "layout");
    must(gms_park(bench->session, &error), &error, "park");
    fake_promote(&bench->fake, 0, member.incarnation, false, &counts);
    must(gms_wait_promotion(bench->session, 5000, &promotion, &error), &error, "promotion");
    must(gms_adopt(bench->session, &adoption, &error), &error, "adopt");
}

static void one_round(struct bench *bench)
{
    struct gms_block block = {.token_count = 16, .part_count = 1, .parts = {{.pool = gms_pool_index(bench->pool)}}};
    for (uint32_t slot = 0; slot < bench->slots; slot++) {
        const gms_token token = gms_step_begin(bench->session);
        block.parts[0].slot = slot;
        memcpy(block.hash, &token, sizeof token);
        gms_status status = gms_slot_acquire(bench->pool, slot, &block.parts[0].generation);
        gms_step_complete(bench->session, token);
        if (status == GMS_OK)
            status = gms_block_seal(bench->session, &block, token);
        if (status == GMS_OK)
            status = gms_slot_release(bench->pool, slot, block.parts[0].generation, token);
        if (status != GMS_OK) {
            fprintf(stderr, "slot %u: %s\n", slot, gms_status_name(status));
            exit(1);
        }
    }
}

/* Every slot's block from its first token to its last. Returns the time of the notes alone. */
static uint64_t note_round(struct bench *bench)
{
    static const uint8_t parent[GMS_BLOCK_HASH_BYTES] = {1};
    struct gms_tail_entry entry = {.hash = {2}};
    uint64_t spent_ns = 0;
    for (uint32_t slot = 0; slot < bench->slots; slot++) {
        uint64_t generation = 0;
        gms_status status = gms_slot_acquire(bench->pool, slot, &generation);
        const uint64_t begin_ns = gms_clock_ns();
        for (entry.token_count = 1; entry.token_count <= BLOCK_TOKENS && status == GMS_OK; entry.token_count++) {
            entry.hash[1] = (uint8_t)entry.token_count;
            status = gms_tail_note(bench->pool, slot, generation, parent, &entry, 0);
        }
        spent_ns += gms_clock_ns() - begin_ns;
        if (status == GMS_OK)
            status = gms_slot_release(bench->pool, slot, generation, 0);
        if (status != GMS_OK) {
            fprintf(stderr, "note in slot %u: %s\n", slot, gms_status_name(status));
            exit(1);
        }
    }
    return spent_ns;
}

/* What no implementation can do without: the word taken, changed twice more, and a record written. */
static void bare_round(_Atomic uint64_t *words, uint64_t *records, _Atomic uint64_t *counter, uint32_t slots)
{
    for (uint32_t slot = 0; slot < slots; slot++) {
        for (int move = 0; move < 3; move++) {
            uint64_t word = atomic_load_explicit(&words[slot], memory_order_acquire);
            atomic_compare_exchange_strong_explicit(&words[slot], &word, word + 1, memory_order_acq_rel,
                                                    memory_order_acquire);
            if (move == 0)
                for (int i = 0; i < 12; i++)
                    ((volatile uint64_t *)records)[slot * 16 + i] = word + (uint64_t)i;
        }
        atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
    }
}

static int by_value(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void measure(struct bench *bench)
{
    _Atomic uint64_t *words = calloc(bench->slots, sizeof *words), counter = 0;
    uint64_t *records = calloc(bench->slots, 128);
    double ours[SAMPLES], bare[SAMPLES];
    if (words == NULL || records == NULL)
        exit(1);
    const double count = (double)bench->slots * bench->rounds;
    one_round(bench);
    for (int sample = 0; sample < SAMPLES; sample++) {
        uint64_t begin = gms_clock_ns();
        for (uint32_t round = 0; round < bench->rounds; round++)
            one_round(bench);
        ours[sample] = (double)(gms_clock_ns() - begin) / count;
        begin = gms_clock_ns();
        for (uint32_t round = 0; round < bench->rounds; round++)
            bare_round(words, records, &counter, bench->slots);
        bare[sample] = (double)(gms_clock_ns() - begin) / count;
    }
    qsort(ours, SAMPLES, sizeof ours[0], by_value);
    qsort(bare, SAMPLES, sizeof bare[0], by_value);
    printf("acquire + seal + release, with a step: median %.1f ns a slot (least %.1f, most %.1f)\n", ours[SAMPLES / 2],
           ours[0], ours[SAMPLES - 1]);
    printf("three swaps and a record, bare:        median %.1f ns a slot (least %.1f, most %.1f)\n", bare[SAMPLES / 2],
           bare[0], bare[SAMPLES - 1]);
    printf("ratio %.1f; goal: at most 200 ns\n", ours[SAMPLES / 2] / bare[SAMPLES / 2]);
    for (int sample = 0; sample < SAMPLES; sample++) {
        uint64_t spent_ns = 0;
        for (uint32_t round = 0; round < bench->rounds / BLOCK_TOKENS + 1; round++)
            spent_ns += note_round(bench);
        ours[sample] = (double)spent_ns / ((double)(bench->rounds / BLOCK_TOKENS + 1) * bench->slots * BLOCK_TOKENS);
    }
    qsort(ours, SAMPLES, sizeof ours[0], by_value);
    printf("a block's progress noted:              median %.1f ns a token (least %.1f, most %.1f); goal: at most 100 "
           "ns%s\n",
           ours[SAMPLES / 2], ours[0], ours[SAMPLES - 1],
           bench->fake.verify_full ? ", contents not counted: here they are digested" : "");
    free(words);
    free(records);
}

/* The clock is read through the vDSO: no system call either. */
static void loop(struct bench *bench, long seconds)
{
    static const char begin[] = "loop begins\n", end[] = "loop ends\n";
    const uint64_t deadline_ns = gms_clock_ns() + (uint64_t)seconds * GMS_NS_PER_S;
    uint64_t rounds = 0;
    one_round(bench);
    if (write(STDERR_FILENO, begin, sizeof begin - 1) < 0)
        exit(1);
    for (; gms_clock_ns() < deadline_ns; rounds++) {
        one_round(bench);
        (void)note_round(bench);
    }
    if (write(STDERR_FILENO, end, sizeof end - 1) < 0)
        exit(1);
    printf("%llu slots acquired, sealed, noted and released\n", (unsigned long long)rounds * bench->slots);
}

static long number(const char *text)
{
    char *end = NULL;
    const long value = text != NULL ? strtol(text, &end, 10) : 0;
    if (value <= 0 || *end != '\0' || value > 10000000) {
        fprintf(stderr, "need a positive number, not \"%s\"\n", text != NULL ? text : "");
        exit(64);
    }
    return value;
}

int main(int argc, char **argv)
{
    struct bench bench = {.slots = DEFAULT_SLOTS, .rounds = DEFAULT_ROUNDS};
    long seconds = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--slots") == 0)
            bench.slots = (uint32_t)number(argv[++i]);
        else if (strcmp(argv[i], "--rounds") == 0)
            bench.rounds = (uint32_t)number(argv[++i]);
        else if (strcmp(argv[i], "--loop") == 0)
            seconds = number(argv[++i]);
        else if (strcmp(argv[i], "--verify") == 0)
            bench.fake.verify_full = true;
        else {
            fprintf(stderr, "usage: bench_slots [--slots N] [--rounds N] [--verify] [--loop SECONDS]\n");
            return 64;
        }
    }
    char dir[] = "/tmp/gms-bench-XXXXXX", path[64];
    if (mkdtemp(dir) == NULL) {
        perror(dir);
        return 1;
    }
    snprintf(bench.fake.run_dir, sizeof bench.fake.run_dir, "%s", dir);
    bench.fake.world_size = 1;
    bench.fake.operation_timeout_ms = 5000;
    bench.fake.epoch = 1;
    start(&bench);
    if (seconds > 0)
        loop(&bench, seconds);
    else
        measure(&bench);
    gms_close(bench.session);
    fake_stop(&bench.fake);
    snprintf(path, sizeof path, "%s/c0", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/c0.lock", dir);
    unlink(path);
    return rmdir(dir) == 0 ? 0 : 1;
}
