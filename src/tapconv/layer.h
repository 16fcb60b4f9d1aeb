// SPDX-License-Identifier: Apache-2.0
// A layer of a convolution by taps, sparse or of points: its numbers, the checks of its matrices, and
// its epilogue.
#ifndef SPOPS_TAPCONV_LAYER_H
#define SPOPS_TAPCONV_LAYER_H

#include "core/check.h"
#include "igemm/epilogue_args.h"
#include "spops/sparseconv.h"

// A layer's numbers, checked.
typedef struct spops_layer_shape {
    int64_t in_channels, out_channels;
    int32_t groups;
} spops_layer_shape;

// What a plan says of its layers.
typedef struct spops_layer_limits {
    int64_t num_taps, in_rows, out_rows;
    int64_t max_in_channels, max_out_channels; // of gradients of weights
} spops_layer_limits;

// Options of a layer; groups 0 become 1. spops_layer_read is for convolutions: it refuses what linear
// layers alone have.
spops_status spops_layer_read_any(spops_context *ctx, const char *call,
                                  const spops_conv_layer *given, spops_conv_layer *layer);
spops_status spops_layer_read(spops_context *ctx, const char *call, const spops_conv_layer *given,
                              spops_conv_layer *layer);

// x [in_rows, C_in], w, and out [out_rows, C_out], with the vectors and the residual of a layer that
// was read.
spops_status spops_layer_check(spops_context *ctx, const char *call,
                               const spops_layer_limits *limits, const spops_conv_layer *layer,
                               spops_matrix x, spops_matrix w, spops_matrix out,
                               spops_layer_shape *shape);

// The same for gradients; those that are NULL are not wanted.
spops_status spops_layer_check_backward(spops_context *ctx, const char *call,
                                        const spops_layer_limits *limits, int32_t groups,
                                        spops_matrix grad_sum, spops_matrix x, spops_matrix w,
                                        const spops_matrix *grad_x, const spops_matrix *grad_w,
                                        spops_layer_shape *shape);

bool spops_layer_is_depthwise(const spops_layer_shape *shape);
spops_mvmr_options spops_layer_mvmr_options(const spops_layer_shape *shape, spops_math math);

spops_epilogue spops_layer_epilogue(const spops_conv_layer *layer);

// The epilogue of out in a pass of its own, if there is one.
spops_status spops_layer_finish(spops_context *ctx, const spops_conv_layer *layer,
                                const int32_t *num_rows, spops_matrix out);

#endif
