// SPDX-License-Identifier: Apache-2.0
// What dense grids are measured against: the plain write of their bytes, and a grid that is cleared
// before rows are scattered into it.
#ifndef SPOPS_DENSE_BASELINES_H
#define SPOPS_DENSE_BASELINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Elements of 2 or 4 bytes. Arrays lie where the baseline runs.
typedef struct dense_scatter {
    void *dense;
    size_t bytes, element; // of all of it, of one element
    const void *rows;      // [num_rows][channels]
    const int32_t *cells;  // [num_rows] of each row, all within the grid
    int64_t num_rows, channels, num_cells;
    bool channels_last;
    void *stream;
    bool failed; // set by a run that could not be enqueued
} dense_scatter;

// In a build without CUDA: fail.
void dense_write_cuda(dense_scatter *d);   // the bytes alone, all 0
void dense_scatter_cuda(dense_scatter *d); // the same, then the rows

#ifdef __cplusplus
}
#endif

#endif
