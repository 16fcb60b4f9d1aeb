/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Convolution at points: forward, gradients, and the epilogue of a layer. Every output point
 * takes the rows of its neighbours, each by the matrix of the tap that the neighbour's offset falls
 * into (spops/points.h). Voxels at their centres are a special case, with the same result as
 * spops_sparseconv.
 *
 * A plan (spops_pointconv) belongs to neighbours and serves every layer with them. Layers, weights
 * and the epilogue are those of spops/sparseconv.h.
 */
#ifndef SPOPS_POINTCONV_H
#define SPOPS_POINTCONV_H

#include "spops/points.h"
#include "spops/sparseconv.h"

SPOPS_EXTERN_C_BEGIN

/** A plan of convolutions over the neighbours of points. */
typedef struct spops_pointconv spops_pointconv;

/**
 * Several neighbours of a point may fall into one tap. Whether their rows are added first, which
 * saves products, and rounds their sum to the dtype of x once more.
 */
typedef enum spops_pointconv_sums {
    SPOPS_POINTCONV_SUMS_AUTO = 0, /* FIRST, where the plan has IMPLICIT_GEMM */
    SPOPS_POINTCONV_SUMS_NONE = 1, /* each row is multiplied */
    SPOPS_POINTCONV_SUMS_FIRST = 2 /* IMPLICIT_GEMM only */
} spops_pointconv_sums;

/** Choices of spops_pointconv_create. */
typedef struct spops_pointconv_options {
    size_t struct_size;
    int32_t backward; /* 1: also gradients */
    /* As spops_sparseconv_options.dataflow; not GATHER_MATMUL_SCATTER. AUTO holds both dataflows where
       the device has both. IMPLICIT_GEMM by name takes a fraction of the memory. */
    spops_dataflow dataflow;
    /* Of the widest layer whose weights get a gradient; 0: 256. Others may be wider. */
    int64_t max_in_channels;
    int64_t max_out_channels; /* likewise; their product is below 2^31 - 1 */
    spops_pointconv_sums sums;
    int32_t detach; /* 1: the plan has all that it needs, and the neighbours may be destroyed once
                         it is made. IMPLICIT_GEMM only, not for neighbours made by reserve */
    int32_t quantized; /* 1: also forward on an x of i8, as in spops_sparseconv_options;
                         not with detach */
    int32_t tile;      /* of IMPLICIT_GEMM, as spops_conv_choice.tile has it; 0: the measured one */
    spops_plan_memory *memory; /* where the plan lives; NULL: allocated */
    int32_t crop_independent;  /* 1: as in spops_sparseconv_options */
    int32_t reserved;
} spops_pointconv_options;

SPOPS_DEFINE_DEFAULT(spops_pointconv_options)

/**
 * Plan the convolutions of neighbours.
 *
 * neighbors  Made by create, or by reserve: then the plan is refilled by spops_pointconv_update. They
 *            must outlive the plan, unless options->detach. They must have
 *
 *     dataflow                        forward alone    with backward
 *     AUTO, FETCH_ON_DEMAND           BY_TAP           BY_TAP; REVERSE (1) to take IMPLICIT_GEMM too
 *     IMPLICIT_GEMM, SUMS_NONE        nothing          BY_TAP and REVERSE (1)
 *     IMPLICIT_GEMM, else             nothing          REVERSE (1)
 *
 *            (1) no REVERSE where they are mirrored (spops_neighbors_view).
 * options    NULL: defaults. A dataflow that is named serves every call, or the call is refused.
 * conv       The plan; NULL after a failure.
 *
 * Memory    Where ctx runs.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Scratch   Reserved in ctx for the plan's own needs.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (a dataflow or sums that this backend, device or these
 *           neighbours do not have), OUT_OF_MEMORY, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the plan.
 * Source    PointCNN++, section 3; rows summed while they are gathered, and masked implicit GEMM
 *           on what is left, are ours: docs/pointconv.md.
 */
SPOPS_API spops_status spops_pointconv_create(spops_context *ctx, const spops_neighbors *neighbors,
                                              const spops_pointconv_options *options,
                                              spops_pointconv **conv);

/**
 * Refill a plan from its neighbours, after spops_neighbors_update.
 *
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT, CUDA.
 */
static inline spops_status spops_pointconv_update(spops_context *ctx, spops_pointconv *conv)
{
    spops_plan *const plan = (spops_plan *)conv;
    return spops_update(ctx, &plan, 1);
}

