// SPDX-License-Identifier: Apache-2.0
#include "tests/ref/ref_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Of the evaluation that is bounded: its roundoff, and what an exponential is off by.
static double u, exp_error;

static void set_units(const ref_attention *a)
{
    u = a->is_f64 ? 0x1p-52 : 0x1p-24;
    exp_error = a->is_f64 ? 0x1p-51 : 0x1p-21;
}

static double gamma_of(double k)
{
    return k * u / (1.0 - k * u);
}

static double *numbers(int64_t n)
{
    double *p = (double *)calloc((size_t)n + 1, sizeof *p);
    if (p == NULL) abort();
    return p;
}

// Rows of a head, as they are multiplied, and what they may be off by: [n][dim].
typedef struct factors {
    int64_t n;
    double *value, *error;
} factors;

static void destroy_factors(factors *f)
{
    free(f->value), free(f->error);
}

// Sides of a product that are normalised and turned.
enum { OF_Q, OF_K, PLAIN };

static double angle_of(const ref_attention *a, int side, int64_t row, int64_t axis, int64_t pair)
{
    const double *coords = side == OF_Q ? a->coords : a->key_coords;
    return coords[row * 3 + axis] * pow(a->base, -(double)pair / (double)a->pairs);
}

static int64_t heads_of(const ref_attention *a, int side)
{
    return side == OF_Q ? a->heads : a->kv_heads;
}

// The head of k and v that a head of q meets.
static int64_t kv_head(const ref_attention *a, int64_t head)
{
    return head / (a->heads / a->kv_heads);
}

static const double *weights_of(const ref_attention *a, int side, int64_t head)
{
    return a->weights[side] + (a->one_weight[side] ? 0 : head * a->dim);
}

static double norm_factor(const ref_attention *a, const double *x)
{
    double squares = 0.0;
    for (int64_t c = 0; c < a->dim; ++c)
        squares += x[c] * x[c];
    return 1.0 / sqrt(squares / (double)a->dim + a->epsilon);
}

// Relative to the magnitudes of a pair.
static double turn_error(double angle)
{
    return 3.0 * u * fabs(angle) + 8.0 * u;
}

static void turn(const ref_attention *a, int side, int64_t row, double *x, double *error)
{
    for (int64_t axis = 0; axis < 3; ++axis) {
        for (int64_t p = 0; p < a->pairs; ++p) {
            const int64_t i = axis * 2 * a->pairs + p, j = i + a->pairs;
            const double angle = angle_of(a, side, row, axis, p), first = x[i], second = x[j];
            const double off =
                (turn_error(angle) + a->roundings.unit) * (fabs(first) + fabs(second)) +
                a->roundings.subnormal;
            x[i] = first * cos(angle) - second * sin(angle);
            x[j] = second * cos(angle) + first * sin(angle);
            error[i] = error[j] = error[i] + error[j] + off;
        }
    }
}

static void normalise(const ref_attention *a, int side, int64_t head, double *x, double *error)
{
    const double *weights = weights_of(a, side, head), factor = norm_factor(a, x);
    for (int64_t c = 0; c < a->dim; ++c) {
        x[c] *= factor * weights[c];
        error[c] = ((double)a->dim + 8.0) * u * fabs(x[c]);
        if (a->pairs == 0) error[c] += a->roundings.unit * fabs(x[c]) + a->roundings.subnormal;
    }
}

static factors gather(const ref_attention *a, const double *m, const int32_t *rows, int64_t n,
                      int64_t heads, int64_t head, int side)
{
    factors f = {n, numbers(n * a->dim), numbers(n * a->dim)};
    for (int64_t i = 0; i < n; ++i) {
        double *x = f.value + i * a->dim, *error = f.error + i * a->dim;
        for (int64_t c = 0; c < a->dim; ++c)
            x[c] = m[(rows[i] * heads + head) * a->dim + c];
        if (side != PLAIN && a->weights[side] != NULL) normalise(a, side, head, x, error);
        if (side != PLAIN && a->pairs > 0) turn(a, side, rows[i], x, error);
        for (int64_t c = 0; c < a->dim; ++c)
            if (isfinite(x[c])) error[c] += a->roundings.factor * fabs(x[c]);
    }
    return f;
}

