// SPDX-License-Identifier: Apache-2.0
// Softmax, sort and top-k within segments: argument checks, scratch, the slots, and boxed functions.
#include "spops/segment_ops.h"

#include "call/boxed.h"
#include "segments/segments.h"
#include "segops/segops_args.h"

// ---- Softmax ------------------------------------------------------------------------------------

// Both passes, checked but for what rows cannot say.
static spops_status run_softmax(spops_context *ctx, const char *call, const char *name,
                                const spops_segments *segments, spops_segment_softmax_args *args)
{
    spops_segments_scratch scratch;

    SPOPS_REQUIRE_SLOT(ctx, call, segment_softmax);
    SPOPS_TRY(spops_segments_check_terms(ctx, call, segments));
    SPOPS_TRY(spops_segments_check_cols(ctx, call, name, segments, false, args->x.cols));
    if (args->x.rows == 0 || args->x.cols == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_segments_get_scratch(ctx, call, segments, &scratch));
    args->lists = &segments->forward;
    args->partials = scratch.partials;
    args->tickets = ctx->tickets;
    return ctx->backend->segment_softmax(ctx, args);
}

spops_status spops_segment_softmax_execute(spops_context *ctx, const spops_segments *segments,
                                           spops_matrix x, spops_matrix out)
{
    const void *const given[] = {&x, segments, &out};
    spops_segment_softmax_args args = {.x = x, .out = out};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_segment_softmax, given, NULL));
    return run_softmax(ctx, "segment_softmax_execute", "x", segments, &args);
}

spops_status spops_segment_softmax_execute_backward(spops_context *ctx,
                                                    const spops_segments *segments,
                                                    spops_matrix grad_out, spops_matrix out,
                                                    spops_matrix grad_x)
{
    const void *const given[] = {&out, &grad_out, segments, &grad_x};
    spops_segment_softmax_args args = {.x = out, .grad_out = grad_out, .out = grad_x};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_segment_softmax_backward, given, NULL));
    return run_softmax(ctx, "segment_softmax_execute_backward", "out", segments, &args);
}

spops_status spops_boxed_segment_softmax(spops_boxed_call *b)
{
    enum { X, SEGMENTS, OUT };
    return spops_segment_softmax_execute(b->ctx, b->args[SEGMENTS], b->matrices[X],
                                         b->matrices[OUT]);
}

spops_status spops_boxed_segment_softmax_backward(spops_boxed_call *b)
{
    enum { OUT, GRAD_OUT, SEGMENTS, GRAD_X };
    return spops_segment_softmax_execute_backward(b->ctx, b->args[SEGMENTS], b->matrices[GRAD_OUT],
                                                  b->matrices[OUT], b->matrices[GRAD_X]);
}

// ---- Sort and top-k -----------------------------------------------------------------------------

static size_t scratch_of(spops_context *ctx, const spops_segment_sort_args *args)
{
    if (args->x.rows == 0 || args->x.cols == 0 || args->lists->num_segments == 0) return 0;
    return args->k > 0 ? ctx->backend->segment_topk_scratch_bytes(ctx, args)
                       : ctx->backend->segment_sort_scratch_bytes(ctx, args);
}

// What scratch depends on.
static spops_segment_sort_args sort_args(const spops_segments *segments, int32_t k,
                                         spops_dtype dtype, int64_t cols)
{
    const spops_segment_sort_args args = {
        .lists = &segments->forward,
        .k = k,
        .x = spops_matrix_dense(NULL, segments->max_terms, cols, dtype)};
    return args;
}

size_t spops_segment_sort_scratch_bytes(spops_context *ctx, const spops_segments *segments,
                                        spops_dtype dtype, int64_t cols)
{
    spops_segment_sort_args args;
    if (ctx == NULL || segments == NULL || cols < 0 || !spops_dtype_in(dtype, SPOPS_DTYPES_REAL))
        return 0;
    args = sort_args(segments, 0, dtype, cols);
    return scratch_of(ctx, &args);
}

size_t spops_segment_topk_scratch_bytes(spops_context *ctx, const spops_segments *segments,
                                        int32_t k, spops_dtype dtype, int64_t cols)
{
    spops_segment_sort_args args;
    if (ctx == NULL || segments == NULL || cols < 0 || k < 1 ||
        !spops_dtype_in(dtype, SPOPS_DTYPES_REAL))
        return 0;
    args = sort_args(segments, k, dtype, cols);
    return scratch_of(ctx, &args);
}

// Scratch for checked arguments.
static spops_status get_scratch(spops_context *ctx, const char *call, const char *asked,
                                spops_segment_sort_args *args)
{
    const size_t bytes = scratch_of(ctx, args);
    spops_status status;

    if (bytes == 0) return SPOPS_STATUS_OK;
    status = spops_context_scratch(ctx, call, bytes, &args->scratch);
    if (status == SPOPS_STATUS_SCRATCH_TOO_SMALL)
        return spops_fail(ctx, status,
                          "%s: the context's scratch is %zu bytes, expected at least %zu: call "
                          "spops_context_reserve with %s",
                          call, ctx->scratch_bytes, bytes, asked);
    return status;
}

