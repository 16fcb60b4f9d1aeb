// SPDX-License-Identifier: Apache-2.0
// Gather: argument checks, then the backend's slots. The plan is one of segments, read from the
// other side: segments are the source rows, terms are where they go.

#include <string.h>

#include "core/matrix.h"
#include "gather/gather_args.h"
#include "segreduce/segreduce.h"
#include "spops/gather.h"

static const spops_matrix absent; // data NULL

spops_status spops_gather_execute(spops_context *ctx, const spops_segments *rows, spops_matrix x,
                                  const spops_matrix *w, spops_matrix out)
{
    static const char call[] = "gather_execute";
    spops_gather_args args;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_segments_check(ctx, call, "rows", rows));
    SPOPS_TRY(
        spops_check_matrix(ctx, call, "x", x, rows->num_segments, x.cols, SPOPS_DTYPES_FLOAT));
    if (w != NULL) SPOPS_TRY(spops_check_weights(ctx, call, "w", *w, rows->num_weights, x.dtype));
    SPOPS_TRY(
        spops_check_matrix(ctx, call, "out", out, rows->num_rows, x.cols, 1u << (unsigned)x.dtype));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "x", x));
    if (w != NULL) SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "w", *w));
    SPOPS_REQUIRE_SLOT(ctx, call, gather);
    if (rows->num_segments == 0 || rows->max_terms == 0 || x.cols == 0) return SPOPS_STATUS_OK;
    memset(&args, 0, sizeof args);
    args.lists = &rows->forward;
    args.keys = rows->keys;
    args.x = x;
    args.w = w == NULL ? absent : *w;
    args.out = out;
    return ctx->backend->gather(ctx, &args);
}

spops_status spops_gather_execute_backward(spops_context *ctx, const spops_segments *rows,
                                           spops_matrix grad_out, spops_matrix x,
                                           const spops_matrix *w, const spops_matrix *grad_x,
                                           const spops_matrix *grad_w)
{
    static const char call[] = "gather_execute_backward";
    spops_segments_scratch scratch;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_segments_check(ctx, call, "rows", rows));
    SPOPS_TRY(
        spops_check_matrix(ctx, call, "x", x, rows->num_segments, x.cols, SPOPS_DTYPES_FLOAT));
    if (w != NULL) SPOPS_TRY(spops_check_weights(ctx, call, "w", *w, rows->num_weights, x.dtype));
    SPOPS_TRY(spops_check_matrix(ctx, call, "grad_out", grad_out, rows->num_rows, x.cols,
                                 1u << (unsigned)x.dtype));
    if (grad_x != NULL) {
        SPOPS_TRY(spops_check_matrix(ctx, call, "grad_x", *grad_x, rows->num_segments, x.cols,
                                     1u << (unsigned)x.dtype));
        SPOPS_TRY(spops_check_no_overlap(ctx, call, "grad_x", *grad_x, "grad_out", grad_out));
        SPOPS_TRY(spops_check_no_overlap(ctx, call, "grad_x", *grad_x, "x", x));
        if (w != NULL) SPOPS_TRY(spops_check_no_overlap(ctx, call, "grad_x", *grad_x, "w", *w));
        SPOPS_REQUIRE_SLOT(ctx, call, segreduce);
    }
    if (grad_w != NULL) {
        SPOPS_REQUIRE(ctx, w != NULL, "%s: grad_w is given, and w is NULL", call);
        SPOPS_TRY(spops_check_weights(ctx, call, "grad_w", *grad_w, rows->num_weights, w->dtype));
        SPOPS_REQUIRE(ctx, grad_w->dtype == w->dtype, "%s: grad_w.dtype is %s, expected %s", call,
                      spops_dtype_name(grad_w->dtype), spops_dtype_name(w->dtype));
        SPOPS_TRY(spops_check_no_overlap(ctx, call, "grad_w", *grad_w, "grad_out", grad_out));
        SPOPS_TRY(spops_check_no_overlap(ctx, call, "grad_w", *grad_w, "x", x));
        SPOPS_TRY(spops_check_no_overlap(ctx, call, "grad_w", *grad_w, "w", *w));
        if (grad_x != NULL)
            SPOPS_TRY(spops_check_no_overlap(ctx, call, "grad_w", *grad_w, "grad_x", *grad_x));
        SPOPS_REQUIRE(ctx, rows->gradients != SPOPS_GRADIENTS_NONE,
                      "%s: the plan was built with gradients = 0, expected SPOPS_GRADIENTS_LINEAR "
                      "or ALL for grad_w",
                      call);
        SPOPS_REQUIRE_SLOT(ctx, call, segdot);
    }
    SPOPS_TRY(spops_segments_check_cols(ctx, call, "x", rows, false, x.cols));
    SPOPS_TRY(spops_segments_get_scratch(ctx, call, rows, &scratch));

    // The adjoint of the segmented sum over the same plan: grad_x is that sum of grad_out, and
    // grad_w that of a sum whose rows are grad_out and whose output's gradient is x.
    if (grad_x != NULL && rows->num_segments > 0 && x.cols > 0)
        SPOPS_TRY(spops_segreduce_run_sum(ctx, &rows->forward, grad_out, w == NULL ? absent : *w,
                                          *grad_x, scratch));
    if (grad_w != NULL && rows->num_weights > 0)
        SPOPS_TRY(x.cols == 0
                      ? ctx->backend->fill_zero(ctx, grad_w->data, spops_matrix_bytes(*grad_w))
                      : spops_segreduce_run_dot(ctx, rows, x, grad_out, *w, *grad_w, scratch));
    return SPOPS_STATUS_OK;
}
