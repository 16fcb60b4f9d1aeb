// SPDX-License-Identifier: Apache-2.0
// Ways to find output coordinates and maps that the library does not take, to measure against.
#ifndef SPOPS_MAP_BASELINES_H
#define SPOPS_MAP_BASELINES_H

#include <stdbool.h>

#include "spops/kernel_map.h"

#ifdef __cplusplus
extern "C" {
#endif

// The outputs of a convolution in separate stages, each of which writes all candidates to memory
// and reads them again: broadcast add; modular check; boundary check; batch -1 for those that
// failed. The last stage, unique rows, is the library's. Arrays lie where the baseline runs.
typedef struct map_stages {
    spops_kernel_shape kernel;
    spops_coords_box box;
    int64_t num_rows;
    const int32_t *rows; // [num_rows][4]
    int32_t *candidates; // [num_rows * taps][4]
    int32_t *keep;       // [num_rows * taps]
    void *stream;
    bool failed; // set by a run that could not be enqueued
} map_stages;

void map_stages_cpu(map_stages *stages);
void map_stages_cuda(map_stages *stages); // in a build without CUDA: fails

// A submanifold map as array languages make it: keys sorted, and searched for once a tap. Host.
typedef struct map_sorted {
    int64_t num_rows;
    const int32_t *rows; // [num_rows][4]
    int32_t size;        // of the kernel, odd, the same on every axis
    uint64_t *keys;      // [num_rows]
    int32_t *order;      // [num_rows] row of a sorted key
    uint64_t *spare;     // [num_rows]
    int32_t *table;      // [taps][num_rows] or NULL: only counted
    int64_t *counts;     // [taps]
} map_sorted;

void map_sorted_cpu(map_sorted *map);

#ifdef __cplusplus
}
#endif

#endif
