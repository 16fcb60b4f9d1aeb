// SPDX-License-Identifier: Apache-2.0
// How the rows of a coordinate set are found: among sorted keys, in a grid of bits or in a hash table.
// Plain C.
#ifndef SPOPS_KERNELS_COORDS_TUNING_H
#define SPOPS_KERNELS_COORDS_TUNING_H

#include <stdint.h>

#include "spops/coords.h"

typedef struct spops_search_row {
    int32_t min_compute_capability;
    int64_t min_rows; // that the set has room for
    double max_cells; // of the box, for each of them; 0: any number
    spops_coords_search search;
} spops_search_row;

static const spops_search_row spops_search_rows[] = {
    // Grids and tables of so many rows lie outside L2, and each look costs a sector of memory. Sorted
    // keys of neighbouring rows lie side by side. A larger box leaves too many keys to a bucket.
    {0, 400000, 4096.0, SPOPS_COORDS_SEARCH_SORTED},
    // A table is filled in the pass that finds duplicates, and costs no more for a large box. A
    // grid is faster to look into as long as it is small beside the rows. H200, to the table of
    // 3x3x3 taps: 32 and 66 cells a row 97 and 106 us (hash: 108 and 142).
    {0, 0, 256.0, SPOPS_COORDS_SEARCH_GRID},
    // 2,830 cells a row: 69 us (grid: 91).
    {0, 0, 0.0, SPOPS_COORDS_SEARCH_HASH},
};

static inline spops_coords_search spops_search_choice(int32_t compute_capability, double num_cells,
                                                      int64_t max_rows)
{
    const spops_search_row *row = spops_search_rows;
    while (compute_capability < row->min_compute_capability || max_rows < row->min_rows ||
           (row->max_cells > 0.0 && num_cells > row->max_cells * (double)max_rows))
        ++row;
    return row->search;
}

#endif
