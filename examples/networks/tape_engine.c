// SPDX-License-Identifier: Apache-2.0
/* Points of a frame, and its parts in order. */
#include "networks/tape_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int alloc_points(tape_engine *e)
{
    const size_t n = (size_t)e->max_points, each = spops_dtype_bytes(e->tape.dtype);
    e->points = (float *)device_alloc(e->d, n * 4 * sizeof *e->points);
    e->num_points = (int32_t *)device_alloc(e->d, sizeof *e->num_points);
    if (e->points == NULL || e->num_points == NULL) return 1;
    for (int i = 0; i < e->network->num_inputs; ++i)
        if ((e->features[i] = device_alloc(e->d, n * TAPE_FEATURES * each)) == NULL) return 1;
    return 0;
}

tape_engine *tape_engine_create(const tape_network *network, const device *d, int is_small,
                                spops_dtype dtype, int training, double voxel_m, const scan *scans,
                                int num_scans)
{
    tape_engine *e = (tape_engine *)calloc(1, network->engine_bytes);
    int failed = 0;

    if (e == NULL) return NULL;
    e->network = network;
    e->d = d;
    e->is_small = is_small;
    e->voxel_m = voxel_m;
    tape_start(&e->tape, d, dtype, training);
    network->build(&e->tape, is_small);
    for (int i = 0; i < num_scans; ++i)
        if (scans[i].num_points > e->max_points) e->max_points = scans[i].num_points;
    for (int i = 0; i < TAPE_SIDES && !failed; ++i)
        failed = device_open_beside(&e->sides[i], d);
    e->tape.beside = &e->sides[0];
    if (!failed && !alloc_points(e) && !network->create(e, scans, num_scans)) return e;
    tape_engine_destroy(e);
    return NULL;
}

void tape_engine_destroy(tape_engine *e)
{
    if (e == NULL) return;
    tape_free(&e->tape);
    e->network->destroy(e);
    spops_voxels_destroy(e->voxels);
    for (int i = 0; i < TAPE_INPUTS; ++i)
        device_free(e->d, e->features[i]);
    device_free(e->d, e->points);
    device_free(e->d, e->num_points);
    for (int i = 0; i < TAPE_SIDES; ++i)
        if (e->sides[i].ctx != NULL) device_close(&e->sides[i]);
    free(e);
}

int tape_engine_upload(tape_engine *e, const scan *s)
{
    const size_t n = (size_t)s->num_points, each = spops_dtype_bytes(e->tape.dtype);
    const int32_t count = (int32_t)s->num_points;
    float *features = (float *)malloc(n * TAPE_FEATURES * sizeof *features + 1);
    void *narrow = malloc(n * TAPE_FEATURES * each + 1);
    int failed = features == NULL || narrow == NULL ||
                 device_upload(e->d, e->points, s->points, n * 4 * sizeof *s->points) ||
                 device_upload(e->d, e->num_points, &count, sizeof count);

    for (int input = 0; input < e->network->num_inputs && !failed; ++input) {
        for (size_t i = 0; i < n; ++i)
            e->network->describe_point(e, s->points + 4 * i, input, features + i * TAPE_FEATURES);
        failed = device_convert(e->d, SPOPS_DTYPE_F32, features, e->tape.dtype, narrow,
                                n * TAPE_FEATURES) ||
                 device_upload(e->d, e->features[input], narrow, n * TAPE_FEATURES * each);
    }
    free(features);
    free(narrow);
    return failed;
}

spops_status tape_engine_enqueue_features(tape_engine *e)
{
    for (int i = 0; i < e->network->num_inputs; ++i)
        PASS(spops_segreduce_execute(
            e->d->ctx, spops_voxels_segments(e->voxels), e->network->reduce,
            spops_matrix_dense(e->features[i], e->max_points, TAPE_FEATURES, e->tape.dtype), NULL,
            tape_value_matrix(&e->tape, i), NULL));
    return SPOPS_STATUS_OK;
}

