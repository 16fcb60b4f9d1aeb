// SPDX-License-Identifier: Apache-2.0
// FP64 references of the segmented reductions, forward and backward, from their formulas. A term is
// looked at in the caller's order, without any plan: nothing here knows how the library schedules.
#ifndef SPOPS_TESTS_REF_REDUCE_H
#define SPOPS_TESTS_REF_REDUCE_H

#include <stdbool.h>
#include <stdint.h>

#include "spops/types.h"

// Terms in the caller's order; term t belongs to segment[t] and multiplies weight[t] and row[t].
typedef struct ref_relation {
    int64_t num_segments, num_terms, num_rows, num_weights;
    const int32_t *segment, *row, *weight; // [num_terms] each
    bool is_f64;                           // terms are not rounded to f32
} ref_relation;

// A result with what its error is measured by: a result computed in f32 may be off by
// gamma(roundings) * scale, where `roundings` bounds how many roundings any one contribution meets
// and `scale` is the sum of the contributions' magnitudes. Both are 0 where the result is exact.
typedef struct ref_tensor {
    int64_t rows, cols;
    double *value, *scale, *roundings; // [rows * cols]
} ref_tensor;

ref_tensor ref_tensor_create(int64_t rows, int64_t cols); // zeroed; aborts without memory
void ref_tensor_destroy(ref_tensor *t);

// x [num_rows, cols]; w [num_weights] or NULL for ones; arg [num_segments * cols] or NULL.
void ref_reduce_forward(const ref_relation *relation, spops_reduce reduce, int64_t cols,
                        const double *x, const double *w, ref_tensor *out, int32_t *arg);

// grad_x [num_rows, cols] and grad_w [num_weights, 1]; either may be NULL.
void ref_reduce_backward(const ref_relation *relation, spops_reduce reduce, int64_t cols,
                         const double *x, const double *w, const double *grad_out,
                         ref_tensor *grad_x, ref_tensor *grad_w);

// Whether whole numbers (for PROD: ones and twos) reduce, or have gradients, with no rounding but
// that of a final division.
bool ref_reduce_is_exact(spops_reduce reduce, bool backward);
// Whether terms are multiplied with each other, so that their products must stay in f32's range.
bool ref_reduce_multiplies(spops_reduce reduce);

#endif
