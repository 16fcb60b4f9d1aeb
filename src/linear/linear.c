// SPDX-License-Identifier: Apache-2.0
// Linear layers: argument checks, scratch, and which products serve a call.
#include "spops/linear.h"

#include "call/call_check.h"
#include "igemm/igemm_args.h"
#include "linear/linear_args.h"
#include "mvmr/matmul_args.h"
#include "tapconv/layer.h"
#include "tapconv/quantized_layer.h"

// cuBLAS was right in 16 bits and tf32 up to this depth (docs/sparseconv.md).
#define LIBRARY_MAX_DEPTH 8100

// Rows that the gradient's kernel for matrix units can count, with its stages, in int32.
#define MAX_UNIT_ROWS (INT32_MAX - 1024)

// ---- Scratch -----------------------------------------------------------------

// Whether products of matrix units serve on this device.
static bool has_igemm(const spops_context *ctx)
{
    const spops_igemm_scratch_args any = {0};
    return ctx->backend->igemm_exists != NULL && ctx->backend->igemm_exists(ctx, &any);
}

// Of gradients alone.
static size_t gradient_bytes(spops_context *ctx, int64_t rows, int64_t in, int64_t out)
{
    const spops_igemm_scratch_args stored = {
        .num_taps = 1, .max_x_cols = in, .max_out_cols = out, .gradients = true};
    const spops_igemm_scratch_args transposed = {
        .num_taps = 1, .max_x_cols = out, .max_out_cols = in, .gradients = true};
    const size_t sizes[] = {
        spops_row_partials_bytes(rows, in * out), spops_row_partials_bytes(rows, out),
        has_igemm(ctx) ? ctx->backend->igemm_scratch_bytes(ctx, &stored) : 0,
        has_igemm(ctx) ? ctx->backend->igemm_scratch_bytes(ctx, &transposed) : 0};
    size_t most = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
        if (sizes[i] > most) most = sizes[i];
    return most;
}

size_t spops_linear_scratch_bytes(spops_context *ctx, int64_t max_rows, int64_t max_in_channels,
                                  int64_t max_out_channels, int32_t backward)
{
    size_t bytes;

    if (ctx == NULL || max_rows < 0 || max_in_channels < 0 || max_out_channels < 0) return 0;
    if (max_in_channels > SPOPS_MAX_COUNT || max_out_channels > SPOPS_MAX_COUNT) return SIZE_MAX;
    bytes = backward != 0 ? gradient_bytes(ctx, max_rows, max_in_channels, max_out_channels) : 0;
    if (ctx->dense_library && SPOPS_MATMUL_WORKSPACE_BYTES > bytes)
        bytes = SPOPS_MATMUL_WORKSPACE_BYTES;
    return bytes;
}

spops_status spops_linear_reserve(spops_context *ctx, int64_t max_rows, int64_t max_in_channels,
                                  int64_t max_out_channels, int32_t backward)
{
    static const char call[] = "linear_reserve";
    const spops_igemm_prepare_args kernels = {.products = true, .row_gradients = backward != 0};

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_TRY(spops_check_count(ctx, call, "max_rows", max_rows));
    SPOPS_TRY(spops_check_count(ctx, call, "max_in_channels", max_in_channels));
    SPOPS_TRY(spops_check_count(ctx, call, "max_out_channels", max_out_channels));
    SPOPS_REQUIRE(ctx, backward == 0 || backward == 1,
                  "%s: backward is %" PRId32 ", expected 0 or 1", call, backward);
    if (has_igemm(ctx)) SPOPS_TRY(SPOPS_PREPARE(ctx, igemm_prepare, &kernels));
    return spops_context_grow(ctx, spops_linear_scratch_bytes(ctx, max_rows, max_in_channels,
                                                              max_out_channels, backward));
}

static spops_status get_scratch(spops_context *ctx, const char *call, int64_t rows, int64_t in,
                                int64_t out, int32_t backward, void **scratch)
{
    const spops_status status = spops_context_scratch(
        ctx, call, spops_linear_scratch_bytes(ctx, rows, in, out, backward), scratch);
    if (status != SPOPS_STATUS_SCRATCH_TOO_SMALL) return status;
    return spops_fail(
        ctx, status,
        "%s: the context's scratch is %zu bytes, expected more: call spops_linear_reserve"
        "(ctx, %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId32 ")",
        call, ctx->scratch_bytes, rows, in, out, backward);
}

// ---- Checks -------------------------------------------------------------------------------------

