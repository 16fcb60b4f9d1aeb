// SPDX-License-Identifier: Apache-2.0
// Neighbours within a radius: checks, memory, and the order in which the backend finds them.
#include "points/neighbors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/matrix.h"
#include "igemm/igemm_args.h"

#define MAX_RADIUS_M 1e18f // whose square is finite

// Fields of a description.
enum {
    MAX_OUTPUTS,
    MAX_INPUTS,
    MAX_SAMPLES,
    MAX_PAIRS,
    SAME,
    METRIC,
    TAPS,
    CONTENTS,
    NUM_TAPS,
    RADIUS_M,
    TAP_SIZE_M,
    MAX_NEIGHBORS,
    KEEP,
    SEED,
    NUM_FIELDS
};

// ---- Checks -------------------------------------------------------------------------------------

static const char *const cloud_names[SPOPS_NUM_SIDES] = {"outputs", "inputs"};

// Rows of 3 floats, and offsets, that nothing is to be said of.
static bool is_right(const spops_point_cloud *cloud)
{
    const spops_matrix *p = &cloud->points;
    return p->rows >= 0 && p->rows <= SPOPS_MAX_COUNT && p->dtype == SPOPS_DTYPE_F32 &&
           p->cols == 3 && (p->rows <= 1 || p->row_stride >= 3) &&
           p->row_stride <= SPOPS_MAX_COUNT && (uintptr_t)p->data % sizeof(float) == 0 &&
           (p->data != NULL || p->rows == 0) &&
           (uintptr_t)cloud->offsets % sizeof *cloud->offsets == 0;
}

static spops_status check_rows(spops_context *ctx, const char *call, const char *name,
                               const spops_point_cloud *cloud)
{
    char field[48];
    snprintf(field, sizeof field, "%s->points.rows", name);
    SPOPS_TRY(spops_check_count(ctx, call, field, cloud->points.rows));
    snprintf(field, sizeof field, "%s->points", name);
    SPOPS_TRY(spops_check_matrix(ctx, call, field, cloud->points, cloud->points.rows, 3,
                                 1u << SPOPS_DTYPE_F32));
    if (cloud->offsets == NULL) return SPOPS_STATUS_OK;
    snprintf(field, sizeof field, "%s->offsets", name);
    return spops_check_indices(ctx, call, field, cloud->offsets, 1);
}

spops_status spops_cloud_check(spops_context *ctx, const char *call, const char *name,
                               const spops_point_cloud *cloud)
{
    SPOPS_TRY(spops_check_object(ctx, call, name, cloud, _Alignof(spops_point_cloud)));
    if (!is_right(cloud)) SPOPS_TRY(check_rows(ctx, call, name, cloud));
    if (cloud->offsets == NULL) {
        SPOPS_REQUIRE(ctx, cloud->num_samples == 0,
                      "%s: %s->num_samples is %" PRId64 ", expected 0 as offsets is NULL", call,
                      name, cloud->num_samples);
        return SPOPS_STATUS_OK;
    }
    SPOPS_REQUIRE(ctx, cloud->num_samples >= 1 && cloud->num_samples <= SPOPS_MAX_COUNT,
                  "%s: %s->num_samples is %" PRId64 ", expected 1 to %" PRId64, call, name,
                  cloud->num_samples, SPOPS_MAX_COUNT);
    return SPOPS_STATUS_OK;
}

static spops_status check_clouds(spops_context *ctx, const char *call,
                                 const spops_point_cloud *outputs, const spops_point_cloud *inputs)
{
    SPOPS_TRY(spops_cloud_check(ctx, call, "inputs", inputs));
    if (outputs == NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_cloud_check(ctx, call, "outputs", outputs));
    SPOPS_REQUIRE(ctx, spops_cloud_samples(outputs) == spops_cloud_samples(inputs),
                  "%s: outputs has %" PRId64 " samples, expected %" PRId64 " as inputs has", call,
                  spops_cloud_samples(outputs), spops_cloud_samples(inputs));
    return SPOPS_STATUS_OK;
}