// Where the table has the bias of two rows along an axis.
static int64_t element_of(const ref_attention *a, int64_t q_row, int64_t k_row, int64_t axis)
{
    const double d = a->coords[q_row * 3 + axis] - a->key_coords[k_row * 3 + axis];
    const double range = (double)a->range;
    return axis * (2 * a->range + 1) + a->range + (int64_t)fmax(-range, fmin(range, d));
}

// A dot product of x and y, its magnitudes, and what it is off by.
static double dot(int64_t n, const double *x, const double *x_error, const double *y,
                  const double *y_error, double *magnitude, double *error)
{
    double sum = 0.0, all = 0.0, off = 0.0;
    for (int64_t c = 0; c < n; ++c) {
        const double ax = fabs(x[c]), ay = fabs(y[c]);
        sum += x[c] * y[c];
        all += (ax + x_error[c]) * (ay + y_error[c]);
        off += ax * y_error[c] + ay * x_error[c] + x_error[c] * y_error[c];
    }
    *magnitude = all;
    *error = off + gamma_of((double)n + 4.0) * all;
    return sum;
}

// The logit of a query and a key, and what it is off by.
static double logit(const ref_attention *a, int64_t head, const factors *q, int64_t i,
                    int64_t q_row, const factors *k, int64_t j, int64_t k_row, double *error)
{
    double magnitude, s;
    s = a->scale * dot(a->dim, q->value + i * a->dim, q->error + i * a->dim, k->value + j * a->dim,
                       k->error + j * a->dim, &magnitude, error);
    *error = fabs(a->scale) * (*error + 4.0 * u * magnitude);
    for (int64_t axis = 0; a->table != NULL && axis < 3; ++axis) {
        const double b = a->table[element_of(a, q_row, k_row, axis) * a->heads + head];
        s += b;
        *error += 4.0 * u * (fabs(b) + fabs(s));
    }
    return s;
}

// ---- Forward ------------------------------------------------------------------------------------

static void attend(const ref_attention *a, int64_t patch, int64_t head, ref_tensor *o,
                   ref_tensor *lse)
{
    const int32_t *q_rows = a->q_rows + a->q_offsets[patch];
    const int32_t *k_rows = a->k_rows + a->k_offsets[patch];
    const int64_t num_q = a->q_offsets[patch + 1] - a->q_offsets[patch];
    const int64_t n = a->k_offsets[patch + 1] - a->k_offsets[patch];
    const int64_t kv = kv_head(a, head);
    factors q = gather(a, a->q, q_rows, num_q, a->heads, head, OF_Q);
    factors k = gather(a, a->k, k_rows, n, a->kv_heads, kv, OF_K);
    factors v = gather(a, a->v, k_rows, n, a->kv_heads, kv, PLAIN);
    double *s = numbers(n), *magnitude = numbers(a->dim), *sum_v = numbers(a->dim);

    for (int64_t i = 0; n > 0 && i < num_q; ++i) {
        const int64_t at = q_rows[i] * a->heads * a->dim + head * a->dim;
        double max = -INFINITY, total = 0.0, error = 0.0, largest = 0.0;
        bool is_nan = false;
        for (int64_t j = 0; j < n; ++j) {
            double off;
            s[j] = logit(a, head, &q, i, q_rows[i], &k, j, k_rows[j], &off);
            is_nan |= isnan(s[j]);
            max = fmax(max, s[j]);
            if (!isfinite(s[j])) continue; // of weight 0, or the query is lost
            error = fmax(error, off);
            largest = fmax(largest, fabs(s[j]));
        }
        error += 8.0 * u * largest;
        for (int64_t j = 0; j < n; ++j)
            total += s[j] = exp(s[j] - max);
        memset(magnitude, 0, (size_t)a->dim * sizeof *magnitude);
        memset(sum_v, 0, (size_t)a->dim * sizeof *sum_v);
        for (int64_t j = 0; j < n; ++j) {
            for (int64_t c = 0; c < a->dim; ++c) {
                const double x = v.value[j * a->dim + c];
                o->value[at + c] += s[j] / total * x;
                magnitude[c] += s[j] / total * fabs(x);
                sum_v[c] += fabs(x);
            }
        }
        for (int64_t c = 0; c < a->dim; ++c)
            o->scale[at + c] =
                magnitude[c] * (expm1(2.0 * error) + exp_error + 2.0 * a->roundings.unit +
                                2.0 * a->roundings.factor + gamma_of(2.0 * (double)n + 20.0)) +
                sum_v[c] * (a->roundings.subnormal + 0x1p-120);
        lse->value[q_rows[i] * a->heads + head] = is_nan ? (double)NAN : max + log(total);
        lse->scale[q_rows[i] * a->heads + head] =
            error + exp_error + gamma_of((double)n + 16.0) + 8.0 * u * (largest + log((double)n));
    }
    destroy_factors(&q), destroy_factors(&k), destroy_factors(&v);
    free(s), free(magnitude), free(sum_v);
}

