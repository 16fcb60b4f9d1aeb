// SPDX-License-Identifier: Apache-2.0
// BEV pooling: argument checks, then the segmented sum over the plan's relation, forward and
// backward. Channels-first outputs go through scratch rows and the backend's transpose.
#include <string.h>

#include "bevpool/bev_plan.h"
#include "core/matrix.h"
#include "gather/gather_args.h"
#include "segreduce/segreduce.h"

static const spops_matrix absent; // data NULL

#define DTYPE(name) (1u << SPOPS_DTYPE_##name)

// The dtypes that depth may have, by that of feat: f32 beside other floats, f16 beside codes, or
// the same; 8 bits beside 4, those of the block scales. out may be f32 besides.
static unsigned depth_dtypes(spops_dtype feat)
{
    if (spops_dtype_is_packed(feat)) return DTYPE(F16) | DTYPE(F8E4M3);
    return (spops_dtype_is_narrow(feat) ? DTYPE(F16) : DTYPE(F32)) | 1u << feat;
}

static unsigned out_dtypes(spops_dtype feat)
{
    return depth_dtypes(feat) | DTYPE(F32);
}

static spops_status check_plan(spops_context *ctx, const char *call, const spops_bev_plan *plan,
                               spops_bev_layout layout)
{
    SPOPS_TRY(spops_bev_check_plan(ctx, call, plan));
    SPOPS_REQUIRE(ctx, layout == SPOPS_BEV_CHANNELS_LAST || layout == SPOPS_BEV_CHANNELS_FIRST,
                  "%s: layout is %d, expected %d or %d", call, (int)layout,
                  (int)SPOPS_BEV_CHANNELS_LAST, (int)SPOPS_BEV_CHANNELS_FIRST);
    if (layout == SPOPS_BEV_CHANNELS_LAST) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE_SLOT(ctx, call, transpose);
    return SPOPS_STATUS_OK;
}

// depth and feat of the gradients, which have fewer dtypes.
static spops_status check_inputs(spops_context *ctx, const char *call, const spops_bev_plan *plan,
                                 spops_matrix depth, spops_matrix feat)
{
    SPOPS_TRY(spops_check_matrix(ctx, call, "feat", feat, plan->counts.num_features, feat.cols,
                                 SPOPS_DTYPES_FLOAT));
    return spops_check_weights(ctx, call, "depth", depth, plan->counts.num_points, feat.dtype);
}

// m, named `name`, has one column vector of feat's width per cell, laid out as said.
static spops_status check_cells(spops_context *ctx, const char *call, const char *name,
                                const spops_bev_plan *plan, spops_bev_layout layout, spops_matrix m,
                                spops_matrix feat, unsigned dtypes)
{
    const int64_t batches = plan->shape.num_batches, cells = plan->counts.num_cells;
    if (layout == SPOPS_BEV_CHANNELS_LAST)
        return spops_check_matrix(ctx, call, name, m, cells, feat.cols, dtypes);
    SPOPS_REQUIRE(ctx, feat.cols <= plan->segments->max_cols,
                  "%s: feat has %" PRId64 " columns, the plan was built for max_cols = %" PRId64,
                  call, feat.cols, plan->segments->max_cols);
    return spops_check_matrix(ctx, call, name, m, batches * feat.cols, cells / batches, dtypes);
}

static spops_status get_scratch(spops_context *ctx, const char *call, const spops_bev_plan *plan,
                                spops_bev_scratch *scratch)
{
    spops_carver carver = {NULL, 0};
    void *base = NULL;
    if (plan->base.scratch_bytes > 0)
        SPOPS_TRY(spops_context_scratch(ctx, call, plan->base.scratch_bytes, &base));
    carver.base = base;
    *scratch = spops_bev_carve_scratch(plan, &carver);
    return SPOPS_STATUS_OK;
}

// A scale is one aligned f32, apart from out; or absent.
static spops_status check_scale(spops_context *ctx, const char *call, const char *name,
                                const float *scale, spops_matrix out)
{
    const spops_matrix m = spops_matrix_dense((void *)(uintptr_t)scale, 1, 1, SPOPS_DTYPE_F32);
    if (scale == NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_check_matrix(ctx, call, name, m, 1, 1, DTYPE(F32)));
    return spops_check_no_overlap(ctx, call, "out", out, name, m);
}

