// SPDX-License-Identifier: Apache-2.0
#include "tapconv/layer.h"

#include <math.h>

#include "core/backend.h"

spops_status spops_layer_check_activation(spops_context *ctx, const char *call,
                                          spops_activation activation, float slope)
{
    SPOPS_REQUIRE(ctx,
                  activation >= SPOPS_ACTIVATION_NONE && activation <= SPOPS_ACTIVATION_SIGMOID,
                  "%s: layer->activation is %d, expected 0 to %d", call, (int)activation,
                  (int)SPOPS_ACTIVATION_SIGMOID);
    SPOPS_REQUIRE(ctx, isfinite(slope),
                  "%s: layer->activation_slope is %g, expected a finite number", call,
                  (double)slope);
    return SPOPS_STATUS_OK;
}

spops_status spops_layer_read_any(spops_context *ctx, const char *call,
                                  const spops_conv_layer *given, spops_conv_layer *layer)
{
    SPOPS_TRY(spops_read_options(ctx, call, given, layer, sizeof *layer));
    SPOPS_REQUIRE(ctx, layer->groups >= 0, "%s: layer->groups is %d, expected 0 or more", call,
                  (int)layer->groups);
    SPOPS_TRY(spops_layer_check_activation(ctx, call, layer->activation, layer->activation_slope));
    SPOPS_REQUIRE(ctx, layer->math == SPOPS_MATH_EXACT || layer->math == SPOPS_MATH_TF32,
                  "%s: layer->math is %d, expected 0 or 1", call, (int)layer->math);
    SPOPS_TRY(
        spops_check_flag(ctx, call, "layer->x_scales_by_channel", layer->x_scales_by_channel));
    SPOPS_TRY(spops_check_flag(ctx, call, "layer->reads_ahead", layer->reads_ahead));
    if (layer->groups == 0) layer->groups = 1;
    return SPOPS_STATUS_OK;
}

spops_status spops_layer_read(spops_context *ctx, const char *call, const spops_conv_layer *given,
                              spops_conv_layer *layer)
{
    SPOPS_TRY(spops_layer_read_any(ctx, call, given, layer));
    SPOPS_REQUIRE(ctx, layer->w_transposed == 0,
                  "%s: layer->w_transposed is %d, expected 0 (linear layers alone have it)", call,
                  (int)layer->w_transposed);
    SPOPS_REQUIRE(ctx, layer->num_rows == NULL,
                  "%s: layer->num_rows is not NULL, expected NULL (conv knows its rows)", call);
    return SPOPS_STATUS_OK;
}

spops_status spops_layer_shape_of(spops_context *ctx, const char *call, int32_t groups,
                                  int64_t in_channels, const char *sum_name, int64_t out_channels,
                                  spops_layer_shape *shape)
{
    SPOPS_REQUIRE(ctx, in_channels > 0, "%s: x has no columns, expected 1 or more", call);
    SPOPS_REQUIRE(ctx, out_channels > 0, "%s: %s has no columns, expected 1 or more", call,
                  sum_name);
    SPOPS_REQUIRE(ctx, in_channels % groups == 0 && out_channels % groups == 0,
                  "%s: x has %" PRId64 " columns and %s %" PRId64
                  ", expected multiples of layer->groups = %d",
                  call, in_channels, sum_name, out_channels, (int)groups);
    *shape = (spops_layer_shape){in_channels, out_channels, groups};
    return SPOPS_STATUS_OK;
}

bool spops_layer_is_depthwise(const spops_layer_shape *shape)
{
    return shape->groups > 1 && shape->groups == shape->in_channels &&
           shape->groups == shape->out_channels;
}

spops_mvmr_options spops_layer_mvmr_options(const spops_layer_shape *shape, spops_math math)
{
    spops_mvmr_options options = spops_mvmr_options_default();
    if (spops_layer_is_depthwise(shape))
        options.diagonal = 1;
    else
        options.groups = shape->groups;
    options.math = math;
    return options;
}

spops_epilogue spops_layer_epilogue(const spops_context *ctx, const spops_conv_layer *layer,
                                    spops_dtype dtype)
{
    spops_epilogue epilogue = {.bias = layer->bias,
                               .scale = layer->scale,
                               .shift = layer->shift,
                               .activated =
                                   spops_activated_of(layer->activation, layer->activation_slope),
                               .activations = spops_activation_table_of(ctx),
                               .is_f64 = dtype == SPOPS_DTYPE_F64};
    if (layer->residual != NULL) epilogue.residual = *layer->residual;
    return epilogue;
}

spops_status spops_layer_finish(spops_context *ctx, const spops_conv_layer *layer,
                                spops_dtype dtype, const int32_t *num_rows, spops_matrix out)
{
    const spops_epilogue_args args = {out, num_rows, spops_layer_epilogue(ctx, layer, dtype)};
    if (spops_epilogue_is_empty(&args.epilogue)) return SPOPS_STATUS_OK;
    return ctx->backend->epilogue(ctx, &args);
}
