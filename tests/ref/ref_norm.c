// SPDX-License-Identifier: Apache-2.0
#include "tests/ref/ref_norm.h"

#include <math.h>
#include <stdlib.h>

void ref_column_statistics(const ref_norm *norm, int64_t chunk_rows, int64_t merges,
                           ref_tensor *mean, ref_tensor *var, double *mean_bound, double *var_bound)
{
    const double unit = norm->unit;
    for (int64_t c = 0; c < norm->cols; ++c) {
        const double n = (double)norm->rows, k = (double)(chunk_rows + merges);
        double sum = 0, squares = 0, largest = 0, spread = 0;
        for (int64_t r = 0; r < norm->rows; ++r)
            sum += norm->x[r * norm->cols + c];
        mean->value[c] = norm->rows > 0 ? sum / n : 0;
        for (int64_t r = 0; r < norm->rows; ++r) {
            const double x = norm->x[r * norm->cols + c], d = fabs(x - mean->value[c]);
            squares += d * d;
            largest = fmax(largest, fabs(x));
            spread = fmax(spread, d);
        }
        var->value[c] = norm->rows > 0 ? squares / n : 0;
        // A step rounds the mean once and its correction three times; what a step leaves wrong, the
        // next ones shrink, never grow. A squared deviation is a product of two differences, each
        // as wrong as the mean and one rounding.
        mean_bound[c] = k * unit * (largest + 3 * 2 * spread);
        const double difference = mean_bound[c] + 2 * unit * spread;
        var_bound[c] = 2 * (2 * spread) * difference + difference * difference +
                       4 * k * unit * var->value[c] + 4 * k * unit * spread * difference;
    }
}

// The normalised values of a row, the scale of their errors, and 1 / sqrt(var + epsilon).
typedef struct ref_row {
    double *h, *scale, *rstd; // [cols]
    double roundings;
} ref_row;

static void normalise_row(const ref_norm *norm, int64_t r, ref_row *row)
{
    const double *x = norm->x + r * norm->cols, cols = (double)norm->cols;
    double mean = 0, magnitude = 0, var = 0;

    for (int64_t c = 0; c < norm->cols; ++c) {
        mean += x[c] / cols;
        magnitude += fabs(x[c]) / cols;
    }
    if (norm->is_rms) mean = magnitude = 0;
    for (int64_t c = 0; c < norm->cols; ++c)
        var += (x[c] - mean) * (x[c] - mean) / cols;
    // An error of a row's mean moves all values alike; one of its variance is relative.
    row->roundings = norm->mean != NULL ? 12 : 3 * (cols + 12);
    for (int64_t c = 0; c < norm->cols; ++c) {
        const double m = norm->mean != NULL ? norm->mean[c] : mean;
        row->rstd[c] = 1 / sqrt((norm->mean != NULL ? norm->var[c] : var) + norm->epsilon);
        row->h[c] = (x[c] - m) * row->rstd[c];
        row->scale[c] = fabs(row->h[c]);
        if (norm->mean == NULL && !norm->is_rms)
            row->scale[c] += (magnitude + fabs(x[c])) * row->rstd[c];
    }
}

static ref_row row_create(int64_t cols)
{
    ref_row row = {(double *)calloc((size_t)cols + 1, sizeof(double)),
                   (double *)calloc((size_t)cols + 1, sizeof(double)),
                   (double *)calloc((size_t)cols + 1, sizeof(double)), 0};
    if (row.h == NULL || row.scale == NULL || row.rstd == NULL) abort();
    return row;
}

static void row_destroy(ref_row *row)
{
    free(row->h), free(row->scale), free(row->rstd);
}

static double gamma_of(const ref_norm *norm, int64_t c)
{
    return norm->gamma != NULL ? norm->gamma[c] : 1;
}

static double output_of(const ref_norm *norm, const ref_row *row, int64_t c)
{
    return row->h[c] * gamma_of(norm, c) + (norm->beta != NULL ? norm->beta[c] : 0);
}

