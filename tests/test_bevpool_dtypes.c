// SPDX-License-Identifier: Apache-2.0
// BEV pooling over the table of dtypes in spops/bevpool.h: every combination of feat, depth and out
// against FP64 on the very numbers the inputs hold, with and without scales, in both layouts;
// values that must stay where they are; and what spops_bevpool_execute refuses.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/bev_cases.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

enum { BLOCK = 16 };

#define BIT(name) (1u << SPOPS_DTYPE_##name)
typedef struct allowed_row {
    spops_dtype feat;
    unsigned depth, out;
} allowed_row;
static const allowed_row table[] = {
    {SPOPS_DTYPE_F32, BIT(F32), BIT(F32)},
    {SPOPS_DTYPE_F16, BIT(F16) | BIT(F32), BIT(F16) | BIT(F32)},
    {SPOPS_DTYPE_BF16, BIT(BF16) | BIT(F32), BIT(BF16) | BIT(F32)},
    {SPOPS_DTYPE_F8E4M3, BIT(F16) | BIT(F8E4M3), BIT(F16) | BIT(F32) | BIT(F8E4M3)},
    {SPOPS_DTYPE_F8E5M2, BIT(F16) | BIT(F8E5M2), BIT(F16) | BIT(F32) | BIT(F8E5M2)},
    {SPOPS_DTYPE_F4E2M1, BIT(F16) | BIT(F8E4M3), BIT(F16) | BIT(F32) | BIT(F8E4M3)},
};
enum { NUM_ROWS = 6, NUM_FLOATS = SPOPS_DTYPE_F4E2M1 + 1 };

static const allowed_row *row_of(spops_dtype feat)
{
    return &table[feat]; // the table is in the order of the dtypes
}

// ---- One call against the reference ----

typedef struct pool_case {
    spops_bev_plan *plan;
    const bev_map *map;
    spops_bev_layout layout;
    spops_dtype feat_dtype, depth_dtype, out_dtype;
    spops_accumulate accumulate;
    int64_t cols;
    bool scaled, spans;
    double factor; // of the sums, where scaled; else 1
    test_values feat_values, depth_values;
    uint64_t stream;
} pool_case;

enum { DEPTH, FEAT, FEAT_SCALES, SCALES }; // inputs; scales: feat's, depth's, out's

static const double scale_values[3] = {0.3712345, 1.9287, 1.33333}; // a product below 1

// Nothing is rounded to an infinity of f8e5m2, but it has them: here they are put in by their code.
static void put_infinities(guarded *g, double *values)
{
    for (int64_t r = 0; r < g->view.rows; ++r) {
        for (int64_t c = 0; c < g->view.cols; ++c) {
            double *v = &values[r * g->view.cols + c];
            if (fabs(*v) < 57344.0) continue;
            g->host[g->first + (size_t)(r * g->view.row_stride + c)] = *v > 0.0 ? 0x7c : 0xfc;
            *v = copysign((double)INFINITY, *v);
        }
    }
}

static void adjust(void *user, int version, test_rng *rng, guarded *const *in,
                   double *const *values)
{
    const pool_case *c = (const pool_case *)user;
    if (c->depth_dtype == SPOPS_DTYPE_F8E5M2 && c->depth_values == VALUES_INFINITE)
        put_infinities(in[DEPTH], values[DEPTH]);
    if (c->feat_dtype == SPOPS_DTYPE_F8E5M2 && c->feat_values == VALUES_INFINITE)
        put_infinities(in[FEAT], values[FEAT]);
    // Other scales in the second version: a captured graph reads them anew.
    for (int i = 0; i < 3; ++i) {
        guarded_set(in[SCALES], i, 0, scale_values[i] / (1 + version));
        values[SCALES][i] = guarded_get(in[SCALES], i, 0);
    }
    if (in[FEAT_SCALES] == NULL) return;
    const spops_matrix *m = &in[FEAT_SCALES]->view;
    for (int64_t i = 0; i < m->rows * m->cols; ++i) {
        // Exact: one, two and four. NaN and large ones where features are special.
        const bool special = c->feat_values == VALUES_NAN && test_rng_below(rng, 16) == 0;
        const double s = c->feat_values == VALUES_EXACT
                             ? (double)(1 << test_rng_below(rng, 3))
                             : fabs(test_value(rng, VALUES_RANDOM, SPOPS_DTYPE_F8E4M3, false, 1));
        guarded_set(in[FEAT_SCALES], i / m->cols, i % m->cols, special ? (double)NAN : s);
        values[FEAT_SCALES][i] = guarded_get(in[FEAT_SCALES], i / m->cols, i % m->cols);
    }
}

