// SPDX-License-Identifier: Apache-2.0
// Rows times matrices over triplets: rows times the matrix of their group, the relation of a
// convolution, and rows times one matrix (a linear layer); forward, and the gradients of rows and of matrices. Beside it one dense product of
// the same size, a dense product for each group, and the atomic kernels of PointCNN++.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/baselines/blas.h"
#include "bench/baselines/mvmr_baselines.h"
#include "bench/bench_data.h"
#include "bench/bench_report.h"

#define NUM_ROWS     200000
#define QUICK_FACTOR 16
#define NUM_TAPS     27
#define NUM_SAMPLES  48 // rows or elements whose values are checked

static struct {
    const char *relations;
    int64_t tile;
} own;
static const bench_option options[] = {
    {"--relations", "LIST", "groups27,groups1000,convolution,linear (default: all)",
     "groups27,groups1000,convolution,linear", .text = &own.relations},
    {"--tile", "N", "tile of the plans (default 0: as the tuning table has it)",
     .number = &own.tile, .least = 0, .most = INT32_MAX},
    {0}};

// A relation; its arrays on the host, sorted by output row, and on the device sorted by matrix.
typedef struct mvmr_relation {
    const char *name;
    spops_triplets_shape shape;
    int32_t *out_rows, *in_rows, *matrices;
    int32_t *offsets; // of groups, host; NULL: none
    void *by_matrix[3];
    spops_triplets *plan;
} mvmr_relation;

typedef struct mvmr_data {
    bench *b;
    const mvmr_relation *r;
    spops_dtype dtype;
    int64_t cols;
    const bench_block *values; // of x and g
    const bench_block *weights;
    spops_matrix x, w, g, out, grad_x, grad_w;
    void *dense; // [num_triplets][cols], for the product of the same size
    blas *blas;
    mvmr_atomics atomics;
    spops_status status; // of the first call that failed
} mvmr_data;

