// SPDX-License-Identifier: Apache-2.0
// Norms of rows, their statistics and gradients, and activations alone, each beside the bytes that it has
// to read and write. A few elements of each result are compared with FP64 before it is timed.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_data.h"
#include "bench/bench_report.h"

enum { NUM_ROWS = 200000, SAMPLES = 8, GROUPS = 8, CHECKED = 12 };
#define EPSILON 1e-5

// Which elements have a mean and a variance together.
typedef enum norm_set { OF_COLUMN, OF_ROW, OF_GROUP, OF_INSTANCE, OF_NONE } norm_set;

typedef struct norm_data norm_data;
typedef struct norm_kind {
    const char *name;
    norm_set set;
    bool squares; // the mean counts as 0
    spops_status (*statistics)(const norm_data *d);
    spops_status (*forward)(const norm_data *d);
    spops_status (*backward)(const norm_data *d);
} norm_kind;

struct norm_data {
    bench *b;
    const norm_kind *kind;
    int64_t rows, cols, num_stats;
    bench_block values, grads;
    float *gamma, *beta; // host
    spops_segments *samples;
    spops_matrix x, grad, out;
    void *mean, *var, *gamma_there, *beta_there, *grad_gamma, *grad_beta;
    spops_status (*call)(const norm_data *d);
    spops_status status;
};

// ---- Calls --------------------------------------------------------------------------------------

static int32_t groups_of(const norm_data *d)
{
    return d->kind->set == OF_INSTANCE ? (int32_t)d->cols : GROUPS;
}

static spops_status batch_statistics(const norm_data *d)
{
    return spops_batchnorm_statistics_execute(d->b->ctx, d->x, NULL, d->mean, d->var, NULL, NULL);
}
static spops_status batch(const norm_data *d)
{
    return spops_batchnorm_execute(d->b->ctx, d->x, d->mean, d->var, d->gamma_there, d->beta_there,
                                   NULL, d->out);
}
static spops_status batch_backward(const norm_data *d)
{
    return spops_batchnorm_execute_backward(d->b->ctx, d->grad, d->x, d->mean, d->var,
                                            d->gamma_there, d->beta_there, NULL, d->out,
                                            d->grad_gamma, d->grad_beta);
}
static spops_status layer(const norm_data *d)
{
    return spops_layernorm_execute(d->b->ctx, d->x, d->gamma_there, d->beta_there, NULL, d->out);
}
static spops_status layer_backward(const norm_data *d)
{
    return spops_layernorm_execute_backward(d->b->ctx, d->grad, d->x, d->gamma_there, d->beta_there,
                                            NULL, d->out, d->grad_gamma, d->grad_beta);
}
static spops_status rms(const norm_data *d)
{
    return spops_rmsnorm_execute(d->b->ctx, d->x, d->gamma_there, NULL, d->out);
}
static spops_status rms_backward(const norm_data *d)
{
    return spops_rmsnorm_execute_backward(d->b->ctx, d->grad, d->x, d->gamma_there, NULL, d->out,
                                          d->grad_gamma);
}
static spops_status group_statistics(const norm_data *d)
{
    return spops_groupnorm_statistics_execute(d->b->ctx, d->samples, groups_of(d), d->x, d->mean,
                                              d->var);
}
static spops_status group(const norm_data *d)
{
    return spops_groupnorm_execute(d->b->ctx, d->samples, groups_of(d), d->x, d->mean, d->var,
                                   d->gamma_there, d->beta_there, NULL, d->out);
}
static spops_status group_backward(const norm_data *d)
{
    return spops_groupnorm_execute_backward(d->b->ctx, d->samples, groups_of(d), d->grad, d->x,
                                            d->mean, d->var, d->gamma_there, d->beta_there, NULL,
                                            d->out, d->grad_gamma, d->grad_beta);
}
static spops_status silu(const norm_data *d)
{
    return spops_activation_execute(d->b->ctx, SPOPS_ACTIVATION_SILU, d->x, NULL, d->out);
}
static spops_status silu_backward(const norm_data *d)
{
    return spops_activation_execute_backward(d->b->ctx, SPOPS_ACTIVATION_SILU, d->grad, d->x, NULL,
                                             d->out);
}

