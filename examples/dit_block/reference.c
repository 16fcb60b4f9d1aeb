// SPDX-License-Identifier: Apache-2.0
/* The block in FP64. */
#include "dit_block/block.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct rows {
    int64_t num;
    int cols;
    double *v;
} rows;

static rows take(int64_t num, int cols)
{
    const rows r = {num, cols, (double *)calloc((size_t)num * (size_t)cols, sizeof(double))};
    return r;
}

/* out = activation((x w + bias) gate) + residual; gate and residual may be NULL. */
static int run_linear(const block *b, int i, rows x, const double *gate, const double *residual,
                      int gelu, rows out)
{
    double *w = block_download(b, b->w[i]), *bias = block_download_vector(b, b->bias[i], out.cols);
    const int failed = w == NULL || bias == NULL;

    for (int64_t r = 0; r < x.num && !failed; ++r) {
        double *to = out.v + r * out.cols;
        double sum[3 * 4096];
        for (int o = 0; o < out.cols; ++o)
            sum[o] = bias[o];
        for (int c = 0; c < x.cols; ++c)
            for (int o = 0; o < out.cols; ++o)
                sum[o] += x.v[r * x.cols + c] * w[(size_t)c * (size_t)out.cols + (size_t)o];
        for (int o = 0; o < out.cols; ++o) {
            double y = gate == NULL ? sum[o] : sum[o] * gate[o];
            if (gelu)
                y = 0.5 * y * (1 + tanh(sqrt(2 / 3.14159265358979) * (y + 0.044715 * y * y * y)));
            to[o] = residual == NULL ? y : y + residual[r * out.cols + o];
        }
    }
    free(w);
    free(bias);
    return failed;
}

static int run_norm(const block *b, rows x, int gamma, int beta, rows out)
{
    double *g = block_download_vector(b, b->vectors[gamma], x.cols);
    double *s = block_download_vector(b, b->vectors[beta], x.cols);
    const int failed = g == NULL || s == NULL;

    for (int64_t r = 0; r < x.num && !failed; ++r) {
        const double *from = x.v + r * x.cols;
        double mean = 0, var = 0;
        for (int c = 0; c < x.cols; ++c)
            mean += from[c] / x.cols;
        for (int c = 0; c < x.cols; ++c)
            var += (from[c] - mean) * (from[c] - mean) / x.cols;
        for (int c = 0; c < x.cols; ++c)
            out.v[r * x.cols + c] = (from[c] - mean) / sqrt(var + NORM_EPSILON) * g[c] + s[c];
    }
    free(g);
    free(s);
    return failed;
}

/* Heads of x, which begin at column `first`, by their root mean square and weights. */
static int run_head_norm(const block *b, rows x, int first, int weights)
{
    double *w = block_download_vector(b, b->vectors[weights], b->channels);

    for (int64_t r = 0; r < x.num && w != NULL; ++r)
        for (int h = 0; h < b->s.heads; ++h) {
            double *v = x.v + r * x.cols + first + h * b->s.dim, squares = 0;
            for (int c = 0; c < b->s.dim; ++c)
                squares += v[c] * v[c] / b->s.dim;
            for (int c = 0; c < b->s.dim; ++c)
                v[c] *= w[h * b->s.dim + c] / sqrt(squares + 1e-5);
        }
    free(w);
    return w == NULL;
}

static void rotate(const block *b, rows x, int first, const int32_t *coords)
{
    const int axis_dim = b->rotary.axis_dim, half = axis_dim / 2;
    for (int64_t r = 0; r < x.num; ++r)
        for (int h = 0; h < b->s.heads; ++h)
            for (int k = 0; k < 3 * half; ++k) {
                const int axis = k / half, p = k % half;
                double *u = x.v + r * x.cols + first + h * b->s.dim + axis * axis_dim + p;
                const double a = coords[3 * r + axis] * pow(10000, -2.0 * p / axis_dim);
                const double u0 = u[0], v0 = u[half];
                u[0] = u0 * cos(a) - v0 * sin(a);
                u[half] = v0 * cos(a) + u0 * sin(a);
            }
}

