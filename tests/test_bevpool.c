// SPDX-License-Identifier: Apache-2.0
// BEV pooling: geometry against the reference and the counts of real rigs, import and export,
// forward and backward in both layouts, refilling on the stream, and everything that is refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend.h"
#include "bevpool/bev_spans.h"
#include "support/device.h"
#include "tests/support/bev_cases.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"
#include "tests/support/saved.h"

static spops_bev_plan *plan_of(test_device *d, const spops_bev_geometry *geometry, int backward)
{
    spops_bev_plan *plan = NULL;
    spops_bev_options options = spops_bev_options_default();
    options.backward = backward;
    test_expect_ok(d->ctx, bev_plan_create(d, geometry, &options, &plan), "create");
    return plan;
}

// ---- geometry ----

// The plan's map is the geometry's: every kept point once, cells ascending, points ascending
// within.
static void check_geometry(test_device *d, const spops_bev_geometry *g, const char *what)
{
    spops_bev_plan *plan = plan_of(d, g, 0);
    bev_map map = bev_map_of_plan(d, plan);
    int32_t *expected = (int32_t *)malloc((size_t)map.ref.num_depths * sizeof(int32_t));
    double *margin = (double *)malloc((size_t)map.ref.num_depths * sizeof(double));
    int32_t *got = (int32_t *)malloc((size_t)map.ref.num_depths * sizeof(int32_t));
    ref_bev_cells(g, expected, margin);
    memset(got, 0xff, (size_t)map.ref.num_depths * sizeof(int32_t));
    for (int64_t i = 0; i < map.ref.num_points; ++i) {
        const int32_t p = map.depth_of[i];
        cr_assert(p >= 0 && p < map.ref.num_depths && got[p] == -1, "%s: point %d", what, p);
        got[p] = map.cell_of[i];
        cr_assert(map.feat_of[i] == ref_bev_pixel(&g->shape, p), "%s: point %d takes pixel %d",
                  what, p, map.feat_of[i]);
        cr_assert(i == 0 || map.cell_of[i] > map.cell_of[i - 1] ||
                      (map.cell_of[i] == map.cell_of[i - 1] && p > map.depth_of[i - 1]),
                  "%s: position %lld is out of order", what, (long long)i);
    }
    int64_t ends = 0;
    for (int64_t i = 0; i < map.num_intervals; ++i) {
        cr_assert(map.starts[i] == ends, "%s: interval %lld", what, (long long)i);
        ends += map.lengths[i];
    }
    cr_assert(ends == map.ref.num_points, "%s: intervals hold %lld points", what, (long long)ends);
    int64_t close = 0;
    for (int64_t p = 0; p < map.ref.num_depths; ++p) {
        if (margin[p] < 1e-9) {
            ++close; // rounding decides
            continue;
        }
        cr_assert(got[p] == expected[p], "%s: point %lld is in cell %d, expected %d", what,
                  (long long)p, got[p], expected[p]);
    }
    cr_assert(close <= map.ref.num_depths / 1000, "%s: %lld points on cell boundaries", what,
              (long long)close);
    free(expected), free(margin), free(got);
    bev_map_free(&map);
    spops_bev_plan_destroy(plan);
}

BackendTest(bevpool, geometry)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < 6; ++i) {
        char text[256];
        bev_geometry_case g = bev_geometry_simulate(1 + i % 3, 1 + i, 0.3 * i);
        check_geometry(&d, &g.geometry, test_describe(text, "simulated rig %d", i));
        // Given depths, one depth, one pixel, a singled-out row and column of pixels.
        double depths[9] = {0.5, 0.6, 1.1, 2.0, 3.7, 3.8, 5.0, 6.5, 9.0};
        g.geometry.depths_m = depths;
        check_geometry(&d, &g.geometry, test_describe(text, "given depths, rig %d", i));
        g.geometry.depths_m = NULL;
        g.geometry.shape.num_depths = 1;
        g.geometry.depth_step_m = 0.0;
        check_geometry(&d, &g.geometry, test_describe(text, "one depth, rig %d", i));
        g.geometry.shape.feature_width = 1;
        check_geometry(&d, &g.geometry, test_describe(text, "one column, rig %d", i));
        g.geometry.shape.feature_height = 1;
        check_geometry(&d, &g.geometry, test_describe(text, "one pixel, rig %d", i));
        // A flip, a rotation of the image, a camera that shears.
        g.geometry.shape.feature_height = 5, g.geometry.shape.feature_width = 7;
        g.cameras[0].image_to_input[0] = -0.5, g.cameras[0].image_to_input[2] = 159.0;
        g.cameras[i].image_to_input[1] = 0.1, g.cameras[i].image_to_input[3] = -0.2;
        g.cameras[i].camera_to_ego[1] *= 1.25;
        check_geometry(&d, &g.geometry, test_describe(text, "affine image, rig %d", i));
        // A grid that nothing reaches.
        g.geometry.grid_lower_m[0] = 1000.0;
        check_geometry(&d, &g.geometry, test_describe(text, "nothing inside, rig %d", i));
        bev_geometry_free(&g);
    }
    test_close(&d);
}

// Points right on the cells' boundaries: the lower one is inside, the upper one is not.
BackendTest(bevpool, boundaries)
{
    enum { SIDE = 5, CELLS = 2 };
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    // A camera that is the frame itself: the point of pixel (h, w) at depth d is (w d, h d, d).
    bev_geometry_case g = bev_geometry_simulate(1, 1, 0.0);
    memset(g.cameras, 0, sizeof *g.cameras);
    for (int i = 0; i < 3; ++i)
        g.cameras[0].intrinsics[4 * i] = 1.0;
    for (int i = 0; i < 4; ++i)
        g.cameras[0].camera_to_ego[5 * i] = 1.0;
    spops_bev_camera_set_resize_crop(&g.cameras[0], 1.0, 0.0, 0.0);
    g.geometry.shape = (spops_bev_shape){1, 1, 3, SIDE, SIDE, CELLS, CELLS, CELLS};
    g.geometry.input_height = g.geometry.input_width = SIDE;
    g.geometry.depth_start_m = g.geometry.depth_step_m = 1.0;
    for (int i = 0; i < 3; ++i)
        g.geometry.grid_lower_m[i] = g.geometry.cell_size_m[i] = 1.0;
    spops_bev_plan *plan = plan_of(&d, &g.geometry, 0);
    bev_map map = bev_map_of_plan(&d, plan);
    int64_t expected = 0, found = 0;
    for (int depth = 1; depth <= 3; ++depth) {
        for (int h = 0; h < SIDE; ++h) {
            for (int w = 0; w < SIDE; ++w) {
                const int x = w * depth - 1, y = h * depth - 1, z = depth - 1;
                const bool inside = x >= 0 && x < CELLS && y >= 0 && y < CELLS && z < CELLS;
                const int point = ((depth - 1) * SIDE + h) * SIDE + w;
                expected += inside;
                for (int64_t i = 0; inside && i < map.ref.num_points; ++i) {
                    if (map.depth_of[i] != point) continue;
                    ++found;
                    cr_assert(map.cell_of[i] == (z * CELLS + y) * CELLS + x,
                              "the point (%d, %d, %d) is in cell %d", w * depth, h * depth, depth,
                              map.cell_of[i]);
                }
            }
        }
    }
    cr_assert(found == expected && map.ref.num_points == expected,
              "%lld points, %lld of them right, expected %lld", (long long)map.ref.num_points,
              (long long)found, (long long)expected);
    bev_map_free(&map);
    spops_bev_plan_destroy(plan);
    bev_geometry_free(&g);
    test_close(&d);
}

