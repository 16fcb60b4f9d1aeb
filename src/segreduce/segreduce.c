// SPDX-License-Identifier: Apache-2.0
// Segmented reduction: argument checks, then the backend's slots. Plans are made in segments.c; the
// gradients of rows and weights are the same walk over the plan's other lists.
#include "segreduce/segreduce.h"

#include "call/call_check.h"
#include "spops/device/reduce_ops.h"

static const spops_matrix absent; // data NULL

// What the list of built-in reductions says of each.
static const struct {
    bool is_builtin, has_arg, has_grad, is_linear;
} builtin[] = {
#define SPOPS_REDUCE_OP(NAME, plain, traced)                                                       \
    [SPOPS_REDUCE_##NAME] = {true, spops_##traced##_has_arg, spops_##traced##_has_grad,            \
                             spops_##traced##_is_linear},
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
};
enum { NUM_BUILTIN = sizeof builtin / sizeof *builtin };

static bool is_builtin(spops_reduce reduce)
{
    return (int)reduce >= 0 && (int)reduce < NUM_BUILTIN && builtin[reduce].is_builtin;
}

// Whether gradients need what the forward pass knew, and not only counts.
static bool needs_states(spops_reduce reduce)
{
    return !is_builtin(reduce) || !builtin[reduce].is_linear;
}

static spops_status check_reduce(spops_context *ctx, const char *call, spops_reduce reduce,
                                 spops_dtype dtype)
{
    SPOPS_REQUIRE(ctx, is_builtin(reduce) || spops_custom_reduce_find(ctx, reduce) != NULL,
                  "%s: reduce is %d, expected SPOPS_REDUCE_* or an id from reduce_create on ctx",
                  call, (int)reduce);
    if (!is_builtin(reduce) && dtype == SPOPS_DTYPE_F64)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: x.dtype is f64, and registered reductions are of f32", call);
    return SPOPS_STATUS_OK;
}

static spops_status check_arg(spops_context *ctx, const char *call, spops_reduce reduce)
{
    if (!is_builtin(reduce))
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: arg is given, and registered reductions have none", call);
    SPOPS_REQUIRE(ctx, builtin[reduce].has_arg,
                  "%s: arg is given, and reduce is %d, which has no winning term as "
                  "SPOPS_REDUCE_MIN and MAX have",
                  call, (int)reduce);
    return SPOPS_STATUS_OK;
}

spops_status spops_segreduce_run_sum(spops_context *ctx, const spops_lists *lists, spops_matrix x,
                                     spops_matrix w, spops_matrix out,
                                     spops_segments_scratch scratch)
{
    const spops_segreduce_args args = {.lists = lists,
                                       .reduce = SPOPS_REDUCE_SUM,
                                       .x = x,
                                       .w = w,
                                       .out = out,
                                       .partials = scratch.partials,
                                       .tickets = ctx->tickets};
    return ctx->backend->segreduce(ctx, &args);
}

spops_status spops_segreduce_run_dot(spops_context *ctx, const spops_segments *segments,
                                     spops_matrix grad_out, spops_matrix x, spops_matrix w,
                                     spops_matrix grad_w, spops_segments_scratch scratch)
{
    const spops_grad_args args = {.lists = &segments->by_weight,
                                  .reduce = SPOPS_REDUCE_SUM,
                                  .grad_out = grad_out,
                                  .x = x,
                                  .w = w,
                                  .grad = grad_w,
                                  .partials = scratch.partials,
                                  .tickets = ctx->tickets};
    return ctx->backend->segdot(ctx, &args);
}

spops_status spops_segreduce_run(spops_context *ctx, const char *call,
                                 const spops_segments *segments, spops_segreduce_args *what,
                                 spops_segments_scratch scratch)
{
    SPOPS_REQUIRE_SLOT(ctx, call, segreduce);
    what->lists = &segments->forward;
    what->custom = spops_custom_reduce_find(ctx, what->reduce);
    what->partials = scratch.partials;
    what->tickets = ctx->tickets;
    return ctx->backend->segreduce(ctx, what);
}

spops_status spops_segreduce_run_checked(spops_context *ctx, const char *call,
                                         const spops_segments *segments, spops_segreduce_args *what,
                                         bool has_arg)
{
    spops_segments_scratch scratch;

    SPOPS_TRY(check_reduce(ctx, call, what->reduce, what->x.dtype));
    if (has_arg) SPOPS_TRY(check_arg(ctx, call, what->reduce));
    SPOPS_TRY(spops_segments_check_cols(ctx, call, "x", segments, false, what->x.cols));
    if (segments->num_segments == 0 || what->x.cols == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_segments_get_scratch(ctx, call, segments, &scratch));
    return spops_segreduce_run(ctx, call, segments, what, scratch);
}

spops_status spops_segreduce_execute(spops_context *ctx, const spops_segments *segments,
                                     spops_reduce reduce, spops_matrix x, const spops_matrix *w,
                                     spops_matrix out, const spops_matrix *arg)
{
    static const char call[] = "segreduce_execute";
    const void *const given[] = {&x, w, segments, &out, arg};
    const spops_call_number attributes[] = {{.i = reduce}};
    spops_segreduce_args what = {.reduce = reduce,
                                 .x = x,
                                 .w = w == NULL ? absent : *w,
                                 .out = out,
                                 .arg = arg == NULL ? absent : *arg};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_segreduce, given, attributes));
    return spops_segreduce_run_checked(ctx, call, segments, &what, arg != NULL);
}