static const norm_kind kinds[] = {
    {"batch", OF_COLUMN, false, batch_statistics, batch, batch_backward},
    {"layer", OF_ROW, false, NULL, layer, layer_backward},
    {"rms", OF_ROW, true, NULL, rms, rms_backward},
    {"group", OF_GROUP, false, group_statistics, group, group_backward},
    {"instance", OF_INSTANCE, false, group_statistics, group, group_backward},
    {"silu", OF_NONE, false, NULL, silu, silu_backward},
};

static void enqueue(void *user)
{
    norm_data *d = user;
    const spops_status status = d->call(d);
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

// ---- Checks -------------------------------------------------------------------------------------

static double x_at(const norm_data *d, int64_t r, int64_t c)
{
    return (double)bench_block_row(&d->values, r, d->cols)[c];
}
static double grad_at(const norm_data *d, int64_t r, int64_t c)
{
    return (double)bench_block_row(&d->grads, r, d->cols)[c];
}

static int64_t begin_of(const norm_data *d, int64_t sample)
{
    return d->rows * sample / SAMPLES;
}

// The elements that element (r, c) is normalised with: rows first[0] to end[0] - 1 and columns likewise.
static void set_of(const norm_data *d, int64_t r, int64_t c, int64_t first[2], int64_t end[2])
{
    int64_t sample = 0;
    first[0] = r, end[0] = r + 1;
    first[1] = 0, end[1] = d->cols;
    if (d->kind->set == OF_ROW) return;
    first[1] = c, end[1] = c + 1;
    if (d->kind->set == OF_NONE) return;
    first[0] = 0, end[0] = d->rows;
    if (d->kind->set == OF_COLUMN) return;
    while (begin_of(d, sample + 1) <= r)
        ++sample;
    first[0] = begin_of(d, sample), end[0] = begin_of(d, sample + 1);
    if (d->kind->set == OF_INSTANCE) return;
    first[1] = c * GROUPS / d->cols * d->cols / GROUPS;
    end[1] = first[1] + d->cols / GROUPS;
}

typedef struct norm_expected {
    double mean, var, out, grad;
} norm_expected;

static norm_expected expected_at(const norm_data *d, int64_t r, int64_t c)
{
    norm_expected e = {0.0, 0.0, 0.0, 0.0};
    int64_t first[2], end[2];
    double q = 0.0, qh = 0.0, num;

    if (d->kind->set == OF_NONE) {
        const double x = x_at(d, r, c), s = 1.0 / (1.0 + exp(-x));
        e.out = x * s, e.grad = grad_at(d, r, c) * (s + x * s * (1.0 - s));
        return e;
    }
    set_of(d, r, c, first, end);
    num = (double)((end[0] - first[0]) * (end[1] - first[1]));
    for (int64_t i = first[0]; i < end[0] && !d->kind->squares; ++i)
        for (int64_t k = first[1]; k < end[1]; ++k)
            e.mean += x_at(d, i, k) / num;
    for (int64_t i = first[0]; i < end[0]; ++i)
        for (int64_t k = first[1]; k < end[1]; ++k)
            e.var += (x_at(d, i, k) - e.mean) * (x_at(d, i, k) - e.mean) / num;
    const double rstd = 1.0 / sqrt(e.var + EPSILON), h = (x_at(d, r, c) - e.mean) * rstd;
    for (int64_t i = first[0]; i < end[0]; ++i)
        for (int64_t k = first[1]; k < end[1]; ++k) {
            const double part = grad_at(d, i, k) * (double)d->gamma[k] / num;
            q += d->kind->squares ? 0.0 : part;
            qh += part * (x_at(d, i, k) - e.mean) * rstd;
        }
    e.out = h * (double)d->gamma[c] + (d->kind->squares ? 0.0 : (double)d->beta[c]);
    e.grad = (grad_at(d, r, c) * (double)d->gamma[c] - q - h * qh) * rstd;
    return e;
}

// Where the statistics of element (r, c) are.
static int64_t stat_of(const norm_data *d, int64_t r, int64_t c)
{
    int64_t sample = 0;
    if (d->kind->set == OF_COLUMN) return c;
    while (begin_of(d, sample + 1) <= r)
        ++sample;
    return sample * groups_of(d) + c * groups_of(d) / d->cols;
}

static bool is_right(norm_data *d, const char *name)
{
    bench *b = d->b;
    const bool statistics = d->call == d->kind->statistics, backward = d->call == d->kind->backward;
    const size_t bytes = (size_t)(d->rows * d->cols) * spops_dtype_bytes(d->x.dtype);
    const double off = d->x.dtype == SPOPS_DTYPE_F32 || statistics ? 1e-4 : 0x1p-7;
    void *out = bench_host(b, (int64_t)bytes, 1);
    float *mean = bench_host(b, d->num_stats, 4), *var = bench_host(b, d->num_stats, 4);
    bool right = out != NULL && mean != NULL && var != NULL &&
                 bench_download(b, out, d->out.data, bytes) &&
                 bench_download(b, mean, d->mean, (size_t)d->num_stats * 4) &&
                 bench_download(b, var, d->var, (size_t)d->num_stats * 4);

    for (int64_t i = 0; right && i < CHECKED; ++i) {
        const int64_t r = i * (d->rows - 1) / (CHECKED - 1), c = i * 37 % d->cols;
        const norm_expected e = expected_at(d, r, c);
        const double found = statistics ? (double)var[stat_of(d, r, c)]
                                        : (double)bench_get(out, d->x.dtype, r * d->cols + c);
        const double wanted = statistics ? e.var : backward ? e.grad : e.out;
        right = fabs(found - wanted) <= off * (1.0 + fabs(wanted)) &&
                (!statistics || fabs((double)mean[stat_of(d, r, c)] - e.mean) <= off);
        if (!right)
            bench_fail(b, "norm %s: row %lld, column %lld is %g, expected %g", name, (long long)r,
                       (long long)c, found, wanted);
    }
    free(out), free(mean), free(var);
    return right;
}

// ---- Cases --------------------------------------------------------------------------------------

// `matrices`: how many of x, the gradient and what is written.
static void measure(norm_data *d, const char *name, spops_status (*call)(const norm_data *d),
                    int matrices)
{
    bench *b = d->b;
    const int64_t bytes = d->rows * d->cols * (int64_t)spops_dtype_bytes(d->x.dtype);
    bench_case c = {
        .suite = "norm", .dtype = d->x.dtype, .cols = d->cols, .bytes = matrices * bytes};

    if (!bench_wants(b->options.passes, name)) return;
    d->call = call;
    snprintf(c.name, sizeof c.name, "%s", name);
    snprintf(c.what, sizeof c.what, "%lld rows", (long long)d->rows);
    bench_case_note(&c, "num_rows", d->rows);
    bench_progress("norm %s: checking", name);
    if (!bench_poison(b, d->out.data, (size_t)bytes)) return;
    enqueue(d);
    if (!device_stream_wait(b->backend, b->stream))
        bench_fail(b, "run: %s", device_error());
    else if (bench_check(b, name, d->status) && is_right(d, name) &&
             bench_case_time(b, &c, "spops", false, enqueue, d) &&
             bench_check(b, name, d->status) && bench_case_time_bytes(b, &c))
        bench_case_print(b, &c);
}

static void measure_kind(norm_data *d, const norm_kind *kind)
{
    char name[64];
    d->kind = kind;
    if (d->cols % GROUPS != 0 && kind->set == OF_GROUP) return;
    if (kind->statistics != NULL) {
        snprintf(name, sizeof name, "%s_statistics", kind->name);
        measure(d, name, kind->statistics, 1);
        d->call = kind->statistics;
        enqueue(d); // that the passes below read
    }
    if (!d->b->failed) measure(d, kind->name, kind->forward, 2);
    snprintf(name, sizeof name, "%s_backward", kind->name);
    if (!d->b->failed) measure(d, name, kind->backward, 3);
}

static bool make_samples(norm_data *d)
{
    bench *b = d->b;
    int32_t offsets[SAMPLES + 1];
    void *there = NULL;
    bool made;
    for (int s = 0; s <= SAMPLES; ++s)
        offsets[s] = (int32_t)begin_of(d, s);
    made = bench_upload(b, offsets, sizeof offsets, &there) &&
           bench_check(b, "samples",
                       spops_segments_create(b->ctx, SAMPLES, there, NULL, &d->samples)) &&
           bench_check(
               b, "scratch",
               spops_context_reserve(b->ctx, spops_groupnorm_scratch_bytes(d->samples, d->cols))) &&
           bench_check(b, "scratch",
                       spops_context_reserve(b->ctx, spops_norm_scratch_bytes(d->rows, d->cols)));
    bench_free(b, there);
    return made;
}

static bool make_vectors(norm_data *d)
{
    bench *b = d->b;
    const size_t bytes = (size_t)d->cols * sizeof(float);
    d->gamma = bench_host(b, d->cols, sizeof *d->gamma);
    d->beta = bench_host(b, d->cols, sizeof *d->beta);
    d->num_stats = SAMPLES * d->cols;
    if (d->gamma == NULL || d->beta == NULL) return false;
    for (int64_t c = 0; c < d->cols; ++c) {
        d->gamma[c] = bench_uniform(21, (uint64_t)c, 0.5f, 1.5f);
        d->beta[c] = bench_uniform(22, (uint64_t)c, -1.0f, 1.0f);
    }
    return bench_upload(b, d->gamma, bytes, &d->gamma_there) &&
           bench_upload(b, d->beta, bytes, &d->beta_there) &&
           bench_alloc(b, bytes, &d->grad_gamma) && bench_alloc(b, bytes, &d->grad_beta) &&
           bench_alloc(b, (size_t)d->num_stats * 4, &d->mean) &&
           bench_alloc(b, (size_t)d->num_stats * 4, &d->var);
}

static void measure_dtype(norm_data *d, spops_dtype dtype)
{
    bench *b = d->b;
    const size_t bytes = (size_t)(d->rows * d->cols) * spops_dtype_bytes(dtype);
    void *x = NULL, *grad = NULL, *out = NULL;

    if (!bench_block_create(dtype, 7, -2.0f, 2.0f, &d->values) ||
        !bench_block_create(dtype, 8, -2.0f, 2.0f, &d->grads)) {
        bench_fail(b, "no host memory for values");
        return;
    }
    if (bench_alloc(b, bytes, &x) && bench_alloc(b, bytes, &grad) && bench_alloc(b, bytes, &out)) {
        if (!bench_block_upload(&d->values, b->backend, x, d->rows * d->cols) ||
            !bench_block_upload(&d->grads, b->backend, grad, d->rows * d->cols))
            bench_fail(b, "upload: %s", device_error());
        d->x = spops_matrix_dense(x, d->rows, d->cols, dtype);
        d->grad = spops_matrix_dense(grad, d->rows, d->cols, dtype);
        d->out = spops_matrix_dense(out, d->rows, d->cols, dtype);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !b->failed; ++i)
            measure_kind(d, &kinds[i]);
    }
    bench_free(b, x), bench_free(b, grad), bench_free(b, out);
    bench_block_destroy(&d->values), bench_block_destroy(&d->grads);
}

