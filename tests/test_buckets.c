// SPDX-License-Identifier: Apache-2.0
// Buckets: every row's place against the rule of spops/buckets.h, one row after another, and what is
// refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "spops/spops.h"
#include "support/device.h"
#include "tests/support/coord_cases.h"
#include "tests/support/params.h"
#include "tests/support/random.h"

// ---- Clouds -------------------------------------------------------------------------------------

typedef enum cloud_kind {
    UNIFORM,   // in a cube of 100 m
    ONE_VOXEL, // all in one
    FAR_AWAY,  // outside all cells, on both sides
    GRID,      // i32, of both signs
    SCAN       // a real scan
} cloud_kind;

#define XM SPOPS_BUCKET_HASH_XOR_MOD
#define XD SPOPS_BUCKET_HASH_XOR_DIV
#define ZM SPOPS_BUCKET_HASH_ZORDER_MOD
#define ZD SPOPS_BUCKET_HASH_ZORDER_DIV

typedef struct bucket_case {
    const char *name;
    cloud_kind kind;
    int32_t n, samples; // samples 0: no offsets
    int32_t bucket_rows, num_buckets, bits, num_rounds;
    spops_bucket_hash hashes[4];
    int32_t step; // of the rounds after the first
} bucket_case;

static const bucket_case cases[] = {
    {"nothing", UNIFORM, 0, 0, 4, 0, 0, 2, {XM, ZD}, 0},
    {"nothing in samples", UNIFORM, 0, 3, 4, 5, 0, 2, {XM, ZD}, 0},
    {"one row", UNIFORM, 1, 0, 16, 0, 0, 1, {ZD}, 0},
    {"xor mod", UNIFORM, 3000, 0, 64, 0, 8, 1, {XM}, 0},
    {"xor div", UNIFORM, 3000, 0, 64, 0, 8, 1, {XD}, 0},
    {"zorder mod", UNIFORM, 3000, 0, 64, 0, 8, 1, {ZM}, 0},
    {"zorder div", UNIFORM, 3000, 0, 64, 0, 8, 1, {ZD}, 0},
    {"a stack", UNIFORM, 9000, 0, 128, 100, 0, 4, {ZD, XD, ZM, XM}, 0},
    {"a stack, no room to spare", UNIFORM, 9000, 5, 50, 0, 0, 4, {ZD, XD, ZM, XM}, 0},
    {"next door", UNIFORM, 5000, 2, 64, 60, 6, 4, {ZD, ZD, ZD, ZD}, 3},
    {"one voxel", ONE_VOXEL, 5000, 0, 64, 100, 0, 4, {ZD, XD, ZM, XM}, 0},
    {"one voxel, next door", ONE_VOXEL, 5000, 0, 64, 79, 16, 4, {ZM, ZM, XM, XM}, 17},
    {"one bucket", UNIFORM, 3000, 0, 3000, 1, 0, 2, {ZD, XM}, 0},
    {"buckets of one row", UNIFORM, 2000, 0, 1, 0, 16, 4, {ZD, XD, ZM, XM}, 0},
    {"far away", FAR_AWAY, 2000, 3, 64, 0, 4, 2, {ZD, XM}, 0},
    {"a grid", GRID, 7000, 4, 128, 0, 9, 3, {ZD, XD, XM}, 0},
    {"samples of one row", UNIFORM, 300, 300, 16, 0, 0, 2, {ZM, XM}, 0},
    {"many samples", UNIFORM, 3000, 2500, 16, 16, 0, 2, {ZM, XM}, 0},
    {"many buckets", UNIFORM, 12000, 0, 2, 16384, 16, 3, {ZM, XD, XM}, 0},
    {"around a tile", UNIFORM, 1024, 1, 32, 0, 0, 2, {ZD, XM}, 0},
    {"after a tile", UNIFORM, 1025, 1, 32, 0, 0, 2, {ZD, XM}, 0},
    {"scan", SCAN, 120000, 0, 512, 256, 0, 4, {ZD, XD, ZM, XM}, 0},
    {"large", UNIFORM, 300000, 3, 512, 0, 0, 4, {ZD, XD, ZM, XM}, 0},
    {"large, many samples", UNIFORM, 270000, 150, 512, 0, 0, 2, {ZD, XM}, 0},
};
enum { NUM_CASES = (int)(sizeof cases / sizeof cases[0]) };

