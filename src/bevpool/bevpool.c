// BEV pooling: argument checks, then the segmented sum over the plan's relation, forward and
// backward. Channels-first outputs go through scratch rows and the backend's transpose.
#include "bevpool/bev_plan.h"
#include "core/matrix.h"
#include "segreduce/segreduce.h"

static const spops_matrix absent; // data NULL

static spops_status check_plan(spops_context *ctx, const char *call, const spops_bev_plan *plan,
                               spops_bev_layout layout)
{
    SPOPS_TRY(spops_bev_check_plan(ctx, call, plan));
    SPOPS_REQUIRE(ctx, layout == SPOPS_BEV_CHANNELS_LAST || layout == SPOPS_BEV_CHANNELS_FIRST,
                  "%s: layout is %d, expected %d or %d", call, (int)layout,
                  (int)SPOPS_BEV_CHANNELS_LAST, (int)SPOPS_BEV_CHANNELS_FIRST);
    if (layout == SPOPS_BEV_CHANNELS_LAST) return SPOPS_STATUS_OK;
    return spops_check_slot(ctx, call, ctx->backend->transpose != NULL, "transpose");
}

static spops_status check_inputs(spops_context *ctx, const char *call, const spops_bev_plan *plan,
                                 spops_matrix depth, spops_matrix feat)
{
    SPOPS_TRY(spops_check_matrix(ctx, call, "feat", feat, plan->counts.num_features, feat.cols,
                                 SPOPS_DTYPES_FLOAT));
    return spops_check_weights(ctx, call, "depth", depth, plan->counts.num_points, feat.dtype);
}

// m, named `name`, has one column vector of feat's width and dtype per cell, laid out as said.
static spops_status check_cells(spops_context *ctx, const char *call, const char *name,
                                const spops_bev_plan *plan, spops_bev_layout layout, spops_matrix m,
                                spops_matrix feat)
{
    const int64_t batches = plan->shape.num_batches, cells = plan->counts.num_cells;
    const unsigned dtypes = 1u << (unsigned)feat.dtype;
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
    if (plan->scratch_bytes > 0)
        SPOPS_TRY(spops_context_scratch(ctx, call, plan->scratch_bytes, &base));
    carver.base = base;
    *scratch = spops_bev_carve_scratch(plan, &carver);
    return SPOPS_STATUS_OK;
}

spops_status spops_bevpool_execute(spops_context *ctx, const spops_bev_plan *plan,
                                   spops_bev_layout layout, spops_matrix depth, spops_matrix feat,
                                   spops_matrix out)
{
    static const char call[] = "bevpool_execute";
    spops_bev_scratch scratch;
    spops_transpose_args transpose;
    spops_matrix rows = out; // where the sums go

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(check_plan(ctx, call, plan, layout));
    SPOPS_TRY(check_inputs(ctx, call, plan, depth, feat));
    SPOPS_TRY(check_cells(ctx, call, "out", plan, layout, out, feat));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "depth", depth));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "feat", feat));
    SPOPS_TRY(spops_segments_check_cols(ctx, call, "feat", plan->segments, false, feat.cols));
    if (feat.cols == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(get_scratch(ctx, call, plan, &scratch));

    if (layout == SPOPS_BEV_CHANNELS_FIRST)
        rows = spops_matrix_dense(scratch.rows, plan->counts.num_cells, feat.cols, feat.dtype);
    SPOPS_TRY(spops_segreduce_run(ctx, call, plan->segments, SPOPS_REDUCE_SUM, feat, depth, rows,
                                  absent, scratch.segments));
    if (layout == SPOPS_BEV_CHANNELS_LAST) return SPOPS_STATUS_OK;
    transpose.batches = plan->shape.num_batches;
    transpose.rows = plan->counts.num_cells / plan->shape.num_batches;
    transpose.cols = feat.cols;
    transpose.in = rows;
    transpose.out = out;
    return ctx->backend->transpose(ctx, &transpose);
}

static spops_status check_grad_apart(spops_context *ctx, const char *call, const char *name,
                                     spops_matrix grad, spops_matrix grad_out, spops_matrix depth,
                                     spops_matrix feat)
{
    SPOPS_TRY(spops_check_no_overlap(ctx, call, name, grad, "grad_out", grad_out));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, name, grad, "depth", depth));
    return spops_check_no_overlap(ctx, call, name, grad, "feat", feat);
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
    spops_matrix rows = grad_out; // its gradients with channels last

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(check_plan(ctx, call, plan, layout));
    SPOPS_TRY(check_inputs(ctx, call, plan, depth, feat));
    SPOPS_TRY(check_cells(ctx, call, "grad_out", plan, layout, grad_out, feat));
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
    return spops_segreduce_run_backward(ctx, plan->segments, SPOPS_REDUCE_SUM, rows, feat, depth,
                                        grad_feat == NULL ? absent : *grad_feat,
                                        grad_depth == NULL ? absent : *grad_depth,
                                        scratch.segments);
}
