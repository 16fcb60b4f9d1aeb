// SPDX-License-Identifier: Apache-2.0
// Point convolution: checks, the choice of a dataflow, and what each is composed of.
#include "spops/pointconv.h"

#include <string.h>

#include "points/neighbors.h"
#include "core/check.h"
#include "core/plan.h"
#include "core/matrix.h"
#include "igemm/igemm_args.h"
#include "pointconv/point_gemm_args.h"
#include "segments/segments.h"
#include "sparseconv/layer.h"

#define DEFAULT_MAX_CHANNELS 256

enum { SIDE_OUT, SIDE_IN, NUM_SIDES };

// Fields of a description.
enum {
    NUM_OUT,
    NUM_IN,
    NUM_TAPS,
    MAX_IN_CHANNELS,
    MAX_OUT_CHANNELS,
    DATAFLOW,
    BACKWARD,
    NUM_FIELDS
};

struct spops_pointconv {
    spops_plan base;
    spops_neighbors_view view; // whose addresses stay; out and in are `lists`
    spops_neighbor_lists lists[NUM_SIDES];
    bool refillable;
    int32_t taps;            // along an axis
    spops_dataflow dataflow; // as asked for
    bool backward;
    int64_t max_in_channels, max_out_channels;
    spops_triplets *triplets; // FETCH_ON_DEMAND; NULL: IMPLICIT_GEMM alone

    int32_t variant; // of IMPLICIT_GEMM
    bool has_gemm;   // its schedules are there, that of SIDE_IN with backward unless mirrored
    spops_point_schedule schedules[NUM_SIDES];
    void *blocks[NUM_SIDES];
    size_t block_bytes[NUM_SIDES];
    void *workspace; // of making them again; NULL where the neighbours were not made by reserve
    size_t workspace_bytes;
    size_t gemm_scratch_bytes;
};

// ---- Schedules of IMPLICIT_GEMM -----------------------------------------------------------------

static bool needs_side(const spops_pointconv *conv, int side)
{
    return side == SIDE_OUT || (conv->backward && !conv->view.mirrored);
}

static void carve_tiles(spops_point_schedule *s, spops_carver *c)
{
    s->totals = spops_carve(c, 1, 1, sizeof *s->totals);
    s->tiles = spops_carve(c, s->max_tiles, 4, sizeof *s->tiles);
    s->out_rows = spops_carve(c, s->max_tiles, SPOPS_POINT_TILE_ROWS, sizeof *s->out_rows);
    if (s->has_units) s->unit_offsets = spops_carve(c, s->num_taps + 1, 1, sizeof(int32_t));
}

static void carve_records(spops_point_schedule *s, spops_carver *c)
{
    s->records = spops_carve(c, s->max_records, SPOPS_POINT_RECORD_INTS, sizeof *s->records);
    s->sums = spops_carve(c, s->max_sums, 4, sizeof *s->sums);
    if (s->has_members) s->members = spops_carve(c, s->max_members, 1, sizeof *s->members);
    if (s->has_units) s->units = spops_carve(c, s->max_units, 2, sizeof *s->units);
}

static spops_point_schedule_args schedule_args(const spops_pointconv *conv, int side,
                                               void *workspace)
{
    const spops_neighbor_lists *lists = &conv->lists[side];
    const spops_point_schedule_args args = {.schedule = &conv->schedules[side],
                                            .taps = conv->taps,
                                            .num_rows = lists->num_rows,
                                            .offsets = lists->offsets,
                                            .rows = lists->rows,
                                            .row_taps = lists->taps,
                                            .workspace = workspace};
    return args;
}

static spops_status alloc_workspace(spops_context *ctx, spops_pointconv *conv)
{
    for (int side = 0; side < NUM_SIDES; ++side) {
        const spops_point_schedule_args args = schedule_args(conv, side, NULL);
        size_t bytes;
        if (!needs_side(conv, side)) continue;
        bytes = ctx->backend->point_schedule_bytes(ctx, &args);
        if (bytes > conv->workspace_bytes) conv->workspace_bytes = bytes;
    }
    return spops_backend_alloc(ctx, conv->workspace_bytes, &conv->workspace);
}

