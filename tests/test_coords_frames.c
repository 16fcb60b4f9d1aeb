// SPDX-License-Identifier: Apache-2.0
// Frames of different sizes through one set of capacities, on the GPU as one captured graph:
// voxels, mean features, a coarser set and two maps give what separate builds give.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/coord_cases.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

static const char *const scans[] = {"kitti_odom_a.npy",         "indoor_redkitchen_a.npy",
                                    "kitti_det_000008_fov.npy", "argoverse2_a.npy",
                                    "indoor_roomscan_a.npy",    "nuscenes_a.npy",
                                    "spconv_benchmark_pc.npy",  "nuscenes_b.npy",
                                    "airborne_autzen_a.npy",    "kitti_odom_b.npy"};
enum { NUM_SCANS = 10, COLS = 2, MAX_POINTS = 1100000, MAX_VOXELS = 700000, MAX_COARSE = 400000 };

static const spops_coords_box box = {{0, -1000, -1000, -300, 0}, {0, 1000, 1000, 300, 0}};

// The plans of a frame: made to measure, or with capacities.
typedef struct frame {
    spops_voxels *voxels;
    const spops_coords *coords;
    spops_coords *coarse;
    spops_kernel_map *flat, *down;
    void *mean; // [voxels][COLS]
} frame;

static const spops_coords_options *coords_options(void)
{
    static spops_coords_options o;
    o = spops_coords_options_default();
    o.box = &box;
    return &o;
}

static spops_voxels_options voxel_options(void)
{
    spops_voxels_options o = spops_voxels_options_default();
    o.size_m[0] = o.size_m[1] = o.size_m[2] = 0.5;
    o.coords = coords_options();
    o.max_cols = COLS;
    return o;
}

static const spops_kernel_shape *window(void)
{
    static spops_kernel_shape shape;
    shape = spops_kernel_shape_cube(3, 2, 2, 1);
    return &shape;
}

static const spops_kernel_shape *cube(void)
{
    static spops_kernel_shape shape;
    shape = spops_kernel_shape_cube(3, 3, 1, 1);
    return &shape;
}

static spops_kernel_map_options map_options(void)
{
    spops_kernel_map_options o = spops_kernel_map_options_default();
    o.contents = SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS;
    o.max_pairs = 9 * MAX_VOXELS;
    return o;
}

static spops_status run_mean(spops_context *ctx, const frame *f, spops_matrix x, int64_t num_voxels)
{
    return spops_segreduce_execute(
        ctx, spops_voxels_segments(f->voxels), SPOPS_REDUCE_MEAN, x, NULL,
        spops_matrix_dense(f->mean, num_voxels, COLS, SPOPS_DTYPE_F32), NULL);
}

static frame reserve_frame(test_device *d)
{
    frame f;
    const spops_voxels_options vo = voxel_options();
    const spops_kernel_map_options mo = map_options();
    memset(&f, 0, sizeof f);
    test_expect_ok(d->ctx, spops_voxels_reserve(d->ctx, 3, MAX_POINTS, MAX_VOXELS, &vo, &f.voxels),
                   "voxels");
    f.coords = spops_voxels_coords(f.voxels);
    test_expect_ok(d->ctx,
                   spops_coords_reserve(d->ctx, 3, MAX_COARSE, MAX_VOXELS, vo.coords, &f.coarse),
                   "coarse");
    test_expect_ok(d->ctx,
                   spops_kernel_map_reserve(d->ctx, SPOPS_MAP_SUBMANIFOLD, cube(), f.coords, NULL,
                                            &mo, &f.flat),
                   "flat");
    test_expect_ok(d->ctx,
                   spops_kernel_map_reserve(d->ctx, SPOPS_MAP_CONVOLUTION, window(), f.coords,
                                            f.coarse, &mo, &f.down),
                   "down");
    cr_assert(device_alloc(d->backend, MAX_VOXELS * COLS * sizeof(float), &f.mean), "%s",
              device_error());
    return f;
}

