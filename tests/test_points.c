// SPDX-License-Identifier: Apache-2.0
// Neighbours within a radius, and nearest neighbours: against brute force on clouds that are easy to
// get wrong, filled on the stream, and what they refuse.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/coord_cases.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

// ---- Clouds -------------------------------------------------------------------------------------

typedef enum cloud_kind {
    UNIFORM,    // in a cube of 1 m
    LATTICE,    // multiples of 0.25 m: distances on the radius and offsets on borders of taps
    DUPLICATES, // few places, many points each
    COLLINEAR,  // along x
    ONE_CELL,   // all within 1e-3 m
    FAR_AWAY,   // around 1e6 m, where f32 has steps of 0.06 m
    SPREAD,     // over 1e30 m
    TINY,       // within 1e-21 m, where squares are subnormal
    SCAN        // the first points of a real scan
} cloud_kind;

typedef struct cloud_case {
    const char *name;
    cloud_kind kind;
    int64_t n;
    int32_t samples; // 0: no offsets
    float radius_m;
    spops_metric metric;
    int32_t taps;
    float tap_size_m;
} cloud_case;

static const cloud_case cases[] = {
    {"nothing", UNIFORM, 0, 0, 0.5f, SPOPS_METRIC_BALL, 3, 0.2f},
    {"one point", UNIFORM, 1, 0, 0.5f, SPOPS_METRIC_BALL, 3, 0.2f},
    {"two points", UNIFORM, 2, 0, 2.0f, SPOPS_METRIC_BALL, 2, 0.2f},
    {"uniform", UNIFORM, 900, 0, 0.12f, SPOPS_METRIC_BALL, 3, 0.07f},
    {"uniform, chebyshev", UNIFORM, 900, 0, 0.1f, SPOPS_METRIC_CHEBYSHEV, 3, 0.07f},
    {"no taps", UNIFORM, 500, 0, 0.15f, SPOPS_METRIC_BALL, 0, 0.0f},
    {"two taps", UNIFORM, 500, 0, 0.15f, SPOPS_METRIC_BALL, 2, 0.1f},
    {"five taps", UNIFORM, 500, 0, 0.15f, SPOPS_METRIC_BALL, 5, 0.05f},
    {"nine taps", UNIFORM, 300, 0, 0.3f, SPOPS_METRIC_BALL, 9, 0.03f},
    {"radius beyond the cloud", UNIFORM, 120, 0, 10.0f, SPOPS_METRIC_BALL, 3, 0.5f},
    {"samples", UNIFORM, 900, 7, 0.2f, SPOPS_METRIC_BALL, 3, 0.1f},
    {"many samples", UNIFORM, 300, 250, 0.5f, SPOPS_METRIC_BALL, 3, 0.1f},
    {"lattice, on the radius", LATTICE, 700, 0, 0.5f, SPOPS_METRIC_BALL, 3, 0.5f},
    {"lattice, chebyshev", LATTICE, 700, 2, 0.5f, SPOPS_METRIC_CHEBYSHEV, 3, 0.5f},
    {"lattice, even taps", LATTICE, 400, 0, 0.5f, SPOPS_METRIC_CHEBYSHEV, 4, 0.25f},
    {"duplicates", DUPLICATES, 400, 3, 0.0f, SPOPS_METRIC_BALL, 3, 0.1f},
    {"duplicates within reach", DUPLICATES, 400, 0, 0.4f, SPOPS_METRIC_BALL, 3, 0.1f},
    {"zero radius", UNIFORM, 300, 0, 0.0f, SPOPS_METRIC_CHEBYSHEV, 1, 0.0f},
    {"collinear", COLLINEAR, 800, 0, 0.01f, SPOPS_METRIC_BALL, 3, 0.004f},
    {"one cell", ONE_CELL, 300, 0, 1.0f, SPOPS_METRIC_BALL, 3, 1e-4f},
    {"far away", FAR_AWAY, 600, 0, 0.5f, SPOPS_METRIC_BALL, 3, 0.25f},
    {"spread", SPREAD, 300, 0, 1e17f, SPOPS_METRIC_BALL, 3, 1.0f},
    {"tiny", TINY, 200, 0, 3e-22f, SPOPS_METRIC_BALL, 3, 1e-22f},
    {"scan", SCAN, 1500, 0, 0.4f, SPOPS_METRIC_BALL, 3, 0.2f},
};
enum { NUM_CASES = (int)(sizeof cases / sizeof cases[0]) };

typedef struct host_cloud {
    int64_t n;
    float *points; // [n][3]
    int32_t samples, *offsets;
} host_cloud;

static float place_of(const cloud_case *c, int64_t i, int axis, test_rng *rng)
{
    switch (c->kind) {
    case LATTICE: return 0.25f * (float)test_rng_below(rng, 9);
    case DUPLICATES: return 0.3f * (float)test_rng_below(rng, 3);
    case COLLINEAR: return axis == 0 ? (float)test_rng_unit(rng) : 0.5f;
    case ONE_CELL: return 1e-3f * (float)test_rng_unit(rng);
    case FAR_AWAY: return 1e6f + 4.0f * (float)test_rng_unit(rng);
    case SPREAD: return (i % 3 == 0 ? 1e30f : 1.5e17f) * (float)(test_rng_unit(rng) - 0.5);
    case TINY: return 1e-21f * (float)test_rng_unit(rng);
    default: return (float)test_rng_unit(rng);
    }
}

