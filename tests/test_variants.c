// SPDX-License-Identifier: Apache-2.0
// Variants of kernels that a plan is asked for: those that exist give the same bits, others are
// refused, and a plan says which one it takes. (What the tuning tables choose: unit/test_tuning.c.)
// Tiles of matrix kernels cut sums differently: their inputs are whole numbers, whose sums are exact.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "kernels/bevpool/bev_spans_tuning.h"
#include "kernels/igemm/igemm_tuning.h"
#include "kernels/mvmr/mvmr_tuning.h"
#include "kernels/segreduce/segreduce_tuning.h"
#include "support/device.h"
#include "tests/support/bev_cases.h"
#include "tests/support/params.h"

// Rows of f32 or f16 between 1 and 2 where d runs.
static spops_matrix some_rows(test_device *d, int64_t rows, int64_t cols, spops_dtype dtype)
{
    const size_t bytes = (size_t)(rows * cols) * spops_dtype_bytes(dtype);
    uint8_t *host = malloc(bytes);
    void *data = NULL;
    uint32_t state = 12345;
    for (int64_t i = 0; i < rows * cols; ++i) {
        state = state * 1664525u + 1013904223u;
        if (dtype == SPOPS_DTYPE_F32)
            ((uint32_t *)host)[i] = 0x3f800000u | state >> 9;
        else
            ((uint16_t *)host)[i] = (uint16_t)(0x3c00u | state >> 22);
    }
    cr_assert(device_alloc(d->backend, bytes, &data) &&
              device_upload(d->backend, data, host, bytes));
    free(host);
    return spops_matrix_dense(data, rows, cols, dtype);
}

// The bytes of a matrix, which the caller frees.
static uint8_t *bytes_of(test_device *d, spops_matrix m)
{
    const size_t bytes = (size_t)(m.rows * m.cols) * spops_dtype_bytes(m.dtype);
    uint8_t *host = malloc(bytes);
    test_wait(d);
    cr_assert(device_download(d->backend, host, m.data, bytes));
    return host;
}

static void expect_bits(test_device *d, spops_matrix found, const uint8_t *expected,
                        const char *what)
{
    uint8_t *bits = bytes_of(d, found);
    cr_assert(memcmp(bits, expected,
                     (size_t)(found.rows * found.cols) * spops_dtype_bytes(found.dtype)) == 0,
              "%s", what);
    free(bits);
}

// ---- Sums ---------------------------------------------------------------------------------------

enum { SEGMENTS = 3000, TERMS = 60000, SUM_COLS = 64 };

// Segments of 0 to 30 terms, and one of those that are left.
static int32_t *some_offsets(test_device *d)
{
    int32_t offsets[SEGMENTS + 1] = {0};
    for (int s = 1; s < SEGMENTS; ++s)
        offsets[s] = offsets[s - 1] + s * 7 % 31;
    offsets[SEGMENTS] = TERMS;
    return test_upload_i32(d, offsets, SEGMENTS + 1);
}

static void check_sums(test_device *d, const int32_t *offsets, spops_dtype dtype)
{
    const spops_matrix x = some_rows(d, TERMS, SUM_COLS, dtype);
    const spops_matrix out = some_rows(d, SEGMENTS, SUM_COLS, dtype);
    uint8_t *expected = NULL;
    for (int32_t v = 0; v <= SPOPS_SEGREDUCE_NUM_VARIANTS; ++v) {
        spops_segments_options options = spops_segments_options_default();
        spops_segments_info info = spops_segments_info_default();
        spops_segments *plan = NULL;
        char what[256];
        options.max_cols = SUM_COLS;
        options.sum_variant = v;
        test_describe(what, "%s, sum_variant %d", spops_dtype_name(dtype), (int)v);
        test_expect_ok(d->ctx, spops_segments_create(d->ctx, SEGMENTS, offsets, &options, &plan),
                       what);
        test_expect_ok(d->ctx, spops_segments_get_info_sync(d->ctx, plan, &info), what);
        cr_assert(v == 0 ? info.sum_variant >= 1 && info.sum_variant <= SPOPS_SEGREDUCE_NUM_VARIANTS
                         : info.sum_variant == v,
                  "%s: found %d", what, (int)info.sum_variant);
        device_fill(d->backend, out.data, 0xff,
                    (size_t)(out.rows * out.cols) * spops_dtype_bytes(dtype));
        test_expect_ok(d->ctx,
                       spops_segreduce_execute(d->ctx, plan, SPOPS_REDUCE_SUM, x, NULL, out, NULL),
                       what);
        if (expected == NULL)
            expected = bytes_of(d, out);
        else
            expect_bits(d, out, expected, what);
        spops_segments_destroy(plan);
    }
    free(expected);
    device_free(d->backend, x.data);
    device_free(d->backend, out.data);
}

