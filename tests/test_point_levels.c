// SPDX-License-Identifier: Apache-2.0
// Coarser clouds, the way back, interpolation and pyramids, against their descriptions.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spops/point_levels.h"
#include "support/device.h"
#include "tests/support/coord_cases.h"
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
            if (expected < 0 ||
                (keep == SPOPS_POINT_KEEP_NEAREST &&
                 centre_distance2(c->points[members[n]]) < centre_distance2(c->points[expected])))
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

// Another seed keeps other points, the same one the same.
static void check_seeds(test_device *d, const cloud *c)
{
    static const uint32_t seeds[] = {5, 6, 5};
    static int32_t kept[3][N];
    int64_t m = 0, differ = 0;
    for (int i = 0; i < 3; ++i) {
        spops_point_level_options o = spops_point_level_options_default();
        spops_point_level_view view = spops_point_level_view_default();
        spops_point_level *level = NULL;
        o.size_m = size_m;
        o.keep = SPOPS_POINT_KEEP_RANDOM;
        o.seed = seeds[i];
        test_expect_ok(d->ctx, spops_point_level_create(d->ctx, &c->there, &o, &level), "seed");
        test_expect_ok(d->ctx, spops_point_level_get_view(d->ctx, level, &view), "seed");
        m = view.num_coarse;
        download(d, kept[i], view.fine_of, (size_t)m * 4);
        spops_point_level_destroy(level);
    }
    for (int64_t v = 0; v < m; ++v) {
        cr_assert_eq(kept[0][v], kept[2][v]);
        differ += kept[0][v] != kept[1][v];
    }
    cr_assert(differ > m / 8, "%lld of %lld differ", (long long)differ, (long long)m);
}

BackendTest(point_levels, keep)
{
    test_device d;
    cloud c;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int samples = 0; samples < 2; ++samples) {
        make_cloud(&d, &c, samples != 0);
        for (int keep = 0; keep <= SPOPS_POINT_KEEP_MEAN; ++keep)
            check_level(&d, &c, (spops_point_keep)keep, samples != 0);
        check_seeds(&d, &c);
        free_cloud(&d, &c);
    }
    test_close(&d);
}

// ---- Interpolation ------------------------------------------------------------------------------

// Distances that agree to all 24 bits of an f32 are told apart; of equal ones the earliest is kept.
BackendTest(point_levels, keeps_the_nearest)
{
    enum { POINTS = 4096, FIRST = 17 };
    static float points[POINTS][3];
    spops_point_level_options o = spops_point_level_options_default();
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int i = 0; i < POINTS; ++i) {
        const bool near = i == FIRST || (i > FIRST && i % 3 == 0);
        points[i][0] = 0.9f;
        points[i][1] = near ? 0.5f : 0.50001f;
        points[i][2] = 0.5f;
    }
    int32_t *there = test_upload_i32(&d, (const int32_t *)(const void *)points, 3 * POINTS);
    const spops_point_cloud fine = {spops_matrix_dense(there, POINTS, 3, SPOPS_DTYPE_F32), NULL, 0};
    o.size_m = 1;
    for (int run = 0; run < 10; ++run) {
        spops_point_level_view view = spops_point_level_view_default();
        spops_point_level *level = NULL;
        int32_t kept = -1;
        test_expect_ok(d.ctx, spops_point_level_create(d.ctx, &fine, &o, &level), "level");
        test_expect_ok(d.ctx, spops_point_level_get_view(d.ctx, level, &view), "view");
        cr_assert_eq(view.num_coarse, 1);
        download(&d, &kept, view.fine_of, sizeof kept);
        cr_assert_eq(kept, FIRST, "%d is kept", kept);
        const spops_point_cloud *coarse = spops_point_level_cloud(level);
        float found[3];
        download(&d, found, coarse->points.data, sizeof found);
        cr_assert_arr_eq(found, points[FIRST], sizeof found);
        spops_point_level_destroy(level);
    }
    test_free(&d, there);
    test_close(&d);
}

BackendTest(point_levels, interpolate)
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

