// SPDX-License-Identifier: Apache-2.0
// Plans in the caller's memory: one of each kind is reserved into a block, filled and run; a copy of
// the block is attached on another context, run, filled and run again, also in a captured graph.
// Every run gives the bits of a plan that the library allocated. Blocks that are too small or
// misaligned are refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend.h"
#include "core/context.h"
#include "core/plan.h"
#include "igemm/igemm_args.h"
#include "support/device.h"
#include "tests/support/bev_cases.h"
#include "tests/support/params.h"

enum {
    COLS = 8,
    NUM_KEYS = 300,
    NUM_SEGMENTS = 40,
    NUM_POINTS = 200,
    MAX_VOXELS = 150,
    NUM_OUT = 1 << 14,
    NUM_MATRICES = 3,
    NUM_SAMPLES = 2,
    MAX_INTS = 512
};

typedef struct block {
    void *allocated;
    void *memory; // [bytes] and more behind it, to be misaligned in
    size_t bytes;
} block;

// What plans stand on: filled, in a block, and attached to a copy of that on another context.
enum { NO_PARENT, SET_PARENT, MAP_PARENT, NEIGHBORS_PARENT, NUM_PARENTS };
typedef struct parent {
    spops_plan *here, *elsewhere;
    block first, copy;
} parent;

// What every kind is filled from and run on, where the device is.
typedef struct fixture {
    test_device d;
    int32_t *keys, *num_keys, *idx, *rows, *num_rows, *num_points, *samples;
    double *transforms;
    float *x, *points;
    void *halves; // [28 * COLS][COLS] f16
    int32_t *out; // [NUM_OUT] what a run gives
    bev_geometry_case rig;
    spops_kernel_map *probe; // of taps around every row of a set like the first parent
    int32_t *matrices;
    parent parents[NUM_PARENTS];
    spops_coords *set; // the first of them
} fixture;

// What a plan is described by.
typedef struct description {
    int64_t ints[MAX_INTS];
    int32_t num;
} description;

static spops_matrix matrix(const void *data, int64_t rows, int64_t cols)
{
    return spops_matrix_dense((void *)(uintptr_t)data, rows, cols, SPOPS_DTYPE_F32);
}

// ---- The kinds ----------------------------------------------------------------------------------

static spops_status sum_rows(fixture *f, spops_context *ctx, const spops_segments *segments,
                             int64_t num_rows, int64_t num_segments)
{
    return spops_segreduce_execute(ctx, segments, SPOPS_REDUCE_SUM, matrix(f->x, num_rows, COLS),
                                   NULL, matrix(f->out, num_segments, COLS), NULL);
}

static spops_status segments_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_segments_options o = spops_segments_options_default();
    spops_segments *s = NULL;
    o.max_cols = COLS;
    o.gradients = SPOPS_GRADIENTS_ALL;
    o.memory = memory;
    const spops_status status = spops_segments_reserve(f->d.ctx, NUM_SEGMENTS, NUM_KEYS, &o, &s);
    *plan = s;
    return status;
}
static spops_status segments_update(fixture *f, spops_context *ctx, void *plan)
{
    return spops_segments_update(ctx, plan, f->num_keys, f->keys, f->idx, NULL);
}
// Products: their gradient goes through every list of the plan and its states.
static spops_status segments_run(fixture *f, spops_context *ctx, const void *plan)
{
    const spops_matrix x = matrix(f->x, NUM_KEYS, COLS), w = matrix(f->x, NUM_KEYS, 1);
    const spops_matrix out = matrix(f->out, NUM_SEGMENTS, COLS);
    const spops_matrix grad_x = matrix(f->out + 1024, NUM_KEYS, COLS);
    const spops_matrix grad_w = matrix(f->out + 8192, NUM_KEYS, 1);
    const spops_status status =
        spops_segreduce_execute(ctx, plan, SPOPS_REDUCE_PROD, x, &w, out, NULL);
    if (status != SPOPS_STATUS_OK) return status;
    return spops_segreduce_execute_backward(
        ctx, plan, SPOPS_REDUCE_PROD, matrix(f->x, NUM_SEGMENTS, COLS), x, &w, &grad_x, &grad_w);
}

static const spops_coords_box box = {{0, 0, 0, 0, 0}, {1, 15, 15, 15, 0}};

static spops_status coords_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_coords_options o = spops_coords_options_default();
    spops_coords *s = NULL;
    o.box = &box;
    o.order = SPOPS_COORDS_ORDER_LEXICOGRAPHIC;
    o.memory = memory;
    const spops_status status = spops_coords_reserve(f->d.ctx, 3, MAX_VOXELS, NUM_POINTS, &o, &s);
    *plan = s;
    return status;
}
static spops_status coords_update(fixture *f, spops_context *ctx, void *plan)
{
    return spops_coords_update(ctx, plan, f->num_rows, f->rows);
}
// What a set is run by: every row's neighbours are looked up in its index.
static spops_status coords_run(fixture *f, spops_context *ctx, const void *plan)
{
    return spops_kernel_map_update(ctx, f->probe, plan, plan);
}

static spops_status voxels_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_voxels_options o = spops_voxels_options_default();
    spops_coords_options c = spops_coords_options_default();
    spops_voxels *v = NULL;
    c.box = &box;
    o.coords = &c;
    o.size_m[0] = o.size_m[1] = o.size_m[2] = 0.5;
    o.points = SPOPS_VOXEL_POINTS_NEAREST;
    o.gradients = SPOPS_GRADIENTS_LINEAR;
    o.max_cols = COLS;
    o.memory = memory;
    const spops_status status = spops_voxels_reserve(f->d.ctx, 3, NUM_POINTS, MAX_VOXELS, &o, &v);
    *plan = v;
    return status;
}
static spops_status voxels_update(fixture *f, spops_context *ctx, void *plan)
{
    return spops_voxels_update(ctx, plan, f->num_points, matrix(f->points, NUM_POINTS, 3), NULL);
}
static spops_status voxels_run(fixture *f, spops_context *ctx, const void *plan)
{
    return sum_rows(f, ctx, spops_voxels_segments(plan), NUM_POINTS, MAX_VOXELS);
}

static spops_kernel_shape kernel_shape(void)
{
    spops_kernel_shape kernel = spops_kernel_shape_default();
    kernel.dims = 3;
    for (int a = 0; a < 3; ++a)
        kernel.size[a] = 3, kernel.stride[a] = 2, kernel.padding[a] = 1, kernel.dilation[a] = 1;
    return kernel;
}
static spops_status map_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_kernel_map_options o = spops_kernel_map_options_default();
    const spops_kernel_shape kernel = kernel_shape();
    spops_kernel_map *m = NULL;
    o.contents = SPOPS_MAP_TABLE | SPOPS_MAP_ORDER | SPOPS_MAP_CSR | SPOPS_MAP_REVERSE;
    o.max_pairs = 27 * MAX_VOXELS;
    o.memory = memory;
    const spops_status status =
        spops_kernel_map_reserve(f->d.ctx, SPOPS_MAP_CONVOLUTION, &kernel, f->set, f->set, &o, &m);
    *plan = m;
    return status;
}
static spops_status map_set(fixture *f, spops_context *ctx, void *plan)
{
    return spops_kernel_map_update(ctx, plan, f->set, f->set);
}
static spops_status no_run(fixture *f, spops_context *ctx, const void *plan)
{
    (void)f, (void)ctx, (void)plan;
    return SPOPS_STATUS_OK;
}

static spops_status bev_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    static const double depths[64] = {1.0, 1.7, 2.5, 3.4, 4.4, 5.5, 6.7, 8.0, 9.4};
    spops_bev_options o = spops_bev_options_default();
    spops_bev_geometry g = f->rig.geometry;
    spops_bev_plan *plan_made = NULL;
    double given[64];
    for (int i = 0; i < g.shape.num_depths; ++i)
        given[i] = i < 9 ? depths[i] : 2.0 * i;
    g.cameras = NULL;
    g.depths_m = given; // they lie in the block
    o.max_cols = COLS;
    o.backward = 1;
    o.memory = memory;
    const spops_status status = spops_bev_plan_reserve(f->d.ctx, &g, &o, &plan_made);
    *plan = plan_made;
    return status;
}
static spops_status bev_set(fixture *f, spops_context *ctx, void *plan)
{
    return spops_bev_plan_update(ctx, plan, f->transforms);
}
static spops_status bev_run(fixture *f, spops_context *ctx, const void *plan)
{
    const spops_bev_shape *s = &f->rig.geometry.shape;
    const int64_t pixels =
        (int64_t)s->num_batches * s->num_cameras * s->feature_height * s->feature_width;
    const int64_t cells =
        (int64_t)s->num_batches * s->num_cells_x * s->num_cells_y * s->num_cells_z;
    spops_bevpool_args args = spops_bevpool_args_default();
    args.layout = SPOPS_BEV_CHANNELS_LAST;
    args.depth = matrix(f->x, pixels * s->num_depths, 1);
    args.feat = matrix(f->x, pixels, COLS);
    args.out = matrix(f->out, cells, COLS);
    return spops_bevpool_execute(ctx, plan, &args);
}

static spops_status devoxels_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_devoxels_options o = spops_devoxels_options_default();
    spops_devoxels *made = NULL;
    o.size_m[0] = o.size_m[1] = o.size_m[2] = 0.5;
    o.interpolation = SPOPS_DEVOXELS_INTERPOLATION_LINEAR;
    o.max_cols = COLS;
    o.memory = memory;
    const spops_status status = spops_devoxels_reserve(f->d.ctx, f->set, NUM_POINTS, &o, &made);
    *plan = made;
    return status;
}
static spops_status devoxels_update(fixture *f, spops_context *ctx, void *plan)
{
    return spops_devoxels_update(ctx, plan, f->set, f->num_points, matrix(f->points, NUM_POINTS, 3),
                                 NULL);
}
static spops_status devoxels_run(fixture *f, spops_context *ctx, const void *plan)
{
    const spops_matrix w = spops_devoxels_weights(plan);
    return spops_segreduce_execute(ctx, spops_devoxels_segments(plan), SPOPS_REDUCE_SUM,
                                   matrix(f->x, MAX_VOXELS, COLS), &w,
                                   matrix(f->out, NUM_POINTS, COLS), NULL);
}