static spops_status check_feat_scales(spops_context *ctx, const char *call,
                                      const spops_bevpool_args *pool)
{
    const spops_matrix feat = pool->feat;
    if (!spops_dtype_is_packed(feat.dtype)) {
        SPOPS_REQUIRE(ctx, pool->feat_scales == NULL,
                      "%s: feat_scales is given, and feat.dtype is %s: only f4e2m1 has them", call,
                      spops_dtype_name(feat.dtype));
        return SPOPS_STATUS_OK;
    }
    SPOPS_REQUIRE(ctx, pool->feat_scales != NULL,
                  "%s: feat_scales is NULL, and feat.dtype is f4e2m1, which needs them", call);
    SPOPS_TRY(spops_check_matrix(ctx, call, "feat_scales", *pool->feat_scales, feat.rows,
                                 (feat.cols + SPOPS_BLOCK_COLS - 1) / SPOPS_BLOCK_COLS,
                                 DTYPE(F8E4M3)));
    return spops_check_no_overlap(ctx, call, "out", pool->out, "feat_scales", *pool->feat_scales);
}

static spops_status check_pool(spops_context *ctx, const char *call, const spops_bev_plan *plan,
                               const spops_bevpool_args *pool)
{
    const spops_matrix depth = pool->depth, feat = pool->feat, out = pool->out;

    SPOPS_REQUIRE(
        ctx, pool->accumulate == SPOPS_ACCUMULATE_F32 || pool->accumulate == SPOPS_ACCUMULATE_F16,
        "%s: accumulate is %d, expected %d or %d", call, (int)pool->accumulate,
        (int)SPOPS_ACCUMULATE_F32, (int)SPOPS_ACCUMULATE_F16);
    SPOPS_TRY(spops_check_matrix(ctx, call, "feat", feat, plan->counts.num_features, feat.cols,
                                 SPOPS_DTYPES_FLOAT | SPOPS_DTYPES_NARROW));
    SPOPS_REQUIRE(ctx, spops_dtype_is_float(feat.dtype) || feat.cols <= plan->segments->max_cols,
                  "%s: feat is %s with %" PRId64
                  " columns, the plan was built for max_cols = %" PRId64,
                  call, spops_dtype_name(feat.dtype), feat.cols, plan->segments->max_cols);
    SPOPS_TRY(spops_check_matrix(ctx, call, "depth", depth, plan->counts.num_points, 1,
                                 depth_dtypes(feat.dtype)));
    SPOPS_REQUIRE(ctx, depth.rows <= 1 || depth.row_stride == 1,
                  "%s: depth.row_stride is %" PRId64 ", expected 1", call, depth.row_stride);
    SPOPS_TRY(check_cells(ctx, call, "out", plan, pool->layout, out, feat, out_dtypes(feat.dtype)));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "depth", depth));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "feat", feat));
    SPOPS_TRY(check_feat_scales(ctx, call, pool));
    SPOPS_TRY(check_scale(ctx, call, "feat_scale", pool->feat_scale, out));
    SPOPS_TRY(check_scale(ctx, call, "depth_scale", pool->depth_scale, out));
    return check_scale(ctx, call, "out_scale", pool->out_scale, out);
}

// The same sums over the plan's intervals: features are rows, depths are weights.
static spops_status pool_intervals(spops_context *ctx, const char *call, const spops_bev_plan *plan,
                                   const spops_bevpool_args *pool, spops_matrix out,
                                   spops_bev_scratch scratch)
{
    spops_segreduce_args args = {.reduce = SPOPS_REDUCE_SUM,
                                 .x = pool->feat,
                                 .w = pool->depth,
                                 .out = out,
                                 .x_scales =
                                     pool->feat_scales == NULL ? absent : *pool->feat_scales,
                                 .x_scale = pool->feat_scale,
                                 .w_scale = pool->depth_scale,
                                 .out_scale = pool->out_scale,
                                 .accumulate = pool->accumulate,
                                 .x_f16 = scratch.feat_f16};
    return spops_segreduce_run(ctx, call, plan->segments, &args, scratch.segments);
}

// The matrix in scratch that has the columns of m and as many zeros as make its rows whole.
static spops_matrix padded(void *scratch, spops_matrix m)
{
    if (m.data == NULL) return m;
    return spops_matrix_dense(scratch, m.rows, spops_bev_padded_cols(m.cols), m.dtype);
}

// Rows of another width, zeros where from has no more columns; also_to absent: of one matrix.
static spops_status copy_columns(spops_context *ctx, spops_matrix from, spops_matrix to,
                                 spops_matrix also_from, spops_matrix also_to)
{
    const spops_gather_args args = {.x = from, .out = to, .also_x = also_from, .also_out = also_to};
    return ctx->backend->gather(ctx, &args);
}

static bool may_pad(const spops_bev_plan *plan, spops_matrix feat, spops_bev_scratch scratch)
{
    return scratch.feat != NULL && feat.cols <= plan->segments->max_cols &&
           (feat.dtype == SPOPS_DTYPE_F16 || feat.dtype == SPOPS_DTYPE_BF16);
}

