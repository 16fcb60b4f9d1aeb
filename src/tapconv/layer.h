// SPDX-License-Identifier: Apache-2.0
// A layer of a convolution by taps, sparse or of points: its numbers, its shape, and its epilogue.
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

// The kind is one, and the slope a number.
spops_status spops_layer_check_activation(spops_context *ctx, const char *call,
                                          spops_activation activation, float slope);

// Options of a layer; groups 0 become 1. spops_layer_read is for convolutions: it refuses what linear
// layers alone have.
spops_status spops_layer_read_any(spops_context *ctx, const char *call,
                                  const spops_conv_layer *given, spops_conv_layer *layer);
spops_status spops_layer_read(spops_context *ctx, const char *call, const spops_conv_layer *given,
                              spops_conv_layer *layer);

// The shape of a layer between rows of x and of its sum, which is called sum_name, checked.
spops_status spops_layer_shape_of(spops_context *ctx, const char *call, int32_t groups,
                                  int64_t in_channels, const char *sum_name, int64_t out_channels,
                                  spops_layer_shape *shape);

bool spops_layer_is_depthwise(const spops_layer_shape *shape);
spops_mvmr_options spops_layer_mvmr_options(const spops_layer_shape *shape, spops_math math);

// dtype: of w.
spops_epilogue spops_layer_epilogue(const spops_context *ctx, const spops_conv_layer *layer,
                                    spops_dtype dtype);

// The epilogue of out in a pass of its own, if there is one.
spops_status spops_layer_finish(spops_context *ctx, const spops_conv_layer *layer,
                                spops_dtype dtype, const int32_t *num_rows, spops_matrix out);

#endif
