/* SPDX-License-Identifier: Apache-2.0
 *
 * Exact tokens after a failover mean something only if wrong KV would have changed them. Replaces each cached page of a
 * prompt in turn by noise of the page's own scale and counts how often the next 64 tokens notice: the program's default
 * model must in at least 95 % of the cases, also when only one rank of four has the wrong page.
 */
#include "minillm_support.h"

#include <math.h>

enum { FOLLOWING = 64, MAX_PROMPT = 512, REQUIRED_PERCENT = 95 };

static const struct model_config config = {.layers = 4,
                                           .width = 128,
                                           .heads = 8,
                                           .kv_heads = 4,
                                           .mlp = 256,
                                           .vocabulary = 256,
                                           .block_tokens = 16,
                                           .world_size = 1,
                                           .seed = 1};

struct bench {
    void *weights;
    struct model *model;
    struct kv_store kv;
    void *saved;
    size_t bytes;
    uint32_t blocks[(MAX_PROMPT + FOLLOWING) / 16 + 1];
};

static int open_bench(void **state)
{
    static struct bench b;
    const struct kv_geometry geometry = model_kv_geometry(&config);
    const uint32_t slots = sizeof b.blocks / sizeof b.blocks[0];
    b.weights = malloc(model_shard_bytes(&config));
    model_generate(&config, b.weights);
    b.model = model_open(&config, b.weights, 64, NULL);
    if (b.model == NULL || kv_private_open(&b.kv, &geometry, slots) != 0)
        return -1;
    b.bytes = slots * kv_block_bytes(&geometry);
    b.saved = malloc(b.bytes);
    for (uint32_t i = 0; i < slots; i++)
        b.blocks[i] = i;
    *state = &b;
    return 0;
}

static int close_bench(void **state)
{
    struct bench *b = *state;
    free(b->saved);
    kv_store_close(&b->kv);
    model_close(b->model);
    free(b->weights);
    return 0;
}

static const float *forward(struct bench *b, uint32_t token, uint32_t position)
{
    const float *logits;
    struct model_row row = {.token = token, .position = position, .blocks = b->blocks, .wants_logits = 1};
    model_forward(b->model, &row, 1, b->kv.base, NULL, NULL, &logits);
    return logits;
}

/* Prose-like bytes: repeated words, as in the drills' prompts. */
static void make_text(uint32_t *tokens, uint32_t count, uint64_t *random)
{
    static const char *const words[] = {"the ",  "rank ", "that ", "fails, ", "memory ", "of ",  "a ",
                                        "pool ", "and ",  "one ",  "token ",  "more.\n", "page "};
    for (uint32_t i = 0; i < count;) {
        const char *word = words[llm_random(random) % (sizeof words / sizeof words[0])];
        while (*word != 0 && i < count)
            tokens[i++] = (unsigned char)*word++;
    }
}

static float noise(uint64_t *random)
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (float)(llm_random(random) & 0xffff) / 65536.0f;
    return sum - 6.0f;
}

/* Only the KV heads of one rank out of `ranks`. */
static void poison(struct bench *b, uint32_t page, uint32_t ranks, uint64_t *random)
{
    const struct kv_geometry *g = &b->kv.geometry;
    const size_t plane = kv_plane_floats(g);
    for (uint32_t layer = 0; layer < g->layers; layer++)
        for (uint32_t part = 0; part < 2; part++) {
            float *values = kv_plane(b->kv.base, g, page, layer) + part * plane;
            double square = 0;
            for (size_t i = 0; i < plane; i++)
                square += (double)values[i] * values[i];
            float scale = (float)sqrt(square / (double)plane);
            for (size_t i = 0; i < plane; i++)
                if (i / g->head_dim % g->kv_heads < g->kv_heads / ranks)
                    values[i] = scale * noise(random);
        }
}

static void measure(struct bench *b, uint32_t prompt_count, double temperature, uint32_t ranks, uint64_t seed)
{
    uint32_t prompt[MAX_PROMPT], expected[FOLLOWING];
    float first[256];
    uint64_t random = seed;
    uint32_t noticed = 0, pages = prompt_count / 16;
    make_text(prompt, prompt_count, &random);
    const float *logits = NULL;
    for (uint32_t i = 0; i < prompt_count; i++)
        logits = forward(b, prompt[i], i);
    assert_non_null(logits);
    memcpy(first, logits, sizeof first);
    memcpy(b->saved, b->kv.base, b->bytes);
    for (uint32_t page = 0; page <= pages; page++) { /* the last one is the undisturbed run, done first */
        bool control = page == 0;
        memcpy(b->kv.base, b->saved, b->bytes);
        if (!control)
            poison(b, page - 1, ranks, &random);
        uint32_t token = sample_token(first, config.vocabulary, temperature, seed, 0);
        for (uint32_t i = 0; i < FOLLOWING; i++) {
            if (control) {
                expected[i] = token;
            } else if (token != expected[i]) {
                noticed++;
                break;
            }
            token = sample_token(forward(b, token, prompt_count + i), config.vocabulary, temperature, seed, i + 1);
        }
    }
    print_message("prompt %u, temperature %.1f, one rank of %u, seed %u: %u of %u pages noticed\n", prompt_count,
                  temperature, ranks, (unsigned)seed, noticed, pages);
    assert_true(noticed * 100 >= pages * REQUIRED_PERCENT);
}

static void sampled(void **state)
{
    measure(*state, 256, 1.0, 1, 1);
    measure(*state, 256, 0.8, 2, 2);
    measure(*state, 512, 1.0, 4, 3);
    measure(*state, 512, 0.8, 4, 4);
}

static void greedy(void **state)
{
    measure(*state, 256, 0, 4, 5);
    measure(*state, 512, 0, 2, 6);
}

/* Greedy decoding must not fall into a short loop at once, or equal tokens would again mean little. */
static void greedy_does_not_loop_at_once(void **state)
{
    enum { TOKENS = 128 };
    struct bench *b = *state;
    uint32_t prompt[64], tokens[TOKENS], distinct = 0;
    uint8_t seen[256] = {0};
    uint64_t random = 9;
    make_text(prompt, 64, &random);
    const float *logits = NULL;
    for (uint32_t i = 0; i < 64; i++)
        logits = forward(b, prompt[i], i);
    for (uint32_t i = 0; i < TOKENS; i++) {
        tokens[i] = sample_token(logits, config.vocabulary, 0, 0, i);
        distinct += seen[tokens[i]]++ == 0;
        logits = forward(b, tokens[i], 64 + i);
    }
    print_message("%u distinct tokens of %d\n", distinct, TOKENS);
    assert_true(distinct >= 20);
    for (uint32_t period = 1; period <= 32; period++)
        assert_memory_not_equal(tokens + TOKENS - 64, tokens + TOKENS - 64 - period, 64 * sizeof *tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampled),
        cmocka_unit_test(greedy),
        cmocka_unit_test(greedy_does_not_loop_at_once),
    };
    return cmocka_run_group_tests(tests, open_bench, close_bench);
}
