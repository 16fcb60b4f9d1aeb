// SPDX-License-Identifier: Apache-2.0
/* The encoder: sets, maps, plans and memory, and the work of a frame. */
#include "centerpoint/encoder.h"

#include "networks/parameters_upload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call) DEVICE_TRY(e->d, call)

/* ---- Sets and maps -------------------------------------------------------------------------- */

/* All cells of a level: an output outside them does not exist. */
static spops_coords_box box_of(int level)
{
    spops_coords_box box;
    memset(&box, 0, sizeof box);
    for (int a = 0; a < 3; ++a)
        box.upper[a + 1] = level_shapes[level].size[a] - 1;
    return box;
}

static const spops_coords *set_of(const encoder *e, int level)
{
    return level == 0 ? spops_voxels_coords(e->voxels) : e->sets[level];
}

static int reserve_voxels(encoder *e)
{
    const spops_coords_box box = box_of(0);
    spops_coords_options coords = spops_coords_options_default();
    spops_voxels_options options = spops_voxels_options_default();

    coords.box = &box;
    for (int a = 0; a < 3; ++a) {
        options.size_m[a] = voxel_size_m[a];
        options.origin_m[a] = voxel_origin_m[a];
    }
    options.coords = &coords;
    options.max_cols = NUM_INPUTS;
    options.points = SPOPS_VOXEL_POINTS_FIRST;
    options.most_points = POINTS_A_VOXEL;
    TRY(spops_voxels_reserve(e->d->ctx, 3, e->max_points, e->max_rows[0], &options, &e->voxels));
    return 0;
}

static int reserve_set(encoder *e, int level)
{
    const spops_coords_box box = box_of(level);
    const spops_kernel_shape kernel = kernel_to_level(level);
    spops_coords_options options = spops_coords_options_default();

    options.box = &box;
    /* The last grid has 64,800 cells, and each of them is looked up. */
    options.search = level + 1 < NUM_LEVELS ? SPOPS_COORDS_SEARCH_HASH : SPOPS_COORDS_SEARCH_GRID;
    TRY(spops_coords_reserve(e->d->ctx, 3, e->max_rows[level],
                             e->max_rows[level - 1] * spops_kernel_shape_num_candidates(&kernel, 0),
                             &options, &e->sets[level]));
    return 0;
}

static spops_status enqueue_voxels(encoder *e)
{
    spops_matrix points = spops_matrix_dense(e->points, e->max_points, 4, SPOPS_DTYPE_F32);
    points.cols = 3;
    return spops_voxels_update(e->d->ctx, e->voxels, e->num_points, points, NULL);
}

static spops_status enqueue_set(encoder *e, spops_context *ctx, int level)
{
    const spops_kernel_shape kernel = kernel_to_level(level);
    return spops_coords_update_downsampled(ctx, e->sets[level], set_of(e, level - 1), &kernel);
}

static int alloc_points(encoder *e)
{
    const size_t n = (size_t)e->max_points;
    e->points = (float *)device_alloc(e->d, n * 4 * sizeof *e->points);
    e->features = device_alloc(e->d, n * NUM_INPUTS * spops_dtype_bytes(e->dtype));
    e->num_points = (int32_t *)device_alloc(e->d, sizeof *e->num_points);
    return e->points == NULL || e->features == NULL || e->num_points == NULL;
}

static void destroy_sets(encoder *e)
{
    for (int l = 0; l < NUM_LEVELS; ++l) {
        spops_coords_destroy(e->sets[l]);
        e->sets[l] = NULL;
    }
    spops_voxels_destroy(e->voxels);
    e->voxels = NULL;
}

/* The sets of a frame once, each in a capacity that cannot be exceeded, to see how many rows they have. */
static int measure(encoder *e, const frame *f, int64_t *rows)
{
    e->max_rows[0] = e->max_points;
    if (reserve_voxels(e) || encoder_upload(e, f)) return 1;
    TRY(enqueue_voxels(e));
    for (int l = 0; l < NUM_LEVELS; ++l) {
        int64_t n = 0;
        if (l > 0) {
            const spops_kernel_shape kernel = kernel_to_level(l);
            const spops_coords_box box = box_of(l);
            spops_coords_options options = spops_coords_options_default();
            options.box = &box;
            TRY(spops_coords_create_downsampled(e->d->ctx, set_of(e, l - 1), &kernel, &options,
                                                &e->sets[l]));
        }
        TRY(spops_coords_get_num_rows_sync(e->d->ctx, set_of(e, l), &n));
        if (rows_with_room(n) > rows[l]) rows[l] = rows_with_room(n);
    }
    destroy_sets(e);
    return 0;
}