static spops_status triplets_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    const spops_triplets_shape shape = {NUM_SEGMENTS, NUM_KEYS, NUM_MATRICES, NUM_KEYS};
    spops_triplets_options o = spops_triplets_options_default();
    spops_triplets *made = NULL;
    o.backward = 1;
    o.max_matrix_elements = COLS * COLS;
    o.memory = memory;
    const spops_status status = spops_triplets_reserve(f->d.ctx, &shape, &o, &made);
    *plan = made;
    return status;
}
static spops_status triplets_update(fixture *f, spops_context *ctx, void *plan)
{
    return spops_triplets_update(ctx, plan, f->num_keys, f->keys, f->idx, f->matrices);
}
static spops_status triplets_run(fixture *f, spops_context *ctx, const void *plan)
{
    const spops_matrix x = matrix(f->x, NUM_KEYS, COLS), out = matrix(f->out, NUM_SEGMENTS, COLS);
    const spops_matrix grad_w = matrix(f->out + 1024, NUM_MATRICES * COLS, COLS);
    const spops_status status =
        spops_mvmr_execute(ctx, plan, x, matrix(f->x, NUM_MATRICES * COLS, COLS), NULL, NULL, out);
    if (status != SPOPS_STATUS_OK) return status;
    return spops_mvmr_execute_backward(ctx, plan, matrix(f->x, NUM_SEGMENTS, COLS), x,
                                       matrix(f->x, NUM_MATRICES * COLS, COLS), NULL, NULL, NULL,
                                       &grad_w, NULL);
}

static spops_point_cloud cloud_of(const fixture *f)
{
    return (spops_point_cloud){.points = matrix(f->points, NUM_POINTS, 3)};
}

// Two samples; the last rows are not in use.
static spops_point_cloud framed_cloud(const fixture *f)
{
    return (spops_point_cloud){matrix(f->points, NUM_POINTS, 3), f->samples, NUM_SAMPLES};
}

static spops_status neighbors_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    const spops_neighbors_capacity shape = {0, NUM_POINTS, 1, 4000};
    spops_neighbors_options o = spops_neighbors_options_default();
    spops_neighbors *made = NULL;
    o.radius_m = 1.0f;
    o.taps = 3;
    o.tap_size_m = 0.5f;
    o.contents = SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE;
    o.memory = memory;
    const spops_status status = spops_neighbors_reserve(f->d.ctx, &shape, 1, &o, &made);
    *plan = made;
    return status;
}
static spops_status neighbors_update(fixture *f, spops_context *ctx, void *plan)
{
    const spops_point_cloud cloud = cloud_of(f);
    return spops_neighbors_update(ctx, plan, NULL, &cloud);
}

static spops_status buckets_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_buckets_options o = spops_buckets_options_default();
    spops_buckets *made = NULL;
    o.bucket_rows = 16;
    o.num_rounds = 2;
    o.steps[1][0] = 3;
    o.size_m[0] = o.size_m[1] = o.size_m[2] = 0.25;
    o.memory = memory;
    const spops_status status = spops_buckets_reserve(f->d.ctx, NUM_POINTS, 1, &o, &made);
    *plan = made;
    return status;
}
static spops_status buckets_update(fixture *f, spops_context *ctx, void *plan)
{
    const spops_point_cloud cloud = cloud_of(f);
    return spops_buckets_update(ctx, plan, &cloud);
}

static spops_status patches_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_patches_capacity shape = spops_patches_capacity_default();
    spops_patches *made = NULL;
    shape.num_rows = shape.max_queries = NUM_POINTS;
    shape.max_patches = NUM_POINTS;
    shape.max_keys = 2 * NUM_POINTS;
    shape.max_samples = 1;
    shape.memory = memory;
    const spops_status status = spops_patches_reserve(f->d.ctx, &shape, &made);
    *plan = made;
    return status;
}
static spops_status patches_update(fixture *f, spops_context *ctx, void *plan)
{
    const spops_point_cloud cloud = cloud_of(f);
    spops_patch_order order = spops_patch_order_default();
    order.patch_rows = 16;
    order.borrow = 1;
    order.size_m[0] = order.size_m[1] = order.size_m[2] = 0.25;
    return spops_patches_update_from_order(ctx, plan, &cloud, &order);
}

static const spops_kernel_map *map_of(const fixture *f)
{
    return (const spops_kernel_map *)f->parents[MAP_PARENT].here;
}

static spops_status conv_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_sparseconv_options o = spops_sparseconv_options_default();
    spops_sparseconv *made = NULL;
    o.backward = 1;
    o.max_in_channels = o.max_out_channels = COLS;
    o.memory = memory;
    const spops_status status = spops_sparseconv_create(f->d.ctx, map_of(f), &o, &made);
    *plan = made;
    return status;
}
static spops_status conv_set(fixture *f, spops_context *ctx, void *plan)
{
    (void)f;
    return spops_sparseconv_update(ctx, plan);
}
static spops_status conv_run(fixture *f, spops_context *ctx, const void *plan)
{
    const spops_matrix x = matrix(f->x, MAX_VOXELS, COLS), w = matrix(f->x, 27 * COLS, COLS);
    const spops_matrix grad_x = matrix(f->out + 2048, MAX_VOXELS, COLS);
    const spops_matrix grad_w = matrix(f->out + 4096, 27 * COLS, COLS);
    const spops_status status =
        spops_sparseconv_execute(ctx, plan, x, w, NULL, matrix(f->out, MAX_VOXELS, COLS));
    if (status != SPOPS_STATUS_OK) return status;
    return spops_sparseconv_execute_backward(ctx, plan, x, x, w, NULL, &grad_x, &grad_w, NULL);
}

static spops_status pool_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_pool_options o = spops_pool_options_default();
    spops_pool *made = NULL;
    o.max_cols = COLS;
    o.gradients = SPOPS_GRADIENTS_ALL;
    o.memory = memory;
    const spops_status status = spops_pool_create(f->d.ctx, map_of(f), &o, &made);
    *plan = made;
    return status;
}
static spops_status pool_update(fixture *f, spops_context *ctx, void *plan)
{
    (void)f;
    return spops_pool_update(ctx, plan);
}
static spops_status pool_run(fixture *f, spops_context *ctx, const void *plan)
{
    const spops_matrix x = matrix(f->x, MAX_VOXELS, COLS);
    const spops_status status =
        spops_pool_execute(ctx, plan, SPOPS_REDUCE_MAX, x, matrix(f->out, MAX_VOXELS, COLS));
    if (status != SPOPS_STATUS_OK) return status;
    return spops_pool_execute_backward(ctx, plan, SPOPS_REDUCE_MAX, x, x,
                                       matrix(f->out + 2048, MAX_VOXELS, COLS));
}

static spops_status pointconv_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_pointconv_options o = spops_pointconv_options_default();
    spops_pointconv *made = NULL;
    o.backward = 1;
    o.max_in_channels = o.max_out_channels = COLS;
    o.memory = memory;
    const spops_status status = spops_pointconv_create(
        f->d.ctx, (const spops_neighbors *)f->parents[NEIGHBORS_PARENT].here, &o, &made);
    *plan = made;
    return status;
}
static spops_status pointconv_update(fixture *f, spops_context *ctx, void *plan)
{
    (void)f;
    return spops_pointconv_update(ctx, plan);
}
// In f16, which matrix kernels take.
static spops_status pointconv_run(fixture *f, spops_context *ctx, const void *plan)
{
    const spops_matrix x = spops_matrix_dense(f->halves, NUM_POINTS, COLS, SPOPS_DTYPE_F16);
    const spops_matrix w = spops_matrix_dense(f->halves, 27 * COLS, COLS, SPOPS_DTYPE_F16);
    const spops_matrix out = spops_matrix_dense(f->out, NUM_POINTS, COLS, SPOPS_DTYPE_F16);
    const spops_matrix grad_x =
        spops_matrix_dense(f->out + 2048, NUM_POINTS, COLS, SPOPS_DTYPE_F16);
    const spops_matrix grad_w = matrix(f->out + 4096, 27 * COLS, COLS);
    const spops_status status = spops_pointconv_execute(ctx, plan, x, w, NULL, out);
    if (status != SPOPS_STATUS_OK) return status;
    return spops_pointconv_execute_backward(ctx, plan, x, x, w, NULL, &grad_x, &grad_w, NULL);
}

static spops_status nearest_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_nearest *made = NULL;
    const spops_status status =
        spops_nearest_reserve(f->d.ctx, NUM_POINTS, NUM_SAMPLES, memory, &made);
    *plan = made;
    return status;
}
static spops_status nearest_update(fixture *f, spops_context *ctx, void *plan)
{
    const spops_point_cloud cloud = framed_cloud(f);
    return spops_nearest_update(ctx, plan, &cloud);
}
static spops_status nearest_run(fixture *f, spops_context *ctx, const void *plan)
{
    const spops_point_cloud cloud = framed_cloud(f);
    return spops_nearest_execute(ctx, plan, &cloud, 7, f->out, (float *)(void *)(f->out + 4096));
}

static spops_status interpolation_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_interpolation_options o = spops_interpolation_options_default();
    spops_interpolation *made = NULL;
    o.max_cols = COLS;
    o.gradients = SPOPS_GRADIENTS_LINEAR;
    o.memory = memory;
    const spops_status status =
        spops_interpolation_reserve(f->d.ctx, NUM_POINTS, NUM_POINTS, NUM_SAMPLES, &o, &made);
    *plan = made;
    return status;
}
static spops_status interpolation_update(fixture *f, spops_context *ctx, void *plan)
{
    const spops_point_cloud cloud = framed_cloud(f);
    return spops_interpolation_update(ctx, plan, &cloud, &cloud);
}
static spops_status interpolation_run(fixture *f, spops_context *ctx, const void *plan)
{
    const spops_matrix x = matrix(f->x, NUM_POINTS, COLS);
    const spops_matrix w = spops_interpolation_weights(plan);
    const spops_segments *segments = spops_interpolation_segments(plan);
    const spops_matrix grad_x = matrix(f->out + 4096, NUM_POINTS, COLS);
    const spops_status status = spops_segreduce_execute(ctx, segments, SPOPS_REDUCE_SUM, x, &w,
                                                        matrix(f->out, NUM_POINTS, COLS), NULL);
    if (status != SPOPS_STATUS_OK) return status;
    return spops_segreduce_execute_backward(ctx, segments, SPOPS_REDUCE_SUM, x, x, &w, &grad_x,
                                            NULL);
}

