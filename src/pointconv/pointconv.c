// SPDX-License-Identifier: Apache-2.0
// Point convolution: convolution by taps (tapconv/tapconv.h) whose relation is neighbours.
#include "spops/pointconv.h"

#include "points/neighbors.h"
#include "igemm/igemm_plan.h"
#include "tapconv/tapconv.h"

struct spops_pointconv {
    spops_tapconv conv;
    spops_neighbor_lists lists[SPOPS_NUM_SIDES]; // whose addresses stay
    int32_t taps;                                // along an axis
};

// ---- Schedules of IMPLICIT_GEMM -----------------------------------------------------------------

static spops_igemm_lists_args lists_args(const spops_pointconv *plan, int side)
{
    const spops_neighbor_lists *lists = &plan->lists[side];
    return (spops_igemm_lists_args){.schedule = &plan->conv.schedules[side],
                                    .taps = plan->taps,
                                    .num_rows = lists->num_rows,
                                    .offsets = lists->offsets,
                                    .rows = lists->rows,
                                    .row_taps = lists->taps,
                                    .workspace = plan->conv.base.workspace};
}

static spops_status alloc_workspace(spops_context *ctx, spops_pointconv *plan)
{
    spops_plan *base = &plan->conv.base;

    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        const spops_igemm_lists_args args = lists_args(plan, side);
        size_t bytes;
        if (!spops_tapconv_has_side(&plan->conv, side)) continue;
        bytes = ctx->backend->igemm_lists_bytes(ctx, &args);
        if (bytes > base->workspace_bytes) base->workspace_bytes = bytes;
    }
    return spops_backend_alloc(ctx, base->workspace_bytes, &base->workspace);
}

static void free_workspace(spops_plan *base)
{
    spops_backend_free(base->ctx, base->workspace, base->workspace_bytes);
    base->workspace = NULL;
    base->workspace_bytes = 0;
}

// Capacities as they are counted, in a block of its own.
static spops_status count_work(spops_context *ctx, const char *call, spops_pointconv *plan,
                               int side)
{
    spops_igemm_schedule *s = &plan->conv.schedules[side];
    const spops_igemm_lists_args args = lists_args(plan, side);
    spops_status status = SPOPS_STATUS_OK;
    int32_t totals[SPOPS_IGEMM_NUM_TOTALS];
    spops_carver c = {NULL, 0};
    void *tiles = NULL;
    size_t bytes;

    s->max_records = s->max_sums = s->max_members = s->max_units = SPOPS_MAX_COUNT;
    spops_igemm_carve_tiles(s, &c);
    bytes = c.used;
    SPOPS_TRY(spops_backend_alloc(ctx, bytes, &tiles));
    c = (spops_carver){tiles, 0};
    spops_igemm_carve_tiles(s, &c);
    SPOPS_TRY_GOTO(ctx->backend->igemm_lists_count(ctx, &args), status, done);
    SPOPS_TRY_GOTO(ctx->backend->download(ctx, totals, s->num_tiles, sizeof totals), status, done);
    if (totals[SPOPS_IGEMM_OVERFLOW] != 0)
        status = spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                            "%s: neighbors give more work than an index can count", call);
    s->max_records = totals[SPOPS_IGEMM_RECORDS];
    s->max_sums = totals[SPOPS_IGEMM_SUMS];
    s->max_members = totals[SPOPS_IGEMM_MEMBERS];
    s->max_units = totals[SPOPS_IGEMM_UNITS];
done:
    spops_backend_free(ctx, tiles, bytes);
    return status;
}

static spops_status fill_schedule(spops_context *ctx, const spops_pointconv *plan, int side)
{
    const spops_igemm_lists_args args = lists_args(plan, side);
    SPOPS_TRY(ctx->backend->igemm_lists_count(ctx, &args));
    return ctx->backend->igemm_lists_fill(ctx, &args);
}