// Samples of one point and of none, a point that is not finite, and rows after the last offset take
// what there is: the one point's features, or 0. So does what was reserved, from and to capacities of
// which more is not in use.
BackendTest(point_levels, interpolate_from_few)
{
    enum { FROM = 4, TO = 6, IN_USE = 5 };
    const float from[FROM][3] = {
        {1.0f, 2.0f, 3.0f}, {9.0f, NAN, 0.0f}, {1.0f, 2.0f, 3.0f}, {NAN, NAN, NAN}};
    const float to[TO][3] = {{1.0f, 2.0f, 3.0f}, {NAN, 2.0f, 3.0f},  {9.0f, 9.0f, 9.0f},
                             {0.0f, 0.0f, 0.0f}, {1.0f, 2.0f, 3.0f}, {1.0f, 2.0f, 3.0f}};
    // Whole; with a point that is not finite; with rows that are not in use; falling; none.
    const int32_t offsets[][3] = {{0, 1, 1}, {0, 3, 6}, {0, 2, 2}, {0, 3, 5}, {0, 2, 1}, {0, 0, 0}};
    const float values[FROM] = {7.0f, 1000.0f, 1000.0f, 1000.0f};
    const float expected[TO] = {7.0f, 0.0f, 7.0f, 0.0f, 0.0f, 0.0f};
    float out[TO], grad[FROM];
    int32_t rows[TO];
    spops_interpolation_options o = spops_interpolation_options_default();
    spops_interpolation *it = NULL;
    spops_nearest *nearest = NULL;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    float *from_there = test_upload_f32(&d, &from[0][0], 3 * FROM);
    float *to_there = test_upload_f32(&d, &to[0][0], 3 * TO);
    float *x = test_upload_f32(&d, values, FROM), *y = test_upload_f32(&d, expected, TO);
    float *grad_there = test_upload_f32(&d, values, FROM);
    int32_t *there = test_upload_i32(&d, offsets[0], 18);
    spops_point_cloud source = {spops_matrix_dense(from_there, 1, 3, SPOPS_DTYPE_F32), there, 2};
    spops_point_cloud target = {spops_matrix_dense(to_there, TO, 3, SPOPS_DTYPE_F32), there + 3, 2};
    const spops_matrix out_there = spops_matrix_dense(y, TO, 1, SPOPS_DTYPE_F32);
    o.gradients = SPOPS_GRADIENTS_LINEAR;
    test_expect_ok(d.ctx, spops_interpolation_create(d.ctx, &source, &target, &o, &it), "make");
    for (int round = 0; round < 5; ++round) {
        const bool some = round < 3;
        if (round == 1) { // from here on into capacities
            spops_interpolation_destroy(it);
            source.points.rows = FROM;
            test_expect_ok(d.ctx, spops_interpolation_reserve(d.ctx, FROM, TO, 2, &o, &it),
                           "reserve");
        }
        if (round >= 1) {
            static const int sources[] = {0, 6, 6, 12, 15}, targets[] = {0, 3, 9, 3, 3};
            source.offsets = there + sources[round];
            target.offsets = there + targets[round];
            test_expect_ok(d.ctx, spops_interpolation_update(d.ctx, it, &source, &target),
                           "update");
        }
        const spops_matrix in = spops_matrix_dense(x, source.points.rows, 1, SPOPS_DTYPE_F32);
        const spops_matrix grad_x =
            spops_matrix_dense(grad_there, source.points.rows, 1, SPOPS_DTYPE_F32);
        const spops_matrix weights = spops_interpolation_weights(it);
        const spops_segments *segments = spops_interpolation_segments(it);
        test_expect_ok(d.ctx,
                       spops_segreduce_execute(d.ctx, segments, SPOPS_REDUCE_SUM, in, &weights,
                                               out_there, NULL),
                       "forward");
        test_expect_ok(d.ctx,
                       spops_segreduce_execute_backward(d.ctx, segments, SPOPS_REDUCE_SUM,
                                                        out_there, in, &weights, &grad_x, NULL),
                       "backward");
        test_wait(&d);
        download(&d, out, y, sizeof out);
        download(&d, grad, grad_there, sizeof grad);
        for (int i = 0; i < TO; ++i)
            cr_assert_eq(out[i], some ? expected[i] : 0.0f, "round %d, point %d: %g", round, i,
                         (double)out[i]);
        for (int j = 0; j < source.points.rows; ++j)
            cr_assert_eq(grad[j], some && j == 0 ? 14.0f : 0.0f, "round %d: %g", round,
                         (double)grad[j]);
    }

    source.points.rows = 1, source.offsets = there, target.offsets = there + 9;
    test_expect_ok(d.ctx, spops_nearest_create(d.ctx, &source, &nearest), "nearest");
    test_expect_ok(d.ctx,
                   spops_nearest_execute(d.ctx, nearest, &target, 1, (int32_t *)(void *)y, NULL),
                   "nearest");
    test_wait(&d);
    download(&d, rows, y, sizeof rows);
    for (int i = 0; i < TO; ++i)
        cr_assert_eq(rows[i], i < IN_USE && expected[i] > 0.0f ? 0 : -1, "point %d: %d", i,
                     rows[i]);
    test_expect(d.ctx, spops_interpolation_update(d.ctx, it, &source, &target),
                SPOPS_STATUS_INVALID_ARGUMENT, "from->points.rows is 1, expected the capacity, 4",
                "rows");
    source.points.rows = FROM, target.num_samples = 1;
    test_expect(d.ctx, spops_interpolation_update(d.ctx, it, &source, &target),
                SPOPS_STATUS_INVALID_ARGUMENT, "to has 1 samples, expected 2", "samples");
    spops_nearest_destroy(nearest);
    spops_interpolation_destroy(it);
    test_free(&d, from_there), test_free(&d, to_there), test_free(&d, x), test_free(&d, y);
    test_free(&d, grad_there), test_free(&d, there);
    test_close(&d);
}

