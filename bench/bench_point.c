// SPDX-License-Identifier: Apache-2.0
// Point convolution on points of furnished rooms, one a voxel of 0.02 m: finding the triplets, making
// a plan, and layers, forward and both gradients. Beside them PointCNN++'s own kernels, and its
// degraded variant, a sparse convolution of the points' voxels.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/baselines/mvmr_baselines.h"
#include "bench/bench_data.h"
#include "bench/bench_layer.h"
#include "bench/bench_report.h"
#include "bench/bench_scenes.h"

#define NUM_SAMPLES 32 // rows whose values are checked
#define FILE_NAME   "points_200000.npy"
#define VOXEL_M     0.02f

static struct {
    const char *points, *radius, *widths;
} own;
static const bench_option options[] = {
    {"--points", "N", "points, copies of the cloud beside each other (default: those of the file)",
     NULL, .text = &own.points},
    {"--radius", "M", "of the ball, m (default: 0.03722, as large as 27 voxels)", NULL,
     .text = &own.radius},
    {"--widths", "LIST", "64x128,64x64,256x256,512x512 (default: 64x128)",
     "64x128,64x64,256x256,512x512", .text = &own.widths},
    {0}};

typedef struct layer_width {
    const char *name;
    int64_t in, out;
} layer_width;
static const layer_width widths[] = {
    {"64x128", 64, 128}, {"64x64", 64, 64}, {"256x256", 256, 256}, {"512x512", 512, 512}};

// Ways of running a layer.
typedef struct plan_kind {
    const char *name;
    spops_dataflow dataflow;
    spops_pointconv_sums sums;
    int32_t detach;
} plan_kind;
static const plan_kind kinds[] = {
    {"implicit_gemm", SPOPS_DATAFLOW_IMPLICIT_GEMM, SPOPS_POINTCONV_SUMS_FIRST, 0},
    {"detached", SPOPS_DATAFLOW_IMPLICIT_GEMM, SPOPS_POINTCONV_SUMS_FIRST, 1},
    {"no sums first", SPOPS_DATAFLOW_IMPLICIT_GEMM, SPOPS_POINTCONV_SUMS_NONE, 0},
    {"fetch_on_demand", SPOPS_DATAFLOW_FETCH_ON_DEMAND, SPOPS_POINTCONV_SUMS_AUTO, 0}};
enum { NUM_KINDS = (int)(sizeof kinds / sizeof kinds[0]) };

// The cloud with its neighbours, here and where the benchmark runs.
typedef struct point_data {
    bench *b;
    char name[24];
    int64_t n;
    float *points;
    void *points_there;
    spops_point_cloud cloud;
    spops_neighbors *neighbors, *reserved;
    spops_neighbors_view view;
    spops_neighbors_info info;
    spops_pointconv *plans[NUM_KINDS]; // NULL: not had here
    spops_pointconv *refilled;
    const spops_pointconv *plan;
    spops_coords *coords; // of the degraded variant
    int64_t num_voxels;
    spops_kernel_map *map;
    spops_sparseconv *degraded;
    mvmr_atomics atomics[3];                                    // of the passes
    int32_t *offsets, *rows, *tap_offsets, *in_rows, *out_rows; // host
    uint16_t *taps;
    spops_matrix x, w, g, out, grad_x, grad_w;
    const bench_block *values, *weights;
    spops_status status; // of the first call that failed
} point_data;

