// SPDX-License-Identifier: Apache-2.0
// Which rows a plan reads and writes: every kind that is a relation, against flags that are set where
// its rows are made up. And places of entries by key.
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "maps/kernel_maps.h"
#include "relation/relation.h"
#include "support/device.h"
#include "tests/support/launch.h"
#include "tests/support/random.h"

enum { MAX_ROWS = 1500, GUARD = 16 };

// What is expected of either side.
typedef struct named_rows {
    int64_t num[SPOPS_NUM_SIDES];
    uint8_t row[SPOPS_NUM_SIDES][MAX_ROWS];
} named_rows;

static named_rows none_of(int64_t num_targets, int64_t num_sources)
{
    named_rows e = {.num = {num_targets, num_sources}};
    return e;
}

static void name_both(named_rows *e, int64_t target, int64_t source)
{
    e->row[SPOPS_SIDE_TARGET][target] = 1;
    e->row[SPOPS_SIDE_SOURCE][source] = 1;
}

static void mark(test_device *d, const spops_plan *plan, int side, uint8_t *there, const char *what)
{
    spops_relation relation;
    test_expect_ok(d->ctx, spops_relation_of(d->ctx, "test", plan, &relation), what);
    test_expect_ok(d->ctx, spops_relation_mark_rows(d->ctx, "test", &relation, side, there), what);
}

static void compare(test_device *d, const named_rows *e, int side, const uint8_t *there,
                    const char *what)
{
    static uint8_t found[MAX_ROWS + GUARD];
    const int64_t n = e->num[side];

    test_wait(d);
    cr_assert(device_download(d->backend, found, there, (size_t)(n + GUARD)), "%s", device_error());
    for (int64_t i = 0; i < n; ++i)
        cr_assert(found[i] == e->row[side][i], "%s, %s: %s row %d is %d, expected %d",
                  test_backend_name(d->backend), what, side == 0 ? "target" : "source", (int)i,
                  found[i], e->row[side][i]);
    for (int64_t i = n; i < n + GUARD; ++i)
        cr_assert(found[i] == 0xff, "%s: wrote past the rows", what);
}

static void check_rows(test_device *d, const void *plan, const named_rows *e, const char *what)
{
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        void *there = NULL;
        cr_assert(device_alloc(d->backend, (size_t)e->num[side] + GUARD, &there));
        mark(d, plan, side, there, what);
        compare(d, e, side, there, what);
        device_free(d->backend, there);
    }
}

// On the CPU a test each; on CUDA all in one, whose process opens the device once.
#define TEST_ON_CPU(name, function)                                                                \
    Test(relation, name)                                                                           \
    {                                                                                              \
        function(SPOPS_BACKEND_CPU);                                                               \
    }

// ---- Segments, and what holds some --------------------------------------------------------------

enum { NUM_TERMS = 900, NUM_SEGMENTS = 700, NUM_SOURCES = 1100 };

