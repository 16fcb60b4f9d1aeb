// SPDX-License-Identifier: Apache-2.0
// FP64 references of sparse convolution: over a table of neighbours, and, independent of any table,
// over dense grids.
#ifndef SPOPS_TESTS_REF_SPARSECONV_H
#define SPOPS_TESTS_REF_SPARSECONV_H

#include "tests/ref/ref_activation.h"
#include "tests/ref/ref_reduce.h"

// Tap k joins input row table[i * num_taps + k] to output row i; -1: none. w is
// [num_taps][in_channels / groups][out_channels].
typedef struct ref_sparseconv {
    int64_t num_out, num_in;
    int32_t num_taps;
    const int32_t *table;
    int64_t in_channels, out_channels, groups;
    const double *x, *w;
} ref_sparseconv;

// The epilogue; NULL and NONE: nothing.
typedef struct ref_epilogue {
    const double *bias, *scale, *shift, *residual;
    ref_activation activation;
} ref_epilogue;

void ref_sparseconv_forward(const ref_sparseconv *conv, const ref_epilogue *epilogue,
                            ref_tensor *out);

// Either gradient may be NULL.
void ref_sparseconv_backward(const ref_sparseconv *conv, const double *grad_sum, ref_tensor *grad_x,
                             ref_tensor *grad_w);

// A dense convolution in three dimensions, one batch, no groups: x [X][Y][Z][in_channels] with zeros
// around it, out [X'][Y'][Z'][out_channels] with
//     out[q] = sum over taps t of  x[stride q - padding + dilation t] w[t].
void ref_dense_convolution(const int32_t in_size[3], const int32_t out_size[3],
                           const int32_t kernel[3], int32_t stride, int32_t padding,
                           int32_t dilation, int64_t in_channels, int64_t out_channels,
                           const double *x, const double *w, ref_tensor *out);

#endif