static void reference(void *user, const double *const *in, ref_tensor *const *out)
{
    pool_case *c = (pool_case *)user;
    const ref_bev_map *map = &c->map->ref;
    const int64_t blocks = (c->cols + BLOCK - 1) / BLOCK, num_values = map->num_features * c->cols;
    const double *scales = in[SCALES];
    double *feat = (double *)malloc((size_t)(num_values + 1) * sizeof *feat);
    ref_tensor expected = ref_tensor_create(map->num_cells, c->cols);
    cr_assert(feat != NULL, "out of memory");
    for (int64_t i = 0; i < num_values; ++i)
        feat[i] = in[FEAT_SCALES] == NULL
                      ? in[FEAT][i]
                      : in[FEAT][i] * in[FEAT_SCALES][i / c->cols * blocks + i % c->cols / BLOCK];
    ref_bevpool_forward(map, c->cols, in[DEPTH], feat, &expected);
    c->factor = c->scaled ? scales[0] * scales[1] * (1.0 / scales[2]) : 1.0;
    for (int64_t i = 0; c->scaled && i < map->num_cells * c->cols; ++i) {
        expected.value[i] *= c->factor;
        expected.scale[i] *= c->factor;
        expected.roundings[i] += 3.0; // two in the factor, one in its product
    }
    ref_bev_to_layout(&expected, c->layout, c->map->shape.num_batches, out[0]);
    ref_tensor_destroy(&expected);
    free(feat);
}

static spops_status run(void *user, spops_context *ctx, const spops_matrix *const *in,
                        const spops_matrix *const *out)
{
    const pool_case *c = (const pool_case *)user;
    const float *scales = (const float *)in[SCALES]->data;
    spops_bevpool_args pool = spops_bevpool_args_default();
    pool.layout = c->layout;
    pool.accumulate = c->accumulate;
    pool.depth = *in[DEPTH];
    pool.feat = *in[FEAT];
    pool.out = *out[0];
    pool.feat_scales = in[FEAT_SCALES];
    if (c->scaled) {
        pool.feat_scale = scales;
        pool.depth_scale = scales + in[SCALES]->row_stride;
        pool.out_scale = scales + 2 * in[SCALES]->row_stride;
    }
    return spops_bevpool_execute(ctx, c->plan, &pool);
}

// f32 sums round to nearest. Tensor cores align the terms of a product to its largest and cut off
// what lies below: four times the unit, of terms in which a subnormal factor counts as the dtype's
// smallest normal number, up to 2^10 times as large (f16) or 2^7 (bf16); 8 bits are widened to f16,
// where they are not subnormal.
static double unit_of(const pool_case *c)
{
    const bool subnormal = c->depth_values == VALUES_SUBNORMAL ||
                           (c->feat_values == VALUES_SUBNORMAL && c->feat_dtype == c->depth_dtype);
    if (c->feat_dtype == SPOPS_DTYPE_F32) return 0x1p-24;
    if (!c->spans) return 0x1p-23;
    if (subnormal && c->depth_dtype == SPOPS_DTYPE_F16) return 0x1p-12;
    if (subnormal && c->depth_dtype == SPOPS_DTYPE_BF16) return 0x1p-15;
    return 0x1p-22;
}

// What spops_accumulate promises, and the roundings of the scale, which it leaves out.
static double packed_bound(double n, double magnitude, double factor, double more)
{
    const double s = fmin(n, 16.0) * 0x1p-11 + (n + more) * 0x1p-23;
    return s / (1.0 - s) * magnitude + n * 0x1p-24 * factor + (n + more) * 0x1p-149;
}

// The bound of SPOPS_ACCUMULATE_F16.
static void verify_packed(void *user, const guarded *const *out, const ref_tensor *const *expected,
                          const char *what)
{
    const pool_case *c = (const pool_case *)user;
    const ref_tensor *e = expected[0];
    const double more = c->scaled ? 3.0 : 0.0;
    double *bounds = (double *)calloc((size_t)(e->rows * e->cols) + 1, sizeof *bounds);
    cr_assert(bounds != NULL, "out of memory");
    for (int64_t i = 0; i < e->rows * e->cols; ++i)
        bounds[i] = packed_bound(e->roundings[i] - more, e->scale[i], c->factor, more);
    guarded_check_bounds(out[0], e, bounds, what);
    free(bounds);
}

static void check_pool(test_device *d, pool_case *c, int64_t padding, int64_t shift,
                       const char *map_name)
{
    char text[256];
    const ref_bev_map *map = &c->map->ref;
    const spops_bev_shape *s = &c->map->shape;
    const bool first = c->layout == SPOPS_BEV_CHANNELS_FIRST;
    const int64_t rows = first ? s->num_batches * c->cols : map->num_cells;
    const int64_t cols = first ? map->num_cells / s->num_batches : c->cols;
    const bool blocks = c->feat_dtype == SPOPS_DTYPE_F4E2M1;
    const bool packed = c->accumulate == SPOPS_ACCUMULATE_F16;
    const bool exact =
        c->feat_values == VALUES_EXACT && c->depth_values == VALUES_EXACT && !c->scaled;
    // Spans serve rows of multiples of 16 bytes, 4 bits as f16.
    const int64_t row_bytes = c->cols * (blocks ? 2 : (int64_t)test_dtype_bytes(c->feat_dtype));
    c->spans = row_bytes % 16 == 0 && bev_info(d, c->plan).kernel == SPOPS_BEV_KERNEL_SPANS;
    test_operator op = {.what = test_describe(text, "%s, channels %s, scales %d, f%d, features %s",
                                              map_name, first ? "first" : "last", c->scaled,
                                              packed ? 16 : 32, test_values_name(c->feat_values)),
                        .stream = c->stream,
                        .scratch_bytes = spops_bev_plan_scratch_bytes(c->plan),
                        .user = c,
                        .run = run,
                        .reference = reference,
                        .adjust = adjust,
                        .verify = packed ? verify_packed : NULL};
    op.in[DEPTH] = test_view(
        test_input("depth", map->num_depths, 1, c->depth_dtype, c->depth_values), 0, shift);
    op.in[FEAT] =
        test_view(test_input("feat", map->num_features, c->cols, c->feat_dtype, c->feat_values),
                  2 * padding, 2 * shift);
    if (blocks)
        op.in[FEAT_SCALES] =
            test_view(test_input("feat_scales", map->num_features, (c->cols + BLOCK - 1) / BLOCK,
                                 SPOPS_DTYPE_F8E4M3, VALUES_EXACT),
                      padding, shift);
    op.in[SCALES] =
        test_view(test_input("scales", 3, 1, SPOPS_DTYPE_F32, VALUES_EXACT), padding, 0);
    op.out[0] =
        test_view(test_output("out", rows, cols, c->out_dtype, exact ? CHECK_EXACT : CHECK_BOUND),
                  padding, shift);
    op.out[0].unit = unit_of(c);
    test_operator_run(d, &op);
}

