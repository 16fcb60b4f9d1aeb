/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Activations: in the epilogue of a layer (spops/layer.h), in a norm (spops/norm.h), and alone, with
 * their gradient. And the sum of two matrices, which joins branches that no epilogue joins.
 */
#ifndef SPOPS_ACTIVATION_H
#define SPOPS_ACTIVATION_H

#include "spops/context.h"

SPOPS_EXTERN_C_BEGIN

/** A function of every value. A NaN stays a NaN; -infinity becomes the limit that the function has. */
typedef enum spops_activation {
    SPOPS_ACTIVATION_NONE = 0,
    SPOPS_ACTIVATION_RELU = 1,       /* max(y, 0); the gradient at 0 is 0 */
    SPOPS_ACTIVATION_LEAKY_RELU = 2, /* y, and slope y below 0; the gradient at 0 is slope */
    SPOPS_ACTIVATION_SILU = 3,       /* y / (1 + exp(-y)) */
    SPOPS_ACTIVATION_GELU = 4,       /* y (1 + erf(y / sqrt(2))) / 2 */
    SPOPS_ACTIVATION_GELU_TANH = 5,  /* y (1 + tanh(sqrt(2 / pi) (y + 0.044715 y^3))) / 2 */
    SPOPS_ACTIVATION_SIGMOID = 6     /* 1 / (1 + exp(-y)) */
} spops_activation;

/** Choices of the calls here. */
typedef struct spops_activation_options {
    size_t struct_size; /* sizeof(spops_activation_options) */
    /* [1] where ctx runs: the first rows that count; NULL: all. Rows after them are neither read
       nor written. A number outside 0 to x.rows is clamped. */
    const int32_t *num_rows;
    float activation_slope; /* of LEAKY_RELU, finite; 0: 0.01 */
} spops_activation_options;

SPOPS_DEFINE_DEFAULT(spops_activation_options)

/**
 * Apply an activation: out[r, c] = activation(x[r, c]).
 *
 * x, out    [rows, cols], f32 f16 bf16, on the CPU f64, of one dtype. out may be x.
 * options   NULL: defaults.
 *
 * Memory    Where ctx runs. No pointer is kept. out overlaps nothing else.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   None.
 * Numerics  In f32 to a few units of the last place, also where the value is tiny; of f64 in f64.
 *           Rounded to the dtype of out once. The same bits on every run and thread count. What is
 *           below 1e-42 may become 0.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED, CUDA. After any but CUDA, nothing was enqueued.
 * Threads   One thread at a time per ctx.
 * Source    Hendrycks and Gimpel, Gaussian Error Linear Units; Elfwing et al., Sigmoid-Weighted Linear
 *           Units. The polynomials are ours.
 */
SPOPS_API spops_status spops_activation_execute(spops_context *ctx, spops_activation activation,
                                                spops_matrix x,
                                                const spops_activation_options *options,
                                                spops_matrix out);

/**
 * Gradient of spops_activation_execute, from what it took: grad_x[r, c] = grad_out[r, c]
 * activation'(x[r, c]). The gradient of a layer's sum, whose activation the layer did not apply
 * itself, is computed this way.
 *
 * grad_out, x, grad_x   [rows, cols], of one dtype. grad_x may be grad_out.
 *
 * Numerics  The factor has an absolute error of a few units of the last place of 1.
 * The rest as spops_activation_execute.
 */
SPOPS_API spops_status spops_activation_execute_backward(spops_context *ctx,
                                                         spops_activation activation,
                                                         spops_matrix grad_out, spops_matrix x,
                                                         const spops_activation_options *options,
                                                         spops_matrix grad_x);

/** Choices of spops_add_execute. */
typedef struct spops_add_options {
    size_t struct_size;          /* sizeof(spops_add_options) */
    const int32_t *num_rows;     /* as of spops_activation_options */
    float scale;                 /* of y, finite; 0: 1 */
    spops_activation activation; /* of x */
    float activation_slope;      /* of LEAKY_RELU, finite; 0: 0.01 */
    int32_t reserved;            /* 0 */
} spops_add_options;

SPOPS_DEFINE_DEFAULT(spops_add_options)

/**
 * Add two matrices: out[r, c] = activation(x[r, c]) + scale * y[r, c]. Gradients of branches that meet are
 * added so, and a step of gradient descent is one of f32 with scale = -rate.
 *
 * x, y, out [rows, cols], f32 f16 bf16, on the CPU f64, of one dtype. out may be x.
 * options   NULL: defaults.
 *
 * Numerics  The product and the sum in f32; of f64 in f64. Rounded to the dtype of out once.
 * The rest as spops_activation_execute.
 */
SPOPS_API spops_status spops_add_execute(spops_context *ctx, spops_matrix x, spops_matrix y,
                                         const spops_add_options *options, spops_matrix out);

/**
 * Gradients of spops_add_execute: grad_x[r, c] = grad_out[r, c] * activation'(x[r, c]) and
 * grad_y[r, c] = scale * grad_out[r, c].
 *
 * grad_out, x     [rows, cols], of one dtype; x is read for an activation's derivative.
 * grad_x, grad_y  [rows, cols], or NULL. grad_x may be grad_out.
 *
 * The rest as spops_activation_execute_backward.
 */
SPOPS_API spops_status spops_add_execute_backward(spops_context *ctx, spops_matrix grad_out,
                                                  spops_matrix x, const spops_add_options *options,
                                                  const spops_matrix *grad_x,
                                                  const spops_matrix *grad_y);

SPOPS_EXTERN_C_END

#endif
