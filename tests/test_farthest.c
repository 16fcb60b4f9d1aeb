// SPDX-License-Identifier: Apache-2.0
// Farthest point sampling against brute force: every point of a sample is looked at for each point
// that is taken. Clouds with ties, duplicates, lines, points that are not finite, samples without
// points, and frames of two sizes in one captured graph.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "spops/points.h"
#include "tests/support/launch.h"
#include "tests/support/params.h"
#include "tests/support/random.h"

typedef enum cloud_kind {
    UNIFORM,
    SHELL,      // of a ball: a surface
    LATTICE,    // whole numbers: most distances are equal to others
    ONE_PLACE,  // all points are duplicates
    FEW_PLACES, // of eight
    LINE,       // equal steps, in an order that is not that of the rows
    CLUSTERS,   // tiny and far apart
    HUGE_D2,    // d2 is infinite for most pairs
    TINY_D2,    // d2 is subnormal or 0
    NUM_KINDS
} cloud_kind;

static const char *const kind_names[NUM_KINDS] = {
    "uniform", "shell", "lattice", "one place", "few places", "line", "clusters", "huge", "tiny"};

static void draw_point(cloud_kind kind, int64_t i, test_rng *rng, float *p)
{
    const int64_t place = test_rng_below(rng, 8);
    float length = 0.0f;
    for (int a = 0; a < 3; ++a) {
        const float u = (float)(2.0 * test_rng_unit(rng) - 1.0);
        switch (kind) {
        case LATTICE: p[a] = (float)test_rng_below(rng, 12); break;
        case ONE_PLACE: p[a] = 0.7f; break;
        case FEW_PLACES: p[a] = (float)(place >> a & 1) * 1.3f; break;
        case LINE: p[a] = (float)(i * 37 % 1009) * (a == 1 ? -2.0f : 0.5f); break;
        case CLUSTERS: p[a] = 1e-3f * u + 100.0f * (float)(place >> a & 1); break;
        case HUGE_D2: p[a] = 3e38f * u; break;
        case TINY_D2: p[a] = 1e-22f * u; break;
        default: p[a] = 40.0f * u; break;
        }
        length += p[a] * p[a];
    }
    for (int a = 0; a < 3 && kind == SHELL && length > 0.0f; ++a)
        p[a] *= 30.0f / sqrtf(length);
}

// A call in frames of two sizes; its capacity is max_points.
typedef struct farthest_case {
    cloud_kind kind;
    int64_t max_points, samples; // samples 0: no offsets, all rows are in use
    int32_t count;
    bool has_counts, has_bad_points;
    uint64_t stream;
    guarded points, offsets, counts, rows, distances2;
    int32_t *expected_rows;
    double *expected_d2;
} farthest_case;

static float f32(double x)
{
    return (float)x;
}

// Each operation in f64, rounded once: the sum, difference and product of two f32 in f64 round to
// f32 as if they were exact.
static float distance2_of(const float *p, const float *q)
{
    const double x = f32((double)p[0] - q[0]), y = f32((double)p[1] - q[1]),
                 z = f32((double)p[2] - q[2]);
    return f32((double)f32((double)f32(x * x) + f32(y * y)) + f32(z * z));
}

static void sample_brute(const float *points, int64_t begin, int64_t end, int32_t count,
                         int32_t limit, int32_t *rows, double *d2)
{
    float *nearest = malloc((size_t)(end - begin + 1) * sizeof *nearest);
    cr_assert(nearest != NULL);
    for (int64_t i = begin; i < end; ++i) {
        const float *p = points + 3 * i;
        nearest[i - begin] = isfinite(p[0]) && isfinite(p[1]) && isfinite(p[2]) ? INFINITY : -1.0f;
    }
    for (int32_t k = 0; k < count; ++k) {
        int64_t best = -1;
        rows[k] = -1;
        d2[k] = 0.0;
        for (int64_t i = begin; i < end && k < limit; ++i)
            if (nearest[i - begin] >= 0.0f &&
                (best < 0 || nearest[i - begin] > nearest[best - begin]))
                best = i;
        if (best < 0) continue;
        rows[k] = (int32_t)best;
        d2[k] = nearest[best - begin];
        nearest[best - begin] = -1.0f;
        for (int64_t i = begin; i < end; ++i) {
            const float d = distance2_of(points + 3 * i, points + 3 * best);
            if (d < nearest[i - begin]) nearest[i - begin] = d;
        }
    }
    free(nearest);
}

