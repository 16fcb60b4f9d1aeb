// SPDX-License-Identifier: Apache-2.0
#include "tests/support/bev_cases.h"

#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tools/rig_json.h"

static void *allocate(int64_t n, size_t size)
{
    void *p = calloc(n > 0 ? (size_t)n : 1, size);
    cr_assert(p != NULL, "no memory");
    return p;
}

bev_geometry_case bev_geometry_simulate(int32_t num_batches, int32_t num_cameras, double turn_rad)
{
    const double two_pi = 6.283185307179586;
    bev_geometry_case g;
    memset(&g, 0, sizeof g);
    g.geometry.struct_size = sizeof g.geometry;
    g.geometry.shape = (spops_bev_shape){num_batches, num_cameras, 9, 5, 7, 17, 13, 3};
    g.geometry.input_height = 96;
    g.geometry.input_width = 160;
    g.geometry.depth_start_m = 1.0;
    g.geometry.depth_step_m = 0.75;
    const double lower[3] = {-6.1, -5.2, -1.9}, size[3] = {0.7, 0.8, 1.3};
    memcpy(g.geometry.grid_lower_m, lower, sizeof lower);
    memcpy(g.geometry.cell_size_m, size, sizeof size);
    g.cameras = (spops_bev_camera *)allocate(num_batches * num_cameras, sizeof *g.cameras);
    for (int32_t i = 0; i < num_batches * num_cameras; ++i) {
        spops_bev_camera *c = &g.cameras[i];
        const double yaw = turn_rad + two_pi * i / num_cameras + 0.1 * (i / num_cameras);
        const double tilt = 0.05 + 0.01 * i, cy = cos(yaw), sy = sin(yaw), ct = cos(tilt),
                     st = sin(tilt);
        const double k[9] = {240.0 + i, 0.5, 155.0, 0.0, 238.0, 102.0, 0.0, 0.0, 1.0};
        // Columns: where the optical axes x (right), y (down), z (forward) point.
        const double e[16] = {sy,  -st * cy, ct * cy, 0.4 * cy, -cy, -st * sy, ct * sy, 0.4 * sy,
                              0.0, -ct,      -st,     1.5,      0.0, 0.0,      0.0,     1.0};
        memcpy(c->intrinsics, k, sizeof k);
        memcpy(c->camera_to_ego, e, sizeof e);
        spops_bev_camera_set_resize_crop(c, 0.5, 2.0, 3.0);
    }
    g.geometry.cameras = g.cameras;
    return g;
}

#ifdef SPOPS_TESTS_RIG
static const char *data_dir(char path[512])
{
    const char *given = getenv("SPOPS_TEST_DATA");
    (void)snprintf(path, 512, "%s", given != NULL ? given : SPOPS_SOURCE_DIR "/../shared/data");
    return path;
}

bool bev_geometry_real(char which, char setting, bev_geometry_case *out)
{
    char dir[512], path[600], error[RIG_ERROR_BYTES];
    rig r;
    const bool b = setting == 'B';
    (void)snprintf(path, sizeof path, "%s/nuscenes_%c.json", data_dir(dir), which);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        cr_log_info("skipped: no %s (SPOPS_TEST_DATA says where the data are)", path);
        return false;
    }
    (void)fclose(file);
    cr_assert(rig_load(path, &r, error, sizeof error), "%s", error);

    memset(out, 0, sizeof *out);
    spops_bev_geometry *g = &out->geometry;
    g->struct_size = sizeof *g;
    g->shape = b ? (spops_bev_shape){1, r.num_cameras, 118, 32, 88, 360, 360, 1}
                 : (spops_bev_shape){1, r.num_cameras, 59, 16, 44, 128, 128, 1};
    g->input_height = 256;
    g->input_width = 704;
    g->depth_start_m = 1.0;
    g->depth_step_m = b ? 0.5 : 1.0;
    for (int i = 0; i < 2; ++i) {
        g->grid_lower_m[i] = b ? -54.0 : -51.2;
        g->cell_size_m[i] = b ? 0.3 : 0.8;
    }
    g->grid_lower_m[2] = b ? -10.0 : -5.0;
    g->cell_size_m[2] = b ? 20.0 : 8.0;
    out->cameras = (spops_bev_camera *)allocate(r.num_cameras, sizeof *out->cameras);
    for (int i = 0; i < r.num_cameras; ++i) {
        spops_bev_camera *c = &out->cameras[i];
        memcpy(c->intrinsics, r.cameras[i].intrinsics, sizeof c->intrinsics);
        cr_assert(rig_camera_to(&r, i, b ? RIG_FRAME_LIDAR : RIG_FRAME_EGO_BY_LIDAR,
                                c->camera_to_ego, error, sizeof error),
                  "%s", error);
        spops_bev_camera_set_resize_crop(c, 0.48, 32.0, 176.0);
    }
    g->cameras = out->cameras;
    rig_free(&r);
    return true;
}
#else
bool bev_geometry_real(char which, char setting, bev_geometry_case *out)
{
    (void)which, (void)setting, (void)out;
    cr_log_info("skipped: built without the rig reader (jansson)");
    return false;
}
#endif