// Offsets as they must be where the host waits anyway: the first that is wrong is named.
spops_status spops_cloud_check_offsets(spops_context *ctx, const char *call, const char *name,
                                       const spops_point_cloud *cloud)
{
    spops_status status = SPOPS_STATUS_OK;
    const int64_t n = cloud->num_samples;
    int32_t *offsets = NULL;

    if (cloud->offsets == NULL) return SPOPS_STATUS_OK;
    offsets = spops_host_alloc(ctx, (size_t)n + 1, sizeof *offsets);
    if (offsets == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    SPOPS_TRY_GOTO(
        ctx->backend->download(ctx, offsets, cloud->offsets, (size_t)(n + 1) * sizeof *offsets),
        status, done);
    if (offsets[0] != 0)
        status = spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                            "%s: %s->offsets[0] is %d, expected 0", call, name, (int)offsets[0]);
    for (int64_t b = 1; b <= n && status == SPOPS_STATUS_OK; ++b)
        if (offsets[b] < offsets[b - 1])
            status = spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                                "%s: %s->offsets[%" PRId64 "] is %d, less than offsets[%" PRId64
                                "] = %d",
                                call, name, b, (int)offsets[b], b - 1, (int)offsets[b - 1]);
    if (status == SPOPS_STATUS_OK && offsets[n] != cloud->points.rows)
        status = spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                            "%s: %s->offsets[%" PRId64 "] is %d, expected the %" PRId64
                            " rows of points",
                            call, name, n, (int)offsets[n], cloud->points.rows);
done:
    spops_host_free(ctx, offsets, (size_t)n + 1, sizeof *offsets);
    return status;
}

// A point that the check found not to be finite.
spops_status spops_cloud_refuse_row(spops_context *ctx, const char *call, const char *name,
                                    const spops_point_cloud *cloud, int32_t row)
{
    float p[3];
    if (row == INT32_MAX) return SPOPS_STATUS_OK;
    SPOPS_TRY(ctx->backend->download(
        ctx, p, (const float *)cloud->points.data + row * cloud->points.row_stride, sizeof p));
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "%s: %s->points[%d] is (%g, %g, %g), expected finite numbers", call, name,
                      (int)row, (double)p[0], (double)p[1], (double)p[2]);
}

// What convolutions run on, forward and backward: lists of the inputs only where matrix kernels take
// them, and the lists of the outputs are not theirs too.
static int32_t contents_for_conv(const spops_context *ctx, bool mirrored)
{
    const spops_igemm_scratch_args any = {0};
    const bool reverse = !mirrored && ctx->info.compute_capability >= 90 &&
                         ctx->backend->igemm_exists != NULL &&
                         ctx->backend->igemm_exists(ctx, &any);
    return SPOPS_NEIGHBORS_BY_TAP | (reverse ? SPOPS_NEIGHBORS_REVERSE : 0);
}

static spops_status read_rule(spops_context *ctx, const char *call, spops_plan *plan,
                              spops_neighbors_arrays *arrays)
{
    const int32_t own = SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE;
    const int32_t all = own | SPOPS_NEIGHBORS_LISTS | SPOPS_NEIGHBORS_FOR_CONV;
    int64_t *fields = plan->fields;
    const double radius_m = spops_plan_double(fields[RADIUS_M]);
    double tap_size_m = spops_plan_double(fields[TAP_SIZE_M]);

    SPOPS_REQUIRE(ctx, radius_m >= 0.0 && radius_m <= (double)MAX_RADIUS_M,
                  "%s: radius_m is %g, expected 0 to %g", call, radius_m, (double)MAX_RADIUS_M);
    SPOPS_TRY(
        spops_plan_check_field(ctx, call, plan, METRIC, SPOPS_METRIC_BALL, SPOPS_METRIC_CHEBYSHEV));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, TAPS, 0, SPOPS_MAX_POINT_TAPS));
    if (fields[TAPS] == 0) fields[TAPS] = 1;
    if (fields[TAPS] == 1) tap_size_m = 1.0;
    SPOPS_REQUIRE(ctx, isfinite(tap_size_m) && tap_size_m > 0.0,
                  "%s: tap_size_m is %g, expected more than 0", call, tap_size_m);
    SPOPS_REQUIRE(ctx, (fields[CONTENTS] & ~(int64_t)all) == 0,
                  "%s: contents is %" PRId64 ", expected 0 to %d", call, fields[CONTENTS],
                  (int)all);
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, MAX_NEIGHBORS, 0, SPOPS_MAX_NEIGHBORS));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, KEEP, SPOPS_NEIGHBORS_KEEP_NEAREST,
                                     SPOPS_NEIGHBORS_KEEP_RANDOM));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, SEED, 0, UINT32_MAX));
    arrays->cap = (spops_neighbor_cap){(int32_t)fields[MAX_NEIGHBORS], (int32_t)fields[KEEP],
                                       (uint32_t)fields[SEED]};
    arrays->mirrored = fields[SAME] != 0 && fields[TAPS] % 2 == 1 && arrays->cap.most == 0;
    fields[TAP_SIZE_M] = spops_plan_bits(tap_size_m);
    arrays->rule.radius = (float)radius_m;
    arrays->rule.radius2 = arrays->rule.radius * arrays->rule.radius;
    arrays->rule.chebyshev = fields[METRIC] == SPOPS_METRIC_CHEBYSHEV;
    arrays->rule.taps = (int32_t)fields[TAPS];
    arrays->rule.tap_size = (float)tap_size_m;
    arrays->num_taps = arrays->rule.taps * arrays->rule.taps * arrays->rule.taps;
    if (fields[CONTENTS] == 0 || (fields[CONTENTS] & SPOPS_NEIGHBORS_FOR_CONV) != 0)
        fields[CONTENTS] |= contents_for_conv(ctx, arrays->mirrored);
    fields[CONTENTS] &= own;
    if (fields[CONTENTS] == 0) fields[CONTENTS] = SPOPS_NEIGHBORS_LISTS;
    arrays->by_tap = (fields[CONTENTS] & SPOPS_NEIGHBORS_BY_TAP) != 0;
    arrays->reverse = (fields[CONTENTS] & SPOPS_NEIGHBORS_REVERSE) != 0;
    return SPOPS_STATUS_OK;
}

