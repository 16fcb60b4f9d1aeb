// SPDX-License-Identifier: Apache-2.0
/* The network in FP64: rows are found by looking at all of them. */
#include "spconv_benchmark/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct level {
    int num_rows;
    int32_t *rows; /* [num_rows][4]: batch, x, y, z, in the order of the engine */
    int *near;     /* [num_rows][TAPS] row that a tap joins, or -1 */
    int *children; /* [num_rows][8] row of the finer level, or -1; NULL for level 0 */
} level;

typedef struct reference {
    const engine *e;
    level levels[LEVELS];
} reference;

/* ---- Levels ----------------------------------------------------------------------------------- */

static int find_row(const level *l, const int32_t *row)
{
    for (int i = 0; i < l->num_rows; ++i)
        if (memcmp(l->rows + 4 * i, row, 4 * sizeof *row) == 0) return i;
    return -1;
}

static void find_near(level *l)
{
    for (int i = 0; i < l->num_rows; ++i)
        for (int k = 0; k < TAPS; ++k) {
            const int32_t *p = l->rows + 4 * i;
            const int32_t q[4] = {p[0], p[1] + k / 9 - 1, p[2] + k / 3 % 3 - 1, p[3] + k % 3 - 1};
            l->near[i * TAPS + k] = find_row(l, q);
        }
}

/* Coordinates are not negative. Every finer row must have a parent, and every row a child. */
static int find_children(level *l, const level *finer)
{
    int missing = 0;
    for (int i = 0; i < 8 * l->num_rows; ++i)
        l->children[i] = -1;
    for (int j = 0; j < finer->num_rows; ++j) {
        const int32_t *p = finer->rows + 4 * j;
        const int32_t q[4] = {p[0], p[1] / 2, p[2] / 2, p[3] / 2};
        const int i = find_row(l, q);
        if (i < 0)
            missing = 1;
        else
            l->children[8 * i + p[1] % 2 * 4 + p[2] % 2 * 2 + p[3] % 2] = j;
    }
    for (int i = 0; i < l->num_rows; ++i) {
        int found = 0;
        for (int k = 0; k < 8; ++k)
            found |= l->children[8 * i + k] >= 0;
        missing |= !found;
    }
    if (missing) fprintf(stderr, "a level's rows are not those of the finer one\n");
    return missing;
}

static int read_levels(reference *r)
{
    const engine *e = r->e;
    for (int i = 0; i < LEVELS; ++i) {
        level *l = &r->levels[i];
        const size_t n = (size_t)e->sizes.num_rows[i];
        spops_coords_view view = spops_coords_view_default();
        l->num_rows = (int)n;
        l->rows = (int32_t *)malloc(n * 4 * sizeof *l->rows + 1);
        l->near = (int *)malloc(n * TAPS * sizeof *l->near + 1);
        l->children = i == 0 ? NULL : (int *)malloc(n * 8 * sizeof *l->children + 1);
        if (l->rows == NULL || l->near == NULL || (i > 0 && l->children == NULL) ||
            spops_coords_get_view(e->d->ctx, spops_pyramid_coords(e->pyramid, i), &view) !=
                SPOPS_STATUS_OK ||
            device_download(e->d, l->rows, view.rows, n * 4 * sizeof *l->rows))
            return 1;
        find_near(l);
        if (i > 0 && find_children(l, l - 1)) return 1;
    }
    return 0;
}

static void free_levels(reference *r)
{
    for (int i = 0; i < LEVELS; ++i) {
        free(r->levels[i].rows);
        free(r->levels[i].near);
        free(r->levels[i].children);
    }
}

/* ---- Parts ------------------------------------------------------------------------------------ */

static void convolve(const level *l, const part *t, const double *x, const double *w, double *out)
{
    for (int i = 0; i < l->num_rows; ++i)
        for (int k = 0; k < TAPS; ++k) {
            const int j = l->near[i * TAPS + k];
            for (int c = 0; j >= 0 && c < t->in; ++c) {
                const double *to = w + ((size_t)k * (size_t)t->in + (size_t)c) * (size_t)t->out;
                for (int o = 0; o < t->out; ++o)
                    out[i * t->out + o] += x[j * t->in + c] * to[o];
            }
        }
}

static void convolve_backward(const level *l, const part *t, const double *grad_out,
                              const double *x, const double *w, double *grad_x, double *grad_w)
{
    for (int i = 0; i < l->num_rows; ++i)
        for (int k = 0; k < TAPS; ++k) {
            const int j = l->near[i * TAPS + k];
            for (int c = 0; j >= 0 && c < t->in; ++c) {
                const size_t at = ((size_t)k * (size_t)t->in + (size_t)c) * (size_t)t->out;
                for (int o = 0; o < t->out; ++o) {
                    grad_x[j * t->in + c] += grad_out[i * t->out + o] * w[at + (size_t)o];
                    grad_w[at + (size_t)o] += grad_out[i * t->out + o] * x[j * t->in + c];
                }
            }
        }
}

/* The child that has the largest element of a column: the earliest of equal ones. */
static int winner(const level *l, const double *x, int cols, int i, int c)
{
    int best = -1;
    for (int k = 0; k < 8; ++k) {
        const int j = l->children[8 * i + k];
        if (j >= 0 && (best < 0 || x[j * cols + c] > x[best * cols + c])) best = j;
    }
    return best;
}

