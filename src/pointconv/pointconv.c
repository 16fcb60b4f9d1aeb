// SPDX-License-Identifier: Apache-2.0
// Point convolution: convolution by taps (tapconv/tapconv.h) whose relation is neighbours.
#include "spops/pointconv.h"

#include <string.h>

#include "points/neighbors.h"
#include "igemm/igemm_plan.h"
#include "tapconv/tapconv.h"

struct spops_pointconv {
    spops_tapconv conv;
    int32_t taps; // along an axis
};

// Fields of a description, after those of all convolutions: what the neighbours are, the choices of
// points, and the work of each side where it was counted.
enum {
    BY_TAP = SPOPS_TAPCONV_NUM_FIELDS,
    REVERSE,
    SUMS,
    DETACH,
    COUNTED,
    MAX_RECORDS,
    MAX_SUMS = MAX_RECORDS + SPOPS_NUM_SIDES,
    MAX_MEMBERS = MAX_SUMS + SPOPS_NUM_SIDES,
    MAX_UNITS = MAX_MEMBERS + SPOPS_NUM_SIDES,
    NUM_FIELDS = MAX_UNITS + SPOPS_NUM_SIDES
};

// ---- Schedules of IMPLICIT_GEMM -----------------------------------------------------------------

static bool has_side(const int64_t *fields, int side)
{
    return side == SPOPS_SIDE_TARGET ||
           (fields[SPOPS_TAPCONV_BACKWARD] != 0 && fields[SPOPS_TAPCONV_MIRRORED] == 0);
}

// The sizes of a schedule: as it was counted, or for the capacity.
static spops_igemm_schedule size_schedule(const int64_t *fields, int side)
{
    const bool counted = fields[COUNTED] != 0, out = side == SPOPS_SIDE_TARGET;
    const int64_t rows = fields[out ? SPOPS_TAPCONV_NUM_OUT : SPOPS_TAPCONV_NUM_IN];
    spops_igemm_schedule s = {.num_taps = (int32_t)fields[SPOPS_TAPCONV_NUM_TAPS],
                              .adds = fields[SUMS] != SPOPS_POINTCONV_SUMS_NONE,
                              .has_members = fields[DETACH] != 0,
                              .has_units = out && fields[SPOPS_TAPCONV_BACKWARD] != 0 &&
                                           (fields[BY_TAP] == 0 || fields[DETACH] != 0),
                              .max_rows = rows,
                              .max_tiles = spops_igemm_tiles_of(rows)};
    s.max_records = counted ? fields[MAX_RECORDS + side] : s.max_tiles * s.num_taps;
    s.max_sums = counted  ? fields[MAX_SUMS + side]
                 : s.adds ? fields[SPOPS_TAPCONV_MAX_PAIRS] / 2
                          : 0;
    s.max_members = counted ? fields[MAX_MEMBERS + side] : 0;
    s.max_units = counted ? fields[MAX_UNITS + side]
                          : s.max_records * (SPOPS_IGEMM_TILE_ROWS / SPOPS_IGEMM_GROUP_ROWS);
    return s;
}