// The fields of options and capacities, as they are: they are checked when they are read.
static spops_status fields_of(spops_context *ctx, const char *call,
                              const spops_neighbors_capacity *capacity, int32_t same,
                              const spops_neighbors_options *given, int64_t fields[NUM_FIELDS],
                              spops_plan_memory **memory, int64_t *max_pairs)
{
    spops_neighbors_options o = {0};

    SPOPS_TRY(spops_read_options(ctx, call, given, &o, sizeof o));
    SPOPS_REQUIRE(ctx, o.max_pairs >= 0, "%s: max_pairs is %" PRId64 ", expected 0 or more", call,
                  o.max_pairs);
    fields[MAX_OUTPUTS] = capacity->max_outputs;
    fields[MAX_INPUTS] = capacity->max_inputs;
    fields[MAX_SAMPLES] = capacity->max_samples;
    fields[MAX_PAIRS] = capacity->max_pairs;
    fields[SAME] = same;
    fields[METRIC] = o.metric;
    fields[TAPS] = o.taps;
    fields[CONTENTS] = o.contents;
    fields[NUM_TAPS] = 0;
    fields[RADIUS_M] = spops_plan_bits(o.radius_m);
    fields[TAP_SIZE_M] = spops_plan_bits(o.tap_size_m);
    fields[MAX_NEIGHBORS] = o.max_neighbors;
    fields[KEEP] = o.keep;
    fields[SEED] = o.seed;
    *memory = o.memory;
    *max_pairs = o.max_pairs == 0 || o.max_pairs > SPOPS_MAX_COUNT ? SPOPS_MAX_COUNT : o.max_pairs;
    return SPOPS_STATUS_OK;
}

static spops_status read_neighbors(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_neighbors *n = (spops_neighbors *)plan;
    spops_neighbors_arrays *a = &n->arrays;
    int64_t *fields = plan->fields;

    SPOPS_REQUIRE_SLOT(ctx, call, neighbors_search);
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, SAME, 0, 1));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, MAX_OUTPUTS, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, MAX_INPUTS, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, MAX_SAMPLES, 1, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, MAX_PAIRS, 0, SPOPS_MAX_COUNT));
    SPOPS_REQUIRE(ctx, fields[SAME] == 0 || fields[MAX_OUTPUTS] == 0,
                  "%s: max_outputs is %" PRId64 ", expected 0 as same is 1", call,
                  fields[MAX_OUTPUTS]);
    SPOPS_TRY(read_rule(ctx, call, plan, a));
    a->same = fields[SAME] == 1;
    a->max_samples = fields[MAX_SAMPLES];
    a->max_pairs = fields[MAX_PAIRS];
    a->sides[SPOPS_SIDE_TARGET].max_rows = a->same ? fields[MAX_INPUTS] : fields[MAX_OUTPUTS];
    a->sides[SPOPS_SIDE_SOURCE].max_rows = fields[MAX_INPUTS];
    return spops_plan_derive(ctx, call, plan, NUM_TAPS, a->num_taps);
}

