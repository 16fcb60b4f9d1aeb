/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sparse convolution on kernel maps: forward, gradients, and the epilogue of a layer (bias,
 * folded batch norm, residual, activation).
 *
 * A plan (spops_sparseconv) belongs to one kernel map and serves every layer with that map: any
 * channel counts, dtypes and weights. Weights are [taps][C_in / groups][C_out]; spops/weights.h
 * brings those of other libraries into that form.
 */
#ifndef SPOPS_SPARSECONV_H
#define SPOPS_SPARSECONV_H

#include "spops/kernel_map.h"
#include "spops/layer.h"

SPOPS_EXTERN_C_BEGIN

/** A plan of sparse convolutions on one kernel map. */
typedef struct spops_sparseconv spops_sparseconv;

/** Ways of running a convolution. They differ in speed and memory, and in rounding. */
typedef enum spops_dataflow {
    SPOPS_DATAFLOW_AUTO = 0,
    SPOPS_DATAFLOW_FETCH_ON_DEMAND = 1, /* tiles of output rows fetch the input rows of their pairs:
                                           no buffer, every shape, dtype and backend */
    SPOPS_DATAFLOW_IMPLICIT_GEMM = 2,   /* tiles of outputs in the order of their masks, taps that a
                                           tile lacks left out, on tensor cores: CUDA, compute
                                           capability 8.0 or more (grad_w: 9.0), groups 1, maps
                                           with ORDER, f16, bf16 and (but for grad_w) f32 with
                                           TF32, rows of multiples of 16 bytes */
    SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER = 3 /* rows gathered into a buffer in the order of taps,
                                           products there, summed by output row: groups 1, maps not
                                           made by reserve; needs cuBLAS on CUDA, takes a CBLAS for
                                           f32 on the CPU where one is installed. Scratch for all
                                           pairs, padded in groups, on both sides. On CUDA grad_w
                                           is FETCH_ON_DEMAND's, unless exact f32, since cuBLAS
                                           loses pairs of deep sums (docs/sparseconv.md) */
} spops_dataflow;

/** Which taps GATHER_MATMUL_SCATTER multiplies together. Taps without pairs are passed over. */
typedef enum spops_grouping {
    SPOPS_GROUPING_AUTO = 0,
    SPOPS_GROUPING_SEPARATE = 1,  /* a product for each tap */
    SPOPS_GROUPING_SYMMETRIC = 2, /* each tap with its mirror tap, which has as many pairs.
                                     Submanifold maps; on other maps as SEPARATE */
    SPOPS_GROUPING_FIXED = 3,     /* submanifold: the four taps farthest from the middle with their
                                     images, and the others; else all taps, padded to the longest */
    SPOPS_GROUPING_ADAPTIVE = 4   /* neighbouring taps (with their images) as long as
                                     1 - shortest / longest <= epsilon; one product a tap from
                                     batch_rows pairs on */
} spops_grouping;

/** Passes of a layer. */
typedef enum spops_conv_pass {
    SPOPS_PASS_FORWARD = 0,
    SPOPS_PASS_GRAD_X = 1,
    SPOPS_PASS_GRAD_W = 2
} spops_conv_pass;

/**
 * How a pass of a layer runs: what a plan chose, or a row of a tuning. Final: nothing will be added.
 */
typedef struct spops_conv_choice {
    /* The layer. */
    spops_conv_pass pass;
    spops_dtype dtype; /* of x */
    spops_math math;
    int32_t num_taps;
    int64_t in_channels, out_channels;
    int64_t num_out, num_pairs; /* of the map: output rows, pairs */
    /* What runs. */
    spops_dataflow dataflow;
    spops_grouping grouping; /* of GATHER_MATMUL_SCATTER, else AUTO */
    double epsilon;          /* of ADAPTIVE, as batch_rows */
    int64_t batch_rows;
    int32_t adds_first; /* 1: IMPLICIT_GEMM adds the rows of a tap first. A tuning's rows have 0 */
    int32_t tile;       /* of IMPLICIT_GEMM's products on compute capability 9.0, by number
                           (kernels/igemm/igemm_tuning.h); else 0. A tuning does not say it */
} spops_conv_choice;

