// SPDX-License-Identifier: Apache-2.0
/*
 * The blocks of ResNet-18 (two of two convolutions at 64, 128, 256 and 512 channels) on the points of
 * a scan, forward and backward, as PointCNN++ times them in its section 4.2: points stay where they
 * are, a convolution takes the neighbours of a point, and each stage has fewer points than the one
 * before. Prints time and memory of each stage. Without an option it runs a small simulated scan and
 * compares the gradient of the first weights with differences.
 *
 *     point_resnet18 [SCAN.npy] [VOXEL_M]
 */
#include "networks/device.h"
#include "networks/draw.h"
#include "networks/scan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGES = 4, BLOCKS = 2, TAPS = 27, INPUTS = 8 };

/* Normalise with ReLU, then convolve; what the way back needs is kept. */
typedef struct layer {
    const spops_pointconv *conv;
    int64_t in_channels, out_channels, in_rows, out_rows;
    spops_matrix normalised, grad_normalised, w, grad_w;
    float *mean, *var, *grad_gamma, *grad_beta; /* NULL: not normalised */
} layer;

typedef struct stage {
    int64_t points, channels;
    spops_neighbors_info within, down;
    spops_pointconv *conv, *strided;
    spops_triplets *same; /* row to row: adds matrices */
    layer first, layers[2 * BLOCKS];
    spops_matrix rows[2 * BLOCKS + 1], grads[2 * BLOCKS + 1], ones; /* between layers */
    double forward_us, backward_us;
    size_t bytes;
} stage;

typedef struct network {
    device d;
    spops_point_cloud cloud;
    spops_point_pyramid *pyramid;
    spops_dtype dtype;
    spops_matrix x, grad_x;
    stage stages[STAGES];
    int current;  /* that is timed */
    size_t bytes; /* taken so far */
    int failed;
} network;

static void fail(network *n, const char *what, const char *why)
{
    if (!n->failed) fprintf(stderr, "%s: %s\n", what, why);
    n->failed = 1;
}

static int good(network *n, const char *what, spops_status status)
{
    if (status != SPOPS_STATUS_OK) fail(n, what, spops_last_error(n->d.ctx));
    return !n->failed;
}

static void *take(network *n, size_t bytes)
{
    void *p = device_alloc(&n->d, bytes);
    if (p == NULL) fail(n, "memory", "there is none");
    n->bytes += bytes;
    return p;
}

static spops_matrix take_rows(network *n, int64_t rows, int64_t cols, spops_dtype dtype)
{
    const size_t bytes = (size_t)(rows * cols) * spops_dtype_bytes(dtype);
    return spops_matrix_dense(take(n, bytes), rows, cols, dtype);
}

static uint16_t half_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    const int exponent = (int)(bits >> 23 & 255) - 112;
    if (exponent <= 0) return 0; /* too small to matter here */
    return (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)exponent << 10 | (bits >> 13 & 1023));
}

static void draw(network *n, spops_matrix m, float scale, uint64_t seed)
{
    const size_t count = (size_t)(m.rows * m.cols), size = spops_dtype_bytes(m.dtype);
    char *values = malloc(count * size + 1);
    if (values == NULL || n->failed) return;
    for (size_t i = 0; i < count; ++i) {
        const float v = drawn_number(seed * 1000003 + i, -scale, scale);
        const uint16_t h = half_of(v);
        memcpy(values + i * size, size == 4 ? (const void *)&v : (const void *)&h, size);
    }
    if (device_upload(&n->d, m.data, values, count * size)) fail(n, "upload", "did not work");
    free(values);
}

/* ---- Making ----------------------------------------------------------------------------------- */

static void make_layer(network *n, layer *l, const spops_pointconv *conv, int64_t in_rows,
                       int64_t out_rows, int64_t in, int64_t out, int normalised, uint64_t seed)
{
    l->conv = conv;
    l->in_channels = in, l->out_channels = out, l->in_rows = in_rows, l->out_rows = out_rows;
    l->w = take_rows(n, TAPS * in, out, n->dtype);
    l->grad_w = take_rows(n, TAPS * in, out, SPOPS_DTYPE_F32);
    draw(n, l->w, sqrtf(3.0f / (float)(8 * in)), seed);
    if (!normalised) return;
    l->normalised = take_rows(n, in_rows, in, n->dtype);
    l->grad_normalised = take_rows(n, in_rows, in, n->dtype);
    l->mean = take(n, (size_t)in * 4), l->var = take(n, (size_t)in * 4);
    l->grad_gamma = take(n, (size_t)in * 4), l->grad_beta = take(n, (size_t)in * 4);
}