// Version 1 has other points, fewer of them where there are offsets, and other samples: the first
// is empty, and so is about every third.
static void prepare(void *user, int version)
{
    farthest_case *c = user;
    test_rng rng = test_rng_make(c->stream + (uint64_t)version);
    const int64_t samples = c->samples > 0 ? c->samples : 1;
    const int64_t n = c->samples > 0 && version == 1 ? c->max_points * 2 / 3 : c->max_points;
    float *points = malloc((size_t)c->max_points * 3 * sizeof *points + 1);
    int64_t begin = 0;

    cr_assert(points != NULL);
    for (int64_t i = 0; i < c->max_points; ++i) {
        draw_point(c->kind, i, &rng, points + 3 * i);
        if (c->has_bad_points && i % 7 == 0)
            points[3 * i + test_rng_below(&rng, 3)] = i % 2 == 0 ? NAN : -INFINITY;
        for (int a = 0; a < 3; ++a)
            guarded_set(&c->points, i, a, (double)points[3 * i + a]);
    }
    if (c->samples > 0) guarded_set(&c->offsets, 0, 0, 0.0);
    for (int64_t b = 0; b < samples; ++b) {
        const int64_t mean = n / samples;
        int64_t end = b == samples - 1 ? n : begin + test_rng_below(&rng, 2 * mean + 1);
        int32_t limit = c->count;
        if (end > n) end = n;
        if (b < samples - 1 && (version == 1 ? b % 3 == 0 : b % 4 == 1)) end = begin;
        if (c->samples > 0) guarded_set(&c->offsets, b + 1, 0, (double)end);
        if (c->has_counts) { // clamped: also less than 0, and more than count
            const int64_t given = test_rng_below(&rng, 2 * c->count + 4) - 2;
            guarded_set(&c->counts, b, 0, (double)given);
            limit = (int32_t)(given < 0 ? 0 : given < limit ? given : limit);
        }
        sample_brute(points, begin, end, c->count, limit, c->expected_rows + b * c->count,
                     c->expected_d2 + b * c->count);
        begin = end;
    }
    guarded_upload(&c->points);
    if (c->samples > 0) guarded_upload(&c->offsets);
    if (c->has_counts) guarded_upload(&c->counts);
    free(points);
}

static spops_status enqueue(void *user, spops_context *ctx)
{
    farthest_case *c = user;
    const spops_point_cloud cloud = {.points = c->points.view,
                                     .offsets = c->samples > 0 ? c->offsets.view.data : NULL,
                                     .num_samples = c->samples};
    return spops_farthest_execute(ctx, &cloud, c->count, c->has_counts ? c->counts.view.data : NULL,
                                  c->rows.view.data, c->distances2.view.data);
}

static void verify(void *user, int version, const char *what)
{
    const farthest_case *c = user;
    for (int64_t b = 0; b < c->rows.view.rows; ++b) {
        for (int64_t k = 0; k < c->count; ++k) {
            const int32_t row = (int32_t)guarded_get(&c->rows, b, k);
            const double d2 = guarded_get(&c->distances2, b, k);
            cr_assert(
                row == c->expected_rows[b * c->count + k] && d2 == c->expected_d2[b * c->count + k],
                "%s, version %d: place %d of sample %d has row %d at %.9g, expected %d at %.9g",
                what, version, (int)k, (int)b, row, d2, c->expected_rows[b * c->count + k],
                c->expected_d2[b * c->count + k]);
        }
    }
}

static void run_case(test_device *d, farthest_case *c)
{
    const int64_t samples = c->samples > 0 ? c->samples : 1;
    const size_t bytes = spops_farthest_scratch_bytes(d->ctx, c->max_points, samples);
    char text[256];
    test_call call = {.user = c,
                      .prepare = prepare,
                      .enqueue = enqueue,
                      .verify = verify,
                      .scratch_bytes = bytes};
    int inputs = 0;

    call.what = test_describe(text, "%s, %d points, %d samples, %d of each%s%s",
                              kind_names[c->kind], (int)c->max_points, (int)c->samples,
                              (int)c->count, c->has_counts ? ", counts" : "",
                              c->has_bad_points ? ", some not finite" : "");
    c->points =
        guarded_create(d->backend, "points", c->max_points, 3, c->stream % 2, 0, SPOPS_DTYPE_F32);
    c->offsets = guarded_create(d->backend, "offsets", samples + 1, 1, 0, 0, SPOPS_DTYPE_I32);
    c->counts = guarded_create(d->backend, "counts", samples, 1, 0, 0, SPOPS_DTYPE_I32);
    c->rows = guarded_create(d->backend, "rows", samples, c->count, 0, 1, SPOPS_DTYPE_I32);
    c->distances2 =
        guarded_create(d->backend, "distances2", samples, c->count, 0, 0, SPOPS_DTYPE_F32);
    c->expected_rows = malloc((size_t)(samples * c->count) * sizeof *c->expected_rows);
    c->expected_d2 = malloc((size_t)(samples * c->count) * sizeof *c->expected_d2);
    cr_assert(c->expected_rows != NULL && c->expected_d2 != NULL);
    call.inputs[inputs++] = &c->points;
    if (c->samples > 0) call.inputs[inputs++] = &c->offsets;
    if (c->has_counts) call.inputs[inputs++] = &c->counts;
    call.outputs[0] = &c->rows;
    call.outputs[1] = &c->distances2;
    test_expect_ok(d->ctx, spops_context_reserve(d->ctx, bytes), call.what);
    test_run(d, &call);
    free(c->expected_rows), free(c->expected_d2);
    guarded_destroy(&c->points), guarded_destroy(&c->offsets), guarded_destroy(&c->counts);
    guarded_destroy(&c->rows), guarded_destroy(&c->distances2);
}