/** Choices of spops_sparseconv_create. */
typedef struct spops_sparseconv_options {
    size_t struct_size;
    /* 1: also gradients. 2: gradients of weights and of the bias alone, which need PAIRS alone, also by
       IMPLICIT_GEMM: of a part of the output rows */
    int32_t backward;
    /* AUTO: what a row of the tuning says; else IMPLICIT_GEMM where it serves a call, else
       FETCH_ON_DEMAND. */
    spops_dataflow dataflow;
    /* Of the widest layer whose weights get a gradient, or whose x is i8; 0: 256. Others may be
       wider. */
    int64_t max_in_channels;
    int64_t max_out_channels; /* likewise */
    spops_grouping grouping;  /* of GATHER_MATMUL_SCATTER; AUTO: ADAPTIVE */
    double epsilon;           /* of ADAPTIVE: 0 to 1 */
    int64_t batch_rows;       /* likewise: S, 0 or more */
    /*
     * Rows of a tuning, in host memory, read by create; NULL: none. With dataflow AUTO a layer that
     * rows name takes the one measured on a map with the number of pairs nearest to this map's.
     * Rows of other kernels count for nothing, nor do those of a dataflow that the plan cannot have.
     */
    const spops_conv_choice *tuning;
    int64_t num_tuning;
    int32_t quantized; /* 1: also forward on an x of i8, for which scratch is reserved */
    int32_t tile;      /* of IMPLICIT_GEMM, as spops_conv_choice.tile has it; 0: the measured one */
    spops_plan_memory *memory; /* where the plan lives; NULL: allocated. With it, no tuning */
    /* 1: bits of an output row, forward and of grad_x, follow from the rows that its taps meet alone, not
       from how many others the map has: a part of a set gives what the whole gives (docs/tiles.md).
       IMPLICIT_GEMM then never sums the taps of a row in parts, which costs time where rows are
       few and channels 96 or more. Not with GATHER_MATMUL_SCATTER nor with a tuning */
    int32_t crop_independent;
    int32_t reserved;
} spops_sparseconv_options;

SPOPS_DEFINE_DEFAULT(spops_sparseconv_options)

/**
 * Plan the convolutions of a map.
 *
 * map       One made with defaults serves. Must have PAIRS; for IMPLICIT_GEMM also ORDER, and with backward REVERSE. PAIRS may be
 *           missing where IMPLICIT_GEMM is named and backward is 0. Made by create, or by reserve:
 *           then the plan is refilled by spops_sparseconv_update. The map must outlive the plan.
 * options   NULL: defaults. A dataflow that is named serves every call, or the call is refused.
 * conv      The plan; NULL after a failure.
 *
 * Memory    Where ctx runs.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Scratch   Reserved in ctx for the plan's own needs.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (a dataflow that this backend, device or map does not
 *           have, or whose library cannot be opened), OUT_OF_MEMORY, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the plan.
 * Source    TorchSparse, section 4 and Algorithm 4 (gather-matmul-scatter, groupings); masked implicit GEMM after spconv 2 and
 *           FlexGEMM: docs/sparseconv.md.
 */
SPOPS_API spops_status spops_sparseconv_create(spops_context *ctx, const spops_kernel_map *map,
                                               const spops_sparseconv_options *options,
                                               spops_sparseconv **conv);

/**
 * Refill a plan from its map, after spops_kernel_map_update.
 *
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT, CUDA.
 */
static inline spops_status spops_sparseconv_update(spops_context *ctx, spops_sparseconv *conv)
{
    spops_plan *const plan = (spops_plan *)conv;
    return spops_update(ctx, &plan, 1);
}

