// SPDX-License-Identifier: Apache-2.0
// BEV pooling on scatter maps from a camera rig: forward and backward beside the baselines, and the
// time it takes to build a plan.
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/baselines/bev_baselines.h"
#include "bench/bench_data.h"
#include "bench/bench_report.h"
#include "tools/rig_default.h"
#include "tools/rig_json.h"
#include "tools/settings.h"

// The suite's own options.
static struct {
    const char *maps, *rig, *frame, *layouts, *kernel, *depth_dtype, *out_dtype, *accumulate;
    int64_t num_streams;
    bool article;
} asked;
static const bench_option suite_options[] = {
    {"--maps", "LIST", SETTING_NAMES " or all (default: a,c,b)", SETTING_NAMES ",all",
     .text = &asked.maps},
    {"--article", NULL, "105k to 1280k at 80 columns, 209k also at 128 and 256",
     .on = &asked.article},
    {"--streams", "N", "also N contexts at once, beside N runs in a row",
     .number = &asked.num_streams, .least = 1, .most = DEVICE_MAX_TOGETHER},
    {"--rig", "FILE", "a rig as JSON instead of the shipped one", .text = &asked.rig},
    {"--frame", "NAME", "ego or lidar instead of the map's own", "ego,lidar", .text = &asked.frame},
    {"--layouts", "LIST", "forward: channels last,first (default: last)", "last,first",
     .text = &asked.layouts},
    {"--kernel", "NAME", "auto, lists or spans (default: auto)", "auto,lists,spans",
     .text = &asked.kernel},
    {"--depth-dtype", "NAME", "beside 8- and 4-bit features, f16,f8e4m3,f8e5m2 (default: f16)",
     .accepts = bench_is_dtype, .text = &asked.depth_dtype},
    {"--out-dtype", "NAME", "likewise, f16,f32,f8e4m3,f8e5m2 (default: f16)",
     .accepts = bench_is_dtype, .text = &asked.out_dtype},
    {"--accumulate", "NAME", "f32 or f16, what sums may be carried in (default: f32)", "f32,f16",
     .text = &asked.accumulate},
    {0}};

static spops_dtype dtype_asked(const char *name)
{
    spops_dtype dtype = SPOPS_DTYPE_F16;
    if (name != NULL) (void)bench_read_dtype(name, &dtype);
    return dtype;
}

static spops_bev_kernel kernel_asked(void)
{
    const char *name = asked.kernel != NULL ? asked.kernel : "auto";
    return strcmp(name, "lists") == 0   ? SPOPS_BEV_KERNEL_INTERVALS
           : strcmp(name, "spans") == 0 ? SPOPS_BEV_KERNEL_SPANS
                                        : SPOPS_BEV_KERNEL_AUTO;
}

static spops_accumulate accumulate_asked(void)
{
    return asked.accumulate != NULL && strcmp(asked.accumulate, "f16") == 0 ? SPOPS_ACCUMULATE_F16
                                                                            : SPOPS_ACCUMULATE_F32;
}

// One scatter map, on the host for the reference and where the context runs for the baselines.
typedef struct bev_map {
    char name[32]; // "map A"
    char what[200];
    const bev_setting *setting;
    spops_bev_camera *cameras; // of geometry
    spops_bev_geometry geometry;
    spops_bev_plan *plan;
    spops_bev_plan_info info;
    int64_t num_rows_used; // pixels that have a point
    spops_bev_ranks_out host, device;
    spops_bev_intervals_out intervals;
    int32_t *interval_of_cell; // -1: no point
    int32_t *row_begin;        // [num_features + 1] into row_points
    int32_t *row_points;       // [num_points] points of a pixel
} bev_map;

static void free_map(bench *b, bev_map *m)
{
    spops_bev_plan_destroy(m->plan);
    free(m->cameras);
    free(m->host.ranks_depth);
    free(m->host.ranks_feat);
    free(m->host.ranks_bev);
    free(m->host.interval_starts);
    free(m->host.interval_lengths);
    free(m->interval_of_cell);
    free(m->row_begin);
    free(m->row_points);
    bench_free(b, m->device.ranks_depth);
    bench_free(b, m->device.ranks_feat);
    bench_free(b, m->device.ranks_bev);
    bench_free(b, m->device.interval_starts);
    bench_free(b, m->device.interval_lengths);
    bench_free(b, m->intervals.indices);
    bench_free(b, m->intervals.intervals);
    memset(m, 0, sizeof *m);
}

static bool alloc_indices(bench *b, int64_t count, int32_t **device, int32_t **host)
{
    void *ptr = NULL;
    if (!bench_alloc(b, (size_t)count * sizeof(int32_t), &ptr)) return false;
    *device = ptr;
    if (host == NULL) return true;
    *host = bench_host(b, count, sizeof(int32_t));
    return *host != NULL;
}

static bool download_indices(bench *b, int32_t *host, const int32_t *device, int64_t count)
{
    return bench_download(b, host, device, (size_t)count * sizeof *host);
}