// Gradients

spops_status spops_segreduce_check_backward(spops_context *ctx, const char *call,
                                            const spops_segments *segments, spops_reduce reduce)
{
    const spops_custom_reduce *custom = spops_custom_reduce_find(ctx, reduce);
    const spops_gradients least =
        needs_states(reduce) ? SPOPS_GRADIENTS_ALL : SPOPS_GRADIENTS_LINEAR;
    SPOPS_REQUIRE(
        ctx, segments->gradients >= least,
        "%s: the plan was built with gradients = %d, expected %s", call, (int)segments->gradients,
        needs_states(reduce) ? "SPOPS_GRADIENTS_ALL"
                             : "SPOPS_GRADIENTS_LINEAR (for a BEV plan, backward = 1) or ALL");
    if (is_builtin(reduce) && !builtin[reduce].has_grad)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: reduce is %d, which has no gradient", call, (int)reduce);
    if (custom != NULL && !custom->has_grad)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: the reduction \"%s\" was registered without grad", call,
                          custom->desc.name);
    SPOPS_REQUIRE_SLOT(ctx, call, segreduce);
    SPOPS_REQUIRE_SLOT(ctx, call, seggrad);
    SPOPS_REQUIRE_SLOT(ctx, call, segdot);
    return SPOPS_STATUS_OK;
}

// Winners, products: the states of a forward pass whose values are not asked for.
static spops_status run_states(spops_context *ctx, const spops_segments *segments,
                               spops_reduce reduce, spops_matrix x, spops_matrix w,
                               spops_segments_scratch scratch)
{
    const spops_segreduce_args args = {.lists = &segments->forward,
                                       .reduce = reduce,
                                       .custom = spops_custom_reduce_find(ctx, reduce),
                                       .x = x,
                                       .w = w,
                                       .states = scratch.states,
                                       .partials = scratch.partials,
                                       .tickets = ctx->tickets};
    if (segments->num_segments == 0) return SPOPS_STATUS_OK;
    return ctx->backend->segreduce(ctx, &args);
}

// The gradient with respect to rows or, over the lists by weight, to weights.
static spops_status run_grad(spops_context *ctx, const spops_segments *segments,
                             const spops_lists *lists, spops_reduce reduce, spops_matrix grad_out,
                             spops_matrix x, spops_matrix w, spops_matrix grad,
                             spops_segments_scratch scratch)
{
    const spops_grad_args args = {.lists = lists,
                                  .reduce = reduce,
                                  .custom = spops_custom_reduce_find(ctx, reduce),
                                  .grad_out = grad_out,
                                  .x = x,
                                  .w = w,
                                  .grad = grad,
                                  .states = needs_states(reduce) ? scratch.states : NULL,
                                  .segment_offsets = segments->forward.offsets,
                                  .partials = scratch.partials,
                                  .tickets = ctx->tickets};
    return lists == &segments->by_row ? ctx->backend->seggrad(ctx, &args)
                                      : ctx->backend->segdot(ctx, &args);
}

// Whether one walk can give the gradients that are wanted.
static bool fill_sumgrad(spops_context *ctx, const spops_segments *segments, spops_reduce reduce,
                         spops_matrix grad_out, spops_matrix x, spops_matrix w, spops_matrix grad_x,
                         spops_matrix grad_w, spops_segments_scratch scratch,
                         spops_sumgrad_args *args)
{
    args->lists = &segments->by_row;
    args->by_weight = &segments->by_weight;
    args->grad_out = grad_out;
    args->x = x;
    args->w = w;
    args->grad_x = grad_x;
    args->grad_w = grad_w;
    args->partials = scratch.partials;
    args->tickets = ctx->tickets;
    return reduce == SPOPS_REDUCE_SUM && segments->weights_unique &&
           ctx->backend->sumgrad != NULL && ctx->backend->sumgrad_fits(ctx, args);
}

