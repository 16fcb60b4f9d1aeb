/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segmented reduction: the rows of every segment of a plan (spops/segments.h) become one row, with
 * gradients; and reductions of the caller's own.
 */
#ifndef SPOPS_SEGREDUCE_H
#define SPOPS_SEGREDUCE_H

#include "spops/segments.h"

SPOPS_EXTERN_C_BEGIN

/**
 * Reduce the rows of every segment to one row:
 *
 *     out[s, c] = reduce over terms t of segment s of  w[weight_idx[t]] * x[idx[t], c]
 *
 * reduce    SPOPS_REDUCE_*, whose own comment gives the value of an empty segment, or an id from
 *           spops_reduce_create on the same context.
 * x         [num_rows, cols], f32 f16 bf16; on the CPU f64.
 * w         [num_weights, 1], f32 or the dtype of x, row_stride 1; NULL for all ones.
 * out       [num_segments, cols], dtype of x. Every element is written. Must not overlap inputs.
 * arg       [num_segments, cols] i32 or NULL: the winning term's number, -1 for an empty segment.
 *           Only for MIN and MAX.
 *
 * Memory    Where ctx runs: device memory for CUDA, host memory for CPU. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   spops_segments_scratch_bytes(segments), reserved in ctx beforehand.
 * Numerics  In an order that the plan fixes: same bits on every run and thread count. Which bits other
 *           processors give: docs/reproducibility.md.
 *
 *           Sums. Let S be the sum of the magnitudes of a segment's n terms. Before it is rounded to
 *           the dtype of out, a SUM differs from the exact one by at most r 2^-24 S, and a MEAN by at
 *           most (r + 2) 2^-24 S / n, where r counts the roundings to f32 that a term meets. On the
 *           CPU sums of many terms go on in f64: r = 2 for rows of up to 8 columns, and
 *           min(n, 64) + 2 for wider ones, however long a segment is. On CUDA
 *           r = min(n, max(256, max_terms / 2048) + 4096) + 2 at most. Rows of f64 are reduced in f64,
 *           term by term: 2^-53 for 2^-24, and r = n + 1.
 * Errors    INVALID_ARGUMENT (shape, dtype, stride), SCRATCH_TOO_SMALL, NOT_SUPPORTED (rows of f64 on CUDA, or
 *           with a registered reduction), CUDA. After any but CUDA, nothing was enqueued and out is
 *           untouched.
 * Threads   One thread at a time per ctx; segments may be shared.
 * Source    Interval-owned, after BEVPoolV3; long segments split: docs/segreduce.md.
 */
SPOPS_API spops_status spops_segreduce_execute(spops_context *ctx, const spops_segments *segments,
                                               spops_reduce reduce, spops_matrix x,
                                               const spops_matrix *w, spops_matrix out,
                                               const spops_matrix *arg);

/**
 * Gradients of spops_segreduce_execute:
 *
 *     grad_x[j, c] = sum over terms t with idx[t] = j         of w grad(t, c) grad_out[s(t), c]
 *     grad_w[m]    = sum over terms t with weight_idx[t] = m,
 *                    over c               of x[idx[t], c] grad(t, c) grad_out[s(t), c]
 *
 * where grad is the reduction's own (see spops_reduce). What the forward pass knew (winners,
 * products) is computed again from x and w.
 *
 * grad_out  [num_segments, cols], dtype of x.
 * x, w      As forward.
 * grad_x    [num_rows, cols], dtype of x, or NULL. Every element is written.
 * grad_w    [num_weights, 1], dtype of w, row_stride 1, or NULL (always when w is NULL). Every
 *           element is written.
 *
 * The plan must have been built with the gradients asked for.
 *
 * Scratch   spops_segments_scratch_bytes(segments), reserved in ctx beforehand.
 * Numerics  In an order that the plan fixes, without atomics on outputs. Sums as above; a term's
 *           gradient is computed in f32, and grad_w on the CPU sums at most 16 terms, or cols / 16
 *           products of one, in f32 before it goes on in f64.
 * Errors    As spops_segreduce_execute; INVALID_ARGUMENT also for a plan without these gradients,
 *           NOT_SUPPORTED also for a reduction registered without grad.
 *
 * Memory, Stream and Threads as spops_segreduce_execute.
 */
SPOPS_API spops_status spops_segreduce_execute_backward(
    spops_context *ctx, const spops_segments *segments, spops_reduce reduce, spops_matrix grad_out,
    spops_matrix x, const spops_matrix *w, const spops_matrix *grad_x, const spops_matrix *grad_w);

/**
 * A reduction of the caller's own, for one context.
 *
 * A column's state is at most SPOPS_REDUCE_STATE_BYTES_MAX bytes and trivially copyable. The CPU
 * functions work on n neighbouring columns at once: state points to n states one after the other.
 * combine must be associative up to rounding; it need not be commutative (a holds earlier terms).
 * The functions must be pure; they are called from several threads.
 */
#define SPOPS_REDUCE_STATE_BYTES_MAX 8

/** A reduction of the caller's own: its functions for a CPU context, its source for a CUDA one. */
typedef struct spops_reduce_desc {
    size_t struct_size; /* sizeof(spops_reduce_desc) */
    const char *name;   /* for messages */
    size_t state_bytes; /* 1 to SPOPS_REDUCE_STATE_BYTES_MAX */
    void *user;         /* handed to the CPU functions */
    void (*identity)(void *user, int64_t n, void *state);
    /* fold term number `term`, with values v[0..n-1], into the states after what they hold */
    void (*fold)(void *user, int64_t n, void *state, const float *v, int32_t term);
    void (*combine)(void *user, int64_t n, void *a, const void *b);
    void (*finalize)(void *user, int64_t n, const void *state, int64_t count, float *out);
    /* d out / d v of term `term`, whose values are v; NULL: no gradient */
    void (*grad)(void *user, int64_t n, const float *v, int32_t term, const void *state,
                 int64_t count, float *dv);
    /*
     * CUDA C++ source that defines a struct `cuda_op` as spops/device/segreduce.cuh describes;
     * compiled with NVRTC (loaded at run time) when the reduction is created on a CUDA context.
     * NULL: a CUDA context refuses to create it. Only the running context's side is needed.
     */
    const char *cuda_source;
    const char *cuda_op;
} spops_reduce_desc;

SPOPS_DEFINE_DEFAULT(spops_reduce_desc)

/**
 * Register a reduction with ctx. *out is an id that spops_segreduce_execute and its backward take,
 * on this context only, until the context is destroyed; no other reduction of the process gets it.
 * May compile (seconds) and wait.
 *
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, COMPILE_FAILED (with the compiler's first line), CUDA,
 *           NOT_SUPPORTED (the stream is being captured, or ctx has 64 reductions already).
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_reduce_create(spops_context *ctx, const spops_reduce_desc *desc,
                                           spops_reduce *out);

SPOPS_EXTERN_C_END

#endif
