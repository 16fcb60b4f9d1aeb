// SPDX-License-Identifier: Apache-2.0
// spops demo: the main job from end to end. A simulated street is seen by a rig, a stand-in for a
// network says how deep and what, the library pools it, the result is checked and drawn.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "support/cloud_file.h"
#include "support/device.h"
#include "tools/bev_map.h"
#include "tools/command.h"
#include "tools/demo_segment.h"
#include "tools/settings.h"

typedef struct demo_job {
    const char *command, *task, *out, *size, *rig, *weights, *scan;
    spops_backend_kind backend;
    spops_dtype dtype;
    int64_t cols, seed, width;
    bool as_json;
} demo_job;

static demo_job asked;
static const option_row option_rows[] = {
    {"--task", "NAME",
     "bev: see a street with six cameras and pool what they see; segment: label the points of a "
     "scan; default: bev",
     "bev,segment", .text = &asked.task},
    {"--out", "DIR", "where to write; made if it is not there; default: spops-demo",
     .text = &asked.out},
    {"--size", "a|b",
     "a: 16 x 44 features, 59 depths, 128 x 128 cells of 0.8 m; b: 32 x 88 features, 118 depths, "
     "360 x 360 cells of 0.3 m; default: b",
     "a,b", .text = &asked.size},
    OPTION_BACKEND(&asked.backend),
    OPTION_DTYPE(&asked.dtype, "f32"),
    {"--cols", "C", "channels, 14 to 1024; even for nvfp4; default: 80", .number = &asked.cols,
     .least = SIM_MIN_COLS, .most = 1024},
    {"--rig", "FILE", "another rig, as JSON; default: the one this program ships",
     .text = &asked.rig},
    {"--seed", "N", "another street; default: 3", .number = &asked.seed, .most = INT32_MAX},
    {"--width", "PX", "width of a camera's picture, 64 to 1600; default: 480",
     .number = &asked.width, .least = 64, .most = 1600},
    {"--scan", "FILE",
     "label this scan with --task segment, which it brings: " CLOUD_FILE_FORMATS
     ", x y z in m from a sensor on a vehicle's roof, z up; default: a simulated one",
     .text = &asked.scan},
    {"--weights", "FILE",
     "of segment: a network that segment_train wrote; default: the one this program ships",
     .text = &asked.weights},
    OPTION_JSON(&asked.as_json),
    {0}};
const option_set demo_options = {
    .program = "spops demo",
    .summary = "simulate a street, pool what cameras see or label a scan, write pictures",
    .about =
        "Simulate a street scene, see it with the cameras of a rig, pool per-pixel depths and "
        "features into a bird's-eye-view grid, check the result against an FP64 reference, and "
        "write pictures. Or, with --task segment, scan it with a LiDAR, label each point by a "
        "network that was trained on other streets, and compare with the true labels.",
    .more = "DIR receives demo_cameras.png and demo_depth.png (what the cameras see), demo_bev.png "
            "(the pooled grid beside the street itself), demo_density.png (pooled colours, pooled "
            "depth weights), and demo.json (the numbers). With --task segment: demo_segment.png "
            "(labels from above), demo_segment_view.png (as the sensor sees them), and "
            "demo_segment.json. Of the options, --out, --backend, --dtype (f32, bf16), --seed, "
            "--scan, --weights and --json then count.",
    .rows = option_rows};

// Everything that is made on the way; freed in one place.
typedef struct demo {
    const demo_job *job;
    session s;
    rig r;
    spops_bev_camera *cameras;
    spops_bev_geometry geometry;
    scene *street;
    simulation sim;
    spops_bev_plan *plan;
    spops_bev_plan_info info;
    spops_traffic traffic;
    // As the library gets and gives them: where the backend runs, and here.
    void *device_depth, *device_feat, *device_out;
    void *host_depth, *host_feat, *host_out;
    spops_matrix depth, feat, out;
    // Of 8- and 4-bit features; host_feat then holds what they stand for but for feat_scale, f32.
    void *device_scale, *device_block_scales;
    spops_matrix block_scales;
    float feat_scale;
    spops_status enqueued; // of the timed runs
    // Results.
    double plan_ms, simulate_s, copy_bytes_per_s, floor_us, worst_ratio, worst_error;
    device_timing hot, cold;
    int64_t num_border;
    bool same_bits, right;
} demo;

