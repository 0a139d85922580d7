/* SPDX-License-Identifier: Apache-2.0
 *
 * minillm goes on in a block that another engine had begun: the tokens are the same, the last token is computed, what
 * does not fit is not taken, and wrong contents are noticed by wrong tokens.
 */
#include "minillm_support.h"

enum { SLOTS = 24, ANSWER = 40 };

/* What an engine that died after `steps` steps leaves: its memory, and what it had said of its blocks. */
struct remains {
    struct llm llm; /* closed by the test, after its successor */
    struct prefix_tail tails[SLOTS];
    uint32_t count;
};

static void remember(struct remains *remains, const struct plan_progress *note)
{
    struct prefix_tail *tail = NULL;
    for (uint32_t i = 0; i < remains->count && tail == NULL; i++)
        if (remains->tails[i].slot == note->slot)
            tail = &remains->tails[i];
    if (tail == NULL) {
        tail = &remains->tails[remains->count++];
        *tail = (struct prefix_tail){.slot = note->slot, .parent = note->parent};
    }
    assert_memory_equal(&tail->parent, &note->parent, sizeof note->parent);
    memmove(&tail->entries[1], &tail->entries[0], sizeof tail->entries - sizeof tail->entries[0]);
    tail->entries[0].token_count = note->token_count;
    tail->entries[0].hash = note->hash;
    tail->entry_count += tail->entry_count < PREFIX_TAIL_ENTRIES;
}

static void die_after(struct remains *remains, const uint32_t *prompt, uint32_t prompt_count, uint32_t steps)
{
    static struct llm_answer answer;
    memset(remains, 0, sizeof *remains);
    llm_open(&remains->llm, &llm_small, SLOTS, 4, 64);
    llm_submit(&remains->llm, prompt, prompt_count, NULL, 0, ANSWER, 0.9, &answer);
    for (uint32_t i = 0; i < steps; i++) {
        assert_true(llm_step(&remains->llm));
        for (uint32_t n = 0; n < remains->llm.plan.header.note_count; n++)
            remember(remains, &remains->llm.plan.notes[n]);
    }
}

/* Sealed blocks are not handed on here, so that all that a successor has is the block it asks for. */
static void succeed(struct llm *llm, const struct remains *remains)
{
    llm_open(llm, &llm_small, SLOTS, 4, 64);
    memcpy(llm->kv.base, remains->llm.kv.base, SLOTS * kv_block_bytes(&llm->kv.geometry));
    for (uint32_t i = 0; i < remains->count; i++) {
        assert_true(prefix_exclude(llm->prefix, remains->tails[i].slot));
        assert_true(prefix_keep_tail(llm->prefix, &remains->tails[i]));
    }
}

static void every_step_and_every_client(void **state)
{
    (void)state;
    uint32_t prompt[9];
    static struct llm_answer reference, resumed;
    llm_make_prompt(prompt, 9, llm_small.vocabulary, 5);
    llm_reference(&llm_small, prompt, 9, ANSWER, 0.9, &reference);
    for (uint32_t steps = 1; steps <= 8; steps++) {
        /* After n steps 9 + n - 1 positions are complete, 16 at most in the first block; n tokens were made. */
        for (uint32_t known = 0; known <= steps; known++) {
            struct remains remains;
            struct llm llm;
            die_after(&remains, prompt, 9, steps);
            succeed(&llm, &remains);
            llm_submit(&llm, prompt, 9, reference.tokens, known, ANSWER, 0.9, &resumed);
            llm_run(&llm);
            assert_true(resumed.done);
            assert_int_equal(resumed.count, ANSWER - known);
            assert_memory_equal(resumed.tokens, reference.tokens + known, (ANSWER - known) * sizeof(uint32_t));
            /* The longest of the last three that leaves a token to compute. */
            const uint32_t complete = 9 + steps - 1, usable = 9 + known - 1;
            const uint32_t oldest = steps >= PREFIX_TAIL_ENTRIES ? complete - PREFIX_TAIL_ENTRIES + 1 : 9;
            const uint32_t expected = usable < oldest ? 0 : usable < complete ? usable : complete;
            assert_int_equal(resumed.salvaged_tokens, expected);
            assert_int_equal(resumed.computed_tokens, 9 + known - expected);
            llm_close(&llm);
            llm_close(&remains.llm);
        }
    }
}

