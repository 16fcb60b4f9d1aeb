// SPDX-License-Identifier: Apache-2.0
/* The network in FP64: rows are found by looking at all of them. */
#include "minkunet/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct point {
    int x[3];
} point;

typedef struct reference {
    const engine *e;
    int num_rows[NUM_LEVELS];
    point *rows[NUM_LEVELS];
    double *buffers[MAX_BUFFERS];
} reference;

static int find_row(const reference *r, int level, point p)
{
    for (int i = 0; i < r->num_rows[level]; ++i)
        if (memcmp(&r->rows[level][i], &p, sizeof p) == 0) return i;
    return -1;
}

static int half(int x) /* rounded down */
{
    return x >= 0 ? x / 2 : -((1 - x) / 2);
}

static point coarser(point p)
{
    for (int a = 0; a < 3; ++a)
        p.x[a] = half(p.x[a]);
    return p;
}

/* The finest level as the engine has it, so that rows can be compared; the others as they come. */
static int read_levels(reference *r)
{
    const engine *e = r->e;
    spops_coords_view view = spops_coords_view_default();
    spops_pyramid_info info;
    int32_t *rows;
    int n;

    if (engine_sizes(e, &info) ||
        spops_coords_get_view(e->d->ctx, spops_voxels_coords(e->voxels), &view) != SPOPS_STATUS_OK)
        return 1;
    n = (int)info.num_rows[0];
    rows = (int32_t *)malloc((size_t)n * 4 * sizeof *rows + 1);
    if (rows == NULL || device_download(e->d, rows, view.rows, (size_t)n * 4 * sizeof *rows)) {
        free(rows);
        return 1;
    }
    for (int l = 0; l < NUM_LEVELS; ++l) {
        r->rows[l] = (point *)calloc((size_t)n + 1, sizeof *r->rows[l]);
        if (r->rows[l] == NULL) break;
        for (int i = 0; l == 0 && i < n; ++i)
            memcpy(&r->rows[0][i], rows + 4 * i + 1, sizeof(point));
        for (int i = 0; l > 0 && i < r->num_rows[l - 1]; ++i) {
            const point p = coarser(r->rows[l - 1][i]);
            if (find_row(r, l, p) < 0) r->rows[l][r->num_rows[l]++] = p;
        }
        if (l == 0) r->num_rows[0] = n;
    }
    free(rows);
    return r->rows[NUM_LEVELS - 1] == NULL;
}

/* The input row that tap k of a layer joins to output row i. */
static int joined_row(const reference *r, const layer *l, int i, int k)
{
    point p = r->rows[l->level][i];
    const int t[3] = {k / (l->taps == 27 ? 9 : 4), k / (l->taps == 27 ? 3 : 2), k};
    switch (l->relation) {
    case WITHIN:
        for (int a = 0; a < 3; ++a)
            p.x[a] += t[a] % 3 - 1;
        return find_row(r, l->level, p);
    case DOWN:
        for (int a = 0; a < 3; ++a)
            p.x[a] = 2 * p.x[a] + t[a] % 2;
        return find_row(r, l->level - 1, p);
    case UP:
        for (int a = 0; a < 3; ++a)
            if (p.x[a] - 2 * half(p.x[a]) != t[a] % 2) return -1;
        return find_row(r, l->level + 1, coarser(p));
    case POINTWISE: break;
    }
    return i;
}

static double *element(const reference *r, const feature_view *v, int row)
{
    return r->buffers[v->buffer] + (size_t)row * (size_t)r->e->net->buffers[v->buffer].cols +
           v->col;
}

/* With the weights as the engine has them, rounded to its dtype. */
static int run_layer(reference *r, const layer *l)
{
    const size_t n = (size_t)l->taps * (size_t)l->in.cols * (size_t)l->out.cols;
    float *w = (float *)malloc(n * sizeof *w);
    void *narrow = malloc(n * sizeof *w);
    if (w == NULL || narrow == NULL ||
        device_convert(r->e->d, SPOPS_DTYPE_F32, l->folded.w, r->e->dtype, narrow, n) ||
        device_convert(r->e->d, r->e->dtype, narrow, SPOPS_DTYPE_F32, w, n)) {
        free(w);
        free(narrow);
        return 1;
    }
    for (int i = 0; i < r->num_rows[l->level]; ++i) {
        double *out = element(r, &l->out, i);
        for (int o = 0; o < l->out.cols; ++o)
            out[o] = 0;
        for (int k = 0; k < l->taps; ++k) {
            const int j = joined_row(r, l, i, k);
            const double *x = j < 0 ? NULL : element(r, &l->in, j);
            for (int c = 0; j >= 0 && c < l->in.cols; ++c) {
                const float *to =
                    w + ((size_t)k * (size_t)l->in.cols + (size_t)c) * (size_t)l->out.cols;
                for (int o = 0; o < l->out.cols; ++o)
                    out[o] += x[c] * (double)to[o];
            }
        }
        for (int o = 0; o < l->out.cols; ++o) {
            out[o] = out[o] * (double)l->folded.scale[o] + (double)l->folded.shift[o];
            if (l->residual.cols > 0) out[o] += element(r, &l->residual, i)[o];
            if (l->relu && out[o] < 0) out[o] = 0;
        }
    }
    free(w);
    free(narrow);
    return 0;
}

/* Rows of one of the engine's buffers, as f32. */
static float *download_buffer(const engine *e, int buffer, int rows)
{
    const size_t n = (size_t)rows * (size_t)e->net->buffers[buffer].cols;
    const size_t bytes = n * spops_dtype_bytes(e->dtype);
    float *values = (float *)malloc(n * sizeof *values + 1);
    void *narrow = malloc(bytes + 1);
    if (values == NULL || narrow == NULL ||
        device_download(e->d, narrow, e->buffers[buffer], bytes) ||
        device_convert(e->d, e->dtype, narrow, SPOPS_DTYPE_F32, values, n)) {
        free(values);
        values = NULL;
    }
    free(narrow);
    return values;
}

int reference_compare(const engine *e, double *difference)
{
    const network *net = e->net;
    reference r;
    float *input = NULL, *output = NULL;
    double largest = 0, worst = 0;
    int failed;

    memset(&r, 0, sizeof r);
    r.e = e;
    failed = read_levels(&r);
    for (int b = 0; b < net->num_buffers && !failed; ++b) {
        r.buffers[b] = (double *)calloc(
            (size_t)r.num_rows[net->buffers[b].level] * (size_t)net->buffers[b].cols + 1,
            sizeof(double));
        failed = r.buffers[b] == NULL;
    }
    if (!failed) {
        input = download_buffer(e, net->input, r.num_rows[0]);
        output = download_buffer(e, net->output, r.num_rows[0]);
        failed = input == NULL || output == NULL;
    }
    for (int i = 0; !failed && i < r.num_rows[0] * NUM_INPUTS; ++i)
        r.buffers[net->input][i] = (double)input[i];
    for (int i = 0; i < net->num_layers && !failed; ++i)
        failed = run_layer(&r, &net->layers[i]);
    for (int i = 0; !failed && i < r.num_rows[0] * NUM_OUTPUTS; ++i) {
        const double expected = r.buffers[net->output][i], error = fabs(output[i] - expected);
        if (!(error <= worst)) worst = error; /* also for NaN */
        largest = fmax(largest, fabs(expected));
    }
    *difference = largest > 0 ? worst / largest : worst;
    for (int b = 0; b < MAX_BUFFERS; ++b)
        free(r.buffers[b]);
    for (int l = 0; l < NUM_LEVELS; ++l)
        free(r.rows[l]);
    free(input);
    free(output);
    return failed;
}
