// SPDX-License-Identifier: Apache-2.0
// Sizes that plans of triplets and the kernels that run them agree on. Plain C.
#ifndef SPOPS_KERNELS_MVMR_MVMR_TUNING_H
#define SPOPS_KERNELS_MVMR_MVMR_TUNING_H

#include <stdint.h>

// The tiles of a plan: X(number, output rows, a power of two). The first is taken unless a plan asks for
// another by its number.
//
// H100, f16 and f32, hot: of a convolution 64 rows take 1.32 to 1.40 times as long as 128, of groups 0.95 to
// 1.02 times. 128: with a block's columns their f32 sums are 36 KB of shared memory, which leaves room for four blocks
// on a multiprocessor of sm_90 and one on sm_75.
#define SPOPS_MVMR_TILES(X)                                                                        \
    X(1, 128)                                                                                      \
    X(2, 64)

// Rows and columns of the products that a block computes at once.
#define SPOPS_CUDA_BLOCK_ROWS 64
#define SPOPS_CUDA_BLOCK_COLS 64

#define SPOPS_TILE(number, rows) +1
enum { SPOPS_MVMR_NUM_TILES = SPOPS_MVMR_TILES(SPOPS_TILE) };
#undef SPOPS_TILE

// The tile that is asked for, or with 0 the first; 0: there is no such tile.
static inline int32_t spops_mvmr_tile(int32_t asked)
{
    if (asked == 0) return 1;
    return asked > 0 && asked <= SPOPS_MVMR_NUM_TILES ? asked : 0;
}

// Its output rows; 0: there is no such tile.
static inline int32_t spops_mvmr_tile_rows(int32_t tile)
{
    switch (tile) {
#define SPOPS_TILE(number, rows)                                                                   \
    case number: return rows;
        SPOPS_MVMR_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    default: return 0;
    }
}

#endif