// What both sides work in, one after the other.
static size_t workspace_bytes(spops_context *ctx, const int64_t *fields)
{
    size_t most = 0;
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        const spops_igemm_schedule s = size_schedule(fields, side);
        const spops_igemm_lists_args args = {.schedule = &s};
        const size_t bytes =
            has_side(fields, side) ? ctx->backend->igemm_lists_bytes(ctx, &args) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

static void carve_schedule(spops_igemm_schedule *s, spops_carver *c)
{
    spops_igemm_carve_tiles(s, c);
    spops_igemm_carve_records(s, c);
}

static spops_status fill_schedule(spops_context *ctx, const spops_igemm_lists_args *args)
{
    SPOPS_TRY(ctx->backend->igemm_lists_count(ctx, args));
    return ctx->backend->igemm_lists_fill(ctx, args);
}

// The work of a side, as fields.
static spops_status count_side(spops_context *ctx, const char *call, int32_t taps,
                               const spops_relation *r, int side, void *workspace, int64_t *fields)
{
    spops_igemm_schedule s = size_schedule(fields, side);
    const spops_igemm_lists_args args = {&s, taps, &r->sides[side], workspace};
    spops_status status = SPOPS_STATUS_OK;
    int32_t totals[SPOPS_IGEMM_NUM_TOTALS];
    spops_carver c = {NULL, 0};
    void *tiles = NULL;
    size_t bytes;

    s.max_records = s.max_sums = s.max_members = s.max_units = SPOPS_MAX_COUNT;
    spops_igemm_carve_tiles(&s, &c);
    bytes = c.used;
    SPOPS_TRY(spops_backend_alloc(ctx, bytes, &tiles));
    c = (spops_carver){tiles, 0};
    spops_igemm_carve_tiles(&s, &c);
    SPOPS_TRY_GOTO(ctx->backend->igemm_lists_count(ctx, &args), status, done);
    SPOPS_TRY_GOTO(ctx->backend->download(ctx, totals, s.num_tiles, sizeof totals), status, done);
    if (totals[SPOPS_IGEMM_OVERFLOW] != 0)
        status = spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                            "%s: neighbors give more work than an index can count", call);
    fields[MAX_RECORDS + side] = totals[SPOPS_IGEMM_RECORDS];
    fields[MAX_SUMS + side] = totals[SPOPS_IGEMM_SUMS];
    fields[MAX_MEMBERS + side] = totals[SPOPS_IGEMM_MEMBERS];
    fields[MAX_UNITS + side] = totals[SPOPS_IGEMM_UNITS];
done:
    spops_backend_free(ctx, tiles, bytes);
    return status;
}

// Whether neighbours hold what the plan needs. A plan by IMPLICIT_GEMM alone needs no triplets by
// tap: where it adds rows first, its records have those of the gradient of the weights.
static spops_status check_contents(spops_context *ctx, const char *call, const int64_t *fields)
{
    const bool alone = fields[SPOPS_TAPCONV_DATAFLOW] == SPOPS_DATAFLOW_IMPLICIT_GEMM;
    const bool without =
        alone && (fields[SPOPS_TAPCONV_BACKWARD] == 0 || fields[SUMS] != SPOPS_POINTCONV_SUMS_NONE);
    SPOPS_REQUIRE(ctx, fields[BY_TAP] || without,
                  "%s: neighbors were made without SPOPS_NEIGHBORS_BY_TAP, expected it for all but "
                  "%s with rows added first",
                  call, spops_dataflow_name(SPOPS_DATAFLOW_IMPLICIT_GEMM));
    SPOPS_REQUIRE(ctx, !fields[DETACH] || without,
                  "%s: options->detach is 1, expected options->dataflow to be %s, with rows added "
                  "first",
                  call, spops_dataflow_name(SPOPS_DATAFLOW_IMPLICIT_GEMM));
    SPOPS_REQUIRE(ctx, !fields[DETACH] || fields[COUNTED],
                  "%s: options->detach is 1, expected 0 for neighbors made by reserve", call);
    return SPOPS_STATUS_OK;
}

// Whether the plan can have IMPLICIT_GEMM. If it was asked for by name, no is a failure.
static spops_status wants_igemm(spops_context *ctx, const char *call, const int64_t *fields,
                                bool *wants)
{
    const spops_tapconv asked = {.dataflow = (spops_dataflow)fields[SPOPS_TAPCONV_DATAFLOW]};

    SPOPS_TRY(spops_tapconv_wants_igemm(ctx, call, &asked, wants));
    if (*wants && has_side(fields, SPOPS_SIDE_SOURCE) && fields[REVERSE] == 0) {
        *wants = false;
        SPOPS_TRY(spops_tapconv_lacks(ctx, call, &asked,
                                      "neighbors were made without SPOPS_NEIGHBORS_REVERSE"));
    }
    if (!*wants && fields[SUMS] == SPOPS_POINTCONV_SUMS_FIRST)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: options->sums is SPOPS_POINTCONV_SUMS_FIRST, which needs %s", call,
                          spops_dataflow_name(SPOPS_DATAFLOW_IMPLICIT_GEMM));
    SPOPS_REQUIRE(ctx, !*wants || fields[COUNTED] || fields[SUMS] != SPOPS_POINTCONV_SUMS_NONE,
                  "%s: options->sums is SPOPS_POINTCONV_SUMS_NONE, expected another for neighbors "
                  "made by reserve",
                  call);
    return SPOPS_STATUS_OK;
}