static void check_segments(spops_backend_kind backend)
{
    static int32_t keys[NUM_TERMS], idx[NUM_TERMS];
    test_rng rng = test_rng_make(8100);
    test_device d;

    if (!test_open(&d, backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < 8; ++i) {
        const bool indexed = i & 1, refilled = (i & 4) != 0;
        named_rows e = none_of(NUM_SEGMENTS, indexed || refilled ? NUM_SOURCES : NUM_TERMS);
        spops_segments_options o = spops_segments_options_default();
        const int32_t used = NUM_TERMS - 100;
        spops_segments *plan = NULL;
        o.gradients = i & 2 ? SPOPS_GRADIENTS_LINEAR : SPOPS_GRADIENTS_NONE;
        for (int t = 0; t < NUM_TERMS; ++t) {
            keys[t] = (int32_t)test_rng_below(&rng, NUM_SEGMENTS);
            idx[t] = (int32_t)test_rng_below(&rng, NUM_SOURCES);
            if (refilled && (t >= used || t % 7 == 0)) {
                if (t % 7 == 0) keys[t] = -1;
                continue; // left out
            }
            name_both(&e, keys[t], indexed ? idx[t] : t);
        }
        int32_t *keys_there = test_upload_i32(&d, keys, NUM_TERMS);
        int32_t *idx_there = test_upload_i32(&d, idx, NUM_TERMS);
        int32_t *used_there = test_upload_i32(&d, &used, 1);
        o.idx = indexed ? idx_there : NULL;
        o.num_rows = e.num[SPOPS_SIDE_SOURCE];
        if (refilled) {
            o.idx = NULL;
            test_expect_ok(d.ctx, spops_segments_reserve(d.ctx, NUM_SEGMENTS, NUM_TERMS, &o, &plan),
                           "reserve");
            const named_rows empty = none_of(NUM_SEGMENTS, NUM_SOURCES);
            check_rows(&d, plan, &empty, "segments, empty");
            test_expect_ok(d.ctx,
                           spops_segments_update(d.ctx, plan, used_there, keys_there,
                                                 indexed ? idx_there : NULL, NULL),
                           "update");
        } else {
            test_expect_ok(d.ctx,
                           spops_segments_create_from_keys(d.ctx, NUM_SEGMENTS, NUM_TERMS,
                                                           keys_there, SPOPS_KEYS_UNSORTED, &o,
                                                           &plan),
                           "create");
        }
        check_rows(&d, plan, &e, indexed ? "segments by idx" : "segments");
        spops_segments_destroy(plan);
        test_free(&d, keys_there);
        test_free(&d, idx_there);
        test_free(&d, used_there);
    }
    test_close(&d);
}
TEST_ON_CPU(segments, check_segments)

static void check_triplets(spops_backend_kind backend)
{
    enum { NUM = 400, NUM_OUT = 600, NUM_IN = 350, NUM_MATRICES = 9 };
    static int32_t out_rows[NUM], in_rows[NUM], matrices[NUM];
    const spops_triplets_shape shape = {NUM_OUT, NUM_IN, NUM_MATRICES, NUM};
    test_rng rng = test_rng_make(8200);
    named_rows e = none_of(NUM_OUT, NUM_IN);
    spops_triplets *plan = NULL;
    test_device d;

    if (!test_open(&d, backend, LAUNCH_STREAM)) return;
    for (int t = 0; t < NUM; ++t) {
        out_rows[t] = (int32_t)test_rng_below(&rng, NUM_OUT);
        in_rows[t] = (int32_t)test_rng_below(&rng, NUM_IN);
        matrices[t] = (int32_t)test_rng_below(&rng, NUM_MATRICES);
        name_both(&e, out_rows[t], in_rows[t]);
    }
    int32_t *out_there = test_upload_i32(&d, out_rows, NUM);
    int32_t *in_there = test_upload_i32(&d, in_rows, NUM);
    int32_t *matrices_there = test_upload_i32(&d, matrices, NUM);
    test_expect_ok(
        d.ctx,
        spops_triplets_create(d.ctx, &shape, out_there, in_there, matrices_there, NULL, &plan),
        "create");
    check_rows(&d, plan, &e, "triplets");
    spops_triplets_destroy(plan);
    test_free(&d, out_there);
    test_free(&d, in_there);
    test_free(&d, matrices_there);

    const int32_t offsets[] = {0, 3, 3, 40};
    int32_t *offsets_there = test_upload_i32(&d, offsets, 4);
    e = none_of(40, 40);
    memset(e.row, 1, sizeof e.row);
    test_expect_ok(d.ctx, spops_triplets_create_from_offsets(d.ctx, 3, offsets_there, NULL, &plan),
                   "create_from_offsets");
    check_rows(&d, plan, &e, "groups");
    spops_triplets_destroy(plan);
    test_free(&d, offsets_there);
    test_close(&d);
}
TEST_ON_CPU(triplets, check_triplets)

static void check_bev(spops_backend_kind backend)
{
    // One camera of 6 x 5 pixels and 4 depths; cell c takes the depths c, c + 9, c + 18 ... up to cell 6.
    enum { H = 5, W = 6, D = 4, POINTS = H * W * D, CELLS = 12, USED = 7 };
    const spops_bev_shape shape = {.num_batches = 1,
                                   .num_cameras = 1,
                                   .num_depths = D,
                                   .feature_height = H,
                                   .feature_width = W,
                                   .num_cells_x = CELLS,
                                   .num_cells_y = 1,
                                   .num_cells_z = 1};
    int32_t indices[POINTS], intervals[USED][3], n = 0;
    named_rows e = none_of(CELLS, H * W);
    spops_bev_intervals given = spops_bev_intervals_default();
    spops_bev_plan *plan = NULL;
    test_device d;

    if (!test_open(&d, backend, LAUNCH_STREAM)) return;
    for (int c = 0; c < USED; ++c) {
        intervals[c][0] = n;
        for (int32_t p = c; p < POINTS / 2; p += 9) {
            indices[n++] = p;
            name_both(&e, c, p % (H * W));
        }
        intervals[c][1] = n;
        intervals[c][2] = c;
    }
    given.num_points = n;
    given.num_intervals = USED;
    given.indices = test_upload_i32(&d, indices, n);
    given.intervals = test_upload_i32(&d, intervals[0], 3 * USED);
    test_expect_ok(d.ctx, spops_bev_plan_create_from_intervals(d.ctx, &shape, &given, NULL, &plan),
                   "create");
    check_rows(&d, plan, &e, "bev");
    spops_bev_plan_destroy(plan);
    test_free(&d, (void *)(uintptr_t)given.indices);
    test_free(&d, (void *)(uintptr_t)given.intervals);
    test_close(&d);
}
TEST_ON_CPU(bev, check_bev)

// ---- Kernel maps, and what stands on them -------------------------------------------------------

enum { AREA = 40 }; // cells of either axis of a set in the plane

typedef struct plane_set {
    int32_t num, max;
    int32_t rows[MAX_ROWS][3];
    spops_coords *set;
} plane_set;

static void make_set(test_device *d, test_rng *rng, int32_t num, int32_t max, plane_set *s)
{
    static int32_t cells[AREA * AREA];
    spops_coords_options o = spops_coords_options_default();
    spops_coords_box box = {.upper = {0, AREA - 1, AREA - 1}};

    for (int32_t i = 0; i < AREA * AREA; ++i)
        cells[i] = i;
    test_rng_shuffle_i32(rng, cells, AREA * AREA);
    s->num = num, s->max = max;
    for (int32_t i = 0; i < num; ++i)
        s->rows[i][0] = 0, s->rows[i][1] = cells[i] / AREA, s->rows[i][2] = cells[i] % AREA;
    o.order = SPOPS_COORDS_ORDER_GIVEN;
    o.box = &box;
    int32_t *there = test_upload_i32(d, s->rows[0], (int64_t)max * 3);
    int32_t *num_there = test_upload_i32(d, &num, 1);
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, 2, max, max, &o, &s->set), "coords");
    test_expect_ok(d->ctx, spops_coords_update(d->ctx, s->set, num_there, there), "coords");
    test_wait(d);
    test_free(d, there);
    test_free(d, num_there);
}