static host_cloud make_cloud(const cloud_case *c, int64_t n, uint64_t stream)
{
    test_rng rng = test_rng_make(stream);
    host_cloud cloud = {n, calloc((size_t)n * 3 + 1, sizeof(float)), c->samples, NULL};
    int64_t scan_rows = 0, cols = 0;
    float *scan = NULL;

    cr_assert(cloud.points != NULL, "no memory");
    for (int64_t i = 0; i < 3 * n; ++i)
        cloud.points[i] = place_of(c, i / 3, (int)(i % 3), &rng);
    if (c->kind == SCAN && cloud_load_f32("kitti_odom_a.npy", &scan_rows, &cols, &scan)) {
        for (int64_t i = 0; i < n; ++i)
            memcpy(cloud.points + 3 * i, scan + cols * (i * (scan_rows / n)), 3 * sizeof *scan);
        free(scan);
    }
    if (c->samples > 0) {
        cloud.offsets = calloc((size_t)c->samples + 1, sizeof *cloud.offsets);
        cr_assert(cloud.offsets != NULL, "no memory");
        for (int32_t b = 1; b < c->samples; ++b) // some are empty
            cloud.offsets[b] = (int32_t)test_rng_below(&rng, n + 1);
        cloud.offsets[c->samples] = (int32_t)n;
        for (int32_t b = 1; b < c->samples; ++b)
            for (int32_t a = b; a > 1 && cloud.offsets[a] < cloud.offsets[a - 1]; --a) {
                const int32_t swap = cloud.offsets[a];
                cloud.offsets[a] = cloud.offsets[a - 1];
                cloud.offsets[a - 1] = swap;
            }
    }
    return cloud;
}

static int32_t sample_of(const host_cloud *c, int64_t i)
{
    int32_t b = 0;
    while (c->samples > 0 && c->offsets[b + 1] <= i)
        ++b;
    return b;
}

static void free_cloud(host_cloud *c)
{
    free(c->points);
    free(c->offsets);
}

// A cloud where d runs, in rows that may have room for more.
typedef struct device_cloud {
    spops_point_cloud cloud;
    void *points;
    int32_t *offsets;
} device_cloud;

static device_cloud upload(test_device *d, const host_cloud *c, int64_t rows)
{
    device_cloud to = {.offsets =
                           test_upload_i32(d, c->offsets, c->samples > 0 ? c->samples + 1 : 0)};
    cr_assert(device_alloc(d->backend, (size_t)rows * 12, &to.points) &&
                  device_upload(d->backend, to.points, c->points, (size_t)c->n * 12),
              "%s", device_error());
    to.cloud.points = spops_matrix_dense(to.points, rows, 3, SPOPS_DTYPE_F32);
    to.cloud.offsets = to.offsets;
    to.cloud.num_samples = c->samples;
    return to;
}

static void discard(test_device *d, device_cloud *c)
{
    test_free(d, c->points);
    test_free(d, c->offsets);
}

// ---- The rules, from their description ----------------------------------------------------------

static float f32(double x)
{
    volatile float rounded = (float)x;
    return rounded;
}

static float distance2_of(const float *p, const float *q)
{
    const float x = f32((double)p[0] - q[0]), y = f32((double)p[1] - q[1]),
                z = f32((double)p[2] - q[2]);
    // Products of two f32 are exact in f64.
    const float xx = f32((double)x * x), yy = f32((double)y * y), zz = f32((double)z * z);
    return f32((double)f32((double)xx + yy) + zz);
}

static bool is_pair(const cloud_case *c, const float *in, const float *out)
{
    if (c->metric == SPOPS_METRIC_BALL)
        return distance2_of(in, out) <= f32((double)c->radius_m * c->radius_m);
    for (int a = 0; a < 3; ++a)
        if (!(fabsf(f32((double)in[a] - out[a])) <= c->radius_m)) return false;
    return true;
}

static int32_t tap_of(const cloud_case *c, const float *in, const float *out)
{
    const int32_t t = c->taps == 0 ? 1 : c->taps;
    int32_t tap = 0;
    for (int a = 0; a < 3; ++a) {
        // A quotient of f32 rounded to f64 and then to f32 is rounded as if at once.
        const double q =
            t == 1 ? 0.0 : f32((double)f32((double)in[a] - out[a]) / (double)c->tap_size_m);
        double step;
        if (t % 2 == 1)
            step = t / 2 + (q < 0.0 ? -floor(0.5 - q) : floor(q + 0.5));
        else
            step = floor(q) + t / 2;
        step = step < 0.0 ? 0.0 : step > t - 1 ? t - 1 : step;
        tap = tap * t + (int32_t)step;
    }
    return tap;
}

typedef struct pair {
    int32_t out, in, tap;
} pair;

static int by_row_and_tap(const void *a, const void *b)
{
    const pair *p = a, *q = b;
    if (p->out != q->out) return p->out < q->out ? -1 : 1;
    if (p->tap != q->tap) return p->tap < q->tap ? -1 : 1;
    return p->in < q->in ? -1 : p->in > q->in;
}

static int by_tap(const void *a, const void *b)
{
    const pair *p = a, *q = b;
    if (p->tap != q->tap) return p->tap < q->tap ? -1 : 1;
    if (p->out != q->out) return p->out < q->out ? -1 : 1;
    return p->in < q->in ? -1 : p->in > q->in;
}