static bool fail(const demo *d, const char *what)
{
    command_fail(d->job->command, "%s", what);
    return false;
}

// ---- Scene, simulation, pictures of the cameras -----------------------------------------------

// When simulation, the cameras' pictures, the check and the timing end, as shares of the whole on a
// CPU, so that the progress can tell the time left.
static const double stage_ends[4] = {0.3, 0.6, 0.8, 0.95};

static void simulated(int done, int all)
{
    char text[64];
    snprintf(text, sizeof text, "depths and features: camera %d of %d", done, all);
    progress_show(text, done, all);
}

static bool prepare(demo *d)
{
    char error[RIG_ERROR_BYTES];
    if (!command_rig(d->job->command, d->job->rig, &d->r)) return false;
    d->cameras = calloc((size_t)d->r.num_cameras, sizeof *d->cameras);
    if (d->cameras == NULL) return fail(d, "no memory for the cameras");
    if (!setting_geometry(setting_find(d->job->size), &d->r, RIG_FRAME_EGO, d->cameras,
                          &d->geometry, error, sizeof error))
        return fail(d, error);
    d->street = scene_create((uint64_t)d->job->seed);
    if (d->street == NULL) return fail(d, "no memory for the scene");
    const double start = clock_s();
    progress_stage(0.0, stage_ends[0]);
    if (!simulate(d->street, &d->geometry, d->job->cols, simulated, &d->sim, error, sizeof error))
        return fail(d, error);
    d->simulate_s = clock_s() - start;
    progress_clear();
    return true;
}

static bool write_picture(const demo *d, const char *name, const picture *p)
{
    char path[4096], error[512];
    if (snprintf(path, sizeof path, "%s/%s", d->job->out, name) >= (int)sizeof path)
        return fail(d, "--out is too long");
    return picture_write_png(p, path, error, sizeof error) || fail(d, error);
}

// Cameras that look ahead, then those that look back, each row from left to right.
static void order_cameras(const rig *r, int *order)
{
    for (int i = 0; i < r->num_cameras; ++i)
        order[i] = i;
    for (int i = 1; i < r->num_cameras; ++i)
        for (int k = i; k > 0; --k) {
            double key[2];
            for (int j = 0; j < 2; ++j) {
                const double *m = r->cameras[order[k - 1 + j]].cam2ego;
                const double yaw = atan2(m[6], m[2]);
                // Left of ahead first; behind, from the left over the back to the right.
                key[j] =
                    cos(yaw) > 0.0 ? -yaw : 10.0 + (yaw >= 0.0 ? yaw : yaw + 6.283185307179586);
            }
            if (key[0] <= key[1]) break;
            const int swap = order[k];
            order[k] = order[k - 1], order[k - 1] = swap;
        }
}

static bool draw_cameras(demo *d)
{
    enum { SAMPLES = 3 };
    const int num = d->r.num_cameras;
    picture *views = calloc((size_t)num, sizeof *views),
            *depths = calloc((size_t)num, sizeof *depths);
    const char **names = calloc((size_t)num, sizeof *names);
    int *order = calloc((size_t)num, sizeof *order);
    picture sheet = {0, 0, NULL, NULL, 0};
    char error[RIG_ERROR_BYTES];
    bool ok = views != NULL && depths != NULL && names != NULL && order != NULL;

    progress_stage(stage_ends[0], stage_ends[1]);
    if (!ok) fail(d, "no memory for the cameras' pictures");
    if (ok) order_cameras(&d->r, order);
    for (int i = 0; ok && i < num; ++i) {
        const rig_camera *camera = &d->r.cameras[order[i]];
        char text[64];
        snprintf(text, sizeof text, "pictures: camera %d of %d", i + 1, num);
        progress_show(text, i + 1, num);
        names[i] = camera->name;
        ok = simulate_view(d->street, &d->cameras[order[i]], camera->width, camera->height,
                           (int)d->job->width, SAMPLES, &views[i], &depths[i], error,
                           sizeof error) ||
             fail(d, error);
    }
    progress_clear();
    for (int i = 0; ok && i < 2; ++i) {
        static const double near_far[] = {SIM_VIEW_NEAR_M, SIM_VIEW_FAR_M};
        ok = camera_sheet(i == 0 ? views : depths, names, num, num < 3 ? num : 3,
                          i == 0 ? NULL : near_far, &sheet) ||
             fail(d, "no memory for the cameras' pictures");
        if (ok) ok = write_picture(d, i == 0 ? "demo_cameras.png" : "demo_depth.png", &sheet);
        picture_destroy(&sheet);
    }
    for (int i = 0; i < num; ++i) {
        if (views != NULL) picture_destroy(&views[i]);
        if (depths != NULL) picture_destroy(&depths[i]);
    }
    free(views);
    free(depths);
    free(names);
    free(order);
    return ok;
}

