// SPDX-License-Identifier: Apache-2.0
/*
 * A point transformer after Flash3D on the points of a LiDAR scan, as an inference engine. Each stage
 * puts its points into buckets of BUCKET_ROWS, lets WINDOW buckets attend to each other in blocks that
 * take turns with plain, shifted and strided windows, and pools POOLED neighbours within a bucket into
 * one point of the next stage. No feature is moved for it: blocks differ in their plan of patches.
 * Then, on the same primitives, a block of Point Transformer V3: a sparse convolution as encoding of
 * positions, and attention over patches along a Hilbert curve.
 *
 * Prints times, plain and as one CUDA Graph, and by part. Without an option it runs a small simulated
 * scan on the CPU and compares both with FP64.
 *
 *     flash3d.c                    what is run and printed
 *     flash3d/transformer.h, .c    a block
 *     flash3d/reference.c          the same in FP64
 *
 *     flash3d [SCAN.npy [JSON]]    JSON: append what was measured, an object
 */
#include "flash3d/reference.h"
#include "networks/report.h"
#include "networks/scan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGES = 4, MAX_BLOCKS = 6, WINDOWS = 3, FEATURES = 8, POOLED = 2 };
static const int64_t channels_of[STAGES] = {64, 128, 256, 512};
static const int blocks_of[STAGES] = {2, 2, 6, 2};

/* Sizes of buckets and windows: those of the paper, or small ones for a scan of a thousand points. */
typedef struct sizes {
    int32_t bucket_rows, window, patch_rows;
} sizes;

typedef struct stage {
    stage_rows r;
    spops_point_cloud cloud; /* of r.coords; after the first stage only the device knows how many */
    spops_buckets *buckets;
    spops_patches *patches[WINDOWS]; /* plain, shifted, strided */
    spops_patch_window windows[WINDOWS];
    block blocks[MAX_BLOCKS];
    /* To the next stage. */
    spops_pool *pool;
    spops_matrix pooled; /* [rows of the next stage, channels] */
    parameter widen;     /* [channels, channels of the next stage] */
} stage;

typedef struct network {
    device d;
    spops_dtype dtype;
    scan points;
    sizes size;
    spops_matrix features; /* [points, FEATURES] */
    parameter embedding;   /* [FEATURES, channels of the first stage] */
    stage stages[STAGES];
    int parts; /* that are enqueued */
} network;

static int good(const device *d, const char *what, spops_status status)
{
    if (status != SPOPS_STATUS_OK) fprintf(stderr, "%s: %s\n", what, spops_last_error(d->ctx));
    return status == SPOPS_STATUS_OK;
}

/* ---- Making the network ----------------------------------------------------------------------- */

/* Position, what came back, range and 1, in numbers near 1. */
static int upload_features(network *n)
{
    const int64_t rows = n->points.num_points;
    const size_t count = (size_t)(rows * FEATURES), bytes = count * spops_dtype_bytes(n->dtype);
    float *all = malloc(count * sizeof *all), *xyz = malloc((size_t)rows * 3 * sizeof *xyz);
    void *narrow = malloc(bytes);
    int failed = all == NULL || xyz == NULL || narrow == NULL;

    for (int64_t i = 0; i < rows && !failed; ++i) {
        const float *p = n->points.points + 4 * i;
        const float f[FEATURES] = {p[0] / 50, p[1] / 50, p[2] / 5, p[3], hypotf(p[0], p[1]) / 50,
                                   1};
        memcpy(xyz + 3 * i, p, 3 * sizeof *xyz);
        memcpy(all + i * FEATURES, f, sizeof f);
    }
    n->features = spops_matrix_dense(device_alloc(&n->d, bytes), rows, FEATURES, n->dtype);
    failed = failed || n->features.data == NULL ||
             device_convert(&n->d, SPOPS_DTYPE_F32, all, n->dtype, narrow, count) ||
             device_upload(&n->d, n->features.data, narrow, bytes) ||
             device_upload(&n->d, n->stages[0].r.coords.data, xyz, (size_t)rows * 3 * sizeof *xyz);
    free(all), free(xyz), free(narrow);
    return failed;
}

