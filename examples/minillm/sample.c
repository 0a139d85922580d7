/* SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include "tensor.h"

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static float weight(float logit, float top, double temperature)
{
    return tensor_exp((float)((double)(logit - top) / temperature));
}

uint32_t sample_token(const float *logits, uint32_t vocabulary, double temperature, uint64_t seed, uint64_t index)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocabulary; i++)
        if (logits[i] > logits[best])
            best = i;
    if (!(temperature > 0))
        return best;
    double sum = 0;
    for (uint32_t i = 0; i < vocabulary; i++)
        sum += weight(logits[i], logits[best], temperature);
    double uniform = (double)(mix(seed ^ mix(index)) >> 11) * 0x1p-53;
    double left = uniform * sum;
    for (uint32_t i = 0; i < vocabulary; i++) {
        left -= weight(logits[i], logits[best], temperature);
        if (left < 0)
            return i;
    }
    return best; /* rounding ate the last sliver */
}
