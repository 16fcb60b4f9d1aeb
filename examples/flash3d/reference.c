// SPDX-License-Identifier: Apache-2.0
#include "flash3d/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double *reference_download(const device *d, spops_matrix m)
{
    const size_t count = (size_t)(m.rows * m.cols), each = spops_dtype_bytes(m.dtype);
    double *values = malloc(count * sizeof *values + 1);
    char *bytes = malloc(count * each + 1);

    if (values == NULL || bytes == NULL || device_download(d, bytes, m.data, count * each)) {
        free(values);
        free(bytes);
        return NULL;
    }
    for (size_t i = 0; i < count; ++i) {
        uint32_t bits = 0;
        float v;
        memcpy((char *)&bits + 4 - each, bytes + i * each, each); /* bf16 is the upper half */
        memcpy(&v, &bits, sizeof v);
        values[i] = v;
    }
    free(bytes);
    return values;
}

void reference_product(const double *x, int64_t rows, const parameter *w, double *out)
{
    memset(out, 0, (size_t)(rows * w->cols) * sizeof *out);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < w->rows; ++c)
            for (int64_t o = 0; o < w->cols; ++o)
                out[r * w->cols + o] += x[r * w->rows + c] * (double)w->host[c * w->cols + o];
}

void reference_norm(const double *x, int64_t rows, const parameter *gamma, const parameter *beta,
                    double *out)
{
    const int64_t cols = gamma->cols;
    for (int64_t r = 0; r < rows; ++r) {
        double mean = 0.0, var = 0.0;
        for (int64_t c = 0; c < cols; ++c)
            mean += x[r * cols + c] / (double)cols;
        for (int64_t c = 0; c < cols; ++c)
            var += (x[r * cols + c] - mean) * (x[r * cols + c] - mean) / (double)cols;
        for (int64_t c = 0; c < cols; ++c)
            out[r * cols + c] =
                (x[r * cols + c] - mean) * (double)gamma->host[c] / sqrt(var + 1e-5) +
                (double)beta->host[c];
    }
}

/* The columns of a head, turned by the coordinates of its row. */
static void turn(double *head, const float *coords)
{
    for (int a = 0; a < 3; ++a)
        for (int p = 0; p < AXIS_DIM / 2; ++p) {
            double *u = head + a * AXIS_DIM + p, *v = u + AXIS_DIM / 2;
            const double angle = (double)coords[a] * pow(100.0, -2.0 * p / AXIS_DIM);
            const double turned = *u * cos(angle) - *v * sin(angle);
            *v = *v * cos(angle) + *u * sin(angle);
            *u = turned;
        }
}

/* One query of one head against the keys of its patch. */
static void attend(const double *qkv, int64_t channels, int64_t query, int64_t head,
                   const int32_t *keys, int num_keys, double *weights, double *o)
{
    const double *q = qkv + query * 3 * channels + head * HEAD_DIM;
    double largest = -INFINITY, sum = 0.0;
    for (int e = 0; e < num_keys; ++e) {
        const double *k = qkv + keys[e] * 3 * channels + channels + head * HEAD_DIM;
        weights[e] = 0.0;
        for (int c = 0; c < HEAD_DIM; ++c)
            weights[e] += q[c] * k[c] / sqrt((double)HEAD_DIM);
        largest = fmax(largest, weights[e]);
    }
    for (int e = 0; e < num_keys; ++e)
        sum += weights[e] = exp(weights[e] - largest);
    for (int e = 0; e < num_keys; ++e) {
        const double *v = qkv + keys[e] * 3 * channels + 2 * channels + head * HEAD_DIM;
        for (int c = 0; c < HEAD_DIM; ++c)
            o[query * channels + head * HEAD_DIM + c] += weights[e] / sum * v[c];
    }
}

typedef struct lists {
    int32_t num_patches, *query_offsets, *query_rows, *key_offsets, *key_rows;
} lists;

static int32_t *download_ints(const device *d, const int32_t *from, int64_t count)
{
    int32_t *to = malloc((size_t)count * sizeof *to + 1);
    if (to != NULL && !device_download(d, to, from, (size_t)count * sizeof *to)) return to;
    free(to);
    return NULL;
}

static int lists_read(const device *d, const spops_patches *patches, lists *l)
{
    spops_patches_view view = spops_patches_view_default();
    memset(l, 0, sizeof *l);
    if (spops_patches_get_view(d->ctx, patches, &view) != SPOPS_STATUS_OK ||
        device_download(d, &l->num_patches, view.num_patches, sizeof l->num_patches))
        return 1;
    l->query_offsets = download_ints(d, view.query_offsets, l->num_patches + 1);
    l->key_offsets = download_ints(d, view.key_offsets, l->num_patches + 1);
    if (l->query_offsets == NULL || l->key_offsets == NULL) return 1;
    l->query_rows = download_ints(d, view.query_rows, l->query_offsets[l->num_patches]);
    l->key_rows = download_ints(d, view.key_rows, l->key_offsets[l->num_patches]);
    return l->query_rows == NULL || l->key_rows == NULL;
}

static void lists_free(lists *l)
{
    free(l->query_offsets), free(l->query_rows), free(l->key_offsets), free(l->key_rows);
}

static void attention(const lists *l, int64_t rows, int64_t channels, const float *coords,
                      double *qkv, double *weights, double *o)
{
    memset(o, 0, (size_t)(rows * channels) * sizeof *o);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t h = 0; h < 2 * channels / HEAD_DIM; ++h) /* the heads of q, then those of k */
            turn(qkv + r * 3 * channels + h * HEAD_DIM, coords + 3 * r);
    for (int p = 0; p < l->num_patches; ++p)
        for (int e = l->query_offsets[p]; e < l->query_offsets[p + 1]; ++e)
            for (int64_t h = 0; h < channels / HEAD_DIM; ++h)
                attend(qkv, channels, l->query_rows[e], h, l->key_rows + l->key_offsets[p],
                       l->key_offsets[p + 1] - l->key_offsets[p], weights, o);
}

static void add(double *to, const double *what, int64_t count)
{
    for (int64_t i = 0; i < count; ++i)
        to[i] += what[i];
}

int reference_block(const device *d, const block *b, const spops_patches *patches, int64_t rows,
                    const float *coords, double *x)
{
    const int64_t c = b->channels, wide = WIDER * c;
    const size_t most = (size_t)(rows * wide);
    double *normed = malloc(most * sizeof *normed + 1), *hidden = malloc(most * sizeof *hidden + 1);
    double *weights = malloc((size_t)rows * sizeof *weights + 1);
    lists l;
    int failed = lists_read(d, patches, &l) || normed == NULL || hidden == NULL || weights == NULL;

    if (!failed) {
        reference_norm(x, rows, &b->gamma[0], &b->beta[0], normed);
        reference_product(normed, rows, &b->qkv, hidden);
        attention(&l, rows, c, coords, hidden, weights, normed);
        reference_product(normed, rows, &b->projection, hidden);
        add(x, hidden, rows * c);
        reference_norm(x, rows, &b->gamma[1], &b->beta[1], normed);
        reference_product(normed, rows, &b->up, hidden);
        for (int64_t i = 0; i < rows * wide; ++i)
            hidden[i] = fmax(hidden[i] + (double)b->bias.host[i % wide], 0.0);
        reference_product(hidden, rows, &b->down, normed);
        add(x, normed, rows * c);
    }
    lists_free(&l);
    free(normed), free(hidden), free(weights);
    return failed;
}