/* A whole block that was not sealed yet is taken up as well, and becomes a block of the cache. */
static void a_whole_block_enters_the_cache(void **state)
{
    (void)state;
    uint32_t prompt[9];
    static struct llm_answer reference, resumed, again;
    llm_make_prompt(prompt, 9, llm_small.vocabulary, 5);
    llm_reference(&llm_small, prompt, 9, ANSWER, 0.9, &reference);
    struct remains remains;
    struct llm llm;
    die_after(&remains, prompt, 9, 8);
    assert_int_equal(remains.tails[0].entries[0].token_count, 16);
    succeed(&llm, &remains);
    llm_submit(&llm, prompt, 9, reference.tokens, 8, 20, 0.9, &resumed);
    llm_run(&llm);
    assert_int_equal(resumed.salvaged_tokens, 16);
    assert_int_equal(resumed.computed_tokens, 1);
    llm_submit(&llm, prompt, 9, reference.tokens, 8, 20, 0.9, &again);
    llm_run(&llm);
    assert_int_equal(again.cached_tokens, 16);
    assert_int_equal(again.salvaged_tokens, 0);
    assert_memory_equal(again.tokens, reference.tokens + 8, 12 * sizeof(uint32_t));
    llm_close(&llm);
    llm_close(&remains.llm);
}

static void other_tokens_take_nothing(void **state)
{
    (void)state;
    uint32_t prompt[9], other[9];
    static struct llm_answer reference, resumed;
    llm_make_prompt(prompt, 9, llm_small.vocabulary, 5);
    for (uint32_t at = 0; at < 9; at++) {
        struct remains remains;
        struct llm llm;
        memcpy(other, prompt, sizeof other);
        other[at] = (other[at] + 1) % llm_small.vocabulary;
        llm_reference(&llm_small, other, 9, ANSWER, 0.9, &reference);
        die_after(&remains, prompt, 9, 3);
        succeed(&llm, &remains);
        llm_submit(&llm, other, 9, NULL, 0, ANSWER, 0.9, &resumed);
        llm_run(&llm);
        assert_int_equal(resumed.salvaged_tokens, 0);
        assert_memory_equal(resumed.tokens, reference.tokens, ANSWER * sizeof(uint32_t));
        llm_close(&llm);
        llm_close(&remains.llm);
    }
}

/* The slot is handed out when nothing else is left; what was in it is forgotten then. */
static void a_slot_that_comes_back_is_used(void **state)
{
    (void)state;
    uint32_t prompt[9], others[8][60];
    static struct llm_answer reference, resumed, fill[8];
    llm_make_prompt(prompt, 9, llm_small.vocabulary, 5);
    llm_reference(&llm_small, prompt, 9, ANSWER, 0.9, &reference);
    struct remains remains;
    struct llm llm;
    die_after(&remains, prompt, 9, 3);
    succeed(&llm, &remains);
    assert_true(scheduler_include(llm.scheduler, remains.tails[0].slot));
    /* Behind all others in the free list, so it may still be taken up. */
    llm_submit(&llm, prompt, 9, reference.tokens, 3, ANSWER, 0.9, &resumed);
    llm_run(&llm);
    assert_int_equal(resumed.salvaged_tokens, 11);
    assert_memory_equal(resumed.tokens, reference.tokens + 3, (ANSWER - 3) * sizeof(uint32_t));
    for (uint32_t i = 0; i < 8; i++) {
        llm_make_prompt(others[i], 60, llm_small.vocabulary, 100 + i);
        llm_submit(&llm, others[i], 60, NULL, 0, ANSWER, 0.9, &fill[i]);
    }
    llm_run(&llm);
    struct prefix_tail_hit hit;
    assert_false(prefix_find_tail(llm.prefix, &remains.tails[0].parent, prompt, 9, 0, &hit));
    llm_submit(&llm, prompt, 9, reference.tokens, 3, ANSWER, 0.9, &resumed);
    llm_run(&llm);
    assert_int_equal(resumed.salvaged_tokens, 0);
    assert_memory_equal(resumed.tokens, reference.tokens + 3, (ANSWER - 3) * sizeof(uint32_t));
    llm_close(&llm);
    llm_close(&remains.llm);
}