static spops_status level_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    const spops_point_level_capacity capacity = {
        NUM_POINTS, NUM_POINTS, NUM_SAMPLES, {0.0, 0.0, 0.0}, {6.0, 6.0, 6.0}};
    spops_point_level_options o = spops_point_level_options_default();
    spops_point_level *made = NULL;
    o.size_m = 0.5;
    o.max_cols = COLS;
    o.gradients = SPOPS_GRADIENTS_LINEAR;
    o.memory = memory;
    const spops_status status = spops_point_level_reserve(f->d.ctx, &capacity, &o, &made);
    *plan = made;
    return status;
}
static spops_status level_update(fixture *f, spops_context *ctx, void *plan)
{
    const spops_point_cloud cloud = framed_cloud(f);
    return spops_point_level_update(ctx, plan, &cloud);
}
static spops_status level_run(fixture *f, spops_context *ctx, const void *plan)
{
    const spops_matrix x = matrix(f->x, NUM_POINTS, COLS), out = matrix(f->out, NUM_POINTS, COLS);
    const spops_status status = spops_segreduce_execute(ctx, spops_point_level_voxels(plan),
                                                        SPOPS_REDUCE_MEAN, x, NULL, out, NULL);
    if (status != SPOPS_STATUS_OK) return status;
    return spops_segreduce_execute(ctx, spops_point_level_kept(plan), SPOPS_REDUCE_SUM, x, NULL,
                                   matrix(f->out + 4096, NUM_POINTS, COLS), NULL);
}

static spops_status point_pyramid_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    const spops_point_pyramid_capacity capacity = {{NUM_POINTS, NUM_POINTS, NUM_POINTS},
                                                   {4000, 4000, 4000},
                                                   {4000, 4000},
                                                   NUM_SAMPLES,
                                                   {0.0, 0.0, 0.0},
                                                   {6.0, 6.0, 6.0}};
    spops_point_pyramid_options o = spops_point_pyramid_options_default();
    spops_point_pyramid *made = NULL;
    o.num_levels = 3;
    o.tap_size_m = 0.25f;
    o.contents = SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE;
    o.max_cols = COLS;
    o.memory = memory;
    const spops_status status = spops_point_pyramid_reserve(f->d.ctx, &capacity, &o, &made);
    *plan = made;
    return status;
}
static spops_status point_pyramid_update(fixture *f, spops_context *ctx, void *plan)
{
    const spops_point_cloud cloud = framed_cloud(f);
    return spops_point_pyramid_update(ctx, plan, &cloud);
}
static spops_status point_pyramid_run(fixture *f, spops_context *ctx, const void *plan)
{
    return level_run(f, ctx, spops_point_pyramid_level(plan, 0));
}

static spops_status pyramid_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    static const int64_t max_rows[] = {0, 120, 60};
    spops_pyramid_options o = spops_pyramid_options_default();
    spops_pyramid *made = NULL;
    o.num_levels = 3;
    o.contents = SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS | SPOPS_MAP_REVERSE;
    o.max_rows = max_rows;
    o.memory = memory;
    const spops_status status = spops_pyramid_reserve(
        f->d.ctx, (const spops_coords *)f->parents[SET_PARENT].here, &o, &made);
    *plan = made;
    return status;
}
static spops_status pyramid_update(fixture *f, spops_context *ctx, void *plan)
{
    (void)f;
    return spops_pyramid_update(ctx, plan);
}

typedef struct kind {
    const char *name;
    spops_status (*reserve)(fixture *f, spops_plan_memory *memory, void **plan);
    spops_status (*set)(fixture *f, spops_context *ctx, void *plan);
    spops_status (*run)(fixture *f, spops_context *ctx, const void *plan);
    int num_parents, parents[3];
} kind;

static const kind kinds[] = {
    {"segments", segments_reserve, segments_update, segments_run, 0, {0}},
    {"bev_plan", bev_reserve, bev_set, bev_run, 0, {0}},
    {"kernel_map", map_reserve, map_set, no_run, 0, {0}},
    {"coords", coords_reserve, coords_update, coords_run, 0, {0}},
    {"voxels", voxels_reserve, voxels_update, voxels_run, 0, {0}},
    {"devoxels", devoxels_reserve, devoxels_update, devoxels_run, 0, {0}},
    {"triplets", triplets_reserve, triplets_update, triplets_run, 0, {0}},
    {"sparseconv", conv_reserve, conv_set, conv_run, 1, {MAP_PARENT}},
    {"pointconv", pointconv_reserve, pointconv_update, pointconv_run, 1, {NEIGHBORS_PARENT}},
    {"pool", pool_reserve, pool_update, pool_run, 3, {MAP_PARENT}},
    {"pyramid", pyramid_reserve, pyramid_update, no_run, 1, {SET_PARENT}},
    {"point_level", level_reserve, level_update, level_run, 0, {0}},
    {"point_pyramid", point_pyramid_reserve, point_pyramid_update, point_pyramid_run, 0, {0}},
    {"neighbors", neighbors_reserve, neighbors_update, no_run, 0, {0}},
    {"nearest", nearest_reserve, nearest_update, nearest_run, 0, {0}},
    {"interpolation", interpolation_reserve, interpolation_update, interpolation_run, 0, {0}},
    {"patches", patches_reserve, patches_update, no_run, 0, {0}},
    {"buckets", buckets_reserve, buckets_update, no_run, 0, {0}},
};
enum { NUM_KINDS = sizeof kinds / sizeof kinds[0] };

// Counts of a plan's state, which has the one that is called `name`.
static int64_t state_of(spops_context *ctx, const void *plan, const char *name, description *d)
{
    const char *at = spops_plan_kinds(NULL)[spops_plan_get_kind(plan) - 1].state;
    int index = 0;
    memset(d, 0, sizeof *d);
    const spops_status status = spops_plan_get_state_sync(ctx, plan, d->ints, MAX_INTS, &d->num);
    if (status != SPOPS_STATUS_CAPACITY_EXCEEDED) test_expect_ok(ctx, status, "state");
    while (strncmp(at, name, strlen(name)) != 0) {
        const size_t length = strcspn(at, " ");
        cr_assert_neq(at[length], '\0', "no %s", name);
        index += at[length - 1] == ']' ? 8 : 1; // the only length there is
        at += length + 1;
    }
    return d->ints[index];
}

static spops_status describe(spops_context *ctx, const void *plan, description *d)
{
    return spops_plan_describe(ctx, plan, d->ints, MAX_INTS, &d->num);
}

static const kind *kind_of(const description *d)
{
    const char *name = spops_plan_kinds(NULL)[d->ints[0] - 1].name;
    int k = 0;
    while (strcmp(kinds[k].name, name) != 0)
        ++k;
    return &kinds[k];
}

// On the parents where ctx is: the fixture's context, or another one.
static spops_status attach(const fixture *f, spops_context *ctx, const description *d,
                           const spops_plan_memory *memory, void **plan)
{
    const kind *k = kind_of(d);
    const spops_plan *parents[3] = {NULL};
    spops_plan *made = NULL;
    for (int i = 0; i < k->num_parents; ++i) {
        const parent *p = &f->parents[k->parents[i]];
        parents[i] = ctx == f->d.ctx ? p->here : p->elsewhere;
    }
    const spops_status status = spops_plan_attach(ctx, d->ints, d->num, memory->block,
                                                  memory->bytes, parents, k->num_parents, &made);
    *plan = made;
    return status;
}

// ---- What they give -----------------------------------------------------------------------------

typedef struct bits {
    int32_t *words;
    int64_t count;
} bits;

static void append(fixture *f, bits *b, const int32_t *from, int64_t n)
{
    b->words = realloc(b->words, (size_t)(b->count + n + 1) * sizeof *b->words);
    cr_assert_not_null(b->words);
    test_download_i32(&f->d, b->words + b->count, from, n);
    b->count += n;
}

static int32_t word(fixture *f, const int32_t *from)
{
    int32_t value;
    test_download_i32(&f->d, &value, from, 1);
    return value;
}

static void append_side(fixture *f, bits *b, const spops_kernel_map_side *side, int32_t stride)
{
    const int64_t n = word(f, side->num_rows);
    append(f, b, side->table, n * stride);
    if (side->order != NULL) append(f, b, side->order, n);
    if (side->offsets == NULL) return;
    append(f, b, side->offsets, n + 1);
    append(f, b, side->row_taps, 2 * (int64_t)word(f, side->offsets + n));
}

static void append_map(fixture *f, bits *b, const spops_kernel_map *map)
{
    spops_kernel_map_view view = spops_kernel_map_view_default();
    test_expect_ok(f->d.ctx, spops_kernel_map_get_view(f->d.ctx, map, &view), "view of a map");
    append_side(f, b, view.out, view.table_stride);
    if (view.in->table != NULL && !view.in->mirrored) append_side(f, b, view.in, view.table_stride);
    if (view.tap_offsets != NULL)
        append(f, b, view.in_rows, word(f, view.tap_offsets + view.num_taps));
}

static void append_neighbors(fixture *f, bits *b, const spops_neighbors *plan)
{
    spops_neighbors_view view = spops_neighbors_view_default();
    test_expect_ok(f->d.ctx, spops_neighbors_get_view(f->d.ctx, plan, &view), "view");
    const int64_t n = word(f, view.out->num_rows), pairs = word(f, view.out->offsets + n);
    append(f, b, view.out->offsets, n + 1);
    append(f, b, view.out->rows, pairs);
    append(f, b, view.in->offsets, n + 1);
    append(f, b, view.in->rows, pairs);
    append(f, b, view.tap_offsets, view.num_taps + 1);
    append(f, b, view.in_rows, pairs);
    append(f, b, view.out_rows, pairs);
}

static void append_buckets(fixture *f, bits *b, const spops_buckets *plan)
{
    spops_buckets_view view = spops_buckets_view_default();
    test_expect_ok(f->d.ctx, spops_buckets_get_view(f->d.ctx, plan, &view), "view");
    append(f, b, view.offsets, word(f, view.num_buckets) + 1);
    append(f, b, view.rows, word(f, view.num_rows));
    append(f, b, view.row_buckets, word(f, view.num_rows));
}

static void append_patches(fixture *f, bits *b, const spops_patches *plan)
{
    spops_patches_view view = spops_patches_view_default();
    test_expect_ok(f->d.ctx, spops_patches_get_view(f->d.ctx, plan, &view), "view");
    const int64_t n = word(f, view.num_patches);
    append(f, b, view.query_offsets, n + 1);
    append(f, b, view.query_rows, word(f, view.query_offsets + n));
    append(f, b, view.key_offsets, n + 1);
    append(f, b, view.key_rows, word(f, view.key_offsets + n));
}