// ---- Pyramids -----------------------------------------------------------------------------------

// With cover, the point that a voxel kept in one corner has that in the opposite one for neighbour.
BackendTest(point_levels, cover_reaches_corners)
{
    const float near = 1e-6f, far = 0.5f - 1e-6f;
    const float corners[2][3] = {{near, near, far}, {far, far, near}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    float *there = test_upload_f32(&d, &corners[0][0], 6);
    const spops_point_cloud both = {spops_matrix_dense(there, 2, 3, SPOPS_DTYPE_F32), NULL, 0};
    for (int metric = 0; metric < 2; ++metric)
        for (int cover = 0; cover < 2; ++cover) {
            spops_point_pyramid_options o = spops_point_pyramid_options_default();
            spops_point_pyramid_info info = spops_point_pyramid_info_default();
            spops_point_pyramid *pyramid = NULL;
            o.num_levels = 2;
            o.tap_size_m = 0.25f;
            o.radius_taps = 0.1f;
            o.metric = (spops_metric)metric;
            o.keep = SPOPS_POINT_KEEP_FIRST;
            o.cover = cover;
            test_expect_ok(d.ctx, spops_point_pyramid_create(d.ctx, &both, &o, &pyramid), "make");
            test_expect_ok(d.ctx, spops_point_pyramid_get_info_sync(d.ctx, pyramid, &info), "info");
            cr_assert_eq(info.num_rows[1], 1);
            cr_assert_eq(info.num_down_pairs[0], 1 + cover, "metric %d, cover %d", metric, cover);
            spops_point_pyramid_destroy(pyramid);
        }
    test_free(&d, there);
    test_close(&d);
}

BackendTest(point_levels, pyramid)
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

// ---- Pyramids into capacities -------------------------------------------------------------------

enum { CAPACITY = N + 60, MAX_COARSE = N - 60, LEVELS = 3 };

// The first num elements of both are the same.
static void compare_i32(test_device *d, const char *what, const int32_t *a, const int32_t *b,
                        int64_t num)
{
    int32_t *here = malloc((size_t)num * 4 + 1), *other = malloc((size_t)num * 4 + 1);
    test_download_i32(d, here, a, num);
    test_download_i32(d, other, b, num);
    cr_assert_eq(memcmp(here, other, (size_t)num * 4), 0, "%s", what);
    free(here), free(other);
}

static void compare_lists(test_device *d, const char *what, const spops_neighbor_lists *a,
                          const spops_neighbor_lists *b, int64_t num_pairs)
{
    unsigned char *taps[2] = {malloc((size_t)num_pairs * 2 + 1), malloc((size_t)num_pairs * 2 + 1)};
    compare_i32(d, what, a->offsets, b->offsets, b->max_rows + 1);
    compare_i32(d, what, a->rows, b->rows, num_pairs);
    download(d, taps[0], a->taps, (size_t)num_pairs * 2);
    download(d, taps[1], b->taps, (size_t)num_pairs * 2);
    cr_assert_eq(memcmp(taps[0], taps[1], (size_t)num_pairs * 2), 0, "%s: taps", what);
    free(taps[0]), free(taps[1]);
}

static void compare_neighbors(test_device *d, const char *what, const spops_neighbors *a,
                              const spops_neighbors *b)
{
    spops_neighbors_view here = spops_neighbors_view_default(), other = here;
    test_expect_ok(d->ctx, spops_neighbors_get_view(d->ctx, a, &here), what);
    test_expect_ok(d->ctx, spops_neighbors_get_view(d->ctx, b, &other), what);
    compare_lists(d, what, here.out, other.out, other.max_pairs);
    compare_lists(d, what, here.in, other.in, other.max_pairs);
    compare_i32(d, what, here.tap_offsets, other.tap_offsets, other.num_taps + 1);
    compare_i32(d, what, here.in_rows, other.in_rows, other.max_pairs);
    compare_i32(d, what, here.out_rows, other.out_rows, other.max_pairs);
}

// A plan that was reserved gathers as one that was made to measure.
static void compare_up(test_device *d, const spops_point_level *a, const spops_point_level *b,
                       int64_t max_fine, int64_t max_coarse, int64_t fine)
{
    static float values[CAPACITY], back[2][CAPACITY];
    const spops_point_level *levels[2] = {a, b};
    spops_point_level_view view = spops_point_level_view_default();
    void *x = NULL, *y = NULL;
    for (int i = 0; i < CAPACITY; ++i)
        values[i] = (float)(i * 37 % 101);
    cr_assert(device_alloc(d->backend, sizeof values, &x) &&
                  device_alloc(d->backend, sizeof values, &y) &&
                  device_upload(d->backend, x, values, sizeof values),
              "%s", device_error());
    test_expect_ok(d->ctx, spops_point_level_get_view(d->ctx, b, &view), "view");
    for (int i = 0; i < 2; ++i) {
        const int64_t rows = i == 0 ? max_fine : fine;
        const int64_t from = i == 0 ? max_coarse : view.num_coarse;
        cr_assert(device_fill(d->backend, y, 0, sizeof values), "%s", device_error());
        test_expect_ok(d->ctx,
                       spops_gather_execute(d->ctx, spops_point_level_voxels(levels[i]),
                                            spops_matrix_dense(x, from, 1, SPOPS_DTYPE_F32), NULL,
                                            spops_matrix_dense(y, rows, 1, SPOPS_DTYPE_F32)),
                       "up");
        test_wait(d);
        download(d, back[i], y, sizeof values);
    }
    cr_assert_eq(memcmp(back[0], back[1], (size_t)fine * 4), 0, "the way back");
    test_free(d, x), test_free(d, y);
}

static void compare_pyramids(test_device *d, const spops_point_pyramid *a,
                             const spops_point_pyramid *b)
{
    static float here[CAPACITY][3], other[CAPACITY][3];
    char what[40];
    for (int level = 0; level < LEVELS; ++level) {
        const spops_point_cloud *reserved = spops_point_pyramid_cloud(a, level);
        const spops_point_cloud *exact = spops_point_pyramid_cloud(b, level);
        const spops_point_level *to = spops_point_pyramid_level(a, level);
        const spops_point_level *exact_to = spops_point_pyramid_level(b, level);
        const int64_t rows = exact->points.rows;
        snprintf(what, sizeof what, "level %d", level);
        compare_i32(d, what, reserved->offsets, exact->offsets, SAMPLES + 1);
        download(d, here, reserved->points.data, (size_t)rows * 12);
        download(d, other, exact->points.data, (size_t)rows * 12);
        cr_assert_eq(memcmp(here, other, (size_t)rows * 12), 0, "%s: points", what);
        compare_neighbors(d, what, spops_point_pyramid_within(a, level),
                          spops_point_pyramid_within(b, level));
        if (level + 1 == LEVELS) break;
        spops_point_level_view views[2] = {spops_point_level_view_default(),
                                           spops_point_level_view_default()};
        test_expect_ok(d->ctx, spops_point_level_get_view(d->ctx, to, &views[0]), what);
        test_expect_ok(d->ctx, spops_point_level_get_view(d->ctx, exact_to, &views[1]), what);
        compare_i32(d, what, views[0].num_rows, views[1].num_rows, 1);
        compare_i32(d, what, views[0].coarse_of, views[1].coarse_of, rows);
        if (views[1].num_coarse > 0)
            cr_assert_eq(views[0].fine_of == NULL, views[1].fine_of == NULL);
        if (views[1].fine_of != NULL)
            compare_i32(d, what, views[0].fine_of, views[1].fine_of, views[1].num_coarse);
        compare_up(d, to, exact_to, views[0].num_fine, views[0].num_coarse, rows);
        compare_neighbors(d, what, spops_point_pyramid_down(a, level),
                          spops_point_pyramid_down(b, level));
    }
}

// A pyramid is its levels and neighbours one by one, in sizes that double.
static void compare_with_parts(test_device *d, const spops_point_pyramid_options *o,
                               const spops_point_pyramid *pyramid)
{
    for (int level = 0; level < LEVELS; ++level) {
        spops_neighbors_options search = spops_neighbors_options_default();
        spops_neighbors *alone = NULL;
        char what[40];
        snprintf(what, sizeof what, "level %d, alone", level);
        search.tap_size_m = o->tap_size_m * (float)(1 << level);
        search.radius_m = 1.861f * search.tap_size_m;
        search.taps = 3;
        search.contents = o->contents;
        test_expect_ok(d->ctx,
                       spops_neighbors_create(d->ctx, NULL,
                                              spops_point_pyramid_cloud(pyramid, level), &search,
                                              &alone),
                       what);
        compare_neighbors(d, what, spops_point_pyramid_within(pyramid, level), alone);
        spops_neighbors_destroy(alone);
    }
}

// What comes in a frame: the cloud as it is, fewer points, none, wrong offsets, a point that is not
// finite, and more coarse points than fit.
enum { WHOLE, FEWER, EMPTY, BAD_OFFSETS, NOT_FINITE, OVERFLOWS, NUM_FRAMES };

static void check_frame(test_device *d, const spops_point_pyramid *pyramid,
                        const spops_point_pyramid_options *o, const cloud *c, int frame)
{
    spops_point_pyramid_info info = spops_point_pyramid_info_default();
    spops_point_pyramid *alone = NULL;
    spops_point_cloud exact = c->there;
    const spops_status status = spops_point_pyramid_get_info_sync(d->ctx, pyramid, &info);
    cr_assert_eq(status, frame == OVERFLOWS ? SPOPS_STATUS_CAPACITY_EXCEEDED : SPOPS_STATUS_OK,
                 "frame %d: %s", frame, spops_last_error(d->ctx));
    cr_assert_eq(info.num_levels, LEVELS);
    cr_assert_eq(info.overflow, frame == OVERFLOWS);
    cr_assert_eq(info.bad_offsets, frame == BAD_OFFSETS);
    cr_assert_eq(info.num_dropped, frame == NOT_FINITE ? 1 : 0, "frame %d: %lld dropped", frame,
                 (long long)info.num_dropped);
    if (frame == EMPTY || frame == BAD_OFFSETS)
        for (int level = 0; level < LEVELS; ++level)
            cr_assert(info.num_rows[level] == 0 && info.num_pairs[level] == 0, "frame %d", frame);
    if (frame == OVERFLOWS) {
        spops_point_level_info level = spops_point_level_info_default();
        cr_assert_eq(info.num_rows[1], MAX_COARSE);
        test_expect(d->ctx, status, SPOPS_STATUS_CAPACITY_EXCEEDED, "level 1 has more", "level");
        test_expect(
            d->ctx,
            spops_point_level_get_info_sync(d->ctx, spops_point_pyramid_level(pyramid, 0), &level),
            SPOPS_STATUS_CAPACITY_EXCEEDED, "max_coarse = 640", "level");
        cr_assert(level.overflow == 1 && level.max_coarse == MAX_COARSE);
    }
    if (frame == BAD_OFFSETS || frame == NOT_FINITE || frame == OVERFLOWS) return;
    exact.points.rows = info.num_rows[0];
    cr_assert_eq(info.num_rows[0], frame == WHOLE ? N : frame == FEWER ? N / 2 : 0);
    test_expect_ok(d->ctx, spops_point_pyramid_create(d->ctx, &exact, o, &alone), "alone");
    compare_pyramids(d, pyramid, alone);
    compare_with_parts(d, o, alone);
    spops_point_pyramid_info same = spops_point_pyramid_info_default();
    test_expect_ok(d->ctx, spops_point_pyramid_get_info_sync(d->ctx, alone, &same), "info");
    cr_assert_eq(memcmp(&info, &same, sizeof info), 0, "info of frame %d", frame);
    spops_point_pyramid_destroy(alone);
}

ParameterizedTestParameters(point_levels, pyramids_serve_frames)
{
    static struct launch_param params[] = {{SPOPS_BACKEND_CPU, LAUNCH_DEFAULT},
                                           {SPOPS_BACKEND_CUDA, LAUNCH_CAPTURED}};
    return tested_here(cr_make_param_array(struct launch_param, params, 2));
}
ParameterizedTest(struct launch_param *p, point_levels, pyramids_serve_frames)
{
    static const int32_t no_offsets[SAMPLES + 1] = {0}, half[] = {0, N / 3, N / 2, N / 2},
                                              bad[] = {0, N / 2, N / 4, N};
    static float apart[N][3];
    const spops_point_pyramid_capacity shape = {.max_rows = {CAPACITY, MAX_COARSE},
                                                .max_pairs = {40000, 40000, 20000},
                                                .max_down_pairs = {80000, 80000},
                                                .num_samples = SAMPLES,
                                                .lower_m = {-1.0, -1.0, -1.0},
                                                .upper_m = {3.0, 3.0, 3.0}};
    test_device d;
    cloud c;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    make_cloud(&d, &c, true);
    void *room = NULL; // of the capacity
    cr_assert(device_alloc(d.backend, (size_t)CAPACITY * 12, &room), "%s", device_error());
    c.there.points = spops_matrix_dense(room, CAPACITY, 3, SPOPS_DTYPE_F32);
    for (int i = 0; i < N; ++i) // each in a voxel of its own
        for (int a = 0; a < 3; ++a)
            apart[i][a] = 0.25f * (float)(a == 0 ? i % 9 : a == 1 ? i / 9 % 9 : i / 81) + 0.05f;
    for (int keep = 0; keep <= SPOPS_POINT_KEEP_MEAN; ++keep) {
        spops_point_pyramid_options o = spops_point_pyramid_options_default();
        spops_point_pyramid *pyramid = NULL;
        device_graph *graph = NULL;
        o.num_levels = LEVELS;
        o.tap_size_m = 0.0625f;
        o.cover = keep % 2;
        o.keep = (spops_point_keep)keep;
        o.contents = SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE;
        test_expect_ok(d.ctx, spops_point_pyramid_reserve(d.ctx, &shape, &o, &pyramid), "reserve");
        cr_assert_eq(spops_point_pyramid_cloud(pyramid, 0)->points.rows, 0);
        if (d.launch == LAUNCH_CAPTURED) {
            cr_assert(device_capture_begin(d.stream), "%s", device_error());
            const spops_status status = spops_point_pyramid_update(d.ctx, pyramid, &c.there);
            cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
            test_expect_ok(d.ctx, status, "captured");
        }
        for (int frame = 0; frame < NUM_FRAMES; ++frame) {
            const int32_t *offsets = frame == FEWER         ? half
                                     : frame == EMPTY       ? no_offsets
                                     : frame == BAD_OFFSETS ? bad
                                                            : c.offsets;
            const float nan = NAN;
            cr_assert(device_upload(d.backend, room, frame == OVERFLOWS ? apart : c.points,
                                    sizeof c.points) &&
                          (frame != NOT_FINITE || device_upload(d.backend, room, &nan, 4)) &&
                          device_upload(d.backend, c.offsets_there, offsets, sizeof c.offsets),
                      "%s", device_error());
            if (graph != NULL)
                cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
            else
                test_expect_ok(d.ctx, spops_point_pyramid_update(d.ctx, pyramid, &c.there), "set");
            test_wait(&d);
            check_frame(&d, pyramid, &o, &c, frame);
        }
        device_graph_destroy(graph);
        spops_point_pyramid_destroy(pyramid);
    }
    test_free(&d, room);
    free_cloud(&d, &c);
    test_close(&d);
}

// ---- Refusals -----------------------------------------------------------------------------------

BackendTest(point_levels, refuses)
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
    o.size_m = 1.0, o.origin_m[1] = NAN;
    REFUSED(spops_point_level_create(d.ctx, &c.there, &o, &level), "origin_m[1] is nan");
    o.origin_m[1] = 0.0, o.reserved = 1;
    REFUSED(spops_point_level_create(d.ctx, &c.there, &o, &level), "reserved is 1");
    o.reserved = 0, o.size_m = 1e-300;
    REFUSED(spops_point_level_create(d.ctx, &c.there, &o, &level), "e+2");
    o.size_m = 1.0;
    io.count = 3;
    const spops_point_cloud together = {c.there.points, NULL, 0};
    REFUSED(spops_interpolation_create(d.ctx, &together, &c.there, &io, &it),
            "interpolation_create: to has 3 samples, expected 1 as from has");
    const int32_t falling[SAMPLES + 1] = {0, 5, 3, N};
    int32_t *falling_there = test_upload_i32(&d, falling, SAMPLES + 1);
    const spops_point_cloud wrong = {c.there.points, falling_there, SAMPLES};
    REFUSED(spops_interpolation_create(d.ctx, &c.there, &wrong, &io, &it),
            "to->offsets[2] is 3, less than offsets[1] = 5");
    REFUSED(spops_interpolation_create(d.ctx, &wrong, &c.there, &io, &it),
            "offsets[2] is 3, less than offsets[1] = 5");
    test_free(&d, falling_there);
    REFUSED(spops_point_pyramid_create(d.ctx, &c.there, &po, &pyramid), "tap_size_m is 0");
    po.tap_size_m = 0.1f, po.reserved = 1;
    REFUSED(spops_point_pyramid_create(d.ctx, &c.there, &po, &pyramid), "reserved is 1");
    po.reserved = 0, po.num_levels = 2;
    cr_assert(device_upload(d.backend, c.points_there, &(float){NAN}, 4), "%s", device_error());
    REFUSED(spops_point_pyramid_create(d.ctx, &c.there, &po, &pyramid), "points[0] is (");
    spops_point_level_capacity shape = {.max_fine = 9, .max_coarse = 5};
    spops_point_pyramid_capacity shapes = {.max_rows = {-1}};
    REFUSED(spops_point_level_reserve(d.ctx, NULL, &o, &level), "capacity is NULL");
    o.keep = SPOPS_POINT_KEEP_FIRST;
    REFUSED(spops_point_level_reserve(d.ctx, &shape, &o, &level), "capacity->num_samples is 0");
    shape.num_samples = 2, shape.lower_m[1] = 1.0;
    REFUSED(spops_point_level_reserve(d.ctx, &shape, &o, &level), "lower_m[1] is 1");
    shape.upper_m[1] = 1e300;
    REFUSED(spops_point_level_reserve(d.ctx, &shape, &o, &level), "expected 32 bits");
    REFUSED(spops_point_pyramid_reserve(d.ctx, NULL, &po, &pyramid), "capacity is NULL");
    REFUSED(spops_point_pyramid_reserve(d.ctx, &shapes, &po, &pyramid), "max_rows[0] is -1");
    cr_assert(level == NULL && it == NULL && pyramid == NULL);
    shape.upper_m[1] = 2.0;
    test_expect_ok(d.ctx, spops_point_level_reserve(d.ctx, &shape, &o, &level), "reserve");
    REFUSED(spops_point_level_update(d.ctx, level, &c.there), "fine->points.rows is 700");
    c.there.points.rows = 9;
    REFUSED(spops_point_level_update(d.ctx, level, &c.there), "fine has 3 samples, expected");
    REFUSED(spops_point_level_update(d.ctx, NULL, &c.there), "level is NULL");
    spops_point_level_destroy(level);
    free_cloud(&d, &c);
    test_close(&d);
}
