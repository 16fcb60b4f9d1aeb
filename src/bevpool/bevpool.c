// SPDX-License-Identifier: Apache-2.0
// BEV pooling: argument checks, then the segmented sum over the plan's relation, forward and
// backward. Channels-first outputs go through scratch rows and the backend's transpose.
#include <string.h>

#include "bevpool/bev_plan.h"
#include "call/call_check.h"
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

// What the row cannot say of a layout: cells that come before channels go through scratch rows.
static spops_status check_layout(spops_context *ctx, const char *call, const spops_bev_plan *plan,
                                 spops_bev_layout layout, int64_t cols)
{
    if (layout == SPOPS_BEV_CHANNELS_LAST) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE_SLOT(ctx, call, transpose);
    SPOPS_REQUIRE(ctx, cols <= plan->segments->max_cols,
                  "%s: feat has %" PRId64 " columns, the plan was built for max_cols = %" PRId64,
                  call, cols, plan->segments->max_cols);
    return SPOPS_STATUS_OK;
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
    return SPOPS_STATUS_OK;
}

// What the row cannot say: which dtypes go together, and what codes need of the plan.
static spops_status check_pool(spops_context *ctx, const char *call, const spops_bev_plan *plan,
                               const spops_bevpool_args *pool)
{
    const spops_matrix feat = pool->feat;
    const void *const given[] = {
        &feat,           &pool->depth, pool->feat_scales, pool->feat_scale, pool->depth_scale,
        pool->out_scale, plan,         &pool->out};
    const spops_call_number attributes[] = {{.i = pool->layout}, {.i = pool->accumulate}};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_bevpool, given, attributes));
    SPOPS_REQUIRE(ctx, spops_dtype_is_float(feat.dtype) || feat.cols <= plan->segments->max_cols,
                  "%s: feat is %s with %" PRId64
                  " columns, the plan was built for max_cols = %" PRId64,
                  call, spops_dtype_name(feat.dtype), feat.cols, plan->segments->max_cols);
    SPOPS_TRY(
        spops_check_dtype(ctx, call, "depth.dtype", pool->depth.dtype, depth_dtypes(feat.dtype)));
    SPOPS_TRY(spops_check_dtype(ctx, call, "out.dtype", pool->out.dtype, out_dtypes(feat.dtype)));
    SPOPS_TRY(check_layout(ctx, call, plan, pool->layout, feat.cols));
    return check_feat_scales(ctx, call, pool);
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
    if (plan->spans.kernel != SPOPS_BEV_KERNEL_SPANS && plan->spans.pool_variant == 0)
        return pool_intervals(ctx, call, plan, pool, out, scratch);
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

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_REQUIRE(ctx, args != NULL, "%s: args is NULL", call);
    memset(&read, 0, sizeof read);
    SPOPS_TRY(spops_read_options(ctx, call, args, &read, sizeof read));
    return run_pool(ctx, call, plan, &read);
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
    const void *const given[] = {&feat, &depth, &grad_out, plan, grad_depth, grad_feat};
    const spops_call_number attributes[] = {{.i = layout}};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_bevpool_backward, given, attributes));
    SPOPS_TRY(check_layout(ctx, call, plan, layout, feat.cols));
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