static pair *brute_force(const cloud_case *c, const host_cloud *out, const host_cloud *in,
                         int64_t *num)
{
    int64_t capacity = 1024, n = 0;
    pair *pairs = malloc((size_t)capacity * sizeof *pairs);
    for (int64_t i = 0; i < out->n; ++i) {
        const int32_t sample = sample_of(out, i);
        for (int64_t j = 0; j < in->n; ++j) {
            const float *q = out->points + 3 * i, *p = in->points + 3 * j;
            if (!is_pair(c, p, q) || sample_of(in, j) != sample) continue;
            if (n == capacity) pairs = realloc(pairs, (size_t)(capacity *= 2) * sizeof *pairs);
            cr_assert(pairs != NULL, "no memory");
            pairs[n++] = (pair){(int32_t)i, (int32_t)j, tap_of(c, p, q)};
        }
    }
    qsort(pairs, (size_t)n, sizeof *pairs, by_row_and_tap);
    *num = n;
    return pairs;
}

// ---- Comparing ----------------------------------------------------------------------------------

static void download(test_device *d, void *to, const void *from, int64_t n, size_t size)
{
    cr_assert(n == 0 || device_download(d->backend, to, from, (size_t)n * size), "%s",
              device_error());
}

static void check_lists(test_device *d, const spops_neighbor_lists *lists, const pair *expected,
                        int64_t num, bool reversed, const char *what)
{
    int32_t *offsets = malloc((size_t)(lists->max_rows + 1) * 4),
            *rows = malloc((size_t)num * 4 + 1);
    uint16_t *taps = malloc((size_t)num * 2 + 1);
    int64_t p = 0;
    download(d, offsets, lists->offsets, lists->max_rows + 1, 4);
    download(d, rows, lists->rows, num, 4);
    download(d, taps, lists->taps, num, 2);
    cr_assert_eq(offsets[lists->max_rows], num, "%s: %d pairs, expected %lld", what,
                 offsets[lists->max_rows], (long long)num);
    for (int64_t r = 0; r < lists->max_rows; ++r) {
        cr_assert_eq(offsets[r], p, "%s: offsets[%lld]", what, (long long)r);
        for (; p < num && (reversed ? expected[p].in : expected[p].out) == r; ++p)
            cr_assert(rows[p] == (reversed ? expected[p].out : expected[p].in) &&
                          taps[p] == expected[p].tap,
                      "%s: pair %lld is (%lld, %d, %d), expected (%d, %d, %d)", what, (long long)p,
                      (long long)r, rows[p], taps[p], expected[p].out, expected[p].in,
                      expected[p].tap);
    }
    cr_assert_eq(p, num, "%s", what);
    free(offsets), free(rows), free(taps);
}

static int by_in_and_tap(const void *a, const void *b)
{
    const pair *p = a, *q = b;
    if (p->in != q->in) return p->in < q->in ? -1 : 1;
    if (p->tap != q->tap) return p->tap < q->tap ? -1 : 1;
    return p->out < q->out ? -1 : p->out > q->out;
}

static void check_neighbors(test_device *d, const spops_neighbors *found, pair *expected,
                            int64_t num, const char *what)
{
    spops_neighbors_view view = spops_neighbors_view_default();
    test_expect_ok(d->ctx, spops_neighbors_get_view(d->ctx, found, &view), what);
    check_lists(d, view.out, expected, num, false, what);
    if (view.in->offsets != NULL) {
        qsort(expected, (size_t)num, sizeof *expected, by_in_and_tap);
        check_lists(d, view.in, expected, num, true, what);
    }
    if (view.tap_offsets != NULL) {
        int32_t *offsets = malloc((size_t)(view.num_taps + 1) * 4);
        int32_t *in = malloc((size_t)num * 4 + 1), *out = malloc((size_t)num * 4 + 1);
        int64_t p = 0;
        qsort(expected, (size_t)num, sizeof *expected, by_tap);
        download(d, offsets, view.tap_offsets, view.num_taps + 1, 4);
        download(d, in, view.in_rows, num, 4);
        download(d, out, view.out_rows, num, 4);
        for (int32_t k = 0; k < view.num_taps; ++k) {
            cr_assert_eq(offsets[k], p, "%s: tap_offsets[%d]", what, k);
            for (; p < num && expected[p].tap == k; ++p)
                cr_assert(in[p] == expected[p].in && out[p] == expected[p].out,
                          "%s: pair %lld of tap %d", what, (long long)p, k);
        }
        cr_assert_eq(offsets[view.num_taps], num, "%s", what);
        free(offsets), free(in), free(out);
    }
    qsort(expected, (size_t)num, sizeof *expected, by_row_and_tap);
}

static spops_neighbors_options options_of(const cloud_case *c, int32_t contents)
{
    spops_neighbors_options o = spops_neighbors_options_default();
    o.radius_m = c->radius_m;
    o.metric = c->metric;
    o.taps = c->taps;
    o.tap_size_m = c->tap_size_m;
    o.contents = contents;
    return o;
}

// ---- Neighbours ---------------------------------------------------------------------------------

BackendTest(points, equal_brute_force)
{
    const int32_t both = SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE;
    test_device d;
    char what[256];
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < NUM_CASES; ++i) {
        const cloud_case *c = &cases[i];
        host_cloud in = make_cloud(c, c->n, 100 + (uint64_t)i);
        host_cloud out = make_cloud(c, c->n / 2, 200 + (uint64_t)i);
        device_cloud in_there = upload(&d, &in, in.n), out_there = upload(&d, &out, out.n);
        for (int same = 0; same < 2; ++same) {
            const spops_neighbors_options o = options_of(c, same ? both : i % 2 ? both : 0);
            spops_neighbors *found = NULL;
            int64_t num;
            pair *expected = brute_force(c, same ? &in : &out, &in, &num);
            test_describe(what, "%s, %s, %s", test_backend_name(d.backend), c->name,
                          same ? "same" : "others");
            test_expect_ok(d.ctx,
                           spops_neighbors_create(d.ctx, same ? NULL : &out_there.cloud,
                                                  &in_there.cloud, &o, &found),
                           what);
            check_neighbors(&d, found, expected, num, what);
            spops_neighbors_view view = spops_neighbors_view_default();
            test_expect_ok(d.ctx, spops_neighbors_get_view(d.ctx, found, &view), what);
            cr_assert_eq(view.mirrored, same && (c->taps == 0 || c->taps % 2 == 1), "%s", what);
            spops_neighbors_destroy(found);
            free(expected);
        }
        discard(&d, &in_there), discard(&d, &out_there);
        free_cloud(&in), free_cloud(&out);
    }
    test_close(&d);
}