static void run_suite(bench *b)
{
    static const int64_t own[] = {32, 64, 128, 256};
    const unsigned own_dtypes =
        1u << SPOPS_DTYPE_F32 | (b->backend == SPOPS_BACKEND_CPU ? 0u : 1u << SPOPS_DTYPE_F16);
    int64_t cols[BENCH_MAX_COLS];
    const int num = bench_cols(b, own, b->options.quick ? 2 : 4, cols);

    for (int i = 0; i < num; ++i) {
        norm_data d = {
            .b = b, .rows = b->options.quick ? NUM_ROWS / 10 : NUM_ROWS, .cols = cols[i]};
        if (make_vectors(&d) && make_samples(&d))
            for (int dtype = SPOPS_DTYPE_F32; dtype <= SPOPS_DTYPE_BF16; ++dtype)
                if (bench_wants_dtype(b, own_dtypes, (spops_dtype)dtype))
                    measure_dtype(&d, (spops_dtype)dtype);
        spops_segments_destroy(d.samples);
        bench_free(b, d.mean), bench_free(b, d.var);
        bench_free(b, d.gamma_there), bench_free(b, d.beta_there);
        bench_free(b, d.grad_gamma), bench_free(b, d.grad_beta);
        free(d.gamma), free(d.beta);
    }
}

const bench_suite bench_suite_norm = {
    .name = "norm",
    .passes = "batch_statistics,batch,batch_backward,layer,layer_backward,rms,rms_backward,"
              "group_statistics,group,group_backward,instance_statistics,instance,"
              "instance_backward,silu,silu_backward",
    .run = run_suite};
