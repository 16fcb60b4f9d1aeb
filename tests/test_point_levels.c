// SPDX-License-Identifier: Apache-2.0
// Coarser clouds, the way back, interpolation and pyramids, against their descriptions.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "spops/point_levels.h"
#include "support/device.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

enum { N = 700, SAMPLES = 3, COLS = 5 };
static const double size_m = 0.25;

typedef struct cloud {
    float points[N][3];
    int32_t offsets[SAMPLES + 1], sample[N];
    void *points_there;
    int32_t *offsets_there;
    spops_point_cloud there;
} cloud;

// Some points at the same place, and some as far from a voxel's centre as others.
static void make_cloud(test_device *d, cloud *c, bool samples)
{
    test_rng rng = test_rng_make(31);
    for (int i = 0; i < N; ++i)
        for (int a = 0; a < 3; ++a)
            c->points[i][a] = i % 5 == 0 ? 0.25f * (float)test_rng_below(&rng, 4) + 0.0625f
                                         : (float)test_rng_unit(&rng) - 0.3f;
    c->offsets[1] = N / 4, c->offsets[2] = N / 4, c->offsets[3] = N;
    c->offsets[0] = 0;
    for (int i = 0; i < N; ++i)
        c->sample[i] = samples && i >= N / 4 ? 2 : 0;
    cr_assert(device_alloc(d->backend, sizeof c->points, &c->points_there) &&
                  device_upload(d->backend, c->points_there, c->points, sizeof c->points),
              "%s", device_error());
    c->offsets_there = test_upload_i32(d, c->offsets, SAMPLES + 1);
    c->there = (spops_point_cloud){spops_matrix_dense(c->points_there, N, 3, SPOPS_DTYPE_F32),
                                   samples ? c->offsets_there : NULL, samples ? SAMPLES : 0};
}

static void free_cloud(test_device *d, cloud *c)
{
    test_free(d, c->points_there);
    test_free(d, c->offsets_there);
}

static void download(test_device *d, void *to, const void *from, size_t bytes)
{
    cr_assert(bytes == 0 || device_download(d->backend, to, from, bytes), "%s", device_error());
}

static int32_t voxel_of(float x)
{
    return (int32_t)floor((double)x / size_m);
}

static double centre_distance2(const float *p)
{
    double sum = 0.0;
    for (int a = 0; a < 3; ++a) {
        const double from = (double)p[a] - (voxel_of(p[a]) + 0.5) * size_m;
        sum += from * from;
    }
    return sum;
}

// By sample, then by voxel.
static int compare_points(const cloud *c, int i, int j)
{
    if (c->sample[i] != c->sample[j]) return c->sample[i] < c->sample[j] ? -1 : 1;
    for (int a = 0; a < 3; ++a) {
        const int32_t x = voxel_of(c->points[i][a]), y = voxel_of(c->points[j][a]);
        if (x != y) return x < y ? -1 : 1;
    }
    return 0;
}