// Memory of a schedule, and its first filling: made to measure, or for the capacity.
static spops_status make_schedule(spops_context *ctx, const char *call, spops_pointconv *plan,
                                  int side)
{
    spops_tapconv *conv = &plan->conv;
    spops_igemm_schedule *s = &conv->schedules[side];
    spops_carver c = {NULL, 0};

    s->max_records = s->max_tiles * s->num_taps;
    s->max_sums = s->adds ? conv->relation.max_pairs / 2 : 0;
    s->max_units = s->max_records * (SPOPS_IGEMM_TILE_ROWS / SPOPS_IGEMM_GROUP_ROWS);
    s->members = plan->lists[side].rows;
    if (!conv->base.refillable) SPOPS_TRY(count_work(ctx, call, plan, side));
    spops_igemm_carve_tiles(s, &c);
    spops_igemm_carve_records(s, &c);
    SPOPS_TRY(spops_backend_alloc(ctx, c.used, &conv->blocks[side]));
    conv->block_bytes[side] = c.used;
    c = (spops_carver){conv->blocks[side], 0};
    spops_igemm_carve_tiles(s, &c);
    spops_igemm_carve_records(s, &c);
    return conv->base.refillable ? SPOPS_STATUS_OK : fill_schedule(ctx, plan, side);
}

// Whether the plan can have IMPLICIT_GEMM. If it was asked for by name, no is a failure.
static spops_status plan_igemm(spops_context *ctx, const char *call, spops_pointconv *plan,
                               const spops_pointconv_options *options)
{
    const bool adds = options->sums != SPOPS_POINTCONV_SUMS_NONE;
    spops_tapconv *conv = &plan->conv;
    spops_status status = SPOPS_STATUS_OK;
    bool wants;

    SPOPS_TRY(spops_tapconv_wants_igemm(ctx, call, conv, true, &wants));
    if (!wants) return SPOPS_STATUS_OK;
    if (spops_tapconv_has_side(conv, SPOPS_SIDE_IN) && plan->lists[SPOPS_SIDE_IN].offsets == NULL)
        return spops_tapconv_lacks(ctx, call, conv,
                                   "neighbors were made without SPOPS_NEIGHBORS_REVERSE");
    SPOPS_REQUIRE(ctx, adds || !conv->base.refillable,
                  "%s: options->sums is SPOPS_POINTCONV_SUMS_NONE, expected another for neighbors "
                  "made by reserve",
                  call);
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        spops_igemm_schedule *s = &conv->schedules[side];
        s->num_taps = conv->relation.num_taps;
        s->lists = true;
        s->adds = adds;
        s->has_members = options->detach != 0;
        s->has_units =
            side == SPOPS_SIDE_OUT && conv->backward && conv->relation.tap_offsets == NULL;
        s->max_rows = conv->relation.sides[side].max_rows;
        s->max_tiles = spops_igemm_tiles_of(s->max_rows);
    }
    SPOPS_TRY(alloc_workspace(ctx, plan));
    for (int side = 0; side < SPOPS_NUM_SIDES && status == SPOPS_STATUS_OK; ++side)
        if (spops_tapconv_has_side(conv, side)) status = make_schedule(ctx, call, plan, side);
    if (status == SPOPS_STATUS_OK) status = ctx->backend->wait(ctx);
    if (!conv->base.refillable || status != SPOPS_STATUS_OK) free_workspace(&conv->base);
    SPOPS_TRY(status);
    return spops_tapconv_finish_igemm(ctx, conv);
}

// ---- Plans --------------------------------------------------------------------------------------

static spops_status read_plan_options(spops_context *ctx, const char *call,
                                      const spops_pointconv_options *given,
                                      spops_pointconv_options *o, spops_tapconv_options *common)
{
    SPOPS_TRY(spops_read_options(ctx, call, given, o, sizeof *o));
    SPOPS_TRY(spops_check_reserved(ctx, call, o->reserved));
    *common = (spops_tapconv_options){o->backward, o->quantized, o->dataflow, o->max_in_channels,
                                      o->max_out_channels};
    SPOPS_TRY(spops_tapconv_check_options(ctx, call, common));
    SPOPS_REQUIRE(ctx,
                  o->dataflow == SPOPS_DATAFLOW_AUTO ||
                      o->dataflow == SPOPS_DATAFLOW_FETCH_ON_DEMAND ||
                      o->dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM,
                  "%s: options->dataflow is %d (%s), expected auto, fetch_on_demand or "
                  "implicit_gemm",
                  call, (int)o->dataflow, spops_dataflow_name(o->dataflow));
    SPOPS_REQUIRE(ctx, (int)o->sums >= 0 && o->sums <= SPOPS_POINTCONV_SUMS_FIRST,
                  "%s: options->sums is %d, expected 0 to %d", call, (int)o->sums,
                  (int)SPOPS_POINTCONV_SUMS_FIRST);
    SPOPS_REQUIRE(ctx, o->detach == 0 || o->detach == 1,
                  "%s: options->detach is %d, expected 0 or 1", call, (int)o->detach);
    SPOPS_REQUIRE(ctx, !o->detach || !o->quantized,
                  "%s: options->quantized is 1, expected 0 where options->detach is 1", call);
    SPOPS_REQUIRE(ctx, common->max_in_channels <= SPOPS_MAX_COUNT / common->max_out_channels,
                  "%s: options->max_in_channels is %" PRId64 " and max_out_channels %" PRId64
                  ", expected a product of at most %" PRId64,
                  call, common->max_in_channels, common->max_out_channels, SPOPS_MAX_COUNT);
    return SPOPS_STATUS_OK;
}

