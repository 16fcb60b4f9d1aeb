// SPDX-License-Identifier: Apache-2.0
// Voxels of points and back: the counts of real scans, features as reductions, the chosen points,
// interpolation with its gradients, refilling on the stream, and what is refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "support/elements.h"
#include "tests/support/coord_cases.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

static spops_voxels *const untouched = (spops_voxels *)16;

// ---- clouds of points ----

typedef struct point_cloud {
    int32_t dims;
    int64_t n, stride; // elements from point to point
    float *points;
    int32_t *batch;
} point_cloud;

// Points around voxels of 0.1, on their edges and centres too; with one column more than axes.
static point_cloud points_make(int32_t dims, int64_t n, test_rng *rng)
{
    point_cloud p = {dims, n, dims + 1, NULL, NULL};
    p.points = (float *)calloc((size_t)(n * p.stride) + 1, sizeof *p.points);
    p.batch = (int32_t *)calloc((size_t)n + 1, sizeof *p.batch);
    for (int64_t i = 0; i < n; ++i) {
        p.batch[i] = (int32_t)test_rng_below(rng, 3);
        for (int32_t a = 0; a < p.stride; ++a) {
            const double cell = (double)(test_rng_below(rng, 9) - 4);
            const double in = test_rng_below(rng, 4) == 0 ? 0.5 * (double)test_rng_below(rng, 2)
                                                          : test_rng_unit(rng);
            p.points[i * p.stride + a] = (float)(0.1 * (cell + in));
        }
    }
    return p;
}

static void points_free(point_cloud *p)
{
    free(p->points), free(p->batch);
}

static spops_matrix matrix_of(float *given, const point_cloud *p)
{
    spops_matrix m = spops_matrix_dense(given, p->n, p->dims, SPOPS_DTYPE_F32);
    m.row_stride = p->stride;
    return m;
}

// Voxel rows by the definition: floor((p - origin) / size) in double.
static int32_t *voxel_rows(const point_cloud *p, const double *size, const double *origin,
                           bool use_batch)
{
    int32_t *rows = (int32_t *)calloc((size_t)(p->n * (p->dims + 1)) + 1, sizeof *rows);
    for (int64_t i = 0; i < p->n; ++i) {
        rows[i * (p->dims + 1)] = use_batch ? p->batch[i] : 0;
        for (int32_t a = 0; a < p->dims; ++a)
            rows[i * (p->dims + 1) + a + 1] =
                (int32_t)floor(((double)p->points[i * p->stride + a] - origin[a]) / size[a]);
    }
    return rows;
}

static spops_voxels_options voxel_options(double size, int32_t dims)
{
    spops_voxels_options o = spops_voxels_options_default();
    for (int32_t a = 0; a < dims; ++a)
        o.size_m[a] = size * (1.0 + 0.25 * a), o.origin_m[a] = 0.03 * a;
    return o;
}

// ---- the table of the data's README ----

BackendTest(voxels, counts_of_scans)
{
    static const double sizes[] = {0.02, 0.05, 0.1, 0.2, 0.5};
    static const struct {
        const char *name;
        int64_t n, counts[5];
    } scans[] = {
        {"airborne_autzen_a.npy", 1049963, {1049844, 1048431, 1040477, 995308, 682864}},
        {"argoverse2_a.npy", 100660, {99472, 87045, 63681, 37044, 15094}},
        {"indoor_redkitchen_a.npy", 258342, {28737, 5156, 1434, 414, 73}},
        {"indoor_roomscan_a.npy", 112586, {41528, 27930, 13490, 5342, 1272}},
        {"kitti_det_000008_fov.npy", 17238, {16923, 13983, 9866, 5583, 1966}},
        {"kitti_odom_a.npy", 123389, {119222, 94594, 68867, 41983, 16586}},
        {"kitti_odom_b.npy", 123849, {114613, 78018, 43899, 18820, 4987}},
        {"nuscenes_a.npy", 34688, {27739, 23091, 17856, 12606, 6715}},
        {"nuscenes_b.npy", 34752, {22088, 17400, 12419, 8292, 4168}},
        {"spconv_benchmark_pc.npy", 198130, {196167, 173011, 125657, 66449, 20249}},
    };
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (size_t f = 0; f < sizeof scans / sizeof *scans; ++f) {
        int64_t n = 0, cols = 0;
        float *values = NULL;
        if (test_quick() && scans[f].n > 200000) continue;
        if (!cloud_load_f32(scans[f].name, &n, &cols, &values)) continue;
        cr_assert(n == scans[f].n && cols >= 3, "%s", scans[f].name);
        float *given = test_upload_f32(&d, values, n * cols);
        spops_matrix m = spops_matrix_dense(given, n, 3, SPOPS_DTYPE_F32);
        m.row_stride = cols;
        for (int s = 0; s < 5; ++s) {
            spops_voxels_options o = spops_voxels_options_default();
            spops_coords_options coords = spops_coords_options_default();
            spops_voxels *voxels = NULL;
            for (int a = 0; a < 3; ++a) {
                float low = values[a];
                for (int64_t i = 1; i < n; ++i)
                    low = values[i * cols + a] < low ? values[i * cols + a] : low;
                o.origin_m[a] = (double)low;
                o.size_m[a] = sizes[s];
            }
            coords.order = (spops_coords_order)(s % 4);
            o.coords = &coords;
            test_expect_ok(d.ctx, spops_voxels_create(d.ctx, m, NULL, &o, &voxels), scans[f].name);
            spops_coords_info info;
            info.struct_size = sizeof info;
            test_expect_ok(d.ctx,
                           spops_coords_get_info_sync(d.ctx, spops_voxels_coords(voxels), &info),
                           scans[f].name);
            cr_assert(info.num_rows == scans[f].counts[s], "%s at %g m: %lld voxels, expected %lld",
                      scans[f].name, sizes[s], (long long)info.num_rows,
                      (long long)scans[f].counts[s]);
            cr_assert(info.num_merged == n - info.num_rows, "%s", scans[f].name);
            spops_voxels_destroy(voxels);
        }
        test_free(&d, given);
        free(values);
    }
    test_close(&d);
}

// ---- what voxels hold ----

// Of the segments, on the host.
static void fetch_segments(test_device *d, const spops_segments *segments, int64_t max_segments,
                           int32_t **offsets, int32_t **pairs, int64_t *num_terms, const char *what)
{
    spops_segments_view view = spops_segments_view_default();
    spops_segments_info info = spops_segments_info_default();
    test_expect_ok(d->ctx, spops_segments_get_info_sync(d->ctx, segments, &info), what);
    test_expect_ok(d->ctx, spops_segments_get_view(d->ctx, segments, &view), what);
    cr_assert(view.num_segments == max_segments, "%s", what);
    *num_terms = info.num_terms;
    *offsets = (int32_t *)calloc((size_t)max_segments + 2, sizeof(int32_t));
    *pairs = (int32_t *)calloc((size_t)info.num_terms * 2 + 2, sizeof(int32_t));
    test_download_i32(d, *offsets, view.offsets, max_segments + 1);
    for (int64_t i = 0; view.pairs == NULL && i < info.num_terms; ++i)
        (*pairs)[2 * i] = (*pairs)[2 * i + 1] = (int32_t)i;
    if (view.pairs != NULL) test_download_i32(d, *pairs, view.pairs, 2 * info.num_terms);
}

