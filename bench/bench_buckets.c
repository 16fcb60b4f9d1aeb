// SPDX-License-Identifier: Apache-2.0
// Buckets from coordinates to the permutation, beside rows that race for places; patches from them and
// from a curve; and in-bucket pooling beside a copy of its bytes.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/baselines/bucket_baselines.h"
#include "bench/bench_data.h"
#include "bench/bench_scenes.h"

enum { BUCKET_ROWS = 512, SUB_ROWS = 2, WINDOW = 2, COLS = 128, NUM_ROUNDS = 4 };

static const spops_bucket_hash stack[NUM_ROUNDS] = {
    SPOPS_BUCKET_HASH_ZORDER_DIV, SPOPS_BUCKET_HASH_XOR_DIV, SPOPS_BUCKET_HASH_ZORDER_MOD,
    SPOPS_BUCKET_HASH_XOR_MOD};

typedef struct bucket_data {
    bench *b;
    int64_t n;
    float *points; // [n][3] host
    void *points_there;
    spops_buckets_options options;
    spops_buckets *buckets;
    spops_buckets_info info;
    spops_point_cloud cloud;
    spops_patches *windows, *runs; // of buckets, and of rows along a curve
    spops_patch_window window;
    spops_patch_order order;
    spops_pool *pool, *graded; // without gradients, and with those of sums and means
    spops_matrix x, pooled, back;
    bucket_race race;
    spops_status status; // of the first call that failed
} bucket_data;