// Memory of a schedule, and its first filling: made to measure, or for the capacity.
static spops_status make_schedule(spops_context *ctx, const char *call, spops_pointconv *conv,
                                  int side)
{
    const bool refillable = conv->refillable;
    spops_point_schedule *s = &conv->schedules[side];
    const spops_point_schedule_args args = schedule_args(conv, side, conv->workspace);
    spops_status status = SPOPS_STATUS_OK;
    spops_carver c = {NULL, 0};
    spops_point_totals totals;
    void *tiles = NULL;
    size_t tiles_bytes = 0;

    s->max_records = s->max_tiles * s->num_taps;
    s->max_sums = s->sums_rows ? conv->view.max_pairs / 2 : 0;
    s->max_units = s->max_records * SPOPS_POINT_GROUPS;
    s->members = conv->lists[side].rows;
    if (!refillable) { // count in a block of its own, which then moves into the right one
        s->max_records = s->max_sums = s->max_members = s->max_units = SPOPS_MAX_COUNT;
        carve_tiles(s, &c);
        SPOPS_TRY(spops_backend_alloc(ctx, c.used, &tiles));
        tiles_bytes = c.used;
        c = (spops_carver){tiles, 0};
        carve_tiles(s, &c);
        SPOPS_TRY_GOTO(ctx->backend->point_schedule_count(ctx, &args), status, done);
        SPOPS_TRY_GOTO(ctx->backend->download(ctx, &totals, s->totals, sizeof totals), status,
                       done);
        if (totals.overflow) {
            status = spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                                "%s: neighbors give more work than an index can count", call);
            goto done;
        }
        s->max_records = totals.num_records;
        s->max_sums = totals.num_sums;
        s->max_members = totals.num_members;
        s->max_units = totals.num_units;
    }
    c = (spops_carver){NULL, 0};
    carve_tiles(s, &c);
    carve_records(s, &c);
    SPOPS_TRY_GOTO(spops_backend_alloc(ctx, c.used, &conv->blocks[side]), status, done);
    conv->block_bytes[side] = c.used;
    c = (spops_carver){conv->blocks[side], 0};
    carve_tiles(s, &c);
    carve_records(s, &c);
    if (!refillable) {
        SPOPS_TRY_GOTO(ctx->backend->point_schedule_count(ctx, &args), status, done);
        SPOPS_TRY_GOTO(ctx->backend->point_schedule_fill(ctx, &args), status, done);
    }
done:
    spops_backend_free(ctx, tiles, tiles_bytes);
    return status;
}

static spops_status prepare_kernels(spops_context *ctx, const spops_pointconv *conv)
{
    const bool units = conv->schedules[SIDE_OUT].has_units;
    const spops_igemm_prepare_args gradients = {.gradients = conv->backward && !units,
                                                .units = units};
    const spops_point_gemm_args products = {.variant = conv->variant};
    SPOPS_TRY(SPOPS_PREPARE(ctx, igemm_prepare, &gradients));
    return SPOPS_PREPARE(ctx, point_gemm_prepare, &products);
}