// Square of the distance from the centre of its voxel.
static double distance2(const point_cloud *p, int64_t i, const int32_t *row, const double *size,
                        const double *origin)
{
    double sum = 0.0;
    for (int32_t a = 0; a < p->dims; ++a) {
        const double u = ((double)p->points[i * p->stride + a] - origin[a]) / size[a];
        const volatile double d = (u - (double)row[a + 1] - 0.5) * size[a], square = d * d;
        sum += square;
    }
    return sum;
}

static void check_voxels(test_device *d, const spops_voxels *voxels, const point_cloud *p,
                         const spops_voxels_options *o, const ref_set *expected,
                         const int32_t *rows, const char *what)
{
    const int32_t columns = p->dims + 1;
    held_set held = held_set_of(d, spops_voxels_coords(voxels), what);
    spops_voxels_view view = spops_voxels_view_default();
    held_set_check(&held, expected, what);
    test_expect_ok(d->ctx, spops_voxels_get_view(d->ctx, voxels, &view), what);
    const int64_t n = held.info.num_rows;
    int32_t *counts = (int32_t *)calloc((size_t)view.max_voxels + 1, sizeof *counts);
    int32_t *chosen = (int32_t *)calloc((size_t)view.max_voxels + 1, sizeof *chosen);
    test_download_i32(d, counts, view.num_points, view.max_voxels);
    cr_assert((view.chosen_point != NULL) ==
                  (o->points != SPOPS_VOXEL_POINTS_ALL && view.max_voxels > 0),
              "%s", what);
    if (view.chosen_point != NULL) test_download_i32(d, chosen, view.chosen_point, view.max_voxels);
    // What each voxel should have.
    int32_t *points_of = (int32_t *)calloc((size_t)n + 1, sizeof *points_of);
    int32_t *best = (int32_t *)calloc((size_t)n + 1, sizeof *best);
    memset(best, 0xff, (size_t)(n + 1) * sizeof *best);
    for (int64_t i = 0; i < held.view.max_items; ++i) {
        const int32_t v = held.item_row[i];
        if (v < 0) continue;
        ++points_of[v];
        if (best[v] < 0 || (o->points == SPOPS_VOXEL_POINTS_NEAREST &&
                            distance2(p, i, rows + i * columns, o->size_m, o->origin_m) <
                                distance2(p, best[v], rows + i * columns, o->size_m, o->origin_m)))
            best[v] = (int32_t)i;
    }
    int32_t *offsets = NULL, *pairs = NULL;
    int64_t num_terms = 0, expected_terms = 0;
    fetch_segments(d, spops_voxels_segments(voxels), view.max_voxels, &offsets, &pairs, &num_terms,
                   what);
    for (int64_t v = 0; v < view.max_voxels; ++v) {
        const int32_t total = v < n ? points_of[v] : 0;
        cr_assert(counts[v] == total, "%s: voxel %lld has %d points, expected %d", what,
                  (long long)v, counts[v], total);
        const int32_t in_segment = o->points == SPOPS_VOXEL_POINTS_ALL ? total : total > 0;
        cr_assert(offsets[v + 1] - offsets[v] == in_segment, "%s: segment %lld", what,
                  (long long)v);
        expected_terms += in_segment;
        if (view.chosen_point != NULL)
            cr_assert(chosen[v] == (v < n ? best[v] : -1), "%s: voxel %lld chose %d, expected %d",
                      what, (long long)v, chosen[v], v < n ? best[v] : -1);
        for (int32_t t = offsets[v]; t < offsets[v + 1]; ++t) {
            const int32_t point = pairs[2 * t];
            cr_assert(held.item_row[point] == v, "%s: point %d is in segment %lld", what, point,
                      (long long)v);
            if (view.chosen_point != NULL) cr_assert(point == best[v], "%s", what);
            if (t > offsets[v]) cr_assert(point > pairs[2 * t - 2], "%s: order of points", what);
        }
    }
    cr_assert(num_terms == expected_terms, "%s", what);
    free(offsets), free(pairs), free(counts), free(chosen), free(points_of), free(best);
    held_set_free(&held);
}

BackendTest(voxels, hold_their_points)
{
    test_device d;
    test_rng rng = test_rng_make(701);
    char text[256];
    static const int64_t counts[] = {0, 1, 700};
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int32_t dims = 1; dims <= SPOPS_MAX_DIMS; ++dims)
        for (int c = 0; c < 3; ++c)
            for (int order = 0; order < 4; ++order)
                for (int choice = 0; choice < 3; ++choice) {
                    const char *what =
                        test_describe(text, "%lld points, %d axes, order %d, points %d",
                                      (long long)counts[c], dims, order, choice);
                    point_cloud cloud = points_make(dims, counts[c], &rng);
                    spops_voxels_options o = voxel_options(0.1, dims);
                    spops_coords_options coords = spops_coords_options_default();
                    spops_voxels *voxels = untouched;
                    float *given = test_upload_f32(&d, cloud.points, cloud.n * cloud.stride);
                    int32_t *batch = test_upload_i32(&d, cloud.batch, cloud.n);
                    const bool use_batch = (order + choice) % 2 == 0;
                    coords.order = (spops_coords_order)order;
                    coords.search = (spops_coords_search)(1 + (order + choice) % 3);
                    o.coords = &coords;
                    o.points = (spops_voxel_points)choice;
                    test_expect_ok(d.ctx,
                                   spops_voxels_create(d.ctx, matrix_of(given, &cloud),
                                                       use_batch ? batch : NULL, &o, &voxels),
                                   what);
                    test_free(&d, given), test_free(&d, batch);
                    int32_t *rows = voxel_rows(&cloud, o.size_m, o.origin_m, use_batch);
                    ref_set expected = ref_unique(dims, cloud.n, rows, NULL);
                    check_voxels(&d, voxels, &cloud, &o, &expected, rows, what);
                    spops_voxels_destroy(voxels);
                    ref_set_free(&expected);
                    points_free(&cloud);
                    free(rows);
                    checked_alloc_check(&d.memory, what);
                }
    test_close(&d);
}