static double scale_of_output(const ref_norm *norm, const ref_row *row, int64_t c)
{
    return row->scale[c] * fabs(gamma_of(norm, c)) + (norm->beta != NULL ? fabs(norm->beta[c]) : 0);
}

// Element i of out: the activation of y, which has an error of `scale` in so many roundings.
static void put_activated(ref_activation a, double y, double scale, double roundings, int64_t i,
                          ref_tensor *out)
{
    const bool plain = a.kind <= SPOPS_ACTIVATION_RELU;
    out->value[i] = ref_activate(a, y);
    out->scale[i] = plain ? scale : scale * ref_activation_growth(a) + fabs(out->value[i]);
    out->roundings[i] = roundings + (plain ? 0 : REF_ACTIVATION_ROUNDINGS);
}

// The gradient of what an activation takes, and the scale of its error.
typedef struct ref_slope {
    double g, scale;
} ref_slope;

static ref_slope slope_at(ref_activation a, double y, double y_scale, double grad_out)
{
    const double slope = ref_activation_derivative(a, y);
    ref_slope s = {slope == 0 ? 0 : grad_out * slope, 0};
    s.scale = fabs(s.g);
    if (a.kind > SPOPS_ACTIVATION_RELU)
        s.scale = fabs(grad_out) * (fabs(slope) + 1 + ref_activation_curvature(a) * y_scale);
    return s;
}

// Roundings of the gradient above, beside those of y.
static double slope_roundings(ref_activation a, double roundings)
{
    return a.kind > SPOPS_ACTIVATION_RELU ? roundings + REF_ACTIVATION_ROUNDINGS : 0;
}

void ref_norm_forward(const ref_norm *norm, ref_tensor *out)
{
    ref_row row = row_create(norm->cols);
    for (int64_t r = 0; r < norm->rows; ++r) {
        normalise_row(norm, r, &row);
        for (int64_t c = 0; c < norm->cols; ++c) {
            const int64_t i = r * norm->cols + c;
            const double y = output_of(norm, &row, c);
            put_activated(norm->activation, y, scale_of_output(norm, &row, c), row.roundings + 2, i,
                          out);
        }
    }
    row_destroy(&row);
}

void ref_norm_backward(const ref_norm *norm, ref_tensor *grad_x, ref_tensor *grad_gamma,
                       ref_tensor *grad_beta)
{
    const double n = (double)norm->rows, cols = (double)norm->cols;
    ref_row row = row_create(norm->cols);
    ref_slope *g = (ref_slope *)calloc((size_t)(norm->rows * norm->cols) + 1, sizeof *g);
    double more = 0;
    if (g == NULL) abort();

    for (int64_t r = 0; r < norm->rows; ++r) {
        normalise_row(norm, r, &row);
        for (int64_t c = 0; c < norm->cols; ++c) {
            const int64_t i = r * norm->cols + c;
            g[i] = slope_at(norm->activation, output_of(norm, &row, c),
                            scale_of_output(norm, &row, c), norm->grad_out[i]);
            more = slope_roundings(norm->activation, row.roundings + 2);
            grad_beta->value[c] += g[i].g;
            grad_beta->scale[c] += g[i].scale;
            grad_gamma->value[c] += g[i].g * row.h[c];
            grad_gamma->scale[c] += g[i].scale * row.scale[c];
            grad_beta->roundings[c] = n + more;
            grad_gamma->roundings[c] = n + row.roundings + 2 + more;
        }
    }
    for (int64_t r = 0; r < norm->rows; ++r) {
        double mean = 0, slope = 0, mean_scale = 0, slope_scale = 0;
        normalise_row(norm, r, &row);
        for (int64_t c = 0; c < norm->cols && norm->mean == NULL; ++c) {
            const double q = g[r * norm->cols + c].g * gamma_of(norm, c);
            const double scale = g[r * norm->cols + c].scale * fabs(gamma_of(norm, c));
            mean += q / cols, mean_scale += scale / cols;
            slope += q * row.h[c] / cols, slope_scale += scale * row.scale[c] / cols;
        }
        if (norm->is_rms) mean = mean_scale = 0;
        for (int64_t c = 0; c < norm->cols; ++c) {
            const int64_t i = r * norm->cols + c;
            const double factor = gamma_of(norm, c) * row.rstd[c];
            if (norm->mean == NULL) {
                grad_x->value[i] =
                    (g[i].g * gamma_of(norm, c) - mean - row.h[c] * slope) * row.rstd[c];
                grad_x->scale[i] = (g[i].scale * fabs(gamma_of(norm, c)) + mean_scale +
                                    row.scale[c] * slope_scale) *
                                   row.rstd[c];
                grad_x->roundings[i] = 2 * row.roundings + cols + 8 + more;
            } else {
                const bool fixed = norm->fixed_statistics;
                grad_x->value[i] =
                    factor *
                    (g[i].g -
                     (fixed ? 0 : (grad_beta->value[c] + row.h[c] * grad_gamma->value[c]) / n));
                grad_x->scale[i] =
                    fabs(factor) *
                    (g[i].scale +
                     (fixed ? 0 : (grad_beta->scale[c] + row.scale[c] * grad_gamma->scale[c]) / n));
                grad_x->roundings[i] = n + 2 * row.roundings + 8 + more;
            }
        }
    }
    free(g);
    row_destroy(&row);
}

