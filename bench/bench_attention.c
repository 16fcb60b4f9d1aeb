// SPDX-License-Identifier: Apache-2.0
// Attention within patches, forward and backward. The rows of the patches lie in a random order, so
// that what is measured has to gather them. The plan is ready.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_data.h"
#include "bench/bench_report.h"
#include "spops/attention.h"
#include "spops/patches.h"

#define NUM_SAMPLES  6  // rows whose values are checked, with one head each
#define QUICK_FACTOR 30 // fewer patches
#define CPU_FACTOR   120

typedef struct attention_shape {
    int64_t patches, rows; // of a patch
    int32_t heads, dim;
} attention_shape;
static const attention_shape shapes[] = {
    {120, 1024, 8, 64},  {30, 4096, 8, 64},   {480, 256, 8, 64},  {120, 1024, 16, 32},
    {120, 1024, 32, 16}, {120, 1024, 4, 128}, {120, 1024, 2, 64}, {960, 128, 8, 64},
};

enum { Q, K, V, GRAD_O, NUM_INPUTS, O = NUM_INPUTS, GRAD_Q, GRAD_K, GRAD_V, NUM_MATRICES };
static const char *const names[NUM_MATRICES] = {"q", "k",      "v",      "grad_o",
                                                "o", "grad_q", "grad_k", "grad_v"};

typedef struct attention_data {
    bench *b;
    attention_shape shape;
    int64_t num_rows;
    int32_t *rows; // of the patches, one after the other; host
    spops_patches *plan;
    spops_attention_options options;
    bench_block inputs[NUM_INPUTS];
    void *memory[NUM_MATRICES];
    spops_matrix matrices[NUM_MATRICES];
    float *lse;
    spops_status status; // of the first call that failed
} attention_data;

static void note_status(attention_data *d, spops_status status)
{
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

static void enqueue_forward(void *user)
{
    attention_data *d = user;
    const spops_matrix *m = d->matrices;
    note_status(d, spops_attention_execute(d->b->ctx, d->plan, m[Q], m[K], m[V], &d->options, m[O],
                                           d->lse));
}

static void enqueue_backward(void *user)
{
    attention_data *d = user;
    const spops_matrix *m = d->matrices;
    note_status(d, spops_attention_execute_backward(d->b->ctx, d->plan, m[GRAD_O], m[Q], m[K], m[V],
                                                    m[O], d->lse, &d->options, &m[GRAD_Q],
                                                    &m[GRAD_K], &m[GRAD_V], NULL, NULL, NULL));
}

// ---- Whether results are right ------------------------------------------------------------------

static const float *input(const attention_data *d, int which, int32_t row, int head)
{
    return bench_block_row(&d->inputs[which], row, d->matrices[Q].cols) +
           (int64_t)head * d->shape.dim;
}

static double dot(const attention_data *d, const float *a, const float *b)
{
    double sum = 0;
    for (int c = 0; c < d->shape.dim; ++c)
        sum += (double)a[c] * (double)b[c];
    return sum;
}

// A head of a query of a patch: weights of the keys, o, and grad_o . o.
typedef struct query {
    double *weights;
    double o[BENCH_MAX_WIDTH], magnitude[BENCH_MAX_WIDTH];
    double grad_dot, grad_magnitude;
} query;

static double scale_of(const attention_data *d)
{
    return 1.0 / sqrt((double)d->shape.dim);
}

static void compute_query(const attention_data *d, const int32_t *keys, int32_t row, int head,
                          query *q)
{
    const int64_t n = d->shape.rows;
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; ++j) {
        q->weights[j] = scale_of(d) * dot(d, input(d, Q, row, head), input(d, K, keys[j], head));
        top = fmax(top, q->weights[j]);
    }
    for (int64_t j = 0; j < n; ++j)
        sum += q->weights[j] = exp(q->weights[j] - top);
    q->grad_dot = q->grad_magnitude = 0;
    for (int c = 0; c < d->shape.dim; ++c)
        q->o[c] = q->magnitude[c] = 0;
    for (int64_t j = 0; j < n; ++j) {
        q->weights[j] /= sum;
        for (int c = 0; c < d->shape.dim; ++c) {
            const double term = q->weights[j] * (double)input(d, V, keys[j], head)[c];
            q->o[c] += term;
            q->magnitude[c] += fabs(term);
        }
    }
    for (int c = 0; c < d->shape.dim; ++c) {
        const double grad = (double)input(d, GRAD_O, row, head)[c];
        q->grad_dot += grad * q->o[c];
        q->grad_magnitude += fabs(grad) * q->magnitude[c];
    }
}