// Mean features of voxels, forward and backward, by the plan.
BackendTest(voxels, mean_features)
{
    enum { N = 600, COLS = 5 };
    test_device d;
    test_rng rng = test_rng_make(702);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    point_cloud cloud = points_make(3, N, &rng);
    spops_voxels_options o = voxel_options(0.2, 3);
    spops_voxels *voxels = NULL;
    float *given = test_upload_f32(&d, cloud.points, cloud.n * cloud.stride);
    o.gradients = SPOPS_GRADIENTS_LINEAR;
    o.max_cols = COLS;
    test_expect_ok(d.ctx, spops_voxels_create(d.ctx, matrix_of(given, &cloud), NULL, &o, &voxels),
                   "voxels");
    held_set held = held_set_of(&d, spops_voxels_coords(voxels), "voxels");
    const int64_t m = held.info.num_rows;
    guarded x = guarded_create(d.backend, "x", N, COLS, 1, 0, SPOPS_DTYPE_F32);
    guarded out = guarded_create(d.backend, "out", m, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded grad_x = guarded_create(d.backend, "grad_x", N, COLS, 0, 0, SPOPS_DTYPE_F32);
    for (int64_t i = 0; i < N; ++i)
        for (int64_t c = 0; c < COLS; ++c)
            guarded_set(&x, i, c, (double)(test_rng_below(&rng, 64) - 32));
    guarded_poison(&out, 0xff), guarded_poison(&grad_x, 0xff);
    guarded_upload(&x), guarded_upload(&out), guarded_upload(&grad_x);
    test_expect_ok(d.ctx,
                   spops_segreduce_execute(d.ctx, spops_voxels_segments(voxels), SPOPS_REDUCE_MEAN,
                                           x.view, NULL, out.view, NULL),
                   "mean");
    test_expect_ok(d.ctx,
                   spops_segreduce_execute_backward(d.ctx, spops_voxels_segments(voxels),
                                                    SPOPS_REDUCE_MEAN, out.view, x.view, NULL,
                                                    &grad_x.view, NULL),
                   "backward");
    test_wait(&d);
    guarded_download(&out), guarded_download(&grad_x);
    for (int64_t c = 0; c < COLS; ++c) {
        double *sum = (double *)calloc((size_t)m, sizeof *sum);
        double *count = (double *)calloc((size_t)m, sizeof *count);
        for (int64_t i = 0; i < N; ++i)
            sum[held.item_row[i]] += guarded_get(&x, i, c), count[held.item_row[i]] += 1.0;
        for (int64_t v = 0; v < m; ++v)
            cr_assert(fabs(guarded_get(&out, v, c) - sum[v] / count[v]) <=
                          0x1p-23 * fabs(sum[v] / count[v]),
                      "voxel %lld", (long long)v);
        for (int64_t i = 0; i < N; ++i) {
            const int32_t v = held.item_row[i];
            const double expected = guarded_get(&out, v, c) / count[v];
            cr_assert(fabs(guarded_get(&grad_x, i, c) - expected) <= 0x1p-22 * fabs(expected),
                      "point %lld", (long long)i);
        }
        free(sum), free(count);
    }
    guarded_destroy(&x), guarded_destroy(&out), guarded_destroy(&grad_x);
    held_set_free(&held);
    spops_voxels_destroy(voxels);
    test_free(&d, given);
    points_free(&cloud);
    test_close(&d);
}

// ---- what is refused ----

BackendTest(voxels, refuse)
{
    enum { N = 5 };
    static const spops_coords_box box = {{0, -9, -9, -9, 0}, {3, 9, 9, 9, 0}};
    static const struct {
        const char *fragment;
        int at; // element of points that is changed, or -1
        float value;
        int batch_at, batch;
        double size, origin;
        bool box;
        int cols, points, gradients, max_cols;
    } cases[] = {
        {"points[1][2] is nan", 5, NAN, -1, 0, 1, 0, 0, 3, 0, 0, 0},
        {"points[0][0] is inf", 0, INFINITY, -1, 0, 1, 0, 0, 3, 0, 0, 0},
        {"points[4][1] is -inf", 13, -INFINITY, -1, 0, 1, 0, 1, 3, 0, 0, 0},
        {"points[2][0] is 3e+09, in voxel 3000000000", 6, 3e9f, -1, 0, 1, 0, 0, 3, 0, 0, 0},
        {"points[2][1] is 50, in voxel 50, expected -9 to 9", 7, 50.0f, -1, 0, 1, 0, 1, 3, 0, 0, 0},
        {"batch[3] is -2", -1, 0, 3, -2, 1, 0, 0, 3, 0, 0, 0},
        {"batch[3] is 4, expected 0 to 3", -1, 0, 3, 4, 1, 0, 1, 3, 0, 0, 0},
        {"size_m[0] is 0, expected more than 0 on each of 3 axes", -1, 0, -1, 0, 0, 0, 0, 3, 0, 0,
         0},
        {"size_m[0] is -0.1", -1, 0, -1, 0, -0.1, 0, 0, 3, 0, 0, 0},
        {"size_m[0] is nan", -1, 0, -1, 0, NAN, 0, 0, 3, 0, 0, 0},
        {"size_m[0] is inf", -1, 0, -1, 0, INFINITY, 0, 0, 3, 0, 0, 0},
        {"origin_m[0] is nan", -1, 0, -1, 0, 1, NAN, 0, 3, 0, 0, 0},
        {"dims is 0", -1, 0, -1, 0, 1, 0, 0, 0, 0, 0, 0},
        {"dims is 5", -1, 0, -1, 0, 1, 0, 0, 5, 0, 0, 0},
        {"points is 4", -1, 0, -1, 0, 1, 0, 0, 3, 4, 0, 0},
        {"gradients is 3", -1, 0, -1, 0, 1, 0, 0, 3, 0, 3, 0},
        {"max_cols is -1", -1, 0, -1, 0, 1, 0, 0, 3, 0, 0, -1},
    };
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const int64_t live = d.memory.live;
    spops_coords_options boxed = spops_coords_options_default();
    boxed.box = &box;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        float points[N * 5] = {0};
        int32_t batch[N] = {0, 1, 2, 3, 0};
        spops_voxels_options o = spops_voxels_options_default();
        spops_voxels *voxels = untouched;
        for (int e = 0; e < N * 5; ++e)
            points[e] = (float)(e % 7) - 3.0f;
        if (cases[i].at >= 0) points[cases[i].at] = cases[i].value;
        if (cases[i].batch_at >= 0) batch[cases[i].batch_at] = cases[i].batch;
        for (int a = 0; a < 4; ++a)
            o.size_m[a] = cases[i].size, o.origin_m[a] = cases[i].origin;
        if (cases[i].box) o.coords = &boxed;
        o.points = (spops_voxel_points)cases[i].points;
        o.gradients = (spops_gradients)cases[i].gradients;
        o.max_cols = cases[i].max_cols;
        float *given = test_upload_f32(&d, points, N * 5);
        int32_t *given_batch = test_upload_i32(&d, batch, N);
        const spops_matrix m = spops_matrix_dense(given, N, cases[i].cols, SPOPS_DTYPE_F32);
        const spops_status status = spops_voxels_create(d.ctx, m, given_batch, &o, &voxels);
        test_expect(d.ctx, status, SPOPS_STATUS_INVALID_ARGUMENT,
                    "voxels_create: ", cases[i].fragment);
        test_expect(d.ctx, status, SPOPS_STATUS_INVALID_ARGUMENT, cases[i].fragment,
                    cases[i].fragment);
        cr_assert(voxels == NULL && d.memory.live == live, "%s", cases[i].fragment);
        test_free(&d, given), test_free(&d, given_batch);
    }
    // Matrices that are not of points.
    spops_voxels *voxels = untouched;
    spops_voxels_options o = voxel_options(1.0, 3);
    spops_matrix m = spops_matrix_dense(NULL, 4, 3, SPOPS_DTYPE_F32);
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    test_expect(d.ctx, spops_voxels_create(d.ctx, m, NULL, &o, &voxels), invalid, "points",
                "no data");
    m.rows = -1;
    test_expect(d.ctx, spops_voxels_create(d.ctx, m, NULL, &o, &voxels), invalid, "points.rows",
                "rows");
    m.rows = 0, m.dtype = SPOPS_DTYPE_BF16;
    test_expect(d.ctx, spops_voxels_create(d.ctx, m, NULL, &o, &voxels), invalid, "points",
                "dtype");
    m.dtype = SPOPS_DTYPE_F32;
    test_expect(d.ctx, spops_voxels_create(d.ctx, m, NULL, NULL, &voxels), invalid, "size_m",
                "no options");
    test_expect(d.ctx, spops_voxels_reserve(d.ctx, 3, 5, 5, &o, &voxels), invalid, "box is NULL",
                "no box");
    o.coords = &boxed;
    test_expect(d.ctx, spops_voxels_reserve(d.ctx, 3, -5, 5, &o, &voxels), invalid, "max_points",
                "max_points");
    test_expect(d.ctx, spops_voxels_reserve(d.ctx, 3, 5, INT64_MAX, &o, &voxels), invalid,
                "max_voxels", "max_voxels");
    cr_assert(voxels == NULL && d.memory.live == live);
    test_expect_ok(d.ctx, spops_voxels_create(d.ctx, m, NULL, &o, &voxels), "no points");
    int32_t *num = test_upload_i32(&d, (int32_t[]){0}, 1);
    test_expect(d.ctx, spops_voxels_update(d.ctx, voxels, num, m, NULL), invalid,
                "not made by voxels_reserve", "set");
    spops_voxels_destroy(voxels);
    test_expect_ok(d.ctx, spops_voxels_reserve(d.ctx, 3, 5, 5, &o, &voxels), "reserve");
    test_expect(d.ctx, spops_voxels_update(d.ctx, voxels, num, m, NULL), invalid,
                "points.rows is 0, expected max_points = 5", "rows of set");
    test_expect(d.ctx, spops_voxels_update(d.ctx, NULL, num, m, NULL), invalid, "voxels is NULL",
                "");
    test_expect(d.ctx, spops_voxels_update_coords(d.ctx, voxels, num, m, NULL), invalid,
                "voxels_update_coords: points.rows is 0, expected max_points = 5", "coordinates");
    m.rows = 5;
    m.data = test_upload_i32(&d, (int32_t[15]){0}, 15);
    test_expect(d.ctx, spops_voxels_update_segments(d.ctx, voxels, NULL, m, NULL), invalid,
                "voxels_update_segments: num_points", "number of points");
    test_expect(d.ctx, spops_voxels_update_segments(d.ctx, voxels, num, m, NULL), invalid,
                "voxels_update_segments: voxels have no coordinates", "no coordinates");
    test_free(&d, m.data);
    test_free(&d, num);
    spops_voxels_destroy(voxels);
    spops_voxels_destroy(NULL);
    cr_assert(spops_voxels_coords(NULL) == NULL && spops_voxels_segments(NULL) == NULL);
    test_close(&d);
}

