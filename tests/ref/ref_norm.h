// SPDX-License-Identifier: Apache-2.0
// FP64 references of norms, forward and backward, from their formulas.
#ifndef SPOPS_TESTS_REF_NORM_H
#define SPOPS_TESTS_REF_NORM_H

#include "tests/ref/ref_activation.h"
#include "tests/ref/ref_reduce.h"

// x, grad_out [rows * cols]. mean, var [cols] of batch norm; both NULL: layer norm, whose statistics
// are each row's own, or with is_rms RMS norm.
typedef struct ref_norm {
    int64_t rows, cols;
    const double *x, *grad_out;
    const double *mean, *var, *gamma, *beta;
    double epsilon;
    ref_activation activation;
    bool is_rms, fixed_statistics;
    double unit; // roundoff of what is bounded
} ref_norm;

// Mean and variance of every column, and a bound of the error of computing them by updating
// a running mean row by row: chunk_rows rows at a time, then `merges` mergers.
void ref_column_statistics(const ref_norm *norm, int64_t chunk_rows, int64_t merges,
                           ref_tensor *mean, ref_tensor *var, double *mean_bound,
                           double *var_bound);

void ref_norm_forward(const ref_norm *norm, ref_tensor *out);

// grad_gamma and grad_beta [1, cols].
void ref_norm_backward(const ref_norm *norm, ref_tensor *grad_x, ref_tensor *grad_gamma,
                       ref_tensor *grad_beta);

// Group norm: row r belongs to sample sample[r], or to none (-1), and column c to group c / (cols /
// groups). mean and var [num_samples * groups].
typedef struct ref_group_norm {
    int64_t rows, cols, groups, num_samples;
    const int32_t *sample;
    const double *x, *grad_out;
    const double *mean, *var, *gamma, *beta;
    double epsilon;
    ref_activation activation;
    bool fixed_statistics;
    double unit;
} ref_group_norm;

// mean and var [1, num_samples * groups], with bounds as ref_column_statistics has them.
void ref_group_statistics(const ref_group_norm *norm, int64_t chunk_rows, ref_tensor *mean,
                          ref_tensor *var, double *mean_bound, double *var_bound);

// Rows of no sample keep what `out` has.
void ref_group_forward(const ref_group_norm *norm, ref_tensor *out);

void ref_group_backward(const ref_group_norm *norm, ref_tensor *grad_x, ref_tensor *grad_gamma,
                        ref_tensor *grad_beta);

#endif