// ---- Life cycle ---------------------------------------------------------------------------------

// What the neighbours are, as fields.
static void put_neighbors(const spops_neighbors *neighbors, spops_relation *r,
                          int64_t fields[NUM_FIELDS])
{
    neighbors->base.ops->relation(&neighbors->base, r);
    spops_tapconv_put_relation(r, r->symmetric, fields);
    fields[BY_TAP] = neighbors->arrays.by_tap;
    fields[REVERSE] = neighbors->arrays.reverse;
}

static spops_status read_pointconv(spops_context *ctx, const char *call, spops_plan *base)
{
    spops_pointconv *plan = (spops_pointconv *)base;
    spops_tapconv *conv = &plan->conv;
    const int64_t *fields = base->fields;
    bool wants;

    SPOPS_TRY(spops_tapconv_read(ctx, call, conv, SPOPS_DATAFLOW_IMPLICIT_GEMM));
    for (int32_t i = BY_TAP; i <= REVERSE; ++i)
        SPOPS_TRY(spops_plan_check_field(ctx, call, base, i, 0, 1));
    SPOPS_TRY(spops_plan_check_field(ctx, call, base, SUMS, 0, SPOPS_POINTCONV_SUMS_FIRST));
    SPOPS_TRY(spops_plan_check_field(ctx, call, base, DETACH, 0, 1));
    SPOPS_TRY(spops_plan_check_field(ctx, call, base, COUNTED, 0, 1));
    for (int32_t i = MAX_RECORDS; i < NUM_FIELDS; ++i)
        SPOPS_TRY(
            spops_plan_check_field(ctx, call, base, i, 0, fields[COUNTED] ? SPOPS_MAX_COUNT : 0));
    while (plan->taps * plan->taps * plan->taps < fields[SPOPS_TAPCONV_NUM_TAPS] &&
           plan->taps < SPOPS_MAX_POINT_TAPS)
        ++plan->taps;
    SPOPS_TRY(spops_plan_check_field(ctx, call, base, SPOPS_TAPCONV_NUM_TAPS, 1,
                                     plan->taps * plan->taps * plan->taps));
    SPOPS_TRY(check_contents(ctx, call, fields));
    if (conv->dataflow != SPOPS_DATAFLOW_IMPLICIT_GEMM)
        SPOPS_TRY(spops_tapconv_read_triplets(ctx, conv));
    if (conv->triplets != NULL) conv->triplets->apart = fields[COUNTED] != 0;
    SPOPS_TRY(wants_igemm(ctx, call, fields, &wants));
    if (!wants) return spops_tapconv_check_tile(ctx, call, conv);
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
        conv->schedules[side] = size_schedule(fields, side);
    spops_tapconv_size_igemm(ctx, conv);
    return spops_tapconv_check_tile(ctx, call, conv);
}

static spops_status bind_pointconv(spops_context *ctx, const char *call, spops_plan *base)
{
    spops_pointconv *plan = (spops_pointconv *)base;
    const spops_neighbors *neighbors = (const spops_neighbors *)base->parents[0];
    int64_t found[NUM_FIELDS];

    SPOPS_REQUIRE(ctx, (neighbors == NULL) == (base->fields[DETACH] == 1),
                  "%s: parents[0] (neighbors) is %s, expected %s", call,
                  neighbors == NULL ? "NULL" : "given",
                  neighbors == NULL ? "them" : "NULL as the plan is detached");
    if (neighbors == NULL) return SPOPS_STATUS_OK;
    memcpy(found, base->fields, sizeof found);
    put_neighbors(neighbors, &plan->conv.relation, found);
    for (int32_t i = 0; i < NUM_FIELDS; ++i)
        SPOPS_TRY(spops_plan_check_parent(ctx, call, base, i, "neighbors", found[i]));
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
        plan->conv.schedules[side].members = plan->conv.relation.sides[side].by_row.rows;
    return SPOPS_STATUS_OK;
}

