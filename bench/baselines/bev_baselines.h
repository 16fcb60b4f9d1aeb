// SPDX-License-Identifier: Apache-2.0
// Published ways to pool a bird's-eye view, written again to measure against. They read the five
// arrays or the depth-outer form, write [cell][channel], and clear the output first because they
// touch only the cells that hold points.
#ifndef SPOPS_BEV_BASELINES_H
#define SPOPS_BEV_BASELINES_H

#include <stdbool.h>

#include "spops/bevpool.h"

#ifdef __cplusplus
extern "C" {
#endif

// Arrays lie where the baseline runs. depth, feat and out are of one dtype, rows without gaps.
typedef struct bev_baseline_args {
    spops_dtype dtype;
    int32_t cols;
    int64_t num_cells;
    int32_t num_depths, feature_area; // D, H * W
    spops_bev_ranks ranks;
    spops_bev_intervals intervals;
    const void *depth, *feat;
    void *out;
    void *stream;
    bool failed; // set by a run that could not be enqueued
} bev_baseline_args;

typedef struct bev_baseline {
    const char *name;
    bool (*accepts)(const bev_baseline_args *args); // shapes and dtypes it is written for
    void (*enqueue)(void *args);                    // a bev_baseline_args
} bev_baseline;

extern const bev_baseline bev_baselines_cpu[];
extern const int num_bev_baselines_cpu;
extern const bev_baseline bev_baselines_cuda[]; // none in a build without CUDA
extern const int num_bev_baselines_cuda;

#ifdef __cplusplus
}
#endif

#endif
