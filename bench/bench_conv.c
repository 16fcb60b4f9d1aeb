// SPDX-License-Identifier: Apache-2.0
// Sparse convolution: submanifold 3 x 3 x 3 layers on three clouds, forward and both gradients, on
// every dataflow that the device has, and with --tiles by each tile of implicit GEMM. The map and the plan
// are ready; a layer is what is timed.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_conv_ablation.h"
#include "bench/bench_data.h"
#include "bench/bench_layer.h"
#include "bench/bench_report.h"
#include "bench/bench_scenes.h"

#define NUM_SAMPLES   32 // rows of out and grad_x whose values are checked
#define WHOLE_LIMIT   2  // features of the check of grad_w are whole numbers up to this
#define NUM_DATAFLOWS (SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER + 1)
// A way of running: a dataflow, or one of implicit GEMM's tiles, tile t as way NUM_DATAFLOWS + t.
#define NUM_WAYS (NUM_DATAFLOWS + BENCH_MAX_TILE + 1)

static struct {
    const char *clouds, *gyroids, *layers, *dataflows, *tuning, *activation;
    bool ablation;
} own;
static bool is_grid(const char *item)
{
    int64_t cells;
    return options_read_number(item, 8, 1536, &cells);
}

static const bench_option options[] = {
    {"--clouds", "LIST", "lidar,indoor,shell (default: all)", "lidar,indoor,shell",
     .text = &own.clouds},
    {"--gyroids", "LIST",
     "surfaces in grids of so many cells a side (8 to 1536) in place of the clouds",
     .accepts = is_grid, .text = &own.gyroids},
    {"--layers", "LIST",
     "32x32,64x64,64x128,128x128,256x128,256x256: channels (default: all, or --cols)",
     "32x32,64x64,64x128,128x128,256x128,256x256", .text = &own.layers},
    {"--dataflows", "LIST", "fetch_on_demand,implicit_gemm,gather_matmul_scatter (default: all)",
     "fetch_on_demand,implicit_gemm,gather_matmul_scatter", .text = &own.dataflows},
    {"--activation", "NAME", "of the forward pass that is timed (default: none)",
     "none,relu,leaky_relu,silu,gelu,gelu_tanh,sigmoid", .text = &own.activation},
    {"--ablation", NULL,
     "the layers of a MinkUNet instead: each dataflow, grouping and movement alone",
     .on = &own.ablation},
    {"--tuning", "FILE", "with --ablation: a file of `spops tune', whose choice is measured too",
     .text = &own.tuning},
    {0}};

typedef struct layer_width {
    const char *name;
    int64_t in, out;
} layer_width;
static const layer_width widths[] = {{"32x32", 32, 32},     {"64x64", 64, 64},
                                     {"64x128", 64, 128},   {"128x128", 128, 128},
                                     {"256x128", 256, 128}, {"256x256", 256, 256}};

static const char *const activations[] = {"none", "relu",      "leaky_relu", "silu",
                                          "gelu", "gelu_tanh", "sigmoid"};

// By --activation.
static spops_activation wanted_activation(void)
{
    const int num = (int)(sizeof activations / sizeof *activations);
    for (int i = 0; own.activation != NULL && i < num; ++i)
        if (bench_wants(own.activation, activations[i])) return (spops_activation)i;
    return SPOPS_ACTIVATION_NONE;
}

// A cloud with its map, here and where the benchmark runs.
typedef struct conv_cloud {
    bench_scene scene;
    spops_coords *coords;
    spops_kernel_map *map;
    spops_kernel_map_view view;
    int32_t *table, *tap_offsets, *in_rows, *out_rows; // host
    int64_t num_pairs;
    spops_sparseconv *plans[NUM_WAYS]; // NULL: not had here
} conv_cloud;

// Numbers of a dtype: features, weights, and features that are whole numbers.
typedef struct bench_blocks {
    bench_block values, weights, whole;
} bench_blocks;

typedef struct conv_data {
    bench *b;
    const conv_cloud *cloud;
    const spops_sparseconv *plan;
    spops_matrix x, w, g, out, grad_x, grad_w;
    spops_conv_layer layer;
    const bench_blocks *blocks;
    spops_status status; // of the first call that failed
} conv_data;

