// SPDX-License-Identifier: Apache-2.0
// Voxels and keys of blocks of points: what spops_voxel_floor and spops_key_pack (coord_keys.h) give
// one by one, compiled once per instruction set.
#ifndef SPOPS_COORDS_VOXEL_ISA_H
#define SPOPS_COORDS_VOXEL_ISA_H

#include "coords/coord_arrays.h"
#include "core/cpu_isa.h"

#define SPOPS_VOXEL_BLOCK 64 // points, at most

// Columns of a block of rows: the batch, then the axes.
typedef int32_t spops_voxel_block[SPOPS_KEY_COLUMNS][SPOPS_VOXEL_BLOCK];

typedef struct spops_voxel_table {
    // The voxels of n points that begin with point i of source; bit p of the result: point i + p
    // has none.
    uint64_t (*find)(const spops_coords_source *source, int64_t i, int n, spops_voxel_block block);
    // lower, upper [columns] of n rows.
    void (*bounds)(int n, int columns, const spops_voxel_block block, int32_t *lower,
                   int32_t *upper);
    // Keys of n rows, SPOPS_KEY_NONE for those outside the layout's box.
    void (*pack)(const spops_key_layout *layout, int n, const spops_voxel_block block,
                 uint64_t *keys);
} spops_voxel_table;

SPOPS_DECLARE_ISA_TABLES(spops_voxel_table)

#endif
