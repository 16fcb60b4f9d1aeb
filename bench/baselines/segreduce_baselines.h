// SPDX-License-Identifier: Apache-2.0
// The segmented sum on the CPU as one writes it down first. Only for measuring.
#ifndef SPOPS_SEGREDUCE_BASELINES_H
#define SPOPS_SEGREDUCE_BASELINES_H

#include <stdbool.h>
#include <stdint.h>

#include "spops/types.h"

#ifdef __cplusplus
extern "C" {
#endif

// Arrays in host memory; idx NULL: term t takes row t; w (dtype of x) NULL: all ones.
typedef struct segsum_baseline_args {
    spops_dtype dtype;
    int64_t num_segments;
    int32_t cols;
    const int32_t *offsets, *idx;
    const void *x, *w;
    void *out;
} segsum_baseline_args;

bool segsum_naive_accepts(const segsum_baseline_args *args);
void segsum_naive(void *args);         // one thread
void segsum_naive_threads(void *args); // segments divided evenly over the threads

#ifdef __cplusplus
}
#endif

#endif