// Counts published with the data: points kept, cells that hold a point, points of the fullest.
BackendTest(bevpool, real_rigs)
{
    static const struct {
        char rig, setting;
        int64_t depths, points, intervals, cells, longest;
    } table[] = {{'a', 'A', 249216, 148372, 10865, 16384, 528},
                 {'a', 'B', 1993728, 1602672, 88386, 129600, 886},
                 {'b', 'A', 249216, 147905, 11150, 16384, 560},
                 {'b', 'B', 1993728, 1590272, 99556, 129600, 872}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < 4; ++i) {
        bev_geometry_case g;
        char text[256];
        if (test_quick() && table[i].setting == 'B') continue;
        if (!bev_geometry_real(table[i].rig, table[i].setting, &g)) continue;
        const char *what =
            test_describe(text, "nuscenes_%c, setting %c", table[i].rig, table[i].setting);
        spops_bev_plan *plan = plan_of(&d, &g.geometry, 1);
        const spops_bev_plan_info info = bev_info(&d, plan);
        cr_assert(info.num_points == table[i].points, "%s: %lld points, expected %lld", what,
                  (long long)info.num_points, (long long)table[i].points);
        cr_assert(info.num_intervals == table[i].intervals, "%s: %lld cells, expected %lld", what,
                  (long long)info.num_intervals, (long long)table[i].intervals);
        cr_assert(info.longest == table[i].longest, "%s: longest %lld, expected %lld", what,
                  (long long)info.longest, (long long)table[i].longest);
        cr_assert(info.num_cells == table[i].cells && info.num_depths == table[i].depths, "%s",
                  what);
        cr_assert(info.num_features == table[i].depths / g.geometry.shape.num_depths, "%s", what);
        spops_bev_plan_destroy(plan);
        if (table[i].setting == 'A') check_geometry(&d, &g.geometry, what);
        bev_geometry_free(&g);
    }
    test_close(&d);
}

// ---- execution ----

typedef struct pool_case {
    spops_bev_plan *plan;
    const bev_map *map;
    spops_bev_layout layout;
    bool backward, want_depth, want_feat;
    int64_t cols;
    test_values values;
    test_values grad_values; // of grad_out, where not EXACT; else as values
    int64_t depth_shift;     // of depth and its gradient, elements more than the others'
    spops_context *home;     // the plan's, where calls over spans are to be counted; or NULL
    uint64_t stream;
} pool_case;

enum { DEPTH, FEAT, GRAD_OUT }; // inputs
enum { OUT };                   // outputs, forward
enum { GRAD_DEPTH, GRAD_FEAT }; // outputs, backward

static spops_status run_forward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                const spops_matrix *const *out)
{
    const pool_case *c = (const pool_case *)user;
    return bev_execute(ctx, c->plan, c->layout, *in[DEPTH], *in[FEAT], *out[OUT]);
}

static void reference_forward(void *user, const double *const *in, ref_tensor *const *out)
{
    const pool_case *c = (const pool_case *)user;
    ref_tensor last = ref_tensor_create(c->map->ref.num_cells, c->cols);
    ref_bevpool_forward(&c->map->ref, c->cols, in[DEPTH], in[FEAT], &last);
    ref_bev_to_layout(&last, c->layout, c->map->shape.num_batches, out[OUT]);
    ref_tensor_destroy(&last);
}

static void reference_backward(void *user, const double *const *in, ref_tensor *const *out)
{
    const pool_case *c = (const pool_case *)user;
    const ref_bev_map *map = &c->map->ref;
    ref_tensor grad_out = ref_tensor_create(map->num_cells, c->cols);
    ref_tensor grad_depth = ref_tensor_create(map->num_depths, 1);
    ref_tensor grad_feat = ref_tensor_create(map->num_features, c->cols);
    ref_bev_from_layout(in[GRAD_OUT], c->layout, c->map->shape.num_batches, &grad_out);
    ref_bevpool_backward(map, c->cols, in[DEPTH], in[FEAT], grad_out.value,
                         c->want_depth ? out[GRAD_DEPTH] : &grad_depth,
                         c->want_feat ? out[GRAD_FEAT] : &grad_feat);
    ref_tensor_destroy(&grad_out), ref_tensor_destroy(&grad_depth), ref_tensor_destroy(&grad_feat);
}

// Calls of the backend's gradients over spans are counted: what took another way is seen.
static const spops_backend *counted_backend;
static int num_span_grads;

static spops_status count_span_grad(spops_context *ctx, const spops_bev_spans_grad_args *args)
{
    ++num_span_grads;
    return counted_backend->bev_spans_grad(ctx, args);
}

static spops_status run_backward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                 const spops_matrix *const *out)
{
    const pool_case *c = (const pool_case *)user;
    spops_context *home = c->home; // a plan's context and the call's must agree on the backend
    spops_backend counting = *ctx->backend;
    const bool counts = home != NULL && counting.bev_spans_grad != NULL;
    if (counts) {
        counted_backend = ctx->backend;
        counting.bev_spans_grad = count_span_grad;
        home->backend = ctx->backend = &counting;
    }
    const spops_status status =
        spops_bevpool_execute_backward(ctx, c->plan, c->layout, *in[GRAD_OUT], *in[DEPTH],
                                       *in[FEAT], out[GRAD_DEPTH], out[GRAD_FEAT]);
    if (counts) home->backend = ctx->backend = counted_backend;
    return status;
}

static void check_pool(test_device *d, pool_case *c, spops_dtype dtype, spops_dtype depth_dtype,
                       int64_t padding, int64_t shift, const char *map_name)
{
    char text[256];
    const ref_bev_map *map = &c->map->ref;
    const spops_bev_shape *s = &c->map->shape;
    const bool first = c->layout == SPOPS_BEV_CHANNELS_FIRST;
    const int64_t rows = first ? s->num_batches * c->cols : map->num_cells;
    const int64_t cols = first ? map->num_cells / s->num_batches : c->cols;
    const int64_t depth_shift = shift + c->depth_shift;
    const test_values grad_values = c->grad_values != VALUES_EXACT ? c->grad_values : c->values;
    const test_check check = c->values == VALUES_EXACT ? CHECK_EXACT : CHECK_BOUND;
    test_operator op = {.what = test_describe(text, "bevpool%s, %s, channels %s",
                                              c->backward ? " backward" : "", map_name,
                                              first ? "first" : "last"),
                        .stream = c->stream,
                        .scratch_bytes = spops_bev_plan_scratch_bytes(c->plan),
                        .user = c,
                        .run = c->backward ? run_backward : run_forward,
                        .reference = c->backward ? reference_backward : reference_forward};
    op.in[DEPTH] =
        test_view(test_input("depth", map->num_depths, 1, depth_dtype, c->values), 0, depth_shift);
    op.in[FEAT] =
        test_view(test_input("feat", map->num_features, c->cols, dtype, c->values), padding, shift);
    if (c->backward)
        op.in[GRAD_OUT] =
            test_view(test_input("grad_out", rows, cols, dtype, grad_values), padding, shift);
    else
        op.out[OUT] = test_view(test_output("out", rows, cols, dtype, check), padding, shift);
    if (c->backward && c->want_depth)
        op.out[GRAD_DEPTH] = test_view(
            test_output("grad_depth", map->num_depths, 1, depth_dtype, check), 0, depth_shift);
    if (c->backward && c->want_feat)
        op.out[GRAD_FEAT] = test_view(
            test_output("grad_feat", map->num_features, c->cols, dtype, check), padding * 2, shift);
    // Sums of f16 and bf16 may run on matrix units, whose additions truncate. In a gradient a term
    // may be added to others before it is added to the sum.
    const bool single = dtype == SPOPS_DTYPE_F32;
    op.out[0].unit = op.out[1].unit = single ? 0x1p-24 : c->backward ? 0x1p-22 : 0x1p-23;
    test_operator_run(d, &op);
}

// Forward, and backward with each and both gradients, in both layouts.
static void check_map(test_device *d, const bev_map *map, spops_bev_plan *plan, spops_dtype dtype,
                      int64_t cols, uint64_t stream, const char *name)
{
    static const test_values kinds[] = {VALUES_EXACT, VALUES_RANDOM, VALUES_CANCEL};
    for (int i = 0; i < 8; ++i) {
        test_rng rng = test_rng_make(++stream * 977);
        pool_case c = {.plan = plan, .map = map, .cols = cols, .stream = stream};
        c.layout = i & 1 ? SPOPS_BEV_CHANNELS_FIRST : SPOPS_BEV_CHANNELS_LAST;
        c.backward = i >= 2;
        c.want_depth = i / 2 != 1;
        c.want_feat = i / 2 != 2;
        c.values = kinds[test_rng_below(&rng, 3)];
        check_pool(d, &c, dtype, test_rng_below(&rng, 2) == 0 ? SPOPS_DTYPE_F32 : dtype,
                   test_rng_below(&rng, 2) * 3, test_rng_below(&rng, 2), name);
    }
}