static spops_status read_layer(spops_context *ctx, const char *call, const spops_conv_layer *given,
                               spops_conv_layer *layer)
{
    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_layer_read_any(ctx, call, given, layer));
    SPOPS_REQUIRE(ctx, layer->groups == 1, "%s: layer->groups is %" PRId32 ", expected 0 or 1",
                  call, layer->groups);
    SPOPS_REQUIRE(ctx, layer->x_scales == NULL, "%s: layer->x_scales is not NULL", call);
    SPOPS_REQUIRE(ctx, layer->x_scales_by_channel == 0,
                  "%s: layer->x_scales_by_channel is %" PRId32 ", expected 0", call,
                  layer->x_scales_by_channel);
    return SPOPS_STATUS_OK;
}

// Sizes that the rest counts on.
static spops_status check_sizes(spops_context *ctx, const char *call, spops_matrix x,
                                const char *name, spops_matrix sum)
{
    SPOPS_TRY(spops_check_count(ctx, call, "x.rows", x.rows));
    SPOPS_TRY(spops_check_count(ctx, call, "x.cols", x.cols));
    SPOPS_REQUIRE(ctx, x.cols > 0, "%s: x has no columns, expected 1 or more", call);
    SPOPS_REQUIRE(ctx, sum.cols > 0 && sum.cols <= SPOPS_MAX_COUNT,
                  "%s: %s has %" PRId64 " columns, expected 1 to %" PRId64, call, name, sum.cols,
                  SPOPS_MAX_COUNT);
    return SPOPS_STATUS_OK;
}

// ---- Products -----------------------------------------------------------------------------------

// A row alone may have any row_stride: here one that products need not look at.
static spops_matrix with_stride(spops_matrix m)
{
    if (m.rows <= 1) m.row_stride = m.cols;
    return m;
}

static bool is_dense(spops_matrix m)
{
    return m.row_stride == m.cols;
}

static bool by_igemm(const spops_context *ctx, const spops_linear_args *p, spops_igemm_args *args,
                     spops_igemm_schedule *rows)
{
    const spops_epilogue_args *finish = &p->finish;

    if (!has_igemm(ctx) || (p->x.dtype == SPOPS_DTYPE_F32 && p->math != SPOPS_MATH_TF32) ||
        !is_dense(p->w))
        return false;
    *rows = (spops_igemm_schedule){.num_taps = 1,
                                   .max_tiles = (p->x.rows + SPOPS_IGEMM_TILE_ROWS - 1) /
                                                SPOPS_IGEMM_TILE_ROWS};
    *args = (spops_igemm_args){.schedule = rows,
                               .x = p->x,
                               .w = p->w,
                               .out = finish->out,
                               .epilogue = finish->epilogue,
                               .w_transposed = p->w_transposed,
                               .reads_ahead = p->reads_ahead,
                               .num_rows = finish->num_rows,
                               .tickets = ctx->tickets};
    return ctx->backend->igemm_fits(ctx, args);
}

static bool fits_int(int64_t n)
{
    return n <= INT32_MAX;
}

// What a library of products can be asked for: sizes in int, all rows; on the CPU f32.
static bool by_library(const spops_context *ctx, spops_matrix a, spops_matrix b, spops_matrix c,
                       const int32_t *num_rows)
{
    return ctx->dense_library && num_rows == NULL && fits_int(a.row_stride) &&
           fits_int(b.row_stride) && fits_int(c.row_stride) &&
           (ctx->backend->kind == SPOPS_BACKEND_CUDA || a.dtype == SPOPS_DTYPE_F32);
}

// By the library, with what follows the sum in a pass of its own; a residual that is out itself is what
// the product is added to.
static spops_status run_library(spops_context *ctx, const spops_linear_args *p, void *scratch)
{
    spops_epilogue_args finish = p->finish;
    const bool adds =
        finish.epilogue.residual.data != NULL && finish.epilogue.residual.data == finish.out.data;
    const spops_matmul_args args = {
        .library = ctx->matmul,
        .batches = 1,
        .rows = p->x.rows,
        .cols = finish.out.cols,
        .depth = p->x.cols,
        .dtype = p->x.dtype,
        .out_dtype = finish.out.dtype,
        .a = {.data = p->x.data, .row_stride = p->x.row_stride},
        .b = {.data = p->w.data, .row_stride = p->w.row_stride, .transposed = p->w_transposed},
        .c = {.data = finish.out.data, .row_stride = finish.out.row_stride},
        .accumulate = adds,
        .tf32 = p->math == SPOPS_MATH_TF32 && p->x.dtype == SPOPS_DTYPE_F32,
        .workspace = scratch};

    SPOPS_TRY(ctx->backend->matmul(ctx, &args));
    if (adds) finish.epilogue.residual = (spops_matrix){0};
    if (spops_epilogue_is_empty(&finish.epilogue)) return SPOPS_STATUS_OK;
    return ctx->backend->epilogue(ctx, &finish);
}