BackendTest(variants, sums)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const bool chooses = p->backend == SPOPS_BACKEND_CUDA;
    spops_segments_options options = spops_segments_options_default();
    spops_segments *plan = NULL;
    int32_t *offsets = some_offsets(&d);
    static const int32_t absent[] = {-1, SPOPS_SEGREDUCE_NUM_VARIANTS + 1, 100};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; ++i) {
        options.sum_variant = absent[i];
        test_expect(d.ctx, spops_segments_create(d.ctx, SEGMENTS, offsets, &options, &plan),
                    SPOPS_STATUS_INVALID_ARGUMENT, "sum_variant", "no such variant");
        cr_assert(plan == NULL);
    }
    options.sum_variant = 1;
    test_expect(d.ctx, spops_segments_reserve(d.ctx, SEGMENTS, TERMS, &options, &plan),
                SPOPS_STATUS_INVALID_ARGUMENT, "sum_variant", "a plan that is refilled");
    if (chooses) {
        check_sums(&d, offsets, SPOPS_DTYPE_F32);
        check_sums(&d, offsets, SPOPS_DTYPE_F16);
        check_sums(&d, offsets, SPOPS_DTYPE_BF16);
    } else {
        test_expect(d.ctx, spops_segments_create(d.ctx, SEGMENTS, offsets, &options, &plan),
                    SPOPS_STATUS_INVALID_ARGUMENT, "expected 0 to 0", "no variants on the CPU");
        options.sum_variant = 0;
        spops_segments_info info = spops_segments_info_default();
        test_expect_ok(d.ctx, spops_segments_create(d.ctx, SEGMENTS, offsets, &options, &plan),
                       "without a variant");
        test_expect_ok(d.ctx, spops_segments_get_info_sync(d.ctx, plan, &info), "info");
        cr_assert(info.sum_variant == 0);
        spops_segments_destroy(plan);
    }
    test_free(&d, offsets);
    test_close(&d);
}

// ---- Pooling over spans -------------------------------------------------------------------------