static void append_pyramid(fixture *f, bits *b, const spops_pyramid *plan)
{
    for (int level = 0; level < 3; ++level) {
        append_map(f, b, spops_pyramid_map(plan, SPOPS_PYRAMID_WITHIN, level));
        if (level == 2) break;
        append_map(f, b, spops_pyramid_map(plan, SPOPS_PYRAMID_DOWN, level));
        append_map(f, b, spops_pyramid_map(plan, SPOPS_PYRAMID_UP, level));
    }
}

static void append_point_pyramid(fixture *f, bits *b, const spops_point_pyramid *plan)
{
    for (int level = 0; level < 3; ++level) {
        const spops_point_cloud *cloud = spops_point_pyramid_cloud(plan, level);
        append_neighbors(f, b, spops_point_pyramid_within(plan, level));
        if (level > 0) append(f, b, cloud->offsets, NUM_SAMPLES + 1);
        if (level < 2) append_neighbors(f, b, spops_point_pyramid_down(plan, level));
    }
}

static bits collect(fixture *f, const void *plan)
{
    const spops_plan_kind of = spops_plan_get_kind(plan);
    bits b = {NULL, 0};
    test_wait(&f->d);
    if (of == SPOPS_PLAN_KERNEL_MAP) {
        append_map(f, &b, plan);
    } else if (of == SPOPS_PLAN_COORDS) {
        spops_coords_view view = spops_coords_view_default();
        test_expect_ok(f->d.ctx, spops_coords_get_view(f->d.ctx, plan, &view), "view of a set");
        const int64_t n = word(f, view.num_rows);
        append(f, &b, view.rows, n * 4);
        append(f, &b, view.row_item, n);
        cr_assert_not_null(view.item_row);
        append(f, &b, view.item_row, view.max_items);
        append_map(f, &b, f->probe);
    } else if (of == SPOPS_PLAN_PYRAMID) {
        append_pyramid(f, &b, plan);
    } else if (of == SPOPS_PLAN_POINT_PYRAMID) {
        append_point_pyramid(f, &b, plan);
        append(f, &b, f->out, NUM_OUT);
    } else if (of == SPOPS_PLAN_NEIGHBORS) {
        append_neighbors(f, &b, plan);
    } else if (of == SPOPS_PLAN_BUCKETS) {
        append_buckets(f, &b, plan);
    } else if (of == SPOPS_PLAN_PATCHES) {
        append_patches(f, &b, plan);
    } else {
        append(f, &b, f->out, NUM_OUT);
    }
    return b;
}

static void expect_same(fixture *f, const void *plan, const bits *expected, const char *what)
{
    const char *name = spops_plan_kinds(NULL)[spops_plan_get_kind(plan) - 1].name;
    bits b = collect(f, plan);
    cr_assert_eq(b.count, expected->count, "%s, %s: %d words, expected %d", name, what,
                 (int)b.count, (int)expected->count);
    for (int64_t i = 0; i < b.count; ++i)
        cr_assert_eq(b.words[i], expected->words[i], "%s, %s: word %d is %#x, expected %#x", name,
                     what, (int)i, (unsigned)b.words[i], (unsigned)expected->words[i]);
    free(b.words);
}

static void poison(fixture *f)
{
    cr_assert(device_fill(f->d.backend, f->out, 0x7f, NUM_OUT * sizeof *f->out));
}

// ---- The fixture --------------------------------------------------------------------------------

static block block_create(fixture *f, size_t bytes)
{
    block b = {.bytes = bytes};
    cr_assert(device_alloc(f->d.backend, bytes + 2 * SPOPS_PLAN_ALIGNMENT, &b.allocated));
    b.memory = (char *)b.allocated + SPOPS_PLAN_ALIGNMENT; // aligned to that, and to no more
    return b;
}

static spops_plan_memory memory_of(const block *b)
{
    spops_plan_memory memory = spops_plan_memory_default();
    memory.block = b->memory;
    memory.bytes = b->bytes;
    return memory;
}

static void copy_block(fixture *f, const block *to, const block *from)
{
    void *host = malloc(from->bytes);
    cr_assert_not_null(host);
    test_wait(&f->d);
    cr_assert(device_download(f->d.backend, host, from->memory, from->bytes));
    cr_assert(device_upload(f->d.backend, to->memory, host, from->bytes));
    free(host);
}

static spops_status parent_set_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_coords_options o = spops_coords_options_default();
    spops_coords *made = NULL;
    o.box = &box;
    o.memory = memory;
    const spops_status status =
        spops_coords_reserve(f->d.ctx, 3, MAX_VOXELS, NUM_POINTS, &o, &made);
    *plan = made;
    return status;
}
static spops_status parent_map_reserve(fixture *f, spops_plan_memory *memory, void **plan)
{
    spops_kernel_map_options o = spops_kernel_map_options_default();
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_kernel_map *made = NULL;
    o.contents = SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS | SPOPS_MAP_REVERSE;
    o.max_pairs = 27 * MAX_VOXELS;
    o.memory = memory;
    const spops_status status = spops_kernel_map_reserve(f->d.ctx, SPOPS_MAP_CONVOLUTION, &kernel,
                                                         f->set, f->set, &o, &made);
    *plan = made;
    return status;
}

static const kind parent_kinds[NUM_PARENTS] = {
    [SET_PARENT] = {"set", parent_set_reserve, coords_update, no_run, 0, {0}},
    [MAP_PARENT] = {"map", parent_map_reserve, map_set, no_run, 0, {0}},
    [NEIGHBORS_PARENT] = {"neighbors", neighbors_reserve, neighbors_update, no_run, 0, {0}},
};

static void make_parent(fixture *f, int which)
{
    const kind *k = &parent_kinds[which];
    parent *p = &f->parents[which];
    spops_plan_memory memory = spops_plan_memory_default();
    void *made = NULL;
    test_expect_ok(f->d.ctx, k->reserve(f, &memory, &made), k->name);
    p->first = block_create(f, memory.bytes);
    memory = memory_of(&p->first);
    test_expect_ok(f->d.ctx, k->reserve(f, &memory, &made), k->name);
    test_expect_ok(f->d.ctx, k->set(f, f->d.ctx, made), k->name);
    p->here = made;
}

// The same on another context, in copies of their blocks.
static void attach_parents(fixture *f, spops_context *other)
{
    for (int which = SET_PARENT; which < NUM_PARENTS; ++which) {
        parent *p = &f->parents[which];
        description d;
        p->copy = block_create(f, p->first.bytes);
        copy_block(f, &p->copy, &p->first);
        test_expect_ok(f->d.ctx, describe(f->d.ctx, p->here, &d), "parent");
        test_expect_ok(other,
                       spops_plan_attach(other, d.ints, d.num, p->copy.memory, p->copy.bytes, NULL,
                                         0, &p->elsewhere),
                       "parent");
    }
}

static void detach_parents(fixture *f)
{
    for (int which = SET_PARENT; which < NUM_PARENTS; ++which) {
        parent *p = &f->parents[which];
        spops_plan_destroy(p->elsewhere);
        p->elsewhere = NULL;
        if (p->copy.allocated != NULL) device_free(f->d.backend, p->copy.allocated);
        p->copy.allocated = NULL;
    }
}

static float *upload_floats(test_device *d, const float *values, int64_t n)
{
    return (float *)(void *)test_upload_i32(d, (const int32_t *)(const void *)values, n);
}

static void open_fixture(fixture *f)
{
    test_rng rng = test_rng_make(17);
    int32_t keys[NUM_KEYS], idx[NUM_KEYS], matrices[NUM_KEYS], rows[NUM_POINTS][4], count;
    float points[NUM_POINTS][3], x[NUM_KEYS * COLS];
    uint16_t halves[28 * COLS * COLS];
    const int32_t samples[] = {0, NUM_POINTS / 2, NUM_POINTS - 9};
    spops_kernel_map_options probe = spops_kernel_map_options_default();
    spops_kernel_shape kernel = kernel_shape();
    double transforms[4 * SPOPS_BEV_TRANSFORM_DOUBLES];

    for (int t = 0; t < NUM_KEYS; ++t) {
        keys[t] = (int32_t)test_rng_below(&rng, NUM_SEGMENTS + 2) - 1; // some are left out
        idx[t] = (int32_t)test_rng_below(&rng, NUM_KEYS);
        matrices[t] = t % NUM_MATRICES;
    }
    for (int i = 0; i < NUM_KEYS * COLS; ++i)
        x[i] = (float)test_rng_below(&rng, 1000) / 500.0f - 0.9f;
    for (int i = 0; i < 28 * COLS * COLS; ++i)
        halves[i] = (uint16_t)(0x3800 + test_rng_below(&rng, 1024)); // 0.5 to 1
    for (int p = 0; p < NUM_POINTS; ++p) {
        rows[p][0] = (int32_t)test_rng_below(&rng, 2);
        for (int a = 0; a < 3; ++a) {
            rows[p][a + 1] = (int32_t)test_rng_below(&rng, 5);
            points[p][a] = (float)test_rng_below(&rng, 600) / 100.0f;
        }
    }
    f->keys = test_upload_i32(&f->d, keys, NUM_KEYS);
    f->idx = test_upload_i32(&f->d, idx, NUM_KEYS);
    f->matrices = test_upload_i32(&f->d, matrices, NUM_KEYS);
    f->rows = test_upload_i32(&f->d, rows[0], NUM_POINTS * 4);
    f->x = upload_floats(&f->d, x, NUM_KEYS * COLS);
    f->samples = test_upload_i32(&f->d, samples, NUM_SAMPLES + 1);
    f->halves = test_upload_i32(&f->d, (const int32_t *)(const void *)halves, sizeof halves / 4);
    f->points = upload_floats(&f->d, points[0], NUM_POINTS * 3);
    f->num_keys = test_upload_i32(&f->d, (count = NUM_KEYS - 7, &count), 1);
    f->num_rows = test_upload_i32(&f->d, (count = NUM_POINTS - 5, &count), 1);
    f->num_points = test_upload_i32(&f->d, (count = NUM_POINTS - 3, &count), 1);
    cr_assert(device_alloc(f->d.backend, NUM_OUT * sizeof *f->out, (void **)&f->out));

    f->rig = bev_geometry_simulate(1, 4, 0.3);
    test_expect_ok(f->d.ctx,
                   spops_bev_geometry_get_transforms(f->d.ctx, &f->rig.geometry, transforms),
                   "transforms");
    f->transforms = test_upload_f64(&f->d, transforms, 4 * SPOPS_BEV_TRANSFORM_DOUBLES);

    make_parent(f, SET_PARENT);
    f->set = (spops_coords *)f->parents[SET_PARENT].here;
    for (int a = 0; a < 3; ++a)
        kernel.stride[a] = 1;
    probe.contents = SPOPS_MAP_TABLE;
    test_expect_ok(f->d.ctx,
                   spops_kernel_map_reserve(f->d.ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, f->set, NULL,
                                            &probe, &f->probe),
                   "probe");
    make_parent(f, MAP_PARENT);
    make_parent(f, NEIGHBORS_PARENT);
}