static struct criterion_test_params every_feature_dtype(void)
{
    spops_dtype dtypes[NUM_ROWS];
    for (int t = 0; t < NUM_ROWS; ++t)
        dtypes[t] = table[t].feat;
    return every_case(dtypes, NUM_ROWS, NULL, 0);
}

// Channel counts of f4e2m1 are even.
static int64_t cols_of(spops_dtype feat, int64_t cols)
{
    return feat == SPOPS_DTYPE_F4E2M1 ? cols + cols % 2 : cols;
}

// Every depth and out dtype that goes with `feat`, in both layouts.
static void check_map(test_device *d, const bev_map *map, spops_bev_plan *plan, spops_dtype feat,
                      int64_t cols, test_values feat_values, test_values depth_values,
                      uint64_t stream, const char *name)
{
    const allowed_row *row = row_of(feat);
    for (int depth = 0; depth < NUM_FLOATS; ++depth) {
        for (int out = 0; out < NUM_FLOATS; ++out) {
            if ((row->depth & 1u << depth) == 0 || (row->out & 1u << out) == 0) continue;
            for (int i = 0; i < 2; ++i) {
                test_rng rng = test_rng_make(++stream * 977);
                pool_case c = {.plan = plan, .map = map, .cols = cols, .stream = stream};
                c.feat_dtype = feat;
                c.depth_dtype = (spops_dtype)depth;
                c.out_dtype = (spops_dtype)out;
                c.layout = i == 0 ? SPOPS_BEV_CHANNELS_LAST : SPOPS_BEV_CHANNELS_FIRST;
                c.scaled = test_rng_below(&rng, 2) == 0;
                c.feat_values = feat_values;
                c.depth_values = depth_values;
                check_pool(d, &c, test_rng_below(&rng, 2) * 3, test_rng_below(&rng, 2), name);
            }
        }
    }
}

CaseTest(bevpool_dtypes, agree_on_maps, every_feature_dtype(), .timeout = 900)
{
    static const int64_t all_cols[] = {1, 3, 16, 17, 33, 80, 128, 200, 256};
    static const test_values kinds[] = {VALUES_RANDOM, VALUES_EXACT, VALUES_CANCEL,
                                        VALUES_SUBNORMAL, VALUES_ZEROS};
    static const spops_bev_shape shape = {2, 2, 6, 3, 5, 9, 7, 1};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = (uint64_t)(p->dtype * 8 + p->launch) << 32;
    for (int i = 0; i < 18; ++i) {
        char text[256];
        const int k = i / 2;
        const bool distinct = i % 2 == 1;
        if (test_quick() && k % 3 != 1) continue;
        test_rng rng = test_rng_make(stream += 100);
        const int64_t cols = cols_of((spops_dtype)p->dtype, all_cols[k]);
        bev_map map = distinct ? bev_map_distinct(&shape, 120 + 30 * k, &rng)
                               : bev_map_random(&shape, 100 + 150 * k, k % 2 == 0, &rng);
        spops_bev_plan *plan = NULL;
        spops_bev_options options = spops_bev_options_default();
        options.max_cols = k % 2 == 0 ? 0 : cols;
        const char *name = test_describe(text, "%s map %d", distinct ? "distinct" : "random", k);
        test_expect_ok(d.ctx, bev_map_plan(&d, &map, &options, &plan), name);
        if (distinct) bev_expect_forced(&d, plan, name);
        check_map(&d, &map, plan, (spops_dtype)p->dtype, cols, kinds[k % 5], kinds[(k + k / 5) % 5],
                  stream, name);
        spops_bev_plan_destroy(plan);
        bev_map_free(&map);
    }
    test_close(&d);
}