// All variants that suit rows of cols columns; the others are refused when they are to pool.
static void check_pooling(test_device *d, const spops_bev_geometry *g, int64_t cols)
{
    const spops_bev_shape *s = &g->shape;
    const int64_t pixels =
        (int64_t)s->num_batches * s->num_cameras * s->feature_height * s->feature_width;
    const int64_t cells =
        (int64_t)s->num_batches * s->num_cells_x * s->num_cells_y * s->num_cells_z;
    const spops_matrix feat = some_rows(d, pixels, cols, SPOPS_DTYPE_F16);
    const spops_matrix depth = some_rows(d, pixels * s->num_depths, 1, SPOPS_DTYPE_F16);
    const spops_matrix out = some_rows(d, cells, cols, SPOPS_DTYPE_F16);
    uint8_t *expected = NULL;
    for (int32_t v = 0; v <= SPOPS_BEV_POOL_NUM_VARIANTS; ++v) {
        spops_bev_options options = spops_bev_options_default();
        spops_bev_plan_info info = spops_bev_plan_info_default();
        spops_bev_plan *plan = NULL;
        char what[256];
        options.max_cols = cols;
        options.kernel = SPOPS_BEV_KERNEL_SPANS;
        options.pool_variant = v;
        test_describe(what, "%d columns, pool_variant %d", (int)cols, (int)v);
        test_expect_ok(d->ctx, spops_bev_plan_create(d->ctx, g, &options, &plan), what);
        test_expect_ok(d->ctx, spops_bev_plan_get_info_sync(d->ctx, plan, &info), what);
        const bool accepts = v == 0 || spops_bev_pool_accepts(v, cols);
        cr_assert(v == 0 ? info.pool_variant >= 1 : info.pool_variant == (accepts ? v : 0),
                  "%s: found %d", what, (int)info.pool_variant);
        device_fill(d->backend, out.data, 0xff, (size_t)(cells * cols) * 2);
        spops_bevpool_args pool = spops_bevpool_args_default();
        pool.depth = depth;
        pool.feat = feat;
        pool.out = out;
        const spops_status status = spops_bevpool_execute(d->ctx, plan, &pool);
        if (!accepts) {
            test_expect(d->ctx, status, SPOPS_STATUS_INVALID_ARGUMENT, "pool_variant", what);
        } else {
            test_expect_ok(d->ctx, status, what);
            if (expected == NULL)
                expected = bytes_of(d, out);
            else
                expect_bits(d, out, expected, what);
        }
        spops_bev_plan_destroy(plan);
    }
    free(expected);
    device_free(d->backend, feat.data);
    device_free(d->backend, depth.data);
    device_free(d->backend, out.data);
}

BackendTest(variants, pooling)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    bev_geometry_case g = bev_geometry_simulate(2, 4, 0.3);
    spops_bev_options options = spops_bev_options_default();
    spops_bev_plan *plan = NULL;
    static const int32_t absent[] = {-1, SPOPS_BEV_POOL_NUM_VARIANTS + 1, 100};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; ++i) {
        options.pool_variant = absent[i];
        test_expect(d.ctx, spops_bev_plan_create(d.ctx, &g.geometry, &options, &plan),
                    SPOPS_STATUS_INVALID_ARGUMENT, "pool_variant", "no such variant");
        cr_assert(plan == NULL);
    }
    options.kernel = SPOPS_BEV_KERNEL_INTERVALS;
    options.pool_variant = 1;
    test_expect(d.ctx, spops_bev_plan_create(d.ctx, &g.geometry, &options, &plan),
                SPOPS_STATUS_INVALID_ARGUMENT, "pools by lists", "a plan without spans");
    test_expect(d.ctx, spops_bev_plan_reserve(d.ctx, &g.geometry, &options, &plan),
                SPOPS_STATUS_INVALID_ARGUMENT, "pools by lists", "a plan that is refilled");
    if (p->backend == SPOPS_BACKEND_CUDA) {
        static const int64_t cols[] = {8, 64, 80, 96, 128, 136, 160, 256};
        for (size_t i = 0; i < sizeof cols / sizeof *cols; ++i)
            check_pooling(&d, &g.geometry, cols[i]);
    }
    bev_geometry_free(&g);
    test_close(&d);
}

// ---- Tiles of triplets --------------------------------------------------------------------------

enum { SIDE_ROWS = 400, MATRICES = 9, TRIPLETS = 3000, MVMR_COLS = 72 };

