// SPDX-License-Identifier: Apache-2.0
// Which bits are the same (docs/reproducibility.md): on every instruction set, and on GPUs of one
// architecture with more or fewer multiprocessors. And how good sums are, however long.
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/context.h"
#include "spops/spops.h"
#include "support/device.h"
#include "tests/support/drawn_call.h"

static spops_context *open_context(spops_backend_kind kind)
{
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;
    options.backend = kind;
    cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_OK, "%s",
                 spops_last_error(NULL));
    return ctx;
}

#define OK(ctx, call) cr_assert_eq((call), SPOPS_STATUS_OK, "%s: %s", #call, spops_last_error(ctx))

// ---- Every operator, drawn ----------------------------------------------------------------------

enum {
    TRIES = 20000,
    LARGE_TRIES = 100,
    DRAWS = 14,
    CHAIN_DRAWS = 5,
    PLAN_DRAWS = 2,
    MAX_OPERATORS = 256
};

// What the calls of one run gave; those of one draw differ in nothing but where they ran.
typedef struct run {
    uint64_t found[MAX_OPERATORS][DRAWS];
} run;

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; ++i)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

// Fewer where plans of plans have to be made for each.
static int num_draws(const spops_operator *op)
{
    const spops_row *row = spops_row_of((spops_operator_id)op->index);
    if (strstr(op->function, "_execute") == NULL) return PLAN_DRAWS;
    for (int i = 0; i < row->num_args; ++i)
        if (row->args[i].is_plan &&
            *spops_plan_kinds(NULL)[row->args[i].plan_kind - 1].parents != '\0')
            return CHAIN_DRAWS;
    return DRAWS;
}

static bool is_among(const char *name, const char *const *names, size_t num)
{
    for (size_t i = 0; i < num; ++i)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

// Outputs of a valid call, and what a plan that it made holds.
static uint64_t hash_call(test_device *d, const spops_operator *op, int draw)
{
    static drawn_call c;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    test_rng rng = drawn_call_rng(op, 11000 + draw);
    spops_value ret;
    size_t bytes;

    drawn_call_scale(DRAWN_LARGE);
    int tries = drawn_call_find(&c, d, op, &rng, LARGE_TRIES, &ret);
    drawn_call_scale(DRAWN_SMALL);
    if (tries == 0) tries = drawn_call_find(&c, d, op, &rng, TRIES, &ret);
    if (getenv("SPOPS_TEST_VERBOSE") != NULL)
        printf("%-28s %d tries, %g s\n", op->name, tries, (double)clock() / CLOCKS_PER_SEC);
    cr_assert(tries > 0, "%s: no valid call", op->name);
    hash = hash_bytes(hash, &tries, sizeof tries);
    if (ret.type == SPOPS_VALUE_POINTER) {
        int64_t counts[128];
        int32_t num = 0;
        test_expect_ok(d->ctx, spops_plan_get_state_sync(d->ctx, ret.v.p, counts, 128, &num),
                       op->name);
        hash = hash_bytes(hash, counts, (size_t)num * sizeof *counts);
    }
    drawn_call_drop(&c, &ret);
    test_wait(d);
    if (drawn_call_is_specified(&c)) {
        unsigned char *outputs = drawn_call_outputs(&c, &bytes);
        hash = hash_bytes(hash, outputs, bytes);
        free(outputs);
    }
    drawn_call_free(&c);
    return hash;
}

// num_threads, num_processors 0: as many as there are.
static void run_all(run *r, spops_backend_kind kind, int32_t num_threads, int32_t num_processors)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    test_device d;

    cr_assert(num <= MAX_OPERATORS && test_open(&d, kind, LAUNCH_DEFAULT));
    spops_context_destroy(d.ctx);
    d.ctx = test_context(&d, num_threads);
    if (num_processors > 0) d.ctx->info.num_processors = num_processors;
    for (int32_t i = 0; i < num; ++i)
        for (int draw = 0; draw < num_draws(ops[i]); ++draw)
            r->found[i][draw] = hash_call(&d, ops[i], draw);
    test_close(&d);
}

static bool is_tested(const char *backend)
{
    const char *only = getenv("SPOPS_TEST_BACKEND");
    return only == NULL || strcmp(only, backend) == 0;
}