// One cell owns all points but one: its segment is split in many pieces.
CaseTest(bevpool_dtypes, agree_on_one_full_cell, every_feature_dtype(), .timeout = 900)
{
    enum { POINTS = 7000 };
    static const spops_bev_shape shape = {1, 1, 50, 10, 14, 4, 3, 1};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    static int32_t depth_of[POINTS], feat_of[POINTS], cell_of[POINTS];
    static int32_t starts[] = {0, POINTS - 1}, lengths[] = {POINTS - 1, 1};
    test_rng rng = test_rng_make(4711);
    for (int i = 0; i < POINTS; ++i) {
        depth_of[i] = i;
        feat_of[i] = (int32_t)test_rng_below(&rng, 140);
        cell_of[i] = i < POINTS - 1 ? 7 : 2;
    }
    bev_map map = {.shape = shape,
                   .num_intervals = 2,
                   .depth_of = depth_of,
                   .feat_of = feat_of,
                   .cell_of = cell_of,
                   .starts = starts,
                   .lengths = lengths,
                   .ref = {POINTS, 12, 140, POINTS, depth_of, feat_of, cell_of}};
    spops_bev_plan *plan = NULL;
    test_expect_ok(d.ctx, bev_map_plan(&d, &map, NULL, &plan), "one full cell");
    static const int64_t all_cols[] = {80, 17, 130};
    for (int k = 0; k < 3; ++k)
        check_map(&d, &map, plan, (spops_dtype)p->dtype,
                  cols_of((spops_dtype)p->dtype, all_cols[k]),
                  k == 1 ? VALUES_EXACT : VALUES_RANDOM, k == 1 ? VALUES_EXACT : VALUES_RANDOM,
                  (uint64_t)(p->dtype * 64 + p->launch * 8 + k) << 20, "one full cell");
    spops_bev_plan_destroy(plan);
    test_close(&d);
}

// Infinities and NaN of a point stay in its cell and column, and a depth of zero does not hide
// them.
CaseTest(bevpool_dtypes, keep_special_values_apart, every_feature_dtype(), .timeout = 900)
{
    static const spops_bev_shape shape = {1, 3, 8, 4, 6, 16, 12, 1};
    static const int64_t all_cols[] = {17, 80, 128};
    static const struct {
        test_values feat, depth;
    } kinds[] = {{VALUES_INFINITE, VALUES_ZEROS},
                 {VALUES_NAN, VALUES_ZEROS},
                 {VALUES_RANDOM, VALUES_NAN},
                 {VALUES_EXACT, VALUES_INFINITE},
                 {VALUES_LARGE, VALUES_RANDOM}}; // finite, and so are their sums, in bf16
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = (uint64_t)(p->dtype * 8 + p->launch + 1000) << 32;
    for (int i = 0; i < 6; ++i) {
        const bool distinct = i % 2 == 1;
        if (test_quick() && i != 0 && i != 3) continue; // one map of either kind
        test_rng rng = test_rng_make(stream += 100);
        bev_map map = distinct ? bev_map_distinct(&shape, 500, &rng)
                               : bev_map_random(&shape, 500, true, &rng);
        spops_bev_plan *plan = NULL;
        test_expect_ok(d.ctx, bev_map_plan(&d, &map, NULL, &plan), "special values");
        if (distinct) bev_expect_forced(&d, plan, "special values");
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; ++k) {
            if (kinds[k].feat == VALUES_LARGE && p->dtype != SPOPS_DTYPE_BF16) continue;
            check_map(&d, &map, plan, (spops_dtype)p->dtype,
                      cols_of((spops_dtype)p->dtype, all_cols[i / 2]), kinds[k].feat,
                      kinds[k].depth, stream += 100, "special values");
        }
        spops_bev_plan_destroy(plan);
        bev_map_free(&map);
    }
    test_close(&d);
}

CaseTest(bevpool_dtypes, agree_on_real_map, every_feature_dtype(), .timeout = 900)
{
    test_device d;
    bev_geometry_case g;
    if (test_quick() || !bev_geometry_real('a', 'A', &g)) return;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) {
        bev_geometry_free(&g);
        return;
    }
    spops_bev_plan *plan = NULL;
    test_expect_ok(d.ctx, bev_plan_create(&d, &g.geometry, NULL, &plan), "create");
    bev_map map = bev_map_of_plan(&d, plan);
    bev_expect_forced(&d, plan, "nuscenes_a, setting A");
    const allowed_row *row = row_of((spops_dtype)p->dtype);
    uint64_t stream = (uint64_t)(p->dtype * 8 + p->launch + 2000) << 32;
    int i = 0;
    for (int depth = 0; depth < NUM_FLOATS; ++depth) {
        for (int out = 0; out < NUM_FLOATS; ++out) {
            if ((row->depth & 1u << depth) == 0 || (row->out & 1u << out) == 0) continue;
            pool_case c = {.plan = plan, .map = &map, .cols = i == 0 ? 80 : 48, .stream = ++stream};
            c.layout = i % 2 == 0 ? SPOPS_BEV_CHANNELS_LAST : SPOPS_BEV_CHANNELS_FIRST;
            c.feat_dtype = row->feat;
            c.depth_dtype = (spops_dtype)depth;
            c.out_dtype = (spops_dtype)out;
            c.scaled = i % 2 == 0;
            c.feat_values = c.depth_values = i == 1 ? VALUES_EXACT : VALUES_RANDOM;
            check_pool(&d, &c, 0, 0, "nuscenes_a, setting A");
            ++i;
        }
    }
    spops_bev_plan_destroy(plan);
    bev_map_free(&map), bev_geometry_free(&g);
    test_close(&d);
}