// ---- Pooling ----------------------------------------------------------------------------------

static bool make_plan(demo *d)
{
    spops_bev_options options = spops_bev_options_default();
    options.max_cols = d->job->cols;
    const double start = clock_s();
    if (spops_bev_plan_create(d->s.ctx, &d->geometry, &options, &d->plan) != SPOPS_STATUS_OK)
        return fail(d, spops_last_error(d->s.ctx));
    d->plan_ms = 1e3 * (clock_s() - start);
    d->info = spops_bev_plan_info_default();
    d->traffic = spops_traffic_default();
    if (spops_bev_plan_get_info_sync(d->s.ctx, d->plan, &d->info) != SPOPS_STATUS_OK ||
        spops_segments_get_traffic_sync(d->s.ctx, spops_bev_plan_segments(d->plan), d->job->dtype,
                                        d->job->cols, 1, &d->traffic) != SPOPS_STATUS_OK)
        return fail(d, spops_last_error(d->s.ctx));
    return true;
}

// Of depths and output.
static spops_dtype wide_dtype(const demo *d)
{
    return elements_narrow(d->job->dtype) ? SPOPS_DTYPE_F16 : d->job->dtype;
}

// Of host_feat.
static spops_dtype host_feat_dtype(const demo *d)
{
    return elements_narrow(d->job->dtype) ? SPOPS_DTYPE_F32 : d->job->dtype;
}

// Features of 8 or 4 bits on the device, and in host_feat what became of them.
static bool quantize_features(demo *d)
{
    const int64_t rows = d->info.num_features, cols = d->job->cols;
    const int64_t blocks = (cols + SPOPS_QUANTIZE_BLOCK_COLS - 1) / SPOPS_QUANTIZE_BLOCK_COLS;
    const bool in_blocks = d->job->dtype == SPOPS_DTYPE_F4E2M1;
    const size_t bytes = (size_t)(rows * cols) * sizeof(float);
    const spops_backend_kind backend = d->s.backend;
    void *given = NULL;
    bool ok = false;

    if (!device_alloc(backend, bytes, &given) ||
        !device_upload(backend, given, d->sim.feat, bytes) ||
        !device_alloc(backend, sizeof(float), &d->device_scale) ||
        (in_blocks && !device_alloc(backend, (size_t)(rows * blocks), &d->device_block_scales))) {
        fail(d, device_error());
        goto done;
    }
    const spops_matrix x = spops_matrix_dense(given, rows, cols, SPOPS_DTYPE_F32);
    d->block_scales = spops_matrix_dense(d->device_block_scales, rows, blocks, SPOPS_DTYPE_F8E4M3);
    const spops_matrix *block_scales = in_blocks ? &d->block_scales : NULL;
    if (spops_quantize_scale_execute(d->s.ctx, x, d->job->dtype, d->device_scale) !=
            SPOPS_STATUS_OK ||
        spops_quantize_execute(d->s.ctx, x, d->device_scale, d->feat, block_scales) !=
            SPOPS_STATUS_OK ||
        spops_dequantize_execute(d->s.ctx, d->feat, NULL, block_scales, x) != SPOPS_STATUS_OK ||
        spops_context_wait_sync(d->s.ctx) != SPOPS_STATUS_OK) {
        fail(d, spops_last_error(d->s.ctx));
        goto done;
    }
    ok = (device_download(backend, d->host_feat, given, bytes) &&
          device_download(backend, &d->feat_scale, d->device_scale, sizeof d->feat_scale)) ||
         fail(d, device_error());

done:
    device_free(backend, given);
    return ok;
}