static void close_fixture(fixture *f)
{
    test_wait(&f->d);
    detach_parents(f);
    spops_kernel_map_destroy(f->probe);
    for (int which = NUM_PARENTS - 1; which >= SET_PARENT; --which) {
        spops_plan_destroy(f->parents[which].here);
        device_free(f->d.backend, f->parents[which].first.allocated);
    }
    bev_geometry_free(&f->rig);
    device_free(f->d.backend, f->out);
    void *arrays[] = {f->keys, f->idx,        f->rows,       f->num_keys, f->num_rows, f->points,
                      f->x,    f->num_points, f->transforms, f->matrices, f->samples,  f->halves};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; ++i)
        test_free(&f->d, arrays[i]);
    test_close(&f->d);
}

// ---- The test -----------------------------------------------------------------------------------

// reserve, or attach, refuses a block that is one byte too small, and a misaligned one.
static void expect_refused(fixture *f, const kind *k, const description *d, const block *b)
{
    char text[128];
    for (int attaches = 0; attaches < 2; ++attaches) {
        void *plan = f; // is set to NULL
        spops_plan_memory memory = memory_of(b);
        memory.bytes -= 1;
        snprintf(text, sizeof text, "%sbytes is %zu, expected at least %zu",
                 attaches ? "attach: " : "memory.", memory.bytes, b->bytes);
        spops_status status =
            attaches ? attach(f, f->d.ctx, d, &memory, &plan) : k->reserve(f, &memory, &plan);
        test_expect(f->d.ctx, status, SPOPS_STATUS_INVALID_ARGUMENT, text, k->name);
        cr_assert_null(plan);
        memory = memory_of(b);
        memory.block = (char *)b->memory + 8;
        status = attaches ? attach(f, f->d.ctx, d, &memory, &plan) : k->reserve(f, &memory, &plan);
        test_expect(f->d.ctx, status, SPOPS_STATUS_INVALID_ARGUMENT,
                    "expected an address aligned to 16 bytes", k->name);
        cr_assert_null(plan);
    }
}

// Attach, fill and run while the stream is captured; what the graph does afterwards.
static void check_captured(fixture *f, const kind *k, const description *d, const block *b,
                           spops_context *other, const bits *expected)
{
    const spops_plan_memory memory = memory_of(b);
    device_graph *graph = NULL;
    void *plan = NULL;
    cr_assert(device_capture_begin(f->d.stream));
    test_expect_ok(other, attach(f, other, d, &memory, &plan), k->name);
    test_expect_ok(other, k->set(f, other, plan), k->name);
    test_expect_ok(other, k->run(f, other, plan), k->name);
    cr_assert(device_capture_end(f->d.stream, &graph), "%s", device_error());
    for (int replay = 0; replay < 2; ++replay) {
        poison(f);
        cr_assert(device_graph_launch(graph, f->d.stream));
        expect_same(f, plan, expected, "in a captured graph");
    }
    spops_plan_destroy(plan);
    device_graph_destroy(graph);
}

// In scratch of the caller's: as much as asked for, and too little.
static void check_lent_scratch(fixture *f, const kind *k, const description *d, const block *b,
                               spops_context *other, const bits *expected)
{
    const spops_plan_memory memory = memory_of(b);
    void *plan = NULL;
    test_expect_ok(other, attach(f, other, d, &memory, &plan), k->name);
    const size_t scratch = spops_plan_scratch_bytes(plan);
    const size_t bytes = spops_context_scratch_memory(scratch);
    cr_assert_geq(bytes, scratch);
    const block lent = block_create(f, bytes);
    cr_assert(device_fill(f->d.backend, lent.memory, 0x5a, bytes));
    test_expect_ok(other, spops_context_set_scratch(other, lent.memory, bytes), k->name);
    poison(f);
    test_expect_ok(other, k->set(f, other, plan), k->name);
    test_expect_ok(other, k->run(f, other, plan), k->name);
    expect_same(f, plan, expected, "in the caller's scratch");
    if (scratch > 4096) {
        test_expect_ok(other, spops_context_set_scratch(other, lent.memory, bytes / 2), k->name);
        test_expect(other, k->run(f, other, plan), SPOPS_STATUS_SCRATCH_TOO_SMALL,
                    "the context's scratch is", k->name);
    }
    test_expect_ok(other, spops_context_set_scratch(other, NULL, 0), k->name);
    poison(f);
    test_expect_ok(other, k->run(f, other, plan), k->name);
    expect_same(f, plan, expected, "in the context's scratch again");
    spops_plan_destroy(plan);
    device_free(f->d.backend, lent.allocated);
}

// The n-th request of memory is refused, for every n: reserved in memory of the library's and of the
// caller's, and attached.
static void check_requests(fixture *f, const kind *k, const description *d, const block *b)
{
    checked_alloc *m = &f->d.memory;
    for (int way = 0; way < 3; ++way) {
        bool refused = true;
        for (int64_t n = 1; refused; ++n) {
            spops_plan_memory memory = memory_of(b);
            void *plan = f; // is set to NULL
            const int64_t live = m->live;
            cr_assert(n < 200, "%s never succeeds", k->name);
            m->fail_at = m->requests + n;
            const spops_status status = way == 2 ? attach(f, f->d.ctx, d, &memory, &plan)
                                                 : k->reserve(f, way == 0 ? NULL : &memory, &plan);
            refused = m->requests >= m->fail_at;
            m->fail_at = 0;
            if (!refused) {
                cr_assert(n > 1, "%s takes no memory", k->name);
                test_expect_ok(f->d.ctx, status, k->name);
                spops_plan_destroy(plan);
            } else {
                test_expect(f->d.ctx, status, SPOPS_STATUS_OUT_OF_MEMORY, "", k->name);
                cr_assert_null(plan);
            }
            cr_assert(m->live == live, "%s: %d blocks leaked", k->name, (int)(m->live - live));
        }
    }
}

static void check_kind(fixture *f, const kind *k)
{
    spops_context *ctx = f->d.ctx, *other = test_context(&f->d, 1);
    spops_plan_memory memory = spops_plan_memory_default();
    description d, again;
    void *plan = NULL, *second = NULL;
    size_t measured = 0, measured_scratch = 0;
    attach_parents(f, other);

    // What the library's own memory gives.
    test_expect_ok(ctx, k->reserve(f, NULL, &plan), k->name);
    poison(f);
    const int64_t requests = f->d.memory.requests;
    test_expect_ok(ctx, k->set(f, ctx, plan), k->name);
    cr_assert_eq(f->d.memory.requests, requests, "%s: filling it takes memory", k->name);
    test_expect_ok(ctx, k->run(f, ctx, plan), k->name);
    bits expected = collect(f, plan);
    cr_assert(expected.count > 100);
    test_expect_ok(ctx, describe(ctx, plan, &d), k->name);
    description state, state_again;
    // There are more voxels than there is room for; all others fit.
    cr_assert_eq(state_of(ctx, plan, "overflow", &state), strcmp(k->name, "voxels") == 0, "%s",
                 k->name);
    int64_t held = 0;
    for (int i = 0; i < state.num; ++i)
        held += state.ints[i];
    cr_assert_gt(held, 0, "%s holds nothing", k->name);
    const size_t scratch = spops_plan_scratch_bytes(plan);
    spops_plan_destroy(plan);

    // How much it takes, and in a block of exactly that.
    plan = f;
    test_expect_ok(ctx, k->reserve(f, &memory, &plan), k->name);
    cr_assert_null(plan);
    const block first = block_create(f, memory.bytes), copy = block_create(f, memory.bytes);
    expect_refused(f, k, &d, &first);
    memory.block = first.memory;
    test_expect_ok(ctx, k->reserve(f, &memory, &plan), k->name);
    poison(f);
    test_expect_ok(ctx, k->set(f, ctx, plan), k->name);
    test_expect_ok(ctx, k->run(f, ctx, plan), k->name);
    expect_same(f, plan, &expected, "in the caller's block");
    test_expect_ok(ctx, describe(ctx, plan, &again), k->name);
    cr_assert_eq(again.num, d.num);
    cr_assert_eq(memcmp(again.ints, d.ints, (size_t)d.num * sizeof *d.ints), 0,
                 "%s: described otherwise", k->name);
    // Of integers alone, on a context that has no plan of the kind yet.
    test_expect_ok(other, spops_plan_measure(other, d.ints, d.num, &measured, &measured_scratch),
                   k->name);
    cr_assert_eq(measured, memory.bytes, "%s: bytes by description", k->name);
    cr_assert_eq(measured_scratch, scratch, "%s: scratch by description", k->name);

    // A copy, on another context, after the first is gone.
    copy_block(f, &copy, &first);
    spops_plan_destroy(plan);
    cr_assert(device_fill(f->d.backend, first.memory, 0xee, first.bytes));
    memory = memory_of(&copy);
    test_expect_ok(other, attach(f, other, &d, &memory, &second), k->name);
    cr_assert_eq(spops_plan_scratch_bytes(second), scratch);
    test_expect_ok(other, spops_context_reserve(other, scratch), k->name);
    poison(f);
    test_expect_ok(other, k->run(f, other, second), k->name);
    expect_same(f, second, &expected, "attached to a copy");
    poison(f);
    test_expect_ok(other, k->set(f, other, second), k->name);
    test_expect_ok(other, k->run(f, other, second), k->name);
    expect_same(f, second, &expected, "attached and filled again");
    (void)state_of(other, second, "overflow", &state_again);
    cr_assert_eq(memcmp(&state_again, &state, sizeof state), 0, "%s: another state", k->name);
    spops_plan_destroy(second);
    if (f->d.launch == LAUNCH_CAPTURED) check_captured(f, k, &d, &copy, other, &expected);

    check_lent_scratch(f, k, &d, &copy, other, &expected);
    check_requests(f, k, &d, &first);
    detach_parents(f);
    spops_context_destroy(other);
    device_free(f->d.backend, first.allocated);
    device_free(f->d.backend, copy.allocated);
    free(expected.words);
}