// SPOPS_ACCUMULATE_F16 is held to its own bound. No sum here comes near f16's largest number.
static void check_packed_map(test_device *d, const bev_map *map, spops_bev_plan *plan,
                             spops_dtype feat, int64_t cols, uint64_t stream, const char *name)
{
    static const spops_dtype outs[] = {SPOPS_DTYPE_F32, SPOPS_DTYPE_F16};
    enum { KINDS = 5 };
    static const test_values kinds[KINDS][2] = {{VALUES_RANDOM, VALUES_RANDOM},
                                                {VALUES_EXACT, VALUES_EXACT},
                                                {VALUES_SUBNORMAL, VALUES_SUBNORMAL},
                                                {VALUES_NAN, VALUES_ZEROS},
                                                {VALUES_INFINITE, VALUES_RANDOM}};
    const allowed_row *row = row_of(feat);
    int i = 0;
    for (int depth = 0; depth < NUM_FLOATS; ++depth) {
        for (int k = 0; k < KINDS; ++k, ++i) {
            if ((row->depth & 1u << depth) == 0) continue;
            const spops_dtype out = outs[i % 2];
            pool_case c = {.plan = plan, .map = map, .cols = cols, .stream = stream + i};
            c.accumulate = SPOPS_ACCUMULATE_F16;
            c.feat_dtype = feat;
            c.depth_dtype = (spops_dtype)depth;
            c.out_dtype = (row->out & 1u << out) != 0 ? out : SPOPS_DTYPE_F32;
            if ((row->out & 1u << c.out_dtype) == 0) c.out_dtype = feat;
            c.layout = i / 2 % 2 == 0 ? SPOPS_BEV_CHANNELS_LAST : SPOPS_BEV_CHANNELS_FIRST;
            c.scaled = i % 3 == 1;
            c.feat_values = kinds[k][0];
            c.depth_values = kinds[k][1];
            check_pool(d, &c, 0, 0, name);
        }
    }
}

CaseTest(bevpool_dtypes, accumulate_in_f16, every_feature_dtype(), .timeout = 900)
{
    static const spops_bev_shape shape = {1, 2, 6, 4, 5, 9, 7, 2},
                                 few_cells = {1, 2, 40, 4, 5, 5, 3, 1};
    static const int64_t all_cols[] = {80, 18, 256, 24, 16};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    test_rng rng = test_rng_make(16);
    bev_map small = bev_map_random(&shape, 400, true, &rng);
    bev_map full = bev_map_random(&few_cells, 3000, true, &rng); // runs end within a cell
    const uint64_t stream = (uint64_t)(p->dtype * 8 + p->launch + 3000) << 32;
    for (int i = 0; i < 10; ++i) {
        const bev_map *map = i % 2 == 0 ? &small : &full;
        const int64_t cols = all_cols[i / 2];
        const char *name = i % 2 == 0 ? "random map" : "full cells";
        spops_bev_plan *plan = NULL;
        spops_bev_options options = spops_bev_options_default();
        options.max_cols = i % 4 < 2 ? 0 : cols;
        test_expect_ok(d.ctx, bev_map_plan(&d, map, &options, &plan), name);
        check_packed_map(&d, map, plan, (spops_dtype)p->dtype, cols, stream + 50 * (uint64_t)i,
                         name);
        spops_bev_plan_destroy(plan);
    }
    bev_map_free(&small), bev_map_free(&full);
    test_close(&d);
}

// Plans whose counts only the device knows run other kernels.
CaseTest(bevpool_dtypes, agree_in_plans_of_a_capacity, every_feature_dtype(), .timeout = 900)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    bev_geometry_case g = bev_geometry_simulate(1, 3, 0.3);
    spops_bev_plan *plan = NULL;
    test_expect_ok(d.ctx, spops_bev_plan_reserve(d.ctx, &g.geometry, NULL, &plan), "reserve");
    bev_map map = bev_map_of_plan(&d, plan);
    const spops_dtype feat = (spops_dtype)p->dtype;
    const uint64_t stream = (uint64_t)(p->dtype * 8 + p->launch + 5000) << 32;
    cr_assert(map.ref.num_points > 0, "the plan is empty");
    check_map(&d, &map, plan, feat, 80, VALUES_RANDOM, VALUES_RANDOM, stream, "capacity");
    check_map(&d, &map, plan, feat, 16, VALUES_EXACT, VALUES_EXACT, stream + 1000, "capacity");
    check_packed_map(&d, &map, plan, feat, 48, stream + 2000, "capacity");
    spops_bev_plan_destroy(plan);
    bev_map_free(&map), bev_geometry_free(&g);
    test_close(&d);
}

