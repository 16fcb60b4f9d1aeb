// SPDX-License-Identifier: Apache-2.0
// Nearest data points: checks and memory.
#include <string.h>

#include "points/neighbors.h"
#include "call/call_check.h"

// Fields of a description.
enum { NUM_POINTS, NUM_SAMPLES, NUM_FIELDS };

// ---- Life cycle ---------------------------------------------------------------------------------

// Levels of boxes up to one box.
static void plan_levels(spops_nearest_arrays *a)
{
    int64_t number = (a->num_points + SPOPS_NEAREST_LEAF - 1) / SPOPS_NEAREST_LEAF;
    while (number > 0) {
        a->level_begin[a->num_levels + 1] = a->level_begin[a->num_levels] + number;
        ++a->num_levels;
        if (number == 1) return;
        number = (number + SPOPS_NEAREST_FANOUT - 1) / SPOPS_NEAREST_FANOUT;
    }
}

static spops_status read_nearest(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_nearest_arrays *a = &((spops_nearest *)plan)->arrays;

    SPOPS_REQUIRE_SLOT(ctx, call, nearest_build);
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, NUM_POINTS, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, NUM_SAMPLES, 1, SPOPS_MAX_COUNT));
    a->num_points = plan->fields[NUM_POINTS];
    a->num_samples = plan->fields[NUM_SAMPLES];
    plan_levels(a);
    return SPOPS_STATUS_OK;
}

static void carve_nearest(spops_plan *plan, spops_carver *c)
{
    spops_nearest *nearest = (spops_nearest *)plan;
    spops_nearest_arrays *a = &nearest->arrays;
    nearest->state = spops_carve(c, 1, 1, sizeof *nearest->state);
    nearest->no_offsets = spops_carve(c, 2, 1, sizeof *nearest->no_offsets);
    a->points = spops_carve(c, a->num_points, 1, sizeof *a->points);
    a->samples = spops_carve(c, a->num_points, 1, sizeof *a->samples);
    a->boxes = spops_carve(c, a->level_begin[a->num_levels], 1, sizeof *a->boxes);
}

static void carve_workspace(spops_plan *plan, spops_carver *c)
{
    const spops_nearest_build_args args = {.arrays = &((spops_nearest *)plan)->arrays};
    const size_t bytes = plan->ctx->backend->nearest_workspace_bytes(plan->ctx, &args);
    plan->workspace = spops_carve(c, 1, 1, (int64_t)bytes);
}

spops_status spops_nearest_fill(spops_context *ctx, spops_nearest *nearest,
                                const spops_point_cloud *cloud)
{
    const spops_nearest_build_args args = {&nearest->arrays, cloud, nearest->state,
                                           nearest->base.workspace};
    if (nearest->arrays.num_points == 0)
        return ctx->backend->fill_zero(ctx, nearest->state, sizeof *nearest->state);
    return ctx->backend->nearest_build(ctx, &args);
}

// As of a cloud of so many rows that are not in use; the block's own, which are not read.
static spops_status empty_nearest(spops_context *ctx, spops_plan *plan)
{
    spops_nearest *nearest = (spops_nearest *)plan;
    const spops_nearest_arrays *a = &nearest->arrays;
    const spops_point_cloud none = {
        .points = {a->points, a->num_points, 3, sizeof *a->points / sizeof(float), SPOPS_DTYPE_F32},
        .offsets = nearest->no_offsets,
        .num_samples = 1};

    SPOPS_TRY(ctx->backend->fill_zero(ctx, nearest->no_offsets, 2 * sizeof *nearest->no_offsets));
    return spops_nearest_fill(ctx, nearest, &none);
}

static spops_status state_of_nearest(spops_context *ctx, const spops_plan *plan, int64_t *counts)
{
    SPOPS_TRY(spops_neighbors_put_state(ctx, ((const spops_nearest *)plan)->state, counts));
    counts[0] = 0; // there are no outputs
    return SPOPS_STATUS_OK;
}

