// SPDX-License-Identifier: Apache-2.0
// Which bits are the same (docs/reproducibility.md): on every instruction set, and on GPUs of one
// architecture with more or fewer multiprocessors. And how good sums are, however long.
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "spops/spops.h"
#include "support/device.h"
#include "tests/support/launch.h"
#include "tests/support/random.h"

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

// ---- Every operator once ------------------------------------------------------------------------

enum { SEGMENTS = 400, TERMS = 20000, ROWS = 300, COLS = 80, NARROW = 5, MAX_DIGESTS = 48 };

typedef struct digest {
    const char *name;
    uint64_t hash;
} digest;

typedef struct run {
    spops_context *ctx;
    spops_backend_kind kind;
    digest found[MAX_DIGESTS];
    int num_found;
    void *blocks[96]; // freed at the end
    int num_blocks;
} run;

static void *there(run *r, const void *host, size_t bytes)
{
    void *p = NULL;
    cr_assert(r->num_blocks < 96 && device_alloc(r->kind, bytes, &p), "%s", device_error());
    r->blocks[r->num_blocks++] = p;
    if (host != NULL) cr_assert(device_upload(r->kind, p, host, bytes), "%s", device_error());
    return p;
}

// rows * cols numbers of either sign, no two products alike, as f32 or f16.
static spops_matrix numbers(run *r, uint64_t seed, int64_t rows, int64_t cols, spops_dtype dtype)
{
    const size_t n = (size_t)(rows * cols);
    float *values = malloc(n * sizeof *values);
    uint16_t *halves = malloc(n * sizeof *halves);
    test_rng state;
    spops_matrix m;
    cr_assert(values != NULL && halves != NULL);
    state = test_rng_make(seed);
    for (size_t i = 0; i < n; ++i) {
        values[i] = (float)(test_rng_unit(&state) * 2.0 - 1.0);
        // f16 of 10 random bits and an exponent about that of the number.
        halves[i] = (uint16_t)((test_rng_next(&state) & 0x83ff) | 0x3400);
    }
    m = spops_matrix_dense(dtype == SPOPS_DTYPE_F32 ? there(r, values, n * sizeof *values)
                                                    : there(r, halves, n * sizeof *halves),
                           rows, cols, dtype);
    free(values);
    free(halves);
    return m;
}

static spops_matrix room(run *r, int64_t rows, int64_t cols, spops_dtype dtype)
{
    return spops_matrix_dense(there(r, NULL, (size_t)(rows * cols) * spops_dtype_bytes(dtype)),
                              rows, cols, dtype);
}

static void note(run *r, const char *name, spops_matrix m)
{
    const size_t bytes = (size_t)(m.rows * m.cols) * spops_dtype_bytes(m.dtype);
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    unsigned char *host = malloc(bytes);
    cr_assert_not_null(host);
    OK(r->ctx, spops_context_wait_sync(r->ctx));
    cr_assert(device_download(r->kind, host, m.data, bytes), "%s", device_error());
    for (size_t i = 0; i < bytes; ++i)
        hash = (hash ^ host[i]) * UINT64_C(0x100000001b3);
    free(host);
    cr_assert_lt(r->num_found, MAX_DIGESTS);
    r->found[r->num_found++] = (digest){name, hash};
}