// Whether the gradient of rows alone is wanted, of rows that are parted among segments.
static bool fill_partgrad(const spops_context *ctx, const spops_segments *segments,
                          spops_reduce reduce, spops_matrix grad_out, spops_matrix x,
                          spops_matrix w, spops_matrix grad_x, spops_matrix grad_w,
                          spops_partgrad_args *args)
{
    *args = (spops_partgrad_args){.lists = &segments->forward,
                                  .by_row = &segments->by_row,
                                  .reduce = reduce,
                                  .grad_out = grad_out,
                                  .x = x,
                                  .grad = grad_x};
    return needs_states(reduce) && is_builtin(reduce) && w.data == NULL && grad_w.data == NULL &&
           grad_x.data != NULL && ctx->backend->partgrad != NULL &&
           ctx->backend->partgrad_fits(ctx, args);
}

// Whether the host knows that each weight has a term.
static bool names_all_weights(const spops_segments *segments)
{
    const spops_lists *lists = &segments->by_weight;
    return !lists->counts_on_device && lists->host_schedule.num_nonempty == lists->num_segments;
}

spops_status spops_segreduce_run_backward(spops_context *ctx, const spops_segments *segments,
                                          spops_reduce reduce, spops_matrix grad_out,
                                          spops_matrix x, spops_matrix w, spops_matrix grad_x,
                                          spops_matrix grad_w, spops_segments_scratch scratch)
{
    const bool want_x = grad_x.data != NULL && grad_x.rows > 0 && grad_x.cols > 0;
    const bool want_w = grad_w.data != NULL && grad_w.rows > 0;
    spops_sumgrad_args walk;
    spops_partgrad_args parted;

    if (!want_x && !want_w) return SPOPS_STATUS_OK;
    if (x.cols == 0) // only grad_w is left: sums over no column
        return ctx->backend->fill_zero(ctx, grad_w.data, spops_matrix_bytes(grad_w));
    if (fill_sumgrad(ctx, segments, reduce, grad_out, x, w, want_x ? grad_x : absent,
                     want_w ? grad_w : absent, scratch, &walk)) {
        if (want_w && !names_all_weights(segments)) // the others get their 0 here
            SPOPS_TRY(ctx->backend->fill_zero(ctx, grad_w.data, spops_matrix_bytes(grad_w)));
        return ctx->backend->sumgrad(ctx, &walk);
    }
    if (fill_partgrad(ctx, segments, reduce, grad_out, x, w, want_x ? grad_x : absent,
                      want_w ? grad_w : absent, &parted))
        return ctx->backend->partgrad(ctx, &parted);
    if (needs_states(reduce)) SPOPS_TRY(run_states(ctx, segments, reduce, x, w, scratch));
    if (want_x && reduce == SPOPS_REDUCE_SUM) // it is a sum itself: of rows of grad_out
        SPOPS_TRY(spops_segreduce_run_sum(ctx, &segments->by_row, grad_out, w, grad_x, scratch));
    else if (want_x)
        SPOPS_TRY(
            run_grad(ctx, segments, &segments->by_row, reduce, grad_out, x, w, grad_x, scratch));
    if (!want_w) return SPOPS_STATUS_OK;
    return run_grad(ctx, segments, &segments->by_weight, reduce, grad_out, x, w, grad_w, scratch);
}

spops_status spops_segreduce_run_backward_checked(spops_context *ctx, const char *call,
                                                  const spops_segments *segments,
                                                  spops_reduce reduce, spops_matrix grad_out,
                                                  spops_matrix x, const spops_matrix *w,
                                                  const spops_matrix *grad_x,
                                                  const spops_matrix *grad_w)
{
    spops_segments_scratch scratch;

    SPOPS_TRY(check_reduce(ctx, call, reduce, x.dtype));
    SPOPS_TRY(spops_segreduce_check_backward(ctx, call, segments, reduce));
    SPOPS_TRY(spops_segments_check_cols(ctx, call, "x", segments, needs_states(reduce), x.cols));
    SPOPS_TRY(spops_segments_get_scratch(ctx, call, segments, &scratch));
    return spops_segreduce_run_backward(ctx, segments, reduce, grad_out, x, w == NULL ? absent : *w,
                                        grad_x == NULL ? absent : *grad_x,
                                        grad_w == NULL ? absent : *grad_w, scratch);
}

spops_status spops_segreduce_execute_backward(spops_context *ctx, const spops_segments *segments,
                                              spops_reduce reduce, spops_matrix grad_out,
                                              spops_matrix x, const spops_matrix *w,
                                              const spops_matrix *grad_x,
                                              const spops_matrix *grad_w)
{
    const void *const given[] = {&x, w, &grad_out, segments, grad_x, grad_w};
    const spops_call_number attributes[] = {{.i = reduce}};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_segreduce_backward, given, attributes));
    return spops_segreduce_run_backward_checked(ctx, "segreduce_execute_backward", segments, reduce,
                                                grad_out, x, w, grad_x, grad_w);
}