static void note_status(mvmr_data *d, spops_status status)
{
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

static spops_mvmr_options mvmr_options(const mvmr_data *d, bool reversed)
{
    spops_mvmr_options o = spops_mvmr_options_default();
    o.reversed = o.transposed = reversed;
    o.math = d->b->options.tf32 ? SPOPS_MATH_TF32 : SPOPS_MATH_EXACT;
    return o;
}

static bool is_linear(const mvmr_data *d)
{
    return d->r->plan == NULL;
}

static spops_conv_layer linear_layer(const mvmr_data *d)
{
    spops_conv_layer layer = spops_conv_layer_default();
    layer.math = d->b->options.tf32 ? SPOPS_MATH_TF32 : SPOPS_MATH_EXACT;
    return layer;
}

// ---- What is timed ------------------------------------------------------------------------------

static void enqueue_forward(void *user)
{
    mvmr_data *d = user;
    const spops_mvmr_options o = mvmr_options(d, false);
    const spops_conv_layer layer = linear_layer(d);
    if (is_linear(d))
        note_status(d, spops_linear_execute(d->b->ctx, d->x, d->w, &layer, d->out));
    else
        note_status(d, spops_mvmr_execute(d->b->ctx, d->r->plan, d->x, d->w, NULL, &o, d->out));
}

static void enqueue_rows(void *user)
{
    mvmr_data *d = user;
    const spops_mvmr_options o = mvmr_options(d, true);
    const spops_conv_layer layer = linear_layer(d);
    if (is_linear(d))
        note_status(d, spops_linear_execute_backward(d->b->ctx, d->g, d->x, d->w, &layer,
                                                     &d->grad_x, NULL, NULL));
    else
        note_status(d, spops_mvmr_execute(d->b->ctx, d->r->plan, d->g, d->w, NULL, &o, d->grad_x));
}

static void enqueue_matrices(void *user)
{
    mvmr_data *d = user;
    const spops_mvmr_options o = mvmr_options(d, false);
    const spops_conv_layer layer = linear_layer(d);
    if (is_linear(d))
        note_status(d, spops_linear_execute_backward(d->b->ctx, d->g, d->x, d->w, &layer, NULL,
                                                     &d->grad_w, NULL));
    else
        note_status(d, spops_vvor_execute(d->b->ctx, d->r->plan, d->x, d->g, NULL, &o, d->grad_w));
}

// One product of as many rows as there are triplets.
static void enqueue_dense(void *user)
{
    mvmr_data *d = user;
    char *dense = d->dense;
    const size_t bytes = (size_t)(d->r->shape.num_triplets * d->cols) * spops_dtype_bytes(d->dtype);
    blas_multiply(d->blas, d->dtype, d->b->options.tf32, d->r->shape.num_triplets, d->cols, d->cols,
                  dense, d->w.data, dense + bytes);
}

// A product for each group that has rows.
static void enqueue_groups(void *user)
{
    mvmr_data *d = user;
    const int32_t *offsets = d->r->offsets;
    const int64_t row_bytes = d->cols * (int64_t)spops_dtype_bytes(d->dtype);
    for (int64_t k = 0; k < d->r->shape.num_matrices; ++k)
        blas_multiply(d->blas, d->dtype, d->b->options.tf32, offsets[k + 1] - offsets[k], d->cols,
                      d->cols, (const char *)d->x.data + offsets[k] * row_bytes,
                      (const char *)d->w.data + k * d->cols * row_bytes,
                      (char *)d->out.data + offsets[k] * row_bytes);
}

static void enqueue_atomics(void *user)
{
    mvmr_data *d = user;
    mvmr_atomics_cuda(&d->atomics);
}

static void enqueue_outer_atomics(void *user)
{
    mvmr_data *d = user;
    vvor_atomics_cuda(&d->atomics);
}

// ---- Whether results are right ------------------------------------------------------------------

// Sums that are sampled, in f64. A sample is a row of the result, or a row of a gradient of
// matrices.
typedef struct sampled {
    int64_t rows[NUM_SAMPLES];
    int64_t counts[NUM_SAMPLES];
    double sums[NUM_SAMPLES][BENCH_MAX_WIDTH], magnitudes[NUM_SAMPLES][BENCH_MAX_WIDTH];
} sampled;

static void add_sample(sampled *s, int i, int64_t c, double part)
{
    s->sums[i][c] += part;
    s->magnitudes[i][c] += fabs(part);
}

// What triplet t gives to sample i of a pass.
static void add_triplet(const mvmr_data *d, const char *pass, int64_t t, sampled *s, int i)
{
    const int64_t cols = d->cols, k = d->r->matrices[t];
    const float *x = bench_block_row(d->values, d->r->in_rows[t], cols);
    const float *g = bench_block_row(d->values, d->r->out_rows[t], cols);
    const bool forward = strcmp(pass, "forward") == 0, rows = strcmp(pass, "rows") == 0;
    for (int64_t c = 0; c < cols; ++c) {
        if (!forward && !rows) { // row c of a matrix
            add_sample(s, i, c, (double)x[s->rows[i] % cols] * (double)g[c]);
            continue;
        }
        const float *w = bench_block_row(d->weights, k * cols + c, cols);
        for (int64_t o = 0; o < cols; ++o)
            add_sample(s, i, forward ? o : c, (double)w[o] * (double)(forward ? x[c] : g[o]));
    }
    s->counts[i] += forward || rows ? cols : 1;
}

static bool check_pass(const mvmr_data *d, const char *pass, spops_matrix result)
{
    const int64_t cols = d->cols;
    const bool forward = strcmp(pass, "forward") == 0, rows = strcmp(pass, "rows") == 0;
    const size_t row_bytes = (size_t)cols * spops_dtype_bytes(result.dtype);
    sampled *s = bench_host(d->b, 1, sizeof *s);
    unsigned char row[BENCH_MAX_WIDTH * 4];
    bool right = s != NULL;

    if (!right) return false;
    for (int i = 0; i < NUM_SAMPLES; ++i)
        s->rows[i] = (int64_t)(bench_random(21, (uint64_t)i) % (uint64_t)result.rows);
    for (int64_t t = 0; t < d->r->shape.num_triplets; ++t) {
        const int64_t to = forward ? d->r->out_rows[t] : rows ? d->r->in_rows[t] : -1;
        for (int i = 0; i < NUM_SAMPLES; ++i)
            if (to == s->rows[i] || (to < 0 && d->r->matrices[t] == s->rows[i] / cols))
                add_triplet(d, pass, t, s, i);
    }
    for (int i = 0; i < NUM_SAMPLES && right; ++i) {
        if (!bench_download(d->b, row, (const char *)result.data + (size_t)s->rows[i] * row_bytes,
                            row_bytes)) {
            right = false;
            break;
        }
        for (int64_t c = 0; c < cols && right; ++c) {
            const double value = bench_get(row, result.dtype, c);
            // Matrix units cut off instead of rounding, which doubles the unit; tf32 rounds factors.
            const double bound = 2.0 * bench_sum_bound(result.dtype, s->counts[i],
                                                       s->magnitudes[i][c], s->sums[i][c]) +
                                 (d->b->options.tf32 ? 0x1.01p-10 * s->magnitudes[i][c] : 0.0);
            if (!(fabs(value - s->sums[i][c]) <= bound))
                right = bench_fail(d->b, "mvmr %s, %s: element [%lld, %lld] is %g, expected %g",
                                   d->r->name, pass, (long long)s->rows[i], (long long)c, value,
                                   s->sums[i][c]);
        }
    }
    free(s);
    return right;
}

// ---- Cases --------------------------------------------------------------------------------------

static size_t matrix_bytes(spops_matrix m)
{
    return (size_t)m.rows * (size_t)m.cols * spops_dtype_bytes(m.dtype);
}

static bool time_baseline(mvmr_data *d, bench_case *c, const char *name,
                          void (*enqueue)(void *user))
{
    if (!bench_case_time(d->b, c, name, true, enqueue, d)) return false;
    if (d->blas != NULL && blas_failed(d->blas)) return bench_fail(d->b, "%s failed", name);
    if (d->atomics.failed) return bench_fail(d->b, "%s failed", name);
    return true;
}

static void time_baselines(mvmr_data *d, bench_case *c, const char *pass)
{
    const bool forward = strcmp(pass, "forward") == 0;
    const bool cuda = d->b->backend == SPOPS_BACKEND_CUDA;
    if (!d->b->options.baselines) return;
    if (d->blas != NULL && !time_baseline(d, c, "one dense product", enqueue_dense)) return;
    if (d->blas != NULL && forward && d->r->offsets != NULL &&
        !time_baseline(d, c, "product a group", enqueue_groups))
        return;
    if (is_linear(d)) return;
    if (cuda && forward && time_baseline(d, c, "atomics (PointCNN++)", enqueue_atomics)) return;
    if (cuda && strcmp(pass, "matrices") == 0)
        (void)time_baseline(d, c, "atomics (PointCNN++)", enqueue_outer_atomics);
}

static void measure_pass(mvmr_data *d, const char *pass, spops_matrix result,
                         void (*enqueue)(void *user))
{
    bench *b = d->b;
    const spops_triplets_shape *shape = &d->r->shape;
    const double flops = 2.0 * (double)shape->num_triplets * (double)(d->cols * d->cols);
    bench_case c = {.suite = "mvmr"};

    if (!bench_wants(b->options.passes, pass)) return;
    snprintf(c.name, sizeof c.name, "%s %s", d->r->name, pass);
    snprintf(c.what, sizeof c.what, "%lld triplets, %lld matrices, %.2f GFLOP%s",
             (long long)shape->num_triplets, (long long)shape->num_matrices, flops * 1e-9,
             d->b->options.tf32 ? ", tf32" : "");
    c.dtype = d->dtype;
    c.cols = d->cols;
    c.bytes = (is_linear(d) ? 0 : 16 * shape->num_triplets) +
              (int64_t)(matrix_bytes(d->x) + matrix_bytes(d->w) + matrix_bytes(d->out));
    c.gather_bytes = shape->num_triplets * d->cols * (int64_t)spops_dtype_bytes(d->dtype);
    bench_case_note(&c, "flops", (int64_t)flops);
    bench_progress("mvmr %s %s, %s, %lld columns: checking", d->r->name, pass,
                   spops_dtype_name(c.dtype), (long long)c.cols);
    d->status = SPOPS_STATUS_OK;
    if (!bench_poison(b, result.data, matrix_bytes(result))) return;
    enqueue(d);
    if (!device_stream_wait(b->backend, b->stream)) {
        bench_fail(b, "run: %s", device_error());
        return;
    }
    if (!bench_check(b, pass, d->status) || !check_pass(d, pass, result) ||
        !bench_case_time(b, &c, "spops", false, enqueue, d) || !bench_check(b, pass, d->status))
        return;
    time_baselines(d, &c, pass);
    bench_case_print(b, &c);
}

static void measure_cols(bench *b, const mvmr_relation *r, spops_dtype dtype, int64_t cols,
                         const bench_block *values, const bench_block *weights)
{
    const spops_triplets_shape *s = &r->shape;
    const size_t element = spops_dtype_bytes(dtype);
    const size_t row = (size_t)cols * element;
    mvmr_data d = {.b = b, .r = r, .dtype = dtype, .cols = cols};
    char error[160];
    void *x = NULL, *w = NULL, *g = NULL, *out = NULL, *grad_x = NULL, *grad_w = NULL;

    d.values = values;
    d.weights = weights;
    if (!bench_alloc(b, (size_t)s->num_in * row, &x) ||
        !bench_alloc(b, (size_t)s->num_out * row, &g) ||
        !bench_alloc(b, (size_t)(s->num_matrices * cols) * row, &w) ||
        !bench_alloc(b, (size_t)(s->num_out * cols) * sizeof(float), &out) ||
        !bench_alloc(b, (size_t)s->num_in * row, &grad_x) ||
        !bench_alloc(b, (size_t)(s->num_matrices * cols * cols) * sizeof(float), &grad_w))
        goto done;
    if (!bench_block_upload(values, b->backend, x, s->num_in * cols) ||
        !bench_block_upload(values, b->backend, g, s->num_out * cols) ||
        !bench_block_upload(weights, b->backend, w, s->num_matrices * cols * cols)) {
        bench_fail(b, "upload: %s", device_error());
        goto done;
    }
    if (b->options.baselines) {
        const bool has_dtype = dtype == SPOPS_DTYPE_F32 || b->backend == SPOPS_BACKEND_CUDA;
        if (has_dtype && !blas_create(b->backend, b->stream, b->device.num_processors, &d.blas,
                                      error, sizeof error))
            fprintf(stderr, "no dense product to compare with: %s\n", error);
        if (d.blas != NULL && !bench_alloc(b, 2 * (size_t)s->num_triplets * row, &d.dense))
            goto done;
    }
    d.x = spops_matrix_dense(x, s->num_in, cols, dtype);
    d.g = spops_matrix_dense(g, s->num_out, cols, dtype);
    d.w = spops_matrix_dense(w, s->num_matrices * cols, cols, dtype);
    d.out = spops_matrix_dense(out, s->num_out, cols, dtype);
    d.grad_x = spops_matrix_dense(grad_x, s->num_in, cols, dtype);
    d.grad_w = spops_matrix_dense(grad_w, s->num_matrices * cols, cols, SPOPS_DTYPE_F32);
    d.atomics = (mvmr_atomics){.num_triplets = s->num_triplets,
                               .out_rows = r->by_matrix[0],
                               .in_rows = r->by_matrix[1],
                               .matrices = r->by_matrix[2],
                               .dtype = dtype,
                               .x_cols = cols,
                               .out_cols = cols,
                               .x = x,
                               .w = w,
                               .g = g,
                               .out = out,
                               .out_bytes = s->num_out * cols * (int64_t)sizeof(float),
                               .stream = b->stream};
    measure_pass(&d, "forward", d.out, enqueue_forward);
    measure_pass(&d, "rows", d.grad_x, enqueue_rows);
    d.atomics.out = grad_w;
    d.atomics.out_bytes = s->num_matrices * cols * cols * (int64_t)sizeof(float);
    measure_pass(&d, "matrices", d.grad_w, enqueue_matrices);

done:
    blas_destroy(d.blas);
    bench_free(b, d.dense);
    bench_free(b, x), bench_free(b, w), bench_free(b, g);
    bench_free(b, out), bench_free(b, grad_x), bench_free(b, grad_w);
}

// ---- Relations ----------------------------------------------------------------------------------

static bool alloc_relation(bench *b, int64_t num_triplets, mvmr_relation *r)
{
    r->out_rows = bench_host(b, num_triplets, sizeof(int32_t));
    r->in_rows = bench_host(b, num_triplets, sizeof(int32_t));
    r->matrices = bench_host(b, num_triplets, sizeof(int32_t));
    return r->out_rows != NULL && r->in_rows != NULL && r->matrices != NULL;
}

// The triplets sorted by matrix, stably, where the benchmark runs: what the atomic kernels take.
static bool upload_by_matrix(bench *b, mvmr_relation *r)
{
    const int64_t n = r->shape.num_triplets;
    const int32_t *from[3] = {r->out_rows, r->in_rows, r->matrices};
    int32_t *begin = bench_host(b, r->shape.num_matrices + 1, sizeof *begin);
    int32_t *place = bench_host(b, n, sizeof *place), *sorted = bench_host(b, n, sizeof *sorted);
    bool good = begin != NULL && place != NULL && sorted != NULL;

    for (int64_t t = 0; t < n && good; ++t)
        ++begin[r->matrices[t] + 1];
    for (int64_t k = 0; k < r->shape.num_matrices && good; ++k)
        begin[k + 1] += begin[k];
    for (int64_t t = 0; t < n && good; ++t)
        place[t] = begin[r->matrices[t]]++;
    for (int i = 0; i < 3 && good; ++i) {
        for (int64_t t = 0; t < n; ++t)
            sorted[place[t]] = from[i][t];
        good = bench_upload(b, sorted, (size_t)n * sizeof *sorted, &r->by_matrix[i]);
    }
    free(begin), free(place), free(sorted);
    return good;
}

static void free_relation(bench *b, mvmr_relation *r)
{
    spops_triplets_destroy(r->plan);
    for (int i = 0; i < 3; ++i)
        bench_free(b, r->by_matrix[i]);
    free(r->out_rows), free(r->in_rows), free(r->matrices), free(r->offsets);
}

// Rows times the matrix of their group; `shape` as bench_fill_offsets has it.
static bool make_groups(bench *b, const char *name, int64_t num_rows, int64_t num_groups,
                        const char *shape, const spops_triplets_options *o, mvmr_relation *r)
{
    void *offsets = NULL;
    bool good;

    r->name = name;
    r->shape = (spops_triplets_shape){num_rows, num_rows, num_groups, num_rows};
    r->offsets = bench_host(b, num_groups + 1, sizeof *r->offsets);
    if (r->offsets == NULL || !alloc_relation(b, num_rows, r)) return false;
    if (!bench_fill_offsets(shape, num_groups, num_rows, 5, r->offsets))
        return bench_fail(b, "no shape %s", shape);
    for (int64_t k = 0; k < num_groups; ++k)
        for (int32_t t = r->offsets[k]; t < r->offsets[k + 1]; ++t)
            r->out_rows[t] = r->in_rows[t] = t, r->matrices[t] = (int32_t)k;
    good =
        bench_upload(b, r->offsets, (size_t)(num_groups + 1) * sizeof(int32_t), &offsets) &&
        bench_check(b, name,
                    spops_triplets_create_from_offsets(b->ctx, num_groups, offsets, o, &r->plan));
    bench_free(b, offsets);
    return good && upload_by_matrix(b, r);
}

// Rows times one matrix: linear layers, which have no plan.
static bool make_rows(bench *b, int64_t num_rows, int64_t widest, mvmr_relation *r)
{
    r->name = "linear";
    r->shape = (spops_triplets_shape){num_rows, num_rows, 1, num_rows};
    if (!alloc_relation(b, num_rows, r)) return false;
    for (int64_t i = 0; i < num_rows; ++i)
        r->out_rows[i] = r->in_rows[i] = (int32_t)i; // the matrix is 0
    return bench_check(b, r->name, spops_linear_reserve(b->ctx, num_rows, widest, widest, 1));
}

// As of a submanifold convolution on a surface: half of the taps of an output are there, and join
// it to rows near it.
static bool make_convolution(bench *b, int64_t num_rows, const spops_triplets_options *o,
                             mvmr_relation *r)
{
    void *arrays[3] = {NULL, NULL, NULL};
    int32_t *from[3];
    int64_t n = 0;
    bool good = true;

    r->name = "convolution";
    if (!alloc_relation(b, num_rows * NUM_TAPS, r)) return false;
    for (int64_t i = 0; i < num_rows; ++i)
        for (int64_t k = 0; k < NUM_TAPS; ++k) {
            const uint64_t draw = bench_random(7, (uint64_t)(i * NUM_TAPS + k));
            const int64_t j = i + (k % 3 - 1) + (k / 3 % 3 - 1) * 40 + (k / 9 - 1) * 1600 +
                              (int64_t)(draw >> 40) % 8;
            if (j < 0 || j >= num_rows || draw % 2 == 0) continue;
            r->out_rows[n] = (int32_t)i;
            r->in_rows[n] = (int32_t)j;
            r->matrices[n++] = (int32_t)k;
        }
    r->shape = (spops_triplets_shape){num_rows, num_rows, NUM_TAPS, n};
    from[0] = r->out_rows, from[1] = r->in_rows, from[2] = r->matrices;
    for (int i = 0; i < 3 && good; ++i)
        good = bench_upload(b, from[i], (size_t)n * sizeof(int32_t), &arrays[i]);
    good = good && bench_check(b, r->name,
                               spops_triplets_create(b->ctx, &r->shape, arrays[0], arrays[1],
                                                     arrays[2], o, &r->plan));
    for (int i = 0; i < 3; ++i)
        bench_free(b, arrays[i]);
    return good && upload_by_matrix(b, r);
}

static void measure_relation(bench *b, const mvmr_relation *r, const int64_t *cols, int num_cols)
{
    const unsigned own_dtypes =
        b->backend == SPOPS_BACKEND_CPU ? 1u << SPOPS_DTYPE_F32 : 1u << SPOPS_DTYPE_F16;
    for (int dtype = SPOPS_DTYPE_F32; dtype <= SPOPS_DTYPE_BF16; ++dtype) {
        bench_block values = {0}, weights = {0};
        if (!bench_wants_dtype(b, own_dtypes, (spops_dtype)dtype)) continue;
        if (bench_block_create((spops_dtype)dtype, 6, -1.0f, 1.0f, &values) &&
            bench_block_create((spops_dtype)dtype, 8, -1.0f, 1.0f, &weights))
            for (int i = 0; i < num_cols; ++i)
                measure_cols(b, r, (spops_dtype)dtype, cols[i], &values, &weights);
        else
            bench_fail(b, "no host memory for values");
        bench_block_destroy(&values), bench_block_destroy(&weights);
    }
}

static void run_suite(bench *b)
{
    const int64_t num_rows = NUM_ROWS / (b->options.quick ? QUICK_FACTOR : 1);
    const int64_t own_cols[] = {64, 256};
    int64_t cols[BENCH_MAX_COLS], widest = 0;
    const int num_cols = bench_cols(b, own_cols, b->options.quick ? 1 : 2, cols);
    spops_triplets_options o = spops_triplets_options_default();

    for (int i = 0; i < num_cols; ++i)
        widest = cols[i] > widest ? cols[i] : widest;
    o.backward = 1;
    o.max_matrix_elements = widest * widest;
    o.tile = (int32_t)own.tile;
    for (int i = 0; i < 4; ++i) {
        static const char *const names[] = {"groups27", "groups1000", "convolution", "linear"};
        mvmr_relation r = {0};
        bool made;
        if (!bench_wants(own.relations, names[i])) continue;
        bench_progress("mvmr %s: planning", names[i]);
        made = i == 0   ? make_groups(b, names[i], num_rows, NUM_TAPS, "uniform", &o, &r)
               : i == 1 ? make_groups(b, names[i], num_rows, 1000, "powerlaw", &o, &r)
               : i == 2 ? make_convolution(b, num_rows, &o, &r)
                        : make_rows(b, num_rows, widest, &r);
        if (made) measure_relation(b, &r, cols, num_cols);
        free_relation(b, &r);
    }
}

const bench_suite bench_suite_mvmr = {
    .name = "mvmr", .passes = "forward,rows,matrices", .options = options, .run = run_suite};