// ---- refilling on the stream ----

enum { MAX_POINTS = 800, MAX_VOXELS = 300 };

// In one call; or in two, the second by another context.
static spops_status refill(test_device *d, spops_context *beside, spops_voxels *voxels, void *num,
                           spops_matrix points, void *batch)
{
    if (beside == NULL)
        return spops_voxels_update(d->ctx, voxels, (int32_t *)num, points, (int32_t *)batch);
    const spops_status status =
        spops_voxels_update_coords(d->ctx, voxels, (int32_t *)num, points, (int32_t *)batch);
    if (status != SPOPS_STATUS_OK) return status;
    return spops_voxels_update_segments(beside, voxels, (int32_t *)num, points, (int32_t *)batch);
}

static void check_refills(test_device *d, spops_context *beside, spops_voxel_points choice,
                          test_rng *rng)
{
    static const spops_coords_box box = {{0, -3, -3, -3, 0}, {1, 3, 3, 3, 0}};
    static const int32_t counts[] = {500, 0, MAX_POINTS, 7, MAX_POINTS + 3};
    char text[256];
    spops_voxels_options o = voxel_options(0.1, 3);
    spops_voxels *voxels = NULL;
    device_graph *graph = NULL;
    void *num = NULL, *points = NULL, *batch = NULL;
    spops_coords_options boxed = spops_coords_options_default();
    boxed.box = &box;
    o.coords = &boxed;
    o.points = choice;
    test_expect_ok(d->ctx, spops_voxels_reserve(d->ctx, 3, MAX_POINTS, MAX_VOXELS, &o, &voxels),
                   "reserve");
    const size_t scratch = spops_segments_scratch_bytes(spops_voxels_segments(voxels));
    if (beside != NULL) test_expect_ok(beside, spops_context_reserve(beside, scratch), "scratch");
    cr_assert(device_alloc(d->backend, 4, &num) &&
                  device_alloc(d->backend, MAX_POINTS * 16, &points) &&
                  device_alloc(d->backend, MAX_POINTS * 4, &batch),
              "%s", device_error());
    point_cloud shape = {3, MAX_POINTS, 4, NULL, NULL};
    const spops_matrix m = matrix_of((float *)points, &shape);
    if (d->launch == LAUNCH_CAPTURED) {
        cr_assert(device_capture_begin(d->stream), "%s", device_error());
        const spops_status status = refill(d, beside, voxels, num, m, batch);
        cr_assert(device_capture_end(d->stream, &graph), "%s", device_error());
        test_expect_ok(d->ctx, status, "captured");
    }
    for (int version = 0; version < 5; ++version) {
        const char *what = test_describe(text, "refill %d, points %d", version, (int)choice);
        point_cloud cloud = points_make(3, MAX_POINTS, rng);
        const int32_t given = counts[version];
        if (version == 0) { // what cannot be a point
            cloud.points[0] = NAN, cloud.points[9] = INFINITY, cloud.points[14] = -3e38f;
            cloud.batch[7] = -1, cloud.batch[8] = INT32_MIN;
        }
        cr_assert(device_upload(d->backend, num, &given, 4) &&
                      device_upload(d->backend, points, cloud.points, MAX_POINTS * 16) &&
                      device_upload(d->backend, batch, cloud.batch, MAX_POINTS * 4),
                  "%s", device_error());
        if (graph != NULL)
            cr_assert(device_graph_launch(graph, d->stream), "%s", device_error());
        else
            test_expect_ok(d->ctx, refill(d, beside, voxels, num, m, batch), what);
        test_wait(d);
        if (version == 0) { // outside every box, for the reference
            cloud.batch[0] = cloud.batch[2] = cloud.batch[3] = -1;
            cloud.points[0] = cloud.points[9] = cloud.points[14] = 0.0f;
        }
        int32_t *rows = voxel_rows(&cloud, o.size_m, o.origin_m, true);
        const int64_t n = given < MAX_POINTS ? given : MAX_POINTS;
        ref_set full = ref_unique(3, n, rows, &box);
        const int64_t kept = full.n < MAX_VOXELS ? full.n : MAX_VOXELS;
        spops_coords_info info;
        info.struct_size = sizeof info;
        (void)spops_coords_get_info_sync(d->ctx, spops_voxels_coords(voxels), &info);
        cr_assert(info.overflow == (full.n > MAX_VOXELS || given > MAX_POINTS), "%s", what);
        cr_assert(info.num_dropped == full.num_dropped, "%s: %lld dropped, expected %lld", what,
                  (long long)info.num_dropped, (long long)full.num_dropped);
        // The first voxels, with their points.
        ref_set cut = ref_unique(3, kept, full.rows, NULL);
        memcpy(cut.row_item, full.row_item, (size_t)kept * sizeof(int32_t));
        free(cut.item_row);
        cut.item_row = full.item_row;
        cut.num_items = full.num_items;
        for (int64_t i = 0; i < full.num_items; ++i)
            if (cut.item_row[i] >= kept) cut.item_row[i] = -1;
        full.item_row = NULL;
        cut.num_merged = full.num_merged;
        check_voxels(d, voxels, &cloud, &o, &cut, rows, what);
        ref_set_free(&full), ref_set_free(&cut);
        points_free(&cloud);
        free(rows);
        checked_alloc_check(&d->memory, what);
    }
    device_graph_destroy(graph);
    spops_voxels_destroy(voxels);
    test_free(d, num), test_free(d, points), test_free(d, batch);
}