static spops_status enqueue_frame(spops_context *ctx, const frame *f, const int32_t *num,
                                  spops_matrix points, spops_matrix x)
{
    spops_status s = spops_voxels_update(ctx, f->voxels, num, points, NULL);
    if (s == SPOPS_STATUS_OK) s = run_mean(ctx, f, x, MAX_VOXELS);
    if (s == SPOPS_STATUS_OK)
        s = spops_coords_update_downsampled(ctx, f->coarse, f->coords, window());
    if (s == SPOPS_STATUS_OK) s = spops_kernel_map_update(ctx, f->flat, f->coords, NULL);
    if (s == SPOPS_STATUS_OK) s = spops_kernel_map_update(ctx, f->down, f->coords, f->coarse);
    return s;
}

static frame create_frame(test_device *d, int64_t n, spops_matrix points, spops_matrix x)
{
    frame f;
    const spops_voxels_options vo = voxel_options();
    const spops_kernel_map_options mo = map_options();
    spops_coords_view view = spops_coords_view_default();
    memset(&f, 0, sizeof f);
    points.rows = x.rows = n;
    test_expect_ok(d->ctx, spops_voxels_create(d->ctx, points, NULL, &vo, &f.voxels), "voxels");
    f.coords = spops_voxels_coords(f.voxels);
    test_expect_ok(d->ctx, spops_coords_get_view(d->ctx, f.coords, &view), "view");
    test_expect_ok(
        d->ctx, spops_coords_create_downsampled(d->ctx, f.coords, window(), vo.coords, &f.coarse),
        "coarse");
    test_expect_ok(d->ctx,
                   spops_kernel_map_create(d->ctx, SPOPS_MAP_SUBMANIFOLD, cube(), f.coords, NULL,
                                           &mo, &f.flat),
                   "flat");
    test_expect_ok(d->ctx,
                   spops_kernel_map_create(d->ctx, SPOPS_MAP_CONVOLUTION, window(), f.coords,
                                           f.coarse, &mo, &f.down),
                   "down");
    cr_assert(device_alloc(d->backend, (size_t)view.max_rows * COLS * sizeof(float), &f.mean), "%s",
              device_error());
    test_expect_ok(d->ctx, run_mean(d->ctx, &f, x, view.max_rows), "mean");
    return f;
}

static void free_frame(test_device *d, frame *f)
{
    spops_kernel_map_destroy(f->flat), spops_kernel_map_destroy(f->down);
    spops_coords_destroy(f->coarse);
    spops_voxels_destroy(f->voxels);
    test_free(d, f->mean);
}

static void check_same_set(test_device *d, const spops_coords *a, const spops_coords *b,
                           const char *what)
{
    held_set x = held_set_of(d, a, what), y = held_set_of(d, b, what);
    cr_assert(x.info.overflow == 0 && x.info.num_rows == y.info.num_rows, "%s: %lld and %lld rows",
              what, (long long)x.info.num_rows, (long long)y.info.num_rows);
    cr_assert(x.info.num_merged == y.info.num_merged, "%s", what);
    cr_assert(memcmp(x.rows, y.rows, (size_t)x.info.num_rows * 16) == 0, "%s: rows", what);
    cr_assert(memcmp(x.row_item, y.row_item, (size_t)x.info.num_rows * 4) == 0, "%s: items", what);
    held_set_free(&x), held_set_free(&y);
}

static void check_same_map(test_device *d, const spops_kernel_map *a, const spops_kernel_map *b,
                           const char *what)
{
    held_map x = held_map_of(d, a, SPOPS_STATUS_OK, what);
    held_map y = held_map_of(d, b, SPOPS_STATUS_OK, what);
    held_map_check_same(&x, &y, what);
    held_map_free(&x), held_map_free(&y);
}

