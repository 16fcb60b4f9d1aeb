// SPDX-License-Identifier: Apache-2.0
/* The engine: plans and memory, and the work of a frame. */
#include "ptv3/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Points to voxels; coarser voxels, and maps down; the map of the stem and its convolution; those within levels;
   patches; pools; features of voxels. */
enum {
    PART_VOXELS,
    PART_LEVELS,
    PART_STEM,
    PART_MAPS,
    PART_PATCHES,
    PART_POOLS,
    PART_FEATURES,
    NUM_PARTS
};

/* Streams beside the main one, and what is made on each in turn. The first three need voxels alone. */
enum {
    SIDE_STEM,           /* the map of the stem */
    SIDE_FINEST_MAP,     /* within level 0 */
    SIDE_FINEST_PATCHES, /* of level 0 */
    SIDE_LEVELS,         /* levels, then pools */
    SIDE_MAPS,           /* within the other levels */
    SIDE_PATCHES         /* of the other levels */
};

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
    DEVICE_TRY(e->base.d, spops_voxels_reserve(e->base.d->ctx, 3, e->base.max_points, max_voxels,
                                               &options, &e->base.voxels));
    return 0;
}

/* Levels, and the maps down that pools take. Rows of a level come in the order of their first finer row:
   that is Morton order again. */
static int reserve_pyramid(engine *e, const int64_t *max_rows)
{
    static const spops_kernel_shape *const none[PTV3_LEVELS];
    spops_pyramid_options options = spops_pyramid_options_default();

    options.num_levels = PTV3_LEVELS;
    options.within = none;
    options.contents = SPOPS_MAP_PAIRS;
    options.max_rows = max_rows;
    DEVICE_TRY(e->base.d, spops_pyramid_reserve(e->base.d->ctx, spops_voxels_coords(e->base.voxels),
                                                &options, &e->pyramid));
    return 0;
}

/* Map i is that of the stem, or within level i - 1. */
static const spops_coords *coords_of(const engine *e, int i)
{
    return spops_pyramid_coords(e->pyramid, i == PTV3_STEM ? 0 : i - PTV3_WITHIN);
}

static spops_kernel_shape kernel_of(int i)
{
    return spops_kernel_shape_cube(3, i == PTV3_STEM ? 5 : 3, 1, 1);
}

static void keep_larger(int64_t *most, int64_t n)
{
    if (rows_with_room(n) > *most) *most = rows_with_room(n);
}

/* Plans a scan once, into capacities that cannot be exceeded, to see how many rows and pairs it has. */
static int measure(engine *e, const scan *s, int64_t *max_rows)
{
    spops_context *ctx = e->base.d->ctx;
    spops_pyramid_info info = spops_pyramid_info_default();
    spops_kernel_map_options contents = spops_kernel_map_options_default();

    contents.contents = SPOPS_MAP_TABLE;
    if (reserve_voxels(e, e->base.max_points) || tape_engine_upload(&e->base, s) ||
        reserve_pyramid(e, NULL))
        return 1;
    DEVICE_TRY(e->base.d, enqueue_part(&e->base, PART_VOXELS));
    DEVICE_TRY(e->base.d, spops_pyramid_update(ctx, e->pyramid));
    DEVICE_TRY(e->base.d, spops_pyramid_get_info_sync(ctx, e->pyramid, &info));
    for (int l = 0; l < PTV3_LEVELS; ++l)
        keep_larger(&max_rows[l], info.num_rows[l]);
    for (int i = 0; i <= PTV3_LEVELS; ++i) {
        const spops_kernel_shape kernel = kernel_of(i);
        spops_kernel_map_info found = spops_kernel_map_info_default();
        spops_kernel_map *map = NULL;
        DEVICE_TRY(e->base.d, spops_kernel_map_create(ctx, SPOPS_MAP_SUBMANIFOLD, &kernel,
                                                      coords_of(e, i), NULL, &contents, &map));
        DEVICE_TRY(e->base.d, spops_kernel_map_get_info_sync(ctx, map, &found));
        keep_larger(&e->max_pairs[i], found.num_pairs);
        spops_kernel_map_destroy(map);
    }
    spops_pyramid_destroy(e->pyramid);
    spops_voxels_destroy(e->base.voxels);
    e->pyramid = NULL;
    e->base.voxels = NULL;
    return 0;
}

