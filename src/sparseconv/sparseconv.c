// SPDX-License-Identifier: Apache-2.0
// Sparse convolution: convolution by taps (tapconv/tapconv.h) whose relation is a kernel map.
#include "spops/sparseconv.h"

#include <string.h>

#include "maps/kernel_maps.h"
#include "igemm/igemm_plan.h"
#include "tapconv/quantized_layer.h"
#include "tapconv/tapconv.h"
#include "tuning/choices.h"

struct spops_sparseconv {
    spops_tapconv conv;
    const spops_map_arrays *map;          // whose addresses stay
    int32_t *workspaces[SPOPS_NUM_SIDES]; // of making schedules
};

// Fields of a description, after those of all convolutions: what the map is.
enum { OUT_ORDER = SPOPS_TAPCONV_NUM_FIELDS, IN_ORDER, NUM_FIELDS };

// ---- Schedules of IMPLICIT_GEMM -----------------------------------------------------------------

enum { MAX_SCHEDULES = SPOPS_NUM_SIDES }; // of a plan

static void carve_schedule(spops_sparseconv *plan, int side, spops_carver *c)
{
    spops_igemm_schedule *s = &plan->conv.schedules[side];

    spops_igemm_carve_tiles(s, c);
    spops_igemm_carve_records(s, c);
    if (s->num_taps <= 32) spops_igemm_carve_pairs(s, c);
    plan->workspaces[side] =
        spops_carve(c, SPOPS_IGEMM_WORKSPACE(s->max_tiles), 1, sizeof(int32_t));
}

// On average; 0: the relation has room for all taps, or no pairs.
static int32_t known_taps_a_row(const spops_relation *r, int side)
{
    const int64_t rows = r->sides[side].max_rows;
    return rows == 0 || r->max_terms >= rows * r->num_keys ? 0 : (int32_t)(r->max_terms / rows);
}

// Whether the plan can have IMPLICIT_GEMM. If it was asked for by name, no is a failure.
static spops_status size_schedules(spops_context *ctx, const char *call, spops_sparseconv *plan)
{
    spops_tapconv *conv = &plan->conv;
    const int64_t *fields = conv->base.fields;
    bool wants;

    SPOPS_TRY(spops_tapconv_wants_igemm(ctx, call, conv, &wants));
    if (!wants) return SPOPS_STATUS_OK;
    if (conv->weights_only) { // which read the pairs alone
        spops_tapconv_size_igemm(ctx, conv);
        return SPOPS_STATUS_OK;
    }
    if (fields[OUT_ORDER] == 0)
        return spops_tapconv_lacks(ctx, call, conv, "map was made without SPOPS_MAP_ORDER");
    if (spops_tapconv_has_side(conv, SPOPS_SIDE_SOURCE) && fields[IN_ORDER] == 0)
        return spops_tapconv_lacks(ctx, call, conv, "map was made without SPOPS_MAP_REVERSE");
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        spops_igemm_schedule *s = &conv->schedules[side];
        if (!spops_tapconv_has_side(conv, side)) continue;
        s->num_taps = (int32_t)conv->relation.num_keys;
        s->max_tiles = spops_igemm_tiles_of(conv->relation.sides[side].max_rows);
        s->max_records = s->max_tiles * s->num_taps;
        s->taps_a_row = known_taps_a_row(&conv->relation, side);
    }
    spops_tapconv_size_igemm(ctx, conv);
    return SPOPS_STATUS_OK;
}

static void carve_sparseconv(spops_plan *base, spops_carver *c)
{
    spops_sparseconv *plan = (spops_sparseconv *)base;
    for (int side = 0; plan->conv.has_igemm && side < SPOPS_NUM_SIDES; ++side)
        if (spops_tapconv_has_side(&plan->conv, side)) carve_schedule(plan, side, c);
}

