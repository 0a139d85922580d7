/* SPDX-License-Identifier: Apache-2.0
 *
 * What the minillm tests share: a whole one-rank engine in this process (model, private KV, prefix cache, scheduler),
 * without sockets and MPI. Header only; include it first, it brings cmocka.
 */
#ifndef GMS_TESTS_MINILLM_SUPPORT_H
#define GMS_TESTS_MINILLM_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv.h"
#include "model.h"
#include "prefix.h"
#include "sample.h"
#include "scheduler.h"
#include "step.h"

enum { LLM_MAX_TOKENS = 2048 };

/* Small enough for quick tests, with every feature in use (grouped heads, several layers). */
static const struct model_config llm_small = {.layers = 2,
                                              .width = 32,
                                              .heads = 4,
                                              .kv_heads = 2,
                                              .mlp = 64,
                                              .vocabulary = 64,
                                              .block_tokens = 16,
                                              .world_size = 1,
                                              .seed = 3};

static inline uint64_t llm_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* What one request came to. */
struct llm_answer {
    uint32_t tokens[LLM_MAX_TOKENS];
    uint32_t count, first_index, prompt_tokens, cached_tokens, salvaged_tokens, computed_tokens;
    bool done;
};

static inline void llm_on_token(void *context, void *owner, uint32_t index, uint32_t token)
{
    struct llm_answer *answer = owner;
    (void)context;
    if (answer->count == 0)
        answer->first_index = index;
    assert_int_equal(index, answer->first_index + answer->count);
    answer->tokens[answer->count++] = token;
}

static inline void llm_on_done(void *context, void *owner, const struct scheduler_usage *usage)
{
    struct llm_answer *answer = owner;
    (void)context;
    answer->prompt_tokens = usage->prompt_tokens;
    answer->cached_tokens = usage->cached_tokens;
    answer->salvaged_tokens = usage->salvaged_tokens;
    answer->computed_tokens = usage->computed_tokens;
    assert_int_equal(usage->prompt_tokens, usage->cached_tokens + usage->salvaged_tokens + usage->computed_tokens);
    answer->done = true;
}

struct llm {
    struct model_config config;
    void *weights;
    struct model *model;
    struct kv_store kv;
    struct prefix *prefix;
    struct scheduler *scheduler;
    struct step_executor executor;
    struct plan plan;
};

static inline void llm_open(struct llm *llm, const struct model_config *config, uint32_t slots, uint32_t max_batch,
                            uint32_t chunk_tokens)
{
    const uint32_t rows = max_batch > chunk_tokens ? max_batch : chunk_tokens;
    struct scheduler_options options = {.block_tokens = config->block_tokens,
                                        .context_tokens = MODEL_CONTEXT_TOKENS,
                                        .vocabulary = config->vocabulary,
                                        .max_batch = max_batch,
                                        .chunk_tokens = chunk_tokens,
                                        .max_waiting = 64,
                                        .notes = true};
    struct scheduler_sink sink = {.token = llm_on_token, .done = llm_on_done};
    struct kv_geometry geometry = model_kv_geometry(config);
    memset(llm, 0, sizeof *llm);
    assert_null(model_config_check(config));
    llm->config = *config;
    llm->weights = malloc(model_shard_bytes(config));
    assert_non_null(llm->weights);
    model_generate(config, llm->weights);
    llm->model = model_open(config, llm->weights, rows, NULL);
    assert_non_null(llm->model);
    assert_int_equal(kv_private_open(&llm->kv, &geometry, slots), 0);
    llm->prefix = prefix_open(slots);
    assert_non_null(llm->prefix);
    llm->scheduler = scheduler_open(&options, llm->prefix, 0, &sink);
    assert_non_null(llm->scheduler);
    step_executor_init(&llm->executor, llm->model, &llm->kv, 0);
}

static inline void llm_close(struct llm *llm)
{
    scheduler_close(llm->scheduler);
    step_executor_free(&llm->executor);
    plan_free(&llm->plan);
    prefix_close(llm->prefix);
    kv_store_close(&llm->kv);
    model_close(llm->model);
    free(llm->weights);
}

/* One step; false when there was nothing to do. */
static inline bool llm_step(struct llm *llm)
{
    const float *logits;
    enum scheduler_outcome outcome = scheduler_plan(llm->scheduler, &llm->plan);
    assert_int_not_equal(outcome, SCHEDULER_NO_MEMORY);
    if (outcome == SCHEDULER_IDLE)
        return false;
    enum kv_status status = step_execute(&llm->executor, &llm->plan, &logits);
    if (status != KV_OK)
        print_error("step: %s\n", llm->kv.text);
    assert_int_equal(status, KV_OK);
    scheduler_finish(llm->scheduler, logits);
    return true;
}

static inline void llm_run(struct llm *llm)
{
    for (uint32_t steps = 0; llm_step(llm); steps++)
        assert_true(steps < 100000);
}

static inline struct sequence *llm_submit(struct llm *llm, const uint32_t *prompt, uint32_t prompt_count,
                                          const uint32_t *generated, uint32_t generated_count, uint32_t max_tokens,
                                          double temperature, struct llm_answer *answer)
{
    char text[256] = "";
    struct scheduler_request request = {.prompt = prompt,
                                        .generated = generated,
                                        .prompt_count = prompt_count,
                                        .generated_count = generated_count,
                                        .max_tokens = max_tokens,
                                        .temperature = temperature,
                                        .seed = 11,
                                        .owner = answer};
    memset(answer, 0, sizeof *answer);
    struct sequence *sequence = scheduler_submit(llm->scheduler, &request, text, sizeof text);
    if (sequence == NULL)
        print_error("submit: %s\n", text);
    assert_non_null(sequence);
    return sequence;
}

static inline void llm_make_prompt(uint32_t *tokens, uint32_t count, uint32_t vocabulary, uint64_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = (uint32_t)(llm_random(&seed) % vocabulary);
}

/* The tokens that an engine of its own gives for one prompt, one token a step and nobody beside it. */
static inline void llm_reference(const struct model_config *config, const uint32_t *prompt, uint32_t prompt_count,
                                 uint32_t max_tokens, double temperature, struct llm_answer *ret_answer)
{
    struct llm llm;
    llm_open(&llm, config, (prompt_count + max_tokens) / config->block_tokens + 1, 1, 1);
    llm_submit(&llm, prompt, prompt_count, NULL, 0, max_tokens, temperature, ret_answer);
    llm_run(&llm);
    assert_true(ret_answer->done);
    llm_close(&llm);
}

#endif
