// SPDX-License-Identifier: Apache-2.0
/* The network: its layers, its plans and buffers, forward, backward. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "segment.h"
#include "steps.h"
#include "support/device.h"

#define DIMS         3
#define ROOM         0.3 /* for scans that are turned otherwise than when they were measured */
#define MOMENTUM     0.05f
#define TAPS_WITHIN  27
#define TAPS_BETWEEN 8
#define CENTRE_TAP   13
#define PI           3.14159265358979323846

/* Layers in the order of the way down, the way up, and the head. */
enum { STEM = 0, HEAD = SEGMENT_NUM_LAYERS - 1 };
static int encode(int level)
{
    return 1 + level;
}
static int down(int level) /* from this level to the next */
{
    return encode(SEGMENT_LEVELS) + level;
}
static int up(int level) /* from the next level to this one */
{
    return down(SEGMENT_LEVELS - 1) + level;
}
static int decode(int level)
{
    return up(SEGMENT_LEVELS - 1) + level;
}

#define LAST (SEGMENT_LEVELS - 1)

static bool fail(segment_network *n, const char *what)
{
    snprintf(n->error, sizeof n->error, "%s", what);
    return false;
}

static bool took(segment_network *n, spops_status status)
{
    return status == SPOPS_STATUS_OK || fail(n, spops_last_error(n->ctx));
}

static bool did(segment_network *n, const char *wrong)
{
    return wrong == NULL || fail(n, wrong);
}

