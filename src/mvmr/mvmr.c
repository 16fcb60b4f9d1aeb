// SPDX-License-Identifier: Apache-2.0
// MVMR and VVOR: argument checks, then the backend's slots. Gradients are the same two patterns.
#include "mvmr/mvmr.h"

#include <string.h>

#include "call/call_check.h"
#include "segments/segments.h"

static const spops_matrix absent; // data NULL

// The options of a call, and the shapes they make of its matrices.
typedef struct mvmr_choice {
    int32_t groups;
    bool diagonal, transposed, reversed, accumulate;
    spops_math math;
    int64_t x_cols, out_cols; // of one group
    int64_t w_rows, w_cols;   // of one matrix, as stored
    int64_t num_matrices;
    const int32_t *num_rows; // of the result
} mvmr_choice;

static spops_status choose(spops_context *ctx, const char *call, const spops_mvmr_options *o,
                           mvmr_choice *choice)
{
    memset(choice, 0, sizeof *choice);
    SPOPS_REQUIRE(ctx, o->diagonal == 0 || o->groups <= 1,
                  "%s: groups is %" PRId32 ", expected 0 or 1 for diagonal matrices", call,
                  o->groups);
    choice->groups = o->groups > 1 ? o->groups : 1;
    choice->diagonal = o->diagonal == 1;
    choice->transposed = o->transposed == 1;
    choice->reversed = o->reversed == 1;
    choice->accumulate = o->accumulate == 1;
    choice->math = o->math;
    choice->num_rows = o->num_rows;
    return SPOPS_STATUS_OK;
}

static spops_status read_options(spops_context *ctx, const char *call,
                                 const spops_mvmr_options *options, spops_mvmr_options *o,
                                 mvmr_choice *choice)
{
    memset(o, 0, sizeof *o);
    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, options, o, sizeof *o));
    return choose(ctx, call, o, choice);
}

static spops_status check_cols(spops_context *ctx, const char *call, const char *name, int64_t cols,
                               int32_t groups)
{
    SPOPS_REQUIRE(ctx, cols >= 1 && cols <= SPOPS_MAX_COUNT,
                  "%s: %s has %" PRId64 " columns, expected 1 to %" PRId64, call, name, cols,
                  SPOPS_MAX_COUNT);
    SPOPS_REQUIRE(ctx, groups == 1 || cols % groups == 0,
                  "%s: %s has %" PRId64 " columns, expected a multiple of groups = %" PRId32, call,
                  name, cols, groups);
    return SPOPS_STATUS_OK;
}

// The shapes that rows of x_cols and out_cols columns give the matrices.
static spops_status shape_matrices(spops_context *ctx, const char *call, const char *x_name,
                                   int64_t x_cols, const char *out_name, int64_t out_cols,
                                   mvmr_choice *choice)
{
    SPOPS_TRY(check_cols(ctx, call, x_name, x_cols, choice->groups));
    SPOPS_TRY(check_cols(ctx, call, out_name, out_cols, choice->groups));
    SPOPS_REQUIRE(ctx, !choice->diagonal || x_cols == out_cols,
                  "%s: %s has %" PRId64 " columns, expected %" PRId64
                  " as %s has (the matrices are diagonal)",
                  call, out_name, out_cols, x_cols, x_name);
    choice->x_cols = choice->groups == 1 ? x_cols : x_cols / choice->groups;
    choice->out_cols = choice->groups == 1 ? out_cols : out_cols / choice->groups;
    choice->w_rows = choice->diagonal ? 1 : choice->transposed ? choice->out_cols : choice->x_cols;
    choice->w_cols = choice->transposed ? x_cols : out_cols;
    return SPOPS_STATUS_OK;
}

// Attributes as the rows of all three calls have them.
#define NUM_ATTRIBUTES 6
static void list_attributes(const spops_mvmr_options *o, spops_call_number *attributes)
{
    attributes[0].i = o->groups;
    attributes[1].i = o->diagonal;
    attributes[2].i = o->transposed;
    attributes[3].i = o->reversed;
    attributes[4].i = o->accumulate;
    attributes[5].i = o->math;
}

// The tiles of the rows that the result has. check_side says whether the plan has them.
static const spops_triplet_tiles *tiles_of(const spops_triplets *triplets, bool reversed)
{
    return &triplets
                ->sides[reversed && !triplets->mirrored ? SPOPS_SIDE_SOURCE : SPOPS_SIDE_TARGET];
}

static spops_status check_side(spops_context *ctx, const char *call, const spops_triplets *triplets,
                               bool reversed)
{
    SPOPS_REQUIRE(ctx, !reversed || triplets->mirrored || triplets->backward,
                  "%s: the plan was built with backward = 0, expected 1 for results by input row",
                  call);
    return SPOPS_STATUS_OK;
}