// Whether the plan can have IMPLICIT_GEMM. If it was asked for by name, no is a failure.
static spops_status plan_gemm(spops_context *ctx, const char *call, spops_pointconv *conv,
                              const spops_pointconv_options *options)
{
    const bool sums_rows = options->sums != SPOPS_POINTCONV_SUMS_NONE;
    const bool forced = conv->dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM;
    const spops_igemm_scratch_args scratch = {conv->view.num_taps, conv->max_in_channels,
                                              conv->max_out_channels, true, 0};
    const spops_point_gemm_args wanted = {.variant = options->variant};
    const spops_point_gemm_args any = {0};
    spops_status status = SPOPS_STATUS_OK;

    if (conv->dataflow == SPOPS_DATAFLOW_FETCH_ON_DEMAND) return SPOPS_STATUS_OK;
    if (ctx->backend->point_gemm_choose == NULL ||
        ctx->backend->point_gemm_choose(ctx, &any) == 0) {
        if (!forced) return SPOPS_STATUS_OK;
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "%s: the %s backend has no %s%s", call,
                          ctx->backend->name, spops_dataflow_name(conv->dataflow),
                          ctx->backend->kind == SPOPS_BACKEND_CPU ? "" : " for this device");
    }
    conv->variant = ctx->backend->point_gemm_choose(ctx, &wanted);
    SPOPS_REQUIRE(ctx, conv->variant > 0, "%s: options->variant is %d, expected that of a kernel",
                  call, (int)options->variant);
    if (needs_side(conv, SIDE_IN) && conv->view.in->offsets == NULL) {
        if (!forced) return SPOPS_STATUS_OK;
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: neighbors were made without SPOPS_NEIGHBORS_REVERSE, expected it "
                          "for gradients by %s",
                          call, spops_dataflow_name(conv->dataflow));
    }
    SPOPS_REQUIRE(ctx, sums_rows || !conv->refillable,
                  "%s: options->sums is SPOPS_POINTCONV_SUMS_NONE, expected another for neighbors "
                  "made by reserve",
                  call);
    for (int side = 0; side < NUM_SIDES; ++side) {
        spops_point_schedule *s = &conv->schedules[side];
        s->num_taps = conv->view.num_taps;
        s->sums_rows = sums_rows;
        s->has_members = options->detach != 0;
        s->has_units = side == SIDE_OUT && conv->backward && conv->view.tap_offsets == NULL;
        s->max_rows = conv->lists[side].max_rows;
        s->max_tiles = (s->max_rows + SPOPS_POINT_TILE_ROWS - 1) / SPOPS_POINT_TILE_ROWS;
    }
    SPOPS_TRY(alloc_workspace(ctx, conv));
    for (int side = 0; side < NUM_SIDES && status == SPOPS_STATUS_OK; ++side)
        if (needs_side(conv, side)) status = make_schedule(ctx, call, conv, side);
    if (status == SPOPS_STATUS_OK) status = ctx->backend->wait(ctx);
    if (!conv->refillable || status != SPOPS_STATUS_OK) {
        spops_backend_free(ctx, conv->workspace, conv->workspace_bytes);
        conv->workspace = NULL;
        conv->workspace_bytes = 0;
    }
    SPOPS_TRY(status);
    SPOPS_TRY(prepare_kernels(ctx, conv));
    conv->has_gemm = true;
    if (conv->backward) conv->gemm_scratch_bytes = ctx->backend->igemm_scratch_bytes(ctx, &scratch);
    return spops_context_reserve(ctx, conv->gemm_scratch_bytes);
}

// ---- Plans --------------------------------------------------------------------------------------

static spops_status read_plan_options(spops_context *ctx, const char *call,
                                      const spops_pointconv_options *given,
                                      spops_pointconv_options *o)
{
    SPOPS_TRY(spops_read_options(ctx, call, given, o, sizeof *o));
    SPOPS_TRY(spops_check_reserved(ctx, call, o->reserved));
    SPOPS_REQUIRE(ctx, o->backward == 0 || o->backward == 1,
                  "%s: options->backward is %d, expected 0 or 1", call, (int)o->backward);
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
    SPOPS_TRY(spops_check_count(ctx, call, "options->max_in_channels", o->max_in_channels));
    SPOPS_TRY(spops_check_count(ctx, call, "options->max_out_channels", o->max_out_channels));
    if (o->max_in_channels == 0) o->max_in_channels = DEFAULT_MAX_CHANNELS;
    if (o->max_out_channels == 0) o->max_out_channels = DEFAULT_MAX_CHANNELS;
    SPOPS_REQUIRE(ctx, o->max_in_channels <= SPOPS_MAX_COUNT / o->max_out_channels,
                  "%s: options->max_in_channels is %" PRId64 " and max_out_channels %" PRId64
                  ", expected a product of at most %" PRId64,
                  call, o->max_in_channels, o->max_out_channels, SPOPS_MAX_COUNT);
    return SPOPS_STATUS_OK;
}

