// SPDX-License-Identifier: Apache-2.0
#include "tapconv/quantized_layer.h"

#include "call/call_check.h"
#include "tapconv/layer.h"

#define MAX_IN_CHANNELS ((int64_t)1 << 30)

spops_status spops_quantized_layer_read(spops_context *ctx, const char *call,
                                        const spops_quantized_layer *given,
                                        spops_quantized_layer *layer)
{
    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, given, layer, sizeof *layer));
    SPOPS_TRY(spops_layer_check_activation(ctx, call, layer->activation, layer->activation_slope));
    return spops_check_flag(ctx, call, "layer->fast_sums", layer->fast_sums);
}

spops_status spops_quantized_layer_check(spops_context *ctx, const char *call, int64_t taps,
                                         spops_matrix x, spops_matrix w)
{
    SPOPS_REQUIRE(ctx, x.cols > 0 && x.cols <= MAX_IN_CHANNELS,
                  "%s: x has %" PRId64 " columns, expected 1 to %" PRId64, call, x.cols,
                  MAX_IN_CHANNELS);
    SPOPS_REQUIRE(ctx, x.dtype != SPOPS_DTYPE_I8 || taps * x.cols <= SPOPS_IGEMM8_MAX_PRODUCTS,
                  "%s: x has %" PRId64 " columns and w %" PRId64 " taps, expected at most %" PRId64
                  " products of i8",
                  call, x.cols, taps, SPOPS_IGEMM8_MAX_PRODUCTS);
    SPOPS_REQUIRE(ctx, (uintptr_t)w.data % 16 == 0, "%s: w.data is not aligned to 16 bytes", call);
    return SPOPS_STATUS_OK;
}

spops_epilogue8 spops_quantized_layer_epilogue(const spops_context *ctx,
                                               const spops_quantized_layer *layer)
{
    const spops_conv_layer rest = {.bias = layer->bias,
                                   .scale = layer->scale,
                                   .shift = layer->shift,
                                   .residual = layer->residual,
                                   .activation = layer->activation,
                                   .activation_slope = layer->activation_slope};
    return (spops_epilogue8){.x_scale = layer->x_scale,
                             .w_scales = layer->w_scales,
                             .residual_scale = layer->residual_scale,
                             .out_scale = layer->out_scale,
                             .rest = spops_layer_epilogue(ctx, &rest, SPOPS_DTYPE_F32)};
}

// Its dataflow serves rows of 8 bits: the one that stays where the output lies.
static spops_status check_dataflow(spops_context *ctx, const char *call, const spops_tapconv *conv)
{
    const bool on_cpu = ctx->backend->kind == SPOPS_BACKEND_CPU;
    if (on_cpu ? conv->triplets != NULL : conv->has_igemm) return SPOPS_STATUS_OK;
    return spops_fail(
        ctx, SPOPS_STATUS_NOT_SUPPORTED,
        "%s: conv was made for %s, or from a map or for a device that lacks %s, which "
        "alone serves rows of 8 bits",
        call, spops_dataflow_name(conv->dataflow),
        spops_dataflow_name(on_cpu ? SPOPS_DATAFLOW_FETCH_ON_DEMAND
                                   : SPOPS_DATAFLOW_IMPLICIT_GEMM));
}

spops_status spops_tapconv_execute_quantized(spops_context *ctx, spops_operator_id op,
                                             const spops_tapconv *conv, spops_matrix x,
                                             spops_matrix w, const spops_quantized_layer *given,
                                             spops_matrix out)
{
    const char *call = spops_row_of(op)->call;
    spops_quantized_layer layer = {0};
    void *scratch;

    SPOPS_TRY(spops_quantized_layer_read(ctx, call, given, &layer));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    const void *const args[] = {
        &x,          &w,          layer.x_scale,  layer.w_scales,       layer.bias,
        layer.scale, layer.shift, layer.residual, layer.residual_scale, layer.out_scale,
        conv,        &out};
    const spops_call_number attributes[] = {
        {.i = layer.activation}, {.f = layer.activation_slope}, {.i = layer.fast_sums}};
    SPOPS_TRY(spops_check_call(ctx, op, args, attributes));
    SPOPS_REQUIRE_SLOT(ctx, call, igemm8);
    SPOPS_REQUIRE(ctx, layer.num_rows == NULL,
                  "%s: layer->num_rows is not NULL, expected NULL (conv knows its rows)", call);
    SPOPS_TRY(spops_quantized_layer_check(ctx, call, conv->relation.num_keys, x, w));
    SPOPS_REQUIRE(ctx, out.cols > 0 && out.cols <= conv->max_out_channels,
                  "%s: out has %" PRId64 " columns, expected 1 to the %" PRId64
                  " that conv was made for",
                  call, out.cols, conv->max_out_channels);
    SPOPS_TRY(check_dataflow(ctx, call, conv));
    SPOPS_TRY(spops_context_scratch(ctx, call, spops_tapconv_scratch_bytes(&conv->base), &scratch));
    if (out.rows == 0) return SPOPS_STATUS_OK;
    const spops_igemm8_args product = {
        .schedule = &conv->schedules[SPOPS_SIDE_TARGET],
        .tiles = conv->triplets != NULL ? &conv->triplets->sides[SPOPS_SIDE_TARGET] : NULL,
        .x = x,
        .w = w,
        .out = out,
        .epilogue = spops_quantized_layer_epilogue(ctx, &layer),
        .whole_sums = conv->crop_independent,
        .fast_sums = layer.fast_sums != 0,
        .tile = conv->tile,
        .num_rows = conv->relation.sides[SPOPS_SIDE_TARGET].num_rows,
        .tickets = ctx->tickets,
        .scratch = scratch};
    return ctx->backend->igemm8(ctx, &product);
}
