// SPDX-License-Identifier: Apache-2.0
#include "tests/ref/ref_reduce.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

static void *zeros(int64_t n, size_t size)
{
    void *p = calloc(n > 0 ? (size_t)n : 1, size);
    if (p == NULL) abort();
    return p;
}

ref_tensor ref_tensor_create(int64_t rows, int64_t cols)
{
    ref_tensor t = {rows, cols, NULL, NULL, NULL};
    t.value = (double *)zeros(rows * cols, sizeof(double));
    t.scale = (double *)zeros(rows * cols, sizeof(double));
    t.roundings = (double *)zeros(rows * cols, sizeof(double));
    return t;
}

void ref_tensor_destroy(ref_tensor *t)
{
    free(t->value), free(t->scale), free(t->roundings);
    t->value = t->scale = t->roundings = NULL;
}

// The value of a term is w * x rounded to f32, where the product of two f32 is exact in f64; or to f64.
static double term_value(const ref_relation *r, int64_t t, int64_t c, int64_t cols, const double *x,
                         const double *w)
{
    const double xv = x[r->row[t] * cols + c];
    if (w == NULL) return xv;
    return r->is_f64 ? w[r->weight[t]] * xv : (double)(float)(w[r->weight[t]] * xv);
}

static int64_t *count_terms(const ref_relation *r)
{
    int64_t *count = (int64_t *)zeros(r->num_segments, sizeof(int64_t));
    for (int64_t t = 0; t < r->num_terms; ++t)
        ++count[r->segment[t]];
    return count;
}

// Whether v replaces the best so far, which came earlier: NaN stays, ties stay.
static bool better(bool is_min, double v, double best)
{
    if (isnan(best)) return false;
    if (isnan(v)) return true;
    return is_min ? v < best : v > best;
}

static void forward_winners(const ref_relation *r, bool is_min, int64_t cols, const double *x,
                            const double *w, double *value, int32_t *arg)
{
    for (int64_t i = 0; i < r->num_segments * cols; ++i) {
        value[i] = is_min ? (double)INFINITY : -(double)INFINITY;
        arg[i] = -1;
    }
    for (int64_t t = 0; t < r->num_terms; ++t) {
        for (int64_t c = 0; c < cols; ++c) {
            const int64_t i = r->segment[t] * cols + c;
            const double v = term_value(r, t, c, cols, x, w);
            if (arg[i] >= 0 && !better(is_min, v, value[i])) continue;
            value[i] = v;
            arg[i] = (int32_t)t;
        }
    }
}

void ref_reduce_forward(const ref_relation *r, spops_reduce reduce, int64_t cols, const double *x,
                        const double *w, ref_tensor *out, int32_t *arg)
{
    const int64_t n = r->num_segments * cols;
    if (reduce == SPOPS_REDUCE_MIN || reduce == SPOPS_REDUCE_MAX) {
        int32_t *winner = arg != NULL ? arg : (int32_t *)zeros(n, sizeof(int32_t));
        forward_winners(r, reduce == SPOPS_REDUCE_MIN, cols, x, w, out->value, winner);
        if (arg == NULL) free(winner);
        return;
    }
    int64_t *count = count_terms(r);
    const bool prod = reduce == SPOPS_REDUCE_PROD;
    for (int64_t i = 0; i < n; ++i)
        out->value[i] = prod ? 1.0 : 0.0;
    for (int64_t t = 0; t < r->num_terms; ++t) {
        for (int64_t c = 0; c < cols; ++c) {
            const int64_t i = r->segment[t] * cols + c;
            const double v = term_value(r, t, c, cols, x, w);
            if (prod)
                out->value[i] *= v;
            else
                out->value[i] += v, out->scale[i] += fabs(v);
        }
    }
    for (int64_t i = 0; i < n; ++i) {
        const double terms = (double)count[i / cols];
        // Sum: each term is rounded once as a product and in at most terms - 1 additions. Product:
        // at most terms roundings of the whole. Mean: one division more.
        out->roundings[i] = terms;
        if (prod) out->scale[i] = fabs(out->value[i]);
        if (reduce == SPOPS_REDUCE_MEAN && terms > 0) {
            out->value[i] /= terms;
            out->scale[i] /= terms;
            out->roundings[i] += 1.0;
        }
    }
    free(count);
}

bool ref_reduce_is_exact(spops_reduce reduce, bool backward)
{
    switch ((int)reduce) {
    case SPOPS_REDUCE_SUM:
    case SPOPS_REDUCE_MIN:
    case SPOPS_REDUCE_MAX: return true;
    case SPOPS_REDUCE_MEAN:
    case SPOPS_REDUCE_PROD: return !backward; // else 1 / n, or a quotient, rounds on the way
    default: return false;
    }
}