// All but the operators named gave the same; how many of these did not.
static int expect_same(const run *a, const run *b, const char *what, const char *const *others,
                       size_t num_others)
{
    int32_t num, num_differ = 0;
    const spops_operator *const *ops = spops_operators(&num);
    for (int32_t i = 0; i < num; ++i) {
        const bool is_other = is_among(ops[i]->name, others, num_others);
        int differ = 0;
        for (int draw = 0; draw < num_draws(ops[i]); ++draw)
            differ += a->found[i][draw] != b->found[i][draw];
        num_differ += is_other && differ > 0;
        cr_expect(differ == 0 || is_other, "%s: %d of %d draws have other bits with %s",
                  ops[i]->name, differ, num_draws(ops[i]), what);
    }
    return num_differ;
}

// ---- Threads and instruction sets ---------------------------------------------------------------

// What a processor without fused multiply-add gives other bits of.
static const char *const multiply_and_add[] = {"segreduce",
                                               "segreduce_backward",
                                               "gather_backward",
                                               "mvmr",
                                               "mvmr_backward",
                                               "vvor",
                                               "sparseconv",
                                               "sparseconv_backward",
                                               "pointconv",
                                               "pointconv_backward",
                                               "bevpool",
                                               "bevpool_backward",
                                               "attention",
                                               "attention_backward",
                                               "linear",
                                               "linear_backward",
                                               "sddmm",
                                               "sddmm_backward",
                                               "spmm",
                                               "spmm_backward"};

Test(reproducible, instruction_sets_and_threads)
{
    static const struct {
        const char *isa;
        int32_t threads;
    } others[] = {{"avx512", 5}, {"avx2", 1}, {"baseline", 3}};
    static run best, lesser;
    char what[64];
    if (!is_tested("cpu")) return;
    unsetenv("SPOPS_CPU_ISA");
    run_all(&best, SPOPS_BACKEND_CPU, 0, 0);
    for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
        const char *isa = others[i].isa;
        const bool is_baseline = strcmp(isa, "baseline") == 0;
        if (!test_has_cpu_isa(isa)) continue;
        setenv("SPOPS_CPU_ISA", isa, 1);
        run_all(&lesser, SPOPS_BACKEND_CPU, others[i].threads, 0);
        snprintf(what, sizeof what, "%s on %d threads", isa, (int)others[i].threads);
        const int differ =
            expect_same(&lesser, &best, what, multiply_and_add,
                        is_baseline ? sizeof multiply_and_add / sizeof *multiply_and_add : 0);
        if (is_baseline && test_has_cpu_isa("avx2"))
            cr_expect_geq(differ, 10, "%d operators differ where products are rounded", differ);
    }
    unsetenv("SPOPS_CPU_ISA");
}

// ---- Multiprocessors ----------------------------------------------------------------------------

// What no draw is as large as: convolutions with full tiles, and BEV pooling over spans.
enum { COLS = 80, MAX_DIGESTS = 16, MAX_BLOCKS = 48 };

typedef struct digest {
    const char *name;
    uint64_t hash;
} digest;

typedef struct large_run {
    spops_context *ctx;
    digest found[MAX_DIGESTS];
    int num_found;
    void *blocks[MAX_BLOCKS]; // freed at the end
    int num_blocks;
} large_run;

static void *there(large_run *r, const void *host, size_t bytes)
{
    void *p = NULL;
    cr_assert(r->num_blocks < MAX_BLOCKS && device_alloc(SPOPS_BACKEND_CUDA, bytes, &p), "%s",
              device_error());
    r->blocks[r->num_blocks++] = p;
    if (host != NULL)
        cr_assert(device_upload(SPOPS_BACKEND_CUDA, p, host, bytes), "%s", device_error());
    return p;
}

// rows * cols numbers of either sign, no two products alike: f16 of 10 random bits.
static spops_matrix numbers(large_run *r, uint64_t seed, int64_t rows, int64_t cols)
{
    const size_t n = (size_t)(rows * cols);
    uint16_t *halves = malloc(n * sizeof *halves);
    test_rng state = test_rng_make(seed);
    cr_assert(halves != NULL);
    for (size_t i = 0; i < n; ++i)
        halves[i] = (uint16_t)((test_rng_next(&state) & 0x83ff) | 0x3400);
    const spops_matrix m =
        spops_matrix_dense(there(r, halves, n * sizeof *halves), rows, cols, SPOPS_DTYPE_F16);
    free(halves);
    return m;
}