// Whether neighbours hold what the options need. A plan by IMPLICIT_GEMM alone needs no triplets by
// tap: where it adds rows first, its records have those of the gradient of the weights.
static spops_status check_contents(spops_context *ctx, const char *call,
                                   const spops_pointconv_options *o,
                                   const spops_neighbors *neighbors)
{
    const bool alone = o->dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM;
    const bool without = alone && (!o->backward || o->sums != SPOPS_POINTCONV_SUMS_NONE);
    SPOPS_REQUIRE(ctx, neighbors->arrays.by_tap || without,
                  "%s: neighbors were made without SPOPS_NEIGHBORS_BY_TAP, expected it for all but "
                  "%s with rows added first",
                  call, spops_dataflow_name(SPOPS_DATAFLOW_IMPLICIT_GEMM));
    SPOPS_REQUIRE(ctx, !o->detach || without,
                  "%s: options->detach is 1, expected options->dataflow to be %s, with rows added "
                  "first",
                  call, spops_dataflow_name(SPOPS_DATAFLOW_IMPLICIT_GEMM));
    SPOPS_REQUIRE(ctx, !o->detach || !neighbors->base.refillable,
                  "%s: options->detach is 1, expected 0 for neighbors made by reserve", call);
    return SPOPS_STATUS_OK;
}

static spops_tapconv_relation relation_of(const spops_neighbors_view *v, bool detached)
{
    spops_tapconv_relation r = {
        .num_taps = v->num_taps,
        .sides = {{v->out->max_rows, v->out->num_rows}, {v->in->max_rows, v->in->num_rows}},
        .mirrored = v->mirrored != 0,
        .max_pairs = v->max_pairs};
    if (detached) return r; // those by tap go with the neighbours
    r.tap_offsets = v->tap_offsets;
    r.in_rows = v->in_rows;
    r.out_rows = v->out_rows;
    return r;
}

// A plan that is made no longer needs its neighbours.
static void detach(spops_pointconv *plan)
{
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        plan->lists[side] = (spops_neighbor_lists){0};
        plan->conv.relation.sides[side].num_rows = NULL;
    }
    plan->conv.base.parents[0] = NULL;
}

// All that the plan runs on.
static spops_status fill_plan(spops_context *ctx, const char *call, spops_pointconv *plan,
                              const spops_pointconv_options *options)
{
    spops_tapconv *conv = &plan->conv;

    SPOPS_TRY(plan_igemm(ctx, call, plan, options));
    if (options->sums == SPOPS_POINTCONV_SUMS_FIRST && !conv->has_igemm)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: options->sums is SPOPS_POINTCONV_SUMS_FIRST, which needs %s", call,
                          spops_dataflow_name(SPOPS_DATAFLOW_IMPLICIT_GEMM));
    if (conv->dataflow != SPOPS_DATAFLOW_IMPLICIT_GEMM)
        SPOPS_TRY(spops_tapconv_reserve_triplets(ctx, conv));
    SPOPS_TRY(spops_context_reserve(ctx, spops_pointconv_scratch_bytes(plan)));
    SPOPS_TRY(spops_pointconv_update(ctx, plan));
    return ctx->backend->wait(ctx);
}