// What a plan's schedules are made from; returns how many there are.
static int32_t schedules_of(const spops_sparseconv *plan,
                            spops_igemm_schedule_args args[MAX_SCHEDULES])
{
    int32_t n = 0;

    for (int side = 0; plan->conv.has_igemm && side < SPOPS_NUM_SIDES; ++side) {
        const spops_map_side *of = side == SPOPS_SIDE_TARGET ? &plan->map->out : &plan->map->in;
        if (!spops_tapconv_has_side(&plan->conv, side)) continue;
        args[n++] = (spops_igemm_schedule_args){
            .schedule = &plan->conv.schedules[side],
            .side = &plan->conv.relation.sides[side],
            .mask_words = plan->map->mask_words,
            .masks = of->masks,
            .order = of->order,
            .tile_masks = plan->map->tile_rows == SPOPS_IGEMM_TILE_ROWS ? of->tile_masks : NULL,
            .workspace = plan->workspaces[side]};
    }
    return n;
}

static spops_status make_schedules(spops_context *ctx, const spops_igemm_schedule_args *args,
                                   int32_t num)
{
    const spops_igemm_schedules_args all = {num, args};
    return num == 0 ? SPOPS_STATUS_OK : ctx->backend->igemm_schedule(ctx, &all);
}

// ---- Plans --------------------------------------------------------------------------------------

static spops_status read_plan_options(spops_context *ctx, const char *call,
                                      const spops_sparseconv_options *given,
                                      spops_sparseconv_options *options,
                                      spops_tapconv_options *common)
{
    SPOPS_TRY(spops_read_options(ctx, call, given, options, sizeof *options));
    const bool weights_only = options->backward == 2;
    *common = (spops_tapconv_options){weights_only ? 1 : options->backward,
                                      options->quantized,
                                      options->dataflow,
                                      options->max_in_channels,
                                      options->max_out_channels,
                                      options->tile,
                                      options->crop_independent,
                                      weights_only};
    SPOPS_TRY(spops_check_reserved(ctx, call, options->reserved));
    SPOPS_TRY(spops_tapconv_check_options(ctx, call, common));
    SPOPS_REQUIRE(ctx, (unsigned)options->dataflow <= SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER,
                  "%s: options->dataflow is %d, expected 0 to %d", call, (int)options->dataflow,
                  SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER);
    SPOPS_REQUIRE(ctx, (unsigned)options->grouping <= SPOPS_GROUPING_ADAPTIVE,
                  "%s: options->grouping is %d, expected 0 to %d", call, (int)options->grouping,
                  SPOPS_GROUPING_ADAPTIVE);
    SPOPS_REQUIRE(ctx, options->epsilon >= 0.0 && options->epsilon <= 1.0,
                  "%s: options->epsilon is %g, expected 0 to 1", call, options->epsilon);
    SPOPS_REQUIRE(
        ctx,
        options->memory == NULL ||
            (options->num_tuning == 0 && options->dataflow != SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER),
        "%s: options->memory is given, expected NULL with a tuning, and for %s", call,
        spops_dataflow_name(SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER));
    SPOPS_REQUIRE(ctx, options->batch_rows >= 0,
                  "%s: options->batch_rows is %" PRId64 ", expected 0 or more", call,
                  options->batch_rows);
    SPOPS_REQUIRE(ctx, !options->crop_independent || options->num_tuning == 0,
                  "%s: options->crop_independent is 1, expected 0 with a tuning", call);
    return spops_sparseconv_check_choices(ctx, call, "options->tuning", options->tuning,
                                          "options->num_tuning", options->num_tuning);
}

// The map is there, where ctx runs, and has pairs where the plan needs them.
static spops_status check_map(spops_context *ctx, const char *call, const spops_kernel_map *map,
                              bool needs_pairs)
{
    SPOPS_REQUIRE(ctx, map != NULL, "%s: map is NULL", call);
    SPOPS_TRY(spops_plan_check(ctx, call, "map", map));
    SPOPS_REQUIRE(ctx, !needs_pairs || (map->contents & SPOPS_MAP_PAIRS) != 0,
                  "%s: map has no pairs, expected one made with SPOPS_MAP_PAIRS", call);
    return SPOPS_STATUS_OK;
}