typedef struct host_cloud {
    bool real;
    int32_t n, samples;
    float *points;    // [n][3]
    int32_t *cells;   // [n][3], of a grid
    int32_t *offsets; // NULL without samples
} host_cloud;

static void *zeroed(int64_t n)
{
    void *p = calloc((size_t)(n > 0 ? n : 1), 4);
    cr_assert(p != NULL, "no memory");
    return p;
}

static int compare_i32(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static float place_of(const bucket_case *c, int64_t i, test_rng *rng)
{
    switch (c->kind) {
    case ONE_VOXEL: return 50.05f + 1e-3f * (float)test_rng_unit(rng);
    case FAR_AWAY: return (i % 2 ? 1e30f : -1e12f) * (float)test_rng_unit(rng);
    default: return 100.0f * (float)test_rng_unit(rng);
    }
}

static host_cloud make_cloud(const bucket_case *c, uint64_t stream)
{
    test_rng rng = test_rng_make(stream);
    host_cloud cloud = {.real = c->kind != GRID, .n = c->n, .samples = c->samples};
    int64_t rows = 0, cols = 0;
    float *scan = NULL;
    cloud.points = zeroed(3 * (int64_t)c->n);
    cloud.cells = zeroed(3 * (int64_t)c->n);
    for (int64_t i = 0; i < 3 * (int64_t)c->n; ++i) {
        cloud.points[i] = place_of(c, i / 3, &rng);
        cloud.cells[i] = (int32_t)test_rng_below(&rng, 700) - 100;
    }
    if (c->kind == SCAN && cloud_load_f32("kitti_odom_a.npy", &rows, &cols, &scan)) {
        for (int64_t i = 0; i < c->n; ++i)
            for (int a = 0; a < 3; ++a)
                cloud.points[3 * i + a] = scan[cols * (i % rows) + a] + 60.0f;
        free(scan);
    }
    if (c->samples == 0) return cloud;
    cloud.offsets = zeroed(c->samples + 1);
    for (int32_t b = 1; b < c->samples; ++b)
        cloud.offsets[b] = c->samples == c->n ? b : (int32_t)test_rng_below(&rng, c->n + 1);
    cloud.offsets[c->samples] = c->n;
    qsort(cloud.offsets, (size_t)c->samples + 1, sizeof(int32_t), compare_i32);
    return cloud;
}

static void free_cloud(host_cloud *c)
{
    free(c->points);
    free(c->cells);
    free(c->offsets);
}

static spops_buckets_options options_of(const bucket_case *c)
{
    spops_buckets_options o = spops_buckets_options_default();
    o.bucket_rows = c->bucket_rows;
    o.num_buckets = c->num_buckets;
    o.bits = c->bits;
    o.num_rounds = c->num_rounds;
    for (int r = 0; r < c->num_rounds; ++r) {
        o.hashes[r] = c->hashes[r];
        o.steps[r][r % 3] = r == 0 ? 0 : r % 2 ? c->step : -c->step;
    }
    for (int a = 0; a < 3; ++a) {
        o.size_m[a] = c->kind == GRID ? 1.0 + a : 0.1;
        o.origin_m[a] = c->kind == GRID ? -50.0 * a : 0.5 * a;
    }
    return o;
}

// ---- The rule, from its description -------------------------------------------------------------

static uint64_t cell_of(const spops_buckets_options *o, int round, int axis, double p)
{
    const double u = floor((p - o->origin_m[axis]) / o->size_m[axis]) + o->steps[round][axis];
    const double last = ldexp(1.0, o->bits == 0 ? 10 : o->bits) - 1.0;
    return (uint64_t)(u < 0.0 ? 0.0 : u > last ? last : u);
}

static int32_t bucket_of(const spops_buckets_options *o, int round, const host_cloud *c, int32_t r,
                         int32_t k)
{
    const int bits = o->bits == 0 ? 10 : o->bits;
    uint64_t v[3], z = 0;
    for (int a = 0; a < 3; ++a) {
        const double p = c->real ? (double)c->points[3 * r + a] : (double)c->cells[3 * r + a];
        v[a] = cell_of(o, round, a, isfinite(p) ? p : o->origin_m[a]);
    }
    if (c->real && !(isfinite(c->points[3 * r]) && isfinite(c->points[3 * r + 1]) &&
                     isfinite(c->points[3 * r + 2])))
        for (int a = 0; a < 3; ++a)
            v[a] = cell_of(o, round, a, o->origin_m[a]);
    for (int level = bits - 1; level >= 0; --level)
        for (int a = 0; a < 3; ++a)
            z = 2 * z + (v[a] >> level & 1);
    const uint64_t x = v[0] ^ v[1] ^ v[2];
    switch (o->hashes[round]) {
    case XM: return (int32_t)(x % (uint64_t)k);
    case XD: return (int32_t)(x * (uint64_t)k / ((uint64_t)1 << bits));
    case ZM: return (int32_t)(z % (uint64_t)k);
    default: return (int32_t)(z * (uint64_t)k / ((uint64_t)1 << 3 * bits));
    }
}

typedef struct expected_buckets {
    int32_t num_buckets, late, placed[SPOPS_MAX_BUCKET_ROUNDS];
    int32_t *offsets, *sample_buckets, *rows, *places, *row_buckets;
} expected_buckets;

static expected_buckets expect(const spops_buckets_options *o, const host_cloud *c)
{
    const int32_t samples = c->offsets == NULL ? 1 : c->samples, s = o->bucket_rows;
    const int32_t rounds = o->num_rounds == 0 ? 1 : o->num_rounds;
    expected_buckets e = {0};
    int64_t most = o->num_buckets > 0 ? (int64_t)samples * o->num_buckets : c->n / s + samples;
    int32_t *used = zeroed(most);
    e.offsets = zeroed(most + 1);
    e.sample_buckets = zeroed(samples + 1);
    e.rows = zeroed(c->n), e.places = zeroed(c->n), e.row_buckets = zeroed(c->n);
    memset(e.row_buckets, 0xff, (size_t)c->n * 4);
    for (int32_t b = 0; b < samples; ++b) {
        const int32_t begin = c->offsets == NULL ? 0 : c->offsets[b];
        const int32_t end = c->offsets == NULL ? c->n : c->offsets[b + 1];
        const int32_t k = o->num_buckets > 0 ? o->num_buckets : (end - begin + s - 1) / s;
        const int32_t first = e.num_buckets;
        for (int round = 0; round <= rounds; ++round)
            for (int32_t r = begin; r < end; ++r) {
                int32_t bucket = 0;
                if (e.row_buckets[r] >= 0) continue;
                if (round < rounds)
                    bucket = bucket_of(o, round, c, r, k);
                else
                    while (used[first + bucket] == s)
                        ++bucket;
                if (used[first + bucket] == s) continue;
                e.row_buckets[r] = first + bucket;
                e.places[r] = used[first + bucket]++;
                if (round < rounds)
                    ++e.placed[round];
                else
                    ++e.late;
            }
        e.num_buckets += k;
        e.sample_buckets[b + 1] = e.num_buckets;
    }
    for (int32_t b = 0; b < e.num_buckets; ++b)
        e.offsets[b + 1] = e.offsets[b] + used[b];
    for (int32_t r = 0; r < c->n; ++r) {
        e.places[r] += e.offsets[e.row_buckets[r]];
        e.rows[e.places[r]] = r;
    }
    free(used);
    return e;
}

static void free_expected(expected_buckets *e)
{
    free(e->offsets), free(e->sample_buckets);
    free(e->rows), free(e->places), free(e->row_buckets);
}

// ---- What buckets hold --------------------------------------------------------------------------

static void check_i32(test_device *d, const int32_t *found, const int32_t *expected, int64_t n,
                      const char *what, const char *array)
{
    int32_t *values = zeroed(n);
    if (n > 0) test_download_i32(d, values, found, n);
    for (int64_t i = 0; i < n; ++i)
        cr_assert_eq(values[i], expected[i], "%s: %s[%lld] is %d, expected %d", what, array,
                     (long long)i, values[i], expected[i]);
    free(values);
}

static void check_buckets(test_device *d, const spops_buckets *buckets, const host_cloud *c,
                          const expected_buckets *e, const char *what)
{
    const int32_t samples = c->offsets == NULL ? 1 : c->samples;
    spops_buckets_info info = spops_buckets_info_default();
    spops_buckets_view view = spops_buckets_view_default();
    int32_t *ends;
    test_expect_ok(d->ctx, spops_buckets_get_info_sync(d->ctx, buckets, &info), what);
    test_expect_ok(d->ctx, spops_buckets_get_view(d->ctx, buckets, &view), what);
    cr_assert_eq(info.num_rows, c->n, "%s", what);
    cr_assert_eq(info.num_samples, samples, "%s", what);
    cr_assert_eq(info.num_buckets, e->num_buckets, "%s: %lld buckets, expected %d", what,
                 (long long)info.num_buckets, e->num_buckets);
    for (int r = 0; r < info.num_rounds; ++r)
        cr_assert_eq(info.num_placed[r], e->placed[r], "%s: round %d placed %lld, expected %d",
                     what, r, (long long)info.num_placed[r], e->placed[r]);
    cr_assert_eq(info.num_late, e->late, "%s: %lld late, expected %d", what,
                 (long long)info.num_late, e->late);
    check_i32(d, view.num_rows, &c->n, 1, what, "num_rows");
    check_i32(d, view.num_buckets, &e->num_buckets, 1, what, "num_buckets");
    ends = zeroed(view.max_buckets + 1);
    for (int64_t b = 0; b <= view.max_buckets; ++b)
        ends[b] = e->offsets[b < e->num_buckets ? b : e->num_buckets];
    check_i32(d, view.offsets, ends, view.max_buckets + 1, what, "offsets");
    free(ends);
    ends = zeroed(view.max_samples + 1);
    for (int64_t b = 0; b <= view.max_samples; ++b)
        ends[b] = e->sample_buckets[b < samples ? b : samples];
    check_i32(d, view.sample_buckets, ends, view.max_samples + 1, what, "sample_buckets");
    free(ends);
    check_i32(d, view.row_buckets, e->row_buckets, c->n, what, "row_buckets");
    check_i32(d, view.places, e->places, c->n, what, "places");
    check_i32(d, view.rows, e->rows, c->n, what, "rows");
}

// A cloud where d runs, of `rows` rows.
typedef struct device_cloud {
    spops_point_cloud cloud;
    void *points;
    int32_t *offsets;
} device_cloud;

static void fill_cloud(test_device *d, device_cloud *to, const host_cloud *c)
{
    cr_assert(device_upload(d->backend, to->points,
                            c->real ? (const void *)c->points : (const void *)c->cells,
                            (size_t)c->n * 12),
              "%s", device_error());
    if (c->offsets != NULL && to->offsets != NULL)
        cr_assert(device_upload(d->backend, to->offsets, c->offsets, (size_t)(c->samples + 1) * 4),
                  "%s", device_error());
}

static device_cloud upload(test_device *d, const host_cloud *c, int64_t rows)
{
    device_cloud to = {.offsets =
                           test_upload_i32(d, c->offsets, c->offsets != NULL ? c->samples + 1 : 0)};
    cr_assert(device_alloc(d->backend, (size_t)rows * 12, &to.points), "%s", device_error());
    to.cloud.points =
        spops_matrix_dense(to.points, rows, 3, c->real ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_I32);
    to.cloud.offsets = to.offsets;
    to.cloud.num_samples = c->offsets != NULL ? c->samples : 0;
    fill_cloud(d, &to, c);
    return to;
}

static void discard(test_device *d, device_cloud *c)
{
    test_free(d, c->points);
    test_free(d, c->offsets);
}

// ---- Buckets ------------------------------------------------------------------------------------

BackendTest(buckets, created)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < NUM_CASES; ++i) {
        const bucket_case *c = &cases[i];
        const spops_buckets_options o = options_of(c);
        host_cloud cloud = make_cloud(c, (uint64_t)i);
        expected_buckets e = expect(&o, &cloud);
        device_cloud there = upload(&d, &cloud, cloud.n);
        for (int run = 0; run < (c->n > 10000 ? 1 : 3); ++run) { // the same each time
            spops_buckets *buckets = NULL;
            test_expect_ok(d.ctx, spops_buckets_create(d.ctx, &there.cloud, &o, &buckets), c->name);
            check_buckets(&d, buckets, &cloud, &e, c->name);
            spops_buckets_destroy(buckets);
        }
        discard(&d, &there);
        free_expected(&e);
        free_cloud(&cloud);
    }
    test_close(&d);
}