// Kernels of 3 x 3: in = stride * out + tap - 1.
static named_rows rows_of_map(const plane_set *in, const plane_set *out, int32_t stride)
{
    named_rows e = none_of(out->max, in->max);
    for (int32_t i = 0; i < out->num; ++i)
        for (int32_t j = 0; j < in->num; ++j) {
            const int32_t y = in->rows[j][1] - stride * out->rows[i][1];
            const int32_t x = in->rows[j][2] - stride * out->rows[i][2];
            if (y >= -1 && y <= 1 && x >= -1 && x <= 1) name_both(&e, i, j);
        }
    return e;
}

static void check_on_map(test_device *d, const spops_kernel_map *map, const named_rows *e)
{
    spops_sparseconv *conv = NULL;
    spops_pool *pool = NULL;
    spops_kernel_map *inverse = NULL;
    const named_rows turned = none_of(e->num[1], e->num[0]);
    named_rows swapped = turned;

    test_expect_ok(d->ctx, spops_sparseconv_create(d->ctx, map, NULL, &conv), "sparseconv");
    check_rows(d, conv, e, "sparseconv");
    spops_sparseconv_destroy(conv);
    test_expect_ok(d->ctx, spops_pool_create(d->ctx, map, NULL, &pool), "pool");
    check_rows(d, pool, e, "pool");
    spops_pool_destroy(pool);
    if (map->base.refillable) return;
    memcpy(swapped.row[0], e->row[1], sizeof swapped.row[0]);
    memcpy(swapped.row[1], e->row[0], sizeof swapped.row[1]);
    test_expect_ok(d->ctx, spops_kernel_map_create_inverse(d->ctx, map, NULL, &inverse), "inverse");
    check_rows(d, inverse, &swapped, "inverse");
    spops_kernel_map_destroy(inverse);
}

