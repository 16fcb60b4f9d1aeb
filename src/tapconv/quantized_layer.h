// SPDX-License-Identifier: Apache-2.0
// Layers in 8 bits: what convolutions and linear layers do alike.
#ifndef SPOPS_TAPCONV_QUANTIZED_LAYER_H
#define SPOPS_TAPCONV_QUANTIZED_LAYER_H

#include "igemm/igemm8_args.h"
#include "tapconv/tapconv.h"

// Options of a layer, which is called `call`.
spops_status spops_quantized_layer_read(spops_context *ctx, const char *call,
                                        const spops_quantized_layer *given,
                                        spops_quantized_layer *layer);

// Sizes and addresses of a layer's matrices that its row of the list does not check.
spops_status spops_quantized_layer_check(spops_context *ctx, const char *call, int64_t taps,
                                         spops_matrix x, spops_matrix w);

spops_epilogue8 spops_quantized_layer_epilogue(const spops_context *ctx,
                                               const spops_quantized_layer *layer);

spops_status spops_tapconv_execute_quantized(spops_context *ctx, spops_operator_id op,
                                             const spops_tapconv *conv, spops_matrix x,
                                             spops_matrix w, const spops_quantized_layer *layer,
                                             spops_matrix out);

#endif