static void note_status(point_data *d, spops_status status)
{
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

// ---- What is timed ------------------------------------------------------------------------------

static void enqueue_search(void *user)
{
    point_data *d = user;
    note_status(d, spops_neighbors_update(d->b->ctx, d->reserved, NULL, &d->cloud));
}

static void enqueue_plan(void *user)
{
    point_data *d = user;
    note_status(d, spops_pointconv_update(d->b->ctx, d->refilled));
}

static void enqueue_forward(void *user)
{
    point_data *d = user;
    note_status(d, spops_pointconv_execute(d->b->ctx, d->plan, d->x, d->w, NULL, d->out));
}

static void enqueue_grad_x(void *user)
{
    point_data *d = user;
    note_status(d, spops_pointconv_execute_backward(d->b->ctx, d->plan, d->g, d->x, d->w, NULL,
                                                    &d->grad_x, NULL, NULL));
}

static void enqueue_grad_w(void *user)
{
    point_data *d = user;
    note_status(d, spops_pointconv_execute_backward(d->b->ctx, d->plan, d->g, d->x, d->w, NULL,
                                                    NULL, &d->grad_w, NULL));
}

static void enqueue_step(void *user)
{
    enqueue_forward(user);
    enqueue_grad_x(user);
    enqueue_grad_w(user);
}

// As many rows as there are voxels.
static spops_matrix of_voxels(const point_data *d, spops_matrix m)
{
    m.rows = d->num_voxels;
    return m;
}

static void degraded_forward(void *user)
{
    point_data *d = user;
    note_status(d, spops_sparseconv_execute(d->b->ctx, d->degraded, of_voxels(d, d->x), d->w, NULL,
                                            of_voxels(d, d->out)));
}

static void degraded_grad_x(void *user)
{
    point_data *d = user;
    const spops_matrix grad_x = of_voxels(d, d->grad_x);
    note_status(d, spops_sparseconv_execute_backward(d->b->ctx, d->degraded, of_voxels(d, d->g),
                                                     of_voxels(d, d->x), d->w, NULL, &grad_x, NULL,
                                                     NULL));
}

static void degraded_grad_w(void *user)
{
    point_data *d = user;
    note_status(d, spops_sparseconv_execute_backward(d->b->ctx, d->degraded, of_voxels(d, d->g),
                                                     of_voxels(d, d->x), d->w, NULL, NULL,
                                                     &d->grad_w, NULL));
}

static void degraded_step(void *user)
{
    degraded_forward(user);
    degraded_grad_x(user);
    degraded_grad_w(user);
}

static void atomics_forward(void *user)
{
    mvmr_atomics_cuda(&((point_data *)user)->atomics[0]);
}

static void atomics_grad_x(void *user)
{
    mvmr_atomics_cuda(&((point_data *)user)->atomics[1]);
}

static void atomics_grad_w(void *user)
{
    vvor_atomics_cuda(&((point_data *)user)->atomics[2]);
}

static void atomics_step(void *user)
{
    atomics_forward(user);
    atomics_grad_x(user);
    atomics_grad_w(user);
}

typedef struct point_pass {
    const char *name;
    void (*enqueue)(void *user), (*atomics)(void *user), (*degraded)(void *user);
    int products; // of the layer's size
} point_pass;
static const point_pass passes[] = {
    {"forward", enqueue_forward, atomics_forward, degraded_forward, 1},
    {"grad_x", enqueue_grad_x, atomics_grad_x, degraded_grad_x, 1},
    {"grad_w", enqueue_grad_w, atomics_grad_w, degraded_grad_w, 1},
    {"step", enqueue_step, atomics_step, degraded_step, 3}};

// ---- Whether results are right ------------------------------------------------------------------

static const float *weights_of(const point_data *d, int64_t tap, int64_t c)
{
    return bench_block_row(d->weights, tap * d->x.cols + c, d->g.cols);
}

static void sum_forward(const void *user, int64_t row, bench_row_sum *s)
{
    const point_data *d = (const point_data *)user;
    for (int32_t p = d->offsets[row]; p < d->offsets[row + 1]; ++p) {
        const float *x = bench_block_row(d->values, d->rows[p], d->x.cols);
        for (int64_t c = 0; c < d->x.cols; ++c)
            for (int64_t o = 0; o < d->g.cols; ++o)
                bench_add_product(s, o, x[c], weights_of(d, d->taps[p], c)[o]);
        s->terms += d->x.cols;
    }
}

// The neighbours are their own mirror image.
static void sum_grad_x(const void *user, int64_t row, bench_row_sum *s)
{
    const point_data *d = (const point_data *)user;
    for (int32_t p = d->offsets[row]; p < d->offsets[row + 1]; ++p) {
        const float *g = bench_block_row(d->values, d->rows[p], d->g.cols);
        for (int64_t c = 0; c < d->x.cols; ++c)
            for (int64_t o = 0; o < d->g.cols; ++o)
                bench_add_product(s, c, g[o],
                                  weights_of(d, d->view.num_taps - 1 - d->taps[p], c)[o]);
        s->terms += d->g.cols;
    }
}

static void sum_grad_w(const void *user, int64_t row, bench_row_sum *s)
{
    const point_data *d = (const point_data *)user;
    const int64_t k = row / d->x.cols, c = row % d->x.cols;
    for (int32_t p = d->tap_offsets[k]; p < d->tap_offsets[k + 1]; ++p) {
        const float x = bench_block_row(d->values, d->in_rows[p], d->x.cols)[c];
        const float *g = bench_block_row(d->values, d->out_rows[p], d->g.cols);
        for (int64_t o = 0; o < d->g.cols; ++o)
            bench_add_product(s, o, x, g[o]);
        ++s->terms;
    }
}

static bool check_rows(const point_data *d, const char *what, spops_matrix result,
                       void (*sum)(const void *user, int64_t row, bench_row_sum *s))
{
    const double unit = d->x.dtype == SPOPS_DTYPE_F16    ? 0x1p-11
                        : d->x.dtype == SPOPS_DTYPE_BF16 ? 0x1p-8
                                                         : 0.0; // of rows that are added first
    // Fewer of a cloud so large that a row of gradients sums millions.
    const bench_row_check check = {"point", what, d->n > 4000000 ? 1 : NUM_SAMPLES, unit, d, sum};
    return bench_check_rows(d->b, &check, result);
}

// One run of all passes, over poison.
static bool check_plan(point_data *d)
{
    bench *b = d->b;
    d->status = SPOPS_STATUS_OK;
    if (!bench_poison(b, d->out.data, bench_matrix_bytes(d->out)) ||
        !bench_poison(b, d->grad_x.data, bench_matrix_bytes(d->grad_x)) ||
        !bench_poison(b, d->grad_w.data, bench_matrix_bytes(d->grad_w)))
        return false;
    enqueue_step(d);
    if (!device_stream_wait(b->backend, b->stream)) return bench_fail(b, "run: %s", device_error());
    return bench_check(b, "pointconv", d->status) &&
           check_rows(d, "forward", d->out, sum_forward) &&
           check_rows(d, "grad_x", d->grad_x, sum_grad_x) &&
           check_rows(d, "grad_w", d->grad_w, sum_grad_w);
}

// ---- Layers -------------------------------------------------------------------------------------

static void measure_pass(point_data *d, const layer_width *width, const point_pass *pass,
                         const bool *right)
{
    bench *b = d->b;
    bench_case c = {.suite = "point"};

    if (!bench_wants(b->options.passes, pass->name)) return;
    const double flops =
        bench_layer_case(&c, pass->products, d->info.num_pairs, d->x, d->w, d->out);
    snprintf(c.name, sizeof c.name, "%s %s %s", d->name, width->name, pass->name);
    snprintf(c.what, sizeof c.what, "%lld points, %lld triplets, %.2f GFLOP", (long long)d->n,
             (long long)d->info.num_pairs, flops * 1e-9);
    bench_case_note(&c, "neighbors_bytes",
                    (int64_t)spops_plan_bytes((const spops_plan *)d->neighbors));
    for (int k = 0; k < NUM_KINDS; ++k) {
        if (!right[k]) continue;
        d->plan = d->plans[k];
        if (k == 0) {
            bench_case_note(&c, "plan_bytes",
                            (int64_t)spops_plan_bytes((const spops_plan *)d->plan));
            bench_case_note(&c, "scratch_bytes", (int64_t)spops_pointconv_scratch_bytes(d->plan));
        }
        if (kinds[k].detach)
            bench_case_note(&c, "detached_bytes",
                            (int64_t)spops_plan_bytes((const spops_plan *)d->plan));
        if (!bench_case_time(b, &c, kinds[k].name, false, pass->enqueue, d) ||
            !bench_check(b, "pointconv", d->status))
            return;
    }
    if (d->degraded != NULL && (!bench_case_time(b, &c, "degraded", true, pass->degraded, d) ||
                                !bench_check(b, "sparseconv", d->status)))
        return;
    if (b->options.baselines && b->backend == SPOPS_BACKEND_CUDA && width->in < 512 &&
        !bench_case_time(b, &c, "paper", true, pass->atomics, d))
        return;
    for (int i = 0; i < 3; ++i)
        if (d->atomics[i].failed) bench_fail(b, "paper's kernels could not be run");
    bench_case_print(b, &c);
}

// Arguments of the paper's kernels, which write f32. A gradient of x takes the transposed weights;
// for a time any will do.
static void set_atomics(point_data *d, const int32_t *matrices, float *sums)
{
    const mvmr_atomics forward = {.num_triplets = d->info.num_pairs,
                                  .out_rows = d->view.out_rows,
                                  .in_rows = d->view.in_rows,
                                  .matrices = matrices,
                                  .dtype = d->x.dtype,
                                  .x_cols = d->x.cols,
                                  .out_cols = d->g.cols,
                                  .x = d->x.data,
                                  .w = d->w.data,
                                  .g = d->g.data,
                                  .out = sums,
                                  .out_bytes = d->n * d->g.cols * 4,
                                  .stream = d->b->stream};
    d->atomics[0] = d->atomics[1] = d->atomics[2] = forward;
    d->atomics[1].out_rows = d->view.in_rows;
    d->atomics[1].in_rows = d->view.out_rows;
    d->atomics[1].x_cols = d->g.cols;
    d->atomics[1].out_cols = d->x.cols;
    d->atomics[1].x = d->g.data;
    d->atomics[1].out_bytes = d->n * d->x.cols * 4;
    d->atomics[2].out_bytes = (int64_t)d->view.num_taps * d->x.cols * d->g.cols * 4;
}

static void measure_width(point_data *d, spops_dtype dtype, const layer_width *width,
                          const int32_t *matrices)
{
    bench *b = d->b;
    const int64_t n = d->n, taps = d->view.num_taps;
    const size_t element = spops_dtype_bytes(dtype);
    const int64_t w_elements = taps * width->in * width->out;
    const int64_t most = width->in > width->out ? width->in : width->out;
    void *x = NULL, *w = NULL, *g = NULL, *out = NULL, *grad_x = NULL, *grad_w = NULL, *sums = NULL;
    bool right[NUM_KINDS] = {false};

    if (!bench_alloc(b, (size_t)(n * width->in) * element, &x) ||
        !bench_alloc(b, (size_t)(n * width->out) * element, &g) ||
        !bench_alloc(b, (size_t)w_elements * element, &w) ||
        !bench_alloc(b, (size_t)(n * width->out) * element, &out) ||
        !bench_alloc(b, (size_t)(n * width->in) * element, &grad_x) ||
        !bench_alloc(b, (size_t)w_elements * sizeof(float), &grad_w) ||
        (b->options.baselines && !bench_alloc(b, (size_t)(n * most) * sizeof(float), &sums)))
        goto done;
    if (!bench_block_upload(d->values, b->backend, x, n * width->in) ||
        !bench_block_upload(d->values, b->backend, g, n * width->out) ||
        !bench_block_upload(d->weights, b->backend, w, w_elements)) {
        bench_fail(b, "upload: %s", device_error());
        goto done;
    }
    d->x = spops_matrix_dense(x, n, width->in, dtype);
    d->g = spops_matrix_dense(g, n, width->out, dtype);
    d->w = spops_matrix_dense(w, taps * width->in, width->out, dtype);
    d->out = spops_matrix_dense(out, n, width->out, dtype);
    d->grad_x = spops_matrix_dense(grad_x, n, width->in, dtype);
    d->grad_w = spops_matrix_dense(grad_w, taps * width->in, width->out, SPOPS_DTYPE_F32);
    set_atomics(d, matrices, (float *)sums);
    for (int k = 0; k < NUM_KINDS; ++k) {
        spops_conv_choice choice;
        bool serves = d->plans[k] != NULL;
        for (int pass = SPOPS_PASS_FORWARD; pass <= SPOPS_PASS_GRAD_W && serves; ++pass)
            serves = spops_pointconv_get_choice(d->b->ctx, d->plans[k], (spops_conv_pass)pass,
                                                dtype, width->in, width->out, NULL,
                                                &choice) == SPOPS_STATUS_OK &&
                     choice.dataflow == kinds[k].dataflow;
        if (!serves) continue;
        bench_progress("point %s, %s: checking %s", width->name, spops_dtype_name(dtype),
                       kinds[k].name);
        d->plan = d->plans[k];
        if (!check_plan(d)) goto done;
        right[k] = true;
    }
    for (size_t p = 0; p < sizeof passes / sizeof *passes; ++p)
        measure_pass(d, width, &passes[p], right);

done:
    bench_free(b, x), bench_free(b, w), bench_free(b, g);
    bench_free(b, out), bench_free(b, grad_x), bench_free(b, grad_w), bench_free(b, sums);
}

// ---- The cloud ----------------------------------------------------------------------------------

// Three walls of a room of as many points as wanted, one a voxel, where there is no file.
static bool make_points(bench *b, point_data *d, int64_t n)
{
    const int64_t side = (int64_t)ceil(sqrt((double)n / 3.0));
    d->points = bench_host(b, n * 3, sizeof *d->points);
    if (d->points == NULL) return false;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t wall = i % 3, place = i / 3;
        for (int axis = 0; axis < 3; ++axis) {
            const int64_t cell = axis == wall             ? 0
                                 : axis == (wall + 1) % 3 ? 1 + place / side
                                                          : 1 + place % side;
            d->points[3 * i + axis] =
                VOXEL_M * ((float)cell + bench_uniform(31, (uint64_t)(3 * i + axis), 0.0f, 1.0f));
        }
    }
    d->n = n;
    return true;
}

