// SPDX-License-Identifier: Apache-2.0
// A tile of a dense product on the CPU.
#ifndef SPOPS_MVMR_PRODUCT_TILE_H
#define SPOPS_MVMR_PRODUCT_TILE_H

#include "core/threads.h"
#include "mvmr/mvmr_isa.h"

// The largest tile. A thread that keeps its sums on its stack takes at most SPOPS_PRODUCT_STACK_ROWS.
#define SPOPS_PRODUCT_ROWS       512
#define SPOPS_PRODUCT_STACK_ROWS 256
#define SPOPS_PRODUCT_OUTER_ROWS (2 * SPOPS_VVOR_ROWS) // where a is transposed
#define SPOPS_PRODUCT_COLS       (SPOPS_MVMR_TOGETHER * SPOPS_MVMR_PANEL)

// Rows row .. row + rows - 1 and columns col .. col + cols - 1 of a b, over the depth begin .. end - 1.
typedef struct spops_product_tile {
    spops_matrix a, b;               // as stored
    bool a_transposed, b_transposed; // stored [depth][rows], [cols][depth]
    int64_t row, rows, col, cols, begin, end;
} spops_product_tile;

// From row to row of sums on a stack: whole panels, so that narrow ones lie together.
static inline int64_t spops_product_step(int64_t cols)
{
    return (cols + SPOPS_MVMR_PANEL - 1) / SPOPS_MVMR_PANEL * SPOPS_MVMR_PANEL;
}

// To sums, [rows][sums_step]. Up to the next multiple of 16, columns after the last are written too.
void spops_product_tile_sums(const spops_mvmr_table *table, const spops_product_tile *tile,
                             float *sums, int64_t sums_step);

// Whether sums of a tile may be made where they end: in out itself, whose dtype is f32.
static inline bool spops_sums_fit_in(spops_matrix out)
{
    return out.dtype == SPOPS_DTYPE_F32 && out.cols % 16 == 0;
}

// The tiles that a product is cut into: the largest that still give every thread several.
typedef struct spops_product_tiles {
    int64_t rows, cols;       // of a tile, at most
    int64_t in_rows, in_cols; // tiles
} spops_product_tiles;

spops_product_tiles spops_product_tiles_of(spops_team team, int64_t products, int64_t rows,
                                           int64_t cols, int64_t most_rows);

#endif
