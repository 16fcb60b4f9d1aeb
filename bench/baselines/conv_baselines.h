// SPDX-License-Identifier: Apache-2.0
// The data movement of gather-matmul-scatter as it was before TorchSparse, to measure against: one
// thread an element of f32, tap by tap. CUDA only.
#ifndef SPOPS_CONV_BASELINES_H
#define SPOPS_CONV_BASELINES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// For each tap k (weight-stationary): the rows in_rows[p] of x to buffer[p], then buffer[p] added to
// the rows out_rows[p] of out. Products are somebody else's, so in_cols of the buffer are written, and
// out_cols read, of which it holds either. out is cleared first.
typedef struct conv_movement {
    int32_t num_taps;
    const int32_t *tap_offsets; // [num_taps + 1], host
    const int32_t *in_rows, *out_rows;
    int64_t num_out;
    int32_t in_cols, out_cols;
    const float *x;
    float *gathered, *products; // [pairs][in_cols], [pairs][out_cols]
    float *out;
    void *stream;
    bool failed; // set by a run that could not be enqueued
} conv_movement;

void conv_movement_cuda(conv_movement *m); // in a build without CUDA: fails

#ifdef __cplusplus
}
#endif

#endif