LaunchTest(farthest, equals_brute_force)
{
    static const struct {
        int64_t points, samples;
        int32_t count;
    } sizes[] = {{1, 0, 1},    {2, 0, 3},     {63, 0, 64},   {65, 1, 20},    {513, 2, 40},
                 {1000, 0, 1}, {1000, 5, 80}, {300, 40, 12}, {5000, 0, 700}, {6000, 3, 1500}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int kind = 0; kind < NUM_KINDS; ++kind) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
            farthest_case c = {.kind = (cloud_kind)kind,
                               .max_points = sizes[i].points,
                               .samples = sizes[i].samples,
                               .count = sizes[i].count,
                               .has_counts = (i + (size_t)kind) % 3 == 0,
                               .has_bad_points = (i + (size_t)kind) % 4 == 1,
                               .stream = 4000 + 2 * (uint64_t)(100 * kind) + 3 * i};
            run_case(&d, &c);
        }
    }
    test_close(&d);
}

// One of each way through the kernel, small enough for checkers that take a thousand times as long.
BackendTest(farthest, small_clouds)
{
    static const struct {
        cloud_kind kind;
        int64_t points, samples;
        int32_t count;
    } cases[] = {{LATTICE, 2500, 0, 70}, {UNIFORM, 2600, 2, 40}, {FEW_PLACES, 300, 140, 3}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        farthest_case c = {.kind = cases[i].kind,
                           .max_points = cases[i].points,
                           .samples = cases[i].samples,
                           .count = cases[i].count,
                           .has_bad_points = true,
                           .stream = 7500 + 5 * i};
        run_case(&d, &c);
    }
    test_close(&d);
}

// More samples than a device has processors, and one large one between small ones.
BackendTest(farthest, equals_brute_force_at_other_sizes)
{
    static const struct {
        cloud_kind kind;
        int64_t points, samples;
        int32_t count;
    } cases[] = {{UNIFORM, 9000, 700, 9},
                 {LATTICE, 40000, 0, 1200},
                 {SHELL, 60000, 0, 2000},
                 {CLUSTERS, 30000, 2, 1000},
                 {FEW_PLACES, 20000, 0, 300}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        farthest_case c = {.kind = cases[i].kind,
                           .max_points = cases[i].points,
                           .samples = cases[i].samples,
                           .count = cases[i].count,
                           .stream = 7000 + 5 * i};
        run_case(&d, &c);
    }
    test_close(&d);
}

static void expect_nothing(test_device *d, const spops_point_cloud *cloud, int64_t samples)
{
    enum { COUNT = 3 };
    int32_t rows[4 * COUNT], *there;
    for (int i = 0; i < 4 * COUNT; ++i)
        rows[i] = 55;
    there = test_upload_i32(d, rows, 4 * COUNT);
    test_expect_ok(d->ctx, spops_farthest_execute(d->ctx, cloud, COUNT, NULL, there, NULL), "none");
    test_download_i32(d, rows, there, 4 * COUNT);
    for (int i = 0; i < 4 * COUNT; ++i)
        cr_assert(rows[i] == (i < samples * COUNT ? -1 : 55), "place %d: %d", i, rows[i]);
    test_free(d, there);
}

