// SPDX-License-Identifier: Apache-2.0
// Sizes that plans of triplets and the kernels that run them agree on. Plain C.
#ifndef SPOPS_KERNELS_MVMR_MVMR_TILE_H
#define SPOPS_KERNELS_MVMR_MVMR_TILE_H

// Output rows of a tile: with a block's columns their f32 sums are 36 KB of shared memory, which
// leaves room for four blocks on a multiprocessor of sm_90 and one on sm_75.
#define SPOPS_CUDA_TILE_ROWS 128

// Rows and columns of the products that a block computes at once.
#define SPOPS_CUDA_BLOCK_ROWS 64
#define SPOPS_CUDA_BLOCK_COLS 64

#endif