static spops_buckets_options bucket_options(const network *n, int s)
{
    /* A stage stacks another hash on the one before it; a row that is too late asks next door. */
    static const spops_bucket_hash hashes[STAGES] = {
        SPOPS_BUCKET_HASH_XOR_DIV, SPOPS_BUCKET_HASH_ZORDER_DIV, SPOPS_BUCKET_HASH_XOR_DIV,
        SPOPS_BUCKET_HASH_ZORDER_DIV};
    spops_buckets_options o = spops_buckets_options_default();
    o.bucket_rows = n->size.bucket_rows;
    o.num_rounds = 4;
    o.bits = 11;
    for (int r = 0; r < o.num_rounds; ++r) {
        o.hashes[r] = hashes[s];
        if (r > 0) o.steps[r][r - 1] = 1 << (3 + s);
    }
    for (int a = 0; a < 3; ++a) {
        o.size_m[a] = 0.1;
        o.origin_m[a] = -102.4; /* the middle of 2^11 cells is the sensor */
    }
    return o;
}

/* All that a stage has, for `rows` rows at most; offsets: where the device says how many, or NULL. */
static int stage_create(network *n, int s, int64_t rows, const int32_t *offsets)
{
    stage *st = &n->stages[s];
    spops_context *ctx = n->d.ctx;
    const spops_buckets_options options = bucket_options(n, s);
    spops_patches_capacity shape = spops_patches_capacity_default();
    spops_buckets_view view = spops_buckets_view_default();
    spops_pool_options pool = spops_pool_options_default();
    spops_attention_rotary rotary;
    spops_attention_options attention;

    if (rows_create(&n->d, &st->r, rows, channels_of[s], n->dtype)) return 1;
    st->cloud.points = st->r.coords;
    st->cloud.offsets = offsets, st->cloud.num_samples = offsets != NULL;
    if (!good(&n->d, "buckets", spops_buckets_reserve(ctx, rows, 1, &options, &st->buckets)) ||
        !good(&n->d, "buckets", spops_buckets_get_view(ctx, st->buckets, &view)))
        return 1;
    shape.num_rows = shape.max_queries = rows;
    shape.max_patches = view.max_buckets;
    shape.max_samples = 1;
    shape.same = 1;
    for (int w = 0; w < WINDOWS; ++w) {
        st->windows[w] = spops_patch_window_default();
        st->windows[w].buckets = n->size.window;
        st->windows[w].shift = w == 1 ? n->size.window / 2 : 0;
        st->windows[w].stride = w == 2 ? 2 : 1;
        if (!good(&n->d, "patches", spops_patches_reserve(ctx, &shape, &st->patches[w]))) return 1;
    }
    attention = attention_options(&st->r, &rotary);
    if (!good(&n->d, "attention",
              spops_attention_reserve(ctx, st->patches[0], st->r.channels, n->dtype, &attention,
                                      0)) ||
        !good(&n->d, "scratch",
              spops_context_reserve(ctx, spops_norm_scratch_bytes(rows, WIDER * st->r.channels))) ||
        !good(&n->d, "linear layers",
              spops_linear_reserve(ctx, rows, WIDER * st->r.channels, WIDER * st->r.channels, 0)))
        return 1;
    for (int b = 0; b < blocks_of[s]; ++b)
        if (block_create(&n->d, &st->blocks[b], st->r.channels, n->dtype,
                         (uint64_t)(1000 * s + 20 * b + 20)))
            return 1;
    if (s + 1 == STAGES) return 0;

    pool.max_cols = st->r.channels;
    if (!good(&n->d, "pool",
              spops_pool_create_from_buckets(ctx, st->buckets, POOLED, &pool, &st->pool)))
        return 1;
    const int64_t next_rows =
        rows < rows / POOLED + view.max_buckets ? rows : rows / POOLED + view.max_buckets;
    const float spread = sqrtf(3.0f / (float)st->r.channels);
    st->pooled = spops_matrix_dense(
        device_alloc(&n->d, (size_t)(next_rows * st->r.channels) * spops_dtype_bytes(n->dtype)),
        next_rows, st->r.channels, n->dtype);
    return st->pooled.data == NULL ||
           parameter_draw(&n->d, &st->widen, st->r.channels, channels_of[s + 1], n->dtype, -spread,
                          spread, (uint64_t)(1000 * s + 1)) ||
           stage_create(n, s + 1, next_rows, spops_pool_sample_offsets(st->pool));
}

static int network_create(network *n, const char *path)
{
    if (path != NULL ? scan_load(path, &n->points) : scan_simulate(8, 60, &n->points)) return 1;
    return stage_create(n, 0, n->points.num_points, NULL) || upload_features(n) ||
           parameter_draw(&n->d, &n->embedding, FEATURES, channels_of[0], n->dtype, -1.0f, 1.0f, 1);
}

