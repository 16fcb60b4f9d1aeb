// SPDX-License-Identifier: Apache-2.0
/*
 * What a network that learns needs and libspops does not have: a loss, a sum of two matrices, an
 * optimiser. Loops on the CPU (steps.c), small kernels on CUDA (steps_cuda.cu); both sum in a fixed
 * order. Dtypes are f32 and bf16.
 */
#ifndef SEGMENT_STEPS_H
#define SEGMENT_STEPS_H

#include "segment.h"

#ifdef __cplusplus
extern "C" {
#endif

#define STEPS_BLOCK 256 /* points whose losses are summed first */

#define STEPS_BETA1   0.9f
#define STEPS_BETA2   0.999f
#define STEPS_EPSILON 1e-8f

/* Weighted cross-entropy over the points that count and have a class:
 *
 *     loss = sum of w[y] (log sum exp z - z[y]) * inverse_weight
 *
 * and its gradient with respect to z (NULL: not wanted). Every row of the gradient is written. */
typedef struct steps_loss {
    spops_dtype dtype;
    int64_t max_points;
    const void *logits; /* [max_points][SEGMENT_LOGITS] */
    const uint8_t *classes;
    const float *class_weights;
    const segment_step *step;
    void *gradient;     /* or NULL */
    float *loss;        /* [1 + blocks of points] */
    int32_t *confusion; /* counted up */
} steps_loss;

/* AdamW on all parameters (Loshchilov and Hutter, Decoupled Weight Decay Regularization); the first
   num_decayed of them decay. */
typedef struct steps_adamw {
    int64_t num, num_decayed;
    float *parameters, *moment1, *moment2;
    const float *gradients;
    const uint8_t *trained;
    const segment_step *step;
    uint16_t *narrow; /* bf16 copy, or NULL */
} steps_adamw;

/* a += b over the first *num_rows rows. */
typedef struct steps_sum {
    spops_dtype dtype;
    int64_t max_rows, cols;
    const int32_t *num_rows;
    void *a;
    const void *b;
} steps_sum;

void steps_cpu_loss(const steps_loss *job);
void steps_cpu_sum(const steps_sum *job);
void steps_cpu_adamw(const steps_adamw *job);
void steps_cpu_narrow(int64_t num, const float *from, uint16_t *to);

/* NULL, or what went wrong. They enqueue on a stream. */
const char *steps_cuda_loss(const steps_loss *job, void *stream);
const char *steps_cuda_sum(const steps_sum *job, void *stream);
const char *steps_cuda_adamw(const steps_adamw *job, void *stream);
const char *steps_cuda_narrow(int64_t num, const float *from, uint16_t *to, void *stream);

#ifdef __cplusplus
}
#endif

#endif
