// SPDX-License-Identifier: Apache-2.0
// Buckets: from coordinates to the permutation, on the stream.
#include <stdlib.h>
#include <string.h>

#include "bench/bench_data.h"
#include "bench/bench_scenes.h"

#define BUCKET_ROWS 512

typedef struct bucket_data {
    bench *b;
    int64_t n;
    float *points; // [n][3] host
    void *points_there;
    spops_buckets_options options;
    spops_buckets *buckets;
    spops_point_cloud cloud;
    spops_status status; // of the first call that failed
} bucket_data;

static void enqueue_set(void *user)
{
    bucket_data *d = user;
    const spops_status status = spops_buckets_set(d->b->ctx, d->buckets, &d->cloud);
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

// A sweep of the test data, again and again side by side; without it, points in a flat box.
static bool make_points(bucket_data *d)
{
    int64_t rows = 0, cols = 0;
    float *scan = bench_load_npy(d->b, "kitti_odom_a.npy", "<f4", &rows, &cols);
    d->points = bench_host(d->b, 3 * d->n, sizeof *d->points);
    if (d->points == NULL) {
        free(scan);
        return false;
    }
    for (int64_t i = 0; i < d->n; ++i)
        for (int a = 0; a < 3; ++a)
            d->points[3 * i + a] =
                scan != NULL
                    ? scan[cols * (i % rows) + a] + (a == 0 ? 80.0f * (float)(i / rows) : 0)
                    : bench_uniform(3 + (uint64_t)a, (uint64_t)i, -60.0f, a < 2 ? 60.0f : -55.0f);
    free(scan);
    return true;
}

// Every row once, at most so many in a bucket.
static bool check_buckets(const bucket_data *d, const spops_buckets_info *info)
{
    bench *b = d->b;
    spops_buckets_view view = spops_buckets_view_default();
    int32_t *rows = bench_host(b, d->n, sizeof *rows);
    int32_t *offsets = bench_host(b, info->num_buckets + 1, sizeof *offsets);
    uint8_t *seen = bench_host(b, d->n, 1);
    bool right =
        rows != NULL && offsets != NULL && seen != NULL &&
        bench_check(b, "view", spops_buckets_get_view(b->ctx, d->buckets, &view)) &&
        bench_download(b, rows, view.rows, (size_t)d->n * sizeof *rows) &&
        bench_download(b, offsets, view.offsets, (size_t)(info->num_buckets + 1) * sizeof *offsets);
    for (int64_t i = 0; right && i < d->n; ++i)
        right = rows[i] >= 0 && rows[i] < d->n && seen[rows[i]]++ == 0;
    for (int64_t i = 0; right && i < info->num_buckets; ++i)
        right = offsets[i + 1] - offsets[i] <= BUCKET_ROWS;
    free(rows);
    free(offsets);
    free(seen);
    return right || bench_fail(b, "buckets: a row is lost, or a bucket too full");
}

static void measure(bench *b, int64_t n)
{
    static const spops_bucket_hash stack[] = {
        SPOPS_BUCKET_HASH_ZORDER_DIV, SPOPS_BUCKET_HASH_XOR_DIV, SPOPS_BUCKET_HASH_ZORDER_MOD,
        SPOPS_BUCKET_HASH_XOR_MOD};
    spops_buckets_info info = spops_buckets_info_default();
    bucket_data d = {.b = b, .n = n, .options = spops_buckets_options_default()};
    bench_case c = {.suite = "buckets", .name = "set"};

    d.options.bucket_rows = BUCKET_ROWS;
    d.options.num_rounds = 4;
    memcpy(d.options.hashes, stack, sizeof stack);
    for (int a = 0; a < 3; ++a) {
        d.options.size_m[a] = a < 2 ? 0.16 : 0.02;
        d.options.origin_m[a] = a < 2 ? -80.0 : -5.0;
    }
    if (!make_points(&d) ||
        !bench_upload(b, d.points, (size_t)n * 3 * sizeof *d.points, &d.points_there))
        goto done;
    d.cloud.points = spops_matrix_dense(d.points_there, n, 3, SPOPS_DTYPE_F32);
    if (!bench_check(b, "reserve", spops_buckets_reserve(b->ctx, n, 1, &d.options, &d.buckets)))
        goto done;
    enqueue_set(&d);
    if (!bench_check(b, "set", d.status) ||
        !bench_check(b, "info", spops_buckets_get_info_sync(b->ctx, d.buckets, &info)) ||
        !check_buckets(&d, &info))
        goto done;
    snprintf(c.what, sizeof c.what, "%lld rows, %lld buckets of %d, 4 hashes, %lld late",
             (long long)n, (long long)info.num_buckets, BUCKET_ROWS, (long long)info.num_late);
    c.bytes = n * (12 + 3 * 4); // coordinates; rows, places and buckets
    bench_case_note(&c, "rows", n);
    for (int r = 0; r < 4; ++r) {
        static const char *const keys[] = {"placed_0", "placed_1", "placed_2", "placed_3"};
        bench_case_note(&c, keys[r], info.num_placed[r]);
    }
    bench_case_note(&c, "late", info.num_late);
    if (bench_case_time(b, &c, "spops", false, enqueue_set, &d) && bench_check(b, "set", d.status))
        bench_case_print(b, &c);

done:
    spops_buckets_destroy(d.buckets);
    bench_free(b, d.points_there);
    free(d.points);
}

static void run_suite(bench *b)
{
    measure(b, b->options.quick ? 12000 : 120000);
    if (!b->options.quick) measure(b, 1000000);
}

const bench_suite bench_suite_buckets = {.name = "buckets", .run = run_suite};
