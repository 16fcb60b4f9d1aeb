// SPDX-License-Identifier: Apache-2.0
#include "tapconv/layer.h"

#include "core/backend.h"
#include "core/matrix.h"

spops_status spops_layer_read_any(spops_context *ctx, const char *call,
                                  const spops_conv_layer *given, spops_conv_layer *layer)
{
    SPOPS_TRY(spops_read_options(ctx, call, given, layer, sizeof *layer));
    SPOPS_REQUIRE(ctx, layer->groups >= 0, "%s: layer->groups is %d, expected 0 or more", call,
                  (int)layer->groups);
    SPOPS_REQUIRE(ctx,
                  layer->activation == SPOPS_ACTIVATION_NONE ||
                      layer->activation == SPOPS_ACTIVATION_RELU,
                  "%s: layer->activation is %d, expected 0 or 1", call, (int)layer->activation);
    SPOPS_REQUIRE(ctx, layer->math == SPOPS_MATH_EXACT || layer->math == SPOPS_MATH_TF32,
                  "%s: layer->math is %d, expected 0 or 1", call, (int)layer->math);
    SPOPS_TRY(
        spops_check_flag(ctx, call, "layer->x_scales_by_channel", layer->x_scales_by_channel));
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

// x and sum, which is named, and w between them.
static spops_status check_shapes(spops_context *ctx, const char *call,
                                 const spops_layer_limits *limits, int32_t groups, spops_matrix x,
                                 const char *sum_name, spops_matrix sum, unsigned sum_dtypes,
                                 spops_matrix w, spops_layer_shape *shape)
{
    const int64_t taps = limits->num_taps;

    SPOPS_TRY(spops_check_matrix(ctx, call, "x", x, limits->in_rows, x.cols, SPOPS_DTYPES_FLOAT));
    SPOPS_REQUIRE(ctx, x.cols > 0, "%s: x has no columns, expected 1 or more", call);
    SPOPS_TRY(spops_check_matrix(ctx, call, sum_name, sum, limits->out_rows, sum.cols, sum_dtypes));
    SPOPS_REQUIRE(ctx, sum.cols > 0, "%s: %s has no columns, expected 1 or more", call, sum_name);
    SPOPS_REQUIRE(ctx, x.cols % groups == 0 && sum.cols % groups == 0,
                  "%s: x has %" PRId64 " columns and %s %" PRId64
                  ", expected multiples of layer->groups = %d",
                  call, x.cols, sum_name, sum.cols, (int)groups);
    SPOPS_REQUIRE(ctx, x.cols / groups <= INT64_MAX / taps, "%s: x has too many columns", call);
    SPOPS_TRY(
        spops_check_matrix(ctx, call, "w", w, taps * (x.cols / groups), sum.cols, 1u << x.dtype));
    SPOPS_REQUIRE(ctx, w.rows <= 1 || w.row_stride == w.cols,
                  "%s: w.row_stride is %" PRId64 ", expected its %" PRId64 " columns", call,
                  w.row_stride, w.cols);
    shape->in_channels = x.cols;
    shape->out_channels = sum.cols;
    shape->groups = groups;
    return SPOPS_STATUS_OK;
}

// A vector of a layer, which out must not touch.
static spops_status check_vector(spops_context *ctx, const char *call, const char *name,
                                 const float *v, spops_matrix out)
{
    const spops_matrix m = spops_matrix_dense((void *)(uintptr_t)v, 1, out.cols, SPOPS_DTYPE_F32);
    if (v == NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_check_matrix(ctx, call, name, m, 1, out.cols, 1u << SPOPS_DTYPE_F32));
    return spops_check_no_overlap(ctx, call, "out", out, name, m);
}

spops_status spops_layer_check(spops_context *ctx, const char *call,
                               const spops_layer_limits *limits, const spops_conv_layer *layer,
                               spops_matrix x, spops_matrix w, spops_matrix out,
                               spops_layer_shape *shape)
{
    SPOPS_TRY(spops_check_dtype(ctx, call, "x.dtype", x.dtype, SPOPS_DTYPES_FLOAT));
    SPOPS_TRY(check_shapes(ctx, call, limits, layer->groups, x, "out", out,
                           1u << x.dtype | 1u << SPOPS_DTYPE_F32, w, shape));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "x", x));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "w", w));
    SPOPS_TRY(check_vector(ctx, call, "layer->bias", layer->bias, out));
    SPOPS_TRY(check_vector(ctx, call, "layer->scale", layer->scale, out));
    SPOPS_TRY(check_vector(ctx, call, "layer->shift", layer->shift, out));
    if (layer->residual != NULL) {
        SPOPS_TRY(spops_check_matrix(ctx, call, "layer->residual", *layer->residual, out.rows,
                                     out.cols, 1u << out.dtype));
        SPOPS_TRY(
            spops_check_no_overlap(ctx, call, "out", out, "layer->residual", *layer->residual));
    }
    SPOPS_REQUIRE_SLOT(ctx, call, epilogue);
    return SPOPS_STATUS_OK;
}