ParameterizedTestParameters(plan_memory, same_bits)
{
    int every_kind[NUM_KINDS];
    for (int k = 0; k < NUM_KINDS; ++k)
        every_kind[k] = k;
    return every_case(NULL, 0, every_kind, NUM_KINDS);
}
ParameterizedTest(struct case_param *p, plan_memory, same_bits)
{
    fixture f;
    memset(&f, 0, sizeof f);
    if (!test_open(&f.d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    open_fixture(&f);
    check_kind(&f, &kinds[p->op]);
    close_fixture(&f);
}

// Integers that describe no plan.
static void expect_refused_ints(fixture *f)
{
    spops_context *ctx = f->d.ctx;
    spops_plan *out = NULL;
    const spops_plan *set = (const spops_plan *)f->set;
    description d, off;
    size_t bytes;
    struct {
        int32_t index;
        int64_t value;
        const char *text;
    } const cases[] = {
        {0, 0, "ints[0] (kind) is 0, expected 1 to"},
        {0, 1000, "ints[0] (kind) is 1000, expected 1 to"},
        {1, 0, "ints[1] (version) is 0, expected 1 of kind coords"},
        {2, 0, "dims is 0, expected 1 to 4"},
        {3, -1, "max_rows is -1"},
        {4, INT64_MAX, "max_items is"},
        {5, 77, "order is 77"},
        {6, INT64_C(1) << 40, "search is 1099511627776, expected 32 bits"},
        {9, INT64_MIN, "lower[2] is -9223372036854775808, expected 32 bits"},
        {7, 2, "box.lower[0] is 2, more than box.upper[0] = 1"},
    };

    test_expect_ok(ctx, describe(ctx, f->set, &d), "describe");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        off = d;
        off.ints[cases[i].index] = cases[i].value;
        test_expect(ctx, spops_plan_measure(ctx, off.ints, off.num, &bytes, NULL),
                    SPOPS_STATUS_INVALID_ARGUMENT, cases[i].text, "measure");
        out = (spops_plan *)f;
        test_expect(ctx, spops_plan_attach(ctx, off.ints, off.num, NULL, 0, NULL, 0, &out),
                    SPOPS_STATUS_INVALID_ARGUMENT, cases[i].text, "attach");
        cr_assert_null(out);
    }
    test_expect(ctx, spops_plan_measure(ctx, d.ints, d.num - 1, &bytes, NULL),
                SPOPS_STATUS_INVALID_ARGUMENT, "num_ints is 16, expected 17 of kind coords", "num");
    test_expect(ctx, spops_plan_measure(ctx, d.ints, 1, &bytes, NULL),
                SPOPS_STATUS_INVALID_ARGUMENT, "num_ints is 1, expected at least 2", "num");
    test_expect(ctx, spops_plan_measure(ctx, NULL, 4, &bytes, NULL), SPOPS_STATUS_INVALID_ARGUMENT,
                "plan_measure: ints is NULL", "ints");
    test_expect(ctx, spops_plan_attach(ctx, d.ints, d.num, NULL, 0, NULL, 0, &out),
                SPOPS_STATUS_INVALID_ARGUMENT, "plan_attach: block is NULL", "block");
    test_expect(ctx, spops_plan_attach(ctx, d.ints, d.num, NULL, 0, &set, 1, &out),
                SPOPS_STATUS_INVALID_ARGUMENT, "num_parents is 1, expected 0 of kind coords",
                "parents");
    test_expect(ctx, spops_plan_attach(ctx, d.ints, d.num, NULL, 0, NULL, 0, NULL),
                SPOPS_STATUS_INVALID_ARGUMENT, "plan_attach: plan is NULL", "plan");
    test_expect(ctx, spops_plan_describe(ctx, NULL, off.ints, 64, &off.num),
                SPOPS_STATUS_INVALID_ARGUMENT, "plan_describe: plan is NULL", "plan");
    test_expect(ctx, spops_plan_describe(ctx, set, off.ints, 16, &off.num),
                SPOPS_STATUS_INVALID_ARGUMENT, "max_ints is 16, expected at least 17", "max_ints");
    test_expect(ctx, spops_context_set_scratch(ctx, (char *)f->out + 4, 100),
                SPOPS_STATUS_INVALID_ARGUMENT, "aligned to 16 bytes", "scratch");
    test_expect(ctx, spops_context_set_scratch(ctx, NULL, 100), SPOPS_STATUS_INVALID_ARGUMENT,
                "memory is NULL, expected 100 bytes", "scratch");
    cr_assert_eq(spops_context_scratch_memory(0), 0);
    cr_assert_eq(spops_context_scratch_memory(SIZE_MAX), SIZE_MAX);
    test_expect_ok(ctx, spops_plan_describe(ctx, set, NULL, 0, &off.num), "num_ints");
    cr_assert_eq(off.num, 17);
    // The search may be left to the library.
    d.ints[6] = SPOPS_COORDS_SEARCH_AUTO;
    test_expect_ok(ctx, spops_plan_measure(ctx, d.ints, d.num, &bytes, NULL), "AUTO");
}

// Ints of a kind's fields: `name`, `name[n]` or `name[n][m]`.
static int32_t num_fields(const char *text)
{
    int32_t num = 0;
    while (*text != '\0') {
        int32_t count = 1;
        for (; *text != ' ' && *text != '\0'; ++text)
            if (*text == '[') count *= (int32_t)strtol(text + 1, NULL, 10);
        num += count;
        if (*text == ' ') ++text;
    }
    return num;
}

// Names and fields of all kinds, and where a field stands.
Test(plan_memory, kinds)
{
    int32_t num = 0;
    const spops_plan_kind_info *infos = spops_plan_kinds(&num);
    cr_assert_eq(num, 21);
    for (int32_t k = 0; k < num; ++k) {
        cr_assert_eq(infos[k].struct_size, sizeof infos[k]);
        cr_assert_eq(infos[k].kind, k + 1);
        cr_assert_gt(infos[k].version, 0);
        cr_assert_gt(strlen(infos[k].name), 3);
        cr_assert_gt(strlen(infos[k].fields), 3);
    }
    cr_assert_eq(spops_plan_kinds(NULL), infos);
    // Every kind that can be described is a row of this test, and its text has as many fields as it takes.
    test_device d;
    memset(&d, 0, sizeof d);
    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    int num_described = 0;
    for (int32_t k = 0; k < num; ++k) {
        int64_t ints[MAX_INTS] = {infos[k].kind, infos[k].version};
        size_t bytes;
        int row = 0;
        if (!spops_plan_has_description(infos[k].kind)) {
            cr_assert_eq(
                spops_plan_measure(d.ctx, ints, 2 + num_fields(infos[k].fields), &bytes, NULL),
                SPOPS_STATUS_NOT_SUPPORTED, "%s", infos[k].name);
            continue;
        }
        ++num_described;
        while (row < NUM_KINDS && strcmp(kinds[row].name, infos[k].name) != 0)
            ++row;
        cr_assert_lt(row, NUM_KINDS, "%s", infos[k].name);
        cr_assert_eq(spops_plan_measure(d.ctx, ints, 2, &bytes, NULL),
                     SPOPS_STATUS_INVALID_ARGUMENT, "%s", infos[k].name);
        const spops_status whole =
            spops_plan_measure(d.ctx, ints, 2 + num_fields(infos[k].fields), &bytes, NULL);
        cr_assert(whole == SPOPS_STATUS_OK || strstr(spops_last_error(d.ctx), "num_ints") == NULL,
                  "%s", spops_last_error(d.ctx));
    }
    cr_assert_eq(num_described, NUM_KINDS);
    test_close(&d);
    cr_assert_str_eq(infos[SPOPS_PLAN_KERNEL_MAP - 1].name, "kernel_map");
    cr_assert_eq(spops_plan_get_kind(NULL), SPOPS_PLAN_NONE);
    cr_assert_eq(spops_plan_bytes(NULL), 0);
    cr_assert_eq(spops_plan_scratch_bytes(NULL), 0);
    cr_assert_eq(spops_plan_get_fields(NULL, NULL, 0), 0);
    spops_plan_destroy(NULL);
}

// A plan without capacities has the fields that a description would have.
Test(plan_memory, fields)
{
    test_device d;
    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    const int32_t offsets[] = {0, 2, 3};
    int64_t fields[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    spops_segments_options o = spops_segments_options_default();
    spops_segments *s = NULL;
    o.max_cols = 7;
    test_expect_ok(d.ctx, spops_segments_create(d.ctx, 2, offsets, &o, &s), "create");
    const spops_plan *plan = (const spops_plan *)s;
    cr_assert_eq(spops_plan_get_fields(plan, NULL, 0), 6);
    cr_assert_eq(spops_plan_get_fields(plan, fields, 2), 6);
    cr_assert_eq(fields[0], 2, "num_segments");
    cr_assert_eq(fields[1], 3, "max_terms");
    cr_assert_eq(fields[2], -1, "no more than asked for");
    cr_assert_eq(spops_plan_get_fields(plan, fields, 8), 6);
    cr_assert_eq(fields[4], 7, "max_cols");
    cr_assert_eq(fields[6], -1, "no more than there are");
    spops_segments_destroy(s);
    test_close(&d);
}

// A map, a convolution and a pool on it, filled by one call in any order.
CaseTest(plan_memory, updated_at_once, every_case(NULL, 0, NULL, 0))
{
    fixture f;
    void *made[2] = {NULL, NULL}; // convolution and pool
    bits first[2];
    memset(&f, 0, sizeof f);
    if (!test_open(&f.d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    open_fixture(&f);
    spops_context *ctx = f.d.ctx;
    test_expect_ok(ctx, conv_reserve(&f, NULL, &made[0]), "conv");
    test_expect_ok(ctx, pool_reserve(&f, NULL, &made[1]), "pool");
    for (int round = 0; round < 2; ++round) {
        const int32_t num = round == 0 ? NUM_POINTS / 2 : NUM_POINTS - 5;
        int32_t *fewer = test_upload_i32(&f.d, &num, 1);
        spops_plan *const plans[] = {made[1], made[0], f.parents[MAP_PARENT].here};
        test_expect_ok(ctx, spops_coords_update(ctx, f.set, fewer, f.rows), "set");
        test_expect_ok(ctx, spops_update(ctx, plans, 3), "update");
        for (int k = 0; k < 2; ++k) {
            poison(&f);
            test_expect_ok(ctx, (k == 0 ? conv_run : pool_run)(&f, ctx, made[k]), "run");
            first[k] = collect(&f, made[k]);
        }
        test_expect_ok(ctx, map_set(&f, ctx, f.parents[MAP_PARENT].here), "map");
        test_expect_ok(ctx, spops_sparseconv_update(ctx, made[0]), "conv");
        test_expect_ok(ctx, spops_pool_update(ctx, made[1]), "pool");
        for (int k = 0; k < 2; ++k) {
            poison(&f);
            test_expect_ok(ctx, (k == 0 ? conv_run : pool_run)(&f, ctx, made[k]), "run");
            expect_same(&f, made[k], &first[k], "updated one by one");
            free(first[k].words);
        }
        test_free(&f.d, fewer);
    }
    spops_plan *const wrong[] = {f.parents[MAP_PARENT].here, (spops_plan *)f.set}, *const none[] = {
                                                                                       NULL};
    test_expect(ctx, spops_update(ctx, wrong, 2), SPOPS_STATUS_NOT_SUPPORTED,
                "plans[1] is of kind coords, which is filled from the caller's data", "kind");
    // A map that nothing has filled through this handle.
    description d;
    test_expect_ok(ctx, describe(ctx, f.parents[MAP_PARENT].here, &d), "describe");
    const block b = block_create(&f, f.parents[MAP_PARENT].first.bytes);
    spops_plan *map = NULL;
    test_expect_ok(ctx, spops_plan_attach(ctx, d.ints, d.num, b.memory, b.bytes, NULL, 0, &map),
                   "attach");
    test_expect(ctx, spops_update(ctx, &map, 1), SPOPS_STATUS_INVALID_ARGUMENT,
                "update: plans[0] does not know what it stands on: set it once", "unset");
    test_expect_ok(ctx, map_set(&f, ctx, map), "set");
    test_expect_ok(ctx, spops_update(ctx, &map, 1), "set once");
    spops_plan_destroy(map);
    device_free(f.d.backend, b.allocated);
    test_expect(ctx, spops_update(ctx, none, 1), SPOPS_STATUS_INVALID_ARGUMENT, "plans[0] is NULL",
                "NULL");
    test_expect(ctx, spops_update(ctx, NULL, 1), SPOPS_STATUS_INVALID_ARGUMENT, "plans is NULL",
                "NULL");
    test_expect(ctx, spops_update(ctx, none, -1), SPOPS_STATUS_INVALID_ARGUMENT,
                "num_plans is -1, expected 0 or more", "num");
    test_expect_ok(ctx, spops_update(ctx, NULL, 0), "nothing");
    spops_plan_destroy(made[1]);
    spops_plan_destroy(made[0]);
    close_fixture(&f);
}

// A convolution of neighbours that stay as they are is made to measure, and a value too: its work was
// counted, which its description says. A detached one stands on nothing.
CaseTest(plan_memory, counted, every_case(NULL, 0, NULL, 0))
{
    fixture f;
    memset(&f, 0, sizeof f);
    if (!test_open(&f.d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    open_fixture(&f);
    spops_context *ctx = f.d.ctx;
    const spops_point_cloud cloud = cloud_of(&f);
    spops_neighbors_options search = spops_neighbors_options_default();
    spops_neighbors *neighbors = NULL;
    search.radius_m = 1.0f;
    search.taps = 3;
    search.tap_size_m = 0.5f;
    test_expect_ok(ctx, spops_neighbors_create(ctx, NULL, &cloud, &search, &neighbors), "find");
    for (int detach = 0; detach < 2; ++detach) {
        spops_pointconv_options o = spops_pointconv_options_default();
        spops_plan_memory memory = spops_plan_memory_default();
        const spops_plan *const parents[] = {detach ? NULL : (const spops_plan *)neighbors};
        const spops_plan *const wrong[] = {detach ? (const spops_plan *)neighbors : NULL};
        spops_pointconv *conv = NULL;
        spops_plan *again = NULL;
        description d;
        o.backward = 1;
        o.max_in_channels = o.max_out_channels = COLS;
        o.detach = detach;
        if (detach) o.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
        const spops_status status = spops_pointconv_create(ctx, neighbors, &o, &conv);
        if (detach && status == SPOPS_STATUS_NOT_SUPPORTED) continue; // no matrix kernels here
        test_expect_ok(ctx, status, "create");
        poison(&f);
        test_expect_ok(ctx, pointconv_run(&f, ctx, conv), "run");
        bits expected = collect(&f, conv);
        test_expect_ok(ctx, describe(ctx, conv, &d), "describe");
        const size_t bytes = spops_plan_bytes((const spops_plan *)conv);
        spops_pointconv_destroy(conv);
        o.memory = &memory;
        test_expect_ok(ctx, spops_pointconv_create(ctx, neighbors, &o, &conv), "measure");
        cr_assert_null(conv);
        cr_assert_eq(memory.bytes, bytes, "no more in a block than without one");
        const block first = block_create(&f, memory.bytes), copy = block_create(&f, memory.bytes);
        memory.block = first.memory;
        test_expect_ok(ctx, spops_pointconv_create(ctx, neighbors, &o, &conv), "place");
        copy_block(&f, &copy, &first);
        spops_pointconv_destroy(conv);
        test_expect(
            ctx, spops_plan_attach(ctx, d.ints, d.num, copy.memory, copy.bytes, wrong, 1, &again),
            SPOPS_STATUS_INVALID_ARGUMENT,
            detach ? "parents[0] (neighbors) is given, expected NULL as the plan is detached"
                   : "parents[0] (neighbors) is NULL, expected them",
            "parents");
        test_expect_ok(
            ctx, spops_plan_attach(ctx, d.ints, d.num, copy.memory, copy.bytes, parents, 1, &again),
            "attach");
        test_expect_ok(ctx, spops_pointconv_update(ctx, (spops_pointconv *)again), "update");
        poison(&f);
        test_expect_ok(ctx, pointconv_run(&f, ctx, again), "run");
        expect_same(&f, again, &expected, detach ? "detached" : "counted");
        spops_plan_destroy(again);
        device_free(f.d.backend, first.allocated);
        device_free(f.d.backend, copy.allocated);
        free(expected.words);
    }
    spops_neighbors_destroy(neighbors);
    close_fixture(&f);
}

// What the calls below cost: how often the work is counted, done, fetched and waited for.
static struct {
    const spops_backend *backend;
    int counts, fills, fetches, waits;
} seen;
static spops_status see_sort(spops_context *ctx, const struct spops_coords_build_args *args)
{
    ++seen.counts;
    return seen.backend->coords_sort(ctx, args);
}
static spops_status see_build(spops_context *ctx, const struct spops_coords_build_args *args)
{
    ++seen.fills;
    return seen.backend->coords_build(ctx, args);
}
static spops_status see_map(spops_context *ctx, const struct spops_map_searches_args *args)
{
    ++seen.counts;
    return seen.backend->map_search(ctx, args);
}
static spops_status see_pairs(spops_context *ctx, const struct spops_map_all_pairs_args *args)
{
    ++seen.fills;
    return seen.backend->map_pairs(ctx, args);
}
static spops_status see_search(spops_context *ctx, const struct spops_neighbors_args *args)
{
    ++seen.counts;
    return seen.backend->neighbors_search(ctx, args);
}
static spops_status see_neighbors(spops_context *ctx, const struct spops_neighbors_args *args)
{
    ++seen.fills;
    return seen.backend->neighbors_fill(ctx, args);
}
static spops_status see_fetch(spops_context *ctx, void *to, const void *from, size_t bytes)
{
    ++seen.fetches;
    return seen.backend->download(ctx, to, from, bytes);
}
static spops_status see_wait(spops_context *ctx)
{
    ++seen.waits;
    return seen.backend->wait(ctx);
}

static void expect_once(spops_context *ctx, spops_status status, const char *what)
{
    test_expect_ok(ctx, status, what);
    cr_assert(seen.counts == 1 && seen.fills == 1 && seen.fetches <= 1 && seen.waits <= 1,
              "%s: counted %d times, filled %d, fetched %d, waited %d", what, seen.counts,
              seen.fills, seen.fetches, seen.waits);
    seen.counts = seen.fills = seen.fetches = seen.waits = 0;
}

// A plan that is created has exact sizes: it is counted, one count is fetched, and it is filled.
CaseTest(plan_memory, counted_and_filled_once, every_case(NULL, 0, NULL, 0))
{
    fixture f;
    memset(&f, 0, sizeof f);
    if (!test_open(&f.d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    open_fixture(&f);
    spops_context *ctx = f.d.ctx;
    spops_backend seeing = *ctx->backend;
    const spops_point_cloud cloud = cloud_of(&f);
    const spops_kernel_shape kernel = kernel_shape();
    spops_neighbors_options search = spops_neighbors_options_default();
    spops_kernel_map_info map_info = spops_kernel_map_info_default();
    spops_neighbors_info info = spops_neighbors_info_default();
    spops_coords_options merge = spops_coords_options_default();
    spops_coords_info set_info = spops_coords_info_default();
    spops_coords *fine = NULL, *coarse = NULL;
    spops_kernel_map *map = NULL;
    spops_neighbors *neighbors = NULL;
    merge.duplicates = SPOPS_COORDS_DUPLICATES_MERGE;
    search.radius_m = 1.0f;
    test_expect_ok(ctx, spops_coords_create(ctx, 3, NUM_POINTS, f.rows, &merge, &fine), "set");
    memset(&seen, 0, sizeof seen);
    seen.backend = ctx->backend;
    seeing.coords_sort = see_sort;
    seeing.coords_build = see_build;
    seeing.map_search = see_map;
    seeing.map_pairs = see_pairs;
    seeing.neighbors_search = see_search;
    seeing.neighbors_fill = see_neighbors;
    seeing.download = see_fetch;
    seeing.wait = see_wait;
    ctx->backend = &seeing;
    expect_once(ctx, spops_coords_create_downsampled(ctx, fine, &kernel, NULL, &coarse), "set");
    expect_once(
        ctx, spops_kernel_map_create(ctx, SPOPS_MAP_CONVOLUTION, &kernel, fine, coarse, NULL, &map),
        "map");
    expect_once(ctx, spops_neighbors_create(ctx, NULL, &cloud, &search, &neighbors), "neighbors");
    ctx->backend = seen.backend;
    test_expect_ok(ctx, spops_coords_get_info_sync(ctx, coarse, &set_info), "set");
    test_expect_ok(ctx, spops_kernel_map_get_info_sync(ctx, map, &map_info), "map");
    test_expect_ok(ctx, spops_neighbors_get_info_sync(ctx, neighbors, &info), "neighbors");
    cr_assert(set_info.max_rows == set_info.num_rows && set_info.num_rows > 10);
    cr_assert(map_info.max_pairs == map_info.num_pairs && map_info.num_pairs > 100);
    cr_assert(info.max_pairs == info.num_pairs && info.num_pairs > 100);
    spops_neighbors_destroy(neighbors);
    spops_kernel_map_destroy(map);
    spops_coords_destroy(coarse);
    spops_coords_destroy(fine);
    close_fixture(&f);
}

// The CPU has no matrix kernels. Without any tile it needs none, and its handles are those of a device.
static bool no_kernels(const spops_context *ctx, const spops_igemm_scratch_args *args)
{
    (void)ctx, (void)args;
    return true;
}
static size_t no_scratch(spops_context *ctx, const spops_igemm_scratch_args *args)
{
    (void)ctx, (void)args;
    return 0;
}
static size_t no_workspace(spops_context *ctx, const spops_igemm_lists_args *args)
{
    (void)ctx, (void)args;
    return 0;
}
static spops_status no_tiles(spops_context *ctx, const spops_igemm_lists_args *args)
{
    return ctx->backend->fill_zero(ctx, args->schedule->num_tiles,
                                   SPOPS_IGEMM_NUM_TOTALS * sizeof(int32_t));
}

// A convolution of neighbours that stay as they are keeps no memory to sort triplets in: 28 bytes a pair,
// and 16 more with gradients. One that is refilled keeps it, and gives the same.
Test(plan_memory, sorted_once)
{
    fixture f;
    memset(&f, 0, sizeof f);
    if (!test_open(&f.d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    open_fixture(&f);
    spops_context *ctx = f.d.ctx;
    const spops_point_cloud cloud = cloud_of(&f);
    spops_neighbors_options search = spops_neighbors_options_default();
    spops_neighbors_info info = spops_neighbors_info_default();
    spops_neighbors *exact = NULL, *refilled = NULL;
    search.radius_m = 1.5f;
    search.taps = 3;
    search.tap_size_m = 0.5f;
    test_expect_ok(ctx, spops_neighbors_create(ctx, NULL, &cloud, &search, &exact), "find");
    test_expect_ok(ctx, spops_neighbors_get_info_sync(ctx, exact, &info), "info");
    const spops_neighbors_capacity capacity = {
        0, cloud.points.rows, cloud.offsets == NULL ? 1 : cloud.num_samples, info.num_pairs};
    test_expect_ok(ctx, spops_neighbors_reserve(ctx, &capacity, 1, &search, &refilled), "reserve");
    test_expect_ok(ctx, spops_neighbors_update(ctx, refilled, NULL, &cloud), "find again");
    for (int backward = 0; backward < 2; ++backward) {
        spops_pointconv_options o = spops_pointconv_options_default();
        spops_pointconv *once = NULL, *often = NULL;
        o.backward = backward;
        o.max_in_channels = o.max_out_channels = COLS;
        test_expect_ok(ctx, spops_pointconv_create(ctx, exact, &o, &once), "create");
        test_expect_ok(ctx, spops_pointconv_create(ctx, refilled, &o, &often), "of a capacity");
        test_expect_ok(ctx, spops_pointconv_update(ctx, often), "update");
        const size_t bytes = spops_plan_bytes((const spops_plan *)once);
        const size_t pairs = (size_t)info.num_pairs * (backward ? 44 : 28);
        cr_assert(bytes >= pairs && bytes < pairs + 8192, "%zu bytes of %zu", bytes, pairs);
        cr_assert_gt(spops_plan_bytes((const spops_plan *)often),
                     bytes + (size_t)info.num_pairs * 8);
        if (backward) {
            poison(&f);
            test_expect_ok(ctx, pointconv_run(&f, ctx, often), "run");
            bits expected = collect(&f, often);
            poison(&f);
            test_expect_ok(ctx, pointconv_run(&f, ctx, once), "run");
            expect_same(&f, once, &expected, "sorted once");
            free(expected.words);
        }
        spops_pointconv_destroy(once);
        spops_pointconv_destroy(often);
    }
    spops_neighbors_destroy(exact);
    spops_neighbors_destroy(refilled);
    close_fixture(&f);
}

// A detached convolution has no parents, and is refilled from none; one that was counted has some.
Test(plan_memory, detached_is_refilled)
{
    fixture f;
    memset(&f, 0, sizeof f);
    if (!test_open(&f.d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    open_fixture(&f);
    spops_context *ctx = f.d.ctx;
    const spops_backend *const cpu = ctx->backend;
    spops_backend like_a_device = *cpu;
    const spops_point_cloud cloud = cloud_of(&f);
    spops_neighbors_options search = spops_neighbors_options_default();
    spops_pointconv_options o = spops_pointconv_options_default();
    spops_neighbors *neighbors = NULL;
    like_a_device.igemm_exists = no_kernels;
    like_a_device.igemm_scratch_bytes = no_scratch;
    like_a_device.igemm_lists_bytes = no_workspace;
    like_a_device.igemm_lists_count = no_tiles;
    like_a_device.igemm_lists_fill = no_tiles;
    search.radius_m = 1.0f;
    search.taps = 3;
    search.tap_size_m = 0.5f;
    test_expect_ok(ctx, spops_neighbors_create(ctx, NULL, &cloud, &search, &neighbors), "find");
    o.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    ctx->backend = &like_a_device;
    for (o.detach = 0; o.detach < 2; ++o.detach) {
        spops_pointconv *conv = NULL;
        test_expect_ok(ctx, spops_pointconv_create(ctx, neighbors, &o, &conv), "create");
        if (o.detach) spops_neighbors_destroy(neighbors);
        test_expect_ok(ctx, spops_pointconv_update(ctx, conv), o.detach ? "detached" : "counted");
        spops_pointconv_destroy(conv);
    }
    ctx->backend = cpu;
    close_fixture(&f);
}

// What a plan holds, by the name of a count; more than it has room for; and refusals.
Test(plan_memory, state)
{
    fixture f;
    memset(&f, 0, sizeof f);
    if (!test_open(&f.d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    open_fixture(&f);
    spops_context *ctx = f.d.ctx;
    description d;
    void *conv = NULL, *voxels = NULL;
    test_expect_ok(ctx, conv_reserve(&f, NULL, &conv), "conv");
    spops_kernel_map_info map = spops_kernel_map_info_default();
    test_expect_ok(ctx, spops_kernel_map_get_info_sync(ctx, map_of(&f), &map), "map");
    cr_assert_eq(state_of(ctx, map_of(&f), "num_pairs", &d), map.num_pairs);
    cr_assert_eq(state_of(ctx, map_of(&f), "num_in", &d), map.num_in);
    cr_assert_eq(state_of(ctx, conv, "num_triplets", &d), map.num_pairs);
    cr_assert_gt(map.num_pairs, 100);
    test_expect_ok(ctx, voxels_reserve(&f, NULL, &voxels), "voxels");
    test_expect_ok(ctx, voxels_update(&f, ctx, voxels), "voxels");
    spops_coords_info set = spops_coords_info_default();
    cr_assert_eq(spops_coords_get_info_sync(ctx, spops_voxels_coords(voxels), &set),
                 SPOPS_STATUS_CAPACITY_EXCEEDED);
    cr_assert_eq(state_of(ctx, voxels, "num_rows", &d), set.num_rows);

    test_expect_ok(ctx, spops_plan_get_state_sync(ctx, conv, NULL, 0, &d.num), "number");
    cr_assert_eq(d.num, 4);
    test_expect(ctx, spops_plan_get_state_sync(ctx, conv, d.ints, 3, &d.num),
                SPOPS_STATUS_INVALID_ARGUMENT,
                "plan_get_state_sync: max_counts is 3, expected at least 4", "max_counts");
    test_expect(ctx, spops_plan_get_state_sync(ctx, NULL, d.ints, 9, &d.num),
                SPOPS_STATUS_INVALID_ARGUMENT, "plan_get_state_sync: plan is NULL", "plan");
    test_expect(ctx, spops_plan_get_state_sync(ctx, conv, d.ints, 9, NULL),
                SPOPS_STATUS_INVALID_ARGUMENT, "plan_get_state_sync: num_counts is NULL", "num");
    // More coordinates than there is room for.
    spops_coords_options o = spops_coords_options_default();
    spops_coords *few = NULL;
    o.box = &box;
    test_expect_ok(ctx, spops_coords_reserve(ctx, 3, 5, NUM_POINTS, &o, &few), "few");
    test_expect_ok(ctx, spops_coords_update(ctx, few, f.num_rows, f.rows), "few");
    test_expect(ctx, spops_plan_get_state_sync(ctx, (spops_plan *)few, d.ints, 9, &d.num),
                SPOPS_STATUS_CAPACITY_EXCEEDED,
                "plan_get_state_sync: more came than a plan of kind coords has room for", "few");
    cr_assert_eq(d.ints[0], 5);
    cr_assert_eq(d.ints[3], 1);
    spops_coords_destroy(few);
    spops_plan_destroy(voxels);
    spops_plan_destroy(conv);
    close_fixture(&f);
}

// The option is reserve's alone, and descriptions are checked like arguments.
Test(plan_memory, refusals)
{
    fixture f;
    memset(&f, 0, sizeof f);
    if (!test_open(&f.d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    open_fixture(&f);
    spops_context *ctx = f.d.ctx;
    spops_plan_memory memory = spops_plan_memory_default();
    spops_segments_options o = spops_segments_options_default();
    spops_segments *s = NULL;
    const int32_t offsets[] = {0, 1};
    o.memory = &memory;
    test_expect(ctx, spops_segments_create(ctx, 1, offsets, &o, &s), SPOPS_STATUS_INVALID_ARGUMENT,
                "segments_create: memory is given, expected NULL: reserve takes it", "create");
    memory.struct_size = 1;
    test_expect(ctx, spops_segments_reserve(ctx, 1, 1, &o, &s), SPOPS_STATUS_INVALID_ARGUMENT,
                "segments_reserve: memory.struct_size is 1", "struct_size");
    memory = spops_plan_memory_default();

    expect_refused_ints(&f);
    close_fixture(&f);
}
