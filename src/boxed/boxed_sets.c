// SPDX-License-Identifier: Apache-2.0
// Boxed functions that make plans of coordinates, kernel maps and BEV pooling, and give their parts.
#include <string.h>

#include "call/boxed.h"
#include "core/backend.h"
#include "boxed/lists.h"
#include "spops/dense.h"
#include "spops/bevpool.h"
#include "spops/pyramid.h"
#include "spops/voxels.h"

// ---- Coordinates --------------------------------------------------------------------------------

// Attributes lower and upper of a box, from `at` on; both or neither.
static spops_status read_box(const spops_boxed_call *b, int at, spops_coords_box *box,
                             spops_coords_options *options)
{
    if (b->counts[at] == 0 && b->counts[at + 1] == 0) return SPOPS_STATUS_OK;
    memset(box, 0, sizeof *box);
    SPOPS_TRY(spops_list_i32(b, at, 1 + SPOPS_MAX_DIMS, 0, box->lower));
    SPOPS_TRY(spops_list_i32(b, at + 1, 1 + SPOPS_MAX_DIMS, 0, box->upper));
    options->box = box;
    return SPOPS_STATUS_OK;
}

// order, search, lower, upper, max_grid_bytes from attribute `at` on.
static spops_status read_options(const spops_boxed_call *b, int at, spops_coords_box *box,
                                 spops_coords_options *options)
{
    *options = spops_coords_options_default();
    options->order = (spops_coords_order)spops_boxed_i32(b, at);
    options->search = (spops_coords_search)spops_boxed_i32(b, at + 1);
    options->max_grid_bytes = (size_t)b->attributes[at + 4].i;
    return read_box(b, at + 2, box, options);
}

// size, stride, padding, dilation from attribute `at` on.
static spops_status read_kernel(const spops_boxed_call *b, int at, int32_t dims,
                                spops_kernel_shape *kernel)
{
    *kernel = spops_kernel_shape_default();
    kernel->dims = dims;
    SPOPS_TRY(spops_list_i32(b, at, SPOPS_MAX_DIMS, 1, kernel->size));
    SPOPS_TRY(spops_list_i32(b, at + 1, SPOPS_MAX_DIMS, 1, kernel->stride));
    SPOPS_TRY(spops_list_i32(b, at + 2, SPOPS_MAX_DIMS, 0, kernel->padding));
    return spops_list_i32(b, at + 3, SPOPS_MAX_DIMS, 1, kernel->dilation);
}

static int32_t dims_of(const spops_boxed_call *b, const spops_coords *coords)
{
    spops_coords_view view = spops_coords_view_default();
    if (coords == NULL || spops_coords_get_view(b->ctx, coords, &view) != SPOPS_STATUS_OK) return 1;
    return view.dims;
}

// Rows of as many columns as the set has.
static spops_status fill_coords(const spops_boxed_call *b, spops_matrix rows,
                                const int32_t *num_rows)
{
    const int64_t cols = 1 + spops_plan_field(b->into, 0);
    SPOPS_REQUIRE(b->ctx, rows.cols == cols, "%s: rows has %" PRId64 " columns, expected %" PRId64,
                  b->row->call, rows.cols, cols);
    return spops_coords_update(b->ctx, (spops_coords *)b->into, num_rows, rows.data);
}

spops_status spops_boxed_coords(spops_boxed_call *b)
{
    enum { ROWS, NUM_ROWS };
    enum { ORDER, SEARCH, DUPLICATES, LOWER, UPPER, MAX_GRID_BYTES };
    const spops_matrix rows = b->matrices[ROWS];
    spops_coords_options options = spops_coords_options_default();
    spops_coords_box box;
    spops_coords *made = NULL;
    bool fills;

    SPOPS_TRY(spops_boxed_counts(b, NUM_ROWS, ROWS, "max_items", &fills));
    if (fills) return fill_coords(b, rows, b->args[NUM_ROWS]);
    options.order = (spops_coords_order)spops_boxed_i32(b, ORDER);
    options.search = (spops_coords_search)spops_boxed_i32(b, SEARCH);
    options.duplicates = (spops_coords_duplicates)spops_boxed_i32(b, DUPLICATES);
    options.max_grid_bytes = (size_t)b->attributes[MAX_GRID_BYTES].i;
    SPOPS_TRY(read_box(b, LOWER, &box, &options));
    SPOPS_REQUIRE(b->ctx, rows.cols <= 1 + SPOPS_MAX_DIMS,
                  "%s: rows has %" PRId64 " columns, expected 2 to 5", b->row->call, rows.cols);
    SPOPS_TRY(
        spops_coords_create(b->ctx, (int32_t)rows.cols - 1, rows.rows, rows.data, &options, &made));
    return spops_boxed_made(b, made);
}