/* Where slots are short it is leased in the very step that takes up what was in it, by another request: copied first.
 */
static void the_slot_is_leased_in_the_same_step(void **state)
{
    (void)state;
    enum { FEW = 6, LONG = 70 };
    uint32_t prompt[9], other[LONG];
    static struct llm_answer reference, other_reference, resumed, answer;
    llm_make_prompt(prompt, 9, llm_small.vocabulary, 5);
    llm_make_prompt(other, LONG, llm_small.vocabulary, 77);
    llm_reference(&llm_small, prompt, 9, 7, 0.9, &reference);
    llm_reference(&llm_small, other, LONG, 10, 0.9, &other_reference);
    struct remains remains;
    struct llm llm;
    die_after(&remains, prompt, 9, 3);
    assert_int_equal(remains.tails[0].slot, 0);
    llm_open(&llm, &llm_small, FEW, 4, 128);
    memcpy(llm.kv.base, remains.llm.kv.base, FEW * kv_block_bytes(&llm.kv.geometry));
    assert_true(prefix_exclude(llm.prefix, 0));
    assert_true(prefix_keep_tail(llm.prefix, &remains.tails[0]));
    assert_true(scheduler_include(llm.scheduler, 0));
    llm_submit(&llm, prompt, 9, reference.tokens, 3, 7, 0.9, &resumed);
    llm_submit(&llm, other, LONG, NULL, 0, 10, 0.9, &answer);
    assert_true(llm_step(&llm));
    assert_int_equal(llm.plan.header.salvage_count, 1);
    assert_int_equal(llm.plan.salvages[0].source, 0);
    assert_int_equal(llm.plan.header.acquire_count, FEW);
    assert_int_equal(llm.plan.acquires[FEW - 1], 0);
    llm_run(&llm);
    assert_int_equal(resumed.salvaged_tokens, 11);
    assert_memory_equal(resumed.tokens, reference.tokens + 3, 4 * sizeof(uint32_t));
    assert_memory_equal(answer.tokens, other_reference.tokens, 10 * sizeof(uint32_t));
    llm_close(&llm);
    llm_close(&remains.llm);
}

/* Exactness is worth nothing here if wrong contents go unnoticed: each position of the tail, one at a time. */
static void wrong_contents_change_the_tokens(void **state)
{
    (void)state;
    uint32_t prompt[9], changed = 0;
    static struct llm_answer reference, resumed;
    llm_make_prompt(prompt, 9, llm_small.vocabulary, 5);
    llm_reference(&llm_small, prompt, 9, ANSWER, 0.9, &reference);
    for (uint32_t at = 0; at < 11; at++) {
        struct remains remains;
        struct llm llm;
        die_after(&remains, prompt, 9, 3);
        succeed(&llm, &remains);
        const struct kv_geometry *g = &llm.kv.geometry;
        for (uint32_t layer = 0; layer < g->layers; layer++)
            for (uint32_t plane = 0; plane < 2; plane++)
                for (uint32_t i = 0; i < kv_position_floats(g); i++)
                    kv_plane(llm.kv.base, g, remains.tails[0].slot,
                             layer)[plane * kv_plane_floats(g) + at * kv_position_floats(g) + i] =
                        2.0f - (float)((at + i) % 5);
        llm_submit(&llm, prompt, 9, reference.tokens, 3, ANSWER, 0.9, &resumed);
        llm_run(&llm);
        assert_int_equal(resumed.salvaged_tokens, 11);
        changed += memcmp(resumed.tokens, reference.tokens + 3, (ANSWER - 3) * sizeof(uint32_t)) != 0;
        llm_close(&llm);
        llm_close(&remains.llm);
    }
    print_message("%u of 11 poisoned positions change the answer\n", changed);
    assert_true(changed >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_step_and_every_client),         cmocka_unit_test(a_whole_block_enters_the_cache),
        cmocka_unit_test(other_tokens_take_nothing),           cmocka_unit_test(a_slot_that_comes_back_is_used),
        cmocka_unit_test(the_slot_is_leased_in_the_same_step), cmocka_unit_test(wrong_contents_change_the_tokens),
    };
    return cmocka_run_group_tests_name("minillm_tails", tests, NULL, NULL);
}
