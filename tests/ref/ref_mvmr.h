// SPDX-License-Identifier: Apache-2.0
// FP64 references of MVMR and VVOR, from their formulas: triplet by triplet, in the caller's order.
#ifndef SPOPS_TESTS_REF_MVMR_H
#define SPOPS_TESTS_REF_MVMR_H

#include "tests/ref/ref_reduce.h"

typedef struct ref_triplets {
    int64_t num_out, num_in, num_matrices, num_triplets;
    const int32_t *out, *in, *matrix; // [num_triplets] each
} ref_triplets;

// How matrices apply, as in spops_mvmr_options; columns of x and of the result, of all groups.
typedef struct ref_mvmr_form {
    int64_t x_cols, out_cols, groups; // groups >= 1
    bool diagonal, transposed, reversed;
} ref_mvmr_form;

// Rows and columns of all matrices as they are stored.
int64_t ref_mvmr_matrix_rows(const ref_triplets *t, const ref_mvmr_form *form);
int64_t ref_mvmr_matrix_cols(const ref_mvmr_form *form);

// s [num_triplets] or NULL for ones.
void ref_mvmr(const ref_triplets *t, const ref_mvmr_form *form, const double *x, const double *w,
              const double *s, ref_tensor *out);
// The gradient of w: products of rows of x and rows of g.
void ref_vvor(const ref_triplets *t, const ref_mvmr_form *form, const double *x, const double *g,
              const double *s, ref_tensor *out);
// The gradient of x.
void ref_mvmr_grad_x(const ref_triplets *t, const ref_mvmr_form *form, const double *g,
                     const double *w, const double *s, ref_tensor *out);
// The gradient of s.
void ref_mvmr_grad_s(const ref_triplets *t, const ref_mvmr_form *form, const double *x,
                     const double *w, const double *g, ref_tensor *out);

#endif
