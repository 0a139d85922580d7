/* SPDX-License-Identifier: Apache-2.0
 *
 * Continuous batching over the whole in-process engine: answers do not depend on who else is served, slots are never
 * lost, and the private KV store refuses every misuse of a slot.
 */
#include "minillm_support.h"

#include <inttypes.h>

enum { PROMPT = 70, ANSWER = 40 };

static struct prefix_counts counts(const struct llm *llm)
{
    return prefix_count(llm->prefix);
}

/* Nothing runs: every slot is free, or cached and evictable. */
static void assert_at_rest(const struct llm *llm, uint32_t slots)
{
    struct prefix_counts c = counts(llm);
    assert_int_equal(c.free + c.cached, slots);
    assert_int_equal(c.evictable, c.cached);
    for (uint32_t i = 0; i < slots; i++)
        assert_true(llm->kv.lease[i] == KV_NOT_LEASED || llm->kv.lease[i] == KV_SEALED);
}

static void answers_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    enum { REQUESTS = 8, SLOTS = 64 };
    uint32_t prompts[REQUESTS][PROMPT];
    static struct llm_answer alone[REQUESTS], together[REQUESTS];
    for (uint32_t i = 0; i < REQUESTS; i++) {
        llm_make_prompt(prompts[i], PROMPT, llm_small.vocabulary, i + 1);
        llm_reference(&llm_small, prompts[i], PROMPT - i, ANSWER, i % 2 == 0 ? 0 : 0.9, &alone[i]);
    }
    static const uint32_t chunks[] = {8, 64, 200};
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        struct llm llm;
        llm_open(&llm, &llm_small, SLOTS, REQUESTS, chunks[c]);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            llm_submit(&llm, prompts[i], PROMPT - i, NULL, 0, ANSWER, i % 2 == 0 ? 0 : 0.9, &together[i]);
            llm_step(&llm); /* they arrive one after the other */
        }
        llm_run(&llm);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            assert_true(together[i].done);
            assert_int_equal(together[i].count, ANSWER);
            assert_memory_equal(together[i].tokens, alone[i].tokens, ANSWER * sizeof(uint32_t));
            assert_int_equal(together[i].prompt_tokens, PROMPT - i);
            assert_int_equal(together[i].cached_tokens + together[i].computed_tokens, PROMPT - i);
        }
        assert_at_rest(&llm, SLOTS);
        llm_close(&llm);
    }
}

static void a_cached_prefix_gives_the_same_tokens(void **state)
{
    (void)state;
    uint32_t prompt[PROMPT];
    static struct llm_answer first, again, continued, reference;
    llm_make_prompt(prompt, PROMPT, llm_small.vocabulary, 2);
    llm_reference(&llm_small, prompt, PROMPT, ANSWER, 0.9, &reference);
    struct llm llm;
    llm_open(&llm, &llm_small, 32, 4, 64);
    llm_submit(&llm, prompt, PROMPT, NULL, 0, ANSWER, 0.9, &first);
    llm_run(&llm);
    assert_int_equal(first.cached_tokens, 0);
    llm_submit(&llm, prompt, PROMPT, NULL, 0, ANSWER, 0.9, &again);
    llm_run(&llm);
    assert_int_equal(again.cached_tokens, PROMPT / 16 * 16);
    assert_int_equal(again.computed_tokens, PROMPT - PROMPT / 16 * 16);
    assert_memory_equal(again.tokens, reference.tokens, ANSWER * sizeof(uint32_t));
    /* A client that comes back after a failover sends what it has; generated blocks are found too. */
    for (uint32_t have = 0; have <= ANSWER; have += 13) {
        llm_submit(&llm, prompt, PROMPT, reference.tokens, have, ANSWER, 0.9, &continued);
        llm_run(&llm);
        assert_true(continued.done);
        assert_int_equal(continued.count, ANSWER - have);
        assert_int_equal(continued.prompt_tokens, PROMPT + have);
        assert_int_equal(continued.cached_tokens, (PROMPT + have - 1) / 16 * 16);
        assert_memory_equal(continued.tokens, reference.tokens + have, (ANSWER - have) * sizeof(uint32_t));
        if (have < ANSWER)
            assert_int_equal(continued.first_index, have);
    }
    assert_at_rest(&llm, 32);
    llm_close(&llm);
}

static void the_last_token_of_a_prompt_is_always_computed(void **state)
{
    (void)state;
    uint32_t prompt[64];
    static struct llm_answer first, again;
    llm_make_prompt(prompt, 64, llm_small.vocabulary, 3);
    struct llm llm;
    llm_open(&llm, &llm_small, 32, 4, 64);
    llm_submit(&llm, prompt, 64, NULL, 0, 4, 0, &first);
    llm_run(&llm);
    llm_submit(&llm, prompt, 64, NULL, 0, 4, 0, &again);
    llm_run(&llm);
    assert_int_equal(again.cached_tokens, 48);
    assert_memory_equal(first.tokens, again.tokens, 4 * sizeof(uint32_t));
    llm_close(&llm);
}