// One cell, so wide that one group of lanes adds up all of its terms: a 2048 and then ones, which
// an f16 that holds 2048 is too coarse for. Only a sum whose runs end meets its bound. Then terms
// that overflow f16 together: an infinity or the sum; and the sum where a scale keeps them small.
BackendTest(bevpool_dtypes, runs_in_f16_end)
{
    enum { POINTS = 256, COLS = 2048 };
    static const spops_bev_shape shape = {1, 1, POINTS / 16, 4, 4, 1, 1, 1};
    static int32_t point[POINTS], pixel[POINTS], cell[POINTS], starts[] = {0}, lengths[] = {POINTS};
    static const struct {
        double first, other, scale; // depth of the first point and of the others
    } cases[] = {{2048.0, 1.0, 1.0}, {30000.0, 30000.0, 1.0}, {234.375, 234.375, 128.0}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int32_t i = 0; i < POINTS; ++i) {
        point[i] = i;
        pixel[i] = i % 16;
    }
    const bev_map map = {.shape = shape,
                         .num_intervals = 1,
                         .depth_of = point,
                         .feat_of = pixel,
                         .cell_of = cell,
                         .starts = starts,
                         .lengths = lengths,
                         .ref = {POINTS, 1, 16, POINTS, point, pixel, cell}};
    spops_bev_plan *plan = NULL;
    spops_bev_options options = spops_bev_options_default();
    options.max_cols = COLS;
    options.kernel = SPOPS_BEV_KERNEL_INTERVALS;
    test_expect_ok(d.ctx, bev_map_plan(&d, &map, &options, &plan), "plan");
    static const spops_dtype feats[] = {SPOPS_DTYPE_F16, SPOPS_DTYPE_F8E4M3, SPOPS_DTYPE_F8E5M2};
    for (int t = 0; t < 3; ++t) {
        guarded depth = guarded_create(d.backend, "depth", POINTS, 1, 0, 0, SPOPS_DTYPE_F16);
        guarded feat = guarded_create(d.backend, "feat", 16, COLS, 0, 0, feats[t]);
        guarded scale = guarded_create(d.backend, "scale", 1, 1, 0, 0, SPOPS_DTYPE_F32);
        guarded out = guarded_create(d.backend, "out", 1, COLS, 0, 0, SPOPS_DTYPE_F32);
        for (int64_t i = 0; i < 16 * COLS; ++i)
            guarded_set(&feat, i / COLS, i % COLS, 1.0);
        guarded_upload(&feat);
        for (int k = 0; k < 3; ++k) {
            for (int32_t i = 0; i < POINTS; ++i)
                guarded_set(&depth, i, 0, i == 0 ? cases[k].first : cases[k].other);
            guarded_set(&scale, 0, 0, cases[k].scale);
            guarded_upload(&depth), guarded_upload(&scale), guarded_upload(&out);
            spops_bevpool_args pool = spops_bevpool_args_default();
            pool.accumulate = SPOPS_ACCUMULATE_F16;
            pool.depth = depth.view, pool.feat = feat.view, pool.out = out.view;
            pool.depth_scale = (const float *)scale.view.data;
            test_expect_ok(d.ctx, spops_bevpool_execute(d.ctx, plan, &pool), "ends");
            test_wait(&d);
            guarded_download(&out);
            const double sum = (cases[k].first + (POINTS - 1) * cases[k].other) * cases[k].scale;
            const double bound = packed_bound(POINTS, sum, cases[k].scale, 1.0);
            for (int64_t i = 0; i < COLS; ++i) {
                const double got = guarded_get(&out, 0, i);
                const bool overflowed = k == 1 && isinf(got) && got > 0.0;
                cr_assert(overflowed || fabs(got - sum) <= bound,
                          "%s, case %d, column %d is %g, expected %g +- %g",
                          test_dtype_name(feats[t]), k, (int)i, got, sum, bound);
            }
        }
        guarded_destroy(&depth), guarded_destroy(&feat);
        guarded_destroy(&scale), guarded_destroy(&out);
    }
    spops_bev_plan_destroy(plan);
    test_close(&d);
}

// Each f16 value is a cell's only depth, and every feature is one: 8-bit outputs must be the
// nearest to it, in every column, whole vectors or not.
BackendTest(bevpool_dtypes, round_every_f16)
{
    enum { POINTS = 65536, PIXELS = 256, WIDTH = 17 };
    static const spops_bev_shape shape = {1, 1, POINTS / PIXELS, 16, 16, 256, 256, 1};
    static const spops_dtype outs[] = {SPOPS_DTYPE_F8E4M3, SPOPS_DTYPE_F8E5M2, SPOPS_DTYPE_F16};
    static int32_t feat_of[POINTS], same[POINTS], ones[POINTS];
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int32_t i = 0; i < POINTS; ++i) {
        feat_of[i] = i % PIXELS;
        same[i] = i;
        ones[i] = 1;
    }
    const bev_map map = {.shape = shape,
                         .num_intervals = POINTS,
                         .depth_of = same,
                         .feat_of = feat_of,
                         .cell_of = same,
                         .starts = same,
                         .lengths = ones,
                         .ref = {POINTS, POINTS, PIXELS, POINTS, same, feat_of, same}};
    spops_bev_plan *plan = NULL;
    test_expect_ok(d.ctx, bev_map_plan(&d, &map, NULL, &plan), "plan");
    guarded depth = guarded_create(d.backend, "depth", POINTS, 1, 0, 0, SPOPS_DTYPE_F16);
    for (int32_t i = 0; i < POINTS; ++i) {
        const uint16_t bits = (uint16_t)i;
        memcpy(depth.host + depth.first + sizeof bits * (size_t)i, &bits, sizeof bits);
    }
    guarded_upload(&depth);
    for (int t = 0; t < 3; ++t) {
        const spops_dtype feat_dtype =
            outs[t] == SPOPS_DTYPE_F8E5M2 ? SPOPS_DTYPE_F8E5M2 : SPOPS_DTYPE_F8E4M3;
        guarded feat = guarded_create(d.backend, "feat", PIXELS, WIDTH, 0, 0, feat_dtype);
        guarded out = guarded_create(d.backend, "out", POINTS, WIDTH, 0, 0, outs[t]);
        for (int64_t i = 0; i < (int64_t)PIXELS * WIDTH; ++i)
            guarded_set(&feat, i / WIDTH, i % WIDTH, 1.0);
        guarded_upload(&feat), guarded_upload(&out);
        test_expect_ok(
            d.ctx,
            bev_execute(d.ctx, plan, SPOPS_BEV_CHANNELS_LAST, depth.view, feat.view, out.view),
            "execute");
        test_wait(&d);
        guarded_download(&out);
        for (int64_t i = 0; i < POINTS; ++i) {
            const double v = guarded_get(&depth, i, 0), expected = test_round(v, outs[t]);
            for (int64_t c = 0; c < WIDTH; ++c) {
                const double got = guarded_get(&out, i, c);
                cr_assert(isnan(v) ? isnan(got) : got == expected,
                          "%s: %.9g is stored as %g, expected %g", test_dtype_name(outs[t]), v, got,
                          expected);
            }
        }
        guarded_destroy(&feat), guarded_destroy(&out);
    }
    guarded_destroy(&depth);
    spops_bev_plan_destroy(plan);
    test_close(&d);
}

