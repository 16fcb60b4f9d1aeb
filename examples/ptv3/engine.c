// SPDX-License-Identifier: Apache-2.0
/* The engine: plans and memory, and the work of a frame. */
#include "ptv3/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Points to voxels; coarser voxels and maps; the map of the stem; patches; plans; features of voxels. */
enum { PART_VOXELS, PART_LEVELS, PART_STEM, PART_PATCHES, PART_PLANS, PART_FEATURES, NUM_PARTS };

static spops_status enqueue_part(tape_engine *base, int part);

/* ---- Capacities -------------------------------------------------------------------------------- */

static spops_coords_box box_of_cube(void)
{
    const int half = 1 << (CUBE_BITS - 1);
    spops_coords_box box;
    memset(&box, 0, sizeof box);
    for (int a = 1; a <= 3; ++a) {
        box.lower[a] = -half;
        box.upper[a] = half - 1;
    }
    return box;
}

static int reserve_voxels(engine *e, int64_t max_voxels)
{
    const spops_coords_box box = box_of_cube();
    spops_coords_options coords = spops_coords_options_default();
    spops_voxels_options options = spops_voxels_options_default();

    coords.box = &box;
    coords.order = SPOPS_COORDS_ORDER_MORTON; /* neighbours in space are neighbours in memory */
    for (int a = 0; a < 3; ++a)
        options.size_m[a] = e->base.voxel_m;
    options.coords = &coords;
    options.max_cols = TAPE_FEATURES;
    options.points = SPOPS_VOXEL_POINTS_FIRST;
    ENGINE_TRY(&e->base, spops_voxels_reserve(e->base.d->ctx, 3, e->base.max_points, max_voxels,
                                              &options, &e->base.voxels));
    return 0;
}

static spops_pyramid_options pyramid_options(void)
{
    spops_pyramid_options options = spops_pyramid_options_default();
    options.num_levels = PTV3_LEVELS;
    options.order = SPOPS_COORDS_ORDER_MORTON;
    return options;
}

static void keep_larger(int64_t *most, int64_t n)
{
    if (tape_engine_room(n) > *most) *most = tape_engine_room(n);
}

/* Plans a scan once, into capacities that cannot be exceeded, to see how many rows and pairs it has. */
static int measure(engine *e, const scan *s, int64_t *max_rows)
{
    const spops_kernel_shape stem = spops_kernel_shape_cube(3, 5, 1, 1);
    const spops_pyramid_options options = pyramid_options();
    spops_pyramid_info info = spops_pyramid_info_default();
    spops_kernel_map_info map = spops_kernel_map_info_default();
    spops_kernel_map_options contents = spops_kernel_map_options_default();
    spops_kernel_map *five = NULL;

    contents.contents = SPOPS_MAP_TABLE;
    if (reserve_voxels(e, e->base.max_points) || tape_engine_upload(&e->base, s)) return 1;
    ENGINE_TRY(&e->base, enqueue_part(&e->base, PART_VOXELS));
    ENGINE_TRY(&e->base, spops_pyramid_reserve(e->base.d->ctx, spops_voxels_coords(e->base.voxels),
                                               &options, &e->pyramid));
    ENGINE_TRY(&e->base, spops_pyramid_update(e->base.d->ctx, e->pyramid));
    ENGINE_TRY(&e->base, spops_pyramid_get_info_sync(e->base.d->ctx, e->pyramid, &info));
    ENGINE_TRY(&e->base, spops_kernel_map_create(e->base.d->ctx, SPOPS_MAP_SUBMANIFOLD, &stem,
                                                 spops_voxels_coords(e->base.voxels), NULL,
                                                 &contents, &five));
    ENGINE_TRY(&e->base, spops_kernel_map_get_info_sync(e->base.d->ctx, five, &map));
    keep_larger(&e->max_stem_pairs, map.num_pairs);
    for (int l = 0; l < PTV3_LEVELS; ++l) {
        keep_larger(&max_rows[l], info.num_rows[l]);
        keep_larger(&e->max_pairs[l], info.num_pairs[l]);
    }
    spops_kernel_map_destroy(five);
    spops_pyramid_destroy(e->pyramid);
    spops_voxels_destroy(e->base.voxels);
    e->pyramid = NULL;
    e->base.voxels = NULL;
    return 0;
}

/* ---- Plans ------------------------------------------------------------------------------------- */