static void network_destroy(network *n)
{
    for (int s = 0; s < STAGES; ++s) {
        stage *st = &n->stages[s];
        for (int b = 0; b < blocks_of[s]; ++b)
            block_destroy(&n->d, &st->blocks[b]);
        for (int w = 0; w < WINDOWS; ++w)
            spops_patches_destroy(st->patches[w]);
        spops_pool_destroy(st->pool);
        spops_buckets_destroy(st->buckets);
        parameter_free(&n->d, &st->widen);
        device_free(&n->d, st->pooled.data);
        rows_destroy(&n->d, &st->r);
    }
    parameter_free(&n->d, &n->embedding);
    device_free(&n->d, n->features.data);
    scan_free(&n->points);
}

/* ---- Running it ------------------------------------------------------------------------------- */

static spops_status stage_enqueue(network *n, int s)
{
    stage *st = &n->stages[s];
    spops_context *ctx = n->d.ctx;

    if (n->parts & PLANS) {
        PASS(spops_buckets_update(ctx, st->buckets, &st->cloud));
        for (int w = 0; w < WINDOWS; ++w)
            PASS(spops_patches_update_from_buckets(ctx, st->patches[w], st->buckets,
                                                   &st->windows[w]));
        if (st->pool != NULL) PASS(spops_pool_update(ctx, st->pool));
    }
    for (int b = 0; b < blocks_of[s]; ++b)
        PASS(block_enqueue(&n->d, &st->blocks[b], &st->r, st->patches[b % WINDOWS], n->parts));
    if (s + 1 < STAGES && (n->parts & MOVES)) {
        stage *next = &n->stages[s + 1];
        PASS(spops_pool_execute(ctx, st->pool, SPOPS_REDUCE_MEAN, st->r.coords, next->r.coords));
        PASS(spops_pool_execute(ctx, st->pool, SPOPS_REDUCE_MAX, st->r.x, st->pooled));
        PASS(product(&n->d, st->pooled, &st->widen, next->r.x));
    }
    return SPOPS_STATUS_OK;
}

static spops_status enqueue(void *user)
{
    network *n = user;
    if (n->parts & MOVES) PASS(product(&n->d, n->features, &n->embedding, n->stages[0].r.x));
    for (int s = 0; s < STAGES; ++s)
        PASS(stage_enqueue(n, s));
    return SPOPS_STATUS_OK;
}

static double time_of(network *n, int parts, int captured, int *num_kernels)
{
    double time_us = NAN;
    graph *g;
    n->parts = parts;
    g = captured ? graph_capture(&n->d, enqueue, n, 1) : graph_plain(&n->d, enqueue, n);
    if (g == NULL || graph_time(g, n->d.backend == SPOPS_BACKEND_CPU ? 3 : 20, &time_us))
        time_us = NAN;
    else if (num_kernels != NULL)
        *num_kernels = graph_num_kernels(g);
    graph_destroy(g);
    return time_us;
}

static void print_times(network *n, const char *name, const char *json)
{
    static const char *const names[] = {"plans", "pooling", "norms", "attention", "feed_forward"};
    static const int parts[] = {PLANS, MOVES, NORMS, ATTENTION, FEED_FORWARD};
    const double plain_us = time_of(n, ALL, 0, NULL);
    int num_kernels = 0;
    const double whole_us = time_of(n, ALL, 1, &num_kernels);
    double useful_us = 0;
    double part_us[5];
    int kernels[5] = {0};
    FILE *file = json != NULL ? fopen(json, "a") : NULL;
    const report to = {file, "flash3d", name, &n->d, n->dtype};

    printf("%d points: %.0f us, %.1f scans a second (%d kernels); without a graph %.0f us\n",
           (int)n->points.num_points, whole_us, 1e6 / whole_us, num_kernels, plain_us);
    if (file != NULL)
        fprintf(file, "{\"scan\": \"%s\", \"points\": %d, \"whole_us\": %.1f, \"plain_us\": %.1f",
                name, (int)n->points.num_points, whole_us, plain_us);
    for (int i = 0; i < 5; ++i) {
        part_us[i] = time_of(n, parts[i], 1, &kernels[i]);
        printf("  %-12s %8.0f us, %2.0f %%\n", names[i], part_us[i], 100 * part_us[i] / whole_us);
        if (parts[i] & (ATTENTION | FEED_FORWARD)) useful_us += part_us[i];
        if (file != NULL) fprintf(file, ", \"%s_us\": %.1f", names[i], part_us[i]);
    }
    printf("  attention and feed-forward together: %.0f %%\n", 100 * useful_us / whole_us);
    if (file != NULL) {
        fprintf(file, "}\n");
        for (int i = 0; i < 5; ++i)
            report_part(&to, names[i], part_us[i], 0, kernels[i]);
        report_part(&to, "whole", whole_us, 0, num_kernels);
        fclose(file);
    }
}