static spops_matrix room(large_run *r, int64_t rows, int64_t cols, spops_dtype dtype)
{
    return spops_matrix_dense(there(r, NULL, (size_t)(rows * cols) * spops_dtype_bytes(dtype)),
                              rows, cols, dtype);
}

static void note(large_run *r, const char *name, spops_matrix m)
{
    const size_t bytes = (size_t)(m.rows * m.cols) * spops_dtype_bytes(m.dtype);
    unsigned char *host = malloc(bytes);
    cr_assert_not_null(host);
    OK(r->ctx, spops_context_wait_sync(r->ctx));
    cr_assert(device_download(SPOPS_BACKEND_CUDA, host, m.data, bytes), "%s", device_error());
    cr_assert_lt(r->num_found, MAX_DIGESTS);
    r->found[r->num_found++] = (digest){name, hash_bytes(0, host, bytes)};
    free(host);
}

// A convolution of 3x3x3 over random voxels.
static void run_convolution(large_run *r)
{
    enum { VOXELS = 3000, SIDE = 24 };
    static int32_t rows[VOXELS][4];
    spops_context *ctx = r->ctx;
    const spops_dtype dtype = SPOPS_DTYPE_F16;
    const spops_kernel_shape cube = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_coords_options options = spops_coords_options_default();
    spops_kernel_map_options contents = spops_kernel_map_options_default();
    spops_sparseconv_options layers = spops_sparseconv_options_default();
    spops_coords *coords = NULL;
    spops_kernel_map *map = NULL;
    spops_sparseconv *conv = NULL;
    spops_coords_info info = spops_coords_info_default();
    test_rng state;
    state = test_rng_make(7);
    for (int i = 0; i < VOXELS; ++i)
        for (int a = 1; a < 4; ++a)
            rows[i][a] = (int32_t)(test_rng_next(&state) % SIDE);
    options.duplicates = SPOPS_COORDS_DUPLICATES_MERGE;
    contents.contents =
        SPOPS_MAP_TABLE | SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS | SPOPS_MAP_CSR | SPOPS_MAP_REVERSE;
    OK(ctx, spops_coords_create(ctx, 3, VOXELS, there(r, rows, sizeof rows), &options, &coords));
    OK(ctx, spops_coords_get_info_sync(ctx, coords, &info));
    OK(ctx,
       spops_kernel_map_create(ctx, SPOPS_MAP_SUBMANIFOLD, &cube, coords, NULL, &contents, &map));
    layers.backward = 1;
    OK(ctx, spops_sparseconv_create(ctx, map, &layers, &conv));
    const int64_t n = info.num_rows;
    const spops_matrix x = numbers(r, 8, n, 64), g = numbers(r, 9, n, 64);
    const spops_matrix w = numbers(r, 10, (int64_t)27 * 64, 64);
    const spops_matrix out = room(r, n, 64, dtype), grad_w = room(r, (int64_t)27 * 64, 64, dtype);
    OK(ctx, spops_sparseconv_execute(ctx, conv, x, w, NULL, out));
    note(r, "convolution", out);
    OK(ctx, spops_sparseconv_execute_backward(ctx, conv, g, x, w, NULL, &out, &grad_w, NULL));
    note(r, "convolution, gradient of rows", out);
    note(r, "convolution, gradient of weights", grad_w);
    spops_sparseconv_destroy(conv);
    spops_kernel_map_destroy(map);
    spops_coords_destroy(coords);
}

