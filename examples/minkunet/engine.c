// SPDX-License-Identifier: Apache-2.0
/* The engine: plans and memory, and the work of a frame. */
#include "minkunet/engine.h"

#include "networks/parameters_upload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call) DEVICE_TRY(e->d, call)

/* ---- Capacities ----------------------------------------------------------------------------- */

/* All that the sensor can see, in voxels; points farther away are left out. */
static spops_coords_box box_of(double voxel_m)
{
    static const double reach_m[3] = {120, 120, 20};
    spops_coords_box box;
    memset(&box, 0, sizeof box);
    for (int a = 0; a < 3; ++a) {
        box.upper[a + 1] = (int32_t)floor(reach_m[a] / voxel_m);
        box.lower[a + 1] = -box.upper[a + 1];
    }
    return box;
}

static spops_voxels_options voxel_options(double voxel_m, const spops_coords_options *coords)
{
    spops_voxels_options options = spops_voxels_options_default();
    for (int a = 0; a < 3; ++a)
        options.size_m[a] = voxel_m;
    options.coords = coords;
    options.max_cols = NUM_INPUTS;
    return options;
}

/* Plans a scan once, to see how many rows and pairs it has at each level. */
static int measure(engine *e, double voxel_m, const scan *s)
{
    const spops_coords_box box = box_of(voxel_m);
    spops_coords_options coords = spops_coords_options_default();
    spops_pyramid_info info = spops_pyramid_info_default();
    spops_kernel_map_info map = spops_kernel_map_info_default();
    const int32_t n = (int32_t)s->num_points;
    spops_voxels_options options = voxel_options(voxel_m, &coords);
    spops_matrix points;

    coords.box = &box;
    e->max_points = s->num_points;
    e->points = (float *)device_alloc(e->d, (size_t)n * 4 * sizeof *e->points);
    e->num_points = (int32_t *)device_alloc(e->d, sizeof n);
    if (e->points == NULL || e->num_points == NULL ||
        device_upload(e->d, e->points, s->points, (size_t)n * 4 * sizeof *e->points) ||
        device_upload(e->d, e->num_points, &n, sizeof n))
        return 1;
    points = spops_matrix_dense(e->points, n, 4, SPOPS_DTYPE_F32);
    points.cols = 3;
    TRY(spops_voxels_reserve(e->d->ctx, 3, n, n, &options, &e->voxels));
    TRY(spops_pyramid_reserve(e->d->ctx, spops_voxels_coords(e->voxels), NULL, &e->pyramid));
    TRY(spops_voxels_update(e->d->ctx, e->voxels, e->num_points, points, NULL));
    TRY(spops_pyramid_update(e->d->ctx, e->pyramid));
    TRY(spops_pyramid_get_info_sync(e->d->ctx, e->pyramid, &info));
    /* Maps made with defaults have what this device's convolutions run on: ORDER where it has
       implicit GEMM, which takes every layer in 16 bits. */
    TRY(spops_kernel_map_get_info_sync(
        e->d->ctx, spops_pyramid_map(e->pyramid, SPOPS_PYRAMID_WITHIN, 0), &map));
    e->implicit_gemm = e->dtype == SPOPS_DTYPE_F16 && (map.contents & SPOPS_MAP_ORDER) != 0;
    spops_pyramid_destroy(e->pyramid);
    spops_voxels_destroy(e->voxels);
    device_free(e->d, e->points);
    device_free(e->d, e->num_points);
    e->pyramid = NULL;
    e->voxels = NULL;
    e->points = NULL;
    e->num_points = NULL;
    for (int l = 0; l < NUM_LEVELS; ++l) {
        if (rows_with_room(info.num_rows[l]) > e->max_rows[l])
            e->max_rows[l] = rows_with_room(info.num_rows[l]);
        if (rows_with_room(info.num_pairs[l]) > e->max_pairs[l])
            e->max_pairs[l] = rows_with_room(info.num_pairs[l]);
    }
    return 0;
}