// ---- The two calls, and what they refuse ----

enum { COLS = 34, BLOCKS = 3 };

// A small plan and matrices of every kind that fit it.
typedef struct pool_setup {
    bev_map map;
    spops_bev_plan *plan;
    guarded feat[NUM_FLOATS], depth[NUM_FLOATS], out[NUM_FLOATS], feat_scales, scale;
} pool_setup;

static pool_setup set_up(test_device *d)
{
    static const spops_bev_shape shape = {1, 1, 4, 3, 3, 5, 4, 1};
    pool_setup s;
    test_rng rng = test_rng_make(5);
    memset(&s, 0, sizeof s);
    s.map = bev_map_random(&shape, 30, true, &rng);
    spops_bev_options options = spops_bev_options_default();
    options.backward = 1;
    options.max_cols = COLS;
    test_expect_ok(d->ctx, bev_map_plan(d, &s.map, &options, &s.plan), "plan");
    const ref_bev_map *m = &s.map.ref;
    for (int t = 0; t < NUM_FLOATS; ++t) {
        const spops_dtype dtype = (spops_dtype)t;
        s.feat[t] = guarded_create(d->backend, "feat", m->num_features, COLS, 0, 0, dtype);
        const bool four = dtype == SPOPS_DTYPE_F4E2M1;
        s.depth[t] = guarded_create(d->backend, "depth", m->num_depths, four ? 2 : 1, 0, 0, dtype);
        s.out[t] = guarded_create(d->backend, "out", m->num_cells, COLS, 0, 0, dtype);
        free(guarded_fill(&s.feat[t], &rng, VALUES_RANDOM, false, 1));
        free(guarded_fill(&s.depth[t], &rng, VALUES_RANDOM, false, 1));
        guarded_upload(&s.feat[t]), guarded_upload(&s.depth[t]), guarded_upload(&s.out[t]);
    }
    s.feat_scales = guarded_create(d->backend, "feat_scales", m->num_features, BLOCKS, 0, 0,
                                   SPOPS_DTYPE_F8E4M3);
    s.scale = guarded_create(d->backend, "scale", 2, 1, 0, 0, SPOPS_DTYPE_F32);
    free(guarded_fill(&s.feat_scales, &rng, VALUES_RANDOM, false, 1));
    guarded_upload(&s.feat_scales), guarded_upload(&s.scale);
    return s;
}

static void tear_down(pool_setup *s)
{
    for (int t = 0; t < NUM_FLOATS; ++t)
        guarded_destroy(&s->feat[t]), guarded_destroy(&s->depth[t]), guarded_destroy(&s->out[t]);
    guarded_destroy(&s->feat_scales), guarded_destroy(&s->scale);
    spops_bev_plan_destroy(s->plan);
    bev_map_free(&s->map);
}

// A struct without its tail is one whose tail is zero, bit for bit.
BackendTest(bevpool_dtypes, shorter_args)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    pool_setup s = set_up(&d);
    for (int t = 0; t < SPOPS_DTYPE_F4E2M1; ++t) {
        for (int out = 0; out < NUM_FLOATS; ++out) {
            const allowed_row *row = row_of((spops_dtype)t);
            if ((row->out & 1u << out) == 0) continue;
            const int w = (row->depth & 1u << t) != 0 ? t : SPOPS_DTYPE_F16;
            guarded *o = &s.out[out];
            guarded_poison(o, 0xff);
            guarded_upload(o);
            test_expect_ok(d.ctx,
                           bev_execute(d.ctx, s.plan, SPOPS_BEV_CHANNELS_LAST, s.depth[w].view,
                                       s.feat[t].view, o->view),
                           "execute");
            test_wait(&d);
            guarded_download(o);
            unsigned char *elements = guarded_elements(o);
            spops_bevpool_args pool = spops_bevpool_args_default();
            pool.depth = s.depth[w].view;
            pool.feat = s.feat[t].view;
            pool.out = o->view;
            // The garbage after is not looked at.
            pool.struct_size = offsetof(spops_bevpool_args, feat_scales);
            pool.feat_scales = (const spops_matrix *)(const void *)&pool;
            pool.feat_scale = pool.depth_scale = pool.out_scale =
                (const float *)(const void *)((const char *)&pool + 1);
            guarded_poison(o, 0xa5);
            guarded_upload(o);
            test_expect_ok(d.ctx, spops_bevpool_execute(d.ctx, s.plan, &pool), "shorter");
            test_wait(&d);
            guarded_download(o);
            guarded_check_bits(o, elements, "shorter args");
            free(elements);
        }
    }
    tear_down(&s);
    test_close(&d);
}

