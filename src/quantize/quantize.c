// SPDX-License-Identifier: Apache-2.0
// Quantising: argument checks, then the backend's slots.
#include "spops/quantize.h"

#include "core/check.h"
#include "core/matrix.h"
#include "quantize/quantize_args.h"

static const spops_matrix absent; // data NULL

static spops_matrix matrix_of_scale(const float *scale)
{
    return spops_matrix_dense((void *)(uintptr_t)scale, 1, 1, SPOPS_DTYPE_F32);
}

static spops_status check_scale(spops_context *ctx, const char *call, const float *scale)
{
    return spops_check_matrix(ctx, call, "scale", matrix_of_scale(scale), 1, 1,
                              1u << SPOPS_DTYPE_F32);
}

// The scales that a matrix q of 4-bit codes, named q_name, has and no other may have.
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
    return spops_check_matrix(ctx, call, "block_scales", *block_scales, q.rows,
                              (q.cols + SPOPS_BLOCK_COLS - 1) / SPOPS_BLOCK_COLS,
                              1u << SPOPS_DTYPE_F8E4M3);
}

spops_status spops_quantize_scale_execute(spops_context *ctx, spops_matrix x, spops_dtype dtype,
                                          float *scale)
{
    static const char call[] = "quantize_scale_execute";
    const spops_quantize_scale_args args = {x, dtype, scale};

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_check_matrix(ctx, call, "x", x, x.rows, x.cols, SPOPS_DTYPES_FLOAT));
    SPOPS_TRY(spops_check_dtype(ctx, call, "dtype", dtype, SPOPS_DTYPES_NARROW));
    SPOPS_TRY(check_scale(ctx, call, scale));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "scale", matrix_of_scale(scale), "x", x));
    SPOPS_REQUIRE_SLOT(ctx, call, quantize_scale);
    return ctx->backend->quantize_scale(ctx, &args);
}

spops_status spops_quantize_execute(spops_context *ctx, spops_matrix x, const float *scale,
                                    spops_matrix out, const spops_matrix *block_scales)
{
    static const char call[] = "quantize_execute";
    const spops_quantize_args args = {x, out, block_scales == NULL ? absent : *block_scales, scale};

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_check_matrix(ctx, call, "x", x, x.rows, x.cols, SPOPS_DTYPES_FLOAT));
    SPOPS_TRY(spops_check_matrix(ctx, call, "out", out, x.rows, x.cols, SPOPS_DTYPES_NARROW));
    SPOPS_TRY(check_blocks(ctx, call, "out", out, block_scales));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "x", x));
    if (block_scales != NULL) {
        SPOPS_TRY(spops_check_no_overlap(ctx, call, "block_scales", *block_scales, "x", x));
        SPOPS_TRY(spops_check_no_overlap(ctx, call, "block_scales", *block_scales, "out", out));
    }
    if (scale != NULL) {
        const spops_matrix m = matrix_of_scale(scale);
        SPOPS_TRY(check_scale(ctx, call, scale));
        SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "scale", m));
        SPOPS_TRY(spops_check_no_overlap(ctx, call, "block_scales", args.block_scales, "scale", m));
    }
    SPOPS_REQUIRE_SLOT(ctx, call, quantize);
    if (x.rows == 0 || x.cols == 0) return SPOPS_STATUS_OK;
    return ctx->backend->quantize(ctx, &args);
}

spops_status spops_dequantize_execute(spops_context *ctx, spops_matrix q, const float *scale,
                                      const spops_matrix *block_scales, spops_matrix out)
{
    static const char call[] = "dequantize_execute";
    const spops_quantize_args args = {out, q, block_scales == NULL ? absent : *block_scales, scale};

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_check_matrix(ctx, call, "q", q, q.rows, q.cols, SPOPS_DTYPES_NARROW));
    SPOPS_TRY(check_blocks(ctx, call, "q", q, block_scales));
    SPOPS_TRY(spops_check_matrix(ctx, call, "out", out, q.rows, q.cols, SPOPS_DTYPES_FLOAT));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "q", q));
    if (block_scales != NULL)
        SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "block_scales", *block_scales));
    if (scale != NULL) {
        SPOPS_TRY(check_scale(ctx, call, scale));
        SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "scale", matrix_of_scale(scale)));
    }
    SPOPS_REQUIRE_SLOT(ctx, call, dequantize);
    if (q.rows == 0 || q.cols == 0) return SPOPS_STATUS_OK;
    return ctx->backend->dequantize(ctx, &args);
}
