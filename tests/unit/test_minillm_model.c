/* SPDX-License-Identifier: Apache-2.0
 *
 * Exactness: a token's numbers depend on the tokens before it and on nothing else.
 */
#include "minillm_support.h"

#include "tensor.h"

#include <math.h>

enum { PROMPT = 75, CONTEXT = 96 };

struct setup {
    struct model_config config;
    void *weights;
    struct model *model;
    struct kv_store kv;
};

static void open_setup(struct setup *s, const struct model_config *config, uint32_t max_rows, uint32_t slots)
{
    struct kv_geometry geometry = model_kv_geometry(config);
    s->config = *config;
    s->weights = malloc(model_shard_bytes(config));
    model_generate(config, s->weights);
    s->model = model_open(config, s->weights, max_rows, NULL);
    assert_non_null(s->model);
    assert_int_equal(kv_private_open(&s->kv, &geometry, slots), 0);
}

static void close_setup(struct setup *s)
{
    kv_store_close(&s->kv);
    model_close(s->model);
    free(s->weights);
}

/* Feeds a prompt in chunks; the logits of its last token into `ret`. */
static void prefill(struct setup *s, const uint32_t *tokens, uint32_t first, uint32_t count, uint32_t chunk,
                    const uint32_t *blocks, float *ret)
{
    const float *logits = NULL;
    struct model_row rows[PROMPT];
    for (uint32_t done = 0; done < count; done += chunk) {
        uint32_t n = count - done < chunk ? count - done : chunk;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct model_row){.token = tokens[first + done + i],
                                         .position = first + done + i,
                                         .blocks = blocks,
                                         .wants_logits = done + i + 1 == count};
        model_forward(s->model, rows, n, s->kv.base, NULL, NULL, &logits);
    }
    assert_non_null(logits);
    memcpy(ret, logits, s->config.vocabulary * sizeof *ret);
}

static void one_chunk_and_token_by_token_are_bit_equal(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {PROMPT, 1, 7, 16, 33};
    const uint32_t blocks[CONTEXT / 16] = {4, 0, 3, 1, 5, 2}, other[CONTEXT / 16] = {0, 1, 2, 3, 4, 5};
    uint32_t tokens[PROMPT];
    float expected[64], logits[64];
    llm_make_prompt(tokens, PROMPT, llm_small.vocabulary, 1);
    struct setup s;
    open_setup(&s, &llm_small, PROMPT, CONTEXT / 16);
    prefill(&s, tokens, 0, PROMPT, PROMPT, blocks, expected);
    size_t bytes = s.kv.slot_count * kv_block_bytes(&s.kv.geometry);
    void *kv = malloc(bytes);
    memcpy(kv, s.kv.base, bytes);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        memset(s.kv.base, 0, bytes);
        prefill(&s, tokens, 0, PROMPT, chunks[i], blocks, logits);
        assert_memory_equal(expected, logits, sizeof logits);
        assert_memory_equal(kv, s.kv.base, bytes); /* the KV itself, to the bit */
    }
    /* Where the blocks lie does not matter either. */
    prefill(&s, tokens, 0, PROMPT, 16, other, logits);
    assert_memory_equal(expected, logits, sizeof logits);
    free(kv);
    close_setup(&s);
}

static void a_batch_of_eight_is_bit_equal_to_eight_batches(void **state)
{
    (void)state;
    enum { SEQUENCES = 8 };
    uint32_t tokens[SEQUENCES][PROMPT], blocks[SEQUENCES][CONTEXT / 16];
    float alone[SEQUENCES][64];
    struct setup s;
    open_setup(&s, &llm_small, PROMPT, SEQUENCES * CONTEXT / 16);
    for (uint32_t q = 0; q < SEQUENCES; q++) {
        llm_make_prompt(tokens[q], PROMPT, llm_small.vocabulary, q);
        for (uint32_t b = 0; b < CONTEXT / 16; b++)
            blocks[q][b] = b * SEQUENCES + q;
        prefill(&s, tokens[q], 0, PROMPT, PROMPT, blocks[q], alone[q]);
    }
    memset(s.kv.base, 0, s.kv.slot_count * kv_block_bytes(&s.kv.geometry));
    /* Step by step together, each sequence at a position of its own. */
    for (uint32_t step = 0; step < PROMPT + SEQUENCES; step++) {
        struct model_row rows[SEQUENCES];
        uint32_t count = 0, last_of = SEQUENCES;
        for (uint32_t q = 0; q < SEQUENCES; q++) {
            uint32_t position = step - q;
            if (step < q || position >= PROMPT)
                continue;
            if (position + 1 == PROMPT)
                last_of = q;
            rows[count++] = (struct model_row){.token = tokens[q][position],
                                               .position = position,
                                               .blocks = blocks[q],
                                               .wants_logits = position + 1 == PROMPT};
        }
        const float *logits;
        model_forward(s.model, rows, count, s.kv.base, NULL, NULL, &logits);
        if (last_of < SEQUENCES)
            assert_memory_equal(alone[last_of], logits, sizeof alone[0]);
    }
    close_setup(&s);
}