// Rows by chance, three triplets in four into the first of two outputs; `apart`: no row twice.
static spops_triplets *make_triplets(test_device *d, bool apart, int32_t tile)
{
    static int32_t out[TRIPLETS], in[TRIPLETS], matrices[TRIPLETS];
    const int64_t n = apart ? SIDE_ROWS : TRIPLETS;
    const spops_triplets_shape shape = {SIDE_ROWS, SIDE_ROWS, MATRICES, n};
    spops_triplets_options options = spops_triplets_options_default();
    spops_triplets_info info = spops_triplets_info_default();
    spops_triplets *plan = NULL;
    uint32_t state = 5;
    for (int64_t t = 0; t < n; ++t) {
        state = state * 1664525u + 1013904223u;
        out[t] = (int32_t)(apart ? t * 7 % SIDE_ROWS : (state >> 8) % SIDE_ROWS);
        in[t] = (int32_t)(apart ? t * 3 % SIDE_ROWS : (state >> 4) % SIDE_ROWS);
        matrices[t] = (int32_t)((state >> 12) % MATRICES);
    }
    int32_t *const there[] = {test_upload_i32(d, out, n), test_upload_i32(d, in, n),
                              test_upload_i32(d, matrices, n)};
    options.tile = tile;
    options.backward = 1;
    test_expect_ok(
        d->ctx,
        spops_triplets_create(d->ctx, &shape, there[0], there[1], there[2], &options, &plan),
        "triplets");
    test_expect_ok(d->ctx, spops_triplets_get_info_sync(d->ctx, plan, &info), "info");
    cr_assert(tile == 0 ? info.tile >= 1 && info.tile <= SPOPS_MVMR_NUM_TILES : info.tile == tile,
              "tile %d, found %d", (int)tile, (int)info.tile);
    cr_assert_eq(info.direct, apart);
    for (int i = 0; i < 3; ++i)
        test_free(d, there[i]);
    return plan;
}

// Sums or rows on their own, matrices whole or diagonal, and the gradient of the factors: the same bits
// on every tile.
static void check_triplets(test_device *d, bool apart, bool diagonal, spops_dtype dtype)
{
    const int64_t n = apart ? SIDE_ROWS : TRIPLETS;
    const spops_matrix x = some_rows(d, SIDE_ROWS, MVMR_COLS, dtype);
    const spops_matrix w =
        some_rows(d, diagonal ? MATRICES : MATRICES * MVMR_COLS, MVMR_COLS, dtype);
    const spops_matrix out = some_rows(d, SIDE_ROWS, MVMR_COLS, dtype);
    const spops_matrix factors = some_rows(d, n, 1, SPOPS_DTYPE_F32);
    spops_mvmr_options options = spops_mvmr_options_default();
    uint8_t *expected[2] = {NULL, NULL};
    options.diagonal = diagonal;
    for (int32_t tile = 0; tile <= SPOPS_MVMR_NUM_TILES; ++tile) {
        spops_triplets *const plan = make_triplets(d, apart, tile);
        const spops_matrix results[] = {out, factors};
        char what[256];
        test_describe(what, "%s, direct %d, diagonal %d, tile %d", spops_dtype_name(dtype),
                      (int)apart, (int)diagonal, (int)tile);
        for (int i = 0; i < 2; ++i)
            device_fill(d->backend, results[i].data, 0xff,
                        (size_t)(results[i].rows * results[i].cols) *
                            spops_dtype_bytes(results[i].dtype));
        const int32_t prepared = d->ctx->prepared_kernels.num;
        test_expect_ok(d->ctx, spops_mvmr_execute(d->ctx, plan, x, w, NULL, &options, out), what);
        test_expect_ok(d->ctx,
                       spops_mvmr_execute_backward(d->ctx, plan, out, x, w, NULL, &options, NULL,
                                                   NULL, &factors),
                       what);
        cr_assert_eq(d->ctx->prepared_kernels.num, prepared, "%s: a call prepared a kernel", what);
        for (int i = 0; i < 2; ++i) {
            if (tile == 0)
                expected[i] = bytes_of(d, results[i]);
            else
                expect_bits(d, results[i], expected[i], what);
        }
        spops_triplets_destroy(plan);
    }
    for (int i = 0; i < 2; ++i)
        free(expected[i]);
    device_free(d->backend, x.data);
    device_free(d->backend, w.data);
    device_free(d->backend, out.data);
    device_free(d->backend, factors.data);
}

Test(variants, triplets)
{
    test_device d;
    if (!test_open(&d, SPOPS_BACKEND_CUDA, LAUNCH_DEFAULT)) return;
    for (int kind = 0; kind < 4; ++kind)
        for (int t = 0; t < NUM_ROW_DTYPES; ++t)
            check_triplets(&d, kind & 1, kind & 2, test_row_dtypes[t]);
    test_close(&d);
}

// ---- Tiles of products by taps ------------------------------------------------------------------

