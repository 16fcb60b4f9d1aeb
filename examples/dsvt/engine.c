// SPDX-License-Identifier: Apache-2.0
/* The engine: plans and memory, and the work of a frame. */
#include "dsvt/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Points to pillars; sets; features of pillars. */
enum { PART_PILLARS, PART_SETS, PART_FEATURES, NUM_PARTS };

static spops_status enqueue_part(tape_engine *base, int part);

/* ---- Pillars ----------------------------------------------------------------------------------- */

/* Cells of the grid lie around the sensor; a pillar is 20 m high. */
static const double lower_z_m = -10, height_m = 20;

static double corner_m(const tape_engine *base)
{
    return -base->voxel_m * (1 << (PILLAR_BITS - 1));
}

void engine_pillar_of(const tape_engine *base, const float *point, int cell[2])
{
    for (int a = 0; a < 2; ++a)
        cell[a] = (int)floor(((double)point[a] - corner_m(base)) / base->voxel_m);
}

static void describe_point(const tape_engine *base, const float *point, int input, float *features)
{
    const float scaled[DSVT_FEATURES] = {point[0] / 50.0f, point[1] / 50.0f, point[2] / 4.0f,
                                         point[3]};
    int cell[2];

    memset(features, 0, TAPE_FEATURES * sizeof *features);
    if (input == 0) {
        memcpy(features, scaled, sizeof scaled);
        return;
    }
    engine_pillar_of(base, point,
                     cell); /* points of a pillar have the same place, and so has their mean */
    for (int a = 0; a < 2; ++a)
        features[a] =
            (float)((cell[a] + (input - 1) * DSVT_WINDOW / 2) % DSVT_WINDOW - DSVT_WINDOW / 2);
}

static int reserve_pillars(engine *e, int64_t max_rows)
{
    spops_coords_box box;
    spops_coords_options coords = spops_coords_options_default();
    spops_voxels_options options = spops_voxels_options_default();

    memset(&box, 0, sizeof box);
    for (int a = 0; a < 2; ++a) {
        box.upper[1 + a] = (1 << PILLAR_BITS) - 1;
        options.size_m[a] = e->base.voxel_m;
        options.origin_m[a] = corner_m(&e->base);
    }
    options.size_m[2] = height_m;
    options.origin_m[2] = lower_z_m;
    coords.box = &box;
    options.coords = &coords;
    options.max_cols = TAPE_FEATURES;
    DEVICE_TRY(e->base.d, spops_voxels_reserve(e->base.d->ctx, 3, e->base.max_points, max_rows,
                                               &options, &e->base.voxels));
    return 0;
}

/* Pillars of a scan once, into a capacity that cannot be exceeded, to see how many there are. */
static int measure(engine *e, const scan *s, int64_t *max_rows)
{
    int64_t n = 0;
    if (reserve_pillars(e, e->base.max_points) || tape_engine_upload(&e->base, s)) return 1;
    DEVICE_TRY(e->base.d, enqueue_part(&e->base, PART_PILLARS));
    DEVICE_TRY(e->base.d, spops_coords_get_num_rows_sync(e->base.d->ctx,
                                                         spops_voxels_coords(e->base.voxels), &n));
    if (rows_with_room(n) > *max_rows) *max_rows = rows_with_room(n);
    spops_voxels_destroy(e->base.voxels);
    e->base.voxels = NULL;
    return 0;
}

/* ---- Plans and memory -------------------------------------------------------------------------- */

static int create_sets(engine *e)
{
    spops_patches_capacity capacity = spops_patches_capacity_default();

    if (tape_engine_make_cloud(&e->base, 0, spops_voxels_coords(e->base.voxels), &e->cloud,
                               &e->offsets))
        return 1;
    capacity.num_rows = capacity.max_queries = capacity.max_patches = e->max_rows;
    capacity.same = 1;
    capacity.max_samples = 1;
    for (int i = 0; i < DSVT_PLANS; ++i) {
        DEVICE_TRY(e->base.d, spops_patches_reserve(e->base.d->ctx, &capacity, &e->sets[i]));
        e->base.tape.patches[i] = e->sets[i];
    }
    return 0;
}

static int create(tape_engine *base, const scan *scans, int num_scans)
{
    engine *e = (engine *)base;
    for (int i = 0; i < num_scans; ++i)
        if (measure(e, &scans[i], &e->max_rows)) return 1;
    return reserve_pillars(e, e->max_rows) || create_sets(e);
}

static void destroy(tape_engine *base)
{
    engine *e = (engine *)base;
    for (int i = 0; i < DSVT_PLANS; ++i)
        spops_patches_destroy(e->sets[i]);
    device_free(base->d, e->offsets);
}

/* ---- A frame ----------------------------------------------------------------------------------- */

