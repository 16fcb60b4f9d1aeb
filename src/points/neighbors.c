// SPDX-License-Identifier: Apache-2.0
// Neighbours within a radius: checks, memory, and the order in which the backend finds them.
#include "points/neighbors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/matrix.h"

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
    NUM_FIELDS
};

// ---- Checks -------------------------------------------------------------------------------------

static const char *const cloud_names[SPOPS_NUM_CLOUDS] = {"outputs", "inputs"};

spops_status spops_cloud_check(spops_context *ctx, const char *call, const char *name,
                               const spops_point_cloud *cloud)
{
    char field[48];
    SPOPS_TRY(spops_check_object(ctx, call, name, cloud, _Alignof(spops_point_cloud)));
    snprintf(field, sizeof field, "%s->points.rows", name);
    SPOPS_TRY(spops_check_count(ctx, call, field, cloud->points.rows));
    snprintf(field, sizeof field, "%s->points", name);
    SPOPS_TRY(spops_check_matrix(ctx, call, field, cloud->points, cloud->points.rows, 3,
                                 1u << SPOPS_DTYPE_F32));
    if (cloud->offsets == NULL) {
        SPOPS_REQUIRE(ctx, cloud->num_samples == 0,
                      "%s: %s->num_samples is %" PRId64 ", expected 0 as offsets is NULL", call,
                      name, cloud->num_samples);
        return SPOPS_STATUS_OK;
    }
    SPOPS_REQUIRE(ctx, cloud->num_samples >= 1 && cloud->num_samples <= SPOPS_MAX_COUNT,
                  "%s: %s->num_samples is %" PRId64 ", expected 1 to %" PRId64, call, name,
                  cloud->num_samples, SPOPS_MAX_COUNT);
    snprintf(field, sizeof field, "%s->offsets", name);
    return spops_check_indices(ctx, call, field, cloud->offsets, cloud->num_samples + 1);
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

static spops_status read_options(spops_context *ctx, const char *call,
                                 const spops_neighbors_options *given,
                                 spops_neighbors_arrays *arrays)
{
    const int32_t all = SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE;
    spops_neighbors_options o;

    memset(&o, 0, sizeof o);
    SPOPS_TRY(spops_read_options(ctx, call, given, &o, sizeof o));
    SPOPS_REQUIRE(ctx, o.radius_m >= 0.0f && o.radius_m <= MAX_RADIUS_M,
                  "%s: radius_m is %g, expected 0 to %g", call, (double)o.radius_m,
                  (double)MAX_RADIUS_M);
    SPOPS_REQUIRE(ctx, o.metric == SPOPS_METRIC_BALL || o.metric == SPOPS_METRIC_CHEBYSHEV,
                  "%s: metric is %d, expected %d or %d", call, (int)o.metric,
                  (int)SPOPS_METRIC_BALL, (int)SPOPS_METRIC_CHEBYSHEV);
    SPOPS_REQUIRE(ctx, o.taps >= 0 && o.taps <= SPOPS_MAX_POINT_TAPS,
                  "%s: taps is %d, expected 0 to %d", call, (int)o.taps, SPOPS_MAX_POINT_TAPS);
    if (o.taps == 0) o.taps = 1;
    SPOPS_REQUIRE(ctx, o.taps == 1 || (isfinite(o.tap_size_m) && o.tap_size_m > 0.0f),
                  "%s: tap_size_m is %g, expected more than 0", call, (double)o.tap_size_m);
    SPOPS_REQUIRE(ctx, (o.contents & ~all) == 0, "%s: contents is %d, expected 0 to %d", call,
                  (int)o.contents, (int)all);
    arrays->rule.radius = o.radius_m;
    arrays->rule.radius2 = o.radius_m * o.radius_m;
    arrays->rule.chebyshev = o.metric == SPOPS_METRIC_CHEBYSHEV;
    arrays->rule.taps = o.taps;
    arrays->rule.tap_size = o.taps == 1 ? 1.0f : o.tap_size_m;
    arrays->num_taps = o.taps * o.taps * o.taps;
    arrays->by_tap = (o.contents & SPOPS_NEIGHBORS_BY_TAP) != 0;
    arrays->reverse = (o.contents & SPOPS_NEIGHBORS_REVERSE) != 0;
    return SPOPS_STATUS_OK;
}

spops_status spops_neighbors_check(spops_context *ctx, const char *call, const char *name,
                                   const spops_neighbors *neighbors)
{
    SPOPS_REQUIRE(ctx, neighbors != NULL, "%s: %s is NULL", call, name);
    return spops_check_home(ctx, call, name, neighbors->base.ctx);
}

// ---- Memory -------------------------------------------------------------------------------------

static void carve_block(spops_neighbors_arrays *a, spops_carver *c)
{
    a->state = spops_carve(c, 1, 1, sizeof *a->state);
    for (int side = 0; side < SPOPS_NUM_CLOUDS; ++side) {
        spops_neighbor_side *s = &a->sides[side];
        s->offsets = NULL;
        if (side == SPOPS_CLOUD_IN && !a->reverse) continue;
        s->offsets = spops_carve(c, s->max_rows + 1, 1, sizeof *s->offsets);
    }
    a->tap_offsets = a->by_tap ? spops_carve(c, a->num_taps + 1, 1, sizeof *a->tap_offsets) : NULL;
}

static void carve_pairs(spops_neighbors_arrays *a, spops_carver *c)
{
    for (int side = 0; side < SPOPS_NUM_CLOUDS; ++side) {
        spops_neighbor_side *s = &a->sides[side];
        const bool wanted = side == SPOPS_CLOUD_OUT || a->reverse;
        s->rows = wanted ? spops_carve(c, a->max_pairs, 1, sizeof *s->rows) : NULL;
        s->taps = wanted ? spops_carve(c, a->max_pairs, 1, sizeof *s->taps) : NULL;
    }
    a->in_rows = a->by_tap ? spops_carve(c, a->max_pairs, 1, sizeof *a->in_rows) : NULL;
    a->out_rows = a->by_tap ? spops_carve(c, a->max_pairs, 1, sizeof *a->out_rows) : NULL;
}

static spops_status alloc_carved(spops_context *ctx, spops_neighbors_arrays *a,
                                 void (*carve)(spops_neighbors_arrays *, spops_carver *),
                                 void **block, size_t *bytes)
{
    spops_carver carver = {NULL, 0};
    carve(a, &carver);
    SPOPS_TRY(spops_backend_alloc(ctx, carver.used, block));
    *bytes = carver.used;
    carver = (spops_carver){*block, 0};
    carve(a, &carver);
    return SPOPS_STATUS_OK;
}

static spops_status alloc_workspace(spops_context *ctx, spops_neighbors *n)
{
    const spops_neighbors_args args = {.arrays = &n->arrays};
    const size_t bytes = ctx->backend->neighbors_workspace_bytes(ctx, &args);
    SPOPS_TRY(spops_backend_alloc(ctx, bytes, &n->base.workspace));
    n->base.workspace_bytes = bytes;
    return SPOPS_STATUS_OK;
}

static spops_status alloc_neighbors(spops_context *ctx, const char *call, int64_t max_outputs,
                                    int64_t max_inputs, int64_t max_samples, bool same,
                                    const spops_neighbors_options *options, spops_neighbors **out)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_neighbors *n = NULL;

    SPOPS_REQUIRE_SLOT(ctx, call, neighbors_search);
    n = spops_plan_alloc(ctx, SPOPS_PLAN_NEIGHBORS);
    if (n == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    n->arrays.same = same;
    n->arrays.max_samples = max_samples;
    n->arrays.sides[SPOPS_CLOUD_OUT].max_rows = same ? max_inputs : max_outputs;
    n->arrays.sides[SPOPS_CLOUD_IN].max_rows = max_inputs;
    SPOPS_TRY_GOTO(read_options(ctx, call, options, &n->arrays), status, fail);
    SPOPS_TRY_GOTO(alloc_carved(ctx, &n->arrays, carve_block, &n->base.block, &n->base.block_bytes),
                   status, fail);
    SPOPS_TRY_GOTO(alloc_workspace(ctx, n), status, fail);
    *out = n;
    return SPOPS_STATUS_OK;

fail:
    spops_neighbors_destroy(n);
    return status;
}

static void put_fields(spops_neighbors *n)
{
    const spops_neighbors_arrays *a = &n->arrays;
    int64_t *fields = n->base.fields;
    fields[MAX_OUTPUTS] = a->sides[SPOPS_CLOUD_OUT].max_rows;
    fields[MAX_INPUTS] = a->sides[SPOPS_CLOUD_IN].max_rows;
    fields[MAX_SAMPLES] = a->max_samples;
    fields[MAX_PAIRS] = a->max_pairs;
    fields[SAME] = a->same;
    fields[METRIC] = a->rule.chebyshev ? SPOPS_METRIC_CHEBYSHEV : SPOPS_METRIC_BALL;
    fields[TAPS] = a->rule.taps;
    fields[CONTENTS] =
        (a->by_tap ? SPOPS_NEIGHBORS_BY_TAP : 0) | (a->reverse ? SPOPS_NEIGHBORS_REVERSE : 0);
    fields[NUM_TAPS] = a->num_taps;
    fields[RADIUS_M] = spops_plan_bits(a->rule.radius);
    fields[TAP_SIZE_M] = spops_plan_bits(a->rule.tap_size);
}

static void show_lists(spops_neighbors *n)
{
    put_fields(n);
    for (int side = 0; side < SPOPS_NUM_CLOUDS; ++side) {
        const spops_neighbor_side *s = &n->arrays.sides[side];
        n->lists[side] = (spops_neighbor_lists){.struct_size = sizeof n->lists[side],
                                                .max_rows = s->max_rows,
                                                .num_rows = &n->arrays.state->num_rows[side],
                                                .offsets = s->offsets,
                                                .rows = s->rows,
                                                .taps = s->taps};
    }
}

static void destroy_neighbors(spops_plan *plan)
{
    spops_neighbors *n = (spops_neighbors *)plan;
    if (n->pairs != NULL) (void)plan->ctx->backend->wait(plan->ctx);
    spops_backend_free(plan->ctx, n->pairs, n->pairs_bytes);
}

static size_t bytes_of_neighbors(const spops_plan *plan)
{
    const spops_neighbors *n = (const spops_neighbors *)plan;
    return n->pairs_bytes;
}

const spops_plan_ops spops_neighbors_plan_ops = {.handle_bytes = sizeof(struct spops_neighbors),
                                                 .num_fields = NUM_FIELDS,
                                                 .destroy = destroy_neighbors,
                                                 .bytes = bytes_of_neighbors};

// ---- Finding ------------------------------------------------------------------------------------

spops_status spops_neighbors_create(spops_context *ctx, const spops_point_cloud *outputs,
                                    const spops_point_cloud *inputs,
                                    const spops_neighbors_options *options, spops_neighbors **out)
{
    static const char call[] = "neighbors_create";
    const spops_point_cloud *const clouds[SPOPS_NUM_CLOUDS] = {outputs, inputs};
    spops_status status = SPOPS_STATUS_OK;
    spops_neighbors *n = NULL;
    spops_neighbors_args args;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(check_clouds(ctx, call, outputs, inputs));
    for (int c = 0; c < SPOPS_NUM_CLOUDS; ++c)
        if (clouds[c] != NULL)
            SPOPS_TRY(spops_cloud_check_offsets(ctx, call, cloud_names[c], clouds[c]));
    SPOPS_TRY(alloc_neighbors(ctx, call, outputs == NULL ? 0 : outputs->points.rows,
                              inputs->points.rows, spops_cloud_samples(inputs), outputs == NULL,
                              options, &n));
    args = (spops_neighbors_args){&n->arrays, {outputs, inputs}, n->base.workspace};
    n->arrays.max_pairs = SPOPS_MAX_COUNT;
    SPOPS_TRY_GOTO(ctx->backend->neighbors_search(ctx, &args), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->download(ctx, &n->host, n->arrays.state, sizeof n->host), status,
                   fail);
    for (int c = 0; c < SPOPS_NUM_CLOUDS; ++c)
        if (clouds[c] != NULL)
            SPOPS_TRY_GOTO(
                spops_cloud_refuse_row(ctx, call, cloud_names[c], clouds[c], n->host.bad_row[c]),
                status, fail);
    if (n->host.num_pairs > SPOPS_MAX_COUNT) {
        status = spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                            "%s: there are %" PRId64 " pairs, expected at most %" PRId64, call,
                            n->host.num_pairs, SPOPS_MAX_COUNT);
        goto fail;
    }
    n->arrays.max_pairs = n->host.num_pairs;
    SPOPS_TRY_GOTO(alloc_carved(ctx, &n->arrays, carve_pairs, &n->pairs, &n->pairs_bytes), status,
                   fail);
    SPOPS_TRY_GOTO(ctx->backend->neighbors_fill(ctx, &args), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->wait(ctx), status, fail);
    spops_backend_free(ctx, n->base.workspace, n->base.workspace_bytes);
    n->base.workspace = NULL;
    n->base.workspace_bytes = 0;
    show_lists(n);
    *out = n;
    return SPOPS_STATUS_OK;

fail:
    spops_neighbors_destroy(n);
    return status;
}

