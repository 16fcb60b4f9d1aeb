// SPDX-License-Identifier: Apache-2.0
// SDDMM and SpMM over the terms of a plan, each the other's gradient: argument checks, the slots, and
// boxed functions.
#include "spops/sddmm.h"

#include "call/boxed.h"
#include "sddmm/sddmm_args.h"
#include "segments/segments.h"

static spops_status check_heads(spops_context *ctx, const char *call,
                                const spops_segments *segments, int32_t heads, int64_t cols)
{
    SPOPS_REQUIRE_SLOT(ctx, call, sddmm);
    SPOPS_REQUIRE_SLOT(ctx, call, spmm);
    SPOPS_REQUIRE(ctx, cols % heads == 0,
                  "%s: heads is %" PRId32 ", expected a divisor of %" PRId64 " columns", call,
                  heads, cols);
    return spops_segments_check_terms(ctx, call, segments);
}

// A gradient over the lists by row.
static spops_status check_by_row(spops_context *ctx, const char *call, const char *name,
                                 const spops_segments *segments)
{
    SPOPS_REQUIRE(ctx, segments->gradients != SPOPS_GRADIENTS_NONE,
                  "%s: the plan was built with gradients = 0, expected SPOPS_GRADIENTS_LINEAR or "
                  "ALL for %s",
                  call, name);
    return SPOPS_STATUS_OK;
}

// ---- The two products, of checked arguments -----------------------------------------------------

static spops_status run_sddmm(spops_context *ctx, const spops_segments *segments, float scale,
                              spops_matrix q, spops_matrix k, spops_matrix out)
{
    const spops_sddmm_args args = {&segments->forward, scale, q, k, out};
    if (out.rows == 0 || out.cols == 0) return SPOPS_STATUS_OK;
    return ctx->backend->sddmm(ctx, &args);
}

static spops_status run_spmm(spops_context *ctx, const spops_lists *lists, float scale,
                             spops_matrix w, spops_matrix x, spops_matrix out,
                             spops_segments_scratch scratch)
{
    const spops_spmm_args args = {lists, scale, w, x, out, scratch.partials, ctx->tickets};
    if (out.rows == 0 || out.cols == 0) return SPOPS_STATUS_OK;
    return ctx->backend->spmm(ctx, &args);
}

// ---- SDDMM --------------------------------------------------------------------------------------

spops_status spops_sddmm_execute(spops_context *ctx, const spops_segments *segments, int32_t heads,
                                 float scale, spops_matrix q, spops_matrix k, spops_matrix out)
{
    const void *const given[] = {&q, &k, segments, &out};
    const spops_call_number attributes[] = {{.i = heads}, {.f = scale}};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_sddmm, given, attributes));
    SPOPS_TRY(check_heads(ctx, "sddmm_execute", segments, heads, q.cols));
    return run_sddmm(ctx, segments, scale, q, k, out);
}

spops_status spops_sddmm_execute_backward(spops_context *ctx, const spops_segments *segments,
                                          int32_t heads, float scale, spops_matrix grad_out,
                                          spops_matrix q, spops_matrix k,
                                          const spops_matrix *grad_q, const spops_matrix *grad_k)
{
    static const char call[] = "sddmm_execute_backward";
    const void *const given[] = {&q, &k, &grad_out, segments, grad_q, grad_k};
    const spops_call_number attributes[] = {{.i = heads}, {.f = scale}};
    spops_segments_scratch scratch;

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_sddmm_backward, given, attributes));
    SPOPS_TRY(check_heads(ctx, call, segments, heads, q.cols));
    if (grad_k != NULL) SPOPS_TRY(check_by_row(ctx, call, "grad_k", segments));
    SPOPS_TRY(spops_segments_check_cols(ctx, call, "q", segments, false, q.cols));
    SPOPS_TRY(spops_segments_get_scratch(ctx, call, segments, &scratch));
    if (grad_q != NULL)
        SPOPS_TRY(run_spmm(ctx, &segments->forward, scale, grad_out, k, *grad_q, scratch));
    if (grad_k == NULL) return SPOPS_STATUS_OK;
    return run_spmm(ctx, &segments->by_row, scale, grad_out, q, *grad_k, scratch);
}