// ---- Group norm ---------------------------------------------------------------------------------

static int64_t group_at(const ref_group_norm *norm, int64_t r, int64_t c)
{
    return norm->sample[r] * norm->groups + c / (norm->cols / norm->groups);
}

static double *zeros(int64_t n)
{
    double *v = (double *)calloc((size_t)n + 1, sizeof *v);
    if (v == NULL) abort();
    return v;
}

void ref_group_statistics(const ref_group_norm *norm, int64_t chunk_rows, ref_tensor *mean,
                          ref_tensor *var, double *mean_bound, double *var_bound)
{
    const int64_t all = norm->num_samples * norm->groups;
    double *count = zeros(all), *largest = zeros(all), *spread = zeros(all);

    for (int64_t i = 0; i < norm->rows * norm->cols; ++i) {
        if (norm->sample[i / norm->cols] < 0) continue;
        const int64_t k = group_at(norm, i / norm->cols, i % norm->cols);
        mean->value[k] += norm->x[i];
        largest[k] = fmax(largest[k], fabs(norm->x[i]));
        count[k] += 1;
    }
    for (int64_t k = 0; k < all; ++k)
        mean->value[k] = count[k] > 0 ? mean->value[k] / count[k] : 0;
    for (int64_t i = 0; i < norm->rows * norm->cols; ++i) {
        if (norm->sample[i / norm->cols] < 0) continue;
        const int64_t k = group_at(norm, i / norm->cols, i % norm->cols);
        const double d = fabs(norm->x[i] - mean->value[k]);
        var->value[k] += d * d / count[k];
        spread[k] = fmax(spread[k], d);
    }
    for (int64_t k = 0; k < all; ++k) {
        // As of columns; every column of every chunk is merged.
        const double width = (double)(norm->cols / norm->groups);
        const double merges = (count[k] / width / (double)chunk_rows + 1) * width;
        const double steps = (double)chunk_rows + merges, unit = norm->unit;
        mean_bound[k] = steps * unit * (largest[k] + 3 * 2 * spread[k]);
        const double difference = mean_bound[k] + 2 * unit * spread[k];
        var_bound[k] = 2 * (2 * spread[k]) * difference + difference * difference +
                       4 * steps * unit * var->value[k] + 4 * steps * unit * spread[k] * difference;
    }
    free(count), free(largest), free(spread);
}