// Pool into out, channels last: over the plan's spans where they serve, else over its intervals.
static spops_status pool_cells(spops_context *ctx, const char *call, const spops_bev_plan *plan,
                               const spops_bevpool_args *pool, spops_matrix out,
                               spops_bev_scratch scratch)
{
    const int64_t cols = pool->feat.cols;
    const bool is_scratch = out.data == scratch.rows; // then its rows are whole already
    spops_bev_spans_pool_args args = {
        .spans = &plan->spans.cuts[spops_bev_cut_for(&plan->spans, cols)],
        .shape = plan->shape,
        .variant = spops_bev_variant_for(&plan->spans, cols),
        .num_cells = plan->counts.num_cells,
        .parts = scratch.parts,
        .depth = pool->depth,
        .feat = pool->feat,
        .out = out,
        .feat_scales = pool->feat_scales == NULL ? absent : *pool->feat_scales,
        .feat_scale = pool->feat_scale,
        .depth_scale = pool->depth_scale,
        .out_scale = pool->out_scale};
    if (spops_bev_spans_serve(ctx, &plan->spans, &args))
        return ctx->backend->bev_spans_pool(ctx, &args);
    if (may_pad(plan, pool->feat, scratch)) {
        args.feat = padded(scratch.feat, pool->feat);
        args.out = padded(scratch.rows, out);
        args.variant = spops_bev_variant_for(&plan->spans, args.feat.cols);
        if (spops_bev_spans_serve(ctx, &plan->spans, &args)) {
            SPOPS_TRY(copy_columns(ctx, pool->feat, args.feat, absent, absent));
            SPOPS_TRY(ctx->backend->bev_spans_pool(ctx, &args));
            return is_scratch ? SPOPS_STATUS_OK : copy_columns(ctx, args.out, out, absent, absent);
        }
    }
    SPOPS_REQUIRE(ctx, plan->spans.pool_variant == 0,
                  "%s: pool_variant is %" PRId32 " in the plan, and does not suit these matrices",
                  call, plan->spans.pool_variant);
    return pool_intervals(ctx, call, plan, pool, out, scratch);
}

static spops_status run_pool(spops_context *ctx, const char *call, const spops_bev_plan *plan,
                             const spops_bevpool_args *pool)
{
    const int64_t cols = pool->feat.cols;
    spops_bev_scratch scratch;
    spops_transpose_args transpose;

    SPOPS_TRY(check_plan(ctx, call, plan, pool->layout));
    SPOPS_TRY(check_pool(ctx, call, plan, pool));
    SPOPS_TRY(spops_segments_check_cols(ctx, call, "feat", plan->segments, false, cols));
    if (cols == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(get_scratch(ctx, call, plan, &scratch));

    if (pool->layout == SPOPS_BEV_CHANNELS_LAST)
        return pool_cells(ctx, call, plan, pool, pool->out, scratch);
    transpose.batches = plan->shape.num_batches;
    transpose.rows = plan->counts.num_cells / plan->shape.num_batches;
    transpose.cols = cols;
    transpose.in = spops_matrix_dense(scratch.rows, plan->counts.num_cells, cols, pool->out.dtype);
    transpose.in.row_stride = spops_bev_padded_cols(cols);
    transpose.out = pool->out;
    SPOPS_TRY(pool_cells(ctx, call, plan, pool, transpose.in, scratch));
    return ctx->backend->transpose(ctx, &transpose);
}

spops_status spops_bevpool_execute(spops_context *ctx, const spops_bev_plan *plan,
                                   const spops_bevpool_args *args)
{
    static const char call[] = "bevpool_execute";
    spops_bevpool_args read;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_REQUIRE(ctx, args != NULL, "%s: args is NULL", call);
    memset(&read, 0, sizeof read);
    SPOPS_TRY(spops_read_options(ctx, call, args, &read, sizeof read));
    return run_pool(ctx, call, plan, &read);
}

static spops_status check_grad_apart(spops_context *ctx, const char *call, const char *name,
                                     spops_matrix grad, spops_matrix grad_out, spops_matrix depth,
                                     spops_matrix feat)
{
    SPOPS_TRY(spops_check_no_overlap(ctx, call, name, grad, "grad_out", grad_out));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, name, grad, "depth", depth));
    return spops_check_no_overlap(ctx, call, name, grad, "feat", feat);
}