static bool load_points(bench *b, point_data *d)
{
    int64_t wanted = own.points == NULL ? 0 : strtoll(own.points, NULL, 10), n = 0, cols = 0;
    float extent = 0.0f, *file = bench_load_npy(b, FILE_NAME, "<f4", &n, &cols);

    if (b->options.quick && wanted == 0) wanted = BENCH_QUICK_ROWS;
    if (file == NULL) {
        if (!make_points(b, d, wanted > 0 ? wanted : 200000)) return false;
    } else {
        if (wanted <= 0) wanted = n;
        d->n = wanted;
        d->points = bench_host(b, wanted * 3, sizeof *d->points);
        for (int64_t i = 0; i < n; ++i)
            if (file[cols * i] > extent) extent = file[cols * i];
        extent = VOXEL_M * ceilf(extent / VOXEL_M + 4.0f);
        for (int64_t i = 0; i < wanted && d->points != NULL; ++i) {
            memcpy(d->points + 3 * i, file + cols * (i % n), 3 * sizeof *file);
            d->points[3 * i] += extent * (float)(i / n);
        }
        free(file);
        if (d->points == NULL) return false;
    }
    snprintf(d->name, sizeof d->name, "%lld", (long long)d->n);
    return bench_upload(b, d->points, (size_t)d->n * 12, &d->points_there);
}