LaunchTest(voxels, set)
{
    test_device d;
    test_rng rng = test_rng_make(703);
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int choice = 0; choice < 3; ++choice)
        check_refills(&d, NULL, (spops_voxel_points)choice, &rng);
    test_close(&d);
}

// The same by two calls on two contexts.
LaunchTest(voxels, set_apart)
{
    test_device d;
    test_rng rng = test_rng_make(704);
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    spops_context *beside = test_context(&d, 1);
    for (int choice = 0; choice < 3; ++choice)
        check_refills(&d, beside, (spops_voxel_points)choice, &rng);
    spops_context_destroy(beside);
    test_close(&d);
}

// ---- voxels to points ----

// Weight of each corner of a point by the definition, and the voxel there (-1: none).
static void ref_corners(const point_cloud *p, int64_t i, int32_t batch, const ref_set *voxels,
                        const spops_devoxels_options *o, int32_t *rows, double *weights)
{
    const bool linear = o->interpolation == SPOPS_DEVOXELS_INTERPOLATION_LINEAR;
    const int32_t corners = linear ? 1 << p->dims : 1;
    double sum = 0.0;
    for (int32_t c = 0; c < corners; ++c) {
        int32_t row[1 + SPOPS_MAX_DIMS] = {batch};
        double weight = 1.0;
        for (int32_t a = 0; a < p->dims; ++a) {
            const double u = ((double)p->points[i * p->stride + a] - o->origin_m[a]) / o->size_m[a];
            const double below = floor(linear ? u - 0.5 : u);
            const bool next = linear && (c >> (p->dims - 1 - a) & 1);
            row[a + 1] = (int32_t)below + next;
            if (linear) weight *= next ? u - 0.5 - below : 1.0 - (u - 0.5 - below);
        }
        rows[c] = weight > 0.0 ? ref_find(voxels, row) : -1;
        weights[c] = rows[c] >= 0 ? weight : 0.0;
        sum += weights[c];
    }
    for (int32_t c = 0; c < corners; ++c)
        if (o->missing == SPOPS_DEVOXELS_MISSING_RESCALE && sum > 0.0) weights[c] /= sum;
}

static void check_devoxels(test_device *d, const spops_devoxels *devoxels, const point_cloud *p,
                           int64_t used, const int32_t *batch, const ref_set *voxels,
                           const spops_devoxels_options *o, const char *what)
{
    const spops_matrix w = spops_devoxels_weights(devoxels);
    const int32_t corners =
        o->interpolation == SPOPS_DEVOXELS_INTERPOLATION_LINEAR ? 1 << p->dims : 1;
    int32_t *offsets = NULL, *pairs = NULL, rows[16];
    double weights[16];
    int64_t num_terms = 0;
    cr_assert(w.rows == p->n * corners && w.cols == 1 && w.dtype == SPOPS_DTYPE_F32, "%s", what);
    float *held = (float *)calloc((size_t)w.rows + 1, sizeof *held);
    if (w.rows > 0)
        cr_assert(device_download(d->backend, held, w.data, (size_t)w.rows * sizeof *held), "%s",
                  device_error());
    fetch_segments(d, spops_devoxels_segments(devoxels), p->n, &offsets, &pairs, &num_terms, what);
    for (int64_t i = 0; i < p->n; ++i) {
        int32_t t = offsets[i];
        for (int32_t c = 0; c < corners; ++c)
            rows[c] = -1, weights[c] = 0.0;
        if (i < used) ref_corners(p, i, batch != NULL ? batch[i] : 0, voxels, o, rows, weights);
        for (int32_t c = 0; c < corners; ++c) {
            cr_assert(fabs((double)held[i * corners + c] - weights[c]) <= 0x1p-23 * weights[c],
                      "%s: weight of corner %d of point %lld is %g, expected %g", what, c,
                      (long long)i, (double)held[i * corners + c], weights[c]);
            if (rows[c] < 0) continue;
            cr_assert(t < offsets[i + 1] && pairs[2 * t] == rows[c] &&
                          pairs[2 * t + 1] == i * corners + c,
                      "%s: corner %d of point %lld", what, c, (long long)i);
            ++t;
        }
        cr_assert(t == offsets[i + 1], "%s: point %lld has more terms", what, (long long)i);
    }
    free(held), free(offsets), free(pairs);
}

LaunchTest(voxels, back_to_points)
{
    test_device d;
    test_rng rng = test_rng_make(704);
    char text[256];
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int32_t dims = 1; dims <= SPOPS_MAX_DIMS; ++dims)
        for (int mode = 0; mode < 8; ++mode) {
            point_cloud from = points_make(dims, 300, &rng), to = points_make(dims, 250, &rng);
            spops_voxels_options vo = voxel_options(0.1, dims);
            spops_coords_options co = spops_coords_options_default();
            spops_devoxels_options o = spops_devoxels_options_default();
            memcpy(o.size_m, vo.size_m, sizeof o.size_m);
            memcpy(o.origin_m, vo.origin_m, sizeof o.origin_m);
            o.interpolation = (spops_devoxels_interpolation)(mode & 1);
            o.missing = (spops_devoxels_missing)(mode >> 1 & 1);
            o.gradients = SPOPS_GRADIENTS_LINEAR;
            co.search = (spops_coords_search)(1 + mode % 3);
            co.order = (spops_coords_order)(mode % 4);
            vo.coords = &co;
            const bool refill = mode >= 4;
            const char *what = test_describe(text, "devoxelize, %d axes, mode %d", dims, mode);
            to.points[0] = 4e4f; // far from all voxels
            float *given_from = test_upload_f32(&d, from.points, from.n * from.stride);
            float *given_to = test_upload_f32(&d, to.points, to.n * to.stride);
            int32_t *batch = test_upload_i32(&d, to.batch, to.n);
            int32_t *num = test_upload_i32(&d, (int32_t[]){200}, 1);
            spops_voxels *voxels = NULL;
            spops_devoxels *devoxels = NULL;
            test_expect_ok(
                d.ctx, spops_voxels_create(d.ctx, matrix_of(given_from, &from), NULL, &vo, &voxels),
                what);
            const spops_coords *coords = spops_voxels_coords(voxels);
            if (!refill) {
                test_expect_ok(d.ctx,
                               spops_devoxels_create(d.ctx, coords, matrix_of(given_to, &to), batch,
                                                     &o, &devoxels),
                               what);
            } else {
                device_graph *graph = NULL;
                test_expect_ok(d.ctx, spops_devoxels_reserve(d.ctx, coords, to.n, &o, &devoxels),
                               what);
                if (d.launch == LAUNCH_CAPTURED)
                    cr_assert(device_capture_begin(d.stream), "%s", device_error());
                const spops_status status = spops_devoxels_update(d.ctx, devoxels, coords, num,
                                                                  matrix_of(given_to, &to), batch);
                if (d.launch == LAUNCH_CAPTURED)
                    cr_assert(device_capture_end(d.stream, &graph) &&
                                  device_graph_launch(graph, d.stream),
                              "%s", device_error());
                test_expect_ok(d.ctx, status, what);
                test_wait(&d);
                device_graph_destroy(graph);
            }
            held_set held = held_set_of(&d, coords, what);
            ref_set set = ref_set_in_order(&held);
            check_devoxels(&d, devoxels, &to, refill ? 200 : to.n, to.batch, &set, &o, what);
            ref_set_free(&set);
            held_set_free(&held);
            spops_devoxels_destroy(devoxels);
            spops_voxels_destroy(voxels);
            test_free(&d, given_from), test_free(&d, given_to), test_free(&d, batch),
                test_free(&d, num);
            points_free(&from), points_free(&to);
            checked_alloc_check(&d.memory, what);
        }
    test_close(&d);
}