static void check_maps(spops_backend_kind backend)
{
    static const int32_t contents[] = {SPOPS_MAP_TABLE,
                                       SPOPS_MAP_PAIRS,
                                       SPOPS_MAP_CSR,
                                       SPOPS_MAP_CSR | SPOPS_MAP_REVERSE,
                                       SPOPS_MAP_TABLE | SPOPS_MAP_ORDER | SPOPS_MAP_REVERSE,
                                       SPOPS_MAP_FOR_CONV | SPOPS_MAP_TABLE};
    test_rng rng = test_rng_make(8300);
    spops_kernel_shape kernel = spops_kernel_shape_default();
    plane_set in, out;
    test_device d;

    if (!test_open(&d, backend, LAUNCH_STREAM)) return;
    make_set(&d, &rng, 500, 620, &in);
    make_set(&d, &rng, 130, 150, &out);
    kernel.dims = 2;
    for (size_t i = 0; i < 4 * sizeof contents / sizeof *contents; ++i) {
        const bool same = i & 1, refilled = (i & 2) != 0;
        spops_kernel_map_options o = spops_kernel_map_options_default();
        const named_rows e = rows_of_map(&in, same ? &in : &out, same ? 1 : 2);
        spops_kernel_map *map = NULL;
        for (int a = 0; a < 2; ++a) {
            kernel.size[a] = 3;
            kernel.stride[a] = same ? 1 : 2;
            kernel.padding[a] = kernel.dilation[a] = 1;
        }
        o.contents = contents[i / 4];
        if (refilled) o.max_pairs = 9 * 620;
        test_expect_ok(d.ctx,
                       (refilled ? spops_kernel_map_reserve : spops_kernel_map_create)(
                           d.ctx, same ? SPOPS_MAP_SUBMANIFOLD : SPOPS_MAP_CONVOLUTION, &kernel,
                           in.set, same ? NULL : out.set, &o, &map),
                       "map");
        if (refilled) {
            const named_rows empty = none_of(e.num[0], e.num[1]);
            check_rows(&d, map, &empty, "map, empty");
            test_expect_ok(d.ctx,
                           spops_kernel_map_update(d.ctx, map, in.set, same ? NULL : out.set),
                           "update");
        }
        check_rows(&d, map, &e, "map");
        if (o.contents & SPOPS_MAP_FOR_CONV) check_on_map(&d, map, &e);
        spops_kernel_map_destroy(map);
    }
    spops_relation relation;
    test_expect(d.ctx, spops_relation_of(d.ctx, "test", (const spops_plan *)in.set, &relation),
                SPOPS_STATUS_NOT_SUPPORTED, "test: plan has no rows that meet others", "coords");
    spops_coords_destroy(in.set);
    spops_coords_destroy(out.set);
    test_close(&d);
}
TEST_ON_CPU(maps, check_maps)

// ---- Points -------------------------------------------------------------------------------------

typedef struct cells_cloud {
    int32_t num;
    float points[MAX_ROWS][3]; // whole numbers
    float *there;
    spops_point_cloud cloud;
} cells_cloud;

static void make_cloud(test_device *d, test_rng *rng, int32_t num, cells_cloud *c)
{
    void *there = NULL;
    c->num = num;
    for (int32_t i = 0; i < num; ++i)
        for (int a = 0; a < 3; ++a)
            c->points[i][a] = (float)test_rng_below(rng, 16);
    cr_assert(device_alloc(d->backend, (size_t)num * sizeof *c->points, &there));
    cr_assert(device_upload(d->backend, there, c->points, (size_t)num * sizeof *c->points));
    c->there = there;
    c->cloud = (spops_point_cloud){.points = spops_matrix_dense(c->there, num, 3, SPOPS_DTYPE_F32)};
}

// Those that are at most 1 apart along every axis.
static named_rows rows_of_clouds(const cells_cloud *out, const cells_cloud *in)
{
    named_rows e = none_of(out->num, in->num);
    for (int32_t i = 0; i < out->num; ++i)
        for (int32_t j = 0; j < in->num; ++j) {
            int near = 1;
            for (int a = 0; a < 3; ++a) {
                const float apart = in->points[j][a] - out->points[i][a];
                near &= apart >= -1.0f && apart <= 1.0f;
            }
            if (near) name_both(&e, i, j);
        }
    return e;
}