static void run_pooling(large_run *r)
{
    spops_context *ctx = r->ctx;
    const spops_dtype dtype = SPOPS_DTYPE_F16;
    // One camera that looks ahead, on a grid of 64 x 64.
    const spops_bev_camera camera = {{200, 0, 176, 0, 200, 64, 0, 0, 1},
                                     {0, 0, 1, 0, -1, 0, 0, 0, 0, -1, 0, 1.5, 0, 0, 0, 1},
                                     {1, 0, 0, 0, 1, 0}};
    const spops_bev_shape shape = {1, 1, 59, 16, 44, 64, 64, 1};
    spops_bev_geometry g = spops_bev_geometry_default();
    spops_bev_options options = spops_bev_options_default();
    spops_bevpool_args pool = spops_bevpool_args_default();
    spops_bev_plan *plan = NULL;
    g.shape = shape;
    g.input_height = 128;
    g.input_width = 352;
    g.depth_start_m = 1.0;
    g.depth_step_m = 1.0;
    g.grid_lower_m[1] = -32.0;
    g.grid_lower_m[2] = -10.0;
    g.cell_size_m[0] = g.cell_size_m[1] = 1.0;
    g.cell_size_m[2] = 20.0;
    g.cameras = &camera;
    options.backward = 1;
    options.kernel = SPOPS_BEV_KERNEL_SPANS;
    OK(ctx, spops_bev_plan_create(ctx, &g, &options, &plan));
    const int64_t features = (int64_t)16 * 44, depths = 59 * features, cells = (int64_t)64 * 64;
    pool.depth = numbers(r, 11, depths, 1);
    pool.feat = numbers(r, 12, features, COLS);
    pool.out = room(r, cells, COLS, dtype);
    OK(ctx, spops_bevpool_execute(ctx, plan, &pool));
    note(r, "pooling", pool.out);
    const spops_matrix grad_depth = room(r, depths, 1, dtype);
    const spops_matrix grad_feat = room(r, features, COLS, dtype);
    OK(ctx, spops_bevpool_execute_backward(ctx, plan, SPOPS_BEV_CHANNELS_LAST, pool.out, pool.depth,
                                           pool.feat, &grad_depth, &grad_feat));
    note(r, "pooling, gradient of depths", grad_depth);
    note(r, "pooling, gradient of features", grad_feat);
    spops_bev_plan_destroy(plan);
}

static void run_point_convolution(large_run *r)
{
    enum { POINTS = 1500, CHANNELS = 64, NEAREST = 3 };
    static float points[POINTS][3];
    spops_context *ctx = r->ctx;
    const spops_dtype dtype = SPOPS_DTYPE_F16;
    spops_neighbors_options search = spops_neighbors_options_default();
    spops_pointconv_options layers = spops_pointconv_options_default();
    spops_neighbors *neighbors = NULL;
    spops_pointconv *conv = NULL;
    test_rng state = test_rng_make(19);
    for (int i = 0; i < POINTS; ++i)
        for (int a = 0; a < 3; ++a)
            points[i][a] = (float)test_rng_unit(&state);
    const spops_point_cloud cloud = {
        spops_matrix_dense(there(r, points, sizeof points), POINTS, 3, SPOPS_DTYPE_F32), NULL, 0};
    search.radius_m = 0.15f;
    search.taps = 3;
    search.tap_size_m = 0.08f;
    search.contents = SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE;
    OK(ctx, spops_neighbors_create(ctx, NULL, &cloud, &search, &neighbors));
    layers.backward = 1;
    OK(ctx, spops_pointconv_create(ctx, neighbors, &layers, &conv));
    const spops_matrix x = numbers(r, 20, POINTS, CHANNELS);
    const spops_matrix g = numbers(r, 21, POINTS, CHANNELS);
    const spops_matrix w = numbers(r, 22, (int64_t)27 * CHANNELS, CHANNELS);
    const spops_matrix out = room(r, POINTS, CHANNELS, dtype);
    const spops_matrix grad_w = room(r, (int64_t)27 * CHANNELS, CHANNELS, SPOPS_DTYPE_F32);
    OK(ctx, spops_pointconv_execute(ctx, conv, x, w, NULL, out));
    note(r, "point convolution", out);
    OK(ctx, spops_pointconv_execute_backward(ctx, conv, g, x, w, NULL, &out, &grad_w, NULL));
    note(r, "point convolution, gradient of rows", out);
    note(r, "point convolution, gradient of weights", grad_w);
    spops_pointconv_destroy(conv);
    spops_neighbors_destroy(neighbors);
}

static void run_large(large_run *r, int32_t num_processors)
{
    memset(r, 0, sizeof *r);
    r->ctx = open_context(SPOPS_BACKEND_CUDA);
    if (num_processors > 0) r->ctx->info.num_processors = num_processors;
    run_convolution(r);
    run_pooling(r);
    run_point_convolution(r);
    spops_context_destroy(r->ctx);
    for (int i = 0; i < r->num_blocks; ++i)
        device_free(SPOPS_BACKEND_CUDA, r->blocks[i]);
}