// ---- At most so many neighbours -----------------------------------------------------------------

static uint32_t hash_of(uint32_t seed, uint32_t i)
{
    uint64_t h =
        ((uint64_t)i * 0x9e3779b9u ^ (uint64_t)(uint32_t)(seed + 0x7f4a7c15u) * 0x85ebca6bu) &
        UINT32_MAX;
    h = (h ^ h >> 16) * 0x21f0aaadu & UINT32_MAX;
    h = (h ^ h >> 15) * 0x735a2d97u & UINT32_MAX;
    return (uint32_t)(h ^ h >> 15);
}

static double rank_in(const spops_neighbors_options *o, const host_cloud *out, const host_cloud *in,
                      const pair *p)
{
    if (o->keep == SPOPS_NEIGHBORS_KEEP_FIRST) return 0.0;
    if (o->keep == SPOPS_NEIGHBORS_KEEP_RANDOM)
        return hash_of(hash_of(o->seed, (uint32_t)p->out), (uint32_t)p->in);
    return (double)distance2_of(in->points + 3 * p->in, out->points + 3 * p->out);
}

// Leaves the pairs with fewer than max_neighbors of their output's before them. Returns how many.
static int64_t cap_pairs(const spops_neighbors_options *o, const host_cloud *out,
                         const host_cloud *in, pair *pairs, int64_t num)
{
    double *ranks = malloc((size_t)num * sizeof *ranks + 1);
    bool *stays = malloc((size_t)num + 1);
    int64_t kept = 0;
    cr_assert(ranks != NULL && stays != NULL);
    for (int64_t i = 0; i < num; ++i)
        ranks[i] = rank_in(o, out, in, &pairs[i]);
    for (int64_t begin = 0, end; begin < num; begin = end) {
        for (end = begin; end < num && pairs[end].out == pairs[begin].out;)
            ++end;
        for (int64_t i = begin; i < end; ++i) {
            int64_t before = 0;
            for (int64_t j = begin; j < end; ++j)
                before +=
                    ranks[j] < ranks[i] || (ranks[j] == ranks[i] && pairs[j].in < pairs[i].in);
            stays[i] = before < o->max_neighbors;
        }
    }
    for (int64_t i = 0; i < num; ++i)
        if (stays[i]) pairs[kept++] = pairs[i];
    free(ranks), free(stays);
    return kept;
}

static spops_neighbors_options capped(const cloud_case *c, int32_t contents, int i)
{
    static const int32_t caps[] = {1, 7, 32, 33, SPOPS_MAX_NEIGHBORS};
    spops_neighbors_options o = options_of(c, contents);
    o.max_neighbors = caps[i % 5];
    o.keep = (spops_neighbors_keep)(i / 5 % 3);
    o.seed = 17u * (uint32_t)i;
    return o;
}

BackendTest(points, capped_equal_brute_force)
{
    const int32_t both = SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE;
    test_device d;
    char what[256];
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int n = 0; n < 3 * NUM_CASES; ++n) {
        const cloud_case *c = &cases[n / 3];
        host_cloud in = make_cloud(c, c->n, 1100 + (uint64_t)n);
        host_cloud out = make_cloud(c, c->n / 2, 1200 + (uint64_t)n);
        device_cloud in_there = upload(&d, &in, in.n), out_there = upload(&d, &out, out.n);
        for (int same = 0; same < 2; ++same) {
            const spops_neighbors_options o = capped(c, n % 2 ? both : 0, 2 * n + same);
            spops_neighbors_view view = spops_neighbors_view_default();
            spops_neighbors *found = NULL;
            int64_t num;
            pair *expected = brute_force(c, same ? &in : &out, &in, &num);
            num = cap_pairs(&o, same ? &in : &out, &in, expected, num);
            test_describe(what, "%s, %s, %s, %d by %d", test_backend_name(d.backend), c->name,
                          same ? "same" : "others", (int)o.max_neighbors, (int)o.keep);
            test_expect_ok(d.ctx,
                           spops_neighbors_create(d.ctx, same ? NULL : &out_there.cloud,
                                                  &in_there.cloud, &o, &found),
                           what);
            check_neighbors(&d, found, expected, num, what);
            test_expect_ok(d.ctx, spops_neighbors_get_view(d.ctx, found, &view), what);
            cr_assert(view.mirrored == 0 && view.max_pairs == num, "%s", what);
            spops_neighbors_destroy(found);
            free(expected);
        }
        discard(&d, &in_there), discard(&d, &out_there);
        free_cloud(&in), free_cloud(&out);
    }
    test_close(&d);
}