// A linear function of the position is met exactly inside a dense grid, and the gradient of its sum
// hands out what the weights do.
BackendTest(voxels, interpolate_linear_functions)
{
    enum { SIDE = 6, N = 64 };
    test_device d;
    test_rng rng = test_rng_make(705);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    int32_t rows[SIDE * SIDE * SIDE][4];
    float points[N][3];
    for (int i = 0; i < SIDE * SIDE * SIDE; ++i) {
        const int32_t row[4] = {0, i / SIDE / SIDE, i / SIDE % SIDE, i % SIDE};
        memcpy(rows[i], row, sizeof row);
    }
    for (int i = 0; i < N; ++i)
        for (int a = 0; a < 3; ++a)
            points[i][a] = (float)(0.5 + (SIDE - 1.01) * test_rng_unit(&rng));
    spops_devoxels_options o = spops_devoxels_options_default();
    o.size_m[0] = o.size_m[1] = o.size_m[2] = 1.0;
    o.interpolation = SPOPS_DEVOXELS_INTERPOLATION_LINEAR;
    o.gradients = SPOPS_GRADIENTS_LINEAR;
    o.max_cols = 1;
    int32_t *given_rows = test_upload_i32(&d, &rows[0][0], SIDE * SIDE * SIDE * 4);
    float *given = test_upload_f32(&d, &points[0][0], N * 3);
    spops_coords *coords = NULL;
    spops_devoxels *devoxels = NULL;
    test_expect_ok(d.ctx,
                   spops_coords_create(d.ctx, 3, SIDE * SIDE * SIDE, given_rows, NULL, &coords),
                   "grid");
    test_expect_ok(d.ctx,
                   spops_devoxels_create(d.ctx, coords,
                                         spops_matrix_dense(given, N, 3, SPOPS_DTYPE_F32), NULL, &o,
                                         &devoxels),
                   "devoxels");
    const spops_matrix w = spops_devoxels_weights(devoxels);
    guarded x = guarded_create(d.backend, "x", SIDE * SIDE * SIDE, 1, 0, 0, SPOPS_DTYPE_F32);
    guarded out = guarded_create(d.backend, "out", N, 1, 0, 0, SPOPS_DTYPE_F32);
    guarded ones = guarded_create(d.backend, "ones", N, 1, 0, 0, SPOPS_DTYPE_F32);
    guarded grad = guarded_create(d.backend, "grad", SIDE * SIDE * SIDE, 1, 0, 0, SPOPS_DTYPE_F32);
    for (int i = 0; i < SIDE * SIDE * SIDE; ++i)
        guarded_set(&x, i, 0, 1.0 + 2.0 * rows[i][1] - 3.0 * rows[i][2] + 0.5 * rows[i][3]);
    for (int i = 0; i < N; ++i)
        guarded_set(&ones, i, 0, 1.0);
    guarded_poison(&out, 0xff), guarded_poison(&grad, 0xff);
    guarded_upload(&x), guarded_upload(&out), guarded_upload(&ones), guarded_upload(&grad);
    test_expect_ok(d.ctx,
                   spops_segreduce_execute(d.ctx, spops_devoxels_segments(devoxels),
                                           SPOPS_REDUCE_SUM, x.view, &w, out.view, NULL),
                   "forward");
    test_expect_ok(d.ctx,
                   spops_segreduce_execute_backward(d.ctx, spops_devoxels_segments(devoxels),
                                                    SPOPS_REDUCE_SUM, ones.view, x.view, &w,
                                                    &grad.view, NULL),
                   "backward");
    test_wait(&d);
    guarded_download(&out), guarded_download(&grad);
    double total = 0.0;
    for (int i = 0; i < N; ++i) {
        const double expected = 1.0 + 2.0 * ((double)points[i][0] - 0.5) -
                                3.0 * ((double)points[i][1] - 0.5) +
                                0.5 * ((double)points[i][2] - 0.5);
        // Values reach 30, and 8 products and sums are rounded.
        cr_assert(fabs(guarded_get(&out, i, 0) - expected) <= 16 * 0x1p-24 * 30.0,
                  "point %d: %g, %g", i, guarded_get(&out, i, 0), expected);
    }
    for (int i = 0; i < SIDE * SIDE * SIDE; ++i)
        total += guarded_get(&grad, i, 0);
    cr_assert(fabs(total - N) <= 1e-4, "gradients add up to %g", total);
    guarded_destroy(&x), guarded_destroy(&out), guarded_destroy(&ones), guarded_destroy(&grad);
    spops_devoxels_destroy(devoxels);
    spops_coords_destroy(coords);
    test_free(&d, given), test_free(&d, given_rows);
    test_close(&d);
}