void bev_geometry_free(bev_geometry_case *g)
{
    free(g->cameras);
    memset(g, 0, sizeof *g);
}

static bev_map map_create(const spops_bev_shape *shape, int64_t num_points, int64_t num_intervals)
{
    bev_map m;
    memset(&m, 0, sizeof m);
    m.shape = *shape;
    m.num_intervals = num_intervals;
    m.depth_of = (int32_t *)allocate(num_points, sizeof(int32_t));
    m.feat_of = (int32_t *)allocate(num_points, sizeof(int32_t));
    m.cell_of = (int32_t *)allocate(num_points, sizeof(int32_t));
    m.starts = (int32_t *)allocate(num_intervals, sizeof(int32_t));
    m.lengths = (int32_t *)allocate(num_intervals, sizeof(int32_t));
    m.ref.num_points = num_points;
    m.ref.num_features = (int64_t)shape->num_batches * shape->num_cameras * shape->feature_height *
                         shape->feature_width;
    m.ref.num_depths = m.ref.num_features * shape->num_depths;
    m.ref.num_cells =
        (int64_t)shape->num_batches * shape->num_cells_z * shape->num_cells_y * shape->num_cells_x;
    m.ref.depth_of = m.depth_of;
    m.ref.feat_of = m.feat_of;
    m.ref.cell_of = m.cell_of;
    return m;
}

void bev_map_free(bev_map *m)
{
    free(m->depth_of), free(m->feat_of), free(m->cell_of), free(m->starts), free(m->lengths);
    memset(m, 0, sizeof *m);
}

// points: which depth elements to take, in order; NULL: any, also more than once.
static bev_map draw_map(const spops_bev_shape *shape, int64_t num_points, const int32_t *points,
                        bool follow, test_rng *rng)
{
    bev_map m = map_create(shape, num_points, num_points);
    // Cells in random order, each at most once: every second one is left empty.
    int32_t *cells = (int32_t *)allocate(m.ref.num_cells, sizeof(int32_t));
    for (int64_t i = 0; i < m.ref.num_cells; ++i)
        cells[i] = (int32_t)i;
    test_rng_shuffle_i32(rng, cells, m.ref.num_cells);
    m.num_intervals = 0;
    for (int64_t p = 0; p < num_points && m.num_intervals < (m.ref.num_cells + 1) / 2;) {
        int64_t length = 1 + test_rng_below(rng, 6);
        if (test_rng_below(rng, 40) == 0) length = num_points / 8 + 1;
        if (length > num_points - p) length = num_points - p;
        m.starts[m.num_intervals] = (int32_t)p;
        m.lengths[m.num_intervals] = (int32_t)length;
        for (int64_t i = 0; i < length; ++i, ++p) {
            m.depth_of[p] =
                points != NULL ? points[p] : (int32_t)test_rng_below(rng, m.ref.num_depths);
            m.feat_of[p] = (int32_t)(follow ? ref_bev_pixel(shape, m.depth_of[p])
                                            : test_rng_below(rng, m.ref.num_features));
            m.cell_of[p] = cells[m.num_intervals];
        }
        ++m.num_intervals;
        m.ref.num_points = p;
    }
    free(cells);
    return m;
}

bev_map bev_map_random(const spops_bev_shape *shape, int64_t num_points, bool follow, test_rng *rng)
{
    return draw_map(shape, num_points, NULL, follow, rng);
}

