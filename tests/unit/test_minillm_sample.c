/* SPDX-License-Identifier: Apache-2.0 */
#include "minillm_support.h"

#include <math.h>

enum { VOCABULARY = 8 };

static const float logits[VOCABULARY] = {0.5f, 2.0f, -1.0f, 2.0f, 0.0f, 1.0f, -3.0f, 0.7f};

static void greedy_takes_the_first_of_the_largest(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++)
        assert_int_equal(sample_token(logits, VOCABULARY, 0, seed, seed * 3), 1);
}

static void a_draw_depends_on_seed_and_index_only(void **state)
{
    (void)state;
    uint32_t by_index = 0, by_seed = 0;
    for (uint64_t i = 0; i < 200; i++) {
        uint32_t token = sample_token(logits, VOCABULARY, 1, 7, i);
        assert_int_equal(token, sample_token(logits, VOCABULARY, 1, 7, i));
        by_index += token != sample_token(logits, VOCABULARY, 1, 7, i + 1);
        by_seed += token != sample_token(logits, VOCABULARY, 1, 8, i);
    }
    assert_true(by_index > 50 && by_seed > 50);
}

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    enum { DRAWS = 200000 };
    static const double temperatures[] = {0.5, 1, 2};
    for (size_t t = 0; t < 3; t++) {
        double expected[VOCABULARY], sum = 0;
        uint32_t counts[VOCABULARY] = {0};
        for (uint32_t i = 0; i < VOCABULARY; i++)
            sum += expected[i] = exp(logits[i] / temperatures[t]);
        for (uint64_t i = 0; i < DRAWS; i++)
            counts[sample_token(logits, VOCABULARY, temperatures[t], i / 1000, i % 1000)]++;
        for (uint32_t i = 0; i < VOCABULARY; i++) {
            double p = expected[i] / sum, sigma = sqrt(p * (1 - p) / DRAWS);
            assert_true(fabs((double)counts[i] / DRAWS - p) < 5 * sigma);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_of_the_largest),
        cmocka_unit_test(a_draw_depends_on_seed_and_index_only),
        cmocka_unit_test(draws_follow_the_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