/* clang-format off */
/**
 * Run a layer:
 *
 *     sum[i, o] = sum over neighbours (i, j) with tap k, and c, of  x[j, c] * w[k][c, o]
 *     out[i, o] = activation((sum + bias[o]) * scale[o] + shift[o] + residual[i, o])
 *
 * x         [rows of inputs, C_in], f32 f16 bf16, on the CPU f64. Of neighbours made by reserve, as many rows as
 *           their capacity; rows after those in use are not read.
 * w         [num_taps * C_in / groups, C_out], dtype of x, row_stride C_out; num_taps is t^3, not t
 *           (spops_neighbors_view). In group g of the columns, row c of a tap is for input column
 *           g C_in / groups + c.
 * layer     NULL: defaults.
 * out       [rows of outputs, C_out], dtype of x or f32. Every row in use is written; those after
 *           them are left alone. Must not overlap x, w or residual.
 *
 * Memory    Where ctx runs. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   spops_pointconv_scratch_bytes, reserved in ctx beforehand.
 * Numerics  Sums in f32 (f64 in f64), by ascending tap and then by ascending input: same bits on every run and
 *           thread count. With SUMS_FIRST, rows of one tap are added in f32 and rounded to the
 *           dtype of x. bias to activation are computed in f32; FETCH_ON_DEMAND rounds the sum to
 *           out's dtype before them.
 * Errors    INVALID_ARGUMENT (shape, dtype, stride, groups), SCRATCH_TOO_SMALL, NOT_SUPPORTED (a
 *           forced dataflow that does not serve the call), CUDA. After any but CUDA, nothing was
 *           enqueued and out is untouched.
 * Threads   One thread at a time per ctx; conv may be shared.
 */
SPOPS_API spops_status spops_pointconv_execute(spops_context *ctx, const spops_pointconv *conv,
                                               spops_matrix x, spops_matrix w,
                                               const spops_conv_layer *layer,
                                               spops_matrix out);

/**
 * Gradients of the sum over neighbours (not of the epilogue):
 *
 *     grad_x[j, c]    = sum over neighbours (i, j, k) and o of  grad_sum[i, o] * w[k][c, o]
 *     grad_w[k][c, o] = sum over neighbours (i, j, k) of        x[j, c] * grad_sum[i, o]
 *     grad_bias[o]    = sum over rows i in use of           grad_sum[i, o]
 *
 * grad_sum  [rows of outputs, C_out], dtype of x. Rows after those in use are not read.
 * layer     groups and math count; NULL: defaults.
 * grad_x    [rows of inputs, C_in], dtype of x or f32, or NULL.
 * grad_w    [num_taps * C_in / groups, C_out], f32 or the dtype of x (f16 overflows easily), row_stride
 *           C_out, or NULL. Every element is written; taps without neighbours get 0.
 * grad_bias [C_out] f32, with rows of f64 f64, or NULL. Without rows it is 0.
 *
 * The plan must have backward. Where it has no triplets by tap (neighbours without BY_TAP, or
 * detach), rows of x are added first for grad_w too, and rounded. The rest as
 * spops_pointconv_execute.
 */
SPOPS_API spops_status spops_pointconv_execute_backward(spops_context *ctx,
                                                        const spops_pointconv *conv,
                                                        spops_matrix grad_sum, spops_matrix x,
                                                        spops_matrix w,
                                                        const spops_conv_layer *layer,
                                                        const spops_matrix *grad_x,
                                                        const spops_matrix *grad_w,
                                                        void *grad_bias);
/* clang-format on */

/** As spops_sparseconv_get_choice; num_out and num_pairs are those of the neighbours. */
SPOPS_API spops_status spops_pointconv_get_choice(spops_context *ctx, const spops_pointconv *conv,
                                                  spops_conv_pass pass, spops_dtype dtype,
                                                  int64_t in_channels, int64_t out_channels,
                                                  const spops_conv_layer *layer,
                                                  spops_conv_choice *choice);

/** Scratch that every call with this plan fits in, up to its channel counts. */
static inline size_t spops_pointconv_scratch_bytes(const spops_pointconv *conv)
{
    return spops_plan_scratch_bytes((const spops_plan *)conv);
}

/** Free a plan; NULL is fine. Waits for the creating context; nothing else may be running it. */
static inline void spops_pointconv_destroy(spops_pointconv *conv)
{
    spops_plan_destroy((spops_plan *)conv);
}

SPOPS_EXTERN_C_END

#endif