// The plan written out as arrays, on the device and on the host.
static bool export_map(bench *b, bev_map *m)
{
    const int64_t points = m->info.num_points, intervals = m->info.num_intervals;
    spops_bev_ranks_out *d = &m->device, *h = &m->host;

    d->struct_size = sizeof *d;
    m->intervals.struct_size = sizeof m->intervals;
    d->num_points = h->num_points = m->intervals.num_points = points;
    d->num_intervals = h->num_intervals = m->intervals.num_intervals = intervals;
    return alloc_indices(b, points, &d->ranks_depth, &h->ranks_depth) &&
           alloc_indices(b, points, &d->ranks_feat, &h->ranks_feat) &&
           alloc_indices(b, points, &d->ranks_bev, &h->ranks_bev) &&
           alloc_indices(b, intervals, &d->interval_starts, &h->interval_starts) &&
           alloc_indices(b, intervals, &d->interval_lengths, &h->interval_lengths) &&
           alloc_indices(b, points, &m->intervals.indices, NULL) &&
           alloc_indices(b, 3 * intervals, &m->intervals.intervals, NULL) &&
           bench_check(b, "ranks", spops_bev_plan_get_ranks_sync(b->ctx, m->plan, d)) &&
           bench_check(b, "intervals",
                       spops_bev_plan_get_intervals_sync(b->ctx, m->plan, &m->intervals)) &&
           download_indices(b, h->ranks_depth, d->ranks_depth, points) &&
           download_indices(b, h->ranks_feat, d->ranks_feat, points) &&
           download_indices(b, h->ranks_bev, d->ranks_bev, points) &&
           download_indices(b, h->interval_starts, d->interval_starts, intervals) &&
           download_indices(b, h->interval_lengths, d->interval_lengths, intervals);
}

// What the reference needs to go from cells and from pixels to points.
static bool index_map(bench *b, bev_map *m)
{
    const int64_t rows = m->info.num_features;
    m->interval_of_cell = bench_host(b, m->info.num_cells, sizeof(int32_t));
    m->row_begin = bench_host(b, rows + 1, sizeof(int32_t));
    m->row_points = bench_host(b, m->info.num_points, sizeof(int32_t));
    if (m->interval_of_cell == NULL || m->row_begin == NULL || m->row_points == NULL) return false;
    memset(m->interval_of_cell, 0xff, (size_t)m->info.num_cells * sizeof(int32_t));
    for (int64_t i = 0; i < m->info.num_intervals; ++i)
        m->interval_of_cell[m->host.ranks_bev[m->host.interval_starts[i]]] = (int32_t)i;
    for (int64_t p = 0; p < m->info.num_points; ++p)
        ++m->row_begin[m->host.ranks_feat[p]];
    for (int64_t j = 0, end = 0; j <= rows; ++j) { // counts become ends, then begins below
        if (m->row_begin[j] > 0) ++m->num_rows_used;
        end += m->row_begin[j];
        m->row_begin[j] = (int32_t)end;
    }
    for (int64_t p = m->info.num_points - 1; p >= 0; --p)
        m->row_points[--m->row_begin[m->host.ranks_feat[p]]] = (int32_t)p;
    return true;
}

static bool set_geometry(bench *b, const rig *r, bev_map *m, bool *lidar)
{
    char error[RIG_ERROR_BYTES];
    *lidar = asked.frame != NULL ? strcmp(asked.frame, "lidar") == 0
                                 : m->setting->lidar_frame && rig_has_lidar(r);
    m->cameras = bench_host(b, setting_num_cameras(m->setting, r), sizeof *m->cameras);
    if (m->cameras == NULL) return false;
    return setting_geometry(m->setting, r, *lidar ? RIG_FRAME_LIDAR : rig_best_ego_frame(r),
                            m->cameras, &m->geometry, error, sizeof error) ||
           bench_fail(b, "%s: %s", m->name, error);
}

// A plan for up to `cols` columns, in place of the one before: how it is made may depend on them,
// what it holds does not.
static bool make_plan(bench *b, bev_map *m, int64_t cols)
{
    spops_bev_options options = spops_bev_options_default();
    spops_bev_plan_destroy(m->plan);
    m->plan = NULL;
    options.max_cols = cols;
    options.backward = bench_wants(b->options.passes, "backward");
    options.kernel = kernel_asked();
    return bench_check(b, m->name, spops_bev_plan_create(b->ctx, &m->geometry, &options, &m->plan));
}

static bool make_map(bench *b, const bev_setting *setting, const rig *r, int64_t cols, bev_map *m)
{
    bool lidar;

    memset(m, 0, sizeof *m);
    m->setting = setting;
    snprintf(m->name, sizeof m->name, "map %s", setting->name);
    if (setting->name[1] == '\0') m->name[4] = (char)toupper((unsigned char)m->name[4]);
    m->info.struct_size = sizeof m->info;
    if (!set_geometry(b, r, m, &lidar) || !make_plan(b, m, cols) ||
        !bench_check(b, m->name, spops_bev_plan_get_info_sync(b->ctx, m->plan, &m->info)) ||
        !export_map(b, m) || !index_map(b, m)) {
        free_map(b, m);
        return false;
    }
    snprintf(m->what, sizeof m->what,
             "%lld of %lld points in %lld of %lld cells, longest %lld, %s frame",
             (long long)m->info.num_points, (long long)m->info.num_depths,
             (long long)m->info.num_intervals, (long long)m->info.num_cells,
             (long long)m->info.longest, lidar ? "lidar" : "ego");
    return true;
}

// ---- One dtype and width ------------------------------------------------------------------------

// Host arrays hold what the device's hold, decoded and scaled.
typedef struct bev_data {
    bench *b;
    const bev_map *map;
    spops_dtype dtype;
    int64_t cols;
    float *depth_values, *feat_values, *grad_out_values;
    spops_matrix depth, feat, out, grad_out, grad_depth, grad_feat;
    spops_matrix out_first;                 // the memory of out, with channels first
    spops_matrix feat_scales, depth_scales; // block scales, of nvfp4 features; else data NULL
    void *feat_scale, *depth_scale;         // of 8- and 4-bit ones; else NULL
    spops_status status;                    // of the first call that failed
} bev_data;

