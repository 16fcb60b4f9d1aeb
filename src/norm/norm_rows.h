// SPDX-License-Identifier: Apache-2.0
// Normalisation on the CPU, by way of buffers of `real`: strips of columns. Which thread takes which
// chunk of rows changes no result. Whoever includes this defines real, square_root, load_row and
// store_row of a part of a row (core/row_convert.h), activate and differentiate. Vectors and scratch of args, whose types say
// float, hold real.
#ifndef SPOPS_NORM_NORM_ROWS_H
#define SPOPS_NORM_NORM_ROWS_H

#include <math.h>
#include <string.h>

#include "core/threads.h"
#include "norm/norm_args.h"

#define STRIP 256 // columns

// An array of args.
static real *of(const float *array)
{
    return (real *)(uintptr_t)array;
}

// Half of b - a, which is finite where both are.
static real half_distance(real a, real b)
{
    return 0.5f * b - 0.5f * a;
}

typedef struct rows_plan {
    int64_t num_rows, chunk_rows, num_chunks;
    int64_t num_strips;
    spops_team team;
} rows_plan;

static rows_plan plan_rows(const spops_context *ctx, const spops_norm_args *args)
{
    rows_plan p;
    p.num_rows = args->x.rows;
    if (args->num_rows != NULL) {
        const int64_t given = *args->num_rows < 0 ? 0 : *args->num_rows;
        p.num_rows = given < p.num_rows ? given : p.num_rows;
    }
    p.chunk_rows = spops_norm_chunk_rows(p.num_rows);
    p.num_chunks = (p.num_rows + p.chunk_rows - 1) / p.chunk_rows;
    p.num_strips = (args->x.cols + STRIP - 1) / STRIP;
    p.team = spops_team_for(ctx, p.num_rows * args->x.cols);
    return p;
}

static int64_t chunk_end(const rows_plan *p, int64_t chunk)
{
    const int64_t end = (chunk + 1) * p->chunk_rows;
    return end < p->num_rows ? end : p->num_rows;
}

static int strip_cols(const spops_norm_args *args, int64_t col)
{
    return args->x.cols - col < STRIP ? (int)(args->x.cols - col) : STRIP;
}

typedef struct norm_work {
    const spops_norm_args *args;
    const rows_plan *p;
} norm_work;

// A body of a loop over strips of chunks of rows, or over rows.
#define DEFINE_STRIPS_BODY(name, call)                                                             \
    static void name(const void *work, int64_t begin, int64_t end)                                 \
    {                                                                                              \
        const norm_work *w = (const norm_work *)work;                                              \
        for (int64_t i = begin; i < end; ++i)                                                      \
            call(w->args, w->p, i / w->p->num_strips, i % w->p->num_strips * STRIP);               \
    }
#define DEFINE_ROWS_BODY(name, call)                                                               \
    static void name(const void *work, int64_t begin, int64_t end)                                 \
    {                                                                                              \
        for (int64_t r = begin; r < end; ++r)                                                      \
            call(((const norm_work *)work)->args, r);                                              \
    }

// The two rows of partials of a chunk.
static real *partial(const spops_norm_args *args, int64_t chunk, int which, int64_t col)
{
    return of(args->scratch.partials) + (2 * chunk + which) * args->x.cols + col;
}

// ---- Moments ------------------------------------------------------------------------------------

// Take row number `count` of n columns, times scale, into their means and sums of squared deviations
// (Welford).
static inline __attribute__((always_inline)) void take_row(const real *restrict v, int n,
                                                           real scale, real count,
                                                           real *restrict mean,
                                                           real *restrict deviations)
{
    const real share = 1.0f / count;
    for (int c = 0; c < n; ++c) {
        const real value = scale * v[c], delta = value - mean[c];
        mean[c] += delta * share;
        deviations[c] += delta * (value - mean[c]);
    }
}

// What was taken of rows times scale, of the rows themselves.
static inline void undo_scale(int n, real scale, real *mean, real *deviations)
{
    for (int c = 0; c < n; ++c) {
        mean[c] /= scale;
        deviations[c] /= scale * scale;
    }
}