// What a row of a result should be, and the magnitude of what it is made of, where roundings to the
// dtype are relative to it.
typedef struct expected_row {
    double value[BENCH_MAX_WIDTH], magnitude[BENCH_MAX_WIDTH];
} expected_row;

static void add_scaled(const attention_data *d, double factor, double bound, const float *from,
                       expected_row *e)
{
    for (int c = 0; c < d->shape.dim; ++c) {
        e->value[c] += factor * (double)from[c];
        e->magnitude[c] += bound * fabs((double)from[c]);
    }
}

// ds[i, j] of a query and its key j, times the scale; its bound: what it is the difference of.
static double logit_gradient(const attention_data *d, const query *q, int32_t row, int32_t key,
                             int64_t j, int head, double *bound)
{
    const double along = dot(d, input(d, GRAD_O, row, head), input(d, V, key, head));
    const double weight = scale_of(d) * q->weights[j];
    *bound = weight * (fabs(along) + q->grad_magnitude);
    return weight * (along - q->grad_dot);
}

static void expect_row(const attention_data *d, const int32_t *patch, int64_t place, int head,
                       int which, query *q, expected_row *e)
{
    const int32_t row = patch[place];
    double bound;
    memset(e, 0, sizeof *e);
    if (which == O || which == GRAD_Q) {
        compute_query(d, patch, row, head, q);
        for (int64_t j = 0; j < d->shape.rows; ++j) {
            const double ds = logit_gradient(d, q, row, patch[j], j, head, &bound);
            if (which == O)
                add_scaled(d, q->weights[j], q->weights[j], input(d, V, patch[j], head), e);
            else
                add_scaled(d, ds, bound, input(d, K, patch[j], head), e);
        }
        return;
    }
    for (int64_t i = 0; i < d->shape.rows; ++i) { // a key: of all queries
        compute_query(d, patch, patch[i], head, q);
        const double ds = logit_gradient(d, q, patch[i], row, place, head, &bound);
        if (which == GRAD_V)
            add_scaled(d, q->weights[place], q->weights[place], input(d, GRAD_O, patch[i], head),
                       e);
        else
            add_scaled(d, ds, bound, input(d, Q, patch[i], head), e);
    }
}

static bool check_rows(const attention_data *d, int which, int num_samples)
{
    bench *b = d->b;
    const spops_matrix *m = &d->matrices[which];
    const size_t element = spops_dtype_bytes(m->dtype);
    // A weight and the result are rounded to the dtype; a difference also of rounded o. In tf32 each
    // of four factors is, by 2^-10.
    const bool tf32 = d->options.math == SPOPS_MATH_TF32;
    const bool exact = d->matrices[Q].dtype == SPOPS_DTYPE_F32 && !tf32;
    const double roundings = which == O || which == GRAD_V ? 2.5 : 4;
    const double unit = d->matrices[Q].dtype == SPOPS_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    const double allowed = exact ? 1e-5 : roundings * unit;
    query q = {.weights = bench_host(b, d->shape.rows, sizeof *q.weights)};
    void *got = bench_host(b, m->cols, element);
    expected_row e;
    bool good = q.weights != NULL && got != NULL;
    for (int s = 0; s < num_samples && good; ++s) {
        const uint64_t random = bench_random(77 + (uint64_t)which, (uint64_t)s);
        const int64_t patch = (int64_t)(random % (uint64_t)d->shape.patches);
        const int64_t place = (int64_t)(random >> 32) % d->shape.rows;
        const int head = (int)((random >> 20) % (uint64_t)d->shape.heads);
        const int32_t *rows = d->rows + patch * d->shape.rows;
        expect_row(d, rows, place, head, which, &q, &e);
        good = bench_download(
            b, got, (const char *)m->data + (size_t)(rows[place] * m->row_stride) * element,
            (size_t)m->cols * element);
        for (int c = 0; c < d->shape.dim && good; ++c) {
            const double value = bench_get(got, m->dtype, (int64_t)head * d->shape.dim + c);
            if (!(fabs(value - e.value[c]) <= allowed * e.magnitude[c]))
                good = bench_fail(b, "attention: %s[%d, %d * %d + %d] is %g, expected %g +- %g",
                                  names[which], (int)rows[place], head, (int)d->shape.dim, c, value,
                                  e.value[c], allowed * e.magnitude[c]);
        }
    }
    free(q.weights), free(got);
    return good;
}