BackendTest(voxels, back_to_points_refuses)
{
    test_device d;
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    float values[6] = {0, 1, 2, 3, 4, 5};
    int32_t row[3] = {0, 1, 2};
    spops_coords *coords = NULL;
    spops_devoxels *devoxels = (spops_devoxels *)16;
    int32_t *rows = test_upload_i32(&d, row, 3);
    float *points = test_upload_f32(&d, values, 6);
    values[3] = NAN;
    float *bad = test_upload_f32(&d, values, 6);
    test_expect_ok(d.ctx, spops_coords_create(d.ctx, 2, 1, rows, NULL, &coords), "set");
    const int64_t live = d.memory.live;
    spops_devoxels_options o = spops_devoxels_options_default(), good;
    o.size_m[0] = o.size_m[1] = 1.0;
    good = o;
    const spops_matrix two = spops_matrix_dense(points, 3, 2, SPOPS_DTYPE_F32);
    const spops_matrix nan = spops_matrix_dense(bad, 3, 2, SPOPS_DTYPE_F32);
    const spops_matrix one = spops_matrix_dense(points, 6, 1, SPOPS_DTYPE_F32);
#define CREATE(matrix) spops_devoxels_create(d.ctx, coords, matrix, NULL, &o, &devoxels)
    test_expect(d.ctx, CREATE(nan), invalid, "points[1][1] is nan", "nan");
    test_expect(d.ctx, CREATE(one), invalid, "points.cols is 1, expected at least 2", "axes");
    o.size_m[1] = -1.0;
    test_expect(d.ctx, CREATE(two), invalid, "size_m[1] is -1", "size");
    o = good, o.interpolation = (spops_devoxels_interpolation)2;
    test_expect(d.ctx, CREATE(two), invalid, "interpolation is 2", "interpolation");
    o = good, o.missing = (spops_devoxels_missing)-1;
    test_expect(d.ctx, CREATE(two), invalid, "missing is -1", "missing");
    o = good, o.reserved = 1;
    test_expect(d.ctx, CREATE(two), invalid, "reserved is 1", "reserved");
    o = good;
    test_expect(d.ctx, spops_devoxels_create(d.ctx, NULL, two, NULL, &o, &devoxels), invalid,
                "coords is NULL", "no set");
    cr_assert(devoxels == NULL && d.memory.live == live);
    test_expect_ok(d.ctx, CREATE(two), "devoxels");
    test_expect(d.ctx, spops_devoxels_update(d.ctx, devoxels, coords, rows, two, NULL), invalid,
                "not made by devoxels_reserve", "set");
    spops_devoxels_destroy(devoxels);
    test_expect_ok(d.ctx, spops_devoxels_reserve(d.ctx, coords, 3, &o, &devoxels), "reserve");
    test_expect(d.ctx, spops_devoxels_update(d.ctx, devoxels, coords, rows, one, NULL), invalid,
                "points.rows is 6, expected max_points = 3", "shape");
    spops_devoxels_destroy(devoxels);
    spops_devoxels_destroy(NULL);
    cr_assert(spops_devoxels_segments(NULL) == NULL && spops_devoxels_weights(NULL).rows == 0);
#undef CREATE
    spops_coords_destroy(coords);
    test_free(&d, rows), test_free(&d, points), test_free(&d, bad);
    test_close(&d);
}

// ---- points as users have them ----

// A scan of rows (x, y, z, intensity, ring), some of them far off or not finite, in f32 and f16.
typedef struct user_scan {
    float *wide;
    uint16_t *half;
    void *given[2]; // where the context runs
    int32_t *batch, *given_batch;
} user_scan;
enum { USER_POINTS = 700, USER_COLS = 5 };

static user_scan user_scan_make(test_device *d)
{
    test_rng rng = test_rng_make(977);
    user_scan s;
    const int64_t n = USER_POINTS * USER_COLS;
    s.wide = (float *)calloc((size_t)n, sizeof *s.wide);
    s.half = (uint16_t *)calloc((size_t)n, sizeof *s.half);
    s.batch = (int32_t *)calloc(USER_POINTS, sizeof *s.batch);
    for (int64_t i = 0; i < n; ++i) {
        s.half[i] = elements_f16_of_float((float)(12.0 * test_rng_unit(&rng) - 5.0));
        s.wide[i] = elements_float_of_f16(s.half[i]);
    }
    s.half[5 * USER_COLS] = 0x7e00, s.wide[5 * USER_COLS] = NAN;
    s.half[9 * USER_COLS + 2] = 0x7c00, s.wide[9 * USER_COLS + 2] = INFINITY;
    for (int32_t i = 0; i < USER_POINTS; ++i)
        s.batch[i] = (int32_t)test_rng_below(&rng, 3);
    s.given[0] = test_upload_f32(d, s.wide, n);
    s.given[1] = test_upload_u8(d, (const uint8_t *)s.half, n * 2);
    s.given_batch = test_upload_i32(d, s.batch, USER_POINTS);
    return s;
}

static void user_scan_free(test_device *d, user_scan *s)
{
    for (int i = 0; i < 2; ++i)
        test_free(d, s->given[i]);
    test_free(d, s->given_batch);
    free(s->wide), free(s->half), free(s->batch);
}

static spops_voxels_options user_options(void)
{
    static const double lower[3] = {0.0, -4.0, -3.0}, upper[3] = {7.0, 4.05, 5.0};
    static const double size[3] = {0.1, 0.05, 4.0};
    spops_voxels_options o = spops_voxels_options_default();
    o.dims = 3;
    o.crop = 1;
    for (int a = 0; a < 3; ++a) {
        o.lower_m[a] = o.origin_m[a] = lower[a];
        o.upper_m[a] = upper[a];
        o.size_m[a] = size[a];
    }
    return o;
}

// Each point is in the voxel that it should be in, or left out.
static void check_crop(test_device *d, const spops_voxels *voxels, const user_scan *s, bool batched,
                       const char *what)
{
    const spops_voxels_options o = user_options();
    spops_coords_info info = spops_coords_info_default();
    spops_coords_view view = spops_coords_view_default();
    int64_t dropped = 0, num_rows = 0;
    test_expect_ok(d->ctx, spops_coords_get_info_sync(d->ctx, spops_voxels_coords(voxels), &info),
                   what);
    test_expect_ok(d->ctx,
                   spops_coords_get_num_rows_sync(d->ctx, spops_voxels_coords(voxels), &num_rows),
                   what);
    cr_assert_eq(num_rows, info.num_rows);
    test_expect_ok(d->ctx, spops_coords_get_view(d->ctx, spops_voxels_coords(voxels), &view), what);
    cr_expect(info.box.lower[1] == 0 && info.box.upper[1] == 69 && info.box.lower[2] == 0 &&
                  info.box.upper[2] == 160 && info.box.upper[3] == 1 &&
                  info.box.upper[0] == (batched ? 2 : 0),
              "%s: box", what);
    int32_t *rows = (int32_t *)calloc((size_t)info.num_rows * 4 + 1, sizeof *rows);
    int32_t *item_row = (int32_t *)calloc(USER_POINTS, sizeof *item_row);
    test_download_i32(d, rows, view.rows, info.num_rows * 4);
    test_download_i32(d, item_row, view.item_row, USER_POINTS);
    for (int32_t i = 0; i < USER_POINTS; ++i) {
        bool inside = true;
        for (int a = 0; a < 3; ++a) {
            const double x = (double)s->wide[i * USER_COLS + a];
            inside = inside && x >= o.lower_m[a] && x < o.upper_m[a];
        }
        cr_assert_eq(item_row[i] >= 0, inside, "%s: point %d", what, i);
        dropped += !inside;
        for (int a = 0; a < 3 && inside; ++a)
            cr_assert_eq(
                rows[4 * item_row[i] + 1 + a],
                (int32_t)floor(((double)s->wide[i * USER_COLS + a] - o.origin_m[a]) / o.size_m[a]));
        if (inside) cr_assert_eq(rows[4 * item_row[i]], batched ? s->batch[i] : 0);
    }
    cr_assert(dropped > 100 && dropped < USER_POINTS - 100);
    cr_expect_eq(info.num_dropped, dropped, "%s", what);
    free(rows), free(item_row);
}