enum { CELLS = 11, MOST_POINTS = CELLS * CELLS * CELLS, TAPS = 27 };

// What a convolution is made from, and which tiles it takes.
typedef enum conv_relation { MAP, NEIGHBORS_BY_TAP, NEIGHBORS } conv_relation;

typedef struct conv_case {
    test_device *d;
    conv_relation relation;
    spops_coords *coords;
    spops_kernel_map *map;
    spops_neighbors *neighbors;
    void *given;
    int64_t num_rows, in, out;
    spops_dtype dtype;
    spops_conv_layer layer;
    spops_matrix x, w, g, results[3]; // of the passes
    uint8_t *expected[3];
} conv_case;

static bool device_has(const conv_case *c, spops_igemm_kernel kernel)
{
    const bool sm90 = c->d->ctx->info.compute_capability == 90;
    switch (kernel) {
    case SPOPS_IGEMM_SM80: return true;
    case SPOPS_IGEMM_SM90: return sm90 && c->relation == MAP;
    case SPOPS_IGEMM_SM90_ADDS: return sm90 && c->relation != MAP;
    case SPOPS_IGEMM_WGRAD: return sm90 && c->relation != NEIGHBORS;
    case SPOPS_IGEMM_WGRAD_UNITS: return sm90 && c->relation == NEIGHBORS;
    default: return false;
    }
}

// Whether the gradient of W runs on a tile: not in f32.
static bool has_gradient(const conv_case *c)
{
    return c->dtype != SPOPS_DTYPE_F32 && c->d->ctx->info.compute_capability == 90;
}

// -1, 0 or 1.
static spops_matrix whole_numbers(test_device *d, int64_t rows, int64_t cols, spops_dtype dtype)
{
    static const uint16_t one_of_16[] = {[SPOPS_DTYPE_F16] = 0x3c00, [SPOPS_DTYPE_BF16] = 0x3f80};
    const size_t bytes = spops_dtype_bytes(dtype), n = (size_t)(rows * cols);
    uint8_t *host = calloc(n, bytes);
    void *data = NULL;
    uint32_t state = (uint32_t)(rows + 7 * cols);
    for (size_t i = 0; i < n; ++i) {
        state = state * 1664525u + 1013904223u;
        const uint32_t sign = state >> 30 & 1u;
        if (state >> 29 == 0) continue; // one of eight is 0
        if (dtype == SPOPS_DTYPE_F32)
            ((uint32_t *)host)[i] = 0x3f800000u | sign << 31;
        else
            ((uint16_t *)host)[i] = (uint16_t)(one_of_16[dtype] | sign << 15);
    }
    cr_assert(device_alloc(d->backend, n * bytes, &data) &&
              device_upload(d->backend, data, host, n * bytes));
    free(host);
    return spops_matrix_dense(data, rows, cols, dtype);
}

// Two cells of three are taken; of points every cell has up to three, which share taps.
static void make_relation(conv_case *c)
{
    const spops_kernel_shape cube = spops_kernel_shape_cube(3, 3, 1, 1);
    static int32_t cells[MOST_POINTS * 4];
    static float points[MOST_POINTS * 3];
    spops_neighbors_options search = spops_neighbors_options_default();
    spops_context *ctx = c->d->ctx;

    c->num_rows = 0;
    for (int32_t v = 0; v < MOST_POINTS; ++v) {
        if (v * 7 % 3 == 0) continue;
        for (int a = 0, at = v; a < 3; ++a, at /= CELLS) {
            cells[4 * c->num_rows + 1 + a] = at % CELLS;
            points[3 * c->num_rows + a] = (float)(at % CELLS) * 0.6f;
        }
        ++c->num_rows;
    }
    if (c->relation == MAP) {
        c->given = test_upload_i32(c->d, cells, 4 * c->num_rows);
        test_expect_ok(ctx, spops_coords_create(ctx, 3, c->num_rows, c->given, NULL, &c->coords),
                       "set");
        test_expect_ok(ctx,
                       spops_kernel_map_create(ctx, SPOPS_MAP_SUBMANIFOLD, &cube, c->coords, NULL,
                                               NULL, &c->map),
                       "map");
        return;
    }
    c->given = test_upload_i32(c->d, (const int32_t *)points, 3 * c->num_rows);
    const spops_point_cloud cloud = {spops_matrix_dense(c->given, c->num_rows, 3, SPOPS_DTYPE_F32),
                                     NULL, 0};
    search.radius_m = 1.5f;
    search.taps = 3;
    search.tap_size_m = 1.0f;
    search.contents = SPOPS_NEIGHBORS_REVERSE |
                      (c->relation == NEIGHBORS_BY_TAP ? (int32_t)SPOPS_NEIGHBORS_BY_TAP : 0);
    test_expect_ok(ctx, spops_neighbors_create(ctx, NULL, &cloud, &search, &c->neighbors),
                   "neighbours");
}

