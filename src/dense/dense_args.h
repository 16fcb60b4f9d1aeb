// SPDX-License-Identifier: Apache-2.0
// What the slots of dense grids are given, and which cell a row has, alike on both backends.
#ifndef SPOPS_DENSE_DENSE_ARGS_H
#define SPOPS_DENSE_DENSE_ARGS_H

#include "coords/coord_arrays.h"
#include "spops/dense.h"

typedef struct spops_dense_grid {
    int32_t dims, num_batches;
    int32_t size[SPOPS_MAX_DIMS], origin[SPOPS_MAX_DIMS]; // after dims: 1 and 0
    int64_t batch_cells;                                  // of one batch; of all less than 2^31
    bool channels_last;
} spops_dense_grid;

// Not empty: there are channels.
typedef struct spops_dense_args {
    const spops_coords_arrays *coords;
    spops_dense_grid grid;
    spops_matrix rows;  // [max_rows, C]
    spops_matrix dense; // of equal dtype
    int64_t num_channels;
    uint64_t fill; // of dense: one element, in its first bytes
} spops_dense_args;

// The cell of a row (batch, x_0, ..), counted over all batches; -1: outside.
SPOPS_HD int32_t spops_dense_cell(const spops_dense_grid *grid, const int32_t *row)
{
    int64_t cell = row[0];
    int a;
    if (row[0] >= grid->num_batches) return -1;
    for (a = 0; a < grid->dims; ++a) {
        const int64_t at = (int64_t)row[1 + a] - grid->origin[a];
        if (at < 0 || at >= grid->size[a]) return -1;
        cell = cell * grid->size[a] + at;
    }
    return (int32_t)cell;
}

// The row (batch, x_0, ..) at a cell. Coordinates past the largest int32 stay so: no set has them.
SPOPS_HD void spops_dense_coords(const spops_dense_grid *grid, int64_t cell,
                                 int64_t at[1 + SPOPS_MAX_DIMS])
{
    int a;
    for (a = grid->dims - 1; a >= 0; --a) {
        at[1 + a] = cell % grid->size[a] + grid->origin[a];
        cell /= grid->size[a];
    }
    at[0] = cell;
}

// Where channel c of a cell stands, in elements.
SPOPS_HD int64_t spops_dense_place(const spops_dense_grid *grid, int64_t row_step,
                                   int64_t num_channels, int64_t cell, int64_t c)
{
    if (grid->channels_last) return cell * row_step + c;
    return (cell / grid->batch_cells * num_channels + c) * row_step + cell % grid->batch_cells;
}

#endif
