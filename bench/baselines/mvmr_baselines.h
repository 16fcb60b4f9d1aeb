// SPDX-License-Identifier: Apache-2.0
// MVMR and VVOR as PointCNN++ has them (Algorithms 1 and B), to measure against: a warp takes 128
// triplets, sorted by matrix, and a 32 x 32 block of their matrices, and adds its results to those
// of others by atomics, in f32. CUDA only.
#ifndef SPOPS_MVMR_BASELINES_H
#define SPOPS_MVMR_BASELINES_H

#include <stdbool.h>
#include <stdint.h>

#include "spops/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mvmr_atomics {
    int64_t num_triplets;
    const int32_t *out_rows, *in_rows, *matrices; // [num_triplets], sorted by matrix
    spops_dtype dtype;                            // of x, w and g
    int64_t x_cols, out_cols;
    const void *x, *w, *g;
    float *out; // [num_out][out_cols], or [num_matrices][x_cols][out_cols]; zeroed by the call
    int64_t out_bytes;
    void *stream;
    bool failed; // set by a run that could not be enqueued
} mvmr_atomics;

void mvmr_atomics_cuda(mvmr_atomics *m); // in a build without CUDA: fails
void vvor_atomics_cuda(mvmr_atomics *m);

#ifdef __cplusplus
}
#endif

#endif