/* ---- Plans ---------------------------------------------------------------------------------- */

/* A map and the plan of its convolutions. Where kernels of tensor cores serve every layer, maps need no
   pairs, and plans no other way of running. */
static int create_conv(encoder *e, int level, int down, spops_kernel_map **map,
                       spops_sparseconv **conv)
{
    const spops_kernel_shape kernel =
        down ? kernel_to_level(level) : spops_kernel_shape_cube(3, 3, 1, 1);
    spops_kernel_map_options contents = spops_kernel_map_options_default();
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_kernel_map_info info = spops_kernel_map_info_default();

    contents.contents = e->implicit_gemm ? SPOPS_MAP_ORDER : SPOPS_MAP_FOR_CONV;
    TRY(spops_kernel_map_reserve(e->d->ctx, down ? SPOPS_MAP_CONVOLUTION : SPOPS_MAP_SUBMANIFOLD,
                                 &kernel, set_of(e, level - down), down ? set_of(e, level) : NULL,
                                 &contents, map));
    /* FOR_CONV has ORDER where this device has implicit GEMM, which takes every layer in 16 bits. */
    TRY(spops_kernel_map_get_info_sync(e->d->ctx, *map, &info));
    if (e->dtype == SPOPS_DTYPE_F16 && !e->implicit_gemm && (info.contents & SPOPS_MAP_ORDER)) {
        e->implicit_gemm = 1;
        spops_kernel_map_destroy(*map);
        *map = NULL;
        return create_conv(e, level, down, map, conv);
    }
    if (e->implicit_gemm) options.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    TRY(spops_sparseconv_create(e->d->ctx, *map, &options, conv));
    e->map_plans[e->num_maps++] = (spops_plan *)*map;
    e->conv_plans[e->num_convs++] = (spops_plan *)*conv;
    e->level_plans[level][e->num_level_plans[level]++] = (spops_plan *)*map;
    e->level_plans[level][e->num_level_plans[level]++] = (spops_plan *)*conv;
    return 0;
}

/* Plans were made on one stream and are filled on others. */
static int reserve_scratch(encoder *e)
{
    for (int i = 0; i < e->num_maps; ++i) {
        const size_t map = spops_plan_scratch_bytes(e->map_plans[i]);
        const size_t conv = spops_plan_scratch_bytes(e->conv_plans[i]);
        TRY(spops_context_reserve(e->maps_on.ctx, map > conv ? map : conv));
    }
    for (int l = 1; l < NUM_LEVELS; ++l)
        TRY(spops_context_reserve(e->sets_on.ctx,
                                  spops_plan_scratch_bytes((spops_plan *)e->sets[l])));
    return 0;
}

static int create_plans(encoder *e)
{
    if (reserve_voxels(e)) return 1;
    for (int l = 0; l < NUM_LEVELS; ++l) {
        if (l > 0 && (reserve_set(e, l) || create_conv(e, l, 1, &e->to[l], &e->to_conv[l])))
            return 1;
        if (l + 1 < NUM_LEVELS && create_conv(e, l, 0, &e->within[l], &e->within_conv[l])) return 1;
    }
    return reserve_scratch(e);
}

/* ---- Memory --------------------------------------------------------------------------------- */

int64_t encoder_bev_elements(void)
{
    const int *size = level_shapes[NUM_LEVELS - 1].size;
    return (int64_t)NUM_OUTPUTS * size[0] * size[1] * size[2];
}