static bool all_finite(const real *v, int n)
{
    bool finite = true;
    for (int c = 0; c < n; ++c)
        finite &= isfinite(v[c]) != 0;
    return finite;
}

// Rows so far, their mean and their sum of squared deviations (Chan, Golub, LeVeque).
typedef struct moments {
    real count, mean, deviations;
} moments;

static inline void merge_into(moments *m, moments o)
{
    const real half = half_distance(m->mean, o.mean), delta = 2.0f * half;
    const real total = m->count + o.count, share = o.count / total;
    m->mean += half * (2.0f * share);
    if (m->count > 0.0f) // a square may be infinite, and no rows times that are no number
        m->deviations += o.deviations + delta * delta * (m->count * share);
    else
        m->deviations = o.deviations;
    m->count = total;
}

static inline real variance_of(const moments *m)
{
    return m->count > 0.0f ? m->deviations / m->count : 0.0f;
}

// ---- Statistics of columns ----------------------------------------------------------------------

// Mean and sum of squared deviations of rows begin to end of n columns, whose values are halved
// meanwhile where scale is 0.5f.
static inline __attribute__((always_inline)) void moments_of_rows(spops_matrix x, int64_t begin,
                                                                  int64_t end, int64_t col, int n,
                                                                  real scale, real *restrict mean,
                                                                  real *restrict deviations)
{
    real v[STRIP], count = 0.0f;

    memset(mean, 0, STRIP * sizeof *mean);
    memset(deviations, 0, STRIP * sizeof *deviations);
    for (int64_t r = begin; r < end; ++r) {
        load_row(x, r, col, n, v);
        take_row(v, n, scale, count += 1.0f, mean, deviations);
    }
    undo_scale(n, scale, mean, deviations);
}

static void chunk_moments(const spops_norm_args *args, const rows_plan *p, int64_t chunk,
                          int64_t col)
{
    const int64_t begin = chunk * p->chunk_rows, end = chunk_end(p, chunk);
    const int n = strip_cols(args, col);
    real mean[STRIP], deviations[STRIP];

    moments_of_rows(args->x, begin, end, col, n, 1.0f, mean, deviations);
    // A difference of finite values may not be; one of their halves is.
    if (!all_finite(mean, n)) moments_of_rows(args->x, begin, end, col, n, 0.5f, mean, deviations);
    memcpy(partial(args, chunk, 0, col), mean, (size_t)n * sizeof *mean);
    memcpy(partial(args, chunk, 1, col), deviations, (size_t)n * sizeof *deviations);
}

// Moments of all rows become statistics; running ones are NULL or follow.
static void store_statistics(const moments *m, float momentum, real *mean_out, real *var_out,
                             real *running_mean, real *running_var)
{
    const real var = variance_of(m);
    *mean_out = m->mean;
    *var_out = var;
    if (running_mean == NULL || m->count == 0.0f) return;
    const real unbiased = m->count > 1.0f ? m->deviations / (m->count - 1.0f) : var;
    *running_mean += 2.0f * momentum * half_distance(*running_mean, m->mean);
    *running_var += momentum * (unbiased - *running_var);
}

static void merge_moments(const spops_norm_args *args, const rows_plan *p, int64_t c)
{
    moments m = {0.0f, 0.0f, 0.0f};

    for (int64_t chunk = 0; chunk < p->num_chunks; ++chunk) {
        const real rows = (real)(chunk_end(p, chunk) - chunk * p->chunk_rows);
        merge_into(&m, (moments){rows, *partial(args, chunk, 0, c), *partial(args, chunk, 1, c)});
    }
    const bool running = args->running_mean != NULL;
    store_statistics(&m, args->momentum, of(args->mean_out) + c, of(args->var_out) + c,
                     running ? of(args->running_mean) + c : NULL,
                     running ? of(args->running_var) + c : NULL);
}