spops_status spops_neighbors_reserve(spops_context *ctx, const spops_neighbors_shape *shape,
                                     int32_t same, const spops_neighbors_options *options,
                                     spops_neighbors **out)
{
    static const char call[] = "neighbors_reserve";
    spops_status status = SPOPS_STATUS_OK;
    spops_neighbors *n = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_check_object(ctx, call, "shape", shape, _Alignof(spops_neighbors_shape)));
    SPOPS_REQUIRE(ctx, same == 0 || same == 1, "%s: same is %d, expected 0 or 1", call, (int)same);
    SPOPS_TRY(spops_check_count(ctx, call, "shape->max_outputs", shape->max_outputs));
    SPOPS_TRY(spops_check_count(ctx, call, "shape->max_inputs", shape->max_inputs));
    SPOPS_TRY(spops_check_count(ctx, call, "shape->max_samples", shape->max_samples));
    SPOPS_TRY(spops_check_count(ctx, call, "shape->max_pairs", shape->max_pairs));
    SPOPS_REQUIRE(ctx, shape->max_samples >= 1, "%s: shape->max_samples is 0, expected 1 or more",
                  call);
    SPOPS_REQUIRE(ctx, same == 0 || shape->max_outputs == 0,
                  "%s: shape->max_outputs is %" PRId64 ", expected 0 as same is 1", call,
                  shape->max_outputs);
    SPOPS_TRY(alloc_neighbors(ctx, call, shape->max_outputs, shape->max_inputs, shape->max_samples,
                              same == 1, options, &n));
    n->base.refillable = true;
    n->arrays.max_pairs = shape->max_pairs;
    SPOPS_TRY_GOTO(alloc_carved(ctx, &n->arrays, carve_pairs, &n->pairs, &n->pairs_bytes), status,
                   fail);
    SPOPS_TRY_GOTO(ctx->backend->fill_zero(ctx, n->base.block, n->base.block_bytes), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->wait(ctx), status, fail);
    show_lists(n);
    *out = n;
    return SPOPS_STATUS_OK;