static bool make_matrices(demo *d)
{
    const spops_dtype dtype = d->job->dtype, wide = wide_dtype(d);
    const int64_t cols = d->job->cols, num_feat = d->info.num_features * cols;
    const bool narrow = elements_narrow(dtype);
    const size_t depth_bytes = (size_t)d->info.num_depths * spops_dtype_bytes(wide);
    const size_t feat_bytes = dtype == SPOPS_DTYPE_F4E2M1
                                  ? (size_t)num_feat / 2 // two to a byte, cols is even
                                  : (size_t)num_feat * spops_dtype_bytes(dtype);
    const size_t host_feat_bytes = (size_t)num_feat * spops_dtype_bytes(host_feat_dtype(d));
    const size_t out_bytes = (size_t)(d->info.num_cells * cols) * spops_dtype_bytes(wide);

    d->host_depth = malloc(depth_bytes);
    d->host_feat = malloc(host_feat_bytes);
    d->host_out = malloc(out_bytes);
    if (d->host_depth == NULL || d->host_feat == NULL || d->host_out == NULL)
        return fail(d, "no memory for depths, features and output");
    elements_encode(wide, d->sim.depth, d->info.num_depths, d->host_depth);
    if (!device_alloc(d->s.backend, depth_bytes, &d->device_depth) ||
        !device_alloc(d->s.backend, feat_bytes, &d->device_feat) ||
        !device_alloc(d->s.backend, out_bytes, &d->device_out) ||
        !device_upload(d->s.backend, d->device_depth, d->host_depth, depth_bytes))
        return fail(d, device_error());
    d->depth = spops_matrix_dense(d->device_depth, d->info.num_depths, 1, wide);
    d->feat = spops_matrix_dense(d->device_feat, d->info.num_features, cols, dtype);
    d->out = spops_matrix_dense(d->device_out, d->info.num_cells, cols, wide);
    d->feat_scale = 1.0f;
    if (narrow) return quantize_features(d);
    elements_encode(dtype, d->sim.feat, num_feat, d->host_feat);
    return device_upload(d->s.backend, d->device_feat, d->host_feat, feat_bytes) ||
           fail(d, device_error());
}

static void enqueue(void *user)
{
    demo *d = user;
    spops_bevpool_args pool = spops_bevpool_args_default();
    pool.layout = SPOPS_BEV_CHANNELS_LAST;
    pool.depth = d->depth;
    pool.feat = d->feat;
    pool.out = d->out;
    pool.feat_scale = d->device_scale;
    if (d->device_block_scales != NULL) pool.feat_scales = &d->block_scales;
    const spops_status status = spops_bevpool_execute(d->s.ctx, d->plan, &pool);
    if (status != SPOPS_STATUS_OK) d->enqueued = status;
}

// Pool twice into poisoned memory; the second result stays in host_out.
static bool pool(demo *d)
{
    const size_t bytes =
        (size_t)(d->info.num_cells * d->job->cols) * spops_dtype_bytes(wide_dtype(d));
    void *first = malloc(bytes);
    bool ok = first != NULL || fail(d, "no memory for the output");
    for (int i = 0; ok && i < 2; ++i) {
        ok = device_fill(d->s.backend, d->device_out, 0xff, bytes) || fail(d, device_error());
        if (!ok) break;
        enqueue(d);
        ok = (d->enqueued == SPOPS_STATUS_OK &&
              spops_context_wait_sync(d->s.ctx) == SPOPS_STATUS_OK) ||
             fail(d, spops_last_error(d->s.ctx));
        if (!ok) break;
        ok = device_download(d->s.backend, i == 0 ? first : d->host_out, d->device_out, bytes) ||
             fail(d, device_error());
    }
    d->same_bits = ok && memcmp(first, d->host_out, bytes) == 0;
    free(first);
    return ok;
}

