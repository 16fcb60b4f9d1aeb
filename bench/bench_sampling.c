// SPDX-License-Identifier: Apache-2.0
// Farthest point sampling: a sweep, the same sweep with a quarter of it taken, and batches of small
// clouds. The rows are compared with brute force before they are timed.
#include <math.h>
#include <stdlib.h>

#include "bench/bench_data.h"
#include "bench/bench_scenes.h"

typedef struct sampling_size {
    const char *name;
    int64_t samples, points; // of each
    int32_t count;
} sampling_size;

typedef struct sampling_data {
    bench *b;
    const sampling_size *size;
    float *points; // [samples][points][3], host
    void *points_there, *offsets_there, *rows_there, *d2_there;
    spops_point_cloud cloud;
    spops_status status; // of the first call that failed
} sampling_data;

static void enqueue(void *user)
{
    sampling_data *d = user;
    const spops_status status = spops_farthest_execute(d->b->ctx, &d->cloud, d->size->count, NULL,
                                                       d->rows_there, (float *)d->d2_there);
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

// The sweep, or parts of it; without the file, points in a flat box.
static bool make_points(sampling_data *d)
{
    bench *b = d->b;
    const int64_t n = d->size->samples * d->size->points;
    int64_t rows = 0, cols = 0;
    float *scan = bench_load_npy(b, "kitti_odom_a.npy", "<f4", &rows, &cols);
    d->points = bench_host(b, 3 * n, sizeof *d->points);
    for (int64_t i = 0; i < n && d->points != NULL; ++i)
        for (int a = 0; a < 3; ++a)
            d->points[3 * i + a] = scan != NULL ? scan[cols * (i % rows) + a]
                                                : bench_uniform(3 + (uint64_t)a, (uint64_t)i,
                                                                -60.0f, a < 2 ? 60.0f : -55.0f);
    free(scan);
    return d->points != NULL;
}

static bool make_cloud(sampling_data *d)
{
    bench *b = d->b;
    const int64_t samples = d->size->samples, n = samples * d->size->points;
    const size_t out_bytes = (size_t)(samples * d->size->count) * sizeof(int32_t);
    int32_t *offsets = bench_host(b, samples + 1, sizeof *offsets);
    bool made = offsets != NULL && make_points(d);

    for (int64_t s = 0; made && s <= samples; ++s)
        offsets[s] = (int32_t)(s * d->size->points);
    made = made && bench_upload(b, d->points, (size_t)n * 3 * sizeof(float), &d->points_there) &&
           bench_upload(b, offsets, (size_t)(samples + 1) * sizeof *offsets, &d->offsets_there) &&
           bench_alloc(b, out_bytes, &d->rows_there) && bench_alloc(b, out_bytes, &d->d2_there) &&
           bench_poison(b, d->rows_there, out_bytes) && bench_poison(b, d->d2_there, out_bytes) &&
           bench_check(
               b, "scratch",
               spops_context_reserve(b->ctx, spops_farthest_scratch_bytes(b->ctx, n, samples)));
    free(offsets);
    d->cloud = (spops_point_cloud){spops_matrix_dense(d->points_there, n, 3, SPOPS_DTYPE_F32),
                                   (const int32_t *)d->offsets_there, samples};
    return made;
}

// Of one sample, by going over all its points for each that is taken.
static bool is_farthest(const float *points, int64_t n, int32_t count, int64_t first,
                        const int32_t *rows, float *nearest)
{
    int64_t next = 0;
    for (int64_t i = 0; i < n; ++i)
        nearest[i] = INFINITY;
    for (int32_t k = 0; k < count; ++k) {
        const float *q = points + 3 * next;
        if (rows[k] != first + next) return false;
        nearest[next] = -1.0f;
        next = 0;
        for (int64_t i = 0; i < n; ++i) {
            const float x = points[3 * i] - q[0], y = points[3 * i + 1] - q[1],
                        z = points[3 * i + 2] - q[2];
            const float xx = x * x, yy = y * y, zz = z * z, xy = xx + yy, d2 = xy + zz;
            if (d2 < nearest[i]) nearest[i] = d2;
            if (nearest[i] > nearest[next]) next = i;
        }
    }
    return true;
}

static bool check(sampling_data *d)
{
    bench *b = d->b;
    const sampling_size *size = d->size;
    int32_t *rows = NULL;
    float *nearest = bench_host(b, size->points, sizeof *nearest);
    bool right;

    bench_progress("sampling %s: checking", size->name);
    enqueue(d);
    right = nearest != NULL && bench_check(b, "farthest", d->status) &&
            bench_fetch_i32(b, (const int32_t *)d->rows_there, size->samples * size->count, &rows);
    for (int64_t s = 0; right && s < size->samples; ++s)
        if (!is_farthest(d->points + 3 * s * size->points, size->points, size->count,
                         s * size->points, rows + s * size->count, nearest))
            right = bench_fail(b, "sampling %s: sample %lld has other rows than brute force",
                               size->name, (long long)s);
    free(rows);
    free(nearest);
    return right;
}

static void measure(bench *b, const sampling_size *size)
{
    sampling_data d = {.b = b, .size = size};
    bench_case c = {.suite = "sampling"};

    snprintf(c.name, sizeof c.name, "%s", size->name);
    snprintf(c.what, sizeof c.what, "%d of %lld points, %lld samples", (int)size->count,
             (long long)size->points, (long long)size->samples);
    bench_case_note(&c, "points", size->points);
    bench_case_note(&c, "samples", size->samples);
    bench_case_note(&c, "count", size->count);
    if (make_cloud(&d) && check(&d) && bench_case_time(b, &c, "spops", false, enqueue, &d) &&
        bench_check(b, "farthest", d.status))
        bench_case_print(b, &c);
    bench_free(b, d.points_there), bench_free(b, d.offsets_there);
    bench_free(b, d.rows_there), bench_free(b, d.d2_there);
    free(d.points);
}

static void run_suite(bench *b)
{
    static const sampling_size sizes[] = {{"sweep", 1, 120000, 4096},
                                          {"quarter of a sweep", 1, 120000, 30000},
                                          {"batch of 32", 32, 16384, 1024},
                                          {"batch of 4", 4, 16384, 4096},
                                          {"small", 1, 4096, 1024}};
    static const sampling_size quick = {"small", 1, 4096, 1024};

    if (b->options.quick) {
        measure(b, &quick);
        return;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
        measure(b, &sizes[i]);
}

const bench_suite bench_suite_sampling = {.name = "sampling", .run = run_suite};