static void free_data(bev_data *d)
{
    free(d->depth_values);
    free(d->feat_values);
    free(d->grad_out_values);
    bench_free(d->b, d->depth.data);
    bench_free(d->b, d->feat.data);
    bench_free(d->b, d->out.data);
    bench_free(d->b, d->grad_out.data);
    bench_free(d->b, d->grad_depth.data);
    bench_free(d->b, d->grad_feat.data);
    bench_free(d->b, d->feat_scales.data);
    bench_free(d->b, d->feat_scale);
    bench_free(d->b, d->depth_scale);
}

static bool is_quantized(const bev_data *d)
{
    return elements_narrow(d->dtype);
}

static size_t matrix_bytes(const spops_matrix *m)
{
    const size_t elements = (size_t)m->rows * (size_t)m->cols;
    return m->dtype == SPOPS_DTYPE_F4E2M1 ? elements / 2 : elements * spops_dtype_bytes(m->dtype);
}

// A random matrix on the device; *values gets its elements.
static bool make_input(bev_data *d, spops_dtype dtype, int64_t rows, int64_t cols, uint64_t seed,
                       float low, float high, spops_matrix *matrix, float **values)
{
    bool ok = false;
    void *encoded = bench_host(d->b, rows * cols, spops_dtype_bytes(dtype));
    *values = bench_host(d->b, rows * cols, sizeof **values);
    *matrix = spops_matrix_dense(NULL, rows, cols, dtype);
    if (encoded != NULL && *values != NULL) {
        bench_fill_uniform(encoded, dtype, rows * cols, seed, low, high);
        for (int64_t i = 0; i < rows * cols; ++i)
            (*values)[i] = bench_get(encoded, dtype, i);
        ok = bench_upload(d->b, encoded, matrix_bytes(matrix), &matrix->data);
    }
    free(encoded);
    return ok;
}

static bool make_output(bev_data *d, spops_dtype dtype, int64_t rows, int64_t cols,
                        spops_matrix *matrix)
{
    *matrix = spops_matrix_dense(NULL, rows, cols, dtype);
    return bench_alloc(d->b, matrix_bytes(matrix), &matrix->data);
}

// A random matrix that was quantised: *values gets what it stands for, so that a result is measured
// against its own inputs.
static bool make_quantized(bev_data *d, spops_dtype dtype, int64_t rows, int64_t cols,
                           uint64_t seed, float low, float high, spops_matrix *q,
                           spops_matrix *block_scales, void **scale, float **values)
{
    bench *b = d->b;
    const bool blocks = dtype == SPOPS_DTYPE_F4E2M1;
    const int64_t block_cols = (cols + SPOPS_QUANTIZE_BLOCK_COLS - 1) / SPOPS_QUANTIZE_BLOCK_COLS;
    spops_matrix x = {0};
    const bool ok =
        make_input(d, SPOPS_DTYPE_F32, rows, cols, seed, low, high, &x, values) &&
        make_output(d, dtype, rows, cols, q) &&
        (!blocks || make_output(d, SPOPS_DTYPE_F8E4M3, rows, block_cols, block_scales)) &&
        bench_alloc(b, sizeof(float), scale) &&
        bench_check(b, "scale", spops_quantize_scale_execute(b->ctx, x, dtype, *scale)) &&
        bench_check(b, "quantize",
                    spops_quantize_execute(b->ctx, x, *scale, *q, blocks ? block_scales : NULL)) &&
        bench_check(
            b, "dequantize",
            spops_dequantize_execute(b->ctx, *q, *scale, blocks ? block_scales : NULL, x)) &&
        bench_check(b, "wait", spops_context_wait_sync(b->ctx)) &&
        bench_download(b, *values, x.data, matrix_bytes(&x));
    bench_free(b, x.data);
    return ok;
}

// Without the gradients', which 8- and 4-bit dtypes have none of.
static bool make_quantized_data(bev_data *d)
{
    const spops_bev_plan_info *info = &d->map->info;
    const spops_dtype depth = dtype_asked(asked.depth_dtype), out = dtype_asked(asked.out_dtype);
    const bool depth_ok =
        !elements_narrow(depth)
            ? make_input(d, depth, info->num_depths, 1, 1, 0.0f, 0.1f, &d->depth, &d->depth_values)
            : make_quantized(d, depth, info->num_depths, 1, 1, 0.0f, 0.1f, &d->depth,
                             &d->depth_scales, &d->depth_scale, &d->depth_values);
    return depth_ok &&
           make_quantized(d, d->dtype, info->num_features, d->cols, 2, -1.0f, 1.0f, &d->feat,
                          &d->feat_scales, &d->feat_scale, &d->feat_values) &&
           make_output(d, out, info->num_cells, d->cols, &d->out);
}

static bool make_data(bev_data *d)
{
    const spops_bev_plan_info *info = &d->map->info;
    const int64_t batches = info->shape.num_batches;
    const spops_dtype t = d->dtype;
    const bool ok =
        is_quantized(d)
            ? make_quantized_data(d)
            : make_input(d, t, info->num_depths, 1, 1, 0.0f, 0.1f, &d->depth, &d->depth_values) &&
                  make_input(d, t, info->num_features, d->cols, 2, -1.0f, 1.0f, &d->feat,
                             &d->feat_values) &&
                  make_input(d, t, info->num_cells, d->cols, 3, -1.0f, 1.0f, &d->grad_out,
                             &d->grad_out_values) &&
                  make_output(d, t, info->num_cells, d->cols, &d->out) &&
                  make_output(d, t, info->num_depths, 1, &d->grad_depth) &&
                  make_output(d, t, info->num_features, d->cols, &d->grad_feat);
    d->out_first =
        spops_matrix_dense(d->out.data, batches * d->cols, info->num_cells / batches, d->out.dtype);
    return ok;
}