spops_status spops_segment_sort_execute(spops_context *ctx, const spops_segments *segments,
                                        int32_t descending, spops_matrix x, spops_matrix values,
                                        spops_matrix places)
{
    static const char call[] = "segment_sort_execute";
    const void *const given[] = {&x, segments, &values, &places};
    const spops_call_number attributes[] = {{.i = descending}};
    spops_segment_sort_args args;

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_segment_sort, given, attributes));
    SPOPS_REQUIRE_SLOT(ctx, call, segment_sort);
    SPOPS_TRY(spops_segments_check_terms(ctx, call, segments));
    if (x.rows == 0 || x.cols == 0) return SPOPS_STATUS_OK;
    args = sort_args(segments, 0, x.dtype, x.cols);
    args.descending = descending != 0;
    args.x = x;
    args.values = values;
    args.places = places;
    SPOPS_TRY(get_scratch(ctx, call, "spops_segment_sort_scratch_bytes", &args));
    return ctx->backend->segment_sort(ctx, &args);
}

spops_status spops_segment_topk_execute(spops_context *ctx, const spops_segments *segments,
                                        int32_t k, int32_t smallest, spops_matrix x,
                                        spops_matrix values, spops_matrix places)
{
    static const char call[] = "segment_topk_execute";
    const void *const given[] = {&x, segments, &values, &places};
    const spops_call_number attributes[] = {{.i = k}, {.i = smallest}};
    spops_segment_sort_args args;

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_segment_topk, given, attributes));
    SPOPS_REQUIRE_SLOT(ctx, call, segment_topk);
    SPOPS_TRY(spops_segments_check_terms(ctx, call, segments));
    if (segments->num_segments == 0 || x.cols == 0) return SPOPS_STATUS_OK;
    args = sort_args(segments, k, x.dtype, x.cols);
    args.descending = smallest == 0;
    args.x = x;
    args.values = values;
    args.places = places;
    SPOPS_TRY(get_scratch(ctx, call, "spops_segment_topk_scratch_bytes", &args));
    return ctx->backend->segment_topk(ctx, &args);
}

static spops_status scatter(spops_context *ctx, const char *call, spops_matrix grad_values,
                            spops_matrix places, spops_matrix grad_x)
{
    const spops_scatter_places_args args = {grad_values, places, grad_x};
    SPOPS_REQUIRE_SLOT(ctx, call, scatter_places);
    if (grad_x.rows == 0 || grad_x.cols == 0) return SPOPS_STATUS_OK;
    return ctx->backend->scatter_places(ctx, &args);
}

spops_status spops_segment_sort_execute_backward(spops_context *ctx, const spops_segments *segments,
                                                 spops_matrix grad_values, spops_matrix places,
                                                 spops_matrix grad_x)
{
    const void *const given[] = {&places, &grad_values, segments, &grad_x};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_segment_sort_backward, given, NULL));
    return scatter(ctx, "segment_sort_execute_backward", grad_values, places, grad_x);
}

spops_status spops_segment_topk_execute_backward(spops_context *ctx, const spops_segments *segments,
                                                 int32_t k, spops_matrix grad_values,
                                                 spops_matrix places, spops_matrix grad_x)
{
    const void *const given[] = {&places, &grad_values, segments, &grad_x};
    const spops_call_number attributes[] = {{.i = k}};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_segment_topk_backward, given, attributes));
    return scatter(ctx, "segment_topk_execute_backward", grad_values, places, grad_x);
}

spops_status spops_boxed_segment_sort(spops_boxed_call *b)
{
    enum { X, SEGMENTS, VALUES, PLACES };
    const spops_matrix x = b->matrices[X];
    SPOPS_TRY(spops_boxed_reserve(
        b, spops_segment_sort_scratch_bytes(b->ctx, b->args[SEGMENTS], x.dtype, x.cols)));
    return spops_segment_sort_execute(b->ctx, b->args[SEGMENTS], spops_boxed_i32(b, 0), x,
                                      b->matrices[VALUES], b->matrices[PLACES]);
}

spops_status spops_boxed_segment_sort_backward(spops_boxed_call *b)
{
    enum { PLACES, GRAD_VALUES, SEGMENTS, GRAD_X };
    return spops_segment_sort_execute_backward(b->ctx, b->args[SEGMENTS], b->matrices[GRAD_VALUES],
                                               b->matrices[PLACES], b->matrices[GRAD_X]);
}

spops_status spops_boxed_segment_topk(spops_boxed_call *b)
{
    enum { X, SEGMENTS, VALUES, PLACES };
    const spops_matrix x = b->matrices[X];
    const int32_t k = spops_boxed_i32(b, 0);
    SPOPS_TRY(spops_boxed_reserve(
        b, spops_segment_topk_scratch_bytes(b->ctx, b->args[SEGMENTS], k, x.dtype, x.cols)));
    return spops_segment_topk_execute(b->ctx, b->args[SEGMENTS], k, spops_boxed_i32(b, 1), x,
                                      b->matrices[VALUES], b->matrices[PLACES]);
}

spops_status spops_boxed_segment_topk_backward(spops_boxed_call *b)
{
    enum { PLACES, GRAD_VALUES, SEGMENTS, GRAD_X };
    return spops_segment_topk_execute_backward(b->ctx, b->args[SEGMENTS], spops_boxed_i32(b, 0),
                                               b->matrices[GRAD_VALUES], b->matrices[PLACES],
                                               b->matrices[GRAD_X]);
}