bev_map bev_map_distinct(const spops_bev_shape *shape, int64_t num_points, test_rng *rng)
{
    const int64_t num_depths = (int64_t)shape->num_batches * shape->num_cameras *
                               shape->num_depths * shape->feature_height * shape->feature_width;
    int32_t *points = (int32_t *)allocate(num_depths, sizeof(int32_t));
    cr_assert(num_points <= num_depths, "%lld points of %lld", (long long)num_points,
              (long long)num_depths);
    for (int64_t i = 0; i < num_depths; ++i)
        points[i] = (int32_t)i;
    test_rng_shuffle_i32(rng, points, num_depths);
    bev_map m = draw_map(shape, num_points, points, true, rng);
    free(points);
    return m;
}

bev_map bev_map_dense(const spops_bev_shape *shape, test_rng *rng)
{
    enum { CHOICES = 4 };
    const int32_t image = shape->feature_height * shape->feature_width;
    const int32_t planes = shape->num_batches * shape->num_cameras * shape->num_depths;
    const int32_t pairs = (shape->feature_width + 1) / 2, num_used = planes * pairs * CHOICES;
    bev_map m = map_create(shape, (int64_t)planes * image, num_used);
    cr_assert(num_used <= m.ref.num_cells, "%d cells are needed", num_used);
    // Points of each used cell, ascending; then the cells in any order.
    int32_t *used_of = (int32_t *)allocate((int64_t)planes * image, sizeof(int32_t));
    int32_t *begin = (int32_t *)allocate(num_used + 1, sizeof(int32_t));
    int32_t *cells = (int32_t *)allocate(m.ref.num_cells, sizeof(int32_t));
    for (int64_t i = 0; i < m.ref.num_cells; ++i)
        cells[i] = (int32_t)i;
    test_rng_shuffle_i32(rng, cells, m.ref.num_cells);
    for (int32_t p = 0; p < planes * image; ++p) {
        const int32_t pair = p % shape->feature_width / 2;
        used_of[p] = -1;
        if (test_rng_below(rng, 5) == 0) continue;
        used_of[p] = (p / image * pairs + pair) * CHOICES + (int32_t)test_rng_below(rng, CHOICES);
        ++begin[used_of[p] + 1];
    }
    for (int32_t u = 0; u < num_used; ++u)
        begin[u + 1] += begin[u];
    m.ref.num_points = begin[num_used];
    m.num_intervals = 0;
    for (int32_t u = 0; u < num_used; ++u) {
        if (begin[u + 1] == begin[u]) continue;
        m.starts[m.num_intervals] = begin[u];
        m.lengths[m.num_intervals++] = begin[u + 1] - begin[u];
    }
    for (int32_t p = 0; p < planes * image; ++p) {
        if (used_of[p] < 0) continue;
        const int32_t at = begin[used_of[p]]++;
        m.depth_of[at] = p;
        m.feat_of[at] = (int32_t)ref_bev_pixel(shape, p);
        m.cell_of[at] = cells[used_of[p]];
    }
    free(used_of), free(begin), free(cells);
    return m;
}

spops_bev_plan_info bev_info(test_device *d, const spops_bev_plan *plan)
{
    spops_bev_plan_info info;
    memset(&info, 0x5a, sizeof info);
    info.struct_size = sizeof info;
    test_expect_ok(d->ctx, spops_bev_plan_get_info_sync(d->ctx, plan, &info), "info");
    return info;
}

static spops_bev_ranks_out upload_map(test_device *d, const bev_map *m)
{
    spops_bev_ranks_out r = {sizeof r,
                             m->ref.num_points,
                             m->num_intervals,
                             test_upload_i32(d, m->depth_of, m->ref.num_points),
                             test_upload_i32(d, m->feat_of, m->ref.num_points),
                             test_upload_i32(d, m->cell_of, m->ref.num_points),
                             test_upload_i32(d, m->starts, m->num_intervals),
                             test_upload_i32(d, m->lengths, m->num_intervals)};
    return r;
}

static void free_ranks(test_device *d, spops_bev_ranks_out *r)
{
    test_free(d, r->ranks_depth), test_free(d, r->ranks_feat), test_free(d, r->ranks_bev);
    test_free(d, r->interval_starts), test_free(d, r->interval_lengths);
}

bev_map bev_map_of_plan(test_device *d, const spops_bev_plan *plan)
{
    const spops_bev_plan_info info = bev_info(d, plan);
    bev_map m = map_create(&info.shape, info.num_points, info.num_intervals);
    spops_bev_ranks_out r = upload_map(d, &m);
    test_expect_ok(d->ctx, spops_bev_plan_get_ranks_sync(d->ctx, plan, &r), "get_ranks");
    test_download_i32(d, m.depth_of, r.ranks_depth, info.num_points);
    test_download_i32(d, m.feat_of, r.ranks_feat, info.num_points);
    test_download_i32(d, m.cell_of, r.ranks_bev, info.num_points);
    test_download_i32(d, m.starts, r.interval_starts, info.num_intervals);
    test_download_i32(d, m.lengths, r.interval_lengths, info.num_intervals);
    free_ranks(d, &r);
    return m;
}