// A GPU of the same architecture with fewer multiprocessors. Gradients of weights have a range of the
// pairs for each, and so has a convolution of few rows.
Test(reproducible, multiprocessors)
{
    static const char *const by_ranges[] = {"sparseconv", "sparseconv_backward", "pointconv",
                                            "pointconv_backward"};
    static run all, fewer;
    static large_run large_all, large_fewer;
    char what[64];
    if (!device_has_cuda() || !is_tested("cuda")) cr_skip_test("no CUDA device");
    run_all(&all, SPOPS_BACKEND_CUDA, 0, 0);
    run_large(&large_all, 0);
    for (int32_t processors = 20; processors <= 120; processors += 50) {
        snprintf(what, sizeof what, "%d multiprocessors", (int)processors);
        run_all(&fewer, SPOPS_BACKEND_CUDA, 0, processors);
        (void)expect_same(&fewer, &all, what, by_ranges, sizeof by_ranges / sizeof *by_ranges);
        run_large(&large_fewer, processors);
        for (int d = 0; d < large_all.num_found; ++d)
            if (strstr(large_all.found[d].name, "convolution, gradient of weights") == NULL)
                cr_expect_eq(large_fewer.found[d].hash, large_all.found[d].hash,
                             "%s give other bits of %s", what, large_all.found[d].name);
    }
}

// ---- Long sums ----------------------------------------------------------------------------------

// One segment of n equal terms: f32 sums of all, one after the other, drift by 1e-4 and more.
Test(reproducible, long_sums)
{
    const int64_t n = 3000000;
    const int64_t widths[] = {1, 8, 9, 33};
    static const int32_t zeros[3000000];
    const float tenth = 0.1f;
    spops_context *ctx = open_context(SPOPS_BACKEND_CPU);
    float *x = malloc((size_t)n * 33 * sizeof *x);
    cr_assert_not_null(x);
    for (int64_t i = 0; i < n * 33; ++i)
        x[i] = tenth;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; ++i) {
        const int64_t cols = widths[i], rows = cols > 9 ? n / 4 : n;
        const int32_t fewer[] = {0, (int32_t)rows};
        float out[33];
        spops_segments *segments = NULL;
        OK(ctx, spops_segments_create(ctx, 1, fewer, NULL, &segments));
        OK(ctx, spops_segreduce_execute(ctx, segments, SPOPS_REDUCE_MEAN,
                                        spops_matrix_dense(x, rows, cols, SPOPS_DTYPE_F32), NULL,
                                        spops_matrix_dense(out, 1, cols, SPOPS_DTYPE_F32), NULL));
        for (int64_t c = 0; c < cols; ++c)
            cr_assert_lt(fabs((double)out[c] / (double)tenth - 1.0), 1e-6, "%d columns: mean %.8g",
                         (int)cols, (double)out[c]);
        spops_segments_destroy(segments);
    }

    // One row and one weight that all terms take: their gradients are the long sums.
    spops_segments_options options = spops_segments_options_default();
    spops_segments *segments = NULL;
    float one_row[12], grad_x[12], weight = 1.0f, grad_w = 0.0f, *grad_out = x;
    options.idx = options.weight_idx = zeros;
    options.num_rows = options.num_weights = 1;
    options.gradients = SPOPS_GRADIENTS_LINEAR;
    int32_t *each = malloc((size_t)(n / 4 + 1) * sizeof *each);
    cr_assert_not_null(each);
    for (int64_t s = 0; s <= n / 4; ++s)
        each[s] = (int32_t)s;
    for (int c = 0; c < 12; ++c)
        one_row[c] = 1.0f;
    const spops_matrix w = spops_matrix_dense(&weight, 1, 1, SPOPS_DTYPE_F32);
    const spops_matrix gx = spops_matrix_dense(grad_x, 1, 12, SPOPS_DTYPE_F32);
    const spops_matrix gw = spops_matrix_dense(&grad_w, 1, 1, SPOPS_DTYPE_F32);
    OK(ctx, spops_segments_create(ctx, n / 4, each, &options, &segments));
    for (int op = SPOPS_REDUCE_SUM; op <= SPOPS_REDUCE_MEAN; ++op) { // means of one term each
        OK(ctx, spops_segreduce_execute_backward(
                    ctx, segments, (spops_reduce)op,
                    spops_matrix_dense(grad_out, n / 4, 12, SPOPS_DTYPE_F32),
                    spops_matrix_dense(one_row, 1, 12, SPOPS_DTYPE_F32), &w, &gx, &gw));
        const double expected = (double)tenth * (double)(n / 4);
        for (int c = 0; c < 12; ++c)
            cr_assert_lt(fabs((double)grad_x[c] / expected - 1.0), 1e-6, "grad_x %.8g",
                         (double)grad_x[c]);
        cr_assert_lt(fabs((double)grad_w / (12.0 * expected) - 1.0), 1e-6, "grad_w %.8g",
                     (double)grad_w);
    }
    spops_segments_destroy(segments);
    free(each);
    free(x);
    spops_context_destroy(ctx);
}