static void check_level(test_device *d, const cloud *c, spops_point_keep keep, bool samples)
{
    spops_point_level_options o = spops_point_level_options_default();
    spops_point_level_view view = spops_point_level_view_default();
    spops_point_level *level = NULL;
    static int32_t coarse_of[N], fine_of[N], members[N];
    static float points[N][3];
    int32_t offsets[SAMPLES + 1];

    o.size_m = size_m;
    o.keep = keep;
    o.seed = 5;
    o.gradients = SPOPS_GRADIENTS_LINEAR;
    test_expect_ok(d->ctx, spops_point_level_create(d->ctx, &c->there, &o, &level), "level");
    test_expect_ok(d->ctx, spops_point_level_get_view(d->ctx, level, &view), "view");
    const spops_point_cloud *coarse = spops_point_level_cloud(level);
    const int64_t m = view.num_coarse;
    cr_assert(view.num_fine == N && m > 10 && m < N && coarse->points.rows == m);
    cr_assert_eq(view.fine_of == NULL, keep == SPOPS_POINT_KEEP_MEAN);
    download(d, coarse_of, view.coarse_of, sizeof coarse_of);
    if (view.fine_of != NULL) download(d, fine_of, view.fine_of, (size_t)m * 4);
    download(d, points, coarse->points.data, (size_t)m * 12);
    cr_assert_eq(coarse->num_samples, samples ? SAMPLES : 0);
    if (samples) download(d, offsets, coarse->offsets, sizeof offsets);

    int differs = 0;
    for (int64_t v = 0; v < m; ++v) {
        int num = 0, expected = -1;
        double mean[3] = {0.0, 0.0, 0.0};
        for (int i = 0; i < N; ++i)
            if (coarse_of[i] == v) members[num++] = i;
        cr_assert(num > 0, "voxel %lld is empty", (long long)v);
        for (int n = 0; n < num; ++n) {
            cr_assert_eq(compare_points(c, members[0], members[n]), 0, "points of voxel %lld",
                         (long long)v);
            if (expected < 0 || (keep == SPOPS_POINT_KEEP_NEAREST &&
                                 (float)centre_distance2(c->points[members[n]]) <
                                     (float)centre_distance2(c->points[expected])))
                expected = members[n];
            for (int a = 0; a < 3; ++a)
                mean[a] += (double)c->points[members[n]][a] / num;
        }
        if (v > 0) {
            int before = 0;
            while (coarse_of[before] != v - 1)
                ++before;
            cr_assert_eq(compare_points(c, before, members[0]), -1, "order of voxels");
        }
        if (keep == SPOPS_POINT_KEEP_RANDOM) {
            cr_assert_eq(coarse_of[fine_of[v]], v);
            differs += fine_of[v] != members[0];
            expected = fine_of[v];
        }
        if (keep != SPOPS_POINT_KEEP_MEAN) {
            cr_assert_eq(fine_of[v], expected, "voxel %lld keeps %d, expected %d", (long long)v,
                         fine_of[v], expected);
            cr_assert_eq(memcmp(points[v], c->points[expected], 12), 0, "point %lld", (long long)v);
        }
        for (int a = 0; a < 3 && keep == SPOPS_POINT_KEEP_MEAN; ++a)
            cr_assert(fabs((double)points[v][a] - mean[a]) < 1e-6);
        if (samples)
            cr_assert(offsets[c->sample[members[0]]] <= v &&
                      v < offsets[c->sample[members[0]] + 1]);
    }
    cr_assert(keep != SPOPS_POINT_KEEP_RANDOM || differs > m / 8, "%d differ from the first",
              differs);

    // The way back gives each point what its voxel has, and its gradient is the sum.
    static float values[N][COLS], back[N][COLS], sums[N][COLS];
    void *x = NULL, *y = NULL, *z = NULL;
    for (int64_t i = 0; i < N * COLS; ++i)
        values[i / COLS][i % COLS] = (float)(i * 37 % 101 - 50);
    cr_assert(device_alloc(d->backend, sizeof values, &x) &&
                  device_alloc(d->backend, sizeof values, &y) &&
                  device_alloc(d->backend, sizeof values, &z) &&
                  device_upload(d->backend, x, values, sizeof values),
              "%s", device_error());
    const spops_matrix fine = spops_matrix_dense(y, N, COLS, SPOPS_DTYPE_F32);
    const spops_matrix up = spops_matrix_dense(x, m, COLS, SPOPS_DTYPE_F32);
    const spops_matrix grad = spops_matrix_dense(z, m, COLS, SPOPS_DTYPE_F32);
    test_expect_ok(d->ctx,
                   spops_gather_execute(d->ctx, spops_point_level_voxels(level), up, NULL, fine),
                   "up");
    test_wait(d);
    download(d, back, y, sizeof back);
    for (int i = 0; i < N; ++i)
        cr_assert_eq(memcmp(back[i], values[coarse_of[i]], sizeof back[i]), 0, "point %d", i);
    cr_assert(device_upload(d->backend, y, values, sizeof values), "%s", device_error());
    test_expect_ok(d->ctx,
                   spops_gather_execute_backward(d->ctx, spops_point_level_voxels(level), fine, up,
                                                 NULL, &grad, NULL),
                   "up, backward");
    test_wait(d);
    download(d, back, z, (size_t)m * COLS * 4);
    memset(sums, 0, sizeof sums);
    for (int i = 0; i < N; ++i)
        for (int col = 0; col < COLS; ++col)
            sums[coarse_of[i]][col] += values[i][col];
    cr_assert_eq(memcmp(back, sums, (size_t)m * COLS * 4), 0, "gradient of the way back");
    test_free(d, x), test_free(d, y), test_free(d, z);
    spops_point_level_destroy(level);
}