segment_shape segment_shape_default(void)
{
    const segment_shape shape = {.widths = {32, 32, 48, 64, 96}, .voxel_m = 0.2};
    return shape;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

static void set_layer(segment_network *n, int at, spops_pyramid_relation relation, int level,
                      int in_cols, int out_cols, bool norm)
{
    segment_layer *layer = &n->layers[at];
    layer->relation = relation;
    layer->level = level;
    layer->in_level = relation == SPOPS_PYRAMID_UP ? level + 1 : level;
    layer->out_level = relation == SPOPS_PYRAMID_DOWN ? level + 1 : level;
    layer->in_cols = in_cols;
    layer->out_cols = out_cols;
    layer->num_taps = relation == SPOPS_PYRAMID_WITHIN ? TAPS_WITHIN : TAPS_BETWEEN;
    layer->norm = norm;
}

static void set_layers(segment_network *n)
{
    const int32_t *w = n->shape.widths;
    set_layer(n, STEM, SPOPS_PYRAMID_WITHIN, 0, SEGMENT_FEATURES, w[0], true);
    for (int l = 0; l < SEGMENT_LEVELS; ++l)
        set_layer(n, encode(l), SPOPS_PYRAMID_WITHIN, l, w[l], w[l], true);
    for (int l = 0; l < LAST; ++l) {
        set_layer(n, down(l), SPOPS_PYRAMID_DOWN, l, w[l], w[l + 1], true);
        set_layer(n, up(l), SPOPS_PYRAMID_UP, l, w[l + 1], w[l], false);
        set_layer(n, decode(l), SPOPS_PYRAMID_WITHIN, l, w[l], w[l], true);
    }
    set_layer(n, HEAD, SPOPS_PYRAMID_WITHIN, 0, w[0], SEGMENT_LOGITS, false);

    n->num_parameters = n->num_statistics = 0;
    for (int i = 0; i < SEGMENT_NUM_LAYERS; ++i) {
        segment_layer *layer = &n->layers[i];
        layer->weights_at = n->num_parameters;
        n->num_parameters += (int64_t)layer->num_taps * layer->in_cols * layer->out_cols;
    }
    n->num_weights = n->num_parameters;
    for (int i = 0; i < SEGMENT_NUM_LAYERS; ++i) {
        segment_layer *layer = &n->layers[i];
        if (!layer->norm) continue;
        layer->norm_at = n->num_parameters;
        layer->statistic_at = n->num_statistics;
        n->num_parameters += 2 * layer->out_cols;
        n->num_statistics += 2 * layer->out_cols;
    }
}

/* A number of the seed's, normal with deviation 1. */
static double normal(uint64_t seed, uint64_t i)
{
    double u[2];
    for (int k = 0; k < 2; ++k) {
        const uint64_t z = segment_mix64(segment_mix64(seed) ^ (2 * i + (uint64_t)k));
        u[k] = ((double)(z >> 11) + 0.5) * 0x1p-53;
    }
    return sqrt(-2.0 * log(u[0])) * cos(2.0 * PI * u[1]);
}

/* Whether weight k of a layer stays where no voxel is to see another. */
static bool is_centre(const segment_layer *l, int64_t k)
{
    const int64_t of_tap = (int64_t)l->in_cols * l->out_cols;
    return l->relation == SPOPS_PYRAMID_WITHIN && k / of_tap == CENTRE_TAP;
}

/* He-normal for the taps that rows of a scan have on average; gamma 1, beta 0. */
static void initialise(const segment_network *n, uint64_t seed, float *parameters, uint8_t *trained)
{
    for (int64_t i = n->num_weights; i < n->num_parameters; ++i)
        parameters[i] = 0.0f, trained[i] = 1;
    for (int i = 0; i < SEGMENT_NUM_LAYERS; ++i) {
        const segment_layer *l = &n->layers[i];
        const bool centre = n->shape.centre_only;
        const int64_t of_tap = (int64_t)l->in_cols * l->out_cols;
        double taps = l->relation == SPOPS_PYRAMID_WITHIN ? 9.0 : 3.0;
        if (l->relation == SPOPS_PYRAMID_UP || centre) taps = 1.0;
        const double deviation = sqrt(2.0 / (taps * l->in_cols));
        for (int64_t k = 0; k < l->num_taps * of_tap; ++k) {
            const int64_t at = l->weights_at + k;
            trained[at] = !centre || is_centre(l, k);
            parameters[at] = trained[at] ? (float)(deviation * normal(seed, (uint64_t)at)) : 0.0f;
        }
        for (int c = 0; l->norm && c < l->out_cols; ++c)
            parameters[l->norm_at + c] = 1.0f;
    }
}

/* ---- Plans and buffers ------------------------------------------------------------------------ */

static spops_coords_box box_of(const segment_shape *shape)
{
    const double reach = SEGMENT_MARGIN * SEGMENT_REACH_M;
    const double lower[DIMS] = {-reach, -reach, -SEGMENT_MARGIN * SEGMENT_DEPTH_M};
    const double upper[DIMS] = {reach, reach, SEGMENT_MARGIN * SEGMENT_HEIGHT_M};
    spops_coords_box box;
    memset(&box, 0, sizeof box);
    box.upper[0] = 63; /* scans of a step */
    for (int a = 0; a < DIMS; ++a) {
        box.lower[1 + a] = (int32_t)floor(lower[a] / shape->voxel_m);
        box.upper[1 + a] = (int32_t)floor(upper[a] / shape->voxel_m);
    }
    return box;
}

/* Rows and pairs of one scan's maps, where they are more than in *most. */
static bool measure_scan(spops_context *ctx, spops_backend_kind backend, const segment_shape *shape,
                         const segment_scan *scan, const segment_change *change,
                         segment_capacity *most, char error[SEGMENT_ERROR_BYTES])
{
    spops_matrix points = spops_matrix_dense(NULL, scan->num_points, DIMS, SPOPS_DTYPE_F32);
    spops_voxels_options voxels_options = spops_voxels_options_default();
    spops_pyramid_info info = spops_pyramid_info_default();
    spops_pyramid_options options = spops_pyramid_options_default();
    spops_voxels *voxels = NULL;
    spops_pyramid *pyramid = NULL;
    segment_batch batch;
    bool ok = segment_batch_create(scan->num_points, SPOPS_DTYPE_F32, &batch) &&
              segment_batch_add(&batch, shape, scan, change);
    if (!ok) snprintf(error, SEGMENT_ERROR_BYTES, "%s: no memory to measure it", scan->name);
    const size_t bytes = (size_t)scan->num_points * DIMS * sizeof(float);
    if (ok && (!device_alloc(backend, bytes, &points.data) ||
               !device_upload(backend, points.data, batch.points, bytes))) {
        snprintf(error, SEGMENT_ERROR_BYTES, "%s", device_error());
        ok = false;
    }
    for (int a = 0; a < DIMS; ++a)
        voxels_options.size_m[a] = shape->voxel_m;
    options.num_levels = SEGMENT_LEVELS;
    options.contents = SPOPS_MAP_TABLE;
    if (ok && (spops_voxels_create(ctx, points, NULL, &voxels_options, &voxels) ||
               spops_pyramid_create(ctx, spops_voxels_coords(voxels), &options, &pyramid) ||
               spops_pyramid_get_info_sync(ctx, pyramid, &info))) {
        snprintf(error, SEGMENT_ERROR_BYTES, "%s: %s", scan->name, spops_last_error(ctx));
        ok = false;
    }
    spops_pyramid_destroy(pyramid);
    spops_voxels_destroy(voxels);
    device_free(backend, points.data);
    segment_batch_free(&batch);
    if (scan->num_points > most->points) most->points = scan->num_points;
    for (int l = 0; l < SEGMENT_LEVELS; ++l) {
        if (info.num_rows[l] > most->rows[l]) most->rows[l] = info.num_rows[l];
        if (info.num_pairs[l] > most->pairs[l]) most->pairs[l] = info.num_pairs[l];
    }
    return ok;
}

bool segment_measure(spops_context *ctx, spops_backend_kind backend, const segment_shape *shape,
                     const segment_scans *scans, bool changed, int32_t together,
                     segment_capacity *capacity, char error[SEGMENT_ERROR_BYTES])
{
    segment_capacity most;
    memset(&most, 0, sizeof most);
    /* Walls along an axis fill fewer voxels than those across. */
    segment_change turned = segment_change_none();
    turned.cosine = turned.sine = sqrt(0.5);
    turned.scale = SEGMENT_MOST_SCALE;
    const segment_change changes[2] = {segment_change_none(), turned};
    for (int32_t i = 0; i < scans->num; ++i)
        for (int k = 0; k < (changed ? 2 : 1); ++k)
            if (!measure_scan(ctx, backend, shape, &scans->scans[i], &changes[k], &most, error))
                return false;
    const double factor = together * (changed ? 1.0 + ROOM : 1.0);
    capacity->points = together * most.points;
    for (int l = 0; l < SEGMENT_LEVELS; ++l) {
        capacity->rows[l] = (int64_t)ceil(factor * (double)most.rows[l]);
        capacity->pairs[l] = (int64_t)ceil(factor * (double)most.pairs[l]);
    }
    return true;
}

static bool room(segment_network *n, void *to, int64_t count, size_t bytes)
{
    void *memory = NULL;
    if (!device_alloc(n->backend, (size_t)count * bytes, &memory)) return fail(n, device_error());
    memcpy(to, &memory, sizeof memory);
    return true;
}

static bool reserve_plans(segment_network *n)
{
    const segment_capacity *c = &n->capacity;
    const spops_coords_box box = box_of(&n->shape);
    spops_coords_options coords = spops_coords_options_default();
    spops_voxels_options voxels = spops_voxels_options_default();
    spops_pyramid_options pyramid = spops_pyramid_options_default();
    spops_devoxels_options devoxels = spops_devoxels_options_default();

    coords.box = &box;
    coords.order = SPOPS_COORDS_ORDER_MORTON;
    voxels.coords = &coords;
    voxels.max_cols = SEGMENT_FEATURES;
    pyramid.num_levels = SEGMENT_LEVELS;
    pyramid.order = SPOPS_COORDS_ORDER_MORTON;
    pyramid.contents = SPOPS_MAP_PAIRS | SPOPS_MAP_ORDER | (n->training ? SPOPS_MAP_REVERSE : 0);
    pyramid.max_rows = c->rows;
    pyramid.max_pairs = c->pairs;
    devoxels.interpolation = SPOPS_DEVOXELS_INTERPOLATION_LINEAR;
    devoxels.missing = SPOPS_DEVOXELS_MISSING_RESCALE;
    devoxels.max_cols = SEGMENT_LOGITS;
    if (n->training) devoxels.gradients = SPOPS_GRADIENTS_LINEAR;
    for (int a = 0; a < DIMS; ++a)
        voxels.size_m[a] = devoxels.size_m[a] = n->shape.voxel_m;
    if (!took(n, spops_voxels_reserve(n->ctx, DIMS, c->points, c->rows[0], &voxels, &n->voxels)) ||
        !took(n, spops_pyramid_reserve(n->ctx, spops_voxels_coords(n->voxels), &pyramid,
                                       &n->pyramid)) ||
        !took(n, spops_devoxels_reserve(n->ctx, spops_voxels_coords(n->voxels), c->points,
                                        &devoxels, &n->devoxels)))
        return false;
    int64_t widest = SEGMENT_LOGITS;
    for (int l = 0; l < SEGMENT_LEVELS; ++l) {
        spops_coords_view view = spops_coords_view_default();
        if (!took(n, spops_coords_get_view(n->ctx, spops_pyramid_coords(n->pyramid, l), &view)))
            return false;
        n->num_rows[l] = view.num_rows;
        if (n->shape.widths[l] > widest) widest = n->shape.widths[l];
    }
    for (int relation = 0; relation < 3; ++relation)
        for (int l = 0; l < SEGMENT_LEVELS; ++l) {
            const spops_kernel_map *map =
                spops_pyramid_map(n->pyramid, (spops_pyramid_relation)relation, l);
            spops_sparseconv_options options = spops_sparseconv_options_default();
            if (map == NULL) continue;
            options.backward = n->training;
            options.max_in_channels = options.max_out_channels = widest;
            if (!took(n, spops_sparseconv_create(n->ctx, map, &options, &n->convs[relation][l])))
                return false;
        }
    return took(n, spops_context_reserve(n->ctx, spops_norm_scratch_bytes(c->rows[0], widest)));
}

static bool reserve_buffers(segment_network *n)
{
    const segment_capacity *c = &n->capacity;
    const size_t element = spops_dtype_bytes(n->dtype);
    const int64_t blocks = (c->points + STEPS_BLOCK - 1) / STEPS_BLOCK;
    bool ok = room(n, &n->parameters, n->num_parameters, sizeof(float)) &&
              room(n, &n->trained, n->num_parameters, 1) &&
              room(n, &n->statistics, n->num_statistics, sizeof(float)) &&
              room(n, &n->points, c->points * DIMS, sizeof(float)) &&
              room(n, &n->batch, c->points, sizeof(int32_t)) &&
              room(n, &n->features, c->points * SEGMENT_FEATURES, element) &&
              room(n, &n->classes, c->points, 1) && room(n, &n->step, 1, sizeof *n->step) &&
              room(n, &n->class_weights, SEGMENT_NUM_CLASSES, sizeof(float)) &&
              room(n, &n->logits, c->points * SEGMENT_LOGITS, element) &&
              room(n, &n->loss, 1 + blocks, sizeof(float)) &&
              room(n, &n->confusion, SEGMENT_NUM_CLASSES * SEGMENT_NUM_CLASSES, sizeof(int32_t)) &&
              room(n, &n->voxel_features, c->rows[0] * SEGMENT_FEATURES, element) &&
              room(n, &n->batch_statistics, n->num_statistics, sizeof(float));
    n->weights = n->parameters;
    if (n->dtype != SPOPS_DTYPE_F32) ok = ok && room(n, &n->weights, n->num_parameters, element);
    for (int i = 0; ok && i < SEGMENT_NUM_LAYERS; ++i) {
        const segment_layer *l = &n->layers[i];
        const int64_t num = c->rows[l->out_level] * l->out_cols;
        ok = room(n, &n->before[i], num, element);
        n->after[i] = n->before[i];
        if (ok && l->norm) ok = room(n, &n->after[i], num, element);
    }
    n->voxel_logits = n->after[HEAD];
    if (!ok || !n->training) return ok;
    ok = room(n, &n->gradients, n->num_parameters, sizeof(float)) &&
         room(n, &n->moment1, n->num_parameters, sizeof(float)) &&
         room(n, &n->moment2, n->num_parameters, sizeof(float)) &&
         room(n, &n->points_gradient, c->points * SEGMENT_LOGITS, element) &&
         room(n, &n->voxels_gradient, c->rows[0] * SEGMENT_LOGITS, element);
    for (int l = 0; ok && l < SEGMENT_LEVELS; ++l)
        for (int k = 0; ok && k < 2; ++k)
            ok = room(n, &n->level_gradient[k][l], c->rows[l] * n->shape.widths[l], element);
    return ok;
}

static bool put_initial(segment_network *n, uint64_t seed)
{
    const size_t bytes = (size_t)n->num_parameters * sizeof(float);
    float *parameters = malloc(bytes);
    float *statistics = malloc((size_t)n->num_statistics * sizeof *statistics);
    uint8_t *trained = malloc((size_t)n->num_parameters);
    bool ok = (parameters != NULL && statistics != NULL && trained != NULL) ||
              fail(n, "no memory for the parameters");
    if (ok) {
        initialise(n, seed, parameters, trained);
        for (int i = 0; i < SEGMENT_NUM_LAYERS; ++i)
            for (int c = 0; n->layers[i].norm && c < n->layers[i].out_cols; ++c) {
                statistics[n->layers[i].statistic_at + c] = 0.0f;
                statistics[n->layers[i].statistic_at + n->layers[i].out_cols + c] = 1.0f;
            }
        ok = (device_upload(n->backend, n->parameters, parameters, bytes) &&
              device_upload(n->backend, n->trained, trained, (size_t)n->num_parameters) &&
              device_upload(n->backend, n->statistics, statistics,
                            (size_t)n->num_statistics * sizeof *statistics) &&
              (!n->training || (device_fill(n->backend, n->moment1, 0, bytes) &&
                                device_fill(n->backend, n->moment2, 0, bytes)))) ||
             fail(n, device_error());
    }
    free(parameters);
    free(statistics);
    free(trained);
    return ok && segment_confusion_clear(n) && segment_refresh_weights(n);
}

bool segment_network_create(spops_context *ctx, spops_backend_kind backend,
                            const segment_shape *shape, spops_dtype dtype, bool training,
                            const segment_capacity *capacity, uint64_t seed, segment_network *out)
{
    memset(out, 0, sizeof *out);
    out->ctx = ctx;
    out->backend = backend;
    out->shape = *shape;
    out->dtype = dtype;
    out->training = training;
    out->capacity = *capacity;
    if (dtype != SPOPS_DTYPE_F32 && dtype != SPOPS_DTYPE_BF16)
        return fail(out, "a network is f32 or bf16");
    for (int l = 0; l < SEGMENT_LEVELS; ++l)
        if (shape->widths[l] < 8 || shape->widths[l] > 1024 || shape->widths[l] % 8 != 0)
            return fail(out, "a level's channels are a multiple of 8, up to 1024");
    if (!(shape->voxel_m >= 0.02 && shape->voxel_m <= 2.0))
        return fail(out, "voxels have 0.02 to 2 m");
    set_layers(out);
    if (reserve_plans(out) && reserve_buffers(out) && put_initial(out, seed)) return true;
    char error[SEGMENT_ERROR_BYTES];
    memcpy(error, out->error, sizeof error);
    segment_network_destroy(out);
    memcpy(out->error, error, sizeof error);
    return false;
}

void segment_network_destroy(segment_network *n)
{
    segment_codes_destroy(n);
    for (int relation = 0; relation < 3; ++relation)
        for (int l = 0; l < SEGMENT_LEVELS; ++l)
            spops_sparseconv_destroy(n->convs[relation][l]);
    spops_devoxels_destroy(n->devoxels);
    spops_pyramid_destroy(n->pyramid);
    spops_voxels_destroy(n->voxels);
    for (int i = 0; i < SEGMENT_NUM_LAYERS; ++i) {
        if (n->after[i] != n->before[i]) device_free(n->backend, n->after[i]);
        device_free(n->backend, n->before[i]);
    }
    for (int l = 0; l < SEGMENT_LEVELS; ++l)
        for (int k = 0; k < 2; ++k)
            device_free(n->backend, n->level_gradient[k][l]);
    if (n->weights != n->parameters) device_free(n->backend, n->weights);
    void *const others[] = {n->parameters,       n->gradients,      n->moment1,
                            n->moment2,          n->trained,        n->statistics,
                            n->batch_statistics, n->points,         n->batch,
                            n->features,         n->classes,        n->step,
                            n->class_weights,    n->logits,         n->loss,
                            n->confusion,        n->voxel_features, n->points_gradient,
                            n->voxels_gradient};
    for (size_t i = 0; i < sizeof others / sizeof *others; ++i)
        device_free(n->backend, others[i]);
    memset(n, 0, sizeof *n);
}

bool segment_keep_centres(segment_network *n)
{
    const size_t bytes = (size_t)n->num_parameters * sizeof(float);
    float *parameters = malloc(bytes);
    bool ok = parameters != NULL ? device_download(n->backend, parameters, n->parameters, bytes) ||
                                       fail(n, device_error())
                                 : fail(n, "no memory for the parameters");
    for (int i = 0; ok && i < SEGMENT_NUM_LAYERS; ++i) {
        const segment_layer *l = &n->layers[i];
        for (int64_t k = 0; k < (int64_t)l->num_taps * l->in_cols * l->out_cols; ++k)
            if (!is_centre(l, k)) parameters[l->weights_at + k] = 0.0f;
    }
    ok = ok &&
         (device_upload(n->backend, n->parameters, parameters, bytes) || fail(n, device_error()));
    free(parameters);
    return ok && segment_refresh_weights(n);
}

bool segment_refresh_weights(segment_network *n)
{
    if (n->dtype == SPOPS_DTYPE_F32) return true;
    if (n->backend == SPOPS_BACKEND_CUDA)
        return did(n, steps_cuda_narrow(n->num_parameters, n->parameters, n->weights,
                                        spops_context_stream(n->ctx)));
    steps_cpu_narrow(n->num_parameters, n->parameters, n->weights);
    return true;
}

/* ---- Forward ---------------------------------------------------------------------------------- */

bool segment_prepare(segment_network *n)
{
    const spops_matrix points =
        spops_matrix_dense(n->points, n->capacity.points, DIMS, SPOPS_DTYPE_F32);
    bool ok =
        took(n, spops_voxels_update(n->ctx, n->voxels, &n->step->num_points, points, n->batch)) &&
        took(n, spops_pyramid_update(n->ctx, n->pyramid)) &&
        took(n, spops_devoxels_update(n->ctx, n->devoxels, spops_voxels_coords(n->voxels),
                                      &n->step->num_points, points, n->batch));
    for (int relation = 0; relation < 3; ++relation)
        for (int l = 0; ok && l < SEGMENT_LEVELS; ++l)
            if (n->convs[relation][l] != NULL)
                ok = took(n, spops_sparseconv_update(n->ctx, n->convs[relation][l]));
    return ok;
}

static spops_matrix rows_of(const segment_network *n, void *data, int level, int64_t cols)
{
    return spops_matrix_dense(data, n->capacity.rows[level], cols, n->dtype);
}

static spops_matrix weights_of(const segment_network *n, const segment_layer *l)
{
    char *weights = n->weights;
    return spops_matrix_dense(weights + (size_t)l->weights_at * spops_dtype_bytes(n->dtype),
                              (int64_t)l->num_taps * l->in_cols, l->out_cols, n->dtype);
}

static spops_norm_options norm_of(const segment_network *n, const segment_layer *l)
{
    spops_norm_options options = spops_norm_options_default();
    options.num_rows = n->num_rows[l->out_level];
    options.momentum = MOMENTUM;
    options.activation = SPOPS_ACTIVATION_RELU;
    return options;
}

/* A layer on x; with a sum across (up), residual is what comes from the way down. */
static bool run_layer(segment_network *n, int at, void *x, void *residual, bool batch_statistics)
{
    if (segment_codes_run(n)) return segment_codes_layer(n, at, x, residual);
    const segment_layer *l = &n->layers[at];
    const spops_matrix before = rows_of(n, n->before[at], l->out_level, l->out_cols);
    const spops_matrix across = rows_of(n, residual, l->out_level, l->out_cols);
    spops_conv_layer layer = spops_conv_layer_default();
    if (residual != NULL) layer.residual = &across;
    if (!took(n, spops_sparseconv_execute(n->ctx, n->convs[l->relation][l->level],
                                          rows_of(n, x, l->in_level, l->in_cols), weights_of(n, l),
                                          &layer, before)))
        return false;
    if (!l->norm) return true;
    const spops_norm_options options = norm_of(n, l);
    float *mean = (batch_statistics ? n->batch_statistics : n->statistics) + l->statistic_at;
    float *running = n->statistics + l->statistic_at;
    const float *gamma = n->parameters + l->norm_at;
    return (!batch_statistics || took(n, spops_batchnorm_statistics_execute(
                                             n->ctx, before, &options, mean, mean + l->out_cols,
                                             running, running + l->out_cols))) &&
           took(n, spops_batchnorm_execute(n->ctx, before, mean, mean + l->out_cols, gamma,
                                           gamma + l->out_cols, &options,
                                           rows_of(n, n->after[at], l->out_level, l->out_cols)));
}

bool segment_forward(segment_network *n, bool batch_statistics)
{
    const spops_matrix weights = spops_devoxels_weights(n->devoxels);
    bool ok =
        took(n, spops_segreduce_execute(
                    n->ctx, spops_voxels_segments(n->voxels), SPOPS_REDUCE_MEAN,
                    spops_matrix_dense(n->features, n->capacity.points, SEGMENT_FEATURES, n->dtype),
                    NULL, rows_of(n, n->voxel_features, 0, SEGMENT_FEATURES), NULL));
    ok = ok && run_layer(n, STEM, n->voxel_features, NULL, batch_statistics);
    for (int l = 0; ok && l < SEGMENT_LEVELS; ++l) {
        ok = run_layer(n, encode(l), n->after[l == 0 ? STEM : down(l - 1)], NULL, batch_statistics);
        if (ok && l < LAST) ok = run_layer(n, down(l), n->after[encode(l)], NULL, batch_statistics);
    }
    for (int l = LAST - 1; ok && l >= 0; --l) {
        const int from = l == LAST - 1 ? encode(LAST) : decode(l + 1);
        ok = run_layer(n, up(l), n->after[from], n->after[encode(l)], batch_statistics) &&
             run_layer(n, decode(l), n->after[up(l)], NULL, batch_statistics);
    }
    return ok && run_layer(n, HEAD, n->after[decode(0)], NULL, batch_statistics) &&
           took(n, spops_segreduce_execute(
                       n->ctx, spops_devoxels_segments(n->devoxels), SPOPS_REDUCE_SUM,
                       rows_of(n, n->voxel_logits, 0, SEGMENT_LOGITS), &weights,
                       spops_matrix_dense(n->logits, n->capacity.points, SEGMENT_LOGITS, n->dtype),
                       NULL));
}

bool segment_loss(segment_network *n, bool gradient)
{
    const steps_loss job = {.dtype = n->dtype,
                            .max_points = n->capacity.points,
                            .logits = n->logits,
                            .classes = n->classes,
                            .class_weights = n->class_weights,
                            .step = n->step,
                            .gradient = gradient ? n->points_gradient : NULL,
                            .loss = n->loss,
                            .confusion = n->confusion};
    if (n->backend == SPOPS_BACKEND_CUDA)
        return did(n, steps_cuda_loss(&job, spops_context_stream(n->ctx)));
    steps_cpu_loss(&job);
    return true;
}

/* ---- Backward --------------------------------------------------------------------------------- */

/* Gradients of a layer's parameters, and of x into grad_x unless that is NULL. grad comes as that
   of what follows from the layer and becomes that of its sum. */
static bool run_back(segment_network *n, int at, void *x, void *grad, void *grad_x)
{
    const segment_layer *l = &n->layers[at];
    const spops_matrix g = rows_of(n, grad, l->out_level, l->out_cols);
    const spops_matrix before = rows_of(n, n->before[at], l->out_level, l->out_cols);
    const spops_matrix to_x = rows_of(n, grad_x, l->in_level, l->in_cols);
    const spops_matrix to_w =
        spops_matrix_dense(n->gradients + l->weights_at, (int64_t)l->num_taps * l->in_cols,
                           l->out_cols, SPOPS_DTYPE_F32);
    if (l->norm) {
        const spops_norm_options options = norm_of(n, l);
        const float *mean = n->batch_statistics + l->statistic_at;
        const float *gamma = n->parameters + l->norm_at;
        float *grad_gamma = n->gradients + l->norm_at;
        if (!took(n, spops_batchnorm_execute_backward(n->ctx, g, before, mean, mean + l->out_cols,
                                                      gamma, gamma + l->out_cols, &options, g,
                                                      grad_gamma, grad_gamma + l->out_cols)))
            return false;
    }
    return took(n, spops_sparseconv_execute_backward(n->ctx, n->convs[l->relation][l->level], g,
                                                     rows_of(n, x, l->in_level, l->in_cols),
                                                     weights_of(n, l), NULL,
                                                     grad_x != NULL ? &to_x : NULL, &to_w, NULL));
}

static bool add(segment_network *n, int level, void *a, const void *b)
{
    const steps_sum job = {.dtype = n->dtype,
                           .max_rows = n->capacity.rows[level],
                           .cols = n->shape.widths[level],
                           .num_rows = n->num_rows[level],
                           .a = a,
                           .b = b};
    if (n->backend == SPOPS_BACKEND_CUDA)
        return did(n, steps_cuda_sum(&job, spops_context_stream(n->ctx)));
    steps_cpu_sum(&job);
    return true;
}

bool segment_backward(segment_network *n)
{
    const spops_matrix weights = spops_devoxels_weights(n->devoxels);
    const spops_matrix to_voxels = rows_of(n, n->voxels_gradient, 0, SEGMENT_LOGITS);
    void **g = n->level_gradient[0], **across = n->level_gradient[1];
    bool ok = took(
        n, spops_segreduce_execute_backward(
               n->ctx, spops_devoxels_segments(n->devoxels), SPOPS_REDUCE_SUM,
               spops_matrix_dense(n->points_gradient, n->capacity.points, SEGMENT_LOGITS, n->dtype),
               rows_of(n, n->voxel_logits, 0, SEGMENT_LOGITS), &weights, &to_voxels, NULL));
    ok = ok && run_back(n, HEAD, n->after[decode(0)], n->voxels_gradient, g[0]);
    /* The way up, backwards: g[l] is the gradient of what decode(l) gives, across[l] that of the
       sum it takes, which the way down gets too. */
    for (int l = 0; ok && l < LAST; ++l) {
        const int from = l == LAST - 1 ? encode(LAST) : decode(l + 1);
        ok = run_back(n, decode(l), n->after[up(l)], g[l], across[l]) &&
             run_back(n, up(l), n->after[from], across[l], g[l + 1]);
    }
    /* The way down, backwards. */
    for (int l = LAST; ok && l >= 0; --l) {
        void *own = l == LAST ? g[l] : across[l], *other = l == LAST ? across[l] : g[l];
        const int from = l == 0 ? STEM : down(l - 1);
        ok = run_back(n, encode(l), n->after[from], own, other) &&
             run_back(n, from, l == 0 ? n->voxel_features : n->after[encode(l - 1)], other,
                      l == 0 ? NULL : g[l - 1]);
        if (ok && l > 0) ok = add(n, l - 1, across[l - 1], g[l - 1]);
    }
    return ok;
}

bool segment_update(segment_network *n)
{
    const steps_adamw job = {.num = n->num_parameters,
                             .num_decayed = n->num_weights,
                             .parameters = n->parameters,
                             .moment1 = n->moment1,
                             .moment2 = n->moment2,
                             .gradients = n->gradients,
                             .trained = n->trained,
                             .step = n->step,
                             .narrow = n->dtype == SPOPS_DTYPE_F32 ? NULL : n->weights};
    if (n->backend == SPOPS_BACKEND_CUDA)
        return did(n, steps_cuda_adamw(&job, spops_context_stream(n->ctx)));
    steps_cpu_adamw(&job);
    return true;
}

bool segment_check(segment_network *n)
{
    spops_coords_info coords = spops_coords_info_default();
    spops_pyramid_info info = spops_pyramid_info_default();
    return took(n, spops_context_wait_sync(n->ctx)) &&
           took(n, spops_coords_get_info_sync(n->ctx, spops_voxels_coords(n->voxels), &coords)) &&
           took(n, spops_pyramid_get_info_sync(n->ctx, n->pyramid, &info));
}