// The paper's degraded variant: points at the centres of their voxels, in rows of their own.
static bool open_degraded(bench *b, point_data *d)
{
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_kernel_map_options o = spops_kernel_map_options_default();
    spops_sparseconv_options plan = spops_sparseconv_options_default();
    spops_coords_options given = spops_coords_options_default();
    int32_t *rows = bench_host(b, d->n * 4, sizeof *rows);
    void *there = NULL;
    bool good = rows != NULL;

    for (int64_t i = 0; i < 4 * d->n && good; ++i)
        rows[i] = i % 4 == 0
                      ? 0
                      : (int32_t)floor((double)d->points[i / 4 * 3 + i % 4 - 1] / (double)VOXEL_M);
    given.duplicates = SPOPS_COORDS_DUPLICATES_MERGE;
    o.contents = SPOPS_MAP_PAIRS | SPOPS_MAP_ORDER | SPOPS_MAP_REVERSE;
    plan.backward = 1;
    plan.max_in_channels = plan.max_out_channels = 512;
    spops_coords_view view = spops_coords_view_default();
    good =
        good && bench_upload(b, rows, (size_t)d->n * 16, &there) &&
        bench_check(b, "coords", spops_coords_create(b->ctx, 3, d->n, there, &given, &d->coords)) &&
        bench_check(b, "coords", spops_coords_get_view(b->ctx, d->coords, &view));
    bench_free(b, there);
    free(rows);
    d->num_voxels = view.max_rows; // rounding may put two points into one
    return good &&
           bench_check(b, "map",
                       spops_kernel_map_create(b->ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, d->coords,
                                               NULL, &o, &d->map)) &&
           bench_check(b, "plan", spops_sparseconv_create(b->ctx, d->map, &plan, &d->degraded));
}