// Statistics of chunks that were computed elsewhere, in their order.
static spops_status run_merge(const spops_norm_merge_args *args)
{
    const bool running = args->running_mean != NULL;
    const int64_t cols = args->chunks.cols / 2;

    for (int64_t c = 0; c < cols; ++c) {
        moments m = {0.0f, 0.0f, 0.0f};
        for (int64_t chunk = 0; chunk < args->chunks.rows; ++chunk) {
            const real *row = (const real *)args->chunks.data + chunk * args->chunks.row_stride;
            const real rows = (real)args->chunk_rows[chunk];
            if (rows > 0.0f) merge_into(&m, (moments){rows, row[c], row[cols + c] * rows});
        }
        store_statistics(&m, args->momentum, of(args->mean_out) + c, of(args->var_out) + c,
                         running ? of(args->running_mean) + c : NULL,
                         running ? of(args->running_var) + c : NULL);
    }
    return SPOPS_STATUS_OK;
}

DEFINE_STRIPS_BODY(moments_of_strips, chunk_moments)

static spops_status run_statistics(spops_context *ctx, const spops_norm_args *args)
{
    const rows_plan p = plan_rows(ctx, args);
    const norm_work work = {args, &p};

    spops_parallel_for(p.team, p.num_chunks * p.num_strips, 0, moments_of_strips, &work);
    for (int64_t c = 0; c < args->x.cols; ++c)
        merge_moments(args, &p, c);
    return SPOPS_STATUS_OK;
}

// ---- Forward ------------------------------------------------------------------------------------

// Mean and 1 / sqrt(variance + epsilon) of a row.
static void row_statistics(const spops_norm_args *args, int64_t r, real *mean, real *rstd)
{
    const real cols = (real)args->x.cols;
    real v[STRIP];
    double sum = 0.0; // a row may be long, and rows are few enough of them

    for (int64_t col = 0; col < args->x.cols && !args->is_rms; col += STRIP) {
        const int n = strip_cols(args, col);
        load_row(args->x, r, col, n, v);
        for (int c = 0; c < n; ++c)
            sum += (double)v[c];
    }
    *mean = (real)(sum / (double)cols);
    sum = 0.0;
    for (int64_t col = 0; col < args->x.cols; col += STRIP) {
        const int n = strip_cols(args, col);
        load_row(args->x, r, col, n, v);
        for (int c = 0; c < n; ++c) {
            const real d = v[c] - *mean;
            sum += (double)(d * d);
        }
    }
    *rstd = 1.0f / square_root((real)(sum / (double)cols) + args->epsilon);
}

// What the columns of a strip have in common: the normalised value is (x - mean) * rstd, and the
// output is that times gamma, plus beta. Layer norm sets mean and rstd anew for each row.
typedef struct strip_params {
    real mean[STRIP], rstd[STRIP], gamma[STRIP], beta[STRIP];
} strip_params;

static void read_params(const spops_norm_args *args, int64_t col, int n, strip_params *s)
{
    for (int c = 0; c < n; ++c) {
        s->gamma[c] = args->gamma != NULL ? of(args->gamma)[col + c] : 1.0f;
        s->beta[c] = args->beta != NULL ? of(args->beta)[col + c] : 0.0f;
        if (args->mean == NULL) continue;
        s->mean[c] = of(args->mean)[col + c];
        s->rstd[c] = 1.0f / square_root(of(args->var)[col + c] + args->epsilon);
    }
}

static void set_row(strip_params *s, int n, real mean, real rstd)
{
    for (int c = 0; c < n; ++c) {
        s->mean[c] = mean;
        s->rstd[c] = rstd;
    }
}

static void forward_strip(const spops_norm_args *args, const strip_params *s, int64_t r,
                          int64_t col, int n)
{
    real v[STRIP];

    load_row(args->x, r, col, n, v);
    for (int c = 0; c < n; ++c)
        v[c] = (v[c] - s->mean[c]) * s->rstd[c] * s->gamma[c] + s->beta[c];
    activate(args, n, v);
    store_row(args->out, r, col, n, v);
}