spops_status spops_pointconv_create(spops_context *ctx, const spops_neighbors *neighbors,
                                    const spops_pointconv_options *given, spops_pointconv **out)
{
    static const char call[] = "pointconv_create";
    spops_pointconv_options options = {0};
    spops_neighbors_view view = spops_neighbors_view_default();
    spops_tapconv_options common;
    spops_tapconv_relation relation;
    spops_status status = SPOPS_STATUS_OK;
    spops_pointconv *plan = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(read_plan_options(ctx, call, given, &options, &common));
    SPOPS_TRY(spops_neighbors_check(ctx, call, "neighbors", neighbors));
    SPOPS_TRY(check_contents(ctx, call, &options, neighbors));
    plan = spops_plan_alloc(ctx, SPOPS_PLAN_POINTCONV);
    if (plan == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    SPOPS_TRY_GOTO(spops_neighbors_get_view(ctx, neighbors, &view), status, fail);
    plan->lists[SPOPS_SIDE_OUT] = *view.out;
    plan->lists[SPOPS_SIDE_IN] = *view.in;
    plan->taps = neighbors->arrays.rule.taps;
    plan->conv.base.refillable = neighbors->base.refillable;
    relation = relation_of(&view, options.detach != 0);
    spops_tapconv_begin(&plan->conv, &common, &relation, &neighbors->base);
    SPOPS_TRY_GOTO(fill_plan(ctx, call, plan, &options), status, fail);
    if (options.detach) detach(plan);
    *out = plan;
    return SPOPS_STATUS_OK;

fail:
    spops_pointconv_destroy(plan);
    return status;
}

spops_status spops_pointconv_update(spops_context *ctx, spops_pointconv *conv)
{
    static const char call[] = "pointconv_update";

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_tapconv_check(ctx, call, (const spops_tapconv *)conv));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
        if (conv->conv.has_igemm && conv->conv.base.refillable &&
            spops_tapconv_has_side(&conv->conv, side))
            SPOPS_TRY(fill_schedule(ctx, conv, side));
    return spops_tapconv_set_triplets(ctx, &conv->conv);
}

size_t spops_pointconv_scratch_bytes(const spops_pointconv *conv)
{
    return spops_plan_scratch_bytes((const spops_plan *)conv);
}

size_t spops_pointconv_bytes(const spops_pointconv *conv)
{
    return conv == NULL ? 0 : sizeof *conv + spops_plan_bytes((const spops_plan *)conv);
}

static spops_status update_pointconvs(spops_context *ctx, spops_plan *const *plans, int32_t num)
{
    for (int32_t i = 0; i < num; ++i)
        SPOPS_TRY(spops_pointconv_update(ctx, (spops_pointconv *)plans[i]));
    return SPOPS_STATUS_OK;
}

const spops_plan_ops spops_pointconv_plan_ops = {.handle_bytes = sizeof(struct spops_pointconv),
                                                 .num_fields = SPOPS_TAPCONV_NUM_FIELDS,
                                                 .destroy = spops_tapconv_destroy,
                                                 .bytes = spops_tapconv_bytes,
                                                 .scratch_bytes = spops_tapconv_scratch_bytes,
                                                 .update = update_pointconvs};

// ---- Calls --------------------------------------------------------------------------------------

spops_status spops_pointconv_get_choice(spops_context *ctx, const spops_pointconv *conv,
                                        spops_conv_pass pass, spops_dtype dtype,
                                        int64_t in_channels, int64_t out_channels,
                                        const spops_conv_layer *layer, spops_conv_choice *choice)
{
    return spops_tapconv_get_choice(ctx, "pointconv_get_choice", (const spops_tapconv *)conv, pass,
                                    dtype, in_channels, out_channels, layer, choice);
}

spops_status spops_pointconv_execute(spops_context *ctx, const spops_pointconv *conv,
                                     spops_matrix x, spops_matrix w, const spops_conv_layer *layer,
                                     spops_matrix out)
{
    return spops_tapconv_execute(ctx, SPOPS_OP_pointconv, (const spops_tapconv *)conv, x, w, layer,
                                 out);
}

spops_status spops_pointconv_execute_backward(spops_context *ctx, const spops_pointconv *conv,
                                              spops_matrix grad_sum, spops_matrix x, spops_matrix w,
                                              const spops_conv_layer *layer,
                                              const spops_matrix *grad_x,
                                              const spops_matrix *grad_w)
{
    return spops_tapconv_execute_backward(ctx, SPOPS_OP_pointconv_backward,
                                          (const spops_tapconv *)conv, grad_sum, x, w, layer,
                                          grad_x, grad_w);
}