// Frames of different sizes through one set of capacities; between them, what create refuses.
typedef enum spoiling {
    NOTHING_WRONG,
    NOT_FINITE,
    OFFSETS_BEGIN,
    OFFSETS_DESCEND,
    OFFSETS_BEYOND,
    TOO_MANY_ROWS,       // in the third sample
    TOO_MANY_ROWS_FIRST, // in the first
    NUM_SPOILINGS
} spoiling;

LaunchTest(buckets, set_on_the_stream)
{
    enum { ROWS = 6000, SAMPLES = 6 };
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int fixed = 0; fixed < 2; ++fixed) {
        bucket_case c = {"frames", UNIFORM, 0, SAMPLES, 32, fixed ? 150 : 0, 0, 3, {ZD, ZM, XM}, 0};
        const spops_buckets_options o = options_of(&c);
        int32_t zero = 0;
        const host_cloud nothing = {.real = true, .offsets = &zero}; // not one sample
        expected_buckets none = expect(&o, &nothing);
        spops_buckets *buckets = NULL;
        device_graph *graph = NULL;
        c.n = ROWS;
        host_cloud full = make_cloud(&c, 77);
        device_cloud there = upload(&d, &full, ROWS);
        test_expect_ok(d.ctx, spops_buckets_reserve(d.ctx, ROWS, SAMPLES + 2, &o, &buckets),
                       "reserve");
        check_buckets(&d, buckets, &nothing, &none, "before the first set");
        cr_assert_eq(none.num_buckets, 0);
        if (d.launch == LAUNCH_CAPTURED) {
            cr_assert(device_capture_begin(d.stream), "%s", device_error());
            const spops_status status = spops_buckets_update(d.ctx, buckets, &there.cloud);
            cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
            test_expect_ok(d.ctx, status, "captured");
        }
        for (int i = 0; i < 6 + NUM_SPOILINGS; ++i) {
            static const int32_t sizes[] = {4000, 0, ROWS, 1, 1025, 5000};
            const spoiling wrong = i < 6 ? NOTHING_WRONG : (spoiling)(i - 6);
            spops_buckets_info info = spops_buckets_info_default();
            c.n = i < 6 ? sizes[i] : 5000;
            host_cloud cloud = make_cloud(&c, 100 + (uint64_t)i);
            const bool over = wrong >= TOO_MANY_ROWS && fixed;
            if (wrong == NOT_FINITE) cloud.points[7] = NAN, cloud.points[300] = INFINITY;
            if (wrong == OFFSETS_DESCEND) cloud.offsets[2] = cloud.offsets[1] - 1;
            if (wrong == OFFSETS_BEGIN) cloud.offsets[0] = 1;
            if (wrong == OFFSETS_BEYOND) cloud.offsets[SAMPLES] = ROWS + 1;
            if (wrong >= TOO_MANY_ROWS)
                for (int b = 1; b < SAMPLES; ++b)
                    cloud.offsets[b] = b < 3 && wrong == TOO_MANY_ROWS ? 0 : 4900;
            const bool bad = wrong >= OFFSETS_BEGIN && wrong <= OFFSETS_BEYOND;
            expected_buckets e = expect(&o, over || bad ? &nothing : &cloud);
            fill_cloud(&d, &there, &cloud);
            if (graph != NULL)
                cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
            else
                test_expect_ok(d.ctx, spops_buckets_update(d.ctx, buckets, &there.cloud), "set");
            test_wait(&d);
            cr_assert_eq(spops_buckets_get_info_sync(d.ctx, buckets, &info),
                         over ? SPOPS_STATUS_CAPACITY_EXCEEDED : SPOPS_STATUS_OK, "%d", i);
            cr_assert_eq(info.overflow, over, "%d", i);
            if (over)
                test_expect(d.ctx, SPOPS_STATUS_CAPACITY_EXCEEDED, SPOPS_STATUS_CAPACITY_EXCEEDED,
                            wrong == TOO_MANY_ROWS ? "sample 2 has more rows" : "sample 0 has more",
                            "overflow");
            cr_assert_eq(info.bad_offsets, bad, "%d", i);
            cr_assert_eq(info.num_not_finite, wrong == NOT_FINITE ? 2 : 0, "%d", i);
            if (over || bad)
                cr_assert_eq(info.num_rows + info.num_buckets, 0, "%d", i);
            else
                check_buckets(&d, buckets, &cloud, &e, "set");
            free_expected(&e);
            free_cloud(&cloud);
        }
        device_graph_destroy(graph);
        spops_buckets_destroy(buckets);
        discard(&d, &there);
        free_cloud(&full);
        free_expected(&none);
    }
    test_close(&d);
}