fail:
    spops_neighbors_destroy(n);
    return status;
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

spops_status spops_neighbors_set(spops_context *ctx, spops_neighbors *neighbors,
                                 const spops_point_cloud *outputs, const spops_point_cloud *inputs)
{
    static const char call[] = "neighbors_set";
    const spops_neighbors_arrays *a;
    spops_neighbors_args args;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_neighbors_check(ctx, call, "neighbors", neighbors));
    SPOPS_REQUIRE(ctx, neighbors->base.refillable,
                  "%s: the neighbours were not made by neighbors_reserve", call);
    a = &neighbors->arrays;
    SPOPS_REQUIRE(ctx, (outputs == NULL) == a->same, "%s: outputs is %s, expected %s", call,
                  outputs == NULL ? "NULL" : "given",
                  a->same ? "NULL as they are the inputs" : "a cloud");
    SPOPS_TRY(check_clouds(ctx, call, outputs, inputs));
    SPOPS_TRY(spops_cloud_check_capacity(ctx, call, "inputs", inputs,
                                         a->sides[SPOPS_CLOUD_IN].max_rows, a->max_samples));
    if (outputs != NULL)
        SPOPS_TRY(spops_cloud_check_capacity(ctx, call, "outputs", outputs,
                                             a->sides[SPOPS_CLOUD_OUT].max_rows, a->max_samples));
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

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_neighbors_check(ctx, call, "neighbors", neighbors));
    a = &neighbors->arrays;
    found.num_taps = a->num_taps;
    found.mirrored = a->same && a->rule.taps % 2 == 1;
    found.max_pairs = a->max_pairs;
    found.out = &neighbors->lists[SPOPS_CLOUD_OUT];
    found.in = &neighbors->lists[SPOPS_CLOUD_IN];
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

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_neighbors_check(ctx, call, "neighbors", neighbors));
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_TRY(ctx->backend->download(ctx, &state, neighbors->arrays.state, sizeof state));
    found.num_outputs = state.num_rows[SPOPS_CLOUD_OUT];
    found.num_inputs = state.num_rows[SPOPS_CLOUD_IN];
    found.num_pairs = state.num_pairs;
    found.max_pairs = neighbors->arrays.max_pairs;
    found.num_dropped = state.num_dropped;
    found.overflow = state.overflow;
    found.bad_offsets = state.bad_offsets;
    found.bytes = (int64_t)(sizeof *neighbors + neighbors->base.block_bytes +
                            neighbors->pairs_bytes + neighbors->base.workspace_bytes);
    SPOPS_TRY(spops_write_struct(ctx, call, "info", info, &found, sizeof found));
    if (state.overflow == 0) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_CAPACITY_EXCEEDED,
                      "%s: there are %" PRId64 " pairs, room for %" PRId64, call, found.num_pairs,
                      found.max_pairs);
}
