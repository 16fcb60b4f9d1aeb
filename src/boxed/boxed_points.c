// SPDX-License-Identifier: Apache-2.0
// Boxed functions of points, buckets and patches.
#include "boxed/lists.h"
#include "spops/patches.h"
#include "spops/point_levels.h"

static spops_status give_part(spops_boxed_call *b, const void *part)
{
    SPOPS_REQUIRE(b->ctx, part != NULL, "%s: there is no such part", b->row->call);
    return spops_boxed_part(b, part);
}

static float f32_attribute(const spops_boxed_call *b, int i)
{
    return (float)b->attributes[i].f;
}

// ---- Neighbours ---------------------------------------------------------------------------------

spops_status spops_boxed_neighbors(spops_boxed_call *b)
{
    enum { INPUTS, OUTPUTS = 2 };
    enum { RADIUS_M, METRIC, TAPS, TAP_SIZE_M, CONTENTS, MAX_NEIGHBORS, KEEP, SEED, MAX_PAIRS };
    const spops_point_cloud inputs = spops_cloud_of(b, INPUTS);
    const spops_point_cloud outputs = spops_cloud_of(b, OUTPUTS);
    spops_neighbors_options options = spops_neighbors_options_default();
    spops_neighbors *made = NULL;

    if (b->into != NULL)
        return spops_neighbors_update(b->ctx, (spops_neighbors *)b->into,
                                      b->args[OUTPUTS] == NULL ? NULL : &outputs, &inputs);
    options.radius_m = f32_attribute(b, RADIUS_M);
    options.metric = (spops_metric)spops_boxed_i32(b, METRIC);
    options.taps = spops_boxed_i32(b, TAPS);
    options.tap_size_m = f32_attribute(b, TAP_SIZE_M);
    options.contents = spops_boxed_i32(b, CONTENTS);
    options.max_neighbors = spops_boxed_i32(b, MAX_NEIGHBORS);
    options.keep = (spops_neighbors_keep)spops_boxed_i32(b, KEEP);
    options.seed = (uint32_t)b->attributes[SEED].i;
    options.max_pairs = b->attributes[MAX_PAIRS].i;
    SPOPS_TRY(spops_neighbors_create(b->ctx, b->args[OUTPUTS] == NULL ? NULL : &outputs, &inputs,
                                     &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_nearest_plan(spops_boxed_call *b)
{
    const spops_point_cloud points = spops_cloud_of(b, 0);
    spops_nearest *made = NULL;
    if (b->into != NULL) return spops_nearest_update(b->ctx, (spops_nearest *)b->into, &points);
    SPOPS_TRY(spops_nearest_create(b->ctx, &points, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_nearest(spops_boxed_call *b)
{
    enum { QUERIES, OFFSETS, NEAREST, ROWS, DISTANCES2 };
    const spops_point_cloud queries = spops_cloud_of(b, QUERIES);
    return spops_nearest_execute(b->ctx, b->args[NEAREST], &queries, spops_boxed_i32(b, 0),
                                 b->matrices[ROWS].data, b->matrices[DISTANCES2].data);
}

spops_status spops_boxed_farthest(spops_boxed_call *b)
{
    enum { CLOUD, OFFSETS, COUNTS, ROWS, DISTANCES2 };
    enum { NUM_SAMPLES, COUNT };
    const spops_point_cloud cloud = spops_cloud_of(b, CLOUD);
    const int64_t samples = b->args[OFFSETS] == NULL ? 1 : cloud.num_samples;
    const int64_t wanted = b->attributes[NUM_SAMPLES].i;

    SPOPS_TRY(
        spops_boxed_reserve(b, spops_farthest_scratch_bytes(b->ctx, cloud.points.rows, wanted)));
    SPOPS_REQUIRE(b->ctx, samples == wanted,
                  "%s: num_samples is %" PRId64 ", expected %" PRId64 " as the cloud has",
                  b->row->call, wanted, samples);
    return spops_farthest_execute(b->ctx, &cloud, spops_boxed_i32(b, COUNT),
                                  b->matrices[COUNTS].data, b->matrices[ROWS].data,
                                  b->matrices[DISTANCES2].data);
}

// ---- Levels -------------------------------------------------------------------------------------

spops_status spops_boxed_point_level(spops_boxed_call *b)
{
    enum { SIZE_M, ORIGIN_M, KEEP, SEED, GRADIENTS, COLS };
    const spops_point_cloud fine = spops_cloud_of(b, 0);
    spops_point_level_options options = spops_point_level_options_default();
    spops_point_level *made = NULL;

    if (b->into != NULL)
        return spops_point_level_update(b->ctx, (spops_point_level *)b->into, &fine);
    options.size_m = b->attributes[SIZE_M].f;
    SPOPS_TRY(spops_list_f64(b, ORIGIN_M, 3, 0.0, options.origin_m));
    options.keep = (spops_point_keep)spops_boxed_i32(b, KEEP);
    options.seed = (uint32_t)b->attributes[SEED].i;
    options.gradients = (spops_gradients)spops_boxed_i32(b, GRADIENTS);
    options.max_cols = b->attributes[COLS].i;
    SPOPS_TRY(spops_point_level_create(b->ctx, &fine, &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_point_level_cloud(spops_boxed_call *b)
{
    const spops_point_cloud *cloud = spops_point_level_cloud(b->args[0]);
    SPOPS_REQUIRE(b->ctx, cloud != NULL, "%s: level is NULL", b->row->call);
    SPOPS_TRY(spops_copy_array(b, 1, cloud->points.data, cloud->points.rows * 3));
    if (b->args[2] == NULL) return SPOPS_STATUS_OK;
    return spops_copy_array(b, 2, cloud->offsets, cloud->num_samples + 1);
}

spops_status spops_boxed_point_level_kept(spops_boxed_call *b)
{
    return give_part(b, spops_point_level_kept(b->args[0]));
}

spops_status spops_boxed_point_level_voxels(spops_boxed_call *b)
{
    return give_part(b, spops_point_level_voxels(b->args[0]));
}

spops_status spops_boxed_interpolation(spops_boxed_call *b)
{
    const spops_point_cloud from = spops_cloud_of(b, 0), to = spops_cloud_of(b, 2);
    spops_interpolation_options options = spops_interpolation_options_default();
    spops_interpolation *made = NULL;
    if (b->into != NULL)
        return spops_interpolation_update(b->ctx, (spops_interpolation *)b->into, &from, &to);
    options.count = spops_boxed_i32(b, 0);
    options.gradients = (spops_gradients)spops_boxed_i32(b, 1);
    options.max_cols = b->attributes[2].i;
    SPOPS_TRY(spops_interpolation_create(b->ctx, &from, &to, &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_interpolation_segments(spops_boxed_call *b)
{
    return give_part(b, spops_interpolation_segments(b->args[0]));
}

spops_status spops_boxed_interpolation_weights(spops_boxed_call *b)
{
    const spops_matrix weights = spops_interpolation_weights(b->args[0]);
    return spops_copy_array(b, 1, weights.data, weights.rows);
}

spops_status spops_boxed_point_pyramid(spops_boxed_call *b)
{
    enum { LEVELS, TAP_SIZE_M, RADIUS, METRIC, TAPS, CONTENTS, KEEP, SEED, COVER, GRADIENTS, COLS };
    const spops_point_cloud finest = spops_cloud_of(b, 0);
    spops_point_pyramid_options options = spops_point_pyramid_options_default();
    spops_point_pyramid *made = NULL;

    if (b->into != NULL)
        return spops_point_pyramid_update(b->ctx, (spops_point_pyramid *)b->into, &finest);
    options.num_levels = spops_boxed_i32(b, LEVELS);
    options.tap_size_m = f32_attribute(b, TAP_SIZE_M);
    options.radius_taps = f32_attribute(b, RADIUS);
    options.metric = (spops_metric)spops_boxed_i32(b, METRIC);
    options.taps = spops_boxed_i32(b, TAPS);
    options.contents = spops_boxed_i32(b, CONTENTS);
    options.keep = (spops_point_keep)spops_boxed_i32(b, KEEP);
    options.seed = (uint32_t)b->attributes[SEED].i;
    options.cover = spops_boxed_i32(b, COVER);
    options.gradients = (spops_gradients)spops_boxed_i32(b, GRADIENTS);
    options.max_cols = b->attributes[COLS].i;
    SPOPS_TRY(spops_point_pyramid_create(b->ctx, &finest, &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_point_pyramid_level(spops_boxed_call *b)
{
    return give_part(b, spops_point_pyramid_level(b->args[0], spops_boxed_i32(b, 0)));
}

spops_status spops_boxed_point_pyramid_within(spops_boxed_call *b)
{
    return give_part(b, spops_point_pyramid_within(b->args[0], spops_boxed_i32(b, 0)));
}

spops_status spops_boxed_point_pyramid_down(spops_boxed_call *b)
{
    return give_part(b, spops_point_pyramid_down(b->args[0], spops_boxed_i32(b, 0)));
}

// ---- Buckets and patches ------------------------------------------------------------------------

spops_status spops_boxed_buckets(spops_boxed_call *b)
{
    enum { BUCKET_ROWS, NUM_BUCKETS, NUM_ROUNDS, BITS, HASHES, STEPS, SIZE_M, ORIGIN_M };
    const spops_point_cloud cloud = spops_cloud_of(b, 0);
    spops_buckets_options options = spops_buckets_options_default();
    int32_t hashes[SPOPS_MAX_BUCKET_ROUNDS], steps[3 * SPOPS_MAX_BUCKET_ROUNDS];
    spops_buckets *made = NULL;

    if (b->into != NULL) return spops_buckets_update(b->ctx, (spops_buckets *)b->into, &cloud);
    options.bucket_rows = spops_boxed_i32(b, BUCKET_ROWS);
    options.num_buckets = spops_boxed_i32(b, NUM_BUCKETS);
    options.num_rounds = spops_boxed_i32(b, NUM_ROUNDS);
    options.bits = spops_boxed_i32(b, BITS);
    SPOPS_TRY(spops_list_i32(b, HASHES, SPOPS_MAX_BUCKET_ROUNDS, 0, hashes));
    SPOPS_TRY(spops_list_i32(b, STEPS, 3 * SPOPS_MAX_BUCKET_ROUNDS, 0, steps));
    for (int r = 0; r < SPOPS_MAX_BUCKET_ROUNDS; ++r) {
        options.hashes[r] = (spops_bucket_hash)hashes[r];
        for (int a = 0; a < 3; ++a)
            options.steps[r][a] = steps[3 * r + a];
    }
    SPOPS_TRY(spops_list_f64(b, SIZE_M, 3, 0.0, options.size_m));
    SPOPS_TRY(spops_list_f64(b, ORIGIN_M, 3, 0.0, options.origin_m));
    SPOPS_TRY(spops_buckets_create(b->ctx, &cloud, &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_buckets_rows(spops_boxed_call *b)
{
    spops_buckets_view view = spops_buckets_view_default();
    SPOPS_TRY(spops_buckets_get_view(b->ctx, b->args[0], &view));
    SPOPS_TRY(spops_copy_array(b, 1, view.rows, view.max_rows));
    SPOPS_TRY(spops_copy_array(b, 2, view.places, view.max_rows));
    return spops_copy_array(b, 3, view.row_buckets, view.max_rows);
}

spops_status spops_boxed_patches(spops_boxed_call *b)
{
    const spops_patch_lists lists = {
        b->matrices[0].rows - 1, b->args[0], b->args[1], b->args[2], b->args[3],
        b->attributes[1].i};
    spops_patches *made = NULL;
    if (b->into != NULL)
        return spops_patches_update(b->ctx, (spops_patches *)b->into, NULL, &lists);
    SPOPS_TRY(spops_patches_create(b->ctx, b->attributes[0].i, &lists, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_patches_order(spops_boxed_call *b)
{
    enum { PATCH_ROWS, BORROW, CURVE, BITS, SIZE_M, ORIGIN_M };
    const spops_point_cloud cloud = spops_cloud_of(b, 0);
    spops_patch_order order = spops_patch_order_default();
    spops_patches *made = NULL;

    order.patch_rows = spops_boxed_i32(b, PATCH_ROWS);
    order.borrow = spops_boxed_i32(b, BORROW);
    order.curve = (spops_patch_curve)spops_boxed_i32(b, CURVE);
    order.bits = spops_boxed_i32(b, BITS);
    SPOPS_TRY(spops_list_f64(b, SIZE_M, 3, 0.0, order.size_m));
    SPOPS_TRY(spops_list_f64(b, ORIGIN_M, 3, 0.0, order.origin_m));
    order.order = b->args[2];
    if (b->into != NULL)
        return spops_patches_update_from_order(b->ctx, (spops_patches *)b->into, &cloud, &order);
    SPOPS_TRY(spops_patches_create_from_order(b->ctx, &cloud, &order, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_patches_grid(spops_boxed_call *b)
{
    enum { WINDOW, SHIFT, AXES, SET_ROWS, EVEN, ACROSS, BORROW, BITS, SIZE_M, ORIGIN_M };
    const spops_point_cloud cloud = spops_cloud_of(b, 0);
    spops_patch_grid grid = spops_patch_grid_default();
    spops_patches *made = NULL;

    SPOPS_TRY(spops_list_i32(b, WINDOW, 3, 0, grid.window));
    SPOPS_TRY(spops_list_i32(b, SHIFT, 3, 0, grid.shift));
    SPOPS_TRY(spops_list_i32(b, AXES, 3, 0, grid.axes));
    grid.set_rows = spops_boxed_i32(b, SET_ROWS);
    grid.even = spops_boxed_i32(b, EVEN);
    grid.across = spops_boxed_i32(b, ACROSS);
    grid.borrow = spops_boxed_i32(b, BORROW);
    grid.bits = spops_boxed_i32(b, BITS);
    SPOPS_TRY(spops_list_f64(b, SIZE_M, 3, 0.0, grid.size_m));
    SPOPS_TRY(spops_list_f64(b, ORIGIN_M, 3, 0.0, grid.origin_m));
    if (b->into != NULL)
        return spops_patches_update_from_grid(b->ctx, (spops_patches *)b->into, &cloud, &grid);
    SPOPS_TRY(spops_patches_create_from_grid(b->ctx, &cloud, &grid, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_patches_buckets(spops_boxed_call *b)
{
    spops_patch_window window = spops_patch_window_default();
    spops_patches *made = NULL;
    window.buckets = spops_boxed_i32(b, 0);
    window.stride = spops_boxed_i32(b, 1);
    window.shift = spops_boxed_i32(b, 2);
    window.in_places = spops_boxed_i32(b, 3);
    if (b->into != NULL)
        return spops_patches_update_from_buckets(b->ctx, (spops_patches *)b->into, b->args[0],
                                                 &window);
    SPOPS_TRY(spops_patches_create_from_buckets(b->ctx, b->args[0], &window, &made));
    return spops_boxed_made(b, made);
}