// out = finish(x w), by whoever is fastest of those that take it.
static spops_status multiply(spops_context *ctx, const spops_linear_args *p, void *scratch)
{
    const spops_matrix out = p->finish.out;
    spops_igemm_schedule rows;
    spops_igemm_args args;
    const bool deep = p->x.cols > LIBRARY_MAX_DEPTH &&
                      (p->x.dtype != SPOPS_DTYPE_F32 || p->math == SPOPS_MATH_TF32);
    const spops_epilogue *e = &p->finish.epilogue;
    const bool scaled_in_place =
        e->residual.data == out.data && e->scale != NULL && e->residual.data != NULL;

    if (out.rows == 0) return SPOPS_STATUS_OK;
    if (by_igemm(ctx, p, &args, &rows)) return ctx->backend->igemm(ctx, &args);
    if (!deep && !scaled_in_place && by_library(ctx, p->x, p->w, out, p->finish.num_rows))
        return run_library(ctx, p, scratch);
    return ctx->backend->linear(ctx, p);
}

spops_status spops_linear_execute(spops_context *ctx, spops_matrix x, spops_matrix w,
                                  const spops_conv_layer *given, spops_matrix out)
{
    static const char call[] = "linear_execute";
    spops_conv_layer layer = {0};
    spops_linear_args p = {0};
    void *scratch = NULL;

    SPOPS_TRY(read_layer(ctx, call, given, &layer));
    SPOPS_TRY(check_sizes(ctx, call, x, "out", out));
    const void *const args[] = {
        &x, &w, layer.bias, layer.scale, layer.shift, layer.residual, layer.num_rows, &out};
    const spops_call_number attributes[] = {{.i = layer.w_transposed},
                                            {.i = layer.activation},
                                            {.i = layer.math},
                                            {.f = layer.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_linear, args, attributes));
    SPOPS_REQUIRE_SLOT(ctx, call, linear);
    if (ctx->dense_library)
        SPOPS_TRY(get_scratch(ctx, call, x.rows, x.cols, out.cols, 0, &scratch));
    p.x = with_stride(x);
    p.w = with_stride(w);
    p.w_transposed = layer.w_transposed == 1;
    p.math = layer.math;
    p.reads_ahead = layer.reads_ahead == 1;
    p.finish.out = with_stride(out);
    p.finish.num_rows = layer.num_rows;
    p.finish.epilogue = spops_layer_epilogue(ctx, &layer, w.dtype);
    p.finish.epilogue.residual = with_stride(p.finish.epilogue.residual);
    return multiply(ctx, &p, scratch);
}

spops_status spops_linear_execute_quantized(spops_context *ctx, spops_matrix x, spops_matrix w,
                                            const spops_quantized_layer *given, spops_matrix out)
{
    static const char call[] = "linear_execute_quantized";
    spops_quantized_layer layer = {0};

    SPOPS_TRY(spops_quantized_layer_read(ctx, call, given, &layer));
    const void *const args[] = {&x,
                                &w,
                                layer.x_scale,
                                layer.w_scales,
                                layer.bias,
                                layer.scale,
                                layer.shift,
                                layer.residual,
                                layer.residual_scale,
                                layer.out_scale,
                                layer.num_rows,
                                &out};
    const spops_call_number attributes[] = {
        {.i = layer.activation}, {.f = layer.activation_slope}, {.i = layer.fast_sums}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_linear_quantized, args, attributes));
    SPOPS_TRY(check_sizes(ctx, call, x, "out", out));
    SPOPS_TRY(spops_quantized_layer_check(ctx, call, 1, x, w));
    SPOPS_REQUIRE_SLOT(ctx, call, igemm8);
    if (ctx->backend->kind == SPOPS_BACKEND_CUDA && !has_igemm(ctx))
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: the device has compute capability %d, expected 80 or more", call,
                          ctx->info.compute_capability);
    if (out.rows == 0) return SPOPS_STATUS_OK;
    const spops_igemm_schedule rows = {
        .num_taps = 1, .max_tiles = (x.rows + SPOPS_IGEMM_TILE_ROWS - 1) / SPOPS_IGEMM_TILE_ROWS};
    spops_igemm8_args product = {.schedule = &rows,
                                 .x = with_stride(x),
                                 .w = w,
                                 .out = with_stride(out),
                                 .epilogue = spops_quantized_layer_epilogue(ctx, &layer),
                                 .fast_sums = layer.fast_sums != 0,
                                 .num_rows = layer.num_rows,
                                 .tickets = ctx->tickets};
    product.epilogue.rest.residual = with_stride(product.epilogue.rest.residual);
    return ctx->backend->igemm8(ctx, &product);
}