// The gradients that are wanted.
static spops_status check_grads(spops_context *ctx, const char *call, spops_matrix grad_out,
                                spops_matrix depth, spops_matrix feat,
                                const spops_matrix *grad_depth, const spops_matrix *grad_feat)
{
    if (grad_feat != NULL) {
        SPOPS_TRY(spops_check_matrix(ctx, call, "grad_feat", *grad_feat, feat.rows, feat.cols,
                                     1u << (unsigned)feat.dtype));
        SPOPS_TRY(check_grad_apart(ctx, call, "grad_feat", *grad_feat, grad_out, depth, feat));
    }
    if (grad_depth != NULL) {
        SPOPS_TRY(
            spops_check_weights(ctx, call, "grad_depth", *grad_depth, depth.rows, depth.dtype));
        SPOPS_REQUIRE(ctx, grad_depth->dtype == depth.dtype,
                      "%s: grad_depth.dtype is %s, expected %s", call,
                      spops_dtype_name(grad_depth->dtype), spops_dtype_name(depth.dtype));
        SPOPS_TRY(check_grad_apart(ctx, call, "grad_depth", *grad_depth, grad_out, depth, feat));
        if (grad_feat != NULL)
            SPOPS_TRY(spops_check_no_overlap(ctx, call, "grad_depth", *grad_depth, "grad_feat",
                                             *grad_feat));
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_bevpool_execute_backward(spops_context *ctx, const spops_bev_plan *plan,
                                            spops_bev_layout layout, spops_matrix grad_out,
                                            spops_matrix depth, spops_matrix feat,
                                            const spops_matrix *grad_depth,
                                            const spops_matrix *grad_feat)
{
    static const char call[] = "bevpool_execute_backward";
    spops_bev_scratch scratch;
    spops_transpose_args transpose;
    spops_bev_spans_grad_args spans;
    spops_matrix rows = grad_out; // its gradients with channels last

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(check_plan(ctx, call, plan, layout));
    SPOPS_TRY(check_inputs(ctx, call, plan, depth, feat));
    SPOPS_TRY(check_cells(ctx, call, "grad_out", plan, layout, grad_out, feat,
                          1u << (unsigned)feat.dtype));
    SPOPS_TRY(check_grads(ctx, call, grad_out, depth, feat, grad_depth, grad_feat));
    SPOPS_TRY(spops_segreduce_check_backward(ctx, call, plan->segments, SPOPS_REDUCE_SUM));
    SPOPS_TRY(spops_segments_check_cols(ctx, call, "feat", plan->segments, false, feat.cols));
    if (grad_depth == NULL && grad_feat == NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(get_scratch(ctx, call, plan, &scratch));

    if (layout == SPOPS_BEV_CHANNELS_FIRST && feat.cols > 0) {
        rows = spops_matrix_dense(scratch.rows, plan->counts.num_cells, feat.cols, feat.dtype);
        transpose.batches = plan->shape.num_batches;
        transpose.rows = feat.cols;
        transpose.cols = plan->counts.num_cells / plan->shape.num_batches;
        transpose.in = grad_out;
        transpose.out = rows;
        SPOPS_TRY(ctx->backend->transpose(ctx, &transpose));
    }
    spans.spans = &plan->spans.cuts[SPOPS_BEV_CUT_NARROW];
    spans.shape = plan->shape;
    spans.grad_out = rows;
    spans.depth = depth;
    spans.feat = feat;
    spans.grad_depth = grad_depth == NULL ? absent : *grad_depth;
    spans.grad_feat = grad_feat == NULL ? absent : *grad_feat;
    if (spops_bev_spans_serve_gradients(ctx, &plan->spans, &spans))
        return ctx->backend->bev_spans_grad(ctx, &spans);
    if (may_pad(plan, feat, scratch) && rows.data != scratch.rows) {
        spans.feat = padded(scratch.feat, feat);
        spans.grad_out = padded(scratch.rows, grad_out);
        spans.grad_feat = padded(scratch.grad_feat, spans.grad_feat);
        if (spops_bev_spans_serve_gradients(ctx, &plan->spans, &spans)) {
            SPOPS_TRY(copy_columns(ctx, feat, spans.feat, grad_out, spans.grad_out));
            SPOPS_TRY(ctx->backend->bev_spans_grad(ctx, &spans));
            return grad_feat == NULL
                       ? SPOPS_STATUS_OK
                       : copy_columns(ctx, spans.grad_feat, *grad_feat, absent, absent);
        }
        spans.grad_feat = grad_feat == NULL ? absent : *grad_feat;
    }
    return spops_segreduce_run_backward(ctx, plan->segments, SPOPS_REDUCE_SUM, rows, feat, depth,
                                        spans.grad_feat, spans.grad_depth, scratch.segments);
}