// Of eight neighbours each stays about as often as the others, and another seed keeps others.
Test(points, random_neighbors_are_equally_likely)
{
    enum { N = 8, KEPT = 2, SEEDS = 800 };
    float points[N][3] = {{0.0f}}, *const query = points[0];
    const spops_point_cloud in = {spops_matrix_dense(points, N, 3, SPOPS_DTYPE_F32), NULL, 0};
    const spops_point_cloud out = {spops_matrix_dense(query, 1, 3, SPOPS_DTYPE_F32), NULL, 0};
    spops_neighbors_options o = spops_neighbors_options_default();
    int seen[N] = {0};
    test_device d;
    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    o.max_neighbors = KEPT;
    o.keep = SPOPS_NEIGHBORS_KEEP_RANDOM;
    for (o.seed = 0; o.seed < SEEDS; ++o.seed) {
        spops_neighbors_view view = spops_neighbors_view_default();
        spops_neighbors *found = NULL;
        test_expect_ok(d.ctx, spops_neighbors_create(d.ctx, &out, &in, &o, &found), "create");
        test_expect_ok(d.ctx, spops_neighbors_get_view(d.ctx, found, &view), "view");
        for (int i = 0; i < KEPT; ++i)
            ++seen[view.out->rows[i]];
        spops_neighbors_destroy(found);
    }
    for (int i = 0; i < N; ++i) // of a binomial distribution: 200 and 5 times 12
        cr_assert(seen[i] > 140 && seen[i] < 260, "input %d: %d times", i, seen[i]);
    test_close(&d);
}

// ---- Capacities ---------------------------------------------------------------------------------

enum { MAX_IN = 1000, MAX_OUT = 600, MAX_SAMPLES = 300, MAX_PAIRS = 80000, MAX_CAPPED = 8500 };

static void fill_cloud(test_device *d, device_cloud *to, const host_cloud *from)
{
    int32_t offsets[MAX_SAMPLES + 1];
    for (int32_t b = 0; b <= MAX_SAMPLES; ++b)
        offsets[b] = b == 0                                    ? 0
                     : from->samples > 0 && b <= from->samples ? from->offsets[b]
                                                               : (int32_t)from->n;
    cr_assert(device_upload(d->backend, to->points, from->points, (size_t)from->n * 12) &&
                  device_upload(d->backend, to->offsets, offsets, sizeof offsets),
              "%s", device_error());
}

static void check_capacities(const struct launch_param *p, int32_t max_neighbors)
{
    const spops_neighbors_capacity shape = {MAX_OUT, MAX_IN, MAX_SAMPLES,
                                            max_neighbors > 0 ? MAX_CAPPED : MAX_PAIRS};
    const cloud_case rule = {"", UNIFORM, 0, 0, 0.12f, SPOPS_METRIC_BALL, 3, 0.07f};
    spops_neighbors_options o = options_of(&rule, SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE);
    static float nowhere[MAX_IN * 3];
    static int32_t no_offsets[MAX_SAMPLES + 1];
    host_cloud none = {0, nowhere, MAX_SAMPLES, no_offsets};
    spops_neighbors_info info = spops_neighbors_info_default();
    spops_neighbors *found = NULL;
    device_graph *graph = NULL;
    test_device d;
    o.max_neighbors = max_neighbors;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    device_cloud in = upload(&d, &none, MAX_IN), out = upload(&d, &none, MAX_OUT);

    test_expect_ok(d.ctx, spops_neighbors_reserve(d.ctx, &shape, 0, &o, &found), "reserve");
    pair nothing;
    check_neighbors(&d, found, &nothing, 0, "before the first set");
    if (d.launch == LAUNCH_CAPTURED) {
        cr_assert(device_capture_begin(d.stream), "%s", device_error());
        const spops_status status = spops_neighbors_update(d.ctx, found, &out.cloud, &in.cloud);
        cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
        test_expect_ok(d.ctx, status, "captured");
    }
    for (int i = 0; i < NUM_CASES + 3; ++i) {
        // After the cases: a point that is not finite, offsets that descend, too many pairs.
        const int extra = i - NUM_CASES;
        cloud_case c = cases[extra < 0 ? i : 3];
        int64_t num = 0;
        const int64_t most = max_neighbors > 0 ? max_neighbors : c.n;
        pair *expected = NULL;
        c.radius_m = rule.radius_m, c.metric = rule.metric;
        c.taps = rule.taps, c.tap_size_m = rule.tap_size_m;
        if (c.kind == SCAN || c.kind == ONE_CELL || c.kind == TINY) continue;
        if (extra == 2) c.kind = ONE_CELL;
        host_cloud from_in = make_cloud(&c, c.n, 300 + (uint64_t)i);
        host_cloud from_out = make_cloud(&c, c.n / 2, 400 + (uint64_t)i);
        if (extra == 0) from_in.points[3 * 17 + 1] = NAN, from_out.points[3 * 5] = INFINITY;
        fill_cloud(&d, &in, &from_in);
        fill_cloud(&d, &out, &from_out);
        if (extra == 1) {
            const int32_t bad = 7;
            cr_assert(device_upload(d.backend, in.offsets, &bad, 4), "%s", device_error());
        }
        if (extra <= 0) expected = brute_force(&c, &from_out, &from_in, &num);
        if (extra <= 0 && max_neighbors > 0)
            num = cap_pairs(&o, &from_out, &from_in, expected, num);
        if (graph != NULL)
            cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
        else
            test_expect_ok(d.ctx, spops_neighbors_update(d.ctx, found, &out.cloud, &in.cloud),
                           c.name);
        test_wait(&d);
        check_neighbors(&d, found, expected == NULL ? &nothing : expected, num, c.name);
        const spops_status status = spops_neighbors_get_info_sync(d.ctx, found, &info);
        cr_assert_eq(status, extra == 2 ? SPOPS_STATUS_CAPACITY_EXCEEDED : SPOPS_STATUS_OK, "%s",
                     c.name);
        cr_assert_eq(info.overflow, extra == 2, "%s", c.name);
        cr_assert_eq(info.num_pairs, extra == 2 ? most * (c.n / 2) : num, "%s", c.name);
        cr_assert_eq(info.num_dropped, extra == 0 ? 2 : 0, "%s", c.name);
        cr_assert_eq(info.bad_offsets, extra == 1, "%s", c.name);
        cr_assert_eq(info.num_inputs, extra == 1 ? 0 : c.n, "%s", c.name);
        free(expected);
        free_cloud(&from_in), free_cloud(&from_out);
    }
    device_graph_destroy(graph);
    spops_neighbors_destroy(found);
    discard(&d, &in), discard(&d, &out);
    test_close(&d);
}

