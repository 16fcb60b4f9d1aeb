// SPDX-License-Identifier: Apache-2.0
// Gather: argument checks, then the backend's slots. The plan is one of segments, read from the
// other side: segments are the source rows, terms are where they go.

#include "call/call_check.h"
#include "gather/gather_args.h"
#include "segreduce/segreduce.h"
#include "spops/gather.h"

static const spops_matrix absent; // data NULL

spops_status spops_gather_execute(spops_context *ctx, const spops_segments *rows, spops_matrix x,
                                  const spops_matrix *w, spops_matrix out)
{
    static const char call[] = "gather_execute";
    const void *const given[] = {&x, w, rows, &out};
    spops_gather_args args;

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_gather, given, NULL));
    SPOPS_REQUIRE_SLOT(ctx, call, gather);
    if (rows->num_segments == 0 || rows->max_terms == 0 || x.cols == 0) return SPOPS_STATUS_OK;
    args = (spops_gather_args){.lists = &rows->forward,
                               .keys = rows->keys,
                               .x = x,
                               .w = w == NULL ? absent : *w,
                               .out = out};
    return ctx->backend->gather(ctx, &args);
}

spops_status spops_gather_execute_backward(spops_context *ctx, const spops_segments *rows,
                                           spops_matrix grad_out, spops_matrix x,
                                           const spops_matrix *w, const spops_matrix *grad_x,
                                           const spops_matrix *grad_w)
{
    static const char call[] = "gather_execute_backward";
    const void *const given[] = {&x, w, &grad_out, rows, grad_x, grad_w};
    spops_segments_scratch scratch;

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_gather_backward, given, NULL));
    if (grad_x != NULL) SPOPS_REQUIRE_SLOT(ctx, call, segreduce);
    if (grad_w != NULL) {
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