void ref_attention_forward(const ref_attention *a, ref_tensor *o, ref_tensor *lse)
{
    set_units(a);
    for (int64_t i = 0; i < a->num_rows * a->heads; ++i)
        lse->value[i] = -INFINITY;
    for (int64_t patch = 0; patch < a->num_patches; ++patch)
        for (int64_t head = 0; head < a->heads; ++head)
            attend(a, patch, head, o, lse);
}

// ---- Backward -----------------------------------------------------------------------------------

// Gradients of the rows of a list, [n][dim] each: values, what they are off by, and the sums of
// magnitudes that roundings of additions are relative to.
typedef struct sums {
    double *value, *error, *magnitude;
} sums;

static sums make_sums(int64_t n)
{
    return (sums){numbers(n), numbers(n), numbers(n)};
}

static void destroy_sums(sums *s)
{
    free(s->value), free(s->error), free(s->magnitude);
}

// s[i] += factor * x * y, of which x is off by x_error and y by y_error.
static void add(sums *s, int64_t i, double factor, double x, double x_error, double y,
                double x_magnitude, double y_error)
{
    const double f = fabs(factor);
    s->value[i] += factor * x * y;
    s->error[i] += f * (x_error * (fabs(y) + y_error) + x_magnitude * y_error);
    s->magnitude[i] += f * (x_magnitude + x_error) * (fabs(y) + y_error);
}

// Sums of a list to the rows of a tensor, where they are turned back; `terms` were added to each.
static void scatter(const ref_attention *a, const int32_t *rows, int64_t n, int64_t head,
                    int64_t terms, int side, sums *s, ref_tensor *t)
{
    if (t == NULL) return;
    const bool turned = side != PLAIN && a->pairs > 0;
    const double parts = (double)(a->num_patches + a->heads / a->kv_heads);
    for (int64_t i = 0; i < n; ++i) {
        double *value = s->value + i * a->dim, *error = s->error + i * a->dim;
        const double *magnitude = s->magnitude + i * a->dim;
        for (int64_t c = 0; c < a->dim; ++c)
            error[c] += gamma_of((double)terms + 8.0) * magnitude[c];
        for (int64_t axis = 0; turned && axis < 3; ++axis) {
            for (int64_t p = 0; p < a->pairs; ++p) {
                const int64_t x = axis * 2 * a->pairs + p, y = x + a->pairs;
                const double angle = angle_of(a, side, rows[i], axis, p);
                const double first = value[x], second = value[y];
                const double off =
                    error[x] + error[y] + turn_error(angle) * (magnitude[x] + magnitude[y]);
                value[x] = first * cos(angle) + second * sin(angle);
                value[y] = second * cos(angle) - first * sin(angle);
                error[x] = error[y] = off;
            }
        }
        for (int64_t c = 0; c < a->dim; ++c) {
            const int64_t at = rows[i] * t->cols + head * a->dim + c;
            t->value[at] += value[c];
            // the rows of a key of several patches, and of several heads, are added, which rounds once
            // for each
            t->scale[at] += error[c] + gamma_of(parts) * magnitude[c];
        }
    }
}