ParameterizedTestParameters(points, fill_capacities)
{
    static struct launch_param params[] = {{SPOPS_BACKEND_CPU, LAUNCH_DEFAULT},
                                           {SPOPS_BACKEND_CUDA, LAUNCH_CAPTURED}};
    return tested_here(cr_make_param_array(struct launch_param, params, 2));
}
ParameterizedTest(struct launch_param *p, points, fill_capacities)
{
    check_capacities(p, 0);
    check_capacities(p, 20);
}

// ---- Nearest ------------------------------------------------------------------------------------

// The next in order among all, one after the other.
static void check_nearest(const cloud_case *c, const host_cloud *in, const host_cloud *out,
                          int32_t count, const int32_t *rows, const float *distances)
{
    for (int64_t q = 0; q < out->n; ++q) {
        const int32_t sample = sample_of(out, q);
        const float *at = out->points + 3 * q;
        float last = -1.0f;
        int32_t last_row = -1;
        for (int32_t k = 0; k < count; ++k) {
            float best = INFINITY;
            int32_t best_row = -1;
            for (int64_t j = 0; j < in->n && !isnan(at[1]); ++j) {
                const float distance = distance2_of(in->points + 3 * j, at);
                if (isnan(in->points[3 * j + 1])) continue;
                if (distance < last || (distance == last && j <= last_row)) continue;
                if (sample_of(in, j) != sample) continue;
                if (best_row < 0 || distance < best) best = distance, best_row = (int32_t)j;
            }
            cr_assert(rows[q * count + k] == best_row && distances[q * count + k] == best,
                      "%s: neighbour %d of %lld is %d at %g, expected %d at %g", c->name, k,
                      (long long)q, rows[q * count + k], (double)distances[q * count + k], best_row,
                      (double)best);
            last = best_row < 0 ? INFINITY : best;
            last_row = best_row < 0 ? INT32_MAX : best_row;
        }
    }
}

BackendTest(points, nearest_equal_brute_force)
{
    enum { SPARE = 5 };
    static const int32_t counts[] = {1, 3, 20, SPOPS_MAX_NEAREST};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int n = 0; n < 2 * NUM_CASES; ++n) {
        const int i = n / 2;
        const bool reserved = n % 2 == 1; // with room for more, and a point that is not finite
        const cloud_case *c = &cases[i];
        const int32_t count = counts[i % 4];
        host_cloud in = make_cloud(c, c->n, 500 + (uint64_t)i);
        host_cloud out = make_cloud(c, c->n / 3, 600 + (uint64_t)i);
        if (out.n > 2 && i % 2 == 0) out.points[4] = NAN;
        if (reserved && in.n > 5) in.points[3 * 5 + 1] = NAN;
        device_cloud in_there = upload(&d, &in, in.n + (reserved ? SPARE : 0));
        device_cloud out_there = upload(&d, &out, out.n);
        const int32_t all[] = {0, (int32_t)in.n};
        int32_t *all_there = test_upload_i32(&d, all, 2);
        const int64_t num_samples = c->samples > 0 ? c->samples : 1;
        spops_nearest *nearest = NULL;
        int32_t *rows = malloc((size_t)out.n * count * 4 + 1);
        float *distances = malloc((size_t)out.n * count * 4 + 1);
        void *rows_there, *distances_there;
        const size_t bytes = (size_t)out.n * (size_t)count * 4;
        cr_assert(device_alloc(d.backend, bytes, &rows_there) &&
                      device_alloc(d.backend, bytes, &distances_there),
                  "%s", device_error());
        if (reserved) {
            if (c->samples == 0) in_there.cloud.offsets = all_there, in_there.cloud.num_samples = 1;
            test_expect_ok(d.ctx,
                           spops_nearest_reserve(d.ctx, in.n + SPARE, num_samples, NULL, &nearest),
                           c->name);
            test_expect_ok(d.ctx, spops_nearest_update(d.ctx, nearest, &in_there.cloud), c->name);
        } else {
            test_expect_ok(d.ctx, spops_nearest_create(d.ctx, &in_there.cloud, &nearest), c->name);
        }
        test_expect_ok(d.ctx,
                       spops_nearest_execute(d.ctx, nearest, &out_there.cloud, count,
                                             (int32_t *)rows_there, (float *)distances_there),
                       c->name);
        test_wait(&d);
        download(&d, rows, rows_there, out.n * count, 4);
        download(&d, distances, distances_there, out.n * count, 4);
        check_nearest(c, &in, &out, count, rows, distances);
        spops_nearest_destroy(nearest);
        test_free(&d, rows_there), test_free(&d, distances_there), test_free(&d, all_there);
        free(rows), free(distances);
        discard(&d, &in_there), discard(&d, &out_there);
        free_cloud(&in), free_cloud(&out);
    }
    test_close(&d);
}