// ---- Memory -------------------------------------------------------------------------------------

static void carve_neighbors(spops_plan *plan, spops_carver *c)
{
    spops_neighbors *n = (spops_neighbors *)plan;
    spops_neighbors_arrays *a = &n->arrays;
    const size_t begin = c->used;
    a->state = spops_carve(c, 1, 1, sizeof *a->state);
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        spops_neighbor_side *s = &a->sides[side];
        s->offsets = NULL;
        if (side == SPOPS_SIDE_SOURCE && !a->reverse) continue;
        s->offsets = spops_carve(c, s->max_rows + 1, 1, sizeof *s->offsets);
    }
    a->tap_offsets = a->by_tap ? spops_carve(c, a->num_taps + 1, 1, sizeof *a->tap_offsets) : NULL;
    n->own = spops_plan_carved(c, begin, &n->own_bytes);
}

static void carve_pairs(spops_plan *plan, spops_carver *c)
{
    spops_neighbors_arrays *a = &((spops_neighbors *)plan)->arrays;
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        spops_neighbor_side *s = &a->sides[side];
        const bool wanted = side == SPOPS_SIDE_TARGET || a->reverse;
        s->rows = wanted ? spops_carve(c, a->max_pairs, 1, sizeof *s->rows) : NULL;
        s->taps = wanted ? spops_carve(c, a->max_pairs, 1, sizeof *s->taps) : NULL;
    }
    a->in_rows = a->by_tap ? spops_carve(c, a->max_pairs, 1, sizeof *a->in_rows) : NULL;
    a->out_rows = a->by_tap ? spops_carve(c, a->max_pairs, 1, sizeof *a->out_rows) : NULL;
}

static void carve_workspace(spops_plan *plan, spops_carver *c)
{
    const spops_neighbors_args args = {.arrays = &((spops_neighbors *)plan)->arrays};
    plan->workspace =
        spops_carve(c, 1, 1, plan->ctx->backend->neighbors_workspace_bytes(plan->ctx, &args));
}

static void show_lists(spops_plan *plan)
{
    spops_neighbors *n = (spops_neighbors *)plan;
    plan->fields[MAX_PAIRS] = n->arrays.max_pairs;
    for (int side = 0; side < SPOPS_NUM_SIDES && n->arrays.state != NULL; ++side) {
        const spops_neighbor_side *s = &n->arrays.sides[side];
        n->lists[side] = (spops_neighbor_lists){.struct_size = sizeof n->lists[side],
                                                .max_rows = s->max_rows,
                                                .num_rows = &n->arrays.state->num_rows[side],
                                                .offsets = s->offsets,
                                                .rows = s->rows,
                                                .taps = s->taps};
    }
}

static spops_status empty_neighbors(spops_context *ctx, spops_plan *plan)
{
    const spops_neighbors *n = (const spops_neighbors *)plan;
    return ctx->backend->fill_zero(ctx, n->own, n->own_bytes);
}

spops_status spops_neighbors_put_state(spops_context *ctx, const spops_neighbors_state *from,
                                       int64_t *counts)
{
    spops_neighbors_state state;
    SPOPS_TRY(ctx->backend->download(ctx, &state, from, sizeof state));
    counts[0] = state.num_rows[SPOPS_SIDE_TARGET];
    counts[1] = state.num_rows[SPOPS_SIDE_SOURCE];
    counts[2] = state.num_pairs;
    counts[3] = state.num_dropped;
    counts[4] = state.overflow;
    counts[5] = state.bad_offsets;
    return SPOPS_STATUS_OK;
}

static spops_status state_of_neighbors(spops_context *ctx, const spops_plan *plan, int64_t *counts)
{
    return spops_neighbors_put_state(ctx, ((const spops_neighbors *)plan)->arrays.state, counts);
}

static void relation_of_neighbors(const spops_plan *plan, spops_relation *r)
{
    const spops_neighbors_arrays *a = &((const spops_neighbors *)plan)->arrays;
    r->num_keys = a->num_taps;
    r->max_terms = a->max_pairs;
    r->symmetric = a->mirrored;
    for (int i = 0; i < SPOPS_NUM_SIDES; ++i) {
        const spops_neighbor_side *side = &a->sides[i];
        r->sides[i] = (spops_relation_side){
            .max_rows = side->max_rows,
            .num_rows = &a->state->num_rows[i],
            .by_row = {side->offsets, side->rows, 1},
            .by_key = {a->tap_offsets, i == SPOPS_SIDE_TARGET ? a->out_rows : a->in_rows, 1},
            .keys = side->taps};
    }
}