static spops_status plan_triplets(spops_context *ctx, spops_pointconv *conv)
{
    const spops_triplets_shape shape = {conv->view.out->max_rows, conv->view.in->max_rows,
                                        conv->view.num_taps, conv->view.max_pairs};
    spops_triplets_options options = spops_triplets_options_default();
    options.backward = conv->backward;
    options.max_matrix_elements = conv->max_in_channels * conv->max_out_channels;
    return spops_triplets_reserve(ctx, &shape, &options, &conv->triplets);
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

// A plan that is made no longer needs its neighbours; of their lists it keeps how long they are.
static void detach(spops_pointconv *conv)
{
    conv->view.in_rows = conv->view.out_rows = NULL;
    for (int side = 0; side < NUM_SIDES; ++side)
        conv->lists[side] = (spops_neighbor_lists){.max_rows = conv->lists[side].max_rows};
}

spops_status spops_pointconv_create(spops_context *ctx, const spops_neighbors *neighbors,
                                    const spops_pointconv_options *given, spops_pointconv **out)
{
    static const char call[] = "pointconv_create";
    spops_pointconv_options options = {0};
    spops_status status = SPOPS_STATUS_OK;
    spops_pointconv *conv = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(read_plan_options(ctx, call, given, &options));
    SPOPS_TRY(spops_neighbors_check(ctx, call, "neighbors", neighbors));
    SPOPS_TRY(check_contents(ctx, call, &options, neighbors));
    conv = spops_plan_alloc(ctx, SPOPS_PLAN_POINTCONV);
    if (conv == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    conv->backward = options.backward != 0;
    conv->dataflow = options.dataflow;
    conv->max_in_channels = options.max_in_channels;
    conv->max_out_channels = options.max_out_channels;
    conv->view = spops_neighbors_view_default();
    SPOPS_TRY_GOTO(spops_neighbors_get_view(ctx, neighbors, &conv->view), status, fail);
    conv->lists[SIDE_OUT] = *conv->view.out;
    conv->lists[SIDE_IN] = *conv->view.in;
    conv->view.out = &conv->lists[SIDE_OUT];
    conv->view.in = &conv->lists[SIDE_IN];
    conv->base.parents[0] = &neighbors->base;
    conv->base.fields[NUM_OUT] = conv->view.out->max_rows;
    conv->base.fields[NUM_IN] = conv->view.in->max_rows;
    conv->base.fields[NUM_TAPS] = conv->view.num_taps;
    conv->base.fields[MAX_IN_CHANNELS] = conv->max_in_channels;
    conv->base.fields[MAX_OUT_CHANNELS] = conv->max_out_channels;
    conv->base.fields[DATAFLOW] = conv->dataflow;
    conv->base.fields[BACKWARD] = conv->backward;
    conv->refillable = neighbors->base.refillable;
    conv->taps = neighbors->arrays.rule.taps;
    if (options.detach) conv->view.tap_offsets = NULL; // those by tap go with the neighbours
    SPOPS_TRY_GOTO(plan_gemm(ctx, call, conv, &options), status, fail);
    if (options.variant != 0 && !conv->has_gemm) {
        status = spops_fail(
            ctx, SPOPS_STATUS_NOT_SUPPORTED, "%s: options->variant is %d, which needs %s", call,
            (int)options.variant, spops_dataflow_name(SPOPS_DATAFLOW_IMPLICIT_GEMM));
        goto fail;
    }
    if (options.sums == SPOPS_POINTCONV_SUMS_FIRST && !conv->has_gemm) {
        status = spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                            "%s: options->sums is SPOPS_POINTCONV_SUMS_FIRST, which needs %s", call,
                            spops_dataflow_name(SPOPS_DATAFLOW_IMPLICIT_GEMM));
        goto fail;
    }
    if (conv->dataflow != SPOPS_DATAFLOW_IMPLICIT_GEMM)
        SPOPS_TRY_GOTO(plan_triplets(ctx, conv), status, fail);
    if (neighbors->base.refillable || conv->triplets != NULL)
        SPOPS_TRY_GOTO(spops_pointconv_set(ctx, conv), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->wait(ctx), status, fail);
    if (options.detach) detach(conv);
    *out = conv;
    return SPOPS_STATUS_OK;

fail:
    spops_pointconv_destroy(conv);
    return status;
}

static spops_status check_plan(spops_context *ctx, const char *call, const spops_pointconv *conv)
{
    SPOPS_REQUIRE(ctx, conv != NULL, "%s: conv is NULL", call);
    return spops_check_home(ctx, call, "conv", conv->base.ctx);
}

spops_status spops_pointconv_set(spops_context *ctx, spops_pointconv *conv)
{
    static const char call[] = "pointconv_set";

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(check_plan(ctx, call, conv));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    for (int side = 0; conv->has_gemm && conv->refillable && side < NUM_SIDES; ++side) {
        const spops_point_schedule_args args = schedule_args(conv, side, conv->workspace);
        if (!needs_side(conv, side)) continue;
        SPOPS_TRY(ctx->backend->point_schedule_count(ctx, &args));
        SPOPS_TRY(ctx->backend->point_schedule_fill(ctx, &args));
    }
    if (conv->triplets == NULL) return SPOPS_STATUS_OK;
    return spops_triplets_set_offsets(ctx, conv->triplets, conv->view.tap_offsets,
                                      conv->view.out_rows, conv->view.in_rows);
}

spops_pointconv_sums spops_pointconv_get_sums(const spops_pointconv *conv)
{
    return conv != NULL && conv->has_gemm && conv->schedules[SIDE_OUT].sums_rows
               ? SPOPS_POINTCONV_SUMS_FIRST
               : SPOPS_POINTCONV_SUMS_NONE;
}

int32_t spops_pointconv_get_variant(const spops_pointconv *conv)
{
    return conv != NULL && conv->has_gemm ? conv->variant : 0;
}

size_t spops_pointconv_scratch_bytes(const spops_pointconv *conv)
{
    size_t bytes;
    if (conv == NULL) return 0;
    bytes = conv->triplets == NULL ? 0 : spops_triplets_scratch_bytes(conv->triplets);
    return bytes > conv->gemm_scratch_bytes ? bytes : conv->gemm_scratch_bytes;
}

size_t spops_pointconv_bytes(const spops_pointconv *conv)
{
    size_t bytes;
    if (conv == NULL) return 0;
    bytes = sizeof *conv + conv->workspace_bytes;
    for (int side = 0; side < NUM_SIDES; ++side)
        bytes += conv->block_bytes[side];
    return conv->triplets == NULL ? bytes : bytes + spops_triplets_bytes(conv->triplets);
}

static void destroy_pointconv(spops_plan *plan)
{
    spops_pointconv *conv = (spops_pointconv *)plan;
    (void)plan->ctx->backend->wait(plan->ctx);
    spops_triplets_destroy(conv->triplets);
    for (int side = 0; side < NUM_SIDES; ++side)
        spops_backend_free(plan->ctx, conv->blocks[side], conv->block_bytes[side]);
    spops_backend_free(plan->ctx, conv->workspace, conv->workspace_bytes);
}

static size_t bytes_of_pointconv(const spops_plan *plan)
{
    const spops_pointconv *conv = (const spops_pointconv *)plan;
    return spops_pointconv_bytes(conv) - sizeof *conv;
}

static size_t scratch_of_pointconv(const spops_plan *plan)
{
    const spops_pointconv *conv = (const spops_pointconv *)plan;
    return spops_pointconv_scratch_bytes(conv);
}

const spops_plan_ops spops_pointconv_plan_ops = {.handle_bytes = sizeof(struct spops_pointconv),
                                                 .num_fields = NUM_FIELDS,
                                                 .destroy = destroy_pointconv,
                                                 .bytes = bytes_of_pointconv,
                                                 .scratch_bytes = scratch_of_pointconv};

// ---- Layers -------------------------------------------------------------------------------------

static spops_layer_limits limits_of(const spops_pointconv *conv)
{
    return (spops_layer_limits){conv->view.num_taps, conv->view.in->max_rows,
                                conv->view.out->max_rows, conv->max_in_channels,
                                conv->max_out_channels};
}

// What IMPLICIT_GEMM would be called with, without the epilogue.
static spops_point_gemm_args gemm_args_of(const spops_pointconv *conv, int side, spops_matrix x,
                                          spops_matrix w, spops_matrix out)
{
    const bool mirrored = side == SIDE_IN && conv->view.mirrored;
    const int from = mirrored ? SIDE_OUT : side;
    const spops_point_gemm_args args = {.schedule = &conv->schedules[from],
                                        .x = x,
                                        .w = w,
                                        .out = out,
                                        .w_transposed = side == SIDE_IN,
                                        .mirrored = mirrored,
                                        .variant = conv->variant};
    return args;
}

static bool may_use_gemm(const spops_pointconv *conv, const spops_layer_shape *shape)
{
    return conv->has_gemm && shape->groups == 1 && shape->in_channels <= conv->max_in_channels &&
           shape->out_channels <= conv->max_out_channels;
}

static spops_igemm_wgrad_args wgrad_args_of(const spops_pointconv *conv, spops_matrix x,
                                            spops_matrix g, spops_matrix dw)
{
    const spops_point_schedule *s = &conv->schedules[SIDE_OUT];
    spops_igemm_wgrad_args args = {.num_taps = conv->view.num_taps,
                                   .max_pairs = conv->view.max_pairs,
                                   .tap_offsets = conv->view.tap_offsets,
                                   .in_rows = conv->view.in_rows,
                                   .out_rows = conv->view.out_rows,
                                   .x = x,
                                   .g = g,
                                   .dw = dw};
    if (s->has_units)
        args.units = (spops_igemm_units){s->unit_offsets, s->units, s->records,
                                         s->out_rows,     s->sums,  s->members};
    return args;
}

// Whether IMPLICIT_GEMM serves a pass.
static bool gemm_serves(const spops_pointconv *conv, const spops_layer_shape *shape,
                        spops_conv_pass pass, spops_matrix x, spops_matrix w, spops_matrix y)
{
    const spops_context *ctx = conv->base.ctx;
    spops_point_gemm_args args;
    if (!may_use_gemm(conv, shape)) return false;
    if (pass == SPOPS_PASS_GRAD_W) {
        const spops_igemm_wgrad_args wgrad = wgrad_args_of(conv, x, y, w);
        return ctx->backend->igemm_wgrad_fits(ctx, &wgrad);
    }
    args = pass == SPOPS_PASS_FORWARD ? gemm_args_of(conv, SIDE_OUT, x, w, y)
                                      : gemm_args_of(conv, SIDE_IN, y, w, x);
    return ctx->backend->point_gemm_fits(ctx, &args);
}

spops_dataflow spops_pointconv_dataflow(const spops_pointconv *conv, spops_conv_pass pass,
                                        spops_dtype dtype, int64_t in_channels,
                                        int64_t out_channels, const spops_conv_layer *layer)
{
    const spops_layer_shape shape = {in_channels, out_channels,
                                     layer == NULL || layer->groups == 0 ? 1 : layer->groups};

    if (conv == NULL || !spops_layer_can_be(pass, dtype, &shape)) return SPOPS_DATAFLOW_AUTO;
    if (pass != SPOPS_PASS_FORWARD && !conv->backward) return SPOPS_DATAFLOW_AUTO;
    if (gemm_serves(conv, &shape, pass,
                    spops_matrix_dense(NULL, conv->view.in->max_rows, in_channels, dtype),
                    spops_matrix_dense(NULL, 0, out_channels, dtype),
                    spops_matrix_dense(NULL, conv->view.out->max_rows, out_channels, dtype)))
        return SPOPS_DATAFLOW_IMPLICIT_GEMM;
    return conv->triplets == NULL ? SPOPS_DATAFLOW_AUTO : SPOPS_DATAFLOW_FETCH_ON_DEMAND;
}

static spops_status refuse_forced(spops_context *ctx, const char *call, const spops_pointconv *conv)
{
    if (conv->triplets != NULL) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                      "%s: conv was made for %s, which does not serve this call (groups, dtype, "
                      "channels, or rows not aligned to 16 bytes)",
                      call, spops_dataflow_name(conv->dataflow));
}

