// SPDX-License-Identifier: Apache-2.0
/* Plans, memory, and the work of a step. */
#include "spconv_benchmark/engine.h"

#include "networks/draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call) DEVICE_TRY(e->d, call)

const double range_lower_m[3] = {-80, -80, -2}, range_upper_m[3] = {80, 80, 6}, voxel_m = 0.1;

/* ---- Plans ------------------------------------------------------------------------------------ */

static spops_voxels_options voxel_options(const spops_coords_options *coords)
{
    spops_voxels_options o = spops_voxels_options_default();
    for (int a = 0; a < 3; ++a) {
        o.size_m[a] = voxel_m;
        o.origin_m[a] = range_lower_m[a];
    }
    o.coords = coords;
    o.points =
        SPOPS_VOXEL_POINTS_FIRST; /* as spconv: a voxel has the features of its first point */
    o.max_cols = INPUTS;
    return o;
}

static spops_coords_box range_box(void)
{
    spops_coords_box box;
    memset(&box, 0, sizeof box);
    for (int a = 0; a < 3; ++a)
        box.upper[a + 1] = (int32_t)lround((range_upper_m[a] - range_lower_m[a]) / voxel_m) - 1;
    return box;
}

static spops_matrix points_of(const engine *e)
{
    return spops_matrix_dense(e->points, e->num_points, 3, SPOPS_DTYPE_F32);
}

/* Plans the cloud once, to see how many rows and pairs it has at each level. */
static int measure(engine *e, const spops_voxels_options *voxels)
{
    spops_pyramid_options levels = spops_pyramid_options_default();
    levels.num_levels = LEVELS;
    e->sizes = spops_pyramid_info_default();
    TRY(spops_voxels_create(e->d->ctx, points_of(e), NULL, voxels, &e->voxels));
    TRY(spops_pyramid_create(e->d->ctx, spops_voxels_coords(e->voxels), &levels, &e->pyramid));
    TRY(spops_pyramid_get_info_sync(e->d->ctx, e->pyramid, &e->sizes));
    spops_pyramid_destroy(e->pyramid);
    spops_voxels_destroy(e->voxels);
    e->pyramid = NULL;
    e->voxels = NULL;
    return 0;
}

/* Where the plan of a pool is filled: the finest has a stream of its own. */
static const device *branch_of(const engine *e, int level)
{
    return &e->beside[level < BRANCHES ? level : BRANCHES - 1];
}

static int create_plans(engine *e)
{
    const spops_coords_box box = range_box();
    spops_coords_options coords = spops_coords_options_default();
    const spops_voxels_options voxels = voxel_options(&coords);
    spops_pyramid_options levels = spops_pyramid_options_default();
    spops_sparseconv_options conv = spops_sparseconv_options_default();
    spops_pool_options pool = spops_pool_options_default();
    spops_device_info device = spops_device_info_default();

    coords.box = &box;
    if (measure(e, &voxels)) return 1;
    levels.num_levels = LEVELS;
    levels.contents = SPOPS_MAP_FOR_CONV_BACKWARD;
    levels.max_rows = e->sizes.num_rows;
    levels.max_pairs = e->sizes.num_pairs;
    TRY(spops_voxels_reserve(e->d->ctx, 3, e->num_points, e->sizes.num_rows[0], &voxels,
                             &e->voxels));
    TRY(spops_pyramid_reserve(e->d->ctx, spops_voxels_coords(e->voxels), &levels, &e->pyramid));
    conv.backward = 1;
    /* Where kernels of tensor cores serve all passes in 16 bits, plans have no other way of running. */
    TRY(spops_context_get_device_info(e->d->ctx, &device));
    if (e->dtype == SPOPS_DTYPE_F16 && device.compute_capability >= 90)
        conv.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    pool.gradients = SPOPS_GRADIENTS_ALL;
    for (int l = 0; l < LEVELS; ++l) {
        TRY(spops_sparseconv_create(
            e->d->ctx, spops_pyramid_map(e->pyramid, SPOPS_PYRAMID_WITHIN, l), &conv, &e->conv[l]));
        e->conv_plans[l] = (spops_plan *)e->conv[l];
        if (l + 1 == LEVELS) continue;
        TRY(spops_pool_create(e->d->ctx, spops_pyramid_map(e->pyramid, SPOPS_PYRAMID_DOWN, l),
                              &pool, &e->pool[l]));
        e->pool_plans[l] = (spops_plan *)e->pool[l];
        TRY(spops_context_reserve(branch_of(e, l)->ctx,
                                  spops_plan_scratch_bytes(e->pool_plans[l])));
    }
    return 0;
}

/* ---- Memory ----------------------------------------------------------------------------------- */

static spops_matrix take(const engine *e, int64_t rows, int64_t cols, spops_dtype dtype)
{
    return spops_matrix_dense(
        device_alloc(e->d, (size_t)(rows * cols) * spops_dtype_bytes(dtype) + 1), rows, cols,
        dtype);
}