static void carve_pointconv(spops_plan *base, spops_carver *c)
{
    spops_tapconv *conv = (spops_tapconv *)base;
    for (int side = 0; conv->has_igemm && side < SPOPS_NUM_SIDES; ++side)
        if (spops_tapconv_has_side(conv, side)) carve_schedule(&conv->schedules[side], c);
}

// Schedules that were counted are not made again.
static void carve_workspace(spops_plan *base, spops_carver *c)
{
    const spops_tapconv *conv = (const spops_tapconv *)base;
    if (!conv->has_igemm || base->fields[COUNTED] != 0) return;
    base->workspace = spops_carve(c, 1, 1, (int64_t)workspace_bytes(base->ctx, base->fields));
}

// Schedules from lists, in a workspace.
static spops_status fill_schedules(spops_context *ctx, const spops_pointconv *plan,
                                   const spops_relation *r, void *workspace)
{
    for (int side = 0; plan->conv.has_igemm && side < SPOPS_NUM_SIDES; ++side) {
        const spops_igemm_lists_args args = {&plan->conv.schedules[side], plan->taps,
                                             &r->sides[side], workspace};
        if (spops_tapconv_has_side(&plan->conv, side)) SPOPS_TRY(fill_schedule(ctx, &args));
    }
    return SPOPS_STATUS_OK;
}