// The normalised value of an element, what the activation takes, and scales of their errors.
typedef struct ref_element {
    double h, rstd, gamma, y, y_scale;
} ref_element;

static ref_element element_at(const ref_group_norm *norm, int64_t r, int64_t c)
{
    const int64_t k = group_at(norm, r, c);
    const double beta = norm->beta != NULL ? norm->beta[c] : 0;
    ref_element e;
    e.rstd = 1 / sqrt(norm->var[k] + norm->epsilon);
    e.h = (norm->x[r * norm->cols + c] - norm->mean[k]) * e.rstd;
    e.gamma = norm->gamma != NULL ? norm->gamma[c] : 1;
    e.y = e.h * e.gamma + beta;
    e.y_scale = fabs(e.h * e.gamma) + fabs(beta);
    return e;
}

enum { ELEMENT_ROUNDINGS = 14 };

void ref_group_forward(const ref_group_norm *norm, ref_tensor *out)
{
    for (int64_t i = 0; i < norm->rows * norm->cols; ++i) {
        if (norm->sample[i / norm->cols] < 0) continue;
        const ref_element e = element_at(norm, i / norm->cols, i % norm->cols);
        put_activated(norm->activation, e.y, e.y_scale, ELEMENT_ROUNDINGS, i, out);
    }
}

void ref_group_backward(const ref_group_norm *norm, ref_tensor *grad_x, ref_tensor *grad_gamma,
                        ref_tensor *grad_beta)
{
    const int64_t all = norm->num_samples * norm->groups, n = norm->rows * norm->cols;
    const double more =
        ELEMENT_ROUNDINGS + slope_roundings(norm->activation, ELEMENT_ROUNDINGS) + 4;
    double *count = zeros(all), *mean = zeros(all), *slope = zeros(all);
    double *mean_scale = zeros(all), *slope_scale = zeros(all);

    for (int64_t i = 0; i < n; ++i) {
        const int64_t r = i / norm->cols, c = i % norm->cols;
        grad_beta->roundings[c] = grad_gamma->roundings[c] = (double)norm->rows + more;
        if (norm->sample[r] < 0) continue;
        const ref_element e = element_at(norm, r, c);
        const ref_slope g = slope_at(norm->activation, e.y, e.y_scale, norm->grad_out[i]);
        const int64_t k = group_at(norm, r, c);
        grad_beta->value[c] += g.g, grad_beta->scale[c] += g.scale;
        grad_gamma->value[c] += g.g * e.h, grad_gamma->scale[c] += g.scale * fabs(e.h);
        mean[k] += g.g * e.gamma, mean_scale[k] += g.scale * fabs(e.gamma);
        slope[k] += g.g * e.gamma * e.h, slope_scale[k] += g.scale * fabs(e.gamma * e.h);
        count[k] += 1;
    }
    for (int64_t i = 0; i < n; ++i) {
        const int64_t r = i / norm->cols, c = i % norm->cols;
        if (norm->sample[r] < 0) continue;
        const ref_element e = element_at(norm, r, c);
        const ref_slope g = slope_at(norm->activation, e.y, e.y_scale, norm->grad_out[i]);
        const int64_t k = group_at(norm, r, c);
        grad_x->value[i] = g.g * e.gamma;
        grad_x->scale[i] = g.scale * fabs(e.gamma);
        grad_x->roundings[i] = more;
        if (!norm->fixed_statistics) {
            grad_x->value[i] -= (mean[k] + e.h * slope[k]) / count[k];
            grad_x->scale[i] += (mean_scale[k] + fabs(e.h) * slope_scale[k]) / count[k];
            grad_x->roundings[i] += count[k] + more;
        }
        grad_x->value[i] *= e.rstd, grad_x->scale[i] *= e.rstd;
    }
    free(count), free(mean), free(slope), free(mean_scale), free(slope_scale);
}
