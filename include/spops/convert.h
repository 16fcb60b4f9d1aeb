/* SPDX-License-Identifier: Apache-2.0 */
/* Rows in another dtype: floats to floats, indices to indices. */
#ifndef SPOPS_CONVERT_H
#define SPOPS_CONVERT_H

#include "spops/context.h"

SPOPS_EXTERN_C_BEGIN

/**
 * Convert every element: out[r, c] = x[r, c] in the dtype of out.
 *
 * x         [rows, cols], f32 f16 bf16 and, on the CPU, f64; or i32 i64.
 * out       [rows, cols], of the same kind: any float for floats, any of the two integers for
 *           integers. Every element is written. Must not overlap x.
 *
 * Floats are rounded to nearest, ties to even; a magnitude above the largest of out's dtype becomes an
 * infinity where rounding says so, and what is too small becomes subnormal or 0 with its sign. A NaN
 * stays a NaN, with which bits is not said. An i64 that i32 cannot hold becomes -1, which is no index:
 * calls that make a plan refuse it, and those that refill one leave it out and count it. Elements of
 * one dtype are copied bit for bit.
 *
 * Memory    Where ctx runs. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   None.
 * Errors    INVALID_ARGUMENT (shape, dtype, stride, overlap), NOT_SUPPORTED, CUDA. After any but
 *           CUDA, nothing was enqueued and out is untouched.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_convert_execute(spops_context *ctx, spops_matrix x, spops_matrix out);

SPOPS_EXTERN_C_END

#endif
