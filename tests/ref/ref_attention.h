// SPDX-License-Identifier: Apache-2.0
// FP64 reference of attention, forward and backward, from its formulas, with a bound of the error of
// each element.
#ifndef SPOPS_TESTS_REF_ATTENTION_H
#define SPOPS_TESTS_REF_ATTENTION_H

#include "tests/ref/ref_reduce.h"

// What may be rounded on the way, besides the sums in f32.
typedef struct ref_roundings {
    double unit;      // relative: weights, their slopes and turned rows, to a narrower dtype
    double subnormal; // the same, absolute
    double factor;    // relative: every factor of a product
} ref_roundings;

typedef struct ref_attention {
    int64_t num_rows, num_key_rows, num_patches, heads, kv_heads, dim;
    const int32_t *q_offsets, *q_rows, *k_offsets, *k_rows;
    double scale;
    // Element c of head h of row r at r * heads * dim + h * dim + c, of k and v with kv_heads.
    const double *q, *k, *v;
    const double *coords, *key_coords; // [num_rows][3], [num_key_rows][3]
    // RMS norm of q and of k: [heads][dim] each; NULL: none. one_weight: [dim] for all heads.
    const double *weights[2];
    bool one_weight[2];
    double epsilon;
    int64_t pairs; // rotary, of an axis; 0: none
    double base;
    int64_t range;       // of the table
    const double *table; // [3 * (2 * range + 1)][heads]; NULL: none
    ref_roundings roundings;
    bool is_f64; // computed in f64: u below is 2^-52, with that of the reference
} ref_attention;

// Values, and in `scale` a bound of what an evaluation in f32 may be off by. Let u = 2^-24 and
// gamma(k) = k u / (1 - k u).
//
// A normalised element is off by (dim + 8) u of itself. A turned element is off by its angle's error, 3 u of the angle, some u of sines, cosines and
// products, and `unit`, which a normalised one is off by also where nothing turns. A logit s is off by E: what its factors are off by, gamma(dim + 4) of the
// magnitudes that are summed, and some u of the largest logit of its query, since a maximum is
// subtracted and the base of the exponential changed. A weight exp(s - lse) is then off by a factor
// of exp(2 E), by 2^-21 for an exponential and by `unit`; and what is summed over n keys by
// gamma(2 n + 20) of its magnitudes.
void ref_attention_forward(const ref_attention *a, ref_tensor *o, ref_tensor *lse);

// grad_o and o are [num_rows][heads * dim], lse [num_rows][heads], as given to the call. Outputs may
// be NULL; grad_table is [3 * (2 * range + 1)][heads], grad_weights have the shapes of weights. Weights
// are off as before; a slope
// p (grad_o . v - grad_o . o) by what p is off by, and gamma(dim + 4) of the magnitudes of both
// products.
void ref_attention_backward(const ref_attention *a, const double *grad_o, const double *o,
                            const double *lse, ref_tensor *grad_q, ref_tensor *grad_k,
                            ref_tensor *grad_v, ref_tensor *grad_table,
                            ref_tensor *const grad_weights[2]);

#endif