static void pool(const level *l, int cols, const double *x, double *out)
{
    for (int i = 0; i < l->num_rows; ++i)
        for (int c = 0; c < cols; ++c)
            out[i * cols + c] = x[winner(l, x, cols, i, c) * cols + c];
}

static void pool_backward(const level *l, int cols, const double *grad_out, const double *x,
                          double *grad_x)
{
    for (int i = 0; i < l->num_rows; ++i)
        for (int c = 0; c < cols; ++c)
            grad_x[winner(l, x, cols, i, c) * cols + c] += grad_out[i * cols + c];
}

/* ---- Comparing -------------------------------------------------------------------------------- */

double reference_difference(const double *expected, const double *x, size_t n)
{
    double largest = 0, worst = 0;
    for (size_t i = 0; i < n; ++i) {
        const double error = fabs(x[i] - expected[i]);
        if (!(error <= worst)) worst = error; /* also NaN */
        if (isnan(worst)) return worst;
        largest = fmax(largest, fabs(expected[i]));
    }
    return largest > 0 ? worst / largest : worst;
}

static double *zeros(spops_matrix m)
{
    return (double *)calloc((size_t)(m.rows * m.cols) + 1, sizeof(double));
}

static double *all_of(const engine *e, spops_matrix m)
{
    return engine_download(e, m, m.rows);
}

/* From the engine's first rows to the last, all in FP64. */
static int compare_output(const reference *r, double *difference)
{
    const engine *e = r->e;
    double *x = all_of(e, e->rows[0]), *last = all_of(e, e->rows[PARTS]);
    int failed = x == NULL || last == NULL;
    for (int p = 0; p < PARTS && !failed; ++p) {
        const part *t = &e->parts[p];
        double *out = zeros(e->rows[p + 1]), *w = t->pools ? NULL : all_of(e, t->w);
        failed = out == NULL || (!t->pools && w == NULL);
        if (!failed && t->pools)
            pool(&r->levels[t->level + 1], t->in, x, out);
        else if (!failed)
            convolve(&r->levels[t->level], t, x, w, out);
        free(w);
        free(x);
        x = out;
    }
    if (!failed)
        *difference =
            reference_difference(x, last, (size_t)(e->rows[PARTS].rows * e->rows[PARTS].cols));
    free(x);
    free(last);
    return failed;
}

static void keep_worst(double *worst, double difference)
{
    if (!(difference <= *worst) && !isnan(*worst)) *worst = difference;
}

/* A part's gradients, from the rows and the gradient that the engine gave it. */
static int compare_part(const reference *r, int p, double *worst)
{
    const engine *e = r->e;
    const part *t = &e->parts[p];
    const size_t n = (size_t)(e->rows[p].rows * t->in);
    double *x = all_of(e, e->rows[p]), *grad_out = all_of(e, e->grads[p + 1]);
    double *got = all_of(e, e->grads[p]), *grad_x = zeros(e->rows[p]);
    int failed = x == NULL || grad_out == NULL || got == NULL || grad_x == NULL;
    if (!failed && t->pools) {
        pool_backward(&r->levels[t->level + 1], t->in, grad_out, x, grad_x);
    } else if (!failed) {
        double *w = all_of(e, t->w), *got_w = all_of(e, t->grad_w), *grad_w = zeros(t->w);
        failed = w == NULL || got_w == NULL || grad_w == NULL;
        if (!failed) {
            convolve_backward(&r->levels[t->level], t, grad_out, x, w, grad_x, grad_w);
            keep_worst(worst, reference_difference(grad_w, got_w, (size_t)(t->w.rows * t->w.cols)));
        }
        free(w);
        free(got_w);
        free(grad_w);
    }
    if (!failed) keep_worst(worst, reference_difference(grad_x, got, n));
    free(x);
    free(grad_out);
    free(got);
    free(grad_x);
    return failed;
}

int reference_compare(const engine *e, differences *found)
{
    reference r;
    int failed;
    memset(&r, 0, sizeof r);
    memset(found, 0, sizeof *found);
    r.e = e;
    failed = read_levels(&r) || compare_output(&r, &found->output);
    for (int p = 0; p < PARTS && !failed; ++p)
        failed = compare_part(&r, p, &found->gradients);
    free_levels(&r);
    return failed;
}

static int poison(const engine *e, spops_matrix m)
{
    const size_t bytes = (size_t)(m.rows * m.cols) * spops_dtype_bytes(m.dtype);
    void *nan = malloc(bytes + 1);
    int failed = nan == NULL;
    if (!failed) memset(nan, 0xff, bytes);
    failed = failed || device_upload(e->d, m.data, nan, bytes);
    free(nan);
    return failed;
}

int reference_poison(engine *e)
{
    int failed = 0;
    for (int p = 0; p < PARTS && !failed; ++p)
        failed = poison(e, e->rows[p]) || poison(e, e->grads[p]) ||
                 (!e->parts[p].pools && poison(e, e->parts[p].grad_w));
    return failed || poison(e, e->rows[PARTS]);
}
