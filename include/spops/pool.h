/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sparse pooling: the rows that a kernel's window joins, all rows of a batch, or neighbouring rows of
 * a bucket become one row, by any reduction of spops/segreduce.h, with gradients.
 */
#ifndef SPOPS_POOL_H
#define SPOPS_POOL_H

#include "spops/buckets.h"
#include "spops/kernel_map.h"
#include "spops/segreduce.h"

SPOPS_EXTERN_C_BEGIN

/** Which rows are pooled into which. */
typedef struct spops_pool spops_pool;

/** Choices of the calls that make pooling plans. */
typedef struct spops_pool_options {
    size_t struct_size;        /* sizeof(spops_pool_options) */
    spops_gradients gradients; /* that the plan can run */
    int32_t reserved;          /* 0 */
    int64_t max_cols;          /* widest rows it will meet; 0: 256 */
    spops_plan_memory *memory; /* where the plan lives; NULL: allocated */
} spops_pool_options;

SPOPS_DEFINE_DEFAULT(spops_pool_options)

/**
 * Plan the pooling over the windows of a kernel map: output row i pools the input rows that a tap
 * joins to it. Rows that are not there do not count, so that a mean is over those that are.
 *
 * map       Must have PAIRS. Made by create, or by reserve: then the plan is refilled by
 *           spops_pool_update. Must outlive the plan.
 * options   NULL: defaults, no gradients.
 * pool      The plan; NULL after a failure.
 *
 * Memory    Where ctx runs. All that a set needs is allocated here.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Scratch   Reserved in ctx for the plan's own needs.
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_SUPPORTED, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the plan.
 */
SPOPS_API spops_status spops_pool_create(spops_context *ctx, const spops_kernel_map *map,
                                         const spops_pool_options *options, spops_pool **pool);

/**
 * Plan global pooling: output row b pools the rows of batch b.
 *
 * coords       Made by create, or by reserve: then the plan is refilled by spops_pool_update. Its box
 *              must lie within the batches. Must outlive the plan.
 * num_batches  Rows of the output, 0 to INT32_MAX - 1; batches without a row are empty segments.
 *
 * The rest as spops_pool_create.
 */
SPOPS_API spops_status spops_pool_create_global(spops_context *ctx, const spops_coords *coords,
                                                int64_t num_batches,
                                                const spops_pool_options *options,
                                                spops_pool **pool);

/**
 * Plan in-bucket pooling: the rows of every bucket are ordered along the Z-order curve of their cells
 * (spops/buckets.h; ties by row) and cut into sub-buckets of sub_rows rows, the last of a bucket with
 * what is left. Output row i pools sub-bucket i; buckets come in order.
 *
 * buckets   Made by create, or by reserve: then the plan is refilled by spops_pool_update. Must outlive
 *           the plan. Their cells and numbers need 64 bits together at most.
 * sub_rows  1 or more: how many rows become one.
 *
 * Unpooling is spops_gather_execute on spops_pool_segments(pool): every row gets that of its
 * sub-bucket. Output rows are min(max_rows, max_rows / sub_rows + max_buckets) of the buckets' view; those
 * after the last sub-bucket are empty segments.
 *
 * Source    Flash3D, section 4.2 and section 9.4 (sub-buckets of a fixed number of rows). Cutting a
 *           curve instead of hashing and searching again inside of a bucket is ours.
 * The rest as spops_pool_create.
 */
SPOPS_API spops_status spops_pool_create_from_buckets(spops_context *ctx,
                                                      const spops_buckets *buckets,
                                                      int32_t sub_rows,
                                                      const spops_pool_options *options,
                                                      spops_pool **pool);

/**
 * The first output row of every sample of the buckets, and how many output rows there are: [max_samples
 * + 1] where the plan's context runs, ascending. NULL for other plans. Owned by the plan.
 */
SPOPS_API const int32_t *spops_pool_sample_offsets(const spops_pool *pool);

/**
 * Refill a plan from its map, set or buckets, after that was refilled.
 *
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT, CUDA.
 * Threads   One thread at a time per ctx and per plan.
 */
static inline spops_status spops_pool_update(spops_context *ctx, spops_pool *pool)
{
    spops_plan *const plan = (spops_plan *)pool;
    return spops_update(ctx, &plan, 1);
}

/**
 * Pool rows:
 *
 *     out[i, c] = reduce over the rows j that are pooled into i of  x[j, c]
 *
 * reduce    SPOPS_REDUCE_SUM, MEAN, MIN, MAX, or any other that spops_segreduce_execute takes. An
 *           output row with nothing in its window has the value of an empty segment (spops_reduce);
 *           so have rows after those in use.
 * x         [rows of in, cols], f32 f16 bf16, on the CPU f64. Of a plan with capacities, as many rows as in's
 *           capacity; rows after those in use are not read.
 * out       [rows of out, cols], dtype of x. Every element is written. Must not overlap x.
 *
 * Memory    Where ctx runs. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   spops_segments_scratch_bytes(spops_pool_segments(pool)), reserved in ctx beforehand.
 * Numerics  Accumulates in f32, of f64 in f64, by ascending tap, or row: same bits on every run and thread count.
 *           The earliest of equal maxima counts.
 * Errors    As spops_segreduce_execute.
 * Threads   One thread at a time per ctx; pool may be shared.
 */
SPOPS_API spops_status spops_pool_execute(spops_context *ctx, const spops_pool *pool,
                                          spops_reduce reduce, spops_matrix x, spops_matrix out);

/**
 * Gradient of spops_pool_execute. What the forward pass knew is computed again from x.
 *
 * grad_out  [rows of out, cols], dtype of x. Rows after those in use are not read.
 * grad_x    [rows of in, cols], dtype of x. Every element is written.
 *
 * The plan must have been made with the gradients asked for. The rest as spops_pool_execute.
 */
SPOPS_API spops_status spops_pool_execute_backward(spops_context *ctx, const spops_pool *pool,
                                                   spops_reduce reduce, spops_matrix grad_out,
                                                   spops_matrix x, spops_matrix grad_x);

/**
 * The relation that a plan holds, for weights, winners' indices or traffic: segments are output rows,
 * terms are pairs of the map (or rows of the set). Owned by the plan.
 */
SPOPS_API const spops_segments *spops_pool_segments(const spops_pool *pool);

/** Free a plan; NULL is fine. Waits for the creating context; nothing else may be running it. */
static inline void spops_pool_destroy(spops_pool *pool)
{
    spops_plan_destroy((spops_plan *)pool);
}

SPOPS_EXTERN_C_END

#endif