static bool measure(demo *d)
{
    const int samples = d->s.backend == SPOPS_BACKEND_CUDA ? 50 : 15;
    progress_stage(stage_ends[2], stage_ends[3]);
    progress_show("time", 0, 3);
    bool ok = device_time(d->s.backend, d->s.stream, enqueue, d, false, samples, &d->hot);
    progress_show("time, with cold caches", 1, 3);
    ok = ok && device_time(d->s.backend, d->s.stream, enqueue, d, true, samples, &d->cold);
    progress_show("rate of a copy", 2, 3);
    ok = ok && device_copy_rate(d->s.backend, &d->copy_bytes_per_s);
    progress_clear();
    if (d->enqueued != SPOPS_STATUS_OK) return fail(d, spops_last_error(d->s.ctx));
    if (!ok) return fail(d, device_error());
    d->floor_us = 1e6 * (double)d->traffic.compulsory_bytes / d->copy_bytes_per_s;
    return true;
}

// ---- The check --------------------------------------------------------------------------------

// Where the plan put each point, -1 for nowhere.
static bool read_cells(demo *d, int32_t *cell_of_point)
{
    const size_t points = (size_t)d->info.num_points * sizeof(int32_t);
    const size_t intervals = (size_t)d->info.num_intervals * sizeof(int32_t);
    const size_t sizes[5] = {points, points, points, intervals, intervals};
    void *arrays[5] = {NULL, NULL, NULL, NULL, NULL};
    int32_t *depth = malloc(points + 1), *bev = malloc(points + 1);
    bool ok = (depth != NULL && bev != NULL) || fail(d, "no memory for the plan's ranks");

    for (int i = 0; ok && i < 5; ++i)
        ok = device_alloc(d->s.backend, sizes[i], &arrays[i]) || fail(d, device_error());
    if (ok) {
        const spops_bev_ranks_out ranks = {sizeof ranks, d->info.num_points, d->info.num_intervals,
                                           arrays[0],    arrays[1],          arrays[2],
                                           arrays[3],    arrays[4]};
        ok = spops_bev_plan_get_ranks_sync(d->s.ctx, d->plan, &ranks) == SPOPS_STATUS_OK ||
             fail(d, spops_last_error(d->s.ctx));
    }
    if (ok && points > 0)
        ok = (device_download(d->s.backend, depth, arrays[0], points) &&
              device_download(d->s.backend, bev, arrays[2], points)) ||
             fail(d, device_error());
    for (int64_t i = 0; ok && i < d->info.num_depths; ++i)
        cell_of_point[i] = -1;
    for (int64_t i = 0; ok && i < d->info.num_points; ++i)
        cell_of_point[depth[i]] = bev[i];
    for (int i = 0; i < 5; ++i)
        device_free(d->s.backend, arrays[i]);
    free(depth);
    free(bev);
    return ok;
}

static bool check(demo *d)
{
    const int64_t cols = d->job->cols, num_out = d->info.num_cells * cols;
    const int64_t num_feat = d->info.num_features * cols;
    char error[RIG_ERROR_BYTES];
    reference ref;
    bool ok = false;

    memset(&ref, 0, sizeof ref);
    progress_stage(stage_ends[1], stage_ends[2]);
    progress_show("the FP64 reference", 0, 1);
    int32_t *cell_of_point = malloc((size_t)d->info.num_depths * sizeof *cell_of_point);
    double *depth = malloc((size_t)d->info.num_depths * sizeof *depth);
    double *feat = malloc((size_t)num_feat * sizeof *feat);
    double *out = malloc((size_t)num_out * sizeof *out);
    if (cell_of_point == NULL || depth == NULL || feat == NULL || out == NULL) {
        fail(d, "no memory for the reference");
        goto done;
    }
    if (!read_cells(d, cell_of_point)) goto done;
    elements_decode(wide_dtype(d), d->host_depth, d->info.num_depths, depth);
    elements_decode(host_feat_dtype(d), d->host_feat, num_feat, feat);
    elements_decode(wide_dtype(d), d->host_out, num_out, out);
    if (!reference_pool(&d->geometry, cols, depth, feat, cell_of_point, &ref, error,
                        sizeof error)) {
        fail(d, error);
        goto done;
    }
    d->num_border = ref.num_border;
    d->right =
        d->same_bits && ref.num_points == d->info.num_points && ref.longest == d->info.longest;
    // A scale is applied to the sum and rounds once more, like another term.
    const double scale = d->feat_scale;
    const int64_t more = elements_narrow(d->job->dtype) ? 1 : 0;
    for (int64_t i = 0; i < num_out; ++i) {
        const double sum = scale * ref.sum[i];
        const double bound = elements_sum_bound(wide_dtype(d), ref.count[i / cols] + more,
                                                scale * ref.magnitude[i], sum);
        const double off = fabs(out[i] - sum);
        if (!(off <= bound)) d->right = false;
        if (off > d->worst_error) d->worst_error = off;
        if (bound > 0.0 && off / bound > d->worst_ratio) d->worst_ratio = off / bound;
    }
    ok = true;

done:
    progress_clear();
    reference_free(&ref);
    free(cell_of_point);
    free(depth);
    free(feat);
    free(out);
    return ok;
}