static void equal_prompts_at_once_keep_one_copy(void **state)
{
    (void)state;
    uint32_t prompt[PROMPT];
    static struct llm_answer answers[4];
    llm_make_prompt(prompt, PROMPT, llm_small.vocabulary, 4);
    struct llm llm;
    llm_open(&llm, &llm_small, 64, 4, 400);
    for (uint32_t i = 0; i < 4; i++)
        llm_submit(&llm, prompt, PROMPT, NULL, 0, ANSWER, 0.9, &answers[i]);
    llm_run(&llm);
    for (uint32_t i = 1; i < 4; i++)
        assert_memory_equal(answers[i].tokens, answers[0].tokens, ANSWER * sizeof(uint32_t));
    assert_int_equal(counts(&llm).cached, (PROMPT + ANSWER - 1) / 16);
    assert_at_rest(&llm, 64);
    llm_close(&llm);
}

static void requests_wait_for_slots_and_lose_none(void **state)
{
    (void)state;
    enum { REQUESTS = 12, SLOTS = 16 }; /* each needs 7 */
    uint32_t prompts[REQUESTS][PROMPT];
    static struct llm_answer alone[REQUESTS], answers[REQUESTS];
    struct llm llm;
    llm_open(&llm, &llm_small, SLOTS, 8, 64);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        llm_make_prompt(prompts[i], PROMPT, llm_small.vocabulary, i % 5);
        llm_reference(&llm_small, prompts[i], PROMPT, ANSWER, 0.9, &alone[i]);
        llm_submit(&llm, prompts[i], PROMPT, NULL, 0, ANSWER, 0.9, &answers[i]);
    }
    llm_step(&llm);
    struct scheduler_stats stats = scheduler_get_stats(llm.scheduler);
    assert_int_equal(stats.active, 2);
    assert_int_equal(stats.waiting, REQUESTS - 2);
    llm_run(&llm);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_true(answers[i].done);
        assert_memory_equal(answers[i].tokens, alone[i].tokens, ANSWER * sizeof(uint32_t));
    }
    assert_at_rest(&llm, SLOTS);
    llm_close(&llm);
}

/* Cached blocks that a request finds can no longer be evicted for others, so they count against what is left. */
static void found_blocks_are_not_promised_twice(void **state)
{
    (void)state;
    enum { SLOTS = 13 }; /* one answer leaves 6 cached; another needs 7; the first again 3 more and 4 of the cached */
    uint32_t prompts[2][PROMPT];
    static struct llm_answer first, other, again;
    struct llm llm;
    llm_open(&llm, &llm_small, SLOTS, 4, 64);
    llm_make_prompt(prompts[0], PROMPT, llm_small.vocabulary, 1);
    llm_make_prompt(prompts[1], PROMPT, llm_small.vocabulary, 2);
    llm_submit(&llm, prompts[0], PROMPT, NULL, 0, ANSWER, 0.9, &first);
    llm_run(&llm);
    assert_int_equal(counts(&llm).evictable, 6);
    llm_submit(&llm, prompts[1], PROMPT, NULL, 0, ANSWER, 0.9, &other);
    llm_submit(&llm, prompts[0], PROMPT, NULL, 0, ANSWER, 0.9, &again);
    llm_step(&llm);
    assert_int_equal(scheduler_get_stats(llm.scheduler).active, 1);
    llm_run(&llm);
    assert_true(other.done && again.done);
    assert_memory_equal(again.tokens, first.tokens, ANSWER * sizeof(uint32_t));
    assert_at_rest(&llm, SLOTS);
    llm_close(&llm);
}

