// SPDX-License-Identifier: Apache-2.0
// Nearest data points: checks and memory.
#include <string.h>

#include "points/neighbors.h"
#include "call/call_check.h"

// Fields of a description.
enum { NUM_POINTS, NUM_SAMPLES, NUM_FIELDS };

static void carve_block(spops_nearest_arrays *a, spops_carver *c)
{
    const int64_t num_boxes = a->level_begin[a->num_levels];
    a->points = spops_carve(c, a->num_points, 1, sizeof *a->points);
    a->samples = spops_carve(c, a->num_points, 1, sizeof *a->samples);
    a->boxes = spops_carve(c, num_boxes, 1, sizeof *a->boxes);
}

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

static spops_status build(spops_context *ctx, const char *call, const spops_point_cloud *inputs,
                          spops_nearest *nearest)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_nearest_build_args args = {.arrays = &nearest->arrays, .cloud = inputs};
    spops_carver carver = {NULL, 0};
    spops_neighbors_state state;
    const size_t workspace_bytes = ctx->backend->nearest_workspace_bytes(ctx, &args);
    void *workspace = NULL;

    carve_block(&nearest->arrays, &carver);
    SPOPS_TRY(spops_backend_alloc(ctx, carver.used, &nearest->base.block));
    nearest->base.block_bytes = carver.used;
    carver = (spops_carver){nearest->base.block, 0};
    carve_block(&nearest->arrays, &carver);
    carver = (spops_carver){NULL, 0};
    (void)spops_carve(&carver, 1, 1, sizeof state);
    (void)spops_carve(&carver, 1, 1, workspace_bytes);
    SPOPS_TRY(spops_backend_alloc(ctx, carver.used, &workspace));
    const size_t bytes = carver.used;
    carver = (spops_carver){workspace, 0};
    args.state = spops_carve(&carver, 1, 1, sizeof state);
    args.workspace = spops_carve(&carver, 1, 1, workspace_bytes);
    SPOPS_TRY_GOTO(ctx->backend->nearest_build(ctx, &args), status, done);
    SPOPS_TRY_GOTO(ctx->backend->download(ctx, &state, args.state, sizeof state), status, done);
    status = spops_cloud_refuse_row(ctx, call, "inputs", inputs, state.bad_row[SPOPS_CLOUD_IN]);

done:
    spops_backend_free(ctx, workspace, bytes);
    return status;
}

spops_status spops_nearest_create(spops_context *ctx, const spops_point_cloud *inputs,
                                  spops_nearest **out)
{
    static const char call[] = "nearest_create";
    spops_status status = SPOPS_STATUS_OK;
    spops_nearest *nearest = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_REQUIRE_SLOT(ctx, call, nearest_build);
    SPOPS_TRY(spops_cloud_check(ctx, call, "inputs", inputs));
    SPOPS_TRY(spops_cloud_check_offsets(ctx, call, "inputs", inputs));
    nearest = spops_plan_alloc(ctx, SPOPS_PLAN_NEAREST);
    if (nearest == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    nearest->arrays.num_points = inputs->points.rows;
    nearest->arrays.num_samples = spops_cloud_samples(inputs);
    nearest->base.fields[NUM_POINTS] = nearest->arrays.num_points;
    nearest->base.fields[NUM_SAMPLES] = nearest->arrays.num_samples;
    plan_levels(&nearest->arrays);
    if (nearest->arrays.num_points > 0)
        SPOPS_TRY_GOTO(build(ctx, call, inputs, nearest), status, fail);
    *out = nearest;
    return SPOPS_STATUS_OK;

fail:
    spops_nearest_destroy(nearest);
    return status;
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

const spops_plan_ops spops_nearest_plan_ops = {.handle_bytes = sizeof(struct spops_nearest),
                                               .num_fields = NUM_FIELDS};