// ---- Pictures of the grid ---------------------------------------------------------------------

static bool draw_grid(demo *d)
{
    enum { SIDE = 720 };
    const int64_t num_out = d->info.num_cells * d->job->cols;
    picture panels[2], sheet;
    double range[2];
    char caption[256], points[COMMAND_NUMBER_BYTES];
    double *wide = malloc((size_t)num_out * sizeof *wide);
    float *pooled = malloc((size_t)num_out * sizeof *pooled);
    bool ok = (wide != NULL && pooled != NULL) || fail(d, "no memory for the grid's pictures");
    progress_stage(stage_ends[3], 1.0);
    memset(panels, 0, sizeof panels);
    memset(&sheet, 0, sizeof sheet);

    if (ok) {
        elements_decode(wide_dtype(d), d->host_out, num_out, wide);
        for (int64_t i = 0; i < num_out; ++i)
            pooled[i] = (float)wide[i];
    }
    snprintf(caption, sizeof caption,
             "%d cameras, %s frustum points into %d x %d cells, %d channels of %s; drawn with "
             "neighbouring cells blended",
             d->r.num_cameras, in_groups(d->info.num_points, points),
             (int)d->geometry.shape.num_cells_x, (int)d->geometry.shape.num_cells_y,
             (int)d->job->cols, elements_name(d->job->dtype));
    for (int i = 0; ok && i < 2; ++i) {
        static const char *const titles[2][2] = {
            {"features pooled into the grid", "the truth: the street from above"},
            {"colours pooled into the grid", "depth weights pooled into the grid"}};
        progress_show("maps", i, 2);
        ok = bev_map_pooled(&d->geometry, pooled, d->job->cols,
                            i == 0 ? BEV_MAP_CLASS : BEV_MAP_COLOUR, SIDE, range, &panels[0]) &&
             (i == 0 ? bev_map_scene(&d->geometry, d->street, SIDE, &panels[1])
                     : bev_map_pooled(&d->geometry, pooled, d->job->cols, BEV_MAP_DENSITY, SIDE,
                                      range, &panels[1])) &&
             bev_map_sheet(panels, titles[i], 2, caption, i == 0 ? NULL : range, &sheet);
        if (!ok) fail(d, "no memory for the grid's pictures");
        if (ok) ok = write_picture(d, i == 0 ? "demo_bev.png" : "demo_density.png", &sheet);
        picture_destroy(&panels[0]);
        picture_destroy(&panels[1]);
        picture_destroy(&sheet);
    }
    progress_clear();
    free(wide);
    free(pooled);
    return ok;
}

// ---- The report -------------------------------------------------------------------------------