/* clang-format off */
/**
 * Run a layer:
 *
 *     sum[i, o] = sum over taps k of map, with input row j = j(i, k), and c of  x[j, c] * w[k][c, o]
 *     out[i, o] = activation((sum + bias[o]) * scale[o] + shift[o] + residual[i, o])
 *
 * x         [rows of in, C_in], f32 f16 bf16, on the CPU f64. Of a map made by reserve, as many rows as in's
 *           capacity; rows after those in use are not read. With a plan that has `quantized` also
 *           i8, which counts as layer->x_scales times its elements, rounded to w's dtype; below, the
 *           dtype of x is then that of w. A pass before the dataflow writes these rows to scratch.
 * w         [taps * C_in / groups, C_out], dtype of x, row_stride C_out. In group g of the columns,
 *           row c of a tap is for input column g C_in / groups + c.
 * layer     NULL: defaults.
 * out       [rows of out, C_out], dtype of x or f32. Every row in use is written; those after them
 *           are left alone. Must not overlap x, w or residual.
 *
 * Memory    Where ctx runs. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   spops_sparseconv_scratch_bytes, reserved in ctx beforehand.
 * Numerics  Sums in f32 (f64 in f64, by FETCH_ON_DEMAND alone), by ascending tap. Same bits on every run and thread count. The epilogue is
 *           computed in f32.
 *           IMPLICIT_GEMM: of few rows, parts of the taps are summed first, unless the plan is
 *           crop_independent.
 *           FETCH_ON_DEMAND: the sum is rounded to out's dtype before the epilogue.
 *           GATHER_MATMUL_SCATTER: the product of each tap is rounded to out's dtype. The middle tap
 *           of a submanifold map is added last and the sum rounded again. Bits are those of the
 *           library that multiplies.
 * Errors    INVALID_ARGUMENT (shape, dtype, stride, groups), SCRATCH_TOO_SMALL, NOT_SUPPORTED (a
 *           forced dataflow that does not serve the call), CUDA. After any but CUDA, nothing was
 *           enqueued and out is untouched.
 * Threads   One thread at a time per ctx; conv may be shared.
 */
SPOPS_API spops_status spops_sparseconv_execute(spops_context *ctx, const spops_sparseconv *conv,
                                                spops_matrix x, spops_matrix w,
                                                const spops_conv_layer *layer,
                                                spops_matrix out);

/**
 * Run a layer in 8 bits, for networks that are deployed:
 *
 *     sum[i, o] = sum over taps k of map, with input row j = j(i, k), and c of  x[j, c] * w[k][o, c]
 *     v[i, o]   = activation((sum * x_scale * w_scales[o] + bias[o]) * scale[o] + shift[o] + residual[i, o])
 *     out[i, o] = v[i, o], or of 8 bits  round(v[i, o] / out_scale)
 *
 * x         [rows of in, C_in] f8e4m3 or i8, as spops_quantize_execute writes them.
 * w         [taps * C_out, C_in rounded up to a multiple of 16], dtype of x, row_stride as many columns,
 *           aligned to 16 bytes: as spops_quantize_weights_execute writes them.
 * layer     NULL: defaults. num_rows must be NULL.
 * out       [rows of out, C_out], f32, f16 or dtype of x. Rows as spops_sparseconv_execute has them.
 *
 * The plan runs on FETCH_ON_DEMAND (CPU) or IMPLICIT_GEMM (CUDA, compute capability 8.0 or more; rows of
 * x of multiples of 16 bytes are faster), AUTO among them, and has as many channels at least; one with
 * `quantized` has its kernels loaded. groups are 1. Of i8, taps * C_in is 131071 at most.

 * Numerics  Sums of i8 are exact, in s32; of f8e4m3 in f32, each product with 13 bits after the largest
 *           of the 33 numbers that are added at once (docs/quantized.md has the bound). Then in f32, each
 *           step rounded by itself: v = sum * (x_scale * w_scales[o]); + bias; * scale; + shift;
 *           + residual (residual_scale * its code); activation. An out of 8 bits is
 *           v * (1 / out_scale), rounded to nearest even, saturated; NaN becomes 0x7f, in i8 0.
 *           Same bits on every run and thread count; of i8, with an activation of NONE, RELU or
 *           LEAKY_RELU, on every backend and device too.
 * Errors    INVALID_ARGUMENT, SCRATCH_TOO_SMALL, NOT_SUPPORTED (a plan of another dataflow), CUDA.
 *
 * Memory, Stream, Scratch and Threads as spops_sparseconv_execute.
 */
SPOPS_API spops_status spops_sparseconv_execute_quantized(spops_context *ctx,
                                                          const spops_sparseconv *conv,
                                                          spops_matrix x, spops_matrix w,
                                                          const spops_quantized_layer *layer,
                                                          spops_matrix out);