/* n numbers to the device in the engine's dtype. */
static int upload(const engine *e, void *to, const float *values, size_t n)
{
    const size_t bytes = n * spops_dtype_bytes(e->dtype);
    void *narrow = malloc(bytes + 1);
    const int failed = narrow == NULL ||
                       device_convert(e->d, SPOPS_DTYPE_F32, values, e->dtype, narrow, n) ||
                       device_upload(e->d, to, narrow, bytes);
    free(narrow);
    return failed;
}

static int draw(const engine *e, spops_matrix m, float scale, uint64_t seed)
{
    const size_t n = (size_t)(m.rows * m.cols);
    float *values = (float *)malloc(n * sizeof *values + 1);
    int failed = values == NULL || m.data == NULL;
    for (size_t i = 0; i < n && !failed; ++i)
        values[i] = drawn_number(seed << 32 | i, -scale, scale);
    failed = failed || upload(e, m.data, values, n);
    free(values);
    return failed;
}

static void list_parts(engine *e)
{
    for (int l = 0, p = 0; l < LEVELS; ++l) {
        const int channels = 64 + 32 * l;
        for (int i = 0; i < 2; ++i, ++p) {
            part *t = &e->parts[p];
            snprintf(t->name, sizeof t->name, "level%d.conv%d", l, i + 1);
            t->level = l;
            t->in = i == 1 ? channels : l == 0 ? INPUTS : channels - 32;
            t->out = channels;
        }
        if (l + 1 == LEVELS) break;
        snprintf(e->parts[p].name, sizeof e->parts[p].name, "level%d.pool", l);
        e->parts[p].pools = 1;
        e->parts[p].level = l;
        e->parts[p].in = e->parts[p].out = channels;
        ++p;
    }
}

/* Rows, their gradients and the weights. Twelve neighbours of a row keep what they sum about as large. */
static int create_rows(engine *e)
{
    e->rows[0] = take(e, e->sizes.num_rows[0], INPUTS, e->dtype);
    e->grads[0] = take(e, e->sizes.num_rows[0], INPUTS, e->dtype);
    for (int p = 0; p < PARTS; ++p) {
        part *t = &e->parts[p];
        const int64_t rows = e->sizes.num_rows[t->level + t->pools];
        e->rows[p + 1] = take(e, rows, t->out, e->dtype);
        e->grads[p + 1] = take(e, rows, t->out, e->dtype);
        if (e->rows[p + 1].data == NULL || e->grads[p + 1].data == NULL) return 1;
        if (t->pools) continue;
        t->w = take(e, (int64_t)TAPS * t->in, t->out, e->dtype);
        t->grad_w = take(e, (int64_t)TAPS * t->in, t->out, SPOPS_DTYPE_F32);
        if (t->grad_w.data == NULL ||
            draw(e, t->w, sqrtf(3.0f / (float)(12 * t->in)), (uint64_t)p + 1))
            return 1;
    }
    return e->rows[0].data == NULL || e->grads[0].data == NULL ||
           draw(e, e->grads[PARTS], 0.2f, 100);
}

/* What the network sees of a point: its place, about 1 in size. */
static int upload_points(engine *e, const cloud *c)
{
    const size_t n = (size_t)c->num_points;
    const int32_t count = (int32_t)c->num_points;
    float *features = (float *)calloc(n * INPUTS + 1, sizeof *features);
    int failed = features == NULL;
    for (size_t i = 0; i < n && !failed; ++i)
        for (int a = 0; a < NUM_FEATURES; ++a)
            features[i * INPUTS + (size_t)a] =
                c->points[3 * i + (size_t)a] / (float)range_upper_m[a];
    failed = failed || upload(e, e->features, features, n * INPUTS) ||
             device_upload(e->d, e->points, c->points, n * 3 * sizeof *c->points) ||
             device_upload(e->d, e->count, &count, sizeof count);
    free(features);
    return failed;
}

int engine_create(engine *e, const device *d, spops_dtype dtype, const cloud *points)
{
    const size_t n = (size_t)points->num_points;
    memset(e, 0, sizeof *e);
    e->d = d;
    e->dtype = dtype;
    e->num_points = points->num_points;
    for (int k = 0; k < BRANCHES; ++k)
        if (device_open_beside(&e->beside[k], d)) return 1;
    e->points = (float *)device_alloc(d, n * 3 * sizeof *e->points);
    e->features = device_alloc(d, n * INPUTS * spops_dtype_bytes(dtype));
    e->count = (int32_t *)device_alloc(d, sizeof *e->count);
    if (e->points == NULL || e->features == NULL || e->count == NULL || upload_points(e, points))
        return 1;
    list_parts(e);
    return create_plans(e) || create_rows(e);
}