// As NumPy adds f32: up to 128 numbers by eight sums side by side, more by halves.
static float pairwise(const float *v, int64_t n, int64_t step)
{
    if (n < 8) {
        float sum = 0.0f;
        for (int64_t i = 0; i < n; ++i)
            sum += v[i * step];
        return sum;
    }
    if (n <= 128) {
        float r[8];
        int64_t i = 8;
        for (int k = 0; k < 8; ++k)
            r[k] = v[k * step];
        for (; i < n - n % 8; i += 8)
            for (int k = 0; k < 8; ++k)
                r[k] += v[(i + k) * step];
        float sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
        for (; i < n; ++i)
            sum += v[i * step];
        return sum;
    }
    const int64_t half = n / 2 - n / 2 % 8;
    return pairwise(v, half, step) + pairwise(v + half * step, n - half, step);
}

Test(reproducible, voxel_means)
{
    enum { POINTS = 200000, AXES = 3 };
    static float points[POINTS][AXES], means[POINTS][AXES], sorted[POINTS][AXES];
    static int32_t from[POINTS + 1];
    static const float sizes[] = {0.5f, 2.0f, 20.0f}; // a few points a voxel, hundreds, all in one
    spops_context *ctx = open_context(SPOPS_BACKEND_CPU);
    test_rng state;
    state = test_rng_make(3);
    for (int i = 0; i < POINTS; ++i)
        for (int a = 0; a < AXES; ++a)
            points[i][a] = (float)(test_rng_unit(&state) * 19.0 + 0.5);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s) {
        spops_voxels_options options = spops_voxels_options_default();
        spops_voxels_view view = spops_voxels_view_default();
        spops_voxels *voxels = NULL;
        const spops_matrix p = spops_matrix_dense(points, POINTS, AXES, SPOPS_DTYPE_F32);
        for (int a = 0; a < AXES; ++a)
            options.size_m[a] = (double)sizes[s];
        OK(ctx, spops_voxels_create(ctx, p, NULL, &options, &voxels));
        OK(ctx, spops_voxels_get_view(ctx, voxels, &view));
        const int64_t n = view.max_voxels;
        OK(ctx,
           spops_segreduce_execute(ctx, spops_voxels_segments(voxels), SPOPS_REDUCE_MEAN, p, NULL,
                                   spops_matrix_dense(means, n, AXES, SPOPS_DTYPE_F32), NULL));
        memset(from, 0, sizeof from);
        for (int64_t v = 0; v < n; ++v)
            from[v + 1] = from[v] + view.num_points[v];
        static int32_t next[POINTS];
        memcpy(next, from, sizeof next);
        for (int i = 0; i < POINTS; ++i)
            memcpy(sorted[next[view.point_voxel[i]]++], points[i], sizeof *points);
        double ours = 0.0, theirs = 0.0; // sums of squared errors
        for (int64_t v = 0; v < n; ++v)
            for (int a = 0; a < AXES; ++a) {
                const int64_t count = from[v + 1] - from[v];
                double sum = 0.0;
                for (int64_t i = from[v]; i < from[v + 1]; ++i)
                    sum += (double)sorted[i][a];
                const double exact = sum / (double)count;
                const float numpy = pairwise(&sorted[from[v]][a], count, AXES) / (float)count;
                ours += pow((double)means[v][a] - exact, 2.0);
                theirs += pow((double)numpy - exact, 2.0);
            }
        cr_assert(ours <= theirs, "voxels of %g m: error %g, pairwise sums have %g",
                  (double)sizes[s], sqrt(ours), sqrt(theirs));
        spops_voxels_destroy(voxels);
    }
    spops_context_destroy(ctx);
}