// ---- What is refused ----------------------------------------------------------------------------

BackendTest(buckets, refused)
{
    const bucket_case c = {"refused", UNIFORM, 100, 2, 10, 12, 0, 2, {ZD, XM}, 0};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    host_cloud cloud = make_cloud(&c, 5);
    cloud.offsets[1] = 30;
    device_cloud there = upload(&d, &cloud, cloud.n);
    const spops_buckets_options good = options_of(&c);
    spops_buckets_options o = good;
    spops_buckets *buckets = NULL;
#define REFUSES(call, fragment)                                                                    \
    do {                                                                                           \
        buckets = (spops_buckets *)(void *)&d;                                                     \
        test_expect(d.ctx, call, SPOPS_STATUS_INVALID_ARGUMENT, fragment, fragment);               \
        cr_assert_null(buckets);                                                                   \
        o = good;                                                                                  \
    } while (0)
#define CREATE spops_buckets_create(d.ctx, &there.cloud, &o, &buckets)
    test_expect_ok(d.ctx, CREATE, "good");
    test_expect(d.ctx, spops_buckets_update(d.ctx, buckets, &there.cloud),
                SPOPS_STATUS_INVALID_ARGUMENT, "not made by buckets_reserve", "set");
    spops_buckets_destroy(buckets);
    REFUSES(spops_buckets_create(d.ctx, NULL, &o, &buckets), "cloud is NULL");
    REFUSES(spops_buckets_create(d.ctx, &there.cloud, NULL, &buckets), "options is NULL");
    o.hashes[1] = (spops_bucket_hash)4;
    REFUSES(CREATE, "hashes[1] is 4, expected 0 to 3");
    o.size_m[2] = NAN;
    REFUSES(CREATE, "size_m[2] is nan");
    o.origin_m[0] = INFINITY;
    REFUSES(CREATE, "origin_m[0] is inf");
    o.steps[1][0] = 1 << 20;
    REFUSES(CREATE, "steps[1][0] is 1048576");
    o.steps[0][2] = -(1 << 20);
    REFUSES(CREATE, "steps[0][2] is -1048576");
    o.num_buckets = 6; // the second sample has 70 rows
    REFUSES(CREATE, "sample 1 has 70 rows, expected at most 6 buckets of 10 rows each");
    cloud.offsets[0] = 1;
    fill_cloud(&d, &there, &cloud);
    REFUSES(CREATE, "cloud->offsets[0] is 1, expected 0");
    cloud.offsets[0] = 0;
    cloud.offsets[1] = 101;
    fill_cloud(&d, &there, &cloud);
    REFUSES(CREATE, "cloud->offsets[2] is 100, less than offsets[1] = 101");
    cloud.offsets[1] = 50;
    cloud.points[3 * 17 + 1] = NAN;
    fill_cloud(&d, &there, &cloud);
    REFUSES(CREATE, "cloud->points[17] is (");
    REFUSES(spops_buckets_reserve(d.ctx, 100, 0, &o, &buckets), "max_samples is 0");
    o.num_buckets = 0;
    o.bucket_rows = 1;
    REFUSES(spops_buckets_reserve(d.ctx, 20000, 1, &o, &buckets),
            "a sample may have 20000 buckets of 1 rows, expected at most 16384");
    test_expect_ok(d.ctx, spops_buckets_reserve(d.ctx, 99, 2, &o, &buckets), "reserve");
    test_expect(d.ctx, spops_buckets_update(d.ctx, buckets, &there.cloud),
                SPOPS_STATUS_INVALID_ARGUMENT, "points.rows is 100, expected the capacity, 99",
                "capacity");
    spops_buckets_destroy(buckets);
    discard(&d, &there);
    free_cloud(&cloud);
    test_close(&d);
}