// Rows after the last offset of the queries have no sample, and so no neighbours.
BackendTest(points, nearest_of_rows_without_a_sample)
{
    enum { ROWS = 8, IN_SAMPLES = 5 };
    static const int32_t ends[] = {0, 2, 3, IN_SAMPLES};
    const cloud_case c = {"", UNIFORM, ROWS, 3, 0.1f, SPOPS_METRIC_BALL, 3, 0.1f};
    int32_t rows[ROWS];
    float distances[ROWS];
    spops_nearest *nearest = NULL;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    host_cloud in = make_cloud(&c, ROWS, 1);
    device_cloud there = upload(&d, &in, ROWS);
    int32_t *rows_there = test_upload_i32(&d, (const int32_t *)(const void *)in.points, ROWS);
    int32_t *distances_there = test_upload_i32(&d, (const int32_t *)(const void *)in.points, ROWS);
    int32_t *short_ends = test_upload_i32(&d, ends, 4);
    const spops_point_cloud queries = {there.cloud.points, short_ends, 3};
    test_expect_ok(d.ctx, spops_nearest_create(d.ctx, &there.cloud, &nearest), "nearest");
    test_expect_ok(d.ctx,
                   spops_nearest_execute(d.ctx, nearest, &queries, 1, rows_there,
                                         (float *)(void *)distances_there),
                   "execute");
    test_wait(&d);
    test_download_i32(&d, rows, rows_there, ROWS);
    test_download_i32(&d, (int32_t *)(void *)distances, distances_there, ROWS);
    for (int r = 0; r < ROWS; ++r) {
        const bool counts = r < IN_SAMPLES;
        cr_assert((rows[r] >= 0) == counts && (isinf(distances[r]) != 0) == !counts,
                  "row %d has neighbour %d at %g", r, rows[r], (double)distances[r]);
    }
    spops_nearest_destroy(nearest);
    test_free(&d, rows_there), test_free(&d, distances_there), test_free(&d, short_ends);
    discard(&d, &there);
    free_cloud(&in);
    test_close(&d);
}

// ---- Refusals -----------------------------------------------------------------------------------

#define REFUSED(call, fragment)                                                                    \
    do {                                                                                           \
        test_expect(d.ctx, call, SPOPS_STATUS_INVALID_ARGUMENT, fragment, fragment);               \
        cr_assert(found == NULL);                                                                  \
    } while (0)

BackendTest(points, refuse_what_is_wrong)
{
    static const int32_t descending[] = {0, 5, 3, 8}, late[] = {1, 5, 6, 8}, early[] = {0, 2, 3, 7};
    const cloud_case c = {"", UNIFORM, 8, 3, 0.1f, SPOPS_METRIC_BALL, 3, 0.1f};
    spops_neighbors_options o = options_of(&c, 0), good = o;
    spops_neighbors *found = NULL;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    host_cloud in = make_cloud(&c, 8, 1);
    device_cloud there = upload(&d, &in, 8);
    spops_point_cloud cloud = there.cloud;

    o.radius_m = -0.5f;
    REFUSED(spops_neighbors_create(d.ctx, NULL, &cloud, &o, &found), "radius_m is -0.5");
    o = good, o.tap_size_m = 0.0f;
    REFUSED(spops_neighbors_create(d.ctx, NULL, &cloud, &o, &found), "tap_size_m is 0");
    o = good, o.radius_m = 10.0f, o.max_neighbors = 1, o.max_pairs = 7;
    test_expect(d.ctx, spops_neighbors_create(d.ctx, NULL, &cloud, &o, &found),
                SPOPS_STATUS_NOT_SUPPORTED,
                "neighbors_create: there are 8 pairs, expected at most 7", "max_pairs");
    cr_assert(found == NULL);
    o.max_pairs = 8;
    test_expect_ok(d.ctx, spops_neighbors_create(d.ctx, NULL, &cloud, &o, &found), "max_pairs");
    spops_neighbors_destroy(found), found = NULL;
    o = good;
    REFUSED(spops_neighbors_create(d.ctx, NULL, NULL, &o, &found), "inputs is NULL");
    cloud.points.cols = 4;
    REFUSED(spops_neighbors_create(d.ctx, NULL, &cloud, &o, &found), "inputs->points");
    cloud = there.cloud, cloud.num_samples = 0;
    REFUSED(spops_neighbors_create(d.ctx, NULL, &cloud, &o, &found), "num_samples is 0");
    cloud = there.cloud;
    REFUSED(spops_neighbors_create(d.ctx, &(spops_point_cloud){cloud.points, NULL, 0}, &cloud, &o,
                                   &found),
            "outputs has 1 samples, expected 3");
    const int32_t *const wrong[] = {descending, late, early};
    const char *const message[] = {"offsets[2] is 3, less than offsets[1] = 5",
                                   "offsets[0] is 1, expected 0",
                                   "offsets[3] is 7, expected the 8"};
    for (int i = 0; i < 3; ++i) {
        cr_assert(device_upload(d.backend, there.offsets, wrong[i], 16), "%s", device_error());
        REFUSED(spops_neighbors_create(d.ctx, NULL, &cloud, &o, &found), message[i]);
    }
    cr_assert(device_upload(d.backend, there.offsets, in.offsets, 16), "%s", device_error());
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; ++i) {
        spops_nearest *nearest = NULL;
        in.points[3 * 6 + i] = bad[i];
        cr_assert(device_upload(d.backend, there.points, in.points, 96), "%s", device_error());
        REFUSED(spops_neighbors_create(d.ctx, NULL, &cloud, &o, &found), "inputs->points[6] is (");
        test_expect(d.ctx, spops_nearest_create(d.ctx, &cloud, &nearest),
                    SPOPS_STATUS_INVALID_ARGUMENT, "inputs->points[6] is (", "nearest");
        in.points[3 * 6 + i] = 0.0f;
    }
    cr_assert(device_upload(d.backend, there.points, in.points, 96), "%s", device_error());

    spops_neighbors *room = NULL;
    spops_neighbors_capacity shape = {4, 8, 3, 10};
    spops_point_cloud few = {spops_matrix_columns(cloud.points, 0, 3), cloud.offsets, 3};
    few.points.rows = 7;
    o = good;
    REFUSED(spops_neighbors_reserve(d.ctx, NULL, 0, &o, &found), "capacity is NULL");
    REFUSED(spops_neighbors_reserve(d.ctx, &shape, 2, &o, &found), "same is 2, expected 0 or 1");
    REFUSED(spops_neighbors_reserve(d.ctx, &shape, 1, &o, &found), "max_outputs is 4");
    shape.max_outputs = 0, shape.max_pairs = -1;
    REFUSED(spops_neighbors_reserve(d.ctx, &shape, 1, &o, &found), "max_pairs is -1");
    shape.max_pairs = 10, shape.max_samples = 0;
    REFUSED(spops_neighbors_reserve(d.ctx, &shape, 1, &o, &found), "max_samples is 0");
    shape.max_samples = 2;
    test_expect_ok(d.ctx, spops_neighbors_reserve(d.ctx, &shape, 1, &o, &room), "room");
    REFUSED(spops_neighbors_update(d.ctx, room, NULL, NULL), "inputs is NULL");
    REFUSED(spops_neighbors_update(d.ctx, room, &cloud, &cloud), "outputs is given, expected NULL");
    REFUSED(spops_neighbors_update(d.ctx, room, NULL, &few),
            "inputs->points.rows is 7, expected the");
    REFUSED(spops_neighbors_update(d.ctx, room, NULL, &cloud),
            "inputs has 3 samples, expected at most 2");
    spops_neighbors_destroy(room);

    spops_nearest *nearest = NULL;
    const spops_point_cloud together = {cloud.points, NULL, 0};
    int32_t *rows = test_upload_i32(&d, descending, 4);
    test_expect_ok(d.ctx, spops_nearest_create(d.ctx, &cloud, &nearest), "nearest");