CaseTest(bevpool, agrees_on_maps, every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0),
         .timeout = 600)
{
    static const int64_t all_cols[] = {1, 3, 4, 5, 31, 32, 33, 80, 256, 320};
    static const spops_bev_shape shapes[] = {{1, 1, 1, 1, 1, 1, 1, 1},
                                             {1, 2, 5, 3, 4, 9, 7, 1},
                                             {2, 1, 6, 4, 5, 8, 5, 3},
                                             {3, 2, 7, 2, 9, 33, 2, 1},
                                             {1, 6, 16, 6, 11, 31, 17, 2}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = (uint64_t)(p->dtype * 8 + p->launch) << 32;
    spops_bev_options options = spops_bev_options_default();
    options.backward = 1;
    for (int s = 0; s < 5; ++s) {
        for (int k = 0; k < 10; ++k) {
            char text[256];
            if (s == 4 && all_cols[k] > 80) continue;
            if (test_quick() && (s + k) % 3 != 0) continue;
            test_rng rng = test_rng_make(stream += 100);
            const int64_t points = s == 0 ? k % 3 : 20 + 200 * s * (1 + k % 3);
            const char *name = test_describe(text, "random map %d of %lld", s, (long long)points);
            bev_map map = bev_map_random(&shapes[s], points, k % 2 == 0, &rng);
            spops_bev_plan *plan = NULL;
            options.max_cols = k % 2 == 0 ? 0 : all_cols[k];
            test_expect_ok(d.ctx, bev_map_plan(&d, &map, &options, &plan), name);
            check_map(&d, &map, plan, (spops_dtype)p->dtype, all_cols[k], stream, name);
            spops_bev_plan_destroy(plan);
            bev_map_free(&map);
        }
    }
    // Simulated rigs with several batches.
    bev_geometry_case g = bev_geometry_simulate(2, 4, 0.1);
    spops_bev_plan *plan = plan_of(&d, &g.geometry, 1);
    bev_map map = bev_map_of_plan(&d, plan);
    bev_expect_forced(&d, plan, "simulated rig");
    check_map(&d, &map, plan, (spops_dtype)p->dtype, 24, stream + 7, "simulated rig");
    spops_bev_plan_destroy(plan);
    bev_map_free(&map), bev_geometry_free(&g);
    test_close(&d);
}

CaseTest(bevpool, agrees_on_real_map, every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0),
         .timeout = 600)
{
    test_device d;
    bev_geometry_case g;
    if (test_quick()) return;
    if (!bev_geometry_real('a', 'A', &g)) return;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) {
        bev_geometry_free(&g);
        return;
    }
    spops_bev_plan *plan = plan_of(&d, &g.geometry, 1);
    bev_map map = bev_map_of_plan(&d, plan);
    bev_expect_forced(&d, plan, "nuscenes_a, setting A");
    for (int i = 0; i < 4; ++i) {
        pool_case c = {.plan = plan, .map = &map, .cols = i == 0 ? 80 : 17};
        c.stream = (uint64_t)(p->dtype * 64 + p->launch * 8 + i);
        c.layout = i & 1 ? SPOPS_BEV_CHANNELS_FIRST : SPOPS_BEV_CHANNELS_LAST;
        c.backward = i >= 2;
        c.want_depth = c.want_feat = true;
        c.values = i == 1 ? VALUES_EXACT : VALUES_RANDOM;
        check_pool(&d, &c, (spops_dtype)p->dtype, SPOPS_DTYPE_F32, 0, 0, "nuscenes_a, setting A");
    }
    spops_bev_plan_destroy(plan);
    bev_map_free(&map), bev_geometry_free(&g);
    test_close(&d);
}

// ---- gradients over spans ----

static spops_bev_options span_options(const test_device *d)
{
    spops_bev_options options = spops_bev_options_default();
    options.backward = 1;
    if (d->backend == SPOPS_BACKEND_CUDA) options.kernel = SPOPS_BEV_KERNEL_SPANS;
    return options;
}

// One call, which must (on CUDA) or must not go by spans.
static void check_span_grads(test_device *d, pool_case *c, spops_dtype dtype,
                             spops_dtype depth_dtype, int64_t padding, int64_t depth_shift,
                             bool by_spans, const char *name)
{
    num_span_grads = 0;
    c->home = d->ctx;
    c->backward = true;
    c->depth_shift = depth_shift;
    check_pool(d, c, dtype, depth_dtype, padding, 0, name);
    cr_assert((num_span_grads > 0) == (by_spans && d->backend == SPOPS_BACKEND_CUDA),
              "%s: %d calls went by spans, cols %lld, padding %lld", name, num_span_grads,
              (long long)c->cols, (long long)padding);
}

// Each gradient and both, both layouts, values of every kind.
static void check_map_span_grads(test_device *d, const bev_map *map, spops_bev_plan *plan,
                                 spops_dtype dtype, int64_t cols, uint64_t stream, const char *name)
{
    static const struct {
        test_values values, grad_values;
    } kinds[] = {{VALUES_RANDOM, VALUES_EXACT},    {VALUES_EXACT, VALUES_EXACT},
                 {VALUES_CANCEL, VALUES_EXACT},    {VALUES_RANDOM, VALUES_INFINITE},
                 {VALUES_RANDOM, VALUES_NAN},      {VALUES_ZEROS, VALUES_INFINITE},
                 {VALUES_SUBNORMAL, VALUES_EXACT}, {VALUES_NAN, VALUES_RANDOM}};
    for (int i = 0; i < 8; ++i) {
        pool_case c = {.plan = plan, .map = map, .cols = cols, .stream = ++stream};
        c.layout = i % 2 == 1 ? SPOPS_BEV_CHANNELS_FIRST : SPOPS_BEV_CHANNELS_LAST;
        c.want_depth = i % 3 != 1;
        c.want_feat = i % 3 != 2;
        c.values = kinds[i].values;
        c.grad_values = kinds[i].grad_values;
        // Rows that are no whole 16 bytes are copied; transposed ones go by lists.
        const bool as_they_are = cols % 8 == 0 || c.layout == SPOPS_BEV_CHANNELS_LAST;
        check_span_grads(d, &c, dtype, dtype, i % 4 == 0 ? 8 : 0, i / 2 % 2,
                         dtype != SPOPS_DTYPE_F32 && as_they_are, name);
    }
}

CaseTest(bevpool, span_gradients_agree, every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0),
         .timeout = 900)
{
    // Tiles of 32 x 1, 16 x 2 and 8 x 4 pixels, with tails; blocks of one tile, and, where a device
    // has fewer than 140 processors, of two and four; batches enough to use buffers again.
    static const struct {
        spops_bev_shape shape;
        int64_t cols[2];
    } cases[] = {
        {{1, 1, 2, 1, 1, 4, 2, 1}, {8, 16}},       {{2, 2, 24, 5, 9, 32, 31, 1}, {24, 80}},
        {{1, 2, 40, 33, 5, 32, 30, 1}, {80, 40}},  {{2, 1, 30, 16, 12, 32, 24, 1}, {128, 136}},
        {{1, 3, 20, 40, 6, 30, 24, 1}, {256, 8}},  {{1, 34, 3, 33, 9, 51, 40, 1}, {80, 96}},
        {{1, 48, 3, 5, 40, 96, 120, 1}, {80, 16}}, {{1, 20, 3, 9, 28, 60, 56, 1}, {128, 32}},
        {{2, 24, 4, 12, 20, 96, 40, 1}, {80, 64}}, {{1, 20, 4, 20, 14, 40, 56, 1}, {256, 80}},
    };
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    const spops_bev_options options = span_options(&d);
    uint64_t stream = (uint64_t)(p->dtype * 8 + p->launch + 4000) << 32;
    for (int i = 0; i < 20; ++i) {
        char text[256];
        const int k = i / 2;
        if (test_quick() && i % 3 != 0) continue;
        if ((p->backend == SPOPS_BACKEND_CPU || p->dtype == SPOPS_DTYPE_F32) && i % 7 != 0)
            continue; // by lists
        test_rng rng = test_rng_make(stream += 100);
        bev_map map = bev_map_dense(&cases[k].shape, &rng);
        const char *name = test_describe(text, "dense map %d", k);
        spops_bev_plan *plan = NULL;
        test_expect_ok(d.ctx, bev_map_plan(&d, &map, &options, &plan), name);
        check_map_span_grads(&d, &map, plan, (spops_dtype)p->dtype, cases[k].cols[i % 2], stream,
                             name);
        spops_bev_plan_destroy(plan);
        bev_map_free(&map);
    }
    bev_geometry_case g = bev_geometry_simulate(2, 4, 0.1);
    spops_bev_plan *plan = NULL;
    test_expect_ok(d.ctx, spops_bev_plan_create(d.ctx, &g.geometry, &options, &plan), "simulated");
    bev_map map = bev_map_of_plan(&d, plan);
    check_map_span_grads(&d, &map, plan, (spops_dtype)p->dtype, 80, stream += 100, "simulated rig");
    check_map_span_grads(&d, &map, plan, (spops_dtype)p->dtype, 77, stream += 100, "odd rows");
    // Rows and widths that are no multiples of 16 bytes go by spans, depths of another dtype by lists.
    static const struct {
        int64_t cols, padding;
        bool single;
    } others[] = {{80, 3, false}, {12, 0, false}, {80, 0, true}};
    for (int i = 0; i < 3; ++i) {
        pool_case c = {.plan = plan, .map = &map, .cols = others[i].cols, .stream = ++stream};
        c.want_depth = c.want_feat = true;
        c.values = VALUES_RANDOM;
        check_span_grads(&d, &c, (spops_dtype)p->dtype,
                         others[i].single ? SPOPS_DTYPE_F32 : (spops_dtype)p->dtype,
                         others[i].padding, 0, !others[i].single && p->dtype != SPOPS_DTYPE_F32,
                         "simulated rig, other rows");
    }
    spops_bev_plan_destroy(plan);
    bev_map_free(&map), bev_geometry_free(&g);
    test_close(&d);
}