// A gradient that is wanted: of the shape of `of`, in its dtype or f32, apart from all inputs.
static spops_status check_gradient(spops_context *ctx, const char *call, const char *name,
                                   const spops_matrix *grad, spops_matrix of, spops_matrix grad_sum,
                                   spops_matrix x, spops_matrix w)
{
    if (grad == NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_check_matrix(ctx, call, name, *grad, of.rows, of.cols,
                                 1u << of.dtype | 1u << SPOPS_DTYPE_F32));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, name, *grad, "grad_sum", grad_sum));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, name, *grad, "x", x));
    return spops_check_no_overlap(ctx, call, name, *grad, "w", w);
}

spops_status spops_layer_check_backward(spops_context *ctx, const char *call,
                                        const spops_layer_limits *limits, int32_t groups,
                                        spops_matrix grad_sum, spops_matrix x, spops_matrix w,
                                        const spops_matrix *grad_x, const spops_matrix *grad_w,
                                        spops_layer_shape *shape)
{
    SPOPS_TRY(spops_check_dtype(ctx, call, "x.dtype", x.dtype, SPOPS_DTYPES_FLOAT));
    SPOPS_TRY(
        check_shapes(ctx, call, limits, groups, x, "grad_sum", grad_sum, 1u << x.dtype, w, shape));
    SPOPS_TRY(check_gradient(ctx, call, "grad_x", grad_x, x, grad_sum, x, w));
    SPOPS_TRY(check_gradient(ctx, call, "grad_w", grad_w, w, grad_sum, x, w));
    if (grad_x != NULL && grad_w != NULL)
        SPOPS_TRY(spops_check_no_overlap(ctx, call, "grad_w", *grad_w, "grad_x", *grad_x));
    if (grad_w == NULL) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(ctx, grad_w->rows <= 1 || grad_w->row_stride == grad_w->cols,
                  "%s: grad_w.row_stride is %" PRId64 ", expected its %" PRId64 " columns", call,
                  grad_w->row_stride, grad_w->cols);
    SPOPS_REQUIRE(ctx,
                  shape->in_channels / shape->groups <= limits->max_in_channels &&
                      shape->out_channels <= limits->max_out_channels,
                  "%s: w is %" PRId64 " x %" PRId64 " a tap, more than the %" PRId64 " x %" PRId64
                  " that conv was made for",
                  call, shape->in_channels / shape->groups, shape->out_channels,
                  limits->max_in_channels, limits->max_out_channels);
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

spops_epilogue spops_layer_epilogue(const spops_conv_layer *layer)
{
    spops_epilogue epilogue = {.bias = layer->bias,
                               .scale = layer->scale,
                               .shift = layer->shift,
                               .activation = layer->activation};
    if (layer->residual != NULL) epilogue.residual = *layer->residual;
    return epilogue;
}

spops_status spops_layer_finish(spops_context *ctx, const spops_conv_layer *layer,
                                const int32_t *num_rows, spops_matrix out)
{
    const spops_epilogue_args args = {out, num_rows, spops_layer_epilogue(layer)};
    if (spops_epilogue_is_empty(&args.epilogue)) return SPOPS_STATUS_OK;
    return ctx->backend->epilogue(ctx, &args);
}