static int create_conv(engine *e, int i, const spops_kernel_map *map)
{
    spops_sparseconv_options options = spops_sparseconv_options_default();
    options.backward = e->base.tape.training;
    options.max_in_channels = options.max_out_channels = 512;
    ENGINE_TRY(&e->base, spops_sparseconv_create(e->base.d->ctx, map, &options, &e->convs[i]));
    e->plans[e->num_plans++] = (spops_plan *)e->convs[i];
    e->base.tape.convs[i] = e->convs[i];
    return 0;
}

static int create_pool(engine *e, int l)
{
    spops_pool_options options = spops_pool_options_default();
    options.gradients = e->base.tape.training ? SPOPS_GRADIENTS_ALL : SPOPS_GRADIENTS_NONE;
    options.max_cols = 512;
    ENGINE_TRY(&e->base, spops_pool_create(e->base.d->ctx,
                                           spops_pyramid_map(e->pyramid, SPOPS_PYRAMID_DOWN, l),
                                           &options, &e->pools[l]));
    e->plans[e->num_plans++] = (spops_plan *)e->pools[l];
    e->base.tape.pools[l] = e->pools[l];
    return 0;
}

/* Those that a step asks for. */
static int create_patches(engine *e)
{
    for (int i = 0; i < e->base.tape.num_steps; ++i) {
        const tape_step *s = &e->base.tape.steps[i];
        spops_patches_capacity capacity = spops_patches_capacity_default();
        if (s->kind != TAPE_ATTENTION || e->patches[s->plan] != NULL) continue;
        capacity.num_rows = capacity.max_queries = e->base.tape.max_rows[s->plan / PTV3_CURVES];
        capacity.max_patches =
            (capacity.num_rows + engine_patch_rows(&e->base) - 1) / engine_patch_rows(&e->base) + 1;
        capacity.max_keys = capacity.num_rows + engine_patch_rows(&e->base);
        capacity.max_samples = 1;
        ENGINE_TRY(&e->base,
                   spops_patches_reserve(e->base.d->ctx, &capacity, &e->patches[s->plan]));
        e->base.tape.patches[s->plan] = e->patches[s->plan];
    }
    return 0;
}

static int create_plans(engine *e)
{
    const spops_kernel_shape stem = spops_kernel_shape_cube(3, 5, 1, 1);
    spops_pyramid_options levels = pyramid_options();
    spops_kernel_map_options contents = spops_kernel_map_options_default();

    levels.max_rows = e->max_rows;
    levels.max_pairs = e->max_pairs;
    contents.contents = e->base.tape.training ? SPOPS_MAP_FOR_CONV_BACKWARD : SPOPS_MAP_FOR_CONV;
    contents.max_pairs = e->max_stem_pairs;
    if (reserve_voxels(e, e->max_rows[0])) return 1;
    ENGINE_TRY(&e->base, spops_pyramid_reserve(e->base.d->ctx, spops_voxels_coords(e->base.voxels),
                                               &levels, &e->pyramid));
    ENGINE_TRY(&e->base, spops_kernel_map_reserve(e->base.d->ctx, SPOPS_MAP_SUBMANIFOLD, &stem,
                                                  spops_voxels_coords(e->base.voxels), NULL,
                                                  &contents, &e->stem));
    if (create_conv(e, PTV3_STEM, e->stem)) return 1;
    for (int l = 0; l < PTV3_LEVELS; ++l)
        if (create_conv(e, PTV3_WITHIN + l,
                        spops_pyramid_map(e->pyramid, SPOPS_PYRAMID_WITHIN, l)) ||
            (l + 1 < PTV3_LEVELS && create_pool(e, l)) ||
            tape_engine_make_cloud(&e->base, l, spops_pyramid_coords(e->pyramid, l), &e->clouds[l],
                                   &e->offsets[l]))
            return 1;
    return create_patches(e);
}

static int create(tape_engine *base, const scan *scans, int num_scans)
{
    engine *e = (engine *)base;
    int64_t max_rows[PTV3_LEVELS] = {0};

    for (int i = 0; i < num_scans; ++i)
        if (measure(e, &scans[i], max_rows)) return 1;
    memcpy(e->max_rows, max_rows, sizeof max_rows);
    return create_plans(e);
}