// Whether plans of these options are to have spans if they can; `forced` then says so.
static bool force_spans(const spops_bev_options *options, spops_bev_options *forced)
{
    const char *kernel = getenv("SPOPS_TEST_BEV_KERNEL");
    *forced = options == NULL ? spops_bev_options_default() : *options;
    if (kernel == NULL || strcmp(kernel, "spans") != 0) return false;
    if (forced->kernel != SPOPS_BEV_KERNEL_AUTO) return false;
    forced->kernel = SPOPS_BEV_KERNEL_SPANS;
    return true;
}

void bev_expect_forced(test_device *d, const spops_bev_plan *plan, const char *what)
{
    spops_bev_options forced;
    if (d->backend != SPOPS_BACKEND_CUDA || !force_spans(NULL, &forced)) return;
    cr_assert(bev_info(d, plan).kernel == SPOPS_BEV_KERNEL_SPANS, "%s: the plan has no spans",
              what);
}

spops_status bev_plan_create(test_device *d, const spops_bev_geometry *geometry,
                             const spops_bev_options *options, spops_bev_plan **out)
{
    spops_bev_options forced;
    if (force_spans(options, &forced)) {
        const spops_status status = spops_bev_plan_create(d->ctx, geometry, &forced, out);
        if (status != SPOPS_STATUS_NOT_SUPPORTED) return status;
    }
    return spops_bev_plan_create(d->ctx, geometry, options, out);
}

spops_status bev_map_plan(test_device *d, const bev_map *map, const spops_bev_options *options,
                          spops_bev_plan **out)
{
    spops_bev_ranks_out r = upload_map(d, map);
    const spops_bev_ranks ranks = spops_bev_ranks_of(&r);
    spops_bev_options forced;
    spops_status status = SPOPS_STATUS_NOT_SUPPORTED;
    if (force_spans(options, &forced))
        status = spops_bev_plan_create_from_ranks(d->ctx, &map->shape, &ranks, &forced, out);
    if (status == SPOPS_STATUS_NOT_SUPPORTED)
        status = spops_bev_plan_create_from_ranks(d->ctx, &map->shape, &ranks, options, out);
    free_ranks(d, &r);
    return status;
}

static void check_same_array(const int32_t *a, const int32_t *b, int64_t n, const char *name,
                             const char *what)
{
    for (int64_t i = 0; i < n; ++i) {
        cr_assert(a[i] == b[i], "%s: %s[%lld] is %d and %d", what, name, (long long)i, a[i], b[i]);
    }
}

void bev_map_check_same(const bev_map *a, const bev_map *b, const char *what)
{
    cr_assert(memcmp(&a->shape, &b->shape, sizeof a->shape) == 0, "%s: shapes differ", what);
    cr_assert(a->ref.num_points == b->ref.num_points, "%s: %lld and %lld points", what,
              (long long)a->ref.num_points, (long long)b->ref.num_points);
    cr_assert(a->num_intervals == b->num_intervals, "%s: %lld and %lld intervals", what,
              (long long)a->num_intervals, (long long)b->num_intervals);
    check_same_array(a->depth_of, b->depth_of, a->ref.num_points, "ranks_depth", what);
    check_same_array(a->feat_of, b->feat_of, a->ref.num_points, "ranks_feat", what);
    check_same_array(a->cell_of, b->cell_of, a->ref.num_points, "ranks_bev", what);
    check_same_array(a->starts, b->starts, a->num_intervals, "interval_starts", what);
    check_same_array(a->lengths, b->lengths, a->num_intervals, "interval_lengths", what);
}

spops_status bev_execute(spops_context *ctx, const spops_bev_plan *plan, spops_bev_layout layout,
                         spops_matrix depth, spops_matrix feat, spops_matrix out)
{
    spops_bevpool_args args = spops_bevpool_args_default();
    args.layout = layout;
    args.depth = depth;
    args.feat = feat;
    args.out = out;
    return spops_bevpool_execute(ctx, plan, &args);
}
