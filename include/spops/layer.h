/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a layer does with a sum of products, the same for sparse convolution, point convolution and
 * linear layers: bias, folded batch norm, residual, activation.
 */
#ifndef SPOPS_LAYER_H
#define SPOPS_LAYER_H

#include "spops/mvmr.h"
#include "spops/activation.h"

SPOPS_EXTERN_C_BEGIN

/** The epilogue of a layer: what follows its sum; zero is the default of every field. */
typedef struct spops_conv_layer {
    size_t struct_size;
    int32_t groups; /* 0 or 1: one; C_in = C_out = groups: depthwise. Linear: 0 or 1 */
    /* [C_out] where ctx runs, or NULL; f32, but f64 where w is f64. */
    const void *bias;
    const void *scale; /* gamma / sqrt(var + epsilon) of a folded norm */
    const void *shift;
    /* Shape and dtype of out, apart from it; or NULL. Linear: it may also be out itself, whose rows
       are then added to. */
    const spops_matrix *residual;
    spops_activation activation;
    spops_math math;             /* of f32 features; TF32 allows tensor cores */
    const float *x_scales;       /* of an x of i8: [1] f32 where ctx runs, or */
    int32_t x_scales_by_channel; /* 1: [C_in] */
    int32_t w_transposed;        /* linear only. 1: w is [C_out, C_in] */
    const int32_t *num_rows; /* linear only (the plan of a convolution knows its rows): [1] where
                                    ctx runs, the first rows that count; NULL: all. A number outside
                                    0 to x.rows counts as the nearest of these */
    float activation_slope;  /* of LEAKY_RELU, finite; 0: 0.01 */
    /* 1: a kernel may read w, bias, scale, shift, num_rows and the plan while the layer before it still
       runs; x and residual wait for its end. The caller promises that what writes w to the plan is older
       than an earlier forward layer (spops_sparseconv_execute, spops_pointconv_execute or
       spops_linear_execute, with an out of 1 row or more). Older is what
         was enqueued on this stream before that layer,
         had ended before that layer was enqueued, or
         ran on another stream, for whose end this stream waits before this layer.
       If the promise is broken, out is undefined. Backward: no effect */
    int32_t reads_ahead;
} spops_conv_layer;

SPOPS_DEFINE_DEFAULT(spops_conv_layer)

/**
 * A layer in 8 bits: what its codes count, and what follows its sum. Scales are f32 where ctx runs, read
 * when the stream gets there; NULL: 1.
 */
typedef struct spops_quantized_layer {
    size_t struct_size;
    const float *x_scale;  /* [1] */
    const float *w_scales; /* [C_out], as spops_quantize_weights_execute gives them */
    /* [C_out] f32 where ctx runs, or NULL, as those of spops_conv_layer. */
    const float *bias, *scale, *shift;
    const spops_matrix *residual; /* shape and dtype of out, apart from it; or NULL */
    const float *residual_scale;  /* [1], of a residual of 8 bits */
    const float *out_scale;       /* [1], of an out of 8 bits */
    const int32_t *num_rows;      /* linear only, as that of spops_conv_layer */
    spops_activation activation;
    float activation_slope; /* of LEAKY_RELU, finite; 0: 0.01 */
    int32_t fast_sums;      /* 1: sums of f8e4m3 may stay in matrix units, which carry fewer bits:
                               faster, where a device has such units (docs/quantized.md) */
} spops_quantized_layer;

SPOPS_DEFINE_DEFAULT(spops_quantized_layer)

SPOPS_EXTERN_C_END

#endif
