// SPDX-License-Identifier: Apache-2.0
// The dataflow that a sparse convolution takes where neither its plan nor a tuning names one. Plain C;
// every row names the measurement that it rests on.
#ifndef SPOPS_KERNELS_SPARSECONV_TUNING_H
#define SPOPS_KERNELS_SPARSECONV_TUNING_H

#include "kernels/core/tuning.h"
#include "spops/sparseconv.h"

typedef struct spops_sparseconv_row {
    spops_tuning_key key; // cols: of the narrower side
    uint32_t passes;      // bits 1 << spops_conv_pass
    int64_t min_pairs;    // of the map, for 100 output rows
    spops_dataflow dataflow;
} spops_sparseconv_row;

#define SPOPS_ANY_PASS UINT32_MAX

// GATHER_MATMUL_SCATTER has no row. It is the fastest for gradients of weights in f32 (H200, lidar, 64 to
// 64: 452 us; fetch on demand 7,488 us), and was on small maps with many channels before blocks of
// implicit GEMM shared tiles; but its buffers hold all pairs, and plans that may take it open cuBLAS:
// for a caller to decide, by name or by a tuning.
static const spops_sparseconv_row spops_sparseconv_rows[] = {
    // H200, f16, the 42 layers of a MinkUNet on a LiDAR scan, forward: 2,057 us; fetch on demand
    // 10,330 us. The least gain of a layer is 2.15 times (128 to 128, 3,749 voxels from a finer level).
    // Gradients on lidar, 32 to 256 channels: 5.4 to 79 times.
    {{90, SPOPS_ANY_REGIME, SPOPS_ANY_DTYPE, 0}, SPOPS_ANY_PASS, 0, SPOPS_DATAFLOW_IMPLICIT_GEMM},
    // Where a device has it, else, and where it does not take a call, rows are fetched on demand.
    {SPOPS_ANY_CASE, SPOPS_ANY_PASS, 0, SPOPS_DATAFLOW_IMPLICIT_GEMM},
};

// What is tried first. num_out may be 0.
static inline spops_dataflow spops_sparseconv_first(const spops_tuning_case *at, int32_t pass,
                                                    int64_t num_out, int64_t num_pairs)
{
    const spops_sparseconv_row *row = spops_sparseconv_rows;
    while (!spops_tuning_matches(&row->key, at) || (row->passes >> pass & 1u) == 0 ||
           100 * num_pairs < row->min_pairs * num_out)
        ++row;
    return row->dataflow;
}

#endif