// From the gradient g of what the norm makes of the rows of a side, through the norm.
static void differentiate_norm(const ref_attention *a, int side, const ref_tensor *g,
                               ref_tensor *grad_x, ref_tensor *grad_weights)
{
    const int64_t rows = side == OF_Q ? a->num_rows : a->num_key_rows, dim = a->dim;
    const double *m = side == OF_Q ? a->q : a->k;
    const double off = ((double)dim + 16.0) * u; // relative: of what rows and sums are made of
    double *x = numbers(dim);

    for (int64_t i = 0; i < rows * heads_of(a, side); ++i) {
        const int64_t head = i % heads_of(a, side);
        const double *weights = weights_of(a, side, head), *value = g->value + i * dim;
        const double *error = g->scale + i * dim, factor = norm_factor(a, m + i * dim);
        double sum = 0.0, sum_error = 0.0, sum_magnitude = 0.0;
        bool is_zero = true;
        for (int64_t c = 0; c < dim; ++c) {
            x[c] = m[i * dim + c] * factor;
            is_zero = is_zero && value[c] == 0.0 && error[c] == 0.0;
            sum += value[c] * weights[c] * x[c] / (double)dim;
            sum_error += error[c] * fabs(weights[c] * x[c]) / (double)dim;
            sum_magnitude += fabs(value[c] * weights[c] * x[c]) / (double)dim;
        }
        for (int64_t c = 0; !is_zero && c < dim; ++c) {
            if (grad_x != NULL) {
                grad_x->value[i * dim + c] += factor * (value[c] * weights[c] - x[c] * sum);
                grad_x->scale[i * dim + c] +=
                    factor * (error[c] * fabs(weights[c]) + fabs(x[c]) * sum_error +
                              off * (fabs(value[c] * weights[c]) + fabs(x[c]) * sum_magnitude));
            }
            if (grad_weights == NULL) continue;
            const int64_t at = (a->one_weight[side] ? 0 : head * dim) + c;
            grad_weights->value[at] += value[c] * x[c];
            grad_weights->scale[at] +=
                fabs(x[c]) * (error[c] + (off + gamma_of((double)rows)) * fabs(value[c]));
        }
    }
    free(x);
}