// ---- Measuring ----------------------------------------------------------------------------------

static bool run_once(attention_data *d, void (*enqueue)(void *user), int first, int last)
{
    for (int i = first; i <= last; ++i) {
        const spops_matrix *m = &d->matrices[i];
        if (!bench_poison(d->b, m->data, (size_t)(m->rows * m->cols) * spops_dtype_bytes(m->dtype)))
            return false;
    }
    d->status = SPOPS_STATUS_OK;
    enqueue(d);
    if (!device_stream_wait(d->b->backend, d->b->stream))
        return bench_fail(d->b, "run: %s", device_error());
    return bench_check(d->b, "attention", d->status);
}

static void measure_pass(attention_data *d, const char *pass, void (*enqueue)(void *user),
                         int matrices_moved, int products)
{
    const attention_shape *s = &d->shape;
    bench_case c = {.suite = "attention"};
    snprintf(c.name, sizeof c.name, "%lld x %lld rows, %d x %d, %s%s", (long long)s->patches,
             (long long)s->rows, (int)s->heads, (int)s->dim, pass,
             d->b->options.tf32 ? " tf32" : "");
    snprintf(c.what, sizeof c.what, "%lld patches of %lld rows in a random order",
             (long long)s->patches, (long long)s->rows);
    c.dtype = d->matrices[Q].dtype;
    c.cols = d->matrices[Q].cols;
    c.bytes = matrices_moved * d->num_rows * c.cols * (int64_t)spops_dtype_bytes(c.dtype);
    bench_case_note(&c, "flops", 2 * products * s->patches * s->rows * s->rows * s->heads * s->dim);
    d->status = SPOPS_STATUS_OK;
    if (bench_case_time(d->b, &c, "spops", false, enqueue, d) && bench_check(d->b, pass, d->status))
        bench_case_print(d->b, &c);
}

static bool open_matrices(attention_data *d, spops_dtype dtype)
{
    bench *b = d->b;
    const int64_t cols = (int64_t)d->shape.heads * d->shape.dim;
    for (int i = 0; i < NUM_MATRICES; ++i) {
        if (!bench_alloc(b, (size_t)(d->num_rows * cols) * spops_dtype_bytes(dtype), &d->memory[i]))
            return false;
        d->matrices[i] = spops_matrix_dense(d->memory[i], d->num_rows, cols, dtype);
        if (i < NUM_INPUTS &&
            (!bench_block_create(dtype, 20 + (uint64_t)i, -2.0f, 2.0f, &d->inputs[i]) ||
             !bench_block_upload(&d->inputs[i], b->backend, d->memory[i], d->num_rows * cols)))
            return bench_fail(b, "no memory for %s", names[i]);
    }
    void *lse = NULL;
    const bool good = bench_alloc(b, (size_t)(d->num_rows * d->shape.heads) * sizeof(float), &lse);
    d->lse = lse;
    return good;
}