/* ---- Plans ------------------------------------------------------------------------------------- */

/* Where kernels of tensor cores serve every layer, maps for inference need no pairs, and plans no other way of
   running. */
static int create_conv(engine *e, int i)
{
    const spops_kernel_shape kernel = kernel_of(i);
    spops_context *ctx = e->base.d->ctx;
    spops_kernel_map_options contents = spops_kernel_map_options_default();
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_kernel_map_info info = spops_kernel_map_info_default();

    contents.contents = e->implicit_gemm        ? SPOPS_MAP_ORDER
                        : e->base.tape.training ? SPOPS_MAP_FOR_CONV_BACKWARD
                                                : SPOPS_MAP_FOR_CONV;
    contents.max_pairs = e->max_pairs[i];
    DEVICE_TRY(e->base.d, spops_kernel_map_reserve(ctx, SPOPS_MAP_SUBMANIFOLD, &kernel,
                                                   coords_of(e, i), NULL, &contents, &e->maps[i]));
    DEVICE_TRY(e->base.d, spops_kernel_map_get_info_sync(ctx, e->maps[i], &info));
    if (e->base.tape.dtype == SPOPS_DTYPE_F16 && !e->base.tape.training && !e->implicit_gemm &&
        (info.contents & SPOPS_MAP_ORDER)) {
        e->implicit_gemm = 1;
        spops_kernel_map_destroy(e->maps[i]);
        e->maps[i] = NULL;
        return create_conv(e, i);
    }
    options.backward = e->base.tape.training;
    options.max_in_channels = options.max_out_channels = 512;
    if (e->implicit_gemm) options.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    DEVICE_TRY(e->base.d, spops_sparseconv_create(ctx, e->maps[i], &options, &e->convs[i]));
    e->base.tape.convs[i] = e->convs[i];
    return 0;
}

static int create_pool(engine *e, int l)
{
    spops_pool_options options = spops_pool_options_default();
    options.gradients = e->base.tape.training ? SPOPS_GRADIENTS_ALL : SPOPS_GRADIENTS_NONE;
    options.max_cols = 512;
    DEVICE_TRY(e->base.d, spops_pool_create(e->base.d->ctx,
                                            spops_pyramid_map(e->pyramid, SPOPS_PYRAMID_DOWN, l),
                                            &options, &e->pools[l]));
    e->base.tape.pools[l] = e->pools[l];
    return 0;
}

/* Scratch for the plans of patches of levels first to last - 1 at once. */
static int reserve_patches_scratch(engine *e, const device *d, int first, int last)
{
    const spops_patches *plans[PTV3_LEVELS * PTV3_CURVES];
    int num = 0;

    for (int i = first * PTV3_CURVES; i < last * PTV3_CURVES; ++i)
        if (e->patches[i] != NULL) plans[num++] = e->patches[i];
    DEVICE_TRY(e->base.d,
               spops_context_reserve(d->ctx, spops_patches_orders_scratch_bytes(plans, num)));
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
        DEVICE_TRY(e->base.d,
                   spops_patches_reserve(e->base.d->ctx, &capacity, &e->patches[s->plan]));
        e->base.tape.patches[s->plan] = e->patches[s->plan];
    }
    return reserve_patches_scratch(e, e->base.d, 0, PTV3_LEVELS) ||
           reserve_patches_scratch(e, &e->base.sides[SIDE_FINEST_PATCHES], 0, 1) ||
           reserve_patches_scratch(e, &e->base.sides[SIDE_PATCHES], 1, PTV3_LEVELS);
}