static spops_pointconv *plan(network *n, const spops_neighbors *neighbors, int64_t in, int64_t out,
                             spops_neighbors_info *info)
{
    spops_pointconv_options o = spops_pointconv_options_default();
    spops_pointconv *conv = NULL;
    o.backward = 1;
    o.max_in_channels = in, o.max_out_channels = out;
    *info = spops_neighbors_info_default();
    if (good(n, "plan", spops_pointconv_create(n->d.ctx, neighbors, &o, &conv)) &&
        good(n, "info", spops_neighbors_get_info_sync(n->d.ctx, neighbors, info)))
        n->bytes += spops_plan_bytes((const spops_plan *)neighbors) +
                    spops_plan_bytes((const spops_plan *)conv);
    return conv;
}

static void make_stage(network *n, int s)
{
    stage *st = &n->stages[s];
    const stage *before = s > 0 ? &n->stages[s - 1] : NULL;
    const size_t bytes_before = n->bytes;
    spops_triplets_options same = spops_triplets_options_default();
    int32_t offsets[2], *there;

    st->points = spops_point_pyramid_cloud(n->pyramid, s)->points.rows;
    st->channels = (int64_t)64 << s;
    st->conv =
        plan(n, spops_point_pyramid_within(n->pyramid, s), st->channels, st->channels, &st->within);
    if (before != NULL)
        st->strided = plan(n, spops_point_pyramid_down(n->pyramid, s - 1), before->channels,
                           st->channels, &st->down);
    make_layer(n, &st->first, before != NULL ? st->strided : st->conv,
               before != NULL ? before->points : st->points, st->points,
               before != NULL ? before->channels : INPUTS, st->channels, before != NULL,
               (uint64_t)(100 * s));
    for (int i = 0; i <= 2 * BLOCKS; ++i) {
        st->rows[i] = take_rows(n, st->points, st->channels, n->dtype);
        st->grads[i] = take_rows(n, st->points, st->channels, n->dtype);
        if (i < 2 * BLOCKS)
            make_layer(n, &st->layers[i], st->conv, st->points, st->points, st->channels,
                       st->channels, 1, (uint64_t)(100 * s + 1 + i));
    }
    st->ones = take_rows(n, 1, st->channels, n->dtype);
    offsets[0] = 0, offsets[1] = (int32_t)st->points;
    there = device_alloc(&n->d, sizeof offsets);
    if (there == NULL || device_upload(&n->d, there, offsets, sizeof offsets))
        fail(n, "offsets", "no memory");
    else
        good(n, "adding", spops_triplets_create_from_offsets(n->d.ctx, 1, there, &same, &st->same));
    device_free(&n->d, there);
    {
        float one = 1.0f;
        uint16_t half = half_of(one);
        for (int64_t c = 0; c < st->channels && !n->failed; ++c)
            if (device_upload(&n->d,
                              (char *)st->ones.data + (size_t)c * spops_dtype_bytes(n->dtype),
                              n->dtype == SPOPS_DTYPE_F32 ? (void *)&one : (void *)&half,
                              spops_dtype_bytes(n->dtype)))
                fail(n, "upload", "did not work");
    }
    good(n, "scratch",
         spops_context_reserve(n->d.ctx, spops_norm_scratch_bytes(st->points, st->channels)));
    st->bytes = n->bytes - bytes_before;
}

/* ---- Running ---------------------------------------------------------------------------------- */

static spops_norm_options relu(void)
{
    spops_norm_options o = spops_norm_options_default();
    o.activation = SPOPS_ACTIVATION_RELU;
    return o;
}

/* out = conv(relu(norm(x))) + residual */
static spops_status forward(network *n, layer *l, spops_matrix x, const spops_matrix *residual,
                            spops_matrix out)
{
    const spops_norm_options o = relu();
    spops_conv_layer tail = spops_conv_layer_default();
    tail.residual = residual;
    if (l->mean != NULL) {
        PASS(spops_batchnorm_statistics_execute(n->d.ctx, x, &o, l->mean, l->var, NULL, NULL));
        PASS(spops_batchnorm_execute(n->d.ctx, x, l->mean, l->var, NULL, NULL, &o, l->normalised));
        x = l->normalised;
    }
    return spops_pointconv_execute(n->d.ctx, l->conv, x, l->w, &tail, out);
}