CaseTest(bevpool, span_gradients_agree_on_real_maps,
         every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0), .timeout = 900)
{
    if (test_quick() || p->dtype == SPOPS_DTYPE_F32 || p->backend == SPOPS_BACKEND_CPU) return;
    for (int setting = 'A'; setting <= 'B'; ++setting) {
        test_device d;
        bev_geometry_case g;
        char text[256];
        if (!bev_geometry_real('a', (char)setting, &g)) return;
        if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) {
            bev_geometry_free(&g);
            return;
        }
        const spops_bev_options options = span_options(&d);
        const char *name = test_describe(text, "nuscenes_a, setting %c", setting);
        spops_bev_plan *plan = NULL;
        test_expect_ok(d.ctx, spops_bev_plan_create(d.ctx, &g.geometry, &options, &plan), name);
        bev_map map = bev_map_of_plan(&d, plan);
        for (int i = 0; i < 2; ++i) {
            pool_case c = {.plan = plan, .map = &map, .cols = i == 0 ? 80 : 256};
            if (setting == 'B' && i == 1) c.cols = 128;
            c.stream = (uint64_t)(p->dtype * 64 + p->launch * 8 + i);
            c.layout = i == 1 ? SPOPS_BEV_CHANNELS_FIRST : SPOPS_BEV_CHANNELS_LAST;
            c.want_depth = c.want_feat = true;
            c.values = VALUES_RANDOM;
            check_span_grads(&d, &c, (spops_dtype)p->dtype, (spops_dtype)p->dtype, 0, 0, true,
                             name);
        }
        spops_bev_plan_destroy(plan);
        bev_map_free(&map), bev_geometry_free(&g);
        test_close(&d);
    }
}

// The relation a plan shows is the map.
BackendTest(bevpool, shows_its_relation)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    bev_geometry_case g = bev_geometry_simulate(1, 3, 0.0);
    spops_bev_plan *plan = plan_of(&d, &g.geometry, 0);
    const spops_bev_plan_info info = bev_info(&d, plan);
    spops_segments_info relation;
    relation.struct_size = sizeof relation;
    test_expect_ok(d.ctx,
                   spops_segments_get_info_sync(d.ctx, spops_bev_plan_segments(plan), &relation),
                   "relation");
    cr_assert(relation.num_segments == info.num_cells && relation.num_terms == info.num_points &&
              relation.num_rows == info.num_features && relation.num_weights == info.num_depths &&
              relation.num_nonempty == info.num_intervals && relation.longest == info.longest);
    cr_assert(spops_bev_plan_scratch_bytes(plan) >=
              spops_segments_scratch_bytes(spops_bev_plan_segments(plan)));
    spops_bev_plan_destroy(plan);
    spops_bev_plan_destroy(NULL);
    bev_geometry_free(&g);
    test_close(&d);
}

// ---- import and export ----

typedef struct interval_arrays {
    spops_bev_intervals_out device;
    int32_t *indices, *intervals;
} interval_arrays;

static interval_arrays intervals_of_plan(test_device *d, const spops_bev_plan *plan)
{
    const spops_bev_plan_info info = bev_info(d, plan);
    interval_arrays a;
    a.indices = (int32_t *)calloc((size_t)info.num_points + 1, sizeof(int32_t));
    a.intervals = (int32_t *)calloc((size_t)info.num_intervals * 3 + 1, sizeof(int32_t));
    a.device = (spops_bev_intervals_out){sizeof a.device, info.num_points, info.num_intervals,
                                         test_upload_i32(d, a.indices, info.num_points),
                                         test_upload_i32(d, a.intervals, info.num_intervals * 3)};
    test_expect_ok(d->ctx, spops_bev_plan_get_intervals_sync(d->ctx, plan, &a.device),
                   "get_intervals");
    test_download_i32(d, a.indices, a.device.indices, info.num_points);
    test_download_i32(d, a.intervals, a.device.intervals, info.num_intervals * 3);
    return a;
}

static void free_intervals(test_device *d, interval_arrays *a)
{
    test_free(d, a->device.indices), test_free(d, a->device.intervals);
    free(a->indices), free(a->intervals);
}

static unsigned char *save(test_device *d, const spops_bev_plan *plan, size_t *bytes)
{
    size_t written = 0;
    test_expect_ok(d->ctx, saved_put(d->ctx, plan, NULL, 0, bytes), "measure");
    unsigned char *data = (unsigned char *)malloc(*bytes);
    test_expect_ok(d->ctx, saved_put(d->ctx, plan, data, *bytes, &written), "save");
    cr_assert(written == *bytes);
    return data;
}

static void check_round_trips(test_device *d, const spops_bev_plan *plan, const char *what)
{
    spops_bev_options options = spops_bev_options_default();
    options.backward = 1;
    bev_map map = bev_map_of_plan(d, plan);
    spops_bev_plan *from_ranks = NULL, *from_intervals = NULL, *loaded = NULL;

    test_expect_ok(d->ctx, bev_map_plan(d, &map, &options, &from_ranks), what);
    bev_map ranks_map = bev_map_of_plan(d, from_ranks);
    bev_map_check_same(&map, &ranks_map, what);

    // The depth-outer form says the same as the five arrays.
    interval_arrays a = intervals_of_plan(d, plan);
    const spops_bev_intervals given = spops_bev_intervals_of(&a.device);
    for (int64_t i = 0; i < map.num_intervals; ++i) {
        const int32_t begin = map.starts[i];
        cr_assert(a.intervals[3 * i] == begin && a.intervals[3 * i + 1] == begin + map.lengths[i] &&
                      a.intervals[3 * i + 2] == map.cell_of[begin],
                  "%s: interval %lld", what, (long long)i);
    }
    for (int64_t i = 0; i < map.ref.num_points; ++i) {
        cr_assert(a.indices[i] == map.depth_of[i], "%s: index %lld", what, (long long)i);
    }
    test_expect_ok(
        d->ctx,
        spops_bev_plan_create_from_intervals(d->ctx, &map.shape, &given, &options, &from_intervals),
        what);
    bev_map intervals_map = bev_map_of_plan(d, from_intervals);
    bev_map_check_same(&map, &intervals_map, what);

    size_t bytes, again_bytes;
    unsigned char *data = save(d, plan, &bytes);
    test_expect_ok(d->ctx, saved_get(d->ctx, SPOPS_PLAN_BEV_PLAN, data, bytes, &loaded), what);
    bev_map loaded_map = bev_map_of_plan(d, loaded);
    bev_map_check_same(&map, &loaded_map, what);
    unsigned char *again = save(d, loaded, &again_bytes);
    cr_assert(again_bytes == bytes && memcmp(again, data, bytes) == 0,
              "%s: a loaded plan saves as other bytes", what);
    free(data), free(again);
    free_intervals(d, &a);
    bev_map_free(&map), bev_map_free(&ranks_map);
    bev_map_free(&intervals_map), bev_map_free(&loaded_map);
    spops_bev_plan_destroy(from_ranks), spops_bev_plan_destroy(from_intervals);
    spops_bev_plan_destroy(loaded);
}