const spops_plan_ops spops_nearest_plan_ops = {
    .handle_bytes = sizeof(struct spops_nearest),
    .num_fields = NUM_FIELDS,
    .read = read_nearest,
    .carve = carve_nearest,
    .carve_workspace = carve_workspace,
    .empty = empty_nearest,
    .state = state_of_nearest,
};

// ---- Making -------------------------------------------------------------------------------------

spops_status spops_nearest_create(spops_context *ctx, const spops_point_cloud *inputs,
                                  spops_nearest **out)
{
    static const char call[] = "nearest_create";
    spops_status status = SPOPS_STATUS_OK;
    spops_nearest *nearest = NULL;
    spops_neighbors_state state;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_cloud_check(ctx, call, "inputs", inputs));
    SPOPS_TRY(spops_cloud_check_offsets(ctx, call, "inputs", inputs));
    const int64_t fields[NUM_FIELDS] = {inputs->points.rows, spops_cloud_samples(inputs)};
    SPOPS_TRY(spops_plan_open(ctx, call, SPOPS_PLAN_NEAREST, fields, &nearest));
    SPOPS_TRY_GOTO(spops_nearest_fill(ctx, nearest, inputs), status, fail);
    if (inputs->points.rows > 0) {
        SPOPS_TRY_GOTO(ctx->backend->download(ctx, &state, nearest->state, sizeof state), status,
                       fail);
        SPOPS_TRY_GOTO(
            spops_cloud_refuse_row(ctx, call, "inputs", inputs, state.bad_row[SPOPS_SIDE_SOURCE]),
            status, fail);
    }
    spops_plan_close(&nearest->base);
    *out = nearest;
    return SPOPS_STATUS_OK;

fail:
    spops_nearest_destroy(nearest);
    return status;
}

spops_status spops_nearest_reserve(spops_context *ctx, int64_t max_points, int64_t num_samples,
                                   spops_plan_memory *memory, spops_nearest **out)
{
    static const char call[] = "nearest_reserve";
    const int64_t fields[NUM_FIELDS] = {max_points, num_samples};

    SPOPS_BEGIN_CREATE(ctx, call, out);
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_NEAREST, fields, memory, out);
}

spops_status spops_nearest_update(spops_context *ctx, spops_nearest *nearest,
                                  const spops_point_cloud *inputs)
{
    static const char call[] = "nearest_update";

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "nearest", nearest));
    SPOPS_TRY(spops_cloud_check(ctx, call, "inputs", inputs));
    SPOPS_TRY(spops_cloud_check_full(ctx, call, "inputs", inputs, nearest->arrays.num_points,
                                     nearest->arrays.num_samples));
    return spops_nearest_fill(ctx, nearest, inputs);
}

spops_status spops_nearest_execute(spops_context *ctx, const spops_nearest *nearest,
                                   const spops_point_cloud *queries, int32_t count, int32_t *rows,
                                   float *distances2)
{
    static const char call[] = "nearest_execute";
    spops_nearest_args args;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_cloud_check(ctx, call, "queries", queries));
    const int64_t n = queries->points.rows;
    const spops_matrix to = spops_matrix_dense(rows, n, count, SPOPS_DTYPE_I32);
    const spops_matrix d2 = spops_matrix_dense(distances2, n, count, SPOPS_DTYPE_F32);
    const void *const given[] = {&queries->points, queries->offsets, nearest, &to,
                                 distances2 == NULL ? NULL : &d2};
    const spops_call_number attributes[] = {{.i = count}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_nearest, given, attributes));
    SPOPS_REQUIRE(ctx, spops_cloud_samples(queries) == nearest->arrays.num_samples,
                  "%s: queries has %" PRId64 " samples, expected %" PRId64 " as the data points",
                  call, spops_cloud_samples(queries), nearest->arrays.num_samples);
    if (queries->points.rows == 0) return SPOPS_STATUS_OK;
    args = (spops_nearest_args){&nearest->arrays, queries, count, rows, distances2};
    return ctx->backend->nearest_find(ctx, &args);
}