/* ---- Plans ---------------------------------------------------------------------------------- */

/* Where kernels of tensor cores serve every layer, maps need no pairs, and plans no other way of
   running. */
static int32_t contents_of_maps(const engine *e)
{
    return e->implicit_gemm ? SPOPS_MAP_ORDER : SPOPS_MAP_FOR_CONV;
}

static int create_conv(engine *e, const spops_kernel_map *map, spops_sparseconv **conv)
{
    spops_sparseconv_options options = spops_sparseconv_options_default();
    options.max_in_channels = 512;
    if (e->implicit_gemm) options.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    TRY(spops_sparseconv_create(e->d->ctx, map, &options, conv));
    e->plan_bytes += spops_plan_bytes((const spops_plan *)*conv);
    return 0;
}

/* Where the device says how many rows level l has: linear layers, which have no plan, ask there. */
static int count_rows(engine *e, int l)
{
    spops_kernel_map_view view = spops_kernel_map_view_default();
    TRY(spops_kernel_map_get_view(e->d->ctx, spops_pyramid_map(e->pyramid, SPOPS_PYRAMID_WITHIN, l),
                                  &view));
    e->num_rows[l] = view.out->num_rows;
    return 0;
}

static int create_plans(engine *e, double voxel_m)
{
    const spops_coords_box box = box_of(voxel_m);
    spops_coords_options coords = spops_coords_options_default();
    const spops_voxels_options voxels = voxel_options(voxel_m, &coords);
    spops_pyramid_options levels = spops_pyramid_options_default();

    coords.box = &box;
    levels.num_levels = NUM_LEVELS;
    levels.contents = contents_of_maps(e);
    levels.search = SPOPS_COORDS_SEARCH_HASH;
    levels.max_rows = e->max_rows;
    levels.max_pairs = e->max_pairs;
    TRY(spops_voxels_reserve(e->d->ctx, 3, e->max_points, e->max_rows[0], &voxels, &e->voxels));
    TRY(spops_context_reserve(e->side.ctx,
                              spops_segments_scratch_bytes(spops_voxels_segments(e->voxels))));
    TRY(spops_pyramid_reserve(e->d->ctx, spops_voxels_coords(e->voxels), &levels, &e->pyramid));
    TRY(spops_linear_reserve(e->d->ctx, e->max_rows[0], 512, 512, 0));
    for (int l = 0; l < NUM_LEVELS; ++l) {
        const spops_kernel_map *down = spops_pyramid_map(e->pyramid, SPOPS_PYRAMID_DOWN, l);
        const spops_kernel_map *up = spops_pyramid_map(e->pyramid, SPOPS_PYRAMID_UP, l);
        if (create_conv(e, spops_pyramid_map(e->pyramid, SPOPS_PYRAMID_WITHIN, l), &e->within[l]))
            return 1;
        if (down != NULL && (create_conv(e, down, &e->down[l]) || create_conv(e, up, &e->up[l])))
            return 1;
        if (count_rows(e, l)) return 1;
        e->plans[e->num_plans++] = (spops_plan *)e->within[l];
        if (down == NULL) continue;
        e->plans[e->num_plans++] = (spops_plan *)e->down[l];
        e->plans[e->num_plans++] = (spops_plan *)e->up[l];
    }
    return 0;
}

/* ---- Memory --------------------------------------------------------------------------------- */