static void destroy(tape_engine *base)
{
    engine *e = (engine *)base;

    for (int i = 0; i < PTV3_LEVELS * PTV3_CURVES; ++i)
        spops_patches_destroy(e->patches[i]);
    for (int i = 0; i < PTV3_LEVELS - 1; ++i)
        spops_pool_destroy(e->pools[i]);
    for (int i = 0; i < 1 + PTV3_LEVELS; ++i)
        spops_sparseconv_destroy(e->convs[i]);
    spops_kernel_map_destroy(e->stem);
    spops_pyramid_destroy(e->pyramid);
    for (int l = 0; l < PTV3_LEVELS; ++l)
        device_free(base->d, e->offsets[l]);
}

/* ---- A frame ----------------------------------------------------------------------------------- */

/* Numbers about 1 in size. */
static void describe_point(const tape_engine *base, const float *point, int input, float *features)
{
    const float scaled[PTV3_FEATURES] = {point[0] / 50.0f, point[1] / 50.0f, point[2] / 4.0f,
                                         point[3]};
    (void)base;
    (void)input;
    memset(features, 0, TAPE_FEATURES * sizeof *features);
    memcpy(features, scaled, sizeof scaled);
}

static spops_status enqueue_voxels(engine *e)
{
    spops_matrix points =
        spops_matrix_dense(e->base.points, e->base.max_points, 4, SPOPS_DTYPE_F32);
    points.cols = 3;
    return spops_voxels_update(e->base.d->ctx, e->base.voxels, e->base.num_points, points, NULL);
}

static spops_status enqueue_stem(engine *e, spops_context *ctx)
{
    const spops_coords *finest = spops_voxels_coords(e->base.voxels);
    return spops_kernel_map_update(ctx, e->stem, finest, finest);
}

static spops_status enqueue_counts(engine *e)
{
    for (int l = 0; l < PTV3_LEVELS; ++l)
        ENGINE_PASS(tape_engine_enqueue_count(&e->base, l, e->offsets[l]));
    return SPOPS_STATUS_OK;
}

/* Patches of a level along a curve. */
static spops_status enqueue_patches(engine *e, spops_context *ctx, int plan)
{
    static const spops_patch_curve curves[PTV3_CURVES] = {
        SPOPS_PATCH_CURVE_ZORDER, SPOPS_PATCH_CURVE_ZORDER_TRANSPOSED, SPOPS_PATCH_CURVE_HILBERT,
        SPOPS_PATCH_CURVE_HILBERT_TRANSPOSED};
    const int level = plan / PTV3_CURVES;
    spops_patch_order order = spops_patch_order_default();

    if (e->patches[plan] == NULL) return SPOPS_STATUS_OK;
    order.patch_rows = engine_patch_rows(&e->base);
    order.borrow = 1;
    order.curve = curves[plan % PTV3_CURVES];
    order.bits = CUBE_BITS - level;
    for (int a = 0; a < 3; ++a)
        order.origin_m[a] = -(double)(1 << (order.bits - 1));
    return spops_patches_update_from_order(ctx, e->patches[plan], &e->clouds[level], &order);
}

static spops_status enqueue_part(tape_engine *base, int part)
{
    engine *e = (engine *)base;
    switch (part) {
    case PART_VOXELS: return enqueue_voxels(e);
    case PART_LEVELS: return spops_pyramid_update(base->d->ctx, e->pyramid);
    case PART_STEM: return enqueue_stem(e, base->d->ctx);
    case PART_PATCHES:
        ENGINE_PASS(enqueue_counts(e));
        for (int i = 0; i < PTV3_LEVELS * PTV3_CURVES; ++i)
            ENGINE_PASS(enqueue_patches(e, base->d->ctx, i));
        return SPOPS_STATUS_OK;
    case PART_PLANS: return spops_update(base->d->ctx, e->plans, e->num_plans);
    default: return tape_engine_enqueue_features(base);
    }
}

/* The map of the stem beside the levels; patches beside each other, and beside plans and features. */
static spops_status enqueue_parts(tape_engine *base)
{
    engine *e = (engine *)base;
    int next = 0;

    ENGINE_PASS(enqueue_part(base, PART_VOXELS));
    if (device_follow(&base->sides[0], base->d)) return SPOPS_STATUS_CUDA;
    ENGINE_PASS(enqueue_stem(e, base->sides[0].ctx));
    ENGINE_PASS(enqueue_part(base, PART_LEVELS));
    ENGINE_PASS(enqueue_counts(e));
    for (int i = 1; i < TAPE_SIDES; ++i)
        if (device_follow(&base->sides[i], base->d)) return SPOPS_STATUS_CUDA;
    for (int i = 0; i < PTV3_LEVELS * PTV3_CURVES; ++i)
        if (e->patches[i] != NULL)
            ENGINE_PASS(enqueue_patches(e, base->sides[1 + next++ % (TAPE_SIDES - 1)].ctx, i));
    if (device_follow(base->d, &base->sides[0])) return SPOPS_STATUS_CUDA;
    ENGINE_PASS(enqueue_part(base, PART_PLANS));
    ENGINE_PASS(enqueue_part(base, PART_FEATURES));
    for (int i = 1; i < TAPE_SIDES; ++i)
        if (device_follow(base->d, &base->sides[i])) return SPOPS_STATUS_CUDA;
    return SPOPS_STATUS_OK;
}