static void run_segments(run *r)
{
    static int32_t offsets[SEGMENTS + 1], idx[TERMS];
    test_rng state;
    spops_segments_options options = spops_segments_options_default();
    spops_segments *segments = NULL;
    spops_context *ctx = r->ctx;
    state = test_rng_make(1);
    // Ten terms each, and what is left to the last.
    for (int s = 0; s < SEGMENTS; ++s)
        offsets[s] = 10 * s;
    offsets[SEGMENTS] = TERMS;
    for (int t = 0; t < TERMS; ++t)
        idx[t] = (int32_t)(test_rng_next(&state) % ROWS);
    options.idx = there(r, idx, sizeof idx);
    options.num_rows = ROWS;
    options.gradients = SPOPS_GRADIENTS_ALL;
    OK(ctx, spops_segments_create(ctx, SEGMENTS, there(r, offsets, sizeof offsets), &options,
                                  &segments));

    const spops_matrix x = numbers(r, 2, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix thin = numbers(r, 3, ROWS, NARROW, SPOPS_DTYPE_F32);
    const spops_matrix w = numbers(r, 4, TERMS, 1, SPOPS_DTYPE_F32);
    const spops_matrix out = room(r, SEGMENTS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix thin_out = room(r, SEGMENTS, NARROW, SPOPS_DTYPE_F32);
    const spops_matrix rows = room(r, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix weights = room(r, TERMS, 1, SPOPS_DTYPE_F32);
    const spops_matrix copies = room(r, TERMS, COLS, SPOPS_DTYPE_F32);
    static const char *const plain[] = {"sum", "mean", "min", "max", "product"};
    for (int op = SPOPS_REDUCE_SUM; op <= SPOPS_REDUCE_PROD; ++op) {
        OK(ctx, spops_segreduce_execute(ctx, segments, (spops_reduce)op, x, NULL, out, NULL));
        note(r, plain[op], out);
    }
    OK(ctx, spops_segreduce_execute(ctx, segments, SPOPS_REDUCE_SUM, thin, &w, thin_out, NULL));
    note(r, "narrow weighted sum", thin_out);
    OK(ctx, spops_segreduce_execute(ctx, segments, SPOPS_REDUCE_SUM, x, &w, out, NULL));
    note(r, "weighted sum", out);
    OK(ctx, spops_segreduce_execute_backward(ctx, segments, SPOPS_REDUCE_SUM, out, x, &w, &rows,
                                             &weights));
    note(r, "gradient of rows", rows);
    note(r, "gradient of weights", weights);
    spops_segments_destroy(segments);
    OK(ctx, spops_segments_create_from_keys(ctx, ROWS, TERMS, options.idx, SPOPS_KEYS_UNSORTED,
                                            NULL, &segments));
    OK(ctx, spops_gather_execute(ctx, segments, x, &w, copies));
    note(r, "gather", copies);
    spops_segments_destroy(segments);
}

static void run_norm(run *r)
{
    spops_context *ctx = r->ctx;
    const int64_t n = 5000;
    const spops_matrix x = numbers(r, 5, n, COLS, SPOPS_DTYPE_F32);
    const spops_matrix g = numbers(r, 6, n, COLS, SPOPS_DTYPE_F32);
    const spops_matrix out = room(r, n, COLS, SPOPS_DTYPE_F32);
    const spops_matrix of_columns = room(r, 2, COLS, SPOPS_DTYPE_F32);
    const spops_matrix grads = room(r, 2, COLS, SPOPS_DTYPE_F32);
    float *mean = of_columns.data, *var = mean + COLS, *grad = grads.data;
    OK(ctx, spops_context_reserve(ctx, spops_norm_scratch_bytes(n, COLS)));
    OK(ctx, spops_batchnorm_statistics_execute(ctx, x, NULL, mean, var, NULL, NULL));
    note(r, "norm statistics", of_columns);
    OK(ctx, spops_batchnorm_execute(ctx, x, mean, var, NULL, NULL, NULL, out));
    note(r, "norm", out);
    OK(ctx, spops_batchnorm_execute_backward(ctx, g, x, mean, var, NULL, NULL, NULL, out, grad,
                                             grad + COLS));
    note(r, "norm backward", out);
    note(r, "norm backward, columns", grads);
}

// A convolution of 3x3x3 over random voxels.
static void run_convolution(run *r)
{
    enum { VOXELS = 3000, SIDE = 24 };
    static int32_t rows[VOXELS][4];
    spops_context *ctx = r->ctx;
    const spops_dtype dtype = r->kind == SPOPS_BACKEND_CUDA ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_F32;
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
    const spops_matrix x = numbers(r, 8, n, 64, dtype), g = numbers(r, 9, n, 64, dtype);
    const spops_matrix w = numbers(r, 10, (int64_t)27 * 64, 64, dtype);
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

static void run_pooling(run *r)
{
    spops_context *ctx = r->ctx;
    const bool cuda = r->kind == SPOPS_BACKEND_CUDA;
    const spops_dtype dtype = cuda ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_F32;
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
    options.kernel = cuda ? SPOPS_BEV_KERNEL_SPANS : SPOPS_BEV_KERNEL_AUTO;
    OK(ctx, spops_bev_plan_create(ctx, &g, &options, &plan));
    const int64_t features = (int64_t)16 * 44, depths = 59 * features, cells = (int64_t)64 * 64;
    pool.depth = numbers(r, 11, depths, 1, dtype);
    pool.feat = numbers(r, 12, features, COLS, dtype);
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

// Patches of all sizes up to 200, whose keys overlap, with rotary positions and biases.
static void run_attention(run *r)
{
    enum { PATCHES = 20, HEADS = 3, DIM = 42, RANGE = 8, KEYS = 40 * PATCHES };
    static int32_t q_offsets[PATCHES + 1], k_offsets[PATCHES + 1], k_rows[KEYS];
    static int32_t places[10 * PATCHES * PATCHES][3];
    spops_context *ctx = r->ctx;
    const spops_dtype dtype = r->kind == SPOPS_BACKEND_CUDA ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_F32;
    spops_attention_options options = spops_attention_options_default();
    spops_attention_rotary rotary = spops_attention_rotary_default();
    spops_attention_bias bias = spops_attention_bias_default();
    spops_patches *patches = NULL;
    test_rng state = test_rng_make(13);
    for (int p = 0; p < PATCHES; ++p) {
        q_offsets[p + 1] = q_offsets[p] + 10 * (p + 1);
        k_offsets[p + 1] = 40 * (p + 1);
    }
    const int64_t n = q_offsets[PATCHES];
    for (int e = 0; e < KEYS; ++e)
        k_rows[e] = (int32_t)test_rng_below(&state, n);
    for (int64_t i = 0; i < n * 3; ++i)
        places[i / 3][i % 3] = (int32_t)test_rng_below(&state, 30);
    const spops_patch_lists lists = {PATCHES, there(r, q_offsets, sizeof q_offsets), NULL,
                                     there(r, k_offsets, sizeof k_offsets),
                                     there(r, k_rows, sizeof k_rows)};
    OK(ctx, spops_patches_create(ctx, n, &lists, &patches));
    rotary.coords = bias.coords =
        spops_matrix_dense(there(r, places, (size_t)n * 12), n, 3, SPOPS_DTYPE_I32);
    bias.table = numbers(r, 14, 3 * (2 * RANGE + 1), HEADS, SPOPS_DTYPE_F32);
    options.heads = HEADS;
    options.rotary = &rotary;
    options.bias = &bias;
    const int64_t cols = (int64_t)HEADS * DIM;
    const spops_matrix q = numbers(r, 15, n, cols, dtype), k = numbers(r, 16, n, cols, dtype);
    const spops_matrix v = numbers(r, 17, n, cols, dtype), g = numbers(r, 18, n, cols, dtype);
    const spops_matrix o = room(r, n, cols, dtype), lse = room(r, n, HEADS, SPOPS_DTYPE_F32);
    const spops_matrix grad_q = room(r, n, cols, dtype), grad_k = room(r, n, cols, dtype);
    const spops_matrix grad_v = room(r, n, cols, dtype);
    const spops_matrix grad_table = room(r, bias.table.rows, HEADS, SPOPS_DTYPE_F32);
    OK(ctx, spops_context_reserve(
                ctx, spops_attention_scratch_bytes(patches, cols, dtype, &options, 1)));
    OK(ctx, spops_attention_execute(ctx, patches, q, k, v, &options, o, lse.data));
    note(r, "attention", o);
    note(r, "attention, lse", lse);
    OK(ctx, spops_attention_execute_backward(ctx, patches, g, q, k, v, o, lse.data, &options,
                                             &grad_q, &grad_k, &grad_v, &grad_table));
    note(r, "attention, gradient of queries", grad_q);
    note(r, "attention, gradient of keys", grad_k);
    note(r, "attention, gradient of values", grad_v);
    note(r, "attention, gradient of biases", grad_table);
    spops_patches_destroy(patches);
}

static void run_points(run *r)
{
    enum { POINTS = 1500, CHANNELS = 64, NEAREST = 3 };
    static float points[POINTS][3];
    spops_context *ctx = r->ctx;
    const spops_dtype dtype = r->kind == SPOPS_BACKEND_CUDA ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_F32;
    spops_neighbors_options search = spops_neighbors_options_default();
    spops_pointconv_options layers = spops_pointconv_options_default();
    spops_neighbors_view view = spops_neighbors_view_default();
    spops_neighbors *neighbors = NULL;
    spops_interpolation *between = NULL;
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
    OK(ctx, spops_neighbors_get_view(ctx, neighbors, &view));
    note(r, "neighbours",
         spops_matrix_dense_const(view.in_rows, view.max_pairs, 1, SPOPS_DTYPE_I32));
    layers.backward = 1;
    OK(ctx, spops_pointconv_create(ctx, neighbors, &layers, &conv));
    const spops_matrix x = numbers(r, 20, POINTS, CHANNELS, dtype);
    const spops_matrix g = numbers(r, 21, POINTS, CHANNELS, dtype);
    const spops_matrix w = numbers(r, 22, (int64_t)27 * CHANNELS, CHANNELS, dtype);
    const spops_matrix out = room(r, POINTS, CHANNELS, dtype);
    const spops_matrix grad_w = room(r, (int64_t)27 * CHANNELS, CHANNELS, SPOPS_DTYPE_F32);
    OK(ctx, spops_pointconv_execute(ctx, conv, x, w, NULL, out));
    note(r, "point convolution", out);
    OK(ctx, spops_pointconv_execute_backward(ctx, conv, g, x, w, NULL, &out, &grad_w, NULL));
    note(r, "point convolution, gradient of rows", out);
    note(r, "point convolution, gradient of weights", grad_w);
    OK(ctx, spops_interpolation_create(ctx, &cloud, &cloud, NULL, &between));
    note(r, "interpolation", spops_interpolation_weights(between));

    // Buckets, patches of them, and rows pooled in them.
    spops_buckets_options hashes = spops_buckets_options_default();
    spops_patch_window window = spops_patch_window_default();
    spops_buckets_view places = spops_buckets_view_default();
    spops_patches_view lists = spops_patches_view_default();
    spops_buckets *buckets = NULL;
    spops_patches *patches = NULL;
    spops_pool *pool = NULL;
    hashes.bucket_rows = 60;
    hashes.num_rounds = 2;
    hashes.hashes[1] = SPOPS_BUCKET_HASH_ZORDER_DIV;
    window.buckets = window.stride = 2;
    for (int a = 0; a < 3; ++a)
        hashes.size_m[a] = 0.001;
    OK(ctx, spops_buckets_create(ctx, &cloud, &hashes, &buckets));
    OK(ctx, spops_buckets_get_view(ctx, buckets, &places));
    note(r, "buckets", spops_matrix_dense_const(places.rows, POINTS, 1, SPOPS_DTYPE_I32));
    OK(ctx, spops_patches_create_from_buckets(ctx, buckets, &window, &patches));
    OK(ctx, spops_patches_get_view(ctx, patches, &lists));
    note(r, "patches", spops_matrix_dense_const(lists.query_rows, POINTS, 1, SPOPS_DTYPE_I32));
    OK(ctx, spops_pool_create_from_buckets(ctx, buckets, 4, NULL, &pool));
    const int64_t most = POINTS / 4 + places.max_buckets;
    const spops_matrix pooled = room(r, most, CHANNELS, dtype);
    OK(ctx, spops_pool_execute(ctx, pool, SPOPS_REDUCE_MEAN, x, pooled));
    note(r, "pooling in buckets", pooled);
    spops_pool_destroy(pool);
    spops_patches_destroy(patches);
    spops_buckets_destroy(buckets);
    spops_interpolation_destroy(between);
    spops_pointconv_destroy(conv);
    spops_neighbors_destroy(neighbors);
}

// num_processors 0: as many as there are.
static void run_all(run *r, spops_backend_kind kind, int32_t num_processors)
{
    memset(r, 0, sizeof *r);
    r->kind = kind;
    r->ctx = open_context(kind);
    if (num_processors > 0) r->ctx->info.num_processors = num_processors;
    run_segments(r);
    run_norm(r);
    run_convolution(r);
    run_pooling(r);
    run_attention(r);
    run_points(r);
    spops_context_destroy(r->ctx);
    for (int i = 0; i < r->num_blocks; ++i)
        device_free(kind, r->blocks[i]);
}

// ---- Instruction sets ---------------------------------------------------------------------------

// What a processor without fused multiply-add gives other bits of.
static bool multiplies_and_adds(const char *name)
{
    static const char *const names[] = {"weighted sum",
                                        "gradient of rows",
                                        "gradient of weights",
                                        "convolution",
                                        "convolution, gradient of rows",
                                        "convolution, gradient of weights",
                                        "point convolution",
                                        "point convolution, gradient of rows",
                                        "point convolution, gradient of weights",
                                        "pooling",
                                        "pooling, gradient of depths",
                                        "pooling, gradient of features",
                                        "attention",
                                        "attention, lse",
                                        "attention, gradient of queries",
                                        "attention, gradient of keys",
                                        "attention, gradient of values",
                                        "attention, gradient of biases"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

Test(reproducible, instruction_sets)
{
    static const char *const names[] = {"baseline", "avx2", "avx512"};
    static run best, lesser;
    char found[32];
    unsetenv("SPOPS_CPU_ISA");
    run_all(&best, SPOPS_BACKEND_CPU, 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        if (!test_has_cpu_isa(names[i])) continue;
        setenv("SPOPS_CPU_ISA", names[i], 1);
        run_all(&lesser, SPOPS_BACKEND_CPU, 0);
        spops_context *ctx = open_context(SPOPS_BACKEND_CPU);
        snprintf(found, sizeof found, "%s", ctx->info.isa);
        spops_context_destroy(ctx);
        cr_assert_eq(lesser.num_found, best.num_found);
        for (int d = 0; d < best.num_found; ++d)
            if (strcmp(found, "baseline") != 0 || !multiplies_and_adds(best.found[d].name))
                cr_expect_eq(lesser.found[d].hash, best.found[d].hash, "%s gives other bits of %s",
                             found, best.found[d].name);
    }
    unsetenv("SPOPS_CPU_ISA");
}

// A GPU of the same architecture with fewer multiprocessors.
Test(reproducible, multiprocessors)
{
    static run all, fewer;
    if (!device_has_cuda()) cr_skip_test("no CUDA device");
    run_all(&all, SPOPS_BACKEND_CUDA, 0);
    for (int32_t processors = 20; processors <= 120; processors += 50) {
        run_all(&fewer, SPOPS_BACKEND_CUDA, processors);
        for (int d = 0; d < all.num_found; ++d)
            // Those have a range of the pairs for each multiprocessor.
            if (strstr(all.found[d].name, "convolution, gradient of weights") == NULL)
                cr_expect_eq(fewer.found[d].hash, all.found[d].hash,
                             "%d multiprocessors give other bits of %s", (int)processors,
                             all.found[d].name);
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