BackendTest(bevpool, round_trips)
{
    static const spops_bev_shape shape = {2, 3, 8, 3, 5, 11, 6, 2};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    char text[256];
    for (int i = 0; i < 4; ++i) {
        bev_geometry_case g = bev_geometry_simulate(1 + i % 2, 3, 0.7 * i);
        if (i == 3) g.geometry.grid_lower_m[1] = -1e6; // nothing inside
        spops_bev_plan *plan = plan_of(&d, &g.geometry, i % 2);
        check_round_trips(&d, plan, test_describe(text, "simulated rig %d", i));
        spops_bev_plan_destroy(plan);
        bev_geometry_free(&g);
    }
    for (int i = 0; i < 20; ++i) {
        test_rng rng = test_rng_make((uint64_t)i);
        bev_map map = bev_map_random(&shape, 40 * i, true, &rng);
        spops_bev_plan *plan = NULL;
        test_expect_ok(d.ctx, bev_map_plan(&d, &map, NULL, &plan), "random map");
        check_round_trips(&d, plan, test_describe(text, "random map %d", i));
        spops_bev_plan_destroy(plan);
        bev_map_free(&map);
    }
    // Rows that do not follow from the depth elements have no depth-outer form.
    test_rng rng = test_rng_make(99);
    bev_map map = bev_map_random(&shape, 300, false, &rng);
    spops_bev_plan *plan = NULL;
    test_expect_ok(d.ctx, bev_map_plan(&d, &map, NULL, &plan), "random map");
    const spops_bev_plan_info info = bev_info(&d, plan);
    int32_t *room = (int32_t *)calloc((size_t)info.num_points * 3, sizeof(int32_t));
    spops_bev_intervals_out a = {sizeof a, info.num_points, info.num_intervals,
                                 test_upload_i32(&d, room, info.num_points),
                                 test_upload_i32(&d, room, info.num_points * 3)};
    test_expect(d.ctx, spops_bev_plan_get_intervals_sync(d.ctx, plan, &a),
                SPOPS_STATUS_NOT_SUPPORTED, "bev_plan_get_intervals_sync", "rows of its own");
    test_free(&d, a.indices), test_free(&d, a.intervals);
    free(room);
    spops_bev_plan_destroy(plan);
    bev_map_free(&map);
    test_close(&d);
}

// Points outside every interval do not count, whatever they hold.
BackendTest(bevpool, ignores_points_between)
{
    static const spops_bev_shape shape = {1, 1, 3, 2, 2, 3, 2, 1};
    static int32_t depth[] = {-5, 11, 3, 7, 99, 0, 8}, feat[] = {77, 3, 3, 3, -9, 0, 0};
    static int32_t cell[] = {6, 4, 4, 4, -1, 1, 5}, starts[] = {1, 5}, lengths[] = {3, 1};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    bev_map map = {.shape = shape,
                   .num_intervals = 2,
                   .depth_of = depth,
                   .feat_of = feat,
                   .cell_of = cell,
                   .starts = starts,
                   .lengths = lengths};
    map.ref.num_points = 7;
    spops_bev_plan *plan = NULL;
    test_expect_ok(d.ctx, bev_map_plan(&d, &map, NULL, &plan), "points between");
    bev_map got = bev_map_of_plan(&d, plan);
    cr_assert(got.ref.num_points == 4 && got.num_intervals == 2);
    cr_assert(got.cell_of[0] == 1 && got.depth_of[0] == 0 && got.feat_of[0] == 0);
    for (int i = 0; i < 3; ++i) {
        cr_assert(got.cell_of[1 + i] == 4 && got.depth_of[1 + i] == depth[1 + i], "point %d", i);
    }
    bev_map_free(&got);
    spops_bev_plan_destroy(plan);
    test_close(&d);
}

// ---- refilling on the stream ----

static struct criterion_test_params every_refill_launch(void)
{
    static struct launch_param params[] = {{SPOPS_BACKEND_CPU, LAUNCH_DEFAULT},
                                           {SPOPS_BACKEND_CUDA, LAUNCH_DEFAULT},
                                           {SPOPS_BACKEND_CUDA, LAUNCH_STREAM},
                                           {SPOPS_BACKEND_CUDA, LAUNCH_CAPTURED}};
    return tested_here(cr_make_param_array(struct launch_param, params, 4));
}

typedef struct refill {
    spops_bev_plan *plan;
    double *transforms;
    guarded depth, feat, out, grad_depth, grad_feat;
} refill;

static void enqueue_refill(test_device *d, refill *r)
{
    test_expect_ok(d->ctx, spops_bev_plan_update(d->ctx, r->plan, r->transforms), "set");
    test_expect_ok(d->ctx,
                   bev_execute(d->ctx, r->plan, SPOPS_BEV_CHANNELS_FIRST, r->depth.view,
                               r->feat.view, r->out.view),
                   "execute");
    test_expect_ok(d->ctx,
                   spops_bevpool_execute_backward(d->ctx, r->plan, SPOPS_BEV_CHANNELS_FIRST,
                                                  r->out.view, r->depth.view, r->feat.view,
                                                  &r->grad_depth.view, &r->grad_feat.view),
                   "execute_backward");
}

TestOver(bevpool, refill_on_the_stream, struct launch_param *p, every_refill_launch())
{
    enum { COLS = 20, BATCHES = 2, CAMERAS = 4 };
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    const spops_backend_kind b = d.backend;
    const size_t transform_bytes = BATCHES * CAMERAS * SPOPS_BEV_TRANSFORM_DOUBLES * sizeof(double);
    double transforms[BATCHES * CAMERAS * SPOPS_BEV_TRANSFORM_DOUBLES];
    bev_geometry_case g = bev_geometry_simulate(BATCHES, CAMERAS, 0.0);
    spops_bev_geometry no_cameras = g.geometry;
    spops_bev_options options = spops_bev_options_default();
    refill r;
    void *pointer = NULL;
    memset(&r, 0, sizeof r);
    options.backward = 1;
    options.max_cols = COLS;
    no_cameras.cameras = NULL;
    test_expect_ok(d.ctx, spops_bev_plan_reserve(d.ctx, &no_cameras, &options, &r.plan), "reserve");
    spops_bev_plan_info info = bev_info(&d, r.plan);
    cr_assert(info.num_points == 0 && info.num_intervals == 0 && info.longest == 0);
    cr_assert(device_alloc(b, transform_bytes, &pointer), "%s", device_error());
    r.transforms = (double *)pointer;
    const int64_t cells = info.num_cells;
    r.depth = guarded_create(b, "depth", info.num_depths, 1, 0, 0, SPOPS_DTYPE_F32);
    r.feat = guarded_create(b, "feat", info.num_features, COLS, 0, 0, SPOPS_DTYPE_F32);
    r.out = guarded_create(b, "out", BATCHES * COLS, cells / BATCHES, 0, 0, SPOPS_DTYPE_F32);
    r.grad_depth = guarded_create(b, "grad_depth", info.num_depths, 1, 0, 0, SPOPS_DTYPE_F32);
    r.grad_feat = guarded_create(b, "grad_feat", info.num_features, COLS, 0, 0, SPOPS_DTYPE_F32);
    test_rng rng = test_rng_make(31);
    double *depth = guarded_fill(&r.depth, &rng, VALUES_EXACT, false, 1);
    double *feat = guarded_fill(&r.feat, &rng, VALUES_EXACT, false, 1);
    guarded_upload(&r.depth), guarded_upload(&r.feat);

    device_graph *graph = NULL;
    if (d.launch == LAUNCH_CAPTURED) {
        int kernels, copies, memsets, others;
        cr_assert(device_capture_begin(d.stream), "%s", device_error());
        enqueue_refill(&d, &r);
        cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
        cr_assert(device_graph_count(graph, &kernels, &copies, &memsets, &others));
        cr_assert(others == 0 && kernels > 0, "%d nodes are no kernel, memset or copy", others);
    }
    for (int frame = 0; frame < 4; ++frame) {
        char text[256];
        const char *what = test_describe(text, "frame %d", frame);
        bev_geometry_case now = bev_geometry_simulate(BATCHES, CAMERAS, 0.45 * frame);
        test_expect_ok(d.ctx, spops_bev_geometry_get_transforms(d.ctx, &now.geometry, transforms),
                       what);
        if (frame == 2) {
            // A camera whose calibration is not finite puts no point into the grid.
            transforms[SPOPS_BEV_TRANSFORM_DOUBLES + 3] = (double)NAN;
            now.cameras[1].camera_to_ego[3] = 1e9;
        }
        cr_assert(device_upload(b, r.transforms, transforms, transform_bytes), "%s",
                  device_error());
        guarded *outputs[] = {&r.out, &r.grad_depth, &r.grad_feat};
        for (int i = 0; i < 3; ++i)
            guarded_poison(outputs[i], 0xff), guarded_upload(outputs[i]);
        if (graph != NULL)
            cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
        else
            enqueue_refill(&d, &r);
        test_wait(&d);

        spops_bev_plan *fresh = plan_of(&d, &now.geometry, 0);
        bev_map expected = bev_map_of_plan(&d, fresh), got = bev_map_of_plan(&d, r.plan);
        bev_map_check_same(&expected, &got, what);
        ref_tensor last = ref_tensor_create(cells, COLS);
        ref_bevpool_forward(&expected.ref, COLS, depth, feat, &last);
        ref_tensor out = ref_tensor_create(BATCHES * COLS, last.rows / BATCHES);
        ref_bev_to_layout(&last, SPOPS_BEV_CHANNELS_FIRST, BATCHES, &out);
        ref_tensor grad_depth = ref_tensor_create(info.num_depths, 1);
        ref_tensor grad_feat = ref_tensor_create(info.num_features, COLS);
        ref_bevpool_backward(&expected.ref, COLS, depth, feat, last.value, &grad_depth, &grad_feat);
        for (int i = 0; i < 3; ++i)
            guarded_download(outputs[i]);
        guarded_check(&r.out, &out, true, what);
        guarded_check(&r.grad_depth, &grad_depth, true, what);
        guarded_check(&r.grad_feat, &grad_feat, true, what);
        ref_tensor_destroy(&last), ref_tensor_destroy(&out);
        ref_tensor_destroy(&grad_depth), ref_tensor_destroy(&grad_feat);
        bev_map_free(&expected), bev_map_free(&got);
        spops_bev_plan_destroy(fresh);
        bev_geometry_free(&now);
    }
    device_graph_destroy(graph);
    // With cameras given, a reserved plan is full from the start; and it is not saved.
    spops_bev_plan *given = NULL, *fresh = plan_of(&d, &g.geometry, 0);
    test_expect_ok(d.ctx, spops_bev_plan_reserve(d.ctx, &g.geometry, &options, &given), "reserve");
    bev_map expected = bev_map_of_plan(&d, fresh), got = bev_map_of_plan(&d, given);
    bev_map_check_same(&expected, &got, "reserved with cameras");
    bev_map_free(&expected), bev_map_free(&got);
    size_t bytes = 0;
    test_expect(d.ctx, saved_put(d.ctx, given, NULL, 0, &bytes), SPOPS_STATUS_INVALID_ARGUMENT,
                "plan_save", "a reserved plan is not saved");
    test_expect(d.ctx, spops_bev_plan_update(d.ctx, fresh, r.transforms),
                SPOPS_STATUS_INVALID_ARGUMENT, "bev_plan_update", "a plan that was not reserved");
    test_expect(d.ctx, spops_bev_plan_update(d.ctx, given, NULL), SPOPS_STATUS_INVALID_ARGUMENT,
                "transforms", "transforms NULL");
    test_expect(d.ctx, spops_bev_plan_update(d.ctx, NULL, r.transforms),
                SPOPS_STATUS_INVALID_ARGUMENT, "plan", "plan NULL");
    test_expect(NULL, spops_bev_plan_update(NULL, given, r.transforms),
                SPOPS_STATUS_INVALID_ARGUMENT, "ctx", "ctx NULL");
    spops_bev_plan_destroy(given), spops_bev_plan_destroy(fresh), spops_bev_plan_destroy(r.plan);
    free(depth), free(feat);
    guarded_destroy(&r.depth), guarded_destroy(&r.feat), guarded_destroy(&r.out);
    guarded_destroy(&r.grad_depth), guarded_destroy(&r.grad_feat);
    test_free(&d, r.transforms);
    bev_geometry_free(&g);
    test_close(&d);
}