/* Coordinates, tables of maps, and the entries of patches once. */
static double part_bytes(const tape_engine *base, const tape_sizes *sizes, int part,
                         int64_t num_points)
{
    const engine *e = (const engine *)base;
    double bytes = 0;
    switch (part) {
    case PART_VOXELS: return 20.0 * (double)num_points + 16.0 * (double)sizes->rows[0];
    case PART_STEM: return 4.0 * 128 * (double)sizes->rows[0];
    case PART_LEVELS:
        for (int l = 0; l < PTV3_LEVELS; ++l)
            bytes += (16 + 4 * 28 + 8 + 2 * (4 * 8 + 8)) * (double)sizes->rows[l];
        return bytes;
    case PART_PATCHES:
        for (int i = 0; i < PTV3_LEVELS * PTV3_CURVES; ++i)
            if (e->patches[i] != NULL) bytes += (12 + 8) * (double)sizes->rows[i / PTV3_CURVES];
        return bytes;
    case PART_FEATURES:
        return 2.0 * TAPE_FEATURES * (double)spops_dtype_bytes(base->tape.dtype) *
               (double)sizes->rows[0];
    default: return 0;
    }
}

static int get_sizes(const tape_engine *base, tape_sizes *sizes)
{
    const engine *e = (const engine *)base;
    spops_pyramid_info info = spops_pyramid_info_default();
    spops_kernel_map_info map = spops_kernel_map_info_default();

    memset(sizes, 0, sizeof *sizes);
    ENGINE_TRY(base, spops_pyramid_get_info_sync(base->d->ctx, e->pyramid, &info));
    ENGINE_TRY(base, spops_kernel_map_get_info_sync(base->d->ctx, e->stem, &map));
    sizes->pairs[PTV3_STEM] = map.num_pairs;
    for (int l = 0; l < PTV3_LEVELS; ++l) {
        sizes->rows[l] = info.num_rows[l];
        sizes->pairs[PTV3_WITHIN + l] = info.num_pairs[l];
    }
    for (int i = 0; i < PTV3_LEVELS * PTV3_CURVES; ++i) {
        spops_patches_info patches = spops_patches_info_default();
        if (e->patches[i] == NULL) continue;
        ENGINE_TRY(base, spops_patches_get_info_sync(base->d->ctx, e->patches[i], &patches));
        const double rows = (double)patches.num_queries, most = (double)engine_patch_rows(base);
        sizes->keys[i] = rows < most ? rows : most;
    }
    return 0;
}

/* ---- The network as its program sees it -------------------------------------------------------- */

static const ptv3_config *config_of(int is_small)
{
    return is_small ? &ptv3_small : &ptv3_base;
}

int engine_patch_rows(const tape_engine *base)
{
    return config_of(base->is_small)->patch_rows;
}

static void build(tape *t, int is_small)
{
    ptv3_build(t, config_of(is_small));
}

static const char *const part_names[NUM_PARTS] = {"voxels",  "levels", "stem",
                                                  "patches", "plans",  "features"};

const tape_network ptv3_network = {.name = "ptv3",
                                   .title = "Point Transformer V3",
                                   .engine_bytes = sizeof(engine),
                                   .voxel_m = 0.05,
                                   .check_voxel_m = 0.4,
                                   .parts = part_names,
                                   .num_parts = NUM_PARTS,
                                   .stages = ptv3_stage_names,
                                   .num_stages = PTV3_STAGES,
                                   .num_inputs = 1,
                                   .reduce = SPOPS_REDUCE_SUM, /* of the first point alone */
                                   .build = build,
                                   .describe_point = describe_point,
                                   .create = create,
                                   .destroy = destroy,
                                   .enqueue_part = enqueue_part,
                                   .enqueue_parts = enqueue_parts,
                                   .part_bytes = part_bytes,
                                   .get_sizes = get_sizes,
                                   .check = reference_check};