/* ---- Is it right? ----------------------------------------------------------------------------- */

static double furthest(const double *a, const double *b, int64_t count)
{
    double most = 0, largest = 1e-30;
    for (int64_t i = 0; i < count; ++i) {
        most = fmax(most, fabs(a[i] - b[i]));
        largest = fmax(largest, fabs(b[i]));
    }
    return most / largest;
}

static int say(const char *what, double difference, spops_dtype dtype)
{
    const int right = difference <= (dtype == SPOPS_DTYPE_F32 ? 1e-4 : 5e-2);
    printf("%s agrees with FP64 to %.1e of its largest element: %s\n", what, difference,
           right ? "right" : "WRONG");
    return !right;
}

static float *download_coords(const network *n, const stage *st)
{
    float *coords = malloc((size_t)st->r.rows * 3 * sizeof *coords);
    if (coords != NULL &&
        !device_download(&n->d, coords, st->r.coords.data, (size_t)st->r.rows * 3 * sizeof *coords))
        return coords;
    free(coords);
    return NULL;
}

/* x of the next stage: the largest of every sub-bucket, times the matrix that widens it. */
static double *reference_pool(const network *n, int s, const double *x)
{
    const stage *st = &n->stages[s];
    const int64_t rows = st->r.rows, next_rows = n->stages[s + 1].r.rows, c = st->r.channels;
    spops_segments_view view = spops_segments_view_default();
    int32_t *offsets = malloc((size_t)(next_rows + 1) * sizeof *offsets);
    int32_t(*pairs)[2] = malloc((size_t)rows * sizeof *pairs); /* row, weight */
    double *pooled = calloc((size_t)(next_rows * c), sizeof *pooled);
    double *out = malloc((size_t)(next_rows * st->widen.cols) * sizeof *out);

    if (offsets == NULL || pairs == NULL || pooled == NULL || out == NULL ||
        spops_segments_get_view(n->d.ctx, spops_pool_segments(st->pool), &view) !=
            SPOPS_STATUS_OK ||
        device_download(&n->d, offsets, view.offsets, (size_t)(next_rows + 1) * sizeof *offsets) ||
        device_download(&n->d, pairs, view.pairs, (size_t)rows * sizeof *pairs)) {
        free(out);
        out = NULL;
    }
    for (int64_t i = 0; i < next_rows && out != NULL; ++i)
        for (int32_t t = offsets[i]; t < offsets[i + 1]; ++t)
            for (int64_t k = 0; k < c; ++k) {
                const double v = x[pairs[t][0] * c + k];
                double *to = &pooled[i * c + k];
                *to = t == offsets[i] ? v : fmax(*to, v);
            }
    if (out != NULL) reference_product(pooled, next_rows, &st->widen, out);
    free(offsets), free(pairs), free(pooled);
    return out;
}

static int check_backbone(network *n)
{
    double *features, *x, *found, difference;
    int failed;

    n->parts = ALL;
    if (!good(&n->d, "run", enqueue(n))) return 1;
    features = reference_download(&n->d, n->features);
    x = malloc((size_t)(n->stages[0].r.rows * channels_of[0]) * sizeof *x);
    if (features == NULL || x == NULL) return 1;
    reference_product(features, n->stages[0].r.rows, &n->embedding, x);
    free(features);
    for (int s = 0; s < STAGES; ++s) {
        stage *st = &n->stages[s];
        float *coords = download_coords(n, st);
        failed = coords == NULL || x == NULL;
        for (int b = 0; b < blocks_of[s] && !failed; ++b)
            failed = reference_block(&n->d, &st->blocks[b], st->patches[b % WINDOWS], st->r.rows,
                                     coords, x);
        free(coords);
        if (failed) return 1;
        if (s + 1 == STAGES) break;
        double *next = reference_pool(n, s, x);
        free(x);
        x = next;
    }
    found = reference_download(&n->d, n->stages[STAGES - 1].r.x);
    if (found == NULL) return 1;
    /* Rows after those in use hold what blocks make of 0, here and there. */
    difference =
        furthest(found, x, n->stages[STAGES - 1].r.rows * n->stages[STAGES - 1].r.channels);
    free(found), free(x);
    return say("the backbone", difference, n->dtype);
}