static void batch_forward(const spops_norm_args *args, const rows_plan *p, int64_t chunk,
                          int64_t col)
{
    const int n = strip_cols(args, col);
    strip_params s;

    read_params(args, col, n, &s);
    for (int64_t r = chunk * p->chunk_rows; r < chunk_end(p, chunk); ++r)
        forward_strip(args, &s, r, col, n);
}

static void row_forward(const spops_norm_args *args, int64_t r)
{
    strip_params s;
    real mean, rstd;

    row_statistics(args, r, &mean, &rstd);
    for (int64_t col = 0; col < args->x.cols; col += STRIP) {
        const int n = strip_cols(args, col);
        read_params(args, col, n, &s);
        set_row(&s, n, mean, rstd);
        forward_strip(args, &s, r, col, n);
    }
}

DEFINE_STRIPS_BODY(forward_of_strips, batch_forward)
DEFINE_ROWS_BODY(forward_of_rows, row_forward)

static spops_status run_forward(spops_context *ctx, const spops_norm_args *args)
{
    const rows_plan p = plan_rows(ctx, args);
    const norm_work work = {args, &p};

    if (args->mean == NULL)
        spops_parallel_for(p.team, p.num_rows, 0, forward_of_rows, &work);
    else
        spops_parallel_for(p.team, p.num_chunks * p.num_strips, 0, forward_of_strips, &work);
    return SPOPS_STATUS_OK;
}

// ---- Backward -----------------------------------------------------------------------------------

// Of part of a row: h, the normalised values, and g, the gradient of what the activation takes.
static void load_gradient(const spops_norm_args *args, const strip_params *s, int64_t r,
                          int64_t col, int n, real *h, real *g)
{
    real y[STRIP];

    load_row(args->x, r, col, n, h);
    load_row(args->grad_out, r, col, n, g);
    for (int c = 0; c < n; ++c)
        h[c] = (h[c] - s->mean[c]) * s->rstd[c];
    if (args->activated.activation == SPOPS_ACTIVATION_NONE) return;
    for (int c = 0; c < n; ++c)
        y[c] = h[c] * s->gamma[c] + s->beta[c];
    differentiate(args, n, y, g);
}

// Sums over the rows of a chunk of g and of g h.
static void chunk_sums(const spops_norm_args *args, const rows_plan *p, int64_t chunk, int64_t col)
{
    const int n = strip_cols(args, col);
    real sum[STRIP] = {0}, product[STRIP] = {0}, h[STRIP], g[STRIP];
    strip_params s;

    read_params(args, col, n, &s);
    for (int64_t r = chunk * p->chunk_rows; r < chunk_end(p, chunk); ++r) {
        if (args->mean == NULL)
            set_row(&s, n, of(args->scratch.row_mean)[r], of(args->scratch.row_rstd)[r]);
        load_gradient(args, &s, r, col, n, h, g);
        for (int c = 0; c < n; ++c) {
            sum[c] += g[c];
            product[c] += g[c] * h[c];
        }
    }
    memcpy(partial(args, chunk, 0, col), sum, (size_t)n * sizeof *sum);
    memcpy(partial(args, chunk, 1, col), product, (size_t)n * sizeof *product);
}

static void merge_sums(const spops_norm_args *args, const rows_plan *p, int64_t c)
{
    real *sums = of(args->scratch.sums);
    real sum = 0.0f, product = 0.0f;

    for (int64_t chunk = 0; chunk < p->num_chunks; ++chunk) {
        sum += *partial(args, chunk, 0, c);
        product += *partial(args, chunk, 1, c);
    }
    sums[c] = sum;
    sums[args->x.cols + c] = product;
    if (args->grad_beta != NULL) of(args->grad_beta)[c] = sum;
    if (args->grad_gamma != NULL) of(args->grad_gamma)[c] = product;
}