static json_t *as_json(const demo *d)
{
    const spops_bev_shape *shape = &d->geometry.shape;
    json_t *sizes =
        json_pack("{s:i, s:i, s:i, s:i, s:[i,i,i], s:I, s:s}", "cameras", d->r.num_cameras,
                  "depths", (int)shape->num_depths, "feature_height", (int)shape->feature_height,
                  "feature_width", (int)shape->feature_width, "cells", (int)shape->num_cells_x,
                  (int)shape->num_cells_y, (int)shape->num_cells_z, "cols",
                  (json_int_t)d->job->cols, "dtype", elements_name(d->job->dtype));
    json_t *plan = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:f}", "frustum_points", (json_int_t)d->info.num_depths,
        "points", (json_int_t)d->info.num_points, "intervals", (json_int_t)d->info.num_intervals,
        "cells", (json_int_t)d->info.num_cells, "longest", (json_int_t)d->info.longest, "build_ms",
        d->plan_ms);
    json_t *times =
        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "hot_us", d->hot.median_us, "hot_p10_us",
                  d->hot.p10_us, "hot_p90_us", d->hot.p90_us, "cold_us", d->cold.median_us,
                  "cold_p10_us", d->cold.p10_us, "cold_p90_us", d->cold.p90_us);
    json_t *bytes = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "indices", (json_int_t)d->traffic.index_bytes,
        "depth", (json_int_t)d->traffic.weight_bytes, "features",
        (json_int_t)d->traffic.input_bytes, "output", (json_int_t)d->traffic.output_bytes,
        "compulsory", (json_int_t)d->traffic.compulsory_bytes, "gathered",
        (json_int_t)d->traffic.gather_bytes, "working_set",
        (json_int_t)d->traffic.working_set_bytes);
    json_t *checked = json_pack("{s:b, s:f, s:f, s:b, s:I}", "right", d->right, "worst_of_bound",
                                d->worst_ratio, "worst_error", d->worst_error, "same_bits",
                                d->same_bits, "border_points", (json_int_t)d->num_border);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:I, s:i, s:f, s:o, s:o, s:o, s:o, s:s, s:f, s:f, s:o}",
        "version", spops_version(), "backend", d->s.backend == SPOPS_BACKEND_CUDA ? "cuda" : "cpu",
        "device", d->s.device.name, "isa", d->s.device.isa, "size", d->job->size, "seed",
        (json_int_t)d->job->seed, "objects", scene_num_objects(d->street), "simulate_s",
        d->simulate_s, "sizes", sizes, "plan", plan, "time", times, "bytes", bytes, "regime",
        spops_regime_name(d->traffic.regime), "copy_bytes_per_s", d->copy_bytes_per_s, "floor_us",
        d->floor_us, "check", checked);
}

static void print_report(const demo *d)
{
    const spops_bev_shape *shape = &d->geometry.shape;
    const int columns = terminal_columns(stdout);
    char text[512], a[COMMAND_NUMBER_BYTES], b[COMMAND_NUMBER_BYTES], c[COMMAND_NUMBER_BYTES];
    char e[COMMAND_NUMBER_BYTES], f[COMMAND_NUMBER_BYTES], g[COMMAND_NUMBER_BYTES];
    session_describe(&d->s, text, sizeof text);
    wrapped_print(stdout, "device    ", columns, text);
    snprintf(text, sizeof text, "seed %lld, %d objects, seen by %d cameras in %.2g s",
             (long long)d->job->seed, scene_num_objects(d->street), d->r.num_cameras,
             d->simulate_s);
    wrapped_print(stdout, "scene     ", columns, text);
    snprintf(text, sizeof text,
             "%d x %d features of %d channels %s, %d depths -> %d x %d x %d cells",
             (int)shape->feature_height, (int)shape->feature_width, (int)d->job->cols,
             elements_name(d->job->dtype), (int)shape->num_depths, (int)shape->num_cells_x,
             (int)shape->num_cells_y, (int)shape->num_cells_z);
    wrapped_print(stdout, "sizes     ", columns, text);
    snprintf(text, sizeof text,
             "%s of %s points in the grid, in %s of %s cells, up to %lld in one; made in %s",
             in_groups(d->info.num_points, a), in_groups(d->info.num_depths, b),
             in_groups(d->info.num_intervals, c), in_groups(d->info.num_cells, e),
             (long long)d->info.longest, in_time(1e3 * d->plan_ms, f));
    wrapped_print(stdout, "plan      ", columns, text);
    snprintf(text, sizeof text,
             "%s hot (%s to %s), %s cold (%s to %s): median, 10th to 90th percentile%s",
             in_time(d->hot.median_us, a), in_time(d->hot.p10_us, b), in_time(d->hot.p90_us, c),
             in_time(d->cold.median_us, e), in_time(d->cold.p10_us, f), in_time(d->cold.p90_us, g),
             d->hot.p90_us > 3.0 * d->hot.p10_us || d->cold.p90_us > 3.0 * d->cold.p10_us
                 ? "; something else runs here, so these say little"
                 : "");
    wrapped_print(stdout, "time      ", columns, text);
    snprintf(text, sizeof text, "%s at least, %s of rows gathered; %s",
             in_bytes((double)d->traffic.compulsory_bytes, a),
             in_bytes((double)d->traffic.gather_bytes, b), spops_regime_name(d->traffic.regime));
    wrapped_print(stdout, "bytes     ", columns, text);
    snprintf(text, sizeof text, "%s at %s/s, the rate of a copy here; cold is %.2f times that",
             in_time(d->floor_us, a), in_bytes(d->copy_bytes_per_s, b),
             d->cold.median_us / d->floor_us);
    wrapped_print(stdout, "floor     ", columns, text);
    snprintf(text, sizeof text, "%s: largest error %.3g, %.2g of the bound; %s",
             d->right ? "right" : "WRONG", d->worst_error, d->worst_ratio,
             d->same_bits ? "same bits twice" : "OTHER BITS the second time");
    wrapped_print(stdout, "check     ", columns, text);
    snprintf(text, sizeof text,
             "%s/demo_bev.png, demo_density.png, demo_cameras.png, demo_depth.png", d->job->out);
    wrapped_print(stdout, "pictures  ", columns, text);
}