void engine_destroy(engine *e)
{
    for (int l = 0; l < LEVELS; ++l) {
        spops_sparseconv_destroy(e->conv[l]);
        if (l + 1 < LEVELS) spops_pool_destroy(e->pool[l]);
    }
    spops_pyramid_destroy(e->pyramid);
    spops_voxels_destroy(e->voxels);
    for (int p = 0; p <= PARTS; ++p) {
        device_free(e->d, e->rows[p].data);
        device_free(e->d, e->grads[p].data);
        if (p == PARTS) break;
        device_free(e->d, e->parts[p].w.data);
        device_free(e->d, e->parts[p].grad_w.data);
    }
    device_free(e->d, e->points);
    device_free(e->d, e->features);
    device_free(e->d, e->count);
    for (int k = 0; k < BRANCHES; ++k)
        if (e->beside[k].ctx != NULL) device_close(&e->beside[k]);
}

/* ---- A step ----------------------------------------------------------------------------------- */

spops_status engine_enqueue_voxels(void *user)
{
    engine *e = (engine *)user;
    return spops_voxels_update(e->d->ctx, e->voxels, e->count, points_of(e), NULL);
}

spops_status engine_enqueue_pyramid(void *user)
{
    engine *e = (engine *)user;
    return spops_pyramid_update(e->d->ctx, e->pyramid);
}

/* Those of pools on streams beside: they are many small steps, one after the other. */
spops_status engine_enqueue_plans(void *user)
{
    engine *e = (engine *)user;

    for (int k = 0; k < BRANCHES; ++k)
        if (device_follow(&e->beside[k], e->d)) return SPOPS_STATUS_CUDA;
    for (int l = 0; l + 1 < LEVELS; ++l)
        PASS(spops_update(branch_of(e, l)->ctx, &e->pool_plans[l], 1));
    PASS(spops_update(e->d->ctx, e->conv_plans, LEVELS));
    for (int k = 0; k < BRANCHES; ++k)
        if (device_follow(e->d, &e->beside[k])) return SPOPS_STATUS_CUDA;
    return SPOPS_STATUS_OK;
}

/* The sum over the one point that a voxel keeps. */
spops_status engine_enqueue_features(void *user)
{
    engine *e = (engine *)user;
    return spops_segreduce_execute(e->d->ctx, spops_voxels_segments(e->voxels), SPOPS_REDUCE_SUM,
                                   spops_matrix_dense(e->features, e->num_points, INPUTS, e->dtype),
                                   NULL, e->rows[0], NULL);
}

spops_status engine_enqueue_part(engine *e, int p)
{
    const part *t = &e->parts[p];
    if (t->pools)
        return spops_pool_execute(e->d->ctx, e->pool[t->level], SPOPS_REDUCE_MAX, e->rows[p],
                                  e->rows[p + 1]);
    return spops_sparseconv_execute(e->d->ctx, e->conv[t->level], e->rows[p], t->w, NULL,
                                    e->rows[p + 1]);
}

spops_status engine_enqueue_part_backward(engine *e, int p)
{
    const part *t = &e->parts[p];
    if (t->pools)
        return spops_pool_execute_backward(e->d->ctx, e->pool[t->level], SPOPS_REDUCE_MAX,
                                           e->grads[p + 1], e->rows[p], e->grads[p]);
    return spops_sparseconv_execute_backward(e->d->ctx, e->conv[t->level], e->grads[p + 1],
                                             e->rows[p], t->w, NULL, &e->grads[p], &t->grad_w,
                                             NULL);
}

spops_status engine_enqueue_layers(void *user)
{
    for (int p = 0; p < PARTS; ++p)
        PASS(engine_enqueue_part((engine *)user, p));
    return SPOPS_STATUS_OK;
}

spops_status engine_enqueue_layers_backward(void *user)
{
    for (int p = PARTS - 1; p >= 0; --p)
        PASS(engine_enqueue_part_backward((engine *)user, p));
    return SPOPS_STATUS_OK;
}

spops_status engine_enqueue_step(void *user)
{
    PASS(engine_enqueue_voxels(user));
    PASS(engine_enqueue_pyramid(user));
    PASS(engine_enqueue_plans(user));
    PASS(engine_enqueue_features(user));
    PASS(engine_enqueue_layers(user));
    return engine_enqueue_layers_backward(user);
}

double *engine_download(const engine *e, spops_matrix m, int64_t count)
{
    const size_t n = (size_t)(count * m.cols), bytes = n * spops_dtype_bytes(m.dtype);
    void *narrow = malloc(bytes + 1);
    float *values = (float *)malloc(n * sizeof *values + 1);
    double *wide = (double *)malloc(n * sizeof *wide + 1);
    const int failed = narrow == NULL || values == NULL || wide == NULL ||
                       device_download(e->d, narrow, m.data, bytes) ||
                       device_convert(e->d, m.dtype, narrow, SPOPS_DTYPE_F32, values, n);
    for (size_t i = 0; i < n && !failed; ++i)
        wide[i] = (double)values[i];
    free(narrow);
    free(values);
    if (!failed) return wide;
    free(wide);
    return NULL;
}