static void check_same_frame(test_device *d, const frame *a, const frame *b, const char *what)
{
    spops_coords_info info;
    check_same_set(d, a->coords, b->coords, what);
    check_same_set(d, a->coarse, b->coarse, what);
    check_same_map(d, a->flat, b->flat, what);
    check_same_map(d, a->down, b->down, what);
    info.struct_size = sizeof info;
    test_expect_ok(d->ctx, spops_coords_get_info_sync(d->ctx, b->coords, &info), what);
    const size_t bytes = (size_t)info.num_rows * COLS * sizeof(float);
    void *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    cr_assert(device_download(d->backend, x, a->mean, bytes) &&
                  device_download(d->backend, y, b->mean, bytes),
              "%s", device_error());
    cr_assert(memcmp(x, y, bytes) == 0, "%s: mean features", what);
    free(x), free(y);
}

ParameterizedTestParameters(coords_frames, ten_scans)
{
    static struct launch_param params[] = {{SPOPS_BACKEND_CPU, LAUNCH_DEFAULT},
                                           {SPOPS_BACKEND_CUDA, LAUNCH_CAPTURED}};
    return tested_here(cr_make_param_array(struct launch_param, params, 2));
}
ParameterizedTest(struct launch_param *p, coords_frames, ten_scans)
{
    test_device d;
    device_graph *graph = NULL;
    void *num = NULL, *points = NULL, *features = NULL;
    if (test_quick() || !test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch))
        return;
    frame f = reserve_frame(&d);
    cr_assert(device_alloc(d.backend, 4, &num) &&
                  device_alloc(d.backend, MAX_POINTS * 12, &points) &&
                  device_alloc(d.backend, MAX_POINTS * COLS * 4, &features),
              "%s", device_error());
    // Small whole numbers: their sums are exact, however a plan of another capacity cuts them.
    float *values = (float *)calloc((size_t)MAX_POINTS * COLS, sizeof *values);
    for (int64_t i = 0; i < (int64_t)MAX_POINTS * COLS; ++i)
        values[i] = (float)(i * 7 % 61 - 30);
    cr_assert(device_upload(d.backend, features, values, (size_t)MAX_POINTS * COLS * 4), "%s",
              device_error());
    const spops_matrix m = spops_matrix_dense(points, MAX_POINTS, 3, SPOPS_DTYPE_F32);
    const spops_matrix x = spops_matrix_dense(features, MAX_POINTS, COLS, SPOPS_DTYPE_F32);
    if (d.launch == LAUNCH_CAPTURED) {
        cr_assert(device_capture_begin(d.stream), "%s", device_error());
        const spops_status status = enqueue_frame(d.ctx, &f, (int32_t *)num, m, x);
        cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
        test_expect_ok(d.ctx, status, "captured");
    }
    for (int s = 0; s < NUM_SCANS; ++s) {
        int64_t n = 0, cols = 0;
        float *scan = NULL;
        if (!cloud_load_f32(scans[s], &n, &cols, &scan)) continue;
        for (int64_t i = 0; i < n; ++i)
            memmove(scan + 3 * i, scan + cols * i, 3 * sizeof *scan);
        const int32_t given = (int32_t)n;
        cr_assert(n <= MAX_POINTS && device_upload(d.backend, num, &given, 4) &&
                      device_upload(d.backend, points, scan, (size_t)n * 12),
                  "%s", device_error());
        if (graph != NULL)
            cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
        else
            test_expect_ok(d.ctx, enqueue_frame(d.ctx, &f, (int32_t *)num, m, x), scans[s]);
        test_wait(&d);
        frame alone = create_frame(&d, n, m, x);
        check_same_frame(&d, &f, &alone, scans[s]);
        free_frame(&d, &alone);
        free(scan);
    }
    device_graph_destroy(graph);
    free_frame(&d, &f);
    free(values);
    test_free(&d, num), test_free(&d, points), test_free(&d, features);
    test_close(&d);
}