spops_status spops_pointconv_execute(spops_context *ctx, const spops_pointconv *conv,
                                     spops_matrix x, spops_matrix w, const spops_conv_layer *given,
                                     spops_matrix out)
{
    static const char call[] = "pointconv_execute";
    spops_conv_layer layer = {0};
    spops_mvmr_options options;
    spops_layer_shape shape;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(check_plan(ctx, call, conv));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(spops_layer_read(ctx, call, given, &layer));
    const spops_layer_limits limits = limits_of(conv);
    SPOPS_TRY(spops_layer_check(ctx, call, &limits, &layer, x, w, out, &shape));
    if (gemm_serves(conv, &shape, SPOPS_PASS_FORWARD, x, w, out)) {
        spops_point_gemm_args args = gemm_args_of(conv, SIDE_OUT, x, w, out);
        if (layer.residual != NULL) args.residual = *layer.residual;
        args.bias = layer.bias;
        args.scale = layer.scale;
        args.shift = layer.shift;
        args.relu = layer.activation == SPOPS_ACTIVATION_RELU;
        return ctx->backend->point_gemm(ctx, &args);
    }
    SPOPS_TRY(refuse_forced(ctx, call, conv));
    if (out.rows == 0) return SPOPS_STATUS_OK;
    options = spops_layer_mvmr_options(&shape, layer.math);
    options.num_rows = conv->view.out->num_rows;
    SPOPS_TRY(spops_mvmr_execute(ctx, conv->triplets, x, w, NULL, &options, out));
    return spops_layer_finish(ctx, &layer, options.num_rows, out);
}