int engine_create(engine *e, const device *d, const network *net, spops_dtype dtype, double voxel_m,
                  const scan *scans, int num_scans)
{
    const size_t each = spops_dtype_bytes(dtype);

    memset(e, 0, sizeof *e);
    e->d = d;
    e->net = net;
    e->dtype = dtype;
    if (device_open_beside(&e->side, d)) return 1;
    for (int i = 0; i < num_scans; ++i)
        if (measure(e, voxel_m, &scans[i])) return 1;
    for (int i = 0; i < num_scans; ++i)
        if (scans[i].num_points > e->max_points) e->max_points = scans[i].num_points;
    e->points = (float *)device_alloc(d, (size_t)e->max_points * 4 * sizeof *e->points);
    e->features = device_alloc(d, (size_t)e->max_points * NUM_INPUTS * each);
    e->num_points = (int32_t *)device_alloc(d, sizeof *e->num_points);
    if (e->points == NULL || e->features == NULL || e->num_points == NULL) return 1;
    for (int b = 0; b < net->num_buffers; ++b) {
        e->buffers[b] = device_alloc(d, (size_t)e->max_rows[net->buffers[b].level] *
                                            (size_t)net->buffers[b].cols * each);
        if (e->buffers[b] == NULL) return 1;
    }
    for (int i = 0; i < net->num_layers; ++i)
        if (folded_parameters_upload(d, &net->layers[i].folded, net->layers[i].taps, e->dtype,
                                     &e->weights[i], &e->scale[i], &e->shift[i]))
            return 1;
    return create_plans(e, voxel_m);
}

void engine_destroy(engine *e)
{
    for (int l = 0; l < NUM_LEVELS; ++l) {
        spops_sparseconv_destroy(e->within[l]);
        spops_sparseconv_destroy(e->down[l]);
        spops_sparseconv_destroy(e->up[l]);
    }
    spops_pyramid_destroy(e->pyramid);
    spops_voxels_destroy(e->voxels);
    for (int b = 0; b < MAX_BUFFERS; ++b)
        device_free(e->d, e->buffers[b]);
    for (int i = 0; i < MAX_LAYERS; ++i) {
        device_free(e->d, e->weights[i]);
        device_free(e->d, e->scale[i]);
        device_free(e->d, e->shift[i]);
    }
    device_free(e->d, e->points);
    device_free(e->d, e->features);
    device_free(e->d, e->num_points);
    device_close(&e->side);
}

/* ---- A frame -------------------------------------------------------------------------------- */

/* What the network sees of a point: its place and reflectance, each about 1 in size. */
static void describe_point(const float *p, float *features)
{
    features[0] = p[0] / 50.0f;
    features[1] = p[1] / 50.0f;
    features[2] = p[2] / 4.0f;
    features[3] = p[3];
    for (int c = NUM_FEATURES; c < NUM_INPUTS; ++c)
        features[c] = 0.0f;
}

int engine_upload(engine *e, const scan *s)
{
    const size_t n = (size_t)s->num_points, each = spops_dtype_bytes(e->dtype);
    const int32_t count = (int32_t)s->num_points;
    float *features = (float *)malloc(n * NUM_INPUTS * sizeof *features + 1);
    void *narrow = malloc(n * NUM_INPUTS * each + 1);
    int failed = features == NULL || narrow == NULL;

    for (size_t i = 0; i < n && !failed; ++i)
        describe_point(s->points + 4 * i, features + i * NUM_INPUTS);
    failed = failed ||
             device_convert(e->d, SPOPS_DTYPE_F32, features, e->dtype, narrow, n * NUM_INPUTS) ||
             device_upload(e->d, e->points, s->points, n * 4 * sizeof *s->points) ||
             device_upload(e->d, e->features, narrow, n * NUM_INPUTS * each) ||
             device_upload(e->d, e->num_points, &count, sizeof count);
    free(features);
    free(narrow);
    return failed;
}

static spops_matrix points_of(const engine *e)
{
    spops_matrix points = spops_matrix_dense(e->points, e->max_points, 4, SPOPS_DTYPE_F32);
    points.cols = 3;
    return points;
}

spops_status engine_enqueue_voxels(engine *e)
{
    return spops_voxels_update(e->d->ctx, e->voxels, e->num_points, points_of(e), NULL);
}

spops_status engine_enqueue_pyramid(engine *e)
{
    return spops_pyramid_update(e->d->ctx, e->pyramid);
}