static spops_status read_sparseconv(spops_context *ctx, const char *call, spops_plan *base)
{
    spops_sparseconv *plan = (spops_sparseconv *)base;
    spops_tapconv *conv = &plan->conv;

    SPOPS_TRY(spops_tapconv_read(ctx, call, conv, SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER));
    for (int32_t i = OUT_ORDER; i <= IN_ORDER; ++i)
        SPOPS_TRY(spops_plan_check_field(ctx, call, base, i, 0, 1));
    // Its buffers are sized by counts that no description has.
    base->shares = conv->dataflow == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER;
    if (spops_dataflow_needs_pairs(ctx, conv->dataflow, conv->backward))
        SPOPS_TRY(spops_tapconv_read_triplets(ctx, conv));
    SPOPS_TRY(size_schedules(ctx, call, plan));
    return spops_tapconv_check_tile(ctx, call, conv);
}

// Whether a side has an order, which contents bring. An order of no rows is NULL.
static bool has_order(const spops_kernel_map *map, const spops_map_side *side, int32_t contents)
{
    return side->order != NULL || (side->max_rows == 0 && (map->contents & contents) == contents);
}

// What the map is, as fields. A submanifold has both sides in one table where it has REVERSE.
static void put_map(const spops_kernel_map *map, spops_relation *r, int64_t fields[NUM_FIELDS])
{
    map->base.ops->relation(&map->base, r);
    spops_tapconv_put_relation(r, r->symmetric && r->sides[SPOPS_SIDE_SOURCE].table != NULL,
                               fields);
    fields[OUT_ORDER] = has_order(map, &map->arrays.out, SPOPS_MAP_ORDER);
    fields[IN_ORDER] = has_order(map, &map->arrays.in, SPOPS_MAP_ORDER | SPOPS_MAP_REVERSE);
}

static spops_status bind_sparseconv(spops_context *ctx, const char *call, spops_plan *base)
{
    spops_sparseconv *plan = (spops_sparseconv *)base;
    const spops_kernel_map *map = (const spops_kernel_map *)base->parents[0];
    int64_t found[NUM_FIELDS];

    memcpy(found, base->fields, sizeof found);
    put_map(map, &plan->conv.relation, found);
    for (int32_t i = 0; i < NUM_FIELDS; ++i)
        SPOPS_TRY(spops_plan_check_parent(ctx, call, base, i, "map", found[i]));
    plan->map = &map->arrays;
    return SPOPS_STATUS_OK;
}

// All schedules in as few launches as there can be.
static spops_status update_sparseconvs(spops_context *ctx, spops_plan *const *plans, int32_t num)
{
    enum { AT_ONCE = 16 * MAX_SCHEDULES };
    spops_igemm_schedule_args args[AT_ONCE];
    int32_t n = 0;

    for (int32_t i = 0; i < num; ++i) {
        n += schedules_of((const spops_sparseconv *)plans[i], args + n);
        if (n + MAX_SCHEDULES <= AT_ONCE && i + 1 < num) continue;
        SPOPS_TRY(make_schedules(ctx, args, n));
        n = 0;
    }
    for (int32_t i = 0; i < num; ++i)
        SPOPS_TRY(spops_tapconv_set_triplets(ctx, (spops_tapconv *)plans[i]));
    return SPOPS_STATUS_OK;
}

static spops_status empty_sparseconv(spops_context *ctx, spops_plan *base)
{
    return update_sparseconvs(ctx, &base, 1);
}

static spops_status plan_choice(spops_context *ctx, const char *call, const spops_kernel_map *map,
                                const spops_sparseconv_options *options, spops_tapconv *conv)
{
    const spops_tap_grouping grouping = {options->grouping, options->epsilon, options->batch_rows};

    conv->choice = (spops_dataflow_choice){.relation = &conv->relation,
                                           .refillable = map->base.refillable,
                                           .max_in_channels = conv->max_in_channels,
                                           .max_out_channels = conv->max_out_channels,
                                           .named = conv->dataflow,
                                           .backward = conv->backward,
                                           .has_igemm = conv->has_igemm};
    return spops_dataflow_choice_make(ctx, call, &grouping, options->tuning, options->num_tuning,
                                      &conv->choice);
}