static void differentiate(const ref_attention *a, int64_t patch, int64_t head, const double *grad_o,
                          const double *o, const double *lse, ref_tensor *grad_q,
                          ref_tensor *grad_k, ref_tensor *grad_v, sums *table_sums)
{
    const int32_t *q_rows = a->q_rows + a->q_offsets[patch];
    const int32_t *k_rows = a->k_rows + a->k_offsets[patch];
    const int64_t num_q = a->q_offsets[patch + 1] - a->q_offsets[patch];
    const int64_t n = a->k_offsets[patch + 1] - a->k_offsets[patch];
    const int64_t dim = a->dim, kv = kv_head(a, head);
    factors q = gather(a, a->q, q_rows, num_q, a->heads, head, OF_Q);
    factors g = gather(a, grad_o, q_rows, num_q, a->heads, head, PLAIN);
    factors outs = gather(a, o, q_rows, num_q, a->heads, head, PLAIN);
    factors k = gather(a, a->k, k_rows, n, a->kv_heads, kv, OF_K);
    factors v = gather(a, a->v, k_rows, n, a->kv_heads, kv, PLAIN);
    sums sum_q = make_sums(num_q * dim), sum_k = make_sums(n * dim), sum_v = make_sums(n * dim);

    for (int64_t i = 0; i < num_q; ++i) {
        const double l = lse[q_rows[i] * a->heads + head];
        double d_magnitude, d_error;
        const double d = dot(dim, g.value + i * dim, g.error + i * dim, outs.value + i * dim,
                             outs.error + i * dim, &d_magnitude, &d_error);
        for (int64_t j = 0; j < n; ++j) {
            double s_error, dp_magnitude, dp_error;
            const double s = logit(a, head, &q, i, q_rows[i], &k, j, k_rows[j], &s_error);
            const double p = exp(s - l);
            const double off = // of a weight that is 0 whatever the rounding: nothing
                s == -INFINITY ? 0.0 : expm1(s_error + 8.0 * u * (fabs(s) + fabs(l))) + exp_error;
            const double dp = dot(dim, g.value + i * dim, g.error + i * dim, v.value + j * dim,
                                  v.error + j * dim, &dp_magnitude, &dp_error);
            const double ds = p * (dp - d), ds_magnitude = p * (dp_magnitude + d_magnitude);
            const double rounding = a->roundings.unit + a->roundings.factor;
            const double ds_error =
                ds_magnitude * (off + rounding + 4.0 * u) + p * (1.0 + off) * (dp_error + d_error) +
                a->roundings.subnormal + 0x1p-120 * (dp_magnitude + d_magnitude);
            const double p_error = p * (off + rounding) + a->roundings.subnormal + 0x1p-120;
            for (int64_t c = 0; c < dim; ++c) {
                const int64_t at_q = i * dim + c, at_k = j * dim + c;
                add(&sum_q, at_q, a->scale, ds, ds_error, k.value[at_k], ds_magnitude,
                    k.error[at_k]);
                add(&sum_k, at_k, a->scale, ds, ds_error, q.value[at_q], ds_magnitude,
                    q.error[at_q] + 4.0 * u * fabs(q.value[at_q]));
                add(&sum_v, at_k, 1.0, p, p_error, g.value[at_q], p, g.error[at_q]);
            }
            for (int64_t axis = 0; table_sums != NULL && axis < 3; ++axis)
                add(table_sums, element_of(a, q_rows[i], k_rows[j], axis) * a->heads + head, 1.0,
                    ds, ds_error, 1.0, ds_magnitude, 0.0);
        }
    }
    scatter(a, q_rows, num_q, head, n, OF_Q, &sum_q, grad_q);
    scatter(a, k_rows, n, kv, num_q, OF_K, &sum_k, grad_k);
    scatter(a, k_rows, n, kv, num_q, PLAIN, &sum_v, grad_v);
    destroy_factors(&q), destroy_factors(&g), destroy_factors(&outs);
    destroy_factors(&k), destroy_factors(&v);
    destroy_sums(&sum_q), destroy_sums(&sum_k), destroy_sums(&sum_v);
}

void ref_attention_backward(const ref_attention *a, const double *grad_o, const double *o,
                            const double *lse, ref_tensor *grad_q, ref_tensor *grad_k,
                            ref_tensor *grad_v, ref_tensor *grad_table,
                            ref_tensor *const grad_weights[2])
{
    const int64_t elements = grad_table == NULL ? 0 : grad_table->rows * grad_table->cols;
    sums table_sums = make_sums(elements);
    ref_tensor *const grads[2] = {grad_q, grad_k};
    ref_tensor normed[2]; // gradients of what a norm made
    double pairs = 0.0;

    set_units(a);
    normed[OF_Q] = ref_tensor_create(a->num_rows, a->heads * a->dim);
    normed[OF_K] = ref_tensor_create(a->num_key_rows, a->kv_heads * a->dim);
    for (int64_t patch = 0; patch < a->num_patches; ++patch) {
        pairs += (double)(a->q_offsets[patch + 1] - a->q_offsets[patch]) *
                 (double)(a->k_offsets[patch + 1] - a->k_offsets[patch]);
        for (int64_t head = 0; head < a->heads; ++head)
            differentiate(a, patch, head, grad_o, o, lse,
                          a->weights[OF_Q] != NULL ? &normed[OF_Q] : grad_q,
                          a->weights[OF_K] != NULL ? &normed[OF_K] : grad_k, grad_v,
                          grad_table == NULL ? NULL : &table_sums);
    }
    for (int side = 0; side < 2; ++side) {
        if (a->weights[side] != NULL)
            differentiate_norm(a, side, &normed[side], grads[side], grad_weights[side]);
        ref_tensor_destroy(&normed[side]);
    }
    for (int64_t i = 0; i < elements; ++i) {
        grad_table->value[i] = table_sums.value[i];
        grad_table->scale[i] =
            table_sums.error[i] + gamma_of(pairs + 8.0) * table_sums.magnitude[i];
    }
    destroy_sums(&table_sums);
}