static spops_status backward(network *n, layer *l, spops_matrix x, spops_matrix grad_out,
                             spops_matrix grad_x)
{
    const spops_norm_options o = relu();
    if (l->mean == NULL)
        return spops_pointconv_execute_backward(n->d.ctx, l->conv, grad_out, x, l->w, NULL, &grad_x,
                                                &l->grad_w, NULL);
    PASS(spops_pointconv_execute_backward(n->d.ctx, l->conv, grad_out, l->normalised, l->w, NULL,
                                          &l->grad_normalised, &l->grad_w, NULL));
    return spops_batchnorm_execute_backward(n->d.ctx, l->grad_normalised, x, l->mean, l->var, NULL,
                                            NULL, &o, grad_x, l->grad_gamma, l->grad_beta);
}

/* to += what, row by row: rows times a diagonal matrix of ones. */
static spops_status add(network *n, const stage *st, spops_matrix what, spops_matrix to)
{
    spops_mvmr_options o = spops_mvmr_options_default();
    o.diagonal = 1;
    o.accumulate = 1;
    return spops_mvmr_execute(n->d.ctx, st->same, what, st->ones, NULL, &o, to);
}

static spops_matrix input_of(network *n, int s)
{
    return s == 0 ? n->x : n->stages[s - 1].rows[2 * BLOCKS];
}

static spops_status stage_forward(void *user)
{
    network *n = user;
    stage *st = &n->stages[n->current];
    PASS(forward(n, &st->first, input_of(n, n->current), NULL, st->rows[0]));
    for (int i = 0; i < 2 * BLOCKS; i += 2) {
        PASS(forward(n, &st->layers[i], st->rows[i], NULL, st->rows[i + 1]));
        PASS(forward(n, &st->layers[i + 1], st->rows[i + 1], &st->rows[i], st->rows[i + 2]));
    }
    return SPOPS_STATUS_OK;
}

static spops_status stage_backward(void *user)
{
    network *n = user;
    const int s = n->current;
    stage *st = &n->stages[s];
    for (int i = 2 * BLOCKS - 2; i >= 0; i -= 2) {
        PASS(backward(n, &st->layers[i + 1], st->rows[i + 1], st->grads[i + 2], st->grads[i + 1]));
        PASS(backward(n, &st->layers[i], st->rows[i], st->grads[i + 1], st->grads[i]));
        PASS(add(n, st, st->grads[i + 2], st->grads[i]));
    }
    return backward(n, &st->first, input_of(n, s), st->grads[0],
                    s == 0 ? n->grad_x : n->stages[s - 1].grads[2 * BLOCKS]);
}

static int run(network *n)
{
    for (n->current = 0; n->current < STAGES; ++n->current)
        if (!good(n, "forward", stage_forward(n))) return 0;
    for (n->current = STAGES - 1; n->current >= 0; --n->current)
        if (!good(n, "backward", stage_backward(n))) return 0;
    return good(n, "wait", spops_context_wait_sync(n->d.ctx));
}

static double time_of(network *n, enqueue_function what)
{
    graph *g = graph_plain(&n->d, what, n);
    double time_us = 0.0;
    if (g == NULL || graph_time(g, 5, &time_us)) fail(n, "timing", "did not work");
    graph_destroy(g);
    return time_us;
}

/* ---- Is the gradient right? ------------------------------------------------------------------- */

/* The sum of the last rows times those that the way back starts from. */
static double loss(network *n)
{
    const spops_matrix out = n->stages[STAGES - 1].rows[2 * BLOCKS];
    const spops_matrix seed = n->stages[STAGES - 1].grads[2 * BLOCKS];
    const size_t count = (size_t)(out.rows * out.cols);
    float *a = malloc(count * 4 + 1), *b = malloc(count * 4 + 1);
    double sum = 0.0;
    for (n->current = 0; n->current < STAGES; ++n->current)
        good(n, "forward", stage_forward(n));
    good(n, "wait", spops_context_wait_sync(n->d.ctx));
    if (a == NULL || b == NULL || device_download(&n->d, a, out.data, count * 4) ||
        device_download(&n->d, b, seed.data, count * 4))
        fail(n, "download", "did not work");
    for (size_t i = 0; i < count && !n->failed; ++i)
        sum += (double)a[i] * b[i];
    free(a), free(b);
    return sum;
}

