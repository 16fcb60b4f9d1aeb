// SPDX-License-Identifier: Apache-2.0
// Sparse convolution of 8 bits beside that of f16: submanifold 3 x 3 x 3 layers on the clouds of the suite
// conv, forward, outputs of the dtype of the inputs. Map, plan, codes and weights are ready.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_data.h"
#include "bench/bench_layer.h"
#include "bench/bench_report.h"
#include "bench/bench_scenes.h"

#define NUM_SAMPLES 16 // rows of out whose values are checked
#define MOST_COLS   1024

static struct {
    const char *clouds;
} own;
static const bench_option options[] = {{"--clouds", "LIST", "lidar,indoor,shell (default: all)",
                                        "lidar,indoor,shell", .text = &own.clouds},
                                       {0}};

typedef struct cloud8 {
    bench_scene scene;
    spops_coords *coords;
    spops_kernel_map *map;
    spops_sparseconv *plan;
    spops_kernel_map_view view;
    int32_t *table; // host
} cloud8;

// A layer of one dtype; f16 has no scales.
typedef struct layer8 {
    bench *b;
    const cloud8 *cloud;
    spops_dtype dtype;
    spops_matrix x, w, out;
    float *scales; // of x, of out, of each channel
    spops_status status;
} layer8;

enum { X_SCALE, OUT_SCALE, W_SCALES };
#define OUT_RANGE 0.05f // scale of outputs

static spops_quantized_layer options_of(const layer8 *l)
{
    spops_quantized_layer layer = spops_quantized_layer_default();
    layer.x_scale = l->scales + X_SCALE;
    layer.w_scales = l->scales + W_SCALES;
    layer.out_scale = l->scales + OUT_SCALE;
    return layer;
}

static spops_status run_layer(const layer8 *l, spops_matrix out)
{
    if (l->dtype == SPOPS_DTYPE_F16)
        return spops_sparseconv_execute(l->b->ctx, l->cloud->plan, l->x, l->w, NULL, out);
    const spops_quantized_layer layer = options_of(l);
    return spops_sparseconv_execute_quantized(l->b->ctx, l->cloud->plan, l->x, l->w, &layer, out);
}

static void enqueue(void *user)
{
    layer8 *l = user;
    const spops_status status = run_layer(l, l->out);
    if (l->status == SPOPS_STATUS_OK) l->status = status;
}

// ---- Whether results are right ------------------------------------------------------------------

static double value_of(spops_dtype dtype, uint8_t code)
{
    return dtype == SPOPS_DTYPE_I8 ? (double)(int8_t)code : (double)bench_f8_to_float(code, dtype);
}

static bool check_row(const layer8 *l, const uint8_t *x, const uint8_t *w, const float *scales,
                      const float *row, int64_t r)
{
    const cloud8 *m = l->cloud;
    for (int64_t o = 0; o < l->out.cols; ++o) {
        const double by = (double)scales[X_SCALE] * (double)scales[W_SCALES + o];
        double sum = 0.0, magnitude = 0.0;
        for (int64_t k = 0; k < m->view.num_taps; ++k) {
            const int32_t j = m->table[r * m->view.table_stride + k];
            for (int64_t c = 0; j >= 0 && c < l->x.cols; ++c) {
                const double product = value_of(l->dtype, x[j * l->x.cols + c]) *
                                       value_of(l->dtype, w[(k * l->out.cols + o) * l->w.cols + c]);
                sum += product, magnitude += fabs(product);
            }
        }
        // docs/quantized.md has the bound.
        const double unit = l->dtype == SPOPS_DTYPE_I8 ? 0.0 : 132.0 * 0x1p-13;
        if (!(fabs((double)row[o] - sum * by) <= (unit * magnitude + 0x1p-20 * fabs(sum)) * by))
            return bench_fail(l->b, "conv8 %s %s: element [%lld, %lld] is %g, expected %g",
                              m->scene.name, spops_dtype_name(l->dtype), (long long)r, (long long)o,
                              (double)row[o], sum * by);
    }
    return true;
}

