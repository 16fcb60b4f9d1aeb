// SPDX-License-Identifier: Apache-2.0
// A tile of a dense product on the CPU.
#ifndef SPOPS_MVMR_PRODUCT_TILE_H
#define SPOPS_MVMR_PRODUCT_TILE_H

#include "mvmr/mvmr_isa.h"

// The largest tile.
#define SPOPS_PRODUCT_ROWS SPOPS_VVOR_ROWS
#define SPOPS_PRODUCT_COLS SPOPS_MVMR_PANEL

// Rows row .. row + rows - 1 and columns col .. col + cols - 1 of a b, over the depth begin .. end - 1.
typedef struct spops_product_tile {
    spops_matrix a, b;               // as stored
    bool a_transposed, b_transposed; // stored [depth][rows], [cols][depth]
    int64_t row, rows, col, cols, begin, end;
} spops_product_tile;

// To sums, [rows][SPOPS_PRODUCT_COLS], which is aligned to 64 bytes.
void spops_product_tile_sums(const spops_mvmr_table *table, const spops_product_tile *tile,
                             float *sums);

#endif