static spops_status enqueue_pillars(engine *e)
{
    spops_matrix points =
        spops_matrix_dense(e->base.points, e->base.max_points, 4, SPOPS_DTYPE_F32);
    points.cols = 3;
    return spops_voxels_update(e->base.d->ctx, e->base.voxels, e->base.num_points, points, NULL);
}

static spops_status enqueue_sets(engine *e, spops_context *ctx, int plan)
{
    const int shift = plan / DSVT_AXES, axis = plan % DSVT_AXES;
    spops_patch_grid grid = spops_patch_grid_default();

    grid.window[0] = grid.window[1] = DSVT_WINDOW;
    grid.shift[0] = grid.shift[1] = shift * DSVT_WINDOW / 2;
    grid.set_rows = DSVT_SET_ROWS;
    grid.even = 1;
    grid.bits = PILLAR_BITS;
    grid.axes[0] = axis;
    grid.axes[1] = 1 - axis;
    grid.axes[2] = 2;
    return spops_patches_update_from_grid(ctx, e->sets[plan], &e->cloud, &grid);
}

static spops_status enqueue_part(tape_engine *base, int part)
{
    engine *e = (engine *)base;
    switch (part) {
    case PART_PILLARS: return enqueue_pillars(e);
    case PART_SETS:
        PASS(tape_engine_enqueue_count(base, base->d, 0, e->offsets));
        for (int i = 0; i < DSVT_PLANS; ++i)
            PASS(enqueue_sets(e, base->d->ctx, i));
        return SPOPS_STATUS_OK;
    default: return tape_engine_enqueue_features(base);
    }
}

/* Sets beside each other and beside the features. */
static spops_status enqueue_parts(tape_engine *base)
{
    engine *e = (engine *)base;

    PASS(enqueue_part(base, PART_PILLARS));
    PASS(tape_engine_enqueue_count(base, base->d, 0, e->offsets));
    if (tape_engine_fork(base)) return SPOPS_STATUS_CUDA;
    for (int i = 0; i < DSVT_PLANS; ++i)
        PASS(enqueue_sets(e, base->sides[i % TAPE_SIDES].ctx, i));
    PASS(enqueue_part(base, PART_FEATURES));
    return tape_engine_join(base) ? SPOPS_STATUS_CUDA : SPOPS_STATUS_OK;
}

/* Coordinates, and the entries of sets once. */
static double part_bytes(const tape_engine *base, const tape_sizes *sizes, int part,
                         int64_t num_points)
{
    const double rows = (double)sizes->rows[0];
    switch (part) {
    case PART_PILLARS: return 20.0 * (double)num_points + 16 * rows;
    case PART_SETS: return DSVT_PLANS * (12 + 4) * rows;
    default:
        return 3.0 * TAPE_FEATURES * (double)spops_dtype_bytes(base->tape.dtype) *
               ((double)num_points + rows);
    }
}

static int get_sizes(const tape_engine *base, tape_sizes *sizes)
{
    const engine *e = (const engine *)base;
    memset(sizes, 0, sizeof *sizes);
    DEVICE_TRY(base->d, spops_coords_get_num_rows_sync(
                            base->d->ctx, spops_voxels_coords(base->voxels), &sizes->rows[0]));
    for (int i = 0; i < DSVT_PLANS; ++i) {
        spops_patches_info sets = spops_patches_info_default();
        DEVICE_TRY(base->d, spops_patches_get_info_sync(base->d->ctx, e->sets[i], &sets));
        sizes->keys[i] =
            sets.num_patches == 0 ? 0 : (double)sets.num_queries / (double)sets.num_patches;
    }
    return 0;
}

/* ---- The network as its program sees it -------------------------------------------------------- */

static void build(tape *t, int is_small)
{
    dsvt_build(t, is_small ? &dsvt_small : &dsvt_base);
}

static const char *const part_names[NUM_PARTS] = {"pillars", "sets", "features"};

const tape_network dsvt_network = {.name = "dsvt",
                                   .title = "DSVT",
                                   .engine_bytes = sizeof(engine),
                                   .voxel_m = 0.32,
                                   .check_voxel_m = 0.8,
                                   .parts = part_names,
                                   .num_parts = NUM_PARTS,
                                   .stages = dsvt_stage_names,
                                   .num_stages = DSVT_STAGES,
                                   .num_inputs = 3,
                                   .reduce = SPOPS_REDUCE_MEAN,
                                   .build = build,
                                   .describe_point = describe_point,
                                   .create = create,
                                   .destroy = destroy,
                                   .enqueue_part = enqueue_part,
                                   .enqueue_parts = enqueue_parts,
                                   .part_bytes = part_bytes,
                                   .get_sizes = get_sizes,
                                   .check = reference_check};