static spops_status make_derived(spops_boxed_call *b, bool up)
{
    spops_coords_options options;
    spops_kernel_shape kernel;
    spops_coords_box box;
    spops_coords *made = NULL;

    SPOPS_TRY(read_kernel(b, 0, dims_of(b, b->args[0]), &kernel));
    if (b->into != NULL) {
        spops_coords *into = (spops_coords *)b->into;
        return up ? spops_coords_update_upsampled(b->ctx, into, b->args[0], &kernel)
                  : spops_coords_update_downsampled(b->ctx, into, b->args[0], &kernel);
    }
    SPOPS_TRY(read_options(b, 4, &box, &options));
    SPOPS_TRY(up ? spops_coords_create_upsampled(b->ctx, b->args[0], &kernel, &options, &made)
                 : spops_coords_create_downsampled(b->ctx, b->args[0], &kernel, &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_coords_down(spops_boxed_call *b)
{
    return make_derived(b, false);
}

spops_status spops_boxed_coords_up(spops_boxed_call *b)
{
    return make_derived(b, true);
}

spops_status spops_boxed_coords_union(spops_boxed_call *b)
{
    spops_coords_options options;
    spops_coords_box box;
    spops_coords *made = NULL;
    if (b->into != NULL)
        return spops_coords_update_union(b->ctx, (spops_coords *)b->into, b->args[0], b->args[1]);
    SPOPS_TRY(read_options(b, 0, &box, &options));
    SPOPS_TRY(spops_coords_create_union(b->ctx, b->args[0], b->args[1], &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_coords_pruned(spops_boxed_call *b)
{
    spops_coords_options options;
    spops_coords_box box;
    spops_coords *made = NULL;
    if (b->into != NULL)
        return spops_coords_update_pruned(b->ctx, (spops_coords *)b->into, b->args[1], b->args[0]);
    SPOPS_TRY(read_options(b, 0, &box, &options));
    SPOPS_TRY(spops_coords_create_pruned(b->ctx, b->args[1], b->args[0], &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_coords_children(spops_boxed_call *b)
{
    enum { KEEP, IN };
    spops_coords_options options;
    spops_coords_box box;
    spops_coords *made = NULL;
    const int32_t factor = spops_boxed_i32(b, 0);
    const uint8_t *keep = b->args[KEEP];
    if (b->into != NULL)
        return spops_coords_update_children(b->ctx, (spops_coords *)b->into, b->args[IN], factor,
                                            keep);
    SPOPS_TRY(read_options(b, 1, &box, &options));
    SPOPS_TRY(spops_coords_create_children(b->ctx, b->args[IN], factor, keep, &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_coords_grown(spops_boxed_call *b)
{
    enum { MARKS, IN };
    spops_coords_options options;
    spops_kernel_shape kernel = spops_kernel_shape_default();
    spops_coords_box box;
    spops_coords *made = NULL;

    kernel.dims = dims_of(b, b->args[IN]);
    SPOPS_TRY(spops_list_i32(b, 0, SPOPS_MAX_DIMS, 3, kernel.size));
    SPOPS_TRY(spops_list_i32(b, 1, SPOPS_MAX_DIMS, 1, kernel.dilation));
    for (int a = 0; a < SPOPS_MAX_DIMS; ++a)
        kernel.stride[a] = 1;
    if (b->into != NULL)
        return spops_coords_update_grown(b->ctx, (spops_coords *)b->into, b->args[IN], &kernel,
                                         b->args[MARKS]);
    SPOPS_TRY(read_options(b, 2, &box, &options));
    SPOPS_TRY(
        spops_coords_create_grown(b->ctx, b->args[IN], &kernel, b->args[MARKS], &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_coords_rows(spops_boxed_call *b)
{
    enum { COORDS, ROWS, NUM_ROWS, ITEMS };
    spops_coords_view view = spops_coords_view_default();
    SPOPS_TRY(spops_coords_get_view(b->ctx, b->args[COORDS], &view));
    SPOPS_TRY(spops_copy_array(b, ROWS, view.rows, view.max_rows * (1 + view.dims)));
    SPOPS_TRY(spops_copy_array(b, NUM_ROWS, view.num_rows, 1));
    return spops_copy_array(b, ITEMS, view.row_item, view.max_rows);
}

// ---- Voxels -------------------------------------------------------------------------------------

spops_status spops_boxed_voxels(spops_boxed_call *b)
{
    enum { SIZE_M, ORIGIN_M, POINTS, SEED, DIMS, ORDER, SEARCH, LOWER_M, UPPER_M, GRADIENTS, COLS };
    enum { MOST_POINTS = COLS + 1 };
    enum { CLOUD, BATCH, NUM_POINTS };
    spops_voxels_options options = spops_voxels_options_default();
    spops_coords_options coords = spops_coords_options_default();
    spops_voxels *made = NULL;
    bool fills;

    SPOPS_TRY(spops_boxed_counts(b, NUM_POINTS, CLOUD, "max_points", &fills));
    if (fills)
        return spops_voxels_update(b->ctx, (spops_voxels *)b->into, b->args[NUM_POINTS],
                                   b->matrices[CLOUD], b->args[BATCH]);
    SPOPS_TRY(spops_list_f64(b, SIZE_M, SPOPS_MAX_DIMS, 0.0, options.size_m));
    SPOPS_TRY(spops_list_f64(b, ORIGIN_M, SPOPS_MAX_DIMS, 0.0, options.origin_m));
    SPOPS_TRY(spops_list_f64(b, LOWER_M, SPOPS_MAX_DIMS, 0.0, options.lower_m));
    SPOPS_TRY(spops_list_f64(b, UPPER_M, SPOPS_MAX_DIMS, 0.0, options.upper_m));
    options.crop = b->counts[LOWER_M] > 0 || b->counts[UPPER_M] > 0;
    options.points = (spops_voxel_points)spops_boxed_i32(b, POINTS);
    options.seed = (uint32_t)b->attributes[SEED].i;
    options.dims = spops_boxed_i32(b, DIMS);
    options.gradients = (spops_gradients)spops_boxed_i32(b, GRADIENTS);
    options.max_cols = b->attributes[COLS].i;
    options.most_points = spops_boxed_i32(b, MOST_POINTS);
    coords.order = (spops_coords_order)spops_boxed_i32(b, ORDER);
    coords.search = (spops_coords_search)spops_boxed_i32(b, SEARCH);
    options.coords = &coords;
    SPOPS_TRY(spops_voxels_create(b->ctx, b->matrices[CLOUD], b->args[BATCH], &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_voxels_coords(spops_boxed_call *b)
{
    return spops_boxed_part(b, spops_voxels_coords(b->args[0]));
}

spops_status spops_boxed_voxels_segments(spops_boxed_call *b)
{
    return spops_boxed_part(b, spops_voxels_segments(b->args[0]));
}

spops_status spops_boxed_voxels_padded(spops_boxed_call *b)
{
    return spops_voxels_padded_execute(b->ctx, b->args[1], b->matrices[0], b->matrices[2],
                                       (int32_t *)(uintptr_t)b->args[3]);
}

spops_status spops_boxed_voxels_padded_backward(spops_boxed_call *b)
{
    return spops_voxels_padded_execute_backward(b->ctx, b->args[1], b->matrices[0], b->matrices[2]);
}

spops_status spops_boxed_devoxels(spops_boxed_call *b)
{
    enum { SIZE_M, ORIGIN_M, INTERPOLATION, MISSING, GRADIENTS, COLS };
    enum { CLOUD, BATCH, NUM_POINTS, COORDS };
    spops_devoxels_options options = spops_devoxels_options_default();
    spops_devoxels *made = NULL;
    bool fills;

    SPOPS_TRY(spops_boxed_counts(b, NUM_POINTS, CLOUD, "max_points", &fills));
    if (fills)
        return spops_devoxels_update(b->ctx, (spops_devoxels *)b->into, b->args[COORDS],
                                     b->args[NUM_POINTS], b->matrices[CLOUD], b->args[BATCH]);
    SPOPS_TRY(spops_list_f64(b, SIZE_M, SPOPS_MAX_DIMS, 0.0, options.size_m));
    SPOPS_TRY(spops_list_f64(b, ORIGIN_M, SPOPS_MAX_DIMS, 0.0, options.origin_m));
    options.interpolation = (spops_devoxels_interpolation)spops_boxed_i32(b, INTERPOLATION);
    options.missing = (spops_devoxels_missing)spops_boxed_i32(b, MISSING);
    options.gradients = (spops_gradients)spops_boxed_i32(b, GRADIENTS);
    options.max_cols = b->attributes[COLS].i;
    SPOPS_TRY(spops_devoxels_create(b->ctx, b->args[COORDS], b->matrices[CLOUD], b->args[BATCH],
                                    &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_devoxels_segments(spops_boxed_call *b)
{
    return spops_boxed_part(b, spops_devoxels_segments(b->args[0]));
}

spops_status spops_boxed_devoxels_weights(spops_boxed_call *b)
{
    const spops_matrix weights = spops_devoxels_weights(b->args[0]);
    return spops_copy_array(b, 1, weights.data, weights.rows);
}

// ---- Maps ---------------------------------------------------------------------------------------

spops_status spops_boxed_kernel_map(spops_boxed_call *b)
{
    enum { KIND, SIZE, CONTENTS = 5, TILE_ROWS, NO_SYMMETRY };
    spops_kernel_map_options options = spops_kernel_map_options_default();
    spops_kernel_shape kernel;
    spops_kernel_map *made = NULL;

    if (b->into != NULL)
        return spops_kernel_map_update(b->ctx, (spops_kernel_map *)b->into, b->args[0], b->args[1]);
    SPOPS_TRY(read_kernel(b, SIZE, dims_of(b, b->args[0]), &kernel));
    options.contents = spops_boxed_i32(b, CONTENTS);
    options.tile_rows = spops_boxed_i32(b, TILE_ROWS);
    options.no_symmetry = spops_boxed_i32(b, NO_SYMMETRY);
    SPOPS_TRY(spops_kernel_map_create(b->ctx, (spops_kernel_map_kind)spops_boxed_i32(b, KIND),
                                      &kernel, b->args[0], b->args[1], &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_kernel_map_inverse(spops_boxed_call *b)
{
    spops_kernel_map_options options = spops_kernel_map_options_default();
    spops_kernel_map *made = NULL;
    SPOPS_TRY(spops_boxed_no_block(b));
    options.contents = spops_boxed_i32(b, 0);
    options.tile_rows = spops_boxed_i32(b, 1);
    SPOPS_TRY(spops_kernel_map_create_inverse(b->ctx, b->args[0], &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_pyramid(spops_boxed_call *b)
{
    spops_pyramid_options options = spops_pyramid_options_default();
    spops_pyramid *made = NULL;
    if (b->into != NULL) return spops_pyramid_update(b->ctx, (spops_pyramid *)b->into);
    options.num_levels = spops_boxed_i32(b, 0);
    options.contents = spops_boxed_i32(b, 1);
    options.order = (spops_coords_order)spops_boxed_i32(b, 2);
    options.search = (spops_coords_search)spops_boxed_i32(b, 3);
    SPOPS_TRY(spops_pyramid_create(b->ctx, b->args[0], &options, &made));
    return spops_boxed_made(b, made);
}

// A part that may not be there.
static spops_status give_part(spops_boxed_call *b, const void *part)
{
    SPOPS_REQUIRE(b->ctx, part != NULL, "%s: there is no such part", b->row->call);
    return spops_boxed_part(b, part);
}

spops_status spops_boxed_pyramid_coords(spops_boxed_call *b)
{
    return give_part(b, spops_pyramid_coords(b->args[0], spops_boxed_i32(b, 0)));
}

spops_status spops_boxed_pyramid_map(spops_boxed_call *b)
{
    return give_part(b, spops_pyramid_map(b->args[0], (spops_pyramid_relation)spops_boxed_i32(b, 0),
                                          spops_boxed_i32(b, 1)));
}

// ---- BEV pooling --------------------------------------------------------------------------------

// Attributes 0 to 7.
static spops_bev_shape shape_of(const spops_boxed_call *b)
{
    const spops_bev_shape shape = {
        spops_boxed_i32(b, 0), spops_boxed_i32(b, 1), spops_boxed_i32(b, 2), spops_boxed_i32(b, 3),
        spops_boxed_i32(b, 4), spops_boxed_i32(b, 5), spops_boxed_i32(b, 6), spops_boxed_i32(b, 7)};
    return shape;
}

// backward, kernel, max_cols from attribute `at` on.
static spops_bev_options bev_options(const spops_boxed_call *b, int at)
{
    spops_bev_options options = spops_bev_options_default();
    options.backward = spops_boxed_i32(b, at);
    options.kernel = (spops_bev_kernel)spops_boxed_i32(b, at + 1);
    options.max_cols = b->attributes[at + 2].i;
    return options;
}

// Attribute i has n numbers for each camera, or none: those of the identity, whose rows have `cols`.
static spops_status read_cameras(const spops_boxed_call *b, int i, int64_t num_cameras, int n,
                                 int cols, double *first)
{
    const double *list = b->attributes[i].list;

    SPOPS_REQUIRE(b->ctx, b->counts[i] == 0 || b->counts[i] == num_cameras * n,
                  "%s: %s has %d numbers, expected %d for each of %" PRId64 " cameras",
                  b->row->call, b->row->attributes[i].row->name, (int)b->counts[i], n, num_cameras);
    for (int64_t c = 0; c < num_cameras; ++c) {
        double *to = (double *)(void *)((char *)first + (size_t)c * sizeof(spops_bev_camera));
        for (int k = 0; k < n; ++k)
            to[k] = b->counts[i] > 0 ? list[c * n + k] : k / cols == k % cols;
    }
    return SPOPS_STATUS_OK;
}

// Depths of other distances lie in the block, where only reserve puts them.
static spops_status fill_bev_plan(const spops_boxed_call *b, const double *transforms)
{
    static const char depths[] = "has_depths";
    const int32_t field = spops_plan_field_index(b->into->kind, depths, sizeof depths - 1);
    if (spops_plan_field(b->into, field) != 0)
        return spops_fail(b->ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: plan has depths of its own, expected depth_start_m and depth_step_m "
                          "where a block is filled",
                          b->row->call);
    return spops_bev_plan_update(b->ctx, (spops_bev_plan *)b->into, transforms);
}

spops_status spops_boxed_bev_plan(spops_boxed_call *b)
{
    enum { MAX_CAMERAS = 64, HEIGHT = 8, WIDTH, START, STEP, DEPTHS, LOWER, CELL, INTRINSICS, EGO };
    enum { IMAGE = EGO + 1, BACKWARD, TRANSFORMS = 0 };
    spops_bev_geometry geometry = spops_bev_geometry_default();
    spops_bev_camera cameras[MAX_CAMERAS];
    const spops_bev_options options = bev_options(b, BACKWARD);
    int64_t num_cameras;
    spops_bev_plan *made = NULL;

    if (b->into != NULL) return fill_bev_plan(b, b->args[TRANSFORMS]);
    SPOPS_REQUIRE(b->ctx, b->args[TRANSFORMS] == NULL,
                  "%s: transforms is given, expected NULL where no block is filled", b->row->call);
    geometry.shape = shape_of(b);
    geometry.input_height = spops_boxed_i32(b, HEIGHT);
    geometry.input_width = spops_boxed_i32(b, WIDTH);
    geometry.depth_start_m = b->attributes[START].f;
    geometry.depth_step_m = b->attributes[STEP].f;
    SPOPS_REQUIRE(b->ctx, b->counts[DEPTHS] == 0 || b->counts[DEPTHS] == geometry.shape.num_depths,
                  "%s: depths_m has %d numbers, expected %d", b->row->call, (int)b->counts[DEPTHS],
                  (int)geometry.shape.num_depths);
    if (b->counts[DEPTHS] > 0) geometry.depths_m = b->attributes[DEPTHS].list;
    SPOPS_TRY(spops_list_f64(b, LOWER, 3, 0.0, geometry.grid_lower_m));
    SPOPS_TRY(spops_list_f64(b, CELL, 3, 1.0, geometry.cell_size_m));
    num_cameras = (int64_t)geometry.shape.num_batches * geometry.shape.num_cameras;
    SPOPS_REQUIRE(b->ctx, num_cameras >= 0 && num_cameras <= MAX_CAMERAS,
                  "%s: num_cameras is %" PRId64 " of all batches, expected 0 to %d", b->row->call,
                  num_cameras, (int)MAX_CAMERAS);
    SPOPS_TRY(read_cameras(b, INTRINSICS, num_cameras, 9, 3, cameras[0].intrinsics));
    SPOPS_TRY(read_cameras(b, EGO, num_cameras, 16, 4, cameras[0].camera_to_ego));
    SPOPS_TRY(read_cameras(b, IMAGE, num_cameras, 6, 3, cameras[0].image_to_input));
    geometry.cameras = cameras;
    SPOPS_TRY(spops_bev_plan_create(b->ctx, &geometry, &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_bev_plan_ranks(spops_boxed_call *b)
{
    const spops_bev_shape shape = shape_of(b);
    const spops_bev_options options = bev_options(b, 8);
    spops_bev_ranks ranks = spops_bev_ranks_default();
    spops_bev_plan *made = NULL;
    SPOPS_TRY(spops_boxed_no_block(b));
    ranks.num_points = b->matrices[0].rows;
    ranks.num_intervals = b->matrices[3].rows;
    ranks.ranks_depth = b->args[0];
    ranks.ranks_feat = b->args[1];
    ranks.ranks_bev = b->args[2];
    ranks.interval_starts = b->args[3];
    ranks.interval_lengths = b->args[4];
    SPOPS_TRY(spops_bev_plan_create_from_ranks(b->ctx, &shape, &ranks, &options, &made));
    return spops_boxed_made(b, made);
}

// ---- Dense grids --------------------------------------------------------------------------------

enum {
    DENSE_LAYOUT,
    DENSE_BATCHES,
    DENSE_SIZE,
    DENSE_ORIGIN = DENSE_SIZE + SPOPS_MAX_DIMS,
    DENSE_FILL
};

static spops_status read_dense_shape(const spops_boxed_call *b, bool has_fill,
                                     spops_dense_shape *shape)
{
    *shape = spops_dense_shape_default();
    shape->layout = (spops_dense_layout)spops_boxed_i32(b, DENSE_LAYOUT);
    shape->num_batches = spops_boxed_i32(b, DENSE_BATCHES);
    for (int a = 0; a < SPOPS_MAX_DIMS; ++a)
        shape->size[a] = spops_boxed_i32(b, DENSE_SIZE + a);
    if (has_fill) shape->fill = (float)b->attributes[DENSE_FILL].f;
    return spops_list_i32(b, DENSE_ORIGIN, SPOPS_MAX_DIMS, 0, shape->origin);
}

typedef spops_status dense_function(spops_context *ctx, const spops_coords *coords,
                                    spops_matrix from, const spops_dense_shape *shape,
                                    spops_matrix to);

// From argument 0 to argument 2, by the set that is argument 1.
static spops_status run_dense(spops_boxed_call *b, dense_function *run, bool has_fill)
{
    spops_dense_shape shape;
    SPOPS_TRY(read_dense_shape(b, has_fill, &shape));
    return run(b->ctx, b->args[1], b->matrices[0], &shape, b->matrices[2]);
}

spops_status spops_boxed_dense(spops_boxed_call *b)
{
    return run_dense(b, spops_dense_execute, true);
}

spops_status spops_boxed_dense_backward(spops_boxed_call *b)
{
    return run_dense(b, spops_dense_execute_backward, false);
}

spops_status spops_boxed_dense_rows(spops_boxed_call *b)
{
    return run_dense(b, spops_dense_rows_execute, false);
}

spops_status spops_boxed_dense_rows_backward(spops_boxed_call *b)
{
    return run_dense(b, spops_dense_rows_execute_backward, false);
}

// ---- Channels and space -------------------------------------------------------------------------

typedef spops_status channels_function(spops_context *ctx, const spops_coords *coarse,
                                       const spops_coords *fine, int32_t factor, spops_matrix from,
                                       spops_matrix to);

// From argument 0 to argument 3, by the sets between.
static spops_status run_channels(const spops_boxed_call *b, channels_function *run)
{
    return run(b->ctx, b->args[1], b->args[2], spops_boxed_i32(b, 0), b->matrices[0],
               b->matrices[3]);
}

spops_status spops_boxed_channel_to_space(spops_boxed_call *b)
{
    return run_channels(b, spops_channel_to_space_execute);
}

spops_status spops_boxed_channel_to_space_backward(spops_boxed_call *b)
{
    return run_channels(b, spops_channel_to_space_execute_backward);
}

spops_status spops_boxed_space_to_channel(spops_boxed_call *b)
{
    return run_channels(b, spops_space_to_channel_execute);
}

spops_status spops_boxed_space_to_channel_backward(spops_boxed_call *b)
{
    return run_channels(b, spops_space_to_channel_execute_backward);
}