const spops_plan_ops spops_neighbors_plan_ops = {
    .handle_bytes = sizeof(struct spops_neighbors),
    .num_fields = NUM_FIELDS,
    .read = read_neighbors,
    .carve = carve_neighbors,
    .carve_late = carve_pairs,
    .carve_workspace = carve_workspace,
    .ready = show_lists,
    .empty = empty_neighbors,
    .state = state_of_neighbors,
    .relation = relation_of_neighbors,
};

// ---- Finding ------------------------------------------------------------------------------------

spops_status spops_neighbors_create(spops_context *ctx, const spops_point_cloud *outputs,
                                    const spops_point_cloud *inputs,
                                    const spops_neighbors_options *options, spops_neighbors **out)
{
    static const char call[] = "neighbors_create";
    const spops_point_cloud *const clouds[SPOPS_NUM_SIDES] = {outputs, inputs};
    spops_status status = SPOPS_STATUS_OK;
    spops_neighbors *n = NULL;
    spops_neighbors_args args;
    spops_neighbors_capacity capacity;
    spops_plan_memory *memory;
    int64_t fields[NUM_FIELDS], max_pairs;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(check_clouds(ctx, call, outputs, inputs));
    for (int c = 0; c < SPOPS_NUM_SIDES; ++c)
        if (clouds[c] != NULL)
            SPOPS_TRY(spops_cloud_check_offsets(ctx, call, cloud_names[c], clouds[c]));
    capacity = (spops_neighbors_capacity){outputs == NULL ? 0 : outputs->points.rows,
                                          inputs->points.rows, spops_cloud_samples(inputs), 0};
    SPOPS_TRY(
        fields_of(ctx, call, &capacity, outputs == NULL, options, fields, &memory, &max_pairs));
    SPOPS_TRY(spops_check_no_memory(ctx, call, memory));
    SPOPS_TRY(spops_plan_open(ctx, call, SPOPS_PLAN_NEIGHBORS, fields, &n));
    args = (spops_neighbors_args){&n->arrays, {outputs, inputs}, n->base.workspace};
    n->arrays.max_pairs = SPOPS_MAX_COUNT;
    SPOPS_TRY_GOTO(ctx->backend->neighbors_search(ctx, &args), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->download(ctx, &n->host, n->arrays.state, sizeof n->host), status,
                   fail);
    for (int c = 0; c < SPOPS_NUM_SIDES; ++c)
        if (clouds[c] != NULL)
            SPOPS_TRY_GOTO(
                spops_cloud_refuse_row(ctx, call, cloud_names[c], clouds[c], n->host.bad_row[c]),
                status, fail);
    if (n->host.num_pairs > max_pairs) {
        status = spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                            "%s: there are %" PRId64 " pairs, expected at most %" PRId64, call,
                            n->host.num_pairs, max_pairs);
        goto fail;
    }
    n->arrays.max_pairs = n->host.num_pairs;
    SPOPS_TRY_GOTO(spops_plan_open_late(ctx, call, &n->base), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->neighbors_fill(ctx, &args), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->wait(ctx), status, fail);
    spops_plan_close(&n->base);
    *out = n;
    return SPOPS_STATUS_OK;

fail:
    spops_neighbors_destroy(n);
    return status;
}

spops_status spops_neighbors_reserve(spops_context *ctx, const spops_neighbors_capacity *capacity,
                                     int32_t same, const spops_neighbors_options *options,
                                     spops_neighbors **out)
{
    static const char call[] = "neighbors_reserve";
    spops_plan_memory *memory;
    int64_t fields[NUM_FIELDS], max_pairs;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(
        spops_check_object(ctx, call, "capacity", capacity, _Alignof(spops_neighbors_capacity)));
    SPOPS_TRY(fields_of(ctx, call, capacity, same, options, fields, &memory, &max_pairs));
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_NEIGHBORS, fields, memory, out);
}

spops_status spops_cloud_check_capacity(spops_context *ctx, const char *call, const char *name,
                                        const spops_point_cloud *cloud, int64_t max_rows,
                                        int64_t max_samples)
{
    SPOPS_REQUIRE(ctx, cloud->points.rows == max_rows,
                  "%s: %s->points.rows is %" PRId64 ", expected the capacity, %" PRId64, call, name,
                  cloud->points.rows, max_rows);
    SPOPS_REQUIRE(ctx, spops_cloud_samples(cloud) <= max_samples,
                  "%s: %s has %" PRId64 " samples, expected at most %" PRId64, call, name,
                  spops_cloud_samples(cloud), max_samples);
    return SPOPS_STATUS_OK;
}