/* ---- A block of Point Transformer V3 ---------------------------------------------------------- */

typedef struct ptv3 {
    const network *n;
    spops_voxels *voxels;
    spops_kernel_map *map;
    spops_sparseconv *conv;
    spops_patches *patches;
    stage_rows r;
    spops_matrix embedded; /* where wide is not in use yet */
    parameter conv_w;      /* [27 * channels, channels] */
    block b;
    parameter x; /* what comes in */
    int parts;
} ptv3;

static spops_status ptv3_enqueue(void *user)
{
    ptv3 *p = user;
    if (p->parts & CONVOLUTION) {
        const spops_matrix x = parameter_matrix(&p->x);
        spops_conv_layer layer = spops_conv_layer_default();
        layer.residual = &x;
        PASS(spops_sparseconv_execute(p->n->d.ctx, p->conv, x, parameter_matrix(&p->conv_w), &layer,
                                      p->r.x));
    }
    return block_enqueue(&p->n->d, &p->b, &p->r, p->patches, p->parts);
}

/* Voxels of the scan, their map, and patches along a Hilbert curve whose last one borrows. */
static int ptv3_plan(ptv3 *p, double voxel_m)
{
    const network *n = p->n;
    spops_context *ctx = n->d.ctx;
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_voxels_options voxels = spops_voxels_options_default();
    spops_kernel_map_options map = spops_kernel_map_options_default();
    spops_sparseconv_options conv = spops_sparseconv_options_default();
    spops_patch_order order = spops_patch_order_default();
    spops_coords_view view = spops_coords_view_default();
    spops_point_cloud cloud;
    int64_t rows = 0;

    for (int a = 0; a < 3; ++a) {
        voxels.size_m[a] = voxel_m;
        voxels.origin_m[a] = -102.4; /* so that cells of the curve are not negative */
    }
    voxels.max_cols = 3;
    map.contents = SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS;
    order.patch_rows = n->size.patch_rows;
    order.borrow = 1;
    order.curve = SPOPS_PATCH_CURVE_HILBERT;
    if (!good(&n->d, "voxels",
              spops_voxels_create(ctx, n->stages[0].r.coords, NULL, &voxels, &p->voxels)) ||
        !good(&n->d, "voxels",
              spops_coords_get_num_rows_sync(ctx, spops_voxels_coords(p->voxels), &rows)) ||
        !good(&n->d, "map",
              spops_kernel_map_create(ctx, SPOPS_MAP_SUBMANIFOLD, &kernel,
                                      spops_voxels_coords(p->voxels), NULL, &map, &p->map)) ||
        !good(&n->d, "convolution", spops_sparseconv_create(ctx, p->map, &conv, &p->conv)) ||
        !good(&n->d, "voxels", spops_coords_get_view(ctx, spops_voxels_coords(p->voxels), &view)) ||
        rows_create(&n->d, &p->r, rows, 64, n->dtype))
        return 1;
    memset(&cloud, 0, sizeof cloud);
    /* A row of a set is its batch and its cell. */
    cloud.points = spops_matrix_dense_const(view.rows + 1, rows, 3, SPOPS_DTYPE_I32);
    cloud.points.row_stride = 4;
    return !good(&n->d, "patches",
                 spops_patches_create_from_order(ctx, &cloud, &order, &p->patches)) ||
           !good(&n->d, "positions",
                 spops_segreduce_execute(ctx, spops_voxels_segments(p->voxels), SPOPS_REDUCE_MEAN,
                                         n->stages[0].r.coords, NULL, p->r.coords, NULL));
}