static void note_status(conv_data *d, spops_status status)
{
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

static void enqueue_forward(void *user)
{
    conv_data *d = user;
    note_status(d, spops_sparseconv_execute(d->b->ctx, d->plan, d->x, d->w, &d->layer, d->out));
}

static void enqueue_grad_x(void *user)
{
    conv_data *d = user;
    note_status(d, spops_sparseconv_execute_backward(d->b->ctx, d->plan, d->g, d->x, d->w,
                                                     &d->layer, &d->grad_x, NULL, NULL));
}

static void enqueue_grad_w(void *user)
{
    conv_data *d = user;
    note_status(d, spops_sparseconv_execute_backward(d->b->ctx, d->plan, d->g, d->x, d->w,
                                                     &d->layer, NULL, &d->grad_w, NULL));
}

// All that a training step does.
static void enqueue_step(void *user)
{
    enqueue_forward(user);
    enqueue_grad_x(user);
    enqueue_grad_w(user);
}

typedef struct conv_pass {
    const char *name;
    void (*enqueue)(void *user);
    int products;           // of the layer's size
    spops_conv_pass served; // what a dataflow has to serve; of the step, all
} conv_pass;
enum { STEP = 3, NUM_PASSES };
static const conv_pass passes[NUM_PASSES] = {{"forward", enqueue_forward, 1, SPOPS_PASS_FORWARD},
                                             {"grad_x", enqueue_grad_x, 1, SPOPS_PASS_GRAD_X},
                                             {"grad_w", enqueue_grad_w, 1, SPOPS_PASS_GRAD_W},
                                             [STEP] = {"step", enqueue_step, 3}};

// ---- Whether results are right ------------------------------------------------------------------

static const float *weights_of(const conv_data *d, int64_t tap, int64_t c)
{
    return bench_block_row(&d->blocks->weights, tap * d->x.cols + c, d->g.cols);
}

static void sum_forward(const void *user, int64_t row, bench_row_sum *s)
{
    const conv_data *d = (const conv_data *)user;
    const conv_cloud *m = d->cloud;
    for (int64_t k = 0; k < m->view.num_taps; ++k) {
        const int32_t j = m->table[row * m->view.table_stride + k];
        if (j < 0) continue;
        const float *x = bench_block_row(&d->blocks->values, j, d->x.cols);
        for (int64_t c = 0; c < d->x.cols; ++c)
            for (int64_t o = 0; o < d->g.cols; ++o)
                bench_add_product(s, o, x[c], weights_of(d, k, c)[o]);
        s->terms += d->x.cols;
    }
}

// A submanifold map is its own mirror image.
static void sum_grad_x(const void *user, int64_t row, bench_row_sum *s)
{
    const conv_data *d = (const conv_data *)user;
    const conv_cloud *m = d->cloud;
    for (int64_t k = 0; k < m->view.num_taps; ++k) {
        const int32_t i = m->table[row * m->view.table_stride + m->view.num_taps - 1 - k];
        if (i < 0) continue;
        const float *g = bench_block_row(&d->blocks->values, i, d->g.cols);
        for (int64_t c = 0; c < d->x.cols; ++c)
            for (int64_t o = 0; o < d->g.cols; ++o)
                bench_add_product(s, c, g[o], weights_of(d, k, c)[o]);
        s->terms += d->g.cols;
    }
}

// Gather-matmul-scatter rounds the product of each tap to the result's dtype, and the sum of them
// before the middle tap's is added.
static double product_unit(const conv_data *d, spops_dtype dtype)
{
    if (d->plan != d->cloud->plans[SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER]) return 0.0;
    return dtype == SPOPS_DTYPE_F16 ? 0x1.01p-10 : dtype == SPOPS_DTYPE_BF16 ? 0x1.01p-7 : 0.0;
}

static bool check_rows(const conv_data *d, const char *what, spops_matrix result,
                       void (*sum)(const void *user, int64_t row, bench_row_sum *s))
{
    const double rounded = d->b->options.tf32 ? 0x1.01p-10 : 0.0; // factors
    const bench_row_check check = {
        "conv", what, NUM_SAMPLES, rounded + product_unit(d, result.dtype), d, sum};
    return bench_check_rows(d->b, &check, result);
}

// One run of a pass over poison.
static bool run_pass(conv_data *d, const conv_pass *pass, spops_matrix result)
{
    bench *b = d->b;
    d->status = SPOPS_STATUS_OK;
    if (!bench_poison(b, result.data, bench_matrix_bytes(result))) return false;
    pass->enqueue(d);
    if (!device_stream_wait(b->backend, b->stream)) return bench_fail(b, "run: %s", device_error());
    return bench_check(b, "conv", d->status);
}

// The sums of the gradient of each tap's matrix over its columns [taps * C_in] and over its rows
// [taps * C_out], of whole numbers: every product and sum is exact, in f32 too, so that results must
// be equal, and one pair too many or too few shows.
typedef struct gradient_sums {
    double *rows, *cols;
} gradient_sums;

static bool expect_gradient(const conv_data *d, gradient_sums *s)
{
    const conv_cloud *m = d->cloud;
    const bench_block *whole = &d->blocks->whole;
    const int64_t n = m->scene.num_rows, taps = m->view.num_taps, in = d->x.cols, out = d->g.cols;
    double *of_x = bench_host(d->b, n, sizeof *of_x), *of_g = bench_host(d->b, n, sizeof *of_g);
    s->rows = bench_host(d->b, taps * in, sizeof *s->rows);
    s->cols = bench_host(d->b, taps * out, sizeof *s->cols);
    const bool good = of_x != NULL && of_g != NULL && s->rows != NULL && s->cols != NULL;

    for (int64_t i = 0; i < n && good; ++i) {
        for (int64_t c = 0; c < in; ++c)
            of_x[i] += (double)bench_block_row(whole, i, in)[c];
        for (int64_t o = 0; o < out; ++o)
            of_g[i] += (double)bench_block_row(whole, i, out)[o];
    }
#pragma omp parallel for schedule(dynamic)
    for (int64_t k = 0; k < taps; ++k) {
        for (int32_t p = m->tap_offsets[k]; p < m->tap_offsets[k + 1] && good; ++p) {
            const int32_t from = m->in_rows[p], to = m->out_rows[p];
            const float *x = bench_block_row(whole, from, in), *g = bench_block_row(whole, to, out);
            for (int64_t c = 0; c < in; ++c)
                s->rows[k * in + c] += (double)x[c] * of_g[to];
            for (int64_t o = 0; o < out; ++o)
                s->cols[k * out + o] += (double)g[o] * of_x[from];
        }
    }
    free(of_x), free(of_g);
    return good;
}

static bool check_sum(const conv_data *d, const char *what, const char *line, int64_t tap,
                      int64_t at, double sum, double expected)
{
    return sum == expected || bench_fail(d->b, "conv %s: tap %lld, %s %lld sums to %g, expected %g",
                                         what, (long long)tap, line, (long long)at, sum, expected);
}

static bool check_gradient(const conv_data *d, const char *what, const gradient_sums *s)
{
    const int64_t taps = d->cloud->view.num_taps, in = d->x.cols, out = d->g.cols;
    float *dw = bench_host(d->b, taps * in * out, sizeof *dw);
    double *cols = bench_host(d->b, out, sizeof *cols);
    bool right = dw != NULL && cols != NULL &&
                 bench_download(d->b, dw, d->grad_w.data, bench_matrix_bytes(d->grad_w));

    for (int64_t k = 0; k < taps && right; ++k) {
        memset(cols, 0, (size_t)out * sizeof *cols);
        for (int64_t c = 0; c < in && right; ++c) {
            double row = 0.0;
            for (int64_t o = 0; o < out; ++o) {
                const double v = (double)dw[(k * in + c) * out + o];
                row += v;
                cols[o] += v;
            }
            right = check_sum(d, what, "row", k, c, row, s->rows[k * in + c]);
        }
        for (int64_t o = 0; o < out && right; ++o)
            right = check_sum(d, what, "column", k, o, cols[o], s->cols[k * out + o]);
    }
    free(dw), free(cols);
    return right;
}

static bool upload(const conv_data *d, const bench_block *features)
{
    const spops_backend_kind backend = d->b->backend;
    const spops_matrix *w = &d->w;
    return (bench_block_upload(features, backend, d->x.data, d->x.rows * d->x.cols) &&
            bench_block_upload(features, backend, d->g.data, d->g.rows * d->g.cols) &&
            bench_block_upload(&d->blocks->weights, backend, w->data, w->rows * w->cols)) ||
           bench_fail(d->b, "upload: %s", device_error());
}

// ---- Cases --------------------------------------------------------------------------------------

static bool choose(const conv_data *d, const spops_sparseconv *plan, spops_conv_pass pass,
                   spops_conv_choice *choice)
{
    return plan != NULL &&
           spops_sparseconv_get_choice(d->b->ctx, plan, pass, d->x.dtype, d->x.cols, d->g.cols,
                                       &d->layer, choice) == SPOPS_STATUS_OK;
}

// Of implicit GEMM; 0: it has no choice, or does not serve the pass, or the pass is a step.
static int32_t default_tile(const conv_data *d, const conv_pass *pass)
{
    spops_conv_choice choice;
    return pass != &passes[STEP] &&
                   choose(d, d->cloud->plans[SPOPS_DATAFLOW_IMPLICIT_GEMM], pass->served, &choice)
               ? choice.tile
               : 0;
}

static const char *way_name(int way, char name[32])
{
    if (way < NUM_DATAFLOWS) return spops_dataflow_name((spops_dataflow)way);
    snprintf(name, 32, "tile %d", way - NUM_DATAFLOWS);
    return name;
}

// Time the ways that are right. Implicit GEMM comes first, so that the gain of a tile is over what it chooses.
static bool time_ways(conv_data *d, const conv_pass *pass, const bool *right, bench_case *c)
{
    static const int first = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    char name[32];
    for (int i = 0; i < NUM_WAYS; ++i) {
        const int way = i == 0 ? first : i <= first ? i - 1 : i;
        if (!right[way]) continue;
        d->plan = d->cloud->plans[way];
        const bool good =
            way < NUM_DATAFLOWS
                ? bench_case_time(d->b, c, way_name(way, name), false, pass->enqueue, d)
                : bench_case_time_tile(d->b, c, way - NUM_DATAFLOWS, pass->enqueue, d);
        if (!good || !bench_check(d->b, "conv", d->status)) return false;
    }
    return true;
}

// right[w]: way w serves the pass, and its results are right.
static void measure_pass(conv_data *d, const conv_pass *pass, const bool *right)
{
    bench *b = d->b;
    const conv_cloud *m = d->cloud;
    bench_case c = {.suite = "conv"};

    if (!bench_wants(b->options.passes, pass->name)) return;
    const double flops = bench_layer_case(&c, pass->products, m->num_pairs, d->x, d->w, d->out);
    const bool active = d->layer.activation != SPOPS_ACTIVATION_NONE;
    snprintf(c.name, sizeof c.name, "%s %lld to %lld %s%s%s%s", m->scene.name, (long long)d->x.cols,
             (long long)d->g.cols, pass->name, d->b->options.tf32 ? " tf32" : "", active ? " " : "",
             active ? activations[d->layer.activation] : "");
    snprintf(c.what, sizeof c.what, "%lld voxels, %lld pairs, %.2f GFLOP",
             (long long)m->scene.num_rows, (long long)m->num_pairs, flops * 1e-9);
    if (b->options.tiles != NULL) {
        const size_t used = strlen(c.what);
        const int32_t tile = default_tile(d, pass);
        bench_case_note(&c, "default_tile", tile);
        if (tile > 0)
            snprintf(c.what + used, sizeof c.what - used, "; implicit_gemm takes tile %d",
                     (int)tile);
    }
    if (time_ways(d, pass, right, &c)) bench_case_print(b, &c);
}

// right[pass][w]: way w serves the pass, and its results are right.
typedef bool pass_table[NUM_PASSES][NUM_WAYS];

static void find_served(const conv_data *d, pass_table right)
{
    memset(right, 0, sizeof(pass_table));
    for (int way = SPOPS_DATAFLOW_FETCH_ON_DEMAND; way < NUM_WAYS; ++way) {
        const spops_sparseconv *plan = d->cloud->plans[way];
        spops_conv_choice choice;
        right[STEP][way] = plan != NULL && way < NUM_DATAFLOWS; // no tile is of all passes
        for (int pass = 0; pass < STEP; ++pass) {
            right[pass][way] = choose(d, plan, passes[pass].served, &choice) &&
                               (way < NUM_DATAFLOWS ? (int)choice.dataflow == way
                                                    : choice.tile == way - NUM_DATAFLOWS);
            right[STEP][way] = right[STEP][way] && right[pass][way];
        }
    }
}

// Every pass of every way once. The gradient of W is checked whole, with features that are whole
// numbers; they are replaced before the others, which are checked row by row.
static bool check_passes(conv_data *d, pass_table right)
{
    static const spops_conv_pass order[] = {SPOPS_PASS_GRAD_W, SPOPS_PASS_FORWARD,
                                            SPOPS_PASS_GRAD_X};
    gradient_sums sums = {NULL, NULL};
    bool good = expect_gradient(d, &sums) && upload(d, &d->blocks->whole);

    for (int i = 0; i < STEP && good; ++i) {
        const conv_pass *pass = &passes[order[i]];
        for (int way = SPOPS_DATAFLOW_FETCH_ON_DEMAND; way < NUM_WAYS && good; ++way) {
            char what[128], name[32];
            if (!right[order[i]][way]) continue;
            snprintf(what, sizeof what, "%s %lld to %lld %s, %s", d->cloud->scene.name,
                     (long long)d->x.cols, (long long)d->g.cols, pass->name, way_name(way, name));
            bench_progress("conv %s, %s: checking", what, spops_dtype_name(d->x.dtype));
            d->plan = d->cloud->plans[way];
            if (order[i] == SPOPS_PASS_GRAD_W)
                good = run_pass(d, pass, d->grad_w) && check_gradient(d, what, &sums);
            else if (order[i] == SPOPS_PASS_FORWARD)
                good = run_pass(d, pass, d->out) && check_rows(d, what, d->out, sum_forward);
            else
                good = run_pass(d, pass, d->grad_x) && check_rows(d, what, d->grad_x, sum_grad_x);
        }
        if (i == 0) good = good && upload(d, &d->blocks->values);
    }
    free(sums.rows), free(sums.cols);
    return good;
}

static void measure_width(bench *b, const conv_cloud *m, layer_width width,
                          const bench_blocks *blocks)
{
    const spops_dtype dtype = blocks->values.dtype;
    const int64_t n = m->scene.num_rows, taps = m->view.num_taps;
    const size_t element = spops_dtype_bytes(dtype);
    const size_t in_bytes = (size_t)(n * width.in) * element;
    const size_t out_bytes = (size_t)(n * width.out) * element;
    const int64_t w_elements = taps * width.in * width.out;
    conv_data d = {.b = b, .cloud = m, .blocks = blocks};
    void *x = NULL, *w = NULL, *g = NULL, *out = NULL, *grad_x = NULL, *grad_w = NULL;
    pass_table right;

    if (!bench_alloc(b, in_bytes, &x) || !bench_alloc(b, out_bytes, &g) ||
        !bench_alloc(b, (size_t)w_elements * element, &w) || !bench_alloc(b, out_bytes, &out) ||
        !bench_alloc(b, in_bytes, &grad_x) ||
        !bench_alloc(b, (size_t)w_elements * sizeof(float), &grad_w))
        goto done;
    d.x = spops_matrix_dense(x, n, width.in, dtype);
    d.g = spops_matrix_dense(g, n, width.out, dtype);
    d.w = spops_matrix_dense(w, taps * width.in, width.out, dtype);
    d.out = spops_matrix_dense(out, n, width.out, dtype);
    d.grad_x = spops_matrix_dense(grad_x, n, width.in, dtype);
    d.grad_w = spops_matrix_dense(grad_w, taps * width.in, width.out, SPOPS_DTYPE_F32);
    d.layer = spops_conv_layer_default();
    d.layer.math = b->options.tf32 ? SPOPS_MATH_TF32 : SPOPS_MATH_EXACT;
    find_served(&d, right);
    if (!check_passes(&d, right)) goto done;
    d.layer.activation = wanted_activation(); // after the sums, which are what is checked
    for (int pass = 0; pass < NUM_PASSES; ++pass)
        measure_pass(&d, &passes[pass], right[pass]);

done:
    bench_free(b, x), bench_free(b, w), bench_free(b, g);
    bench_free(b, out), bench_free(b, grad_x), bench_free(b, grad_w);
}

// ---- Clouds -------------------------------------------------------------------------------------

// Of the layers that are asked for.
static int64_t most_channels(const bench *b)
{
    int64_t cols[BENCH_MAX_COLS], most = 0;
    const int num_cols = bench_cols(b, NULL, 0, cols);

    for (int i = 0; i < num_cols; ++i)
        if (cols[i] > most) most = cols[i];
    return most; // 0: those of `widths', which a plan has by default
}

// A plan for each way; a tile that there is not is refused.
static bool open_plans(bench *b, conv_cloud *m)
{
    for (int way = SPOPS_DATAFLOW_FETCH_ON_DEMAND; way < NUM_WAYS; ++way) {
        const int32_t tile = way < NUM_DATAFLOWS ? 0 : way - NUM_DATAFLOWS;
        spops_sparseconv_options plan = spops_sparseconv_options_default();
        plan.backward = 1;
        plan.max_in_channels = plan.max_out_channels = most_channels(b);
        plan.dataflow = tile > 0 ? SPOPS_DATAFLOW_IMPLICIT_GEMM : (spops_dataflow)way;
        plan.tile = tile;
        if (way >= NUM_DATAFLOWS && !(tile > 0 && bench_wants_tile(b, tile))) continue;
        if (!bench_wants(own.dataflows, spops_dataflow_name(plan.dataflow))) continue;
        const spops_status status = spops_sparseconv_create(b->ctx, m->map, &plan, &m->plans[way]);
        if (tile > 0 && status == SPOPS_STATUS_INVALID_ARGUMENT) continue;
        if (status != SPOPS_STATUS_NOT_SUPPORTED && !bench_check(b, "plan", status)) return false;
    }
    return true;
}

// Of a scene that is loaded.
static bool open_cloud(bench *b, conv_cloud *m)
{
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_kernel_map_options o = spops_kernel_map_options_default();
    void *rows = NULL;
    bool good;

    o.contents = SPOPS_MAP_PAIRS | SPOPS_MAP_ORDER | SPOPS_MAP_REVERSE;
    good = bench_upload(b, m->scene.rows, (size_t)m->scene.num_rows * 4 * sizeof(int32_t), &rows) &&
           bench_check(b, "coords",
                       spops_coords_create(b->ctx, 3, m->scene.num_rows, rows, NULL, &m->coords)) &&
           bench_check(b, "map",
                       spops_kernel_map_create(b->ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, m->coords,
                                               NULL, &o, &m->map));
    bench_free(b, rows);
    m->view = spops_kernel_map_view_default();
    if (!good || !bench_check(b, "map", spops_kernel_map_get_view(b->ctx, m->map, &m->view)))
        return false;
    m->num_pairs = m->view.max_pairs;
    if (!open_plans(b, m)) return false;
    return bench_fetch_i32(b, m->view.out->table, m->scene.num_rows * m->view.table_stride,
                           &m->table) &&
           bench_fetch_i32(b, m->view.tap_offsets, m->view.num_taps + 1, &m->tap_offsets) &&
           bench_fetch_i32(b, m->view.in_rows, m->num_pairs, &m->in_rows) &&
           bench_fetch_i32(b, m->view.out_rows, m->num_pairs, &m->out_rows);
}

static void close_cloud(conv_cloud *m)
{
    for (int way = 0; way < NUM_WAYS; ++way)
        spops_sparseconv_destroy(m->plans[way]);
    spops_kernel_map_destroy(m->map);
    spops_coords_destroy(m->coords);
    free(m->table), free(m->tap_offsets), free(m->in_rows), free(m->out_rows);
    free(m->scene.rows);
}

static void measure_dtype(bench *b, const conv_cloud *m, spops_dtype dtype)
{
    int64_t cols[BENCH_MAX_COLS];
    const int num_cols = bench_cols(b, NULL, 0, cols);
    bench_blocks blocks = {0};

    if (!bench_block_create(dtype, 3, -1.0f, 1.0f, &blocks.values) ||
        !bench_block_create(dtype, 4, -0.125f, 0.125f, &blocks.weights) ||
        !bench_block_create_whole(dtype, 5, WHOLE_LIMIT, &blocks.whole)) {
        bench_fail(b, "out of memory");
    } else if (num_cols > 0) {
        for (int i = 0; i < num_cols; ++i)
            measure_width(b, m, (layer_width){NULL, cols[i], cols[i]}, &blocks);
    } else {
        for (size_t i = 0; i < sizeof widths / sizeof *widths; ++i)
            if (bench_wants(own.layers, widths[i].name)) measure_width(b, m, widths[i], &blocks);
    }
    bench_block_destroy(&blocks.values);
    bench_block_destroy(&blocks.weights);
    bench_block_destroy(&blocks.whole);
}

// All dtypes of a cloud, if its scene is loaded.
static void measure_cloud(bench *b, conv_cloud *m, bool is_loaded, unsigned dtypes)
{
    if (is_loaded && open_cloud(b, m))
        for (int t = SPOPS_DTYPE_F32; t <= SPOPS_DTYPE_BF16; ++t)
            if (bench_wants_dtype(b, dtypes, (spops_dtype)t)) measure_dtype(b, m, (spops_dtype)t);
    close_cloud(m);
}

static void measure_gyroids(bench *b, unsigned dtypes)
{
    char item[64], name[80];
    int64_t cells;
    for (int i = 0; options_item(own.gyroids, i, item); ++i) {
        conv_cloud m = {0};
        if (!options_read_number(item, 8, 1536, &cells)) continue;
        snprintf(name, sizeof name, "gyroid %s", item);
        m.scene.name = name;
        measure_cloud(b, &m, bench_scene_gyroid(b, (int32_t)cells, &m.scene), dtypes);
    }
}

static void run_suite(bench *b)
{
    static const struct {
        const char *name, *file;
        int64_t most_rows;
    } clouds[] = {{"lidar", "conv_lidar.npy", 82329},
                  {"indoor", "conv_indoor.npy", 200000},
                  {"shell", "conv_shell.npy", 252392}};
    const unsigned dtypes = b->options.tf32                    ? 1u << SPOPS_DTYPE_F32
                            : b->backend == SPOPS_BACKEND_CUDA ? 1u << SPOPS_DTYPE_F16
                                                               : 1u << SPOPS_DTYPE_F32;
    for (int t = SPOPS_DTYPE_F32; t <= SPOPS_DTYPE_BF16 && own.ablation; ++t)
        if (bench_wants_dtype(b, dtypes, (spops_dtype)t))
            bench_conv_ablation(b, (spops_dtype)t, own.tuning);
    if (own.ablation) return;
    if (own.gyroids != NULL) {
        measure_gyroids(b, dtypes);
        return;
    }
    for (size_t i = 0; i < sizeof clouds / sizeof *clouds; ++i) {
        conv_cloud m = {0};
        if (!bench_wants(own.clouds, clouds[i].name)) continue;
        m.scene.name = clouds[i].name;
        m.scene.file = clouds[i].file;
        m.scene.most_rows = clouds[i].most_rows;
        measure_cloud(b, &m, bench_scene_load(b, &m.scene), dtypes);
    }
}

const bench_suite bench_suite_conv = {"conv", "forward,grad_x,grad_w,step", options, run_suite};
