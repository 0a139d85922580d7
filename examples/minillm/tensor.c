/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor.h"

#include <math.h>
#include <string.h>

static inline float exp_inline(float x)
{
    /* x = n ln2 + r with |r| <= ln2/2; ln2 in two pieces keeps r exact. Adding 1.5 * 2^23 rounds to an integer. */
    const float round_magic = 12582912.0f;
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = (x * 1.44269504f + round_magic) - round_magic;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p =
        1.0f +
        r * (1.0f + r * (0.5f + r * (0.166666672f + r * (0.0416666679f + r * (0.00833333377f + r * 0.00138888892f)))));
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

float tensor_exp(float x)
{
    return exp_inline(x);
}

void tensor_multiply(float *restrict y, const float *restrict x, const float *restrict w, size_t rows, size_t columns)
{
    memset(y, 0, columns * sizeof *y);
    for (size_t i = 0; i < rows; i++) {
        const float a = x[i];
        const float *restrict row = w + i * columns;
        for (size_t j = 0; j < columns; j++)
            y[j] += a * row[j];
    }
}

float tensor_dot(const float *a, const float *b, size_t count)
{
    float s[8] = {0};
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (size_t k = 0; k < 8; k++)
            s[k] += a[i + k] * b[i + k];
    for (size_t k = 0; i < count; i++, k++)
        s[k] += a[i] * b[i];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

void tensor_add_scaled(float *restrict y, const float *restrict x, float scale, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] += scale * x[i];
}

void tensor_add(float *restrict y, const float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] += x[i];
}

void tensor_rms_norm(float *restrict y, const float *restrict x, const float *restrict gain, size_t count)
{
    float scale = 1.0f / sqrtf(tensor_dot(x, x, count) / (float)count + 1e-6f);
    for (size_t i = 0; i < count; i++)
        y[i] = x[i] * scale * gain[i];
}

void tensor_softmax(float *scores, size_t count)
{
    float top = scores[0];
    for (size_t i = 1; i < count; i++)
        top = scores[i] > top ? scores[i] : top;
    for (size_t i = 0; i < count; i++)
        scores[i] = exp_inline(scores[i] - top);
    float sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += scores[i];
    float scale = 1.0f / sum;
    for (size_t i = 0; i < count; i++)
        scores[i] *= scale;
}

void tensor_swiglu(float *restrict gate, const float *restrict up, size_t count)
{
    for (size_t i = 0; i < count; i++)
        gate[i] = gate[i] / (1.0f + exp_inline(-gate[i])) * up[i];
}

void tensor_rotate(float *restrict x, const float *restrict cosines, const float *restrict sines, size_t count)
{
    size_t half = count / 2;
    for (size_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cosines[i] - b * sines[i];
        x[i + half] = a * sines[i] + b * cosines[i];
    }
}