spops_status spops_cloud_check_full(spops_context *ctx, const char *call, const char *name,
                                    const spops_point_cloud *cloud, int64_t num_rows,
                                    int64_t num_samples)
{
    SPOPS_TRY(spops_cloud_check_capacity(ctx, call, name, cloud, num_rows, INT64_MAX));
    SPOPS_REQUIRE(ctx, spops_cloud_samples(cloud) == num_samples,
                  "%s: %s has %" PRId64 " samples, expected %" PRId64, call, name,
                  spops_cloud_samples(cloud), num_samples);
    return SPOPS_STATUS_OK;
}

spops_status spops_neighbors_update(spops_context *ctx, spops_neighbors *neighbors,
                                    const spops_point_cloud *outputs,
                                    const spops_point_cloud *inputs)
{
    static const char call[] = "neighbors_update";
    const spops_neighbors_arrays *a;
    spops_neighbors_args args;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "neighbors", neighbors));
    a = &neighbors->arrays;
    SPOPS_REQUIRE(ctx, (outputs == NULL) == a->same, "%s: outputs is %s, expected %s", call,
                  outputs == NULL ? "NULL" : "given",
                  a->same ? "NULL as they are the inputs" : "a cloud");
    SPOPS_TRY(check_clouds(ctx, call, outputs, inputs));
    SPOPS_TRY(spops_cloud_check_capacity(ctx, call, "inputs", inputs,
                                         a->sides[SPOPS_SIDE_SOURCE].max_rows, a->max_samples));
    if (outputs != NULL)
        SPOPS_TRY(spops_cloud_check_capacity(ctx, call, "outputs", outputs,
                                             a->sides[SPOPS_SIDE_TARGET].max_rows, a->max_samples));
    args = (spops_neighbors_args){a, {outputs, inputs}, neighbors->base.workspace};
    SPOPS_TRY(ctx->backend->neighbors_search(ctx, &args));
    return ctx->backend->neighbors_fill(ctx, &args);
}

// ---- Looking at them ----------------------------------------------------------------------------

spops_status spops_neighbors_get_view(spops_context *ctx, const spops_neighbors *neighbors,
                                      spops_neighbors_view *view)
{
    static const char call[] = "neighbors_get_view";
    spops_neighbors_view found = spops_neighbors_view_default();
    const spops_neighbors_arrays *a;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "neighbors", neighbors));
    a = &neighbors->arrays;
    found.num_taps = a->num_taps;
    found.mirrored = a->mirrored;
    found.max_pairs = a->max_pairs;
    found.out = &neighbors->lists[SPOPS_SIDE_TARGET];
    found.in = &neighbors->lists[SPOPS_SIDE_SOURCE];
    found.tap_offsets = a->tap_offsets;
    found.in_rows = a->in_rows;
    found.out_rows = a->out_rows;
    return spops_write_struct(ctx, call, "view", view, &found, sizeof found);
}

spops_status spops_neighbors_get_info_sync(spops_context *ctx, const spops_neighbors *neighbors,
                                           spops_neighbors_info *info)
{
    static const char call[] = "neighbors_get_info_sync";
    spops_neighbors_info found = spops_neighbors_info_default();
    spops_neighbors_state state;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_sync(ctx, call, "neighbors", neighbors));
    SPOPS_TRY(ctx->backend->download(ctx, &state, neighbors->arrays.state, sizeof state));
    found.num_outputs = state.num_rows[SPOPS_SIDE_TARGET];
    found.num_inputs = state.num_rows[SPOPS_SIDE_SOURCE];
    found.num_pairs = state.num_pairs;
    found.max_pairs = neighbors->arrays.max_pairs;
    found.num_dropped = state.num_dropped;
    found.overflow = state.overflow;
    found.bad_offsets = state.bad_offsets;
    SPOPS_TRY(spops_write_struct(ctx, call, "info", info, &found, sizeof found));
    if (state.overflow == 0) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_CAPACITY_EXCEEDED,
                      "%s: there are %" PRId64 " pairs, room for %" PRId64, call, found.num_pairs,
                      found.max_pairs);
}