bool ref_reduce_multiplies(spops_reduce reduce)
{
    return reduce == SPOPS_REDUCE_PROD;
}

// What d out / d v of a term needs to know about its segment's column.
typedef struct segment_facts {
    int64_t *count;  // [num_segments]
    int32_t *winner; // [num_segments * cols], MIN and MAX
    double *product; // [num_segments * cols] of the factors that are not zero, PROD
    int32_t *zeros;  // [num_segments * cols], PROD
} segment_facts;

static double term_gradient(const segment_facts *f, spops_reduce reduce, int64_t segment, int64_t i,
                            int64_t t, double v)
{
    switch ((int)reduce) {
    case SPOPS_REDUCE_MEAN: return 1.0 / (double)f->count[segment];
    case SPOPS_REDUCE_MIN:
    case SPOPS_REDUCE_MAX: return f->winner[i] == t ? 1.0 : 0.0;
    case SPOPS_REDUCE_PROD: // the product of the other factors
        if (f->zeros[i] == 0) return f->product[i] / v;
        return f->zeros[i] == 1 && v == 0.0 ? f->product[i] : 0.0;
    default: return 1.0;
    }
}

static segment_facts gather_facts(const ref_relation *r, spops_reduce reduce, int64_t cols,
                                  const double *x, const double *w)
{
    const int64_t n = r->num_segments * cols;
    segment_facts f = {count_terms(r), NULL, NULL, NULL};
    if (reduce == SPOPS_REDUCE_MIN || reduce == SPOPS_REDUCE_MAX) {
        double *value = (double *)zeros(n, sizeof(double));
        f.winner = (int32_t *)zeros(n, sizeof(int32_t));
        forward_winners(r, reduce == SPOPS_REDUCE_MIN, cols, x, w, value, f.winner);
        free(value);
    } else if (reduce == SPOPS_REDUCE_PROD) {
        f.product = (double *)zeros(n, sizeof(double));
        f.zeros = (int32_t *)zeros(n, sizeof(int32_t));
        for (int64_t i = 0; i < n; ++i)
            f.product[i] = 1.0;
        for (int64_t t = 0; t < r->num_terms; ++t) {
            for (int64_t c = 0; c < cols; ++c) {
                const int64_t i = r->segment[t] * cols + c;
                const double v = term_value(r, t, c, cols, x, w);
                if (v == 0.0)
                    ++f.zeros[i];
                else
                    f.product[i] *= v;
            }
        }
    }
    return f;
}

void ref_reduce_backward(const ref_relation *r, spops_reduce reduce, int64_t cols, const double *x,
                         const double *w, const double *grad_out, ref_tensor *grad_x,
                         ref_tensor *grad_w)
{
    segment_facts f = gather_facts(r, reduce, cols, x, w);
    int64_t *terms_of_row = (int64_t *)zeros(r->num_rows, sizeof(int64_t));
    int64_t *terms_of_weight = (int64_t *)zeros(r->num_weights, sizeof(int64_t));
    for (int64_t t = 0; t < r->num_terms; ++t) {
        ++terms_of_row[r->row[t]];
        if (grad_w != NULL) ++terms_of_weight[r->weight[t]];
    }
    for (int64_t t = 0; t < r->num_terms; ++t) {
        const int64_t s = r->segment[t], j = r->row[t];
        // Roundings before the sum over terms: the gradient itself (1 / n, or a product of n
        // factors and a division) and its products with w (or x) and grad_out.
        double own = 2.0;
        if (reduce == SPOPS_REDUCE_MEAN) own = 3.0;
        if (reduce == SPOPS_REDUCE_PROD) own = 3.0 + (double)f.count[s];
        for (int64_t c = 0; c < cols; ++c) {
            const double v = term_value(r, t, c, cols, x, w);
            const double g = term_gradient(&f, reduce, s, s * cols + c, t, v);
            const double go = grad_out[s * cols + c];
            if (grad_x != NULL) {
                const int64_t i = j * cols + c;
                const double part = (w != NULL ? w[r->weight[t]] : 1.0) * g * go;
                const double roundings = own + (double)terms_of_row[j];
                grad_x->value[i] += part;
                grad_x->scale[i] += fabs(part);
                if (grad_x->roundings[i] < roundings) grad_x->roundings[i] = roundings;
            }
            if (grad_w != NULL) {
                const int64_t i = r->weight[t];
                const double part = x[j * cols + c] * g * go;
                const double roundings = own + (double)(terms_of_weight[i] * cols);
                grad_w->value[i] += part;
                grad_w->scale[i] += fabs(part);
                if (grad_w->roundings[i] < roundings) grad_w->roundings[i] = roundings;
            }
        }
    }
    free(terms_of_row), free(terms_of_weight);
    free(f.count), free(f.winner), free(f.product), free(f.zeros);
}
