/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gather: copy rows to where the next step wants them, and bring gradients back.
 *
 * The plan is a spops_segments whose segments are the *source rows*: term t takes source row
 * keys[t], so spops_segments_create_from_keys(ctx, num_source_rows, num_terms, keys, ...) is the
 * plan of out = x[keys]. Gathering is the adjoint of the segmented sum over the same plan.
 */
#ifndef SPOPS_GATHER_H
#define SPOPS_GATHER_H

#include "spops/segments.h"

SPOPS_EXTERN_C_BEGIN

/**
 * Copy each source row to every term that names it. Wide rows are read once; on a GPU, narrow rows of a
 * plan made of unsorted keys without idx and weight_idx are written in order.
 *
 *     out[t, c] = w[weight_idx[t]] * x[keys[t], c]
 *
 * x         [num_segments, cols], f32 f16 bf16, on the CPU f64: the source rows.
 * w         [num_weights, 1], f32 or the dtype of x, row_stride 1; NULL: plain copies.
 * out       [num_rows, cols], dtype of x. Row t, or row idx[t] where the plan has an idx: rows that
 *           no term names are left as they are, and no row may be named twice (the plan is not
 *           asked; the last writer is then unspecified).
 *
 * Memory    Where ctx runs. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Numerics  Without w bit-exact copies (NaN payloads too); with w one product in f32, of f64 in f64, rounded once.
 * Scratch   None.
 * Errors    INVALID_ARGUMENT (shape, dtype, stride), NOT_SUPPORTED, CUDA.
 *           After any but CUDA, nothing was enqueued and out is untouched.
 * Threads   One thread at a time per ctx; the plan may be shared.
 * Source    Input-stationary gather after TorchSparse, section 4.3.2 (locality-aware access).
 */
SPOPS_API spops_status spops_gather_execute(spops_context *ctx, const spops_segments *rows,
                                            spops_matrix x, const spops_matrix *w,
                                            spops_matrix out);

/**
 * Reverse of spops_gather_execute: many rows to one.
 *
 *     grad_x[j, c] = sum over terms t with keys[t] = j of  w[weight_idx[t]] * grad_out[t, c]
 *     grad_w[m]    = sum over terms t with weight_idx[t] = m of  <grad_out[t, :], x[keys[t], :]>
 *
 * grad_x    [num_segments, cols] or NULL; every element is written.
 * grad_w    [num_weights, 1], dtype of w, or NULL; needs a plan with SPOPS_GRADIENTS_LINEAR.
 *
 * Scratch   spops_segments_scratch_bytes(rows), reserved in ctx beforehand.
 * Numerics  Sums accumulate in f32, of f64 in f64, in an order the plan fixes: same bits on every run.
 * Errors    As spops_gather_execute, and SCRATCH_TOO_SMALL; INVALID_ARGUMENT also where grad_w is
 *           given and the plan has no gradients.
 *
 * Memory, Stream and Threads as spops_gather_execute.
 */
SPOPS_API spops_status spops_gather_execute_backward(spops_context *ctx, const spops_segments *rows,
                                                     spops_matrix grad_out, spops_matrix x,
                                                     const spops_matrix *w,
                                                     const spops_matrix *grad_x,
                                                     const spops_matrix *grad_w);

SPOPS_EXTERN_C_END

#endif