/**
 * Gradients of the sum over taps (not of the epilogue):
 *
 *     grad_x[j, c]    = sum over pairs (i, j, k) and o of  grad_sum[i, o] * w[k][c, o]
 *     grad_w[k][c, o] = sum over pairs (i, j, k) of        x[j, c] * grad_sum[i, o]
 *     grad_bias[o]    = sum over rows i in use of           grad_sum[i, o]
 *
 * grad_sum  [rows of out, C_out], dtype of x. Rows after those in use are not read.
 * layer     groups and math count; NULL: defaults.
 * grad_x    [rows of in, C_in], dtype of x or f32, or NULL.
 * grad_w    [taps * C_in / groups, C_out], f32 or the dtype of x (f16 overflows easily), row_stride
 *           C_out, or NULL. Every element is written; taps without pairs get 0.
 * grad_bias [C_out] f32, with rows of f64 f64, or NULL. Without rows it is 0.
 *
 * Numerics  As spops_sparseconv_execute. grad_x is a sum over taps like the forward pass: with
 *           GATHER_MATMUL_SCATTER each tap's product is rounded to the dtype of grad_x, and that of
 *           a submanifold map's middle tap is added last, with a rounding of its own. grad_w has no
 *           such rounding: the pairs of a tap are one product.
 *
 * The plan must have backward. The rest as spops_sparseconv_execute.
 */
SPOPS_API spops_status spops_sparseconv_execute_backward(spops_context *ctx,
                                                         const spops_sparseconv *conv,
                                                         spops_matrix grad_sum, spops_matrix x,
                                                         spops_matrix w,
                                                         const spops_conv_layer *layer,
                                                         const spops_matrix *grad_x,
                                                         const spops_matrix *grad_w,
                                                         void *grad_bias);
/* clang-format on */

/**
 * How a pass of a layer with dense rows runs, with the layer and the map that this counts for.
 *
 * choice    Written; its dataflow is AUTO where the plan, or any, refuses the pass.
 *
 * Errors    INVALID_ARGUMENT.
 * Threads   One thread at a time per ctx; conv may be shared.
 */
SPOPS_API spops_status spops_sparseconv_get_choice(spops_context *ctx, const spops_sparseconv *conv,
                                                   spops_conv_pass pass, spops_dtype dtype,
                                                   int64_t in_channels, int64_t out_channels,
                                                   const spops_conv_layer *layer,
                                                   spops_conv_choice *choice);

/**
 * Write rows of a tuning as the text that spops_sparseconv_load_choices reads (docs/sparseconv.md).
 * It names ctx's device, which they were measured on.
 *
 * rows      [num_rows] host memory.
 * buffer    Host memory of `capacity` bytes, written; NULL: nothing is, and *bytes says what would
 *           be. No 0 is put after the text.
 * bytes     Set to the bytes written, or needed.
 *
 * Errors    INVALID_ARGUMENT (buffer too small, a row that makes no sense).
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_sparseconv_save_choices(spops_context *ctx,
                                                     const spops_conv_choice *rows,
                                                     int64_t num_rows, char *buffer,
                                                     size_t capacity, size_t *bytes);

/**
 * Read rows of a tuning, for spops_sparseconv_options::tuning.
 *
 * text      [bytes] host memory, as save_choices or `spops tune` wrote it; every word is checked.
 * rows      [max_rows] host memory, written; NULL: none is, and *num_rows says how many there are.
 * num_rows  Set to the rows of the text.
 *
 * Errors    CORRUPT_DATA (names the line), NOT_SUPPORTED (a tuning of another device, or of a later
 *           version of the format), INVALID_ARGUMENT (NULL, more rows than max_rows). Nothing is
 *           written after an error.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_sparseconv_load_choices(spops_context *ctx, const char *text,
                                                     size_t bytes, spops_conv_choice *rows,
                                                     int64_t max_rows, int64_t *num_rows);

/** Lower-case name such as "adaptive"; "?" for a value that is none. */
SPOPS_API const char *spops_grouping_name(spops_grouping grouping);

/** Lower-case name such as "implicit_gemm"; "?" for a value that is none. */
SPOPS_API const char *spops_dataflow_name(spops_dataflow dataflow);

/** Scratch that every call with this plan fits in, up to its channel counts. */
static inline size_t spops_sparseconv_scratch_bytes(const spops_sparseconv *conv)
{
    return spops_plan_scratch_bytes((const spops_plan *)conv);
}

/** Free a plan; NULL is fine. Waits for the creating context; nothing else may be running it. */
static inline void spops_sparseconv_destroy(spops_sparseconv *conv)
{
    spops_plan_destroy((spops_plan *)conv);
}

SPOPS_EXTERN_C_END

#endif