// ---- Gradients ----------------------------------------------------------------------------------

// out = x^T g: the gradient of w, or of w as it is stored transposed. Where *g_sums is not NULL, sums of g's rows
// may come with it: then it becomes NULL.
static spops_status sum_outer_products(spops_context *ctx, spops_matrix x, spops_matrix g,
                                       const spops_conv_layer *layer, spops_matrix out,
                                       void **g_sums, void *scratch)
{
    const spops_row_pieces pieces = spops_row_pieces_of(x.rows, out.rows * out.cols);
    const spops_igemm_wgrad_args units = {.num_taps = 1,
                                          .max_pairs = x.rows,
                                          .num_rows = layer->num_rows,
                                          .x = x,
                                          .g = g,
                                          .dw = out,
                                          .g_sums = (float *)*g_sums,
                                          .scratch = scratch};
    const spops_matmul_args product = {.library = ctx->matmul,
                                       .batches = 1,
                                       .rows = out.rows,
                                       .cols = out.cols,
                                       .depth = x.rows,
                                       .dtype = x.dtype,
                                       .out_dtype = out.dtype,
                                       .a = {x.data, x.row_stride, 0, true},
                                       .b = {g.data, g.row_stride, 0, false},
                                       .c = {out.data, out.row_stride, 0, false},
                                       .workspace = scratch};
    const spops_linear_grad_args own = {x,           g,           out,        layer->num_rows,
                                        layer->math, pieces.rows, pieces.num, scratch};

    if (x.rows > 0 && x.rows < MAX_UNIT_ROWS && has_igemm(ctx) && is_dense(out) &&
        ctx->backend->igemm_wgrad_fits(ctx, &units)) {
        *g_sums = NULL;
        return ctx->backend->igemm_wgrad(ctx, &units);
    }
    if (x.rows > 0 && x.dtype == SPOPS_DTYPE_F32 && layer->math == SPOPS_MATH_EXACT &&
        by_library(ctx, x, g, out, layer->num_rows))
        return ctx->backend->matmul(ctx, &product);
    return ctx->backend->linear_grad(ctx, &own);
}

spops_status spops_linear_execute_backward(spops_context *ctx, spops_matrix grad_sum,
                                           spops_matrix x, spops_matrix w,
                                           const spops_conv_layer *given,
                                           const spops_matrix *grad_x, const spops_matrix *grad_w,
                                           void *grad_bias)
{
    static const char call[] = "linear_execute_backward";
    spops_conv_layer layer = {0};
    void *scratch;

    SPOPS_TRY(read_layer(ctx, call, given, &layer));
    SPOPS_TRY(check_sizes(ctx, call, x, "grad_sum", grad_sum));
    const void *const args[] = {&x, &w, &grad_sum, layer.num_rows, grad_x, grad_w, grad_bias};
    const spops_call_number attributes[] = {{.i = layer.w_transposed}, {.i = layer.math}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_linear_backward, args, attributes));
    SPOPS_REQUIRE_SLOT(ctx, call, linear);
    SPOPS_REQUIRE_SLOT(ctx, call, linear_grad);
    SPOPS_TRY(get_scratch(ctx, call, x.rows, x.cols, grad_sum.cols, 1, &scratch));
    grad_sum = with_stride(grad_sum);
    x = with_stride(x);
    if (grad_x != NULL) {
        const spops_linear_args p = {
            .x = grad_sum,
            .w = with_stride(w),
            .w_transposed = layer.w_transposed == 0,
            .math = layer.math,
            .finish = {.out = with_stride(*grad_x), .num_rows = layer.num_rows}};
        SPOPS_TRY(multiply(ctx, &p, scratch));
    }
    if (grad_w != NULL) {
        const bool turned = layer.w_transposed == 1;
        void *none = NULL;
        SPOPS_TRY(sum_outer_products(ctx, turned ? grad_sum : x, turned ? x : grad_sum, &layer,
                                     with_stride(*grad_w), turned ? &none : &grad_bias, scratch));
    }
    if (grad_bias != NULL) {
        const spops_row_pieces pieces = spops_row_pieces_of(x.rows, grad_sum.cols);
        const spops_linear_grad_args sums = {
            .g = grad_sum,
            .out = spops_matrix_dense(grad_bias, 1, grad_sum.cols, spops_sum_dtype(x.dtype)),
            .num_rows = layer.num_rows,
            .piece_rows = pieces.rows,
            .num_pieces = pieces.num,
            .partials = scratch};
        SPOPS_TRY(ctx->backend->linear_grad(ctx, &sums));
    }
    return SPOPS_STATUS_OK;
}