#define NEAREST(queries, count, rows, d2, fragment)                                                \
    test_expect(d.ctx, spops_nearest_execute(d.ctx, nearest, queries, count, rows, d2),            \
                SPOPS_STATUS_INVALID_ARGUMENT, fragment, fragment)
    NEAREST(NULL, 1, rows, NULL, "queries is NULL");
    NEAREST(&together, 1, rows, NULL, "queries has 1 samples, expected 3");
#undef NEAREST
    test_expect(d.ctx, spops_nearest_update(d.ctx, nearest, &cloud), SPOPS_STATUS_INVALID_ARGUMENT,
                "nearest was not made by nearest_reserve", "update");
    spops_nearest_destroy(nearest), nearest = NULL;
    test_expect(d.ctx, spops_nearest_reserve(d.ctx, -1, 3, NULL, &nearest),
                SPOPS_STATUS_INVALID_ARGUMENT, "num_points is -1, expected 0 to", "rows");
    test_expect(d.ctx, spops_nearest_reserve(d.ctx, 8, 0, NULL, &nearest),
                SPOPS_STATUS_INVALID_ARGUMENT, "num_samples is 0, expected 1 to", "samples");
    test_expect_ok(d.ctx, spops_nearest_reserve(d.ctx, 8, 3, NULL, &nearest), "room");
    test_expect(d.ctx, spops_nearest_update(d.ctx, nearest, &few), SPOPS_STATUS_INVALID_ARGUMENT,
                "inputs->points.rows is 7, expected the capacity, 8", "rows");
    test_expect(d.ctx, spops_nearest_update(d.ctx, nearest, &together),
                SPOPS_STATUS_INVALID_ARGUMENT, "inputs has 1 samples, expected 3", "samples");
    spops_nearest_destroy(nearest);
    test_free(&d, rows);
    spops_neighbors_destroy(NULL);
    spops_nearest_destroy(NULL);
    discard(&d, &there);
    free_cloud(&in);
    test_close(&d);
}

// 46,400 points at one place have more pairs than an index can count.
BackendTest(points, refuse_too_many_pairs)
{
    const cloud_case c = {"", ONE_CELL, 46400, 0, 1.0f, SPOPS_METRIC_BALL, 1, 0.0f};
    const spops_neighbors_options o = options_of(&c, 0);
    spops_neighbors *found = NULL;
    test_device d;
    if (p->backend == SPOPS_BACKEND_CPU && test_quick()) return; // seconds of comparisons
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    host_cloud in = make_cloud(&c, c.n, 1);
    device_cloud there = upload(&d, &in, c.n);
    test_expect(d.ctx, spops_neighbors_create(d.ctx, NULL, &there.cloud, &o, &found),
                SPOPS_STATUS_NOT_SUPPORTED, "there are 2152960000 pairs", "pairs");
    cr_assert(found == NULL);
    discard(&d, &there);
    free_cloud(&in);
    test_close(&d);
}