spops_status engine_enqueue_plans(engine *e)
{
    return spops_update(e->d->ctx, e->plans, e->num_plans);
}

/* All rows that a buffer has room for; how many count, the plans know. */
static spops_matrix matrix_of(const engine *e, const feature_view *v)
{
    const feature_buffer *b = &e->net->buffers[v->buffer];
    char *data = (char *)e->buffers[v->buffer] + (size_t)v->col * spops_dtype_bytes(e->dtype);
    spops_matrix m = spops_matrix_dense(data, e->max_rows[b->level], b->cols, e->dtype);
    m.cols = v->cols;
    return m;
}

static spops_status enqueue_features(engine *e, spops_context *ctx)
{
    const feature_view input = {e->net->input, 0, NUM_INPUTS};
    return spops_segreduce_execute(
        ctx, spops_voxels_segments(e->voxels), SPOPS_REDUCE_MEAN,
        spops_matrix_dense(e->features, e->max_points, NUM_INPUTS, e->dtype), NULL,
        matrix_of(e, &input), NULL);
}

spops_status engine_enqueue_features(engine *e)
{
    return enqueue_features(e, e->d->ctx);
}

static const spops_sparseconv *plan_of(const engine *e, const layer *l)
{
    switch (l->relation) {
    case WITHIN: return e->within[l->level];
    case DOWN: return e->down[l->level - 1];
    case UP: return e->up[l->level];
    case POINTWISE: break;
    }
    return NULL;
}

spops_status engine_enqueue_layer(engine *e, int i)
{
    const layer *l = &e->net->layers[i];
    const spops_matrix w =
        spops_matrix_dense(e->weights[i], (int64_t)l->taps * l->in.cols, l->out.cols, e->dtype);
    const spops_matrix residual = matrix_of(e, &l->residual);
    spops_conv_layer epilogue = spops_conv_layer_default();

    epilogue.scale = e->scale[i];
    epilogue.shift = e->shift[i];
    epilogue.residual = l->residual.cols > 0 ? &residual : NULL;
    epilogue.activation = l->relu ? SPOPS_ACTIVATION_RELU : SPOPS_ACTIVATION_NONE;
    /* Plans, weights and numbers of rows are older than the first layer. */
    epilogue.reads_ahead = i > 0;
    if (l->relation != POINTWISE)
        return spops_sparseconv_execute(e->d->ctx, plan_of(e, l), matrix_of(e, &l->in), w,
                                        &epilogue, matrix_of(e, &l->out));
    epilogue.num_rows = e->num_rows[l->level];
    return spops_linear_execute(e->d->ctx, matrix_of(e, &l->in), w, &epilogue,
                                matrix_of(e, &l->out));
}

spops_status engine_enqueue_layers(engine *e)
{
    for (int i = 0; i < e->net->num_layers; ++i)
        PASS(engine_enqueue_layer(e, i));
    return SPOPS_STATUS_OK;
}

spops_status engine_enqueue_frame(engine *e)
{
    spops_context *side = e->side.ctx;
    PASS(spops_voxels_update_coords(e->d->ctx, e->voxels, e->num_points, points_of(e), NULL));
    if (device_follow(&e->side, e->d)) return SPOPS_STATUS_CUDA;
    PASS(spops_voxels_update_segments(side, e->voxels, e->num_points, points_of(e), NULL));
    PASS(enqueue_features(e, side));
    PASS(engine_enqueue_pyramid(e));
    PASS(engine_enqueue_plans(e));
    if (device_follow(e->d, &e->side)) return SPOPS_STATUS_CUDA;
    return engine_enqueue_layers(e);
}

int engine_sizes(const engine *e, spops_pyramid_info *info)
{
    *info = spops_pyramid_info_default();
    TRY(spops_pyramid_get_info_sync(e->d->ctx, e->pyramid, info));
    return 0;
}