// ---- what is refused ----

static spops_bev_plan *const untouched = (spops_bev_plan *)16;

static void refuse_geometry(test_device *d, const bev_geometry_case *g, const char *fragment)
{
    spops_bev_plan *out = untouched;
    double transforms[8 * SPOPS_BEV_TRANSFORM_DOUBLES];
    const int64_t live = d->memory.live;
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_status status = spops_bev_plan_create(d->ctx, &g->geometry, NULL, &out);
    test_expect(d->ctx, status, invalid, "bev_plan_create: ", fragment);
    test_expect(d->ctx, status, invalid, fragment, fragment);
    cr_assert(out == NULL, "%s: *out is not NULL", fragment);
    out = untouched;
    status = spops_bev_plan_reserve(d->ctx, &g->geometry, NULL, &out);
    if (g->geometry.cameras != NULL) {
        test_expect(d->ctx, status, invalid, "bev_plan_reserve: ", fragment);
        cr_assert(out == NULL, "%s: *out is not NULL", fragment);
    } else {
        test_expect_ok(d->ctx, status, "reserve without cameras");
        spops_bev_plan_destroy(out);
    }
    // Without cameras the reserve went through, and left the context the plan's scratch.
    cr_assert(d->memory.live == live || g->geometry.cameras == NULL, "%s: leaked", fragment);
    if (g->geometry.shape.num_batches * (int64_t)g->geometry.shape.num_cameras <= 8) {
        memset(transforms, 0x33, sizeof transforms);
        status = spops_bev_geometry_get_transforms(d->ctx, &g->geometry, transforms);
        test_expect(d->ctx, status, invalid, "bev_geometry_get_transforms: ", fragment);
    }
}

BackendTest(bevpool, refuses_geometry)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const double nan = (double)NAN, inf = (double)INFINITY;
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    bev_geometry_case g;
    double depths[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
#define BEND(fragment, ...)                                                                        \
    (g = bev_geometry_simulate(1, 3, 0.0), __VA_ARGS__, refuse_geometry(&d, &g, fragment),         \
     bev_geometry_free(&g))
    BEND("cameras", g.geometry.cameras = NULL);
    BEND("num_batches", g.geometry.shape.num_batches = 0);
    BEND("num_cameras", g.geometry.shape.num_cameras = -1);
    BEND("num_depths", g.geometry.shape.num_depths = 0);
    BEND("feature_height", g.geometry.shape.feature_height = 0);
    BEND("feature_width", g.geometry.shape.feature_width = INT32_MIN);
    BEND("num_cells_x", g.geometry.shape.num_cells_x = 0);
    BEND("num_cells_y", g.geometry.shape.num_cells_y = -4);
    BEND("num_cells_z", g.geometry.shape.num_cells_z = 0);
    BEND(" cells", g.geometry.shape.num_cells_x = 65536, g.geometry.shape.num_cells_y = 65536);
    BEND(" cells", g.geometry.shape.num_cells_x = INT32_MAX,
         g.geometry.shape.num_cells_y = INT32_MAX, g.geometry.shape.num_cells_z = INT32_MAX);
    BEND(" points", g.geometry.shape.num_depths = INT32_MAX);
    BEND(" points", g.geometry.shape.feature_height = INT32_MAX,
         g.geometry.shape.feature_width = INT32_MAX);
    BEND("input_height", g.geometry.input_height = 0);
    BEND("input_width", g.geometry.input_width = -1);
    BEND("depth_start_m", g.geometry.depth_start_m = nan);
    BEND("depth_step_m", g.geometry.depth_step_m = 0.0);
    BEND("depth_step_m", g.geometry.depth_step_m = -1.0);
    BEND("depth_step_m", g.geometry.depth_step_m = inf);
    BEND("depths_m[3]", depths[3] = 3.0, g.geometry.depths_m = depths);
    depths[3] = 4.0;
    BEND("depths_m[8]", depths[8] = nan, g.geometry.depths_m = depths);
    BEND("grid_lower_m[1]", g.geometry.grid_lower_m[1] = inf);
    BEND("cell_size_m[0]", g.geometry.cell_size_m[0] = 0.0);
    BEND("cell_size_m[2]", g.geometry.cell_size_m[2] = -0.5);
    BEND("cell_size_m[1]", g.geometry.cell_size_m[1] = nan);
    BEND("cameras[2].intrinsics[4]", g.cameras[2].intrinsics[4] = nan);
    BEND("cameras[0].intrinsics", g.cameras[0].intrinsics[0] = g.cameras[0].intrinsics[1] = 0.0);
    BEND("cameras[1].camera_to_ego[7]", g.cameras[1].camera_to_ego[7] = -inf);
    BEND("cameras[1].camera_to_ego",
         memcpy(g.cameras[1].camera_to_ego, g.cameras[1].camera_to_ego + 4, 3 * sizeof(double)));
    BEND("cameras[2].camera_to_ego", g.cameras[2].camera_to_ego[15] = 2.0);
    BEND("cameras[0].image_to_input[2]", g.cameras[0].image_to_input[2] = inf);
    BEND("cameras[0].image_to_input", g.cameras[0].image_to_input[0] = 0.0);
    BEND("struct_size", g.geometry.struct_size = sizeof g.geometry + 8);
#undef BEND
    g = bev_geometry_simulate(1, 3, 0.0);
    spops_bev_plan *out = untouched;
    spops_bev_options options = spops_bev_options_default();
    double transforms[3 * SPOPS_BEV_TRANSFORM_DOUBLES];
    options.max_cols = -1;
    test_expect(d.ctx, spops_bev_plan_create(d.ctx, &g.geometry, &options, &out), invalid,
                "max_cols", "max_cols");
    options.max_cols = 0, options.backward = 2;
    test_expect(d.ctx, spops_bev_plan_create(d.ctx, &g.geometry, &options, &out), invalid,
                "backward", "backward");
    options.backward = 0, options.kernel = (spops_bev_kernel)3;
    test_expect(d.ctx, spops_bev_plan_create(d.ctx, &g.geometry, &options, &out), invalid, "kernel",
                "kernel");
    test_expect(d.ctx, spops_bev_plan_create(d.ctx, NULL, NULL, &out), invalid, "geometry",
                "geometry NULL");
    test_expect(d.ctx, spops_bev_plan_create(d.ctx, &g.geometry, NULL, NULL), invalid, "out",
                "out NULL");
    test_expect(NULL, spops_bev_plan_create(NULL, &g.geometry, NULL, &out), invalid, "ctx",
                "ctx NULL");
    test_expect(d.ctx, spops_bev_geometry_get_transforms(d.ctx, &g.geometry, NULL), invalid,
                "transforms", "transforms NULL");
    test_expect_ok(NULL, spops_bev_geometry_get_transforms(NULL, &g.geometry, transforms),
                   "transforms without a context");
    bev_geometry_free(&g);
    test_close(&d);
}