static bool report(const demo *d)
{
    const bool saved =
        command_save_json(d->job->command, as_json(d), d->job->out, "demo.json", d->job->as_json);
    if (saved && !d->job->as_json) print_report(d);
    return saved;
}

static int run(const demo_job *job)
{
    demo d;
    memset(&d, 0, sizeof d);
    d.job = job;
    if (!command_make_directory(job->out))
        return command_fail(job->command, "%s: %s", job->out, strerror(errno));
    if (!session_open(job->command, job->backend, &d.s)) return COMMAND_FAILED;
    progress_end();
    const bool done = prepare(&d) && draw_cameras(&d) && make_plan(&d) && make_matrices(&d) &&
                      pool(&d) && check(&d) && measure(&d) && draw_grid(&d) && report(&d);
    spops_bev_plan_destroy(d.plan);
    device_free(d.s.backend, d.device_depth);
    device_free(d.s.backend, d.device_feat);
    device_free(d.s.backend, d.device_out);
    device_free(d.s.backend, d.device_scale);
    device_free(d.s.backend, d.device_block_scales);
    session_close(&d.s);
    simulation_free(&d.sim);
    scene_destroy(d.street);
    rig_free(&d.r);
    free(d.cameras);
    free(d.host_depth);
    free(d.host_feat);
    free(d.host_out);
    if (done && !d.right)
        return command_fail(job->command, "the result differs from the reference");
    return done ? COMMAND_OK : COMMAND_FAILED;
}

int command_demo(int argc, char **argv)
{
    asked = (demo_job){.command = demo_options.program,
                       .task = "bev",
                       .out = "spops-demo",
                       .size = "b",
                       .dtype = SPOPS_DTYPE_F32,
                       .cols = 80,
                       .seed = 3,
                       .width = 480};
    const options_result result = options_read(&demo_options, argc, argv);
    if (result != OPTIONS_READ) return command_status(result);
    if (asked.out[0] == '\0') return command_status(options_error(&demo_options, "--out is empty"));
    if (asked.scan != NULL || strcmp(asked.task, "segment") == 0) {
        const segment_demo_job job = {.command = asked.command,
                                      .out = asked.out,
                                      .scan = asked.scan,
                                      .weights = asked.weights,
                                      .backend = asked.backend,
                                      .dtype = asked.dtype,
                                      .seed = asked.seed,
                                      .as_json = asked.as_json};
        if (job.dtype == SPOPS_DTYPE_F32 || job.dtype == SPOPS_DTYPE_BF16)
            return demo_segment(&job);
        return command_status(
            options_error(&demo_options, "--dtype is %s, expected f32 or bf16 for --task segment",
                          elements_name(job.dtype)));
    }
    if (asked.dtype == SPOPS_DTYPE_F4E2M1 && asked.cols % 2 != 0)
        return command_status(options_error(&demo_options,
                                            "--cols is %lld, expected an even number for nvfp4",
                                            (long long)asked.cols));
    return run(&asked);
}