static spops_neighbors_options search_options(void)
{
    spops_neighbors_options o = spops_neighbors_options_default();
    o.radius_m = own.radius == NULL ? VOXEL_M * 1.861f : strtof(own.radius, NULL);
    o.taps = 3;
    o.tap_size_m = VOXEL_M;
    o.contents = SPOPS_NEIGHBORS_BY_TAP;
    return o;
}

static bool wants_width(size_t i)
{
    return own.widths == NULL ? i == 0 : bench_wants(own.widths, widths[i].name);
}

static bool open_cloud(bench *b, point_data *d)
{
    const spops_neighbors_options o = search_options();
    spops_pointconv_options plan = spops_pointconv_options_default();

    if (!load_points(b, d)) return false;
    d->cloud.points = spops_matrix_dense(d->points_there, d->n, 3, SPOPS_DTYPE_F32);
    d->view = spops_neighbors_view_default();
    d->info = spops_neighbors_info_default();
    if (!bench_check(b, "neighbours",
                     spops_neighbors_create(b->ctx, NULL, &d->cloud, &o, &d->neighbors)) ||
        !bench_check(b, "view", spops_neighbors_get_view(b->ctx, d->neighbors, &d->view)) ||
        !bench_check(b, "info", spops_neighbors_get_info_sync(b->ctx, d->neighbors, &d->info)))
        return false;
    plan.backward = 1;
    plan.max_in_channels = plan.max_out_channels = 1; // as many as are asked for, for their scratch
    for (size_t i = 0; i < sizeof widths / sizeof *widths; ++i) {
        if (!wants_width(i)) continue;
        if (widths[i].in > plan.max_in_channels) plan.max_in_channels = widths[i].in;
        if (widths[i].out > plan.max_out_channels) plan.max_out_channels = widths[i].out;
    }
    for (int k = 0; k < NUM_KINDS; ++k) {
        plan.dataflow = kinds[k].dataflow;
        plan.sums = kinds[k].sums;
        plan.detach = kinds[k].detach;
        if (k > 1 && !b->options.baselines && d->plans[0] != NULL)
            break; // those of this library's choice
        const spops_status status =
            spops_pointconv_create(b->ctx, d->neighbors, &plan, &d->plans[k]);
        if (status != SPOPS_STATUS_NOT_SUPPORTED && !bench_check(b, "plan", status)) return false;
    }
    return bench_fetch_i32(b, d->view.out->offsets, d->n + 1, &d->offsets) &&
           bench_fetch_i32(b, d->view.out->rows, d->info.num_pairs, &d->rows) &&
           (d->taps = bench_host(b, d->info.num_pairs, sizeof *d->taps)) != NULL &&
           bench_download(b, d->taps, d->view.out->taps,
                          (size_t)d->info.num_pairs * sizeof *d->taps) &&
           bench_fetch_i32(b, d->view.tap_offsets, d->view.num_taps + 1, &d->tap_offsets) &&
           bench_fetch_i32(b, d->view.in_rows, d->info.num_pairs, &d->in_rows) &&
           bench_fetch_i32(b, d->view.out_rows, d->info.num_pairs, &d->out_rows) &&
           (!b->options.baselines || open_degraded(b, d));
}