// Rows of an output in f32, from the codes.
static bool check_layer(const layer8 *l)
{
    bench *b = l->b;
    const int64_t n = l->out.rows, num_scales = W_SCALES + l->out.cols;
    uint8_t *x = bench_host(b, n * l->x.cols, 1), *w = bench_host(b, l->w.rows * l->w.cols, 1);
    float *scales = bench_host(b, num_scales, sizeof *scales), row[MOST_COLS];
    spops_matrix out = spops_matrix_dense(NULL, n, l->out.cols, SPOPS_DTYPE_F32);
    bool good =
        x != NULL && w != NULL && scales != NULL &&
        bench_alloc(b, bench_matrix_bytes(out), &out.data) &&
        bench_poison(b, out.data, bench_matrix_bytes(out)) &&
        bench_check(b, "conv8", run_layer(l, out)) &&
        (device_stream_wait(b->backend, b->stream) || bench_fail(b, "%s", device_error())) &&
        bench_download(b, x, l->x.data, bench_matrix_bytes(l->x)) &&
        bench_download(b, w, l->w.data, bench_matrix_bytes(l->w)) &&
        bench_download(b, scales, l->scales, (size_t)num_scales * sizeof *scales);
    for (int i = 0; good && i < NUM_SAMPLES; ++i) {
        const int64_t r = (int64_t)(bench_random(23, (uint64_t)i) % (uint64_t)n);
        good = bench_download(b, row, (float *)out.data + r * out.cols,
                              (size_t)out.cols * sizeof *row) &&
               check_row(l, x, w, scales, row, r);
    }
    bench_free(b, out.data);
    free(x), free(w), free(scales);
    return good;
}

// ---- Cases --------------------------------------------------------------------------------------

// The codes of a layer of f16.
static bool make_codes(layer8 *l, const layer8 *from, int64_t taps)
{
    bench *b = l->b;
    const int64_t n = from->x.rows, in = from->x.cols, out = from->out.cols;
    const float range[2] = {1.0f, OUT_RANGE};
    void *scales = NULL;
    l->x = spops_matrix_dense(NULL, n, in, l->dtype);
    l->w = spops_matrix_dense(NULL, taps * out, (in + 15) / 16 * 16, l->dtype);
    l->out = spops_matrix_dense(NULL, n, out, l->dtype);
    if (!bench_alloc(b, bench_matrix_bytes(l->x), &l->x.data) ||
        !bench_alloc(b, bench_matrix_bytes(l->w), &l->w.data) ||
        !bench_alloc(b, bench_matrix_bytes(l->out), &l->out.data) ||
        !bench_alloc(b, (size_t)(W_SCALES + out) * sizeof(float), &scales))
        return false;
    l->scales = scales;
    return (device_upload(b->backend, l->scales, range, sizeof range) ||
            bench_fail(b, "upload: %s", device_error())) &&
           bench_check(b, "conv8",
                       spops_quantize_scale_execute(b->ctx, from->x, l->dtype, l->scales)) &&
           bench_check(b, "conv8",
                       spops_quantize_execute(b->ctx, from->x, l->scales, l->x, NULL)) &&
           bench_check(b, "conv8",
                       spops_quantize_weights_execute(b->ctx, from->w, (int32_t)taps, 0, l->w,
                                                      l->scales + W_SCALES));
}

static bool make_f16(layer8 *l, int64_t n, int64_t cols, int64_t taps)
{
    bench *b = l->b;
    void *host = NULL;
    l->x = spops_matrix_dense(NULL, n, cols, l->dtype);
    l->w = spops_matrix_dense(NULL, taps * cols, cols, l->dtype);
    l->out = spops_matrix_dense(NULL, n, cols, l->dtype);
    const int64_t most = n > taps * cols ? n : taps * cols;
    host = bench_host(b, most * cols, sizeof(uint16_t));
    bool good = host != NULL;
    if (good) bench_fill_uniform(host, l->dtype, n * cols, 3, -1.0f, 1.0f);
    good = good && bench_upload(b, host, bench_matrix_bytes(l->x), &l->x.data);
    if (good) bench_fill_uniform(host, l->dtype, taps * cols * cols, 4, -0.125f, 0.125f);
    good = good && bench_upload(b, host, bench_matrix_bytes(l->w), &l->w.data) &&
           bench_alloc(b, bench_matrix_bytes(l->out), &l->out.data);
    free(host);
    return good;
}

static void free_layer(layer8 *l)
{
    bench_free(l->b, l->x.data), bench_free(l->b, l->w.data);
    bench_free(l->b, l->out.data), bench_free(l->b, l->scales);
}

