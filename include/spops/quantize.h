/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantising: from f32, f16 or bf16 to 8- and 4-bit floats or to i8 and back, with one scale per matrix
 * and, for f4e2m1, one more per 16 columns (NVFP4); and weights with one scale per output channel.
 *
 *     8 bits           x[r, c] ~ scale * q[r, c]
 *     f4e2m1           x[r, c] ~ scale * block_scales[r, c / 16] * q[r, c]
 *
 *     scale_execute ---> scale ---> quantize_execute ---> q, block_scales ---> bevpool, dequantize
 */
#ifndef SPOPS_QUANTIZE_H
#define SPOPS_QUANTIZE_H

#include "spops/context.h"

SPOPS_EXTERN_C_BEGIN

#define SPOPS_QUANTIZE_BLOCK_COLS 16 /* columns of an f4e2m1 row that share a block scale */

/**
 * The scale that makes the largest magnitude of x the largest value of dtype:
 *
 *     scale = max |x| / the largest value of dtype;  / (6 * 448) for f4e2m1;  / 127 for i8
 *
 * and at least 2^-126. Infinities and NaN in x do not count; 1 where nothing but them and zeros
 * is left.
 *
 * x         f32, f16 or bf16.
 * dtype     Of what x will be quantised to: a float of 8 or 4 bits, or i8.
 * scale     One f32 where ctx runs; written. Apart from x.
 *
 * Memory    Where ctx runs: device memory for CUDA, host memory for CPU. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Numerics  The same bits on every run and backend.
 * Errors    INVALID_ARGUMENT (shape, dtype, stride), NOT_SUPPORTED, CUDA.
 *           After any but CUDA, nothing was enqueued and scale is untouched.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_quantize_scale_execute(spops_context *ctx, spops_matrix x,
                                                    spops_dtype dtype, float *scale);

/**
 * Quantise:
 *
 *     f8, i8  out[r, c] = round(x[r, c] / scale)
 *     f4      block_scales[r, b] = round_f8e4m3(max |x[r, 16 b ...]| / scale / 6)
 *             out[r, c] = round(x[r, c] / (block_scales[r, c / 16] * scale)),
 *                         0 where the block scale is 0
 *
 * x             f32, f16 or bf16.
 * scale         One f32 where ctx runs, read when the stream gets there; NULL for 1.
 * out           Shape of x; floats of 8 or 4 bits, or i8. Every element is written. Overlaps no input.
 * block_scales  f8e4m3 [rows, ceil(cols / 16)], written, where out is f4e2m1; else NULL.
 *
 * Numerics  In f32, rounded to nearest even; the same bits on every run and backend. Saturates:
 *           what is too large, infinities included, becomes the largest value. NaN stays NaN in the
 *           f8 dtypes (0x7f) and becomes 0 in i8, whose least value is -128; in f4e2m1 the block's
 *           scale becomes NaN, so that its 16 columns all read as NaN, and the elements 0.
 *
 * Memory, Stream, Errors and Threads as spops_quantize_scale_execute.
 */
SPOPS_API spops_status spops_quantize_execute(spops_context *ctx, spops_matrix x,
                                              const float *scale, spops_matrix out,
                                              const spops_matrix *block_scales);

/**
 * Back to floats:  out[r, c] = scale * q[r, c], or (block_scales[r, c / 16] * q[r, c]) * scale.
 *
 * q             Floats of 8 or 4 bits, or i8.
 * scale         As for spops_quantize_execute.
 * block_scales  f8e4m3 [rows, ceil(cols / 16)] where q is f4e2m1; else NULL.
 * out           Shape of q; f32, f16 or bf16, rounded to nearest even. Overlaps no input.
 *
 * Numerics  The same bits on every run and backend, but for the payload of a NaN.
 *
 * Memory, Stream, Errors and Threads as spops_quantize_scale_execute.
 */
SPOPS_API spops_status spops_dequantize_execute(spops_context *ctx, spops_matrix q,
                                                const float *scale,
                                                const spops_matrix *block_scales, spops_matrix out);

/**
 * Quantise the weights of a layer, once, for spops_sparseconv_execute_quantized and
 * spops_linear_execute_quantized:
 *
 *     scales[o]           = max over k and c of |w[k][c, o]| / the largest value of q's dtype
 *     q[k * C_out + o, c] = round(w[k][c, o] / scales[o]),  0 for c from C_in on
 *
 * w             [taps * C_in, C_out]; with w_transposed [taps * C_out, C_in]. f32, f16 or bf16.
 * taps          Matrices in w: 1 or more, of which w.rows is a multiple; 1 for a linear layer.
 * w_transposed  0 or 1.
 * q             [taps * C_out, C_in rounded up to a multiple of 16], f8e4m3 or i8, without gaps between
 *               rows. Every element is written. Overlaps no input.
 * scales        [C_out] f32 where ctx runs, written; at least 2^-126, and 1 where a channel has nothing
 *               but zeros, infinities and NaN.
 *
 * Numerics  As spops_quantize_execute.
 *
 * Memory, Stream, Errors and Threads as spops_quantize_scale_execute.
 */
SPOPS_API spops_status spops_quantize_weights_execute(spops_context *ctx, spops_matrix w,
                                                      int32_t taps, int32_t w_transposed,
                                                      spops_matrix q, float *scales);

SPOPS_EXTERN_C_END

#endif