/* Every row of q meets every row of k and v; columns begin at q_at, k_at, v_at. */
static int attend(const block *b, rows q, int q_at, rows kv, int k_at, int v_at, rows out)
{
    double *p = (double *)malloc((size_t)kv.num * sizeof *p);

    for (int64_t r = 0; r < q.num && p != NULL; ++r)
        for (int h = 0; h < b->s.heads; ++h) {
            const double *from = q.v + r * q.cols + q_at + h * b->s.dim;
            double *to = out.v + r * out.cols + h * b->s.dim, most = -INFINITY, sum = 0;
            for (int64_t j = 0; j < kv.num; ++j) {
                const double *key = kv.v + j * kv.cols + k_at + h * b->s.dim;
                p[j] = 0;
                for (int c = 0; c < b->s.dim; ++c)
                    p[j] += from[c] * key[c] / sqrt(b->s.dim);
                most = fmax(most, p[j]);
            }
            for (int64_t j = 0; j < kv.num; ++j)
                sum += p[j] = exp(p[j] - most);
            for (int c = 0; c < b->s.dim; ++c)
                to[c] = 0;
            for (int64_t j = 0; j < kv.num; ++j)
                for (int c = 0; c < b->s.dim; ++c)
                    to[c] += p[j] / sum * kv.v[j * kv.cols + v_at + h * b->s.dim + c];
        }
    free(p);
    return p == NULL;
}

static int run(const block *b, rows x, rows context, const int32_t *coords)
{
    const int c = b->channels;
    rows h = take(x.num, c), o = take(x.num, c), qkv = take(x.num, 3 * c);
    rows kv = take(context.num, 2 * c), wide = take(x.num, b->hidden);
    double *gate1 = block_download_vector(b, b->vectors[GATE1], c);
    double *gate3 = block_download_vector(b, b->vectors[GATE3], c);
    int failed = h.v == NULL || o.v == NULL || qkv.v == NULL || kv.v == NULL || wide.v == NULL ||
                 gate1 == NULL || gate3 == NULL || c > 4096;

    failed = failed || run_norm(b, x, GAMMA1, BETA1, h) ||
             run_linear(b, QKV, h, NULL, NULL, 0, qkv) || run_head_norm(b, qkv, 0, Q_WEIGHT) ||
             run_head_norm(b, qkv, c, K_WEIGHT);
    if (!failed) {
        rotate(b, qkv, 0, coords);
        rotate(b, qkv, c, coords);
    }
    failed = failed || attend(b, qkv, 0, qkv, c, 2 * c, o) ||
             run_linear(b, OUT, o, gate1, x.v, 0, x) || run_norm(b, x, GAMMA2, BETA2, h) ||
             run_linear(b, CROSS_Q, h, NULL, NULL, 0, o) ||
             run_linear(b, CROSS_KV, context, NULL, NULL, 0, kv) ||
             run_head_norm(b, o, 0, CROSS_Q_WEIGHT) || run_head_norm(b, kv, 0, CROSS_K_WEIGHT) ||
             attend(b, o, 0, kv, 0, c, h) || run_linear(b, CROSS_OUT, h, NULL, x.v, 0, x) ||
             run_norm(b, x, GAMMA3, BETA3, h) || run_linear(b, WIDEN, h, NULL, NULL, 1, wide) ||
             run_linear(b, NARROW, wide, gate3, x.v, 0, x);
    free(h.v);
    free(o.v);
    free(qkv.v);
    free(kv.v);
    free(wide.v);
    free(gate1);
    free(gate3);
    return failed;
}

int reference_compare(const block *b, double *difference)
{
    const size_t n = (size_t)b->s.tokens * (size_t)b->channels;
    const size_t bytes = (size_t)b->s.tokens * 3 * sizeof(int32_t);
    rows x = {b->s.tokens, b->channels, block_download(b, b->input)};
    rows context = {b->s.context, b->s.context_channels, block_download(b, b->context)};
    double *found = block_download(b, b->x), worst = 0, largest = 0;
    int32_t *coords = (int32_t *)malloc(bytes);
    const int failed = x.v == NULL || context.v == NULL || found == NULL || coords == NULL ||
                       device_download(b->d, coords, b->coords, bytes) ||
                       run(b, x, context, coords);

    for (size_t i = 0; i < n && !failed; ++i) {
        const double error = fabs(found[i] - x.v[i]);
        if (!(error <= worst)) worst = error; /* also for NaN */
        largest = fmax(largest, fabs(x.v[i]));
    }
    *difference = largest > 0 ? worst / largest : INFINITY;
    free(x.v);
    free(context.v);
    free(found);
    free(coords);
    return failed;
}