static void close_cloud(point_data *d)
{
    for (int k = 0; k < NUM_KINDS; ++k)
        spops_pointconv_destroy(d->plans[k]);
    spops_pointconv_destroy(d->refilled);
    spops_neighbors_destroy(d->neighbors);
    spops_neighbors_destroy(d->reserved);
    spops_sparseconv_destroy(d->degraded);
    spops_kernel_map_destroy(d->map);
    spops_coords_destroy(d->coords);
    bench_free(d->b, d->points_there);
    free(d->points), free(d->offsets), free(d->rows), free(d->taps);
    free(d->tap_offsets), free(d->in_rows), free(d->out_rows);
}

// Triplets from points, with and without their order by tap; and the plan from these.
static void measure_search(bench *b, point_data *d)
{
    static const char *const names[] = {"lists", "triplets"};
    const spops_neighbors_capacity shape = {0, d->n, 1, d->info.num_pairs};
    spops_neighbors_options o = search_options();
    spops_pointconv_options plan = spops_pointconv_options_default();

    for (int by_tap = 0; by_tap < 2; ++by_tap) {
        bench_case c = {.suite = "point"};
        if (!bench_wants(b->options.passes, names[by_tap])) continue;
        o.contents = by_tap ? SPOPS_NEIGHBORS_BY_TAP : 0;
        spops_neighbors_destroy(d->reserved);
        d->reserved = NULL;
        if (!bench_check(b, "reserve",
                         spops_neighbors_reserve(b->ctx, &shape, 1, &o, &d->reserved)))
            return;
        snprintf(c.name, sizeof c.name, "%s %s", d->name, names[by_tap]);
        snprintf(c.what, sizeof c.what, "%lld points, %lld triplets", (long long)d->n,
                 (long long)d->info.num_pairs);
        d->status = SPOPS_STATUS_OK;
        if (!bench_case_time(b, &c, "cells", false, enqueue_search, d) ||
            !bench_check(b, "search", d->status))
            return;
        bench_case_print(b, &c);
    }
    if (!bench_wants(b->options.passes, "plan") || d->plans[0] == NULL || d->reserved == NULL)
        return;
    bench_case c = {.suite = "point"};
    plan.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    if (!bench_check(b, "plan", spops_pointconv_create(b->ctx, d->reserved, &plan, &d->refilled)))
        return;
    snprintf(c.name, sizeof c.name, "%s plan", d->name);
    snprintf(c.what, sizeof c.what, "%lld points", (long long)d->n);
    if (bench_case_time(b, &c, "implicit_gemm", false, enqueue_plan, d) &&
        bench_check(b, "plan", d->status))
        bench_case_print(b, &c);
}