BackendTest(voxels, points_as_users_have_them)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    user_scan s = user_scan_make(&d);
    const int32_t count = USER_POINTS;
    int32_t *num_points = test_upload_i32(&d, &count, 1);
    for (int narrow = 0; narrow < 2; ++narrow)
        for (int batched = 0; batched < 2; ++batched) {
            spops_voxels_options o = user_options();
            const spops_matrix m = spops_matrix_dense(s.given[narrow], USER_POINTS, USER_COLS,
                                                      narrow ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_F32);
            const int32_t *batch = batched ? s.given_batch : NULL;
            spops_voxels *voxels = NULL;
            o.points = narrow ? SPOPS_VOXEL_POINTS_NEAREST : SPOPS_VOXEL_POINTS_ALL;
            test_expect_ok(d.ctx, spops_voxels_create(d.ctx, m, batch, &o, &voxels), "create");
            check_crop(&d, voxels, &s, batched, "create");
            spops_voxels_destroy(voxels);
            if (batched) continue;
            test_expect_ok(d.ctx,
                           spops_voxels_reserve(d.ctx, 3, USER_POINTS, USER_POINTS, &o, &voxels),
                           "reserve");
            test_expect_ok(d.ctx, spops_voxels_update(d.ctx, voxels, num_points, m, NULL), "set");
            check_crop(&d, voxels, &s, false, "set");
            // Back to the points, whose columns are the same.
            spops_devoxels_options back = spops_devoxels_options_default();
            spops_devoxels *devoxels = NULL;
            memcpy(back.size_m, o.size_m, sizeof back.size_m);
            memcpy(back.origin_m, o.origin_m, sizeof back.origin_m);
            const spops_status status = spops_devoxels_create(d.ctx, spops_voxels_coords(voxels), m,
                                                              NULL, &back, &devoxels);
            test_expect(d.ctx, status, SPOPS_STATUS_INVALID_ARGUMENT,
                        "points[5][0] is nan, expected a finite number", "back");
            spops_voxels_destroy(voxels);
        }
    test_free(&d, num_points);
    user_scan_free(&d, &s);
    test_close(&d);
}

BackendTest(voxels, bounds_of_points)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    user_scan s = user_scan_make(&d);
    const int64_t live = d.memory.live;
    for (int narrow = 0; narrow < 2; ++narrow) {
        const spops_matrix m = spops_matrix_dense(s.given[narrow], USER_POINTS, USER_COLS,
                                                  narrow ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_F32);
        float lower[USER_COLS], upper[USER_COLS];
        test_expect_ok(d.ctx, spops_points_get_bounds_sync(d.ctx, m, lower, upper), "bounds");
        for (int c = 0; c < USER_COLS; ++c) {
            float low = INFINITY, high = -INFINITY;
            for (int32_t i = 0; i < USER_POINTS; ++i) {
                low = fminf(low, s.wide[i * USER_COLS + c]);
                high = fmaxf(high, s.wide[i * USER_COLS + c]);
            }
            if (c == 0)
                cr_assert(isnan(lower[c]) && isnan(upper[c]), "a NaN is seen");
            else
                cr_assert(lower[c] == low && upper[c] == high, "column %d", c);
        }
        // Some columns only, and no points.
        const spops_matrix two = spops_matrix_columns(m, 3, 2);
        float low[2], high[2];
        test_expect_ok(d.ctx, spops_points_get_bounds_sync(d.ctx, two, low, high), "two columns");
        cr_assert(two.cols == 2 && memcmp(low, lower + 3, sizeof low) == 0 &&
                  memcmp(high, upper + 3, sizeof high) == 0);
        test_expect_ok(
            d.ctx,
            spops_points_get_bounds_sync(d.ctx, spops_matrix_dense(NULL, 0, 2, m.dtype), low, high),
            "none");
        cr_assert(isinf(low[1]) && low[1] > 0.0f && isinf(high[1]) && high[1] < 0.0f);
        test_expect(d.ctx, spops_points_get_bounds_sync(d.ctx, m, lower, lower + 1),
                    SPOPS_STATUS_INVALID_ARGUMENT, "upper overlaps lower", "overlap");
        test_expect(d.ctx, spops_points_get_bounds_sync(d.ctx, m, NULL, upper),
                    SPOPS_STATUS_INVALID_ARGUMENT, "lower is NULL", "no lower");
    }
    cr_assert_eq(d.memory.live, live);
    user_scan_free(&d, &s);
    test_close(&d);
}

Test(voxels, crops_that_make_no_sense)
{
    static const struct {
        const char *fragment;
        int32_t dims, crop;
        double lower, upper;
        bool box;
    } cases[] = {
        {"crop is 2, expected 0 or 1", 3, 2, 0, 1, false},
        {"the range of axis 0 is 1 to 1, expected lower_m less than upper_m", 3, 1, 1, 1, false},
        {"the range of axis 0 is nan to 1", 3, 1, NAN, 1, false},
        {"the range of axis 0 is voxels -4000000000 to 9, expected 32 bits", 3, 1, -4e8, 1, false},
        {"coords.box is given, expected NULL", 3, 1, 0, 1, true},
        {"dims is 9, expected 1 to 4", 9, 1, 0, 1, false},
    };
    static const float points[8] = {0};
    const spops_coords_box box = {{0, 0, 0, 0, 0}, {0, 9, 9, 9, 0}};
    spops_coords_options boxed = spops_coords_options_default();
    test_device d;
    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    boxed.box = &box;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        spops_voxels_options o = user_options();
        spops_voxels *voxels = untouched;
        o.dims = cases[i].dims;
        o.crop = cases[i].crop;
        o.lower_m[0] = cases[i].lower, o.upper_m[0] = cases[i].upper, o.origin_m[0] = 0.0;
        if (cases[i].box) o.coords = &boxed;
        const spops_matrix m = spops_matrix_dense_const(points, 2, 4, SPOPS_DTYPE_F32);
        test_expect(d.ctx, spops_voxels_create(d.ctx, m, NULL, &o, &voxels),
                    SPOPS_STATUS_INVALID_ARGUMENT, cases[i].fragment, cases[i].fragment);
        cr_assert_null(voxels);
    }
    // Fewer columns than axes; a batch below 0 beside a crop.
    spops_voxels_options o = user_options();
    spops_voxels *voxels = untouched;
    const spops_matrix narrow = spops_matrix_dense_const(points, 4, 2, SPOPS_DTYPE_F32);
    test_expect(d.ctx, spops_voxels_create(d.ctx, narrow, NULL, &o, &voxels),
                SPOPS_STATUS_INVALID_ARGUMENT, "points.cols is 2, expected at least 3", "columns");
    const int32_t batch[2] = {0, -3};
    const spops_matrix m = spops_matrix_dense_const(points, 2, 4, SPOPS_DTYPE_F32);
    test_expect(d.ctx, spops_voxels_create(d.ctx, m, batch, &o, &voxels),
                SPOPS_STATUS_INVALID_ARGUMENT, "batch[1] is -3, expected at least 0", "batch");
    test_expect(d.ctx, spops_voxels_reserve(d.ctx, 2, 4, 4, &o, &voxels),
                SPOPS_STATUS_INVALID_ARGUMENT, "options.dims is 3, expected 0 or 2", "reserve");
    test_close(&d);
}