static void requests_that_can_never_run_are_refused(void **state)
{
    (void)state;
    uint32_t tokens[MODEL_CONTEXT_TOKENS + 1] = {0};
    struct llm llm;
    char text[256];
    llm_open(&llm, &llm_small, 8, 4, 64);
    const struct {
        struct scheduler_request request;
        const char *says;
    } cases[] = {
        {{.prompt = tokens, .prompt_count = 0, .max_tokens = 1}, "empty"},
        {{.prompt = tokens, .prompt_count = 1, .max_tokens = 0}, "max_tokens is 0"},
        {{.prompt = tokens, .prompt_count = 1, .generated = tokens, .generated_count = 3, .max_tokens = 2},
         "more than"},
        {{.prompt = tokens, .prompt_count = 2048, .max_tokens = 1}, "context of 2048"},
        {{.prompt = tokens, .prompt_count = 1, .max_tokens = UINT32_MAX}, "context of 2048"},
        {{.prompt = tokens, .prompt_count = 128, .max_tokens = 1}, "needs 9 KV slots"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_null(scheduler_submit(llm.scheduler, &cases[i].request, text, sizeof text));
        assert_non_null(strstr(text, cases[i].says));
    }
    struct scheduler_request fine = {.prompt = tokens, .prompt_count = 1, .max_tokens = 1};
    for (uint32_t i = 0; i < 64; i++)
        assert_non_null(scheduler_submit(llm.scheduler, &fine, text, sizeof text));
    assert_null(scheduler_submit(llm.scheduler, &fine, text, sizeof text));
    assert_non_null(strstr(text, "queue is full"));
    llm_close(&llm);
}

/* Random arrivals and cancellations under slot pressure; then everything must be whole, and answers still right. */
static void a_random_run_with_cancellations_stays_whole(void **state)
{
    (void)state;
    enum { REQUESTS = 300, AT_ONCE = 10, SLOTS = 40, PROMPTS = 6 };
    uint64_t random = 77;
    print_message("seed %" PRIu64 "\n", random);
    uint32_t prompts[PROMPTS][PROMPT];
    static struct llm_answer alone[PROMPTS], answers[AT_ONCE];
    struct sequence *sequences[AT_ONCE] = {NULL};
    uint32_t which[AT_ONCE] = {0}, done = 0, cancelled = 0;
    struct llm llm;
    llm_open(&llm, &llm_small, SLOTS, 6, 48);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        llm_make_prompt(prompts[i], PROMPT, llm_small.vocabulary, i / 2);
        prompts[i][PROMPT / 2] = i; /* pairs share half a prompt */
        llm_reference(&llm_small, prompts[i], PROMPT, ANSWER, 0.9, &alone[i]);
    }
    while (done + cancelled < REQUESTS) {
        uint32_t i = (uint32_t)(llm_random(&random) % AT_ONCE);
        if (sequences[i] != NULL && answers[i].done) {
            assert_memory_equal(answers[i].tokens, alone[which[i]].tokens, ANSWER * sizeof(uint32_t));
            sequences[i] = NULL;
            done++;
        }
        if (sequences[i] == NULL) {
            which[i] = (uint32_t)(llm_random(&random) % PROMPTS);
            sequences[i] = llm_submit(&llm, prompts[which[i]], PROMPT, NULL, 0, ANSWER, 0.9, &answers[i]);
        } else if (llm_random(&random) % 12 == 0) {
            scheduler_cancel(llm.scheduler, sequences[i]);
            sequences[i] = NULL;
            cancelled++;
        }
        llm_step(&llm);
    }
    print_message("%u done, %u cancelled\n", done, cancelled);
    assert_true(done > 50 && cancelled > 50);
    llm_run(&llm);
    assert_at_rest(&llm, SLOTS);
    llm_close(&llm);
}

static void a_store_into_a_slot_that_is_not_leased_is_refused(void **state)
{
    (void)state;
    uint32_t prompt[PROMPT];
    static struct llm_answer answer;
    const float *logits;
    llm_make_prompt(prompt, PROMPT, llm_small.vocabulary, 4);
    struct llm llm;
    llm_open(&llm, &llm_small, 16, 4, 64);
    llm_submit(&llm, prompt, PROMPT, NULL, 0, 4, 0, &answer);
    assert_int_equal(scheduler_plan(llm.scheduler, &llm.plan), SCHEDULER_PLANNED);
    llm.plan.header.acquire_count--;
    assert_int_equal(step_execute(&llm.executor, &llm.plan, &logits), KV_FAILED);
    assert_non_null(strstr(llm.kv.text, "writes slot 3"));
    llm_close(&llm);
}

static void plans_survive_the_wire(void **state)
{
    (void)state;
    uint32_t prompt[PROMPT];
    static struct llm_answer answer;
    llm_make_prompt(prompt, PROMPT, llm_small.vocabulary, 4);
    struct llm llm;
    struct plan copy = {0};
    llm_open(&llm, &llm_small, 16, 4, 64);
    llm_submit(&llm, prompt, PROMPT, NULL, 0, 4, 0, &answer);
    assert_int_equal(scheduler_plan(llm.scheduler, &llm.plan), SCHEDULER_PLANNED);
    size_t bytes = plan_payload_bytes(&llm.plan.header);
    void *payload = malloc(bytes), *again = malloc(bytes);
    plan_encode(&llm.plan, payload);
    assert_true(plan_decode(&copy, &llm.plan.header, payload));
    plan_encode(&copy, again);
    assert_memory_equal(payload, again, bytes);
    assert_int_equal(copy.header.row_count, 64);
    assert_int_equal(copy.header.seal_count, 4);
    free(payload);
    free(again);
    plan_free(&copy);
    llm_close(&llm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_do_not_depend_on_the_batch),
        cmocka_unit_test(a_cached_prefix_gives_the_same_tokens),
        cmocka_unit_test(the_last_token_of_a_prompt_is_always_computed),
        cmocka_unit_test(equal_prompts_at_once_keep_one_copy),
        cmocka_unit_test(requests_wait_for_slots_and_lose_none),
        cmocka_unit_test(found_blocks_are_not_promised_twice),
        cmocka_unit_test(requests_that_can_never_run_are_refused),
        cmocka_unit_test(a_random_run_with_cancellations_stays_whole),
        cmocka_unit_test(a_store_into_a_slot_that_is_not_leased_is_refused),
        cmocka_unit_test(plans_survive_the_wire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