static void note_status(bucket_data *d, spops_status status)
{
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

static void enqueue_set(void *user)
{
    bucket_data *d = user;
    note_status(d, spops_buckets_update(d->b->ctx, d->buckets, &d->cloud));
}

static void enqueue_race(void *user)
{
    bucket_data *d = user;
    bucket_race_cuda(&d->race);
}

static void enqueue_windows(void *user)
{
    bucket_data *d = user;
    note_status(d,
                spops_patches_update_from_buckets(d->b->ctx, d->windows, d->buckets, &d->window));
}

static void enqueue_runs(void *user)
{
    bucket_data *d = user;
    note_status(d, spops_patches_update_from_order(d->b->ctx, d->runs, &d->cloud, &d->order));
}

static void enqueue_plan_pool(void *user)
{
    bucket_data *d = user;
    note_status(d, spops_pool_update(d->b->ctx, d->pool));
}

static void enqueue_pool(void *user)
{
    bucket_data *d = user;
    note_status(d, spops_pool_execute(d->b->ctx, d->pool, SPOPS_REDUCE_MEAN, d->x, d->pooled));
}

static void enqueue_unpool(void *user)
{
    bucket_data *d = user;
    note_status(
        d, spops_gather_execute(d->b->ctx, spops_pool_segments(d->pool), d->pooled, NULL, d->back));
}

static void enqueue_pool_gradient(void *user)
{
    bucket_data *d = user;
    note_status(d, spops_pool_execute_backward(d->b->ctx, d->graded, SPOPS_REDUCE_MEAN, d->pooled,
                                               d->x, d->back));
}

// ---- Checks -------------------------------------------------------------------------------------

// Every row once, at most so many in a bucket.
static bool check_places(const bucket_data *d, const char *what, const int32_t *rows,
                         const int32_t *offsets, int64_t num_buckets)
{
    uint8_t *seen = bench_host(d->b, d->n, 1);
    bool right = seen != NULL;
    for (int64_t i = 0; right && i < d->n; ++i)
        right = rows[i] >= 0 && rows[i] < d->n && seen[rows[i]]++ == 0;
    for (int64_t i = 0; right && i < num_buckets; ++i)
        right = offsets[i + 1] - offsets[i] <= BUCKET_ROWS;
    free(seen);
    return right || bench_fail(d->b, "%s: a row is lost, or a bucket too full", what);
}

static bool check_arrays(const bucket_data *d, const char *what, const void *rows_there,
                         const void *offsets_there)
{
    bench *b = d->b;
    int32_t *rows = bench_host(b, d->n, sizeof *rows);
    int32_t *offsets = bench_host(b, d->info.num_buckets + 1, sizeof *offsets);
    const bool right = rows != NULL && offsets != NULL &&
                       bench_download(b, rows, rows_there, (size_t)d->n * sizeof *rows) &&
                       bench_download(b, offsets, offsets_there,
                                      (size_t)(d->info.num_buckets + 1) * sizeof *offsets) &&
                       check_places(d, what, rows, offsets, d->info.num_buckets);
    free(rows);
    free(offsets);
    return right;
}

// The sums over all rows, column by column, of what the rows that came back were made from. Every row
// went into one mean, so that rows and the means that they get back have the same sums; and the parts
// that the gradient of a mean has add up to what it is the gradient of.
static bool check_sums(const bucket_data *d, const char *what, const spops_matrix *from)
{
    const spops_matrix *sides[2] = {from, &d->back};
    double sums[2][COLS] = {{0.0}}, magnitude = 0.0;
    bool right = true;
    for (int side = 0; right && side < 2; ++side) {
        const int64_t count = sides[side]->rows * COLS;
        uint16_t *x = bench_host(d->b, count, sizeof *x);
        right = x != NULL && bench_download(d->b, x, sides[side]->data, (size_t)count * sizeof *x);
        for (int64_t i = 0; right && i < count; ++i) {
            const double v = (double)elements_float_of_f16(x[i]);
            sums[side][i % COLS] += v;
            if (side == 0) magnitude += fabs(v);
        }
        free(x);
    }
    for (int c = 0; right && c < COLS; ++c) // rounded once in f32 and once in f16
        right = fabs(sums[0][c] - sums[1][c]) <= 0x1p-10 * magnitude / COLS;
    return right || bench_fail(d->b, "%s: rows do not add up", what);
}

// ---- Cases --------------------------------------------------------------------------------------

static void measure_case(bucket_data *d, const char *name, int64_t bytes, int64_t cols,
                         void (*enqueue)(void *user), bool race)
{
    bench *b = d->b;
    bench_case c = {.suite = "buckets", .bytes = bytes, .cols = cols, .dtype = SPOPS_DTYPE_F16};
    snprintf(c.name, sizeof c.name, "%s", name);
    snprintf(c.what, sizeof c.what, "%lld rows, %lld buckets of %d, %d hashes, %lld late",
             (long long)d->n, (long long)d->info.num_buckets, BUCKET_ROWS, NUM_ROUNDS,
             (long long)d->info.num_late);
    bench_case_note(&c, "rows", d->n);
    bench_case_note(&c, "placed_first", d->info.num_placed[0]);
    bench_case_note(&c, "late", d->info.num_late);
    if (bench_case_time(b, &c, "spops", false, enqueue, d) && bench_check(b, name, d->status) &&
        (!race || bench_case_time(b, &c, "race", true, enqueue_race, d)))
        bench_case_print(b, &c);
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
    d->cloud.points = spops_matrix_dense(NULL, d->n, 3, SPOPS_DTYPE_F32);
    return bench_upload(d->b, d->points, (size_t)d->n * 3 * sizeof *d->points, &d->points_there);
}

static bool make_race(bucket_data *d)
{
    bench *b = d->b;
    bucket_race *r = &d->race;
    void *arrays[4] = {NULL};
    const int64_t sizes[4] = {d->info.num_buckets, 2 * d->n, d->info.num_buckets + 1, d->n};
    r->points = (const float *)d->points_there;
    r->num_rows = (int32_t)d->n;
    r->num_buckets = (int32_t)d->info.num_buckets;
    r->bucket_rows = BUCKET_ROWS;
    r->bits = 10;
    r->num_rounds = NUM_ROUNDS;
    memcpy(r->hashes, stack, sizeof stack);
    for (int a = 0; a < 3; ++a) {
        r->size_m[a] = (float)d->options.size_m[a];
        r->origin_m[a] = (float)d->options.origin_m[a];
    }
    r->stream = b->stream;
    for (int i = 0; i < 4; ++i)
        if (!bench_alloc(b, (size_t)sizes[i] * 4, &arrays[i])) return false;
    r->counters = (uint32_t *)arrays[0];
    r->taken = (uint32_t *)arrays[1];
    r->offsets = (uint32_t *)arrays[2];
    r->rows = (int32_t *)arrays[3];
    enqueue_race(d);
    if (r->failed || !device_stream_wait(b->backend, b->stream))
        return bench_fail(b, "race: %s", device_error());
    return check_arrays(d, "race", r->rows, r->offsets);
}

static bool wait_pool(bucket_data *d)
{
    bench *b = d->b;
    return bench_check(b, "pool", d->status) &&
           (device_stream_wait(b->backend, b->stream) || bench_fail(b, "%s", device_error()));
}

static bool make_features(bucket_data *d)
{
    bench *b = d->b;
    bench_block values = {0};
    spops_pool_options o = spops_pool_options_default();
    void *arrays[3] = {NULL};
    int64_t pooled;
    o.max_cols = COLS;
    if (!bench_check(b, "pool",
                     spops_pool_create_from_buckets(b->ctx, d->buckets, SUB_ROWS, &o, &d->pool)))
        return false;
    o.gradients = SPOPS_GRADIENTS_LINEAR;
    if (!bench_check(b, "pool",
                     spops_pool_create_from_buckets(b->ctx, d->buckets, SUB_ROWS, &o, &d->graded)))
        return false;
    pooled = d->n / SUB_ROWS + d->info.max_buckets; // as the contract of the call says
    if (pooled > d->n) pooled = d->n;
    const int64_t rows[3] = {d->n, pooled, d->n};
    spops_matrix *matrices[3] = {&d->x, &d->pooled, &d->back};
    for (int i = 0; i < 3; ++i) {
        if (!bench_alloc(b, (size_t)rows[i] * COLS * 2, &arrays[i])) return false;
        *matrices[i] = spops_matrix_dense(arrays[i], rows[i], COLS, SPOPS_DTYPE_F16);
    }
    if (!bench_block_create(SPOPS_DTYPE_F16, 6, -1.0f, 1.0f, &values))
        return bench_fail(b, "no host memory for values");
    const bool sent = bench_block_upload(&values, b->backend, d->x.data, d->n * COLS);
    bench_block_destroy(&values);
    if (!sent) return false;
    enqueue_pool(d);
    enqueue_unpool(d);
    if (!wait_pool(d) || !check_sums(d, "unpooling", &d->x)) return false;
    enqueue_pool_gradient(d);
    return wait_pool(d) && check_sums(d, "gradient of pooling", &d->pooled);
}

static bool make_patches(bucket_data *d)
{
    bench *b = d->b;
    spops_patches_capacity shape = spops_patches_capacity_default();
    spops_patches_info info = spops_patches_info_default();
    shape.num_rows = shape.max_queries = d->n;
    shape.max_patches = d->info.max_buckets;
    shape.max_samples = 1;
    shape.same = 1;
    d->window.buckets = WINDOW;
    d->window.shift = 1;
    d->order.patch_rows = 2 * BUCKET_ROWS;
    d->order.curve = SPOPS_PATCH_CURVE_HILBERT;
    d->order.bits = 10;
    memcpy(d->order.size_m, d->options.size_m, sizeof d->order.size_m);
    memcpy(d->order.origin_m, d->options.origin_m, sizeof d->order.origin_m);
    if (!bench_check(b, "patches", spops_patches_reserve(b->ctx, &shape, &d->windows)) ||
        !bench_check(b, "patches", spops_patches_reserve(b->ctx, &shape, &d->runs)))
        return false;
    enqueue_windows(d);
    enqueue_runs(d);
    for (int i = 0; i < 2; ++i) {
        if (!bench_check(b, "patches", d->status) ||
            !bench_check(b, "patches",
                         spops_patches_get_info_sync(b->ctx, i == 0 ? d->windows : d->runs, &info)))
            return false;
        if (info.num_queries != d->n || info.refused != 0)
            return bench_fail(b, "patches: %lld queries, expected %lld",
                              (long long)info.num_queries, (long long)d->n);
    }
    return true;
}

static bool make_buckets(bucket_data *d)
{
    bench *b = d->b;
    spops_buckets_view view = spops_buckets_view_default();
    d->cloud.points.data = d->points_there;
    if (!bench_check(b, "reserve",
                     spops_buckets_reserve(b->ctx, d->n, 1, &d->options, &d->buckets)))
        return false;
    enqueue_set(d);
    return bench_check(b, "set", d->status) &&
           bench_check(b, "info", spops_buckets_get_info_sync(b->ctx, d->buckets, &d->info)) &&
           bench_check(b, "view", spops_buckets_get_view(b->ctx, d->buckets, &view)) &&
           check_arrays(d, "set", view.rows, view.offsets);
}

static void measure(bench *b, int64_t n)
{
    const bool race = b->backend == SPOPS_BACKEND_CUDA && b->options.baselines;
    bucket_data d = {.b = b,
                     .n = n,
                     .options = spops_buckets_options_default(),
                     .info = spops_buckets_info_default(),
                     .window = spops_patch_window_default(),
                     .order = spops_patch_order_default()};

    d.options.bucket_rows = BUCKET_ROWS;
    d.options.num_rounds = NUM_ROUNDS;
    memcpy(d.options.hashes, stack, sizeof stack);
    for (int a = 0; a < 3; ++a) {
        d.options.size_m[a] = a < 2 ? 0.16 : 0.02;
        d.options.origin_m[a] = a < 2 ? -80.0 : -5.0;
    }
    if (!make_points(&d) || !make_buckets(&d)) goto done;
    if (bench_wants(b->options.passes, "set") && (!race || make_race(&d)))
        // coordinates; rows, places, buckets and codes
        measure_case(&d, "set", n * (12 + 3 * 4 + 8), 0, enqueue_set, race);
    if (bench_wants(b->options.passes, "patches") && make_patches(&d)) {
        measure_case(&d, "patches of windows", 0, 0, enqueue_windows, false);
        measure_case(&d, "patches along a Hilbert curve", 0, 0, enqueue_runs, false);
    }
    if (bench_wants(b->options.passes, "pool") && make_features(&d)) {
        const int64_t pooled = n / SUB_ROWS; // and a few that are not full
        const int64_t bytes = (n + pooled) * COLS * 2 + n * 4;
        measure_case(&d, "pooling, plan", 0, 0, enqueue_plan_pool, false);
        measure_case(&d, "pooling, mean", bytes, COLS, enqueue_pool, false);
        measure_case(&d, "pooling, mean, gradient", bytes, COLS, enqueue_pool_gradient, false);
        measure_case(&d, "unpooling", bytes, COLS, enqueue_unpool, false);
    }

done:
    spops_pool_destroy(d.pool);
    spops_pool_destroy(d.graded);
    spops_patches_destroy(d.windows);
    spops_patches_destroy(d.runs);
    spops_buckets_destroy(d.buckets);
    bench_free(b, d.points_there);
    bench_free(b, d.race.counters);
    bench_free(b, d.race.taken);
    bench_free(b, d.race.offsets);
    bench_free(b, d.race.rows);
    bench_free(b, d.x.data);
    bench_free(b, d.pooled.data);
    bench_free(b, d.back.data);
    free(d.points);
}

static void run_suite(bench *b)
{
    measure(b, b->options.quick ? 12000 : 120000);
    if (!b->options.quick) measure(b, 1000000);
}

const bench_suite bench_suite_buckets = {
    .name = "buckets", .passes = "set,patches,pool", .run = run_suite};