BackendTest(bevpool_dtypes, refuse)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    pool_setup s = set_up(&d);
    spops_context *ctx = d.ctx;
    char text[256];

    // Every combination that is not in the table, by the name of what does not fit.
    for (int t = 0; t < NUM_FLOATS; ++t) {
        for (int w = 0; w < NUM_FLOATS; ++w) {
            for (int o = 0; o < NUM_FLOATS; ++o) {
                const allowed_row *row = row_of((spops_dtype)t);
                const bool depth_fits = (row->depth & 1u << w) != 0;
                const bool out_fits = (row->out & 1u << o) != 0;
                if (depth_fits && out_fits) continue;
                spops_bevpool_args pool = spops_bevpool_args_default();
                pool.depth = s.depth[w].view;
                pool.feat = s.feat[t].view;
                pool.out = s.out[o].view;
                if (t == SPOPS_DTYPE_F4E2M1) pool.feat_scales = &s.feat_scales.view;
                char fragment[64];
                (void)snprintf(fragment, sizeof fragment, "%s.dtype is %s",
                               depth_fits ? "out"
                               : out_fits ? "depth"
                                          : "", // either of two
                               depth_fits || out_fits
                                   ? test_dtype_name((spops_dtype)(depth_fits ? o : w))
                                   : "");
                test_describe(text, "%s x %s -> %s", test_dtype_name((spops_dtype)t),
                              test_dtype_name((spops_dtype)w), test_dtype_name((spops_dtype)o));
                test_expect(ctx, spops_bevpool_execute(ctx, s.plan, &pool), invalid, fragment,
                            text);
            }
        }
    }

    // What the row cannot say, one thing at a time; tests/test_operators.c has the faults of arguments.
    const int f8 = SPOPS_DTYPE_F8E4M3, f4 = SPOPS_DTYPE_F4E2M1, f16 = SPOPS_DTYPE_F16;
    spops_bevpool_args eight = spops_bevpool_args_default(), four;
    eight.depth = s.depth[f16].view;
    eight.feat = s.feat[f8].view;
    eight.out = s.out[f8].view;
    four = eight;
    four.feat = s.feat[f4].view;
    four.feat_scales = &s.feat_scales.view;
    spops_bevpool_args pool;
#define BAD(base, change, fragment)                                                                \
    pool = base;                                                                                   \
    change;                                                                                        \
    test_expect(ctx, spops_bevpool_execute(ctx, s.plan, &pool), invalid, fragment, #change)
    test_expect(ctx, spops_bevpool_execute(ctx, s.plan, NULL), invalid, "args is NULL", "");
    BAD(eight, pool.struct_size = 0, "struct_size is 0");
    BAD(eight, pool.struct_size = sizeof pool + 1, "struct_size is");
    BAD(eight, pool.feat.dtype = (spops_dtype)77, "feat.dtype is 77, which is no dtype");
    BAD(eight, pool.feat.cols = pool.feat.row_stride = pool.out.cols = pool.out.row_stride = 35,
        "feat is f8e4m3 with 35 columns, the plan was built for max_cols = 34");
    BAD(eight, pool.feat_scales = &s.feat_scales.view, "feat_scales is given, and feat.dtype is");
    BAD(four, pool.feat_scales = NULL, "feat_scales is NULL, and feat.dtype is f4e2m1");
    BAD(four, (pool.feat.cols = 33, pool.out.cols = 33), "expected even numbers for f4e2m1");
    BAD(four, pool.feat.row_stride = 35, "expected even numbers for f4e2m1");

    // Gradients have fewer dtypes.
    for (int t = SPOPS_DTYPE_F8E4M3; t <= SPOPS_DTYPE_F4E2M1; ++t) {
        char fragment[64];
        (void)snprintf(fragment, sizeof fragment, "feat.dtype is %s, expected f32 f16 bf16",
                       test_dtype_name((spops_dtype)t));
        test_expect(ctx,
                    spops_bevpool_execute_backward(ctx, s.plan, SPOPS_BEV_CHANNELS_LAST,
                                                   s.out[t].view, s.depth[f16].view, s.feat[t].view,
                                                   NULL, &s.feat[t].view),
                    invalid, fragment, "backward");
    }
    test_wait(&d);
    for (int t = 0; t < NUM_FLOATS; ++t)
        guarded_check_untouched(&s.out[t], "after refusals");
    tear_down(&s);
    test_close(&d);
}