int encoder_create(encoder *e, const device *d, const network *net, spops_dtype dtype,
                   const frame *frames, int num_frames)
{
    const size_t each = spops_dtype_bytes(dtype);
    int64_t rows[NUM_LEVELS] = {0};

    memset(e, 0, sizeof *e);
    e->d = d;
    e->net = net;
    e->dtype = dtype;
    if (device_open_beside(&e->sets_on, d) || device_open_beside(&e->maps_on, d)) return 1;
    for (int i = 0; i < num_frames; ++i)
        if (frames[i].num_points > e->max_points) e->max_points = frames[i].num_points;
    if (alloc_points(e)) return 1;
    for (int i = 0; i < num_frames; ++i)
        if (measure(e, &frames[i], rows)) return 1;
    memcpy(e->max_rows, rows, sizeof rows);
    for (int b = 0; b < net->num_buffers; ++b) {
        e->buffers[b] = device_alloc(d, (size_t)e->max_rows[net->buffers[b].level] *
                                            (size_t)net->buffers[b].cols * each);
        if (e->buffers[b] == NULL) return 1;
    }
    e->bev = device_alloc(d, (size_t)encoder_bev_elements() * each);
    if (e->bev == NULL) return 1;
    for (int i = 0; i < net->num_layers; ++i)
        if (folded_parameters_upload(d, &net->layers[i].folded, net->layers[i].taps, e->dtype,
                                     &e->weights[i], &e->scale[i], &e->shift[i]))
            return 1;
    return create_plans(e);
}

void encoder_destroy(encoder *e)
{
    for (int l = 0; l < NUM_LEVELS; ++l) {
        spops_sparseconv_destroy(e->within_conv[l]);
        spops_sparseconv_destroy(e->to_conv[l]);
        spops_kernel_map_destroy(e->within[l]);
        spops_kernel_map_destroy(e->to[l]);
    }
    destroy_sets(e);
    for (int b = 0; b < NUM_BUFFERS; ++b)
        device_free(e->d, e->buffers[b]);
    for (int i = 0; i < NUM_LAYERS; ++i) {
        device_free(e->d, e->weights[i]);
        device_free(e->d, e->scale[i]);
        device_free(e->d, e->shift[i]);
    }
    device_free(e->d, e->bev);
    device_free(e->d, e->points);
    device_free(e->d, e->features);
    device_free(e->d, e->num_points);
    if (e->sets_on.ctx != NULL) device_close(&e->sets_on);
    if (e->maps_on.ctx != NULL) device_close(&e->maps_on);
}

int encoder_upload(encoder *e, const frame *f)
{
    const size_t n = (size_t)f->num_points, each = spops_dtype_bytes(e->dtype);
    const int32_t count = (int32_t)f->num_points;
    float *features = (float *)calloc(n * NUM_INPUTS + 1, sizeof *features);
    float *places = (float *)calloc(n * 4 + 1, sizeof *places);
    void *narrow = malloc(n * NUM_INPUTS * each + 1);
    int failed = features == NULL || places == NULL || narrow == NULL;

    for (size_t i = 0; i < n && !failed; ++i) {
        const float *p = f->points + NUM_FEATURES * i;
        memcpy(features + i * NUM_INPUTS, p, NUM_FEATURES * sizeof *p);
        for (int a = 0; a < 3; ++a)
            places[4 * i + (size_t)a] = p[2 - a];
    }
    failed = failed ||
             device_convert(e->d, SPOPS_DTYPE_F32, features, e->dtype, narrow, n * NUM_INPUTS) ||
             device_upload(e->d, e->points, places, n * 4 * sizeof *places) ||
             device_upload(e->d, e->features, narrow, n * NUM_INPUTS * each) ||
             device_upload(e->d, e->num_points, &count, sizeof count);
    free(features);
    free(places);
    free(narrow);
    return failed;
}

/* ---- A frame -------------------------------------------------------------------------------- */

/* All rows that a buffer has room for; how many count, the plans know. */
static spops_matrix matrix_of(const encoder *e, int buffer)
{
    const feature_buffer *b = &e->net->buffers[buffer];
    return spops_matrix_dense(e->buffers[buffer], e->max_rows[b->level], b->cols, e->dtype);
}

static spops_status enqueue_mean(encoder *e)
{
    return spops_segreduce_execute(
        e->d->ctx, spops_voxels_segments(e->voxels), SPOPS_REDUCE_MEAN,
        spops_matrix_dense(e->features, e->max_points, NUM_INPUTS, e->dtype), NULL, matrix_of(e, 0),
        NULL);
}

spops_status encoder_enqueue_layer(encoder *e, int i)
{
    const layer *l = &e->net->layers[i];
    const spops_matrix w =
        spops_matrix_dense(e->weights[i], (int64_t)l->taps * l->in, l->out, e->dtype);
    const spops_matrix residual = l->residual >= 0 ? matrix_of(e, l->residual) : matrix_of(e, 0);
    spops_conv_layer epilogue = spops_conv_layer_default();

    epilogue.scale = e->scale[i];
    epilogue.shift = e->shift[i];
    epilogue.residual = l->residual >= 0 ? &residual : NULL;
    epilogue.activation = SPOPS_ACTIVATION_RELU;
    return spops_sparseconv_execute(e->d->ctx,
                                    l->down ? e->to_conv[l->level] : e->within_conv[l->level],
                                    matrix_of(e, l->from), w, &epilogue, matrix_of(e, l->to));
}