static void fill_args(const spops_triplet_tiles *tiles, const mvmr_choice *choice, spops_matrix x,
                      spops_matrix w, spops_mvmr_args *args)
{
    memset(args, 0, sizeof *args);
    args->tiles = tiles;
    args->num_matrices = choice->num_matrices;
    args->x = x;
    args->w = w;
    args->x_cols = choice->x_cols;
    args->out_cols = choice->out_cols;
    args->groups = choice->groups;
    args->diagonal = choice->diagonal;
    args->transposed = choice->transposed;
    args->accumulate = choice->accumulate;
    args->math = choice->math;
    args->num_rows = choice->num_rows;
}

// Rows times the matrix of their group, which has a product of its own for plain calls of it. Or
// what the backend has for all.
static spops_status run_mvmr(spops_context *ctx, const spops_triplets *triplets,
                             const spops_mvmr_args *args)
{
    if (triplets->has_groups && args->groups == 1 && !args->diagonal && !args->accumulate &&
        args->s.data == NULL && args->grad_s.data == NULL && args->num_rows == NULL &&
        (args->x.dtype != SPOPS_DTYPE_F32 || args->math == SPOPS_MATH_TF32) &&
        (args->w.rows <= 1 || args->w.row_stride == args->w.cols)) {
        const spops_igemm_args product = {.schedule = &triplets->groups,
                                          .x = args->x,
                                          .w = args->w,
                                          .out = args->out,
                                          .w_transposed = args->transposed,
                                          .tickets = ctx->tickets};
        if (ctx->backend->igemm_fits(ctx, &product)) return ctx->backend->igemm(ctx, &product);
    }
    return ctx->backend->mvmr(ctx, args);
}

// What has been checked.
static spops_status run_forward(spops_context *ctx, const char *call,
                                const spops_triplets *triplets, const mvmr_choice *choice,
                                spops_matrix x, spops_matrix w, const spops_matrix *s,
                                spops_matrix out)
{
    const spops_triplet_tiles *tiles = tiles_of(triplets, choice->reversed);
    spops_mvmr_args args;

    SPOPS_REQUIRE_SLOT(ctx, call, mvmr);
    if (tiles->num_rows == 0) return SPOPS_STATUS_OK;
    fill_args(tiles, choice, x, w, &args);
    args.s = s == NULL ? absent : *s;
    args.out = out;
    return run_mvmr(ctx, triplets, &args);
}

spops_status spops_mvmr_run(spops_context *ctx, const char *call, const spops_triplets *triplets,
                            spops_matrix x, spops_matrix w, const spops_mvmr_options *options,
                            spops_matrix out)
{
    mvmr_choice choice;

    SPOPS_TRY(choose(ctx, call, options, &choice));
    SPOPS_TRY(shape_matrices(ctx, call, "x", x.cols, "out", out.cols, &choice));
    choice.num_matrices = triplets->shape.num_matrices;
    return run_forward(ctx, call, triplets, &choice, x, w, NULL, out);
}

spops_status spops_mvmr_execute(spops_context *ctx, const spops_triplets *triplets, spops_matrix x,
                                spops_matrix w, const spops_matrix *s,
                                const spops_mvmr_options *options, spops_matrix out)
{
    static const char call[] = "mvmr_execute";
    spops_call_number attributes[NUM_ATTRIBUTES];
    spops_mvmr_options read;
    mvmr_choice choice;

    SPOPS_TRY(read_options(ctx, call, options, &read, &choice));
    SPOPS_TRY(shape_matrices(ctx, call, "x", x.cols, "out", out.cols, &choice));
    const void *const given[] = {&x, &w, s, read.num_rows, triplets, &out};
    list_attributes(&read, attributes);
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_mvmr, given, attributes));
    choice.num_matrices = triplets->shape.num_matrices;
    SPOPS_TRY(check_side(ctx, call, triplets, choice.reversed));
    return run_forward(ctx, call, triplets, &choice, x, w, s, out);
}

// Gradients

static spops_status check_backward(spops_context *ctx, const char *call,
                                   const spops_triplets *triplets)
{
    SPOPS_REQUIRE(ctx, triplets->backward,
                  "%s: the plan was built with backward = 0, expected 1 for gradients of matrices",
                  call);
    return SPOPS_STATUS_OK;
}

static spops_status check_elements(spops_context *ctx, const char *call,
                                   const spops_triplets *triplets, const mvmr_choice *choice)
{
    // Both factors are below 2^31.
    const int64_t elements = choice->w_rows * choice->w_cols;
    SPOPS_REQUIRE(ctx,
                  elements <= triplets->max_matrix_elements || triplets->by_matrix.max_pieces == 0,
                  "%s: a matrix has %" PRId64
                  " elements, the plan was built for max_matrix_elements = %" PRId64,
                  call, elements, triplets->max_matrix_elements);
    return SPOPS_STATUS_OK;
}

static spops_status get_partials(spops_context *ctx, const char *call,
                                 const spops_triplets *triplets, float **partials)
{
    spops_carver carver = {NULL, 0};
    void *base = NULL;
    *partials = NULL;
    if (triplets->base.scratch_bytes == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_context_scratch(ctx, call, triplets->base.scratch_bytes, &base));
    carver.base = base;
    *partials = spops_triplets_carve_scratch(triplets, &carver);
    return SPOPS_STATUS_OK;
}