spops_status spops_sparseconv_create(spops_context *ctx, const spops_kernel_map *map,
                                     const spops_sparseconv_options *given, spops_sparseconv **out)
{
    static const char call[] = "sparseconv_create";
    spops_sparseconv_options options = {0};
    spops_tapconv_options common;
    const spops_plan *parent = (const spops_plan *)map;
    int64_t fields[NUM_FIELDS] = {0};
    spops_status status = SPOPS_STATUS_OK;
    spops_sparseconv *plan = NULL;
    spops_relation relation = {0};

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(read_plan_options(ctx, call, given, &options, &common));
    SPOPS_TRY(check_map(ctx, call, map,
                        options.dataflow != SPOPS_DATAFLOW_IMPLICIT_GEMM || options.backward));
    put_map(map, &relation, fields);
    spops_tapconv_put_options(&common, fields);
    SPOPS_TRY(spops_plan_reserve_on(ctx, call, SPOPS_PLAN_SPARSECONV, fields, &parent, 1,
                                    options.memory, &plan));
    if (plan == NULL) return SPOPS_STATUS_OK; // it was measured
    SPOPS_TRY_GOTO(plan_choice(ctx, call, map, &options, &plan->conv), status, fail);
    plan->conv.base.shares = plan->conv.choice.max_layouts > 0; // rows and buffers are no block's
    SPOPS_TRY_GOTO(spops_context_reserve(ctx, spops_sparseconv_scratch_bytes(plan)), status, fail);
    *out = plan;
    return SPOPS_STATUS_OK;

fail:
    spops_sparseconv_destroy(plan);
    return status;
}

const spops_plan_ops spops_sparseconv_plan_ops = {
    .handle_bytes = sizeof(struct spops_sparseconv),
    .num_fields = NUM_FIELDS,
    .read = read_sparseconv,
    .bind = bind_sparseconv,
    .carve = carve_sparseconv,
    .prepare = spops_tapconv_prepare,
    .empty = empty_sparseconv,
    .update = update_sparseconvs,
    .state = spops_tapconv_state,
    .relation = spops_relation_of_part,
    .destroy = spops_tapconv_destroy,
    .bytes = spops_tapconv_bytes,
    .scratch_bytes = spops_tapconv_scratch_bytes,
};

// ---- Calls --------------------------------------------------------------------------------------

spops_status spops_sparseconv_get_choice(spops_context *ctx, const spops_sparseconv *conv,
                                         spops_conv_pass pass, spops_dtype dtype,
                                         int64_t in_channels, int64_t out_channels,
                                         const spops_conv_layer *layer, spops_conv_choice *choice)
{
    return spops_tapconv_get_choice(ctx, "sparseconv_get_choice", (const spops_tapconv *)conv, pass,
                                    dtype, in_channels, out_channels, layer, choice);
}

spops_status spops_sparseconv_execute(spops_context *ctx, const spops_sparseconv *conv,
                                      spops_matrix x, spops_matrix w, const spops_conv_layer *layer,
                                      spops_matrix out)
{
    return spops_tapconv_execute(ctx, SPOPS_OP_sparseconv, (const spops_tapconv *)conv, x, w, layer,
                                 out);
}

spops_status spops_sparseconv_execute_quantized(spops_context *ctx, const spops_sparseconv *conv,
                                                spops_matrix x, spops_matrix w,
                                                const spops_quantized_layer *layer,
                                                spops_matrix out)
{
    return spops_tapconv_execute_quantized(ctx, SPOPS_OP_sparseconv_quantized,
                                           (const spops_tapconv *)conv, x, w, layer, out);
}

spops_status spops_sparseconv_execute_backward(spops_context *ctx, const spops_sparseconv *conv,
                                               spops_matrix grad_sum, spops_matrix x,
                                               spops_matrix w, const spops_conv_layer *layer,
                                               const spops_matrix *grad_x,
                                               const spops_matrix *grad_w, void *grad_bias)
{
    return spops_tapconv_execute_backward(ctx, SPOPS_OP_sparseconv_backward,
                                          (const spops_tapconv *)conv, grad_sum, x, w, layer,
                                          grad_x, grad_w, grad_bias);
}