/* Ranks of one engine run one after the other: each forward is repeated until every gather it needs has been heard. */
struct fake_group {
    float *heard[64]; /* per gather of one forward: all ranks' parts */
    uint32_t known, next, rank, size;
};

static void fake_gather(void *context, const float *mine, float *all, size_t count)
{
    struct fake_group *g = context;
    uint32_t index = g->next++;
    if (index == g->known && g->heard[index] == NULL)
        g->heard[index] = calloc(count * g->size, sizeof(float));
    if (index == g->known)
        memcpy(g->heard[index] + g->rank * count, mine, count * sizeof(float));
    if (index <= g->known)
        memcpy(all, g->heard[index], count * g->size * sizeof(float));
    else
        memset(all, 0, count * g->size * sizeof(float));
}

static void split_over_ranks_it_is_the_same_model(void **state)
{
    (void)state;
    uint32_t tokens[PROMPT];
    float whole[64], split[2][64];
    llm_make_prompt(tokens, PROMPT, llm_small.vocabulary, 5);
    const uint32_t blocks[CONTEXT / 16] = {0, 1, 2, 3, 4, 5};
    struct setup s;
    open_setup(&s, &llm_small, PROMPT, CONTEXT / 16);
    prefill(&s, tokens, 0, PROMPT, PROMPT, blocks, whole);
    close_setup(&s);

    struct fake_group group = {.size = 2};
    struct model_group hooks = {.gather = fake_gather, .context = &group};
    const uint32_t gathers = 2 * llm_small.layers + 1;
    for (group.known = 0; group.known <= gathers; group.known++)
        for (group.rank = 0; group.rank < 2; group.rank++) {
            struct model_config config = llm_small;
            config.world_size = 2;
            config.rank = group.rank;
            assert_null(model_config_check(&config));
            open_setup(&s, &config, PROMPT, CONTEXT / 16);
            struct model *model = model_open(&config, s.weights, PROMPT, &hooks);
            model_close(s.model);
            s.model = model;
            group.next = 0;
            prefill(&s, tokens, 0, PROMPT, PROMPT, blocks, split[group.rank]);
            close_setup(&s);
        }
    for (uint32_t i = 0; i < gathers; i++)
        free(group.heard[i]);
    assert_memory_equal(split[0], split[1], sizeof split[0]);
    for (uint32_t i = 0; i < llm_small.vocabulary; i++)
        assert_true(fabsf(split[0][i] - whole[i]) < 1e-3f);
}

static void tensors_cover_the_shard_without_gaps(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        struct model_config config = llm_small;
        config.world_size = ranks;
        size_t end = 0;
        for (uint32_t i = 0; i < model_tensor_count(&config); i++) {
            struct model_tensor t = model_tensor_at(&config, i);
            assert_int_equal(t.offset_bytes, end);
            assert_true(t.bytes > 0 && t.name[0] != 0);
            end += t.bytes;
            for (uint32_t j = 0; j < i; j++)
                assert_string_not_equal(t.name, model_tensor_at(&config, j).name);
        }
        assert_int_equal(end, model_shard_bytes(&config));
    }
}

static void sizes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct model_config c = llm_small;
    c.world_size = 3;
    assert_non_null(model_config_check(&c));
    c = llm_small;
    c.heads = 3;
    assert_non_null(model_config_check(&c));
    c = llm_small;
    c.kv_heads = 3;
    assert_non_null(model_config_check(&c));
    c = llm_small;
    c.rank = 1;
    assert_non_null(model_config_check(&c));
    c = llm_small;
    c.block_tokens = 0;
    assert_non_null(model_config_check(&c));
}

static void exponential_is_accurate(void **state)
{
    (void)state;
    for (double x = -86; x < 87; x += 0.0137) {
        double relative = tensor_exp((float)x) / exp((double)(float)x) - 1;
        assert_true(fabs(relative) < 1e-6);
    }
    assert_true(tensor_exp(-1000) < 1e-37f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_chunk_and_token_by_token_are_bit_equal),
        cmocka_unit_test(a_batch_of_eight_is_bit_equal_to_eight_batches),
        cmocka_unit_test(split_over_ranks_it_is_the_same_model),
        cmocka_unit_test(tensors_cover_the_shard_without_gaps),
        cmocka_unit_test(sizes_that_do_not_fit_are_refused),
        cmocka_unit_test(exponential_is_accurate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