// A small map that is right until it is bent.
enum { POINTS = 6, INTERVALS = 3 };
typedef struct map_args {
    spops_bev_shape shape;
    int64_t num_points, num_intervals;
    int32_t depth[POINTS], feat[POINTS], cell[POINTS], starts[INTERVALS], lengths[INTERVALS];
    int32_t intervals[3 * INTERVALS];
    int missing; // which array is NULL, 0: none
} map_args;

static map_args good_map(void)
{
    static const map_args good = {{1, 2, 3, 2, 2, 4, 3, 1},
                                  POINTS,
                                  INTERVALS,
                                  {0, 5, 23, 4, 4, 12},
                                  {0, 1, 7, 0, 3, 4},
                                  {2, 2, 0, 11, 11, 11},
                                  {0, 2, 3},
                                  {2, 1, 3},
                                  {0, 2, 2, 2, 3, 0, 3, 6, 11},
                                  0};
    return good;
}

static spops_status call_map(test_device *d, const map_args *a, bool as_intervals,
                             spops_bev_plan **out)
{
    int32_t *depth = a->missing == 1 ? NULL : test_upload_i32(d, a->depth, POINTS);
    int32_t *feat = a->missing == 2 ? NULL : test_upload_i32(d, a->feat, POINTS);
    int32_t *cell = a->missing == 3 ? NULL : test_upload_i32(d, a->cell, POINTS);
    int32_t *starts = a->missing == 4 ? NULL : test_upload_i32(d, a->starts, INTERVALS);
    int32_t *lengths = a->missing == 5 ? NULL : test_upload_i32(d, a->lengths, INTERVALS);
    int32_t *intervals = a->missing == 4 ? NULL : test_upload_i32(d, a->intervals, 3 * INTERVALS);
    const spops_bev_ranks ranks = {sizeof ranks, a->num_points, a->num_intervals, depth,
                                   feat,         cell,          starts,           lengths};
    const spops_bev_intervals outer = {sizeof outer, a->num_points, a->num_intervals, depth,
                                       intervals};
    const spops_status status =
        as_intervals ? spops_bev_plan_create_from_intervals(d->ctx, &a->shape, &outer, NULL, out)
                     : spops_bev_plan_create_from_ranks(d->ctx, &a->shape, &ranks, NULL, out);
    test_free(d, depth), test_free(d, feat), test_free(d, cell);
    test_free(d, starts), test_free(d, lengths), test_free(d, intervals);
    return status;
}

static void refuse_map(test_device *d, const map_args *a, bool as_intervals, const char *fragment)
{
    spops_bev_plan *out = untouched;
    const int64_t live = d->memory.live;
    const spops_status status = call_map(d, a, as_intervals, &out);
    test_expect(d->ctx, status, SPOPS_STATUS_INVALID_ARGUMENT,
                as_intervals ? "bev_plan_create_from_intervals: " : "bev_plan_create_from_ranks: ",
                fragment);
    test_expect(d->ctx, status, SPOPS_STATUS_INVALID_ARGUMENT, fragment, fragment);
    cr_assert(out == NULL, "%s: *out is not NULL", fragment);
    cr_assert(d->memory.live == live, "%s: leaked", fragment);
}

BackendTest(bevpool, refuses_maps)
{
    test_device d;
    map_args a;
    spops_bev_plan *out = untouched;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
#define BEND(fragment, ...) (a = good_map(), __VA_ARGS__, refuse_map(&d, &a, false, fragment))
    BEND("num_points", a.num_points = -1);
    BEND("num_points", a.num_points = (int64_t)INT32_MAX + 1);
    BEND("num_intervals", a.num_intervals = -1);
    BEND("num_intervals", a.num_intervals = INT64_MAX);
    BEND("ranks_depth", a.missing = 1);
    BEND("ranks_feat", a.missing = 2);
    BEND("ranks_bev", a.missing = 3);
    BEND("interval_starts", a.missing = 4);
    BEND("interval_lengths", a.missing = 5);
    BEND("ranks_depth[2]", a.depth[2] = 24);
    BEND("ranks_depth[0]", a.depth[0] = -1);
    BEND("ranks_feat[5]", a.feat[5] = 8);
    BEND("ranks_feat[1]", a.feat[1] = INT32_MIN);
    BEND("ranks_bev[3]", a.cell[3] = 12);
    BEND("ranks_bev[2]", a.cell[2] = -1);
    BEND("ranks_bev[4]", a.cell[4] = 10);        // differs in its interval
    BEND("cell 2", a.cell[2] = 2);               // owned twice
    BEND("interval_starts[1]", a.starts[1] = 1); // overlaps the one before
    BEND("interval_starts[2]", a.starts[2] = 2); // likewise
    BEND("interval_starts[1]", a.starts[0] = 2, a.lengths[0] = 1, a.starts[1] = 0);
    BEND("interval_starts[0]", a.starts[0] = -1);
    BEND("interval_starts[2]", a.starts[2] = 6);
    BEND("interval_lengths[1]", a.lengths[1] = 0);
    BEND("interval_lengths[1]", a.lengths[1] = -2);
    BEND("interval_lengths[2]", a.lengths[2] = 4); // past the end
    BEND("interval_lengths[2]", a.lengths[2] = INT32_MAX);
    BEND("num_cells_z", a.shape.num_cells_z = 0);
#undef BEND
#define BEND(fragment, ...) (a = good_map(), __VA_ARGS__, refuse_map(&d, &a, true, fragment))
    BEND("num_points", a.num_points = -1);
    BEND("num_intervals", a.num_intervals = -3);
    BEND("indices", a.missing = 1);
    BEND("intervals", a.missing = 4);
    BEND("indices[2]", a.depth[2] = 24);
    BEND("indices[5]", a.depth[5] = -3);
    BEND("intervals[0][0]", a.intervals[0] = -1);
    BEND("intervals[1][0]", a.intervals[3] = 1);
    BEND("intervals[1][1]", a.intervals[4] = 2);
    BEND("intervals[2][1]", a.intervals[7] = 7);
    BEND("intervals[2][2]", a.intervals[8] = 12);
    BEND("intervals[0][2]", a.intervals[2] = -1);
    BEND("cell 2", a.intervals[5] = 2);
    BEND("num_depths", a.shape.num_depths = -1);
#undef BEND
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    a = good_map();
    test_expect(d.ctx, spops_bev_plan_create_from_ranks(d.ctx, NULL, NULL, NULL, &out), invalid,
                "shape", "shape NULL");
    test_expect(d.ctx, spops_bev_plan_create_from_ranks(d.ctx, &a.shape, NULL, NULL, &out), invalid,
                "ranks", "ranks NULL");
    test_expect(d.ctx, spops_bev_plan_create_from_intervals(d.ctx, &a.shape, NULL, NULL, &out),
                invalid, "intervals", "intervals NULL");

    // Export with the wrong counts, or without the arrays.
    test_expect_ok(d.ctx, call_map(&d, &a, true, &out), "the good map");
    spops_bev_plan_destroy(out);
    test_expect_ok(d.ctx, call_map(&d, &a, false, &out), "the good map");
    int32_t *room = test_upload_i32(&d, a.depth, POINTS);
    spops_bev_ranks_out ranks = {sizeof ranks, POINTS - 1, INTERVALS, room, room, room, room, room};
    test_expect(d.ctx, spops_bev_plan_get_ranks_sync(d.ctx, out, &ranks), invalid, "num_points",
                "other counts");
    ranks.num_points = POINTS, ranks.num_intervals = INTERVALS + 1;
    test_expect(d.ctx, spops_bev_plan_get_ranks_sync(d.ctx, out, &ranks), invalid, "num_intervals",
                "other counts");
    ranks.num_intervals = INTERVALS, ranks.ranks_feat = NULL;
    test_expect(d.ctx, spops_bev_plan_get_ranks_sync(d.ctx, out, &ranks), invalid, "ranks_feat",
                "no array");
    test_expect(d.ctx, spops_bev_plan_get_ranks_sync(d.ctx, out, NULL), invalid, "ranks", "NULL");
    test_expect(d.ctx, spops_bev_plan_get_ranks_sync(d.ctx, NULL, &ranks), invalid, "plan", "NULL");
    spops_bev_intervals_out outer = {sizeof outer, POINTS, INTERVALS - 1, room, room};
    test_expect(d.ctx, spops_bev_plan_get_intervals_sync(d.ctx, out, &outer), invalid,
                "num_intervals", "other counts");
    spops_bev_plan_info info;
    info.struct_size = sizeof info + 1;
    test_expect(d.ctx, spops_bev_plan_get_info_sync(d.ctx, out, &info), invalid, "struct_size",
                "a longer info");
    test_expect(d.ctx, spops_bev_plan_get_info_sync(d.ctx, out, NULL), invalid, "info", "NULL");
    test_expect(d.ctx, spops_bev_plan_get_info_sync(d.ctx, NULL, &info), invalid, "plan", "NULL");
    test_free(&d, room);
    spops_bev_plan_destroy(out);
    test_close(&d);
}

