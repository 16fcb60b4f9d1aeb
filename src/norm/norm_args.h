// SPDX-License-Identifier: Apache-2.0
// What the backends' slots of normalisation take, checked already, and the partition of rows that
// both follow.
#ifndef SPOPS_NORM_NORM_ARGS_H
#define SPOPS_NORM_NORM_ARGS_H

#include <stdbool.h>

#include "core/activation.h"
#include "spops/norm.h"

// Rows are taken in at most NORM_CHUNKS chunks of at least NORM_MIN_CHUNK_ROWS.
#define SPOPS_NORM_CHUNKS         512
#define SPOPS_NORM_MIN_CHUNK_ROWS 32

#ifdef __CUDACC__
#define SPOPS_NORM_INLINE __host__ __device__ __forceinline__
#else
#define SPOPS_NORM_INLINE static inline
#endif

// Rows of a chunk, of n rows in all.
SPOPS_NORM_INLINE int64_t spops_norm_chunk_rows(int64_t n)
{
    const int64_t rows = (n + SPOPS_NORM_CHUNKS - 1) / SPOPS_NORM_CHUNKS;
    return rows < SPOPS_NORM_MIN_CHUNK_ROWS ? SPOPS_NORM_MIN_CHUNK_ROWS : rows;
}

// Half of b - a, which is finite where both are, though b - a need not be.
SPOPS_NORM_INLINE float spops_norm_half_distance(float a, float b)
{
    return 0.5f * b - 0.5f * a;
}

// Two numbers a column of a chunk, and of the whole.
typedef struct spops_norm_scratch {
    float *partials;      // [SPOPS_NORM_CHUNKS][2][cols]
    float *more_partials; // the same, of the second norm of a call
    float *sums;     // [2][cols]: of the gradient, and of the gradient times the normalised value
    float *row_mean; // [rows], of layer norm
    float *row_rstd; // [rows]
} spops_norm_scratch;

typedef struct spops_norm_args {
    spops_matrix x;
    spops_matrix out;      // of the forward passes
    spops_matrix grad_out; // of the gradients
    spops_matrix grad_x;
    spops_matrix grad_more;    // added to grad_x by layer norm's gradient; data NULL: none
    const int32_t *num_rows;   // [1]; NULL: x.rows
    const float *mean, *var;   // [cols], of batch norm; NULL: layer norm
    const float *gamma, *beta; // [cols] or NULL
    float *mean_out, *var_out; // of the statistics
    float *running_mean, *running_var;
    float *grad_gamma, *grad_beta; // or NULL
    float epsilon, momentum;
    spops_activated activated;
    const spops_activation_table *activations; // of the CPU
    int32_t fixed_statistics;
    bool is_rms; // layer norm, but with a mean of 0
    // Gradients of batch norm: grad_gamma and grad_beta are given, as sums over so many rows; 0: they are
    // computed. Without grad_x.data nothing else is.
    int64_t total_rows;
    // The gradient of a first norm may leave its sums of columns, of chunks, to that of a second: it is `before` of
    // the second, whose scratch has other partials. A backend may add them up at once nevertheless.
    bool leaves_sums;
    const struct spops_norm_args *before;
    spops_norm_scratch scratch;
} spops_norm_args;

// Statistics of columns, of chunks whose own are rows of `chunks`: mean [cols], then var [cols].
typedef struct spops_norm_merge_args {
    spops_matrix chunks;       // [num_chunks, 2 cols] f32, or f64, as are the vectors
    const int32_t *chunk_rows; // [num_chunks]
    float momentum;
    float *mean_out, *var_out, *running_mean, *running_var;
} spops_norm_merge_args;

#endif