BackendTest(farthest, offsets_that_do_not_ascend_leave_no_points)
{
    enum { N = 9 };
    static const int32_t bad[][4] = {{0, 5, 3, 9}, {1, 2, 3, 9}, {0, 2, 3, 10}, {0, -4, 3, 9}};
    static const int32_t numbers[3 * N] = {0};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    int32_t *points = test_upload_i32(&d, numbers, 3 * N);
    test_expect_ok(d.ctx, spops_context_reserve(d.ctx, spops_farthest_scratch_bytes(d.ctx, N, 3)),
                   "scratch");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        int32_t *offsets = test_upload_i32(&d, bad[i], 4);
        const spops_point_cloud cloud = {spops_matrix_dense(points, N, 3, SPOPS_DTYPE_F32), offsets,
                                         3};
        expect_nothing(&d, &cloud, 3);
        test_free(&d, offsets);
    }
    const spops_point_cloud empty = {spops_matrix_dense(NULL, 0, 3, SPOPS_DTYPE_F32), NULL, 0};
    expect_nothing(&d, &empty, 1);
    test_free(&d, points);
    test_close(&d);
}

BackendTest(farthest, refuses_wrong_arguments)
{
    enum { N = 20, COUNT = 4 };
    int32_t numbers[3 * N] = {0};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    int32_t *memory = test_upload_i32(&d, numbers, 3 * N);
    for (int i = 0; i < COUNT; ++i)
        numbers[i] = 55;
    int32_t *rows = test_upload_i32(&d, numbers, COUNT);
    const spops_point_cloud cloud = {spops_matrix_dense(memory, N, 3, SPOPS_DTYPE_F32), NULL, 0};
    const spops_point_cloud halves = {spops_matrix_dense(memory, N, 3, SPOPS_DTYPE_F16), NULL, 0};
    const spops_point_cloud flat = {spops_matrix_dense(memory, N, 2, SPOPS_DTYPE_F32), NULL, 0};
    const spops_point_cloud samples = {spops_matrix_dense(memory, N, 3, SPOPS_DTYPE_F32), NULL, 2};
    float *const d2 = (float *)memory;
#define REFUSED(expected, cloud, count, rows, d2, message)                                         \
    test_expect(d.ctx, spops_farthest_execute(d.ctx, cloud, count, NULL, rows, d2), expected,      \
                message, "execute")
    cr_assert(spops_farthest_execute(NULL, &cloud, COUNT, NULL, rows, NULL) ==
              SPOPS_STATUS_INVALID_ARGUMENT);
    REFUSED(SPOPS_STATUS_SCRATCH_TOO_SMALL, &cloud, COUNT, rows, NULL,
            "farthest_execute: the context's scratch is 0 bytes, expected at least ");
    test_expect_ok(d.ctx, spops_context_reserve(d.ctx, spops_farthest_scratch_bytes(d.ctx, N, 1)),
                   "scratch");
    REFUSED(SPOPS_STATUS_INVALID_ARGUMENT, NULL, COUNT, rows, NULL, "cloud");
    REFUSED(SPOPS_STATUS_INVALID_ARGUMENT, &halves, COUNT, rows, NULL, "cloud->points.dtype");
    REFUSED(SPOPS_STATUS_INVALID_ARGUMENT, &flat, COUNT, rows, NULL, "cloud->points");
    REFUSED(SPOPS_STATUS_INVALID_ARGUMENT, &samples, COUNT, rows, NULL,
            "farthest_execute: cloud->num_samples is 2, expected 0 as offsets is NULL");
    REFUSED(SPOPS_STATUS_INVALID_ARGUMENT, &cloud, 0, rows, NULL,
            "farthest_execute: count is 0, expected ");
    REFUSED(SPOPS_STATUS_INVALID_ARGUMENT, &cloud, COUNT, NULL, NULL, "rows");
    REFUSED(SPOPS_STATUS_INVALID_ARGUMENT, &cloud, COUNT, rows, (float *)rows,
            "farthest_execute: distances2 overlaps rows, expected separate memory");
    REFUSED(SPOPS_STATUS_INVALID_ARGUMENT, &cloud, COUNT, rows, d2,
            "farthest_execute: distances2 overlaps cloud, expected separate memory");
#undef REFUSED
    test_download_i32(&d, numbers, rows, COUNT);
    for (int i = 0; i < COUNT; ++i)
        cr_assert_eq(numbers[i], 55);
    cr_assert_eq(spops_farthest_scratch_bytes(d.ctx, -1, 1), 0);
    cr_assert_eq(spops_farthest_scratch_bytes(d.ctx, 5, -1), 0);
    cr_assert_eq(spops_farthest_scratch_bytes(NULL, 5, 1), 0);
    test_free(&d, memory), test_free(&d, rows);
    test_close(&d);
}
