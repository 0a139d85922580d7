/* SPDX-License-Identifier: Apache-2.0
 *
 * Float kernels with one fixed order of additions.
 *
 * Every output element is a sum over its inputs in ascending order (tensor_dot: eight interleaved partial sums, then a
 * fixed tree), whatever else is computed beside it. So a token's numbers never depend on its batch, and the compiler
 * may vectorise over outputs without changing a bit. Compiled with -ffp-contract=off. Pure functions, any thread;
 * pointers are borrowed, and outputs must not overlap inputs unless said so.
 */
#ifndef MINILLM_TENSOR_H
#define MINILLM_TENSOR_H

#include <stddef.h>
#include <stdint.h>

/* y[0..columns) = x[0..rows) * w, where w has `rows` rows of `columns` floats. */
void tensor_multiply(float *restrict y, const float *restrict x, const float *restrict w, size_t rows, size_t columns);

float tensor_dot(const float *a, const float *b, size_t count);

/* y += scale * x */
void tensor_add_scaled(float *restrict y, const float *restrict x, float scale, size_t count);
/* y += x */
void tensor_add(float *restrict y, const float *restrict x, size_t count);

/* y = x / rms(x) * gain */
void tensor_rms_norm(float *restrict y, const float *restrict x, const float *restrict gain, size_t count);

/* In place: scores become weights that add up to one. count >= 1. */
void tensor_softmax(float *scores, size_t count);

/* gate = silu(gate) * up, in place in `gate`. */
void tensor_swiglu(float *restrict gate, const float *restrict up, size_t count);

/* In place: rotates the pairs (x[i], x[i + count/2]) by the angles whose cosines and sines are given (count/2 each). */
void tensor_rotate(float *restrict x, const float *restrict cosines, const float *restrict sines, size_t count);

/* e^x by our own polynomial, so that no libm variant changes a bit; relative error below 1e-6 for -87 < x < 88, 0 or
 * the largest finite power beyond. */
float tensor_exp(float x);

#endif