static spops_status create_conv(conv_case *c, int32_t tile, spops_plan **conv)
{
    spops_sparseconv_options sparse = spops_sparseconv_options_default();
    spops_pointconv_options points = spops_pointconv_options_default();
    sparse.backward = points.backward = 1;
    sparse.dataflow = points.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    sparse.tile = points.tile = tile;
    points.sums = SPOPS_POINTCONV_SUMS_FIRST;
    points.detach = c->relation == NEIGHBORS; // else triplets would serve the gradient of W
    *conv = NULL;
    return c->relation == MAP
               ? spops_sparseconv_create(c->d->ctx, c->map, &sparse, (spops_sparseconv **)conv)
               : spops_pointconv_create(c->d->ctx, c->neighbors, &points, (spops_pointconv **)conv);
}

static spops_status run_conv(conv_case *c, const spops_plan *conv)
{
    const spops_matrix *const grad_w = has_gradient(c) ? &c->results[SPOPS_PASS_GRAD_W] : NULL;
    const spops_matrix out = c->results[SPOPS_PASS_FORWARD];
    const spops_sparseconv *const sparse = (const spops_sparseconv *)conv;
    const spops_pointconv *const points = (const spops_pointconv *)conv;
    spops_context *ctx = c->d->ctx;
    if (c->relation == MAP) {
        const spops_status status =
            spops_sparseconv_execute(ctx, sparse, c->x, c->w, &c->layer, out);
        return status != SPOPS_STATUS_OK
                   ? status
                   : spops_sparseconv_execute_backward(ctx, sparse, c->g, c->x, c->w, &c->layer,
                                                       &c->results[SPOPS_PASS_GRAD_X], grad_w,
                                                       NULL);
    }
    const spops_status status = spops_pointconv_execute(ctx, points, c->x, c->w, &c->layer, out);
    return status != SPOPS_STATUS_OK
               ? status
               : spops_pointconv_execute_backward(ctx, points, c->g, c->x, c->w, &c->layer,
                                                  &c->results[SPOPS_PASS_GRAD_X], grad_w, NULL);
}

static int32_t chosen_tile(conv_case *c, const spops_plan *conv, spops_conv_pass pass)
{
    spops_conv_choice choice;
    test_expect_ok(c->d->ctx,
                   c->relation == MAP
                       ? spops_sparseconv_get_choice(c->d->ctx, (const spops_sparseconv *)conv,
                                                     pass, c->dtype, c->in, c->out, &c->layer,
                                                     &choice)
                       : spops_pointconv_get_choice(c->d->ctx, (const spops_pointconv *)conv, pass,
                                                    c->dtype, c->in, c->out, &c->layer, &choice),
                   "choice");
    return choice.tile;
}