static int create_plans(engine *e)
{
    if (reserve_voxels(e, e->max_rows[0]) || reserve_pyramid(e, e->max_rows)) return 1;
    for (int i = 0; i <= PTV3_LEVELS; ++i)
        if (create_conv(e, i)) return 1;
    for (int l = 0; l < PTV3_LEVELS; ++l)
        if ((l + 1 < PTV3_LEVELS && create_pool(e, l)) ||
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
    for (int i = 0; i <= PTV3_LEVELS; ++i) {
        spops_sparseconv_destroy(e->convs[i]);
        spops_kernel_map_destroy(e->maps[i]);
    }
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

/* Maps first to last - 1, and the plans of their convolutions. */
static spops_status enqueue_maps(engine *e, spops_context *ctx, int first, int last)
{
    spops_plan *plans[2 * (1 + PTV3_LEVELS)];
    int num = 0;

    for (int i = first; i < last; ++i) {
        const spops_coords *coords = coords_of(e, i);
        PASS(spops_kernel_map_update(ctx, e->maps[i], coords, coords));
        plans[num++] = (spops_plan *)e->convs[i];
    }
    return spops_update(ctx, plans, num);
}

static spops_status enqueue_pools(engine *e, spops_context *ctx)
{
    spops_plan *plans[PTV3_LEVELS];
    for (int l = 0; l + 1 < PTV3_LEVELS; ++l)
        plans[l] = (spops_plan *)e->pools[l];
    return spops_update(ctx, plans, PTV3_LEVELS - 1);
}

/* A level's rows along a curve. */
static spops_patch_order order_of(const engine *e, int plan)
{
    static const spops_patch_curve curves[PTV3_CURVES] = {
        SPOPS_PATCH_CURVE_ZORDER, SPOPS_PATCH_CURVE_ZORDER_TRANSPOSED, SPOPS_PATCH_CURVE_HILBERT,
        SPOPS_PATCH_CURVE_HILBERT_TRANSPOSED};
    spops_patch_order order = spops_patch_order_default();

    order.patch_rows = engine_patch_rows(&e->base);
    order.borrow = 1;
    order.curve = curves[plan % PTV3_CURVES];
    order.bits = CUBE_BITS - plan / PTV3_CURVES;
    for (int a = 0; a < 3; ++a)
        order.origin_m[a] = -(double)(1 << (order.bits - 1));
    return order;
}

/* The plans of patches of levels first to last - 1, at once. */
static spops_status enqueue_patches(engine *e, spops_context *ctx, int first, int last)
{
    spops_patches *plans[PTV3_LEVELS * PTV3_CURVES];
    spops_point_cloud clouds[PTV3_LEVELS * PTV3_CURVES];
    spops_patch_order orders[PTV3_LEVELS * PTV3_CURVES];
    int num = 0;

    for (int i = first * PTV3_CURVES; i < last * PTV3_CURVES; ++i) {
        if (e->patches[i] == NULL) continue;
        plans[num] = e->patches[i];
        clouds[num] = e->clouds[i / PTV3_CURVES];
        orders[num++] = order_of(e, i);
    }
    return spops_patches_update_from_orders(ctx, num, plans, clouds, orders);
}

static spops_status enqueue_part(tape_engine *base, int part)
{
    engine *e = (engine *)base;
    switch (part) {
    case PART_VOXELS: return enqueue_voxels(e);
    case PART_LEVELS: return spops_pyramid_update(base->d->ctx, e->pyramid);
    case PART_STEM: return enqueue_maps(e, base->d->ctx, PTV3_STEM, PTV3_WITHIN);
    case PART_MAPS: return enqueue_maps(e, base->d->ctx, PTV3_WITHIN, 1 + PTV3_LEVELS);
    case PART_PATCHES:
        for (int l = 0; l < PTV3_LEVELS; ++l)
            PASS(tape_engine_enqueue_count(base, base->d, l, e->offsets[l]));
        return enqueue_patches(e, base->d->ctx, 0, PTV3_LEVELS);
    case PART_POOLS: return enqueue_pools(e, base->d->ctx);
    default: return tape_engine_enqueue_features(base);
    }
}

/* What no layer waits for, and what the first layers wait for. */
static spops_status enqueue_parts(tape_engine *base)
{
    engine *e = (engine *)base;
    const device *sides = base->sides, *levels = &sides[SIDE_LEVELS];

    memset(e->made_maps, 0, sizeof e->made_maps);
    memset(e->made_patches, 0, sizeof e->made_patches);
    e->made_pools = 0;
    PASS(enqueue_part(base, PART_VOXELS));
    if (tape_engine_fork(base)) return SPOPS_STATUS_CUDA;
    PASS(spops_pyramid_update(levels->ctx, e->pyramid));
    if (device_follow(&sides[SIDE_MAPS], levels) || device_follow(&sides[SIDE_PATCHES], levels))
        return SPOPS_STATUS_CUDA;
    for (int l = 0; l < PTV3_LEVELS; ++l)
        PASS(tape_engine_enqueue_count(base, &sides[l == 0 ? SIDE_FINEST_PATCHES : SIDE_PATCHES], l,
                                       e->offsets[l]));
    return enqueue_part(base, PART_FEATURES);
}

/* A plan is made before the first step that takes it, and that step alone waits for it: the layers of a level
   run beside the plans of the levels after it. */
static spops_status enqueue_plan(tape_engine *base, const tape_step *s)
{
    engine *e = (engine *)base;
    const int is_conv = s->kind == TAPE_CONV, is_attention = s->kind == TAPE_ATTENTION;
    const device *side;
    const int is_finest = s->plan < PTV3_CURVES; /* patches of level 0 */
    char *made;

    if (!is_conv && !is_attention && s->kind != TAPE_POOL && s->kind != TAPE_UNPOOL)
        return SPOPS_STATUS_OK;
    made = is_conv        ? &e->made_maps[s->plan]
           : is_attention ? &e->made_patches[is_finest]
                          : &e->made_pools;
    if (*made) return SPOPS_STATUS_OK;
    *made = 1;
    if (is_conv) {
        side = &base->sides[s->plan == PTV3_STEM     ? SIDE_STEM
                            : s->plan == PTV3_WITHIN ? SIDE_FINEST_MAP
                                                     : SIDE_MAPS];
        PASS(enqueue_maps(e, side->ctx, s->plan, s->plan + 1));
    } else if (is_attention) {
        side = &base->sides[is_finest ? SIDE_FINEST_PATCHES : SIDE_PATCHES];
        PASS(enqueue_patches(e, side->ctx, is_finest ? 0 : 1, is_finest ? 1 : PTV3_LEVELS));
    } else {
        side = &base->sides[SIDE_LEVELS];
        PASS(enqueue_pools(e, side->ctx));
    }
    return device_follow(base->d, side) ? SPOPS_STATUS_CUDA : SPOPS_STATUS_OK;
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
    case PART_MAPS:
        for (int l = 0; l < PTV3_LEVELS; ++l)
            bytes += (part == PART_MAPS ? 16 + 4 * 28 + 8 : 16 + 4 * 8) * (double)sizes->rows[l];
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

    memset(sizes, 0, sizeof *sizes);
    DEVICE_TRY(base->d, spops_pyramid_get_info_sync(base->d->ctx, e->pyramid, &info));
    for (int l = 0; l < PTV3_LEVELS; ++l)
        sizes->rows[l] = info.num_rows[l];
    for (int i = 0; i <= PTV3_LEVELS; ++i) {
        spops_kernel_map_info map = spops_kernel_map_info_default();
        DEVICE_TRY(base->d, spops_kernel_map_get_info_sync(base->d->ctx, e->maps[i], &map));
        sizes->pairs[i] = map.num_pairs;
    }
    for (int i = 0; i < PTV3_LEVELS * PTV3_CURVES; ++i) {
        spops_patches_info patches = spops_patches_info_default();
        if (e->patches[i] == NULL) continue;
        DEVICE_TRY(base->d, spops_patches_get_info_sync(base->d->ctx, e->patches[i], &patches));
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

static const char *const part_names[NUM_PARTS] = {"voxels",  "levels", "stem",    "maps",
                                                  "patches", "pools",  "features"};

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
                                   .enqueue_plan = enqueue_plan,
                                   .part_bytes = part_bytes,
                                   .get_sizes = get_sizes,
                                   .check = reference_check};