// What the rows cannot say; tests/test_operators.c has the faults of arguments.
BackendTest(bevpool, refuses_execution)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    spops_context *ctx = d.ctx;
    bev_geometry_case g = bev_geometry_simulate(1, 2, 0.0);
    spops_bev_plan *plan = plan_of(&d, &g.geometry, 1), *forward_only = plan_of(&d, &g.geometry, 0);
    const spops_bev_plan_info info = bev_info(&d, plan);
    const spops_backend_kind b = d.backend;
    const spops_dtype f32 = SPOPS_DTYPE_F32;
    enum { COLS = 4 };
    guarded depth = guarded_create(b, "depth", info.num_depths, 1, 0, 0, f32);
    guarded feat = guarded_create(b, "feat", info.num_features, COLS, 0, 0, f32);
    guarded out = guarded_create(b, "out", info.num_cells, COLS, 0, 0, f32);
    guarded gd = guarded_create(b, "grad_depth", info.num_depths, 1, 0, 0, f32);
    guarded gf = guarded_create(b, "grad_feat", info.num_features, COLS, 0, 0, f32);
    guarded *all[] = {&depth, &feat, &out, &gd, &gf};
    test_rng rng = test_rng_make(4);
    for (int i = 0; i < 5; ++i) {
        free(guarded_fill(all[i], &rng, VALUES_EXACT, false, 1));
        guarded_upload(all[i]);
    }
    const spops_bev_layout last = SPOPS_BEV_CHANNELS_LAST, first = SPOPS_BEV_CHANNELS_FIRST;
    const spops_matrix D = depth.view, F = feat.view, O = out.view;
    const spops_matrix *GD = &gd.view;
    test_expect(ctx, spops_bevpool_execute_backward(ctx, forward_only, last, O, D, F, GD, NULL),
                SPOPS_STATUS_INVALID_ARGUMENT, "gradients = 0", "no gradients");
    test_wait(&d);
    guarded_check_untouched(&gd, "no gradients");
    // Channels first needs scratch, which another context has to reserve.
    spops_context *other = test_context(&d, 1);
    guarded cf = guarded_create(b, "out", COLS, info.num_cells, 0, 0, f32);
    guarded_upload(&cf);
    if (spops_bev_plan_scratch_bytes(plan) > 0) {
        test_expect(other, bev_execute(other, plan, first, D, F, cf.view),
                    SPOPS_STATUS_SCRATCH_TOO_SMALL, "bevpool_execute", "nothing reserved");
        guarded_check_untouched(&cf, "nothing reserved");
    }
    test_expect_ok(other, spops_context_reserve(other, spops_bev_plan_scratch_bytes(plan)), "");
    test_expect_ok(other, bev_execute(other, plan, first, D, F, cf.view), "reserved");
    test_wait(&d);
    spops_context_destroy(other);
    guarded_destroy(&cf);
    for (int i = 0; i < 5; ++i)
        guarded_destroy(all[i]);
    spops_bev_plan_destroy(plan), spops_bev_plan_destroy(forward_only);
    bev_geometry_free(&g);
    test_close(&d);
}

BackendTest(bevpool, load_refuses)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    char text[256];
    const map_args a = good_map();
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_bev_plan *plan = NULL, *out = untouched;
    spops_segments *segments = (spops_segments *)untouched;
    size_t bytes, n = 0, again_bytes;
    test_expect_ok(d.ctx, call_map(&d, &a, false, &plan), "the good map");
    unsigned char *data = save(&d, plan, &bytes), *copy = (unsigned char *)malloc(bytes);
    for (size_t length = 0; length < bytes; ++length) {
        unsigned char *cut = (unsigned char *)malloc(length + (length == 0));
        memcpy(cut, data, length);
        out = untouched;
        test_expect(d.ctx, saved_get(d.ctx, SPOPS_PLAN_BEV_PLAN, cut, length, &out),
                    SPOPS_STATUS_CORRUPT_DATA, "plan_load",
                    test_describe(text, "the first %zu of %zu bytes", length, bytes));
        cr_assert(out == NULL);
        free(cut);
    }
    for (size_t i = 0; i < bytes * 8; ++i) {
        memcpy(copy, data, bytes);
        copy[i / 8] = (unsigned char)(copy[i / 8] ^ 1u << (i % 8));
        out = untouched;
        const spops_status status = saved_get(d.ctx, SPOPS_PLAN_BEV_PLAN, copy, bytes, &out);
        test_describe(text, "byte %zu, bit %zu", i / 8, i % 8);
        if (status == SPOPS_STATUS_OK) {
            unsigned char *again = save(&d, out, &again_bytes);
            cr_assert(again_bytes == bytes && memcmp(again, data, bytes) == 0,
                      "%s: loaded as another plan", text);
            free(again);
            spops_bev_plan_destroy(out);
        } else {
            test_expect(d.ctx, status, SPOPS_STATUS_CORRUPT_DATA, "plan_load", text);
            cr_assert(out == NULL);
        }
    }
    // One kind of plan is not read as the other.
    test_expect(d.ctx, saved_get(d.ctx, SPOPS_PLAN_SEGMENTS, data, bytes, &segments),
                SPOPS_STATUS_CORRUPT_DATA, "plan_load", "a BEV plan");
    cr_assert(segments == NULL);
    test_expect(d.ctx, saved_get(d.ctx, SPOPS_PLAN_BEV_PLAN, NULL, bytes, &out), invalid, "data",
                "data NULL");
    test_expect(d.ctx, saved_get(d.ctx, SPOPS_PLAN_BEV_PLAN, data, bytes, NULL), invalid,
                "plan is NULL", "out NULL");
    test_expect(NULL, saved_get(NULL, SPOPS_PLAN_BEV_PLAN, data, bytes, &out), invalid, "ctx",
                "ctx NULL");
    test_expect(d.ctx, saved_put(d.ctx, plan, copy, bytes - 1, &n), invalid, "capacity",
                "one byte short");
    free(data), free(copy);
    spops_bev_plan_destroy(plan);
    test_close(&d);
}