int tape_engine_fork(const tape_engine *e)
{
    for (int i = 0; i < TAPE_SIDES; ++i)
        if (device_follow(&e->sides[i], e->d)) return 1;
    return 0;
}

int tape_engine_join(const tape_engine *e)
{
    for (int i = 0; i < TAPE_SIDES; ++i)
        if (device_follow(e->d, &e->sides[i])) return 1;
    return 0;
}

static spops_status before_step(void *user, const tape_step *s)
{
    tape_engine *e = (tape_engine *)user;
    return e->network->enqueue_plan(e, s);
}

/* Layers, and before each of them its plan where that is made beside them. */
static spops_status enqueue_forward(tape_engine *e)
{
    const tape_part all = {-1, -1};
    spops_status status;

    if (e->one_stream || e->network->enqueue_plan == NULL) return tape_forward(&e->tape, all);
    e->tape.before_step = before_step;
    e->tape.user = e;
    status = tape_forward(&e->tape, all);
    e->tape.before_step = NULL;
    if (status != SPOPS_STATUS_OK) return status;
    return tape_engine_join(e) ? SPOPS_STATUS_CUDA : SPOPS_STATUS_OK;
}

spops_status tape_engine_enqueue_frame(void *user)
{
    tape_engine *e = (tape_engine *)user;
    const tape_part all = {-1, -1};

    if (!e->one_stream) PASS(e->network->enqueue_parts(e));
    for (int part = 0; part < e->network->num_parts && e->one_stream; ++part)
        PASS(e->network->enqueue_part(e, part));
    PASS(enqueue_forward(e));
    if (!e->tape.training) return SPOPS_STATUS_OK;
    PASS(tape_loss(&e->tape));
    PASS(tape_backward(&e->tape, all));
    return tape_update(&e->tape, 1e-7f);
}

int tape_engine_round(const tape_engine *e, double *x, size_t n)
{
    float *wide = (float *)malloc(n * sizeof *wide + 1);
    void *narrow = malloc(n * sizeof *wide + 1);
    int failed = wide == NULL || narrow == NULL;

    for (size_t i = 0; i < n && !failed; ++i)
        wide[i] = (float)x[i];
    failed = failed || device_convert(e->d, SPOPS_DTYPE_F32, wide, e->tape.dtype, narrow, n) ||
             device_convert(e->d, e->tape.dtype, narrow, SPOPS_DTYPE_F32, wide, n);
    for (size_t i = 0; i < n && !failed; ++i)
        x[i] = (double)wide[i];
    free(wide);
    free(narrow);
    return failed;
}

int tape_engine_make_cloud(tape_engine *e, int level, const spops_coords *coords,
                           spops_point_cloud *cloud, int32_t **offsets)
{
    spops_coords_view view = spops_coords_view_default();

    DEVICE_TRY(e->d, spops_coords_get_view(e->d->ctx, coords, &view));
    *offsets = (int32_t *)device_alloc(e->d, 2 * sizeof(int32_t));
    if (*offsets == NULL) return 1;
    cloud->points = spops_matrix_dense_const(view.rows + 1, view.max_rows, 3, SPOPS_DTYPE_I32);
    cloud->points.row_stride = 4; /* after the batch */
    cloud->offsets = *offsets;
    cloud->num_samples = 1;
    e->tape.max_rows[level] = view.max_rows;
    e->tape.num_rows[level] = view.num_rows;
    return 0;
}

spops_status tape_engine_enqueue_count(const tape_engine *e, const device *d, int level,
                                       int32_t *offsets)
{
    const spops_matrix from =
        spops_matrix_dense_const(e->tape.num_rows[level], 1, 1, SPOPS_DTYPE_I32);
    return spops_convert_execute(d->ctx, from,
                                 spops_matrix_dense(offsets + 1, 1, 1, SPOPS_DTYPE_I32));
}