static void batch_gradient(const spops_norm_args *args, const rows_plan *p, int64_t chunk,
                           int64_t col)
{
    const int n = strip_cols(args, col);
    const bool given = args->total_rows > 0;
    const real total = (real)(given ? args->total_rows : p->num_rows);
    const real share = args->fixed_statistics ? 0.0f : 1.0f / total;
    const real *sums = given ? of(args->grad_beta) + col : of(args->scratch.sums) + col;
    const real *products = given ? of(args->grad_gamma) + col : sums + args->x.cols;
    strip_params s;
    real h[STRIP], g[STRIP];

    read_params(args, col, n, &s);
    for (int64_t r = chunk * p->chunk_rows; r < chunk_end(p, chunk); ++r) {
        load_gradient(args, &s, r, col, n, h, g);
        if (!args->fixed_statistics)
            for (int c = 0; c < n; ++c)
                g[c] -= sums[c] * share + h[c] * (products[c] * share);
        for (int c = 0; c < n; ++c)
            g[c] *= s.gamma[c] * s.rstd[c];
        store_row(args->grad_x, r, col, n, g);
    }
}

// Of one row: two sums over its columns first, then the gradient. grad_x may be grad_out, which is
// why a strip is stored only after the last reading of it.
static void row_gradient(const spops_norm_args *args, int64_t r)
{
    const real cols = (real)args->x.cols;
    double sum = 0.0, product = 0.0;
    real h[STRIP], g[STRIP];
    strip_params s;

    for (int64_t col = 0; col < args->x.cols; col += STRIP) {
        const int n = strip_cols(args, col);
        read_params(args, col, n, &s);
        set_row(&s, n, of(args->scratch.row_mean)[r], of(args->scratch.row_rstd)[r]);
        load_gradient(args, &s, r, col, n, h, g);
        for (int c = 0; c < n; ++c) {
            sum += (double)(g[c] * s.gamma[c]);
            product += (double)(g[c] * s.gamma[c] * h[c]);
        }
    }
    const real mean = args->is_rms ? 0.0f : (real)(sum / (double)cols);
    const real slope = (real)(product / (double)cols);
    for (int64_t col = 0; col < args->x.cols; col += STRIP) {
        const int n = strip_cols(args, col);
        read_params(args, col, n, &s);
        set_row(&s, n, of(args->scratch.row_mean)[r], of(args->scratch.row_rstd)[r]);
        load_gradient(args, &s, r, col, n, h, g);
        for (int c = 0; c < n; ++c)
            g[c] = (g[c] * s.gamma[c] - mean - h[c] * slope) * s.rstd[c];
        if (args->grad_more.data != NULL) {
            load_row(args->grad_more, r, col, n, h);
            for (int c = 0; c < n; ++c)
                g[c] += h[c];
        }
        store_row(args->grad_x, r, col, n, g);
    }
}

static void keep_row_statistics(const spops_norm_args *args, int64_t r)
{
    row_statistics(args, r, of(args->scratch.row_mean) + r, of(args->scratch.row_rstd) + r);
}

DEFINE_ROWS_BODY(statistics_of_rows, keep_row_statistics)
DEFINE_STRIPS_BODY(sums_of_strips, chunk_sums)
DEFINE_ROWS_BODY(gradient_of_rows, row_gradient)
DEFINE_STRIPS_BODY(gradient_of_strips, batch_gradient)

static spops_status run_backward(spops_context *ctx, const spops_norm_args *args)
{
    const rows_plan p = plan_rows(ctx, args);
    const norm_work work = {args, &p};
    const int64_t num_strips = p.num_chunks * p.num_strips;
    const bool by_row = args->mean == NULL, given = args->total_rows > 0;

    if (by_row) spops_parallel_for(p.team, p.num_rows, 0, statistics_of_rows, &work);
    if (!given) spops_parallel_for(p.team, num_strips, 0, sums_of_strips, &work);
    for (int64_t c = 0; c < args->x.cols && !given; ++c)
        merge_sums(args, &p, c);
    if (args->grad_x.data == NULL) return SPOPS_STATUS_OK;
    if (by_row)
        spops_parallel_for(p.team, p.num_rows, 0, gradient_of_rows, &work);
    else
        spops_parallel_for(p.team, num_strips, 0, gradient_of_strips, &work);
    return SPOPS_STATUS_OK;
}

#endif