spops_status spops_boxed_sddmm(spops_boxed_call *b)
{
    enum { Q, K, SEGMENTS, OUT };
    return spops_sddmm_execute(b->ctx, b->args[SEGMENTS], spops_boxed_i32(b, 0),
                               (float)b->attributes[1].f, b->matrices[Q], b->matrices[K],
                               b->matrices[OUT]);
}

spops_status spops_boxed_sddmm_backward(spops_boxed_call *b)
{
    enum { Q, K, GRAD_OUT, SEGMENTS, GRAD_Q, GRAD_K };
    return spops_sddmm_execute_backward(
        b->ctx, b->args[SEGMENTS], spops_boxed_i32(b, 0), (float)b->attributes[1].f,
        b->matrices[GRAD_OUT], b->matrices[Q], b->matrices[K], spops_boxed_optional(b, GRAD_Q),
        spops_boxed_optional(b, GRAD_K));
}

// ---- SpMM ---------------------------------------------------------------------------------------

spops_status spops_spmm_execute(spops_context *ctx, const spops_segments *segments, int32_t heads,
                                spops_matrix w, spops_matrix x, spops_matrix out)
{
    static const char call[] = "spmm_execute";
    const void *const given[] = {&w, &x, segments, &out};
    const spops_call_number attributes[] = {{.i = heads}};
    spops_segments_scratch scratch;

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_spmm, given, attributes));
    SPOPS_TRY(check_heads(ctx, call, segments, heads, x.cols));
    SPOPS_TRY(spops_segments_check_cols(ctx, call, "x", segments, false, x.cols));
    SPOPS_TRY(spops_segments_get_scratch(ctx, call, segments, &scratch));
    return run_spmm(ctx, &segments->forward, 1.0f, w, x, out, scratch);
}

spops_status spops_spmm_execute_backward(spops_context *ctx, const spops_segments *segments,
                                         int32_t heads, spops_matrix grad_out, spops_matrix w,
                                         spops_matrix x, const spops_matrix *grad_w,
                                         const spops_matrix *grad_x)
{
    static const char call[] = "spmm_execute_backward";
    const void *const given[] = {&w, &x, &grad_out, segments, grad_w, grad_x};
    const spops_call_number attributes[] = {{.i = heads}};
    spops_segments_scratch scratch;

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_spmm_backward, given, attributes));
    SPOPS_TRY(check_heads(ctx, call, segments, heads, x.cols));
    if (grad_x != NULL) SPOPS_TRY(check_by_row(ctx, call, "grad_x", segments));
    SPOPS_TRY(spops_segments_check_cols(ctx, call, "x", segments, false, x.cols));
    SPOPS_TRY(spops_segments_get_scratch(ctx, call, segments, &scratch));
    if (grad_w != NULL) SPOPS_TRY(run_sddmm(ctx, segments, 1.0f, grad_out, x, *grad_w));
    if (grad_x == NULL) return SPOPS_STATUS_OK;
    return run_spmm(ctx, &segments->by_row, 1.0f, w, grad_out, *grad_x, scratch);
}

spops_status spops_boxed_spmm(spops_boxed_call *b)
{
    enum { W, X, SEGMENTS, OUT };
    return spops_spmm_execute(b->ctx, b->args[SEGMENTS], spops_boxed_i32(b, 0), b->matrices[W],
                              b->matrices[X], b->matrices[OUT]);
}

spops_status spops_boxed_spmm_backward(spops_boxed_call *b)
{
    enum { W, X, GRAD_OUT, SEGMENTS, GRAD_W, GRAD_X };
    return spops_spmm_execute_backward(
        b->ctx, b->args[SEGMENTS], spops_boxed_i32(b, 0), b->matrices[GRAD_OUT], b->matrices[W],
        b->matrices[X], spops_boxed_optional(b, GRAD_W), spops_boxed_optional(b, GRAD_X));
}