ParameterizedTestParameters(point_levels, keep)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, point_levels, keep)
{
    test_device d;
    cloud c;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int samples = 0; samples < 2; ++samples) {
        make_cloud(&d, &c, samples != 0);
        for (int keep = 0; keep <= SPOPS_POINT_KEEP_MEAN; ++keep)
            check_level(&d, &c, (spops_point_keep)keep, samples != 0);
        free_cloud(&d, &c);
    }
    test_close(&d);
}

// ---- Interpolation ------------------------------------------------------------------------------

ParameterizedTestParameters(point_levels, interpolate)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, point_levels, interpolate)
{
    static float values[N][COLS], out[N][COLS];
    static int32_t rows[N][3];
    static float distances[N][3];
    spops_point_level_options o = spops_point_level_options_default();
    spops_interpolation_options io = spops_interpolation_options_default();
    spops_point_level *level = NULL;
    spops_interpolation *it = NULL;
    spops_nearest *nearest = NULL;
    void *x = NULL, *y = NULL, *rows_there = NULL, *distances_there = NULL;
    test_device d;
    cloud c;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    make_cloud(&d, &c, true);
    o.size_m = size_m;
    test_expect_ok(d.ctx, spops_point_level_create(d.ctx, &c.there, &o, &level), "level");
    const spops_point_cloud *coarse = spops_point_level_cloud(level);
    const int64_t m = coarse->points.rows;
    io.gradients = SPOPS_GRADIENTS_LINEAR;
    test_expect_ok(d.ctx, spops_interpolation_create(d.ctx, coarse, &c.there, &io, &it), "make");
    for (int64_t i = 0; i < N * COLS; ++i)
        values[i / COLS][i % COLS] = (float)(i * 37 % 101 - 50);
    cr_assert(device_alloc(d.backend, sizeof values, &x) &&
                  device_alloc(d.backend, sizeof values, &y) &&
                  device_alloc(d.backend, sizeof rows, &rows_there) &&
                  device_alloc(d.backend, sizeof distances, &distances_there) &&
                  device_upload(d.backend, x, values, sizeof values),
              "%s", device_error());
    const spops_matrix from = spops_matrix_dense(x, m, COLS, SPOPS_DTYPE_F32);
    const spops_matrix to = spops_matrix_dense(y, N, COLS, SPOPS_DTYPE_F32);
    const spops_matrix weights = spops_interpolation_weights(it);
    test_expect_ok(d.ctx, spops_nearest_create(d.ctx, coarse, &nearest), "nearest");
    test_expect_ok(d.ctx,
                   spops_nearest_execute(d.ctx, nearest, &c.there, 3, (int32_t *)rows_there,
                                         (float *)distances_there),
                   "nearest");
    test_expect_ok(d.ctx,
                   spops_segreduce_execute(d.ctx, spops_interpolation_segments(it),
                                           SPOPS_REDUCE_SUM, from, &weights, to, NULL),
                   "forward");
    test_wait(&d);
    download(&d, out, y, sizeof out);
    download(&d, rows, rows_there, sizeof rows);
    download(&d, distances, distances_there, sizeof distances);
    for (int i = 0; i < N; ++i) {
        double sum = 0.0, expected[COLS] = {0.0};
        for (int k = 0; k < 3; ++k)
            sum += rows[i][k] < 0 ? 0.0 : 1.0 / fmax(sqrt((double)distances[i][k]), 1e-10);
        for (int k = 0; k < 3; ++k)
            for (int col = 0; col < COLS && rows[i][k] >= 0; ++col)
                expected[col] +=
                    values[rows[i][k]][col] / fmax(sqrt((double)distances[i][k]), 1e-10) / sum;
        for (int col = 0; col < COLS; ++col)
            cr_assert(fabs((double)out[i][col] - expected[col]) < 1e-4,
                      "point %d, column %d: %g, expected %g", i, col, (double)out[i][col],
                      expected[col]);
    }
    spops_nearest_destroy(nearest);
    spops_interpolation_destroy(it);
    spops_interpolation_destroy(NULL);
    spops_point_level_destroy(level);
    test_free(&d, x), test_free(&d, y), test_free(&d, rows_there), test_free(&d, distances_there);
    free_cloud(&d, &c);
    test_close(&d);
}

