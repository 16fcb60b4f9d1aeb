/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Softmax, sort and top-k within the segments of a plan, column by column. Rows are the plan's terms,
 * by the caller's own numbers: a row for each pair of a relation, each point of a sample, each row of a
 * patch. spops_rank_execute (spops/segments.h) counts them.
 */
#ifndef SPOPS_SEGMENT_OPS_H
#define SPOPS_SEGMENT_OPS_H

#include "spops/segments.h"

SPOPS_EXTERN_C_BEGIN

/**
 * Softmax over the terms of each segment:
 *
 *     out[t, c] = exp(x[t, c] - m) / sum over the terms u of t's segment of exp(x[u, c] - m)
 *
 * where m is the largest x of the segment in column c.
 *
 * x         [terms of the plan, or its capacity, cols], f32 f16 bf16; on the CPU f64.
 * out       Like x. A term that the plan left out gets 0.
 *
 * Memory    Where ctx runs. No pointer is kept. out may not overlap x.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   The plan's own; cols up to its max_cols where segments can be split.
 * Numerics  In f32 (f64 of f64), in an order that depends on the plan alone: the same bits on each run.
 *           -infinity gives 0, also where every term of a segment is -infinity; NaN and infinity make
 *           the column of their segment NaN.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED, SCRATCH_TOO_SMALL, CUDA. After any but CUDA, nothing was
 *           enqueued.
 * Threads   One thread at a time per ctx; segments may be shared.
 */
SPOPS_API spops_status spops_segment_softmax_execute(spops_context *ctx,
                                                     const spops_segments *segments, spops_matrix x,
                                                     spops_matrix out);

/**
 * The gradient of spops_segment_softmax_execute, from its output:
 *
 *     grad_x[t, c] = out[t, c] (grad_out[t, c] - sum over the terms u of t's segment of
 *                                                out[u, c] grad_out[u, c])
 *
 * The rest as spops_segment_softmax_execute.
 */
SPOPS_API spops_status spops_segment_softmax_execute_backward(spops_context *ctx,
                                                              const spops_segments *segments,
                                                              spops_matrix grad_out,
                                                              spops_matrix out,
                                                              spops_matrix grad_x);

/** Scratch of spops_segment_sort_execute for rows of cols elements of dtype; 0 where ctx or segments is NULL. */
SPOPS_API size_t spops_segment_sort_scratch_bytes(spops_context *ctx,
                                                  const spops_segments *segments, spops_dtype dtype,
                                                  int64_t cols);

/**
 * Sort the terms of each segment by value, each column by itself. Where term r of a segment is, values
 * gets the r-th smallest value of the segment (with descending the r-th largest), and places the number
 * of the term that has it.
 *
 * descending 0 or 1. Terms of equal values keep their order either way.
 * x         [terms of the plan, or its capacity, cols], f32 f16 bf16; on the CPU f64.
 * values    Like x. A term that the plan left out gets 0.
 * places    Like x, i32; -1 for a term that the plan left out.
 *
 * Memory    Where ctx runs. No pointer is kept. No output may overlap another, or x.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   spops_segment_sort_scratch_bytes, reserved in ctx beforehand.
 * Numerics  Values are copied bit by bit. NaN counts as larger than infinity, -0 as equal to 0.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED, SCRATCH_TOO_SMALL, CUDA. After any but CUDA, nothing was
 *           enqueued.
 * Threads   One thread at a time per ctx; segments may be shared.
 */
SPOPS_API spops_status spops_segment_sort_execute(spops_context *ctx,
                                                  const spops_segments *segments,
                                                  int32_t descending, spops_matrix x,
                                                  spops_matrix values, spops_matrix places);

/**
 * The gradient of spops_segment_sort_execute: grad_x[places[t, c], c] = grad_values[t, c], and 0 in rows
 * that no place names.
 *
 * places    As the call gave them. A number that is no row of grad_x is passed over. Where two rows of a
 *           column name one place, it gets the gradient of one of them.
 *
 * Scratch   None.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED, CUDA.
 *
 * The rest as spops_segment_sort_execute.
 */
SPOPS_API spops_status spops_segment_sort_execute_backward(spops_context *ctx,
                                                           const spops_segments *segments,
                                                           spops_matrix grad_values,
                                                           spops_matrix places,
                                                           spops_matrix grad_x);

/** Scratch of spops_segment_topk_execute; 0 where ctx or segments is NULL. */
SPOPS_API size_t spops_segment_topk_scratch_bytes(spops_context *ctx,
                                                  const spops_segments *segments, int32_t k,
                                                  spops_dtype dtype, int64_t cols);

/**
 * The k largest values of each segment, each column by itself, the largest first: what
 * spops_segment_sort_execute would put first with descending = 1 (with smallest = 1: 0).
 *
 * k         1 to INT32_MAX - 1.
 * smallest  0: the largest; 1: the smallest, the smallest first.
 * values    [segments * k, cols], of x's dtype: those of segment s are the rows s * k to s * k + k - 1.
 *           Where it has fewer terms, the rest is -infinity (with smallest = 1: infinity).
 * places    [segments * k, cols] i32: the terms that have them; -1 for the rest.
 *
 * Scratch   spops_segment_topk_scratch_bytes, reserved in ctx beforehand.
 *
 * The rest as spops_segment_sort_execute.
 */
SPOPS_API spops_status spops_segment_topk_execute(spops_context *ctx,
                                                  const spops_segments *segments, int32_t k,
                                                  int32_t smallest, spops_matrix x,
                                                  spops_matrix values, spops_matrix places);

/**
 * The gradient of spops_segment_topk_execute: grad_x[places[i, c], c] = grad_values[i, c], and 0 in rows
 * that no place names.
 *
 * The rest as spops_segment_sort_execute_backward.
 */
SPOPS_API spops_status spops_segment_topk_execute_backward(spops_context *ctx,
                                                           const spops_segments *segments,
                                                           int32_t k, spops_matrix grad_values,
                                                           spops_matrix places,
                                                           spops_matrix grad_x);

SPOPS_EXTERN_C_END

#endif
