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
    for (int64_t c = 0; c < norm->cols; ++c)
        var += (x[c] - mean) * (x[c] - mean) / cols;
    // An error of a row's mean moves all values alike; one of its variance is relative.
    row->roundings = norm->mean != NULL ? 12 : 3 * (cols + 12);
    for (int64_t c = 0; c < norm->cols; ++c) {
        const double m = norm->mean != NULL ? norm->mean[c] : mean;
        row->rstd[c] = 1 / sqrt((norm->mean != NULL ? norm->var[c] : var) + norm->epsilon);
        row->h[c] = (x[c] - m) * row->rstd[c];
        row->scale[c] = fabs(row->h[c]);
        if (norm->mean == NULL) row->scale[c] += (magnitude + fabs(x[c])) * row->rstd[c];
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

void ref_norm_forward(const ref_norm *norm, ref_tensor *out)
{
    ref_row row = row_create(norm->cols);
    for (int64_t r = 0; r < norm->rows; ++r) {
        normalise_row(norm, r, &row);
        for (int64_t c = 0; c < norm->cols; ++c) {
            const int64_t i = r * norm->cols + c;
            const double y = output_of(norm, &row, c);
            out->value[i] = norm->relu && y < 0 ? 0 : y;
            out->scale[i] = row.scale[c] * fabs(gamma_of(norm, c)) +
                            (norm->beta != NULL ? fabs(norm->beta[c]) : 0);
            out->roundings[i] = row.roundings + 2;
        }
    }
    row_destroy(&row);
}

void ref_norm_backward(const ref_norm *norm, ref_tensor *grad_x, ref_tensor *grad_gamma,
                       ref_tensor *grad_beta)
{
    const double n = (double)norm->rows, cols = (double)norm->cols;
    ref_row row = row_create(norm->cols);
    double *g = (double *)calloc((size_t)(norm->rows * norm->cols) + 1, sizeof *g);
    if (g == NULL) abort();

    for (int64_t r = 0; r < norm->rows; ++r) {
        normalise_row(norm, r, &row);
        for (int64_t c = 0; c < norm->cols; ++c) {
            const int64_t i = r * norm->cols + c;
            g[i] = norm->relu && output_of(norm, &row, c) <= 0 ? 0 : norm->grad_out[i];
            grad_beta->value[c] += g[i];
            grad_beta->scale[c] += fabs(g[i]);
            grad_gamma->value[c] += g[i] * row.h[c];
            grad_gamma->scale[c] += fabs(g[i]) * row.scale[c];
            grad_beta->roundings[c] = n;
            grad_gamma->roundings[c] = n + row.roundings + 2;
        }
    }
    for (int64_t r = 0; r < norm->rows; ++r) {
        double mean = 0, slope = 0, mean_scale = 0, slope_scale = 0;
        normalise_row(norm, r, &row);
        for (int64_t c = 0; c < norm->cols && norm->mean == NULL; ++c) {
            const double q = g[r * norm->cols + c] * gamma_of(norm, c);
            mean += q / cols, mean_scale += fabs(q) / cols;
            slope += q * row.h[c] / cols, slope_scale += fabs(q) * row.scale[c] / cols;
        }
        for (int64_t c = 0; c < norm->cols; ++c) {
            const int64_t i = r * norm->cols + c;
            const double factor = gamma_of(norm, c) * row.rstd[c];
            if (norm->mean == NULL) {
                grad_x->value[i] =
                    (g[i] * gamma_of(norm, c) - mean - row.h[c] * slope) * row.rstd[c];
                grad_x->scale[i] =
                    (fabs(g[i] * gamma_of(norm, c)) + mean_scale + row.scale[c] * slope_scale) *
                    row.rstd[c];
                grad_x->roundings[i] = 2 * row.roundings + cols + 8;
            } else {
                const bool fixed = norm->fixed_statistics;
                grad_x->value[i] =
                    factor *
                    (g[i] -
                     (fixed ? 0 : (grad_beta->value[c] + row.h[c] * grad_gamma->value[c]) / n));
                grad_x->scale[i] =
                    fabs(factor) *
                    (fabs(g[i]) +
                     (fixed ? 0 : (grad_beta->scale[c] + row.scale[c] * grad_gamma->scale[c]) / n));
                grad_x->roundings[i] = n + 2 * row.roundings + 8;
            }
        }
    }
    free(g);
    row_destroy(&row);
}