static void measure_width(bench *b, const cloud8 *m, int64_t cols)
{
    static const spops_dtype dtypes[] = {SPOPS_DTYPE_F16, SPOPS_DTYPE_F8E4M3, SPOPS_DTYPE_I8};
    layer8 layers[3] = {{.b = b}, {.b = b}, {.b = b}};
    bench_case c = {.suite = "conv8"};
    bool good = cols <= MOST_COLS;

    for (int i = 0; good && i < 3; ++i) {
        layer8 *l = &layers[i];
        l->cloud = m;
        l->dtype = dtypes[i];
        bench_progress("conv8 %s %lld, %s", m->scene.name, (long long)cols,
                       spops_dtype_name(l->dtype));
        good = i == 0 ? make_f16(l, m->scene.num_rows, cols, m->view.num_taps)
                      : make_codes(l, &layers[0], m->view.num_taps) && check_layer(l);
    }
    if (good) {
        const layer8 *l = &layers[2];
        const double flops = bench_layer_case(&c, 1, m->view.max_pairs, l->x, l->w, l->out);
        snprintf(c.name, sizeof c.name, "%s %lld to %lld forward", m->scene.name, (long long)cols,
                 (long long)cols);
        snprintf(c.what, sizeof c.what, "%lld voxels, %lld pairs, %.2f GFLOP",
                 (long long)m->scene.num_rows, (long long)m->view.max_pairs, flops * 1e-9);
    }
    for (int i = 0; good && i < 3; ++i)
        good = bench_case_time(b, &c, spops_dtype_name(dtypes[i]), false, enqueue, &layers[i]) &&
               bench_check(b, "conv8", layers[i].status);
    if (good) bench_case_print(b, &c);
    for (int i = 0; i < 3; ++i)
        free_layer(&layers[i]);
}

// ---- Clouds -------------------------------------------------------------------------------------

static const int64_t own_cols[] = {64, 128, 256, 512};

static bool open_cloud(bench *b, cloud8 *m, int64_t most)
{
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_kernel_map_options o = spops_kernel_map_options_default();
    spops_sparseconv_options plan = spops_sparseconv_options_default();
    void *rows = NULL;
    if (!bench_scene_load(b, &m->scene)) return false;
    o.contents = SPOPS_MAP_TABLE | SPOPS_MAP_PAIRS | SPOPS_MAP_ORDER;
    plan.max_in_channels = plan.max_out_channels = most;
    bool good =
        bench_upload(b, m->scene.rows, (size_t)m->scene.num_rows * 4 * sizeof(int32_t), &rows) &&
        bench_check(b, "coords",
                    spops_coords_create(b->ctx, 3, m->scene.num_rows, rows, NULL, &m->coords)) &&
        bench_check(b, "map",
                    spops_kernel_map_create(b->ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, m->coords, NULL,
                                            &o, &m->map)) &&
        bench_check(b, "plan", spops_sparseconv_create(b->ctx, m->map, &plan, &m->plan));
    bench_free(b, rows);
    m->view = spops_kernel_map_view_default();
    return good && bench_check(b, "map", spops_kernel_map_get_view(b->ctx, m->map, &m->view)) &&
           bench_fetch_i32(b, m->view.out->table, m->scene.num_rows * m->view.table_stride,
                           &m->table);
}

static void run_suite(bench *b)
{
    static const struct {
        const char *name, *file;
        int64_t most_rows;
    } clouds[] = {{"lidar", "conv_lidar.npy", 82329},
                  {"indoor", "conv_indoor.npy", 200000},
                  {"shell", "conv_shell.npy", 252392}};
    int64_t cols[BENCH_MAX_COLS], most = 0;
    const int num = bench_cols(b, own_cols, 4, cols);
    for (int i = 0; i < num; ++i)
        if (cols[i] > most) most = cols[i];
    for (size_t i = 0; i < sizeof clouds / sizeof *clouds; ++i) {
        cloud8 m = {0};
        if (!bench_wants(own.clouds, clouds[i].name)) continue;
        m.scene.name = clouds[i].name;
        m.scene.file = clouds[i].file;
        m.scene.most_rows = clouds[i].most_rows;
        if (open_cloud(b, &m, most))
            for (int k = 0; k < num; ++k)
                measure_width(b, &m, cols[k]);
        spops_sparseconv_destroy(m.plan);
        spops_kernel_map_destroy(m.map);
        spops_coords_destroy(m.coords);
        free(m.table);
        free(m.scene.rows);
    }
}

const bench_suite bench_suite_conv8 = {"conv8", NULL, options, run_suite};