// ---- Pyramids -----------------------------------------------------------------------------------

ParameterizedTestParameters(point_levels, pyramid)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, point_levels, pyramid)
{
    static int32_t offsets[N + 1];
    test_device d;
    cloud c;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    make_cloud(&d, &c, true);
    for (int metric = 0; metric < 2; ++metric) {
        spops_point_pyramid_options o = spops_point_pyramid_options_default();
        spops_point_pyramid *pyramid = NULL;
        o.num_levels = 3;
        o.tap_size_m = 0.0625f;
        o.metric = (spops_metric)metric;
        o.cover = 1;
        o.contents = SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE;
        test_expect_ok(d.ctx, spops_point_pyramid_create(d.ctx, &c.there, &o, &pyramid), "make");
        int64_t before = N + 1;
        for (int level = 0; level < 3; ++level) {
            const spops_point_cloud *here = spops_point_pyramid_cloud(pyramid, level);
            spops_neighbors_view view = spops_neighbors_view_default();
            cr_assert(here->points.rows < before && here->points.rows > 1);
            before = here->points.rows;
            test_expect_ok(
                d.ctx,
                spops_neighbors_get_view(d.ctx, spops_point_pyramid_within(pyramid, level), &view),
                "view");
            cr_assert(view.out->max_rows == before && view.max_pairs >= before &&
                      view.num_taps == 27);
            if (level == 2) continue;
            // Every input is covered: it has an output that it is a neighbour of.
            test_expect_ok(
                d.ctx,
                spops_neighbors_get_view(d.ctx, spops_point_pyramid_down(pyramid, level), &view),
                "view");
            cr_assert_eq(view.in->max_rows, before);
            test_download_i32(&d, offsets, view.in->offsets, before + 1);
            for (int64_t i = 0; i < before; ++i)
                cr_assert(offsets[i] < offsets[i + 1], "level %d: point %lld is not covered", level,
                          (long long)i);
        }
        cr_assert(spops_point_pyramid_cloud(pyramid, 3) == NULL &&
                  spops_point_pyramid_down(pyramid, 2) == NULL &&
                  spops_point_pyramid_level(pyramid, 2) == NULL &&
                  spops_point_pyramid_within(pyramid, -1) == NULL);
        spops_point_pyramid_destroy(pyramid);
    }
    spops_point_pyramid_destroy(NULL);
    free_cloud(&d, &c);
    test_close(&d);
}

// ---- Refusals -----------------------------------------------------------------------------------

ParameterizedTestParameters(point_levels, refuses)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, point_levels, refuses)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_point_level_options o = spops_point_level_options_default();
    spops_interpolation_options io = spops_interpolation_options_default();
    spops_point_pyramid_options po = spops_point_pyramid_options_default();
    spops_point_level *level = NULL;
    spops_interpolation *it = NULL;
    spops_point_pyramid *pyramid = NULL;
    test_device d;
    cloud c;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    make_cloud(&d, &c, true);
#define REFUSED(call, fragment) test_expect(d.ctx, call, invalid, fragment, fragment)
    REFUSED(spops_point_level_create(d.ctx, &c.there, &o, &level), "size_m is 0");
    o.size_m = 1.0, o.keep = (spops_point_keep)4;
    REFUSED(spops_point_level_create(d.ctx, &c.there, &o, &level), "keep is 4");
    REFUSED(spops_point_level_create(d.ctx, NULL, &o, &level), "fine is NULL");
    io.count = SPOPS_MAX_NEAREST + 1;
    REFUSED(spops_interpolation_create(d.ctx, &c.there, &c.there, &io, &it), "count is 65");
    REFUSED(spops_point_pyramid_create(d.ctx, &c.there, &po, &pyramid), "tap_size_m is 0");
    po.tap_size_m = 0.1f, po.num_levels = 9;
    REFUSED(spops_point_pyramid_create(d.ctx, &c.there, &po, &pyramid), "num_levels is 9");
    po.num_levels = 2;
    cr_assert(device_upload(d.backend, c.points_there, &(float){NAN}, 4), "%s", device_error());
    REFUSED(spops_point_pyramid_create(d.ctx, &c.there, &po, &pyramid), "points[0] is (");
    cr_assert(level == NULL && it == NULL && pyramid == NULL);
    free_cloud(&d, &c);
    test_close(&d);
}
