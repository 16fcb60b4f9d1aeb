/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear layers: rows times a matrix, and what a layer does with the sum (spops/layer.h); and their
 * gradients. No plan: a call has all that it needs in its arguments.
 */
#ifndef SPOPS_LINEAR_H
#define SPOPS_LINEAR_H

#include "spops/context.h"
#include "spops/layer.h"

SPOPS_EXTERN_C_BEGIN

/**
 * Scratch of every call here on ctx, with at most so many rows and channels, for callers that reserve
 * it by spops_context_reserve; backward: 1 for that of gradients too. A forward call needs none, unless
 * ctx has a library of dense products (spops_context_options.dense_library).
 * Returns 0 for NULL and for negative numbers, SIZE_MAX where no address could count the bytes.
 */
SPOPS_API size_t spops_linear_scratch_bytes(spops_context *ctx, int64_t max_rows,
                                            int64_t max_in_channels, int64_t max_out_channels,
                                            int32_t backward);

/**
 * Reserve in ctx what every call with at most so many rows and channels needs: scratch, as much as
 * spops_linear_scratch_bytes says, and on CUDA the kernels of matrix units, loaded. Where it was not
 * called, the first call of its kind on a context loads its kernels. backward: 1 for gradients too.
 *
 * Stream    Not capturable. May wait.
 * Errors    INVALID_ARGUMENT (a number below 0 or above INT32_MAX - 1), NOT_SUPPORTED (while the stream
 *           is captured), OUT_OF_MEMORY, CUDA.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_linear_reserve(spops_context *ctx, int64_t max_rows,
                                            int64_t max_in_channels, int64_t max_out_channels,
                                            int32_t backward);

/* clang-format off */
/**
 * Run a linear layer:
 *
 *     sum[i, o] = sum over c of  x[i, c] * w[c, o]
 *     out[i, o] = activation((sum + bias[o]) * scale[o] + shift[o] + residual[i, o])
 *
 * x         [rows, C_in], f32 f16 bf16; on the CPU f64.
 * w         [C_in, C_out], dtype of x; with layer->w_transposed [C_out, C_in].
 * layer     NULL: defaults. groups must be 0 or 1, x_scales NULL.
 * out       [rows, C_out], dtype of x or f32. The rows that count are written, others are left alone
 *           (layer->num_rows). Must not overlap x, w or what layer names, but for a residual that is
 *           out itself: same data, row_stride and shape.
 *
 * Memory    Where ctx runs. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   None; with dense_library that of spops_linear_reserve.
 * Numerics  Sums in f32; bias to activation in f32, rounded to out's dtype once; of f64 all in f64. Same bits on every
 *           run and thread count. Kernels of sm_90 (f16, bf16, and f32 with TF32 and w_transposed;
 *           rows and lines of w of multiples of 16 bytes, w dense) come first. With dense_library
 *           its product follows: f32 on the CPU, any dtype on CUDA, where num_rows is NULL; it has
 *           the bits that the library gives, and the sum is rounded to out's dtype before the rest.
 *           The library's own kernels serve what is left.
 * Errors    INVALID_ARGUMENT (shape, dtype, stride, groups), SCRATCH_TOO_SMALL, NOT_SUPPORTED, CUDA.
 *           After any but CUDA, nothing was enqueued and out is untouched.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_linear_execute(spops_context *ctx, spops_matrix x, spops_matrix w,
                                            const spops_conv_layer *layer, spops_matrix out);

/**
 * Run a linear layer in 8 bits, as spops_sparseconv_execute_quantized runs a convolution:
 *
 *     sum[i, o] = sum over c of  x[i, c] * w[o, c]
 *
 * x         [rows, C_in], f8e4m3 or i8.
 * w         [C_out, C_in rounded up to a multiple of 16], dtype of x, row_stride as many columns, aligned
 *           to 16 bytes.
 * layer     NULL: defaults.
 * out       [rows, C_out], f32, f16 or dtype of x. Rows as spops_linear_execute has them.
 *
 * Scratch   None.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (CUDA below compute capability 8.0), CUDA.
 *
 * Numerics and the rest as spops_sparseconv_execute_quantized.
 */
SPOPS_API spops_status spops_linear_execute_quantized(spops_context *ctx, spops_matrix x,
                                                      spops_matrix w,
                                                      const spops_quantized_layer *layer,
                                                      spops_matrix out);

/**
 * Gradients of the sum (not of what follows it) and of the bias:
 *
 *     grad_x[i, c]  = sum over o of  grad_sum[i, o] * w[c, o]
 *     grad_w[c, o]  = sum over i of  x[i, c] * grad_sum[i, o]
 *     grad_bias[o]  = sum over i of  grad_sum[i, o]
 *
 * grad_sum   [rows, C_out], dtype of x.
 * layer      w_transposed, num_rows and math count; NULL: defaults.
 * grad_x     [rows, C_in], dtype of x or f32, or NULL. The rows that count are written.
 * grad_w     Shape of w, f32 or the dtype of x (f16 overflows easily), or NULL. Without rows it is 0.
 * grad_bias  [C_out] f32, with rows of f64 f64, or NULL. Without rows it is 0.
 *
 * Scratch   That of spops_linear_reserve.
 * Numerics  Sums over rows are cut into pieces by the number of rows of x, and added in order. Rows
 *           after those that count add nothing, whatever they hold. dense_library takes grad_w
 *           in exact f32 alone: cuBLAS loses terms of deep sums in other dtypes.
 *
 * The rest as spops_linear_execute.
 */
SPOPS_API spops_status spops_linear_execute_backward(spops_context *ctx, spops_matrix grad_sum,
                                                     spops_matrix x, spops_matrix w,
                                                     const spops_conv_layer *layer,
                                                     const spops_matrix *grad_x,
                                                     const spops_matrix *grad_w, void *grad_bias);
/* clang-format on */

SPOPS_EXTERN_C_END

#endif