static spops_status run_vvor(spops_context *ctx, const spops_triplets *triplets,
                             const mvmr_choice *choice, spops_matrix x, spops_matrix g,
                             const spops_matrix *s, spops_matrix out, float *partials)
{
    spops_vvor_args args;
    if (out.rows == 0) return SPOPS_STATUS_OK;
    memset(&args, 0, sizeof args);
    args.by_matrix = &triplets->by_matrix;
    args.side = choice->reversed ? SPOPS_SIDE_SOURCE : SPOPS_SIDE_TARGET;
    args.x = x;
    args.g = g;
    args.s = s == NULL ? absent : *s;
    args.out = out;
    args.x_cols = choice->x_cols;
    args.g_cols = choice->out_cols;
    args.groups = choice->groups;
    args.diagonal = choice->diagonal;
    args.transposed = choice->transposed;
    args.accumulate = choice->accumulate;
    args.math = choice->math;
    args.partials = partials;
    return ctx->backend->vvor(ctx, &args);
}

spops_status spops_vvor_execute(spops_context *ctx, const spops_triplets *triplets, spops_matrix x,
                                spops_matrix g, const spops_matrix *s,
                                const spops_mvmr_options *options, spops_matrix out)
{
    static const char call[] = "vvor_execute";
    spops_call_number attributes[NUM_ATTRIBUTES];
    spops_mvmr_options read;
    mvmr_choice choice;
    float *partials;

    SPOPS_TRY(read_options(ctx, call, options, &read, &choice));
    SPOPS_TRY(shape_matrices(ctx, call, "x", x.cols, "g", g.cols, &choice));
    const void *const given[] = {&x, &g, s, read.num_rows, triplets, &out};
    list_attributes(&read, attributes);
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_vvor, given, attributes));
    choice.num_matrices = triplets->shape.num_matrices;
    SPOPS_TRY(check_backward(ctx, call, triplets));
    SPOPS_TRY(check_elements(ctx, call, triplets, &choice));
    SPOPS_REQUIRE_SLOT(ctx, call, vvor);
    SPOPS_TRY(get_partials(ctx, call, triplets, &partials));
    return run_vvor(ctx, triplets, &choice, x, g, s, out, partials);
}

// The options for the gradient of x: rows and columns change places.
static mvmr_choice backward_of(const mvmr_choice *choice)
{
    mvmr_choice back = *choice;
    back.reversed = !choice->reversed;
    back.transposed = !choice->transposed;
    back.x_cols = choice->out_cols;
    back.out_cols = choice->x_cols;
    return back;
}

spops_status spops_mvmr_execute_backward(spops_context *ctx, const spops_triplets *triplets,
                                         spops_matrix grad_out, spops_matrix x, spops_matrix w,
                                         const spops_matrix *s, const spops_mvmr_options *options,
                                         const spops_matrix *grad_x, const spops_matrix *grad_w,
                                         const spops_matrix *grad_s)
{
    static const char call[] = "mvmr_execute_backward";
    const spops_triplet_tiles *tiles;
    spops_call_number attributes[NUM_ATTRIBUTES];
    spops_mvmr_options read;
    mvmr_choice choice, back;
    float *partials;

    SPOPS_TRY(read_options(ctx, call, options, &read, &choice));
    SPOPS_TRY(shape_matrices(ctx, call, "x", x.cols, "grad_out", grad_out.cols, &choice));
    const void *const given[] = {&x,       &w,     s,      read.num_rows, &grad_out,
                                 triplets, grad_x, grad_w, grad_s};
    list_attributes(&read, attributes);
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_mvmr_backward, given, attributes));
    choice.num_matrices = triplets->shape.num_matrices;
    SPOPS_TRY(check_backward(ctx, call, triplets));
    tiles = tiles_of(triplets, choice.reversed);
    if (grad_w != NULL) SPOPS_TRY(check_elements(ctx, call, triplets, &choice));
    back = backward_of(&choice);
    SPOPS_REQUIRE_SLOT(ctx, call, mvmr);
    SPOPS_REQUIRE_SLOT(ctx, call, vvor);
    SPOPS_TRY(get_partials(ctx, call, triplets, &partials));

    if (grad_x != NULL && grad_x->rows > 0) {
        spops_mvmr_args args;
        fill_args(tiles_of(triplets, back.reversed), &back, grad_out, w, &args);
        args.s = s == NULL ? absent : *s;
        args.out = *grad_x;
        SPOPS_TRY(run_mvmr(ctx, triplets, &args));
    }
    if (grad_s != NULL && grad_s->rows > 0) {
        spops_mvmr_args args;
        fill_args(tiles, &choice, x, w, &args);
        args.g = grad_out;
        args.grad_s = *grad_s;
        SPOPS_TRY(ctx->backend->mvmr(ctx, &args));
    }
    if (grad_w == NULL) return SPOPS_STATUS_OK;
    return run_vvor(ctx, triplets, &choice, x, grad_out, s, *grad_w, partials);
}