static int check(network *n)
{
    layer *l = &n->stages[0].first;
    const size_t count = (size_t)(l->w.rows * l->w.cols);
    float *w = malloc(count * 4), *moved = malloc(count * 4), *grad = malloc(count * 4);
    double slope = 0.0, norm = 0.0, up, down;
    if (w == NULL || moved == NULL || grad == NULL || !run(n) ||
        device_download(&n->d, w, l->w.data, count * 4) ||
        device_download(&n->d, grad, l->grad_w.data, count * 4))
        return 0;
    for (size_t i = 0; i < count; ++i)
        norm += (double)grad[i] * grad[i];
    const double step = 3e-3 / sqrt(norm);
    for (size_t i = 0; i < count; ++i)
        moved[i] = w[i] + (float)(step * grad[i]);
    device_upload(&n->d, l->w.data, moved, count * 4);
    up = loss(n);
    for (size_t i = 0; i < count; ++i)
        moved[i] = w[i] - (float)(step * grad[i]);
    device_upload(&n->d, l->w.data, moved, count * 4);
    down = loss(n);
    slope = (up - down) / (2.0 * step);
    printf("gradient of the first weights: %.5g, by differences %.5g: %s\n", norm, slope,
           fabs(slope - norm) < 0.05 * norm ? "right" : "WRONG");
    free(w), free(moved), free(grad);
    return fabs(slope - norm) < 0.05 * norm;
}

/* ---- The scan --------------------------------------------------------------------------------- */

static int load(network *n, const char *path)
{
    scan points;
    float *xyz;
    if (path != NULL ? scan_load(path, &points) : scan_simulate(8, 100, &points)) return 0;
    xyz = malloc((size_t)points.num_points * 12);
    for (int64_t i = 0; i < points.num_points && xyz != NULL; ++i)
        memcpy(xyz + 3 * i, points.points + 4 * i, 12);
    n->cloud.points = take_rows(n, points.num_points, 3, SPOPS_DTYPE_F32);
    if (xyz == NULL ||
        device_upload(&n->d, n->cloud.points.data, xyz, (size_t)points.num_points * 12))
        fail(n, "scan", "no memory");
    free(xyz);
    scan_free(&points);
    return !n->failed;
}

int main(int argc, char **argv)
{
    network n;
    spops_point_pyramid_options o = spops_point_pyramid_options_default();
    spops_point_level_options finest = spops_point_level_options_default();
    spops_point_level *level = NULL;
    const int small = argc == 1;
    int right = 1;

    memset(&n, 0, sizeof n);
    if (device_open(&n.d, small ? SPOPS_BACKEND_CPU : SPOPS_BACKEND_AUTO)) return 1;
    n.dtype = n.d.backend == SPOPS_BACKEND_CUDA ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_F32;
    if (!load(&n, small ? NULL : argv[1])) return 1;
    o.num_levels = STAGES;
    o.tap_size_m = argc > 2 ? strtof(argv[2], NULL) : small ? 0.8f : 0.1f;
    o.contents = SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE;
    o.cover = 1;
    /* A true point for each voxel of the finest taps. */
    finest.size_m = (double)o.tap_size_m;
    if (!good(&n, "points", spops_point_level_create(n.d.ctx, &n.cloud, &finest, &level)) ||
        !good(&n, "pyramid",
              spops_point_pyramid_create(n.d.ctx, spops_point_level_cloud(level), &o, &n.pyramid)))
        return 1;
    n.x = take_rows(&n, spops_point_level_cloud(level)->points.rows, INPUTS, n.dtype);
    n.grad_x = take_rows(&n, n.x.rows, INPUTS, n.dtype);
    draw(&n, n.x, 1.0f, 7);
    for (int s = 0; s < STAGES; ++s)
        make_stage(&n, s);
    draw(&n, n.stages[STAGES - 1].grads[2 * BLOCKS], 1e-2f, 8);
    if (n.failed || !run(&n)) return 1;
    if (small) right = check(&n);

    printf("%lld points of the scan\nstage  points  channels  neighbours  forward ms  backward ms  "
           "MiB\n",
           (long long)n.cloud.points.rows);
    for (int s = 0; s < STAGES && !n.failed; ++s) {
        stage *st = &n.stages[s];
        n.current = s;
        st->forward_us = time_of(&n, stage_forward);
        st->backward_us = time_of(&n, stage_backward);
        printf("%5d %7lld %9lld %11.1f %11.3f %12.3f %4.0f\n", s, (long long)st->points,
               (long long)st->channels, (double)st->within.num_pairs / (double)st->points,
               st->forward_us * 1e-3, st->backward_us * 1e-3, (double)st->bytes / 1048576.0);
    }
    /* The context frees what the network took from it last; the rest ends with the process. */
    for (int s = 0; s < STAGES; ++s) {
        spops_pointconv_destroy(n.stages[s].conv);
        spops_pointconv_destroy(n.stages[s].strided);
        spops_triplets_destroy(n.stages[s].same);
    }
    spops_point_pyramid_destroy(n.pyramid);
    spops_point_level_destroy(level);
    device_close(&n.d);
    return n.failed || !right;
}