/* The convolution in FP64: neighbours are found by looking at all voxels. */
static double *reference_convolution(const ptv3 *p)
{
    const int64_t rows = p->r.rows, c = p->r.channels;
    spops_coords_view view = spops_coords_view_default();
    int32_t(*at)[4] = malloc((size_t)rows * sizeof *at);
    double *out = malloc((size_t)(rows * c) * sizeof *out);

    if (at == NULL || out == NULL ||
        spops_coords_get_view(p->n->d.ctx, spops_voxels_coords(p->voxels), &view) !=
            SPOPS_STATUS_OK ||
        device_download(&p->n->d, at, view.rows, (size_t)rows * sizeof *at)) {
        free(at), free(out);
        return NULL;
    }
    for (int64_t i = 0; i < rows * c; ++i)
        out[i] = (double)p->x.host[i];
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < rows; ++j) {
            int tap = 0;
            for (int a = 1; a <= 3; ++a) { /* the last axis varies fastest */
                const int offset = at[j][a] - at[i][a];
                tap = offset < -1 || offset > 1 || tap < 0 ? -1 : 3 * tap + offset + 1;
            }
            for (int64_t k = 0; k < c && tap >= 0; ++k)
                for (int64_t o = 0; o < c; ++o)
                    out[i * c + o] += (double)p->x.host[j * c + k] *
                                      (double)p->conv_w.host[(tap * c + k) * c + o];
        }
    free(at);
    return out;
}

static int ptv3_check(ptv3 *p)
{
    double *right = reference_convolution(p), *found;
    float *coords = malloc((size_t)p->r.rows * 3 * sizeof *coords);
    int failed = right == NULL || coords == NULL || !good(&p->n->d, "run", ptv3_enqueue(p)) ||
                 device_download(&p->n->d, coords, p->r.coords.data,
                                 (size_t)p->r.rows * 3 * sizeof *coords) ||
                 reference_block(&p->n->d, &p->b, p->patches, p->r.rows, coords, right);
    found = failed ? NULL : reference_download(&p->n->d, p->r.x);
    failed = found == NULL || say("the block with a convolution",
                                  furthest(found, right, p->r.rows * p->r.channels), p->n->dtype);
    free(right), free(found), free(coords);
    return failed;
}

static int run_ptv3(const network *n, int check)
{
    static const struct {
        const char *name;
        int parts;
    } all[] = {{"the whole", ALL},
               {"convolution", CONVOLUTION},
               {"norms", NORMS},
               {"attention", ATTENTION},
               {"feed-forward", FEED_FORWARD}};
    ptv3 p;
    int failed;

    memset(&p, 0, sizeof p);
    p.n = n;
    p.parts = ALL;
    failed = ptv3_plan(&p, check ? 0.8 : 0.1) ||
             parameter_draw(&n->d, &p.x, p.r.rows, p.r.channels, n->dtype, -1.0f, 1.0f, 9001) ||
             parameter_draw(&n->d, &p.conv_w, 27 * p.r.channels, p.r.channels, n->dtype, -0.05f,
                            0.05f, 9002) ||
             block_create(&n->d, &p.b, p.r.channels, n->dtype, 9003) || (check && ptv3_check(&p));
    if (!failed) printf("a block with a convolution, %d voxels:\n", (int)p.r.rows);
    for (size_t i = 0; i < sizeof all / sizeof all[0] && !failed; ++i) {
        double time_us = NAN;
        graph *g;
        p.parts = all[i].parts;
        g = graph_capture(&n->d, ptv3_enqueue, &p, 1);
        failed = g == NULL || graph_time(g, n->d.backend == SPOPS_BACKEND_CPU ? 3 : 20, &time_us);
        graph_destroy(g);
        printf("  %-12s %8.0f us\n", all[i].name, time_us);
    }
    block_destroy(&n->d, &p.b);
    parameter_free(&n->d, &p.x);
    parameter_free(&n->d, &p.conv_w);
    spops_patches_destroy(p.patches);
    rows_destroy(&n->d, &p.r);
    spops_sparseconv_destroy(p.conv);
    spops_kernel_map_destroy(p.map);
    spops_voxels_destroy(p.voxels);
    return failed;
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

int main(int argc, char **argv)
{
    static const sizes paper = {512, 8, 1024}, small_sizes = {32, 4, 64};
    const int small = argc == 1;
    network n;
    int failed;

    memset(&n, 0, sizeof n);
    n.size = small ? small_sizes : paper;
    if (device_open(&n.d, small ? SPOPS_BACKEND_CPU : SPOPS_BACKEND_AUTO)) return 1;
    n.dtype = n.d.backend == SPOPS_BACKEND_CUDA ? SPOPS_DTYPE_BF16 : SPOPS_DTYPE_F32;
    failed = network_create(&n, small ? NULL : argv[1]) || (small && check_backbone(&n));
    if (!failed) {
        print_times(&n, small ? "simulated scan" : file_name(argv[1]), argc > 2 ? argv[2] : NULL);
        failed = run_ptv3(&n, small);
    }
    network_destroy(&n);
    device_close(&n.d);
    return failed;
}