static bool open_plan(attention_data *d)
{
    bench *b = d->b;
    const int64_t n = d->num_rows;
    int32_t *offsets = bench_host(b, d->shape.patches + 1, sizeof *offsets);
    void *device_offsets = NULL, *device_rows = NULL;
    bool good;
    d->rows = bench_host(b, n, sizeof *d->rows);
    if (offsets == NULL || d->rows == NULL) return false;
    for (int64_t p = 0; p <= d->shape.patches; ++p)
        offsets[p] = (int32_t)(p * d->shape.rows);
    bench_fill_permutation(d->rows, n, 5);
    good = bench_upload(b, offsets, (size_t)(d->shape.patches + 1) * sizeof *offsets,
                        &device_offsets) &&
           bench_upload(b, d->rows, (size_t)n * sizeof *d->rows, &device_rows);
    if (good) {
        const spops_patch_lists lists = {.num_patches = d->shape.patches,
                                         .query_offsets = device_offsets,
                                         .query_rows = device_rows};
        good = bench_check(b, "patches", spops_patches_create(b->ctx, n, &lists, &d->plan));
    }
    bench_free(b, device_offsets), bench_free(b, device_rows);
    free(offsets);
    return good;
}

static void measure_shape(bench *b, attention_shape shape, spops_dtype dtype)
{
    attention_data d = {.b = b, .shape = shape, .num_rows = shape.patches * shape.rows};
    const bool backward = bench_wants(b->options.passes, "backward");
    const int samples = shape.rows > 1024 ? 1 : 2; // of keys, each of which takes all queries
    size_t bytes;

    d.options = spops_attention_options_default();
    d.options.heads = shape.heads;
    d.options.math = b->options.tf32 ? SPOPS_MATH_TF32 : SPOPS_MATH_EXACT;
    bench_progress("attention %lld x %lld, %d x %d: checking", (long long)shape.patches,
                   (long long)shape.rows, (int)shape.heads, (int)shape.dim);
    if (!open_plan(&d) || !open_matrices(&d, dtype)) goto done;
    bytes = spops_attention_scratch_bytes(d.plan, d.matrices[Q].cols, dtype, &d.options, backward);
    if (!bench_check(b, "reserve", spops_context_reserve(b->ctx, bytes)) ||
        !run_once(&d, enqueue_forward, O, O) || !check_rows(&d, O, NUM_SAMPLES))
        goto done;
    if (bench_wants(b->options.passes, "forward"))
        measure_pass(&d, "forward", enqueue_forward, 4, 2);
    if (backward && run_once(&d, enqueue_backward, GRAD_Q, GRAD_V) &&
        check_rows(&d, GRAD_Q, NUM_SAMPLES) && check_rows(&d, GRAD_K, samples) &&
        check_rows(&d, GRAD_V, samples))
        measure_pass(&d, "backward", enqueue_backward, 8, 5);

done:
    spops_patches_destroy(d.plan);
    for (int i = 0; i < NUM_MATRICES; ++i)
        bench_free(b, d.memory[i]);
    for (int i = 0; i < NUM_INPUTS; ++i)
        bench_block_destroy(&d.inputs[i]);
    bench_free(b, d.lse);
    free(d.rows);
}

static void run_suite(bench *b)
{
    const bool cpu = b->backend == SPOPS_BACKEND_CPU;
    const int64_t factor = cpu ? CPU_FACTOR : b->options.quick ? QUICK_FACTOR : 1;
    const unsigned own_dtypes = 1u << (cpu ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_BF16);
    for (int t = SPOPS_DTYPE_F32; t <= SPOPS_DTYPE_BF16; ++t) {
        if (!bench_wants_dtype(b, own_dtypes, (spops_dtype)t)) continue;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
            attention_shape shape = shapes[i];
            if (b->options.quick && shape.rows > 1024) continue;
            shape.patches = shape.patches / factor > 0 ? shape.patches / factor : 1;
            measure_shape(b, shape, (spops_dtype)t);
        }
    }
}

const bench_suite bench_suite_attention = {
    .name = "attention", .passes = "forward,backward", .run = run_suite};