// A plan that was counted is as it was made: its neighbours stay as they are.
static spops_status fill_pointconv(spops_context *ctx, spops_plan *base)
{
    spops_pointconv *plan = (spops_pointconv *)base;
    if (base->fields[COUNTED] != 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(fill_schedules(ctx, plan, &plan->conv.relation, base->workspace));
    return spops_tapconv_set_triplets(ctx, &plan->conv);
}

static spops_status update_pointconvs(spops_context *ctx, spops_plan *const *plans, int32_t num)
{
    for (int32_t i = 0; i < num; ++i)
        SPOPS_TRY(fill_pointconv(ctx, plans[i]));
    return SPOPS_STATUS_OK;
}

const spops_plan_ops spops_pointconv_plan_ops = {
    .handle_bytes = sizeof(struct spops_pointconv),
    .num_fields = NUM_FIELDS,
    .read = read_pointconv,
    .bind = bind_pointconv,
    .carve = carve_pointconv,
    .carve_workspace = carve_workspace,
    .prepare = spops_tapconv_prepare,
    .empty = fill_pointconv,
    .update = update_pointconvs,
    .state = spops_tapconv_state,
    .relation = spops_relation_of_part,
    .destroy = spops_tapconv_destroy,
    .bytes = spops_tapconv_bytes,
    .scratch_bytes = spops_tapconv_scratch_bytes,
};

// ---- Making -------------------------------------------------------------------------------------

static spops_status read_plan_options(spops_context *ctx, const char *call,
                                      const spops_pointconv_options *given,
                                      spops_pointconv_options *o, spops_tapconv_options *common)
{
    SPOPS_TRY(spops_read_options(ctx, call, given, o, sizeof *o));
    *common = (spops_tapconv_options){
        o->backward,         o->quantized, o->dataflow,         o->max_in_channels,
        o->max_out_channels, o->tile,      o->crop_independent, 0};
    SPOPS_TRY(spops_check_reserved(ctx, call, o->reserved));
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

// Triplets are sorted in memory that is given back.
static spops_status fill_triplets(spops_context *ctx, const char *call, const spops_relation *r,
                                  spops_triplets *triplets)
{
    spops_status status = SPOPS_STATUS_OK;
    void *workspace = NULL;
    const size_t bytes = spops_triplets_workspace_bytes(triplets);

    SPOPS_TRY(spops_backend_alloc(ctx, bytes, &workspace));
    status =
        spops_triplets_fill_apart(ctx, call, triplets, r->sides[SPOPS_SIDE_TARGET].by_key.offsets,
                                  r->sides[SPOPS_SIDE_TARGET].by_key.rows,
                                  r->sides[SPOPS_SIDE_SOURCE].by_key.rows, workspace);
    if (status == SPOPS_STATUS_OK) status = ctx->backend->wait(ctx);
    spops_backend_free(ctx, workspace, bytes);
    return status;
}

// Of neighbours that stay as they are: their work is counted, and the schedules are made to measure.
static spops_status make_counted(spops_context *ctx, const char *call,
                                 const spops_neighbors *neighbors, const spops_relation *r,
                                 int64_t fields[NUM_FIELDS], spops_plan_memory *memory,
                                 spops_pointconv **out)
{
    const spops_plan *parent = fields[DETACH] ? NULL : &neighbors->base;
    spops_status status = SPOPS_STATUS_OK;
    spops_pointconv *plan = NULL;
    void *workspace = NULL;
    bool wants;
    size_t bytes;

    SPOPS_TRY(wants_igemm(ctx, call, fields, &wants));
    bytes = wants ? workspace_bytes(ctx, fields) : 0;
    SPOPS_TRY(spops_backend_alloc(ctx, bytes, &workspace));
    for (int side = 0; wants && side < SPOPS_NUM_SIDES; ++side)
        if (has_side(fields, side))
            SPOPS_TRY_GOTO(
                count_side(ctx, call, neighbors->arrays.rule.taps, r, side, workspace, fields),
                status, done);
    SPOPS_TRY_GOTO(
        spops_plan_reserve_on(ctx, call, SPOPS_PLAN_POINTCONV, fields, &parent, 1, memory, &plan),
        status, done);
    if (plan == NULL) goto done; // it was measured
    SPOPS_TRY_GOTO(fill_schedules(ctx, plan, r, workspace), status, done);
    SPOPS_TRY_GOTO(plan->conv.triplets != NULL ? fill_triplets(ctx, call, r, plan->conv.triplets)
                                               : ctx->backend->wait(ctx),
                   status, done);
    *out = plan;

done:
    if (status != SPOPS_STATUS_OK) spops_pointconv_destroy(plan);
    spops_backend_free(ctx, workspace, bytes);
    return status;
}

spops_status spops_pointconv_create(spops_context *ctx, const spops_neighbors *neighbors,
                                    const spops_pointconv_options *given, spops_pointconv **out)
{
    static const char call[] = "pointconv_create";
    spops_pointconv_options options = {0};
    const spops_plan *parent = (const spops_plan *)neighbors;
    spops_tapconv_options common;
    spops_relation relation = {0};
    int64_t fields[NUM_FIELDS] = {0};

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(read_plan_options(ctx, call, given, &options, &common));
    SPOPS_TRY(spops_plan_check(ctx, call, "neighbors", neighbors));
    put_neighbors(neighbors, &relation, fields);
    spops_tapconv_put_options(&common, fields);
    fields[SUMS] = options.sums;
    fields[DETACH] = options.detach;
    fields[COUNTED] = !neighbors->base.refillable;
    SPOPS_TRY(check_contents(ctx, call, fields));
    if (fields[COUNTED])
        return make_counted(ctx, call, neighbors, &relation, fields, options.memory, out);
    return spops_plan_reserve_on(ctx, call, SPOPS_PLAN_POINTCONV, fields, &parent, 1,
                                 options.memory, out);
}

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
                                              const spops_matrix *grad_w, void *grad_bias)
{
    return spops_tapconv_execute_backward(ctx, SPOPS_OP_pointconv_backward,
                                          (const spops_tapconv *)conv, grad_sum, x, w, layer,
                                          grad_x, grad_w, grad_bias);
}
