/* SPDX-License-Identifier: Apache-2.0
 *
 * From logits to a token. A pure function of (logits, temperature, seed, index): the same request gives the same tokens
 * on any engine, however it was batched and wherever its KV came from.
 */
#ifndef MINILLM_SAMPLE_H
#define MINILLM_SAMPLE_H

#include <stdint.h>

/* temperature 0: the largest logit, lowest index first. Else a draw from softmax(logits / temperature) with the random
 * number that (seed, index) names; `index` counts from the start of the answer. */
uint32_t sample_token(const float *logits, uint32_t vocabulary, double temperature, uint64_t seed, uint64_t index);

#endif