spops_status spops_pointconv_execute_backward(spops_context *ctx, const spops_pointconv *conv,
                                              spops_matrix grad_sum, spops_matrix x, spops_matrix w,
                                              const spops_conv_layer *given,
                                              const spops_matrix *grad_x,
                                              const spops_matrix *grad_w)
{
    static const char call[] = "pointconv_execute_backward";
    spops_conv_layer layer = {0};
    bool gemm_x = false, gemm_w = false;
    spops_mvmr_options options;
    void *scratch = NULL;
    spops_layer_shape shape;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(check_plan(ctx, call, conv));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_REQUIRE(ctx, conv->backward,
                  "%s: conv was made without gradients, expected options->backward = 1", call);
    SPOPS_TRY(spops_layer_read(ctx, call, given, &layer));
    const spops_layer_limits limits = limits_of(conv);
    SPOPS_TRY(spops_layer_check_backward(ctx, call, &limits, layer.groups, grad_sum, x, w, grad_x,
                                         grad_w, &shape));
    if (grad_x != NULL) gemm_x = gemm_serves(conv, &shape, SPOPS_PASS_GRAD_X, *grad_x, w, grad_sum);
    if (grad_w != NULL) gemm_w = gemm_serves(conv, &shape, SPOPS_PASS_GRAD_W, x, *grad_w, grad_sum);
    if ((grad_x != NULL && !gemm_x) || (grad_w != NULL && !gemm_w))
        SPOPS_TRY(refuse_forced(ctx, call, conv));
    if (conv->triplets == NULL || gemm_x || gemm_w)
        SPOPS_TRY(spops_context_scratch(ctx, call, spops_pointconv_scratch_bytes(conv), &scratch));
    if (gemm_x) {
        const spops_point_gemm_args args = gemm_args_of(conv, SIDE_IN, grad_sum, w, *grad_x);
        SPOPS_TRY(ctx->backend->point_gemm(ctx, &args));
        grad_x = NULL;
    }
    if (gemm_w) {
        spops_igemm_wgrad_args args = wgrad_args_of(conv, x, grad_sum, *grad_w);
        args.scratch = scratch;
        SPOPS_TRY(ctx->backend->igemm_wgrad(ctx, &args));
        grad_w = NULL;
    }
    if (grad_x == NULL && grad_w == NULL) return SPOPS_STATUS_OK;
    options = spops_layer_mvmr_options(&shape, layer.math);
    options.num_rows = conv->view.in->num_rows;
    return spops_mvmr_execute_backward(ctx, conv->triplets, grad_sum, x, w, NULL, &options, grad_x,
                                       grad_w, NULL);
}
