/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products over the pairs of a relation, head by head: a number for each pair from the rows that meet
 * (SDDMM), and sums of rows by numbers of the pairs (SpMM). With spops_segment_softmax_execute between
 * them they are attention over neighbours, whose pairs the caller sees:
 *
 *     sddmm:    score[t, h] = scale <q[s(t), h], k[j(t), h]>
 *     softmax:  p[t, h] = softmax of score over the terms of s(t)
 *     spmm:     out[s, h] = sum over the terms t of s of p[t, h] v[j(t), h]
 *
 * Segments s are the rows that ask, j(t) is the row of term t (idx). Lists of neighbours
 * (spops_neighbors_get_view) are such a plan: offsets, and rows as idx.
 */
#ifndef SPOPS_SDDMM_H
#define SPOPS_SDDMM_H

#include "spops/segments.h"

SPOPS_EXTERN_C_BEGIN

/* clang-format off */
/**
 * The product of two rows for each term, head by head:
 *
 *     out[t, h] = scale * sum over i of q[s(t), h d + i] k[j(t), h d + i],   d = cols / heads
 *
 * heads     1 to cols; divides cols.
 * scale     A finite number.
 * q         [segments, cols], f32 f16 bf16; on the CPU f64.
 * k         [rows of the plan, cols], like q.
 * out       [terms of the plan, or its capacity, heads], of q's dtype. A term that the plan left out
 *           gets 0.
 *
 * Memory    Where ctx runs. No pointer is kept. out may not overlap q or k.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   None.
 * Numerics  Products and sums in f32 (f64 of f64), rounded once to out. The same bits on each run.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED, CUDA. After any but CUDA, nothing was enqueued.
 * Threads   One thread at a time per ctx; segments may be shared.
 */
SPOPS_API spops_status spops_sddmm_execute(spops_context *ctx, const spops_segments *segments,
                                           int32_t heads, float scale, spops_matrix q,
                                           spops_matrix k, spops_matrix out);

/**
 * Gradients of spops_sddmm_execute:
 *
 *     grad_q[s, h d + i] = scale * sum over the terms t of s of grad_out[t, h] k[j(t), h d + i]
 *     grad_k[j, h d + i] = scale * sum over the terms t of row j of grad_out[t, h] q[s(t), h d + i]
 *
 * grad_q, grad_k   Like q and k, or NULL. grad_k needs a plan with gradients.
 *
 * Scratch   The plan's own; cols up to its max_cols where segments can be split.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED, SCRATCH_TOO_SMALL, CUDA.
 *
 * The rest as spops_sddmm_execute.
 */
SPOPS_API spops_status spops_sddmm_execute_backward(spops_context *ctx,
                                                    const spops_segments *segments, int32_t heads,
                                                    float scale, spops_matrix grad_out,
                                                    spops_matrix q, spops_matrix k,
                                                    const spops_matrix *grad_q,
                                                    const spops_matrix *grad_k);

/**
 * Sums of rows by numbers of the terms, head by head:
 *
 *     out[s, h d + i] = sum over the terms t of s of w[t, h] x[j(t), h d + i],   d = cols / heads
 *
 * With as many heads as columns every column has its own weight: vector attention.
 *
 * heads     1 to cols; divides cols.
 * w         [terms of the plan, or its capacity, heads], of x's dtype: a row for each term, whatever the
 *           plan's weight_idx.
 * x         [rows of the plan, cols], f32 f16 bf16; on the CPU f64.
 * out       [segments, cols], like x; 0 for an empty segment.
 *
 * Scratch   The plan's own; cols up to its max_cols where segments can be split.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED, SCRATCH_TOO_SMALL, CUDA.
 *
 * The rest as spops_sddmm_execute.
 */
SPOPS_API spops_status spops_spmm_execute(spops_context *ctx, const spops_segments *segments,
                                          int32_t heads, spops_matrix w, spops_matrix x,
                                          spops_matrix out);

/**
 * Gradients of spops_spmm_execute:
 *
 *     grad_w[t, h] = sum over i of grad_out[s(t), h d + i] x[j(t), h d + i]
 *     grad_x[j, h d + i] = sum over the terms t of row j of w[t, h] grad_out[s(t), h d + i]
 *
 * grad_w, grad_x   Like w and x, or NULL. grad_x needs a plan with gradients.
 *
 * The rest as spops_spmm_execute.
 */
SPOPS_API spops_status spops_spmm_execute_backward(spops_context *ctx,
                                                   const spops_segments *segments, int32_t heads,
                                                   spops_matrix grad_out, spops_matrix w,
                                                   spops_matrix x, const spops_matrix *grad_w,
                                                   const spops_matrix *grad_x);
/* clang-format on */

SPOPS_EXTERN_C_END

#endif