static void check_points(spops_backend_kind backend)
{
    static const int32_t contents[] = {SPOPS_NEIGHBORS_LISTS, SPOPS_NEIGHBORS_BY_TAP,
                                       SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE};
    test_rng rng = test_rng_make(8400);
    cells_cloud out, in;
    test_device d;

    if (!test_open(&d, backend, LAUNCH_STREAM)) return;
    make_cloud(&d, &rng, 100, &out);
    make_cloud(&d, &rng, 300, &in);
    const named_rows e = rows_of_clouds(&out, &in);
    for (size_t i = 0; i < sizeof contents / sizeof *contents; ++i) {
        spops_neighbors_options o = spops_neighbors_options_default();
        spops_neighbors *neighbors = NULL;
        spops_pointconv *conv = NULL;
        o.metric = SPOPS_METRIC_CHEBYSHEV;
        o.radius_m = 1.0f;
        o.taps = 3;
        o.tap_size_m = 1.0f;
        o.contents = contents[i];
        test_expect_ok(d.ctx, spops_neighbors_create(d.ctx, &out.cloud, &in.cloud, &o, &neighbors),
                       "neighbors");
        check_rows(&d, neighbors, &e, "neighbors");
        if (contents[i] & SPOPS_NEIGHBORS_BY_TAP) {
            test_expect_ok(d.ctx, spops_pointconv_create(d.ctx, neighbors, NULL, &conv),
                           "pointconv");
            check_rows(&d, conv, &e, "pointconv");
            spops_pointconv_destroy(conv);
        }
        spops_neighbors_destroy(neighbors);
    }
    device_free(d.backend, out.there);
    device_free(d.backend, in.there);
    test_close(&d);
}
TEST_ON_CPU(points, check_points)

// Voxels of two points' size on each axis, in the order of their keys; and back from voxels to points.
static void check_voxels(spops_backend_kind backend)
{
    static int32_t voxel_of[8 * 8 * 8];
    test_rng rng = test_rng_make(8500);
    spops_voxels_options o = spops_voxels_options_default();
    spops_devoxels_options back = spops_devoxels_options_default();
    spops_coords_options c = spops_coords_options_default();
    spops_coords_box box = {.upper = {0, 7, 7, 7}};
    spops_voxels *voxels = NULL;
    spops_devoxels *devoxels = NULL;
    int32_t num_voxels = 0;
    cells_cloud in;
    test_device d;

    if (!test_open(&d, backend, LAUNCH_STREAM)) return;
    make_cloud(&d, &rng, 100, &in);
    memset(voxel_of, 0xff, sizeof voxel_of);
    for (int32_t i = 0; i < in.num; ++i) {
        const int32_t key = ((int32_t)in.points[i][0] / 2 * 8 + (int32_t)in.points[i][1] / 2) * 8 +
                            (int32_t)in.points[i][2] / 2;
        voxel_of[key] = 0;
    }
    for (int32_t key = 0; key < 512; ++key)
        if (voxel_of[key] == 0) voxel_of[key] = num_voxels++;
    named_rows e = none_of(num_voxels, in.num), turned = none_of(in.num, num_voxels);
    for (int32_t i = 0; i < in.num; ++i) {
        const int32_t key = ((int32_t)in.points[i][0] / 2 * 8 + (int32_t)in.points[i][1] / 2) * 8 +
                            (int32_t)in.points[i][2] / 2;
        name_both(&e, voxel_of[key], i);
        name_both(&turned, i, voxel_of[key]);
    }
    c.box = &box;
    c.order = SPOPS_COORDS_ORDER_LEXICOGRAPHIC;
    o.coords = &c;
    for (int a = 0; a < 3; ++a)
        o.size_m[a] = back.size_m[a] = 2.0;
    back.interpolation = SPOPS_DEVOXELS_INTERPOLATION_NEAREST;
    test_expect_ok(d.ctx, spops_voxels_create(d.ctx, in.cloud.points, NULL, &o, &voxels), "voxels");
    check_rows(&d, voxels, &e, "voxels");
    test_expect_ok(d.ctx,
                   spops_devoxels_create(d.ctx, spops_voxels_coords(voxels), in.cloud.points, NULL,
                                         &back, &devoxels),
                   "devoxels");
    check_rows(&d, devoxels, &turned, "devoxels");
    spops_devoxels_destroy(devoxels);
    spops_voxels_destroy(voxels);
    device_free(d.backend, in.there);
    test_close(&d);
}
TEST_ON_CPU(voxels, check_voxels)

// ---- Patches ------------------------------------------------------------------------------------