static void check_tile(conv_case *c, int32_t tile)
{
    const spops_igemm_kernel kernel = spops_igemm_kernel_of(tile);
    spops_context *ctx = c->d->ctx;
    spops_plan *conv;
    char what[256];

    test_describe(what, "relation %d, %s, %d to %d channels, tile %d", (int)c->relation,
                  spops_dtype_name(c->dtype), (int)c->in, (int)c->out, (int)tile);
    if (tile != 0 && !device_has(c, kernel)) {
        test_expect(ctx, create_conv(c, tile, &conv), SPOPS_STATUS_INVALID_ARGUMENT,
                    "options->tile is", what);
        return;
    }
    test_expect_ok(ctx, create_conv(c, tile, &conv), what);
    for (int pass = 0; pass < 3; ++pass) {
        if (pass == SPOPS_PASS_GRAD_W && !has_gradient(c)) continue;
        const int32_t found = chosen_tile(c, conv, (spops_conv_pass)pass);
        const bool asked =
            tile != 0 && spops_igemm_is_gradient(tile) == (pass == SPOPS_PASS_GRAD_W);
        cr_assert(asked ? found == tile : device_has(c, spops_igemm_kernel_of(found)),
                  "%s: pass %d takes %d", what, pass, (int)found);
        device_fill(c->d->backend, c->results[pass].data, 0xff,
                    (size_t)(c->results[pass].rows * c->results[pass].cols) * sizeof(float));
    }
    const int32_t prepared = ctx->prepared_kernels.num;
    test_expect_ok(ctx, run_conv(c, conv), what);
    cr_assert_eq(ctx->prepared_kernels.num, prepared, "%s: a call prepared a kernel", what);
    for (int pass = 0; pass < 3; ++pass) {
        if (pass == SPOPS_PASS_GRAD_W && !has_gradient(c)) continue;
        if (tile == 0)
            c->expected[pass] = bytes_of(c->d, c->results[pass]);
        else
            expect_bits(c->d, c->results[pass], c->expected[pass], what);
    }
    spops_plan_destroy(conv);
}

static void check_tiles(conv_case *c)
{
    const spops_dtype f32 = SPOPS_DTYPE_F32;
    c->layer = spops_conv_layer_default();
    c->layer.math = SPOPS_MATH_TF32; // of f32; whole numbers are none the less exact
    c->x = whole_numbers(c->d, c->num_rows, c->in, c->dtype);
    c->w = whole_numbers(c->d, TAPS * c->in, c->out, c->dtype);
    c->g = whole_numbers(c->d, c->num_rows, c->out, c->dtype);
    c->results[SPOPS_PASS_FORWARD] = whole_numbers(c->d, c->num_rows, c->out, f32);
    c->results[SPOPS_PASS_GRAD_X] = whole_numbers(c->d, c->num_rows, c->in, f32);
    c->results[SPOPS_PASS_GRAD_W] = whole_numbers(c->d, TAPS * c->in, c->out, f32);
    for (int32_t tile = 0; tile <= SPOPS_IGEMM_NUM_TILES; ++tile)
        check_tile(c, tile);
    check_tile(c, SPOPS_IGEMM_NUM_TILES + 1);
    check_tile(c, -1);
    for (int pass = 0; pass < 3; ++pass) {
        free(c->expected[pass]);
        c->expected[pass] = NULL;
        device_free(c->d->backend, c->results[pass].data);
    }
    device_free(c->d->backend, c->x.data);
    device_free(c->d->backend, c->w.data);
    device_free(c->d->backend, c->g.data);
}

CaseTest(variants, tiles, every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0))
{
    static const int64_t channels[][2] = {{16, 32}, {64, 136}, {256, 64}};
    test_device d;
    if (p->backend != SPOPS_BACKEND_CUDA || p->launch != LAUNCH_DEFAULT) return;
    if (!test_open(&d, SPOPS_BACKEND_CUDA, LAUNCH_DEFAULT)) return;
    for (int relation = MAP; relation <= NEIGHBORS && d.ctx->info.compute_capability >= 80;
         ++relation) {
        conv_case c = {
            .d = &d, .relation = (conv_relation)relation, .dtype = (spops_dtype)p->dtype};
        make_relation(&c);
        for (size_t i = 0; i < sizeof channels / sizeof *channels; ++i) {
            c.in = channels[i][0], c.out = channels[i][1];
            check_tiles(&c);
        }
        spops_kernel_map_destroy(c.map);
        spops_coords_destroy(c.coords);
        spops_neighbors_destroy(c.neighbors);
        test_free(&d, c.given);
    }
    test_close(&d);
}
