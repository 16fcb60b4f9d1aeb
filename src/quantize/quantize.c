// SPDX-License-Identifier: Apache-2.0
// Quantising: argument checks, then the backend's slots.
#include "spops/quantize.h"

#include "call/call_check.h"
#include "quantize/quantize_args.h"

static const spops_matrix absent; // data NULL

// A matrix q of 4-bit codes, named q_name, has scales of blocks, and no other has.
static spops_status check_blocks(spops_context *ctx, const char *call, const char *q_name,
                                 spops_matrix q, const spops_matrix *block_scales)
{
    if (!spops_dtype_is_packed(q.dtype)) {
        SPOPS_REQUIRE(ctx, block_scales == NULL,
                      "%s: block_scales is given, and %s.dtype is %s: only f4e2m1 has them", call,
                      q_name, spops_dtype_name(q.dtype));
        return SPOPS_STATUS_OK;
    }
    SPOPS_REQUIRE(ctx, block_scales != NULL,
                  "%s: block_scales is NULL, and %s.dtype is f4e2m1, which needs them", call,
                  q_name);
    return SPOPS_STATUS_OK;
}

spops_status spops_quantize_scale_execute(spops_context *ctx, spops_matrix x, spops_dtype dtype,
                                          float *scale)
{
    static const char call[] = "quantize_scale_execute";
    const spops_quantize_scale_args args = {x, dtype, scale};
    const void *const given[] = {&x, scale};
    const spops_call_number attributes[] = {{.i = dtype}};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_quantize_scale, given, attributes));
    SPOPS_REQUIRE_SLOT(ctx, call, quantize_scale);
    return ctx->backend->quantize_scale(ctx, &args);
}

spops_status spops_quantize_weights_execute(spops_context *ctx, spops_matrix w, int32_t taps,
                                            int32_t w_transposed, spops_matrix q, float *scales)
{
    static const char call[] = "quantize_weights_execute";
    const void *const given[] = {&w, &q, scales};
    const spops_call_number attributes[] = {{.i = taps}, {.i = w_transposed}};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_quantize_weights, given, attributes));
    SPOPS_REQUIRE_SLOT(ctx, call, quantize_weights);
    SPOPS_REQUIRE(ctx, w.rows % taps == 0,
                  "%s: w has %" PRId64 " rows, expected a multiple of taps = %" PRId32, call,
                  w.rows, taps);
    const int64_t each = w.rows / taps;
    const spops_quantize_weights_args args = {.w = w,
                                              .q = q,
                                              .scales = scales,
                                              .taps = taps,
                                              .depth = w_transposed ? w.cols : each,
                                              .cols = w_transposed ? each : w.cols,
                                              .transposed = w_transposed != 0};
    if (args.cols == 0) return SPOPS_STATUS_OK;
    return ctx->backend->quantize_weights(ctx, &args);
}

spops_status spops_quantize_execute(spops_context *ctx, spops_matrix x, const float *scale,
                                    spops_matrix out, const spops_matrix *block_scales)
{
    static const char call[] = "quantize_execute";
    const spops_quantize_args args = {x, out, block_scales == NULL ? absent : *block_scales, scale};
    const void *const given[] = {&x, scale, &out, block_scales};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_quantize, given, NULL));
    SPOPS_TRY(check_blocks(ctx, call, "out", out, block_scales));
    SPOPS_REQUIRE_SLOT(ctx, call, quantize);
    if (x.rows == 0 || x.cols == 0) return SPOPS_STATUS_OK;
    return ctx->backend->quantize(ctx, &args);
}

spops_status spops_dequantize_execute(spops_context *ctx, spops_matrix q, const float *scale,
                                      const spops_matrix *block_scales, spops_matrix out)
{
    static const char call[] = "dequantize_execute";
    const spops_quantize_args args = {out, q, block_scales == NULL ? absent : *block_scales, scale};
    const void *const given[] = {&q, scale, block_scales, &out};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_dequantize, given, NULL));
    SPOPS_TRY(check_blocks(ctx, call, "q", q, block_scales));
    SPOPS_REQUIRE_SLOT(ctx, call, dequantize);
    if (q.rows == 0 || q.cols == 0) return SPOPS_STATUS_OK;
    return ctx->backend->dequantize(ctx, &args);
}