static void note_status(bev_data *d, spops_status status)
{
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

static void enqueue_pool(bev_data *d, spops_bev_layout layout, spops_matrix out)
{
    spops_bevpool_args pool = spops_bevpool_args_default();
    pool.layout = layout;
    pool.accumulate = accumulate_asked();
    pool.depth = d->depth;
    pool.feat = d->feat;
    pool.out = out;
    pool.feat_scales = d->feat_scales.data != NULL ? &d->feat_scales : NULL;
    pool.feat_scale = d->feat_scale;
    pool.depth_scale = d->depth_scale;
    note_status(d, spops_bevpool_execute(d->b->ctx, d->map->plan, &pool));
}

static void enqueue_forward(void *user)
{
    bev_data *d = user;
    enqueue_pool(d, SPOPS_BEV_CHANNELS_LAST, d->out);
}

static void enqueue_forward_first(void *user)
{
    bev_data *d = user;
    enqueue_pool(d, SPOPS_BEV_CHANNELS_FIRST, d->out_first);
}

static void enqueue_backward(void *user)
{
    bev_data *d = user;
    note_status(d, spops_bevpool_execute_backward(d->b->ctx, d->map->plan, SPOPS_BEV_CHANNELS_LAST,
                                                  d->grad_out, d->depth, d->feat, &d->grad_depth,
                                                  &d->grad_feat));
}

static bool run_once(bench *b, void (*enqueue)(void *user), void *user)
{
    enqueue(user);
    if (device_stream_wait(b->backend, b->stream)) return true;
    return bench_fail(b, "run: %s", device_error());
}

// ---- The reference, in f64 ----------------------------------------------------------------------

static bool reject(bench *b, const bev_map *m, const char *name, const char *array, int64_t wrong,
                   int64_t first, int64_t cols)
{
    if (wrong == 0) return true;
    return bench_fail(b, "%s %s: %lld elements of %s are wrong, one of them [%lld, %lld]", m->name,
                      name, (long long)wrong, array, (long long)(first / cols),
                      (long long)(first % cols));
}

// Where an element of a cell lies in out.
static int64_t out_index(const bev_data *d, spops_bev_layout layout, int64_t cell, int64_t c)
{
    const int64_t area = d->out_first.cols; // cells of a batch element
    if (layout == SPOPS_BEV_CHANNELS_LAST) return cell * d->cols + c;
    return (cell / area * d->cols + c) * area + cell % area;
}

// What sums in f16 may add to the error (spops_accumulate). Scales are below one here.
static double packed_bound(int64_t count, double magnitude)
{
    const double s = (double)(count < 16 ? count : 16) * 0x1p-11;
    if (accumulate_asked() != SPOPS_ACCUMULATE_F16) return 0.0;
    return s / (1.0 - s) * magnitude + (double)count * 0x1p-24;
}

static bool check_forward(bev_data *d, spops_bev_layout layout, const char *name)
{
    const bev_map *m = d->map;
    const int64_t cols = d->cols;
    int64_t wrong = 0, first = 0;
    void *out = bench_host(d->b, d->out.rows * cols, spops_dtype_bytes(d->out.dtype));
    // Scales, and what they were decoded with, round a few times more; sums of low precision may
    // run on matrix units, which truncate.
    const int64_t factor = is_quantized(d) ? 2 : 1, more = is_quantized(d) ? 8 : 0;

    if (out == NULL || !bench_download(d->b, out, d->out.data, matrix_bytes(&d->out))) {
        free(out);
        return false;
    }
#pragma omp parallel for schedule(dynamic, 64) reduction(+ : wrong) reduction(max : first)
    for (int64_t cell = 0; cell < m->info.num_cells; ++cell) {
        double sum[BENCH_MAX_WIDTH] = {0}, magnitude[BENCH_MAX_WIDTH] = {0};
        const int32_t interval = m->interval_of_cell[cell];
        const int32_t begin = interval < 0 ? 0 : m->host.interval_starts[interval];
        const int32_t count = interval < 0 ? 0 : m->host.interval_lengths[interval];
        for (int32_t p = begin; p < begin + count; ++p) {
            const double w = d->depth_values[m->host.ranks_depth[p]];
            const float *f = d->feat_values + m->host.ranks_feat[p] * cols;
            for (int64_t c = 0; c < cols; ++c) {
                sum[c] += w * (double)f[c];
                magnitude[c] += fabs(w * (double)f[c]);
            }
        }
        for (int64_t c = 0; c < cols; ++c) {
            const double value = bench_get(out, d->out.dtype, out_index(d, layout, cell, c));
            const double bound = count == 0 ? 0.0
                                            : bench_sum_bound(d->out.dtype, factor * count + more,
                                                              magnitude[c], sum[c]) +
                                                  packed_bound(count, magnitude[c]);
            if (fabs(value - sum[c]) <= bound) continue;
            ++wrong;
            first = cell * cols + c;
        }
    }
    free(out);
    return reject(d->b, m, name, "out", wrong, first, cols);
}

static bool check_grad_depth(bev_data *d)
{
    const bev_map *m = d->map;
    const int64_t cols = d->cols;
    int64_t wrong = 0, first = 0;
    void *grad = bench_host(d->b, m->info.num_depths, spops_dtype_bytes(d->dtype));
    unsigned char *seen = bench_host(d->b, m->info.num_depths, 1);
    bool ok = grad != NULL && seen != NULL &&
              bench_download(d->b, grad, d->grad_depth.data, matrix_bytes(&d->grad_depth));

    if (ok) {
#pragma omp parallel for schedule(static) reduction(+ : wrong) reduction(max : first)
        for (int64_t p = 0; p < m->info.num_points; ++p) {
            const int32_t element = m->host.ranks_depth[p];
            const float *f = d->feat_values + m->host.ranks_feat[p] * cols;
            const float *g = d->grad_out_values + m->host.ranks_bev[p] * cols;
            double sum = 0.0, magnitude = 0.0;
            for (int64_t c = 0; c < cols; ++c) {
                sum += (double)f[c] * (double)g[c];
                magnitude += fabs((double)f[c] * (double)g[c]);
            }
            seen[element] = 1;
            if (fabs((double)bench_get(grad, d->dtype, element) - sum) <=
                bench_sum_bound(d->dtype, cols, magnitude, sum))
                continue;
            ++wrong;
            first = element;
        }
        for (int64_t i = 0; i < m->info.num_depths; ++i) {
            if (seen[i] != 0 || bench_get(grad, d->dtype, i) == 0.0f) continue;
            ++wrong;
            first = i;
        }
        ok = reject(d->b, m, "backward", "grad_depth", wrong, first, 1);
    }
    free(grad);
    free(seen);
    return ok;
}

static bool check_grad_feat(bev_data *d)
{
    const bev_map *m = d->map;
    const int64_t cols = d->cols;
    int64_t wrong = 0, first = 0;
    void *grad = bench_host(d->b, m->info.num_features * cols, spops_dtype_bytes(d->dtype));

    if (grad == NULL ||
        !bench_download(d->b, grad, d->grad_feat.data, matrix_bytes(&d->grad_feat))) {
        free(grad);
        return false;
    }
#pragma omp parallel for schedule(dynamic, 64) reduction(+ : wrong) reduction(max : first)
    for (int64_t j = 0; j < m->info.num_features; ++j) {
        double sum[BENCH_MAX_WIDTH] = {0}, magnitude[BENCH_MAX_WIDTH] = {0};
        const int64_t count = m->row_begin[j + 1] - m->row_begin[j];
        for (int32_t i = m->row_begin[j]; i < m->row_begin[j + 1]; ++i) {
            const int32_t p = m->row_points[i];
            const double w = d->depth_values[m->host.ranks_depth[p]];
            const float *g = d->grad_out_values + m->host.ranks_bev[p] * cols;
            for (int64_t c = 0; c < cols; ++c) {
                sum[c] += w * (double)g[c];
                magnitude[c] += fabs(w * (double)g[c]);
            }
        }
        for (int64_t c = 0; c < cols; ++c) {
            const double value = bench_get(grad, d->dtype, j * cols + c);
            const double bound =
                count == 0 ? 0.0 : bench_sum_bound(d->dtype, count, magnitude[c], sum[c]);
            if (fabs(value - sum[c]) <= bound) continue;
            ++wrong;
            first = j * cols + c;
        }
    }
    free(grad);
    return reject(d->b, m, "backward", "grad_feat", wrong, first, cols);
}

// ---- Cases --------------------------------------------------------------------------------------

static void describe_map(const bev_map *m, const char *pass, bench_case *c)
{
    memset(c, 0, sizeof *c);
    c->suite = "bev";
    snprintf(c->name, sizeof c->name, "%s %s", m->name, pass);
    snprintf(c->what, sizeof c->what, "%s", m->what);
    bench_case_note(c, "points", m->info.num_points);
    bench_case_note(c, "intervals", m->info.num_intervals);
    bench_case_note(c, "cells", m->info.num_cells);
    bench_case_note(c, "longest", m->info.longest);
}

static void begin_case(const bev_data *d, const char *pass, bench_case *c)
{
    describe_map(d->map, pass, c);
    c->dtype = d->dtype;
    c->cols = d->cols;
    if (strstr(pass, "forward") != NULL && accumulate_asked() == SPOPS_ACCUMULATE_F16) {
        const size_t used = strlen(c->what);
        snprintf(c->what + used, sizeof c->what - used, ", sums in f16");
        bench_case_note_text(c, "accumulate", "f16");
    }
    if (!is_quantized(d)) return;
    const size_t used = strlen(c->what);
    const char *depth = spops_dtype_name(d->depth.dtype), *out = spops_dtype_name(d->out.dtype);
    bench_case_note_text(c, "depth_dtype", depth);
    bench_case_note_text(c, "out_dtype", out);
    snprintf(c->what + used, sizeof c->what - used, ", depth %s, out %s", depth, out);
}

static bool measure_baseline(bev_data *d, const bev_baseline *baseline, bev_baseline_args *args,
                             bench_case *c)
{
    bench *b = d->b;
    if (!baseline->accepts(args)) return true;
    if (!bench_poison(b, d->out.data, matrix_bytes(&d->out)) ||
        !run_once(b, baseline->enqueue, args))
        return false;
    if (args->failed) return bench_fail(b, "%s: could not be launched", baseline->name);
    return check_forward(d, SPOPS_BEV_CHANNELS_LAST, baseline->name) &&
           bench_case_time(b, c, baseline->name, true, baseline->enqueue, args);
}

static void measure_baselines(bev_data *d, bench_case *c)
{
    bench *b = d->b;
    const spops_bev_plan_info *info = &d->map->info;
    const bool cuda = b->backend == SPOPS_BACKEND_CUDA;
    const bev_baseline *baselines = cuda ? bev_baselines_cuda : bev_baselines_cpu;
    const int num_baselines = cuda ? num_bev_baselines_cuda : num_bev_baselines_cpu;
    bev_baseline_args args = {.dtype = d->dtype,
                              .cols = (int32_t)d->cols,
                              .num_cells = info->num_cells,
                              .num_depths = info->shape.num_depths,
                              .feature_area =
                                  info->shape.feature_height * info->shape.feature_width,
                              .ranks = spops_bev_ranks_of(&d->map->device),
                              .intervals = spops_bev_intervals_of(&d->map->intervals),
                              .depth = d->depth.data,
                              .feat = d->feat.data,
                              .out = d->out.data,
                              .stream = b->stream};
    for (int i = 0; i < num_baselines; ++i)
        (void)measure_baseline(d, &baselines[i], &args, c);
}

// A pair of indices a point, where each cell begins, each depth, pixel and cell once.
static void count_forward(const bev_data *d, bench_case *c)
{
    const spops_bev_plan_info *info = &d->map->info;
    const int64_t row =
        (int64_t)(matrix_bytes(&d->feat) +
                  (d->feat_scales.data != NULL ? matrix_bytes(&d->feat_scales) : 0)) /
        info->num_features;
    c->bytes = 8 * info->num_points + 4 * info->num_cells +
               (int64_t)spops_dtype_bytes(d->depth.dtype) * info->num_points +
               row * d->map->num_rows_used + (int64_t)matrix_bytes(&d->out);
    c->gather_bytes = row * info->num_points;
}

static void measure_forward(bev_data *d, spops_bev_layout layout)
{
    bench *b = d->b;
    const bool last = layout == SPOPS_BEV_CHANNELS_LAST;
    const char *pass = last ? "forward" : "forward, channels first";
    void (*const enqueue)(void *) = last ? enqueue_forward : enqueue_forward_first;
    bench_case c;

    begin_case(d, pass, &c);
    count_forward(d, &c);
    bench_progress("bev %s: checking", c.name);
    d->status = SPOPS_STATUS_OK;
    if (!bench_poison(b, d->out.data, matrix_bytes(&d->out)) || !run_once(b, enqueue, d) ||
        !bench_check(b, c.name, d->status) || !check_forward(d, layout, pass) ||
        !bench_case_time(b, &c, "spops", false, enqueue, d) || !bench_check(b, c.name, d->status))
        return;
    // They know no other layout, and none of the 8- and 4-bit dtypes.
    if (b->options.baselines && last && !is_quantized(d)) measure_baselines(d, &c);
    bench_case_print(b, &c);
}

static void measure_forwards(bev_data *d)
{
    const char *layouts = asked.layouts != NULL ? asked.layouts : "last";
    if (!bench_wants(d->b->options.passes, "forward")) return;
    if (bench_wants(layouts, "last")) measure_forward(d, SPOPS_BEV_CHANNELS_LAST);
    if (bench_wants(layouts, "first")) measure_forward(d, SPOPS_BEV_CHANNELS_FIRST);
}

static void measure_backward(bev_data *d)
{
    bench *b = d->b;
    const spops_bev_plan_info *info = &d->map->info;
    const int64_t element = (int64_t)spops_dtype_bytes(d->dtype);
    bench_case c;

    begin_case(d, "backward", &c);
    // In: indices, cells with points, depths of points, their pixels. Out: all depths, all pixels.
    c.bytes =
        8 * info->num_points + 4 * info->num_cells +
        element * (info->num_points + info->num_depths) +
        element * d->cols * (info->num_intervals + d->map->num_rows_used + info->num_features);
    c.gather_bytes = element * d->cols * info->num_points;
    bench_progress("bev %s: checking", c.name);
    d->status = SPOPS_STATUS_OK;
    if (!bench_poison(b, d->grad_depth.data, matrix_bytes(&d->grad_depth)) ||
        !bench_poison(b, d->grad_feat.data, matrix_bytes(&d->grad_feat)) ||
        !run_once(b, enqueue_backward, d) || !bench_check(b, c.name, d->status) ||
        !check_grad_depth(d) || !check_grad_feat(d) ||
        !bench_case_time(b, &c, "spops", false, enqueue_backward, d) ||
        !bench_check(b, c.name, d->status))
        return;
    bench_case_print(b, &c);
}

// ---- Contexts side by side ----------------------------------------------------------------------

// A context with its own stream, plan and data. Seen through `own` it is a bench and a map like any
// other, so that everything above works on it.
typedef struct bev_lane {
    bench own;
    bev_map map;
    bev_data data; // of own
    bev_data turn; // the same data and plan on the suite's own context
} bev_lane;

static void close_lane(bev_lane *lane)
{
    if (lane->data.b != NULL) free_data(&lane->data);
    spops_bev_plan_destroy(lane->map.plan);
    spops_context_destroy(lane->own.ctx);
    device_stream_destroy(lane->own.backend, lane->own.stream);
}

static bool open_lane(const bev_data *d, int num_lanes, bev_lane *lane)
{
    bench *b = d->b;
    spops_context_options options = spops_context_options_default();
    const int threads = (int)b->device.num_processors / num_lanes;

    lane->own = *b;
    lane->own.ctx = NULL;
    lane->own.stream = NULL;
    lane->map = *d->map;
    lane->map.plan = NULL;
    if (!device_stream_create(b->backend, &lane->own.stream))
        return bench_fail(b, "no stream: %s", device_error());
    options.backend = b->backend;
    options.stream = lane->own.stream;
    options.num_threads = b->backend == SPOPS_BACKEND_CUDA ? 0 : threads < 1 ? 1 : threads;
    if (spops_context_create(&options, &lane->own.ctx) != SPOPS_STATUS_OK)
        return bench_fail(b, "%s", spops_last_error(NULL));
    if (!make_plan(&lane->own, &lane->map, d->cols)) return false;
    lane->data = (bev_data){.b = &lane->own, .map = &lane->map, .dtype = d->dtype, .cols = d->cols};
    if (!make_data(&lane->data)) return false;
    lane->turn = lane->data;
    lane->turn.b = b;
    return bench_check(b, d->map->name,
                       spops_context_reserve(b->ctx, spops_bev_plan_scratch_bytes(lane->map.plan)));
}

typedef struct lane_turns {
    bev_lane *lanes;
    int num;
} lane_turns;

static void enqueue_turns(void *user)
{
    const lane_turns *t = user;
    for (int i = 0; i < t->num; ++i)
        enqueue_forward(&t->lanes[i].turn);
}

// All lanes at once from poisoned outputs, then each result against the reference.
static bool check_lanes(bench *b, bev_lane *lanes, int num, const char *pass)
{
    for (int i = 0; i < num; ++i) {
        bev_data *d = &lanes[i].data;
        d->status = SPOPS_STATUS_OK;
        if (!bench_poison(b, d->out.data, matrix_bytes(&d->out))) return false;
    }
    for (int i = 0; i < num; ++i)
        enqueue_forward(&lanes[i].data);
    for (int i = 0; i < num; ++i)
        if (!device_stream_wait(b->backend, lanes[i].own.stream))
            return bench_fail(b, "run: %s", device_error());
    for (int i = 0; i < num; ++i)
        if (!bench_check(&lanes[i].own, pass, lanes[i].data.status) ||
            !check_forward(&lanes[i].data, SPOPS_BEV_CHANNELS_LAST, pass))
            return false;
    return true;
}

static bool measure_lanes(bench *b, bench_case *c, bev_lane *lanes, int num)
{
    void *streams[DEVICE_MAX_TOGETHER], *users[DEVICE_MAX_TOGETHER];
    lane_turns turns = {lanes, num};
    bench_variant *v = bench_case_add(c, "spops", false);

    for (int i = 0; i < num; ++i) {
        streams[i] = lanes[i].own.stream;
        users[i] = &lanes[i].data;
    }
    for (int mode = 0; mode < BENCH_NUM_MODES; ++mode) {
        if (!b->options.modes[mode]) continue;
        bench_progress("bev %s: %s", c->name, mode == BENCH_HOT ? "hot" : "cold");
        if (!bench_time_together(b, num, streams, enqueue_forward, users, (bench_mode)mode,
                                 &v->timing[mode]))
            return false;
        v->has[mode] = true;
    }
    if (!bench_case_time(b, c, "one_after_another", true, enqueue_turns, &turns)) return false;
    for (int i = 0; i < num; ++i)
        if (!bench_check(&lanes[i].own, c->name, lanes[i].data.status) ||
            !bench_check(b, c->name, lanes[i].turn.status))
            return false;
    return true;
}

// num_streams contexts, each pooling data of its own with a plan of its own, all at once; beside
// the same work on one context in a row.
static void measure_streams(const bev_data *d)
{
    bench *b = d->b;
    const int num = asked.num_streams;
    bev_lane *lanes = bench_host(b, num, sizeof *lanes);
    char pass[48];
    bool ok = lanes != NULL;
    bench_case c;

    snprintf(pass, sizeof pass, "forward, %d streams", num);
    begin_case(d, pass, &c);
    count_forward(d, &c);
    bench_case_note(&c, "streams", num);
    c.bytes *= num;
    c.gather_bytes *= num;
    bench_progress("bev %s: checking", c.name);
    for (int i = 0; ok && i < num; ++i)
        ok = open_lane(d, num, &lanes[i]);
    if (ok && check_lanes(b, lanes, num, pass) && measure_lanes(b, &c, lanes, num))
        bench_case_print(b, &c);
    for (int i = 0; lanes != NULL && i < num; ++i) {
        b->failed |= lanes[i].own.failed;
        close_lane(&lanes[i]);
    }
    free(lanes);
}

// ---- Building plans -----------------------------------------------------------------------------

typedef struct plan_run {
    bench *b;
    const spops_bev_geometry *geometry;
    spops_bev_options options;
    spops_bev_plan *plan; // for set
    void *transforms;
    spops_status status;
} plan_run;

static void create_and_destroy(void *user)
{
    plan_run *run = user;
    spops_bev_plan *plan = NULL;
    const spops_status status =
        spops_bev_plan_create(run->b->ctx, run->geometry, &run->options, &plan);
    if (run->status == SPOPS_STATUS_OK) run->status = status;
    spops_bev_plan_destroy(plan);
}

static void enqueue_set(void *user)
{
    plan_run *run = user;
    const spops_status status = spops_bev_plan_update(run->b->ctx, run->plan, run->transforms);
    if (run->status == SPOPS_STATUS_OK) run->status = status;
}

// create and destroy wait for the device, so the host's clock tells their time.
static bool measure_create(plan_run *run, bench_case *c, const char *name)
{
    bench *b = run->b;
    bench_variant *v;
    if (!b->options.modes[BENCH_HOT]) return true;
    v = bench_case_add(c, name, false);
    bench_progress("bev %s: %s", c->name, name);
    if (!device_time(SPOPS_BACKEND_CPU, NULL, create_and_destroy, run, false,
                     b->options.num_samples, &v->timing[BENCH_HOT]))
        return bench_fail(b, "%s: %s", name, device_error());
    v->has[BENCH_HOT] = true;
    return bench_check(b, c->name, run->status);
}

static bool measure_set(plan_run *run, bench_case *c, const char *name)
{
    bench *b = run->b;
    const spops_bev_shape *shape = &run->geometry->shape;
    const size_t bytes = (size_t)shape->num_batches * (size_t)shape->num_cameras *
                         SPOPS_BEV_TRANSFORM_DOUBLES * sizeof(double);
    double *transforms = bench_host(b, (int64_t)bytes, 1);
    const bool ok =
        transforms != NULL &&
        bench_check(b, c->name,
                    spops_bev_geometry_get_transforms(b->ctx, run->geometry, transforms)) &&
        bench_upload(b, transforms, bytes, &run->transforms) &&
        bench_check(b, c->name,
                    spops_bev_plan_reserve(b->ctx, run->geometry, &run->options, &run->plan)) &&
        bench_case_time(b, c, name, false, enqueue_set, run) &&
        bench_check(b, c->name, run->status);

    free(transforms);
    spops_bev_plan_destroy(run->plan);
    bench_free(b, run->transforms);
    run->plan = NULL;
    run->transforms = NULL;
    return ok;
}

static void measure_plans(bench *b, const bev_map *m, int64_t max_cols)
{
    bench_case c;
    plan_run run = {.b = b, .geometry = &m->geometry};

    describe_map(m, "plan", &c);
    run.options = spops_bev_options_default();
    run.options.max_cols = max_cols;
    if (!measure_create(&run, &c, "create+destroy") || !measure_set(&run, &c, "set")) return;
    run.options.backward = 1;
    if (!measure_create(&run, &c, "create+destroy, backward") ||
        !measure_set(&run, &c, "set, backward"))
        return;
    bench_case_print(b, &c);
}

// ---- The suite ----------------------------------------------------------------------------------

static bool load_rig(bench *b, rig *r)
{
    char error[RIG_ERROR_BYTES];
    const bool ok = asked.rig != NULL
                        ? rig_load(asked.rig, r, error, sizeof error)
                        : rig_parse((const char *)rig_six_cameras_json, rig_six_cameras_json_bytes,
                                    r, error, sizeof error);
    if (ok) return true;
    return bench_fail(b, "%s: %s", asked.rig != NULL ? asked.rig : "the shipped rig", error);
}

static void measure_map(bench *b, bev_map *m, const int64_t *cols, int num_cols, unsigned dtypes)
{
    for (int i = 0; i < num_cols; ++i) {
        if (!make_plan(b, m, cols[i])) return;
        for (int dtype = SPOPS_DTYPE_F32; dtype <= SPOPS_DTYPE_F4E2M1; ++dtype) {
            if (!bench_wants_dtype(b, dtypes, (spops_dtype)dtype)) continue;
            bev_data d = {.b = b, .map = m, .dtype = (spops_dtype)dtype, .cols = cols[i]};
            if (make_data(&d)) {
                measure_forwards(&d);
                if (bench_wants(b->options.passes, "backward") && !is_quantized(&d))
                    measure_backward(&d);
                if (asked.num_streams > 0) measure_streams(&d);
            }
            free_data(&d);
        }
    }
}

// The maps that --article or --maps names, or the suite's own.
static bool wants_map(const bench *b, const char *name)
{
    const char *own = b->options.quick ? "a" : asked.article ? "105k,209k,572k,1280k" : "a,c,b";
    if (asked.maps == NULL) return bench_wants(own, name);
    return bench_wants(asked.maps, "all") || bench_wants(asked.maps, name);
}

// The widths of a map: the options', the article's, or the suite's own.
static int widths_of(const bench *b, const char *name, int64_t cols[BENCH_MAX_COLS])
{
    static const int64_t own[] = {80, 128, 256};
    const bool small = b->options.quick || b->backend == SPOPS_BACKEND_CPU;
    const bool all = asked.article ? strcmp(name, "209k") == 0 : !small;
    return bench_cols(b, own, all ? 3 : 1, cols);
}

static void run_suite(bench *b)
{
    static const char names[] = SETTING_NAMES;
    const bool small = b->options.quick || b->backend == SPOPS_BACKEND_CPU;
    const unsigned own_dtypes =
        1u << SPOPS_DTYPE_F32 | 1u << SPOPS_DTYPE_F16 | (small ? 0u : 1u << SPOPS_DTYPE_BF16);
    rig r;

    if (!load_rig(b, &r)) return;
    for (const char *at = names; *at != '\0'; at += strspn(at, ",")) {
        char name[16];
        int64_t cols[BENCH_MAX_COLS], max_cols = 0;
        bev_map m;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
        at += strcspn(at, ",");
        if (!wants_map(b, name)) continue;
        bench_progress("bev map %s", name);
        const int num_cols = widths_of(b, name, cols);
        for (int i = 0; i < num_cols; ++i)
            max_cols = cols[i] > max_cols ? cols[i] : max_cols;
        if (!make_map(b, setting_find(name), &r, max_cols, &m)) continue;
        if (bench_wants(b->options.passes, "plan")) measure_plans(b, &m, max_cols);
        if (bench_wants(b->options.passes, "forward") || bench_wants(b->options.passes, "backward"))
            measure_map(b, &m, cols, num_cols, own_dtypes);
        free_map(b, &m);
    }
    rig_free(&r);
}

const bench_suite bench_suite_bev = {
    .name = "bev", .passes = "forward,backward,plan", .options = suite_options, .run = run_suite};
