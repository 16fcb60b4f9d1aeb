// SPDX-License-Identifier: Apache-2.0
// FP64 reference of gather and its reverse, from the formulas in spops/gather.h. The relation's
// segments are the source rows; its rows are the rows of the gathered matrix.
#ifndef SPOPS_TESTS_REF_GATHER_H
#define SPOPS_TESTS_REF_GATHER_H

#include "tests/ref/ref_reduce.h"

// out [num_rows, cols]; rows that no term names keep what out->value holds.
void ref_gather_forward(const ref_relation *relation, int64_t cols, const double *x,
                        const double *w, ref_tensor *out);

// grad_x [num_segments, cols] and grad_w [num_weights, 1]; either may be NULL.
void ref_gather_backward(const ref_relation *relation, int64_t cols, const double *x,
                         const double *w, const double *grad_out, ref_tensor *grad_x,
                         ref_tensor *grad_w);

#endif