static void measure_dtype(bench *b, point_data *d, spops_dtype dtype)
{
    const int64_t num_matrices = b->options.baselines ? d->info.num_pairs : 0; // of the paper's
    int32_t *matrices = bench_host(b, num_matrices, sizeof *matrices);
    bench_block values = {0}, weights = {0};
    void *there = NULL;

    for (int32_t k = 0; k < d->view.num_taps && num_matrices > 0 && matrices != NULL; ++k)
        for (int32_t p = d->tap_offsets[k]; p < d->tap_offsets[k + 1]; ++p)
            matrices[p] = k;
    if (!bench_block_create(dtype, 3, -1.0f, 1.0f, &values) ||
        !bench_block_create(dtype, 4, -0.125f, 0.125f, &weights)) {
        bench_fail(b, "out of memory");
    } else if (matrices != NULL && bench_upload(b, matrices, (size_t)num_matrices * 4, &there)) {
        d->values = &values;
        d->weights = &weights;
        for (size_t i = 0; i < sizeof widths / sizeof *widths; ++i)
            if (wants_width(i)) measure_width(d, dtype, &widths[i], there);
    }
    bench_free(b, there);
    free(matrices);
    bench_block_destroy(&values);
    bench_block_destroy(&weights);
}

static void run_suite(bench *b)
{
    const unsigned dtypes =
        b->backend == SPOPS_BACKEND_CUDA ? 1u << SPOPS_DTYPE_F16 : 1u << SPOPS_DTYPE_F32;
    point_data d = {.b = b};
    if (open_cloud(b, &d)) {
        measure_search(b, &d);
        for (int t = SPOPS_DTYPE_F32; t <= SPOPS_DTYPE_BF16; ++t)
            if (bench_wants_dtype(b, dtypes, (spops_dtype)t)) measure_dtype(b, &d, (spops_dtype)t);
    }
    close_cloud(&d);
}

const bench_suite bench_suite_point = {"point", "lists,triplets,plan,forward,grad_x,grad_w,step",
                                       options, run_suite};