/* [C, Z, Y, X], which is [C Z, Y, X]: height compression takes no pass of its own. */
static spops_status enqueue_dense(encoder *e)
{
    const int *size = level_shapes[NUM_LEVELS - 1].size;
    const int64_t cells = (int64_t)size[0] * size[1] * size[2];
    spops_dense_shape shape = spops_dense_shape_default();

    shape.num_batches = 1;
    for (int a = 0; a < 3; ++a)
        shape.size[a] = size[a];
    return spops_dense_execute(e->d->ctx, set_of(e, NUM_LEVELS - 1),
                               matrix_of(e, e->net->num_buffers - 1), &shape,
                               spops_matrix_dense(e->bev, NUM_OUTPUTS, cells, e->dtype));
}

spops_status encoder_enqueue_part(encoder *e, int part)
{
    switch (part) {
    case PART_VOXELS: return enqueue_voxels(e);
    case PART_SETS:
        for (int l = 1; l < NUM_LEVELS; ++l)
            PASS(enqueue_set(e, e->d->ctx, l));
        break;
    case PART_MAPS: return spops_update(e->d->ctx, e->map_plans, e->num_maps);
    case PART_PLANS: return spops_update(e->d->ctx, e->conv_plans, e->num_convs);
    case PART_MEAN: return enqueue_mean(e);
    case PART_LAYERS:
        for (int i = 0; i < e->net->num_layers; ++i)
            PASS(encoder_enqueue_layer(e, i));
        break;
    case PART_DENSE: return enqueue_dense(e);
    default: break;
    }
    return SPOPS_STATUS_OK;
}

/* The layers whose outputs are a level's. */
static spops_status enqueue_layers_of(encoder *e, int level)
{
    for (int i = 0; i < e->net->num_layers; ++i)
        if (e->net->layers[i].level == level) PASS(encoder_enqueue_layer(e, i));
    return SPOPS_STATUS_OK;
}

/* Three streams: sets follow each other on one, the maps and plans of a level are made on another once
   its set is there, and its layers run once they are. */
spops_status encoder_enqueue_frame(encoder *e)
{
    const device *d = e->d, *sets_on = &e->sets_on, *maps_on = &e->maps_on;

    PASS(enqueue_voxels(e));
    if (device_follow(sets_on, d)) return SPOPS_STATUS_CUDA;
    PASS(spops_update(d->ctx, e->level_plans[0], e->num_level_plans[0]));
    PASS(enqueue_mean(e));
    PASS(enqueue_layers_of(e, 0));
    for (int l = 1; l < NUM_LEVELS; ++l) {
        PASS(enqueue_set(e, sets_on->ctx, l));
        if (device_follow(maps_on, sets_on)) return SPOPS_STATUS_CUDA;
        PASS(spops_update(maps_on->ctx, e->level_plans[l], e->num_level_plans[l]));
        if (device_follow(d, maps_on)) return SPOPS_STATUS_CUDA;
        PASS(enqueue_layers_of(e, l));
    }
    return enqueue_dense(e);
}

int encoder_get_sizes(const encoder *e, encoder_sizes *sizes)
{
    memset(sizes, 0, sizeof *sizes);
    for (int l = 0; l < NUM_LEVELS; ++l) {
        spops_coords_info set = spops_coords_info_default();
        spops_kernel_map_info map = spops_kernel_map_info_default();
        TRY(spops_coords_get_info_sync(e->d->ctx, set_of(e, l), &set));
        sizes->rows[l] = set.num_rows;
        if (l == 0) sizes->left_out = set.num_dropped;
        if (l > 0) {
            TRY(spops_kernel_map_get_info_sync(e->d->ctx, e->to[l], &map));
            sizes->to_pairs[l] = map.num_pairs;
        }
        if (e->within[l] != NULL) {
            TRY(spops_kernel_map_get_info_sync(e->d->ctx, e->within[l], &map));
            sizes->within_pairs[l] = map.num_pairs;
        }
    }
    return 0;
}