static void check_patches(spops_backend_kind backend)
{
    enum { ROWS = 400, KEY_ROWS = 230, PATCHES = 20, QUERIES = 220, KEYS = 500 };
    int32_t q_offsets[PATCHES + 1], k_offsets[PATCHES + 1], q_rows[ROWS], k_rows[KEYS];
    test_rng rng = test_rng_make(8600);
    spops_patch_lists lists = {.num_patches = PATCHES};
    test_device d;

    if (!test_open(&d, backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < ROWS; ++i)
        q_rows[i] = i;
    test_rng_shuffle_i32(&rng, q_rows, ROWS);
    for (int e = 0; e < KEYS; ++e)
        k_rows[e] = (int32_t)test_rng_below(&rng, ROWS / 2);
    for (int p = 0; p <= PATCHES; ++p)
        q_offsets[p] = p * QUERIES / PATCHES, k_offsets[p] = p * KEYS / PATCHES;
    lists.query_offsets = test_upload_i32(&d, q_offsets, PATCHES + 1);
    lists.key_offsets = test_upload_i32(&d, k_offsets, PATCHES + 1);
    lists.query_rows = test_upload_i32(&d, q_rows, ROWS);
    lists.key_rows = test_upload_i32(&d, k_rows, KEYS);
    void *owned[] = {(void *)(uintptr_t)lists.query_offsets, (void *)(uintptr_t)lists.key_offsets,
                     (void *)(uintptr_t)lists.query_rows, (void *)(uintptr_t)lists.key_rows};
    static const char *const names[] = {"patches, keys apart", "patches", "patches, same"};
    for (int kind = 0; kind < 3; ++kind) {
        const bool same = kind == 2;
        named_rows e = none_of(ROWS, kind == 0 ? KEY_ROWS : ROWS);
        spops_patches *plan = NULL;
        for (int i = 0; i < QUERIES; ++i)
            e.row[SPOPS_SIDE_TARGET][q_rows[i]] = 1;
        for (int i = 0; i < (same ? QUERIES : KEYS); ++i)
            e.row[SPOPS_SIDE_SOURCE][same ? q_rows[i] : k_rows[i]] = 1;
        if (same) lists.key_offsets = lists.key_rows = NULL;
        lists.num_key_rows = kind == 0 ? KEY_ROWS : 0;
        test_expect_ok(d.ctx, spops_patches_create(d.ctx, ROWS, &lists, &plan), "patches");
        check_rows(&d, plan, &e, names[kind]);
        spops_patches_destroy(plan);
    }
    for (int i = 0; i < 4; ++i)
        test_free(&d, owned[i]);
    test_close(&d);
}
TEST_ON_CPU(patches, check_patches)

// ---- On the stream ------------------------------------------------------------------------------

// Captured once with the refill before it, the marks follow what the plan holds.
Test(relation, is_captured)
{
    static int32_t keys[NUM_TERMS], idx[NUM_TERMS];
    const int32_t used = NUM_TERMS;
    spops_segments_options o = spops_segments_options_default();
    spops_segments *plan = NULL;
    device_graph *graph = NULL;
    void *marks[SPOPS_NUM_SIDES] = {NULL, NULL};
    test_device d;

    if (!test_open(&d, SPOPS_BACKEND_CUDA, LAUNCH_STREAM)) return;
    int32_t *keys_there = test_upload_i32(&d, keys, NUM_TERMS);
    int32_t *idx_there = test_upload_i32(&d, idx, NUM_TERMS);
    int32_t *used_there = test_upload_i32(&d, &used, 1);
    o.num_rows = NUM_SOURCES;
    test_expect_ok(d.ctx, spops_segments_reserve(d.ctx, NUM_SEGMENTS, NUM_TERMS, &o, &plan), "");
    cr_assert(device_alloc(d.backend, NUM_SEGMENTS + GUARD, &marks[SPOPS_SIDE_TARGET]));
    cr_assert(device_alloc(d.backend, NUM_SOURCES + GUARD, &marks[SPOPS_SIDE_SOURCE]));
    test_wait(&d);
    cr_assert(device_capture_begin(d.stream), "%s", device_error());
    test_expect_ok(d.ctx,
                   spops_segments_update(d.ctx, plan, used_there, keys_there, idx_there, NULL),
                   "update");
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
        mark(&d, (const spops_plan *)plan, side, marks[side], "captured");
    cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
    for (int run = 0; run < 3; ++run) {
        test_rng rng = test_rng_make(8700 + (uint64_t)run);
        named_rows e = none_of(NUM_SEGMENTS, NUM_SOURCES);
        for (int t = 0; t < NUM_TERMS; ++t) {
            keys[t] = (int32_t)test_rng_below(&rng, NUM_SEGMENTS / (run + 1));
            idx[t] = (int32_t)test_rng_below(&rng, NUM_SOURCES / (run + 1));
            name_both(&e, keys[t], idx[t]);
        }
        cr_assert(device_upload(d.backend, keys_there, keys, sizeof keys));
        cr_assert(device_upload(d.backend, idx_there, idx, sizeof idx));
        cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
        for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
            compare(&d, &e, side, marks[side], "captured");
    }
    device_graph_destroy(graph);
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
        device_free(d.backend, marks[side]);
    spops_segments_destroy(plan);
    test_free(&d, keys_there);
    test_free(&d, idx_there);
    test_free(&d, used_there);
    test_close(&d);
}

// ---- Places of entries --------------------------------------------------------------------------

static void check_places(spops_backend_kind backend)
{
    enum { KEYS = 7, ENTRIES = 700 };
    static const int32_t counts[KEYS] = {0, 300, 100, 0, 150, 150, 0};
    static int32_t rows[2 * ENTRIES], found[ENTRIES + 1];
    int32_t offsets[KEYS + 1] = {0}, first[KEYS];
    test_rng rng = test_rng_make(8800);
    test_device d;

    if (!test_open(&d, backend, LAUNCH_STREAM)) return;
    for (int k = 0; k < KEYS; ++k) {
        offsets[k + 1] = offsets[k] + counts[k];
        first[k] = (int32_t)test_rng_below(&rng, 10000);
    }
    for (int i = 0; i < 2 * ENTRIES; ++i)
        rows[i] = (int32_t)test_rng_next(&rng);
    int32_t *offsets_there = test_upload_i32(&d, offsets, KEYS + 1);
    int32_t *rows_there = test_upload_i32(&d, rows, 2 * ENTRIES);
    int32_t *first_there = test_upload_i32(&d, first, KEYS);
    const spops_relation relation = {.num_keys = KEYS,
                                     .max_terms = ENTRIES,
                                     .sides = {{.by_key = {offsets_there, rows_there, 2}},
                                               {.by_key = {offsets_there, rows_there + 1, 2}}}};
    for (int64_t without = -1; without < KEYS; ++without) {
        const int64_t left = ENTRIES - (without < 0 ? 0 : counts[without]);
        int32_t *to[3];
        for (int i = 0; i < 3; ++i) {
            memset(found, 0x55, sizeof found);
            to[i] = test_upload_i32(&d, found, ENTRIES + 1);
        }
        const spops_relation_places_args args = {.relation = &relation,
                                                 .num_entries = ENTRIES,
                                                 .first = first_there,
                                                 .without = without,
                                                 .rows = {to[0], to[1]},
                                                 .places = to[2]};
        test_expect_ok(d.ctx, d.ctx->backend->relation_places(d.ctx, &args), "places");
        test_wait(&d);
        for (int i = 0; i < 3; ++i) {
            int64_t at = 0;
            test_download_i32(&d, found, to[i], ENTRIES + 1);
            for (int k = 0; k < KEYS; ++k)
                for (int32_t e = offsets[k]; k != without && e < offsets[k + 1]; ++e, ++at) {
                    const int32_t expected = i < 2 ? rows[2 * e + i] : first[k] + e - offsets[k];
                    cr_assert(found[at] == expected, "without %d, array %d: entry %d is %d, not %d",
                              (int)without, i, (int)at, found[at], expected);
                }
            cr_assert(at == left && found[left] == 0x55555555, "without %d: wrote past the rows",
                      (int)without);
            test_free(&d, to[i]);
        }
    }
    test_free(&d, offsets_there);
    test_free(&d, rows_there);
    test_free(&d, first_there);
    test_close(&d);
}
TEST_ON_CPU(places, check_places)

Test(relation, holds_on_cuda)
{
    static void (*const checks[])(spops_backend_kind) = {
        check_segments, check_triplets, check_bev,     check_maps,
        check_points,   check_voxels,   check_patches, check_places};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; ++i)
        checks[i](SPOPS_BACKEND_CUDA);
}
